"""Times the kernels against what the memory allows, and against FBGEMM's CPU tables, turn by turn in one run.

    python benchmarks/kernels.py [--parts tables,messages] [--quick] [--threads N] [--peers PYTHON] [--json FILE]

Limits, on a table beyond the last-level cache, of rows of 64 and of 256 bytes, ids uniform (the hard case for memory):

``kernel.gather.*``   time to read the same rows in the same order into registers / time of pooled_gather, bags of 20
``kernel.update.*``   limit / time from unsorted ids to updated rows (group + merge_update, row-wise Adagrad). The limit
                      is the time to read every gradient at the rate of a copy, and to read and write each distinct row
                      and its state in random order. The lower of two cases counts: a gradient shared by a bag of 20,
                      and a gradient for each id.

Other rows of that table have Zipf ids, where most of a step's work is in the caches and on ids. FBGEMM runs workload W2
(``_workloads.py``) with the same ids in a process of its own, by ``--peers PYTHON`` (a Python that has torch and
fbgemm-gpu-cpu), or by this one where it has them; without it the two claims have no value. Medians of interleaved
rounds; the ratios to limits are taken round by round. The ratios to FBGEMM are of least times, each side with the
better of one thread and all: where a core is shared with something else, FBGEMM's teams wait for each other for up to
seconds, and a median would credit that to the kernels here. The part ``messages`` has the kernels that make messages
small, as shares of a copy (``_flat_kernels.py``); its JSON lies beside that of ``tables``, as <FILE>_messages.
"""

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from _flat_kernels import Rows, time_ids, time_messages, void
from _limits import DISTANCES, Limits
from _report import asked, claim, finish, options
from _timing import Rounds
from _workloads import W1, W2, W3, Workload, zipf_ids

from hpcrec import kernels
from hpcrec.types import OptimizerSpec
from hpcrec.units import MiB

SPEC = OptimizerSpec(name="rowwise_adagrad")


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much work: a table of ``table_bytes``, ``n_ids`` ids a call, ``n_rounds`` rounds."""

    table_bytes: int
    n_ids: int
    n_rounds: int


FULL = Size(table_bytes=1024 * MiB, n_ids=1_000_000, n_rounds=9)
QUICK = Size(table_bytes=512 * MiB, n_ids=500_000, n_rounds=9)


class Step:
    """One block and one step's ids: pooled gather, and ids to updated rows."""

    def __init__(self, rows: np.ndarray, index: np.ndarray, bag: int, places: np.ndarray | None = None) -> None:
        self.rows, self.index, self.width = rows, index, rows.shape[1]
        self.offsets = np.arange(0, index.size + 1, bag)
        n_bags = index.size // bag
        self.places = np.arange(n_bags) * self.width if places is None else places
        self.states = kernels.initial_states(SPEC, len(rows), self.width, np.float32)
        self.out = kernels.aligned_empty((n_bags * self.width,), np.float32)
        self.out.fill(0)
        self.gradients = kernels.aligned_empty((n_bags * self.width,), np.float32)
        self.gradients[:] = np.random.default_rng(3).standard_normal(n_bags * self.width)
        self.group()

    def gather(self) -> None:
        """Pools the rows of each bag."""
        kernels.pooled_gather(self.rows, self.index, self.offsets, self.out, out_start=self.places)

    def group(self) -> None:
        """Sorts the ids."""
        self.grouping = kernels.group(self.index, self.offsets)

    def merge_update(self) -> None:
        """Sums the gradients of each row and steps its optimizer."""
        kernels.merge_update(SPEC, self.rows, self.states, self.grouping, self.gradients, self.places, lr=1e-3, step=1)

    def update(self) -> None:
        """From ids to updated rows."""
        self.group()
        self.merge_update()


def filled(shape: tuple[int, ...]) -> np.ndarray:
    """An array of rows whose pages are there."""
    array = kernels.aligned_empty(shape, np.float32)
    array.fill(0.01)
    return array


def huge_page_share() -> float | None:
    """Share of this process's anonymous memory that lies in huge pages; None where the system does not say."""
    rollup = Path("/proc/self/smaps_rollup")
    if not rollup.exists():
        return None
    sizes = {line.split(":")[0]: int(line.split()[1]) for line in rollup.read_text().splitlines()[1:]}
    return sizes["AnonHugePages"] / sizes["Anonymous"]


def time_limits(size: Size, limits: Limits, table: np.ndarray, width: int, kind: str, bag: int) -> dict[str, Any]:
    """One row of the table of limits: gather and update beside the loops that touch the same rows."""
    rows = table.reshape(-1, width)
    n = size.n_ids // bag * bag
    rng = np.random.default_rng(1)
    index = rng.integers(0, len(rows), n) if kind == "uniform" else zipf_ids(len(rows), n, (1, 0))
    step = Step(rows, index, bag)
    touched = rng.permutation(step.grouping.unique)
    state = step.states["accumulator"]
    block = filled((32 * MiB,))
    spare = np.zeros_like(block)
    runs: dict[str, Callable[[], Any]] = {"copy": lambda: limits.copy(block, spare)}
    for ahead in DISTANCES:
        runs[f"read {ahead}"] = lambda ahead=ahead: void(limits.read(rows, index, ahead))
        runs[f"touch {ahead}"] = lambda ahead=ahead: limits.touch(rows, state, touched, ahead)
    runs |= {"gather": step.gather, "group": step.group, "merge_update": step.merge_update}
    rounds = Rounds(runs, size.n_rounds)
    read, touch = rounds.fastest("read"), rounds.fastest("touch")
    copies = step.gradients.nbytes / (2 * block.nbytes)  # a gradient is read, a copy reads and writes

    def update_limit(ms: Callable[[str], float]) -> float:
        return copies * ms("copy") + ms(touch)

    return {
        "case": f"{width * 4}-byte rows, {kind} ids, {bag} a bag",
        "distinct": touched.size,
        "gather_ms": rounds.median("gather"),
        "read_ms": rounds.median(read),
        "gather_of_limit": rounds.ratio(lambda ms: ms(read) / ms("gather")),
        "group_ms": rounds.median("group"),
        "merge_update_ms": rounds.median("merge_update"),
        "update_limit_ms": rounds.ratio(update_limit),
        "update_of_limit": rounds.ratio(lambda ms: update_limit(ms) / (ms("group") + ms("merge_update"))),
    }


def limit_claims(size: Size, limits: Limits, rows: Rows) -> Iterator[dict[str, Any]]:
    """Every case of both widths; claims from the uniform ones."""
    table = filled((size.table_bytes // 4,))
    print(f"huge pages: {huge_page_share():.0%} of memory" if huge_page_share() is not None else "huge pages: unknown")
    for width in (16, 64):
        found = {
            (kind, bag): time_limits(size, limits, table, width, kind, bag)
            for kind in ("uniform", "zipf")
            for bag in (20, 1)
        }
        rows += found.values()
        name = f"{width * 4}b"
        yield claim(f"kernel.gather.{name}", found["uniform", 20]["gather_of_limit"], "of the limit", ">= 0.85")
        update = min(found["uniform", bag]["update_of_limit"] for bag in (20, 1))
        yield claim(f"kernel.update.{name}", update, "of the limit", ">= 0.6")


def step_of(workload: Workload) -> Step:
    """A workload's tables one after the other in a block; vectors in an array [batch, tables x width]."""
    bases = np.cumsum([0, *workload.rows[:-1]])
    index = (workload.ids() + bases[:, None, None]).reshape(-1)
    return Step(filled((sum(workload.rows), workload.width)), index, workload.pooling, workload.places())


def time_workload(name: str, workload: Workload, size: Size, threads: int) -> dict[str, Any]:
    """One row of the table of workloads."""
    kernels.set_threads(threads)
    step = step_of(workload)
    rounds = Rounds({"gather": step.gather, "group": step.group, "merge_update": step.merge_update}, size.n_rounds)
    return {
        "case": f"{name}, {threads} threads",
        "lookups": step.index.size,
        "distinct": step.grouping.unique.size,
        **{f"{key}_ms": rounds.median(key) for key in rounds.ms},
    }


@contextmanager
def fbgemm(python: str, workload: Workload, threads: int, gradients: np.ndarray) -> Iterator[Callable[[], list[float]]]:
    """A process that runs FBGEMM on the workload; what is given runs one step and returns its two times in ms."""
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "ids.npy", workload.ids())
        np.save(Path(folder) / "gradients.npy", gradients.reshape(workload.batch, -1))
        program = [python, str(Path(__file__).with_name("_fbgemm.py")), folder, str(threads)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        with subprocess.Popen(
            [*program, ",".join(map(str, workload.rows))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        ) as peer:
            assert peer.stdin is not None
            assert peer.stdout is not None
            said = peer.stdout.readline()
            if not said.startswith("ready"):
                sys.exit(f"FBGEMM did not start in {python}: see above")

            def step() -> list[float]:
                print("step", file=peer.stdin, flush=True)
                return [float(ms) for ms in peer.stdout.readline().split()]

            yield step
            peer.stdin.close()


def fbgemm_claims(python: str | None, size: Size, threads: int, rows: Rows) -> Iterator[dict[str, Any]]:
    """W2 beside FBGEMM."""
    gather, update = ("kernel.gather.fbgemm", ">= 2.5"), ("kernel.update.fbgemm", ">= 8")
    if python is None:
        print("FBGEMM: skipped; --peers PYTHON names a Python that has it")
        for name, goal in (gather, update):
            yield claim(name, None, "times as fast", goal)
        return
    ours = step_of(W2)
    least: dict[str, float] = {}
    for n in sorted({1, threads}):
        kernels.set_threads(n)
        rounds = beside_fbgemm(python, ours, n, size)
        row: dict[str, Any] = {"case": f"W2 beside FBGEMM, {n} threads"}
        for name, ms in rounds.ms.items():
            row |= {f"{name}_ms": rounds.median(name), f"{name}_min": min(ms), f"{name}_max": max(ms)}
            least[name] = min(least.get(name, min(ms)), *ms)
        rows.append(row)
    yield claim(gather[0], least["forward"] / least["gather"], "times as fast", gather[1])
    yield claim(update[0], least["backward"] / least["update"], "times as fast", update[1])


def beside_fbgemm(python: str, ours: Step, threads: int, size: Size) -> Rounds:
    """FBGEMM's step and ours in turn."""
    with fbgemm(python, W2, threads, ours.gradients) as peer:
        theirs = [0.0, 0.0]

        def forward() -> float:
            theirs[:] = peer()
            return theirs[0]

        runs: dict[str, Callable[[], Any]] = {"forward": forward, "backward": lambda: theirs[1]}
        return Rounds({**runs, "gather": ours.gather, "update": ours.update}, size.n_rounds)


def show(rows: Rows) -> None:
    """Rows of one kind as a table."""
    names = list(rows[0])
    print("\n" + f"{names[0]:40}" + "".join(f"{name:>17}" for name in names[1:]))
    for row in rows:
        cells = (f"{v:17.3f}" if isinstance(v, float) else f"{v:17}" for v in list(row.values())[1:])
        print(f"{row['case']:40}" + "".join(cells))


def tables(arguments: argparse.Namespace) -> tuple[list[Rows], Rows]:
    """Rows of the kernels of tables and ids, by kind, and claims."""
    size, threads = QUICK if arguments.quick else FULL, arguments.threads
    python = arguments.peers or (sys.executable if importlib.util.find_spec("fbgemm_gpu") else None)
    found: list[Rows] = [[], [], []]
    claims = list(limit_claims(size, Limits(threads), found[0]))
    claims += fbgemm_claims(python, size, threads, found[1])
    workloads = {"W1": W1, "W2": W2} if arguments.quick else {"W1": W1, "W2": W2, "W3": W3}
    found[2] = [time_workload(*item, size, n) for item in workloads.items() for n in sorted({1, threads})]
    kernels.set_threads(threads)
    return [*found, time_ids(size.n_ids, size.n_rounds)], claims


def messages(arguments: argparse.Namespace) -> tuple[list[Rows], Rows]:
    """Rows of the kernels that make messages small, and no claims."""
    size = QUICK if arguments.quick else FULL
    return [time_messages(Limits(arguments.threads), size.n_rounds)], []


PARTS = {"tables": tables, "messages": messages}


def main() -> None:
    parser = options(__doc__, tuple(PARTS))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: all cores")
    parser.add_argument("--peers", metavar="PYTHON", help="a Python with torch and fbgemm-gpu-cpu")
    arguments = parser.parse_args()
    kernels.use("native")
    kernels.set_threads(arguments.threads)
    for part, path in asked(parser, arguments, tuple(PARTS)):
        found, claims = PARTS[part](arguments)
        for rows in filter(None, found):
            show(rows)
        finish("kernels", [row for rows in found for row in rows], claims, path)


if __name__ == "__main__":
    main()
