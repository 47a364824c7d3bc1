"""Time of a sum of dense gradients over emulated hosts: MPI's own nonblocking sum, and ours in two exchanges.

    python benchmarks/dense_sums.py [--quick] [--json FILE] [--cluster DIR]

4 ranks, each on a host of its own, float32, links of 100 Mbit/s and 1 Gbit/s; a repeat has both ways, one after the
other, and counts with its slowest rank. A claim is the median, over repeats, of MPI's time over ours, with the
quartiles; ``limit`` is the time in which a link carries what each rank has to send, 2 (R - 1) / R of the sum.
``dense.sums.chosen`` says that ``dense.reducer = "mpi"`` takes our way there.
"""

from pathlib import Path

import numpy as np
from _report import ROOT, claim, finish, options
from des_parts.cells import Row, show
from on_ranks import launch

HOSTS, BURST, REPEATS = 4, "8kb", 15
RATES = {"100mbit": 100e6, "1gbit": 1e9}
SIZES = (34_500, 138_000, 1_000_000)  # elements; the middle one is Wide & Deep as HET has it


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--cluster", type=Path, default=ROOT / "../shared/cluster", help="scripts of emulated hosts")
    arguments = parser.parse_args()
    rows, claims = measure(arguments.cluster, quick=arguments.quick)
    finish("dense_sums", rows, claims, arguments.json)


def measure(cluster: Path, *, quick: bool) -> tuple[list[Row], list[Row]]:
    """Rows of the table, and claims."""
    reason = launch.why_no_hosts(cluster)
    if reason is not None:
        return [{"result": reason}], []
    rows, claims = list[Row](), list[Row]()
    for rate, bits_per_s in list(RATES.items())[: 1 if quick else None]:
        sizes = SIZES[:1] if quick else SIZES
        jobs = [{"kind": "sums", "elements": n, "repeats": 3 if quick else REPEATS} for n in sizes]
        found = launch.on_hosts(jobs, cluster, rate, hosts=HOSTS, burst=BURST)
        for elements, row in zip(sizes, found, strict=True):
            mpi, own = (np.array(row["seconds"][way]) for way in ("mpi", "two exchanges"))
            faster = np.quantile(mpi / own, (0.25, 0.5, 0.75))
            limit_s = 8 * 4 * elements * 2 * (HOSTS - 1) / HOSTS / bits_per_s
            about: Row = {"rate": rate, "kb": 4e-3 * elements, "mpi_ms": 1e3 * float(np.median(mpi))}
            about |= {"own_ms": 1e3 * float(np.median(own)), "limit_ms": 1e3 * limit_s}
            rows.append({**about, "faster": float(faster[1]), "low": float(faster[0]), "high": float(faster[2])})
            show(rows[-1])
            name, within = f"dense.sums.{rate}.{elements}", (float(faster[0]), float(faster[2]))
            claims.append(claim(name, float(faster[1]), "times as fast as MPI's own", ">= 1", within=within))
    claims.append(claim("dense.sums.chosen", float(row["chosen"]), "of the product, our way", ">= 1"))
    return rows, claims


if __name__ == "__main__":
    main()
