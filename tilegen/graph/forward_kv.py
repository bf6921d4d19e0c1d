"""New rows forwarded to the attention that reads the caches they are appended to.

    attention(rope(q), append(k_cache, rope(k)), append(v_cache, v)) = attention(q, k_cache, v_cache, k, v)

with rows at … at + S - 1 of the caches taken from k and v, and queries and these keys turned on their way: no
tile waits for an append, the caches' other rows are there when the launch begins, and so are loaded before
the queries are. The appends stay, beside everything else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilegen.errors import PlanError
from tilegen.frontend.program import Operand
from tilegen.graph.forms import Place
from tilegen.graph.graph import Graph
from tilegen.graph.rewrites import Rewrite
from tilegen.ops.append import AppendAttributes, ropes
from tilegen.ops.attention import FEW, AttentionAttributes, over_caches
from tilegen.ops.attention import forwarded as is_forwarded
from tilegen.ops.base import OpInstance, TileOp
from tilegen.ops.rope import RopeAttributes
from tilegen.options import Options

SIXTEEN = 16  # columns that one matrix instruction multiplies by


@dataclass(frozen=True)
class _Made:
    """Who makes what an attention reads: the appends of its caches, and the rope of its queries where they
    are turned."""

    appends: tuple[TileOp, ...]
    rope: TileOp | None

    @property
    def written(self) -> frozenset[str]:
        """The appends and their caches, which nobody awaits when new rows are forwarded."""
        return frozenset(name for op in self.appends for name in (op.name, op.result))

    @property
    def turning(self) -> frozenset[str]:
        """The rope and its result, which are then gone."""
        return frozenset((self.rope.name, self.rope.result)) if self.rope else frozenset()


def forwarded(graph: Graph, place: Place, options: Options) -> Graph:
    """The graph with new rows forwarded to its attentions where they can be, unless options.appends is
    "awaited" or, if it is "auto", the options speak of who makes them."""
    for op in graph.ops if options.appends != "awaited" else ():
        if (
            not isinstance(op.attributes, AttentionAttributes)
            or problem(graph, op, place)
            or not _takes_all(graph.bound(op), dict(options.tiles).get(op.name), place)
        ):
            continue
        made = _made(graph, op)
        gone = options.awaited & made.written | options.named & made.turning
        if gone and options.appends == "forwarded":
            raise PlanError(
                f"the options speak of {', '.join(sorted(gone))}: nothing to choose where new rows are"
                f" forwarded to {op.name!r}",
                op.where,
            )
        if not gone:
            graph = _pass(graph, op, made)
    return graph


def problem(graph: Graph, op: TileOp, place: Place) -> str:
    """Why new rows cannot be forwarded to an attention, or an empty string."""
    b, a = graph.bound(op), AttentionAttributes.of(op)
    if not place.forms.forwards_kv:
        return f"{place.forms.name} has no form for it"
    if not over_caches(b):
        return "it reads no caches"
    if not isinstance(a.q_len, int) or a.q_len * (a.heads // a.kv_heads) > FEW:
        return (
            f"{a.q_len} queries of {a.heads // a.kv_heads} heads are more than the {FEW} rows that one tile"
            " takes"
        )
    if a.head_dim % SIXTEEN:
        return f"heads have {a.head_dim} columns, and new rows are forwarded in whole sixteens"
    caches, made = (b.operand("k"), b.operand("v")), _made(graph, op)
    if any(c.columns or c.flatten for c in caches):
        return "it reads some columns of its caches"
    if len({c.tensor for c in caches}) < 2 or any(len(graph.writers(c.tensor)) != 1 for c in caches):
        return "its keys and values are not two caches that this launch appends to"
    for append in made.appends:
        if (
            not isinstance(append.attributes, AppendAttributes)
            or _position(graph, append) != b.operand("position")
            or append.attributes.seq != a.q_len
        ):
            return f"{append.name!r} does not append the rows of its queries at its position"
    other = next((r.name for c in caches for r in graph.readers(c.tensor) if r.name != op.name), "")
    if other:
        return f"{other!r} reads its caches too"
    return _turn_problem(graph, op, made)


def _turn_problem(graph: Graph, op: TileOp, made: _Made) -> str:
    """Why its queries and keys cannot be turned on their way alike, or an empty string."""
    keys, values = map(graph.bound, made.appends)
    if ropes(values):
        return "its values are turned"
    if ropes(keys) != (made.rope is not None):
        return (
            "its keys are turned as they are appended, or its queries by a rope that nothing else reads, but"
            " not both"
        )
    if made.rope is None:
        return ""
    rope, append = RopeAttributes.of(made.rope), AppendAttributes.of(keys)
    alike = (rope.theta, rope.head_dim) == (append.theta, append.head_dim) and _position(
        graph, made.rope
    ) == _position(graph, op)
    return "" if alike else f"{made.rope.name!r} turns its queries otherwise than its keys are turned"


def _position(graph: Graph, op: TileOp) -> Operand | None:
    b = graph.bound(op)
    return b.operand("position") if b.has("position") else None


def _made(graph: Graph, op: TileOp) -> _Made:
    b = graph.bound(op)
    q, k, v = (b.operand(name) for name in ("q", "k", "v"))
    rope = next((w for w in graph.writers(q.tensor) if isinstance(w.attributes, RopeAttributes)), None)
    plain = (
        rope
        and not q.columns
        and len(graph.readers(rope.result)) == 1
        and rope.result not in graph.outputs
    )
    alone = plain and rope and (rope.epilogue is None or rope.epilogue.expression == "acc0")
    return _Made(
        tuple(w for cache in (k, v) for w in graph.writers(cache.tensor)), rope if alone else None
    )


def _takes_all(b: OpInstance, given: tuple[int, ...] | None, place: Place) -> bool:
    """Whether a tile that the options give takes all queries at once, in few rows; none given does. What is
    no tile is refused later."""
    a = AttentionAttributes.of(b)
    if given is None:
        return True
    tile = (
        b.kind.whole_tile(given, place.forms.configs(b, place.machine)[0]) if isinstance(given, tuple) else ()
    )
    return len(tile) == 3 and tile[0] >= a.q_len and tile[0] * tile[2] <= FEW


def _pass(graph: Graph, op: TileOp, made: _Made) -> Graph:
    """The attention takes the new rows, and stands before the appends, which nothing awaits."""
    attributes = replace(AttentionAttributes.of(op), forwarded=True)
    queries, *caches = op.operands
    if made.rope:
        queries = graph.bound(made.rope).operand("x")
        attributes = replace(attributes, theta=RopeAttributes.of(made.rope).theta)
    taken = replace(
        op,
        operands=(queries, *caches, *(graph.bound(a).operand("x") for a in made.appends)),
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
    """For `explain`: each attention over caches, whether new rows are forwarded to it, and why not."""
    found = []
    for op in graph.ops:
        b = graph.bound(op)
        if is_forwarded(b):
            new = " and ".join(b.operand(name).tensor for name in ("new_k", "new_v"))
            found.append(
                f"new rows forwarded to {op.name}: from {new}, while the appends write the caches; other rows"
                " are loaded before its queries are there"
            )
        elif isinstance(op.attributes, AttentionAttributes) and over_caches(b):
            why = problem(graph, op, place) or "the options speak of them or of its tile"
            found.append(f"{op.name} awaits its appends: {why}")
    return found


REWRITE = Rewrite(20, forwarded, lines)
