"""Matrix products by oneDNN on CPUs, where that is at hand: several times as fast as torch's own on some processors.

Each computes its torch formula, which stays the definition and is what runs wherever the fast form does not fit: other
devices and types, or a torch without the piece. Knows torch alone.

Legend: ``B`` samples, ``X`` and ``Y`` inputs and outputs.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def product(x_BX: Tensor, weight_XY: Tensor) -> Tensor:
    """``x W``: [B, Y].

    The gradient of the fast form cannot be differentiated again; torch says so where it is tried.
    ``torch.backends.mkldnn.enabled = False`` turns the fast form off.
    """
    if fits_onednn(x_BX, weight_XY):
        return _Product.apply(x_BX.contiguous(), weight_XY)
    return x_BX @ weight_XY


def fits_onednn(*tensors: Tensor) -> bool:
    """Whether ``linear`` can be had of these: inputs, and what they meet."""
    return (
        not torch.compiler.is_compiling()  # a graph is made of the formula
        and all(x.device.type == "cpu" and x.dtype == torch.float32 and x.numel() > 0 for x in tensors)
        and tensors[0].ndim == 2
        and bool(torch.backends.mkldnn.enabled)
        and not torch.is_autocast_enabled("cpu")
        and onednn_works()
    )


@cache
def onednn_works() -> bool:
    """Whether torch's fused linear operator, which is not public, is there and computes what is expected of it."""
    x, w, b = torch.linspace(-1, 1, 12).view(4, 3), torch.linspace(1, -2, 6).view(2, 3), torch.tensor([0.5, -0.5])
    try:
        found = linear(x, w, b, "relu"), linear(x, w.t().contiguous().t(), None, "none")
    except (AttributeError, RuntimeError, TypeError):
        return False
    wanted = torch.relu(x @ w.t() + b), x @ w.t()
    return all(torch.allclose(f, y, rtol=1e-5, atol=1e-6) for f, y in zip(found, wanted, strict=True))


def linear(x_BX: Tensor, weight_YX: Tensor, bias_Y: Tensor | None, last: str) -> Tensor:
    """``last(x W^T + b)`` by oneDNN, ``last`` "relu" or "none"; x contiguous. Without gradients."""
    return torch.ops.mkldnn._linear_pointwise(x_BX, weight_YX, bias_Y, last, [], "")


class _Product(torch.autograd.Function):
    """``product`` of float32 on the CPU."""

    @staticmethod
    def forward(ctx: Any, x_BX: Tensor, weight_XY: Tensor) -> Tensor:
        ctx.save_for_backward(x_BX, weight_XY)
        return linear(x_BX, weight_XY.t(), None, "none")

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_BY: Tensor) -> tuple[Tensor | None, ...]:
        x_BX, weight_XY = ctx.saved_tensors
        need_x, need_weight = ctx.needs_input_grad
        g_BY = gradient_BY.contiguous()
        return (
            linear(g_BY, weight_XY, None, "none") if need_x else None,
            linear(x_BX.t().contiguous(), g_BY.t(), None, "none") if need_weight else None,
        )
