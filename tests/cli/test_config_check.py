"""``hpcrec config check``: one verdict, the last line, of all that can be known before ranks are started."""

from pathlib import Path

import h5py
import pytest

from hpcrec.cli import main as cli
from tests.training.runs import write_data

CONFIG = """\
[data]
train = "{folder}/train.h5"
validation = "{folder}/validation.h5"
[model]
name = "deepfm"
width = 4
[dense]
reducer = "mpi"
[run]
folder = "{folder}/run"
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checked")
    for name in ("train", "validation"):
        write_data(folder / f"{name}.h5", samples=300, seed=1)
    path = folder / "config.toml"
    path.write_text(CONFIG.format(folder=folder))
    return path


def check(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        cli.main(["config", "check", *map(str, arguments)])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_what_is_right_is_valid_in_the_last_line(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = check(capsys, config)
    assert (code, err) == (0, "")
    first, *_, last = out.splitlines()
    assert first.startswith("memory a rank, with 1 rank") and last == f"{config}: valid"


@pytest.mark.parametrize(
    ("given", "status", "wanted"),
    [
        (["--set", "model.name=dlmr"], 2, "dlmr"),
        (["--set", "model.options.dropuot=0.1"], 2, "dropuot"),
        (["--set", 'data.features=["no_such"]'], 2, "data.features names feature 'no_such'"),
        (["--set", "data.train=nowhere.h5"], 1, "nowhere.h5: no such file"),
        (["--set", "data.test=nowhere.h5"], 1, "nowhere.h5: no such file"),
        (["--set", "dense.optimizer.options.bteas=[0.9,0.99]"], 2, "dense.optimizer.options: Adam has no 'bteas'"),
        (["--set", "dense.optimizer.options.betas=[0.9,2.0]"], 2, "dense.optimizer: Adam refuses"),
        (["--set", "dense.optimizer.name=Sgdd"], 2, "dense.optimizer.name is 'Sgdd'"),
        (["--set", "policy.name=ahead", "--set", "exchange.codec=fp16"], 2, "which reads a step in two parts, but"),
        (["--set", 'evaluation.metrics=["auc","no_such:f"]'], 2, "no_such"),
        (["--set", 'evaluation.by=["no_such"]'], 2, "no_such"),
        (["-n", 3, "--set", "topology.mode=split", "--set", "topology.owners=3"], 2, "topology"),
    ],
)
def test_what_a_run_would_refuse_is_the_verdict(
    config: Path, capsys: pytest.CaptureFixture[str], given: list[object], status: int, wanted: str
) -> None:
    code, out, err = check(capsys, config, *given)
    assert code == status and out == "", "no verdict but the error"
    assert err.startswith("hpcrec: error: ") and err.count("\n") == 1 and wanted in err


def test_labels_of_other_names_are_refused(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = config.parent / "other.h5"
    for path, names in ((config.parent / "two.h5", ["click", "buy"]), (other, ["buy", "click"])):
        write_data(path, samples=100, labels=2)
        with h5py.File(path, "r+") as file:
            file.attrs["label_names"] = names
    given = ["--set", f"data.train={config.parent / 'two.h5'}", "--set", f"data.validation={other}"]
    code, _, err = check(capsys, config, *given)
    assert code == 2 and f"data.validation ({other}) has labels buy, click, but data.train (" in err
    assert ") has labels click, buy. " in err


def test_data_sets_that_differ_are_refused_by_the_feature(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = config.parent / "other.h5"
    write_data(other, samples=300, seed=1)

    with h5py.File(other, "r+") as file:
        names = [name.decode() if isinstance(name, bytes) else name for name in file.attrs["feature_names"]]
        cardinalities = file.attrs["cardinalities"]
        was = int(cardinalities[1])
        cardinalities[1] += 7
        file.attrs["cardinalities"] = cardinalities
    code, out, err = check(capsys, config, "--set", f"data.validation={other}")
    assert (code, out) == (2, "")
    assert f"data.validation ({other}) has feature {names[1]!r} with cardinality {was + 7}, but data.train (" in err
    assert f") has feature {names[1]!r} with cardinality {was}. " in err


def test_what_does_not_follow_from_each_other_is_told_in_one_go(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [
        "--set",
        "data.validation=nowhere.h5",
        "--set",
        "dense.optimizer.name=Sgdd",
        "--set",
        'evaluation.by=["no"]',
    ]
    code, out, err = check(capsys, config, *given)
    *each, last = err.splitlines()
    assert (code, out, len(each)) == (2, "", 3)
    assert all(line.startswith("hpcrec: error: ") for line in each)
    assert "data.validation: nowhere.h5: no such file" in each[0]
    assert "evaluation.by" in each[1] and "dense.optimizer.name is 'Sgdd'" in each[2]
    assert last == "hpcrec: 3 errors, all of which are above; nothing was started"


def test_files_alone_keep_their_status(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = check(capsys, config, "--set", "data.train=nowhere.h5", "--set", "data.validation=nor.h5")
    assert code == 1 and err.count("no such file") == 2 and err.splitlines()[-1].startswith("hpcrec: 2 errors")


def test_keys_are_told_in_one_go(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = check(capsys, config, "--set", "train.batchsize=7", "--set", "model.width=wide")
    assert code == 2 and len(err.splitlines()) == 3
    assert "train.batchsize is not a key" in err and 'model.width is "wide". Allowed: a whole number' in err


def test_a_system_is_what_the_file_is_put_over(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = check(capsys, config, "--system", "persia")
    assert (code, err) == (0, "") and out.startswith("memory a rank, with 2 ranks"), "owners and dense ranks are apart"
    assert check(capsys, config)[1].startswith("memory a rank, with 1 rank")
