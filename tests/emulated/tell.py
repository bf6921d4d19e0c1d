"""Writes the second half of docs/mutants.md: what the emulator catches in the text of CUDA kernels.

    python -m tests.emulated.tell

runs the faults of test_faults.py and test_memory_order.py, and tells the results of the last draw and of the
last runs of the kernels as they are: drawn.json and clean.json beside this file, which
`python -m tests.emulated.mutants … --out FILE` writes.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.emulated.mutants import EVERY, FEW
from tests.emulated.test_faults import (
    FAULTS,
    PORTABLE_FAULTS,
    PORTABLE_PLAN,
    SEEDS,
    launch_after_launch,
    seen_in_portable,
)
from tests.emulated.test_memory_order import LINKS
from tests.mutant_table import CUDA, DOCUMENT, before_cuda

HERE = Path(__file__).parent
KINDS = {  # the first words of what the emulator says
    r"race: ": "race",
    r"no progress": "hang, named",
    r"counter": "counter not at rest",
    r"trap": "hang, named",
    r"has left, and": "a CTA left too early",
    r"no mbarrier": "no barrier there",
    r"no fence tells": "a barrier that the async proxy does not know",
    r"fence|wgmma": "wgmma without its fence",
    r"error ": "wrong results",
}
REASONS = [  # why a mutant is equal, by what stands in its line
    (
        r"prefetch|evict_|tg_pin|launch_bounds|asm volatile\(\"\" |unroll|tg_registers|setmaxnreg|tg_here",
        "speed",
    ),
    (r"^g\.operand|limit_ns|patience|nanosleep|timer|abort|hang|watched\(smem, |tg_report", "hangs"),
    (r"\bready\b|tg_is_over|tg_passed", "look"),
    (
        r"tg_await|tg_wait|tg_expect|arrive|tg_mma_wait|tg_release|meet|fence|__sync|tg_pdl|tg_stores",
        "ordered",
    ),
    (r"tg_barrier_init", "unused"),
]
WORDS = {
    "order": "two statements that do not depend on each other",
    "speed": "a hint: prefetches, eviction, registers, what the compiler may move",
    "hangs": "how long a wait may last, and what is told of one that lasts longer",
    "look": "a first look at a barrier that is awaited all the same",
    "ordered": "an order that another wait, barrier or launch of these plans gives too",
    "unused": "a barrier that these plans do not use",
    "bound": "a bound, a size or a part of an index that these plans do not reach, or that any value serves",
    "nothing": "what the statement does is done again, or not asked for, in these plans",
}


def reason(mutant: dict[str, Any]) -> str:
    found = next((why for pattern, why in REASONS if re.search(pattern, mutant["old"])), "")
    if mutant["kind"] == "swapped":
        return "order"
    return found or ("bound" if mutant["kind"] == "off by one" else "nothing")


def said(wrong: str) -> str:
    found = [name for words, name in KINDS.items() if re.search(words, wrong)]
    assert found, wrong
    return found[0]


def planted() -> Iterator[str]:
    yield "| fault | kernel | the emulator says |\n|---|---|---|"
    for fault in FAULTS:
        yield f"| {fault.what} | {fault.case} | {said(fault.seen())} |"
    without = said(launch_after_launch(False)[0])
    yield f"| math warps do not wait for the launch before | a block after a block | {without} |"
    for what, change in PORTABLE_FAULTS:
        yield f"| {what} | for sm_80: {PORTABLE_PLAN.name} | {said(seen_in_portable(change))} |"


def memory_orders() -> Iterator[str]:
    yield "| target | write → read | without this link | the emulator says |\n|---|---|---|---|"
    for link in LINKS:
        yield f"| `{link.target}` | {link.writer} → {link.reader} | {link.what} | {said(link.seen())} |"


def drawn(results: dict[str, Any]) -> Iterator[str]:
    rows = defaultdict[str, Counter[str]](Counter)
    for m in results["found"]:
        rows[m["kind"]][m["outcome"]] += 1
        rows["all"][m["outcome"]] += 1
    yield (
        f"`{results['command']}`, {results['date']}:\n\n"
        "| fault | drawn | no kernel | equal | count | caught | only later |\n|---|--:|--:|--:|--:|--:|--:|"
    )
    for kind in (*sorted(k for k in rows if k != "all"), "all"):
        c = rows[kind]
        cells = (c.total(), c["no kernel"], c["equal"], c["caught"] + c["late"], c["caught"], c["late"])
        yield f"| {kind} | {' | '.join(map(str, cells))} |"
    late = [m for m in results["found"] if m["outcome"] == "late"]
    yield f"\nSeen only by a run after the first {FEW}: {len(late) or 'none'}.\n"
    for m in late:
        change = f"{m['kind']}: `{shown(m['old'])}` → `{shown(m['new'])}`"
        yield f"- {m['kernel']}, line {m['line']}, {change}, by run {m['run']}"
    equal = defaultdict[str, list[dict[str, Any]]](list)
    for m in results["found"]:
        if m["outcome"] == "equal":
            equal[reason(m)].append(m)
    yield "Equal mutants, by the kind of their line, and how many:\n"
    for why, found in sorted(equal.items(), key=lambda item: -len(item[1])):
        yield f"- {len(found)}: {WORDS[why]}"
    yield "\n| equal mutant | of | because |\n|---|---|---|"
    for why, found in sorted(equal.items(), key=lambda item: -len(item[1])):
        for m in found:
            new = f" → `{shown(m['new'])}`" if m["kind"] == "off by one" or m["kind"] == "weakened" else ""
            yield f"| {m['kind']}: `{shown(m['old'])}`{new} | {m['kernel']}:{m['line']} | {why} |"


def shown(code: str, most: int = 90) -> str:
    code = code.replace("|", "\\|").replace("`", "'")
    return code if len(code) <= most else code[: most - 1] + "…"


PAGE = """{CUDA}

Written by `python -m tests.emulated.tell`. The proof cannot see these faults: the plan is right, the text is
not. The emulator runs the text (docs/design.md, "The emulated GPU"); `make test` plants every fault of the
first two tables, and the emulator catches each within {seeds} runs.

{planted}

### Each row of memory orders

A plan whose edges all fall under the row, and its text without one link of the chain.

{links}

### Faults drawn at random

A statement dropped, two swapped, an order or a path weakened, a constant off by one, over the text of
{kernels} kernels. A mutant is *equal*, and does not count, where {every} runs under all adversaries leave the
same bits and no race. Of those that count the first {few} runs are to catch 99.5 %.

{drawn}

### No false alarm

`{command}`, {date}:
{runs:,} runs of {kernels} kernels as they are, {each} each: {alarms} alarms.
"""


def document() -> str:
    results, clean = (json.loads((HERE / f"{name}.json").read_text()) for name in ("drawn", "clean"))
    return PAGE.format(
        CUDA=CUDA,
        seeds=len(SEEDS),
        planted="\n".join(planted()),
        links="\n".join(memory_orders()),
        kernels=len(clean["found"]),
        every=EVERY,
        few=FEW,
        drawn="\n".join(drawn(results)),
        command=clean["command"],
        date=clean["date"],
        runs=clean["clean"] * len(clean["found"]),
        each=clean["clean"],
        alarms=sum(map(len, clean["found"].values())),
    )


def main() -> None:
    DOCUMENT.write_text(before_cuda(DOCUMENT.read_text()) + document())


if __name__ == "__main__":
    main()
