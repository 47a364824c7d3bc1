"""The exchange of a session, and under form ``auto`` another one whenever other forms have become cheaper.

Which batches a step will have is known before, so forms are chosen by the very batches that come next. A choice is a
pure function of data, configuration and step: a resumed run chooses what the run before it had. Knows what is to be
built; bytes are for ``exchange.measure``, the choice for ``exchange.choose``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hpcrec.build_tables import DTYPES
from hpcrec.comm.collectives import padded_bytes
from hpcrec.comm.failure import agree
from hpcrec.comm.ledger import TAGS
from hpcrec.comm.world import World
from hpcrec.config import Config
from hpcrec.data.loader import Loader
from hpcrec.embedding.load import Load
from hpcrec.embedding.store import RowStore
from hpcrec.exchange.choose import Choice, Chooser, Offers
from hpcrec.exchange.exchange import Exchange, Timer
from hpcrec.exchange.layout import Layout
from hpcrec.exchange.measure import Asks, Counter
from hpcrec.exchange.migrate import migrate
from hpcrec.exchange.split import Splitter
from hpcrec.operators.base import Operator
from hpcrec.policy.sync import Sync
from hpcrec.train.parts import Engine, Split
from hpcrec.types import TableSpec


@dataclass(frozen=True, kw_only=True)
class Built:
    """What an exchange is built of."""

    config: Config
    world: World
    train: Split
    tables: dict[str, TableSpec]
    operators: Mapping[str, Operator]
    offers: Offers
    store: RowStore | None
    timer: Timer

    @property
    def weighted(self) -> set[str]:
        """Features whose ids carry weights."""
        return {f.name for f in self.train.dataset.features if f.weighted}

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of rows."""
        return DTYPES[self.config.train.dtype][0]

    def engine(self, layout: Layout, store: RowStore | None, load: Load) -> Engine:
        """An exchange of that layout under the run's policy."""
        config = self.config
        exchange = Exchange(
            self.world,
            layout,
            self.operators,
            store,
            weighted=self.weighted,
            seed=config.train.seed,
            dtype=self.dtype,
            timer=self.timer,
            reads_ids=config.exchange.ids == "read",
            load=load,
        )
        return Engine(
            policy=Sync(exchange, timer=self.timer, ahead=config.exchange.prefetch > 0),
            store=store,
            load=exchange.load,
            features=exchange.features,
            held=exchange.held,
        )


class Auto:
    """Chooses forms at the start, and again every ``exchange.auto_every`` steps.

    Parameters
    ----------
    built : Built

    Attributes
    ----------
    engine : Engine
        What was built of the last choice.
    history : list of dict
        Every choice, as ``summary.json`` has it; the counts of the last one are filled in by ``finish``.
    """

    engine: Engine

    def __init__(self, built: Built) -> None:
        self.history: list[dict[str, Any]] = []
        self._built = built
        self._every = built.config.exchange.auto_every
        self._load = Load()
        self._store = built.store
        self._choice: Choice | None = None
        self._counted_at = -1
        self._bytes = np.zeros(len(TAGS), np.int64)
        self.adapt(0)

    def begin(self, step: int) -> None:
        """The run goes on from this step, which may be that of a checkpoint; collective."""
        self.adapt(step)
        self.history[-1]["from_step"] = step
        self._bytes = self._sent()

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
        built = self._built
        with built.timer("choose"):
            choice = self._choose(self._counted_at)
            before, self._choice = self._choice, choice
            if before is not None and (before.forms, before.replicated) == (choice.forms, choice.replicated):
                return False
            self.finish(step)
            self._take(choice, before)
        self.history.append(
            {
                "from_step": step,
                "steps": 0,
                "forms": choice.forms,
                "copied_tables": [t for f in built.offers.families if f.name in choice.replicated for t in f.tables],
                "predicted_bytes_per_step": choice.predicted,
                "single_form_bytes_per_step": choice.single,
                "counted_bytes_per_step": {},
            }
        )
        return True

    def finish(self, step: int) -> None:
        """Writes down what the last choice has cost until here; collective."""
        if not self.history:
            return
        last, sent = self.history[-1], self._sent()
        last["steps"] = step - last["from_step"]
        means = (sent - self._bytes) / max(last["steps"], 1)
        last["counted_bytes_per_step"] = dict(zip(TAGS, means.tolist(), strict=True))
        self._bytes = sent

    def _sent(self) -> np.ndarray:
        total: np.ndarray = self._built.world.total_wire_bytes().sum(axis=1)
        return total

    def _choose(self, step: int) -> Choice:
        built, error, asks = self._built, None, None
        try:
            if built.world.topology.is_dense:
                asks = self._asks(step)
        except Exception as caught:
            error = caught
        agree(built.world.main, error)
        everyone = built.world.main.allgather(asks)
        chooser = Chooser(
            built.offers,
            {rank: found for rank, found in enumerate(everyone) if found is not None},
            item_bytes=built.dtype.itemsize,
            pad=padded_bytes,
            budget_bytes=built.config.exchange.auto_copies,
        )
        return chooser.choose()

    def _asks(self, step: int) -> Asks:
        """What this dense rank asks in the steps that follow."""
        built, topology = self._built, self._built.world.topology
        layouts = built.offers.counted()
        loader = Loader(
            built.train.dataset,
            built.train.order,
            part=topology.dense_index,
            parts=len(topology.dense),
            features=tuple(layouts[0].form_of),
            prefetch=0,
        )
        splitter: Callable[[Layout, set[str]], Splitter] = partial(
            Splitter, seed=built.config.train.seed, replicas=None, weighted=built.weighted, dtype=built.dtype
        )
        counter = Counter(layouts, splitter, reads_ids=built.config.exchange.ids == "read", far=topology.far)
        epoch, index = divmod(step, built.train.order.n_batches)
        with loader.batches(epoch, index, built.config.exchange.auto_steps) as batches:
            for batch in batches:
                counter.add(batch.bags, len(batch.label))
        return counter.asks()

    def _take(self, choice: Choice, before: Choice | None) -> None:
        """Builds what was chosen; rows of tables that get copies, or lose them, are taken along."""
        built = self._built
        now = built.offers.families_with(choice.replicated)
        store = self._store
        if before is None or before.replicated != choice.replicated:
            store = self._with_copies(choice)
        if before is not None:
            then = built.offers.families_with(before.replicated)
            moved = [old for old, new in zip(then, now, strict=True) if old != new]
            migrate(built.world, built.tables, moved, self._store, store)
            self.engine.policy.close()
        self._store = store
        self.engine = built.engine(built.offers.layout(choice.forms, choice.replicated), store, self._load)

    def _with_copies(self, choice: Choice) -> RowStore | None:
        """This rank's rows, with copies of what is replicated; initial rows, where nothing was trained yet."""
        built, rank = self._built, self._built.world.topology.rank
        copied = [f for f in built.offers.families_with(choice.replicated) if f.name in choice.replicated]
        copies = None
        if copied and built.world.topology.is_dense:
            copies = RowStore(built.tables, copied, rank=rank, seed=built.config.train.seed, dtype=built.dtype)
        return RowStore.joined(built.store, copies, {table for family in copied for table in family.tables})
