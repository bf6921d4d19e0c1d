"""Weights of a region, made of the static tensors that it is given: merged, laid out anew, cast.

They are computed once, and again after one of the tensors has changed; a change through .data is one that
torch does not count, and is not seen. Several models may run one region, or layers that are alike: each has
weights of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule
from torch.multiprocessing.reductions import StorageWeakRef

_gone: Any = torch.UntypedStorage._expired


@dataclass(frozen=True)
class _Made:
    """Weights. versions: how often each tensor that they are made of was changed before. storages: its
    memory, which this does not keep. addresses: by which torch knows that."""

    weights: tuple[torch.Tensor, ...]
    versions: tuple[int, ...]
    storages: tuple[StorageWeakRef, ...]
    addresses: tuple[int, ...]

    @property
    def gone(self) -> bool:
        return any(map(_gone, self.addresses))


class Fold:
    """static tensors → weights on a device."""

    def __init__(self, module: GraphModule, device: torch.device):
        self._module, self._device = module, device
        self._made: dict[tuple[int, ...], _Made] = {}

    def __call__(self, static: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        if any(a.is_inference() for a in static):  # whose changes torch does not count
            return self._weights(static)
        where = tuple(a.data_ptr() for a in static)
        versions = tuple(a._version for a in static)
        made = self._made.get(where)
        if made is None or made.versions != versions or made.gone:
            self._made = {at: kept for at, kept in self._made.items() if not kept.gone}
            made = self._made[where] = self._make(static, versions)
        return made.weights

    def _make(self, static: Sequence[torch.Tensor], versions: tuple[int, ...]) -> _Made:
        weak: Any = StorageWeakRef
        storages = tuple(weak(a.untyped_storage()) for a in static)
        return _Made(self._weights(static), versions, storages, tuple(s.cdata for s in storages))

    def _weights(self, static: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            return tuple(w.to(self._device).contiguous() for w in self._module(*static))
