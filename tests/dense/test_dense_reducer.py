"""Sums of dense gradients: against float64, whatever the buckets, the backend, the order of hooks or the timing."""

import math
import random
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mpi4py import MPI
from torch import nn

from hpcrec.build.dense import DenseSide
from hpcrec.comm.collectives import Collectives
from hpcrec.comm.ledger import TAGS, Ledger
from hpcrec.dense.allreduce import make_allreduce, reducer_at_hand
from hpcrec.dense.horovod import HorovodAllreduce
from hpcrec.dense.mpi import MpiAllreduce
from hpcrec.dense.reducer import DenseReducer, clip_factor
from hpcrec.errors import ConfigError, HpcrecError, MissingError

BACKENDS = ("horovod", "mpi", "direct")


def collectives(comm, ranks=None):
    world = MPI.COMM_WORLD
    ranks = tuple(range(comm.size)) if ranks is None else ranks
    return Collectives(comm.Dup(), ranks, Ledger(world.rank, [0] * world.size))


def backend_of(name):
    """Sums by one of ``BACKENDS``, and where they are made."""
    dense = collectives(MPI.COMM_WORLD)
    return make_allreduce(name, dense), dense


class Recorder:
    """Sums over one rank; remembers what was started."""

    def __init__(self):
        self.started = []

    def start(self, flat, name):
        self.started.append((name, flat.clone()))
        return name

    def wait(self, handle):
        assert handle in [name for name, _ in self.started]


class Model(nn.Module):
    """Towers with a parameter that only some ranks use, one never used, and one frozen."""

    def __init__(self, seed=0, width=17):
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(8, width)
        self.sometimes = nn.Parameter(torch.randn(width))
        self.never = nn.Parameter(torch.randn(5))
        self.frozen = nn.Parameter(torch.randn(3), requires_grad=False)
        self.second = nn.Linear(width, 3)
        self.scale = nn.Parameter(torch.randn(3, dtype=torch.float64))

    def forward(self, x_BD, use):
        hidden = torch.relu(self.first(x_BD))
        if use:
            hidden = hidden * self.sometimes
        return (self.second(hidden).double() * self.scale).sum() / 64


def batch_of(rank, step=0):
    return torch.from_numpy(np.random.default_rng([rank, step]).standard_normal((6, 8)).astype(np.float32))


def backward_of(rank, step=0, use=None):
    """Gradients of one rank by name, from a model of its own."""
    model = Model()
    model(batch_of(rank, step), rank != 1 if use is None else use).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.requires_grad}


def expected_sums(size, step=0):
    """Sums over the ranks in float64, and the size of the sum's terms."""
    sums, terms = {}, {}
    for rank in range(size):
        for name, grad in backward_of(rank, step).items():
            part = 0.0 if grad is None else grad.double().numpy()
            sums[name] = sums.get(name, 0.0) + part
            terms[name] = terms.get(name, 0.0) + np.abs(part)
    return sums, terms


@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("backend", BACKENDS)
def test_sums_match_float64_for_any_bucket_size(backend):
    allreduce, dense = backend_of(backend)
    for bucket_bytes in (1, 300, 10**9):
        model = Model()
        reducer = DenseReducer(list(model.named_parameters()), allreduce, bucket_bytes=bucket_bytes)
        for step in range(3):
            reducer.zero_grad()
            model(batch_of(dense.rank, step), dense.rank != 1).backward()
            reducer.reduce()
            sums, terms = expected_sums(dense.size, step)
            grads = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
            assert set(grads) == set(sums)
            for name, grad in grads.items():
                shape = grad.shape
                error = np.abs(grad.double().numpy() - np.broadcast_to(sums[name], shape))
                assert (error <= 4 * 6e-8 * np.broadcast_to(terms[name], shape)).all(), (name, step, bucket_bytes)
            assert not grads["never"].any()
        assert reducer.wait_s > 0
        reducer.close()
    allreduce.close()
    dense.close()


@pytest.mark.parallel([1, 3])
@pytest.mark.parametrize("backend", BACKENDS)
def test_ledger_counts_the_ring_formula(backend):
    allreduce, dense = backend_of(backend)
    model = Model()
    reducer = DenseReducer(list(model.named_parameters()), allreduce, bucket_bytes=10**9)
    assert reducer.n_bytes == 4 * (8 * 17 + 17 + 17 + 5 + 17 * 3 + 3) + 8 * 3
    for _ in range(2):
        reducer.zero_grad()
        model(batch_of(dense.rank), True).backward()
        reducer.reduce()
    expected = sum(round(2 * (dense.size - 1) / dense.size * n) for n in reducer.bucket_sizes_bytes) * 2
    part = 8 * dense.size * len(reducer.bucket_sizes_bytes) if backend == "direct" and dense.size > 1 else 0
    sent = dense.ledger.snapshot()[TAGS.index("dense")].sum()
    assert abs(sent - expected) <= part  # parts of a bucket differ by an element
    assert dense.ledger.total_bytes() == sent
    allreduce.close()
    dense.close()


@pytest.mark.parallel(3)
@pytest.mark.parametrize("backend", BACKENDS)
def test_jittered_submission_gives_the_same_bits(backend):
    """Sums of three terms of very different size depend on their order: 20 repeats, one result."""
    allreduce, dense = backend_of(backend)
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(40, 40) for _ in range(6)])
    reducer = DenseReducer(list(model.named_parameters()), allreduce, bucket_bytes=7000)
    assert len(reducer.bucket_sizes_bytes) == 6
    jitter = random.Random(dense.rank)
    for p in model.parameters():
        p.register_hook(lambda grad: time.sleep(jitter.random() * 1e-3))
    x = torch.from_numpy(np.random.default_rng(dense.rank).standard_normal((16, 40)).astype(np.float32))
    results = set()
    for _ in range(20):
        reducer.zero_grad()
        time.sleep(jitter.random() * 3e-3)
        (model(x) ** 3).sum().backward()
        reducer.reduce()
        results.add(b"".join(p.grad.numpy().tobytes() for p in model.parameters()))
    assert len(results) == 1
    assert len({r for part in dense.allgather(results) for r in part}) == 1
    allreduce.close()
    dense.close()


@pytest.mark.parallel([2, 3])
def test_clip_is_the_same_on_every_rank_and_torchs_own():
    dense = collectives(MPI.COMM_WORLD)
    allreduce = make_allreduce("mpi", dense)
    model = Model()
    reducer = DenseReducer(list(model.named_parameters()), allreduce, bucket_bytes=200)
    model(batch_of(dense.rank), True).backward()
    reducer.reduce()
    twin = [nn.Parameter(p.detach().clone()) for p in model.parameters() if p.requires_grad]
    for t, p in zip(twin, [p for p in model.parameters() if p.requires_grad], strict=True):
        t.grad = p.grad.clone()
    norm = math.sqrt(reducer.squared_norm())
    reducer.scale(clip_factor(norm, 0.01))
    torch_norm = float(torch.nn.utils.clip_grad_norm_(twin, 0.01))
    assert norm > 0.01
    assert norm == pytest.approx(torch_norm, rel=1e-6)
    for t, p in zip(twin, [p for p in model.parameters() if p.requires_grad], strict=True):
        torch.testing.assert_close(p.grad, t.grad, rtol=1e-6, atol=0)
    assert len(set(dense.allgather(norm))) == 1
    allreduce.close()
    dense.close()


@pytest.mark.parallel(2)
def test_horovod_serves_one_session_after_the_other():
    """Horovod cannot be initialised twice in a process; here it must not crash, but be reused or refused."""
    world = MPI.COMM_WORLD
    for value in (1.0, 3.0):
        dense = collectives(world)
        allreduce = make_allreduce("horovod", dense)
        with pytest.raises(HpcrecError, match="in use by another session"):
            make_allreduce("horovod", dense)
        flat = torch.full((3,), value)
        allreduce.wait(allreduce.start(flat, "x"))
        assert flat.tolist() == [2 * value] * 3
        allreduce.close()
        dense.close()
    swapped = world.Split(0, -world.rank)
    dense = collectives(swapped, ranks=(1, 0))
    with pytest.raises(HpcrecError, match="cannot be initialised twice"):
        make_allreduce("horovod", dense)
    dense.close()
    swapped.Free()


def test_buckets_are_filled_from_the_last_parameter_and_keep_one_dtype():
    parameters = [(f"p{i}", nn.Parameter(torch.zeros(n))) for i, n in enumerate((10, 20, 30, 100, 5))]
    parameters.insert(2, ("wide", nn.Parameter(torch.zeros(4, dtype=torch.float64))))
    allreduce = Recorder()
    reducer = DenseReducer(parameters, allreduce, bucket_bytes=160)
    assert reducer.bucket_sizes_bytes == [20, 400, 120, 32, 120]
    for i, (_, p) in enumerate(parameters):
        p.grad.fill_(i + 1)
    reducer.reduce()
    sent = [flat.unique().tolist() for _, flat in allreduce.started]
    assert sent == [[6.0], [5.0], [4.0], [3.0], [1.0, 2.0]]


def test_a_bucket_starts_during_backward_and_in_fixed_order():
    model = nn.Sequential(*[nn.Linear(4, 4, bias=False) for _ in range(3)])
    allreduce = Recorder()
    reducer = DenseReducer(list(model.named_parameters()), allreduce, bucket_bytes=1)
    seen = []
    model[0].weight.register_hook(lambda grad: seen.append(len(allreduce.started)))
    model(torch.ones(2, 4)).sum().backward()
    assert seen == [2]  # both later layers were under way before the first one's gradient
    assert [name for name, _ in allreduce.started] == ["dense.0", "dense.1", "dense.2"]
    reducer.reduce()
    assert len(allreduce.started) == 3

    reducer.zero_grad()
    model[1](torch.ones(2, 4)).sum().backward()  # the last layer has no gradient, so nothing may overtake it
    assert len(allreduce.started) == 3
    reducer.reduce()
    assert [name for name, _ in allreduce.started[3:]] == ["dense.0", "dense.1", "dense.2"]
    assert not allreduce.started[3][1].any()
    assert allreduce.started[4][1].any()


def test_gradients_are_views_again_after_user_code_replaced_them():
    model = nn.Linear(3, 2)
    reducer = DenseReducer(list(model.named_parameters()), Recorder(), bucket_bytes=1000)
    views = [p.grad for p in model.parameters()]
    model.zero_grad(set_to_none=True)
    model(torch.ones(1, 3)).sum().backward()
    reducer.reduce()
    assert [p.grad is v for p, v in zip(model.parameters(), views, strict=True)] == [True, True]
    assert model.weight.grad.tolist() == [[1.0] * 3] * 2
    model.weight.grad = torch.full((2, 3), 9.0)
    reducer.zero_grad()
    assert model.weight.grad is views[0]
    assert not model.weight.grad.any()
    model.bias.grad = None
    model.weight.grad = torch.full((2, 3), 9.0)
    reducer.reduce()
    assert model.weight.grad is views[0]
    assert model.weight.grad.tolist() == [[9.0] * 3] * 2
    assert model.bias.grad.tolist() == [0.0, 0.0]


def test_accumulation_sends_once_and_is_guarded():
    model = nn.Linear(3, 2)
    allreduce = Recorder()
    reducer = DenseReducer(list(model.named_parameters()), allreduce, bucket_bytes=1000)
    with reducer.accumulating():
        model(torch.ones(1, 3)).sum().backward()
        model(torch.ones(1, 3)).sum().backward()
    assert not allreduce.started
    model(torch.ones(1, 3)).sum().backward()
    reducer.reduce()
    assert len(allreduce.started) == 1
    assert model.weight.grad.tolist() == [[3.0] * 3] * 2

    with pytest.raises(HpcrecError, match=r"zero_grad\(\) before the next step"):
        model(torch.ones(1, 3)).sum().backward()
    reducer.zero_grad()
    model(torch.ones(1, 3)).sum().backward()
    with pytest.raises(HpcrecError, match=r"'(weight|bias)' got a gradient after its bucket was sent"):
        model(torch.ones(1, 3)).sum().backward()
    with pytest.raises(HpcrecError, match="in flight"):
        reducer.zero_grad()


def test_clip_leaves_small_and_non_finite_gradients_alone():
    parameter = nn.Parameter(torch.zeros(2))
    reducer = DenseReducer([("p", parameter)], Recorder(), bucket_bytes=8)
    parameter.grad.copy_(torch.tensor([3.0, 4.0]))
    reducer.reduce()
    assert reducer.squared_norm() == pytest.approx(25.0, rel=1e-15)
    reducer.scale(clip_factor(5.0, 10.0))
    assert parameter.grad.tolist() == [3.0, 4.0]
    reducer.scale(clip_factor(5.0, 0.5))
    assert parameter.grad.tolist() == pytest.approx([0.3, 0.4], rel=1e-5)
    parameter.grad[0] = float("inf")
    assert reducer.squared_norm() == float("inf")
    assert clip_factor(float("inf"), 0.5) == clip_factor(float("nan"), 0.5) == 1.0


def test_a_model_without_dense_parameters_and_a_shared_one():
    reducer = DenseReducer([], Recorder(), bucket_bytes=8)
    reducer.reduce()
    assert reducer.n_bytes == 0
    shared = nn.Parameter(torch.zeros(1))
    with pytest.raises(HpcrecError, match="twice"):
        DenseReducer([("a", shared), ("b", shared)], Recorder(), bucket_bytes=8)


def test_names_and_tensors_that_cannot_be_reduced():
    dense = collectives(MPI.COMM_SELF, ranks=(MPI.COMM_WORLD.rank,))
    with pytest.raises(ConfigError, match=r"dense.reducer is 'nccl'. Allowed: 'horovod', 'mpi', 'direct'"):
        make_allreduce("nccl", dense)
    with pytest.raises(ConfigError, match=r"bucket b is torch.bfloat16 on cpu"):
        MpiAllreduce(dense).start(torch.zeros(2, dtype=torch.bfloat16), "b")
    dense.close()


def test_without_horovod_the_error_says_what_to_do(monkeypatch):
    dense = collectives(MPI.COMM_SELF, ranks=(MPI.COMM_WORLD.rank,))
    monkeypatch.setitem(sys.modules, "horovod.torch", None)
    with pytest.raises(MissingError, match=r"cannot be imported .*'make setup' .*tools/horovod.sh.*reducer = 'mpi'"):
        HorovodAllreduce(dense)
    dense.close()


@pytest.mark.parametrize("name", BACKENDS)
def test_one_dense_rank_needs_no_reducer(monkeypatch, name):
    dense = collectives(MPI.COMM_SELF, ranks=(MPI.COMM_WORLD.rank,))
    monkeypatch.setitem(sys.modules, "horovod.torch", None)
    flat, allreduce = torch.tensor([1.5, 2.5], dtype=torch.bfloat16), make_allreduce(name, dense)
    allreduce.wait(allreduce.start(flat, "x"))
    assert flat.tolist() == [1.5, 2.5] and allreduce.facts() == {} and not dense.ledger.snapshot().any()
    assert reducer_at_hand(dense, threads=False) == ("horovod", "")
    allreduce.close()
    dense.close()


@pytest.mark.parallel([2, 3])
def test_where_one_rank_has_no_horovod_mpi_sums_on_all(monkeypatch):
    dense = collectives(MPI.COMM_WORLD)
    assert reducer_at_hand(dense, threads=True) == ("horovod", "")
    name, why = reducer_at_hand(dense, threads=False)
    assert name == "mpi" and "MPI_THREAD_MULTIPLE" in why
    if dense.rank == 1:
        monkeypatch.setitem(sys.modules, "horovod.torch", None)
    name, why = reducer_at_hand(dense, threads=True)
    assert name == "mpi" and "tools/horovod.sh" in why and len(set(dense.allgather(why))) == 1
    allreduce, flat = make_allreduce(name, dense), torch.full((3,), 2.0)
    allreduce.wait(allreduce.start(flat, "x"))
    assert flat.tolist() == [2.0 * dense.size] * 3
    allreduce.close()
    dense.close()


def test_why_mpi_sums_is_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("hpcrec.build.dense.reducer_at_hand", lambda *_, **__: ("mpi", "there is no Horovod."))
    side = DenseSide.__new__(DenseSide)
    side._world = SimpleNamespace(dense=SimpleNamespace(rank=0), threads_may_communicate=True)  # type: ignore[assignment]
    assert side._reducer_at_hand() == "mpi"
    assert capsys.readouterr().err == "hpcrec: dense gradients are summed by MPI: there is no Horovod.\n"
