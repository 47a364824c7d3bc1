"""From a layout and a configuration to the exchange, and the pipeline that runs it by the policy.

Knows what is to be built; which layout is for ``build`` or ``build_exchange`` to say.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from hpcrec.build_dense import DenseSide
from hpcrec.build_tables import DTYPES, make_policy, make_thresholding
from hpcrec.comm.world import World
from hpcrec.config import Config
from hpcrec.embedding.load import Load
from hpcrec.embedding.store import RowStore
from hpcrec.exchange.codec import wire_item_bytes
from hpcrec.exchange.exchange import Exchange, Timer
from hpcrec.exchange.layout import Layout
from hpcrec.exchange.masks import Thresholding
from hpcrec.exchange.measure import ItemBytes
from hpcrec.exchange.offers import Offers
from hpcrec.exchange.reduction import Reduction, reduction_for
from hpcrec.exchange.thresholds import thresholded_bytes
from hpcrec.operators.base import Operator
from hpcrec.policy.pipeline import LANE, Pipeline
from hpcrec.policy.policy import Points
from hpcrec.policy.refusals import refuse
from hpcrec.train.parts import Engine, Split
from hpcrec.types import TableSpec


@dataclass(frozen=True, kw_only=True)
class Ingredients:
    """What an exchange is built of; ``direct``: messages cross from GPU to GPU."""

    config: Config
    world: World
    train: Split
    tables: dict[str, TableSpec]
    operators: Mapping[str, Operator]
    offers: Offers
    store: RowStore | None
    dense: DenseSide
    timer: Timer
    direct: bool

    @property
    def weighted(self) -> set[str]:
        """Features whose ids carry weights."""
        return {f.name for f in self.train.dataset.features if f.weighted}

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of rows."""
        return DTYPES[self.config.train.dtype][0]

    @property
    def wire_item_bytes(self) -> float:
        """Bytes of an element of values or gradients that cross whole."""
        return wire_item_bytes(self.written_as, self.dtype)

    @property
    def asked_item_bytes(self) -> ItemBytes:
        """Bytes of an element on the wire, by what it is of; of thresholded ones as many as their density asks for."""
        how = self.thresholding
        thresholded = None if how is None else partial(thresholded_bytes, how, kind=self.written_as)
        return ItemBytes(self.wire_item_bytes, thresholded)

    @property
    def written_as(self) -> str:
        """Codec of what is not thresholded."""
        exchange = self.config.exchange
        return exchange.dct.values if exchange.codec == "dct" else exchange.codec

    @cached_property  # the one that all engines hold to
    def thresholding(self) -> Thresholding | None:
        """How vectors are thresholded, if they are."""
        return make_thresholding(self.config)

    def reduction(self, layout: Layout) -> Reduction:
        """Which owners add partial results of that layout."""
        topology, config = self.world.topology, self.config
        return reduction_for(
            layout,
            topology.dense,
            topology.host_of,
            config.exchange.reduce,
            samples=config.train.batch_size / len(topology.dense),
            item_bytes=self.wire_item_bytes,
        )

    def engine(self, layout: Layout, store: RowStore | None, load: Load) -> Engine:
        """An exchange of that layout under the run's policy.

        Raises
        ------
        ConfigError
            They do not go together.
        """
        config, policy = self.config, make_policy(self.config)
        cached = config.store.memory_bytes is not None
        refuse(
            policy,
            config.policy.name,
            layout,
            cached=cached,
            changes=bool(self.offers.free) and config.exchange.auto_every > 0,
        )
        exchange = Exchange(
            self.world,
            layout,
            self.operators,
            store,
            weighted=self.weighted,
            seed=config.train.seed,
            dtype=self.dtype,
            timer=self.timer,
            codec=self.written_as,
            thresholding=self.thresholding,
            reads_ids=config.exchange.ids == "read",
            load=load,
            reduction=self.reduction(layout),
            where=self.dense.place_of,
            direct=self.direct,
            lane=self.world.main if policy.in_flight == 1 else self.world.lane(LANE),
            keeps=policy.in_flight > 1,
        )
        ahead, points = config.exchange.prefetch > 0, make_points(config)
        return Engine(
            pipeline=Pipeline(policy, exchange, timer=self.timer, ahead=ahead, points=points),
            store=store,
            load=load,
            features=exchange.features,
            held=exchange.held,
            slices=exchange.slices,
            reduce=exchange.reduction.way,
            masks=exchange.masks,
            thresholding=self.thresholding,
        )

    def placed(self, layout: Layout, store: RowStore | None) -> Engine:
        """The one engine of a session, and dense parameters where it wants them; collective."""
        engine = self.engine(layout, store, Load())
        self.dense.place(engine.slices, layout.away, {})
        return engine


def make_points(config: Config) -> Points:
    """What comes between the steps of a run: checkpoints, evaluations, the end."""
    train, evaluates = config.train, config.data.validation is not None
    judged = train.eval_every if evaluates else 0
    hangs = config.checkpoint.keep_best or train.early_stop is not None
    return Points(
        drains=(config.checkpoint.every, judged if hangs else 0),
        evaluations=(judged,),
    )
