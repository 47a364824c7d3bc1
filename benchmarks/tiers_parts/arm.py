"""One run among several that take turns: a launch of ``run_rank.py`` in a memory group. Knows files and processes."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from speed_parts import launch
from tiers_parts.limits import Group

RANK = str(Path(__file__).resolve().parent / "run_rank.py")
LOOK_EVERY_S = 0.005
WATCH_EVERY_S = 0.05
SETTINGS = ("topology.mode=fused", "dense.reducer=mpi")


class EndedError(Exception):
    """A run is no more: what it said at last."""


class Arm:
    """A run of so many ranks, begun; ``ask`` "open" waits until it is there.

    Parameters
    ----------
    folder : Path
        Of its own.
    config : Path
    settings : sequence of "section.key=value"
    ranks : int
    limit_bytes : int, optional
        Of all its ranks and their launcher.
    """

    def __init__(
        self, folder: Path, config: Path, settings: Sequence[str], ranks: int, limit_bytes: int | None = None
    ) -> None:
        folder.mkdir(parents=True)
        self._folder, self._asked = folder, 0
        job = {"config": str(config), "settings": [*SETTINGS, *settings], "asker": os.getpid()}
        (folder / "job.json").write_text(json.dumps(job))
        self.group, self.limit_bytes, self.most_bytes = Group(folder.name), limit_bytes, 0
        if limit_bytes is not None:
            self.group.limit(limit_bytes)
        self._said = folder / "said"
        line = self.group.inside([*launch.hpcrec_run(ranks), RANK, str(folder)])
        with self._said.open("w") as said:
            self._process = subprocess.Popen(
                line, stdout=said, stderr=said, text=True, env={**os.environ, **launch.environment(ranks)}
            )
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._watched, daemon=True)
        self._watch.start()

    def _watched(self) -> None:
        while not self._over.wait(WATCH_EVERY_S):
            self.most_bytes = max(self.most_bytes, self.group.taken_bytes)

    def ask(self, what: str, **about: Any) -> list[dict[str, Any]]:
        """What each rank says of a command.

        Raises
        ------
        EndedError
            The run has failed, or was killed at its limit.
        """
        answer = self._folder / f"answer-{self._asked}"
        self._tell({"do": what, **about})
        while not answer.exists():
            if self._process.poll() is not None:
                at = f", at its limit of {self.limit_bytes / 1e6:.0f} MB" if self.limit_bytes and self._killed() else ""
                raise EndedError(f"ended with {self._process.returncode}{at}: {self._said.read_text()[-2000:]}")
            time.sleep(LOOK_EVERY_S)
        found: list[dict[str, Any]] = json.loads(answer.read_text())
        return found

    def _killed(self) -> bool:
        """Whether the system has killed a process of the group."""
        found = dict(line.split() for line in (self.group.path / "memory.oom_control").read_text().splitlines())
        return int(found.get("oom_kill", 0)) > 0

    def _tell(self, command: Mapping[str, Any]) -> None:
        hidden = self._folder / ".command"
        hidden.write_text(json.dumps(command))
        hidden.rename(self._folder / f"command-{self._asked}")
        self._asked += 1

    def end(self) -> None:
        """Ends the run; whatever it is doing, where ``ask`` has not returned."""
        if self._process.poll() is None:
            self._tell({"do": "end"})
            try:
                self._process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                launch.ended(self._process)
        self._over.set()
        self._watch.join()
        self.group.__exit__(None, None, None)
        if self._process.returncode:
            print(f"{self._folder.name} ended with {self._process.returncode}", file=sys.stderr)
