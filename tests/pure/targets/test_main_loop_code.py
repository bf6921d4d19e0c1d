"""The machine code of main loops in kernels of several kinds of ops: operands of products stay in uniform
registers, whatever else a tile may be."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tilegen as tg
from benchmarks import families
from benchmarks.workloads import example
from tests.oracles.sass import machine_code
from tilegen.frontend.program import Program
from tilegen.targets.sm90.emit import generate

# what a step pays for before its products where lanes may be apart; of attention's shuffles none is from one
# lane to all
PARTED = r"(R2UR|SHFL\.IDX|BRA\.DIV|WARPSYNC)"


PROGRAMS = {
    "two linears, results from registers": example("gpt3_mlp", M=43, H=2048, I=4096),
    "two linears, results by TMA": example("gpt3_mlp", M=1475, H=2048, I=4096),
    "swapped tiles of a gated block": example("llama_mlp", M=435, H=4096, I=14336),
    "a layer that decodes": example("llama_layer", B=4, S=1, S_max=577),
    "a layer that decodes, of columns that are no power of two": example(
        "llama_layer", B=4, S=1, S_max=577, H=5120, heads=40, kv_heads=8, I=13824
    ),
    "a layer that appends many rows": example("llama_layer", S=150, S_max=700),
    "a layer with biases": families.bert_layer(B=1, S=99),
    "a product added to another": families.lora(M=278),
    "convolutions": example("resnet38", stage=2),
}


def loops_of(text: str, folder: Path) -> list[tuple[str, ...]]:
    """Of products; all stand in one."""
    loops = list(machine_code(text, folder).innermost(r"HGMMA\."))
    assert all(len(loop) > 1 for loop in loops)
    return loops


def text_of(program: Program) -> str:
    weights = frozenset(t.name for t in program.arguments if t.role == "weight")
    return generate(tg.plan(program, "h200", target="sm_90a"), weights).text


@pytest.mark.parametrize("name", PROGRAMS)
def test_steps_do_not_fetch_their_stage_from_a_lane(name: str, tmp_path: Path) -> None:
    program = PROGRAMS[name]
    loops = loops_of(text_of(program), tmp_path)
    assert len(loops) >= len({call.kind for call in program.calls} & {"linear", "conv2d", "attention"}) > 0
    assert [text for loop in loops for text in loop if re.match(PARTED, text)] == []


@pytest.mark.parametrize(
    "old, new",
    [
        ("    __syncwarp();\n  }\n}\n", "  }\n}\n"),
        (
            "  tg_await(smem + TG_STORED_SEEN_AT, stored ^ 1);\n"
            "  __syncwarp();\n  if (thread % 32 == 0) tg_arrive",
            "  if (thread % 32 == 0) tg_await(smem + TG_STORED_SEEN_AT, stored ^ 1), tg_arrive",
        ),
    ],
    ids=["warps stay apart at the end of a tile", "one lane waits for the warp that posts"],
)
def test_what_the_loops_stand_on_is_seen(old: str, new: str, tmp_path: Path) -> None:
    text = text_of(PROGRAMS["two linears, results from registers"])
    assert text.count(old) == 1
    loops = loops_of(text.replace(old, new), tmp_path)
    assert any(re.match(PARTED, text) for loop in loops for text in loop)
