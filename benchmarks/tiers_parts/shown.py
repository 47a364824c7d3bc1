"""Rows of a table on the terminal, as they are measured."""

from typing import Any


def said(row: dict[str, Any]) -> dict[str, Any]:
    """The row, shown as it is measured."""
    print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()), flush=True)
    return row
