"""What is known to be wrong and not mended yet: each with the reason, and nothing else may be. Empty is the goal.

A pattern is searched in ``call|scenario|kind of file|what was wrong``; of power cuts in ``cut|scenario|what was
wrong``.
"""

import re

KNOWN: dict[str, str] = {}


def known(text: str) -> str:
    """The pattern that a text is known by; empty where it is not."""
    return next((pattern for pattern in KNOWN if re.search(pattern, text, re.DOTALL)), "")
