"""Checkpoint folders: their names, manifests, and what is kept. docs/checkpoint.md is the format.

A checkpoint is written under a name with a leading dot and renamed when it is whole, and it is renamed back to such a
name before it is removed, so a folder named ``step-<n>`` was whole once. The manifest, written last, tells whether it
still is. Whoever renames or removes looks first whether it still holds its claim of the run (``training.claim``); such
names have that claim's token. Knows nothing of what is in the files (``checkpoint``), nor of MPI: what works together
takes ``Ranks``.
"""

import contextlib
import hashlib
import itertools
import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from hpcrec.again import is_folder, is_there, read_again
from hpcrec.checkpoint.space import Held
from hpcrec.comm.failure import agree
from hpcrec.comm.ranks import Ranks
from hpcrec.data import checksum
from hpcrec.data.files import remove_folder, sync, write_text
from hpcrec.disk.segment import seal_of
from hpcrec.errors import CheckpointError, UnreadableError
from hpcrec.training.claim import UNCLAIMED, Claim, Unclaimed

ComesOn = Callable[[], None]  # called again and again during long work, for whoever looks whether it hangs

FORMAT = "hpcrec checkpoint"
FORMAT_VERSION = 3
LINKED_VERSION = 4  # of one with rows that are links to a store's files, which who knows only 3 cannot read
MANIFEST = "manifest.json"
DENSE = "dense.h5"
RESIDUALS = "residuals-"  # and the number of a dense rank
ROWS, ROWS_END = "rows-", ".tier"  # between them the number of the rank whose store's files are linked there
DENSE_GROUP, SNAPSHOT = "dense-group-", "snapshot-"  # and the number of a group of dense ranks
STATE = "state.json"
BEST = "best.json"
DAMAGED = "damaged-"  # and a seal: which segment has damage that a run has met (``damaged``); or the name of a step


def nothing() -> None:
    """Says to nobody that work comes on."""


# ---- names ---------------------------------------------------------------------------------------------------------


LONGEST_NAME = 255  # bytes of a file's or a folder's, on Linux


def quoted(name: str) -> str:
    """A name of a table, parameter or state as one HDF5 or file name: ``%``, ``/`` and a leading dot as ``%xx``."""
    name = name.replace("%", "%25").replace("/", "%2F")
    if (
        name.startswith((".", RESIDUALS, DENSE_GROUP, SNAPSHOT))
        or is_folder_of_links(name)
        or name in (MANIFEST, DENSE, STATE)
    ):
        name = name.replace(".", "%2E")
    return name


def folder_of_links(rank: int) -> str:
    """In a checkpoint: links to the files of a rank's store."""
    return f"{ROWS}{rank}{ROWS_END}"


def is_folder_of_links(name: str) -> bool:
    """Whether a folder of a checkpoint is one of links, and not of a table."""
    return name.startswith(ROWS) and name.endswith(ROWS_END)


def unquoted(name: str) -> str:
    """The name that ``quoted`` was given."""
    return unquote(name)


def checkpoints_in(run: Path) -> Path:
    """The folder of a run's checkpoints."""
    return run / "checkpoints"


def step_folder(run: Path, step: int) -> Path:
    """Folder of the checkpoint after ``step`` steps."""
    return checkpoints_in(run) / f"step-{step}"


def hidden_folder(run: Path, step: int, kind: str = "tmp", token: str = "") -> Path:
    """The same while it is written or removed (``tmp``), or about to be replaced (``old``), by who has this token."""
    return checkpoints_in(run) / ".".join(filter(None, (f".step-{step}", token, kind)))


def steps_in(run: Path) -> list[int]:
    """Steps of a run's checkpoints, oldest first; whether they are whole is for ``problem``.

    Raises
    ------
    UnreadableError
        The folder is there and cannot be listed; it is not taken for an empty one.
    """
    names = [
        n.removeprefix("step-") for n, is_folder in _listed(checkpoints_in(run)) if is_folder and n.startswith("step-")
    ]
    return sorted(int(name) for name in names if name.isdecimal())


def _listed(folder: Path) -> list[tuple[str, bool]]:
    """Names in a folder, and which are folders; none where it is not there."""
    try:
        return read_again(folder, lambda: [(entry.name, entry.is_dir()) for entry in os.scandir(folder)])
    except (FileNotFoundError, NotADirectoryError):
        return []


# ---- manifest --------------------------------------------------------------------------------------------------------


def entry_of(n_bytes: int, crc32: int, *, finite: bool = True) -> dict[str, Any]:
    """A file in the manifest: what its writer gave it, not what the disk made of that."""
    return {"bytes": n_bytes, "crc32": crc32, **({} if finite else {"nonfinite": True})}


def write_manifest(
    folder: Path,
    step: int,
    files: Mapping[str, Mapping[str, Any]],
    base: Mapping[str, Any] | None = None,
    segments: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Makes a folder a checkpoint: lists every file in it, and names the ``base`` that it needs besides.

    ``segments`` are links to a store's files, with their bytes and seals.
    """
    version = LINKED_VERSION if segments else FORMAT_VERSION
    manifest = {"format": FORMAT, "version": version, "step": step, "files": dict(sorted(files.items()))}
    if segments:
        manifest["segments"] = dict(sorted(segments.items()))
    if base is not None:
        manifest["base"] = base
    write_text(folder / MANIFEST, json.dumps(manifest, indent=1) + "\n")


def named_base(run: Path, step: int) -> dict[str, Any]:
    """What a manifest says of the checkpoint that it needs: the step, and a digest of that one's manifest."""
    return {"step": step, "sha256": manifest_digest(step_folder(run, step))}


def manifest_digest(folder: Path) -> str:
    """Which checkpoint it is: no other one has the same, be it of the same step.

    Raises
    ------
    OSError
        It has no manifest, or, as `UnreadableError`, it cannot be read just now.
    """
    path = folder / MANIFEST
    return hashlib.sha256(read_again(path, path.read_bytes)).hexdigest()


def base_of(folder: Path, manifest: Mapping[str, Any]) -> Path | None:
    """The folder of the checkpoint that one needs besides: it is beside it."""
    return folder.parent / f"step-{manifest['base']['step']}" if manifest.get("base") else None


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a checkpoint.

    Raises
    ------
    CheckpointError
        None there, not one, or of another version.
    UnreadableError
        It cannot be read just now.
    """
    path = folder / MANIFEST
    try:
        manifest = json.loads(read_again(path, path.read_bytes))
        found = (manifest["format"], manifest["version"])
        if found not in ((FORMAT, FORMAT_VERSION), (FORMAT, LINKED_VERSION)):
            raise CheckpointError(
                f"{path}: format {found[0]!r}, version {found[1]!r}. Allowed: {FORMAT!r}, version {FORMAT_VERSION} or "
                f"{LINKED_VERSION}. Read it with the hpcrec that wrote it."
            )
        files = {str(name): (int(entry["bytes"]), int(entry["crc32"])) for name, entry in manifest["files"].items()}
        segments = {name: (int(of["bytes"]), int(of["seal"])) for name, of in manifest.get("segments", {}).items()}
        for name in (*files, *segments):
            if "\0" in name or any(part in ("", ".", "..") for part in name.split("/")):
                raise ValueError(f"file {name!r}, which is not one of its folder")
        base = manifest.get("base")
        for step in (manifest["step"], *(() if base is None else (base["step"], len(base["sha256"])))):
            if type(step) is not int or step < 0:
                raise ValueError(f"step {step!r}")
        if base is not None and base["step"] >= manifest["step"]:
            raise ValueError(f"base of step {base['step']}, in one of step {manifest['step']}")
    except (CheckpointError, UnreadableError):
        raise
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}), so {folder} is no checkpoint.") from error
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        said = f"is not the manifest of a checkpoint ({error!r}). See docs/checkpoint.md."
        raise CheckpointError(f"{path}: {said}") from error
    if STATE not in files:
        raise CheckpointError(f"{path}: lists no {STATE}, which every checkpoint has. See docs/checkpoint.md.")
    return dict(manifest)


def nonfinite_files(manifest: Mapping[str, Any]) -> list[str]:
    """Files that hold weights or optimizer state that are not finite, as their writers saw."""
    return [name for name, entry in manifest["files"].items() if entry.get("nonfinite")]


def read_state(folder: Path) -> dict[str, Any]:
    """What ``write_state`` of a checkpoint was given."""
    path = folder / STATE
    try:
        return dict(json.loads(read_again(path, path.read_bytes)))
    except UnreadableError:
        raise
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path}: is not a JSON object ({error}). See docs/checkpoint.md.") from error


def damage(folder: Path, manifest: Mapping[str, Any], ranks: Ranks) -> str | None:
    """What is wrong with a checkpoint's files, or None; collective: each rank reads its share of them.

    Raises
    ------
    UnreadableError
        One cannot be read just now; on every rank.
    """
    mine, linked = (list(manifest.get(of, {}).items())[ranks.rank :: ranks.size] for of in ("files", "segments"))
    found, unread = None, None
    try:
        found = next(
            (text for name, entry in mine if (text := file_damage(folder / name, entry, ranks.comes_on))), None
        ) or next((text for name, entry in linked if (text := segment_damage(folder / name, entry))), None)
    except UnreadableError as error:
        unread = error
    agree(ranks, unread)
    return next((text for text in ranks.allgather(found) if text), None)


def file_damage(path: Path, entry: Mapping[str, Any], comes_on: ComesOn = nothing) -> str | None:
    """What is wrong with a file, held to its entry in the manifest, or None.

    Raises
    ------
    UnreadableError
        It cannot be read just now.
    """
    try:
        n_bytes = read_again(path, path.stat).st_size
        if n_bytes != entry["bytes"]:
            return f"{path} has {n_bytes} bytes, its manifest says {entry['bytes']}"
        if read_again(path, lambda: checksum.of_file(path, comes_on)) != entry["crc32"]:
            return f"{path} has another checksum than its manifest says"
    except UnreadableError:
        raise
    except OSError as error:
        return f"{path} cannot be read ({error.strerror})"
    return None


def segment_damage(path: Path, entry: Mapping[str, Any]) -> str | None:
    """What is wrong with a link to a store's file, held to its entry in the manifest, or None: its size, its seal.

    Its pages have checksums of their own, which are looked at when they are read; and before where a run has noted
    that there is damage (``damaged``).

    Raises
    ------
    UnreadableError
        It cannot be read just now.
    """

    def read() -> tuple[int, int]:
        n_bytes = path.stat().st_size
        return n_bytes, seal_of(path) if n_bytes == entry["bytes"] else 0  # one cut short may have none

    try:
        n_bytes, seal = read_again(path, read)
    except UnreadableError:
        raise
    except OSError as error:
        return f"{path} cannot be read ({error.strerror})"
    if n_bytes != entry["bytes"]:
        return f"{path} has {n_bytes} bytes, its manifest says {entry['bytes']}"
    if seal != entry["seal"]:
        return f"{path} is another segment than its manifest means: its seal is {seal:08x}, not {entry['seal']:08x}"
    return None


def linked_before(run: Path, folder: str) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Links of a folder in the checkpoints of a run, the newest first: each with its entry in the manifest."""
    for step in reversed(steps_in(run)):
        try:
            manifest = read_manifest(step_folder(run, step))
        except CheckpointError:  # whoever reads it says so
            continue
        for name, entry in manifest.get("segments", {}).items():
            if name.startswith(f"{folder}/"):
                yield step_folder(run, step) / name, entry


# ---- folders ---------------------------------------------------------------------------------------------------------


def publish(run: Path, step: int, claim: Claim | Unclaimed = UNCLAIMED, comes_on: ComesOn = nothing) -> None:
    """Gives a whole checkpoint its name, in place of an older one of the same step."""
    hidden, final = hidden_folder(run, step, token=claim.token), step_folder(run, step)
    old = hidden_folder(run, step, "old", claim.token)
    replaces = is_there(final)
    if replaces:
        move(final, old, claim)
    try:
        claim.check()
        hidden.rename(final)
    except Exception:
        if replaces:
            _put_back(final, old)
        raise
    sync(final.parent)
    with contextlib.suppress(OSError):  # it is a leftover then
        remove_folder(old, comes_on)


def move(path: Path, away: Path, claim: Claim | Unclaimed) -> None:
    """Takes a file or folder away under another name; puts it back where the claim was lost after the look before."""
    claim.check()
    path.rename(away)
    try:
        claim.check()
    except Exception:
        _put_back(path, away)
        raise
    sync(away.parent)


def _put_back(path: Path, away: Path) -> None:
    if is_there(path) and not is_folder(path):  # a rename would replace it, where that of a folder is refused
        return
    with contextlib.suppress(OSError):  # whoever has the claim now has brought it back, or has one of its own there
        away.rename(path)


def clear(run: Path, claim: Claim | Unclaimed = UNCLAIMED, comes_on: ComesOn = nothing) -> None:
    """Removes all checkpoints of a run. On one rank."""
    folder = checkpoints_in(run)
    away = run / f".{folder.name}.{claim.token}.old"
    if is_folder(folder):
        move(folder, away, claim)
    remove_leftovers(run, claim, comes_on)


def remove_leftovers(run: Path, claim: Claim | Unclaimed = UNCLAIMED, comes_on: ComesOn = nothing) -> None:
    """Removes what a killed run left half written; brings back what it was about to replace. On one rank."""
    folder = checkpoints_in(run)
    # All are listed before the look: what another one writes, once it has taken over, is not among them.
    hidden = [name for name, is_folder in _listed(folder) if is_folder and name.startswith(".step-")]
    notes = [n for n, is_folder in _listed(folder) if not is_folder and n.startswith((f".{BEST}.", f".{DAMAGED}"))]
    cleared = [n for n, _ in _listed(run) if n.startswith(f".{folder.name}.") and n.endswith(".old")]
    for name in hidden:
        final = folder / name.split(".")[1]
        if name.endswith(".old") and not is_there(final):
            claim.check()
            (folder / name).rename(final)
    left = [folder / name for name in hidden if name.endswith((".tmp", ".old"))] + [run / name for name in cleared]
    for path in left:
        claim.check()
        try:
            remove_folder(path, comes_on)
        except OSError as error:  # a name of its own, so it is in nobody's way
            warnings.warn(f"what an earlier attempt left is not removed this time: {error}", stacklevel=2)
    for name in notes:
        claim.check()
        with contextlib.suppress(OSError):
            (folder / name).unlink()


def set_aside(run: Path, step: int, claim: Claim | Unclaimed = UNCLAIMED, why: str = "damaged") -> Path:
    """Takes a checkpoint that is not gone on from out of the way, as ``<why>-step-<n>``, and removes none. On one rank.

    It is not pruned, nor is what it needs protected from that.
    """
    folder = checkpoints_in(run)
    names = itertools.chain([f"{why}-step-{step}"], (f"{why}-step-{step}.{k}" for k in itertools.count(2)))
    aside = next(folder / name for name in names if not is_there(folder / name))
    move(step_folder(run, step), aside, claim)
    return aside


def prune(
    run: Path,
    keep: int,
    protect: Iterable[int] = (),
    claim: Claim | Unclaimed = UNCLAIMED,
    comes_on: ComesOn = nothing,
    keep_bytes: int | None = None,
) -> list[int]:
    """Removes what is not to be kept; returns the steps removed. On one rank.

    Kept are the newest ``keep`` whose values are finite, the newest of the others, those to protect, the one that is
    noted as best, and what these need. Of the newest ``keep`` only the very newest is, where more of them would hold
    more than ``keep_bytes`` of the disk, the others included (``space``). Where it cannot be read which these are, or
    the disk does not let one be removed, nothing more is removed this time, and that is said: it is no reason to end a
    run.
    """
    removed: list[int] = []
    try:
        steps = steps_in(run)
        bases = {step: _base_step(run, step) for step in steps}
        good = [step for step in steps if is_finite(run, step)]
        others = [step for step in steps if step not in good]
        newest, stay = good[max(len(good) - keep, 0) :], {*good[-1:], *others[-1:], *protect, *_noted_best(run)}
        kept = {*newest, *stay} & set(steps)
        if keep_bytes is not None:
            held = Held({step: step_folder(run, step) for step in steps}, bases)
            kept = held.within(kept, [step for step in newest if step not in stay], keep_bytes)
            if held.n_bytes(kept) > keep_bytes:
                warnings.warn(
                    f"the checkpoints that stay in any case hold more than checkpoint.keep_bytes = {keep_bytes}. Set "
                    "it higher, or see that the disk has room for them.",
                    stacklevel=2,
                )
        kept |= {base for step in kept if (base := bases[step]) is not None}
        for step in sorted(set(steps) - kept, reverse=True):  # a base goes after those that need it
            hidden = hidden_folder(run, step, token=claim.token)
            move(step_folder(run, step), hidden, claim)
            remove_folder(hidden, comes_on)
            removed.append(step)
    except OSError as error:
        warnings.warn(f"no more old checkpoints are removed this time: {error}", stacklevel=2)
    return sorted(removed)


def _base_step(run: Path, step: int) -> int | None:
    try:
        return (read_manifest(step_folder(run, step)).get("base") or {}).get("step")
    except CheckpointError:  # a damaged one needs none
        return None


def _noted_best(run: Path) -> list[int]:
    """The step that is noted as best, if any: also of a run that could not read the note when it last looked."""
    try:
        best = read_best(run)
    except CheckpointError:  # a note that says nothing
        return []
    return [] if best is None else [best["step"]]


def is_finite(run: Path, step: int) -> bool:
    """Whether all values of a checkpoint, and of the one that it needs, were finite when they were written.

    False of a damaged one, which nobody counts on. Raises `UnreadableError` where that cannot be found out just now.
    """
    try:
        manifest = read_manifest(step_folder(run, step))
    except CheckpointError:
        return False
    return not nonfinite_files(manifest) and ("base" not in manifest or is_finite(run, manifest["base"]["step"]))


def mark_best(run: Path, step: int, metric: str, value: float, claim: Claim | Unclaimed = UNCLAIMED) -> None:
    """Notes which checkpoint is best, in place of the last note. On one rank."""
    text = json.dumps({"step": step, "metric": metric, "value": value}) + "\n"
    write_text(checkpoints_in(run) / BEST, text, claim.check)


def unmark_best(run: Path, claim: Claim | Unclaimed = UNCLAIMED) -> None:
    """Takes the note away. On one rank."""
    path = checkpoints_in(run) / BEST
    if is_there(path):
        claim.check()
        path.unlink()
        sync(path.parent)


def read_best(run: Path) -> dict[str, Any] | None:
    """What ``mark_best`` noted: step, metric, value; None where nothing was."""
    path = checkpoints_in(run) / BEST
    try:
        best = json.loads(read_again(path, path.read_bytes))
        return {"step": int(best["step"]), "metric": str(best["metric"]), "value": float(best["value"])}
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise CheckpointError(f"{path}: does not say which checkpoint is best ({error!r}). Remove it.") from error


def make_hidden(run: Path, step: int, claim: Claim | Unclaimed = UNCLAIMED, comes_on: ComesOn = nothing) -> Path:
    """An empty folder to write a checkpoint in. On one rank."""
    claim.check()
    remove_leftovers(run, claim, comes_on)
    hidden = hidden_folder(run, step, token=claim.token)
    remove_folder(hidden, comes_on)  # which may not be left
    missing = [path for path in (hidden, *hidden.parents) if not is_there(path)]
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        sync(path.parent)
    return hidden


def candidates(folder: Path, which: str, *, finite: bool = False) -> list[Path]:
    """Folders to try for ``last``, ``best`` or a path, the wanted one first. On one rank.

    ``finite``: of ``last``, only those of finite values.
    """
    if which == "last":
        steps = [step for step in steps_in(folder) if not finite or is_finite(folder, step)]
        if not steps:
            raise CheckpointError(f"{checkpoints_in(folder)}: has no checkpoint. Give a run that has saved one.")
        return [step_folder(folder, step) for step in reversed(steps)]
    if which == "best":
        best = read_best(folder)
        if best is None:
            raise CheckpointError(
                f"{checkpoints_in(folder)}: has no best checkpoint; it takes data.validation and "
                "checkpoint.keep_best. Ask for the last one."
            )
        return [step_folder(folder, best["step"])]
    return [Path(which)]
