"""The tables of whole models, of sizes that move and of the cost model in docs/performance.md:
benchmarks.swapped, moving, serving, models, small, generate and calibrate."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, zip_longest
from pathlib import Path
from typing import Any

from benchmarks import compiled_tables, fit, lowerings, unseen
from benchmarks.tables import shown, table
from tilegen.runtime.timing import paired
from tilegen.runtime.verify import load_json

MODELS = ("llama", "gpt2", "resnet50")
VARIANTS = ("eager", "torch.compile", "tilegen")
SWAPPED = (
    "Random weights of Hugging Face's `LlamaModel` (eight of Llama-3-8B's layers) and `GPT2Model` on 512"
    " tokens, and of torchvision's `resnet50` on images of 224 x 224, channels-last; each decoder layer,"
    " block and stage replaced by `tg.module.from_torch`, nothing else changed, no option given."
    " torch.compile: max-autotune with static shapes; for the ResNet, whose convolutions are cuDNN's in all"
    " contenders but ours, its default mode with `freezing`, which folds batch norms. All in CUDA graphs, in"
    " one interleaved run; microseconds of a forward, medians. Error: against the same model in float32."
    " Built: seconds until the first call had ended, cold."
)
MOVING = (
    "One kernel for every size (`tg.dim`) beside the kernel compiled for the size, both with prepared"
    " weights, in CUDA graphs, rotating tensors, interleaved; microseconds, medians, and the median of the"
    " ratios round by round, above 1 where the moving kernel is slower. GPT-3's and LLaMA's feed-forward"
    " blocks (M rows), and a layer of Llama-3-8B that decodes a token (B sequences). The target is 1.03 at"
    " every size. Far below 1 the tiles chosen for the one size are worse than those of a neighbour that was"
    " tuned."
)
SERVING = (
    "Eight gated layers of LLaMA-7B's widths for every batch from 1 to 64, as eight modules (`tg.module`) and"
    " as one; the batch moves at each of 2,000 steps. Microseconds of the host for a call, and for a step by"
    " the number of layers, medians and 99th percentiles, results freed as they go; in turns with PyTorch's"
    " own calls of the same layers, and with one small op of PyTorch's in a layer's place, what a launch"
    " costs that host. The target is 15 a layer at the 99th percentile."
)


CALIBRATION = (
    "Drawn linears, each cut in many ways, long sums split by up to eight CTAs, linears whose math"
    " warpgroups take turns, convolutions, and attentions with tiles of both heights, as"
    " `tilegen.graph.linear_time`, `conv_time`, `attention_time` and `residual` have them and as they were"
    " measured; the lines that name no GPU are of an H200; errors are of"
    " log(modelled / measured). Of each program: Spearman's correlation of both orders, times within 2 %"
    " being ties, and the regret, by how much the plan that the model takes for the best is slower than the"
    " best that was measured. Constants were chosen, and trees grown, by the programs of the lines “fitted"
    " to” alone."
)


LOWERINGS = (
    "Programs of several ops, drawn as `benchmarks.shapes` draws them, in one launch and in a launch of each"
    " op, on an H100, and nets of convolutions on an H200: by how much what `tg.compile` takes by its model"
    " (`tilegen.schedule.lowering`) is slower than the"
    " faster of both. Left out are programs of which a linear's sum is split by four or eight CTAs now."
)


UNSEEN = (
    "Programs drawn when all of the model had been fitted, each in the plan that `tg.compile` takes, in the"
    " model's best and in others drawn from all that the kernels can run, timed in turns: by how much what is"
    " taken is slower than the fastest of them. Of ops alone, as in the table above: Spearman's correlation,"
    " and how many times of the model's are near the measured ones."
)


def sections(results: Path, gpu: str) -> list[str]:
    """Those whose files are there: of this GPU, then of others."""
    tables = (
        ("Models whose layers are swapped", SWAPPED, [f"swapped-{m}" for m in MODELS], _swapped),
        ("One kernel for every size", MOVING, ["moving"], _ratios),
        ("A batch that moves at every step", SERVING, ["serving"], _served),
        ("Models under torch.compile", compiled_tables.MODELS, ["models"], compiled_tables.of_models),
        ("Models that nothing is tuned for", compiled_tables.SMALL, ["small"], compiled_tables.of_small),
        ("Gradients of models", compiled_tables.GRADIENTS, ["gradients"], compiled_tables.of_gradients),
        ("Models whose batch moves", compiled_tables.BATCHES, ["batches"], compiled_tables.of_batches),
        ("Greedy decoding", compiled_tables.GENERATED, ["generate"], compiled_tables.of_generated),
    )
    parts = []
    for title, text, names, of in tables:
        paths = [path for name in names for path in _files(results, name, gpu)]
        if paths:
            tables_of = [f"{of(load_json(p))}\n\n{_source(p.name, load_json(p))}" for p in paths]
            parts.append("\n\n".join([f"## {title}", _wrapped(text), *tables_of]))
    swept = list(dict.fromkeys(sweep.path for sweep in fit.SWEEPS))
    found = [results / path.name for path in (*fit.RESULTS, *swept, *fit.CONVS, fit.ATTENTION)]
    if all(path.exists() for path in found):
        linears = tuple(found[: len(fit.RESULTS)])
        *convs, attention = found[-1 - len(fit.CONVS) :]
        of_sweeps = [sweep.pairs(results) for sweep in fit.SWEEPS]
        others = fit.conv_pairs(tuple(convs)), fit.attention_pairs(attention)
        lines = "\n".join(fit.lines(fit.pairs(linears), of_sweeps, *others))
        source = "\n\n".join(_source(path.name, load_json(path)) for path in found)
        parts.append(f"## The cost model\n\n{_wrapped(CALIBRATION)}\n\n{lines}\n\n{source}")
    found = [results / path.name for path in unseen.RESULTS]
    if all(path.exists() for path in found):
        lines = "\n".join(unseen.lines(found))
        source = "\n\n".join(_source(path.name, load_json(path)) for path in found)
        parts.append(f"## What is taken of unseen programs\n\n{_wrapped(UNSEEN)}\n\n{lines}\n\n{source}")
    found = [results / name for name in lowerings.RESULTS]
    if all(path.exists() for path in found):
        lines = "\n".join(lowerings.lines(lowerings.held_out(results)))
        source = "\n\n".join(_source(path.name, load_json(path)) for path in found)
        parts.append(f"## One launch or launches\n\n{_wrapped(LOWERINGS)}\n\n{lines}\n\n{source}")
    return parts


def _files(results: Path, name: str, gpu: str) -> list[Path]:
    """Result files of a benchmark, that of this GPU first."""
    return sorted(results.glob(f"{name}-*.json"), key=lambda path: (path.stem != f"{name}-{gpu}", path.stem))


def _swapped(data: Mapping[str, Any]) -> str:
    return table(_HEAD, [_line(cell) for cell in data["cells"]])


def _served(data: Mapping[str, Any]) -> str:
    return table(list(data["rows"][0]), [list(map(_told, r.values())) for r in data["rows"]])


def _told(value: Any) -> str:
    return "–" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _ratios(data: Mapping[str, Any]) -> str:
    """Of each program: how many sizes, their mean, and each of them."""
    return "\n\n".join(_ratios_of_programs(data["cells"]))


def _ratios_of_programs(cells: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for name, of in groupby(cells, key=lambda c: str(c["program"])):
        found = list(of)
        ratios = [paired(c["us"]["moving"], c["us"]["frozen"]) for c in found]
        mean, within = statistics.geometric_mean(ratios), sum(r <= 1.03 for r in ratios)
        lines = [
            [str(c["size"]), *(f"{statistics.median(c['us'][v]):.1f}" for v in ("frozen", "moving")),
             f"{ratio:.3f}" if ratio <= 1.03 else f"**{ratio:.3f}**"]
            for c, ratio in zip(found, ratios, strict=True)
        ]  # fmt: skip
        half = -(-len(lines) // 2)
        pairs = [a + b for a, b in zip_longest(lines[:half], lines[half:], fillvalue=[""] * 4)]
        head = ["size", "for it", "for all", "ratio"] * 2
        yield (
            f"{name}: {len(found)} sizes, geometric mean {mean:.3f}, worst {max(ratios):.3f}, {within} within"
            f" 3 %.\n\n{table(head, pairs)}"
        )


_HEAD = ("", "batch", *VARIANTS, "torch.compile / tilegen", "10-90 %", "error: torch.compile", "tilegen",
         "built: torch.compile", "tilegen")  # fmt: skip


def _line(cell: Mapping[str, Any]) -> list[str]:
    us, errors, seconds = cell["us"], cell["errors"], cell["seconds"]
    pairs = sorted(a / b for a, b in zip(us["torch.compile"], us["tilegen"], strict=True))
    ratio = statistics.median(pairs)
    low, high = (pairs[round(share * (len(pairs) - 1))] for share in (0.1, 0.9))
    return [
        cell["model"],
        str(cell["batch"]),
        *(f"{statistics.median(us[v]):.0f}" for v in VARIANTS),
        shown(ratio),
        f"{low:.2f} to {high:.2f}",
        *(f"{errors[v]:.1e}" for v in ("torch.compile", "tilegen")),
        *(f"{seconds[v]:.0f} s" for v in ("torch.compile", "tilegen")),
    ]


def _source(file: str, data: Mapping[str, Any]) -> str:
    v = data["versions"]
    versions = ", ".join(f"{n} {v[n]}" for n in ("torch", "cuda", "cudnn", "triton", "driver") if v.get(n))
    clocks = [c for cell in data.get("cells", []) for c in cell.get("clocks_mhz", []) if c]
    clock = f" SM clock {min(clocks)} to {max(clocks)} MHz." if clocks else ""
    remarks = "".join(f" {r[0].upper()}{r[1:]}." for r in data.get("remarks", []))
    return _wrapped(
        f"[{file}](../benchmarks/results/{file}): commit {data['commit']}, {data['date'][:10]},"
        f" {data['device']}, {versions}.{clock}{remarks} `{data['run']}`"
    )


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 110, break_long_words=False, break_on_hyphens=False)
