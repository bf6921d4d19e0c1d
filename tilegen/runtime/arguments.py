"""What a kernel is called with: tensors put in order, and refused with a reason where they do not fit.

    kernel(x, w1, w2) = kernel(x, w2=w2, w1=w1) = kernel(w2=w2, x=x, w1=w1)

A kernel reads and writes memory by address. So a tensor is taken only where it has memory of its own that
holds its values as they are: no FakeTensor, no sparse layout, no view that is negated or conjugated when
read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from tilegen.errors import ArgumentError
from tilegen.frontend.program import DTYPES, Tensor

ALIGNMENT = 16  # bytes: what vector and bulk copies need
TORCH_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPES}


# --- in order ------------------------------------------------------------


def in_order(
    what: str,
    taken: Sequence[Tensor],
    fixed: Mapping[str, Any],
    given: tuple[Any, ...],
    named: Mapping[str, Any],
) -> tuple[Any, ...]:
    """The tensors in declaration order, as Python binds arguments to the parameters of a function.

    taken: the arguments of the call; fixed: those that prepare() has bound.

    Raises:
        ArgumentError: too many tensors, or a name that is unknown, given twice or missing.
    """
    names = [t.name for t in taken]
    for name in named:
        if name in fixed:
            raise ArgumentError(
                f"{what}: {name!r} was fixed by prepare(); the arguments left are {_listed(names)}"
            )
        if name not in names:
            raise ArgumentError(
                f"{what} has no argument {name!r}{_nearest(name, names)}; they are {_listed(names)}"
            )
        if name in names[: len(given)]:
            raise ArgumentError(f"{what}: {name!r} is given twice, by position and by name")
    missing = [name for name in names[len(given) :] if name not in named]
    if missing or len(given) > len(names):
        expected = ", ".join(f"{t.name} {t.shape}" for t in taken)
        lacking = f": missing {_listed(missing)}" if missing else ""
        count = len(given) + len(named)
        raise ArgumentError(f"{what} takes {len(names)} tensors ({expected}), {count} were given{lacking}")
    return (*given, *(named[name] for name in names[len(given) :]))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _nearest(name: str, names: Sequence[str]) -> str:
    found = get_close_matches(name, names, 1)
    return f" (nearest: {found[0]!r})" if found else ""


# --- one tensor ------------------------------------------------------------


def check(t: Tensor, a: Any, device: str = "cpu") -> torch.Tensor:
    """The tensor as the plan wants it, or an ArgumentError.

    A channels_last NCHW tensor is taken as the NHWC view that it is.
    """
    if not isinstance(a, torch.Tensor):
        raise ArgumentError(f"{t.name!r}: expected a torch tensor {t.shape}, given {type(a).__name__}")
    if not (a.is_cuda if device == "cuda" else a.is_cpu):
        raise ArgumentError(f"{t.name!r} is on {a.device}, this kernel was compiled for {device}")
    try:
        address = a.data_ptr()
    except (RuntimeError, ValueError):  # no storage: sparse layouts, wrappers, lazy parameters
        address = 0
    if not address:
        _refuse_withoutmemory(t, a)
    if a.dtype is not TORCH_DTYPES[t.dtype]:
        found = str(a.dtype).removeprefix("torch.")
        raise ArgumentError(f"{t.name!r}: expected dtype {t.dtype}, given {found}{_way_out(a)}")
    if a.requires_grad and torch.is_grad_enabled():
        raise ArgumentError(
            f"{t.name!r} requires grad and grad mode is on; this call has no backward: "
            f"call under torch.no_grad() (or torch.inference_mode()), or pass {t.name}.detach()"
        )
    if a.shape != t.shape:
        a = _channels_last(t, a)
    if not a.is_contiguous():
        strides = tuple(a.stride())
        raise ArgumentError(f"{t.name!r} {t.shape}: expected a contiguous tensor, given strides {strides}")
    if a.is_neg():
        raise ArgumentError(
            f"{t.name!r} is a negated view: its memory holds the values before negation; "
            f"pass {t.name}.resolve_neg()"
        )
    if address % ALIGNMENT:
        raise ArgumentError(
            f"{t.name!r}: its data must start at a multiple of {ALIGNMENT} bytes, it starts at {address:#x}"
        )
    return a


def fixed(
    title: str, arguments: Sequence[Tensor], weights: Mapping[str, torch.Tensor], place: str
) -> dict[str, torch.Tensor]:
    """Arguments as prepare() fixes them, checked.

    Raises:
        ArgumentError: one is none of the arguments, or does not fit.
    """
    known = {t.name: t for t in arguments}
    for name in weights:
        if name not in known:
            listed = ", ".join(known)
            raise ArgumentError(f"prepare: {name!r} is not an argument of {title}; they are {listed}")
    return {name: check(known[name], a, place).detach() for name, a in weights.items()}


def _channels_last(t: Tensor, a: torch.Tensor) -> torch.Tensor:
    """The NHWC view that a channels_last tensor is; ArgumentError where the shape is wrong."""
    if len(t.shape) == a.dim() == 4 and t.form in ("spatial", "filter"):
        permuted = a.permute(0, 2, 3, 1)
        if tuple(permuted.shape) == t.shape and permuted.is_contiguous():
            return permuted
    raise ArgumentError(f"{t.name!r}: expected shape {t.shape}, given {tuple(a.shape)}")


def _refuse_withoutmemory(t: Tensor, a: torch.Tensor) -> None:
    """ArgumentError for a tensor that has elements and no memory for them. An empty one has a wrong shape."""
    if is_lazy(a):
        kind = type(a).__name__
        raise ArgumentError(f"{t.name!r} is an {kind}: run its lazy module once, which gives it a shape")
    if a.layout is not torch.strided:
        way_out = f"pass {t.name}.to_dense()"
        raise ArgumentError(f"{t.name!r} has layout {a.layout}; expected a dense tensor: {way_out}")
    if a.numel():
        wrapper = "wrapper of torch.func (vmap, grad, functionalize)"
        kind = wrapper if type(a) is torch.Tensor else type(a).__name__
        raise ArgumentError(
            f"{t.name!r} is a {kind} without data of its own; a tilegen kernel reads memory: "
            "pass a plain torch.Tensor"
        )


def _way_out(a: torch.Tensor) -> str:
    if a.is_quantized:
        return ", quantised: pass its .dequantize()"
    if a.is_complex():
        return "; pass .real, .imag or torch.view_as_real of its .resolve_conj()"
    return ""


# --- all of them ------------------------------------------------------------


def given_outputs(
    program: str, declared: Sequence[Tensor], out: Any, device: str = "cpu"
) -> list[torch.Tensor]:
    """The tensors of out=, checked: one for each declared output. Whether they lie apart: see
    refuse_shared."""
    given = list(out) if isinstance(out, (tuple, list)) else [out]
    if len(given) != len(declared):
        raise ArgumentError(f"out: {program} has {len(declared)} outputs, {len(given)} were given")
    return [check(t, o, device) for t, o in zip(declared, given, strict=True)]


def refuse_shared(
    declared: Sequence[Tensor], outputs: Sequence[torch.Tensor], held: Mapping[str, torch.Tensor]
) -> None:
    """ArgumentError where an output lies in another's memory, or in an argument's."""
    before = dict(held)
    for t, o in zip(declared, outputs, strict=True):
        shared = overlapping(o, before)
        if shared:
            raise ArgumentError(f"out: {t.name!r} shares memory with {shared!r}")
        before[t.name] = o


def overlapping(a: torch.Tensor, others: Mapping[str, torch.Tensor]) -> str:
    """The name of a tensor that lies in some of this one's memory, or an empty string."""
    begin, end = memory(a)
    for name, b in others.items():
        start, stop = memory(b)
        if start < end and begin < stop:
            return name
    return ""


def memory(a: torch.Tensor) -> tuple[int, int]:
    """From which address up to which a tensor lies; one that repeats an element is as long as that."""
    if a.is_contiguous():
        return a.data_ptr(), a.data_ptr() + a.nbytes
    elements = 1 + sum((n - 1) * by for n, by in zip(a.shape, a.stride(), strict=True))
    return a.data_ptr(), a.data_ptr() + elements * a.element_size()
