"""Which keys a query of an attention sees, and what is added to its scores."""

from __future__ import annotations

from typing import Any

import sympy as sp

from tilegen.frontend.program import Operand, Size
from tilegen.frontend.value import Value
from tilegen.ops.base import Interval, batch_base, blocks, need
from tilegen.ops.block_mask import hidden_keys


def lengths_operand(lengths: Value, batch: Size, where: str) -> Operand:
    """How many keys each sequence has: an int32 input of an element a sequence."""
    whole = isinstance(lengths, Value) and lengths.dtype == "int32" and lengths.columns is None
    need(
        whole and lengths.shape == (batch,),
        f"attention: lengths is tg.input(name, ({batch},), 'int32'), given {_said(lengths)}",
        where,
    )
    return lengths.operand("vector", where)


def slopes_operand(slopes: Value, heads: int, where: str) -> Operand:
    """What a head's scores rise by from key to key: a float32 weight or input of an element a head."""
    given = isinstance(slopes, Value) and slopes.dtype == "float32" and slopes.columns is None
    given = given and slopes.builder.tensors[slopes.tensor].role in ("weight", "input")
    need(
        given and slopes.shape == (heads,),
        f"attention: alibi is tg.weight(name, ({heads},), 'float32'), given {_said(slopes)}",
        where,
    )
    return slopes.operand("vector", where)


BiasSizes = tuple[Size, Size, Size]  # of batches, heads and queries; 1: all have the same


def bias_operand(
    bias: Any, dtype: str, sizes: BiasSizes, k_len: Size, at: bool, where: str
) -> tuple[Operand, BiasSizes]:
    """What is added to scores, and its sizes but for the keys'. dtype: of queries. sizes: of batches, heads
    and queries."""
    need(not at, "attention: a bias is of sequences without caches, given at", where)
    batch, heads, q_len = sizes
    need(
        isinstance(bias, Value) and not bias.flattened and bias.dtype in (dtype, "float32"),
        f"attention: bias is a tensor of {' or '.join(dict.fromkeys((dtype, 'float32')))}, given"
        f" {_said(bias)}",
        where,
    )
    fixed = isinstance(q_len, int) and isinstance(k_len, int)
    need(fixed, f"attention: {q_len} queries and {k_len} keys beside a bias, expected numbers", where)
    shape = (*[1] * (4 - len(bias.shape)), *bias.shape)
    given = shape[0], shape[1], shape[2]
    each = all(n in (1, whole) for n, whole in zip(given[1:], sizes[1:], strict=True))
    again = given[0] in (1, batch) or (
        isinstance(batch, int) and isinstance(given[0], int) and batch % given[0] == 0
    )
    need(
        1 < len(bias.shape) <= 4 and each and again and shape[3] == k_len,
        f"attention: bias is (1 or {batch}, 1 or {heads}, 1 or {q_len}, {k_len}), or what batches have again"
        f" and again, a divisor of {batch}; given {bias!r}",
        where,
    )
    return bias.operand("rows", where), given


def bias_rows(b: Any, bias: BiasSizes) -> tuple[Interval, bool]:
    """Rows of a bias from that of a tile's first query of its first head to that of the last of its last, and
    whether the tile reads all of these. b: OpInstance of an attention."""
    a, (n, h, i), (batches, heads, queries) = b.attributes, b.coords[:3], bias
    if 1 != batches != a.batch:  # which of them a batch has is no sum of its coordinate
        return Interval(sp.Integer(0), sp.sympify(batches * heads * queries)), False
    first = batch_base(n, batches, heads * queries)
    last = sp.Integer(0)  # rows from the first head to the last
    if heads > 1:
        first, last = first + h * b.tile[2] * queries, (b.tile[2] - 1) * queries
    own = blocks(i, b.tile[0], queries, first) if queries > 1 else Interval(first, first + 1)
    return Interval(sp.sympify(own.lo), sp.sympify(own.hi + last)), not last or b.tile[0] >= queries


def added(bias: Any, sizes: BiasSizes, batch: int) -> Any:
    """[batch or 1, heads or 1, queries or 1, keys]: what is added to scores."""
    shaped = bias.reshape(*sizes, bias.shape[-1])
    return shaped if sizes[0] in (1, batch) else shaped.repeat(batch // sizes[0], 1, 1, 1)


def _said(given: Any) -> str:
    return f"{given!r} of {given.dtype}" if isinstance(given, Value) else repr(given)


def check_causal(q_len: Size, k_len: Size, causal: bool, at: bool, window: int | None, where: str) -> None:
    """at: whether keys are caches. SpecError where a query would see no key, or a window says nothing."""
    if isinstance(q_len, int) and isinstance(k_len, int):
        enough = k_len >= q_len
        need(not at or enough, f"attention: {q_len} queries do not fit into caches of {k_len} rows", where)
        need(
            not causal or at or enough,
            f"attention: causal needs at least as many keys as queries, given {k_len} and {q_len}",
            where,
        )
    counted = isinstance(window, int) and not isinstance(window, bool) and window > 0
    need(
        window is None or ((causal or at) and counted),
        f"attention: window is a positive int beside causal=True or at, given {window!r}",
        where,
    )


def check_prefix(prefix: int | None, alone: bool, k_len: Size, where: str) -> None:
    """alone: whether the attention is causal, with neither a position nor a window."""
    counted = isinstance(prefix, int) and not isinstance(prefix, bool) and prefix > 0
    need(
        prefix is None or (alone and counted),
        f"attention: prefix is a positive int beside causal=True, without at and window, given {prefix!r}",
        where,
    )
    need(
        prefix is None or not isinstance(k_len, int) or prefix <= k_len,
        f"attention: a prefix of {prefix} keys, of which there are {k_len}",
        where,
    )


def ahead(q_len: int, k_len: int, first: int, device: Any) -> Any:
    """[q_len, k_len]: how far a key is ahead of the query's own; `first` is that of the first query."""
    import torch

    return torch.arange(k_len, device=device) - torch.arange(q_len, device=device)[:, None] - first


def hidden(a: Any, first: int, lengths: Any, device: Any) -> Any:
    """Which keys a query does not see, [q_len, k_len] or, where sequences have lengths, [batch, 1, q_len,
    k_len]; None where it sees all. a: AttentionAttributes."""
    import torch

    found = None
    if a.causal:
        apart = ahead(a.q_len, a.k_len, first, device)
        found = apart > 0
        if a.window is not None:
            found = found | (apart <= -a.window)
        if a.prefix is not None:
            found = found & (torch.arange(a.k_len, device=device) >= a.prefix)
    if a.block_mask is not None:
        apart = hidden_keys(a, device)
        found = apart if found is None else apart | found
    if lengths is not None:
        behind = torch.arange(a.k_len, device=device) >= lengths.to(device)[:, None, None, None]
        found = behind if found is None else behind | found
    return found
