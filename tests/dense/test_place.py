"""Where a dense rank computes."""

import torch

from hpcrec.dense.place import Place


def test_a_seed_draws_what_torch_draws() -> None:
    for seed in (0, 7, 2**31 - 1):
        torch.manual_seed(seed)
        expected = torch.rand(5), torch.dropout(torch.ones(99), 0.5, train=True)
        Place().seed(seed)
        torch.testing.assert_close(
            (torch.rand(5), torch.dropout(torch.ones(99), 0.5, train=True)), expected, rtol=0, atol=0
        )
