"""Each PTX instruction of the generated texts as a call that says what it says: order, scope, path, sizes."""

from __future__ import annotations

import pytest

from tests.gpu.gemms import CASES
from tests.gpu.ops import OPS
from tests.shares import share
from tilegen.targets.emulated.translate import translated
from tilegen.targets.select import named

CALLS = [
    (
        'asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");',
        "emu::ld_global<unsigned>(emu::WEAK, emu::OF_GPU, emu::CG, (p), (v));",
    ),
    (
        'asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");',
        "emu::ld_global<unsigned>(emu::ACQUIRE, emu::OF_GPU, emu::THROUGH_L1, (p), (v));",
    ),
    (
        'asm volatile("ld.shared.v2.f32 { %0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(at + 16));',
        "emu::ld_shared<float>((at + 16), (v.x), (v.y));",
    ),
    (
        'asm volatile("red.release.gpu.global.add.u32 [%0], 1;" :: "l"(g.word(s)) : "memory");',
        "emu::add_global(emu::RELEASE, emu::OF_GPU, (g.word(s)), 1);",
    ),
    (
        'asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" :: "r"(tg_at(bar, cta)));',
        "emu::barrier_arrive(emu::RELEASE, emu::OF_CTA, (tg_at(bar, cta)), 0);",
    ),
    (
        'asm volatile("mbarrier.arrive.expect_tx.relaxed.cluster.shared::cluster.b64 _, [%0], %1;"'
        ' :: "r"(b), "r"(n));',
        "emu::barrier_arrive(emu::RELAXED, emu::OF_CLUSTER, (b), (n));",
    ),
    ('asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(N) : "memory");', "emu::bulk_wait((N), true);"),
    (
        'asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, { %1, %2}], [%3];\\n'
        'cp.async.bulk.commit_group;" :: "l"(map), "r"(c), "r"(r), "r"(from) : "memory");',
        "emu::tensor_store((map), (from), (c), (r)); emu::bulk_commit();",
    ),
    (
        'asm volatile("{\\n.reg .pred p;\\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\\n'
        'selp.u32 %0, 1, 0, p;\\n}" : "=r"(ok) : "r"(bar), "r"(parity) : "memory");',
        "[[maybe_unused]] bool ptx_p; ptx_p = emu::barrier_wait(emu::ACQUIRE, (bar), (parity), true);"
        " (ok) = ptx_p ? 1 : 0;",
    ),
    (
        'asm volatile("{.reg .pred there;\\nsetp.ne.s32 there, %2, 0;\\n"'
        '"@there ld.global.cg.u32 %0, [%1];\\n}"'
        ' : "+r"(v) : "l"(p), "r"((int)there));',
        "[[maybe_unused]] bool ptx_there; ptx_there = ((int)there) != 0; if (ptx_there)"
        " emu::ld_global<unsigned>(emu::WEAK, emu::OF_GPU, emu::CG, (p), (v));",
    ),
]


@pytest.mark.parametrize("text, call", CALLS, ids=[call[:40] for _, call in CALLS])
def test_an_instruction_is_the_call_that_it_says(text: str, call: str) -> None:
    assert translated(text) == f"{{ {call} }}"


def test_what_differs_in_order_or_path_is_another_call() -> None:
    for old, new in ((".release", ".relaxed"), (".gpu.global.add", ".gpu.global.add")):
        text = 'asm volatile("red.release.gpu.global.add.u32 [%0], 1;" :: "l"(p));'
        assert (translated(text) == translated(text.replace(old, new))) == (old == new)


@pytest.mark.parametrize("case", share([*CASES, *OPS], 4))
def test_all_texts_are_read_and_keep_their_lines(case: object) -> None:
    plan = case.plan()  # type: ignore[attr-defined]
    text = named(plan.target).emit(plan).text
    found = translated(text)
    assert "asm volatile" not in found and found.count("\n") == text.count("\n")
