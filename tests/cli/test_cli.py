"""The command line: what each command hands over, exit codes, one line for an error, and help that starts nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hpcrec.cli import main as cli
from hpcrec.cli.options import words_of
from hpcrec.config import Unset
from hpcrec.errors import CheckpointError, ConfigError, HpcrecError
from hpcrec.launcher import mpirun as launch

CONFIG = '[data]\ntrain = "train.h5"\n[run]\nfolder = "runs/x"\n'


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "my.toml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def run_folder(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.toml").write_text(CONFIG)
    return tmp_path / "run"


@pytest.fixture
def data_file(tmp_path):
    (tmp_path / "data.h5").write_text("by its name a data set")
    return tmp_path / "data.h5"


@pytest.fixture
def commands(monkeypatch):
    """The commands' back end, replaced by notes of what it was called with; no MPI is started."""
    from hpcrec.api import commands as real

    calls = []
    answers = {"train": 75, "evaluate": {"auc": 0.5}, "predict": 12}

    def note(name):
        def called(*args, **kwargs):
            calls.append((name, args, kwargs))
            return answers[name]

        return called

    for name in answers:
        monkeypatch.setattr(real, name, note(name))
    monkeypatch.setattr(cli, "_start", lambda: 0)
    return calls


def hpcrec(*arguments) -> int:
    """Exit code of a command line, run in this process."""
    with pytest.raises(SystemExit) as caught:
        cli.main([str(a) for a in arguments])
    return int(caught.value.code or 0)


def subprocess_of(*arguments: str, code: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code] if code else [sys.executable, "-m", "hpcrec", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_train_hands_over_the_configuration_and_the_exit_code(config, commands):
    assert hpcrec("train", config, "--set", "train.steps=5", "--resume", "never", "--set", "model.name=lr") == 75
    ((name, (given,), _),) = commands
    assert (name, given.model.folder) == ("train", str(config.parent))
    assert (given.train.steps, given.checkpoint.resume, given.model.name) == (5, "never", "lr")
    assert given.data.train == "train.h5"


def test_an_error_in_one_process_is_our_line_and_our_exit_code_alone(config):
    done = subprocess_of("train", str(config))
    assert done.returncode == 1
    said = f"data.train: {Path('train.h5').absolute()}: no such file; write it by `hpcrec prepare`, or change the path."
    assert done.stderr == f"hpcrec: error: {said}\n"
    done = subprocess_of("train", str(config), "--set", "train.steps=ten")
    assert done.returncode == 2
    assert done.stderr.startswith("hpcrec: error: --set train.steps=ten: ") and done.stderr.count("\n") == 1


def test_a_key_is_unset_before_others_are_set(config, commands, capsys):
    config.write_text(CONFIG + "[model]\nwidth = 8\n[model.options]\ndropout = 0.1\n")
    unset = ["--unset", "model.options.dropout", "--unset", "model.width"]
    assert hpcrec("train", config, "--set", "train.steps=5", *unset) == 75
    ((_, (given,), _),) = commands
    assert (given.model.options, given.model.width, given.train.steps) == ({}, 16, 5)
    assert hpcrec("config", "show", config, *unset) == 0
    assert "dropout" not in capsys.readouterr().out
    assert hpcrec("config", "show", config, "--unset", "train.steps") == 2
    assert "--unset train.steps: train is not set" in capsys.readouterr().err
    assert words_of((Unset("model.width"), "train.steps=5")) == ("--unset", "model.width", "--set", "train.steps=5")


def test_evaluate_takes_a_run_folder_or_a_file(config, run_folder, commands, capsys):
    for where, checkpoint in [(run_folder, "best"), (config, "last")]:
        assert hpcrec("evaluate", where, "--data", config, "--checkpoint", checkpoint) == 0
        assert json.loads(capsys.readouterr().out) == {"auc": 0.5}
        _, (given,), named = commands.pop()
        assert given.run.folder == (str(run_folder) if where == run_folder else "runs/x"), "wherever it is now"
        assert named == {"data": str(config), "checkpoint": checkpoint}
    assert hpcrec("evaluate", run_folder, "--set", "run.folder=runs/y") == 0
    assert commands.pop()[1][0].run.folder == "runs/y"
    assert hpcrec("evaluate", run_folder) == 0
    assert commands.pop()[2] == {"data": None, "checkpoint": "best"}


def test_a_file_that_ends_early_is_no_interrupt_of_the_users(run_folder, data_file, commands, monkeypatch, tmp_path):
    """click takes the one for the other, and says nothing."""
    from hpcrec.api import commands as real

    def ends_early(*_, **__):
        raise EOFError("ended before the end-of-stream marker")

    monkeypatch.setattr(real, "predict", ends_early)
    with pytest.raises(EOFError, match="end-of-stream"):
        cli.main(["predict", str(run_folder), "--data", str(data_file), "--out", str(tmp_path / "out.h5")])


def test_the_code_of_a_folder_that_may_be_an_export_is_run_for_those_alone_who_say_so(
    run_folder, config, data_file, commands, capsys, tmp_path
):
    own = '[model]\nname = "evil:build"\nfolder = "/theirs"\n'
    (run_folder / "config.toml").write_text(CONFIG + own)
    line = ("predict", run_folder, "--data", data_file, "--out", tmp_path / "out.h5")
    assert hpcrec(*line) == 2
    said = capsys.readouterr().err
    assert "is a run, no export, and its model is code, 'evil:build' in /theirs, which would be run here" in said
    assert commands == [] and hpcrec(*line, "--trust") == 0 and len(commands) == 1
    config.write_text(CONFIG + own)  # a file that one names is a configuration, and that is code
    assert hpcrec("predict", config, *line[2:]) == 0 and len(commands) == 2


def test_predict_wants_data_and_a_file_to_write(run_folder, data_file, commands, capsys, tmp_path):
    out = tmp_path / "out.h5"
    assert hpcrec("predict", run_folder, "--data", data_file, "--out", out, "--set", "model.width=8") == 0
    assert capsys.readouterr().out == f"{out}: 12 predictions\n"
    ((_, (given,), named),) = commands
    assert given.model.width == 8 and named == {
        "data": str(data_file),
        "out": out,
        "checkpoint": "best",
        "columns": (),
        "kind": None,
    }
    assert hpcrec("predict", run_folder, "--out", out) == 2
    assert "--data" in capsys.readouterr().err
    line = ("predict", run_folder, "--data", data_file, "--out", tmp_path / "out.dat")
    assert hpcrec(*line, "--format", "csv", "--columns", "user, item") == 0
    assert commands[-1][2]["columns"] == ("user", "item") and commands[-1][2]["kind"] == "csv"
    assert hpcrec(*line, "--columns", "user,,item") == 2 and "empty name" in capsys.readouterr().err
    assert hpcrec("run", "-n", "2", "--", *line) == 2, "before any rank is started"
    assert "ends with '.dat'. Allowed: .h5, .hdf5, .parquet, .csv." in capsys.readouterr().err


def test_only_the_first_rank_prints(run_folder, commands, capsys, monkeypatch):
    monkeypatch.setattr(cli, "_start", lambda: 1)
    assert hpcrec("evaluate", run_folder) == 0
    assert capsys.readouterr().out == "" and len(commands) == 1


def test_config_show_and_reference(config, capsys, tmp_path):
    assert hpcrec("config", "show", config, "--set", "train.steps=5") == 0
    shown = capsys.readouterr().out
    assert "steps = 5" in shown and "batch_size = 2048" in shown
    (tmp_path / "shown.toml").write_text(shown)
    assert hpcrec("config", "show", tmp_path / "shown.toml") == 0
    assert capsys.readouterr().out == shown
    assert hpcrec("config", "reference") == 0
    assert capsys.readouterr().out == (Path(__file__).parents[2] / "docs/configuration.md").read_text()


def test_a_wrong_configuration_is_one_line_and_exit_code_2(config):
    done = subprocess_of("config", "check", str(config), "--set", "train.stps=5")
    assert done.returncode == 2 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("hpcrec: error: --set train.stps=5: train.stps is not a key")


def test_exit_codes_of_errors():
    for error, code in [("ConfigError", 2), ("CheckpointError", 1), ("HpcrecError", 1)]:
        done = subprocess_of(
            code=(
                "import hpcrec.cli.main as c, hpcrec.cli.config as g, hpcrec.errors as e\n"
                f"def fail(**_): raise e.{error}('too bad')\n"
                "g.config_reference.callback = fail\n"
                "c.main(['config', 'reference'])"
            )
        )
        assert (done.returncode, done.stderr) == (code, "hpcrec: error: too bad\n")
    assert issubclass(ConfigError, HpcrecError) and issubclass(CheckpointError, HpcrecError)


def test_wrong_usage_is_exit_code_2(capsys, tmp_path):
    for arguments in (["trian"], ["train"], ["train", tmp_path / "no.toml"], ["run", "-n", "0", "train"], ["run"]):
        assert hpcrec(*arguments) == 2
        assert "Error: " in capsys.readouterr().err


def test_a_folder_that_is_no_run_is_refused(tmp_path, commands):
    code = f"import hpcrec.cli.options as c, pathlib; c.run_config(pathlib.Path({str(tmp_path)!r}), [])"
    done = subprocess_of(code=code)
    assert "has no config.toml, so it is no run folder" in done.stderr


# ---- run -------------------------------------------------------------------------------------------------------------


def test_run_hands_the_command_line_to_the_launcher(config, monkeypatch):
    given = {}

    def run_command(ranks, arguments, **options):
        given.update(options, ranks=ranks, arguments=arguments)
        return 75

    looked_at = []
    monkeypatch.setattr(launch, "run_command", run_command)
    monkeypatch.setattr("hpcrec.cli.main.refuse_run", lambda checked, ranks: looked_at.append((checked, ranks)))
    line = [
        "run",
        "-n",
        4,
        "--threads",
        2,
        "--launcher-option=--tag-output",
        "--",
        "train",
        config,
        "--set",
        "train.steps=5",
    ]
    assert hpcrec(*line) == 75
    threads = ("--set", "topology.owner_threads=2", "--set", "topology.dense_threads=2")
    assert given["arguments"] == ("train", str(config), "--set", "train.steps=5", *threads)
    assert (given["ranks"], given["threads"], given["options"], given["hostfile"]) == (4, 2, ("--tag-output",), None)
    assert "PATH" in given["environment"] and given["program"] == (sys.executable, "-u", "-P", "-m", "hpcrec")
    assert hpcrec("run", "-n", 3, "train", config) == 75  # without --
    assert (given["ranks"], given["arguments"]) == (3, ("train", str(config)))
    assert [(checked.train.steps, ranks) for checked, ranks in looked_at] == [(5, 4), (None, 3)]
    own = config.with_name("loop.py")
    own.write_text("")
    assert hpcrec("run", "-n", 2, "--", own, "--any", "option") == 75
    assert (given["program"], given["arguments"]) == ((sys.executable, "-u"), (str(own), "--any", "option"))


def test_run_refuses_before_anything_is_started(config, run_folder, monkeypatch, capsys):
    monkeypatch.setattr(launch, "run_command", lambda *_, **__: pytest.fail("started"))
    for line, words in [
        (["prepare"], "starts prepare criteo or table on several ranks, not ''"),
        (["no_such_loop.py"], "no_such_loop.py is not a file"),
        (["train"], "Missing argument 'CONFIG'"),
        (["train", config, "--stes", "x"], "No such option"),
        (["train", config, "--help"], "hpcrec train --help"),
        (["predict", run_folder, "--out", "x.h5"], "--data"),
        (["doctor", "--config", "gone.toml"], "gone.toml"),
    ]:
        assert hpcrec("run", "-n", 2, "--", *line) == 2
        assert words in capsys.readouterr().err
    done = subprocess_of("run", "-n", "2", "--", "train", str(config), "--set", "train.steps=ten")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and "train.steps" in done.stderr


# ---- help ------------------------------------------------------------------------------------------------------------


def test_help_has_an_example_for_every_command(capsys):
    pages = [[name] for name in cli.command_line.commands]
    groups = {"checkpoint": cli.checkpoint, "config": cli.config_group, "data": cli.data, "prepare": cli.prepare}
    groups["towers"] = cli.towers
    pages += [[group, name] for group, commands in groups.items() for name in commands.commands]
    assert len(pages) >= 15
    for page in [[], *pages]:
        assert hpcrec(*page, "--help") == 0
        text = capsys.readouterr().out
        assert "Usage: hpcrec" in text
        assert (page and page[-1] in groups) or "\n    hpcrec " in text, page


def test_help_and_version_import_nothing_heavy():
    code = (
        "import sys, hpcrec.cli.main\n"
        "for line in (['--help'], ['train', '--help'], ['--version']):\n"
        "    try: hpcrec.cli.main.main(line)\n"
        "    except SystemExit as stop: assert stop.code == 0\n"
        "print('heavy:', sorted({'torch', 'mpi4py', 'numpy', 'pydantic', 'h5py'} & set(sys.modules)))"
    )
    done = subprocess_of(code=code)
    assert "hpcrec, version 0.1" in done.stdout and done.stdout.endswith("heavy: []\n"), done.stdout + done.stderr


def test_a_system_holds_where_the_file_and_set_say_nothing(config, commands, capsys):
    assert hpcrec("train", config, "--system", "persia", "--set", "policy.staleness=5") == 75
    ((_, (given,), _),) = commands
    assert (given.topology.mode, given.policy.name, given.policy.staleness) == ("split", "hybrid", 5)
    config.write_text(CONFIG + '[policy]\nname = "sync"\n[embedding]\noptimizer = { name = "sgd", lr = 0.5 }\n')
    assert hpcrec("config", "show", config, "--system", "dmt", "--set", "embedding.optimizer.lr=0.25") == 0
    shown = capsys.readouterr().out
    assert 'path = "levels"' in shown and 'name = "dmt_dlrm"' in shown and "lr = 0.25" in shown
    assert hpcrec("config", "show", config, "--system", "persia") == 2
    assert "--system persia: policy.staleness" in capsys.readouterr().err, "a key of the recipe beside one of the file"
    assert hpcrec("config", "show", config, "--system", "mtrains") == 2
    assert "store.path" in capsys.readouterr().err
    assert hpcrec("train", config, "--system", "nobody") == 2
