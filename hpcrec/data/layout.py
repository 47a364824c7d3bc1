"""What a data set file looks like: names, types, chunk sizes, and the columns that a read returns.

Shared by the writer and the reader; touches no file itself. `docs/data.md` is the same layout in words.

Legend: ``N`` samples of a file, ``S`` samples of a read, ``K`` ids, ``L`` labels.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from hpcrec.types import Floats, Ints

SCHEMA_VERSION = 1
INDEX_SUFFIX = ".index.json"
VOCABULARY = "vocabulary.h5"  # beside data sets: the values of the ids, no data set itself

# Root attributes that mean something to the reader; every other attribute is the data set's own.
VERSION_ATTRIBUTE = "schema_version"
NAMES_ATTRIBUTE = "feature_names"
CARDINALITIES_ATTRIBUTE = "cardinalities"
SOURCE_ATTRIBUTE = "source_sha256"
ATTAINABLE_ATTRIBUTE = "attainable_auc"
CONVENTIONS_ATTRIBUTE = "conventions"
LABELS_ATTRIBUTE = "label_names"  # one a label, in the order of /label
# Attribute of each dataset: CRC-32 of its values (`checksum`); for offsets of their differences, so that the checksums
# of files that follow each other can be joined.
CHECKSUM_ATTRIBUTE = "crc32"

# Samples (or ids) of one HDF5 storage chunk. 16384 int32 are 64 kB before compression: read whole in 0.1 ms, and
# several fit into HDF5's chunk cache.
CHUNK_SAMPLES = 1 << 14
# How a column may be compressed. None, by default: inflating gzip takes 8 times as long as reading from the page cache
# (16 against 2 ns an id), in every epoch and on every dense rank, and gains half of the size. gzip 1 with shuffle is in
# every HDF5 build and packs tighter than lzf.
# Fletcher-32 lets a read of a damaged chunk fail; gzip alone would not notice in a chunk that it could not shrink.
COMPRESSIONS: dict[str, dict[str, Any]] = {
    "none": {"fletcher32": True},
    "gzip": {"compression": "gzip", "compression_opts": 1, "shuffle": True, "fletcher32": True},
}
# HDF5 1.10's file format, where what is not data has checksums too: headers, attributes, the tables of chunks. In the
# older one a flipped byte there can lose a chunk, whose values are then read as zeros.
FILE_FORMAT = ("v110", "v110")

# Optional columns of one number a sample, with their types on disk.
OPTIONAL_COLUMNS: dict[str, DTypeLike] = {"weight": np.float32, "group": np.int64, "time": np.int64}


@dataclass(frozen=True)
class Column:
    """Ids of one feature for S samples.

    Attributes
    ----------
    ids : int64 [K]
    offsets : int64 [S + 1] or None
        Sample ``i`` has ``ids[offsets[i]:offsets[i + 1]]``; None where each sample has exactly one id (K = S).
    weights : float32 [K] or None
    """

    ids: Ints
    offsets: Ints | None = None
    weights: Floats | None = None


@dataclass(frozen=True)
class Columns:
    """S samples, column by column: what `Writer.append` takes and `DataSet.read` returns.

    Attributes
    ----------
    label : float32 [S] or [S, L]
    dense : float32 [S, n_dense]
    sparse : dict of str to Column
        By feature name.
    weight : float32 [S] or None
    group, time : int64 [S] or None
    joined : int64 or None
        Ids of all features in the order of `sparse`, where they lie one after the other: each column has a part of it.
    """

    label: Floats
    dense: Floats
    sparse: dict[str, Column] = field(default_factory=dict)
    weight: Floats | None = None
    group: Ints | None = None
    time: Ints | None = None
    joined: Ints | None = None

    @property
    def samples(self) -> int:
        """S."""
        return len(self.label)

    @property
    def n_bytes(self) -> int:
        """Memory that the arrays take."""
        arrays = [self.label, self.dense, self.weight, self.group, self.time]
        for column in self.sparse.values():
            arrays += [column.ids, column.offsets, column.weights]
        return sum(array.nbytes for array in arrays if array is not None)


def sparse_path(feature: str, part: str) -> str:
    """Path of a feature's ``ids``, ``offsets`` or ``weights`` in the file."""
    return f"/sparse/{feature}/{part}"


def id_type(cardinality: int) -> DTypeLike:
    """Type of ids on disk: int32 where they fit, which packs faster; they are int64 once read."""
    return np.int32 if 0 < cardinality <= 1 << 31 else np.int64
