"""Every key of a schema as Markdown: default, allowed values and the text under its field."""

import ast
import dataclasses
import inspect
import textwrap
from typing import Any, get_args, get_origin, get_type_hints

from hpcrec.toml.schema import Keys, allowed, dataclass_in, is_required, without_none
from hpcrec.toml.write import dump_value, plain


def field_docs(schema: type) -> dict[str, str]:
    """The string literal under each field of a dataclass, on one line."""
    body = ast.parse(textwrap.dedent(inspect.getsource(schema))).body[0]
    assert isinstance(body, ast.ClassDef)
    docs = {}
    for node, following in zip(body.body, [*body.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(following, ast.Expr):
            docs[node.target.id] = " ".join(ast.literal_eval(following.value).split())
    return docs


def reference(schema: type, above: Keys = (), heading: str = "##") -> str:
    """Every key of a dataclass and of the sections in it: default, allowed values and description, as Markdown."""
    docs, hints = field_docs(schema), get_type_hints(schema, include_extras=True)
    text = ""
    sections: list[tuple[Keys, type]] = []
    rows: list[str] = []
    for field in dataclasses.fields(schema):
        annotation = hints[field.name]
        inner, keys = dataclass_in(annotation), (*above, field.name)
        if inner is None and get_origin(without_none(annotation)) is dict:
            inner, keys = dataclass_in(get_args(without_none(annotation))[1]), (*keys, "<name>")
        if inner is not None:
            sections.append((keys, inner))
        if above:
            cells = (f"`{field.name}`", _default(field), allowed(annotation), docs[field.name])
            rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    if rows:
        text += "| key | default | allowed | |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"
    for keys, inner in sections:
        about = " ".join((inspect.getdoc(inner) or "").split())
        text += f"\n{heading} [{'.'.join(keys)}]\n\n{about}\n\n" + reference(inner, keys, heading + "#")
    return text


def _default(field: Any) -> str:
    if is_required(field):
        return "required"
    if field.default_factory is not dataclasses.MISSING:
        value = plain(field.default_factory())
        return "see below" if value and isinstance(value, dict) else f"`{dump_value(value)}`"
    return "" if field.default is None else f"`{dump_value(plain(field.default))}`"
