"""What is known to be wrong and not mended yet: each with the reason, and nothing else may be. Empty is the goal.

A pattern is searched in ``call|scenario|kind of file|what was wrong``, of power cuts in ``cut|scenario|what was wrong``.
"""

import re

_ERRORS = "Input/output error|No space left on device|Disk quota exceeded|Stale file handle|Too many open files|Connection timed out"
KNOWN: dict[str, str] = {
    # Loss 3 of issue 27.
    r"^(open|read)\|.*checkpoint.resume is auto, .* has a newer checkpoint": "a read error is taken for damage",
    r"^(open|read)\|(resume|damaged|increment|again)\|.*(was set aside|is gone|resume takes \d|needs .* cannot be read)": (
        "the same, by prune too"
    ),
    # Loss 4.
    r"^close\|(first|increment|again|retried)\|.*(resume fails|was whole once)": "an error of close is dropped",
    r"^close\|prepare.*not a readable HDF5 file": "the same of a piece of a data set",
    # Found here.
    rf"does not name the file: \w+: (\[Errno \d+\] )?({_ERRORS})(: '\w[\w.-]*')?$": (
        "errors of descriptors have no name: read, fsync and close by Path.read_text, files.sync and others; those of "
        "shutil.rmtree have one without its folder"
    ),
    r"^(open|read)\|.*KeyError: '(sum|w|m)'": (
        "h5py takes a group that cannot be read for one that is not there: optimizer states are left out"
    ),
    r"^write\|.*/out/\.vocabulary\.h5": "vocabulary.h5 is written without hdf5_out: a RuntimeError of HDF5",
    r"^read\|.*another vocabulary": "np.fromfile says nothing of a read error: vocabulary.h5 ends in zeros",
}


def known(text: str) -> str:
    """The pattern that a text is known by; empty where it is not."""
    return next((pattern for pattern in KNOWN if re.search(pattern, text, re.DOTALL)), "")
