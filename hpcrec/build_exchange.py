"""The exchange of a session, and under form ``auto`` another one whenever other forms have become cheaper.

Which batches a step will have is known before, so forms are chosen by the very batches that come next. A choice is a
pure function of data, configuration and step: a resumed run chooses what the run before it had. Knows what is to be
built; bytes are for ``exchange.measure``, the choice for ``exchange.choose``.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from hpcrec.build_device import make_device
from hpcrec.build_engine import Ingredients
from hpcrec.comm.failure import agree
from hpcrec.comm.ledger import TAGS
from hpcrec.data.loader import Loader
from hpcrec.embedding.load import Load
from hpcrec.embedding.sets import families_in, name_in
from hpcrec.embedding.store import RowStore
from hpcrec.exchange.choose import Choice, Chooser
from hpcrec.exchange.layout import Layout
from hpcrec.exchange.measure import Asks, Counter, cross_host_bytes
from hpcrec.exchange.migrate import migrate
from hpcrec.exchange.split import Splitter
from hpcrec.train.parts import Engine


class Auto:
    """Chooses forms at the start, and again every ``exchange.auto_every`` steps.

    Parameters
    ----------
    given : Ingredients

    Attributes
    ----------
    engine : Engine
        What was built of the last choice.
    history : list of dict
        Choices since this process began to train, as ``summary.json`` has them: one wherever forms changed.
    told : list of dict
        What was found whenever it was counted, for the log.
    before_moving : callable
        Called before rows are moved: nobody reads them beside the steps any more.
    """

    engine: Engine
    before_moving: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, given: Ingredients) -> None:
        self.history: list[dict[str, Any]] = []
        self.told: list[dict[str, Any]] = []
        self._given = given
        self._every = given.config.exchange.auto_every
        self._load = Load()
        self._store = given.store
        self._choice: Choice | None = None
        self._counted_at = -1
        self._step = 0  # until which bytes were counted
        self._bytes = np.zeros(len(TAGS), np.int64)
        self._spent = np.zeros(len(TAGS), np.int64)  # since the last change
        self._begun = False
        self.adapt(0)

    def begin(self, step: int) -> None:
        """Steps follow from this one on, which may be that of a checkpoint; collective."""
        self.adapt(step)
        if not self._begun:  # what was chosen before is no step's of this process
            self._begun, self._step, self._bytes = True, step, self._sent()
            self.history, self.told = [{**self.history[-1], "from_step": step}], self.told[-1:]

    def due(self, step: int) -> bool:
        """Whether ``adapt`` would count again before this step."""
        return self._first_of(step) != self._counted_at

    def _first_of(self, step: int) -> int:
        return step - step % self._every if self._every else 0

    def adapt(self, step: int) -> bool:
        """Chooses for the steps from here on; collective, between steps. Whether ``engine`` is another one now.

        Raises
        ------
        DataError
            The data cannot be read, or have an id outside its table; on every rank.
        """
        if not self.due(step):
            return False
        self._counted_at = self._first_of(step)
        spent = self.finish(step)
        with self._given.timer("choose"):
            choice, asks = self._choose(self._counted_at)
            before, self._choice = self._choice, choice
            changed = before is None or (before.forms, before.replicated) != (choice.forms, choice.replicated)
            if changed:
                self._take(choice, before)
        families = self._given.offers.families
        found = {
            "forms": choice.forms,
            "copied_tables": [t for f in families if f.name in choice.replicated for t in f.tables],
            **self._described(choice, asks),
            "predicted_bytes_per_step": choice.predicted,
            "single_form_bytes_per_step": choice.single,
            "owner_flops_per_step": choice.flops,
        }
        self.told.append({**found, "counted_bytes_per_step": spent})
        if changed:
            self._spent[:] = 0
            self.history.append({"from_step": step, "steps": 0, **found, "counted_bytes_per_step": {}})
        return changed

    def finish(self, step: int) -> dict[str, float]:
        """Writes down what the last choice has cost until here; collective. Bytes a step since this was last done."""
        if not self._begun:
            return {}
        sent, steps = self._sent(), step - self._step
        spent = sent - self._bytes
        self._step, self._bytes = step, sent
        self._spent += spent
        last = self.history[-1]
        last["steps"] += steps
        last["counted_bytes_per_step"] = _means(self._spent, last["steps"])
        return _means(spent, steps)

    def _sent(self) -> np.ndarray:
        total: np.ndarray = self._given.world.total_wire_bytes().sum(axis=1)
        return total

    def _described(self, choice: Choice, asks: Asks) -> dict[str, Any]:
        """How partial results are added, and what crosses hosts so."""
        layout = self._given.offers.layout(choice.forms, choice.replicated)
        reduction = self._given.reduction(layout)
        crossing = cross_host_bytes(layout, asks, reduction, item_bytes=self._given.asked_item_bytes)
        return {"reduce": reduction.way, "predicted_cross_host_bytes_per_step": crossing}

    def _choose(self, step: int) -> tuple[Choice, Asks]:
        given, error, counter = self._given, None, None
        try:
            counter = self._counted(step)
        except Exception as caught:
            error = caught
        agree(given.world.main, error)
        assert counter is not None, "no rank has failed"
        asks = counter.asks(given.world.main.allreduce(counter.totals()))
        chooser = Chooser(
            given.offers,
            asks,
            item_bytes=given.asked_item_bytes,
            budget_bytes=0 if given.config.exchange.codec in ("fp16", "dct") else given.config.exchange.auto_copies,
            dense_elements=given.dense.elements,
            dense_item_bytes=given.dense.item_bytes,
            samples=given.config.train.batch_size,
            groups=given.world.topology.groups,
        )
        return chooser.choose(), asks

    def _counted(self, step: int) -> Counter:
        """What this rank asks in the steps that follow: nothing, where it is not dense."""
        given, topology = self._given, self._given.world.topology
        splitter: Callable[[Layout, set[str]], Splitter] = partial(
            Splitter, seed=given.config.train.seed, replicas=None, weighted=given.weighted, dtype=given.dtype
        )
        reads_ids, layouts = given.config.exchange.ids == "read", given.offers.counted()
        counter = Counter(
            layouts, splitter, reads_ids=reads_ids, rank=topology.rank, dense=topology.dense, far=topology.far
        )
        if topology.is_dense:
            loader = Loader(
                given.train.dataset,
                given.train.order,
                part=topology.dense_index,
                parts=len(topology.dense),
                features=tuple(layouts[0].form_of),
                prefetch=0,
            )
            epoch, index = divmod(step, given.train.order.n_batches)
            with loader.batches(epoch, index, given.config.exchange.auto_steps) as batches:
                for batch in batches:
                    counter.add(batch.bags, len(batch.label))
        return counter

    def _take(self, choice: Choice, before: Choice | None) -> None:
        """Builds what was chosen; rows of tables that get copies, lose or keep them, are taken along."""
        given, store, engine, error = self._given, self._store, None, None
        layout = given.offers.layout(choice.forms, choice.replicated)
        gathered = given.dense.gather() if before is not None else {}
        anew = before is None or before.replicated != choice.replicated
        try:
            if anew:
                store = self._with_copies(choice)
            engine = given.engine(layout, store, self._load)
        except Exception as caught:
            error = caught
        agree(given.world.main, error)
        assert engine is not None, "no rank has failed"
        if before is not None:
            if anew:
                self.before_moving()
                sets = given.world.topology.table_sets
                then, now = (families_in(sets, given.offers.families_with(c.replicated)) for c in (before, choice))
                copied = {name_in(n, name) for n in range(sets) for name in (*before.replicated, *choice.replicated)}
                pairs = [(old, new) for old, new in zip(then, now, strict=True) if old.name in copied]
                migrate(given.world, given.tables, pairs, self._store, store)
            if engine.masks is not None and self.engine.masks is not None:
                engine.masks.follow(self.engine.masks)
            self.engine.pipeline.close()
        given.dense.place(engine.slices, layout.away, gathered)
        self._store, self.engine = store, engine

    def _with_copies(self, choice: Choice) -> RowStore | None:
        """This rank's rows, with copies of what is replicated; initial rows, where nothing was trained yet."""
        given, rank = self._given, self._given.world.topology.rank
        families = given.offers.families_with(choice.replicated)
        copied = families_in(given.world.topology.table_sets, [f for f in families if f.name in choice.replicated])
        copies = None
        if copied and given.world.topology.is_dense:
            device = make_device(given.config, given.world.topology)
            copies = RowStore(
                given.tables, copied, rank=rank, seed=given.config.train.seed, dtype=given.dtype, device=device
            )
        return RowStore.joined(given.store, copies, {table for family in copied for table in family.tables})


def _means(bytes_T: np.ndarray, steps: int) -> dict[str, float]:
    """Bytes a step by tag; none where there were no steps."""
    return dict(zip(TAGS, (bytes_T / steps).tolist(), strict=True)) if steps else {}
