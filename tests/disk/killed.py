"""Writes to a tier, and makes a generation of it now and then, until it is killed: what ``test_faults`` starts.

python -m tests.disk.killed FOLDER SEED WAY
"""

import sys
from itertools import count
from pathlib import Path

from hpcrec.disk.tier import Tier
from tests.disk.schedules import BLOCKS, Model, settings

WRITES = 12  # from one generation to the next


def main(folder: Path, seed: int, way: str) -> None:
    model, kept = Model(seed), None
    with Tier(folder, BLOCKS, settings(way)) as tier:
        for step in count(1):
            tier.write(model.draw())
            if step % WRITES == 0:
                generation = tier.keep()
                if kept is not None:
                    tier.drop(kept)
                kept = generation.number
                print(kept, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
