"""Each wait of a plan stands in the generated roles that load, at its place: before everything, before each
step, or all at once before one load."""

from __future__ import annotations

import re

import pytest

from tests.gpu.gemms import CASES, Case
from tests.gpu.ops import OPS
from tilegen.targets.sm90.emit import generate

ROLES = ("tg_load_activations", "tg_load_weights")
CASE = re.compile(
    r"^      case (TG_OP_\w+(?:: case TG_OP_\w+)*): \{\n(.*?)^      \}\n", re.MULTILINE | re.DOTALL
)
CALL = re.compile(r"tg_(?:shared_)?waits\w*\(g, t, \w+, (\d+), (-1|g\.step|k - 1|k)\);")
ONCE = ("if (k == first) {", "if (k == last - 1) {")  # that the epilogue's waits stand under


def waits_in(text: str) -> dict[str, list[tuple[int, str, str]]]:
    """Op -> (operand, when, condition) of each wait that its code makes, in order."""
    found: dict[str, list[tuple[int, str, str]]] = {}
    for role in ROLES:
        start = text.index(f"TG_FN void {role}(")
        for ops, code in CASE.findall(text[start : text.index("\n}\n", start)]):
            made = [(int(operand), when, condition) for operand, when, condition in calls(code.splitlines())]
            for op in ops.split(": case "):
                found.setdefault(op, []).extend(made)
    return found


def calls(lines: list[str]) -> list[tuple[str, str, str]]:
    made, conditions = [], dict[int, str]()
    for line in lines:
        indent = len(line) - len(line.lstrip())
        conditions = {n: text for n, text in conditions.items() if n < indent}
        if line.lstrip().startswith("if ("):
            conditions[indent] = line.split("  //")[0].strip()
        if call := CALL.search(line):
            when = {"-1": "first", "g.step": "epilogue"}.get(call[2], "step")
            made.append((call[1], when, next((c for c in conditions.values() if c in ONCE), "")))
    return made


@pytest.mark.parametrize("case", [*CASES, *OPS], ids=lambda c: c.name)
def test_each_wait_stands_at_its_place(case: Case) -> None:
    plan = case.plan()
    found = waits_in(generate(plan).text)
    for op in plan.graph.ops:
        wanted = {(w.edge.access.operand, w.edge.access.when) for w in plan.waits_of(op.name)}
        made = found.get(f"TG_OP_{op.name.upper()}", [])
        assert wanted <= {(operand, when) for operand, when, _ in made}, op.name
        assert all((condition != "") == (when == "epilogue") for _, when, condition in made), op.name
        older = [n for n, (_, _, condition) in enumerate(made) if condition == ONCE[0]]
        steps = [n for n, (_, when, _) in enumerate(made) if when == "step"]
        # a residual that is older than the activations is awaited before them
        assert not older or not steps or max(older) < min(steps), op.name
