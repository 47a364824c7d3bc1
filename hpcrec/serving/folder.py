"""What an export's folder holds, by name, and ``export.json``, which says what it means. See docs/checkpoint.md.

Knows files and JSON; knows no arrays.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hpcrec.data.files import write_text
from hpcrec.errors import CheckpointError

FORMAT = "hpcrec export"
VERSIONS = (1, 2)  # 2: something is done to vectors, which a reader of 1 would leave out
STEPS = ("keep", "tau", "rows", "vectors")  # what that is, of each input
EXPORT, MODEL = "export.json", "model.pt2"
SUFFIX = {"safetensors": ".safetensors", "hdf5": ".h5"}  # of a table's file, by the kind of embeddings
_ENTRIES = ("dtype", "labels", "dense_inputs", "features", "inputs", "tables", "files", "step")


def table_file(table: str, embeddings: str) -> str:
    """The file of a table, by its path in the folder."""
    return f"tables/{quote(table, safe=' @+-_.~').replace('.', '%2E', table.startswith('.'))}{SUFFIX[embeddings]}"


def fingerprint(path: Path) -> dict[str, Any]:
    """Size and checksum of a file."""
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def write_facts(folder: Path, facts: Mapping[str, Any]) -> None:
    """Writes ``export.json``, last of all files, with size and checksum of each of them."""
    there = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    files = {name: fingerprint(folder / name) for name in there}
    version = VERSIONS[any(step in lookup for lookup in facts["inputs"] for step in STEPS)]
    everything = {"format": FORMAT, "version": version, **facts, "files": files}
    write_text(folder / EXPORT, json.dumps(everything, indent=1) + "\n")


def read_facts(folder: Path) -> dict[str, Any]:
    """What ``export.json`` says.

    Raises
    ------
    CheckpointError
        It is not there, or is none; or a file that it lists is not there, or has another size.
    """
    path = folder / EXPORT
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        found = facts["format"], facts["version"]
        missing = [name for name in _ENTRIES if name not in facts]
        sizes = {str(name): int(entry["bytes"]) for name, entry in facts.get("files", {}).items()}
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}), so {folder} is no export.") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: is not of an export ({error!r}). See docs/checkpoint.md.") from error
    if found[0] != FORMAT or found[1] not in VERSIONS:
        raise CheckpointError(
            f"{path}: format {found[0]!r}, version {found[1]!r}. Allowed: {FORMAT!r}, version {VERSIONS[0]} or "
            f"{VERSIONS[1]}."
        )
    if missing:
        raise CheckpointError(f"{path}: has no {missing[0]!r}. See docs/checkpoint.md.")
    for name, n_bytes in sizes.items():
        there = (folder / name).stat().st_size if (folder / name).is_file() else None
        if there != n_bytes:
            what = "is missing" if there is None else f"has {there} bytes, {EXPORT} says {n_bytes}"
            raise CheckpointError(f"{folder / name}: {what}. Export the run again.")
    return dict(facts)


def damages(folder: Path) -> list[str]:
    """All that is wrong with the files of an export, checksums included."""
    try:
        facts = json.loads((folder / EXPORT).read_text(encoding="utf-8"))
        listed = {str(name): (int(entry["bytes"]), str(entry["sha256"])) for name, entry in facts["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return [f"{folder / EXPORT}: is not of an export ({error!r})"]
    found = []
    for name, (n_bytes, digest) in listed.items():
        path = folder / name
        if not path.is_file():
            found.append(f"{path} is missing")
        elif path.stat().st_size != n_bytes:
            found.append(f"{path} has {path.stat().st_size} bytes, {EXPORT} says {n_bytes}")
        elif fingerprint(path)["sha256"] != digest:
            found.append(f"{path} has another checksum than {EXPORT} says")
    return found
