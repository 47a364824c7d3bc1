"""The exchange of a session, by the forms of the configuration or those that ``auto`` chooses.

Which batches the first steps will have is known, so forms are chosen by these very batches, before there are rows. This
choice is a pure function of data and configuration: a resumed run chooses what the run before it had. Where prices come
in (``path``) it is saved. Knows what is to
be built; bytes are for ``exchange.measure``, the choice for ``exchange.choose``.
"""

import collections
from collections.abc import Mapping
from functools import partial
from typing import Any

from hpcrec.build.dealing import make_affinity
from hpcrec.build.dense import DenseSide
from hpcrec.build.device import crosses_directly
from hpcrec.build.memory import kept_rows
from hpcrec.build.rates import count_rates, make_forecast
from hpcrec.build.tables import DTYPES, make_keeping, make_policy, make_thresholding
from hpcrec.comm.failure import agree
from hpcrec.comm.topology import Topology
from hpcrec.comm.world import World
from hpcrec.config import Config
from hpcrec.data.loader import Loader
from hpcrec.dense.place import Place
from hpcrec.embedding.load import Load
from hpcrec.embedding.sets import families_in
from hpcrec.embedding.shards import Family
from hpcrec.embedding.store import Store
from hpcrec.errors import ConfigError
from hpcrec.exchange.bags import Splitter
from hpcrec.exchange.choose import Choice, Chooser
from hpcrec.exchange.choose_kept import choose_kept
from hpcrec.exchange.codec import wire_item_bytes
from hpcrec.exchange.exchange import Exchange, Timer
from hpcrec.exchange.forms.conditional import ADAGRADS
from hpcrec.exchange.host_rows import make_host_asks
from hpcrec.exchange.layout import Layout
from hpcrec.exchange.measure import Asks, Counter, ItemBytes, cross_host_bytes, kept_bytes
from hpcrec.exchange.offers import Offers
from hpcrec.exchange.reduction import SAME_HOST_PRICE, Reduction, reduction_for
from hpcrec.exchange.roots import tell_sums
from hpcrec.exchange.thresholds import thresholded_bytes
from hpcrec.operators.base import Operator
from hpcrec.policy.flight import GRADIENTS, VALUES
from hpcrec.policy.pipeline import Pipeline
from hpcrec.policy.policy import Points
from hpcrec.policy.refusals import refuse
from hpcrec.training.chosen import Chosen
from hpcrec.training.parts import Split


def choose(
    config: Config,
    world: World,
    train: Split,
    offers: Offers,
    dense: DenseSide,
    timer: Timer,
    settled: tuple[Choice, dict[str, Any]] | None = None,
) -> tuple[Layout, tuple[Family, ...], Chosen | None]:
    """The layout, the families of all sets as it has them, and what form ``auto`` chose; collective.

    ``settled``: a choice that is made already, and what records and checkpoints say of it.

    Raises
    ------
    DataError
        The data cannot be read, or have an id outside its table; on every rank.
    """
    layout, families, chosen, saved = offers.layout({}), offers.families, None, settled is not None
    refuse_stages(config, offers)
    if offers.free and settled is None:
        with timer("choose"):
            maker = ChoiceMaker(config, world, train, offers, dense)
            settled = maker.choice, maker.found(maker.choice)
    if settled is not None:
        choice, found = settled
        layout = offers.layout(choice.forms, choice.replicated)
        families, chosen = offers.families_with(choice.replicated), Chosen(world, found, saved=saved)
    return layout, families_in(world.topology.table_sets, families), chosen


def refuse_stages(config: Config, offers: Offers) -> None:
    """Refuses to count what passes stages; the same on every rank."""
    way = offers.layout({}).way
    if way and (offers.free or config.exchange.path == "auto"):
        what = f"exchange.form is 'auto' for {', '.join(offers.free)}" if offers.free else "exchange.path is 'auto'"
        change = "Give these features a form" if offers.free else "Set it to 'flat' or 'levels'"
        raise ConfigError(
            f"{what}, which counts bytes of one transfer, but messages pass stages "
            f"{', '.join(stage.name for stage in way)}. {change}."
        )


class ChoiceMaker:
    """Counts what each form would cost, and chooses; collective.

    Parameters
    ----------
    config, world, train, offers, dense
        As of ``choose``.
    near : float, optional
        As of ``Chooser``; by default what bytes inside a host count for in sums by levels, else 1.

    Attributes
    ----------
    asks : Asks
    item_bytes : ItemBytes
    chooser : Chooser
    choice : Choice
        That of fewest bytes.

    Raises
    ------
    DataError
        As of ``choose``.
    """

    def __init__(
        self,
        config: Config,
        world: World,
        train: Split,
        offers: Offers,
        dense: DenseSide,
        near: float | None = None,
    ) -> None:
        self._config, self._topology, self._offers = config, world.topology, offers
        self._by_levels = world.by_levels
        self.asks, self.item_bytes = _asks(config, world, train, offers), _item_bytes(config)
        chooser = partial(
            Chooser,
            asks=self.asks,
            item_bytes=self.item_bytes,
            budget_bytes=0 if config.exchange.codec in ("fp16", "dct") else config.exchange.auto_copies,
            dense_elements=dense.elements,
            dense_item_bytes=dense.item_bytes,
            samples=config.train.batch_size,
            groups=world.topology.groups,
            near=(SAME_HOST_PRICE if world.by_levels else 1.0) if near is None else near,
            levels=partial(reduction_of, config, topology=world.topology) if world.by_levels else None,
        )
        self.chooser = chooser(offers)
        self.choice = self.chooser.choose() if offers.kept is None else choose_kept(offers, chooser)

    def found(self, choice: Choice) -> dict[str, Any]:
        """What a run's records say of a choice."""
        offers = self._offers
        layout = offers.layout(choice.forms, choice.replicated)
        reduction = reduction_of(self._config, layout, self._topology)
        far = cross_host_bytes(layout, self.asks, reduction, item_bytes=self.item_bytes)
        return {
            "forms": choice.forms,
            "copied_tables": [t for f in offers.families if f.name in choice.replicated for t in f.tables],
            "reduce": reduction.way,
            "predicted_cross_host_bytes_per_step": far,
            "predicted_bytes_per_step": choice.predicted,
            "single_form_bytes_per_step": choice.single,
            "owner_flops_per_step": choice.flops,
            **({} if offers.kept is None else _kept(layout, self.asks, self.item_bytes, levels=self._by_levels)),
        }


def _asks(config: Config, world: World, train: Split, offers: Offers) -> Asks:
    error, counter, rows = None, None, None
    try:
        counter = _counted(config, train, offers, world)
        rows = None if offers.kept is None else count_rates(config, train, offers, world.topology)
    except Exception as caught:
        error = caught
    agree(world.main, error)
    assert counter is not None, "no rank has failed"
    with world.ledger.paused():
        counter.meet()
    asks = counter.asks(world.main.allreduce(counter.totals()))
    if offers.kept is not None:
        asks = asks.with_forecast(make_forecast(config, offers, world.main.allgather(rows)))
    return asks


def _counted(config: Config, train: Split, offers: Offers, world: World) -> Counter:
    """What this rank asks in the first steps under each form: nothing, where it is not dense."""
    layouts, topology = offers.counted(), world.topology
    seed, weighted, dtype = config.train.seed, _weighted(train), DTYPES[config.train.dtype][0]

    def split(layout: Layout, features: set[str]) -> Splitter:
        splitter = Splitter(layout, features, seed=seed, weighted=weighted, dtype=dtype)
        tell_sums(splitter, layout, topology)
        return splitter

    counter = Counter(
        layouts,
        split,
        reads_ids=config.exchange.ids == "read",
        rank=topology.rank,
        dense=topology.dense,
        far=topology.far,
        together=partial(make_host_asks, world),
    )
    if topology.is_dense:
        loader = Loader(
            train.dataset,
            train.order,
            part=topology.dense_index,
            parts=len(topology.dense),
            features=tuple(layouts[0].form_of),
            prefetch=0,
            affinity=make_affinity(config, layouts[0].tables, offers.families, topology.dense),
        )
        with loader.batches(0, 0, config.exchange.auto_steps) as batches:
            for batch in batches:
                counter.add(batch.bags, len(batch.label))
    return counter


def _kept(layout: Layout, asks: Asks, item_bytes: ItemBytes, *, levels: bool) -> dict[str, Any]:
    """What they say of features whose rows dense ranks keep: bytes, but for the requests, and shares of rows."""
    shares = {} if asks.forecast is None else asks.forecast.of(layout)
    return {
        "predicted_kept_bytes_per_step": kept_bytes(layout, asks, item_bytes, levels=levels),
        "predicted_sent": {f: sent for features, (sent, _) in shares.items() for f in features},
        "predicted_pushed": {f: pushed for features, (_, pushed) in shares.items() for f in features},
    }


def refuse_together(config: Config, layout: Layout, topology: Topology, *, direct: bool) -> None:
    """Refuses a layout that does not go with the policy or the codec; the same on every rank.

    ``direct``: whether values and gradients cross from GPU to GPU.

    Raises
    ------
    ConfigError
        They do not go together.
    """
    policy = make_policy(config)
    refuse(policy, config.policy.name, layout)
    chosen = config.exchange.chooses_forms  # no copies, where these save nothing
    if hasattr(policy, "form") and not layout.conditional and not chosen:
        raise ConfigError(
            f"policy.name is {config.policy.name!r}, but no feature has form {policy.form!r}: all have forms of their "
            "own (exchange.forms), or replicated tables. Set policy.name = 'sync', or remove some of these."
        )
    if layout.conditional:
        _refuse_copies(config, layout, topology, direct=direct)
        kept_rows(config, layout, len(topology.dense))  # refuses too little room, on owners too
        _refuse_sums(config, layout)
    if getattr(policy, "parts", False):
        _refuse_parts(config, layout, topology, direct=direct)
    if layout.way:
        _refuse_way(config, layout, direct=direct)


def make_exchange(
    config: Config,
    world: World,
    train: Split,
    operators: Mapping[str, Operator],
    layout: Layout,
    store: Store | None,
    place: Place,
    timer: Timer,
) -> Exchange:
    """An exchange of that layout; collective.

    Raises
    ------
    ConfigError
        Layout and policy, or layout and codec, do not go together; on every rank.
    """
    policy, direct = make_policy(config), crosses_directly(config, world, place)
    refuse_together(config, layout, world.topology, direct=direct)
    several = policy.in_flight
    reduction = reduction_of(config, layout, world.topology)
    apart = in_two_lanes(config, layout, reduction)
    return Exchange(
        world,
        layout,
        operators,
        store,
        weighted=_weighted(train),
        seed=config.train.seed,
        dtype=DTYPES[config.train.dtype][0],
        timer=timer,
        codec=_written_as(config),
        thresholding=make_thresholding(config),
        reads_ids=config.exchange.ids == "read",
        load=Load(),
        reduction=reduction,
        where=place,
        direct=direct,
        lane=world.main if several == 1 else world.lane(VALUES),
        back=world.lane(GRADIENTS) if apart else None,
        keeps=several > 1,
        parts=getattr(policy, "parts", False),
        keeping=make_keeping(config, layout.tables, world.topology.dense),
    )


def in_two_lanes(config: Config, layout: Layout, reduction: Reduction) -> bool:
    """Whether gradients cross beside values, by a thread of their own."""
    policy, on_devices = make_policy(config), config.store.on_gpu or config.dense.device != "cpu"
    together = layout.way or layout.added or layout.merged or layout.meetings or reduction.inside or reduction.across
    return policy.in_flight > 1 and not (getattr(policy, "parts", False) or together or on_devices)


def _refuse_copies(config: Config, layout: Layout, topology: Topology, *, direct: bool) -> None:
    """Refuses what does not go with rows that dense ranks keep; the same on every rank."""
    reason = None
    if config.exchange.codec == "dct":
        reason = "exchange.codec is 'dct', which thresholds vectors, not rows. Take another codec"
    elif topology.table_sets > 1:
        reason = "dense ranks read the tables of several groups. Set dense.codistillation.share_embeddings = true"
    elif direct:
        reason = "messages cross from GPU to GPU. Set exchange.gpu_messages = 'off'"
    elif (uneven := _unevenly_held(layout)) is not None:
        reason = f"not all owners of columns of {uneven!r} see each change of its rows. Set shard = 'row'"
    elif layout.way:
        reason = f"others' vectors pass stages {', '.join(stage.name for stage in layout.way)}. Take forms without any"
    if reason is not None:
        raise ConfigError(
            f"features {', '.join(layout.conditional)} have a form whose rows dense ranks keep, but {reason}, or "
            "another form."
        )


def _refuse_sums(config: Config, layout: Layout) -> None:
    """Refuses what does not go with gradients of several steps as one; the same on every rank.

    Optimizers for which their sum is no update, or stores that do not learn from it; and rows that a dense rank has
    several copies of, of which one would lack what the others hold back.
    """
    keeping = make_keeping(config, layout.tables, (0,))
    bundles = collections.Counter(form.family.name for form in layout.bundled() if form.conditional)
    said = f"policy.staleness is {keeping.staleness} and policy.lookahead {keeping.lookahead}"
    for feature in layout.conditional if keeping.previews else ():
        family = layout.family_of[feature]
        if bundles[family.name] > 1:
            raise ConfigError(
                f"{said}, but tables {', '.join(family.tables)} are read in several ways (pooled by max and "
                "otherwise, or with other tables), each with copies of its own. Set both to 0, or give "
                f"{feature!r} a form of its own (exchange.forms)."
            )
        for table in layout.tables_of[feature]:
            _refuse_optimizer(config, layout, table, said)


def _refuse_optimizer(config: Config, layout: Layout, table: str, said: str) -> None:
    """Where a table's rows do not learn from sums of several steps' gradients."""
    name, mixed = layout.tables[table].optimizer.name, set(layout.form_of) - set(layout.conditional)
    own = sorted(f for f in mixed if table in layout.tables_of[f])
    why = None
    if name not in ("sgd", *ADAGRADS):
        why = f"has the optimizer {name!r}, for which it is not settled what that means. Take sgd or an Adagrad"
    elif name != "sgd" and config.store.on_gpu:
        why = f"learns by {name!r} on a GPU, which does not learn from such sums. Take 'dram', or no store.gpu_bytes"
    elif name != "sgd" and own:
        why = f"learns by {name!r} and is read by {', '.join(own)} in another form. Give all its features one form"
    if why is not None:
        raise ConfigError(
            f"{said}, so dense ranks read what several gradients of a row will make of it, which may be pushed as one, "
            f"but table {table!r} {why}, or set both to 0."
        )


def _unevenly_held(layout: Layout) -> str | None:
    """A feature whose owners would judge copies differently: by columns, where some have none of what others read."""
    for feature in layout.conditional:
        family, tables = layout.family_of[feature], layout.tables_of
        narrow = any(layout.tables[t].width < len(family.holders) for t in family.tables)
        if family.kind == "column" and narrow and any(set(tables[f]) != set(tables[feature]) for f in family.features):
            return feature
    return None


def _refuse_parts(config: Config, layout: Layout, topology: Topology, *, direct: bool) -> None:
    """Refuses what does not go with steps that are read and learned in two parts; the same on every rank."""
    reason = None
    if config.exchange.codec == "dct":
        reason = "exchange.codec is 'dct', which thresholds whole messages. Take another codec."
    elif config.exchange.codec == "fp16":
        reason = "exchange.codec is 'fp16', whose blocks have a scale: other bits in other messages. Take 'bf16'."
    elif topology.table_sets > 1:
        reason = "each group has tables of its own. Set dense.codistillation.share_embeddings = true."
    elif direct:
        reason = "messages cross from GPU to GPU. Set exchange.gpu_messages = 'off'."
    elif layout.way:
        reason = f"vectors pass stages {', '.join(stage.name for stage in layout.way)}. Take forms without any."
    elif layout.substituted:
        reason = f"owners compute {', '.join(layout.substituted)}, of whole bags. Set exchange.form = 'rows'."
    if reason is not None:
        raise ConfigError(f"policy.name is {config.policy.name!r}, which reads a step in two parts, but {reason}")


def _refuse_way(config: Config, layout: Layout, *, direct: bool) -> None:
    """Refuses what messages that pass stages do not go with; the same on every rank."""
    said = f"messages pass stages {', '.join(stage.name for stage in layout.way)}"
    if config.exchange.codec == "dct":
        raise ConfigError(
            f"exchange.codec is 'dct', but {said}: which elements cross, and so how long a message is, ranks between "
            "do not know. Allowed: 'fp32', 'bf16', 'fp16'."
        )
    if direct:
        raise ConfigError(
            f"{said}, which work in the host's memory, but values and gradients would cross from GPU to GPU. Set "
            "exchange.gpu_messages = 'off'."
        )


def make_pipeline(config: Config, exchange: Exchange, timer: Timer) -> Pipeline:
    """What runs the exchange as the policy says."""
    ahead, points = config.exchange.most_ahead > 0, make_points(config)
    return Pipeline(make_policy(config), exchange, timer=timer, ahead=ahead, points=points, agreed=exchange.most_of_all)


def make_points(config: Config) -> Points:
    """What comes between the steps of a run: checkpoints, evaluations, the end."""
    judged = config.train.eval_every if config.data.validation is not None else 0
    return Points(drains=tuple(drain_points(config).values()), evaluations=(judged,), logged=config.train.log_every)


def drain_points(config: Config) -> dict[str, int]:
    """After how many steps each nothing is in flight, by the key that says so."""
    hangs = config.checkpoint.keep_best or config.train.early_stop is not None
    judged = config.train.eval_every if hangs and config.data.validation is not None else 0
    return {name: n for name, n in (("checkpoint.every", config.checkpoint.every), ("train.eval_every", judged)) if n}


def _weighted(train: Split) -> set[str]:
    """Features whose ids carry weights."""
    return {f.name for f in train.dataset.features if f.weighted}


def _written_as(config: Config) -> str:
    """Codec of what is not thresholded."""
    return config.exchange.dct.values if config.exchange.codec == "dct" else config.exchange.codec


def _item_bytes(config: Config) -> ItemBytes:
    """Bytes of an element on the wire, by what it is of; of thresholded ones as many as their density asks for."""
    how, kind = make_thresholding(config), _written_as(config)
    thresholded = None if how is None else partial(thresholded_bytes, how, kind=kind)
    dtype = DTYPES[config.train.dtype][0]
    return ItemBytes(wire_item_bytes(kind, dtype), thresholded, held=dtype.itemsize)


def reduction_of(config: Config, layout: Layout, topology: Topology) -> Reduction:
    """Which owners add partial results of that layout."""
    return reduction_for(
        layout,
        topology.dense,
        topology.host_of,
        config.exchange.reduce,
        samples=config.train.batch_size / len(topology.dense),
        item_bytes=_item_bytes(config).whole,
    )
