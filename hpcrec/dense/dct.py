"""Thresholded sums of dense gradients with error feedback, between ``DenseReducer`` and the collectives.

::

    a = gradient + unsent                    by parameter tensor, on each dense rank
    sent where |a| >= tau                    tau: the magnitude that a share ``density`` of the entries reaches
    unsent = a - sent as it will be read     0 or a rounding error where sent, a elsewhere

    allgather:        every rank's entries to every rank, which adds them in rank order
    reduce_scatter:   entries of each of N ranges to one rank, which adds them in rank order, thresholds the sum with
                      error feedback of its own, and gives the result to every rank
    whole:            the plain sum, in the first steps and wherever thresholding would not take fewer bytes; it takes
                      along what is unsent

tau is found anew every so many steps, and at once where more than twice the density passes. A step becomes part of the
residuals when its sum is taken (``wait``): one that is left out (``cancel``) leaves them as they were. A bucket's
collectives follow one another at fixed points, the starts of later buckets and the wait, never by what has arrived:
so they come in the same order on every rank.

The data-parallel part of [DCT]. Departures from the paper: gradients are summed among ranks instead of by a parameter
server, so the result has the entries that any rank sent; in ``reduce_scatter`` the range's rank does what the server
would. Does not know parameters or optimizers; knows flat buckets, and names of stretches in them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hpcrec.comm.collectives import Collectives, StartedParts
from hpcrec.dense import sparse
from hpcrec.dense.dct_choose import Chosen, Counts, choose
from hpcrec.dense.dct_parts import Layout, Part, Segment, lay_out
from hpcrec.dense.flight import Flight, PlainSum, Steps
from hpcrec.dense.reducer import Allreduce
from hpcrec.dense.residuals import Piece, Residuals
from hpcrec.errors import ConfigError
from hpcrec.types import Floats, Ints

_TAG = "dense"


@dataclass(frozen=True, kw_only=True)
class DctOptions:
    """As ``[dense.dct]`` of the configuration has them."""

    density: float
    every: int
    warmup_steps: int
    values: str
    collective: str


class Thresholded:
    """Sums over the ranks of ``dense``, as ``Allreduce``; collective over them.

    Parameters
    ----------
    plain : Allreduce
        For whole sums.
    dense : Collectives
        The dense ranks. Between ``start`` and ``wait`` no rank may order its other collectives on it differently.
    options : DctOptions

    Attributes
    ----------
    residuals : Residuals
    counts : Counts
    """

    def __init__(self, plain: Allreduce, dense: Collectives, options: DctOptions) -> None:
        self.residuals = Residuals()
        self.counts = Counts()
        self._plain = plain
        self._dense = dense
        self._options = options
        self._layouts: dict[str, Layout] = {}
        self._sizes: dict[str, int] = {}
        self._flights: list[Flight] = []
        self._whole = self._due = False

    def arrange(self, buckets: Mapping[str, tuple[torch.Tensor, Sequence[tuple[str, int]]]]) -> None:
        """Takes buckets in place of those before; parameters keep what they have unsent, in whatever bucket they are.

        Parameters
        ----------
        buckets : mapping of str to (Tensor [n], list of (str, int))
            By the name that ``start`` is given: the flat tensor, and its parameters with their entries, in order.

        Raises
        ------
        ConfigError
            A tensor that cannot be thresholded: not on the CPU, or neither float32 nor float64.
        """
        assert not self._flights, "a sum is in flight"
        o = self._options
        for name, (flat, held) in buckets.items():
            if flat.device.type != "cpu" or flat.dtype not in (torch.float32, torch.float64):
                raise ConfigError(
                    f"dense.compression is 'dct', which takes float32 and float64 on the CPU; bucket {name} is "
                    f"{flat.dtype} on {flat.device}. Set dense.compression = 'none'."
                )
            self._sizes |= dict(held)
        self._layouts = {
            name: lay_out(
                held,
                flat.numpy().dtype,
                self._dense.size,
                values=o.values,
                density=o.density,
                collective=o.collective,
            )
            for name, (flat, held) in buckets.items()
        }
        self.settle()

    @property
    def density(self) -> float:
        """Share of a parameter's entries that thresholds are found for."""
        return self._options.density

    def settle(self) -> None:
        """Moves second residuals of stretches that are not this rank's (any more) to its first ones."""
        mine = {
            s.name: (s.start, s.start + s.n)
            for layout in self._layouts.values()
            if layout.form == "reduce_scatter"
            for s in layout.ranges[self._dense.rank].segments
        }
        self.residuals.settle(mine, self._sizes)

    def begin(self, step: int) -> None:
        """Opens a step: its number says whether sums are whole and whether thresholds are found anew."""
        first = self._options.warmup_steps
        self._whole = step < first
        self._due = step == first or step % self._options.every == 0

    # A sum, as ``Allreduce`` has it.

    def start(self, flat: torch.Tensor, name: str) -> Flight:
        """Starts the sum of ``flat`` in place."""
        self._advance()
        layout = self._layouts[name]
        self.counts.plain_bytes += self._plain_bytes(flat)
        self.counts.sums += 1
        if self._whole or layout.form == "whole":
            steps = self._as_a_whole(layout, flat, name)
        elif layout.form == "allgather":
            steps = self._allgather(layout, flat.numpy())
        else:
            steps = self._reduce_scatter(layout, flat.numpy())
        self._flights.append(Flight(steps))
        return self._flights[-1]

    def wait(self, handle: Flight) -> None:
        """Waits for one started sum, which then is part of what was sent."""
        while not handle.last:
            self._advance()
        handle.finish()
        self._flights.remove(handle)

    def cancel(self, handle: Flight) -> None:
        """Ends one started sum, on every rank, as if it had not been; the tensor is left undefined."""
        handle.cancel()
        self._flights.remove(handle)

    def _advance(self) -> None:
        for flight in self._flights:
            flight.advance()

    def _plain_bytes(self, flat: torch.Tensor) -> int:
        return round(2 * (self._dense.size - 1) / self._dense.size * flat.nbytes)

    # The forms: the collectives of each, one after the other; what follows the last is done once the step is taken.

    def _as_a_whole(self, layout: Layout, flat: torch.Tensor, name: str) -> Steps:
        values = flat.numpy()
        owing = [s for s in layout.whole.segments if self.residuals.owed(s.name)]
        for s in owing:
            for start, left in self.residuals.owed(s.name):
                values[s.place][start : start + len(left)] += left
        self.counts.sent_bytes += self._plain_bytes(flat)
        self.counts.whole += 1
        yield PlainSum(self._plain, self._plain.start(flat, name)), True
        for s in owing:
            self.residuals.clear(s.name)

    def _allgather(self, layout: Layout, flat: Floats) -> Steps:
        chosen = self._choose(layout.whole, flat, layout)
        groups = sparse.groups_of(chosen.positions, layout.whole.bounds)
        header, message = self._written(layout.whole, chosen, groups, layout)
        headers = self._allgathered(header)
        yield headers, False
        messages = self._allgathered(message, headers.received[:, 3])
        yield messages, True
        self._taken(chosen, first=True)
        flat[:] = 0
        for one, received in zip(headers.received, messages.received, strict=True):
            sparse.add_at(flat, *sparse.read(one, received, layout.whole.bounds, layout.codec))

    def _reduce_scatter(self, layout: Layout, flat: Floats) -> Steps:
        dense = self._dense
        chosen = self._choose(layout.whole, flat, layout)
        headers_R, messages_R = self._dealt(chosen, layout)
        sizes = dense.start_alltoall(headers_R, _TAG)
        self.counts.sent_bytes += (dense.size - 1) * sparse.HEADER_BYTES
        yield sizes, False
        bytes_R = headers_R[:, 3]
        parts = dense.start_alltoallv(np.concatenate(messages_R), bytes_R, sizes.received[:, 3], _TAG)
        self.counts.sent_bytes += int(bytes_R.sum() - bytes_R[dense.rank])
        yield parts, False
        mine = layout.ranges[dense.rank]
        total = np.zeros(mine.n, flat.dtype)
        for one, received in zip(sizes.received, parts.received, strict=True):
            sparse.add_at(total, *sparse.read(one, received, mine.bounds, layout.codec))
        passed = self._choose(mine, total, layout, first=False)
        groups = sparse.groups_of(passed.positions, mine.bounds)
        header, message = self._written(mine, passed, groups, layout)
        headers = self._allgathered(header)
        yield headers, False
        results = self._allgathered(message, headers.received[:, 3])
        yield results, True
        self._taken(chosen, first=True)
        self._taken(passed, first=False)
        flat[:] = 0
        for part, one, received in zip(layout.ranges, headers.received, results.received, strict=True):
            sparse.add_at(flat[part.place], *sparse.read(one, received, part.bounds, layout.codec))

    def _choose(self, part: Part, values: Floats, layout: Layout, *, first: bool = True) -> Chosen:
        def piece_of(s: Segment) -> Piece:
            if first:
                return self.residuals.first_of(s.name, s.n, layout.codec.dtype)
            return self.residuals.second_of(s.name, s.start, s.start + s.n, layout.codec.dtype)

        return choose(part, values, piece_of, density=self._options.density, due=self._due)

    def _taken(self, chosen: Chosen, *, first: bool) -> None:
        """The step is taken."""
        chosen.take()
        self.counts.scheduled += chosen.scheduled
        self.counts.drifted += chosen.drifted
        if first:
            self.counts.entries += len(chosen.left)
            self.counts.kept += len(chosen.positions)

    def _dealt(self, chosen: Chosen, layout: Layout) -> tuple[Ints, list[NDArray[np.uint8]]]:
        """What goes to each rank: headers [R, 4], and messages."""
        ends = np.searchsorted(chosen.positions, [part.place.stop for part in layout.ranges])
        headers, messages, at = [], [], 0
        for part, end in zip(layout.ranges, ends.tolist(), strict=True):
            own = Chosen(chosen.left[part.place], chosen.positions[at:end] - part.start, chosen.values[at:end])
            header, message = self._written(part, own, sparse.groups_of(own.positions, part.bounds), layout)
            headers.append(header)
            messages.append(message)
            at = end
        return np.stack(headers), messages

    def _written(
        self, part: Part, chosen: Chosen, groups: Sequence[int], layout: Layout
    ) -> tuple[Ints, NDArray[np.uint8]]:
        """Header and message of what is chosen of a part; what writing loses is left unsent."""
        header, message = sparse.written(chosen.positions, chosen.values, part.n, groups, layout.codec)
        if not layout.codec.lossless:
            with np.errstate(invalid="ignore"):  # values that are not finite: the step will be left out
                chosen.left[chosen.positions] = chosen.values - sparse.values_in(header, message, groups, layout.codec)
        return header, message

    def _allgathered(self, part: NDArray[Any], bytes_R: Ints | None = None) -> StartedParts:
        """Starts handing a header, or bytes where the sizes of all are known, to every rank."""
        self.counts.sent_bytes += (self._dense.size - 1) * part.nbytes
        if bytes_R is None:
            return self._dense.start_allgather(part, _TAG)
        return self._dense.start_allgatherv(part, bytes_R, _TAG)
