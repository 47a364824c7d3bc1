"""What all ranks would refuse at once, refused before any is started: their data, model, tables and packages.

It takes torch, and MPI's library, which the process that starts ranks must not hold: another process looks, and says
what it found. Knows which part looks at what; what is looked at there is ``build``'s.
"""

import contextlib
import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from hpcrec.comm.unstarted import leave_unstarted
from hpcrec.errors import HpcrecError, UnreadableError

if TYPE_CHECKING:
    from hpcrec.config import Config


LIMIT_S = 120.0  # after which ranks are started, whatever the other process does
# Options of mpirun's and srun's that name hosts, besides those with "host" in their names.
_NAMING_HOSTS = ("-H", "-f", "-w", "-machinefile", "--machinefile", "--machine-file", "--nodelist", "-F", "--nodefile")


def ranks_are_here(hostfile: str | None, options: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether ranks will be on this host alone, as far as the launcher's options and the job around it tell."""
    from hpcrec.launcher.restarts import on_several_hosts

    elsewhere = "SLURM_JOB_ID" in environment and "SLURMD_NODENAME" not in environment  # a shell beside the job's nodes
    words = [word.partition("=")[0] for option in options for word in option.split()]
    named = any("host" in word or word in _NAMING_HOSTS for word in words)
    by_default = any("hostfile" in name.lower() for name in environment)  # of Open MPI's and Hydra's settings
    return not (elsewhere or named or by_default or on_several_hosts(hostfile, environment))


def refuse_run(config: "Config", ranks: int) -> None:
    """Refuses what ``ranks`` ranks on this host would refuse to train.

    Raises
    ------
    HpcrecError
        As of ``build.check.check_run``.
    """
    _look(partial(_check_run, config, ranks))


def refuse_reading(config: "Config", data: str) -> None:
    """Refuses a data set that a run cannot predict or evaluate.

    Raises
    ------
    ConfigError, DataError
        As of ``build.datasets.refuse_other_columns``.
    """
    _look(partial(_check_columns, config, data))


def _check_run(config: "Config", ranks: int) -> None:
    from hpcrec.build.check import check_run

    check_run(config, ranks, here=True)


def _check_columns(config: "Config", data: str) -> None:
    from hpcrec.build.datasets import refuse_other_columns

    refuse_other_columns(config, data)


def _look(at: Callable[[], None]) -> None:
    """Raises here what ``at`` refuses in a process of its own. Where that cannot tell, ranks will."""
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe(duplex=False)
    process = fork.Process(target=_tell, args=(theirs, at))
    process.start()
    theirs.close()
    error = None
    with contextlib.suppress(EOFError):  # it has ended without a word
        if ours.poll(LIMIT_S):
            error = ours.recv()
        else:  # a model of one's own that waits for other ranks, say
            process.kill()
    process.join()
    if error is not None:
        raise error


def _tell(to: Connection, at: Callable[[], None]) -> None:
    """What the other process does: sends the error, or None. What libraries print there is not for the user."""
    leave_unstarted()
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        sys.stdout = sys.stderr = nowhere
        for number in (1, 2):
            os.dup2(nowhere.fileno(), number)
        try:
            at()
        except UnreadableError:  # just now: ranks try again
            to.send(None)
        except HpcrecError as error:
            to.send(error)
        except Exception:  # of a model of one's own, say, which ranks will tell with its traceback
            to.send(None)
