"""Every page of some segments, read on a thread of its own beside whoever uses them; slowly. Knows files alone.

Who opens a generation reads its footers. What is damaged in a page that nobody asks for would be found when it is
cleaned, or never: so this looks at all of them once.
"""

import atexit
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from hpcrec.clock import Idles, Phase
from hpcrec.disk.segment import AGAIN, Segment
from hpcrec.disk.snapshot import check_segment
from hpcrec.errors import TierError

_SHARE = 0.1  # of a core and of the disk, about


class Pass:
    """Begins at once.

    Parameters
    ----------
    segments : sequence of Segment
        Sealed ones; those that are removed before their turn are left out.

    Attributes
    ----------
    wrong : str or None
        What was found first; then it ends.
    segment : Path or None
        The file that is damaged by that, see ``TierError``.
    """

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.wrong: str | None = None
        self.segment: Path | None = None
        self._segments = [Segment(s.path, s.number, s.block, s.layout) for s in segments]
        self._stopped = threading.Event()
        self._at_s = time.monotonic()
        self._thread = threading.Thread(target=self._look, name="rows looked at", daemon=True)
        self._thread.start()
        atexit.register(self.stop)  # a thread that waits for Python's lock as it goes ends the process

    def _look(self) -> None:
        with Phase("look"):
            self._look_at_all()

    def _look_at_all(self) -> None:
        for closed in self._segments:
            try:
                segment = Segment.sealed(closed.path, closed.number, closed.block, closed.layout)
            except TierError as error:
                if not isinstance(error.__cause__, FileNotFoundError):
                    self._found(error)
                    return
                continue
            try:
                segment.read_footer()
                check_segment(segment, self._pause)
            except TierError as error:
                self._found(error)
                return
            except _StoppedError:
                return
            finally:
                segment.close()

    def _found(self, error: TierError) -> None:
        self.segment = error.segment  # first: whoever sees that something is wrong looks for it
        self.wrong = str(error).removesuffix(AGAIN).rstrip()

    def error(self, came_from: Path) -> TierError | None:
        """What was found, as an error to raise where the segments were taken over from a checkpoint; or None."""
        if self.wrong is None:
            return None
        said = f"{self.wrong} The run went on from {came_from}, which has the same file. {AGAIN}"
        return TierError(said, segment=self.segment)

    def _pause(self) -> None:
        """After each piece: for as long as leaves the rest of the time to others."""
        took_s = time.monotonic() - self._at_s
        with Idles():
            stopped = self._stopped.wait(took_s * (1 / _SHARE - 1))
        if stopped:
            raise _StoppedError
        self._at_s = time.monotonic()

    def wait(self) -> None:
        """All is read, or something is wrong."""
        self._thread.join()

    def stop(self) -> None:
        """Ends it."""
        atexit.unregister(self.stop)
        self._stopped.set()
        self._thread.join()


class _StoppedError(Exception):
    """Nobody wants to know any more."""
