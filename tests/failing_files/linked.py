"""Checkpoints of rows that are on a disk: links to a store's segments, and what has to be left of them.

The store is the real one, with rows that are set for each save; some change, and the segments of the others are in
several checkpoints. When a run ends its own names of them go. Knows neither how calls fail nor how power does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcrec.checkpoint import files
from hpcrec.checkpoint.checkpoint import Checkpoint, CheckpointWriter
from hpcrec.checkpoint.parts import part_facts
from hpcrec.comm.ranks import Ranks
from hpcrec.disk.common import Settings
from hpcrec.embedding.shards import build_families
from hpcrec.embedding.stores.disk import DiskStore
from hpcrec.types import Feature, Lookup, OptimizerSpec, TableSpec
from tests.failing_files.runs import ROWS, TABLES, WIDTH, Book, Save
from tests.failing_files.scenarios import Mark, OfRun


class SmallFiles(DiskStore):
    """Of few pages, so that a save has several, and cleaning removes some."""

    of_tier = Settings(piece_bytes=4096, segment_bytes=8192)


def made(run: Path, ranks: Ranks) -> SmallFiles:
    """The rows of one rank, each table of which a share is at each; none is written yet."""
    spec = OptimizerSpec(name="rowwise_adagrad", lr=0.1)
    tables = {name: TableSpec(name=name, rows=ROWS, width=WIDTH, optimizer=spec) for name in TABLES}
    features = [Feature(name=name, cardinality=ROWS) for name in TABLES]
    lookups = [Lookup(feature=name, table=name) for name in TABLES]
    owners = tuple(range(ranks.size))
    families = build_families(tables, features, lookups, {}, owners=owners, dense=owners, replicate_rows=0)
    mine = [family for family in families if ranks.rank in family.holders]
    folder, dtype = run / "rows" / f"rank-{ranks.rank}", np.dtype(np.float32)
    more: dict[str, Any] = {"rank": ranks.rank, "seed": 3, "dtype": dtype, "io": "threads", "room_bytes": 2_000_000}
    return SmallFiles(tables, mine, folder=folder, **more)


@dataclass
class LinkedBook(Book):
    """Of one process, whose store lives from its first save to ``end``; a save's ``base`` is what it changes."""

    store: SmallFiles | None = None
    state = "accumulator"

    def _written(self, save: Save) -> None:
        if self.store is None:
            self.store = made(self.run, self.ranks)
        store = self.store
        for table in store.tables:
            ids = save.ids() if save.base is not None else np.arange(ROWS)
            states = {self.state: ids.astype(np.float32)}
            store.load(table, ids, save.fresh(table, ids), states, (0, WIDTH))
        kept = store.keep()
        assert kept is not None
        writer, name = (
            CheckpointWriter(self.run, save.step, self.ranks, None),
            f"{files.ROWS}{self.ranks.rank}{files.ROWS_END}",
        )
        writer.begin()
        writer.write_links(name, kept)
        for table, facts in kept.facts.items():
            part = store.part(table)
            assert part is not None
            writer.write_linked_part(table, part.number, {**facts, "folder": name}, rows=ROWS, width=WIDTH,
                                     columns=part.columns)  # fmt: skip
        kept.drop()
        if self.ranks.rank == 0:
            writer.write_dense({"w": save.dense}, {"w": {"m": save.dense}})
            writer.write_state({"number": save.number})
        writer.commit()

    def end(self) -> None:
        """The run is over: its own names of the segments go."""
        if self.store is not None:
            self.store.close()
            self.store = None

    def _give_up(self, keep: int, protect: Sequence[int]) -> None:
        self.needed &= {*sorted(self.needed)[-keep:], *protect}

    def known(self, checkpoint: Checkpoint) -> Save:
        save = super().known(checkpoint)
        self._taken(checkpoint, save)
        return save

    def _taken(self, checkpoint: Checkpoint, save: Save) -> None:
        """A store goes on from it, and has the same rows."""
        if self.store is not None:
            return
        said: Mapping[str, Any] = part_facts(checkpoint.part_paths(TABLES[0])[0])["linked"]
        store = made(self.run, self.ranks)
        try:
            if not store.takes(checkpoint.folder / said["folder"], said["generation"]):
                return  # of another number of owners, which read it
            store.take(checkpoint.folder / said["folder"], said["generation"])
            for table in TABLES:
                found = np.full((ROWS, WIDTH), np.nan, np.float32)
                for ids, rows, _ in store.export(table):
                    found[ids] = rows
                assert np.array_equal(found, save.values(table)), f"{checkpoint.folder}: {table} is taken over wrongly"
        finally:
            store.close()


class Linked(OfRun):
    """Rows of which a third changes from save to save; older checkpoints go, and the run ends and goes on."""

    def begin(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)

    def act(self, folder: Path) -> None:
        self.book = LinkedBook(folder)
        self.do(self.book)

    def act_on(self, folder: Path, ranks: Ranks, mark: Mark) -> None:
        self.do(LinkedBook(folder, ranks, mark))

    def do(self, book: Book) -> None:
        assert isinstance(book, LinkedBook)
        try:
            book.save(1)
            for step in range(2, 6):
                book.save(step, step - 1)
                book.prune(2)
            book.mark(5)
        finally:
            book.end()
        book.save(6)  # of a run that was begun anew
        book.prune(1)
        book.end()

    def judge_cut(self, folder: Path, marks: Sequence[str]) -> list[str]:
        self.book = LinkedBook(folder)
        for text in marks:
            self.book.follow(text)
        return self.judge(folder, whole=False)

    def judge(self, folder: Path, *, whole: bool) -> list[str]:
        try:
            return super().judge(folder, whole=whole)
        finally:
            self.book.end()
