"""One exchange a step: ids to the holders of rows, pooled vectors or rows back, gradients to the holders.

::

    dense rank                            holder (owner; for replicated tables every dense rank)
    route      --- ids ----------------->  read(message), sort by row          phase "ids"        may run ahead
    read       <-- values ---------------  answer: gather and pool             phase "values"
    inputs: what came, as leaves                                               in the step, by its thread
    push: what stages of the step send back                                    likewise
    learn      --- gradients ----------->  apply: merge by row, step           phase "gradients"

Messages may pass other ranks on the way (``way``), hosts may add vectors and gradients before they cross, and ask for
rows together (``between_hosts``), rows may be kept on dense ranks (``kept``), and a step may be read and learned in two
parts (``in_parts``): ``read_part`` twice, ``learn_first``, ``learn_rest``.

Where operators are substituted (form ``partial``, [DES]) the holder computes their partial results from the vectors it
gathers, and sends those instead; the gradients that come back are theirs. Before they are sent, owners of other hosts
than the dense rank's may add theirs among them (``among``, by the plan of ``reduction``). Dense parameters of such
operators are trained there too, so that they take no part in the sum over dense ranks.

One all-to-all a phase whatever the number of tables and forms, through shared memory within a host and ``Ialltoallv``
between hosts (``comm``). Bytes sent per step, vectors of width D, s bytes an element as the ``codec`` writes it (by
levels inside a host as it is), not counting what a rank sends to itself, each message rounded up to 64 bytes:

``ids``        dense -> holder: one message for all entries, ``bytes_R`` of ``kernels.plan_requests``; before it 32
               bytes to every rank (tag ``control``), which tell the size
``values``     holder -> dense: ``pooled`` s D a non-empty (part of a) bag; ``rows`` s D a distinct row;
               ``replicate`` nothing; ``partial`` s P a sample for each operator computed there, P the elements of its
               partial result, and as ``pooled`` for what other operators read; however many of them are added
               on the way, as many bytes are sent in all (``reduction``)
``gradients``  dense -> holder: as ``values``; ``replicate`` s D a distinct row to every dense rank; and s, in one
               message to each holder, for the verdict on the step (``verdict``)

Where forms name stages that messages pass, each of the phases ``values`` and ``gradients`` is a chain of all-to-alls
past other ranks (``way``), and costs those bytes in each. Sums among owners are no such stage: they are over before
there are messages, among owners alone, and say what messages hold.

Ids do not depend on weights, so the phase ``ids`` may run ahead of the step on a thread of its own; which rows ids of
dynamic tables have is found as the phase ``values`` begins. Knows bytes, not time: when a phase runs ``policy`` says.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import numpy as np

from hpcrec.comm.collectives import Collectives
from hpcrec.comm.sizes import UNIT_BYTES
from hpcrec.comm.topology import Topology
from hpcrec.comm.world import World
from hpcrec.embedding.load import Load
from hpcrec.embedding.store import Store
from hpcrec.exchange import verdict
from hpcrec.exchange.among import AmongOwners
from hpcrec.exchange.bags import Splitter
from hpcrec.exchange.between_hosts import BetweenHosts
from hpcrec.exchange.codec import Codec, Elementwise, Kept
from hpcrec.exchange.codecs import codec_for, uncoded_ranks
from hpcrec.exchange.forms.conditional import Conditional, Keeping
from hpcrec.exchange.host_rows import make_host_rows
from hpcrec.exchange.id_reader import IdReader, runners_of
from hpcrec.exchange.in_parts import InParts
from hpcrec.exchange.inputs import Gradients, Inputs
from hpcrec.exchange.kept import KeptRows
from hpcrec.exchange.layout import Layout
from hpcrec.exchange.masks import Thresholding, make_masks
from hpcrec.exchange.norms import ColumnNorms
from hpcrec.exchange.passage import Passage, Passing
from hpcrec.exchange.record import CopiesRecord
from hpcrec.exchange.reduction import Reduction
from hpcrec.exchange.route import Reading, Route
from hpcrec.exchange.sides import Sides
from hpcrec.exchange.slices import Slice
from hpcrec.exchange.tensors import Here, Where
from hpcrec.exchange.way import Way, make_way
from hpcrec.operators.base import Operator
from hpcrec.types import Batch, Floats, GlobalIds

Timer = Callable[[str], AbstractContextManager[object]]
_ALONE: AbstractContextManager[object] = nullcontext()  # nobody else is at the rows
# What every rank tells every other before the ids, 32 bytes.
_CONTROL = np.dtype([("id_bytes", np.int64), ("stop", np.int64), ("weight", np.float64), ("save_failed", np.int64)])


class Exchange:
    """The three phases over all ranks.

    Parameters
    ----------
    world : World
    layout : Layout
    operators : mapping of str to Operator
        What the model receives.
    store : Store or None
        What this rank holds, replicas included; None where it holds nothing.
    weighted : set of str
        Features whose ids carry weights.
    seed : int
    dtype : numpy float type
    timer : callable
        ``timer(name)`` is a context manager that adds to the phase's seconds.
    codec : str
        How values and gradients are written on the wire (``codec``).
    thresholding : Thresholding, optional
        How vectors are thresholded; by default they are not.
    reads_ids : bool
        Holders are given the ids of the global batch, of the features that they hold; else dense ranks send them.
    load : Load, optional
        Where what is asked of this rank's rows is counted.
    reduction : Reduction, optional
        Which owners add partial results; default: none.
    where : Where, optional
        Where the model has its tensors; default: on the host.
    direct : bool
        Messages cross from and to devices' memory; the same on every rank.
    lane : Collectives, optional
        All ranks: of the thread that calls ``read`` and ``learn``; by default the main thread's.
    back : Collectives, optional
        All ranks: of the thread that calls ``learn``, where that is another one. Sums among owners, stages and parts do
        not go with it.
    keeps : bool
        Other steps may be read before a step's gradients come.
    parts : bool
        Steps may be read and learned in two parts (``parts``).
    keeping : Keeping, optional
        By what conditional forms keep rows; default: as they do by themselves.

    Attributes
    ----------
    features : tuple of str
        What the bags of this rank's part of a batch have to hold, on a dense rank.
    held : tuple of str
        What the ids of the global batch have to hold, on a holder that reads them.
    store, thresholding, load, reduction
        As given; reduction by default that of none.
    masks : Masks or None
        Of a holder whose vectors are thresholded.
    copies : KeptRows or None
        Where forms have dense ranks keep rows. What is kept is the thread's of the steps: it calls ``look`` before a
        training step is read, in the order of steps, as it calls ``inputs`` and ``push``.
    version : int
        Steps that are learned, or left out, in the rows that there are: whoever begins at another one sets it.
    """

    def __init__(
        self,
        world: World,
        layout: Layout,
        operators: Mapping[str, Operator],
        store: Store | None,
        *,
        weighted: set[str],
        seed: int,
        dtype: np.dtype,
        timer: Timer,
        codec: str = "fp32",
        thresholding: Thresholding | None = None,
        reads_ids: bool = False,
        load: Load | None = None,
        reduction: Reduction | None = None,
        where: Where | None = None,
        direct: bool = False,
        lane: Collectives | None = None,
        back: Collectives | None = None,
        keeps: bool = False,
        parts: bool = False,
        keeping: Keeping | None = None,
    ) -> None:
        self._keeping = keeping or Keeping()
        self.layout, self._keeps, self.version = layout, keeps, 0
        self._where, self._operators = where or Here(), operators
        self.store, self.thresholding, self.load = store, thresholding, load
        self._world, self._timer, self.dtype = world, timer, np.dtype(dtype)
        topology: Topology = world.topology
        self._size, rank, leg = topology.size, topology.rank, layout.legs.get(topology.rank)
        self.reduction = reduction or Reduction(layout, topology.dense, topology.host_of, "dense")
        self._owner_side = self._dense_side = self._reader = self.masks = None
        self._zeros_R = np.zeros(self._size, np.int64)
        teller_of = verdict.tellers(layout.legs, topology.owners, topology.dense)
        self._teller = teller_of.get(rank, -1)
        self._due_R = UNIT_BYTES * (np.arange(self._size) == self._teller)  # of gradients, where nothing is held
        sides = Sides(topology, layout, self.reduction, keeps, parts, self._keeping)
        if store is not None and leg is not None:
            self._owner_side = sides.owner(store, operators, weighted, load, self._teller)
            self.masks = None if thresholding is None else make_masks(leg, thresholding, topology.table_sets)
        self.features = layout.visible if reads_ids else tuple(layout.form_of)
        self.held = layout.held(topology.rank) if reads_ids else ()
        split = partial(Splitter, layout, seed=seed, weighted=weighted, dtype=dtype)
        if topology.is_dense:
            tells = [r for r, by in teller_of.items() if by == rank]
            self._dense_side = sides.dense(split(set(self.features)), store, tells, self._where.assembler)
        self._reads_ids = reads_ids
        if self.held:
            self._reader = IdReader(split(set(self.held), only=rank), topology.dense, runners_of(layout, topology))
        self._norms = ColumnNorms(world, layout, self.dtype)
        self._codec = self._codec_on(lane or world.main, codec, direct=direct)
        self._hosts = self._between(world) if layout.added or layout.merged else None
        self._back = self._codec if back is None else self._codec_on(back, codec, direct=direct)  # of gradients
        self._among = AmongOwners(world, layout, self.reduction, operators, self.dtype, codec)
        self._left = {name: layout.left.get(name, operator) for name, operator in operators.items()}
        entries = None if self._dense_side is None else self._dense_side.entries
        self._way: Passing | None = make_way(world, layout, operators, entries, self.dtype, codec, lane) or self._hosts
        self._in_parts = self._parted() if parts else None
        self.copies = self._kept_rows(lane or world.main, back) if layout.conditional else None

    def _between(self, world: World) -> BetweenHosts:
        side, rows = self._dense_side, None
        if side is not None and self.layout.merged:
            rows = side.rows = make_host_rows(world, self.layout, side.entries, side.streams, self.dtype)
        return BetweenHosts(world, self.layout, self.dtype, self._codec, self._teller, rows)

    def _kept_rows(self, lane: Collectives, back: Collectives | None) -> KeptRows:
        of = lane, self._codec, self.layout, self._owner_side, self._dense_side, self._keeping, self.dtype
        return KeptRows(*of, None if back is None else (back, self._back), self._where.assembler)

    def _parted(self) -> InParts:
        assert isinstance(self._codec, Elementwise), "refused where it is configured"
        where, sizes = self._where.assembler, {"dtype": self.dtype, "due_R": self._due_R}
        return InParts(self._codec, self._owner_side, self.layout.groups, where, **sizes)

    def _codec_on(self, lane: Collectives, kind: str, *, direct: bool) -> Codec:
        store = None if self.store is None else self.store.device
        devices = (store, self._where.assembler) if direct else None
        uncoded = uncoded_ranks(self._world, self.layout)
        return codec_for(lane, kind, self.dtype, self.masks, self.thresholding, devices, uncoded)

    @property
    def two_lanes(self) -> bool:
        """Whether ``learn`` is called by another thread than ``read``."""
        return self._back is not self._codec

    @property
    def holds_back(self) -> bool:
        """Whether such gradients there may be."""
        forms = self.layout.bundled() if self.layout.conditional else []
        return any(isinstance(form, Conditional) and form.holds_back(self._keeping) for form in forms)

    def figures(self) -> dict[str, float]:
        """What this rank's forms that keep copies say of them: sums."""
        return {} if self.copies is None else self.copies.figures()

    def record(self) -> CopiesRecord | None:
        """What lines of metrics tell of them; None where there are none."""
        return None if self.copies is None else self.copies.record()

    @property
    def slices(self) -> list[Slice]:
        """Parts of operators' dense parameters that are used on this rank, which is to train them."""
        folded = [*([] if self._owner_side is None else self._owner_side.slices), *self._among.slices]
        return folded if self._way is None else [*folded, *self._way.slices]

    def route(
        self,
        batch: Batch | None,
        ids: GlobalIds | None = None,
        *,
        train: bool,
        stop: bool = False,
        save_failed: bool = False,
        reading: Reading | None = None,
    ) -> Route:
        """Phase ``ids``; collective, on the routing communicator, from any one thread at a time.

        Parameters
        ----------
        batch : Batch or None
            This rank's part; None on ranks that are not dense.
        ids : GlobalIds or None
            On holders that read them.
        train : bool
            Whether gradients will come back.
        stop : bool
            Whether this rank was asked to stop.
        save_failed : bool
            Whether this rank knows of a checkpoint that could not be written.
        reading : Reading, optional
            Which set of tables each dense rank reads; default: the first.
        """
        reading = reading or Reading((0,) * self._size, counted=train)
        with self._counting(reading.counted):
            return self._route(batch, ids, reading, train=train, told=(stop, save_failed))

    def give_up(self, route: Route) -> None:
        """Of a step whose values were sent no gradients come any more."""
        if self._owner_side is not None and route.served is not None:
            self._owner_side.release(route.served)

    def close(self) -> None:
        """No step comes any more."""
        if self._owner_side is not None:
            self._owner_side.close()

    def _counting(self, counted: bool) -> AbstractContextManager[None]:
        return nullcontext() if counted else self._world.ledger.paused()

    def _route(
        self, batch: Batch | None, ids: GlobalIds | None, reading: Reading, *, train: bool, told: tuple[bool, bool]
    ) -> Route:
        route = self._world.route
        asked, message = None, np.zeros(0, np.uint8)
        if self._dense_side is not None and batch is not None:
            room = None if self._reads_ids else lambda n_R: route.message(n_R, np.uint8)
            of = reading.sets[self._world.topology.rank]
            asked, message = self._dense_side.ask(
                batch.bags, len(batch.label), room, train=train, tables_of=of, dealing=reading.dealing
            )
        control_R = np.zeros(self._size, _CONTROL)
        control_R["stop"], control_R["save_failed"] = told
        if batch is not None:
            control_R["weight"] = len(batch.label) if batch.weight is None else batch.weight.sum(dtype=np.float64)
        if asked is not None:
            control_R["id_bytes"] = asked.id_bytes_R
        words_RM = control_R.view(np.int64).reshape(self._size, -1)
        heard_R = route.alltoall(words_RM, "control").view(_CONTROL).reshape(self._size)
        received, served, owner_side, bytes_R = None, None, self._owner_side, np.ascontiguousarray(heard_R["id_bytes"])
        if not self._reads_ids:
            sent_R = self._zeros_R if asked is None else asked.id_bytes_R
            came = route.alltoallv(message, sent_R.copy(), bytes_R, "ids")
            received = None if owner_side is None else owner_side.decoded(came, bytes_R, train=train)
        elif self._reader is not None:
            assert ids is not None, "an owner that reads ids was given none"
            received = self._reader.received(ids)
        if owner_side is not None and received is not None:
            some = received if self._hosts is None else self._hosts.without_empty(received)
            served = owner_side.read(some, reading.sets, train=train)
            if self._reader is not None and ids is not None and ids.coming is not None:
                owner_side.look(ids.coming, self._reader, reading.sets)
        weights_R = np.ascontiguousarray(heard_R["weight"])
        total, stop = float(weights_R.sum()), bool(heard_R["stop"].any())
        save_failed = bool(heard_R["save_failed"].any())
        passage: Passage | None = None
        if self._hosts is not None:
            passage = self._hosts.passage(asked, served, received)
        elif isinstance(self._way, Way):
            sizes = (self._zeros_R, self._due_R)
            if served is not None:
                sizes = served.value_bytes_R, served.gradient_bytes_R
            passage = self._way.passage(route, asked, *sizes)
        found = Route(
            asked, served, train, stop, total, weights_R, save_failed, counted=reading.counted, passage=passage
        )
        if self._in_parts is not None and train:
            self._in_parts.mark(found, route)
        return found

    def most_of_all(self, number: float) -> float:
        """The largest of a number over all ranks; collective, on the main thread."""
        return float(self._world.main.allreduce(np.array([number]), op="max")[0])

    def counts_for(self, line: int) -> None:
        """What this thread sends is counted for a line of metrics (``Ledger.counts_for``)."""
        self._world.ledger.counts_for(line)

    def read(self, route: Route, rows: AbstractContextManager[object] = _ALONE, *, ages: int = 0) -> None:
        """Phase ``values``; collective, on the lane. What comes is kept with the route until ``inputs``.

        Where messages pass stages they come as far as these may run ahead of the step. While ``rows`` lasts rows are
        read: what changes them waits for its end, or is waited for. ``ages``: steps in flight at most, where it is to
        be counted how many updates rows lack.
        """
        asked, served, way, passage = route.asked, route.served, self._way, route.passage
        with rows:
            with self._timer("gather"):
                if self._owner_side is not None and served is not None and served.find is not None:
                    self._owner_side.find(served)
            apart = None
            if self.copies is not None:
                with self._timer("values"), self._counting(route.counted):  # who asks late is waited for
                    apart = self.copies.ask(route, self.version)
            with self._timer("gather"):
                sent_R = self._zeros_R if served is None else served.value_bytes_R
                wanted_R = self._zeros_R if asked is None else asked.value_bytes_R
                behind = 0 if served is None else served.values_behind * self.dtype.itemsize
                behind += 0 if apart is None else int(apart.bytes_R.sum())
                sent, copied = (way or self._codec).message(sent_R, behind, "values"), None
                if self._owner_side is not None and served is not None:
                    if ages:
                        route.ages = self._owner_side.ages(served, ages)
                    copied = self._owner_side.answer(served, sent, apart)
                route.version = self.version
                if asked is not None and self._keeps and (way is not None or self.two_lanes):
                    asked = asked.take_copies()  # steps before may be learned until they are assembled
        with self._timer("values"), self._counting(route.counted):
            if not self._among.idle:
                self._among.forward(None if served is None else served.partials, train=route.train)
            if self._owner_side is not None and served is not None:
                self._owner_side.write(served, sent)
            if way is not None and passage is not None:
                passage.flat = way.forward(passage, sent, way.ahead, train=route.train)
                route.asked = asked
            else:
                spans = None if served is None else served.spans
                received, route.kept = self._codec.values(sent, sent_R, wanted_R, spans, train=route.train)
            if self.copies is not None:
                self.copies.bring(route, apart, copied)
        if asked is not None and way is None:
            with self._timer("assemble"):
                route.arrived = asked.assemble(self._where.assembler, received, self.layout.groups)

    def read_part(self, route: Route, *, early: bool) -> None:
        """Phase ``values`` of the early bags of a step, or of the others, which follow; collective, on the lane."""
        assert self._in_parts is not None
        route.version = self.version
        with self._timer("gather"):
            sent, sent_R = self._in_parts.gather(route, early=early)
        with self._timer("values"), self._counting(route.counted):
            self._in_parts.cross(route, sent, sent_R, early=early)
        if not early:
            with self._timer("assemble"):
                route.arrived = self._in_parts.assemble(route)

    def learn_first(
        self, route: Route, ahead: Route, found: Gradients | None, *, learned: bool | None, step: int, lr_scale: float
    ) -> bool:
        """Phase ``gradients`` of the urgent bags of a step, and the verdict; collective, on the lane.

        The rows learn that the step ``ahead``, which was read early, asks for too; the others by ``learn_rest``.
        Arguments are those of ``learn``.
        """
        assert self._in_parts is not None
        if found is not None:
            assert learned is not None
            with self._timer("disassemble"):
                self._in_parts.disassemble(route, found, learned=learned)
        with self._timer("gradients"):
            route.learned = self._in_parts.send(route, urgent=True, learned=learned)
        if route.learned:
            self._learn_part(route, ahead, step=step, lr_scale=lr_scale, urgent=True)
        self.version = step
        return route.learned

    def learn_rest(self, route: Route, ahead: Route, *, step: int, lr_scale: float) -> None:
        """Of a step that was learned in part: the other gradients, and the rows that ``ahead`` does not ask for."""
        assert self._in_parts is not None
        if route.learned:
            with self._timer("gradients"):
                self._in_parts.send(route, urgent=False, learned=True)
            self._learn_part(route, ahead, step=step, lr_scale=lr_scale, urgent=False)
        else:
            self._in_parts.leave_out(route)

    def _learn_part(self, route: Route, ahead: Route, *, step: int, lr_scale: float, urgent: bool) -> None:
        assert self._in_parts is not None
        with self._timer("update"):
            self._in_parts.apply(route, ahead, step=step, lr_scale=lr_scale, norm_sum=self._norms.sum, urgent=urgent)

    def inputs(self, route: Route) -> Inputs | None:
        """What the model receives of what was read, on dense ranks; None elsewhere. Called by the thread of the steps.

        Once: what came is the inputs' from then on. Where a stage has dense parameters, it and what is behind it are
        passed here, for these are never old: then it is collective, on the main lane.
        """
        if self._way is not None and route.passage is not None:
            self._arrive(route, route.passage, self._way)
        if self.copies is not None:
            with self._timer("copies"):
                self.copies.begin(route)
        if route.arrived is None:
            return None
        (leaves, partials), route.arrived = route.arrived, None
        with self._timer("assemble"):
            return Inputs(leaves, partials, self.layout, self._left, train=route.train, where=self._where)

    def _arrive(self, route: Route, passage: Passage, way: Passing) -> None:
        flat, passage.flat = passage.flat, None
        assert flat is not None, "inputs follow a read, once"
        with self._timer("values"), self._counting(route.counted):
            received = way.forward(passage, flat, way.current, train=route.train)
        if route.asked is not None:
            with self._timer("assemble"):
                route.arrived = route.asked.assemble(self._where.assembler, received, self.layout.groups)

    def push(
        self, route: Route, found: Gradients | None, *, learned: bool | None, lr_scale: float = 1.0, drain: bool = True
    ) -> Gradients | None:
        """What is left to be handed to ``learn``, by any thread and later. Called by the thread of the steps.

        Without stages that is all of it. With them nothing is: gradients are written, and go back as far as ``inputs``
        took the values from. Collective as that is; arguments as of ``learn``. What dense ranks keep learns here.

        Parameters
        ----------
        drain : bool
            No gradient may be held back: a drain point comes after the step. The same on every rank.
        """
        if self.copies is not None:
            with self._timer("copies"):
                self.copies.take(route, found, learned=learned, drain=drain, lr_scale=lr_scale)
        way, passage, asked = self._way, route.passage, route.asked
        if way is None or passage is None:
            return found
        with self._timer("disassemble"):
            sent = way.message(self._zeros_R if asked is None else asked.gradient_bytes_R)
            if asked is not None:
                assert found is not None and learned is not None
                asked.disassemble(self._where.assembler, found, sent, 0, learned=learned)
        with self._timer("gradients"):
            passage.flat = way.backward(passage, sent, way.current)
        return None

    def learn(
        self,
        route: Route,
        found: Gradients | None,
        *,
        learned: bool | None,
        step: int,
        lr_scale: float,
        rows: AbstractContextManager[object] = _ALONE,
    ) -> bool:
        """Phase ``gradients``; collective, on the lane. Rows have stepped when it returns, if they are to.

        Parameters
        ----------
        found : Gradients or None
            What ``push`` has left; None on ranks that are not dense.
        learned : bool or None
            The verdict that dense ranks have agreed on: else the step changes nothing. None on the other ranks.
        step : int
            Global step, from 1.
        lr_scale : float
        rows : context manager, optional
            While it lasts rows change, as of ``read``.

        Returns
        -------
        bool
            The verdict, on every rank.
        """
        asked, served, way, passage = route.asked, route.served, self._way, route.passage
        with self._timer("disassemble"):
            sent_R = self._zeros_R if asked is None else asked.gradient_bytes_R
            due_R = self._due_R if served is None else served.gradient_bytes_R
            behind = 0 if served is None else served.gradients_behind * self.dtype.itemsize
            sent = self._back.message(sent_R, behind, "gradients") if passage is None else passage.flat
            assert sent is not None, "gradients are pushed first"
            if asked is not None and passage is None:
                assert found is not None and learned is not None
                asked.disassemble(self._where.assembler, found, sent, behind // self.dtype.itemsize, learned=learned)
        with self._timer("gradients"):
            if way is not None and passage is not None:
                received = way.backward(passage, sent, way.ahead, behind)
            else:
                kept = None if self.thresholding is None else self._kept(route)
                received = self._back.gradients(sent, sent_R, due_R, behind, kept)
            if learned is None:
                learned = verdict.read(received, 0 if served is None else served.verdict_at)
            route.learned = learned
            if not learned and self.copies is None:  # what is kept of the step goes with it
                with rows:
                    if self._owner_side is not None and served is not None:
                        self._owner_side.release(served)
                    self.version = step
                return False
            if learned:
                if self._owner_side is not None and served is not None:
                    self._owner_side.read_gradients(served, received)
                if not self._among.idle:
                    self._among.backward(None if served is None else served.partials)
            pushed = None if self.copies is None else self.copies.push(route, self.dtype)
        with rows:
            if self.copies is not None:
                with self._timer("copies"):
                    received = self.copies.learn(route, received, pushed, learned=learned, step=step)
            self._apply(route, received, step=step, lr_scale=lr_scale)
            self.version = step
        return learned

    def _apply(self, route: Route, received: Floats, *, step: int, lr_scale: float) -> None:
        """The rows that were asked for step."""
        served, owner = route.served, self._owner_side
        if owner is None or served is None:
            with self._timer("update"):
                self._norms.sum({})  # every owner takes part, one that holds nothing too
            return
        with self._timer("update"):
            owner.apply(served, received, step=step, lr_scale=lr_scale, norm_sum=self._norms.sum)

    def _kept(self, route: Route) -> Kept:
        """Which elements of gradients cross where not all do: those whose values did, and the verdict."""
        told = {} if route.asked is None else route.asked.told
        heard = {} if self._teller < 0 else {self._teller: 0 if route.served is None else route.served.verdict_in}
        return verdict.kept_with(route.kept or Kept({}, {}), told, heard)
