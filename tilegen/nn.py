"""A program as a layer of a model: an nn.Module whose parameters are the program's weights.

    layer = tg.module(gpt3_mlp(M=16), w1=…, w2=…);   y = layer(x)

It is trained, saved, moved and copied as any other: state_dict holds the weights under the program's names,
gradients reach them, torch.compile and torch.export take a call as one call of the kernel's operator.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

import torch

from tilegen.api import compile as compile_program
from tilegen.errors import ArgumentError
from tilegen.frontend.program import Program
from tilegen.frontend.spec import as_program
from tilegen.kernels.kernel import Kernel
from tilegen.kernels.moving import MovingKernel

Versions = tuple[tuple[int, int], ...]  # address and version of each weight


class Module(torch.nn.Module):
    """y = module(x): a program, its weights parameters.

    The kernel is compiled where the weights are, when the module is made and when it is moved to another
    kind of device. Where no gradient is asked for on a GPU, weights are packed tile by tile once, and again
    after they have changed; a change through .data is one that torch does not count, and is not seen.
    """

    def __init__(self, program: Program, weights: dict[str, torch.Tensor], options: dict[str, Any]):
        super().__init__()
        self.program, self.options = program, options
        self._packed: tuple[Versions, Kernel | MovingKernel] | None = None
        self._taken = tuple(t.name for t in program.arguments if t.role != "weight")
        for name, weight in weights.items():
            if not isinstance(weight, torch.nn.Parameter):
                weight = torch.nn.Parameter(weight.detach(), requires_grad=False)
            self.register_parameter(name, weight)
        self._compile()

    @property
    def kernel(self) -> Kernel | MovingKernel:
        """The kernel on the device where the weights are."""
        return self._kernel

    def forward(self, *inputs: torch.Tensor, **named: torch.Tensor) -> Any:
        """The program's results. inputs: its inputs and states in declaration order, or by name."""
        if len(inputs) > len(self._taken):
            raise ArgumentError(
                f"{self.program.name} takes {len(self._taken)} inputs ({', '.join(self._taken)}),"
                f" {len(inputs)} were given"
            )
        given = {**dict(zip(self._taken, inputs, strict=False)), **named}
        weights = dict(self.named_parameters(recurse=False))
        trained = torch.is_grad_enabled() and any(w.requires_grad for w in weights.values())
        if trained or self._kind != "cuda" or torch.compiler.is_compiling():
            return self._kernel(**given, **weights)
        return self._prepared(weights)(**given)

    def extra_repr(self) -> str:
        return repr(self._kernel)

    def _prepared(self, weights: dict[str, torch.nn.Parameter]) -> Kernel | MovingKernel:
        """A kernel with the weights as they are now."""
        versions: Versions = tuple((w.data_ptr(), w._version) for w in weights.values())
        if self._packed is None or self._packed[0] != versions:
            self._packed = (versions, self._kernel.prepare(**weights))
        return self._packed[1]

    @property
    def _device_type(self) -> str:
        return next((p.device.type for p in self.parameters()), "cpu")

    def _compile(self) -> None:
        kind = self._device_type
        self._kernel: Kernel | MovingKernel = compile_program(
            self.program, "cuda" if kind == "cuda" else "cpu", **self.options
        )
        self._kind, self._packed = kind, None

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Module:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self._device_type != self._kind:
            self._compile()
        return self


def module(program: Program, /, *, options: dict[str, Any] | None = None, **weights: torch.Tensor) -> Module:
    """A program as a layer: y = tg.module(gpt3_mlp(M=16), w1=…, w2=…)(x).

    weights: a tensor for each weight of the program; an nn.Parameter stays what it is, others ask for no
    gradient. options: of tg.compile.

    Raises:
        SpecError: program is no Program.
        ArgumentError: a weight is missing, unknown, or no tensor.
        PlanError, TargetError, CompileError: as tg.compile.
    """
    known = [t.name for t in as_program(program).arguments if t.role == "weight"]
    for name, weight in weights.items():
        if name not in known:
            near = "".join(f" (nearest: {n!r})" for n in get_close_matches(name, known, 1))
            listed = ", ".join(known) or "none"
            raise ArgumentError(f"module: {name!r} is no weight of {program.name}{near}; they are {listed}")
        if not isinstance(weight, torch.Tensor):
            raise ArgumentError(f"module: {name!r} is a tensor, given {type(weight).__name__}")
    missing = [name for name in known if name not in weights]
    if missing:
        raise ArgumentError(
            f"module: {program.name} has the weights {', '.join(known)}; missing {', '.join(missing)}"
        )
    return Module(program, {name: weights[name] for name in known}, dict(options or {}))
