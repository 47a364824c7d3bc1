"""A user's own model: what is found and accepted, and what is refused with which words."""

import dataclasses
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from hpcrec.errors import ConfigError
from hpcrec.models import MODELS, build_model, check_model, load_model, tables_of
from hpcrec.operators import Block, Folded
from hpcrec.operators.base import Learned
from hpcrec.types import Feature, Lookup

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "own_model"
FEATURES = tuple(Feature(name=name, cardinality=7) for name in ("user", "item", "genre"))
HEADER = "import torch\nfrom hpcrec.models import block_operators\nfrom hpcrec.operators import Block\n"
MODEL = """
class Model(torch.nn.Module):
    def __init__(self, features, n_dense, *, width, n_labels=1, scale=1.0):
        super().__init__()
        self.scale = scale
        self.operators = block_operators(features, width)

    def forward(self, inputs, dense):
        return self.scale * inputs["block"].sum((1, 2))
"""


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Writes a module of the given text and loads ``build`` from it."""
    modules, path = dict(sys.modules), list(sys.path)

    def load_text(text, attribute="build", **keywords):
        name = f"own_{len(list(tmp_path.iterdir()))}_{tmp_path.name}".replace("-", "_")
        (tmp_path / f"{name}.py").write_text(HEADER + text)
        return load_model(f"{name}:{attribute}", FEATURES, 2, width=4, folder=tmp_path, **keywords)

    yield load_text
    assert sys.path in (path, [*path, str(tmp_path)]), "the folder stays where it replaces no module"
    sys.path[:] = path
    for name in set(sys.modules) - set(modules):
        if name.startswith("own_"):
            del sys.modules[name]


def test_a_class_will_do(load):
    model = load(MODEL, "Model", options={"scale": 3.0})
    assert tables_of(model.operators) == {"user": 4, "item": 4, "genre": 4}
    assert model({"block": torch.ones(2, 3, 4)}, torch.zeros(2, 2)).tolist() == [36, 36]


def test_a_function_gets_what_was_asked(load):
    text = MODEL + (
        "def build(features, n_dense, *, width, n_labels=1, pooling=None, **options):\n"
        "    model = Model(features, n_dense, width=width)\n"
        "    model.seen = (features, n_dense, width, n_labels, pooling, options)\n"
        "    return model\n"
    )
    assert load(text).seen == (FEATURES, 2, 4, 1, None, {})
    seen = load(text, n_labels=2, pooling={"user": "mean"}, options={"a": [1]}).seen
    assert seen == (FEATURES, 2, 4, 2, {"user": "mean"}, {"a": [1]})


def returns(what):
    return f"{MODEL}def build(features, n_dense, *, width, n_labels=1):\n    {what}\n"


MAKE = "model = Model(features, n_dense, width=width)"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MODEL, "has no function 'build'; it has .*Model"),
        ("build = 3", "has no function 'build'"),
        ("import not_there_at_all", "cannot be imported: No module named 'not_there_at_all'"),
        (returns("pass"), "it is a NoneType; a builder must return a torch.nn.Module"),
        (returns("return torch.nn.Linear(1, 1)"), "its attribute 'operators' is None; it must be a dict"),
        (returns(f"{MAKE}; model.operators = {{}}; return model"), "'operators' is {}; it must be a dict"),
        (
            returns(f"{MAKE}; model.operators = {{'x': 1}}; return model"),
            r"operators\['x'\] is 1; it must be an operator",
        ),
        (returns(f"{MAKE}; model.operators = {{'x': Block}}; return model"), r"operators\['x'\] is <class"),
        (
            returns(f"{MAKE}; model.operators |= block_operators(features, 8, name='b'); return model"),
            "operator 'b' reads table 'user' with width 8, another operator with width 4",
        ),
        (
            returns(f"{MAKE}; model.operators |= block_operators(features, 4, {{'item': 'mean'}}, 'b'); return model"),
            "operator 'b' pools feature 'item' of table 'item' by 'mean', another operator by 'sum'",
        ),
        (
            returns(
                "from hpcrec.types import Feature; return Model([Feature(name='x', cardinality=2)], 0, width=width)"
            ),
            "operator 'block' reads feature 'x'; the data set has genre, item, user",
        ),
    ],
)
def test_refusals(load, text, message):
    with pytest.raises(ConfigError, match=message):
        load(text)


class Scaled(Block):
    """With dense parameters, such as they are."""

    weights = ()

    def over(self, lookups, weights):
        raise AssertionError


def test_weights_of_an_operator_that_do_not_fit():
    """Said of an operator of one's own, whose class does not look at them itself."""
    lookups = tuple(Lookup(feature=f, table=f) for f in ("user", "item"))
    model, operator = torch.nn.Module(), Scaled(lookups=lookups, width=4)
    model.operators = {"scaled": operator}
    good = torch.nn.Parameter(torch.zeros(4, 2))
    for weights, said in (
        ((good,), "operator 'scaled' has 2 lookups and 1 weights; give it one weight for each"),
        ((good,) * 3, "2 lookups and 3 weights"),
        ((good, torch.zeros(())), r"feature 'item' has shape \[\]; it must have two dimensions or more, .* 4 columns"),
        ((good, torch.zeros(4)), r"feature 'item' has shape \[4\]; it must have two"),
        ((torch.zeros(0, 2), good), r"feature 'user' has shape \[0, 2\]; it must"),
    ):
        object.__setattr__(operator, "weights", weights)
        with pytest.raises(ConfigError, match=said):
            check_model("own:build", model, FEATURES)
    object.__setattr__(operator, "weights", (good, good))
    check_model("own:build", model, FEATURES)


def test_wrong_options_and_signatures(load):
    with pytest.raises(ConfigError, match="unexpected keyword argument 'depth'"):
        load(MODEL, "Model", options={"depth": 3})
    with pytest.raises(ConfigError, match="unexpected keyword argument 'pooling'"):
        load(MODEL, "Model", pooling={"user": "mean"})
    with pytest.raises(ConfigError, match=r"its signature must allow build\(features, n_dense, \*, width, n_labels=1"):
        load(MODEL + "def build(features):\n    return None\n")
    with pytest.raises(ConfigError, match="'width' is handed over anyway; leave it out of the options"):
        load(MODEL, "Model", options={"width": 3})


def test_errors_of_the_builder_are_its_own(load):
    """A TypeError inside the builder is not taken for a wrong signature."""
    with pytest.raises(TypeError, match="inside"):
        load("def build(features, n_dense, *, width, n_labels=1):\n    raise TypeError('inside')\n")


@pytest.mark.parametrize("path", [":build", "my_model:", ":"])
def test_bad_paths(path):
    with pytest.raises(ConfigError, match=r"is written 'package\.module:build'"):
        load_model(path, FEATURES, 2, width=4)


def test_missing_module(tmp_path):
    with pytest.raises(ConfigError, match=r"module 'no_such_module' cannot be imported.*it is looked for in"):
        build_model("no_such_module:build", FEATURES, 2, width=4, folder=tmp_path)


def test_example():
    """The model of examples/own_model: logits from its formula, an empty batch, its own options."""
    torch.manual_seed(0)
    model = build_model("my_model:build", FEATURES, 2, width=4, options={"n_left": 2, "out": 5}, folder=EXAMPLE)
    block, dense = torch.randn(3, 3, 4), torch.randn(3, 2)
    left = model.left(block[:, :2].reshape(3, 8))
    right = model.right(torch.cat([block[:, 2], dense], 1))
    torch.testing.assert_close(model({"block": block}, dense), (left * right).sum(1))
    empty = model({"block": torch.zeros(0, 3, 4, requires_grad=True)}, torch.zeros(0, 2))
    assert empty.shape == (0,)
    empty.sum().backward()
    assert list(model.state_dict()) == ["left.weight", "left.bias", "right.weight", "right.bias"]
    assert model.left.weight.shape == (5, 8)


def test_code_of_the_documentation():
    """The listings of docs/models.md do what the text around them says."""
    model_code, operators_code, folded_code = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "models.md").read_text(), re.DOTALL
    )
    names = {}
    exec(model_code, names)
    model = names["MyModel"](FEATURES, 2, width=4, hidden=3)
    check_model("MyModel", model, FEATURES)
    assert model({"block": torch.zeros(5, 3, 4)}, torch.zeros(5, 2)).shape == (5,)
    assert model({"block": torch.zeros(0, 3, 4)}, torch.zeros(0, 2)).shape == (0,)
    names = {"self": SimpleNamespace()}
    exec(operators_code, names)
    assert tables_of(names["self"].operators) == {"film": 32, "user": 8}
    module, lookups = torch.nn.Module(), tuple(Lookup(feature=f, table=f) for f in ("a", "b"))
    given = {"torch": torch, "nn": torch.nn, "Folded": Folded}
    exec(folded_code, {**given, "self": module, "lookups": lookups, "width": 4})
    (first,) = module.operators.values()
    assert isinstance(first, Learned) and first.shapes == ((64,),)
    assert all(mine is its for mine, its in zip(module.parameters(), first.weights, strict=True))


def test_defaults_of_the_documentation():
    """The table of docs/models.md has every option of every model, with its default."""
    text = (ROOT / "docs" / "models.md").read_text()
    for name, entry in MODELS.items():
        (row,) = [line for line in text.splitlines() if line.startswith(f"| `{name}` |")]
        for field in dataclasses.fields(entry.options):
            default = field.default
            value = json.dumps(list(default) if isinstance(default, tuple) else default)
            assert (f"`{field.name}`" if default is None else f"`{field.name} = {value}`") in row


def test_what_a_model_imports_as_it_is_built_is_found_beside_it_and_replaces_nothing(load, tmp_path):
    (tmp_path / "beside_it.py").write_text("SCALE = 3.0")
    (tmp_path / "colorsys.py").write_text("raise KeyError")  # a module of Python's
    model = load(
        MODEL
        + "def build(*a, **k):\n    import colorsys\n    from beside_it import SCALE\n"
        + "    return Model(*a, **k, scale=SCALE)\n"
    )
    assert model.scale == 3.0
    del sys.modules["beside_it"]
