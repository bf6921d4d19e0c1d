"""What the CUDA libraries share: a plan's text compiled by NVRTC once, kept in the cache, loaded when it is
first launched."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

from tilegen.errors import CompileError
from tilegen.frontend.dims import most
from tilegen.runtime import cache
from tilegen.runtime.driver import Launcher, Module
from tilegen.runtime.launch import Launch, counter_words
from tilegen.runtime.nvrtc import Cubin, compile_cuda, version
from tilegen.schedule.alike import written_as
from tilegen.schedule.plan import Plan

logger = logging.getLogger("tilegen")


def fewest_spills(
    writes: Sequence[Callable[[], str]], architecture: str, spilled: Callable[[str, str], int], program: str
) -> tuple[str, Cubin]:
    """The first text that spills nothing, else the one that spills least. Raises CompileError where the log
    of each is bad."""
    best: tuple[int, str, Cubin] | None = None
    refused: CompileError | None = None
    for write in writes:
        text = write()
        try:
            made = compile_cuda(text, architecture)
            count = spilled(made.log, text)
        except CompileError as error:
            refused = error
            continue
        if best is None or count < best[0]:
            best = count, text, made
        if count == 0:
            break
    if best is None:
        assert refused is not None
        raise refused
    if best[0]:
        logger.warning(
            "%s: ptxas spilled %d bytes of registers for %s; smaller tiles may be faster",
            program,
            best[0],
            architecture,
        )
    return best[1], best[2]


class CubinLibrary:
    """A plan's kernel for one architecture. Nothing here needs a GPU until it is launched.

    writes: give the text where the cache has no binary. spilled: bytes of registers by the compiler's log;
    raises CompileError where the log is bad. The first text without any is kept, else the one with the
    fewest.
    """

    target: str
    source_name = "kernel.cu"

    def __init__(
        self,
        plan: Plan,
        writes: Sequence[Callable[[], str]],
        architecture: str,
        *kind: str,
        spilled: Callable[[str, str], int] = lambda log, source: 0,
    ):
        self.plan, self.architecture = plan, architecture

        def build(folder: Path) -> dict[str, str]:
            text, made = fewest_spills(writes, architecture, spilled, plan.program)
            (folder / "kernel.cu").write_text(text)
            (folder / "kernel.cubin").write_bytes(made.code)
            (folder / "log.txt").write_text(made.log)
            return {"note": f"{plan.program} {dict(plan.sizes)} {architecture}"}

        written = written_as(plan).plan.digest
        self.files = cache.get_or_build(
            "binaries", cache.key_of(written, architecture, version(), *kind), build
        )

    @property
    def source(self) -> str:
        return self.files["kernel.cu"].read_text()

    @property
    def code(self) -> bytes:
        return self.files["kernel.cubin"].read_bytes()

    @property
    def counter_words(self) -> int:
        return counter_words(most(self.plan.semaphore_count), self.lists)

    @property
    def lists(self) -> int:
        """Of tiles, that CTAs take by their SM; 0: each has that of its own number."""
        return 0

    @cached_property
    def _module(self) -> Module:
        return Module(self.code)

    def launch(self, exclusive: bool = False, programmatic: bool | None = None) -> Launch:
        """What a launch is. exclusive: nothing else that waits inside keeps its CTAs out; programmatic: it
        may start while the one before ends."""
        raise NotImplementedError

    def launcher(self, exclusive: bool, programmatic: bool | None = None) -> Launcher:
        asked = self.launch(exclusive, programmatic)
        return self._module.launcher(
            "tg_kernel", asked.grid, asked.block, asked.shared_bytes, asked.cooperative, asked.programmatic
        )
