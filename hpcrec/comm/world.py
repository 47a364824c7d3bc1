"""World: the communicators of a run, made in one place and taken down in order.

Knows roles and hosts; does not know what crosses. Horovod is given the dense communicator by ``dense``.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from mpi4py import MPI

from hpcrec.comm import board
from hpcrec.comm.aside import Aside
from hpcrec.comm.collectives import Collectives
from hpcrec.comm.ledger import Ledger
from hpcrec.comm.progress import ASIDE, Progress
from hpcrec.comm.stall import StallLimits, StallWatch
from hpcrec.comm.topology import Topology
from hpcrec.errors import HpcrecError

RoleRule = Callable[[tuple[int, ...]], tuple[tuple[int, ...], tuple[int, ...]]]


def launcher_tasks(environment: dict[str, str]) -> int | None:
    """Tasks that the launcher says it started; None where it says nothing."""
    for name in ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):
        if environment.get(name, "").isdigit():
            return int(environment[name])
    return None


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

    Attributes
    ----------
    topology : Topology
    ledger : Ledger
    progress : Progress
        What this rank has come to; whoever counts steps writes ``progress.step``.
    main : Collectives
        All ranks: the main thread's collectives.
    route : Collectives
        All ranks: the routing thread's collectives, which must not mix with the main thread's.
    aside : Aside or None
        All ranks: small things that a thread of files says; None where MPI lets no other thread communicate.
    owners, dense : Collectives or None
        Only on ranks of that role.
    group : Collectives or None
        The dense ranks of this rank's group, on those: all dense ranks where there is one group.
    across : Collectives or None
        The dense ranks that have this one's place in each group, in the order of groups; None where there is one group.
    host_owners : Collectives or None
        Owners of this rank's host, on those; None where all ranks are on one host, or the host has one owner.
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
    ) -> None:
        self._closed = False
        comm = MPI.COMM_WORLD if comm is None else comm
        host_of = hosts_of(comm)
        owners, dense = roles(host_of)
        self.topology = Topology(
            rank=comm.rank,
            size=comm.size,
            owners=owners,
            dense=dense,
            host_of=host_of,
            groups=groups,
            own_tables=own_tables,
        )
        self.ledger = Ledger(comm.rank, host_of)
        self.progress = Progress()
        self.progress.role = board.describe_role(owner=comm.rank in owners, dense=comm.rank in dense)
        members = {"main": tuple(range(comm.size)), "route": tuple(range(comm.size)), "owners": owners, "dense": dense}
        main, route, self.owners, self.dense = (
            self._part(comm, name, ranks, windows=windows and name in ("main", "route"))
            for name, ranks in members.items()
        )
        assert main is not None and route is not None
        self.main, self.route = main, route
        self._lanes = {name: self._part(comm, name, members["main"], windows=windows) for name in lanes}
        members |= dict.fromkeys(lanes, members["main"])
        self.aside = self._beside(comm, members) if self.threads_may_communicate else None
        self.host_owners = self._per_host(comm, owners, members, windows=windows)
        self.group, self.across = self._grouped(comm, members) if groups > 1 else (self.dense, None)
        watched = stall is not None and comm.size > 1 and (stall.report_s or stall.abort_s)
        self._watch = StallWatch(comm, self.progress, members, stall) if stall is not None and watched else None

    def _beside(self, comm: MPI.Intracomm, members: dict[str, tuple[int, ...]]) -> Aside:
        """``aside``; its ranks are added to ``members``, after those of the steps."""
        members[ASIDE] = tuple(range(comm.size))
        return Aside(comm, self.progress.lane(ASIDE, members[ASIDE]))

    def _per_host(
        self, comm: MPI.Intracomm, owners: tuple[int, ...], members: dict[str, tuple[int, ...]], *, windows: bool
    ) -> Collectives | None:
        """The owners of each host that has several, who are added to ``members``; none where there is one host."""
        host_of = self.topology.host_of
        if self.topology.n_hosts == 1:
            return None
        by_host = {h: tuple(r for r in owners if host_of[r] == h) for h in sorted(set(host_of))}
        named = {f"owners of host {host}": ranks for host, ranks in by_host.items() if len(ranks) > 1}
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

    def _part(self, comm: MPI.Intracomm, name: str, ranks: tuple[int, ...], *, windows: bool) -> Collectives | None:
        """Collective over ``comm``, where ranks that are in no part of that kind give none."""
        inside = comm.rank in ranks
        part = comm.Split(ranks[0] if inside else MPI.UNDEFINED, comm.rank)
        if not inside or not isinstance(part, MPI.Intracomm):
            return None
        return Collectives(part, ranks, self.ledger, self.progress.lane(name, ranks), windows=windows)

    def lane(self, name: str) -> Collectives:
        """All ranks: the collectives of the thread of that name, which must not mix with others'."""
        lane = self._lanes[name]
        assert lane is not None, "every rank is in it"
        return lane

    @property
    def threads_may_communicate(self) -> bool:
        """Whether MPI lets two threads of a rank communicate at once."""
        return bool(MPI.Query_thread() >= MPI.THREAD_MULTIPLE)

    def describe(self) -> dict[str, object]:
        """What ``summary.json`` says of it: the ranks, and whether those of a host share memory, or why not."""
        shared = self.topology.n_hosts < self.topology.size
        return {
            **self.topology.describe(),
            "windows": self.main.without_windows or self.route.without_windows or shared,
        }

    def total_wire_bytes(self) -> np.ndarray:
        """Bytes by tag over all ranks; collective."""
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

        A group that leaves early would abort what the other group still has in flight.
        """
        if self._closed:
            return
        self._closed = True
        self.main.barrier()
        if self._watch is not None:
            self._watch.close()
        group = self.group if self.topology.groups > 1 else None
        roles = self.across, group, self.host_owners, self.dense, self.owners
        for part in (*roles, *self._lanes.values(), self.route, self.main):
            if part is not None:
                part.close()
        if self.aside is not None:
            self.aside.close()


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
    tasks = launcher_tasks(environment)
    if comm.size == 1 and tasks is not None and tasks > 1:
        raise HpcrecError(
            f"the launcher started {tasks} tasks, but MPI sees a world of 1 rank: the launcher does not speak to this "
            "MPI library. Under Slurm use 'srun --mpi=pmix', or mpirun inside the allocation."
        )


def hosts_of(comm: MPI.Intracomm) -> tuple[int, ...]:
    """Host number of each rank, hosts numbered in order of their lowest rank; collective."""
    host = comm.Split_type(MPI.COMM_TYPE_SHARED, comm.rank)
    lowest = host.allreduce(comm.rank, op=MPI.MIN)
    host.Free()
    lowest_R = comm.allgather(lowest)
    numbers = {low: i for i, low in enumerate(sorted(set(lowest_R)))}
    return tuple(numbers[low] for low in lowest_R)
