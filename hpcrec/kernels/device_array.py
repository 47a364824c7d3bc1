"""Arrays in a device's memory: as much of what NumPy's arrays do as rows, messages and indices need.

Kernels that are given one run on its device, whatever backend is in use. Memory is torch's, so an array is a tensor
without a copy, and the other way (torch computes with no uint16: the bits of one are in an int16 tensor). Work is in
the order of torch's current stream. Knows one array and its device; does not know what it holds.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

    from hpcrec.kernels.device_memory import DeviceMemory


class DeviceArray:
    """A C-contiguous array in a device's memory.

    Parameters
    ----------
    device : DeviceMemory
    tensor : Tensor
        Of that device, contiguous.
    dtype : numpy dtype, optional
        Of the elements, where the tensor has another type of ``tensor_type``.

    Attributes
    ----------
    device : DeviceMemory
    tensor : Tensor
    dtype : numpy dtype
    shape : tuple of int
    """

    __array_priority__ = 100.0  # NumPy is not to take it apart element by element

    def __init__(self, device: "DeviceMemory", tensor: "Tensor", dtype: np.dtype[Any] | type | None = None) -> None:
        assert tensor.is_contiguous(), "kernels read elements in order, without gaps"
        self.device = device
        self.tensor = tensor
        self.shape = tuple(tensor.shape)
        self.dtype = np.dtype(str(tensor.dtype).removeprefix("torch.") if dtype is None else dtype)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.tensor.numel()

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self.size * self.dtype.itemsize

    @property
    def bounds(self) -> tuple[int, int]:
        """Addresses where it begins and ends."""
        first = self.tensor.data_ptr()
        return first, first + self.nbytes

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("an array of a device is not read element by element; np.asarray() copies it to the host")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """A copy on the host; waits for what is queued before."""
        if copy is False:
            raise ValueError("an array of a device cannot be had on the host without a copy")
        found = self.device.to_host(self.tensor).view(self.dtype)
        return found if dtype is None else found.astype(dtype)

    def reshape(self, *shape: int | tuple[int, ...]) -> "DeviceArray":
        """The same elements in another shape, given as NumPy takes it."""
        wanted = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
        return DeviceArray(self.device, self.tensor.reshape(wanted), self.dtype)  # type: ignore[arg-type]

    def view(self, dtype: np.dtype[Any] | type) -> "DeviceArray":
        """The same bytes as elements of another type."""
        import torch

        return DeviceArray(self.device, self.tensor.view(getattr(torch, tensor_type(dtype).name)), dtype)

    def __getitem__(self, key: "slice | NDArray[np.int64] | DeviceArray") -> "DeviceArray":
        """A slice of the first dimension shares memory; rows by number are a copy."""
        return DeviceArray(self.device, self.tensor[self._key(key)], self.dtype)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Sets rows by slice or number, or some columns of them; from the host, a device's array, or one number."""
        if isinstance(value, DeviceArray):
            value = value.tensor
        elif isinstance(value, np.ndarray):
            value = self.device.to_device(value)
        else:
            value = self.element(value)
        self.tensor[tuple(map(self._key, key)) if isinstance(key, tuple) else self._key(key)] = value

    def _key(self, key: Any) -> Any:
        if isinstance(key, DeviceArray):
            return key.tensor
        return self.device.to_device(key) if isinstance(key, np.ndarray) else key

    def fill(self, value: float) -> None:
        """Sets all elements."""
        self.tensor.fill_(self.element(value))

    def element(self, value: float) -> float:
        """A number, as an element of the tensor has it."""
        held = tensor_type(self.dtype)
        return value if held == self.dtype else int(np.array(value, self.dtype).view(held))

    def copy_to(self, out: NDArray[Any]) -> None:
        """Copies to an array of the host, of as many elements; waits for what is queued before."""
        self.device.copy_to_host(self.tensor.reshape(-1), out.reshape(-1))


def room_beside(array: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """A new array of undefined contents in the memory that has another."""
    return array.device.empty(shape, dtype) if isinstance(array, DeviceArray) else np.empty(shape, dtype)


def tensor_type(dtype: np.dtype[Any] | type) -> np.dtype[Any]:
    """Of the tensor that holds elements of this type."""
    return np.dtype(np.int16) if dtype == np.uint16 else np.dtype(dtype)


def device_of(*given: Any) -> "DeviceMemory | None":
    """The device of the first of these arrays, or of those in these tuples and dicts, that is on one; else None."""
    for thing in given:
        if isinstance(thing, DeviceArray):
            return thing.device
        if isinstance(thing, tuple | dict):
            found = device_of(*(thing.values() if isinstance(thing, dict) else thing))
            if found is not None:
                return found
    return None
