"""Blocks of PyTorch models as one kernel on a GPU; layers of real models swapped, where the packages are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import tilegen as tg
from tests.models import MODELS, call_of, first, made
from tilegen.runtime.driver import missing

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(missing()), reason=missing() or "a GPU is here"),
    pytest.mark.usefixtures("impatient", "poison"),
]
GPU: tuple[torch.dtype, str] = (torch.bfloat16, "cuda")


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.no_grad():
        yield


def error(found: Any, wanted: Any) -> float:
    a, b = first(found).float(), first(wanted).float()
    assert a.shape == b.shape
    return float((a - b).norm() / b.norm())


def exact(name: str, n: int) -> Any:
    args, kwargs = call_of(name, n, torch.float32, "cuda")
    rounded = torch.utils._pytree.tree_map_only(
        torch.Tensor, lambda a: a.bfloat16().float() if a.is_floating_point() else a, (args, kwargs)
    )
    return made(name, *GPU).float()(*rounded[0], **rounded[1])


@pytest.mark.parametrize("name", MODELS)
def test_it_gives_what_the_block_gives(name: str) -> None:
    args, kwargs = call_of(name, 2, *GPU)
    layer = tg.module.from_torch(made(name, *GPU), *args, **kwargs)
    torchs = error(made(name, *GPU)(*args, **kwargs), exact(name, 2))
    assert error(layer(*args, **kwargs), exact(name, 2)) < max(1.2 * torchs, 4e-3)
    layer.kernel.check()


@pytest.mark.parametrize("name", ["mlp", "gated_mlp", "decoder_layer", "gpt2_block", "stage"])
def test_its_batch_moves(name: str) -> None:
    args, kwargs = call_of(name, 1, *GPU)
    moving = {MODELS[name].moving: {0: tg.dim("B", max=70)}}
    layer = tg.module.from_torch(made(name, *GPU), *args, dynamic_shapes=moving, **kwargs)
    for n in (1, 7, 70):
        args, kwargs = call_of(name, n, *GPU)
        assert error(layer(*args, **kwargs), exact(name, n)) < 1.5e-2
    layer.kernel.check()


def test_images_that_are_channels_last_are_not_copied() -> None:
    (x,), _ = call_of("stage", 2, *GPU)
    x = x.to(memory_format=torch.channels_last)
    layer = tg.module.from_torch(made("stage", *GPU), x)
    wanted = made("stage", *GPU)(x)
    y = layer(x)
    assert y.is_contiguous(memory_format=torch.channels_last) and error(y, wanted) < 2e-2


def swapped(layers: Any, call: Any) -> None:
    """Every layer of a list by its kernel, from a call of the model."""
    seen: dict[int, Any] = {}
    hooks = [
        layer.register_forward_pre_hook(
            lambda _, args, kwargs, n=n: seen.setdefault(n, (args, kwargs)), with_kwargs=True
        )
        for n, layer in enumerate(layers)
    ]
    call()
    for hook in hooks:
        hook.remove()
    for n, (args, kwargs) in seen.items():
        layers[n] = tg.module.from_torch(layers[n], *args, **kwargs)


def test_layers_of_llama_and_gpt2_are_swapped() -> None:
    transformers = pytest.importorskip("transformers")
    llama = transformers.LlamaConfig(
        hidden_size=256, intermediate_size=512, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=200, max_position_embeddings=128, eos_token_id=1, bos_token_id=1,
    )  # fmt: skip
    gpt2 = transformers.GPT2Config(
        n_embd=256, n_layer=3, n_head=4, vocab_size=200, n_positions=128, eos_token_id=1, bos_token_id=1
    )
    ids = torch.randint(0, 200, (3, 77), device="cuda")
    for config, kind, name in ((llama, "LlamaModel", "layers"), (gpt2, "GPT2Model", "h")):
        torch.manual_seed(0)
        model = getattr(transformers, kind)(config).eval().to("cuda", torch.bfloat16)
        exact = getattr(transformers, kind)(config).eval().to("cuda")
        exact.load_state_dict({k: v.float() for k, v in model.state_dict().items()})
        wanted = exact(ids, use_cache=False).last_hidden_state
        torchs = error(model(ids, use_cache=False).last_hidden_state, wanted)
        layers = getattr(model, name)
        swapped(layers, lambda model=model: model(ids, use_cache=False))
        assert error(model(ids, use_cache=False).last_hidden_state, wanted) < 1.3 * torchs
        for layer in layers:
            layer.kernel.check()


def test_stages_of_a_resnet_are_swapped() -> None:
    torchvision = pytest.importorskip("torchvision")
    torch.manual_seed(0)
    model = torchvision.models.resnet50(weights=None).eval().to("cuda", torch.bfloat16)
    model = model.to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 64, 64, device="cuda", dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    exact = torchvision.models.resnet50(weights=None).eval().to("cuda")
    exact.load_state_dict({k: v.float() for k, v in model.state_dict().items()})
    wanted = exact(x.float())
    torchs = error(model(x), wanted)
    y = model.maxpool(model.relu(model.bn1(model.conv1(x))))
    for name in ("layer1", "layer2", "layer3", "layer4"):
        stage = getattr(model, name)
        setattr(model, name, tg.module.from_torch(stage, y))
        y = stage(y)
    assert error(model(x), wanted) < 1.5 * torchs
