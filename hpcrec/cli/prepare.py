"""``hpcrec prepare``: data sets from tables of text or Parquet and from known formats.

Knows options; the converters are ``preparation.convert``'s. Starts MPI only where a launcher says so.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcrec.cli.options import LAUNCHERS, F, File, WithFiles, examples, parts_options
from hpcrec.errors import ConfigError
from hpcrec.units import MiB

if TYPE_CHECKING:
    from hpcrec.comm.collectives import Collectives
    from hpcrec.preparation.split import Cut

out_option = click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="Folder for train.h5 and the others."
)
split_option = click.option(
    "--split",
    metavar="KIND:TRAIN,VALIDATION,TEST",
    help="Fractions by order of the source or at random by a hash of the sample: order:0.8,0.1,0.1 or hash:0.8,0,0.2. "
    "A part with 0 gets no file.",
)
seed_option = click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of what is random."
)


def job_options(command: F) -> F:
    """Options of conversions that are cut into pieces: shared out to ranks, and continued."""
    for option in (
        click.option(
            "--max-bad",
            type=click.FloatRange(0, 1),
            default=0.0,
            show_default=True,
            help="Share of lines that may be bad: they are left out and written to rejects.tsv. 0 stops at the first.",
        ),
        click.option(
            "--piece",
            "piece_mib",
            type=click.IntRange(min=1),
            default=256,
            show_default=True,
            metavar="MIB",
            help="Source bytes that one rank converts at a time; each piece becomes a file.",
        ),
        click.option(
            "--compression",
            type=click.Choice(["none", "gzip"]),
            default="none",
            show_default=True,
            help="gzip halves the data set; every epoch then takes longer to read.",
        ),
        click.option("--restart", is_flag=True, help="Begin anew, whatever --out holds of an earlier conversion."),
    ):
        command = option(command)
    return command


@click.group(short_help="Convert click logs to HDF5, or generate some.")
def prepare() -> None:
    """Make a data set (HDF5, docs/data.md), with a progress bar and in bounded memory.

    'criteo' and 'table' run on any number of ranks (hpcrec run -n 8 -- prepare ..., mpirun, srun), with the same
    result. Cut short, they keep the pieces that are finished: the same command goes on.
    """


@prepare.command(
    "criteo", epilog=examples("hpcrec prepare criteo --out data/criteo --split hash:0.8,0,0.2 train.txt.gz")
)
@click.argument("files", nargs=-1, type=File, required=True)
@out_option
@split_option
@seed_option
@click.option(
    "--ids",
    type=click.Choice(["hash", "vocabulary"]),
    default="hash",
    show_default=True,
    help="hash: one pass, --rows rows a feature. vocabulary: two passes, values seen --min-count times or more.",
)
@click.option("--rows", type=click.IntRange(min=3), help="Rows a feature: 100,000 for hash, no limit for vocabulary.")
@click.option("--min-count", type=click.IntRange(min=1), default=1, show_default=True, help="For --ids vocabulary.")
@click.option("--bin-integers", is_flag=True, help="I1..I13 are binned to features too, besides dense inputs.")
@job_options
def prepare_criteo(rows: int | None, **options: Any) -> None:
    """Criteo click logs (Kaggle, 1 TB): tab-separated, plain or gzip: label, 13 integers, 26 categories."""
    _convert("criteo", {"rows_per_feature": rows}, **options)


@prepare.command(
    "table",
    cls=WithFiles,
    epilog=examples(
        "hpcrec prepare table --map datasets/avazu/avazu.toml --out data/avazu train.gz",
        "hpcrec run -n 8 -- prepare table --map mine.toml --out data/mine logs/*.parquet",
        "hpcrec prepare table --map mine.toml --out data/mine 0*.csv --validation 10.csv --test 1[12].csv",
    ),
)
@click.argument("files", nargs=-1, type=File, required=True)
@click.option(
    "--map", "map_", type=File, required=True, help="TOML file that says what the columns are (docs/data.md)."
)
@parts_options
@out_option
@click.option(
    "--split",
    metavar="KIND:...",
    help="By fractions as order:0.8,0.1,0.1, hash:0.8,0,0.2, or group:0.8,0.1,0.1, which keeps the map's groups "
    "together; by time as time:2024-05-30,2024-06-02T12:00:00 (first of validation, of test). Default: the map's.",
)
@seed_option
@job_options
def prepare_table(map_: Path, seed: int, **options: Any) -> None:
    """Tables in delimited text (plain or gzip), Parquet or Arrow, in the order given, by a map of their columns."""
    _convert("table", {"table": map_, "seed": seed}, seed=seed, **options)


@prepare.command(
    "movielens",
    epilog=examples(
        "hpcrec prepare movielens --out data/ml --ratings ratings.dat --users users.dat --items movies.dat --history 50"
    ),
)
@click.option("--ratings", type=File, required=True, help="ratings.dat, u.data or CSV with a header; plain or gzip.")
@click.option("--users", type=File, required=True, help="users.dat, u.user or CSV.")
@click.option("--items", type=File, required=True, help="movies.dat, u.item or CSV.")
@out_option
@split_option
@seed_option
@click.option("--threshold", type=float, default=4.0, show_default=True, help="Ratings from here on are label 1.")
@click.option(
    "--history",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Adds multi-hot features of the user's other items in the training part, at most so many each: rated, and "
    "liked and disliked of earlier ones. Holds all ratings in memory.",
)
def prepare_movielens(out: Path, split: str | None, seed: int, **options: Any) -> None:
    """MovieLens ratings with users and films; label 1 where the rating reaches the threshold."""
    _alone("movielens")
    from hpcrec.preparation import convert

    cut = convert.Split.parse(split or "hash:0.8,0,0.2", seed)
    _told(convert.prepare_movielens(out_dir=out, split=cut, progress=sys.stderr.isatty(), **options).as_dict())


@prepare.command("synthetic", epilog=examples("hpcrec prepare synthetic --out data/quickstart --samples 1000000"))
@out_option
@click.option("--samples", type=click.IntRange(min=40), default=1_000_000, show_default=True, help="For training.")
@click.option("--groups", metavar="GxN", help="Features interact in G planted groups of N, as 4x4 (docs/towers.md).")
@click.option("--cross", type=click.FloatRange(0, 1), help="With --groups: share of interactions between them (0.05).")
@click.option("--rank", type=click.IntRange(min=1), help="With --groups: length of the latent vectors (8).")
@seed_option
def prepare_synthetic(
    out: Path, samples: int, groups: str | None, cross: float | None, rank: int | None, seed: int
) -> None:
    """Synthetic clicks from a planted truth, whose attainable AUC is known and written into the files."""
    _alone("synthetic")
    from hpcrec.preparation import convert
    from hpcrec.preparation.groups import PlantedGroups, planted

    spec = None
    if groups is not None:
        n_groups, _, size = groups.partition("x")
        if not n_groups.isdecimal() or not size.isdecimal():
            raise click.BadParameter(f"{groups!r} is not two numbers, as 4x4", param_hint="--groups")
        given = {"cross": cross, "rank": rank}
        more = {name: value for name, value in given.items() if value is not None}
        spec = planted(PlantedGroups(groups=int(n_groups), size=int(size), **more), seed)  # type: ignore[arg-type]
    elif cross is not None or rank is not None:
        raise click.UsageError("--cross and --rank are of --groups.")
    _told(convert.prepare_synthetic(out, samples=samples, seed=seed, spec=spec, progress=sys.stderr.isatty()).as_dict())


def check_prepare(arguments: Sequence[str]) -> None:
    """Refuse a command line of ``hpcrec prepare`` that every rank would refuse."""
    name, *rest = arguments or [""]
    shared = {"criteo": prepare_criteo, "table": prepare_table}
    if name not in shared:
        raise click.UsageError(f"'hpcrec run' starts prepare {' or '.join(shared)} on several ranks, not {name!r}.")
    given = shared[name].make_context(f"hpcrec prepare {name}", list(rest)).params
    from hpcrec.preparation import convert, tablemap

    if given["split"]:
        _cut(given["split"])
    if "map_" in given:
        files = [*given["files"], *given["validation"], *given["test"]]
        convert.check_columns(files, tablemap.load_map(given["map_"]))


def _tasks() -> int:
    """Ranks that the launcher says it started; 1 without one."""
    return next((int(os.environ[name]) for name in LAUNCHERS if os.environ.get(name, "").isdigit()), 1)


def _ranks() -> "Collectives | None":
    """All ranks; None for one process, which then needs no MPI."""
    if _tasks() == 1:
        return None
    from hpcrec.comm.everyone import everyone

    return everyone(os.environ)


def _convert(
    kind: str,
    of_kind: dict[str, Any],
    *,
    files: Sequence[Path],
    out: Path,
    split: str | None,
    seed: int,
    piece_mib: int,
    **options: Any,
) -> None:
    """Converts on all ranks by ``convert.prepare_<kind>``, and says once what was written."""
    ranks = _ranks()
    from hpcrec.preparation import convert

    summary = getattr(convert, f"prepare_{kind}")(
        files,
        out,
        split=_cut(split, seed) if split else None,
        piece_bytes=piece_mib * MiB,
        progress=sys.stderr.isatty(),
        ranks=ranks,
        **of_kind,
        **options,
    )
    if ranks is None or ranks.rank == 0:
        _told(summary.as_dict())


def _cut(text: str, seed: int = 0) -> "Cut":
    """How --split divides samples; its errors begin with ``split``, as they do where a map has it."""
    from hpcrec.preparation import convert

    try:
        return convert.parse_cut(text, seed)
    except ConfigError as error:
        raise ConfigError(f"--{error}") from error


def _alone(command: str) -> None:
    if _tasks() > 1:
        raise ConfigError(f"prepare {command}: runs on one rank; start it without 'hpcrec run', mpirun or srun.")


def _told(summary: dict[str, Any]) -> None:
    """What a preparation wrote."""
    for part, path in summary["files"].items():
        known = summary["attainable_auc"].get(part)
        more = "" if known is None else f", attainable AUC {known:.4f}"
        rate = f"label rate {summary['label_rate'][part]:.4f}"
        if by_label := summary["label_rates"].get(part):
            rate = "label rates " + ", ".join(f"{label} {of:.4f}" for label, of in by_label.items())
        click.echo(f"{path}: {summary['samples'][part]:,} samples, {rate}{more}")
    if summary["rejected"]:
        click.echo(f"rejected lines: {summary['rejected']:,}, in rejects.tsv")
    known = summary["cardinalities"].items()
    click.echo("cardinalities: " + ", ".join(f"{name} {n:,}" if n else f"{name} not declared" for name, n in known))
