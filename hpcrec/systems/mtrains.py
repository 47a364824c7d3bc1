"""MTrainS: tables larger than memory on tiers of memory, rows brought up by the ids of coming batches, no bit changed.

Citation: [MTRAINS], H. T. Kassa et al., *MTrainS: Improving DLRM training efficiency using heterogeneous memories*.

The paper's terms:

block-addressable storage, key-value store  -> the tier, a log of segments (``hpcrec.disk``)
cache above it, with pinned rows            -> ``embedding.stores.cache_plan``: slots, and places behind them
scratch pad of conflict misses              -> these places, of rows of steps under way that find no slot
prefetch by the ids of coming batches       -> ``exchange.prefetch`` steps ahead; as many as are measured to be worth it
deferred initialisation                     -> a row that was never written starts from (seed, table, id)
byte-addressable storage                    -> ``store.io = "mapped"``
placement of tables by reuse and bandwidth  -> ``store.whole``, ``hpcrec data reuse``, ``plan.placement``
HBM over DRAM                               -> ``store.name = "gpu"`` with ``store.memory_bytes``: the same cache
HBM over DRAM over block storage            -> ``store.gpu_bytes`` beside ``store.name = "disk"``

Departures from the paper: the tier is a log of our own in place of RocksDB, for rows change once for every read; a row
has one place whatever steps want it, so that an update lands there without pointers that are rewritten; an evaluation
takes no slot from training; ids of dynamic tables are foreseen as far as they have rows; main memory has the rows that
a device has above it too.
"""

from typing import Any


def configuration(path: str | None = None, memory_bytes: int | None = None) -> dict[str, Any]:
    """Its positions on the axes, for ``config.validate`` together with data and a run folder.

    Parameters
    ----------
    path : str, optional
        A folder on each host's own disk; without it store.path has to be given besides.
    memory_bytes : int, optional
        Of each owner; without it store.memory_bytes has to be given besides.
    """
    machine = {"path": path, "memory_bytes": memory_bytes}
    return {
        "topology": {"mode": "split"},
        "exchange": {"form": "pooled", "codec": "fp32"},
        "policy": {"name": "sync"},
        "embedding": {"optimizer": {"name": "rowwise_adagrad", "lr": 0.02}},
        "store": {"name": "disk", **{key: value for key, value in machine.items() if value is not None}},
        "dense": {"reducer": "horovod"},
    }
