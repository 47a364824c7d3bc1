"""What a run tells: metrics that survive a resume, a summary with the promised keys, and the table."""

import errno
import json
import math
import os
import re
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from tensorboardX.proto import event_pb2
from tensorboardX.record_writer import masked_crc32c

from hpcrec.embedding.load import Load
from hpcrec.training import report, screen, telemetry
from hpcrec.training.telemetry import Telemetry, read_metrics, versions, write_summary
from hpcrec.training.timer import Times
from hpcrec.training.times import times_of

RAN = Times(4.0, {"forward": (1.0, 0.0, 0.0), "values": (0.0, 2.5, 0.0)}, 0.5, {"route": {"route": (3.25, 0.0, 0.0)}})


def summary(**changes):
    whole = {
        "status": "finished",
        "ended": {"by": "early stop", "total_steps": 316, "metric": "auc", "evaluations": 3},
        "steps": 100,
        "samples": 204_800,
        "skipped_steps": 0,
        "dropped_features": 0,
        "attempts": {"number": 3, "total_s": 4000.0, "lost_steps": 1200, "lost_s": 45.6},
        "eval": {"auc": 0.79, "attainable_auc": 0.8, "logloss": 0.4, "normalized_entropy": 0.9, "calibration": 1.0},
        "throughput": {"samples_per_s": 12345.6, "step_ms": {"p50": 3.0, "p95": 5.0}},
        "wire_bytes": {"values": {"same_host": 2_000_000, "cross_host": 500}},
        "wire_messages": {"values": {"same_host": 40, "cross_host": 2}},
        "dense_compression": {
            "sent_bytes": 1_000_000,
            "plain_bytes": 50_000_000,
            "ratio": 50.0,
            "density": 0.006,
            "thresholds": {"scheduled": 1200, "drift": 7},
            "sums": {"thresholded": 90, "whole": 10},
        },
        "exchange_thresholds": {"density": 0.07, "drift": 3},
        "exchange": [],
        "time": times_of({0: ("owner", RAN), 1: ("dense", RAN)}),
        "phase_s": {"forward": 1.0, "values": 2.5},
        "drains": {"number": 4, "s": 0.2},
        "slow_ranks": [{"rank": 1, "host": "node<7>", "role": "owner", "ratio": 2.04, "lines": 1250}],
        "read_age": {"0": 750, "1": 200, "2": 50},
        "peak_rss_bytes": {"0": 10**9, "1": 2 * 10**9},
        "owners": {"0": {"rows": 1000, "bytes": 68_000, **Load(steps=4, lookups=400, distinct=200).figures()}},
        "imbalance": {"bytes": 1.0, "lookups": 1.25, "distinct": 1.0, "time": 1.0},
        "copies": {},
        "rows_ahead": {"steps": 2, "waited": {"1": 0.05, "2": 0.01}, "why": "of the time steps waited: 5.0% with 1"},
        "dynamic_tables": {
            "user": {
                "rows": 900,
                "capacity": 1000,
                "admitted": 1500,
                "evicted": 600,
                "refused": 42,
                "map_bytes": 36_000,
            }
        },
        "threads": {str(rank): {"threads": 1, "cores": [rank], "of_host": 2} for rank in range(2)},
        "topology": {"ranks": 2, "owners": [0], "dense": [1], "host_of_rank": [0, 0]},
        "versions": {"python": "3.11", "cpu": "a <b> & c"},
        "advice": ["Leave the <b> out."],
    }
    return {**whole, **changes}


def test_throughput_counts_steps(tmp_path):
    told = Telemetry(tmp_path / "run", active=False)
    assert told.throughput() == {"samples_per_s": 0.0, "step_ms": {"p50": 0.0, "p95": 0.0}}
    for ms in range(1, 101):
        told.step(ms / 1e3, 50)
    found = told.throughput()
    assert found["samples_per_s"] == pytest.approx(100 * 50 / 5.05)
    assert found["step_ms"]["p50"] == pytest.approx(50.5) and found["step_ms"]["p95"] == pytest.approx(95.05)
    told.log(1, {"loss": 1.0})
    assert not (tmp_path / "run").exists()  # a rank that is not the first writes nothing


def test_metrics_are_strict_json_lines_at_once(tmp_path):
    with Telemetry(tmp_path, active=True, tensorboard=False, progress=False) as told:
        told.log(3, {"loss": np.float32(0.5), "auc": math.nan, "labels": np.arange(2), "best": math.inf})
        (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()  # before it is closed

        def strict(word):
            raise AssertionError(word)

        found = json.loads(line, parse_constant=strict)
    assert found.pop("time") == pytest.approx(time.time(), abs=60)
    assert found == {"step": 3, "loss": 0.5, "auc": None, "labels": [0, 1], "best": None}
    told.close()


def test_a_line_that_the_disk_refuses_is_written_later(tmp_path, monkeypatch, capfd):
    pwrite, left = os.pwrite, []

    def refusing(file, data, at):
        if not left:
            return pwrite(file, data, at)
        pwrite(file, bytes(data)[: left.pop()], at)  # a part of it arrives, and nobody says how much
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pwrite", refusing)
    with Telemetry(tmp_path, active=True, tensorboard=False, progress=False) as told:
        for step in range(1, 7):
            left[:] = [7] if step in (2, 3, 5) else []
            told.log(step, {"loss": 1.0 * step})
            assert [line["step"] for line in read_metrics(tmp_path)] == list(
                range(1, {2: 2, 3: 2, 5: 5}.get(step, step + 1))
            )
    assert [line["loss"] for line in read_metrics(tmp_path)] == [1, 2, 3, 4, 5, 6]
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 2 and all("metrics.jsonl: cannot be written (Input/output error)" in line for line in said)


def test_lines_that_are_lost_are_counted(tmp_path, monkeypatch, capfd):
    told = Telemetry(tmp_path, active=True, tensorboard=False, progress=False)
    told.log(1, {})

    def refusing(*_):
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(os, "pwrite", refusing)
    told.log(2, {})
    told.log(3, {})
    told.close()
    assert [line["step"] for line in read_metrics(tmp_path)] == [1]
    assert capfd.readouterr().err.splitlines()[-1].endswith("its last 2 lines could not be written")


def records(text: bytes) -> list[bytes]:
    """The records of a file of TensorBoard's, whose checksums are right."""
    found = []
    while text:
        (size,), head = struct.unpack("<Q", text[:8]), text[:8]
        record, sums = text[12 : 12 + size], (text[8:12], text[12 + size : 16 + size])
        assert sums == tuple(struct.pack("<I", masked_crc32c(part)) for part in (head, record))
        found.append(record)
        text = text[16 + size :]
    return found


def test_a_tensorboard_that_the_disk_refuses_ends_and_holds_up_nothing(tmp_path, monkeypatch, capfd):
    """The disk fills up once the file is open, for more lines than any queue holds; then there is space again."""
    pwrite, full, before = os.pwrite, [False], threading.active_count()

    def refusing(file, data, at):
        if full[0]:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        return pwrite(file, data, at)

    monkeypatch.setattr(os, "pwrite", refusing)
    with Telemetry(tmp_path, active=True, first_step=4, progress=False) as told:
        assert threading.active_count() == before
        for step in range(5, 105):
            full[0] = 10 < step < 100
            told.log(step, {"loss": 0.5 * step, "auc x": math.nan, "note": "text"})
    (path,) = (tmp_path / "tensorboard").iterdir()
    events = [event_pb2.Event.FromString(record) for record in records(path.read_bytes())]
    assert [event.file_version for event in events[:2]] == ["brain.Event:2", ""]
    assert (events[1].step, events[1].session_log.status) == (4, event_pb2.SessionLog.START)
    assert [(e.step, [(v.tag, v.simple_value) for v in e.summary.value]) for e in events[2:]] == [
        (step, [("loss", 0.5 * step)]) for step in range(5, 105)
    ]
    said = capfd.readouterr().err.splitlines()
    assert [line.partition(" (")[0] for line in said] == [
        f"hpcrec: {p}: cannot be written" for p in (tmp_path / "metrics.jsonl", path)
    ]


def test_a_tensorboard_that_is_never_written_is_closed_and_said(tmp_path, monkeypatch, capfd):
    def refusing(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", refusing)
    told = Telemetry(tmp_path, active=True, progress=False)
    for step in range(1, 31):
        told.log(step, {"loss": 1.0})
    told.close()
    (path,) = (tmp_path / "tensorboard").iterdir()
    said = capfd.readouterr().err
    assert path.stat().st_size == 0 and said.count(f"{path}: cannot be written (No space left on device)") == 1
    assert f"{path}: its last 31 records could not be written" in said


def test_a_resumed_run_goes_on_with_the_metrics_of_its_checkpoint(tmp_path):
    options = {"active": True, "tensorboard": False, "progress": False}
    with Telemetry(tmp_path, **options) as told:
        for step in (10, 20, 30):
            told.log(step, {"loss": step / 10})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 40, "lo')  # killed while it wrote
    with Telemetry(tmp_path, first_step=20, **options) as told:
        told.log(30, {"loss": 99.0})
    assert [(line["step"], line["loss"]) for line in read_metrics(tmp_path)] == [(10, 1.0), (20, 2.0), (30, 99.0)]
    with Telemetry(tmp_path, **options):
        pass
    assert read_metrics(tmp_path) == []


def test_a_run_goes_on_where_a_lost_node_has_left_holes_in_its_metrics(tmp_path):
    options = {"active": True, "tensorboard": False, "progress": False}
    with Telemetry(tmp_path, **options) as told:
        for step in range(10, 200, 10):
            told.log(step, {"loss": step / 10})
    path = tmp_path / "metrics.jsonl"
    text = bytearray(path.read_bytes())
    lines = text.splitlines(keepends=True)
    text[len(lines[0]) + 5 : len(lines[0]) + 5 + len(lines[1])] = bytes(len(lines[1]))  # of lines 2 and 3
    path.write_bytes(bytes(text) + b"\xff\n[1]\n{}\n" + json.dumps({"step": "20"}).encode() + b"\n")
    with Telemetry(tmp_path, first_step=100, **options):
        pass
    assert [line["step"] for line in read_metrics(tmp_path)] == [10, *range(40, 110, 10)]
    assert path.read_text().count("\n") == 8


def test_bar_and_tensorboard(tmp_path, capsys):
    with Telemetry(tmp_path, active=True, total_steps=5, first_step=3, columns=200) as told:
        told.step(0.5, 100, loss=0.25, wire_bytes=1_540_000)
        told.log(4, {"validation_auc": 0.75, "note": "text", "auc": math.nan})
        told.step(0.5, 100)
    bar = capsys.readouterr().err
    assert "5/5" in bar
    assert all(text in bar for text in ("loss 0.2500", "1.54 MB/step", ", auc 0.7500", "200/s"))
    (events,) = (tmp_path / "tensorboard").iterdir()
    assert b"validation_auc" in events.read_bytes()


@pytest.mark.parametrize("columns", ["0", "80"])
def test_a_bar_on_a_log_that_takes_no_more_ends_nothing(tmp_path, columns):
    code = (
        "import sys; from pathlib import Path; from hpcrec.training.telemetry import Telemetry\n"
        "columns = int(sys.argv[2]) or None\n"
        "with Telemetry(Path(sys.argv[1]), active=True, total_steps=9, tensorboard=False, columns=columns) as told:\n"
        "    for _ in range(9):\n"
        "        told.step(0.5, 100, loss=0.25)\n"
        "        told._bar._write()\n"
        "print('all steps')"
    )
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-c", code, str(tmp_path), columns], stdout=subprocess.PIPE, stderr=full)
    assert (done.returncode, done.stdout) == (0, b"all steps\n")


def test_the_summary_has_the_promised_keys(tmp_path):
    write_summary(tmp_path / "run", summary(eval={**summary()["eval"], "auc": math.nan}))
    found = json.loads((tmp_path / "run/summary.json").read_text())
    assert " ".join(found) == (
        "status ended steps samples skipped_steps dropped_features attempts eval throughput wire_bytes wire_messages "
        "dense_compression exchange_thresholds exchange time phase_s drains slow_ranks read_age peak_rss_bytes owners "
        "imbalance copies rows_ahead dynamic_tables threads topology versions advice"
    )
    assert set(found["eval"]) == {"auc", "attainable_auc", "logloss", "normalized_entropy", "calibration"}
    assert found["eval"]["auc"] is None and found["throughput"] == summary()["throughput"]
    assert found["wire_bytes"]["values"] == {"same_host": 2_000_000, "cross_host": 500}
    without = {key: value for key, value in summary()["eval"].items() if key != "attainable_auc"}
    write_summary(tmp_path / "run", summary(eval=without))
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["summary.json"]


def test_the_end_of_a_run_is_one_screen_with_what_to_change_below():
    both = {"auc": 0.75, "logloss": 0.5, "normalized_entropy": 0.9, "calibration": 1.0, "calibration_by_decile": []}
    found = {"split": "test", "checkpoint": "best", "step": 80, **summary()["eval"]}
    labels = {"by_label": {"click": both, "buy": {**both, "auc": None}}}
    text = screen.of_end(summary(eval={**found, **labels}))
    lines = text.splitlines()
    assert len(lines) <= screen.LINES and max(map(len, lines)) <= screen.COLUMNS
    assert lines[-2:] == ["", "Leave the <b> out."]
    rows = {name: value for name, _, value in (line.partition("  ") for line in lines) if name}
    assert rows["ended"].strip() == "early stop: auc did not improve for 3 evaluations,"  # and on, in the next line
    assert rows["evaluated"].strip() == "test data, best checkpoint, step 80"
    assert rows["test label click"].strip().startswith("auc 0.75, logloss 0.5")
    assert "samples/s" in rows and "sent: values" not in text and "calibration_by" not in text
    at = next(i for i, line in enumerate(lines) if line.startswith("time"))
    assert [line.split() for line in lines[at : at + 3]] == [
        ["time", "4.0", "s", "of", "rank", "1", "(dense)"],
        ["steps", "3.5", "s:", "model", "25.0%,", "wait", "for", "rows", "62.5%"],
        ["unaccounted", "0.5", "s,", "12.5%"],
    ]
    assert lines[at + 3].split() == ["memory", "2.00", "GB", "at", "most", "of", "a", "rank"]


def test_the_report_says_what_steps_waited_for_and_what_they_computed():
    """Shares of the steps of the slowest rank that runs the model, which add up."""
    parts = {
        "forward": (3.0, 0.0, 0.0),
        "values": (0.5, 2.5, 0.0),
        "gather": (1.0, 0.0, 0.0),
        "dense_reduce": (0.5, 1.5, 0.0),
        "load_wait": (0.0, 1.0, 0.0),
        "checkpoint": (7.0, 3.0, 0.0),  # between steps
    }
    fused = Times(21.0, parts, 1.0, {})
    rows = dict(report.step_rows(summary(time=times_of({0: ("fused", fused)}))))
    assert rows["steps wait"] == "25.0% for rows, 15.0% for dense sums, 10.0% for data; 4 drain points cost 2.0%"
    assert rows["steps compute"] == "30.0% the model, 15.0% rows, 5.0% other"
    owner = Times(20.0, {"gather": (5.0, 0.0, 0.0), "values": (1.0, 13.0, 0.0)}, 1.0, {})
    apart = times_of({0: ("owner", owner), 1: ("dense", fused)})
    rows = dict(report.step_rows(summary(time=apart, drains={"number": 0, "s": 0.0})))
    assert rows["steps wait"] == "25.0% for rows, 15.0% for dense sums, 10.0% for data"
    assert rows["steps compute"].endswith("; the slowest owner rows for 30.0% of its time")
    assert report.step_rows(summary(time=times_of({0: ("owner", owner)}))) == []


def test_drain_points_that_cost_much_are_named():
    took = times_of({0: ("fused", Times(6.0, {"forward": (4.0, 0.0, 0.0), "evaluate": (2.0, 0.0, 0.0)}, 0.0, {}))})
    said = report.drains_advice(summary(time=took), {"checkpoint.every": 50, "train.eval_every": 30})
    assert said == (
        "Drain points take 5.0% of the time of steps, 50 ms each: checkpoint.every = 50 and train.eval_every = 30. "
        "With checkpoint.every = 125 and train.eval_every = 75 it is 2%."
    )
    assert report.drains_advice(summary(time=took, drains={"number": 4, "s": 0.08}), {"checkpoint.every": 50}) == ""
    assert report.drains_advice(summary(drains={"number": 0, "s": 0.0}), {}) == ""


@pytest.mark.parametrize("key", sorted(telemetry.SUMMARY_KEYS.keys() - {"attempts"}))  # which may not be readable
def test_a_summary_without_a_key_is_refused(tmp_path, key):
    broken = {k: v for k, v in summary().items() if k != key}
    with pytest.raises(ValueError, match=f"has no {key}. Allowed: status, ended, steps"):
        write_summary(tmp_path, broken)
    assert not (tmp_path / "summary.json").exists()


def test_other_wrong_summaries_are_refused(tmp_path):
    wrong = [
        (summary(extra=1), "unknown key extra"),
        (summary(status="done"), "'done'. Allowed: finished, stopped, failed"),
        (summary(ended={"by": "steps"}), "has no ended.total_steps"),
        (summary(throughput={"samples_per_s": 1.0, "step_ms": {"p50": 1.0}}), "has no throughput.step_ms.p95"),
        (summary(wire_bytes={"ids": {"same_host": 1}}), "has no wire_bytes.ids.cross_host"),
        (summary(wire_messages={"ids": {"cross_host": 1}}), "has no wire_messages.ids.same_host"),
    ]
    for broken, words in wrong:
        with pytest.raises(ValueError, match=re.escape(words)):
            write_summary(tmp_path, broken)


def test_the_table_for_the_terminal():
    lines = report.text_table(summary()).splitlines()
    assert lines[0].split() == ["status", "finished"]
    (tries,) = [line for line in lines if line.startswith("attempts")]
    assert tries.endswith("  3, 1 h 7 min in all; 1,200 steps done again, 45.6 s of them lost")
    once = {"number": 1, "total_s": 9.0, "lost_steps": 0, "lost_s": 0.0}
    assert "attempts" not in report.text_table(summary(attempts=once))
    assert any(line.split() == ["samples/s", "12,346"] for line in lines)
    (slow,) = [line for line in lines if line.startswith("slow ")]
    assert slow.endswith("rank 1 on node<7> (owner): 2.0 times the median of its role for its work, 1,250 lines")
    assert not any(line.startswith("slow ") for line in report.text_table(summary(slow_ranks=[])).splitlines())
    assert any(line.startswith("sent: values") and "2.00 MB same host, 500 B across hosts" in line for line in lines)
    (at,) = (number for number, line in enumerate(lines) if line.startswith("time of rank 1 (dense)  "))
    assert [re.split(r" {2,}", line.strip()) for line in lines[at + 1 : at + 5]] == [
        ["waiting: values", "2.50 s, 62.5%"],
        ["computing: forward", "1.00 s, 25.0%"],
        ["unaccounted", "0.50 s, 12.5%"],
        ["beside it: route", "3.25 s computing"],
    ]
    assert lines[-2].endswith("bytes 1.00, lookups 1.25, distinct 1.00, time 1.00")
    last = "900 of 1,000, 1,500 admitted, 600 evicted, 42 left without a row"
    assert lines[-1].startswith("dynamic: user ") and lines[-1].endswith(last)
    assert "dynamic" not in report.text_table(summary(dynamic_tables={}))
    vectors = [line.split("  ")[-1].strip() for line in lines if line.startswith("vectors")]
    assert vectors == ["0.07", "3 thresholds found anew by drift"]
    assert "vectors" not in report.text_table(summary(exchange_thresholds={}))
    said = [line.split("  ")[-1].strip() for line in lines if line.startswith("dense gradients")]
    assert said == ["1.00 MB in place of 50.00 MB, 50 times less", "0.006", "1,200 by schedule, 7 by drift"]
    assert "dense gradients" not in report.text_table(summary(dense_compression={})).lower()
    chosen = {
        "forms": {"a": "rows", "b": "pooled", "c": "rows"},
        "copied_tables": ["d"],
        "predicted_bytes_per_step": {"ids": 0.0, "values": 1e6},
        "counted_bytes_per_step": {"ids": 0.0, "values": 1.1e6, "dense": 7e6},
        "owner_flops_per_step": 2.5e6,
    }
    (line,) = (x for x in report.text_table(summary(exchange=chosen)).splitlines() if x.startswith("forms"))
    said = "2 rows, 1 pooled, 1 tables copied, 1.00 MB a step predicted, 1.10 MB counted, 2.5 Mflop a step at owners"
    assert line.split("  ")[0] == "forms chosen" and line.endswith(said)


def test_memory_and_versions_are_real():
    # in a process of its own, whose peak no earlier test has raised
    code = """from hpcrec.training.telemetry import peak_rss_bytes; before = peak_rss_bytes()
block = bytearray(60_000_000); print(before, peak_rss_bytes(), len(block))"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    before, after, size = map(int, said.split())
    assert 20e6 < before <= after - 0.9 * size < 1e12
    found = versions()
    assert {"python", "cpu", "threads", "hpcrec", "torch", "numpy", "h5py"} <= set(found)
    assert found["numpy"] == np.__version__ and all(isinstance(v, str) and v for v in found.values())
