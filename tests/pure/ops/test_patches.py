"""Patches of images: the matrix that a linear multiplies instead of a convolution."""

from __future__ import annotations

import math
import random

import pytest
import torch
import torch.nn.functional as F

from tilegen.ops.base import Interval
from tilegen.ops.patches import Patches


def drawn(seed: int) -> Patches:
    """Windows that fit into the padded image."""
    r = random.Random(seed)
    while True:
        size, window = (r.randint(1, 9), r.randint(1, 9)), (r.randint(1, 4), r.randint(1, 4))
        stride, padding, dilation = (tuple(r.randint(least, 3) for _ in "hw") for least in (1, 0, 1))
        rooms = [n + 2 * p - d * (w - 1) for n, p, d, w in zip(size, padding, dilation, window, strict=True)]
        if min(rooms) >= 1:
            result = tuple((room - 1) // s + 1 for room, s in zip(rooms, stride, strict=True))
            return Patches(r.randint(1, 3), size, 2, window, result, stride, padding, dilation)


def columns(p: Patches) -> int:
    return math.prod(p.window) * p.channels


def matrix(p: Patches, x: torch.Tensor) -> torch.Tensor:
    """Row by row, as the equation says."""
    images = x.reshape(p.images, *p.size, p.channels)
    out = torch.zeros(p.images * p.rows_of_image, columns(p))
    for i in range(len(out)):
        b, line, pixel = i // p.rows_of_image, i // p.result[1] % p.result[0], i % p.result[1]
        for r in range(p.window[0]):
            for s in range(p.window[1]):
                y = line * p.stride[0] + r * p.dilation[0] - p.padding[0]
                z = pixel * p.stride[1] + s * p.dilation[1] - p.padding[1]
                if 0 <= y < p.size[0] and 0 <= z < p.size[1]:
                    k = (r * p.window[1] + s) * p.channels
                    out[i, k : k + p.channels] = images[b, y, z]
    return out


@pytest.mark.parametrize("seed", range(40))
def test_its_product_with_filters_is_the_convolution(seed: int) -> None:
    p = drawn(seed)
    x = torch.randn(p.images * p.size[0] * p.size[1], p.channels)
    w = torch.randn(3, columns(p))
    assert torch.allclose(p.multiplied(x, w), matrix(p, x) @ w.T, atol=1e-4)


@pytest.mark.parametrize("seed", range(40))
def test_every_first_pixel_of_a_patch_lies_in_the_box_and_rows_fill_it(seed: int) -> None:
    """As a bulk copy in im2col mode walks it: from the lower corner on, a stride at a time, to the upper."""
    p = drawn(seed)
    for lower, upper, size, stride, count in zip(*p.corners, p.size, p.stride, p.result, strict=True):
        assert len(range(lower, size + upper, stride)) == count


@pytest.mark.parametrize("seed", range(40))
def test_rows_see_no_pixel_of_another_image(seed: int) -> None:
    """What is changed outside of the rows of x that are seen changes nothing."""
    p, r = drawn(seed), random.Random(seed)
    rows = p.images * p.rows_of_image
    lo = r.randrange(rows)
    hi = r.randint(lo + 1, rows)
    seen = p.seen(Interval(lo, hi))
    x = torch.randn(p.images * p.size[0] * p.size[1], p.channels)
    other = torch.full_like(x, float("nan"))
    other[int(seen.lo) : int(seen.hi)] = x[int(seen.lo) : int(seen.hi)]
    assert torch.equal(matrix(p, x)[lo:hi], matrix(p, other)[lo:hi])


def test_what_a_filter_leaves_out_is_not_counted() -> None:
    whole = Patches(2, (8, 8), 64, (3, 3), (4, 4), (2, 2), (1, 1), (1, 1))
    every_second = Patches(2, (8, 8), 64, (1, 1), (4, 4), (2, 2), (0, 0), (1, 1))
    assert (whole.numbers, every_second.numbers) == (2 * 64 * 64, 2 * 16 * 64)


def test_multiplied_is_torchs_convolution_of_whole_images() -> None:
    p = Patches(2, (5, 6), 4, (3, 3), (5, 6), (1, 1), (1, 1), (1, 1))
    x, w = torch.randn(2, 5, 6, 4), torch.randn(7, 3, 3, 4)
    y = F.conv2d(x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2), padding=1).permute(0, 2, 3, 1)
    assert torch.allclose(p.multiplied(x.reshape(-1, 4), w.reshape(7, -1)), y.reshape(-1, 7), atol=1e-5)
