"""A GPU's kernel on the CPU: its text compiled against the emulator, and run on torch tensors."""

from __future__ import annotations

import ctypes
import itertools
import random
import re
import struct
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tilegen.config import own_templates
from tilegen.errors import ArgumentError, HangError, RaceError
from tilegen.runtime import cache
from tilegen.runtime.cxx import compile_source, compiler, native, version
from tilegen.runtime.launch import HANG, MAP_BYTES, MISPLACED, RECORD_BYTES, TensorMap, counter_words
from tilegen.runtime.sms import lists_in_order
from tilegen.schedule.hang import describe_hang
from tilegen.schedule.plan import Plan
from tilegen.targets.base import Emitted
from tilegen.targets.emulated.translate import translated

if TYPE_CHECKING:
    import torch

MACHINE = ("scheduler.cpp", "memory.cpp", "async.cpp", "ops.cpp", "wgmma.cpp")
FLAGS = ("-std=c++17", "-w", "-shared", "-fPIC")
MACHINE_FLAGS = (*FLAGS, "-O2", "-march=native", "-pthread")
KERNEL_FLAGS = (*FLAGS, "-O1", "-g1")
ROUND_ROBIN, RANDOM = range(2)
AT_ONCE, AT_LAST, ANY_TIME = range(3)
WRONG_BYTES = 1 << 14
_ONE_RUN = threading.Lock()  # the machine is one
MOST_RUNS = 4  # until no bulk copy reads what was not in doubt in the run before
FRAME = re.compile(r"\{(\d+)(?:\|([^}]*))?\}")
ROLES = ("loads activations", "loads weights", "stores", "schedules")


@dataclass(frozen=True)
class Adversary:
    """How a run is driven. turns: whose turn it is, in order or at random; copies: when bulk copies happen:
    as they are asked for, when nobody else can go on, or any time between; starved_warp, starved_cta: who
    goes on only when nobody else can, -1: none."""

    seed: int = 0
    turns: int = ROUND_ROBIN
    copies: int = AT_ONCE
    starved_warp: int = -1
    starved_cta: int = -1

    @staticmethod
    def drawn(seed: int, ctas: int) -> Adversary:
        """All kinds of them, by turns."""
        kinds = list(itertools.product((ROUND_ROBIN, RANDOM), (AT_ONCE, AT_LAST, ANY_TIME)))
        turns, copies = kinds[seed % len(kinds)]
        starved = (-1, 4, 0, 8, 2, 1, 3)[seed % 7]  # a math warp of each group, and each role
        return Adversary(seed, turns, copies, starved, seed // 5 % ctas if seed % 5 == 4 else -1)


class _Region(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
        ("written", ctypes.c_int),
        ("counters", ctypes.c_int),
    ]


class _Request(ctypes.Structure):
    _fields_ = [
        ("kernel", ctypes.c_void_p),
        ("parameters", ctypes.c_void_p),
        *[
            (name, ctypes.c_int)
            for name in ("grid", "block", "cluster", "shared_bytes", "launches", "programmatic")
        ],
        ("regions", ctypes.POINTER(_Region)),
        *[
            (name, ctypes.c_int)
            for name in ("region_count", "turns", "copies", "starved_warp", "starved_cta")
        ],
        ("seed", ctypes.c_uint),
    ]


@lru_cache(maxsize=1)
def _machine() -> ctypes.CDLL:
    """The emulator itself, compiled once."""
    folder = own_templates() / "emulator"
    source = "\n".join(f'#include "{name}"' for name in MACHINE)
    texts = [path.read_text() for path in sorted(folder.iterdir())]
    key = cache.key_of("emulator", *texts, compiler(), version(compiler()), native(), " ".join(MACHINE_FLAGS))

    def build(to: Path) -> dict[str, str]:
        compile_source(source, to, (*MACHINE_FLAGS, "-DEMU_ARCHITECTURE=0", f"-I{folder}"), "machine.so")
        return {"note": "the emulator"}

    files = cache.get_or_build("binaries", key, build)
    return ctypes.CDLL(str(files["machine.so"]), mode=ctypes.RTLD_GLOBAL)


class EmulatedLibrary:
    """A kernel's text as it is emitted for a GPU. One run at a time. launches: that follow each other in a
    run, without anything that the host does in between."""

    target, source_name = "cuda-emulated", "kernel.cu"

    def __init__(self, plan: Plan, emitted: Emitted, launches: int = 1):
        assert emitted.launch is not None
        self.plan, self.source, self.launch = plan, emitted.text, emitted.launch
        self.launches = launches
        self.adversary = Adversary()
        digits = re.sub(r"\D", "", emitted.architecture)
        flags = (*KERNEL_FLAGS, f"-DEMU_ARCHITECTURE={digits}0", f"-I{own_templates() / 'emulator'}")
        header = (own_templates() / "emulator" / "ptx.hpp").read_text()
        key = cache.key_of(
            emitted.text, header, compiler(), version(compiler()), native(), " ".join(KERNEL_FLAGS)
        )

        def build(folder: Path) -> dict[str, str]:
            (folder / "kernel.cu").write_text(emitted.text)
            compile_source(self._text(), folder, flags, "kernel.so")
            return {"note": f"{plan.program} {dict(plan.sizes)} emulated"}

        machine = _machine()
        self.path = cache.get_or_build("binaries", key, build)["kernel.so"]
        self._library = ctypes.CDLL(str(self.path))
        self._run = machine.emu_run
        self._run.restype = ctypes.c_int

    def _text(self) -> str:
        types = {"maps": "tg_maps", "T": "tg_tensors", "launch": "tg_launch"}
        given = ", ".join(f"*(const {types[p.name]}*)p[{n}]" for n, p in enumerate(self.launch.parameters))
        entry = f'extern "C" void emu_kernel(void* const* p) {{ tg_kernel({given}); }}\n'
        return f'#include "ptx.hpp"\n#line 1 "kernel.cu"\n{translated(self.source)}\n{entry}'

    # --- as Kernel runs it ----------------------------------------------------------------------------------

    def create(self) -> int:
        return 0

    def destroy(self, state: int) -> None:
        """Each run has its own counters."""

    def run(
        self,
        state: int,
        held: Mapping[str, torch.Tensor],
        workers: int,
        plan: Plan | None = None,
        size: int | None = None,
    ) -> None:
        """Run all tiles. size: of what moves, and plan: the plan there. RaceError names both places of an
        access that is not ordered after another, and HangError the tile that waits for what never comes."""
        self.follow([held] * self.launches, plan, size)

    def follow(
        self,
        launches: Sequence[Mapping[str, torch.Tensor]],
        plan: Plan | None = None,
        size: int | None = None,
    ) -> None:
        """One launch after the other, each on tensors of its own, without anything that the host does in
        between."""
        plan = plan or self.plan
        counters = np.zeros(self.launch.counter_words, np.int32)
        hang = np.full(RECORD_BYTES // 4, -1, np.int32)
        buffers = [self._parameters(held, counters, hang, size) for held in launches]
        pointers = [(ctypes.c_void_p * len(given))(*(b.ctypes.data for b in given)) for given in buffers]
        each = (ctypes.c_void_p * len(pointers))(*(ctypes.addressof(p) for p in pointers))
        held = {(name, t.data_ptr()): t for tensors in launches for name, t in tensors.items()}
        written = {t.data_ptr() for (name, _), t in held.items() if name in self._written}
        results = {key: t for key, t in held.items() if key[0] in self._results}
        lists = self._lists() if self.launch.lists else []
        regions = self._regions(held, written, counters, any(lists))
        kernel = ctypes.cast(self._library.emu_kernel, ctypes.c_void_p)
        launch, a = self.launch, self.adversary
        request = _Request(
            kernel,
            ctypes.cast(each, ctypes.c_void_p),
            launch.grid,
            launch.block,
            launch.cluster,
            launch.shared_bytes,
            len(launches),
            launch.programmatic,
            (_Region * len(regions))(*regions),
            len(regions),
            a.turns,
            a.copies,
            a.starved_warp,
            a.starved_cta,
            a.seed,
        )
        before = [(t, t.clone()) for t in held.values() if t.data_ptr() in written]
        doubt = ""
        with _ONE_RUN:
            if lists:
                self._tell(lists)
            for again in range(MOST_RUNS):
                last = {key: t.clone() for key, t in results.items()} if again else {}
                for t, kept in before if again else ():
                    t.copy_(kept)
                counters[:], hang[:] = 0, -1
                told = self._run_once(request, again, hang, plan)
                doubt = doubt or told
                lost = doubt and any(
                    t.isnan().any() for (name, _), t in results.items() if name in self.plan.outputs
                )
                if lost or any(not same(results[key], t) for key, t in last.items()):
                    break
                if not told:
                    return
        raise RaceError(doubt)

    def _run_once(self, request: _Request, again: int, hang: np.ndarray, plan: Plan) -> str:
        """What bulk copies read in doubt, or an empty string; raises what is wrong without a doubt."""
        wrong = ctypes.create_string_buffer(WRONG_BYTES)
        in_doubt = self._run(ctypes.byref(request), again, wrong, WRONG_BYTES)
        if hang[0] >= 0:
            over = self.plan if self.plan.dim else None
            raise HangError(describe_hang(plan, *hang[: len(HANG)].tolist(), over=over))
        told = self._told(wrong.value.decode())
        if told and not in_doubt:
            raise (HangError if told.startswith(("no progress", "trap")) else RaceError)(told)
        number, value = hang[MISPLACED // 4 :][:2].tolist()
        if number >= 0:
            place = self.launch.positions[number]
            raise ArgumentError(f"nothing was appended: {place.problem(value)}", place.where)
        return told

    def _lists(self) -> list[int]:
        """Of SMs in any order; every third time zeros: not known."""
        count, drawn = self.launch.lists, random.Random(self.adversary.seed)
        order = drawn.sample(range(count), count) if self.adversary.seed % 3 else ()
        return lists_in_order(order, count, drawn.randint(1, count))

    def _tell(self, lists: Sequence[int]) -> None:
        known = (ctypes.c_int * len(lists)).in_dll(self._library, "tg_list_of_sm")
        for sm, found in enumerate(lists):
            known[sm] = found

    # --- what the kernel is given ---------------------------------------------------------------------------

    def _parameters(
        self, held: Mapping[str, torch.Tensor], counters: np.ndarray, hang: np.ndarray, size: int | None
    ) -> list[np.ndarray]:
        launch = self.launch
        maps = launch.maps_at(size) if launch.maps_at and size else launch.maps
        words = {
            "counters": counters.ctypes.data,
            "hang": hang.ctypes.data,
            "patience_ns": 10**10,
            "misplaced": hang.ctypes.data + MISPLACED,
            "sizes": size,
        }
        given = [
            b"".join(struct.pack("<Q", held[name].data_ptr()) for name in launch.pointers) or b"\0",
            b"".join(struct.pack("<Q", words[w]) for w in launch.words),
        ]
        if maps is not None:
            given.insert(0, b"".join(_map(m, held) for m in maps) or b"\0")
        return [_aligned(g) for g in given]

    def _regions(
        self,
        held: Mapping[tuple[str, int], torch.Tensor],
        written: set[int],
        counters: np.ndarray,
        taken: bool,
    ) -> list[_Region]:
        smaller_first = sorted(held.items(), key=lambda item: item[1].numel())
        memory = {t.data_ptr(): (name, t) for (name, _), t in smaller_first}
        found = [
            _Region(name.encode(), at, t.numel() * t.element_size(), at in written, 0)
            for at, (name, t) in memory.items()
        ]
        zero = counter_words(self.launch.semaphores) if taken else counters.size
        return [*found, _Region(b"counters", counters.ctypes.data, counters.nbytes, 1, zero)]

    @cached_property
    def _results(self) -> tuple[str, ...]:
        tensors = self.plan.graph.tensors
        return tuple(name for name, t in tensors.items() if t.role in ("output", "state"))

    @cached_property
    def _written(self) -> frozenset[str]:
        tensors = self.plan.graph.tensors
        return frozenset(name for name, t in tensors.items() if not t.constant)

    # --- what went wrong ------------------------------------------------------------------------------------

    def _told(self, wrong: str) -> str:
        """With the lines of the kernel's text, its roles and tiles, in place of numbers."""
        base = self._base()
        places = sorted({int(m[1]) - base for m in FRAME.finditer(wrong)})
        lines = _lines(self.path, places)

        def told(m: re.Match[str]) -> str:
            where = lines.get(int(m[1]) - base, "somewhere")
            if m[2] is None:
                return f"({where})"
            launch, cta, warp, lane, op, at = m[2].split("|")
            role = (
                ROLES[int(warp)]
                if int(warp) < 4 and self.launch.maps is not None
                else f"computes, warp {warp}"
            )
            tile = ""
            if int(op) >= 0 and int(op) < len(self.plan.graph.ops):
                name = self.plan.graph.ops[int(op)].name
                tile = f", tile {name} ({at})"
            again = f"launch {launch}, " if self.launches > 1 else ""
            return f"({again}CTA {cta}, {role}, lane {lane}{tile}; {where})"

        return FRAME.sub(told, wrong)

    def _base(self) -> int:
        """Where the library lies in memory."""

        class Found(ctypes.Structure):
            _fields_ = [
                ("file", ctypes.c_char_p),
                ("base", ctypes.c_void_p),
                ("name", ctypes.c_char_p),
                ("at", ctypes.c_void_p),
            ]

        found = Found()
        address = ctypes.cast(self._library.emu_kernel, ctypes.c_void_p)
        ctypes.CDLL(None).dladdr(address, ctypes.byref(found))
        return int(found.base or 0)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bit by bit."""
    import torch

    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def _aligned(given: bytes) -> np.ndarray:
    """In memory aligned as maps want it."""
    room = np.zeros(len(given) + 64, np.uint8)
    start = -room.ctypes.data % 64
    room[start : start + len(given)] = np.frombuffer(given, np.uint8)
    return room[start : start + len(given)]


_SWIZZLES = {
    f"CU_TENSOR_MAP_SWIZZLE_{name}": span for name, span in (("NONE", 0), ("64B", 64), ("128B", 128))
}


def _map(m: TensorMap, held: Mapping[str, torch.Tensor]) -> bytes:
    """As the emulator reads it: emu::TensorMap, in the 128 bytes of a CUtensorMap."""

    def padded(sizes: Sequence[int], count: int, fill: int) -> list[int]:
        return [*sizes, *[fill] * (count - len(sizes))]

    of = m.im2col
    data = struct.pack(
        "<Qii16i4qi4b",
        held[m.buffer].data_ptr() + m.offset,
        m.rank,
        _SWIZZLES[m.swizzle],
        *padded(m.shape, 5, 1),
        *padded(m.box, 5, 1),
        *padded(m.element_strides, 5, 1),
        2,
        *padded(m.pitches, 4, 0),
        *((of.pixels, *of.lower, *of.upper) if of else (0, 0, 0, 0, 0)),
    )
    return data.ljust(MAP_BYTES, b"\0")


def _lines(library: Path, places: Sequence[int]) -> dict[int, str]:
    """Offset in a library -> the lines of the kernel's text there, the innermost call first."""
    if not places:
        return {}
    # a return address is behind the call
    asked = [hex(p - 1) for p in places if p > 0]
    try:
        done = subprocess.run(
            ["addr2line", "-i", "-a", "-e", str(library), *asked], capture_output=True, text=True
        )
    except OSError:
        return {p: f"byte {p:#x} of {library}" for p in places}
    found, at = dict[int, list[str]](), 0
    for line in done.stdout.splitlines():
        if line.startswith("0x"):
            at = int(line, 16) + 1
        elif "kernel.cu:" in line:
            found.setdefault(at, []).append(line.rpartition(":")[2].split()[0])
    return {p: f"line {', called from '.join(lines)}" for p, lines in found.items()}
