"""A program as a layer of a model: an nn.Module whose parameters are the program's weights.

    layer = tg.module(gpt3_mlp(M=16), w1=…, w2=…);   y = layer(x)

It is trained, saved, moved and copied as any other: state_dict holds the weights under the program's names,
gradients reach them, torch.compile and torch.export take a call as one call of the kernel's operator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

import torch

from tilegen.api import compile as compile_program
from tilegen.errors import ArgumentError
from tilegen.frontend.program import Program
from tilegen.frontend.spec import as_program
from tilegen.kernels.kernel import Kernel
from tilegen.kernels.moving import MovingKernel
from tilegen.nn.adapter import Adapter
from tilegen.nn.importer import imported

Versions = tuple[tuple[int, int], ...]  # address and version of each weight


class Module(torch.nn.Module):
    """y = module(x): a program, its weights parameters.

        layer = tg.module(gpt3_mlp(M=16), w1=…, w2=…)

    weights: a tensor for each weight of the program; an nn.Parameter stays what it is, others ask for no
    gradient. options: of tg.compile.

    The kernel is compiled where the weights are, when the module is made and when it is moved to another
    kind of device. Where no gradient is asked for on a GPU, weights are packed tile by tile once, and again
    after they have changed; a change through .data is one that torch does not count, and is not seen.

    Raises:
        SpecError: program is no Program.
        ArgumentError: a weight is missing, unknown, or no tensor.
        PlanError, TargetError, CompileError: as tg.compile.
    """

    def __init__(
        self,
        program: Program,
        /,
        *,
        options: dict[str, Any] | None = None,
        adapter: Adapter | None = None,
        **weights: torch.Tensor,
    ):
        super().__init__()
        _refuse(as_program(program), weights)
        self.program, self.options, self._adapter = program, dict(options or {}), adapter
        self._packed: tuple[Versions, Kernel | MovingKernel] | None = None
        self._taken = tuple(t.name for t in program.arguments if t.role != "weight")
        for t in program.arguments:
            if t.role == "weight":
                given = weights[t.name]
                if not isinstance(given, torch.nn.Parameter):
                    given = torch.nn.Parameter(given.detach(), requires_grad=False)
                self.register_parameter(t.name, given)
        self._compile()

    @classmethod
    def from_torch(
        cls,
        module: torch.nn.Module,
        /,
        *args: Any,
        dynamic_shapes: Mapping[str, Any] | None = None,
        options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Module:
        """A module of PyTorch as one kernel: layer = tg.module.from_torch(layer, x), called as before.

        args, kwargs: an example of a call, as for torch.export. What is no tensor in it is fixed; a tensor
        that the module does not look at is not looked at. dynamic_shapes: which size moves, by the names of
        the module's arguments: {"x": {0: tg.dim("B", max=64)}}. options: of tg.compile.

        The module is one for inference (.eval()), where it has dropout or batch norms. Its parameters stay
        shared with the new module, except those that are laid out anew: linears of the same rows become one,
        batch norms go into the convolution before, filters are channels-last. Images are (B, C, H, W) as
        before; in torch.channels_last none is copied.

        Raises:
            SpecError: the module computes what no spec can say; the error names the call, and where it
                stands.
            PlanError, TargetError, CompileError: as tg.compile.
        """
        found = imported(module, args, kwargs, dynamic_shapes)
        return cls(found.program, options=options, adapter=found.adapter, **found.weights)

    @property
    def kernel(self) -> Kernel | MovingKernel:
        """The kernel on the device where the weights are."""
        return self._kernel

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The program's results. inputs: its inputs and states in declaration order, or by name; of a module
        of PyTorch its own arguments."""
        if self._adapter is not None:
            return self._adapter.results(self._called(self._adapter.arguments(inputs, named)))
        if len(inputs) > len(self._taken):
            raise ArgumentError(
                f"{self.program.name} takes {len(self._taken)} inputs ({', '.join(self._taken)}),"
                f" {len(inputs)} were given"
            )
        return self._called({**dict(zip(self._taken, inputs, strict=False)), **named})

    def _called(self, given: dict[str, torch.Tensor]) -> Any:
        weights = dict(self.named_parameters(recurse=False))
        trained = torch.is_grad_enabled() and any(w.requires_grad for w in weights.values())
        if trained or self._kind != "cuda" or torch.compiler.is_compiling():
            return self._kernel(**given, **weights)
        return self._prepared(weights)(**given)

    def extra_repr(self) -> str:
        return repr(self._kernel)

    def _repr_html_(self) -> str:
        return self._kernel._repr_html_()

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


def _refuse(program: Program, weights: Mapping[str, Any]) -> None:
    known = [t.name for t in program.arguments if t.role == "weight"]
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


module = Module
