"""The tier as a process of its own, which takes the commands of ``worker.h``: rows of a generation that is kept.

    python tier_worker.py FOLDER ROWS RECORD_BYTES LIMIT_BYTES

The limit is not needed: what the tier has in memory depends on rows alone. Knows ``hpcrec.disk``.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np

from hpcrec.disk.tier import BlockRows, Settings, Tier, Wanted

AT_ONCE = 100_000  # rows that are filled at once


class Worker:
    """A tier of so many rows of so many bytes; it goes on from the newest generation of its folder, if it has one."""

    def __init__(self, folder: Path, rows: int, record_bytes: int) -> None:
        self._words = record_bytes // 4
        block = BlockRows(rows, {"": (np.dtype("i4"), (self._words,))})
        kept = sorted(int(path.name.rsplit("-", 1)[1]) for path in folder.glob("generation-*"))
        self._tier = Tier(folder, [block], Settings(), generation=kept[-1] if kept else None)
        for number in kept[-1:]:
            self._tier.drop(number)
        self._into = np.zeros((0, self._words), np.int32)
        self._count = 0

    def fill(self, rows: int) -> dict[str, float]:
        """Writes all rows, in their order."""
        return self.over(np.arange(rows, dtype=np.int32))

    def over(self, rows: np.ndarray) -> dict[str, float]:
        """Writes these rows, in this order."""
        for first in range(0, len(rows), AT_ONCE):
            self._put(np.sort(rows[first : first + AT_ONCE]))
        self._tier.flush()
        return {}

    def keep(self) -> dict[str, float]:
        """So that another process can go on from here."""
        self._tier.keep()
        return {}

    def turn(self, seconds: float, batch: int, path: str) -> dict[str, float]:
        """Reads and writes pairs of batches."""
        began_s, used_s, n = time.perf_counter(), time.process_time(), 0
        with Path(path).open("rb") as file:
            while time.perf_counter() - began_s < seconds and (pair := file.read(8 * batch)):
                read, written = np.frombuffer(pair, np.int32).reshape(2, batch).astype(np.int64)
                self._get(read)
                self._put(written)
                n += 1
        self._tier.flush()
        took_s = time.perf_counter() - began_s
        return {"rows": n * batch, "seconds": took_s, "cpu_s": time.process_time() - used_s}

    def _get(self, rows: np.ndarray) -> None:
        into = self._room(len(rows))
        into[:, 0] = -1
        found = self._tier.read({0: Wanted(rows, {"": into})}).wait()[0]
        if not found.all() or (into[:, 0] != rows).any():
            sys.exit("a row has the record of another")

    def _put(self, rows: np.ndarray) -> None:
        self._count += 1
        records = self._room(len(rows))
        records[:] = self._count
        records[:, 0] = rows
        self._tier.write({0: Wanted(rows.astype(np.int64), {"": records})})

    def _room(self, n: int) -> np.ndarray:
        if len(self._into) < n:
            self._into = np.zeros((n, self._words), np.int32)
        return self._into[:n]

    def close(self) -> None:
        """Lets the folder go."""
        self._tier.close()


def numbers(path: str) -> np.ndarray:
    return np.fromfile(path, np.int32)


def main(folder: str, rows: str, record_bytes: str, _limit_bytes: str) -> None:
    worker = Worker(Path(folder), int(rows), int(record_bytes))
    for line in sys.stdin:
        match line.split():
            case ["fill", n]:
                said = worker.fill(int(n))
            case ["over", path]:
                said = worker.over(numbers(path))
                worker.keep()
            case ["turn", seconds, _, batch, path]:
                said = worker.turn(float(seconds), int(batch), path)
            case _:
                sys.exit(f"no such command: {line}")
        print(json.dumps(said), flush=True)
    worker.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
