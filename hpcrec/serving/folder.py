"""What an export's folder holds, by name, and ``export.json``, which says what it means. See docs/checkpoint.md.

An export may come from anyone: every entry of ``export.json`` that is used is checked here, and files have the names
that follow from the tables', never others that the file would like to have. Knows files and JSON; knows no arrays.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hpcrec.again import read_again
from hpcrec.data.carried import FOLDER, MAP, VOCABULARY
from hpcrec.data.files import write_text
from hpcrec.errors import CheckpointError, UnreadableError
from hpcrec.serving.entries import Entry, read_entries, shown
from hpcrec.types import POOLINGS

FORMAT = "hpcrec export"
VERSION = 3
_PICKLED = (1, 2)  # versions whose dense part is model.pt2, by which torch runs what is in the file
EXPORT, MODEL, WEIGHTS = "export.json", "model.json", "model.safetensors"
SUFFIX = {"safetensors": ".safetensors", "hdf5": ".h5"}  # of a table's file, by the kind of embeddings
_LONGEST_NAME = 255  # bytes, on Linux
WIDEST = 2**20  # dense inputs, columns of a table or labels, at most
KINDS = ("declared", "hashed", "dynamic")  # of tables
_USED = ("format", "version", "step", "dtype", "labels", "dense_inputs", "features", "inputs", "embeddings", "tables")
_SAID = ("run", "samples", "model", "autocast", "codec", "differences", "operators", "data", "versions")  # to readers


def table_file(table: str, embeddings: str) -> str:
    """The file of a table, by its path in the folder; a name that is too long for a file is told by its digest."""
    name, suffix = quote(table, safe=" @+-_.~").replace(".", "%2E", table.startswith(".")), SUFFIX[embeddings]
    if len(name) + len(suffix) > _LONGEST_NAME:
        name = f"{name[:100]}~{hashlib.sha256(table.encode()).hexdigest()}"
    return f"tables/{name}{suffix}"


def fingerprint(path: Path) -> dict[str, Any]:
    """Size and checksum of a file."""

    def read() -> dict[str, Any]:
        with path.open("rb") as file:
            return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}

    return read_again(path, read)


def write_facts(folder: Path, facts: Mapping[str, Any]) -> None:
    """Writes ``export.json``, last of all files, with size and checksum of each of them."""
    there = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    files = {name: fingerprint(folder / name) for name in there}
    everything = {"format": FORMAT, "version": VERSION, **facts, "files": files}
    write_text(folder / EXPORT, json.dumps(everything, indent=1) + "\n")


def read_facts(folder: Path) -> dict[str, Any]:
    """What ``export.json`` says.

    Raises
    ------
    CheckpointError
        It is not there, is none, or says what is not allowed; a file that it lists is not there or has another size; or
        the checksum of the dense part is another. Those of tables are not read here.
    UnreadableError
        They cannot be read just now.
    """
    facts = _checked(folder)
    for name, entry in facts["files"].items():
        problem = _damage(folder / name, entry, whole=name in (MODEL, WEIGHTS))
        if problem is not None:
            raise CheckpointError(f"{folder / name}: {problem}. Export the run again.")
    return facts


def damages(folder: Path) -> list[str]:
    """All that is wrong with the files of an export, checksums included.

    Raises
    ------
    UnreadableError
        One cannot be read just now, so nothing is known of it.
    """
    try:
        facts = _checked(folder)
    except CheckpointError as error:
        return [str(error)]
    found = {folder / name: _damage(folder / name, entry, whole=True) for name, entry in facts["files"].items()}
    return [f"{path} {problem}" for path, problem in found.items() if problem is not None]


def _damage(path: Path, entry: Mapping[str, Any], *, whole: bool) -> str | None:
    def look() -> str | None:
        there = path.stat().st_size if path.is_file() else None
        if there is None:
            return "is missing"
        if there != entry["bytes"]:
            return f"has {there} bytes, {EXPORT} says {entry['bytes']}"
        if whole and fingerprint(path)["sha256"] != entry["sha256"]:
            return f"has another checksum than {EXPORT} says"
        return None

    try:
        return read_again(path, look)
    except UnreadableError:
        raise
    except OSError as error:
        return f"cannot be read ({error.strerror})"


# ---- what export.json may say ----------------------------------------------------------------------------------------


def _checked(folder: Path) -> dict[str, Any]:
    top = read_entries(folder / EXPORT)
    found = top.named()
    for name, allowed in (("format", FORMAT), ("version", VERSION)):
        if name not in found:
            raise CheckpointError(f"{top.file}: has no {name!r}, so it is not of an export. Export the run again.")
        if name == "version" and found[name].value in _PICKLED:
            raise CheckpointError(
                f"{top.file}: version is {found[name].value}, whose dense part is a file of torch's that may run code. "
                f"Allowed: {VERSION}. Export the run again."
            )
        if type(found[name].value) is not type(allowed) or found[name].value != allowed:
            raise found[name].refused(shown(allowed))
    found = top.fields((*_USED, "files"), _SAID)
    found["step"].whole()
    found["labels"].whole(1, WIDEST)
    found["dense_inputs"].whole(0, WIDEST)
    found["dtype"].one_of(("float32", "float64"))
    features = [_feature(entry) for entry in found["features"].items()]
    weighted = dict(features)
    if not features or len(weighted) < len(features):
        raise found["features"].refused("one or more features, each by another name")
    embeddings = found["embeddings"].one_of(SUFFIX)
    widths = {name: _table(name, entry, embeddings) for name, entry in found["tables"].named().items()}
    read = {_input(entry, weighted, widths) for entry in found["inputs"].items()}
    if read != weighted.keys():
        raise found["inputs"].refused("inputs that read every feature")
    names = [MODEL, WEIGHTS, *(table_file(name, embeddings) for name in widths)]
    said = [f"{FOLDER}/{name}" for name in (MAP, VOCABULARY)]  # how values became ids, where that is known
    for entry in found["files"].fields(names, said).values():
        fields = entry.fields(("bytes", "sha256"))
        fields["bytes"].whole()
        fields["sha256"].text()
    return dict(top.value)


def _feature(entry: Entry) -> tuple[str, bool]:
    """Its name, and whether its ids have weights."""
    fields = entry.fields(("name", "cardinality", "weighted", "bag"))
    fields["cardinality"].whole()
    fields["bag"].flag()
    return fields["name"].text(), fields["weighted"].flag()


def _table(name: str, entry: Entry, embeddings: str) -> int:
    """Its width."""
    fields = entry.fields(("file", "rows", "width", "kind"), ("hash_seed",))
    kind = fields["kind"].one_of(KINDS)
    fields["file"].one_of((table_file(name, embeddings),))
    fields["rows"].whole(int(kind == "hashed"))
    if ("hash_seed" in fields) != (kind == "hashed"):
        raise entry.refused("hash_seed of a table of kind hashed, and of no other")
    if kind == "hashed":
        fields["hash_seed"].whole(-(2**63), 2**64 - 1)
    return fields["width"].whole(1, WIDEST)


def _input(entry: Entry, weighted: Mapping[str, bool], widths: Mapping[str, int]) -> str:
    """The feature that it reads."""
    fields = entry.fields(("feature", "table", "pooling"), ("keep", "tau", "rows", "vectors"))
    width = widths[fields["table"].one_of(widths)]
    feature = fields["feature"].one_of(weighted)
    fields["pooling"].one_of([p for p in POOLINGS if p != "max" or not weighted[feature]])
    if "keep" in fields:
        fields["keep"].whole(1, width)
    if "tau" in fields and not (type(tau := fields["tau"].value) in (int, float) and tau >= 0):
        raise fields["tau"].refused("a number that is not negative")
    for name in ("rows", "vectors"):
        if name in fields:
            fields[name].one_of(("bf16",))
    return feature
