"""Proved means it compiles: each of many drawn programs is refused while it is planned, with a reason that
names a limit, or its kernel is compiled by NVRTC without spills.

    python -m tests.refusals --count 500 --seed 20261123 --jobs 8      needs no GPU; prints what is wrong,
    ends with 1 where anything is

Sizes are any, not only those that a GPU likes. `--file FILE.py` takes a list PROGRAMS of (name, program)
instead.
"""

from __future__ import annotations

import argparse
import re
import runpy
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any

from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st

LIMIT = re.compile(r"\d")  # of what a reason names
KNOWN = re.compile(
    r"expected|at most|must be|pad|takes|does not fit|do not fit|cannot|no room|norm is fused|has no"
    r" template"
)


@dataclass(frozen=True)
class Outcome:
    """What became of a program: refused with a reason, compiled with so many bytes of spills, or wrong."""

    name: str
    refused: str = ""
    spills: int = 0
    wrong: str = ""


# --- programs -----------------------------------------------------------------------------------------------


def _rows() -> st.SearchStrategy[int]:
    return st.one_of(st.just(1), st.integers(2, 64), st.integers(65, 1500))


def _width(most: int = 2048) -> st.SearchStrategy[int]:
    """Mostly whole 16 bytes; now and then anything."""
    vectors = st.integers(1, most // 8).map(lambda n: 8 * n)
    return st.one_of(vectors, vectors, vectors, st.integers(1, most))


def cases() -> st.SearchStrategy[tuple[str, Callable[..., Any], dict[str, Any]]]:
    """(name, what makes the program, sizes)"""
    from tests.gpu import families as f
    from tests.gpu.ops import alone, attended, blocks, cached, norms, pair, pools, products, rotated, soft

    dtype = st.sampled_from(("bfloat16", "float16", "bfloat16", "float16", "float32"))
    heads, size = (
        st.sampled_from((1, 2, 4, 8)),
        st.one_of(st.sampled_from((16, 32, 64, 80, 96, 128)), st.integers(1, 160)),
    )
    spatial, channels = (
        st.integers(1, 60),
        st.one_of(st.sampled_from((1, 3, 16, 64, 96, 128, 192)), st.integers(1, 130)),
    )
    drawn: list[tuple[Any, dict[str, st.SearchStrategy[Any]]]] = [
        (f.gemm, {"M": _rows(), "N": _width(), "K": _width()}),
        (f.lora, {"M": _rows(), "H": _width(), "R": _width(64)}),
        (f.mlp, {"M": _rows(), "H": _width(), "I": _width()}),
        (f.gated, {"M": _rows(), "H": _width(), "I": _width()}),
        (f.bottleneck, {"M": _rows(), "H": _width(), "R": _width(256)}),
        (f.fan, {"M": _rows(), "H": _width(), "I": _width()}),
        (f.chain, {"M": _rows(), "H": _width()}),
        (
            attended,
            {
                "B": st.integers(1, 4),
                "S": _rows(),
                "heads": st.just(4),
                "kv_heads": st.sampled_from((1, 2, 4)),
                "D": size,
                "H": _width(512),
            },
        ),
        (
            cached,
            {
                "B": st.integers(1, 9),
                "S": st.integers(1, 40),
                "S_max": st.integers(40, 700),
                "D": size,
                "roped": st.booleans(),
            },
        ),
        (
            pair,
            {
                "B": st.integers(1, 5),
                "HW": spatial.filter(lambda n: n > 2),
                "C": channels,
                "size": st.sampled_from((1, 3, 5)),
                "stride": st.integers(1, 3),
            },
        ),
        (blocks, {"B": st.integers(1, 4), "HW": spatial, "C": channels, "count": st.integers(1, 3)}),
        (
            f.patches,
            {
                "B": st.integers(1, 3),
                "HW": st.sampled_from((112, 224)),
                "N": _width(1024),
                "size": st.sampled_from((4, 8, 14, 16, 28, 32)),
            },
        ),
        (
            f.bert_layer,
            {
                "B": st.integers(1, 8),
                "S": st.integers(1, 200),
                "H": st.sampled_from((256, 384, 768)),
                "heads": st.sampled_from((4, 8)),
                "I": _width(),
            },
        ),
        (soft, {"M": _rows(), "N": _width(20000)}),
        (norms, {"M": _rows(), "N": _width(20000)}),
        (rotated, {"B": st.integers(1, 4), "S": _rows(), "heads": heads, "D": size.map(lambda n: 2 * n)}),
        (alone, {"M": _rows(), "N": _width()}),
        (pools, {"B": st.integers(1, 4), "HW": spatial.filter(lambda n: n > 4), "C": channels}),
        (products, {"B": st.integers(1, 4), "M": _rows(), "K": _width(256), "N": _width(256)}),
    ]
    return st.one_of(
        *(
            st.fixed_dictionaries({**sizes, "dtype": dtype}).map(
                lambda s, spec=spec: (f"{spec.name} {' '.join(f'{k}={v}' for k, v in s.items())}", spec, s)
            )
            for spec, sizes in drawn
        )
    )


def drawn_cases(count: int, number: int) -> list[tuple[str, Callable[..., Any], dict[str, Any]]]:
    found: dict[str, Any] = {}

    @seed(number)
    @settings(max_examples=4 * count, phases=[Phase.generate], database=None, deadline=None)
    @given(cases())
    def collect(case: Any) -> None:
        found.setdefault(case[0], case)

    collect()
    return list(found.values())[:count]


# --- what becomes of them -----------------------------------------------------------------------------------


def tried(name: str, make: Callable[..., Any], sizes: dict[str, Any]) -> Outcome:
    import tilegen as tg

    try:
        program = make(**sizes)
    except tg.SpecError as error:
        return Outcome(name, f"SpecError: {error}")
    return of_program(name, program)


def of_program(name: str, program: Any) -> Outcome:
    import tilegen as tg
    from tilegen.targets.cubin import fewest_spills
    from tilegen.targets.sm90.emit import generate
    from tilegen.targets.sm90.library import ARCHITECTURE, spilled, texts

    try:
        plan = tg.plan(program, "h200")
    except tg.PlanError as error:
        names_a_limit = LIMIT.search(str(error)) and KNOWN.search(str(error))
        return Outcome(name, str(error), wrong="" if names_a_limit else "the reason names no limit")
    try:
        text, made = fewest_spills(texts(plan, generate(plan)), ARCHITECTURE, spilled, plan.program)
        count = spilled(made.log, text)
    except tg.TilegenError as error:
        return Outcome(name, wrong=f"{type(error).__name__}: {error}"[:300])
    return Outcome(name, spills=count, wrong=f"{count} bytes of spills" if count else "")


TASKS: list[Callable[[], Outcome]] = []  # which forked processes share: specs cannot be pickled


def _task(n: int) -> Outcome:
    return TASKS[n]()


def main() -> int:
    p = argparse.ArgumentParser(
        "refusals", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--count", type=int, default=500)
    p.add_argument("--seed", type=int, default=20261123)
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("--file")
    p.add_argument("--list", action="store_true", help="print every program and what became of it")
    o = p.parse_args()
    if o.file:
        TASKS.extend(partial(of_program, *named) for named in runpy.run_path(o.file)["PROGRAMS"])
    else:
        TASKS.extend(partial(tried, *case) for case in drawn_cases(o.count, o.seed))
    with ProcessPoolExecutor(o.jobs, mp_context=get_context("fork")) as pool:
        found = list(pool.map(_task, range(len(TASKS))))
    for outcome in found:
        if outcome.wrong or o.list:
            print(f"{outcome.name}: {outcome.wrong or outcome.refused or 'compiled'}")
    why = Counter(
        re.sub(r"'[^']*'|\d[\d,x.]*", "…", outcome.refused.rpartition("; ")[2])[:110]
        for outcome in found
        if outcome.refused
    )
    wrong = [outcome for outcome in found if outcome.wrong]
    refused, compiled = sum(bool(x.refused) for x in found), sum(not x.refused and not x.wrong for x in found)
    print(f"{len(found)} programs: {refused} refused while planning, {compiled} compiled, {len(wrong)} wrong")
    for reason, count in why.most_common():
        print(f"  {count:4} {reason}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
