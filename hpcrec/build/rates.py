"""How often rows are asked for, counted before a run whose dense ranks keep rows, and the forecast made of it.

Knows what is to be built; what is counted is for ``exchange.forecast``.
"""

from collections.abc import Sequence

from hpcrec.build.dealing import make_affinity
from hpcrec.build.tables import DTYPES, make_keeping
from hpcrec.comm.topology import Topology
from hpcrec.config import Config
from hpcrec.data.loader import Loader
from hpcrec.exchange.bags import Splitter
from hpcrec.exchange.forecast import Counted, Forecast, RateCounter, rates_of
from hpcrec.exchange.layout import Layout
from hpcrec.exchange.offers import Offers
from hpcrec.training.parts import Split

SAMPLES = 100_000  # of a dense rank: rows that are asked for less than once in so many are not told apart


def count_rates(config: Config, train: Split, offers: Offers, topology: Topology) -> Counted | None:
    """What this rank's part of the first batches of an epoch asks for; None where it is not dense.

    As many batches as have ``SAMPLES`` samples of it, at least ``exchange.auto_steps``, at most an epoch.

    Raises
    ------
    DataError
        The data cannot be read, or have an id outside its table.
    """
    if not topology.is_dense:
        return None
    layout = _kept_layout(offers)
    features = set(layout.conditional)
    weighted = {f.name for f in train.dataset.features if f.weighted}
    dtype = DTYPES[config.train.dtype][0]
    counter = RateCounter(Splitter(layout, features, seed=config.train.seed, weighted=weighted, dtype=dtype))
    loader = Loader(
        train.dataset,
        train.order,
        part=topology.dense_index,
        parts=len(topology.dense),
        features=tuple(f for f in layout.form_of if f in features),
        prefetch=0,
        affinity=make_affinity(config, layout.tables, offers.families, topology.dense),
    )
    wanted = -(-SAMPLES * len(topology.dense) // config.train.batch_size)
    steps = min(train.order.n_batches, max(config.exchange.auto_steps, wanted))
    with loader.batches(0, 0, steps) as batches:
        for batch in batches:
            counter.add(batch.bags, len(batch.label))
    return counter.counted()


def make_forecast(config: Config, offers: Offers, counted: Sequence[Counted | None]) -> Forecast:
    """What copies cost layouts of these offers, from what all ranks have counted; the same on every rank."""
    layout = _kept_layout(offers)
    bundles = {form.features: form.family.rows for form in layout.bundled() if form.conditional}
    rates = rates_of([of for of in counted if of is not None], bundles)
    keeping = make_keeping(config, layout.tables, offers.dense)
    return Forecast(rates, keeping, DTYPES[config.train.dtype][0].itemsize)


def _kept_layout(offers: Offers) -> Layout:
    """That in which every feature that may keep rows does."""
    return offers.layout({})
