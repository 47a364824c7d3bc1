"""``hpcrec.prepare``: a data set of files, or of a frame in memory, by the code of ``hpcrec prepare table``.

Knows maps and their keywords; starts no MPI.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from hpcrec import toml
from hpcrec.errors import ConfigError
from hpcrec.preparation import frames
from hpcrec.preparation.convert import Summary, parse_cut, prepare_table
from hpcrec.preparation.tablemap import TableMap, checked_map, load_map

SOURCE = "the map"
Columns = Mapping[str, Mapping[str, Any]] | Sequence[str]
_KEYS = frozenset(f.name for f in fields(TableMap)) - {"split"}  # which is a keyword of its own


def prepare(
    source: Any,
    out: Path | str,
    map: Path | str | Mapping[str, Any] | None = None,  # noqa: A002 - the option's name
    *,
    validation: Any = (),
    test: Any = (),
    split: str | None = None,
    seed: int = 0,
    max_bad: float = 0.0,
    compression: str = "none",
    restart: bool = False,
    progress: bool = False,
    labels: Sequence[str] | str | None = None,
    soft_labels: bool | None = None,
    label_from: float | None = None,
    label_words: Sequence[str] | None = None,
    delimiter: str | None = None,
    quotes: bool | None = None,
    header: bool | None = None,
    columns: Sequence[str] | None = None,
    empty: Sequence[str] | None = None,
    weight: str | None = None,
    group: str | None = None,
    group_value: str | None = None,
    time: str | None = None,
    time_format: str | None = None,
    time_unit: str | None = None,
    dense: Columns | None = None,
    sparse: Columns | None = None,
    **others: Any,
) -> Summary:
    """Makes a data set; the same call again, once it is finished, does nothing.

    Parameters
    ----------
    source : frame, path or sequence of paths
        A pandas, polars or pyarrow table, or anything that hands over Arrow's stream of columns
        (``__arrow_c_stream__``); or files of delimited text (plain or gzip), Parquet or Arrow, in the order given.
    out : Path or str
        Folder of the data set.
    map : path, or dict as of one, optional
        The TOML file that says what the columns are (docs/data.md).
    validation, test : as source, optional
        Where these parts have tables of their own: all of ``source`` is for training then, and there is no split.
        Vocabularies are those of training. Frames and files do not go together.
    split : str, optional
        By default what the map says, else ``order:0.8,0.1,0.1``. ``hash:0.8,0,0.2`` is at random by a hash with
        ``seed``, and so is ``group:0.8,0.1,0.1``, which keeps the map's groups together;
        ``time:2024-05-30,2024-06-02T12:00:00`` says when validation and test begin, by the map's time.
    seed : int
        Of the split, the map's too, where it is random.
    max_bad, compression, restart, progress
        As the options of ``hpcrec prepare table``.
    labels, dense, sparse and all others
        Keys of the map (docs/data.md), where there is no ``map``: ``labels=["click"], sparse={"item": {"ids":
        "vocabulary"}}``. For ``dense`` and ``sparse`` a list of names will do where nothing more is to be said.

    Returns
    -------
    Summary
        ``files`` by part, which ``hpcrec.train(data=...)`` takes; ``samples``, ``label_rate``, ``cardinalities``.

    Raises
    ------
    ConfigError
        The map is wrong or does not fit the source, or ``out`` holds another data set.
    DataError
        A source that cannot be read, or too many bad rows.
    """
    given_keys = {name: value for name, value in locals().items() if name in _KEYS and value is not None}
    table, out = _map(map, {**given_keys, **others}), Path(out)
    options: dict[str, Any] = {
        "split": parse_cut(split, seed) if split else None,
        "seed": seed,
        "max_bad": max_bad,
        "compression": compression,
        "restart": restart,
        "progress": progress,
    }
    parts = {"train": source, "validation": validation, "test": test}
    given = {name: part for name, part in parts.items() if name == "train" or not _is_none(part)}
    framed = [name for name, part in given.items() if frames.is_frame(part)]
    if not framed:
        files = {name: [part] if isinstance(part, str | Path) else _paths(part) for name, part in given.items()}
        return prepare_table(files.pop("train"), out, table, **{**files, **options})
    if len(framed) < len(given):
        raise ConfigError(f"prepare: {', '.join(framed)} is a frame, and another part is not. Give frames, or files.")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".frame-", dir=out) as folder:  # there is room for it where the result goes
        paths = {name: [Path(folder) / f"{name}.parquet"] for name in framed}
        records = {name: frames.write(given[name], paths[name][0], table) for name in framed}
        known_by = records["train"] if framed == ["train"] else records
        return prepare_table(paths.pop("train"), out, table, **{**paths, **options, "known_by": known_by})


def _is_none(part: Any) -> bool:
    return part is None or (isinstance(part, Sequence) and not len(part))


def _map(given: Path | str | Mapping[str, Any] | None, columns: Mapping[str, Any]) -> TableMap:
    if given is not None and columns:
        raise ConfigError(f"{', '.join(columns)}: goes with no map, and map is given. Give one of them.")
    if isinstance(given, str | Path):
        return load_map(Path(given))
    mapping = {**(columns if given is None else given)}
    for name in ("dense", "sparse"):
        if isinstance(named := mapping.get(name), list | tuple):
            mapping[name] = {column: {} for column in named}
    if isinstance(label := mapping.get("labels"), str):
        mapping["labels"] = [label]
    return checked_map(toml.plain(mapping), SOURCE)


def _paths(source: Any) -> Sequence[Path | str]:
    if isinstance(source, Sequence) and source and all(isinstance(path, str | Path) for path in source):
        return source
    raise ConfigError(
        f"prepare: is given a {type(source).__name__}. Allowed: a frame with __arrow_c_stream__ (pandas, polars, "
        "pyarrow), a path, or a list of paths."
    )
