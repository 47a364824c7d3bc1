"""Store ``disk``: rows and their states in a folder on the host's own disk, and those that steps want in memory.

A row that was never written is nowhere: it starts from (seed, table, id) wherever it is first read, also after a start.
Rows that leave the memory changed are written; the folder is this process's alone, and its files go with it. Copies of
tables are in memory, and so are tables that are to be whole. Knows blocks and a budget; how rows lie on a disk is for
``hpcrec.disk``, how they come and go for ``cached``. Source: [MTRAINS].
"""

import contextlib
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from hpcrec import kernels
from hpcrec.disk.beside import Pass
from hpcrec.disk.pages import Way
from hpcrec.disk.tier import BlockRows, Settings, Tier, Wanted
from hpcrec.embedding.asked import Asked
from hpcrec.embedding.blocks import Block, blocks_of
from hpcrec.embedding.frozen import Values
from hpcrec.embedding.held_rows import HeldRows
from hpcrec.embedding.linked import LinkedRows, facts_of
from hpcrec.embedding.room import bytes_of, slots_for
from hpcrec.embedding.stores.cache import Backing, Moved, pieces
from hpcrec.embedding.stores.cached import CachedStore
from hpcrec.embedding.stores.early_flush import EarlyFlush
from hpcrec.embedding.stores.write_budget import WriteBudget
from hpcrec.errors import ConfigError, TierError
from hpcrec.plan.memory import Elsewhere, to_disk
from hpcrec.plan.placement import SLOT_BYTES
from hpcrec.types import Floats, Ints

PIECES = 7  # of a block that are written, or wait for it, at most
_MOST_NONFINITE = 1 << 16  # rows of a block that are known one by one
_DAY_S = 86_400.0
FirstValues = Callable[[Ints], Values]  # row numbers [U] of a block -> rows, under "", and states that start there


class DiskRows(HeldRows):
    """Rows of one block, in a tier. The arrays have no rows: their types and shapes count.

    Parameters
    ----------
    block : Block
    arrays : mapping of str to float [0, ...]
        Rows, under "", and states.
    tier : Tier
    number : int
        Of the block in the tier.
    first : callable
        What rows are that were never written.
    """

    def __init__(self, block: Block, arrays: Values, tier: Tier, number: int, first: FirstValues) -> None:
        super().__init__(block, arrays[""], {name: of for name, of in arrays.items() if name})
        self._tier, self.number, self.first = tier, number, first
        self._nonfinite: set[int] = set()  # rows, as they are on the disk
        self._many_nonfinite = False  # more than are known: then all are taken to be

    def fetch(self, numbers: Ints) -> Values:
        """See ``HeldRows``."""
        found = {name: np.empty((len(numbers), *of.shape[1:]), of.dtype) for name, of in self.columns.items()}
        reading = self._tier.read({self.number: Wanted(numbers, found)})
        new = np.flatnonzero(~reading.wait()[self.number])
        if len(new):
            for name, values in self.first(numbers[new]).items():
                found[name][new] = values
        return found

    def finite(self, span: tuple[int, int]) -> bool:
        """Whether all values of these rows that were written are finite."""
        return not self._many_nonfinite and not any(span[0] <= row < span[1] for row in self._nonfinite)

    def forget(self) -> None:
        """Rows are those of another generation: what is known of its values the store is told by table."""
        self._nonfinite.clear()
        self._many_nonfinite = False

    def note(self, numbers: Ints, columns: Mapping[str, Floats]) -> None:
        """Remembers rows with values that are not finite: a checkpoint that links them does not read them."""
        if not self._nonfinite and all(math.isfinite(float(values.sum())) for values in columns.values()):
            return
        wrong = np.zeros(len(numbers), bool)
        for values in columns.values():
            wrong |= ~np.isfinite(values).reshape(len(numbers), -1).all(axis=1)
        self._nonfinite.difference_update(numbers[~wrong].tolist())
        self._nonfinite.update(numbers[wrong].tolist())
        if len(self._nonfinite) > _MOST_NONFINITE:
            self._nonfinite.clear()
            self._many_nonfinite = True

    def write_back(self, numbers: Ints, columns: Mapping[str, Floats]) -> None:
        """See ``HeldRows``."""
        if len(numbers):
            self.will_change(numbers)
            self._write(numbers, columns)

    def _write(self, numbers: Ints, columns: Mapping[str, Floats]) -> None:
        whole = {name: np.ascontiguousarray(columns[name], of.dtype) for name, of in self.columns.items()}
        self.note(numbers, whole)
        self._tier.write({self.number: Wanted(numbers, whole)})

    def put(self, where: Ints, rows: Floats | float, states: Mapping[str, float]) -> None:
        """See ``HeldRows``."""
        if len(where):
            self.will_change(where)
            given = {"": rows, **states}
            shapes = {name: (len(where), *of.shape[1:]) for name, of in self.columns.items()}
            self._write(where, {name: np.broadcast_to(np.asarray(given[name]), shapes[name]) for name in shapes})

    def place(self, where: Ints, columns: slice, values: Mapping[str, Floats]) -> None:
        """See ``HeldRows``."""
        if not len(where):
            return
        self.will_change(where)
        whole = columns == slice(0, self.block.width) and values.keys() == self.columns.keys()
        held = dict(values) if whole else self.fetch(where)
        for name, of in values.items() if not whole else ():
            if held[name].ndim == 1:
                held[name][:] = of
            else:
                held[name][:, columns] = of
        self._write(where, held)

    def _as_they_are(self, rows: slice | Ints) -> Values:
        return self._copies(rows)

    def _copies(self, rows: slice | Ints) -> Values:
        return self.fetch(np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows)


class TierBacking:
    """A cache's rows are those of ``DiskRows``: all blocks in one batch, from and to their places there.

    Where there is a budget, all that the tier has written so far is taken out of it, cleaning included, once rows are
    handed over: they are safe then, and who asks for the next ones waits.
    """

    def __init__(self, tier: Tier, rows: Mapping[int, DiskRows], budget: WriteBudget | None = None) -> None:
        self._tier, self._rows, self._budget = tier, rows, budget
        self._spent = 0  # bytes, of the budget
        self._is_free = False  # whether what is written is no part of it
        self.fetched = 0  # rows that were read from the disk for the cache, and not for checkpoints
        self.pushed = 0  # of these, for rows that were pushed and are no step's

    def columns(self, block: int) -> Mapping[str, Floats]:
        """See ``Backing``."""
        return self._rows[block].columns

    def fetch(self, moved: Mapping[int, Moved]) -> None:
        """See ``Backing``."""
        reading = self._tier.read(
            {self._rows[b].number: Wanted(of.rows, of.columns, of.places) for b, of in moved.items()}
        )
        found = reading.wait()
        for b, of in moved.items():
            self.fetched += int(np.count_nonzero(found[self._rows[b].number]))
            new = np.flatnonzero(~found[self._rows[b].number])
            if len(new):
                for name, values in self._rows[b].first(of.rows[new]).items():
                    of.columns[name][of.places[new]] = values

    def write_back(self, moved: Mapping[int, Moved]) -> None:
        """See ``Backing``."""
        for some in pieces(moved):
            for b, of in some.items():
                self._rows[b].will_change(of.rows)
                self._rows[b].note(of.rows, of.values())
        self._tier.write({self._rows[b].number: Wanted(of.rows, of.columns, of.places) for b, of in moved.items()})
        if self._budget is not None and not self._is_free:
            more, self._spent = self._tier.counts.written_bytes - self._spent, self._tier.counts.written_bytes
            self._budget.spend(more, waits=lambda: not self._tier.is_in_haste)

    @contextlib.contextmanager
    def free(self) -> Iterator[None]:
        """What is written meanwhile is not taken out of the budget: rows of a checkpoint come all at once."""
        self._is_free = True
        try:
            yield
        finally:
            self._spent, self._is_free = self._tier.counts.written_bytes, False


class DiskStore(CachedStore):
    """See ``Store``.

    Parameters
    ----------
    folder : Path
        Of this rank alone, on a disk of its host.
    room_bytes : int
        Of memory, for rows that are not copies and for what is known of those on the disk.
    whole : collection of str
        Tables whose rows are all in that memory, and not on the disk.
    io : str
        See ``page_io``.
    daily_bytes : int, optional
        That may be written to the folder in a day.

    Raises
    ------
    ConfigError
        Another process has the folder; what is known of rows takes more memory than there is to be.
    """

    def __init__(
        self,
        tables: Any,
        families: Any,
        *,
        folder: Path,
        room_bytes: int,
        whole: Collection[str] = (),
        io: Way = "auto",
        daily_bytes: int | None = None,
        **more: Any,
    ) -> None:
        self._budget = None if daily_bytes is None else WriteBudget(daily_bytes)
        self._dtype, self._room_bytes, self._whole = np.dtype(more["dtype"]), room_bytes, frozenset(whole)
        all_of_them = [b for b in blocks_of(tables, families, more["rank"], self._whole) if b.kind != "replicate"]
        own = [block for block in all_of_them if not block.whole]
        self._whole_bytes = sum(self._bytes_of(block) for block in all_of_them if block.whole)
        self._numbers = {id_of(block): number for number, block in enumerate(own)}
        self._own_bytes = sum(self._bytes_of(block) for block in own)
        self._nonfinite: frozenset[str] = frozenset()  # tables with such values in a checkpoint that was taken over
        self._kept: KeptRows | None = None  # what a checkpoint links, or has linked
        self._looking: Pass | None = None  # at the files that were taken over from a checkpoint
        self._came_from = folder
        self._links: set[tuple[Path, str]] = set()  # folders of checkpoints, and of this rank's links in each of them
        self._last: dict[str, float] | None = None  # what the tier says, once it is closed
        self._steps, self._learned = 0, -1  # how many were learned, and the last one's number
        self._began: tuple[float, int] | None = None  # when the first was, and bytes that had been written by then
        rows = [BlockRows(block.rows, self._geometry(block)) for block in own]
        self._tier = Tier(folder, rows, replace(self.of_tier, io=io))
        try:
            self._cache_bytes = self._left_for_rows(own)
            super().__init__(tables, families, **more)
            self._early = EarlyFlush(self._ahead.lowest.cache, self._cache_bytes)
        except BaseException:
            self._gone()
            raise

    on_device = False
    keys: ClassVar[tuple[str, ...]] = ("room_bytes", "folder", "whole", "io", "window", "daily_bytes")
    of_tier: ClassVar[Settings] = Settings()

    @staticmethod
    def memory(memory_bytes: int | None, gpu_bytes: int | None = None) -> Elsewhere:  # noqa: ARG004
        """See ``MemoryStore``."""
        assert memory_bytes is not None, "config.keys asks for it"
        return partial(to_disk, memory_bytes=memory_bytes)

    def _left_for_rows(self, own: Sequence[Block]) -> int:
        """Of the budget, without whole tables and what the tier takes."""
        beside = self._tier.n_bytes + len(own) * PIECES * self.of_tier.piece_bytes
        least = sum(kernels.WAYS * (self._bytes_of(block) // block.rows + SLOT_BYTES) for block in own)
        wanted = beside + least + self._whole_bytes
        if self._room_bytes < wanted:
            kept = f", tables of store.whole {self._whole_bytes}" if self._whole_bytes else ""
            raise ConfigError(
                f"store.memory_bytes is {self._room_bytes}, but what is known of this rank's rows on the disk takes "
                f"{beside} bytes, and the smallest caches of them {least}{kept}. Set it to {wanted} or more."
            )
        return self._room_bytes - beside - self._whole_bytes

    def _bytes_of(self, block: Block) -> int:
        return bytes_of(block.rows, block.width, block.spec, self._dtype)

    def _geometry(self, block: Block) -> dict[str, tuple[Any, tuple[int, ...]]]:
        shapes = {"": (block.rows, block.width), **kernels.state_shapes(block.spec, block.rows, block.width)}
        return {name: (self._dtype, shape[1:]) for name, shape in shapes.items()}

    def _made(self, block: Block) -> HeldRows:
        if block.kind == "replicate" or block.whole:
            return super()._made(block)
        arrays = {name: np.empty((0, *row), dtype) for name, (dtype, row) in self._geometry(block).items()}
        return DiskRows(block, arrays, self._tier, self._numbers[id_of(block)], partial(self._start_of, block))

    def _backing(self) -> Backing:
        rows = {b: held for b, held in enumerate(self.held) if isinstance(held, DiskRows)}
        self._below = TierBacking(self._tier, rows, self._budget)
        return self._below

    def _start_of(self, block: Block, numbers: Ints) -> Values:
        """First values of rows; of dynamic tables zeros, until they are given to an id."""
        found = {name: np.zeros((len(numbers), *row), dtype) for name, (dtype, row) in self._geometry(block).items()}
        if block.kind == "dynamic":
            return found
        for part in block.parts:
            mine = np.flatnonzero((numbers >= part.base) & (numbers < part.base + part.rows))
            if len(mine):
                found[""][mine] = self._initial(part, part.ids(numbers[mine] - part.base))
        for name, value in kernels.state_values(block.spec).items():
            found[name][:] = value
        return found

    def _slots(self, block: int) -> int | None:
        of = self.blocks[block]
        if of.kind == "replicate" or of.whole:
            return None
        its_bytes = self._cache_bytes * self._bytes_of(of) // self._own_bytes
        return slots_for(of.rows, self._bytes_of(of), its_bytes, SLOT_BYTES)

    def learn(self, step: int, *args: Any, number: int, **kwargs: Any) -> None:
        """See ``Store``."""
        if self._began is None:
            self._began = time.monotonic(), self._tier.counts.written_bytes
        self._steps, self._learned = self._steps + (number != self._learned), number
        super().learn(step, *args, number=number, **kwargs)

    def _learn_piece(self, *args: Any, **kwargs: Any) -> None:
        before = self._below.fetched
        super()._learn_piece(*args, **kwargs)
        self._below.pushed += self._below.fetched - before  # nothing is brought beside it

    # Checkpoints.

    def linked_facts(self) -> Mapping[str, Mapping[str, Any]]:
        """See ``Store``."""
        return {
            part.table: facts_of(block, number, part, seed=self._seed, start=self._starts[part.table], dtype=self.dtype)
            for block in self.blocks
            if (number := self._numbers.get(id_of(block))) is not None
            for part in block.parts
        }

    def keep(self) -> LinkedRows | None:
        """See ``Store``. What has changed in memory is written, and that is all: ``settle`` flushes it."""
        if not self._numbers:
            return None
        if self._kept is not None:  # of a checkpoint that came to nothing
            self._kept.drop()
        self._early.end()
        nonfinite = set(self._nonfinite)
        with self._tier.in_haste():  # steps stand still
            for b, (block, held) in enumerate(zip(self.blocks, self.held, strict=True)):
                if isinstance(held, DiskRows):
                    self._settled(b)
                    nonfinite |= {part.table for part in block.parts if not held.finite((part.base, part.end))}
        self._kept = KeptRows(self._tier, self.linked_facts(), frozenset(nonfinite), self._links)
        return self._kept

    def will_keep(self, steps: int) -> None:
        """See ``Store``."""
        self._early.due_in(steps)

    def load(self, *args: Any, **more: Any) -> int:
        """See ``Store``. What is written by it is no part of a day's budget."""
        self._early.end()
        with self._below.free():
            return super().load(*args, **more)

    def takes(self, folder: Path, generation: int) -> bool:
        """See ``Store``."""
        return bool(self._numbers) and self._tier.fits(folder, generation)

    def take(self, folder: Path, generation: int, nonfinite: Collection[str] = ()) -> None:
        """See ``Store``. Where the folder is on another file system its files are copied; no page is read."""
        if self._kept is not None:
            self._kept.drop()
        self._early.end()
        with self._ahead.still():
            for b, held in enumerate(self.held):
                if isinstance(held, DiskRows):
                    self._cleared(b)
                    held.forget()
            self._nonfinite = frozenset(nonfinite)  # which of their rows is not known: so they stay
            self._tier.take(folder, generation)
        self._stop_looking()
        self._looking, self._came_from = self._tier.looked_at(), folder.parent

    def gather(self, step: int, asked: Sequence[Asked], values: Floats) -> None:
        """See ``Store``; raises what was found meanwhile of the files that were taken over."""
        found: TierError | None = None if self._looking is None else self._looking.error(self._came_from)
        if found is not None:
            raise found
        super().gather(step, asked, values)

    def _stop_looking(self) -> None:
        if self._looking is not None:
            self._looking.stop()
            self._looking = None

    def figures(self) -> dict[str, float]:
        """See ``Store``; and what the disk has, and was asked for: by steps, and evaluations, that learned here too."""
        fetched, pushed = self._below.fetched, self._below.pushed
        steps = {"disk_steps": self._steps, "disk_reads_a_step": (fetched - pushed) / max(self._steps, 1)}
        if pushed:
            steps["disk_rows_read_in_pieces"] = pushed
        if self._early.rows:
            steps["disk_rows_written_early"] = self._early.rows
        if self._budget is not None:
            steps["disk_budget_waited_s"] = self._budget.waited_s
        return {**super().figures(), **(self._of_disk() if self._last is None else self._last), **steps}

    def _of_disk(self) -> dict[str, float]:
        took_s, written = 0.0, 0
        if self._began is not None:
            took_s, written = time.monotonic() - self._began[0], self._tier.counts.written_bytes - self._began[1]
        return {
            **self._tier.figures(),
            "disk_bytes_written_a_day": written * _DAY_S / max(took_s, 1e-9),
            "disk_bytes_of_checkpoints": self._only_in_checkpoints(),
        }

    def _only_in_checkpoints(self) -> int:
        """Bytes of segments that checkpoints have, and this store has not, each once."""

        def found(paths: Iterable[Path]) -> dict[tuple[int, int], int]:
            sizes = {}
            for path in paths:
                with contextlib.suppress(OSError):  # it goes, or is on a server that cannot be reached
                    of = path.stat()
                    sizes[of.st_dev, of.st_ino] = of.st_size
            return sizes

        there = found(p for folder, name in list(self._links) for p in folder.glob(f"step-*/{name}/segment-*"))
        mine = found(self._tier.folder.glob("segment-*"))
        return sum(size for file, size in there.items() if file not in mine)

    def close(self) -> None:
        """See ``Store``. Its files go: what a run goes on from is its checkpoint."""
        try:
            self._stop_looking()
            self._early.end()
            with self._tier.in_haste():  # nobody waits for a day's budget any more
                super().close()
        finally:
            self._gone()

    def _gone(self) -> None:
        if self._last is None:
            self._last = self._of_disk()
        self._tier.remove()


class KeptRows:
    """See ``LinkedRows``: a generation of a tier."""

    def __init__(
        self,
        tier: Tier,
        facts: Mapping[str, Mapping[str, Any]],
        nonfinite: frozenset[str],
        links: set[tuple[Path, str]],
    ) -> None:
        self._tier, self.nonfinite, self._links = tier, nonfinite, links
        kept = tier.keep(flush=False)
        self._number: int | None = kept.number
        self.facts = {table: {**of, "generation": kept.number} for table, of in facts.items()}
        self.list_file, *segments = kept.files
        self.segments = tuple(segments)
        self._seals = dict(zip(segments, kept.seals, strict=True))

    def settle(self) -> None:
        """See ``LinkedRows``."""
        assert self._number is not None, "it was dropped"
        self._tier.settle(self._number)

    def seal(self, segment: Path) -> int:
        """See ``LinkedRows``."""
        return self._seals[segment]

    def linked_in(self, checkpoints: Path, name: str) -> None:
        """See ``LinkedRows``."""
        self._links.add((checkpoints, name))

    def drop(self) -> None:
        """See ``LinkedRows``."""
        number, self._number = self._number, None
        if number is not None:
            self._tier.drop(number)


def id_of(block: Block) -> tuple[str, ...]:
    """What no other block of a rank has: its parts' tables."""
    return tuple(part.table for part in block.parts)
