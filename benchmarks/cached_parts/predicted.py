"""Bytes that the product predicts of ``cached`` beside those that part ``counts`` has counted.

Every cell of the committed counts whose caches had filled: exponents, batches, capacities, rules, a staleness of 1 and
more, widths. Given are the true chances of rows, and how many rows are asked for and what their requests take, which
``auto`` counts on real batches; predicted is what is sent and pushed (``hpcrec.exchange.expected``), and from it bytes,
by the product's formulas. With the staleness of 0 nothing is to be predicted: every row is sent. Caches of rules that
count uses have seen so many samples that some were not full: such a cell does not tell what a settled cache does.
"""

import json
import math

import numpy as np
from _report import ROOT, claim
from cached_parts import counts_part
from cached_parts.placed import Placed, Popularity
from des_parts.cells import Row, show

from hpcrec.comm.sizes import UNIT_BYTES
from hpcrec.exchange.copy_bytes import RowBytes, parts_of
from hpcrec.exchange.expected import Rates, shares
from hpcrec.exchange.forms.conditional import Keeping
from hpcrec.kernels import Evict

COUNTS = ROOT / "benchmarks" / "results" / "cached_counts.json"
PAIRS = counts_part.RANKS * (counts_part.RANKS - 1)
RULES = counts_part.CLAIMED_CACHES


def measure() -> tuple[list[Row], list[Row]]:
    """Rows of the table, and claims."""
    counted = [r for r in json.loads(COUNTS.read_text())["rows"] if r.get("begins") == "settled"]
    placed = Placed(counts_part.CRITEO, counts_part.RANKS, counts_part.WIDTHS[0])
    rows = list[Row]()
    for exponent in counts_part.EXPONENTS:
        popular = Popularity(placed, exponent, counts_part.SEED)
        seen = -np.expm1(-counts_part.PAST[0] * popular.chance).sum()
        for batch in counts_part.BATCHES:
            rates = Rates.of(-np.expm1(-popular.asked(batch)))
            mine = [r for r in counted if (r["exponent"], r["batch"]) == (exponent, batch)]
            fixed = {r["width"]: r for r in mine if "width" in r}
            for cell in mine:
                if "width" in cell or cell["staleness"] == 0:
                    continue
                capacity = math.ceil(cell["capacity"] * placed.total)
                if cell["cache"] in RULES[1:] and seen < capacity:
                    continue
                rows.append(_predicted(cell, fixed, rates, capacity))
                show(rows[-1])
    errors = np.array([[abs(r[f"error_{w}"]) for w in counts_part.WIDTHS] for r in rows if r["cache"] in RULES])
    lru = np.array([[abs(r[f"error_{w}"]) for w in counts_part.WIDTHS] for r in rows if r["cache"] == "lru"])
    unit = f"of the bytes that were counted, of {errors.size} cells the "
    return rows, [
        claim("het.predicted_error", float(errors.max()), unit + "largest", "<= 0.1"),
        claim("het.predicted_error_median", float(np.median(errors)), unit + "median"),
        claim("het.predicted_error_lru", float(lru.max()), f"likewise, of {lru.size} cells of lru the largest"),
    ]


def _predicted(cell: Row, fixed: dict[int, Row], rates: Rates, capacity: int) -> Row:
    """Of each width: how far predicted bytes are from those that were counted."""
    staleness, fixed_rows = cell["staleness"], cell["cache"] == "frequent"
    evict: Evict = "lru" if fixed_rows else cell["cache"]
    keeping = Keeping(staleness=staleness, evict=evict, dense=tuple(range(counts_part.RANKS)))
    found = shares(rates, capacity, keeping, protected=1.0 if fixed_rows else None)
    weight = rates.chance * rates.rows / rates.asked
    sent, pushed = float(weight @ (found.missed + found.too_old)), float(weight @ found.pushed)
    row: Row = {
        "part": "predicted",
        **{key: cell[key] for key in ("exponent", "batch", "cache", "capacity", "staleness")},
        "sent_predicted": sent,
        "sent_counted": cell["missed"] + cell["too_old"],
        "pushed_predicted": pushed,
        "pushed_counted": cell["pushed"],
    }
    for width in counts_part.WIDTHS:
        of = fixed[width]
        rows_kb, kinds = sum(of["kb_rows"].values()), of["kb_cached_by_kind"]
        asked = 8e3 * kinds["known"]
        item = RowBytes(4.0 * width, 4.0 * width)
        parts = list(parts_of(asked, asked * sent, asked * pushed, item, staleness=staleness, dynamic=False))
        padded = UNIT_BYTES / 2 * PAIRS * (1 + len(parts))
        same = sum(kinds[kind] for kind in ("requests", "route", "agreed", "entries", "verdict"))
        kb = same + 1e-3 * (sum(part.exact for part in parts) + padded)
        row[f"error_{width}"] = kb / ((1 - cell[f"saved_{width}"]) * rows_kb) - 1
    return row
