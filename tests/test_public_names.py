"""What ``import hpcrec`` gives: the public names alone, and nothing heavy until one of them is asked for."""

import subprocess
import sys

# A name more or less is a change of the interface: CHANGELOG.md says so too.
PUBLIC = ["Callback", "CsvLog", "Loaded", "Run", "Session", "launch", "load", "open_session", "prepare", "train"]


def run(code: str) -> str:
    """What a fresh interpreter prints."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_what_is_listed_is_the_public_names() -> None:
    code = (
        "import hpcrec; print(*dir(hpcrec)); print(*hpcrec.__all__); print(*(n for n in vars(hpcrec) if n[0] != '_'))"
    )
    listed, starred, held = run(code).splitlines()
    assert listed.split() == sorted(starred.split()) == PUBLIC
    assert held == "", "what the module has made for itself would be completed too"


def test_importing_and_listing_starts_nothing() -> None:
    code = (
        "import hpcrec, sys; dir(hpcrec); print(*({'mpi4py', 'torch', 'numpy', 'h5py', 'pydantic'} & set(sys.modules)))"
    )
    assert run(code) == "\n"


def test_data_sets_and_launches_start_no_mpi_in_the_process_that_asks_for_them() -> None:
    code = """
import hpcrec, sys
hpcrec.prepare, hpcrec.launch, hpcrec.CsvLog
print(*({"mpi4py.MPI", "horovod"} & set(sys.modules)))
"""
    assert run(code) == "\n"


def test_public_names_stay_what_they_are_when_all_modules_are_imported() -> None:
    code = """
import importlib, hpcrec
from pathlib import Path
before = {name: getattr(hpcrec, name) for name in hpcrec.__all__}
root = Path(hpcrec.__file__).parent
modules = [path.relative_to(root.parent).with_suffix("") for path in root.rglob("*.py") if path.name[0] != "_"]
assert len(modules) > 200, len(modules)
for path in modules:
    importlib.import_module(".".join(path.parts))
from hpcrec import *
for name in before:
    assert getattr(hpcrec, name) is before[name] is globals()[name], name
    print(name, type(before[name]).__name__, before[name].__module__)
print(*dir(hpcrec))
"""
    assert run(code).splitlines() == [
        "Callback type hpcrec.training.callbacks",
        "CsvLog type hpcrec.training.callbacks",
        "Loaded type hpcrec.api.loaded",
        "Run type hpcrec.api.trained",
        "Session type hpcrec.training.session",
        "launch function hpcrec.api.launched",
        "load function hpcrec.api.loaded",
        "open_session function hpcrec.build.session",
        "prepare function hpcrec.api.prepared",
        "train function hpcrec.api.trained",
        " ".join(PUBLIC),
    ]


def test_a_name_that_is_not_there_is_refused() -> None:
    code = """
import hpcrec
try:
    hpcrec.open_sesion
except AttributeError as error:
    print(error)
"""
    assert run(code) == f"module 'hpcrec' has no attribute 'open_sesion'. It has: {', '.join(PUBLIC)}.\n"


def test_keywords_are_those_of_a_configuration_and_of_a_map() -> None:
    code = """
import hpcrec, inspect
from dataclasses import fields
from hpcrec.config import Config
from hpcrec.preparation.tablemap import TableMap
own = {"config", "callbacks", "others"}
assert set(inspect.signature(hpcrec.train).parameters) - own == {f.name for f in fields(Config)}
own = set("source out map validation test split seed max_bad compression restart progress others".split())
assert set(inspect.signature(hpcrec.prepare).parameters) - own == {f.name for f in fields(TableMap)} - {"split"}
print("alike")
"""
    assert run(code) == "alike\n"
