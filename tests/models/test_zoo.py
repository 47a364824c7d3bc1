"""Every model of the zoo: shapes, formulas, empty batches, several labels, pooling, parameters, options."""

import dataclasses
import itertools

import pytest
import torch

from hpcrec.errors import ConfigError
from hpcrec.models import MODELS, RecModel, build_model, make_options, options_type, tables_of
from hpcrec.models.first import FirstLayer
from hpcrec.models.layers import mlp
from hpcrec.types import Feature, Lookup

FEATURES = tuple(Feature(name=name, cardinality=7) for name in ("user", "item", "genre"))
N_DENSE, WIDTH = 4, 6
SMALL = {
    "lr": {},
    "fm": {},
    "deepfm": {"hidden": [5, 3]},
    "wide_deep": {"hidden": [5, 3]},
    "dcn": {"hidden": [5, 3], "cross_layers": 2},
    "dlrm": {"bottom": [5], "top": [16, 8]},
    "dmt_dlrm": {"bottom": [5], "top": [16, 8], "ratio": 2},
    "dmt_dcn": {"hidden": [5, 3], "cross_layers": 2, "ratio": 2},
}
VARIANTS = [
    *SMALL.items(),
    ("dcn", {"hidden": [5], "structure": "stacked"}),
    ("dcn", {"hidden": [], "low_rank": 2}),
    ("dcn", {"hidden": [4], "low_rank": 3, "dropout": 0.5}),
    ("deepfm", {"hidden": [5], "dropout": 0.5}),
    ("wide_deep", {"hidden": [5], "dropout": 0.5}),
    ("dlrm", {"bottom": [], "top": [], "dropout": 0.5}),
    ("dmt_dlrm", {"towers": [["genre", "user"]], "module": "linear", "mixed": 1, "columns": 2, "ratio": 3}),
    ("dmt_dlrm", {"towers": [["user", "item", "genre"]], "module": "products", "columns": 1, "ratio": 3}),
    ("dmt_dlrm", {"module": "identity", "ratio": 1, "top": [], "dropout": 0.5}),
    ("dmt_dlrm", {"n_towers": 3, "module": "cross", "ratio": 1.5}),
    ("dmt_dcn", {"towers": [["item"]], "module": "linear", "hidden": [], "low_rank": 2}),
    ("dmt_dcn", {"module": "products", "structure": "stacked", "hidden": [4]}),
]


def build(name, options=None, *, features=FEATURES, n_dense=N_DENSE, seed=0, **keywords):
    torch.manual_seed(seed)
    options = SMALL[name] if options is None else options
    return build_model(name, features, n_dense, width=WIDTH, options=options, **keywords).double()


def inputs_for(model, n, seed=0):
    """Leaf tensors by (feature, table), and the operators' results over them."""
    generator = torch.Generator().manual_seed(seed)
    leaves = {}
    results = {}
    for name, operator in model.operators.items():
        for k in operator.lookups:
            if (k.feature, k.table) not in leaves:
                leaf = torch.randn(n, operator.width, dtype=torch.float64, generator=generator)
                leaves[k.feature, k.table] = leaf.requires_grad_(True)
        pooled = torch.stack([leaves[k.feature, k.table] for k in operator.lookups], 1)
        results[name] = operator.finish(operator.partial(pooled))
    return leaves, results


def dense_for(n, n_dense=N_DENSE, seed=1):
    return torch.randn(n, n_dense, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("name", "options"), VARIANTS)
@pytest.mark.parametrize("n_labels", [1, 2])
@pytest.mark.parametrize("n_dense", [N_DENSE, 0])
@pytest.mark.parametrize("n", [5, 1, 0])
def test_forward_and_backward(name, options, n_labels, n_dense, n):
    model = build(name, options, n_labels=n_labels, n_dense=n_dense)
    leaves, results = inputs_for(model, n)
    logits = model(results, dense_for(n, n_dense))
    assert logits.shape == ((n,) if n_labels == 1 else (n, n_labels))
    logits.sum().backward()
    for leaf in leaves.values():
        assert leaf.grad is not None and leaf.grad.shape == leaf.shape
        assert n == 0 or "dropout" in options or leaf.grad.abs().max() > 0
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert n > 0 or parameter.grad.abs().sum() == 0, parameter_name


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("n_labels", [1, 2])
def test_samples_do_not_see_each_other(name, n_labels):
    """The global batch in two parts gives the logits of the whole: what sharding over dense ranks relies on."""
    model = build(name, n_labels=n_labels)
    _, results = inputs_for(model, 6)
    dense = dense_for(6)
    whole = model(results, dense)
    for part in (slice(0, 1), slice(1, 6)):
        logits = model({k: v[part] for k, v in results.items()}, dense[part])
        torch.testing.assert_close(logits, whole[part], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_seed_decides_the_dense_weights(name):
    same = zip(build(name).parameters(), build(name).parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in same)
    other = zip(build(name).parameters(), build(name, seed=1).parameters(), strict=True)
    assert any(not torch.equal(a, b) for a, b in other)


@pytest.mark.parametrize("name", MODELS)
def test_labels_differ(name):
    """With two labels the columns are different functions of the same inputs."""
    model = build(name, n_labels=2)
    _, results = inputs_for(model, 5)
    logits = model(results, dense_for(5))
    assert (logits[:, 0] - logits[:, 1]).abs().max() > 1e-3


@pytest.mark.parametrize("name", MODELS)
def test_no_rank_dependent_layers(name):
    assert not any(isinstance(m, torch.nn.modules.batchnorm._BatchNorm) for m in build(name).modules())


WIDE = {"user.wide": 1, "item.wide": 1, "genre.wide": 1}
VECTORS = {"user": WIDTH, "item": WIDTH, "genre": WIDTH}
X = N_DENSE + 3 * WIDTH  # inputs of the deep towers


def affine_size(*sizes):
    return sum(a * b + b for a, b in itertools.pairwise(sizes))


@pytest.mark.parametrize(
    ("name", "options", "tables", "n_parameters"),
    [
        ("lr", {}, WIDE, N_DENSE + 1),
        ("fm", {}, WIDE | VECTORS, N_DENSE + 1),
        ("deepfm", SMALL["deepfm"], WIDE | VECTORS, N_DENSE + 1 + affine_size(X, 5, 3, 1)),
        ("wide_deep", SMALL["wide_deep"], WIDE | VECTORS, N_DENSE + 1 + affine_size(X, 5, 3, 1)),
        ("dcn", SMALL["dcn"], VECTORS, 2 * (X * X + X) + affine_size(X, 5, 3) + X + 3 + 1),
        ("dcn", {"hidden": [5], "structure": "stacked"}, VECTORS, 3 * (X * X + X) + affine_size(X, 5, 1)),
        ("dcn", {"hidden": [], "low_rank": 2}, VECTORS, 3 * (2 * 2 * X + X) + X + 1),
        ("dlrm", SMALL["dlrm"], VECTORS, affine_size(N_DENSE, 5, WIDTH) + affine_size(WIDTH + 6, 16, 8, 1)),
    ],
)
def test_tables_and_parameters(name, options, tables, n_parameters):
    model = build(name, options)
    assert isinstance(model, RecModel)
    assert model.tables == tables_of(model.operators) == tables
    assert sum(p.numel() for p in model.parameters()) == n_parameters


def test_public_dlrm_size():
    """13-512-256-64-16 and 512-256-1 over 26 features, as in its public Criteo Kaggle runs."""
    features = tuple(Feature(name=f"C{i}", cardinality=10) for i in range(26))
    model = build_model("dlrm", features, 13, width=16)
    expected = affine_size(13, 512, 256, 64, 16) + affine_size(16 + 27 * 26 // 2, 512, 256, 1)
    assert sum(p.numel() for p in model.parameters()) == expected


def test_lr_formula():
    model = build("lr")
    leaves, results = inputs_for(model, 3)
    dense = dense_for(3)
    weight, bias = model.first_order.dense.weight[0], model.first_order.dense.bias[0]
    expected = sum(leaf[:, 0] for leaf in leaves.values()) + dense @ weight + bias
    torch.testing.assert_close(model(results, dense), expected, rtol=0, atol=1e-12)


def deep_part(model, dense, v):
    """The deep tower as layers over dense inputs and vectors side by side."""
    first = model.first
    weights = [first.weight.t(), *(first.get_parameter(f"weight_{f.name}") for f in FEATURES)]
    return model.deep(torch.relu(torch.cat([dense, *v], 1) @ torch.cat(weights) + first.bias))[:, 0]


@pytest.mark.parametrize("n_dense", [N_DENSE, 0])
def test_first_layer_is_drawn_as_a_layer_over_everything(n_dense):
    torch.manual_seed(3)
    first = FirstLayer(n_dense, [Lookup(feature=f.name, table=f.name) for f in FEATURES], WIDTH, 5)
    torch.manual_seed(3)
    whole = mlp(n_dense + 3 * WIDTH, (5,))[0]
    parts = [first.weight] if n_dense else []
    parts += [first.get_parameter(f"weight_{f.name}").t() for f in FEATURES]
    assert torch.equal(torch.cat(parts, 1), whole.weight)
    assert torch.equal(first.bias, whole.bias)


def test_names_of_a_first_layer():
    """Names of features and tables that torch would not have; none is that of another lookup."""
    pairs = [("a.b", "a.b"), ("a%2Eb", "a%2Eb"), ("a", "b.c"), ("a@b", "a@b"), ("type", "type"), ("bias", "bias")]
    first = FirstLayer(1, [Lookup(feature=f, table=t) for f, t in pairs], 2, 3)
    names = [n for n, _ in first.named_parameters()]
    assert names == [
        *("weight_a%2Eb", "weight_a%252Eb", "weight_a@b%2Ec", "weight_a%40b", "weight_type", "weight_bias"),
        *("weight", "bias"),
    ]
    assert all(weight is first.get_parameter(n) for weight, n in zip(first.operator.weights, names, strict=False))


def test_fm_and_deepfm_formula():
    fm, deepfm = build("fm"), build("deepfm")
    deepfm.first_order.load_state_dict(fm.first_order.state_dict())
    leaves, results = inputs_for(deepfm, 3)
    dense = dense_for(3)
    v = [leaves[f.name, f.name] for f in FEATURES]
    wide = sum(leaves[f.name, f"{f.name}.wide"][:, 0] for f in FEATURES)
    pairs = (v[0] * v[1] + v[0] * v[2] + v[1] * v[2]).sum(1)
    expected = wide + dense @ fm.first_order.dense.weight[0] + pairs
    torch.testing.assert_close(fm(results, dense), expected, rtol=0, atol=1e-12)
    expected = expected + deep_part(deepfm, dense, v)
    torch.testing.assert_close(deepfm(results, dense), expected, rtol=0, atol=1e-12)


def test_wide_deep_formula():
    model = build("wide_deep")
    leaves, results = inputs_for(model, 3)
    dense = dense_for(3)
    v = [leaves[f.name, f.name] for f in FEATURES]
    wide = sum(leaves[f.name, f"{f.name}.wide"][:, 0] for f in FEATURES)
    expected = wide + dense @ model.first_order.dense.weight[0] + deep_part(model, dense, v)
    torch.testing.assert_close(model(results, dense), expected, rtol=0, atol=1e-12)


def test_dlrm_formula():
    model = build("dlrm")
    leaves, results = inputs_for(model, 3)
    dense = dense_for(3)
    x = model.bottom(dense)
    v = [x] + [leaves[f.name, f.name] for f in FEATURES]
    products = [(v[i] * v[j]).sum(1) for i in range(4) for j in range(i)]
    expected = model.top(torch.cat([x, torch.stack(products, 1)], 1))[:, 0]
    torch.testing.assert_close(model(results, dense), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("structure", ["parallel", "stacked"])
def test_dcn_formula(structure):
    model = build("dcn", {"hidden": [5], "structure": structure, "cross_layers": 2})
    leaves, results = inputs_for(model, 3)
    x0 = torch.cat([dense_for(3), *(leaves[f.name, f.name] for f in FEATURES)], 1)
    x = x0
    for layer in model.cross.layers:
        x = x0 * (x @ layer.weight.T + layer.bias) + x
    last = torch.cat([x, model.deep(x0)], 1) if structure == "parallel" else model.deep(x)
    expected = last @ model.head.weight[0] + model.head.bias[0]
    torch.testing.assert_close(model(results, dense_for(3)), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_pooling_goes_into_the_lookups(name):
    model = build(name, pooling={"genre": "mean"})
    found = {k for operator in model.operators.values() for k in operator.lookups}
    assert {k.feature: k.pooling for k in found} == {"user": "sum", "item": "sum", "genre": "mean"}
    assert all(Lookup(feature="genre", table=k.table, pooling="mean") in found for k in found if k.feature == "genre")


def test_deepfm_vectors_cross_once():
    operators = build("deepfm").operators
    assert operators["fm2"].lookups == operators["first"].lookups


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("dlmr", {}, "model.name is 'dlmr'; allowed are lr, .* dcn, dlrm, dmt_dlrm, dmt_dcn, or the import path"),
        ("lr", {"hidden": [4]}, "model lr: there is no option 'hidden'; allowed are none"),
        ("dcn", {"layers": 3}, "there is no option 'layers'; allowed are cross_layers, low_rank, hidden, structure"),
        ("deepfm", {"hidden": []}, "hidden is .*; it must be a list of at least 1 positive integers"),
        ("deepfm", {"hidden": 64}, "hidden is 64"),
        ("wide_deep", {"hidden": [64, 0]}, r"hidden is \(64, 0\)"),
        ("wide_deep", {"hidden": [64, 2.5]}, r"hidden is \(64, 2.5\)"),
        ("dlrm", {"bottom": [True]}, r"bottom is \(True,\)"),
        ("dlrm", {"top": ["a"]}, "top is"),
        ("dlrm", {"dropout": 1.0}, r"dropout is 1.0; it must be a number in \[0, 1\)"),
        ("dlrm", {"dropout": "x"}, "dropout is 'x'"),
        ("dlrm", {"dropout": float("nan")}, "dropout is nan"),
        ("dcn", {"cross_layers": 0}, "cross_layers is 0; it must be an integer of at least 1"),
        ("dcn", {"low_rank": 1.5}, "low_rank is 1.5"),
        ("dcn", {"structure": "both"}, "structure is 'both'; allowed are 'parallel', 'stacked'"),
    ],
)
def test_refused_options(name, options, message):
    with pytest.raises(ConfigError, match=message):
        make_options(name, options)


@pytest.mark.parametrize("name", MODELS)
def test_options_are_frozen_and_documented(name):
    kind = options_type(name)
    assert kind.__doc__ and all(field.kw_only for field in dataclasses.fields(kind))
    assert all(field.name in kind.__doc__ for field in dataclasses.fields(kind))
    assert make_options(name, SMALL[name]) == make_options(name, SMALL[name])
    assert kind.__dataclass_params__.frozen


def test_refused_builds():
    with pytest.raises(ConfigError, match="no features"):
        build("lr", features=())
    with pytest.raises(ConfigError, match="width is 0"):
        build_model("fm", FEATURES, 2, width=0)
    with pytest.raises(ConfigError, match="number of labels is 0"):
        build_model("fm", FEATURES, 2, width=2, n_labels=0)
    with pytest.raises(ConfigError, match="pooling names feature 'city'; the features are user, item, genre"):
        build("fm", pooling={"city": "mean"})
    with pytest.raises(ConfigError, match="'min'; allowed are 'sum', 'mean' and 'max'"):
        build("fm", pooling={"user": "min"})
    with pytest.raises(ConfigError, match="no pairs to interact"):
        build("dlrm", features=FEATURES[:1], n_dense=0)
