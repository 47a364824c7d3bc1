"""Thresholded sums: what is sent and what stays are the gradient, bit for bit; bytes, thresholds, and steps left out.

Messages are read here by a definition of their own, from what the collectives were given.
"""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from mpi4py import MPI
from pytest_mpi import parallel_assert
from torch import nn

from hpcrec.comm.collectives import Collectives
from hpcrec.comm.ledger import TAGS, Ledger
from hpcrec.dense.dct import DctOptions, Thresholded
from hpcrec.dense.dct_bytes import entry_bytes, form_of, item_bytes, position_bytes
from hpcrec.dense.dct_parts import cut, lay_out
from hpcrec.dense.mpi import MpiAllreduce
from hpcrec.dense.reducer import DenseReducer
from hpcrec.dense.residuals import Residuals
from hpcrec.dense.sparse import HEADER_BYTES, Codec, groups_of, kept_of, most_of, read, take_above, threshold, written
from hpcrec.errors import ConfigError
from hpcrec.kernels import unpack_numbers

KINDS = ("fp32", "bf16", "fp16")
FORMS = ("allgather", "reduce_scatter")
HELD = [("last", 700), ("bias", 1), ("first", 1500), ("small", 30)]
N = sum(n for _, n in HELD)
FLOAT32 = np.dtype(np.float32)


class Recording(Collectives):
    """Remembers what this rank handed to the collectives under way."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        super().__init__(comm.Dup(), range(comm.size), Ledger(comm.rank, [0] * comm.size))
        self.headers: list[np.ndarray] = []
        self.messages: list[np.ndarray] = []

    def start_alltoall(self, send_RM, tag):
        self.headers += list(send_RM.copy())
        return super().start_alltoall(send_RM, tag)

    def start_alltoallv(self, send, send_bytes_R, recv_bytes_R, tag):
        self.messages += [part.copy() for part in np.split(send, np.cumsum(send_bytes_R)[:-1])]
        return super().start_alltoallv(send, send_bytes_R, recv_bytes_R, tag)

    def start_allgather(self, part_M, tag):
        self.headers.append(part_M.copy())
        return super().start_allgather(part_M, tag)

    def start_allgatherv(self, part, bytes_R, tag):
        self.messages.append(part.copy())
        return super().start_allgatherv(part, bytes_R, tag)

    def taken(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Headers and messages since the last call."""
        out = list(zip(self.headers, self.messages, strict=True))
        self.headers, self.messages = [], []
        return out


def decoded(header: np.ndarray, message: np.ndarray, bounds: list[int], kind: str) -> np.ndarray:
    """What a message stands for: an array of zeros but for its entries; the format as docs/dct.md has it."""
    out = np.zeros(bounds[-1] if bounds else 0, np.float32)
    k, packed, position_bytes, n_bytes = header.tolist()
    assert len(message) == n_bytes
    if packed:
        positions = unpack_numbers(message[:position_bytes].copy(), k, rising=True)
    else:
        positions = np.flatnonzero(np.unpackbits(message[:position_bytes], bitorder="little"))
    assert len(positions) == k and (np.diff(positions) > 0).all()
    at, start = position_bytes, 0
    for stop in bounds:
        here = positions[(positions >= start) & (positions < stop)]
        scales = -(-len(here) // 128) if kind == "fp16" else 0
        scale = message[at : at + 4 * scales].copy().view(np.float32)
        at += 4 * scales
        width = 4 if kind == "fp32" else 2
        raw = message[at : at + width * len(here)].copy()
        at += width * len(here)
        if kind == "fp32":
            out[here] = raw.view(np.float32)
        elif kind == "bf16":
            out[here] = (raw.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
        else:
            out[here] = raw.view(np.float16).astype(np.float32) * np.repeat(scale, 128)[: len(here)]
        start = stop
    assert at == n_bytes
    return out


def gradient_of(rank: int, step: int, n: int = N) -> np.ndarray:
    """Magnitudes over ten decades, a stretch of zeros, and equal values."""
    rng = np.random.default_rng([rank, step, n])
    values = rng.standard_normal(n) * 10.0 ** rng.uniform(-8, 2, n)
    values[n // 3 : n // 2] = 0
    values[-n // 10 :] = 0.25
    return values.astype(np.float32)


def made(dense: Collectives, form: str, kind: str, held=HELD, dtype=torch.float32, **changes):
    """A thresholding of one bucket, and its tensor."""
    options = {"density": 0.02, "every": 4, "warmup_steps": 0, "values": kind, "collective": form, **changes}
    dct = Thresholded(MpiAllreduce(dense), dense, DctOptions(**options))
    flat = torch.zeros(sum(n for _, n in held), dtype=dtype)
    dct.arrange({"b": (flat, held)})
    return dct, flat


def unsent(dct: Thresholded, kind: str, n: int = N, held=HELD) -> np.ndarray:
    """Residuals as one array over the bucket."""
    out, at = np.zeros(n, np.float32), 0
    for name, size in held:
        piece = getattr(dct.residuals, kind).get(name)
        if piece is not None:
            out[at + piece.start : at + piece.start + len(piece.left)] = piece.left
        at += size
    return out


def same_bits(found: np.ndarray, wanted: np.ndarray) -> bool:
    return np.array_equal(found.view(np.int32), wanted.view(np.int32))


@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_sent_and_unsent_are_gradient_and_residual_bit_for_bit(form: str, kind: str) -> None:
    """On every rank and in every step; the sum is what was sent, added in rank order; the ledger has every byte."""
    dense = Recording(MPI.COMM_WORLD)
    dct, flat = made(dense, form, kind)
    layout = dct._layouts["b"]
    assert layout.form == form
    ranges = [(N * r // dense.size, N * (r + 1) // dense.size) for r in range(dense.size)]
    for step in range(9):
        before, second = unsent(dct, "first"), unsent(dct, "second")
        bytes_before = dense.ledger.snapshot()[TAGS.index("dense")].sum()
        gradient = gradient_of(dense.rank, step)
        flat.copy_(torch.from_numpy(gradient))
        dct.begin(step)
        dct.wait(dct.start(flat, "b"))
        taken = dense.taken()
        first_messages = taken[: dense.size] if form == "reduce_scatter" else taken
        bounds = [part.bounds for part in layout.ranges] if form == "reduce_scatter" else [layout.whole.bounds]
        sent = np.concatenate([decoded(*m, b, kind) for m, b in zip(first_messages, bounds, strict=True)])
        summed = np.zeros(N, np.float32)
        for one in dense.allgather(sent):
            summed += one
        same = {"first": same_bits(sent + unsent(dct, "first"), gradient + before)}
        if form == "reduce_scatter":
            own = slice(*ranges[dense.rank])
            passed = decoded(*taken[-1], layout.ranges[dense.rank].bounds, kind)
            same["second"] = same_bits(passed + unsent(dct, "second")[own], summed[own] + second[own])
            summed = np.concatenate(dense.allgather(passed))
        same["sum"] = np.array_equal(flat.numpy(), summed)
        same["few"] = 0 < np.count_nonzero(sent) < N // 3
        sizes = [len(message) + HEADER_BYTES for _, message in taken]
        others = [n for r, n in enumerate(sizes[:-1]) if r != dense.rank] if form == "reduce_scatter" else []
        counted = dense.ledger.snapshot()[TAGS.index("dense")].sum() - bytes_before
        same["bytes"] = counted == sum(others) + (dense.size - 1) * sizes[-1]
        parallel_assert(all(same.values()), msg=f"step {step}: {same}")
        everyone = dense.allgather(flat.numpy().tobytes())
        assert everyone == [everyone[0]] * dense.size
    parallel_assert(dct.counts.sent_bytes == dense.ledger.total_bytes())
    assert dct.counts.plain_bytes == 9 * round(2 * (dense.size - 1) / dense.size * 4 * N)
    parallel_assert(dct.counts.scheduled >= 3 * len(HELD) and dct.counts.drifted > 0, msg=f"{dct.counts}")
    dense.close()


@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("form", FORMS)
def test_a_step_that_is_cancelled_has_not_been(form: str) -> None:
    """At whatever stage its collectives are: with 1 to 4 buckets under way, and values that are not finite."""
    dense = Recording(MPI.COMM_WORLD)
    options = DctOptions(density=0.02, every=3, warmup_steps=0, values="fp16", collective=form)
    for n_buckets, bad_step in itertools.product((1, 2, 4), (0, 2, 3)):
        twins = [Thresholded(MpiAllreduce(dense), dense, options) for _ in range(2)]
        flats = [[torch.zeros(N) for _ in range(n_buckets)] for _ in twins]
        for dct, tensors in zip(twins, flats, strict=True):
            dct.arrange({f"b{i}": (t, [(f"{name}{i}", n) for name, n in HELD]) for i, t in enumerate(tensors)})
        for step in range(6):
            for number, (dct, tensors) in enumerate(zip(twins, flats, strict=True)):
                if step == bad_step and number == 1:
                    dct.begin(step)
                    handles = []
                    for i, flat in enumerate(tensors):
                        flat.copy_(torch.from_numpy(gradient_of(dense.rank + 99, step + 7 * i)))
                        if dense.rank == 0:
                            flat[::200], flat[1] = torch.inf, torch.nan
                        handles.append(dct.start(flat, f"b{i}"))
                    for handle in handles:
                        dct.cancel(handle)
                if step != bad_step:
                    dct.begin(step)
                    handles = []
                    for i, flat in enumerate(tensors):
                        flat.copy_(torch.from_numpy(gradient_of(dense.rank, step + 7 * i)))
                        handles.append(dct.start(flat, f"b{i}"))
                    for handle in handles:
                        dct.wait(handle)
            assert all(torch.equal(a, b) for a, b in zip(*flats, strict=True)) or step == bad_step
            left = [{n: (p.left.tobytes(), p.tau) for n, p in d.residuals.first.items() if p.left.any()} for d in twins]
            parallel_assert(left[0] == left[1])
        counts = [dct.counts for dct in twins]
        parallel_assert(len({(c.kept, c.scheduled, c.drifted) for c in counts}) == 1, msg=f"{counts}")
        assert n_buckets == counts[1].sums - counts[0].sums
    dense.close()


@pytest.mark.parallel([1, 3])
def test_whole_sums_are_plain_and_take_along_what_is_unsent() -> None:
    dense = Recording(MPI.COMM_WORLD)
    plain = torch.from_numpy(gradient_of(dense.rank, 0))
    allreduce = MpiAllreduce(dense)
    allreduce.wait(allreduce.start(plain, "b"))
    for changes in ({"density": 1.0}, {"warmup_steps": 1}):
        dct, flat = made(dense, "allgather", "fp16", **changes)
        dct.begin(0)
        flat.copy_(torch.from_numpy(gradient_of(dense.rank, 0)))
        dct.wait(dct.start(flat, "b"))
        assert torch.equal(flat, plain) and dct.counts.whole == 1 and not dense.messages
    dct, flat = made(dense, "reduce_scatter", "bf16")
    sent = np.zeros(N)
    for step in range(5):
        flat.copy_(torch.from_numpy(gradient_of(dense.rank, step)))
        dct.begin(step)
        dct.wait(dct.start(flat, "b"))
        sent += flat.numpy()
    wanted = sum(gradient_of(r, s).astype(np.float64) for r in range(dense.size) for s in range(5)) - sent
    whole, _ = made(dense, "reduce_scatter", "bf16", density=1.0)
    whole.residuals = dct.residuals
    flat.zero_()
    whole.begin(5)
    whole.wait(whole.start(flat, "b"))
    np.testing.assert_allclose(flat.numpy(), wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())
    assert not whole.residuals.first and not whole.residuals.second
    dense.close()


@pytest.mark.parallel([2, 3, 4])
def test_other_buckets_owe_the_same() -> None:
    """Stretches of sums that fall to other ranks go back to the rank that has them; nothing is lost."""
    dense = Recording(MPI.COMM_WORLD)
    dct, flat = made(dense, "reduce_scatter", "fp32")
    for step in range(3):
        flat.copy_(torch.from_numpy(gradient_of(dense.rank, step)))
        dct.begin(step)
        dct.wait(dct.start(flat, "b"))

    def owed() -> dict[str, np.ndarray]:
        out = {}
        for name, n in HELD:
            mine = np.zeros(n)
            for start, left in dct.residuals.owed(name):
                mine[start : start + len(left)] += left
            out[name] = np.sum(dense.allgather(mine), axis=0)
        return out

    wanted, taus = owed(), {n: p.tau for n, p in dct.residuals.first.items()}
    parallel_assert(bool(dct.residuals.second))
    for buckets in (
        {"a": HELD[2:], "b": HELD[:2]},  # other ranges
        {"a": HELD[:1]},  # the others are away
        {"a": [HELD[3], HELD[1]], "b": [HELD[2], HELD[0]]},
    ):
        dct.arrange({name: (torch.zeros(sum(n for _, n in held)), held) for name, held in buckets.items()})
        stretches = {n: (p.start, p.stop) for n, p in dct.residuals.second.items()}
        mine = [s for part in dct._layouts.values() for s in part.ranges[dense.rank].segments]
        parallel_assert(all(stretches[s.name] == (s.start, s.start + s.n) for s in mine if s.name in stretches))
        for name, total in owed().items():
            np.testing.assert_allclose(total, wanted[name], rtol=1e-6, atol=1e-12, err_msg=name)
        parallel_assert({n: p.tau for n, p in dct.residuals.first.items()} == taus)
    dense.close()


@pytest.mark.parallel([2])
def test_a_rank_without_gradients_sends_nothing() -> None:
    """Samples of a batch may all be on other ranks: zeros pass no threshold, not even that of zeros."""
    dense = Recording(MPI.COMM_WORLD)
    for form in FORMS:
        dct, flat = made(dense, form, "fp16")
        for step in range(4):
            flat.copy_(torch.from_numpy(gradient_of(0, step)) if dense.rank == 0 else torch.zeros(N))
            dct.begin(step)
            dct.wait(dct.start(flat, "b"))
        parallel_assert((dct.counts.kept == 0) == (dense.rank == 1) and bool(flat.any()))
        headers = [header.tolist() for header, _ in dense.taken()]
        empty = dense.rank == 1 and form == "allgather"
        parallel_assert(not empty or headers == [[0, 1, 0, 0]] * 4, msg=f"{headers}")
    dense.close()


@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("form", FORMS)
def test_buckets_are_under_way_in_backward(form: str) -> None:
    """Sizes of the last layers' gradients, and messages of all but the newest, before the first layer has its own."""
    dense = Recording(MPI.COMM_WORLD)
    options = DctOptions(density=0.05, every=10, warmup_steps=0, values="bf16", collective=form)
    dct = Thresholded(MpiAllreduce(dense), dense, options)
    model = nn.Sequential(*[nn.Linear(40, 40, bias=False) for _ in range(4)])
    reducer = DenseReducer(list(model.named_parameters()), dct, bucket_bytes=1)
    dct.arrange(reducer.contents)
    assert [held for _, held in reducer.contents.values()] == [[(f"{i}.weight", 1600)] for i in (3, 2, 1, 0)]
    seen = []
    model[0].weight.register_hook(lambda grad: seen.append((len(dense.headers), len(dense.messages))))
    dct.begin(0)
    model(torch.ones(2, 40) * (dense.rank + 1)).square().sum().backward()
    # three buckets have begun; by ranges each message is one for each rank, and the first bucket's sum is thresholded
    parallel_assert(seen == [(3, 2) if form == "allgather" else (3 * dense.size + 1, 2 * dense.size)], msg=f"{seen}")
    reducer.reduce()
    assert all(p.grad.any() for p in model.parameters())
    assert dct.counts.sums == 4 and not dct.counts.whole
    dense.close()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_thresholds_are_exact(dtype) -> None:
    rng = np.random.default_rng(3)
    for n, density in itertools.product((1, 2, 127, 1000), (0.001, 0.07, 0.5, 1.0)):
        values = rng.integers(-20, 20, n).astype(dtype)  # with many ties
        keep = kept_of(n, density)
        assert keep == math.ceil(Fraction(str(density)) * n)
        tau = threshold(values, keep)
        wanted = np.sort(np.abs(values))[::-1][keep - 1]
        assert tau == (wanted or np.finfo(dtype).smallest_subnormal)
        left = values.copy()
        positions, chosen = take_above(left, tau)
        np.testing.assert_array_equal(positions, np.flatnonzero((np.abs(values) >= wanted) & (values != 0)))
        np.testing.assert_array_equal(chosen, values[positions])
        assert not left[positions].any()
        left[positions] = chosen
        np.testing.assert_array_equal(left, values)
    assert (kept_of(100, 0.07), kept_of(1000, 0.005), kept_of(1, 0.005)) == (7, 5, 1)  # 0.07 * 100 is above 7 in binary
    assert (most_of(100, 0.07), most_of(1, 0.005), most_of(1000, 0.005)) == (14, 1, 10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.0, 0.003, 0.2, 0.9, 1.0])
def test_messages_are_read_as_written(kind: str, share: float) -> None:
    rng = np.random.default_rng(11)
    codec = Codec(kind, FLOAT32)
    for bounds in ([1], [700, 701, 2201, 2231], []):
        n = bounds[-1] if bounds else 0
        positions = np.flatnonzero(rng.random(n) < share)
        values = (rng.standard_normal(len(positions)) * 10.0 ** rng.uniform(-6, 6, len(positions))).astype(np.float32)
        header, message = written(positions, values, n, groups_of(positions, bounds), codec)
        found, as_read = read(header, message, bounds, codec)
        np.testing.assert_array_equal(found, positions)
        np.testing.assert_array_equal(as_read, decoded(header, message, bounds, kind)[positions])
        assert header[2] <= -(-n // 8)
        if kind == "fp32":
            np.testing.assert_array_equal(as_read, values)
        elif kind == "bf16":
            np.testing.assert_allclose(as_read, values, rtol=2**-8, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_what_writing_loses_is_a_float_whatever_the_values(kind: str) -> None:
    """So that sent and unsent are the whole: any bits, blocks of wide range, and subnormal ones."""
    rng, codec = np.random.default_rng(2), Codec(kind, FLOAT32)
    any_bits = rng.integers(0, 2**32, 50_000, dtype=np.uint32).view(np.float32)
    with np.errstate(under="ignore"):
        wide = (rng.standard_normal(50_000) * 10.0 ** rng.uniform(-44, 2, 50_000)).astype(np.float32)
        subnormal = (rng.standard_normal(1_000) * 1e-40).astype(np.float32)
    for values in (any_bits[np.isfinite(any_bits) & (np.abs(any_bits) < 3e38)], wide, np.sort(wide), subnormal):
        data, as_read = np.empty(codec.n_bytes(len(values)), np.uint8), np.empty_like(values)
        codec.write(values, data)
        codec.read(data, as_read)
        np.testing.assert_array_equal((values - as_read) + as_read, values)


def test_expected_bytes_are_those_of_random_positions() -> None:
    rng = np.random.default_rng(5)
    for n, density, kind in ((200_000, 0.005, "fp16"), (200_000, 0.05, "bf16"), (50_000, 0.3, "fp32")):
        codec, k = Codec(kind, FLOAT32), kept_of(n, density)
        positions = np.sort(rng.choice(n, k, replace=False))
        header, _ = written(positions, np.ones(k, np.float32), n, [k], codec)
        assert header[2] == pytest.approx(position_bytes(n, k), rel=0.1)
        assert header[3] == pytest.approx(entry_bytes([n], density, codec), rel=0.06)
    assert position_bytes(1000, 0) == 0.0


def test_forms_by_bytes() -> None:
    fp16, fp32 = Codec("fp16", FLOAT32), Codec("fp32", FLOAT32)
    large = [1_000_000]
    assert [form_of(large, r, 0.005, fp16, "auto") for r in (1, 2, 4, 5, 64)] == ["allgather"] * 3 + [
        "reduce_scatter"
    ] * 2
    assert [form_of(large, r, 0.005, fp16, "allgather") for r in (64, 1000)] == ["allgather", "whole"]
    assert form_of(large, 8, 0.005, fp16, "reduce_scatter") == "reduce_scatter"
    assert all(form_of(large, r, 1.0, fp32, wanted) == "whole" for r in (1, 2, 9) for wanted in ("auto", *FORMS))
    # sums of s bytes a kept entry against 2 / N of 4 bytes an entry
    part = entry_bytes(large, 0.2, fp32)
    assert 0.8e6 < part < 1e6
    assert [form_of(large, r, 0.2, fp32, "allgather") for r in (2, 8, 9)] == ["allgather", "allgather", "whole"]
    assert form_of([1] * 10, 4, 0.005, fp32, "auto") == "whole"  # each keeps its one entry
    wide = Codec("fp32", np.dtype(np.float64))
    assert form_of(large, 8, 0.2, wide, "allgather") == "allgather"
    # of few entries sizes take more than what is spared
    assert [form_of([n], 2, 0.25, fp16, "auto") for n in (4, 10, 100)] == ["whole", "whole", "allgather"]
    assert [form_of([n], 5, 0.25, fp16, "auto") for n in (40, 200)] == ["whole", "reduce_scatter"]


@pytest.mark.parallel([2, 3, 4])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n", [8, 20_000])
def test_bytes_of_an_element_are_those_of_the_ledger(form: str, n: int) -> None:
    """As whole sums count them, of all ranks: 2 (N - 1) times; of few elements the sum is whole."""
    dense = Recording(MPI.COMM_WORLD)
    held = [("a", n - n // 4), ("b", n // 4)]
    dct, flat = made(dense, form, "fp16", held, density=0.05)
    dct.begin(0)
    flat.copy_(torch.from_numpy(np.random.default_rng(dense.rank).standard_normal(n).astype(np.float32)))
    dct.wait(dct.start(flat, "b"))
    sent = MPI.COMM_WORLD.allreduce(dense.ledger.total_bytes())
    expected = item_bytes([m for _, m in held], dense.size, 0.05, Codec("fp16", FLOAT32), form)
    parallel_assert(dct.counts.whole == (n == 8) and (expected == 4) == (n == 8))
    parallel_assert(
        bool(sent == pytest.approx(2 * (dense.size - 1) * expected * n, rel=0.06)), msg=f"{sent} {expected}"
    )


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_ranges_hold_every_entry_once(ranks: int) -> None:
    layout = lay_out(HELD, FLOAT32, ranks, values="fp16", density=0.1, collective="reduce_scatter")
    assert [part.n for part in layout.ranges] == [N * (r + 1) // ranks - N * r // ranks for r in range(ranks)]
    found = {name: [] for name, _ in HELD}
    for part in layout.ranges:
        assert part.bounds == [s.at + s.n for s in part.segments] and (not part.n or part.bounds[-1] == part.n)
        for s in part.segments:
            found[s.name] += range(s.start, s.start + s.n)
    assert found == {name: list(range(n)) for name, n in HELD}
    assert cut(layout.whole, 700, 700).segments == ()


def test_residuals_are_made_when_needed() -> None:
    residuals = Residuals()
    assert residuals.owed("w") == []
    residuals.second_of("w", 2, 5, FLOAT32).left[:] = 1
    residuals.settle({"w": (2, 5)}, {"w": 9})
    assert [(start, left.tolist()) for start, left in residuals.owed("w")] == [(2, [1.0] * 3)]
    residuals.settle({"w": (2, 6)}, {"w": 9})
    assert residuals.first["w"].left.tolist() == [0, 0, 1, 1, 1, 0, 0, 0, 0] and not residuals.second


def test_tensors_that_cannot_be_thresholded_are_refused() -> None:
    dense = Recording(MPI.COMM_SELF)
    with pytest.raises(ConfigError, match=r"bucket b is torch.bfloat16 on cpu. Set dense.compression = 'none'"):
        made(dense, "allgather", "fp16", dtype=torch.bfloat16)
    dct, flat = made(dense, "allgather", "fp16", dtype=torch.float64)
    assert dct._layouts["b"].codec.lossless  # a parameter in float64 crosses as it is
    flat.copy_(torch.from_numpy(np.linspace(-1, 1, N)))
    dct.begin(0)
    dct.wait(dct.start(flat, "b"))
    left = np.concatenate([dct.residuals.first[name].left for name, _ in HELD])
    np.testing.assert_array_equal(flat.numpy() + left, np.linspace(-1, 1, N))
    dense.close()
