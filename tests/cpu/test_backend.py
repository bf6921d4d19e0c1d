"""torch.compile(backend="tilegen"): results, writes and gradients are eager's, whatever is left."""

from __future__ import annotations

import copy
import gc
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

import tilegen as tg
from tests.compiled import Block, Net, compiled, counted, left, programs, same
from tilegen import config
from tilegen.backend import gain, search, subgraph
from tilegen.backend.backend import tilegen
from tilegen.backend.fold import Fold, refolding
from tilegen.backend.joint_pass import JointPass
from tilegen.errors import FormError


@pytest.fixture(autouse=True)
def one_seed() -> None:
    torch.manual_seed(0)


def test_a_layer_is_one_region() -> None:
    """Projections apart, a mask of constants, a norm that torch spells out: nothing is left."""
    layer, x = Block().eval(), torch.randn(2, 7, 32)
    with torch.no_grad():
        same(compiled(layer)(x), layer(x))
    assert counted()["regions"] == 1, left()


def test_what_is_computed_in_bfloat16_is_as_right_as_torchs() -> None:
    layer, x = Block().eval().bfloat16(), torch.randn(2, 7, 32).bfloat16()
    with torch.no_grad():
        found, eager, exact = compiled(layer)(x), layer(x), copy.deepcopy(layer).float()(x.float())
    assert counted()["regions"] == 1, left()
    assert (found - exact).norm() < 1.2 * (eager - exact).norm()


class Queries(nn.Module):
    """Queries as OLMo 2 has them: a norm of their full width, the weight first, and angles in float32."""

    def __init__(self, width: int = 32, heads: int = 2):
        super().__init__()
        self.q, self.o, self.heads = nn.Linear(width, width), nn.Linear(width, width), heads
        self.weight = nn.Parameter(torch.rand(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, width = x.shape
        h = self.q(x).float()
        q = (self.weight * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6))).to(x.dtype)
        q = q.view(b, s, self.heads, -1).transpose(1, 2)
        half = q.shape[-1] // 2
        angles = torch.arange(s)[:, None] * 0.7 ** torch.arange(half)
        cos, sin = (f(torch.cat((angles, angles), -1))[None, None] for f in (torch.cos, torch.sin))
        turned = q * cos + torch.cat((-q[..., half:], q[..., :half]), -1) * sin
        return self.o(turned.to(x.dtype).transpose(1, 2).reshape(x.shape))


def test_angles_may_be_float32_where_rows_have_two_bytes() -> None:
    layer, x = Queries().requires_grad_(False).bfloat16(), torch.randn(2, 7, 32).bfloat16()
    found, eager, exact = compiled(layer)(x), layer(x), copy.deepcopy(layer).float()(x.float())
    assert counted()["regions"] == 1 and not left()
    assert (found - exact).norm() < 1.2 * (eager - exact).norm()


def test_a_mask_may_have_the_least_number_of_another_type() -> None:
    """As models have it whose configuration is of float16."""
    layer, x = Block(least=torch.float16).eval().bfloat16(), torch.randn(1, 7, 32).bfloat16()
    with torch.no_grad():
        compiled(layer)(x)
    assert counted()["regions"] == 1, left()


def test_a_mask_that_hides_little_is_added_to_scores() -> None:
    """A bias of -100 is not what says which keys are seen."""

    def model(x: torch.Tensor) -> torch.Tensor:
        at = torch.arange(7)
        bias = torch.where(at[None] <= at[:, None], 0.0, -100.0)
        return F.scaled_dot_product_attention(x, x, x, attn_mask=bias)

    x = torch.randn(1, 2, 7, 16)
    same(compiled(model)(x), model(x))
    assert counted()["regions"] == 1 and not left()


def test_images_keep_the_strides_that_the_model_gives_them() -> None:
    net, x = Net().eval(), torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        found = compiled(net)(x)
        same(found, net(x))
        same(compiled(net)(x.to(memory_format=torch.channels_last))[0], net(x)[0])
    assert counted()["regions"] == 1, left()


def test_a_mean_of_pixels_that_stand_channels_last_is_in_the_region() -> None:
    """torch's pool gives it strides of its own, by as_strided."""

    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.norm, self.head = nn.Conv2d(3, 8, 3), nn.LayerNorm(8), nn.Linear(8, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.norm(self.stem(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
            return self.head(F.adaptive_avg_pool2d(y, 1).flatten(1))

    net, x = Pooled().requires_grad_(False), torch.randn(2, 3, 8, 8)
    same(compiled(net)(x), net(x))
    assert counted()["regions"] == 1 and not left()


def test_strides_that_move_elements_are_left() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return F.silu(x).as_strided((4, 6), (1, 4)).sum(1)

    x = torch.randn(4, 6)
    same(compiled(model)(x), model(x))
    assert "aten.as_strided.default has no word" in left()


@pytest.mark.parametrize("make", [Block, Net])
def test_gradients_are_eagers(make: type[nn.Module]) -> None:
    module = make().train()
    x = torch.randn(2, 3, 8, 8) if make is Net else torch.randn(2, 7, 32)
    other, y, z = copy.deepcopy(module), x.clone().requires_grad_(), x.clone().requires_grad_()

    def loss(result: Any) -> torch.Tensor:
        results = result if isinstance(result, tuple) else (result,)
        return sum((r.sin().sum() for r in results), torch.zeros(()))

    loss(compiled(module)(y)).backward()
    loss(other(z)).backward()
    assert counted()["regions"] >= 1, left()
    pairs = [(y, z), *zip(module.parameters(), other.parameters(), strict=True)]
    for a, b in pairs:
        assert (a.grad - b.grad).norm() <= 1e-4 * b.grad.norm() + 1e-6
    for a, b in zip(module.buffers(), other.buffers(), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_what_a_checkpoint_computes_again_is_inductors() -> None:
    """Its nodes are told apart by what is saved of them; a region is one node."""
    module, x = Block().train(), torch.randn(2, 7, 32)

    def run(x: torch.Tensor) -> torch.Tensor:
        return F.silu(checkpoint(module, x, use_reentrant=False))

    same(compiled(run)(x), run(x))
    assert counted()["regions"] == 1 and "of a checkpoint" in left()


def test_weights_that_are_laid_out_anew_follow_their_parameters() -> None:
    """q, k and v are merged once, and again after a step of an optimizer."""
    layer, x = Block().eval(), torch.randn(1, 5, 32)
    run = compiled(layer)
    for _ in range(2):
        with torch.no_grad():
            same(run(x), layer(x))
            for p in layer.parameters():
                p.add_(0.1 * torch.randn_like(p))
    assert counted()["regions"] == 1, left()


def folds(monkeypatch: pytest.MonkeyPatch) -> list[Fold]:
    """Those that are computed from now on."""
    found: list[Fold] = []
    made = Fold._weights
    monkeypatch.setattr(Fold, "_weights", lambda self, given: found.append(self) or made(self, given))
    return found


def test_layers_that_are_alike_keep_weights_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """One region runs them all; each is folded once, and after a change it alone is folded again."""
    layers, x = [Block().eval() for _ in range(3)], torch.randn(1, 5, 32)
    run, folded = compiled(lambda layer, x: layer(x)), folds(monkeypatch)
    with torch.no_grad():
        for _ in range(2):
            for layer in layers:
                same(run(layer, x), layer(x))
        assert len(folded) == 3 and len(set(map(id, folded))) == 1
        layers[1].q.weight.mul_(2)
        for layer in layers:
            same(run(layer, x), layer(x))
    assert len(folded) == 4


def test_weights_of_a_model_that_is_gone_are_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not taken for those of another in the same memory, either."""
    folded, x = folds(monkeypatch), torch.randn(1, 5, 32)
    run = compiled(lambda layer, x: layer(x))
    with torch.no_grad():
        for n in range(4):
            layer = Block().eval()
            same(run(layer, x), layer(x))
            assert len(folded) == n + 1 and len(folded[0]._made) == 1
            del layer
            gc.collect()


def test_weights_are_folded_in_and_out_of_inference_mode() -> None:
    """What one call has made another writes; tensors that were made in it have no versions."""
    layer, x = Block().eval(), torch.randn(1, 5, 32)
    run = compiled(layer, options={"triton.cudagraphs": True})
    for mode in (torch.inference_mode, torch.no_grad, torch.inference_mode):
        with mode():
            same(run(x), layer(x))
        with torch.no_grad():
            layer.q.weight.mul_(1.5)
    with torch.inference_mode():
        layer = Block().eval()
        run = compiled(layer, options={"triton.cudagraphs": True})
        for _ in range(2):
            same(run(x), layer(x))
            layer.q.weight.mul_(1.5)


def test_replays_read_weights_of_changed_tensors() -> None:
    """A CUDA graph holds addresses: what is there is brought up to date before it runs, and what new tensors
    are made into is there by then."""
    held: list[torch.Tensor] = []

    def merged(w: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.cat([w, v]),)

    fold = Fold(make_fx(merged)(torch.zeros(2, 3), torch.zeros(4, 3)), torch.device("cpu"))

    def compiled(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return held[-1].sum() + x

    run, x, w, v = refolding(compiled, [1, 2]), torch.zeros(()), torch.ones(2, 3), torch.ones(4, 3)
    held += fold([w, v])
    assert run(x, w, v) == 18
    v.mul_(2)
    assert run(x, w, v) == 30 and fold([w, v])[0] is held[0]
    other = torch.zeros(4, 3)
    run(x, w, other)
    assert len(fold._made) == 2
    held += fold([w, other])
    other.add_(1)
    assert run(x, w, other) == 18 and run(x, w, v) == 18


def test_static_tensors_of_other_strides_are_another_region() -> None:
    w, x = torch.randn(32, 32), torch.randn(5, 32)
    square, turned = nn.Linear(32, 32, bias=False), nn.Linear(32, 32, bias=False)
    square.weight, turned.weight = nn.Parameter(w), nn.Parameter(w.T)
    run = compiled(lambda layer, x: layer(x))
    with torch.no_grad():
        for layer in (square, turned, square):
            same(run(layer, x), layer(x))


def test_it_is_known_by_its_name() -> None:
    """To whoever has installed tilegen."""
    (found,) = metadata.entry_points(group="torch_dynamo_backends", name="tilegen")
    assert found.load() is tilegen
    layer, x = nn.Linear(8, 8).requires_grad_(False), torch.randn(3, 8)
    torch._dynamo.reset()
    same(torch.compile(layer, backend="tilegen")(x), layer(x))


def test_operators_without_a_word_are_left_with_a_reason() -> None:
    def model(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(F.gelu(x), 1) @ w

    x, w = torch.randn(5, 8), torch.randn(8, 8)
    same(compiled(model)(x, w), model(x, w))
    assert "aten.cumsum.default has no word" in left()


def test_what_is_written_in_place_is_eagers() -> None:
    """An input, a view of it, and a result that is another's alias."""

    def model(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x[:, :4] *= 2
        z = F.silu(x) + y
        y.add_(z)
        return z, z.T, x

    given = torch.randn(6, 8), torch.randn(6, 8)
    mine, theirs = (tuple(a.clone() for a in given) for _ in range(2))
    same(compiled(model)(*mine), model(*theirs))
    same(mine, theirs)
    assert counted()["regions"] >= 1, left()


def test_a_region_that_does_not_pay_is_inductors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "gain", lambda *_: gain.Gain(ours=10.0, theirs=9.0))
    layer, x = nn.Sequential(nn.Linear(8, 8), nn.GELU()).requires_grad_(False), torch.randn(3, 8)
    same(compiled(layer)(x), layer(x))
    assert counted()["regions"] == 0 and "10.0 µs as a region, 9.0 µs left to Inductor" in left()
    monkeypatch.setattr(config, "min_gain", 0)
    same(compiled(layer)(x), layer(x))
    assert counted()["regions"] == 1


def _leaves_the_softmax(monkeypatch: pytest.MonkeyPatch, judged: Callable[..., gain.Gain]) -> None:
    """A layer whose regions are judged so: its linears are regions, what is between them Inductor's."""
    monkeypatch.setattr(search, "gain", judged)
    layer = nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1), nn.Linear(8, 8)).requires_grad_(False)
    x = torch.randn(3, 8)
    same(compiled(layer)(x), layer(x))
    assert counted()["regions"] == 2


def test_an_op_that_inductor_is_much_faster_at_is_inductors(monkeypatch: pytest.MonkeyPatch) -> None:
    def judged(program: tg.Program, *_: object) -> gain.Gain:
        slow = {call.name: "slow here" for call in program.calls if call.kind == "softmax"}
        return gain.Gain(10.0, 20.0, slow)

    _leaves_the_softmax(monkeypatch, judged)
    assert "_softmax.default: slow here" in left()


def test_an_op_that_others_pay_for_stays_in_its_region(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it what is left would have to copy, say."""

    def judged(program: tg.Program, *_: object) -> gain.Gain:
        slow = {call.name: "slow here" for call in program.calls if call.kind == "softmax"}
        return gain.Gain(10.0, 20.0, slow) if slow else gain.Gain(10.0, 14.0)

    monkeypatch.setattr(search, "gain", judged)
    layer = nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1), nn.Linear(8, 8)).requires_grad_(False)
    x = torch.randn(3, 8)
    same(compiled(layer)(x), layer(x))
    assert counted()["regions"] == 1 and "slow here" not in left()


def test_an_op_that_a_target_has_no_form_for_is_inductors(monkeypatch: pytest.MonkeyPatch) -> None:
    def judged(program: tg.Program, *_: object) -> gain.Gain:
        if names := tuple(call.name for call in program.calls if call.kind == "softmax"):
            raise FormError("no form for it", "", names)
        return gain.Gain(10.0, 20.0)

    _leaves_the_softmax(monkeypatch, judged)
    assert "no form for it" in left()


def test_all_that_a_pattern_stands_for_is_left_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of a norm would be ops of their own."""

    def judged(program: tg.Program, *_: object) -> gain.Gain:
        return gain.Gain(10.0, 20.0, {c.name: "slow here" for c in program.calls if c.kind == "rms_norm"})

    monkeypatch.setattr(search, "gain", judged)
    linear = nn.Linear(8, 8).requires_grad_(False)
    w = nn.Parameter(torch.ones(8), requires_grad=False)

    def model(x: torch.Tensor) -> torch.Tensor:
        x = linear(x)
        return linear(w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)))

    x = torch.randn(3, 8)
    same(compiled(model)(x), model(x))
    said = {k: n for k, n in counted().items() if k.startswith("left")}
    assert counted()["regions"] == 2 and sum(said.values()) == 6, said


class Spelled(nn.Module):
    """Attention that torch takes apart, for its mask is not one of its kernels'."""

    def __init__(self, returns_weights: bool = False):
        super().__init__()
        self.qkv, self.out, self.returns_weights = nn.Linear(64, 192), nn.Linear(64, 64), returns_weights

    def heads(self, x: torch.Tensor) -> torch.Tensor:
        b, s, h = x.shape
        return self.qkv(x).view(b, s, 3, 4, h // 4).permute(2, 0, 3, 1, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k, v = self.heads(x)
        at = torch.arange(x.shape[1])
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        scores = scores + torch.where(at[None] <= at[:, None], 0.0, -math.inf)
        weights = torch.softmax(scores, -1)
        y = self.out((weights @ v).transpose(1, 2).reshape(x.shape))
        return (y, weights) if self.returns_weights else (y,)


def test_attention_that_is_spelled_out_is_one_op() -> None:
    model, x = Spelled().requires_grad_(False), torch.randn(2, 24, 64)
    (found,), (expected,) = compiled(model)(x), model(x)
    same(found, expected)
    assert counted()["regions"] == 1 and not left()


def test_attention_as_torch_takes_it_apart_is_one_op() -> None:
    class Masked(Spelled):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            q, k, v = self.heads(x)
            b, s, _ = x.shape
            seen = (torch.arange(s)[None, None, :, None] >= 0).expand(b, 1, s, s)
            with sdpa_kernel(SDPBackend.MATH):
                y = nn.functional.scaled_dot_product_attention(q, k, v, seen)
            return (self.out(y.transpose(1, 2).reshape(x.shape)),)

    model, x = Masked().requires_grad_(False), torch.randn(2, 24, 64)
    (found,), (expected,) = compiled(model)(x), model(x)
    same(found, expected)
    assert counted()["regions"] == 1 and not left()


def test_attention_whose_weights_are_read_stays_spelled_out(monkeypatch: pytest.MonkeyPatch) -> None:
    found = programs(monkeypatch)
    model, x = Spelled(returns_weights=True).requires_grad_(False), torch.randn(2, 24, 64)
    for made, expected in zip(compiled(model)(x), model(x), strict=True):
        same(made, expected)
    kinds = [call.kind for program in found for call in program.calls]
    assert "attention" not in kinds and {"matmul", "softmax"} <= {*kinds}


def test_what_is_made_of_constants_is_computed_once() -> None:
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(32, 32)
            self.register_buffer("scale", torch.tensor(3.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            at = torch.arange(x.shape[0])[:, None] * torch.arange(32)[None]
            return self.linear(x) * torch.cos(at / 100) * self.scale

    model, x = Turned().requires_grad_(False), torch.randn(5, 32)
    run = compiled(model)
    same(run(x), model(x))
    assert counted()["regions"] == 1 and not left()
    model.scale.fill_(-2.0)
    same(run(x), model(x))


def test_a_buffer_that_the_model_writes_is_no_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a CUDA graph of the model would hold what it was made of."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 16)
            self.register_buffer("state", torch.zeros(16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.linear(x) + self.state.sin()
            self.state.add_(1)
            return y

    folded = folds(monkeypatch)
    model, x = Counting().requires_grad_(False), torch.randn(5, 16)
    eager = copy.deepcopy(model)
    run = compiled(model)
    with torch.no_grad():
        for _ in range(3):
            same(run(x), eager(x))
    same(model.state, eager.state)
    assert len(folded) == 1


def test_a_pass_of_the_users_runs_first() -> None:
    seen: list[int] = []
    layer, x = nn.Linear(8, 8), torch.randn(3, 8)
    run = compiled(layer, options={"joint_custom_pre_pass": lambda graph: seen.append(len(graph.nodes))})
    same(run(x), layer(x))
    assert seen and counted()["regions"] == 1


def test_a_pass_is_known_by_what_it_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor's cache: a pass of the user's that has no uuid keeps nothing."""
    before = JointPass(None, {}, []).uuid()
    monkeypatch.setattr(config, "min_gain", 0)
    assert before is not None and before != JointPass(None, {}, []).uuid()
    assert JointPass(lambda graph: None, {}, []).uuid() is None


def test_the_text_of_a_region_is_read_again_in_another_process() -> None:
    layer, x, texts = Block(causal=False).eval(), torch.randn(1, 5, 32), []
    real = subgraph.text_of

    def kept(*given: Any) -> str:
        texts.append(real(*given))
        return texts[-1]

    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr("tilegen.backend.search.text_of", kept)
        wanted = compiled(layer)(x)
    given = [g["name"] for g in subgraph.unpacked(texts[-1])["given"]]
    code = (
        "import json, sys, torch; from tilegen.backend.region import Region\n"
        "r = Region.of(sys.stdin.read()); "
        "print(json.dumps([t.shape for t in r.outputs]), len(r.subgraph.given))"
    )
    root = Path(__file__).resolve().parents[2]
    ran = subprocess.run(
        [sys.executable, "-c", code],
        input=texts[-1],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert ran.stdout.split() == f"{json.dumps([list(wanted.shape)])} {len(given)}".split()
