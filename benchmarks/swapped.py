"""Models of transformers and torchvision whose layers are swapped by tg.module.from_torch, beside the same
models under torch.compile, all in one run on this GPU.

python -m benchmarks.swapped [DIR] [MODEL …]

Random weights. A Llama of eight of Llama-3-8B's layers and a GPT-2 on 512 tokens, a ResNet-50 on images of
224 x 224, each at three batch sizes. torch.compile: max-autotune, static shapes; for the ResNet, whose
products are cuDNN's, frozen, which folds batch norms. Every contender is captured in a CUDA graph of its own;
the rest of a model (embeddings, the last norm, a ResNet's first convolution) is PyTorch's own in each.
Results are held against the model in float32.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import tilegen as tg
from benchmarks.workloads import tag
from tilegen.bench.environment import environment
from tilegen.bench.results import heading, save
from tilegen.runtime import timing

ROOT = Path(__file__).resolve().parent
ROUNDS, TOKENS = 15, 512
BATCHES = {"llama": (1, 2, 8), "gpt2": (1, 4, 16), "resnet50": (1, 8, 32)}
Layers = list[tuple[Any, Any]]  # a container of layers and the name or number of one


def llama() -> tuple[Any, Callable[[Any], Layers]]:
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        hidden_size=4096, intermediate_size=14336, num_hidden_layers=8, num_attention_heads=32,
        num_key_value_heads=8, vocab_size=8192, rope_theta=500000.0, eos_token_id=1, bos_token_id=1,
    )  # fmt: skip
    return LlamaModel(config), lambda model: [(model.layers, n) for n in range(8)]


def gpt2() -> tuple[Any, Callable[[Any], Layers]]:
    from transformers import GPT2Config, GPT2Model

    model = GPT2Model(GPT2Config())
    return model, lambda model: [(model.h, n) for n in range(len(model.h))]


def resnet50() -> tuple[Any, Callable[[Any], Layers]]:
    from torchvision.models import resnet50 as made

    return made(weights=None), lambda model: [(model, f"layer{n}") for n in (1, 2, 3, 4)]


MODELS = {"llama": llama, "gpt2": gpt2, "resnet50": resnet50}


def input_of(name: str, batch: int, seed: int) -> torch.Tensor:
    torch.manual_seed(seed)
    if name == "resnet50":
        x = torch.randn(batch, 3, 224, 224, device="cuda", dtype=torch.bfloat16)
        return x.to(memory_format=torch.channels_last)
    return torch.randint(0, 8192, (batch, TOKENS), device="cuda")


def run_of(name: str, model: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """Layers are called as the model calls them where no mask is given. The model's own forward makes one
    where it cannot look at its input, under a compiler and in a graph: attention is then slower for
    everybody."""
    if name == "resnet50":
        return lambda x: model(x)

    def llama(ids: torch.Tensor) -> torch.Tensor:
        x, positions = model.embed_tokens(ids), torch.arange(TOKENS, device="cuda")[None]
        angles = model.rotary_emb(x, positions)
        for layer in model.layers:
            x = layer(x, attention_mask=None, position_embeddings=angles, use_cache=False)
        return model.norm(x)

    def gpt2(ids: torch.Tensor) -> torch.Tensor:
        x = model.wte(ids) + model.wpe(torch.arange(TOKENS, device="cuda"))
        for layer in model.h:
            x = layer(x, attention_mask=None, use_cache=False)
        return model.ln_f(x)

    return llama if name == "llama" else gpt2


def swapped(layers: Layers, call: Callable[[], Any]) -> tuple[list[Any], list[Any]]:
    """Each layer by its kernel, from a call of the model; and what stood there, whose weights graphs read."""
    calls: dict[int, Any] = {}
    held = [container[at] if isinstance(at, int) else getattr(container, at) for container, at in layers]
    hooks = [
        layer.register_forward_pre_hook(
            lambda _, args, kwargs, n=n: calls.setdefault(n, (args, kwargs)), with_kwargs=True
        )
        for n, layer in enumerate(held)
    ]
    call()
    for hook in hooks:
        hook.remove()
    made = []
    for n, (container, at) in enumerate(layers):
        args, kwargs = calls[n]
        made.append(tg.module.from_torch(held[n], *args, **kwargs))
        if isinstance(at, int):
            container[at] = made[-1]
        else:
            setattr(container, at, made[-1])
    return made, held


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.float() - wanted).norm() / wanted.norm())


def cell(name: str, batch: int) -> dict[str, Any]:
    torch.manual_seed(0)
    model, layers_of = MODELS[name]()
    model = model.eval().to("cuda")
    for t in model.state_dict().values():
        if t.is_floating_point():
            t.copy_(t.bfloat16())
    frequencies = model.rotary_emb.inv_freq if name == "llama" else None
    xs = [input_of(name, batch, seed) for seed in range(2)]
    wanted = run_of(name, model)(xs[0].float() if name == "resnet50" else xs[0])
    model = model.to(torch.bfloat16)
    if name == "llama":
        model.rotary_emb.inv_freq = model.rotary_emb.original_inv_freq = frequencies  # which stay float32
    if name == "resnet50":
        model = model.to(memory_format=torch.channels_last)
    run = run_of(name, model)
    torch._dynamo.reset()
    start = time.perf_counter()
    torch._inductor.config.freezing = name == "resnet50"
    mode = "default" if name == "resnet50" else "max-autotune-no-cudagraphs"
    compiled = torch.compile(run, mode=mode, dynamic=False)
    errors = {"eager": error(run(xs[0]), wanted), "torch.compile": error(compiled(xs[0]), wanted)}
    seconds = {"torch.compile": time.perf_counter() - start}
    runners = {
        "eager": timing.ready(timing.Contender(tuple(partial(run, x) for x in xs))),
        "torch.compile": timing.ready(timing.Contender(tuple(partial(compiled, x) for x in xs))),
    }
    start = time.perf_counter()
    made, held = swapped(layers_of(model), lambda: run(xs[0]))
    errors["tilegen"] = error(run(xs[0]), wanted)
    assert len(held) == len(made)
    seconds["tilegen"] = time.perf_counter() - start
    runners["tilegen"] = timing.ready(timing.Contender(tuple(partial(run, x) for x in xs)))
    for layer in made:
        layer.kernel.check()
    runs = {variant: runner.run for variant, runner in runners.items()}
    counts = timing.counted(runs, timing.event_seconds)
    clocks: list[int | None] = []
    times = timing.interleave(
        runs, counts, timing.event_seconds, ROUNDS,
        lambda n: clocks.append(timing.clock_under(runs["tilegen"])) if n % 7 == 0 else None,
    )  # fmt: skip
    for variant, runner in runners.items():
        runner.run()
        errors[variant] = max(errors[variant], error(runner.results[0], wanted))
    us = {v: [round(1e6 * t / len(xs), 2) for t in ts] for v, ts in times.items()}
    ratio = timing.paired(us["torch.compile"], us["tilegen"])
    row = {
        "model": name, "batch": batch, "us": us, "errors": errors, "seconds": seconds, "clocks_mhz": clocks,
        "torch.compile over tilegen": round(ratio, 4),
        "kernels": [repr(layer.kernel) for layer in made[:1]],
    }  # fmt: skip
    medians = {v: round(statistics.median(ts), 1) for v, ts in us.items()}
    shown = {v: f"{e:.1e}" for v, e in errors.items()}
    took = {v: round(s, 1) for v, s in seconds.items()}
    print(name, batch, medians, f"ratio {ratio:.3f}", shown, took, flush=True)
    return row


@torch.no_grad()
def main(folder: Path, names: list[str]) -> None:
    torch.backends.cudnn.benchmark = True
    found = environment()
    for name in names or BATCHES:
        cells: list[dict[str, Any]] = []
        for batch in BATCHES[name]:
            cells.append(cell(name, batch))
            data = {**heading(f"python -m benchmarks.swapped . {name}", found), "cells": cells}
            save(data, folder / f"swapped-{name}-{tag(found['device'])}.json")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "results", sys.argv[2:])
