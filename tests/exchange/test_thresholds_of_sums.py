"""Codec ``dct`` where owners of a host add vectors before they cross: elements of sums are chosen, not of parts."""

import itertools
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hpcrec.build.reading import open_for_reading
from hpcrec.build.session import open_session
from hpcrec.checkpoint import state
from hpcrec.checkpoint.checkpoint import find_checkpoint
from hpcrec.comm.ledger import TAGS
from hpcrec.training.session import Session
from tests.exchange.test_thresholds import OF_VECTOR, config, masking, total
from tests.together import on_every_rank
from tests.training.runs import finished, gather_tables, global_batches, write_data
from tests.training.test_equivalence import roles_for
from tests.training.test_host_sums import HOSTS, config_of, on_hosts
from tests.training.test_nonfinite import spoil

pytestmark = pytest.mark.filterwarnings("ignore:exchange.dct.density = .* leaves")

COMM = MPI.COMM_WORLD
TABLES = ("user", "item", "history", "tag")
ROWS: dict[str, Any] = {"share": {}, "tables": {table: {"shard": "row"} for table in TABLES}}
OWNERS_APART = {"mode": "split", "owners": 2}  # of 3 or 4 ranks, the first two: on a host of their own, below
FEATURE = {"threshold": "feature", "density": 0.3, "every": 2, "values": "fp32"}


def crossed(session: Session, tag: str) -> int:
    """Bytes between hosts, of all ranks."""
    return int(total(session, session.parts.world.ledger.snapshot()[TAGS.index(tag), 1]))


@pytest.mark.parallel([3, 4])
@pytest.mark.in_turn
def test_sums_are_thresholded_whole(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one process does it that has whole vectors; flat, an element at least crosses of each part."""
    write_data(folder / "data.h5")
    on_hosts(monkeypatch, (0, 0, 1, 1)[: COMM.size])
    kept = {}
    for path in ("levels", "flat"):
        wanted = config(folder, OWNERS_APART, threshold="vector", density=OF_VECTOR, every=1000)
        tables = replace(wanted.embedding, tables={t: replace(wanted.embedding.tables["user"], shard="row")
                                                   for t in wanted.embedding.tables})  # fmt: skip
        wanted = replace(wanted, embedding=tables, exchange=replace(wanted.exchange, path=path))
        with open_session(wanted) as session:
            reference = masking(session, wanted)
            assert bool(session.parts.exchange.layout.added) == (path == "levels")
            for step, batch in zip(session.steps(), global_batches(session, session.total_steps), strict=True):
                loss, expected = total(session, step.run()), reference.step_of(batch)
                assert path == "flat" or loss == pytest.approx(expected, rel=1e-5)
            for table, rows in gather_tables(session).items() if path == "levels" else ():
                np.testing.assert_allclose(rows, reference.rows(table), rtol=0, atol=1e-5, err_msg=table)
            masks = session.parts.exchange.masks
            kept[path] = total(session, 0 if masks is None else masks.kept), crossed(session, "gradients")
    assert kept["levels"][0] == reference.kept < kept["flat"][0]
    assert kept["levels"][1] < kept["flat"][1]


@pytest.mark.parallel([3, 4])
@pytest.mark.in_turn
def test_density_one_is_the_codec_of_its_values(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over maps of hosts and roles, with a step that is left out and evaluations between steps."""
    write_data(folder / "data.h5")
    data = {name: str(folder / "data.h5") for name in ("train", "validation")}
    for hosts, roles in zip(HOSTS[COMM.size], itertools.cycle(roles_for(COMM.size)), strict=False):
        on_hosts(monkeypatch, hosts)
        found = []
        for codec in ({"codec": "bf16"}, {"codec": "dct", "dct": {"density": 1.0, "values": "bf16"}}):
            more: dict[str, Any] = {"train": {"dtype": "float32", "nonfinite": "skip"}, "topology": roles, "data": data}
            losses = []
            with open_session(config_of(folder, "levels", exchange=codec, embedding=ROWS, **more)) as session:
                for step in session.steps():
                    if step.number == 2:
                        spoil(session, step)
                    losses.append(step.run())
                    if step.number == 3:
                        losses.append(session.evaluate("validation")["logloss"])
                assert session.guard.skipped == 1
                found.append((losses, gather_tables(session)))
        with on_every_rank():
            np.testing.assert_array_equal(found[0][0], found[1][0], err_msg=f"{hosts} {roles}")
            for table, rows in found[0][1].items():
                np.testing.assert_array_equal(rows, found[1][1][table], err_msg=f"{hosts} {roles}: {table}")


@pytest.mark.parallel([3, 4])
@pytest.mark.in_turn
def test_thresholds_of_features_go_on_and_are_taken_up_on_other_hosts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bits on the same hosts; on others runs go on with the thresholds that were saved."""
    write_data(folder / "data.h5")
    keep: dict[str, Any] = {
        "checkpoint": {"every": 3},
        "embedding": ROWS,
        "train": {"dtype": "float32", "steps": 6},
        "data": {"train": str(folder / "data.h5"), "chunk": 8, "window": 3},
        "exchange": {"codec": "dct", "dct": {**FEATURE, "every": 1000}},
    }
    on_hosts(monkeypatch, (0, 0, 1, 1)[: COMM.size])

    def taus(session: Session) -> Any:
        masks = session.parts.exchange.masks
        found = [] if masks is None else masks.tau_GS[0][~masks.whole_S].tolist()
        return COMM.allgather(
            [None if np.isnan(tau) else tau for tau in found]
        )  # an owner's readers may be on its host

    def both(session: Session) -> Any:
        return taus(session), gather_tables(session)

    wanted_taus, wanted = finished(config_of(folder / "whole", "levels", **keep), both)
    for name, hosts in (("the same", (0, 0, 1, 1)), ("others", (0, 1, 1, 0)), ("one", (0, 0, 0, 0))):
        on_hosts(monkeypatch, (0, 0, 1, 1)[: COMM.size])
        config_here = config_of(folder / name, "levels", **keep)
        before = finished(config_here, taus, stop_at=3)
        found = find_checkpoint(config_here.run.folder)
        on_hosts(monkeypatch, hosts[: COMM.size])
        with open_session(config_here) as session:
            state.load(session, found, resume=True)
            taken_up = taus(session)
            for step in session.steps():
                step.run()
            after, rows = both(session)
        with on_every_rank():
            assert found is not None and any(before)
            assert before == taken_up
            if name == "the same":
                assert after == wanted_taus
                for table, of in rows.items():
                    np.testing.assert_array_equal(of, wanted[table], err_msg=table)


@pytest.mark.parallel([3])
def test_who_reads_a_run_that_chose_of_sums_is_warned(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On as many ranks too: readers add nothing. Checkpoints say of which features."""
    write_data(folder / "data.h5")
    on_hosts(monkeypatch, (0, 0, 1))
    data = {name: str(folder / "data.h5") for name in ("train", "test")}
    codec: dict[str, Any] = {"codec": "dct", "dct": {"density": 0.5}}
    more: dict[str, Any] = {"embedding": ROWS, "data": data, "train": {"dtype": "float32", "steps": 3}}
    for path, expected in (("levels", True), ("flat", False)):
        ran = config_of(folder / path, path, exchange=codec, topology=OWNERS_APART, **more)
        finished(ran, lambda session: None, stop_at=3)
        found = find_checkpoint(ran.run.folder)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            open_for_reading(ran, None, "last").close()
        said = [str(w.message) for w in told if "vectors that hosts had added, of history" in str(w.message)]
        with on_every_rank():
            assert bool(said) == (expected and COMM.rank == 0), said
            assert found is None or ("summed" in found.state) == expected
