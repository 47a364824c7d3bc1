"""From values as they stood in a source to what a model reads, by what a conversion left in its data set's folder.

``prepare.json`` has the column map, ``vocabulary.h5`` the values of each vocabulary. Knows no model.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpcrec import toml
from hpcrec.again import is_there, read_again
from hpcrec.data.gather import join
from hpcrec.data.layout import Column, Columns
from hpcrec.errors import ConfigError, DataError
from hpcrec.kernels.text import Words
from hpcrec.preparation import frames
from hpcrec.preparation.blocks import Block, Reader
from hpcrec.preparation.lines import Digest
from hpcrec.preparation.numbering import Numbering
from hpcrec.preparation.pieces import cut
from hpcrec.preparation.table import Maker, Problems, numberings
from hpcrec.preparation.tablemap import TableMap, checked_map
from hpcrec.preparation.vocabulary import PublishedVocabulary
from hpcrec.types import Floats


class Source:
    """How a data set's inputs were made.

    Parameters
    ----------
    folder : Path
        Of the data set.

    Raises
    ------
    DataError
        It was not made from a table, or what says how is not there or not what ``hpcrec prepare`` writes.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / "prepare.json"
        if not is_there(path):
            raise DataError(
                f"{folder}: has no prepare.json, so how its values became ids is not known. Give ids by feature, or "
                "the folder that 'hpcrec prepare table' wrote."
            )
        try:
            said = json.loads(read_again(path, path.read_bytes))["identity"]["table"]
            table = checked_map(toml.plain(said), str(path))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataError(f"{path}: not what 'hpcrec prepare' writes ({error}). Prepare the data again.") from error
        self._table = replace(table, weight=None, group=None, time=None, time_format=None)
        self._maker = Maker(self._table, numberings(table, _vocabularies(folder, table)))
        self.features = self._maker.features

    @property
    def labels(self) -> tuple[str, ...]:
        """Their names."""
        return self._table.labels

    @property
    def n_dense(self) -> int:
        """Dense inputs of a sample."""
        return len(self._table.dense)

    @property
    def jagged(self) -> tuple[str, ...]:
        """Features with any number of ids a sample."""
        return self._table.jagged

    def rows(
        self, path: Path, asked: Sequence[str], digest: Digest
    ) -> Iterator[tuple[Block, Floats, dict[str, Column]]]:
        """Blocks of a file's rows, with what a model reads of them; of a block these columns are there too.

        Raises
        ------
        ConfigError, DataError
            As ``inputs``.
        """
        there = Reader(replace(self._table, labels=()), [path]).columns_of(path)
        if absent := [name for name in asked if name not in there]:
            raise ConfigError(
                f"predict: --columns has {absent[0]!r}; {path} has {', '.join(there)}. Name some of these, or leave "
                "--columns out."
            )
        reader, before = Reader(replace(self._table, labels=tuple(asked)), [path]), 0
        for piece in cut([path]):
            for span in piece.spans:
                for block in reader.blocks(span, digest):
                    problems = Problems({row: ("", found) for row, found in block.wrong.items()})
                    dense, sparse = self._maker.inputs(block, problems)
                    _refuse(problems, f"{path}", before)
                    before += block.n
                    yield block, dense, sparse

    def inputs(self, frame: Any) -> Columns:
        """What a model reads of a frame's rows; labels are not read, and are zero.

        Raises
        ------
        ConfigError
            A column is not there.
        DataError
            A row's value is not what the map allows: which, and what is.
        """
        read = replace(self._table, labels=())
        parts = []
        for block in frames.blocks(frame, read):
            problems = Problems()
            dense, sparse = self._maker.inputs(block, problems)
            _refuse(problems, "the frame", block.first)
            parts.append(Columns(np.zeros(block.n, np.float32), dense, sparse))
        return join(parts)


def _refuse(problems: Problems, where: str, before: int) -> None:
    """Names the first row that is wrong, of so many before the block."""
    if problems.found:
        row = min(problems.found)
        column, reason = problems.found[row]
        at = f", column {column}" if column else ""
        raise DataError(f"{where}, row {before + row + 1}{at}: {reason}. Mend the row.")


def _vocabularies(folder: Path, table: TableMap) -> dict[str, Numbering]:
    if not table.counted:
        return {}
    path = folder / "vocabulary.h5"
    try:
        with h5py.File(path) as file:
            return {name: PublishedVocabulary(_words(file[name][()])) for name in table.counted}
    except (OSError, KeyError) as error:
        raise DataError(
            f"{path}: has not the vocabularies of {', '.join(table.counted)} ({error}). Prepare the data again."
        ) from error


def _words(values: Any) -> Words:
    """As they were counted: integers as the same 64 bits."""
    words: Words = values.view(np.uint64) if values.dtype == np.int64 else values.astype(np.uint64)
    return words
