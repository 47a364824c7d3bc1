"""Which owners hold what, where the configuration leaves it open: families placed so that no owner has much more.

A family is known here by its name, its cost and how it may be split. Everything is a pure function of these, so every
rank computes the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpcrec import kernels
from hpcrec.types import TableSpec

BALANCE = 1.15  # what the fullest and the busiest owner may have of the mean, as predicted, where families may be split
_AIM = 1.1  # what families are split for: below BALANCE, as skew within a table is not known before the run
# A lookup costs its owner as much as so many columns, before it touches any: measured 60 ns against 1.7 ns a column.
LOOKUP_COLUMNS = 35
_DEALT_ROWS = 1000  # rows an owner from which frequent rows spread evenly enough
_DEALT_COLUMNS = 4  # columns an owner from which a split by columns is worth its further ids
_SPLIT_AT_ONCE = 8  # of the families still whole, one in so many is split before the balance is looked at again


@dataclass(frozen=True)
class Cost:
    """What a family costs its owners: elements of rows and states, and the time of a sample's lookups, in columns."""

    memory: float
    time: float


@dataclass(frozen=True, kw_only=True)
class Movable:
    """A family to be placed.

    Attributes
    ----------
    cost : Cost
    kind : str
        ``table``, ``row``, ``column``, or ``host``: rows, dealt to the owners of one host; ``auto`` where it is chosen
        here.
    owners : tuple of int or None
        Owner numbers that must hold it, in order of parts.
    parts : int or None
        Owners that share it where it is split; all by default.
    way : str or None
        How it may be split evenly where ``kind`` is ``auto``: ``row`` or ``column``; ``table`` where it is to stay
        whole; None where it cannot be, evenly.
    anywhere : bool
        Where its rows are dealt, to whom is left open.
    several : bool
        Whether a feature has more than one id a sample in the mean, so that owners of one host may have parts of bags.
    group : str or None
        Families of one group go to owners of one host, where it is open to whom; those whose owners are given, or that
        are to be dealt to all, stay out of it.
    """

    cost: Cost
    kind: str = "auto"
    owners: tuple[int, ...] | None = None
    parts: int | None = None
    way: str | None = None
    anywhere: bool = False
    several: bool = True
    group: str | None = None


def cost_of(specs: Sequence[TableSpec], mean_ids: float) -> Cost:
    """Cost of tables that ``mean_ids`` ids a sample are looked up in."""
    memory = sum(spec.rows * row_elements(spec) for spec in specs)
    return Cost(memory, mean_ids * sum(LOOKUP_COLUMNS + spec.width for spec in specs))


def row_elements(spec: TableSpec) -> int:
    """Elements of a row and its optimizer state."""
    states = kernels.state_shapes(spec.optimizer, 1, spec.width).values()
    return spec.width + sum(shape[-1] if len(shape) == 2 else 1 for shape in states)


def way_to_split(specs: Sequence[TableSpec], owners: int, *, whole_rows: bool = False) -> str | None:
    """How tables of equal rows may be split evenly over all owners: ``row``, ``column``, or None.

    ``whole_rows``: not by columns; ``table`` then says that they stay whole however busy they are.
    """
    if owners == 1:
        return None
    if specs[0].rows >= _DEALT_ROWS * owners:
        return "row"
    if whole_rows:
        return "table"
    least = _DEALT_COLUMNS * owners
    fits = all(s.width >= least and (s.width % owners == 0 or s.width >= 4 * least) for s in specs)
    return "column" if fits else None


def place(
    families: Mapping[str, Movable], n_owners: int, hosts: Sequence[int] = (), *, within: bool = False
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Kind and owner numbers of each family, in order of parts.

    One that alone exceeds an owner's fair share of memory or time is split over all owners, unless it is to stay whole.
    The others go whole, dearest first, to the owner that is then the least loaded in what it has most of. While an
    owner would have more than ``BALANCE`` of the mean of either, less a margin, the dearest that are still whole are
    split too. ``hosts``: that of each owner. ``within``: rows that may be dealt to anybody, and that several ids of a
    bag ask for (of bags of one, nothing is saved), are dealt to the owners of one host, as many families as leave
    owners with no more than otherwise, or than that, the cheapest first. Families of a group are dealt to the owners of
    their host, where they are split.
    """
    memory = sum(f.cost.memory for f in families.values()) or 1.0
    time = sum(f.cost.time for f in families.values()) or 1.0
    share = {name: (f.cost.memory / memory, f.cost.time / time) for name, f in families.items()}
    order = sorted(families, key=lambda n: (-sum(share[n]), n))
    free = [n for n in order if families[n].kind == "auto"]
    split = {n: families[n].way or "row" for n in free if n_owners > 1 and max(share[n]) > 1 / n_owners}
    of_host = hosts or (0,) * n_owners
    least = _least(families, share, of_host)
    while True:
        placed, fullest = _placed(families, order, share, split, of_host)
        left = [n for n in free if n not in split and families[n].way not in (None, "table")]
        if not left or fullest <= _AIM * max(1 / n_owners, least):
            break
        split |= {n: families[n].way or "row" for n in left[: 1 + len(left) // _SPLIT_AT_ONCE]}
    dealt = [n for n in order if split.get(n) == "row" or (families[n].anywhere and families[n].kind == "row")]
    dealt = [n for n in dealt if families[n].several]
    while within and len(set(of_host)) > 1 and dealt:
        found, full = _placed(families, order, share, {**split, **dict.fromkeys(dealt, "host")}, of_host)
        if full * n_owners <= max(_AIM, fullest * n_owners):
            return found
        dealt = dealt[1 + len(dealt) // _SPLIT_AT_ONCE :]
    return placed


def _placed(
    families: Mapping[str, Movable],
    order: Sequence[str],
    share: Mapping[str, tuple[float, float]],
    split: Mapping[str, str],
    of_host: Sequence[int],
) -> tuple[dict[str, tuple[str, tuple[int, ...]]], float]:
    """Families placed with these split, and the largest share of memory or time that an owner has then."""
    n_owners = len(of_host)
    load = [(0.0, 0.0)] * n_owners
    owners_of = {host: [o for o, at in enumerate(of_host) if at == host] for host in dict.fromkeys(of_host)}
    owners_of_group = _dealt_groups(families, share, owners_of)
    placed: dict[str, tuple[str, tuple[int, ...]]] = {}
    dealt = 0

    def turn(name: str) -> int:
        """What is dealt goes first, then what has to be on some host, so that the rest fills what these leave."""
        whole = families[name].kind == "auto" and name not in split
        return 2 * whole - (whole and _is_led(families[name]))

    whole_last = sorted(order, key=turn)
    for name in whole_last:
        family, (memory, time) = families[name], share[name]
        kind = split.get(name, "table" if family.kind == "auto" else family.kind)
        numbers = family.owners
        if numbers is None:

            def with_it(o: int, memory: float = memory, time: float = time) -> tuple[float, float, int]:
                return max(load[o][0] + memory, load[o][1] + time), sum(load[o]), o

            group = family.group if _is_led(family) else None
            allowed = range(n_owners) if group is None else owners_of_group[group]
            n_parts = 1 if kind == "table" else family.parts or len(allowed)
            chosen = sorted(sorted(allowed, key=with_it)[:n_parts])
            if group is not None:
                kind = kind if len(chosen) > 1 or kind == "table" else "table"
                kind = "row" if kind == "host" else kind
            elif kind == "host":
                chosen = min(owners_of.values(), key=lambda some: _fullest(some, load, memory, time))
                kind = "row" if len(chosen) > 1 else "table"
            first = dealt % len(chosen) if kind == "row" else 0
            dealt += kind == "row"
            numbers = tuple(chosen[first:] + chosen[:first])
        for o in numbers:
            load[o] = (load[o][0] + memory / len(numbers), load[o][1] + time / len(numbers))
        placed[name] = (kind, numbers)
    return placed, max(max(both) for both in load)


def _is_led(family: Movable) -> bool:
    """Whether a family goes where its group does."""
    if family.group is None or family.owners is not None:
        return False
    return family.anywhere or (family.kind in ("auto", "table", "host") and family.parts is None)


def _dealt_groups(
    families: Mapping[str, Movable], share: Mapping[str, tuple[float, float]], owners_of: Mapping[int, Sequence[int]]
) -> dict[str, Sequence[int]]:
    """Owners of the host of each group: the dearest first, to the host that is then the least loaded an owner.

    A group of which some families have owners goes to their host.
    """
    groups: dict[str, list[str]] = {}
    for name, family in families.items():
        if family.group is not None:
            groups.setdefault(family.group, []).append(name)
    host_of = {owner: host for host, owners in owners_of.items() for owner in owners}
    pinned = {
        group: {host_of[o] for n in names for o in families[n].owners or () if o in host_of}
        for group, names in groups.items()
    }
    total = {group: [sum(share[n][i] for n in names) for i in (0, 1)] for group, names in groups.items()}
    load = {host: [0.0, 0.0] for host in owners_of}
    found: dict[str, Sequence[int]] = {}
    for group in sorted(groups, key=lambda g: (len(pinned[g]) != 1, -sum(total[g]), g)):
        memory, time = total[group]

        def with_it(host: int, memory: float = memory, time: float = time) -> tuple[float, float, int]:
            had, n = load[host], len(owners_of[host])
            return max(had[0] + memory, had[1] + time) / n, sum(had) / n, host

        host = min(pinned[group] if len(pinned[group]) == 1 else owners_of, key=with_it)
        load[host] = [load[host][0] + memory, load[host][1] + time]
        found[group] = owners_of[host]
    return found


def _least(families: Mapping[str, Movable], share: Mapping[str, tuple[float, float]], of_host: Sequence[int]) -> float:
    """What some owner has at least, since groups are on one host each: no split makes it less."""
    owners_of = {host: [o for o, at in enumerate(of_host) if at == host] for host in dict.fromkeys(of_host)}
    load = {host: [0.0, 0.0] for host in owners_of}
    host_of_group = {g: of_host[owners[0]] for g, owners in _dealt_groups(families, share, owners_of).items()}
    for name, family in families.items():
        if family.group is not None and _is_led(family):
            host = host_of_group[family.group]
            load[host] = [had + own for had, own in zip(load[host], share[name], strict=True)]
    return max(max(both) / len(owners_of[host]) for host, both in load.items())


def _fullest(
    owners: Sequence[int], load: Sequence[tuple[float, float]], memory: float, time: float
) -> tuple[float, float, int]:
    """How much the fullest of some owners has if a family is dealt to them; then by what they have, and who."""
    some = [load[o] for o in owners]
    n = len(owners)
    most = max(max(had[0] + memory / n, had[1] + time / n) for had in some)
    return most, sum(map(sum, some)) / n, owners[0]
