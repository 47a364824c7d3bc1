"""What is done while calls fail: saving, resuming, noting attempts, preparing and reading data; and what has to hold.

Each is real code without a model. Knows nothing of how calls fail.
"""

import json
import os
import shutil
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np

from hpcrec.checkpoint import files
from hpcrec.comm.ranks import Alone
from hpcrec.data.files import write_text
from hpcrec.data.layout import Columns
from hpcrec.data.reader import DataSet
from hpcrec.preparation.convert import prepare_table
from hpcrec.preparation.split import Split
from hpcrec.training import attempts
from hpcrec.training.claim import claimed
from tests.failing_files.runs import Book


class Scenario(ABC):
    """``begin`` makes a folder once; each case acts on a copy of it, and is judged when nothing fails any more."""

    def begin(self, folder: Path) -> None:
        """What is there before; nothing fails yet."""

    @abstractmethod
    def act(self, folder: Path) -> None:
        """Under calls that fail; raises what the code does, or AssertionError for a wrong result."""

    @abstractmethod
    def judge(self, folder: Path, *, whole: bool) -> list[str]:
        """What is wrong with what is left; ``whole``: ``act`` returned."""


class OfRun(Scenario):
    """On the checkpoints of a run, each step of ``before`` saved first: (step, base)."""

    before: tuple[tuple[int, int | None], ...] = ()

    def begin(self, folder: Path) -> None:
        self._saved_before(Book(folder))

    def _saved_before(self, book: Book) -> Book:
        for step, base in self.before:
            book.save(step, base)
        return book

    def act(self, folder: Path) -> None:
        self.book = Book(folder)
        for step, base in self.before:  # which are there
            self.book.note(step, base)
        self.do(self.book)

    @abstractmethod
    def do(self, book: Book) -> None:
        """What is done to the run."""

    def judge(self, folder: Path, *, whole: bool) -> list[str]:
        found = self.book.problems()
        if found:
            return found
        try:  # and it can go on
            self.book.save(90)
            taken = self.book.resumed()
        except Exception as error:
            return [f"it cannot go on: {type(error).__name__}: {error}"]
        return [] if taken is not None and taken.step == 90 else [f"what was saved next is not found: {taken}"]


class First(OfRun):
    """The first checkpoint of a run, noted as the best."""

    def do(self, book: Book) -> None:
        book.save(1)
        book.mark(1)
        book.prune(2, [1])


class Increment(OfRun):
    """Of changed rows, over a base; then a whole one, and what is older goes."""

    before = ((1, None), (2, 1))

    def do(self, book: Book) -> None:
        book.save(3, 1)
        book.mark(3)
        book.prune(1, [3])
        book.save(4)
        book.prune(1, [3])


class Again(OfRun):
    """A step that has a checkpoint already is saved anew."""

    before = ((1, None), (2, None))

    def do(self, book: Book) -> None:
        book.save(2)
        book.save(3, 2)


class Resume(OfRun):
    """A start finds the newest one, which needs a base, and reads all of it, beside what a killed run left."""

    before = ((1, None), (2, 1), (3, 1))

    def begin(self, folder: Path) -> None:
        super().begin(folder)
        at = files.checkpoints_in(folder)
        shutil.copytree(at / "step-3", at / ".step-4.tmp")
        (at / "step-2").rename(at / ".step-2.old")

    def do(self, book: Book) -> None:
        taken = book.resumed()
        assert taken is not None and taken.step == 3, f"resume takes {taken and taken.step}, and 3 is whole"


class Damaged(OfRun):
    """The newest has another byte than it was given: an older one is taken, and the newest is kept aside."""

    before = ((1, None), (2, None), (3, None))

    def begin(self, folder: Path) -> None:
        super().begin(folder)
        path = files.step_folder(folder, 3) / "user" / "part-0.h5"
        data = bytearray(path.read_bytes())
        data[-9] ^= 1
        path.write_bytes(data)

    def act(self, folder: Path) -> None:
        self.book = Book(folder)
        for step, base in self.before:
            self.book.note(step, base)
        self.book.committed.pop()
        self.book.needed.discard(3)
        self.do(self.book)

    def do(self, book: Book) -> None:
        taken = book.resumed()
        assert taken is not None and taken.step == 2, f"resume takes {taken and taken.step}, and 2 is whole"

    def judge(self, folder: Path, *, whole: bool) -> list[str]:
        aside = files.checkpoints_in(folder) / "damaged-step-3"
        if not aside.exists():  # the start that failed is made again
            self.do(self.book)
        if not aside.exists():
            return ["the damaged one is gone"]
        aside.rename(folder / "aside")
        return super().judge(folder, whole=whole)


class Notes(Scenario):
    """A claim, the attempts of a run and a small text file."""

    def begin(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        attempts.begin(folder, attempts.now(), 0, 2, ["one"], attempts.Allocation("7", 0))
        write_text(folder / "summary.json", json.dumps({"steps": 0}) + "\n")

    def act(self, folder: Path) -> None:
        self.told = [(0, "begin")]
        self.summed = {0}
        with claimed(folder, "7", Alone()):
            attempts.begin(folder, attempts.now(), 5, 2, ["one"], attempts.Allocation("7", 1))
            self.told += [(5, "begin")]
            self.summed = {0, 1}
            write_text(folder / "summary.json", json.dumps({"steps": 1}) + "\n")
            self.summed = {1}
            attempts.end(folder, 9, "finished")
            self.told += [(9, "end")]

    def judge(self, folder: Path, *, whole: bool) -> list[str]:
        events = [(event["step"], event["event"]) for event in attempts.read(folder)]
        found = [f"the attempts lack {told}: {events}" for told in self.told if told not in events]
        steps = json.loads((folder / "summary.json").read_text())["steps"]
        if steps not in self.summed:
            found.append(f"summary.json says {steps}, allowed are {self.summed}")
        attempts.begin(folder, attempts.now(), 9, 1, ["two"], attempts.Allocation())
        if attempts.read(folder)[-1]["hosts"] != ["two"]:
            found.append("no attempt can be added")
        with claimed(folder, "8", Alone()):
            pass
        return found + [f"{path} is left" for path in folder.glob(".*.part")]


MAP = """
labels = ["click"]
[dense.price]
missing = 0
[sparse.user]
ids = "integer"
value = "integer"
rows = 100
[sparse.site]
ids = "vocabulary"
"""


def same(one: Columns, other: Columns) -> bool:
    """Whether samples are the same, value by value."""
    plain = all(np.array_equal(getattr(one, name), getattr(other, name)) for name in ("label", "dense"))
    return plain and one.sparse.keys() == other.sparse.keys() and all(
        np.array_equal(one.sparse[name].ids, other.sparse[name].ids) for name in one.sparse
    )


class Prepare(Scenario):
    """A table in three pieces with a vocabulary; once it is cut short, the same command goes on."""

    piece_bytes = 700

    def begin(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        lines = [f"{i % 2},{i},{i % 97},s{i * i % 13}" for i in range(160)]
        (folder / "table.csv").write_text("\n".join(["click,price,user,site", *lines]) + "\n")
        (folder / "map.toml").write_text(MAP)
        self._prepared(folder, "right")

    def _prepared(self, folder: Path, name: str, **options: Any) -> Any:
        split = Split("order", (0.75, 0.25, 0.0))
        options = {"split": split, "piece_bytes": self.piece_bytes, **options}
        return prepare_table([folder / "table.csv"], folder / name, folder / "map.toml", **options)

    def _wrong(self, folder: Path) -> list[str]:
        found = []
        for name in ("train", "validation"):
            paths = [next((folder / of).glob(f"{name}.*")) for of in ("right", "out")]
            with DataSet(paths[0]) as right, DataSet(paths[1]) as mine:
                if mine.samples != right.samples or not same(right.read(0, right.samples), mine.read(0, mine.samples)):
                    found.append(f"{name} has other samples")
                if mine.fingerprint != right.fingerprint:
                    found.append(f"{name} has another fingerprint")
        right, mine = ((folder / of / "vocabulary.h5").read_bytes() for of in ("right", "out"))
        return found + (["another vocabulary"] if len(right) != len(mine) else [])

    def act(self, folder: Path) -> None:
        self._prepared(folder, "out")

    def judge(self, folder: Path, *, whole: bool) -> list[str]:
        found = [f"after it ended well: {text}" for text in self._wrong(folder)] if whole else []
        done = (folder / "out" / "prepare.json").exists()
        if done and not whole:
            found += [f"prepare.json is there, and {text}" for text in self._wrong(folder)]
        self._prepared(folder, "out")
        found += self._wrong(folder)
        left = [str(path) for path in (folder / "out").rglob("*") if path.name.endswith(".part")]
        return found + [f"{path} is left" for path in left] + (
            ["prepare.work is left"] if (folder / "out" / "prepare.work").exists() else []
        )


class PrepareOne(Prepare):
    """The same in one piece, which is renamed to its place."""

    piece_bytes = 1 << 20


class PrepareRestart(Prepare):
    """A finished one is begun anew."""

    def begin(self, folder: Path) -> None:
        super().begin(folder)
        self._prepared(folder, "out")

    def act(self, folder: Path) -> None:
        self._prepared(folder, "out", restart=True)


class Data(Scenario):
    """A data set of three files, opened and read."""

    def begin(self, folder: Path) -> None:
        Prepare().begin(folder)

    def act(self, folder: Path) -> None:
        with DataSet(next((folder / "right").glob("train.*"))) as data:
            assert data.samples == 120, data.samples
            for start in range(0, 120, 40):
                found = data.read(start, start + 40)
                numbers = np.arange(start, start + 40)
                assert np.array_equal(found.dense[:, 0], numbers), "other samples were read"
                assert np.array_equal(found.sparse["user"].ids, numbers % 97), "other ids were read"
                assert np.array_equal(found.label, numbers % 2), "other labels were read"

    def judge(self, folder: Path, *, whole: bool) -> list[str]:
        self.act(folder)
        return []


SCENARIOS: dict[str, type[Scenario]] = {
    "first": First,
    "increment": Increment,
    "again": Again,
    "resume": Resume,
    "damaged": Damaged,
    "notes": Notes,
    "prepare": Prepare,
    "prepare one": PrepareOne,
    "prepare restart": PrepareRestart,
    "data": Data,
}


def copied(source: Path, target: Path) -> None:
    """A folder, its files and folders, and nothing of their times but the order."""
    for root, _, names in os.walk(source):
        at = target / Path(root).relative_to(source)
        at.mkdir(parents=True, exist_ok=True)
        for name in names:
            shutil.copy2(Path(root) / name, at / name)
