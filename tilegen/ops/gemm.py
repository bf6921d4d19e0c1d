"""linear: y = x wᵀ (+ bias), and matmul: y = op(a) op(b), batched."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tilegen.frontend.attributes import Attributes
from tilegen.frontend.call import call, number, tensors
from tilegen.frontend.dims import dims_of
from tilegen.frontend.program import INT8, PAIRED, Size, numbers_of
from tilegen.frontend.value import OPERATORS, Value, caller
from tilegen.ops.base import (
    Access,
    Box,
    Interval,
    K,
    OpDef,
    OpInstance,
    batch_base,
    blocks,
    ceil_div,
    need,
    register,
    whole,
)
from tilegen.ops.conv2d import ConvAttributes, output_size
from tilegen.ops.extrema import smallest
from tilegen.ops.patches import Patches
from tilegen.ops.pointwise import pointwise


@dataclass(frozen=True)
class LinearAttributes(Attributes):
    """groups: accumulators, 2 for a gated pair. k_range: the columns of x that it sums over, [lo, hi); None
    for all. norm_eps: where an rms_norm was fused into it (tilegen.graph.fuse_norms). stride, padding,
    dilation: of the convolution that it was (tilegen.graph.pixels)."""

    groups: int
    k_range: tuple[Size, Size] | None = None
    norm_eps: float | None = None
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)


@dataclass(frozen=True)
class MatmulAttributes(Attributes):
    """batch products of (m, k) by (k, n); b_batch: batch, or 1 where all share the right operand."""

    batch: Size
    b_batch: Size
    m: Size
    n: Size
    k: Size
    transpose_a: bool
    transpose_b: bool


def linear(
    x: Value,
    w: Value,
    bias: Value | None = None,
    *,
    scale_x: Value | float | None = None,
    scale_w: Value | float | None = None,
    dtype: str | None = None,
    name: str | None = None,
) -> Value:
    """y = x wᵀ · scale_x · scale_w + bias, in torch.nn.functional.linear's layout.

    x (…, K), w (N, K) and bias (N,) of one dtype; y (…, N) of that dtype, summed in float32. Scales are of
    float8_e4m3fn x and w: numbers, or float32 tensors, scale_x of rows (…, 1), scale_w of columns (N,); y and
    bias are of `dtype` then, bfloat16 where none is given. Or w is int8, beside x of any other dtype, which y
    and bias have too: its whole numbers are exact in x's dtype, and scale_w is as above.

    Raises:
        SpecError: an operand is no tensor of this spec, w is not (N, K), the widths or dtypes differ, or bias
            is not (N,); scales or another dtype of numbers of two bytes or four; scale_x beside an int8 w; a
            view of float8_e4m3fn.

    Source: torch.nn.functional.linear, torch._scaled_mm; weight-only int8 of torchao.
    """
    where = caller()
    tensors("linear", where, x=x, w=w)
    need(len(w.shape) == 2, f"linear: w must be (N, K), given {w.shape}", where)
    flat = len(x.shape) == 4 and x.shape[1] * x.shape[2] * x.shape[3] == w.shape[1]
    hint = f"; tg.flatten({x.tensor}) has so many" if flat else ""
    need(
        x.shape[-1] == w.shape[1],
        f"linear: x {x.shape} has {x.shape[-1]} columns, w {w.shape} expects {w.shape[1]}{hint}",
        where,
    )
    need(x.dtype != INT8, f"linear: x {x!r} is int8, which w alone may be", where)
    same = x.dtype == w.dtype or (w.dtype == INT8 and x.dtype not in PAIRED)
    need(same, f"linear: x is {x.dtype}, w is {w.dtype}; expected one dtype", where)
    if x.dtype in PAIRED:
        whole = all(v.columns is None and not v.flattened for v in (x, w))
        need(whole, f"linear: x and w of {x.dtype} are whole tensors, given a view", where)
        results = ("bfloat16", "float16", "float32")
        need(
            dtype in (None, *results), f"linear: dtype is one of {', '.join(results)}, given {dtype!r}", where
        )
    else:
        plain = scale_x is None and (scale_w is None or w.dtype == INT8) and dtype in (None, x.dtype)
        need(
            plain,
            f"linear: scales and a dtype of its own are of float8_e4m3fn, scale_w of int8, too; x is"
            f" {x.dtype}, w {w.dtype}",
            where,
        )
    y = call(
        "linear",
        name,
        [x.operand("rows", where, one_byte=True), w.operand("rows", where, one_byte=True)],
        (*x.shape[:-1], w.shape[0]),
        dtype or ("bfloat16" if x.dtype in PAIRED else x.dtype),
        "rows",
        LinearAttributes(groups=1),
        where,
    )
    return _scaled(y, {"scale_x": scale_x, "scale_w": scale_w}, bias, where)


def _scaled(y: Value, scales: Mapping[str, Any], bias: Value | None, where: str) -> Value:
    """y times the scales, plus bias: nothing where there are none of these."""
    text, operands = "e0", []
    for name, scale in scales.items():
        if isinstance(scale, Value):
            tensors("linear", where, **{name: scale})
            shape = (*y.shape[:-1], 1) if name == "scale_x" else y.shape[-1:]
            fits = scale.shape == shape and scale.dtype == "float32"
            need(fits, f"linear: {name} is a number or float32 {shape}, given {scale!r} {scale.dtype}", where)
            operands.append(scale)
            text += f" * e{len(operands)}"
        elif scale is not None:
            text += f" * {number(f'linear: {name}', scale, where)!r}"
    if bias is not None:
        tensors("linear", where, bias=bias)
        operands.append(bias)
        text += f" + e{len(operands)}"
    return pointwise(text, y, *operands, where=where) if text != "e0" else y


def matmul(
    a: Value, b: Value, *, transpose_a: bool = False, transpose_b: bool = False, name: str | None = None
) -> Value:
    """y[n] = op(a[n]) op(b[n]); op transposes the last two dimensions where asked. As torch.matmul.

    a (…, M, K) or (…, K, M); b (…, K, N) or (…, N, K), with a's leading dimensions or none; y (…, M, N). All
    of one dtype, summed in float32.

    Raises:
        SpecError: an operand has fewer than two dimensions, inner sizes, batch dimensions or dtypes differ,
            or N or K moves.
    """
    where = caller()
    tensors("matmul", where, a=a, b=b)
    need(
        len(a.shape) >= 2 and len(b.shape) >= 2,
        f"matmul: operands have at least two dimensions, given {a.shape} and {b.shape}",
        where,
    )
    m, k = (a.shape[-1], a.shape[-2]) if transpose_a else (a.shape[-2], a.shape[-1])
    kb, n = (b.shape[-1], b.shape[-2]) if transpose_b else (b.shape[-2], b.shape[-1])
    need(k == kb, f"matmul: inner sizes differ, {k} of a {a.shape} and {kb} of b {b.shape}", where)
    need(
        b.shape[:-2] in ((), a.shape[:-2]),
        f"matmul: batch dimensions differ, {a.shape[:-2]} and {b.shape[:-2]}",
        where,
    )
    need(a.dtype == b.dtype, f"matmul: a is {a.dtype}, b is {b.dtype}; expected one dtype", where)
    need(
        not dims_of((k, n)),
        f"matmul: {k} numbers are summed for {n} columns, and a size that moves is among these; expected it"
        " among the rows or the batch",
        where,
    )
    batch: Size = 1
    for size in a.shape[:-2]:
        batch = batch * size
    attributes = MatmulAttributes(
        batch=batch,
        b_batch=1 if not b.shape[:-2] else batch,
        m=m,
        n=n,
        k=k,
        transpose_a=transpose_a,
        transpose_b=transpose_b,
    )
    return call(
        "matmul",
        name,
        [a.operand("rows", where), b.operand("rows", where)],
        (*a.shape[:-2], m, n),
        a.dtype,
        "rows",
        attributes,
        where,
    )


OPERATORS["@"] = matmul


def gemm_tiles(m: Size) -> list[tuple[int, int, int]]:
    """Tile shapes worth trying for an m-row product, the usual one first."""
    rows = m if isinstance(m, int) else 4096
    if rows <= 64:
        return [(64, tn, 64) for tn in (96, 64, 128, 192, 256)]
    if rows <= 512:
        return [(128, tn, 64) for tn in (192, 128, 176, 256, 96, 64)]
    return [(128, 256, 64), (128, 192, 64), (256, 192, 64), (128, 176, 64), (256, 128, 64)]


def of_groups(tiles: Sequence[tuple[int, int, int]], groups: int) -> list[tuple[int, int, int]]:
    """Tiles with as many columns in all groups together, in whole eights."""
    return [(tm, tn // groups // 8 * 8, tk) if groups > 1 else (tm, tn, tk) for tm, tn, tk in tiles]


def k_range(b: OpInstance) -> tuple[Size, Size]:
    """The columns of x that a linear sums over, [lo, hi): all, or a split of them."""
    return LinearAttributes.of(b).k_range or (0, b.shape(1)[1])


def patches(b: OpInstance) -> Patches | None:
    """What a linear that was a convolution multiplies instead of rows of x; None where a row of x is one."""
    if not b.op.pixels or not isinstance(b.attributes, LinearAttributes):
        return None
    seen = seen_by(b)
    return None if (seen.window, seen.stride, seen.padding) == ((1, 1), (1, 1), (0, 0)) else seen


def seen_by(b: OpInstance) -> Patches:
    """What the filter of a convolution sees, or of the linear that it became."""
    a = b.attributes if isinstance(b.attributes, LinearAttributes) else ConvAttributes.of(b)
    x, w = (b.tensors[o.tensor].shape for o in b.op.operands[:2])
    size, window = (x[1], x[2]), (w[1], w[2])
    lines, pixels = map(output_size, size, window, a.stride, a.padding, a.dilation)
    return Patches(x[0], size, b.shape(0)[-1], window, (lines, pixels), a.stride, a.padding, a.dilation)


def groups(b: OpInstance) -> int:
    """Accumulators of an element of the result."""
    return b.attributes.groups if isinstance(b.attributes, LinearAttributes) else 1


def read_beside(b: OpInstance) -> int:
    """Numbers that the epilogue reads for each number of the result, as of a residual; what is the same for
    all rows, or for all columns, is not counted."""
    return sum(how not in ("columns", "rows") for _, how in b.op.epilogue.operands) if b.op.epilogue else 0


def curves(b: OpInstance) -> int:
    """Calls of curved functions, such as gelu, that the epilogue makes for each number of the result."""
    return _curves_in(b.op.epilogue.expression) if b.op.epilogue else 0


@lru_cache(maxsize=256)
def _curves_in(text: str) -> int:
    """Asked for each of the many ways in which a product may be cut."""
    return len(re.findall(r"\b(?:gelu_tanh|gelu_erf|silu|sigmoid|tanh|exp|log|softplus)\(", text))


def normed(b: OpInstance) -> bool:
    """Whether it is a linear that norms the rows of x itself."""
    return isinstance(b.attributes, LinearAttributes) and b.attributes.norm_eps is not None


def numbers_in(pairs: Any) -> Any:
    """The numbers of a row's elements, which are pairs of float8_e4m3fn, each a whole number of 16 bits."""
    import torch

    return pairs.to(torch.int16).contiguous().view(torch.float8_e4m3fn).float()


@register
class Linear(OpDef):
    """y[m, n] = Σ_k x[m, k] w[g·N + n, k], one accumulator per group g; K in chunks of tk, optionally only
    k_range of it.

    Of pixels, where it was a convolution, with its patches (tilegen.ops.patches) for x. With a norm fused in
    (attribute norm_eps; operand 2 is its weight v): y[m, n] = Σ_k x[m, k] v[k] w[g·N +
    n, k] / √(mean_k x[m, k]² + norm_eps).
    """

    name, coords, stem, fusable = "linear", ("i", "j"), "gemm", True
    operands, attributes = ("x", "w", "norm_weight"), LinearAttributes
    width, clusters, mma = 1, True, True

    def grid(self, b: OpInstance) -> tuple[Size, ...]:
        return tuple(ceil_div(n, t) for n, t in zip(b.out, b.tile, strict=False))

    def steps(self, b: OpInstance) -> Any:
        lo, hi = k_range(b)
        return ceil_div(hi - lo, b.tile[2])

    def reads(self, b: OpInstance) -> tuple[Access, ...]:
        a = LinearAttributes.of(b)
        (i, j), (tm, tn, tk) = b.coords, b.tile
        lo, hi = k_range(b)
        chunk = blocks(K, tk, hi - lo, lo)
        n = b.out[1]
        groups = [Access(1, (blocks(j, tn, n, g * n), chunk)) for g in range(a.groups)]
        norm = [Access(2, (whole(b.shape(0)[1]),), "first")] if normed(b) else []
        rows, seen = blocks(i, tm, b.out[0]), patches(b)
        if seen:
            return (Access(0, (seen.seen(rows), whole(seen.channels)), exact=False), *groups)
        return (Access(0, (rows, chunk)), *groups, *norm)

    def write(self, b: OpInstance) -> Box:
        return tuple(blocks(c, t, n) for c, t, n in zip(b.coords, b.tile, b.out, strict=False))

    def accumulators(self, attributes: Attributes) -> tuple[str, ...]:
        return tuple(f"acc{g}" for g in range(LinearAttributes.check(attributes).groups))

    def flops(self, b: OpInstance) -> float:
        a = LinearAttributes.of(b)
        lo, hi = k_range(b)
        return 2.0 * b.tile[0] * b.tile[1] * a.groups * (hi - lo) * numbers_of(b.dtype(0))

    def tiles(self, b: OpInstance, machine: Any) -> Sequence[tuple[int, ...]]:
        a, seen = LinearAttributes.of(b), patches(b)
        found = of_groups(gemm_tiles(b.out[0]), a.groups)
        return [(tm, tn, seen.step) for tm, tn, _ in found] if seen else found

    def reference(self, b: OpInstance, operands: Sequence[Any]) -> list[Any]:
        a = LinearAttributes.of(b)
        lo, hi = k_range(b)
        seen = patches(b)
        if seen:
            return [seen.multiplied(*operands[:2])]
        x, w = operands[0][:, lo:hi], operands[1][:, lo:hi]
        if b.dtype(0) in PAIRED:
            x, w = numbers_in(x), numbers_in(w)
        if normed(b):
            x = x * (x.square().mean(-1, keepdim=True) + a.norm_eps).rsqrt() * operands[2]
        return list((x @ w.T).chunk(a.groups, dim=1))


@register
class Matmul(OpDef):
    """y[b, m, n] = Σ_k a[b, m, k] c[b, k, n]; rows of all batches lie in one row tensor."""

    name, coords, stem, fusable = "matmul", ("b", "i", "j"), "gemm", True
    operands, attributes = ("a", "b"), MatmulAttributes
    width, clusters, mma = 1, True, True

    def grid(self, b: OpInstance) -> tuple[Size, ...]:
        a = MatmulAttributes.of(b)
        return (a.batch, ceil_div(a.m, b.tile[0]), ceil_div(a.n, b.tile[1]))

    def steps(self, b: OpInstance) -> Any:
        a = MatmulAttributes.of(b)
        return ceil_div(a.k, b.tile[2])

    def reads(self, b: OpInstance) -> tuple[Access, ...]:
        a = MatmulAttributes.of(b)
        (n, i, j), (tm, tn, tk) = b.coords, b.tile

        def operand(
            batch: Any, transposed: bool, outer: tuple[Any, int, Size], inner: tuple[Any, int, Size]
        ) -> Box:
            """Rows are `outer`, columns `inner`, or the other way round when transposed; rows start at the
            batch's first."""
            rows, columns = (inner, outer) if transposed else (outer, inner)
            return blocks(*rows, base=batch_base(batch, a.batch, rows[2])), blocks(*columns)

        k = (K, tk, a.k)
        return (
            Access(0, operand(n, a.transpose_a, (i, tm, a.m), k)),
            Access(1, operand(n if a.b_batch == a.batch else 0, a.transpose_b, k, (j, tn, a.n))),
        )

    def write(self, b: OpInstance) -> Box:
        a = MatmulAttributes.of(b)
        n, i, j = b.coords
        return (blocks(i, b.tile[0], a.m, batch_base(n, a.batch, a.m)), blocks(j, b.tile[1], a.n))

    def flops(self, b: OpInstance) -> float:
        a = MatmulAttributes.of(b)
        return 2.0 * b.tile[0] * b.tile[1] * a.k

    def tiles(self, b: OpInstance, machine: Any) -> Sequence[tuple[int, ...]]:
        a = MatmulAttributes.of(b)
        return gemm_tiles(a.m)

    def reference(self, b: OpInstance, operands: Sequence[Any]) -> list[Any]:
        a = MatmulAttributes.of(b)
        left, right = operands[:2]
        left, right = left.reshape(a.batch, -1, left.shape[1]), right.reshape(a.b_batch, -1, right.shape[1])
        left, right = left.mT if a.transpose_a else left, right.mT if a.transpose_b else right
        return [(left @ right).reshape(a.batch * a.m, a.n)]


def split(whole: Interval, size: int, cta_rank: int, cluster: int) -> Interval:
    """The rows or columns of CTA rank c of C: [lo + c·size/C, lo + (c+1)·size/C), clipped
    to the tile's."""
    if cluster == 1:
        return whole
    width = size // cluster
    return Interval(
        smallest(whole.lo + cta_rank * width, whole.hi), smallest(whole.lo + (cta_rank + 1) * width, whole.hi)
    )


def split_box(b: OpInstance, box: Box, cta_rank: int) -> Box:
    """What a CTA finishes of a box in the last dimensions of the result: its part of the rows and of the
    columns, but for one column that goes with all of them."""
    down, across = b.op.cluster_shape.finished
    if down > 1 and len(box) == len(b.out):
        box = (split(box[0], b.tile[0], cta_rank // across, down), *box[1:])
    if across == 1 or (box[-1] == whole(1) and b.out[-1] != 1):
        return box
    assert b.kind.width is not None  # as for every kind that clusters can run
    return (*box[:-1], split(box[-1], b.tile[b.kind.width], cta_rank % across, across))


def cluster_problem(b: OpInstance) -> str:
    """Why the op cannot be run by such clusters, or an empty string."""
    op, kind = b.op, b.kind
    if op.cluster == 1:
        return ""
    if not kind.clusters or kind.width is None:
        return f"only linear, matmul and conv2d tiles can be run by clusters, {op.kind} cannot"
    if normed(b):
        return "a linear that a norm is fused into is run by one CTA"
    shape = op.cluster_shape
    if shape.size != op.cluster:
        return f"a cluster of {op.cluster} is not {op.cluster_split} CTAs"
    down, across = shape.finished
    if down > 1 and len(b.out) != 2:
        return (
            f"a cluster cannot share the rows of a {op.kind} tile, whose result {op.result} has {len(b.out)}"
            " dimensions; expected 2"
        )
    for what, size, ctas in (
        ("rows", op.tile[0], down),
        ("columns", op.tile[kind.width], across),
    ):
        if size % ctas:
            return f"a cluster of {op.cluster} does not share {size} {what} evenly"
    return ""
