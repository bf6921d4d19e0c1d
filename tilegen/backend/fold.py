"""Weights of a region, made of the static tensors that it is given: merged, laid out anew, cast.

They are computed once, and again after one of the tensors has changed, as torch counts changes, or after a
step of a fused optimizer, which it does not count. Others that it does not count, such as those through
.data, are not seen: weights_changed() tells of them. Several models may run one region, or layers that are
alike: each has weights of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch.fx import GraphModule
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim.optimizer import register_optimizer_step_post_hook

from tilegen.runtime.kept import kept

_uncounted = 0  # changes of weights anywhere that torch's versions do not count


def weights_changed() -> None:
    """Tells `torch.compile(…, backend="tilegen")` that weights were changed in a way that torch does not
    count, such as through `.data`, NumPy, or a flat tensor that they are views of.

    What regions keep of weights, merged or laid out anew, is computed again at their next calls.
    """
    global _uncounted
    _uncounted += 1


def _after_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    if any(group.get("fused") for group in optimizer.param_groups):
        weights_changed()


register_optimizer_step_post_hook(_after_step)

_gone: Any = torch.UntypedStorage._expired
_address, _version = attrgetter("cdata"), attrgetter("_version")
Place = tuple[int, torch.Size]  # an address, and the shape of a tensor there


@dataclass(frozen=True)
class _Made:
    """Weights. made_of: the tensors that they are made of. versions: how often all and each were changed
    before. storages: its memory, which this does not keep."""

    weights: tuple[torch.Tensor, ...]
    made_of: tuple[Place, ...]
    versions: tuple[int, ...]
    storages: tuple[StorageWeakRef, ...]

    @property
    def gone(self) -> bool:
        return any(map(_gone, map(_address, self.storages)))


class Fold:
    """static tensors → weights on a device."""

    alive: list[Fold] = []

    def __init__(self, module: GraphModule, device: torch.device):
        self._module, self._device = module, device
        self._made: dict[tuple[int, ...], _Made] = {}
        Fold.alive.append(self)

    def __call__(self, static: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        if any(map(torch.Tensor.is_inference, static)):  # whose changes torch does not count
            return self._weights(static)
        # no frame of Python's for each: there may be hundreds, and this is done at each call
        where, versions = tuple(map(torch.Tensor.data_ptr, static)), (_uncounted, *map(_version, static))
        made = self._made.get(where)
        if made is None or made.versions != versions or made.gone:
            if _captures(self._device):  # nothing is computed before a replay
                return self._weights(static)
            self._made = {at: other for at, other in self._made.items() if not other.gone}
            made = self._made[where] = self._anew(static, versions, self._made.get(where))
        return made.weights

    def of(self, places: set[Place]) -> list[tuple[Place, ...]]:
        """Of what its weights are made, where that is all among these."""
        return [made.made_of for made in self._made.values() if places.issuperset(made.made_of)]

    def _anew(self, static: Sequence[torch.Tensor], versions: tuple[int, ...], before: _Made | None) -> _Made:
        """before: weights of the same tensors. They are written: a CUDA graph may read them."""
        weights = kept(lambda: self._weights(static), self._device)
        if before is not None:
            for old, new in zip(before.weights, weights, strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)
            weights = before.weights
        weak: Any = StorageWeakRef
        storages = tuple(weak(a.untyped_storage()) for a in static)
        places = tuple((a.data_ptr(), a.shape) for a in static)
        return _Made(weights, places, versions, storages)

    def _weights(self, static: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        with torch.inference_mode(False), torch.no_grad():  # they may be written outside of it
            return tuple(w.to(self._device).contiguous() for w in self._module(*static))


def _captures(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def refolding(compiled: Callable[..., Any], static: Sequence[int]) -> Callable[..., Any]:
    """A compiled function whose replays of CUDA graphs read what its static arguments are now. static: which
    of its arguments those are.

    A replay runs no operator, so what regions keep of changed tensors is computed anew before it.
    """
    before: tuple[tuple[int, ...], ...] = ()
    places: list[Place] = []
    counted: list[int] | None = None  # those whose changes torch counts

    @functools.wraps(compiled)
    def run(*args: Any) -> Any:
        nonlocal before, places, counted
        given = args[0] if isinstance(args[0], list) else args  # a list, which is emptied, or one by one
        if counted is None:
            counted = [n for n in static if not given[n].is_inference()]
        tensors = tuple(map(given.__getitem__, counted))
        # what has the name of one before and other memory makes Inductor capture anew
        now = tuple(map(id, tensors)), (_uncounted, *map(_version, tensors))
        if now != before:
            at = {place: n for n, place in enumerate(places)}
            known = set(at)
            for fold in Fold.alive:
                for made_of in fold.of(known):
                    fold([tensors[at[place]] for place in made_of])
            before, places = now, [(a.data_ptr(), a.shape) for a in tensors]
        return compiled(*args)

    return run
