"""Small models of transformers, timm and torchvision that no benchmark is tuned for, each with a call's
arguments: as their packages configure them but for sizes. Weights are random, nothing is fetched."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

Made = tuple[torch.nn.Module, tuple[torch.Tensor, ...]]
Given = Callable[[], tuple[torch.Tensor, ...]]
WORDS, TOKENS, IMAGE = 100, 24, 64


def tokens(n: int = TOKENS) -> Given:
    return lambda: (torch.randint(3, WORDS, (2, n)),)


def images(size: int = IMAGE) -> Given:
    return lambda: (torch.randn(2, 3, size, size),)


def sounds(*shape: int) -> Given:
    return lambda: (torch.randn(2, *shape),)


def _of_transformers(name: str, given: Given, **sizes: Any) -> Callable[[], Made]:
    def make() -> Made:
        import transformers

        if not hasattr(transformers, name):
            raise ImportError(f"transformers {transformers.__version__} has no {name}")
        kind = getattr(transformers, name)
        config = kind.config_class(**sizes)
        config.use_cache = False
        return kind(config), given()

    return make


def _of_timm(name: str, size: int = IMAGE, **how: Any) -> Callable[[], Made]:
    def make() -> Made:
        import timm

        if not timm.is_model(name):
            raise ImportError(f"timm {timm.__version__} has no {name}")
        return timm.create_model(name, pretrained=False, **how), images(size)()

    return make


def _of_torchvision(name: str, size: int = IMAGE) -> Callable[[], Made]:
    def make() -> Made:
        import torchvision

        return torchvision.models.get_model(name, weights=None), images(size)()

    return make


# configurations have several names for the same sizes
_LAYERS = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
_WORDS = {**_LAYERS, "vocab_size": WORDS}
_GROUPED = {**_WORDS, "num_key_value_heads": 2}
_GPT = {"vocab_size": WORDS, "n_embd": 64, "n_layer": 2, "n_head": 4}
_WIDE = {"vocab_size": WORDS, "d_model": 64}
_BART = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in
         (("layers", 2), ("ffn_dim", 128), ("attention_heads", 4))}  # fmt: skip
_STAGES = {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1]}
_HEADED = {"hidden_sizes": [16, 32, 40, 64], "depths": [1, 1, 1, 1]}
_SOUND = {**_WORDS, "conv_dim": [32] * 7}

ENCODERS: dict[str, Callable[[], Made]] = {
    "albert": _of_transformers("AlbertModel", tokens(), embedding_size=32, **_WORDS),
    "mpnet": _of_transformers("MPNetModel", tokens(), **_WORDS),
    "camembert": _of_transformers("CamembertModel", tokens(), **_WORDS),
    "deberta": _of_transformers("DebertaModel", tokens(), **_WORDS),
    "deberta_v2": _of_transformers("DebertaV2Model", tokens(), **_WORDS),
    "modernbert": _of_transformers(
        "ModernBertModel", tokens(), pad_token_id=1, reference_compile=False, **_WORDS
    ),
    "longformer": _of_transformers("LongformerModel", tokens(32), attention_window=8, **_WORDS),
    "xlnet": _of_transformers("XLNetModel", tokens(), n_layer=2, n_head=4, d_inner=128, **_WIDE),
    "funnel": _of_transformers(
        "FunnelModel", tokens(), n_head=4, d_head=16, d_inner=128, block_sizes=[1, 1], **_WIDE
    ),
    "clip_text": _of_transformers("CLIPTextModel", tokens(), **_WORDS),
    "bart": _of_transformers("BartModel", tokens(), **_WIDE, **_BART),
    "wav2vec2": _of_transformers("Wav2Vec2Model", sounds(4000), **_SOUND),
    "hubert": _of_transformers("HubertModel", sounds(4000), **_SOUND),
    "ast": _of_transformers("ASTModel", sounds(64, 128), max_length=64, **_LAYERS),
}
DECODERS: dict[str, Callable[[], Made]] = {
    "gpt_neo": _of_transformers(
        "GPTNeoForCausalLM",
        tokens(),
        **{"vocab_size": WORDS, "hidden_size": 64, "num_layers": 2, "num_heads": 4, "window_size": 8},
        attention_types=[[["global", "local"], 1]],
    ),
    "gptj": _of_transformers("GPTJForCausalLM", tokens(), rotary_dim=8, **_GPT),
    "codegen": _of_transformers("CodeGenForCausalLM", tokens(), rotary_dim=8, **_GPT),
    "bloom": _of_transformers(
        "BloomForCausalLM", tokens(), vocab_size=WORDS, hidden_size=64, n_layer=2, n_head=4
    ),
    "falcon": _of_transformers("FalconForCausalLM", tokens(), **_LAYERS, vocab_size=WORDS),
    "mpt": _of_transformers("MptForCausalLM", tokens(), n_layers=2, n_heads=4, **_WIDE),
    "stablelm": _of_transformers("StableLmForCausalLM", tokens(), **_GROUPED),
    "cohere": _of_transformers("CohereForCausalLM", tokens(), **_GROUPED),
    "olmo": _of_transformers("OlmoForCausalLM", tokens(), **_GROUPED),
    "qwen2": _of_transformers("Qwen2ForCausalLM", tokens(), **_GROUPED),
    "gemma3": _of_transformers("Gemma3ForCausalLM", tokens(), head_dim=16, sliding_window=8, **_GROUPED),
    "smollm3": _of_transformers("SmolLM3ForCausalLM", tokens(), pad_token_id=1, **_GROUPED),
    "mixtral": _of_transformers("MixtralForCausalLM", tokens(), num_local_experts=4, **_GROUPED),
    "qwen2_moe": _of_transformers(
        "Qwen2MoeForCausalLM",
        tokens(),
        **{"moe_intermediate_size": 64, "shared_expert_intermediate_size": 64},
        **{"num_experts": 4, "num_experts_per_tok": 2, **_GROUPED},
    ),
    "biogpt": _of_transformers("BioGptForCausalLM", tokens(), **_WORDS),
    "xglm": _of_transformers(
        "XGLMForCausalLM", tokens(), ffn_dim=128, num_layers=2, attention_heads=4, **_WIDE
    ),
    "mamba": _of_transformers(
        "MambaForCausalLM", tokens(), vocab_size=WORDS, hidden_size=64, num_hidden_layers=2
    ),
}
OF_IMAGES: dict[str, Callable[[], Made]] = {
    "swin_v2": _of_transformers(
        "Swinv2Model",
        images(),
        **{"image_size": IMAGE, "patch_size": 4, "embed_dim": 24, "window_size": 4},
        **{"depths": [1, 1], "num_heads": [2, 4]},
    ),
    "segformer": _of_transformers("SegformerModel", images(), **_HEADED),
    "pvt": _of_transformers("PvtModel", images(), image_size=IMAGE, **_HEADED),
    "convnext_v2": _of_transformers("ConvNextV2Model", images(), **_STAGES),
    "poolformer": _of_transformers("PoolFormerModel", images(), **_STAGES),
    "levit": _of_transformers(
        "LevitModel",
        images(),
        **{"image_size": IMAGE, "hidden_sizes": [32, 48, 64], "depths": [1, 1, 1]},
        num_attention_heads=[2, 3, 4],
    ),
    "mobilevit": _of_transformers(
        "MobileViTModel",
        images(),
        hidden_sizes=[32, 48, 64],
        neck_hidden_sizes=[8, 16, 24, 32, 40, 48, 64],
    ),
    "data2vec": _of_transformers(
        "Data2VecVisionModel", images(), image_size=IMAGE, patch_size=16, **_LAYERS
    ),
    "mobilenet_v3": _of_timm("mobilenetv3_small_050"),
    "mobilenet_v4": _of_timm("mobilenetv4_conv_small"),
    "rexnet": _of_timm("rexnet_100"),
    "ghostnet": _of_timm("ghostnet_050"),
    "eva02": _of_timm("eva02_tiny_patch14_224", 56, img_size=56),
    "cait": _of_timm("cait_xxs24_224", img_size=IMAGE),
    "xcit": _of_timm("xcit_nano_12_p16_224"),
    "coatnet": _of_timm("coatnet_nano_rw_224", img_size=IMAGE),
    "maxvit": _of_timm("maxvit_rmlp_pico_rw_256", img_size=IMAGE),
    "efficientformer": _of_timm("efficientformer_l1", 224),
    "fastvit": _of_timm("fastvit_t8"),
    "gmlp": _of_timm("gmlp_s16_224", 224),
    "repvgg": _of_timm("repvgg_a0"),
    "hrnet": _of_timm("hrnet_w18_small"),
    "dla": _of_timm("dla34"),
    "nfnet": _of_timm("dm_nfnet_f0"),
    "res2net": _of_timm("res2net50_14w_8s"),
    "seresnet": _of_timm("seresnet50"),
    "inception_v3": _of_timm("inception_v3", 96),
    "alexnet": _of_torchvision("alexnet"),
    "squeezenet": _of_torchvision("squeezenet1_1", 95),
    "shufflenet": _of_torchvision("shufflenet_v2_x0_5"),
    "mnasnet": _of_torchvision("mnasnet0_5"),
    "googlenet": _of_torchvision("googlenet", 96),
    "mobilenet_v2": _of_torchvision("mobilenet_v2"),
    "efficientnet_v2": _of_torchvision("efficientnet_v2_s"),
}
SMALL: Mapping[str, Callable[[], Made]] = {**ENCODERS, **DECODERS, **OF_IMAGES}
