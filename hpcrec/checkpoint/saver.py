"""Checkpoints of a session, one after the other: written at once, or by a thread while steps go on.

One is written at a time: to save again is to wait for the last one first, and to learn there, on every rank alike, if
it failed. One that fails beside steps is told to all ranks by the routing of a step (``Parts.save_failed``), so they
learn of it soon and after the same step. Knows a session, and when things are written; what is written is for
``image``, when a failed one is tried again for ``retry``.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcrec.checkpoint import state
from hpcrec.checkpoint.checkpoint import CheckpointWriter
from hpcrec.checkpoint.image import Write, frozen_parts_of, parts_of
from hpcrec.clock import Waits
from hpcrec.comm.aside import Aside
from hpcrec.comm.failure import agree
from hpcrec.embedding.store import Store
from hpcrec.errors import CheckpointError, ConfigError, OutputError, UnreadableError
from hpcrec.training.claim import UNCLAIMED, Claim, Unclaimed
from hpcrec.training.ranks import on_root
from hpcrec.training.session import Session

Then = Callable[[Callable[[], None]], None]


class Saver:
    """Of one run.

    Parameters
    ----------
    session : Session
    folder : Path
        The run's.
    background : bool
        Whether steps go on while a checkpoint is written.
    full_every : int
        How many checkpoints in a row have one with all rows among them; the others have what changed since that.
    claim : Claim, optional
        Of the run, where others may write its folder.

    Attributes
    ----------
    began_s : float
        When the one under way, or else the last one, was begun: ``time.monotonic()``.

    Raises
    ------
    ConfigError
        They cannot, with this MPI library; on every rank.
    """

    def __init__(
        self,
        session: Session,
        folder: Path,
        *,
        background: bool,
        full_every: int,
        claim: Claim | Unclaimed = UNCLAIMED,
    ) -> None:
        self._session = session
        self._folder = folder
        self._background = background
        self._full_every = full_every
        self._claim = claim
        self._base: int | None = None  # step of the last checkpoint with all rows, where it is known what changed since
        self._since_base = 0
        self._thread: threading.Thread | None = None
        self._store: Store | None = None  # whose rows the thread reads
        self._failure: BaseException | None = None
        self.began_s = 0.0
        if background and session.parts.world.aside is None:
            raise ConfigError(
                "checkpoint.background is true, but this MPI library does not let two threads communicate at once "
                "(MPI_THREAD_MULTIPLE). Set checkpoint.background = false, or use an MPI with thread support."
            )

    def save(self, extra: dict[str, Any], then: Then) -> bool:
        """Writes a checkpoint of the session as it is now; collective. The one before is whole, or failed (``wait``).

        Returns whether it is whole already; else it is written beside the steps to come.

        Parameters
        ----------
        extra : dict
            As for ``state.save``.
        then : callable
            What rank 0 does when it is whole; it is given what to call while that takes time.

        Raises
        ------
        CheckpointError
            It cannot be written; on every rank. The next one will have all rows.
        """
        assert self._thread is None and self._failure is None, "wait() was not called"
        try:
            return self._save(extra, then)
        except (CheckpointError, OutputError, UnreadableError) as error:
            self._base = None
            raise CheckpointError(str(error)) from error

    def _save(self, extra: dict[str, Any], then: Then) -> bool:
        self.began_s = time.monotonic()
        session, main, aside = self._session, self._session.parts.world.main, self._session.parts.world.aside
        session.parts.pipeline.rest()
        base = self._next_base()
        writer = CheckpointWriter(
            self._folder,
            session.step,
            main,
            base=base,
            comes_on=aside.comes_on if self._background and aside is not None else main.comes_on,
            claim=self._claim,
        )
        writer.begin()
        self._store, said = session.parts.store, {**state.said(session), **extra}
        if not self._background:
            for write in parts_of(session, said, some=base is not None):
                write(writer)
            self._track(base)
            writer.commit()
            on_root(main, lambda: _of_disk(lambda: then(main.comes_on)))
            return True
        writes = frozen_parts_of(session, said, writer, some=base is not None)
        self._track(base)
        assert aside is not None, "or it would have been refused"
        self._thread = threading.Thread(
            target=self._write, args=(writer, writes, aside, then), name="checkpoint", daemon=True
        )
        self._thread.start()
        return False

    def _next_base(self) -> int | None:
        """Which checkpoint the next one needs besides; None: it will have all rows."""
        if self._base in (None, self._session.step) or self._since_base + 1 >= self._full_every:
            return None
        self._since_base += 1
        return self._base

    def _track(self, base: int | None) -> None:
        """After all rows are picked, it is known what changes from now on."""
        if base is None and self._full_every > 1:
            self._base, self._since_base = self._session.step, 0
            if self._session.parts.store is not None:
                self._session.parts.store.track()

    def _write(self, writer: CheckpointWriter, writes: list[Write], aside: Aside, then: Then) -> None:
        try:
            with self._session.parts.timer("checkpoint"), aside.working("checkpoint"):
                problem = None
                try:
                    _of_disk(lambda: [write(writer) for write in writes])
                    _of_disk(self._thaw)
                except Exception as caught:  # what the writer did not foresee: the others do not wait for it in commit
                    problem = caught
                agree(aside, problem)
                writer.commit(aside)
                on_root(aside, lambda: _of_disk(lambda: then(aside.comes_on)))
        except BaseException as error:  # whoever waits raises it
            self._failure = error
            self._session.parts.save_failed.set()

    def wait(self) -> bool:
        """The last checkpoint is whole; returns whether one was written beside steps since the last wait.

        Raises
        ------
        CheckpointError
            It is not; on every rank.
        HpcrecError
            The same by an error of one rank that nobody foresaw, which that rank raises as it is.
        """
        written = self._thread is not None
        if self._thread is not None:
            with Waits():
                self._thread.join()
            self._thread = None
            with contextlib.suppress(OSError):  # the thread has tried to, so the checkpoint has failed
                self._thaw()
        self._session.parts.save_failed.clear()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            self._base = None  # it may have been that one
            if isinstance(failure, OutputError | UnreadableError):
                raise CheckpointError(str(failure)) from failure
            raise failure
        return written

    def end(self) -> None:
        """After an error, on the only rank: waits for the thread, whatever comes of its checkpoint."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _thaw(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            store.thaw()


def _of_disk(work: Callable[[], Any]) -> None:
    """Does something of a checkpoint. What the system refuses in it fails that checkpoint, and not the run."""
    try:
        work()
    except OSError as error:
        raise CheckpointError(str(error)) from error
