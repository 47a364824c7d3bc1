"""Runs an iterator ahead of its consumer in a thread. Knows nothing of what the items are."""

import threading
from collections.abc import Generator
from queue import SimpleQueue
from typing import Generic, Self, TypeVar

from hpcrec.clock import Phase, Waits

T = TypeVar("T")


class _End:
    """Last word of a producer: it is done, or failed with `error`."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


class Prefetch(Generic[T]):
    """An iterator over `items`, made in a background thread, at most `depth` ahead.

    At most `depth` items are made or being made beyond those handed out, so `depth + 1` are alive with the one that the
    consumer holds. An exception in the thread is raised by `__next__` after the items made before it. `close`, and the
    end of this object's life, stop the thread after the item that it is making, and close `items` there.

    Parameters
    ----------
    items : generator
        Only touched by the thread.
    depth : int
        1 or more.
    """

    def __init__(self, items: Generator[T], depth: int) -> None:
        self._queue: SimpleQueue[T | _End] = SimpleQueue()
        self._tokens = threading.Semaphore(depth)
        self._stop = threading.Event()
        # The thread holds no reference to self, so that dropping the iterator ends it.
        self._thread = threading.Thread(
            target=_produce, args=(items, self._queue, self._tokens, self._stop), name="hpcrec-prefetch", daemon=True
        )
        self._ended: _End | None = None
        self._thread.start()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        if self._ended is None:
            with Waits():
                item = self._queue.get()
            if not isinstance(item, _End):
                self._tokens.release()
                return item
            self._ended = item
            self._thread.join()
            if item.error is not None:
                raise item.error
        raise StopIteration

    def close(self) -> None:
        """Stop the thread; returns when it is gone."""
        self._ended = self._ended or _End()
        self._stop.set()
        self._tokens.release()
        if self._thread is not threading.current_thread():  # garbage collection may run in it
            self._thread.join()

    def __del__(self) -> None:
        if hasattr(self, "_thread"):
            self.close()


def _produce(
    items: Generator[T], queue: "SimpleQueue[T | _End]", tokens: threading.Semaphore, stop: threading.Event
) -> None:
    end = _End()
    try:
        while True:
            with Phase("read"), Waits():
                tokens.acquire()
            if stop.is_set():
                break
            try:
                with Phase("read"):
                    item = next(items)
            except StopIteration:
                break
            queue.put(item)
            del item  # else it would live until the next one is made
    except BaseException as error:
        end = _End(error)
    finally:
        items.close()
        queue.put(end)
