"""When a checkpoint that could not be written is tried again, and when a run ends for lack of one. Knows steps alone.

Steps, not seconds: they are the same on every rank, so nobody has to agree on them.
"""

_FIRST = 16  # the first pause is so small a part of the interval
MOST_INTERVALS = 3  # without a checkpoint, then the run ends


class Retry:
    """Pauses between tries double up to the interval of checkpoints.

    Parameters
    ----------
    interval : int
        Steps between checkpoints.
    least : int
        Steps that a pause takes at least.

    Attributes
    ----------
    due_at : int or None
        Steps after which the next try is; None where none failed.
    """

    def __init__(self, interval: int, least: int) -> None:
        self._interval, self._least = max(interval, least), least
        self._pause = 0
        self._since: int | None = None  # the first of the tries in a row that failed
        self.due_at: int | None = None

    def failed(self, step: int) -> bool:
        """A checkpoint failed, which is known after ``step`` steps; whether there is another try."""
        self._since = step if self._since is None else self._since
        if step - self._since >= MOST_INTERVALS * self._interval:
            return False
        self._pause = min(max(2 * self._pause, self._interval // _FIRST, self._least), self._interval)
        self.due_at = step + self._pause
        return True

    def succeeded(self) -> None:
        """A checkpoint was written."""
        self._pause, self._since, self.due_at = 0, None, None
