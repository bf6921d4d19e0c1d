"""rotary is what models do with tables of angles: on the CPU, in the plan, in the text of a GPU's kernel."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilegen as tg
from tests.emulated.kernels import emulated, replaced
from tests.gpu.gemms import Case
from tests.gpu.ops import by_tables
from tilegen.runtime.data import random_arguments


@tg.spec
def turned(
    B=2, S=37, heads=3, D=32, R=0, interleaved=False, batched=False, views=False, dtype="bfloat16",
    of_tables="bfloat16",
):  # fmt: skip
    x = tg.input("x", (B, S, heads * D), dtype)
    shape = (*((B, S) if batched else (1, S) if views else (S,)), R or D)
    cos, sin = tg.input("cos", shape, of_tables), tg.input("sin", shape, of_tables)
    n = tg.linear(x, tg.weight("w", (2 * heads * D, heads * D), dtype), name="n")
    q = n.chunk(2)[1] if views else tg.linear(x, tg.weight("v", (heads * D, heads * D), dtype), name="q")
    y = tg.rotary(q, cos, sin, heads=heads, interleaved=interleaved, name="y")
    return y, n if not views else tg.relu(n, name="r")


def in_torch(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, heads: int, interleaved: bool
) -> torch.Tensor:
    """As apply_rotary_pos_emb of transformers' modeling_gpt_neox has it; interleaved: of modeling_gptj."""
    q = x.unflatten(-1, (heads, -1)).transpose(1, 2)
    q, rest = q[..., : cos.shape[-1]], q[..., cos.shape[-1] :]
    half = q.shape[-1] // 2
    other = torch.cat((-q[..., half:], q[..., :half]), dim=-1)
    if interleaved:
        other = torch.stack((-q[..., 1::2], q[..., ::2]), dim=-1).flatten(-2)
    cos, sin = (t.expand(x.shape[0], -1, -1).unsqueeze(1) for t in (cos, sin))
    return torch.cat((q * cos + other * sin, rest), dim=-1).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("target", ["cpu", "interpret", "cuda-emulated"])
@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"batched": True, "S": 5},
        {"views": True, "B": 3, "heads": 2, "D": 64},
        {"of_tables": "float32"},
        {"of_tables": "float32", "B": 1, "S": 17, "heads": 5, "D": 24},
        {"R": 16, "S": 9},
        {"R": 20, "D": 80, "S": 7, "views": True},
        {"R": 6, "S": 5, "of_tables": "float32", "batched": True},
        {"interleaved": True, "S": 9},
        {"interleaved": True, "R": 24, "S": 5, "of_tables": "float32", "views": True},
    ],
    ids=str,
)
def test_it_turns_as_models_do(target: str, sizes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEGEN_POISON", "1")
    program = turned(**sizes)
    kernel = tg.compile(program, target)
    arguments = dict(zip((t.name for t in program.arguments), random_arguments(program, 3), strict=True))
    y = kernel(**arguments)[0].float()
    held = {name: a.float() for name, a in arguments.items()}
    weight = held["w"].chunk(2)[1] if "v" not in held else held["v"]
    how = dict(program.sizes)
    turning = how["heads"], how["interleaved"]
    expected = in_torch(held["x"] @ weight.T, held["cos"], held["sin"], *turning)
    assert (y - expected).norm() <= 0.01 * expected.norm()


@tg.spec
def by_made_tables(S=17, heads=3, D=32):
    x, shift = tg.input("x", (1, S, heads * D)), tg.weight("shift", (D,))
    cos, sin = (tg.add(tg.input(f"{n}_0", (S, D)), shift, name=n) for n in ("cos", "sin"))
    return tg.rotary(x, cos, sin, heads=heads, name="y")


READ, KEPT = "return tg_get8(p + d);", "return tg_get8_constant(p + d);"
MADE = Case("tables that ops make", by_made_tables, {})


@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
def test_l1_keeps_tables_that_no_op_writes(target: str) -> None:
    given = Case("tables that are given", by_tables, {"B": 1})
    assert emulated(given, range(1), replaced(KEPT, KEPT), target=target) == ""
    assert emulated(MADE, range(1), replaced(READ, READ), target=target) == ""


def test_old_angles_of_an_op_are_seen() -> None:
    assert emulated(MADE, range(4), replaced(READ, KEPT)) != ""
