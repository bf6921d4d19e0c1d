"""The reference: a program as written, op by op in float32 torch, with no tiles, no fusion and no rounding in
between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tilegen.errors import ArgumentError
from tilegen.frontend.program import PAIRED, Call, Operand, Program, Tensor
from tilegen.ops.base import OpInstance
from tilegen.ops.pointwise import PointwiseAttributes, evaluate, spread

PAIRS = {getattr(torch, dtype) for dtype in PAIRED}


def run(program: Program, arguments: Sequence[torch.Tensor]) -> Any:
    """Outputs as float32, or float64 where that is given (a tuple when there are several); states are not
    changed: the appended caches come last."""
    for t, a in zip(program.arguments, arguments, strict=True):
        if not isinstance(a, torch.Tensor):
            raise ArgumentError(f"{t.name!r}: expected a torch tensor {t.shape}, given {type(a).__name__}")
    values = {
        t.name: _wide(plan_view(t, a)) if t.dtype != "int32" else plan_view(t, a)
        for t, a in zip(program.arguments, arguments, strict=True)
    }
    for call in program.calls:
        values[call.result] = _evaluate(program, call, values)
    states = [t.name for t in program.tensors if t.role == "state"]
    results = [values[name].reshape(program.tensor(name).shape) for name in (*program.outputs, *states)]
    return results[0] if len(results) == 1 else tuple(results)


def _wide(a: torch.Tensor) -> torch.Tensor:
    return a if a.dtype is torch.float64 else a.float()


def plan_view(t: Tensor, a: torch.Tensor) -> torch.Tensor:
    """A tensor in its plan shape; channels_last NCHW tensors become NHWC, and pairs of numbers whole ones of
    16 bits."""
    if tuple(a.shape) != t.shape and a.dim() == 4 and tuple(a.permute(0, 2, 3, 1).shape) == t.shape:
        a = a.permute(0, 2, 3, 1)
    return elements(a).reshape(t.plan_shape)


def elements(a: torch.Tensor) -> torch.Tensor:
    """Of a plan: where numbers come in pairs, whole numbers of 16 bits."""
    return a.view(torch.int16) if a.dtype in PAIRS else a


def view(value: torch.Tensor, operand: Operand) -> torch.Tensor:
    """The columns or the flattening that an operand stands for."""
    if operand.flatten:
        return value.reshape(value.shape[0], -1)
    return value[..., operand.columns[0] : operand.columns[1]] if operand.columns else value


def _evaluate(program: Program, call: Call, values: dict[str, torch.Tensor]) -> torch.Tensor:
    b = OpInstance.of_call(program, call)
    operands = [view(values[o.tensor], o) for o in call.operands]
    if isinstance(call.attributes, PointwiseAttributes):
        named = zip(operands, call.attributes.how, strict=True)
        return evaluate(call.attributes.expression, {f"e{n}": spread(x, h) for n, (x, h) in enumerate(named)})
    # positions are data: the references take them as ints
    given: list[Any] = [int(x[0]) if n == b.position else x for n, x in enumerate(operands)]
    (result,) = b.kind.reference(b, given)
    return result.reshape(b.out)
