"""Launches of one call as a graph of the driver's.

    start(launch_0), start(launch_1), …  ->  start(graph)

To start a launch takes the host some 5 µs, a graph of many little more. What moves from call to call, the
addresses in the launches' parameters, is set anew in its nodes (CUDA driver API,
cuGraphExecKernelNodeSetParams): launches of it that wait or run keep what they were given. Launches that may
start while the one before ends do so in the graph too.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tilegen.errors import TargetError
from tilegen.runtime.driver import Parameters, Place, beside_a_capture, checked

MOST = 256  # graphs of a process, some 10 KB of memory for each launch of each
logger = logging.getLogger("tilegen")


@dataclass(frozen=True)
class StreamLaunch:
    """One launch of a call on one stream: its configuration and function, parameters that nobody else uses,
    and where the addresses of tensors stand in them."""

    config: Any  # a CUlaunchConfig of cuda.bindings
    function: int
    parameters: Parameters
    places: Mapping[str, Place]


class LaunchGraph:
    """A CUgraphExec of launches one after the other, and for each its node and what that is set by. alive:
    how many there are."""

    alive = 0

    def __init__(self, launches: Sequence[StreamLaunch]):
        from cuda.bindings import driver

        with beside_a_capture():
            self._graph, nodes = _captured(launches)
            try:
                self._exec = checked(driver.cuGraphInstantiate(self._graph, 0))
            except TargetError:
                driver.cuGraphDestroy(self._graph)
                raise
        LaunchGraph.alive += 1
        self.handle = int(self._exec)
        self._parameters = [checked(driver.cuGraphKernelNodeGetParams(node)) for node in nodes]
        for set_by, launch in zip(self._parameters, launches, strict=True):
            set_by.kernelParams = launch.parameters.address
        self.nodes = [
            (int(node), int(set_by.getPtr())) for node, set_by in zip(nodes, self._parameters, strict=True)
        ]

    @staticmethod
    def of(launches: Sequence[StreamLaunch]) -> LaunchGraph | None:
        """None where MOST are alive, since each takes memory, and, with a warning once, where the driver
        makes none: then each launch is started by itself."""
        if LaunchGraph.alive >= MOST:
            return None
        try:
            return LaunchGraph(launches)
        except TargetError as error:
            _warn(str(error))
            return None

    def __del__(self) -> None:
        if hasattr(self, "_exec") and not sys.is_finalizing():
            from cuda.bindings import driver

            LaunchGraph.alive -= 1
            with beside_a_capture():
                driver.cuGraphExecDestroy(self._exec)  # once what was launched of it has ended
                driver.cuGraphDestroy(self._graph)


def _captured(launches: Sequence[StreamLaunch]) -> tuple[Any, list[Any]]:
    """The graph, and the node of each launch: what the next would follow."""
    from cuda.bindings import driver

    stream = checked(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    nodes = []
    try:
        checked(driver.cuStreamBeginCapture(stream, relaxed))
        try:
            for launch in launches:
                usual = int(launch.config.hStream)  # the object that it gives is its own field
                launch.config.hStream = stream
                try:
                    checked(
                        driver.cuLaunchKernelEx(launch.config, launch.function, launch.parameters.address, 0)
                    )
                finally:
                    launch.config.hStream = usual
                nodes.append(_last(stream))
        finally:
            graph = checked(driver.cuStreamEndCapture(stream))
    finally:
        checked(driver.cuStreamDestroy(stream))
    return graph, nodes


def _last(stream: Any) -> Any:
    """The node that was captured last on a stream."""
    from cuda.bindings import driver

    _, _, _, followed, *_ = checked(driver.cuStreamGetCaptureInfo(stream))
    (node,) = followed
    return node


@lru_cache(maxsize=1)
def _warn(why: str) -> None:
    logger.warning("launches of a call are started one by one, which takes the host longer: %s", why)
