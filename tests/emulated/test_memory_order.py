"""Every row of the proof's table of memory orders is one that the emulator breaks.

Each case is a plan whose edges all fall under one row; its text has one link of the row's chain taken out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

import tilegen as tg
from tests.emulated.kernels import emulated, replaced
from tests.emulated.test_faults import BULK, SEEDS, STEPS, in_function
from tests.gpu.gemms import Case, mlp
from tilegen.proof import memory_order
from tilegen.proof.memory_order import ASYNC, GENERIC
from tilegen.runtime.verify import verify


@tg.spec
def normed_twice(M=40, N=512, dtype="bfloat16"):
    """Two ops by threads: the second reads what the first stored."""
    x, g = tg.input("x", (M, N), dtype), tg.weight("g", (N,), dtype)
    return tg.softmax(tg.rms_norm(x, g, name="n"), name="y")


@tg.spec
def normed_after(M=130, N=256, dtype="bfloat16"):
    """A product whose results leave by TMA, and an op by threads that reads them."""
    x, w, g = (
        tg.input("x", (M, N), dtype),
        tg.weight("w", (N, N), dtype),
        tg.weight("g", (N,), dtype),
    )
    return tg.rms_norm(tg.linear(x, w, name="h"), g, name="y")


PORTABLE = Case("", mlp, {"M": 40, "H": 128, "I": 200}, {"policies": {"h": "tile"}, "scheduling": "dynamic"})
APART = {"norms": "separate", "scheduling": "dynamic"}


@dataclass(frozen=True)
class Link:
    """One link of the chain of a row, and the change of the text that takes it out."""

    what: str
    target: str
    writer: str
    reader: str
    case: Case
    change: Callable[[str], str]

    @property
    def sms(self) -> int:
        return 4 if self.target == "sm_90a" else 3

    def seen(self) -> str:
        """The first thing that the emulator says."""
        return emulated(self.case, SEEDS, self.change, self.target, self.sms)

    def __str__(self) -> str:
        return f"{self.target}, {self.writer} -> {self.reader}: {self.what}"


def links() -> list[Link]:
    by_threads = Case("", normed_twice, {}, APART)
    after = Case("", normed_after, {}, {**APART, "tiles": {"h": (128, 64, 64)}})
    relaxed = ("a relaxed post", replaced("red.release.gpu", "red.relaxed.gpu"))
    plain = ("a wait that does not acquire", replaced("  (void)tg_load_acquire(p);\n", ""))
    early = ("stores awaited for .read alone", replaced("bulk.wait_group 0", "bulk.wait_group.read 0"))
    unfenced = (
        "no proxy fence after the wait",
        replaced('  asm volatile("fence.proxy.async.global;" ::: "memory");\n#endif', "#endif"),
    )
    untold = (
        "no proxy fence before the post",
        in_function("tg_store_direct", "tg_fence_async_global();", ""),
    )
    return [
        Link(what, target, writer, reader, case, change)
        for target, writer, reader, case, changes in (
            ("sm_90a", GENERIC, GENERIC, by_threads, (relaxed, plain)),
            ("sm_90a", GENERIC, ASYNC, STEPS, (relaxed, plain, unfenced, untold)),
            ("sm_90a", ASYNC, GENERIC, after, (relaxed, plain, early)),
            ("sm_90a", ASYNC, ASYNC, BULK, (relaxed, plain, early, unfenced)),
            (
                "sm_80",
                GENERIC,
                GENERIC,
                PORTABLE,
                (
                    relaxed,
                    plain,
                    (
                        "posted before all have stored",
                        replaced("__syncthreads();  // all threads' results", "// "),
                    ),
                    ("a wait that the other threads do not await", replaced("Op::wait(g, t, waited);", ";")),
                ),
            ),
        )
        for what, change in changes
    ]


LINKS = links()


@pytest.mark.parametrize("link", LINKS, ids=str)
def test_without_a_link_of_its_chain_a_row_is_broken(link: Link) -> None:
    certificate = verify(link.case.plan(link.sms, link.target))
    rows = [row for row in memory_order.rows(link.target) if str(row) in certificate.text()]
    assert [(row.writer, row.reader) for row in rows] == [(link.writer, link.reader)]
    assert "race" in link.seen()


def test_every_row_of_a_gpus_kernel_has_a_link() -> None:
    told = {(link.target, link.writer, link.reader) for link in LINKS}
    rows = {(t, row.writer, row.reader) for t in ("sm_90a", "sm_80") for row in memory_order.rows(t)}
    assert told == rows
