"""Every command and Python block of the pages is run, against what its page says is printed, or it is listed here.

Those of README, the tutorial and docs/python.md are run by every ``make test``, the others by ``make soak``. A new
block that is in no list below is run: where that cannot be, its entry says why.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from hpcrec.data.layout import Column, Columns
from hpcrec.preparation.prepare_synthetic import prepare_synthetic
from hpcrec.preparation.writer import Writer
from hpcrec.types import Feature
from tests.docs.pages import ROOT, RUN, Block, Reading, blocks, check, commands, paths

QUICK = ("README.md", "docs/tutorial.md", "docs/python.md")  # by make test
CLUSTER = "needs a site's own cluster"
LONG = "hpcrec submit my.toml --nodes 10 --owner-nodes 2 --owner-option=--constraint=bigmem --owner-option=--mem=0 \\"
TRACE = "hpcrec run -n 2 -- tools/step_trace.py benchmarks/house_parts/quickstart.toml --set dense.reducer=mpi \\"
SET_UP = "sets an environment up, as .ci/run does, or on a machine without a network"
# Page and first line, less its comment: why it is not run.
NOT_RUN = {
    ("README.md", "make train"): "is what .ci/run does",
    ("README.md", "mpirun -n 64 .venv/bin/hpcrec train my.toml"): CLUSTER,
    ("CONTRIBUTING.md", "make setup"): "is what .ci/run does",
    ("CONTRIBUTING.md", ". .venv/bin/activate"): "runs tests, among which it would be",
    ("docs/tutorial.md", "pip install ."): (
        "installs into an environment; benchmarks/first_hour.py takes it from the page, which then goes the same way"
    ),
    ("docs/architecture.md", TRACE): (
        "writes a page of this checkout; tests/test_step_trace.py looks at what it wrote"
    ),
    ("docs/doctor.md", "mpirun -n 64 .venv/bin/hpcrec doctor --folder /scratch/me"): CLUSTER,
    (
        "docs/doctor.md",
        "sbatch --nodes=4 --ntasks-per-node=1 --cpus-per-task=8 --time=4:00:00 slurm/doctor.sbatch --config run.toml",
    ): CLUSTER,
    ("docs/install.md", "make wheels"): SET_UP,
    ("docs/install.md", "make setup WHEELS=/path/to/wheels"): SET_UP,
    ("docs/install.md", "module load gcc openmpi"): CLUSTER,
    **{
        ("docs/slurm.md", first): CLUSTER
        for first in (
            "git clone <this repository> hpcrec && cd hpcrec",
            "sbatch --output=doctor.out slurm/doctor.sbatch",
            LONG,
            "hpcrec submit examples/quickstart/config.toml --nodes 4 --time 30 --set checkpoint.every=100",
            "hpcrec submit my.toml --nodes 16 --ranks-per-node 4 --min-nodes 12",
        )
    },
    ("docs/slurm.md", "make data"): SET_UP,
    ("docs/slurm.md", "tools/slurm.sh install && tools/slurm.sh start"): (
        "installs packages of the system; tools/run_tests.py does it before the tests on a Slurm"
    ),
    ("docs/tiers.md", "from hpcrec.disk.tier import BlockRows, Settings, Tier, Wanted"): (
        "its arrays are those of a store that calls it; tests/disk makes each of the calls"
    ),
}
# Page and first line: the test that runs it, with what it needs around it.
ELSEWHERE = {
    ("docs/checkpoint.md", "import json, pathlib, zlib"): (
        "tests/checkpoint/test_checkpoint.py::test_the_documented_program_writes_a_checkpoint"
    ),
    (
        "docs/checkpoint.md",
        "import json",
    ): "tests/checkpoint/tools/test_export.py::test_the_dense_part_needs_torch_alone",
    **{
        ("docs/models.md", first): "tests/models/test_own.py::test_code_of_the_documentation"
        for first in (
            "import torch",
            "from hpcrec.operators import Block",
            "self.weights = nn.ParameterList(torch.randn(width, 64) / 8 for _ in lookups)",
        )
    },
    ("examples/own_loop/README.md", "make data"): "tests/test_end_to_end.py::test_own_loop_runs_on_ranks",
    ("examples/own_model/README.md", "make train"): "tests/test_end_to_end.py::test_own_model_runs_on_ranks",
    ("examples/tracker/README.md", "python examples/tracker/tracker.py data/quickstart runs/tracked"): (
        "tests/api/test_docs.py::test_the_tracker_keeps_a_run"
    ),
}


def clicks(reading: Reading) -> None:
    """The table of the tutorial, which README has too."""
    reading.run(run_here("docs/tutorial.md")[0])


def synthetic(reading: Reading) -> None:
    """Examples and their data, as in a checkout, and a configuration of one's own, of one role."""
    prepare_synthetic(reading.folder / "data" / "quickstart", samples=20_000)
    (reading.folder / "examples").symlink_to(ROOT / "examples")
    (reading.folder / "slurm").symlink_to(ROOT / "slurm")
    text = (ROOT / "examples" / "quickstart" / "config.toml").read_text()
    before, _, after = text.partition("[topology]")
    text = before + after[after.index("[dense]") :]
    (reading.folder / "my.toml").write_text(text.replace("batch_size = 2048", "batch_size = 256"))


def several(reading: Reading) -> None:
    """Three runs that have ended."""
    synthetic(reading)
    for name in ("mine", "sync", "hybrid"):
        reading.command(f"hpcrec train my.toml --set run.folder=runs/{name} --set train.steps=4")


def index(reading: Reading) -> None:
    """An index of one file."""
    synthetic(reading)
    files = [{"path": "data/quickstart/train.h5", "samples": 20_000}]
    text = json.dumps({"schema_version": 1, "files": files, "attributes": {}})
    (reading.folder / "train.index.json").write_text(text)


def write_served(path: Path) -> None:
    """A data set with the features of docs/checkpoint.md: one id, a bag, and a bag with weights."""
    rng, n = np.random.default_rng(0), 64
    features = [
        Feature(name="user", cardinality=9),
        Feature(name="history", cardinality=9, mean_ids=2.0),
        Feature(name="tag", cardinality=9, mean_ids=2.0, weighted=True),
    ]
    bags = np.arange(0, 2 * n + 1, 2)
    columns = {
        "user": Column(rng.integers(0, 9, n)),
        "history": Column(rng.integers(0, 9, 2 * n), bags),
        "tag": Column(rng.integers(0, 9, 2 * n), bags, rng.uniform(0.5, 2, 2 * n).astype(np.float32)),
    }
    dense = rng.standard_normal((n, 3)).astype(np.float32)
    with Writer(path, features, n_dense=3, jagged=("history", "tag")) as writer:
        writer.append(Columns(label=rng.integers(0, 2, n).astype(np.float32), dense=dense, sparse=columns))


def exported(reading: Reading) -> None:
    """A model of these features, as an export."""
    write_served(reading.folder / "data.h5")
    toml = """
        data.train = "data.h5"
        model = {name = "fm", width = 4}
        train = {batch_size = 16, steps = 2}
        run.folder = "runs/served"
    """
    (reading.folder / "served.toml").write_text(toml)
    reading.command("hpcrec train served.toml && hpcrec checkpoint export runs/served model")


# What a page takes to be there already: made in its folder before its first block.
BEFORE: dict[str, Callable[[Reading], None]] = {
    "README.md": clicks,
    "docs/report.md": several,
    "docs/slurm.md": synthetic,
    "docs/tiers.md": index,
    "docs/towers.md": synthetic,
    "docs/checkpoint.md": exported,
}
# What its blocks have left is looked at by these lines, behind the last of them.
AFTER = {
    "docs/python.md": """
assert run.status == "finished" and len(losses) == 3 and own.config["model"]["name"] == "__main__:Linear"
assert best.best < 2 and open("log.csv").readline() == "step,name,value\\n"
assert probabilities.shape == (2000,) and few.shape == (2,) and 0 < probabilities.min() < probabilities.max() < 1
assert (run.predict(clicks) == probabilities).all() and len(given) == 2 and given[0] == given[1]
""",
    "docs/metrics.md": """
import types
import numpy as np
given = types.SimpleNamespace(
    probability=np.array([0.9, 0.2, 0.6]), label=np.array([1.0, 0.0, 0.0]), weight=np.array([1.0, 2.0, 1.0])
)
assert accuracy(given, lambda numbers: numbers) == 0.75
""",
    "docs/tiers.md": """
import json
reuse = json.load(open("reuse.json"))
assert reuse["batch_size"] == 65536 and reuse["features"]["user"]["steps"] == 1
""",
    "docs/towers.md": """
import tomllib
assert len(tomllib.load(open("towers.toml", "rb"))["model"]["options"]["towers"]) == 4
""",
    "docs/checkpoint.md": "assert probabilities.shape == (2,) and 0 < probabilities.min() < probabilities.max() < 1",
}


def code(page: str) -> list[Block]:
    """All blocks of a page that hold code."""
    return [block for block in blocks(page, (ROOT / page).read_text()) if block.language in RUN]


def run_here(page: str) -> list[Block]:
    """Those that are run by the test below; behind them the look at what they left."""
    found = [block for block in code(page) if block.key not in NOT_RUN and block.key not in ELSEWHERE]
    return found + ([Block(page, 0, "python", AFTER[page], None)] if page in AFTER else [])


def cases() -> Iterator[object]:
    """A test for each block."""
    for page in paths():
        marks = [] if page in QUICK else [pytest.mark.slow]
        for block in run_here(page):
            yield pytest.param(block, marks=marks, id=str(block) if block.line else f"{page}: what is left")


@pytest.fixture(scope="module")
def readings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Reading]]:
    """Pages that are being read."""
    found: dict[str, Reading] = {}
    yield found
    for reading in found.values():
        reading.close()


@pytest.mark.parametrize("block", list(cases()))
def test_a_block_does_what_its_page_says(
    block: Block, readings: dict[str, Reading], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """With the blocks of its page before it, where they have not been run."""
    if block.page not in readings:
        reading = readings[block.page] = Reading(
            tmp_path_factory.mktemp("page"), failed="what the page takes to be there"
        )
        BEFORE.get(block.page, lambda reading: None)(reading)
        reading.failed = ""
    readings[block.page].up_to(run_here(block.page), block)


def test_lists_name_blocks_and_tests_that_there_are() -> None:
    there = {block.key for page in paths() for block in code(page)}
    assert not {*NOT_RUN, *ELSEWHERE} - there
    assert not NOT_RUN.keys() & ELSEWHERE.keys()
    for test in ELSEWHERE.values():
        file, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text(), test


def test_what_a_page_does_not_say_is_printed_fails() -> None:
    check("auc 0.8...\n...\nend\n", "auc 0.8123   \nmore\n\nend\n")
    with pytest.raises(AssertionError, match=r"the page shows\nauc 0\.9\n\nand this was printed:\nauc 0\.8\n"):
        check("auc 0.9\n", "auc 0.8\n")
    with pytest.raises(AssertionError):
        check("one\n", "one\ntwo\n")


def test_a_block_that_ends_with_an_error_fails_and_so_do_those_behind_it(tmp_path: Path) -> None:
    page = "```python\nn = 1\n```\n\n```python\nprint(n)\n```\n\n```text\n1\n```\n"
    page += "```sh\nfalse | true\n```\n```sh\ntrue\n```\n"
    first, second, shown, third, last = found = list(blocks("a.md", page))
    assert [block.line for block in found] == [1, 5, 9, 12, 15] and second.shown == "1\n" and shown.language == "text"
    reading, todo = Reading(tmp_path), [first, second, third, last]
    reading.up_to(todo, second)
    with pytest.raises(AssertionError, match="ended with status 1"):
        reading.up_to(todo, third)
    with pytest.raises(AssertionError, match=r"a\.md:12 comes before, and has failed"):
        reading.up_to(todo, last)
    with pytest.raises(AssertionError, match="raised an error"):
        reading.python("1 / 0")
    assert reading.python("print(n + 1)") == "2\n"
    reading.close()


def test_commands_of_a_console_block_have_what_stands_below_them() -> None:
    text = "$ a \\\n  --b\none\n$ c\n$ d\ntwo\nthree\n"
    assert list(commands(text)) == [("a \\\n  --b\n", "one\n"), ("c\n", ""), ("d\n", "two\nthree\n")]
    with pytest.raises(ValueError, match="begins with a command"):
        list(commands("a\n"))
