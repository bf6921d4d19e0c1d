"""What from_torch cannot say in a spec, and calls that are not those it was made from, are named."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import tilegen as tg
from tests.models import MODELS, Classifier, Mlp, call_of, made


class Of(nn.Module):
    """A function as a block."""

    def __init__(self, function: Any):
        super().__init__()
        self.function, self.inner = function, nn.Linear(16, 16)

    def forward(self, x: torch.Tensor, y: Any = None) -> Any:
        return self.function(self.inner(x), y)


X = torch.zeros(2, 5, 16)


@pytest.mark.parametrize(
    "function, words",
    [
        (lambda x, _: x.cumsum(-1), ["aten.cumsum.default in Of", "no word for it in a spec"]),
        (lambda x, _: x.sum(), ["aten.sum", "no word"]),
        (lambda x, _: torch.cat([x, x.transpose(0, 0).contiguous().flip(-1)], -1), ["aten.flip"]),
        (lambda x, _: x + x.transpose(0, 0).flip(0), ["aten.flip.default"]),
        (lambda x, _: x.topk(2, 1), ["aten.topk", "over dimension 1", "expected the last one's largest"]),
        (lambda x, _: x.topk(2, largest=False), ["aten.topk", "of the least"]),
        (lambda x, _: x.argmax(-1, keepdim=True) + x, ["'argmax'", "int32"]),
        (lambda x, _: x.gather(1, x.argmax(1, keepdim=True)), ["no columns of the same rows"]),
        (lambda x, _: x.gather(1, x.topk(2)[1]), ["gather along dimension 1", "expected the last one"]),
        (lambda x, _: x.topk(4)[1][..., :2], ["some columns of whole numbers"]),
        (lambda x, _: (x > 0) + (x > 1), ["aten.gt.Scalar", "a comparison that not torch.where alone reads"]),
        (lambda x, _: torch.where(x[:, :1] > 0, x, 1.0), ["aten.where", "a choice of a tensor (2, 5, 16)"]),
        (lambda x, _: x.double(), ["torch.float64", "float32"]),
        (lambda x, _: nn.functional.dropout(x, 0.2, True), ["dropout of 0.2", ".eval()"]),
        (
            lambda x, _: nn.functional.scaled_dot_product_attention(
                *[x.view(2, 5, 2, 8).transpose(1, 2)] * 3, dropout_p=0.5
            ),
            ["attention with dropout"],
        ),
    ],
)
def test_what_has_no_word_is_named(function: Any, words: list[str]) -> None:
    with pytest.raises(tg.SpecError) as error:
        tg.module.from_torch(Of(function).eval(), X)
    for word in ["from_torch", *words]:
        assert word in str(error.value)


def test_where_it_stands_is_named() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.Sequential(nn.Linear(16, 16), Of(lambda x, _: x.sort()[0])))
    with pytest.raises(tg.SpecError, match=r"aten.sort.default in 1\.1: no word"):
        tg.module.from_torch(model.eval(), X)


def test_a_transposed_convolution_in_groups_is_refused() -> None:
    model = nn.Sequential(nn.ConvTranspose2d(8, 8, 2, 2, groups=4)).eval()
    with pytest.raises(tg.SpecError, match=r"aten.conv_transpose2d.input in 0: .* in 4 groups"):
        tg.module.from_torch(model, torch.zeros(2, 8, 4, 4))


def test_a_module_in_training_is_refused() -> None:
    with pytest.raises(tg.SpecError, match=r"dropout of 0.1: the module is in training; call .eval\(\)"):
        tg.module.from_torch(Mlp().train(), torch.zeros(3, 48))
    stage = nn.Sequential(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)).train()
    with pytest.raises(tg.SpecError, match=r"writes 1\..*; call .eval\(\)"):
        tg.module.from_torch(stage, torch.zeros(2, 8, 4, 4))


def test_two_sizes_that_move_are_refused() -> None:
    moving = {"x": {0: tg.dim("B", max=4), 1: tg.dim("S", max=9)}}
    with pytest.raises(tg.SpecError, match="B and S move; one size may"):
        tg.module.from_torch(made("gpt2_block"), *call_of("gpt2_block", 2)[0], dynamic_shapes=moving)


@pytest.mark.parametrize("given", [{"y": {0: tg.dim("B", max=4)}}, {"x": 3}, {"x": {0: 4}}])
def test_shapes_that_are_none_are_named(given: Any) -> None:
    words = (
        "dynamic_shapes has y; the call has x" if "y" in given else r"is \{dimension: tg.dim\(…\)\}, given"
    )
    with pytest.raises(tg.SpecError, match=words):
        tg.module.from_torch(made("mlp"), torch.zeros(3, 48), dynamic_shapes=given)


# --- calls --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def layer() -> Any:
    args, kwargs = call_of("decoder_layer", 2)
    return tg.module.from_torch(made("decoder_layer"), *args, **kwargs)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"attention_mask": torch.zeros(5)}, "attention_mask was None .* given a tensor \\(5,\\)"),
        ({"use_cache": True}, "use_cache was False in the example that it was made from, given True"),
        ({"past_key_values": object()}, "'past_key_values' was not among the arguments"),
        ({"position_embeddings": (None, None)}, r"position_embeddings\[0\] is a tensor, given None"),
        ({"hidden_states": torch.zeros(2, 8, 64)}, r"'hidden_states': expected shape \(2, 9, 64\)"),
    ],
)
def test_another_call_is_named(layer: Any, change: dict[str, Any], words: str) -> None:
    (x,), kwargs = call_of("decoder_layer", 2)
    with pytest.raises(tg.ArgumentError, match=words):
        layer(**{"hidden_states": x, **kwargs, **change})


def test_a_missing_tensor_is_named(layer: Any) -> None:
    (x,), _ = call_of("decoder_layer", 2)
    with pytest.raises(tg.ArgumentError, match=r"position_embeddings\[0\] is a tensor, given None"):
        layer(x)
    with pytest.raises(tg.ArgumentError, match="takes 4 arguments, given 5"):
        layer(x, None, None, False, 1)


def test_a_size_that_moves_too_far_is_named() -> None:
    moving = {MODELS["mlp"].moving: {0: tg.dim("M", max=4)}}
    layer = tg.module.from_torch(Mlp().eval(), torch.zeros(2, 48), dynamic_shapes=moving)
    with pytest.raises(tg.ArgumentError, match="0 ≤ M ≤ 4, given \\(5, 48\\)"):
        layer(torch.zeros(5, 48))


def test_an_image_of_another_size_is_named() -> None:
    layer = tg.module.from_torch(Classifier().eval(), torch.zeros(2, 8, 7, 7))
    with pytest.raises(tg.ArgumentError, match=r"'x': expected shape \(2, 7, 7, 8\)"):
        layer(torch.zeros(2, 8, 9, 9))
