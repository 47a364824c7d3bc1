"""Rows on a disk: the tier alone beside fio, existing stores beside the tier, and runs beside the same runs in memory.

    python benchmarks/tiers.py [--quick] [--json FILE] [--parts disk,stays,checkpoint,stores,runs] [--folder DIR]

Part ``disk`` (``tiers_parts/disk_part.py``): ``hpcrec.disk`` without a cache. Rows of 64 floats with row-wise Adagrad,
260 bytes, lie in random order; batches of rows at random are read past the page cache, a page of 4 KiB for nearly each,
with its checksum. fio reads 4 KiB at random from a file of the same size with io_uring, registered buffers and file;
both take turns at each depth. ``tiers.read_share`` is the tier's best median over depths by fio's best,
``tiers.read_share_threads`` that of threads in place of io_uring (they are as many as the depth). ``tiers.read_cpu_us``
is the CPU of the process by pages, Python, checksum and the system's part in its threads included, where reads are the
most, with its interval over rounds. Without fio (apt-get install fio) shares have no value.

Then rows of 16 and of 64 floats are handed over, until the disk has been filled several times; the second half counts.
Batches of distinct rows are drawn by power laws, in a fixed random order. ``tiers.writes_per_row`` is bytes written,
footers, cleaning and padding included, by bytes of rows and states that left a cache of an eighth of the rows, all of
them changed: the highest over both widths and exponents of 1.05 and 1.2. What leaves is drawn by a model of a cache,
the least recently used rows first, where rows are asked for by these laws: what is often asked for stays there, so that
rows are handed over more alike, which takes more cleaning. ``tiers.writes_per_row.uncached``, which has no goal, is the
same where all rows of each batch are handed over. Laws of 0.8 and 0 (all rows alike) are in the table.
``tiers.disk_per_row`` is the disk's bytes at their highest, space that is taken ahead included, by those of rows alive.

Memory beside rows (``tiers_parts/memory_of.py``) is what a process has more of (RssAnon) or what is counted, the larger
one, each in a process of its own. ``tiers.memory_per_row`` is bytes by rows of a declared table, all of them written:
the tier's. ``tiers.memory_per_row.dynamic`` is the same of a dynamic table, with the map of its ids and the order in
which they lose their rows; how many it is without that order is beside it. ``tiers.memory_per_cached_row`` is bytes by
slots of a cache's plan, each of which has a row that has changed: its map, marks, and places of two steps that are
under way.

Part ``stays``: what a cache of rows above the disk keeps, by count (``tiers_parts/stays.py``).
``tiers.reads_over_best`` is reads a step by those of the best fixed set of as many rows, the highest over exponents of
1.05 and 1.2, with ``--pairs FILE`` of MovieLens' pairs too, and caches of 1/4, 1/8 and 1/16 of the rows;
``tiers.reads_over_optimum`` is the same by Belady's optimum, where the next steps are known. Counts are the same in
every run.

Part ``checkpoint`` (``tiers_parts/checkpoint_part.py``): store ``disk`` in an eighth of the rows' bytes.
``tiers.checkpoint_bytes`` is what a checkpoint by links writes, what is dirty in memory, also what is written early for
it, and its own files, by the bytes of rows and states, the most of any round; beside it, what it would copy where links
cannot be had. ``tiers.checkpoint_stall`` is how long steps stand still for one by links, by how long they do where all
rows are in memory: the median of rounds; beside it, how long they do for HDF5. By how much steps are slower while it is
written behind them is in neither. ``tiers.resume_ratio`` is the time from an open session to the end of the first step,
from links by that from HDF5: medians of rounds, with nothing of either checkpoint in the page cache.

Part ``stores`` (``tiers_parts/stores_part.py``, JSON in <FILE>_stores): a mapped file, LMDB and RocksDB (from C++;
apt-get install liblmdb-dev librocksdb-dev) beside the tier, each in a memory group of its own that kills, all with the
same limit: an eighth of the rows' bytes, and 32 MiB for the program. Rows of 16 and of 64 floats with row-wise Adagrad
were written, and written over once, outside the limit, and are not in the page cache. Of a power law of 1.05 the rows
that are outside the best fixed set of an eighth are drawn; what comes and what goes are drawn apart, one row written
for each that is read, in batches of 2,000 distinct rows. A turn ends when what it has written is on the disk and
nothing is compacted any more; turns alternate. ``tiers.over_mmap`` and ``tiers.over_store`` (the faster one of LMDB and
RocksDB) are the tier's rows a second by theirs, of all turns, with the number of threads that is best for them, the
less over both widths; the interval is by drawing turns again. ``cpu_us`` is of a row that is read and one that is
written, of the process: what the kernel writes behind for a mapped file and LMDB is not in it.

Part ``runs`` (``tiers_parts/runs_part.py``, JSON in <FILE>_runs): runs with store ``disk`` beside the same run with
``dram``, processes of their own that take turns of some steps. Workloads of ``speed_parts/workload.py``: ``w1-own``, W1
with its data's own cardinalities, and ``w2-1m``, W2 with tables of a million rows, by power laws of 1.05 and 1.2; no
batch comes twice. The memory group of a run with ``disk`` has what that with ``dram`` takes at its peak, less rows and
states, plus ``store.memory_bytes``, the share (``--budgets``) of the bytes of rows and states. Before it steps, every
row is written, as many are written over as there are, drawn as they leave a cache, and the cache is filled with what
would be in it (``tiers_parts/settled.py``); that misses do not fall any more is in the table (``miss_drift``: those of
the second half of the turns by those of the first). Both have the same losses, or the benchmark fails. ``--slack``
makes the limit higher by so many megabytes (``slack_mb``), and claims then say so. ``tiers.speed.w1_own.<exponent>`` is
samples/s of ``disk`` by those of ``dram``, by turns, at the first budget and the best number of steps ahead.
``tiers.of_bound.w2_1m.<exponent>`` is the larger of a step in memory, and the reads of the best fixed set of the whole
budget (by the law) at the disk's rate, by a step of ``disk``. The disk's rate in a turn (``disk_per_s``) is fio's, or
the rows a second that a run with ``disk`` has read in it where that is more, for a disk that others share may be slower
while fio reads than in the steps: so a share is above 1 only where a step in memory is the slower one.
``per_s_for_0.9`` is the rate at which the reads of the best fixed set would take a step of 1 / 0.9 of that in memory.
``best_fixed_index_on_disk`` is what a step would read, by the law, if the index were on the disk: two pages for each
row, of which the best fixed set of as many lacks as the memory then has room for. ``reads_over_best`` is rows read a
step by those of the best fixed set of as many rows as the caches have. ``waited_ms`` is how long a step waited for
rows, and ``written_of_changed`` bytes written by those of rows handed over, in the turns. ``idle_ms``,
``interrupts_ms`` and ``stolen_ms`` are of all cores of the host, in a step. Laws, budgets, steps ahead, ranks and turns
are options: ``--laws``, ``--budgets``, ``--ahead``, ``--ranks``, ``--turns``. With ``--evict lfu_aging,lru`` runs in
which the least recently used rows go are beside those of the store, which claims are of.

Part ``drift`` (``tiers_parts/drift_part.py``, JSON in <FILE>_drift; hours, so only where it is named): 26 tables of 4
million rows of 64 floats, 27 GB, in 2 GB of memory, all of them written; steps of the store alone, of 2,048 samples
with one id a table by a power law of 1.05, until as many rows have come and gone as there are. fio reads behind each
turn. ``tiers.drift`` is rows read a second by fio's rate, of the last turns by those of the first ones in which the
cache was full, and of the disk as much was taken as at the end.

Part ``clock`` (``tiers_parts/clock_part.py``, JSON in <FILE>_clock; 25 minutes): five mixes of tables on the disk as it
is and with 20,000 and 5,000 reads a second. ``tiers.prediction_error`` is the largest part by which the time of a step
that ``hpcrec config check`` would predict differs from the clock's, all tables alike; how far off it is with tables
placed is in the table. ``tiers.placed_over_alike.time`` is the time of a step with those tables whole that ``hpcrec
config check`` names, by that with all alike: the largest over mixes and disks. A mix of which it names none is left
out.
"""

import argparse
import json
import tempfile
from pathlib import Path

from _report import asked, options
from tiers_parts import checkpoint_part, clock_part, disk_part, drift_part, memory_of, runs_part, stays, stores_part

PARTS = {
    "disk": disk_part.disk,
    "stays": stays.stays,
    "checkpoint": checkpoint_part.checkpoints,
    "stores": stores_part.stores,
    "runs": runs_part.runs,
    "drift": drift_part.drift,
    "clock": clock_part.clock,
}
SHORT = ("disk", "stays", "checkpoint", "stores", "runs")  # minutes each


def main() -> None:
    parser = options(__doc__, tuple(PARTS))
    parser.add_argument("--folder", type=Path, help="on the disk that is measured; a temporary one by default")
    parser.add_argument("--pairs", type=Path, help="part stays: a CSV file of MovieLens' users and items, one a line")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    stores_part.add_options(parser)
    runs_part.add_options(parser)
    arguments = parser.parse_args()
    if not arguments.quick and arguments.parts is None:
        arguments.parts = ",".join(SHORT)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        if arguments.memory_of is not None:
            print(json.dumps(memory_of.here(Path(name), arguments.memory_of)))
            return
        for part, path in asked(parser, arguments, tuple(PARTS)):
            PARTS[part](Path(name), path, arguments)


if __name__ == "__main__":
    main()
