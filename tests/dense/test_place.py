"""Where a dense rank computes."""

import pytest
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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use")
def test_a_seed_is_of_the_rank_s_own_gpu() -> None:
    device = torch.device("cuda", torch.cuda.device_count() - 1)
    torch.cuda.manual_seed_all(7)
    expected = torch.rand(5, device=device)
    Place(device).seed(7)
    torch.testing.assert_close(torch.rand(5, device=device), expected, rtol=0, atol=0)
