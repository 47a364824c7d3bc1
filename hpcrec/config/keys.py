"""Every key that a run can be told, in one place: types, defaults, limits, and which do not go together.

A configuration is one TOML file plus ``--set a.b=value``, checked as a whole before any communication. The text under
each field is its documentation (docs/configuration.md is written from it), which is why this file is long. Knows
nothing of data sets, models or ranks: what only they can tell (a feature's name, a model's options, the number of
ranks) is checked where they are.
"""

import dataclasses
import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from hpcrec import toml
from hpcrec.errors import ConfigError
from hpcrec.exchange.forms import FORMS, settable
from hpcrec.policy import POLICIES
from hpcrec.training import metric_names
from hpcrec.types import OptimizerSpec
from hpcrec.units import BYTES_PATTERN, MiB

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
Flag = Annotated[bool, Field(strict=True)]
Text = Annotated[str, Field(strict=True, min_length=1)]
# A line break in a path would be a line of a job's script.
Place = Annotated[
    str, Field(strict=True, min_length=1, pattern=r"^[^\x00-\x1f\x7f]*$", description="without control characters")
]
Count = Annotated[int, Field(strict=True, ge=0)]
Positive = Annotated[int, Field(strict=True, ge=1)]
_FIRST_AHEAD, _MOST_AHEAD = 1, 4  # steps that ids are routed ahead where it is not said
_MOST_STALE = 1000  # updates that hybrid may leave out: memory grows with them
Amount = Annotated[float, Field(strict=True, ge=0)]
AboveZero = Annotated[float, Field(strict=True, gt=0)]
Bytes = Annotated[
    str, Field(strict=True, pattern=BYTES_PATTERN, description="a number with a unit of bytes, such as 64 MiB or 2 GB")
]
Share = Annotated[float, Field(strict=True, ge=0, le=1)]
Decay = Annotated[float, Field(strict=True, ge=0, lt=1)]


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Data sets, and how they are read. Paths are relative to the working directory."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    train: Place
    """Data set to train on: an HDF5 file, or the index file of several."""
    validation: Place | None = None
    """Data set for evaluation during and after training; none by default."""
    test: Place | None = None
    """Data set evaluated once, after training; none by default."""
    features: tuple[Text, ...] = ()
    """Categorical features to use, in this order; all of the data set's when empty."""
    chunk: Positive = 4096
    """Samples that are read together: an epoch permutes chunks, then samples within a window of chunks."""
    window: Positive = 16
    """Chunks in a window, in memory at once where data are shuffled. Larger mixes better and takes more memory."""
    shuffle: Flag = True
    """Whether samples are permuted each epoch; otherwise every epoch is in the order of the file."""
    prefetch: Count = 2
    """Batches read ahead by a thread; 0 reads each in its step."""
    deal: Literal["order", "affinity"] = "order"
    """Which samples of a training batch a dense rank takes: a contiguous part of it, or those whose rows it owns or was
    last given (docs/consistency.md). The batch, and its result but for the order of sums, are the same."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The model, by name."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    name: Text = "dlrm"
    """A model of the zoo, or your own as package.module:attribute."""
    folder: Place | None = None
    """Where a module of your own is looked for first; the folder of the configuration file by default."""
    width: Positive = 16
    """Columns of an embedding row."""
    pooling: dict[str, Literal["sum", "mean", "max"]] = field(default_factory=dict)
    """How the ids of a feature become one vector; sum where a feature is not named. No max of weighted ids."""
    options: dict[str, Any] = field(default_factory=dict)
    """Handed to the model's builder, which checks them."""

    @property
    def code(self) -> list[str]:
        """Import paths of a user's own that building the model would run: its own, or that of a tower's module."""
        return [path for path in (self.name, self.options.get("module")) if isinstance(path, str) and ":" in path]


@dataclass(frozen=True, kw_only=True)
class RowOptimizer:
    """How rows learn. A table's own takes what it leaves out from embedding.optimizer, if the names are equal."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    name: Literal["sgd", "adagrad", "rowwise_adagrad", "adam"] = "rowwise_adagrad"
    """Row-wise Adagrad keeps one number a row, Adagrad one a weight, Adam two a weight, SGD none."""
    lr: AboveZero = 0.02
    """Learning rate, before the schedule."""
    eps: Amount = 1e-8
    """Added to the square root that is divided by. Not for sgd."""
    beta1: Decay = 0.9
    """Decay of the first moment, a step. Only for adam."""
    beta2: Decay = 0.999
    """Decay of the second moment, a step. Only for adam."""
    initial_accumulator: Amount = 0.0
    """What sums of squares start from. Only for adagrad and rowwise_adagrad."""
    bound: AboveZero | None = None
    """The largest magnitude of a weight after an update; none by default. Rows of halves may pass it by a rounding."""

    def spec(self) -> OptimizerSpec:
        """The same as what tables take."""
        return OptimizerSpec(**{key: value for key, value in toml.plain(self).items() if value is not None})


@dataclass(frozen=True, kw_only=True)
class DynamicConfig:
    """Rows for ids that nobody has declared: any 64-bit id gets a row when it is first let in. See docs/dynamic.md."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    capacity: Positive
    """Most rows, over all owners, each of which has its share of them. Only rows in use take memory."""
    evict: Literal["lru", "lfu"] | None = None
    """Which id loses its row to a new one where all are given: the least recently used (lru), or the one that fewest
    steps have used (lfu). By default none does: ids that come later get no row."""
    admit_from: Annotated[int, Field(strict=True, ge=1, lt=2**63)] = 1
    """Steps that have to ask for an id: it gets a row in the last of them, and is answered with zeros before."""
    pending: Annotated[int, Field(strict=True, ge=1, lt=2**32)] = 1 << 20
    """Ids without a row of which such steps are counted, over all owners. Only with admit_from above 1."""
    admit_probability: Annotated[float, Field(strict=True, gt=0, le=1)] = 1.0
    """Probability with which a step that asks for an id without a row gives it one. Not with admit_from above 1."""


@dataclass(frozen=True, kw_only=True)
class TableConfig:
    """One table. It has the name of its feature; a model may name further tables of its own."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    rows: Positive | None = None
    """Rows; the feature's cardinality by default, where it is declared."""
    hashed: Flag = False
    """Whether ids are hashed into the rows; otherwise an id is its row. Takes rows."""
    dynamic: DynamicConfig | None = None
    """Rows are given to ids as they come, instead of declared; by default they are declared."""
    optimizer: RowOptimizer | None = None
    """This table's own; embedding.optimizer by default."""
    init_scale: Amount | None = None
    """This table's own; embedding.init_scale by default."""
    init_decay: Amount | None = None
    """This table's own; embedding.init_decay by default."""
    shard: Literal["auto", "table", "row", "host", "column", "replicate"] = "auto"
    """One owner holds it whole (table), rows or columns are dealt to owners, rows to those of one host (host), or every
    dense rank holds it whole (replicate). auto weighs rows and lookups against an owner's fair share; where hosts add
    vectors (exchange.path, exchange.reduce) it deals rows of bags with more than one id in the mean within a host, as
    far as that is even."""
    owners: tuple[Count, ...] | None = None
    """Numbers of the owners (counted among owners, from 0) that hold it. Only with shard table, row or column."""
    parts: Positive | None = None
    """Owners that it is dealt to; all by default. Only with shard row or column, and without owners."""


@dataclass(frozen=True, kw_only=True)
class EmbeddingConfig:
    """Embedding tables. Their rows start from train.seed, the table's name and the id alone."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    optimizer: RowOptimizer = field(default_factory=RowOptimizer)
    """How rows learn."""
    init_scale: Amount = 0.01
    """Rows start uniform in [-init_scale, init_scale)."""
    init_decay: Amount = 0.0
    """What rows start as is divided by c ** init_decay in column c, counted from 1. Above 0, the first columns of all
    tables are the largest: thresholded vectors then have columns in common (docs/dct.md)."""
    tables: dict[str, TableConfig] = field(default_factory=dict)
    """What differs from the above, by table."""
    share: dict[str, Text] = field(default_factory=dict)
    """Feature = the feature whose table it reads instead of one of its own."""

    def table_of(self, feature: str) -> str:
        """Name of the table that a feature reads."""
        while feature in self.share:
            feature = self.share[feature]
        return feature

    def table(self, name: str) -> TableConfig:
        """A table's settings with optimizer, init_scale and init_decay filled in."""
        own = self.tables.get(name, TableConfig())
        scale = self.init_scale if own.init_scale is None else own.init_scale
        decay = self.init_decay if own.init_decay is None else own.init_decay
        optimizer = own.optimizer or self.optimizer
        return dataclasses.replace(own, optimizer=optimizer, init_scale=scale, init_decay=decay)


@dataclass(frozen=True, kw_only=True)
class TopologyConfig:
    """Which ranks hold rows (owners) and which run the model (dense ranks)."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    mode: Literal["fused", "split"] = "fused"
    """fused: every rank is both. split: some ranks own rows, others are dense; half and half unless told below."""
    owners: Positive | tuple[Count, ...] | None = None
    """Number of owners, taken from the first ranks, or a list of ranks. Only with split."""
    dense: Positive | tuple[Count, ...] | None = None
    """Number of dense ranks, taken from the last ranks, or a list of ranks. Only with split."""
    owners_per_host: Positive | None = None
    """Owners on each host, its first ranks. Only with split, instead of owners."""
    dense_per_host: Positive | None = None
    """Dense ranks on each host, its last ranks. Only with split, instead of dense."""
    places: Positive | None = None
    """So many ranks of a host at a time, in order, are taken for a host of their own; the last has those that are left.
    Levels, sums, placement, shared memory and counts of bytes go by them, and owners_per_host and dense_per_host. A
    number as large as a host leaves it whole. Default: hosts as they are (docs/exchange.md)."""
    owner_threads: Count = 0
    """Threads of an owner's kernels; 0 takes the cores that the rank may use. Routing runs beside, on as many."""
    dense_threads: Count = 0
    """Threads of a dense rank; 0 takes the cores that the rank may use. Routing runs beside, on as many."""


@dataclass(frozen=True, kw_only=True)
class ThresholdConfig:
    """Thresholding of pooled vectors and their gradients (docs/dct.md). Only with exchange.codec = "dct"."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    density: Annotated[float, Field(strict=True, gt=0, le=1)] = 0.05
    """Share of the elements of a feature's vectors that cross, and whose gradients come back."""
    threshold: Literal["vector", "feature"] = "vector"
    """vector: each vector has its own, so that of all of them as many elements cross: density times the width, rounded,
    and one at least. feature: one for all vectors of a feature, found anew now and then."""
    every: Positive = 1000
    """Steps after which thresholds of features are found anew. Where more than twice the density passes, they are at
    once."""
    values: Literal["fp32", "bf16", "fp16"] = "fp16"
    """How those elements are written, and all of what is not thresholded; see exchange.codec."""
    evaluate: Flag = True
    """Whether evaluations and predictions see thresholded vectors too, as training does, or whole ones."""


@dataclass(frozen=True, kw_only=True)
class ExchangeConfig:
    """What crosses between dense ranks and owners."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    form: Text = "pooled"
    """pooled: owners send one vector a sample and feature. rows: owners send each distinct row once. partial: owners
    compute what operators can be computed of their rows alone, and send one result a sample and operator; else as
    pooled. Towers are computed by owners of one host, to which their tables go (docs/towers.md). auto: of each feature
    the form by which the fewest bytes cross, counted on the first training batches; towers by owners of one host where
    that is fewer seconds a step, by prices that are measured. With policy.name = "cached" features have the form
    cached, and with auto those have another for which it is predicted to be fewer bytes."""
    at_place: Flag = True
    """Whether owners of a host may compute towers, by form partial or auto; false leaves towers to dense ranks. Changes
    no result beyond the order of sums; but with codec dct dense ranks' vectors are thresholded and what towers give is
    not, and a dynamic table that becomes full has other ids, where it is dealt to fewer owners."""
    codec: Literal["fp32", "bf16", "fp16", "dct"] = "fp32"
    """How values and gradients are written on the wire. fp32: as they are, in float64 runs as float64. bf16: their
    upper halves. fp16: in blocks of 128, by the largest of each, as fp16; no copies of tables. dct: of pooled vectors
    only elements of large magnitude, and gradients of just those; the rest counts as zero (docs/dct.md). Not for form
    rows."""
    dct: ThresholdConfig = field(default_factory=ThresholdConfig)
    """How vectors are thresholded."""
    forms: dict[str, Text] = field(default_factory=dict)
    """Form of single features; see exchange.form."""
    ids: Literal["routed", "read"] = "routed"
    """How ids reach the owners. routed: dense ranks send them. read: owners read the columns of their features from the
    data set, and no id crosses. Changes no result."""
    reduce: Literal["auto", "dense", "host", "owners"] = "auto"
    """Who adds partial results (form partial) that cross to another host. dense: the dense rank that wants them. host:
    the owners of a host first, so that one message leaves it. owners: then one of them, of all hosts. auto: the
    cheapest by formula (docs/exchange.md). With path levels all but dense also have the owners of a host add vectors of
    bags that are dealt by rows, the dense ranks of a host ask for rows together (form rows), and tables dealt within
    hosts; dense has none of these. Changes no result beyond the order of sums, but that with codec dct elements are
    chosen of sums."""
    replicate_rows: Count = 0
    """Tables of at most so many rows, with shard auto, are replicated on every dense rank; 0: none."""
    auto_steps: Positive = 4
    """Batches on which form auto counts what each form would cost."""
    auto_copies: Count = 16 * MiB
    """Memory, in bytes a dense rank, of the copies that form auto may make of tables with shard auto; 0: none."""
    prefetch: Count | None = None
    """Steps that ids are routed ahead by a thread; 0 routes them in their step. Changes no result. By default 1, and
    where rows are on a disk 1 to 4, as many as steps wait less for rows with (docs/tiers.md)."""
    windows: Flag = True
    """Ranks of one host pass ids and vectors through shared memory; false sends messages. Changes no result."""
    path: Literal["flat", "levels", "auto"] = "flat"
    """How messages cross between hosts. flat: each rank sends its own to every rank of the others. levels: ranks of a
    host put small ones together, so that between two hosts one message crosses each way, by ranks that share the other
    hosts among them, and of larger ones one of each rank where that is many fewer; vectors of bags are added before
    they cross, rows asked for once a host, and tables dealt within hosts (docs/exchange.md). It needs exchange.windows.
    auto: that of fewest seconds a step, of flat, flat with tables dealt within hosts, and levels, with forms that are
    auto, by bytes that are counted on the first exchange.auto_steps batches and prices that are measured; a run that
    goes on has what its checkpoint says. Changes no result beyond the order of sums; but with levels no codec writes
    what stays inside a host, unless a table has copies (replicate), with codec dct elements are chosen of sums, and a
    dynamic table that becomes full has other ids, where it is dealt to fewer owners."""
    piece_bytes: Count = 128 << 10
    """Values and gradients cross between hosts in pieces of so many bytes, 6 under way at once of a rank, so that sums
    of dense gradients need not wait behind all of them; 0: in whole messages. Only where steps are in flight: with
    policy.name hybrid or ahead; and not with exchange.path = "levels", by which messages go whole."""
    gpu_messages: Literal["auto", "on", "off"] = "auto"
    """Whether values and gradients cross from GPU to GPU by MPI, or are copied to and from the host's memory. auto:
    where the MPI library says that it takes a GPU's memory. on: without asking it. Not with codec dct. Changes no
    result."""

    @property
    def may_level(self) -> bool:
        """Whether messages may go by levels: what is asked for, or may be chosen."""
        return self.path == "levels" or (self.path == "auto" and self.windows and self.gpu_messages != "on")

    @property
    def chooses_forms(self) -> bool:
        """Whether forms of features are chosen before the first step."""
        return "auto" in (self.form, *self.forms.values())

    @property
    def chooses(self) -> bool:
        """Whether they are, or the path is."""
        return self.path == "auto" or self.chooses_forms

    @property
    def first_ahead(self) -> int:
        """Steps that ids are routed ahead when a run begins."""
        return _FIRST_AHEAD if self.prefetch is None else self.prefetch

    @property
    def most_ahead(self) -> int:
        """The same at any time, at most."""
        return _MOST_AHEAD if self.prefetch is None else self.prefetch


@dataclass(frozen=True, kw_only=True)
class PolicyConfig:
    """When values and gradients cross (docs/consistency.md)."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    name: Text = "sync"
    """sync: every step reads rows after the last step's update. hybrid: up to policy.staleness updates earlier, so that
    reads and updates overlap with the model; dense parameters are always current. ahead: rows of the next step that
    this one does not change are read, and rows that the next one does not read updated, while it is computed, with the
    result of sync. It suits exchange.form = "rows" and bags of one id. cached: dense ranks keep copies of rows, of
    every feature without a form of its own, which lack a bounded number of updates."""
    staleness: Annotated[int, Field(strict=True, ge=0, le=1_000_000)] | Literal["auto"] | None = None
    """With hybrid: updates that may be missing in the rows that a step reads; 1 by default, 0 is sync. With 1 the
    exchange and the model overlap, with 2 values and gradients as well, more only absorbs differences between steps.
    Memory of steps in flight grows with it. auto: from 1 on, the smallest with which dense ranks do not wait for rows,
    or beyond which they wait as long, found in the first steps; at most 10, for which memory is taken. With cached:
    gradients of a row, one a dense rank and step, that a copy may lack of what its owner has, and that a dense rank may
    hold back; 10 by default, 0 is sync. Above 0 not with optimizer adam."""
    capacity: Positive | Annotated[float, Field(strict=True, gt=0, le=1)] | Bytes | None = None
    """Rows of which a dense rank keeps copies, of all tables of a width; as a number with a point, the share of them
    (0.1 by default); as a text with a unit ("64 MiB", "2 GB"), the bytes that all copies of a dense rank take, with
    what is counted of them and where they are found, without messages. Only with cached."""
    rule: Literal["sum", "max"] | None = None
    """How it is counted what a copy lacks. sum, the default: every gradient that others have pushed since, so that a
    read lacks at most policy.staleness of each dense rank. max, as HET has it: gradients that several ranks pushed of
    copies of one age count once, and a copy is sent anew after its own push; a read lacks at most three times
    policy.staleness of each other dense rank. Where it was counted it moves more rows. Only with cached."""
    cache: Literal["lru", "lfu", "lightlfu", "known"] | None = None
    """Whose copy goes where there is no more room. lru, the default: the row that was used least recently. lfu: the
    one that was used in the fewest steps since it is there. lightlfu: the same by counts of at most 15 that are halved
    after every 10 uses a copy, so that rows that were popular once go. known: the one that the next policy.window
    steps do not ask for, the least recently used of these first, or else the one that they ask for last; a row that
    they ask for no sooner is not kept at all. Not with a form auto. Only with cached."""
    window: Annotated[int, Field(strict=True, ge=1, le=1_000_000)] | None = None
    """With policy.cache = "known": steps whose rows are known before they come, for which a dense rank reads and deals
    its parts of so many batches ahead, and keeps them (docs/memory.md); 100 by default. At the end of a run there are
    fewer. Only with cached."""
    max_age: Positive | None = None
    """Steps after which a copy that is used is asked for anew, and gradients that are held back are pushed. By default
    only counts of gradients decide. Only with cached."""
    lookahead: Annotated[int, Field(strict=True, ge=0, le=_MOST_STALE)] | None = None
    """Steps by which owners are asked for rows ahead, and answer, while models compute; 0 by default. A copy may lack
    as many gradients more of each other dense rank. Evaluations are drain points. Only with cached."""


@dataclass(frozen=True, kw_only=True)
class StoreConfig:
    """Where rows live."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    name: Literal["dram", "gpu", "disk"] = "dram"
    """dram: main memory of their owner. gpu: memory of its GPU, which then does the owner's work. Ranks of a host are
    given its GPUs in turn, so that several may share one (docs/gpu.md). disk: a disk of its host, with those that steps
    want in main memory (docs/tiers.md)."""
    path: Text | None = None
    """A folder on each host's own disk, which its ranks share: each has one of its own in it, which goes when the run
    ends. Only with disk, which needs it."""
    device: Literal["cuda", "emulated"] = "cuda"
    """cuda: a GPU. emulated: the same kernels on the host, for tests; a hundred times slower. Only with gpu, or
    gpu_bytes."""
    memory_bytes: Positive | None = None
    """Memory for rows and optimizer state: of a rank's GPU, or of an owner whose rows are on a disk. Where they take
    more, they are in main memory, or on the disk, and some are cached: with gpu those that were used last, with disk
    those that are asked for most often. With gpu by default all of them have to fit; disk needs it. What is known of
    rows on a disk is counted in it. Only with gpu and disk."""
    whole: tuple[Text, ...] = ()
    """Tables whose rows are all in that memory, and never on the disk; others have what is left of it. hpcrec config
    check says which ones should be. Only with disk."""
    io: Literal["auto", "io_uring", "threads", "mapped"] = "auto"
    """How the disk is read: by io_uring; by threads, each with one request at a time; where files are mapped, for
    memory that keeps what is in it; auto: the first where the system lets it be had, else threads. Only with disk."""
    window: Annotated[int, Field(strict=True, ge=0, le=10_000)] = 0
    """Steps to come whose ids owners read, at most, to keep rows that come soon: two more in each step, until their
    rows fill nine tenths of the memory. Worth it where the disk is what a step waits for: ids are read twice. Changes
    no result. Only with disk, and exchange.ids = "read"."""
    daily_bytes: Positive | None = None
    """Bytes that each owner may write to its disk in a day, so that the drive lasts; by default as many as come. Where
    it writes more, rows wait, and steps for them: no result changes. Five minutes' worth may be written at once. Only
    with disk."""
    gpu_bytes: Positive | None = None
    """Memory of a rank's GPU for the rows that steps work on: those that were used last, of those that memory_bytes
    keeps in main memory, so that there are three tiers. By default steps work in main memory. Only with disk."""

    @property
    def on_gpu(self) -> bool:
        """Whether steps work on rows in a GPU's memory."""
        return self.name == "gpu" or self.gpu_bytes is not None


@dataclass(frozen=True, kw_only=True)
class DenseOptimizer:
    """How the model's dense parameters learn."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    name: Text = "Adam"
    """A class of torch.optim, by its name there: Adam, AdamW, SGD, Adagrad, ..."""
    lr: AboveZero = 1e-3
    """Learning rate, before the schedule."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further arguments of that class, such as betas or weight_decay; it checks them."""


@dataclass(frozen=True, kw_only=True)
class DctConfig:
    """Thresholding of dense gradients (docs/dct.md). Only with dense.compression = "dct"."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    density: Annotated[float, Field(strict=True, gt=0, le=1)] = 0.005
    """Share of a parameter's entries that thresholds are found for; 1 sends all, as without compression. Between, what
    passes varies, up to twice as much; mostly it is several times less, as gradients fall."""
    every: Positive = 1000
    """Steps after which thresholds are found anew. Where more than twice the density passes, they are at once."""
    warmup_steps: Count = 0
    """First steps, in which gradients are summed whole."""
    values: Literal["fp32", "bf16", "fp16"] = "fp16"
    """How entries are written: fp32 as they are, bf16 in two bytes, fp16 in two bytes with a scale for each 128. What
    that loses is sent later. With train.dtype = "float64" only fp32, which then is float64."""
    collective: Literal["auto", "allgather", "reduce_scatter"] = "auto"
    """allgather: every rank gets the entries of all. reduce_scatter: one rank adds those of a range, thresholds the sum
    and hands it on. auto: allgather up to 4 dense ranks, else reduce_scatter."""


@dataclass(frozen=True, kw_only=True)
class CodistillationConfig:
    """Groups of dense ranks that learn from each other's predictions (docs/codistillation.md)."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    groups: Positive = 1
    """Equal groups that dense ranks are split into, each with dense parameters of its own and its part of the data set
    and of each batch; 1: none of this."""
    weight: Amount = 1.0
    """Weight of the term that pulls predictions towards those of the other groups; 0 leaves it out."""
    burn_in_steps: Count = 1000
    """First steps, in which groups do not learn from each other."""
    every: Positive = 50
    """Steps between two exchanges of dense parameters, by which the other groups' predictions are made meanwhile."""
    share_embeddings: Flag = True
    """Whether all groups train one set of embedding tables, or each a set of its own: then they share nothing but their
    predictions, for as many times the memory of tables as there are groups, and as many times the lookups after the
    burn-in."""


@dataclass(frozen=True, kw_only=True)
class DenseConfig:
    """Dense parameters: their optimizer, and how their gradients are summed over dense ranks."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    reducer: Literal["horovod", "mpi", "direct"] | None = None
    """Who sums gradients: Horovod; mpi, MPI alone; direct, two exchanges of MPI, about half the time of its nonblocking
    sum where every dense rank has a host of its own, at 100 Mbit/s, and more bytes between hosts where several share
    one. Unset: Horovod, or mpi where it is not installed, which a line says. Which of them sums decides the last bits
    of a run; where ranks are does not. One dense rank needs none of them."""
    optimizer: DenseOptimizer = field(default_factory=DenseOptimizer)
    """How dense parameters learn."""
    clip_norm: AboveZero | None = None
    """Largest norm of the whole dense gradient, which is scaled down to it; no limit by default."""
    device: Literal["cpu", "cuda", "emulated"] = "cpu"
    """Where dense ranks compute the model. cuda: on the GPU of their place on the host, of which several ranks may
    share one. emulated: on the host, but to torch another device; for tests."""
    autocast: Literal["none", "bf16"] = "none"
    """bf16: matrix products in bfloat16; parameters, gradients, sums and the loss stay float32 (docs/gpu.md)."""
    bucket_bytes: Positive = MiB
    """Bytes of gradients that are summed in one call."""
    compression: Literal["none", "dct"] = "none"
    """none: gradients are summed whole. dct: only entries above a threshold are, what is left is added to the next
    step's gradient."""
    dct: DctConfig = field(default_factory=DctConfig)
    """How gradients are thresholded."""
    codistillation: CodistillationConfig = field(default_factory=CodistillationConfig)
    """Groups that learn from each other."""


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """What learning rates are multiplied by, step for step: a linear warm-up, then a constant or a decay."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    kind: Literal["constant", "linear", "cosine", "polynomial", "step"] = "constant"
    """The decay: none, along a line, a cosine or a power, or a fall every decay_steps."""
    warmup_steps: Count = 0
    """Steps in which the multiplier rises linearly to 1."""
    decay_start: Count | None = None
    """Step at which the decay starts; where the warm-up ends by default. Not for constant."""
    decay_steps: Positive | None = None
    """Steps from there until the multiplier is final; the rest of the run by default. For step: those between two
    falls, which must be given. Not for constant."""
    final: Share = 0.0
    """Multiplier that the decay ends at. Not for constant."""
    power: AboveZero = 2.0
    """Exponent. Only for polynomial."""
    factor: Annotated[float, Field(strict=True, gt=0, lt=1)] = 0.1
    """What a fall multiplies by. Only for step."""
    apply_to_embeddings: Flag = True
    """Whether rows follow the schedule too, or keep their learning rate."""


@dataclass(frozen=True, kw_only=True)
class EarlyStopConfig:
    """Ends training when evaluations of the validation data stop improving. Absent: never."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    metric: Text = "auc"
    """What must improve: one of evaluation.metrics, or another that it allows, but for calibration; it is computed then
    too. Also what the best checkpoint is best in."""
    higher_is_better: Flag | None = None
    """Whether a metric of your own improves by rising. Required for those, and only for those: of the others it is
    known."""
    patience: Positive = 3
    """Evaluations in a row without improvement that end training."""
    min_delta: Amount = 0.0
    """Improvements up to this do not count."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How long to train, in which steps, and how often to look."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    epochs: Positive = 1
    """Passes over the training data. Not used where train.steps is set."""
    steps: Positive | None = None
    """Steps of the run, instead of train.epochs: as many epochs, or as little of one, as they take."""
    batch_size: Positive = 2048
    """Samples of a step, over all dense ranks."""
    eval_every: Count = 0
    """Steps between evaluations of the validation data; 0: only after training."""
    eval_batches: Positive | None = None
    """Batches of an evaluation; the whole data set by default."""
    early_stop: EarlyStopConfig | None = None
    """When to end early; never by default."""
    seed: Count = 1
    """Seed of rows, dense parameters and the order of samples."""
    dtype: Literal["float32", "float64"] = "float32"
    """Arithmetic of rows, dense parameters and wire."""
    nonfinite: Literal["stop", "skip", "drop"] = "stop"
    """What to do when the loss or a gradient is not finite. stop: an error that names the batch and the ranges of its
    inputs. skip: the batch changes nothing, and is counted as skipped_steps. drop: where just gradients of features'
    vectors are not, those of the feature are zero on that rank, and counted as dropped_features; else as skip."""
    nonfinite_limit: Positive = 10
    """Batches in a row that train.nonfinite = "skip" (or drop) leaves out before the run stops all the same."""
    log_every: Positive = 50
    """Steps between two lines of metrics.jsonl."""

    @property
    def best_metric(self) -> str:
        """What the best checkpoint is best in."""
        return self.early_stop.metric if self.early_stop else "auc"

    @property
    def best_rises(self) -> bool:
        """Whether that is better where it is higher."""
        kind = metric_names.kind_of(self.best_metric)
        return bool(kind.rises if kind is not None else self.early_stop and self.early_stop.higher_is_better)


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """What evaluations measure (docs/metrics.md)."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    metrics: tuple[Text, ...] = metric_names.DEFAULT
    """Of auc, pr_auc, logloss, normalized_entropy, rmse, calibration (also by decile of the prediction), and by /group
    of the data gauc, mrr, ndcg@K and recall@K; or your own as package.module:function, which is looked for as
    model.name is. What the best checkpoint is best in is measured besides."""
    by: tuple[Text, ...] = ()
    """Features that the model reads, by whose values calibration is told apart."""


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When the run is saved, and what it starts from."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    every: Count = 0
    """Steps between checkpoints; 0: only after training."""
    background: Flag = True
    """Whether training goes on while a checkpoint is written; otherwise it waits for it. Takes memory for rows that
    change meanwhile (docs/checkpoint.md), and MPI_THREAD_MULTIPLE."""
    full_every: Positive = 1
    """Every so many-th checkpoint has all rows; those between have the rows that have changed since, and need that one
    besides. Dynamic tables are always whole."""
    rows: Literal["auto", "links", "hdf5"] = "auto"
    """How rows of store.name = disk are in a checkpoint. links: as links to the store's files, or copies of those that
    no earlier checkpoint has where run.folder is on another file system than store.path. hdf5: read and written out, as
    those of other stores. auto: links, unless full_every is above 1."""
    keep: Positive = 2
    """Newest checkpoints that are kept, and what they need."""
    keep_bytes: Positive | None = None
    """Bytes that the run's checkpoints may hold of the disk: where those of keep would hold more, older ones go sooner.
    Files that several have (links of store.name = "disk") count once, and also where the rows have them too. The newest
    stays, and the best."""
    keep_best: Flag | None = None
    """Whether the checkpoint with the best validation is kept besides; by default where there is validation data."""
    resume: Place = "auto"
    """auto: from the run folder's newest checkpoint, if there is one. never: from the start. Else: path of a
    checkpoint folder to start from. A job that Slurm has requeued goes on from what it has saved, under all of them."""

    def links_rows(self, store: str) -> bool:
        """Whether rows of a store of this name are linked."""
        return self.rows == "links" or (self.rows == "auto" and store == "disk" and self.full_every == 1)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """What the run writes."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    folder: Place
    """Folder for config.toml, metrics.jsonl, summary.json, report.html, tensorboard/ and checkpoints/; made if need
    be."""
    tensorboard: Flag = True
    """Whether tensorboard/ is written."""
    progress: Flag = True
    """Whether progress is shown on stderr: a bar that moves on a terminal, also under ``hpcrec run``, and under an
    mpirun on the host of rank 0; elsewhere a line every 30 s."""
    check_staleness: Flag = False
    """Whether every training read of a copy is held to its bound by counts apart from those that decide what is sent,
    which also see what dense ranks hold back; a read that breaks it ends the run. Takes 24 bytes a row and dense rank
    at owners, and 24 more a row. Only with policy.name = cached, not with dynamic tables."""
    shadow_reads: Count = 0
    """Of so many reads of copies one is compared with its owner's row, which crosses for it (tag shadow): how far they
    are apart is in metrics.jsonl. 0: none. Only with policy.name = cached."""
    stall_report_s: Amount = 60.0
    """Seconds that a rank waits in one collective before it is reported who waits for whom; 0: never."""
    stall_abort_s: Amount = 600.0
    """Seconds of such a wait after which the run is ended, with stacks; 0: never. More than what rank 0 may need to
    write and remove checkpoints, for which the others wait."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """A whole configuration."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    data: DataConfig
    model: ModelConfig = field(default_factory=ModelConfig)
    embedding: EmbeddingConfig = field(default_factory=EmbeddingConfig)
    topology: TopologyConfig = field(default_factory=TopologyConfig)
    exchange: ExchangeConfig = field(default_factory=ExchangeConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    store: StoreConfig = field(default_factory=StoreConfig)
    dense: DenseConfig = field(default_factory=DenseConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    run: RunConfig


def load_config(
    path: Path | str,
    overrides: Sequence[str] = (),
    *,
    recipe: Mapping[str, Mapping[str, Any]] | None = None,
    recipe_source: str = "",
) -> Config:
    """The configuration in a TOML file, with ``section.key=value`` overrides put in, and each ``Unset`` key taken out.

    Parameters
    ----------
    path : Path
    overrides : sequence of str
    recipe : mapping, optional
        Keys by section that hold where the file does not say otherwise.
    recipe_source : str
        What messages call it.

    Raises
    ------
    ConfigError
        Naming the file (or the override), the key, what was found, what is allowed and what to change.
    """
    written = toml.read(Path(path))
    of_recipe: dict[toml.Keys, str] = {}
    for section, keys in (recipe or {}).items():
        ours = written.setdefault(section, {})
        for key, value in keys.items() if isinstance(ours, dict) else ():
            if key not in ours:
                ours[key] = value
                of_recipe[section, key] = recipe_source
    mapping, overridden = toml.override(written, overrides)
    sources = {**of_recipe, **overridden}
    config = validate(mapping, str(path), sources)
    if config.model.folder is not None:
        return config
    model = dataclasses.replace(config.model, folder=str(Path(path).parent))
    return dataclasses.replace(config, model=model)


def validate(mapping: Mapping[str, Any], source: str, sources: Mapping[toml.Keys, str] | None = None) -> Config:
    """A mapping as a configuration; ``source`` is what messages call it.

    ``sources`` names the keys that came from elsewhere, by key path.
    """
    sources = sources or {}
    config = toml.check(Config, _tables_filled(mapping), source, sources)
    for key, sentence in _conflicts(config):
        where = toml.source_of(toml.split(key), source, sources)
        raise ConfigError(f"{where}: {key} {sentence}")
    if config.exchange.prefetch is None and config.store.name != "disk":
        config = dataclasses.replace(config, exchange=dataclasses.replace(config.exchange, prefetch=_FIRST_AHEAD))
    if config.checkpoint.keep_best is None:
        best = dataclasses.replace(config.checkpoint, keep_best=config.data.validation is not None)
        config = dataclasses.replace(config, checkpoint=best)
    return config


def to_toml(config: Config) -> str:
    """The whole configuration, defaults included, as TOML that loads to the same."""
    return toml.dump(config)


def with_absolute_paths(config: Config) -> Config:
    """The same with paths that hold in any working directory, as a run folder's config.toml has them."""
    data, model, checkpoint = config.data, config.model, config.checkpoint
    return dataclasses.replace(
        config,
        model=dataclasses.replace(model, folder=model.folder and _absolute(model.folder)),
        data=dataclasses.replace(
            data,
            train=_absolute(data.train),
            validation=data.validation and _absolute(data.validation),
            test=data.test and _absolute(data.test),
        ),
        checkpoint=dataclasses.replace(
            checkpoint,
            resume=checkpoint.resume if checkpoint.resume in ("auto", "never") else _absolute(checkpoint.resume),
        ),
        run=dataclasses.replace(config.run, folder=_absolute(config.run.folder)),
    )


def with_copied_data(config: Config, copies: Sequence[tuple[str, str]]) -> Config:
    """The same with data sets of folders taken from copies of these; ``copies`` are pairs of folder and copy.

    Raises
    ------
    ConfigError
        A folder that no data set is in.
    """
    data = config.data
    paths = {name: getattr(data, name) for name in ("train", "validation", "test") if getattr(data, name)}
    for folder, copy in copies:
        within = [name for name, path in paths.items() if Path(_absolute(path)).parent == Path(folder)]
        if not within:
            folders = ", ".join(dict.fromkeys(str(Path(_absolute(path)).parent) for path in paths.values()))
            raise ConfigError(f"--data-copy {folder}={copy}: no data set is in {folder}. Allowed: {folders}.")
        moved: dict[str, Any] = {name: str(Path(copy) / Path(paths[name]).name) for name in within}
        data = dataclasses.replace(data, **moved)
    return dataclasses.replace(config, data=data)


def _absolute(path: str) -> str:
    return str(Path(path).absolute())


def keys_named(name: str) -> list[str]:
    """Dotted keys whose last part is a name, a few at most: what was meant by who left their section out."""
    return [toml.dotted(keys) for keys in toml.keys_named(Config, name)]


def reference() -> str:
    """docs/configuration.md."""
    return (
        "# Configuration\n\n"
        "One TOML file says what a run does; `--set section.key=value` changes a key for one run, and\n"
        "`--unset section.key` takes one out of the file, so that its default holds (`--set section.key=` makes it an\n"
        "empty text). An unknown key, a wrong type or two keys that do not go together are refused before anything\n"
        "starts. `hpcrec config check FILE` checks a file, its data and its model; `hpcrec config show FILE` prints\n"
        "it with every default. A key without a default may be left out; `<name>` stands for a name of yours.\n\n"
        "This page is written from `hpcrec/config/keys.py`: `hpcrec config reference > docs/configuration.md`.\n"
        + toml.reference(Config)
    )


def _tables_filled(mapping: Mapping[str, Any]) -> Mapping[str, Any]:
    """Tables' optimizers take what they leave out from ``embedding.optimizer``, where both have the same name."""
    embedding = mapping.get("embedding")
    if not isinstance(embedding, dict):
        return mapping
    common, tables = embedding.get("optimizer", {}), embedding.get("tables", {})
    if not isinstance(common, dict) or not isinstance(tables, dict):
        return mapping
    name = common.get("name", RowOptimizer.name)
    filled = {}
    for table, settings in tables.items():
        own = settings.get("optimizer") if isinstance(settings, dict) else None
        if isinstance(own, dict) and own.get("name", name) == name:
            settings = {**settings, "optimizer": {**common, **own}}
        filled[table] = settings
    return {**mapping, "embedding": {**embedding, "tables": filled}}


# ---- what does not go together: (key, the rest of the sentence) ------------------------------------------------------


def _conflicts(config: Config) -> Iterator[tuple[str, str]]:
    yield from _topology_conflicts(config.topology)
    yield from _evaluation_conflicts(config)
    yield from _metric_conflicts(config)
    yield from _embedding_conflicts(config)
    yield from _device_conflicts(config)
    yield from _form_conflicts(config.exchange)
    yield from _feature_conflicts(config)
    yield from _auto_conflicts(config.exchange)
    yield from _threshold_conflicts(config)
    yield from _policy_conflicts(config.policy)
    yield from _cached_conflicts(config)
    if config.policy.name in ("sync", "cached") and config.exchange.piece_bytes != ExchangeConfig.piece_bytes:
        yield (
            "exchange.piece_bytes",
            (
                f"is {config.exchange.piece_bytes}, but policy.name is {config.policy.name!r}, under which nothing "
                "else crosses meanwhile. Remove it, or set policy.name."
            ),
        )
    if config.exchange.codec != "fp32" and config.train.dtype != "float32":
        yield (
            "exchange.codec",
            (
                f"is {config.exchange.codec!r}, but train.dtype is {config.train.dtype!r}, whose values cross as they "
                "are. Set exchange.codec = 'fp32', or train.dtype = 'float32'."
            ),
        )
    yield from _schedule_conflicts(config.schedule)
    yield from _compression_conflicts(config)
    yield from _codistillation_conflicts(config)
    report_s, abort_s = config.run.stall_report_s, config.run.stall_abort_s
    if abort_s and abort_s < report_s:
        yield (
            "run.stall_abort_s",
            (
                f"is {abort_s:g}, before run.stall_report_s = {report_s:g}, so the run would end unreported. Raise it, "
                "or lower run.stall_report_s."
            ),
        )


def _policy_conflicts(policy: PolicyConfig) -> Iterator[tuple[str, str]]:
    if policy.name not in POLICIES:
        yield "policy.name", f"is {policy.name!r}. Allowed: {', '.join(map(repr, POLICIES))}."
        return
    own = {option.name for option in dataclasses.fields(POLICIES[policy.name].Options)}
    for key in (option.name for option in dataclasses.fields(policy)):
        if key not in {"name", *own} and getattr(policy, key) is not None:
            yield (
                f"policy.{key}",
                f"is {getattr(policy, key)!r}, but policy.name is {policy.name!r}, which has none. Remove one of them.",
            )


def _cached_conflicts(config: Config) -> Iterator[tuple[str, str]]:
    policy, exchange = config.policy, config.exchange
    if policy.name == "hybrid" and isinstance(policy.staleness, int) and policy.staleness > _MOST_STALE:
        yield "policy.staleness", f"is {policy.staleness}. Allowed with policy.name = 'hybrid': up to {_MOST_STALE}."
    yield from _proof_conflicts(config)
    if policy.name != "cached":
        for key, form in _forms_of(exchange).items():
            if form == "cached":
                yield key, f"is 'cached', but policy.name is {policy.name!r}. Set policy.name = 'cached'."
        return
    if policy.staleness == "auto":
        yield "policy.staleness", "is 'auto', which policy.name = 'hybrid' has alone. Set it to a number."
    if policy.rule == "max" and policy.lookahead:
        yield (
            "policy.lookahead",
            (
                f"is {policy.lookahead}, but policy.rule is 'max', by which a copy ends with its push: one that a step "
                "ahead has been told to read would be gone. Set policy.rule = 'sum', or remove one of them."
            ),
        )
    yield from _known_conflicts(policy, exchange)
    if exchange.form not in (ExchangeConfig.form, "cached", "auto"):
        yield (
            "exchange.form",
            (
                f"is {exchange.form!r}, but policy.name is 'cached', under which features without a form of their own "
                "have the form 'cached', or with 'auto' another that is fewer bytes. Remove it, or name features in "
                "exchange.forms."
            ),
        )


def _known_conflicts(policy: PolicyConfig, exchange: ExchangeConfig) -> Iterator[tuple[str, str]]:
    """Of the rule by which the next steps' rows are known."""
    if policy.cache != "known":
        if policy.window is not None:
            yield (
                "policy.window",
                (
                    f"is {policy.window}, but policy.cache is {policy.cache or 'lru'!r}, which looks at no steps "
                    "ahead. Remove it, or set policy.cache = 'known'."
                ),
            )
        return
    for key, form in _forms_of(exchange).items():
        if form == "auto":
            yield (
                key,
                (
                    "is 'auto', but policy.cache is 'known', whose bytes no formula predicts. Set policy.cache to "
                    "'lru', 'lfu' or 'lightlfu', or name a form."
                ),
            )


def _proof_conflicts(config: Config) -> Iterator[tuple[str, str]]:
    run, policy = config.run, config.policy.name
    for name in ("check_staleness", "shadow_reads"):
        if getattr(run, name) and policy != "cached":
            why = f"is {toml.shown(getattr(run, name))}, but policy.name is {policy!r}, under which there are no copies"
            yield f"run.{name}", f"{why}. Remove it, or set policy.name = 'cached'."
        if getattr(run, name) and config.policy.lookahead:
            yield (
                f"run.{name}",
                (
                    f"is {toml.shown(getattr(run, name))}, but policy.lookahead is {config.policy.lookahead}: reads "
                    "are looked at where they are answered, which is steps before them. Remove one of them."
                ),
            )
    dynamic = [table for table, own in config.embedding.tables.items() if own.dynamic is not None]
    if run.check_staleness and dynamic and policy == "cached":
        yield (
            "run.check_staleness",
            (
                f"is true, but table {dynamic[0]!r} is dynamic: a gradient that is held back may be of an earlier life "
                "of its row, so that a row's gradients have no count. Remove it, or make the table no dynamic one."
            ),
        )


def _topology_conflicts(topology: TopologyConfig) -> Iterator[tuple[str, str]]:
    for name in ("owners", "dense", "owners_per_host", "dense_per_host"):
        value = getattr(topology, name)
        if value is None:
            continue
        if topology.mode == "fused":
            yield (
                f"topology.{name}",
                (
                    f"is {toml.shown(value)}, but topology.mode is 'fused', where every rank has both roles. Remove "
                    "it, or set topology.mode = 'split'."
                ),
            )
        if isinstance(value, tuple) and (not value or len(set(value)) < len(value)):
            yield f"topology.{name}", f"is {toml.shown(value)}. Allowed: at least one rank, each once."
    for name in ("owners", "dense"):
        if getattr(topology, name) is not None and getattr(topology, f"{name}_per_host") is not None:
            yield f"topology.{name}_per_host", f"is set, and so is topology.{name}. Remove one of them."


def _evaluation_conflicts(config: Config) -> Iterator[tuple[str, str]]:
    train = config.train
    if train.nonfinite == "stop" and train.nonfinite_limit != TrainConfig.nonfinite_limit:
        yield (
            "train.nonfinite_limit",
            (
                f"is {train.nonfinite_limit}, but train.nonfinite is 'stop', which leaves no batch out. Remove it, or "
                "set train.nonfinite to 'skip' or 'drop'."
            ),
        )
    if train.early_stop is not None and train.eval_every == 0:
        yield (
            "train.early_stop",
            (
                "is set, but train.eval_every is 0, so nothing is evaluated before the end. Set train.eval_every to "
                "the steps between evaluations."
            ),
        )
    if config.data.validation is not None:
        return
    needing = {
        "train.early_stop": train.early_stop is not None,
        "train.eval_every": train.eval_every > 0,
        "train.eval_batches": train.eval_batches is not None and config.data.test is None,
        "checkpoint.keep_best": bool(config.checkpoint.keep_best),
    }
    for key, is_set in needing.items():
        if is_set:
            yield key, "is set, but there is no data.validation to evaluate. Set data.validation, or remove it."


def _metric_conflicts(config: Config) -> Iterator[tuple[str, str]]:
    wanted, stop = config.evaluation, config.train.early_stop
    for key, names in (("evaluation.metrics", wanted.metrics), ("evaluation.by", wanted.by)):
        if twice := [name for name in names if names.count(name) > 1]:
            yield key, f"names {twice[0]!r} twice. Allowed: each once."
    for name in wanted.metrics:
        if said := metric_names.problem(name):
            yield "evaluation.metrics", f"has one that {said}"
    if stop is None:
        return
    if said := metric_names.problem(stop.metric):
        yield "train.early_stop.metric", said
        return
    own, rises = metric_names.is_own(stop.metric), stop.higher_is_better
    if own and rises is None:
        yield (
            "train.early_stop.higher_is_better",
            f"is missing, and {stop.metric!r} is a metric of your own. Set it to true, or false where lower is better.",
        )
    if not own and rises is not None:
        yield (
            "train.early_stop.higher_is_better",
            f"is {toml.shown(rises)}, but of {stop.metric!r} it is known. Remove it.",
        )
    if not own and metric_names.KINDS[metric_names.parse(stop.metric)[0]].rises is None:
        yield (
            "train.early_stop.metric",
            f"is {stop.metric!r}, which is best at 1, neither highest nor lowest. Set it to logloss, or another.",
        )


def _device_conflicts(config: Config) -> Iterator[tuple[str, str]]:
    if config.dense.autocast != "none" and config.train.dtype != "float32":
        yield (
            "dense.autocast",
            f"is {config.dense.autocast!r}, but train.dtype is {config.train.dtype!r}. Remove one of them.",
        )
    if config.dense.autocast != "none" and config.dense.device == "emulated":
        yield "dense.autocast", "is set, but dense.device is 'emulated', which has no autocast. Remove one of them."
    on_gpus = config.store.on_gpu or config.dense.device != "cpu"
    if config.exchange.gpu_messages == "on" and not on_gpus:
        yield (
            "exchange.gpu_messages",
            "is 'on', but neither rows (store.name, store.gpu_bytes) nor model (dense.device) are on GPUs.",
        )
    if config.exchange.gpu_messages == "on" and config.exchange.codec == "dct":
        yield (
            "exchange.gpu_messages",
            "is 'on', but the host writes exchange.codec = 'dct'. Remove one of them.",
        )
    yield from _path_conflicts(config.exchange)
    yield from _store_conflicts(config.store)
    if config.store.window and config.exchange.ids != "read":
        yield (
            "store.window",
            f"is {config.store.window}, but exchange.ids is {config.exchange.ids!r}. Set that to 'read', or remove it.",
        )
    yield from _links_conflicts(config)


def _path_conflicts(exchange: ExchangeConfig) -> Iterator[tuple[str, str]]:
    if exchange.path != "levels":
        return
    if not exchange.windows:
        yield "exchange.path", "is 'levels', for which the ranks of a host share memory, but exchange.windows is false."
    if exchange.gpu_messages == "on":
        yield "exchange.path", "is 'levels', but exchange.gpu_messages is 'on', by which each rank sends its own."
    if exchange.piece_bytes != ExchangeConfig.piece_bytes:
        yield (
            "exchange.piece_bytes",
            f"is {exchange.piece_bytes}, but by exchange.path = 'levels' messages go whole. Remove one of them.",
        )


def _links_conflicts(config: Config) -> Iterator[tuple[str, str]]:
    checkpoint = config.checkpoint
    if checkpoint.rows == "links" and config.store.name != "disk":
        yield (
            "checkpoint.rows",
            (
                f"is 'links', but store.name is {config.store.name!r}, whose rows are in no files. Set it to 'auto' or "
                "'hdf5', or store.name = 'disk'."
            ),
        )
    elif checkpoint.rows == "links" and checkpoint.full_every > 1:
        yield (
            "checkpoint.full_every",
            (
                f"is {checkpoint.full_every}, but checkpoint.rows is 'links', by which every checkpoint has all rows "
                "and writes only what changed. Remove one of them."
            ),
        )


def _store_conflicts(store: StoreConfig) -> Iterator[tuple[str, str]]:
    for key, stores, default in _KEYS_OF_STORES:
        value = getattr(store, key)
        if store.name not in stores and value != default and not (key == "device" and store.on_gpu):
            yield f"store.{key}", f"is {value!r}, but store.name is {store.name!r}. Remove one of them."
    if store.name == "disk" and store.path is None:
        yield "store.path", "is not set, but store.name is 'disk'. Set it to a folder on each host's own disk."
    if store.name == "disk" and store.memory_bytes is None:
        yield "store.memory_bytes", "is not set, but store.name is 'disk'. Set it to the memory that rows may have."


_KEYS_OF_STORES = (
    ("device", ("gpu",), "cuda"),
    ("memory_bytes", ("gpu", "disk"), None),
    ("path", ("disk",), None),
    ("whole", ("disk",), ()),
    ("io", ("disk",), "auto"),
    ("window", ("disk",), 0),
    ("daily_bytes", ("disk",), None),
    ("gpu_bytes", ("disk",), None),
)


def _embedding_conflicts(config: Config) -> Iterator[tuple[str, str]]:
    embedding = config.embedding
    yield from _optimizer_conflicts("embedding.optimizer", embedding.optimizer)
    for name, table in embedding.tables.items():
        key = toml.dotted(("embedding", "tables", name))
        if table.optimizer is not None:
            yield from _optimizer_conflicts(f"{key}.optimizer", table.optimizer)
        if table.hashed and table.rows is None:
            yield f"{key}.hashed", f"is true, but {key}.rows is not set. Set it to the rows that ids are hashed into."
        yield from _shard_conflicts(key, table)
        if table.dynamic is not None:
            yield from _dynamic_conflicts(key, table, table.dynamic)
        if name in embedding.share:
            yield (
                key,
                (
                    f"is set, but feature {name!r} reads the table of {embedding.share[name]!r} (embedding.share), so "
                    "it has none of its own. Remove one of them."
                ),
            )


def _dynamic_conflicts(key: str, table: TableConfig, dynamic: DynamicConfig) -> Iterator[tuple[str, str]]:
    if table.rows is not None:
        yield (
            f"{key}.rows",
            f"is {table.rows}, but {key}.dynamic gives rows to ids as they come. Remove one of them.",
        )
    if table.hashed:
        yield f"{key}.hashed", f"is true, but {key}.dynamic gives each id a row of its own. Remove one of them."
    if table.shard in ("column", "replicate"):
        yield (
            f"{key}.shard",
            f"is {table.shard!r}, but {key}.dynamic takes whole rows at one owner. Allowed: auto, row, host, table.",
        )
    if dynamic.admit_from == 1 and dynamic.pending != DynamicConfig.pending:
        yield (
            f"{key}.dynamic.pending",
            (
                f"is {dynamic.pending}, but {key}.dynamic.admit_from is 1, so that no id waits. Remove it, or raise "
                "admit_from."
            ),
        )
    if dynamic.admit_from > 1 and dynamic.admit_probability < 1:
        yield (
            f"{key}.dynamic.admit_probability",
            (
                f"is {dynamic.admit_probability:g}, and {key}.dynamic.admit_from is {dynamic.admit_from}. Set one of "
                "them only."
            ),
        )


def _shard_conflicts(key: str, table: TableConfig) -> Iterator[tuple[str, str]]:
    if table.owners is not None:
        if table.shard not in ("table", "row", "column"):
            yield f"{key}.owners", f"goes with shard table, row or column, but {key}.shard is {table.shard!r}."
        if not table.owners or len(set(table.owners)) < len(table.owners):
            yield f"{key}.owners", f"is {toml.shown(table.owners)}. Allowed: at least one owner, each once."
        if table.shard == "table" and len(table.owners) > 1:
            yield f"{key}.owners", f"is {toml.shown(table.owners)}, but {key}.shard is 'table', which takes one owner."
    if table.parts is not None:
        if table.shard not in ("row", "column"):
            yield f"{key}.parts", f"goes with shard row or column, but {key}.shard is {table.shard!r}."
        if table.owners is not None:
            yield f"{key}.parts", f"is set, and so is {key}.owners, which says how many parts there are. Remove one."


def _optimizer_conflicts(key: str, optimizer: RowOptimizer) -> Iterator[tuple[str, str]]:
    uses = {
        "eps": ("adagrad", "rowwise_adagrad", "adam"),
        "beta1": ("adam",),
        "beta2": ("adam",),
        "initial_accumulator": ("adagrad", "rowwise_adagrad"),
    }
    for name, users in uses.items():
        value = getattr(optimizer, name)
        if optimizer.name not in users and value != getattr(RowOptimizer, name):
            yield (
                f"{key}.{name}",
                (
                    f"is {toml.shown(value)}, but {key}.name is {optimizer.name!r}, which has none. Allowed with: "
                    f"{', '.join(users)}. Remove it."
                ),
            )


def _threshold_conflicts(config: Config) -> Iterator[tuple[str, str]]:
    exchange = config.exchange
    if exchange.codec in ("fp16", "dct"):
        copied = [f"embedding.tables.{n}.shard" for n, t in config.embedding.tables.items() if t.shard == "replicate"]
        copied += [f"exchange.{n}" for n in ("replicate_rows",) if getattr(exchange, n)]
        copied += ["exchange.auto_copies"] * (exchange.auto_copies not in (0, ExchangeConfig.auto_copies))
        for key in copied:
            yield (
                key,
                (
                    f"asks for copies of tables, but with exchange.codec = {exchange.codec!r} their gradients would "
                    "not reach all copies alike. Remove it, or set exchange.codec = 'bf16'."
                ),
            )
    if exchange.codec != "dct":
        for option in dataclasses.fields(ThresholdConfig):
            value = getattr(exchange.dct, option.name)
            if value != option.default:
                said = f"is {toml.shown(value)}, but exchange.codec is {exchange.codec!r}."
                yield f"exchange.dct.{option.name}", f"{said} Set exchange.codec = 'dct', or remove it."
        return
    if exchange.dct.threshold == "vector" and exchange.dct.every != ThresholdConfig.every:
        yield (
            "exchange.dct.every",
            (
                f"is {exchange.dct.every}, but exchange.dct.threshold is 'vector': thresholds of vectors are found in "
                "every step. Remove it, or set exchange.dct.threshold = 'feature'."
            ),
        )
    allowed = [name for name in settable() if not FORMS[name].whole]
    for key, form in _forms_of(exchange).items():
        if form in FORMS and FORMS[form].whole:
            yield (
                key,
                (
                    f"is {form!r}, {FORMS[form].whole}. With exchange.codec = 'dct' allowed are "
                    f"{', '.join(map(repr, allowed))} and 'auto'."
                ),
            )


def _forms_of(exchange: ExchangeConfig) -> dict[str, str]:
    """Forms by the keys that ask for them."""
    own = {toml.dotted(("exchange", "forms", feature)): form for feature, form in exchange.forms.items()}
    return {"exchange.form": exchange.form, **own}


def _form_conflicts(exchange: ExchangeConfig) -> Iterator[tuple[str, str]]:
    allowed = (*settable(), "auto")
    for key, form in _forms_of(exchange).items():
        if form not in allowed:
            near = difflib.get_close_matches(form, allowed, n=1)
            change = f"Did you mean {toml.shown(near[0])}?" if near else "Set it to one of these."
            yield key, f"is {toml.shown(form)}. Allowed: {', '.join(map(toml.shown, allowed))}. {change}"


def _auto_conflicts(exchange: ExchangeConfig) -> Iterator[tuple[str, str]]:
    if not exchange.at_place and not {"auto", "partial"}.intersection((exchange.form, *exchange.forms.values())):
        yield (
            "exchange.at_place",
            "is false, but no form is 'partial' or 'auto', so that dense ranks compute towers anyway. Remove it.",
        )
    if exchange.chooses_forms:
        return
    for name in ("auto_copies",) if exchange.path == "auto" else ("auto_steps", "auto_copies"):
        if getattr(exchange, name) != getattr(ExchangeConfig, name):
            value = getattr(exchange, name)
            yield f"exchange.{name}", f"is {value}, but no form is 'auto'. Set exchange.form = 'auto', or remove it."


def _feature_conflicts(config: Config) -> Iterator[tuple[str, str]]:
    share, forms = config.embedding.share, config.exchange.forms
    for feature in share:
        seen = [feature]
        while (following := share.get(seen[-1])) is not None and following not in seen:
            seen.append(following)
        if following is not None:
            path = " -> ".join([*seen, following])
            yield toml.dotted(("embedding", "share", feature)), f"leads back to itself: {path}. Remove one of these."
    for feature in forms:
        table = config.embedding.table_of(feature)
        if config.embedding.table(table).shard == "replicate":
            yield (
                toml.dotted(("exchange", "forms", feature)),
                (
                    f"is {forms[feature]!r}, but {toml.dotted(('embedding', 'tables', table, 'shard'))} is "
                    "'replicate', so its values do not cross. Remove one of them."
                ),
            )
    named: dict[str, Mapping[str, Any]] = {
        "model.pooling": config.model.pooling,
        "exchange.forms": forms,
        "embedding.share": share,
    }
    for section, keys in named.items():
        for feature in keys:
            if config.data.features and feature not in config.data.features:
                yield (
                    toml.dotted((*section.split("."), feature)),
                    (
                        f"names a feature that data.features leaves out. Allowed: {', '.join(config.data.features)}. "
                        "Remove it, or add the feature there."
                    ),
                )
    if len(set(config.data.features)) < len(config.data.features):
        yield "data.features", f"is {toml.shown(config.data.features)}. Allowed: each feature once."


def _schedule_conflicts(schedule: ScheduleConfig) -> Iterator[tuple[str, str]]:
    decays = ("linear", "cosine", "polynomial", "step")
    uses = {
        "decay_start": decays,
        "decay_steps": decays,
        "final": decays,
        "power": ("polynomial",),
        "factor": ("step",),
    }
    for name, users in uses.items():
        value = getattr(schedule, name)
        if schedule.kind not in users and value != getattr(ScheduleConfig, name):
            yield (
                f"schedule.{name}",
                (
                    f"is {toml.shown(value)}, but schedule.kind is {schedule.kind!r}, which has none. Allowed with: "
                    f"{', '.join(users)}. Remove it, or change schedule.kind."
                ),
            )
    if schedule.kind == "step" and schedule.decay_steps is None:
        yield "schedule.decay_steps", "is not set, but schedule.kind is 'step'. Set it to the steps between two falls."
    if schedule.decay_start is not None and schedule.decay_start < schedule.warmup_steps:
        yield (
            "schedule.decay_start",
            f"is {schedule.decay_start}. Allowed: {schedule.warmup_steps} (schedule.warmup_steps) and more.",
        )


def _compression_conflicts(config: Config) -> Iterator[tuple[str, str]]:
    if config.dense.compression == "none":
        for option in dataclasses.fields(DctConfig):
            value = getattr(config.dense.dct, option.name)
            if value != option.default:
                yield (
                    f"dense.dct.{option.name}",
                    (
                        f"is {toml.shown(value)}, but dense.compression is 'none'. Set dense.compression = 'dct', or "
                        "remove it."
                    ),
                )
    elif config.train.dtype == "float64" and config.dense.dct.values != "fp32":
        yield (
            "dense.dct.values",
            (
                f"is {config.dense.dct.values!r}, but train.dtype is 'float64', which is there to compare runs to the "
                "last digits; entries then cross as they are. Set dense.dct.values = 'fp32'."
            ),
        )


def _codistillation_conflicts(config: Config) -> Iterator[tuple[str, str]]:
    key, wanted = "dense.codistillation", config.dense.codistillation
    if wanted.groups == 1:
        for option in dataclasses.fields(CodistillationConfig):
            value = getattr(wanted, option.name)
            if value != option.default:
                yield (
                    f"{key}.{option.name}",
                    (
                        f"is {toml.shown(value)}, but {key}.groups is 1, so that there is nobody to learn from. Set "
                        f"{key}.groups to 2 or more, or remove it."
                    ),
                )
    elif config.train.batch_size % wanted.groups:
        yield (
            f"{key}.groups",
            (
                f"is {wanted.groups}, but train.batch_size is {config.train.batch_size}, of which each group takes an "
                f"equal part. Set train.batch_size to a multiple of {wanted.groups}."
            ),
        )
    if wanted.groups > 1 and config.data.deal != "order":
        yield (
            "data.deal",
            (
                f"is {config.data.deal!r}, but {key}.groups is {wanted.groups}: each group has samples of its own, in "
                "an order of its own. Set data.deal = 'order', or remove one of them."
            ),
        )
    if wanted.groups > 1 and not wanted.weight:
        for name in ("burn_in_steps", "every"):
            if getattr(wanted, name) != getattr(CodistillationConfig, name):
                yield (
                    f"{key}.{name}",
                    (
                        f"is {getattr(wanted, name)}, but {key}.weight is 0, so that groups do not learn from each "
                        "other. Remove it, or raise the weight."
                    ),
                )
