"""Towers and their modules: by their definitions, a sample at a time in NumPy; identity towers are the flat models."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hpcrec.errors import ConfigError
from hpcrec.models import TowerModule, build_model, check_model, make_options
from hpcrec.models.dmt import OUTSIDE, Towers, tower_name
from hpcrec.models.tower_modules import make_module
from hpcrec.operators import Tower
from hpcrec.operators.base import meets
from hpcrec.types import Feature, Lookup

NAMES = ("user", "item", "genre", "site", "hour", "tag")
FEATURES = tuple(Feature(name=name, cardinality=7) for name in NAMES)
N_DENSE, WIDTH, BATCH = 4, 8, 5
SMALL: dict[str, dict[str, Any]] = {
    "dlrm": {"bottom": [5], "top": [16, 8]},
    "dcn": {"hidden": [5, 3], "cross_layers": 2},
}


def build(name: str, options: dict[str, Any], width: int = WIDTH, n_dense: int = N_DENSE) -> Any:
    torch.manual_seed(3)
    return build_model(name, FEATURES, n_dense, width=width, options=options).double()


def module(name: str, n_vectors: int, *, columns: int, ratio: float, mixed: int = 0, layers: int = 1) -> TowerModule:
    torch.manual_seed(n_vectors)
    made = make_module(name, n_vectors, WIDTH, columns, ratio, mixed=mixed, layers=layers).double()
    for parameter in made.parameters():  # biases too
        torch.nn.init.normal_(parameter)
    return made


def block(n_vectors: int) -> Tensor:
    return torch.randn(BATCH, n_vectors, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def weights(layer: Any) -> tuple[np.ndarray, np.ndarray]:
    return layer.weight.detach().numpy(), layer.bias.detach().numpy()


def by_definition(name: str, made: Any, vectors_FN: np.ndarray) -> np.ndarray:
    """Of one sample."""
    flat = np.concatenate(vectors_FN)
    if name == "identity":
        return flat
    if name == "linear":
        mixed = [w @ v + b for v, (w, b) in zip(vectors_FN, map(weights, made.mix), strict=False)]
        projected = [] if made.project is None else [np.dot(*reversed((flat, weights(made.project)[0]))) +
                                                     weights(made.project)[1]]  # fmt: skip
        return np.concatenate([*mixed, *projected])
    w, b = weights(made.project)
    if name == "cross":
        x = flat
        for layer in made.cross.layers:
            wl, bl = weights(layer)
            x = flat * (wl @ x + bl) + x
        return w @ x + b
    pairs = np.array([vectors_FN[j] @ vectors_FN[i] for j in range(len(vectors_FN)) for i in range(j)])
    if made.mix is not None:
        wm, bm = weights(made.mix)
        pairs = wm @ pairs + bm
    return np.concatenate([w @ flat + b, pairs[: made.numbers]])


@pytest.mark.parametrize(
    ("name", "n_vectors", "how", "gives"),
    [
        ("identity", 3, {"columns": WIDTH, "ratio": 1}, (3, 0)),
        ("linear", 3, {"columns": 2, "ratio": 4}, (3, 0)),
        ("linear", 3, {"columns": 2, "ratio": 4, "mixed": 1}, (3, 0)),
        ("linear", 3, {"columns": 2, "ratio": 2, "mixed": 1}, (6, 0)),
        ("linear", 1, {"columns": 2, "ratio": 2, "mixed": 2}, (2, 0)),
        ("products", 4, {"columns": 4, "ratio": 2}, (2, 6)),  # 16 elements: 6 products, 2 vectors, 2 left over
        ("products", 4, {"columns": 4, "ratio": 4}, (1, 4)),  # 8: fewer than there are pairs
        ("products", 4, {"columns": 1, "ratio": 4}, (4, 4)),  # no more numbers than half of them
        ("products", 2, {"columns": 8, "ratio": 2}, (1, 0)),
        ("products", 1, {"columns": 4, "ratio": 1}, (2, 0)),
        ("cross", 3, {"columns": 3, "ratio": 3, "layers": 2}, (2, 0)),
    ],
)
def test_modules_are_their_definitions(name: str, n_vectors: int, how: dict[str, Any], gives: tuple[int, int]) -> None:
    made, block_BFN = module(name, n_vectors, **how), block(n_vectors)
    assert (made.vectors, made.numbers) == gives and made.elements * how["ratio"] <= n_vectors * WIDTH
    found = made(block_BFN)
    assert found.shape == (BATCH, made.elements)
    wanted = [by_definition(name, made, vectors) for vectors in block_BFN.numpy()]
    np.testing.assert_allclose(found.detach().numpy(), wanted, rtol=0, atol=1e-12)
    assert made(block_BFN[:0]).shape == (0, made.elements)


def results_of(model: Towers, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: operator.finish(operator.partial(torch.stack([leaves[k.feature] for k in operator.lookups], 1)))
        for name, operator in model.operators.items()
    }


def leaves_for(width: int = WIDTH) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(2)
    return {f: torch.randn(BATCH, width, dtype=torch.float64, generator=generator, requires_grad=True) for f in NAMES}


@pytest.mark.parametrize("n_dense", [N_DENSE, 0])
@pytest.mark.parametrize("flat", ["dlrm", "dcn"])
@pytest.mark.parametrize("towers", [[], [["user", "item"], ["genre", "site", "hour"]], [["user"], ["item"]]])
def test_identity_towers_are_the_flat_model(flat: str, n_dense: int, towers: list[list[str]]) -> None:
    """Of the same parameters, to the bit, and so are the gradients of vectors; those outside come last."""
    plain = build(flat, SMALL[flat], n_dense=n_dense)
    model = build(f"dmt_{flat}", {**SMALL[flat], "towers": towers, "module": "identity", "ratio": 1}, n_dense=n_dense)
    assert model.ratio == 1.0
    model.load_state_dict(plain.state_dict())
    dense = torch.randn(BATCH, n_dense, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    seen = []
    for one in (plain, model):
        leaves = leaves_for()
        logits = one(results_of(one, leaves), dense)
        logits.square().sum().backward()
        seen.append([logits.detach(), *(leaf.grad for leaf in leaves.values())])
    for found, wanted in zip(seen[1], seen[0], strict=True):
        assert torch.equal(found, wanted)


def test_what_towers_there_are_and_what_is_outside() -> None:
    options = {"towers": [["tag", "user"], ["site"]], "ratio": 2, "columns": 4, "module": "linear"}
    model = build("dmt_dcn", {**SMALL["dcn"], **options})
    assert {name: [k.feature for k in o.lookups] for name, o in model.operators.items()} == {
        "tower0": ["tag", "user"],
        "tower1": ["site"],
        OUTSIDE: ["item", "genre", "hour"],
    }
    assert all(meets(o) and isinstance(o, Tower) for name, o in model.operators.items() if name != OUTSIDE)
    assert model.operators["tower0"].shapes == ((8,),) and model.ratio == 2.0
    named = dict(model.named_parameters())
    assert named["towers.0.project.weight"].shape == (8, 16) and named["towers.1.project.weight"].shape == (4, 8)
    naive = build("dmt_dlrm", {**SMALL["dlrm"], "n_towers": 4, "ratio": 2})
    assert naive.features_of == (("user",), ("item", "genre"), ("site",), ("hour", "tag"))
    assert not naive.outside_of and len(naive.map) == 0
    some = build("dmt_dlrm", {**SMALL["dlrm"], "towers": [["user", "item", "tag"]], "columns": 3})
    assert len(some.map) == 3, "vectors outside have another width than towers give"


@pytest.mark.parametrize(
    ("how", "columns", "elements"),
    [
        ({"towers": [NAMES[:4]], "ratio": 4}, 5, 16),  # 6 products leave 10 of 16: 8 columns would leave 2 over
        ({"towers": [NAMES[:4]], "ratio": 8}, 4, 8),
        ({"towers": [NAMES[:4], NAMES[4:]], "ratio": 2}, 5, 31 + 16),  # of 32 and 16: 26 and 15 beside the products
        ({"towers": [NAMES[:4]], "ratio": 4, "module": "cross"}, 8, 16),
        ({"towers": [NAMES[:4]], "ratio": 4, "module": "linear", "mixed": 1}, 4, 16),
        ({"towers": [NAMES[:1], NAMES[1:]], "ratio": 8, "module": "cross"}, 2, 2 + 10),  # as many as the smallest may
        ({"towers": [NAMES[:2]], "ratio": 1, "module": "identity"}, 16, 32),
    ],
)
def test_columns_are_those_that_leave_fewest_elements_over(how: dict[str, Any], columns: int, elements: int) -> None:
    model = build("dmt_dcn", {**SMALL["dcn"], **how}, width=16)
    assert model.columns == columns and sum(tower.elements for tower in model.towers) == elements


@pytest.mark.parametrize("name", ["linear", "products", "cross"])
def test_a_sample_of_a_tower_sees_its_own_features_alone(name: str) -> None:
    model = build("dmt_dlrm", {**SMALL["dlrm"], "module": name, "n_towers": 3, "ratio": 2})
    leaves = leaves_for()
    results_of(model, leaves)[tower_name(1)].sum().backward()
    assert [f for f, leaf in leaves.items() if leaf.grad is not None and leaf.grad.abs().max() > 0] == ["genre", "site"]


class Means(TowerModule):
    """A user's own: the mean of the vectors, cut to some columns."""

    def forward(self, block_BFN: Tensor) -> Tensor:
        return block_BFN.mean(1)[:, : self.columns]


def means(n_vectors: int, width: int, columns: int, elements: int) -> TowerModule:
    return Means(1, columns)


def too_many(n_vectors: int, width: int, columns: int, elements: int) -> TowerModule:
    return Means(1, columns, elements)


def nothing(*_: int) -> torch.nn.Module:
    return torch.nn.Identity()


def test_a_module_of_one_s_own() -> None:
    own = {"module": "tests.models.test_towers:means", "n_towers": 2, "columns": 3}
    model, leaves = build("dmt_dcn", {**SMALL["dcn"], **own}), leaves_for()
    found = results_of(model, leaves)
    wanted = torch.stack([leaves[f] for f in NAMES[:3]], 1).mean(1)[:, :3]
    torch.testing.assert_close(found["tower0"], wanted, rtol=0, atol=0)
    assert model.ratio == 8.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"towers": [["user", "city"]]}, r"towers\[0\] has feature 'city'; the data set has user, item"),
        ({"towers": [["user"], ["item", "user"]]}, r"towers\[1\] has feature 'user', which is in a tower already"),
        ({"towers": [[]]}, "it must be a list of lists of features"),
        ({"towers": ["user"]}, "it must be a list of lists of features"),
        ({"ratio": 0.5}, "ratio is 0.5; it must be a number of at least 1"),
        ({"ratio": float("nan")}, "ratio is nan"),
        ({"n_towers": 0}, "n_towers is 0"),
        ({"columns": 0}, "columns is 0"),
        ({"n_towers": 7}, "n_towers is 7; there are 6 features"),
        ({"mixed": 1}, "mixed is of module 'linear', and module is 'products'; leave it out"),
        ({"module_layers": 2}, "module_layers is of module 'cross'"),
        (
            {"module": "mean"},
            "model.options.module is 'mean'; allowed are identity, linear, products, cross, or the import path",
        ),
        ({"module": "identity"}, "columns has to be the width, 8, and ratio 1; they are 8 and 4"),
        ({"columns": 8, "ratio": 4}, "of 3 features of width 8 at ratio 4 may give 6 elements, and .* needs 8"),
        ({"module": "linear", "mixed": 2, "columns": 4, "ratio": 4}, "may give 6 elements, and .* needs 24"),
        ({"module": "tests.models.test_towers:no"}, "has no function 'no'"),
        ({"module": "tests.models.test_towers:nothing"}, "returned a Identity; it has to be a hpcrec.models.TowerM"),
        ({"module": "tests.models.test_towers:too_many", "columns": 2}, "gives 1 vectors of 2 columns and 6 numbers"),
    ],
)
def test_what_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build("dmt_dlrm", {**SMALL["dlrm"], **options})


def test_a_module_is_looked_for_beside_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "beside_tower.py").write_text(
        "from tests.models.test_towers import Means\n"
        "def build(n_vectors, width, columns, elements):\n    return Means(1, columns)\n"
        "def other(n_vectors):\n    pass\n"
    )
    options = {"module": "beside_tower:build", "columns": 2}
    model = build_model("dmt_dcn", FEATURES, N_DENSE, width=WIDTH, options=options, folder=tmp_path)
    assert type(model.towers[0]).__name__ == "Means"
    with pytest.raises(ConfigError, match=r"beside_tower:other: it cannot be called with \(n_vectors, width, columns"):
        build_model("dmt_dcn", FEATURES, N_DENSE, width=WIDTH, options={"module": "beside_tower:other"})


def test_a_tower_whose_parameters_are_not_the_model_s_is_refused() -> None:
    class Own(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            lookups = tuple(Lookup(feature=name, table=name, pooling="sum") for name in NAMES)
            made = module("linear", len(NAMES), columns=4, ratio=4)
            self.operators = {"mine": Tower(lookups=lookups, width=WIDTH, module=made, elements=made.elements)}

    with pytest.raises(
        ConfigError, match=r"operators\['mine'\] computes with parameters that are not the model's: proj"
    ):
        check_model("own", Own(), FEATURES)


def test_options_are_written_as_they_were_given() -> None:
    options = make_options("dmt_dlrm", {"towers": [["user", "item"], ["tag"]]})
    assert options.towers == (("user", "item"), ("tag",)) and hash(options)
