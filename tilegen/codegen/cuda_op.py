"""What the ops of all CUDA kernels share: their types' names, and the refusal of what they have no form
for."""

from __future__ import annotations

from tilegen.errors import PlanError
from tilegen.ops.base import OpInstance

MMA_DTYPES = ("bfloat16", "float16")
TYPES = {
    "bfloat16": "tg_bf16",
    "float16": "tg_f16",
    "float32": "float",
    "int32": "int",
    "float8_e4m3fn": "unsigned short",  # a pair
    "int8": "signed char",
}


def refuse(b: OpInstance, on: str, problem: str) -> None:
    """PlanError where there is a problem with an op's form on a GPU, which errors call `on`."""
    if problem:
        tile = "x".join(map(str, b.op.tile))
        raise PlanError(f"{b.op.name!r}, tile {tile}, on {on}: {problem}", b.op.where)


def mma_problem(b: OpInstance) -> str:
    """Why mma.sync cannot multiply an op's operands, or an empty string."""
    if b.dtype(0) in MMA_DTYPES:
        return ""
    return f"mma.sync takes bfloat16 and float16 here, {b.op.operands[0].tensor!r} is {b.dtype(0)}"
