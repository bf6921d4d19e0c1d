"""The interpreter gives the reference's numbers in every interleaving, the same bits each time, from nothing
but what tiles list."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
import torch

import tilegen as tg
from tests.mutant_layers import Holding
from tests.mutant_plans import Subject, example, subjects
from tilegen.errors import TargetError
from tilegen.kernels.kernel import Kernel
from tilegen.proof.checker import check
from tilegen.runtime.data import random_arguments, relative_error
from tilegen.targets.interpret.interpreter import STRATEGIES, Interpreter

NAMES = tuple(subjects())
SEEDS = (0, 1, 2)


def run(subject: Subject, library: Interpreter, workers: int = 0) -> list[torch.Tensor]:
    """Outputs, then states; on an SM for each tile where nothing else is said."""
    arguments = [a.clone() for a in subject.arguments]
    result = Kernel(subject.plan, None, library, subject.workers(workers))(*arguments)
    outputs = list(result) if isinstance(result, tuple) else [result]
    return outputs + [
        a for t, a in zip(subject.program.arguments, arguments, strict=True) if t.role == "state"
    ]


def is_right(subject: Subject, results: list[torch.Tensor]) -> bool:
    return all(relative_error(r, e) < 1e-5 for r, e in zip(results, subject.expected, strict=True))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", NAMES)
def test_numbers(name: str, strategy: str) -> None:
    """Right for several seeds and numbers of SMs, and to the last bit the same: which SM runs a tile changes
    nothing."""
    subject, first = subjects()[name], None
    for seed, workers in zip(SEEDS, (1, 2, 7), strict=True):
        results = run(subject, Interpreter(subject.plan, strategy, seed), workers)
        assert is_right(subject, results)
        assert first is None or all(torch.equal(a, b) for a, b in zip(first, results, strict=True))
        first = results


@pytest.mark.parametrize("name", NAMES)
def test_any_tile_may_come_late(name: str) -> None:
    """Each tile in turn stands still until nothing else can go on."""
    subject = subjects()[name]
    for tile in subject.data["tiles"]:
        assert is_right(
            subject, run(subject, Holding(subject.plan, "round-robin", 0, subject.data, tile["rank"]))
        )


class Recorded(Interpreter):
    """Keeps which SM went on, turn by turn."""

    picks: list[int]

    def run(self, *given: Any) -> None:
        self.picks = []
        super().run(*given)

    def _pick(self, ready: list[int], turn: int, chance: random.Random) -> int:
        self.picks.append(super()._pick(ready, turn, chance))
        return self.picks[-1]


def picks(subject: Subject, strategy: str, seed: int) -> list[int]:
    library = Recorded(subject.plan, strategy, seed)
    run(subject, library, 5)
    before = library.picks
    run(subject, library, 5)
    assert library.picks == before  # a second run of the same interpreter is the same interleaving
    return before


def test_a_seed_is_an_interleaving() -> None:
    subject = subjects()["mlp by chunk"]
    for strategy in STRATEGIES:
        assert picks(subject, strategy, 3) == picks(subject, strategy, 3)
    assert len({tuple(picks(subject, "random", seed)) for seed in range(5)}) == 5
    assert len({tuple(picks(subject, strategy, 0)) for strategy in STRATEGIES}) == len(STRATEGIES)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_storage_types(dtype: str) -> None:
    """Sums are float32, and what is stored is rounded."""
    program = example("llama_mlp", M=9, H=12, I=10, dtype=dtype)
    given = random_arguments(program)
    kernel = tg.compile(program, "interpret", on="cpu:3")
    result = kernel(*given)
    assert kernel.target == "interpret"
    assert str(result.dtype) == f"torch.{dtype}"
    assert 0 < relative_error(result, tg.reference(program, *given)) < 1e-2


def test_a_kernel_runs_again() -> None:
    """Counters, clocks and shadows start anew at each call, whatever the arguments."""
    program = example("gpt3_mlp", M=10, H=6, I=7)
    kernel = tg.compile(program, "interpret", on="cpu:3")
    for seed in SEEDS:
        given = random_arguments(program, seed)
        assert relative_error(kernel(*given), tg.reference(program, *given)) < 1e-5


def test_its_source_is_the_expanded_plan() -> None:
    subject = subjects()["clusters"]
    data = json.loads(Interpreter(subject.plan).source)
    assert check(data).ok
    assert data["tiles"] == json.loads(json.dumps(subject.data["tiles"]))
    assert is_right(subject, run(subject, Interpreter(subject.plan, data=data)))


@pytest.mark.parametrize(
    "name, tensor",
    [("mlp by row", "x"), ("mlp by row", "w2"), ("convs", "w1"), ("attention", "x"), ("decode", "norm1")],
)
def test_tiles_know_only_what_they_list(name: str, tensor: str) -> None:
    """A read that the plan leaves out is garbage in the result, even of an input that lies there in
    memory."""
    subject = subjects()[name]
    data = subject.fresh()
    rank, part, at = next(
        (t["rank"], p, r)
        for t in data["tiles"]
        for p in t["ctas"]
        for r in range(len(p["reads"]))
        if p["reads"][r]["tensor"] == tensor
    )
    del part["reads"][at]
    results = run(subject, Interpreter(subject.plan, data=data))
    assert not is_right(subject, results), (rank, at)


def test_unknown_strategy() -> None:
    with pytest.raises(
        TargetError, match="unknown strategy 'fair'; expected one of random, reverse, starve, round-robin"
    ):
        Interpreter(subjects()["mlp by row"].plan, "fair")
