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
from tilegen.frontend.spec import Call, Operand, Program
from tilegen.ops.base import Bound, TileOp
from tilegen.ops.pointwise import evaluate
from tilegen.ops.reference import view

Chain = tuple[Call, ...]
# result -> the calls that one library call replaces, and that call
Chains = dict[str, tuple[Chain, Callable[..., Any]]]
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
    at = {t.name: int(a[0]) for t, a in zip(program.arguments, arguments, strict=True) if t.dtype == "int32"}
    device = arguments[0].device
    pairs = fused or {}
    inside = {c.result for chain, _ in pairs.values() for c in chain[:-1]}
    states = {t.name for t in program.arguments if t.role == "state"}

    def run(*given: Any) -> Any:
        values = {
            t.name: given[n] if t.name in states else _shaped(given[n], t.shape, t.plan_shape)
            for n, t in enumerate(program.arguments)
        }

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
        if first is not None and first.kind == "conv2d" and len(chain) > 1 and _adds(chain[0], "columns"):
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
        if chain[0].kind == "linear" and last.result not in inside:
            found[last.result] = tuple(chain), _by_cublaslt
            inside |= {c.result for c in chain[:-1]}
    return found


def gelu_pairs(program: Program) -> Chains:
    """Those of linear_chains that end in gelu(tanh): what torch's own fused op can do."""
    return {
        result: (chain, _addmm)
        for result, (chain, _) in linear_chains(program).items()
        if _expression(chain[-1]) == "gelu_tanh(e0)"
    }


def _adds(c: Call, how: str) -> bool:
    return _expression(c) == "e0 + e1" and dict(c.attributes)["how"][1] == how


def _shaped(x: Any, shape: tuple[Any, ...], wanted: tuple[Any, ...]) -> Any:
    return x if shape == wanted else x.reshape(wanted)


def _expression(c: Call) -> str:
    return str(dict(c.attributes)["expression"]) if c.kind == "pointwise" else ""


def _bound(program: Program, c: Call) -> Bound:
    return Bound(
        TileOp(c.name, c.kind, c.operands, c.result, c.attributes), {t.name: t for t in program.tensors}
    )


def _addmm(program: Program, chain: Chain, read: Callable[..., Any]) -> Any:
    linear, *rest = chain
    x, w = (read(linear, o) for o in linear.operands)
    result = _bound(program, linear)
    bias = read(rest[0], rest[0].operands[1]).reshape(result.out[-1]) if len(rest) == 2 else None
    if bias is None:
        bias = torch.zeros(result.out[-1], dtype=getattr(torch, result.result.dtype))
    return torch.ops.aten._addmm_activation(bias, x, w.t(), use_gelu=True)


def _by_cublaslt(program: Program, chain: Chain, read: Callable[..., Any]) -> Any:
    linear, *rest = chain
    x, w = (read(linear, o) for o in linear.operands)
    biases = [read(c, c.operands[1]).reshape(-1) for c in rest if _adds(c, "columns")]
    activation = ACTIVATIONS.get(_expression(chain[-1]), "")
    return cublaslt.linear(x, w, biases[0] if biases else None, activation)


def _fused_conv(program: Program, chain: Chain, read: Callable[..., Any]) -> Any:
    conv, bias, *rest = chain
    x, w = (read(conv, o).permute(0, 3, 1, 2) for o in conv.operands)
    b, vector = _bound(program, conv), read(bias, bias.operands[1]).reshape(-1)
    shape = (b.stride, b.padding, b.dilation, 1)
    if len(rest) == 2:
        z = read(rest[0], rest[0].operands[1]).permute(0, 3, 1, 2)
        return torch.cudnn_convolution_add_relu(x, w, z, 1.0, vector, *shape).permute(0, 2, 3, 1)
    return torch.cudnn_convolution_relu(x, w, vector, *shape).permute(0, 2, 3, 1)


def _call(program: Program, c: Call, operands: Sequence[Any], attention: Attention) -> Any:
    b = _bound(program, c)
    if c.kind == "pointwise":
        return evaluate(b.expression, {f"e{n}": x for n, x in enumerate(operands)})
    if c.kind == "attention":
        return _attention(attention, b, *operands)
    if c.kind not in _OPS:
        raise TargetError(f"{c.name!r}: torch has no op of kind {c.kind!r} to compare with", c.where)
    return _OPS[c.kind](b, *operands)


def _matmul(b: Bound, x: Any, y: Any) -> Any:
    x, y = x.reshape(b.batch, -1, b.shape(0)[1]), y.reshape(b.b_batch, -1, b.shape(1)[1])
    return ((x.mT if b.transpose_a else x) @ (y.mT if b.transpose_b else y)).reshape(b.out)


def _conv2d(b: Bound, x: Any, w: Any) -> Any:
    return F.conv2d(
        x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2), None, b.stride, b.padding, b.dilation
    ).permute(0, 2, 3, 1)


def _softmax(b: Bound, x: Any) -> Any:
    columns = b.shape(0)[1]
    x = x.reshape(b.batch, b.rows, columns) * b.scale
    if b.causal:
        x = x.masked_fill(torch.ones(b.rows, columns, dtype=torch.bool).triu(1 + columns - b.rows), -math.inf)
    return x.softmax(dim=-1).reshape(b.out)


def _attention(attention: Attention, b: Bound, q: Any, k: Any, v: Any, at: int | None = None) -> Any:
    q = q.reshape(b.batch, b.q_len, b.heads, b.head_dim)
    k, v = (t.reshape(b.batch, b.k_len, b.kv_heads, b.head_dim) for t in (k, v))
    seen = b.k_len if at is None else at + b.q_len
    if seen != b.k_len:
        k, v = k[:, :seen], v[:, :seen]
    return attention(b, q, k, v, seen).reshape(b.out)


def _append(b: Bound, cache: Any, x: Any, at: int | None = None) -> Any:
    first = b.at if at is None else at
    rest = b.tensors[b.op.operands[0].tensor].shape[2:]
    cache[:, first : first + b.seq].copy_(x.reshape(b.batch, b.seq, *rest))
    return cache


def _rope(b: Bound, x: Any, at: int = 0) -> Any:
    rows, d = b.out[0], b.head_dim
    p = torch.arange(rows, dtype=torch.float64) % b.seq + at
    phi = p[:, None] * b.theta ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    cos, sin = phi.cos().float()[:, None], phi.sin().float()[:, None]  # tables, as models keep them
    y = x.float().reshape(rows, -1, d)
    lo, hi = y[..., : d // 2], y[..., d // 2 :]
    return (
        torch.cat((lo * cos - hi * sin, hi * cos + lo * sin), dim=-1)
        .to(getattr(torch, b.result.dtype))
        .reshape(b.out)
    )


_OPS: dict[str, Callable[..., Any]] = {
    "linear": lambda b, x, w: F.linear(x, w),
    "matmul": _matmul,
    "conv2d": _conv2d,
    "softmax": _softmax,
    "append": _append,
    "rope": _rope,
    "rms_norm": lambda b, x, w: F.rms_norm(x, (b.out[-1],), w, b.eps),
    "layer_norm": lambda b, x, w, bias: F.layer_norm(x, (b.out[-1],), w, bias, b.eps),
    "max_pool2d": lambda b, x: F.max_pool2d(x.permute(0, 3, 1, 2), b.window, b.stride, b.padding).permute(
        0, 2, 3, 1
    ),
    "global_avg_pool": lambda b, x: x.float().mean(dim=(1, 2)).to(getattr(torch, b.result.dtype)),
}
