"""From a run's configuration and a checkpoint to an export: a folder that predicts without what trained it.

The dense part becomes a graph of torch's own operators, from pooled vectors to logits; each table one file. Starts no
MPI. Knows model, tables and checkpoint; what an export's folder holds is for ``serving``.

Legend: ``B`` samples, ``F`` lookups of an operator, ``D`` row width, ``N`` dense inputs.
"""

import platform
import shutil
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hpcrec.build.graph import write_graph
from hpcrec.build.tables import DTYPES, as_read, make_model, make_offers
from hpcrec.build.wire import Steps, on_wire
from hpcrec.checkpoint.files import checkpoints_in
from hpcrec.checkpoint.find import find_checkpoint
from hpcrec.checkpoint.reader import Checkpoint
from hpcrec.checkpoint.tools.by_id import ranges_of, whole
from hpcrec.checkpoint.tools.tables import table_facts
from hpcrec.comm.topology import Topology
from hpcrec.config import Config
from hpcrec.data.carried import FOLDER, carry
from hpcrec.data.files import sync, temporary_beside, writing
from hpcrec.data.reader import DataSet
from hpcrec.embedding.sets import name_in
from hpcrec.embedding.shards import table_seed
from hpcrec.embedding.store import row_states
from hpcrec.errors import CheckpointError, ConfigError
from hpcrec.operators.base import Learned, Operator
from hpcrec.serving.arrays import ArrayFile
from hpcrec.serving.exported import Exported
from hpcrec.serving.folder import MODEL, WEIGHTS, table_file, write_facts
from hpcrec.types import Lookup, TableSpec

_ALONE = Topology(rank=0, size=1, owners=(0,), dense=(0,), host_of=(0,))


def export(config: Config, out: Path, *, checkpoint: str = "best", embeddings: str = "safetensors") -> Path:
    """Writes an export of a run; returns its folder, which is whole or absent.

    Parameters
    ----------
    checkpoint : str
        ``best`` (``last`` where none was marked), ``last`` or a path.
    embeddings : str
        ``safetensors`` or ``hdf5``.

    Raises
    ------
    CheckpointError
        There is no such checkpoint, or it is of another model; or ``out`` is there.
    ConfigError
        The model cannot be made, or torch cannot make a graph of it.
    OutputError
        ``out`` cannot be written.
    """
    if out.exists():
        raise CheckpointError(f"{out}: is there already. Give a folder that is not.")
    run = Path(config.run.folder)
    if checkpoint == "best" and not (checkpoints_in(run) / "best.json").exists():
        checkpoint = "last"
    config = as_read(config)
    with DataSet(config.data.train) as dataset:
        model, operators = make_model(config, dataset)
        tables, families, offers = make_offers(config, dataset, operators, _ALONE, reading=True)
        found = find_checkpoint(run, checkpoint)
        _check(found, config, model, tables)
        state = found.dense()
        values = {**state.extra, **state.parameters}
        model.load_state_dict({name: torch.as_tensor(value) for name, value in values.items()})
        facts = _facts(config, dataset, found, operators, on_wire(config, offers, found))
    hidden = temporary_beside(out)
    try:
        with writing(out):
            hidden.mkdir(parents=True)
        with writing(out / "tables"):
            (hidden / "tables").mkdir()
        _write_model(config, model, operators, dataset.n_dense, hidden)
        seeds = {t: table_seed(config.train.seed, f.name) for f in families for t in f.tables if f.hashed}
        facts["embeddings"] = embeddings
        facts["tables"] = {
            name: {
                **_write_table(found, spec, hidden, table_file(name, embeddings)),
                **({"hash_seed": seeds[name]} if name in seeds else {}),
            }
            for name, spec in tables.items()
        }
        with writing(out / "tables"):
            sync(hidden / "tables")
        with writing(out / FOLDER):
            carry(Path(config.data.train).parent, hidden / FOLDER)
        with writing(out):
            write_facts(hidden, facts)
            sync(hidden)
        Exported(hidden)  # what was written can be read
        with writing(out):
            hidden.rename(out)
            sync(out.parent)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
    return out


def _check(found: Checkpoint, config: Config, model: nn.Module, tables: Mapping[str, TableSpec]) -> None:
    """Holds the checkpoint to the model, as a session that reads it does."""
    groups = range(1, int(found.state.get("groups", 1)))
    own = [] if found.state.get("share_embeddings", True) else [name_in(g, t) for g in groups for t in tables]
    found.check_tables(tables, own)
    for name, spec in tables.items():
        states = {} if found.without_states(name) else row_states(spec.optimizer)
        dynamic = spec.dynamic is not None
        found.check_table(name, rows=spec.rows, width=spec.width, states=states, dynamic=dynamic, hashed=spec.hashed)
    trained = {n: tuple(p.shape) for n, p in model.named_parameters() if p.requires_grad}
    others = {n: tuple(v.shape) for n, v in model.state_dict().items() if n not in trained}
    found.check_dense(trained, others)
    if any(t.hashed for t in tables.values()) and found.state.get("seed") != config.train.seed:
        raise CheckpointError(
            f"{found.folder}: was trained with train.seed = {found.state.get('seed')}, by which ids of hashed tables "
            f"find their rows; this is {config.train.seed}. Set it back."
        )


# ---- dense part ------------------------------------------------------------------------------------------------------


class PooledModel(nn.Module):
    """A model from pooled vectors on: operators, then the model's own forward.

    Parameters
    ----------
    operators : mapping of str to Operator
        With shared tables put in.
    autocast : bool
        Matrix products in bfloat16, as in training.
    """

    def __init__(self, model: nn.Module, operators: Mapping[str, Operator], *, autocast: bool = False) -> None:
        super().__init__()
        self.model = model
        name_of = {id(p): name for name, p in model.named_parameters()}
        self._weights = {
            name: [name_of[id(w)] for w in operator.weights]
            for name, operator in operators.items()
            if isinstance(operator, Learned)
        }
        self._operators, self._inputs, self._autocast = dict(operators), inputs_of(operators), autocast

    def forward(self, dense_BN: Tensor, pooled: Sequence[Tensor]) -> Tensor:
        """Logits [B] or [B, L], of dense inputs and of a vector [B, D] for each of ``inputs_of(operators)``."""
        vector_of = {(k.feature, k.table): x for k, x in zip(self._inputs, pooled, strict=True)}
        results = {}
        with torch.autocast("cpu", torch.bfloat16, enabled=self._autocast):
            for name, operator in self._operators.items():
                if isinstance(operator, Learned):
                    operator = operator.over(operator.lookups, [attrgetter(w)(self.model) for w in self._weights[name]])
                block_BFD = torch.stack([vector_of[k.feature, k.table] for k in operator.lookups], 1)
                results[name] = operator.finish(operator.partial(block_BFD))
            return self.model(results, dense_BN)


def inputs_of(operators: Mapping[str, Operator]) -> list[Lookup]:
    """Lookups of all operators, each once, in the order in which they are first read."""
    found = {(k.feature, k.table): k for operator in operators.values() for k in operator.lookups}
    return list(found.values())


def _write_model(config: Config, model: nn.Module, operators: Mapping[str, Operator], n_dense: int, out: Path) -> None:
    dtype = DTYPES[config.train.dtype][1]
    width_of = {k.table: operator.width for operator in operators.values() for k in operator.lookups}
    pooled = [torch.zeros(3, width_of[k.table], dtype=dtype) for k in inputs_of(operators)]
    served = PooledModel(model, operators, autocast=config.dense.autocast != "none").eval().requires_grad_(False)
    batch = torch.export.Dim("batch", min=1)
    shapes = ({0: batch}, [{0: batch} for _ in pooled])
    try:
        with torch.no_grad():
            graph = torch.export.export(served, (torch.zeros(3, n_dense, dtype=dtype), pooled), dynamic_shapes=shapes)
    except Exception as error:  # torch raises all sorts of things
        said = " ".join(str(error).split())[:400]
        raise ConfigError(
            f"model {config.model.name}: torch.export cannot make a graph of it ({type(error).__name__}: {said}). "
            "Change its forward to what torch can follow: no branches on values, no NumPy."
        ) from error
    write_graph(graph, config.model.name, out / MODEL, out / WEIGHTS)


# ---- tables ----------------------------------------------------------------------------------------------------------


def _write_table(found: Checkpoint, spec: TableSpec, folder: Path, name: str) -> dict[str, Any]:
    """Writes a table; a dynamic one with its ids, rising, and a row for each of them."""
    facts = table_facts(found, spec.name)
    dtype = np.dtype(facts.dtype).str
    kind = "dynamic" if spec.dynamic is not None else "hashed" if spec.hashed else "declared"
    said = {"table": spec.name, "kind": kind}
    rows = facts.ids if kind == "dynamic" else facts.rows
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {"rows": (dtype, (rows, facts.width))}
    if kind == "dynamic":
        shapes = {"ids": ("<i8", (rows,)), **shapes}
    file, at = ArrayFile(folder / name, shapes, said), 0
    if kind == "dynamic":
        for block in (whole(r, found, spec.name) for r in ranges_of(found, facts, folder)):
            here = slice(at, at + len(block.ids))
            file.put("ids", here, block.ids)
            file.put("rows", here, block.rows)
            at += len(block.ids)
    else:
        for block in found.whole_table(spec.name, facts.rows, facts.width):
            file.put("rows", block.ids, block.rows, slice(*block.columns))
    file.sync()
    return {"file": name, "rows": rows, "width": facts.width, "kind": kind}


# ---- what is said of it ----------------------------------------------------------------------------------------------


def _facts(
    config: Config,
    dataset: DataSet,
    found: Checkpoint,
    operators: Mapping[str, Operator],
    wire: tuple[Steps, list[str]],
) -> dict[str, Any]:
    inputs, (steps, differences) = inputs_of(operators), wire
    read = dict.fromkeys(k.feature for k in inputs)
    return {
        "run": str(Path(config.run.folder)),
        "step": found.step,
        "samples": (found.state.get("progress") or {}).get("samples"),
        "model": {"name": config.model.name, "width": config.model.width, "options": dict(config.model.options)},
        "dtype": config.train.dtype,
        "autocast": config.dense.autocast,
        "codec": config.exchange.codec,
        "labels": dataset.n_labels,
        "dense_inputs": dataset.n_dense,
        "features": [
            {"name": f.name, "cardinality": f.cardinality, "weighted": f.weighted, "bag": dataset.jagged(f.name)}
            for f in (dataset.feature(name) for name in read)
        ],
        "inputs": [
            {"feature": k.feature, "table": k.table, "pooling": k.pooling, **steps.get((k.feature, k.table), {})}
            for k in inputs
        ],
        "differences": differences,
        "operators": {
            name: {"kind": type(of).__name__, "reads": [inputs.index(k) for k in of.lookups]}
            for name, of in operators.items()
        },
        "data": dataset.attributes,
        "versions": {
            "hpcrec": version("hpcrec"),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }
