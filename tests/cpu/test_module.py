"""A program as a layer of a model: trained, saved, moved and copied as any other."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from test_arguments import given, pair

import tilegen as tg
from tilegen.nn.module import Module
from tilegen.ops.reference import run


def layer(trained: bool = False, **options: Any) -> Module:
    held = given()
    weights = {name: held[name] for name in ("w1", "w2")}
    if trained:
        weights = {name: torch.nn.Parameter(w) for name, w in weights.items()}
    return tg.module(pair(), **weights, options=options)


def wanted(module: Module, x: torch.Tensor) -> torch.Tensor:
    return run(pair(), [x, *(p.detach() for p in module.parameters())])


def test_it_gives_what_the_program_says() -> None:
    module, x = layer(), given()["x"]
    torch.testing.assert_close(module(x), wanted(module, x))
    assert torch.equal(module(x=x), module(x)) and "pair" in repr(module)


def test_options_go_to_the_compiler() -> None:
    assert layer(on="cpu:3").kernel.plan.machine.sms == 3


def test_a_model_of_layers_learns() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(layer(trained=True), torch.nn.Linear(8, 8), layer(trained=True))
    x, y = torch.randn(4, 8), torch.randn(4, 8)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.05), []
    for _ in range(30):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    assert losses[-1] < 0.7 * losses[0] and len(list(model.parameters())) == 6


def test_its_weights_are_its_state() -> None:
    module, x = layer(), given()["x"]
    assert list(module.state_dict()) == ["w1", "w2"]
    other = layer()
    for p in other.parameters():
        p.data.zero_()
    assert not other(x).any()
    other.load_state_dict(module.state_dict())
    assert torch.equal(other(x), module(x))


@pytest.mark.parametrize("again", ["deepcopy", "pickle", "torch.save"])
def test_a_copy_has_weights_of_its_own(again: str) -> None:
    module, x = layer(trained=True), given()["x"]
    want = module(x).detach()
    if again == "deepcopy":
        other = copy.deepcopy(module)
    elif again == "pickle":
        other = pickle.loads(pickle.dumps(module))
    else:
        room = io.BytesIO()
        torch.save(module, room)
        room.seek(0)
        other = torch.load(room, weights_only=False)
    assert torch.equal(other(x), want) and all(p.requires_grad for p in other.parameters())
    with torch.no_grad():
        for p in module.parameters():
            p.zero_()
    assert torch.equal(other(x), want) and not module(x).any()


@pytest.mark.parametrize("trained", [False, True])
def test_torch_compile_and_export_take_it_as_one_call(trained: bool) -> None:
    module, x = layer(trained), given()["x"]
    model = torch.nn.Sequential(module, torch.nn.ReLU())
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), model(x))
    exported = torch.export.export(model, (x,))
    assert set(exported.state_dict) == {"0.w1", "0.w2"}
    calls = [n for n in exported.graph.nodes if str(n.target).startswith(f"tilegen.{module.kernel.operator}")]
    assert len(calls) == 1 and torch.equal(exported.module()(x), model(x))


@tg.spec
def kept(S=2):
    q, pos = tg.input("q", (1, S, 8), "float32"), tg.input("pos", (1,), "int32")
    k = tg.append(tg.state("k", (1, 9, 2, 4), "float32"), q, at=pos, name="k_append")
    a = tg.attention(q, k, k, heads=2, at=pos, name="a")
    return tg.linear(a, tg.weight("w", (8, 8), "float32"), name="y")


def test_states_are_given_and_written() -> None:
    module = tg.module(kept(), w=torch.randn(8, 8))
    cache, q = torch.zeros(1, 9, 2, 4), torch.randn(1, 2, 8)
    pos = torch.tensor([3], dtype=torch.int32)
    y = module(q, pos, cache)
    want, after = run(kept(), [q, pos, torch.zeros(1, 9, 2, 4), next(module.parameters()).detach()])
    torch.testing.assert_close(y, want)
    torch.testing.assert_close(cache, after)


class Holding:
    """A kernel in a GPU's place: prepared, it holds w1 as a copy of its own, and may let go of the weight."""

    fast = None

    def __init__(self, kernel: Any, held: dict[str, torch.Tensor] | None = None):
        self.kernel, self.held = kernel, held or {}

    def held_packed(self, names: frozenset[str]) -> dict[str, str]:
        return {"w1": "as it is"} if "w1" in names else {}

    def prepared(self, weights: Any, copies: Any, once: Any) -> Holding:
        assert once is None or once == {"w1"}
        return Holding(self.kernel, {name: w.detach().clone() for name, w in weights.items()})

    def unpacked(self, name: str) -> torch.Tensor:
        return self.held[name].clone()

    def __call__(self, *given: torch.Tensor, **named: torch.Tensor) -> torch.Tensor:
        return self.kernel(*given, **{**named, **self.held})

    def __deepcopy__(self, memo: Any) -> Holding:
        return self


def held_once(trained: bool = False) -> Module:
    """As on a GPU, after its weights were packed."""
    held = given()
    weights: Any = {name: torch.nn.Parameter(held[name], requires_grad=trained) for name in ("w1", "w2")}
    module = tg.module(pair(), **weights, keep=False)
    module._kernel, module._kind = Holding(module.kernel), "cuda"  # type: ignore[assignment]
    with torch.no_grad():
        module(held["x"])
    assert module.w1.isnan().all() and module.w1.untyped_storage().nbytes() == 4
    assert torch.equal(module.w2, held["w2"])
    return module


def test_a_weight_that_is_held_packed_alone_is_still_its_state() -> None:
    module, held = held_once(), given()
    state = module.state_dict()
    assert torch.equal(state["w1"], held["w1"]) and torch.equal(state["w2"], held["w2"])
    assert torch.equal(torch.nn.Sequential(module).state_dict()["0.w1"], held["w1"])
    assert torch.equal(copy.deepcopy(module).w1, held["w1"]) and module.w1.isnan().all()
    with torch.no_grad():
        torch.testing.assert_close(module(held["x"]), layer()(held["x"]))
    assert torch.equal(module.to(torch.device("cpu")).w1, held["w1"])


def test_a_weight_that_is_held_packed_alone_can_be_loaded_anew() -> None:
    module, held = held_once(), given()
    module.load_state_dict({"w1": 2 * held["w1"], "w2": held["w2"]})
    with torch.no_grad():
        torch.testing.assert_close(module(held["x"]), layer()(2 * held["x"]))
        assert module.w1.isnan().all()
        module.w1 = torch.nn.Parameter(held["w1"].clone())
        torch.testing.assert_close(module(held["x"]), layer()(held["x"]))
        module.w2.mul_(3)
        torch.testing.assert_close(module(held["x"]), 3 * layer()(held["x"]))


def test_a_weight_that_is_held_packed_alone_can_be_trained() -> None:
    module, x = held_once(trained=True), given()["x"]
    module(x).sum().backward()
    other = layer(trained=True)
    other(x).sum().backward()
    assert module.w1.grad is not None and other.w1.grad is not None
    torch.testing.assert_close(module.w1.grad, other.w1.grad)
    with torch.no_grad():
        assert module(x) is not None and module.w1.requires_grad


def test_weights_are_kept_unless_asked() -> None:
    module = layer()
    module._kernel, module._kind = Holding(module.kernel), "cuda"  # type: ignore[assignment]
    with torch.no_grad():
        module(given()["x"])
    assert torch.equal(module.w1, given()["w1"])


def test_the_call_of_a_kernel_that_was_replaced_is_forgotten() -> None:
    """Whose memory is freed: not even its weights' return brings it back."""
    module = layer()
    module._kernel, module._kind = Holding(module.kernel), "cuda"  # type: ignore[assignment]
    before = module.w1
    with torch.no_grad():
        module(given()["x"])
        module._fast = lambda *_: NotImplemented
        module.w1 = torch.nn.Parameter(2 * before.detach(), requires_grad=False)
        module(given()["x"])
        assert module._fast is None
