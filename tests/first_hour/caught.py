"""Tries the mistakes, and says of each what its message lacks. ``count`` is what a benchmark asks.

A mistake is caught where the exit status is the documented one; where nothing is shown but the error, so no traceback
and no words of the launcher's; where the error has the key or column, what was found and what to write; and where no
rank was started unless ranks alone can find it. What is to train is asked of ``hpcrec config check`` too, which has to
give the same verdict.
"""

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.first_hour import ground as grounds
from tests.first_hour.ground import Ground
from tests.first_hour.mistakes import MISTAKES, Mistake
from tests.forked import Done, Forked

_NOT_OURS = ("Traceback", "MPI_ABORT", "MPI_Abort", "PRTE ERROR", "prterun", "mpirun has", "-----")


@dataclass(frozen=True)
class Tried:
    """How a mistake was met: what was said, and what it lacks, a line each."""

    said: str
    lacks: tuple[str, ...]


def tried(mistake: Mistake, ground: Ground) -> Tried:
    """Makes the mistake."""
    for name, text, changes in (("run.toml", grounds.RUN, mistake.run), ("map.toml", grounds.MAP, mistake.map)):
        for old, new in changes:
            assert old in text, f"{name} has no {old!r}"
            text = text.replace(old, new)
        (ground.folder / name).write_text(ground.text(text))
    ground.started.unlink(missing_ok=True)
    done = _make(mistake, ground)
    lacks = [*_unlike(mistake, ground, done)]
    if not mistake.on_ranks and ground.started.exists():
        lacks.append("it is told before ranks are started")
    if mistake.trains is not None:
        checked = _check(mistake, ground)
        if not mistake.later and (checked.code, checked.err) != (done.code, done.err):
            lacks.append(f"config check says the same: it ends with {checked.code} and {checked.err!r}")
    return Tried(done.err, tuple(lacks))


def _make(mistake: Mistake, ground: Ground) -> Done:
    return ground.hpcrec(
        *(ground.text(word) for word in mistake.command),
        folder=ground.folder / ("elsewhere" if mistake.elsewhere else "."),
        environment=mistake.environment,
        absent=mistake.absent,
        python=None if mistake.on_ranks else ground.python,
        script=ground.text(mistake.script) if mistake.script else None,
    )


def _check(mistake: Mistake, ground: Ground) -> Done:
    assert mistake.trains is not None
    return ground.hpcrec(
        "config",
        "check",
        *(ground.text(word) for word in mistake.trains),
        *mistake.command[1:3],
        folder=ground.folder / ("elsewhere" if mistake.elsewhere else "."),
        environment=mistake.environment,
        absent=mistake.absent,
    )


def _unlike(mistake: Mistake, ground: Ground, done: Done) -> list[str]:
    """What of the message and its status is not as it has to be."""
    wanted = {"what it is about": mistake.names, "what was found": mistake.found, "what to write": mistake.write}
    lacks = [
        f"{what}: {piece!r}"
        for what, pieces in wanted.items()
        for piece in map(ground.text, pieces)
        if piece not in done.err
    ]
    if done.code != mistake.status:
        lacks.append(f"exit status {mistake.status}: it is {done.code}")
    lacks += [f"nothing but the error: {word!r} is shown" for word in _NOT_OURS if word in done.out + done.err]
    if len(re.findall(r"^(?:hpcrec: error: |Error: |hpcrec\.errors\.\w+: )", done.err, re.MULTILINE)) != 1:
        lacks.append("one error, which is told as one")
    return lacks


def try_all(folder: Path) -> dict[str, Tried]:
    """Every mistake, by name; ``folder`` is filled with what they are made on."""
    with Forked(whole=True) as hpcrec:
        ground = grounds.make(folder, hpcrec)
        return {name: tried(mistake, ground) for name, mistake in MISTAKES.items()}


def count() -> tuple[int, int]:
    """How many mistakes are caught, and of how many: for the claim ``first_hour.mistakes_caught``."""
    with tempfile.TemporaryDirectory(prefix="hpcrec-mistakes-") as folder:
        found = try_all(Path(folder))
    return sum(not one.lacks for one in found.values()), len(found)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="hpcrec-mistakes-") as place:
        all_tried = try_all(Path(place))
    for title, one in all_tried.items():
        print(f"{'no ' if one.lacks else 'yes'} {title}")
        print(*(f"      lacks {line}" for line in one.lacks), f"      said: {one.said.strip()}", sep="\n")
    print(f"{sum(not one.lacks for one in all_tried.values())} of {len(all_tried)} are caught")
