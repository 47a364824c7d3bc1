"""Devices that rows may be in, for tests: the emulator everywhere, a GPU where there is one."""

import pytest

from hpcrec import kernels
from hpcrec.errors import MissingError


def device_or_skip(name: str) -> kernels.Device:
    """The device of that name; skips, with the reason, where it is not there."""
    try:
        return kernels.device(name)
    except MissingError as error:
        if name == "emulated":
            raise
        pytest.skip(f"no GPU: {str(error)[:100]}")
