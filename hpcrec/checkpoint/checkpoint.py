"""Checkpoints: written by any number of ranks, read by any number of others. docs/checkpoint.md is the format.

A table is any number of parts, each some ids and some columns of it, with every optimizer state by its plain name; a
reader takes what it holds out of all of them. Dense parameters and their state go by parameter name. Weights and
optimizer state are looked at on their way to a file: the manifest says which files hold some that are not finite. Knows
arrays and files; does not know the model, the shard map or MPI (``Ranks`` is what it takes of a communicator). No
pickle.

The writer is here, the reader in ``reader``, folders and manifests in ``files``; all that others
need can be imported from here. Legend: ``U`` ids in a part or block, ``D`` its columns.
"""

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from hpcrec.checkpoint import files
from hpcrec.checkpoint.dense import DenseState, dense_file, snapshot_file, write_dense, write_snapshot
from hpcrec.checkpoint.files import (
    mark_best,
    prune,
    read_best,
    remove_leftovers,
    steps_in,
    unmark_best,
)
from hpcrec.checkpoint.find import find_checkpoint
from hpcrec.checkpoint.parts import Admission, Block, TableBlock, write_admission, write_part
from hpcrec.checkpoint.reader import Checkpoint
from hpcrec.checkpoint.residuals import Unsent, file_name, write_unsent
from hpcrec.comm.ranks import Alone, Ranks
from hpcrec.data import checksum
from hpcrec.data.files import remove_folder, sync, synced
from hpcrec.data.hdf5_out import Output
from hpcrec.dense.finite import all_finite
from hpcrec.disk.links import copied, linked
from hpcrec.embedding.linked import LinkedRows
from hpcrec.errors import CheckpointError, HpcrecError
from hpcrec.training.claim import UNCLAIMED, Claim, Unclaimed
from hpcrec.training.ranks import on_root
from hpcrec.types import Ints

__all__ = [
    "Checkpoint",
    "CheckpointWriter",
    "DenseState",
    "Ranks",
    "TableBlock",
    "find_checkpoint",
    "mark_best",
    "prune",
    "read_best",
    "remove_leftovers",
    "steps_in",
    "unmark_best",
]


class CheckpointWriter:
    """Writes one checkpoint; all ranks together.

    Every rank makes one, calls ``begin``, writes what it holds, and calls ``commit``; between these nothing is
    collective. A write that fails (a full disk) is remembered, and ``commit`` raises it on every rank.

    Parameters
    ----------
    folder : Path
        The run's folder.
    step : int
        Steps done.
    ranks : Ranks, optional
        Collectives of the ranks that write; one rank by default.
    base : int, optional
        Step of a checkpoint of the same run with all rows: of declared tables this one has those that changed since,
        in parts that are cut alike.
    comes_on : callable, optional
        Called again and again while this rank writes its files, for whoever looks whether this hangs. What is done
        for all ranks says so by the ranks that wait for it.
    claim : Claim, optional
        Of the run, where others may write its folder: looked at before anything is renamed or removed.

    Attributes
    ----------
    hidden : Path
        Where files are until they are a checkpoint; made by ``begin``.
    copied_bytes : int
        Of a store's files that could not be linked.
    """

    def __init__(
        self,
        folder: Path,
        step: int,
        ranks: Ranks | None = None,
        base: int | None = None,
        comes_on: Callable[[], None] = lambda: None,
        claim: Claim | Unclaimed = UNCLAIMED,
    ) -> None:
        self.folder = Path(folder)
        self.step = step
        self._ranks = ranks or Alone()
        self._base = base
        self._comes_on = comes_on
        self._claim = claim
        self.hidden = files.hidden_folder(self.folder, step, token=claim.token)
        self._written: dict[str, dict[str, Any]] = {}
        self._segments: dict[str, dict[str, Any]] = {}
        self.copied_bytes = 0
        self._failure: str | None = None
        self._finite = True  # what the file under way has been given so far

    def begin(self) -> None:
        """Makes the hidden folder, and removes what a killed run left; collective.

        Raises
        ------
        CheckpointError
            The folder cannot be made; on every rank.
        """
        on_root(self._ranks, lambda: files.make_hidden(self.folder, self.step, self._claim, self._ranks.comes_on))

    @property
    def failed(self) -> bool:
        """Whether something could not be written, which ``commit`` will raise."""
        return self._failure is not None

    def write_table_part(
        self,
        table: str,
        part: int,
        blocks: Iterable[Block],
        *,
        n_ids: int,
        rows: int,
        width: int,
        columns: tuple[int, int],
        dynamic: bool = False,
        hashed: bool | None = False,
        admission: Admission | None = None,
    ) -> None:
        """Writes one part of a table, block by block.

        Parameters
        ----------
        part : int
            Its number, which no other part of the table has.
        blocks : iterable of (ids [U], rows [U, D], states by name [U] or [U, D])
            As ``Store.export`` gives them.
        n_ids : int
            In all of them.
        rows, width : int
            Shape of the whole table; the most rows of a dynamic one.
        columns : (int, int)
            Columns of the whole table that this part has.
        dynamic : bool
            Whether ids have their rows as they came.
        hashed : bool
            Whether row numbers are hashes of ids; None: not known.
        admission : Admission, optional
            What is known of them, in the order of the blocks' ids; of one of the tables that have the same ids.
        """
        facts = {"table": table, "rows": rows, "width": width, "column_start": columns[0], "column_stop": columns[1]}
        facts |= {"dynamic": True} if dynamic else {} if hashed is None else {"hashed": hashed}

        def describe(file: h5py.File) -> None:
            file.attrs.update(facts)
            if admission is not None:
                write_admission(file, admission)

        def write(path: Path) -> tuple[int, int]:
            path.parent.mkdir(exist_ok=True)
            return write_part(path, describe, map(self._noted, blocks), n_ids)  # a map keeps no block

        self._write(f"{files.quoted(table)}/part-{part}.h5", write)

    def write_links(self, name: str, rows: LinkedRows) -> None:
        """Makes links to a store's files in a folder of this name, before the parts that they are of.

        Where these are different file systems, what an earlier checkpoint of the run has is linked from there, and the
        rest copied.
        """
        if self._failure is not None:
            return
        with self._failing(self.hidden / name) as folder:
            rows.settle()
            folder.mkdir()
            rows.linked_in(files.checkpoints_in(self.folder), name)
            data = rows.list_file.read_bytes()
            n_bytes, crc32 = _write_bytes(folder / rows.list_file.name, data)
            self._written[f"{name}/{rows.list_file.name}"] = files.entry_of(n_bytes, crc32)
            earlier: dict[tuple[str, int, int], Path] | None = None
            for source in rows.segments:
                self._comes_on()
                entry = {"bytes": source.stat().st_size, "seal": rows.seal(source)}
                target = folder / source.name
                self._segments[f"{name}/{source.name}"] = entry
                if linked(source, target):
                    continue
                if earlier is None:
                    found = files.linked_before(self.folder, name)
                    earlier = {(path.name, of["bytes"], of["seal"]): path for path, of in found}
                same = earlier.get((source.name, entry["bytes"], entry["seal"]))
                if same is None or files.segment_damage(same, entry) or not linked(same, target):
                    self.copied_bytes += copied(source, target, self._comes_on)

    def write_linked_part(
        self,
        table: str,
        part: int,
        facts: Mapping[str, Any],
        *,
        rows: int,
        width: int,
        columns: tuple[int, int],
        dynamic: bool = False,
        hashed: bool | None = False,
        finite: bool = True,
        held: tuple[Ints, Ints] | None = None,
        admission: Admission | None = None,
    ) -> None:
        """Writes what is to be known of a part whose rows are links, see ``write_table_part``.

        Parameters
        ----------
        facts : dict
            Where they are, and what records mean: ``embedding.linked``, and ``folder`` and ``generation``.
        finite : bool
            Whether all their values are.
        held : (int64 [U], int64 [U]), optional
            Of a dynamic table: ids, and the rows of the part that they have.
        """
        said = {"table": table, "rows": rows, "width": width, "column_start": columns[0], "column_stop": columns[1]}
        said |= {"dynamic": True} if dynamic else {} if hashed is None else {"hashed": hashed}

        def fill(file: h5py.File) -> None:
            file.attrs.update({**said, "linked": json.dumps(facts)})
            if held is not None:
                file["ids"], file["linked_rows"] = held
            if admission is not None:
                write_admission(file, admission)

        name = f"{files.quoted(table)}/part-{part}.h5"
        if self._failure is None:
            with self._failing((self.hidden / name).parent) as folder:
                folder.mkdir(exist_ok=True)
        self._write_file(name, fill, [] if finite else [np.nan])

    def write_dense(
        self,
        parameters: Mapping[str, Any],
        optimizer: Mapping[str, Mapping[str, Any]],
        extra: Mapping[str, Any] | None = None,
        *,
        group: int = 0,
    ) -> None:
        """Writes the dense part of a group of dense ranks; on one rank. Values are NumPy arrays, tensors or numbers."""
        state = DenseState(
            parameters=dict(parameters),
            optimizer={name: dict(of) for name, of in optimizer.items()},
            extra=dict(extra or {}),
        )
        looked_at = [*parameters.values(), *(value for of in optimizer.values() for value in of.values())]
        self._write_file(dense_file(group), lambda file: write_dense(file, state), looked_at)

    def write_snapshot(self, group: int, values: Mapping[str, Any]) -> None:
        """Writes what the other groups of dense ranks have of a group; on one rank."""
        self._write_file(snapshot_file(group), lambda file: write_snapshot(file, values))

    def write_residuals(self, unsent: Unsent, *, part: int, ranks: int) -> None:
        """Writes the dense gradients that dense rank ``part`` of ``ranks`` has not sent; on each of these."""
        left = [piece.left for pieces in (unsent.residuals.first, unsent.residuals.second) for piece in pieces.values()]
        self._write_file(file_name(part), lambda file: write_unsent(file, unsent, part=part, ranks=ranks), left)

    def write_state(self, state: Mapping[str, Any]) -> None:
        """Writes the position of the run and what else JSON can hold; on one rank, always. Adds ``step``."""
        text = json.dumps({**state, "step": self.step}, indent=1, default=_as_json)
        self._write(files.STATE, lambda path: _write_bytes(path, f"{text}\n".encode()))

    def commit(self, ranks: Ranks | None = None) -> Path:
        """Makes what was written a checkpoint, whole and on disk; collective. Returns its folder.

        Parameters
        ----------
        ranks : Ranks, optional
            Other collectives of the same ranks, for another thread than that of ``begin``.

        Raises
        ------
        CheckpointError
            A rank could not write its files; on every rank. Earlier checkpoints are untouched.
        """
        ranks = ranks or self._ranks
        self._sync_names()
        parts = ranks.allgather((self._written, self._segments, self._failure))
        failure = next((f"rank {i}: {text}" for i, (*_, text) in enumerate(parts) if text), None)
        if failure is not None:
            on_root(ranks, self._claim.check)  # who took the run over has removed the files: that is what is to be told
            if ranks.rank == 0:
                with contextlib.suppress(OSError):  # what is left is for the next start to remove
                    remove_folder(self.hidden, ranks.comes_on)
            raise CheckpointError(f"the checkpoint of step {self.step} could not be written: {failure}")
        everything: dict[str, dict[str, Any]] = {}
        segments: dict[str, dict[str, Any]] = {}
        for written, links, _ in parts:
            twice = sorted(set(written) & set(everything))
            assert not twice, f"two ranks wrote {twice}"
            everything.update(written)
            segments.update(links)
        assert files.STATE in everything, "write_state() was not called on any rank"

        def finish() -> None:
            self._claim.check()
            base = None if self._base is None else files.named_base(self.folder, self._base)
            files.write_manifest(self.hidden, self.step, everything, base, segments)
            files.publish(self.folder, self.step, self._claim, ranks.comes_on)

        on_root(ranks, finish)
        return files.step_folder(self.folder, self.step)

    def prune(self, keep: int, protect: Iterable[int] = ()) -> None:
        """Removes all but the newest ``keep`` checkpoints of the run and those to protect; collective."""
        on_root(self._ranks, lambda: files.prune(self.folder, keep, protect, self._claim, self._ranks.comes_on))

    def _write_file(self, name: str, fill: Callable[[h5py.File], None], looked_at: Iterable[Any] = ()) -> None:
        """Writes an HDF5 file in one go; of what is ``looked_at`` it is noted where it is not finite."""

        def write(path: Path) -> tuple[int, int]:
            with Output(path, remembered=True) as output:
                fill(output.file)
            self._finite &= all(map(_is_finite, looked_at))
            return output.given.n_bytes, output.given.crc32(0, output.given.n_bytes)

        self._write(name, write)

    def _write(self, name: str, write: Callable[[Path], tuple[int, int]]) -> None:
        """Writes a file; ``write`` returns its bytes and CRC-32, of what it gave, and has brought them to disk."""
        if self._failure is not None:
            return
        self._finite = True
        with self._failing(self.hidden / name) as path:
            self._comes_on()
            n_bytes, crc32 = write(path)
            self._written[name] = files.entry_of(n_bytes, crc32, finite=self._finite)
        self._comes_on()

    @contextlib.contextmanager
    def _failing(self, path: Path) -> Iterator[Path]:
        """An error inside is of this path; whatever it is, the other ranks learn of it in ``commit``."""
        try:
            yield path
        except Exception as error:
            foreseen = isinstance(error, OSError | HpcrecError)
            self._failure = f"{path}: {error}" if foreseen else f"{path}: {type(error).__name__}: {error}"

    def _sync_names(self) -> None:
        """Brings the names of this rank's files to disk: by its own host, which may be the only one to know them."""
        folders = {(self.hidden / name).parent for name in self._written}
        for folder in sorted(folders | {self.hidden} if folders else folders):
            if self._failure is None:
                with self._failing(folder):
                    sync(folder)
                self._comes_on()

    def _noted(self, block: Block) -> Block:
        self._comes_on()
        _, rows, states = block
        self._finite &= _is_finite(rows) and all(map(_is_finite, states.values()))
        return block


def _is_finite(values: Any) -> bool:
    """Of a number, an array or a tensor."""
    return all_finite(values.detach()) if isinstance(values, torch.Tensor) else bool(np.isfinite(values).all())


def _write_bytes(path: Path, data: bytes) -> tuple[int, int]:
    with synced(path) as file:
        file.write(data)
    return len(data), checksum.crc32(data)


def _as_json(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"a checkpoint's state cannot hold {value!r}: it is JSON, plus arrays, which are read as lists")
