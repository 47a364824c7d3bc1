"""A table of width 1 beside another: one pass gives the bits of two calls, from both backends, and what is refused."""

import copy

import numpy as np
import pytest
from all_backends import ROWS, assert_same_bits, bags, same_from_all, scattered_starts

from hpcrec import kernels
from hpcrec.types import OptimizerSpec

SPECS = {
    name: OptimizerSpec(name=name, eps=1e-3, initial_accumulator=0.1)
    for name in ("sgd", "adagrad", "rowwise_adagrad", "adam")
}


@pytest.mark.parametrize(("width", "dtype"), ROWS)
def test_gather_is_two_gathers(width, dtype):
    rng = np.random.default_rng(width)
    rows, narrow = (rng.standard_normal((500, w)).astype(dtype) for w in (width, 1))
    index, offsets = bags(rng, 3000, 500, 6)
    starts, size = scattered_starts(rng, 3000, width + 1)
    options = {"weights": rng.standard_normal(index.size), "scale": rng.standard_normal(3000)}
    options = {key: value.astype(dtype) for key, value in options.items()}
    for given in ({}, {"weights": options["weights"]}, {"scale": options["scale"]}, options):

        def together(given=given):
            out = np.full(size, 7, dtype)
            beside = kernels.Beside(narrow, starts + width)
            kernels.pooled_gather(rows, index, offsets, out, out_start=starts, beside=beside, **given)
            return out

        def apart(given=given):
            out = np.full(size, 7, dtype)
            kernels.pooled_gather(rows, index, offsets, out, out_start=starts, **given)
            kernels.pooled_gather(narrow, index, offsets, out, out_start=starts + width, **given)
            return out

        assert_same_bits(same_from_all(together), same_from_all(apart))


@pytest.mark.parametrize(("width", "dtype"), ROWS)
@pytest.mark.parametrize("name", SPECS)
def test_merge_update_is_two_of_them(name, width, dtype):
    rng = np.random.default_rng(width)
    spec, its_spec = SPECS[name], OptimizerSpec(name=name, eps=1e-5, bound=0.25)
    for n_rows, n in ((3000, 2000), (40, 9000), (5, 3000), (7, 0)):  # rows of few, many and very many occurrences
        index = rng.zipf(1.3, n).astype(np.int64) % n_rows
        grouping = kernels.group(index)
        gradients = rng.standard_normal(500 * width).astype(dtype)
        starts, its_starts = rng.integers(0, 499 * width + 1, n), rng.integers(0, 500 * width, n)
        weights = rng.standard_normal(n).astype(dtype) if n_rows != 40 else None
        rows, narrow = (rng.standard_normal((n_rows, w)).astype(dtype) for w in (width, 1))
        states = kernels.initial_states(spec, n_rows, width, dtype)
        its_states = kernels.initial_states(its_spec, n_rows, 1, dtype)
        common = {"weights": weights, "step": 3}

        def run(
            together, rows=rows, narrow=narrow, states=states, its_states=its_states, grouping=grouping,
            gradients=gradients, starts=starts, its_starts=its_starts, common=common,
        ):  # fmt: skip
            rows, narrow, states, its_states = copy.deepcopy((rows, narrow, states, its_states))
            beside = kernels.BesideStep(its_spec, narrow, its_states, its_starts, 0.2) if together else None
            kernels.merge_update(spec, rows, states, grouping, gradients, starts, lr=0.3, beside=beside, **common)
            if not together:
                kernels.merge_update(its_spec, narrow, its_states, grouping, gradients, its_starts, lr=0.2, **common)
            return {"rows": rows, "narrow": narrow, **states, **{f"its {key}": s for key, s in its_states.items()}}

        found, wanted = same_from_all(lambda run=run: run(True)), same_from_all(lambda run=run: run(False))
        assert_same_bits(found, wanted)
        assert n == 0 or (found["narrow"] != narrow).any()


def gather_arguments():
    return np.ones((4, 2), np.float32), np.array([0, 3]), np.array([0, 2]), np.zeros(4, np.float32)


@pytest.mark.parametrize(
    ("beside", "said"),
    [
        ((np.ones((4, 2), np.float32), np.array([2])), r"beside.rows is float32\[4, 2\]"),
        ((np.ones((4, 1), np.float64), np.array([2])), "beside.rows is float64"),
        ((np.ones((3, 1), np.float32), np.array([2])), r"index\[1\] is 3"),
        ((np.ones((4, 1), np.float32), np.array([4])), r"start\[0\] is 4"),
        ((np.ones((4, 1), np.float32), np.array([2, 3])), r"beside.start is int64\[2\]"),
    ],
)
def test_gather_refuses(beside, said):
    for backend in ("native", "reference"):
        kernels.use(backend)
        with pytest.raises(ValueError, match=said):
            kernels.pooled_gather(*gather_arguments(), beside=kernels.Beside(*beside))


def test_gather_refuses_rows_in_its_output():
    rows, index, offsets, out = gather_arguments()
    with pytest.raises(ValueError, match=r"out shares memory with beside\.rows"):
        kernels.pooled_gather(rows, index, offsets, out, beside=kernels.Beside(out.reshape(4, 1), np.array([2])))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"spec": SPECS["adam"]}, "the optimizer beside is adam; it must be sgd"),
        ({"rows": np.ones((4, 2), np.float32)}, r"beside.rows is float32\[4, 2\]"),
        ({"rows": np.ones((3, 1), np.float32)}, r"unique\[1\] is 3"),
        ({"source_start": np.array([0, 4])}, r"source_start\[1\] is 4"),
        ({"source_start": np.array([0])}, r"beside.source_start is int64\[1\]"),
        ({"states": {"accumulator": np.ones(4, np.float32)}}, "needs"),
    ],
)
def test_merge_update_refuses(changed, said):
    given = {"spec": SPECS["sgd"], "rows": np.ones((4, 1), np.float32), "states": {}, "lr": 0.1}
    given |= {"source_start": np.array([0, 1]), **changed}
    for backend in ("native", "reference"):
        kernels.use(backend)
        with pytest.raises(ValueError, match=said):
            kernels.merge_update(
                SPECS["sgd"], np.ones((4, 2), np.float32), {}, kernels.group(np.array([0, 3])),
                np.ones(4, np.float32), np.array([0, 2]), lr=0.1, step=1, beside=kernels.BesideStep(**given),
            )  # fmt: skip
