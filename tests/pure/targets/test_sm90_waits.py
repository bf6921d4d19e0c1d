"""Each wait of a plan stands in the generated roles that load, at its place: before everything, before each
step, or all at once before one load."""

from __future__ import annotations

import re

import pytest

from tests.gpu.gemms import CASES, Case
from tests.gpu.ops import OPS
from tilegen.analysis.regions import to_c
from tilegen.targets.sm90.emit import generate

ROLES = ("tg_load_activations", "tg_load_weights")
CASE = re.compile(
    r"^      case (TG_OP_\w+(?:: case TG_OP_\w+)*): \{\n(.*?)^      \}\n", re.MULTILINE | re.DOTALL
)
STEP = re.compile(r"g\.operand = (\d+), g\.step = (.+);$")
LOOP, LATE = "for (int k = first;", re.compile(r"if \(k == (first|last - 1)\) \{")


def waits_in(text: str) -> dict[str, list[tuple[int, str, str]]]:
    """Op -> (operand, step, place) of each wait that its code makes, in order; place: ahead of the loop over
    steps, in it, or in it before the first or the last step."""
    found: dict[str, list[tuple[int, str, str]]] = {}
    for role in ROLES:
        start = text.index(f"TG_FN void {role}(")
        for ops, code in CASE.findall(text[start : text.index("\n}\n", start)]):
            for op in ops.split(": case "):
                found.setdefault(op, []).extend(calls(code.splitlines()))
    return found


def calls(lines: list[str]) -> list[tuple[int, str, str]]:
    made, place, inner = [], "ahead", 0
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        indent = len(line) - len(line.lstrip())
        if line.lstrip().startswith(LOOP):
            place = "in it"
        elif late := LATE.match(line.lstrip()):
            place, inner = late[1], indent
        elif place in ("first", "last - 1") and indent <= inner:
            place = "in it"
        if step := STEP.search(line):
            assert re.search(rf"waits\w*\(g, t, \w+, {step[1]}, g\.step\);", following), following
            made.append((int(step[1]), step[2], place))
    return made


@pytest.mark.parametrize("case", [*CASES, *OPS], ids=lambda c: c.name)
def test_each_wait_stands_at_its_place(case: Case) -> None:
    plan = case.plan()
    found = waits_in(generate(plan).text)
    for op in plan.graph.ops:
        made = found.get(f"TG_OP_{op.name.upper()}", [])
        end = to_c(plan.graph.bound(op).steps)
        for w in plan.waits_of(op.name):
            of_operand = [(step, place) for operand, step, place in made if operand == w.edge.access.operand]
            match w.edge.access.when:
                case "first":
                    assert of_operand == [("-1", "ahead")], op.name
                case "epilogue":
                    assert of_operand in ([(end, "ahead")], [(end, "last - 1")]), op.name
                case "step" if w.stepped:  # values are loaded a step behind keys
                    assert of_operand in ([("k", "in it")], [("k - 1", "in it")]), op.name
                case "step":
                    steps = {("first", "ahead"), ("k", "first"), ("k", "in it"), ("k - 1", "in it")}
                    assert len(of_operand) == 1 and set(of_operand) <= steps, op.name
