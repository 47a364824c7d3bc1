"""Bad data that one rank alone sees ends all ranks, within seconds and with one message."""

import shutil
from pathlib import Path

import pytest

from tests.bad_input.test_data import chunk
from tests.comm.job import Job
from tests.forked import ROOT
from tests.training.runs import write_data

BODY = """
sys.path.insert(0, {root!r})
from pathlib import Path
from hpcrec.build.session import open_session
from tests.training.runs import config_for
folder = Path({folder!r}) / ("mine" if world.rank == 1 else "theirs")
config = config_for(folder, train={{"batch_size": 50, "steps": 10000}})
if {other}:
    ready()
with open_session(config) as session:
    if not {other}:
        ready()  # what takes long has been imported
    for step in session.steps():
        step.run()
"""


@pytest.mark.parametrize("kind", ["corrupt later", "another"])
def test_bad_data_on_one_rank(tmp_path: Path, kind: str) -> None:
    for name in ("mine", "theirs"):
        (tmp_path / name).mkdir()
    write_data(tmp_path / "theirs" / "data.h5", samples=600, seed=1)
    mine = tmp_path / "mine" / "data.h5"
    shutil.copy(tmp_path / "theirs" / "data.h5", mine)
    body = BODY.format(root=str(ROOT), folder=str(tmp_path), other=kind == "another")
    if kind == "another":
        write_data(mine, samples=600, seed=2)
        wanted = "rank 1 reads another data set there than rank 0"
    else:
        chunk(mine)
        wanted = f"{mine}: /dense: rows ["
    ended = Job(tmp_path, body, ranks=3).end(limit_s=5)
    assert ended.code == 1, ended.err
    assert wanted in ended.err and ended.err.count("hpcrec: error:") == 1 and "Traceback" not in ended.err, ended.err
