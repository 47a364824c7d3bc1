"""``hpcrec submit`` and ``hpcrec status``: a run as a Slurm job, and how far it is.

Knows options and the configuration; scripts and the queue are ``submit``'s, run folders ``status``'s.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcrec.cli.options import Anything, File, config_of, examples, set_option, system_option, words_of
from hpcrec.errors import ConfigError

if TYPE_CHECKING:
    from hpcrec.config import Config
    from hpcrec.launcher.submit import Part


def _repeatable(name: str, target: str, text: str):  # type: ignore[no-untyped-def]
    return click.option(name, target, multiple=True, metavar="OPTION", help=text)


@click.command(
    short_help="Train as a Slurm job that survives its time limit.",
    epilog=examples(
        "hpcrec submit my.toml --nodes 4 --ranks-per-node 2 --time 04:00:00 --dry-run",
        "hpcrec submit my.toml --nodes 8 --owner-nodes 2 --ranks-per-node 4 --dense-option=--gres=gpu:4",
    ),
)
@click.argument("config", type=File)
@system_option
@set_option
@click.option("--nodes", type=click.IntRange(min=1), required=True, help="Nodes of the job, all kinds together.")
@click.option("--ranks-per-node", type=click.IntRange(min=1), default=1, show_default=True, help="Ranks on each.")
@click.option("--cpus-per-rank", type=click.IntRange(min=1), help="Cores of a rank; by default what the script has.")
@click.option(
    "--owner-nodes",
    type=click.IntRange(min=1),
    help="How many of the nodes are of another kind, for owners alone: a heterogeneous job. Only with split; "
    "roles are by node then, instead of what [topology] counts.",
)
@click.option("--owner-ranks-per-node", type=click.IntRange(min=1), help="Ranks on each of those; 1 by default.")
@click.option(
    "--time", metavar="LIMIT", help="Of one allocation: minutes, HH:MM:SS or D-HH:MM:SS. The run may take many."
)
@click.option("--partition", help="Slurm partition; the site's default otherwise.")
@click.option("--account", help="Slurm account; the site's default otherwise.")
@click.option(
    "--min-nodes",
    type=click.IntRange(min=1),
    help="Go on in the same job with so many nodes or more where others are lost; by default Slurm requeues the job.",
)
@click.option("--launcher", type=click.Choice(["mpirun", "srun"]), help="By default what env.sh says.")
@click.option(
    "--env", "env_sh", type=File, help="Your site's settings; by default HPCREC_ENV, ./slurm/env.sh, or ours."
)
@_repeatable(
    "--option",
    "options",
    "Further option for sbatch, of all nodes; repeatable: --option=--qos=long; --option=--mem= takes the script's out.",
)
@_repeatable("--owner-option", "owner_options", "The same of the owners' nodes alone.")
@_repeatable("--dense-option", "dense_options", "The same of the other nodes alone.")
@click.option("--dry-run", is_flag=True, help="Print the job script; submit nothing.")
@click.option(
    "--force",
    is_flag=True,
    help="Submit also where squeue does not answer, so that an earlier job of this run may be in the queue.",
)
def submit(
    config: Path,
    system: str | None,
    overrides: Sequence[str],
    nodes: int,
    ranks_per_node: int,
    cpus_per_rank: int | None,
    owner_nodes: int | None,
    owner_ranks_per_node: int | None,
    time: str | None,
    partition: str | None,
    account: str | None,
    min_nodes: int | None,
    launcher: str | None,
    env_sh: Path | None,
    options: Sequence[str],
    owner_options: Sequence[str],
    dense_options: Sequence[str],
    dry_run: bool,
    force: bool,
) -> None:
    """Submit the training run of the TOML file CONFIG to Slurm, by a script of slurm/ with these options put in.

    The configuration and its roles on these nodes are checked first. The job goes back to the queue at its time limit,
    when preempted and when a node fails, and then on from its last checkpoint. 'hpcrec status' shows how far it is.
    """
    from hpcrec.launcher import submit as jobs

    if owner_nodes is None and any((owner_ranks_per_node, *owner_options, *dense_options)):
        raise click.UsageError("--owner-ranks-per-node, --owner-option and --dense-option take --owner-nodes.")
    _refuse_nodes(nodes, owner_nodes, min_nodes)
    kinds = [(nodes - (owner_nodes or 0), ranks_per_node, dense_options)]
    if owner_nodes is not None:
        kinds.insert(0, (owner_nodes, owner_ranks_per_node or 1, owner_options))
    parts = tuple(
        jobs.Part(nodes=count, ranks_per_node=ranks, cpus_per_rank=cpus_per_rank, options=(*options, *own))
        for count, ranks, own in kinds
    )
    checked = _checked(config, system, overrides, parts, min_nodes)
    name = "split-het" if owner_nodes is not None else checked.topology.mode
    job = jobs.Job(
        arguments=(str(config.absolute()), *(("--system", system) if system else ()), *words_of(overrides)),
        run_folder=Path(checked.run.folder).absolute(),
        env_sh=_env_sh(env_sh, jobs.scripts_folder()),
        programs=Path(sys.executable).parent,
        parts=parts,
        time=time,
        partition=partition,
        account=account,
        launcher=launcher,
        min_nodes=min_nodes,
    )
    text = jobs.render(job, (jobs.scripts_folder() / f"{name}.sbatch").read_text(encoding="utf-8"))
    if dry_run:
        click.echo(text, nl=False)
        return
    number = jobs.submit(job, text, force=force)
    click.echo(f"job {number}: {' + '.join(str(part.ranks) for part in parts)} ranks on {nodes} nodes")
    click.echo(f"output: {job.run_folder}/slurm-{number}.out\nstatus: hpcrec status {job.run_folder}")


def _refuse_nodes(nodes: int, owner_nodes: int | None, min_nodes: int | None) -> None:
    """Refuses counts of nodes that do not go together."""
    if owner_nodes is not None and owner_nodes >= nodes:
        raise click.UsageError(f"--owner-nodes is {owner_nodes} of --nodes {nodes}, which leaves none to dense ranks.")
    if min_nodes is not None and (owner_nodes is not None or min_nodes >= nodes):
        raise click.UsageError(
            f"--min-nodes is {min_nodes}. Allowed: 1 to {nodes - 1}, fewer than --nodes, and none with --owner-nodes: "
            "where owners have nodes of their own, a lost one has to be replaced by its like."
        )


def _checked(
    path: Path, system: str | None, overrides: Sequence[str], parts: Sequence["Part"], min_nodes: int | None
) -> "Config":
    """The configuration, refused where the job's ranks would refuse it, or where it would not survive a requeue."""
    from hpcrec.build.memory import topology_of

    told = list(overrides)
    if len(parts) > 1:
        told += [f"topology.owners={parts[0].ranks}", f"topology.dense={parts[1].ranks}"]
    try:
        config = config_of(path, told, system)
    except ConfigError as error:
        if len(parts) == 1 or ": topology." not in str(error):  # behind where it was found: a file, a --set
            raise
        sets = "--owner-nodes sets topology.owners and topology.dense, and takes topology.mode = 'split'"
        raise ConfigError(f"hpcrec submit: {sets}: {error}") from error
    hosts = [part.ranks_per_node for part in parts for _ in range(part.nodes)]
    topology_of(config, [host for host, ranks in enumerate(hosts) for _ in range(ranks)])
    if min_nodes is not None:
        check_fewer(config, [part.ranks_per_node for part in parts for _ in range(part.nodes)], min_nodes)
    if config.checkpoint.every == 0:
        click.echo(
            "note: checkpoint.every is 0: a node failure, or a preemption without a warning, loses all since the last "
            "time limit. Set checkpoint.every.",
            err=True,
        )
    if not Path(config.data.train).exists():
        click.echo(f"note: data.train ({config.data.train}) is not here; the job's nodes must have it.", err=True)
    return config


def check_fewer(config: "Config", tasks: Sequence[int], fewest: int) -> None:
    """Refuses a run that may lose nodes, down to ``fewest``, where its roles cannot be had on fewer.

    Parameters
    ----------
    tasks : sequence of int
        Ranks of each node.

    Raises
    ------
    ConfigError
        ``[topology]`` names ranks, or does not go with so many nodes.
    """
    from hpcrec.build.memory import topology_of
    from hpcrec.launcher.nodes import roles_of

    topology = config.topology
    for name, given in (("owners", topology.owners), ("dense", topology.dense)):
        if isinstance(given, tuple):
            raise ConfigError(
                f"--min-nodes is {fewest}, but topology.{name} lists ranks, of which some may be lost with their node. "
                "Give a count, a count per host, or leave --min-nodes out."
            )
    owners, dense = (count if isinstance(count, int) else None for count in (topology.owners, topology.dense))
    for nodes in range(fewest, len(tasks)):
        left = tasks[:nodes]
        roles = roles_of(owners, dense, sum(tasks), sum(left))
        fewer = replace(config, topology=replace(topology, owners=roles.get("owners"), dense=roles.get("dense")))
        try:
            topology_of(fewer, [host for host, ranks in enumerate(left) for _ in range(ranks)])
        except ConfigError as error:
            raise ConfigError(
                f"--min-nodes is {fewest}, but on {nodes} nodes this run could not go on: {error}"
            ) from error


def _env_sh(given: Path | None, ours: Path) -> Path:
    by_variable = os.environ.get("HPCREC_ENV") or None  # empty is none, as for the scripts
    if by_variable is not None and given is None and not Path(by_variable).is_file():
        raise ConfigError(f"hpcrec submit: HPCREC_ENV is {by_variable}, which is not a file.")
    places = (given, by_variable and Path(by_variable), Path("slurm/env.sh"), ours / "env.sh")
    return next(place for place in places if place and place.is_file()).absolute()


@click.command(short_help="Show how far a run is.", epilog=examples("hpcrec status runs/quickstart"))
@click.argument("run_folder", type=Anything)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of lines.")
def status(run_folder: Path, as_json: bool) -> None:
    """Show how far the run in RUN_FOLDER is, from what it has written and from Slurm's queue where there is one."""
    from hpcrec.launcher import status as found

    click.echo(found.as_json(run_folder) if as_json else "\n".join(found.lines(run_folder)))
