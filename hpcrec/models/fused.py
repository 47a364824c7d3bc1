"""Faster forms of what layers compute, on CPUs: the same mathematics, equal within rounding.

Each function computes its torch formula, which stays the definition and is what runs wherever the fast form does not
fit: other devices and types, or a machine without the piece that makes it fast. Knows torch and kernels, no layers.

Legend: ``B`` samples, ``F`` vectors of the block, ``N`` all of a sample's vectors, ``D`` their width, ``X`` and ``Y``
inputs and outputs of a layer, ``P`` pairs.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hpcrec import kernels
from hpcrec.operators.product import fits_onednn, linear

_LINE = 16  # elements of float32 in a cache line


def linear_relu(x_BX: Tensor, weight_YX: Tensor, bias_Y: Tensor) -> Tensor:
    """``relu(x W^T + b)``: float32 by oneDNN, which adds the bias and cuts off while a block is in the cache.

    The gradient of the fast form cannot be differentiated again; torch says so where it is tried.
    ``torch.backends.mkldnn.enabled = False`` turns the fast form off.
    """
    if fits_onednn(x_BX, weight_YX, bias_Y):
        return _LinearReLU.apply(x_BX.contiguous(), weight_YX, bias_Y)
    return torch.relu(torch.nn.functional.linear(x_BX, weight_YX, bias_Y))


def added_relu(base_BY: Tensor, x_BX: Tensor, weight_YX: Tensor | None, bias_Y: Tensor) -> Tensor:
    """``relu(base + x W^T + b)``; without ``weight`` there are no inputs x.

    The bias is a column of the weight here, so that base and product are gone through once, and the ReLU in place.
    """
    if weight_YX is None:
        return torch.relu(base_BY + bias_Y)
    x1 = torch.cat([x_BX, x_BX.new_ones(x_BX.shape[0], 1)], 1)
    return torch.addmm(base_BY, x1, torch.cat([weight_YX, bias_Y[:, None]], 1).t()).relu_()


def dot_interaction(first_BD: Tensor | None, block_BFD: Tensor, place_P: Tensor) -> Tensor:
    """``[first, <v_i, v_j> for j < i]`` over ``v = [first, *block]``: [B, D + P], or [B, P] without ``first``.

    The gradient of the fast form cannot be differentiated again; torch says so where it is tried.

    Parameters
    ----------
    first_BD : Tensor [B, D] or None
    block_BFD : Tensor [B, F, D]
    place_P : int64 [P]
        Where the products lie in the flat matrix of all of them.
    """
    if _by_kernel(block_BFD) and (first_BD is None or (_by_kernel(first_BD) and first_BD.dtype == block_BFD.dtype)):
        return _DotInteraction.apply(None if first_BD is None else first_BD.contiguous(), block_BFD.contiguous())
    vectors_BND = block_BFD if first_BD is None else torch.cat([first_BD[:, None], block_BFD], 1)
    products_BNN = torch.bmm(vectors_BND, vectors_BND.transpose(1, 2))
    products_BP = products_BNN.flatten(1).index_select(1, place_P)
    return products_BP if first_BD is None else torch.cat([first_BD, products_BP], 1)


def _by_kernel(x: Tensor) -> bool:
    if torch.compiler.is_compiling():  # a graph is made of the formula
        return False
    return x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64) and kernels.active() == "native"


class _LinearReLU(torch.autograd.Function):
    """``linear_relu`` of contiguous float32 on the CPU."""

    @staticmethod
    def forward(ctx: Any, x_BX: Tensor, weight_YX: Tensor, bias_Y: Tensor) -> Tensor:
        y_BY = linear(x_BX, weight_YX, bias_Y, "relu")
        ctx.save_for_backward(x_BX, weight_YX, y_BY)
        return y_BY

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_BY: Tensor) -> tuple[Tensor | None, ...]:
        x_BX, weight_YX, y_BY = ctx.saved_tensors
        need_x, need_weight, need_bias = ctx.needs_input_grad
        g_BY = torch.ops.aten.threshold_backward(gradient_BY, y_BY, 0)
        return (
            linear(g_BY, weight_YX.t(), None, "none") if need_x else None,
            _weight_gradient(g_BY, x_BX) if need_weight else None,
            g_BY.sum(0) if need_bias else None,
        )


def _weight_gradient(g_BY: Tensor, x_BX: Tensor) -> Tensor:
    """``g^T x``; by its transpose where rows of x begin anywhere in a cache line: MKL is then up to 3 times as fast."""
    if x_BX.shape[1] % _LINE:
        return x_BX.t().mm(g_BY).t().contiguous()
    return g_BY.t().mm(x_BX)


class _DotInteraction(torch.autograd.Function):
    """``dot_interaction`` of contiguous tensors by the native kernel."""

    @staticmethod
    def forward(ctx: Any, first_BD: Tensor | None, block_BFD: Tensor) -> Tensor:
        n_samples, n_vectors, width = block_BFD.shape
        if first_BD is not None:
            n_vectors += 1
        n_pairs = n_vectors * (n_vectors - 1) // 2
        out = block_BFD.new_empty(n_samples, n_pairs if first_BD is None else width + n_pairs)
        kernels.dot_interaction(_array(first_BD), _array(block_BFD), _array(out))
        ctx.save_for_backward(first_BD, block_BFD)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor]:
        first_BD, block_BFD = ctx.saved_tensors
        first_gradient = None if first_BD is None else torch.empty_like(first_BD)
        block_gradient = torch.empty_like(block_BFD)
        kernels.dot_interaction_backward(
            _array(first_BD),
            _array(block_BFD),
            _array(gradient.contiguous()),
            _array(first_gradient),
            _array(block_gradient),
        )
        return first_gradient, block_gradient


def _array(x: Tensor | None) -> Any:
    return None if x is None else x.detach().numpy()
