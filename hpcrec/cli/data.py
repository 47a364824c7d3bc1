"""``hpcrec data``: looks at data sets, and checks them. Knows options and tables; the work is ``hpcrec.data``'s."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from hpcrec.cli.options import Anything, File, examples

_FEATURE_HEADS = (
    "feature",
    "cardinality",
    "occur",
    "ids/sample",
    "most",
    "empty",
    "id 0",
    "top 1 %",
    "zipf",
    "top ids",
)
_RANGE = ("min", "mean", "max", "nan", "inf")
_REUSE_HEADS = ("feature", "rows", "a step", "of rows", "new")
_PARTS = (2, 4, 8, 16, 32)  # of the rows that are asked for, memory holds one in so many


@click.group(short_help="Look at a data set, or check one for damage.")
def data() -> None:
    """Look at a data set (HDF5, docs/data.md), or check one for damage and for values that are not allowed."""


@data.command(
    short_help="Print what is in a data set.",
    epilog=examples("hpcrec data inspect data/quickstart/train.h5", "hpcrec data inspect --json big.index.json"),
)
@click.argument("file", type=File)
@click.option("--samples", type=click.IntRange(min=1), help="Look at so many samples from the beginning; else at all.")
@click.option("--top", type=click.IntRange(min=1), default=3, show_default=True, help="Most frequent ids to list.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def inspect(file: Path, samples: int | None, top: int, as_json: bool) -> None:
    """Print what is in FILE, a data set file or an index file: counts, label rate, features' ids, dense columns.

    Of a feature: ids that occur, ids a sample, samples without any, the share of id 0 (which converters give to what is
    missing), the share of lookups that goes to the most frequent 1 % of the ids that occur, and the exponent s of the
    law count ~ rank^-s that fits them (Zipf). Memory is bounded; '~' marks what was then estimated.
    """
    from hpcrec.data.inspect import inspect as look

    found = look(file, samples=samples, top=top)
    click.echo(json.dumps(found, indent=2, allow_nan=False) if as_json else "\n".join(_page(found)))


@data.command(
    short_help="Print how many rows steps would read from a disk, by memory.",
    epilog=examples(
        "hpcrec data reuse data/quickstart/train.h5 --batch-size 2048",
        "hpcrec data reuse big.index.json --batch-size 65536 --json > reuse.json",
    ),
)
@click.argument("file", type=File)
@click.option("--batch-size", type=click.IntRange(min=1), required=True, help="Samples a step, of all ranks together.")
@click.option("--samples", type=click.IntRange(min=1), help="Look at so many samples from the beginning; else at all.")
@click.option("--feature", "features", multiple=True, help="Look at this feature; repeatable. By default at all.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, whole curves, instead of a table.")
def reuse(file: Path, batch_size: int, samples: int | None, features: Sequence[str], as_json: bool) -> None:
    """Print, for each feature of FILE, how many distinct rows a step asks for, and how many of them memory would lack.

    FILE is a data set file or an index file. Columns '1/8' are of memory that holds an eighth of the rows that are
    asked for at all: first where it keeps those that were used last (LRU), as a GPU's cache does, then of the best
    fixed set, which store.name = "disk" follows: it reads some more, as long as it does not know yet which rows come
    often, and hpcrec config check says how many. Rows that no step has asked for before are not among these, since a
    store that has rows on a disk makes them anew; 'new' says how many come a step. One pass, each feature as if it had
    a table of its own; memory is bounded (docs/tiers.md).
    """
    from hpcrec.data.reuse import reuse as count

    curves = count(file, batch_size, {name: (name,) for name in features} or None, samples=samples)
    if as_json:
        found = {name: curve.as_json() for name, curve in curves.items()}
        click.echo(json.dumps({"path": str(file), "batch_size": batch_size, "features": found}, allow_nan=False))
        return
    parts = [f"1/{n} {rule}" for n in _PARTS for rule in ("lru", "fixed")]
    rows = [(name, *_reuse_row(curve)) for name, curve in curves.items()]
    click.echo("\n".join(_table([(*_REUSE_HEADS, *parts), *rows])))
    click.echo('\nstore.name = "disk" follows the columns fixed; lru is where rows stay that were used last.')


@data.command(
    short_help="Check data sets for damage.",
    epilog=examples("hpcrec data verify data/quickstart", "hpcrec data verify day-*.h5 && hpcrec train my.toml"),
)
@click.argument("paths", nargs=-1, required=True, type=Anything)
def verify(paths: Sequence[Path]) -> int:
    """Read data sets whole and list what is wrong: PATHS are data set files, index files or folders of them.

    Checks the schema, that ids, labels, dense inputs and weights are allowed, and the checksums that files written by
    hpcrec carry. A vocabulary.h5 that a preparation left there is checked too. Ends with status 1 if anything is wrong.
    """
    from hpcrec.data.verify import verify as check

    bad = 0
    for verdict in check(paths):
        bad += bool(verdict.problems)
        if not verdict.problems:
            click.echo(f"{verdict.path}: {_well(verdict)}")
        for problem in verdict.problems:
            click.echo(f"hpcrec: error: {problem}", err=True)
    return 1 if bad else 0


def _well(verdict: Any) -> str:
    if not verdict.columns:
        return "ok"
    said = f"ok, {verdict.samples:,} samples, {verdict.columns} datasets"
    if verdict.values is not None:
        said = f"ok, a vocabulary, {verdict.values:,} values, {verdict.columns} features"
    if verdict.unchecked == verdict.columns:
        return f"{said}, no checksums recorded"
    return said + (f", {verdict.unchecked} of them without checksum" if verdict.unchecked else "")


def _page(found: dict[str, Any]) -> Iterable[str]:
    part = "" if found["inspected"] == found["samples"] else f", of which the first {found['inspected']:,} follow"
    yield f"{found['path']}: {found['samples']:,} samples in {found['files']} file(s){part}"
    rates = ", ".join(_number(label["mean"]) for label in found["labels"])
    yield f"label rate: {rates}   checksums recorded: {found['checksums']}"
    if bad := sum(label["nan"] + label["inf"] for label in found["labels"]):
        yield f"labels that are not finite: {bad:,}"
    yield from _table([_FEATURE_HEADS, *(_feature_row(feature) for feature in found["features"])])
    columns = [(f"dense {i}", column) for i, column in enumerate(found["dense"])] + list(found["optional"].items())
    yield from _table([("column", *_RANGE), *((name, *(_number(c[key]) for key in _RANGE)) for name, c in columns)])
    yield ""
    for name, value in found["attributes"].items():
        yield f"{name}: {json.dumps(value) if isinstance(value, dict | list) else value}"


def _feature_row(f: dict[str, Any]) -> tuple[str, ...]:
    about = "" if f["exact"] else "~"
    outside = f" ({f['outside']:,} ids outside)" if f["outside"] else ""
    return (
        f["name"] + (" (weighted)" if f["weighted"] else "") + outside,
        f"{f['cardinality']:,}" if f["cardinality"] else "any",
        f"{about}{f['distinct']:,}",
        f"{f['mean_ids']:.2f}",
        f"{f['max_ids']:,}",
        f"{f['empty_share']:.1%}",
        f"{f['id_0_share']:.1%}",
        f"{about}{f['top_1_percent_share']:.1%}",
        "-" if f["zipf_exponent"] is None else f"{f['zipf_exponent']:.2f}",
        " ".join(f"{top['id']} {top['share']:.1%}" for top in f["top"]),
    )


def _reuse_row(curve: Any) -> Iterable[str]:
    yield from (f"{curve.distinct:,.0f}", f"{curve.asked:,.1f}")
    yield from (f"{curve.asked / max(curve.distinct, 1):.2%}", f"{curve.new:,.1f}")
    for n in _PARTS:
        yield from (f"{curve.reads(curve.distinct / n):,.1f}", f"{curve.best(curve.distinct / n):,.1f}")


def _table(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    """Rows under the first, their heads; nothing where there are only heads."""
    if len(rows) < 2:
        return
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    yield ""
    for first, *others in rows:
        yield "  ".join([first.ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(others, widths[1:], strict=True))])


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
