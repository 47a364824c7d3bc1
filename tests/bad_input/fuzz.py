"""Mutations of every kind of input, each from its seed: ``python -m tests.bad_input.fuzz KIND FIRST COUNT FOLDER``.

What comes of a mutation must be an `HpcrecError` with one line of text, or a correct result: what an oracle that shares
nothing with the reader says. A seed that hangs ends the process by SIGALRM, one that crashes it by its signal; the last
line printed names it.
"""

import json
import math
import shutil
import signal
import sys
import tomllib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from safetensors.numpy import load_file

from hpcrec.build.graph import write_graph
from hpcrec.checkpoint.checkpoint import CheckpointWriter, find_checkpoint
from hpcrec.config import load_config, to_toml
from hpcrec.data.reader import DataSet
from hpcrec.errors import HpcrecError
from hpcrec.preparation import convert
from hpcrec.preparation.schema import Column, Columns, Writer
from hpcrec.serving import Exported
from hpcrec.serving.arrays import ArrayFile
from hpcrec.serving.folder import EXPORT, MODEL, WEIGHTS, table_file, write_facts
from hpcrec.serving.folder import fingerprint as file_facts
from hpcrec.types import Feature
from tests.checkpoint.tools.made import fingerprint

LIMIT_S = 20  # of one seed
Random = np.random.Generator

# ---- mutations -------------------------------------------------------------------------------------------------------


def mutate_bytes(rng: Random, content: bytes) -> bytes:
    """One to three changes of single bytes or of ranges."""
    out = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        at = int(rng.integers(len(out) + 1))
        n = int(rng.integers(1, 40))
        match rng.integers(8):
            case 0 | 1 | 2:
                if at < len(out):
                    out[at] ^= 1 << int(rng.integers(8))
            case 3:
                del out[at : at + n]
            case 4:
                out[at:at] = rng.bytes(n)
            case 5:
                out[at : at + n] = bytes(len(out[at : at + n]))
            case 6:
                other = int(rng.integers(len(out) + 1))
                out[at:at] = out[other : other + n]
            case _:
                del out[at:]
    return bytes(out)


SCALARS: tuple[Any, ...] = (
    *(0, 1, -1, 3, 2**31, 2**63 - 1, 10**19, -(2**63)),
    *(0.0, -1.5, 0.5, 1e308, 5e-324, math.inf, -math.inf, math.nan),
    *(True, False, "", "a", "auto", "sum", "é\u2028", "x" * 500, "\x00", "../..", "1"),
)


def anything(rng: Random, depth: int = 2) -> Any:
    """A value that nobody asked for."""
    kind = rng.integers(6 if depth else 4)
    if kind < 4:
        return SCALARS[int(rng.integers(len(SCALARS)))]
    n = int(rng.integers(3))
    if kind == 4:
        return [anything(rng, depth - 1) for _ in range(n)]
    return {f"k{i}": anything(rng, depth - 1) for i in range(n)}


# ---- configurations --------------------------------------------------------------------------------------------------

CONFIG = """\
[data]
train = "data/train.h5"
validation = "data/test.h5"
chunk = 64
shuffle = false
[model]
name = "deepfm"
pooling = { history = "mean" }
options = { hidden = [16, 8], dropout = 0.25 }
[embedding]
init_scale = 0.05
share = { history = "item" }
optimizer = { name = "adam", lr = 0.5, beta1 = 0.75 }
[embedding.tables.user]
shard = "row"
owners = [0, 1]
[topology]
mode = "split"
owners = 2
[schedule]
kind = "cosine"
warmup_steps = 10
[train]
batch_size = 50
eval_every = 5
early_stop = { metric = "logloss", patience = 2 }
[run]
folder = "runs/fuzz"
"""


def config_text(rng: Random, folder: Path) -> None:
    """Bytes of a TOML file."""
    path = folder / "config.toml"
    content = mutate_bytes(rng, CONFIG.encode())
    path.write_bytes(content)
    loaded = load_config(path)
    check_config(loaded, tomllib.loads(content.decode()), folder)


def config_values(rng: Random, folder: Path) -> None:
    """A value of a key, in the file or on the command line."""
    mapping = tomllib.loads(CONFIG)
    section = mapping[str(rng.choice(list(mapping)))]
    key = str(rng.choice([*section, "unknown"]))
    value = anything(rng)
    section[key] = value
    path = folder / "config.toml"
    path.write_text(CONFIG)
    where = next(name for name, found in mapping.items() if found is section)
    if isinstance(value, str) and rng.integers(2):  # text that is no TOML stands for itself
        text, section[key] = value, parsed_or_text(value)
    else:
        text = toml_of(value)
    loaded = load_config(path, [f"{where}.{key}={text}"])
    check_config(loaded, mapping, folder)


def parsed_or_text(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text.strip()}")
    except tomllib.TOMLDecodeError:
        return text.strip()
    return parsed["value"] if len(parsed) == 1 else text.strip()


def toml_of(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} = {toml_of(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(toml_of(v) for v in value) + "]"
    if isinstance(value, bool | str):
        return json.dumps(value).replace("\x7f", "\\u007f")
    return repr(value)


def check_config(loaded: Any, mapping: dict[str, Any], folder: Path) -> None:
    """Every key that was given has its value, and what is written loads to the same."""
    check_given(loaded, mapping)
    again = folder / "again.toml"
    again.write_text(to_toml(loaded), encoding="utf-8")
    assert to_toml(load_config(again)) == to_toml(loaded)  # as text, since nan is not equal to itself


def check_given(loaded: Any, given: Any) -> None:
    if isinstance(given, dict):
        for key, value in given.items():
            check_given(loaded[key] if isinstance(loaded, dict) else getattr(loaded, key), value)
    elif isinstance(given, list):
        assert len(loaded) == len(given)
        for one, other in zip(loaded, given, strict=True):
            check_given(one, other)
    elif given == given or loaded == loaded:  # not both nan
        assert loaded == given and isinstance(loaded, bool) == isinstance(given, bool), (loaded, given)


# ---- text sources ----------------------------------------------------------------------------------------------------


def tsv(rng: Random, folder: Path) -> None:
    """Lines of a Criteo log."""
    lines = []
    for i in range(12):
        integers = [str(int(n)) if rng.random() < 0.8 else "" for n in rng.integers(-2, 3000, 13)]
        categories = [f"{int(n):08x}" if rng.random() < 0.8 else "" for n in rng.integers(0, 2**32, 26)]
        lines.append("\t".join([str(i % 2), *integers, *categories]))
    content = mutate_bytes(rng, ("\n".join(lines) + "\n").encode())
    (folder / "log.txt").write_bytes(content)
    shutil.rmtree(out := folder / "converted", ignore_errors=True)
    convert.prepare_criteo([folder / "log.txt"], out, rows_per_feature=100, progress=False)
    rows = [line.split("\t") for line in content.decode().replace("\r\n", "\n").split("\n")]
    rows = rows[:-1] if rows[-1] == [""] else rows
    assert all(len(row) == 40 for row in rows)
    first = 0
    for part in ("train", "validation", "test"):  # cut in this order
        with DataSet(out / f"{part}.h5") as data:
            check_converted(data.read(0, data.samples), rows[first : first + data.samples])
            first += data.samples
    assert first == len(rows)


def check_converted(found: Columns, rows: list[list[str]]) -> None:
    np.testing.assert_array_equal(found.label, [float(row[0]) for row in rows])
    wanted = [[math.log1p(max(int(cell or 0), 0)) for cell in row[1:14]] for row in rows]
    np.testing.assert_allclose(found.dense, wanted, rtol=1e-5)
    for j, column in enumerate(found.sparse.values()):
        assert [i == 0 for i in column.ids] == [not row[14 + j] for row in rows]


# ---- data files ------------------------------------------------------------------------------------------------------

FEATURES = (Feature(name="user", cardinality=30), Feature(name="tags", cardinality=9, weighted=True))
COLUMNS = ("label", "dense", "weight", "sparse/user/ids", "sparse/tags/ids", "sparse/tags/offsets")


def make_data(path: Path) -> None:
    rng, n = np.random.default_rng(0), 700
    offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 4, n))])
    sparse = {
        "user": Column(rng.integers(0, 30, n)),
        "tags": Column(rng.integers(0, 9, offsets[-1]), offsets, rng.random(offsets[-1], dtype=np.float32)),
    }
    with Writer(path, FEATURES, n_dense=2, jagged=("tags",), optional=("weight",), attributes={"note": "a"}) as writer:
        dense = rng.standard_normal((n, 2)).astype(np.float32)
        label = rng.integers(0, 2, n).astype(np.float32)
        writer.append(Columns(label, dense, sparse, weight=rng.random(n, dtype=np.float32)))


def read_data(path: Path) -> dict[str, Any]:
    with DataSet(path) as data:
        columns = data.read(0, data.samples)
        found: dict[str, Any] = {"label": columns.label, "dense": columns.dense, "weight": columns.weight}
        for feature in data.features:
            column = columns.sparse[feature.name]
            found[f"sparse/{feature.name}/ids"] = column.ids
            found[f"sparse/{feature.name}/offsets"] = column.offsets
            found[f"sparse/{feature.name}/weights"] = column.weights
            assert not len(column.ids) or 0 <= column.ids.min() <= column.ids.max() < feature.cardinality
        assert np.isfinite(columns.dense).all() and ((columns.label >= 0) & (columns.label <= 1)).all()
        return {k: v for k, v in found.items() if v is not None}


def data_bytes(rng: Random, folder: Path) -> None:
    """Bytes of a data file: an error, or nothing has changed."""
    whole, path = folder / "whole.h5", folder / "data.h5"
    if not whole.exists():
        make_data(whole)
    path.write_bytes(mutate_bytes(rng, whole.read_bytes()))
    same(read_data(path), read_data(whole))


def data_structure(rng: Random, folder: Path) -> None:
    """Datasets and attributes of a data file, as HDF5 itself changes them: an error, or what HDF5 says."""
    path = folder / "data.h5"
    path.unlink(missing_ok=True)
    make_data(path)
    with h5py.File(path, "r+") as file:
        change_hdf5(rng, file, [*COLUMNS, "sparse/tags/weights"])
    found = read_data(path)
    with h5py.File(path) as file:
        for name, values in found.items():
            wanted = file[name][()] if name in file else None
            if wanted is None:
                assert name.endswith("/offsets") or values.size == 0, name
            else:
                np.testing.assert_array_equal(values, wanted.astype(values.dtype), err_msg=name)


def change_hdf5(rng: Random, file: h5py.File, names: list[str]) -> None:
    name = str(rng.choice(names))
    data = file[name]
    choice = int(rng.integers(7))
    match choice if data.ndim or choice not in (2, 3, 4) else 0:
        case 0:
            del file[name]
        case 1:
            values = data[()]
            del file[name]
            file[name] = values.astype(rng.choice(["i1", "u2", "i4", "f2", "f8", "S3", "?", "c8"]))
        case 2:
            values = data[()]
            del file[name]
            kept = values[: int(rng.integers(len(values) + 1))]
            file[name] = kept[None] if rng.integers(2) else kept
        case 3 | 4:
            if len(data):
                fill = rng.choice([-1, 0, 1, 0.5, 2.0**40, -(2.0**62), np.nan, np.inf])
                if data.dtype.kind != "f":
                    fill = int(fill) if np.isfinite(fill) else 7
                    fill = min(max(fill, np.iinfo(data.dtype).min), np.iinfo(data.dtype).max)
                data[int(rng.integers(len(data)))] = fill
        case 5:
            del file[name]
            file.create_group(name)
        case _:
            where = file if rng.integers(3) else data
            keys = [*where.attrs, "extra"]
            key = str(rng.choice(keys))
            value = anything(rng)
            if rng.integers(3) == 0 and key in where.attrs:
                del where.attrs[key]
            else:
                where.attrs[key] = json.dumps(value) if isinstance(value, dict | list) else storable(value)


def storable(value: Any) -> Any:
    """As HDF5 attributes take it."""
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**63:
        return float(value)
    return value.replace("\x00", "?") if isinstance(value, str) else value


# ---- checkpoints -----------------------------------------------------------------------------------------------------

STATES = {"sum": (40,), "exp_avg": (40, 3)}
DENSE, OTHERS = {"a.weight": (3, 2), "b": ()}, {"c": ()}


def make_checkpoint(run: Path) -> None:
    rng = np.random.default_rng(0)
    writer = CheckpointWriter(run, 7)
    writer.begin()
    for part, ids in enumerate(np.split(np.arange(40), 2)):
        states = {k: rng.random((20, *shape[1:]), dtype=np.float32) for k, shape in STATES.items()}
        block = (ids, rng.random((20, 3), dtype=np.float32), states)
        writer.write_table_part("user", part, [block], n_ids=20, rows=40, width=3, columns=(0, 3))
    values = {name: rng.random(shape).astype(np.float32) for name, shape in DENSE.items()}
    writer.write_dense(values, {"a.weight": {"step": 7.0, "exp_avg": values["a.weight"]}}, {"c": 3})
    writer.write_state({"seed": 1, "progress": {}})
    writer.commit()


def read_checkpoint(run: Path) -> dict[str, Any]:
    checkpoint = find_checkpoint(run, "last")
    checkpoint.check_tables(["user"])
    checkpoint.check_table("user", rows=40, width=3, states=STATES)
    checkpoint.check_dense(DENSE, OTHERS)
    found: dict[str, Any] = {"state": checkpoint.state, "step": checkpoint.step}
    for i, block in enumerate(checkpoint.table_parts("user")):
        assert block.rows.shape == (len(block.ids), 3) and ((block.ids >= 0) & (block.ids < 40)).all()
        found |= {f"{i}.ids": block.ids, f"{i}.rows": block.rows} | {f"{i}.{k}": v for k, v in block.states.items()}
    dense = checkpoint.dense()
    found |= {f"dense.{k}": v for k, v in dense.parameters.items()} | {"extra": dense.extra}
    return found | {f"optimizer.{n}.{k}": v for n, s in dense.optimizer.items() for k, v in s.items()}


def checkpoint_bytes(rng: Random, folder: Path) -> None:
    """Bytes of a checkpoint's files: an error, or nothing has changed."""
    whole, run = folder / "whole", folder / "run"
    if not whole.exists():
        make_checkpoint(whole)
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(whole, run)
    path = rng.choice(sorted(p for p in run.rglob("*") if p.is_file()))
    path.write_bytes(mutate_bytes(rng, path.read_bytes()))
    same(read_checkpoint(run), read_checkpoint(whole))


def checkpoint_structure(rng: Random, folder: Path) -> None:
    """A checkpoint by a program that departs from the format, checksums and all: an error, or something whole."""
    run = folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    make_checkpoint(run)
    place = run / "checkpoints" / "step-7"
    manifest = json.loads((place / "manifest.json").read_text())
    match rng.integers(4):
        case 0:
            manifest[str(rng.choice([*manifest, "extra"]))] = anything(rng)
        case 1:
            state = json.loads((place / "state.json").read_text())
            state[str(rng.choice([*state, "extra"]))] = anything(rng)
            (place / "state.json").write_text(json.dumps(state if rng.integers(4) else anything(rng)))
        case _:
            path = place / str(rng.choice(["user/part-0.h5", "user/part-1.h5", "dense.h5"]))
            with h5py.File(path, "r+") as file:
                names: list[str] = []
                file.visititems(lambda name, thing: names.append(name) if isinstance(thing, h5py.Dataset) else None)
                change_hdf5(rng, file, names)
    if isinstance(manifest.get("files"), dict):
        for name in manifest["files"]:
            if (place / name).is_file():
                manifest["files"][name] = fingerprint(place / name)
    (place / "manifest.json").write_text(json.dumps(manifest))
    read_checkpoint(run)


def same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(found[name], value, err_msg=name)
        else:
            assert found[name] == value, name


# ---- exports ---------------------------------------------------------------------------------------------------------

COMMAND = "__import__('os').system('touch canary')"
HOSTILE: tuple[Any, ...] = (
    *("torch.hub.load", "builtins.eval", "os.system", "operator.attrgetter", "math.sqrt", "aten.from_file.default"),
    *("aten.add_.Tensor", "aten.sum.default", "aten.as_strided.default", "operator.mul", "aten.index_select.default"),
    *(COMMAND, {"expr_str": COMMAND}, {"value": "dense"}, {"weight": "first.weight"}, {"dtype": "int64"}),
    *("../../etc/passwd", "/dev/zero", "tables/item.safetensors", "max", "mean", "hashed", "dynamic", "float64"),
)


class Dense(torch.nn.Module):
    """A dense part with sizes in its graph, and a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(14, 4), torch.nn.Linear(8, 1)
        self.register_buffer("order", torch.tensor([1, 0, 3, 2]), persistent=False)

    def forward(self, dense: torch.Tensor, vectors: list[torch.Tensor]) -> torch.Tensor:
        x = torch.relu(self.first(torch.cat([dense, *vectors], 1))) * torch.tensor(0.5)
        pairs = torch.stack([x, x.index_select(1, self.order)], 1)
        return self.last(pairs.reshape(dense.shape[0] * 2, 4).view(dense.shape[0], 8)).squeeze(1)


def make_export(folder: Path, embeddings: str) -> None:
    """An export of a declared and of a dynamic table, in either kind of file."""
    torch.manual_seed(0)
    rng, dense, batch = np.random.default_rng(0), Dense().eval(), torch.export.Dim("batch", min=1)
    given = (torch.zeros(3, 2), [torch.zeros(3, 4) for _ in range(3)])
    shapes = ({0: batch}, [{0: batch} for _ in range(3)])
    (folder / "tables").mkdir(parents=True)
    with torch.no_grad():
        graph = torch.export.export(dense, given, dynamic_shapes=shapes)
        write_graph(graph, "dense", folder / MODEL, folder / WEIGHTS)
    arrays = {"user": {"rows": rng.random((30, 4))}, "item": {"ids": np.arange(7) * 5 - 9, "rows": rng.random((7, 4))}}
    tables: dict[str, Any] = {}
    for name, kind in (("user", "declared"), ("item", "dynamic")):
        file = table_file(name, embeddings)
        types = {key: ("<i8" if key == "ids" else "<f4", array.shape) for key, array in arrays[name].items()}
        written = ArrayFile(folder / file, types, {"table": name})
        for key, array in arrays[name].items():
            written.put(key, slice(None), array)
        tables[name] = {"file": file, "rows": len(arrays[name]["rows"]), "width": 4, "kind": kind}
    feature = {"cardinality": 30, "weighted": False, "bag": False}
    lookups = (("user", "user", "sum"), ("tags", "user", "mean"), ("item", "item", "max"))
    facts = {
        "step": 7,
        "dtype": "float32",
        "labels": 1,
        "dense_inputs": 2,
        "embeddings": embeddings,
        "tables": tables,
        "features": [
            {**feature, "name": "user"},
            {**feature, "name": "tags", "weighted": True, "bag": True},
            {**feature, "name": "item", "cardinality": 0, "bag": True},
        ],
        "inputs": [{"feature": f, "table": t, "pooling": p} for f, t, p in lookups],
    }
    write_facts(folder, facts)
    wanted = computed(folder)
    assert wanted is not None
    np.testing.assert_allclose(predict_export(folder), wanted, rtol=0, atol=1e-6)


SPARSE: dict[str, Any] = {
    "user": np.array([3, 29, 0, 3, 7]),
    "tags": (np.array([1, 2, 3, 9]), np.array([0, 2, 2, 3, 3, 4]), np.array([0.5, 2, 1, 1], np.float32)),
    "item": (np.array([-9, 1, 8, 21]), np.array([0, 1, 2, 3, 4, 4])),
}
DENSE_INPUTS = np.linspace(-1, 1, 10, dtype=np.float32).reshape(5, 2)


def predict_export(folder: Path) -> np.ndarray:
    return Exported(folder).predict(SPARSE, DENSE_INPUTS)


def computed(folder: Path) -> np.ndarray | None:
    """The same from the arrays as other readers find them, sample by sample, by the module and not by its graph.

    None where ids of the dynamic table do not rise: there an id may be taken for one that has no row, and checksums
    alone (``hpcrec checkpoint verify``) tell.
    """
    torch.manual_seed(0)
    dense, tables = Dense().eval(), [next((folder / "tables").glob(f"{name}.*")) for name in ("user", "item")]
    user, item = (load_file(p) if p.suffix == ".safetensors" else load_hdf5(p) for p in tables)
    if (np.diff(item["ids"]) <= 0).any():
        return None
    row_of = dict(zip(item["ids"].tolist(), item["rows"], strict=True))
    (tags, tag_at, weights), (items, item_at) = SPARSE["tags"], SPARSE["item"]
    vectors = np.zeros((3, 5, 4), np.float32)
    for i in range(5):
        vectors[0, i] = user["rows"][SPARSE["user"][i]]
        bag = slice(tag_at[i], tag_at[i + 1])
        if tag_at[i] < tag_at[i + 1]:
            vectors[1, i] = np.mean(user["rows"][tags[bag]] * weights[bag, None], 0)
        if item_at[i] < item_at[i + 1]:
            vectors[2, i] = np.max([row_of.get(k, np.zeros(4)) for k in items[item_at[i] : item_at[i + 1]].tolist()], 0)
    with torch.no_grad():
        logits = dense(torch.from_numpy(DENSE_INPUTS), list(torch.from_numpy(vectors)))
    return torch.sigmoid(logits).numpy()


def load_hdf5(path: Path) -> dict[str, np.ndarray]:
    with h5py.File(path) as file:
        return {name: data[()] for name, data in file.items()}


def seal_export(folder: Path, *, sealed: bool = True) -> None:
    """Sizes and checksums that agree with the files again; where not sealed, sizes alone."""
    facts = json.loads((folder / EXPORT).read_text())
    for name, said in facts["files"].items():
        if (folder / name).is_file():
            said.update({k: v for k, v in file_facts(folder / name).items() if sealed or k == "bytes"})
    (folder / EXPORT).write_text(json.dumps(facts))


def changed_export(rng: Random, folder: Path) -> Path:
    """A fresh copy, safetensors or HDF5."""
    kind = str(rng.choice(["safetensors", "hdf5"]))
    if not (folder / kind).exists():
        make_export(folder / kind, kind)
    export = folder / "export"
    shutil.rmtree(export, ignore_errors=True)
    shutil.copytree(folder / kind, export)
    return export


def export_bytes(rng: Random, folder: Path) -> None:
    """Bytes of an export's files: an error, or what the module computes of the arrays as others read them."""
    export = changed_export(rng, folder)
    path = rng.choice(sorted(p for p in export.rglob("*") if p.is_file()))
    path.write_bytes(mutate_bytes(rng, path.read_bytes()))
    if path.parent.name == "tables" and rng.integers(2):
        seal_export(export)
    found = watched(lambda: predict_export(export))
    with np.errstate(all="ignore"):  # bytes may have made it infinite
        wanted = computed(export)
    if wanted is not None:
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6)


def export_structure(rng: Random, folder: Path) -> None:
    """An export by a program that departs from the format or means harm, checksums and all: an error, or numbers."""
    export = changed_export(rng, folder)
    match rng.integers(6):
        case 0:
            path = export / EXPORT
            path.write_text(json.dumps(change_json(rng, json.loads(path.read_text()))))
        case 1:
            path = next((export / "tables").glob(f"{rng.choice(['user', 'item'])}.*"))
            change_arrays(rng, path)
            seal_export(export)
        case 2:
            change_arrays(rng, export / WEIGHTS)
            seal_export(export)
        case _:
            path = export / MODEL
            graph = json.loads(path.read_text())
            for _ in range(rng.integers(1, 3)):
                graph = change_json(rng, graph)
            path.write_text(json.dumps(graph))
            seal_export(export)
    found = watched(lambda: predict_export(export))
    assert found.dtype == np.float32 and found.shape == (5,)


def change_arrays(rng: Random, path: Path) -> None:
    if path.suffix == ".h5":
        with h5py.File(path, "r+") as file:
            change_hdf5(rng, file, list(file))
        return
    content = path.read_bytes()
    n_bytes = int.from_bytes(content[:8], "little")
    header = json.dumps(change_json(rng, json.loads(content[8 : 8 + n_bytes]))).encode()
    header += b" " * (-len(header) % 8)
    path.write_bytes(len(header).to_bytes(8, "little") + header + content[8 + n_bytes :])


def change_json(rng: Random, tree: Any) -> Any:
    """Another value, name or order of one entry, anywhere in it."""
    if rng.random() < 0.02 or not isinstance(tree, dict | list) or not tree:
        return HOSTILE[int(rng.integers(len(HOSTILE)))] if rng.integers(2) else anything(rng)
    keys: list[Any] = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
    key = keys[int(rng.integers(len(keys)))]
    match rng.integers(12):
        case 0:
            del tree[key]
        case 1:
            other = keys[int(rng.integers(len(keys)))]
            tree[key], tree[other] = tree[other], tree[key]
        case 2 if isinstance(tree, dict):
            tree[str(HOSTILE[int(rng.integers(len(HOSTILE)))])] = tree[key]
        case 2:
            tree.append(tree[key])
        case _:
            tree[key] = change_json(rng, tree[key])
    return tree


FORBIDDEN = ("pickle.", "os.", "subprocess.", "socket.", "ctypes.", "shutil.")
WATCH: dict[str, Any] = {"on": False, "hooked": False}


def watched(call: Callable[[], Any]) -> Any:
    """Calls it; that it runs and unpickles nothing, starts no process and writes no file is looked at."""
    if not WATCH["hooked"]:
        predict_export(next(p for p in Path(sys.argv[-1]).glob("*/") if (p / EXPORT).exists() and p.name != "export"))
        sys.addaudithook(audit)
        WATCH["hooked"] = True
    WATCH.update(on=True, seen=[])
    try:
        found = call()
    finally:
        WATCH["on"] = False
        assert not WATCH["seen"], WATCH["seen"]
        assert not Path("canary").exists()
    return found


def audit(event: str, arguments: tuple[Any, ...]) -> None:
    if not WATCH["on"]:
        return
    if event in ("exec", "compile"):  # modules of Python and torch are loaded when they are first needed
        source = arguments[0].co_filename if event == "exec" else arguments[1]
        wrong = not str(source).startswith((sys.prefix, sys.base_prefix, "<frozen "))
    elif event == "open":
        wrong = isinstance(arguments[1], str) and bool(set(arguments[1]) & set("wax+"))
    else:
        wrong = event.startswith(FORBIDDEN) and event not in ("os.listdir", "os.scandir")
    if wrong:
        WATCH["seen"].append((event, str(arguments)[:200]))


# ---- runs ------------------------------------------------------------------------------------------------------------

KINDS: dict[str, Callable[[Random, Path], None]] = {
    f.__name__: f
    for f in (
        *(config_text, config_values, tsv, data_bytes, data_structure),
        *(checkpoint_bytes, checkpoint_structure),
        *(export_bytes, export_structure),
    )
}


def outcome(kind: str, seed: int, folder: Path) -> str:
    """``error`` or ``result``; anything else is raised."""
    try:
        KINDS[kind](np.random.default_rng([sorted(KINDS).index(kind), seed]), folder)
    except HpcrecError as error:
        text = str(error)
        assert text.strip() and "\n" not in text, f"not one line: {text!r}"
        return "error"
    return "result"


def main(kind: str, first: int, count: int, folder: Path) -> None:
    """Prints ``seed KIND N`` before each seed, and the numbers of outcomes at the end."""
    if kind.startswith("checkpoint"):  # or errors would say nothing
        make_checkpoint(folder / "sound")
        read_checkpoint(folder / "sound")
    warnings.simplefilter("error")
    counts = {"error": 0, "result": 0}
    for seed in range(first, first + count):
        print(f"seed {kind} {seed}", flush=True)
        signal.alarm(LIMIT_S)
        counts[outcome(kind, seed, folder)] += 1
    print(json.dumps(counts), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
