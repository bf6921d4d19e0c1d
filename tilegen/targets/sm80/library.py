"""The portable CUDA target, sm_80 and later: a plan's kernel compiled by NVRTC for the GPU that is here, and
its launches."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from tilegen.errors import TargetError
from tilegen.runtime.driver import Parameters, Place, missing
from tilegen.runtime.launch import MISPLACED, Launch
from tilegen.schedule.plan import Plan
from tilegen.targets.cubin import CubinLibrary
from tilegen.targets.sm80.emit import PortableSource, generate
from tilegen.targets.sm80.launch import portable_launch


class PortableLibrary(CubinLibrary):
    """A plan's kernel for one architecture. Weights are read as they are: `packed` names those that another
    library might pack."""

    target = "sm_80"

    def __init__(self, plan: Plan, packed: frozenset[str] = frozenset(), architecture: str = ""):
        self.packed = dict[str, Any]()
        architecture = architecture or here()
        self.generated: PortableSource = generate(plan, architecture)
        super().__init__(plan, [lambda: self.generated.text], architecture, "portable")

    def launch(self, exclusive: bool = False, programmatic: bool | None = None) -> Launch:
        return portable_launch(self.plan, self.generated, self.architecture, exclusive, programmatic)

    def parameters(
        self,
        addresses: Mapping[str, int],
        packed: Mapping[str, int],
        counters: int,
        hang: int,
        patience_ns: int,
        trace: int = 0,
        size: int | None = None,
    ) -> Parameters:
        """The kernel's two parameters for tensors at these addresses: no tensor maps, no packed weights, no
        trace, nothing that moves."""
        tensors = self.plan.graph.tensors
        pointers = struct.pack(f"<{len(tensors)}Q", *(addresses[name] for name in tensors))
        words = [counters, hang, patience_ns, *([hang + MISPLACED] if self.generated.positions else [])]
        return Parameters([pointers, struct.pack(f"<{len(words)}Q", *words)])

    def place(self, parameters: Parameters, name: str) -> Place:
        """Where the address of a tensor stands in parameters of this kernel."""
        return parameters.place((), [(0, list(self.plan.graph.tensors).index(name))])


def here() -> str:
    """The architecture of the current GPU: sm_80, sm_90, …; TargetError where there is none."""
    import torch

    if missing():
        raise TargetError(f"target cuda: {missing()}")
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"
