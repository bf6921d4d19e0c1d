"""CUDA for sm_90a: one persistent kernel for all GeMMs of a plan, around the shared schedule (templates/cuda/kernel.cu.j2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tilegen.codegen.cuda_op import TYPES
from tilegen.codegen.environment import Source, render
from tilegen.codegen.schedule import schedule_text
from tilegen.codegen.summary import summary
from tilegen.errors import PlanError
from tilegen.frontend.spec import Tensor
from tilegen.graph.positions import Position, positions
from tilegen.ops.base import Bound
from tilegen.ops.conv2d import by_threads
from tilegen.schedule.plan import Plan
from tilegen.targets.sm90.attention import HopperAttention
from tilegen.targets.sm90.conv2d import HopperConv
from tilegen.targets.sm90.layout import Layout
from tilegen.targets.sm90.op import MMA_TYPES, HopperOp
from tilegen.targets.sm90.shared_bodies import Family, Op, families
from tilegen.targets.sm90.stage import BoxMap, Loads, Map
from tilegen.targets.sm90.thread_op import THREADS as THREADS_OF_TILE
from tilegen.targets.sm90.threads import HopperThreads

THREADS = 384
REGISTERS, ROOMY = (40, 232), (56, 224)  # of a thread that loads, of one that computes


@dataclass(frozen=True)
class HopperSource(Source):
    """The text, and what the host must know to launch it."""

    roomy: Callable[[], str]  # the text with more registers for threads that load: many ops with waits need them
    maps: tuple[Map | BoxMap, ...]
    tensors: tuple[str, ...]  # whose addresses the kernel is given: the plan's, then those that twins see under other names
    packed: tuple[tuple[str, HopperOp], ...]  # map -> the op whose weight it packs
    shared_bytes: int
    gang: int
    turns: int  # the most tiles that a CTA may run
    positions: tuple[Position, ...]  # whose number and value the kernel reports where they leave no room
    threads: int = THREADS


NOTES = ("TG_WAITED", "TG_LOADED", "TG_AHEAD", "TG_AHEAD_LAST", "TG_ARRIVED", "TG_MULTIPLIED", "TG_FINISHED", "TG_POSTED", "TG_RANK")
NOTE_WORDS = 16  # of a tile: its time stamps, and its rank + 1


def hopper_op(plan: Plan, b: Bound, packed: frozenset[str] = frozenset()) -> Op:
    """An op as the kernel computes it: products on the tensor cores, everything else by threads."""
    if b.op.kind == "linear":
        return HopperOp(plan, b, packed)
    if b.op.kind == "attention":
        return HopperAttention(plan, b)
    if b.op.kind == "conv2d" and not by_threads(b):
        return HopperConv(plan, b)
    return HopperThreads(plan, b)


def generate(plan: Plan, packed: frozenset[str] = frozenset(), variant: str = "") -> HopperSource:
    """The kernel of a plan. `packed` weights come packed tile by tile where an op reads each only once, and do not change (Kernel.prepare).

    variant: "trace" notes times; "jitter" sleeps for random times before waits and posts and after products, to stress the order.
    PlanError where an op has no form on sm_90a.
    """
    ops = tuple(hopper_op(plan, b, packed) for b in plan.bounds)
    layout = Layout(ops, plan.placement == "ticket")
    uneven = [op for op in ops if isinstance(op, HopperOp) and op.shares("steps") and op.steps_of_tile % 2]
    if uneven and any(op.multicast for op in ops):  # one CTA would be a stage ahead of the other, and what they load together would land in different ones
        named = next(op.name for op in ops if op.multicast)
        raise PlanError(
            f"on sm_90a a pair that loads together (for {named!r}) must take equal shares: {uneven[0].name!r} has {uneven[0].steps_of_tile} steps, "
            f"an odd number; share its rows or columns, or choose steps of another width",
            uneven[0].bound.op.where,
        )
    single = [op for op in ops if op.parts < layout.gang]
    together = [op for op in ops if op.multicast]
    if single and together:
        raise PlanError(
            f"on sm_90a a pair that loads together (for {together[0].name!r}) must run every op, {single[0].name!r} is run by one CTA", single[0].bound.op.where
        )
    codes = families(ops)
    turns = plan.order.count if isinstance(plan.placement, str) else max(len(ranks) for ranks in plan.placement)
    return HopperSource(
        partial(_text, plan, codes, layout, variant, turns, REGISTERS),
        partial(_text, plan, codes, layout, variant, turns, ROOMY),
        tuple(m for family in codes for same in family.maps for m in same),
        (*plan.graph.tensors, *(tensor for family in codes for member in family.tensors for _, _, tensor in member)),
        tuple((f"{op.name}_b", op) for op in ops if isinstance(op, HopperOp) and op.packed),
        layout.bytes,
        layout.gang,
        turns,
        positions(plan.graph),
    )


def _text(plan: Plan, codes: tuple[Family, ...], layout: Layout, variant: str, turns: int, registers: tuple[int, int]) -> str:
    ops = [family.code for family in codes]
    loaders = _loaders(ops)
    coupled = any(op.multicast for op in ops)
    return render(
        "cuda/kernel.cu.j2",
        plan=plan,
        sizes=", ".join(f"{k}={v}" for k, v in plan.sizes),
        summary=summary(plan),
        schedule=schedule_text(plan),
        layout=layout,
        registers=registers,
        ops=ops,
        products=[op for op in ops if op.form == "product"],
        thread_ops=[op for op in ops if op.form == "threads"],
        gathers=any(op.gather for op in ops if isinstance(op, HopperThreads)),
        looks=any(_math_looks_early(op) for op in ops),
        mixed=any(op.form != "product" for op in ops),
        normed=any(op.normed for op in ops),
        alternating=any(op.alternates for op in ops if isinstance(op, HopperOp)),
        attentions=[op for op in ops if op.form == "attention"],
        passes=any(op.passed for op in ops),
        turning=any(op.turning for op in ops),
        positions=positions(plan.graph),
        thread_count=THREADS_OF_TILE,
        maps=[_map(same) for family in codes for same in family.maps],
        tensors=[_tensor(t) for t in plan.graph.tensors.values()],
        families=[_family(family) for family in codes if family.shared],
        mma_widths=_mma_widths(ops),
        loaders=loaders,
        waiters=sum(role["waits"] for role in loaders),
        staged=any(op.staged for op in ops),
        boxed=any(op.staged for op in ops if isinstance(op, HopperConv)),
        direct=any(op.posts and not op.staged for op in ops),
        exchange=layout.sums_bytes > 0,
        coupled=coupled,
        barriers=layout.barriers(coupled),
        trace=variant == "trace",
        jitter=variant == "jitter",
        notes=NOTES,
        note_words=NOTE_WORDS,
        turns=turns,
    )


def _tensor(t: Tensor) -> dict[str, Any]:
    return {"name": t.name, "type": TYPES[t.dtype], "comment": f"{t.role} [{', '.join(str(s) for s in t.plan_shape)}]"}


def _map(same: Sequence[Map | BoxMap]) -> dict[str, Any]:
    """A tensor map of an op's code; an array where twins share it."""
    first, n = same[0], len(same)
    if n == 1:
        return {"declared": first.name, "comment": first.comment, "each": [first.name]}
    comment = ", ".join(m.tensor for m in same) + first.comment.removeprefix(first.tensor)
    return {"declared": f"{first.name}[{n}]", "comment": comment, "each": [f"{first.name}[{i}]" for i in range(n)]}


def _family(family: Family) -> dict[str, Any]:
    """The tensors of twins as their code sees them."""
    members = [
        {"name": alike[0][0], "type": alike[0][1], "comment": ", ".join(tensor for _, _, tensor in alike)} for alike in zip(*family.tensors, strict=True)
    ]
    names = [op.name for op in family.members]
    return {"name": names[0], "count": len(names), "comment": ", ".join(names), "members": members}


def _loaders(ops: Sequence[Op]) -> list[dict[str, Any]]:
    """The two loading roles. Activations always close the launch: the last of them zeroes the counters."""
    a = [_loads(op, op.a, "") for op in ops]
    early = any(_looks_early(op) for op in ops if not isinstance(op, HopperAttention))
    b = [_loads(op, op.b, f" + {op.b_at}" if op.b_at else "", not early and _looks_early(op)) for op in ops]
    return [
        {
            "name": "tg_load_activations",
            "comment": "// Activations: waits for the semaphores of each step, then loads.",
            "ops": a,
            "policies": sorted({op.a_policy for op in ops} - {""}),
            "waits": True,
            "depends": True,
            "clusters": any(op.multicast == "activations" for op in ops),
            "watches": False,
            "first_note": "TG_WAITED",
            "last_note": "TG_LOADED",
        },
        {
            "name": "tg_load_weights",
            "comment": "// Weights: runs ahead as far as the ring is deep; waits only where another op makes them.",
            "ops": b,
            "policies": sorted({op.b_policy for op in ops} - {""}),
            "waits": any(load.waits for op in ops for load in op.b.each),
            "depends": early,
            "clusters": any(op.multicast == "weights" for op in ops),
            "watches": True,
            "first_note": "TG_AHEAD",
            "last_note": "TG_AHEAD_LAST",
        },
    ]


def _looks_early(op: Op) -> bool:
    """Whether the weights' role must wait for the launch before: not for packed weights, which do not change, nor for ops that it loads nothing for.

    It does so before all of its work, or, where only caches and their position are not weights, before an attention's: until then weights come in.
    """
    if isinstance(op, HopperAttention):
        return bool(op.position)
    return isinstance(op, HopperOp) and not op.packed


def _math_looks_early(op: Op) -> bool:
    """Whether the math warps must: they look at some arguments before the role that loads activations tells that these are there."""
    if isinstance(op, HopperThreads):
        return op.looks_early
    return bool(op.epilogue_operands) or (op.normed and not op.packed) if isinstance(op, HopperOp) else bool(op.position)


def _loads(op: Op, loads: Loads, at: str, depends: bool = False) -> dict[str, Any]:
    own = {"cases": op.cases, "waits_function": op.waits_function, "locals": op.locals, "range": op.range, "steps": op.steps, "parts": op.parts}
    return {**own, "loads": loads, "at": at, "depends": depends}


def _mma_widths(ops: Sequence[Op]) -> list[dict[str, Any]]:
    """Each wgmma shape that an op uses, with its operands numbered."""
    found = {}
    for op in ops:
        if isinstance(op, HopperOp):
            found[op.mma] = _mma(op.mma, op.columns_of_warpgroup, MMA_TYPES[op.bound.dtype(0)])
        if isinstance(op, HopperAttention):
            found[op.scores] = _mma(op.scores, op.keys, op.type)
            found[op.values] = _mma(op.values, op.head, op.type, held=True)
    return list(found.values())


def _mma(name: str, columns: int, kind: str, held: bool = False) -> dict[str, Any]:
    """held: the left operand in four registers, the right one as it lies, its rows summed over."""
    numbers = [f"%{r}" for r in range(columns // 2)]
    text = ",\n".join(", ".join(numbers[r : r + 16]) for r in range(0, len(numbers), 16))
    lines = ("{" + text + "},").split("\n")
    return {
        "suffix": name,
        "columns": columns,
        "type": kind,
        "registers": numbers,
        "lines": lines,
        "a": len(numbers),
        "b": len(numbers) + (4 if held else 1),
        "held": held,
        "outputs": ", ".join(f'"+f"(d[{r}])' for r in range(len(numbers))),
    }
