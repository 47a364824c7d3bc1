"""Memory of messages that cross in another way than they lie in memory: a part of what docs/memory.md says, as code.

Knows numbers of elements and bytes; knows no codec by name, no layout and no rank.
"""

from dataclasses import dataclass

_FLOAT_BYTES = 4  # only float32 is written in another way
_CHOSEN_BYTES = 12  # of an element that is chosen: its position and its value
_JOINED_COPIES = 2  # of these at a holder, by stream and, while they are joined, by message


@dataclass(frozen=True, kw_only=True)
class Written:
    """How values and gradients are written on the wire.

    Attributes
    ----------
    item_bytes : float
        Of an element there.
    thresholded : bool
        Only chosen elements cross, with their positions.
    whole_evaluations : bool
        But all of them in evaluations.
    as_held : float
        The part that crosses as it is in memory, from 0 to 1: inside a host, where messages go by levels.
    """

    item_bytes: float
    thresholded: bool = False
    whole_evaluations: bool = False
    as_held: float = 0.0

    def wire_bytes(self, elements: float, kept: float) -> float:
        """Of messages of so many elements, of which so many are chosen; positions take at most a bit an element."""
        held, cut = self.as_held * _FLOAT_BYTES * elements, 1 - self.as_held
        whole = held + cut * self.item_bytes * elements
        if not self.thresholded:
            return whole
        chosen = held + cut * (self.item_bytes * kept + elements / 8)
        return max(chosen, whole) if self.whole_evaluations else chosen


def written_terms(
    written: Written, item_bytes: int, held: tuple[float, float], asked: tuple[float, float]
) -> dict[str, float]:
    """What they take besides the vectors themselves.

    Parameters
    ----------
    written : Written
    item_bytes : int
        Of an element in memory.
    held, asked : (float, float)
        Elements of the vectors that a rank answers as a holder, and that it asks for as a dense rank; those that are
        chosen of them.
    """
    elements = held[0] + asked[0]
    # As floats, and as they cross, of those sent and of those that came.
    terms = {"written messages": item_bytes * elements + 2 * written.wire_bytes(elements, held[1] + asked[1])}
    if written.thresholded:
        chosen = _JOINED_COPIES * held[1] + asked[1]
        terms["chosen elements"] = (1 - written.as_held) * _CHOSEN_BYTES * chosen
    return terms
