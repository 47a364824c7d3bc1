"""The public names of the package: which there are, that nothing takes their place, and that asking costs nothing."""

import importlib
import inspect
import pkgutil
import subprocess
import sys

import hpcrec

# What users write into their notebooks and scripts. A name goes, or changes what it is, in no version without notice.
NAMES = ["Callback", "CsvLog", "Loaded", "Run", "Session", "launch", "load", "open_session", "prepare", "train"]
FUNCTIONS = ["launch", "load", "open_session", "prepare", "train"]


def test_the_public_names_are_these() -> None:
    assert hpcrec.__all__ == NAMES and set(NAMES) <= set(dir(hpcrec))


def test_no_submodule_takes_the_place_of_a_name() -> None:
    for found in pkgutil.walk_packages(hpcrec.__path__, "hpcrec."):
        if found.name.rpartition(".")[2] != "__main__":
            importlib.import_module(found.name)
    assert all(inspect.isfunction(getattr(hpcrec, name)) for name in FUNCTIONS)
    assert all(inspect.isclass(getattr(hpcrec, name)) for name in set(NAMES) - set(FUNCTIONS))


def test_import_starts_no_mpi_and_loads_no_torch() -> None:
    """Nor do data sets and launches begin MPI in the process that asks for them."""
    asked = """
import sys, hpcrec
dir(hpcrec)
assert not {"mpi4py", "torch", "numpy"} & set(sys.modules)
hpcrec.prepare, hpcrec.launch, hpcrec.CsvLog
assert "mpi4py.MPI" not in sys.modules and "horovod" not in sys.modules
"""
    assert subprocess.run([sys.executable, "-c", asked]).returncode == 0
