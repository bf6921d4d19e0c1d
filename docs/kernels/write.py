"""Write the kernels of this folder anew: `python -m docs.kernels.write`. A test holds them to what is
generated."""

from __future__ import annotations

from pathlib import Path

import tilegen as tg
from tilegen.frontend.loader import load_program
from tilegen.targets.base import known

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parents[1] / "examples"
KERNELS = {"gpt3_mlp.sm_90a.cu": ("gpt3_mlp", {"M": 512}, "h200")}  # file -> example, sizes, machine


def text(example: str, sizes: dict[str, int], machine: str) -> str:
    """The planner's own choice, not the tuned one: the plan that anybody gets anywhere."""
    plan = tg.plan(
        load_program(str(EXAMPLES / f"{example}.py"), sizes), machine, tg.Options.of(order="op_major:4")
    )
    return known()[plan.target].emit(plan).text


if __name__ == "__main__":
    for name, made in KERNELS.items():
        (HERE / name).write_text(text(*made))
