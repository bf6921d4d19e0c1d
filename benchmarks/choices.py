"""What Inductor has timed, kept from call to call: for models of which it takes longer than a call may."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from tilegen.bench.compare import save


@contextlib.contextmanager
def kept(file: Path) -> Iterator[float]:
    """While Inductor begins with the choices of `file`, which has each new one, too, as soon as it is known.
    The seconds that calls before spent until their last choice: what they spent after it is counted by
    nobody, so that Inductor seems a little faster than it is. Choices of another GPU or another torch are not
    taken."""
    from torch._inductor.codecache import CacheBase

    system, begun = CacheBase.get_system()["hash"], time.perf_counter()
    found = json.loads(file.read_text()) if file.exists() else {}
    same = found.get("system") == system
    earlier, choices = (float(found["seconds"]), found["cache"]) if same else (0.0, {})
    as_torch_does = CacheBase.update_local_cache

    def noted(own: CacheBase, cache: dict[str, Any]) -> None:
        as_torch_does(own, cache)
        save({"system": system, "seconds": earlier + time.perf_counter() - begun, "cache": cache}, file)

    CacheBase().update_local_cache(choices)
    with mock.patch.object(CacheBase, "update_local_cache", noted):
        yield earlier
