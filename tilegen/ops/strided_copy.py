"""Elements in another order, in a tensor of their own: where a map of an operand cannot say a view, it is
copied."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy as sp

from tilegen.errors import SpecError
from tilegen.frontend.attributes import Attributes
from tilegen.frontend.call import call, tensors
from tilegen.frontend.inputs import check_shape
from tilegen.frontend.program import ONE_BYTE, Operand, Size
from tilegen.frontend.value import OPERATORS, Value, caller, is_size
from tilegen.ops.base import Access, Box, Interval, OpDef, OpInstance, blocks, ceil_div, need, register, whole
from tilegen.ops.spatial import spatial_tiles

MOST_ELEMENTS = 1 << 15  # of a tile that is worth trying


@dataclass(frozen=True)
class StridedCopyAttributes(Attributes):
    """The elements of the result in row-major order of `sizes`: where each lies in x, counted as x lies in
    memory. Neighbours that one stride walks are one dimension. The first size alone may move."""

    sizes: tuple[Size, ...]
    strides: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Piece:
    """`size` places of a tensor, each `stride` elements behind the one before."""

    size: Size
    stride: Size

    def cut(self, outer: Size) -> tuple[Piece, Piece]:
        """As (outer, size/outer)."""
        inner = _number(self.size / sp.sympify(outer))
        return Piece(outer, _number(self.stride * inner)), Piece(inner, self.stride)


def _number(n: Size) -> Size:
    """An int where it is one."""
    n = sp.sympify(n)
    return int(n) if n.is_Integer else n


def pieces_of(x: Value) -> tuple[tuple[Piece, ...], int]:
    """Each dimension of a value as its tensor lies in memory, and where the first element lies."""
    pitch = x.shape[-1] if x.flattened else x.builder.tensors[x.tensor].shape[-1]
    pieces, stride = [Piece(x.shape[-1], 1)], pitch
    for size in reversed(x.shape[:-1]):
        pieces.insert(0, Piece(size, stride))
        stride = stride * size
    return tuple(pieces), x.columns[0] if x.columns else 0


def merged(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """The same elements in the same order by as few pieces as it takes."""
    found: list[Piece] = []
    for p in pieces:
        if found and found[-1].stride == p.stride * p.size:
            found[-1] = Piece(_number(found[-1].size * p.size), p.stride)
        elif p.size != 1:
            found.append(p)
    return tuple(found) or (Piece(1, 1),)


def strided_copy(
    what: str,
    x: Value,
    pieces: Sequence[Piece],
    offset: Size,
    shape: Sequence[Size],
    name: str | None = None,
    where: str = "",
) -> Value:
    """A tensor of this shape whose elements, in order, are those of x's tensor that the pieces walk.

    Raises:
        SpecError: it has one dimension, or more than four; x holds whole numbers; or a size moves that is not
            the outermost.
    """
    where = where or caller()
    given = [_number(n) for n in shape]
    shape = check_shape(what, given, where, range(len(given)) if 0 in x.shape else ())
    need(
        len(shape) > 1,
        f"{what}: {x!r} gives one dimension, {shape}; expected two at least, such as x[:, 0:1]",
        where,
    )
    copied = x.dtype != "int32" and x.dtype not in ONE_BYTE
    need(copied, f"{what}: {x.tensor!r} is {x.dtype}; expected numbers of two bytes or four", where)
    pieces = merged(pieces)
    frozen = (shape[-1], offset, *(p.stride for p in pieces), *(p.size for p in pieces[1:]))
    need(
        all(isinstance(n, int) for n in frozen),
        f"{what}: {x!r} as {shape}: a size that moves is the first, and stays in front",
        where,
    )
    sizes, strides = tuple(p.size for p in pieces), tuple(p.stride for p in pieces)
    attributes = StridedCopyAttributes(sizes, strides, offset)
    form = "rows" if len(shape) < 4 else ""
    return call("strided_copy", name, [Operand(x.tensor)], shape, x.dtype, form, attributes, where)


def permute(x: Value, dims: Sequence[int], *, name: str | None = None) -> Value:
    """y[i_dims[0], i_dims[1], …] = x[i_0, i_1, …], as torch.permute(x, dims), in memory of its own.

    x of two to four dimensions; y of its dtype. dims: each dimension of x once, in y's order.

    Raises:
        SpecError: dims are no order of x's dimensions, or a size that moves would not stay in front.
    """
    where = caller()
    tensors("permute", where, x=x)
    rank = len(x.shape)
    listed = isinstance(dims, (list, tuple)) and all(_is_dim(d, rank) for d in dims)
    need(
        listed and sorted(d % rank for d in dims) == list(range(rank)),
        f"permute: dims are the {rank} dimensions of {x!r} in any order, given {dims!r}",
        where,
    )
    order = [d % rank for d in dims]
    if order == list(range(rank)):
        return x
    pieces, offset = pieces_of(x)
    shape = [x.shape[d] for d in order]
    return strided_copy("permute", x, [pieces[d] for d in order], offset, shape, name, where)


def transpose(x: Value, a: int, b: int, *, name: str | None = None) -> Value:
    """y = x with its dimensions a and b swapped, as torch.transpose(x, a, b), in memory of its own.

    x of two to four dimensions; y of its dtype.

    Raises:
        SpecError: a or b is no dimension of x, or a size that moves would not stay in front.
    """
    where = caller()
    tensors("transpose", where, x=x)
    rank = len(x.shape)
    need(
        _is_dim(a, rank) and _is_dim(b, rank),
        f"transpose: a and b are two of the {rank} dimensions of {x!r}, given {a!r} and {b!r}",
        where,
    )
    order = list(range(rank))
    order[a], order[b] = order[b], order[a]
    return permute(x, order, name=name)


def reshape(x: Value, shape: Sequence[Size], *, name: str | None = None) -> Value:
    """y.flat[n] = x.flat[n], as torch.reshape(x, shape), in memory of its own.

    x of any dimensions; y of two to four, and of x's dtype. shape: sizes, of which one may be -1.

    Raises:
        SpecError: shape is no tuple of sizes, or has not as many elements as x.
    """
    where = caller()
    tensors("reshape", where, x=x)
    listed = isinstance(shape, (list, tuple)) and all(is_size(n) for n in shape)
    need(listed, f"reshape: a shape is a tuple of sizes, given {shape!r}", where)
    count, known = math.prod(x.shape), math.prod(n for n in shape if n != -1)
    rest = count / sp.sympify(known) if known != 0 else sp.Integer(1) if count == 0 else sp.nan
    need(
        list(shape).count(-1) < 2
        and (rest == 1 or (-1 in shape and rest.is_integer is True))
        and not (known == 0 and -1 in shape),
        f"reshape: {x!r} has {count} elements, given {tuple(shape)}",
        where,
    )
    sizes = tuple(_number(rest) if n == -1 else n for n in shape)
    if sizes == x.shape:
        return x
    pieces, offset = pieces_of(x)
    return strided_copy("reshape", x, pieces, offset, sizes, name, where)


def narrow(x: Value, dim: int, start: int, length: int, *, name: str | None = None) -> Value:
    """y = x[…, start : start + length, …] of a dimension, as torch.narrow(x, dim, start, length).

    x of two to four dimensions; y of its dtype: a view where they are columns, else in memory of its own.

    Raises:
        SpecError: dim is no dimension of x, or start and length are not inside it.
    """
    where = caller()
    tensors("narrow", where, x=x)
    rank = len(x.shape)
    need(_is_dim(dim, rank), f"narrow: dim is one of the {rank} dimensions of {x!r}, given {dim!r}", where)
    size = x.shape[dim]
    inside = all(type(n) is int for n in (start, length, size)) and 0 <= start < start + length <= size
    need(
        inside,
        f"narrow: start and length are inside the {size} places of dimension {dim} of {x!r}, given"
        f" {start!r} and {length!r}",
        where,
    )
    taken = [slice(None)] * rank
    taken[dim] = slice(start, start + length)
    return sliced(x, taken, name, where)


def sliced(x: Value, key: Sequence[slice | int], name: str | None = None, where: str = "") -> Value:
    """x[key], a slice or a place for each of its dimensions: x itself, a view of columns, or a copy.

    Raises:
        SpecError: a slice is empty or goes backwards, a place is outside, or either is of a size that moves.
    """
    where = where or caller()
    pieces, offset = pieces_of(x)
    kept: list[Piece] = []
    taken = []
    for d, (k, p) in enumerate(zip(key, pieces, strict=True)):
        if k == slice(None):
            kept.append(p)
            taken.append(slice(0, p.size, 1))
            continue
        if not isinstance(p.size, int):
            raise SpecError(f"{x!r}: dimension {d} moves, and is taken whole, given {_told(k)}", where)
        first, end, step = (k, k + 1, 1) if isinstance(k, int) else k.indices(p.size)
        first, end = (first + p.size, end + p.size) if isinstance(k, int) and k < 0 else (first, end)
        if step < 1 or not 0 <= first < end <= p.size:
            raise SpecError(f"{x!r}: {_told(k)} is none of the {p.size} places of dimension {d}", where)
        offset = offset + first * p.stride
        taken.append(slice(first, end, step))
        if not isinstance(k, int):
            kept.append(Piece(-(-(end - first) // step), p.stride * step))
    *lines, columns = taken
    all_lines = all(c == slice(0, n, 1) for c, n in zip(lines, x.shape, strict=False))
    if len(kept) == len(pieces) and all_lines and columns.step == 1 and not x.flattened:
        widths = (columns.start, columns.stop - columns.start, x.shape[-1] - columns.stop)
        return x.split([n for n in widths if n])[1 if columns.start else 0]
    return strided_copy("slice", x, kept, offset, [p.size for p in kept], name, where)


def _told(key: slice | int) -> str:
    if isinstance(key, int):
        return str(key)
    ends = ["" if n is None else str(n) for n in (key.start, key.stop, key.step)]
    return ":".join(ends if ends[2] else ends[:2])


def _is_dim(d: Any, rank: int) -> bool:
    return type(d) is int and -rank <= d < rank


OPERATORS.update({"permute": permute, "transpose": transpose, "reshape": reshape, "[]": sliced})


def _floor(a: Any, b: int) -> Any:
    return ceil_div(a - b + 1, b)


@register
class StridedCopy(OpDef):
    """Tile tm rows x tn columns, or tb images x th rows x tw columns x tc channels, of y. It reads all rows
    (images) of x between those of the first and the last of the outermost places that its rows (images) are
    made of: of a batch those of its own sequences."""

    name, coords, stem, fusable = "strided_copy", ("i", "j"), "rows", True
    operands, attributes, width, picked = ("x",), StridedCopyAttributes, -1, ("x",)

    def coords_of(self, b: OpInstance) -> tuple[str, ...]:
        return ("i", "j") if len(b.out) == 2 else ("b", "p", "q", "c")

    def grid(self, b: OpInstance) -> tuple[Any, ...]:
        return tuple(ceil_div(n, t) for n, t in zip(b.out, b.tile, strict=True))

    def reads(self, b: OpInstance) -> tuple[Access, ...]:
        a = StridedCopyAttributes.of(b)
        lines, row, inner = self.write(b)[0], math.prod(b.out[1:]), math.prod(a.sizes[1:])
        first, last = _floor(lines.lo * row, inner), _floor(lines.hi * row - 1, inner)
        behind = sum((n - 1) * s for n, s in zip(a.sizes[1:], a.strides[1:], strict=True))
        _, *others = shape = b.shape(0)
        of_x = math.prod(others)
        lo = _floor(a.offset + first * a.strides[0], of_x)
        hi = _floor(a.offset + last * a.strides[0] + behind, of_x) + 1
        rows = Interval(sp.sympify(lo), sp.sympify(hi))
        return (Access(0, (rows, *map(whole, shape[1:])), exact=False),)

    def write(self, b: OpInstance) -> Box:
        return tuple(blocks(c, t, n) for c, t, n in zip(b.coords, b.tile, b.out, strict=True))

    def flops(self, b: OpInstance) -> float:
        return float(math.prod(b.tile))

    def tiles(self, b: OpInstance, machine: Any) -> Sequence[tuple[int, ...]]:
        if len(b.out) == 4:
            return [(*t, min(int(b.out[3]), 128)) for t in spatial_tiles(b.out, (64,))]
        rows, columns = b.out[0] if isinstance(b.out[0], int) else 4096, min(int(b.out[1]), 512)
        most = min(max(8, ceil_div(rows, machine.sms)), MOST_ELEMENTS // columns)
        found = [t for t in (1024, 512, 256, 128, 64, 32, 16, 8, 4, 1) if t <= most]
        return [(t, columns) for t in found[:3]]

    def reference(self, b: OpInstance, operands: Sequence[Any]) -> list[Any]:
        a = StridedCopyAttributes.of(b)
        import torch

        x = operands[0].contiguous().view(-1)[a.offset :]
        return [x.as_strided(a.sizes, a.strides).clone(memory_format=torch.contiguous_format).view(b.out)]
