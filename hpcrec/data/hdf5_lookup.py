"""Looks up what an open HDF5 file has by a name: what cannot be read just now is not taken for what is not there.

h5py's ``get``, ``in``, ``items`` and ``values`` take the one for the other, of objects and of attributes alike. Knows
nothing of what is in the files, or of trying again (`again`).
"""

from typing import Any

from hpcrec.again import refused


def found_in(group: Any, name: str, default: Any = None) -> Any:
    """What a file, a group or their ``attrs`` have by a name; `default` where they have none.

    Raises
    ------
    Exception
        What h5py raises where the system refused a part of the file.
    """
    try:
        return group[name]
    except KeyError as error:
        if refused(error) is not None:
            raise
        return default


def items_in(group: Any, name: str) -> list[tuple[str, Any]]:
    """Names and values in a group of that name; none where there is no such group. Raises as `found_in`."""
    found = found_in(group, name)
    return [] if found is None else [(inner, found[inner]) for inner in found]
