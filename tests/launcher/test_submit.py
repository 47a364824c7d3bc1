"""Job scripts as ``hpcrec submit`` renders them, what it refuses, and ``hpcrec status`` from what a run has written.

Without a Slurm: ``squeue`` and ``sbatch`` are small scripts here. On a real one: tests/slurm.
"""

import errno
import json
import os
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from hpcrec.cli.main import command_line
from hpcrec.errors import ConfigError, HpcrecError
from hpcrec.launcher.status import lines, status_of
from hpcrec.launcher.submit import Job, Part, jobs_of, render, scripts_folder
from hpcrec.launcher.submit import submit as send

SCRIPTS = ("fused", "split", "split-het")
TOML = """
[data]
train = "train.h5"
[topology]
mode = "{mode}"
{roles}
[checkpoint]
every = 100
[train]
steps = 1000
[run]
folder = "runs/x"
"""


def text_of(name: str) -> str:
    return (scripts_folder() / f"{name}.sbatch").read_text()


def job(folder: Path, *parts: Part, **more) -> Job:
    wanted = {"arguments": ("my run.toml", "--set", "train.steps=9"), "run_folder": folder / "x", "parts": parts}
    return Job(**{**wanted, "env_sh": folder / "env.sh", "programs": Path("/venv/bin"), **more})


def header(text: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")]


def test_what_is_asked_for_takes_the_place_of_the_script_s_options(tmp_path):
    part = Part(nodes=3, ranks_per_node=2, cpus_per_rank=5, options=("--exclusive", "--time=7"))
    text = render(
        job(tmp_path, part, time="1-00:00:00", partition="long", account="me", launcher="srun"), text_of("split")
    )
    assert header(text) == [
        "--job-name=hpcrec-x",
        "--nodes=3",
        "--ntasks-per-node=2",
        "--cpus-per-task=5",
        "--time=7",
        "--signal=B:USR1@120",
        "--requeue",
        "--open-mode=append",
        f"--output={tmp_path}/x/slurm-%j.out",
        "--partition=long",
        "--account=me",
        "--exclusive",
    ]
    assert "set -- 'my run.toml' --set train.steps=9\n" in text
    assert f"export PATH=/venv/bin:$PATH HPCREC_ENV={tmp_path}/env.sh\n" in text
    assert '/slurm/env.sh}"\nHPCREC_LAUNCHER=srun\n' in text, "after the site's settings"


def test_an_option_without_a_value_takes_the_script_s_out(tmp_path):
    owners = Part(nodes=2, ranks_per_node=1, options=("--constraint=",))
    text = render(job(tmp_path, owners, Part(nodes=2, ranks_per_node=4, options=("--gres=",))), text_of("split-het"))
    assert "--constraint=memory" in text_of("split-het") and "--gres=gpu:4" in text_of("split-het")
    assert not [option for option in header(text) if option.startswith(("--constraint", "--gres"))]


def test_a_longer_warning_is_the_run_s(tmp_path):
    part = Part(nodes=1, ranks_per_node=1, options=("--signal=B:USR1@600",))
    assert '/slurm/env.sh}"\nHPCREC_STOP_S=570\n' in render(job(tmp_path, part), text_of("fused"))


def test_run_folders_of_any_name(tmp_path):
    part = Part(nodes=1, ranks_per_node=1)
    found = header(render(job(tmp_path, part, run_folder=tmp_path / "it's 5% #1"), text_of("fused")))
    assert f'"--output={tmp_path}/it\'s 5%% #1/slurm-%j.out"' in found
    assert "--job-name=hpcrec-it-s-5---1" in found
    with pytest.raises(ConfigError, match="sbatch takes no path with '\"' in it"):
        job(tmp_path, part, run_folder=tmp_path / 'a"b')


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_rendered_script_is_the_script_itself_with_options_and_arguments(tmp_path, name):
    parts = [Part(nodes=2, ranks_per_node=1)] * (1 + (name == "split-het"))
    script, text = text_of(name), render(job(tmp_path, *parts), text_of(name))
    body = [line for line in script.splitlines() if not line.startswith("#SBATCH")]
    ours = ("export PATH=", "set -- 'my run.toml'")
    mine = [line for line in text.splitlines() if not line.startswith(("#SBATCH", *ours))]
    assert mine == body
    assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0
    assert header(text).count("hetjob") == (name == "split-het")


def test_the_scripts_differ_only_in_who_is_what():
    rule = "# ---- from here on the same in fused.sbatch, split.sbatch and split-het.sbatch"
    tails = {text_of(name).partition(rule)[2] for name in SCRIPTS}
    assert len(tails) == 1 and "scontrol requeue" in tails.pop()
    for name in SCRIPTS:
        options = header(text_of(name))
        assert {"--requeue", "--signal=B:USR1@120", "--open-mode=append"} <= set(options)


@pytest.mark.parametrize("time", ["90", "04:00:00", "2-12", "1-00:00:00", "unlimited"])
def test_times_as_sbatch_has_them(tmp_path, time):
    assert job(tmp_path, Part(nodes=1, ranks_per_node=1), time=time).time == time


def test_nonsense_is_refused(tmp_path):
    part = Part(nodes=1, ranks_per_node=1)
    with pytest.raises(ConfigError, match="--time is '4h'"):
        job(tmp_path, part, time="4h")
    with pytest.raises(ConfigError, match="option 'gres=gpu:4' for sbatch"):
        job(tmp_path, Part(nodes=1, ranks_per_node=1, options=("gres=gpu:4",)))
    with pytest.raises(ConfigError, match="--launcher mpirun with --owner-nodes"):
        job(tmp_path, part, part, launcher="mpirun")
    for option, said in (("--nodes=1", "give --nodes"), ("-N8", "give --nodes"), ("--array=0-3", "each run by itself")):
        with pytest.raises(ConfigError, match=f"sets {option[: 2 if option == '-N8' else 7]}.* itself.*{said}"):
            job(tmp_path, Part(nodes=1, ranks_per_node=1, options=(option,)))


@pytest.fixture
def at(tmp_path, monkeypatch):
    """Runs ``hpcrec submit`` on a configuration in a folder of its own; returns its exit code and what it said."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HPCREC_ENV", raising=False)

    def run(*arguments, mode="split", roles="", name="my.toml"):
        (tmp_path / name).write_text(TOML.format(mode=mode, roles=roles))
        try:
            done = CliRunner().invoke(command_line, ["submit", name, *arguments], catch_exceptions=False)
        except ConfigError as error:
            return 2, str(error)
        return done.exit_code, done.output

    return run


def test_roles_are_checked_on_these_nodes(at):
    assert at("--nodes", "4", "--dry-run")[0] == 0
    code, said = at("--nodes", "4", "--dry-run", roles="owners = 2\ndense = 3")
    assert code == 0  # they overlap: one rank is both
    code, said = at("--nodes", "6", "--dry-run", roles="owners = 2\ndense = 3")
    assert code == 2 and "leaves rank 2 (1 in all) without a role" in said
    code, said = at("--nodes", "2", "--dry-run", roles="owners_per_host = 2")
    assert code == 2 and "topology.owners_per_host is 2. Allowed: 1 to 1, the ranks of host 0" in said
    code, said = at("--nodes", "1", "--dry-run")
    assert code == 2 and "there is 1 rank, which cannot be split" in said


def test_a_system_is_checked_and_handed_on(at):
    code, said = at("--nodes", "4", "--dry-run", "--system", "persia")
    assert code == 0 and "my.toml --system persia" in said
    code, said = at("--nodes", "4", "--dry-run", "--system", "persia", mode="fused")
    assert code == 0 and "my.toml --system persia" in said, "the file's own keys hold"


def test_owners_nodes_are_a_part_of_their_own(at):
    options = [
        "--nodes",
        "5",
        "--owner-nodes",
        "2",
        "--ranks-per-node",
        "4",
        "--dense-option=--gres=gpu:4",
        "--dry-run",
    ]
    code, said = at(*options)
    assert code == 0
    first, second = said.split("#SBATCH hetjob\n")
    assert "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n" in first
    assert "#SBATCH --nodes=3\n#SBATCH --ntasks-per-node=4\n" in second and "#SBATCH --gres=gpu:4\n" in second
    code, said = at(*options, mode="fused")
    assert code == 2 and "--owner-nodes sets topology.owners" in said
    for name in ("my.toml", "topology.toml"):
        code, said = at(*options, "--set", "train.steps=0", "--set", "train.batch_size=0", name=name)
        assert code == 2 and "train.steps" in said and "--owner-nodes sets" not in said
        code, said = at(*options, "--set", "checkpoint.every=-1", name=name)
        assert code == 2 and f"{name}: " not in said and "--owner-nodes sets" not in said
    assert "leaves none to dense ranks" in at("--nodes", "2", "--owner-nodes", "2")[1]
    assert "take --owner-nodes" in at("--nodes", "2", "--owner-option=--mem=0")[1]


def test_what_would_not_survive_a_requeue_is_said(at):
    assert at("--nodes", "4", "--dry-run", "--set", "checkpoint.resume=never")[0] == 0  # it is for the first allocation
    assert "note: checkpoint.every is 0" in at("--nodes", "4", "--dry-run", "--set", "checkpoint.every=0")[1]
    assert "note: data.train (train.h5) is not here" in at("--nodes", "4", "--dry-run")[1]


def commands(folder: Path, monkeypatch, squeue: str, sbatch: str = "echo 12") -> None:
    """``squeue`` and ``sbatch`` that say this, first in PATH."""
    folder.mkdir(exist_ok=True)
    for name, body in (("squeue", squeue), ("sbatch", sbatch)):
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def test_two_jobs_of_one_run_are_refused(tmp_path, monkeypatch):
    commands(tmp_path / "bin", monkeypatch, "true")
    wanted = job(tmp_path, Part(nodes=1, ranks_per_node=1))
    assert send(wanted, "text") == "12"
    assert (tmp_path / "x/job.sbatch").read_text() == "text"
    commands(tmp_path / "bin", monkeypatch, "echo '13|RUNNING|1:00|None|n1|N/A'; echo '12|PENDING|1:00|Resources||N/A'")
    with pytest.raises(HpcrecError, match=r"job 12 for \S+ is in the queue \(PENDING\): two would write the same run"):
        send(wanted, "text")
    commands(tmp_path / "bin", monkeypatch, "true", "echo bad; echo sbatch: error: no >&2; exit 1")
    with pytest.raises(HpcrecError, match=r"sbatch refuses .*: sbatch: error: no"):
        send(wanted, "text")


@pytest.mark.parametrize("squeue", ["exit 1", "echo '12|RUNNING|1:00|None|n1|N/A'; exit 1"])
def test_a_failing_squeue_takes_force(tmp_path, monkeypatch, squeue):
    commands(tmp_path / "bin", monkeypatch, squeue)
    wanted = job(tmp_path, Part(nodes=1, ranks_per_node=1))
    assert send(wanted, "text") == "12"  # no job of this run is known: there is nothing to ask
    commands(tmp_path / "bin", monkeypatch, squeue, "echo 13")
    with pytest.raises(HpcrecError, match=r"squeue does not answer, so job 12 for \S+ may be in the queue.*--force"):
        send(wanted, "other")
    assert jobs_of(wanted.run_folder) == ["12"] and (tmp_path / "x/job.sbatch").read_text() == "text"
    assert send(wanted, "other", force=True) == "13"
    assert jobs_of(wanted.run_folder) == ["12", "13"]


def test_a_job_is_in_the_queue_also_where_squeue_is_told_to_leave_it_out(tmp_path, monkeypatch):
    commands(tmp_path / "bin", monkeypatch, "true")
    wanted = job(tmp_path, Part(nodes=1, ranks_per_node=1))
    assert send(wanted, "text") == "12"
    hidden = "case \" $* \" in *' --all '*) echo '12|RUNNING|1:00|None|n1|N/A' ;; esac"
    # asked of the clusters that sbatch submits to
    body = f'[ -n "$SQUEUE_PARTITION$SQUEUE_USERS" ] || [ "$SLURM_CLUSTERS" != theirs ] || {hidden}'
    commands(tmp_path / "bin", monkeypatch, body, "echo 13")
    monkeypatch.setenv("SLURM_CLUSTERS", "theirs")
    for name in ("SQUEUE_PARTITION", "SQUEUE_USERS", "A"):
        with monkeypatch.context() as patched:
            patched.setenv(name, "x")
            with pytest.raises(HpcrecError, match=r"job 12 for \S+ is in the queue \(RUNNING\)"):
                send(wanted, "other")
            assert status_of(run_folder(tmp_path)).state == "running"


def test_a_job_that_is_submitted_within_another_one_is_told_nothing_of_it(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_RESTART_COUNT", "3")
    monkeypatch.setenv("SLURM_JOB_ID", "11")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    monkeypatch.setenv("SBATCH_ACCOUNT", "me")
    commands(tmp_path / "bin", monkeypatch, "true", f"env > {tmp_path}/told; echo 12")
    assert send(job(tmp_path, Part(nodes=1, ranks_per_node=1)), "text") == "12"
    told = (tmp_path / "told").read_text().splitlines()
    assert [line for line in told if line.startswith("SLURM_")] == ["SLURM_CONF=/etc/slurm.conf"]
    assert "SBATCH_ACCOUNT=me" in told


def test_a_job_is_known_behind_a_line_that_was_cut_short(tmp_path, monkeypatch):
    commands(tmp_path / "bin", monkeypatch, "true")
    wanted = job(tmp_path, Part(nodes=1, ranks_per_node=1))
    wanted.run_folder.mkdir()
    (wanted.run_folder / "jobs.jsonl").write_text('{"job": "11", "at": "2026')
    assert send(wanted, "text") == "12" and jobs_of(wanted.run_folder) == ["12"]
    commands(tmp_path / "bin", monkeypatch, "echo '12|PENDING|1:00|Resources||N/A'")
    with pytest.raises(HpcrecError, match=r"job 12 for \S+ is in the queue"):
        send(wanted, "text")


def test_a_job_that_cannot_be_noted_is_named(tmp_path, monkeypatch):
    commands(tmp_path / "bin", monkeypatch, "true")
    wanted = job(tmp_path, Part(nodes=1, ranks_per_node=1))

    def full(*_: object) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(HpcrecError, match=r"job 12 is submitted, .*jobs\.jsonl.*quota.*'scancel 12' ends it"):
        send(wanted, "text")


def run_folder(folder: Path, *, summary: dict | None = None, jobs: tuple[str, ...] = ("12",)) -> Path:
    """What a run of 1000 steps that is at step 300 has written."""
    run = folder / "run"
    (run / "checkpoints/step-200").mkdir(parents=True, exist_ok=True)
    (run / "checkpoints/.step-300.tmp").mkdir(exist_ok=True)
    (run / "config.toml").write_text("[train]\nsteps = 1000\n")
    logged = [{"step": step, "time": 1000.0 + step / 2, "loss": 0.5} for step in (250, 300)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in logged) + '{"step": 350, "ti')
    (run / "jobs.jsonl").write_text("".join(json.dumps({"job": number}) + "\n" for number in jobs))
    events = [
        {"event": "begin", "job": "12", "step": 0},
        {"event": "end", "step": 200},
        {"event": "begin", "job": "12"},
    ]
    (run / "attempts.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (run / "slurm-12.out").write_text("")
    if summary is not None:
        (run / "summary.json").write_text(json.dumps(summary))
    return run


@pytest.mark.parametrize(
    ("squeue", "state"),
    [
        ("echo '12|RUNNING|1:23|None|n[1-4]|2026-01-01T00:00:00'", "running"),
        ("echo '12+0|RUNNING|1:23|None|n1|N/A'; echo '12+1|RUNNING|1:23|None|n2|N/A'", "running"),
        ("echo '12|PENDING|4:00|Resources||2026-01-02T00:00:00'", "requeued"),
        ("true", "cut off"),
        ("exit 1", "unknown"),
    ],
)
def test_state_by_the_queue(tmp_path, monkeypatch, squeue, state):
    commands(tmp_path / "bin", monkeypatch, squeue)
    found = status_of(run_folder(tmp_path))
    assert (found.state, found.step, found.total_steps, found.checkpoint_step) == (state, 300, 1000, 200)
    assert found.attempts == 2
    assert found.log is not None and found.log.endswith("slurm-12.out")
    if "12+1" in squeue:
        assert (found.job, found.nodes) == ("12", "n1,n2")
    if state == "running":
        assert found.allocation_left == "1:23" and found.run_left_s == pytest.approx(350.0)
        assert "run left          about 00:05:50 at the last pace" in lines(tmp_path / "run")
    if state == "requeued":
        assert found.allocation_left is None and found.reason == "Resources"
        assert "waits for         Resources, expected 2026-01-02T00:00:00" in lines(tmp_path / "run")


def test_state_by_the_summary(tmp_path, monkeypatch):
    commands(tmp_path / "bin", monkeypatch, "true")
    run = run_folder(tmp_path, summary={"status": "failed", "steps": 310, "error": "rank 3: no space"})
    found = status_of(run)
    assert (found.state, found.step, found.error) == ("failed", 310, "rank 3: no space")
    assert lines(run)[-1] == "goes on by        submitting it again"
    assert status_of(run_folder(tmp_path, summary={"status": "finished", "steps": 1000})).state == "finished"


def test_steps_of_a_run_that_counts_epochs(tmp_path, monkeypatch):
    commands(tmp_path / "bin", monkeypatch, "true")
    run = run_folder(tmp_path)
    (run / "config.toml").write_text("[train]\nepochs = 3\n")
    assert status_of(run).total_steps is None
    (run / "metrics.jsonl").write_text('{"step": 50, "time": 1.0, "loss": 0.1, "epoch": 0.125}\n')
    assert status_of(run).total_steps == 1200


def test_what_is_not_as_it_should_be_is_not_known(tmp_path, monkeypatch):
    commands(tmp_path / "bin", monkeypatch, "exit 1")  # squeue cannot be asked
    run = run_folder(tmp_path)
    assert status_of(run).state == "unknown"
    (run / "config.toml").write_text("[train]\nepochs = 'x'\n")
    (run / "metrics.jsonl").write_bytes(b'{"step": 250, "loss": 1, "epoch": 1.0, "time": 1.0}\n{"step": \xff}\n')
    assert (status_of(run).total_steps, status_of(run).step) == (None, 250)
    (run / "config.toml").unlink()
    assert status_of(run).state == "unknown"


def test_time_in_the_queue_is_no_pace(tmp_path, monkeypatch):
    commands(tmp_path / "bin", monkeypatch, "echo '12|RUNNING|4:00||n1|N/A'")
    run, begin = run_folder(tmp_path), datetime.fromtimestamp(36000, UTC).isoformat()
    with (run / "attempts.jsonl").open("a") as file:
        file.write(json.dumps({"event": "begin", "at": begin, "job": "12"}) + "\n")
    logged = [(290, 10.0), (300, 36010.0), (310, 36015.0)]
    for n, wanted_s in ((2, None), (3, 345.0)):
        lines_ = (json.dumps({"step": s, "time": t, "loss": 0.5}) + "\n" for s, t in logged[:n])
        (run / "metrics.jsonl").write_text("".join(lines_))
        assert status_of(run).run_left_s == wanted_s


def test_before_a_run_has_begun_and_where_there_is_none(tmp_path, monkeypatch):
    commands(tmp_path / "bin", monkeypatch, "echo '12|PENDING|4:00|Priority||N/A'")
    run = tmp_path / "run"
    run.mkdir()
    (run / "jobs.jsonl").write_text('{"job": "12"}\n')
    assert status_of(run).state == "queued"
    commands(tmp_path / "bin", monkeypatch, "true")
    assert status_of(run).state == "not begun"
    with pytest.raises(ConfigError, match=re.escape(f"{tmp_path}: no config.toml, and no job was submitted for it")):
        status_of(tmp_path)
