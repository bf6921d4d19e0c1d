"""Mutants in the generated C++: one program per plan, in which an environment variable turns a single mutant
on.

The text is edited in a few places, each of which must be there exactly as often as said: waits and posts go
through wrappers that know the mutants, a worker may be held up before a tile, the reset may be left out or
come early. With no mutant on it is the plain program.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.mutant_plans import Subject
from tests.mutants import Mutant
from tilegen.runtime.cxx import compile_source
from tilegen.targets.cpu.emit import generate
from tilegen.targets.cpu.library import TSAN_FLAGS

PLAIN_FLAGS = tuple(f for f in TSAN_FLAGS if f not in ("-fsanitize=thread", "-g"))
FIELDS = ("kind", "rank", "cta_rank", "operand", "step", "semaphore", "a", "b", "late")
SLEEP_MS, LIMIT_MS = 20, 1500

WRAPPERS = """
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
// ---- mutants: TG_MUTANT="kind rank cta_rank operand step semaphore a b late" ----
#include <cstring>
struct tg_mutant_t {
  char kind[16] = "none";
  int rank = -1, cta_rank = -1, operand = -1, step = -9, semaphore = -1, a = -1, b = -1, late = -1;
};
static const tg_mutant_t tg_m = [] {
  tg_mutant_t m;
  if (const char* s = std::getenv("TG_MUTANT"))
    std::sscanf(s, "%15s %d %d %d %d %d %d %d %d", m.kind, &m.rank, &m.cta_rank, &m.operand, &m.step,
                &m.semaphore, &m.a, &m.b, &m.late);
  return m;
}();
static bool tg_is(const char* kind) { return std::strcmp(tg_m.kind, kind) == 0; }
static void tg_sleep() { usleep(1000 * SLEEP_MS); }
// Each dynamic worker rests after a tile, so that tiles run on different threads; one tile may come late.
static void tg_hold(int rank, int turn) {
  if (turn > 0 && TG_REST) tg_sleep();
  if (rank == tg_m.late) tg_sleep(), tg_sleep();
}
static int tg_swapped(int rank) {
  return !tg_is("swap") ? rank : rank == tg_m.a ? tg_m.b : rank == tg_m.b ? tg_m.a : rank;
}

static thread_local int tg_moved = -1, tg_moved_target;  // a wait that is due at the next read
TG_FN void tg_read(tg_context& g) {
  if (tg_moved >= 0) tg_plain_wait(g, tg_moved, tg_moved_target);
  tg_moved = -1;
}
TG_FN void tg_wait(tg_context& g, int semaphore, int target) {
  if (semaphore == tg_m.semaphore) {
    const bool here = g.rank == tg_m.rank && g.cta_rank == tg_m.cta_rank &&
                      g.operand == tg_m.operand && g.step == tg_m.step;
    if (here && tg_is("drop")) return;
    if (here && tg_is("late")) return void((tg_moved = semaphore, tg_moved_target = target));
    if (here && tg_is("wait")) semaphore = tg_m.a, target = tg_m.b;
    if (tg_is("target")) target += tg_m.a;
    if (tg_is("split")) {
      target = g.rank < tg_m.rank ? tg_m.b : tg_m.operand;
      semaphore = g.rank < tg_m.rank ? semaphore : TG_SEMAPHORES;
    }
  }
  tg_plain_wait(g, semaphore, target);
}
static thread_local int tg_poster = -1, tg_nth;  // counts a tile's posts to the semaphore: CTA after CTA
TG_FN void tg_post(tg_context& g, int semaphore) {
  if (semaphore == tg_m.semaphore) {
    if (tg_poster != g.rank) tg_poster = g.rank, tg_nth = 0;
    const bool here = g.rank == tg_m.rank && tg_nth++ == tg_m.cta_rank;
    if (here && tg_is("silent")) return;
    if (here && tg_is("twice")) tg_plain_post(g, semaphore);
    if (here && tg_is("post")) semaphore = tg_m.a;
    if (tg_is("split") && g.rank >= tg_m.a) semaphore = TG_SEMAPHORES;
  }
  tg_plain_post(g, semaphore);
}
static thread_local bool tg_posted = false;
"""

BEFORE_TILES = """
static void tg_early(tg_context& g, const tg_tile_t& t) {  // stands before every store
  if (!tg_is("early") || g.rank != tg_m.rank || tg_posted) return;
  for (int cta_rank = 0; cta_rank < tg_m.cta_rank; ++cta_rank) tg_posts(g, t, cta_rank);
  tg_posted = true;
  tg_sleep();
}
static void tg_late_posts(tg_context& g, const tg_tile_t& t, int cta_rank) {
  if (!tg_posted) tg_posts(g, t, cta_rank);
  tg_posted = tg_posted && cta_rank < tg_m.cta_rank - 1;
}
"""

TILES, WORKERS = "// ---- tiles ---", "// ---- workers ---"


def replaced(text: str, old: str, new: str) -> str:
    """The text with its one `old` replaced."""
    assert text.count(old) == 1, (text.count(old), old)
    return text.replace(old, new)


def edited(source: str, dynamic: bool) -> str:
    """The generated text with the switches built in."""
    for what, signature in (
        ("post", "(tg_context& g, int semaphore) {"),
        ("wait", "(tg_context& g, int semaphore, int target) {"),
    ):
        source = replaced(
            source, f"TG_FN void tg_{what}{signature}", f"TG_FN void tg_plain_{what}{signature}"
        )
    wrappers = WRAPPERS.replace("SLEEP_MS", str(SLEEP_MS)).replace("TG_REST", str(dynamic).lower())
    at = "// Wait for what CTA `cta_rank` of a tile needs"
    source = replaced(source, at, f"{wrappers}\n{at}")
    source = replaced(
        source,
        "  tg_waits(g, t, cta_rank, operand, step);\n}\n",
        "  tg_read(g);\n  tg_waits(g, t, cta_rank, operand, step);\n}\n",
    )
    source = replaced(
        source, "return new tg_state(TG_SEMAPHORES);", "return new tg_state(TG_SEMAPHORES + 1);"
    )
    tile = "const tg_tile_t t = tg_tile(rank);"
    source = replaced(
        source, tile, "tg_hold(rank, turn);\n    " + tile.replace("(rank)", "(tg_swapped(rank))")
    )
    count = "state.left.value.fetch_add(1, std::memory_order_acq_rel)"
    hasty = 'if (tg_is("hasty") && left == 0) tg_reset(g);'
    leave = f"const int left = {count};\n  {hasty}\n  if (left == run.workers - 1) {{"
    source = replaced(source, f"if ({count} == run.workers - 1) {{", leave)
    source = replaced(
        source, "    tg_reset(g);\n    state", '    if (!tg_is("keep")) tg_reset(g);\n    state'
    )
    source = replaced(source, "std::atoi(argv[2]), 60000, &hang)", f"std::atoi(argv[2]), {LIMIT_MS}, &hang)")
    head, rest = source.split(TILES)
    tiles, rest = rest.split(WORKERS)
    assert tiles.count("tg_posts(g, t, ") == tiles.count("static void tile_") > 0
    stores = tiles.count("tg::store(") + tiles.count("tg::copy_rows(")
    assert stores >= tiles.count("static void tile_")
    tiles = tiles.replace("tg_posts(g, t, ", "tg_late_posts(g, t, ")
    for store in ("tg::store(", "tg::copy_rows("):
        tiles = tiles.replace(store, f"tg_early(g, t), {store}")
    return head + BEFORE_TILES + TILES + tiles + WORKERS + rest


@dataclass(frozen=True)
class Program:
    """A built program and where its tensors lie."""

    subject: Subject
    path: Path

    def run(
        self, switches: dict[str, Any] | None = None, workers: int = 0, runs: int = 1
    ) -> tuple[int, str, list[bytes]]:
        """(return code, last words, outputs and states)"""
        plan, folder = self.subject.plan, self.path.parent
        for t, a in zip(self.subject.program.arguments, self.subject.arguments, strict=True):
            (folder / f"{t.name}.bin").write_bytes(a.contiguous().view(torch.uint8).numpy().tobytes())
        environment = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1 exitcode=66 detect_deadlocks=0"}
        if switches:
            environment["TG_MUTANT"] = " ".join(str(switches.get(f, -1)) for f in FIELDS)
        command = [self.path, folder, str(self.subject.workers(workers)), str(runs)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
        kept = [n for n, t in plan.graph.tensors.items() if t.role in ("output", "state")]
        return (
            done.returncode,
            done.stderr,
            [(folder / f"{n}.bin").read_bytes() for n in kept] if done.returncode == 0 else [],
        )


@contextmanager
def built(subject: Subject, flags: Sequence[str]) -> Iterator[Program]:
    """The plan's program with all mutants in it."""
    with tempfile.TemporaryDirectory() as folder:
        source = edited(generate(subject.plan), subject.plan.scheduling == "dynamic")
        yield Program(subject, compile_source(source, Path(folder), flags, "kernel"))


@dataclass(frozen=True)
class Outcome:
    tsan: bool = False  # ThreadSanitizer reports a race
    run: bool = False  # it hangs, leaves a counter, or the result differs

    def __or__(self, other: Outcome) -> Outcome:
        return Outcome(self.tsan or other.tsan, self.run or other.run)


def outcome(
    program: Program, right: list[bytes] | None, switches: dict[str, Any], workers: int = 0, runs: int = 1
) -> Outcome:
    code, words, kept = program.run(switches, workers, runs)
    assert code in (0, 3, 4, 66), (code, words)
    return Outcome(code == 66, code in (3, 4) or (code == 0 and right is not None and kept != right))


def outcomes(
    programs: Sequence[Program],
    right: list[bytes] | None,
    switches: dict[str, Any],
    workers: int = 0,
    runs: int = 1,
) -> Outcome:
    """What the programs show together. A loaded machine may run tiles one after the other all the same: up to
    three tries each."""
    ends = Outcome()
    for program in programs:
        for _ in range(3):
            one = outcome(program, right, switches, workers, runs)
            ends |= one
            if one.tsan or one.run:
                break
        if ends.run:
            break
    return ends


def control(program: Program, runs: int = 2) -> list[bytes]:
    """What the program gives with no mutant on: right, and no race."""
    code, words, kept = program.run(runs=runs)
    assert code == 0, (code, words)
    return kept


# They mostly end in a hang, which takes its time: half as many are run.
HANGING = {
    "wait target +1",
    "missing post",
    "post to another semaphore",
    "semaphore target +1",
    "swapped ranks",
    "swapped in a static list",
}


def switches_of(m: Mutant) -> tuple[dict[str, Any], int]:
    """Switches and workers: an order that cannot end shows with one worker."""
    switches = dict(m.switches) if m.late is None else {**m.switches, "late": m.late}
    return switches, 1 if m.operator == "swapped ranks" else 0


# --- mutants that only code can hold ------------------------------------------------------------------------


@dataclass(frozen=True)
class CodeMutant:
    """A mutant that a plan cannot state; `why` tells how it differs harmfully, whatever the machine."""

    operator: str
    what: str
    switches: dict[str, Any]
    runs: int
    why: str


def code_mutants(subject: Subject) -> Iterator[CodeMutant]:
    tiles, targets = subject.data["tiles"], subject.data["semaphores"]
    for tile in tiles:
        if any(part["posts"] for part in tile["ctas"]):
            switches = {"kind": "early", "rank": tile["rank"], "cta_rank": len(tile["ctas"])}
            why = (
                "a consumer that passes on this post reads what is not stored yet; nothing else orders"
                " the two"
            )
            yield CodeMutant("post before the write", f"{tile['op']} rank {tile['rank']}", switches, 1, why)
    first = min(t["rank"] for t in tiles if any(part["posts"] for part in t["ctas"]))
    why = "the next run starts with every counter at its target: each wait passes at once, whatever has run"
    yield CodeMutant("missing reset", "counters keep their posts", {"kind": "keep", "late": first}, 2, why)
    why = "posts made before are lost to those that still wait (a tile comes late, so that some do)"
    late = [t["rank"] for t in tiles if any(targets[s] > 1 for part in t["ctas"] for s, _ in part["posts"])]
    for rank in late[-1:] if subject.data["scheduling"] == "dynamic" else []:
        yield CodeMutant("early reset", "by the first to leave", {"kind": "hasty", "late": rank}, 1, why)


WEAKENED = {
    # Without release (acquire) no edge of C++ orders a tile's stores before its consumers' loads; x86 happens
    # to give the right bits.
    "weakened release": "-DTG_POST_ORDER=std::memory_order_relaxed",
    "weakened acquire": "-DTG_WAIT_ORDER=std::memory_order_relaxed",
}
