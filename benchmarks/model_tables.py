"""The tables of whole models, of sizes that move and of the cost model in docs/performance.md:
benchmarks.swapped, moving, serving and calibrate."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, zip_longest
from pathlib import Path
from typing import Any

from benchmarks import fit
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
    " weights, in CUDA graphs, rotating tensors, interleaved; microseconds, medians, and their ratio, above 1"
    " where the moving kernel is slower. GPT-3's and LLaMA's feed-forward blocks (M rows), and a layer of"
    " Llama-3-8B that decodes a token (B sequences). The target is 1.03 at every size. Far below 1 the tiles"
    " chosen for the one size are worse than those of a neighbour that was tuned."
)
SERVING = (
    "Eight gated layers of LLaMA-7B's widths (`tg.module`), each one kernel for every batch from 1 to 64; the"
    " batch moves at each of 2,000 steps. Microseconds of the host for a layer's call, results freed as they"
    " go, in turns with PyTorch's own calls of the same layers, and with one small op of PyTorch's in a"
    " layer's place, on the same host. The target is 15 at the 99th percentile."
)


CALIBRATION = (
    "Drawn linears, each cut in many ways, and attentions with tiles of both heights, as"
    " `tilegen.graph.linear_time` and `attention_time` have them and as they were measured; errors are of"
    " log(modelled / measured). Of each program: Spearman's correlation of both orders, times within 2 %"
    " being ties, and the regret, by how much the plan that the model takes for the best is slower than the"
    " best that was measured. Constants were chosen by the programs of the lines “fitted to” alone."
)


def sections(results: Path, gpu: str) -> list[str]:
    """Those whose files are there."""
    found = [load_json(p) for m in MODELS if (p := results / f"swapped-{m}-{gpu}.json").exists()]
    parts = []
    if found:
        table = _table(_HEAD, [_line(cell) for data in found for cell in data["cells"]])
        told = "\n\n".join(_source(f"swapped-{m}-{gpu}.json", d) for m, d in zip(MODELS, found, strict=False))
        parts.append(f"## Models whose layers are swapped\n\n{_wrapped(SWAPPED)}\n\n{table}\n\n{told}")
    path = results / f"moving-{gpu}.json"
    if path.exists():
        data = load_json(path)
        tables = "\n\n".join(_ratios(data["cells"]))
        told = _source(path.name, data)
        parts.append(f"## One kernel for every size\n\n{_wrapped(MOVING)}\n\n{tables}\n\n{told}")
    path = results / f"serving-{gpu}.json"
    if path.exists():
        data = load_json(path)
        rows = [[f"{v:.4g}" if isinstance(v, float) else str(v) for v in r.values()] for r in data["rows"]]
        table = _table(list(data["rows"][0]), rows)
        source = _source(path.name, data)
        parts.append(f"## A batch that moves at every step\n\n{_wrapped(SERVING)}\n\n{table}\n\n{source}")
    found = [results / result.name for result in (*fit.RESULTS, fit.ATTENTION)]
    if all(path.exists() for path in found):
        *linears, attention = found
        table = "\n".join(fit.lines(fit.pairs(tuple(linears)), fit.attention_pairs(attention)))
        source = "\n\n".join(_source(path.name, load_json(path)) for path in found)
        parts.append(f"## The cost model\n\n{_wrapped(CALIBRATION)}\n\n{table}\n\n{source}")
    return parts


def _ratios(cells: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Of each program: how many sizes, their mean, and each of them."""
    for name, of in groupby(cells, key=lambda c: str(c["program"])):
        found = list(of)
        ratios = [c["ratio"] for c in found]
        mean, within = statistics.geometric_mean(ratios), sum(r <= 1.03 for r in ratios)
        lines = [
            [str(c["size"]), *(f"{statistics.median(c['us'][v]):.1f}" for v in ("frozen", "moving")),
             f"{c['ratio']:.3f}" if c["ratio"] <= 1.03 else f"**{c['ratio']:.3f}**"]
            for c in found
        ]  # fmt: skip
        half = -(-len(lines) // 2)
        pairs = [a + b for a, b in zip_longest(lines[:half], lines[half:], fillvalue=[""] * 4)]
        head = ["size", "for it", "for all", "ratio"] * 2
        yield (
            f"{name}: {len(found)} sizes, geometric mean {mean:.3f}, worst {max(ratios):.3f}, {within} within"
            f" 3 %.\n\n{_table(head, pairs)}"
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
        f"{ratio:.2f}" if ratio >= 1 else f"**{ratio:.2f}**",
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


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *lines))


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 110, break_long_words=False, break_on_hyphens=False)
