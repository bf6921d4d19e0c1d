"""Tensors that a kernel keeps for its next calls, made beside the pools of CUDA graphs.

While Inductor makes a CUDA graph (mode="reduce-overhead"), torch's allocator gives the thread that does so
memory of the graph's pool, and Inductor refuses what stays alive in it. So another thread makes them.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import torch

from tilegen.runtime.driver import beside_a_capture

T = TypeVar("T")


@cache
def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "tilegen-kept")


def kept(make: Callable[[], T], device: torch.device) -> T:
    """make(), on the current stream of a device; where that is captured into a graph, on the default stream:
    make then only allocates."""
    if device.type != "cuda":
        return make()
    capturing = torch.cuda.is_current_stream_capturing()
    stream = torch.cuda.default_stream(device) if capturing else torch.cuda.current_stream(device)

    def made() -> T:
        # memory that the driver gives while another thread captures
        with beside_a_capture(), torch.no_grad(), torch.cuda.stream(stream):
            return make()

    return _thread().submit(made).result()
