"""``hpcrec doctor`` on every rank, from its options on: which checks are made, and who prints."""

import sys
from pathlib import Path
from typing import Any

from hpcrec.comm.probe import Probe
from hpcrec.config import Config
from hpcrec.doctor.base import Site
from hpcrec.doctor.disk import nearest
from hpcrec.doctor.examine import examine
from hpcrec.doctor.registry import CHECKS, CONFIG_CHECKS, LAST_CHECKS

_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")


def run(
    environment: dict[str, str],
    *,
    folder: Path | None,
    config: Config | None,
    host: str,
    limit_s: float,
    as_json: bool,
    **more: Any,
) -> int:
    """Runs the checks and prints the report; collective. Returns the exit code.

    Parameters
    ----------
    folder : Path or None
        Where runs will be written; None: that of the configuration, or the nearest above it that rank 0 has; without
        a configuration the current one.
    more
        Further fields of ``Site``.
    """
    probe = Probe()
    # Where MPI and the launcher did not meet every task is rank 0 of its own world: then the first one speaks.
    launched = next((environment[name] for name in _RANK_VARIABLES if environment.get(name)), "0")
    silent = probe.size == 1 and launched != "0"

    def say(text: str) -> None:
        if not silent:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()

    def make_site() -> Site:
        wanted = Path.cwd() if config is None else nearest(Path(config.run.folder).absolute())
        place = folder or probe.share(wanted)[0]
        return Site(probe=probe, environment=environment, folder=place, host=host, config=config, **more)

    checks = (*CHECKS, *(CONFIG_CHECKS if config is not None else ()), *LAST_CHECKS)
    code = examine(probe, make_site, checks, say, limit_s=limit_s, as_json=as_json)
    probe.close()
    return code
