"""Seeded faults that files that fail, or power that goes, have to find; made as ``tests.faults.seeded`` makes its own.

``HPCREC_FILE_FAULT=<name>`` makes one of them in the process that ``install`` is called in.
"""
# ruff: noqa: E501 - pieces of source are not broken

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

from tests.faults.seeded import ROOT

VARIABLE = "HPCREC_FILE_FAULT"
FILES, FILLED, OUT = "hpcrec/checkpoint/files.py", "hpcrec/data/hdf5_filled.py", "hpcrec/data/hdf5_out.py"
AGAIN, EXPORT = "hpcrec/again.py", "hpcrec/build/export.py"
ARRAYS, SEGMENT = "hpcrec/serving/arrays.py", "hpcrec/disk/segment.py"
WRITER, WHOLE, ATTEMPTS = "hpcrec/checkpoint/checkpoint.py", "hpcrec/data/files.py", "hpcrec/training/attempts.py"


@dataclass(frozen=True)
class FileFault:
    """Edits (file, what is there once, what stands in its place), and where it shows: ``errors`` or ``cuts``."""

    method: str
    scenarios: str
    edits: tuple[tuple[str, str, str], ...]

    def changed(self) -> dict[str, str]:
        """The sources of the files with the fault in them, by path."""
        sources: dict[str, str] = {}
        for file, right, wrong in self.edits:
            source = sources.setdefault(file, (ROOT / file).read_text())
            assert source.count(right) == 1, f"{file} has {source.count(right)} times {right!r}"
            sources[file] = source.replace(right, wrong)
        return sources


class _Seeded(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports modules from changed sources."""

    def __init__(self, sources: dict[str, str]) -> None:
        self._sources = {path.removesuffix(".py").replace("/", "."): (path, text) for path, text in sources.items()}
        assert not self._sources.keys() & sys.modules.keys(), "it comes too late"

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.util.spec_from_loader(name, self) if name in self._sources else None

    def exec_module(self, module: ModuleType) -> None:
        path, text = self._sources[module.__name__]
        module.__file__ = str(ROOT / path)
        exec(compile(text, module.__file__, "exec"), module.__dict__)


_DROPPED = "with __import__('contextlib').suppress(OSError):"
_PUBLISHED = "            files.publish(self.folder, self.step, self._claim, ranks.comes_on)\n"
_PRUNED = """            best = (files.read_best(self.folder) or {}).get("step")
            kept = {self._base, best} - {None}
            kept |= {files._base_step(self.folder, step) for step in kept}
            for step in files.steps_in(self.folder):
                if step not in kept:
                    files.remove_folder(files.step_folder(self.folder, step))
"""
_FINISHED = """        for last in (self._flush_to_disk, self._raw.close):
            try:
                last()
            except OSError as error:
                self._fail(error)
"""
_ENDED = "        file.flush()\n        os.fsync(file.fileno())\n"
_SYNCED = '    with named(path), path.open("wb") as file:\n        yield file\n' + _ENDED
_OF_ALL = "            for descriptor in self._wrote:  # only those that wrote are told of what failed\n"
_NAMES = "        self._sync_names()\n"
_NAMED = "    sync(final.parent)\n"
_REMOVED = "    with contextlib.suppress(OSError):  # it is a leftover then\n        remove_folder(old, comes_on)\n"
FAULTS: dict[str, FileFault] = {
    # ---- files that fail ----
    "an error past the cache dropped": FileFault("errors", "first", ((
        FILLED, "                if error.errno in _NOT_BY_ANY_WAY:\n                    raise\n",
        "                if error.errno in _NOT_BY_ANY_WAY:\n                    return stop\n",
    ),)),
    "an error of another piece's write dropped": FileFault("errors", "first", ((
        FILLED, "            self.writing.result()\n", "            self.writing.exception()\n",
    ),)),
    "an error of a sync dropped": FileFault("errors", "first", ((
        FILLED, "                os.fsync(descriptor)\n", f"                {_DROPPED}\n                    os.fsync(descriptor)\n",
    ),)),
    # A sync before it is told of the same loss first: so it is left to the descriptor that is opened after this one.
    "an error of close dropped": FileFault("errors", "first", ((
        OUT, _FINISHED, f"        {_DROPPED}\n            self._raw.close()\n",
    ),)),
    "an error of a text's close dropped": FileFault("errors", "first,notes", ((
        WHOLE, _SYNCED, f"    with named(path):\n        file = path.open('wb')\n        yield file\n        file.flush()\n        {_DROPPED}\n            file.close()\n",
    ),)),
    "an error of a text's sync dropped": FileFault("errors", "first,notes", ((
        WHOLE, "        os.fsync(file.fileno())\n", f"        {_DROPPED}\n            os.fsync(file.fileno())\n",
    ),)),
    "a text that is not written": FileFault("errors", "first", ((
        WHOLE, "    with writing(path):\n        try:\n            with synced", f"    {_DROPPED}\n        try:\n            with synced",
    ),)),
    "a failed write that is committed": FileFault("errors", "first", ((
        WRITER, "        if failure is not None:\n", "        if failure == 'never':\n",
    ),)),
    "prune before commit, met by an error": FileFault("errors", "increment", ((WRITER, _PUBLISHED, _PRUNED + _PUBLISHED),)),
    "an older one removed before the newer has its name": FileFault("errors", "again", ((
        FILES, "        move(final, old, claim)\n", "        remove_folder(final, comes_on)\n",
    ),)),
    "what was about to be replaced is removed": FileFault("errors", "again", ((
        FILES, "            (folder / name).rename(final)\n", "            pass\n",
    ),)),
    "an attempt that is not noted": FileFault("errors", "notes", ((ATTEMPTS, "    with writing(path):\n", f"    {_DROPPED}\n"),)),
    "an error that names no file": FileFault("errors", "first,notes", ((
        WHOLE, 'f"{settled(path)}: cannot be written ({reason}).', 'f"a file cannot be written ({reason}).',
    ),)),
    "a read that is never tried again and is damage": FileFault("errors", "resume,damaged", ((
        AGAIN, "            if number is None or", "            if number is not None or",
    ),)),
    # ---- power that goes ----
    "a text that is not synced": FileFault("cuts", "first/1", ((WHOLE, _ENDED, ""),)),
    "rows that are not synced": FileFault("cuts", "first/1", ((FILLED, _OF_ALL, "            for descriptor in []:\n"),)),
    "another rank's rows that are not synced": FileFault("cuts", "first/2,first/3", ((
        FILLED, _OF_ALL, "            for descriptor in self._wrote if 'part-0' in str(self._path_of) else []:\n",
    ), (FILLED, "        self._places: dict[str, _Place] = {}\n", "        self._places: dict[str, _Place] = {}\n        self._path_of = path\n"),
    )),
    "the manifest renamed before another rank has synced": FileFault("cuts", "first/2,first/3", (
        (WRITER, _NAMES, "        if ranks.rank == 0:\n            self._sync_names()\n"),
        (WRITER, "        on_root(ranks, finish)\n", "        on_root(ranks, finish)\n        self.hidden = files.step_folder(self.folder, self.step)\n        self._sync_names()\n"),
    )),
    "names of files that are not synced": FileFault("cuts", "first/1,increment/2", ((WRITER, _NAMES, ""),)),
    "the name of a checkpoint that is not synced": FileFault("cuts", "first/1,increment/2", ((FILES, _NAMED, ""),)),
    "an older one removed before the newer's name is synced": FileFault("cuts", "again/1,again/2", (
        (FILES, _NAMED + _REMOVED, _REMOVED + _NAMED),
    )),
    "a removal that begins before the name is gone": FileFault("cuts", "increment/1,long/1", ((
        FILES, "            move(step_folder(run, step), hidden, claim)\n", "            step_folder(run, step).rename(hidden)\n",
    ),)),
    "prune before commit, met by a cut": FileFault("cuts", "increment/1", ((WRITER, _PUBLISHED, _PRUNED + _PUBLISHED),)),
    "a new folder's name that is not synced": FileFault("cuts", "first/1", ((
        FILES, "        path.mkdir(exist_ok=True)\n        sync(path.parent)\n", "        path.mkdir(exist_ok=True)\n",
    ),)),
    "a text that is renamed before it is synced": FileFault("cuts", "notes/1,first/1", ((
        WHOLE, "                file.write(text.encode())\n", "                file.write(text.encode())\n                temporary.replace(path)\n                sync(path.parent)\n                file.flush()\n                temporary.write_bytes(path.read_bytes())\n",
    ),)),
    "a text whose name is not synced": FileFault("cuts", "first/1,notes/1", ((
        WHOLE, "    temporary.replace(path)\n    sync(path.parent)\n", "    temporary.replace(path)\n",
    ),)),
    "names of an export's tables that are not synced": FileFault("cuts", "export/1", ((
        EXPORT, '            sync(hidden / "tables")\n', "            pass\n",
    ),)),
    "an export's tables that are not synced": FileFault("cuts", "export/1", (
        (ARRAYS, "                array.flush()  #", "                pass  #"),
        (ARRAYS, "            os.fsync(file.fileno())\n", "            pass\n"),
    )),
    "linked segments that are not synced": FileFault("cuts", "linked/1", ((SEGMENT, "            os.fsync(self.file)\n", "            pass\n"),)),
    "an attempt that is not synced": FileFault("cuts", "notes/1", ((ATTEMPTS, "            os.fsync(file.fileno())\n", ""),)),
}  # fmt: skip


def install() -> None:
    """Makes the fault that the environment names, if it names one; before hpcrec is imported."""
    if name := os.environ.get(VARIABLE):
        sys.meta_path.insert(0, _Seeded(FAULTS[name].changed()))
