"""The examples at reduced sizes, planned in many ways; widths are not multiples of the tiles."""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import tilegen as tg
from tilegen.frontend.loader import load_program
from tilegen.frontend.program import Program
from tilegen.kernels.kernel import Kernel
from tilegen.runtime.data import random_arguments, relative_error
from tilegen.schedule.plan import Plan
from tilegen.targets.interpret.interpreter import Interpreter

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
BOUND = {"float32": 1e-5, "bfloat16": 1e-2, "float16": 1e-2}


@dataclass(frozen=True, eq=False)
class Case:
    """An example, its sizes, the machine it is planned for, and what is fixed of the plan."""

    example: str
    sizes: dict[str, Any]
    on: str = "cpu:3"
    options: dict[str, Any] = field(default_factory=dict)
    # what an ordinary run does besides interpreting it: "compile", "sanitize" or "compile sanitize"
    quick: str = ""

    def __str__(self) -> str:
        sizes = ",".join(
            f"{k}{v}" for k, v in self.sizes.items() if k in ("M", "S", "stage", "block", "dtype")
        )
        words = [self.on, *self.options] if self.options else [self.on]
        return f"{self.example}[{sizes}] {' '.join(words)}".replace("[]", "")

    @functools.cached_property
    def program(self) -> Program:
        return load_program(str(EXAMPLES / f"{self.example}.py"), {"dtype": "float32", **self.sizes})

    @property
    def dtype(self) -> str:
        return str(self.sizes.get("dtype", "float32"))


MLP = {"H": 200, "I": 104}
ATTENTION = {"B": 2, "S": 37, "H": 72, "heads": 3, "D": 24}
LLAMA_ATTENTION = {"B": 2, "S": 37, "H": 72, "heads": 4, "kv_heads": 2, "D": 16}
LAYER = {"B": 2, "S_max": 45, "H": 72, "heads": 4, "kv_heads": 2, "D": 24, "I": 56}
GPT_LAYER = {"B": 2, "S": 35, "H": 72, "heads": 3, "I": 104}
RESNET = {"HW": 32, "C": 8, "classes": 10}
VGG = {"HW": 32, "C": 8, "hidden": 72, "classes": 10}
MIXED_MLP = {"up": (32, 40, 24), "down": (48, 56, 40)}
MIXED_GATED = {"gate_up": (48, 24, 40), "down": (32, 88, 24)}

CASES = (
    # linear chains: M below, at and far above a tile; clusters, split sums, static lists, bands, super-tiles
    Case("gpt3_mlp", {"M": 1, **MLP}),
    Case("gpt3_mlp", {"M": 1, **MLP}, "h200", {"split_k": {"down": 2}}, quick="compile"),
    Case(
        "gpt3_mlp", {"M": 17, **MLP}, options={"tiles": MIXED_MLP, "policies": {"h": "tile"}}, quick="compile"
    ),
    Case("gpt3_mlp", {"M": 17, **MLP}, "h200", {"cluster": {"up": 2, "down": 2}}),
    Case(
        "gpt3_mlp",
        {"M": 64, **MLP},
        "h200",
        {"tiles": MIXED_MLP, "cluster": {"down": 2}, "policies": {"h": "chunk:2"}},
    ),
    Case(
        "gpt3_mlp",
        {"M": 64, **MLP},
        options={"tiles": MIXED_MLP, "split_k": {"down": 3}, "order": "banded:2"},
    ),
    Case("gpt3_mlp", {"M": 1000, **MLP}, options={"order": "banded:4:2", "scheduling": "lists"}),
    Case(
        "gpt3_mlp",
        {"M": 1000, **MLP},
        "6",
        {"scheduling": "lists", "cluster": {"up": 2}, "order": "op_major:4", "split_k": {"down": 2}},
        quick="compile sanitize",
    ),
    Case("llama_mlp", {"M": 1, **MLP}),
    Case(
        "llama_mlp",
        {"M": 17, **MLP},
        "h200",
        {"cluster": {"gate_up": 2}, "split_k": {"gate_up": 2}},
        quick="compile",
    ),
    Case("llama_mlp", {"M": 64, **MLP}, options={"tiles": MIXED_GATED, "split_k": {"gate_up": 3, "down": 2}}),
    Case("llama_mlp", {"M": 64, **MLP}, "h200", {"tiles": MIXED_GATED, "policies": {"h": "step"}}),
    Case(
        "llama_mlp",
        {"M": 1000, **MLP},
        "5",
        {"tiles": MIXED_GATED, "scheduling": "lists", "order": "banded:5"},
    ),
    Case("llama_mlp", {"M": 1000, **MLP}, options={"order": "op_major:3"}),
    Case("llama_mlp", {"M": 64, **MLP}, "h200", {"scheduling": "lists", "tiles": MIXED_GATED}),
    # attention
    Case("gpt3_attention", ATTENTION),
    Case(
        "gpt3_attention",
        ATTENTION,
        "h200",
        {"tiles": {"qkv": (24, 32, 40), "attn": (16, 8), "out": (40, 24, 16)}},
    ),
    Case(
        "gpt3_attention",
        {**ATTENTION, "B": 1},
        "h200",
        {"cluster": {"out": 2}, "scheduling": "dynamic", "split_k": {"qkv": 2}},
    ),
    Case("llama_attention", LLAMA_ATTENTION),
    Case(
        "llama_attention",
        LLAMA_ATTENTION,
        "h200",
        {"policies": {"qkv": "tile"}, "tiles": {"qkv": (24, 40, 16), "attn": (8, 16)}},
        quick="compile",
    ),
    Case(
        "llama_attention",
        {**LLAMA_ATTENTION, "B": 1, "S": 61},
        "7",
        {"scheduling": "lists", "tiles": {"q_rope": (16, 1)}},
    ),
    # layers
    Case("llama_layer", {**LAYER, "S": 1}, quick="compile"),
    Case(
        "llama_layer",
        {**LAYER, "S": 1},
        "h200",
        {"tiles": {"attn": (1, 16), "k_append": (24,), "qkv": (2, 40, 32)}},
    ),
    Case(
        "llama_layer",
        {**LAYER, "S": 1},
        "h200",
        {"tiles": {"attn": (1, 8, 2)}, "split_kv": {"attn": 3}},
        quick="compile sanitize",
    ),
    Case("llama_layer", {**LAYER, "S": 19}, "3", {"tiles": {"attn": (8, 8)}, "split_kv": {"attn": 2}}),
    Case(
        "llama_layer",
        {**LAYER, "S": 19},
        "h200",
        {"cluster": {"qkv": 2, "out": 2}, "tiles": {"attn": (8, 8)}},
        quick="compile sanitize",
    ),
    Case(
        "llama_layer",
        {**LAYER, "S": 19},
        "4",
        {"scheduling": "lists", "split_k": {"down": 2}, "tiles": {"down": (16, 24, 8)}},
    ),
    Case("gpt_layer", GPT_LAYER),
    Case(
        "gpt_layer",
        GPT_LAYER,
        "h200",
        {"cluster": {"up": 2}, "split_k": {"down": 2}, "tiles": {"n1": (7,), "out": (24, 40, 16)}},
        quick="compile",
    ),
    Case(
        "gpt_layer",
        GPT_LAYER,
        options={"order": "banded:3:3", "tiles": {"qkv": (16, 56, 24), "up": (8, 32, 40), "n2": (5,)}},
    ),
    # convolutions
    Case("resnet38", RESNET),
    Case("resnet38", {**RESNET, "B": 2}, "h200"),
    Case(
        "resnet38",
        {"HW": 96, "C": 6, "stage": 1},
        options={"tiles": {"s1n0a": (1, 3, 5, 4, 3), "s1n0b": (1, 4, 24, 6, 2)}},
    ),
    Case(
        "resnet38",
        {"HW": 96, "C": 6, "stage": 2},
        "h200",
        {"order": "banded:2", "tiles": {"s2n1a": (1, 5, 5, 8, 5)}},
    ),
    Case(
        "resnet38",
        {"HW": 96, "C": 4, "B": 2, "stage": 3},
        "5",
        {"scheduling": "lists", "tiles": {"s3n0b": (2, 2, 3, 8, 4)}},
    ),
    Case(
        "resnet38",
        {"HW": 96, "C": 3, "B": 3, "stage": 4},
        "h200",
        {"cluster": {"s4n0a": 2}, "tiles": {"s4n1b": (2, 1, 2, 10, 7)}},
        quick="compile sanitize",
    ),
    Case("bert_layer", {"B": 2, "S": 9, "H": 24, "heads": 3, "I": 40}),
    Case("vit_layer", {"B": 2, "S": 9, "H": 24, "heads": 3, "I": 40}, "5", {"order": "banded:2"}),
    Case("lora", {"M": 21, "H": 40, "R": 3}, quick="compile sanitize"),
    Case("moe_dense", {"M": 21, "H": 24, "I": 40, "experts": 3}, quick="compile sanitize"),
    Case("unet_block", {"HW": 7, "C": 8, "N": 12, "T": 9, "groups": 4}, quick="compile sanitize"),
    Case("resnet50", RESNET),
    Case(
        "resnet50",
        {"HW": 72, "C": 6, "stage": 2, "B": 2},
        "h200",
        {"order": "banded:2", "tiles": {"s2n1b": (1, 5, 5, 8, 5)}},
    ),
    Case("vgg19", VGG),
    Case("vgg19", {**VGG, "B": 2}, "h200", {"split_k": {"fc2": 2}, "tiles": {"fc2": (2, 24, 16)}}),
    Case(
        "vgg19",
        {"HW": 24, "C": 5, "B": 2, "block": 2},
        options={"tiles": {"conv2_1": (1, 5, 4, 6, 3), "pool2": (1, 2, 3, 4)}},
        quick="compile",
    ),
    Case(
        "vgg19",
        {"HW": 24, "C": 5, "block": 3},
        "h200",
        {"policies": {"*": "tile"}, "tiles": {"conv3_2": (1, 2, 5, 12, 8)}},
    ),
    # storage types
    Case("gpt3_mlp", {"M": 33, **MLP, "dtype": "bfloat16"}, "h200", {"cluster": {"up": 2}}, quick="compile"),
    Case("llama_layer", {**LAYER, "S": 5, "dtype": "bfloat16"}),
    Case("gpt3_attention", {**ATTENTION, "dtype": "float16"}, "h200"),
    Case(
        "llama_mlp",
        {"M": 17, **MLP, "dtype": "float16"},
        options={"split_k": {"gate_up": 2}, "tiles": MIXED_GATED},
        quick="compile",
    ),
    Case("resnet38", {"HW": 32, "C": 8, "stage": 1, "dtype": "float16"}),
    Case("vgg19", {"HW": 16, "C": 5, "block": 1, "dtype": "bfloat16"}, "h200"),
)


@functools.cache
def planned(case: Case) -> tuple[Plan, Any]:
    """Plan and certificate."""
    made = tg.plan(case.program, case.on, target="cpu", **case.options)
    return made, tg.verify(made)


@functools.cache
def given(case: Case) -> tuple[torch.Tensor, ...]:
    """Random arguments; positions stand in the middle of their caches, and cache rows that nobody may use
    hold NaN."""
    arguments = random_arguments(case.program)
    for t, a in zip(case.program.arguments, arguments, strict=True):
        if t.dtype == "int32":
            a.fill_(int(a) // 2)
        elif t.role == "state":
            a[:, new_rows(case).stop :] = float("nan")
    return tuple(arguments)


def new_rows(case: Case) -> slice:
    """Rows of the caches that a run writes."""
    at = (case.sizes["S_max"] - case.sizes["S"]) // 2
    return slice(at, at + case.sizes["S"])


@functools.cache
def expected(case: Case) -> tuple[torch.Tensor, ...]:
    """Outputs, then states, as the reference gives them."""
    result = tg.reference(case.program, *given(case))
    return result if isinstance(result, tuple) else (result,)


def check(case: Case, results: Sequence[torch.Tensor], states: Sequence[torch.Tensor]) -> None:
    """Outputs within the bound of the dtype; states too, and untouched outside the new rows."""
    wanted = expected(case)
    assert len(wanted) == len(results) + len(states)
    for result, reference in zip(results, wanted, strict=False):
        assert relative_error(result, reference) <= BOUND[case.dtype]
    before = [a for t, a in zip(case.program.arguments, given(case), strict=True) if t.role == "state"]
    for state, old, reference in zip(states, before, wanted[len(results) :], strict=True):
        rows = new_rows(case)
        assert relative_error(state[:, rows], reference[:, rows]) <= BOUND[case.dtype]
        assert not torch.equal(state[:, rows], old[:, rows])
        for untouched in (slice(0, rows.start), slice(rows.stop, None)):
            assert torch.equal(state[:, untouched].nan_to_num(7.0), old[:, untouched].nan_to_num(7.0))


def run(case: Case, kernel: Kernel) -> None:
    """Call a kernel and check what it gives; twice, since the second run starts from the counters of the
    first."""
    for _ in range(2):
        arguments = {t.name: a.clone() for t, a in zip(case.program.arguments, given(case), strict=True)}
        results = kernel(*arguments.values())
        check(
            case,
            results if isinstance(results, tuple) else (results,),
            [arguments[name] for name in states_of(case)],
        )


def states_of(case: Case) -> list[str]:
    return [t.name for t in case.program.arguments if t.role == "state"]


def interpreted(case: Case, strategy: str, seed: int = 0) -> Kernel:
    made, certificate = planned(case)
    return Kernel(made, certificate, Interpreter(made, strategy, seed))


def compiled(case: Case) -> Kernel:
    return tg.compile(case.program, "cpu", on=case.on, **case.options)


def execute(
    plan: Plan, program: Path, arguments: Mapping[str, torch.Tensor], workers: int = 4, runs: int = 2
) -> Any:
    """Run a program made by `sanitized` on tensors, several times in a row: the finished process. Its tensors
    lie beside it."""
    folder = program.parent
    for name, a in arguments.items():
        (folder / f"{name}.bin").write_bytes(a.contiguous().view(torch.uint8).numpy().tobytes())
    count = workers if isinstance(plan.scheduling, str) else len(plan.scheduling)
    environment = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1 exitcode=66"}
    return subprocess.run(
        [program, folder, str(count), str(runs)], env=environment, capture_output=True, text=True, timeout=600
    )


def stored(plan: Plan, folder: Path, name: str) -> torch.Tensor:
    """A tensor that a sanitized program has written."""
    t = plan.graph.tensors[name]
    return torch.frombuffer(
        bytearray((folder / f"{name}.bin").read_bytes()), dtype=getattr(torch, t.dtype)
    ).reshape(t.shape)
