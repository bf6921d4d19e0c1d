"""Runs the mutants through the layers, counts who catches what, and writes docs/mutants.md."""

from __future__ import annotations

import textwrap
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import torch

from tests.mutant_code import (
    HANGING,
    PLAIN_FLAGS,
    WEAKENED,
    Outcome,
    built,
    code_mutants,
    control,
    outcomes,
    switches_of,
)
from tests.mutant_layers import RULES, harmless, interpreted, ordered, proof_objects, remembered_work, sample
from tests.mutant_plans import Subject, subjects
from tests.mutants import Mutant, mutants
from tilegen.targets.cpu.library import TSAN_FLAGS

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "mutants.md"
LAYERS = ("proof", "interpreter", "tsan", "run")
CUDA = "## The CUDA text"  # from here on tests/emulated/tell.py writes it


def before_cuda(told: str) -> str:
    """The half of the page that is written here."""
    return told.partition(CUDA)[0]


@dataclass
class Row:
    """What became of the mutants of one operator."""

    all: int = 0
    counting: int = 0
    tried: Counter[str] = field(default_factory=Counter)  # of those that count, by layer
    caught: Counter[str] = field(default_factory=Counter)
    silent: int = 0  # the interpreter cannot see them: all reads are ordered
    # (why, whether the proof refuses it)
    harmless: Counter[tuple[str, bool]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)  # missed by all layers, or a false alarm

    def note(self, layer: str, caught: bool) -> None:
        self.tried[layer] += 1
        self.caught[layer] += caught


Rows = defaultdict[str, Row]


def through_plan(
    subject: Subject, chosen: Iterable[Mutant], rows: Rows, interpret: bool = True
) -> list[Mutant]:
    """Oracle, proof and interpreter; gives the mutants that count."""
    counting = []
    for m in chosen:
        row, data, name = rows[m.operator], m.data(subject), f"{subject.name}: {m.operator}, {m.what}"
        row.all += 1
        why, refused = harmless(data), proof_objects(data)
        said = interpreted(subject, data, m.late) if interpret else ""
        if why:
            row.harmless[why, refused] += 1
            row.wrong += [f"{name}: false alarm, {said}"] * bool(said) + [f"{name}: refused by no rule"] * (
                refused and why == "nothing"
            )
            continue
        counting.append(m)
        row.counting += 1
        row.note("proof", refused)
        if interpret:
            row.note("interpreter", bool(said))
            # a cluster's parts run in turn: the others wait in full
            in_turn = subject.plan.cluster > 1 and m.operator == "wait target -1"
            unseen = not said and (in_turn or ordered(data))
            row.silent += unseen
            row.wrong += [f"{name}: the interpreter misses it"] * (not said and not unseen)
        row.wrong += [f"{name}: missed by proof and interpreter"] * (not refused and not said)
    return counting


def through_code(subject: Subject, counting: list[Mutant], rows: Rows, each: int, plain: bool = True) -> None:
    """ThreadSanitizer and plain runs: up to `each` mutants of every operator that a plan can state, and those
    that only code can hold."""
    with ExitStack() as stack:
        programs = [
            stack.enter_context(built(subject, flags)) for flags in (TSAN_FLAGS, PLAIN_FLAGS)[: 1 + plain]
        ]
        right = control(programs[0])
        assert all(control(p) == right for p in programs[1:])
        by_operator: defaultdict[str, list[Mutant]] = defaultdict(list)
        for m in counting:
            by_operator[m.operator].append(m)
        for operator, found in by_operator.items():
            for m in sample(found, each // 2 if operator in HANGING else each, f"{subject.name} {operator}"):
                switches, workers = switches_of(m)
                ends = outcomes(programs, right, switches, workers)
                rows[operator].note("tsan", ends.tsan)
                rows[operator].note("run", ends.run)
        for c in code_mutants(subject):
            ends = outcomes(programs, right, c.switches, 0, c.runs)
            _note_code(rows[c.operator], f"{subject.name}: {c.operator}, {c.what}", ends)


def through_weakened(subject: Subject, rows: Rows) -> None:
    """Memory orders weakened at compile time: two more builds."""
    for operator, flag in WEAKENED.items():
        with built(subject, (*TSAN_FLAGS, flag)) as program:
            _note_code(
                rows[operator], f"{subject.name}: {operator}", outcomes([program], None, {"kind": "none"})
            )


def _note_code(row: Row, name: str, ends: Outcome) -> None:
    row.all += 1
    row.counting += 1
    row.note("tsan", ends.tsan)
    row.note("run", ends.run)
    row.wrong += [f"{name}: missed by all layers"] * (not (ends.tsan or ends.run))


def table(rows: Rows) -> str:
    """The table in Markdown."""
    lines = [
        "| operator | mutants | count | " + " | ".join(LAYERS) + " | harmless |",
        "|---|--:|--:" + "|--:" * len(LAYERS) + "|---|",
    ]
    for operator, row in rows.items():
        cells = [f"{row.caught[x]} / {row.tried[x]}" if row.tried[x] else "–" for x in LAYERS]
        if row.silent:
            cells[1] += f" ({row.silent} unseen)"
        why = "; ".join(
            f"{n} {w}{', refused' if refused else ''}" for (w, refused), n in row.harmless.items()
        )
        lines.append(f"| {operator} | {row.all:,} | {row.counting:,} | " + " | ".join(cells) + f" | {why} |")
    return "\n".join(lines)


def document(rows: Rows, each: int, seconds: float) -> str:
    names = "; ".join(f"{s.name} ({len(s.data['tiles'])} tiles)" for s in subjects().values())
    rules = "\n".join(
        textwrap.fill(f"- *{name}*: {words}.", 110, subsequent_indent="  ", break_on_hyphens=False)
        for name, words in RULES.items()
    )
    wrong = [w for row in rows.values() for w in row.wrong]
    found = "".join(f"\n- {w}" for w in wrong)
    verdict = f"Wrong:{found}" if wrong else "Missed by all layers, or false alarms: none."
    plans = textwrap.fill(f"Plans: {names}.", 110, break_on_hyphens=False)
    return f"""# Mutants: what the checks catch

Written by `python -m tests.mutants` ({seconds:.0f} s). Right plans are given one fault each, at every place
where it can stand, and go through four layers: the **proof**; the **interpreter** (several interleavings, one
tile held back); the generated C++ under ThreadSanitizer (**tsan**, one tile delayed); a plain **run** of it
(hang or wrong bits). A cell says how many of the mutants tried there were caught; tsan and run try up to
{each} of each operator and plan, {each // 2} of those that hang.

A mutant **counts** when the element-wise oracle (`tests/oracles/elements.py`) finds a race, a deadlock, an
unwritten read or a counter that cannot be reused in it; those that only code can hold count by construction
(`tests/mutant_code.py` says why). *Unseen* are waits for a partial count where another wait, or that of
another CTA of the cluster, orders the same tiles: no run goes wrong here, and the plan is refused since a
partial count never says which tiles posted.

What tsan and run leave out is right on a CPU: an extra post by the only poster (it spoils the counter, which
the run then zeroes); the wait of one CTA of a cluster where another CTA waits too (they run in turn on one
thread, and post after all stores of the tile); a wait that comes late but before the step touches what it is
for. The same bits come out of a second run without a reset, and x86 hides weakened memory orders: only tsan
sees these.

{plans}

{table(rows)}

Harmless mutants, and why:
{rules}

{verdict}
"""


def main(each: int = 4) -> int:
    """1 when a mutant was missed by all layers, or a harmless one raised an alarm in a run."""
    torch.set_num_threads(1)
    rows, start = Rows(Row), time.time()
    with remembered_work():
        for subject in subjects().values():
            counting = through_plan(subject, mutants(subject), rows)
            through_code(subject, counting, rows, each)
            through_weakened(subject, rows)
            print(f"{subject.name}: {len(counting)} count, {time.time() - start:.0f} s", flush=True)
    text = document(rows, each, time.time() - start)
    told = DOCUMENT.read_text()
    DOCUMENT.write_text(f"{text}\n{told[len(before_cuda(told)) :]}")
    print(text)
    return int(any(row.wrong for row in rows.values()))
