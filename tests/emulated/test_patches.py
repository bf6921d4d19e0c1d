"""Convolutions as linears of patches, on the emulator: right whatever comes in between, and a bulk copy that
moves another pixel, or too few, is seen."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilegen as tg
from tests.emulated.kernels import emulated, replaced
from tests.gpu.gemms import Case
from tests.gpu.ops import PATCHES, patches
from tilegen.runtime.data import relative_error

BY_NAME = {c.name: c for c in PATCHES}
PLAIN, DEEP = BY_NAME["patches, two images in a tile"], BY_NAME["patches, stride 2, two blocks in a step"]
NARROW = BY_NAME["patches, 96 channels, swapped"]
FAULTS = [
    (PLAIN, "another pixel of the filter", "(64 * k) / 64 % 3", "(64 * k + 64) / 64 % 3"),
    (PLAIN, "another line of the filter", "(64 * k) / 192", "(64 * k + 64) / 192"),
    (PLAIN, "patches that begin a pixel late", "* ACROSS - BEFORE", "* ACROSS - BEFORE + 1"),
    (PLAIN, "patches of the next image", "row / (LINES * PIXELS)", "(row + 40) / (LINES * PIXELS)"),
    (PLAIN, "fewer bytes than are expected", "tg_expect(bar, 16384)", "tg_expect(bar, 16383)"),
    (DEEP, "the channels of the other block", "(128 * k + 64) % 128", "(128 * k) % 128"),
    (NARROW, "a slice of the last block too few", "LAST_SLICES = 2", "LAST_SLICES = 1"),
    (NARROW, "the next pixel's filter a block early", "maps.conv_b, 96 * k + 64", "maps.conv_b, 96 * k + 32"),
]


@pytest.mark.parametrize("case", PATCHES, ids=lambda c: c.name)
def test_right_under_every_adversary(case: Case) -> None:
    assert emulated(case, range(2)) == ""


@pytest.mark.parametrize(("case", "what", "old", "new"), FAULTS, ids=[what for _, what, _, _ in FAULTS])
def test_a_fault_is_seen(case: Case, what: str, old: str, new: Any) -> None:
    assert emulated(case, range(4), replaced(old, new)) != ""


@pytest.mark.parametrize(
    "options",
    [{"tiles": {"conv": (128, 64, 64)}}, {"tiles": {"conv": (128, 128, 64)}, "cluster": {"conv": "2:n"}}],
)
def test_where_the_batch_moves_each_size_is_right(options: dict[str, Any]) -> None:
    kernel = tg.compile(patches(B=tg.dim("B", max=5), HW=7, N=128), "cuda-emulated", on=4, **options)
    w, b = torch.randn(128, 3, 3, 64).bfloat16(), torch.randn(128).bfloat16()
    for images in (1, 2, 5):
        x = torch.randn(images, 7, 7, 64).bfloat16()
        want = tg.reference(patches(B=images, HW=7, N=128), x, w, b)
        assert relative_error(kernel(x, w, b), want) < 5e-3
