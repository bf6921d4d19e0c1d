"""rms_norm and layer_norm over the last dimension: of rows, or of the pixels of images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilegen.frontend.attributes import Attributes
from tilegen.frontend.call import call, number, tensors
from tilegen.frontend.program import Operand
from tilegen.frontend.value import Value, caller
from tilegen.ops.base import Access, Box, OpDef, OpInstance, blocks, ceil_div, need, register, whole
from tilegen.ops.pointwise import shared_form
from tilegen.ops.softmax import row_tiles


@dataclass(frozen=True)
class NormAttributes(Attributes):
    eps: float


@dataclass(frozen=True)
class RmsNormAttributes(NormAttributes):
    """Of rms_norm."""


@dataclass(frozen=True)
class LayerNormAttributes(NormAttributes):
    """Of layer_norm."""


def rms_norm(x: Value, w: Value, *, eps: float = 1e-5, name: str | None = None) -> Value:
    """y = x · w / √(mean(x²) + eps) over the last dimension, in float32.

    x (…, N) and w (N,) of one dtype; y of x's shape and dtype.

    Raises:
        SpecError: w is not (N,), the dtypes differ, or eps is not positive.

    Source: arXiv 1910.07467; torch.nn.functional.rms_norm.
    """
    return _norm("rms_norm", RmsNormAttributes, x, [w], eps, name)


def layer_norm(x: Value, w: Value, bias: Value, *, eps: float = 1e-5, name: str | None = None) -> Value:
    """y = (x - mean(x)) · w / √(var(x) + eps) + bias over the last dimension, in float32.

    x (…, N), w and bias (N,) of one dtype; y of x's shape and dtype.

    Raises:
        SpecError: w or bias is not (N,), the dtypes differ, or eps is not positive.

    Source: arXiv 1607.06450; torch.nn.functional.layer_norm.
    """
    return _norm("layer_norm", LayerNormAttributes, x, [w, bias], eps, name)


def _norm(
    kind: str, attributes: type[NormAttributes], x: Value, vectors: list[Value], eps: float, name: str | None
) -> Value:
    where = caller()
    tensors(kind, where, x=x, **dict(zip(("w", "bias"), vectors)))  # noqa: B905
    check_vectors(kind, x, vectors, where)
    form = "spatial" if shared_form([x]) == "spatial" else "rows"
    operands = [x.operand(form, where), *(v.operand("vector", where) for v in vectors)]
    return call(
        kind,
        name,
        operands,
        x.shape,
        x.dtype,
        form,
        attributes(number(f"{kind}: eps", eps, where, positive=True)),
        where,
    )


def check_vectors(kind: str, x: Value, vectors: Sequence[Value], where: str) -> None:
    """Raise SpecError unless each is a vector of x's columns and of its dtype."""
    for v in vectors:
        need(
            v.shape == (x.shape[-1],),
            f"{kind}: {v.tensor!r} is ({x.shape[-1]},) for x {x.shape}, given {v.shape}",
            where,
        )
        need(
            v.dtype == x.dtype,
            f"{kind}: x is {x.dtype}, {v.tensor!r} is {v.dtype}; expected one dtype",
            where,
        )


class _Norm(OpDef):
    """A tile is tm whole rows, or of images tm lines of one."""

    coords, stem, fusable = ("i",), "rows", True

    def coords_of(self, b: OpInstance) -> tuple[str, ...]:
        return ("b", "p") if of_images(b) else self.coords

    def grid(self, b: OpInstance) -> tuple[Any, ...]:
        if of_images(b):
            return (b.out[0], ceil_div(b.out[1], b.tile[0]))
        return (ceil_div(b.out[0], b.tile[0]),)

    def reads(self, b: OpInstance) -> tuple[Access, ...]:
        n = b.out[-1]
        return (Access(0, self.write(b)), *(Access(1 + v, (whole(n),)) for v in range(len(vectors_of(b)))))

    def write(self, b: OpInstance) -> Box:
        if of_images(b):
            images, lines, pixels, n = b.out
            image, p = b.coords
            return (blocks(image, 1, images), blocks(p, b.tile[0], lines), whole(pixels), whole(n))
        return (blocks(b.coords[0], b.tile[0], b.out[0]), whole(b.out[1]))

    def flops(self, b: OpInstance) -> float:
        return 6.0 * b.tile[0] * math.prod(b.out[2:] if of_images(b) else b.out[1:])

    def tiles(self, b: OpInstance, machine: Any) -> Sequence[tuple[int, ...]]:
        if not of_images(b):
            return row_tiles(b.out[0], machine)
        images, lines, pixels, _ = b.out
        rows = (t[0] for t in row_tiles(images * lines * pixels, machine))
        return list(dict.fromkeys((max(1, min(lines, n // pixels)),) for n in rows))


def of_images(b: OpInstance) -> bool:
    return len(b.out) == 4


def vectors_of(b: OpInstance) -> tuple[Operand, ...]:
    """A norm's weight, and its bias where it has one."""
    return tuple(b.operand(name) for name in ("w", "bias") if b.has(name))


@register
class RmsNorm(_Norm):
    name, operands, attributes = "rms_norm", ("x", "w"), RmsNormAttributes

    def reference(self, b: OpInstance, operands: Sequence[Any]) -> list[Any]:
        a = NormAttributes.of(b)
        x, w = operands[:2]
        return [x * (x.square().mean(-1, keepdim=True) + a.eps).rsqrt() * w]


@register
class LayerNorm(_Norm):
    name, operands, attributes = "layer_norm", ("x", "w", "bias"), LayerNormAttributes

    def reference(self, b: OpInstance, operands: Sequence[Any]) -> list[Any]:
        a = NormAttributes.of(b)
        import torch.nn.functional as F

        x, w, bias = operands[:3]
        return [F.layer_norm(x, x.shape[-1:], w, bias, a.eps)]
