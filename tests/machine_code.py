"""Whether a change of tilegen changed its kernels: everything it generates for hundreds of programs, before
and after.

    python -m tests.machine_code write DIR       text, plan and certificate of each case; no NVRTC, no GPU
    python -m tests.machine_code compare A B     which differ; where the text does, both are compiled and
    their
                                                 machine code compared. Ends with 1 where any machine code
                                                 differs

A refactoring leaves every text as it is. A change of the text alone (names, comments, what no code calls)
leaves the machine code as it is. Cases: every cell of benchmarks.workloads and drawn programs of all families
(tests.gpu.families), for sm_90a in one launch and in one for each op, prepared or not, for sm_80 and for the
CPU.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import struct
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

DRAWN, SEED = 105, 20261122
# the families that sm_80 has a form for
LINEAR = ("lora", "mlp", "gated", "bottleneck", "fan", "chain", "gemm")
DIGEST = re.compile(r"from plan\s+(?:// )?[0-9a-f]{32}")  # which changes with the plan's format
ARCHITECTURES = {"a100": "sm_80", "rtx-4090": "sm_89"}


@dataclass(frozen=True)
class Way:
    """How a program is compiled. prepared: its weights are packed."""

    target: str
    machine: str
    lowering: str = "persistent"
    prepared: bool = False

    def __str__(self) -> str:
        return f"{self.target} {self.machine} {self.lowering}{' prepared' if self.prepared else ''}"


ONE, PREPARED, EACH = (
    Way("sm_90a", "h200"),
    Way("sm_90a", "h200", prepared=True),
    Way("sm_90a", "h200", "multi_launch"),
)


@cache
def cases() -> dict[str, tuple[Any, Way]]:
    """Name -> (what makes the program, how it is compiled)."""
    from benchmarks.workloads import GROUPS, tasks
    from tests.gpu.families import drawn

    cells = {str(t): t for group in GROUPS if group != "host" for t in tasks(group) if t.constant is None}
    found = {f"{name} {ONE}": (t, ONE) for name, t in cells.items()}
    for case in drawn(SEED, DRAWN):
        ways = [ONE, PREPARED, EACH]
        if case.name.split()[0] in LINEAR:
            ways += [Way("sm_80", "a100"), Way("sm_80", "rtx-4090"), Way("cpu", "cpu:4")]
        found |= {f"{case.name} {way}": (case, way) for way in ways}
    return found


# --- writing ------------------------------------------------------------------------------------------------


def made(name: str) -> dict[str, Any]:
    """What is generated for a case, or the refusal."""
    import tilegen as tg

    case, way = cases()[name]
    program = case.program if hasattr(case, "workload") else case.spec(**case.sizes)
    try:
        g = tg.generate(program, way.target, way.machine, lowering=way.lowering)
        texts = [_prepared(g.plan)] if way.prepared else [part.text for part in getattr(g, "launches", (g,))]
    except tg.TilegenError as error:
        return {"name": name, "refused": f"{type(error).__name__}: {error}"}
    plan = hashlib.sha256(json.dumps(g.plan.to_json(), sort_keys=True).encode()).hexdigest()
    return {"name": name, "texts": texts, "plan": plan, "certificate": g.certificate.text()}


def _prepared(plan: Any) -> str:
    from tilegen.targets.sm90.emit import generate

    weights = frozenset(name for name, t in plan.graph.tensors.items() if t.role == "weight")
    return generate(plan, weights & frozenset(plan.arguments)).text


def without_nvrtc() -> None:
    """In a process of the pool: texts are wanted, and compiling them takes a hundred times as long."""

    def absent(*_: Any) -> None:
        raise RuntimeError("libnvrtc is hidden: texts alone are wanted")

    import cuda.bindings
    import torch

    stub = SimpleNamespace(nvrtcVersion=absent, nvrtcCreateProgram=absent)
    cuda.bindings.nvrtc = stub
    sys.modules["cuda.bindings.nvrtc"] = stub  # type: ignore[assignment]
    torch.set_num_threads(1)


def write(folder: Path, jobs: int) -> int:
    names = list(cases())
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=without_nvrtc) as pool:
        found = {m["name"]: m for m in pool.map(made, names)}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cases.json").write_text(json.dumps(found, indent=1))
    refused = [m for m in found.values() if "refused" in m]
    print(
        f"{len(found)} cases, {len(refused)} refused,"
        f" {sum(map(len, (t for m in found.values() for t in m.get('texts', ())))):,} characters"
    )
    return 0


# --- comparing ----------------------------------------------------------------------------------------------


def instructions(text: str, architecture: str) -> dict[str, bytes]:
    """The machine code of a kernel: its cubin's sections of code, which is an ELF file of 64 bits."""
    from tilegen.runtime.nvrtc import compile_cuda

    elf = compile_cuda(text, architecture).code
    (table,), (size, count, names) = (
        struct.unpack_from("<Q", elf, 0x28),
        struct.unpack_from("<HHH", elf, 0x3A),
    )
    sections = [struct.unpack_from("<IIQQQQ", elf, table + n * size) for n in range(count)]
    found = {}
    for at, _, _, _, offset, length in sections:
        name = elf[sections[names][4] + at :].partition(b"\0")[0].decode()
        if name.startswith(".text"):
            found[name] = elf[offset : offset + length]
    return found


def differs(case: tuple[str, Sequence[str], Sequence[str]]) -> str:
    """What differs where the texts of a case do: nothing else, or the machine code."""
    name, a, b = case
    way = name.split()
    if "cpu" in way:
        return "C++"
    machine = next(w for w in way if w in ("h200", *ARCHITECTURES))
    architecture = ARCHITECTURES.get(machine, "sm_90a")
    same = len(a) == len(b) and all(
        instructions(x, architecture) == instructions(y, architecture) for x, y in zip(a, b, strict=True)
    )
    return "text" if same else "machine code"


def told(a: dict[str, Any], b: dict[str, Any], jobs: int) -> Iterator[tuple[str, str]]:
    """(case, what differs)"""
    other = []
    for name in a.keys() | b.keys():
        if (name in a) != (name in b):
            yield name, "only on one side"
            continue
        old, new = a[name], b[name]
        for part in ("refused", "plan", "certificate"):
            if old.get(part) != new.get(part):
                yield name, part
        texts = [[DIGEST.sub("", text) for text in side.get("texts", ())] for side in (old, new)]
        if all(texts) and texts[0] != texts[1]:
            other.append((name, *texts))
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from zip((case[0] for case in other), pool.map(differs, other, chunksize=2), strict=True)


def compare(first: Path, second: Path, jobs: int) -> int:
    a, b = (json.loads((folder / "cases.json").read_text()) for folder in (first, second))
    counts: dict[str, list[str]] = {}
    for name, what in told(a, b, jobs):
        counts.setdefault(what, []).append(name)
    print(f"{len(a)} cases and {len(b)}")
    for what, names in sorted(counts.items()):
        print(f"{what}: {len(names)}, such as {sorted(names)[0]}")
    return 1 if counts.keys() - {"text", "certificate"} else 0


def main() -> int:
    p = argparse.ArgumentParser(
        "machine_code", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("verb", choices=("write", "compare"))
    p.add_argument("folders", nargs="+", type=Path)
    p.add_argument("--jobs", type=int, default=2)
    o = p.parse_args()
    return write(o.folders[0], o.jobs) if o.verb == "write" else compare(*o.folders, o.jobs)


if __name__ == "__main__":
    raise SystemExit(main())
