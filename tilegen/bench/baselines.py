"""What people use today for the same program: torch, op by op, in the storage type, as straight-line code.

Tracing the program once leaves a module of torch calls alone: eager pays for nothing of ours on the host,
torch.compile sees nothing that it cannot follow, and a CUDA graph captures no copy from the host, since
positions, masks and tables are made while tracing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from tilegen.bench import attentions, cublaslt
from tilegen.bench.attentions import Attention
from tilegen.errors import TargetError
from tilegen.frontend.attributes import Attributes
from tilegen.frontend.program import INT8, PAIRED, Call, Operand, Program
from tilegen.ops.append import AppendAttributes
from tilegen.ops.attention import AttentionAttributes
from tilegen.ops.base import OpInstance
from tilegen.ops.block_mask import hidden_keys
from tilegen.ops.cat import CatAttributes
from tilegen.ops.conv2d import ConvAttributes, GroupedConvAttributes
from tilegen.ops.conv_transpose2d import ConvTransposeAttributes
from tilegen.ops.embedding import EmbeddingAttributes
from tilegen.ops.gemm import LinearAttributes, MatmulAttributes
from tilegen.ops.group_norm import GroupNormAttributes
from tilegen.ops.masks import added
from tilegen.ops.norm import LayerNormAttributes, RmsNormAttributes
from tilegen.ops.pad import PadAttributes
from tilegen.ops.pointwise import PointwiseAttributes, evaluate, spread
from tilegen.ops.pool import AvgPoolAttributes, GlobalAvgPoolAttributes, PoolAttributes
from tilegen.ops.reduce import ReduceAttributes
from tilegen.ops.reference import view
from tilegen.ops.rope import RopeAttributes, RotaryAttributes, turned
from tilegen.ops.softmax import SoftmaxAttributes
from tilegen.ops.strided_copy import StridedCopyAttributes
from tilegen.ops.take_along import TakeAlongAttributes
from tilegen.ops.topk import TopkAttributes
from tilegen.ops.upsample import UpsampleAttributes

Chain = tuple[Call, ...]
# result -> the calls that one library call replaces, and that call
Chains = dict[str, tuple[Chain, Callable[..., Any]]]
SCALED = ("e0 * e1 * e2", "e0 * e1 * e2 + e3")  # by linear's scales, then its bias
ACTIVATIONS = {"gelu_tanh(e0)": "gelu_tanh", "relu(e0)": "relu"}
WHOLE = ("append", "attention")  # ops that take a cache as the user keeps it


def eager(
    program: Program,
    arguments: Sequence[torch.Tensor],
    fused: Chains | None = None,
    attention: Attention = attentions.sdpa,
) -> torch.fx.GraphModule:
    """A function of the program's arguments that runs it with torch's own ops, on the device of the arguments
    given here.

    Positions are read here, once. Caches keep their own shape and are written in place, a slice of them.
    fused: gelu_pairs, linear_chains or conv_chains as one library call each.
    """
    bound = [OpInstance.of_call(program, c) for c in program.calls]
    positions = {b.operand("position").tensor for b in bound if b.position is not None}
    at = {t.name: int(a[0]) for t, a in zip(program.arguments, arguments, strict=True) if t.name in positions}
    device = arguments[0].device
    pairs = {**scaled_linears(program), **(fused or {})}
    inside = {c.result for chain, _ in pairs.values() for c in chain[:-1]}
    states = {t.name for t in program.arguments if t.role == "state"}

    def run(*given: Any) -> Any:
        values = {
            t.name: given[n] if t.name in states else _shaped(given[n], t.shape, t.seen_shape)
            for n, t in enumerate(program.arguments)
        }

        largest: dict[tuple[Operand, ...], Any] = {}  # x and the columns of its largest numbers: these

        def read(c: Call, o: Operand) -> Any:
            whole = o.tensor in states and not (c.kind in WHOLE and o.columns is None and not o.flatten)
            return view(
                values[o.tensor].reshape(program.tensor(o.tensor).plan_shape) if whole else values[o.tensor],
                o,
            )

        for c in program.calls:
            if c.result in pairs:
                chain, call = pairs[c.result]
                values[c.result] = call(program, chain, read)
            elif isinstance(c.attributes, TopkAttributes):
                x, found = c.operands[0], read(c, c.operands[0]).topk(c.attributes.k)
                largest[x, Operand(c.result)], values[c.result] = found
            elif c.operands in largest:
                values[c.result] = largest[c.operands]
            elif c.result not in inside:
                operands = [at[o.tensor] if o.tensor in at else read(c, o) for o in c.operands]
                values[c.result] = _call(program, c, operands, attention)
        outputs = [program.tensor(name) for name in program.outputs]
        results = [
            values[t.name] if t.name in states else _shaped(values[t.name], t.plan_shape, t.shape)
            for t in outputs
        ]
        return results[0] if len(results) == 1 else tuple(results)

    with torch.device(device):
        return torch.fx.symbolic_trace(run)


def inductor(traced: torch.fx.GraphModule) -> Callable[..., Any]:
    """The same function through torch.compile, every GeMM autotuned; the CUDA graph is the caller's."""
    import torch._dynamo

    torch._dynamo.reset()  # each size is a new function to it, and it gives up after a few recompilations
    compiled: Callable[..., Any] = torch.compile(
        traced, mode="max-autotune-no-cudagraphs", fullgraph=True, dynamic=False
    )
    return compiled


def _links(program: Program) -> Callable[[Call], Call | None]:
    """c -> the op that writes its first operand, if only c reads it, and all of it."""
    made = {c.result: c for c in program.calls}
    readers: dict[str, int] = {name: 1 for name in program.outputs}
    for c in program.calls:
        for o in c.operands:
            readers[o.tensor] = readers.get(o.tensor, 0) + 1

    def before(c: Call) -> Call | None:
        o = c.operands[0]
        return made.get(o.tensor) if readers[o.tensor] == 1 and o.columns is None and not o.flatten else None

    return before


def conv_chains(program: Program) -> Chains:
    """Result -> its chain conv2d → + vector → [+ tensor →] relu, where nothing else reads what lies between:
    a cuDNN call each."""
    before = _links(program)
    found: Chains = {}
    for relu in program.calls:
        if _expression(relu) != "relu(e0)":
            continue
        chain = [relu]
        first = before(relu)
        for how in ("elements", "columns"):
            if first is not None and _adds(first, how):
                chain.insert(0, first)
                first = before(first)
        convolves = first is not None and isinstance(first.attributes, ConvAttributes)
        if first is not None and convolves and len(chain) > 1 and _adds(chain[0], "columns"):
            found[relu.result] = (first, *chain), _fused_conv
    return found


def linear_chains(program: Program) -> Chains:
    """Result -> its chain linear → [+ vector →] [gelu(tanh) or relu], the longest, and every other linear
    alone: a call of cublasLt each."""
    before = _links(program)
    found: Chains = {}
    inside: set[str] = set()
    for last in reversed(program.calls):
        chain = [last]
        if _expression(last) in ACTIVATIONS and (first := before(last)) is not None:
            chain.insert(0, first)
        if _adds(chain[0], "columns") and (first := before(chain[0])) is not None:
            chain.insert(0, first)
        if _multiplies_alike(program, chain[0]) and last.result not in inside:
            found[last.result] = tuple(chain), _by_cublaslt
            inside |= {c.result for c in chain[:-1]}
    return found


def _multiplies_alike(program: Program, c: Call) -> bool:
    """Whether a call is a linear of x and w of one dtype."""
    dtypes = {program.tensor(o.tensor).dtype for o in c.operands}
    return isinstance(c.attributes, LinearAttributes) and len(dtypes) == 1


def gelu_pairs(program: Program) -> Chains:
    """Those of linear_chains that end in gelu(tanh): what torch's own fused op can do."""
    return {
        result: (chain, _addmm)
        for result, (chain, _) in linear_chains(program).items()
        if _expression(chain[-1]) == "gelu_tanh(e0)"
    }


def scaled_linears(program: Program) -> Chains:
    """Result -> its chain linear → · scales of rows · scales of columns [+ vector], of numbers of one byte: a
    call of torch._scaled_mm each."""
    before = _links(program)
    found: Chains = {}
    for last in program.calls:
        if _expression(last) in SCALED and PointwiseAttributes.of(last).how[1:3] == ("rows", "columns"):
            linear = before(last)
            if linear is not None and program.tensor(linear.operands[0].tensor).dtype in PAIRED:
                found[last.result] = (linear, last), _scaled
    return found


def _scaled(program: Program, chain: Chain, read: Callable[..., Any]) -> Any:
    linear, scaled = chain
    x, w = (read(linear, o) for o in linear.operands)
    rows, columns, *bias = (read(scaled, o) for o in scaled.operands[1:])
    given = bias[0].reshape(-1) if bias else None
    return _scaled_mm(
        OpInstance.of_call(program, linear), x, w, rows.reshape(-1, 1), columns.reshape(1, -1), given
    )


def _scaled_mm(b: OpInstance, x: Any, w: Any, rows: Any, columns: Any, bias: Any = None) -> Any:
    """Of numbers of one byte, their sums kept in the tensor cores, as tilegen's are."""
    dtype, lines = getattr(torch, b.result.dtype), x.reshape(-1, x.shape[-1])
    y = torch._scaled_mm(lines, w.t(), rows, columns, bias, out_dtype=dtype, use_fast_accum=True)
    return y.reshape(b.out)


def _adds(c: Call, how: str) -> bool:
    return _expression(c) == "e0 + e1" and PointwiseAttributes.of(c).how[1] == how


def _shaped(x: Any, shape: tuple[Any, ...], wanted: tuple[Any, ...]) -> Any:
    return x if shape == wanted else x.reshape(wanted)


def _expression(c: Call) -> str:
    return c.attributes.expression if isinstance(c.attributes, PointwiseAttributes) else ""


def _addmm(program: Program, chain: Chain, read: Callable[..., Any]) -> Any:
    linear, *rest = chain
    x, w = (read(linear, o) for o in linear.operands)
    result = OpInstance.of_call(program, linear)
    bias = read(rest[0], rest[0].operands[1]).reshape(result.out[-1]) if len(rest) == 2 else None
    if bias is None:
        bias = torch.zeros(result.out[-1], dtype=getattr(torch, result.result.dtype))
    return torch.ops.aten._addmm_activation(bias, x, w.t(), use_gelu=True)


def _by_cublaslt(program: Program, chain: Chain, read: Callable[..., Any]) -> Any:
    linear, *rest = chain
    x, w = (read(linear, o) for o in linear.operands)
    biases = [read(c, c.operands[1]).reshape(-1) for c in rest if _adds(c, "columns")]
    activation = ACTIVATIONS.get(_expression(chain[-1]), "")
    result = getattr(torch, program.tensor(linear.result).dtype)
    return cublaslt.linear(x, w, biases[0] if biases else None, activation, result)


def _fused_conv(program: Program, chain: Chain, read: Callable[..., Any]) -> Any:
    conv, bias, *rest = chain
    x, w = (read(conv, o).permute(0, 3, 1, 2) for o in conv.operands)
    a, vector = ConvAttributes.of(conv), read(bias, bias.operands[1]).reshape(-1)
    shape = (a.stride, a.padding, a.dilation, 1)
    if len(rest) == 2:
        z = read(rest[0], rest[0].operands[1]).permute(0, 3, 1, 2)
        return torch.cudnn_convolution_add_relu(x, w, z, 1.0, vector, *shape).permute(0, 2, 3, 1)
    return torch.cudnn_convolution_relu(x, w, vector, *shape).permute(0, 2, 3, 1)


def _call(program: Program, c: Call, operands: Sequence[Any], attention: Attention) -> Any:
    b = OpInstance.of_call(program, c)
    if isinstance(c.attributes, PointwiseAttributes):
        named = enumerate(zip(operands, c.attributes.how, strict=True))
        return evaluate(c.attributes.expression, {f"e{n}": spread(x, how) for n, (x, how) in named})
    if isinstance(c.attributes, AttentionAttributes):
        return _attention(attention, b, *operands)
    if type(c.attributes) not in _OPS:
        raise TargetError(f"{c.name!r}: torch has no op of kind {c.kind!r} to compare with", c.where)
    return _OPS[type(c.attributes)](b, *operands)


def _linear(b: OpInstance, x: Any, w: Any) -> Any:
    if b.dtype(0) not in PAIRED:
        return F.linear(x, w.to(x.dtype) if b.dtype(1) == INT8 else w)
    one = torch.ones((), dtype=torch.float32)
    return _scaled_mm(b, x, w, one, one)


def _matmul(b: OpInstance, x: Any, y: Any) -> Any:
    a = MatmulAttributes.of(b)
    x, y = x.reshape(a.batch, -1, b.shape(0)[1]), y.reshape(a.b_batch, -1, b.shape(1)[1])
    return ((x.mT if a.transpose_a else x) @ (y.mT if a.transpose_b else y)).reshape(b.out)


def _conv2d(b: OpInstance, x: Any, w: Any) -> Any:
    a = ConvAttributes.of(b)
    return F.conv2d(
        x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2), None, a.stride, a.padding, a.dilation
    ).permute(0, 2, 3, 1)


def _grouped_conv2d(b: OpInstance, x: Any, w: Any) -> Any:
    a = GroupedConvAttributes.of(b)
    x, w = x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2)
    return F.conv2d(x, w, None, a.stride, a.padding, a.dilation, a.groups).permute(0, 2, 3, 1)


def _conv_transpose2d(b: OpInstance, x: Any, w: Any) -> Any:
    a = ConvTransposeAttributes.of(b)
    w = w.permute(3, 0, 1, 2)
    return F.conv_transpose2d(x, w, None, a.stride, a.padding, a.output_padding, 1, a.dilation)


def _first(of: Callable[..., Any]) -> Callable[..., Any]:
    """torch's op on channels first, a program's images having them last."""
    return lambda b, x, *rest: of(b, x.permute(0, 3, 1, 2), *rest).permute(0, 2, 3, 1)


def _softmax(b: OpInstance, x: Any) -> Any:
    a, columns = SoftmaxAttributes.of(b), b.shape(0)[1]
    x = x.reshape(a.batch, a.rows, columns) * a.scale
    if a.causal:
        x = x.masked_fill(torch.ones(a.rows, columns, dtype=torch.bool).triu(1 + columns - a.rows), -math.inf)
    y = x.log_softmax(dim=-1) if a.log else x.softmax(dim=-1)
    return y.reshape(b.out)


def _reduce(b: OpInstance, x: Any) -> Any:
    ways = {"sum": x.sum, "mean": x.mean, "max": x.amax, "min": x.amin, "logsumexp": x.logsumexp}
    return ways[ReduceAttributes.of(b).how](-1, keepdim=True)


def _attention(attention: Attention, b: OpInstance, *operands: Any) -> Any:
    a = AttentionAttributes.of(b)
    q = operands[0].reshape(a.batch, a.q_len, a.heads, a.head_dim)
    k, v = (t.reshape(a.batch, a.k_len, a.kv_heads, a.head_dim) for t in operands[1:3])
    seen = a.k_len if b.position is None else operands[b.position] + a.q_len
    if seen != a.k_len:
        k, v = k[:, :seen], v[:, :seen]
    if a.masks:
        told = [operands[b.index(n)] if b.has(n) else None for n in ("lengths", "slopes", "bias")]
        return _masked(a, q, k, v, seen, *told).reshape(b.out)
    return attention(b, q, k, v, seen).reshape(b.out)


def _masked(
    a: AttentionAttributes, q: Any, k: Any, v: Any, seen: int, lengths: Any, slopes: Any, bias: Any
) -> Any:
    """Of what no fused kernel of torch takes: a window, a prefix, a block mask, lengths, slopes and a bias as
    a mask, a soft cap op by op."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    mask, places = torch.ones(a.q_len, seen, dtype=torch.bool), torch.arange(seen)
    mask = mask.tril(seen - a.q_len) if a.causal else mask
    mask = mask.triu(seen - a.q_len - a.window + 1) if a.window is not None else mask
    mask = mask | (places < a.prefix) if a.prefix is not None else mask
    mask = mask & ~hidden_keys(a, mask.device) if a.block_mask is not None else mask
    mask = mask & (places < lengths[:, None, None, None]) if lengths is not None else mask
    rise = None
    if slopes is not None:
        rise = slopes[:, None, None] * (places - torch.arange(a.q_len)[:, None] - (seen - a.q_len))
    if bias is not None and a.bias is not None:
        more = added(bias, a.bias, a.batch)
        rise = more if rise is None else more + rise
    if a.cap is None:
        given = mask if rise is None else torch.where(mask, rise, -math.inf).to(q.dtype)
        y = F.scaled_dot_product_attention(q, k, v, given, scale=a.scale, enable_gqa=a.heads != a.kv_heads)
        return y.transpose(1, 2)
    k, v = (t.repeat_interleave(a.heads // a.kv_heads, dim=1) for t in (k, v))
    scores = a.cap * ((q @ k.mT) * (a.scale / a.cap)).tanh()
    p = (scores if rise is None else (scores + rise).to(q.dtype)).masked_fill(~mask, -math.inf).softmax(-1)
    p = p if not a.leaves_rows else p.nan_to_num(0.0)  # of rows that see no key
    return (p @ v).transpose(1, 2)


def _append(b: OpInstance, cache: Any, x: Any, at: int | None = None) -> Any:
    a = AppendAttributes.of(b)
    first = a.at if at is None else at
    rest = b.tensors[b.operand("cache").tensor].shape[2:]
    cache[:, first : first + a.seq].copy_(x.reshape(a.batch, a.seq, *rest))
    return cache


def _rope(b: OpInstance, x: Any, at: int = 0) -> Any:
    a, rows = RopeAttributes.of(b), b.out[0]
    d = a.head_dim
    p = torch.arange(rows, dtype=torch.float64) % a.seq + at
    phi = p[:, None] * a.theta ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    cos, sin = phi.cos().float()[:, None], phi.sin().float()[:, None]  # tables, as models keep them
    y = x.float().reshape(rows, -1, d)
    lo, hi = y[..., : d // 2], y[..., d // 2 :]
    return (
        torch.cat((lo * cos - hi * sin, hi * cos + lo * sin), dim=-1)
        .to(getattr(torch, b.result.dtype))
        .reshape(b.out)
    )


def _rotary(b: OpInstance, x: Any, cos: Any, sin: Any) -> Any:
    y = turned(x.reshape(b.out), cos, sin, RotaryAttributes.of(b))
    return y.to(x.dtype).reshape(b.out)


def _strided_copy(b: OpInstance, x: Any) -> Any:
    a = StridedCopyAttributes.of(b)
    x = x.contiguous().view(-1)[a.offset :]
    return x.as_strided(a.sizes, a.strides).contiguous().view(b.out)


_OPS: dict[type[Attributes], Callable[..., Any]] = {
    LinearAttributes: _linear,
    MatmulAttributes: _matmul,
    ConvAttributes: _conv2d,
    GroupedConvAttributes: _grouped_conv2d,
    ConvTransposeAttributes: _first(_conv_transpose2d),
    SoftmaxAttributes: _softmax,
    AppendAttributes: _append,
    RopeAttributes: _rope,
    RotaryAttributes: _rotary,
    RmsNormAttributes: lambda b, x, w: F.rms_norm(x, (b.out[-1],), w, b.attributes.eps),
    LayerNormAttributes: lambda b, x, w, bias: F.layer_norm(x, (b.out[-1],), w, bias, b.attributes.eps),
    ReduceAttributes: _reduce,
    GroupNormAttributes: _first(
        lambda b, x, w, bias: F.group_norm(x, b.attributes.groups, w, bias, b.attributes.eps)
    ),
    PadAttributes: lambda b, x: F.pad(x, (0, b.attributes.behind)),
    CatAttributes: lambda b, *parts: torch.cat(parts, dim=-1),
    TakeAlongAttributes: lambda b, x, ids: x.gather(-1, ids.long()),
    StridedCopyAttributes: _strided_copy,
    EmbeddingAttributes: lambda b, ids, table: F.embedding(ids, table).reshape(b.out),
    PoolAttributes: _first(
        lambda b, x: F.max_pool2d(x, b.attributes.window, b.attributes.stride, b.attributes.padding)
    ),
    AvgPoolAttributes: _first(
        lambda b, x: F.avg_pool2d(
            x,
            b.attributes.window,
            b.attributes.stride,
            b.attributes.padding,
            count_include_pad=b.attributes.counts_padding,
        )
    ),
    UpsampleAttributes: _first(lambda b, x: F.interpolate(x, scale_factor=b.attributes.factor)),
    GlobalAvgPoolAttributes: lambda b, x: x.float().mean(dim=(1, 2)).to(getattr(torch, b.result.dtype)),
}
