"""Keys that messages, help texts and documents name are keys that there are."""

import ast
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from hpcrec.config import Config
from hpcrec.toml.schema import dataclass_in, without_none

ROOT = Path(__file__).parents[2]
SECTIONS = [field.name for field in dataclasses.fields(Config)]
# "dense.optimizer.lr"; "{}" stands for what an f-string puts in.
NAMED = re.compile(rf"(?<![\w./{{}}-])(?:{'|'.join(SECTIONS)})(?:\.(?:[a-z][a-z0-9_]*|\{{\}}))+(?![\w(/])")
ENDINGS = ("h5", "index", "json", "toml", "gz", "txt", "md", "safetensors", "pt2")  # of files, which are no keys
# What documents say that looks like a key and is none.
OTHERS = {"topology.reduce": "a figure of summary.json", "dense.price": "a section of a map of columns"}
# Documents of other names than keys.
OF_OTHERS = {
    "architecture.md": "methods of stores",
    "mistakes.md": "keys as users misspell them",
    "python.md": "attributes of runs",
    "results.md": "names of measurements",
}


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
    return [name for name in NAMED.findall(text) if name.split(".")[1] not in ENDINGS]


def test_a_key_that_there_is_not_is_found() -> None:
    assert named_in("set dense.options, or embedding.tables.{}.rows, not train.h5") == [
        "dense.options",
        "embedding.tables.{}.rows",
    ]
    for name in ("dense.optimizer", "model.options.towers", "embedding.tables.{}.dynamic.capacity", "train.steps"):
        assert is_key(name)
    for name in ("dense.options", "embedding.tables.{}.row", "train.step", "train.steps.more"):
        assert not is_key(name)


def test_messages_name_keys_that_there_are() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted((ROOT / "hpcrec").rglob("*.py"))
        for line, text in texts(path)
        for name in named_in(text)
        if not is_key(name)
    ]
    assert not found


def test_documents_name_keys_that_there_are() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
        if path.name not in OF_OTHERS
        for line, text in enumerate(path.read_text().splitlines(), 1)
        for name in named_in(text)
        if not is_key(name) and name not in OTHERS
    ]
    assert not found
