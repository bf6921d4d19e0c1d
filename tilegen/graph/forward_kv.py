"""New rows passed to the attention that reads the caches they are appended to.

    attention(rope(q), append(k_cache, rope(k)), append(v_cache, v)) = attention(q, k_cache, v_cache, k, v)

with rows at … at + S - 1 of the caches taken from k and v, and queries and these keys turned on their way: no
tile waits for an append, the caches' other rows are there when the launch begins, and so are loaded before
the queries are. The appends stay, beside everything else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilegen.errors import PlanError
from tilegen.graph.forms import Place
from tilegen.graph.graph import Graph, with_attributes
from tilegen.graph.rewrites import Rewrite
from tilegen.ops.append import turns
from tilegen.ops.attention import FEW
from tilegen.ops.attention import passed as is_passed
from tilegen.ops.base import Bound, TileOp
from tilegen.options import Options


@dataclass(frozen=True)
class _Made:
    """Who makes what an attention reads: the appends of its caches, and the rope of its queries where they
    are turned."""

    appends: tuple[TileOp, ...]
    rope: TileOp | None

    @property
    def written(self) -> frozenset[str]:
        """The appends and their caches, which nobody awaits when new rows are passed."""
        return frozenset(name for op in self.appends for name in (op.name, op.result))

    @property
    def turning(self) -> frozenset[str]:
        """The rope and its result, which are then gone."""
        return frozenset((self.rope.name, self.rope.result)) if self.rope else frozenset()


def passed(graph: Graph, place: Place, options: Options) -> Graph:
    """The graph with new rows passed to its attentions where they can be, unless options.appends is "awaited"
    or, if it is "auto", the options speak of who makes them."""
    for op in graph.ops if options.appends != "awaited" else ():
        if (
            op.kind != "attention"
            or problem(graph, op, place)
            or not _takes_all(graph.bound(op), dict(options.tiles).get(op.name), place)
        ):
            continue
        made = _made(graph, op)
        gone = options.awaited & made.written | options.named & made.turning
        if gone and options.appends == "passed":
            raise PlanError(
                f"the options speak of {', '.join(sorted(gone))}: nothing to choose where new rows are passed"
                f" to {op.name!r}",
                op.where,
            )
        if not gone:
            graph = _pass(graph, op, made)
    return graph


def problem(graph: Graph, op: TileOp, place: Place) -> str:
    """Why new rows cannot be passed to an attention, or an empty string."""
    b = graph.bound(op)
    if not place.forms.forwards_kv:
        return f"{place.forms.name} has no form for it"
    if len(op.operands) != 4:
        return "it reads no caches"
    if not isinstance(b.q_len, int) or b.q_len * (b.heads // b.kv_heads) > FEW:
        return (
            f"{b.q_len} queries of {b.heads // b.kv_heads} heads are more than the {FEW} rows that one tile"
            " takes"
        )
    caches, made = op.operands[1:3], _made(graph, op)
    if any(c.columns or c.flatten for c in caches):
        return "it reads some columns of its caches"
    if len({c.tensor for c in caches}) < 2 or any(len(graph.writers(c.tensor)) != 1 for c in caches):
        return "its keys and values are not two caches that this launch appends to"
    for append in made.appends:
        if (
            append.kind != "append"
            or append.operands[2:] != op.operands[3:]
            or graph.bound(append).seq != b.q_len
        ):
            return f"{append.name!r} does not append the rows of its queries at its position"
    other = next((r.name for c in caches for r in graph.readers(c.tensor) if r.name != op.name), "")
    if other:
        return f"{other!r} reads its caches too"
    return _turn_problem(graph, op, made)


def _turn_problem(graph: Graph, op: TileOp, made: _Made) -> str:
    """Why its queries and keys cannot be turned on their way alike, or an empty string."""
    keys, values = (graph.bound(a) for a in made.appends)
    if turns(values):
        return "its values are turned"
    if turns(keys) != (made.rope is not None):
        return (
            "its keys are turned as they are appended, or its queries by a rope that nothing else reads, but"
            " not both"
        )
    if made.rope is None:
        return ""
    rope = graph.bound(made.rope)
    alike = (rope.theta, rope.head_dim) == (keys.theta, keys.head_dim) and made.rope.operands[
        1:
    ] == op.operands[3:]
    return "" if alike else f"{made.rope.name!r} turns its queries otherwise than its keys are turned"


def _made(graph: Graph, op: TileOp) -> _Made:
    rope = next((w for w in graph.writers(op.operands[0].tensor) if w.kind == "rope"), None)
    plain = (
        rope
        and not op.operands[0].columns
        and len(graph.readers(rope.result)) == 1
        and rope.result not in graph.outputs
    )
    alone = plain and rope and (rope.epilogue is None or rope.epilogue.expression == "acc0")
    return _Made(
        tuple(w for cache in op.operands[1:3] for w in graph.writers(cache.tensor)), rope if alone else None
    )


def _takes_all(b: Bound, given: tuple[int, ...] | None, place: Place) -> bool:
    """Whether a tile that the options give takes all queries at once, in few rows; none given does. What is
    no tile is refused later."""
    if given is None:
        return True
    tile = (
        b.kind.whole_tile(given, place.forms.configs(b, place.machine)[0]) if isinstance(given, tuple) else ()
    )
    return len(tile) == 3 and tile[0] >= b.q_len and tile[0] * tile[2] <= FEW


def _pass(graph: Graph, op: TileOp, made: _Made) -> Graph:
    """The attention takes the new rows, and stands before the appends, which nothing awaits."""
    attributes = with_attributes(op.attributes, passed=True)
    queries = op.operands[0]
    if made.rope:
        queries = made.rope.operands[0]
        attributes = with_attributes(attributes, theta=graph.bound(made.rope).theta)
    taken = replace(
        op,
        operands=(queries, *op.operands[1:], *(a.operands[1] for a in made.appends)),
        attributes=attributes,
    )
    gone = {a.name for a in made.appends} | ({made.rope.name} if made.rope else set())
    ops = tuple(
        o
        for old in graph.ops
        if old.name not in gone
        for o in ((taken, *made.appends) if old.name == op.name else (old,))
    )
    tensors = {name: t for name, t in graph.tensors.items() if not made.rope or name != made.rope.result}
    return replace(graph, ops=ops, tensors=tensors)


def lines(graph: Graph, place: Place) -> list[str]:
    """For `explain`: each attention over caches, whether new rows are passed to it, and why not."""
    found = []
    for op in graph.ops:
        if op.kind == "attention" and is_passed(graph.bound(op)):
            new = " and ".join(o.tensor for o in op.operands[4:])
            found.append(
                f"new rows passed to {op.name}: from {new}, while the appends write the caches; other rows"
                " are loaded before its queries are there"
            )
        elif op.kind == "attention" and len(op.operands) == 4:
            why = problem(graph, op, place) or "the options speak of them or of its tile"
            found.append(f"{op.name} awaits its appends: {why}")
    return found


REWRITE = Rewrite(20, passed, lines)
