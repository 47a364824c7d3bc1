"""The command ``hpcrec``: train, evaluate, predict, init, prepare, data, doctor, run, submit, status, report, config.

Parses a command line, checks the configuration and hands over. What a command needs is imported when it runs, so that
``--help`` is quick and ``hpcrec run`` does not start MPI itself. Knows no sessions, files or communicators.
"""

import dataclasses
import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcrec.cli.before import ranks_are_here, refuse_reading, refuse_run
from hpcrec.cli.checkpoint import checkpoint, predict_exported, refuse_for_exports
from hpcrec.cli.config import config_group
from hpcrec.cli.data import data
from hpcrec.cli.doctor import doctor
from hpcrec.cli.init import init
from hpcrec.cli.options import (
    CONTEXT,
    EXPORT,
    HELP,
    LAUNCHERS,
    Anything,
    File,
    Target,
    WithKeys,
    checkpoint_option,
    config_of,
    data_copy_option,
    examples,
    is_table,
    run_config,
    set_option,
    system_option,
)
from hpcrec.cli.prepare import check_prepare, prepare
from hpcrec.cli.report import report
from hpcrec.cli.slurm import check_fewer, status, submit
from hpcrec.cli.towers import check_plan, towers
from hpcrec.errors import CombinedError, ConfigError, HpcrecError

if TYPE_CHECKING:
    from hpcrec.config import Config
    from hpcrec.data.predictions import Beside
    from hpcrec.launcher.nodes import JobNodes
    from hpcrec.launcher.relay import Heard

RESTARTS_HELP = "Start a training run that fails again, from its newest checkpoint, up to N times."


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and ends the process: 0, 1 (error), 2 (configuration, usage), 75 (stopped, goes on)."""
    try:
        code = command_line(args=arguments, prog_name="hpcrec", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort as abort:
        if isinstance(abort.__context__, EOFError):  # of a file, which click takes for a user's
            raise abort.__context__ from None
        sys.exit(130)
    except HpcrecError as error:
        if sys.excepthook is not sys.__excepthook__:  # on ranks, comm.failure says it once and ends all of them
            raise
        sys.exit(_told(error))
    sys.exit(code or 0)


def _told(error: HpcrecError) -> int:
    """Says what is wrong, where it is several things in a line each; returns the exit status."""
    each = error.each if isinstance(error, CombinedError) else (error,)
    for one in each:
        click.echo(f"hpcrec: error: {one}", err=True)
    if len(each) > 1:
        click.echo(f"hpcrec: {len(each)} errors, all of which are above; nothing was started", err=True)
    return 2 if any(isinstance(one, ConfigError) for one in each) else 1


@click.group(
    context_settings=CONTEXT,
    epilog=examples(
        "hpcrec prepare synthetic --out data/quickstart",
        "hpcrec run -n 4 -- train examples/quickstart/config.toml",
        "hpcrec run -n 4 -- evaluate runs/quickstart",
    ),
)
@click.version_option(package_name="hpcrec")
def command_line() -> None:
    """Train recommendation models whose embedding tables outgrow a node, over MPI."""


# ---- commands of every rank ------------------------------------------------------------------------------------------


def _listed(_context: click.Context, _parameter: click.Parameter, given: str | None) -> tuple[str, ...]:
    """Names with commas between them, taken apart."""
    names = () if given is None else tuple(name.strip() for name in given.split(","))
    if not all(names):
        raise click.BadParameter(f"{given!r} has an empty name. Give names with one comma between two.")
    return names


@command_line.command(
    cls=WithKeys,
    epilog=examples(
        "hpcrec train my.toml --set train.steps=100", "hpcrec run -n 4 -- train my.toml --set topology.mode=split"
    ),
)
@click.argument("config", type=File)
@system_option
@set_option
@click.option(
    "--resume",
    metavar="auto|never|PATH",
    help="Go on from the run folder's newest checkpoint if there is one (auto), start anew (never), or start from the "
    "checkpoint folder PATH. Default: checkpoint.resume of the configuration, which is auto unless it says otherwise.",
)
@data_copy_option
def train(
    config: Path,
    system: str | None,
    overrides: Sequence[str],
    resume: str | None,
    copies: Sequence[tuple[str, str]],
) -> int:
    """Train as the TOML file CONFIG says, into its run.folder.

    Runs on one rank; start it by 'hpcrec run', mpirun or srun for more. Stopped by a signal (TERM, INT, USR1), it
    writes a checkpoint and ends with exit code 75; the same command then goes on.
    """
    _start()
    from hpcrec.api import commands

    checked = _train_config(config, overrides, resume, system)
    return int(commands.train(checked, copies=copies, environment=os.environ))


@command_line.command(
    cls=WithKeys,
    epilog=examples(
        "hpcrec evaluate runs/quickstart",
        "hpcrec run -n 4 -- evaluate my.toml --data tomorrow.h5 --checkpoint last",
        'hpcrec evaluate runs/quickstart --by user --set evaluation.metrics=\'["auc", "gauc"]\'',
    ),
)
@click.argument("run_or_config", type=Anything)
@click.option("--data", type=File, help="Data set to evaluate on; the run's test or validation data by default.")
@click.option("--by", multiple=True, metavar="FEATURE", help="Calibration by the values of FEATURE too; repeatable.")
@checkpoint_option
@set_option
def evaluate(
    run_or_config: Path, data: Path | None, by: Sequence[str], checkpoint: str, overrides: Sequence[str]
) -> None:
    """Evaluate a trained model; print its metrics as JSON.

    RUN_OR_CONFIG is a run folder, or the TOML file that made it. Any number of ranks will do.
    Every rank has both roles here: of [topology] only the threads count.
    """
    rank = _start()
    from hpcrec.api import commands

    config = run_config(run_or_config, overrides)
    if by:
        config = dataclasses.replace(
            config, evaluation=dataclasses.replace(config.evaluation, by=tuple(dict.fromkeys(by)))
        )
    found = commands.evaluate(config, data=None if data is None else str(data), checkpoint=checkpoint)
    if rank == 0:
        click.echo(json.dumps(found, indent=2, default=_as_list))


@command_line.command(
    cls=WithKeys,
    short_help="Write a trained model's probabilities for a data set.",
    epilog=examples(
        "hpcrec predict runs/quickstart --data data/quickstart/test.h5 --out predictions.h5",
        "hpcrec run -n 4 -- predict runs/mine --data today.h5 --out today.parquet --columns user,item,label",
    ),
)
@click.argument("run", type=Anything)
@click.option("--data", type=File, required=True, help="Data set to predict, or a table: text, Parquet or Arrow.")
@click.option("--out", type=Target, required=True, help="File to write: .h5, .parquet or .csv.")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["hdf5", "parquet", "csv"]),
    help="What kind of file that is; by the end of its name by default.",
)
@click.option(
    "--columns",
    callback=_listed,
    metavar="NAME,NAME,...",
    help="Columns of the data to write beside probabilities, as they are stored: features (their ids), label, weight; "
    "of a table any of its columns.",
)
@click.option("--trust", is_flag=True, help="RUN is a folder whose model is code of its own, which may be run.")
@checkpoint_option
@set_option
def predict(
    run: Path,
    data: Path,
    out: Path,
    kind: str | None,
    columns: Sequence[str],
    trust: bool,
    checkpoint: str,
    overrides: Sequence[str],
) -> None:
    """Write a trained model's probabilities for a data set, in its order: a column for each label.

    RUN is a run folder, or the TOML file that made it; or an export ('hpcrec checkpoint export'), which takes one
    process and no MPI, and may come from anyone. A run folder whose model is code of its own needs --trust.

    A table (text, Parquet or Arrow) has values as they stood where the training data came from: they become ids by the
    column map and the vocabularies that the run, or the export, has of these. One process does it.
    """
    given = run, out, kind, trust, checkpoint, overrides
    if is_table(data):
        _predict_table(data, columns, *given)
    else:
        _predict(data, columns, None, *given)


def _predict_table(
    data: Path,
    columns: Sequence[str],
    run: Path,
    out: Path,
    kind: str | None,
    trust: bool,
    checkpoint: str,
    overrides: Sequence[str],
) -> None:
    if any(os.environ.get(name, "1") != "1" for name in LAUNCHERS):
        raise ConfigError(
            f"predict: --data {data} is a table, whose rows one process makes samples of. Start it without 'hpcrec "
            "run', mpirun or srun; or give a data set that was prepared together with the training data."
        )
    from hpcrec.data.carried import carried
    from hpcrec.data.predictions import format_of
    from hpcrec.preparation.raw import as_data_set

    kind, folder = format_of(out, kind), carried(run)  # what is refused is, before a large table is read
    if (run / EXPORT).is_file():
        refuse_for_exports(run, os.environ)
    else:
        config = _trusted(run, trust, overrides)
        folder = carried(Path(config.run.folder)) or Path(config.data.train).parent
    if folder is None:
        raise ConfigError(
            f"predict: --data {data} is a table, and {run} does not say how values became ids, for its run's data set "
            "did not. Give a data set."
        )
    with as_data_set(folder, data, out, kind, columns) as (samples, beside):
        _predict(samples, (), beside, run, out, kind, trust, checkpoint, overrides)


def _predict(
    data: Path,
    columns: Sequence[str],
    beside: "Beside | None",
    run: Path,
    out: Path,
    kind: str | None,
    trust: bool,
    checkpoint: str,
    overrides: Sequence[str],
) -> None:
    if (run / EXPORT).is_file():
        samples = predict_exported(run, data, out, os.environ, columns, kind, beside)
        click.echo(f"{out}: {samples} predictions")
        return
    rank = _start()
    from hpcrec.api import commands

    config = _trusted(run, trust, overrides)
    more: dict[str, Any] = {} if beside is None else {"beside": beside}
    given = {"checkpoint": checkpoint, "columns": columns, "kind": kind, **more}
    samples = commands.predict(config, data=str(data), out=out, **given)
    if rank == 0:
        click.echo(f"{out}: {samples} predictions")


def _trusted(run: Path, trust: bool, overrides: Sequence[str]) -> "Config":
    """The configuration of a run whose model is no code, or may be run."""
    config = run_config(run, overrides)
    code = config.model.code
    if run.is_dir() and code and not trust:
        where = f" in {config.model.folder}" if config.model.folder else ""
        raise ConfigError(
            f"{run}: is a run, no export, and its model is code, {', '.join(map(repr, code))}{where}, which would be "
            "run here. Add --trust where you would run a program by whom it is from."
        )
    return config


def _start() -> int:
    """Makes this process a rank, before anything that can go wrong on all of them."""
    from hpcrec.comm.start import start

    return start(os.environ)


def _train_config(path: Path, overrides: Sequence[str], resume: str | None, system: str | None = None) -> "Config":
    return config_of(path, [*overrides, *([] if resume is None else [f"checkpoint.resume={resume}"])], system)


def _as_list(value: Any) -> Any:
    return value.tolist()


command_line.add_command(init)
command_line.add_command(prepare)
command_line.add_command(data, "data")
command_line.add_command(doctor)
command_line.add_command(checkpoint, "checkpoint")
command_line.add_command(config_group)
command_line.add_command(towers)
command_line.add_command(submit)
command_line.add_command(status)
command_line.add_command(report)


# ---- run -------------------------------------------------------------------------------------------------------------


@command_line.command(
    context_settings={"allow_interspersed_args": False},
    short_help="Start one of the others on several ranks.",
    epilog=examples(
        "hpcrec run -n 4 -- train my.toml --set train.batch_size=8192",
        "hpcrec run -n 4 --restarts 3 -- train my.toml",
        "hpcrec run -n 2 --threads 8 -- evaluate runs/quickstart",
        "hpcrec run -n 4 -- examples/own_loop/train.py examples/quickstart/config.toml",
    ),
)
@click.option("-n", "ranks", type=click.IntRange(min=1), required=True, help="Ranks to start.")
@click.option("--threads", type=click.IntRange(min=1), help="Threads a rank; by default an equal part of the cores.")
@click.option("--hostfile", type=click.Path(path_type=Path), help="Host file for mpirun, to run on several hosts.")
@click.option(
    "--launcher",
    type=click.Choice(["mpirun", "srun"]),
    default="mpirun",
    show_default=True,
    help="srun in a Slurm job with PMIx: the only one over both parts of a heterogeneous job.",
)
@click.option("--restarts", type=click.IntRange(min=0), default=0, metavar="N", help=RESTARTS_HELP)
@click.option(
    "--min-nodes",
    type=click.IntRange(min=1),
    metavar="N",
    help="Go on with what is left of a Slurm job of --no-kill that loses nodes, down to N of them.",
)
@click.option("--launcher-option", "options", multiple=True, metavar="OPTION", help="Handed to it; repeatable.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, required=True)
def run(
    ranks: int,
    threads: int | None,
    hostfile: Path | None,
    launcher: str,
    restarts: int,
    min_nodes: int | None,
    options: Sequence[str],
    arguments: tuple[str, ...],
) -> int:
    """Start 'hpcrec ARGUMENTS' on several ranks by mpirun or srun, with binding, threads and signals that suit it.

    ARGUMENTS may also be a Python file of your own and its arguments. A command line of hpcrec's and its configuration
    are checked before anything is started.

    Where a rank is killed, the whole job ends, and it is said which rank died first, where it was, and where the others
    were (docs/failure.md). With --restarts, a training run then goes on from its newest checkpoint. So it does with
    --min-nodes where a node is lost, on the ranks of the other nodes (docs/slurm.md).
    """
    hosts = None if hostfile is None else str(hostfile)
    config = _check_before(arguments, ranks, here=ranks_are_here(hosts, options, os.environ))
    for option, value in (("--restarts", restarts), ("--min-nodes", min_nodes)):
        if value and config is None:
            raise click.UsageError(f"{option} {value}: only train can go on, not {arguments[0]!r}. Leave it out.")
    if threads is not None and arguments[0] in (*_TRAINED, "towers"):
        for role in ("owner", "dense"):
            arguments = (*arguments, "--set", f"topology.{role}_threads={threads}")
    from hpcrec.launcher.mpirun import run_command
    from hpcrec.launcher.restarts import Run, on_several_hosts, run_attempts

    own_loop = arguments[0].endswith(".py")
    nodes = None if config is None or min_nodes is None else _job_nodes(config, ranks, min_nodes)

    def start(arguments: Sequence[str], environment: Mapping[str, str], heard: "Heard") -> int:
        return run_command(
            ranks if nodes is None else nodes.ranks,
            arguments,
            # -P: a folder of data that one works in is none of modules
            program=(sys.executable, "-u", *(() if own_loop else ("-P", "-m", "hpcrec"))),
            environment=environment,
            launcher=launcher,
            threads=threads,
            hostfile=hosts,
            options=options,
            heard=heard,
            is_short=None if nodes is None else nodes.is_short,
        )

    return run_attempts(
        start,
        arguments,
        environment=os.environ,
        run=None if config is None else Run(Path(config.run.folder).absolute(), config.checkpoint.resume),
        restarts=restarts,
        several_hosts=on_several_hosts(hosts, os.environ),
        nodes=nodes,
    )


def _job_nodes(config: "Config", ranks: int, min_nodes: int) -> "JobNodes":
    """The nodes of this job, of which ``min_nodes`` or more are enough; refused where roles on them cannot be had."""
    from hpcrec.launcher.nodes import JobNodes

    topology = config.topology
    owners, dense = (count if isinstance(count, int) else None for count in (topology.owners, topology.dense))
    nodes = JobNodes(os.environ, ranks=ranks, fewest=min_nodes, owners=owners, dense=dense)
    check_fewer(config, nodes.tasks, min_nodes)
    return nodes


_TRAINED = {"train": train, "evaluate": evaluate, "predict": predict}  # take --set topology


def _check_before(arguments: Sequence[str], ranks: int, *, here: bool) -> "Config | None":
    """Refuses here, once, what every rank would refuse; returns the configuration of a run that is to be trained.

    ``here``: ranks will be on this host, so that what they look at is looked at now.
    """
    name, *rest = arguments
    if name.endswith(".py"):
        if not Path(name).is_file():
            raise click.UsageError(f"{name} is not a file.")
        return None
    wanted = {**_TRAINED, "prepare": prepare, "doctor": doctor, "towers": towers}
    if name not in wanted:
        known = f"'hpcrec run' starts {', '.join(wanted)} or a Python file, not {name!r}."
        named_again = rest and (rest[0] in wanted or rest[0].endswith(".py"))  # as mpirun has it: hpcrec or python
        raise click.UsageError(f"{known} Write: hpcrec run -n {ranks} -- {shlex.join(rest)}" if named_again else known)
    if set(rest) & set(HELP):
        raise click.UsageError(f"For help on it: hpcrec {name} --help")
    if name == "prepare":
        check_prepare(rest)
        return None
    if name == "towers":
        check_plan(rest)
        return None
    given = wanted[name].make_context(f"hpcrec {name}", list(rest)).params
    if name == "train":
        from hpcrec.config import with_copied_data

        checked = _train_config(given["config"], given["overrides"], given["resume"], given["system"])
        copied = with_copied_data(checked, given["copies"])
        if here:
            refuse_run(copied, ranks)
        return checked
    if name == "doctor":
        if given["config_file"] is not None:
            _train_config(given["config_file"], given["overrides"], None)
    else:
        if name == "predict":
            from hpcrec.data.predictions import format_of

            format_of(given["out"], given["kind"])
        config = run_config(given["run_or_config" if name == "evaluate" else "run"], given["overrides"])
        if here and given["data"] is not None:
            refuse_reading(config, str(given["data"]))
    return None
