"""A program as a layer of a model: an nn.Module whose parameters are the program's weights.

    layer = tg.module(gpt3_mlp(M=16), w1=…, w2=…);   y = layer(x)

It is trained, saved, moved and copied as any other: state_dict holds the weights under the program's names,
gradients reach them, torch.compile and torch.export take a call as one call of the kernel's operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain
from operator import is_
from typing import Any

import torch
from torch.compiler import is_compiling, is_dynamo_compiling

from tilegen.api import compile as compile_program
from tilegen.errors import ArgumentError
from tilegen.frontend.program import Program
from tilegen.frontend.spec import as_program
from tilegen.graph.fuse_norms import NORM
from tilegen.kernels.gpu_kernel import without_memory
from tilegen.kernels.kernel import Kernel
from tilegen.kernels.moving import MovingKernel
from tilegen.nn.adapter import Adapter
from tilegen.nn.importer import imported
from tilegen.runtime import fast_call
from tilegen.runtime.arguments import in_order


@dataclass(frozen=True)
class _Packed:
    """A prepared kernel, and the weights that it was made of."""

    weights: tuple[Any, ...]
    versions: list[int]
    kernel: Kernel | MovingKernel

    def holds(self, weights: Iterable[Any]) -> bool:
        """Whether these are the same, and none was written since."""
        return all(map(is_, weights, self.weights)) and self.versions == [w._version for w in self.weights]


class Module(torch.nn.Module):
    """y = module(x): a program, its weights parameters.

        layer = tg.module(gpt3_mlp(M=16), w1=…, w2=…)

    weights: a tensor for each weight of the program; an nn.Parameter stays what it is, others ask for no
    gradient. options: of tg.compile. adapter: how it is called, where from_torch has made it.

    The kernel is compiled where the weights are, or for `device` if there are none, when the module is made
    and when it is moved to another kind of device. Where no gradient is asked for on a GPU, weights are
    packed tile by tile once, and again after they have changed; a change through .data is one that torch does
    not count, and is not seen.

    keep: whether weights are kept as they are beside their packed copies. False: a weight that a GPU's
    launches read packed alone is held so alone, in one copy; its parameter has no memory and reads NaN.
    state_dict, copies, pickles, .to() and training unpack it, bit by bit. Norms are then ops of their own
    (norms="separate"), since a norm's weight cannot be taken out of a packed one again.

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
        keep: bool = True,
        device: torch.device | str = "cpu",
        **weights: torch.Tensor,
    ):
        super().__init__()
        _refuse(as_program(program), weights)
        self.program, self.options, self._adapter, self.keep = program, dict(options or {}), adapter, keep
        if not keep and any(call.kind == NORM for call in program.calls):
            self.options.setdefault("norms", "separate")
        self._packed: _Packed | None = None
        self._fast: Callable[..., Any] | None = None  # calls the packed kernel, or gives NotImplemented
        # in place of parameters that the packed kernel alone holds
        self._dropped: dict[str, torch.nn.Parameter] = {}
        self._inputs = tuple(t for t in program.arguments if t.role != "weight")
        self._taken = tuple(t.name for t in self._inputs)
        for t in program.arguments:
            if t.role == "weight":
                given = weights[t.name]
                if not isinstance(given, torch.nn.Parameter):
                    given = torch.nn.Parameter(given.detach(), requires_grad=False)
                self.register_parameter(t.name, given)
        if not self._parameters:  # .to() moves it as it would weights
            self.register_buffer("_here", torch.empty(0, device=device), persistent=False)
        self._compile()

    @classmethod
    def from_torch(
        cls,
        module: torch.nn.Module,
        /,
        *args: Any,
        dynamic_shapes: Mapping[str, Any] | None = None,
        options: dict[str, Any] | None = None,
        keep: bool = True,
        **kwargs: Any,
    ) -> Module:
        """A module of PyTorch as one kernel: layer = tg.module.from_torch(layer, x), called as before.

        args, kwargs: an example of a call, as for torch.export. What is no tensor in it is fixed; a tensor
        that the module does not look at is not looked at. dynamic_shapes: which size moves, by the names of
        the module's arguments: {"x": {0: tg.dim("B", max=64)}}. options: of tg.compile. keep: as of
        tg.module; False where the module that this one is made from goes away.

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
        leaves = torch.utils._pytree.tree_leaves((args, kwargs))
        device = next((a.device for a in leaves if isinstance(a, torch.Tensor)), "cpu")
        return cls(
            found.program, options=options, adapter=found.adapter, keep=keep, device=device, **found.weights
        )

    @property
    def kernel(self) -> Kernel | MovingKernel:
        """The kernel on the device where the module is."""
        return self._kernel

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The program's results. inputs: its inputs and states in declaration order, or by name; of a module
        of PyTorch its own arguments."""
        if self._adapter is not None:
            return self._adapter.results(self._called(self._adapter.arguments(inputs, named)))
        if named or len(inputs) != len(self._taken):
            inputs = in_order(self.program.name, self._inputs, {}, inputs, named)
        return self._called(inputs)

    def _called(self, given: tuple[Any, ...]) -> Any:
        """On its inputs and states, in order."""
        if not is_dynamo_compiling() and self._fast is not None:
            results = self._fast(*given)
            if results is not NotImplemented:
                return results
        if torch.is_grad_enabled() and any(w.requires_grad for w in self.parameters()):
            self._restore()
        elif self._kind == "cuda" and not is_compiling():
            results = self._prepared()(*given)
            self._remember()
            return results
        elif self._dropped and self._packed is not None:  # while torch.compile traces
            return self._packed.kernel(*given)
        weights: Any = self._parameters
        return self._kernel(**dict(zip(self._taken, given, strict=True)), **weights)

    def extra_repr(self) -> str:
        return repr(self._kernel)

    def _repr_html_(self) -> str:
        return self._kernel._repr_html_()

    def _prepared(self) -> Kernel | MovingKernel:
        """A kernel with the weights as they are now."""
        weights: Any = self._parameters.values()
        if self._packed is None or not self._packed.holds(weights):
            self._packed = self._pack()
        return self._packed.kernel

    def _remember(self) -> None:
        """From now on `_fast` makes calls, as long as the weights are as they are."""
        packed = self._packed
        if packed is not None and packed.kernel.fast is not None:
            parameters: Any = self._parameters
            self._fast = fast_call.of_packed(packed.kernel.fast, parameters, packed.versions)

    def _pack(self) -> _Packed:
        self._restore()
        self._fast = None  # of the kernel before, which goes away
        named: Any = self._parameters
        once = None if self.keep else frozenset(self._kernel.held_packed(frozenset(named)))
        kernel = self._kernel.prepared(named, {}, once)
        for name in once or ():
            place = torch.nn.Parameter(without_memory(named[name].detach()), named[name].requires_grad)
            named[name] = self._dropped[name] = place
        return _Packed(tuple(named.values()), [w._version for w in named.values()], kernel)

    # --- weights that are held packed alone ---------------------------------------------------------------

    def _whole(self) -> dict[str, torch.nn.Parameter | None]:
        """Its parameters, those that were dropped unpacked."""
        found = dict(self._parameters)
        for name, place in self._dropped.items():
            if found[name] is place:  # not another one meanwhile
                assert self._packed
                found[name] = torch.nn.Parameter(self._packed.kernel.unpacked(name), place.requires_grad)
        return found

    def _restore(self) -> None:
        """All parameters as they were. The next call that asks for no gradient drops them again."""
        if self._dropped:
            self._parameters.update(self._whole())
            self._dropped, self._packed, self._fast = {}, None, None

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        whole = self._whole()
        for name in self._dropped:
            weight: Any = whole[name]
            destination[prefix + name] = weight if keep_vars else weight.detach()

    def _load_from_state_dict(self, *given: Any) -> None:
        self._restore()
        super()._load_from_state_dict(*given)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_parameters": self._whole(), "_packed": None, "_fast": None, "_dropped": {}}

    @property
    def _device_type(self) -> str:
        return next(chain(self.parameters(), self.buffers())).device.type

    def _compile(self) -> None:
        kind = self._device_type
        self._kernel: Kernel | MovingKernel = compile_program(
            self.program, "cuda" if kind == "cuda" else "cpu", **self.options
        )
        self._kind, self._packed, self._fast = kind, None, None
        if kind == "cuda" and not self.keep:
            self._prepared()

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Module:
        self._restore()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._packed = self._fast = None  # weights may have moved without another version
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
