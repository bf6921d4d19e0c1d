"""Right or wrong: one element is enough to be wrong; roundings are not."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import tilegen as tg
from tilegen.bench.accuracy import ROUNDING, Accuracy, accuracy, tolerance, worst_element
from tilegen.bench.baselines import eager
from tilegen.frontend.loader import load_program
from tilegen.frontend.program import Program
from tilegen.runtime.data import random_arguments

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
SIZES = {
    "gpt3_mlp": {"M": 33, "H": 512, "I": 256},
    "gpt3_attention": {"S": 65, "H": 128, "heads": 2, "D": 64},
    "llama_layer": {"S": 3, "S_max": 40, "H": 128, "heads": 4, "kv_heads": 2, "D": 32, "I": 256},
}


def mlp(**sizes: object) -> Program:
    return load_program(str(EXAMPLES / "gpt3_mlp.py"), {"M": 64, "H": 512, "I": 256, **sizes})


def test_one_wrong_element_is_seen_where_the_norm_does_not_see_it() -> None:
    program, r = mlp(), torch.randn(8192, 4096)
    y = r.bfloat16()
    assert accuracy(program, y, r).element < 0.5
    y[4000, 17] += 1.0
    found = accuracy(program, y, r)
    assert found.frobenius < 3e-3 and found.element > 1


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_nan_and_infinity_are_wrong(wrong: float) -> None:
    r = torch.randn(4, 8)
    y = r.clone()
    y[1, 2] = wrong
    assert not worst_element(y, r, 0.1) <= 1


def test_whole_numbers_are_right_or_wrong() -> None:
    @tg.spec
    def best(M=1000, N=64):
        return tg.topk(tg.input("x", (M, N), "float32"), 2)[1]

    r = tg.reference(best(), *random_arguments(best()))
    assert accuracy(best(), r.clone(), r) == Accuracy()
    y = r.clone()
    y[500, 1] += 1
    assert accuracy(best(), y, r) == Accuracy(math.inf, math.inf)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("name", SIZES)
def test_torch_itself_is_right(name: str, dtype: str) -> None:
    """Torch rounds after every op: more than anybody else."""
    program = load_program(str(EXAMPLES / f"{name}.py"), {**SIZES[name], "dtype": dtype})
    arguments = random_arguments(program)
    expected = tg.reference(program, *arguments)
    with torch.no_grad():
        found = accuracy(program, eager(program, arguments)(*arguments), expected)
    assert found.element < 0.5 and found.frobenius < 1e-2


def test_rows_of_another_scale_are_held_to_their_own() -> None:
    """The first rows of a causal attention see few keys and are larger; an all-zero row is held to the
    tensor's scale."""
    r = torch.randn(3, 1000) * torch.tensor([100.0, 1.0, 0.0])[:, None]
    assert worst_element(r * (1 + 2.0**-9), r, 2.0**-8) < 1
    assert worst_element(r + torch.tensor([0.0, 0.0, 0.1])[:, None], r, 2.0**-8) < 1


def test_an_all_zero_reference() -> None:
    zero = torch.zeros(2, 3)
    assert worst_element(zero, zero, 0.1) == 0 and worst_element(zero + 1e-3, zero, 0.1) > 1


def test_tolerance() -> None:
    assert (
        tolerance(mlp()) == 8 * ROUNDING["bfloat16"] * math.sqrt(3)
        and tolerance(mlp(dtype="float16")) == tolerance(mlp()) / 8
    )


def test_the_worse_of_each() -> None:
    assert Accuracy(0.1, 0.2).and_also(Accuracy(0.3, 0.1)) == Accuracy(0.3, 0.2)
    assert math.isnan(Accuracy(0.1, math.nan).and_also(Accuracy()).element)
