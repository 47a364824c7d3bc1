"""From a configuration to the memory that each rank will need, before any rank is started.

Builds the model and the layout as a run does, but no rows; what each term counts is ``plan.memory``. Knows no
communicator.
"""

from collections.abc import Collection, Sequence
from pathlib import Path

from torch import nn

from hpcrec.build.dealing import make_affinity
from hpcrec.build.tables import (
    DTYPES,
    make_keeping,
    make_model,
    make_offers,
    make_policy,
    make_roles,
    make_thresholding,
    store_class,
    whole_tables,
)
from hpcrec.comm.levels import pairs_of
from hpcrec.comm.topology import Topology, places_of
from hpcrec.config import Config, DenseConfig
from hpcrec.data.affinity import PLACE_BYTES, Affinity
from hpcrec.data.reader import DataSet
from hpcrec.embedding.shards import Family
from hpcrec.exchange.codec import wire_item_bytes
from hpcrec.exchange.exact import check_bytes
from hpcrec.exchange.forms import FORMS
from hpcrec.exchange.forms.conditional import Conditional
from hpcrec.exchange.layout import Layout
from hpcrec.exchange.masks import Thresholding
from hpcrec.exchange.offers import Offers
from hpcrec.exchange.reduction import Reduction, reduction_for
from hpcrec.exchange.roots import Roots
from hpcrec.exchange.runners import Runners
from hpcrec.operators.base import module_weights, weights_of
from hpcrec.plan.lines import lines_of
from hpcrec.plan.memory import RankMemory, dealing_bytes, rank_memory
from hpcrec.plan.ranks import DenseRank, HeldIds, HeldRows, HolderTraffic
from hpcrec.plan.written import Written
from hpcrec.types import TableSpec

_PLACE_ELEMENTS = 2  # of vectors that hosts add: 32 bytes a bag in float32, for its sample, its place, and masks


def topology_of(config: Config, host_of: Sequence[int], rank: int = 0) -> Topology:
    """Roles and places of so many ranks on these hosts, as ``[topology]`` asks for.

    Raises
    ------
    ConfigError
        They cannot be had.
    """
    places = places_of(host_of, config.topology.places)
    owners, dense = make_roles(config, places)
    wanted = config.dense.codistillation
    return Topology(
        rank=rank,
        size=len(host_of),
        owners=owners,
        dense=dense,
        host_of=places,
        machine_of=tuple(host_of),
        groups=wanted.groups,
        own_tables=not wanted.share_embeddings,
    )


def ranks_asked_for(config: Config) -> int | None:
    """Ranks that ``[topology]`` implies; None where it leaves their number open."""
    owners, dense = config.topology.owners, config.topology.dense
    if config.topology.mode != "split" or owners is None or dense is None:
        return None
    if isinstance(owners, int) and isinstance(dense, int):
        return owners + dense
    named = {r for given in (owners, dense) if isinstance(given, tuple) for r in given}
    counted = sum(given for given in (owners, dense) if isinstance(given, int))
    return max(len(named) + counted, *(r + 1 for r in named))


def ranks_or_fewest(config: Config, ranks: int | None) -> int:
    """So many ranks where they are given, else those that ``[topology]`` implies, else as few as will do."""
    fewest = config.dense.codistillation.groups * (2 if config.topology.mode == "split" else 1)
    return ranks or ranks_asked_for(config) or fewest


def predict_memory(config: Config, host_of: Sequence[int]) -> list[RankMemory]:
    """Memory of each rank; reads the head of the training data.

    Raises
    ------
    ConfigError, DataError
        What a run would refuse.
    """
    topology = topology_of(config, host_of)
    with DataSet(Path(config.data.train)) as dataset:
        model, operators = make_model(config, dataset)
        tables, families, offers = make_offers(config, dataset, operators, topology)
        layout = offers.layout({})  # where forms are chosen, what crosses is seldom more than under the simplest
        dtype, exchange = DTYPES[config.train.dtype][0], config.exchange
        codec = exchange.dct.values if exchange.codec == "dct" else exchange.codec
        wire_bytes = wire_item_bytes(codec, dtype)
        mean_ids = {f.name: f.mean_ids for f in dataset.features}
        samples = config.train.batch_size / len(topology.dense)
        there = layout, topology.dense, topology.host_of
        reduction = reduction_for(*there, config.exchange.reduce, samples=samples, item_bytes=wire_bytes)
        affinity = make_affinity(config, tables, families, topology.dense)
        looked = () if affinity is None else affinity.features
        dense = _dense_rank(config, dataset, model, layout, mean_ids, topology, reduction, looked)
        auto = _auto(config, dataset, offers)
    roots, runners = Roots(*there), Runners(*there)
    dense_on = {topology.host_of[rank]: rank for rank in topology.dense}
    merged = {host: _merged_elements(layout, rank, mean_ids, runners, samples) for host, rank in dense_on.items()}
    wholes = sum(w.numel() for o in operators.values() for w in (*weights_of(o, o.lookups), *module_weights(o)))
    return [
        rank_memory(
            _held(tables, families, rank, whole_tables(config, topology)),
            _traffic(config, layout, rank, mean_ids, topology.dense),
            dense if rank in topology.dense else None,
            item_bytes=dtype.itemsize,
            ahead=config.exchange.most_ahead,
            written=_written(config, topology, rank, wire_bytes),
            read_bytes=_read_bytes(config, dataset, layout, rank, looked),
            added_elements=samples * reduction.elements_at(rank)
            + _added_elements(config, layout, rank, mean_ids, roots)
            + (merged[topology.host_of[rank]] if rank in topology.dense else 0.0),
            auto=auto if rank in topology.dense else None,
            held_ids=_held_ids(families, rank),
            lookups=topology.table_sets,
            shared=(topology.host_of.count(topology.host_of[rank]) - 1) / topology.size
            if config.exchange.windows
            else 0.0,
            relayed=_relayed(config, topology, rank),
            wholes=wholes if topology.groups == 1 else 0,
            dense_optimizer=config.dense.optimizer.name,
            elsewhere=store_class(config).memory(config.store.memory_bytes, config.store.gpu_bytes),
            saves=config.checkpoint.every + config.train.eval_every > 0 if config.checkpoint.background else None,
            marks=_marks(config),
            in_flight=make_policy(config).in_flight,
            dealt_bytes=_dealt_bytes(config, dataset, layout, affinity, rank, dense=rank in topology.dense),
        )
        for rank in range(topology.size)
    ]


def _added_elements(config: Config, layout: Layout, rank: int, mean_ids: dict[str, float], roots: Roots) -> float:
    """Of vectors that a rank gives to others of its host, is given to add, or has of its own in what it adds.

    With what says which bags they are of, and where in the sums, as so many elements more.
    """
    if rank not in layout.legs or not layout.added:
        return 0.0
    leg, found, batch = layout.legs[rank], 0.0, config.train.batch_size / roots.n_dense
    for e, entry in enumerate(leg.entries):
        members = len(roots.members(entry.features, rank))
        if members > 1:
            ids = batch * sum(mean_ids[f] for f in entry.features) / entry.family.row_parts
            width = sum(s.width for s in leg.streams if s.entry == e) + _PLACE_ELEMENTS
            # of each dense rank elsewhere one of the members is the root, which has all parts
            found += roots.n_far(rank) * (2 - 1 / members) * width * entry.form.vectors(ids, batch)
    return found


def _merged_elements(layout: Layout, rank: int, mean_ids: dict[str, float], runners: Runners, samples: float) -> float:
    """Of rows that a dense rank wants of other hosts and its host asks for together, as ``_added_elements`` counts."""
    found = 0.0
    for holder, leg in layout.legs.items() if layout.merged else ():
        for e, entry in enumerate(leg.entries):
            if entry.merged and runners.merges(entry.features, holder, rank):
                ids = samples * sum(mean_ids[f] for f in entry.features) / entry.family.row_parts
                width = sum(s.width for s in leg.streams if s.entry == e) + _PLACE_ELEMENTS
                found += width * entry.form.vectors(ids, samples)
    return found


def _relayed(config: Config, topology: Topology, rank: int) -> float:
    """What passes a rank between hosts, for others of its host too, as a part of its own messages."""
    if not config.exchange.may_level or not 1 < topology.n_hosts < topology.size:
        return 0.0
    pairs, here = pairs_of(topology.host_of, rank), topology.host_of.count(topology.host_of[rank])
    place = [r for r, host in enumerate(topology.host_of) if host == topology.host_of[rank]].index(rank)
    as_gate = sum(len(pair.there) for pair in pairs if pair.gate == rank)
    as_peer = sum(int((pair.takers(here) == place).sum()) for pair in pairs)
    return max(as_gate, as_peer) * here / topology.size


def _auto(config: Config, dataset: DataSet, offers: Offers) -> dict[str, float]:
    """What choosing forms takes on a dense rank: copies, and the window of all features that is counted on."""
    if not offers.free and config.exchange.path != "auto":
        return {}
    features = tuple(offers.layout({}).form_of)
    window = max(_window_samples(config, dataset, features), config.train.batch_size)
    copies_bytes = min(config.exchange.auto_copies, sum(offers.replicable.values()))
    return {"copies": copies_bytes, "counting": window * _sample_bytes(dataset, features)}


def _held(
    tables: dict[str, TableSpec], families: Sequence[Family], rank: int, whole: Collection[str]
) -> list[HeldRows]:
    held = []
    for family in families:
        if rank not in family.holders:
            continue
        part = family.holders.index(rank)
        for name in family.tables:
            start, stop = family.part_columns(tables[name].width, part)
            if start < stop:
                rows, optimizer = family.part_rows(part), tables[name].optimizer.name
                copied = family.kind == "replicate"
                apart = name in whole
                held.append(HeldRows(rows=rows, width=stop - start, optimizer=optimizer, copied=copied, whole=apart))
    return held


def _held_ids(families: Sequence[Family], rank: int) -> list[HeldIds]:
    held = []
    for family in families:
        if family.dynamic is not None and rank in family.holders:
            rows, evicts = family.part_rows(family.holders.index(rank)), family.dynamic.evict is not None
            waiting = family.dynamic.pending // family.row_parts if family.dynamic.admit_from > 1 else 0
            held.append(HeldIds(rows=rows, evicts=evicts, pending=waiting))
    return held


def _written(config: Config, topology: Topology, rank: int, wire_bytes: float) -> Written | None:
    if config.exchange.codec == "fp32":
        return None
    by_levels = config.exchange.may_level and 1 < topology.n_hosts < topology.size
    host, near = topology.host_of[rank], list[float]()
    for here, others in ((topology.owners, topology.dense), (topology.dense, topology.owners)):
        if rank in here:
            near.append(sum(topology.host_of[other] == host for other in others) / len(others))
    own_tables = not config.dense.codistillation.share_embeddings  # those of other groups are read as in evaluations
    whole = bool(config.data.test or config.data.validation) or (own_tables and not config.exchange.dct.evaluate)
    return Written(
        item_bytes=wire_bytes,
        thresholded=config.exchange.codec == "dct",
        whole_evaluations=whole,
        as_held=sum(near) / len(near) if by_levels else 0.0,
    )


def _traffic(
    config: Config, layout: Layout, rank: int, mean_ids: dict[str, float], dense: Sequence[int]
) -> HolderTraffic:
    leg, batch = layout.legs.get(rank), config.train.batch_size
    if leg is None:
        return HolderTraffic()
    ids_E, bags_E, asked = [], [], 0.0
    for entry in leg.entries:
        ids = batch * sum(mean_ids[f] for f in entry.features) / entry.family.row_parts
        ids_E.append(ids)
        answered = entry.form.vectors(ids, batch)
        bags_E.append(batch if entry.every_bag and not entry.added else answered)
        asked += batch if entry.every_bag else answered
    elements = sum(bags_E[s.entry] * s.width for s in (*leg.streams, *leg.hidden, *leg.apart))
    partials = batch * sum(p.elements for p in leg.partials)
    how = make_thresholding(config)
    valued = [(bags_E[s.entry] * s.width, s.width) for s in leg.streams[: leg.n_value_streams]]
    kept = 0.0 if how is None else partials + sum(n * _crossing(how, width) for n, width in valued)
    pooled = [not e.form.pools and layout.pooling[e.features[0]] == "max" for e in leg.entries]
    maxima = [s for s in (*leg.streams, *leg.hidden) if pooled[s.entry]]
    weights, columns = layout.weights_at(rank)
    keeping, lags = make_keeping(config, layout.tables, dense), 0.0
    for e in leg.entries:
        if issubclass(e.form, Conditional):
            rows = e.family.part_rows(e.part) + (e.family.dynamic is not None)
            lags += e.form.owner_memory(rows, keeping) + check_bytes(rows, keeping)
    return HolderTraffic(
        weights=weights,
        weighed_elements=batch * columns,
        ids=sum(ids_E),
        bags=asked,
        elements=elements + partials,
        kept=kept,
        lag_bytes=lags,
        id_elements=sum(ids_E[s.entry] * s.width for s in maxima),
        bag_elements=sum(bags_E[s.entry] * s.width for s in maxima),
        dynamic_ids=sum(n for n, e in zip(ids_E, leg.entries, strict=True) if e.family.dynamic is not None),
    )


def _crossing(how: Thresholding, width: int) -> float:
    """Share of the elements of such vectors that is to cross."""
    return 1.0 if width == 1 else how.density_of(width)


def _dealt_bytes(
    config: Config, dataset: DataSet, layout: Layout, affinity: Affinity | None, rank: int, *, dense: bool
) -> float:
    """Of dealing by affinity: for its part, and once more where a holder reads ids."""
    times = dense + bool(config.exchange.ids == "read" and layout.held(rank))
    if affinity is None or not times:
        return 0.0
    samples, looked = config.train.batch_size, affinity.features
    ids = samples * sum(dataset.feature(f).mean_ids for f in looked)
    sample_bytes = _sample_bytes(dataset, tuple(dict.fromkeys((*layout.form_of, *looked))))
    return times * dealing_bytes(samples, ids, affinity.parts, sample_bytes, PLACE_BYTES)


def _marks(config: Config) -> int:
    """Bytes a row of what a checkpoint has to know of it."""
    if config.checkpoint.links_rows(config.store.name):
        return 0
    return 1 if config.checkpoint.full_every == 1 else 3


def _read_bytes(config: Config, dataset: DataSet, layout: Layout, rank: int, looked: tuple[str, ...]) -> float:
    """Of ids that a holder reads: two windows, or none where it reads just its batches, and the batches ahead."""
    held = layout.held(rank)
    if config.exchange.ids != "read" or not held:
        return 0.0
    batches = config.data.prefetch + 2 + config.exchange.most_ahead + 1
    windows = 2 * config.dense.codistillation.groups  # groups of dense ranks read beside each other
    held = tuple(dict.fromkeys((*held, *looked)))
    samples = batches * config.train.batch_size + windows * _window_samples(config, dataset, held, ids_only=True)
    samples *= 2 if config.store.window else 1  # steps to come are read apart
    return samples * _ids_bytes(dataset, held)


def _window_samples(config: Config, dataset: DataSet, features: tuple[str, ...], *, ids_only: bool = False) -> int:
    # None where it reads just what each batch needs.
    exact = (
        config.data.deal == "order"
        and not config.data.shuffle
        and dataset.plain(features, ("weight",), ids_only=ids_only)
    )
    return 0 if exact else min(config.data.chunk * config.data.window, dataset.samples)


def _sample_bytes(dataset: DataSet, features: tuple[str, ...]) -> float:
    return 4.0 * (dataset.n_dense + dataset.n_labels + 1) + _ids_bytes(dataset, features)


def _ids_bytes(dataset: DataSet, features: tuple[str, ...]) -> float:
    n_bytes = 0.0
    for feature in (dataset.feature(name) for name in features):
        n_bytes += feature.mean_ids * (12 if feature.weighted else 8) + 8 * dataset.jagged(feature.name)
    return n_bytes


def _dense_rank(
    config: Config,
    dataset: DataSet,
    model: nn.Module,
    layout: Layout,
    mean_ids: dict[str, float],
    topology: Topology,
    reduction: Reduction,
    looked: tuple[str, ...],
) -> DenseRank:
    batch, n = config.train.batch_size, len(topology.dense)
    asked = [_traffic(config, layout, rank, mean_ids, topology.dense) for rank in layout.legs]
    used = layout.visible if config.exchange.ids == "read" else tuple(layout.form_of)
    used = tuple(dict.fromkeys((*used, *looked)))
    maxima = [  # pooled by max here: rows that came or are here, or answers of bags that meet, at most as many as ids
        (k.feature, group.width)
        for group in layout.groups
        for k in group.lookups
        if k.pooling == "max"
        and ((form := FORMS[layout.form_of[k.feature]]).pools or form.meets(layout.family_of[k.feature]))
    ]
    away = sum(weight.numel() for weight in layout.away)
    parameters = sum(p.numel() for p in model.parameters()) - away
    return DenseRank(
        samples=batch / n,
        ids=sum(t.ids for t in asked) / n,
        bags=sum(t.bags for t in asked) / n,
        leaf_elements=sum(g.width * len(g.lookups) for g in layout.groups)
        + max(
            sum(leg.partials[i].elements for h, leg in layout.legs.items() for i in reduction.sent(h, d))
            for d in topology.dense
        ),
        sample_bytes=_sample_bytes(dataset, used),
        window_samples=_window_samples(config, dataset, used),
        prefetch=config.data.prefetch,
        parameters=parameters,
        away=away,
        optimizer=config.dense.optimizer.name,
        layer_elements=sum(int(getattr(m, "out_features", 0)) for m in model.modules())  # of linear layers
        - sum(m.layers for m in layout.meetings if m.root == m.roots[0]),
        id_elements=batch / n * sum(mean_ids[f] * width for f, width in maxima),
        bag_elements=batch / n * sum(width for _, width in maxima),
        dynamic_ids=sum(t.dynamic_ids for t in asked) / n,
        kept=sum(t.kept for t in asked) / n,
        unsent=_unsent(config.dense, parameters, n // topology.groups),
        taught_by=topology.groups - 1,
        kept_rows_bytes=kept_rows(config, layout, n) + _early_rows(config, layout, mean_ids, n),
        window=make_keeping(config, layout.tables, range(n)).window if layout.conditional else 0,
    )


def kept_rows(config: Config, layout: Layout, ranks: int) -> float:
    """Bytes of rows that conditional forms keep on a dense rank.

    Raises
    ------
    ConfigError
        policy.capacity has no room for a row of each pool; on whichever rank it is asked.
    """
    forms = [form for form in layout.bundled() if isinstance(form, Conditional)]
    keeping, total = make_keeping(config, layout.tables, range(ranks)), 0.0
    item = DTYPES[config.train.dtype][0].itemsize
    for kind in dict.fromkeys(type(form) for form in forms):
        mine = [form for form in forms if type(form) is kind]
        total += kind.memory(mine, [layout.tables_of[form.features[0]] for form in mine], keeping, item)
    return total


def _early_rows(config: Config, layout: Layout, mean_ids: dict[str, float], ranks: int) -> float:
    """Bytes of what conditional forms have on a dense rank of the steps that they are asked for ahead.

    Of each step rows that came, their gradients, and pushes that are on their way.
    """
    ahead, item = make_keeping(config, layout.tables, range(ranks)).lookahead, DTYPES[config.train.dtype][0].itemsize
    elements = 0.0  # of a sample, where no id comes twice
    for form in layout.bundled() if ahead else ():
        if isinstance(form, Conditional):
            widths = sum(layout.tables[table].width for table in layout.tables_of[form.features[0]])
            elements += widths * sum(mean_ids[feature] for feature in form.features)
    return 3 * ahead * item * config.train.batch_size / ranks * elements


def _unsent(dense: DenseConfig, parameters: int, ranks: int) -> float:
    """Elements that a dense rank keeps of its own gradients, and of the sums that it may make for all."""
    if dense.compression == "none" or dense.dct.density == 1:
        return 0.0
    sums = dense.dct.collective == "reduce_scatter" or (dense.dct.collective == "auto" and ranks > 4)
    return parameters * (1 + sums / ranks)


def memory_lines(predicted: Sequence[RankMemory], topology: Topology) -> list[str]:
    """One line for each kind of rank that differs, the largest of it: what it is for, in order of size."""
    roles: dict[str, list[int]] = {}
    for rank in range(topology.size):
        owner, dense = rank in topology.owners, rank in topology.dense
        roles.setdefault("owner and dense" if owner and dense else "owner" if owner else "dense", []).append(rank)
    return [line for role, ranks in roles.items() for line in lines_of(role, {r: predicted[r] for r in ranks})]


def memory_report(config: Config, ranks: int | None) -> list[str]:
    """Lines on the memory of each rank, for so many ranks on one host; by default as many as ``[topology]`` counts.

    Raises
    ------
    ConfigError, DataError
        What a run would refuse.
    """
    size = ranks_or_fewest(config, ranks)
    asked = f"{size} rank{'s' * (size > 1)}" + (
        "" if ranks or ranks_asked_for(config) else " (-n N for another number)"
    )
    lines = memory_lines(predict_memory(config, [0] * size), topology_of(config, [0] * size))
    return [f"memory a rank, with {asked}:", *(f"  {line}" for line in lines), *_links_lines(config)]


def _links_lines(config: Config) -> list[str]:
    """Where the rows of checkpoints will be, if they are to be linked."""
    if not config.checkpoint.links_rows(config.store.name) or config.store.path is None:
        return []
    run, rows = (_file_system(Path(path)) for path in (config.run.folder, config.store.path))
    if run != rows:
        said = "run.folder and store.path are on different file systems here: files that no earlier one has are copied"
    else:
        said = (
            "run.folder and store.path are on one file system here. If that is a node's own disk, they are gone with "
            "the node: then set run.folder to a shared file system, to which they are copied"
        )
    return [f"checkpoints have the store's files: {said}."]


def _file_system(path: Path) -> int:
    """Number of the one that a path is on, or will be."""
    there = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    return there.stat().st_dev
