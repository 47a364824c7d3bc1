"""What thresholding [DCT] saves in bytes and time and costs in quality, and what codistilling groups learn faster.

    python benchmarks/dct.py [--parts quality,ranks,curve,real,time,codistill] [--quick] [--json FILE]
                             [--data DIR] [--cluster DIR] [--cache DIR] [--tables shared,own]

What the parts measure, and their claims, is said in ``dct_parts``. The JSON of a part lies beside that of
``quality``, as <FILE>_<part>. --quick trains fewer and shorter.
"""

import argparse
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from _report import ROOT, asked, finish
from _report import options as benchmark_options
from dct_parts import clicks, codistill_part, curve_part, quality_part, ranks_part, real_part, time_part
from dct_parts.runs import Row

Found = tuple[list[Row], list[Row]]
"""Rows and claims."""


def time_of(options: argparse.Namespace) -> Found:
    """Across emulated hosts."""
    return time_part.measure(clicks.prepare(quality_part.BLOCKS, options.cache), options.cluster, quick=options.quick)


# Each gives what it has found, again and again where it takes long.
PARTS: dict[str, Callable[[argparse.Namespace], Iterable[Found]]] = {
    "quality": lambda o: quality_part.measure(o.cache, quick=o.quick),
    "ranks": lambda o: [ranks_part.measure(o.cache, quick=o.quick)],
    "curve": lambda o: [curve_part.measure(o.cache, quick=o.quick)],
    "real": lambda o: [real_part.measure(o.data, quick=o.quick)],
    "time": lambda o: [time_of(o)],
    "codistill": lambda o: codistill_part.measure(o.cache, o.tables.split(","), quick=o.quick),
}


def main() -> None:
    parser = benchmark_options(__doc__, tuple(PARTS))
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "hpcrec" / "dct"
    parser.add_argument("--data", type=Path, help="folder of the real files; without, they are skipped")
    parser.add_argument("--cluster", type=Path, default=ROOT / "../shared/cluster", help="scripts of emulated hosts")
    parser.add_argument("--cache", type=Path, default=cache, help="where data sets are kept")
    kinds = ("shared", "own", "shared,own")
    parser.add_argument(
        "--tables", choices=kinds, default="shared", help="of codistilling groups: shared, own, or both"
    )
    options = parser.parse_args()
    for part, path in asked(parser, options, tuple(PARTS)):
        for rows, claims in PARTS[part](options):
            finish("dct", rows, claims, path)


if __name__ == "__main__":
    main()
