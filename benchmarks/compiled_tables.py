"""The tables of models under torch.compile(backend="tilegen"): benchmarks.models and benchmarks.generate."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks.tables import shown, table
from tilegen.runtime.timing import paired

Row = Mapping[str, Any]
EAGER, INDUCTOR, OURS = "eager", "inductor", "tilegen"
MODELS = (
    'Models as their packages configure them, under `torch.compile(model, backend="tilegen")` and under'
    " Inductor, in the mode that the command names, else in its default; weights random, bfloat16, 512 tokens"
    " or images of 224 x 224, decoders cut to four layers. Graph: microseconds of a forward in a CUDA"
    " graph, medians, the sides in turns; ratio: Inductor's over tilegen's, round by round. Calls: of plain"
    " calls in a row, where the host may be what takes the time. Error: against the same model in float32."
    " Built: seconds of the first calls and the capture, cold, several models compiling side by side (files"
    " without eager: Inductor first, its caches then tilegen's, too)."
)
GENERATED = (
    "Greedy decoding by four layers of Llama 3 8B's sizes with a static cache, bfloat16, weights random: a"
    " prompt of 64 tokens by eager torch, then one token at a time, each side with CUDA graphs of its own"
    ' (mode="reduce-overhead"). Tokens a second, medians, in turns. As eager: the share of tokens that eager'
    " torch gives; after the first other one a sequence is another."
)


def of_models(data: Mapping[str, Any]) -> str:
    """A line a model, and how they stand together."""
    found: dict[str, dict[str, Row]] = {}
    for row in data["rows"]:
        found.setdefault(row["model"], {})[row["backend"]] = row
    lines, ratios, built = [], [], []
    for model, sides in found.items():
        ratio = paired(sides[INDUCTOR]["us"], sides[OURS]["us"])
        ratios.append(ratio)
        built.append(sides[OURS]["seconds"] / sides[INDUCTOR]["seconds"])
        lines.append([model, *_each(sides, "us", "{:.0f}"), shown(ratio), *_each(sides, "calls", "{:.0f}"),
                      *_each(sides, "error", "{:.1e}"), str(sides[OURS]["regions"]),
                      *_each(sides, "seconds", "{:.0f}")[1:]])  # fmt: skip
    head = ("", "graph: eager", "Inductor", "tilegen", "ratio", "calls: eager", "Inductor", "tilegen",
            "error: eager", "Inductor", "tilegen", "regions", "built: Inductor", "tilegen")  # fmt: skip
    said = (
        f"{len(ratios)} models: geometric mean {statistics.geometric_mean(ratios):.2f}, least"
        f" {min(ratios):.2f}, {sum(r < 0.98 for r in ratios)} below 0.98; tilegen takes"
        f" {statistics.geometric_mean(built):.2f} times as long to build."
    )
    absent = "".join(f"\n- {note.splitlines()[0]}" for note in data.get("notes", []))
    return "\n\n".join([said, table(head, lines), *([f"Not measured:\n{absent}"] if absent else [])])


def of_generated(data: Mapping[str, Any]) -> str:
    lines = []
    for r in data["rows"]:
        rate, seconds = statistics.median(r["rate"]), f"{r['seconds']:.0f} s"
        lines.append([str(r["batch"]), r["backend"], f"{rate:.0f}", f"{r['alike']:.3f}", seconds])
    return table(("batch", "", "tokens a second", "as eager", "built"), lines)


def _each(sides: Mapping[str, Row], what: str, form: str) -> list[str]:
    """Of eager and both sides; a file of an earlier form may not have it."""
    values = [sides.get(side, {}).get(what) for side in (EAGER, INDUCTOR, OURS)]
    medians = [statistics.median(v) if isinstance(v, list) else v for v in values]
    return ["–" if v is None or v != v else form.format(v) for v in medians]

