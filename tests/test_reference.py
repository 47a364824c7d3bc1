"""The single-process reference itself: its operators, pooling and loss by hand, its row optimizers against torch's."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from tests.reference import Bag, GlobalBatch, Reference, RowOptimizer, describe, join, operator_result, segment_max

ROWS, D, B = 9, 3, 4
IDS, OFFSETS = np.array([1, 4, 4, 7, 0, 1]), np.array([0, 2, 2, 5, 6])  # bags [1, 4], [], [4, 7, 0], [1]


class Sum(nn.Module):
    """Logit: a fixed combination of the block, so that gradients of rows differ."""

    def forward(self, inputs, dense):
        block = inputs["block"].flatten(1)
        return (block * torch.arange(1, block.shape[1] + 1, dtype=block.dtype)).sum(1) + dense.sum(1)


def batch(weights=None, weight=None, label=None):
    label = np.array([1.0, 0.0, 1.0, 1.0]) if label is None else label
    dense = np.array([[0.5], [-1.0], [0.25], [0.0]])
    return GlobalBatch(dense, label, weight, {"f": Bag(IDS, OFFSETS, weights)})


def table(seed=0):
    return np.random.default_rng(seed).normal(size=(ROWS, D))


def reference(optimizer, pooling="sum", module=None, dense_optimizer=None):
    operators = {"block": ("Block", [("f", "t", pooling)])}
    return Reference(module or Sum(), operators, {"t": table()}, {"t": optimizer}, dense_optimizer, dtype=torch.float64)


def torch_optimizer(weight, spec):
    if spec.name == "sgd":
        return torch.optim.SGD([weight], spec.lr)
    if spec.name == "adam":
        return torch.optim.SparseAdam([weight], spec.lr, (spec.beta1, spec.beta2), spec.eps)
    accumulator = {"initial_accumulator_value": spec.initial_accumulator, "eps": spec.eps}
    return torch.optim.Adagrad([weight], spec.lr, **accumulator)


SPECS = [
    RowOptimizer("sgd", lr=0.3),
    RowOptimizer("adagrad", lr=0.2, eps=1e-3, initial_accumulator=0.1),
    RowOptimizer("adam", lr=0.1, eps=1e-3, beta1=0.8, beta2=0.95),
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
@pytest.mark.parametrize("pooling", ["sum", "mean"])
def test_optimizers_are_torchs(spec, pooling):
    """Six steps of sparse gradients; the second half touches fewer rows, whose neighbours must rest."""
    ours = reference(spec, pooling)
    bags = nn.EmbeddingBag(ROWS, D, mode=pooling, sparse=True, include_last_offset=True, dtype=torch.float64)
    bags.weight.data.copy_(torch.as_tensor(table()))
    optimizer = torch_optimizer(bags.weight, spec)
    for step in range(6):
        now = batch()
        if step >= 3:
            now.bags["f"] = Bag(np.array([4, 2, 4, 2]), np.arange(5))
        optimizer.zero_grad()
        bag = now.bags["f"]
        block = bags(torch.as_tensor(bag.ids), torch.as_tensor(bag.offsets))[:, None]
        logits = Sum()({"block": block}, torch.as_tensor(now.dense))
        loss = nn.functional.binary_cross_entropy_with_logits(logits, torch.as_tensor(now.label))
        loss.backward()
        with torch.sparse.check_sparse_tensor_invariants(True):  # Adagrad warns where nobody chose
            optimizer.step()
        our_loss, our_logits = ours.step(now)
        assert our_loss == pytest.approx(loss.item(), abs=1e-12)
        np.testing.assert_allclose(our_logits, logits.detach().numpy(), rtol=0, atol=1e-12)
        np.testing.assert_allclose(ours.rows("t"), bags.weight.detach().numpy(), rtol=0, atol=1e-12)
    moved = np.abs(ours.rows("t") - table()).max(1) > 1e-3
    assert moved.tolist() == [True, True, True, False, True, False, False, True, False]


def test_rowwise_adagrad():
    """One accumulator a row: the mean square of the row's gradient."""
    spec = RowOptimizer("rowwise_adagrad", lr=0.2, eps=1e-3, initial_accumulator=0.1)
    ours, sgd = reference(spec), reference(RowOptimizer("sgd", lr=1.0))
    sgd.step(batch())
    gradient = table() - sgd.rows("t")  # SGD's step with lr 1
    ours.step(batch(), lr_scale=0.5)
    for row in range(ROWS):
        accumulator = 0.1 + np.mean(gradient[row] ** 2)
        expected = table()[row] - 0.5 * 0.2 * gradient[row] / (np.sqrt(accumulator) + 1e-3)
        np.testing.assert_allclose(ours.rows("t")[row], expected, rtol=0, atol=1e-12)
        assert ours.states("t")["accumulator"][row] == pytest.approx(accumulator, abs=1e-12)


def test_adam_moves_rows_that_are_touched_with_zero_gradient():
    """A row that occurs steps even where its gradient is zero (here: a sample of weight 0); others rest."""
    spec = RowOptimizer("adam", lr=0.1)
    ours = reference(spec)
    ours.step(batch())
    before = ours.rows("t")
    ours.step(batch(weight=np.array([1.0, 1.0, 1.0, 0.0])))
    assert np.abs(ours.rows("t") - before).max(1)[[0, 1, 4, 7]].min() > 1e-3
    assert np.array_equal(ours.rows("t")[[2, 3, 5, 6, 8]], table()[[2, 3, 5, 6, 8]])


@pytest.mark.parametrize("pooling", ["sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
def test_pooling(pooling, weighted):
    weights = np.array([0.5, 2.0, 1.0, 3.0, 0.25, 1.5]) if weighted else None
    result = {}

    class Keep(nn.Module):
        def forward(self, inputs, dense):
            result.update(inputs)
            return inputs["block"].sum((1, 2))

    reference(SPECS[0], pooling, Keep()).logits(batch(weights))
    rows = table()
    w = np.ones(6) if weights is None else weights
    for b in range(B):
        span = range(OFFSETS[b], OFFSETS[b + 1])
        expected = sum((w[i] * rows[IDS[i]] for i in span), start=np.zeros(D))
        if pooling == "mean":
            expected = expected / max(len(span), 1)
        np.testing.assert_allclose(result["block"][b, 0].detach().numpy(), expected, rtol=0, atol=1e-12)


def test_max_by_hand():
    rows = torch.tensor([[1.0, -2.0], [1.0, -1.0], [-3.0, -1.0]], requires_grad=True)
    pooled = segment_max(rows, torch.tensor([1, 0, 2, 2]), torch.tensor([0, 2, 2, 3, 4]))
    assert pooled.tolist() == [[1, -1], [0, 0], [-3, -1], [-3, -1]]
    (pooled * torch.tensor([[1.0, 2], [4, 8], [16, 32], [64, 128]])).sum().backward()
    assert rows.grad.tolist() == [[0, 0], [1, 2], [80, 160]]  # of the equal first columns that of the first id
    found = segment_max(rows, torch.zeros(0, dtype=torch.int64), torch.tensor([0]))
    assert found.shape == (0, 2)


def test_loss():
    ours = reference(SPECS[0])
    x = np.array([0.3, -1.0, 2.0, 0.0])
    label, weight = np.array([1.0, 0.0, 1.0, 1.0]), np.array([1.0, 2.0, 0.0, 0.5])
    losses = np.log1p(np.exp(x)) - label * x
    plain, weighted = batch(), batch(weight=weight)
    assert ours.loss(torch.tensor(x), plain).item() == pytest.approx(losses.mean(), abs=1e-12)
    assert ours.loss(torch.tensor(x), weighted).item() == pytest.approx((weight * losses).sum() / 3.5, abs=1e-12)
    two = batch(weight=weight, label=np.stack([label, 1 - label], 1))
    losses = (losses + np.log1p(np.exp(x)) - (1 - label) * x) / 2
    expected = (weight * losses).sum() / 3.5
    assert ours.loss(torch.tensor(np.stack([x, x], 1)), two).item() == pytest.approx(expected, abs=1e-12)


def test_operators():
    u, v, w = (torch.tensor(table(seed)[:B]) for seed in range(3))
    assert operator_result("Block", [u, v]).shape == (B, 2, D)
    torch.testing.assert_close(operator_result("FM2", [u, v, w]), (u * v + u * w + v * w).sum(1))
    torch.testing.assert_close(operator_result("WideSum", [u[:, :1], v[:, :1]]), u[:, 0] + v[:, 0])
    assert operator_result("FM2", [u]).abs().max() == 0
    with pytest.raises(ValueError, match="no formula for operator 'Max'"):
        operator_result("Max", [u])


def test_dense_optimizer_and_shared_table():
    """Two features of one table; the module's parameter steps by SGD with the scaled rate."""

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

        def forward(self, inputs, dense):
            return self.scale * inputs["block"].sum((1, 2))

    module = Scaled()
    operators = {"block": ("Block", [("f", "t", "sum"), ("g", "t", "mean")])}
    rows = {"t": table()}
    dense_optimizer = torch.optim.SGD(module.parameters(), 0.1)
    ours = Reference(module, operators, rows, {"t": RowOptimizer("sgd", 1.0)}, dense_optimizer, dtype=torch.float64)
    now = batch()
    now.bags["g"] = Bag(np.array([4, 5, 8]), np.array([0, 2, 2, 3, 3]))
    pooled = np.array([table()[[1, 4]].sum() + table()[[4, 5]].mean(0).sum(), 0, 0, table()[1].sum()])
    pooled[2] = table()[[4, 7, 0]].sum() + table()[8].sum()
    slope = (1 / (1 + np.exp(-2 * pooled)) - now.label) / B
    ours.step(now, lr_scale=0.5)
    assert module.scale.item() == pytest.approx(2 - 0.05 * (slope * pooled).sum(), abs=1e-12)
    change = table() - ours.rows("t")
    expected_4 = 0.5 * 2 * (slope[0] + slope[2] + slope[0] / 2)
    np.testing.assert_allclose(change[4], np.full(D, expected_4), rtol=0, atol=1e-12)
    np.testing.assert_allclose(change[5], np.full(D, 0.5 * 2 * slope[0] / 2), rtol=0, atol=1e-12)
    ours.step(now)
    assert dense_optimizer.param_groups[0]["lr"] == 0.1, "the rate is scaled from its base each step"


def test_row_of():
    """Ids of a hashed table are mapped first."""
    operators = {"block": ("Block", [("f", "t", "sum")])}
    tables, specs = {"t": table()}, {"t": RowOptimizer("sgd", 0.1)}
    shifted = Reference(
        Sum(), operators, tables, specs, None, dtype=torch.float64, row_of={"t": lambda ids: (ids - 1000) % ROWS}
    )
    now = batch()
    now.bags["f"] = Bag(IDS + 1000 + ROWS, OFFSETS)
    plain = reference(specs["t"])
    assert np.array_equal(shifted.step(now)[1], plain.step(batch())[1])
    assert np.array_equal(shifted.rows("t"), plain.rows("t"))
    assert not np.array_equal(plain.rows("t"), table())


@dataclasses.dataclass
class Jagged:
    features: tuple
    ids: np.ndarray
    offsets: np.ndarray
    weights: np.ndarray | None


@dataclasses.dataclass
class Part:
    dense: np.ndarray
    label: np.ndarray
    weight: np.ndarray | None
    bags: Jagged


@pytest.mark.parametrize("weighted", [False, True])
def test_join(weighted):
    """Parts of 2, 0 and 1 samples of two features, feature-major in each part."""

    def part(n, ids, offsets):
        weights = np.array(ids, float) / 10 if weighted else None
        jagged = Jagged(("f", "g"), np.array(ids, np.int64), np.array(offsets), weights)
        return Part(np.full((n, 1), n), np.full(n, n), None, jagged)

    # f: [1, 2] [3] | [6]; g: [] [4] | [7, 8]
    joined = join([part(2, [1, 2, 3, 4], [0, 2, 3, 3, 4]), part(0, [], [0]), part(1, [6, 7, 8], [0, 1, 3])])
    assert joined.label.tolist() == [2, 2, 1] and joined.dense.tolist() == [[2], [2], [1]] and joined.weight is None
    assert joined.bags["f"].ids.tolist() == [1, 2, 3, 6] and joined.bags["f"].offsets.tolist() == [0, 2, 3, 4]
    assert joined.bags["g"].ids.tolist() == [4, 7, 8] and joined.bags["g"].offsets.tolist() == [0, 0, 1, 3]
    if weighted:
        assert joined.bags["g"].weights.tolist() == [0.4, 0.7, 0.8]
    else:
        assert joined.bags["g"].weights is None


def test_describe():
    @dataclasses.dataclass
    class Lookup:
        feature: str
        table: str
        pooling: str

    @dataclasses.dataclass
    class FM2:
        lookups: tuple

    assert describe({"x": FM2((Lookup("f", "t", "mean"),))}) == {"x": ("FM2", [("f", "t", "mean")])}


def test_empty_batch():
    """No sample and no id: logits of shape [0]."""
    nothing = GlobalBatch(np.zeros((0, 1)), np.zeros(0), None, {"f": Bag(np.zeros(0, np.int64), np.zeros(1, np.int64))})
    assert reference(SPECS[0]).logits(nothing).shape == (0,)


def test_imports_torch_and_numpy_only():
    import ast
    from pathlib import Path

    tree = ast.parse((Path(__file__).parent / "reference.py").read_text())
    imported = {n.module.split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    imported |= {alias.name.split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names}
    assert imported == {"collections", "dataclasses", "typing", "numpy", "torch"}
