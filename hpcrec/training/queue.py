"""Whether Slurm still has a job, as ``squeue`` says. Knows squeue alone, neither runs nor their folders."""

import subprocess

GONE = "gone"
WAITING = ("PENDING", "REQUEUE_HOLD", "SPECIAL_EXIT")  # states of a job that has no nodes now, if it ever had some


def state_of(job: str, limit_s: float = 20.0) -> str | None:
    """The state of a job in Slurm's queue, ``GONE`` where it is in it no longer; None where squeue does not say.

    Parameters
    ----------
    job : str
        As ``SLURM_JOB_ID`` has it, which each task of an array has for itself.
    limit_s : float
        How long squeue may take.
    """
    # All jobs are asked for: squeue fails for one that Slurm has forgotten, as it does where Slurm does not answer.
    line = ["squeue", "-h", "-o", "%A|%T"]
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=limit_s, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return None
    states = dict(line.strip().split("|", 1) for line in done.stdout.splitlines() if "|" in line)
    return states.get(job, GONE)
