"""The tables of models under torch.compile(backend="tilegen"): benchmarks.models, small, gradients, batches
and generate."""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.tables import shown, table
from tilegen.runtime.timing import paired

Row = Mapping[str, Any]
EAGER, INDUCTOR, FLASH, OURS = SIDES = ("eager", "inductor", "inductor-flash", "tilegen")
MODELS = (
    'Models as their packages configure them, under `torch.compile(model, backend="tilegen")` and under'
    " Inductor, in the mode that the command names, else in its default; weights random, bfloat16, 512 tokens"
    " or images of 224 x 224, decoders cut to four layers. Graph: microseconds of a forward in a CUDA"
    " graph, medians, the sides in turns; ratio: Inductor's over tilegen's, round by round; of best: that of"
    " the fastest of the others. Flash: Inductor, where transformers' masks that hide nothing, or what a flag"
    " says, are left out while torch traces, as they are in eager; none of torch's fast attentions takes such"
    " a mask. Calls: of plain calls in a row, where the host may be what takes the time. Error: against the"
    " same model in float32. Built: seconds of the first calls and the capture, cold, several models"
    " compiling side by side. In files without eager Inductor came first and left its caches to tilegen."
)
GENERATED = (
    "Greedy decoding by four layers of Llama 3 8B's sizes with a static cache, bfloat16, weights random: a"
    " prompt of 64 tokens by eager torch, then one token at a time, each side with CUDA graphs of its own"
    ' (mode="reduce-overhead"). Tokens a second, medians, in turns. As eager: the share of tokens that eager'
    " torch gives; after the first other one a sequence is another."
)


GRADIENTS = (
    "Gradients of whole models under the backend, of a loss that is the first result times random numbers;"
    " every region taken that has words. On the CPU target 48 tokens, float32 beside float64; on a GPU 512"
    " tokens, bfloat16 beside float32. Error: of all gradients together, and of the parameter that is"
    " furthest off, in norms."
)
BATCHES = (
    "Models whose batch is marked as one that moves, called with 2, 3, 5 and 4 in turn, on the CPU target,"
    " every region taken that has words, 24 tokens: how many graphs Dynamo compiled for all four, and how far"
    " the worst result is from eager's, in norms."
)
SMALL = (
    "Small models that nothing is tuned for, one forward pass, every region taken that has words: on the CPU"
    " target float32 beside eager's, on a GPU bfloat16 beside float32. Operators: of the model's graphs, in"
    " regions. Error: of the worst result, in norms. Left: what most often was, and why."
)


def of_models(data: Mapping[str, Any]) -> str:
    """A line a model, and how they stand together."""
    found: dict[str, dict[str, Row]] = {}
    for row in data["rows"]:
        found.setdefault(row["model"], {})[row["backend"]] = row
    lines, ratios, of_best, built = [], [], [], []
    for model, by in found.items():
        best = min(
            (row for side, row in by.items() if side != OURS), key=lambda r: statistics.median(r["us"])
        )
        ratios.append(paired(by[INDUCTOR]["us"], by[OURS]["us"]))
        of_best.append(paired(best["us"], by[OURS]["us"]))
        built.append(by[OURS]["seconds"] / by[INDUCTOR]["seconds"])
        lines.append([model, *_each(by, "us", "{:.0f}", SIDES), shown(ratios[-1]), shown(of_best[-1]),
                      *_each(by, "calls", "{:.0f}", (EAGER, INDUCTOR, OURS)),
                      *_each(by, "error", "{:.1e}", (EAGER, INDUCTOR, OURS)), str(by[OURS]["regions"]),
                      *_each(by, "seconds", "{:.0f}", (INDUCTOR, OURS))])  # fmt: skip
    head = ("", "graph: eager", "Inductor", "flash", "tilegen", "ratio", "of best",
            "calls: eager", "Inductor", "tilegen", "error: eager", "Inductor", "tilegen",
            "regions", "built: Inductor", "tilegen")  # fmt: skip
    said = (
        f"{len(lines)} models: {_together(ratios)}; of best: {_together(of_best)}. tilegen takes"
        f" {statistics.geometric_mean(built):.2f} times as long to build."
    )
    absent = "".join(f"\n- {note.splitlines()[0]}" for note in data.get("notes", []))
    left = [f"Not measured:\n{absent}"] if absent else []
    return "\n\n".join([textwrap.fill(said, 110), table(head, lines), *left])


def _together(ratios: Sequence[float]) -> str:
    mean, below = statistics.geometric_mean(ratios), sum(r < 0.98 for r in ratios)
    return f"geometric mean {mean:.2f}, least {min(ratios):.2f}, {below} below 0.98"


def of_gradients(data: Mapping[str, Any]) -> str:
    head = ("", "parameters", "regions", "error: eager", "tilegen", "of one: eager", "tilegen")
    return table(head, [
        [r["model"], str(r["parameters"]), str(r["regions"]),
         *(f"{r[what]:.1e}" for what in ("eager", "error", "eager_of_worst", "of_worst"))]
        for r in data["rows"]
    ])  # fmt: skip


def of_small(data: Mapping[str, Any]) -> str:
    rows = data["rows"]
    right, whole = sum(r["right"] for r in rows), sum(r["regions"] == r["graphs"] for r in rows)
    said = f"{len(rows)} models: {right} right, {whole} with one region for each graph."
    head = ("", "graphs", "regions", "operators", "error: eager", "tilegen", "left")
    lines = [
        [r["model"], *(str(r[what]) for what in ("graphs", "regions", "operators")),
         *(f"{r[what]:.1e}" for what in ("eager", "error")), r["left"] if r["right"] else "**wrong**"]
        for r in rows
    ]  # fmt: skip
    notes = "".join(f"\n- {note}" for note in data["notes"])
    return "\n\n".join([said, table(head, lines), *([f"Not measured:\n{notes}"] if notes else [])])


def of_batches(data: Mapping[str, Any]) -> str:
    head = ("", "graphs: Inductor", "tilegen", "regions", "error: Inductor", "tilegen")
    return table(head, [
        [r["model"], *(str(r[what]) for what in ("graphs_inductor", "graphs", "regions")),
         *(f"{r[what]:.1e}" for what in ("error_inductor", "error"))]
        for r in data["rows"]
    ])  # fmt: skip


def of_generated(data: Mapping[str, Any]) -> str:
    lines = []
    for r in data["rows"]:
        rate, seconds = statistics.median(r["rate"]), f"{r['seconds']:.0f} s"
        lines.append([str(r["batch"]), r["backend"], f"{rate:.0f}", f"{r['alike']:.3f}", seconds])
    return table(("batch", "", "tokens a second", "as eager", "built"), lines)


def _each(by: Mapping[str, Row], what: str, form: str, sides: Sequence[str]) -> list[str]:
    """Of each side; a file of an earlier form, and a model, may not have it."""
    values = [by.get(side, {}).get(what) for side in sides]
    medians = [statistics.median(v) if isinstance(v, list) else v for v in values]
    return ["–" if v is None or math.isnan(v) else form.format(v) for v in medians]
