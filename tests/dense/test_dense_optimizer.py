"""The dense optimizer by name, and its state by parameter name: saved, loaded and continued bit for bit."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from hpcrec.dense import optimizer as module
from hpcrec.dense.optimizer import build_optimizer, load_optimizer_state, optimizer_names, optimizer_state
from hpcrec.errors import CheckpointError, ConfigError

KINDS = {
    "SGD": {"momentum": 0.9, "nesterov": True},
    "Adam": {"betas": [0.8, 0.99], "amsgrad": True},
    "AdamW": {"weight_decay": 0.1},
    "Adagrad": {"initial_accumulator_value": 0.1, "lr_decay": 0.01},
    "RMSprop": {"momentum": 0.5, "centered": True},
    "Adamax": {},
    "NAdam": {},
    "Rprop": {},
    "Adadelta": {},
    "ASGD": {},
    "RAdam": {},
}


def model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))


def steps(net, optimizer, first, last):
    for step in range(first, last):
        torch.manual_seed(step)
        optimizer.zero_grad()
        net(torch.randn(7, 5)).square().sum().backward()
        optimizer.step()


def bits(net):
    return b"".join(p.detach().numpy().tobytes() for p in net.parameters())


def saved(state):
    """What a file would hold: copies, without the empty ones."""
    return {
        name: {key: value.clone() if torch.is_tensor(value) else value for key, value in held.items()}
        for name, held in state.items()
        if held
    }


@pytest.mark.parametrize("name", KINDS)
def test_resumed_equals_uninterrupted_bit_for_bit(name):
    whole = model()
    optimizer = build_optimizer(name, list(whole.named_parameters()), 0.01, KINDS[name])
    steps(whole, optimizer, 0, 3)
    state = saved(optimizer_state(optimizer, list(whole.named_parameters())))
    assert set(state) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    weights = {key: value.clone() for key, value in whole.state_dict().items()}
    at_save = bits(whole)
    steps(whole, optimizer, 3, 7)
    assert bits(whole) != at_save

    again = model()
    again.load_state_dict(weights)
    other = build_optimizer(name.lower(), list(again.named_parameters()), 0.01, KINDS[name])
    steps(again, other, 50, 52)  # whatever it held before is replaced
    again.load_state_dict(weights)
    load_optimizer_state(other, list(again.named_parameters()), state)
    steps(again, other, 3, 7)
    assert bits(again) == bits(whole)


@pytest.mark.parametrize("name", ["SGD", "Adam", "Adagrad"])
def test_parameters_without_state_start_afresh(name):
    net = model()
    optimizer = build_optimizer(name, list(net.named_parameters()), 0.01, {})
    steps(net, optimizer, 0, 2)
    fresh = model()
    again = build_optimizer(name, list(fresh.named_parameters()), 0.01, {})
    load_optimizer_state(optimizer, list(net.named_parameters()), {})
    net.load_state_dict(fresh.state_dict())
    steps(net, optimizer, 2, 4)
    steps(fresh, again, 2, 4)
    assert bits(net) == bits(fresh)


def test_every_allowed_name_can_be_built():
    names = optimizer_names()
    assert {"SGD", "Adam", "AdamW", "Adagrad", "RMSprop"} <= set(names)
    assert not {"LBFGS", "SparseAdam", "Optimizer"} & set(names)
    for name in names:
        net = model()
        optimizer = build_optimizer(name, list(net.named_parameters()), 0.01, {})
        assert optimizer.param_groups[0]["lr"] == 0.01
        before = bits(net)
        steps(net, optimizer, 0, 1)
        assert bits(net) != before


def test_errors_say_what_is_allowed():
    parameters = list(model().named_parameters())
    with pytest.raises(ConfigError, match=r"dense.optimizer.name is 'Sgdd'. Allowed: .*SGD"):
        build_optimizer("Sgdd", parameters, 0.1, {})
    with pytest.raises(ConfigError, match=r"Adam has no 'momentum'. Allowed: betas, eps"):
        build_optimizer("Adam", parameters, 0.1, {"momentum": 0.9})
    with pytest.raises(ConfigError, match=r"SGD refuses lr = -1.0"):
        build_optimizer("SGD", parameters, -1.0, {})


def test_there_may_be_nothing_to_train_here():
    frozen = [("p", nn.Parameter(torch.ones(1), requires_grad=False))]
    for optimizer in (build_optimizer(name, frozen, 0.1, {}) for name in optimizer_names()):
        optimizer.step()
        assert optimizer_state(optimizer, frozen) == {}


@pytest.mark.parametrize("name", optimizer_names())
def test_works_element_by_element(name):
    """Rows of a parameter learn as they do in the whole of it, bit for bit: what slices at owners rely on."""
    generator = torch.Generator().manual_seed(1)
    whole = nn.Parameter(torch.randn(5, 3, generator=generator))
    parts = [nn.Parameter(whole.detach()[rows].clone()) for rows in (slice(0, 2), slice(2, 5))]
    options = {"weight_decay": 0.1} | ({"momentum": 0.9} if name in ("SGD", "RMSprop") else {})
    options = {} if name == "Rprop" else options
    optimizers = [build_optimizer(name, [("w", w)], 0.1, options) for w in (whole, *parts)]
    for _ in range(4):
        whole.grad = torch.randn(5, 3, generator=generator)
        parts[0].grad, parts[1].grad = whole.grad[:2].clone(), whole.grad[2:].clone()
        for optimizer in optimizers:
            optimizer.step()
        assert torch.equal(torch.cat(parts), whole)
    for key, value in optimizers[0].state[whole].items():
        states = [o.state[p][key] for o, p in zip(optimizers[1:], parts, strict=True)]
        if isinstance(value, torch.Tensor) and value.ndim:
            assert value.shape == whole.shape
            assert torch.equal(torch.cat(states), value), key
        else:
            assert value is None or value == states[0] == states[1], key


def test_state_of_another_model_or_optimizer_is_refused():
    net = model()
    optimizer = build_optimizer("SGD", list(net.named_parameters()), 0.01, {"momentum": 0.9})
    steps(net, optimizer, 0, 1)
    state = optimizer_state(optimizer, list(net.named_parameters()))
    assert set(state["0.weight"]) == {"momentum_buffer"}
    adam = build_optimizer("Adam", list(net.named_parameters()), 0.01, {})
    with pytest.raises(CheckpointError, match=r"'0.weight' is \['momentum_buffer'\], but Adam keeps \['exp_avg'"):
        load_optimizer_state(adam, list(net.named_parameters()), state)
    with pytest.raises(CheckpointError, match=r"'tower.weight' is in the checkpoint, but the model has no such"):
        load_optimizer_state(optimizer, list(net.named_parameters()), {"tower.weight": state["0.weight"]})
    with pytest.raises(CheckpointError, match=r"has shape \(4, 5\) in the checkpoint, the parameter \(4,\)"):
        load_optimizer_state(optimizer, list(net.named_parameters()), {"0.bias": state["0.weight"]})


@pytest.mark.parametrize("name", optimizer_names())
def test_steps_without_torchs_compiler_are_torchs_own_bit_for_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def trained(own: bool) -> list[torch.Tensor]:
        torch.manual_seed(3)
        model = nn.Linear(5, 3)
        with monkeypatch.context() as patch:
            if own:
                patch.setattr(module, "_COMPILER", "not there")
            optimizer = build_optimizer(name, list(model.named_parameters()), 0.01, {})
            for _ in range(3):
                model.zero_grad()
                model(torch.randn(4, 5)).square().sum().backward()
                (module.step if own else type(optimizer).step)(optimizer)
        state = [value for held in optimizer.state.values() for _, value in sorted(held.items())]
        return [p.detach() for p in model.parameters()] + [s for s in state if isinstance(s, torch.Tensor)]

    mine, torchs = trained(True), trained(False)
    assert len(mine) == len(torchs) >= 2 and all(torch.equal(a, b) for a, b in zip(mine, torchs, strict=True))


def test_a_run_does_not_import_torchs_compiler(tmp_path: Path) -> None:
    """To import it takes each rank some two seconds of its start."""
    code = (
        "import sys, torch\n"
        "from hpcrec.dense.optimizer import build_optimizer, load_optimizer_state, optimizer_state, step\n"
        "layer = torch.nn.Linear(2, 2)\n"
        "named = list(layer.named_parameters())\n"
        "optimizer = build_optimizer('Adam', named, 0.1, {})\n"
        "layer(torch.ones(1, 2)).sum().backward()\n"
        "step(optimizer)\n"
        "load_optimizer_state(optimizer, named, optimizer_state(optimizer, named))\n"
        "assert 'torch._dynamo' not in sys.modules, 'imported'\n"
        "optimizer.step()\n"  # as torch has it
        "assert 'torch._dynamo' in sys.modules, 'torch has changed: hpcrec.dense.optimizer does more than it has to'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
