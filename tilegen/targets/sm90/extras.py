"""What a product's epilogue reads beside its sums: fetched late, or held, or brought near before the main
loop."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tilegen.codegen.epilogue import EpilogueOperand, EpilogueText
from tilegen.ops.gemm import LinearAttributes
from tilegen.targets.sm90.code import Code
from tilegen.targets.sm90.store import unit_of
from tilegen.targets.sm90.tile import TWO_BYTES, Tile

MOST_HELD = 8  # eights of columns of operands of the epilogue
MOST_SUMS = 144  # of a thread, beside which registers hold what the epilogue reads for two blocks
# registers of a thread for those and for its sums; each 64 rows of a tile have addresses of their own
MOST_AHEAD, OF_ROWS = 208, 16
EIGHTS = 8  # of columns of a block, of which a thread has two rows


def epilogue_is_older(code: Code) -> bool:
    """Whether what an epilogue reads is written by ops before the one that its steps wait for, as a residual
    is: then it is awaited first, since the posts have come by then, and a look at a semaphore after the last
    wait would hold the loads back."""
    return all(_is_older(code, name) for name in code.served)


def _is_older(code: Code, name: str) -> bool:
    numbers = {op.name: n for n, op in enumerate(code.plan.graph.ops)}

    def producers(when: str) -> list[int]:
        return [
            numbers[w.edge.producer.op.name] for w in code.plan.waits_of(name) if w.edge.access.when == when
        ]

    epilogue = producers("epilogue")
    return not epilogue or max(epilogue) < max(producers("step"), default=-1)


@dataclass(frozen=True)
class Extras:
    """An epilogue y = f(acc0, acc1, e0, …) and its operands. weights_once: weights stream through once."""

    code: Code
    tile: Tile
    staged: bool
    weights_once: bool

    @cached_property
    def text(self) -> EpilogueText:
        return EpilogueText(self.code.bound)

    @property
    def accumulators(self) -> list[tuple[str, int]]:
        """Each group's sum, and its first n8 fragment among those that the epilogue is given."""
        each = 1 if self.tile.swapped else self.tile.n8s
        return [(name, g * each) for g, name in enumerate(self.text.accumulators)]

    @cached_property
    def operands(self) -> list[dict[str, Any]]:
        """Loads are guarded, since a tile may hang over the result's edge."""
        return [self._operand(e) for e in self.text.operands]

    def _operand(self, e: EpilogueOperand) -> dict[str, Any]:
        fetch, near = (
            "tg_fetch_constant" if e.stays else "tg_fetch",
            "tg_touch" if self.touches else "tg_warm",
        )
        width = "columns(T)" if self.code.numbered else "COLUMNS"
        inside = f"column < {width}" if e.vector else f"inside(row) && column < {width}"
        tensor = f"T.{self.code.tensor_member(e.name, e.tensor)}"
        own = self.code.numbered and e.pitch == int(self.code.bound.out[-1])
        pointer = f"{tensor} + {e.with_pitch('columns(T)') if own else e.at}"
        if e.of_row:
            pointer, inside = tensor + e.row.removeprefix(f"T.{e.tensor}"), "inside(row)"
            fetched = f"tg_fetch_of_row{'_constant' if e.constant else ''}({pointer}, {inside})"
            warm = f"tg_warm({pointer});"
        elif self.text.halves_last(e):
            fetched = f"tg_fetch_constant_to_end({pointer}, {inside}, column + 1 < {width})"
            warm = f"(void){fetched};"
        elif self.text.one_by_one(e):
            fetched = f"tg_fetch_ones({pointer}, {inside}, column + 1 < {width})"
            warm = f"tg_warm({pointer});"
        else:
            fetched = f"{fetch}({pointer}, {inside})" if e != self.residual else "{}"
            warm = f"(void){fetch}({pointer}, true);" if e.vector else f"{near}({pointer});"
        return {
            "name": e.name,
            "tensor": tensor,
            "of_columns": fetched if e.vector else "{}",
            "of_row": f"beside.{e.name}" if e.vector else fetched,
            "word": "tg_pair" if e.dtype == "float32" else "unsigned",
            "warm": f"if ({'thread * 2 < WIDTH && ' if e.vector else ''}{inside}) {warm}",
            "columns": e.vector,
            "twice": f"tg_twice(of.{e.name}, which)",
            "staged": e == self.residual,
        }

    @cached_property
    def residual(self) -> EpilogueOperand | None:
        """What comes by TMA into the buffers that results leave from: an operand that goes by rows, in two
        bytes a number and whole 16-byte units. In a launch of its own alone: the warp that stores waits for
        no semaphore."""
        linear = isinstance(self.code.bound.attributes, LinearAttributes)
        if not (linear and self.staged) or len(self.code.plan.graph.ops) > 1:
            return None
        fit = (
            e
            for e in self.text.operands
            if not (e.vector or e.of_row) and e.dtype in TWO_BYTES and unit_of(e.first, e.pitch) == 8
        )
        return next(fit, None)

    @property
    def held(self) -> bool:
        """Whether a tile fetches them before its products: they are there then, small, and a load that comes
        behind the weights of the next tile takes microseconds."""
        small = self.tile.m64 == 1 and 0 < self.tile.finished_n8s * len(self.text.operands) <= MOST_HELD
        direct = not self.staged and not self.tile.swapped
        return small and direct and (self.holds_late or all(e.constant for e in self.text.operands))

    @property
    def holds_late(self) -> bool:
        """Whether that is when the first stage is there, before whose load what other ops write for the
        epilogue has been awaited."""
        early = all(e.stays for e in self.text.operands)
        return (epilogue_is_older(self.code) or self.tile.steps == 1) and not early

    @property
    def by_tma(self) -> tuple[int, ...]:
        """The residual's number among the op's operands."""
        epilogue = self.code.bound.op.epilogue
        numbers = [n for n, _ in epilogue.operands] if epilogue else []
        return tuple(n for n, e in zip(numbers, self.text.operands, strict=True) if e == self.residual)

    @property
    def ahead(self) -> bool:
        """Whether operands that go by rows are fetched while the block before is stored: their way from L2 is
        as long as that takes. Not where registers would not hold them."""
        fetched = [e for e in self.text.operands if e != self.residual]
        words = sum((1 if e.vector else 2) * (2 if e.dtype == "float32" else 1) for e in fetched)
        sums = self.tile.m64 * self.tile.registers
        held = sums + 2 * EIGHTS * words + OF_ROWS * self.tile.m64
        near = (e.vector or e.of_row for e in fetched)
        return self.staged and sums <= MOST_SUMS and held <= MOST_AHEAD and not all(near)

    @property
    def warms(self) -> bool:
        return self.touches or not all(e["staged"] for e in self.operands)

    @property
    def touches(self) -> bool:
        """Whether a tile looks at what its epilogue will read and write long before, so that its pages are
        known to the SM: where weights stream once, and ops of other kinds let it wait for its activations."""
        aligned = unit_of(int(self.code.bound.out[-1])) == 8
        return self.weights_once and aligned and not self.code.plan.graph.consists_of(LinearAttributes)
