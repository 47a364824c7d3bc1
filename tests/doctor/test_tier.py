"""The disk that rows are on: judgements of answers that no rank has to give, and a measurement of a folder at hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcrec.build.tiers import reads_of, tiers_of
from hpcrec.config import Config
from hpcrec.doctor import tier
from hpcrec.doctor.base import Finding
from tests.doctor.site import only, site_of
from tests.doctor.test_storage import Alone
from tests.training.runs import config_for, write_data

FOUR = ["h1", "h1", "h2", "h3"]


def judged(*answers: dict[str, Any], **more: Any) -> list[Finding]:
    """What is found of four ranks on three hosts, all owners."""
    first = {
        "owners": (0, 1, 2, 3),
        "page_bytes": 4096,
        "reads": {0: {4096: 900.0}, 1: {4096: 400.0}, 2: {4096: 500.0}},
        "space": {0: 5e9, 1: 5e9, 2: 5e9},
        "why": "",
        "many": False,
        "step_s": 0.02,
        "step_said": "--samples-per-s",
        **more,
    }
    usual = {"folder": "/scratch", "kind": "ext4", "error": None, "reads_per_s": 30_000.0, "free": 10**10}
    given = [{**usual, **(answers[rank] if rank < len(answers) else {})} for rank in range(4)]
    return list(tier.judge_rows_disk([{**first, **given[0]}, *given[1:]], site_of(FOUR)))


def test_owners_of_a_host_read_at_once() -> None:
    rows, reads = judged()
    assert rows.level == reads.level == "ok"
    assert rows.found == ("/scratch (ext4): 4 owners at once, 30,000 random reads/s of 4 KiB on the slowest host")
    assert rows.data["reads_per_s_by_host"] == [60_000, 30_000, 30_000]
    # The third host has 500 reads at 30,000 a second, the first 900 at 60,000.
    assert reads.found == "500.0 a step and host, 16.7 ms; a step in memory takes 20.0 ms (--samples-per-s)"
    assert reads.data["seconds"] == pytest.approx(500 / 30_000)


def test_reads_that_take_longer_than_steps() -> None:
    late = only(judged(step_s=0.01), "warn")
    assert late.what == "reads of rows" and late.found.endswith(
        "takes 10.0 ms (--samples-per-s), so 0.60 of that speed"
    )
    unknown = judged(step_s=None)[-1]
    assert unknown.level == "ok" and unknown.found.endswith("against what step is not known (--samples-per-s)")
    small = only(judged(reads=None, why="store.memory_bytes is too little"), "warn")
    assert small.found == "are not predicted: store.memory_bytes is too little"
    many = judged(reads=None, why="the training data have many ids", many=True)[-1]
    assert (many.level, many.found) == ("ok", "are predicted by hpcrec config check: the training data have many ids")


def test_hosts_that_are_slow_full_or_cannot() -> None:
    slow = only(judged({}, {}, {"reads_per_s": 5_000.0}, reads={0: {4096: 1.0}}), "warn")
    assert (slow.what, slow.found) == ("slow disk", "/scratch: h2 reads 5,000 pages/s, the median of hosts 30,000")
    full = only(judged({}, {}, {}, {"free": 10**9}), "warn")
    assert (full.what, full.found) == ("room for rows", "h3: rows take up to 5.00 GB, 1.00 GB are free")
    (bad,) = judged({}, {}, {"error": "/scratch: no O_DIRECT"})
    assert (bad.level, bad.found) == ("FAIL", "rank 2 on h2: /scratch: no O_DIRECT")


def disk_config(folder: Path, memory_bytes: int) -> Config:
    return config_for(folder, store={"name": "disk", "path": str(folder / "rows"), "memory_bytes": memory_bytes})


def test_what_is_measured_is_held_against_the_prediction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tier, "_SECONDS", 0.05)
    write_data(tmp_path / "data.h5")
    for memory_bytes in (3_000_000, 1):
        config = disk_config(tmp_path, memory_bytes)
        site = site_of(["h1"], config=config, samples_per_s=1e6)
        site.probe = Alone()  # type: ignore[assignment]
        answer = tier.measure_rows_disk(site)
        assert answer is not None and answer["error"] is None and answer["reads_per_s"] > 500
        assert answer["folder"] == str(tmp_path) and not list(tmp_path.glob(".hpcrec*"))
        tiers = tiers_of(config, [0])
        assert not isinstance(tiers, str)
        reads = reads_of(tiers, [0], memory_bytes)
        assert answer["reads"] == (None if reads is None else {0: reads})
        findings = list(tier.judge_rows_disk([answer], site))
        assert [f.what for f in findings] == ["disk of rows", "reads of rows"]
        assert findings[1].level == ("warn" if memory_bytes == 1 else "ok")
    assert np.isclose(answer["step_s"], config.train.batch_size / 1e6)


def test_rows_elsewhere_are_not_looked_at(tmp_path: Path) -> None:
    site = site_of(["h1"], config=config_for(tmp_path))
    assert tier.measure_rows_disk(site) is None
    assert list(tier.judge_rows_disk([None], site)) == []


def test_a_folder_that_takes_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(tmp_path / "data.h5")
    monkeypatch.setattr(tier, "nearest", lambda path: Path("/proc"))
    site = site_of(["h1"], config=disk_config(tmp_path, 3_000_000))
    site.probe = Alone()  # type: ignore[assignment]
    answer = tier.measure_rows_disk(site)
    (bad,) = tier.judge_rows_disk([answer], site)
    assert bad.level == "FAIL" and "a file to be read at random cannot be written" in bad.found
