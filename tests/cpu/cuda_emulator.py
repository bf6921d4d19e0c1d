"""The portable kernel's own text, run on the CPU: functions that hold PTX are replaced by what PTX says they do, the rest is kept."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import torch

from tests.gpu.gemms import Case
from tilegen import api
from tilegen.codegen.portable import generate
from tilegen.data import random_arguments, relative_error
from tilegen.targets.cpu import compiler

# name -> bodies of its overloads, in the order of the text
BODIES = {
    "tg_load_relaxed": ["return *p;"],
    "tg_load_acquire": ["return *p;"],
    "tg_add_acq_rel": ["return (*p)++;"],
    "tg_nanoseconds": ["return 0;"],
    "tg_ticket": ["return (int)(*g.ticket())++;"],
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
    "tg_mma": ["emu::mma<emu::Bf16>(d, a, b);", "emu::mma<emu::F16>(d, a, b);"],
}
FUNCTION = re.compile(
    r"^(?P<head>(?:template <[^\n]*?> )?TG_FN [^\n;]*?\b(?P<name>tg_\w+)\([^\n]*?\)) \{(?P<body>[^\n]*\}\n|\n(?:.*\n)*?\}\n)", re.MULTILINE
)
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

extern "C" const char* emulate(const void* pointers, unsigned* counters, int ctas, int threads, int bytes, int seed) {
  memcpy(&tensors, pointers, sizeof tensors);
  launched = {counters, nullptr, 0};
  return emu::run(ctas, threads, bytes, seed, Body{});
}
"""


def host_text(text: str) -> str:
    """The generated CUDA as C++: PTX replaced."""
    seen: dict[str, int] = {}

    def replaced(m: re.Match[str]) -> str:
        name = m["name"]
        if "asm" not in m["body"] and name != "tg_shared":
            return m[0]
        seen[name] = seen.get(name, 0) + 1
        return f"{m['head']} {{ {BODIES[name][seen[name] - 1]} }}\n"

    assert SHARED in text
    text = FUNCTION.sub(replaced, text.replace(SHARED, "unsigned char* const memory = emu::now->cta->shared.data();"))
    assert not re.search(r"\basm\b", text)
    prelude = Path(__file__).with_name("cuda_emulator.hpp").read_text()
    return prelude + text + MAIN


def emulate(
    case: Case, folder: Path, architecture: str = "sm_80", sms: int = 3, seed: int = 0, change: tuple[str, str] | None = None
) -> str:
    """Run a case on emulated SMs; what went wrong, or an empty string. `change`: (old, new) in the generated text."""
    plan = case.plan(sms)
    source = generate(plan, architecture)
    text = source.text
    if change:
        assert change[0] in text, change[0]
        text = text.replace(*change)
    path = folder / "kernel.cpp"
    path.write_text(host_text(text))
    library = path.with_suffix(".so")
    subprocess.run([compiler(), "-O1", "-std=c++20", "-w", "-shared", "-fPIC", "-o", str(library), str(path)], check=True)
    run = ctypes.CDLL(str(library)).emulate
    run.restype = ctypes.c_char_p

    arguments = random_arguments(case.program)
    held = dict(zip(plan.arguments, arguments, strict=True))
    for t in plan.graph.tensors.values():
        held.setdefault(t.name, torch.full(t.plan_shape, float("nan"), dtype=getattr(torch, t.dtype)))
    pointers = (ctypes.c_void_p * len(plan.graph.tensors))(*(held[name].data_ptr() for name in plan.graph.tensors))
    counters = torch.zeros((len(plan.targets) + 3) * 32, dtype=torch.int32)
    ctas = sms if isinstance(plan.placement, str) else len(plan.placement)
    wrong = run(pointers, ctypes.c_void_p(counters.data_ptr()), ctas, source.threads, source.shared_bytes, seed)
    if wrong:
        return str(wrong.decode())
    if counters.any():
        return "counters are not zero"
    want = api.reference(case.program, *arguments)
    error = relative_error(held[plan.outputs[0]].reshape(want.shape), want)
    return "" if error < 5e-3 else f"error {error}"
