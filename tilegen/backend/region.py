"""A region of a model's graph: an operator that runs it as one kernel.

    torch.ops.tilegen.region(text, given) → results      text: the region's graph (tilegen.backend.subgraph)

What the program's weights are made of those given that are static is computed once (tilegen.backend.fold).
Where a size moves its kernel is one for all sizes up to a largest, and compiled anew for one above that.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, make_fx
from torch.library import Library, register_fake

from tilegen.api import compile as compile_program
from tilegen.backend.fold import Fold
from tilegen.backend.sizes import asked
from tilegen.backend.subgraph import Subgraph, read
from tilegen.errors import SpecError
from tilegen.frontend.dims import limited
from tilegen.frontend.program import Program, Tensor
from tilegen.kernels.empty import EmptyKernel
from tilegen.kernels.kernel import Kernel
from tilegen.kernels.moving import FoundAt, MovingKernel, extent
from tilegen.nn import patterns
from tilegen.nn.importer import Written, written
from tilegen.runtime.arguments import TORCH_DTYPES

log = logging.getLogger("tilegen")
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
            SpecError: what the region computes depends on the size that moves.
        """
        with unset_fake_temporarily(), disable_proxy_modes_tracing():
            return Region._of(text)

    @staticmethod
    def _of(text: str) -> Region:
        subgraph = read(text)
        patterns.composed(subgraph.graph)
        static = [g for g in subgraph.given if g.static]

        def spec(*given: torch.Tensor) -> Written:
            known = dict(zip((g.name for g in static), given, strict=True))
            return written(TITLE, subgraph.graph, known, dim=subgraph.dim)

        with subgraph.mode:
            values = [g.empty(subgraph.device) for g in static]
            fold = make_fx(lambda *given: tuple(w.detach() for w in spec(*given).weights.values()))(*values)
            region = Region(subgraph, spec(*values), Fold(fold, subgraph.device))
        if asked(subgraph.mode):
            raise SpecError("what is computed depends on the size that moves")
        return region

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
            self._kernel = self._compiled(self.program)
        return self._kernel

    def _compiled(self, program: Program) -> Kernel | MovingKernel | EmptyKernel:
        with unset_fake_temporarily(), disable_proxy_modes_tracing():
            return compile_program(program, self.subgraph.device.type)

    def _grown(self, kernel: MovingKernel, size: int) -> MovingKernel:
        """One for larger sizes, too; twice as large, so that few follow."""
        log.info("a region for sizes up to %d is compiled anew for %d", kernel.dim.most, size)
        assert self.subgraph.dim is not None
        made = self._compiled(limited(self.program, self.subgraph.dim, 1 << size.bit_length()))
        assert isinstance(made, MovingKernel)
        self._kernel = made
        return made

    def shapes(self, given: Sequence[torch.Tensor]) -> list[tuple[Any, ...]]:
        """Of its results, whose sizes may be torch's symbols."""
        dim = self.subgraph.dim
        if dim is None:
            return [t.shape for t in self.outputs]
        size = self._found_at.size(given)
        return [tuple(extent(n, dim, size) for n in t.shape) for t in self.outputs]

    @cached_property
    def _found_at(self) -> FoundAt:
        """Where what moves is read off the tensors given."""
        assert self.subgraph.dim is not None
        taken = [self.program.tensor(self.spec.taken[self.subgraph.given[n].name].name) for n in self._taken]
        found = FoundAt.of(taken, self.subgraph.dim)
        return replace(found, argument=self._taken[found.argument])

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
        kernel = self.kernel()
        if isinstance(kernel, MovingKernel) and (size := self._found_at.size(given)) > kernel.dim.most:
            kernel = self._grown(kernel, size)
        made = kernel(*map(arguments.__getitem__, self._order))
        return list(made) if isinstance(made, tuple) else [made]


def _run(text: str, given: list[torch.Tensor]) -> list[torch.Tensor]:
    return Region.of(text)(given)


def _fake(text: str, given: list[torch.Tensor]) -> list[torch.Tensor]:
    region = Region.of(text)
    device, shapes = region.subgraph.device, region.shapes(given)
    return [
        torch.empty(shape, dtype=TORCH_DTYPES[t.dtype], device=device)
        for t, shape in zip(region.outputs, shapes, strict=True)
    ]


_operators.define(
    "region(str text, Tensor[] given) -> Tensor[]",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides),
)
_operators.impl("region", _run, "CompositeExplicitAutograd")
register_fake("tilegen::region", _fake, lib=_operators)
