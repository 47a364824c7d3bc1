"""Sums over features of pooled vectors and of their squares, in one pass over memory forward and one back.

By kernels (``kernels.fm_sums``) on CPUs, and on GPUs where theirs are built; torch's formula, several passes, is what
runs elsewhere, and of the gradient where it is to be differentiated again. Knows nothing of what the sums are for.

Legend: ``B`` samples, ``F`` features, ``D`` width.
"""

from typing import Any

import torch
from torch import Tensor

from hpcrec import kernels
from hpcrec.kernels.backend import BACKENDS


def both_sums(pooled_BFD: Tensor) -> tuple[Tensor, Tensor]:
    """``(S_BD, Q_B)``: sum over f of ``v_f``, sum over f of ``|v_f|^2``."""
    if torch.compiler.is_compiling():  # a graph is made of the formula
        return pooled_BFD.sum(1), pooled_BFD.square().sum((1, 2))
    return _Sums.apply(pooled_BFD)


def _has_kernel(pooled_BFD: Tensor) -> bool:
    """Whether a kernel takes such vectors where they are."""
    if pooled_BFD.dtype not in (torch.float32, torch.float64) or not pooled_BFD.shape[2]:
        return False
    if pooled_BFD.shape[2] > 1 and pooled_BFD.stride(2) != 1:
        return False
    return pooled_BFD.device.type == "cpu" or (pooled_BFD.device.type == "cuda" and BACKENDS["cuda"].available())


def _run(name: str, *tensors: Tensor) -> None:
    if tensors[0].device.type == "cpu":
        getattr(kernels, name)(*(t.detach().numpy() for t in tensors))
    else:
        BACKENDS["cuda"].run_there(name, *(t.detach() for t in tensors))


class _Sums(torch.autograd.Function):
    """``both_sums``, whose gradient is ``g_S + 2 g_Q v``."""

    @staticmethod
    def forward(ctx: Any, pooled_BFD: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(pooled_BFD)
        if not _has_kernel(pooled_BFD):
            return pooled_BFD.sum(1), pooled_BFD.square().sum((1, 2))
        n_samples, _, width = pooled_BFD.shape
        sums_BD, squares_B = pooled_BFD.new_empty(n_samples, width), pooled_BFD.new_empty(n_samples)
        _run("fm_sums", pooled_BFD, sums_BD, squares_B)
        return sums_BD, squares_B

    @staticmethod
    def backward(ctx: Any, sums_gradient_BD: Tensor, squares_gradient_B: Tensor) -> Tensor:
        (pooled_BFD,) = ctx.saved_tensors
        gradient_BFD = torch.empty_like(pooled_BFD)
        if torch.is_grad_enabled() or not (_has_kernel(pooled_BFD) and _has_kernel(gradient_BFD)):
            return torch.addcmul(sums_gradient_BD[:, None], pooled_BFD, 2 * squares_gradient_B[:, None, None])
        given = pooled_BFD, sums_gradient_BD.contiguous(), squares_gradient_B.contiguous()
        _run("fm_sums_backward", *given, gradient_BFD)
        return gradient_BFD
