"""Random programs over the whole language, planned for every machine: none is refused but for a limit that
the README's matrix states, each is proved, and right on the CPU and on the emulator of both GPU targets.

    python -m tests.everywhere --count 500 --seed 20261128      needs no GPU; prints what is wrong or refused,
    ends with 1 where anything is wrong
    python -m tests.everywhere --count 150 --gpu                in the emulator's place the GPU that is there

The same seed gives the same programs in every process; `--first N` leaves out the first N of them.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from random import Random
from typing import Any

import torch

import tilegen as tg
from tests.random_draws import Draw
from tests.random_programs import draw_program
from tilegen.errors import PlanError
from tilegen.kernels.kernel import Kernel
from tilegen.ops.append import AppendAttributes
from tilegen.ops.attention import AttentionAttributes
from tilegen.ops.rope import RopeAttributes, RotaryAttributes
from tilegen.runtime.data import random_arguments, relative_error, spoiled
from tilegen.schedule.plan import Plan
from tilegen.targets.cpu.library import Library
from tilegen.targets.emulated.library import Adversary, EmulatedLibrary
from tilegen.targets.interpret.interpreter import Interpreter
from tilegen.targets.select import named

DTYPES = ("bfloat16", "float16", "float32")
MACHINES = {"sm_90a": "h200", "sm_80": "a100", "cpu": "cpu"}
WORDS = [name for name in tg.__all__ if tg._WHERE[name].startswith("tilegen.ops.")]
TIMES = 8  # sizes: up to so many times those of tests/random_programs.py
MOST = {"cpu": 1e-5, "sm_90a": 5e-3, "sm_80": 5e-3}  # relative Frobenius error, where rounding costs less
ROUNDED = 4.0  # times what rounding alone costs
LARGEST_HEAD = 256  # columns, by eights, that the matrix states
OF_HEADS = (AttentionAttributes, AppendAttributes, RopeAttributes, RotaryAttributes)
STATED, UNSTATED = "a limit that the matrix states", "no limit that the matrix states"
REFUSED = re.compile(r"'(\w+)' \(\w+\)")  # ops that a target has no form for


# --- programs -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Drawn:
    number: int
    dtype: str
    program: tg.Program
    words: Counter[str]

    def __str__(self) -> str:
        kinds = ", ".join(call.kind for call in self.program.calls)
        return f"program {self.number} ({self.dtype}: {kinds})"


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """How often each word of the language is said in a with block."""
    counts, words = Counter[str](), {word: getattr(tg, word) for word in WORDS}

    def counting(word: str) -> Callable[..., Any]:
        @functools.wraps(words[word])
        def said(*given: Any, **named: Any) -> Any:
            counts[word] += 1
            return words[word](*given, **named)

        return said

    try:
        for word in words:
            setattr(tg, word, counting(word))
        yield counts
    finally:
        for word, said in words.items():
            setattr(tg, word, said)


def drawn_programs(count: int, number: int) -> list[Drawn]:
    """The first so many different programs of a seed: the same in every process, however many are asked for.
    hypothesis, which draws numbers near to those in all modules that are loaded, promises neither."""
    found: dict[str, Drawn] = {}
    numbers = itertools.count()
    while len(found) < count:
        chance = Random(f"{number} {next(numbers)}")
        dtype = chance.choice(DTYPES)
        with counted() as words:
            program = draw_program(Draw(chance, dtype, TIMES))
        found.setdefault(repr((program.tensors, program.calls)), Drawn(len(found), dtype, program, words))
    return list(found.values())


# --- what becomes of them -----------------------------------------------------------------------------------


@dataclass
class Outcome:
    """Of one program: by target why it was refused, and whether the matrix states that; what is wrong."""

    drawn: Drawn
    refused: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    planned: list[str] = field(default_factory=list)
    overflows: bool = False


def beyond_the_matrix(program: tg.Program, target: str) -> set[str]:
    """The calls that the matrix says a target need not have a form for."""
    if target == "cpu":
        return set()
    types, found = {t.name: t.dtype for t in program.tensors}, set()
    for call in program.calls:
        if isinstance(call.attributes, OF_HEADS):
            columns = program.tensor(call.result).plan_shape[-1]
            size = getattr(call.attributes, "head_dim", None) or columns % 8  # a cache says no size of heads
            if types[call.result] == "float32" or size % 8 or size > LARGEST_HEAD:
                found.add(call.name)
        if target == "sm_80" and types[call.operands[0].tensor] == "float8_e4m3fn":
            found.add(call.name)
    return found


def results(drawn: Drawn, kernel: Kernel, given: list[torch.Tensor]) -> list[torch.Tensor]:
    """Outputs, and states after the run."""
    arguments = [a.clone() for a in given]
    made = kernel(*arguments)
    states = [a for t, a in zip(drawn.program.arguments, arguments, strict=True) if t.role == "state"]
    return [*(made if isinstance(made, tuple) else (made,)), *states]


def emulated(drawn: Drawn, plan: Plan, given: list[torch.Tensor]) -> list[torch.Tensor]:
    """As `results`, of a GPU's text, its adversary by the program's number."""
    library = EmulatedLibrary(plan, named(plan.target).emit(plan))
    library.adversary = Adversary.drawn(drawn.number, library.launch.grid)
    held = {name: a.clone() for name, a in zip(plan.arguments, given, strict=True)}
    for t in plan.graph.tensors.values():
        if t.name not in held:
            held[t.name] = spoiled(torch.empty(t.plan_shape, dtype=getattr(torch, t.dtype)))
    library.run(0, held, 1)
    states = [t.name for t in drawn.program.tensors if t.role == "state"]
    return [held[name] for name in (*plan.outputs, *states)]


def on_gpu(drawn: Drawn, target: str, given: list[torch.Tensor]) -> list[torch.Tensor]:
    """As `results`, of the kernel that this machine's GPU gets."""
    kernel = tg.compile(drawn.program, target)
    return [a.cpu() for a in results(drawn, kernel, [a.cuda() for a in given])]


def sms_of(drawn: Drawn, target: str) -> str | int:
    """What the emulator plays: every fourth time the machine that was planned for, else a small one."""
    return 1 + drawn.number % 5 if drawn.number % 4 else MACHINES[target]


def tried(drawn: Drawn, gpu: bool = False) -> Outcome:
    """gpu: its kernels run on the GPU that is there."""
    found, plans = Outcome(drawn), dict[str, Plan]()
    for target, machine in MACHINES.items():
        try:
            plans[target] = tg.plan(drawn.program, machine, target=target)
            tg.verify(plans[target])
            found.planned.append(target)
        except PlanError as error:
            ops = set(REFUSED.findall(str(error)))
            known = bool(ops) and ops <= beyond_the_matrix(drawn.program, target)
            found.refused[target] = f"{STATED if known else UNSTATED}: {error}"
        except Exception as error:
            found.wrong.append(f"{target}: {type(error).__name__}: {error}")
    if "cpu" in plans:
        _run(found, plans, gpu)
    return found


def _run(found: Outcome, plans: dict[str, Plan], gpu: bool) -> None:
    """On all targets, against float32; what rounding costs the interpreter tells."""
    drawn, given = found.drawn, random_arguments(found.drawn.program, found.drawn.number)
    want = tg.reference(drawn.program, *(a.clone() for a in given))
    wanted = list(want) if isinstance(want, tuple) else [want]
    interpreter = Interpreter(plans["cpu"], "random", drawn.number)
    rounded = results(drawn, Kernel(plans["cpu"], None, interpreter), given)
    costs = [relative_error(y.reshape(r.shape), r) for y, r in zip(rounded, wanted, strict=True)]
    if not all(cost < 0.1 for cost in costs):
        found.overflows = any(not r.isfinite().all() for r in (*rounded, *wanted))
        if not found.overflows:
            found.wrong.append(f"interpret: errors {costs}")
        return
    for target in found.planned:
        try:
            on_it = gpu and target != "cpu"
            made = on_gpu(drawn, target, given) if on_it else _made(drawn, target, plans[target], given)
        except Exception as error:
            found.wrong.append(f"{target}: {type(error).__name__}: {error}")
            continue
        for n, (y, r, cost) in enumerate(zip(made, wanted, costs, strict=True)):
            error, most = relative_error(y.reshape(r.shape), r), max(MOST[target], ROUNDED * cost)
            if not error <= most:
                found.wrong.append(f"{target}: result {n} is off by {error:.2e}, at most {most:.2e}")


def _made(drawn: Drawn, target: str, plan: Plan, given: list[torch.Tensor]) -> list[torch.Tensor]:
    if target == "cpu":
        return results(drawn, Kernel(plan, None, Library(plan)), given)
    if sms_of(drawn, target) != MACHINES[target]:
        plan = tg.plan(drawn.program, sms_of(drawn, target), target=target)
        tg.verify(plan)
    return emulated(drawn, plan, given)


PROGRAMS: list[Drawn] = []  # which forked processes share


def _task(gpu: bool, number: int) -> Outcome:
    return tried(PROGRAMS[number], gpu)


def told(o: Outcome) -> list[str]:
    return [
        *(f"{o.drawn} is refused by {target} for {why}" for target, why in o.refused.items()),
        *(f"{o.drawn} is wrong: {why}" for why in o.wrong),
    ]


def main() -> int:
    p = argparse.ArgumentParser(
        "everywhere", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--count", type=int, default=500)
    p.add_argument("--seed", type=int, default=20261128)
    p.add_argument("--first", type=int, default=0)
    p.add_argument("--jobs", type=int, default=1)
    p.add_argument("--gpu", action="store_true", help="run the kernels of both GPU targets on this GPU")
    o = p.parse_args()
    os.environ["TILEGEN_POISON"] = "1"
    PROGRAMS.extend(drawn_programs(o.first + o.count, o.seed))
    outcomes = []
    with ProcessPoolExecutor(o.jobs, mp_context=get_context("fork")) as pool:
        for outcome in pool.map(functools.partial(_task, o.gpu), range(o.first, len(PROGRAMS))):
            outcomes.append(outcome)
            for line in told(outcome):
                print(line, flush=True)
    words = sum((outcome.drawn.words for outcome in outcomes), Counter[str]())
    print(", ".join(f"{word} {words[word]}" for word in WORDS))
    print(", ".join(f"{dtype} {sum(x.drawn.dtype == dtype for x in outcomes)}" for dtype in DTYPES))
    for target in MACHINES:
        reasons = [x.refused[target] for x in outcomes if target in x.refused]
        limits = sum(reason.startswith(STATED) for reason in reasons)
        proved = sum(target in x.planned for x in outcomes)
        print(f"{target}: {proved} proved, {len(reasons)} refused, {limits} of them for a stated limit")
    wrong, beyond = sum(bool(x.wrong) for x in outcomes), sum(x.overflows for x in outcomes)
    print(f"seed {o.seed}: {len(outcomes)} programs, {wrong} wrong, {beyond} beyond what their type holds")
    unstated = any(why.startswith(UNSTATED) for x in outcomes for why in x.refused.values())
    return 1 if wrong or unstated else 0


if __name__ == "__main__":
    raise SystemExit(main())
