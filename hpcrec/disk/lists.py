"""The file that names the segments of a generation, with their seals: JSON and its checksum. Knows files alone.

    {"blocks": [[rows, page bytes, record bytes, records a page, pages a segment], ...],
     "segments": [[7, 9, ...], ...], "seals": [[..], ...], "stamp": 4711}

Blocks are in their order; of each the numbers of its segments, and their seals. ``stamp`` is that of the next page.
"""

import json
import os
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from hpcrec.disk import pages
from hpcrec.disk.layout import Layout
from hpcrec.disk.segment import AGAIN, Footer, Segment, not_written
from hpcrec.errors import TierError

_READERS = 8  # reads of seals and footers under way
NAME = re.compile(r"(segment|generation)-(\d{8})(\.part)?")


def list_name(number: int) -> str:
    """Of a generation's file."""
    return f"generation-{number:08d}"


def segment_name(number: int) -> str:
    """Of a segment's file."""
    return f"segment-{number:08d}"


def write_list(path: Path, said: Mapping[str, Any]) -> None:
    """With its name only once it is on the disk.

    Raises
    ------
    OutputError
    """
    text = json.dumps(said).encode()
    part = path.with_suffix(".part")
    try:
        with part.open("wb") as file:
            file.write(text + b"\n%08x\n" % pages.crc32c(np.frombuffer(text, np.uint8)))
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise not_written(path, error.errno, "the list of its segments") from error


def read_list(path: Path) -> dict[str, Any]:
    """What was written there.

    Raises
    ------
    TierError
        It is not there, or not what was written.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TierError(f"{path}: cannot be read ({error.strerror}). {AGAIN}") from error
    text, _, sum_ = data.rstrip(b"\n").rpartition(b"\n")
    if sum_ != b"%08x" % pages.crc32c(np.frombuffer(text, np.uint8)):
        raise TierError(f"{path}: its checksum is wrong. {AGAIN}")
    found: dict[str, Any] = json.loads(text)
    return found


def open_segments(
    folder: Path, said: Mapping[str, Any], block: int, layout: Layout, *, direct: bool = True
) -> list[Segment]:
    """The segments of a block, each the one that the list means.

    Raises
    ------
    TierError
        One is not there, or was written by another run, or by this one at another time.
    """

    def opened(number: int) -> Segment:
        return Segment.sealed(folder / segment_name(number), number, block, layout, direct=direct)

    found: list[Segment] = []
    coming: list[Future[Segment]] = []
    try:
        with ThreadPoolExecutor(_READERS) as pool:
            coming = [pool.submit(opened, number) for number in said["segments"][block]]
        for one, seal in zip(coming, said["seals"][block], strict=True):
            found.append(one.result())
            if found[-1].seal_sum != seal:
                raise TierError(
                    f"{found[-1].path}: is another segment than the one that its generation has: its seal is "
                    f"{found[-1].seal_sum:08x}, and {seal:08x} is listed. It was put there from elsewhere, or is of "
                    "another run.",
                    segment=found[-1].path,
                )
    except BaseException:
        for one in coming:
            if one.exception() is None:
                one.result().close()
        raise
    return found


def read_footers(segments: Iterable[Segment]) -> Iterator[tuple[Segment, Footer]]:
    """Each with its footer, of which some are read ahead by threads.

    Raises
    ------
    TierError
        One cannot be read, or is not what was written.
    """
    with ThreadPoolExecutor(_READERS) as pool:
        coming: deque[tuple[Segment, Future[Footer]]] = deque()
        for segment in segments:
            coming.append((segment, pool.submit(segment.read_footer)))
            if len(coming) > _READERS:
                first, footer = coming.popleft()
                yield first, footer.result()
        for first, footer in coming:
            yield first, footer.result()
