"""A user's model whose training steps, or whose start, take long for as long as a file is there, for interruptions."""

import sys
import time
from pathlib import Path

import torch
from torch import nn

from hpcrec.models import block_operators

HELD_S = 2.0  # a step of each dense rank
FREE_STEPS = 3  # to the first checkpoint, of each process


class Held(nn.Module):
    """A linear layer with dropout, whose random state a resumed run has to get right.

    ``hold`` is the file: while it is there, steps take long, and checkpoints up to ``save_s`` longer; while it says
    ``start``, no step comes. A step says ``said_bytes`` to stderr.
    """

    def __init__(
        self, features, n_dense, *, width, n_labels=1, pooling=None, hold="", save_s=0.0, dropout=0.2, said_bytes=0
    ):
        super().__init__()
        self.operators = block_operators(features, width, pooling)
        self.hidden = nn.Linear(len(features) * width + n_dense, 8)
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(8, 1)
        self.hold, self.save_s, self.steps = Path(hold), save_s, 0
        self.said = "a step\n" * (said_bytes // 7)
        while self.hold.exists() and self.hold.read_text() == "start":
            time.sleep(0.1)

    def state_dict(self, *given, **options):
        end_s = time.monotonic() + self.save_s * bool(self.steps)
        while time.monotonic() < end_s and self.hold.exists():
            time.sleep(0.1)
        return super().state_dict(*given, **options)

    def forward(self, inputs, dense):
        self.steps += self.training
        if self.training and self.steps > FREE_STEPS and self.hold.exists():
            time.sleep(HELD_S)
        if self.training:
            sys.stderr.write(self.said)
            sys.stderr.flush()
        hidden = torch.relu(self.hidden(torch.cat([inputs["block"].flatten(1), dense], 1)))
        return self.out(self.dropout(hidden))[:, 0]


build = Held
