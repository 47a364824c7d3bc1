"""Disks that are full and folders that cannot be written: an error that names the file, what was whole stays whole."""

import errno
import json
import os
from pathlib import Path

import pytest

from hpcrec.api.commands import train
from hpcrec.comm.failure import ExitCodes
from hpcrec.config import load_config
from hpcrec.data.files import writing
from hpcrec.data.reader import DataSet
from hpcrec.errors import CheckpointError, OutputError
from hpcrec.training import attempts
from hpcrec.training.telemetry import read_metrics
from tests.forked import Forked


def no_files_in(folder: Path) -> bool:
    return not any(path.is_file() for path in folder.rglob("*"))


def test_full_disk_in_prepare(hpcrec: Forked, tmp_path: Path) -> None:
    """The limit on a file's size stands for the disk's: writes fail at the same places."""
    out = tmp_path / "data"
    for file_bytes in (1_000, 100_000):
        done = hpcrec("prepare", "synthetic", "--out", out, "--samples", 20_000, file_bytes=file_bytes)
        assert done.code == 1 and "cannot be written (" in done.err and f"{out}/" in done.err, done.err
        assert done.err.count("hpcrec: error:") == 1 and "Traceback" not in done.err
        assert no_files_in(out)


def test_full_disk_for_checkpoints(hpcrec: Forked, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ("--set", "checkpoint.every=5", "--set", "train.log_every=1000")
    train(load_config(config, [*settings[1::2], "train.steps=5"]))
    kept = {p: p.read_bytes() for p in (config.parent / "run" / "checkpoints" / "step-5").rglob("*") if p.is_file()}
    done = hpcrec("train", config, *settings, file_bytes=8_000)  # config.toml takes 3 kB
    assert done.code == 1, done.err
    assert "the checkpoint of step 10 could not be written: rank 0:" in done.err and "step-10" in done.err
    assert "; tried again, for it is the last one" in done.err
    assert done.err.count("hpcrec: error: the checkpoint of step 12 could not be written: rank 0:") == 1
    assert done.err.count("hpcrec: error:") == 1 and "Traceback" not in done.err
    capsys.readouterr()
    assert all(path.read_bytes() == content for path, content in kept.items()) and len(kept) > 4
    assert sorted(p.name for p in (config.parent / "run" / "checkpoints").iterdir()) == ["step-5"]
    assert train(load_config(config, settings[1::2])) == 0  # there is space again
    assert capsys.readouterr().out.startswith("resumed from step 5 of 12")


def test_full_disk_for_metrics(hpcrec: Forked, config: Path) -> None:
    """A line less is no reason to end a run: its lines are kept, and it is said that the last could not be written.

    So with TensorBoard's file, which fills up too.
    """
    settings = ("train.log_every=1", "train.epochs=25", "checkpoint.every=100000", "run.tensorboard=true")
    settings += ("model.options.hidden=[4]",)
    done = hpcrec("train", config, *(w for s in settings for w in ("--set", s)), file_bytes=40_000)
    assert done.code == 0, done.err
    run = config.parent / "run"
    (board,) = (run / "tensorboard").iterdir()
    for path, unit in ((run / "metrics.jsonl", "lines"), (board, "records")):
        assert done.err.count(f"{path}: cannot be written (File too large); its {unit} are kept") == 1
        assert f"{path}: its last " in done.err
        assert 39_000 < path.stat().st_size <= 40_000
    assert "Traceback" not in done.err
    summary = json.loads((run / "summary.json").read_text())
    whole = read_metrics(run)
    assert summary["status"] == "finished" and [line["step"] for line in whole] == list(range(1, len(whole) + 1))


def test_no_place_for_tensorboard(hpcrec: Forked, config: Path) -> None:
    folder = config.parent / "run" / "tensorboard"
    folder.parent.mkdir()
    folder.write_text("a file")
    done = hpcrec("train", config, "--set", "run.tensorboard=true")
    assert done.code == 0 and "Traceback" not in done.err, done.err
    assert done.err.count(f"hpcrec: {folder}: cannot be written (File exists)") == 1
    assert "the run goes on without it" in done.err
    assert json.loads((config.parent / "run" / "summary.json").read_text())["status"] == "finished"


@pytest.mark.parametrize("refused", [("summary.json",), ("attempts.jsonl", "summary.json", "report.html")])
def test_full_disk_at_the_end(
    config: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], refused: tuple[str, ...]
) -> None:
    """What tells of a run that has ended cannot be written: that is said, and its exit status is what it was."""
    replace, end = Path.replace, attempts.end

    def full(path: Path, target: Path) -> Path:
        if target.name in refused:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        return replace(path, target)

    def not_told(run: Path, *given: object, **options: object) -> None:
        with writing(run / attempts.FILE):
            if attempts.FILE in refused:
                raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        end(run, *given, **options)

    monkeypatch.setattr(Path, "replace", full)
    monkeypatch.setattr(attempts, "end", not_told)
    assert train(load_config(config)) == ExitCodes.FINISHED
    said = capfd.readouterr()
    run = config.parent / "run"
    for name in ("attempts.jsonl", "summary.json", "report.html"):
        line = f"hpcrec: {run / name}: cannot be written (Disk quota exceeded). Free space there"
        assert said.err.count(line) == (name in refused), said.err
    assert said.out.splitlines()[0].split() == ["status", "finished"]
    assert (run / "report.html").exists() == ("report.html" not in refused)
    assert not (run / "summary.json").exists() and (run / "checkpoints" / "step-12" / "manifest.json").exists()


@pytest.mark.parametrize("name", ["out.h5", "out.parquet", "out.csv"])
def test_full_disk_for_predictions(hpcrec: Forked, config: Path, name: str) -> None:
    train(load_config(config))
    out = config.parent / name
    data = config.parent / "train.h5"
    done = hpcrec("predict", config.parent / "run", "--data", data, "--out", out, file_bytes=1_000)
    assert done.code == 1 and f"{out}: cannot be written (" in done.err and "Traceback" not in done.err, done.err
    assert not out.exists() and not list(config.parent.glob(".out*"))


@pytest.mark.parametrize("kind", ["under a file", "no permission"])
def test_a_run_folder_that_cannot_be_written(config: Path, kind: str) -> None:
    folder = config.parent / "closed"
    if kind == "under a file":  # no one may write there, root included
        folder.write_text("a file")
    else:
        folder.mkdir()
        folder.chmod(0o500)
        if os.access(folder, os.W_OK):
            pytest.skip("this user may write everywhere")
    with pytest.raises(CheckpointError, match="closed/run: cannot be written") as caught:
        train(load_config(config, [f"run.folder={folder}/run"]))
    assert "choose another folder" in str(caught.value)


def test_a_folder_for_data_that_cannot_be_written(hpcrec: Forked, tmp_path: Path, whole_file: Path) -> None:
    (tmp_path / "file").write_text("a file")
    done = hpcrec("prepare", "synthetic", "--out", tmp_path / "file" / "data", "--samples", 1000)
    assert done.code == 1 and "file/data: cannot be written (Not a directory)" in done.err, done.err
    assert "Traceback" not in done.err
    from hpcrec.preparation.schema import Writer

    with DataSet(whole_file) as data, pytest.raises(OutputError, match=r"file/x.h5: cannot be written"):
        Writer(tmp_path / "file" / "x.h5", data.features, n_dense=3)
