"""Memory of a rank by formula: what docs/memory.md says, as code.

Every term is an expectation, or an upper bound where the data's skew would have to be known: repeated ids in a batch
are counted as if they were distinct. Knows numbers of rows, ids and bytes; knows no configuration, model or rank.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hpcrec.plan.ranks import DenseRank, HeldIds, HeldRows, HolderTraffic
from hpcrec.plan.written import Written, written_terms
from hpcrec.units import MB, MiB

# What a process takes before it holds anything, measured on Linux with torch 2.13 for CPUs (benchmarks/memory.py).
OWNER_BASE_BYTES = 265 * MB  # Python, NumPy, torch, MPI, HDF5
DENSE_BASE_BYTES = 85 * MB  # more on a dense rank: Horovod, torch's kernels and autograd once they have run
BLOCK_ROWS = 1 << 16  # rows that are loaded at once (train.checkpoint_stretch): more than are initialised
ROW_STATES = {"sgd": (0, 0), "adagrad": (0, 1), "rowwise_adagrad": (1, 0), "adam": (0, 2)}  # (a row, an element)
DENSE_STATES = {"SGD": 0, "Adagrad": 1, "RMSprop": 1}  # by torch's name; 2 as Adam has for any other
_ID_BYTES = 8
_PACKED_ID_BYTES = 4  # on the wire, of a holder's 2^32 rows: fewer rows take fewer bits; and 1 a bag of up to 255 ids
_ROUTE_BYTES_AN_ID = 40  # kept of a routed id at its holder: row, order, distinct row, segment, its gradient's place
_ROUTE_BYTES_A_BAG = 16  # kept of a bag: where it begins, where its vector goes
_READ_BYTES_AN_ID = 56  # while a message is decoded and sorted: the message, joined rows, the sort's two buffers
_READ_BYTES_A_BAG = 28
_FIND_BYTES_AN_ID = 64  # while rows of dynamic tables are found: ids, distinct ones, the sort, the messages once more
_WIDE_ID_BYTES = 4  # more on the wire, of any 64-bit id
MAP_BYTES_A_ROW = 16  # which id has it
ORDER_BYTES_A_ROW = 16  # which goes first, where ids may lose their rows
PENDING_BYTES_AN_ID = 32  # of an id that waits for a row
_SAVED_BYTES_A_ROW = 32  # of what is known of ids, as lists, while it is saved or loaded
_ASK_BYTES_AN_ID = 72  # a dense rank's: bags, dealt rows, orders and the message, then the moves
_ASK_BYTES_A_BAG = 48
_SEEN_BYTES_AN_ID = 91  # of a batch in the window: 40 of dealt rows, and 51 in the map that knows next uses
_SEEN_BYTES_A_BAG = 16
_VECTOR_COPIES = 3  # at a holder: values, gradients, the sums of a row's gradients
_LEAF_COPIES = 6  # at a dense rank: values, leaves, operators' results, their gradients, leaf gradients, the message
_SUM_COPIES = 4  # of what ranks of a host add: messages, parts that are kept, sums, their gradients
_WINNER_BYTES = 4
_WINDOW_SIDES = 2  # of a message's memory that neighbours read: comm.window
_DEALT_BYTES_AN_ID = 100  # while a batch is dealt: sample, place, owner, weight, twice, and where they are counted
_SCORE_BYTES = 64  # of a sample for a part: as it is summed, as a whole number, and nets of the auction
_WEIGHED_COPIES = 3  # at a holder, of vectors that meet dense parameters: side by side, turned, and their gradient
_HELD = ("rows", "optimizer state")
_SORT_BYTES_AN_ID = 32  # on a GPU while rows are sorted: keys and places, twice
_PLACE_BYTES_AN_ID = 48  # of rows that are cached: distinct rows, their slots, what went for them, where each id is
_PINNED_BYTES = 3 * 2 * 8 * MiB  # two buffers of each thread: steps, routes, rows ahead (kernels.staging)
_KEPT_BYTES = 3 * 32 * MiB  # of rows that change while a checkpoint is written, as they are sorted (embedding.store)
_SAVED_BYTES = (32 * MiB, 48 * MiB)  # at most, of a part: exported (embedding.held_rows), gathered (data.hdf5_filled)
# Of rows on a disk: what files that are not finished have in memory, of at most so many a block (hpcrec/disk/log.py).
_OPEN_FILES, _FILES_A_BLOCK, _FILE_BYTES = 4, 256, (MiB // 2, 64 * MiB)
_FOOTER_BYTES_A_ROW, _FOOTER_BYTES_A_PAGE, _PAGE_BYTES = 4, 12, 4096
_ROW_HASH_BYTES = 1  # of a row in a page, beside itself
_ACTIVATION_COPIES = 4  # of a layer's result: before and after its nonlinearity, and both gradients


@dataclass(frozen=True)
class RankMemory:
    """Bytes of one rank by what they are for, the order that of docs/memory.md: the host's, and its GPU's."""

    terms: dict[str, int] = field(default_factory=dict)
    gpu_terms: dict[str, int] = field(default_factory=dict)

    @property
    def total_bytes(self) -> int:
        """Their sum: the resident size at its highest."""
        return sum(self.terms.values())

    @property
    def held_bytes(self) -> int:
        """Rows and optimizer state, wherever they are."""
        return sum(t.get(name, 0) for t in (self.terms, self.gpu_terms) for name in (*_HELD, "copies"))


Elsewhere = Callable[[dict[str, float], Sequence[HeldRows], HolderTraffic, tuple[int, int], int], dict[str, float]]
"""Terms of the host, which it changes, rows, traffic, batches that are routed and in flight, bytes of an element ->
terms of a GPU: what a store adds to the formula."""


def rank_memory(
    held: Sequence[HeldRows],
    traffic: HolderTraffic,
    dense: DenseRank | None,
    *,
    item_bytes: int,
    ahead: int,
    shared: float,
    relayed: float = 0.0,
    written: Written | None = None,
    read_bytes: float = 0.0,
    added_elements: float = 0.0,
    auto: Mapping[str, float] | None = None,
    held_ids: Sequence[HeldIds] = (),
    lookups: int = 1,
    wholes: int = 0,
    dense_optimizer: str = "",
    base_bytes: int = OWNER_BASE_BYTES,
    elsewhere: Elsewhere | None = None,
    saves: bool | None = None,
    marks: int = 1,
    in_flight: int = 1,
    dealt_bytes: float = 0.0,
) -> RankMemory:
    """The memory of one rank.

    Parameters
    ----------
    held : sequence of HeldRows
        What it holds, replicas included; may be empty.
    traffic : HolderTraffic
        What reaches it as a holder.
    dense : DenseRank or None
        None where it is not dense.
    item_bytes, ahead : int
        4 for float32, 8 for float64; ``exchange.prefetch``.
    shared : float
        The part of all messages that it exchanges with other ranks of its host through shared memory, from 0 to 1.
    relayed : float
        The part that crosses between hosts by way of a rank for others (``exchange.path``).
    written : Written, optional
        How values and gradients cross, where not as they are (``exchange.codec``).
    read_bytes : float
        What it reads of ids as a holder (``exchange.ids = "read"``): windows of the data set, and batches ahead.
    added_elements : float
        Of partial results, and vectors of bags, that it gives to other owners, is given by them, or adds to theirs
        (``exchange.reduce``, ``exchange.path``); and of rows that it asks for with other dense ranks of its host.
    auto : mapping of str to float, optional
        What form ``auto`` may take besides: term -> bytes.
    held_ids : sequence of HeldIds
        Of the dynamic tables that it holds parts of.
    lookups, wholes : int
        Sets of tables that a batch may be looked up in; elements of dense parameters, whole on every rank, that it may
        have to train as a holder.
    dense_optimizer : str
        torch's name of their optimizer.
    base_bytes : int
        Of the process itself.
    elsewhere : callable, optional
        What the store has elsewhere than in the host's memory; default: nothing.
    saves, marks : bool or None, int
        Whether steps go on while a thread writes checkpoints; None: no thread does. Bytes a row of who knows of it.
    in_flight : int
        Steps read and not yet learned, at most (``policy``): what each of them keeps is there so many times.
    dealt_bytes : float
        What it takes to deal a whole batch (``data.deal``): see ``dealing_bytes``.
    """
    routes = ahead + (1 + in_flight if dense is None else 2 * in_flight)  # dense: ahead, for what is read meanwhile
    terms = {
        "rows": sum(h.rows * h.width for h in held) * item_bytes,
        "optimizer state": sum(state_bytes(h, item_bytes) for h in held),
        "routes": lookups * routes * (traffic.ids * _ROUTE_BYTES_AN_ID + traffic.bags * _ROUTE_BYTES_A_BAG)
        + traffic.ids * _READ_BYTES_AN_ID
        + traffic.bags * _READ_BYTES_A_BAG,
        "vectors": in_flight * _VECTOR_COPIES * item_bytes * traffic.elements,
        "block": max((_block_bytes(h, item_bytes) for h in held), default=0),
        "process": base_bytes,
    }
    held_elements = traffic.elements, traffic.kept
    asked_elements = (dense.samples * dense.leaf_elements, dense.kept) if dense else (0.0, 0.0)
    if written is not None:
        terms |= written_terms(written, item_bytes, *(_times(in_flight, n) for n in (held_elements, asked_elements)))
    some = {"ids read": read_bytes, "sums in hosts": in_flight * _SUM_COPIES * item_bytes * added_elements}
    some |= {"lags of copies": traffic.lag_bytes, "dealing": dealt_bytes}
    some["saving"] = 0 if saves is None else _saving_bytes(held, item_bytes, marks, steps=saves)
    some["id maps"] = sum(_map_bytes(h) for h in held_ids) + traffic.dynamic_ids * _FIND_BYTES_AN_ID if held_ids else 0
    terms |= {name: n for name, n in some.items() if n} | dict(auto or {})
    if traffic.weights or (wholes and dense is None):
        states = DENSE_STATES.get(dense_optimizer, 2)
        elements = traffic.weights * (2 + states) + traffic.weighed_elements * _WEIGHED_COPIES
        terms["folded layers"] = item_bytes * (elements + (wholes if dense is None else 0))
    maxima_bytes = _maxima_bytes(traffic, item_bytes) + (0 if dense is None else _maxima_bytes(dense, item_bytes))
    if maxima_bytes:
        terms["max pooling"] = in_flight * maxima_bytes
    terms |= _dense_terms(dense, item_bytes, routes, lookups, in_flight) if dense else {}
    wire = written or Written(item_bytes=item_bytes)
    both = wire.wire_bytes(*held_elements), wire.wire_bytes(*asked_elements)
    wire_bytes = max(both) if in_flight == 1 else sum(both)  # values and gradients, in turn or each in its own
    terms |= _message_terms(traffic, dense, wire_bytes, shared=shared, relayed=relayed)
    flying = routes * lookups, in_flight
    gpu_terms = elsewhere(terms, held, traffic, flying, item_bytes) if elsewhere is not None and held else {}
    return RankMemory(*({name: round(n) for name, n in where.items()} for where in (terms, gpu_terms)))


def _message_terms(
    traffic: HolderTraffic, dense: DenseRank | None, wire_bytes: float, *, shared: float, relayed: float
) -> dict[str, float]:
    """Shared memory of messages, and what passes a rank for others."""
    terms = {}
    asked_bytes = 0 if dense is None else _message_bytes(dense)
    if relayed:  # what it receives for others of its host, and puts together of theirs: as much as its own
        terms["messages for others"] = 2 * relayed * (_message_bytes(traffic) + asked_bytes + wire_bytes)
    if shared:  # who writes a message and who reads it have its pages, and keep them, on both sides
        ids_bytes = shared * _message_bytes(traffic) + asked_bytes
        terms["message windows"] = _WINDOW_SIDES * (ids_bytes + (1 + shared) * wire_bytes)
    return terms


def _times(n: int, elements: tuple[float, float]) -> tuple[float, float]:
    return n * elements[0], n * elements[1]


def _block_bytes(held: HeldRows, item_bytes: int) -> int:
    """While a part of a table is loaded, or saved."""
    a_row = row_bytes(held.width, held.optimizer, item_bytes)
    saved_bytes = held.rows * (a_row + _ID_BYTES)
    loaded_bytes = 3 * min(BLOCK_ROWS, held.rows) * (a_row + 2 * _ID_BYTES)
    return max(loaded_bytes, sum(min(most, saved_bytes) for most in _SAVED_BYTES))


def _saving_bytes(held: Sequence[HeldRows], item_bytes: int, marks: int, *, steps: bool) -> int:
    """Marks of rows, and copies of those that steps change meanwhile."""
    kept_bytes = sum(h.rows * (row_bytes(h.width, h.optimizer, item_bytes) + _ID_BYTES) for h in held)
    return marks * sum(h.rows for h in held) + (min(_KEPT_BYTES, kept_bytes) if steps else 0)


def to_gpu(
    terms: dict[str, float],
    held: Sequence[HeldRows],
    traffic: HolderTraffic,
    flying: tuple[int, int],
    item_bytes: int,
    *,
    gpu_bytes: int | None,
    cached: bool = False,
) -> dict[str, float]:
    """Takes what is in a GPU's memory, or copied through pinned memory, out of the host's terms, or adds it there.

    See ``Elsewhere``; ``gpu_bytes`` is what rows may have of it: where they take more, they are cached there, and with
    ``cached`` in any case.
    """
    routes, in_flight = flying
    copies = [h for h in held if h.copied]  # are not cached
    own_bytes = sum(h.rows * row_bytes(h.width, h.optimizer, item_bytes) for h in held if not h.copied)
    if gpu_bytes is not None and (cached or own_bytes > gpu_bytes):
        copied = sum(h.rows * h.width for h in copies) * item_bytes, sum(state_bytes(h, item_bytes) for h in copies)
        gpu: dict[str, float] = {"cached rows": gpu_bytes, "copies": sum(copied)}
        for name, n_bytes in zip(_HELD, copied, strict=True):
            terms[name] -= n_bytes
        terms["places"] = _PLACE_BYTES_AN_ID * traffic.ids
        gpu["places"] = routes * terms["places"]
    else:
        gpu = {name: terms.pop(name) for name in _HELD}
    asked = traffic.ids * _ROUTE_BYTES_AN_ID + traffic.bags * _ROUTE_BYTES_A_BAG
    gpu["routes"] = routes * asked + traffic.ids * _SORT_BYTES_AN_ID
    gpu["vectors"] = in_flight * _VECTOR_COPIES * item_bytes * traffic.elements
    terms["pinned memory"] = _PINNED_BYTES
    return gpu


def to_disk(
    terms: dict[str, float],
    held: Sequence[HeldRows],
    traffic: HolderTraffic,
    flying: tuple[int, int],
    item_bytes: int,
    *,
    memory_bytes: int,
) -> dict[str, float]:
    """Takes rows that are on a disk out of the host's terms, and adds what memory has of them.

    See ``Elsewhere``; ``memory_bytes`` is what they may have of it, what is known of those on the disk, and tables that
    are whole in it. Rows of steps in flight that find no place in it have places besides.
    """
    routes, in_flight = flying
    own = [h for h in held if not h.copied and not h.whole]
    for name, n_bytes in (
        ("rows", sum(h.rows * h.width for h in own) * item_bytes),
        ("optimizer state", sum(state_bytes(h, item_bytes) for h in own)),
    ):
        terms[name] -= n_bytes
    a_row = max((row_bytes(h.width, h.optimizer, item_bytes) for h in own), default=0)
    whole = sum(h.rows * row_bytes(h.width, h.optimizer, item_bytes) for h in held if h.whole and not h.copied)
    terms["cached rows"] = memory_bytes - whole
    terms["places"] = routes * _PLACE_BYTES_AN_ID * traffic.ids + (1 + in_flight) * a_row * traffic.ids
    terms["footers"] = sum(_footer_bytes(h.rows, row_bytes(h.width, h.optimizer, item_bytes)) for h in own)
    return {}


def _footer_bytes(rows: float, a_row: float) -> float:
    """Which rows the files have that are not finished. Tables of a block share its files, so this is the most."""
    least, most = _FILE_BYTES
    n_bytes = min(max(rows * a_row / _FILES_A_BLOCK, least), most)
    pages = n_bytes / max(a_row, _PAGE_BYTES)  # of wide rows a page has one
    return _OPEN_FILES * (n_bytes / (a_row + _ROW_HASH_BYTES) * _FOOTER_BYTES_A_ROW + pages * _FOOTER_BYTES_A_PAGE)


def to_gpu_over_disk(
    terms: dict[str, float],
    held: Sequence[HeldRows],
    traffic: HolderTraffic,
    flying: tuple[int, int],
    item_bytes: int,
    *,
    gpu_bytes: int | None,
    memory_bytes: int,
) -> dict[str, float]:
    """Both: rows are on a disk, and cached in the host's memory and in a GPU's."""
    gpu = to_gpu(terms, held, traffic, flying, item_bytes, gpu_bytes=gpu_bytes, cached=True)
    places = terms["places"]
    to_disk(terms, held, traffic, flying, item_bytes, memory_bytes=memory_bytes)
    terms["places"] += places
    return gpu


def _dense_terms(dense: DenseRank, item_bytes: int, routes: int, lookups: int, in_flight: int) -> dict[str, float]:
    batches = dense.prefetch + 1 + routes + dense.window
    terms = {
        "dense process": DENSE_BASE_BYTES,
        "read windows": 2 * dense.window_samples * dense.sample_bytes,
        "batches": batches * dense.samples * dense.sample_bytes,
        "asking": lookups * routes * (dense.ids * _ASK_BYTES_AN_ID + dense.bags * _ASK_BYTES_A_BAG),
        "leaves": in_flight * _LEAF_COPIES * item_bytes * dense.samples * dense.leaf_elements,
        "parameters": (dense.parameters * (2 + DENSE_STATES.get(dense.optimizer, 2)) + dense.away) * item_bytes,
        "activations": _ACTIVATION_COPIES * item_bytes * dense.samples * dense.layer_elements,
    }
    if dense.unsent:
        terms["unsent gradients"] = item_bytes * dense.unsent
    if dense.kept_rows_bytes:
        terms["kept rows"] = dense.kept_rows_bytes
    if dense.window:
        seen_bytes = dense.ids * _SEEN_BYTES_AN_ID + dense.bags * _SEEN_BYTES_A_BAG
        terms["steps ahead"] = (dense.window + 1) * seen_bytes
    if dense.taught_by:  # as they were exchanged, and, while it evaluates, as they are
        terms["other groups"] = 2 * item_bytes * dense.taught_by * dense.parameters
    return terms


def _maxima_bytes(pooled: HolderTraffic | DenseRank, item_bytes: int) -> float:
    """Gradients of single ids, and which id won each column of a bag."""
    return item_bytes * pooled.id_elements + _WINNER_BYTES * pooled.bag_elements


def _message_bytes(asked: HolderTraffic | DenseRank) -> float:
    return _PACKED_ID_BYTES * asked.ids + _WIDE_ID_BYTES * asked.dynamic_ids + asked.bags


def dealing_bytes(samples: float, ids: float, parts: int, sample_bytes: float, table_bytes: int) -> float:
    """To deal a batch of so many samples and ids to parts by affinity: its table, the whole batch twice, and scores."""
    scores = samples * (2 * sample_bytes + parts * _SCORE_BYTES)
    return table_bytes + ids * _DEALT_BYTES_AN_ID + scores


def _map_bytes(held: HeldIds) -> int:
    a_row = MAP_BYTES_A_ROW + ORDER_BYTES_A_ROW * held.evicts + _SAVED_BYTES_A_ROW
    return held.rows * a_row + held.pending * PENDING_BYTES_AN_ID


def row_bytes(width: int, optimizer: str, item_bytes: int) -> int:
    """A row and its optimizer state."""
    a_row, an_element = ROW_STATES[optimizer]
    return (width * (1 + an_element) + a_row) * item_bytes


def state_bytes(held: HeldRows, item_bytes: int) -> int:
    """Optimizer state of a part of a table."""
    return held.rows * (row_bytes(held.width, held.optimizer, item_bytes) - held.width * item_bytes)
