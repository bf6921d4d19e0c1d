"""What every target's templates ask about an op."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilegen.analysis.regions import to_c
from tilegen.codegen.schedule import enum, locals_text
from tilegen.codegen.taken_keys import TakenKeys, taken_keys
from tilegen.errors import AnalysisError
from tilegen.frontend.attributes import Attributes
from tilegen.frontend.dims import most
from tilegen.frontend.program import Operand
from tilegen.ops.append import AppendAttributes, ropes
from tilegen.ops.attention import AttentionAttributes, forwarded, roped, splits
from tilegen.ops.base import OpInstance
from tilegen.ops.combine import STATE
from tilegen.ops.gemm import normed
from tilegen.ops.reduce import ReduceAttributes
from tilegen.ops.rope import RopeAttributes
from tilegen.schedule.plan import Plan


@dataclass(frozen=True)
class OpText:
    """An op of a plan; targets add what their own templates need."""

    plan: Plan
    bound: OpInstance

    STATE = STATE  # columns of a head's partial result beside its sums

    @property
    def kv_splits(self) -> int:
        """attention, combine: splits of the keys."""
        return splits(self.bound)

    @property
    def forwarded(self) -> bool:
        """attention: whether new keys and values are passed to it beside its caches."""
        return forwarded(self.bound)

    @property
    def roped(self) -> bool:
        """attention: whether it turns its queries and new keys by their position."""
        return roped(self.bound)

    @property
    def taken(self) -> TakenKeys | None:
        """attention: the blocks of keys that its tiles take by a block mask."""
        return taken_keys(self.bound)

    @property
    def adds_bias(self) -> bool:
        """attention: whether a tensor is added to its scores."""
        return self.bound.has("bias")

    @property
    def ropes(self) -> bool:
        """append: whether rows are turned by their position."""
        return ropes(self.bound)

    @property
    def turning(self) -> bool:
        """Whether it turns anything by its position."""
        return isinstance(self.bound.attributes, RopeAttributes) or self.roped or self.ropes

    @property
    def table_row(self) -> str:
        """rotary: the row of the tables that `row` of the result turns by."""
        rows = self.bound.shape(self.bound.index("cos"))[0]
        return "row" if rows == self.bound.out[0] else f"row % {to_c(rows)}"

    @property
    def angles(self) -> str:
        """Turning: what tg_angles of columns d … d + 7 is made of, the turns of the first from position to
        position and what each next one is multiplied by."""
        match self.bound.attributes:
            case (
                RopeAttributes(head_dim=d, theta=theta)
                | AppendAttributes(head_dim=d, theta=theta)
                | AttentionAttributes(head_dim=d, theta=theta)
            ) if d is not None and theta is not None:
                log2 = float(-2.0 / d * math.log2(theta))
            case _:
                raise AnalysisError(f"op {self.name!r} turns nothing by its position")
        return f"exp2(d * {log2}) * {1 / (2 * math.pi)}, {2.0**log2}"

    @property
    def normed(self) -> bool:
        """linear: whether a norm is fused into it."""
        return normed(self.bound)

    @property
    def name(self) -> str:
        return self.bound.op.name

    @property
    def enum(self) -> str:
        return enum(self.name)

    @property
    def served(self) -> tuple[str, ...]:
        """The ops whose tiles its code runs."""
        return (self.name,)

    @property
    def cases(self) -> list[str]:
        return [enum(name) for name in self.served]

    @property
    def waits_function(self) -> str:
        """The function that makes its waits: the schedule's."""
        return "tg_waits"

    @property
    def posts_function(self) -> str:
        return "tg_posts"

    @property
    def locals(self) -> str:
        return locals_text(self.bound)

    @property
    def cluster(self) -> int:
        return self.bound.op.cluster

    @property
    def grid(self) -> tuple[int, ...]:
        """Tiles in each coordinate, at the largest size."""
        return tuple(most(n) for n in self.bound.grid)

    @property
    def posts(self) -> bool:
        return any(self.plan.posts_of(name) for name in self.served)

    def waiting(self, when: str) -> list[int]:
        """Operands that any of the ops waits for then: first, step, epilogue."""
        return sorted(
            {
                w.edge.access.operand
                for name in self.served
                for w in self.plan.waits_of(name)
                if w.edge.access.when == when
            }
        )

    def stepped(self, operand: int) -> bool:
        """Whether later steps wait for more of an operand than the first."""
        return any(
            w.stepped
            for name in self.served
            for w in self.plan.waits_of(name)
            if (w.edge.access.operand, w.edge.access.when) == (operand, "step")
        )

    @property
    def equation(self) -> str:
        return equation(self.bound)


@dataclass(frozen=True)
class MacroOp(OpText):
    """An op whose tile function is a macro of a target's templates, and what any such macro may ask."""

    @property
    def attributes(self) -> Attributes:
        return self.bound.attributes

    @property
    def tile(self) -> tuple[int, ...]:
        return self.bound.tile

    @property
    def out(self) -> tuple[int, ...]:
        return self.bound.out

    def has(self, name: str) -> bool:
        """Whether it has the operand of that name."""
        return self.bound.has(name)


def equation(b: OpInstance) -> str:
    """y [512, 6144] = linear(x, w1), y = gelu_tanh(acc0)"""

    def words(o: Operand) -> str:
        view = f"[:, {o.columns[0]}:{o.columns[1]}]" if o.columns else (" flattened" if o.flatten else "")
        return o.tensor + view

    base = len(b.op.operands) - (len(b.op.epilogue.operands) if b.op.epilogue else 0)
    shape = " x ".join(str(n) for n in b.out)
    given = [words(o) for o in b.op.operands[:base]]
    if forwarded(b):
        q, k, v, *told, at, new_k, new_v = given
        if roped(b):
            q, new_k = f"rope({q}, {at})", f"rope({new_k}, {at})"
        given = [q, f"{k} with {new_k}", f"{v} with {new_v}", *told, at]
    if normed(b):
        x, w, v = given
        given = [f"rms_norm({x}, {v})", w]
    word = b.attributes.how if isinstance(b.attributes, ReduceAttributes) else b.op.kind
    text = f"{b.op.result} [{shape}] = {word}({', '.join(given)})"
    if b.op.epilogue and b.op.epilogue.expression != "acc0":
        text += f", then {b.op.epilogue.expression}"
        called = {f"e{n}": words(b.op.operands[i]) for n, (i, _) in enumerate(b.op.epilogue.operands)}
        extras = [f"{name} = {word}" for name, word in called.items() if name != word]
        text += f" with {', '.join(extras)}" if extras else ""
    return text
