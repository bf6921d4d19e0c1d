"""CUDA for sm_90a: one persistent kernel for all GeMMs of a plan, around the shared schedule (templates/cuda/kernel.cu.j2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from tilegen.codegen.cpu import summary
from tilegen.codegen.cuda_op import TYPES
from tilegen.codegen.environment import Source, render
from tilegen.codegen.hopper_attention import HopperAttention
from tilegen.codegen.hopper_conv import HopperConv
from tilegen.codegen.hopper_op import MMA_TYPES, HopperOp
from tilegen.codegen.hopper_stage import BoxMap, Loads, Map
from tilegen.codegen.hopper_threads import HopperThreads
from tilegen.codegen.schedule import schedule_text
from tilegen.codegen.thread_op import THREADS as THREADS_OF_TILE
from tilegen.errors import PlanError
from tilegen.ops.base import Bound
from tilegen.ops.conv2d import by_threads
from tilegen.plan import Plan
from tilegen.spec import Tensor

Op = HopperOp | HopperAttention | HopperThreads

SHARED = 232448  # bytes of shared memory that a CTA may use
SLACK = 1024  # to start at a multiple of 1024
MOST_STAGES = 32
THREADS = 384
REGISTERS, ROOMY = (40, 232), (56, 224)  # of a thread that loads, of one that computes
BUFFER = 8192  # a 64 x 64 block of results


@dataclass(frozen=True)
class Layout:
    """Shared memory: ring of stages, result buffers, exchanged sums, barriers."""

    ops: tuple[Op, ...]
    ticket: bool  # else each CTA has its list

    @property
    def gang(self) -> int:
        return max(op.parts for op in self.ops)

    @property
    def runner(self) -> str:
        """Which CTA of a pair runs a tile that needs one: of lists each in turn, of tickets the one that draws them."""
        return "0" if self.ticket else "turn % TG_GANG"

    @property
    def slots(self) -> int:
        """Tiles handed out ahead: one where tickets are drawn, so that a slow CTA holds back as little as possible."""
        return 1 if self.ticket else 4

    @cached_property
    def stage_bytes(self) -> int:
        return max(1024, *(op.stage_bytes for op in self.ops))

    @cached_property
    def sums_bytes(self) -> int:
        """Of one math warpgroup."""
        return max(op.sums_bytes for op in self.ops)

    @cached_property
    def sums_regions(self) -> int:
        """One where only the warpgroup of the part's own number is sent sums (tiles of 64 rows), else one for each."""
        return 1 if all(op.splits_columns for op in self.ops if op.exchanges) else 2

    @cached_property
    def given_bytes(self) -> int:
        """Of what a tile is given outside of the ring: its queries, which stay while keys and values pass through."""
        return max((op.given_bytes for op in self.ops if isinstance(op, HopperAttention)), default=0)

    @cached_property
    def given_overrun(self) -> int:
        return max((op.given_overrun for op in self.ops if isinstance(op, HopperAttention)), default=0)

    @cached_property
    def overrun(self) -> int:
        """Bytes from the start of a stage that wgmma may touch."""
        return max(op.overrun for op in self.ops)

    @cached_property
    def scratch_bytes(self) -> int:
        return max(op.scratch_bytes for op in self.ops)

    @cached_property
    def buffers(self) -> int:
        """Result buffers of each math warpgroup: as many as its tile has blocks, so that it need not wait for stores, if that leaves four stages, or the three
        that convolutions do as well with; one where weights stream, since there only the ring hides memory's latency."""
        staged = [op for op in self.ops if isinstance(op, HopperOp) and op.staged]
        if not staged:
            return 0
        if all(op.weights_once for op in self.ops if isinstance(op, HopperOp)):
            return 1
        most = min(4, max(op.m64 * -(-op.finished_octets // 8) for op in staged))
        enough = 3 if any(isinstance(op, HopperConv) for op in self.ops) else 4
        return next((n for least in (enough, 3) for n in range(most, 0, -1) if self._stages_beside(n) >= least), 1)

    def _stages_beside(self, buffers: int) -> int:
        """The longest ring that leaves room for everything else."""
        return next((n for n in range(MOST_STAGES, 0, -1) if self._end(n, buffers) <= SHARED - SLACK), 0)

    @cached_property
    def stages(self) -> int:
        n = self._stages_beside(self.buffers)
        if n < 2:
            raise PlanError(f"a stage of {self.stage_bytes} bytes leaves no room for a second one in {SHARED} bytes of shared memory")
        return n

    @cached_property
    def _places(self) -> dict[str, int]:
        return self._places_beside(self.stages, self.buffers)

    def _places_beside(self, stages: int, buffers: int) -> dict[str, int]:
        """Where everything starts, in bytes."""
        out: dict[str, int] = {}
        at = stages * self.stage_bytes
        for name, size in (
            ("TG_OUT_AT", 2 * buffers * BUFFER),
            ("TG_GIVEN_AT", self.given_bytes),
            ("TG_SUMS_AT", self.sums_regions * self.sums_bytes),
            ("TG_FULL_AT", 8 * stages),
            ("TG_EMPTY_AT", 8 * stages),
            ("TG_FILLED_AT", 16 * buffers),
            ("TG_DRAINED_AT", 16 * buffers),
            ("TG_STORED_AT", 8),
            ("TG_STORED_SEEN_AT", 8),
            ("TG_SUMS_HERE_AT", 16),
            ("TG_SUMS_READ_AT", 16),
            ("TG_GIVEN_HERE_AT", 8),
            ("TG_GIVEN_READ_AT", 8),
            ("TG_SLOT_FILLED_AT", 8 * self.slots),
            ("TG_SLOT_READ_AT", 8 * self.slots),
            ("TG_SLOTS_AT", 32 * self.slots),
            ("TG_SCRATCH_AT", self.scratch_bytes),
            ("end", 0),
        ):
            at = -(-at // 32) * 32
            out[name] = at
            at += size
        return out

    def barriers(self, coupled: bool) -> list[dict[str, Any]]:
        """All barriers: where they lie, how many, arrivals of a phase."""
        readers = 11 * (self.gang if self.ticket else 1)
        both = " of both CTAs" if self.ticket and self.gang == 2 else ""
        rows = [
            ("TG_SLOT_FILLED_AT", self.slots, 1, "a tile is handed out"),
            ("TG_SLOT_READ_AT", self.slots, readers, f"a tile is taken: by three roles and eight math warps{both}"),
            ("TG_FULL_AT", self.stages, 2, "a stage is loaded: both loaders"),
            ("TG_EMPTY_AT", self.stages, 4 if coupled else 2, f"a stage is used up: the math warpgroups{' of both CTAs' if coupled else ''}"),
        ]
        if self.buffers:
            rows += [("TG_FILLED_AT", 2 * self.buffers, 4, "a result buffer is written: the warps of its warpgroup")]
            rows += [("TG_DRAINED_AT", 2 * self.buffers, 1, "a result buffer has been read")]
        rows += [("TG_STORED_AT", 1, 8, "results have left the registers of all math warps"), ("TG_STORED_SEEN_AT", 1, 1, "and that is known")]
        if any(op.form != "product" for op in self.ops):
            rows += [("TG_GIVEN_HERE_AT", 1, 1, "what a tile needs outside of the ring is here")]
            rows += [("TG_GIVEN_READ_AT", 1, 8, "it is no longer needed: by all math warps")]
        if self.sums_bytes:
            rows += [("TG_SUMS_HERE_AT", 2, 1, "sums are here"), ("TG_SUMS_READ_AT", 2, 4, "sums are read: the warps of the other's warpgroup")]
        return [dict(zip(("at", "count", "arrivals", "comment"), row, strict=True)) for row in rows]

    @property
    def bytes(self) -> int:
        return self._end(self.stages, self.buffers) + SLACK

    def _end(self, stages: int, buffers: int) -> int:
        """Bytes that are touched."""
        places = self._places_beside(stages, buffers)
        last = (stages - 1) * self.stage_bytes + self.overrun
        return max(places["end"], last, places["TG_GIVEN_AT"] + self.given_overrun)

    @property
    def constants(self) -> list[tuple[str, int, str]]:
        words = {
            "TG_OUT_AT": "result buffers on their way out",
            "TG_SUMS_AT": "sums sent by the other CTA of the pair",
            "TG_FULL_AT": "barriers: a stage is loaded",
            "TG_EMPTY_AT": "barriers: a stage is used up",
            "TG_FILLED_AT": "barriers: a result buffer is written",
            "TG_DRAINED_AT": "barriers: a result buffer has been read",
            "TG_STORED_AT": "barrier: results have left the registers",
            "TG_STORED_SEEN_AT": "barrier: and that is known",
            "TG_SUMS_HERE_AT": "barriers: sums are here",
            "TG_SUMS_READ_AT": "barriers: sums are read",
            "TG_GIVEN_AT": "queries of a tile of attention",
            "TG_GIVEN_HERE_AT": "barrier: what a tile needs outside of the ring is here",
            "TG_GIVEN_READ_AT": "barrier: it is no longer needed",
            "TG_SLOT_FILLED_AT": "barriers: a tile is handed out",
            "TG_SLOT_READ_AT": "barriers: a tile is taken",
            "TG_SLOTS_AT": "tiles handed out: rank, op, coordinates",
            "TG_SCRATCH_AT": "for ops that threads compute: a number of each warp, and what else they want to share; rows' sums of squares",
        }
        head = [
            ("TG_STAGES", self.stages, "of the ring"),
            ("TG_STAGE_BYTES", self.stage_bytes, "activations, then weights"),
            ("TG_SLOTS", self.slots, "tiles handed out ahead"),
            ("TG_BUFFERS", self.buffers, "64 x 64 result buffers of each math warpgroup"),
            ("TG_SUMS_STRIDE", self.sums_bytes if self.sums_regions == 2 else 0, "from one math warpgroup's sums to the other's"),
        ]
        return head + [(name, self._places[name], text) for name, text in words.items()]


@dataclass(frozen=True)
class HopperSource(Source):
    """The text, and what the host must know to launch it."""

    roomy: Callable[[], str]  # the text with more registers for threads that load: many ops with waits need them
    maps: tuple[Map | BoxMap, ...]
    tensors: tuple[str, ...]
    packed: tuple[tuple[str, HopperOp], ...]  # map -> the op whose weight it packs
    shared_bytes: int
    gang: int
    turns: int  # the most tiles that a CTA may run
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
    turns = plan.order.count if isinstance(plan.placement, str) else max(len(ranks) for ranks in plan.placement)
    return HopperSource(
        partial(_text, plan, ops, layout, variant, turns, REGISTERS),
        partial(_text, plan, ops, layout, variant, turns, ROOMY),
        tuple(m for op in ops for m in op.maps),
        tuple(plan.graph.tensors),
        tuple((f"{op.name}_b", op) for op in ops if isinstance(op, HopperOp) and op.packed),
        layout.bytes,
        layout.gang,
        turns,
    )


def _text(plan: Plan, ops: tuple[Op, ...], layout: Layout, variant: str, turns: int, registers: tuple[int, int]) -> str:
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
        thread_count=THREADS_OF_TILE,
        maps=[m for op in ops for m in op.maps],
        tensors=[_tensor(t) for t in plan.graph.tensors.values()],
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
    own = {"enum": op.enum, "locals": op.locals, "range": op.range, "steps": op.steps, "parts": op.parts}
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
