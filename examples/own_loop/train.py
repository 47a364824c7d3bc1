"""A training loop of one's own over hpcrec.Session, with a loss of one's own: focal loss [B].

    hpcrec run -n 4 -- examples/own_loop/train.py examples/quickstart/config.toml

Every rank runs this file. Owners serve rows inside ``step.run``; the loss function runs on dense ranks only and
returns one loss a sample: the session weighs them and takes the mean over the global batch.
"""

import os
import sys
from collections.abc import Mapping

import torch
from torch.nn import functional

import hpcrec
from hpcrec.comm.start import start
from hpcrec.training.parts import Samples


def main(config: str, *overrides: str) -> None:
    rank = start(os.environ)
    with hpcrec.open_session(config, overrides) as session:

        def focal(inputs: Mapping[str, torch.Tensor], samples: Samples) -> torch.Tensor:
            logits = session.model(inputs, samples.dense)
            losses = functional.binary_cross_entropy_with_logits(logits, samples.label, reduction="none")
            return (1 - torch.exp(-losses)) ** 0.5 * losses

        for step in session.steps():
            step.run(focal)
            if session.step % 50 == 0 and rank == 0:
                print(f"step {session.step} of {session.total_steps}", flush=True)
        found = session.evaluate("test")
        if rank == 0:
            print(f"test AUC {found['auc']:.4f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
