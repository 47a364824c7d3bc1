"""Messages of conditional forms: which copies dense ranks have, rows that are too old there, and rows that are pushed.

::

    dense rank                            owner
    has a copy?       --- ids ---------->  rule: which copies are too old      in the phase values, after rows are found
    follows? (row?)   <-- ids -----------  a bit a row, both ways; where tables are dynamic, whether the id has a row
                      <-- values --------  those rows, as all values are written
    rows it pushes    --- control, ids ->  how many of each entry; which, and  in the phase gradients, after the verdict
                                           of how many steps each
                      --- gradients ---->  their gradients, likewise written

Where a table's optimizer adds up squares and gradients of several steps are pushed as one, a row that is sent has its
accumulator with it (``values``), and one that is pushed its sum of squares (``gradients``): a number each, as it is.

A message has the entries of conditional forms one after the other, in the order of the leg; vectors follow stream after
stream. Bytes besides the vectors: a bit a row asked for and a bit back; 4 a row pushed (8 where some of the tables are
dynamic: ids), a byte of ticks (4 from a staleness of 255 on), and 8 an entry and rank; each message but those of
entries rounded up to 64. Knows the layout and rows by number; when a copy is too old, and what is pushed,
``forms.conditional`` says.

Legend: ``K`` rows asked for or pushed, one peer after the other; ``P`` vectors: a row and a stream of its entry; ``C``
entries of conditional forms; ``R`` ranks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hpcrec.comm.sizes import padded_bytes
from hpcrec.errors import HpcrecError
from hpcrec.exchange.bags import Entries, cumulative, ranges
from hpcrec.exchange.columns import Dealt
from hpcrec.exchange.forms.conditional import Asked, Conditional, Copies, Keeping, Push
from hpcrec.exchange.forms.form import Form
from hpcrec.exchange.layout import Layout
from hpcrec.types import Floats, Ints

_NONE = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Vectors:
    """Vectors in the messages between this rank and its peers.

    Attributes
    ----------
    row, stream : int64 [P]
        Which of the rows that the messages are about, and which stream.
    start : int64 [P]
        First element of each in the messages.
    bytes_R : int64 [R]
        Sizes, padded.
    """

    row: Ints
    stream: Ints
    start: Ints
    bytes_R: Ints


def behind(first: Vectors, second: Vectors, item_bytes: int) -> Vectors:
    """Vectors of the second kind of messages, which lie behind all of the first."""
    start = second.start + int(first.bytes_R.sum()) // item_bytes
    return Vectors(
        np.concatenate([first.row, second.row]),
        np.concatenate([first.stream, second.stream]),
        np.concatenate([first.start, start]),
        first.bytes_R + second.bytes_R,
    )


class Streams:
    """The streams apart, of one owner or of all, and which of them each entry has.

    Parameters
    ----------
    entry_S, width_S : int64 [S]
        In the order of messages.
    entries : int
    size : int
        Ranks.
    dtype : numpy float type
    """

    def __init__(self, entry_S: Ints, width_S: Ints, entries: int, *, size: int, dtype: np.dtype) -> None:
        self._width_S, self._size, self._item = width_S, size, dtype.itemsize
        self._count_E = np.bincount(entry_S, minlength=entries)
        self._first_E, self._order_S = cumulative(self._count_E), np.argsort(entry_S, kind="stable")

    def vectors(self, peer_K: Ints, entry_K: Ints, rows: Ints) -> Vectors:
        """Those of some of the rows: peer after peer, stream after stream, row after row."""
        of = entry_K[rows]
        n = self._count_E[of]
        row, stream = np.repeat(rows, n), self._order_S[ranges(self._first_E[of], n)]
        order = np.lexsort((row, stream, peer_K[row]))
        row, stream = row[order], stream[order]
        peer, elements = peer_K[row], self._width_S[stream]
        exact_R = np.bincount(peer, elements, self._size).astype(np.int64)
        bytes_R = padded_bytes(exact_R * self._item)
        start = np.cumsum(elements) - elements - cumulative(exact_R)[peer] + cumulative(bytes_R)[peer] // self._item
        return Vectors(row, stream, start, bytes_R)


class Numbers:
    """A number a row of some of the streams, which no codec writes.

    Parameters
    ----------
    some_S : bool [S]
    entry_S : int64 [S]
    entries, size, dtype
        As of ``Streams``.

    Attributes
    ----------
    some_S : bool [S]
    of_S : int64 [some of S]
        Which streams these are.
    """

    def __init__(self, some_S: np.ndarray, entry_S: Ints, *, entries: int, size: int, dtype: np.dtype) -> None:
        self.some_S, self.of_S = some_S, np.flatnonzero(some_S)
        self._streams = Streams(
            entry_S[self.of_S], np.ones(len(self.of_S), np.int64), entries, size=size, dtype=dtype
        )  # fmt: skip

    def vectors(self, of: "Wanted | Served", rows: Ints) -> Vectors:
        """Those of some of the rows, each of one element; of ``stream`` the numbers are those of all streams."""
        peer_K = of.owner_K if isinstance(of, Wanted) else of.peer_K
        v = self._streams.vectors(peer_K, of.entry_K, rows)
        return replace(v, stream=self.of_S[v.stream])


def numbers(peer_K: Ints, size: int, *, bits: int) -> tuple[Ints, Ints]:
    """Of messages of a number of so many bits a row: their padded sizes [R], and the place of each row's number [K]."""
    n_R = np.bincount(peer_K, minlength=size)
    bytes_R = padded_bytes(-(-n_R * bits // 8))
    return bytes_R, np.arange(len(peer_K)) - cumulative(n_R)[peer_K] + cumulative(bytes_R)[peer_K] * 8 // bits


@dataclass(eq=False)
class Kept:
    """What one step has of one bundle.

    Attributes
    ----------
    form : Conditional
    asked : Asked
    rows : mapping of str to float [U, D]
        By table: what is read, once it is there.
    gradients : dict of str to float [U, D]
        Likewise.
    """

    form: Conditional
    asked: Asked
    rows: Mapping[str, Floats] = field(default_factory=dict)
    gradients: dict[str, Floats] = field(default_factory=dict)


@dataclass(eq=False)
class Wanted:
    """Rows that a dense rank asks owners for, or pushes to them.

    Attributes
    ----------
    owner_K, entry_K, bundle_K, row_K : int64 [K]
        Whose row it is; the number of its entry and of its bundle; its number among the bundle's rows.
    names_K : int64 [K]
        What the owner calls it.
    has_K : bool [K]
        Of which of them there is a copy here.
    follows_K, rowless_K : bool [K]
        Which of them the owner sends, and which are ids without a row.
    ticks_K : int64 [K]
        Of how many steps the pushed gradients are.
    picked : int64 [picked]
        Which are read from copies, and are compared with the owner's rows (``shadow``).
    """

    owner_K: Ints
    entry_K: Ints
    bundle_K: Ints
    row_K: Ints
    names_K: Ints
    has_K: np.ndarray = field(default_factory=lambda: _NONE.astype(bool))
    follows_K: np.ndarray = field(default_factory=lambda: _NONE.astype(bool))
    rowless_K: np.ndarray = field(default_factory=lambda: _NONE.astype(bool))
    ticks_K: Ints = field(default_factory=lambda: _NONE)
    picked: Ints = field(default_factory=lambda: _NONE)


@dataclass(eq=False)
class Came:
    """What owners have sent for a step, by bundle.

    Attributes
    ----------
    sent, rowless : sequence of bool [U]
        Which rows came, and which of them are of ids without a row.
    rows : sequence of mappings of str to float [U, D]
        By table; zeros of those that did not come.
    sums : sequence of mappings of str to float [U]
        Their accumulators, of tables that have some.
    shadows : (Vectors, float, flat) or None
        Rows that are only compared with copies: where they lie, and they.
    """

    sent: list[np.ndarray]
    rowless: list[np.ndarray]
    rows: list[dict[str, Floats]]
    sums: list[dict[str, Floats]]
    shadows: tuple[Vectors, Floats] | None = None


@dataclass(eq=False)
class Served:
    """Rows that dense ranks ask an owner for, or push to it.

    Attributes
    ----------
    peer_K, entry_K, row_K : int64 [K]
        Who asks; the number of the entry; the row of the part.
    follows_K, rowless_K : bool [K]
        Which of them are sent, and which are ids without a row.
    ticks_K : int64 [K]
        Of how many steps the pushed gradients are.
    accumulators : float, flat, or None
        Those of the rows that are sent, peer by peer and stream by stream.
    picked : int64 [picked]
        Which are sent to be compared with copies.
    """

    peer_K: Ints
    entry_K: Ints
    row_K: Ints
    follows_K: np.ndarray = field(default_factory=lambda: _NONE.astype(bool))
    rowless_K: np.ndarray = field(default_factory=lambda: _NONE.astype(bool))
    ticks_K: Ints = field(default_factory=lambda: _NONE)
    accumulators: Floats | None = None
    picked: Ints = field(default_factory=lambda: _NONE)


class DenseCopies:
    """A dense rank's side.

    Parameters
    ----------
    layout : Layout
    forms : sequence of Form
        Those of all bundles; the conditional ones among them are used.
    keeping : Keeping
    size : int
        Ranks.
    dtype : numpy float type

    Attributes
    ----------
    forms : list of Conditional
    halves : list of (Copies, list of int)
        Of each kind of form, and the numbers of its bundles.
    accumulators, squares : Numbers
        What comes with rows, and goes with pushed ones.
    columns : list of (str, slice)
        Table and columns of each stream.
    """

    def __init__(self, layout: Layout, forms: Sequence[Form], keeping: Keeping, *, size: int, dtype: np.dtype) -> None:
        self.forms = [form for form in forms if isinstance(form, Conditional)]
        self.halves: list[tuple[Copies, list[int]]] = []
        for kind in dict.fromkeys(type(form) for form in self.forms):
            mine = [b for b, form in enumerate(self.forms) if type(form) is kind]
            bundles = [self.forms[b] for b in mine]
            tables = [layout.tables_of[form.features[0]] for form in bundles]
            self.halves.append((kind.Dense(bundles, tables, keeping), mine))
        self._size, self._dtype = size, dtype
        self._bundles = [form.features for form in self.forms]
        self._entries = Entries(layout, self._bundles, set())
        number = {features: b for b, features in enumerate(self._bundles)}
        named = self._entries.names()
        at = {name: e for e, name in enumerate(named)}
        self._bundle_E = np.array([number[features] for _, features in named], np.int64)
        owners = self._entries.owner_E
        self.number_E = np.arange(len(owners)) - np.searchsorted(owners, owners)  # among its owner's
        streams = [
            (at[owner, leg.entries[s.entry].features], s.width, s.table, slice(*s.columns))
            for owner, leg in sorted(layout.legs.items())
            for s in leg.apart
        ]
        entry_S, width_S = (np.array([s[i] for s in streams], np.int64) for i in (0, 1))
        self._streams = Streams(entry_S, width_S, len(named), size=size, dtype=dtype)
        self.columns = [(table, columns) for _, _, table, columns in streams]
        with_S = [keeping.accumulates(table) for table, _ in self.columns]
        first_S = [columns.start == 0 for _, columns in self.columns]
        self.squares = Numbers(np.array(with_S, bool), entry_S, entries=len(named), size=size, dtype=dtype)
        self.accumulators = Numbers(
            np.array(with_S, bool) & np.array(first_S, bool), entry_S, entries=len(named), size=size, dtype=dtype
        )
        self._widths = [{t: layout.tables[t].width for t in layout.tables_of[form.features[0]]} for form in self.forms]

    def kept(self, dealt: Sequence[Dealt]) -> tuple[list[Kept], Wanted]:
        """A step's rows, as the forms have dealt them."""
        return [Kept(*of) for of in zip(self.forms, self.asked(dealt), strict=True)], self.wanted(dealt)

    @staticmethod
    def asked(dealt: Sequence[Dealt]) -> list[Asked]:
        """The rows that each bundle asks for."""
        return [Asked(d.rows, np.zeros_like(d.rows) if d.part is None else d.part) for d in dealt]

    def foresee(self, asked: Sequence[Asked]) -> None:
        """What a step to come will ask for, by bundle: the next one that is not foreseen yet."""
        for half, mine in self.halves:
            half.foresee([asked[b] for b in mine])

    def wanted(self, dealt: Sequence[Dealt]) -> Wanted:
        """Which of them each owner is asked for."""
        r = self._entries.requests(dealt, self._dtype)
        n_E = r.bags_E
        entry_K = np.repeat(np.arange(len(n_E)), n_E)
        return Wanted(self._entries.owner_E[entry_K], entry_K, self._bundle_E[entry_K], r.bag, r.ids)

    def has(self, kept: Sequence[Kept], wanted: Wanted) -> np.ndarray:
        """Whether there is a copy of each row, bool [K]; once a training step, in order."""
        by_bundle: list[np.ndarray] = [_NONE] * len(kept)
        for half, mine in self.halves:
            for b, has_U in zip(mine, half.kept([kept[b].asked for b in mine]), strict=True):
                by_bundle[b] = has_U
        return self._spread(by_bundle, wanted).astype(bool)

    @staticmethod
    def _places(kept: Sequence[Kept], wanted: Wanted) -> tuple[Ints, list[int]]:
        """Of all bundles' rows, one after the other: where each that is wanted is, and where each bundle ends."""
        ends = np.cumsum([len(of.asked.rows) for of in kept], dtype=np.int64)
        return np.append(0, ends)[wanted.bundle_K] + wanted.row_K, ends.tolist()

    def _spread(self, by_bundle: Sequence[np.ndarray], wanted: Wanted) -> np.ndarray:
        first_B = cumulative(np.array([len(of) for of in by_bundle], np.int64))
        return np.concatenate([_NONE, *by_bundle])[first_B[wanted.bundle_K] + wanted.row_K]

    def vectors(self, wanted: Wanted, rows: Ints) -> Vectors:
        """Those of some of the rows."""
        return self._streams.vectors(wanted.owner_K, wanted.entry_K, rows)

    def came(self, kept: Sequence[Kept], wanted: Wanted, values: Floats, numbers: Floats) -> Came:
        """What came, out of the messages: ``values`` of rows, ``numbers`` of their accumulators."""
        at_K, ends = self._places(kept, wanted)
        flags = np.zeros((2, ends[-1]), bool)
        flags[0, at_K], flags[1, at_K] = wanted.follows_K, wanted.rowless_K
        differ = np.flatnonzero(flags[0, at_K] != wanted.follows_K)
        if len(differ):
            features = ", ".join(self._bundles[wanted.bundle_K[differ[0]]])
            raise HpcrecError(
                f"owners of parts of a row of the features {features} do not agree whether its copy is too old. This "
                "is a fault of the form's rule, which has to be the same function on all."
            )
        sent, rowless = (np.split(of, ends[:-1]) for of in flags)
        came = [
            {t: np.zeros((len(of.asked.rows), width), self._dtype) for t, width in widths.items()}
            for of, widths in zip(kept, self._widths, strict=True)
        ]
        v = self.vectors(wanted, np.flatnonzero(wanted.follows_K))
        for s, some in _by_stream(v):
            table, columns = self.columns[s]
            rows = v.row[some]
            came[int(wanted.bundle_K[rows[0]])][table][wanted.row_K[rows], columns] = _block(values, v, some, columns)
        sums: list[dict[str, Floats]] = [{} for _ in kept]
        v = self.accumulators.vectors(wanted, np.flatnonzero(wanted.follows_K))
        for s, some in _by_stream(v):
            rows, table = v.row[some], self.columns[s][0]
            b = int(wanted.bundle_K[rows[0]])
            of_rows = sums[b].setdefault(table, np.zeros(len(kept[b].asked.rows), self._dtype))
            of_rows[wanted.row_K[rows]] = numbers[v.start[some]]
        return Came(sent, rowless, came, sums)

    def read(self, kept: Sequence[Kept], came: Came, *, train: bool) -> None:
        """Takes what came into the copies, and has ``Kept.rows`` made of them; an evaluation reads what came alone."""
        for of, fresh in zip(kept, came.rows, strict=True):
            of.rows = fresh
        for half, mine in self.halves if train else []:
            asked = [kept[b].asked for b in mine]
            sent, rows, sums, rowless = (
                [of[b] for b in mine] for of in (came.sent, came.rows, came.sums, came.rowless)
            )
            read = half.read(asked, sent, rows, sums, rowless)  # type: ignore[arg-type]
            for b, by_table in zip(mine, read, strict=True):
                kept[b].rows = by_table

    def push(self, kept: Sequence[Kept], *, learned: bool, drain: bool, lr_scale: float) -> tuple[Wanted, list[Push]]:
        """What goes to owners after a step, by bundle."""
        pushes: dict[int, Push] = {}
        for half, mine in self.halves:
            gradients = [kept[b].gradients for b in mine] if learned else None
            found = half.push([kept[b].asked for b in mine], gradients, drain=drain, lr_scale=lr_scale)
            pushes |= dict(zip(mine, found, strict=True))
        dealt, in_order = [], [pushes[b] for b in range(len(kept))]
        for of, push in zip(kept, in_order, strict=True):
            part = push.asked.part if of.form.family.kind == "row" else None
            dealt.append(Dealt(push.asked.rows, part, np.ones_like(push.asked.rows), None))
        wanted = self.wanted(dealt)
        wanted.ticks_K = self._spread([push.ticks for push in in_order], wanted)
        return wanted, in_order

    def empty(self) -> None:
        """All copies on this rank are forgotten."""
        for half, _ in self.halves:
            half.empty()

    def give_up(self) -> None:
        """Steps that were asked for and not pushed do not come."""
        for half, _ in self.halves:
            half.give_up()

    def figures(self) -> dict[str, float]:
        """Sums of what the halves say of themselves."""
        total: dict[str, float] = {}
        for half, _ in self.halves:
            for name, value in half.figures().items():
                total[name] = total.get(name, 0.0) + value
        return total

    def write_squares(self, wanted: Wanted, pushes: Sequence[Push], v: Vectors, message: Floats) -> None:
        """Sums of squares of pushed rows, into the messages."""
        for s, some in _by_stream(v):
            rows = v.row[some]
            message[v.start[some]] = pushes[int(wanted.bundle_K[rows[0]])].squares[self.columns[s][0]][
                wanted.row_K[rows]
            ]

    def write(self, wanted: Wanted, pushes: Sequence[Push], v: Vectors, message: Floats) -> None:
        """Gradients of pushed rows, into the messages."""
        for s, some in _by_stream(v):
            table, columns = self.columns[s]
            rows = v.row[some]
            of = pushes[int(wanted.bundle_K[rows[0]])].gradients[table]
            _block(message, v, some, columns)[:] = of[wanted.row_K[rows], columns]


def _block(flat: Floats, v: Vectors, some: slice, columns: slice) -> Floats:
    """A view of the vectors of one stream: on a dense rank its owner is one, and they lie side by side."""
    first, width = int(v.start[some.start]), columns.stop - columns.start
    return flat[first : first + (some.stop - some.start) * width].reshape(-1, width)


def _by_stream(v: Vectors) -> list[tuple[int, slice]]:
    """Each stream that has vectors, which lie together."""
    first = np.flatnonzero(np.append(True, v.stream[1:] != v.stream[:-1])[: len(v.stream)])
    spans = zip(first.tolist(), [*first[1:].tolist(), len(v.stream)], strict=False)
    return [(int(v.stream[start]), slice(start, stop)) for start, stop in spans]
