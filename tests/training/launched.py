"""Whole runs as jobs of several ranks, with a fault at a chosen call on a chosen rank: see ``Fault``.

``place`` is ``module:name`` or ``module:Class.name`` of a function that the run calls; the fault comes in place of its
n-th call. What is patched is the process of that rank alone.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpcrec.config import Config, to_toml
from tests.comm.job import Job

ROOT = Path(__file__).resolve().parents[2]
BODY = """
import importlib, json, signal
sys.path.insert(0, {root!r})
import torch, types
# An optimizer imports torch's compiler only to be left alone by it: 800 modules, 1.6 s of each rank.
compiler = types.ModuleType("torch._dynamo")
compiler.disable, compiler.graph_break = (lambda function, *_, **__: function), (lambda *_, **__: None)
sys.modules["torch._dynamo"] = torch._dynamo = compiler
from hpcrec.api import commands
from hpcrec.config import load_config
from hpcrec.training.session import Session

fault = json.loads({fault!r})
exec({patches!r})
def install(rank, place, call, how):
    module, _, path = place.partition(":")
    owner = importlib.import_module(module)
    *above, name = path.split(".")
    for part in above:
        owner = getattr(owner, part)
    original, calls = getattr(owner, name), [0]
    def wrapper(*args, **kwargs):
        calls[0] += 1
        if calls[0] != call:
            return original(*args, **kwargs)
        open(sys.argv[1], "w").close()
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "sleep":
            time.sleep(60)
        if isinstance(how, int):
            args[0].fail(writes=path.endswith(".write"), after=0, error=how)
            return original(*args, **kwargs)
        raise KeyError("injected into " + place)
    setattr(owner, name, wrapper)
if fault is not None and fault["rank"] == world.rank:
    install(**fault)
if fault is None:
    open(sys.argv[1] + ".pid-" + str(world.rank), "w").write(str(os.getpid()))
    ready()
sys.exit(commands.train(load_config({config!r})))
"""


@dataclass(frozen=True)
class Fault:
    """``how`` (``raise``, ``kill`` or ``sleep``) in place of the ``call``-th call of ``place`` on ``rank``.

    Where ``how`` is an ``errno``, ``place`` is ``Tier.read`` or ``Tier.write``, and the disk fails so from then on.
    """

    rank: int
    place: str
    call: int
    how: str | int = "raise"


LITTLE_MEMORY = """
from hpcrec.disk import log
from hpcrec.disk.common import Settings
from hpcrec.embedding.stores.disk import DiskStore
DiskStore.of_tier = Settings(piece_bytes=4096, segment_bytes=8192)
log._MORE_SEGMENTS = 1
DiskStore._left_for_rows = lambda self, own: 1
"""  # every step reads rows from the disk, and what it changes leaves the memory, and files are cleaned


def launch(folder: Path, config: Config, fault: Fault | None = None, ranks: int = 3, patches: str = "") -> Job:
    """Starts a training run; its job counts as ready when the fault happens (without one, when ranks have started).

    ``patches`` is a program that each rank runs first.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "config.toml"
    file.write_text(to_toml(config))
    (folder / "ready").unlink(missing_ok=True)  # of an earlier run
    told: Any = None if fault is None else asdict(fault)
    body = BODY.format(root=str(ROOT), fault=json.dumps(told), config=str(file), patches=patches)
    return Job(folder, body, ranks)
