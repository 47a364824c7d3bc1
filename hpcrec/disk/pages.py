"""Rows in pages and out of them, and who reads and writes: natively, or, where that is not built, by the definition."""

from typing import Any, Literal, get_args

from hpcrec.disk import native, reference
from hpcrec.errors import ConfigError
from hpcrec.kernels.native_module import available

_here: Any = native if available() else reference
crc32c = _here.crc32c
pack_rows = _here.pack_rows
seal_pages = _here.seal_pages
check_pages = _here.check_pages
unpack_rows = _here.unpack_rows
take_newest = _here.take_newest

Way = Literal["auto", "io_uring", "threads", "mapped"]
RING_DEPTH = 128
THREADS = 64
MAPPED_THREADS = 4  # copy, and wait for nothing


def page_io(way: Way, page_bytes: int, depth: int | None = None) -> tuple[Any, str]:
    """Who reads and writes pages of at most so many bytes, and the name of the way that it takes.

    Parameters
    ----------
    way : str
        ``io_uring``; ``threads``, each with one request at a time; ``mapped``: threads that read where the file is
        mapped, for memory that keeps what is in it; ``auto``: the first where the system lets it be had, else threads.
    page_bytes : int
    depth : int, optional
        Requests under way, at most; default: ``RING_DEPTH``, ``THREADS`` or ``MAPPED_THREADS``.

    Raises
    ------
    ConfigError
        There is no such way, or the system lets no io_uring be had and ``way`` asks for it.
    """
    if way not in get_args(Way):
        raise ConfigError(f"store.io is {way!r}; allowed are {', '.join(map(repr, get_args(Way)))}")
    if depth is not None and not 1 <= depth <= 1024:
        raise ConfigError(f"the depth of reads is {depth}; allowed are 1 to 1024")
    if way in ("auto", "io_uring"):
        try:
            return _here.PageIo("io_uring", depth or RING_DEPTH, page_bytes), "io_uring"
        except OSError as error:
            if way == "io_uring":
                raise ConfigError(
                    f"store.io is 'io_uring', which cannot be had here ({error.strerror}). Set 'auto' or 'threads'."
                ) from None
    if way == "mapped":
        return _here.PageIo(way, depth or MAPPED_THREADS, page_bytes), way
    return _here.PageIo("threads", depth or THREADS, page_bytes), "threads"
