"""Draws planned towers: how near each pair of features is, those of a tower beside each other, and what towers weigh.

Knows names, a matrix and shares; nothing of how they were found.

Legend: ``F`` features, ``T`` towers, ``L`` loads.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrec.data.files import write_text
from hpcrec.report_page.filled import filled_in
from hpcrec.report_page.sections import Table

SHADES = 8
NAMED = 40  # features whose names still have room beside the picture
_NEAREST = 3  # features that are named where the pointer is
_LETTER = (0.62, 0.8)  # width of a letter by its height, and its height at most, in cells


@dataclass(frozen=True)
class Row:
    """Of the picture: a feature's name, and what is said of it."""

    name: str
    says: str


@dataclass(frozen=True)
class Picture:
    """A square of pairs of features, as the template draws it.

    Attributes
    ----------
    rows : sequence of Row
    shades : sequence of (float, str)
        Opacity, and lines along the upper edge of the cells that have it, which are drawn half a cell lower.
    towers : sequence of (int, int)
        First row, and number of rows.
    text, margin : float
        Height and width of names, in cells; 0: there are none.
    label : str
        For who does not see it.
    """

    rows: Sequence[Row]
    shades: Sequence[tuple[float, str]]
    towers: Sequence[tuple[int, int]]
    text: float
    margin: float
    label: str


def write_towers(
    path: Path,
    features: Sequence[str],
    near_FF: NDArray[np.float64],
    towers: Sequence[Sequence[str]],
    loads_TL: NDArray[np.float64],
    about: Mapping[str, str],
) -> Path:
    """Writes the page of planned towers; returns its path.

    Parameters
    ----------
    features : sequence of str [F]
        In the order of the matrix.
    near_FF : float64 [F, F]
        How near each pair is, none less than 0; what a feature is to itself is not shown.
    towers : sequence of sequence of str
        T of them: every feature in one.
    loads_TL : float64 [T, 3]
        Share of an even tower's features, bytes and lookups.
    about : mapping of str to str
        Of the plan, by name.

    Raises
    ------
    OutputError
        It cannot be written.
    """
    write_text(path, filled_in("towers.html", shown(features, near_FF, towers, loads_TL, about)))
    return path


def shown(
    features: Sequence[str],
    near_FF: NDArray[np.float64],
    towers: Sequence[Sequence[str]],
    loads_TL: NDArray[np.float64],
    about: Mapping[str, str],
) -> dict[str, Any]:
    """What the template is filled with; as ``write_towers``."""
    at = {name: f for f, name in enumerate(features)}
    order_F = np.array([at[name] for tower in towers for name in tower], np.int64)
    tower_F = np.repeat(np.arange(len(towers)), [len(tower) for tower in towers])
    drawn_FF = near_FF[np.ix_(order_F, order_F)].copy()
    np.fill_diagonal(drawn_FF, 0)
    inside, outside = _mean_near(drawn_FF, tower_F, len(towers))
    rows = [
        (f"{t}: {', '.join(tower)}", str(len(tower)), *(f"{100 * part:.0f} %" for part in loads_TL[t, 1:]), *told)
        for t, (tower, told) in enumerate(zip(towers, zip(inside, outside, strict=True), strict=True))
    ]
    heads = ("tower", "features", "bytes, of even", "lookups, of even", "near inside", "near others")
    return {
        "title": f"{len(towers)} towers of {len(features)} features",
        "about": [(name, text) for name, text in about.items() if text],
        "picture": _picture([features[f] for f in order_F.tolist()], drawn_FF, tower_F),
        "table_of": Table(rows, heads),
    }


def _mean_near(drawn_FF: NDArray[np.float64], tower_F: NDArray[np.int64], n_towers: int) -> tuple[list[str], list[str]]:
    """Of each tower: the mean over pairs of its features, and of its features with others; in words."""
    inside, outside = list[str](), list[str]()
    for t in range(n_towers):
        mine_F = tower_F == t
        n, others = int(mine_F.sum()), int((~mine_F).sum())
        inside.append(f"{drawn_FF[np.ix_(mine_F, mine_F)].sum() / (n * (n - 1)):.3g}" if n > 1 else "")
        outside.append(f"{drawn_FF[np.ix_(mine_F, ~mine_F)].mean():.3g}" if others else "")
    return inside, outside


def _picture(names: Sequence[str], drawn_FF: NDArray[np.float64], tower_F: NDArray[np.int64]) -> Picture:
    """Of features in the order of their towers."""
    most = float(drawn_FF.max()) if len(drawn_FF) else 0.0
    # By the square root, or one strong pair would leave all others without a shade.
    shade_FF = np.rint(SHADES * np.sqrt(drawn_FF / (most or 1.0))).astype(np.int64)
    towers = list[tuple[int, int]]()
    for t in range(int(tower_F.max(initial=-1)) + 1):
        mine = np.flatnonzero(tower_F == t)
        towers.append((int(mine[0]), len(mine)))
    text = min(_LETTER[1], len(names) / NAMED)  # about as large whatever a cell is
    margin = text * (_LETTER[0] * max(map(len, names), default=0) + 0.5)
    if len(names) > NAMED or margin > len(names):
        text = margin = 0.0
    rows = []
    for f, name in enumerate(names):
        nearest = [names[g] for g in np.argsort(-drawn_FF[f], kind="stable")[:_NEAREST].tolist() if drawn_FF[f, g] > 0]
        rows.append(Row(name, f"{name}, tower {tower_F[f]}" + (f": nearest {', '.join(nearest)}" if nearest else "")))
    return Picture(
        rows=rows,
        shades=[
            (shade / SHADES, path) for shade in range(1, SHADES + 1) if (path := "".join(_cells(shade_FF == shade)))
        ],
        towers=towers,
        text=text,
        margin=margin,
        label=f"How near each pair of {len(names)} features is, from 0 to {most:.3g}; towers are outlined.",
    )


def _cells(which_FF: NDArray[np.bool_]) -> Iterator[str]:
    """Lines along the upper edge of cells, one for those beside each other."""
    for f, row_F in enumerate(which_FF):
        edges = np.flatnonzero(np.diff(np.concatenate(([False], row_F, [False])).astype(np.int8)))
        for first, end in edges.reshape(-1, 2).tolist():
            yield f"M{first} {f}h{end - first}"
