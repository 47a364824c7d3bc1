"""What thresholding [DCT] of vectors and of dense gradients saves in bytes and time, and what it costs in quality.

    python benchmarks/dct.py [--parts quality,time] [--quick] [--json FILE] [--cluster DIR] [--cache DIR]

What the parts measure, and their claims, is said in ``dct_parts``. The JSON of ``time`` lies beside that of
``quality``, as <FILE>_time. --quick trains one model on less data, and no hosts.
"""

import os
from pathlib import Path

from _report import ROOT, finish
from _report import options as benchmark_options
from dct_parts import clicks, quality_part, time_part

PARTS = ("quality", "time")


def main() -> None:
    parser = benchmark_options(__doc__)
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "hpcrec" / "dct"
    parser.add_argument("--parts", help=f"what is measured ({','.join(PARTS)}; with --quick {PARTS[0]})")
    parser.add_argument("--cluster", type=Path, default=ROOT / "../shared/cluster", help="scripts of emulated hosts")
    parser.add_argument("--cache", type=Path, default=cache, help="where data sets are kept")
    options = parser.parse_args()
    for part in (options.parts or (PARTS[0] if options.quick else ",".join(PARTS))).split(","):
        if part not in PARTS:
            parser.error(f"--parts has {part!r}; allowed are {', '.join(PARTS)}")
        if part == "quality":
            for rows, claims in quality_part.measure(options.cache, quick=options.quick):
                finish("dct", rows, claims, options.json)
        else:
            data = clicks.prepare(quality_part.BLOCKS, options.cache)
            rows, claims = time_part.measure(data, options.cluster, quick=options.quick)
            beside = options.json and options.json.with_stem(f"{options.json.stem}_time")
            finish("dct", rows, claims, beside)


if __name__ == "__main__":
    main()
