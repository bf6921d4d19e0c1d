"""Rows of whole numbers, given as columns: sorted, each once, in runs. A large grid has millions of them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from tilegen.analysis.regions import Array


def distinct(*columns: Array) -> tuple[Array, ...]:
    """The distinct rows in lexicographic order.

    Where it fits into 63 bits, a row becomes one number: NumPy sorts numbers many times as fast as rows.
    """
    low = [int(c.min(initial=0)) for c in columns]
    bits = [(int(c.max(initial=0)) - at).bit_length() for c, at in zip(columns, low, strict=True)]
    if sum(bits) > 63:
        order = np.lexsort(columns[::-1])
        rows = [c[order] for c in columns]
        new = runs(*rows)
        return tuple(c[new] for c in rows)
    key = np.zeros(len(columns[0]), dtype=np.int64)
    for c, at, n in zip(columns, low, bits, strict=True):
        key <<= n
        key += c
        key -= at
    key.sort()
    key = key[runs(key)]
    shifts = [sum(bits[d + 1 :]) for d in range(len(bits))]
    return tuple((key >> shift & (1 << n) - 1) + at for at, n, shift in zip(low, bits, shifts, strict=True))


def runs(*columns: Array) -> Array:
    """Whether each row differs from the one before it; the first does."""
    new = np.zeros(len(columns[0]), dtype=bool)
    new[:1] = True
    for c in columns:
        new[1:] |= c[1:] != c[:-1]
    return new


def numbered(flat: Array, cuts: Array) -> Array:
    """A number for each piece flat[cuts[n] : cuts[n + 1]], equal for equal ones, by first appearance."""
    text, at = flat.tobytes(), (cuts * flat.itemsize).tolist()
    seen: dict[bytes, int] = {}
    return np.array([seen.setdefault(text[a:b], len(seen)) for a, b in pairwise(at)], dtype=np.int64)
