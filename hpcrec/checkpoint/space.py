"""How many bytes of a disk a run's checkpoints hold, and which of them go so that it is no more than a limit.

Files may be links: what several checkpoints have counts once. What the run's rows have too (a store's own files,
``hpcrec.disk``) counts as well: it is the checkpoints' alone once the run has ended. Knows folders; removes nothing.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path


class Held:
    """What the checkpoints in some folders have of a disk, as it is now.

    Parameters
    ----------
    folders : mapping of int to Path
        By step.
    bases : mapping of int to int or None
        The checkpoint that one needs.

    Raises
    ------
    OSError
        A folder cannot be read.
    """

    def __init__(self, folders: Mapping[int, Path], bases: Mapping[int, int | None]) -> None:
        self._bases = {step: base for step, base in bases.items() if base in folders}
        self._sizes: dict[tuple[int, int], int] = {}
        self._files: dict[int, set[tuple[int, int]]] = {}
        for step, folder in folders.items():
            mine = self._files.setdefault(step, set())
            for root, _, files in os.walk(folder, onerror=_raised):
                for file in files:
                    of = (Path(root) / file).lstat()
                    which = of.st_dev, of.st_ino
                    self._sizes[which] = of.st_size
                    mine.add(which)

    def n_bytes(self, steps: Collection[int]) -> int:
        """Of these checkpoints, and those that they need."""
        needed = {base for step in steps if (base := self._bases.get(step)) is not None}
        files = set[tuple[int, int]]().union(*(self._files[step] for step in {*steps, *needed}))
        return sum(self._sizes[which] for which in files)

    def within(self, kept: Collection[int], droppable: Sequence[int], most_bytes: int) -> set[int]:
        """Of checkpoints to be kept, those that are if they may hold so many bytes: of the droppable the first go."""
        left = set(kept)
        for step in droppable:
            if self.n_bytes(left) <= most_bytes:
                break
            left.discard(step)
        return left


def _raised(error: OSError) -> None:
    raise error
