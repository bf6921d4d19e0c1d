"""A block of a PyTorch model as one kernel: called as the block was, with its results."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tilegen as tg
from tests.models import MODELS, Mlp, call_of, first, made
from tests.random_models import verdict
from tests.shares import share
from tilegen.kernels.moving import MovingKernel
from tilegen.nn.module import Module


def imported(name: str, n: int = 2, most: int | None = None, **options: Any) -> Module:
    args, kwargs = call_of(name, n)
    moving = {MODELS[name].moving: {0: tg.dim("B", max=most)}} if most else None
    return tg.module.from_torch(made(name), *args, dynamic_shapes=moving, options=options, **kwargs)


def close(found: Any, wanted: Any, tolerance: float = 2e-5) -> None:
    a, b = first(found), first(wanted)
    assert a.shape == b.shape and a.dtype == b.dtype
    assert float((a.float() - b.float()).norm() / b.float().norm()) < tolerance


@pytest.mark.parametrize("name", MODELS)
def test_it_gives_what_the_block_gives(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEGEN_POISON", "1")
    layer, block = imported(name), made(name)
    args, kwargs = call_of(name, 2, seed=1)
    with torch.no_grad():
        close(layer(*args, **kwargs), block(*args, **kwargs))
    assert type(layer(*args, **kwargs)) is type(block(*args, **kwargs))


@pytest.mark.parametrize("name", MODELS)
def test_its_batch_moves(name: str) -> None:
    """Also where one sequence is the example."""
    layer, block = imported(name, n=1, most=5), made(name)
    assert isinstance(layer.kernel, MovingKernel)
    for n in (1, 2, 5):
        args, kwargs = call_of(name, n, seed=n)
        with torch.no_grad():
            close(layer(*args, **kwargs), block(*args, **kwargs))


MOVED = {
    "a mean over a middle dimension": lambda x: x.mean(1),
    "rows below rows": lambda x: torch.cat([x, x], 1) * 2,
    "every other column": lambda x: x[..., ::2] + 1,
    "softmax of a middle dimension": lambda x: x.transpose(0, 2).softmax(1),
    "turned beside itself": lambda x: x.view(2, 5, 4, 4) + x.view(2, 5, 4, 4).transpose(2, 3),
    "the largest of a middle dimension": lambda x: x.argmax(1),
    "heads that are no rows": lambda x: F.scaled_dot_product_attention(*[x.view(2, 5, 2, 8)] * 3),
    "the first token": lambda x: F.gelu(x[:, 0]),
    "tokens mixed": lambda x: F.layer_norm(x.transpose(1, 2), (5,)).transpose(1, 2) + x,
    "channels shuffled": lambda x: x.view(2, 5, 4, 4).transpose(2, 3).reshape(2, 5, 16) * 1.5,
    "windows": lambda x: x[:, :4].reshape(2, 2, 1, 2, 1, 16).permute(0, 1, 3, 2, 4, 5).reshape(4, 2, 16) * 2,
}


class Moved(nn.Module):
    """A linear, and what lies otherwise behind it."""

    def __init__(self, function: Any, width: int = 16):
        super().__init__()
        self.function, self.inner = function, nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self.inner(x))


def as_torch(function: Any) -> None:
    """What is behind a linear."""
    torch.manual_seed(0)
    block, x = Moved(function).eval(), torch.randn(2, 5, 16)
    layer = tg.module.from_torch(block, torch.randn(2, 5, 16))
    with torch.no_grad():
        close(layer(x), block(x))


@pytest.mark.parametrize("what", MOVED)
def test_what_no_map_says_is_copied(what: str) -> None:
    as_torch(MOVED[what])


ELEMENT_BY_ELEMENT = {
    "clamps": lambda x: x.clamp(min=-0.5).clamp_max(0.5),
    "gelu spelled out": lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))),
    "a number chosen": lambda x: torch.where(x > 0.1, x, 0.2),
    "of two numbers": lambda x: torch.where(x <= 0.1, 0.1, 0.2),
    "columns chosen": lambda x: torch.where(x >= x[..., :1], torch.arange(16.0), x),
}


@pytest.mark.parametrize("what", ELEMENT_BY_ELEMENT)
def test_operators_element_by_element(what: str) -> None:
    as_torch(ELEMENT_BY_ELEMENT[what])


def test_a_sound_is_an_image_one_pixel_high() -> None:
    """Convolutions over one dimension, their norms of batches; behind them rows."""
    torch.manual_seed(0)
    first, then = nn.Conv1d(8, 16, 3, stride=2), nn.Conv1d(16, 16, 4, groups=4)
    block = nn.Sequential(first, nn.BatchNorm1d(16), nn.GELU(), then, Moved(lambda x: x * 2, 26)).eval()
    nn.init.uniform_(block[1].running_mean)
    layer, x = tg.module.from_torch(block, torch.randn(2, 8, 60)), torch.randn(2, 8, 60)
    with torch.no_grad():
        close(layer(x), block(x))


def test_whole_numbers_are_of_the_blocks_type() -> None:
    layer, block = imported("router"), made("router")
    args, _ = call_of("router", 3, seed=1)
    with torch.no_grad():
        found, wanted = imported("router", most=4)(*args), block(*args)
        for y, r in (
            *zip(found, wanted, strict=True),
            *zip(layer(args[0][:2]), block(args[0][:2]), strict=True),
        ):
            assert y.dtype == r.dtype
            torch.testing.assert_close(y, r)
    assert [r.dtype for r in wanted].count(torch.int64) == 2


@pytest.mark.parametrize("name", ["decoder_layer", "gpt2_block", "stage"])
def test_rounding_is_no_worse_than_torchs(name: str) -> None:
    """In bfloat16, both against float32."""
    args, kwargs = call_of(name, 2, torch.bfloat16)
    block = made(name, torch.bfloat16)
    layer = tg.module.from_torch(block, *args, **kwargs)
    with torch.no_grad():
        found, torchs = (first(f(*args, **kwargs)).float() for f in (layer, block))
        wanted = first(block.float()(*call_of(name, 2)[0], **call_of(name, 2)[1]))
    errors = [float((a - wanted).norm() / wanted.norm()) for a in (found, torchs)]
    assert errors[0] < 1.2 * errors[1] < 0.05, errors


class Masked(nn.Module):
    """Attention beside a bias of its own, a mask of torch.bool, and one that is given."""

    def __init__(self, own: torch.Tensor):
        super().__init__()
        self.qkv = nn.Linear(32, 96)
        self.register_buffer("own", own)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = (a.unflatten(-1, (4, -1)).transpose(1, 2) for a in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.own)
        y = y if mask is None else y + F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return y.transpose(1, 2).flatten(2)


@pytest.mark.parametrize(
    "own",
    [
        torch.randn(1, 4, 9, 9),
        torch.randn(9, 9),
        torch.rand(2, 1, 1, 9) < 0.7,
        torch.ones(9, 9, dtype=torch.bool).triu(-2),
        torch.randn(2, 1, 1, 9).expand(2, 4, 9, 9),
    ],
    ids=["heads", "all heads", "padding", "a band", "expanded"],
)
@pytest.mark.parametrize("sizes", [(2, 1, 1, 9), (2, 4, 9, 9), (1, 1, 9, 9), (1, 4, 9, 9)])
def test_masks_are_added_to_scores(own: torch.Tensor, sizes: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    block, x, mask = Masked(own).eval().requires_grad_(False), torch.randn(2, 9, 32), torch.randn(sizes)
    layer = tg.module.from_torch(block, x, mask)
    for given in (mask, mask.roll(1, -1)):
        close(layer(x, given), block(x, given))


def test_gradients_pass_by_a_sequence_that_is_hidden_altogether() -> None:
    """Of what hides it, too."""
    block, x = Masked(torch.zeros(2, 1, 1, 9)), torch.randn(2, 9, 32)
    block.own[1] = -torch.inf
    layer = tg.module.from_torch(block, x)
    layer(x)[0].sin().sum().backward()
    block(x)[0].sin().sum().backward()
    (found,) = [p.grad for name, p in layer.named_parameters() if name.endswith("weight")]
    torch.testing.assert_close(found, block.qkv.weight.grad, rtol=1e-4, atol=1e-5)


def test_linears_of_the_same_rows_are_one() -> None:
    kinds = [c.kind for c in imported("decoder_layer").program.calls]
    assert kinds.count("linear") == 4 and kinds.count("rotary") == 2 and kinds.count("rms_norm") == 2
    weights = list(imported("decoder_layer").state_dict())
    assert {"self_attn_q_proj_k_proj_v_proj_weight", "mlp_gate_proj_up_proj_weight"} <= set(weights)


def test_batch_norms_go_into_convolutions() -> None:
    assert not [t for t in imported("stage").program.arguments if "running" in t.name or "bn" in t.name]


def test_a_number_for_each_channel_is_a_vector_of_columns() -> None:
    assert "strided_copy" not in [c.kind for c in imported("weighed_pixels").program.calls]


def test_a_number_for_each_column_of_an_image_is_none_of_its_channels() -> None:
    """Of as many channels as columns."""
    block = nn.Sequential(nn.Conv2d(6, 6, 1), Weighed(torch.arange(1.0, 7.0)))
    layer, x = tg.module.from_torch(block, torch.randn(2, 6, 4, 6)), torch.randn(2, 6, 4, 6)
    with torch.no_grad():
        close(layer(x), block(x))


class Weighed(nn.Module):
    def __init__(self, by: torch.Tensor):
        super().__init__()
        self.by = nn.Parameter(by)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.by


def test_what_is_not_laid_out_anew_is_shared() -> None:
    block = made("mlp")
    layer = tg.module.from_torch(block, *call_of("mlp", 2)[0])
    assert {p.data_ptr() for p in layer.parameters()} == {p.data_ptr() for p in block.parameters()}


def test_a_layer_is_swapped_in_one_line() -> None:
    model = torch.nn.Sequential(made("mlp"), torch.nn.LayerNorm(48), made("mlp"))
    x = call_of("mlp", 3)[0][0]
    with torch.no_grad():
        wanted = model(x)
        for n in (0, 2):
            model[n] = tg.module.from_torch(model[n], x, dynamic_shapes={"x": {0: tg.dim("M", max=7)}})
        close(model(x), wanted)
        close(model(x[:1]), wanted[:1])


@pytest.mark.parametrize("again", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_it_is_copied_and_pickled(again: Any) -> None:
    layer = imported("decoder_layer", most=5)
    args, kwargs = call_of("decoder_layer", 3)
    assert torch.equal(again(layer)(*args, **kwargs), layer(*args, **kwargs))


def test_its_state_is_loaded() -> None:
    layer, other = imported("decoder_layer"), imported("decoder_layer")
    for p in other.parameters():
        p.data.zero_()
    other.load_state_dict(layer.state_dict())
    args, kwargs = call_of("decoder_layer", 2)
    assert torch.equal(other(*args, **kwargs), layer(*args, **kwargs))


def test_arguments_go_by_position_or_by_name() -> None:
    layer = imported("decoder_layer")
    (x,), kwargs = call_of("decoder_layer", 2)
    wanted = layer(x, **kwargs)
    assert torch.equal(layer(hidden_states=x, **kwargs), wanted)
    some = {"position_embeddings": kwargs["position_embeddings"]}
    assert torch.equal(layer(x, None, past_key_values=None, **some), wanted)


@pytest.mark.parametrize("name", ["decoder_layer", "stage"])
def test_torch_compile_and_export_take_it(name: str) -> None:
    layer = imported(name, n=2, most=5)
    for p in layer.parameters():
        p.requires_grad_(False)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True, dynamic=True)
    for n in (2, 3):
        args, kwargs = call_of(name, n, seed=n)
        assert torch.equal(compiled(*args, **kwargs), layer(*args, **kwargs))
    args, kwargs = call_of(name, 2)
    exported = torch.export.export(layer, args, kwargs)
    assert torch.equal(exported.module()(*args, **kwargs), layer(*args, **kwargs))


def test_it_is_trained_as_the_block_is() -> None:
    block, layer = made("gated_mlp"), imported("gated_mlp")
    x = call_of("gated_mlp", 2)[0][0]
    block(x).square().mean().backward()
    layer(x).square().mean().backward()
    both = torch.cat((block.gate_proj.weight.grad, block.up_proj.weight.grad))
    found = dict(layer.named_parameters())
    torch.testing.assert_close(found["gate_proj_up_proj_weight"].grad, both)
    torch.testing.assert_close(found["down_proj_weight"].grad, block.down_proj.weight.grad)


def test_a_parameter_that_asks_for_no_gradient_goes_on_so() -> None:
    block = Mlp().eval().requires_grad_(False)
    layer = tg.module.from_torch(block, torch.randn(2, 48))
    assert not any(p.requires_grad for p in layer.parameters())


@pytest.mark.parametrize("seed", share([*range(60)], 5))
def test_random_blocks_give_what_pytorch_gives(seed: int) -> None:
    assert verdict(seed) == "right"
