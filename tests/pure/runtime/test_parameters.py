"""The parameters of a launch: aligned as tensor maps want them, and moved to other addresses without being
encoded anew."""

from __future__ import annotations

import ctypes
import struct

import pytest

import tilegen as tg
import tilegen.runtime.driver as driver
import tilegen.targets.sm90.library as sm90
from tilegen.frontend.loader import load_spec
from tilegen.schedule.moving import MovingPlan
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


def test_moved_is_as_if_encoded_there(library: HopperLibrary) -> None:
    tensors = library.plan.graph.tensors
    here = {name: 4096 * n for n, name in enumerate(tensors, 1)}
    there = {**here, "x": 1 << 20, "down": 1 << 21}
    changed = {"x": 1 << 20, "down": 1 << 21}
    moved = library.moved(library.parameters(here, {}, 1, 2, 3, 0, 17), changed)
    assert [b.raw for b in moved._buffers] == [
        b.raw for b in library.parameters(there, {}, 1, 2, 3, 0, 17)._buffers
    ]


def test_moving_leaves_the_first_as_it_was(library: HopperLibrary) -> None:
    here = {name: 4096 * n for n, name in enumerate(library.plan.graph.tensors, 1)}
    first = library.parameters(here, {}, 1, 2, 3, 0, 17)
    before = [b.raw for b in first._buffers]
    library.moved(first, {"x": 1 << 20})
    assert [b.raw for b in first._buffers] == before


def test_maps_lie_at_multiples_of_64(library: HopperLibrary) -> None:
    here = {name: 4096 * n for n, name in enumerate(library.plan.graph.tensors, 1)}
    made = library.parameters(here, {}, 1, 2, 3, 0, 17)
    assert all(b.address % 64 == 0 for b in (*made._buffers, *library.moved(made, {"x": 64})._buffers))


def test_maps_and_words_follow_the_size(library: HopperLibrary) -> None:
    """The rows of activations and results are those of the size, and the kernel is told it."""
    here = {name: 4096 * n for n, name in enumerate(library.plan.graph.tensors, 1)}
    for size in (1, 65, 300):
        maps, _, words = (b.raw for b in library.parameters(here, {}, 1, 2, 3, 0, size)._buffers)
        assert struct.unpack_from("<3Q", maps)[2] == size  # x: columns, then rows
        assert struct.unpack_from("<4Q", words)[3] == size


def test_an_address_that_the_driver_refuses_is_told(
    library: HopperLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "_replace_address", lambda: lambda at, address: 1)
    here = {name: 4096 * n for n, name in enumerate(library.plan.graph.tensors, 1)}
    with pytest.raises(tg.TargetError, match="does not take the address 0x40"):
        library.moved(library.parameters(here, {}, 1, 2, 3, 0, 17), {"x": 64})
