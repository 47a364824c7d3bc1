"""``hpcrec prepare``: data sets from known formats. Knows options; the converters are ``data.convert``'s."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from hpcrec.cli_options import File, examples

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


@click.group(short_help="Convert click logs to HDF5, or generate some.")
def prepare() -> None:
    """Make a data set (HDF5, docs/data.md) from a known format, with a progress bar and in bounded memory."""


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
def prepare_criteo(files: Sequence[Path], out: Path, split: str | None, seed: int, **options: Any) -> None:
    """Criteo click logs in the Kaggle layout: tab-separated, plain or gzip: label, 13 integers, 26 categories."""
    from hpcrec.data import convert

    cut = convert.Split.parse(split, seed) if split else None
    rows = options.pop("rows")
    _told(
        convert.prepare_criteo(
            files, out, rows_per_feature=rows, split=cut, progress=sys.stderr.isatty(), **options
        ).as_dict()
    )


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
    from hpcrec.data import convert

    cut = convert.Split.parse(split or "hash:0.8,0,0.2", seed)
    _told(convert.prepare_movielens(out_dir=out, split=cut, progress=sys.stderr.isatty(), **options).as_dict())


@prepare.command("synthetic", epilog=examples("hpcrec prepare synthetic --out data/quickstart --samples 1000000"))
@out_option
@click.option("--samples", type=click.IntRange(min=40), default=1_000_000, show_default=True, help="For training.")
@seed_option
def prepare_synthetic(out: Path, samples: int, seed: int) -> None:
    """Synthetic clicks from a planted truth, whose attainable AUC is known and written into the files."""
    from hpcrec.data import convert

    _told(convert.prepare_synthetic(out, samples=samples, seed=seed, progress=sys.stderr.isatty()).as_dict())


def _told(summary: dict[str, Any]) -> None:
    """What a preparation wrote."""
    for part, path in summary["files"].items():
        known = summary["attainable_auc"].get(part)
        more = "" if known is None else f", attainable AUC {known:.4f}"
        said = f"{summary['samples'][part]:,} samples, label rate {summary['label_rate'][part]:.4f}{more}"
        click.echo(f"{path}: {said}")
    click.echo("cardinalities: " + ", ".join(f"{name} {n:,}" for name, n in summary["cardinalities"].items()))
