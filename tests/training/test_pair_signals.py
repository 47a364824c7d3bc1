"""Signals of pairs of features: by their definitions, by differences, a sample at a time; those of ranks add up."""

import numpy as np
import pytest
import torch

from hpcrec.errors import ConfigError
from hpcrec.models import build_model
from hpcrec.training.pair_signals import PairSignals, signals_of
from hpcrec.types import Feature

FEATURES = tuple(Feature(name=f"f{n}", cardinality=9) for n in range(4))
WIDTH, BATCH = 6, 5


def built(n_dense: int):
    torch.manual_seed(1)
    options = {"bottom": [4], "top": [7]}
    return build_model("dlrm", FEATURES, n_dense, width=WIDTH, options=options).double()


def given(n: int, n_dense: int, seed: int):
    generator = torch.Generator().manual_seed(seed)
    block = torch.randn(n, len(FEATURES), WIDTH, dtype=torch.float64, generator=generator, requires_grad=True)
    return block, torch.randn(n, n_dense, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("n_dense", [3, 0])
def test_they_are_their_definitions(n_dense: int) -> None:
    model, (block, dense) = built(n_dense), given(BATCH, n_dense, 2)
    signals = PairSignals(model, len(FEATURES))
    with signals.watching():
        logits = model({"block": block}, dense)
    logits.sum().backward()
    strength, cosine = signals_of(signals.sums)
    vectors, step = block.detach().numpy(), 1e-6
    x = None if model.bottom is None else model.bottom(dense)
    out = model.interaction(block, x).detach()
    names = [(i, j) for i in range(4 + (n_dense > 0)) for j in range(i)]
    for at, (i, j) in enumerate(names):
        if j < (n_dense > 0):
            continue  # the dense inputs' vector is no feature
        a, b = i - (n_dense > 0), j - (n_dense > 0)
        products = (vectors[:, a] * vectors[:, b]).sum(1)
        moved = out.clone()
        moved[:, at + out.shape[1] - len(names)] += step
        slope = (model.top(moved) - model.top(out)).detach().numpy()[:, 0] / step
        wanted = np.abs(slope * (products - products.mean())).mean()
        assert strength[a, b] == strength[b, a] == pytest.approx(wanted, rel=1e-5)
        norms = np.linalg.norm(vectors[:, a], axis=1) * np.linalg.norm(vectors[:, b], axis=1)
        assert cosine[a, b] == cosine[b, a] == pytest.approx(np.abs(products / norms).mean(), rel=1e-12)
    assert (np.diag(strength) == 0).all()
    gradient, block.grad = block.grad.clone(), None
    model({"block": block}, dense).sum().backward()
    assert torch.equal(gradient, block.grad), "what the model learns is as ever"


def test_sums_of_batches_and_ranks_add_up_and_nothing_is_seen_after() -> None:
    model, first, second = built(2), given(4, 2, 3), given(6, 2, 4)
    apart = [PairSignals(model, len(FEATURES)) for _ in range(2)]
    both = PairSignals(model, len(FEATURES))
    for signals, (block, dense) in zip(apart, (first, second), strict=True):
        with signals.watching(), both.watching():
            model({"block": block}, dense)
    empty = given(0, 2, 5)
    with both.watching():
        model({"block": empty[0]}, empty[1])
    model({"block": first[0]}, first[1])
    assert both.sums[0] == 10
    np.testing.assert_allclose(both.sums, apart[0].sums + apart[1].sums, rtol=1e-12)


def test_other_models_are_refused() -> None:
    with pytest.raises(ConfigError, match="in a DLRM, not in a DCN"):
        PairSignals(build_model("dcn", FEATURES, 2, width=WIDTH), len(FEATURES))
