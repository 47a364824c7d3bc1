"""Published systems as positions on the axes of the configuration: recipes only, one file a system."""

from collections.abc import Callable
from typing import Any

from hpcrec.systems import baseline, codistillation, dct, des, dmt, het, mtrains, persia

SYSTEMS: dict[str, Callable[[], dict[str, Any]]] = {
    "baseline": baseline.configuration,
    "codistillation": codistillation.configuration,
    "dct": dct.configuration,
    "des": des.configuration,
    "dmt": dmt.configuration,
    "het": het.configuration,
    "mtrains": mtrains.configuration,
    "persia": persia.configuration,
}
OF_THE_MACHINE = ("mtrains",)  # takes a folder and bytes of memory besides, which no recipe can know
