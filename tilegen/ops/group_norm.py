"""group_norm of channels-last images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilegen.frontend.attributes import Attributes
from tilegen.frontend.call import call, number, tensors
from tilegen.frontend.value import Value, caller
from tilegen.ops.base import Access, Box, OpDef, OpInstance, blocks, ceil_div, need, register, whole
from tilegen.ops.norm import check_vectors


@dataclass(frozen=True)
class GroupNormAttributes(Attributes):
    """groups: of neighbouring channels."""

    groups: int
    eps: float


def group_norm(
    x: Value, groups: int, w: Value, bias: Value, *, eps: float = 1e-5, name: str | None = None
) -> Value:
    """y = (x - mean) · w / √(var + eps) + bias, mean and var over the pixels of an image and the channels of
    a group, in float32.

    x (B, H, W, C), w and bias (C,) of one dtype; y of x's shape and dtype. groups: a divisor of C.

    Raises:
        SpecError: x has not four dimensions, groups does not divide C, w or bias is not (C,), the dtypes
            differ, or eps is not positive.

    Source: arXiv 1803.08494; torch.nn.functional.group_norm.
    """
    where = caller()
    tensors("group_norm", where, x=x, w=w, bias=bias)
    need(len(x.shape) == 4, f"group_norm: x is (B, H, W, C), given {x.shape}", where)
    channels = x.shape[3]
    need(
        isinstance(groups, int) and not isinstance(groups, bool) and groups > 0 and channels % groups == 0,
        f"group_norm: groups divide the {channels} channels of {x.tensor!r}, given {groups!r}",
        where,
    )
    check_vectors("group_norm", x, (w, bias), where)
    operands = [x.operand("spatial", where), w.operand("vector", where), bias.operand("vector", where)]
    attributes = GroupNormAttributes(groups, number("group_norm: eps", eps, where, positive=True))
    return call("group_norm", name, operands, x.shape, x.dtype, "spatial", attributes, where)


def channels_of(b: OpInstance) -> int:
    """Of a group."""
    return int(b.out[3]) // GroupNormAttributes.of(b).groups


@register
class GroupNorm(OpDef):
    """A tile is tg groups of an image."""

    name, coords, stem, fusable = "group_norm", ("b", "c"), "pool", True
    operands, attributes = ("x", "w", "bias"), GroupNormAttributes

    def grid(self, b: OpInstance) -> tuple[Any, ...]:
        return (b.out[0], ceil_div(GroupNormAttributes.of(b).groups, b.tile[0]))

    def reads(self, b: OpInstance) -> tuple[Access, ...]:
        box = self.write(b)
        return (Access(0, box), Access(1, box[-1:]), Access(2, box[-1:]))

    def write(self, b: OpInstance) -> Box:
        image, group = b.coords
        images, h, w, c = b.out
        return (blocks(image, 1, images), whole(h), whole(w), blocks(group, b.tile[0] * channels_of(b), c))

    def flops(self, b: OpInstance) -> float:
        _, h, w, _ = b.out
        return 8.0 * h * w * b.tile[0] * channels_of(b)

    def tiles(self, b: OpInstance, machine: Any) -> Sequence[tuple[int, ...]]:
        return [(1,)]

    def reference(self, b: OpInstance, operands: Sequence[Any]) -> list[Any]:
        a = GroupNormAttributes.of(b)
        import torch

        x, w, bias = operands[:3]
        # torch.nn.functional's refuses groups of one number
        return [torch.group_norm(x.permute(0, 3, 1, 2), a.groups, w, bias, a.eps).permute(0, 2, 3, 1)]
