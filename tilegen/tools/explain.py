"""explain: every dependence, lattice point and choice of a program, as formulas and the reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import sympy as sp

from tilegen.analysis.dependence import Edge
from tilegen.analysis.regions import pretty, pretty_box, tiles_of
from tilegen.codegen.op_text import equation
from tilegen.errors import PlanError
from tilegen.frontend.dims import dims_of
from tilegen.frontend.program import Program, Tensor
from tilegen.graph.forms import Place
from tilegen.graph.fuse_epilogues import fuse
from tilegen.graph.graph import Graph
from tilegen.graph.rewrites import rewrites
from tilegen.ops.base import OpInstance
from tilegen.options import Options
from tilegen.schedule.lowering import modelled_lowering
from tilegen.schedule.moving import moving_plan
from tilegen.schedule.plan import Plan
from tilegen.schedule.planner import lattices_of, plan, tiled
from tilegen.schedule.policy import Grouping, Lattice, Partition, Point
from tilegen.schedule.simulate import simulate

# open sizes are tried at such a value to find the shape of their policies, which does not depend on it
SAMPLES = (1000, 250, 60)
MOST_TILES = 1 << 15  # of a sample, where a smaller one is left to try: a batch of 1000 images has 170,000


def explain_program(program: Program, place: Place, options: Options) -> str:
    """With all sizes given: the plan's explanation. With open sizes: dependences and lattice points symbolic
    in them."""
    if not program.symbolic:
        made = plan(program, place, options)
        return "\n".join([explain_plan(made, place), *_lowering(program, place, options, made)])
    if dims_of(program):
        moving = moving_plan(program, place, options)
        head = f"{moving.dim.name} moves from 1 to {moving.dim.most}; what follows is chosen at the largest"
        return f"{head}\n\n{explain_plan(moving.most, place)}"
    return _explain_open(program, place, options)


def _lowering(program: Program, place: Place, options: Options, made: Plan) -> list[str]:
    """What `compile` makes of it where that is left open, and why."""
    if options != Options() or not place.target.launches_early:
        return []
    found = modelled_lowering(program, place, made)
    return [f"lowering, unless another was measured best: {found.name}; {found.reason}"]


def explain_plan(p: Plan, place: Place, certificate: Any = None) -> str:
    """Ops, edges with their lattices, order, simulated time, and the proof where there is one."""
    lines = [
        (
            f"{p.program}({', '.join(f'{k}={v}' for k, v in p.sizes)}) on {p.machine.name}: {p.order.count}"
            f" tiles, {len(p.targets)} semaphores"
        ),
        "",
    ]
    lines += _ops(p.graph)
    choices = [line for rewrite in rewrites() for line in rewrite.lines(p.graph, place)]
    lines += ["", *choices] if choices else []
    lattices = lattices_of(p.graph)
    policies = dict(p.policies)
    for tensor, lat in lattices.items():
        lines += ["", f"{tensor}: written by {lat.producer}"]
        lines += _edges(lat.edges)
        coords = [
            f"block{d}" if len(lat.edges[0].first) > 1 else "block" for d in range(len(lat.edges[0].first))
        ]
        lines.append(
            f"  {'policy':<30}{'semaphores':<34}{'count':>6}{'waits per tile':>16}{'tiles before start':>20}"
        )
        for point in lat.points:
            mark = "*" if point.name == policies.get(tensor) else " "
            unfit = f"   {point.unawaited} would be awaited by nobody" if point.unawaited else ""
            lines.append(
                f" {mark}{point.name:<30}{point.formula(coords):<34}{point.semaphores:>6}"
                f"{point.waits:>16.2f}{point.start:>20.1f}{unfit}"
            )
        lines.append(f"  {_why(p, lat, policies.get(tensor, ''))}")
    lines += [
        "",
        (
            f"order: {p.order.name}, scheduling:"
            f" {p.scheduling if isinstance(p.scheduling, str) else f'lists of {len(p.scheduling)} SMs'}"
        ),
    ]
    lines += ["", "simulated:", *("  " + line for line in simulate(p).text().splitlines())]
    if certificate is not None:
        lines += ["", certificate.text()]
    return "\n".join(lines)


def _ops(graph: Graph) -> list[str]:
    lines = []
    for op in graph.ops:
        b = graph.bound(op)
        lines.append(f"{op.name}: {equation(b)}")
        grid = ", ".join(f"{c} < {pretty(n)}" for c, n in zip(b.coords, b.grid, strict=True))
        cluster = f", cluster of {op.cluster} splitting {op.cluster_split}" if op.cluster > 1 else ""
        turns = ", math warpgroups in turn (pingpong)" if op.pingpong else ""
        lines.append(
            f"  tile {' x '.join(map(str, op.tile))}{cluster}{turns}; tiles {grid}; steps {pretty(b.steps)}"
        )
        for access in b.reads:
            tensor, box, exact = b.tensor_box(access)
            lines.append(
                "  reads "
                f" {tensor}{pretty_box(box)}{_when(access.when)}{'' if exact else ' (covering range)'}"
            )
        lines.append(f"  writes {op.result}{pretty_box(b.write)}")
    return lines


def _when(when: str) -> str:
    return {"step": "", "first": " before the first step", "epilogue": " in the epilogue"}[when]


def _edges(edges: tuple[Edge, ...]) -> list[str]:
    return [
        f"  {e.name}: {e.tensor}{pretty_box(e.box)}{_when(e.access.when)} lies in {e.formula()}"
        for e in edges
    ]


def _why(p: Plan, lat: Lattice, chosen: str) -> str:
    """Why the chosen point, against its neighbours in the lattice."""
    point = next((x for x in lat.points if x.name == chosen), None)
    if point is None:
        return f"chosen: {chosen}, as asked"
    others = [x for x in lat.points if x is not point and not x.unawaited]
    if not others:
        return f"chosen: {chosen}, the only point: producer and consumers have one block in common"
    finer = min(
        (x for x in others if x.semaphores > point.semaphores), key=lambda x: x.semaphores, default=None
    )
    coarser = max(
        (x for x in others if x.semaphores < point.semaphores), key=lambda x: x.semaphores, default=None
    )
    reasons = []
    if coarser is not None:
        gain = coarser.start - point.start
        reasons.append(
            f"{coarser.name} would hold a tile back for {coarser.start:.1f} producer tiles instead of"
            f" {point.start:.1f}"
            if gain > 0
            else f"{coarser.name} starts no later but costs more waits"
        )
    if finer is not None:
        earlier = point.start - finer.start
        reasons.append(
            f"{finer.name} starts {earlier:.1f} producer tiles earlier for {finer.waits:.1f} waits per tile"
            f" instead of {point.waits:.1f}, which the model for {p.machine.name} does not pay back"
            if earlier > 0
            else f"{finer.name} has {finer.semaphores} semaphores and starts no tile earlier"
        )
    return f"chosen: {chosen}; " + "; ".join(reasons)


# --- open sizes ---------------------------------------------------------------------------------------------


def _explain_open(program: Program, place: Place, options: Options) -> str:
    """Policies are found at sample sizes; their shape holds for all, and is printed over the open ones."""
    if asked := (*options.split_k, *options.split_kv):
        raise PlanError(
            f"{program.name}: sizes are left open; a split ({', '.join(name for name, _ in asked)})"
            " needs all of them"
        )
    symbols = sorted(
        {s for t in program.tensors for n in t.shape if not isinstance(n, int) for s in n.free_symbols},
        key=lambda s: s.name,
    )
    at, concrete = _sample(program, symbols, place, options)
    tiles = {op.name: op for op in concrete.ops}
    graph = fuse(program)
    graph = replace(
        graph,
        ops=tuple(op.cut_as(tiles[op.name]) for op in graph.ops),
    )
    lines = [
        (
            f"{program.name} for open {', '.join(s.name for s in symbols)} (tiles as for"
            f" {', '.join(f'{s.name} = {at}' for s in symbols)})"
        ),
        "",
    ]
    lines += _ops(graph)
    for tensor, lat in lattices_of(concrete).items():
        edges = tuple(e for e in graph.edges if e.tensor == tensor)
        lines += ["", f"{tensor}: written by {lat.producer}", *_edges(edges)]
        coords = [f"block{d}" for d in range(len(edges[0].first))]
        for point in lat.points:
            lines.append(f"  {point.name}: {point.formula(coords)}: {_open_counts(edges, point)}")
    return "\n".join(lines)


def _sample(program: Program, symbols: Sequence[Any], place: Place, options: Options) -> tuple[int, Graph]:
    """The first sample without too many tiles: (the value of all open sizes, the tiled graph there)."""
    graph, found = fuse(program), None
    for least in SAMPLES:
        whole = (n for n in range(least, 2 * least) if _whole(program, dict.fromkeys(symbols, n)))
        at = next(whole, None if found else least)
        if at is None:
            break
        try:
            tried = tiled(_at(graph, dict.fromkeys(symbols, at)), place, options, splits=False)
        except PlanError:
            if found is None:
                raise
            break  # too small for what was asked
        found = at, tried
        if sum(tiles_of(tried.bound(op)).count for op in tried.ops) <= MOST_TILES:
            break
    assert found is not None
    return found


def _open_counts(edges: tuple[Edge, ...], point: Point) -> str:
    """Semaphores, waits per tile and tiles before the start, over the open sizes."""
    if any(g.how == "table" for g in point.partition):
        return f"{point.semaphores} semaphores at the sample size"
    partition = tuple(
        replace(g, blocks=c.count) for g, c in zip(point.partition, edges[0].blocking, strict=True)
    )
    semaphores = sp.Mul(*(g.count for g in partition))
    parts = [
        f"{pretty(semaphores)} semaphore{'' if semaphores == 1 else 's'} of"
        f" {pretty(_target(partition, edges[0].producer))} posts"
    ]
    for e in edges:
        needed = sp.Mul(*(_groups(g, lo, hi) for g, lo, hi in zip(partition, e.first, e.last, strict=True)))
        parts.append(f"{e.name} waits for {pretty(sp.simplify(needed))}{' at a step' if e.stepped else ''}")
    return ", ".join(parts)


def _groups(g: Grouping, lo: Any, hi: Any) -> Any:
    if g.how == "all":
        return 1
    first, last = (lo, hi) if g.how == "modulo" else (g.of(lo), g.of(hi))
    return sp.expand(last - first + 1)


def _target(partition: Partition, producer: OpInstance) -> Any:
    """Posts of a whole group (the last one of a dimension may have fewer)."""
    n: Any = producer.op.cluster
    for g in partition:
        n = (
            n
            * {
                "all": g.blocks,
                "each": 1,
                "every": g.size,
                "modulo": sp.ceiling(sp.sympify(g.blocks) / g.size),
            }[g.how]
        )
    return n


def _whole(program: Program, values: dict[Any, int]) -> bool:
    """Whether all shapes and attributes are whole numbers there: heads divide widths."""
    numbers = [n for t in program.tensors for n in t.shape] + [
        v for c in program.calls for k, v in c.attributes.items() if k != "scale"
    ]
    return all(n.subs(values).is_integer for n in numbers if hasattr(n, "free_symbols"))


def _at(graph: Graph, values: dict[Any, int]) -> Graph:
    """A graph with its open sizes filled in."""

    def fill(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(fill(v) for v in value)
        return int(value.subs(values)) if hasattr(value, "free_symbols") and value.free_symbols else value

    def tensor(t: Tensor) -> Tensor:
        return replace(t, shape=fill(t.shape))

    ops = tuple(
        replace(
            op,
            attributes=replace(op.attributes, **{k: fill(v) for k, v in op.attributes.items()}),
            operands=tuple(replace(o, columns=fill(o.columns) if o.columns else None) for o in op.operands),
        )
        for op in graph.ops
    )
    return replace(graph, tensors={n: tensor(t) for n, t in graph.tensors.items()}, ops=ops)
