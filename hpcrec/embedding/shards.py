"""The shard map: which rank holds which part of which table.

Tables that one feature feeds form a *family* and are placed alike, so that the feature's ids are routed once. A family
is placed in one of four ways:

``table``      one owner holds it whole
``row``        rows are dealt to owners in turn, by a fixed permutation of the row numbers: never by ranges, so frequent
               rows spread whatever order the data set numbered them in. Which owner comes first differs by family, so
               the same frequent id of several tables does not meet at one owner. Asked for as ``host``, to the owners
               of one host
``column``     each owner holds some columns of every row
``replicate``  every dense rank holds it whole

Tables without declared rows (*dynamic*) have no row numbers to permute: their ids are dealt by a hash, or one owner has
them all. Their rows are dealt as if there were as many as they may have, so each owner has room for its share of these.

Everything here is a pure function of the tables, the features and the roles, so every rank computes the same map.
What the configuration leaves open is chosen in ``place``. Knows nothing of MPI or of rows' contents.
"""

import hashlib
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from hpcrec import kernels
from hpcrec.embedding.place import Movable, cost_of, place, way_to_split
from hpcrec.errors import ConfigError
from hpcrec.types import Dynamic, Feature, Ints, Lookup, TableSpec

KINDS = ("table", "row", "column", "replicate")


@dataclass(frozen=True, kw_only=True)
class Placement:
    """What a configuration may ask of a table's family.

    ``kind`` is one of ``KINDS``, ``host`` or ``auto``; ``owners`` are owner numbers (not world ranks); ``parts`` is how
    many owners a ``row`` or ``column`` placement uses (all of them when None).
    """

    kind: str = "auto"
    owners: tuple[int, ...] | None = None
    parts: int | None = None


@dataclass(frozen=True, kw_only=True)
class Family:
    """Tables that share features, and with them their ids' routes.

    Attributes
    ----------
    name : str
        Name of its first table.
    rows : int
        Rows of each of its tables.
    hashed : bool
    dynamic : Dynamic or None
        Of each of its tables.
    tables, features : tuple of str
    kind : str
        One of ``KINDS``.
    holders : tuple of int
        World ranks that hold a part, in order of parts.
    """

    name: str
    rows: int
    hashed: bool
    tables: tuple[str, ...]
    features: tuple[str, ...]
    kind: str
    holders: tuple[int, ...]
    dynamic: Dynamic | None = None

    @property
    def row_parts(self) -> int:
        """Parts that rows are dealt to."""
        return len(self.holders) if self.kind == "row" else 1

    def part_rows(self, part: int) -> int:
        """Rows that part ``part`` holds."""
        return -(-(self.rows - part) // self.row_parts) if self.kind == "row" else self.rows

    def deal(self, ids: Ints) -> tuple[Ints, Ints]:
        """The part that holds each row (or, of dynamic tables, id), and what it is called there: its row, or the id."""
        if self.dynamic is not None:
            return kernels.hash_ids(ids, self.row_parts, self.dynamic.seed), ids
        dealt = kernels.permute(ids, self.rows, 0)
        return dealt % self.row_parts, dealt // self.row_parts

    def part_columns(self, width: int, part: int) -> tuple[int, int]:
        """Columns [start, stop) that part ``part`` holds of a table of ``width``; may be none."""
        if self.kind != "column":
            return 0, width
        parts = len(self.holders)
        return width * part // parts, width * (part + 1) // parts


def table_seed(seed: int, name: str) -> int:
    """Seed of a table's rows: 63 bits from the run's seed and the table's name."""
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def build_families(
    tables: Mapping[str, TableSpec],
    features: Sequence[Feature],
    lookups: Sequence[Lookup],
    placements: Mapping[str, Placement],
    *,
    owners: Sequence[int],
    dense: Sequence[int],
    replicate_rows: int,
    reading: bool = False,
    whole_rows: bool = False,
    hosts: Sequence[int] = (),
    within: bool = False,
    groups: Mapping[str, Sequence[str]] | None = None,
    whole_bags: AbstractSet[str] = frozenset(),
) -> tuple[Family, ...]:
    """Places every table that a lookup reads.

    A family costs its owners memory (rows and optimizer state) and time (lookups, and the columns that each moves); of
    lookups the mean number of ids a sample is known, not their skew. See ``place.place``. ``reading``: each
    owner of a dynamic family has room for all of its rows. ``whole_rows``: none is split by columns that does not ask
    for it. ``hosts``, of owners, and ``within`` as of ``place.place``. ``groups``: features by group, whose tables go
    to owners of one host, none of them replicated, where the configuration leaves it open, those of several groups that
    share some together; ``whole_bags``: those of them whose bags are not to be split.

    Raises
    ------
    ConfigError
        Tables that a feature links but that differ in rows, or a placement that cannot be had.
    """
    mean_ids = {f.name: f.mean_ids for f in features}
    connected = _connected(tables, lookups)
    group_of = _groups_of(connected, groups or {})
    placed: dict[str, tuple[str, tuple[int, ...]]] = {}
    movable: dict[str, Movable] = {}
    for name, (names, feats) in connected.items():
        want, specs, anywhere = _wanted(names, placements), [tables[t] for t in names], False
        small = tables[name].rows <= replicate_rows and group_of[name] is None
        if specs[0].dynamic is not None:
            setting = min((t for t in names if placements.get(t) == want), key=len, default=name)
            anywhere = want == Placement()
            want = _dynamic_placement(want, setting, len(owners))
        elif want.kind == "replicate" or (want.kind == "auto" and small):
            placed[name] = ("replicate", tuple(dense))
            continue
        _check_placement(f"embedding.tables.{name}", want, len(owners))
        kind = "table" if want.kind == "auto" and want.owners is not None else want.kind
        cost = cost_of(specs, sum(mean_ids[f] for f in feats))
        group, way = group_of[name], way_to_split(specs, len(owners), whole_rows=whole_rows)
        if group is not None:
            way = _way_in_host(specs, hosts or (0,) * len(owners), whole=not whole_bags.isdisjoint(feats))
            kind, anywhere = ("table", False) if way == "table" and anywhere else (kind, anywhere)
        fixed = Movable(cost=cost, kind=kind, owners=want.owners, parts=want.parts, way=way, anywhere=anywhere)
        movable[name] = replace(fixed, group=group, several=any(mean_ids[f] > 1 for f in feats))
    for name, (kind, numbers) in place(movable, len(owners), hosts, within=within).items():
        placed[name] = (kind, tuple(owners[n] for n in numbers))
    families = tuple(
        Family(
            name=name,
            rows=tables[name].rows,
            hashed=tables[name].hashed,
            dynamic=_dealt_by(tables[name].dynamic, name),
            tables=names,
            features=feats,
            kind=placed[name][0],
            holders=placed[name][1],
        )
        for name, (names, feats) in connected.items()
    )
    for family in families if not reading else ():
        if family.dynamic is not None:
            _check_capacity(family, tables[family.name])
    return tuple(_for_all_rows(family) if reading else family for family in families)


def _way_in_host(specs: Sequence[TableSpec], hosts: Sequence[int], *, whole: bool) -> str | None:
    """How tables of a group may be split over the owners of a host, if over several, and not by columns."""
    most = max(list(hosts).count(host) for host in hosts)
    return "table" if whole else way_to_split(specs, most, whole_rows=True)


def _groups_of(
    connected: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]], groups: Mapping[str, Sequence[str]]
) -> dict[str, str | None]:
    """The group of each family, None where none has features of it; groups that share a family are one."""
    group_of = {feature: group for group, feats in groups.items() for feature in feats}
    for _, feats in connected.values():
        mine = list(dict.fromkeys(group_of[f] for f in feats if f in group_of))
        group_of = {f: mine[0] if group in mine else group for f, group in group_of.items()}
    return {name: next((group_of[f] for f in feats if f in group_of), None) for name, (_, feats) in connected.items()}


def _for_all_rows(family: Family) -> Family:
    if family.dynamic is None:
        return family
    return replace(family, rows=min(family.rows, kernels.MOST_ROWS) * family.row_parts)


def _connected(
    tables: Mapping[str, TableSpec], lookups: Sequence[Lookup]
) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Tables and features of each family, by the name of its first table, in order of first lookup."""
    family_of: dict[str, str] = {}  # table -> family
    feature_family: dict[str, str] = {}
    for lookup in lookups:
        if lookup.table not in tables:
            raise ConfigError(f"model: feature {lookup.feature!r} reads table {lookup.table!r}, which is not defined.")
        name = feature_family.get(lookup.feature, family_of.get(lookup.table, lookup.table))
        old = family_of.get(lookup.table)
        if old is not None and old != name:  # two families meet in this table
            family_of.update({t: name for t, f in family_of.items() if f == old})
            feature_family.update({f: name for f, g in feature_family.items() if g == old})
        family_of[lookup.table] = name
        feature_family[lookup.feature] = name
    out: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}
    for name in dict.fromkeys(family_of.values()):
        names = tuple(t for t, f in family_of.items() if f == name)
        first = tables[names[0]]
        for t in names[1:]:
            if tables[t].dynamic != first.dynamic:
                raise ConfigError(
                    f"tables {names[0]!r} and {t!r} are read by the same features, whose ids get rows in both alike, "
                    "but their embedding.tables.<table>.dynamic differ. Set it for the table of the feature only."
                )
            if (tables[t].rows, tables[t].hashed) != (first.rows, first.hashed):
                raise ConfigError(
                    f"tables {names[0]!r} ({first.rows} rows, hashed {first.hashed}) and {t!r} ({tables[t].rows} rows, "
                    f"hashed {tables[t].hashed}) are read by the same features, so their rows and hashed must agree. "
                    f"Set both in [embedding.tables]."
                )
        out[names[0]] = (names, tuple(f for f, g in feature_family.items() if g == name))
    return out


def _wanted(names: Sequence[str], placements: Mapping[str, Placement]) -> Placement:
    asked = {t: placements[t] for t in names if placements.get(t, Placement()) != Placement()}
    if len(set(asked.values())) > 1:
        raise ConfigError(
            f"tables {sorted(asked)} are read by the same features and are placed alike, but ask for different shards: "
            f"{', '.join(f'{t}: {p.kind}' for t, p in sorted(asked.items()))}. Set it for one of them only."
        )
    return next(iter(asked.values()), Placement())


def _dealt_by(dynamic: Dynamic | None, family: str) -> Dynamic | None:
    """With a seed of the family's own: the same frequent id of several does not meet at one owner."""
    return None if dynamic is None else replace(dynamic, seed=table_seed(dynamic.seed, family))


def _dynamic_placement(want: Placement, placed: str, n_owners: int) -> Placement:
    """Dealt to all owners unless it is asked for otherwise, at table ``placed``."""
    if want.kind in ("column", "replicate"):
        raise ConfigError(
            f"embedding.tables.{placed}.shard is {want.kind!r}, but the table is dynamic: an owner gives and takes "
            "whole rows. Allowed: 'auto', 'row', 'host', 'table'."
        )
    if want.kind == "auto":
        want = replace(want, kind="table" if n_owners == 1 else "row")
    return want


def _check_capacity(family: Family, spec: TableSpec) -> None:
    """Each owner of a dynamic table has to have room for a row, and not for more than it may have."""
    assert spec.dynamic is not None
    where, capacity, parts = f"embedding.tables.{spec.dynamic.named or spec.name}", spec.rows, len(family.holders)
    if capacity < parts:
        raise ConfigError(
            f"{where}.dynamic.capacity is {capacity}, but the table is dealt to {parts} owners. Allowed: a row for "
            f"each at least. Raise it, or set {where}.shard = 'table'."
        )
    if capacity > parts * kernels.MOST_ROWS:
        raise ConfigError(
            f"{where}.dynamic.capacity is {capacity}, dealt to {parts} owners. Allowed: up to {kernels.MOST_ROWS} rows "
            "for each. Lower it, or use more owners."
        )


def _check_placement(where: str, want: Placement, n_owners: int) -> None:
    if want.kind not in (*KINDS, "auto", "host"):
        raise ConfigError(f"{where}.shard is {want.kind!r}. Allowed: auto, host, {', '.join(KINDS)}.")
    if want.kind == "host" and (want.owners is not None or want.parts is not None):
        raise ConfigError(
            f"{where}.shard is 'host', which takes all owners of a host that is chosen. Remove owners and parts, or "
            "set shard = 'row' with the owners that you want."
        )
    if want.owners is not None:
        bad = [o for o in want.owners if not 0 <= o < n_owners]
        if bad or not want.owners or len(set(want.owners)) != len(want.owners):
            raise ConfigError(
                f"{where}.owners is {list(want.owners)}. Allowed: owner numbers 0 to {n_owners - 1}, each once."
            )
        if want.kind in ("table", "auto") and len(want.owners) != 1:
            raise ConfigError(f"{where}.owners names {len(want.owners)} owners; shard = 'table' takes exactly 1.")
    if want.parts is not None and not 1 <= want.parts <= n_owners:
        raise ConfigError(f"{where}.parts is {want.parts}. Allowed: 1 to {n_owners}, the number of owners.")
