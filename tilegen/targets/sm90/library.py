"""The sm_90a target: a plan's kernel compiled by NVRTC, its tensor maps, its packed weights, its launches."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache, partial

from tilegen.errors import SpillError
from tilegen.frontend.dims import most
from tilegen.runtime.driver import Module, Parameters, Place, encode
from tilegen.runtime.launch import MISPLACED, Launch, TensorMap
from tilegen.runtime.sms import lists_of_sms
from tilegen.schedule.alike import written_as
from tilegen.schedule.plan import Plan
from tilegen.targets.cubin import CubinLibrary
from tilegen.targets.sm90.emit import HopperSource, generate
from tilegen.targets.sm90.launch import hopper_ctas, hopper_launch, maps_at
from tilegen.targets.sm90.product import Product

ARCHITECTURE = "sm_90a"
SPILLS = 128  # bytes of registers, of the some 700 that a math thread's sums take
# whose waits spill unless threads that load have more registers: those are tried first, since a net of so
# many ops compiles for long
MANY_OPS = 32


def spilled(log: str, source: str) -> int:
    """Bytes of registers that the compiler spilled; a few are what an epilogue holds.

    Raises SpillError where it spilled more than SPILLS, which are sums of the main loop, or serialised
    wgmma: such a kernel is right, and several times too slow.
    """
    serialised = sorted(set(re.findall(r"C75\d\d", log)))
    most = max((int(n) for n in re.findall(r"(\d+) bytes spill stores", log)), default=0)
    if serialised or most > SPILLS:
        what = (
            f"serialised wgmma ({', '.join(serialised)})"
            if serialised
            else f"spilled {most} bytes of registers"
        )
        raise SpillError(f"ptxas {what} for {ARCHITECTURE}; choose smaller tiles", log, source)
    return most


class HopperLibrary(CubinLibrary):
    """A plan's kernel for one set of packed weights, or a variant of it (emit.generate)."""

    target = ARCHITECTURE

    def __init__(self, plan: Plan, packed: frozenset[str] = frozenset(), variant: str = ""):
        self.generated: HopperSource = generate(plan, packed, variant)
        self.packed: dict[str, Product] = dict(self.generated.packed)
        # prepared weights that are not packed need no binary of their own
        called = written_as(plan).names
        packed_tensors = {name for op in self.packed.values() if op.packing for name in op.packing.tensors}
        made_of = sorted(called[name] for name in packed_tensors)
        super().__init__(plan, texts(plan, self.generated), ARCHITECTURE, variant, *made_of, spilled=spilled)

    @property
    def ctas(self) -> int:
        return hopper_ctas(self.plan, self.generated)

    @property
    def lists(self) -> int:
        return self.generated.lists

    @cached_property
    def _module(self) -> Module:
        module = Module(self.code)
        if self.lists:
            tiles = most(self.plan.order.count)
            module.write("tg_list_of_sm", lists_of_sms(self.lists, tiles, ARCHITECTURE))
        return module

    def launch(self, exclusive: bool = False, programmatic: bool | None = None) -> Launch:
        return hopper_launch(self.plan, self.generated, exclusive, programmatic)

    @cached_property
    def _maps(self) -> Callable[[int], tuple[TensorMap, ...]]:
        return lru_cache(maxsize=512)(partial(maps_at, self.plan, self.generated))

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
        """The kernel's three parameters for tensors at these addresses; packed: map -> address of the packed
        weight; size: of what moves."""
        maps = b"".join(
            encode((packed[m.name] if m.packed else addresses[m.tensor]) + m.offset, m)
            for m in self._maps(size or 0)
        )
        pointers = struct.pack(
            f"<{len(self.generated.tensors)}Q", *(addresses[name] for name in self.generated.tensors)
        )
        words = [
            counters,
            hang,
            patience_ns,
            *([hang + MISPLACED] if self.generated.positions else []),
            *([] if size is None else [size]),
            trace,
        ]
        return Parameters([maps, pointers, struct.pack(f"<{len(words)}Q", *words)])

    @cached_property
    def _places(self) -> Mapping[str, tuple[list[tuple[int, int]], list[tuple[int, int]]]]:
        """Tensor -> where its address stands: (number, bytes from it) of maps, (parameter, number) of
        pointers."""
        found: dict[str, tuple[list[tuple[int, int]], list[tuple[int, int]]]] = {}
        for n, m in enumerate(self._maps(self.plan.dim.most if self.plan.dim else 0)):
            if not m.packed:
                found.setdefault(m.tensor, ([], []))[0].append((n, m.offset))
        for n, name in enumerate(self.generated.tensors):
            found.setdefault(name, ([], []))[1].append((1, n))
        return found

    def place(self, parameters: Parameters, name: str) -> Place:
        """Where the address of a tensor stands in parameters of this kernel."""
        return parameters.place(*self._places.get(name, ((), ())))


def texts(plan: Plan, source: HopperSource) -> list[Callable[[], str]]:
    """What writes the kernel, the best first; a later one where the compiler spills registers of that
    before."""
    found = [lambda: source.text, source.roomy]
    return found[::-1] if len(plan.graph.ops) > MANY_OPS else found
