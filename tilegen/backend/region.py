"""A region of a model's graph: an operator that runs it as one kernel.

    torch.ops.tilegen.region(text, given) → results      text: the region's graph (tilegen.backend.subgraph)

What the program's weights are made of those given that are static is computed once (tilegen.backend.fold).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, make_fx
from torch.library import Library, register_fake

from tilegen.api import compile as compile_program
from tilegen.backend.fold import Fold
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


@dataclass
class Region:
    """subgraph: what it computes. spec: as a program; its weights have no content. fold: those that are
    static → the weights."""

    subgraph: Subgraph
    spec: Written
    fold: Fold
    _kernel: Kernel | MovingKernel | EmptyKernel | None = None

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
            return Region(subgraph, spec(*values), Fold(fold, subgraph.device))

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

    @cached_property
    def _static(self) -> list[int]:
        """Which of the tensors given those are."""
        return [n for n, g in enumerate(self.subgraph.given) if g.static]

    @cached_property
    def _taken(self) -> list[int]:
        """Which of them the program takes as they are, laid out row by row."""
        return [n for n, g in enumerate(self.subgraph.given) if g.name in self.spec.taken]

    @cached_property
    def _order(self) -> list[int]:
        """What the kernel takes, among those taken and then the weights: by position it is called faster."""
        taken = [self.spec.taken[self.subgraph.given[n].name].name for n in self._taken]
        at = {name: n for n, name in enumerate((*taken, *self.spec.weights))}
        return [at[t.name] for t in self.kernel().given]

    def __call__(self, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        taken = [given[n].contiguous() for n in self._taken]
        arguments = [*taken, *self.fold(list(map(given.__getitem__, self._static)))]
        made = self.kernel()(*map(arguments.__getitem__, self._order))
        return list(made) if isinstance(made, tuple) else [made]


def _run(text: str, given: list[torch.Tensor]) -> list[torch.Tensor]:
    return Region.of(text)(given)


def _fake(text: str, given: list[torch.Tensor]) -> list[torch.Tensor]:
    region = Region.of(text)
    device = region.subgraph.device
    return [torch.empty(t.shape, dtype=TORCH_DTYPES[t.dtype], device=device) for t in region.outputs]


_operators.define(
    "region(str text, Tensor[] given) -> Tensor[]",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides),
)
_operators.impl("region", _run, "CompositeExplicitAutograd")
register_fake("tilegen::region", _fake, lib=_operators)
