"""The two sums of FM2 by kernels, by torch, and by a device's kernels: values, gradients, gradients of gradients."""

import pytest
import torch

from hpcrec import kernels
from hpcrec.kernels.backend import BACKENDS
from hpcrec.operators import sums
from hpcrec.operators.sums import both_sums

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def vectors_of(layout: str, dtype: torch.dtype, width: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(width)
    b, f = 37, 9
    shape = {
        "samples": (b, f, width),
        "features": (f, b, width),
        "columns": (width, b, f),
        "cut": (b, f + 2, width + 3),
    }
    made = torch.randn(shape[layout], generator=generator, dtype=torch.float64).to(dtype)
    if layout == "features":
        return made.transpose(0, 1)
    if layout == "columns":
        return made.permute(1, 2, 0)
    return made[:, 1:-1, 2:-1] if layout == "cut" else made


def formula(pooled: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return pooled.sum(1), pooled.square().sum((1, 2))


@pytest.mark.parametrize("layout", ["samples", "features", "columns", "cut"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("width", [1, 3, 16, 64])
def test_both_sums_are_torchs(layout, dtype, width):
    leaf = vectors_of(layout, dtype, width).requires_grad_(True)
    found, wanted = both_sums(leaf), formula(leaf)
    weights = [torch.linspace(-1, 1, w.numel(), dtype=dtype).view(w.shape) for w in wanted]
    tolerance = TOLERANCE.get(dtype, 0.1)
    gradients = []
    for pair in (found, wanted):
        assert [(p.dtype, p.shape) for p in pair] == [(w.dtype, w.shape) for w in wanted]
        total = sum((p * w).sum() for p, w in zip(pair, weights, strict=True))
        gradients.append(torch.autograd.grad(total, leaf)[0])
    for a, b in (*zip(found, wanted, strict=True), gradients):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * 10)


def test_only_one_of_them_has_a_gradient():
    leaf = vectors_of("features", torch.float64, 4).requires_grad_(True)
    for number in range(2):
        (found,) = torch.autograd.grad(both_sums(leaf)[number].sum(), leaf)
        (wanted,) = torch.autograd.grad(formula(leaf)[number].sum(), leaf)
        torch.testing.assert_close(found, wanted)


def test_gradients_of_gradients():
    leaf = vectors_of("samples", torch.float64, 3)[:2, :3].requires_grad_(True)
    assert torch.autograd.gradgradcheck(both_sums, (leaf,))


def test_the_kernels_run(monkeypatch):
    ran = []
    run = sums._run
    monkeypatch.setattr(sums, "_run", lambda name, *tensors: (ran.append(name), run(name, *tensors)))
    both_sums(vectors_of("features", torch.float32, 8).requires_grad_(True))[0].sum().backward()
    assert ran == ["fm_sums", "fm_sums_backward"]
    both_sums(vectors_of("columns", torch.float32, 8))
    both_sums(vectors_of("samples", torch.bfloat16, 8))
    assert len(ran) == 2


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("layout", ["samples", "features", "cut"])
def test_tensors_where_they_are(layout, dtype):
    """As tensors of a GPU go to its kernels."""
    device, given = BACKENDS["emulated"], vectors_of(layout, dtype, 20)
    wanted = torch.empty(37, 20, dtype=dtype), torch.empty(37, dtype=dtype)
    kernels.fm_sums(given.numpy(), *(w.numpy() for w in wanted))
    found = [torch.empty_like(w) for w in wanted]
    device.run_there("fm_sums", given, *found)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    gradients = [torch.empty_like(given), torch.empty_like(given)]
    device.run_there("fm_sums_backward", given, *wanted, gradients[0])
    kernels.fm_sums_backward(given.numpy(), *(w.numpy() for w in wanted), gradients[1].numpy())
    assert torch.equal(*gradients)


@pytest.mark.skipif(not BACKENDS["cuda"].available(), reason="no GPU that torch can use")
@pytest.mark.parametrize("layout", ["samples", "features", "columns", "cut"])
def test_on_a_gpu(layout):
    leaf = vectors_of(layout, torch.float32, 20)
    there = leaf.cuda().requires_grad_(True)
    leaf.requires_grad_(True)
    for pair, x in ((both_sums(leaf), leaf), (both_sums(there), there)):
        (pair[0].sum() + pair[1].sum()).backward()
        torch.testing.assert_close(pair[0].cpu(), leaf.sum(1), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(x.grad.cpu(), leaf.grad, rtol=1e-6, atol=1e-6)
