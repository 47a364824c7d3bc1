"""Copies of a dense rank under policy ``cached`` as they are after a long time, without the steps in which they fill.

The most frequent rows are kept, each as its owner has it, and with a number of ticks that is drawn between none and the
staleness, as rows that are read for long have it. Gradients of these ticks are zeros: nothing but bytes and time is
to be measured. Knows copies and their pools; which rows are frequent, it is told.
"""

from collections.abc import Sequence

import numpy as np

from hpcrec.exchange.forms.cached import PooledCopies
from hpcrec.exchange.forms.conditional import Asked, Conditional
from hpcrec.training.session import Session
from hpcrec.types import Ints

AT_ONCE = 20_000  # rows


def most_frequent(rows: Sequence[int], capacity: float, seed: int, exponent: float) -> list[Ints]:
    """Of each table the rows that are among this share of all, the least frequent ones first.

    A table's row of rank k is the k-th of a permutation by (``seed``, table), as ``_workloads.zipf_ids`` has it, and
    is asked for with P ~ (k + 1)^-exponent.
    """
    weights = [np.arange(1.0, n + 1) ** -exponent for n in rows]
    chance = np.concatenate([w / w.sum() for w in weights])
    kept = np.argsort(chance, kind="stable")[-int(capacity * len(chance)) :]
    counts = np.bincount(np.repeat(np.arange(len(rows)), rows)[kept], minlength=len(rows))
    return [np.random.default_rng((seed, t)).permutation(rows[t])[: counts[t]][::-1] for t in range(len(rows))]


def fill(session: Session, rows: Sequence[int], capacity: float, exponent: float, staleness: int, seed: int) -> None:
    """Fills this rank's copies, before its first step; each feature reads a table of its own, in their order.

    Parameters
    ----------
    rows, capacity, seed, exponent
        See ``most_frequent``.
    staleness : int
    """
    side = session.parts.exchange._dense_side
    if side is None or side.copies is None:
        return
    ((half, _),) = side.copies.halves
    assert isinstance(half, PooledCopies)
    of_table = dict(
        zip(session.parts.exchange.layout.form_of, most_frequent(rows, capacity, seed, exponent), strict=True)
    )
    frequent = [of_table[form.features[0]] for form in side.copies.forms]
    n_turns = -(-max(map(len, frequent)) // AT_ONCE)
    for turn in reversed(range(n_turns)):  # what is used most comes last
        some = [of[max(0, len(of) - (turn + 1) * AT_ONCE) : max(0, len(of) - turn * AT_ONCE)] for of in frequent]
        asked = [_asked(form, of) for form, of in zip(side.copies.forms, some, strict=True)]
        half.kept(asked)
        came = [
            {table: np.zeros((len(of), width), np.float32) for table, width in by_table.items()}
            for of, by_table in zip(some, side.copies._widths, strict=True)
        ]
        none = [np.zeros(len(of), bool) for of in some]
        half.read(asked, [np.ones(len(of), bool) for of in some], came, [{} for _ in some], none)
        half.push(asked, None, drain=False, lr_scale=1.0)  # nothing: no step is learned
    rng = np.random.default_rng((seed, session.topology.rank))
    for pool in half._pools:
        kept = np.flatnonzero(pool._of["at"] > 0)
        pool._of["ticks"][kept] = rng.integers(0, staleness + 1, len(kept))
        pool.figures = dict.fromkeys(pool.figures, 0)


def _asked(form: Conditional, rows: Ints) -> Asked:
    """Those rows as a step asks for them: part after part, and rising in each."""
    part, there = np.zeros(len(rows), np.int64), rows
    if form.family.kind == "row":
        part, there = (np.asarray(of, np.int64) for of in form.family.deal(np.ascontiguousarray(rows)))
    order = np.lexsort((there, part))
    return Asked(there[order], part[order])
