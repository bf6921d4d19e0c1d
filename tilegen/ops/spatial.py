"""Tiles of images, (B, H, W): what convolutions, pools and pointwise ops on images are cut into."""

from __future__ import annotations

from collections.abc import Sequence

from tilegen.frontend.program import Size
from tilegen.ops.base import ceil_div


def spatial_tiles(out: tuple[Size, ...], pixels: Sequence[int]) -> list[tuple[int, int, int]]:
    """(tb, th, tw) with about so many pixels each: whole rows where they fit, else squares; several images
    where one is small."""
    b, p, q = (n if isinstance(n, int) else 64 for n in out[:3])
    tiles = []
    for wanted in pixels:
        tw = q if q <= wanted // 2 else next(t for t in range(min(q, 16), 0, -1) if q % t == 0 or t == 8)
        th = max(1, min(p, wanted // tw))
        if th < p:
            th = max((t for t in range(1, th + 1)), key=lambda t: (t * ceil_div(p, t) <= p, t))
        tb = max(1, min(b, wanted // (th * tw))) if th == p and tw == q else 1
        tiles.append((tb, th, tw))
    return list(dict.fromkeys(tiles))
