"""``hpcrec checkpoint``: looks at checkpoints, checks, compares, converts and exports them. One process, without MPI.

Knows options and how findings are printed; the work is ``checkpoint.tools``' and, of an export, ``build.export``'s.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from hpcrec.cli.options import EXPORT, LAUNCHERS, Anything, checkpoint_option, examples, run_config, set_option
from hpcrec.errors import ConfigError, HpcrecError
from hpcrec.units import format_bytes

if TYPE_CHECKING:
    from hpcrec.data.predictions import Beside

_SHOWN = 20  # values of a dense part that are listed
Folder = click.Path(path_type=Path)
scratch_option = click.option(
    "--scratch",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder for temporary files, with room for the largest table.",
)


@click.group(short_help="Look at checkpoints; check, compare, convert or export them.")
def checkpoint() -> None:
    """Look at checkpoints (docs/checkpoint.md); check, compare, convert or export them.

    PATH is the folder of a checkpoint, or a run folder, whose newest checkpoint it then is.
    """


@checkpoint.command(
    short_help="Print what is in a checkpoint.",
    epilog=examples("hpcrec checkpoint inspect runs/quickstart", "hpcrec checkpoint inspect --json step-1200"),
)
@click.argument("path", type=Anything)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a page.")
def inspect(path: Path, as_json: bool) -> None:
    """Print what is in the checkpoint at PATH: position, tables, dense parameters, what it ran on.

    Reads headers alone; 'verify' reads everything.
    """
    from hpcrec.checkpoint.tools.look import look

    found = look(path)
    click.echo(json.dumps(found, indent=2) if as_json else "\n".join(_page(found)))


@checkpoint.command(
    short_help="Check checkpoints for damage.",
    epilog=examples("hpcrec checkpoint verify runs/quickstart", "hpcrec checkpoint verify runs/*/checkpoints/step-*"),
)
@click.argument("paths", nargs=-1, required=True, type=Anything)
@scratch_option
def verify(paths: Sequence[Path], scratch: Path | None) -> int:
    """Read the checkpoints at PATHS whole and list all that is wrong. Of an export, checks sizes and checksums.

    Checks sizes and checksums, that every id and column is in exactly one part, that optimizer states are complete, and
    that values are finite. Ends with status 1 if anything is wrong.
    """
    from hpcrec.checkpoint.tools.verify import verify as check

    bad = 0
    for path in paths:
        if (path / EXPORT).is_file():
            bad += _verify_export(path)
            continue
        verdict = check(path, scratch)
        bad += bool(verdict.problems)
        if not verdict.problems:
            size = format_bytes(verdict.n_bytes)
            click.echo(
                f"{verdict.path}: ok, {verdict.tables} tables, {verdict.ids:,} rows, {verdict.files} files, {size}"
            )
        for problem in verdict.problems:
            click.echo(f"hpcrec: error: {problem}", err=True)
    return 1 if bad else 0


def _verify_export(path: Path) -> bool:
    from hpcrec.serving.folder import damages

    found = damages(path)
    for problem in found:
        click.echo(f"hpcrec: error: {problem}", err=True)
    if not found:
        click.echo(f"{path}: ok, an export")
    return bool(found)


@checkpoint.command(
    short_help="Say what differs between two checkpoints.",
    epilog=examples(
        "hpcrec checkpoint diff runs/a runs/b", "hpcrec checkpoint diff --tolerance 1e-6 step-100 other/step-100"
    ),
)
@click.argument("a", type=Anything)
@click.argument("b", type=Anything)
@click.option(
    "--tolerance", type=click.FloatRange(min=0), default=0.0, show_default=True, help="Largest difference that is none."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of lines.")
@scratch_option
def diff(a: Path, b: Path, tolerance: float, as_json: bool, scratch: Path | None) -> int:
    """Say what differs between the checkpoints at A and B: rows and optimizer states by id, dense parameters by name.

    Parts and their order do not count. Status 0: they are equal; 1: they differ; 2: one cannot be read.
    """
    from hpcrec.checkpoint.tools.diff import diff as compare

    try:
        found = compare(a, b, tolerance=tolerance, scratch=scratch)
    except (HpcrecError, OSError) as error:
        raise ConfigError(str(error)) from error
    click.echo(json.dumps(_as_json(found), indent=2) if as_json else "\n".join(_differences(found)))
    return 0 if found["equal"] else 1


@checkpoint.command(
    short_help="Write a checkpoint in other parts or another type.",
    epilog=examples(
        "hpcrec checkpoint convert runs/quickstart whole --parts 4",
        "hpcrec checkpoint convert step-1200 double --dtype float64",
    ),
)
@click.argument("path", type=Anything)
@click.argument("out", type=Folder)
@click.option("--parts", type=click.IntRange(min=1), default=1, show_default=True, help="Parts of each table.")
@click.option(
    "--shard",
    type=click.Choice(["row", "column"]),
    default="row",
    show_default=True,
    help="Whether a part has some ids or some columns. Dynamic tables have parts by ids alone.",
)
@click.option("--dtype", type=click.Choice(["float32", "float64"]), help="Type of all values; as it is by default.")
@click.option(
    "--without-optimizer", is_flag=True, help="Leave out optimizer states: for evaluation, a run cannot go on from it."
)
@scratch_option
def convert(
    path: Path, out: Path, parts: int, shard: str, dtype: str | None, without_optimizer: bool, scratch: Path | None
) -> None:
    """Write the checkpoint at PATH as another one, the new folder OUT, that can be used wherever a checkpoint can.

    It has all that it needs in itself, also where PATH needs older ones. Give it to --checkpoint or --resume.
    """
    from hpcrec.checkpoint.tools.convert import Conversion
    from hpcrec.checkpoint.tools.convert import convert as write

    wanted = Conversion(parts=parts, shard=shard, dtype=dtype, without_optimizer=without_optimizer)
    written = write(path, out, wanted, scratch)
    click.echo(f"{written.folder}: step {written.step}, {len(written.tables)} tables")


@checkpoint.command(
    short_help="Write a trained model so that it can be served.",
    epilog=examples(
        "hpcrec checkpoint export runs/quickstart model",
        "hpcrec predict model --data data/quickstart/test.h5 --out predictions.h5",
    ),
)
@click.argument("run", type=Anything)
@click.argument("out", type=Folder)
@checkpoint_option
@click.option(
    "--embeddings",
    type=click.Choice(["safetensors", "hdf5"]),
    default="safetensors",
    show_default=True,
    help="Files of the tables.",
)
@set_option
def export(run: Path, out: Path, checkpoint: str, embeddings: str, overrides: Sequence[str]) -> None:
    """Write the model of RUN, a run folder or the TOML file that made it, as the new folder OUT.

    OUT has the dense part as a graph of torch (torch.export) and each table as a file, and says in export.json what
    they mean. 'hpcrec predict OUT' and hpcrec.serving.Exported predict with it, without MPI.
    """
    from hpcrec.build.export import export as write
    from hpcrec.serving.folder import read_facts

    written = write(run_config(run, overrides), out, checkpoint=checkpoint, embeddings=embeddings)
    size = format_bytes(sum(path.stat().st_size for path in written.rglob("*") if path.is_file()))
    click.echo(f"{written}: {size}")
    for difference in read_facts(written)["differences"]:
        click.echo(f"unlike 'hpcrec predict' of the run: {difference}")


def refuse_for_exports(folder: Path, environment: Mapping[str, str]) -> None:
    """Refuses options of ``hpcrec predict`` that concern runs, and several processes."""
    context = click.get_current_context()
    for name, option in (("checkpoint", "--checkpoint"), ("overrides", "--set"), ("unset", "--unset")):
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{folder} is an export, which {option} is not for: it is of one checkpoint.")
    if any(environment.get(name, "1") != "1" for name in LAUNCHERS):
        raise ConfigError(f"predict: {folder} is an export; start it without 'hpcrec run', mpirun or srun.")


def predict_exported(
    folder: Path,
    data: Path,
    out: Path,
    environment: Mapping[str, str],
    columns: Sequence[str],
    kind: str | None,
    beside: "Beside | None" = None,
) -> int:
    """``hpcrec predict`` of an export: on one process. Returns samples."""
    refuse_for_exports(folder, environment)
    from hpcrec.serving.predict import predict_data

    return predict_data(folder, data, out, columns=columns, kind=kind, beside=beside)


def _as_json(value: Any) -> Any:
    """Numbers that are not finite as null, which JSON has."""
    if isinstance(value, dict):
        return {name: _as_json(own) for name, own in value.items()}
    if isinstance(value, list):
        return [_as_json(own) for own in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ---- pages -----------------------------------------------------------------------------------------------------------


def _page(found: dict[str, Any]) -> Iterable[str]:
    samples = "" if found["samples"] is None else f", {found['samples']:,} samples"
    yield (
        f"{found['path']}: step {found['step']:,}{samples}, {found['files']} files, {format_bytes(found['bytes'])}"
        f"{', best of its run' if found['best'] else ''}"
    )
    if found["linked_bytes"]:
        yield f"rows are links to a store's files, {format_bytes(found['linked_bytes'])} of it"
    if found["base"] is not None:
        yield f"what changed since step {found['base']:,}, whose checkpoint has to be beside it"
    told = {name: found[name] for name in ("seed", "batch_size", "dtype", "shuffle", "skipped_steps") if name in found}
    if told:
        yield ", ".join(f"{name} {value}" for name, value in told.items())
    heads = ("table", "kind", "rows", "width", "rows in use", "type", "states", "parts", "bytes")
    rows = [
        (
            name,
            t["kind"],
            f"{t['rows']:,}",
            f"{t['width']}",
            f"{t['ids']:,}",
            t["dtype"],
            ", ".join(f"{state} ({of})" for state, of in t["states"].items()) or "-",
            f"{t['parts']}" + (f" ({t['column_pieces']} by columns)" if t["column_pieces"] > 1 else ""),
            format_bytes(t["bytes"]),
        )
        for name, t in found["tables"].items()
    ]
    yield from _table([heads, *rows])
    for name, dense in found["dense"].items():
        yield ""
        states = ", ".join(dense["optimizer_states"]) or "none"
        yield f"{name}: {dense['elements']:,} elements, optimizer states {states}, {format_bytes(dense['bytes'])}"
        for kind in ("parameters", "buffers"):
            yield from (f"  {p} {shape}{' (buffer)' if kind == 'buffers' else ''}" for p, shape in dense[kind].items())
    if found["unsent_gradients_of_ranks"]:
        yield f"unsent gradients of {found['unsent_gradients_of_ranks']} dense ranks"
    if found["ran_on"]:
        yield ""
        yield "ran on: " + ", ".join(f"{name} {value}" for name, value in found["ran_on"].items())


def _differences(found: dict[str, Any]) -> Iterable[str]:
    for name, (x, y) in found["position"].items():
        yield f"{name}: {x} and {y}"
    for side, where in (("tables_only_a", found["a"]), ("tables_only_b", found["b"])):
        yield from (f"table {name}: only in {where}" for name in found[side])
    for name, table in found["tables"].items():
        if table["equal"]:
            continue
        yield from (f"table {name}: {said}" for said in table["said"])
        alone = [f"{table[side]:,} only in {found[side[-1]]}" for side in ("only_a", "only_b") if table[side]]
        counts = [f"{table['rows_differ']:,} of {table['ids']:,} rows differ", *alone]
        if table["uses_differ"]:
            counts.append(f"other uses known of {table['uses_differ']:,} ids")
        first = f"; the first ids: {', '.join(map(str, table['first_ids']))}" if table["first_ids"] else ""
        yield f"table {name}: {', '.join(counts)}{first}"
        yield from (_values(f"  {what}", v) for what, v in table["values"].items() if v["differ"])
    for name, dense in found["dense"].items():
        for side in ("only_a", "only_b"):
            yield from (f"{name}: {p} only in {found[side[-1]]}" for p in dense[side])
        yield from (f"{name}: shape of {said}" for said in dense["shapes"])
        for what, values in list(dense["values"].items())[:_SHOWN]:
            yield _values(f"{name}: {what}", values)
        if len(dense["values"]) > _SHOWN:
            yield f"{name}: and {len(dense['values']) - _SHOWN} more"
    within = f" within {found['tolerance']:g}" if found["tolerance"] else ""
    yield f"equal{within}" if found["equal"] else f"different: {found['a']} and {found['b']}"


def _values(what: str, values: dict[str, Any]) -> str:
    return (
        f"{what}: {values['differ']:,} of {values['compared']:,} values differ, by {values['largest']:.3g} at most, "
        f"{values['mean']:.3g} on average"
    )


def _table(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    if len(rows) < 2:
        return
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    yield ""
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
