"""The phases ``values`` and ``gradients`` in two parts each, where a policy looks ahead exactly.

::

    dense rank                            holder
    mark       <-- a byte a bag --------  which bags of t + 1 are early, and which of t urgent    phase "ids"
    read       <-- values --------------  the early bags of t + 1; then the others                phase "values"
    learn      --- gradients ---------->  the urgent bags of t, and the verdict; then the others  phase "gradients"

What each part holds is for ``parts``, when it comes for ``policy``. Knows messages and both sides; knows no order.
"""

from collections.abc import Sequence

import numpy as np

from hpcrec import kernels
from hpcrec.comm.collectives import Collectives
from hpcrec.comm.sizes import padded_bytes
from hpcrec.embedding.store import NormSum
from hpcrec.exchange import verdict
from hpcrec.exchange.bags import cumulative, ranges
from hpcrec.exchange.codec import Elementwise
from hpcrec.exchange.dense_side import Arrived
from hpcrec.exchange.inputs import Gradients
from hpcrec.exchange.layout import LeafGroup
from hpcrec.exchange.owner_side import OwnerSide
from hpcrec.exchange.route import Route
from hpcrec.exchange.work import Served
from hpcrec.types import Floats, Ints


class InParts:
    """Of one rank.

    Parameters
    ----------
    codec : Elementwise
        On the lane of the thread that reads and learns.
    owner_side : OwnerSide or None
    groups : sequence of LeafGroup
    assembler : Device or None
        Where leaves are.
    dtype : numpy float type
    due_R : int64 [R]
        Bytes of gradients, where nothing is held: of the verdict.
    """

    def __init__(
        self,
        codec: Elementwise,
        owner_side: OwnerSide | None,
        groups: Sequence[LeafGroup],
        assembler: kernels.Device | None,
        *,
        dtype: np.dtype,
        due_R: Ints,
    ) -> None:
        self._codec, self._owner_side, self._dtype, self._due_R = codec, owner_side, np.dtype(dtype), due_R
        self._groups, self._assembler = groups, assembler
        self._none_R = np.zeros(len(due_R), np.int64)
        self._marked: Route | None = None  # the training step that was marked last

    def mark(self, route: Route, lane: Collectives) -> None:
        """Tells which bags of a routed step are early, and which of the step before are urgent; collective."""
        before, self._marked = self._marked, route
        steps = [route] if before is None else [route, before]
        of_holder = [
            self._none_R if one.served is None or one.served.parts is None else one.served.parts.bags_R for one in steps
        ]
        of_dense = [
            self._none_R if one.asked is None or one.asked.bags_R is None else one.asked.bags_R for one in steps
        ]
        sent_R, due_R = (padded_bytes(np.sum(bags_SR, axis=0)) for bags_SR in (of_holder, of_dense))
        message, at_R = lane.message(sent_R, np.uint8), cumulative(sent_R)[:-1]
        for one, bags_R in zip(steps, of_holder, strict=True):
            if one.served is not None and one.served.parts is not None:
                parts = one.served.parts
                message[ranges(at_R, bags_R)] = parts.early if one is route else parts.urgent
            at_R = at_R + bags_R
        came, at_R = lane.alltoallv(message, sent_R.copy(), due_R.copy(), "ids"), cumulative(due_R)[:-1]
        for one, bags_R in zip(steps, of_dense, strict=True):
            marks = np.asarray(came[ranges(at_R, bags_R)]).astype(bool)
            one.early, one.urgent = (marks, None) if one is route else (one.early, marks)
            at_R = at_R + bags_R

    def gather(self, route: Route, *, early: bool) -> tuple[Floats, Ints]:
        """The vectors of the early bags, or of the others, as they are sent, and bytes to each rank."""
        owner, served = self._owner_side, route.served
        if owner is None or served is None:
            return self._codec.message(self._none_R), self._none_R
        owner.find(served)
        values = np.zeros(int(served.value_bytes_R.sum()) // self._dtype.itemsize, self._dtype)
        packed = owner.answer_part(served, values, early=early)
        message = self._codec.message(packed.bytes_R)
        packed.pack(values, message)
        return message, packed.bytes_R

    def cross(self, route: Route, message: Floats, sent_R: Ints, *, early: bool) -> None:
        """They are sent, and what comes is put in its places; collective."""
        asked, due = route.asked, None
        if asked is not None and asked.places is not None and route.early is not None:
            due = asked.places.of(route.early if early else ~route.early, self._dtype.itemsize, self._none_R)
        due_R = self._none_R if due is None else due.bytes_R
        came = self._codec.alltoallv(message, sent_R.copy(), due_R.copy(), "values")
        if asked is None or due is None:
            return
        if early:
            route.values = np.zeros(int(asked.value_bytes_R.sum()) // self._dtype.itemsize, self._dtype)
        assert route.values is not None, "early bags come first"
        due.unpack(came, route.values)

    def assemble(self, route: Route) -> Arrived | None:
        """What has come in both parts."""
        if route.asked is None or route.values is None:
            return None
        values, route.values = route.values, None
        return route.asked.assemble(self._assembler, values, self._groups)

    def disassemble(self, route: Route, found: Gradients, *, learned: bool) -> None:
        """Writes a step's gradients, which are kept with it until they are sent."""
        assert route.asked is not None
        route.gradients = np.empty(int(route.asked.gradient_bytes_R.sum()) // self._dtype.itemsize, self._dtype)
        route.asked.disassemble(self._assembler, found, route.gradients, 0, learned=learned)

    def send(self, route: Route, *, urgent: bool, learned: bool | None) -> bool:
        """Sends the gradients of urgent bags, and the verdict, or the others'; collective. Returns the verdict."""
        message, sent_R = self._message(route, urgent=urgent, learned=learned)
        owner, served = self._owner_side, route.served
        due = None if owner is None or served is None else owner.learned_part(served, urgent=urgent)
        due_R = (self._due_R if urgent else self._none_R) if due is None else due.bytes_R
        came = self._codec.alltoallv(message, sent_R.copy(), due_R.copy(), "gradients")
        if learned is None:
            teller = int(np.argmax(self._due_R))
            learned = verdict.read(came, 0 if due is None else int(due.end_R[teller]))
        if due is not None and served is not None and learned:
            due.unpack(came, self._received(served))
        return learned

    def _message(self, route: Route, *, urgent: bool, learned: bool | None) -> tuple[Floats, Ints]:
        asked = route.asked
        if asked is None or route.gradients is None:
            return self._codec.message(self._none_R, tag="gradients"), self._none_R
        assert asked.back is not None and route.urgent is not None, "the step after it is routed"
        told = np.array([*asked.told], np.int64) if urgent else self._none_R[:0]
        told_R = np.bincount(told, minlength=len(self._none_R)).astype(np.int64)
        out = asked.back.of(route.urgent if urgent else ~route.urgent, self._dtype.itemsize, told_R)
        message = self._codec.message(out.bytes_R, tag="gradients")
        out.pack(route.gradients, message)
        if urgent:
            assert learned is not None
            verdict.write(message, out.end_R[told], learned=learned)
        else:
            route.gradients = None
        return message, out.bytes_R

    def _received(self, served: Served) -> Floats:
        """Where a step's gradients come: zeros where none has come yet, as of rows that lost their ids meanwhile."""
        parts = served.parts
        assert parts is not None
        if parts.received is None:
            n = int(served.gradient_bytes_R.sum()) // self._dtype.itemsize + served.gradients_behind
            parts.received = np.zeros(n, self._dtype)
        return parts.received

    def apply(self, route: Route, ahead: Route, *, step: int, lr_scale: float, norm_sum: NormSum, urgent: bool) -> None:
        """The rows learn that the step ``ahead`` asks for too, or the others, which are the last; owners sum norms."""
        owner, served = self._owner_side, route.served
        if owner is None or served is None:
            norm_sum({})  # every owner takes part, one that holds nothing too
            return
        assert served.parts is not None and served.parts.received is not None and ahead.served is not None
        works = owner.part_to_learn(served, ahead.served, asked=urgent)
        given = {"step": step, "lr_scale": lr_scale, "norm_sum": norm_sum}
        owner.apply(served, served.parts.received, **given, works=works, last=not urgent)  # type: ignore[arg-type]

    def leave_out(self, route: Route) -> None:
        """No gradient of the step is learned."""
        route.gradients = None
        if self._owner_side is not None and route.served is not None:
            self._owner_side.release(route.served)
