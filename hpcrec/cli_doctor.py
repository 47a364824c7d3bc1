"""The command ``hpcrec doctor``: parses its options, starts MPI, hands over to ``hpcrec.doctor``."""

import os
import socket
from collections.abc import Sequence
from pathlib import Path

import click

from hpcrec.cli_options import File, examples


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
    default=Path(),
    show_default="the current one",
    help="Where runs will be written: each rank writes a file there, and reads the others'.",
)
@click.option("--config", "config_file", type=File, help="TOML file of a run: also checks its data, roles and memory.")
@click.option("--set", "overrides", multiple=True, metavar="A.B=VALUE", help="Change a key of it; repeatable.")
@click.option(
    "--limit-s", type=click.FloatRange(min=1), default=30.0, show_default=True, help="Longest that one check may take."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of lines.")
def doctor(folder: Path, config_file: Path | None, overrides: Sequence[str], limit_s: float, as_json: bool) -> int:
    """Check whether this set-up is ready for a run: MPI, cores, memory, network, files, software.

    Start it as the run will be started: by 'hpcrec run', mpirun or srun, on as many ranks. Each line says ok, warn or
    FAIL, what was looked at and what was found; 'do:' says what to change. Exit code 0: ready.
    """
    if overrides and config_file is None:
        raise click.UsageError("--set changes a configuration: give --config FILE too.")
    from hpcrec.comm.start import start_unchecked

    start_unchecked(os.environ)
    from hpcrec.config import load_config
    from hpcrec.doctor.command import run

    config = None if config_file is None else load_config(config_file, overrides)
    return run(
        dict(os.environ),
        folder=folder.absolute(),
        config=config,
        host=socket.gethostname(),
        limit_s=limit_s,
        as_json=as_json,
    )
