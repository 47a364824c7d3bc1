"""Seeded faults that files that fail, or power that goes, have to find; made as ``tests.faults.seeded`` makes its own.

``HPCREC_FILE_FAULT=<name>`` makes one of them in the process that ``install`` is called in.
"""

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


_NO_FSYNC = (FILLED, "            os.fsync(self._file)\n", "")
_DROPPED = "with __import__('contextlib').suppress(OSError):"
FAULTS: dict[str, FileFault] = {
    # ---- files that fail ----
    "an error of write dropped": FileFault("errors", "first", ((
        OUT, "                left = left[self._raw.write(left) :]\n        except OSError as error:\n            self.error, self._dropped = error, True",
        "                left = left[self._raw.write(left) :]\n        except OSError as error:\n            self._dropped = True",
    ),)),
    "an error past the cache dropped": FileFault("errors", "first", ((
        FILLED, "                if error.errno in _NOT_BY_ANY_WAY:\n                    raise\n",
        "                if error.errno in _NOT_BY_ANY_WAY:\n                    return stop\n",
    ),)),
    "an error of another piece's write dropped": FileFault("errors", "first", ((
        FILLED, "            self.writing.result()\n", "            self.writing.exception()\n",
    ),)),
    "an error of a sync dropped": FileFault("errors", "first", ((
        WHOLE, "        os.fsync(descriptor)\n    finally:", "        os.fsync(descriptor)\n    except OSError:\n        pass\n    finally:",
    ),)),
    "a text that is not written": FileFault("errors", "first", ((
        WHOLE, "    with writing(path):\n        try:\n            temporary", f"    {_DROPPED}\n        try:\n            temporary",
    ),)),
    "a failed write that is committed": FileFault("errors", "first", ((
        WRITER, "        if failure is not None:\n", "        if failure is not None and not everything_is_well(self):\n",
    ), (WRITER, "class CheckpointWriter:\n", "def everything_is_well(_):\n    return True\n\n\nclass CheckpointWriter:\n"),
    )),
    "prune before commit, met by an error": FileFault("errors", "increment", ((
        WRITER, "            files.publish(self.folder, self.step)\n",
        "            files.prune(self.folder, 0, [] if self._base is None else [self._base])\n            files.publish(self.folder, self.step)\n",
    ),)),
    "an older one removed before the newer has its name": FileFault("errors", "again", ((
        FILES, "        final.rename(old)\n", "        shutil.rmtree(final)\n",
    ),)),
    "what was about to be replaced is removed": FileFault("errors", "again", ((
        FILES, "        if not final.exists():\n            old.rename(final)\n", "        pass\n",
    ),)),
    "an attempt that is not noted": FileFault("errors", "notes", ((
        ATTEMPTS, "    with writing(path):\n", f"    {_DROPPED}\n",
    ),)),
    "an error that names no file": FileFault("errors", "first,notes", ((
        WHOLE, 'f"{path}: cannot be written ({reason}).', 'f"a file cannot be written ({reason}).',
    ),)),
    # ---- power that goes ----
    "a file that is not synced": FileFault("cuts", "first/1", ((WRITER, "            sync(path)\n", ""),)),
    "another rank's file that is not synced": FileFault("cuts", "first/2,first/3", (
        _NO_FSYNC, (WRITER, "            sync(path)\n", "            sync(path) if self._ranks.rank == 0 else None\n"),
    )),
    "the manifest renamed before another rank has synced": FileFault("cuts", "first/2,first/3", (
        _NO_FSYNC,
        (WRITER, "            sync(path)\n", "            late = getattr(self, 'late', [])\n            late.append(path)\n            self.late = late\n"),
        (WRITER, "        on_root(ranks, finish)\n", "        on_root(ranks, finish)\n        [sync(path.parent if False else (files.step_folder(self.folder, self.step) / path.relative_to(self.hidden))) for path in self.late]\n        ranks.allgather(0)\n"),
    )),
    "a table's folder that is not synced": FileFault("cuts", "first/1,increment/2", ((
        FILES, "{hidden, *(path.parent for path in hidden.rglob(\"*\"))}", "{hidden}",
    ),)),
    "the name of a checkpoint that is not synced": FileFault("cuts", "first/1,increment/2", ((
        FILES, "    sync(final.parent)\n    shutil.rmtree(old, ignore_errors=True)", "    shutil.rmtree(old, ignore_errors=True)",
    ),)),
    "an older one removed before the newer's name is synced": FileFault("cuts", "again/1,again/2", ((
        FILES, "    sync(final.parent)\n    shutil.rmtree(old, ignore_errors=True)", "    shutil.rmtree(old, ignore_errors=True)\n    sync(final.parent)",
    ),)),
    "a removal that begins before the name is gone": FileFault("cuts", "increment/1,long/1", ((
        FILES, "        sync(hidden.parent)\n        shutil.rmtree(hidden)\n", "        shutil.rmtree(hidden)\n",
    ),)),
    "prune before commit, met by a cut": FileFault("cuts", "increment/1", ((
        WRITER, "            files.publish(self.folder, self.step)\n",
        "            files.prune(self.folder, 0, [] if self._base is None else [self._base])\n            files.publish(self.folder, self.step)\n",
    ),)),
    "a new folder's name that is not synced": FileFault("cuts", "first/1", ((
        FILES, "        path.mkdir(exist_ok=True)\n        sync(path.parent)\n", "        path.mkdir(exist_ok=True)\n",
    ),)),
    "a text that is renamed before it is synced": FileFault("cuts", "first/1,notes/1", ((
        WHOLE, "    sync(temporary)\n    temporary.replace(path)\n", "    temporary.replace(path)\n",
    ),)),
    "a text whose name is not synced": FileFault("cuts", "first/1,notes/1", ((
        WHOLE, "    temporary.replace(path)\n    sync(path.parent)\n", "    temporary.replace(path)\n",
    ),)),
    "an attempt that is not synced": FileFault("cuts", "notes/1", ((
        ATTEMPTS, "            os.fsync(file.fileno())\n", "",
    ),)),
}  # fmt: skip


def install() -> None:
    """Makes the fault that the environment names, if it names one; before hpcrec is imported."""
    if name := os.environ.get(VARIABLE):
        sys.meta_path.insert(0, _Seeded(FAULTS[name].changed()))
