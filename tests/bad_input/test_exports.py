"""Exports from strangers: what would run, read or write something is refused with an error that names it, and not run.

A command in a file would make ``canary``, which is looked for after each.
"""

import io
import json
import operator
import os
import pickle
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from hpcrec.errors import CheckpointError
from hpcrec.serving import Exported
from hpcrec.serving.entries import read_entries
from hpcrec.serving.folder import damages, fingerprint
from hpcrec.serving.graph import _read_weights
from hpcrec.serving.operators import _ATEN, NAME_OF, find_operator
from tests.bad_input.fuzz import make_export, predict_export, seal_export
from tests.forked import ROOT


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("made")
    for kind in ("safetensors", "hdf5"):
        make_export(folder / kind, kind)
    return {kind: folder / kind for kind in ("safetensors", "hdf5")}


@pytest.fixture
def export(tmp_path: Path, made: dict[str, Path]) -> Path:
    return copied(made["safetensors"], tmp_path / "export")


def copied(whole: Path, to: Path) -> Path:
    for path in whole.rglob("*"):
        if path.is_file():
            (to / path.relative_to(whole)).parent.mkdir(parents=True, exist_ok=True)
            (to / path.relative_to(whole)).write_bytes(path.read_bytes())
    return to


def change(path: Path, how: Callable[[Any], object]) -> None:
    """Changes a JSON file of an export, whose checksums then agree again."""
    read = json.loads(path.read_text())
    how(read)
    path.write_text(json.dumps(read))
    seal_export(path.parent)


def refused(export: Path, *says: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        predict_export(export)
    text = str(caught.value)
    assert str(export) in text and "\n" not in text
    for words in says:
        assert words in text, text


def test_a_sound_export_predicts(made: dict[str, Path]) -> None:
    one, other = (predict_export(folder) for folder in made.values())
    np.testing.assert_array_equal(one, other)
    assert one.shape == (5,) and np.ptp(one) > 1e-3 and damages(made["hdf5"]) == []


# ---- files of torch's ------------------------------------------------------------------------------------------------


class Command:
    """Runs a command where it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


class Tiny(torch.nn.Module):
    def forward(self, dense: torch.Tensor, vectors: list[torch.Tensor]) -> torch.Tensor:
        return dense.sum(1) + sum(x.sum(1) for x in vectors)


def torch_file(path: Path, how: str, command: str) -> None:
    """What torch.export saves, with a command in it."""
    given = (torch.zeros(3, 2), [torch.zeros(3, 4), torch.zeros(3, 4)])
    batch = torch.export.Dim("batch", min=1)
    whole = io.BytesIO()
    torch.export.save(torch.export.export(Tiny(), given, dynamic_shapes=({0: batch}, [{0: batch}] * 2)), whole)
    with zipfile.ZipFile(whole) as read, zipfile.ZipFile(path, "w") as write:
        for name in read.namelist():
            content = read.read(name)
            if how == "pickle" and name.endswith("constants_config.json"):
                entry = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": True, "tensor_meta": None}
                content = json.dumps({"config": {"evil": entry}}).encode()
                write.writestr(f"{name.rsplit('/', 1)[0]}/opaque_obj_0", pickle.dumps(Command(command)))
            elif how == "expression" and name.endswith("models/model.json"):
                assert b'"expr_str"' in content
                said = json.loads(content)
                change_expressions(said, f"__import__('os').system({command!r})")
                content = json.dumps(said).encode()
            write.writestr(name, content)


def change_expressions(x: Any, to: str) -> None:
    for key in x if isinstance(x, dict) else range(len(x)) if isinstance(x, list) else ():
        if key == "expr_str":
            x[key] = to
        else:
            change_expressions(x[key], to)


@pytest.mark.parametrize("how", ["pickle", "expression"])
@pytest.mark.parametrize("version", [1, 2, 3])
def test_files_of_torch_are_not_read(export: Path, tmp_path: Path, version: int, how: str) -> None:
    canary = tmp_path / "canary"
    torch_file(export / "model.pt2", how, f"touch {canary}")
    (export / "model.json").unlink(missing_ok=True)
    facts = json.loads((export / "export.json").read_text())
    facts["files"].pop("model.json", None)
    facts["files"]["model.pt2"] = fingerprint(export / "model.pt2")
    (export / "export.json").write_text(json.dumps({**facts, "version": version}))
    with pytest.raises(Exception, match=r"Export the run again|is not known") as caught:
        Exported(export)
    assert not canary.exists(), "the file ran its command"
    assert isinstance(caught.value, CheckpointError)
    with pytest.raises(Exception):  # noqa: B017 - but torch runs it: the file is as hostile as it looks
        torch.export.load(export / "model.pt2").module()(torch.zeros(3, 2), "no vectors")
    assert canary.exists()


# ---- the graph -------------------------------------------------------------------------------------------------------

OPERATORS = (
    *("torch.hub.load", "torch.load", "torch.ops.aten.add.Tensor", "torch.ops.load_library", "os.system"),
    *("operator.attrgetter", "operator.methodcaller", "operator.call", "operator.pow", "operator.__add__"),
    *("math.floor", "math.__loader__", "builtins.eval", "builtins.getattr", "eval", "", ".", "..", "aten", "aten."),
    *("aten.from_file.default", "aten.set_.source_Storage", "aten.add_.Tensor", "aten.add.out", "aten.add.t"),
    *("aten.empty.memory_format", "aten.as_strided.default", "aten._sparse_csr_tensor_unsafe.default"),
    *("aten.add.__class__", "aten.add.Tensor.redispatch", "aten.add.op", "aten.__class__.default", "aten.mul.left_t"),
    *("higher_order.cond", "higher_order.map_impl", "prim.PythonOp", "aten.save.default", "quantized.linear.default"),
)


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_that_is_not_on_the_list(export: Path, name: str) -> None:
    change(export / "model.json", lambda graph: graph["nodes"][1].update(operator=name))
    refused(export, "model.json", f"nodes[1].operator is {json.dumps(name)}", "Allowed: operator.getitem")


def test_every_operator_of_the_list_is_one_of_torch() -> None:
    for name in _ATEN:
        overloads = getattr(torch.ops.aten, name).overloads()
        assert any(find_operator(f"aten.{name}.{overload}") for overload in overloads), name
    for name in NAME_OF.values():
        assert find_operator(name) is not None
    assert find_operator("aten.sym_size.int") is not None


def test_numbers_of_sizes_are_whole_and_of_64_bits() -> None:
    multiply, add = find_operator("operator.mul"), find_operator("operator.add")
    assert multiply is not None and add is not None
    assert multiply(6, 7) == 42 and operator.mul(2**62, 2) == 2**63
    for given in ((2**62, 2), ("a", 10), ([0], 10), (2.0, 3), (True, 3)):
        with pytest.raises(TypeError, match="64 bits"):
            multiply(*given)
    with pytest.raises(TypeError, match="64 bits"):
        add("__import__", "('os')")


def drawn(count: int, *words: str) -> dict[str, dict[str, Any]]:
    """Outcomes of so many drawn calls of each operator that has one of these words in its name."""
    line = [sys.executable, "-m", "tests.bad_input.operators", str(count), *words]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False, timeout=3000)
    assert done.returncode == 0, done.stderr[-2000:]
    found = [json.loads(text) for text in done.stdout.splitlines()]
    return {outcome["operator"]: outcome for outcome in found}


def test_operators_that_torch_leaves_unchecked_are_given_no_such_arguments() -> None:
    words = "batch_norm native_group_norm repeat_interleave div. scaled_dot clone max_pool1d gather"
    found = drawn(150, *words.split())
    assert {name: said["ended"] for name, said in found.items() if said["ended"]} == {}
    assert all(said["results"] > 0 for said in found.values()), found
    assert len(found) >= 12


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_no_operator_ends_the_process_whatever_it_is_given() -> None:
    found = drawn(500)
    assert {name: said["ended"] for name, said in found.items() if said["ended"]} == {}
    assert len(found) > 250


M, N = 2**62, -(2**63)
UNCHECKED: dict[str, tuple[str, str, list[Any], str]] = {
    "statistics that are too short": (
        *("_native_batch_norm_legit_no_training", "default"),
        [torch.ones(2, 4096), None, None, torch.zeros(1), torch.ones(1), 0.1, 1e-5],
        "running_mean has the shape [1], and [4096] is needed",
    ),
    "weights that are too short": (
        *("_native_batch_norm_legit_no_training", "default"),
        [torch.ones(1, 2**22), torch.ones(1), None, torch.zeros(2**22), torch.ones(2**22), 0.1, 1e-5],
        "weight has the shape [1]",
    ),
    "sizes of groups that wrap around": (
        "native_group_norm", "default", [torch.ones(1, 4, 8), None, None, 1, 4, M + 8, 4, 1e-5], "HxW is",
    ),
    "sizes of groups that are others": (
        "native_group_norm", "default", [torch.ones(1, 4, 8), None, None, 2, 4, 4, 4, 1e-5], "N, C, HxW are [2, 4, 4]",
    ),
    "weights of groups that are too short": (
        "native_group_norm", "default", [torch.ones(1, 4, 8), torch.ones(1), None, 1, 4, 8, 4, 1e-5], "[4] is needed",
    ),
    "repeats that wrap around": (
        "repeat_interleave", "Tensor", [torch.tensor([M, M, M, M + 8])], "more than 2**40 elements",
    ),
    "parts that wrap around": ("split_with_sizes", "default", [torch.ones(8), [M, M, M, M + 8]], "at most 2**40"),
    "copies that wrap around": ("repeat", "default", [torch.ones(4), [M + 2]], "at most 2**40"),
    "views that wrap around": ("expand", "default", [torch.ones(1), [2**21, 2**21]], "its result is"),
    "a division that ends the program": (
        "div", "Tensor_mode", [torch.tensor([N]), torch.tensor([-1]), "trunc"], "cannot be divided by -1",
    ),
    "values for fewer keys": (
        "scaled_dot_product_attention", "default",
        [torch.ones(1, 2, 64, 8), torch.ones(1, 2, 64, 8), torch.ones(1, 2, 3, 8)], "key and value have the shapes",
    ),
    "a window that wraps around": ("max_pool1d", "default", [torch.ones(1, 1, 4), [5], [1], [1], [M]], "at most 2**40"),
    "a wide window": ("max_pool1d", "default", [torch.ones(1, 1, 4), [2], [1], [1], [2**20]], "numbers up to 32768"),
    "a type as a number": ("to", "dtype", [torch.ones(4), 99], "dtype has to be a dtype"),
    "a format as a number": ("to", "dtype", [torch.ones(4), torch.float64, False, True, 4], "memory_format has to be"),
    "a tensor that is missing": ("add", "Tensor", [torch.ones(4), None], "other has to be a tensor"),
    "tensors of which one is missing": ("cat", "default", [[torch.ones(4), None]], "list of tensors"),
    "another device": ("to", "device", [torch.ones(4), "meta", torch.float32], "device is given"),
}  # fmt: skip


@pytest.mark.parametrize("kind", UNCHECKED)
def test_arguments_that_torch_does_not_check(kind: str) -> None:
    name, overload, arguments, says = UNCHECKED[kind]
    compute = find_operator(f"aten.{name}.{overload}")
    assert compute is not None
    with pytest.raises((TypeError, ValueError), match=re.escape(says)):
        compute(*arguments)


def test_truth_values_of_weights_are_0_or_1(tmp_path: Path) -> None:
    """torch counts by their bytes, and would hand out memory as it was for what it counted and did not find."""
    assert find_operator("aten.view.dtype") is None
    said = {"weights": {"mask": {"dtype": "bool", "shape": [3]}}}
    (tmp_path / "model.json").write_text(json.dumps(said))
    save_file({"mask": np.array([True, False, True])}, tmp_path / "model.safetensors")
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[:-3] + bytes([255, 0, 2]))
    entries = read_entries(tmp_path / "model.json").fields(("weights",))
    held = _read_weights(tmp_path / "model.safetensors", entries["weights"])
    assert held["mask"].view(torch.uint8).tolist() == [1, 0, 1]


def test_a_graph_whose_operator_would_read_beside_its_tensors(export: Path) -> None:
    def how(graph: Any) -> None:
        first = graph["inputs"][0]
        one = next(name for name, said in graph["weights"].items() if len(said["shape"]) == 1)
        args = [{"value": first}, None, None, {"weight": one}, {"weight": one}, 0.1, 1e-5]
        node = {"name": "evil", "operator": "aten._native_batch_norm_legit_no_training.default", "args": args}
        graph["nodes"].insert(0, node)

    change(export / "model.json", how)
    refused(export, "model.json", 'node "evil"', "running_mean has the shape")


GRAPHS: dict[str, tuple[Callable[[Any], object], str]] = {
    "an expression as a field": (
        lambda g: g["nodes"][0].update(expr_str="__import__('os').system('touch {canary}')"),
        'nodes[0] has "expr_str", which is not known. Allowed: name, operator, args, kwargs',
    ),
    "an expression as an argument": (
        lambda g: g["nodes"][0]["args"].append({"as_expr": {"expr_str": "__import__('os').system('touch {canary}')"}}),
        'is {"as_expr": {"expr_str":',
    ),
    "an expression as a size": (
        lambda g: next(n for n in g["nodes"] if "view" in n["operator"])["args"].__setitem__(
            1, ["__import__('os').system('touch {canary}')", 4]
        ),
        "aten.view.default) cannot be computed",
    ),
    "another field": (lambda g: g.update(constants={}), 'it has "constants", which is not known'),
    "a field is missing": (lambda g: g.pop("output"), "it has no 'output'"),
    "another format": (lambda g: g.update(format="torch"), 'format is "torch". Allowed: hpcrec graph'),
    "another version": (lambda g: g.update(version=True), "version is true. Allowed: a whole number from 1 to 1"),
    "a later value": (
        lambda g: g["nodes"][0]["args"].__setitem__(0, {"value": g["output"]}),
        "Allowed: the name of an input or of an earlier node",
    ),
    "a weight that is not there": (
        lambda g: g["nodes"][0]["args"].__setitem__(0, {"weight": "../../secret"}),
        'args[0].weight is "../../secret". Allowed:',
    ),
    "a type that is none": (
        lambda g: g["nodes"][0]["args"].__setitem__(0, {"dtype": "hub"}),
        'args[0].dtype is "hub". Allowed: float64',
    ),
    "a value of two kinds": (
        lambda g: g["nodes"][0]["args"].__setitem__(0, {"value": "x", "weight": "y"}),
        "Allowed: a number, true, false",
    ),
    "a number that is too large": (lambda g: g["nodes"][0]["args"].append(2**64), "Allowed: a whole number from -"),
    "lists in lists": (
        lambda g: g["nodes"][0]["args"].append(json.loads("[" * 700 + "]" * 700)),
        "Allowed: lists in lists, 8 deep",
    ),
    "a name twice": (lambda g: g["nodes"][1].update(name=g["nodes"][0]["name"]), "nodes[1].name is"),
    "an input too few": (lambda g: g["inputs"].pop(), "Allowed: 4 names, each once"),
    "an output that is none": (lambda g: g.update(output="os"), 'output is "os". Allowed:'),
    "an output of another shape": (lambda g: g.update(output=g["inputs"][0]), "output"),
    "a size that does not fit": (
        lambda g: next(n for n in g["nodes"] if "view" in n["operator"])["args"].__setitem__(1, [7, 7]),
        "cannot be computed",
    ),
}


@pytest.mark.parametrize("kind", GRAPHS)
def test_a_graph_that_is_not_allowed(export: Path, tmp_path: Path, kind: str) -> None:
    how, says = GRAPHS[kind]
    change(export / "model.json", how)
    text = (export / "model.json").read_text().replace("{canary}", str(tmp_path / "canary"))
    (export / "model.json").write_text(text)
    seal_export(export)
    refused(export, "model.json", says)
    assert not (tmp_path / "canary").exists()


# ---- weights, tables and names of files ------------------------------------------------------------------------------


def test_weights_of_another_type_shape_or_name(export: Path) -> None:
    whole = load_file(export / "model.safetensors")
    for how, says in (
        (lambda w: w.update({"first.weight": w["first.weight"].astype(np.float64)}), "is float64 ["),
        (lambda w: w.update({"first.weight": w["first.weight"].T.copy()}), "model.json says float32 ["),
        (lambda w: w.pop("first.weight"), 'has the weight "first.weight", which'),
        (lambda w: w.update(more=np.zeros(3)), 'has the weight "more", which'),
    ):
        weights = dict(whole)
        how(weights)
        save_file(weights, export / "model.safetensors")
        seal_export(export)
        refused(export, "model.safetensors", says)


@pytest.mark.parametrize("name", ["model.json", "model.safetensors", "tables/user.safetensors", "export.json"])
def test_files_that_are_cut_short_or_gone(export: Path, name: str) -> None:
    whole = (export / name).read_bytes()
    for sealed in (False, True):
        for n in (0, 1, 7, len(whole) // 2, len(whole) - 2):
            (export / name).write_bytes(whole[:n])
            if name != "export.json":
                seal_export(export, sealed=sealed)
            refused(export, name)
    (export / name).unlink()
    refused(export, name)


def test_a_changed_byte_of_the_dense_part_is_told_when_it_is_opened(export: Path) -> None:
    for name in ("model.json", "model.safetensors"):
        whole = (export / name).read_bytes()
        (export / name).write_bytes(whole[:-2] + bytes([whole[-2] ^ 1]) + whole[-1:])
        refused(export, f"{name}: has another checksum")
        (export / name).write_bytes(whole)
    assert predict_export(export).shape == (5,)


FACTS: dict[str, tuple[Callable[[Any], object], str]] = {
    "a table outside": (
        lambda f: f["tables"]["user"].update(file="../secret.safetensors"),
        'tables.user.file is "../secret.safetensors". Allowed: tables/user.safetensors',
    ),
    "a table at the root": (lambda f: f["tables"]["user"].update(file="/etc/passwd"), "Allowed: tables/user.safe"),
    "a listed file outside": (lambda f: f["files"].update({"../x": f["files"]["model.json"]}), 'files has "../x"'),
    "a file that is not known": (lambda f: f["files"].update(x=f["files"]["model.json"]), 'files has "x", which is no'),
    "a file that is not listed": (lambda f: f["files"].pop("model.json"), "files has no 'model.json'"),
    "another field": (lambda f: f.update(plugin="os"), '"plugin", which is not known'),
    "a table that is not there": (lambda f: f["inputs"][0].update(table="other"), 'inputs[0].table is "other"'),
    "another width": (lambda f: f["tables"]["user"].update(width=5), "Allowed by export.json: rows [30, 5]"),
    "more rows": (lambda f: f["tables"]["user"].update(rows=31), "Allowed by export.json: rows [31, 4]"),
    "another kind": (lambda f: f["tables"]["item"].update(kind="declared"), "'ids' int64"),
    "no labels": (lambda f: f.update(labels=0), "labels is 0. Allowed: a whole number from 1"),
    "another label": (lambda f: f.update(labels=2), "Allowed: logits [3, 2]"),
    "keeps too many": (lambda f: f["inputs"][0].update(keep=5), "inputs[0].keep is 5. Allowed: a whole number from 1"),
    "half a character": (lambda f: f["tables"].update({"\ud800": {}}), "surrogates not allowed"),
}


@pytest.mark.parametrize("kind", FACTS)
def test_facts_that_are_not_allowed(export: Path, kind: str) -> None:
    how, says = FACTS[kind]
    facts = json.loads((export / "export.json").read_text())
    how(facts)
    (export / "export.json").write_text(json.dumps(facts))
    refused(export, says)


def test_a_name_twice_in_one_object(export: Path) -> None:
    for name in ("export.json", "model.json"):
        whole = (export / name).read_text()
        (export / name).write_text(whole.replace("{", '{"version": 7,', 1))
        if name == "model.json":
            seal_export(export)
        refused(export, f'{name}: is not of an export ("version" is there twice)')
        (export / name).write_text(whole)


def test_tables_in_hdf5_that_lead_elsewhere(tmp_path: Path, made: dict[str, Path]) -> None:
    """Links, arrays that are kept in other files, and arrays of what is no number."""
    export = copied(made["hdf5"], tmp_path / "export")
    path = export / "tables" / "user.h5"
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["rows"] = np.zeros((30, 4), np.float32)
    (tmp_path / "raw").write_bytes(bytes(30 * 16))
    for how, says in (
        (lambda f: f.__setitem__("rows", h5py.ExternalLink(str(tmp_path / "other.h5"), "rows")), "is a ExternalLink"),
        (lambda f: f.__setitem__("rows", h5py.SoftLink("/x")), "is a SoftLink"),
        (
            lambda f: f.create_dataset(
                "rows", (30, 4), "<f4", external=[(str(tmp_path / "raw"), 0, h5py.h5f.UNLIMITED)]
            ),
            "not contiguous",
        ),
        (lambda f: f.create_dataset("rows", (30, 4), h5py.string_dtype()), "is no array of"),
        (lambda f: f.create_dataset("rows", (30, 4), "<f4", chunks=(10, 4)), "not contiguous"),
        (lambda f: f.create_group("rows"), "is no array of"),
    ):
        with h5py.File(path, "w") as file:
            how(file)
        seal_export(export)
        refused(export, "user.h5", says)
