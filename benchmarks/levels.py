"""Messages by way of one rank of each host (``exchange.path = "levels"``) beside those that each rank sends itself.

    python benchmarks/levels.py [--parts messages,dealt,rows,slowdown] [--quick] [--json FILE] [--cluster DIR]

As many bytes from each rank to each other one, on 4 emulated hosts of 8 ranks and of 2: the MPI library's alltoallv by
each of its algorithms, the product's flat exchange (MPI between hosts, shared memory inside), and by levels. A repeat
has all of them, one after the other, beginning with another in each, and counts with its slowest rank; each algorithm
of the library is a launch of its own. ``levels.speed.small_messages`` is the time of the library's fastest one, in
messages of at most 1 kB at 4 x 8 ranks, by that of levels: the row whose interval begins lowest.
``levels.messages_per_rank`` is what the rank that sends most sends to other hosts in a phase: of 4 x 8 by the
ledger, of larger clusters by the same function without MPI; of messages that are small enough to be put together
(``comm.levels.PEER_BYTES``). Above that a rank sends one to each other host, and of large ones (``ALONE_BYTES``) as
many as by the flat path. Hosts here share the machine's cores. Rows say where all that a host sends is less than 20
times ``BURST``, which passes unshaped: there the rate of the link says little.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _report import ROOT, claim, finish, interval, options
from des_parts.cells import Row, show
from levels_parts import dealt_part, rows_part, slowdown_part
from on_ranks import launch

from hpcrec.comm.levels import pairs_of

BURST, BURST_BYTES, REPEATS, QUICK_REPEATS = "8kb", 8192, 40, 5
RATES = ("1gbit", "100mbit")
SIZES = (64, 256, 1024, 8192, 32768, 131072)
SMALL = 1024
LARGEST = {8: 8192, 2: SIZES[-1]}  # by ranks a host: more of many ranks takes hours on the slower link
ALGORITHMS = {"0": "chosen by the library", "1": "linear", "2": "pairwise"}
LARGE = {"8x8": (8, 8), "128x8": (128, 8), "1250x8": (1250, 8)}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--cluster", type=Path, default=ROOT / "../shared/cluster", help="scripts of emulated hosts")
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "levels", help="folder of its data sets")
    parser.add_argument("--parts", default="messages", help="messages, dealt, rows, slowdown; by commas")
    arguments = parser.parse_args()
    parts: dict[str, Callable[[], tuple[list[Row], list[Row]]]] = {
        "messages": lambda: small_messages(arguments.cluster, quick=arguments.quick),
        "dealt": lambda: dealt_part.measure(arguments.cache, arguments.cluster, quick=arguments.quick),
        "rows": lambda: rows_part.measure(arguments.cache, arguments.cluster, quick=arguments.quick),
        "slowdown": lambda: slowdown_part.measure(arguments.cache, arguments.cluster, quick=arguments.quick),
    }
    rows, claims = list[Row](), list[Row]()
    for name in arguments.parts.split(","):
        if name not in parts:
            parser.error(f"--parts has {name!r}; allowed are {', '.join(parts)}")
        found = parts[name]()
        rows, claims = [*rows, *found[0]], [*claims, *found[1]]
        if name == "messages":
            found = counted()
            rows, claims = [*rows, *found[0]], [*claims, *found[1]]
    finish("levels", rows, claims, arguments.json)


def small_messages(cluster: Path, *, quick: bool) -> tuple[list[Row], list[Row]]:
    """Rows of the table, and the claim."""
    unit, goal = "times as fast as the fastest alltoallv of the MPI library, the least up to 1 kB", ">= 1.8"
    if (reason := launch.why_no_hosts(cluster)) is not None:
        return [], [claim("levels.speed.small_messages", None, unit, goal, reason)]
    rows = list[Row]()
    for ranks in (8,) if quick else (8, 2):
        for rate in RATES[: 1 if quick else None]:
            sizes = SIZES[1:2] if quick else tuple(size for size in SIZES if size <= LARGEST[ranks])
            rows += _measured(cluster, rate, ranks, sizes, QUICK_REPEATS if quick else REPEATS)
    small = [row for row in rows if row["ranks_a_host"] == 8 and row["bytes"] <= SMALL]
    least = min(small, key=lambda row: row["low"])
    return rows, [claim("levels.speed.small_messages", least["faster"], unit, goal, sure=(least["low"], least["high"]))]


def _measured(cluster: Path, rate: str, ranks: int, sizes: tuple[int, ...], repeats: int) -> list[Row]:
    jobs = [{"kind": "levels", "n_bytes": n_bytes, "repeats": repeats} for n_bytes in sizes]
    found = dict[str, list[Any]]()
    for number, algorithm in ALGORITHMS.items():
        found[algorithm] = of = list(launch.on_hosts(jobs, cluster, rate, ranks, burst=BURST, library=_chosen(number)))
        assert all(one["algorithms"] == [number] for one in of), "the library was told which"
    rows = []
    for at, n_bytes in enumerate(sizes):
        each = {algorithm: of[at] for algorithm, of in found.items()}
        library = {
            f"{way}, {algorithm}": np.median(of["seconds"][way])
            for algorithm, of in each.items()
            for way in ("mpi", "mpi nonblocking")
        }
        fastest = min(library, key=lambda way: library[way])
        way, algorithm = fastest.split(", ", 1)
        ratios = np.array(each[algorithm]["seconds"][way]) / np.array(each[algorithm]["seconds"]["levels"])
        flat = np.array(each[algorithm]["seconds"]["flat"]) / np.array(each[algorithm]["seconds"]["levels"])
        faster, (low, high) = float(np.median(ratios)), interval(ratios.tolist())
        row: Row = {
            "part": "small messages",
            "hosts": launch.HOSTS,
            "ranks_a_host": ranks,
            "rate": rate,
            "bytes": n_bytes,
            "unshaped": ranks * ranks * (launch.HOSTS - 1) * n_bytes < 20 * BURST_BYTES,
        }
        row |= {f"{name}_ms": 1e3 * float(seconds) for name, seconds in library.items()}
        row |= {f"{path}_ms": 1e3 * float(np.median(each[algorithm]["seconds"][path])) for path in ("flat", "levels")}
        row |= {f"{path}_messages": each[algorithm]["messages"][path] for path in ("flat", "levels")}
        row |= {"fastest": fastest, "faster": faster, "low": low, "high": high}
        row["faster_than_flat"] = float(np.median(flat))
        assert each[algorithm]["by_levels"], "hosts of several ranks have levels"
        show(row)
        rows.append(row)
    return rows


def _chosen(algorithm: str) -> dict[str, str]:
    """What makes Open MPI take an algorithm for alltoallv; 0: its own choice."""
    if algorithm == "0":
        return {}
    return {
        "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
        "OMPI_MCA_coll_tuned_alltoallv_algorithm": algorithm,
    }


def counted() -> tuple[list[Row], list[Row]]:
    """Of clusters that are not here: messages to other hosts of the rank that sends most."""
    rows, claims = list[Row](), list[Row]()
    for name, (hosts, ranks) in LARGE.items():
        host_of = [host for host in range(hosts) for _ in range(ranks)]
        most = max(sum(pair.gate == rank for pair in pairs_of(host_of, rank)) for rank in range(ranks))
        medium = {"to_peers": hosts - 1, "large": (hosts - 1) * ranks}
        rows.append({"part": "counted", "cluster": name, "flat": (hosts - 1) * ranks, "levels": most, **medium})
        show(rows[-1])
        claims.append(
            claim(f"levels.messages_per_rank.{name}", most, "small ones, of a rank in a phase", f"<= {hosts - 1}")
        )
    return rows, claims


if __name__ == "__main__":
    main()
