"""The configuration: what is refused and in which words, what loads and comes back, and its reference page."""

import dataclasses
import errno
import os
import tomllib
from pathlib import Path
from typing import get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrec import again, toml
from hpcrec.config import Config, load_config, reference, to_toml, validate, with_absolute_paths, with_copied_data
from hpcrec.config import keys as config_module
from hpcrec.errors import ConfigError, UnreadableError
from hpcrec.models import make_options
from hpcrec.systems import baseline, codistillation, dct, des, dmt, het, mtrains
from hpcrec.toml import Unset
from hpcrec.toml.reference import field_docs
from hpcrec.training.schedule import Schedule
from hpcrec.types import OptimizerSpec

SMALLEST = '[data]\ntrain = "train.h5"\n[run]\nfolder = "runs/x"\n'
WITH_VALIDATION = '[data]\ntrain = "train.h5"\nvalidation = "v.h5"\n[run]\nfolder = "runs/x"\n'
FULL = """
[data]
train = "a.h5"
validation = "b.h5"
features = ["user", "item", "user.id", "viewed"]
[model]
name = "my.module:build"
pooling = { viewed = "mean" }
options = { layers = [64, 32], nested = { x = 1, empty = {} }, word = "q\\"\\\\\\n\\u007f\\u00e9" }
[embedding]
optimizer = { name = "adagrad", lr = 1 }
share = { viewed = "item" }
[embedding.tables.user]
rows = 1000
hashed = true
shard = "row"
owners = [0, 2]
[embedding.tables."user.id"]
optimizer = { lr = 0.5 }
[embedding.tables.item]
optimizer = { name = "adam" }
init_scale = 0.0
[topology]
mode = "split"
owners = [0, 1]
dense = 2
[exchange]
forms = { "user.id" = "rows" }
[dense]
clip_norm = 1.5
[schedule]
kind = "cosine"
warmup_steps = 10
final = 0.1
[train]
eval_every = 100
early_stop = { metric = "logloss", patience = 2 }
"""
FULL_RUN = FULL + '[run]\nfolder = "runs/y"\n'


def load(tmp_path: Path, text: str, *overrides: str) -> Config:
    path = tmp_path / "run.toml"
    path.write_text(text)
    return load_config(path, overrides)


def refusal(tmp_path: Path, text: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, *overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


# lines added to the smallest file -> what the message has to say
WRONG = {
    "a word for a number": (
        '[train]\nbatch_size = "many"',
        ["train.batch_size", '"many"', "a whole number, at least 1"],
    ),
    "true for a number": ("[train]\nbatch_size = true", ["train.batch_size is true", "a whole number"]),
    "a fraction": ("[train]\nbatch_size = 1.5", ["train.batch_size is 1.5", "a whole number"]),
    "too small": ("[train]\nlog_every = 0", ["train.log_every is 0", "at least 1"]),
    "negative": ("[checkpoint]\nevery = -1", ["checkpoint.every is -1", "at least 0"]),
    "not a number": ("[dense]\nclip_norm = nan", ["dense.clip_norm is nan", "a number, above 0"]),
    "infinite": ("[embedding]\ninit_scale = inf", ["embedding.init_scale is inf", "a number"]),
    "a number for a word": ("[model]\nname = 3", ["model.name is 3", "text"]),
    "an unknown subsection": ("[model]\n[data.y]", ["data.y is not a key"]),
    "a number for a flag": (
        "[exchange]\n[topology]\n[schedule]\napply_to_embeddings = 1",
        ["apply_to_embeddings is 1", "true or false"],
    ),
    "a list for a word": ("[model]\nname = []", ["model.name is []", "text, not empty"]),
    "a line break in a path": (
        '[checkpoint]\nresume = "runs/a\\nrm -r b"',
        ['checkpoint.resume is "runs/a\\nrm -r b"', "text, not empty, without control characters"],
    ),
    "a wrong item": ("[topology]\nmode = 'split'\nowners = [0, 'a']", ['topology.owners is [0, "a"]', "a list, each"]),
    "a wrong choice": (
        "[exchange]\nform = 'pooed'",
        ['exchange.form is "pooed"', '"pooled", "rows"', 'Did you mean "pooled"?'],
    ),
    "a GPU's memory for rows that are not there": (
        "[store]\nmemory_bytes = 1000000",
        ["store.memory_bytes is 1000000", "store.name is 'dram'", "Remove one of them"],
    ),
    "an emulated store that is not one": (
        "[store]\ndevice = 'emulated'",
        ["store.device is 'emulated'", "store.name is 'dram'"],
    ),
    "products of float64 in bfloat16": (
        "[dense]\nautocast = 'bf16'\n[train]\ndtype = 'float64'",
        ["dense.autocast is 'bf16'", "train.dtype is 'float64'"],
    ),
    "products of an emulated device in bfloat16": (
        "[dense]\nautocast = 'bf16'\ndevice = 'emulated'",
        ["dense.autocast is set", "dense.device is 'emulated'"],
    ),
    "messages between GPUs that nothing is on": (
        "[exchange]\ngpu_messages = 'on'",
        ["exchange.gpu_messages is 'on'", "store.name", "dense.device"],
    ),
    "thresholded vectors from GPU to GPU": (
        "[store]\nname = 'gpu'\n[exchange]\ngpu_messages = 'on'\ncodec = 'dct'",
        ["exchange.gpu_messages is 'on'", "exchange.codec = 'dct'"],
    ),
    "a codec of nobody": ("[exchange]\ncodec = 'fp8'", ['exchange.codec is "fp8"', '"fp32", "bf16", "fp16", "dct"']),
    "halves of float64": (
        "[exchange]\ncodec = 'bf16'\n[train]\ndtype = 'float64'",
        ["exchange.codec is 'bf16'", "float64", "train.dtype = 'float32'"],
    ),
    "copies by fp16": (
        "[exchange]\ncodec = 'fp16'\nreplicate_rows = 9",
        ["exchange.replicate_rows asks for copies", "exchange.codec = 'bf16'"],
    ),
    "thresholds of rows": (
        "[exchange]\ncodec = 'dct'\nform = 'rows'",
        ["exchange.form is 'rows'", "shared by samples", "'pooled', 'partial' and 'auto'"],
    ),
    "an age of what has none": (
        "[exchange]\ncodec = 'dct'\n[exchange.dct]\nthreshold = 'vector'\nevery = 5",
        ["exchange.dct.every is 5", "every step", "exchange.dct.threshold = 'feature'"],
    ),
    "thresholds of nothing": (
        "[exchange.dct]\ndensity = 0.5",
        ["exchange.dct.density is 0.5", "exchange.codec is 'fp32'", "Set exchange.codec = 'dct'"],
    ),
    "nobody to learn from": (
        "[dense.codistillation]\nevery = 7",
        ["dense.codistillation.every is 7", "groups is 1", "nobody to learn from", "2 or more"],
    ),
    "groups of unequal batches": (
        "[train]\nbatch_size = 9\n[dense.codistillation]\ngroups = 2",
        ["dense.codistillation.groups is 2", "train.batch_size is 9", "a multiple of 2"],
    ),
    "a burn-in of nothing": (
        "[dense.codistillation]\ngroups = 2\nweight = 0\nburn_in_steps = 5",
        ["dense.codistillation.burn_in_steps is 5", "weight is 0", "raise the weight"],
    ),
    "tables for each of one group": (
        "[dense.codistillation]\nshare_embeddings = false",
        ["dense.codistillation.share_embeddings is false", "groups is 1", "nobody to learn from"],
    ),
    "a wrong pooling": ("[model]\npooling = {a = 'min'}", ["model.pooling.a", '"min"', '"sum", "mean", "max"']),
    "a wrong table": ('[embedding.tables."u.id"]\nrows = 0', ['embedding.tables."u.id".rows is 0', "at least 1"]),
    "another section's key": ("train = 3", ["run.train is not a key", "Did you mean data.train?", "folder"]),
    "a near key": (
        "[train]\nbatchsize = 5",
        ["train.batchsize is not a key", "Did you mean train.batch_size?", "eval_every"],
    ),
    "a far key": ("[exchange]\nclip_norm = 5", ["exchange.clip_norm is not a key", "Did you mean dense.clip_norm?"]),
    "an unknown key": ("[model]\nzzz = 5", ["model.zzz is not a key", "its value is 5", "Remove it", "name, folder"]),
    "an unknown section": ("[embeding]\nx = 5", ["embeding is not a key", "Did you mean embedding?", "data, model"]),
    "a nested unknown key": ("[dense.optimizer]\nlearning = 1", ["dense.optimizer.learning", "name, lr, options"]),
    "fused with roles": ("[topology]\nowners = 2", ["topology.owners is 2", "'fused'", "topology.mode = 'split'"]),
    "roles twice": (
        "[topology]\nmode = 'split'\ndense = 2\ndense_per_host = 1",
        ["topology.dense_per_host", "topology.dense"],
    ),
    "places of no rank": ("[topology]\nplaces = 0", ["topology.places is 0", "a whole number, at least 1"]),
    "places in words": ("[topology]\nplaces = 'hosts'", ['topology.places is "hosts"', "a whole number, at least 1"]),
    "no owner": ("[topology]\nmode = 'split'\nowners = []", ["topology.owners is []", "at least one rank"]),
    "an owner twice": ("[topology]\nmode = 'split'\nowners = [1, 1]", ["topology.owners is [1, 1]", "each once"]),
    "evaluation of nothing": ("[train]\neval_every = 5", ["train.eval_every", "data.validation"]),
    "early stop on nothing": ("[train]\neval_every=5\nearly_stop = {}", ["train.early_stop", "data.validation"]),
    "best of nothing": ("[checkpoint]\nkeep_best = true", ["checkpoint.keep_best", "data.validation"]),
    "eval_batches of nothing": ("[train]\neval_batches = 5", ["train.eval_batches", "data.validation"]),
    "a share loop": ("[embedding]\nshare = {a = 'b', b = 'c', c = 'a'}", ["embedding.share.a", "a -> b -> c -> a"]),
    "a table of a sharer": (
        "[embedding]\nshare = {a = 'b'}\n[embedding.tables.a]",
        ["embedding.tables.a", "table of 'b'"],
    ),
    "a form that cannot be": (
        "[exchange]\nforms = {a='rows'}\n[embedding.tables.a]\nshard='replicate'",
        ["exchange.forms.a is 'rows'", "embedding.tables.a.shard", "'replicate'"],
    ),
    "replicate as a form": (
        "[exchange]\nforms = {a='replicate'}",
        ["exchange.forms.a", '"replicate"', '"pooled", "rows"'],
    ),
    "towers left to who has them": (
        "[exchange]\nat_place = false",
        ["exchange.at_place is false", "no form is 'partial' or 'auto'", "Remove it"],
    ),
    "a choice that nobody makes": ("[exchange]\nauto_steps = 9", ["exchange.auto_steps is 9", "no form is 'auto'"]),
    "no batches to choose by": ("[exchange]\nform = 'auto'\nauto_steps = 0", ["exchange.auto_steps", "at least 1"]),
    "thresholding without compression": (
        "[dense.dct]\ndensity = 0.01",
        ["dense.dct.density is 0.01", "dense.compression is 'none'", "= 'dct'"],
    ),
    "no density": ("[dense]\ncompression='dct'\ndct={density=0}", ["dense.dct.density is 0", "above 0", "at most 1"]),
    "halves of doubles": (
        "[train]\ndtype='float64'\n[dense]\ncompression='dct'",
        ["dense.dct.values is 'fp16'", "train.dtype is 'float64'", "dense.dct.values = 'fp32'"],
    ),
    "parts without cutting": (
        "[embedding.tables.a]\nparts = 2",
        ["embedding.tables.a.parts", "row or column", "'auto'"],
    ),
    "parts and owners": (
        "[embedding.tables.a]\nshard='row'\nparts = 2\nowners=[0]",
        ["embedding.tables.a.parts", ".owners"],
    ),
    "two owners of a whole": (
        "[embedding.tables.a]\nshard='table'\nowners=[0,1]",
        ["embedding.tables.a.owners", "one owner"],
    ),
    "owners of anything": ("[embedding.tables.a]\nowners=[0]", ["embedding.tables.a.owners", "table, row or column"]),
    "hashed to nowhere": (
        "[embedding.tables.a]\nhashed = true",
        ["embedding.tables.a.hashed", "embedding.tables.a.rows"],
    ),
    "dynamic without capacity": ("[embedding.tables.a.dynamic]\nevict='lru'", ["embedding.tables.a.dynamic.capacity"]),
    "dynamic and declared": (
        "[embedding.tables.a]\nrows = 9\ndynamic = {capacity = 9}",
        ["embedding.tables.a.rows is 9", "embedding.tables.a.dynamic"],
    ),
    "dynamic and hashed": (
        "[embedding.tables.a]\nhashed = true\ndynamic = {capacity = 9}\nrows = 9",
        ["embedding.tables.a.", "embedding.tables.a.dynamic"],
    ),
    "dynamic columns": (
        "[embedding.tables.a]\nshard = 'column'\ndynamic = {capacity = 9}",
        ["embedding.tables.a.shard is 'column'", "Allowed: auto, row, host, table"],
    ),
    "pending without waiting": (
        "[embedding.tables.a.dynamic]\ncapacity = 9\npending = 5",
        ["embedding.tables.a.dynamic.pending is 5", "admit_from is 1"],
    ),
    "more waiting than are counted": (
        f"[embedding.tables.a.dynamic]\ncapacity = 9\nadmit_from = 2\npending = {2**32}",
        ["embedding.tables.a.dynamic.pending is 4294967296", "below 4294967296"],
    ),
    "never let in": (
        f"[embedding.tables.a.dynamic]\ncapacity = 9\nadmit_from = {2**63}",
        ["embedding.tables.a.dynamic.admit_from is 9223372036854775808", "below 9223372036854775808"],
    ),
    "two ways in": (
        "[embedding.tables.a.dynamic]\ncapacity = 9\nadmit_from = 2\nadmit_probability = 0.5",
        ["embedding.tables.a.dynamic.admit_probability is 0.5", "admit_from is 2"],
    ),
    "no way in": (
        "[embedding.tables.a.dynamic]\ncapacity = 9\nadmit_probability = 0.0",
        ["embedding.tables.a.dynamic.admit_probability is 0", "above 0", "at most 1"],
    ),
    "betas for adagrad": (
        "[embedding.optimizer]\nbeta1 = 0.5",
        ["embedding.optimizer.beta1 is 0.5", "'rowwise_adagrad'", "with: adam"],
    ),
    "a table's eps": (
        '[embedding.tables."a.b".optimizer]\nname="sgd"\neps=1',
        ['embedding.tables."a.b".optimizer.eps is 1.0', "'sgd'"],
    ),
    "a decay of nothing": ("[schedule]\nfinal = 0.5", ["schedule.final is 0.5", "'constant'", "linear, cosine"]),
    "falls without steps": ("[schedule]\nkind = 'step'", ["schedule.decay_steps", "'step'"]),
    "a decay in the warm-up": (
        "[schedule]\nkind='linear'\nwarmup_steps=9\ndecay_start=5",
        ["schedule.decay_start is 5", "9"],
    ),
}


@pytest.mark.parametrize(("lines", "words"), WRONG.values(), ids=WRONG)
def test_a_wrong_configuration_is_named_in_one_sentence(tmp_path, lines, words):
    message = refusal(tmp_path, SMALLEST + lines)
    assert message.startswith(f"{tmp_path}/run.toml: ")
    assert not [word for word in words if word not in message], message


def test_other_wrongs_are_counted(tmp_path):
    message = refusal(tmp_path, SMALLEST + "[model]\nname = 3\nwidth = 0\nzzz = 1")
    assert message.count("Allowed") == 1 and "2 more to correct:" in message
    assert all(key in message for key in ("model.name", "model.width", "model.zzz"))


def test_what_is_required_is_asked_for(tmp_path):
    message = refusal(tmp_path, "[model]\nwidth = 8")
    assert "data.train is missing" in message and "under [data]" in message and "run.folder" in message
    assert "run.folder is missing" in refusal(tmp_path, '[data]\ntrain = "x"\n[run]\n')


def test_a_file_that_is_no_configuration(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere.toml: cannot be read \(No such file or directory\)"):
        load_config(tmp_path / "nowhere.toml")
    assert "is not TOML" in refusal(tmp_path, "[data]\ntrain = train.h5")
    (tmp_path / "run.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="UTF-8"):
        load_config(tmp_path / "run.toml")


def test_a_file_that_cannot_be_read_just_now_is_read_again(tmp_path, monkeypatch):
    path = tmp_path / "run.toml"
    path.write_text(SMALLEST)
    real, left = Path.read_bytes, [errno.ESTALE, errno.EIO]

    def read_bytes(self: Path) -> bytes:
        if self == path and left:
            raise OSError(left[-1], os.strerror(left.pop()), str(self))
        return real(self)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    monkeypatch.setattr(again, "PAUSES_S", (0.0, 0.0))
    assert load_config(path).data.train == "train.h5" and not left
    left += [errno.EIO] * 9
    with pytest.raises(UnreadableError, match=r"run\.toml: cannot be read just now"):  # no ConfigError: 2 is for good
        load_config(path)
    left[:] = [errno.EACCES]
    with pytest.raises(ConfigError, match=r"run\.toml: cannot be read \(Permission denied\)\. See who may"):
        load_config(path)


def test_features_that_are_left_out_cannot_be_named(tmp_path):
    text = WITH_VALIDATION.replace("[run]", 'features = ["a"]\n[run]')
    for lines, key in [
        ("[model]\npooling = {b='sum'}", "model.pooling.b"),
        ("[exchange]\nforms = {b='rows'}", "exchange.forms.b"),
        ("[embedding]\nshare = {b='a'}", "embedding.share.b"),
    ]:
        message = refusal(tmp_path, text + lines)
        assert f"{key} names a feature that data.features leaves out. Allowed: a." in message
    assert "each feature once" in refusal(tmp_path, text.replace('["a"]', '["a", "a"]'))


def test_early_stop_without_evaluations(tmp_path):
    message = refusal(tmp_path, WITH_VALIDATION + "[train]\nearly_stop = {}")
    assert "train.early_stop" in message and "train.eval_every is 0" in message


WRONG_METRICS = {
    'evaluation.metrics=["auc", "AUC"]': "evaluation.metrics has one that is 'AUC'. Allowed: auc, pr_auc, logloss",
    'evaluation.metrics=["ndcg"]': "evaluation.metrics has one that is 'ndcg', which is of the first K samples",
    'evaluation.metrics=["ndcg@0"]': "evaluation.metrics has one that is 'ndcg@0'. Allowed: auc",
    'evaluation.metrics=["auc@3"]': "evaluation.metrics has one that is 'auc@3'. Allowed: auc",
    'evaluation.metrics=["a b:c"]': "evaluation.metrics has one that is 'a b:c', no import path",
    'evaluation.metrics=["auc", "auc"]': "evaluation.metrics names 'auc' twice",
    'evaluation.by=["a", "a"]': "evaluation.by names 'a' twice",
    'train.early_stop={metric="calibration"}': "train.early_stop.metric is 'calibration', which is best at 1",
    'train.early_stop={metric="recall"}': "train.early_stop.metric is 'recall', which is of the first K samples",
    'train.early_stop={metric="a.b:c"}': "train.early_stop.higher_is_better is missing, and 'a.b:c' is a metric of",
    'train.early_stop={metric="gauc", higher_is_better=true}': "higher_is_better is true, but of 'gauc' it is known",
}


@pytest.mark.parametrize("override", WRONG_METRICS)
def test_metrics_that_there_are_not_are_refused(tmp_path, override):
    message = refusal(tmp_path, WITH_VALIDATION + "[train]\neval_every = 5", override)
    assert WRONG_METRICS[override] in message


def test_which_way_a_metric_is_better(tmp_path):
    text = WITH_VALIDATION + "[train]\neval_every = 5\nearly_stop = {{ {} }}\n[evaluation]\nmetrics = ['recall@20']"
    for stop, rises in (
        ("metric = 'ndcg@10'", True),
        ("metric = 'rmse'", False),
        ("metric = 'a.b:c', higher_is_better = false", False),
        ("metric = 'a.b:c', higher_is_better = true", True),
    ):
        path = tmp_path / "config.toml"
        path.write_text(text.format(stop))
        assert load_config(path).train.best_rises is rises
    assert validate({"data": {"train": "a"}, "run": {"folder": "b"}}, "test").train.best_rises is True


# ---- overrides -------------------------------------------------------------------------------------------------------


def test_overrides_are_toml_or_words(tmp_path):
    config = load(
        tmp_path, SMALLEST, "train.steps=7", "data.train=data/x=1.h5", "model.name = lr", "embedding.optimizer.lr=1",
        "data.features=['a', 'b']", 'embedding.tables."a.b".rows=5', "run.progress=false", "train.steps=8",
        "model.options={x = 1}", "model.options.y=2",
    )  # fmt: skip
    assert (config.train.steps, config.data.train, config.model.name) == (8, "data/x=1.h5", "lr")
    assert config.embedding.optimizer.lr == 1.0 and isinstance(config.embedding.optimizer.lr, float)
    assert config.data.features == ("a", "b") and config.embedding.tables["a.b"].rows == 5
    assert config.run.progress is False and config.model.options == {"x": 1, "y": 2}


def test_a_wrong_override_is_named_instead_of_the_file(tmp_path):
    assert refusal(tmp_path, SMALLEST, "train.steps=ten").startswith('--set train.steps=ten: train.steps is "ten"')
    assert refusal(tmp_path, SMALLEST, "trian.steps=1").startswith("--set trian.steps=1: trian is not a key")
    assert refusal(tmp_path, SMALLEST, "topology.owners=1").startswith("--set topology.owners=1: topology.owners")
    assert "train.log_every" in refusal(tmp_path, SMALLEST + "[train]\nlog_every=0", "model.width=8")
    assert "has no '='" in refusal(tmp_path, SMALLEST, "train.steps")
    assert "'a b' is not a key" in refusal(tmp_path, SMALLEST, "a b=1")
    assert "'=5' " not in refusal(tmp_path, SMALLEST, "=5")
    assert "data.train is " in refusal(tmp_path, SMALLEST, "data.train.x=5")
    assert 'model.width is "1\\nx = 2"' in refusal(tmp_path, SMALLEST, "model.width=1\nx = 2")


def test_a_key_that_is_unset_has_its_default(tmp_path):
    text = SMALLEST + '[model]\nname = "lr"\n[model.options]\nx = 1\ny = 2\n'
    config = load(tmp_path, text, Unset("model.options.x"), Unset("model.name"))
    assert config.model.options == {"y": 2} and config.model.name == "dlrm"
    config = load(tmp_path, text, "model.options.z=3", Unset("model.options"))
    assert config.model.options == {"z": 3}, "first taken out, then set"
    assert load(tmp_path, text, "model.options.x=").model.options["x"] == "", "an empty text is a value"


def test_what_cannot_be_unset_is_named(tmp_path):
    text = SMALLEST + "[train]\nsteps = 5\n"
    said = refusal(tmp_path, text, Unset("train.stps"))
    assert said.startswith("--unset train.stps: train.stps is not set") and "Set in [train]: steps." in said
    assert "trian is not set" in refusal(tmp_path, text, Unset("trian.steps"))
    assert "train.steps.x is not set" in refusal(tmp_path, text, Unset("train.steps.x"))
    assert "'a b' is not a key" in refusal(tmp_path, text, Unset("a b"))
    assert "--unset train.steps takes the same key out" in refusal(
        tmp_path, text, Unset("train.steps"), "train.steps=6"
    )
    assert "run.folder is missing" in refusal(tmp_path, text, Unset("run.folder"))


# ---- round trip ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [SMALLEST, WITH_VALIDATION, FULL_RUN], ids=["smallest", "validation", "full"])
def test_what_is_written_loads_to_the_same(tmp_path, text):
    config = load(tmp_path, text)
    assert load(tmp_path, to_toml(config)) == config
    assert to_toml(load(tmp_path, to_toml(config))) == to_toml(config)


def test_values_arrive(tmp_path):
    config = load(tmp_path, FULL_RUN)
    assert config.topology.owners == (0, 1) and config.topology.dense == 2
    assert config.model.options["word"] == 'q"\\\n\x7fé' and config.model.options["nested"] == {"x": 1, "empty": {}}
    assert config.train.early_stop is not None and config.train.best_metric == "logloss"
    assert config.embedding.table_of("viewed") == "item" and config.embedding.table_of("user") == "user"
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.train.steps = 3


def test_a_tables_optimizer_takes_the_rest_from_the_common_one_of_its_name(tmp_path):
    embedding = load(tmp_path, FULL_RUN + "[embedding.tables.other]\nrows = 5\n").embedding
    same, other = embedding.table("user.id").optimizer, embedding.table("item").optimizer
    assert same is not None and same.spec() == OptimizerSpec(name="adagrad", lr=0.5)
    assert other is not None and other.spec() == OptimizerSpec(name="adam")
    assert embedding.table("other").optimizer == embedding.table("unnamed").optimizer == embedding.optimizer
    assert embedding.table("item").init_scale == 0.0 and embedding.table("user").init_scale == 0.01


def test_keep_best_follows_the_validation_data(tmp_path):
    assert load(tmp_path, SMALLEST).checkpoint.keep_best is False
    assert load(tmp_path, WITH_VALIDATION).checkpoint.keep_best is True
    assert load(tmp_path, WITH_VALIDATION, "checkpoint.keep_best=false").checkpoint.keep_best is False


def test_paths_can_be_made_to_hold_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = with_absolute_paths(load(tmp_path, WITH_VALIDATION, "checkpoint.resume=old/step-3"))
    assert (config.data.train, config.data.validation) == (str(tmp_path / "train.h5"), str(tmp_path / "v.h5"))
    assert config.run.folder == str(tmp_path / "runs/x") and config.data.test is None
    assert config.checkpoint.resume == str(tmp_path / "old/step-3")
    assert with_absolute_paths(load(tmp_path, SMALLEST)).checkpoint.resume == "auto"


def test_data_sets_are_read_from_copies_of_their_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = load(tmp_path, WITH_VALIDATION, "data.validation=day=3/v.h5")
    assert with_copied_data(config, []) == config
    found = with_copied_data(config, [(str(tmp_path / "day=3"), "/disk/1"), (str(tmp_path), "/disk/0")])
    assert (found.data.train, found.data.validation) == ("/disk/0/train.h5", "/disk/1/v.h5")
    assert dataclasses.replace(found, data=config.data) == config
    with pytest.raises(ConfigError, match=rf"no data set is in /x. Allowed: {tmp_path}, {tmp_path}/day=3"):
        with_copied_data(config, [("/x", "/disk")])


values = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.text(st.characters(codec="utf-8")), values, max_size=4))
def test_any_mapping_comes_back_from_toml(mapping):
    assert tomllib.loads(toml.dump(mapping)) == mapping


# ---- the schema itself -----------------------------------------------------------------------------------------------


def sections(schema: type = Config) -> list[type]:
    found = [schema]
    for annotation in get_type_hints(schema).values():
        for inner in [annotation, *getattr(annotation, "__args__", ())]:
            if dataclasses.is_dataclass(inner) and isinstance(inner, type):
                found += sections(inner)
    return found


def test_no_number_passes_for_another_type(tmp_path):
    base = tomllib.loads(WITH_VALIDATION)
    tried = 0
    for keys, annotation in toml.leaves(Config):
        said = toml.schema.allowed(annotation)
        wrong = [True, "7"] if "number" in said else [7, True] if said.startswith("text") else [7, "true"]
        for value in wrong:
            mapping: dict = {name: dict(section) for name, section in base.items()}
            inner = mapping
            for key in keys[:-1]:
                inner = inner.setdefault(key, {})
            inner[keys[-1]] = value
            with pytest.raises(ConfigError, match=r"Allowed|missing"):
                validate(mapping, "run.toml")
            tried += 1
    assert tried > 100


def test_every_field_is_described_frozen_and_keyword_only():
    found = sections()
    assert len(set(found)) == 22
    for schema in set(found) - {Config}:
        assert list(field_docs(schema)) == [f.name for f in dataclasses.fields(schema)], schema
        assert schema.__dataclass_params__.frozen and all(f.kw_only for f in dataclasses.fields(schema))
        assert schema.__pydantic_config__ is config_module.STRICT


def test_the_reference_page_is_up_to_date():
    page = Path(__file__).parents[2] / "docs/configuration.md"
    assert page.read_text() == reference(), "run: hpcrec config reference > docs/configuration.md"
    assert "| `batch_size` | `2048` | a whole number, at least 1 | Samples of a step" in reference()


def test_the_schedules_fields_are_those_of_the_schedule():
    ours = {f.name: f.default for f in dataclasses.fields(config_module.ScheduleConfig)}
    theirs = {f.name: f.default for f in dataclasses.fields(Schedule)}
    assert {**theirs, "apply_to_embeddings": True} == ours


def test_the_row_optimizers_fields_are_those_of_the_tables():
    assert config_module.RowOptimizer().spec() == OptimizerSpec()


def test_dct_thresholds_both_ways():
    rest = {"data": {"train": "a.h5"}, "run": {"folder": "r"}}
    config = validate({**rest, **dct.configuration()}, "dct")
    assert (config.exchange.form, config.exchange.codec, config.dense.compression) == ("pooled", "dct", "dct")
    assert (
        round(config.model.width * config.exchange.dct.density) == 10
    )  # as many elements of a vector as were measured


def test_codistillation_is_a_recipe():
    rest = {"data": {"train": "a.h5"}, "train": {"batch_size": 12}, "run": {"folder": "runs/x"}}
    config = validate({**rest, **codistillation.configuration(3)}, "codistillation")
    assert config.dense.codistillation.groups == 3 and config.dense.codistillation.weight > 0


def test_the_baseline_is_the_default():
    rest = {"data": {"train": "x"}, "run": {"folder": "y"}}
    assert validate({**rest, **baseline.configuration()}, "baseline") == validate(rest, "defaults")


def test_des_is_a_position_on_the_axes():
    rest = {"data": {"train": "x"}, "run": {"folder": "y"}}
    config = validate({**rest, **des.configuration()}, "des")
    assert (config.exchange.form, config.exchange.ids) == ("partial", "read")


def test_het_and_mtrains_are_positions_on_the_axes():
    rest = {"data": {"train": "x"}, "run": {"folder": "y"}}
    assert validate({**rest, **het.configuration(30)}, "het").policy.staleness == 30
    store = validate({**rest, **mtrains.configuration("/scratch/rows", 1_000_000)}, "mtrains").store
    assert (store.name, store.path, store.memory_bytes) == ("disk", "/scratch/rows", 1_000_000)


def test_dmt_is_a_model_and_a_path():
    rest = {"data": {"train": "x"}, "run": {"folder": "y"}}
    config = validate({**rest, **dmt.configuration([["user", "city"], ["item"]], 2.0)}, "dmt")
    assert (config.model.name, config.exchange.path) == ("dmt_dlrm", "levels")
    options = make_options(config.model.name, config.model.options)
    assert (options.towers, options.ratio, options.module) == ((("user", "city"), ("item",)), 2.0, "products")
