"""The native module in a process: one OpenMP runtime, threads of their own, the GIL released, the fallback."""

import importlib.util
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from hpcrec import kernels
from hpcrec.errors import MissingError
from hpcrec.kernels import backend, native, native_module

RUN = """
def run():
    import numpy as np
    from hpcrec import kernels
    kernels.set_threads(2)
    assert kernels.active() == "native"
    rows, out = np.ones((1000, 64), np.float32), np.empty(64000, np.float32)
    kernels.pooled_gather(rows, np.arange(1000), np.arange(1001), out)
    assert out.sum() == 64000
"""
COUNT = """
import importlib.util
import os
maps = open("/proc/self/maps").read().split("\\n")
found = {os.path.realpath(line.split()[-1]) for line in maps if "omp" in line.rsplit("/", 1)[-1]}
print(len(os.listdir("/proc/self/task")), *found)
"""


@pytest.mark.parametrize(
    "imports",
    [
        "import torch; run()",
        "run(); import torch",
        "import torch; run(); from mpi4py import MPI; import horovod.torch",
        "from mpi4py import MPI; import horovod.torch; run()",
        "run(); from mpi4py import MPI; import horovod.torch",
    ],
)
def test_one_openmp_runtime(imports):
    # mpi4py comes before Horovod, here as in hpcrec: a wheel from the cache names another checkout's libmpi, and takes
    # the one that is loaded already.
    if "horovod" in imports and importlib.util.find_spec("horovod") is None:
        pytest.skip("Horovod is not installed")
    use_torch = "" if "torch" not in imports else "torch.ones(500, 500) @ torch.ones(500, 500); import torch\n"
    code = RUN + imports + "\nimport torch\n" + use_torch + COUNT
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    n_tasks, *found = done.stdout.split()
    assert len(found) == 1, found
    assert "torch" in found[0]
    assert int(n_tasks) >= 2  # the kernel's second thread waits in the pool


def test_the_module_links_no_runtime():
    listed = subprocess.run(
        ["readelf", "-d", native.module().__file__], capture_output=True, text=True, check=True
    ).stdout
    assert "NEEDED" in listed
    assert "omp" not in listed


def test_loading_imports_no_torch():
    code = RUN + "run(); import sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_threads_are_the_callers_own():
    kernels.set_threads(3)
    seen = []
    other = threading.Thread(target=lambda: seen.append((kernels.get_threads(), native.module().get_threads())))
    other.start()
    other.join()
    assert seen == [(1, 1)]
    assert (kernels.get_threads(), native.module().get_threads()) == (3, 3)
    with pytest.raises(ValueError, match="threads is 0; allowed are 1 to 1024"):
        kernels.set_threads(0)


def test_the_gil_is_released():
    ids = np.random.default_rng(0).integers(0, 2**62, 2_000_000)
    running, steps = threading.Event(), []

    def group():
        running.set()
        kernels.group(ids)
        running.clear()

    thread = threading.Thread(target=group)
    thread.start()
    running.wait()
    while running.is_set():
        steps.append(time.perf_counter())
        time.sleep(0.001)
    thread.join()
    # with the GIL held this thread would wake once, at the end
    assert len(steps) > 10


def test_two_python_threads_at_once():
    ids = np.random.default_rng(1).integers(0, 10**6, 150_000)
    wanted = kernels.group(ids)
    found = []

    def group():
        kernels.set_threads(2)
        found.extend(kernels.group(ids) for _ in range(5))

    threads = [threading.Thread(target=group) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 15
    assert all((a == b).all() for one in found for a, b in zip(one, wanted, strict=True))


def test_fallback_warns_once(monkeypatch, recwarn):
    ids = np.array([4, 4, 2])
    monkeypatch.setattr(backend, "_active", None)
    monkeypatch.setattr(native_module, "_loaded", MissingError("not built; `make setup`"))
    with pytest.warns(RuntimeWarning, match="make setup"):
        assert kernels.dedup(ids)[0].tolist() == [2, 4]
    assert kernels.active() == "reference"
    kernels.dedup(ids)
    kernels.set_threads(2)
    assert kernels.get_threads() == 2
    assert len(recwarn) == 0
    with pytest.raises(MissingError, match="make setup"):
        kernels.use("native")


def test_a_module_without_its_runtime_says_how_to_build(monkeypatch):
    def refuse(name):
        raise ImportError(f"No module named {name}")

    monkeypatch.setattr(native_module.importlib, "import_module", refuse)
    error = native_module._load()
    assert isinstance(error, MissingError)
    assert "make setup" in str(error)
    assert "pip install ." in str(error)
    assert "No module named hpcrec._native" in str(error)


def test_unknown_backend():
    with pytest.raises(ValueError, match="allowed are native, reference, cuda, emulated"):
        kernels.use("metal")
