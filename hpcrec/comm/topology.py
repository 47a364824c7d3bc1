"""Topology: which ranks own embedding rows, which run the dense towers, and which host each is on.

Roles are assigned by arithmetic alone from the number of ranks and their hosts, so every rank computes the same and
tests can try any shape. A host may be declared to be several *places* (``places_of``): then places are what roles and
messages take for hosts, and ``machine_of`` has the hosts themselves. Knows nothing of communicators (``comm.world``).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hpcrec.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Ranks, roles and hosts of a run, seen from one rank.

    Attributes
    ----------
    rank, size : int
        This rank and the number of ranks in the world.
    owners, dense : tuple of int
        World ranks that hold rows, and world ranks that run the towers; ascending. They may overlap or be equal.
    host_of : tuple of int
        Host number of each world rank, or that of its place; numbered by their lowest rank.
    machine_of : tuple of int
        The host itself, whose cores, memory and GPUs its places share; empty: hosts are as in ``host_of``.
    groups : int
        Equal groups of dense ranks, consecutive among these, each of which trains dense parameters of its own.
    own_tables : bool
        Whether each group trains embedding tables of its own, too.
    """

    rank: int
    size: int
    owners: tuple[int, ...]
    dense: tuple[int, ...]
    host_of: tuple[int, ...]
    machine_of: tuple[int, ...] = ()
    groups: int = 1
    own_tables: bool = False

    @property
    def is_owner(self) -> bool:
        """Whether this rank holds rows."""
        return self.rank in self.owners

    @property
    def is_dense(self) -> bool:
        """Whether this rank runs the towers."""
        return self.rank in self.dense

    @property
    def is_fused(self) -> bool:
        """Whether every rank is both."""
        return self.owners == self.dense

    @property
    def dense_index(self) -> int:
        """This rank's number among the dense ranks."""
        return self.dense.index(self.rank)

    @property
    def group(self) -> int:
        """The group of dense ranks that this rank is in; 0 where it is not dense."""
        return self.dense_index // self._group_size if self.is_dense else 0

    @property
    def place(self) -> int:
        """This dense rank's number in its group."""
        return self.dense_index % self._group_size

    @property
    def group_ranks(self) -> tuple[int, ...]:
        """World ranks of this rank's group."""
        return self.dense[self.group * self._group_size : (self.group + 1) * self._group_size]

    @property
    def counterparts(self) -> tuple[int, ...]:
        """World ranks that have this dense rank's place in each group, itself included, in the order of groups."""
        return self.dense[self.place :: self._group_size]

    @property
    def table_sets(self) -> int:
        """Sets of embedding tables, each for all features: one, or one of each group."""
        return self.groups if self.own_tables else 1

    def reads(self, ahead: int = 0) -> tuple[int, ...]:
        """The set of tables that each world rank reads: that of the group so many ahead of its own, in a ring."""
        sets = [0] * self.size
        for number, rank in enumerate(self.dense):
            sets[rank] = (number // self._group_size + ahead) % self.table_sets
        return tuple(sets)

    @property
    def _group_size(self) -> int:
        return len(self.dense) // self.groups

    @property
    def n_hosts(self) -> int:
        """Hosts in the run."""
        return len(set(self.host_of))

    @property
    def host_ranks(self) -> tuple[int, ...]:
        """World ranks on this rank's host."""
        return tuple(r for r in range(self.size) if self.host_of[r] == self.host_of[self.rank])

    @property
    def machine(self) -> int:
        """Number of the host itself that this rank is on."""
        return (self.machine_of or self.host_of)[self.rank]

    @property
    def machine_ranks(self) -> tuple[int, ...]:
        """World ranks with which this one shares cores, memory and GPUs, whatever places they are in."""
        of = self.machine_of or self.host_of
        return tuple(r for r in range(self.size) if of[r] == of[self.rank])

    @property
    def far(self) -> frozenset[int]:
        """World ranks on other hosts."""
        return frozenset(range(self.size)) - frozenset(self.host_ranks)

    @property
    def peers(self) -> tuple[int, ...]:
        """World ranks with this rank's local index, one a host; only hosts that have so many ranks."""
        local = self.host_ranks.index(self.rank)
        by_host: dict[int, list[int]] = {}
        for r, host in enumerate(self.host_of):
            by_host.setdefault(host, []).append(r)
        return tuple(ranks[local] for _, ranks in sorted(by_host.items()) if len(ranks) > local)

    def describe(self) -> dict[str, object]:
        """What ``summary.json`` says of it."""
        return {
            "ranks": self.size,
            "owners": list(self.owners),
            "dense": list(self.dense),
            "fused": self.is_fused,
            "host_of_rank": list(hosts := self.machine_of or self.host_of),
            **({"place_of_rank": list(self.host_of)} if hosts != self.host_of else {}),
            **({"groups": self.groups} if self.groups > 1 else {}),
            **({"own_tables": True} if self.own_tables else {}),
        }


def places_of(host_of: Sequence[int], ranks: int | None) -> tuple[int, ...]:
    """Place of each rank, where the ranks of a host, in order, are taken so many at a time; by default its host.

    The last place of a host has those that are left. No place has ranks of two hosts. As hosts, places are numbered by
    their lowest rank.
    """
    numbers, taken, found = dict[tuple[int, int], int](), dict[int, int](), []
    for host in host_of:
        before = taken.get(host, 0)
        taken[host] = before + 1
        found.append(numbers.setdefault((host, 0 if ranks is None else before // ranks), len(numbers)))
    return tuple(found)


def assign_roles(
    host_of: Sequence[int],
    *,
    mode: str,
    owners: int | Sequence[int] | None = None,
    dense: int | Sequence[int] | None = None,
    owners_per_host: int | None = None,
    dense_per_host: int | None = None,
    each: str = "host",
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Owners and dense ranks of a world.

    A count takes owners from the first ranks and dense ranks from the last; a count per host does so on each host; a
    list names them. With one role given, ``split`` gives the other all the remaining ranks. ``fused`` takes no roles.
    ``each`` is what an error calls the hosts.

    Raises
    ------
    ConfigError
        Roles that cannot be had, or that leave a rank without one.
    """
    size = len(host_of)
    given = {
        "owners": owners,
        "dense": dense,
        "owners_per_host": owners_per_host,
        "dense_per_host": dense_per_host,
    }
    if mode == "fused":
        extra = [name for name, value in given.items() if value is not None]
        if extra:
            raise ConfigError(
                f"topology.{extra[0]} is set, but topology.mode is 'fused', where every rank has both roles. "
                "Remove it, or set topology.mode = 'split'."
            )
        return tuple(range(size)), tuple(range(size))
    if mode != "split":
        raise ConfigError(f"topology.mode is {mode!r}. Allowed: 'fused', 'split'.")
    if size == 1:
        raise ConfigError(
            "topology.mode is 'split', but there is 1 rank, which cannot be split into owners and dense ranks. "
            "Start more ranks (hpcrec run -n 4 ...), or set topology.mode = 'fused'."
        )
    own = _pick(host_of, "owners", owners, owners_per_host, each, first=True)
    den = _pick(host_of, "dense", dense, dense_per_host, each, first=False)
    if own is None and den is None:
        own = tuple(range(size // 2)) or (0,)
    if own is None:
        own = _rest(size, den, "owners")
    if den is None:
        den = _rest(size, own, "dense")
    idle = sorted(set(range(size)) - set(own) - set(den))
    if idle:
        raise ConfigError(
            f"topology: of {size} ranks, {len(own)} own rows and {len(den)} are dense, which leaves rank {idle[0]} "
            f"({len(idle)} in all) without a role. Raise topology.owners or topology.dense, or start fewer ranks "
            f"(hpcrec run -n {size - len(idle)} ...)."
        )
    return own, den


def _pick(
    host_of: Sequence[int],
    role: str,
    wanted: int | Sequence[int] | None,
    per_host: int | None,
    each: str,
    *,
    first: bool,
) -> tuple[int, ...] | None:
    if wanted is not None and per_host is not None:
        raise ConfigError(f"topology.{role} and topology.{role}_per_host are both set. Keep one of them.")
    size = len(host_of)
    if per_host is not None:
        picked: list[int] = []
        for host in sorted(set(host_of)):
            local = [r for r in range(size) if host_of[r] == host]
            _check_count(f"topology.{role}_per_host", per_host, len(local), f"{each} {host}")
            picked += local[:per_host] if first else local[-per_host:]
        return tuple(sorted(picked))
    if wanted is None:
        return None
    if isinstance(wanted, int):
        _check_count(f"topology.{role}", wanted, size, "the run")
        return tuple(range(wanted)) if first else tuple(range(size - wanted, size))
    ranks = tuple(sorted(wanted))
    bad = [r for r in ranks if not 0 <= r < size]
    if bad or not ranks or len(set(ranks)) != len(ranks):
        raise ConfigError(
            f"topology.{role} lists {list(wanted)}. Allowed: at least one rank, each once, from 0 to {size - 1}."
        )
    return ranks


def _check_count(where: str, count: int, limit: int, what: str) -> None:
    if not 1 <= count <= limit:
        raise ConfigError(f"{where} is {count}. Allowed: 1 to {limit}, the ranks of {what}.")


def _rest(size: int, taken: Sequence[int] | None, role: str) -> tuple[int, ...]:
    rest = tuple(r for r in range(size) if r not in (taken or ()))
    if not rest:
        raise ConfigError(
            f"topology: the other role takes all {size} ranks, which leaves none for {role}. "
            f"Set topology.{role} too (roles may overlap), or topology.mode = 'fused'."
        )
    return rest
