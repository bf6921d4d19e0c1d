"""The schedule of a plan as C text: which tile has a rank, what it waits for, what it posts. The same text on
every target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sympy as sp

from tilegen.analysis.dependence import Edge
from tilegen.analysis.regions import evaluate, pretty, pretty_box, tiles_of, to_c
from tilegen.codegen.environment import render
from tilegen.frontend.dims import dims_of, filled, most
from tilegen.frontend.program import Size
from tilegen.ops.base import OpInstance
from tilegen.schedule.order import Segment
from tilegen.schedule.plan import Plan, static_persistent
from tilegen.schedule.policy import Grouping
from tilegen.schedule.waits import Range, SemaphoreMap, Wait

STEP = (("k", "step"),)  # the step symbol's name in the generated text


@dataclass(frozen=True)
class SegmentText:
    """One branch of tg_tile_at: ranks start … end - 1."""

    title: str
    end: str
    op: str
    start: str
    setup: tuple[str, ...]
    coords: tuple[str, ...]


@dataclass(frozen=True)
class WaitText:
    """One wait: the comment with its formula, the condition on the step, the loops, and the statement."""

    operand: int
    comment: tuple[str, ...]
    condition: str
    loops: tuple[str, ...]
    statement: str


@dataclass(frozen=True)
class OpText:
    name: str
    enum: str
    locals: str
    steps: str
    cluster: int
    waits: tuple[WaitText, ...]
    posts: tuple[str, ...]
    post_comments: tuple[str, ...]


@dataclass(frozen=True)
class TableText:
    """A constant table: a list per SM, or the groups of an irregular partition."""

    name: str
    comment: str
    values: tuple[int, ...]

    @property
    def lines(self) -> list[str]:
        return [", ".join(map(str, self.values[n : n + 24])) for n in range(0, len(self.values), 24)]


def schedule_text(plan: Plan) -> str:
    """templates/schedule.j2 filled for a plan."""
    tables: dict[Grouping, str] = {}
    ops = tuple(_op_text(plan, b, tables) for b in plan.bounds)
    lists: list[TableText] = []
    for g, name in tables.items():
        lists.append(TableText(name, f"classes of {g.blocks} blocks", g.table))
        lists.append(TableText(f"{name}_size", "blocks in each class", tuple(int(n) for n in g.sizes)))
    workers = plan.machine.clusters(plan.cluster)
    tiles = most(plan.order.count)
    scheduling = (
        "dynamic"
        if isinstance(plan.scheduling, str)
        else "static"
        if plan.scheduling == static_persistent(tiles, workers)
        else "lists"
    )
    if not isinstance(plan.scheduling, str) and scheduling == "lists":
        starts = np.cumsum([0, *(len(ranks) for ranks in plan.scheduling)])
        lists.append(
            TableText("tg_list_start", "first entry of each worker in tg_list", tuple(int(n) for n in starts))
        )
        lists.append(
            TableText(
                "tg_list", "ranks, worker by worker", tuple(r for ranks in plan.scheduling for r in ranks)
            )
        )
    segments = [
        _segment_text(plan, s, start, end)
        for s, start, end in zip(plan.order.segments, plan.order.starts, plan.order.starts[1:], strict=False)
    ]
    return render(
        "schedule.j2",
        plan=plan,
        ops=ops,
        segments=segments,
        tables=lists,
        scheduling=scheduling,
        workers=workers,
        most_semaphores=most(plan.semaphore_count),
        most_tiles=tiles,
        tiles=to_c(plan.order.count) if plan.dim else "TG_TILES",
    )


def _segment_text(plan: Plan, s: Segment, start: Size, end: Size) -> SegmentText:
    """Undo the mixed-radix number of a segment's tile (Segment.coords, as C)."""
    shape, first = s.shape, to_c(start)
    minus = _paren(first)
    setup = [f"const int n = rank - {minus};" if start else "const int n = rank;"] if s.count != 1 else []
    if s.group > 1:
        rows, columns = shape
        together = _paren(to_c(s.group * columns))
        setup.append(
            f"const int block = n / {together}, rest = n % {together};"
            f"  // {s.group} rows"
            " at a time: an L2 super-tile"
        )
        setup.append(f"const int height = tg_min({s.group}, {to_c(rows)} - {s.group} * block);")
        coords = [f"{s.group} * block + rest % height", "rest / height"]
    elif s.last_first:
        last, *others = _mixed_radix((shape[-1], *shape[:-1]))
        coords = [*others, f"{to_c(shape[-1] - 1)} - ({last})"]
    else:
        coords = _mixed_radix(shape)
    coords = [
        text if lo == 0 else (to_c(lo) if text == "0" else f"{to_c(lo)} + {text}")
        for text, lo in zip(coords, s.lo, strict=True)
    ]
    names = plan.graph.bound(plan.graph.op(s.op)).coords
    ranges = ", ".join(
        f"{c} {pretty(lo)}..{pretty(hi - 1)}" for c, lo, hi in zip(names, s.lo, s.hi, strict=True)
    )
    return SegmentText(f"{s.op}: {ranges}", to_c(end), enum(s.op), first, tuple(setup), tuple(coords))


def _mixed_radix(shape: Sequence[Size]) -> list[str]:
    """The digits of n, the first slowest."""
    digits = []
    for d, extent in enumerate(shape):
        inner = math.prod(shape[d + 1 :])
        text = "n" if inner == 1 else f"n / {_paren(to_c(inner))}"
        if extent == 1:
            text = "0"
        elif any(outer != 1 for outer in shape[:d]):
            text = f"{text} % {_paren(to_c(extent))}"
        digits.append(text)
    return digits


def enum(op: str) -> str:
    return f"TG_OP_{op.upper()}"


def _op_text(plan: Plan, b: OpInstance, tables: dict[Grouping, str]) -> OpText:
    posts, comments = [], []
    for m in plan.posts_of(b.op.name):
        groups = [
            _group_text(g, to_c(sp.expand(c.index)), tables)
            for g, c in zip(m.partition, plan.blocking(m), strict=True)
        ]
        posts.append(f"tg_post(g, {_number_text(m, groups)});")
        comments.append(f"{m.tensor}: {policy_words(plan, m)}")
    waits = tuple(_wait_text(plan, w, tables) for w in plan.waits_of(b.op.name))
    return OpText(
        b.op.name,
        enum(b.op.name),
        locals_text(b),
        to_c(b.steps),
        b.op.cluster,
        waits,
        tuple(posts),
        tuple(comments),
    )


def locals_text(b: OpInstance) -> str:
    """The tile's coordinates under their names."""
    return f"[[maybe_unused]] const int {', '.join(f'{c.name} = t.c[{d}]' for d, c in enumerate(b.coords))};"


def policy_words(plan: Plan, m: SemaphoreMap) -> str:
    """sem[i] of 4, target 24 (row)"""
    words = [
        w
        for g, c in zip(m.partition, plan.blocking(m), strict=True)
        if (w := g.words(pretty(sp.expand(c.index))))
    ]
    if plan.dim:
        span = pretty(m.target([sp.Symbol(f"n{d}") for d in range(len(m.partition))]))
    else:
        targets = sorted({int(n) for n in m.targets()})
        span = str(targets[0]) if len(targets) == 1 else f"{targets[0]} to {targets[-1]}"
    name = dict(plan.policies).get(m.tensor, "")
    return (
        f"policy {name}: {pretty(m.count)}"
        f" semaphore{'s' if m.count != 1 else ''}{' by ' + ', '.join(words) if words else ''}, target {span}"
    )


def _table(g: Grouping, tables: dict[Grouping, str]) -> str:
    return tables.setdefault(g, f"tg_class{len(tables)}")


def _group_text(g: Grouping, block: str, tables: dict[Grouping, str]) -> str:
    """Group of a block, as C."""
    simple = block.replace("_", "").isalnum()
    inner = block if simple else f"({block})"
    return {"all": "0", "each": block, "every": f"{inner} / {g.size}", "modulo": f"{inner} % {g.size}"}.get(
        g.how
    ) or f"{_table(g, tables)}[{block}]"


def _number_text(m: SemaphoreMap, groups: Sequence[str]) -> str:
    """base + row-major number of the groups, as C."""
    text, stride = [], 1
    for g, group in zip(reversed(m.partition), reversed(groups), strict=True):
        if group != "0":
            factor = group if group.replace("_", "").isalnum() or (stride == 1) else f"({group})"
            text.append(factor if stride == 1 else f"{_paren(to_c(stride))} * {factor}")
        stride *= g.count
    terms = [str(most(m.base))] if m.base != 0 or not text else []
    return " + ".join([*terms, *reversed(text)])


def _target_text(m: SemaphoreMap, groups: Sequence[str], tables: dict[Grouping, str]) -> str:
    """Posts that the semaphore gets: blocks in its group, dimension by dimension, times the posts of a
    tile."""
    constant, factors = m.posts, []
    for g, group in zip(m.partition, groups, strict=True):
        if not isinstance(g.blocks, int):  # it moves
            symbol = sp.Symbol("group", integer=True, nonnegative=True)
            size = to_c(g.size_formula(symbol)).replace("group", f"({group})")
            factors += [] if size == "1" else [_paren(size)]
            continue
        sizes = set(g.sizes.tolist())
        if len(sizes) == 1:
            constant *= sizes.pop()
        elif g.how == "table":
            factors.append(f"{_table(g, tables)}_size[{group}]")
        else:
            symbol = sp.Symbol("group", integer=True, nonnegative=True)
            factors.append(_paren(to_c(g.size_formula(symbol)).replace("group", f"({group})")))
    return " * ".join([*([str(constant)] if constant != 1 or not factors else []), *factors])


def _wait_text(plan: Plan, w: Wait, tables: dict[Grouping, str]) -> WaitText:
    """The C form of Wait.entries."""
    consumer, when = w.edge.consumer, w.edge.access.when
    whole = consumer.op.cluster_shape.k == 1  # each CTA runs all steps
    first = (
        "step == 0" if whole else f"step == cta_rank * ({to_c(consumer.steps, STEP)}) / {consumer.op.cluster}"
    )
    inside = f"step >= 0 && step < {_paren(to_c(consumer.steps, STEP))}"
    condition = {
        "first": "step == -1",
        "epilogue": f"step == {to_c(consumer.steps, STEP)}",
        "step": inside if w.stepped else first,
    }[when]
    if _may_be_empty(w):
        bounds = " && ".join(
            f"{_paren(to_c(i.lo, STEP))} < {_paren(to_c(i.hi, STEP))}"
            for i in w.edge.box
            if (sp.sympify(i.hi) - i.lo).free_symbols
        )
        condition = f"{condition} && {bounds}" if condition else bounds
    loops, groups = [], []
    for d, r in enumerate(w.ranges):
        loops_d, group = _range_text(w, r, d, first, tables)
        loops += loops_d
        groups.append(group)
    target = _target_text(w.semaphores, groups, tables)
    comment = (
        f"{w.edge.tensor} {pretty_box(w.edge.box)}",
        f"<- {w.edge.formula()}; {policy_words(plan, w.semaphores)}",
    )
    return WaitText(
        w.edge.access.operand,
        comment,
        condition,
        tuple(loops),
        f"tg_wait(g, {_number_text(w.semaphores, groups)}, {target});",
    )


def _paren(text: str) -> str:
    return text if text.replace("_", "").isalnum() else f"({text})"


def _range_text(w: Wait, r: Range, d: int, first: str, tables: dict[Grouping, str]) -> tuple[list[str], str]:
    """(loops, group): the loop over the groups of one dimension, or none where there is a single one."""
    if r.grouping.how == "all":
        return [], "0"
    lo, hi = to_c(r.lo, STEP), to_c(r.hi, STEP)
    moving = d == w.moving
    if sp.expand(r.lo - r.hi) == 0 and not moving:
        return [], (_group_text(r.grouping, lo, tables) if r.by_block else lo)
    index = f"{'block' if r.by_block else 'group'}{d}"
    begin = lo
    if moving:
        before = to_c(r.hi, (("k", "before"),)).replace("before", "(step - 1)")
        begin = f"{first} ? {lo} : tg_max({lo}, {before} + 1)"
    loop = f"for (int {index} = {begin}, last{d} = {hi}; {index} <= last{d}; ++{index})"
    return [loop], (_group_text(r.grouping, index, tables) if r.by_block else index)


def _may_be_empty(w: Wait) -> bool:
    """Whether some tile's box is empty: a window wholly inside the padding. Rows and batches that move have
    no empty tiles at any size, so the least and the largest tell."""
    moving = dims_of((w.edge.box, w.edge.consumer.grid))
    if moving:
        (dim,) = moving
        return any(_empty_somewhere(filled(w.edge, dim, size)) for size in {1, dim.most})
    return _empty_somewhere(w.edge)


def _empty_somewhere(e: Edge) -> bool:
    tiles = tiles_of(e.consumer)
    where: dict[str, Any] = {**tiles.coords, "k": np.zeros(tiles.count, dtype=np.int64)}
    return any(
        bool(np.any(np.asarray(evaluate(i.lo, where)) >= np.asarray(evaluate(i.hi, where)))) for i in e.box
    )
