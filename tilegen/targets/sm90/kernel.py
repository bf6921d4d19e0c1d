"""What the template of a Hopper kernel asks (templates/cuda/sm90/kernel.cu.j2): the plan, the bodies of
its ops, and what they have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tilegen.codegen.cuda_op import TYPES
from tilegen.codegen.schedule import schedule_text
from tilegen.codegen.summary import summary
from tilegen.codegen.thread_kernel import ThreadKernel
from tilegen.frontend.program import PAIRED, numbers_of
from tilegen.graph.positions import Position, positions
from tilegen.graph.product_time import ROW_BYTES
from tilegen.ops.attention import AttentionAttributes, counted
from tilegen.ops.cluster import ClusterShape
from tilegen.schedule.plan import Plan
from tilegen.targets.sm90.attention import Attention
from tilegen.targets.sm90.layout import Layout
from tilegen.targets.sm90.product import MMA_TYPES, Product
from tilegen.targets.sm90.shared_bodies import Body, Op, convolves
from tilegen.targets.sm90.stage import AnyMap, Loads, PatchMap
from tilegen.targets.sm90.thread_tile import ThreadTile

NOTES = (
    "TG_WAITED",
    "TG_LOADED",
    "TG_AHEAD",
    "TG_AHEAD_LAST",
    "TG_ARRIVED",
    "TG_MULTIPLIED",
    "TG_FINISHED",
    "TG_POSTED",
    "TG_RANK",
)
MOST_STATEMENTS = 96  # that each bring a tensor map near; more make registers spill
NOTE_WORDS = 16  # of a tile: its time stamps, and its rank + 1


@dataclass(frozen=True)
class Kernel(ThreadKernel):
    """What the template of the kernel asks, besides its plan and its layout of shared memory."""

    plan: Plan
    bodies: tuple[Body, ...]
    layout: Layout
    variant: str
    turns: int

    note_names = NOTES
    note_words = NOTE_WORDS

    # --- the plan -------------------------------------------------------------------------------------------

    @property
    def sizes(self) -> str:
        return ", ".join(f"{k}={v}" for k, v in self.plan.sizes)

    @property
    def summary(self) -> list[str]:
        return summary(self.plan)

    @property
    def schedule(self) -> str:
        return schedule_text(self.plan)

    @property
    def positions(self) -> tuple[Position, ...]:
        return positions(self.plan.graph)

    @property
    def trace(self) -> bool:
        return self.variant == "trace"

    @property
    def jitter(self) -> bool:
        return self.variant == "jitter"

    # --- its ops --------------------------------------------------------------------------------------------

    @cached_property
    def ops(self) -> list[Op]:
        return [body.code for body in self.bodies]

    @cached_property
    def products(self) -> list[Product]:
        return [op for op in self.ops if isinstance(op, Product)]

    @cached_property
    def attentions(self) -> list[Attention]:
        return [op for op in self.ops if isinstance(op, Attention)]

    @cached_property
    def thread_tiles(self) -> list[ThreadTile]:
        return [op for op in self.ops if isinstance(op, ThreadTile)]

    @property
    def unit(self) -> int:
        """How many neighbours in a row of any product one store is aligned for."""
        return min((op.store.unit for op in self.products), default=8)

    @property
    def joins_lanes(self) -> bool:
        """Whether any product's rows of two-byte numbers leave from registers in vectors that begin
        anywhere."""
        return any(op.store.joins_lanes for op in self.products)

    @property
    def by_ones(self) -> bool:
        """Whether the epilogue of any product fetches numbers one by one."""
        return any(op.extras.text.by_ones for op in self.products)

    @property
    def math_looks_early(self) -> bool:
        return any(op.looks_early for op in self.ops)

    @property
    def mixed(self) -> bool:
        """Whether any tile is computed otherwise than as a product."""
        return len(self.products) < len(self.ops)

    @property
    def attends_in_turn(self) -> bool:
        """Whether the math warpgroups, each with its own queries, begin products of attention in turn."""
        return any(not op.halved for op in self.attentions)

    @property
    def pads_heads(self) -> bool:
        """Whether heads of any attention have fewer columns than wgmma multiplies."""
        return any(op.padded for op in self.attentions)

    @property
    def attends_windows(self) -> bool:
        """Whether queries of any attention see a window of keys."""
        return any(op.window for op in self.attentions)

    @property
    def caps_scores(self) -> bool:
        return any(op.caps for op in self.attentions)

    @property
    def attends_prefixes(self) -> bool:
        """Whether all queries of any attention see the first keys."""
        return any(AttentionAttributes.of(op.bound).prefix for op in self.attentions)

    @property
    def attends_lengths(self) -> bool:
        return any(AttentionAttributes.of(op.bound).lengths for op in self.attentions)

    @property
    def biases_scores(self) -> bool:
        return any(AttentionAttributes.of(op.bound).alibi for op in self.attentions)

    @property
    def adds_bias(self) -> bool:
        """Whether a tensor is added to scores of any attention."""
        return any(op.adds_bias for op in self.attentions)

    @property
    def takes_blocks(self) -> bool:
        """Whether a block mask says which blocks of keys tiles of any attention take."""
        return any(op.taken for op in self.attentions)

    @property
    def hides_keys(self) -> bool:
        return any(op.taken is not None and op.taken.masks for op in self.attentions)

    @property
    def leaves_rows(self) -> bool:
        return any(AttentionAttributes.of(op.bound).leaves_rows for op in self.attentions)

    @property
    def attends_halved(self) -> bool:
        """Whether they share the queries of a tile, and take half of the keys each."""
        return any(op.halved for op in self.attentions)

    @property
    def normed(self) -> bool:
        return any(op.norm for op in self.products)

    @property
    def alternating(self) -> bool:
        return any(op.tile.alternates for op in self.products)

    @property
    def pingpong(self) -> bool:
        """Whether the math warpgroups take tiles in turn."""
        return self.layout.pingpong

    @property
    def ragged(self) -> bool:
        """Whether tiles of any product may have blocks of 64 rows without any."""
        return any(op.partly_occupied for op in self.products)

    @property
    def idles(self) -> bool:
        """Whether a math warpgroup may have no rows of a tile of any product."""
        return any(0 in op.partly_occupied for op in self.products)

    @property
    def uneven(self) -> bool:
        """Whether the second math warpgroup has a block of 64 rows less in any product."""
        return any(op.tile.uneven for op in self.products)

    @property
    def slides_down(self) -> bool:
        """Whether tiles of some convolutions slide over the whole filter."""
        return any(op.tile.row_bytes < ROW_BYTES for op in self.products)

    @property
    def short_blocks(self) -> bool:
        """Whether the last block of a step has fewer columns in any product."""
        return any(op.tile.last_slices < op.tile.slices for op in self.products)

    @property
    def swapped(self) -> bool:
        """Whether weights are wgmma's left operand in any product."""
        return any(op.tile.swapped for op in self.products)

    @property
    def turned_late(self) -> bool:
        """Whether results of swapped tiles are turned, and leave from registers."""
        return any(op.store.turned_late and not op.store.staged for op in self.products)

    @property
    def turned_first(self) -> bool:
        """Whether sums of swapped tiles are turned."""
        return any(op.tile.swapped and not op.store.turned_late for op in self.products)

    @property
    def turned_in_memory(self) -> bool:
        """Whether results of swapped tiles are turned on their way into shared memory."""
        return any(op.store.staged and op.tile.swapped for op in self.products)

    @property
    def numbered(self) -> bool:
        """Whether any body looks up the columns of its result."""
        return any(op.numbered for op in self.products)

    @property
    def holds(self) -> bool:
        """Whether an epilogue's operands are fetched before the main loop."""
        return any(op.extras.held for op in self.products)

    @property
    def ahead(self) -> bool:
        """Whether an epilogue's operands are fetched a block ahead."""
        return any(op.extras.ahead for op in self.products)

    @property
    def residual(self) -> str:
        """The operand of an epilogue that comes by TMA, as its code calls it, or an empty string: a launch
        with one has no other op."""
        return next((e.name for op in self.products if (e := op.extras.residual)), "")

    @property
    def passes(self) -> bool:
        return any(op.forwarded for op in self.attentions)

    @property
    def turning(self) -> bool:
        return any(op.turning for op in self.ops)

    # --- how results leave ----------------------------------------------------------------------------------

    @property
    def staged(self) -> bool:
        return any(op.store.staged for op in self.products)

    @property
    def staged_in_rows(self) -> bool:
        """Whether tiles are that are not swapped."""
        return any(op.store.staged and not op.tile.swapped for op in self.products)

    @property
    def patches(self) -> bool:
        """Whether it multiplies patches of images."""
        return any(isinstance(m, PatchMap) for op in self.products for m in op.maps)

    @property
    def boxed(self) -> bool:
        return any(op.store.staged for op in self.products if convolves(op))

    @property
    def direct(self) -> bool:
        return self.layout.direct

    @property
    def exchanges(self) -> bool:
        return self.layout.sums_bytes > 0

    @property
    def coupled(self) -> bool:
        """Whether the CTAs of a cluster load together."""
        return any(op.a.together or op.b.together for op in self.ops)

    @property
    def barriers(self) -> list[dict[str, Any]]:
        return self.layout.barriers(self.coupled)

    # --- tensors --------------------------------------------------------------------------------------------

    @property
    def maps(self) -> list[dict[str, Any]]:
        return [_map(same) for body in self.bodies for same in body.maps]

    @property
    def each_map(self) -> list[str]:
        """All of them, as C."""
        return [name for m in self.maps for name in m["each"]]

    @property
    def many_maps(self) -> bool:
        """Whether they are brought near in a loop, as those of many linears are: as a statement each, ptxas
        holds their addresses in registers, and spills sums for them."""
        return self.numbered or len(self.each_map) > MOST_STATEMENTS

    @property
    def tensors(self) -> list[dict[str, Any]]:
        found = self.plan.graph.tensors.values()
        return [
            {
                "name": t.name,
                "type": TYPES[t.dtype],
                "comment": f"{t.role} [{', '.join(str(s) for s in t.plan_shape)}]",
            }
            for t in found
        ]

    @property
    def shared_bodies(self) -> list[dict[str, Any]]:
        return [_shared(body) for body in self.bodies if body.shared]

    # --- instructions ---------------------------------------------------------------------------------------

    @property
    def mma(self) -> list[dict[str, Any]]:
        """Each wgmma shape that an op uses, with its operands numbered."""
        found = {}
        for op in self.ops:
            if isinstance(op, Product):
                found[op.mma] = _mma(op.mma, op.tile.columns_of_warpgroup, op.bound.dtype(0))
            if isinstance(op, Attention):
                found[op.scores] = _mma(op.scores, op.keys, op.bound.dtype(0))
                found[op.values] = _mma(op.values, op.head, op.bound.dtype(0), held=True)
        return list(found.values())

    @cached_property
    def loaders(self) -> list[dict[str, Any]]:
        return _loaders(self.ops)

    @property
    def waiters(self) -> int:
        return sum(role["waits"] for role in self.loaders)


def _map(same: Sequence[AnyMap]) -> dict[str, Any]:
    """A tensor map of an op's code; an array where a body is shared."""
    first, n = same[0], len(same)
    if n == 1:
        return {"declared": first.name, "comment": first.comment, "each": [first.name]}
    comment = ", ".join(m.tensor for m in same) + first.comment.removeprefix(first.tensor)
    return {
        "declared": f"{first.name}[{n}]",
        "comment": comment,
        "each": [f"{first.name}[{i}]" for i in range(n)],
    }


def _shared(body: Body) -> dict[str, Any]:
    """The tensors of a shared body's members as it sees them."""
    members = [
        {"name": alike[0][0], "type": alike[0][1], "comment": ", ".join(tensor for _, _, tensor in alike)}
        for alike in zip(*body.tensors, strict=True)
    ]
    names = [op.name for op in body.members]
    return {
        "name": names[0],
        "count": len(names),
        "comment": ", ".join(names),
        "members": members,
        "numbers": _numbers(body),
    }


def _numbers(body: Body) -> list[tuple[str, list[int]]]:
    """The tables of a numbered body: (name, values)."""
    if not isinstance(body.code, Product) or not body.code.numbered:
        return []
    products = [op for op in body.members if isinstance(op, Product)]
    return [
        ("columns_of", [op.columns for op in products]),
        ("steps_of", [op.tile.steps for op in products]),
        ("member_by_op", body.code.member_by_op),
    ]


def _loaders(ops: Sequence[Op]) -> list[dict[str, Any]]:
    """The two loading roles. Activations always close the launch: the last of them zeroes the counters."""
    early = any(isinstance(op, Product) and op.loads_early for op in ops)
    return [
        {
            "name": "tg_load_activations",
            "comment": "// Activations: waits for the semaphores of each step, then loads.",
            "ops": [_loads(op, op.a) for op in ops],
            "policies": sorted({op.a.policy for op in ops} - {""}),
            "waits": True,
            "depends": True,
            "clusters": any(op.a.together for op in ops),
            "ctas": _ctas(ops, "row_ctas"),
            "watches": False,
            "first_note": "TG_WAITED",
            "last_note": "TG_LOADED",
        },
        {
            "name": "tg_load_weights",
            "comment": (
                "// Weights: runs ahead as far as the ring is deep; waits only where another op makes them."
            ),
            "ops": [_loads(op, op.b, not early and _caches_early(op)) for op in ops],
            "policies": sorted({op.b.policy for op in ops} - {""}),
            "waits": any(load.waits for op in ops for load in op.b.each),
            "depends": early,
            "clusters": any(op.b.together for op in ops),
            "ctas": _ctas(ops, "column_ctas"),
            "watches": True,
            "first_note": "TG_AHEAD",
            "last_note": "TG_AHEAD_LAST",
        },
    ]


def _ctas(ops: Sequence[Op], name: str) -> list[tuple[str, str]]:
    """Who gets what a role loads for others too, of its row or column of the cluster, where it has both: the
    variable and its bits, as C."""
    shape = next((op.tile.cluster for op in ops if isinstance(op, Product)), ClusterShape())
    if shape.m == 1 or shape.n == 1:
        return [("all_ctas", hex((1 << shape.size) - 1))]
    if name == "row_ctas":
        return [(name, f"{hex((1 << shape.n) - 1)} << cta_rank / {shape.n} * {shape.n}")]
    return [(name, f"{hex(sum(1 << row * shape.n for row in range(shape.m)))} << cta_rank % {shape.n}")]


def _caches_early(op: Op) -> bool:
    """Whether the weights' role must wait for the launch before, where only caches and what counts keys are
    not weights: before an attention's loads. Until then weights come in."""
    return isinstance(op, Attention) and counted(op.bound)


def _loads(op: Op, loads: Loads, depends: bool = False) -> dict[str, Any]:
    own = {
        "cases": op.cases,
        "waits_function": op.waits_function,
        "locals": op.locals,
        "range": op.range,
        "steps": op.steps,
        "cluster": op.cluster,
    }
    return {**own, "loads": loads, "at": f" + {loads.at}" if loads.at else "", "depends": depends}


def _mma(name: str, columns: int, dtype: str, held: bool = False) -> dict[str, Any]:
    """held: the left operand in four registers, the right one as it lies, its rows summed over."""
    kind, numbers_summed = MMA_TYPES[dtype], 16 * numbers_of(dtype)
    numbers = [f"%{r}" for r in range(columns // 2)]
    text = ",\n".join(", ".join(numbers[r : r + 16]) for r in range(0, len(numbers), 16))
    lines = ("{" + text + "},").split("\n")
    return {
        "suffix": name,
        "shape": f"m64n{columns}k{numbers_summed}.f32.{kind}.{kind}",
        "flags": "1, 1, 1" if dtype in PAIRED else "1, 1, 1, 0, 0",
        "registers": numbers,
        "lines": lines,
        "a": len(numbers),
        "b": len(numbers) + (4 if held else 1),
        "held": held,
        "outputs": ", ".join(f'"+f"(d[{r}])' for r in range(len(numbers))),
    }
