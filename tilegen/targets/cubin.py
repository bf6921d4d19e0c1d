"""What the CUDA libraries share: a plan's text compiled by NVRTC once, kept in the cache, loaded when it is first launched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from tilegen.errors import CompileError
from tilegen.plan import Plan
from tilegen.targets import cache
from tilegen.targets.cuda import Module
from tilegen.targets.nvrtc import Cubin, compile_cuda, version

LINE = 32  # words between counters


class CubinLibrary:
    """A plan's kernel for one architecture. Nothing here needs a GPU until it is launched.

    writes: give the text where the cache has no binary; the first that is accepted is kept. accept: raises CompileError where the compiler's log is bad.
    """

    target, source_name = "cuda", "kernel.cu"

    def __init__(
        self, plan: Plan, writes: Sequence[Callable[[], str]], architecture: str, *kind: str, accept: Callable[[str, str], None] = lambda log, source: None
    ):
        self.plan, self.architecture = plan, architecture

        def accepted(write: Callable[[], str]) -> tuple[str, Cubin]:
            text = write()
            made = compile_cuda(text, architecture)
            accept(made.log, text)
            return text, made

        def build(folder: Path) -> dict[str, str]:
            *others, last = writes
            for write in others:
                with suppress(CompileError):
                    text, made = accepted(write)
                    break
            else:
                text, made = accepted(last)
            (folder / "kernel.cu").write_text(text)
            (folder / "kernel.cubin").write_bytes(made.code)
            (folder / "log.txt").write_text(made.log)
            return {"note": f"{plan.program} {dict(plan.sizes)} {architecture}"}

        self.files = cache.get_or_build("binaries", cache.key_of(plan.digest, architecture, version(), *kind), build)

    @property
    def source(self) -> str:
        return self.files["kernel.cu"].read_text()

    @property
    def counter_words(self) -> int:
        return (len(self.plan.targets) + 3) * LINE  # and ticket, exits, abort

    @cached_property
    def _module(self) -> Module:
        return Module(self.files["kernel.cubin"].read_bytes())

    @property
    def static(self) -> bool:
        """Whether each CTA has its list, so that all must be resident where they wait for each other."""
        return not isinstance(self.plan.placement, str)

    def cooperative(self, exclusive: bool) -> bool:
        """Whether a launch must fail rather than hang when not all CTAs fit. exclusive: nothing else that waits inside keeps them out."""
        return self.static and bool(self.plan.targets) and not exclusive
