"""One rank of a run that does what it is told, when it is told: several runs take turns, each in its memory group.

    hpcrec run -n 1 -- benchmarks/tiers_parts/run_rank.py FOLDER

FOLDER/job.json has the configuration and its settings. Command k is FOLDER/command-k, answered in FOLDER/answer-k;
ranks look for it by themselves, so that nobody spins while another run has its turn. Knows sessions and ``settled``.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tiers_parts import settled

import hpcrec
from hpcrec import kernels
from hpcrec.comm.start import start

LOOK_EVERY_S = 0.005
COUNTED = ("disk_rows_read", "disk_pages_read", "disk_bytes_written", "disk_bytes_handed", "rows_waited_s")
IDLE, INTERRUPTS, STOLEN = (3, 4), (5, 6), (7,)  # columns of /proc/stat; who waits for a disk idles too


def main(name: str) -> None:
    rank, folder = start(os.environ), Path(name)
    job = json.loads((folder / "job.json").read_text())
    with hpcrec.open_session(job["config"], job["settings"]) as session:
        run = session.steps()
        for number, command in enumerate(commands(folder, job["asker"])):
            said = done(session, run, command)
            everyone = session.parts.world.main.allgather(said)
            if rank == 0:
                write(folder / f"answer-{number}", everyone)


def commands(folder: Path, asker: int) -> Iterator[dict[str, Any]]:
    """As they come, until one says that it is the last, or the process that asks is no more."""
    number = 0
    while True:
        path = folder / f"command-{number}"
        while not path.exists():
            time.sleep(LOOK_EVERY_S)
            if not Path(f"/proc/{asker}").exists():
                sys.exit("whoever asked is gone")
        command = json.loads(path.read_text())
        if command["do"] == "end":
            return
        yield command
        number += 1


def write(path: Path, value: Any) -> None:
    """Whole, or not at all."""
    hidden = path.with_name(f".{path.name}")
    hidden.write_text(json.dumps(value))
    hidden.rename(path)


def done(session: Any, run: Iterator[Any], command: dict[str, Any]) -> dict[str, Any]:
    """What this rank says of it."""
    store = session.parts.store
    match command["do"]:
        case "open":
            if command.get("evict") == "lru":
                least_recently_used_go(store)
            return {**store.figures(), "cached_rows": cached_rows(store)}
        case "write all":
            settled.write_all(store)
        case "write over":
            settled.write_over(store, Path(command["order"]), command["tables"])
        case "ask for":
            began_s = time.perf_counter()
            settled.ask_for(store, Path(command["order"]), command["tables"], command["at_once"], command["first"])
            return {**store.figures(), "seconds": time.perf_counter() - began_s}
        case "steps":
            return turn(session, run, command["lead"], command["steps"])
    return {}


def cached_rows(store: Any) -> int:
    """Rows that have a place in memory, of those that are on the disk."""
    cache = getattr(store, "_cache", ())
    return sum(cache.slots(block) for block in cache)


def least_recently_used_go(store: Any) -> None:
    """In place of what the store does: nothing is counted, and no step is told of before it comes."""
    for plan in store._cache._plans.values():
        plan._map = kernels.SlotMap(plan.n_slots, evict="lru", seed=0, device=None)
        plan.look = lambda _rows, _clock: None
        plan.sees_little = lambda: False


def turn(session: Any, run: Iterator[Any], lead: int, steps: int) -> dict[str, Any]:
    """Steps that are timed from barrier to barrier, after some that are not, which use up what was brought ahead."""
    barrier, store, losses = session.parts.world.main.barrier, session.parts.store, []
    losses += [next(run).run() for _ in range(lead)]
    barrier()
    cores_before, before = cores(), figures_of(store)
    began_s, used_s = time.perf_counter(), time.process_time()
    losses += [next(run).run() for _ in range(steps)]
    barrier()
    took_s, used_s, after = time.perf_counter() - began_s, time.process_time() - used_s, figures_of(store)
    counted = {name: after[name] - before[name] for name in COUNTED if name in after}
    counted |= {name: after - cores_before[name] for name, after in cores().items()}
    return {"step": session.step, "seconds": took_s, "cpu_s": used_s, "losses": losses, "figures": after, **counted}


def figures_of(store: Any) -> dict[str, float]:
    """What the store says, and bytes of rows that were handed over to its disk: what was written, by the ratio."""
    figures = store.figures()
    if "disk_written_of_handed" not in figures:
        return figures
    ratio = figures["disk_written_of_handed"]
    return {**figures, "disk_bytes_handed": figures["disk_bytes_written"] / ratio if ratio else 0.0}


def cores() -> dict[str, float]:
    """Seconds of all cores of the host, since it started: idle, in interrupts, and taken by another machine."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    of = {"idle_s": IDLE, "interrupts_s": INTERRUPTS, "stolen_s": STOLEN}
    return {name: sum(ticks[i] for i in columns) / os.sysconf("SC_CLK_TCK") for name, columns in of.items()}


if __name__ == "__main__":
    main(*sys.argv[1:])
