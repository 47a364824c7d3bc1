"""Forms whose rows dense ranks keep: ``kept`` is ``rows``, ``late`` is one process that learns as late."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hpcrec.api import commands
from hpcrec.build.auto import _unevenly_held
from hpcrec.build.memory import predict_memory
from hpcrec.build.session import open_session
from hpcrec.checkpoint import state
from hpcrec.config import Config
from hpcrec.embedding.shards import Family
from hpcrec.embedding.stores import STORES
from hpcrec.errors import ConfigError, HpcrecError
from hpcrec.exchange.copies import Served
from hpcrec.exchange.forms.conditional import Keeping
from hpcrec.exchange.rules import OwnerRules
from hpcrec.training.session import Session, Step
from hpcrec.types import Ints
from tests.devices import device_or_skip
from tests.policy.test_hybrid import OPTIMIZERS, config_of, gone_on, results, same_bits, trained
from tests.policy.test_hybrid_stores import FewPlaces, dynamic_of, grown
from tests.stand_ins.file_store import FileStore
from tests.stand_ins.kept_form import Kept, KeptCopies, LateReference, OfBundle, put_kept
from tests.together import on_every_rank
from tests.training.runs import global_batches, reference_for, write_data
from tests.training.test_equivalence import Cases, roles_for, shared_out_or_all_cases
from tests.training.test_nonfinite import SKIP, spoil

COMM = MPI.COMM_WORLD
WAYS = ("rows", "pooled", "pooled, by columns")  # how tables are placed; the form is replaced


def with_form(config: Config, form: str) -> Config:
    return replace(config, exchange=replace(config.exchange, form=form))


def kept_of(session: Session) -> list[OfBundle]:
    """Those of this rank."""
    side = session.parts.exchange._dense_side
    halves = [] if side is None or side.copies is None else [half for half, _ in side.copies.halves]
    return [of for half in halves if isinstance(half, KeptCopies) for of in half.of]


@pytest.mark.parallel([1, 2, 3, 4])
@shared_out_or_all_cases
def test_kept_is_rows_bit_for_bit(cases_of: Cases, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(folder / "data.h5")
    put_kept(monkeypatch)
    codecs: tuple[dict[str, Any], ...] = (
        {},
        {"exchange": {"codec": "bf16"}, "train": {"dtype": "float32"}},
        {"exchange": {"codec": "fp16"}, "train": {"dtype": "float32"}},
    )
    for roles, way, optimizer, codec in cases_of(WAYS, OPTIMIZERS, codecs):
        more = {**codec, "topology": roles, "train": {**codec.get("train", {}), "steps": 9}, "checkpoint": {"every": 5}}
        more["exchange"] = {**codec.get("exchange", {}), "ids": "read" if optimizer == "adam" else "routed"}
        config = config_of(folder, None, way, optimizer, **more)
        expected = trained(with_form(config, "rows"))
        with open_session(with_form(config, "kept")) as session:
            losses = [step.run() for step in session.steps()]
            found = {**results(session), "losses": np.array(COMM.allgather(losses))}
            counted = COMM.allreduce(np.array([[of.asked, of.sent] for of in kept_of(session)] or [[0, 0]]).sum(axis=0))
        about = (roles, way, optimizer, codec)
        if codec.get("exchange", {}).get("codec") == "fp16":  # blocks that are scaled together are others here
            with on_every_rank():
                for name, values in expected.items():
                    np.testing.assert_allclose(found[name], values, rtol=0, atol=0.002, err_msg=str((name, about)))
        else:
            same_bits(found, expected, about)
        with on_every_rank():
            assert 0 < counted[1] == counted[0]  # who reads a row changes it in the same step


@pytest.mark.parallel([1, 2, 3, 4])
@shared_out_or_all_cases
def test_late_is_one_process_that_learns_as_late(
    cases_of: Cases, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also past a drain point, and where steps are left out: what is held back is pushed all the same."""
    write_data(folder / "data.h5")
    put_kept(monkeypatch)
    for roles, way, optimizer, left_out in cases_of(WAYS, OPTIMIZERS, ((), (2, 3))):
        more = {"topology": roles, "checkpoint": {"every": 5}, "train": {**SKIP, "steps": 9}}
        config = with_form(config_of(folder, None, way, optimizer, **more), "late")
        with open_session(config) as session:
            layout = session.parts.exchange.layout
            late = {t: late_in(family) for family in layout.families for t in family.tables}
            reference = reference_for(session, config)
            one, batches, held = LateReference(reference, late, drains=(5, 9)), global_batches(session, 9), []
            for step in session.steps():
                if step.number in left_out:
                    spoil(session, step)
                loss = session.parts.world.main.allreduce(np.array([step.run()]))[0]
                expected = one.step(batches[step.number], left_out=step.number in left_out)
                held.append(COMM.allreduce(sum(len(of.held_back) for of in kept_of(session))))
                with on_every_rank():
                    assert math.isnan(loss) if step.number in left_out else abs(loss - expected) < 1e-12, step.number
            found = results(session)
            asked, sent = COMM.allreduce(
                np.array([[f.asked, f.sent] for f in kept_of(session)] or [[0, 0]]).sum(axis=0)
            )
        with on_every_rank():
            assert 0 < sent < asked, "owners send only what has changed"
            assert [n > 0 for n in held] == [done not in (5, 9) and done - 1 not in left_out for done in range(1, 10)]
            for name in reference.tables:
                np.testing.assert_allclose(found[name], reference.rows(name), rtol=0, atol=1e-11, err_msg=name)


def late_in(family: Family) -> Callable[[Ints], np.ndarray]:
    return lambda ids: (family.deal(ids)[1] if family.kind == "row" else ids) % 2 == 1


@pytest.mark.in_turn
@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("form", ["kept", "late"])
def test_a_step_left_out_where_not_all_owners_keep_rows(
    form: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of other forms nothing is learned then, at owners with copies to judge, without, and of replicated tables."""
    write_data(folder / "data.h5")
    put_kept(monkeypatch)

    def spoiled(session: Session, step: Step) -> None:
        if step.number in (2, 3):
            spoil(session, step)

    last = {"shard": "table", "owners": [COMM.size - 1]}
    tables = {"user": {"shard": "table", "owners": [0]}, "item": last, "tag": {"shard": "replicate"}}
    config = config_of(folder, None, "rows", train={**SKIP, "steps": 6}, embedding={"tables": tables})
    config = replace(config, exchange=replace(config.exchange, form="pooled", forms={"user": form}))
    found = trained(config, spoiled)
    rows = replace(config, exchange=replace(config.exchange, forms={"user": "rows"}))
    expected = trained(rows, spoiled)
    with on_every_rank():
        assert all(np.isfinite(found[name]).all() for name in ("user", "item", "tag"))
    if form == "kept":
        same_bits(found, expected)


@pytest.mark.in_turn
@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("evict", ["lru", "lfu"])
def test_rows_that_other_ids_get(evict: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An id that has its row again, and one that has another's, are not answered by a copy of before."""
    write_data(folder / "data.h5")
    put_kept(monkeypatch)
    for roles in roles_for(COMM.size):
        config = dynamic_of(folder, None, evict, roles, checkpoint={"every": 6})
        expected = grown(with_form(config, "rows"))
        same_bits(grown(with_form(config, "kept")), expected, roles)
        late = grown(with_form(config, "late"))
        assert all(np.isfinite(values).all() for values in late.values())


@pytest.mark.parallel([1, 2, 3, 4])
@shared_out_or_all_cases
def test_stores_with_a_cache(cases_of: Cases, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are pushed and were not asked for are brought into the cache; other forms read the same table."""
    write_data(folder / "data.h5")
    put_kept(monkeypatch)
    for roles, form, optimizer in cases_of(("kept", "late"), OPTIMIZERS):
        config = config_of(folder, None, "rows", optimizer, topology=roles, train={"steps": 12})
        forms = {"user": "rows", "history": "pooled"}  # history reads item's table
        mixed = replace(config, exchange=replace(config.exchange, form=form, forms=forms))
        expected = trained(mixed)
        for store in (FileStore, FewPlaces):
            with monkeypatch.context() as patch:
                patch.setitem(STORES, "dram", store)
                same_bits(trained(mixed), expected, (roles, form, optimizer, store))


@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("device", ["emulated", "cuda"])
@shared_out_or_all_cases
def test_on_devices(cases_of: Cases, device: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows there, all of them or a cache of them, and the model too."""
    device_or_skip(device)
    write_data(folder / "data.h5")
    put_kept(monkeypatch)
    for roles, way, form, memory in cases_of(WAYS, ("kept", "late"), (None, 6000)):
        config = with_form(config_of(folder, None, way, topology=roles, train={"steps": 5}), form)
        expected = trained(config)
        rows_there = replace(config, store=replace(config.store, name="gpu", device=device, memory_bytes=memory))
        same_bits(trained(rows_there), expected, (roles, way, form, memory))
        there = trained(replace(rows_there, dense=replace(config.dense, device=device)))
        with on_every_rank():
            for name, values in expected.items():
                np.testing.assert_allclose(there[name], values, rtol=0, atol=1e-10, err_msg=name)


@pytest.mark.parallel([1, 3])
def test_the_summary_and_the_memory_formula_ask_the_form(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(folder / "data.h5")
    put_kept(monkeypatch)
    more = {"topology": roles_for(COMM.size)[0], "train": {"steps": 6}, "run": {"folder": str(folder / "run")}}
    config = with_form(config_of(folder, None, "rows", **more), "late")
    assert commands.train(config) == 0
    found = json.loads((folder / "run" / "summary.json").read_text())["copies"]
    with on_every_rank():
        assert 0 < found["kept_sent"] < found["kept_asked"]
        for rank in predict_memory(config, [0] * COMM.size):
            assert rank.terms["kept rows"] > 0
        for rank in predict_memory(with_form(config, "rows"), [0] * COMM.size):
            assert "kept rows" not in rank.terms


@pytest.mark.in_turn
@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("form", ["kept", "late"])
def test_interrupted_is_uninterrupted(form: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(folder / "data.h5")
    put_kept(monkeypatch)
    for roles in roles_for(COMM.size):
        more = {
            "topology": roles,
            "checkpoint": {"every": 4},
            "train": {"steps": 9},
            "run": {"folder": str(folder / "run")},
        }
        config = with_form(config_of(folder, None, "rows", **more), form)
        expected = trained(config)
        expected.pop("losses")
        with open_session(config) as session:
            for step in session.steps():
                step.run()
                if session.step == 3:
                    with on_every_rank(), pytest.raises(HpcrecError, match="what dense ranks hold back or keep"):
                        state.save(session, Path(config.run.folder), {})
                    with on_every_rank(), pytest.raises(HpcrecError, match="would lack gradients"):
                        session.evaluate("train")
                if session.step == 4:
                    assert all(not of.copies for of in kept_of(session))
                    state.save(session, Path(config.run.folder), {})
                    break
        same_bits(gone_on(config), expected, roles)


@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.in_turn
def test_evaluations_read_owners_and_leave_copies(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(folder / "data.h5")
    put_kept(monkeypatch)
    for roles in roles_for(COMM.size):
        more = {"topology": roles, "train": {"steps": 9, "eval_every": 3}, "checkpoint": {"keep_best": False}}
        more["data"] = {"validation": str(folder / "data.h5")}
        config = config_of(folder, None, "rows", **more)
        seen: dict[str, list[Any]] = {"rows": [], "kept": []}
        for form, found in seen.items():
            with open_session(with_form(config, form)) as session:
                for step in session.steps():
                    step.run()
                    if session.step % 3 == 0:
                        before = [dict(of.copies) for of in kept_of(session)]
                        found.append(session.evaluate("validation")["logloss"])
                        assert before == [of.copies for of in kept_of(session)]
        assert seen["kept"] == seen["rows"], roles


@pytest.mark.parallel([1, 2, 3])
def test_what_does_not_go_with_copies_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(folder / "data.h5")
    put_kept(monkeypatch)
    dct = {"exchange": {"codec": "dct", "dct": {"density": 0.4}}, "train": {"dtype": "float32"}}
    for roles in roles_for(COMM.size)[:1]:
        for delay, more, why in ((1, {}, "policy.name is 'hybrid'"), (None, dct, "exchange.codec is 'dct'")):
            config = with_form(config_of(folder, delay, "pooled", topology=roles, **more), "kept")
            with on_every_rank(), pytest.raises(ConfigError, match=why):
                open_session(config)


def test_owners_that_would_judge_copies_differently_are_found() -> None:
    """By columns, where some owner has none of a table that a feature reads which does not read all of them."""
    widths = {"wide": SimpleNamespace(width=6), "narrow": SimpleNamespace(width=1)}

    def layout(kind: str, reads: tuple[str, ...], owners: int) -> SimpleNamespace:
        family = SimpleNamespace(kind=kind, holders=range(owners), tables=tuple(widths), features=("a", "b"))
        tables_of = {"a": ("wide", "narrow"), "b": reads}
        return SimpleNamespace(
            conditional=("a",), family_of={"a": family, "b": family}, tables_of=tables_of, tables=widths
        )

    assert _unevenly_held(layout("column", ("narrow",), 2)) == "a"  # type: ignore[arg-type]
    for fine in (
        layout("column", ("narrow", "wide"), 2),
        layout("column", ("narrow",), 1),
        layout("row", ("wide",), 2),
    ):
        assert _unevenly_held(fine) is None  # type: ignore[arg-type]


def test_no_copy_is_valid_of_a_row_that_was_given_to_an_id_anew() -> None:
    """Also where nothing was learned of it since, as in steps that are left out."""
    lives = np.zeros(5, np.int64)
    family = SimpleNamespace(name="d", dynamic=True, tables=("d",), part_rows=lambda part: 4)
    store = SimpleNamespace(
        lives=lambda name: lives, place=lambda table: (0, SimpleNamespace(base=0)), dtype=np.dtype("f4")
    )
    entry = SimpleNamespace(form=Kept, family=family, part=0)
    leg = SimpleNamespace(entries=(entry,), apart=(SimpleNamespace(entry=0, width=2, table="d", columns=(0, 2)),))
    rules = OwnerRules(leg, store, 1, Keeping())  # type: ignore[arg-type]

    def follows(row: int, has: bool, *, train: bool = True) -> bool:
        served = Served(np.zeros(1, np.int64), np.zeros(1, np.int64), np.array([row]))
        rules.answer(served, np.array([has]), train=train)
        return bool(served.follows_K[0])

    assert follows(2, has=False) and not follows(2, has=True)  # nobody has learned
    lives[2] += 1
    assert follows(2, has=False, train=False) and follows(2, has=True), "an evaluation leaves copies as they are"
    assert not follows(2, has=True)
    assert follows(4, has=True), "ids without a row are always sent"
