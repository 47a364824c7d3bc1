"""What is known to be wrong and not mended yet: each with the reason, and nothing else may be. Empty is the goal.

A pattern is searched in ``call|scenario|kind of file|what was wrong``; of power cuts in ``cut|scenario|what was
wrong``.
"""

import errno
import os
import re

from tests.failing_files.library import ERRORS

_ERRORS = "|".join(os.strerror(getattr(errno, name)) for name in ERRORS)
KNOWN: dict[str, str] = {
    rf"does not name the file: \w+: (\[Errno \d+\] )?({_ERRORS})(: '\w[\w.-]*')?$": (
        "errors of descriptors have no name: read, fsync and close by Path.read_text, files.sync and others; those of "
        "shutil.rmtree have one without its folder"
    ),
}


def known(text: str) -> str:
    """The pattern that a text is known by; empty where it is not."""
    return next((pattern for pattern in KNOWN if re.search(pattern, text, re.DOTALL)), "")
