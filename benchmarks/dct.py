"""What thresholding [DCT] of vectors and of dense gradients saves in bytes, and what it costs in quality.

    python benchmarks/dct.py [--quick] [--json FILE] [--cache DIR]

What is measured, and the claims, are said in ``dct_parts/quality_part.py``. --quick trains one model on less data.
"""

import os
from pathlib import Path

from _report import finish
from _report import options as benchmark_options
from dct_parts import quality_part


def main() -> None:
    parser = benchmark_options(__doc__)
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "hpcrec" / "dct"
    parser.add_argument("--cache", type=Path, default=cache, help="where data sets are kept")
    options = parser.parse_args()
    rows, claims = quality_part.measure(options.cache, quick=options.quick)
    finish("dct", rows, claims, options.json)


if __name__ == "__main__":
    main()
