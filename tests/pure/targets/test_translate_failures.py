"""PTX that the emulator does not know is refused by name and line, never passed over."""

from __future__ import annotations

import pytest

from tilegen.errors import TargetError
from tilegen.targets.emulated.translate import translated


@pytest.mark.parametrize(
    "ptx",
    [
        "frobnicate.u32 %0, %1",
        "fence.acq_rel.gpu",
        "red.relaxed.gpu.global.min.u32 [%0], %1",
        "mbarrier.pending_count.b64 %0, %1",
        "barrier.red.popc %0, %1",
        "barrier.cluster.wait.relaxed",
        "fence.mbarrier_init.relaxed.cluster",
    ],
)
def test_an_unknown_instruction_is_named(ptx: str) -> None:
    text = f'int a;\n\nasm volatile("{ptx};" : "=r"(v) : "r"(p));\n'
    with pytest.raises(TargetError, match=f"does not know '{ptx.split()[0]}.*line 3"):
        translated(text)


@pytest.mark.parametrize("text", ['"bar.sync 0;"\n', '"bar.sync 0;\n'])
def test_a_statement_without_an_end_is_named(text: str) -> None:
    with pytest.raises(TargetError, match="asm statement in line 2 of the kernel has no end"):
        translated(f"int a;\nasm volatile({text}")
