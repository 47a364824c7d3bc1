"""``Folded`` against a linear layer over vectors side by side: whole, in parts of features and columns, by oneDNN."""

import pytest
import torch
from torch import nn

from hpcrec.errors import ConfigError
from hpcrec.operators import FM2, Folded, Learned, Operator
from hpcrec.operators.base import elements_of, flatten, over, unflatten, weights_of
from hpcrec.operators.product import onednn_works, product
from hpcrec.types import Lookup

B, F, D, H = 5, 4, 6, 3
LOOKUPS = tuple(Lookup(feature=f"f{i}", table=f"t{i}") for i in range(F))


def made(dtype: torch.dtype = torch.float64, n_outputs: int = H) -> tuple[Folded, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    weights = [nn.Parameter(torch.randn(D, n_outputs, dtype=dtype, generator=generator)) for _ in range(F)]
    pooled = torch.randn(B, F, D, dtype=dtype, generator=generator).requires_grad_()
    return Folded(lookups=LOOKUPS, width=D, weights=tuple(weights)), pooled


def by_linear(operator: Folded, pooled: torch.Tensor) -> torch.Tensor:
    layer = nn.Linear(F * D, operator.weights[0].shape[1], bias=False, dtype=pooled.dtype)
    layer.weight.data = torch.cat([w.detach() for w in operator.weights]).t().contiguous()
    return layer(pooled.flatten(1))


def test_is_a_linear_layer():
    operator, pooled = made()
    assert isinstance(operator, Operator) and isinstance(operator, Learned)
    assert operator.shapes == ((H,),) and operator.by_column == (False,) and not operator.splits_bags
    assert elements_of(operator, D) == elements_of(operator, 1) == H
    found = operator.finish(operator.partial(pooled))
    torch.testing.assert_close(found, by_linear(operator, pooled), rtol=0, atol=1e-12)
    assert operator.partial(pooled[:0])[0].shape == (0, H)


def test_parts_of_features_and_columns_add_up():
    """With gradients: of each weight those of its rows, from whoever had them."""
    operator, pooled = made()
    whole = operator.finish(operator.partial(pooled))
    wanted = torch.autograd.grad(whole.sin().sum(), [pooled, *operator.weights])
    parts = []
    for numbers, (start, stop) in (((0, 2), (0, D)), ((1, 3), (0, 2)), ((1, 3), (2, D))):
        lookups, weights = [LOOKUPS[i] for i in numbers], [operator.weights[i] for i in numbers]
        some = operator.over(lookups, [w[start:stop] for w in weights])
        flat = flatten(some.partial(pooled[:, list(numbers), start:stop]))
        parts.append(unflatten(some, flat, (start, stop)))
    total = operator.finish(operator.reduce(operator.reduce(parts[0], parts[1]), parts[2]))
    torch.testing.assert_close(total, whole, rtol=0, atol=1e-12)
    found = torch.autograd.grad(total.sin().sum(), [pooled, *operator.weights])
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_over_some_lookups():
    operator, pooled = made()
    some = over(operator, LOOKUPS[2:])
    assert some.lookups == LOOKUPS[2:] and weights_of(some, LOOKUPS[3:]) == [operator.weights[3]]
    assert over(operator, LOOKUPS) is operator
    fm = FM2(lookups=LOOKUPS, width=D)
    assert over(fm, LOOKUPS[1:]) is fm and weights_of(fm, LOOKUPS) == []
    assert not isinstance(fm, Learned)
    rest = over(operator, LOOKUPS[:2]).partial(pooled[:, :2])[0]
    whole = operator.partial(pooled)[0]
    torch.testing.assert_close(rest + some.partial(pooled[:, 2:])[0], whole, rtol=0, atol=1e-12)


def test_what_is_no_layer_is_refused():
    operator, _ = made()
    weights = operator.weights
    for given, said in (
        (weights[:3], "4 lookups, 3 weights and 3 different ones"),
        ((*weights[:3], weights[0]), "4 lookups, 4 weights and 3 different ones"),
        ((*weights[:3], nn.Parameter(torch.ones(D, H + 1))), r"feature 'f3' has shape \(6, 4\); it must be \[6, H\]"),
        ((*weights[:3], nn.Parameter(torch.ones(D))), r"feature 'f3' has shape \(6,\)"),
    ):
        with pytest.raises(ConfigError, match=said):
            Folded(lookups=LOOKUPS, width=D, weights=given)


@pytest.mark.parametrize("n_samples", [1, 7, 130])
def test_product_is_its_formula(n_samples):
    if not onednn_works():
        pytest.skip("this torch has no fused linear operator")
    generator = torch.Generator().manual_seed(n_samples)
    x = torch.randn(n_samples, 40, generator=generator).requires_grad_()
    weight = torch.randn(40, 9, generator=generator).requires_grad_()
    found, wanted = product(x, weight), x @ weight
    assert type(found.grad_fn).__name__ == "_ProductBackward"
    given = torch.randn(n_samples, 9, generator=generator)
    pairs = zip(
        [found, *torch.autograd.grad(found, [x, weight], given)],
        [wanted, *torch.autograd.grad(wanted, [x, weight], given)],
        strict=True,
    )
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-4)
        assert a.is_contiguous()
    (alone,) = torch.autograd.grad(product(x.detach(), weight).sum(), [weight])  # x needs none
    torch.testing.assert_close(alone, x.detach().sum(0)[:, None].expand(-1, 9), rtol=1e-5, atol=1e-4)


def test_where_torch_itself_multiplies():
    x, weight = torch.ones(3, 4), torch.ones(4, 2, requires_grad=True)
    for a, b in ((x.double(), weight.double()), (x[:0], weight)):
        assert type(product(a, b).grad_fn).__name__ == "MmBackward0"
        assert torch.equal(product(a, b), a @ b)
    elsewhere = product(x.to("meta"), weight.to("meta"))  # of another device, where nothing of the host's would do
    assert (elsewhere.device.type, elsewhere.shape) == ("meta", (3, 2))
    assert type(elsewhere.grad_fn).__name__ == "MmBackward0"
    torch.backends.mkldnn.enabled = False
    try:
        assert type(product(x, weight).grad_fn).__name__ == "MmBackward0"
    finally:
        torch.backends.mkldnn.enabled = True
