"""The plans that are spoiled: small enough for the element-wise oracle, and of every shape."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch

import tilegen as tg
from tilegen.frontend.loader import load_program
from tilegen.frontend.program import Program
from tilegen.runtime.data import random_arguments
from tilegen.schedule.expand import expanded
from tilegen.schedule.plan import Plan

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
Data = dict[str, Any]


@tg.spec
def convs():
    """Two 3x3 convolutions with their halos, the second with stride 2."""
    x = tg.input("x", (1, 6, 6, 2), "float32")
    w1, w2 = (tg.weight(name, (3, 3, 3, c), "float32") for name, c in (("w1", 2), ("w2", 3)))
    h = tg.relu(tg.conv2d(x, w1, padding=1, name="one"))
    return tg.conv2d(h, w2, stride=2, padding=1, name="two")


@dataclass(frozen=True, eq=False)
class Subject:
    """A program, small enough for the element-wise oracle, and how it is planned."""

    name: str
    program: Program
    on: str
    options: dict[str, Any]

    @cached_property
    def plan(self) -> Plan:
        return tg.plan(self.program, self.on, target="cpu", **self.options)

    @cached_property
    def data(self) -> Data:
        return expanded(self.plan)

    @cached_property
    def blob(self) -> bytes:
        return pickle.dumps(
            {
                "tiles": self.data["tiles"],
                "semaphores": self.data["semaphores"],
                "scheduling": self.data["scheduling"],
            }
        )

    def fresh(self) -> Data:
        """A copy of which everything that a mutant changes may be changed."""
        return {**self.data, **pickle.loads(self.blob)}

    def workers(self, wanted: int = 0) -> int:
        """How many SMs: as many as wanted, or one for each tile; static lists know themselves how many."""
        scheduling = self.plan.scheduling
        return len(scheduling) if not isinstance(scheduling, str) else wanted or len(self.data["tiles"])

    @cached_property
    def arguments(self) -> list[torch.Tensor]:
        return random_arguments(self.program)

    @cached_property
    def expected(self) -> list[torch.Tensor]:
        result = tg.reference(self.program, *self.arguments)
        return list(result) if isinstance(result, tuple) else [result]


def example(name: str, **sizes: int) -> Program:
    return load_program(str(EXAMPLES / f"{name}.py"), {"dtype": "float32", **sizes})


@tg.spec
def cached(F="float32"):
    """One new token's queries over caches that it is appended to."""
    x, w, at = tg.input("x", (1, 1, 3), F), tg.weight("w", (4, 3), F), tg.input("pos", (1,), "int32")
    keys = tg.append(tg.state("cache", (1, 6, 1, 2), F), tg.input("token", (1, 1, 2), F), at=at, name="grown")
    return tg.attention(tg.linear(x, w, name="q"), keys, keys, heads=2, kv_heads=1, at=at, name="attn")


@cache
def subjects() -> dict[str, Subject]:
    """Small plans of every shape: policies, split sum, cluster, halo, attention, append, static lists,
    bands."""
    mlp, small = example("gpt3_mlp", M=10, H=6, I=7), example("gpt3_mlp", M=6, H=5, I=4)
    tiles = {"up": (4, 3, 4), "down": (3, 2, 2)}
    tiny = {"up": (3, 2, 5), "down": (4, 3, 2)}
    heads = {"H": 4, "heads": 2, "kv_heads": 1, "D": 2}
    phase, tile = {"order": "op_major"}, {"policies": {"h": "tile"}}
    cluster = {
        "tiles": {"up": (4, 4, 3), "down": (5, 4, 2)},
        "cluster": {"up": 2, "down": 2},
        "policies": {"h": "row"},
    }
    conv = {"tiles": {"one": (1, 2, 3, 2, 2), "two": (1, 1, 2, 2, 2)}, "policies": {"*": "tile"}}
    attn = {"qkv": (2, 3, 4), "attn": (2, 2, 1), "out": (3, 2, 4), "q_rope": (3, 1), "k_rope": (3, 1)}
    layer = {"qkv": (1, 3, 2), "attn": (1, 2, 1), "gate_up": (1, 2, 2), "down": (1, 2, 2), "out": (1, 2, 2)}
    made = (
        Subject("mlp by row", small, "cpu:3", {"tiles": tiny, "policies": {"h": "row"}, **phase}),
        Subject("mlp by tile", small, "cpu:3", {"tiles": tiny, **tile, **phase}),
        Subject("mlp by chunk", mlp, "cpu:3", {"tiles": tiles, "policies": {"h": "chunk:2"}, **phase}),
        Subject(
            "mlp in bands", mlp, "cpu:3", {"tiles": tiles, "policies": {"h": "row"}, "order": "banded:2"}
        ),
        Subject(
            "mlp static",
            mlp,
            "cpu:3",
            {"tiles": tiles, "policies": {"h": "class"}, "scheduling": "lists", **phase},
        ),
        Subject("split sum", mlp, "cpu:3", {"tiles": tiles, "split_k": {"down": 2}, **tile, **phase}),
        Subject("clusters", mlp, "6", cluster),
        Subject("convs", convs(), "cpu:3", conv),
        Subject(
            "attention",
            example("llama_attention", B=1, S=6, **heads),
            "cpu:3",
            {"tiles": attn, "policies": {"*": "tile"}},
        ),
        Subject(
            "shared keys",
            cached(),
            "cpu:3",
            {"tiles": {"q": (1, 4, 2), "attn": (1, 2, 2)}, "split_kv": {"attn": 2}, **phase},
        ),
        Subject(
            "decode",
            example("llama_layer", B=1, S=1, S_max=4, I=3, **heads),
            "cpu:3",
            {"tiles": layer, **phase},
        ),
    )
    return {s.name: s for s in made}


SMALLEST = ("mlp by row", "mlp by tile")
