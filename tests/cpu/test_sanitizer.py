"""ThreadSanitizer sees what a plan guards against: weak orders and forgotten waits end as races, the right
program does not."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from cases import ATTENTION, MIXED_MLP, MLP, Case, check, execute, given, planned, states_of, stored

from tilegen.errors import RaceError
from tilegen.kernels.kernel import Kernel
from tilegen.runtime.cxx import compile_source
from tilegen.schedule.expand import expanded
from tilegen.schedule.waits import Wait
from tilegen.targets.cpu.emit import generate
from tilegen.targets.cpu.library import TSAN_FLAGS
from tilegen.targets.interpret.interpreter import Interpreter

RACE = 66
CONV = {"HW": 32, "C": 4, "stage": 1}
# static lists: which thread runs which tile does not depend on luck
LINEAR = Case(
    "gpt3_mlp", {"M": 64, **MLP}, "4", {"scheduling": "lists", "tiles": MIXED_MLP, "policies": {"h": "tile"}}
)
OTHERS = (
    Case(
        "gpt3_mlp", {"M": 64, **MLP}, "4", {"scheduling": "lists", "split_k": {"down": 2}, "tiles": MIXED_MLP}
    ),
    Case(
        "gpt3_attention",
        ATTENTION,
        "4",
        {"scheduling": "lists", "tiles": {"qkv": (16, 24, 72), "attn": (8, 8), "out": (16, 24, 24)}},
    ),
    Case(
        "resnet38",
        CONV,
        "4",
        {"scheduling": "lists", "tiles": {f"s1n{n}{x}": (1, 3, 3, 4, 4) for n in range(3) for x in "ab"}},
    ),
)
CASES = [
    pytest.param(LINEAR, id=str(LINEAR)),
    *(pytest.param(c, marks=pytest.mark.full, id=str(c)) for c in OTHERS),
]
BUGS = {
    "": 0,
    "-DTG_POST_ORDER=std::memory_order_relaxed": RACE,
    "-DTG_WAIT_ORDER=std::memory_order_relaxed": RACE,
}
WAIT = re.compile(r"tg_wait\(g, [^;]*\);")


@pytest.mark.parametrize("flag", BUGS, ids=lambda f: f or "right")
@pytest.mark.parametrize("case", CASES)
def test_weak_orders_are_races(case: Case, flag: str, tmp_path: Path) -> None:
    plan = planned(case)[0]
    program = compile_source(generate(plan), tmp_path, (*TSAN_FLAGS, *flag.split()), "kernel")
    done = execute(
        plan, program, {t.name: a for t, a in zip(case.program.arguments, given(case), strict=True)}, runs=3
    )
    assert done.returncode == BUGS[flag], done.stderr[:4000]
    if BUGS[flag]:
        assert "WARNING: ThreadSanitizer: data race" in done.stderr
    else:
        assert not done.stderr
        check(
            case,
            *([stored(plan, tmp_path, name) for name in names] for names in (plan.outputs, states_of(case))),
        )


def is_needed(case: Case, dropped: Wait) -> bool:
    """Whether the interpreter sees a race without this wait: other waits, or the lists themselves, may imply
    it."""
    plan, certificate = planned(case)
    without = replace(plan)
    without.__dict__["waits"] = tuple(w for w in plan.waits if w is not dropped)
    try:
        Kernel(plan, certificate, Interpreter(plan, "starve", data=expanded(without)))(*given(case))
    except RaceError:
        return True
    return False


@pytest.mark.parametrize("case", CASES)
def test_a_forgotten_wait_is_a_race(case: Case, tmp_path: Path) -> None:
    """Each wait of the schedule in turn is dropped: the sanitizer and the interpreter agree on what that
    does."""
    plan = planned(case)[0]
    source = generate(plan)
    places, waits = list(WAIT.finditer(source)), [w for op in plan.graph.ops for w in plan.waits_of(op.name)]
    assert len(places) == len(waits)
    needed = [is_needed(case, wait) for wait in waits]
    assert any(needed)
    for place, race in zip(places, needed, strict=True):
        spoiled = f"{source[: place.start()]}(void)g;{source[place.end() :]}"
        program = compile_source(spoiled, tmp_path, (*TSAN_FLAGS, "-Wno-error"), "kernel")
        done = execute(
            plan,
            program,
            {t.name: a for t, a in zip(case.program.arguments, given(case), strict=True)},
            runs=3,
        )
        assert done.returncode == (RACE if race else 0), (
            f"without {place[0]}: {done.returncode}\n{done.stderr[:4000]}"
        )
