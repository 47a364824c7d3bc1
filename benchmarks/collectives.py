"""Time of collectives over emulated hosts, MPI's own way and the product's: sums of dense gradients, and messages.

    python benchmarks/collectives.py [--quick] [--json FILE] [--cluster DIR]

``sums``      a sum of float32 over 4 ranks, each on a host of its own: MPI's nonblocking sum, and ours in two exchanges
              (``dense.reducer = "direct"``, ``hpcrec/dense/mpi.py``). Beside them MPI's blocking sum, which cannot
              begin in backward: ``collectives.sums_blocking``, without a goal
``messages``  as many bytes from each rank to each other one, on 2 to 8 such hosts: ``MPI_Alltoallv``, and
              ``MPI_Ialltoallv`` with a wait, which the exchange takes (``hpcrec/comm/collectives.py``)

A repeat has both ways, one after the other, and counts with its slowest rank. A claim is the median, over repeats, of
MPI's time over ours, with the quartiles; ``limit`` is the time in which a link carries what each rank has to send.
"""

from pathlib import Path
from typing import Any

import numpy as np
from _report import ROOT, claim, finish, options
from des_parts.cells import Row, show
from on_ranks import launch

BURST, REPEATS, QUICK_REPEATS = "8kb", 15, 3
RATES = {"100mbit": 100e6, "1gbit": 1e9}
SUMS = {4: (138_000, 552_000, 4_000_000)}  # bytes by hosts; the middle one is Wide & Deep as HET has it
MESSAGES = {2: (32_768, 262_144), 4: (32_768, 262_144), 8: (32_768, 131_072)}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--cluster", type=Path, default=ROOT / "../shared/cluster", help="scripts of emulated hosts")
    arguments = parser.parse_args()
    rows, claims = measure(arguments.cluster, quick=arguments.quick)
    finish("collectives", rows, claims, arguments.json)


def measure(cluster: Path, *, quick: bool) -> tuple[list[Row], list[Row]]:
    """Rows of the table, and claims."""
    reason = launch.why_no_hosts(cluster)
    if reason is not None:
        return [{"result": reason}], []
    rows, claims = list[Row](), list[Row]()
    for kind, by_hosts in (("sums", SUMS), ("messages", MESSAGES)):
        for hosts, all_sizes in list(by_hosts.items())[: 1 if quick else None]:
            for rate in list(RATES)[: 1 if quick else None]:
                sizes = all_sizes[: 1 if quick else None]
                jobs = [{"kind": kind, "n_bytes": n, "repeats": QUICK_REPEATS if quick else REPEATS} for n in sizes]
                found = list(launch.on_hosts(jobs, cluster, rate, hosts=hosts, burst=BURST))
                for n_bytes, of in zip(sizes, found, strict=True):
                    rows.append(_row(kind, hosts, rate, n_bytes, of))
                    claims.append(_claim(rows[-1]))
                    if kind == "sums":
                        blocking = np.median(np.array(of["seconds"]["mpi blocking"]) / np.array(of["seconds"]["own"]))
                        rows[-1]["faster_than_blocking"] = float(blocking)
                        name = claims[-1]["id"].replace("sums", "sums_blocking")
                        claims.append(claim(name, float(blocking), "times as fast as MPI's blocking sum"))
    return rows, claims


def _row(kind: str, hosts: int, rate: str, n_bytes: int, found: Any) -> Row:
    mpi, own = (np.array(found["seconds"][way]) for way in ("mpi", "own"))
    low, faster, high = (float(of) for of in np.quantile(mpi / own, (0.25, 0.5, 0.75)))
    sent = n_bytes * (hosts - 1) * (2 / hosts if kind == "sums" else 1)
    row: Row = {"collective": kind, "hosts": hosts, "rate": rate, "kb": 1e-3 * n_bytes}
    row |= {"mpi_ms": 1e3 * float(np.median(mpi)), "own_ms": 1e3 * float(np.median(own))}
    row |= {"limit_ms": 1e3 * 8 * sent / RATES[rate], "faster": faster, "low": low, "high": high}
    show(row)
    return row


def _claim(row: Row) -> Row:
    name = f"collectives.{row['collective']}.{row['hosts']}.{row['rate']}.{row['kb']:.0f}kb"
    unit = "times as fast as MPI's own" if row["collective"] == "sums" else "times as fast as MPI_Alltoallv"
    return claim(name, row["faster"], unit, ">= 1", within=(row["low"], row["high"]))


if __name__ == "__main__":
    main()
