"""The contract of a stage: work on vectors at ranks that messages pass on their way from owners to dense ranks.

::

    owner  -- values ---->  via(owner, dense): forward   -- values ---->  dense rank
    owner  <-- gradients -  via(owner, dense): backward  <-- gradients -  dense rank

A form names the stages that its vectors pass (``Form.stages``). All messages then go by that way, with what other
forms, partial results and the verdict have in them, but a stage is given the vectors of its own forms only. What is in
a message, and how long it is, stays the same: vectors are changed in place. What makes other vectors of many, as a
tower does, is an exchange of its own within a group of ranks, and no stage. Knows vectors; knows no message, no MPI.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from hpcrec.comm.topology import Topology
from hpcrec.exchange.slices import Slice
from hpcrec.operators.base import Operator
from hpcrec.types import Floats


@dataclass(frozen=True)
class Vectors:
    """Vectors of one owner for one dense rank, of features that travel together; or, on the way back, their gradients.

    Attributes
    ----------
    owner, dense : int
        World ranks.
    features : tuple of str
    table : str
    columns : (int, int)
        Those of the table's columns that they are.
    values_VD : float [V, columns]
        A view of the message, to be changed in place.
    """

    owner: int
    dense: int
    features: tuple[str, ...]
    table: str
    columns: tuple[int, int]
    values_VD: Floats


class Stage:
    """One rank's part in a stage; every rank makes one. This class passes vectors on as they are.

    Dense parameters that it uses (``weights``) are no longer trained on dense ranks, nor used there: ``left_of`` says
    what these compute of an operator once its vectors have passed. It has the rows of them that this rank uses as
    ``slices``, each with the ranks that train the same rows; every row has to be some rank's. A stage with dense
    parameters, and what comes behind it, runs in the step itself, so that the parameters are never old.

    Parameters
    ----------
    topology : Topology
    operators : mapping of str to Operator
        Those of the model of which this stage leaves something else than they were.

    Attributes
    ----------
    slices : list of Slice
    """

    name: ClassVar[str]

    def __init__(self, topology: Topology, operators: Mapping[str, Operator]) -> None:
        self.topology = topology
        self.operators = operators
        self.slices: list[Slice] = []

    @staticmethod
    def via(topology: Topology, owner: int, dense: int) -> int:
        """The rank that a message of this owner to this dense rank passes: a pure function, the same on every rank."""
        raise NotImplementedError

    @classmethod
    def weights(cls, operator: Operator) -> tuple[nn.Parameter, ...]:
        """The operator's dense parameters that are used here: parameters of the model, and of nothing else."""
        del operator
        return ()

    @classmethod
    def left_of(cls, operator: Operator) -> Operator:
        """What dense ranks compute in place of an operator whose vectors have all passed; itself where they are alike.

        An operator that is not itself has all its lookups under a form that passes here, and shares none with another.
        """
        return operator

    def forward(self, passing: Sequence[Vectors], *, train: bool) -> Any:
        """Changes vectors in place; returns what ``backward`` has to know of them, none of it in their memory."""
        del passing, train

    def backward(self, passing: Sequence[Vectors], kept: Any) -> None:
        """The exact mirror: changes gradients in place, and adds those of parameters to each slice's ``part.grad``.

        ``passing`` has the same vectors in the same order; each ``part.grad`` is zeros as it begins.
        """
        del passing, kept
