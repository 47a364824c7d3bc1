"""One attempt at a time writes a run's folder: the one whose claim, a file ``claim-<n>.json`` in it, has the highest n.

How a claim is taken, by rank 0 and without locks, for a file system may have none, or some that hold on one host only:

1. The claim with the highest number is read. It is over where it says so; where its allocation has ended: one of the
   same job that Slurm has started again since, or one of a job that Slurm's queue has no longer (a squeue that fails
   says nothing); where it is of a process of this machine that is gone; or where it was not renewed for ``stale_s``, by
   the file server's clock, and not while this attempt looked on for ``watch_s`` either. A holder that squeue, or this
   machine, says to be there is waited for, and then this attempt ends. An attempt that was itself held up begins its
   wait again, for it did not see whether the claim was renewed.
2. The file with the next number is made under ``O_EXCL``. The file system lets one attempt alone do so: of any number
   that find claim 6 to be over at once, one has number 7, and the others find it to be there.
3. The folder is listed again, and claim 6 is read again. Who was held up since it read claim 6 may have made a number 7
   that had been removed as an old one; but then there is a higher one, and its own is given up. Where claim 6 was
   renewed meanwhile, its holder is there, and number 7 is given up too. No other highest number is ever removed.
4. A thread renews the claim by touching its file every ``renew_s``.

A holder that was held up (its processes were stopped, its host had lost the file server) does not know that its claim
was taken over. So before it renames or removes anything it lists the folder again and reads its claim: ``Claim.check``
raises where there is a higher number, or another's token. The thread looks too, and has training stop. What is left is
the time between that look and the system call after it; temporary names have the token in them, and what is taken away
is renamed first, looked for once more, and put back (``checkpoint.files``).

Knows files of a run's folder and Slurm's queue, neither sessions nor what they write.
"""

import contextlib
import json
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from hpcrec.again import read_again
from hpcrec.clock import Idles
from hpcrec.comm.failure import say
from hpcrec.comm.ranks import Ranks
from hpcrec.data.files import sync, write_text, writing
from hpcrec.errors import ConfigError
from hpcrec.training.attempts import Allocation, now
from hpcrec.training.queue import GONE, WAITING, state_of
from hpcrec.training.ranks import on_root

_NAME = re.compile(r"claim-(\d+)\.json")


@dataclass(frozen=True, kw_only=True)
class Times:
    """What a claim waits for, in seconds.

    Attributes
    ----------
    renew_s : float
        Between two renewals.
    stale_s : float
        A claim that was not renewed for so long is over.
    watch_s : float
        So long it is looked at first, whatever its age: hosts' clocks differ, and a file server that did not answer
        kept its holder from renewing it. Of an attempt in the same allocation, which starts one after the other and
        may have lost a node, that is enough.
    wait_s : float
        A second attempt waits so long for a holder that is known to be there, which may be about to end.
    wait_lost_s : float
        The same for one that may be lost: longer than it takes to know that.
    ask_s : float
        Between two questions to squeue.
    poll_s : float
        Between two looks.
    """

    renew_s: float = 10.0
    stale_s: float = 120.0
    watch_s: float = 25.0
    wait_s: float = 30.0
    wait_lost_s: float = 180.0
    ask_s: float = 10.0
    poll_s: float = 0.25


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Who holds a claim: an attempt, its process on rank 0, and the allocation that it is in.

    Attributes
    ----------
    token : str
        No other attempt has it.
    job, cluster : str or None
        Slurm's.
    restart : int
        How often Slurm has started that job again.
    host : str
        Its name, for people.
    machine : str
        The boot of a host, and the process numbers that are seen from there.
    process : int
    started : int
        When that process began, in ticks since the boot: its number is given again one day.
    since : str
        When the claim was taken, by this host's clock, for people.
    ended : str or None
        When its run ended: well, or by an error after which its process went on.
    """

    token: str
    job: str | None
    cluster: str | None
    restart: int
    host: str
    machine: str
    process: int
    started: int
    since: str
    ended: str | None = None

    @classmethod
    def here(cls, allocation: Allocation) -> "Holder":
        """This process."""
        return cls(
            token=secrets.token_hex(4),
            job=allocation.job,
            cluster=allocation.cluster,
            restart=allocation.restart,
            host=socket.gethostname(),
            machine=_this_machine(),
            process=os.getpid(),
            started=_started(os.getpid()) or 0,
            since=now(),
        )

    def __str__(self) -> str:
        job = "" if self.job is None else f"job {self.job}, "
        return f"another one ({job}process {self.process} on {self.host}, since {self.since})"


@dataclass(frozen=True)
class Claim:
    """What an attempt holds; the same on all its ranks.

    Attributes
    ----------
    run : Path
    number : int
    token : str
        No other attempt has it: part of the names of temporary files and folders.
    """

    run: Path
    number: int
    token: str

    @property
    def path(self) -> Path:
        """The file that is held."""
        return _path(self.run, self.number)

    def check(self) -> None:
        """Looks whether it is still held: directly before something in the folder is renamed or removed.

        Raises
        ------
        ConfigError
            Another attempt has taken it over.
        UnreadableError
            Whether it is cannot be read just now, at several tries.
        """
        if lost := self.lost():
            raise ConfigError(lost)

    def lost(self) -> str:
        """By whom it was taken over, in words; empty where it is still held. Raises as ``check``."""
        highest = _highest(self.run)
        found = _read(self.path) if highest == self.number else None
        if found is not None and found.token == self.token:
            return ""
        by = found or (_read(_path(self.run, highest)) if highest else None) or "another one"
        return (
            f"{self.run}: {by} has taken this run over. This attempt did not renew its claim, or Slurm said that its "
            "job had ended. It ends here, and leaves what is saved as it is."
        )


class Unclaimed:
    """In the place of a claim where nobody else can write the folder: tools, and tests."""

    token = ""

    def check(self) -> None:
        """Does nothing."""


UNCLAIMED = Unclaimed()


@contextlib.contextmanager
def claimed(
    run: Path,
    allocation: Allocation,
    ranks: Ranks,
    *,
    when_lost: Callable[[], None] = lambda: None,
    times: Times = Times(),
    holder: Holder | None = None,
    goes_on: bool = False,
) -> Iterator[Claim]:
    """Within it this attempt has claimed ``run``, which it makes; collective.

    An error inside keeps the claim until the process ends: threads that write in the background may still do so.

    Parameters
    ----------
    allocation : Allocation
        What this attempt computes in.
    when_lost : callable
        Called on rank 0, by a thread, where the claim was taken over.
    holder : Holder, optional
        Who this attempt says that it is; by default this process.
    goes_on : bool
        Whether the process, if it is the only rank, goes on after an error, with nothing of it at the folder any more.
        Else the claim is kept until the process ends.

    Raises
    ------
    ConfigError
        Another attempt has claimed it, and keeps it; on all ranks.
    CheckpointError
        The folder, or a file in it, cannot be written to.
    """
    trying = _Trying(Path(run), holder or Holder.here(allocation), times)
    ended, refusal, claim = False, "", None
    while not ended:  # each try is told to all ranks: one long wait for rank 0 would be reported as a stall
        ended, refusal, claim = on_root(ranks, trying.attempt)
    if refusal or claim is None:
        raise ConfigError(refusal)
    done = threading.Event()
    renewing = threading.Thread(target=_renew, args=(claim, times.renew_s, done, when_lost), name="claim", daemon=True)
    if ranks.rank == 0:
        renewing.start()

    def release() -> None:
        done.set()
        if ranks.rank == 0:
            renewing.join()  # a process that goes on has no thread of ours then, and is not told of who claims it next
            trying.release(claim)

    try:
        yield claim
    except BaseException:
        if goes_on and ranks.size == 1:
            release()
        raise
    release()


def _renew(claim: Claim, every_s: float, done: threading.Event, when_lost: Callable[[], None]) -> None:
    while not done.wait(every_s):
        with contextlib.suppress(OSError):  # the next time, then
            if claim.lost():
                when_lost()
                return
            os.utime(claim.path)


class _Trying:
    """What rank 0 does for a claim; other ranks' does nothing."""

    def __init__(self, run: Path, me: Holder, times: Times) -> None:
        self._run, self._me, self._times = run, me, times
        self._seen: tuple[int, float] | None = None  # the highest number, and when that was renewed
        self._seen_s = self._began_s = 0.0  # since when it is looked at, unchanged; since when its holder is waited for
        self._looked_s = float("-inf")  # when it was last
        self._holder: str | None = None  # who is waited for
        self._asked: dict[str, tuple[float, str | None]] = {}  # by job: when squeue was asked, and what it said

    def attempt(self) -> tuple[bool, str, Claim | None]:
        """Tries once, and rests where it has to be tried again: whether that was the last, the refusal, the claim."""
        with writing(self._run):
            self._run.mkdir(parents=True, exist_ok=True)
            highest = _highest(self._run)
        with writing(_path(self._run, highest + 1)):
            whose, there = (None, False) if highest == 0 else self._who_holds(highest)
            if whose is None:
                claim = self._take(highest + 1)
                if claim is not None:
                    return True, "", claim
            elif refusal := self._refusal(whose, there=there):
                return True, refusal, None
        with Idles():
            time.sleep(self._times.poll_s)
        return False, "", None

    def release(self, claim: Claim) -> None:
        """Says that the run has ended: the next one need not wait. The file stays, for its number is the highest."""
        with contextlib.suppress(OSError):  # the run has ended, written or not
            if not claim.lost():
                write_text(claim.path, _text({**asdict(self._me), "ended": now()}))

    def _take(self, number: int) -> Claim | None:
        """The claim of this number; None where another attempt has it."""
        path = _path(self._run, number)
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            return None
        try:
            os.write(file, _text(asdict(self._me)).encode())
            os.fsync(file)
        except OSError:  # a full disk: an empty claim would be waited for
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(file)
        try:
            sync(self._run)
            wrong = _highest(self._run) != number or self._was_renewed(number - 1)  # an old one's, gone; or too early
        except BaseException:  # nobody has it, and who holds the one before would take itself for overtaken
            with contextlib.suppress(OSError):
                path.unlink()
            raise
        if wrong:
            path.unlink(missing_ok=True)
            self._began_s = time.monotonic()  # who renewed it may have seen this one, and end
            return None
        for old in _numbers(self._run):
            if old < number:
                with contextlib.suppress(OSError):  # a lower number says nothing, there or not
                    _path(self._run, old).unlink()
        return Claim(self._run, number, self._me.token)

    def _who_holds(self, number: int) -> tuple[str | None, bool]:
        """Who holds the claim of this number, None where it is over; and whether that one is known to be there."""
        looked: tuple[Holder | None, os.stat_result] | None = None
        with contextlib.suppress(FileNotFoundError):
            looked = _looked_at(_path(self._run, number))
        now_s = time.monotonic()
        if held_up := now_s - self._looked_s > self._times.watch_s:  # what was not looked at was not waited for either
            self._began_s = now_s
        self._looked_s = now_s
        if looked is None:
            return "another one", False  # removed by hand, or as an old one: the next look says
        found, status = looked
        if held_up or self._seen != (number, status.st_mtime):
            self._seen, self._seen_s = (number, status.st_mtime), now_s
        if found is None:  # begun this moment, or killed while it was
            return (None if self._is_stale(number, self._times.stale_s) else "another one"), False
        its_allocation = self._slurm_says(found, status.st_uid)
        if found.ended is not None or its_allocation == "ended":
            return None, False
        if found.machine == self._me.machine and not _is_hidden(found.process):
            there = found.process != self._me.process and _started(found.process) == found.started
            return (str(found) if there else None), there
        same = found.job is not None and (found.job, found.cluster) == (self._me.job, self._me.cluster)
        limit_s = self._times.watch_s if same else self._times.stale_s
        over = its_allocation is None and self._is_stale(number, limit_s)
        return (None if over else str(found)), its_allocation == "runs"

    def _slurm_says(self, found: Holder, user: int) -> str | None:
        """Whether a claim's allocation ``ended``, is ``ending`` or ``runs``; None: not known."""
        me = self._me
        if found.job is None or found.cluster != me.cluster:
            return None
        if found.job == me.job:  # of the same allocation it says nothing; a later one is there, and this one an old one
            return None if found.restart == me.restart else "ended" if found.restart < me.restart else "runs"
        if user != os.geteuid():  # squeue may show everyone their own jobs alone
            return None
        asked_s, state = self._asked.get(found.job, (None, None))
        if asked_s is None or time.monotonic() - asked_s >= self._times.ask_s:
            state = state_of(found.job)
            self._asked[found.job] = (time.monotonic(), state)
        if state == "COMPLETING":
            return "ending"
        return None if state is None else "ended" if state in (GONE, *WAITING) else "runs"

    def _is_stale(self, number: int, limit_s: float) -> bool:
        """Whether a claim was not renewed for so long that it is over."""
        if time.monotonic() - self._seen_s < self._times.watch_s:
            return False
        probe = self._run / f".claim.{self._me.token}.clock"
        try:
            probe.touch()
            now_s = probe.stat().st_mtime  # by the file server's clock, as the other
        finally:
            probe.unlink(missing_ok=True)
        # After the clock: who is held up between the two would take its own time for the holder's.
        return not self._was_renewed(number) and self._seen is not None and now_s - self._seen[1] >= limit_s

    def _was_renewed(self, number: int) -> bool:
        """Whether a claim was renewed since it was looked at; one that is gone was not."""
        if self._seen is None or self._seen[0] != number:
            return False
        try:
            return _looked_at(_path(self._run, number))[1].st_mtime != self._seen[1]
        except FileNotFoundError:
            return False

    def _refusal(self, whose: str, *, there: bool) -> str:
        """Why the other one is not waited for any longer; empty where it is, which is said once."""
        limit_s = self._times.wait_s if there else self._times.wait_lost_s
        changed = whose != self._holder
        if changed and self._holder is not None:  # the next of several that wait: this one may end soon too
            self._began_s = self._looked_s
        self._holder = whose
        if self._looked_s - self._began_s >= limit_s:
            return (
                f"{self._run}: {whose} is writing this run, and two would spoil it. Wait for it or end it, or give "
                "this one a run.folder of its own."
            )
        if changed:
            say(f"hpcrec: {self._run}: {whose} is writing this run; waiting up to {limit_s:g} s for its end\n")
        return ""


def _path(run: Path, number: int) -> Path:
    return run / f"claim-{number}.json"


def _numbers(run: Path) -> list[int]:
    """Of all claims in a folder. To open it asks a file server what is in it now."""
    paths = read_again(run, lambda: list(run.iterdir()))
    return [int(found[1]) for path in paths if (found := _NAME.fullmatch(path.name))]


def _highest(run: Path) -> int:
    return max(_numbers(run), default=0)


def _text(content: dict[str, Any]) -> str:
    return json.dumps(content) + "\n"


def _read(path: Path) -> Holder | None:
    """Who is said to hold a claim; None where the file does not say."""
    with contextlib.suppress(FileNotFoundError):
        return _parsed(read_again(path, path.read_bytes))
    return None


def _looked_at(path: Path) -> tuple[Holder | None, os.stat_result]:
    """What a claim says, and its file's times; raises FileNotFoundError where it is gone."""

    def look() -> tuple[Holder | None, os.stat_result]:
        with path.open("rb") as file:  # opening it asks a file server how it is now
            return _parsed(file.read()), os.fstat(file.fileno())

    return read_again(path, look)


def _parsed(text: bytes) -> Holder | None:
    try:
        found = json.loads(text)
        return Holder(**{field.name: found[field.name] for field in fields(Holder)})
    except (ValueError, KeyError, TypeError):
        return None


def _this_machine() -> str:
    """Which boot of which host, and which numbers of processes, this one sees; like no other where that is hidden."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{socket.gethostname()} {boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return secrets.token_hex(8)


def _is_hidden(process: int) -> bool:
    """Whether there is a process of another user's of which this one may see no more (``hidepid``)."""
    if Path(f"/proc/{process}").exists():
        return False
    try:
        os.kill(process, 0)
    except PermissionError:
        return True
    except OSError:
        pass
    return False


def _started(process: int) -> int | None:
    """When a process of this machine began, in ticks since the boot; None where there is none, or it has ended."""
    try:
        words = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if words[0] in "ZX" else int(words[19])
