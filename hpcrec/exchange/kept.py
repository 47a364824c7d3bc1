"""What conditional forms do in a step, between ranks: ask, bring rows that are too old, push.

Three or four collectives more in the phase values, three and one of counts in the phase gradients, only where a form is
conditional. What dense ranks keep is looked at and changed by the thread of the steps alone (``look``, ``begin``,
``take``), in the order of steps; messages and owners' rows may be another thread's. Knows both sides of this rank and
what is sent; messages are ``copies``, rules ``rules``.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

import numpy as np

from hpcrec.comm.collectives import Collectives
from hpcrec.errors import HpcrecError
from hpcrec.exchange.codec import Codec, Elementwise
from hpcrec.exchange.copies import Served, Vectors, Wanted, behind, numbers
from hpcrec.exchange.copy_bytes import name_type, tick_type
from hpcrec.exchange.dense_side import DenseSide
from hpcrec.exchange.exact import StalenessCheck
from hpcrec.exchange.foresight import Sight
from hpcrec.exchange.forms.conditional import Asked, Conditional, Keeping, Push
from hpcrec.exchange.forms.missing import Missing
from hpcrec.exchange.inputs import Gradients
from hpcrec.exchange.layout import Layout
from hpcrec.exchange.owner_side import OwnerSide
from hpcrec.exchange.record import CopiesRecord
from hpcrec.exchange.route import Route
from hpcrec.exchange.shadow import ShadowReads
from hpcrec.kernels import Device
from hpcrec.types import Floats, Ints


@dataclass(eq=False)
class Pushed:
    """What dense ranks have pushed to this owner.

    Attributes
    ----------
    served : Served
        Which rows, as these call them until they are found.
    at : Vectors
        Where their gradients lie in ``floats``.
    floats : float, flat
    squares_P : float [P] or None
        Sums of squares of these vectors, where some have any.
    """

    served: Served
    at: Vectors
    floats: Floats
    squares_P: Floats | None


_Result = TypeVar("_Result")
_NONE, _NO_FLOATS = np.zeros(0, np.int64), np.zeros(0)


def _counted(verb: Callable[..., _Result]) -> Callable[..., _Result]:
    """What it sends is counted in ``figures``."""

    @wraps(verb)
    def counting(self: "KeptRows", *args: Any, **more: Any) -> _Result:
        with self.collectives.ledger.told_apart() as sent:
            result = verb(self, *args, **more)
        self._sent[verb.__name__] += sum(sent)
        return result

    return counting


class KeptRows:
    """Of one exchange; every rank of it calls the verbs in the same order.

    Parameters
    ----------
    collectives : Collectives
        The lane of the exchange.
    codec : Codec
        That of values and gradients.
    layout : Layout
    owner_side : OwnerSide or None
    dense_side : DenseSide or None
    keeping : Keeping
    dtype : numpy float type
    back : (Collectives, Codec), optional
        Lane and codec of what is pushed; default: the same.
    assembler : Device, optional
        That of the dense rank's leaves.

    Attributes
    ----------
    collectives
        As given.
    window : int
        Steps ahead whose batches are to be foreseen, by ``foresee``.
    """

    def __init__(
        self,
        collectives: Collectives,
        codec: Codec,
        layout: Layout,
        owner_side: OwnerSide | None,
        dense_side: DenseSide | None,
        keeping: Keeping,
        dtype: np.dtype,
        back: tuple[Collectives, Codec] | None = None,
        assembler: Device | None = None,
    ) -> None:
        assert isinstance(codec, Elementwise), "conditional forms are refused with codec dct"
        self.collectives, self._sent = collectives, Counter[str]()  # by verb, each of which is one thread's
        most = max(sum(entry.form.conditional for entry in leg.entries) for leg in layout.legs.values())
        dynamic = any(e.family.dynamic for leg in layout.legs.values() for e in leg.entries if e.form.conditional)
        self._dynamic = dynamic
        wide = name_type(dynamic=dynamic), tick_type(keeping.staleness)
        self._messages = _Messages(collectives, codec, most, *wide, dtype)
        self._back, self._assembler = self._messages, assembler
        if back is not None:
            lane, of_gradients = back
            assert isinstance(of_gradients, Elementwise)
            self._back = _Messages(lane, of_gradients, most, *wide, dtype)
        self._accumulates = any(keeping.accumulates(table) for f in layout.conditional for table in layout.tables_of[f])
        self._owner, self._rules = owner_side, None if owner_side is None else owner_side.rules
        self._dense, self._copies = dense_side, None if dense_side is None else dense_side.copies
        self.window = keeping.window
        self._none_R, self._item = np.zeros(collectives.size, np.int64), dtype.itemsize
        self._check, self._shadow = None, None
        if keeping.check:
            self._check = StalenessCheck(collectives, [] if self._rules is None else self._rules.entries, keeping)
            if self._rules is not None:
                self._rules.exact = self._check.ticks
        if keeping.shadow_reads:
            self._shadow = ShadowReads(collectives, layout, keeping.shadow_reads, keeping.seed)
        kinds = dict.fromkeys(form for form in layout.bundled() if isinstance(form, Conditional))
        self._counts = tuple(dict.fromkeys(name for form in kinds for name in form.counts))
        most = self._check.allowed if self._check else keeping.staleness
        self._bins = len(Missing(most).reads)

    def foresee(self, sight: Sight) -> list[list[Asked]]:
        """Deals batches that enter the window on a dense rank: the rows that they will ask for, for ``Route.foreseen``.

        By the thread that routes; each batch before its own route.

        Raises
        ------
        DataError
            An id outside its table.
        """
        assert self._dense is not None
        return [self._dense.foresee(batch) for batch in sight.entering]

    def look(self, route: Route) -> None:
        """What this rank keeps of the rows that a step asks for: by the thread of the steps, in their order."""
        asked = route.asked
        if asked is not None and asked.wanted is not None and self._copies is not None:
            for rows in route.foreseen:
                self._copies.foresee(rows)
            route.foreseen = ()
            asked.wanted.has_K = self._copies.has(asked.kept, asked.wanted)

    @_counted
    def ask(self, route: Route, version: int) -> Vectors | None:
        """Dense ranks say what they have, owners which rows follow; returns where these lie, of an owner's messages.

        Behind them lie those that are only compared. ``version``: steps that are learned, or left out.
        """
        asked, apart = route.asked, None if route.served is None else route.served.apart
        wanted, has_K = None if asked is None else asked.wanted, _NONE.astype(bool)
        if wanted is not None:
            has_K = wanted.has_K if route.train else np.zeros(len(wanted.row_K), bool)
        has_K = self._messages.bits(_peers(wanted), has_K, _peers(apart))
        if apart is not None and self._rules is not None:
            self._rules.answer(apart, has_K, train=route.train)
        none = Served(_NONE, _NONE, _NONE) if apart is None else apart
        follows_K = self._messages.bits(_peers(apart), none.follows_K, _peers(wanted))
        rowless_K = np.zeros(len(follows_K), bool)
        if self._dynamic:
            rowless_K = self._messages.bits(_peers(apart), none.rowless_K, _peers(wanted))
        if wanted is not None:
            wanted.follows_K, wanted.rowless_K = follows_K, rowless_K
        if route.train:
            self._prove(route, version + 1)
        if apart is None or self._rules is None:
            return None
        sent = self._rules.vectors(apart, np.flatnonzero(apart.follows_K))
        return behind(sent, self._rules.vectors(apart, apart.picked), self._item) if len(apart.picked) else sent

    def _prove(self, route: Route, step: int) -> None:
        """Holds what is read in a step, from 1, to the bound, and says which copies are compared; where asked for."""
        asked, apart = route.asked, None if route.served is None else route.served.apart
        wanted = None if asked is None else asked.wanted
        if self._check is not None:
            self._check.read(apart, step)
        if self._shadow is not None:
            picked = _NONE
            if asked is not None and wanted is not None:
                picked = wanted.picked = self._shadow.pick(asked.kept, wanted, step)
            found = self._shadow.tell(wanted, picked, apart)
            if apart is not None:
                apart.picked = found

    @_counted
    def bring(self, route: Route, sent: Vectors | None, rows: Floats | None) -> None:
        """Those rows cross; they are kept with the route until its step begins."""
        asked, due_R = route.asked, self._none_R
        wanted = None if asked is None else asked.wanted
        shadows, sent, rows = self._apart_of(route, sent, rows)
        if wanted is not None and self._copies is not None:
            due_R = self._copies.vectors(wanted, np.flatnonzero(wanted.follows_K)).bytes_R
        came = self._messages.floats(
            rows, self._none_R.copy() if sent is None else sent.bytes_R, due_R.copy(), "values"
        )
        sums = self._accumulators(route, wanted)
        if asked is not None and wanted is not None and self._copies is not None:
            route.came = self._copies.came(asked.kept, wanted, came, sums)
        if self._shadow is not None and route.train:
            due, current = self._shadows(route, *shadows)
            if route.came is not None and due is not None:
                route.came.shadows = due, current

    def _apart_of(
        self, route: Route, sent: Vectors | None, rows: Floats | None
    ) -> tuple[tuple[Ints, Floats | None], Vectors | None, Floats | None]:
        """Sizes and vectors of the rows that are only compared, and those that follow by themselves."""
        apart = None if route.served is None else route.served.apart
        if apart is None or rows is None or self._rules is None or not len(apart.picked):
            return (self._none_R.copy(), None), sent, rows
        sent = self._rules.vectors(apart, np.flatnonzero(apart.follows_K))
        n = int(sent.bytes_R.sum()) // self._item
        # a copy: messages between take the room
        return (self._rules.vectors(apart, apart.picked).bytes_R, rows[n:].copy()), sent, rows[:n]

    def _shadows(self, route: Route, sent_R: Ints, rows: Floats | None) -> tuple[Vectors | None, Floats]:
        """Rows that are only compared cross: where they lie, and they."""
        wanted, due = None if route.asked is None else route.asked.wanted, None
        if wanted is not None and self._copies is not None:
            due = self._copies.vectors(wanted, wanted.picked)
        due_R = self._none_R if due is None else due.bytes_R
        return due, self._messages.floats(rows, sent_R, due_R.copy(), "shadow").copy()

    def begin(self, route: Route) -> None:
        """A step begins on a dense rank: forms say what is read, which completes the leaves that came."""
        asked, came, copies = route.asked, route.came, self._copies
        if asked is None or came is None or copies is None or route.arrived is None:
            return
        copies.read(asked.kept, came, train=route.train)
        if came.shadows is not None and self._shadow is not None and asked.wanted is not None:
            due, current = came.shadows
            self._shadow.compare(asked.kept, asked.wanted, due, copies.columns, current)
        asked.pool_kept(self._assembler, route.arrived[0])
        route.came = None

    def take(
        self, route: Route, gradients: Gradients | None, *, learned: bool | None, drain: bool, lr_scale: float
    ) -> None:
        """What dense ranks push after a step, also after one that is left out. By the thread of the steps."""
        asked, copies, route.drain = route.asked, self._copies, drain
        if asked is None or copies is None:
            return
        assert gradients is not None and learned is not None
        asked.merge_kept(self._assembler, gradients)
        route.pushes = copies.push(asked.kept, learned=learned, drain=drain, lr_scale=lr_scale)

    def _accumulators(self, route: Route, wanted: Wanted | None) -> Floats:
        """Those of the rows that came, where some have any."""
        if not self._accumulates:
            return _NO_FLOATS
        apart, message = None if route.served is None else route.served.apart, None
        sent_R, due_R = self._none_R.copy(), self._none_R.copy()
        if apart is not None and self._rules is not None:
            v = self._rules.accumulators.vectors(apart, np.flatnonzero(apart.follows_K))
            sent_R, message = v.bytes_R, self._messages.room(v.bytes_R)
            message[v.start], apart.accumulators = apart.accumulators, None
        if wanted is not None and self._copies is not None:
            due_R = self._copies.accumulators.vectors(wanted, np.flatnonzero(wanted.follows_K)).bytes_R
        return self._messages.as_they_are(message, sent_R, due_R, "values")

    @_counted
    def push(self, route: Route, dtype: np.dtype) -> Pushed | None:
        """That crosses; returns what has come to this owner."""
        copies, rules = self._copies, self._rules
        message, number_E, (wanted, pushes) = None, self._none_R, route.pushes or (None, [])
        sent_R, due_R = self._none_R.copy(), self._none_R.copy()
        if wanted is not None and copies is not None:
            v, number_E = copies.vectors(wanted, np.arange(len(wanted.row_K))), copies.number_E
            sent_R, message = v.bytes_R, np.zeros(int(v.bytes_R.sum()) // dtype.itemsize, dtype)
            copies.write(wanted, pushes, v, message)
        served, due = self._back.pushed(wanted, number_E), None
        if rules is not None:
            due = rules.vectors(served, np.arange(len(served.row_K)))
            due_R = due.bytes_R
        came = self._back.floats(message, sent_R, due_R, "gradients")
        squares_P, route.pushes = self._squares(wanted, pushes, served, due), None
        return None if due is None else Pushed(served, due, came, squares_P)

    def learn(self, route: Route, gradients: Floats, pushed: Pushed | None, *, learned: bool, step: int) -> Floats:
        """What was pushed finds its rows, while rows are this thread's; returns the gradients, and those behind.

        Parameters
        ----------
        gradients : float, flat
            What came by the other messages, and the room behind it.
        step : int
            From 1.
        """
        served = route.served
        if pushed is not None and self._rules is not None:
            self._rules.found(pushed.served)
        if self._check is not None:
            asked, came = None if served is None else served.apart, Served(_NONE, _NONE, _NONE)
            came = came if pushed is None else pushed.served
            self._check.learned(asked, came, learned=learned, drain=route.drain, step=step)
        if self._owner is None or served is None:
            return gradients
        if not learned:
            self._owner.leave_out(served)  # but for what is pushed
        if pushed is None:
            return gradients
        return self._owner.pushed(served, gradients, pushed.served, pushed.at, pushed.floats, pushed.squares_P)

    def _squares(
        self, wanted: Wanted | None, pushes: Sequence[Push], pushed: Served, due: Vectors | None
    ) -> Floats | None:
        """Sums of squares of the vectors that came, where some have any; an owner's."""
        if not self._accumulates:
            return None
        sent_R, due_R, message, mine = self._none_R.copy(), self._none_R.copy(), None, None
        if wanted is not None and self._copies is not None:
            v = self._copies.squares.vectors(wanted, np.arange(len(wanted.row_K)))
            sent_R, message = v.bytes_R, self._back.room(v.bytes_R)
            self._copies.write_squares(wanted, pushes, v, message)
        if self._rules is not None:
            mine = self._rules.squares.vectors(pushed, np.arange(len(pushed.row_K)))
            due_R = mine.bytes_R
        came = self._back.as_they_are(message, sent_R, due_R, "gradients")
        if due is None or mine is None or self._rules is None:
            return None
        squares_P = np.zeros(len(due.row), came.dtype)
        squares_P[self._rules.squares.some_S[due.stream]] = came[mine.start]  # both peer by peer, stream by stream
        return squares_P

    def empty(self) -> None:
        """All copies on this rank are forgotten."""
        if self._copies is not None:
            self._copies.empty()
        if self._check is not None:
            self._check.forget()

    def give_up(self) -> None:
        """Steps that were looked at and not pushed do not come."""
        if self._copies is not None:
            self._copies.give_up()

    def figures(self) -> dict[str, float]:
        """Sums of what this rank's forms, and their rules, say of themselves, and bytes that it has sent for them."""
        held = {} if self._copies is None else self._copies.figures()
        rules = {} if self._rules is None else self._rules.figures()
        return {"sent_bytes": float(self._sent.total()), **held, **rules}

    def record(self) -> CopiesRecord:
        """What lines of metrics tell of, of all steps so far."""
        figures, missing = self.figures(), [] if self._rules is None else self._rules.missing()
        if self._check is not None:
            missing = [self._check.missing]
        reads = [np.zeros(self._bins, np.int64), *(of.reads for of in missing)]
        return CopiesRecord(
            self._counts,
            np.array([figures.get(name, 0.0) for name in self._counts]),
            np.sum([np.pad(of, (0, self._bins - len(of))) for of in reads], axis=0),
            sum(of.ticks for of in missing),
            () if self._shadow is None else self._shadow.tables,
            None if self._shadow is None else self._shadow.found,
        )


class _Messages:
    """The collectives.

    Parameters
    ----------
    collectives : Collectives
    codec : Elementwise
    entries : int
        The most entries of conditional forms that an owner has.
    names, ticks : numpy integer type
        What these take.
    floats : numpy float type
        That of numbers which no codec writes.
    """

    def __init__(
        self,
        collectives: Collectives,
        codec: Elementwise,
        entries: int,
        names: np.dtype,
        ticks: np.dtype,
        floats: np.dtype,
    ) -> None:
        self._collectives, self._codec, self._size, self._floats = collectives, codec, collectives.size, floats
        self._entries, self._names, self._ticks = entries, names, ticks

    def floats(self, message: Floats | None, sent_R: Ints, due_R: Ints, tag: str) -> Floats:
        """Vectors, as the codec writes them."""
        there = self._codec.message(sent_R, tag=tag)
        if message is not None:
            there[: len(message)] = message
        return self._codec.alltoallv(there, sent_R, due_R, tag)

    def room(self, bytes_R: Ints) -> Floats:
        """For numbers that cross as they are."""
        return np.zeros(int(bytes_R.sum()) // self._floats.itemsize, self._floats)

    def as_they_are(self, message: Floats | None, sent_R: Ints, due_R: Ints, tag: str) -> Floats:
        """Numbers that no codec writes."""
        there = self._collectives.message(sent_R, self._floats)
        if message is not None:
            there[: len(message)] = message
        return np.asarray(self._collectives.alltoallv(there, sent_R, due_R, tag))

    def pushed(self, wanted: Wanted | None, number_E: Ints) -> Served:
        """Rows that dense ranks push to this owner, as these call them."""
        counts_RC = np.zeros((self._size, self._entries), np.int64)
        if wanted is not None:
            np.add.at(counts_RC, (wanted.owner_K, number_E[wanted.entry_K]), 1)
        came_RC = self._collectives.alltoall(counts_RC, "control")
        peer, entry = np.nonzero(came_RC)
        n = came_RC[peer, entry]
        served = Served(np.repeat(peer, n), np.repeat(entry, n), _NONE)
        names, ticks = (_NONE, _NONE) if wanted is None else (wanted.names_K, wanted.ticks_K)
        served.row_K = self._numbers(_peers(wanted), names, served.peer_K, self._names)
        served.ticks_K = self._numbers(_peers(wanted), ticks, served.peer_K, self._ticks)
        return served

    def _numbers(self, to_K: Ints, values_K: Ints, from_K: Ints, kind: np.dtype) -> Ints:
        """A number a row each way."""
        sent_R, at_K = numbers(to_K, self._size, bits=8 * kind.itemsize)
        due_R, came_K = numbers(from_K, self._size, bits=8 * kind.itemsize)
        largest = int(values_K.max(initial=0))
        if largest > np.iinfo(kind).max:
            raise HpcrecError(
                f"the name of a row, or a number of steps, is {largest}, and {kind.itemsize} bytes hold no more than "
                f"{np.iinfo(kind).max}. Give the feature a form of its own (exchange.forms)."
            )
        message = self._collectives.message(sent_R, kind)
        message[at_K] = values_K
        return np.asarray(self._collectives.alltoallv(message, sent_R, due_R, "ids")[came_K]).astype(np.int64)

    def bits(self, to_K: Ints, values_K: np.ndarray, from_K: Ints) -> np.ndarray:
        """A bit a row each way."""
        sent_R, at_K = numbers(to_K, self._size, bits=1)
        due_R, came_K = numbers(from_K, self._size, bits=1)
        bits = np.zeros(8 * int(sent_R.sum()), bool)
        bits[at_K] = values_K
        message = self._collectives.message(sent_R, np.uint8)
        message[: len(bits) // 8] = np.packbits(bits)
        came = self._collectives.alltoallv(message, sent_R, due_R, "ids")
        return np.unpackbits(np.asarray(came[: int(due_R.sum())]))[came_K].astype(bool)


def _peers(of: Wanted | Served | None) -> Ints:
    if of is None:
        return _NONE
    return of.owner_K if isinstance(of, Wanted) else of.peer_K
