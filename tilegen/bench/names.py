"""What readers call the contenders and the workloads of result files."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilegen.bench.rows import Key, Note, Row, key


@dataclass(frozen=True)
class Contender:
    words: str
    colour: str


# torch is grey, libraries are blue and green, tilegen's variants yellow to orange, tilegen itself dark red.
# Within a family lightness differs, so that the colour-blind can tell them apart too.
CONTENDERS = {
    "eager": Contender("torch, op by op", "#d0d4da"),
    "graph": Contender("torch in a CUDA graph", "#9aa3ae"),
    "cublaslt": Contender("cuBLASLt with fused epilogues", "#56b4e9"),
    "cudnn": Contender("cuDNN's fused convolutions", "#3f87c6"),
    "addmm-gelu": Contender("torch's fused linear and GeLU", "#7fd0f5"),
    "sdpa-flash": Contender("torch, its FlashAttention", "#bfe3d8"),
    "sdpa-cudnn": Contender("torch, cuDNN's attention", "#8fcfbb"),
    "sdpa-efficient": Contender("torch, memory-efficient attention", "#5db89c"),
    "flash-attn-3": Contender("FlashAttention-3", "#2f9478"),
    "flashinfer": Contender("FlashInfer's decode kernel", "#106b53"),
    "graph-flash": Contender("torch's FlashAttention kernel, called directly", "#a7d9c9"),
    "cublaslt-flash": Contender("cuBLASLt and FlashAttention", "#46a68a"),
    "cublaslt-cudnn": Contender("cuBLASLt and cuDNN's attention", "#1f7d65"),
    "inductor": Contender("torch.compile, max-autotune", "#12507b"),
    "inductor-flash": Contender("torch.compile and FlashAttention", "#0a3350"),
    "tilegen-kernel": Contender("a launch for each op", "#fdf0b5"),
    "tilegen-pdl": Contender("a launch for each op that starts early", "#f6d55c"),
    "tilegen-barrier": Contender("one launch, a barrier between ops", "#f0b429"),
    "tilegen-persistent": Contender("one launch, tile sync", "#e58e1a"),
    "tilegen-unprepared": Contender("weights not packed", "#d9b38c"),
    "tilegen-exclusive": Contender("alone on the GPU", "#c98a4b"),
    "tilegen-portable": Contender("the kernel for any GPU from Ampere on", "#8f6b3a"),
    "tilegen": Contender("as tg.compile gives it", "#b5381c"),
}
OTHERS = ("#cc79a7", "#6a4c93", "#a89f00", "#5b5b5b")  # colours of contenders of a caller's own


@dataclass(frozen=True)
class Name:
    """A cell's label and the group that it stands in."""

    group: str
    label: str


@dataclass(frozen=True)
class Workload:
    """The words for a program whose sizes include `where`; {SIZE} in them is that size."""

    program: str
    group: str
    label: str
    where: Mapping[str, Any] = field(default_factory=dict)

    def name(self, program: str, sizes: Mapping[str, Any]) -> Name | None:
        """None where the program or its sizes are others."""
        texts = (self.group, self.label)
        used = {f for text in texts for _, f, _, _ in string.Formatter().parse(text) if f}
        fits = used <= set(sizes) and all(sizes.get(k) == v for k, v in self.where.items())
        return Name(*(text.format(**sizes) for text in texts)) if program == self.program and fits else None


GPT3, LLAMA = {"H": 12288, "heads": 12}, {"H": 8192, "heads": 8}  # attention, a shard of eight
LAYER = {"H": 4096, "heads": 32, "kv_heads": 8, "I": 14336}
WIDE, NARROW = {"H": 12288, "I": 6144}, {"H": 8192, "I": 2752}  # feed-forward, a shard of eight
TOKENS, CACHE = "{S:,} tokens, B = {B}", "cache of {S_max:,}, B = {B}"
CACHED = "{cached:,} cached tokens, B = {B}"
WORKLOADS = (  # the first that fits names a cell
    Workload("conv_pair", "Two 3×3 convolutions with bias and ReLU", "{HW}×{HW}×{C}, B = {B}"),
    Workload("resnet38", "The whole ResNet-38", "ResNet-38, B = {B}", {"stage": 0}),
    Workload("resnet38", "ResNet-38, stage by stage", "ResNet-38 stage {stage}, B = {B}"),
    Workload("vgg19", "The whole VGG-19", "VGG-19, B = {B}", {"block": 0}),
    Workload("vgg19", "VGG-19, block by block", "VGG-19 block {block}, B = {B}"),
    Workload("llama_layer", "Llama-3-8B layer, one new token", CACHE, {"S": 1, **LAYER}),
    Workload("llama_layer", "Llama-3-8B layer, prefill", TOKENS, LAYER),
    Workload("gpt3_attention", "GPT-3 attention shard: QKV, causal, output", TOKENS, GPT3),
    Workload("llama_attention", "LLaMA attention shard: QKV, rope, causal, output", TOKENS, LLAMA),
    Workload("cached_attention", "GPT-3 attention shard, one new token", CACHED, GPT3 | {"rope": False}),
    Workload("cached_attention", "LLaMA attention shard, one new token", CACHED, LLAMA | {"rope": True}),
    Workload("gpt3_mlp", "GPT-3 feed-forward shard, {H:,} × {I:,}", "GPT-3, M = {M:,}", WIDE),
    Workload("llama_mlp", "LLaMA feed-forward shard, {H:,} × {I:,}", "LLaMA, M = {M:,}", NARROW),
    Workload("gemm", "One GeMM, M × N × K", "{M:,} × {N:,} × {K:,}"),
    Workload("four_gemms", "Four GeMMs in a row, {H:,} wide", "M = {M:,}"),
    Workload("fan", "A fan of three GeMMs and back, {H:,} wide", "M = {M:,}"),
)


def names(rows: Sequence[Row | Note]) -> dict[Key, Name]:
    """A name for each cell, no two alike: where the words leave cells alike, the sizes that differ follow.

    A program without words is a group under its own name.
    """
    cells = {key(r): r for r in rows}
    named = {k: _name(r.workload, r.sizes) for k, r in cells.items()}
    alike: dict[Name, list[Mapping[str, Any]]] = {}
    for k, name in named.items():
        alike.setdefault(name, []).append(cells[k].sizes)
    return {k: _distinct(name, cells[k].sizes, alike[name]) for k, name in named.items()}


def _name(program: str, sizes: Mapping[str, Any]) -> Name:
    found = (w.name(program, sizes) for w in WORKLOADS)
    return next((name for name in found if name is not None), Name(program, ""))


def _distinct(name: Name, sizes: Mapping[str, Any], alike: Sequence[Mapping[str, Any]]) -> Name:
    """The name with the sizes in which cells of this name differ; with one at least if it has no words."""
    differing = [k for k in sizes if any(other.get(k) != sizes[k] for other in alike)]
    shown = differing or ([] if name.label else list(sizes)[:1])
    words = [name.label] if name.label else []
    return Name(name.group, ", ".join([*words, *(f"{k} = {sizes[k]}" for k in shown)]))
