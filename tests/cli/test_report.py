"""``hpcrec report``: which file it writes of which runs, and what it refuses."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hpcrec.cli.main import command_line, main
from tests.report_page.made import lines_of, write_run
from tests.training.test_telemetry import summary


def call(*words: object) -> Result:
    return CliRunner().invoke(command_line, ["report", *map(str, words)], catch_exceptions=False)


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    """Exit status and message of a command line that is refused."""
    with pytest.raises(SystemExit) as ended:
        main(["report", *map(str, words)])
    said = capsys.readouterr().err
    assert "Traceback" not in said and said.startswith("hpcrec: error: ") and said.count("\n") == 1
    return int(str(ended.value.code)), said.removeprefix("hpcrec: error: ").strip()


def test_one_run_has_its_page_in_its_folder(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", lines=lines_of(20), summary=summary())
    done = call(run)
    assert (done.exit_code, done.output) == (0, f"{run / 'report.html'}: run finished\n")
    assert "<title>run: finished</title>" in (run / "report.html").read_text()


def test_all_figures_are_printed_where_they_are_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", lines=lines_of(20), summary=summary())
    going = write_run(tmp_path / "going", lines=lines_of(20))
    done = call(run, going, "--text")
    assert done.exit_code == 0 and not (run / "report.html").exists()
    lines = done.output.splitlines()
    assert lines[0] == "run: finished" and lines[-2:] == ["going: unknown", "It has not written how it ended."]
    assert any(line.startswith("sent: values") and "2.00 MB same host, 500 B across hosts" in line for line in lines)
    code, said = refused(capsys, run, "--text", "--out", "a.html")
    assert code == 2 and said == (
        "hpcrec report: --text prints, and --out a.html names a file to write. Leave one of them out."
    )


def test_several_have_theirs_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "a/run", lines=lines_of(20), summary=summary())
    write_run(tmp_path / "b/run", summary=summary(status="failed", error="the disk is full"))
    write_run(tmp_path / "open", lines=lines_of(20))
    done = call("a/run", "b/run", "open")
    assert (done.exit_code, done.output) == (0, "report.html: a/run finished, b/run failed, open unknown\n")
    text = (tmp_path / "report.html").read_text()
    assert all(f"<h1>{name}</h1>" in text for name in ("a/run", "b/run", "open"))
    assert "It has not written how it ended: it is running, or was cut off." in text
    assert not (tmp_path / "a/run/report.html").exists()
    assert call("a/run", "--out", "one.html").output == "one.html: run finished\n" and Path("one.html").is_file()


def test_no_such_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = refused(capsys, tmp_path / "none")
    wanted = f"{tmp_path}/none: no such folder. Give the run.folder of a run, which has config.toml in it."
    assert (code, said) == (2, wanted)
    (tmp_path / "file").write_text("")
    assert refused(capsys, tmp_path / "file")[1].startswith(f"{tmp_path}/file: is a file. Give")


def test_a_folder_that_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = refused(capsys, tmp_path)
    wanted = f"{tmp_path}: has no config.toml, so it is no run folder. Give the run.folder of a run."
    assert (code, said) == (2, wanted)


def test_a_run_that_is_given_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", summary=summary())
    code, said = refused(capsys, run, f"{run}/../run")
    assert (code, said) == (2, f"hpcrec report: {run}/../run is given twice. Give each run once.")


def test_a_line_of_metrics_that_is_damaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", lines=lines_of(5), summary=summary())
    lines = (run / "metrics.jsonl").read_text().splitlines()
    lines[1] = lines[1][:9]
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    code, said = refused(capsys, run)
    wanted = (
        f"{run}/metrics.jsonl, line 2: is '{{\"step\": ', and not a JSON object with a whole number as its step, "
        "though whole lines follow. Take the line out, or restore the file."
    )
    assert (code, said) == (1, wanted)
    assert not (run / "report.html").exists()


def test_a_summary_that_is_damaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", summary=summary())
    path = run / "summary.json"
    again = "Write the page without it: move it away, or let the run go on, which writes it anew."
    for text, wanted in (
        ('{"status', "is not JSON (Unterminated string starting at: line 1 column 2 (char 1)), as a run writes it."),
        ("[]", "has no keys, so it is no summary of a run."),
        ('{"status": "finished"}', "has no steps, so it is no summary of a run."),
        (json.dumps(summary(eval=[1])), "eval is [1], and not what a run writes there."),
    ):
        path.write_text(text)
        assert refused(capsys, run) == (1, f"{path}: {wanted} {again}")


def test_a_page_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", summary=summary())
    code, said = refused(capsys, run, "--out", tmp_path / "none/page.html")
    assert code == 1 and said.startswith(f"{tmp_path}/none/") and os.strerror(2) in said
