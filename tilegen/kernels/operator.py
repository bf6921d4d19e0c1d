"""A kernel as an operator of PyTorch.

    y = torch.ops.tilegen.NAME(x, w1, w2)        NAME: kernel.operator, the program's name and a hash
    y = torch.ops.tilegen.NAME_grad(x, w1, w2)   the same, with a gradient

torch.compile, torch.export and torch.jit.trace take a call of a kernel as one call of its operator. What they
know of it: a schema, in which states are written in place; a fake implementation, which gives shapes; and,
where no state is written, a gradient:

    ∂L/∂a for arguments a:   the program is computed once more, op by op in torch, and differentiated there

The gradient has an operator of its own: to ask whether one is wanted costs as much as a launch. Where a size
moves, so does it in the shapes that the fake gives, and the gradient is one call (NAME_backward): torch need
not trace the program, whose shapes it would fix.
(torch.library: https://docs.pytorch.org/docs/stable/library.html)
"""

from __future__ import annotations

import hashlib
import itertools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch.compiler import is_dynamo_compiling
from torch.library import Library, register_autograd, register_fake

from tilegen.errors import ArgumentError
from tilegen.frontend.program import Program, Tensor
from tilegen.ops.reference import run
from tilegen.runtime.arguments import TORCH_DTYPES, in_order

NAMESPACE = "tilegen"
MOST = 64  # parameters of a schema
_operators: Any = Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
_numbers = itertools.count()
_by_key: weakref.WeakValueDictionary[str, Kernel] = weakref.WeakValueDictionary()
_by_name: dict[str, weakref.WeakSet[Kernel]] = {}  # of registered operators: those that are called by it


class Kernel(Protocol):
    """What is asked of a kernel (tilegen.kernels.kernel, tilegen.kernels.moving)."""

    key: str
    given: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    moves: bool  # whether its sizes are those of a call's arguments

    @property
    def title(self) -> str: ...
    @property
    def identity(self) -> str: ...
    @property
    def arguments(self) -> tuple[Tensor, ...]: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def bound(self) -> Mapping[str, torch.Tensor]: ...
    def shapes(self, given: Sequence[Any]) -> list[tuple[Any, ...]]: ...
    def program_of(self, given: Sequence[torch.Tensor]) -> Program: ...
    def refuse(self, given: Sequence[torch.Tensor]) -> None: ...
    def launched(self, arguments: Sequence[torch.Tensor], out: Any = None) -> Any: ...


class Called:
    """What can be called as an operator: kernel(x, w1, w2). The rest of a Kernel is up to those below."""

    key: str
    given: tuple[Tensor, ...]
    differentiable: bool  # whether it has a gradient: where the program is known, and writes no state
    # calls it again as it was called before, or gives NotImplemented
    fast: Callable[..., Any] | None = None

    def __call__(self: Any, /, *arguments: torch.Tensor, out: Any = None, **named: torch.Tensor) -> Any:
        if not is_dynamo_compiling() and self.fast is not None and out is None and not named:
            results = self.fast(*arguments)
            if results is not NotImplemented:
                return results
        if named or len(arguments) != len(self.given):
            prepared = ", prepared," if self.bound else ""
            arguments = in_order(self.title + prepared, self.given, self.bound, arguments, named)
        recorded = is_dynamo_compiling() or recording()
        wanted = torch.is_grad_enabled() and self.differentiable and any(map(_requires_grad, arguments))
        if not (recorded or wanted):
            return self.launched(arguments, out)
        if out is not None:
            raise ArgumentError(
                f"out: {self.title} is recorded or differentiated here, and gives new tensors;"
                " leave out= away, or call under torch.no_grad()"
            )
        if not recorded:
            with torch.no_grad():  # what does not fit is named here, as in every call
                self.refuse(arguments)
        return getattr(torch.ops.tilegen, called(f"{self.key}", wanted))(*folded(arguments))

    @property
    def operator(self) -> str:
        """The name of its operator below torch.ops.tilegen.

        It is the same wherever the same plan is compiled for the same target. A kernel that prepare() has
        made has an operator of its own, whose weights are constants.
        """
        return called(self.key, False)


def _requires_grad(a: Any) -> bool:
    return isinstance(a, torch.Tensor) and a.requires_grad


def called(key: str, differentiates: bool) -> str:
    """The name of the operator that a kernel is called by, registered by the first call."""
    kernel = _by_key[key]
    name = _name(kernel) + ("_grad" if differentiates else "")
    if name not in _by_name:
        _by_name[name] = weakref.WeakSet()
        _define(name, kernel, differentiates)
    _by_name[name].add(kernel)
    return name


# torch.compile calls it while it traces, and goes on with the name
called._dynamo_marked_constant = True  # type: ignore[attr-defined]


def key_of(kernel: Kernel) -> str:
    """A key by which `called` knows it: where torch.compile traces, a function is asked of constants only."""
    key = str(next(_numbers))
    _by_key[key] = kernel
    return key


def _name(kernel: Kernel) -> str:
    what = kernel.identity + (f" {kernel.key}" if kernel.given != kernel.arguments else "")
    return f"{kernel.title}_{hashlib.sha256(what.encode()).hexdigest()[:12]}"


def _define(name: str, kernel: Kernel, differentiates: bool) -> None:
    outputs, device = kernel.outputs, kernel.device
    gives = "Tensor" if len(outputs) == 1 else f"({', '.join(['Tensor'] * len(outputs))})"
    _operators.define(f"{name}({_parameters(kernel.given)}) -> {gives}", tags=(torch.Tag.pt2_compliant_tag,))

    last = weakref.ref(kernel)

    def living() -> Kernel:
        return last() or _living(name)

    def launched(*given: Any) -> Any:
        return living().launched(_flat(given))

    def fake(*given: Any) -> Any:
        shapes = living().shapes(_flat(given))
        made = [
            torch.empty(shape, dtype=TORCH_DTYPES[t.dtype], device=device)
            for t, shape in zip(outputs, shapes, strict=True)
        ]
        return made[0] if len(made) == 1 else tuple(made)

    _operators.impl(name, launched, "CompositeExplicitAutograd")
    register_fake(f"{NAMESPACE}::{name}", fake, lib=_operators)
    if differentiates:
        backward = _define_backward(name, living) if kernel.moves else _backward(living)
        register_autograd(f"{NAMESPACE}::{name}", backward, setup_context=_keep_arguments, lib=_operators)


def _living(name: str) -> Kernel:
    """A kernel that is called by this operator and still there."""
    for kernel in _by_name[name]:
        return kernel
    raise ArgumentError(f"torch.ops.{NAMESPACE}.{name}: its kernel is gone; keep it while it may be called")


# --- parameters ---------------------------------------------------------------------------------------------


def _parameters(given: Sequence[Tensor]) -> str:
    """Of the schema: a tensor each; those that are too many for one go into a list at the end."""
    alone = len(given) if len(given) <= MOST else MOST - 1
    listed = [
        f"Tensor(a{n}!) {t.name}_" if t.role == "state" else f"Tensor {t.name}_"
        for n, t in enumerate(given[:alone])
    ]
    if given[alone:]:
        written = any(t.role == "state" for t in given[alone:])
        listed.append(f"Tensor(a{alone}!)[] more_" if written else "Tensor[] more_")
    return ", ".join(listed)


def folded(given: Sequence[Any]) -> tuple[Any, ...]:
    """As the operator takes them."""
    return tuple(given) if len(given) <= MOST else (*given[: MOST - 1], list(given[MOST - 1 :]))


def _flat(given: Sequence[Any]) -> list[Any]:
    """One after the other."""
    return [*given[:-1], *given[-1]] if given and isinstance(given[-1], (list, tuple)) else list(given)


# --- gradients ----------------------------------------------------------------------------------------------


def _keep_arguments(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*_flat(inputs))


def _backward(living: Callable[[], Kernel]) -> Any:
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        wanted = _flat(ctx.needs_input_grad)
        found = iter(_gradients(living(), gradients, ctx.saved_tensors, wanted))
        return folded([next(found) if w else None for w in wanted])

    return backward


def _gradients(
    kernel: Kernel,
    gradients: Sequence[torch.Tensor],
    given: Sequence[torch.Tensor],
    wanted: Sequence[bool],
) -> Sequence[torch.Tensor | None]:
    """Of those arguments that are wanted."""
    with torch.enable_grad():
        held = [a.detach().requires_grad_(w) for a, w in zip(given, wanted, strict=True)]
        named = {**kernel.bound, **{t.name: a for t, a in zip(kernel.given, held, strict=True)}}
        made = run(kernel.program_of(held), [named[t.name] for t in kernel.arguments])
        results = made if isinstance(made, tuple) else (made,)
        # whole numbers have no gradient
        pairs = [(r, g.to(r.dtype)) for r, g in zip(results, gradients, strict=True) if r.requires_grad]
        asked = [a for a in held if a.requires_grad]
        return torch.autograd.grad([r for r, _ in pairs], asked, [g for _, g in pairs], allow_unused=True)


def _define_backward(name: str, living: Callable[[], Kernel]) -> Any:
    """The gradient as an operator: (∂L/∂y of all results, arguments, which are wanted) → ∂L/∂a of those."""
    called = f"{name}_backward"
    _operators.define(
        f"{called}(Tensor[] gradients, Tensor[] given, bool[] wanted) -> Tensor[]",
        tags=(torch.Tag.pt2_compliant_tag,),
    )

    def run_backward(gradients: Any, given: Any, wanted: Any) -> list[torch.Tensor]:
        found = iter(_gradients(living(), gradients, given, wanted))
        asked = [a for a, w in zip(given, wanted, strict=True) if w]
        return [torch.zeros_like(a) if g is None else g for a, g in zip(asked, found, strict=True)]

    def fake(gradients: Any, given: Any, wanted: Any) -> list[torch.Tensor]:
        return [torch.empty_like(a) for a, w in zip(given, wanted, strict=True) if w]

    _operators.impl(called, run_backward, "CompositeExplicitAutograd")
    register_fake(f"{NAMESPACE}::{called}", fake, lib=_operators)

    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        wanted = [bool(w) for w in _flat(ctx.needs_input_grad)]
        operator = getattr(torch.ops.tilegen, called)
        found = iter(operator(list(gradients), list(ctx.saved_tensors), wanted))
        return folded([next(found) if w else None for w in wanted])

    return backward


def recording() -> bool:
    """Whether torch records operations instead of running them."""
    return bool(torch._C._len_torch_dispatch_stack() or torch._C._is_tracing())
