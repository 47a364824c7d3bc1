"""What a model needs from embeddings: partial results, their reduction and how they are finished."""

from hpcrec.operators.base import Learned, Operator
from hpcrec.operators.block import Block
from hpcrec.operators.fm2 import FM2
from hpcrec.operators.folded import Folded
from hpcrec.operators.tower import Tower
from hpcrec.operators.wide import WideSum

__all__ = ["FM2", "Block", "Folded", "Learned", "Operator", "Tower", "WideSum"]
