"""Layers against plain loops and formulas."""

import pytest
import torch

from hpcrec.models.layers import Bias, CrossNetV2, DotInteraction, FirstOrder, SharedTerm, affine, as_logits, mlp


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("n", [2, 3, 7])
def test_dot_interaction(n):
    """A triple loop: rows, columns below the diagonal, elements."""
    vectors = randn(4, n, 5)
    result = DotInteraction(n)(vectors)
    expected = []
    for sample in vectors.tolist():
        products = []
        for i in range(n):
            products += [sum(sample[i][d] * sample[j][d] for d in range(5)) for j in range(i)]
        expected.append(products)
    assert result.shape == (4, n * (n - 1) // 2)
    torch.testing.assert_close(result, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)


def test_dot_interaction_has_no_state():
    """The places are not part of a checkpoint, and stay integers in float64."""
    layer = DotInteraction(3).double()
    assert layer.state_dict() == {}
    assert layer.place_P.tolist() == [3, 6, 7]


def test_cross_net_full():
    torch.manual_seed(1)
    layer = CrossNetV2(4, 2).double()
    x0 = randn(3, 4)
    expected = x0
    for linear in layer.layers:
        with torch.no_grad():
            linear.bias.copy_(randn(4, seed=2))
        rows = []
        for b in range(3):
            mapped = [
                sum(linear.weight[o, i].item() * expected[b, i].item() for i in range(4)) + linear.bias[o].item()
                for o in range(4)
            ]
            rows.append([x0[b, o].item() * mapped[o] + expected[b, o].item() for o in range(4)])
        expected = torch.tensor(rows, dtype=torch.float64)
    torch.testing.assert_close(layer(x0), expected, rtol=0, atol=1e-12)


def test_cross_net_low_rank():
    """A full cross network whose matrices are U V gives the same."""
    torch.manual_seed(2)
    low, full = CrossNetV2(6, 3, low_rank=2).double(), CrossNetV2(6, 3).double()
    with torch.no_grad():
        for thin, linear in zip(low.layers, full.layers, strict=True):
            down, up = thin
            assert down.bias is None and down.weight.shape == (2, 6) and up.weight.shape == (6, 2)
            up.bias.copy_(randn(6, seed=3))
            linear.weight.copy_(up.weight @ down.weight)
            linear.bias.copy_(up.bias)
    x0 = randn(5, 6)
    torch.testing.assert_close(low(x0), full(x0), rtol=0, atol=1e-12)


def test_cross_degree():
    """One layer crosses to degree 2: with W = 1 and b = 0, x -> x (1 + sum of x)."""
    layer = CrossNetV2(3, 1).double()
    with torch.no_grad():
        layer.layers[0].weight.fill_(1)
    x = randn(2, 3)
    torch.testing.assert_close(layer(x), x * (1 + x.sum(1, keepdim=True)), rtol=0, atol=1e-12)


def test_mlp():
    torch.manual_seed(3)
    tower = mlp(3, (4, 2), 1).double()
    x = randn(5, 3)
    first, second, last = (layer for layer in tower if isinstance(layer, torch.nn.Linear))
    hidden = (x @ first.weight.T + first.bias).clamp(min=0)
    hidden = (hidden @ second.weight.T + second.bias).clamp(min=0)
    torch.testing.assert_close(tower(x), hidden @ last.weight.T + last.bias, rtol=0, atol=1e-12)
    assert [type(layer).__name__ for layer in mlp(3, (4,), dropout=0.5)] == ["Linear", "ReLU", "Dropout"]
    assert [type(layer).__name__ for layer in mlp(3, (), 2)] == ["Linear"]
    assert len(mlp(3, ())) == 0


def test_affine_starts_xavier():
    torch.manual_seed(4)
    layer = affine(300, 100)
    assert layer.weight.std().item() == pytest.approx((2 / 400) ** 0.5, rel=0.02)
    assert layer.bias.abs().max() == 0


def test_affine_of_no_inputs():
    """A bias, without torch's warning about empty weights."""
    layer = affine(0, 2)
    assert isinstance(layer, Bias)
    with torch.no_grad():
        layer.bias.copy_(torch.tensor([1.0, 2.0]))
    out = layer(torch.zeros(3, 0))
    assert out.tolist() == [[1, 2]] * 3
    out.sum().backward()
    assert layer.bias.grad.tolist() == [3, 3]


def test_first_order_and_shared_term():
    torch.manual_seed(5)
    dense = randn(4, 3)
    one, two = FirstOrder(3, 1).double(), FirstOrder(3, 2).double()
    wide_B, wide_BL = randn(4, seed=6), randn(4, 2, seed=7)
    expected = wide_B + dense @ one.dense.weight[0] + one.dense.bias[0]
    torch.testing.assert_close(one(wide_B, dense), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(two(wide_BL, dense), wide_BL + dense @ two.dense.weight.T, rtol=0, atol=1e-12)
    assert list(SharedTerm(1).parameters()) == []
    assert SharedTerm(2).double()(wide_B).tolist() == [[x, x] for x in wide_B.tolist()]


def test_as_logits():
    assert as_logits(torch.zeros(3, 1)).shape == (3,)
    assert as_logits(torch.zeros(1, 1)).shape == (1,)
    assert as_logits(torch.zeros(0, 1)).shape == (0,)
    assert as_logits(torch.zeros(3, 2)).shape == (3, 2)
