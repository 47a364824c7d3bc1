"""A device's memory and the arrays in it: as much of what NumPy's arrays do as rows, messages and indices need.

Kernels that are given an array run on its device, whatever backend is in use. Memory is torch's, so an array is a
tensor without a copy, and the other way (torch computes with no uint16: the bits of one are in an int16 tensor). Work
is in the order of torch's current stream. Knows a device, its native module and its arrays; does not know kernels, nor
what arrays hold.
"""

import importlib
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcrec.errors import MissingError
from hpcrec.kernels.staging import Staging

if TYPE_CHECKING:
    from torch import Tensor


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


class DeviceMemory:
    """A device's memory.

    Parameters
    ----------
    name : str
        Of the native module: ``_cuda`` or ``_emulated``.
    place : str
        Where torch has its memory: ``cuda`` or ``cpu``.
    """

    def __init__(self, name: str, place: str) -> None:
        self._name, self._place = name, place
        self._module: ModuleType | None = None
        self._available: bool | None = None
        self._staging = Staging(place)
        self._local = threading.local()

    def module(self) -> ModuleType:
        """The native module.

        Raises
        ------
        MissingError
            It was not built, or there is no GPU that torch sees.
        """
        if self._module is None:
            try:
                module = importlib.import_module(f"hpcrec.{self._name}")
            except ImportError as error:
                raise MissingError(
                    f"hpcrec.{self._name} cannot be loaded ({error}). In a checkout `make cuda` builds _cuda, with "
                    "nvcc on the path, and `make test-setup` _emulated, which is for tests"
                ) from error
            import torch

            if self._place == "cuda" and not torch.cuda.is_available():
                raise MissingError(
                    f"there is no GPU that torch {torch.__version__} can use; see `hpcrec doctor`, or run the kernels "
                    "of the host: hpcrec.kernels.use('native')"
                )
            self._module = module
        return self._module

    def available(self) -> bool:
        """Whether its kernels can run here."""
        if self._available is None:  # asked in every step
            try:
                self.module()
                self._available = True
            except MissingError:
                self._available = False
        return self._available

    # Memory.

    def select(self, number: int) -> None:
        """Which GPU it is, of those that torch sees, from now on: before any array is made. The emulator is one.

        It is torch's current one too, of this thread: nothing is to be begun on another.
        """
        if self._place != "cpu":
            import torch

            torch.cuda.set_device(number)
            self._place = f"cuda:{number}"

    @property
    def count(self) -> int:
        """GPUs that torch sees; 1 of the emulator."""
        import torch

        return torch.cuda.device_count() if self._place != "cpu" else 1

    def empty(self, shape: int | tuple[int, ...], dtype: np.dtype[Any] | type) -> Any:
        """A new ``DeviceArray`` of undefined contents; it may stand wherever one of NumPy's may, so has any type."""
        return DeviceArray(self, self._tensor(shape, dtype), dtype)

    def zeros(self, shape: int | tuple[int, ...], dtype: np.dtype[Any] | type) -> Any:
        """A new array of zeros."""
        return DeviceArray(self, self._tensor(shape, dtype).zero_(), dtype)

    def array(self, host: NDArray[Any]) -> Any:
        """A copy of an array of the host."""
        return DeviceArray(self, self.to_device(host), host.dtype)

    def _tensor(self, shape: int | tuple[int, ...], dtype: np.dtype[Any] | type) -> "Tensor":
        import torch

        self.module()
        try:
            return torch.empty(shape, dtype=getattr(torch, tensor_type(dtype).name), device=self._place)
        except torch.OutOfMemoryError as error:
            raise MemoryError(str(error).split(". ")[0]) from None

    def to_device(self, host: NDArray[Any]) -> "Tensor":
        """A copy in the device's memory, queued."""
        there = self._tensor(host.shape, host.dtype)
        with self.guard():  # of the GPU whose stream the copies are noted in
            self._staging.to_device(np.ascontiguousarray(host), there)
        return there

    def to_host(self, there: "Tensor") -> NDArray[Any]:
        """A copy on the host; waits for what is queued before."""
        host = np.empty(tuple(there.shape), np.dtype(str(there.dtype).removeprefix("torch.")))
        self.copy_to_host(there.contiguous(), host)
        return host

    def copy_to_host(self, there: "Tensor", host: NDArray[Any]) -> None:
        """The same to an array that there is."""
        if not host.flags.c_contiguous:
            host[...] = self.to_host(there)
            return
        with self.guard():
            self._staging.to_host(there, host)

    def where(self, array: DeviceArray, value: int, *, equal: bool) -> Any:
        """Places, int64 and ascending, where a flat array has that value, or another."""
        element = array.element(value)
        found = array.tensor == element if equal else array.tensor != element
        return DeviceArray(self, found.nonzero()[:, 0].contiguous())

    def new(self, like: Any, shape: int | tuple[int, ...], dtype: np.dtype[Any] | type) -> Any:
        """Room for a result: where ``like`` is."""
        return self.empty(shape, dtype) if isinstance(like, DeviceArray) else np.empty(shape, dtype)

    def wait(self) -> None:
        """Waits for what this thread has queued."""
        import torch

        if self._place != "cpu":
            torch.cuda.current_stream(self._place).synchronize()

    def took(self, tensor: "Tensor") -> DeviceArray:
        """A tensor of this device, or of another, as an array of it; without a copy where it is there already."""
        return DeviceArray(self, tensor.detach().to(self._place).contiguous())

    def guard(self) -> AbstractContextManager[Any]:
        """What work of this thread on the device has to be in: threads begin at torch's first GPU."""
        import torch

        return torch.cuda.device(self._place) if self._place != "cpu" else nullcontext()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What this thread queues within runs beside what other threads have queued; it is done at the end."""
        if self._place == "cpu":
            yield
            return
        import torch

        if not hasattr(self._local, "stream"):
            self._local.stream = torch.cuda.Stream(self._place)
        try:
            with torch.cuda.stream(self._local.stream):
                yield
        finally:  # what is made there is used, and freed, by other threads
            self._local.stream.synchronize()


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
