"""Drawn arguments for each operator that a graph may hold: an error or a result, never a signal.

Tensors lie between pages that no one may read, so that an operator that reads or writes beside one ends its process.
Run as a program, it prints a line of JSON for each operator: ``python -m tests.bad_input.operators N``.
"""

import ctypes
import json
import mmap
import os
import random
import resource
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from hpcrec.serving.operators import _ATEN, find_operator

MEMORY_BYTES = 128 << 20
LIMIT_S = 2  # an operator may take long, and is then ended
_PAGE = mmap.PAGESIZE
_HUGE = (2**31 - 1, 2**31, 2**32, 2**32 + 2, 2**40, 2**61, 2**62, 2**62 + 2, 2**62 + 8, 2**63 - 1, -(2**63), -(2**62))
_TEXTS = (
    "same",
    "valid",
    "sum",
    "prod",
    "amax",
    "trunc",
    "floor",
    "tanh",
    "constant",
    "reflect",
    "replicate",
    "circular",
)
_DTYPES = (torch.float32, torch.float64, torch.int64, torch.int32, torch.int8, torch.bool, torch.bfloat16)

# What is valid, as shapes of tensors in text and other arguments as they are; from it one or two arguments depart.
VALID: dict[str, tuple[Any, ...]] = {
    "_native_batch_norm_legit_no_training": ("2 4", "4", "4", "4", "4", 0.1, 1e-5),
    "native_group_norm": ("2 4 8", "4", "4", 2, 4, 8, 2, 1e-5),
    "group_norm": ("2 4 8", 2, "4", "4"),
    "native_layer_norm": ("2 3 4", [4], "4", "4", 1e-5),
    "layer_norm": ("2 3 4", [4], "4", "4"),
    "rms_norm": ("2 3 4", [4], "4"),
    "prelu": ("2 4 3", "4"),
    "addbmm": ("2 3", "5 2 4", "5 4 3"),
    "baddbmm": ("5 2 3", "5 2 4", "5 4 3"),
    "addmm": ("2 3", "2 4", "4 3"),
    "addmv": ("2", "2 4", "4"),
    "bmm": ("5 2 4", "5 4 3"),
    "mm": ("2 4", "4 3"),
    "mv": ("2 4", "4"),
    "dot": ("4", "4"),
    "linear": ("2 4", "3 4", "3"),
    "bilinear": ("2 3", "2 4", "5 3 4", "5"),
    "conv1d": ("2 4 9", "4 2 3", "4", [1], [1], [1], 2),
    "conv2d": ("2 4 5 5", "4 2 3 3", "4", [1, 1], [1, 1], [1, 1], 2),
    "convolution": ("2 4 9", "4 2 3", "4", [1], [1], [1], False, [0], 2),
    "avg_pool1d": ("2 4 9", [3], [2], [1]),
    "avg_pool2d": ("2 4 5 5", [3, 3], [2, 2], [1, 1]),
    "max_pool1d": ("2 4 9", [3], [2], [1], [1]),
    "max_pool2d": ("2 4 5 5", [3, 3], [2, 2], [1, 1], [1, 1]),
    "scaled_dot_product_attention": ("2 3 5 8", "2 3 7 8", "2 3 7 8", "5 7"),
    "embedding": ("5 3", "i2 4"),
    "gather": ("4 16", 0, "i2 16"),
    "scatter": ("4 16", 0, "i2 16", "2 16"),
    "scatter_add": ("4 16", 0, "i2 16", "2 16"),
    "index_select": ("4 3", 0, "i5"),
    "take_along_dim": ("4 3", "i2 3", 0),
    "repeat_interleave": ("4 3", "i4", 0),
    "repeat_interleave.Tensor": ("i4",),
    "repeat_interleave.self_int": ("4 3", 2, 0),
    "split_with_sizes": ("8", [3, 3, 2], 0),
    "constant_pad_nd": ("2 4 5", [1, 2, -1, 0], 0.5),
    "pad": ("2 4 5", [1, 2], "replicate"),
    "narrow": ("8 2", 0, 1, 3),
    "masked_fill": ("4", "b4", 1.0),
    "unflatten": ("2 6", 1, [2, 3]),
    "view": ("2 6", [4, 3]),
    "repeat": ("2 3", [2, 1, 2]),
    "expand": ("1 3", [4, 3]),
    "topk": ("3 5", 2, 1),
    "roll": ("3 5", [1], [0]),
    "diagonal": ("3 5", 1, 0, 1),
}


def names() -> list[str]:
    """Every operator, with its overload."""
    every = [f"aten.{base}.{o}" for base in sorted(_ATEN) for o in getattr(torch.ops.aten, base).overloads()]
    return [name for name in every if find_operator(name)]


class Drawn:
    """Arguments of one call."""

    def __init__(self, name: str, seed: int) -> None:
        self.draw = random.Random(f"{name} {seed}")
        _, base, overload = name.split(".")
        arguments = getattr(getattr(torch.ops.aten, base), overload)._schema.arguments
        self._shape = [self.draw.choice((1, 2, 3, 4, 8)) for _ in range(self.draw.choice((1, 2, 2, 3, 4)))]
        valid = VALID.get(f"{base}.{overload}", VALID.get(base, ()))
        departs = {self.draw.randrange(len(arguments)) for _ in range(self.draw.choice((0, 1, 1, 2)))}
        self.args: list[Any] = []
        self.kwargs: dict[str, Any] = {}
        for i, argument in enumerate(arguments):
            if i < len(valid) and i not in departs and not argument.kwarg_only:
                self.args.append(self._valid(valid[i]))
                continue
            if argument.has_default_value() and (argument.kwarg_only or i >= len(valid)) and self.draw.random() < 0.7:
                if not argument.kwarg_only:
                    self.args.append(argument.default_value)
                continue
            value = self._of(str(argument.real_type), valid[i] if i < len(valid) else None)
            if argument.kwarg_only:
                self.kwargs[argument.name] = value
            else:
                self.args.append(value)

    def _valid(self, said: Any) -> Any:
        if not isinstance(said, str) or said.strip("ib 0123456789"):
            return said
        shape = [int(n) for n in said.strip("ib").split()]
        dtype = {"i": torch.int64, "b": torch.bool}.get(said[0], torch.float32)
        return self._tensor(shape, dtype)

    def _number(self) -> int:
        return self.draw.choice((0, 1, 2, 3, 4, -1, -2, 7, 64)) if self.draw.random() < 0.6 else self.draw.choice(_HUGE)

    def _of(self, kind: str, valid: Any) -> Any:
        draw = self.draw
        if kind.startswith("Optional["):
            return None if draw.random() < 0.3 else self._of(kind[9:-1], valid)
        if kind.startswith("List["):
            return [self._of(kind[5:-1], None) for _ in range(draw.choice((0, 1, 1, 2, 2, 3, 4)))]
        match kind:
            case "Tensor":
                return self._any_tensor(valid)
            case "ScalarType":
                return draw.choice(_DTYPES) if draw.random() < 0.8 else self._number() % 50
            case "Layout" | "MemoryFormat":
                return draw.choice((torch.contiguous_format, 0, 1, 2, 4, 7))
            case "Device":
                return draw.choice(("cpu", "meta"))
            case "bool":
                return draw.random() < 0.5
            case "str":
                return draw.choice(_TEXTS)
            case "float":
                return draw.choice((0.0, 1.0, -1.0, 0.5, 1e308, float("nan")))
            case "number":
                return draw.choice((self._number(), self._number(), 0.5, float("nan"), True))
        return self._number()

    def _any_tensor(self, valid: Any) -> Any:
        draw = self.draw
        if draw.random() < 0.05:
            return None
        if isinstance(valid, str) and draw.random() < 0.8:
            shape = [int(n) for n in valid.strip("ib").split()]
            shape[draw.randrange(len(shape))] = draw.choice((0, 1, 2, 3, 5, 64))
        elif draw.random() < 0.5:
            shape = self._shape
        else:
            shape = [draw.choice((0, 1, 2, 3, 4, 8)) for _ in range(draw.choice((0, 1, 1, 2, 2, 3, 4)))]
        return self._tensor(shape, draw.choices(_DTYPES, (8, 1, 5, 2, 1, 1, 1))[0])

    def _tensor(self, shape: list[int], dtype: torch.dtype) -> torch.Tensor:
        n, draw = torch.Size(shape).numel(), self.draw
        if dtype.is_floating_point:
            values: list[Any] = [draw.choice((0.0, 1.0, 0.5, -1.0, 2.0, 1e30, float("nan"))) for _ in range(n)]
        elif dtype == torch.bool:
            values = [draw.random() < 0.5 for _ in range(n)]
        else:
            info, wild = torch.iinfo(dtype), draw.random() < 0.4
            far = (info.min, info.max, info.max // 2 + 1, -1, 5, 4096)
            values = [draw.choice(far) if wild and draw.random() < 0.5 else draw.randrange(4) for _ in range(n)]
        return guarded(torch.tensor(values, dtype=dtype).reshape(shape))


_C = ctypes.CDLL(None, use_errno=True)
_C.mmap.restype = ctypes.c_void_p
_C.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_C.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def guarded(tensor: torch.Tensor) -> torch.Tensor:
    """The same, up to the end of a page that one follows which cannot be read; it is never let go of."""
    n_bytes = tensor.numel() * tensor.element_size()
    if not n_bytes:
        return tensor
    room = -(-n_bytes // _PAGE) * _PAGE
    start = _C.mmap(
        None, room + 2 * _PAGE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0
    )
    assert start not in (None, ctypes.c_void_p(-1).value)
    for page in (start, start + _PAGE + room):
        assert _C.mprotect(page, _PAGE, 0) == 0
    held = (ctypes.c_char * n_bytes).from_address(start + _PAGE + room - n_bytes)
    return torch.frombuffer(held, dtype=tensor.dtype).reshape(tensor.shape).copy_(tensor)


def called(name: str, seed: int) -> bool:
    """Whether such a call gave a result; its bytes are read."""
    compute = find_operator(name)
    assert compute is not None
    try:
        drawn = Drawn(name, seed)
        found = compute(*drawn.args, **drawn.kwargs)
        for tensor in found if isinstance(found, list | tuple) else [found]:
            if tensor.numel() < 1e6:
                tensor.sum()
    except Exception:  # torch raises all sorts of things
        return False
    return True


def outcome(name: str, count: int) -> dict[str, Any]:
    """Results of one operator, and the seeds at which its process ended by a signal: at most four."""
    ended: list[list[int]] = []
    results = first = 0
    while first < count and len(ended) < 4:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            taken = int(Path("/proc/self/statm").read_text().split()[0]) * _PAGE
            resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY_BYTES,) * 2)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            for seed in range(first, count):
                signal.alarm(LIMIT_S)
                os.write(writing, b"s")
                os.write(writing, b"r" if called(name, seed) else b"e")
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as file:
            said = file.read()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        results += said.count(b"r")
        first += said.count(b"s")
        if code not in (0, -signal.SIGALRM):
            ended.append([first - 1, code])
    return {"results": results, "ended": ended}


def main(count: int, chosen: list[str]) -> None:
    """Prints the outcome of each operator whose name has one of ``chosen`` in it."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)  # or children that are forked would wait for threads that they have not
    picked = [name for name in names() if not chosen or any(word in name for word in chosen)]
    for name in picked:
        print(json.dumps({"operator": name, **outcome(name, count)}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
