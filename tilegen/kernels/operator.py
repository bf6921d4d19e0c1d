"""A kernel as an operator of PyTorch.

    y = torch.ops.tilegen.NAME(x, w1, w2)        NAME: kernel.operator, the program's name and a hash

torch.compile, torch.export and torch.jit.trace take a call of a kernel as one call of its operator. What they
know of it: a schema, in which states are written in place; a fake implementation, which gives shapes; and,
where no state is written, a gradient:

    ∂L/∂a for arguments a:   the program is computed once more, op by op in torch, and differentiated there

(torch.library: https://docs.pytorch.org/docs/stable/library.html)
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch.library import Library, register_autograd, register_fake

from tilegen.errors import ArgumentError
from tilegen.frontend.program import Program, Tensor
from tilegen.ops.reference import run
from tilegen.runtime.arguments import TORCH_DTYPES
from tilegen.schedule.plan import Plan

NAMESPACE = "tilegen"
MOST = 64  # parameters of a schema
_operators: Any = Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
_kernels: weakref.WeakValueDictionary[str, Kernel] = weakref.WeakValueDictionary()  # by their operator's name
_defined: set[str] = set()


class Kernel(Protocol):
    """What is asked of a kernel (tilegen.kernels.kernel)."""

    plan: Plan
    given: tuple[Tensor, ...]
    program: Program | None

    @property
    def arguments(self) -> tuple[Tensor, ...]: ...
    @property
    def target(self) -> str: ...
    @property
    def bound(self) -> Mapping[str, torch.Tensor]: ...
    @property
    def differentiable(self) -> bool: ...
    def launched(self, arguments: Sequence[torch.Tensor], out: Any = None) -> Any: ...


def name_of(kernel: Kernel) -> str:
    """The name of the kernel's operator below torch.ops.tilegen, which is registered by the first call.

    It is the same wherever the same plan is compiled for the same target. A kernel that prepare() has made
    has an operator of its own, whose weights are constants.
    """
    found = kernel.__dict__.get("_operator")
    if found is None:
        found = kernel.__dict__["_operator"] = _name(kernel)
        _kernels[found] = kernel
        if found not in _defined:
            _define(found, kernel)
            _defined.add(found)
    return str(found)


# torch.compile calls it while it traces, and goes on with the name
name_of._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _name(kernel: Kernel) -> str:
    what = [kernel.plan.digest, kernel.target, type(kernel).__name__]
    if kernel.given != kernel.arguments:
        what.append(str(id(kernel)))
    return f"{kernel.plan.program}_{hashlib.sha256(' '.join(what).encode()).hexdigest()[:12]}"


def _define(name: str, kernel: Kernel) -> None:
    outputs = [kernel.plan.graph.tensors[n] for n in kernel.plan.outputs]
    gives = "Tensor" if len(outputs) == 1 else f"({', '.join(['Tensor'] * len(outputs))})"
    _operators.define(f"{name}({_parameters(kernel.given)}) -> {gives}", tags=(torch.Tag.pt2_compliant_tag,))

    def launched(*given: Any) -> Any:
        found = _kernels.get(name)
        if found is None:
            raise ArgumentError(
                f"torch.ops.{NAMESPACE}.{name}: its kernel is gone; keep it while it may be called"
            )
        return found.launched(_flat(given))

    def fake(*given: Any) -> Any:
        made = [given[0].new_empty(t.shape, dtype=TORCH_DTYPES[t.dtype]) for t in outputs]
        return made[0] if len(made) == 1 else tuple(made)

    _operators.impl(name, launched, "CompositeExplicitAutograd")
    register_fake(f"{NAMESPACE}::{name}", fake, lib=_operators)
    if kernel.differentiable:
        backward = _backward(kernel)
        register_autograd(f"{NAMESPACE}::{name}", backward, setup_context=_keep_arguments, lib=_operators)


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


def _backward(kernel: Kernel) -> Any:
    program, names, bound = kernel.program, [t.name for t in kernel.given], kernel.bound
    assert program is not None

    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        wanted = _flat(ctx.needs_input_grad)
        with torch.enable_grad():
            held = [a.detach().requires_grad_(w) for a, w in zip(ctx.saved_tensors, wanted, strict=True)]
            named = {**bound, **dict(zip(names, held, strict=True))}
            made = run(program, [named[t.name] for t in program.arguments])
            results = made if isinstance(made, tuple) else (made,)
            found = torch.autograd.grad(
                results,
                [a for a in held if a.requires_grad],
                [g.to(r.dtype) for g, r in zip(gradients, results, strict=True)],
                allow_unused=True,
            )
        left = iter(found)
        return folded([next(left) if w else None for w in wanted])

    return backward


def recording() -> bool:
    """Whether torch records operations instead of running them."""
    return bool(torch._C._len_torch_dispatch_stack() or torch._C._is_tracing())
