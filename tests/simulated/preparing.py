"""Conversions of a table on simulated ranks: killed, met by errors, begun by two at once; the same bytes at the end."""

import contextlib
import hashlib
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

from hpcrec.comm.ranks import Alone
from hpcrec.errors import ConfigError
from hpcrec.preparation import job as jobs
from hpcrec.preparation import stages
from hpcrec.preparation.split import Split
from hpcrec.preparation.tablemap import SparseColumn, TableMap
from tests.simulated.ranks import Rank
from tests.simulated.schedules import Drawn, Schedule
from tests.simulated.system import unseen

OUT, SOURCES = Path("out"), (Path("a.csv"), Path("b.csv"))
LOCK = OUT / "prepare.work" / "lock"
LINES, PIECE_BYTES = 60, 150
ATTEMPTS = 10
_right: dict[str, dict[str, str]] = {}  # by kind of conversion: what it gives, by one process alone


def conversion(kind: str, out: Path) -> jobs.Job:
    """A small one, of several pieces: with ``vocabulary`` or ``hash`` ids."""
    column = SparseColumn(ids="vocabulary") if kind == "vocabulary" else SparseColumn(rows=50)
    return jobs.Job(
        command="table",
        table=TableMap(labels=("y",), sparse={"a": column}),
        sources=SOURCES,
        out=out,
        split=Split("order", (0.7, 0.0, 0.3)) if kind == "order" else Split("hash", (0.7, 0.0, 0.3)),
        piece_bytes=PIECE_BYTES,
    )


def prepare(seed: int) -> Schedule:
    """Attempts of one conversion, each on another number of ranks; sometimes two at once."""
    choose = random.Random(f"prepare {seed}")
    drawn = Drawn.of(seed, kills=3, faults=1, pauses=1)
    kind, together = choose.choice(("vocabulary", "hash", "order")), choose.random() < 0.3
    schedule = Schedule(seed, drawn, f"{kind}, {'two at once' if together else 'one after the other'}")
    simulation, over = schedule.simulation, [0]

    def program(rank: Rank) -> str:
        try:
            stages.run(conversion(kind, OUT), rank.main)
        finally:
            if schedule.system.holds(rank.process):
                simulation.fail(f"{rank.process.name} keeps its lock: a later attempt of the same process is refused")
        return "finished"

    def launch() -> None:
        for attempt in range(ATTEMPTS):
            drawn.on = drawn.on and attempt < ATTEMPTS - 4
            before = schedule.met
            job = schedule.start(choose.choice((3, 3, 4, 5, 9)), program)
            code = job.wait()
            errors = [error for error in job.errors if error is not None]
            if code == 0:
                over[0] += 1
                with unseen():
                    left = LOCK.exists()
                if schedule.met == before or not left:
                    return  # an error may have kept it from removing the lock: then the same command has to
            busy = together and any("another process prepares" in str(error) for error in errors)
            if not job.killed and schedule.met == before and not busy:
                simulation.fail(f"{job.name} met nothing, and failed: {errors}")
            if busy and not all(isinstance(error, ConfigError) for error in errors):
                simulation.fail(f"{job.name}: ranks ended otherwise than others: {errors}")
            simulation.sleep(choose.choice((0.0, 0.5, 5.0, 60.0)))
        if not together:
            simulation.fail(f"not finished after {ATTEMPTS} attempts")

    def judge() -> str:
        found, right = content(OUT), _right[kind]
        if not over[0]:
            return "no attempt finished"
        differ = sorted(name for name in found.keys() | right.keys() if found.get(name) != right.get(name))
        return f"not as by one process alone: {differ}" if differ else ""

    for number in range(1 + together):
        schedule.launcher(f"launcher {number}", launch)
    schedule.judge, schedule.around = judge, _sources(kind)
    return schedule


def content(folder: Path) -> dict[str, str]:
    """Checksum of each file, by its path in the folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@contextlib.contextmanager
def _sources(kind: str) -> Iterator[None]:
    """The files that are converted; and, once a process, what they give."""
    for number, path in enumerate(SOURCES):
        rows = [f"{(row * 7 + number) % 3 == 0:d},{'abcdefghij'[row * row % 10]}{row % 4}" for row in range(LINES)]
        if not path.exists():  # or their times would differ
            path.write_text("y,a\n" + "\n".join(rows) + "\n")
    if kind not in _right:
        with unseen():
            stages.run(conversion(kind, OUT), Alone())
            _right[kind] = content(OUT)
            shutil.rmtree(OUT)
    yield
