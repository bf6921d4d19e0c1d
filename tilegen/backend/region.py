"""A region of a model's graph: an operator that runs it as one kernel.

    torch.ops.tilegen.region(text, given) → results      text: the region's graph (tilegen.backend.subgraph)

What the program's weights are made of those given that are static (merged, laid out anew, cast) is computed
once, and again after one of them has changed; a change through .data is one that torch does not count, and is
not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, make_fx
from torch.library import Library, register_fake
from torch.multiprocessing.reductions import StorageWeakRef

from tilegen.api import compile as compile_program
from tilegen.backend.subgraph import Subgraph, read
from tilegen.frontend.program import Program, Tensor
from tilegen.kernels.empty import EmptyKernel
from tilegen.kernels.kernel import Kernel
from tilegen.kernels.moving import MovingKernel
from tilegen.nn import patterns
from tilegen.nn.importer import Written, written
from tilegen.runtime.arguments import TORCH_DTYPES

TITLE = "region"
_operators: Any = Library("tilegen", "FRAGMENT")  # type: ignore[no-untyped-call]
Held = tuple[Any, ...]  # which tensors, and what was in them


@dataclass
class Region:
    """subgraph: what it computes. spec: as a program; its weights have no content. fold: those that are
    static → the weights."""

    subgraph: Subgraph
    spec: Written
    fold: GraphModule
    _kernel: Kernel | MovingKernel | EmptyKernel | None = None
    _held: Held | None = None
    _weights: tuple[torch.Tensor, ...] = ()

    @staticmethod
    @cache
    def of(text: str) -> Region:
        """That of a text.

        Raises:
            NodeError: a node is what no spec can say; error.node.meta["at"] is its name in the text.
        """
        with unset_fake_temporarily(), disable_proxy_modes_tracing():
            return Region._of(text)

    @staticmethod
    def _of(text: str) -> Region:
        mode = FakeTensorMode()
        subgraph = read(text, mode)
        patterns.composed(subgraph.graph)
        static = [g for g in subgraph.given if g.static]

        def spec(*given: torch.Tensor) -> Written:
            known = dict(zip((g.name for g in static), given, strict=True))
            return written(TITLE, subgraph.graph, known)

        with mode:
            values = [g.empty(subgraph.device) for g in static]
            fold = make_fx(lambda *given: tuple(w.detach() for w in spec(*given).weights.values()))(*values)
            return Region(subgraph, spec(*values), fold)

    @property
    def program(self) -> Program:
        return self.spec.program

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        return tuple(self.program.tensor(name) for name in self.program.outputs)

    def kernel(self) -> Kernel | MovingKernel | EmptyKernel:
        """Compiled at the first call, for the device of the text.

        Raises:
            PlanError, TargetError, CompileError: as tg.compile.
        """
        if self._kernel is None:
            with unset_fake_temporarily(), disable_proxy_modes_tracing():
                self._kernel = compile_program(self.program, self.subgraph.device.type)
        return self._kernel

    def __call__(self, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        pairs = list(zip(self.subgraph.given, given, strict=True))
        named = {self.spec.taken[g.name].name: a for g, a in pairs if g.name in self.spec.taken}
        named |= dict(zip(self.spec.weights, self._folded([a for g, a in pairs if g.static]), strict=True))
        made = self.kernel()(**{name: a.contiguous() for name, a in named.items()})
        return list(made) if isinstance(made, tuple) else [made]

    def _folded(self, static: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        if any(a.is_inference() for a in static):  # whose changes torch does not count
            return self._weights_of(static)
        weak: Any = StorageWeakRef
        held = tuple((weak(a.untyped_storage()), a.storage_offset(), a._version) for a in static)
        if self._held != held:
            self._weights = self._weights_of(static)
            self._held = held
        return self._weights

    def _weights_of(self, static: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            return tuple(w.to(self.subgraph.device) for w in self.fold(*static))


def _run(text: str, given: list[torch.Tensor]) -> list[torch.Tensor]:
    return Region.of(text)(given)


def _fake(text: str, given: list[torch.Tensor]) -> list[torch.Tensor]:
    region = Region.of(text)
    device = region.subgraph.device
    return [torch.empty(t.shape, dtype=TORCH_DTYPES[t.dtype], device=device) for t in region.outputs]


_operators.define(
    "region(str text, Tensor[] given) -> Tensor[]",
    # Inductor's graphs keep all memory in a pool of theirs; a kernel's workspaces and weights live elsewhere
    tags=(
        torch.Tag.pt2_compliant_tag,
        torch.Tag.needs_exact_strides,
        torch.Tag.cudagraph_unsafe,
    ),
)
_operators.impl("region", _run, "CompositeExplicitAutograd")
register_fake("tilegen::region", _fake, lib=_operators)
