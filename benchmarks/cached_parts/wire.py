"""Bytes of a step by formula: of policy ``sync`` with form ``rows``, and of ``cached``.

What copies add is by the product's own formulas (``hpcrec.exchange.copy_bytes``), by which ``auto`` predicts too.

For each dense rank D and owner O, in a step in which D asks O for ``asked`` rows, O sends ``sent`` of them, and D
pushes ``pushed``; vectors of a width, 4 bytes an element:

=========  ==========  =========  ===================================================================================
tag        what        way        bytes
=========  ==========  =========  ===================================================================================
ids        requests    D to O     as ``kernels.plan_requests`` packs the rows; both arms
values     values      O to D     4 width asked; under ``cached`` 4 width sent
gradients  gradients   D to O     4 width asked; under ``cached`` 4 width pushed
gradients  verdict     D to O     4, behind the gradients, to the one owner whom D tells; under ``cached`` by itself
control    route       D to all   32, both arms
control    agreed      in a ring  12, both arms: an allreduce of 8 bytes over 4 ranks
ids        known       D to O     asked / 8: whether there is a copy; this and what follows under ``cached``
ids        follows     O to D     asked / 8
control    entries     D to O     8 for each table of the owner that has most
ids        names       D to O     4 pushed
ids        ticks       D to O     pushed; 4 pushed from a staleness of 255 on
=========  ==========  =========  ===================================================================================

Each message is rounded up to 64 bytes, but for those of tag ``control``. Owners remember what each copy knows
(``CLOCK`` is 0). What others would take is an argument: clocks of 1, 2 or 4 bytes, which cross for each row asked for,
in place of the bit, and each that follows; and names packed as requests are, which say entries too, so that these need
not be sent.
Knows counts; knows no rows and no ranks but by number.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hpcrec.comm.sizes import UNIT_BYTES, padded_bytes
from hpcrec.exchange.copy_bytes import ENTRY_BYTES, Part, RowBytes, parts_of
from hpcrec.types import Floats, Ints

ITEM, CLOCK = 4, 0
ROUTE, FLAG = 32, 8
TAGS = ("ids", "values", "gradients", "control")


@dataclass(frozen=True)
class Message:
    """One kind of message in each of some steps: bytes by sender and receiver, int64 [..., R, R]."""

    tag: str
    what: str
    exact: Ints

    @property
    def wire(self) -> Ints:
        """As they cross."""
        return self.exact if self.tag == "control" else padded_bytes(self.exact)


def of_rows(asked: Ints, requests: Ints, width: int) -> list[Message]:
    """Policy ``sync``, form ``rows``; arguments by step, dense rank and owner [S, R, R]."""
    values = ITEM * width * asked
    told = ITEM * np.eye(asked.shape[-1], dtype=np.int64)
    return [
        *_of_both(asked, requests),
        Message("values", "values", _to_dense(values)),
        Message("gradients", "gradients", values + told),
    ]


def of_cached(
    asked: Ints,
    requests: Ints,
    sent: Ints,
    pushed: Ints,
    width: int,
    *,
    staleness: int,
    entries: int,
    clock: int = CLOCK,
    names: Ints | None = None,
) -> list[Message]:
    """Policy ``cached``.

    Parameters
    ----------
    asked, requests, sent, pushed : int64 [S, R, R]
        By step, dense rank and owner: rows that are asked for, bytes of the requests for them, rows that follow, and
        that are pushed.
    width, staleness : int
    entries : int
        Tables of the owner that has most.
    clock : int
        Bytes of a clock; 0: a bit says whether there is a copy.
    names : int64 [S, R, R], optional
        Bytes of messages that name the rows that are pushed, table by table.
    """
    none = np.zeros_like(asked)
    told = ITEM * np.eye(asked.shape[-1], dtype=np.int64)
    row = RowBytes(ITEM * width, ITEM * width)
    a, b, c = (np.asarray(of, np.float64) for of in (asked, sent, pushed))  # bytes are exact below 2^53
    found = {
        part.what: Message(part.tag, part.what, _whole(part))
        for part in parts_of(a, b, c, row, staleness=staleness, dynamic=False)
    }
    if clock:
        found["known"] = Message("ids", "known", clock * asked)
    if names is not None:
        found["names"] = Message("ids", "names", names)
    entry_bytes = 0 if names is not None else ENTRY_BYTES * entries
    return [
        *_of_both(asked, requests),
        *found.values(),
        Message("ids", "clocks", _to_dense(clock * sent)),
        Message("control", "entries", none + entry_bytes),
        Message("gradients", "verdict", none + told),
    ]


def _whole(part: Part[Floats]) -> Ints:
    """In whole bytes, by sender and receiver."""
    whole = np.ceil(part.exact).astype(np.int64)
    return _to_dense(whole) if part.to_dense else whole


def of_each_id(ids: Ints, requests: Ints, width: int) -> list[Message]:
    """Every id pulled, and its gradient pushed; nothing else is known of it."""
    values = ITEM * width * ids
    return [
        *_of_both(ids, requests),
        Message("values", "values", _to_dense(values)),
        Message("gradients", "gradients", values),
    ]


def _of_both(asked: Ints, requests: Ints) -> Iterator[Message]:
    none, ranks = np.zeros_like(asked), asked.shape[-1]
    ring = np.roll(np.eye(ranks, dtype=np.int64), 1, axis=1) * round(2 * (ranks - 1) / ranks * FLAG)
    yield Message("ids", "requests", requests)
    yield Message("control", "route", none + ROUTE)
    yield Message("control", "agreed", none + ring)


def _to_dense(of_DO: Ints) -> Ints:
    """By owner, who sends it, and dense rank."""
    return of_DO.swapaxes(-1, -2)


def between(messages: Sequence[Message], *, to_self: bool = False) -> Ints:
    """Bytes of each step [S]: between different ranks, or what a rank sends to itself too."""
    total: Ints = np.sum([_off(m.wire, to_self=to_self) for m in messages], axis=0)
    return total


def by_tag(messages: Sequence[Message]) -> dict[str, Ints]:
    """Of all steps, by sender and receiver [R, R], with what a rank sends to itself, which the ledger leaves out."""
    sums = {tag: [m.wire.sum(axis=0) for m in messages if m.tag == tag] for tag in TAGS}
    return {tag: np.sum(of, axis=0) for tag, of in sums.items()}


def by_kind(messages: Sequence[Message]) -> dict[str, float]:
    """Mean bytes of a step between different ranks by kind, not padded; and what padding adds to all of them."""
    found: dict[str, float] = {}
    padding = 0
    for m in messages:
        exact = _off(m.exact)
        found[m.what] = found.get(m.what, 0.0) + float(exact.mean())
        padding = padding + (_off(m.wire) - exact).mean()
    return {**found, "padding": float(padding)}


def _off(of: Ints, *, to_self: bool = False) -> Ints:
    total: Ints = of.sum(axis=(-1, -2))
    return total if to_self else total - np.trace(of, axis1=-2, axis2=-1)


assert UNIT_BYTES == 64, "as it is said above"
