"""Exports: what they predict is what ``hpcrec predict`` of the run does, in one process and without MPI."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.numpy import load_file

from hpcrec import again
from hpcrec.api import commands
from hpcrec.build.export import export
from hpcrec.checkpoint.tools import by_id
from hpcrec.cli.checkpoint import checkpoint
from hpcrec.config import Config, to_toml
from hpcrec.errors import CheckpointError, ConfigError, DataError
from hpcrec.models import MODELS
from hpcrec.serving import Exported
from hpcrec.serving.arrays import ArrayFile, read_arrays
from hpcrec.serving.folder import MODEL, WEIGHTS, table_file
from hpcrec.serving.graph import Graph
from hpcrec.serving.predict import predict_data
from tests.checkpoint.tools.test_tools import WITHOUT_MPI
from tests.lookups import Lookups
from tests.pairs import in_step
from tests.training import dynamic_runs
from tests.training.dynamic_runs import dynamic_config
from tests.training.runs import config_for, write_data

ROOT = Path(__file__).resolve().parents[3]
TRAIN = {"batch_size": 13, "dtype": "float32", "steps": 6}
HASHED = {t: {"rows": rows, "hashed": True} for t, rows in (("user", 17), ("item", 40), ("tag", 30))}
CASES: dict[str, dict[str, Any]] = {
    **{name: {"model": {"name": name}} for name in MODELS},
    "sum": {"model": {"name": "deepfm", "pooling": {}}},
    "max": {"model": {"name": "dlrm", "pooling": {"history": "max", "item": "max"}}},
    "mean of weighted ids": {"model": {"name": "dcn", "pooling": {"tag": "mean", "history": "mean"}}},
    "hashed": {"model": {"name": "deepfm"}, "embedding": {"tables": HASHED}},
    "columns": {"embedding": {"tables": {t: {"shard": "column"} for t in HASHED}}},
    "low rank": {"model": {"name": "dcn", "options": {"low_rank": 2}}},
    "dropout": {"model": {"name": "wide_deep", "options": {"dropout": 0.3}}},
    "some features": {"data": {"features": ["tag", "user"]}, "model": {"name": "deepfm", "pooling": {}}},
}


def trained(folder: Path, **sections: Any) -> Config:
    data = {"chunk": 8, "window": 3, "train": str(folder / "data.h5"), **sections.pop("data", {})}
    if "features" in data:
        sections["embedding"] = {"share": {}, **sections.get("embedding", {})}
    config = config_for(folder, **{"train": TRAIN, "data": data, **sections})
    commands.train(config)
    return config


def both(config: Config, folder: Path, data: Path, embeddings: str) -> tuple[np.ndarray, np.ndarray]:
    """Predictions of the run and of its export."""
    commands.predict(config, data=str(data), out=folder / "run.h5", checkpoint="last")
    out = export(config, folder / "export", checkpoint="last", embeddings=embeddings)
    predict_data(out, data, folder / "exported.h5")
    found = []
    for name in ("run", "exported"):
        with h5py.File(folder / f"{name}.h5") as file:
            assert file.attrs["step"] == config.train.steps and file.attrs["data"] == str(data)
            assert len(file) > 1 or list(file) == ["prediction"], "one label without a name has no name of its own"
            found.append(np.stack([file[name][()] for name in sorted(file)], axis=-1))
    return found[0], found[1]


@pytest.mark.parallel([1])
@pytest.mark.parametrize("name", CASES)
def test_predicts_as_the_run_does(folder: Path, name: str) -> None:
    write_data(folder / "data.h5")
    write_data(folder / "other.h5", samples=333, seed=8)
    config = trained(folder, **CASES[name])
    embeddings = ("safetensors", "hdf5")[list(CASES).index(name) % 2]
    run, exported = both(config, folder, folder / "other.h5", embeddings)
    assert run.dtype == exported.dtype == np.float32 and np.ptp(run) > 1e-3
    np.testing.assert_allclose(exported, run, rtol=0, atol=1e-6)


WIRE: dict[str, tuple[dict[str, Any], str]] = {  # [exchange], and how the export differs from the run
    "dct": ({"codec": "dct", "dct": {"density": 0.5, "values": "fp32"}}, ""),
    "dct by feature": ({"codec": "dct", "dct": {"density": 0.5, "values": "fp32", "threshold": "feature"}}, ""),
    "dct in bf16": ({"codec": "dct", "dct": {"density": 0.5, "values": "bf16"}}, ""),
    "dct in training alone": ({"codec": "dct", "dct": {"density": 0.5, "values": "bf16", "evaluate": False}}, ""),
    "dct of auto": ({"codec": "dct", "form": "auto", "auto_steps": 1, "dct": {"density": 0.5, "values": "fp32"}}, ""),
    "dct of some": (
        {"codec": "dct", "forms": {"user": "partial", "tag": "partial"}, "dct": {"density": 0.5, "values": "fp32"}},
        "",
    ),
    "bf16": ({"codec": "bf16"}, ""),
    "bf16, rows": ({"codec": "bf16", "form": "rows"}, ""),
    "bf16, partial": ({"codec": "bf16", "form": "partial"}, "partial results of operators .* not rounded to bf16"),
    "fp16": ({"codec": "fp16"}, "not rounded to fp16"),
    "dct in fp16": ({"codec": "dct", "dct": {"density": 0.5}}, "not rounded to fp16"),
}


@pytest.mark.filterwarnings("ignore:exchange.form is 'auto'")
@pytest.mark.parallel([1])
@pytest.mark.parametrize(("name", "model"), in_step(tuple(WIRE), ("deepfm", "dlrm")))
def test_vectors_are_as_the_wire_leaves_them_in_the_run_or_it_is_said_how_not(
    folder: Path, name: str, model: str
) -> None:
    write_data(folder / "data.h5")
    write_data(folder / "other.h5", samples=333, seed=8)
    exchange, unlike = WIRE[name]
    config = trained(folder, model={"name": model}, exchange=exchange, embedding={"init_scale": 1.0})
    run, exported = both(config, folder, folder / "other.h5", "safetensors")
    facts = json.loads((folder / "export" / "export.json").read_text())
    said = facts["differences"]
    away = np.abs(exported - run).max()
    done = {step for lookup in facts["inputs"] for step in ("keep", "tau", "vectors", "rows") if step in lookup}
    if unlike and not (name.startswith("bf16") and model == "dlrm"):  # none of its operators stays with owners
        assert len(said) == 1 and re.search(unlike, said[0]) and 0 < away < 5e-2
    else:
        assert said == [] and away < 1e-6
    for lookup in facts["inputs"]:  # vectors that are left whole, or not rounded
        for step in done:
            lookup.pop(step, None)
    (folder / "export" / "export.json").write_text(json.dumps(facts))
    if done:
        predict_data(folder / "export", folder / "other.h5", folder / "whole.h5")
        with h5py.File(folder / "whole.h5") as file:
            assert np.abs(file["prediction"][()] - run).max() > 100 * max(1e-6, away * bool(unlike) / 100)


@pytest.mark.parallel([1])
def test_thresholds_that_a_checkpoint_lacks_are_told(folder: Path) -> None:
    """Another density than that of training: the run finds those of each batch, as no export can."""
    write_data(folder / "data.h5")
    dct = {"density": 0.3, "values": "fp32", "threshold": "feature"}
    config = trained(folder, exchange={"codec": "dct", "dct": dct})
    other = replace(config, exchange=replace(config.exchange, dct=replace(config.exchange.dct, density=0.5)))
    facts = json.loads((export(other, folder / "export", checkpoint="last") / "export.json").read_text())
    assert len(facts["differences"]) == 1
    assert facts["differences"][0].startswith(
        "vectors of user, item, history, tag are whole: the checkpoint lacks their thr"
    )
    (folder / "config.toml").write_text(to_toml(config))
    arguments = ["export", str(folder / "config.toml"), str(folder / "told"), "--set", "exchange.dct.density=0.5"]
    result = CliRunner().invoke(checkpoint, [*arguments, "--checkpoint", "last"])
    assert result.exit_code == 0 and "unlike 'hpcrec predict' of the run: vectors of user, item" in result.output


@pytest.mark.parallel([1])
@pytest.mark.parametrize(("labels", "model"), in_step((1, 3), ("deepfm", "fm")))
def test_several_labels_and_double_precision(folder: Path, labels: int, model: str) -> None:
    write_data(folder / "data.h5", labels=labels)
    train = {**TRAIN, "dtype": "float64"}
    run, exported = both(trained(folder, model={"name": model}, train=train), folder, folder / "data.h5", "hdf5")
    assert exported.shape == (70, labels)
    np.testing.assert_allclose(exported, run, rtol=0, atol=1e-7)


@pytest.mark.parallel([1])
@pytest.mark.parametrize(("pooling", "embeddings"), in_step(("sum", "mean", "max"), ("safetensors", "hdf5")))
def test_dynamic_tables(folder: Path, embeddings: str, pooling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids without a row too: some lost theirs, some are not in the training data; tables pass scratch files."""
    monkeypatch.setattr(by_id.edges_of, "__defaults__", (400,))
    monkeypatch.setattr(by_id.ranges_of, "__defaults__", (None, 400))
    dynamic_runs.write_data(folder / "data.h5", samples=30)
    dynamic_runs.write_data(folder / "other.h5", samples=100, seed=9)
    model = {"name": "deepfm", "pooling": {"history": pooling}}
    config = dynamic_config(folder, {"capacity": 20, "evict": "lru"}, train=TRAIN, model=model)
    commands.train(config)
    run, exported = both(config, folder, folder / "other.h5", embeddings)
    np.testing.assert_allclose(exported, run, rtol=0, atol=1e-6)
    arrays = read_arrays(next((folder / "export" / "tables").glob("user.wide.*")))
    assert (np.diff(arrays["ids"]) > 0).all() and 0 < len(arrays["ids"]) == len(arrays["rows"]) <= 20


@pytest.mark.parallel([3])
def test_of_a_run_on_several_ranks(folder: Path) -> None:
    """Rows and first layers that owners trained."""
    from mpi4py import MPI

    write_data(folder / "data.h5")
    config = trained(folder, model={"name": "deepfm"}, exchange={"form": "partial"}, topology={"mode": "split"})
    commands.predict(config, data=str(folder / "data.h5"), out=folder / "run.h5", checkpoint="last")
    if MPI.COMM_WORLD.rank == 0:
        predict_data(export(config, folder / "export"), folder / "data.h5", folder / "exported.h5")
        with h5py.File(folder / "run.h5") as a, h5py.File(folder / "exported.h5") as b:
            np.testing.assert_allclose(b["prediction"][()], a["prediction"][()], rtol=0, atol=1e-6)


@pytest.mark.parallel([1])
def test_groups_and_products_in_bfloat16(folder: Path) -> None:
    write_data(folder / "data.h5")
    run, exported = both(trained(folder, dense={"autocast": "bf16"}), folder, folder / "data.h5", "hdf5")
    np.testing.assert_allclose(exported, run, rtol=0, atol=4e-3)  # a unit in the last place of bfloat16 is 2^-8
    assert json.loads((folder / "export" / "export.json").read_text())["autocast"] == "bf16"


@pytest.mark.parallel([1])
def test_one_sample_and_what_is_refused(folder: Path) -> None:
    write_data(folder / "data.h5")
    config = trained(folder)
    both(config, folder, folder / "data.h5", "safetensors")
    model = Exported(folder / "export")
    with h5py.File(folder / "exported.h5") as file:
        wanted = file["prediction"][()]
    sparse: dict[str, Any] = {
        "user": np.array([3, 5]),
        "item": np.array([1, 2]),
        "history": (np.array([4, 4, 7]), np.array([0, 3, 3])),
        "tag": (np.array([1]), np.array([0, 0, 1]), np.array([0.5])),
    }
    dense = np.ones((2, 3), np.float32)
    pair = model.predict(sparse, dense)
    assert pair.shape == (2,) and pair.dtype == np.float32 and 0 < pair.min() <= pair.max() < 1
    alone = {
        "user": np.array([5]),
        "item": np.array([2]),
        "history": (np.array([], np.int64), np.array([0, 0])),
        "tag": (np.array([1]), np.array([0, 1]), np.array([0.5])),
    }
    np.testing.assert_allclose(model.predict(alone, dense[:1]), pair[1:], rtol=0, atol=1e-7)
    nothing = {name: np.zeros(0, np.int64) for name in ("user", "item")}
    nothing |= {"history": (np.zeros(0, np.int64), np.zeros(1, np.int64)), "tag": (np.zeros(0, int), [0], np.zeros(0))}
    assert model.predict(nothing, dense[:0]).shape == (0,) and len(wanted) == 70
    for change, says in (
        ({"user": None}, "feature 'user' is missing"),
        ({"colour": np.array([1, 2])}, "has no feature 'colour'"),
        ({"user": np.array([3, 40])}, "'user' has ids from 3 to 40. Allowed: 0 to 39"),
        ({"user": np.array([3])}, "different numbers of samples"),
        ({"user": np.array([3.5, 1.0])}, "needed are whole numbers"),
        ({"history": (np.array([1]), np.array([0, 2, 1]))}, "offsets that do not rise from 0 to its 1 ids"),
        ({"tag": sparse["tag"][:2]}, "needs weights"),
        ({"user": (sparse["user"], None, np.ones(2))}, "has no weights"),
    ):
        given = {name: value for name, value in {**sparse, **change}.items() if value is not None}
        with pytest.raises(DataError, match=says):
            model.predict(given, dense)
    with pytest.raises(DataError, match=r"dense has shape \[2, 1\], needed is \[2, 3\]"):
        model.predict(sparse, dense[:, :1])
    other = folder / "other"
    other.mkdir()
    dynamic_runs.write_data(other / "data.h5")
    with pytest.raises(DataError, match="feature 'user' has cardinality 0"):
        predict_data(folder / "export", other / "data.h5", other / "out.h5")
    assert not (other / "out.h5").exists()
    with pytest.raises(CheckpointError, match="is there already"):
        export(config, folder / "export")


@pytest.mark.parallel([1])
def test_damage_is_found(folder: Path) -> None:
    write_data(folder / "data.h5")
    out = export(trained(folder), folder / "export")
    check = ["verify", str(out)]
    assert CliRunner().invoke(checkpoint, check, standalone_mode=False).return_value == 0
    raw = bytearray((out / "tables/user.safetensors").read_bytes())
    raw[-1] ^= 1
    (out / "tables/user.safetensors").write_bytes(raw)
    result = CliRunner().invoke(checkpoint, check, standalone_mode=False)
    assert result.return_value == 1 and "user.safetensors has another checksum" in result.output
    (out / "tables/user.safetensors").write_bytes(raw[:-1])
    with pytest.raises(CheckpointError, match=r"user.safetensors: has \d+ bytes, export.json says \d+"):
        Exported(out)
    (out / "tables/user.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"user.safetensors: is missing"):
        Exported(out)


OWN = """
import torch
from hpcrec.models import block_operators

class Model(torch.nn.Module):
    def __init__(self, features, n_dense, width):
        super().__init__()
        self.operators = block_operators(features, width)
        self.last = torch.nn.Linear(len(features) * width + n_dense, 1)
        self.register_buffer("n", torch.zeros(1))

    def forward(self, inputs, dense):
        x = torch.cat([inputs["block"].flatten(1), dense], 1)
        out = self.last(x)[:, 0]
        {more}
        return out

def build(features, n_dense, *, width, n_labels=1):
    return Model(features, n_dense, width)
"""


@pytest.mark.parallel([1])
def test_a_model_of_ones_own(folder: Path) -> None:
    write_data(folder / "data.h5")
    for name, more, says in (
        ("plain", "", ""),
        ("branching", "out = out if out.sum() > 0 else 2 * out", r"torch\.export cannot make a graph of it"),
        (
            "unlisted",
            "out = out + torch.special.bessel_j0(out)",
            r"has the operator aten\.special_bessel_j0\.default; al",
        ),
        ("counting", "self.n.add_(1)", r"has outputs BUFFER_MUTATION, USER_OUTPUT; allowed is one tensor"),
    ):
        (folder / f"{name}_model.py").write_text(OWN.format(more=more))
        model = {"name": f"{name}_model:build", "folder": str(folder), "pooling": {}}
        config = trained(folder, model=model, run={"folder": str(folder / name), "tensorboard": False})
        if says:
            with pytest.raises(ConfigError, match=says):
                export(config, folder / "export of it")
            assert not (folder / "export of it").exists()
        else:
            run, exported = both(config, folder, folder / "data.h5", "hdf5")
            np.testing.assert_allclose(exported, run, rtol=0, atol=1e-6)


@pytest.mark.parallel([1])
def test_commands_without_mpi(folder: Path) -> None:
    """Export and predict in a process that has no mpi4py, and what they refuse."""
    write_data(folder / "data.h5")
    config = trained(folder)
    (folder / "run.toml").write_text(to_toml(config))

    def run(*command: Any) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-c", WITHOUT_MPI, *map(str, command)]
        alone = {k: v for k, v in __import__("os").environ.items() if not k.startswith(("OMPI_", "PMI"))}
        return subprocess.run(line, capture_output=True, text=True, env=alone)

    out, data = folder / "export", folder / "data.h5"
    assert run("checkpoint", "export", folder / "run", out).returncode == 0
    ended = run("predict", out, "--data", data, "--out", folder / "p.h5")
    assert ended.returncode == 0 and "70 predictions" in ended.stdout, ended.stderr
    ended = run("predict", out, "--data", data, "--out", folder / "p.h5", "--checkpoint", "last")
    assert ended.returncode == 2 and "which --checkpoint is not for" in ended.stderr


@pytest.mark.parametrize("suffix", [".safetensors", ".h5"])
def test_arrays_in_place(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    shapes = {"ids": ("<i8", (5,)), "rows": ("<f4", (5, 3)), "none": ("<f8", (0, 3))}
    file = ArrayFile(path, shapes, {"table": "a"})
    file.put("ids", slice(0, 5), np.arange(5))
    file.put("rows", np.array([4, 0]), np.array([[1.0, 2], [3, 4]]), slice(1, 3))
    file.sync()
    wanted = np.zeros((5, 3), np.float32)
    wanted[4, 1:], wanted[0, 1:] = (1, 2), (3, 4)
    found = read_arrays(path)
    np.testing.assert_array_equal(found["rows"], wanted)
    np.testing.assert_array_equal(found["ids"], np.arange(5))
    assert found["none"].shape == (0, 3) and found["none"].dtype == np.float64
    if suffix == ".h5":
        with h5py.File(path) as file:
            np.testing.assert_array_equal(file["rows"][()], wanted)
            assert file.attrs["table"] == "a"
    else:
        np.testing.assert_array_equal(load_file(path)["rows"], wanted)
        assert load_file(path)["none"].shape == (0, 3)


@pytest.mark.parallel([1])
@pytest.mark.parametrize("name", ["deepfm", "dlrm"])
def test_the_dense_part_needs_torch_alone(folder: Path, name: str) -> None:
    """By the lines of docs/checkpoint.md, which compute what hpcrec does."""
    write_data(folder / "data.h5")
    out = export(trained(folder, model={"name": name}, dense={"autocast": "bf16"}), folder / "export")
    facts = json.loads((out / "export.json").read_text())
    widths = [facts["dense_inputs"], *(facts["tables"][k["table"]]["width"] for k in facts["inputs"])]
    inputs = [torch.randn(7, width, generator=torch.Generator().manual_seed(1)) for width in widths]
    torch.save(inputs, folder / "inputs.pt")
    lines = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "checkpoint.md").read_text(), re.DOTALL)
    (code,) = (text for text in lines if "model.json" in text)
    code = (
        f"import torch\ndense, *vectors = torch.load({str(folder / 'inputs.pt')!r})\n{code}"
        f"\ntorch.save(logits, {str(folder / 'logits.pt')!r})\n"
        "import sys\nassert not any(m.split('.')[0] in ('hpcrec', 'mpi4py') for m in sys.modules)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=out)
    assert ended.returncode == 0, ended.stderr
    graph = Graph(out / MODEL, out / WEIGHTS, widths, 1, torch.float32)
    assert torch.equal(torch.load(folder / "logits.pt"), graph(*inputs))
    assert facts["versions"]["torch"] == torch.__version__


def test_a_look_into_arrays_that_fails_once_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(again.time, "sleep", lambda seconds: None)
    with h5py.File(tmp_path / "user.h5", "w") as file:
        file.create_dataset("rows", data=np.ones((3, 2), np.float32))
    with monkeypatch.context() as patched:
        before = Lookups(patched, n=0, times=0)
        read_arrays(tmp_path / "user.h5")
    for n in range(1, before.count + 1):
        with monkeypatch.context() as patched:
            Lookups(patched, n, times=1)
            assert np.array_equal(read_arrays(tmp_path / "user.h5")["rows"], np.ones((3, 2)))


@pytest.mark.parametrize("embeddings", ["safetensors", "hdf5"])
def test_every_name_of_a_table_that_a_checkpoint_takes_is_one_of_a_file(embeddings: str) -> None:
    names = ["\u7528\u6237" * 40, "\u7528\u6237" * 40 + "x", "a:" * 60, "x" * 240, "x" * 250, "x" * 251, ".x", "a/b"]
    files = [Path(table_file(name, embeddings)) for name in names]
    assert len(set(files)) == len(names)
    assert all(len(file.name.encode()) <= 255 and file.parent == Path("tables") for file in files)
    assert table_file("user", "hdf5") == "tables/user.h5"
    assert files[3].stem == "x" * 240  # as it was, where it fits
