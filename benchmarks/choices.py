"""What Inductor has timed, kept from call to call and for all models of a run: of some it takes longer than a
call may, and many have linears of the same sizes."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from tilegen.bench.results import save
from tilegen.runtime.cache import locked

Cache = dict[str, Any]  # Inductor's: op → inputs → precision → choice → ms
CHOICES = "choices"


@contextlib.contextmanager
def kept(folder: Path, name: str) -> Iterator[float]:
    """While Inductor takes the choices of `folder` as its own, those that other processes add meanwhile, too,
    and adds each new one as soon as it is known. The seconds that calls before spent on `name` until their
    last choice. What they spent after it is counted by nobody, and what another name's calls have timed is
    counted there, so that Inductor seems faster than it is. Choices of another GPU or another torch are not
    taken."""
    from torch._inductor.codecache import CacheBase

    system, begun = CacheBase.get_system()["hash"], time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    own, shared = folder / f"{name}.json", folder / f"{CHOICES}.json"
    earlier = float(_read(own, system).get("seconds", 0.0))
    torchs, as_torch_does = CacheBase.get_local_cache, CacheBase.update_local_cache

    def known(cache: CacheBase) -> Cache:
        return _joined(_read(shared, system).get("cache", {}), torchs(cache))

    def noted(cache: CacheBase, found: Cache) -> None:
        as_torch_does(cache, found)
        with locked(folder, CHOICES):  # each adds to what is there
            save({"system": system, "cache": _joined(_read(shared, system).get("cache", {}), found)}, shared)
        save({"system": system, "seconds": earlier + time.perf_counter() - begun}, own)

    with (
        mock.patch.object(CacheBase, "get_local_cache", known),
        mock.patch.object(CacheBase, "update_local_cache", noted),
    ):
        yield earlier


def _read(file: Path, system: str) -> dict[str, Any]:
    """What a file holds of this system."""
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return found if found.get("system") == system else {}


def _joined(a: Cache, b: Cache) -> Cache:
    """Both; what both have is b's."""
    found = dict(a)
    for k, v in b.items():
        found[k] = _joined(found[k], v) if isinstance(v, dict) and k in found else v
    return found
