"""The portable CUDA target, sm_80 and later: a plan's kernel compiled by NVRTC for the GPU that is here, and its launches."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from tilegen.codegen.portable import PortableSource, generate
from tilegen.errors import TargetError
from tilegen.plan import Plan
from tilegen.targets import cache
from tilegen.targets.cuda import Launcher, Module, Parameters, missing
from tilegen.targets.hopper import LINE
from tilegen.targets.nvrtc import compile_cuda, version


class PortableLibrary:
    """A plan's kernel for one architecture, with what CudaKernel asks of a library. Nothing here needs a GPU until `launcher` is asked for.

    Weights are read as they are: `packed` names those that another library might pack.
    """

    target, source_name = "cuda", "kernel.cu"

    def __init__(self, plan: Plan, packed: frozenset[str] = frozenset(), architecture: str = ""):
        self.plan, self.packed = plan, dict[str, Any]()
        self.architecture = architecture or here()
        self.generated: PortableSource = generate(plan, self.architecture)

        def build(folder: Path) -> dict[str, str]:
            (folder / "kernel.cu").write_text(self.generated.text)
            made = compile_cuda(self.generated.text, self.architecture)
            (folder / "kernel.cubin").write_bytes(made.code)
            (folder / "log.txt").write_text(made.log)
            return {"note": f"{plan.program} {dict(plan.sizes)} {self.architecture}"}

        self.files = cache.get_or_build("binaries", cache.key_of(plan.digest, "portable", self.architecture, version()), build)

    @property
    def source(self) -> str:
        return self.files["kernel.cu"].read_text()

    @property
    def counter_words(self) -> int:
        return (len(self.plan.targets) + 3) * LINE  # and ticket, exits, abort

    @property
    def ctas(self) -> int:
        """One for each static list; where tickets are drawn, one an SM, gangs or not."""
        return min(self.plan.machine.sms, self.plan.order.count) if isinstance(self.plan.placement, str) else len(self.plan.placement)

    @cached_property
    def _module(self) -> Module:
        return Module(self.files["kernel.cubin"].read_bytes())

    def launcher(self, exclusive: bool, programmatic: bool | None = None) -> Launcher:
        """Static lists that wait need every CTA resident: a cooperative launch fails instead of hanging. Tickets run on any number."""
        if programmatic:
            raise TargetError(f"programmatic: the kernel for sm_90a waits for the one before, that for {self.architecture} does not")
        g, static = self.generated, not isinstance(self.plan.placement, str)
        cooperative = static and bool(self.plan.targets) and not exclusive
        return self._module.launcher("tg_kernel", self.ctas, g.threads, g.shared_bytes, cooperative)

    def parameters(
        self, addresses: Mapping[str, int], packed: Mapping[str, int], counters: int, hang: int, patience_ns: int, trace: int = 0
    ) -> Parameters:
        """The kernel's two parameters for tensors at these addresses: no tensor maps, no packed weights, no trace."""
        tensors = self.plan.graph.tensors
        pointers = struct.pack(f"<{len(tensors)}Q", *(addresses[name] for name in tensors))
        return Parameters([pointers, struct.pack("<3Q", counters, hang, patience_ns)])


def here() -> str:
    """The architecture of the current GPU: sm_80, sm_90, …; TargetError where there is none."""
    import torch

    if missing():
        raise TargetError(f"target cuda: {missing()}")

    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"
