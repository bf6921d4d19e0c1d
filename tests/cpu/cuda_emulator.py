"""Generated CUDA, run on the CPU: functions that hold PTX are replaced by what PTX says they do, the rest is
kept. The portable kernel whole; of Hopper's the tile functions of ops that threads compute."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tests.gpu.gemms import Case
from tilegen import api
from tilegen.bench.accuracy import error_of
from tilegen.codegen.op_text import OpText
from tilegen.codegen.tidy import pruned
from tilegen.runtime.data import random_arguments
from tilegen.schedule.plan import Plan
from tilegen.targets.cpu.library import compiler
from tilegen.targets.sm80.emit import generate
from tilegen.targets.sm90 import emit as hopper
from tilegen.targets.sm90.thread_tile import THREADS, ThreadTile

EIGHT_OF_16 = "unsigned w[4]; memcpy(w, p, 16); return tg_vec8_of(p, w);"
EIGHT_OF_32 = "tg_vec8 y; memcpy(y.v, p, 32); return y;"
# name -> bodies of its overloads, in the order of the text
BODIES = {
    "tg_load_relaxed": ["return *p;"],
    "tg_load_acquire": ["return *p;"],
    "tg_add_acq_rel": ["return (*p)++;"],
    "tg_nanoseconds": ["return 0;"],
    "tg_draw_rank": ["return (int)(*g.next_rank())++;"],
    "tg_post": ["emu::idle = 0, ++*g.word(semaphore);"],
    "tg_clear": ["*g.word(semaphore) = 0;"],
    "tg_wait": ["while (*g.word(semaphore) < (unsigned)target) emu::yield();"],
    "tg_tanh": ["return tanhf(x);"],
    "tg_pack": ["return emu::pack<emu::Bf16>(v.x, v.y);", "return emu::pack<emu::F16>(v.x, v.y);"],
    "tg_unpack": ["return {emu::F16::value(v, 0), emu::F16::value(v, 1)};"],
    **{
        name: [
            "unsigned v = 0; if (inside) memcpy(&v, p, 4); return v;",
            "tg_pair v = {0, 0}; if (inside) memcpy(&v, p, 8); return v;",
        ]
        for name in ("tg_fetch", "tg_fetch_constant")
    },
    "tg_warm": [""],
    "tg_put": ["const unsigned w = tg_pack(p, v); memcpy((void*)p, &w, 4);", "memcpy(p, &v, 8);"],
    "tg_put16": ['if ((uintptr_t)p % 16) emu::fail("st.global.v4: address"); memcpy(p, v, 16);'],
    "tg_shared": ["return 0;"],
    "tg_copy16": [
        'if ((uintptr_t)from % 16) emu::fail("cp.async: address"); memset(emu::shared(to, 16), 0xff, 16);'
        " emu::now->groups.back().push_back({to, from, bytes});"
    ],
    "tg_copies_commit": ["emu::now->groups.emplace_back();"],
    "tg_copies_wait": ["emu::wait_for_copies(PENDING);"],
    "tg_load_matrix": ["emu::load_matrix(v, at);", "emu::load_matrix(v, at);"],
    "tg_get8": [EIGHT_OF_16, EIGHT_OF_32],
    "tg_get8_constant": [EIGHT_OF_16, EIGHT_OF_32],
    "tg_get8_packed": ["tg_packed_vec8<T> y{}; if (there) memcpy(&y, p, 8 * sizeof(T)); return y;"],
    "tg_get1": ["unsigned short w; memcpy(&w, p, 2); return tg_unpack(p, w).x;", "return *p;", "return *p;"],
    "tg_put8": [
        (
            "for (int i = 0; i < 8; i += 2) { const unsigned w = tg_pack(p, tg_pair{y.v[i], y.v[i + 1]});"
            " memcpy((void*)(p + i), &w, 4); }"
        ),
        "memcpy(p, y.v, 32);",
    ],
    "tg_position": ["return *p;"],
    "tg_math_meet": ["__syncthreads();"],
    "tg_put_shared": ["memcpy(emu::shared(at, 4), &v, 4);"],
    "tg_get_shared": ["float v; memcpy(&v, emu::shared(at, 4), 4); return v;"],
    "tg_bits": ["unsigned short v; memcpy(&v, p, 2); return v;"],
    "tg_image_bits": ["unsigned short v; memcpy(&v, p, 2); return v;"],
    "tg_put_bits": ["memcpy(emu::shared(at, 2), &v, 2);"],
    "tg_get_bits": ["unsigned short v; memcpy(&v, emu::shared(at, 2), 2); return v;"],
    "tg_put_offset": ["memcpy(emu::shared(at, 4), &v, 4);"],
    "tg_get_offsets": ["tg_offsets v; memcpy(&v, emu::shared(at, 8), 8); return v;"],
    "tg_mma": ["emu::mma<emu::Bf16>(d, a, b);", "emu::mma<emu::F16>(d, a, b);"],
}
FUNCTION = re.compile(
    r"^(?P<head>(?:template <[^\n]*?> )?TG_FN [^\n;]*?\b(?P<name>tg_\w+)\([^\n]*?\))"
    r" \{(?P<body>[^\n]*\}\n|\n(?:.*\n)*?\}\n)",
    re.MULTILINE,
)
JOINT = re.compile(r"(?<=,)\n {4,}(?!//)")  # where a line was broken
SHARED = "extern __shared__ __align__(128) unsigned char memory[];"
MAIN = """
static tg_tensors tensors;
static tg_launch launched;

struct Body {
  static void run() {
    tg_kernel(tensors, launched);
    emu::idle = 0, emu::now->done = true;
    emu::yield();
  }
};

extern "C" const char* emulate(const void* pointers, unsigned* counters, int ctas, int threads, int bytes,
                               int seed) {
  memcpy(&tensors, pointers, sizeof tensors);
  launched = {counters, nullptr, 0};
  return emu::run(ctas, threads, bytes, seed, Body{});
}
"""


THREADS_MAIN = """
static tg_tensors tensors;
static int op;

struct Body {
  static void run() {
    for (int rank = blockIdx.x; rank < TG_TILES; rank += (int)gridDim.x) {
      const tg_tile_t t = tg_tile(rank);
      if (t.op != op) continue;
      switch (op) {
%s
      }
    }
    emu::idle = 0, emu::now->done = true;
    emu::yield();
  }
};

extern "C" const char* emulate(const void* pointers, int which, int ctas, int threads, int bytes, int seed) {
  memcpy(&tensors, pointers, sizeof tensors);
  op = which;
  return emu::run(ctas, threads, bytes, seed, Body{});
}
"""


def without_ptx(text: str) -> str:
    """Generated CUDA as C++."""
    seen: dict[str, int] = {}

    def replaced(m: re.Match[str]) -> str:
        name = m["name"]
        if "asm" not in m["body"] and name != "tg_shared":
            return m[0]
        seen[name] = seen.get(name, 0) + 1
        return f"{m['head']} {{ {BODIES[name][seen[name] - 1]} }}\n"

    text = FUNCTION.sub(replaced, JOINT.sub(" ", text))
    assert not re.search(r"\basm\b", text)
    return Path(__file__).with_name("cuda_emulator.hpp").read_text() + text


def host_text(text: str) -> str:
    """The portable kernel as C++."""
    assert SHARED in text
    return (
        without_ptx(text.replace(SHARED, "unsigned char* const memory = emu::now->cta->shared.data();"))
        + MAIN
    )


def threads_text(text: str, ops: Sequence[OpText]) -> str:
    """Of a Hopper kernel what the tile functions of `ops` need, as C++."""
    calls = " ".join(f"tg_run_{op.name}({op.enum});" for op in ops)
    root = f"void tg_emulated() {{ tg_tile(TG_TILES); {calls} }}\n"
    cases = "\n".join(
        f"        case {op.enum}: tg_run_{op.name}(tensors, t, threadIdx.x, 0, [] {{}}); break;" for op in ops
    )
    return without_ptx(pruned(text + root, "tg_emulated").replace(root, "")) + THREADS_MAIN % cases


def built(text: str, path: Path) -> Any:
    """The compiled emulation."""
    path.write_text(text)
    library = path.with_suffix(".so")
    subprocess.run(
        [compiler(), "-O1", "-std=c++17", "-w", "-shared", "-fPIC", "-o", str(library), str(path)], check=True
    )
    run = ctypes.CDLL(str(library)).emulate
    run.restype = ctypes.c_char_p
    return run


def tensors_of(plan: Plan, case: Case) -> tuple[list[Any], dict[str, torch.Tensor], Any]:
    """Random arguments, all tensors (NaN where nothing is given), and their addresses."""
    arguments = random_arguments(case.program)
    held = dict(zip(plan.arguments, arguments, strict=True))
    for t in plan.graph.tensors.values():
        if t.name not in held:
            held[t.name] = torch.full(t.plan_shape, float("nan"), dtype=getattr(torch, t.dtype))
    return (
        arguments,
        held,
        (ctypes.c_void_p * len(plan.graph.tensors))(*(held[name].data_ptr() for name in plan.graph.tensors)),
    )


def changed(text: str, change: tuple[str, str] | None) -> str:
    """With (old, new) replaced, which must be there."""
    if change is None:
        return text
    assert change[0] in text, change[0]
    return text.replace(*change)


def difference(case: Case, plan: Plan, arguments: list[Any], held: dict[str, torch.Tensor]) -> str:
    """How wrong the outputs and the caches are, or an empty string."""
    want = api.reference(case.program, *arguments)
    wants = want if isinstance(want, tuple) else (want,)
    names = (*plan.outputs, *(t.name for t in case.program.tensors if t.role == "state"))
    error = error_of(tuple(held[name].reshape(w.shape) for name, w in zip(names, wants, strict=True)), wants)
    return "" if error < 5e-3 else f"error {error}"


def emulate_threads(
    case: Case, folder: Path, sms: int = 3, seed: int = 0, change: tuple[str, str] | None = None
) -> str:
    """Run a case all of whose ops threads compute, op by op: only the tile functions are looked at. What went
    wrong, or an empty string."""
    plan = case.plan(sms)
    arguments, held, pointers = tensors_of(plan, case)
    wrong = run_threads(plan, changed(hopper.generate(plan).text, change), pointers, folder, sms, seed)
    return wrong or difference(case, plan, arguments, held)


def run_threads(plan: Plan, text: str, pointers: Any, folder: Path, sms: int = 3, seed: int = 0) -> str:
    """Run the tile functions of a plan's ops; what went wrong while they ran, or an empty string."""
    ops = [hopper.hopper_op(plan, b) for b in plan.bounds]
    run = built(threads_text(text, ops), folder / "kernel.cpp")
    for n, op in enumerate(ops):
        assert isinstance(op, ThreadTile), op.name
        wrong = run(pointers, n, sms, THREADS, op.scratch_bytes, seed)
        if wrong:
            return f"{op.name}: {wrong.decode()}"
    return ""


def emulate(
    case: Case,
    folder: Path,
    architecture: str = "sm_80",
    sms: int = 3,
    seed: int = 0,
    change: tuple[str, str] | None = None,
) -> str:
    """Run a case on emulated SMs; what went wrong, or an empty string. `change`: (old, new) in the generated
    text."""
    plan = case.plan(sms, "sm_80")
    source = generate(plan, architecture)
    run = built(host_text(changed(source.text, change)), folder / "kernel.cpp")
    arguments, held, pointers = tensors_of(plan, case)
    counters = torch.zeros((len(plan.targets) + 3) * 32, dtype=torch.int32)
    ctas = sms if isinstance(plan.scheduling, str) else len(plan.scheduling)
    wrong = run(
        pointers, ctypes.c_void_p(counters.data_ptr()), ctas, source.threads, source.shared_bytes, seed
    )
    if wrong:
        return str(wrong.decode())
    if counters.any():
        return "counters are not zero"
    return difference(case, plan, arguments, held)
