"""Models of transformers, torchvision and timm that benchmarks measure, as their packages configure them:
weights are random, nothing is fetched, decoders have four layers."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any

import torch

Made = tuple[torch.nn.Module, tuple[torch.Tensor, ...]]
SEQUENCE, IMAGE = 512, 224


def _ids(batch: int) -> tuple[torch.Tensor, ...]:
    return (torch.randint(0, 1000, (batch, SEQUENCE)),)


def _padded(batch: int) -> tuple[torch.Tensor, ...]:
    """Sequences whose last quarter, an eighth, … is none of theirs, as the mask says."""
    seen = torch.ones(batch, SEQUENCE, dtype=torch.int64)
    for n in range(batch):
        seen[n, SEQUENCE - SEQUENCE // (4 + n) :] = 0
    return (*_ids(batch), seen)


def _images(batch: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(batch, 3, IMAGE, IMAGE),)


def _sounds(batch: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(batch, 80, 3000),)


LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "encoder_layers", "n_layers")


def _of_transformers(
    name: str, given: Callable[[int], Any], layers: int | None = None, **how: Any
) -> Callable[[int], Made]:
    """A model by its class, with the configuration that its package gives it but for `how`; layers: of a
    decoder that is cut."""

    def make(batch: int) -> Made:
        import transformers

        kind = getattr(transformers, name)
        made = kind.config_class(**how)
        for key in LAYERS if layers else ():
            if hasattr(made, key):
                setattr(made, key, layers)
        if hasattr(made, "layer_types") and layers:
            made.layer_types = made.layer_types[:layers]
        made.use_cache = False
        return kind(made), given(batch)

    return make


def _whisper(batch: int) -> Made:
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    return WhisperEncoder(WhisperConfig()), _sounds(batch)


def _of_torchvision(name: str) -> Callable[[int], Made]:
    def make(batch: int) -> Made:
        import torchvision

        return torchvision.models.get_model(name, weights=None), _images(batch)

    return make


def _of_timm(name: str) -> Callable[[int], Made]:
    def make(batch: int) -> Made:
        import timm

        made = timm.create_model(name, pretrained=False)
        made.get_classifier().reset_parameters()  # which timm has as zeros
        return made, _images(batch)

    return make


def _decoder(name: str, **how: Any) -> Callable[[int], Made]:
    return _of_transformers(name, _ids, 4, **how)


MODELS: dict[str, Callable[[int], Made]] = {
    "llama": _decoder("LlamaForCausalLM", num_key_value_heads=8, intermediate_size=14336),
    "qwen3": _decoder(
        "Qwen3ForCausalLM",
        hidden_size=2048,
        intermediate_size=6144,
        num_attention_heads=16,
        num_key_value_heads=8,
    ),
    "mistral": _decoder("MistralForCausalLM"),
    "gemma": _decoder("GemmaForCausalLM"),
    "gemma2": _decoder("Gemma2ForCausalLM"),
    "gpt2": _decoder("GPT2LMHeadModel"),
    "phi3": _decoder("Phi3ForCausalLM"),
    "opt": _decoder("OPTForCausalLM"),
    "gptneox": _decoder(
        "GPTNeoXForCausalLM", hidden_size=2048, intermediate_size=8192, num_attention_heads=16
    ),
    "phi": _decoder("PhiForCausalLM"),
    "olmo2": _decoder("Olmo2ForCausalLM"),
    "granite": _decoder("GraniteForCausalLM"),
    "starcoder2": _decoder("Starcoder2ForCausalLM"),
    "bert": _of_transformers("BertModel", _ids),
    "bert_padded": _of_transformers("BertModel", _padded),
    "distilbert": _of_transformers("DistilBertModel", _ids),
    "roberta": _of_transformers("RobertaModel", _ids, max_position_embeddings=514),
    "electra": _of_transformers("ElectraModel", _ids),
    "t5": _of_transformers("T5EncoderModel", _ids),
    "vit": _of_transformers("ViTModel", _images),
    "deit": _of_transformers("DeiTModel", _images),
    "clip": _of_transformers("CLIPVisionModel", _images),
    "siglip": _of_transformers("SiglipVisionModel", _images),
    "dinov2": _of_transformers("Dinov2Model", _images),
    "beit": _of_transformers("BeitModel", _images),
    "swin": _of_torchvision("swin_t"),
    "whisper": _whisper,
    "resnet50": _of_torchvision("resnet50"),
    "resnext50": _of_torchvision("resnext50_32x4d"),
    "wide_resnet50": _of_torchvision("wide_resnet50_2"),
    "vgg19": _of_torchvision("vgg19"),
    "convnext": _of_torchvision("convnext_tiny"),
    "efficientnet": _of_torchvision("efficientnet_b0"),
    "regnet": _of_torchvision("regnet_y_3_2gf"),
    "densenet": _of_torchvision("densenet121"),
    "mixer": _of_timm("mixer_b16_224"),
    "resmlp": _of_timm("resmlp_12_224"),
}


def named(name: str, models: Mapping[str, Any] = MODELS) -> str:
    """A model's name, as a command line takes it."""
    if name not in models:
        raise argparse.ArgumentTypeError(f"no model {name}; they are {', '.join(models)}")
    return name


def cast(given: tuple[torch.Tensor, ...], dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Arguments in another arithmetic; whole numbers stay."""
    return tuple(a.to(dtype) if a.is_floating_point() else a for a in given)


def first(found: Any) -> torch.Tensor:
    leaves = torch.utils._pytree.tree_leaves(found.to_tuple() if hasattr(found, "to_tuple") else found)
    return next(t for t in leaves if isinstance(t, torch.Tensor))
