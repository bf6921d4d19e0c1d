"""The generated schedule text is the plan: every tile, wait and post, compiled and run with primitives that
print."""

from __future__ import annotations

import itertools
import subprocess
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from cases import CASES, Case, planned
from random_plans import FAMILIES, POLICIES, random_plan, scrambled

from tests.shares import share
from tilegen.analysis.regions import tiles_of
from tilegen.codegen.schedule import schedule_text
from tilegen.runtime.cxx import compiler
from tilegen.schedule.expand import expanded
from tilegen.schedule.plan import Plan
from tilegen.targets.cpu.emit import generate

PROLOGUE = """
#include <cstdio>
#include <cstdlib>
#define TG_FN [[maybe_unused]] static inline
#define TG_TABLE [[maybe_unused]] static constexpr
struct tg_context { int rank = 0; };
TG_FN int tg_draw_rank(tg_context& g) { return g.rank++; }
TG_FN void tg_wait(tg_context&, int semaphore, int target) { std::printf(" %d:%d", semaphore, target); }
TG_FN void tg_post(tg_context&, int semaphore) { std::printf(" %d", semaphore); }
TG_FN void tg_clear(tg_context&, int semaphore) { std::printf(" %d", semaphore); }
"""

ANSWER = """
static void answer(char what, int a, int b, int c, int d) {
  static tg_context drawn;
  tg_context g;
  if (what == 't') {
    const tg_tile_t t = tg_tile(a);
    std::printf(" %d %d %d %d %d", t.op, t.c[0], t.c[1], t.c[2], t.c[3]);
  }
  if (what == 'w') tg_waits(g, tg_tile(a), b, c, d);
  if (what == 'p') tg_posts(g, tg_tile(a), b);
  if (what == 'r') tg_reset(g);
  if (what == 'n') std::printf(" %d", tg_next(drawn, a, b));
  if (what == 'c') std::printf(" %d %d %d %d", TG_OPS, TG_TILES, TG_SEMAPHORES, TG_WORKERS);
}
"""

MAIN = """
int main() {
  int plan, a, b, c, d;
  char what;
  while (std::scanf("%%d %%c %%d %%d %%d %%d", &plan, &what, &a, &b, &c, &d) == 6) {
    switch (plan) {
%s
    }
    std::printf("\\n");
  }
}
"""


def ask(plans: list[Plan], questions: list[tuple[Any, ...]], folder: Path) -> list[str]:
    """The answers of the schedule texts, each in a namespace of its own, to lines `plan what a b c d`."""
    spaces = [f"namespace plan{n} {{\n{schedule_text(p)}\n{ANSWER}}}\n" for n, p in enumerate(plans)]
    dispatch = "\n".join(
        f"      case {n}: plan{n}::answer(what, a, b, c, d); break;" for n in range(len(plans))
    )
    source = folder / "schedules.cpp"
    source.write_text(PROLOGUE + "".join(spaces) + MAIN % dispatch)
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsanitize=undefined", "-fno-sanitize-recover"]
    built = subprocess.run(
        [compiler(), *flags, str(source), "-o", str(folder / "schedules")], capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    given = "".join(" ".join(map(str, (*q, 0, 0, 0, 0)[:6])) + "\n" for q in questions)
    done = subprocess.run(
        [str(folder / "schedules")], input=given, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    answers = done.stdout.splitlines()
    assert len(answers) == len(questions)
    return [a.strip() for a in answers]


def facts(n: int, plan: Plan) -> dict[tuple[Any, ...], str]:
    """Every question that can be asked about a plan, with the plan's own answer."""
    tiles, table = expanded(plan)["tiles"], plan.wait_table
    ops = {op.name: number for number, op in enumerate(plan.graph.ops)}
    out: dict[tuple[Any, ...], str] = {
        (n, "c"): f"{len(ops)} {len(tiles)} {len(plan.targets)} {plan.machine.clusters(plan.cluster)}"
    }
    out[(n, "r")] = " ".join(str(s) for s in range(len(plan.targets)))
    waits = defaultdict(list)
    columns = (table.rank, table.cta_rank, table.operand, table.step, table.semaphore, table.target)
    for *where, semaphore, target in zip(*(c.tolist() for c in columns), strict=True):
        waits[tuple(where)].append((semaphore, target))
    for b in plan.bounds:
        ranks, steps = plan.ranks[b.op.name].tolist(), tiles_of(b).steps.tolist()
        for (rank, last), part in itertools.product(zip(ranks, steps, strict=True), range(b.op.cluster)):
            mine = (
                range(last * part // b.op.cluster, last * (part + 1) // b.op.cluster)
                if b.op.cluster_split in ("k", "km")
                else range(last)
            )
            at = {"first": (-1,), "step": mine, "epilogue": (last,)}
            for operand, when in {(a.operand, a.when) for a in b.reads}:
                for step in at[when]:
                    found = sorted(waits.pop((rank, part, operand, step), ()))
                    out[n, "w", rank, part, operand, step] = " ".join(f"{s}:{t}" for s, t in found)
            assert tiles[rank]["op"] == b.op.name
            posts = tiles[rank]["ctas"][part]["posts"]
            assert all(amount == 1 for _, amount in posts)
            out[n, "p", rank, part] = " ".join(str(s) for s, _ in posts)
    assert not waits, "waits at places that no tile passes"
    for rank, tile in enumerate(tiles):
        coords = [*tile["coord"], 0, 0, 0, 0][:4]
        out[n, "t", rank] = " ".join(map(str, (ops[tile["op"]], *coords)))
    if isinstance(plan.scheduling, str):
        for rank in range(len(tiles)):
            out[n, "n", 0, rank] = str(rank)
        out[n, "n", 0, len(tiles)] = "-1"
    else:
        assert sorted(r for ranks in plan.scheduling for r in ranks) == list(range(len(tiles)))
        for worker, ranks in enumerate(plan.scheduling):
            for turn, rank in enumerate((*ranks, -1)):
                out[n, "n", worker, turn] = str(rank)
    return out


def in_order(waits: str) -> str:
    """The waits at one place may stand in any order."""
    return " ".join(sorted(waits.split(), key=lambda w: [int(x) for x in w.split(":")]))


def agree(plans: list[Plan], folder: Path) -> None:
    wanted = {q: a for n, plan in enumerate(plans) for q, a in facts(n, plan).items()}
    answers = ask(plans, list(wanted), folder)
    for question, answer in zip(wanted, answers, strict=True):
        given = in_order(answer) if question[1] == "w" else answer
        plan = plans[question[0]]
        ops = [(o.name, o.tile, o.cluster, o.cluster_split) for o in plan.graph.ops]
        about = f"{plan.program} {dict(plan.sizes)} {plan.order.name} {dict(plan.policies)} {ops}"
        assert given == wanted[question], f"question {question[1:]} about {about}"


# --- random plans -------------------------------------------------------------------------------------------

BATCH, BATCHES = 10, 1  # plans in one build; batches in the ordinary run


def plans_of(family: Any, batch: int) -> list[Plan]:
    seeds = range(batch * BATCH, (batch + 1) * BATCH)
    plans = [random_plan(family, seed)[1] for seed in seeds]
    return [*plans, *(scrambled(plan, seed) for plan, seed in zip(plans, seeds, strict=True))]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    "batch", [pytest.param(n, marks=[pytest.mark.full] if n >= BATCHES else []) for n in range(12)]
)
def test_text_of_random_plans_agrees_with_them(family: Any, batch: int, tmp_path: Path) -> None:
    agree(plans_of(family, batch), tmp_path)


def test_random_plans_have_everything() -> None:
    """The plans above are not all of one sort."""
    plans = [p for family in FAMILIES for batch in range(BATCHES) for p in plans_of(family, batch)]
    how = Counter(g.how for p in plans for m in p.semaphores for g in m.partition)
    assert set(how) == {"all", "each", "every", "modulo", "table"}
    assert {"dynamic", "static"} == {
        p.scheduling if isinstance(p.scheduling, str) else "static" for p in plans
    }
    assert {"worker + turn" in schedule_text(p) for p in plans if not isinstance(p.scheduling, str)} == {
        True,
        False,
    }
    splits = {op.cluster_split for p in plans for op in p.graph.ops if op.cluster > 1}
    assert splits == {"k", "km", "m", "n"}
    assert any(s.group > 1 for p in plans for s in p.order.segments)
    assert any(s.last_first for p in plans for s in p.order.segments)
    assert any(p.order.name.startswith("banded") for p in plans)
    assert any(t.role == "partial" for p in plans for t in p.graph.tensors.values())
    assert any(_has_empty_box(p) for p in plans)
    points = {name for p in plans for _, point in p.policies for name in point.split("=")}
    assert points >= {*POLICIES}


def _has_empty_box(plan: Plan) -> bool:
    """Whether some tile reads nothing of a tensor that it reads elsewhere."""
    counts = Counter(
        (t["op"], len({r["tensor"] for r in p["reads"]})) for t in expanded(plan)["tiles"] for p in t["ctas"]
    )
    return any(
        op.kind == "conv2d" and len([1 for name, _ in counts if name == op.name]) > 1
        for op in plan.graph.ops
        if op.cluster == 1
    )


# --- the examples -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", share(range(4), 2))
def test_text_of_the_examples_agrees_with_their_plans(part: int, tmp_path: Path) -> None:
    agree([planned(case)[0] for case in CASES[part::4]], tmp_path)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_targets_hold_the_text_verbatim(case: Case) -> None:
    plan = planned(case)[0]
    text = schedule_text(plan)
    assert text == schedule_text(Plan.from_json(plan.to_json()))
    source = generate(plan)
    assert source.count(text) == 1
    for name in ("next", "tile", "waits", "posts", "reset"):
        assert source.count(f"tg_{name}(") > text.count(f"tg_{name}("), f"tg_{name} is not called"
