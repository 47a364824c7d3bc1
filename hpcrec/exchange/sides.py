"""Both sides of an exchange on one rank, by what its world and layout say. Knows their arguments, and no batch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from hpcrec.comm.sizes import padded_bytes
from hpcrec.comm.topology import Topology
from hpcrec.embedding.load import Load
from hpcrec.embedding.store import Store
from hpcrec.exchange.bags import Splitter
from hpcrec.exchange.dense_side import DenseSide
from hpcrec.exchange.forms.conditional import Keeping
from hpcrec.exchange.layout import Layout
from hpcrec.exchange.owner_side import OwnerSide
from hpcrec.exchange.reduction import Reduction
from hpcrec.exchange.roots import tell_sums
from hpcrec.kernels import Device
from hpcrec.operators.base import Operator


@dataclass(frozen=True)
class Sides:
    """What both have in common: arguments of ``Exchange``."""

    topology: Topology
    layout: Layout
    reduction: Reduction
    keeps: bool
    parts: bool
    keeping: Keeping

    def owner(
        self, store: Store, operators: Mapping[str, Operator], weighted: set[str], load: Load | None, teller: int
    ) -> OwnerSide:
        """See ``OwnerSide``."""
        return OwnerSide(
            store,
            self.layout,
            self.topology.rank,
            operators,
            weighted=weighted,
            size=self.topology.size,
            pad=padded_bytes,
            load=load,
            sent=partial(self.reduction.sent, self.topology.rank),
            sets=self.topology.table_sets,
            teller=teller,
            keeps=self.keeps,
            parts=self.parts,
            keeping=self.keeping,
        )

    def dense(
        self, splitter: Splitter, replicas: Store | None, tells: Sequence[int], device: Device | None
    ) -> DenseSide:
        """See ``DenseSide``."""
        layout, topology = self.layout, self.topology
        tell_sums(splitter, layout, topology)
        return DenseSide(
            splitter,
            layout,
            replicas=replicas,
            size=topology.size,
            pad=padded_bytes,
            far=topology.far,
            sent=lambda holder: self.reduction.sent(holder, topology.rank),
            tells=tells,
            parts=self.parts,
            device=device,
            keeping=self.keeping,
        )
