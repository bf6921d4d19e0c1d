"""The independent checker: whether a plan, as docs/plan-format.md defines it, is right on its concrete grid.

`check` re-derives every read and write from the plan's ops and decides, exactly:

1. coverage: each element that a CTA reads and a tile writes is written by a tile whose post the CTA has
   awaited before;
2. count: the posts of a semaphore add up to its target, each wait is for the full target, each semaphore is
   awaited;
3. progress: whoever posts to an awaited semaphore has a lower rank than the waiter; static lists ascend;
4. single writer: nothing is written twice, outputs are written in full;
5. reuse: every counter has reached its target, and nothing comes after, when its last waiter has passed;
6. memory order: reads and writes go through the proxies that the target's kernels use for such an op, and
   each edge has a release -> acquire chain for those of its writer and reader.

It shares no code with the planner.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilegen.errors import ProofError
from tilegen.proof import memory_order, values
from tilegen.proof.coverage import Cells, Edges, own, reads_covered, reads_listed, writes_listed
from tilegen.proof.footprint.frame import Array
from tilegen.proof.plan_input import MALFORMED, read_plan, read_sums, reason
from tilegen.proof.table import Findings, Table, Violation

__all__ = ["Certificate", "CheckResult", "Violation", "check", "prove"]

CHECKS = ("format", "coverage", "count", "progress", "single writer", "reuse", "values", "memory order")


@dataclass(frozen=True)
class CheckResult:
    """One check: what was looked at, in one sentence, and whether it held."""

    name: str
    statement: str
    ok: bool


@dataclass(frozen=True)
class Certificate:
    """The outcome of all checks of one plan. trusted: what they rest on that nobody checked; proved_at: where
    a size moves, in words at which of its values the plan was checked."""

    program: str
    sizes: tuple[tuple[str, Any], ...]
    machine: str
    checks: tuple[CheckResult, ...]
    violations: tuple[Violation, ...]
    trusted: tuple[str, ...] = ()
    proved_at: str = ""

    @property
    def ok(self) -> bool:
        return all(c.ok for c in self.checks)

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Certificate:
        """What to_dict gave."""
        checks = tuple(CheckResult(c["name"], c["statement"], c["ok"]) for c in data["checks"])
        violations = tuple(Violation(v["check"], v["message"], v["rank"]) for v in data["violations"])
        return Certificate(
            data["program"],
            tuple(data["sizes"].items()),
            data["machine"],
            checks,
            violations,
            tuple(data["trusted"]),
            data.get("proved_at", ""),
        )

    @property
    def heading(self) -> str:
        """Which plan, whether it is proved, and what was taken on trust."""
        sizes = ", ".join(f"{name} = {value}" for name, value in self.sizes)
        return (
            f"{self.program or 'plan'} ({sizes}) on {self.machine or 'an unknown machine'}:"
            f" {'proved' if self.ok else 'NOT proved'}"
            + (f", if {' and '.join(self.trusted)}" if self.trusted else "")
        )

    def __repr__(self) -> str:
        failed = ", ".join(c.name for c in self.checks if not c.ok)
        return (
            f"<Certificate {self.heading}, {f'fails {failed}' if failed else f'{len(self.checks)} checks'}>"
        )

    def text(self) -> str:
        lines = [self.heading, *([f"  checked at {self.proved_at}"] if self.proved_at else [])]
        for c in self.checks:
            lines.append(f"  {'ok  ' if c.ok else 'FAIL'} {c.name}: {c.statement}")
            lines += [f"         {v.message}" for v in self.violations if v.check == c.name]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        return {
            "program": self.program,
            "sizes": dict(self.sizes),
            "machine": self.machine,
            "ok": self.ok,
            "trusted": list(self.trusted),
            **({"proved_at": self.proved_at} if self.proved_at else {}),
            "checks": [{"name": c.name, "statement": c.statement, "ok": c.ok} for c in self.checks],
            "violations": [{"check": v.check, "message": v.message, "rank": v.rank} for v in self.violations],
        }


def check(plan: object) -> Certificate:
    """The certificate of an expanded plan (parsed JSON). Never raises on a wrong plan."""
    findings = Findings()
    t = read_plan(plan, findings)
    if t is None:
        return _certificate(*_names(plan), findings, {"format": ""}, "not looked at: the plan is malformed")
    statements = {
        "format": (
            f"{_n(len(t.tiles), 'tile')} of {_n(len(t.cta_tile), 'CTA')} in all cover every grid once, in"
            " rank order"
        )
    }
    cells = own(t, findings)
    statements["single writer"] = _single_writer(t, cells)
    edges = _coverage(t, cells, findings, statements)
    full = _count(t, findings)
    statements["count"] = (
        f"{_n(int(t.posts[:, 2].sum()), 'post')} to {_n(len(t.targets), 'semaphore')} add up to their"
        f" targets, {_n(len(t.waits), 'wait')} ask for the full target, every semaphore is awaited"
    )
    statements["progress"] = _progress(t, findings)
    statements["reuse"] = _reuse(t, full, findings)
    statements["memory order"] = _memory_order(t, edges, findings)
    assert isinstance(plan, dict)
    statements["values"] = _values(plan, findings)
    trusted = [f"{name} reads and writes what it declares" for name in t.declared]
    if "calls" not in plan and plan["lowering"] == "persistent":
        trusted.append("its ops compute what the program says")
    made = _certificate(t.program, t.sizes, t.machine, findings, statements, "")
    return replace(made, trusted=tuple(trusted))


def check_sums(plan: object) -> CheckResult:
    """Whether the sums over K that several launches share are whole. plan: of all launches, as JSON;
    its tiles are not read."""
    findings = Findings()
    read_sums(plan, findings)
    problems = [violation.message for violation in findings.kept]
    return CheckResult("sums over K", "; ".join(problems) or "split or not, each fills K once", not problems)


def check_values(plan: dict[str, Any]) -> CheckResult:
    """Whether the ops of all launches compute what the program says. plan: as check_sums' own."""
    findings = Findings()
    statement = _values(plan, findings)
    problems = [violation.message for violation in findings.kept]
    return CheckResult("values", "; ".join(problems) or statement, not problems)


def prove(plan: object) -> Certificate:
    """The certificate of a plan that is right; raises ProofError, naming the tile, for any other."""
    certificate = check(plan)
    if certificate.ok:
        return certificate
    failed = ", ".join(c.name for c in certificate.checks if not c.ok)
    first = certificate.violations[0]
    raise ProofError(
        f"{certificate.program or 'plan'} fails {failed}: {first.message}"
        + (f" (and {len(certificate.violations) - 1} more)" if len(certificate.violations) > 1 else ""),
        certificate,
    )


def _n(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _names(plan: object) -> tuple[str, tuple[tuple[str, int], ...], str]:
    """Program and machine of a malformed plan, as far as they can be told."""
    plan = plan if isinstance(plan, dict) else {}
    machine = plan.get("machine")
    return str(plan.get("program", "")), (), str(machine.get("name", "")) if isinstance(machine, dict) else ""


def _certificate(
    program: str,
    sizes: tuple[tuple[str, int], ...],
    machine: str,
    findings: Findings,
    statements: dict[str, str],
    otherwise: str,
) -> Certificate:
    results = []
    for name in CHECKS:
        count = findings.counts.get(name, 0)
        statement = f"{_n(count, 'violation')}" if count else statements.get(name, otherwise)
        results.append(CheckResult(name, statement, not count and name in statements))
    order = {name: i for i, name in enumerate(CHECKS)}
    return Certificate(
        program, sizes, machine, tuple(results), tuple(sorted(findings.kept, key=lambda v: order[v.check]))
    )


def _single_writer(t: Table, cells: dict[int, Cells]) -> str:
    return (
        f"{_n(len(t.derived.cta), 'write')} of {_n(len(cells), 'tensor')} do not meet, and outputs are"
        " written in full"
    )


def _coverage(t: Table, cells: dict[int, Cells], findings: Findings, statements: dict[str, str]) -> Edges:
    writes, needs = writes_listed(t, findings), reads_listed(t, cells, findings)
    edges = reads_covered(t, cells, findings)
    statements["coverage"] = (
        f"{_n(len(t.reads.cta), 'listed read')} contain the {needs:,} that the ops need,"
        f" {_n(writes, 'listed write')} are theirs; {_n(edges.reads, 'read')} of"
        f" {_n(edges.tensors, 'written tensor')}: each of {_n(edges.pairs, 'writing CTA')} posts before"
    )
    if edges.apart:
        statements["coverage"] += (
            f"; of {_n(edges.apart, 'writing CTA')} rows from a position on, of which only rows before it"
            " are read"
        )
    if t.declared:
        statements["coverage"] += (
            f"; taken as listed, not re-derived (kinds not built in): {', '.join(t.declared)}"
        )
    return edges


def _count(t: Table, findings: Findings) -> np.ndarray[Any, Any]:
    """Posts add up to the target, waits ask for all of it, each semaphore is awaited. Returns which
    semaphores get their target."""
    posts = np.bincount(t.posts[:, 1], t.posts[:, 2], len(t.targets)).astype(np.int64)
    for e in np.flatnonzero(posts != t.targets).tolist():
        ctas = t.posts[t.posts[:, 1] == e, 0] if findings.room("count") else []
        who = f", from {t.cta_name(ctas[0])} to {t.cta_name(ctas[-1])}" if len(ctas) else ""
        findings.add(
            "count",
            f"semaphore {e} gets {posts[e]} posts{who}, its target is {t.targets[e]}",
            t.rank(ctas[0]) if len(ctas) else None,
        )
    cta, semaphore, target = t.waits.T
    for i in np.flatnonzero(target != t.targets[semaphore]).tolist():
        e = semaphore[i]
        findings.add(
            "count",
            f"{t.cta_name(cta[i])} waits for {target[i]} posts of semaphore {e}, its full target is"
            f" {t.targets[e]}: a partial count does not say which tiles posted",
            t.rank(cta[i]),
        )
    awaited = np.bincount(semaphore, minlength=len(t.targets)) > 0
    for e in np.flatnonzero(~awaited).tolist():
        posters = t.posts[t.posts[:, 1] == e, 0] if findings.room("count") else []
        who = f" ({t.cta_name(posters[0])} posts to it)" if len(posters) else ""
        findings.add(
            "count", f"nobody waits for semaphore {e}{who}", t.rank(posters[0]) if len(posters) else None
        )
    return np.asarray(posts == t.targets)


def _progress(t: Table, findings: Findings) -> str:
    """Every poster of an awaited semaphore has a lower rank than the waiter, so that the lowest unfinished
    rank can always run."""
    last = np.full(len(t.targets), -1, np.int64)
    np.maximum.at(last, t.posts[:, 1], t.posts[:, 0])
    cta, semaphore = t.waits[:, 0], t.waits[:, 1]
    poster = last[semaphore]
    bad = (poster >= 0) & (t.cta_tile[poster] >= t.cta_tile[cta])
    for i in np.flatnonzero(bad).tolist():
        own = t.cta_tile[poster[i]] == t.cta_tile[cta[i]]
        findings.add(
            "progress",
            f"{t.cta_name(cta[i])} waits for semaphore {semaphore[i]}, to which "
            + ("its own tile posts" if own else f"{t.cta_name(poster[i])} posts later"),
            t.rank(cta[i]),
        )
    return f"{_n(len(t.waits), 'wait')}, each for tiles of lower rank only; {_scheduling(t, findings)}"


def _scheduling(t: Table, findings: Findings) -> str:
    """Static lists hold every rank once and ascend, one list per resident SM at most."""
    if t.scheduling is None:
        return "ranks are drawn in rank order"
    ranks: Array = np.array([r for one in t.scheduling for r in one], np.int64)
    known = ranks[ranks < len(t.tiles)]
    for r in ranks[ranks >= len(t.tiles)].tolist():
        findings.add("progress", f"the static lists hold rank {r}, the plan has {len(t.tiles)} tiles")
    for r, times in enumerate(np.bincount(known, minlength=len(t.tiles)).tolist()):
        if times != 1:
            findings.add(
                "progress",
                f"{t.tiles[r]} rank {r} stands {times} times in the static lists, expected once",
                r,
            )
    for sm, one in enumerate(t.scheduling):
        for before, after in zip(one, one[1:], strict=False):
            if after <= before:
                name = f"{t.tiles[after]} rank {after}" if after < len(t.tiles) else f"rank {after}"
                findings.add(
                    "progress",
                    f"{name} stands behind rank {before} in the static list of SM {sm}: lists must ascend",
                    after,
                )
    if len(t.scheduling) > t.sms:
        findings.add(
            "progress",
            f"{len(t.scheduling)} static lists, but {t.machine} has {t.sms} SMs: not all can be resident",
        )
    return f"{_n(len(t.scheduling), 'static list')} hold each rank once, ascending"


def _reuse(t: Table, full: np.ndarray[Any, Any], findings: Findings) -> str:
    """A counter that misses its target, or of which a wait is passed before the last post, does not return to
    zero."""
    cta, semaphore, target = t.waits.T
    early = (target < t.targets[semaphore]) | ~full[semaphore]
    wrong, first = np.unique(semaphore[early], return_index=True)
    for e, i in zip(wrong.tolist(), np.flatnonzero(early)[first].tolist(), strict=True):
        findings.add(
            "reuse",
            f"semaphore {e} may get posts after {t.cta_name(cta[i])}, or stop short: it cannot be zeroed"
            " safely",
            t.rank(cta[i]),
        )
    return (
        f"at exit all {_n(len(t.targets), 'counter')} stand at their targets, every post comes before the"
        " last wait has passed, and the last to leave zeroes them"
    )


def _memory_order(t: Table, edges: Edges, findings: Findings) -> str:
    """Every edge falls under a row of the table of its target; ops read and write as kernels for it do."""
    for ctas, kinds, verb in (
        (t.writes.cta, t.write_proxy, "writes"),
        (t.reads.cta, t.read_proxy, "reads"),
    ):
        for kind, name in enumerate(t.proxies):
            if name not in memory_order.PROXIES:
                for cta in ctas[kinds == kind].tolist():
                    findings.add(
                        "memory order",
                        f"{t.cta_name(cta)} {verb} through proxy {name!r}, expected one of"
                        f" {', '.join(memory_order.PROXIES)}",
                        t.rank(cta),
                    )
    key = t.writes.cta * len(t.tensors) + t.writes.tensor
    order = np.argsort(key, kind="stable")
    mixed = (np.diff(key[order]) == 0) & (np.diff(t.write_proxy[order]) != 0)
    for cta in t.writes.cta[order[1:][mixed]].tolist():
        findings.add("memory order", f"{t.cta_name(cta)} writes one tensor through two proxies", t.rank(cta))
    for op, ctas, ways in t.ways if memory_order.knows(t.target) else ():
        _other_ways(t, op, ctas, ways, findings)
    used = []
    for (writer, reader), count in sorted(edges.by_proxy.items()):
        row = memory_order.row(t.target, t.proxies[writer], t.proxies[reader])
        if row is not None:
            used.append(f"{_n(count, 'edge')} {row}")
        elif not memory_order.knows(t.target):
            used.append(
                f"{_n(count, 'edge')} {t.proxies[writer]} -> {t.proxies[reader]}: left to target"
                f" {t.target!r}, not known here"
            )
        elif {t.proxies[writer], t.proxies[reader]} <= set(memory_order.PROXIES):
            findings.add(
                "memory order",
                f"{_n(count, 'edge')} from a write through {t.proxies[writer]} to a read through "
                f"{t.proxies[reader]}: kernels for {t.target} have no such chain",
            )
    return "; ".join(used) or "no edges"


def _values(plan: dict[str, Any], findings: Findings) -> str:
    """Outputs and states are the terms that the program's calls say."""
    if "calls" not in plan:
        return "taken as the ops say: the plan tells no calls"
    try:
        for problem in values.problems(plan):
            findings.add("values", problem)
        what = f"{_n(len(plan['ops']), 'op')} give the terms of {_n(len(plan['calls']), 'call')}"
    except (*MALFORMED, SyntaxError, RecursionError) as error:
        what = f"calls and ops cannot be compared: {reason(error)}"
        findings.add("values", what)
    return f"{what}: expressions, scales, operands and types"


def _other_ways(t: Table, op: str, ctas: Array, ways: memory_order.Ways, findings: Findings) -> None:
    """A violation for each tensor that an op's CTAs read or write through other proxies than its kernels
    do."""
    written = np.isin(t.writes.cta, ctas)
    listed = [("writes", t.tensors[n], {ways.writes}) for n in np.unique(t.writes.tensor[written]).tolist()]
    read = np.isin(t.reads.cta, ctas)
    listed += [
        ("reads", t.tensors[n], set(ways.reads.get(t.tensors[n], ())))
        for n in np.unique(t.reads.tensor[read]).tolist()
    ]
    for verb, tensor, expected in listed:
        boxes, proxy, of_op = (
            (t.writes, t.write_proxy, written) if verb == "writes" else (t.reads, t.read_proxy, read)
        )
        mine = of_op & (boxes.tensor == t.tensors.index(tensor))
        given = {t.proxies[n] for n in np.unique(proxy[mine]).tolist()}
        if expected and given != expected:
            first = int(boxes.cta[mine][0])
            findings.add(
                "memory order",
                f"{op} {verb} {tensor} through the {' and the '.join(sorted(given))} proxy, kernels for"
                f" {t.target} through the {' and the '.join(sorted(expected))} one",
                t.rank(first),
            )
