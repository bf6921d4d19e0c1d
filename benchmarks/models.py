"""Whole models under torch.compile(backend="tilegen") beside Inductor, each forward pass in a CUDA graph.

python -m benchmarks.models bert llama -o FILE --rounds 7        on this GPU; no name: all of them

Configurations are those of the packages, weights random, nothing is fetched; decoders have four layers. Both
sides take turns, round by round; errors are against float32. A row: µs of all rounds, seconds to compile with
empty caches, regions. With --jobs models compile side by side first, one each process, and are then timed
alone; a model whose package is not installed is a note.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
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

        return timm.create_model(name, pretrained=False), _images(batch)

    return make


def _decoder(name: str, **how: Any) -> Callable[[int], Made]:
    return _of_transformers(name, _ids, 4, **how)


MODELS: dict[str, Callable[[int], Made]] = {
    "llama": _decoder("LlamaForCausalLM", num_key_value_heads=8, intermediate_size=14336),
    "qwen3": _decoder("Qwen3ForCausalLM", hidden_size=2048, intermediate_size=6144, num_attention_heads=16),
    "mistral": _decoder("MistralForCausalLM"),
    "gemma": _decoder("GemmaForCausalLM"),
    "gemma2": _decoder("Gemma2ForCausalLM"),
    "gpt2": _decoder("GPT2LMHeadModel"),
    "phi3": _decoder("Phi3ForCausalLM"),
    "opt": _decoder("OPTForCausalLM"),
    "gptneox": _decoder(
        "GPTNeoXForCausalLM", hidden_size=2048, intermediate_size=8192, num_attention_heads=16
    ),
    "olmo2": _decoder("Olmo2ForCausalLM"),
    "granite": _decoder("GraniteForCausalLM"),
    "starcoder2": _decoder("Starcoder2ForCausalLM"),
    "bert": _of_transformers("BertModel", _ids),
    "distilbert": _of_transformers("DistilBertModel", _ids),
    "roberta": _of_transformers("RobertaModel", _ids, max_position_embeddings=514),
    "electra": _of_transformers("ElectraModel", _ids),
    "t5": _of_transformers("T5EncoderModel", _ids),
    "vit": _of_transformers("ViTModel", _images),
    "deit": _of_transformers("DeiTModel", _images),
    "clip": _of_transformers("CLIPVisionModel", _images),
    "siglip": _of_transformers("SiglipVisionModel", _images),
    "dinov2": _of_transformers("Dinov2Model", _images),
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


def measured(name: str, batch: int, rounds: int, modes: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of one model."""
    from torch._dynamo.utils import counters

    torch.manual_seed(0)
    model, given = MODELS[name](batch)
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


def compiled(names: Sequence[str], arguments: Sequence[str], jobs: int) -> dict[str, Any]:
    """What a process each says of a model that it has compiled, `jobs` at a time: rows without rounds."""

    def run(name: str) -> Any:
        with tempfile.NamedTemporaryFile(suffix=".json") as out:
            command = [sys.executable, "-m", "benchmarks.models", name, *arguments, "-o", out.name]
            done = subprocess.run([*command, "--rounds", "0"], capture_output=True, text=True, check=False)
            if done.returncode or not Path(out.name).stat().st_size:
                return {"rows": [], "notes": [f"{name}: {done.stderr[-400:]}"]}
            return json.loads(Path(out.name).read_text())

    with ThreadPoolExecutor(jobs) as pool:
        return dict(zip(names, pool.map(run, names), strict=True))


def _say(row: dict[str, Any]) -> None:
    us = statistics.median(row["us"] or [0.0])
    print(f"{row['model']:13} {row['backend']:9} {us:9.1f} us, error {row['error']:.1e}", end=", ")
    print(f"{row['seconds']} s to compile, {row['regions']} regions", flush=True)
    for word in row["left"]:
        print(f"    {word}")


def main() -> None:
    p = argparse.ArgumentParser(
        "models", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    p.add_argument("-o", "--out", type=Path, required=True)
    p.add_argument("--batch", type=int, default=1)
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--jobs", type=int, default=0, help="so many compile side by side first")
    p.add_argument("--max-autotune", action="store_true", help="Inductor's best beside it: minutes a model")
    p.add_argument("--seconds", type=float, default=3600, help="no model begins after it")
    asked = p.parse_args()
    names = asked.models or list(MODELS)
    if unknown := set(names) - MODELS.keys():
        p.error(f"no model {', '.join(sorted(unknown))}; they are {', '.join(MODELS)}")
    mode = {"mode": "max-autotune-no-cudagraphs"} if asked.max_autotune else {}
    modes = {"inductor": dict(mode), "tilegen": {"backend": tilegen, **mode}}
    rows: list[Any] = []
    notes: list[str] = []
    begun = time.monotonic()
    how = ["--batch", str(asked.batch), *(["--max-autotune"] if asked.max_autotune else [])]
    cold = compiled(names, how, asked.jobs) if asked.jobs else {}
    for name in names:
        if name in cold and not cold[name]["rows"]:
            notes += cold[name]["notes"]
            print(notes[-1], flush=True)
            continue
        if time.monotonic() - begun > asked.seconds:
            notes.append(f"{name}: no time was left")
            continue
        try:
            found = measured(name, asked.batch, asked.rounds, modes)
        except Exception as error:  # told; the others are still measured
            notes.append(f"{name}: {type(error).__name__}: {str(error)[:300]}")
            print(notes[-1], flush=True)
            continue
        for row, before in zip(found, cold.get(name, {"rows": found})["rows"], strict=True):
            row["seconds"] = before["seconds"]
            _say(row)
        rows += found
        run = {**vars(asked), "out": asked.out.name}
        text = json.dumps({**environment(), "run": run, "notes": notes, "rows": rows}, indent=1)
        asked.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
