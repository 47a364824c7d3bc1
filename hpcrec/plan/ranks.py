"""What a rank holds and works on, as numbers: what its memory is counted from. Knows no bytes."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class HeldRows:
    """A part of a table: its shape, the name of its optimizer, and whether it is a copy of the whole on dense ranks.

    ``whole``: it is to be in memory, where the store has others elsewhere.
    """

    rows: int
    width: int
    optimizer: str
    copied: bool = False
    whole: bool = False


@dataclass(frozen=True, kw_only=True)
class HolderTraffic:
    """What one step brings to a holder, from all dense ranks.

    ``ids`` and ``bags`` are numbers a step; ``elements`` those of the vectors that answer them, of which ``kept`` cross
    where not all do. ``id_elements`` and ``bag_elements`` are those of ids and bags that it pools by max;
    ``dynamic_ids`` those of dynamic tables. ``weights`` are elements of dense parameters that it trains, on
    ``weighed_elements`` of vectors. ``lag_bytes`` is what it keeps of copies of its rows on dense ranks.
    """

    ids: float = 0.0
    bags: float = 0.0
    elements: float = 0.0
    id_elements: float = 0.0
    bag_elements: float = 0.0
    dynamic_ids: float = 0.0
    lag_bytes: float = 0.0
    weights: int = 0
    weighed_elements: float = 0.0
    kept: float = 0.0


@dataclass(frozen=True, kw_only=True)
class HeldIds:
    """A part of tables that give rows to ids as they come.

    Attributes
    ----------
    rows : int
        The most that ids may have.
    evicts : bool
        Whether ids may lose them.
    pending : int
        Ids that may wait for one.
    """

    rows: int
    evicts: bool
    pending: int


@dataclass(frozen=True, kw_only=True)
class DenseRank:
    """What a dense rank works on.

    Attributes
    ----------
    samples : float
        Of each batch on this rank.
    ids, bags : float
        Of a batch on this rank.
    leaf_elements : int
        Columns of all lookups: elements of the leaves a sample.
    sample_bytes : float
        Of a sample in memory, features that are used, label and dense inputs.
    window_samples : int
        Samples in a window of the global order.
    prefetch : int
        Batches read ahead.
    parameters : int
        Elements of the dense model that dense ranks train.
    away : int
        Elements of those that holders train.
    unsent : float
        Elements of gradients that are kept until they are sent, where gradients are thresholded.
    taught_by : int
        Other groups of dense ranks, whose models it has too.
    optimizer : str
        torch's name.
    layer_elements : int
        Elements of all layers' results a sample, where they can be known; 0 else.
    id_elements, bag_elements : float
        Of ids and bags of a batch that are pooled by max on this rank.
    dynamic_ids : float
        Of a batch on this rank, those of dynamic tables.
    kept : float
        Elements of a batch that holders choose to cross, where not all do.
    kept_rows_bytes : float
        Of rows that conditional forms keep.
    window : int
        Batches ahead of each that are held for these.
    """

    samples: float
    ids: float
    bags: float
    leaf_elements: int
    sample_bytes: float
    window_samples: int
    prefetch: int
    parameters: int
    optimizer: str
    layer_elements: int
    id_elements: float = 0.0
    bag_elements: float = 0.0
    dynamic_ids: float = 0.0
    away: int = 0
    unsent: float = 0.0
    taught_by: int = 0
    kept: float = 0.0
    kept_rows_bytes: float = 0.0
    window: int = 0
