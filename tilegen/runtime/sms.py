"""In which order a GPU hands its SMs to CTAs: GPC by GPC where it is idle. So CTAs of neighbouring numbers
would share a GPC; but behind another launch they come to SMs as these fall free. A kernel that cares looks
which SM it is on."""

from __future__ import annotations

import logging
import struct
import threading
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from tilegen.config import own_templates
from tilegen.errors import TargetError
from tilegen.runtime import cache
from tilegen.runtime.driver import Module
from tilegen.runtime.nvrtc import compile_cuda, version

LAUNCHES, AGREE = 8, 3  # of the probe, and how many must find the same order
SHARED, THREADS = 200 * 1024, 32  # bytes of a CTA, so that an SM holds one; threads

logger = logging.getLogger("tilegen")
_ONE_PROBE = threading.Lock()


def lists_of_sms(lists: int, tiles: int, architecture: str) -> bytes:
    """For each SM 1 + the number of its CTA's list of tiles, by its place in that order; zeros where the
    order is not known: then a list is that of the CTA's own number.

    lists: of a launch, as many as CTAs; tiles: of all lists. Where these are fewer, all GPCs share the lists
    that have one evenly. Runs a kernel, once for each GPU. What else runs on the GPU can make launches
    differ: then the order is not known, and a kernel is slower.
    """
    import torch

    order = _order(torch.cuda.current_device(), architecture)
    return struct.pack(f"<{lists}i", *lists_in_order(order, lists, tiles))


def lists_in_order(order: Sequence[int], lists: int, tiles: int) -> list[int]:
    """The same for an order of all SMs."""
    if len(order) != lists:
        return [0] * lists
    filled = min(lists, tiles)  # the first of them
    empty, found = iter(range(filled, lists)), [0] * lists
    for place, sm in enumerate(order):
        first, after = place * filled // lists, (place + 1) * filled // lists
        found[sm] = 1 + (first if first < after else next(empty))
    return found


@lru_cache
def _order(device: int, architecture: str) -> tuple[int, ...]:
    """SMs; empty where it is not known."""
    import torch

    sms = torch.cuda.get_device_properties(device).multi_processor_count
    module, found = Module(_binary(architecture).read_bytes()), Counter[tuple[int, ...]]()
    with _ONE_PROBE:
        for _ in range(LAUNCHES):
            on = torch.zeros(sms, dtype=torch.int32, device=f"cuda:{device}")
            try:
                module.launch("tg_probe", sms, THREADS, [on.data_ptr()], SHARED)
            except TargetError as error:  # such as where a part of the GPU is given away
                logger.info("the order of %d SMs is not known: %s", sms, error)
                return ()
            found[tuple(on.tolist())] += 1
    (order, times), *_ = found.most_common(1)
    if times < AGREE or sorted(order) != list(range(sms)):
        logger.info("the order of %d SMs is not known: %d launches of %d found it", sms, times, LAUNCHES)
        return ()
    return order


def _binary(architecture: str) -> Path:
    text = (own_templates() / "cuda" / "sm90" / "probe.cu.j2").read_text()

    def build(folder: Path) -> dict[str, str]:
        (folder / "probe.cubin").write_bytes(compile_cuda(text, architecture).code)
        return {"note": f"the order of SMs, {architecture}"}

    key = cache.key_of("probe", text, architecture, version())
    return cache.get_or_build("binaries", key, build)["probe.cubin"]
