"""Machine code as a list of instructions: nvdisasm's text of a cubin, its loops, and what stands before an
instruction."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from tilegen.runtime.nvrtc import compile_cuda
from tilegen.targets.sm90.library import ARCHITECTURE, spilled

PACKAGE = "nvidia-cuda-nvdisasm"
LINE = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s*(?:@!?U?P\w+\s+)?(.*?)\s*;")  # without its predicate
LABEL = re.compile(r"^(\.L_x_\d+):")
TARGET = re.compile(r"^BRA\b.*`\((\.L_x_\d+)\)")


def written(name: str, target: str) -> set[str]:
    """The registers that an instruction writes: a wide load several from its target on."""
    if not re.fullmatch(r"U?R\d+", target):
        return set()
    letter, first = target.rstrip("0123456789"), int(re.sub(r"\D", "", target))
    count = 4 if ".128" in name else 2 if ".64" in name else 1
    return {f"{letter}{first + i}" for i in range(count)}


@dataclass(frozen=True)
class Products:
    """A wgmma on its way: the registers of its sums, and of its left operand where that lies in registers."""

    sums: frozenset[str]
    left: frozenset[str]

    @staticmethod
    def of(text: str) -> Products:
        width, first, left = re.match(r"HGMMA\.64x(\d+)x\S+ R(\d+), (?:R(\d+))?", text).groups()
        sums = (f"R{int(first) + n}" for n in range(int(width) // 2))
        return Products(frozenset(sums), frozenset(f"R{int(left) + n}" for n in range(4) if left))


def disturbed(code: Sequence[str]) -> list[str]:
    """The instructions that touch sums of a wgmma, or write its left operand, before it is waited for."""
    groups: list[list[Products]] = []
    begun: list[Products] = []
    found = []
    for text in code:
        name, _, operands = text.partition(" ")
        if name.startswith("HGMMA"):
            begun.append(Products.of(text))
            if "gsb0" in operands:
                groups, begun = [*groups, begun], []
        elif name.startswith("WARPGROUP.DEPBAR"):
            left = int(operands.rpartition(",")[2], 16)
            groups = groups[len(groups) - left :] if left else []
        else:
            written_to = written(name, operands.partition(",")[0].strip())
            touched = written_to | set(re.findall(r"\bR\d+", operands))
            if any(touched & p.sums or written_to & p.left for group in (*groups, begun) for p in group):
                found.append(text)
    return found


@lru_cache(maxsize=1)
def nvdisasm() -> Path:
    """The disassembler of NVIDIA's wheel; wheels of some installers lose the executable bit."""
    try:
        files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        raise AssertionError(f'{PACKAGE} is not installed: pip install -e ".[test]"') from None
    found = next((Path(str(f.locate())) for f in files if f.name in ("nvdisasm", "nvdisasm.exe")), None)
    assert found is not None, f"{PACKAGE} has no nvdisasm among its files"
    if not os.access(found, os.X_OK):
        found.chmod(found.stat().st_mode | 0o111)
    return found


@dataclass(frozen=True)
class Sass:
    """Instructions in order; `labels`: name -> number of the instruction after it."""

    code: tuple[str, ...]
    labels: dict[str, int]

    @staticmethod
    def of(cubin: bytes, folder: Path) -> Sass:
        file = folder / "kernel.cubin"
        file.write_bytes(cubin)
        done = subprocess.run(
            [str(nvdisasm()), "--no-dataflow", "--print-code", str(file)], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return Sass.read(done.stdout)

    @staticmethod
    def read(text: str) -> Sass:
        code: list[str] = []
        labels: dict[str, int] = {}
        for line in text.splitlines():
            if label := LABEL.match(line):
                labels[label[1]] = len(code)
            elif instruction := LINE.match(line):
                code.append(instruction[2])
        return Sass(tuple(code), labels)

    def at(self, pattern: str) -> list[int]:
        """Where instructions match."""
        return [n for n, text in enumerate(self.code) if re.match(pattern, text)]

    def before(self, n: int, count: int) -> tuple[str, ...]:
        """The `count` instructions before instruction n, the nearest first."""
        return self.code[max(0, n - count) : n][::-1]

    def made_of(self, n: int, register: str, reach: int = 1000) -> list[str]:
        """The instructions up to `reach` before n that a register's value is made of, the nearest first, as
        they stand."""
        wanted, found = {register}, []
        for text in self.before(n, reach):
            name, _, operands = text.partition(" ")
            target, _, sources = operands.partition(",")
            if made := written(name, target.strip()) & wanted:
                found.append(text)
                wanted = wanted - made | set(re.findall(r"\bU?R\d+", sources))
        return found

    @cached_property
    def _loops(self) -> list[tuple[int, int]]:
        """(first, last instruction) of every loop: from a label to a branch back to it."""
        back = ((n, TARGET.match(text)) for n, text in enumerate(self.code))
        return [(self.labels[t[1]], n) for n, t in back if t and self.labels[t[1]] <= n]

    def innermost(self, pattern: str) -> Iterator[tuple[str, ...]]:
        """The smallest loops around matching instructions; an instruction in no loop is one by itself."""
        around = set()
        for n in self.at(pattern):
            loops = [(last - first, first, last) for first, last in self._loops if first <= n <= last]
            _, first, last = min(loops, default=(0, n, n))
            around.add((first, last))
        return (self.code[first : last + 1] for first, last in sorted(around))


def machine_code(text: str, folder: Path) -> Sass:
    """Of a Hopper kernel's text, which spills no registers."""
    cubin = compile_cuda(text, ARCHITECTURE)
    assert spilled(cubin.log, text) == 0
    return Sass.of(cubin.code, folder)
