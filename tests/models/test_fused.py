"""Fast forms of layers against their torch formulas: forward, backward, and where each runs."""

import pytest
import torch
from torch import nn

from hpcrec import kernels
from hpcrec.models import build_model
from hpcrec.models.layers import DotInteraction, Tower, mlp
from hpcrec.operators import product
from hpcrec.types import Feature


@pytest.fixture(autouse=True)
def native_backend():
    kernels.use("native")
    kernels.set_threads(1)
    yield
    kernels.use("native")


def randn(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed)).requires_grad_(True)


def close(found, wanted, relative):
    assert found.dtype == wanted.dtype and found.shape == wanted.shape
    scale = max(1.0, wanted.abs().max().item()) if wanted.numel() else 1.0
    assert (found - wanted).abs().max().item() <= relative * scale if wanted.numel() else True


def gradients(run, leaves, seed=9):
    """Output and the gradients of the leaves, for a random gradient of the output."""
    for leaf in leaves:
        leaf.grad = None
    out = run()
    out.backward(torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(seed)))
    return [out.detach(), *(leaf.grad for leaf in leaves)]


def runs_as(name, out):
    """Whether the node that made a tensor is the fast one."""
    return type(out.grad_fn).__name__ == name


# --- dot interaction -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("with_first", [True, False])
@pytest.mark.parametrize(("n", "width"), [(2, 1), (3, 63), (27, 16), (40, 64)])
@pytest.mark.parametrize("n_samples", [0, 1, 5])
def test_interaction_is_its_formula(dtype, with_first, n, width, n_samples):
    block = randn(n_samples, n - with_first, width, dtype=dtype)
    first = randn(n_samples, width, dtype=dtype, seed=1) if with_first else None
    leaves = [block, first] if with_first else [block]
    layer = DotInteraction(n)
    assert runs_as("_DotInteractionBackward", layer(block, first))
    found = gradients(lambda: layer(block, first), leaves)
    kernels.use("reference")
    assert not runs_as("_DotInteractionBackward", layer(block, first))
    wanted = gradients(lambda: layer(block, first), leaves)
    for a, b in zip(found, wanted, strict=True):
        close(a, b, 1e-5 if dtype == torch.float32 else 1e-12)


def test_interaction_gradcheck():
    layer = DotInteraction(4)
    assert torch.autograd.gradcheck(layer, (randn(3, 3, 5, dtype=torch.float64), randn(3, 5, dtype=torch.float64)))
    assert torch.autograd.gradcheck(layer, (randn(3, 4, 5, dtype=torch.float64),))


def test_interaction_of_views_and_expanded_gradients():
    whole = randn(5, 6, 8, dtype=torch.float64)
    layer = DotInteraction(3)
    found = torch.autograd.grad(layer(whole[:, 1:5:2], whole[:, 0]).sum(), whole)[0]
    kernels.use("reference")
    wanted = torch.autograd.grad(layer(whole[:, 1:5:2], whole[:, 0]).sum(), whole)[0]
    close(found, wanted, 1e-12)


def test_interaction_where_the_kernel_does_not_fit():
    block = randn(4, 3, 8).detach().bfloat16().requires_grad_(True)
    out = DotInteraction(3)(block)
    assert out.dtype == torch.bfloat16 and not runs_as("_DotInteractionBackward", out)
    assert DotInteraction(3)(torch.empty(4, 3, 8, device="meta")).shape == (4, 3)
    with pytest.raises(ValueError, match="made for 3 vectors a sample; it was given 4"):
        DotInteraction(3)(randn(4, 3, 8), randn(4, 8))


# --- linear and ReLU -------------------------------------------------------------------------------------------------


@pytest.fixture
def onednn():
    if not product.onednn_works():
        pytest.skip("this torch has no fused linear operator")


def formula(tower, x):
    """What ``nn.Sequential`` computes, layer by layer."""
    return nn.Sequential.forward(tower, x)


@pytest.mark.parametrize(
    ("n_in", "hidden", "n_out"), [(13, (32, 16), None), (367, (48,), 1), (1, (1,), 2), (16, (7, 5, 3), 1)]
)
@pytest.mark.parametrize("n_samples", [1, 5, 130])
def test_tower_is_its_formula(onednn, n_in, hidden, n_out, n_samples):
    torch.manual_seed(1)
    tower, x = mlp(n_in, hidden, n_out), randn(n_samples, n_in)
    for parameter in tower.parameters():
        nn.init.normal_(parameter, std=0.2)
    assert isinstance(tower, Tower)
    leaves = [x, *tower.parameters()]
    found = gradients(lambda: tower(x), leaves)
    wanted = gradients(lambda: formula(tower, x), leaves)
    for a, b in zip(found, wanted, strict=True):
        close(a, b, 1e-5)
    assert all(p.grad.is_contiguous() for p in tower.parameters())


def test_where_a_tower_is_fused(onednn):
    tower = mlp(4, (3,))
    assert runs_as("_LinearReLUBackward", tower(randn(5, 4)))
    assert not runs_as("_LinearReLUBackward", tower(randn(0, 4)))
    assert not runs_as("_LinearReLUBackward", mlp(4, (3,)).double()(randn(5, 4, dtype=torch.float64)))
    torch.backends.mkldnn.enabled = False
    try:
        assert not runs_as("_LinearReLUBackward", tower(randn(5, 4)))
    finally:
        torch.backends.mkldnn.enabled = True


def test_inputs_without_gradients_get_none(onednn):
    """The first layer's inputs are data: nothing is computed for them. Frozen weights stay without a gradient too."""
    tower, x = mlp(4, (3,)), randn(5, 4).detach()
    tower[0].weight.requires_grad_(False)
    tower(x).sum().backward()
    assert x.grad is None and tower[0].weight.grad is None and tower[0].bias.grad is not None


def test_names_and_dropout(onednn):
    """Parameters have the names that checkpoints know, and dropout drops where it did."""
    tower = mlp(4, (8, 6), 2, dropout=0.5)
    assert list(tower.state_dict()) == [f"{i}.{n}" for i in (0, 3, 6) for n in ("weight", "bias")]
    x = randn(50, 4)
    torch.manual_seed(3)
    found = tower(x)
    torch.manual_seed(3)
    close(found, formula(tower, x), 1e-5)
    tower.eval()
    close(tower(x), formula(tower, x), 1e-5)


def test_gradients_cannot_be_differentiated_again(onednn):
    x, block = randn(5, 4), randn(5, 3, 4)
    for out, leaf in ((mlp(4, (3,))(x), x), (DotInteraction(3)(block), block)):
        (gradient,) = torch.autograd.grad(out.square().sum(), leaf, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            gradient.sum().backward()


@pytest.mark.parametrize("width", [16, 64])
def test_dlrm_is_its_formula(width):
    """The whole model in float32, fast forms against plain torch: logits and every gradient."""
    torch.manual_seed(2)
    features = [Feature(name=f"f{i}", cardinality=5) for i in range(26)]
    model = build_model("dlrm", features, 13, width=width)
    dense, block = randn(33, 13).detach(), randn(33, 26, width, seed=3)
    leaves = [block, *model.parameters()]
    found = gradients(lambda: model({"block": block}, dense), leaves)
    kernels.use("reference")
    torch.backends.mkldnn.enabled = False
    try:
        wanted = gradients(lambda: model({"block": block}, dense), leaves)
    finally:
        torch.backends.mkldnn.enabled = True
    for a, b in zip(found, wanted, strict=True):
        close(a, b, 1e-5)
