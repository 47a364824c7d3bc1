"""Models with towers beside flat ones: what they gain in time across hosts, and what they cost in AUC.

    python benchmarks/towers.py [--parts NAMES] [--quick] [--json FILE] [--cluster DIR] [--data DIR] [--cache DIR]
        [--known FILE] [--picture FILE]

``speed``, ``speed_one``
               a step across emulated hosts, of bags and of one id (``towers_parts/speed_part.py``)
``planted``, ``planted_dcn``, ``share``, ``towers``, ``long``, ``movielens`` and ``criteo``
               AUC (``towers_parts/quality_part.py``)
``codecs``     both, of towers, narrow rows, and codecs of flat models (``towers_parts/codecs_part.py``)
``partition``  towers that are found (``towers_parts/partition_part.py``)

Runs whose AUC is known to the cache are not run again: take another one for another product. Those of the committed
figures, but for parts ``movielens`` and ``partition``, are in benchmarks/results/towers_runs.jsonl, which ``--known``
takes too. The JSON of each part but the first lies beside it, as <FILE>_<part>.
"""

from pathlib import Path

from _report import ROOT, asked, finish, options
from towers_parts import codecs_part, partition_part, quality_part, speed_part
from towers_parts.trained import Kept

PARTS = (*speed_part.PARTS, *quality_part.PARTS, "codecs", "partition")


def main() -> None:
    parser = options(__doc__, PARTS)
    parser.add_argument("--cluster", type=Path, default=ROOT / "../shared/cluster", help="scripts of emulated hosts")
    parser.add_argument(
        "--data", type=Path, default=ROOT / "../shared/data", help="folder of MovieLens' files and of Criteo's sample"
    )
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "towers", help="data sets, and what runs found")
    parser.add_argument("--known", type=Path, help="what runs found, beside what the cache has")
    parser.add_argument("--picture", type=Path, help="SVG that part codecs draws, by matplotlib")
    arguments = parser.parse_args()
    kept = Kept(arguments.cache / "quick" if arguments.quick else arguments.cache, arguments.known)
    for part, path in asked(parser, arguments, PARTS):
        if part in speed_part.PARTS:
            rows, claims = speed_part.measure(kept.cache, arguments.cluster, part, quick=arguments.quick)
        elif part == "codecs":
            rows = codecs_part.measure(kept, arguments.cluster, arguments.picture, quick=arguments.quick)
            claims = []
        elif part == "partition":
            rows, claims = partition_part.measure(kept, quick=arguments.quick)
        else:
            rows, claims = quality_part.measure(kept, arguments.data, part, quick=arguments.quick)
        finish("towers", rows, claims, path)


if __name__ == "__main__":
    main()
