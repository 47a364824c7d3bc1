"""Configurations of every wrong kind: one line that says what and where, exit status 2, before anything starts."""

from pathlib import Path

import pytest

from tests.forked import Forked

# What the file's text becomes, what is given by --set, and what is said.
WRONG: dict[str, tuple[tuple[str, str], str | None, list[str]]] = {
    "unknown key": (("batch_size = 50", "batchsize = 50"), None, ["config.toml: train.batchsize is not a key"]),
    "wrong type": (("batch_size = 50", 'batch_size = "50"'), None, ['train.batch_size is "50". Allowed: a whole']),
    "out of range": (("batch_size = 50", "batch_size = 0"), None, ["train.batch_size is 0. Allowed: a whole number"]),
    "missing key": (("[run]", "[checkpoint]\nevery = 5\n[run]\n#"), None, ["run.folder is missing"]),
    "contradiction": (
        ("[train]", "[topology]\nowners = 2\n[train]"),
        None,
        ["topology.owners is 2", "topology.mode is 'fused'"],
    ),
    "not TOML": (("width = 4", "width = = 4"), None, ["config.toml: is not TOML", "at line 6"]),
    "wrong override": (("", ""), "train.steps=ten", ['--set train.steps=ten: train.steps is "ten"']),
    "override of nothing": (("", ""), "train.steps", ["--set train.steps: has no '='"]),
}


@pytest.mark.parametrize("kind", WRONG)
def test_bad_configuration(hpcrec: Forked, config: Path, kind: str) -> None:
    change, override, words = WRONG[kind]
    text = config.read_text().replace(*change)
    if kind == "missing key":
        text = text.split("#")[0]
    config.write_text(text)
    done = hpcrec("run", "-n", 2, "--", "train", config, *(() if override is None else ("--set", override)))
    assert done.code == 2, done.err
    assert all(word in done.err for word in words), done.err
    assert done.err.startswith("hpcrec: error: ") and done.err.count("\n") == 1
    assert not (config.parent / "run").exists()


def test_missing_configuration(hpcrec: Forked, tmp_path: Path) -> None:
    done = hpcrec("train", tmp_path / "nowhere.toml")
    assert done.code == 2 and "nowhere.toml' does not exist" in done.err and "Traceback" not in done.err
