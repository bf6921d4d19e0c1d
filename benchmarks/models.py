"""Whole models under torch.compile(backend="tilegen") beside Inductor, each forward pass in a CUDA graph.

python -m benchmarks.models bert llama -o FILE --rounds 7        on this GPU; --layers 4 cuts transformers

Configurations are those of the packages, weights random, nothing is fetched. Both sides take turns, round by
round; errors are against float32. A row: µs of all rounds, seconds to compile, regions.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tilegen.backend.backend import tilegen
from tilegen.bench.environment import environment

Made = tuple[torch.nn.Module, tuple[torch.Tensor, ...]]
SEQUENCE, IMAGE = 512, 224


def _ids(batch: int) -> tuple[torch.Tensor, ...]:
    return (torch.randint(0, 1000, (batch, SEQUENCE)),)


def _images(batch: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(batch, 3, IMAGE, IMAGE),)


def _of_transformers(name: str, config: str, given: Callable[[int], Any], **how: Any) -> Callable[..., Made]:
    def make(batch: int, layers: int) -> Made:
        import transformers

        made = getattr(transformers, config)(**how)
        for key in ("num_hidden_layers", "n_layer"):
            if hasattr(made, key):
                setattr(made, key, layers)
        made.use_cache = False
        return getattr(transformers, name)(made), given(batch)

    return make


def _of_torchvision(name: str) -> Callable[..., Made]:
    def make(batch: int, layers: int) -> Made:
        import torchvision

        return torchvision.models.get_model(name, weights=None), _images(batch)

    return make


MODELS: dict[str, Callable[..., Made]] = {
    "llama": _of_transformers(
        "LlamaForCausalLM", "LlamaConfig", _ids, num_key_value_heads=8, intermediate_size=14336
    ),
    "bert": _of_transformers("BertModel", "BertConfig", _ids),
    "gpt2": _of_transformers("GPT2LMHeadModel", "GPT2Config", _ids),
    "vit": _of_transformers("ViTModel", "ViTConfig", _images),
    "resnet50": _of_torchvision("resnet50"),
    "vgg19": _of_torchvision("vgg19"),
    "convnext": _of_torchvision("convnext_tiny"),
    "efficientnet": _of_torchvision("efficientnet_b0"),
}


def captured(run: Callable[..., Any], given: tuple[torch.Tensor, ...]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A call as a graph, and its results, which a replay writes again."""
    with torch.no_grad():
        for _ in range(3):
            run(*given)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = run(*given)
    return graph, results


def timed(graph: torch.cuda.CUDAGraph, calls: int = 20) -> float:
    """µs of a replay."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(calls):
        graph.replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3 / calls


def first(found: Any) -> torch.Tensor:
    leaves = torch.utils._pytree.tree_leaves(found.to_tuple() if hasattr(found, "to_tuple") else found)
    return next(t for t in leaves if isinstance(t, torch.Tensor))


def measured(name: str, batch: int, layers: int, rounds: int, modes: dict[str, dict[str, Any]]) -> list[Any]:
    """The rows of one model."""
    from torch._dynamo.utils import counters

    torch.manual_seed(0)
    model, given = MODELS[name](batch, layers)
    model = model.eval().cuda()
    given = tuple(a.cuda() for a in given)
    with torch.no_grad():
        exact = first(model(*given)).double().cpu()
    model = model.bfloat16()
    given = tuple(a.bfloat16() if a.is_floating_point() else a for a in given)
    rows: list[dict[str, Any]] = []
    graphs = []
    for backend, how in modes.items():
        torch._dynamo.reset()
        counters.clear()
        begun = time.perf_counter()
        graph, results = captured(torch.compile(copy.copy(model), **how), given)
        seconds = time.perf_counter() - begun
        graph.replay()
        error = float((first(results).double().cpu() - exact).norm() / exact.norm())
        said = counters["tilegen"]
        left = sorted((k for k in said if k.startswith("left")), key=lambda k: -said[k])
        rows.append(
            {
                **{"model": name, "batch": batch, "backend": backend, "error": error},
                **{"seconds": round(seconds, 1), "regions": said["regions"], "left": left[:5]},
                "us": [],
            }
        )
        graphs.append(graph)
    for n in range(rounds):
        for k in range(len(graphs)) if n % 2 == 0 else reversed(range(len(graphs))):
            rows[k]["us"].append(round(timed(graphs[k]), 2))
    return rows


def main() -> None:
    p = argparse.ArgumentParser(
        "models", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("models", nargs="+", choices=MODELS)
    p.add_argument("-o", "--out", type=Path, required=True)
    p.add_argument("--batch", type=int, default=1)
    p.add_argument("--layers", type=int, default=4)
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--max-autotune", action="store_true", help="Inductor's best beside it: minutes a model")
    p.add_argument("--seconds", type=float, default=3600, help="no model begins after it")
    asked = p.parse_args()
    mode = {"mode": "max-autotune-no-cudagraphs"} if asked.max_autotune else {}
    modes = {"inductor": dict(mode), "tilegen": {"backend": tilegen, **mode}}
    rows: list[Any] = []
    notes: list[str] = []
    begun = time.monotonic()
    for name in asked.models:
        if time.monotonic() - begun > asked.seconds:
            notes.append(f"{name}: no time was left")
            continue
        try:
            found = measured(name, asked.batch, asked.layers, asked.rounds, modes)
        except Exception as error:  # told; the others are still measured
            notes.append(f"{name}: {type(error).__name__}: {str(error).splitlines()[0][:300]}")
            print(notes[-1], flush=True)
            continue
        rows += found
        for row in found:
            us = statistics.median(row["us"])
            print(f"{name:13} {row['backend']:9} {us:9.1f} us, error {row['error']:.1e}", end=", ")
            print(f"{row['seconds']} s to compile, {row['regions']} regions", flush=True)
            for word in row["left"]:
                print(f"    {word}")
        run = {**vars(asked), "out": asked.out.name}
        asked.out.write_text(
            json.dumps({**environment(), "run": run, "notes": notes, "rows": rows}, indent=1)
        )


if __name__ == "__main__":
    main()
