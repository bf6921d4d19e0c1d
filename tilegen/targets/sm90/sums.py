"""How the sums of a Hopper kernel's product leave the registers: swapped, exchanged, finished by the epilogue, stored; as C text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tilegen.analysis.memory_order import store_proxy
from tilegen.analysis.regions import to_c
from tilegen.codegen.epilogue import EpilogueOperand, EpilogueText
from tilegen.targets.sm90.tile import HopperTile

MOST_HELD = 8  # eights of columns of operands of the epilogue


def _indented(lines: Sequence[str]) -> list[str]:
    return ["  " + line for line in lines]


@dataclass(frozen=True)
class HopperSums(HopperTile):
    """A product's tile, from the end of its main loop on."""

    # --- letting results out ----------------------------------------------------------------------------------------------

    @property
    def staged(self) -> bool:
        """Whether results leave through shared memory and TMA (else from registers): the proof's memory-order row says the same."""
        return store_proxy("cuda", self.bound.result.dtype, self.rows_of_part) == "async"

    @property
    def store_map(self) -> str:
        return f"{self.name}_out" if self.finished_octets >= 8 else self.rest_map

    @property
    def rest_map(self) -> str:
        return f"{self.name}_rest" if self.finished_octets % 8 else ""

    @property
    def row(self) -> str:
        return to_c(self.bound.write[0].lo) + (f" + part * {self.rows_of_part}" if self.shares("rows") else "")

    @property
    def column(self) -> str:
        """First column that the part finishes."""
        width = self.tile[1] // 2
        shared = self.shares("columns") or (self.exchanges and not self.splits_columns)
        return to_c(self.bound.write[-1].lo) + (f" + part * {width}" if shared else "")

    @property
    def row_of_warpgroup(self) -> str:
        return "" if self.splits_columns else f" + (int)warpgroup * {64 * self.m64}"

    @property
    def column_of_warpgroup(self) -> str:
        return f" + (int)warpgroup * {8 * self.finished_octets}" if self.splits_columns else ""

    @property
    def corner(self) -> str:
        """Where a math warpgroup's sums lie in the result: the members of tg_op_NAME::corner."""
        return f"{self.row}{self.row_of_warpgroup}, {self.column}{self.column_of_warpgroup}"

    corner_text = (
        "using corner = tg_corner;",
        "TG_FN static int row(tg_corner at, int local) { return at.row + local; }",
        "TG_FN static bool inside(int row) { return row < ROWS; }",
    )

    @property
    def ship(self) -> str:
        """The statement that lets staged results out."""
        rest = self.map_address(self.rest_map) if self.rest_map else "nullptr"
        to = f"{self.map_address(self.store_map)}, {rest}, {{ {self.row}, {self.column} }}"
        return f"tg_ship<tg_op_{self.name}, {self.finished_octets}>({to}, smem, out, limit_ns);"

    @property
    def finish(self) -> list[str]:
        """The statements after the main loop: sums swapped by the warpgroups, exchanged where the gang shares steps, then stored."""
        if self.alternates:
            return self._halves("warpgroup", lambda own, other, half: [self._swap(own, other, half), *self._finish_columns(own, half)])
        if not self.exchanges or self.splits_columns:
            return self._finish_columns(0, self.octets)
        return self._halves("part", lambda own, other, half: [self._give(other, half), self._take(own, half), self._store(own, half)])

    def _halves(self, who: str, lines: Callable[[int, int, int], list[str]]) -> list[str]:
        """lines(first octet of its own half, of the other's, octets of a half) for warpgroup or part 0, which finishes the first half, and for 1."""
        half = self.octets // 2
        first, second = lines(0, half, half), lines(half, 0, half)
        return [f"if ({who} == 0) {{", *_indented(first), "} else {", *_indented(second), "}"]

    def _finish_columns(self, first: int, count: int) -> list[str]:
        """The same for these octets of a warpgroup that has the CTA's sums of half the columns."""
        if not self.exchanges:
            return [self._store(first, count)]
        taken, given = [self._take(first, count), self._store(first, count)], [self._give(first, count)]
        return ["if ((int)warpgroup == part) {", *_indented(taken), "} else {", *_indented(given), "}"]

    def _swap(self, own: int, other: int, count: int) -> str:
        return f"tg_swap<Op, {other}, {own}, {count}>(acc, smem + TG_SCRATCH_AT, warpgroup, thread);"

    def _give(self, first: int, count: int) -> str:
        return f"tg_give<Op, {first}, {count}>(acc, smem, part, given, warpgroup, thread), given ^= 1;"

    def _take(self, first: int, count: int) -> str:
        return f"tg_take<Op, {first}, {count}>(acc, smem, part, taken, warpgroup, thread), taken ^= 1;"

    def _store(self, first: int, count: int) -> str:
        if self.held:
            return f"tg_store_held<Op, {first}, {count}>(acc, held, {self.seen}, at, thread);"
        if self.staged:
            return f"tg_store_staged<Op, {first}, {count}>(acc, {self.seen}, at, smem, out, warpgroup, thread);"
        return f"tg_store_direct<Op, {first}, {count}>(acc, {self.seen}, at, thread);"

    # --- epilogue ---------------------------------------------------------------------------------------------------------

    @property
    def result_member(self) -> str:
        """The result among its tensors; those that its epilogue reads are called as the epilogue calls them where it has twins."""
        return "y" if self.twins else self.result_name

    @cached_property
    def epilogue(self) -> EpilogueText:
        return EpilogueText(self.bound)

    @property
    def expression(self) -> str:
        return self.epilogue.expression

    @property
    def accumulators(self) -> list[tuple[str, int]]:
        """Each group's sum, and its first octet among a thread's."""
        return [(name, g * self.octets) for g, name in enumerate(self.epilogue.accumulators)]

    @property
    def epilogue_operands(self) -> list[dict[str, Any]]:
        """Loads are guarded, since a tile may hang over the result's edge."""
        return [self._epilogue_operand(e) for e in self.epilogue.operands]

    def _epilogue_operand(self, e: EpilogueOperand) -> dict[str, Any]:
        fetch, near = "tg_fetch_constant" if e.stays else "tg_fetch", "tg_touch" if self.touches else "tg_warm"
        inside = "column < COLUMNS" if e.vector else "inside(row) && column < COLUMNS"
        tensor = f"T.{e.name if self.twins else e.tensor}"
        pointer = f"{tensor} + {e.at}"
        return {
            "name": e.name,
            "tensor": tensor,
            "fetch": f"{fetch}({pointer}, {inside})",
            "word": "tg_pair" if e.dtype == "float32" else "unsigned",
            "warm": f"if (thread * 2 < WIDTH && {inside}) (void){fetch}({pointer}, true);" if e.vector else f"if ({inside}) {near}({pointer});",
            "columns": e.vector,
        }

    @property
    def held(self) -> bool:
        """Whether a tile fetches what its epilogue reads before its products: it is there then, small, and a load that comes behind the weights of the next
        tile takes microseconds."""
        small = self.m64 == 1 and 0 < self.finished_octets * len(self.epilogue.operands) <= MOST_HELD
        return small and not self.staged and (self.holds_late or all(e.constant for e in self.epilogue.operands))

    @property
    def holds_late(self) -> bool:
        """Whether that is when the first stage is there, before whose load what other ops write for the epilogue has been awaited."""
        return (self.epilogue_is_older or self.steps_of_tile == 1) and not all(e.stays for e in self.epilogue.operands)

    @property
    def epilogue_is_older(self) -> bool:
        """Whether what its epilogue reads is written by ops before the one that its steps wait for, as a residual is: then it is awaited first, since the
        posts have come by then, and a look at a semaphore after the last wait would hold the loads back."""
        return all(self._is_older(name) for name in self.served)

    def _is_older(self, name: str) -> bool:
        numbers = {op.name: n for n, op in enumerate(self.plan.graph.ops)}
        of = {when: [numbers[w.edge.producer.op.name] for w in self.plan.waits_of(name) if w.edge.access.when == when] for when in ("step", "epilogue")}
        return not of["epilogue"] or max(of["epilogue"]) < max(of["step"], default=-1)

    @property
    def warms(self) -> bool:
        return bool(self.epilogue_operands) or self.touches

    @property
    def touches(self) -> bool:
        """Whether a tile looks at what its epilogue will read and write long before, so that its pages are known to the SM: where weights stream once, and ops
        of other kinds let it wait for its activations."""
        return self.weights_once and any(op.kind != "linear" for op in self.plan.graph.ops)

    @property
    def parameters(self) -> str:
        return self.epilogue.parameters

    def arguments(self, side: str) -> str:
        return self.epilogue.arguments(side)
