"""Launches as a graph of the driver's, with functions of ours in the driver's place."""

from __future__ import annotations

from typing import Any

import pytest

from tilegen.runtime import launch_graph
from tilegen.runtime.driver import Parameters
from tilegen.runtime.launch_graph import LaunchGraph, StreamLaunch

driver = pytest.importorskip("cuda.bindings.driver")
OWN, CAPTURED = 0x1230, 0xDEAD0  # streams


@pytest.fixture
def launches() -> list[StreamLaunch]:
    found = []
    for n in range(3):
        config = driver.CUlaunchConfig()
        config.hStream = OWN
        found.append(StreamLaunch(config, 100 + n, Parameters([bytes(8)]), {}))
    return found


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the driver is told: the stream of each launch, and what is destroyed."""
    seen: list[Any] = []
    nodes = iter(driver.CUgraphNode(n) for n in (11, 12, 13, 14, 15, 16))

    def launch(config: Any, function: Any, parameters: int, extra: int) -> tuple[int]:
        seen.append(int(config.hStream))
        return (0,)

    def destroyed(what: Any) -> tuple[int]:
        seen.append(f"destroyed {int(what)}")
        return (0,)

    functions = {
        "cuThreadExchangeStreamCaptureMode": lambda mode: (0, mode),
        "cuStreamCreate": lambda flags: (0, driver.CUstream(CAPTURED)),
        "cuStreamBeginCapture": lambda stream, mode: (0,),
        "cuLaunchKernelEx": launch,
        "cuStreamGetCaptureInfo": lambda stream: (0, 1, 1, driver.CUgraph(5), [next(nodes)], [None], 1),
        "cuStreamEndCapture": lambda stream: (0, driver.CUgraph(5)),
        "cuStreamDestroy": lambda stream: (0,),
        "cuGraphInstantiate": lambda graph, flags: (0, driver.CUgraphExec(6)),
        "cuGraphKernelNodeGetParams": lambda node: (0, driver.CUDA_KERNEL_NODE_PARAMS()),
        "cuGraphExecDestroy": destroyed,
        "cuGraphDestroy": destroyed,
    }
    for name, function in functions.items():
        monkeypatch.setattr(driver, name, function)
    return seen


def test_launches_are_captured_and_stay_on_their_own_stream(
    launches: list[StreamLaunch], told: list[Any]
) -> None:
    before = LaunchGraph.alive
    graph = LaunchGraph(launches)
    assert told == [CAPTURED] * 3 and [int(n.config.hStream) for n in launches] == [OWN] * 3
    assert graph.handle == 6 and [node for node, _ in graph.nodes] == [11, 12, 13]
    for of_node, launch in zip(graph._parameters, launches, strict=True):
        assert of_node.kernelParams == launch.parameters.address
    assert LaunchGraph.alive == before + 1
    del graph
    assert told[3:] == ["destroyed 6", "destroyed 5"] and LaunchGraph.alive == before


def test_where_the_driver_makes_none_launches_stay_as_they_were(
    launches: list[StreamLaunch],
    told: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    launch_graph._warn.cache_clear()
    monkeypatch.setattr(driver, "cuGraphInstantiate", lambda graph, flags: (2, None))
    assert LaunchGraph.of(launches) is None and "started one by one" in caplog.text
    assert [int(n.config.hStream) for n in launches] == [OWN] * 3 and told[3:] == ["destroyed 5"]


def test_of_many_that_are_alive_no_more_are_made(
    launches: list[StreamLaunch], told: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LaunchGraph, "alive", launch_graph.MOST)
    assert LaunchGraph.of(launches) is None and not told
