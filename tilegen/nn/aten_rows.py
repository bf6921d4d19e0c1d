"""Operators on rows and heads: linears, norms, softmax, numbers of rows, tables, attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from tilegen.errors import SpecError
from tilegen.frontend.value import Value
from tilegen.nn import patterns
from tilegen.nn.aten_views import seen
from tilegen.nn.strided import Strided
from tilegen.nn.table import TABLE, Entry, Trace, as_rows, entry, is_image, rows_of
from tilegen.nn.views import View
from tilegen.ops import reduce
from tilegen.ops.attention import attention
from tilegen.ops.cat import cat
from tilegen.ops.conv2d import conv2d
from tilegen.ops.embedding import embedding
from tilegen.ops.gemm import linear, matmul
from tilegen.ops.norm import layer_norm, rms_norm
from tilegen.ops.pad import pad
from tilegen.ops.pointwise import pointwise
from tilegen.ops.pool import flatten
from tilegen.ops.rope import rotary
from tilegen.ops.softmax import log_softmax, softmax
from tilegen.ops.take_along import take_along
from tilegen.ops.topk import argmax, topk

aten = torch.ops.aten


@entry(aten.linear.default)
def _linear(t: Trace, x: View, w: torch.Tensor, bias: torch.Tensor | None = None) -> View:
    if not isinstance(w, torch.Tensor) or w.dim() != 2:
        raise SpecError("a linear by what is no weight; tg.matmul takes two activations")
    value = x.rows()
    if value is None and [a.place for a in x.dims[-1]] == [(3,), (1,), (2,)]:  # of an image, C first
        _, h, width, c = x.value.shape
        w = w.view(-1, c, h, width).permute(0, 2, 3, 1).flatten(1)
        value = flatten(x.value)
        x = View.of(value)
    x = x if value is not None else as_rows(t, x)
    value = rows_of(x)
    if is_image(value):
        filters = t.weight(w.to(getattr(torch, value.dtype))[:, None, None], "weight")
        given = None if bias is None else t.weight(bias, "bias")
        return x.of_rows(conv2d(value, filters, given, name=t.name()))
    given = None if bias is None else t.weight(bias, "bias")
    return x.of_rows(linear(value, t.weight(w, "weight"), given, name=t.name()))


@entry(aten.addmm.default)
def _addmm(
    t: Trace, bias: torch.Tensor, x: View, w: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> View:
    if (beta, alpha) != (1, 1):
        raise SpecError(f"addmm with beta = {beta} and alpha = {alpha}; expected 1 and 1")
    if not isinstance(w, torch.Tensor) or not isinstance(bias, torch.Tensor) or bias.dim() != 1:
        raise SpecError("addmm of what are no weights")
    return _linear(t, x, w.T, bias)


@entry(aten.mm.default, aten.matmul.default, aten.bmm.default)
def _mm(t: Trace, x: Any, y: Any) -> View:
    """By a weight (K, N), or (B, M, K) by (B, K, N)."""
    if isinstance(x, View) and isinstance(y, torch.Tensor) and y.dim() == 2:
        return _linear(t, x, y.T)
    if len(x.shape) != len(y.shape) or len(x.shape) < 2 or tuple(x.shape[:-2]) != tuple(y.shape[:-2]):
        raise SpecError(f"a product of {tuple(x.shape)} and {tuple(y.shape)}, whose first dimensions differ")
    shape = (*x.shape[:-1], y.shape[-1])
    (a, turned_a), (b, turned_b) = _factors(t, x, y)
    made = matmul(a, b, transpose_a=turned_a, transpose_b=turned_b, name=t.name("product"))
    return View.of(made).reshaped(shape)


def _factors(t: Trace, x: Any, y: Any) -> list[tuple[Value, bool]]:
    """Tensors of the same first dimensions, each with its last two turned or not: as they lie, or copies."""
    found = [None if isinstance(v, torch.Tensor) else _as_it_lies(v) for v in (x, y)]
    known = [f for f in found if f is not None]
    if len(known) == 2 and known[0][0].shape[:-2] == known[1][0].shape[:-2]:
        return known
    lead = known[0][0].shape[:-2] if len(known) == 1 else None
    made = []
    for v, f in zip((x, y), found, strict=True):
        if len(known) == 1 and f is not None:
            made.append(f)
        elif isinstance(v, torch.Tensor):
            first = v.shape[:-2] if lead is None else lead
            made.append((t.weight(v.reshape(*first, *v.shape[-2:]).contiguous()), False))
        else:
            made.append((t.copied(_led(v, lead)).value, False))
    return made


def _led(x: View, lead: Sequence[Any] | None) -> View | Strided:
    """With these first dimensions, or its own."""
    sizes = (*(x.shape[:-2] if lead is None else lead), *x.shape[-2:])
    return Strided.of(x).reshaped(sizes) if tuple(sizes) != tuple(x.shape) else x


def _as_it_lies(x: Any) -> tuple[Value, bool] | None:
    """The whole tensor that x is, all of its elements in their order but for its last two dimensions, and
    whether these are turned."""
    for turned in (False, True):
        y = x.transposed(-1 % len(x.dims), -2 % len(x.dims)) if turned else x
        atoms, value = y.atoms, y.value
        alike = not is_image(value) and tuple(y.shape[-2:]) == tuple(value.shape[-2:])
        ordered = all(a.place for a in atoms) and list(atoms) == sorted(atoms, key=lambda a: a.place)
        if alike and ordered and math.prod(a.size for a in atoms) == math.prod(value.shape):
            return value, turned
    return None


@entry(aten.baddbmm.default)
def _baddbmm(t: Trace, bias: Any, x: Any, y: Any, *, beta: float = 1, alpha: float = 1) -> View:
    product = _mm(t, x, y)
    product = product if alpha == 1 else TABLE[aten.mul.Tensor](t, product, alpha)
    if not beta:
        return product
    return TABLE[aten.add.Tensor](t, product, bias if beta == 1 else TABLE[aten.mul.Tensor](t, bias, beta))


@entry(aten.layer_norm.default)
def _layer_norm(
    t: Trace,
    x: View,
    shape: Sequence[int],
    w: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
    cudnn: bool = True,
) -> View:
    x = as_rows(t, _of_last(x, shape))
    value = rows_of(x)
    ones = torch.ones(shape, dtype=getattr(torch, value.dtype))
    given = (ones if w is None else w, torch.zeros_like(ones) if bias is None else bias)
    return x.of_rows(layer_norm(value, *map(t.weight, given, ("weight", "bias")), eps=eps, name=t.name()))


@entry(aten.rms_norm.default)
def _rms_norm(
    t: Trace, x: View, shape: Sequence[int], w: torch.Tensor | None = None, eps: float | None = None
) -> View:
    x = as_rows(t, _of_last(x, shape))
    value = rows_of(x)
    dtype = getattr(torch, value.dtype)
    given = torch.ones(shape, dtype=dtype) if w is None else w
    least = torch.finfo(dtype).eps if eps is None else eps
    return x.of_rows(rms_norm(value, t.weight(given, "weight"), eps=least, name=t.name()))


@entry(patterns.rms_norm)
def _spelled_rms_norm(t: Trace, x: View, w: torch.Tensor, eps: float) -> View:
    if not isinstance(w, torch.Tensor) or w.dim() != 1:
        raise SpecError("an rms_norm times what is no weight of its columns")
    return _rms_norm(t, x, w.shape, w.to(getattr(torch, x.value.dtype)), eps)


@entry(patterns.layer_norm)
def _spelled_layer_norm(t: Trace, x: View, w: torch.Tensor, eps: float) -> View:
    if not isinstance(w, torch.Tensor) or w.dim() != 1:
        raise SpecError("a layer_norm times what is no weight of its columns")
    return _layer_norm(t, x, w.shape, w.to(getattr(torch, x.value.dtype)), None, eps)


def _of_last(x: View, shape: Sequence[int]) -> View:
    if len(shape) != 1:
        raise SpecError(f"a norm over {len(shape)} dimensions; expected the last one")
    return x


def _over_rows(of: Callable[..., Value]) -> Entry:
    """softmax, or its logarithm."""

    def made(t: Trace, x: View, at: int, _: Any = None) -> View:
        x = as_rows(t, x.transposed(at, -1))
        return x.of_rows(of(rows_of(x), name=t.name())).transposed(at, -1)

    return made


entry(aten.softmax.int, aten._softmax.default)(_over_rows(softmax))
entry(aten.log_softmax.int, aten._log_softmax.default)(_over_rows(log_softmax))


@entry(aten.embedding.default)
def _embedding(
    t: Trace, table: torch.Tensor, ids: View, padding: int = -1, scale: bool = False, sparse: bool = False
) -> View:
    if not isinstance(table, torch.Tensor) or ids.value.dtype != "int32" or not ids.is_(View.of(ids.value)):
        raise SpecError("an embedding of what are no whole numbers given, or by what is no weight")
    return View.of(embedding(ids.value, t.weight(table, "table"), name=t.name()))


@entry(aten.cat.default)
def _cat(t: Trace, parts: Sequence[Any], at: int = 0) -> View:
    given = [p if isinstance(p, View) else View.of(t.weight(p.contiguous())) for p in parts]
    first, at = given[0], at % len(given[0].dims)
    images = [image for p in given if (image := p.image()) is not None]
    if at == 1 and len(images) == len(given):
        return View.of(cat(images, name=t.name("cat")), (0, 3, 1, 2))
    size = sum(p.shape[at] for p in given)
    flat = [as_rows(t, _columns_from(t, p, at)) for p in given]
    lines = {p.value.shape[:-1] for p in flat}
    if len(lines) > 1 or not all(flat[0].beside(p) for p in flat):
        flat = [t.copied(p) for p in flat]
    made = flat[0].of_rows(cat([rows_of(p) for p in flat], name=t.name("cat")))
    return made.reshaped((*first.shape[:at], size, *first.shape[at + 1 :]))


def _columns_from(t: Trace, x: View, at: int) -> View:
    """All dimensions from one on as columns."""
    if at == len(x.dims) - 1:
        return x
    found = seen(t, x, lambda v: v.reshaped((*x.shape[:at], math.prod(x.shape[at:]))))
    return found if isinstance(found, View) else t.copied(found)


@entry(aten.constant_pad_nd.default)
def _pad(t: Trace, x: View, places: Sequence[int], value: float = 0) -> View:
    """places: before and behind, of the last dimension first; fewer than none: a slice."""
    for n, (before, behind) in enumerate(zip(places[::2], places[1::2], strict=True)):
        at = len(x.dims) - 1 - n
        size = x.shape[at]
        if before < 0 or behind < 0:
            x = TABLE[aten.slice.Tensor](t, x, at, max(-before, 0), size + min(behind, 0))
        there = isinstance(x, View) and x.image() is None and 0 not in x.shape
        if before <= 0 < behind and value == 0 and there:
            x = _zeros_behind(t, x, at, behind)
            continue
        sides = [[_filled(x, at, k, value)] if k > 0 else [] for k in (before, behind)]
        if sides[0] or sides[1]:
            x = x if isinstance(x, View) else t.copied(x)
            x = _cat(t, [*sides[0], x, *sides[1]], at)
    return x


def _zeros_behind(t: Trace, x: View, at: int, behind: int) -> View:
    flat, (*before, size), rest = as_rows(t, _columns_from(t, x, at)), x.shape[: at + 1], x.shape[at + 1 :]
    made = flat.of_rows(pad(rows_of(flat), behind * math.prod(rest), name=t.name("pad")))
    return made.reshaped((*before, size + behind, *rest)) if rest else made


def _filled(x: View | Strided, at: int, places: int, value: float) -> torch.Tensor:
    sizes = [places if d == at else n for d, n in enumerate(x.shape)]
    if not all(isinstance(n, int) for n in sizes):
        raise SpecError(f"a pad of a tensor {x.shape}, whose size moves")
    return torch.full(sizes, value, dtype=getattr(torch, x.value.dtype))


def numbers(of: Callable[..., Value]) -> Entry:
    """A number for each row, or for all places of some dimensions."""

    def made(t: Trace, x: View, over: Any = None, keep: bool = False, **_: Any) -> View:
        rank = len(x.dims)
        ends = sorted(d % rank for d in ([over] if isinstance(over, int) else list(over or range(rank))))
        others = [d for d in range(rank) if d not in ends]
        rows = as_rows(t, _columns_from(t, x.permuted([*others, *ends]), len(others)))
        view = rows.of_rows(of(rows_of(rows), name=t.name(of.__name__))).squeezed([-1])
        for d in ends if keep else ():
            view = view.unsqueezed(d)
        return view

    return made


TABLE |= {
    aten.sum.dim_IntList: numbers(reduce.sum),
    aten.amax.default: numbers(reduce.max),
    aten.amin.default: numbers(reduce.min),
    aten.logsumexp.default: numbers(reduce.logsumexp),
    aten.argmax.default: numbers(argmax),
}


@entry(aten.linalg_vector_norm.default)
def _vector_norm(
    t: Trace, x: View, order: float = 2, over: Any = None, keep: bool = False, *, dtype: Any = None
) -> View:
    """√Σ x² of each row, or of all places of some dimensions."""
    if order != 2 or dtype is not None:
        raise SpecError(f"a norm of order {order} in {dtype}; expected 2, in the type of what it is of")
    squares = View(pointwise("e0 * e0", x.value), x.dims)
    sums = numbers(reduce.sum)(t, squares, over, keep)
    return View(pointwise("sqrt(e0)", sums.value), sums.dims)


@entry(aten.topk.default)
def _topk(
    t: Trace, x: View, k: int, at: int = -1, largest: bool = True, ordered: bool = True
) -> tuple[View, View]:
    if at % len(x.dims) != len(x.dims) - 1 or not largest:
        least = "" if largest else " of the least"
        raise SpecError(f"topk{least} over dimension {at} of {x.shape}; expected the last one's largest")
    values, ids = topk(rows_of(x), k, name=t.name("topk"))
    return x.of_rows(values), x.of_rows(ids)


@entry(aten.gather.default)
def _gather(t: Trace, x: View, at: int, ids: View, *, sparse_grad: bool = False) -> View:
    if not isinstance(x, View) or not isinstance(ids, View) or not x.beside(ids):
        raise SpecError("gather of what are no columns of the same rows; tg.embedding takes rows of a weight")
    if at % len(x.dims) != len(x.dims) - 1:
        raise SpecError(f"gather along dimension {at} of {x.shape}; expected the last one")
    return x.of_rows(take_along(rows_of(x), rows_of(ids), name=t.name("gather")))


@entry(aten.take_along_dim.default)
def _take_along_dim(t: Trace, x: View, ids: View, at: int | None = None) -> View:
    if at is None:
        raise SpecError(f"take_along_dim of all numbers of {x.shape}; expected those of the last dimension")
    return _gather(t, x, at, ids)


# --- heads --------------------------------------------------------------------------------------------------


@entry(aten.scaled_dot_product_attention.default)
def _attention(
    t: Trace,
    q: View,
    k: View,
    v: View,
    mask: Any = None,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> View:
    if not all(isinstance(x, View) for x in (q, k, v)):
        raise SpecError("attention of weights")
    if dropout:
        raise SpecError("attention with dropout")
    if causal and q.shape[2] != k.shape[2]:
        raise SpecError(f"causal attention of {q.shape[2]} queries over {k.shape[2]} keys")
    (query, heads), (key, kv_heads), (value, _) = (_heads(t, x) for x in (q, _shared(k), _shared(v)))
    made = attention(
        query,
        key,
        value,
        heads=heads,
        kv_heads=kv_heads,
        causal=causal,
        scale=scale,
        bias=None if mask is None else _bias(t, mask, query.dtype),
        name=t.name("attention"),
    )
    return View.of_heads(made, heads)


def _bias(t: Trace, mask: Any, dtype: str) -> Value:
    """What a mask adds to scores, (B, h, Sq, Sk) with 1 for what is alike all along a dimension."""
    if isinstance(mask, torch.Tensor):
        return t.weight(_of_scores(mask, getattr(torch, dtype)), "mask")
    alike = [tuple(a for a in d if a.place) for d in mask.dims]
    # batches may have the same again and again
    if any(a and a != d for a, d in zip(alike[1:], mask.dims[1:], strict=True)) or (
        alike[0] != mask.dims[0][len(mask.dims[0]) - len(alike[0]) :]
    ):
        raise SpecError(f"a mask {mask.shape}, of which parts of a dimension are alike")
    view = View(mask.value, (*alike[:-1], mask.dims[-1]))
    others = [a.place for d in view.dims[:-1] for a in d]
    if view.rows() is None or others != sorted(others):
        view = t.copied(view)
    return replace(rows_of(view), shape=(*[1] * (4 - len(view.shape)), *view.shape))


def _of_scores(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A mask of weights alone as what is added to scores, what is alike once."""
    for d, stride in enumerate(mask.stride()[:-1]):
        mask = mask.narrow(d, 0, 1) if stride == 0 and mask.shape[d] > 1 else mask
    if mask.dtype is torch.bool:
        mask = torch.where(mask, 0.0, -math.inf).to(dtype)
    return mask if mask.dtype in (dtype, torch.float32) else mask.to(dtype)


def _heads(t: Trace, x: View) -> tuple[Value, int]:
    """A tensor (B, S, h·D), or a copy of such, and h, of which x is (B, h, S, D)."""
    found = x.heads()
    if found is None:
        if len(x.dims) != 4 or not isinstance(x.shape[1], int):
            raise SpecError(f"heads {x.shape} of {x.value}; expected (B, h, S, D)")
        b, h, s, d = Strided.of(x).dims
        found = t.copied(Strided(x.value, (b, s, (*h, *d)), Strided.of(x).offset)).value, x.shape[1]
    return found


def _shared(k: View) -> View:
    """Heads of keys, each once: of those that stand several times side by side."""
    own = tuple(a for a in k.dims[1] if a.place)
    if k.dims[1][: len(own)] != own:
        raise SpecError(f"heads of keys {k.shape} repeated behind each other; expected side by side")
    return View(k.value, (k.dims[0], own, *k.dims[2:]))


@entry(patterns.rotary)
def _rotary(t: Trace, x: View, cos: Any, sin: Any, interleaved: bool, first: int = 0) -> View:
    """Of heads (B, h, S, D), or (B, S, h, D) where the tables say so; of all rows but the first ones."""
    cos, sin = (c[(None,) * (4 - c.dim())] if isinstance(c, torch.Tensor) else c for c in (cos, sin))
    at = 1 if first else _heads_of_tables(x, cos)
    if first:
        cos, sin = _behind(cos, first, 1.0), _behind(sin, first, 0.0)
    (value, heads), tables = _heads(t, x.transposed(1, at)), [_table(t, c, at) for c in (cos, sin)]
    made = rotary(value, *tables, heads=heads, interleaved=interleaved, name=t.name("rotary"))
    return View.of_heads(made, heads).transposed(1, at)


def _behind(c: Any, rows: int, number: float) -> torch.Tensor:
    """A table (B, 1, S, D) behind rows of a number."""
    if not isinstance(c, torch.Tensor) or c.shape[1] != 1:
        raise SpecError(
            f"rotary of rows behind others, by what is no weight (B, 1, S, D), but {tuple(c.shape)}"
        )
    return torch.cat((c.new_full((c.shape[0], 1, rows, c.shape[3]), number), c), dim=2)


def _heads_of_tables(x: View, c: Any) -> int:
    """Which dimension is that of heads, along which tables are alike."""
    shape = tuple(c.shape)
    if len(shape) == len(x.shape) == 4 and shape[2] == 1 and shape[1] == x.shape[1] != 1:
        return 2
    return 1


def _table(t: Trace, c: Any, at: int) -> Value:
    """cos or sin, of which the model has made (B or 1, 1, S, D), or that with heads at another dimension."""
    if len(c.shape) != 4 or c.shape[at] != 1 or not isinstance(c, (torch.Tensor, View)):
        raise SpecError(f"rotary by what are no tables (B, 1, S, D), but {tuple(c.shape)}")
    if isinstance(c, torch.Tensor):
        return t.weight(c.squeeze(at), "table")
    return rows_of(c)
