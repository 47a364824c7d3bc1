"""Writes to a tier, and makes a generation of it now and then, until it is killed: what ``test_faults`` starts.

python -m tests.disk.killed FOLDER SEED WAY [PLACE]

With a place, ``write`` or ``clean``, it kills itself in the middle of writing a piece or of cleaning a segment, some
calls after the first generation; it says so on a line.
"""

import os
import random
import signal
import sys
import threading
import time
from itertools import count
from pathlib import Path
from typing import Any

from hpcrec.disk.log import RowLog
from hpcrec.disk.tier import Tier
from tests.disk.schedules import BLOCKS, Model, settings

WRITES = 12  # from one generation to the next
WRITES_AND_CLEANS = 100  # likewise: what of a generation's segments dies is not won as long as it is kept
PLACES = {"write": "_write_piece", "clean": "_clean_segment"}


def main(folder: Path, seed: int, way: str, place: str | None = None) -> None:
    model, kept, every = Model(seed), None, WRITES_AND_CLEANS if place == "clean" else WRITES
    with Tier(folder, BLOCKS, settings(way)) as tier:
        for step in count(1):
            tier.write(model.draw())
            if step % every == 0:
                generation = tier.keep()
                if kept is not None:
                    tier.drop(kept)
                elif place is not None:
                    kill_inside(PLACES[place], random.Random(seed))
                kept = generation.number
                print(kept, flush=True)


def kill_inside(name: str, rng: random.Random) -> None:
    """After some calls of a method of logs, the process is killed in the middle of the next one, or at its end."""
    method, took_s, calls = getattr(RowLog, name), list[float](), rng.randint(1, 20)

    def watched(self: RowLog, *given: Any) -> Any:
        if len(took_s) == calls:
            print(f"killed in {name}", flush=True)
            delay_s = rng.random() * sum(took_s) / calls
            threading.Timer(delay_s, os.kill, (os.getpid(), signal.SIGKILL)).start()
            method(self, *given)
            time.sleep(60)
        began_s = time.perf_counter()
        found = method(self, *given)
        took_s.append(time.perf_counter() - began_s)
        return found

    setattr(RowLog, name, watched)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
