"""A run's checkpoints without a model: rows whose values say of which save they are, and what has to be left of them.

``Book`` writes with the real writer and notes what was begun and what ``commit`` returned; ``problems`` opens the
folder by the real resume and holds what is there to it. Knows neither how calls fail nor how power does.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np

from hpcrec.checkpoint import files
from hpcrec.checkpoint.checkpoint import Checkpoint, CheckpointWriter, mark_best, prune, read_best, steps_in
from hpcrec.checkpoint.find import problem_of
from hpcrec.checkpoint.resume import resumed_from
from hpcrec.comm.ranks import Alone, Ranks
from hpcrec.training.ranks import on_root

ROWS, WIDTH = 300, 8  # 9.6 kB: more than a page, so that values are written past the cache too
BLOCKS = 2
TABLES = ("user", "item")


@dataclass(frozen=True)
class Save:
    """One checkpoint that was begun: its step, which try at it, and the try at its base."""

    step: int
    number: int
    base: "Save | None" = None

    def ids(self, rank: int = 0, ranks: int = 1) -> np.ndarray:
        """Rows that it has: all, or those that changed; of one rank."""
        every = np.arange(rank, ROWS, ranks)
        return every if self.base is None else every[(every * 7 + self.number) % 3 == 0]

    def fresh(self, table: str, ids: np.ndarray) -> np.ndarray:
        """Values of rows that it wrote itself [U, D]."""
        return (ids[:, None] + 1000.0 * self.number + np.arange(WIDTH) / 8 + TABLES.index(table) / 64).astype(
            np.float32
        )

    def values(self, table: str) -> np.ndarray:
        """Values of all rows of a table as they have to be found [ROWS, WIDTH]."""
        found = self.fresh(table, np.arange(ROWS)) if self.base is None else self.base.values(table)
        found[self.ids()] = self.fresh(table, self.ids())
        return found

    @property
    def dense(self) -> np.ndarray:
        """The dense parameters."""
        return np.full(130, self.number, np.float32)


def written(run: Path, save: Save, ranks: Ranks, comes_on: object = None) -> Path:
    """Writes a checkpoint, all ranks together; each has the rows ``rank::size``."""
    writer = CheckpointWriter(run, save.step, ranks, None if save.base is None else save.base.step)
    writer.begin()
    ids = save.ids(ranks.rank, ranks.size)
    for table in TABLES:
        blocks = [(i, save.fresh(table, i), {"sum": i.astype(np.float32)}) for i in np.array_split(ids, BLOCKS)]
        shape = {"n_ids": len(ids), "rows": ROWS, "width": WIDTH, "columns": (0, WIDTH)}
        writer.write_table_part(table, ranks.rank, blocks, **shape)  # type: ignore[arg-type]
    if ranks.rank == 0:
        writer.write_dense({"w": save.dense}, {"w": {"m": save.dense}})
        writer.write_state({"number": save.number})
    return writer.commit()


@dataclass
class Book:
    """What was done to a run.

    Attributes
    ----------
    begun : list of Save
        All that were, committed or not.
    committed : list of Save
        Those that ``commit`` returned, in order.
    needed : set of int
        Steps that must be there: committed, and not given to ``prune`` to remove.
    bests : set of int
        Steps that may be noted as the best; 0: none is.
    """

    run: Path
    ranks: Ranks = field(default_factory=Alone)
    say: Callable[[str], None] = lambda _: None
    begun: list[Save] = field(default_factory=list)
    committed: list[Save] = field(default_factory=list)
    needed: set[int] = field(default_factory=set)
    bests: set[int] = field(default_factory=lambda: {0})
    state: ClassVar[str] = "sum"  # of rows: their ids

    def note(self, step: int, base: int | None = None) -> None:
        """The next one is there already."""
        self._begin(step, base)
        self._commit(len(self.begun))

    def save(self, step: int, base: int | None = None) -> None:
        """Writes the next one."""
        self._begin(step, base)
        self.say(f"begin {len(self.begun)} {step} {base or 0}")
        self._written(self.begun[-1])
        self._commit(len(self.begun))
        self.say(f"commit {len(self.begun)}")

    def _written(self, save: Save) -> None:
        written(self.run, save, self.ranks)

    def mark(self, step: int) -> None:
        """Notes it as the best; on one rank."""
        self._best(step)
        self.say(f"best {step}")
        on_root(self.ranks, lambda: mark_best(self.run, step, "auc", float(step)))
        self.bests = {step}
        self.say(f"bests {step}")

    def prune(self, keep: int, protect: Sequence[int] = ()) -> None:
        """Removes what is not to be kept; from here on it may be gone. On one rank."""
        self._give_up(keep, protect)
        self.say(" ".join(map(str, ["prune", keep, *protect])))
        on_root(self.ranks, lambda: prune(self.run, keep, protect))

    def follow(self, text: str) -> None:
        """Does to the book, not to the run, what one that was said had done."""
        word, first, *others = text.split()
        number, rest = int(first), [int(other) for other in others]
        if word == "begin" and number > len(self.begun):  # each rank says it
            self._begin(rest[0], rest[1] or None)
        elif word == "commit" and number not in {save.number for save in self.committed}:
            self._commit(number)
        elif word == "best":
            self._best(number)
        elif word == "bests":
            self.bests = {number}
        elif word == "prune":
            self._give_up(number, rest)

    def _best(self, step: int) -> None:
        self.bests = {*self.bests, step}

    def _begin(self, step: int, base: int | None) -> None:
        of = None if base is None else next(s for s in reversed(self.committed) if s.step == base)
        self.begun.append(Save(step, len(self.begun) + 1, of))

    def _commit(self, number: int) -> None:
        self.committed.append(self.begun[number - 1])
        self.needed.add(self.committed[-1].step)

    def _give_up(self, keep: int, protect: Sequence[int]) -> None:
        kept = {*sorted(self.needed)[-keep:], *protect}
        newest = {save.step: save for save in self.committed}
        bases = {of.step for step in kept if (of := newest[step].base) is not None}
        self.needed &= kept | bases

    def resumed(self) -> Save | None:
        """Resumes, as a run that starts does, and reads all; which one it was.

        Raises
        ------
        AssertionError
            It is not one that was begun, with the values that it was given.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = resumed_from(self.run, "auto", self.ranks)
        return None if found is None else self.known(found)

    def known(self, checkpoint: Checkpoint) -> Save:
        """Which save a checkpoint is; every value of it is read."""
        save = self.begun[int(checkpoint.state["number"]) - 1]
        assert save.step == checkpoint.step == checkpoint.state["step"], f"{checkpoint.folder} is of another step"
        for table in TABLES:
            checkpoint.check_table(table, rows=ROWS, width=WIDTH, states={self.state: (ROWS,)})
            found = np.full((ROWS, WIDTH), np.nan, np.float32)
            for block in checkpoint.whole_table(table, ROWS, WIDTH):
                found[block.ids] = block.rows
                assert np.array_equal(block.states[self.state], block.ids.astype(np.float32)), f"{table}: other states"
            assert np.array_equal(found, save.values(table)), f"{checkpoint.folder}: {table} has other values"
        dense = checkpoint.dense()
        assert np.array_equal(dense.parameters["w"], save.dense), f"{checkpoint.folder}: other dense parameters"
        assert np.array_equal(dense.optimizer["w"]["m"], save.dense), f"{checkpoint.folder}: other dense states"
        return save

    def problems(self) -> list[str]:
        """What is wrong with what is left in the folder; looked at as a run that starts would, which changes it."""
        files.remove_leftovers(self.run)
        broken = {step: problem_of(files.step_folder(self.run, step), Alone()) for step in steps_in(self.run)}
        found = [f"step-{step} was whole once, now: {why}" for step, why in broken.items() if why is not None]
        found += [f"step-{step} is gone" for step in sorted(self.needed - set(steps_in(self.run)))]
        if (best := read_best(self.run)) is not None and best["step"] not in steps_in(self.run):
            found.append(f"the best checkpoint, step-{best['step']}, is gone")
        if (best["step"] if best else 0) not in self.bests:
            found.append(f"the best checkpoint is noted to be {best}; allowed are {sorted(self.bests)}")
        try:
            taken = self.resumed()
        except Exception as error:
            return [*found, f"resume fails: {type(error).__name__}: {error}"]
        last = max((s.step for s in self.committed), default=0)
        if self.committed and (taken is None or taken.step < last):
            found.append(f"commit had returned step {last}, resume takes {taken and taken.step}")
        newest = {s.step: s.number for s in self.committed}
        if taken is not None and taken.number < newest.get(taken.step, 0):
            found.append(f"resume takes an older step {taken.step} than was committed")
        aside = sorted(path.name for path in files.checkpoints_in(self.run).glob("damaged-*"))
        return found + [f"{name} was set aside" for name in aside]
