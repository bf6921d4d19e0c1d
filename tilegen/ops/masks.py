"""Which keys a query of an attention sees, and what is added to its scores."""

from __future__ import annotations

from typing import Any

from tilegen.frontend.program import Operand, Size
from tilegen.frontend.spec import Value
from tilegen.ops.base import need


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


def _said(given: Any) -> str:
    return f"{given!r} of {given.dtype}" if isinstance(given, Value) else repr(given)


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
    if lengths is not None:
        behind = torch.arange(a.k_len, device=device) >= lengths.to(device)[:, None, None, None]
        found = behind if found is None else behind | found
    return found
