"""Operators against their formulas, sample by sample; partials of split feature sets against the whole."""

import dataclasses
import itertools

import pytest
import torch

from hpcrec.errors import ConfigError
from hpcrec.operators import FM2, Block, Operator, WideSum
from hpcrec.types import Lookup

B, F, D = 5, 4, 3


def lookups(n, pooling="sum"):
    return tuple(Lookup(feature=f"f{i}", table=f"t{i}", pooling=pooling) for i in range(n))


def make(kind, n=F, width=D):
    return kind(lookups=lookups(n), width=width)


def naive(kind, pooled):
    """Plain Python floats, one sample at a time."""
    samples = pooled.tolist()
    if kind is Block:
        return samples
    if kind is WideSum:
        sums = [[sum(vector[d] for vector in sample) for d in range(len(sample[0]))] for sample in samples]
        return [s[0] if len(s) == 1 else s for s in sums]
    return [
        sum(sum(x * y for x, y in zip(v, w, strict=True)) for v, w in itertools.combinations(sample, 2))
        for sample in samples
    ]


def pooled_of(width, seed=0, n=B):
    return torch.randn(n, F, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


CASES = [(Block, D), (WideSum, 1), (WideSum, 2), (FM2, D), (FM2, 1)]


@pytest.mark.parametrize(("kind", "width"), CASES)
def test_formula(kind, width):
    pooled = pooled_of(width)
    operator = make(kind, width=width)
    assert isinstance(operator, Operator)
    result = operator.finish(operator.partial(pooled))
    expected = torch.tensor(naive(kind, pooled), dtype=torch.float64)
    assert result.shape == expected.shape
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("kind", "width"), CASES)
@pytest.mark.parametrize("owners", [[[0, 1], [2, 3]], [[3], [0, 2], [1]], [[0], [], [1, 2, 3]]])
def test_split_over_feature_sets(kind, width, owners):
    pooled = pooled_of(width, seed=1)
    operator = make(kind, width=width)
    partials = []
    for held in owners:
        own = torch.zeros_like(pooled)
        own[:, held] = pooled[:, held]
        partials.append(operator.partial(own))
    reduced = partials[0]
    for partial in partials[1:]:
        reduced = operator.reduce(reduced, partial)
    whole = operator.partial(pooled)
    assert len(reduced) == len(whole)
    for part, complete in zip(reduced, whole, strict=True):
        torch.testing.assert_close(part, complete, rtol=0, atol=1e-12)
    result = operator.finish(reduced)
    torch.testing.assert_close(result, operator.finish(whole), rtol=0, atol=1e-12)
    assert result.abs().max() > 0.1


def test_sums_of_split_bags():
    """Block and WideSum are linear, so parts of a bag may be added; FM2 is not, and says so."""
    a, b = pooled_of(D, seed=2), pooled_of(D, seed=3)
    for kind in (Block, WideSum):
        operator = make(kind)
        split = operator.finish(operator.reduce(operator.partial(a), operator.partial(b)))
        torch.testing.assert_close(split, operator.finish(operator.partial(a + b)), rtol=0, atol=1e-12)
    operator = make(FM2)
    split = operator.finish(operator.reduce(operator.partial(a), operator.partial(b)))
    assert (split - operator.finish(operator.partial(a + b))).abs().max() > 0.1


@pytest.mark.parametrize(("kind", "width"), CASES)
def test_gradients(kind, width):
    operator = make(kind, width=width)
    pooled = pooled_of(width, seed=4).requires_grad_(True)
    assert torch.autograd.gradcheck(lambda x: operator.finish(operator.partial(x)), (pooled,))


def test_fm2_gradient_formula():
    """d finish / d v_f = S - v_f."""
    pooled = pooled_of(D, seed=5).requires_grad_(True)
    operator = make(FM2)
    operator.finish(operator.partial(pooled)).sum().backward()
    expected = pooled.detach().sum(1, keepdim=True) - pooled.detach()
    torch.testing.assert_close(pooled.grad, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("kind", "width", "shape"), [(Block, D, (0, F, D)), (WideSum, 1, (0,)), (FM2, D, (0,))])
def test_empty_batch(kind, width, shape):
    pooled = pooled_of(width, n=0).requires_grad_(True)
    operator = make(kind, width=width)
    result = operator.finish(operator.partial(pooled))
    assert result.shape == shape
    result.sum().backward()
    assert pooled.grad.shape == (0, F, width)


@pytest.mark.parametrize(("kind", "floats"), [(Block, F * D), (FM2, D + 1)])
def test_floats_a_sample(kind, floats):
    partial = make(kind).partial(pooled_of(D))
    assert sum(p.numel() for p in partial) == B * floats


def test_floats_a_sample_wide():
    (partial,) = make(WideSum, width=1).partial(pooled_of(1))
    assert partial.shape == (B,)


@pytest.mark.parametrize("kind", [Block, WideSum, FM2])
def test_refusals(kind):
    with pytest.raises(ConfigError, match="reads no feature"):
        kind(lookups=(), width=D)
    with pytest.raises(ConfigError, match="width is 0"):
        kind(lookups=lookups(1), width=0)
    with pytest.raises(ConfigError, match="'min'; allowed are 'sum', 'mean' and 'max'"):
        kind(lookups=lookups(1, "min"), width=D)
    with pytest.raises(ConfigError, match="'f0' is read twice from table 't0'"):
        kind(lookups=lookups(1) + lookups(1, "mean"), width=D)
    with pytest.raises(dataclasses.FrozenInstanceError):
        make(kind).width = 2
