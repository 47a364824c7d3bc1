"""Pieces of the ids message, coded in ways that a sender would not choose."""

from hpcrec import kernels
from hpcrec.exchange.wire import Coded, Piece, compact
from hpcrec.kernels import Coding


def as_table(piece: Piece) -> Coded:
    """As a table, whether or not that pays."""
    distinct, places = kernels.dedup(piece.rows)
    n_bytes = kernels.packed_bytes(distinct)[1] + kernels.packed_bytes(places)[0]
    return Coded(piece, Coding.TABLE, n_bytes, compact(piece, far=False).lengths_bytes, (distinct, places))
