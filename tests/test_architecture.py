"""Holds the package to its structure, by reading the source with ``ast`` alone: nothing is imported or run.

The tables come first: a change of structure is a change of one line in them, with its reason. Every check is also fed
a line that it has to refuse.
"""

import ast
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LEAVES = "types errors units"  # every module may import these; they import nothing of ours
# What each part of hpcrec may import of hpcrec, itself and LEAVES left out. A part is a package, or a module beside
# them; what has a row of its own inside a package is no part of that package.
ALLOWED = {
    "types": "",
    "errors": "",
    "units": "",
    "clock": "",  # of each thread: whoever waits or works on a thread of its own says so there
    "again": "clock",
    "output": "",
    "cores": "",
    "toml": "again",
    "plan": "",
    "kernels": "_native",
    "comm": "clock output kernels",  # whose loader finds the native module
    "disk": "clock kernels",  # whose loader finds the native module
    "embedding": "clock disk kernels plan",  # plan: what a store changes of the formula of a rank's memory
    "operators": "kernels",
    "models": "operators kernels",  # kernels: towers' dot products, natively
    "exchange": "operators embedding comm kernels",
    "policy": "exchange comm kernels",  # comm: clocks of threads; kernels: threads of its own thread
    "dense": "comm kernels",
    "data": "again clock comm kernels plan",  # plan: curves, of what is counted
    "preparation": "again data comm kernels toml",  # kernels: text is parsed natively; toml: column maps
    "drafts": "data preparation kernels toml",  # kernels: text is cut by the converters' own; toml: values as it writes
    "serving": "again data kernels",
    # policy, exchange: names, and what forms say of themselves; training.metric_names: which metrics there are
    "config": "toml policy exchange training.metric_names",
    "systems": "config",
    "training.metric_names": "",
    "training": "training.metric_names again clock output exchange policy dense data models embedding comm",
    # A session's parts are saved, so it knows them; disk: rows that are links to a store's files are read from these.
    "checkpoint": "again clock training dense data embedding disk comm",
    "checkpoint.tools": "again checkpoint dense data comm",  # checkpoints without a session
    # What in training knows checkpoints too: the loop, its lines of metrics, and what it says of thresholding.
    "training.compression": "training checkpoint dense",
    "training.lines": "training.compression training checkpoint comm",  # comm: its sums
    # comm: what it says
    "training.loop": "again clock config training.lines training.compression training checkpoint comm",
    # The page of runs: what their folders hold, as the rows of training's report and as curves.
    "report_page": "again toml training.metric_names training data",  # data: how a file is written whole
    "build": "again config training.compression training checkpoint.tools checkpoint serving plan policy exchange "
    "dense data models operators embedding disk kernels comm",  # disk: its rate, and what rows take there
    # build: what a configuration needs of memory and disk
    "doctor": "again build config training dense data disk kernels comm",  # disk: rates of that of rows
    "launcher": "again cores training toml comm",  # training: attempts of a run; comm: boards of ranks that died
    # What training does on every rank, whoever asks for it: a command line or the Python interface.
    "api.commands": "again build config report_page training.loop training.lines training.compression training "
    "checkpoint data embedding comm cores",
    # A user's own process: configurations, frames and results go in and out as Python has them.
    "api": "api.commands launcher build toml config training models preparation serving data comm",
    "cli": "again api.commands launcher doctor build systems config report_page training.compression training "
    "checkpoint.tools checkpoint drafts preparation serving data comm",
    "__main__": "cli",
    "__init__": "api build training",
}
# Who may import what stands above the rest; of those that the tables above allow, nobody else.
ABOVE = {
    "cli": "__main__",
    "api.commands": "cli api",
    "api": "__init__",
    "build": "cli api.commands api doctor __init__",
    "launcher": "cli api",
    "report_page": "cli api.commands",
}
# Packages of others that only one part may import, and parts that may not import them.
ONLY_IN = {"mpi4py": "comm", "horovod": "dense"}
NOT_IN = {("plan", "torch"), ("plan", "mpi4py")}
# Imports inside a function, (file, module): why.
LATE_IMPORTS: dict[tuple[str, str], str] = {
    ("hpcrec/dense/horovod.py", "horovod.torch"): "optional: the package imports, and other reducers run, without it",
    ("hpcrec/comm/library.py", "hpcrec.comm.alone"): "only where no MPI library can be loaded",
    ("hpcrec/kernels/device_array.py", "torch"): "kernels of the host run without it",
    ("hpcrec/kernels/device_calls.py", "torch"): "kernels of the host run without it",
    ("hpcrec/kernels/staging.py", "torch"): "kernels of the host run without it",
    ("hpcrec/dense/place.py", "torch._lazy.ts_backend"): "only for a device that is emulated",
    ("hpcrec/training/telemetry.py", "tensorboardX"): "only for run.tensorboard; takes 0.2 s",
    ("hpcrec/api/launched.py", "cloudpickle"): "optional: functions of modules are pickled without it",
    ("hpcrec/api/loaded.py", "hpcrec.api.reading"): "starts MPI, which an export does not need",
    ("hpcrec/data/prediction_files.py", "pyarrow"): "only for predictions as Parquet: training need not wait for it",
    ("hpcrec/cli/main.py", "hpcrec.comm.start"): "starts MPI, which `hpcrec run` and `--help` must not",
    ("hpcrec/cli/main.py", "hpcrec.api.commands"): "imports MPI and torch, after comm.start",
    ("hpcrec/cli/main.py", "hpcrec.data.carried"): "only for `hpcrec predict` of a table",
    ("hpcrec/cli/main.py", "hpcrec.preparation.raw"): "imports Arrow, which only `hpcrec predict` of a table needs",
    ("hpcrec/cli/main.py", "hpcrec.config"): "imports pydantic, which `--help` need not wait for",
    ("hpcrec/cli/before.py", "hpcrec.launcher.restarts"): "only for `hpcrec run`",
    ("hpcrec/cli/before.py", "hpcrec.build.check"): "imports torch and MPI, in a process of its own",
    ("hpcrec/cli/before.py", "hpcrec.build.datasets"): "imports torch and MPI, in a process of its own",
    ("hpcrec/comm/unstarted.py", "mpi4py"): "optional: without it there is one rank",
    ("hpcrec/cli/config.py", "hpcrec.config"): "imports pydantic, which `--help` need not wait for",
    ("hpcrec/cli/config.py", "hpcrec.build.check"): "imports torch, only for `hpcrec config check`",
    ("hpcrec/cli/config.py", "hpcrec.build.tier_lines"): "imports torch, only for `hpcrec config check`",
    ("hpcrec/cli/doctor.py", "hpcrec.comm.start"): "starts MPI, which `--help` must not",
    ("hpcrec/cli/doctor.py", "hpcrec.config"): "imports pydantic, which `--help` need not wait for",
    ("hpcrec/cli/doctor.py", "hpcrec.doctor.command"): "imports MPI and torch, after comm.start",
    ("hpcrec/cli/init.py", "hpcrec.config"): "imports pydantic, which `--help` need not wait for",
    ("hpcrec/cli/init.py", "hpcrec.drafts.draft"): "imports pyarrow, only for `hpcrec init`",
    ("hpcrec/cli/prepare.py", "hpcrec.comm.everyone"): "starts MPI, only under a launcher of several ranks",
    ("hpcrec/cli/prepare.py", "hpcrec.preparation.convert"): "imports pyarrow, only for `hpcrec prepare`",
    ("hpcrec/cli/prepare.py", "hpcrec.preparation.groups"): "only for `hpcrec prepare`",
    ("hpcrec/cli/report.py", "hpcrec.launcher.status"): "only for `hpcrec report`",
    ("hpcrec/cli/report.py", "hpcrec.report_page.folder"): "imports torch, only for `hpcrec report`",
    ("hpcrec/cli/report.py", "hpcrec.report_page.page"): "imports torch and Jinja, only for `hpcrec report`",
    ("hpcrec/cli/report.py", "hpcrec.training.report"): "imports torch, only for `hpcrec report`",
    ("hpcrec/cli/towers.py", "hpcrec.comm.start"): "starts MPI, which `--help` must not",
    ("hpcrec/cli/towers.py", "hpcrec.build.towers"): "imports MPI and torch, after comm.start",
    ("hpcrec/cli/towers.py", "hpcrec.data.files"): "imports NumPy, which `--help` must not",
    ("hpcrec/cli/towers.py", "hpcrec.report_page.towers"): "imports torch and Jinja, only for a page",
    ("hpcrec/cli/prepare.py", "hpcrec.preparation.tablemap"): "imports pyarrow, only for `hpcrec prepare`",
    ("hpcrec/cli/options.py", "hpcrec.config"): "imports pydantic, which `--help` need not wait for",
    ("hpcrec/cli/checkpoint.py", "hpcrec.build.export"): "imports torch, which `--help` need not wait for",
    ("hpcrec/cli/checkpoint.py", "hpcrec.serving.predict"): "imports torch, which `--help` need not wait for",
    ("hpcrec/cli/checkpoint.py", "hpcrec.serving.folder"): "imports torch, which `--help` need not wait for",
    ("hpcrec/cli/checkpoint.py", "hpcrec.checkpoint.tools.look"): "imports torch, which `--help` need not wait for",
    ("hpcrec/cli/checkpoint.py", "hpcrec.checkpoint.tools.verify"): "imports torch, which `--help` need not wait for",
    ("hpcrec/cli/checkpoint.py", "hpcrec.checkpoint.tools.diff"): "imports torch, which `--help` need not wait for",
    ("hpcrec/cli/checkpoint.py", "hpcrec.checkpoint.tools.convert"): "imports torch, which `--help` need not wait for",
    ("hpcrec/cli/slurm.py", "hpcrec.build.memory"): "imports torch, only for `hpcrec submit`",
    ("hpcrec/cli/slurm.py", "hpcrec.launcher.submit"): "only for `hpcrec submit`",
    ("hpcrec/cli/slurm.py", "hpcrec.launcher.status"): "only for `hpcrec status`",
    ("hpcrec/cli/data.py", "hpcrec.data.inspect"): "imports h5py, only for `hpcrec data inspect`",
    ("hpcrec/cli/data.py", "hpcrec.data.verify"): "imports h5py, only for `hpcrec data verify`",
    ("hpcrec/cli/data.py", "hpcrec.data.reuse"): "imports h5py, only for `hpcrec data reuse`",
    ("hpcrec/cli/main.py", "hpcrec.data.predictions"): "imports h5py, only for `hpcrec run -- predict`",
    ("hpcrec/cli/main.py", "hpcrec.launcher.mpirun"): "only for `hpcrec run`",
    ("hpcrec/cli/main.py", "hpcrec.launcher.restarts"): "only for `hpcrec run`",
    ("hpcrec/cli/main.py", "hpcrec.launcher.nodes"): "only for `hpcrec run --min-nodes`",
    ("hpcrec/cli/slurm.py", "hpcrec.launcher.nodes"): "only for `hpcrec submit` and `hpcrec run --min-nodes`",
}
# Reads of the environment, by file: why. Everywhere else a setting is an argument.
ENVIRONMENT: dict[str, str] = {
    "hpcrec/__main__.py": "hands the environment's settings to the library",
    "hpcrec/cli/main.py": "hands the environment's settings to the library",
    "hpcrec/cli/doctor.py": "hands the environment's settings to the library",
    "hpcrec/cli/towers.py": "hands the environment's settings to the library",
    "hpcrec/cli/slurm.py": "HPCREC_ENV, which slurm/env.sh documents, names the site's settings there too",
    "hpcrec/cli/prepare.py": "the launcher says there whether there are several ranks",
    "hpcrec/api/trained.py": "hands the environment's settings to the library",
    "hpcrec/api/loaded.py": "hands the environment's settings to the library",
    "hpcrec/api/on_rank.py": "hands the environment's settings to the library",
    "hpcrec/api/launched.py": "hands its own environment on to the ranks that it starts",
    "hpcrec/launcher/mpirun.py": "hands its own environment on to the ranks that it starts",
    "hpcrec/launcher/submit.py": "hands its own environment on to sbatch, less what Slurm has told of a job around it",
    "hpcrec/comm/library.py": "the launcher says there whether there are several ranks",
    "hpcrec/training/queue.py": "hands its own environment on to squeue, less the user's settings of squeue",
    "hpcrec/dense/horovod.py": "Horovod is set by environment variables alone",
}
# A file holds one concept, from top to bottom, and may be as long as that is: to be sent on from file to file is worse
# than a long one. Above this there is most often a second concept in it.
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 60  # docstring left out
# Files that are longer, and why.
LONG_FILES: dict[str, str] = {
    "hpcrec/config/keys.py": "one table of all keys, each with the text that docs/configuration.md is written from",
}
LONG_FUNCTIONS: dict[tuple[str, str], str] = {}  # (file, function): why it is longer
REFERENCE = "tests/reference.py"  # the single-process oracle: shares nothing with what it judges
REFERENCE_IMPORTS = {"torch", "numpy"}


@dataclass(frozen=True)
class Source:
    """A file of Python: its path in the repository, its part of hpcrec and its syntax tree."""

    path: str
    text: str

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @property
    def module(self) -> str:
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def part(self) -> str:
        return part_of("hpcrec.__init__" if self.module == "hpcrec" else self.module)


@dataclass(frozen=True)
class Import:
    """One imported module, as a dotted name; ``late`` where it stands inside a function."""

    module: str
    line: int
    late: bool
    wildcard: bool = False

    @property
    def top(self) -> str:
        return self.module.split(".")[0]

    @property
    def part(self) -> str:
        return part_of(self.module)


def part_of(module: str) -> str:
    """The part that a module of hpcrec belongs to: the innermost with a row; the outermost where none has one."""
    names = module.split(".")[1:]
    inside = [".".join(names[:n]) for n in range(len(names), 0, -1)]
    return next((name for name in inside if name in ALLOWED), inside[-1])


def is_module(name: str) -> bool:
    path = ROOT / name.replace(".", "/")
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def package() -> list[Source]:
    return [Source(str(p.relative_to(ROOT)), p.read_text()) for p in sorted((ROOT / "hpcrec").rglob("*.py"))]


def imports(source: Source) -> Iterator[Import]:
    """All imports of a file. ``from hpcrec.data import reader`` is one of hpcrec.data.reader; relative ones are made
    absolute."""

    def visit(node: ast.AST, late: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, late)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                inside = Path(source.path).parent.parts
                base = ".".join([*inside[: len(inside) - node.level + 1], *([base] if base else [])])
            for alias in node.names:
                name = f"{base}.{alias.name}"
                if base != "hpcrec" and not (base.startswith("hpcrec.") and is_module(name)):
                    name = base
                yield Import(name, node.lineno, late, alias.name == "*")
        for child in ast.iter_child_nodes(node):
            yield from visit(child, late or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda))

    yield from visit(source.tree, False)


def wrong_directions(source: Source) -> Iterator[str]:
    if source.part not in ALLOWED:
        yield f"{source.path}: {source.part!r} has no row in ALLOWED"
        return
    allowed = {source.part, *LEAVES.split(), *ALLOWED[source.part].split()}
    for found in imports(source):
        if found.top == "hpcrec" and found.module != "hpcrec" and found.part not in allowed:
            yield f"{source.path}:{found.line}: imports {found.module}; {source.part} may import {sorted(allowed)}"


def foreign(source: Source) -> Iterator[str]:
    for found in imports(source):
        home = ONLY_IN.get(found.top, source.part)
        if home != source.part or (source.part, found.top) in NOT_IN:
            yield f"{source.path}:{found.line}: imports {found.top}, which {source.part} may not"


def late_imports(source: Source) -> Iterator[str]:
    for found in imports(source):
        if found.late and (source.path, found.module) not in LATE_IMPORTS:
            yield f"{source.path}:{found.line}: imports {found.module} inside a function, without an entry"


def wildcards(source: Source) -> Iterator[str]:
    for found in imports(source):
        if found.wildcard:
            yield f"{source.path}:{found.line}: from {found.module} import *"


def environment_reads(source: Source) -> Iterator[str]:
    names = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
    for node in ast.walk(source.tree):
        by_attribute = isinstance(node, ast.Attribute) and node.attr in names
        by_name = isinstance(node, ast.ImportFrom) and node.module == "os" and names & {a.name for a in node.names}
        if (by_attribute or by_name) and source.path not in ENVIRONMENT:
            yield f"{source.path}:{node.lineno}: uses the environment"


def circle_of_files(sources: Sequence[Source]) -> list[str]:
    """Modules that import each other, the first one named again; also for types alone, and inside functions."""
    named = {source.module for source in sources}
    graph = {s.module: {i.module for i in imports(s)} & named - {s.module} for s in sources}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def no_docstring(source: Source) -> Iterator[str]:
    if not (ast.get_docstring(source.tree) or "").strip():
        yield f"{source.path}: no module docstring"


def too_long(source: Source) -> Iterator[str]:
    lines = len(source.text.splitlines())
    if lines > MAX_FILE_LINES and source.path not in LONG_FILES:
        yield f"{source.path}: {lines} lines, more than {MAX_FILE_LINES}, without an entry"
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = function_lines(node)
            if lines > MAX_FUNCTION_LINES and (source.path, node.name) not in LONG_FUNCTIONS:
                yield f"{source.path}:{node.lineno}: {node.name} has {lines} lines, more than {MAX_FUNCTION_LINES}"


def function_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function from ``def`` on, its docstring left out."""
    assert node.end_lineno is not None
    lines = node.end_lineno - node.lineno + 1
    if ast.get_docstring(node) is not None:
        first = node.body[0]
        assert first.end_lineno is not None
        lines -= first.end_lineno - first.lineno + 1
    return lines


# Each check with a file that it has to refuse.
CHECKS = {
    "directions": (wrong_directions, "hpcrec/models/x.py", "from hpcrec.exchange import wire"),
    "directions, from hpcrec": (wrong_directions, "hpcrec/plan/x.py", "from hpcrec import kernels"),
    "directions, relative": (wrong_directions, "hpcrec/embedding/x.py", "from ..comm import world"),
    "directions, late": (wrong_directions, "hpcrec/operators/x.py", "def f():\n    import hpcrec.comm.world"),
    "directions, no row": (wrong_directions, "hpcrec/surprise.py", "import os"),
    "directions, a module's row": (wrong_directions, "hpcrec/training/x.py", "from hpcrec.training.loop import Loop"),
    "directions, a module": (wrong_directions, "hpcrec/checkpoint/x.py", "from hpcrec.training import loop"),
    "directions, a package's row": (wrong_directions, "hpcrec/checkpoint/tools/x.py", "import hpcrec.training.parts"),
    "preparation": (wrong_directions, "hpcrec/data/x.py", "from hpcrec.preparation import writer"),
    "command": (wrong_directions, "hpcrec/launcher/x.py", "from hpcrec.cli.main import main"),
    "build": (wrong_directions, "hpcrec/training/x.py", "from hpcrec.build import session"),
    "launcher": (wrong_directions, "hpcrec/doctor/x.py", "from hpcrec.launcher import found"),
    "mpi4py": (foreign, "hpcrec/training/x.py", "from mpi4py import MPI"),
    "horovod": (foreign, "hpcrec/comm/x.py", "import horovod.torch as hvd"),
    "torch in plan": (foreign, "hpcrec/plan/x.py", "import torch"),
    "late": (late_imports, "hpcrec/data/x.py", "class A:\n    def f(self):\n        import h5py"),
    "wildcard": (wildcards, "hpcrec/data/x.py", "from numpy import *"),
    "environ": (environment_reads, "hpcrec/comm/x.py", "import os\nos.environ['A']"),
    "getenv": (environment_reads, "hpcrec/comm/x.py", "from os import getenv"),
    "docstring": (no_docstring, "hpcrec/comm/x.py", "import os"),
    "long file": (too_long, "hpcrec/comm/x.py", "\n" * (MAX_FILE_LINES + 1)),
    "long function": (too_long, "hpcrec/comm/x.py", "def f():\n" + "    pass\n" * MAX_FUNCTION_LINES),
}


@pytest.mark.parametrize("name", CHECKS)
def test_check_refuses(name: str) -> None:
    check, path, text = CHECKS[name]
    assert len(list(check(Source(path, text)))) == 1


@pytest.mark.parametrize("check", sorted({c[0] for c in CHECKS.values()}, key=lambda c: c.__name__))
def test_package(check) -> None:
    sources = package()
    assert len(sources) > 20
    found = [line for source in sources for line in check(source)]
    assert not found, "\n" + "\n".join(found)


def test_a_fine_file_passes() -> None:
    text = '"""Docstring."""\nimport numpy as np\nfrom hpcrec.kernels import lookup\nfrom hpcrec.types import Bags\n'
    for check in {c[0] for c in CHECKS.values()}:
        assert not list(check(Source("hpcrec/exchange/x.py", text)))


# How a file may close a circle with data/order.py, which imports it.
CIRCLES = {
    "at the top": "from hpcrec.data.order import Share",
    "by name": "from hpcrec.data import order",
    "relative": "from .order import Share",
    "for a type": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from hpcrec.data.order import Share",
    "late": "def f():\n    import hpcrec.data.order",
}


@pytest.mark.parametrize("name", CIRCLES)
def test_circle_of_files_is_refused(name: str) -> None:
    order, other = Source("hpcrec/data/order.py", "import hpcrec.data.x"), Source("hpcrec/data/x.py", CIRCLES[name])
    assert set(circle_of_files([order, other])) == {"hpcrec.data.order", "hpcrec.data.x"}
    assert not circle_of_files([order]) and not circle_of_files([other])


def test_files_have_no_circle() -> None:
    assert " -> ".join(circle_of_files(package())) == ""


def test_allowed_has_no_cycle() -> None:
    order = list(TopologicalSorter({part: row.split() for part, row in ALLOWED.items()}).static_order())
    assert order.index("kernels") < order.index("exchange") < order.index("policy") < order.index("cli")
    above = {(part, name) for part, row in ALLOWED.items() for name in row.split() if name in ABOVE}
    assert above == {(part, name) for name, parts in ABOVE.items() for part in parts.split()}
    assert not any(ALLOWED[leaf] for leaf in LEAVES.split())


def test_lists_hold_nothing_stale() -> None:
    sources = {source.path: source for source in package()}
    late = {(s.path, i.module) for s in sources.values() for i in imports(s) if i.late}
    assert set(LATE_IMPORTS) <= late
    assert all(len(sources[path].text.splitlines()) > MAX_FILE_LINES for path in LONG_FILES)
    functions = {
        (s.path, node.name): function_lines(node)
        for s in sources.values()
        for node in ast.walk(s.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert all(functions[entry] > MAX_FUNCTION_LINES for entry in LONG_FUNCTIONS)
    for reasons in (LATE_IMPORTS, ENVIRONMENT, LONG_FILES, LONG_FUNCTIONS):
        assert all(reason.strip() for reason in reasons.values())


def test_reference_shares_nothing() -> None:
    source = Source(REFERENCE, (ROOT / REFERENCE).read_text())
    tops = {found.top for found in imports(source)}
    assert "torch" in tops
    assert tops <= REFERENCE_IMPORTS | set(sys.stdlib_module_names)
