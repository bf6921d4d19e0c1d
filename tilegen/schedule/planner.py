"""The planner: tiles, policies, order and scheduling for a program on a machine, judged by the simulator."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Set
from dataclasses import replace

import numpy as np

from tilegen.analysis.dependence import Edge
from tilegen.analysis.regions import tiles_of
from tilegen.arch.machine import H200, Machine
from tilegen.errors import PlanError, nearest
from tilegen.frontend.program import Program, check_acyclic
from tilegen.frontend.spec import as_program
from tilegen.graph.cost_model import tile_us
from tilegen.graph.forms import Forms, Place, Proxies
from tilegen.graph.fuse_epilogues import fuse
from tilegen.graph.graph import Graph
from tilegen.graph.rewrites import rewritten
from tilegen.graph.split_k import split_k
from tilegen.graph.split_kv import names_of_splits, split_kv
from tilegen.ops.attention import AttentionAttributes, halved
from tilegen.ops.base import OpInstance, TileOp, ceil_div
from tilegen.ops.cluster import CLUSTER_SHAPES, CLUSTER_SPLITS, ClusterShape
from tilegen.ops.conv2d import ConvAttributes
from tilegen.ops.gemm import LinearAttributes, cluster_problem
from tilegen.options import Options
from tilegen.schedule.order import Order, banded, by_name, candidates, op_major
from tilegen.schedule.plan import Plan, static_persistent
from tilegen.schedule.policy import Lattice, Point, lattice
from tilegen.schedule.simulate import simulate
from tilegen.schedule.waits import SemaphoreMap

Progress = Callable[[str], None]
LONG_US = 30.0  # of a tile, on average
MANY = 5  # tiles of an SM
FREE = Options()
GENERIC = Proxies()


def plan(
    program: Program, place: Place, options: Options = FREE, progress: Progress = lambda _: None
) -> Plan:
    """The plan for a program with all sizes given.

    Raises PlanError where an option does not fit the program, or the target has no kernel for the plan.
    """
    check_acyclic(as_program(program))
    if program.symbolic:
        names = {
            str(s) for t in program.tensors for n in t.shape if not isinstance(n, int) for s in n.free_symbols
        }
        raise PlanError(
            f"{program.name}: sizes are left open ({', '.join(sorted(names))}); a plan needs all of them"
        )
    graph = tiled(rewritten(fuse(program), place, options), place, options)
    progress(
        f"{program.name}: {len(graph.ops)} ops, {sum(tiles_of(graph.bound(op)).count for op in graph.ops)}"
        " tiles"
    )
    lattices = lattices_of(graph)
    chosen, fixed = _start_points(lattices, options)
    sizes = tuple((name, n) for name, n in program.sizes if isinstance(n, int) and not isinstance(n, bool))
    arguments = tuple(t.name for t in program.arguments)
    base = Plan(
        program.name,
        sizes,
        place.machine,
        graph,
        arguments,
        (),
        (),
        op_major(graph),
        calls=program.calls,
        returns=program.outputs,
    )
    placed = _with_policies(base, lattices, chosen)
    orders = _orders(graph, place) if options.order == "auto" else [by_name(graph, options.order)]
    placed = _best_order(placed, orders, progress)
    placed = _best_policies(placed, lattices, chosen, fixed, progress)
    return emitted_by(place.target, replace(placed, scheduling=scheduling_of(placed, options.scheduling)))


def emitted_by(target: Forms, made: Plan) -> Plan:
    """The plan with the target that emits it, and how that reads and writes. PlanError where it has no kernel
    for it."""
    target.refuse(made.graph, made.machine, not isinstance(made.scheduling, str))
    proxies = target.proxies(made.graph, made.machine)
    said = tuple(
        (op.name, proxies[op.name]) for op in made.graph.ops if proxies.get(op.name, GENERIC) != GENERIC
    )
    return replace(made, target=target.name, proxies=said)


def tiled(
    graph: Graph, place: Place, options: Options, taken: Set[str] = frozenset(), splits: bool = True
) -> Graph:
    """Give every op its tile, cluster and split. taken: names besides the graph's that a split may not make;
    splits: whether attentions may be split unasked."""
    names = {op.name for op in graph.ops}
    for what in ("tiles", "split_k", "split_kv", "cluster", "pingpong"):
        for name, _ in getattr(options, what):
            if name not in names:
                raise PlanError(f"{what} of {name}: no such op; the ops are {', '.join(sorted(names))}")
    tiles, clusters, turns = dict(options.tiles), dict(options.cluster), dict(options.pingpong)
    free = not (tiles or clusters or turns or options.split_k or options.split_kv)
    chosen = place.forms.choose(graph, place.machine) if free else {}
    for op in graph.ops:
        b, config = graph.bound(op), chosen.get(op.name)
        usual = config.tile if config else op.tile  # a rewrite may have cut it
        tile = checked_tile(b, tiles[op.name]) if op.name in tiles else usual or _best_tile(graph, op, place)
        cluster = clusters.get(op.name, config.option if config else 1)
        cut = checked_cluster(graph, replace(op, tile=tile), cluster, place.machine)
        pingpong = turns.get(op.name, config.pingpong if config else False)
        graph = graph.with_op(op.name, checked_turns(cut, pingpong, place.forms))
    for name, count in options.split_k:
        graph = split_k(graph, name, count)
    unasked = splits and not options.split_k and not options.split_kv
    for name, count in _kv_splits(graph, place, options, taken) if unasked else options.split_kv:
        graph = split_kv(graph, name, count)
    for op in graph.ops:
        if not op.tile:  # made by a split
            graph = graph.with_op(op.name, replace(op, tile=_best_tile(graph, op, place)))
    return graph


def _kv_splits(graph: Graph, place: Place, options: Options, taken: Set[str]) -> tuple[tuple[str, int], ...]:
    """Attention -> splits of its keys, where the user fixes nothing, they pay, and the names that it takes
    are free."""
    if options.tiles or options.cluster:
        return ()
    names = {op.name for op in graph.ops} | set(graph.tensors) | taken
    free = [b for b in graph.ops_of(AttentionAttributes) if not names & names_of_splits(b.op.name)]
    splits = {b.op.name: place.forms.kv_splits(b, place.machine) for b in free}
    return tuple((name, n) for name, n in splits.items() if n > 1)


def checked_tile(b: OpInstance, tile: tuple[int, ...]) -> tuple[int, ...]:
    expected = b.kind.tiles(b, H200)[0]
    if not isinstance(tile, (tuple, list)):
        raise PlanError(
            f"tile {tile!r} of {b.op.name!r}: a {b.op.kind} tile has {len(expected)} positive sizes, "
            f"in a tuple such as {expected}",
            b.op.where,
        )
    tile = b.kind.whole_tile(tuple(tile), expected)
    if len(tile) != len(expected) or any(
        not isinstance(t, int) or isinstance(t, bool) or not 1 <= t < 2**31 for t in tile
    ):
        raise PlanError(
            f"tile {'x'.join(map(str, tile))} of {b.op.name!r}: a {b.op.kind} tile has {len(expected)}"
            f" positive sizes, such as {expected}",
            b.op.where,
        )
    if max(tile) > 1 << 16 or math.prod(tile[:-1]) > 1 << 24:
        raise PlanError(
            f"tile {'x'.join(map(str, tile))} of {b.op.name!r} is too large: at most 65536 a side", b.op.where
        )
    problem = b.kind.check_tile(b, tile)
    if problem:
        raise PlanError(f"tile {tile} of {b.op.name!r}: {problem}", b.op.where)
    return tile


def checked_cluster(graph: Graph, op: TileOp, given: int | str, machine: Machine) -> TileOp:
    """The op with the cluster that an option asks for: 2, "2", "2:k", "2:m", "2:n" or "2x4"."""
    try:
        shape = ClusterShape.of_option(given)
    except ValueError:
        raise PlanError(
            f"{op.name!r}: a cluster of {given}: expected its size, and what it splits after a colon where"
            f" that is not K, such as 2 or '2:m'; it may split {', '.join(CLUSTER_SPLITS)}; or its rows and"
            f" columns of CTAs, {', '.join(CLUSTER_SHAPES)}",
            op.where,
        ) from None
    op = replace(op, cluster=shape.size, cluster_split=shape.split)
    problem = cluster_problem(graph.bound(op))
    if not problem and not machine.clusters(op.cluster):
        problem = f"a cluster of {op.cluster} exceeds the {machine.sms} SMs of {machine.name}"
    if problem:
        raise PlanError(f"{op.name!r}: {problem}", op.where)
    return op


def checked_turns(op: TileOp, given: bool, forms: Forms) -> TileOp:
    """The op with the math warpgroups that an option asks for."""
    if type(given) is not bool:
        raise PlanError(f"pingpong of {op.name!r} is {given!r}, expected True or False", op.where)
    if given and not forms.takes_turns:
        raise PlanError(
            f"{op.name!r}: on {forms.name} no math warpgroups compute tiles in turn; leave pingpong out",
            op.where,
        )
    return replace(op, pingpong=given)


def _best_tile(graph: Graph, op: TileOp, place: Place) -> tuple[int, ...]:
    """The tile with the least time for this op alone: whole waves of tiles."""
    b, machine = graph.bound(op), place.machine
    best, least = None, float("inf")
    for tile in place.forms.configs(b, machine):
        candidate = graph.bound(replace(op, tile=tile))
        count = int(np.prod([int(n) for n in candidate.grid]))
        time = ceil_div(count, machine.sms) * tile_us(candidate, machine)
        if time < least * 0.99:
            best, least = tile, time
    assert best is not None
    return best


def lattices_of(graph: Graph) -> dict[str, Lattice]:
    """tensor -> its lattice, for every tensor that one op writes and another reads."""
    edges: dict[str, list[Edge]] = {}
    for e in graph.edges:
        edges.setdefault(e.tensor, []).append(e)
    found = {tensor: lattice(of_tensor) for tensor, of_tensor in edges.items()}
    return {tensor: lat for tensor, lat in found.items() if any(len(r.tile) for r in lat.relations)}


def _start_points(lattices: Mapping[str, Lattice], options: Options) -> tuple[dict[str, Point], set[str]]:
    """The consumer classes everywhere, or what the user asked for: (points, tensors the user fixed)."""
    chosen = {tensor: _allowed(lat)[0] for tensor, lat in lattices.items()}
    fixed = set()
    for key, name in options.policies:
        tensors = [
            t for t, lat in lattices.items() if key in (t, "*") or any(e.name == key for e in lat.edges)
        ]
        if not tensors:
            edges = sorted({e.name for lat in lattices.values() for e in lat.edges})
            raise PlanError(
                f"policy {key}={name}: no such edge or tensor; the edges are {', '.join(edges) or 'none'}, "
                f"the tensors {', '.join(lattices) or 'none'}{nearest(key, [*edges, *lattices])}"
            )
        for tensor in tensors:
            point = lattices[tensor].point(name)
            if point.unawaited:
                raise PlanError(
                    f"policy {key}={name}: {point.unawaited} of its {point.semaphores} semaphores would be"
                    " awaited by nobody"
                )
            chosen[tensor] = point
            fixed.add(tensor)
    return chosen, fixed


def _allowed(lat: Lattice) -> list[Point]:
    """The points whose semaphores are all awaited, the consumer classes first."""
    points = [p for p in lat.points if not p.unawaited]
    return sorted(points, key=lambda p: "class" not in p.name.split("="))


def _with_policies(base: Plan, lattices: Mapping[str, Lattice], chosen: Mapping[str, Point]) -> Plan:
    maps, first = [], 0
    for tensor, lat in lattices.items():
        m = SemaphoreMap(
            lat.producer, tensor, chosen[tensor].partition, first, base.graph.op(lat.producer).cluster
        )
        maps.append(m)
        first += m.count
    made = replace(base, semaphores=tuple(maps), policies=tuple((t, chosen[t].name) for t in lattices))
    made.__dict__["ranks"] = base.ranks  # of the same order
    return made


def progresses(candidate: Plan) -> bool:
    """Whether every wait is on lower ranks: the check that an order must pass to be simulated at all."""
    last = np.full(len(candidate.targets), -1, dtype=np.int64)
    for m in candidate.semaphores:
        np.maximum.at(last, candidate.posted(m), candidate.ranks[m.producer])
    table = candidate.wait_table
    return bool((last[table.semaphore] < table.rank).all())


def _orders(graph: Graph, place: Place) -> list[Order]:
    """Candidates. On a GPU op-major order comes in super-tiles: neighbours share weights in L2, which the
    simulator does not see; and it is the only one where each linear is one row of tiles: there is
    nothing to begin early, and weights and caches stream in, which the simulator does not see either."""
    machine = place.machine
    if not machine.architecture.mma_sync:
        return candidates(graph, machine.sms)
    linears = graph.ops_of(LinearAttributes)
    streaming = linears and all(int(b.grid[0]) == 1 for b in linears) and not graph.ops_of(ConvAttributes)
    usual = op_major(graph, place.forms.super_tile(graph, machine))
    return [usual, *(() if streaming else candidates(graph, machine.sms)[1:])]


def _lag_that_works(base: Plan, order: Order) -> str:
    """The least lag with which so many bands work. A lag of their number does: op comes after op."""
    head, *numbers = order.name.split(":")
    if head != "banded":
        return ""
    bands, lag = map(int, numbers)
    larger = range(lag + 1, bands + 1)
    least = bisect_left(
        larger[:-1], True, key=lambda n: progresses(replace(base, order=banded(base.graph, bands, n)))
    )
    return f"; banded:{bands}:{larger[least]} works"


def _best_order(base: Plan, orders: list[Order], progress: Progress) -> Plan:
    """The order with the least makespan; a later candidate must be better by a percent."""
    best: tuple[float, Plan] | None = None
    for order in orders:
        candidate = replace(base, order=order)
        candidate.__dict__["waits"] = base.waits  # of the same semaphores
        if not progresses(candidate):
            if len(orders) == 1:
                raise PlanError(
                    f"order {order.name}: a tile would wait for a tile of higher rank"
                    f"{_lag_that_works(base, order)}"
                )
            continue
        if len(orders) == 1:
            return candidate
        time = simulate(candidate).makespan
        progress(f"order {order.name}: {time:.1f} µs")
        if best is None or time < best[0] * 0.99:
            best = (time, candidate)
    assert best is not None
    return best[1]


def _best_policies(
    start: Plan,
    lattices: Mapping[str, Lattice],
    chosen: dict[str, Point],
    fixed: set[str],
    progress: Progress,
) -> Plan:
    """Tensor by tensor the point with the least makespan of its producer and consumers alone; when level, the
    one that lets its consumers start early, a wait weighing as much as two producer tiles: the model knows no
    variance between SMs, and an early start forgives it."""
    for tensor, lat in lattices.items():
        points = _allowed(lat)
        if tensor in fixed or len(points) == 1:
            continue
        near = _neighbourhood(start, lat)
        times = {}
        for point in points:
            candidate = _with_policies(near, {tensor: lat}, {tensor: point})
            if progresses(candidate):
                times[point] = simulate(candidate).makespan
        least = min(times.values())
        chosen[tensor] = min(
            (p for p, time in times.items() if time <= least * 1.001),
            key=lambda p: (p.start + 2 * p.waits, p.semaphores),
        )
        progress(
            f"policy {tensor}: {chosen[tensor].name} of "
            + ", ".join(f"{p.name} {t:.1f} µs" for p, t in times.items())
        )
    return _with_policies(start, lattices, chosen)


def _neighbourhood(whole: Plan, lat: Lattice) -> Plan:
    """The plan of one producer and its consumers, in the order of the whole."""
    names = {lat.producer, *(e.consumer.op.name for e in lat.edges)}
    graph = replace(whole.graph, ops=tuple(op for op in whole.graph.ops if op.name in names))
    graph.__dict__["edges"] = lat.edges  # derived already
    graph.__dict__["_bounds"] = whole.graph._bounds
    order = Order(whole.order.name, tuple(s for s in whole.order.segments if s.op in names))
    return replace(whole, graph=graph, order=order, semaphores=(), policies=())


def scheduling_of(p: Plan, scheduling: str) -> str | tuple[tuple[int, ...], ...]:
    """dynamic: an atomic counter hands out ranks; lists: each SM gets the list that the simulator's greedy
    run gives it; static: worker w gets ranks w, w + workers, …"""
    workers = p.machine.clusters(p.cluster)
    if scheduling == "auto":
        scheduling = _best_scheduling(p)
    match scheduling:
        case "dynamic":
            return "dynamic"
        case "lists":
            lists: list[list[int]] = [[] for _ in range(workers)]
            for rank, sm in enumerate(simulate(p).sm.tolist()):
                lists[sm].append(rank)
            return tuple(tuple(ranks) for ranks in lists)
        case "static":
            return static_persistent(p.order.count, workers)
    raise PlanError(f"unknown scheduling {scheduling!r}; expected auto, dynamic, static or lists")


def _best_scheduling(p: Plan) -> str:
    """On a GPU lists known in advance pay where no tile waits, and for chains with so few rows of tiles that
    weights pass through once, since they then start sooner; and where ops of several kinds follow each other,
    since a dynamic rank costs a tile of a short op as much as its work. These lists stride, unless tiles are
    so uneven that the simulator's own are better by 3 %: then dynamic, if tiles are long on average."""
    if not p.machine.architecture.mma_sync:
        return "dynamic"
    if not p.semaphores:
        return _best_without_waits(p)
    if p.graph.consists_of(LinearAttributes):
        return "static" if all(int(b.grid[0]) <= 2 for b in p.bounds) else "dynamic"
    if _even(p):
        return "static"
    workers = p.machine.clusters(p.cluster)
    even, greedy = (
        simulate(replace(p, scheduling=how)).makespan
        for how in (static_persistent(p.order.count, workers), "dynamic")
    )
    if even <= 1.03 * greedy:
        return "static"
    return "dynamic" if greedy * workers / p.order.count > LONG_US else "lists"


def _best_without_waits(p: Plan) -> str:
    """Lists; but dynamic where an SM has many tiles of an attention: that evens out what no model knows."""
    long = any(not halved(b) for b in p.graph.ops_of(AttentionAttributes))
    if long and p.order.count > MANY * p.machine.clusters(p.cluster):
        return "dynamic"
    return "static" if _even(p) else "lists"


def _even(p: Plan) -> bool:
    """Whether tiles of an attention have as many steps as others."""
    return all(len(set(tiles_of(b).steps.tolist())) == 1 for b in p.graph.ops_of(AttentionAttributes))
