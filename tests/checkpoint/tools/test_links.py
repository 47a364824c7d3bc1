"""Tools on checkpoints whose rows are links to a store's files: the same as on those of HDF5, and what is damaged."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpcrec.build.export import export
from hpcrec.build.session import open_session
from hpcrec.checkpoint import files, state
from hpcrec.checkpoint.find import find_checkpoint
from hpcrec.checkpoint.reader import Checkpoint
from hpcrec.checkpoint.tools import by_id
from hpcrec.checkpoint.tools.convert import Conversion, convert
from hpcrec.checkpoint.tools.diff import diff
from hpcrec.checkpoint.tools.look import look
from hpcrec.checkpoint.tools.verify import verify
from hpcrec.config import Config
from hpcrec.disk import snapshot
from hpcrec.disk.common import Settings
from hpcrec.embedding.stores.disk import DiskStore
from hpcrec.errors import CheckpointError
from tests.training.dynamic_runs import dynamic_config, write_data

pytestmark = pytest.mark.parallel([1])


def config_of(folder: Path, rows: str) -> Config:
    rules = {"capacity": 60, "evict": "lru"}
    return dynamic_config(
        folder,
        rules,
        embedding={
            "optimizer": {"name": "adam", "lr": 0.1},
            "tables": {"user": {"dynamic": rules}, "item": {"dynamic": rules}, "tag": {}},
            "share": {"history": "item"},
        },
        train={"batch_size": 13, "dtype": "float32", "steps": 9},
        store={"name": "disk", "path": str(folder / "rows"), "memory_bytes": 20_000_000},
        checkpoint={"rows": rows, "keep": 9},
        run={"folder": str(folder / rows)},
    )


@pytest.fixture
def runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same run twice: saved by links, and as HDF5, after steps 3 and 6."""
    monkeypatch.setattr(DiskStore, "of_tier", Settings(piece_bytes=4096, segment_bytes=16384))
    monkeypatch.setattr(DiskStore, "_left_for_rows", lambda self, own: 3000)
    monkeypatch.setattr(by_id, "RANGE_BYTES", 1500)  # so that tables go by way of a scratch folder
    monkeypatch.setattr(snapshot, "_ROWS_AT_ONCE", 16)
    write_data(folder / "data.h5")
    for rows in ("links", "hdf5"):
        config = config_of(folder, rows)
        with open_session(config) as session:
            for step in session.steps():
                step.run()
                if session.step in (3, 6):
                    state.save(session, Path(config.run.folder), {})
    return folder


def test_tools_find_the_same_in_links_as_in_hdf5(runs: Path) -> None:
    by = {rows: files.step_folder(runs / rows, 6) for rows in ("links", "hdf5")}
    manifest = json.loads((by["links"] / "manifest.json").read_text())
    assert manifest["version"] == 4 and manifest["segments"]
    verdicts = {rows: verify(path) for rows, path in by.items()}
    assert [v.problems for v in verdicts.values()] == [[], []]
    assert verdicts["links"].ids == verdicts["hdf5"].ids > 60
    found = diff(by["links"], by["hdf5"])
    assert found["equal"], found
    assert found["tables"]["user"]["ids"] > 30
    other = diff(by["links"], files.step_folder(runs / "links", 3))
    assert not other["equal"] and other["tables"]["tag"]["rows_differ"] > 0
    looked = {rows: look(path)["tables"] for rows, path in by.items()}
    for table, said in looked["links"].items():
        assert {**said, "bytes": 0} == {**looked["hdf5"][table], "bytes": 0}
    assert look(by["links"])["linked_bytes"] == sum(of["bytes"] for of in manifest["segments"].values())


def test_converted_they_are_the_same_with_ids_in_their_order(runs: Path) -> None:
    outs = {}
    for rows in ("links", "hdf5"):
        outs[rows] = convert(files.step_folder(runs / rows, 6), runs / f"out-{rows}", Conversion(parts=2)).folder
        assert verify(outs[rows]).problems == []
    assert json.loads((outs["links"] / "manifest.json").read_text())["version"] == 3
    assert diff(outs["links"], outs["hdf5"])["equal"]
    for part in (0, 1):
        with (
            h5py.File(outs["links"] / f"user/part-{part}.h5") as a,
            h5py.File(outs["hdf5"] / f"user/part-{part}.h5") as b,
        ):
            for name in ("ids", "rows", "state/exp_avg", "admission/counts", "admission/clocks"):
                np.testing.assert_array_equal(a[name][()], b[name][()])
    assert not list(outs["links"].glob("rows-*"))


def test_a_run_is_exported_from_links(runs: Path) -> None:
    for rows in ("links", "hdf5"):
        export(config_of(runs, rows), runs / f"model-{rows}", checkpoint=str(files.step_folder(runs / rows, 6)))
    for name in ("user", "item", "tag"):
        a, b = (runs / f"model-{rows}/tables/{name}.safetensors" for rows in ("links", "hdf5"))
        assert a.read_bytes() == b.read_bytes(), name


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("rows-0.tier/segment-*"))


def test_damage_is_named(runs: Path) -> None:
    folder = files.step_folder(runs / "links", 6)
    path = max(segments(folder), key=lambda p: p.stat().st_size)
    data = path.read_bytes()
    path.unlink()  # the other names of the file keep what they have
    path.write_bytes(data[:1000] + bytes([data[1000] ^ 4]) + data[1001:])
    (problem,) = verify(folder).problems
    assert str(path) in problem and "page 0 has a wrong checksum" in problem, problem
    assert find_checkpoint(runs / "links", str(folder)).step == 6  # its size and seal are right: pages are read later
    with pytest.raises(CheckpointError, match=r"page 0 has a wrong checksum.*checkpoint verify"):
        for table in ("user", "item", "tag"):
            list(Checkpoint(folder).table_parts(table))
    path.write_bytes(data[:-4096])
    assert "bytes, its manifest says" in verify(folder).problems[0]
    with pytest.raises(CheckpointError, match="bytes, its manifest says"):
        find_checkpoint(runs / "links", str(folder))
    path.unlink()
    with pytest.raises(CheckpointError, match=f"{path.name} cannot be read"):
        find_checkpoint(runs / "links", str(folder))
    assert find_checkpoint(runs / "links", str(files.step_folder(runs / "links", 3))).step == 3


def test_a_segment_of_another_run_is_not_taken_for_its_own(runs: Path) -> None:
    """Of the same number and size, whole in itself."""
    folder = files.step_folder(runs / "links", 6)
    again, like = runs / "again", config_of(runs, "links")
    learns = replace(like.embedding, optimizer=replace(like.embedding.optimizer, lr=0.2))
    with open_session(replace(like, embedding=learns)) as session:
        for step in session.steps():
            step.run()
            if session.step in (3, 6):
                state.save(session, again, {})
    of_both = [(path, again / "checkpoints/step-6" / path.relative_to(folder)) for path in segments(folder)]
    like_it = [pair for pair in of_both if pair[1].exists() and pair[0].stat().st_size == pair[1].stat().st_size]
    strangers = [(path, stranger) for path, stranger in like_it if path.read_bytes() != stranger.read_bytes()]
    assert strangers, "they have the same rows, of other values, but for what threads wrote earlier or later"
    for path, stranger in strangers:
        path.unlink()
        shutil.copy(stranger, path)
        with pytest.raises(CheckpointError, match="is another segment than its manifest means"):
            find_checkpoint(runs / "links", str(folder))
        assert any(path.name in problem for problem in verify(folder).problems)
