"""A run over several attempts is told as one: how many, how long, and what had to be done again."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from hpcrec.errors import OutputError
from hpcrec.training import attempts
from hpcrec.training.attempts import Allocation
from hpcrec.units import format_duration

START_S = 1_800_000_000


def at(seconds: float) -> str:
    return datetime.fromtimestamp(START_S + seconds, UTC).isoformat(timespec="milliseconds")


def begin(run: Path, seconds: float, step: int, job: str | None = None, restart: int = 0) -> None:
    attempts.begin(run, at(seconds), step, 4, ["node1", "node2"], Allocation(job, restart))


def saved(run: Path, step: int, seconds: float) -> None:
    manifest = run / f"checkpoints/step-{step}/manifest.json"
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text("{}")
    os.utime(manifest, (START_S + seconds, START_S + seconds))


def logged(run: Path, *lines: tuple[float, int]) -> None:
    text = "".join(json.dumps({"step": step, "time": START_S + s, "loss": 0.5}) + "\n" for s, step in lines)
    (run / "metrics.jsonl").write_text(text + '{"step": 99')  # killed while it wrote


def figures(run: Path) -> dict[str, Any]:
    return attempts.figures(run)


def test_the_file_is_as_documented(tmp_path: Path) -> None:
    begin(tmp_path, 0, 0, job="4711", restart=2)
    attempts.end(tmp_path, 30, "stopped", at(60))
    assert [json.loads(line) for line in (tmp_path / "attempts.jsonl").read_text().splitlines()] == [
        {
            "event": "begin",
            "at": "2027-01-15T08:00:00.000+00:00",
            "step": 0,
            "ranks": 4,
            "hosts": ["node1", "node2"],
            "job": "4711",
            "restart": 2,
            "lost_steps": 0,
            "lost_s": 0.0,
        },
        {"event": "end", "at": "2027-01-15T08:01:00.000+00:00", "step": 30, "status": "stopped"},
    ]
    attempts.end(tmp_path, 31, "failed")  # whoever comes second: the end is told
    assert len(attempts.read(tmp_path)) == 2
    begun = attempts.last_begin(tmp_path)
    assert begun is not None and begun["job"] == "4711"


def test_earlier_allocations_of_a_job_are_told_from_other_runs(tmp_path: Path) -> None:
    def first(job: str | None, restart: int) -> int | None:
        return attempts.first_step_of(tmp_path, Allocation(job, restart))

    assert first("4711", 1) is None
    begin(tmp_path, 0, 5, job="4711")
    begin(tmp_path, 10, 30, job="4711", restart=1)
    assert [first("4711", restart) for restart in range(4)] == [None, 5, 5, 5]
    assert first("4712", 3) is None
    assert first(None, 0) is None and first(None, 1) is None
    assert Allocation.of({}) == Allocation() and Allocation.of({"SLURM_JOB_ID": "7"}) == Allocation("7")
    assert Allocation.of({"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "3"}) == Allocation("7", 3)


def test_a_line_that_an_older_version_wrote_without_the_count_is_of_an_earlier_allocation(tmp_path: Path) -> None:
    begin(tmp_path, 0, 5, job="4711")
    file = tmp_path / "attempts.jsonl"
    line = json.loads(file.read_text())
    del line["restart"]
    file.write_text(json.dumps(line) + "\n")
    assert [attempts.first_step_of(tmp_path, Allocation("4711", restart)) for restart in range(3)] == [None, 5, 5]
    begin(tmp_path, 10, 30, job="4711", restart=2)
    assert [attempts.first_step_of(tmp_path, Allocation("4711", restart)) for restart in range(3)] == [None, 5, 5]
    assert attempts.first_step_of(tmp_path, Allocation("4712", 1)) is None


def test_stops_lose_nothing(tmp_path: Path) -> None:
    assert figures(tmp_path) == {"number": 0, "total_s": 0, "lost_steps": 0, "lost_s": 0}
    assert attempts.last_begin(tmp_path) is None and attempts.rows(tmp_path) == []
    for i in range(3):
        begin(tmp_path, 100 * i, 30 * i)
        attempts.end(tmp_path, 30 * (i + 1), "finished" if i == 2 else "stopped", at(100 * i + 60))
    assert figures(tmp_path) == {"number": 3, "total_s": 180.0, "lost_steps": 0, "lost_s": 0.0}


def test_a_killed_attempt_ends_with_the_last_that_is_seen_of_it(tmp_path: Path) -> None:
    begin(tmp_path, 0, 0)
    saved(tmp_path, 20, 40)
    logged(tmp_path, (10, 5), (40, 20), (70, 35))
    begin(tmp_path, 200, 20)
    first_end = attempts.read(tmp_path)[1]
    assert first_end == {"event": "end", "at": at(70), "step": 35, "status": "killed"}
    attempts.end(tmp_path, 50, "finished", at(260))
    assert figures(tmp_path) == {"number": 2, "total_s": 130.0, "lost_steps": 15, "lost_s": 30.0}
    assert attempts.rows(tmp_path)[0] == (
        "2027-01-15 08:00:00",
        "0 to 35",
        "killed",
        "4 ranks on node1, node2",
        "",
    )


def test_the_newest_checkpoint_may_be_the_last_that_is_seen(tmp_path: Path) -> None:
    begin(tmp_path, 0, 0)
    logged(tmp_path, (10, 5))
    saved(tmp_path, 20, 40)
    begin(tmp_path, 200, 20)
    assert attempts.read(tmp_path)[1]["at"] == at(40) and attempts.read(tmp_path)[1]["step"] == 20
    assert figures(tmp_path)["lost_steps"] == 0
    logged(tmp_path, (10, 5))  # nothing was heard of the second: it ended when it began
    begin(tmp_path, 300, 20)
    assert attempts.read(tmp_path)[3] == {"event": "end", "at": at(200), "step": 20, "status": "killed"}


def test_what_is_lost_twice_counts_twice_and_no_more(tmp_path: Path) -> None:
    begin(tmp_path, 0, 0)
    saved(tmp_path, 20, 40)
    attempts.end(tmp_path, 35, "killed", at(70))  # 30 s past the checkpoint
    begin(tmp_path, 100, 20)
    attempts.end(tmp_path, 30, "failed", at(125))  # all of it
    begin(tmp_path, 200, 20)
    assert attempts.read(tmp_path)[-1]["lost_s"] == 25.0
    saved(tmp_path, 50, 260)
    attempts.end(tmp_path, 52, "killed", at(264))
    begin(tmp_path, 300, 50)
    attempts.end(tmp_path, 60, "finished", at(310))
    assert figures(tmp_path) == {"number": 4, "total_s": 70 + 25 + 64 + 10, "lost_steps": 27, "lost_s": 59.0}


def test_without_a_checkpoint_all_is_lost_and_a_finished_run_is_another(tmp_path: Path) -> None:
    begin(tmp_path, 0, 0)
    attempts.end(tmp_path, 35, "killed", at(70))
    begin(tmp_path, 100, 0)
    assert figures(tmp_path)["lost_s"] == 70.0 and figures(tmp_path)["lost_steps"] == 35
    attempts.end(tmp_path, 60, "finished", at(200))
    begin(tmp_path, 300, 0)  # its checkpoints were removed: it starts anew
    attempts.end(tmp_path, 60, "finished", at(310))
    assert figures(tmp_path) == {"number": 1, "total_s": 10.0, "lost_steps": 0, "lost_s": 0.0}


def test_a_line_cut_short_is_left_out_and_what_follows_is_whole(tmp_path: Path) -> None:
    begin(tmp_path, 0, 0)
    with (tmp_path / "attempts.jsonl").open("a") as file:
        file.write('{"event": "en')
    attempts.end(tmp_path, 5, "killed", at(10))
    begin(tmp_path, 20, 5)
    assert [event["event"] for event in attempts.read(tmp_path)] == ["begin", "end", "begin"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "attempts.jsonl").mkdir()
    with pytest.raises((OutputError, IsADirectoryError), match=r"attempts\.jsonl"):
        begin(tmp_path, 0, 0)


@pytest.mark.parametrize(
    ("seconds", "said"), [(3.21, "3.21 s"), (90, "2 min"), (4000, "1 h 7 min"), (7200, "2 h 0 min")]
)
def test_durations_are_said_briefly(seconds: float, said: str) -> None:
    assert format_duration(seconds) == said


def test_an_end_that_ranks_told_at_once_is_one(tmp_path: Path) -> None:
    attempts.begin(tmp_path, attempts.now(), 0, 2, ["one"], Allocation())
    attempts.end(tmp_path, 3, "failed")
    path = tmp_path / attempts.FILE
    path.write_text(path.read_text() + path.read_text().splitlines(keepends=True)[-1])
    attempts.begin(tmp_path, attempts.now(), 2, 2, ["one"], Allocation())
    assert [event["event"] for event in attempts.read(tmp_path)] == ["begin", "end", "begin"]
    assert attempts.figures(tmp_path)["number"] == 2
