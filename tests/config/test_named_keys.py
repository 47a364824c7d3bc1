"""Keys that messages, help texts and documents name are keys that there are."""

import ast
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from hpcrec.config import Config
from hpcrec.toml.schema import dataclass_in, without_none

ROOT = Path(__file__).parents[2]
SECTIONS = [field.name for field in dataclasses.fields(Config)]
# "dense.optimizer.lr"; "{}" stands for what an f-string puts in.
NAMED = re.compile(rf"(?<![\w./{{}}-])(?:{'|'.join(SECTIONS)})(?:\.(?:[a-z][a-z0-9_]*|\{{\}}))+(?![\w(/])")
# Not keys: files of a data set, and modules of hpcrec that share a section's name.
FILES = ("h5", "hdf5", "index", "parquet", "py", "tsv", "json", "toml", "csv")


def is_key(named: str, schema: Any = Config) -> bool:
    """Whether a dotted name leads to a key or a section. What is below a table of names, or an option, is anyone's."""
    first, _, rest = named.partition(".")
    hints = get_type_hints(schema, include_extras=True)
    if first == "{}":
        return True
    if first not in hints:
        return False
    annotation = without_none(hints[first])
    inner = dataclass_in(annotation)
    if get_origin(annotation) is dict:
        inner, (_, _, rest) = dataclass_in(get_args(annotation)[1]), rest.partition(".")
        if inner is None:
            return True
    return not rest or (inner is not None and is_key(rest, inner))


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of every string of a file that is no docstring and no text under a field."""
    tree = ast.parse(path.read_text())
    beside = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and not {id(node)} & (beside | inner):
            yield node.lineno, node.value


def named_in(text: str) -> list[str]:
    return [name for name in NAMED.findall(text) if name.split(".")[1] not in FILES]


def test_a_key_that_there_is_not_is_found() -> None:
    assert named_in("set dense.options, or embedding.tables.{}.rows, not train.h5") == [
        "dense.options",
        "embedding.tables.{}.rows",
    ]
    for name in ("dense.optimizer", "model.options.towers", "embedding.tables.{}.dynamic.capacity", "train.steps"):
        assert is_key(name)
    for name in ("dense.options", "embedding.tables.{}.row", "train.step", "train.steps.more"):
        assert not is_key(name)


@pytest.mark.parametrize("folder", sorted(path.name for path in (ROOT / "hpcrec").iterdir() if path.is_dir()))
def test_messages_name_keys_that_there_are(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted((ROOT / "hpcrec" / folder).rglob("*.py"))
        for line, text in texts(path)
        for name in named_in(text)
        if not is_key(name)
    ]
    assert not found
