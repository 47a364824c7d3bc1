"""Merge and the optimizers: native = reference bit for bit; reference = torch's optimizers and FBGEMM's formulas."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from all_backends import DTYPES, ROWS, WIDTHS, assert_same_bits, bags, same_from_all, scattered_starts

from hpcrec import kernels
from hpcrec.kernels.reference import BLOCK
from hpcrec.types import OptimizerSpec

OPTIMIZERS = ("sgd", "adagrad", "rowwise_adagrad", "adam")
SPECS = {
    "sgd": OptimizerSpec(name="sgd"),
    "adagrad": OptimizerSpec(name="adagrad", eps=1e-6, initial_accumulator=0.1),
    "rowwise_adagrad": OptimizerSpec(name="rowwise_adagrad", eps=1e-6),
    "adam": OptimizerSpec(name="adam", beta1=0.8, beta2=0.95),
}


def index_of(kind: str, n: int, n_rows: int) -> np.ndarray:
    rng = np.random.default_rng(n)
    return {
        "unique": lambda: rng.permutation(n_rows)[:n],
        "hot": lambda: np.where(rng.random(n) < 0.6, 3, rng.integers(0, n_rows, n)),
        "blocks": lambda: rng.permutation(np.repeat(np.arange(9), [1, 127, 128, 129, 255, 256, 257, 300, 1000]))[:n],
        "empty": lambda: np.zeros(0, int),
    }[kind]().astype(np.int64)


class Occurrences:
    """Occurrences of rows with gradients at scattered places, weighted."""

    def __init__(self, kind: str, n: int, width: int, dtype: type, n_rows: int = 3000) -> None:
        rng = np.random.default_rng(width)
        self.index = index_of(kind, n, n_rows)
        n = self.index.size
        self.starts, size = scattered_starts(rng, max(n // 2, 1), width)
        self.starts = rng.choice(self.starts, n)  # some are shared
        self.gradients = rng.standard_normal(size).astype(dtype)
        self.weights = rng.standard_normal(n).astype(dtype)
        self.grouping = kernels.group(self.index)
        self.rows = rng.standard_normal((n_rows, width)).astype(dtype)
        self.width = width


def states_of(spec: OptimizerSpec, rows: np.ndarray) -> dict[str, np.ndarray]:
    states = kernels.initial_states(spec, *rows.shape, rows.dtype)
    rng = np.random.default_rng(0)
    for state in states.values():
        state += rng.random(state.shape).astype(rows.dtype)
    return states


@pytest.mark.parametrize(("width", "dtype"), ROWS)
@pytest.mark.parametrize("kind", ["unique", "hot", "blocks", "empty"])
def test_merge_native_is_reference(kind, width, dtype):
    o = Occurrences(kind, 2000, width, dtype)
    for weights in (None, o.weights):
        merged = same_from_all(
            lambda weights=weights: kernels.merge(o.grouping, o.gradients, o.starts, width, weights=weights)
        )
        assert merged.shape == (np.unique(o.index).size, width)
        terms = o.gradients[o.starts[:, None] + np.arange(width)].astype(np.longdouble)
        wanted = np.zeros(o.rows.shape, np.longdouble)
        np.add.at(wanted, o.index, terms if weights is None else weights[:, None] * terms)
        np.testing.assert_allclose(
            merged, wanted[o.grouping.unique].astype(dtype), rtol=0, atol=(1e-3 if dtype == np.float32 else 1e-11)
        )


@pytest.mark.parametrize("width", [3, 16, 64])
@pytest.mark.parametrize("hot", [0.0, 0.6])
def test_merge_by_bags_is_merge_by_positions(width, hot):
    rng = np.random.default_rng(width)
    index, offsets = bags(rng, 3000, 700, 9)
    index[rng.random(index.size) < hot] = 3  # more occurrences than one thread is left alone with
    lengths, starts = np.diff(offsets), rng.permutation(3000) * width
    gradients = rng.standard_normal(3000 * width).astype(np.float32)
    by_bag, by_position = same_from_all(lambda: kernels.group(index, offsets)), kernels.group(index)
    assert (by_bag.order == np.repeat(np.arange(3000), lengths)[by_position.order]).all()
    scale = rng.standard_normal(3000).astype(np.float32)
    for weights in (None, scale):
        merged = same_from_all(lambda weights=weights: kernels.merge(by_bag, gradients, starts, width, weights=weights))
        weights_K = None if weights is None else np.repeat(weights, lengths)
        wanted = kernels.merge(by_position, gradients, np.repeat(starts, lengths), width, weights=weights_K)
        assert merged.tobytes() == wanted.tobytes()


def test_merge_adds_block_by_block():
    n = 3 * BLOCK + 5
    gradients = (10.0 ** np.random.default_rng(1).uniform(-4, 4, n)).astype(np.float32)
    total = np.float32(0)
    for first in range(0, n, BLOCK):
        block = np.float32(0)
        for x in gradients[first : first + BLOCK]:
            block += x
        total += block
    grouping = kernels.group(np.zeros(n, np.int64))
    out = np.empty((1, 1), np.float32)
    assert same_from_all(lambda: kernels.merge(grouping, gradients, np.arange(n), 1))[0, 0] == total
    assert kernels.merge(grouping, gradients, np.arange(n), 1, out=out) is out
    assert out[0, 0] == total
    assert float(np.cumsum(gradients)[-1]) != total  # the order matters here


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [*WIDTHS, 15, 17, 33])
def test_squared_norm(width, dtype):
    merged = np.random.default_rng(width).standard_normal((300, width)).astype(dtype)
    norm = same_from_all(lambda: kernels.squared_norm(merged))
    np.testing.assert_allclose(
        norm, (merged.astype(np.float64) ** 2).sum(1), rtol=1e-5 if dtype == np.float32 else 1e-14
    )
    assert same_from_all(lambda: kernels.squared_norm(merged[:0])).shape == (0,)


@pytest.mark.parametrize(("width", "dtype"), ROWS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_update_native_is_reference_and_fused_is_both(name, width, dtype):
    for kind, bound in (("unique", math.inf), ("hot", 0.5), ("blocks", 0.25), ("empty", 0.5)):
        spec = replace(SPECS[name], bound=bound)
        o = Occurrences(kind, 2000, width, dtype)
        states = states_of(spec, o.rows)

        def separate(o=o, states=states, spec=spec):
            rows, new = o.rows.copy(), copy.deepcopy(states)
            for step in (1, 2):
                merged = kernels.merge(o.grouping, o.gradients, o.starts, width, weights=o.weights)
                kernels.update(spec, rows, new, o.grouping.unique, merged, lr=0.3, step=step)
            return {"rows": rows, **new}

        def fused(o=o, states=states, spec=spec):
            rows, new = o.rows.copy(), copy.deepcopy(states)
            for step in (1, 2):
                kernels.merge_update(
                    spec, rows, new, o.grouping, o.gradients, o.starts, weights=o.weights, lr=0.3, step=step
                )
            return {"rows": rows, **new}

        result = same_from_all(separate)
        one_pass = same_from_all(fused)
        touched = np.zeros(len(o.rows), bool)
        touched[o.index] = True
        assert (result["rows"] != o.rows).any(1).tolist() == touched.tolist()
        assert (np.abs(result["rows"][touched]) <= bound).all()
        for key, value in result.items():
            assert value.tobytes() == one_pass[key].tobytes()
            assert (value[~touched] == (o.rows if key == "rows" else states[key])[~touched]).all()


def torch_optimizer(name: str, parameter: torch.nn.Parameter) -> torch.optim.Optimizer:
    spec = SPECS[name]
    return {
        "sgd": lambda: torch.optim.SGD([parameter], lr=0.1),
        "adagrad": lambda: torch.optim.Adagrad([parameter], lr=0.1, eps=spec.eps, initial_accumulator_value=0.1),
        "adam": lambda: torch.optim.SparseAdam([parameter], lr=0.1, betas=(spec.beta1, spec.beta2), eps=spec.eps),
    }[name]()


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-6), (np.float64, 1e-12)])
@pytest.mark.parametrize("name", ["sgd", "adagrad", "adam"])
def test_optimizers_are_torchs(name, dtype, tolerance):
    rng = np.random.default_rng(2)
    spec, width = SPECS[name], 8
    rows = rng.uniform(-1, 1, (40, width)).astype(dtype)
    embedding = torch.nn.Embedding.from_pretrained(torch.from_numpy(rows.copy()), freeze=False, sparse=True)
    optimizer = torch_optimizer(name, embedding.weight)
    states = kernels.initial_states(spec, 40, width, dtype)
    for step in range(1, 7):
        index = rng.integers(0, 40, 30)
        gradients = rng.uniform(-1, 1, (30, width)).astype(dtype)
        optimizer.zero_grad()
        embedding(torch.from_numpy(index)).backward(torch.from_numpy(gradients))
        with torch.sparse.check_sparse_tensor_invariants():  # torch warns where this is left open
            optimizer.step()
        kernels.merge_update(
            spec, rows, states, kernels.group(index), gradients.reshape(-1), np.arange(30) * width, lr=0.1, step=step
        )
        np.testing.assert_allclose(rows, embedding.weight.detach().numpy(), rtol=0, atol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-6), (np.float64, 1e-12)])
@pytest.mark.parametrize("name", ["sgd", "adagrad", "rowwise_adagrad"])
def test_optimizers_are_fbgemms_formulas(name, dtype, tolerance):
    """EXACT_*: duplicates first, one update a row, eps outside the square root; in Python's doubles."""
    rng = np.random.default_rng(3)
    spec, width, lr = SPECS[name], 5, 0.1
    rows = rng.uniform(-1, 1, (12, width)).astype(dtype)
    states = kernels.initial_states(spec, 12, width, dtype)
    plain = [[float(x) for x in row] for row in rows]
    sums = [[spec.initial_accumulator] * width for _ in range(12)]
    for step in range(1, 6):
        index = rng.integers(0, 12, 20)
        gradients = rng.uniform(-1, 1, (20, width)).astype(dtype)
        kernels.merge_update(
            spec, rows, states, kernels.group(index), gradients.reshape(-1), np.arange(20) * width, lr=lr, step=step
        )
        for row in set(index.tolist()):
            g = [math.fsum(float(gradients[k, d]) for k in range(20) if index[k] == row) for d in range(width)]
            mean = math.fsum(x * x for x in g) / width
            for d in range(width):
                sums[row][d] += mean if name == "rowwise_adagrad" else g[d] ** 2
                slowed = 1.0 if name == "sgd" else math.sqrt(sums[row][d]) + spec.eps
                plain[row][d] -= lr * g[d] / slowed
    np.testing.assert_allclose(rows, np.array(plain), rtol=0, atol=tolerance)


def test_rowwise_adagrad_of_a_column_sharded_table():
    spec, rng = SPECS["rowwise_adagrad"], np.random.default_rng(4)
    rows, merged = rng.standard_normal((2, 6, 10))
    unique = np.arange(6)
    whole, state = rows.copy(), {"accumulator": np.zeros(6)}
    kernels.update(spec, whole, state, unique, merged, lr=0.1, step=1)

    def shards():
        halves = [np.ascontiguousarray(part) for part in (rows[:, :4], rows[:, 4:])]
        gradients = [np.ascontiguousarray(part) for part in (merged[:, :4], merged[:, 4:])]
        norm = kernels.squared_norm(gradients[0]) + kernels.squared_norm(gradients[1])
        for half, gradient in zip(halves, gradients, strict=True):
            kernels.update(
                spec, half, {"accumulator": np.zeros(6)}, unique, gradient, lr=0.1, step=1, squared_norm=norm,
                total_width=10,
            )  # fmt: skip
        return np.concatenate(halves, 1)

    np.testing.assert_allclose(same_from_all(shards), whole, rtol=0, atol=1e-12)


def test_adam_counts_global_steps():
    spec = SPECS["adam"]
    rows, states = np.zeros((2, 3)), kernels.initial_states(spec, 2, 3, np.float64)
    one = np.ones((1, 3))
    kernels.update(spec, rows, states, np.array([1]), one, lr=0.1, step=9)
    m, v = 1 - spec.beta1, 1 - spec.beta2
    rate = 0.1 * math.sqrt(1 - spec.beta2**9) / (1 - spec.beta1**9)
    np.testing.assert_allclose(rows, [[0] * 3, [-rate * m / (math.sqrt(v) + spec.eps)] * 3], rtol=1e-14)
    with pytest.raises(ValueError, match="step is 0"):
        kernels.update(spec, rows, states, np.array([1]), one, lr=0.1, step=0)


def test_states():
    spec = OptimizerSpec(name="adagrad", initial_accumulator=0.5)
    assert kernels.state_shapes(spec, 7, 4) == {"accumulator": (7, 4)}
    assert kernels.state_values(spec) == {"accumulator": 0.5}
    state = kernels.initial_states(spec, 7, 4, np.float32)["accumulator"]
    assert (state == np.full((7, 4), 0.5, np.float32)).all()
    assert state.ctypes.data % 64 == 0
    assert kernels.state_shapes(SPECS["rowwise_adagrad"], 7, 4) == {"accumulator": (7,)}
    assert kernels.state_shapes(SPECS["adam"], 7, 4) == {"exp_avg": (7, 4), "exp_avg_sq": (7, 4)}
    assert kernels.state_values(SPECS["adam"]) == {"exp_avg": 0.0, "exp_avg_sq": 0.0}
    assert kernels.state_shapes(SPECS["sgd"], 7, 4) == {}


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"unique": np.array([0, 9])}, r"unique\[1\] is 9"),
        ({"unique": np.array([-1, 2])}, r"unique\[0\] is -1"),
        ({"merged": np.zeros((2, 3), np.float32)}, "merged is"),
        ({"merged": np.zeros((2, 4))}, "merged is float64"),
        ({"states": {}}, r"needs \['accumulator'\]"),
        ({"states": {"accumulator": np.zeros(8, np.float32)}}, "state accumulator is"),
        ({"rows": np.zeros((4, 9), np.float32).T}, "not contiguous"),
        ({"squared_norm": np.zeros(3, np.float32)}, "squared_norm is"),
        ({"spec": OptimizerSpec(name="lamb")}, "'lamb' is not known; allowed are sgd"),
        ({"spec": OptimizerSpec(name="sgd"), "states": {}, "total_width": 8}, "row-wise Adagrad's"),
    ],
)
def test_update_refuses(backend, change, message):
    kernels.use(backend)
    call = {
        "spec": OptimizerSpec(name="rowwise_adagrad"),
        "rows": np.zeros((9, 4), np.float32),
        "states": {"accumulator": np.zeros(9, np.float32)},
        "unique": np.array([0, 8]),
        "merged": np.ones((2, 4), np.float32),
    } | change
    with pytest.raises(ValueError, match=message):
        kernels.update(**call, lr=0.1, step=1)


@pytest.mark.parametrize("name", ["adagrad", "rowwise_adagrad"])
@pytest.mark.parametrize(("width", "dtype"), ROWS)
def test_update_of_sums_native_is_reference(name, width, dtype):
    """Of rows in full and in halves, which are float32."""
    spec = replace(SPECS[name], bound=1.5)
    for kind in ("unique", "blocks", "empty"):
        o = Occurrences(kind, 2000, width, dtype)
        states, rng = states_of(spec, o.rows), np.random.default_rng(1)
        merged = kernels.merge(o.grouping, o.gradients, o.starts, width)
        ticks = rng.integers(1, 200, len(merged))
        squares = rng.random((len(merged), *states["accumulator"].shape[1:])).astype(dtype)
        bits = (o.rows.view(np.uint32) >> 16).astype(np.uint16) if dtype == np.float32 else None
        halves = None if bits is None else kernels.HalfRows(bits, "bf16", seed=3)

        def stepped(rows, states=states, merged=merged, ticks=ticks, squares=squares, grouping=o.grouping):
            rows, new = copy.deepcopy(rows), copy.deepcopy(states)
            for step in (1, 2):
                kernels.update_sums(spec, rows, new, grouping.unique, merged, ticks, squares, lr=0.3, step=step)
            return {"rows": rows.bits if isinstance(rows, kernels.HalfRows) else rows, **new}

        for rows in (o.rows, halves) if halves is not None else (o.rows,):
            kernels.use("reference")
            wanted = stepped(rows)
            kernels.use("native")
            for n in (1, 3):
                kernels.set_threads(n)
                assert_same_bits(stepped(rows), wanted)
        untouched = np.setdiff1d(np.arange(len(o.rows)), o.grouping.unique)
        assert (stepped(o.rows)["rows"][untouched] == o.rows[untouched]).all()


def test_a_sum_moves_a_row_by_the_mean_over_its_steps():
    """What divides it is within 2.5 % of the mean of what each step would have met, for every number of steps."""
    before, squares = np.meshgrid([0.0, 1e-6, 0.01, 1.0, 30.0], [1e-6, 0.01, 1.0, 30.0])
    for n in (2, 3, 7, 50, 1000):
        each = 1 / np.sqrt(before[..., None] + squares[..., None] * np.arange(1, n + 1) / n)
        found = kernels.mean_rate(1.0, 0.0, before, squares, np.array(n))
        assert np.abs(found / each.mean(-1) - 1).max() < 0.025, n
    spec = SPECS["rowwise_adagrad"]
    rows, states = np.zeros((1, 2)), {"accumulator": np.array([4.0])}
    ticks, squares = np.array([8]), np.array([12.0])
    kernels.update_sums(spec, rows, states, np.array([0]), np.array([[1.0, -2.0]]), ticks, squares, lr=0.5, step=1)
    rate = 2 * 0.5 / (math.sqrt(4.75) + math.sqrt(16.75) + 2 * spec.eps)
    np.testing.assert_allclose(rows, [[-rate, 2 * rate]], rtol=1e-15)
    assert states["accumulator"].tolist() == [16.0], "by the squares of the steps, not by the square of their sum"


def test_what_sums_do_not_go_with():
    rows, one, of_one = np.zeros((3, 2), np.float32), np.zeros(1, np.int64), np.ones(1, np.float32)
    states = {"accumulator": np.zeros(3, np.float32)}

    def call(spec=SPECS["rowwise_adagrad"], ticks=one + 1, squares=of_one, unique=one):
        merged = np.ones((1, 2), np.float32)
        kernels.update_sums(spec, rows, states, unique, merged, ticks, squares, lr=0.1, step=1)

    for backend in ("native", "reference"):
        kernels.use(backend)
        with pytest.raises(ValueError, match="optimizer is 'sgd'"):
            call(spec=SPECS["sgd"])
        with pytest.raises(ValueError, match="ticks have 0"):
            call(ticks=one)
        with pytest.raises(ValueError, match="squares is"):
            call(squares=np.ones((1, 2), np.float32))
        with pytest.raises(ValueError, match=r"unique\[0\] is 3"):
            call(unique=one + 3)
    kernels.use("emulated")
    with pytest.raises(ValueError, match="no GPU"):
        call()
    kernels.use("native")


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_merge_refuses(backend):
    kernels.use(backend)
    grouping, gradients = kernels.group(np.array([1, 0, 1])), np.zeros(12, np.float32)
    with pytest.raises(ValueError, match=r"source_start\[2\] is 9"):
        kernels.merge(grouping, gradients, np.array([0, 4, 9]), 4)
    with pytest.raises(ValueError, match=r"order\[2\] is 2|order\[1\] is 2"):
        kernels.merge(grouping, gradients, np.array([0, 4]), 4)
    with pytest.raises(ValueError, match="weights is"):
        kernels.merge(grouping, gradients, np.array([0, 4, 8]), 4, weights=np.zeros(2, np.float32))
    with pytest.raises(ValueError, match="segments must"):
        kernels.merge(grouping._replace(segments=np.array([0, 1, 2])), gradients, np.array([0, 4, 8]), 4)
    with pytest.raises(ValueError, match=r"order\[1\] is 3"):
        kernels.merge(grouping._replace(order=np.array([1, 3, 2])), gradients, np.array([0, 4, 8]), 4)


@pytest.mark.filterwarnings("ignore")  # its import warns of what CPUs lack
@pytest.mark.parametrize("name", ["sgd", "adagrad", "rowwise_adagrad"])
def test_optimizers_are_fbgemm(name):
    pytest.importorskip("fbgemm_gpu", reason="fbgemm-gpu-cpu is not installed")
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    spec, width, rng = OptimizerSpec(name=name, eps=1e-6), 8, np.random.default_rng(6)
    batched = SplitTableBatchedEmbeddingBagsCodegen(
        [(50, width, EmbeddingLocation.HOST, ComputeDevice.CPU)],
        optimizer=getattr(EmbOptimType, f"EXACT_{name.upper()}"),
        learning_rate=0.1,
        eps=1e-6,
        stochastic_rounding=False,
    )
    rows = rng.uniform(-1, 1, (50, width)).astype(np.float32)
    batched.split_embedding_weights()[0].copy_(torch.from_numpy(rows))
    states = kernels.initial_states(spec, 50, width, np.float32)
    for step in range(1, 5):
        index, offsets = rng.integers(0, 50, 60), np.arange(0, 61, 3)
        gradients = rng.uniform(-1, 1, (20, width)).astype(np.float32)
        batched(torch.from_numpy(index), torch.from_numpy(offsets)).backward(torch.from_numpy(gradients))
        starts = np.repeat(np.arange(20) * width, 3)
        kernels.merge_update(spec, rows, states, kernels.group(index), gradients.reshape(-1), starts, lr=0.1, step=step)
        np.testing.assert_allclose(rows, batched.split_embedding_weights()[0].numpy(), rtol=0, atol=1e-6)
