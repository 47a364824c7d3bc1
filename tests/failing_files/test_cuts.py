"""Power that goes: resume finds the newest checkpoint that ``commit`` had returned, or a newer whole one."""

import random
from pathlib import Path

import pytest

from tests.counts import keep_counts, share_of
from tests.failing_files.ask import CUTS_ON, added, asked, told
from tests.failing_files.power import Disk, Record

CREATED = 0o101


def call(
    name: int, *, fd: int = -1, host: int = 0, offset: int = 0, path: str = "", other: str = "", data: bytes = b""
):
    return Record(name, fd, host, offset, path, other, data)


def left(
    folder: Path, log: list[Record], hosts: tuple[int, ...] = (0,), cuts: int = 200
) -> set[tuple[tuple[str, bytes], ...]]:
    """All that may be there after such calls, as pairs of a name and bytes."""
    draw, found = random.Random(3), set()
    (folder / "run").mkdir()
    disk = Disk(folder / "run")
    for record in log:
        disk.apply(record)
    for _ in range(cuts):
        disk.cut(folder / "cut", hosts, draw)
        files = sorted(path for path in (folder / "cut").rglob("*") if path.is_file())
        found.add(tuple((str(path.relative_to(folder / "cut")), path.read_bytes()) for path in files))
    return found


def written(folder: Path, *, host: int = 0, data: bytes = b"a" * 700) -> list[Record]:
    opened = call(0, fd=5, host=host, offset=CREATED, path=f"{folder}/run/x")
    return [opened, call(2, fd=5, host=host, data=data)]


def synced(folder: Path) -> list[Record]:
    return [call(0, fd=7, path=f"{folder}/run"), call(3, fd=7), call(4, fd=7)]


def test_what_is_not_synced_may_be_lost_in_any_part(tmp_path: Path) -> None:
    found = left(tmp_path, written(tmp_path))
    assert {(), (("x", b""),), (("x", b"a" * 700),), (("x", b"a" * 512),)} <= found
    assert (("x", bytes(512) + b"a" * 188),) in found and (("x", bytes(700)),) in found


def test_a_sync_of_a_file_keeps_its_bytes_and_one_of_its_folder_its_name(tmp_path: Path) -> None:
    whole, sync = (("x", b"a" * 700),), [call(3, fd=5)]
    (tmp_path / "1").mkdir()
    assert left(tmp_path / "1", [*written(tmp_path / "1"), *sync]) == {(), whole}
    (tmp_path / "2").mkdir()
    assert () not in left(tmp_path / "2", [*written(tmp_path / "2"), *synced(tmp_path / "2")])
    (tmp_path / "3").mkdir()
    assert left(tmp_path / "3", [*written(tmp_path / "3"), *sync, *synced(tmp_path / "3")]) == {whole}


def test_bytes_of_another_host_are_kept_by_its_own_sync_alone(tmp_path: Path) -> None:
    log = [*written(tmp_path, host=1), call(3, fd=5, host=0), *synced(tmp_path)]
    assert len(left(tmp_path, log, hosts=(1,))) > 2
    (tmp_path / "other").mkdir()
    log = [*written(tmp_path / "other", host=1), *synced(tmp_path / "other")]
    assert left(tmp_path / "other", log, hosts=(0,)) == {(("x", b"a" * 700),)}


def test_bytes_are_gone_after_a_sync_that_failed(tmp_path: Path) -> None:
    log = [*written(tmp_path), call(3, fd=5, offset=5), call(3, fd=5), *synced(tmp_path)]
    assert left(tmp_path, log) == {(("x", b""),)}


def test_a_rename_is_there_or_not_and_never_half(tmp_path: Path) -> None:
    log = [*written(tmp_path), call(3, fd=5), *synced(tmp_path)]
    log.append(call(5, path=f"{tmp_path}/run/x", other=f"{tmp_path}/run/y"))
    assert left(tmp_path, log) == {(("x", b"a" * 700),), (("y", b"a" * 700),)}


def test_power_goes_at_some_calls(tmp_path: Path) -> None:
    scenarios = "first/1,first/2,increment/2,retried/2+9,again/1,resume/1,notes/1,prepare one/1"
    found = asked("cuts", [["--scenarios", scenarios, "--cuts", "30", "--seed", "1"]], tmp_path)[0]
    assert found["wrong"] == [] and found["cuts"] == 30


def test_a_link_is_one_more_name_of_the_same_bytes(tmp_path: Path) -> None:
    log = [
        *written(tmp_path),
        call(3, fd=5),
        *synced(tmp_path),
        call(102, path=f"{tmp_path}/run/x", other=f"{tmp_path}/run/y"),
    ]
    log.append(call(6, path=f"{tmp_path}/run/x"))
    whole = b"a" * 700
    assert left(tmp_path, log) == {(), (("x", whole),), (("y", whole),), (("x", whole), ("y", whole))}
    (tmp_path / "2").mkdir()
    kept = [*written(tmp_path / "2"), call(102, path=f"{tmp_path}/2/run/x", other=f"{tmp_path}/2/run/y")]
    both = left(tmp_path / "2", [*kept, *synced(tmp_path / "2")])  # names, not bytes
    assert len(both) > 2 and all(found[0][1] == found[1][1] for found in both)


def test_power_goes_where_rows_are_links(tmp_path: Path) -> None:
    """To segments of a store on a disk, whose own names go when the run ends."""
    found = asked("cuts", [["--scenarios", "linked/1,linked/2", "--cuts", "50", "--seed", "1"]], tmp_path)[0]
    assert found["wrong"] == [] and found["cuts"] == 50
    assert any(name.startswith("link|") for name in found["counts"])


def test_pieces_are_never_on_disk_without_the_record_whose_they_are(tmp_path: Path) -> None:
    """The same command was refused after such a cut: its folder had files that nobody seemed to own."""
    found = asked("cuts", [["--scenarios", "prepare/1", "--cuts", "30", "--seed", "7"]], tmp_path)[0]
    assert found["wrong"] == [] and found["cuts"] == 30


@pytest.mark.slow
@pytest.mark.timeout(3500)
def test_power_goes_ten_thousand_times(tmp_path: Path) -> None:
    halves = [",".join(CUTS_ON[i::2]) for i in range(2)]
    cuts = share_of(5000)
    arguments = [["--scenarios", half, "--cuts", str(cuts), "--seed", str(7 + i)] for i, half in enumerate(halves)]
    found = asked("cuts", arguments, tmp_path, limit_s=3400)
    done = sum(each["cuts"] for each in found)
    wrong = [wrong for each in found for wrong in each["wrong"]]
    said = {"cuts": done, "wrong": len(wrong), "counts": added(found, "counts"), "known": added(found, "known")}
    keep_counts("cuts", said)
    assert not wrong, told(wrong)
    assert done >= 2 * cuts
