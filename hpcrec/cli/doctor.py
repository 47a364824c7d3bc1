"""The command ``hpcrec doctor``: parses its options, starts MPI, hands over to ``hpcrec.doctor``."""

import os
import socket
from collections.abc import Sequence
from pathlib import Path

import click
from click.core import ParameterSource

from hpcrec.cli.options import File, examples, set_option


@click.command(
    short_help="Check whether this set-up is ready for a run.",
    epilog=examples(
        "hpcrec run -n 4 -- doctor",
        "srun --mpi=pmix -n 64 hpcrec doctor --folder /scratch/me --config my.toml",
        "hpcrec doctor --json > doctor.json",
    ),
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    show_default="run.folder of --config, else the current one",
    help="Where runs will be written: each rank writes a file there, and reads the others'.",
)
@click.option("--config", "config_file", type=File, help="TOML file of a run: also checks its data, roles and memory.")
@set_option
@click.option(
    "--scratch",
    type=click.Path(path_type=Path),
    show_default="$SLURM_TMPDIR, else $TMPDIR",
    help="Folder on each host's own disk, whose speed is measured.",
)
@click.option(
    "--samples-per-s",
    type=click.FloatRange(min=0, min_open=True),
    show_default="of an earlier run in run.folder",
    help="What the run of --config is to handle: reading and checkpoints are held against it.",
)
@click.option(
    "--checkpoint-s",
    type=click.FloatRange(min=0, min_open=True),
    default=120.0,
    show_default=True,
    help="Longest that writing a checkpoint of --config should take.",
)
@click.option(
    "--limit-s", type=click.FloatRange(min=1), default=30.0, show_default=True, help="Longest that one check may take."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of lines.")
def doctor(
    folder: Path | None,
    config_file: Path | None,
    overrides: Sequence[str],
    scratch: Path | None,
    samples_per_s: float | None,
    checkpoint_s: float,
    limit_s: float,
    as_json: bool,
) -> int:
    """Check whether this set-up is ready for a run: MPI, cores, memory, network, files, software.

    Start it as the run will be started: by 'hpcrec run', mpirun or srun, on as many ranks. Each line says ok, warn or
    FAIL, what was looked at and what was found; 'do:' says what to change. Exit code 0: ready.
    """
    if overrides and config_file is None:
        raise click.UsageError("--set and --unset change a configuration: give --config FILE too.")
    given = click.get_current_context().get_parameter_source("checkpoint_s") == ParameterSource.COMMANDLINE
    if config_file is None and (samples_per_s is not None or given):
        name = "--samples-per-s" if samples_per_s is not None else "--checkpoint-s"
        raise click.UsageError(f"{name} is about a run: give its --config FILE too.")
    from hpcrec.comm.start import start_unchecked

    start_unchecked(os.environ)
    from hpcrec.config import load_config
    from hpcrec.doctor.command import run

    config = None if config_file is None else load_config(config_file, overrides)
    return run(
        dict(os.environ),
        folder=folder and folder.absolute(),
        config=config,
        host=socket.gethostname(),
        limit_s=limit_s,
        as_json=as_json,
        scratch=scratch and scratch.absolute(),
        samples_per_s=samples_per_s,
        checkpoint_s=checkpoint_s,
    )
