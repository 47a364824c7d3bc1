"""What ``squeue`` says of jobs. Knows squeue alone, neither runs nor their folders.

A job that squeue leaves out is taken for one that has ended. So all who ask it do so by ``asked``, for hidden
partitions too and without the settings of a user's environment by which it would leave jobs out.
"""

import os
import subprocess
from collections.abc import Mapping

GONE = "gone"
WAITING = ("PENDING", "REQUEUE_HOLD", "SPECIAL_EXIT")  # states of a job that has no nodes now, if it ever had some


def unfiltered(environment: Mapping[str, str], *, any_cluster: bool = False) -> dict[str, str]:
    """An environment without the settings by which squeue shows some jobs only, ``SQUEUE_PARTITION`` and the like.

    Parameters
    ----------
    any_cluster : bool
        ``SLURM_CLUSTERS`` holds too, as it does for sbatch; else this one's own cluster is asked.
    """
    of_clusters = () if any_cluster else ("SLURM_CLUSTERS",)
    return {
        name: value for name, value in environment.items() if not name.startswith("SQUEUE_") and name not in of_clusters
    }


def asked(
    *arguments: str, limit_s: float, environment: Mapping[str, str] | None = None, any_cluster: bool = False
) -> subprocess.CompletedProcess[str]:
    """What squeue says, without a header, and with which status it ends.

    Parameters
    ----------
    arguments : str
        Which jobs, and what of each.
    limit_s : float
        How long it may take.
    environment : mapping of str to str, optional
        By default this process's; ``unfiltered`` either way.
    any_cluster : bool
        As of ``unfiltered``.

    Raises
    ------
    OSError
        There is no squeue.
    subprocess.TimeoutExpired
    """
    told = unfiltered(os.environ if environment is None else environment, any_cluster=any_cluster)
    line = ["squeue", "--all", "--noheader", *arguments]
    return subprocess.run(line, env=told, capture_output=True, text=True, timeout=limit_s, check=False)


def state_of(job: str, limit_s: float = 20.0) -> str | None:
    """The state of a job in Slurm's queue, ``GONE`` where it is in it no longer; None where squeue does not say.

    Parameters
    ----------
    job : str
        As ``SLURM_JOB_ID`` has it, which each task of an array has for itself.
    limit_s : float
        How long squeue may take.
    """
    try:
        # All jobs are asked for: squeue fails for one that Slurm has forgotten, as it does where Slurm does not answer.
        done = asked("-o", "%A|%T", limit_s=limit_s)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return None
    states = dict(line.strip().split("|", 1) for line in done.stdout.splitlines() if "|" in line)
    return states.get(job, GONE)
