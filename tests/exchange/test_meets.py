"""Operators whose lookups have to meet are computed on the dense rank; those that ask for sequences are refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mpi4py import MPI
from torch import Tensor, nn

from hpcrec.build.session import open_session
from hpcrec.comm.topology import assign_roles
from hpcrec.comm.world import World
from hpcrec.errors import ConfigError
from hpcrec.exchange.offers import Offers
from hpcrec.operators import FM2, Operator, WideSum
from hpcrec.operators.base import is_pooled, meets
from hpcrec.types import Lookup
from tests.exchange.test_exchange import STEPS, Reference, global_batch, layouts_of, tables
from tests.exchange.test_partial import BATCH, DEEP, KINDS, WIDE, WIDTH, layout_of, loss_of, run
from tests.together import on_every_rank
from tests.training.runs import config_for, write_data

MET, OTHERS = (*DEEP[1:3], DEEP[4]), (DEEP[0], DEEP[3])  # the others are features that have wide tables


class Product:
    """The product of all its vectors, element by element: there is none of some of them."""

    lookups = MET
    width = WIDTH
    shapes = ((WIDTH,),)
    by_column = (False,)
    splits_bags = True
    meets = True

    def partial(self, pooled_BFD: Tensor) -> tuple[Tensor, ...]:
        assert pooled_BFD.shape[1:] == (len(MET), WIDTH), "not all of its lookups"
        return (pooled_BFD.prod(1),)

    def reduce(self, a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        raise AssertionError("there is one partial result")

    def finish(self, partials: tuple[Tensor, ...]) -> Tensor:
        return partials[0]


class Meeting(FM2):
    """One that could be computed anywhere, but says that it cannot."""

    meets = True


class Sequences(FM2):
    pooled = False


def results_of(pooled: list[Tensor]) -> list[Tensor]:
    user, item, history, tags, country, *wide = pooled
    return [item * history * country, (user * tags).sum(1), (wide[0] + wide[1]).squeeze(1)]


@pytest.mark.in_turn
@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_what_meets_is_computed_on_dense_ranks_and_equals_torch(kind: str) -> None:
    """Under ``partial``, where the sums beside it are computed at owners, and to the bit as under ``pooled``."""
    comm = MPI.COMM_WORLD
    operators = {"product": Product(), "fm2": FM2(lookups=OTHERS, width=WIDTH), "wide": WideSum(lookups=WIDE)}
    for _, roles in layouts_of(comm.size):
        world = World(comm, lambda hosts, roles=roles: assign_roles(hosts, **roles))
        seen, initial, rows, layout = run(world, operators, kind, "partial", "adagrad")
        assert "product" not in layout.substituted
        assert bool(layout.substituted) == (kind in ("table", "column", "mixed"))
        pooled, _, pooled_rows, _ = run(world, operators, kind, "pooled", "adagrad")
        reference = Reference(tables("adagrad"), initial)
        for step in range(STEPS):
            ids, weights = global_batch(step, BATCH)
            results = results_of(reference.pooled(ids, weights))
            start, stop, mine = seen[step] if world.topology.is_dense else (0, 0, ())
            with on_every_rank():
                for found, expected in zip(mine, results[: len(mine)], strict=True):
                    np.testing.assert_allclose(found, expected[start:stop].detach().numpy(), rtol=0, atol=1e-12)
                assert not mine or mine[0].tobytes() == pooled[step][2][0].tobytes()
            loss_of(results).backward()
            reference.step(ids, step + 1)
        for name, expected in reference.rows.items():
            np.testing.assert_allclose(rows[name], expected.detach().numpy(), rtol=0, atol=1e-12, err_msg=name)
            assert not np.array_equal(rows[name], initial[name]), "nothing was learned"
            assert name not in ("item", "country") or rows[name].tobytes() == pooled_rows[name].tobytes(), name
        world.close()


@pytest.mark.parallel([1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_what_meets_never_stays_and_keeps_what_it_shares_from_staying(kind: str) -> None:
    """Whatever else might; the same operator that does not say so stays where its tables can be asked for it."""
    world = World(MPI.COMM_WORLD, lambda hosts: assign_roles(hosts, mode="fused"))
    wide = WideSum(lookups=WIDE)
    asked: dict[str, dict[str, Operator]] = {
        "alone": {"meeting": Meeting(lookups=DEEP, width=WIDTH), "wide": wide},
        "shared": {"meeting": Meeting(lookups=DEEP[:3], width=WIDTH), "fm2": FM2(lookups=DEEP, width=WIDTH)},
        "without": {"meeting": FM2(lookups=DEEP, width=WIDTH), "wide": wide},
    }
    found: dict[str, dict[str, tuple[Lookup, ...]]] = {}
    for name, operators in asked.items():
        specs, families, layout = layout_of(world, operators, kind, "partial", "sgd", {"user", "item", "country"})
        found[name] = layout.substituted
        lookups = list(dict.fromkeys(k for o in operators.values() for k in o.lookups))
        offers = Offers(
            specs, families, lookups, operators, set(), forms={}, default_form="auto", replicable={}, dense=(0,)
        )  # fmt: skip
        stays = [one.substituted for one in offers.counted()]
        assert name == "without" or not any("meeting" in some for some in stays)
    assert "meeting" not in found["alone"] and "meeting" not in found["shared"]
    assert not set(found["shared"].get("fm2", ())) & set(DEEP[:3])
    assert ("meeting" in found["without"]) == (kind in ("table", "column", "mixed"))
    assert ("fm2" in found["shared"]) == (kind in ("table", "column", "mixed"))
    world.close()


def test_operators_that_do_not_say_so_are_pooled_and_split() -> None:
    plain = FM2(lookups=DEEP, width=WIDTH)
    assert not hasattr(plain, "pooled") and not hasattr(plain, "meets")
    assert is_pooled(plain) and not meets(plain) and isinstance(plain, Operator)
    assert not is_pooled(Sequences(lookups=DEEP, width=WIDTH)) and meets(Product())


class Own(nn.Module):
    """A model that has one operator, of the class that it is given, over all features."""

    def __init__(self, features: Any, n_dense: int, *, width: int, n_labels: int = 1, unpooled: bool) -> None:
        super().__init__()
        lookups = tuple(Lookup(feature=f.name, table=f.name) for f in features)
        self.operators = {"seen": (Sequences if unpooled else Meeting)(lookups=lookups, width=width)}
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, inputs: Any, dense_BN: Tensor) -> Tensor:
        return inputs["seen"] + self.bias


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("form", ["pooled", "rows", "partial", "auto"])
def test_sequences_are_refused_on_all_ranks_before_anything_is_made(folder: Path, form: str) -> None:
    """The model's other operator is trained."""
    write_data(folder / "data.h5")

    def config(*, unpooled: bool) -> Any:
        own = {"name": "tests.exchange.test_meets:Own", "width": 6, "options": {"unpooled": unpooled}, "pooling": {}}
        chosen = {"auto_steps": 1} if form == "auto" else {}
        return config_for(folder, model=own, exchange={"form": form, **chosen})

    wanted = (
        r"operator 'seen', a Sequences, asks for its vectors unpooled .* Allowed: pooled = True, or no such attribute"
    )
    with pytest.raises(ConfigError, match=wanted):
        open_session(config(unpooled=True))
    with open_session(config(unpooled=False)) as session:
        losses = [step.run() for step in session.steps()]
        assert len(losses) == session.total_steps
        assert bool(session.parts.exchange.layout.meetings) == (form == "partial")  # of tables on one host
