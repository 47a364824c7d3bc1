"""World: the communicators of a run, made in one place and taken down in order.

Knows roles and hosts; does not know what crosses. Horovod is given the dense communicator by ``dense``.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from hpcrec.comm import board
from hpcrec.comm.aside import Aside
from hpcrec.comm.collectives import Collectives
from hpcrec.comm.ledger import Ledger
from hpcrec.comm.library import BY_SRUN, MPI, launcher_variable
from hpcrec.comm.pieces import Pieces
from hpcrec.comm.progress import ASIDE, Progress
from hpcrec.comm.stall import StallLimits, StallWatch
from hpcrec.comm.topology import Topology, places_of
from hpcrec.errors import HpcrecError

RoleRule = Callable[[tuple[int, ...]], tuple[tuple[int, ...], tuple[int, ...]]]


@dataclass(frozen=True)
class _Inside:
    """What the world of a group is inside of, seen from a rank of the group.

    Attributes
    ----------
    outer : World
    name : str
        Of the group; its lanes are named by it.
    ranks : tuple of int
        The outer world's number of each of its ranks.
    host_of, machine_of : tuple of int
        Of each of its ranks, as of ``Topology``, numbered in the order of the group.
    """

    outer: "World"
    name: str
    ranks: tuple[int, ...]
    host_of: tuple[int, ...]
    machine_of: tuple[int, ...]


class World:
    """Communicators and their collectives.

    Parameters
    ----------
    comm : MPI.Intracomm or None
        All ranks of the run; None is ``MPI.COMM_WORLD``.
    roles : callable
        Host number of each rank -> (owners, dense ranks); ``comm.topology.assign_roles`` with its options bound.
    stall : StallLimits, optional
        When a wait in a collective is reported, and when it ends the job; never by default.
    windows : bool
        Whether ids, values and gradients go through shared memory between ranks of one host.
    groups : int
        Of dense ranks, whose number is a multiple of it.
    own_tables : bool
        Whether each group has embedding tables of its own.
    lanes : sequence of str
        Threads that need all ranks' collectives of their own, by name; see ``lane``.
    piece_bytes : int
        Of a piece of their messages, at most, between hosts; 0: they cross whole.
    levels : bool
        Whether messages of all ranks go between hosts by levels (``comm.levels``).
    places : int or None
        Ranks of a host that are taken for one of their own, at most: the hosts that this makes are what roles, levels,
        windows and the ledger see (``topology.places_of``). By default hosts are as they are.
    inside : optional
        For ``among`` alone, which makes worlds of groups.

    Attributes
    ----------
    topology : Topology
    ledger : Ledger
        In the world of a group that of the world around it: there every rank's bytes are counted once.
    progress : Progress
        What this rank has come to; whoever counts steps writes ``progress.step``.
    main : Collectives
        All ranks: the main thread's collectives.
    route : Collectives
        All ranks: the routing thread's collectives, which must not mix with the main thread's.
    pieces : Pieces
        Those in which messages on ``lanes`` cross between hosts.
    aside : Aside or None
        All ranks: small things that a thread of files says; None where MPI lets no other thread communicate, and in the
        world of a group.
    owners, dense : Collectives or None
        Only on ranks of that role.
    group : Collectives or None
        The dense ranks of this rank's group, on those: all dense ranks where there is one group.
    across : Collectives or None
        The dense ranks that have this one's place in each group, in the order of groups; None where there is one group.
    host_owners : Collectives or None
        Owners of this rank's host, on those; None where all ranks are on one host, or the host has one owner.
    host_dense, host_route : Collectives or None
        Likewise the dense ranks, where messages go by ``levels``; the second is the routing thread's.
    """

    def __init__(
        self,
        comm: MPI.Intracomm | None,
        roles: RoleRule,
        stall: StallLimits | None = None,
        *,
        windows: bool = True,
        groups: int = 1,
        own_tables: bool = False,
        lanes: Sequence[str] = (),
        piece_bytes: int = 0,
        levels: bool = False,
        places: int | None = None,
        inside: _Inside | None = None,
    ) -> None:
        self._levels = levels
        self._closed, self._inside, self._within = False, inside, dict[str, World | None]()
        comm = MPI.COMM_WORLD if comm is None else comm
        self._comm = comm
        machine_of = hosts_of(comm) if inside is None else inside.machine_of
        host_of = places_of(machine_of, places) if inside is None else inside.host_of
        owners, dense = roles(host_of)
        self.topology = Topology(
            rank=comm.rank,
            size=comm.size,
            owners=owners,
            dense=dense,
            host_of=host_of,
            machine_of=machine_of,
            groups=groups,
            own_tables=own_tables,
        )
        if inside is None:
            self.ledger, self.progress = Ledger(comm.rank, host_of), Progress()
            self.progress.role = board.describe_role(owner=comm.rank in owners, dense=comm.rank in dense)
        else:
            self.ledger, self.progress = inside.outer.ledger.among(inside.ranks), inside.outer.progress
        members = {"main": tuple(range(comm.size)), "route": tuple(range(comm.size)), "owners": owners, "dense": dense}
        main, route, self.owners, self.dense = (
            self._part(comm, name, ranks, windows=windows and name in ("main", "route"))
            for name, ranks in members.items()
        )
        assert main is not None and route is not None
        self.main, self.route, self.pieces = main, route, Pieces(piece_bytes)
        self._lanes = {
            name: self._part(comm, name, members["main"], windows=windows, pieces=self.pieces) for name in lanes
        }
        members |= dict.fromkeys(lanes, members["main"])
        self.aside = self._beside(comm, members) if inside is None and self.threads_may_communicate else None
        self.host_owners = self._per_host(comm, "owners of host", owners, members, windows=windows)
        self.host_dense, self.host_route = (
            self._per_host(comm, name, dense if levels else (), members, windows=windows)
            for name in ("dense ranks of host", "route: dense ranks of host")
        )
        self.group, self.across = self._grouped(comm, members) if groups > 1 else (self.dense, None)
        if not self.by_levels:  # where one of them has no memory to share none goes that way: plans are of one path
            self.take_path("flat")
        watched = stall is not None and comm.size > 1 and (stall.report_s or stall.abort_s)
        self._members = {self._named(name): self._outer(ranks) for name, ranks in members.items()}
        self._watch = StallWatch(comm, self.progress, self._members, stall) if stall is not None and watched else None

    def among(
        self, ranks: Sequence[int], roles: RoleRule, *, name: str, windows: bool = True, lanes: Sequence[str] = ()
    ) -> "World | None":
        """The world of a group of these ranks, which they have numbers in by their place in ``ranks``; elsewhere None.

        It counts in this world's ledger, tells this one's stall watch, and has communicators of its own. Groups may
        share ranks. ``close`` of it is collective over the group; ``close`` of this world closes those still open.

        Collective, on the main thread of all ranks of this world, with the same arguments.

        Parameters
        ----------
        ranks : sequence of int
            Of this world.
        roles : callable
            As of ``World``: host number of each rank of the group -> (owners, dense ranks), in the group's numbers.
        name : str
            By which a report of a stall tells its communicators from others: ``<name>: main``.
        windows, lanes
            As of ``World``.

        Raises
        ------
        HpcrecError
            What is no group of ranks, a name that is taken, ranks that ask for different groups, the world of a group.
        ConfigError
            Of ``roles``. Both on all ranks together.
        """
        ranks = self._group_of(ranks, name)
        of = self.topology.host_of, self.topology.machine_of
        host_of, machine_of = (places_of([hosts[rank] for rank in ranks], None) for hosts in of)
        owners_dense = roles(host_of)  # on every rank, so that all raise what it does
        place = ranks.index(self.topology.rank) if self.topology.rank in ranks else None
        comm = self.main.comm.Split(MPI.UNDEFINED if place is None else 0, place or 0)
        world = None
        if place is not None:
            assert isinstance(comm, MPI.Intracomm)
            inside = _Inside(self, name, ranks, host_of, machine_of)
            world = World(comm, lambda _: owners_dense, windows=windows, lanes=lanes, inside=inside)
        self._within[name] = world
        found = self.main.allgather(None if world is None else world._members)
        if self._watch is not None:
            self._watch.add(found[ranks[0]])
        return world

    def _group_of(self, ranks: Sequence[int], name: str) -> tuple[int, ...]:
        """The ranks of a group to be made, or an error on all ranks; collective."""
        given = self.main.allgather((tuple(ranks), name))
        group, size = given[0][0], self.topology.size
        other = next((rank for rank, theirs in enumerate(given) if theirs != given[0]), None)
        if other is not None:
            raise HpcrecError(
                f"a group of ranks: rank 0 asks for {list(group)}, called {given[0][1]!r}, rank {other} for "
                f"{list(given[other][0])}, called {given[other][1]!r}. Call among on all ranks with the same arguments."
            )
        if not group or len(set(group)) < len(group) or not all(rank in range(size) for rank in group):
            raise HpcrecError(
                f"a group of ranks: {name!r} lists {list(group)}. Allowed: at least one rank, each once, from 0 to "
                f"{size - 1}."
            )
        if self._inside is not None:
            raise HpcrecError(
                f"a group of ranks: {name!r} is asked of the world of group {self._inside.name!r}, whose stalls are "
                "watched by the world around it. Ask that one, in its numbers."
            )
        if name in self._within:
            raise HpcrecError(f"a group of ranks: there is one called {name!r} already. Choose another name.")
        return group

    def _named(self, name: str) -> str:
        """What a communicator of this world is called among all of this rank."""
        return name if self._inside is None else f"{self._inside.name}: {name}"

    def _outer(self, ranks: tuple[int, ...]) -> tuple[int, ...]:
        """Numbers of ranks in the world around, or in this one where there is none."""
        return ranks if self._inside is None else tuple(self._inside.ranks[rank] for rank in ranks)

    def _beside(self, comm: MPI.Intracomm, members: dict[str, tuple[int, ...]]) -> Aside:
        """``aside``; its ranks are added to ``members``, after those of the steps."""
        members[ASIDE] = tuple(range(comm.size))
        return Aside(comm, self.progress.lane(ASIDE, members[ASIDE]))

    def _per_host(
        self,
        comm: MPI.Intracomm,
        called: str,
        of: tuple[int, ...],
        members: dict[str, tuple[int, ...]],
        *,
        windows: bool,
    ) -> Collectives | None:
        """These ranks of each host that has several, who are added to ``members``; none where there is one host."""
        host_of = self.topology.host_of
        if self.topology.n_hosts == 1:
            return None
        by_host = {h: tuple(r for r in of if host_of[r] == h) for h in sorted(set(host_of))}
        named = {f"{called} {host}": ranks for host, ranks in by_host.items() if len(ranks) > 1}
        members |= named
        name, ranks = next((item for item in named.items() if comm.rank in item[1]), ("", ()))
        return self._part(comm, name, ranks, windows=windows) if named else None

    def _grouped(
        self, comm: MPI.Intracomm, members: dict[str, tuple[int, ...]]
    ) -> tuple[Collectives | None, Collectives | None]:
        """``group`` and ``across``; all groups, and all places in them, are added to ``members``."""
        dense, groups = self.topology.dense, self.topology.groups
        size = len(dense) // groups
        inside = {f"dense group {g}": dense[g * size : (g + 1) * size] for g in range(groups)}
        beside = {f"dense ranks {place} of all groups": dense[place::size] for place in range(size)}
        members |= inside | beside
        made = []
        for named in (inside, beside):
            name, ranks = next((item for item in named.items() if comm.rank in item[1]), ("", ()))
            made.append(self._part(comm, name, ranks, windows=False))
        return made[0], made[1]

    def _part(
        self, comm: MPI.Intracomm, name: str, ranks: tuple[int, ...], *, windows: bool, pieces: Pieces | None = None
    ) -> Collectives | None:
        """Collective over ``comm``, where ranks that are in no part of that kind give none."""
        inside = comm.rank in ranks
        part = comm.Split(ranks[0] if inside else MPI.UNDEFINED, comm.rank)
        if not inside or not isinstance(part, MPI.Intracomm):
            return None
        lane = self.progress.lane(self._named(name), self._outer(ranks))
        host_of = [self.topology.host_of[rank] for rank in ranks] if self._levels else None
        return Collectives(part, ranks, self.ledger, lane, windows=windows, pieces=pieces, host_of=host_of)

    def lane(self, name: str) -> Collectives:
        """All ranks: the collectives of the thread of that name, which must not mix with others'."""
        lane = self._lanes[name]
        assert lane is not None, "every rank is in it"
        return lane

    @property
    def threads_may_communicate(self) -> bool:
        """Whether MPI lets two threads of a rank communicate at once."""
        return bool(MPI.Query_thread() >= MPI.THREAD_MULTIPLE)

    @property
    def by_levels(self) -> bool:
        """Whether messages of all ranks between hosts go by levels."""
        return all(of.by_levels for of in self._of_all())

    @property
    def uncoded_ranks(self) -> tuple[int, ...]:
        """World ranks to and from whom no codec has to write, for nothing crosses a link: by levels this host's."""
        return tuple(self.topology.host_ranks) if self.by_levels else ()

    @property
    def without_windows(self) -> str:
        """Why ranks of a host do not share memory for all of these messages; else empty."""
        return next((of.without_windows for of in self._of_all() if of.without_windows), "")

    def take_path(self, path: str) -> None:
        """From now on they go ``flat``, or by ``levels`` where the world was made so; nothing is under way."""
        for of in self._of_all():
            of.take_path(path)

    def _of_all(self) -> list[Collectives]:
        return [self.main, self.route, *(lane for lane in self._lanes.values() if lane is not None)]

    def describe(self) -> dict[str, object]:
        """What ``summary.json`` says of it: the ranks, and whether those of a host share memory, or why not."""
        shared = self.topology.n_hosts < self.topology.size
        return {
            **self.topology.describe(),
            "windows": self.without_windows or shared,
            "path": "levels" if self.by_levels else "flat",
        }

    def total_wire_bytes(self) -> np.ndarray:
        """Bytes by tag over all ranks, of a group all that they have sent anywhere; collective."""
        counted = self.ledger.snapshot()  # before this call adds its own
        with self.main.lane.inside("control"):
            return self.main.comm.allreduce(counted, op=MPI.SUM)

    def total_wire_messages(self) -> np.ndarray | None:
        """Messages by tag over all ranks, None where not all are known (``Ledger.messages_known``); collective."""
        counted = self.ledger.messages()
        with self.main.lane.inside("control"):
            total = self.main.comm.allreduce(counted, op=MPI.SUM)
        return total if self.ledger.messages_known else None

    @contextmanager
    def noting_stalls(self, note: Callable[[str], None]) -> Iterator[None]:
        """While the block lasts, a stall that ends the job is handed to ``note`` first, by the rank that ends it.

        That is rank 0, or the lowest that answers; ``note`` is called on another thread and not waited for long.
        """
        if self._watch is not None:
            self._watch.note = note
        try:
            yield
        finally:
            if self._watch is not None:
                self._watch.note = None

    def abandon(self) -> None:
        """After an error of this rank alone: ends its threads. The communicators stay; nothing is collective."""
        if self._watch is not None:
            self._watch.stop()

    def close(self) -> None:
        """Waits until every rank is here, then frees the communicators; collective.

        Ranks that leave early would abort what others still have in flight.
        """
        if self._closed:
            return
        self._closed = True
        for world in self._within.values():
            if world is not None:
                world.close()
        self.main.barrier()
        if self._watch is not None:
            self._watch.close()
        group = self.group if self.topology.groups > 1 else None
        roles = self.across, group, self.host_route, self.host_dense, self.host_owners, self.dense, self.owners
        for part in (*roles, *self._lanes.values(), self.route, self.main):
            if part is not None:
                part.close()
        if self.aside is not None:
            self.aside.close()
        if self._inside is not None:
            self._comm.Free()


def versions() -> dict[str, str]:
    """The MPI library, its standard and the thread level, for ``summary.json``."""
    level = {MPI.THREAD_SINGLE: "single", MPI.THREAD_FUNNELED: "funneled", MPI.THREAD_SERIALIZED: "serialized"}
    return {
        "mpi_library": MPI.Get_library_version().split(",")[0].strip("\0"),
        "mpi_standard": ".".join(str(n) for n in MPI.Get_version()),
        "mpi_threads": level.get(MPI.Query_thread(), "multiple"),
    }


def check_launch(comm: MPI.Intracomm, environment: dict[str, str]) -> None:
    """Refuses a world of one rank under a launcher that started more: its MPI and ours did not meet.

    Raises
    ------
    HpcrecError
        Each task would train alone and believe it is the whole run.
    """
    name = launcher_variable(environment)
    tasks = 1 if name is None else int(environment[name])
    if comm.size == 1 and tasks > 1:
        if name == BY_SRUN:
            change = f"Write srun --mpi=pmix -n {tasks} hpcrec ..., or start it by mpirun inside the allocation."
        else:
            change = (
                f"Write hpcrec run -n {tasks} -- train ..., which takes the mpirun that belongs to it, or the mpirun "
                "of the MPI that mpi4py was built for; `hpcrec doctor` names it."
            )
        raise HpcrecError(
            f"the launcher started {tasks} tasks ({name} is {tasks}), but MPI sees a world of 1 rank: the launcher "
            f"does not speak to this MPI library. {change}"
        )


def hosts_of(comm: MPI.Intracomm) -> tuple[int, ...]:
    """Host number of each rank, hosts numbered in order of their lowest rank; collective."""
    host = comm.Split_type(MPI.COMM_TYPE_SHARED, comm.rank)
    lowest = host.allreduce(comm.rank, op=MPI.MIN)
    host.Free()
    lowest_R = comm.allgather(lowest)
    numbers = {low: i for i, low in enumerate(sorted(set(lowest_R)))}
    return tuple(numbers[low] for low in lowest_R)
