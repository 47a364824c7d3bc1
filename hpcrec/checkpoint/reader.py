"""Checkpoints, read: the newest whole one, its rows in bounded memory, and whether they fit a model.

Knows arrays and files; does not know the model, the shard map or MPI. The format is docs/checkpoint.md, the writer
``checkpoint``.

Legend: ``U`` ids in a block, ``D`` its columns.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from hpcrec.checkpoint import files
from hpcrec.checkpoint.dense import (
    DenseState,
    Number,
    check_dense,
    dense_file,
    read_dense,
    read_snapshot,
    snapshot_file,
)
from hpcrec.checkpoint.parts import (
    TableBlock,
    check_kind,
    listed,
    part_facts,
    state_said,
)
from hpcrec.checkpoint.residuals import Unsent, file_name, parts_in, read_unsent
from hpcrec.checkpoint.stretch import BLOCK_ROWS, Newer, Stretch
from hpcrec.embedding.cover import cover_of, cover_of_range, said_of
from hpcrec.errors import CheckpointError
from hpcrec.types import Floats, Ints


class Checkpoint:
    """A whole checkpoint, for reading.

    Attributes
    ----------
    folder : Path
    step : int
        Steps done.
    state : dict
        What ``write_state`` was given, and ``step``.
    base : Checkpoint or None
        The one that has the rows that this one has not.
    nonfinite : tuple of str
        Files, those of the base included, that hold weights or optimizer state that are not finite.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        manifest = files.read_manifest(self.folder)
        self.step = int(manifest["step"])
        self.state = files.read_state(self.folder)
        self._parts: dict[str, list[Path]] = {}
        self._files = frozenset(manifest["files"])
        self._residuals = parts_in(manifest["files"])
        base = files.base_of(self.folder, manifest)
        self.base = None if base is None else Checkpoint(base)
        own = tuple(str(self.folder / name) for name in files.nonfinite_files(manifest))
        self.nonfinite: tuple[str, ...] = own + (() if self.base is None else self.base.nonfinite)
        self._newer = Newer()
        for name in manifest["files"]:
            table, slash, _ = name.rpartition("/")
            if slash and not files.is_folder_of_links(table):
                self._parts.setdefault(files.unquoted(table), []).append(self.folder / name)

    @property
    def tables(self) -> tuple[str, ...]:
        """Tables in it."""
        return tuple(sorted(self._parts))

    def dense(self, group: int = 0) -> DenseState:
        """Dense parameters of a group of dense ranks, and their optimizer state.

        Raises
        ------
        CheckpointError
            It has no such part.
        """
        name = dense_file(group)
        if name not in self._files:
            raise CheckpointError(f"{self.folder}: has no {name}, so it cannot start dense parameters.")
        return read_dense(self.folder / name)

    def snapshot(self, group: int) -> dict[str, Floats | Number] | None:
        """What the other groups had of the parameters and buffers of a group; None where it says nothing of them."""
        name = snapshot_file(group)
        return read_snapshot(self.folder / name) if name in self._files else None

    @property
    def residual_ranks(self) -> int:
        """Dense ranks that had gradients unsent; 0 where it says nothing of them."""
        return len(self._residuals)

    def unsent(self, part: int) -> Unsent:
        """What dense rank ``part`` of ``residual_ranks`` had unsent.

        Raises
        ------
        CheckpointError
            The files are not those of so many ranks, each once.
        """
        name = file_name(self._residuals[part])
        return read_unsent(self.folder / name, part=part, ranks=len(self._residuals))

    def table_parts(self, table: str) -> Iterator[TableBlock]:
        """Every row of a table, block by block, in bounded memory.

        Raises
        ------
        CheckpointError
            No such table.
        """
        for stretch in self.stretches(table):
            block = self.block(stretch)
            if stretch.piece is None or len(block.ids):  # pages may have rows of other tables alone
                yield block

    def whole_table(self, table: str, rows: int, width: int) -> Iterator[TableBlock]:
        """The same of a table that is not dynamic, of this shape.

        Raises
        ------
        CheckpointError
            At the end: some of its ids and columns are there twice, and others are not.
        """
        cover = 0
        for block in self.table_parts(table):
            cover += cover_of(block.ids, block.columns)
            yield block
        if (cover - cover_of_range(0, rows, width)) % (1 << 64):
            raise CheckpointError(said_of(self.folder, table))

    def stretches(self, table: str, rows: int | None = None) -> list[Stretch]:
        """What a table's blocks are to be read from, in order, of so many rows; those of the base last.

        Raises
        ------
        CheckpointError
            No such table.
        """
        step, found = rows or BLOCK_ROWS, list[Stretch]()
        for path in self._paths(table):
            facts = part_facts(path)
            if facts["linked"] is not None:
                found += [Stretch(path, p.start, p.stop, piece=p) for p in self._newer.linked.pieces(path, step)]
                continue
            n_ids = facts["n_ids"]
            found += [Stretch(path, at, min(at + step, n_ids)) for at in range(0, n_ids, step)]
        base = self.holder(table)
        if base is self:
            return found
        self._check_alike(table, base)
        return found + [
            replace(older, newer=self.folder / older.path.relative_to(base.folder))
            for older in base.stretches(table, step)
        ]

    def _check_alike(self, table: str, base: "Checkpoint") -> None:
        """Whether the parts are cut as those of the base."""
        mine, others = ({path.name: _columns(path) for path in of.part_paths(table)} for of in (self, base))
        if mine != others:
            name = min(mine.items() ^ others.items())[0]
            raise CheckpointError(
                f"{self.folder}: {name} of table {table!r} is not as in {base.folder}, which it needs: parts and their "
                "columns are the same there; see docs/checkpoint.md."
            )

    def block(self, stretch: Stretch) -> TableBlock:
        """The block of a stretch.

        Raises
        ------
        CheckpointError
            The file is not as it should be.
        """
        return self._newer.block(stretch)

    def ids(self, stretch: Stretch) -> Ints:
        """The ids of ``block``."""
        return self._newer.ids(stretch)

    def linked(self, table: str) -> bool:
        """Whether rows of a table are links to a store's files."""
        return any(part_facts(path)["linked"] is not None for path in self._paths(table))

    def wrong_links(self, path: Path) -> Iterator[str]:
        """All that is wrong with the files in which a part's rows are."""
        return self._newer.linked.verify(path)

    def holder(self, table: str) -> "Checkpoint":
        """Whose parts together have each row of a table once: the base, or this one."""
        dynamic = any(part_facts(path)["dynamic"] for path in self._paths(table))
        return self if self.base is None or dynamic else self.base

    def part_paths(self, table: str) -> tuple[Path, ...]:
        """Files of a table's parts, always in the same order.

        Raises
        ------
        CheckpointError
            No such table.
        """
        return tuple(self._paths(table))

    def without_states(self, table: str) -> bool:
        """Whether no part of a table has optimizer states: enough to read it, not to train on.

        Raises
        ------
        CheckpointError
            No such table.
        """
        return not any(part_facts(path)["states"] for path in self.holder(table).part_paths(table))

    def check_table(
        self,
        table: str,
        *,
        rows: int,
        width: int,
        states: Mapping[str, tuple[int, ...]],
        dynamic: bool = False,
        hashed: bool = False,
    ) -> None:
        """Holds a table of the checkpoint to what a model wants of it.

        Parameters
        ----------
        rows, width : int
            Shape of the model's table.
        states : mapping of str to tuple of int
            Optimizer states that it keeps, by name, and their shapes, of which only the number of dimensions counts.
        dynamic : bool
            Whether the model's table gives rows to ids as they come: it takes any ids, those of a declared table too.
        hashed : bool
            Whether its row numbers are hashes of ids.

        Raises
        ------
        CheckpointError
            The table is missing, has another shape or other states, or its parts are not all of it; or its row
            numbers mean something else: see ``check_kind``.
        """
        wanted = {state_said(name, len(shape)) for name, shape in states.items()}
        covered, declared = 0, rows
        for path in self._paths(table):
            check_kind(path, table, rows=rows, dynamic=dynamic, hashed=hashed)
            found = part_facts(path)
            if dynamic:
                declared = found["rows"]
            for name, ours in (("rows", declared), ("width", width)):
                if found[name] != ours:
                    raise CheckpointError(
                        f"{path}: table {table!r} has {name} {found[name]}, the model's has {ours}. Set "
                        f"{'model.width' if name == 'width' else f'embedding.tables.{table}.rows'} = {found[name]}, or "
                        "start anew in another run.folder, or with checkpoint.resume = 'never'."
                    )
            if found["n_ids"] and found["states"] != wanted:
                raise CheckpointError(
                    f"{path}: table {table!r} has optimizer states {listed(found['states'])}; the model's optimizer "
                    f"keeps {listed(wanted)}. Set embedding.optimizer.name (or that of the table) to the one that the "
                    "checkpoint was trained with."
                )
            covered += found["n_ids"] * (found["column_stop"] - found["column_start"])
        if self.base is not None and not found["dynamic"]:
            self.base.check_table(table, rows=rows, width=width, states=states, dynamic=dynamic, hashed=hashed)
        elif covered != declared * width and not found["dynamic"]:
            raise CheckpointError(
                f"{self.folder}: the parts of table {table!r} hold {covered} values, the table has "
                f"{declared} x {width} = {declared * width}. Every id and column must be in exactly one part; see "
                "docs/checkpoint.md."
            )

    def check_tables(self, names: Iterable[str], others: Iterable[str] = ()) -> None:
        """Holds the set of tables to a model's; it may have ``others`` besides.

        Raises
        ------
        CheckpointError
            One that only the model or only the checkpoint has.
        """
        names = set(names)
        for name in sorted(names):
            self._paths(name)
        if left := sorted(set(self._parts) - names - set(others)):
            raise CheckpointError(
                f"{self.folder}: has table {left[0]!r}, which the model has not. The model has: {listed(names)}. "
                "Use the data.features, embedding.share and model that the checkpoint was trained with."
            )

    def check_dense(
        self,
        trained: Mapping[str, tuple[int, ...]],
        others: Mapping[str, tuple[int, ...]],
        *,
        some: bool = False,
        group: int = 0,
    ) -> None:
        """Holds the dense parameters of a group to a model's, by name and shape; see ``dense``."""
        check_dense(self.folder, self.dense(group), trained, others, some=some)

    def _paths(self, table: str) -> list[Path]:
        if table not in self._parts:
            raise CheckpointError(
                f"{self.folder}: has no table {table!r}. It has: {listed(self._parts)}. Use the data.features, "
                "embedding.share and model that the checkpoint was trained with."
            )
        return self._parts[table]


def _columns(path: Path) -> tuple[int, int]:
    facts = part_facts(path)
    return facts["column_start"], facts["column_stop"]
