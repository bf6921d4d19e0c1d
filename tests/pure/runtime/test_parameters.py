"""The parameters of a launch: aligned as tensor maps want them, and moved to other addresses without being
encoded anew."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping

import pytest

import tilegen as tg
import tilegen.runtime.driver as driver
import tilegen.targets.sm90.library as sm90
from tilegen.frontend.loader import load_spec
from tilegen.runtime.driver import Parameters
from tilegen.schedule.moving import MovingPlan
from tilegen.targets.sm80.library import PortableLibrary
from tilegen.targets.sm90.library import HopperLibrary


def write(at: int, address: int) -> int:
    """What cuTensorMapReplaceAddress does to the maps of `encoded`."""
    ctypes.c_uint64.from_address(at).value = address
    return 0


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> HopperLibrary:
    plan = tg.plan(load_spec("examples/gpt3_mlp.py")(M=tg.dim("M", max=300), H=128, I=128), "h200")
    assert isinstance(plan, MovingPlan)
    monkeypatch.setattr(sm90, "encode", lambda address, m: struct.pack("<16Q", address, *m.shape, *[0] * 13))
    monkeypatch.setattr(driver, "_replace_address", lambda: write)
    return HopperLibrary(plan.open)


def made(library: HopperLibrary, here: Mapping[str, int], size: int = 17) -> Parameters:
    return library.parameters(here, {}, 1, 2, 3, 0, size)


def test_moved_is_as_if_encoded_there(library: HopperLibrary) -> None:
    here = {name: 4096 * n for n, name in enumerate(library.plan.graph.tensors, 1)}
    there = {**here, "x": 1 << 20, "down": 1 << 21}
    parameters = made(library, here)
    address = parameters.address
    for name in ("x", "down"):
        library.place(parameters, name).move(there[name])
    assert parameters.raw == made(library, there).raw != made(library, here).raw
    assert parameters.address == address


def test_pointers_of_the_portable_kernel_are_moved() -> None:
    plan = tg.plan(load_spec("examples/gpt3_mlp.py")(M=16, H=128, I=128), 16, target="sm_80")
    library = PortableLibrary(plan, architecture="sm_80")
    here = {name: 4096 * n for n, name in enumerate(plan.graph.tensors, 1)}
    parameters = library.parameters(here, {}, 1, 2, 3)
    library.place(parameters, "w1").move(1 << 20)
    assert parameters.raw == library.parameters({**here, "w1": 1 << 20}, {}, 1, 2, 3).raw


def test_maps_lie_at_multiples_of_64(library: HopperLibrary) -> None:
    here = {name: 4096 * n for n, name in enumerate(library.plan.graph.tensors, 1)}
    assert all(b.address % 64 == 0 for b in made(library, here)._buffers)


def test_maps_and_words_follow_the_size(library: HopperLibrary) -> None:
    """The rows of activations and results are those of the size, and the kernel is told it."""
    here = {name: 4096 * n for n, name in enumerate(library.plan.graph.tensors, 1)}
    for size in (1, 65, 300):
        maps, _, words = made(library, here, size).raw
        assert struct.unpack_from("<3Q", maps)[2] == size  # x: columns, then rows
        assert struct.unpack_from("<4Q", words)[3] == size


def test_an_address_that_the_driver_refuses_is_told(
    library: HopperLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "_replace_address", lambda: lambda at, address: 1)
    here = {name: 4096 * n for n, name in enumerate(library.plan.graph.tensors, 1)}
    with pytest.raises(tg.TargetError, match="does not take the address 0x40"):
        library.place(made(library, here), "x").move(64)
