"""Remembers what a conversion has done, so that one that was cut short goes on; refuses to go on with another.

In the folder of the data set: ``prepare.work/`` while it is made (``job.json``, and a record for each finished part),
``pieces/`` where there are several pieces, ``prepare.json`` once all is finished. Each file is written whole or not at
all. Knows nothing of what the records say.
"""

import contextlib
import fcntl
import json
import os
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from hpcrec.again import is_there, names_in, read_again
from hpcrec.data import files
from hpcrec.errors import ConfigError, DataError

Record = dict[str, Any]
_OURS = ("train", "validation", "test", "vocabulary", "prepare", "rejects")  # files that get their name in the folder


class Journal:
    """What was done to a folder.

    Parameters
    ----------
    folder : Path
    identity : dict
        What the conversion is, as JSON: two that differ in it do not go on from each other.
    """

    def __init__(self, folder: Path, identity: Record) -> None:
        self.folder, self.work, self.pieces = folder, folder / "prepare.work", folder / "pieces"
        self._identity: Record = json.loads(json.dumps(identity))
        self._lock: IO[str] | None = None

    def open(self, *, restart: bool) -> Record | None:
        """Begin, or go on; on one rank. Returns the result of a conversion that is finished already.

        Raises
        ------
        ConfigError
            The folder has the work or the result of another conversion, or another process works in it now.
        DataError
            A folder in it is a link: what is cleared there is somebody else's.
        """
        for folder in (self.work, self.pieces):
            if folder.is_symlink():
                raise DataError(
                    f"{folder}: is a link, to {folder.readlink()}, and hpcrec prepare removes what is in there. "
                    "Nothing was removed or written. Remove the link, or give another --out."
                )
        while not self._take_lock():
            pass  # another process has just ended, and removed what was locked
        try:
            return self._open(restart)
        except BaseException:
            self.close()
            raise

    def _open(self, restart: bool) -> Record | None:
        self._refuse_pieces_of_others()
        if restart:
            self._remove_results()  # which may refuse; then nothing is removed
            self.clear()
        finished = _read(self.folder / "prepare.json")
        begun = _read(self.work / "job.json")
        if begun and begun["identity"] != self._identity and not self.has_records("counted", "written"):
            self.clear()  # nothing was finished that would be lost
            begun = None
        earlier = finished or begun
        if earlier is not None:
            self._compare(earlier)
        if finished is not None:
            self._check_results(finished)
            self.clear()
            return dict(finished["result"])
        ours = (path for name in _OURS for path in self.folder.glob(f".{name}.*.part"))
        for left in [*self.work.rglob(".*.part"), *self.pieces.glob(".*.part"), *ours]:
            if not left.is_dir():
                left.unlink(missing_ok=True)  # a rank of a job whose first rank was killed may just have named it
        if begun is None:
            files.write_text(self.work / "job.json", _text({"identity": self._identity}))
            files.sync(self.folder)  # that it has the work, before it has pieces
        return None

    def close(self) -> None:
        """Let another process work in the folder; leave no empty work folder."""
        if (lock := self._lock) is not None:
            self._lock = None
            with files.named(self.work / "lock"), lock:  # which is let go also where the folder cannot be listed
                if not any(path.name != "lock" for path in self.work.iterdir()):
                    shutil.rmtree(self.work, ignore_errors=True)  # while nobody else can be in it

    def clear(self) -> None:
        """Forget what was begun, but for the lock; remove what ranks of killed jobs left half written."""
        if not is_there(self.folder / "prepare.json"):
            self._remove_pieces()
        for left in self.pieces.glob(".*.part"):
            if not left.is_dir():
                left.unlink(missing_ok=True)
        for path in self.work.iterdir():
            if path.is_dir() and not path.is_symlink():
                files.remove_folder(path)
            elif path.name != "lock":
                path.unlink(missing_ok=True)

    def intend(self, names: Sequence[str]) -> None:
        """Note which files of the folder are about to get their names; if that is cut short, a restart knows them."""
        files.write_text(self.work / "named.json", _text({"files": dict.fromkeys(names, 0)}))

    def record(self, stage: str, name: str, record: Record) -> None:
        """Note that a part of a stage is done; the bytes that it wrote are on disk, and before the note their names."""
        files.sync(self.work)
        files.write_text(self.work / f"{stage}-{name}.json", _text(record))

    def records(self, stage: str) -> dict[str, Record]:
        """What is done of a stage, by name."""
        found = {}
        for name in names_in(self.work):
            if name.startswith(f"{stage}-") and name.endswith(".json"):
                record = _read(self.work / name)
                if record is not None:
                    found[name.removeprefix(f"{stage}-").removesuffix(".json")] = record
        return found

    def has_records(self, *stages: str) -> bool:
        """Whether any part of these stages is done."""
        return any(self.records(stage) for stage in stages)

    def finish(self, result: Record, written: list[Path]) -> None:
        """Note that all is done and which files it gave; on one rank. The work folder goes."""
        sizes = {path.relative_to(self.folder).as_posix(): path.stat().st_size for path in written}
        content = {"identity": self._identity, "result": result, "files": sizes}
        files.write_text(self.folder / "prepare.json", _text(content))
        self.clear()

    def _take_lock(self) -> bool:
        """Whether this process works in the folder now; False: what it locked has lost its name meanwhile."""
        path = self.work / "lock"
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            with contextlib.suppress(FileExistsError):  # `exist_ok` asks again, and it may have been removed meanwhile
                self.work.mkdir()
            lock = path.open("w")
        except FileNotFoundError:
            if path.is_symlink():  # to what is not there
                raise
            return False
        try:
            self._ask_for(lock)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(path.stat(), os.fstat(lock.fileno())):
                    self._lock = lock
        finally:
            if self._lock is None:
                lock.close()  # also where the system refused to say: it would keep later attempts of this process out
        return self._lock is not None

    def _ask_for(self, lock: IO[str]) -> None:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"{self.folder}: another process prepares data in this folder now; wait for it, or give another --out."
            ) from None
        except OSError as error:
            said = (
                f"{self.folder}: its file system takes no lock ({error.strerror}); see that one process prepares in it"
            )
            warnings.warn(said, stacklevel=3)

    def _compare(self, earlier: Record) -> None:
        was, now = _flat(earlier["identity"]), _flat(self._identity)
        differ = [
            f"{key} was {was.get(key, 'absent')}, is {now.get(key, 'absent')}"
            for key in sorted(was | now)
            if was.get(key) != now.get(key)
        ]
        if differ:
            more = f" (and {len(differ) - 5} more)" if len(differ) > 5 else ""
            raise ConfigError(
                f"{self.folder}: was begun by another command or from other sources: {'; '.join(differ[:5])}{more}. "
                "Give the same command to go on, --restart to begin anew, or another --out."
            )

    def _check_results(self, finished: Record) -> None:
        for path, size in self._results(finished).items():
            if not path.is_file() or path.stat().st_size != size:
                raise DataError(
                    f"{path}: prepare.json says that it was finished with {size} bytes, which is not so now. Begin "
                    "anew (--restart), or give another --out."
                )

    def _refuse_pieces_of_others(self) -> None:
        """Pieces are removed where a conversion fails: they have to be of one that began here."""
        of_ours = any(is_there(path) for path in (self.folder / "prepare.json", self.work / "job.json"))
        if not of_ours and any(not name.endswith(".part") for name in names_in(self.pieces)):
            raise DataError(
                f"{self.pieces}: has files, and {self.folder} has no prepare.json that says of which conversion they "
                "are. Nothing was removed or written. Remove them, or give another --out."
            )

    def _remove_pieces(self) -> None:
        """On disk too, while there is a record on disk that they are of this folder's conversion."""
        if is_there(self.pieces):
            shutil.rmtree(self.pieces, ignore_errors=True)
            files.sync(self.folder)

    def _remove_results(self) -> None:
        path = self.folder / "prepare.json"
        finished = _read(path)
        named = _read(self.work / "named.json") if is_there(self.work / "job.json") else None  # and was killed then
        records = [record for record in (finished, named) if record is not None]
        for result in [
            result for record in records for result in self._results(record)
        ]:  # all looked at before one goes
            result.unlink(missing_ok=True)
        if finished is not None:
            self._remove_pieces()
            path.unlink()

    def _results(self, finished: Record) -> dict[Path, int]:
        """Files that a conversion gave, and their sizes; none is outside of its folder, whoever wrote the record."""
        here = self.folder.resolve()
        found = {self.folder / name: size for name, size in finished["files"].items()}
        for path in found:
            if ".." in path.parts or not path.parent.resolve().is_relative_to(here):
                raise DataError(
                    f"{self.folder / 'prepare.json'}: names {path}, which is not in its folder. Nothing was removed or "
                    "written. hpcrec prepare writes no such record: remove it, or give another --out."
                )
        return found


def _read(path: Path) -> Record | None:
    try:
        content = json.loads(read_again(path, path.read_bytes))
        if not isinstance(content, dict):
            raise ValueError("it is no record")
        wanted = {"prepare.json": ("files", "identity", "result"), "job.json": ("identity",), "named.json": ("files",)}
        for key in wanted.get(path.name, ()):
            if not isinstance(content.get(key), dict):
                raise ValueError(f"it has no {key}")
        if any("\0" in name for name in content.get("files", ())):
            raise ValueError("it names a file with a NUL")
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError, TypeError) as error:
        raise DataError(
            f"{path}: not what `hpcrec prepare` writes ({error}). Remove it to begin anew, or give another --out."
        ) from error
    return dict(content)


def _text(content: Record) -> str:
    return json.dumps(content, indent=1) + "\n"


def _flat(content: Any, above: str = "") -> dict[str, Any]:
    """Leaves by dotted key."""
    if isinstance(content, dict | list) and content:
        items = content.items() if isinstance(content, dict) else enumerate(content)
        return {k: v for key, value in items for k, v in _flat(value, f"{above}.{key}" if above else str(key)).items()}
    return {above: content}
