"""torch.compile(backend="tilegen") on a GPU: results, gradients, CUDA graphs."""

from __future__ import annotations

import copy

import pytest
import torch

from tests.compiled import Block, Net, compiled, counted, left
from tilegen import config
from tilegen.runtime.driver import missing

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(missing()), reason=missing() or "a GPU is here"),
]


@pytest.fixture(autouse=True)
def every_region(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "min_gain", 0)
    torch.manual_seed(0)


def _as_right(found: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> None:
    assert (found - exact).norm() <= 1.5 * (eager - exact).norm() + 1e-3 * exact.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_a_layer_is_as_right_as_torchs(dtype: torch.dtype, mode: str | None) -> None:
    """Odd rows; called again and again, as a CUDA graph where the mode asks for one."""
    layer = Block(128, 2).eval().cuda().to(dtype)
    exact, run = copy.deepcopy(layer).float(), compiled(layer, mode=mode)
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(2, 77, 128, device="cuda", dtype=dtype)
            _as_right(run(x), layer(x), exact(x.float()))
    assert counted()["regions"] >= 1, left()


@pytest.mark.parametrize("moves", [0, 1])
@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_a_layer_whose_size_moves_is_as_right_as_torchs(moves: int, mode: str | None) -> None:
    """One graph, one region; above the largest size known it is compiled anew."""
    layer = Block(128, 2).eval().cuda().bfloat16()
    exact, run = copy.deepcopy(layer).float(), compiled(layer, mode=mode)
    with torch.no_grad():
        for size in (33, 5, 2, 65, 33, 200):
            shape = (size, 3, 128) if moves == 0 else (2, size, 128)
            for _ in range(3):
                x = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
                torch._dynamo.mark_dynamic(x, moves)
                _as_right(run(x).clone(), layer(x), exact(x.float()))
    assert counted()["regions"] == 1 and torch._dynamo.utils.counters["frames"]["ok"] == 1, left()


def test_images_whose_number_moves_are_as_right_as_torchs() -> None:
    net = Net().eval().cuda().half()
    exact, run = copy.deepcopy(net).float(), compiled(net)
    with torch.no_grad():
        for batch in (3, 2, 9, 20):
            x = torch.randn(batch, 3, 20, 20, device="cuda").half()
            torch._dynamo.mark_dynamic(x, 0)
            for found, eager, true in zip(run(x), net(x), exact(x.float()), strict=True):
                _as_right(found, eager, true)
                assert found.stride() == eager.stride()
    assert counted()["regions"] >= 1, left()


def test_images_are_as_right_as_torchs() -> None:
    net = Net().eval().cuda().half()
    exact, x = copy.deepcopy(net).float(), torch.randn(3, 3, 20, 20, device="cuda").half()
    with torch.no_grad():
        for found, eager, true in zip(compiled(net)(x), net(x), exact(x.float()), strict=True):
            _as_right(found, eager, true)
            assert found.stride() == eager.stride()
    assert counted()["regions"] >= 1, left()


def test_gradients_are_as_right_as_torchs() -> None:
    layer = Block(128, 2).cuda().bfloat16()
    eager, exact = copy.deepcopy(layer), copy.deepcopy(layer).float()
    x = torch.randn(2, 33, 128, device="cuda", dtype=torch.bfloat16)
    for run, given in ((compiled(layer), x), (eager, x), (exact, x.float())):
        run(given).float().square().mean().backward()
    assert counted()["regions"] >= 1, left()
    for a, b, true in zip(*(m.parameters() for m in (layer, eager, exact)), strict=True):
        _as_right(a.grad, b.grad, true.grad)


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_weights_changed_between_calls_are_seen(mode: str | None) -> None:
    """By replays of a CUDA graph, too."""
    layer = Block(128, 2).eval().cuda().bfloat16()
    run, x = compiled(layer, mode=mode), torch.randn(1, 40, 128, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        for _ in range(5):
            for _ in range(3):
                _as_right(run(x).clone(), layer(x), copy.deepcopy(layer).float()(x.float()))
            for p in layer.parameters():
                p.mul_(1.1)
    assert counted()["regions"] == 1, left()


def test_a_region_stands_in_inductors_cuda_graph() -> None:
    """No operator of Python's runs after it has been made, whatever weights are folded."""
    layer = Block(128, 2).eval().cuda().bfloat16()
    run, x = compiled(layer, mode="reduce-overhead"), torch.randn(1, 40, 128, device="cuda").bfloat16()
    with torch.no_grad():
        for _ in range(3):
            run(x)
        with torch.profiler.profile() as seen:
            run(x)
    names = [event.key for event in seen.key_averages()]
    assert "cudaGraphLaunch" in names and "tilegen::region" not in names


def test_layers_alike_keep_weights_of_their_own_in_cuda_graphs() -> None:
    layers = [Block(128, 2).eval().cuda().bfloat16() for _ in range(3)]
    run = compiled(lambda layer, x: layer(x), mode="reduce-overhead")
    x = torch.randn(1, 40, 128, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        for n in range(12):
            layer = layers[n % 3]
            _as_right(run(layer, x).clone(), layer(x), copy.deepcopy(layer).float()(x.float()))
            if n > 5:
                layer.q.weight.mul_(1.5)
