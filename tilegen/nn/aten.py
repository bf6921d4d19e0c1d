"""What torch's operators are in a spec: a table, one entry an operator.

An entry takes what the operator takes, tensors of the model as views of tensors of the spec (View), and
weights as they are (torch.Tensor), and gives a view. What is known of weights alone is computed on the way:
norms of batches go into the convolution before them, weights are laid out as specs want them.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from tilegen.errors import SpecError
from tilegen.frontend.spec import Value
from tilegen.graph.fuse_epilogues import renumber
from tilegen.nn import patterns
from tilegen.nn.views import View
from tilegen.ops import reduce
from tilegen.ops.attention import attention
from tilegen.ops.cat import cat
from tilegen.ops.conv2d import conv2d
from tilegen.ops.embedding import embedding
from tilegen.ops.gemm import linear
from tilegen.ops.group_norm import group_norm
from tilegen.ops.maths import clamp, gelu, leaky_relu, softplus
from tilegen.ops.norm import layer_norm, rms_norm
from tilegen.ops.pointwise import pointwise
from tilegen.ops.pool import avg_pool2d, flatten, global_avg_pool, max_pool2d
from tilegen.ops.rope import rotary
from tilegen.ops.softmax import log_softmax, softmax
from tilegen.ops.upsample import upsample

aten = torch.ops.aten


class Trace(Protocol):
    """What an entry may ask of the spec that is being written (tilegen.nn.importer)."""

    def weight(self, data: torch.Tensor, stem: str = "weight") -> Value:
        """A weight of the spec with this content."""

    def name(self, *what: str) -> str | None:
        """A name for the op that is being written, from where it stands in the model."""


Entry = Callable[..., Any]
TABLE: dict[Any, Entry] = {}
VIEWS: set[Any] = set()  # those of the table that compute nothing


def entry(*operators: Any, view: bool = False) -> Callable[[Entry], Entry]:
    def known(function: Entry) -> Entry:
        TABLE.update(dict.fromkeys(operators, function))
        if view:
            VIEWS.update(operators)
        return function

    return known


def _rows(x: View) -> Value:
    found = x.rows()
    if found is None:
        raise SpecError(f"a tensor {x.shape} whose last dimension is not that of {x.value}")
    return found


def _image(x: View) -> Value:
    found = x.image()
    if found is None:
        raise SpecError(f"a tensor {x.shape} that is no image (B, C, H, W) of {x.value}")
    return found


# --- views --------------------------------------------------------------------------------------------------


@entry(*patterns.COPIES, view=True)
def _same(t: Trace, x: View, *_: Any, **__: Any) -> View:
    return x


@entry(aten.dropout.default, aten.native_dropout.default, view=True)
def _dropout(t: Trace, x: View, p: float, train: bool) -> View:
    if train and p:
        raise SpecError(f"dropout of {p}: the module is in training; call .eval()")
    return x


@entry(aten.view.default, aten.reshape.default, aten._unsafe_view.default, view=True)
def _view(t: Trace, x: View, shape: Sequence[Any]) -> View:
    return x.reshaped(shape)


@entry(aten.flatten.using_ints, view=True)
def _flatten(t: Trace, x: View, first: int = 0, last: int = -1) -> View:
    first, last = first % len(x.dims), last % len(x.dims)
    return x.reshaped((*x.shape[:first], math.prod(x.shape[first : last + 1]), *x.shape[last + 1 :]))


@entry(aten.transpose.int, view=True)
def _transpose(t: Trace, x: View, a: int, b: int) -> View:
    return x.transposed(a, b)


@entry(aten.permute.default, view=True)
def _permute(t: Trace, x: View, order: Sequence[int]) -> View:
    return x.permuted(order)


@entry(aten.unsqueeze.default, view=True)
def _unsqueeze(t: Trace, x: View, at: int) -> View:
    return x.unsqueezed(at)


@entry(aten.squeeze.dim, aten.squeeze.dims, view=True)
def _squeeze(t: Trace, x: View, at: Any) -> View:
    return x.squeezed([at] if isinstance(at, int) else at)


@entry(aten.expand.default, view=True)
def _expand(t: Trace, x: View, sizes: Sequence[Any]) -> View:
    return x.expanded(sizes)


@entry(aten.slice.Tensor, view=True)
def _slice(t: Trace, x: View, at: int = 0, lo: int = 0, hi: int | None = None, step: int = 1) -> View:
    size = x.shape[at]
    if step != 1:
        raise SpecError(f"a slice with step {step}")
    if not isinstance(size, int):
        if (lo, hi is None or hi > 1 << 60) == (0, True):
            return x
        raise SpecError(f"a slice of the {size} places of a dimension that moves")
    ends = [n + size if n < 0 else min(n, size) for n in (lo or 0, size if hi is None else hi)]
    return x.sliced(at, *ends)


@entry(aten.select.int, view=True)
def _select(t: Trace, x: View, at: int, n: int) -> View:
    return x.sliced(at, n % x.shape[at], n % x.shape[at] + 1).squeezed([at])


@entry(aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default, view=True)
def _split(t: Trace, x: View, sizes: Any, at: int = 0) -> list[View]:
    size = x.shape[at]
    if isinstance(sizes, int):
        sizes = [min(sizes, size - n) for n in range(0, size, sizes)]
    ends = [sum(sizes[: n + 1]) for n in range(len(sizes))]
    return [x.sliced(at, end - n, end) for n, end in zip(sizes, ends, strict=True)]


@entry(aten.unbind.int, view=True)
def _unbind(t: Trace, x: View, at: int = 0) -> list[View]:
    return [_select(t, x, at, n) for n in range(x.shape[at])]


@entry(aten.repeat_interleave.self_int, view=True)
def _repeat_interleave(
    t: Trace, x: View, times: int, at: int | None = None, *, output_size: int | None = None
) -> View:
    if at is None:
        raise SpecError("repeat_interleave of no dimension")
    return x.repeated(at, times)


@entry(operator.getitem, view=True)
def _getitem(t: Trace, x: Sequence[View], n: int) -> View:
    return x[n]


# --- rows ---------------------------------------------------------------------------------------------------


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
    value = _rows(x) if value is None else value
    given = None if bias is None else t.weight(bias, "bias")
    return x.of_rows(linear(value, t.weight(w, "weight"), given, name=t.name()))


@entry(aten.addmm.default)
def _addmm(t: Trace, bias: torch.Tensor, x: View, w: torch.Tensor) -> View:
    if not isinstance(w, torch.Tensor) or not isinstance(bias, torch.Tensor) or bias.dim() != 1:
        raise SpecError("addmm of what are no weights")
    return _linear(t, x, w.T, bias)


@entry(aten.mm.default, aten.matmul.default)
def _mm(t: Trace, x: View, w: torch.Tensor) -> View:
    if not isinstance(x, View) or not isinstance(w, torch.Tensor) or w.dim() != 2:
        raise SpecError("a product with what is no weight (K, N); tg.matmul takes two activations")
    return _linear(t, x, w.T)


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
    value = _rows(_of_last(x, shape))
    ones = torch.ones(shape, dtype=getattr(torch, value.dtype))
    given = (ones if w is None else w, torch.zeros_like(ones) if bias is None else bias)
    return x.of_rows(layer_norm(value, *map(t.weight, given, ("weight", "bias")), eps=eps, name=t.name()))


@entry(aten.rms_norm.default)
def _rms_norm(
    t: Trace, x: View, shape: Sequence[int], w: torch.Tensor | None = None, eps: float | None = None
) -> View:
    value = _rows(_of_last(x, shape))
    dtype = getattr(torch, value.dtype)
    given = torch.ones(shape, dtype=dtype) if w is None else w
    least = torch.finfo(dtype).eps if eps is None else eps
    return x.of_rows(rms_norm(value, t.weight(given, "weight"), eps=least, name=t.name()))


@entry(patterns.rms_norm)
def _spelled_rms_norm(t: Trace, x: View, w: torch.Tensor, eps: float) -> View:
    if not isinstance(w, torch.Tensor) or w.dim() != 1:
        raise SpecError("an rms_norm times what is no weight of its columns")
    return _rms_norm(t, x, w.shape, w, eps)


def _of_last(x: View, shape: Sequence[int]) -> View:
    if len(shape) != 1:
        raise SpecError(f"a norm over {len(shape)} dimensions; expected the last one")
    return x


@entry(aten.softmax.int, aten._softmax.default)
def _softmax(t: Trace, x: View, at: int, _: Any = None) -> View:
    if at % len(x.dims) != len(x.dims) - 1:
        raise SpecError(f"a softmax over dimension {at} of {x.shape}; expected the last one")
    return x.of_rows(softmax(_rows(x), name=t.name()))


@entry(aten.log_softmax.int, aten._log_softmax.default)
def _log_softmax(t: Trace, x: View, at: int, _: Any = None) -> View:
    if at % len(x.dims) != len(x.dims) - 1:
        raise SpecError(f"a log_softmax over dimension {at} of {x.shape}; expected the last one")
    return x.of_rows(log_softmax(_rows(x), name=t.name()))


@entry(aten.embedding.default)
def _embedding(
    t: Trace, table: torch.Tensor, ids: View, padding: int = -1, scale: bool = False, sparse: bool = False
) -> View:
    if not isinstance(table, torch.Tensor) or ids.value.dtype != "int32" or not ids.is_(View.of(ids.value)):
        raise SpecError("an embedding of what are no whole numbers given, or by what is no weight")
    return View.of(embedding(ids.value, t.weight(table, "table"), name=t.name()))


@entry(aten.cat.default)
def _cat(t: Trace, parts: Sequence[Any], at: int = 0) -> View:
    if not all(isinstance(p, View) for p in parts):
        raise SpecError("cat of activations and weights")
    first, at = parts[0], at % len(parts[0].dims)
    images = [p.image() for p in parts]
    if at == 1 and None not in images:
        return View.of(cat(images, name=t.name("cat")), (0, 3, 1, 2))
    if at != len(first.dims) - 1 or not all(first.beside(p) for p in parts):
        raise SpecError(f"cat of {[p.shape for p in parts]} along {at}; expected columns of the same rows")
    return first.of_rows(cat([_rows(p) for p in parts], name=t.name("cat")))


def _numbers(of: Callable[..., Value]) -> Entry:
    """A number for each row."""

    def made(t: Trace, x: View, over: Any = None, keep: bool = False, **_: Any) -> View:
        ends = [over] if isinstance(over, int) else list(over or range(len(x.dims)))
        if [d % len(x.dims) for d in ends] != [len(x.dims) - 1]:
            raise SpecError(f"{of.__name__} over dimensions {ends} of {x.shape}; expected the last one")
        view = x.of_rows(of(_rows(x), name=t.name(of.__name__)))
        return view if keep else view.squeezed([-1])

    return made


TABLE |= {
    aten.sum.dim_IntList: _numbers(reduce.sum),
    aten.amax.default: _numbers(reduce.max),
    aten.amin.default: _numbers(reduce.min),
    aten.logsumexp.default: _numbers(reduce.logsumexp),
}


# --- element by element -------------------------------------------------------------------------------------


@entry(aten.gelu.default)
def _gelu(t: Trace, x: View, *, approximate: str = "none") -> View:
    return View(gelu(x.value, approximate=approximate), x.dims)


@entry(patterns.gelu_tanh)
def _gelu_tanh(t: Trace, x: View) -> View:
    return View(gelu(x.value, approximate="tanh"), x.dims)


def _maps(expression: str) -> Entry:
    return lambda t, x: View(pointwise(expression, x.value), x.dims)


TABLE |= {
    aten.relu.default: _maps("relu(e0)"),
    aten.silu.default: _maps("silu(e0)"),
    aten.sigmoid.default: _maps("sigmoid(e0)"),
    aten.neg.default: _maps("scale(e0, -1.0)"),
    aten.tanh.default: _maps("tanh(e0)"),
    aten.exp.default: _maps("exp(e0)"),
    aten.log.default: _maps("log(e0)"),
    aten.sqrt.default: _maps("sqrt(e0)"),
    aten.rsqrt.default: _maps("rsqrt(e0)"),
    aten.abs.default: _maps("abs(e0)"),
    aten.reciprocal.default: _maps("1.0 / e0"),
    aten.hardswish.default: _maps("hardswish(e0)"),
}


@entry(aten.softplus.default)
def _softplus(t: Trace, x: View, beta: float = 1.0, threshold: float = 20.0) -> View:
    if beta != 1 or threshold < 20:
        raise SpecError(f"softplus with beta = {beta} and threshold = {threshold}; expected 1 and 20")
    return View(softplus(x.value), x.dims)


@entry(aten.leaky_relu.default)
def _leaky_relu(t: Trace, x: View, slope: float = 0.01) -> View:
    return View(leaky_relu(x.value, slope), x.dims)


@entry(aten.hardtanh.default)
def _hardtanh(t: Trace, x: View, low: float = -1.0, high: float = 1.0) -> View:
    return View(clamp(x.value, low, high), x.dims)


@entry(aten.clamp.default)
def _clamp(t: Trace, x: View, low: float | None = None, high: float | None = None) -> View:
    if low is None or high is None:
        raise SpecError("clamp with one end; expected both")
    return View(clamp(x.value, low, high), x.dims)


@entry(aten.maximum.default)
def _maximum(t: Trace, a: Any, b: Any) -> View:
    return _each(t, "maximum(e0, e1)", a, b) if isinstance(a, View) else _each(t, "maximum(e0, e1)", b, a)


@entry(aten.minimum.default)
def _minimum(t: Trace, a: Any, b: Any) -> View:
    return _each(t, "minimum(e0, e1)", a, b) if isinstance(a, View) else _each(t, "minimum(e0, e1)", b, a)


@entry(aten.pow.Tensor_Scalar)
def _pow(t: Trace, x: View, n: float) -> View:
    if n not in (2, 3):
        raise SpecError(f"a power of {n}; expected 2 or 3")
    return View(pointwise(" * ".join(["e0"] * int(n)), x.value), x.dims)


def _each(t: Trace, expression: str, a: View, b: Any) -> View:
    """An expression over e0 = a and e1 = b: a number, a weight of a's columns or that spreads to a, a tensor
    like a, or one column of one of them."""
    if isinstance(b, torch.Tensor) and b.numel() == 1:
        b = b.item()
    if isinstance(b, (int, float)):
        return View(pointwise(expression.replace("e1", repr(float(b))), a.value), a.dims)
    if isinstance(b, torch.Tensor):
        if b.dim() == 1 and a.rows() is not None:
            return View(pointwise(expression, a.value, t.weight(b)), a.dims)
        plain = a.is_(View.of(a.value)) and all(isinstance(n, int) for n in a.shape)
        spread = torch.broadcast_shapes(b.shape, a.shape)  # type: ignore[no-untyped-call]
        if not plain or spread != a.shape:
            raise SpecError(f"a tensor {a.shape} and a weight {tuple(b.shape)} element by element")
        return View(pointwise(expression, a.value, t.weight(b.expand(a.shape))), a.dims)
    if a.beside(b) and 1 in (a.width, b.width) and a.width != b.width:
        wide, column = (a, b) if b.width == 1 else (b, a)
        names = {"e0": "e0", "e1": "e1"} if wide is a else {"e0": "e1", "e1": "e0"}
        return View(pointwise(renumber(expression, names), wide.value, column.value), wide.dims)
    if not a.is_(b):
        raise SpecError(f"{a.shape} of {a.value} and {b.shape} of {b.value} element by element")
    return View(pointwise(expression, a.value, b.value), a.dims)


@entry(aten.add.Tensor)
def _add(t: Trace, a: Any, b: Any, *, alpha: float = 1) -> View:
    if alpha != 1:
        raise SpecError(f"a sum with alpha = {alpha}")
    return _each(t, "e0 + e1", a, b) if isinstance(a, View) else _each(t, "e0 + e1", b, a)


@entry(aten.sub.Tensor)
def _sub(t: Trace, a: Any, b: Any, *, alpha: float = 1) -> View:
    if alpha != 1:
        raise SpecError(f"a difference with alpha = {alpha}")
    return _each(t, "e0 - e1", a, b) if isinstance(a, View) else _each(t, "e1 - e0", b, a)


@entry(aten.rsub.Scalar)
def _rsub(t: Trace, a: View, b: float, alpha: float = 1) -> View:
    return _sub(t, b, a, alpha=alpha)


@entry(aten.mul.Tensor)
def _mul(t: Trace, a: Any, b: Any) -> View:
    return _each(t, "e0 * e1", a, b) if isinstance(a, View) else _each(t, "e0 * e1", b, a)


@entry(aten.div.Tensor)
def _div(t: Trace, a: Any, b: Any) -> View:
    if isinstance(a, View) and isinstance(b, View):
        return _each(t, "e0 / e1", a, b)
    return _each(t, "e0 * e1", a, 1 / b) if isinstance(a, View) else _each(t, "e1 / e0", b, a)


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
    if mask is not None or dropout:
        raise SpecError("attention with a mask or dropout; causal attention is known")
    if causal and q.shape[2] != k.shape[2]:
        raise SpecError(f"causal attention of {q.shape[2]} queries over {k.shape[2]} keys")
    queries, keys, values = q.heads(), _shared(k).heads(), _shared(v).heads()
    if queries is None or keys is None or values is None:
        raise SpecError(f"attention of {q.shape}, {k.shape}, {v.shape}: expected heads (B, h, S, D) of rows")
    (query, heads), (key, kv_heads), (value, _) = queries, keys, values
    made = attention(
        query,
        key,
        value,
        heads=heads,
        kv_heads=kv_heads,
        causal=causal,
        scale=scale,
        name=t.name("attention"),
    )
    return View.of_heads(made, heads)


def _shared(k: View) -> View:
    """Heads of keys, each once: of those that stand several times side by side."""
    own = tuple(a for a in k.dims[1] if a.place)
    if k.dims[1][: len(own)] != own:
        raise SpecError(f"heads of keys {k.shape} repeated behind each other; expected side by side")
    return View(k.value, (k.dims[0], own, *k.dims[2:]))


@entry(patterns.rotary)
def _rotary(t: Trace, x: View, cos: View, sin: View) -> View:
    found, tables = x.heads(), [_table(c) for c in (cos, sin)]
    if found is None:
        raise SpecError(f"rotary of {x.shape} of {x.value}: expected heads (B, h, S, D) of rows")
    value, heads = found
    return View.of_heads(rotary(value, *tables, heads=heads, name=t.name("rotary")), heads)


def _table(c: Any) -> Value:
    """cos or sin, of which the model has made (B or 1, 1, S, D)."""
    if not isinstance(c, View) or len(c.dims) != 4 or c.dims[1]:
        raise SpecError("rotary by what are no tables (B, 1, S, D)")
    return _rows(c)


# --- images -------------------------------------------------------------------------------------------------


def convolved(
    t: Trace,
    x: View,
    w: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Any = (1, 1),
    padding: Any = (0, 0),
    dilation: Any = (1, 1),
    groups: int = 1,
    norm: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> View:
    """A convolution, and y·factor + shift for each of its channels where that follows it."""
    if not isinstance(w, torch.Tensor) or groups != 1:
        raise SpecError(f"a convolution in {groups} groups, or by what is no weight; expected one group")
    if norm is not None:
        factor, shift = norm
        shift = shift if bias is None else shift + bias.float() * factor
        w, bias = (w.float() * factor.view(-1, 1, 1, 1)).to(w.dtype), shift.to(w.dtype)
    filters = t.weight(w.permute(0, 2, 3, 1), "weight")
    given = None if bias is None else t.weight(bias, "bias")
    made = conv2d(
        _image(x),
        filters,
        given,
        stride=_two(stride),
        padding=_two(padding),
        dilation=_two(dilation),
        name=t.name(),
    )
    return View.of(made, (0, 3, 1, 2))


TABLE[aten.conv2d.default] = convolved


def factors(
    w: torch.Tensor | None, bias: torch.Tensor | None, mean: torch.Tensor, var: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch norm as y = x·factor + shift, for each channel, in float32."""
    factor = (var.float() + eps).rsqrt() * (1.0 if w is None else w.float())
    return factor, (0.0 if bias is None else bias.float()) - mean.float() * factor


@entry(aten._native_batch_norm_legit_no_training.default)
def _batch_norm(
    t: Trace, x: View, w: Any, bias: Any, mean: torch.Tensor, var: torch.Tensor, momentum: float, eps: float
) -> list[View]:
    value = _image(x)
    given = [t.weight(v.to(getattr(torch, value.dtype))) for v in factors(w, bias, mean, var, eps)]
    return [View(pointwise("e0 * e1 + e2", value, *given), x.dims)]


@entry(aten.max_pool2d.default)
def _max_pool(
    t: Trace, x: View, window: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
) -> View:
    if ceil or any(n != 1 for n in (dilation if isinstance(dilation, (list, tuple)) else [dilation])):
        raise SpecError("max_pool2d with dilation or ceil_mode")
    made = max_pool2d(
        _image(x), _two(window), stride=_two(stride) if stride else None, padding=_two(padding), name=t.name()
    )
    return View.of(made, (0, 3, 1, 2))


@entry(aten.avg_pool2d.default)
def _avg_pool(
    t: Trace,
    x: View,
    window: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil: bool = False,
    counted: bool = True,
    divisor: int | None = None,
) -> View:
    if ceil or divisor is not None:
        raise SpecError("avg_pool2d with ceil_mode or divisor_override")
    made = avg_pool2d(
        _image(x),
        _two(window),
        stride=_two(stride) if stride else None,
        padding=_two(padding),
        count_include_pad=counted,
        name=t.name(),
    )
    return View.of(made, (0, 3, 1, 2))


@entry(aten.upsample_nearest2d.vec, aten.upsample_nearest2d.default)
def _upsample(t: Trace, x: View, size: Sequence[int] | None, *scales: Any) -> View:
    value = _image(x)
    given = next((s for s in scales if isinstance(s, (list, tuple))), scales)
    wanted = tuple(size) if size else tuple(n * s for n, s in zip(x.shape[2:], given, strict=True))
    factor = [n / m for n, m in zip(wanted, x.shape[2:], strict=True)]
    if any(f != int(f) or f < 1 for f in factor):
        raise SpecError(f"an upsampling of {x.shape[2:]} to {wanted}; expected whole factors")
    return View.of(upsample(value, [int(f) for f in factor], name=t.name()), (0, 3, 1, 2))


@entry(aten.group_norm.default)
def _group_norm(
    t: Trace, x: View, groups: int, w: Any = None, bias: Any = None, eps: float = 1e-5, cudnn: bool = True
) -> View:
    value = _image(x)
    ones = torch.ones(value.shape[3], dtype=getattr(torch, value.dtype))
    given = (ones if w is None else w, torch.zeros_like(ones) if bias is None else bias)
    made = group_norm(value, groups, *map(t.weight, given, ("weight", "bias")), eps=eps, name=t.name())
    return View.of(made, (0, 3, 1, 2))


@entry(aten.adaptive_avg_pool2d.default)
def _adaptive_avg_pool(t: Trace, x: View, size: Sequence[int]) -> View:
    if tuple(size) != (1, 1):
        if tuple(size) == x.shape[2:]:
            return x
        raise SpecError(f"an average pool of {x.shape[2:]} to {tuple(size)}; expected (1, 1)")
    return _mean_of_image(t, x, [2, 3], True)


@entry(aten.mean.dim)
def _mean(t: Trace, x: View, over: Sequence[int], keep: bool = False) -> View:
    if [d % len(x.dims) for d in over] == [len(x.dims) - 1]:
        return _numbers(reduce.mean)(t, x, over, keep)
    return _mean_of_image(t, x, over, keep)


def _mean_of_image(t: Trace, x: View, over: Sequence[int], keep: bool) -> View:
    if sorted(d % len(x.dims) for d in over) != [2, 3] or x.image() is None:
        raise SpecError(
            f"a mean over dimensions {list(over)} of {x.shape}; expected the last one, or rows and columns of"
            " an image"
        )
    view = View.of(global_avg_pool(_image(x), name=t.name()))
    return view.unsqueezed(-1).unsqueezed(-1) if keep else view


def _two(given: Any) -> tuple[int, int]:
    both = (given, given) if isinstance(given, int) else tuple(given)
    return (both[0], both[0]) if len(both) == 1 else both
