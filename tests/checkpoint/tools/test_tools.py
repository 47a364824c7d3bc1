"""``hpcrec checkpoint inspect | verify | diff | convert``: what they find, in any parts and order, and without MPI."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from click.testing import CliRunner, Result

from hpcrec.checkpoint.checkpoint import Checkpoint
from hpcrec.checkpoint.files import manifest_digest
from hpcrec.checkpoint.tools import by_id
from hpcrec.checkpoint.tools.by_id import ranges_of
from hpcrec.checkpoint.tools.tables import table_facts
from hpcrec.cli.checkpoint import checkpoint
from hpcrec.errors import CheckpointError, ConfigError
from tests.checkpoint.tools.made import DYNAMIC_IDS, ROWS, WIDTH, change, fingerprint, renew, values_of, write


def run(*arguments: Any) -> Result:
    return CliRunner().invoke(checkpoint, [str(a) for a in arguments], standalone_mode=False)


@pytest.fixture
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables go through scratch files, a few ids at a time."""
    monkeypatch.setattr(by_id, "RANGE_BYTES", 400)
    monkeypatch.setattr(by_id.edges_of, "__defaults__", (400,))
    monkeypatch.setattr(by_id.ranges_of, "__defaults__", (None, 400))


# ---- inspect ---------------------------------------------------------------------------------------------------------


def test_inspect(tmp_path: Path) -> None:
    write(tmp_path, step=3)
    found = write(tmp_path, step=7, shard="column")
    told = json.loads(run("inspect", tmp_path, "--json").output)
    assert told["path"] == str(found) and told["step"] == 7 and told["samples"] == 91 and told["seed"] == 1
    assert told["tables"]["user"] == {
        "rows": ROWS,
        "width": WIDTH,
        "kind": "declared",
        "ids": ROWS,
        "dtype": "float32",
        "states": {"exp_avg": "a value", "sum": "a row"},
        "parts": 2,
        "column_pieces": 2,
        "bytes": sum(p.stat().st_size for p in (found / "user").iterdir()),
    }
    assert told["tables"]["any"]["kind"] == "dynamic" and told["tables"]["any"]["ids"] == len(DYNAMIC_IDS)
    assert told["tables"]["tag/wide"]["kind"] == "hashed"
    assert told["dense"]["dense.h5"]["parameters"] == {"top.weight": [4, 3]}
    assert told["dense"]["dense.h5"]["optimizer_states"] == ["exp_avg", "exp_avg_sq", "step"]
    assert told["ran_on"] == {"ranks": 4}
    page = run("inspect", found).output
    assert "step 7, 91 samples" in page and "2 (2 by columns)" in page and "top.weight [4, 3]" in page


def test_what_is_no_checkpoint_is_said(tmp_path: Path) -> None:
    for command in (["inspect", tmp_path], ["diff", tmp_path, tmp_path]):
        assert "has neither a manifest.json" in str(run(*command).exception)
    assert isinstance(run("diff", tmp_path, tmp_path).exception, ConfigError)  # status 2, not that of a difference
    a, b = write(tmp_path / "one"), write(tmp_path / "other")
    part = next(b.rglob("part-0.h5"))
    part.unlink()
    part.mkdir()  # it is there and cannot be read
    assert isinstance(run("diff", a, b).exception, ConfigError)
    verified = run("verify", tmp_path, write(tmp_path / "a"))  # the others are looked at all the same
    assert verified.return_value == 1
    assert "has neither a manifest.json" in verified.output and "step-" in verified.output.split(": ok")[0]


def test_a_base_that_is_not_there_is_named(tmp_path: Path) -> None:
    base, newer = write(tmp_path, step=3), write(tmp_path, step=7)
    manifest = json.loads((newer / "manifest.json").read_text())
    manifest["base"] = {"step": 3, "sha256": manifest_digest(base)}
    (newer / "manifest.json").write_text(json.dumps(manifest))
    assert "what changed since step 3, whose checkpoint has to be beside it" in run("inspect", newer).output
    assert run("verify", newer).return_value == 0
    base.rename(tmp_path / "elsewhere")
    verified = run("verify", newer)
    assert verified.return_value == 1 and f"{newer} needs {base}, which cannot be read" in verified.output


@pytest.mark.parametrize("name, value", [("groups", "x"), ("progress", [1]), ("ran_on", [1])])
def test_a_state_that_is_none_is_said(tmp_path: Path, name: str, value: Any) -> None:
    made = write(tmp_path)
    state = json.loads((made / "state.json").read_text()) | {name: value}
    (made / "state.json").write_text(json.dumps(state))
    manifest = json.loads((made / "manifest.json").read_text())
    manifest["files"]["state.json"] = fingerprint(made / "state.json")
    (made / "manifest.json").write_text(json.dumps(manifest))
    assert f"state.json: {name} is {value!r}, not a" in str(run("inspect", made).exception)
    assert f"state.json: {name} is {value!r}, not a" in run("verify", made).output


# ---- verify ----------------------------------------------------------------------------------------------------------


def twice(file: h5py.File) -> None:
    file["ids"][1] = file["ids"][0]


def outside(file: h5py.File) -> None:
    file["ids"][1] = ROWS


def not_finite(file: h5py.File) -> None:
    file["rows"][2, 3], file["rows"][3, 3], file["state/sum"][4] = np.nan, np.inf, -np.inf


def without_state(file: h5py.File) -> None:
    del file["state/sum"]


def short_state(file: h5py.File) -> None:
    values = file["state/sum"][:-1]
    del file["state/sum"]
    file["state/sum"] = values


def other_table(file: h5py.File) -> None:
    file.attrs["table"] = "item"


def no_width(file: h5py.File) -> None:
    del file.attrs["width"]


def wide(file: h5py.File) -> None:
    file.attrs["column_stop"] = WIDTH + 1


def clock(file: h5py.File) -> None:
    file["admission"].attrs["clock"] = 1


def dense_nan(file: h5py.File) -> None:
    file["parameters/top.weight"][0, 0] = np.nan
    file["optimizer/top.weight/exp_avg"][1, :] = np.inf


def stray_state(file: h5py.File) -> None:
    file.move("optimizer/top.weight", "optimizer/bottom.weight")


def unsent_nan(file: h5py.File) -> None:
    file["first/top.weight"][0] = np.nan


FOUND = (  # file, damage, whether the manifest hides it, what is said
    ("user/part-0.h5", twice, ["1 ids have columns that are more than once", "1 ids are in no part"]),
    ("user/part-0.h5", outside, [r"not all in [0, 50)"]),
    ("user/part-1.h5", not_finite, ["2 values of rows are not finite", "1 values of sum are not finite"]),
    ("user/part-1.h5", without_state, ["has other optimizer states than"]),
    ("user/part-1.h5", short_state, ["sum has 24 entries for 25 ids"]),
    ("user/part-1.h5", other_table, ["is of table 'item', but in the folder of 'user'"]),
    ("user/part-1.h5", no_width, ["no attribute 'width'"]),
    ("user/part-1.h5", wide, ["has columns 0 to 7 of a table of width 6"]),
    ("any/part-0.h5", twice, ["1 ids have columns that are more than once"]),
    ("any/part-0.h5", clock, ["admission/clocks are 0 to 4; allowed are 0 to the clock, 1", "pending_clocks are 2"]),
    ("dense.h5", dense_nan, ["1 values of parameters/top.weight", "3 values of optimizer/top.weight/exp_avg"]),
    ("dense.h5", stray_state, ["optimizer state of 'bottom.weight', which is none of its parameters"]),
    ("residuals-0.h5", unsent_nan, ["not finite"]),
)


@pytest.mark.parametrize(("name", "damage", "said"), FOUND, ids=[f"{n}-{d.__name__}" for n, d, _ in FOUND])
@pytest.mark.parametrize("ranges", [False, True])
def test_verify_finds(
    tmp_path: Path, name: str, damage: Callable[[h5py.File], None], said: list[str], ranges: bool, request: Any
) -> None:
    if ranges:
        request.getfixturevalue("small_ranges")
    found = write(tmp_path)
    assert run("verify", found).output.startswith(f"{found}: ok, 3 tables, {ROWS + 9 + len(DYNAMIC_IDS)} rows, 8 files")
    change(found, name, damage)
    result = run("verify", tmp_path)
    assert result.return_value == 1
    lines = result.output.splitlines()
    assert len(lines) == len(said), result.output
    for line, text in zip(lines, said, strict=True):
        assert line.startswith(f"hpcrec: error: {found}") and text in line


def test_verify_lists_everything(tmp_path: Path) -> None:
    found = write(tmp_path, shard="column")
    (found / "user/part-0.h5").write_bytes(b"short")
    (found / "any/part-1.h5").unlink()
    raw = bytearray((found / "dense.h5").read_bytes())
    raw[-1] ^= 1
    (found / "dense.h5").write_bytes(raw)
    (found / "notes.txt").write_text("mine")
    change(found, "tag%2Fwide/part-0.h5", lambda file: file["rows"].__setitem__((3, 0), np.nan))
    result = run("verify", found)
    for text in (
        "user/part-0.h5 has 5 bytes",
        "any/part-1.h5 cannot be read",
        "dense.h5 has another checksum",
        "notes.txt is not in the manifest",
        "tag%2Fwide/part-0.h5: 1 values of rows are not finite",
    ):
        assert text in result.output
    assert len(result.output.splitlines()) == 5 and result.return_value == 1


def test_verify_finds_columns_that_no_part_has(tmp_path: Path) -> None:
    found = write(tmp_path, shard="column", parts=3)
    (found / "user/part-1.h5").unlink()
    renew(found, ["user/part-1.h5"])
    assert (
        "50 ids have columns that are in no part, the first of them id 0, column piece 1" in run("verify", found).output
    )


def test_verify_of_a_manifest_or_state_that_is_none(tmp_path: Path) -> None:
    found = write(tmp_path)
    (found / "state.json").write_text("[")
    renew(found, ["state.json"])
    assert "is not a JSON object" in run("verify", found).output
    (found / "manifest.json").write_text("{}")
    assert "is not the manifest of a checkpoint" in run("verify", found).output


# ---- diff ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", [{}, {"parts": 3}, {"parts": 3, "shard": "column"}, {"shard": "column"}])
@pytest.mark.parametrize("ranges", [False, True])
def test_diff_finds_one_value(tmp_path: Path, other: dict[str, Any], ranges: bool, request: Any) -> None:
    """However either is cut."""
    if ranges:
        request.getfixturevalue("small_ranges")
    a, b = write(tmp_path / "a"), write(tmp_path / "b", **other)
    result = run("diff", a, b)
    assert (result.return_value, result.output) == (0, "equal\n")
    with h5py.File(b / "user/part-1.h5") as file:
        changed = int(file["ids"][4])
    change(b, "user/part-1.h5", lambda file: file["rows"].__setitem__((4, 1), file["rows"][4, 1] + 0.25))
    result = run("diff", a, b)
    assert result.return_value == 1
    lines = result.output.splitlines()
    assert lines[0] == f"table user: 1 of 50 rows differ; the first ids: {changed}"
    assert lines[1].startswith("  rows: 1 of 300 values differ, by 0.25 at most, 0.000833 on average")
    assert run("diff", a, b, "--tolerance", 0.3).output == "equal within 0.3\n"
    told = json.loads(run("diff", a, b, "--json").output)
    assert told["tables"]["user"]["values"]["rows"]["differ"] == 1 and told["tables"]["any"]["equal"]


def test_diff_finds_states_ids_uses_and_dense_parameters(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a"), write(tmp_path / "b", step=8)
    change(b, "user/part-0.h5", lambda file: file["state/sum"].__setitem__(3, np.nan))
    change(b, "any/part-0.h5", lambda file: file["ids"].__setitem__(0, 77))
    change(b, "any/part-1.h5", lambda file: file["admission/counts"].__setitem__(2, 88))
    change(b, "dense.h5", lambda file: file["optimizer/top.weight/exp_avg"].__setitem__((0, 0), 9))
    found = json.loads(run("diff", a, b, "--json").output)
    assert found["position"] == {"step": [7, 8]}
    user, free = found["tables"]["user"], found["tables"]["any"]
    assert user["rows_differ"] == 1 and user["values"]["sum"] == {
        "compared": 50,
        "differ": 1,
        "largest": None,  # not finite, for which JSON has no number
        "mean": None,
    }
    assert (free["only_a"], free["only_b"], free["rows_differ"]) == (1, 1, 0) and set(free["first_ids"]) >= {77}
    assert free["uses_differ"] == 3  # of the two ids, and of one whose count is another
    assert sorted(found["dense"]["dense.h5"]["values"]) == ["optimizer/top.weight/exp_avg", "optimizer/top.weight/step"]
    assert run("diff", a, b).return_value == 1


def test_diff_of_other_tables_and_shapes(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a"), write(tmp_path / "b")
    change(b, "user/part-0.h5", without_state)
    change(b, "user/part-1.h5", without_state)
    for part in (0, 1):
        (b / f"any/part-{part}.h5").unlink()
        renew(b, [f"any/part-{part}.h5"])
    output = run("diff", a, b).output
    assert f"table any: only in {a}" in output
    assert "states: exp_avg (one number a value), sum (one number a row)" in output


# ---- convert ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [{}, {"shard": "column", "parts": 3}])
@pytest.mark.parametrize("wanted", [("--parts", 5), ("--shard", "column", "--parts", 2), ()])
@pytest.mark.parametrize("ranges", [False, True])
def test_convert_there_and_back_is_the_same(
    tmp_path: Path, source: dict[str, Any], wanted: tuple[Any, ...], ranges: bool, request: Any
) -> None:
    if ranges:
        request.getfixturevalue("small_ranges")
    first = write(tmp_path / "run", state={"thresholds": [{"batches": 3}]}, **source)
    out, back = tmp_path / "out", tmp_path / "back"
    assert run("convert", first, out, *wanted).exception is None
    assert run("convert", out, back).exception is None
    parts = 5 if wanted[:1] == ("--parts",) else 2 if wanted else 1
    assert len(Checkpoint(out).part_paths("user")) == len(Checkpoint(out).part_paths("any")) == parts
    assert len(Checkpoint(back).part_paths("user")) == 1
    for one in (out, back):
        assert run("verify", one).return_value == 0
        assert run("diff", first, one).output == "equal\n"
        assert json.loads((one / "state.json").read_text()) == json.loads((first / "state.json").read_text())
        unsent = Checkpoint(one).unsent(0)
        np.testing.assert_array_equal(
            unsent.residuals.first["top.weight"].left, Checkpoint(first).unsent(0).residuals.first["top.weight"].left
        )
    read = np.concatenate([b.ids for b in Checkpoint(out).table_parts("any")])
    np.testing.assert_array_equal(read, DYNAMIC_IDS)  # in the order in which they would lose their rows
    assert not list(tmp_path.glob(".*"))


def test_convert_to_another_type_and_without_optimizer(tmp_path: Path) -> None:
    first = write(tmp_path / "run")
    out = tmp_path / "deep" / "out"
    assert run("convert", tmp_path / "run", out, "--dtype", "float64").exception is None
    found = Checkpoint(out)
    assert found.state["dtype"] == "torch.float64"
    for table in found.tables:
        for block in found.table_parts(table):
            assert block.rows.dtype == np.float64 and all(s.dtype == np.float64 for s in block.states.values())
    assert found.dense().parameters["top.weight"].dtype == np.float64 and found.dense().extra["place"].dtype == np.int64
    assert run("diff", first, out).output == "equal\n"
    assert run("convert", out, tmp_path / "back", "--dtype", "float32").exception is None
    assert run("diff", first, tmp_path / "back").output == "equal\n"
    assert run("convert", first, tmp_path / "bare", "--without-optimizer").exception is None
    bare = Checkpoint(tmp_path / "bare")
    assert table_facts(bare, "user").states == {} and bare.dense().optimizer == {} and bare.residual_ranks == 0


def test_convert_of_a_table_that_has_a_row_twice(tmp_path: Path) -> None:
    first = write(tmp_path / "run", parts=1)
    change(first, "user/part-0.h5", twice)
    assert "some ids and columns twice" in str(run("convert", first, tmp_path / "out").exception)
    assert not (tmp_path / "out").exists()


def test_convert_refuses(tmp_path: Path) -> None:
    first = write(tmp_path / "run")
    assert "is there already" in str(run("convert", first, tmp_path).exception)
    (first / "user/part-0.h5").write_bytes(b"short")
    assert "user/part-0.h5 has 5 bytes" in str(run("convert", first, tmp_path / "out").exception)
    assert not (tmp_path / "out").exists()


# ---- by id -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shard", ["row", "column"])
def test_rows_by_id_in_bounded_memory(tmp_path: Path, shard: str) -> None:
    found = Checkpoint(write(tmp_path, shard=shard, parts=3))
    facts = table_facts(found, "user")
    ranges = list(ranges_of(found, facts, tmp_path, range_bytes=facts.row_bytes * 8))
    assert len(ranges) > 5 and all(len(r.block.ids) <= 9 for r in ranges) and not any(r.problems for r in ranges)
    ids = np.concatenate([r.block.ids for r in ranges])
    np.testing.assert_array_equal(ids, np.arange(ROWS))
    np.testing.assert_array_equal(np.concatenate([r.block.rows for r in ranges]), values_of(3, ids, WIDTH))
    np.testing.assert_array_equal(np.concatenate([r.block.states["sum"] for r in ranges]), values_of(5, ids, None))
    facts = table_facts(found, "any")
    ranges = list(ranges_of(found, facts, tmp_path, range_bytes=facts.row_bytes * 8))
    assert len(ranges) > 3
    np.testing.assert_array_equal(np.concatenate([r.block.ids for r in ranges]), np.sort(DYNAMIC_IDS))
    assert not list(tmp_path.glob("hpcrec-*"))


WITHOUT_MPI = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("mpi4py", "horovod"):
            raise ImportError(name + " is blocked")
sys.meta_path.insert(0, Blocked())
from hpcrec.cli.main import main
main(sys.argv[1:])
"""


def test_all_of_it_without_mpi(tmp_path: Path) -> None:
    found = write(tmp_path / "run")
    for command in (
        ["inspect", found],
        ["verify", found],
        ["convert", found, tmp_path / "out"],
        ["diff", found, tmp_path / "out"],
    ):
        line = [sys.executable, "-c", WITHOUT_MPI, "checkpoint", *map(str, command)]
        ended = subprocess.run(line, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("wanted", [(), ("--shard", "column", "--parts", 2)])
def test_a_full_disk_is_said_whichever_way_a_checkpoint_is_converted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: tuple[Any, ...]
) -> None:
    first = write(tmp_path / "run")

    def full(*_: Any) -> Any:
        raise OSError(28, "No space left on device", str(tmp_path / "part"))

    monkeypatch.setattr("hpcrec.checkpoint.checkpoint.write_part", full)
    said = run("convert", first, tmp_path / "out", *wanted).exception
    assert isinstance(said, CheckpointError) and "No space left on device" in str(said), said
    assert not (tmp_path / "out").exists()
