"""Random arguments for a program: normal data, scaled so that values keep their size from op to op."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator

import torch

from tilegen.errors import ArgumentError
from tilegen.frontend.program import DTYPES, INT8, Program, Tensor
from tilegen.ops.append import AppendAttributes
from tilegen.ops.attention import AttentionAttributes
from tilegen.ops.base import OpInstance
from tilegen.ops.embedding import EmbeddingAttributes

HIDDEN = 0.2  # of the keys, by what is added to scores


def random_arguments(program: Program, seed: int = 0, device: str = "cpu") -> list[torch.Tensor]:
    """One tensor per argument, in declaration order, drawn on the device. Positions leave just enough room in
    their caches; what picks rows of a table is below their number; lengths are up to the number of keys,
    and slopes those of ALiBi's authors; what is added to scores hides keys here and there, and the last of
    its rows all."""
    generator = torch.Generator(device).manual_seed(seed)
    if device == "cpu":
        _check_memory(program)
    return [_argument(program, t, generator) for t in program.arguments]


def argument_bytes(program: Program) -> int:
    """Of a set: inputs, weights and states."""
    return sum(math.prod(t.shape) * DTYPES[t.dtype] for t in program.arguments)


def _check_memory(program: Program) -> None:
    """ArgumentError where a program's own tensors are more than this machine's memory."""
    sizes = {t.name: math.prod(t.shape) * getattr(torch, t.dtype).itemsize for t in program.tensors}
    total, here = sum(sizes.values()), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if total > here:
        name = max(sizes, key=lambda n: sizes[n])
        raise ArgumentError(
            f"{program.name}: its tensors take {total:,} bytes ({name!r} alone {sizes[name]:,}), "
            f"this machine has {here:,}",
            program.tensor(name).where,
        )


def _argument(program: Program, t: Tensor, generator: torch.Generator) -> torch.Tensor:
    if t.dtype == "int32" and (below := least_table(program, t.name) or most_lengths(program, t.name)):
        return torch.randint(below, t.shape, dtype=torch.int32, device=generator.device, generator=generator)
    if t.dtype == "int32":
        return torch.tensor([free_rows(program, t.name)], dtype=torch.int32, device=generator.device)
    if heads := most_heads(program, t.name):
        x = 2.0 ** (torch.arange(1, heads + 1, device=generator.device) * (-8.0 / heads))
        return x.to(getattr(torch, t.dtype))
    if t.dtype == INT8:
        drawn = torch.randint(256, t.shape, device=generator.device, generator=generator)
        return (drawn - 128).to(torch.int8)
    x = torch.empty(t.shape, dtype=torch.float32, device=generator.device).normal_(generator=generator)
    if any(_attentions(program, "bias", t.name)):
        hides = torch.rand(t.shape, device=generator.device, generator=generator) < HIDDEN
        x.masked_fill_(hides, -math.inf).view(-1, t.shape[-1])[1:][-1:] = -math.inf
    elif t.role == "weight" and len(t.shape) == 1:
        x = 1.0 + 0.1 * x  # norm weights, variances, biases
    elif t.role == "weight":
        x *= math.prod(t.shape[1:]) ** -0.5
    return x.to(getattr(torch, t.dtype))


def least_table(program: Program, ids: str) -> int:
    """The fewest rows of any table, or columns of any tensor, that these numbers pick from; 0 where they pick
    from none."""
    there = []
    for c in program.calls:
        b = OpInstance.of_call(program, c)
        if b.has("ids") and b.operand("ids").tensor == ids:
            table = isinstance(c.attributes, EmbeddingAttributes)
            there.append(int(b.shape(b.index("table"))[0] if table else b.shape(b.index("x"))[1]))
    return min(there, default=0)


def most_lengths(program: Program, lengths: str) -> int:
    """How many lengths sequences may have, from 0 to the fewest keys of any attention that is told these; 0
    where none is."""
    return min((int(a.k_len) + 1 for a in _attentions(program, "lengths", lengths)), default=0)


def most_heads(program: Program, slopes: str) -> int:
    """Heads of the attentions whose scores rise by these slopes; 0 where none do."""
    return max((a.heads for a in _attentions(program, "slopes", slopes)), default=0)


def _attentions(program: Program, operand: str, tensor: str) -> Iterator[AttentionAttributes]:
    """Those whose operand of that name is the tensor."""
    for c in program.calls:
        b = OpInstance.of_call(program, c)
        told = isinstance(b.attributes, AttentionAttributes) and b.has(operand)
        if told and b.operand(operand).tensor == tensor:
            yield AttentionAttributes.of(b)


def free_rows(program: Program, position: str) -> int:
    """The largest position that every use of it allows."""
    room = []
    for c in program.calls:
        if position in (o.tensor for o in c.operands):
            match c.attributes:
                case AppendAttributes(max_len=there, seq=new) | AttentionAttributes(k_len=there, q_len=new):
                    room.append(there - new)
    return min(room, default=0)


def spoiled(t: torch.Tensor) -> torch.Tensor:
    """The tensor, filled with what is wrong wherever it is read: NaN, or a column that no row has."""
    return t.fill_(math.nan if t.is_floating_point() else torch.iinfo(t.dtype).min)


def relative_error(result: torch.Tensor, reference: torch.Tensor) -> float:
    """‖result - reference‖ / ‖reference‖, or ‖result‖ where the reference is all zero; in float64, NaN for a
    NaN. Of whole numbers 0 where all are right, else ∞."""
    if not reference.is_floating_point():
        return 0.0 if bool((result.reshape(reference.shape) == reference).all()) else math.inf
    r = reference.double()
    apart, size = float((result.double().reshape(r.shape) - r).norm()), float(r.norm())
    return apart / size if size else apart
