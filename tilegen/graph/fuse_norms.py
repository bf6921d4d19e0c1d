"""Norms fused into the linears that read them.

    linear(rms_norm(x, v), w) = (x ∘ v) wᵀ / √(mean(x²) + eps)

so the rows can be scaled after the product: the norm needs no tiles of its own, no hand-over, and each step
of the product waits for its own columns of x alone. The linear adds up the squares of its activations; packed
weights hold v w, and where weights come as they are it multiplies its activations by v
(templates/cuda/sm90/fused_norm.cuh.j2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilegen.arch.machine import Machine
from tilegen.frontend.program import Tensor
from tilegen.graph.cost_model import norm_us, scaling_us
from tilegen.graph.forms import Place
from tilegen.graph.graph import Graph
from tilegen.graph.rewrites import Rewrite
from tilegen.ops.base import Epilogue, OpInstance, TileOp
from tilegen.ops.gemm import LinearAttributes, normed
from tilegen.ops.norm import NormAttributes, RmsNormAttributes
from tilegen.options import Options

MOST_ROWS = 64  # of x: one tile high
NORM = "rms_norm"


@dataclass(frozen=True)
class Choice:
    """What the model says of folding: µs that the norm as an op of its own takes, and that folding adds to
    its readers."""

    alone_us: float
    fused_us: float

    @property
    def pays(self) -> bool:
        return self.fused_us < self.alone_us


def fused(graph: Graph, place: Place, options: Options) -> Graph:
    """The graph with its norms fused where they can be and, if options.norms is "auto", where that pays and
    the options do not speak of them."""
    for op in graph.ops if options.norms != "separate" else ():
        if not isinstance(op.attributes, RmsNormAttributes) or problem(graph, op, place):
            continue
        readers = graph.readers(op.result)
        taken = options.named & {op.name, op.result} or options.shared & {r.name for r in readers}
        if options.norms == "fused" or (
            not taken and choice(graph.bound(op), [graph.bound(r) for r in readers], place.machine).pays
        ):
            graph = _fuse(graph, op, readers)
    return graph


def problem(graph: Graph, op: TileOp, place: Place) -> str:
    """Why a norm cannot be fused into its readers, or an empty string."""
    b, readers, v = graph.bound(op), graph.readers(op.result), op.operands[1]
    if not place.forms.fuses_norms:
        return f"{place.forms.name} has no form for it"
    if not isinstance(op.attributes, RmsNormAttributes):
        return f"a {op.kind} does more than scale its rows"
    if b.result.dtype != "bfloat16":
        return f"rows that are not scaled yet may be too large for {b.result.dtype}"
    if not isinstance(b.out[0], int) or b.out[0] > MOST_ROWS:
        return (
            f"it has {b.out[0]} rows, more than the {MOST_ROWS} for which weights and not products take the"
            " time"
        )
    if op.epilogue and op.epilogue.expression != "acc0":
        return f"{op.epilogue.expression} follows it"
    if op.result in graph.outputs:
        return "it is an output"
    if graph.writers(v.tensor) or v.columns or op.operands[0].flatten:
        return "its operands are not whole arguments"
    other = next((r.name for r in readers if not _reads_rows(r, op.result) or normed(graph.bound(r))), "")
    return f"{other!r} reads it, and not as the rows of a linear" if other or not readers else ""


def _reads_rows(reader: TileOp, tensor: str) -> bool:
    """Whether a linear reads all of a tensor, as its left operand only."""
    first, *others = reader.operands
    return (
        isinstance(reader.attributes, LinearAttributes)
        and first.tensor == tensor
        and not first.columns
        and not first.flatten
        and all(o.tensor != tensor for o in others)
    )


def choice(norm: OpInstance, readers: list[OpInstance], machine: Machine) -> Choice:
    """By the machine's rates: a tile of the norm and its hand-over, against scaling in the readers where
    weights do not hide it."""
    return Choice(norm_us(norm, machine), sum(scaling_us(b, machine) for b in readers))


def _fuse(graph: Graph, norm: TileOp, readers: tuple[TileOp, ...]) -> Graph:
    x, v = norm.operands
    for reader in readers:
        epilogue, attributes = (
            reader.epilogue or Epilogue(),
            replace(LinearAttributes.of(reader), norm_eps=RmsNormAttributes.of(norm).eps),
        )
        # x and w stand before them, now v too
        moved = tuple((index + 1, how) for index, how in epilogue.operands)
        operands = (x, reader.operands[1], v, *reader.operands[2:])
        graph = graph.with_op(
            reader.name,
            replace(
                reader, operands=operands, attributes=attributes, epilogue=replace(epilogue, operands=moved)
            ),
        )
    tensors: Mapping[str, Tensor] = {name: t for name, t in graph.tensors.items() if name != norm.result}
    return replace(graph, ops=tuple(op for op in graph.ops if op.name != norm.name), tensors=tensors)


def lines(graph: Graph, place: Place) -> list[str]:
    """For `explain`: each norm of a plan, where it is and why."""
    found = []
    for op in graph.ops:
        b = graph.bound(op)
        if normed(b):
            told = choice(b, [b], place.machine)
            why = (
                f"the model gives {told.fused_us:.1f} µs for scaling in its steps, {told.alone_us:.1f} µs"
                " for an op and its hand-over"
            )
            found.append(
                f"norm fused into {op.name}: sums of {b.operand('x').tensor} ∘"
                f" {b.operand('norm_weight').tensor} are scaled by 1/rms; {why}"
            )
        elif isinstance(op.attributes, NormAttributes):
            why = problem(graph, op, place)
            if not why:
                told = choice(b, [graph.bound(r) for r in graph.readers(op.result)], place.machine)
                why = (
                    f"the model gives {told.alone_us:.1f} µs for it and its hand-over, {told.fused_us:.1f}"
                    " µs for scaling in its readers' steps"
                )
            found.append(f"norm {op.name} is an op of its own: {why}")
    return found


REWRITE = Rewrite(10, fused, lines)
