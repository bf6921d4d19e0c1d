"""What the classes of ops of all CUDA kernels share: their types' names, and the refusal of what they have no form for."""

from __future__ import annotations

from dataclasses import dataclass

from tilegen.codegen.op_text import OpText
from tilegen.errors import PlanError
from tilegen.ops.base import Bound

MMA_DTYPES = ("bfloat16", "float16")
TYPES = {"bfloat16": "tg_bf16", "float16": "tg_f16", "float32": "float", "int32": "int"}


def mma_problem(b: Bound) -> str:
    """Why mma.sync cannot multiply an op's operands, or an empty string."""
    return "" if b.dtype(0) in MMA_DTYPES else f"mma.sync takes bfloat16 and float16 here, {b.op.operands[0].tensor!r} is {b.dtype(0)}"


@dataclass(frozen=True)
class CudaOp(OpText):
    """An op of a plan on a GPU. PlanError where it has no form there."""

    def __post_init__(self) -> None:
        problem = self._problem()
        if problem:
            op = self.bound.op
            raise PlanError(f"{op.name!r}, tile {'x'.join(map(str, op.tile))}, on {self.on}: {problem}", op.where)

    @property
    def on(self) -> str:
        """What an error calls the GPU."""
        return "sm_90a"

    def _problem(self) -> str:
        """Why the op has no form there, or an empty string."""
        raise NotImplementedError

    @property
    def result_type(self) -> str:
        return TYPES[self.bound.result.dtype]

    @property
    def result_name(self) -> str:
        return self.bound.op.result
