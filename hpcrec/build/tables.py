"""From a configuration to roles, a model, its tables and their layout.

Knows no communicator: pure, the same on every rank.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from hpcrec.checkpoint.files import LONGEST_NAME, quoted
from hpcrec.comm.topology import Topology, assign_roles
from hpcrec.config import Config, DenseConfig, ExchangeConfig, PolicyConfig, StoreConfig, TopologyConfig
from hpcrec.data import hashing
from hpcrec.data.reader import DataSet
from hpcrec.embedding.place import row_elements
from hpcrec.embedding.sets import families_in, name_in, tables_in
from hpcrec.embedding.shards import Family, Placement, build_families
from hpcrec.embedding.stores import ON_GPU, STORES
from hpcrec.embedding.stores.memory import MemoryStore
from hpcrec.errors import ConfigError
from hpcrec.exchange.forms import FORMS, offered
from hpcrec.exchange.forms.conditional import Keeping
from hpcrec.exchange.forms.pooled import Partial
from hpcrec.exchange.masks import Thresholding
from hpcrec.exchange.meetings import Places
from hpcrec.exchange.offers import Offers
from hpcrec.models import build_model, tables_of
from hpcrec.operators.base import Operator, has_parameters, meets, shared_parameters, why_on_dense_ranks
from hpcrec.policy import POLICIES
from hpcrec.policy.policy import Policy
from hpcrec.types import Dynamic, Feature, Lookup, TableSpec
from hpcrec.units import parse_bytes

DTYPES: dict[str, tuple[np.dtype[Any], torch.dtype]] = {
    "float32": (np.dtype(np.float32), torch.float32),
    "float64": (np.dtype(np.float64), torch.float64),
}


def as_read(config: Config) -> Config:
    """The configuration of a run by which it is read, on any ranks: what concerns others than these is left out."""
    tables = {name: replace(own, owners=None, parts=None) for name, own in config.embedding.tables.items()}
    threads = {"owner_threads": config.topology.owner_threads, "dense_threads": config.topology.dense_threads}
    return replace(
        config,
        topology=TopologyConfig(mode="fused", **threads),
        exchange=_without_auto(config.exchange),
        # nothing is reduced, so Horovod need not be there; of several groups, the first one's model is read
        dense=DenseConfig(reducer="mpi", optimizer=config.dense.optimizer, autocast=config.dense.autocast),
        embedding=replace(config.embedding, tables=tables),
        store=StoreConfig(),
        policy=PolicyConfig(),  # nothing is trained
    )


def _without_auto(exchange: ExchangeConfig) -> ExchangeConfig:
    """Nothing is counted to read a run. Forms change the order of sums, and what codec ``dct`` thresholds.

    Nor does anything pass a stage: what it would have computed dense ranks compute, on any hosts. Nor are rows kept.
    """
    defaults = {name: getattr(ExchangeConfig, name) for name in ("auto_steps", "auto_copies", "at_place")}

    def plain(form: str) -> str:
        return offered()[0] if form == "auto" or FORMS[form].stages or FORMS[form].conditional else form

    forms = {feature: plain(form) for feature, form in exchange.forms.items()}
    path = "flat" if exchange.path == "auto" else exchange.path
    return replace(exchange, form=plain(exchange.form), forms=forms, path=path, **defaults)


def make_policy(config: Config) -> Policy:
    """The policy that ``[policy]`` names."""
    return POLICIES[config.policy.name](_policy_options(config))


def _policy_options(config: Config) -> Any:
    """Of the policy, with its defaults."""
    kind = POLICIES[config.policy.name].Options
    given = {option.name: getattr(config.policy, option.name) for option in fields(kind)}
    return kind(**{name: value for name, value in given.items() if value is not None})


def make_keeping(config: Config, tables: Mapping[str, TableSpec], dense: Sequence[int]) -> Keeping:
    """By what conditional forms keep rows on these dense ranks."""
    options = getattr(make_policy(config), "options", None)
    if options is None:
        return Keeping(dense=tuple(dense), tables=tables)
    sized = isinstance(options.capacity, str)
    return Keeping(
        staleness=options.staleness,
        capacity=1.0 if sized else options.capacity,
        capacity_bytes=parse_bytes(options.capacity) if sized else None,
        item=DTYPES[config.train.dtype][0].itemsize,
        rule=options.rule,
        evict=options.cache,
        max_age=options.max_age or None,
        lookahead=options.lookahead,
        window=options.window or 0,
        dense=tuple(dense),
        tables=tables,
        check=config.run.check_staleness,
        shadow_reads=config.run.shadow_reads,
        seed=config.train.seed,
    )


def _kept_form(config: Config) -> str | None:
    """That under which dense ranks keep rows, where the policy has one."""
    return getattr(POLICIES[config.policy.name], "form", None)


def _default_form(config: Config) -> str:
    """That of features that have none of their own."""
    return config.exchange.form if config.exchange.form == "auto" else _kept_form(config) or config.exchange.form


def describe_policy(config: Config) -> str:
    """Its name and its options, but for those that others of them have no use for."""
    options = _policy_options(config)
    given = {f.name: getattr(options, f.name) for f in fields(options)}
    return ", ".join([config.policy.name, *(f"{name} {value}" for name, value in given.items() if value is not None)])


def make_roles(config: Config, host_of: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Owners and dense ranks on these hosts, or places of hosts, as ``[topology]`` asks for.

    Raises
    ------
    ConfigError
        They cannot be had.
    """
    t, groups = config.topology, config.dense.codistillation.groups
    owners, dense = assign_roles(
        host_of,
        mode=t.mode,
        owners=t.owners,
        dense=t.dense,
        owners_per_host=t.owners_per_host,
        dense_per_host=t.dense_per_host,
        each="host" if t.places is None else "topology.places' place",
    )
    if len(dense) % groups:
        allowed = [str(n) for n in range(1, len(dense) + 1) if len(dense) % n == 0]
        raise ConfigError(
            f"dense.codistillation.groups is {groups}, but there {'is' if len(dense) == 1 else 'are'} {len(dense)} "
            f"dense rank{'s' * (len(dense) > 1)}, which cannot be split into so many equal groups. Allowed: "
            f"{', '.join(allowed)}. Set it to one of these, or start other ranks (topology.dense under mode 'split')."
        )
    return owners, dense


def make_thresholding(config: Config) -> Thresholding | None:
    """How vectors are thresholded, if they are."""
    if config.exchange.codec != "dct":
        return None
    dct = config.exchange.dct
    return Thresholding(dct.density, dct.every, dct.evaluate, by_vector=dct.threshold == "vector")


def make_model(config: Config, dataset: DataSet, group: int = 0) -> tuple[nn.Module, dict[str, Operator]]:
    """The model of a group of dense ranks and its operators, with shared tables put in.

    Groups differ in the seed that parameters are drawn by; that of the first is ``train.seed``.

    Raises
    ------
    ConfigError
        A feature that the data set does not have, or what ``build_model`` refuses.
    """
    torch.manual_seed(config.train.seed if group == 0 else hashing.stream(config.train.seed, group))
    model = build_model(
        config.model.name,
        _used_features(config, dataset),
        dataset.n_dense,
        width=config.model.width,
        n_labels=dataset.n_labels,
        pooling=config.model.pooling,
        options=config.model.options,
        folder=None if config.model.folder is None else Path(config.model.folder),
    ).to(DTYPES[config.train.dtype][1])
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats:
            raise ConfigError(
                f"model {config.model.name}: {name or 'it'} is a {type(module).__name__} with running statistics, "
                "which would differ by rank, so that ranks would evaluate differently. Use LayerNorm, or "
                "track_running_stats = False."
            )
    operators = {name: _shared(operator, config) for name, operator in dict(model.operators).items()}  # type: ignore[arg-type]
    return model, operators


def trained_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Names and parameters of a model that dense ranks, or a stage, train.

    Raises
    ------
    ConfigError
        There are none.
    """
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    if not named:
        raise ConfigError("the model has no dense parameter that requires a gradient; nothing to optimise")
    return named


def make_offers(
    config: Config,
    dataset: DataSet,
    operators: dict[str, Operator],
    topology: Topology,
    *,
    reading: bool = False,
    levels: bool | None = None,
    within: bool = False,
    at_place: Sequence[str] = (),
) -> tuple[dict[str, TableSpec], tuple[Family, ...], Offers]:
    """Tables of all sets, where their parts are, and what messages may hold; ``reading`` as of ``build.open_session``.

    Offers know of the tables of one set. ``levels``: messages go by levels; default: where they do, or may do so.
    ``within``: tables are dealt within hosts as if they did. ``at_place``: towers of form ``auto``
    that owners of one host are to compute.

    Raises
    ------
    ConfigError
        Settings of a table that the model does not read, a placement that cannot be had, a max of weighted ids, a table
        called as one of another set, or one whose name is none for a folder of a checkpoint.
    """
    widths, lookups = tables_of(operators), [lookup for operator in operators.values() for lookup in operator.lookups]
    _check_max(dataset, lookups)
    beside = {k.table: config.embedding.table_of(k.feature) for k in lookups}
    _check_read(config, widths, beside.values())
    tables = {name: _table(config, name, width, lookups, dataset) for name, width in widths.items()}
    placements = {name: _placement(config, name, beside[name]) for name in widths}
    thresholded, adds = config.exchange.codec == "dct", not reading and _hosts_add(config, topology, levels)
    here = dict.fromkeys((k.feature for name in at_place for k in operators[name].lookups), Partial.name)
    forms = {**config.exchange.forms, **here}
    wanted = {} if reading else _at_places(config, operators, forms)
    families = build_families(
        tables,
        dataset.features,
        lookups,
        placements,
        owners=topology.owners,
        dense=topology.dense,
        replicate_rows=config.exchange.replicate_rows,
        reading=reading,
        # thresholded in parts, vectors would keep one element at least of each part, however small it is
        whole_rows=thresholded and config.exchange.dct.density < 1,
        hosts=[topology.host_of[rank] for rank in topology.owners],
        within=adds or (within and not reading and _hosts_add(config, topology, levels=True)),
        **_together(wanted, operators, topology),
    )
    rows = {name: family.rows for family in families for name in family.tables}
    tables = {name: replace(table, rows=rows[name]) for name, table in tables.items()}
    sets, copied = topology.table_sets, [f for f in families if all(placements[t] == Placement() for t in f.tables)]
    one_hot = {f.name for f in dataset.features if not dataset.jagged(f.name)}
    offers = Offers(
        tables,
        families,
        lookups,
        operators,
        one_hot,
        forms=forms,
        default_form=_default_form(config),
        replicable=_bytes_of_copies(config, tables, copied, sets),
        dense=topology.dense,
        thresholded=thresholded,
        learned=topology.groups == 1,
        kept=_kept_form(config),
        added=_added(families, topology) - one_hot if adds else frozenset(),
        merged=_merged(families, topology) if adds else frozenset(),
        places=Places(topology.dense, topology.host_of, tuple(wanted)) if wanted else None,
    )
    every = tables_in(sets, tables)
    _check_names(every)
    return every, families_in(sets, families), offers


def _at_places(config: Config, operators: Mapping[str, Operator], forms: Mapping[str, str]) -> dict[str, list[str]]:
    """Features of operators that the owners of one host are to compute: that meet, and leave their vectors there."""
    default, found = _default_form(config), dict[str, list[str]]()
    for name, operator in operators.items() if config.exchange.at_place else ():
        features = list(dict.fromkeys(k.feature for k in operator.lookups))
        of = [forms.get(f, default) for f in features]
        if meets(operator) and all(form != "auto" and FORMS[form].stays for form in of):
            found[name] = features
    return found


def _together(wanted: Mapping[str, list[str]], operators: Mapping[str, Operator], topology: Topology) -> dict[str, Any]:
    """What ``build_families`` is to deal to one host, of operators that owners are to compute: groups, whole bags."""
    groups = {name: features for name, features in wanted.items() if not _why_never(name, operators, topology)}
    return {"groups": groups, "whole_bags": _whole_bags([operators[name] for name in groups])}


def _whole_bags(operators: Iterable[Operator]) -> frozenset[str]:
    """Features whose bags these do not allow to be split."""
    found = (k for operator in operators for k in operator.lookups if k.pooling != "sum" or not operator.splits_bags)
    return frozenset(k.feature for k in found)


def _why_never(name: str, operators: Mapping[str, Operator], topology: Topology) -> str:
    """Why dense ranks have to compute an operator that meets, wherever its rows are; empty where owners may."""
    if has_parameters(operators[name]) and topology.groups > 1:
        return "each group of dense ranks has a module of its own"
    return why_on_dense_ranks(operators[name]) or shared_parameters(name, operators)


def _check_max(dataset: DataSet, lookups: Iterable[Lookup]) -> None:
    """Refuses a max of ids that carry weights."""
    for lookup in lookups:
        if lookup.pooling == "max" and dataset.feature(lookup.feature).weighted:
            raise ConfigError(
                f"model: feature {lookup.feature!r} is pooled by 'max', but its ids carry weights in {dataset.path}. "
                f"Allowed for it: 'sum', 'mean'. Set model.pooling.{lookup.feature} to one of them."
            )


def _check_read(config: Config, tables: Iterable[str], beside: Iterable[str]) -> None:
    """Refuses settings of tables that the model does not read."""
    known = list(dict.fromkeys((*beside, *tables)))
    for name in config.embedding.tables:
        if name not in known:
            raise ConfigError(
                f"embedding.tables.{name} is set, but the model reads no such table. It reads: {', '.join(known)}."
            )
    for name in config.store.whole:
        if name not in tables:
            raise ConfigError(
                f"store.whole has {name!r}, but the model reads no such table. It reads: {', '.join(tables)}."
            )


def _bytes_of_copies(
    config: Config, tables: Mapping[str, TableSpec], families: Iterable[Family], sets: int
) -> dict[str, int]:
    """By family that may be copied: of all sets' rows on one rank, those of dynamic tables left out."""
    item_bytes = DTYPES[config.train.dtype][0].itemsize
    found = {
        family.name: sets * item_bytes * sum(family.rows * row_elements(tables[t]) for t in family.tables)
        for family in families
        if family.dynamic is None
    }
    return {name: n_bytes for name, n_bytes in found.items() if n_bytes <= config.exchange.auto_copies}


def _hosts_add(config: Config, topology: Topology, levels: bool | None) -> bool:
    """Whether ranks of a host may add what they have for another host: owners of a bag, dense ranks of a row."""
    parts = getattr(make_policy(config), "parts", False)  # of a step, which cross apart
    by_levels = config.exchange.may_level if levels is None else levels
    if not by_levels or parts or not 1 < topology.n_hosts < topology.size:
        return False
    return config.exchange.reduce != "dense"


def _added(families: Sequence[Family], topology: Topology) -> frozenset[str]:
    """Features of which several owners of a host may have parts of a bag for a dense rank of another one."""
    found, dense_on = set[str](), {topology.host_of[rank] for rank in topology.dense}
    for family in families:
        hosts = [topology.host_of[rank] for rank in family.holders]
        if family.kind == "row" and any(hosts.count(host) > 1 and dense_on - {host} for host in set(hosts)):
            found |= set(family.features)
    return frozenset(found)


def _merged(families: Sequence[Family], topology: Topology) -> frozenset[str]:
    """Features of which several dense ranks of a host may want the same rows of an owner on another one.

    None where groups of dense ranks have tables of their own: those of a host may read different ones.
    """
    found, dense_on = set[str](), [topology.host_of[rank] for rank in topology.dense]
    several = {host for host in dense_on if dense_on.count(host) > 1}
    for family in families if topology.table_sets == 1 else ():
        if any(several - {topology.host_of[rank]} for rank in family.holders):
            found |= set(family.features)
    return frozenset(found)


def store_class(config: Config) -> type[MemoryStore]:
    """The one that ``[store]`` asks for."""
    return (STORES if config.store.gpu_bytes is None else ON_GPU)[config.store.name]


def whole_tables(config: Config, topology: Topology) -> frozenset[str]:
    """Tables of ``store.whole``, of every set."""
    return frozenset(name_in(n, name) for n in range(topology.table_sets) for name in config.store.whole)


def _check_names(tables: Iterable[str]) -> None:
    """Before training, not at the first checkpoint."""
    for name in tables:
        length = len(quoted(name).encode())
        if not 0 < length <= LONGEST_NAME or "\0" in name:
            has = "a NUL in its name" if "\0" in name else f"a name of {length} bytes"
            raise ConfigError(
                f"table {name[:60]!r} has {has}, and a checkpoint keeps it in a folder of that name. Allowed: 1 to "
                f"{LONGEST_NAME} bytes, no NUL. Rename the feature in the data set, or the table of your model."
            )


def _placement(config: Config, name: str, beside: str) -> Placement:
    """A table's own, or that of the table of its feature: both are routed by the same ids."""
    own = config.embedding.tables.get(name) or config.embedding.table(beside)
    return Placement(kind=own.shard, owners=own.owners, parts=own.parts)


def _table(config: Config, name: str, width: int, lookups: Sequence[Lookup], dataset: DataSet) -> TableSpec:
    """One table; a wide table has the rows of the table beside it, for both are read by the same ids."""
    readers = [k.feature for k in lookups if k.table == name]
    own = config.embedding.table(name)
    beside_name = config.embedding.table_of(readers[0])
    beside = config.embedding.table(beside_name)
    assert own.optimizer is not None, "EmbeddingConfig.table fills it in"
    assert own.init_scale is not None and own.init_decay is not None, "likewise"
    spec = TableSpec(
        name=name,
        rows=1,
        width=width,
        init_scale=own.init_scale,
        init_decay=own.init_decay,
        optimizer=own.optimizer.spec(),
    )
    dynamic = own.dynamic or beside.dynamic
    if dynamic is not None:
        if own.rows or own.hashed:
            raise ConfigError(
                f"embedding.tables.{name} has {'rows' if own.rows else 'hashed'} of its own, but {beside_name!r} "
                f"is read by the same ids and dynamic. Remove it, or embedding.tables.{beside_name}.dynamic."
            )
        named = name if own.dynamic is not None else beside_name
        rules = {key: getattr(dynamic, key) for key in ("evict", "admit_from", "pending", "admit_probability")}
        return replace(spec, rows=dynamic.capacity, dynamic=Dynamic(**rules, seed=config.train.seed, named=named))
    open_ended = [f for f in readers if not dataset.feature(f).cardinality]
    rows, hashed = own.rows or beside.rows, own.hashed or beside.hashed
    if open_ended and not hashed:
        raise ConfigError(
            f"embedding.tables: table {name!r} is read by feature {open_ended[0]!r}, which has no cardinality in "
            f"{dataset.path}: its ids are any 64-bit numbers. Set embedding.tables.{beside_name}.dynamic.capacity, or "
            "its rows and hashed = true."
        )
    cardinality = max(dataset.feature(f).cardinality for f in readers)
    rows = rows or cardinality
    if rows < cardinality and not hashed:
        raise ConfigError(
            f"embedding.tables: table {name!r} has {rows} rows, but its features have ids up to {cardinality - 1}. Set "
            "its rows to at least that many and one, or hashed = true."
        )
    return replace(spec, rows=rows, hashed=hashed)


def _used_features(config: Config, dataset: DataSet) -> tuple[Feature, ...]:
    names = config.data.features or tuple(f.name for f in dataset.features)
    known = {f.name: f for f in dataset.features}
    for section, keys in (
        ("data.features", names),
        ("model.pooling", config.model.pooling),
        ("exchange.forms", config.exchange.forms),
        ("embedding.share", config.embedding.share),
        ("embedding.share", config.embedding.share.values()),
    ):
        for name in keys:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                raise ConfigError(
                    f"{section} names feature {name!r}, which {dataset.path} does not have. It has: {', '.join(known)}."
                    + (f" Did you mean {near[0]!r}?" if near else "")
                )
    return tuple(known[name] for name in names)


def _shared(operator: Any, config: Config) -> Any:
    """The operator with each lookup's table replaced as ``embedding.share`` says, wide tables alike."""

    def table(lookup: Lookup) -> str:
        if lookup.table != lookup.feature and not lookup.table.startswith(lookup.feature + "."):
            return lookup.table  # a table that the model named itself
        return config.embedding.table_of(lookup.feature) + lookup.table[len(lookup.feature) :]

    if not config.embedding.share:
        return operator
    return replace(operator, lookups=tuple(replace(k, table=table(k)) for k in operator.lookups))
