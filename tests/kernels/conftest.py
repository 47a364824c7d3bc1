"""Fixtures of the kernel tests."""

from collections.abc import Iterator

import pytest

from hpcrec import kernels


@pytest.fixture(autouse=True)
def native_backend() -> Iterator[None]:
    """Each test starts with the native kernels on one thread, and leaves them so."""
    kernels.use("native")
    kernels.set_threads(1)
    yield
    kernels.use("native")
    kernels.set_threads(1)
