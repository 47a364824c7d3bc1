"""Calls on files that fail: a right result or an error that names the file, and what was whole stays whole."""

from pathlib import Path

import pytest

from tests.counts import SHARE, keep_counts, share_of
from tests.failing_files.ask import ERRORS_ON, added, asked, told
from tests.failing_files.library import CALLS, EMPTY, EMPTY_KINDS, ERRORS, KINDS

AT_ONCE = 2  # processes


def shares(scenarios: tuple[str, ...], *further: str) -> list[list[str]]:
    return [["--scenarios", ",".join(scenarios), "--share", f"{i}/{AT_ONCE}", *further] for i in range(AT_ONCE)]


def test_some_calls_of_every_kind_fail(tmp_path: Path) -> None:
    found = asked("errors", shares(ERRORS_ON, "--cases", "160", "--seed", "2"), tmp_path)
    assert [wrong for each in found for wrong in each["wrong"]] == []
    assert sum(each["took_effect"] for each in found) >= 120
    assert {key.split("|")[0] for key in added(found, "counts")} == set(CALLS)


def test_some_calls_of_runs_and_exports_fail(tmp_path: Path) -> None:
    """Predictions are left to the soak: what judges an export already reads it."""
    found = asked("errors", [["--scenarios", "train,export", "--cases", "4", "--seed", "1"]], tmp_path)[0]
    assert found["wrong"] == [] and found["took_effect"] >= 3


MET = {  # calls and kinds of file that have to be among those of a scenario
    "train": {
        *((call, kind) for kind in ("rows", "dense", "folder") for call in ("open", "fsync")),
        *(("write", kind) for kind in ("rows", "dense", "told")),
        ("read", "data"),
    },
    "export": {
        *((call, "export") for call in ("open", "read", "write", "fsync", "close", "rename", "unlink")),
        ("mkdir", "folder"),
        ("read", "told"),
    },
    "predict": {("open", "export"), ("read", "export"), ("read", "data"), ("write", "data")},
}


@pytest.mark.slow
@pytest.mark.timeout(3500)
@pytest.mark.parametrize(("scenario", "cases"), [("train", 800), ("export", 1000), ("predict", 1000)])
def test_many_calls_of_runs_exports_and_predictions_fail(tmp_path: Path, scenario: str, cases: int) -> None:
    cases = share_of(cases)
    found = asked("errors", shares((scenario,), "--cases", str(cases), "--seed", "9"), tmp_path, limit_s=3400)
    wrong, done = [wrong for each in found for wrong in each["wrong"]], sum(each["took_effect"] for each in found)
    keep_counts(f"errors-{scenario}", {"injected": done, "wrong": len(wrong), "counts": added(found, "counts")})
    assert not wrong, told(wrong)
    assert done >= 0.7 * cases
    met = {tuple(key.split("|")[:2]) for key in added(found, "counts")}
    assert {kind for _, kind in met} <= set(KINDS)
    assert SHARE < 1 or MET[scenario] <= met


def test_nothing_fails_past_the_last_call(tmp_path: Path) -> None:
    found = asked("errors", [["--scenarios", "notes,first notes", "--past", "1"]], tmp_path)[0]
    assert found["ran"] >= 60 and found["took_effect"] == 0 and found["wrong"] == []


@pytest.mark.slow
@pytest.mark.timeout(3500)
def test_ten_thousand_calls_fail(tmp_path: Path) -> None:
    """Drawn from all; each call of each scenario by each error is one of them."""
    cases = share_of(10_800)
    found = asked("errors", shares(ERRORS_ON, "--cases", str(cases), "--seed", "7"), tmp_path, limit_s=3400)
    counts, known = added(found, "counts"), added(found, "known")
    done = sum(each["took_effect"] for each in found)
    empty = {f"{call}|{other}": why for (call, other), why in (EMPTY | EMPTY_KINDS).items()}
    wrong = [wrong for each in found for wrong in each["wrong"]]
    said = {"injected": done, "wrong": len(wrong), "counts": counts, "empty": empty, "known": known}
    keep_counts("errors", said)
    assert not wrong, told(wrong)
    assert done >= (10_000 if SHARE == 1 else 0.9 * cases)
    met = {tuple(key.split("|")) for key in counts}
    pairs = {(call, error) for call, _, error in met}, {(call, kind) for call, kind, _ in met}
    errors = {(call, error) for call in CALLS for error in ERRORS} - EMPTY.keys()
    kinds = {(call, kind) for call in CALLS for kind in KINDS} - EMPTY_KINDS.keys()
    assert pairs[0] <= errors and pairs[1] <= kinds
    assert SHARE < 1 or pairs == (errors, kinds)
