"""What is done while calls fail: saving, resuming, noting attempts, preparing and reading data; and what has to hold.

Each is real code without a model. Knows nothing of how calls fail.
"""

import json
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpcrec.checkpoint import files
from hpcrec.comm.ranks import Alone, Ranks
from hpcrec.data.files import write_text
from hpcrec.data.index import write_index
from hpcrec.data.layout import Columns
from hpcrec.data.reader import DataSet
from hpcrec.errors import CheckpointError, DataError, UnreadableError
from hpcrec.preparation.convert import prepare_table
from hpcrec.preparation.split import Split
from hpcrec.training import attempts
from hpcrec.training.claim import Claim, Holder, Times, claimed
from tests.data.conftest import FEATURES, cut, make_columns, write
from tests.failing_files.runs import Book

Mark = Callable[[str], None]


class Scenario(ABC):
    """``begin`` makes a folder once; each case acts on a copy of it, and is judged when nothing fails any more.

    Attributes
    ----------
    one_write : bool
        What fails in this case is one write, and nothing else.
    closes : bool
        What fails are closes.
    """

    one_write = False
    closes = False

    @abstractmethod
    def begin(self, folder: Path) -> None:
        """What is there before; nothing fails yet."""

    @abstractmethod
    def act(self, folder: Path) -> None:
        """Under calls that fail; raises what the code does, or AssertionError for a wrong result."""

    @abstractmethod
    def judge(self, folder: Path, *, whole: bool) -> list[str]:
        """What is wrong with what is left; ``whole``: ``act`` returned."""

    # Where power goes: the same is done on several ranks, and what is left is judged by the marks that had been made.

    def watched(self, folder: Path) -> Path:
        """Of which nothing is kept that is not synced."""
        return folder

    def begin_cuts(self, folder: Path) -> None:
        """What is there before, all of it kept."""
        self.begin(folder)
        self.watched(folder).mkdir(parents=True, exist_ok=True)

    def act_on(self, folder: Path, ranks: Ranks, mark: Mark) -> None:
        """On each rank; ``mark`` says what has been reached."""
        self.act(folder)
        mark("done")

    def judge_cut(self, folder: Path, marks: Sequence[str]) -> list[str]:
        """What is wrong with what is left."""
        return self.judge(folder, whole="done" in marks)


class OfRun(Scenario):
    """On the checkpoints of a run, each step of ``before`` saved first: (step, base)."""

    before: tuple[tuple[int, int | None], ...] = ()

    def begin(self, folder: Path) -> None:
        book = Book(folder)
        for step, base in self.before:
            book.save(step, base)

    def _noted(self, book: Book) -> Book:
        for step, base in self.before:  # which are there
            book.note(step, base)
        return book

    def act(self, folder: Path) -> None:
        self.book = self._noted(Book(folder))
        self.do(self.book)

    @abstractmethod
    def do(self, book: Book) -> None:
        """What is done to the run."""

    def begin_cuts(self, folder: Path) -> None:
        folder.mkdir(parents=True)

    def act_on(self, folder: Path, ranks: Ranks, mark: Mark) -> None:
        book = Book(folder, ranks, mark)
        for step, base in self.before:
            book.save(step, base)
        self.do(book)

    def judge_cut(self, folder: Path, marks: Sequence[str]) -> list[str]:
        self.book = Book(folder)
        for text in marks:
            self.book.follow(text)
        return self.judge(folder, whole=False)

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


class Long(OfRun):
    """Several starts of one run: whole ones and what changed, the best noted, and what is older removed."""

    def do(self, book: Book) -> None:
        for first in (1, 7):
            book.resumed()
            book.save(first)
            book.mark(first)
            for step in range(first + 1, first + 5):
                book.save(step, first if step < first + 4 else None)
                book.prune(2, [first])
        book.save(20, 11)
        book.save(20)
        book.mark(20)
        book.prune(1, [20])


class Retried(OfRun):
    """What could not be saved is saved again, over a sync that failed."""

    def do(self, book: Book) -> None:
        for step in range(1, 4):
            base = None if step < 3 else 2
            try:
                book.save(step, base)
            except CheckpointError:
                book.save(step, base)


class Again(OfRun):
    """A step that has a checkpoint already is saved anew."""

    before = ((1, None), (2, None))

    def do(self, book: Book) -> None:
        book.save(2)
        book.save(3, 2)


class Given(OfRun):
    """Where what is there before is not written by the ranks."""

    def begin_cuts(self, folder: Path) -> None:
        self.begin(folder)

    def act_on(self, folder: Path, ranks: Ranks, mark: Mark) -> None:
        self.do(self._noted(Book(folder, ranks, mark)))

    def judge_cut(self, folder: Path, marks: Sequence[str]) -> list[str]:
        self.book = self._noted(Book(folder))
        return self.judge(folder, whole=False)


class Resume(Given):
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


class Damaged(Given):
    """The newest has another byte than it was given: an older one is taken, and the newest is kept aside."""

    before = ((1, None), (2, None), (3, None))

    def begin(self, folder: Path) -> None:
        super().begin(folder)
        path = files.step_folder(folder, 3) / "user" / "part-0.h5"
        data = bytearray(path.read_bytes())
        data[-9] ^= 1
        path.write_bytes(data)

    def _noted(self, book: Book) -> Book:
        super()._noted(book)
        book.committed.pop()
        book.needed.discard(3)
        return book

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


def held(folder: Path, restart: int) -> AbstractContextManager[Claim]:
    """The claim of a job that Slurm has started so many times again, each time on another machine.

    An empty claim, which power left, is over at once: its age is the file's, which no clock of a test can put forward.
    """
    allocation = attempts.Allocation("7", restart)
    holder = replace(Holder.here(allocation), machine=f"machine {restart}")
    return claimed(folder, allocation, Alone(), times=Times(stale_s=0, watch_s=0), holder=holder)


class Notes(Scenario):
    """A claim, the attempts of a run and a small text file."""

    first_told: tuple[tuple[int, str], ...] = ((0, "begin"),)

    def begin(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        attempts.begin(folder, attempts.now(), 0, 2, ["one"], attempts.Allocation("7", 0))
        with held(folder, 0) as claim:
            begun = claim.path.read_text()
        claim.path.write_text(begun)  # as of one that was killed
        write_text(folder / "summary.json", json.dumps({"steps": 0}) + "\n")

    def act(self, folder: Path) -> None:
        self.told, self.summed = list(self.first_told), {0}
        self._do(folder, self._follow)

    def _do(self, folder: Path, mark: Mark) -> None:
        with held(folder, 1):
            attempts.begin(folder, attempts.now(), 5, 2, ["one"], attempts.Allocation("7", 1))
            mark("begun 5")
            mark("sums")
            write_text(folder / "summary.json", json.dumps({"steps": 1}) + "\n")
            mark("summed")
            attempts.end(folder, 9, "finished")
            mark("ended 9")

    def _follow(self, text: str) -> None:
        if text.startswith(("begun", "ended")):
            self.told.append((int(text.split()[1]), "begin" if text.startswith("begun") else "end"))
        elif text == "sums":
            self.summed.add(1)
        else:
            self.summed = {1}

    def act_on(self, folder: Path, ranks: Ranks, mark: Mark) -> None:
        self._do(folder, mark)

    def judge_cut(self, folder: Path, marks: Sequence[str]) -> list[str]:
        self.told, self.summed = list(self.first_told), {0}
        for text in marks:
            self._follow(text)
        return self.judge(folder, whole=False)

    def judge(self, folder: Path, *, whole: bool) -> list[str]:
        events = [(event["step"], event["event"]) for event in attempts.read(folder)]
        found = [f"the attempts lack {told}: {events}" for told in self.told if told not in events]
        path = folder / "summary.json"
        steps = json.loads(path.read_text())["steps"] if path.exists() else 0
        if steps not in self.summed:
            found.append(f"summary.json says {steps}, allowed are {self.summed}")
        attempts.begin(folder, attempts.now(), 9, 1, ["two"], attempts.Allocation())
        if attempts.read(folder)[-1]["hosts"] != ["two"]:
            found.append("no attempt can be added")
        with held(folder, 2) as claim:
            if lost := claim.lost():
                found.append(f"a claim just taken is lost: {lost}")
        return found + [f"{path} is left" for path in folder.glob(".*.part") if whole]


class FirstNotes(Notes):
    """The same in a folder that has none of them yet."""

    first_told = ()

    def begin(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)


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
    return (
        plain
        and one.sparse.keys() == other.sparse.keys()
        and all(np.array_equal(one.sparse[name].ids, other.sparse[name].ids) for name in one.sparse)
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
        words = []
        for of in ("right", "out"):
            with h5py.File(folder / of / "vocabulary.h5", locking=False) as file:
                words.append(file["site"][()].tolist())
        return found + (["another vocabulary"] if words[0] != words[1] else [])

    def watched(self, folder: Path) -> Path:
        return folder / "out"

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
        return (
            found
            + [f"{path} is left" for path in left]
            + (["prepare.work is left"] if (folder / "out" / "prepare.work").exists() else [])
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

    def judge(self, folder: Path, *, whole: bool) -> list[str]:
        found = [f"after it ended well: {text}" for text in self._wrong(folder)] if whole else []
        try:
            self._prepared(folder, "out")
        except DataError as error:  # what was there is removed in part, and what is new is not there
            if whole or "--restart" not in str(error) or f"{folder}/out/" not in str(error):
                found.append(f"{type(error).__name__}: {error}")
            self._prepared(folder, "out", restart=True)
        return found + self._wrong(folder)


class Data(Scenario):
    """A data set of three files with bags and columns of every kind, opened and read.

    It is whole, so all that may be said of it is that it cannot be read just now.
    """

    columns = make_columns(120)

    def begin(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        parts = [cut(self.columns, start, start + 40) for start in range(0, 120, 40)]
        paths = [write(folder / f"train-{i}.h5", part, origin="made by hand") for i, part in enumerate(parts)]
        write_index(folder / "train.index.json", paths, {"note": "as it was written"})

    def act(self, folder: Path) -> None:
        try:
            self._read(folder)
        except (UnreadableError, AssertionError):
            raise
        except Exception as error:  # which says what is not so
            raise AssertionError(f"said of a data set that is whole: {error}") from error

    def _read(self, folder: Path) -> None:
        with DataSet(folder / "train.index.json") as data:
            found = [(feature.name, feature.cardinality, feature.weighted) for feature in data.features]
            assert found == [(f.name, f.cardinality, f.weighted) for f in FEATURES], f"other features: {found}"
            assert (data.samples, data.n_dense, data.n_labels) == (120, 3, 1), "other shapes were read"
            assert data.optional == ("weight", "group", "time"), data.optional
            assert data.attributes == {"origin": "made by hand", "note": "as it was written"}, data.attributes
            for start in range(0, 120, 30):
                self._compare(data.read(start, start + 30), cut(self.columns, start, start + 30))

    def _compare(self, found: Columns, wanted: Columns) -> None:
        for name in ("label", "dense", "weight", "group", "time"):
            assert np.array_equal(getattr(found, name), getattr(wanted, name)), f"another {name} was read"
        for name, column in wanted.sparse.items():
            for part in ("ids", "offsets", "weights"):
                mine, right = getattr(found.sparse[name], part), getattr(column, part)
                assert (mine is None) == (right is None), f"{part} of {name}"
                assert right is None or np.array_equal(mine, right), f"other {part} of {name} were read"

    def judge(self, folder: Path, *, whole: bool) -> list[str]:
        self.act(folder)
        return []


def copied(source: Path, target: Path) -> None:
    """A folder, its files and folders, and nothing of their times but the order."""
    for root, _, names in os.walk(source):
        at = target / Path(root).relative_to(source)
        at.mkdir(parents=True, exist_ok=True)
        for name in names:
            shutil.copy2(Path(root) / name, at / name)
