"""Block masks of attention: a table of which blocks of keys each block of queries sees, fixed in a program.

    query i sees key j only where table[⌊i/bq⌋][⌊j/bk⌋]

Tiles take the blocks of their own steps of which any query sees any key, whatever sizes the table's have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tilegen.frontend.program import Size
from tilegen.ops.base import ceil_div, need
from tilegen.ops.listed import Numbers

Rows = tuple[tuple[bool, ...], ...]
WORD = 16  # blocks of keys in a number of KeyBlocks.hidden
FEWEST = 64  # keys of a block that are still worth a step of their own


def checked_mask(given: Any, size: Any, q_len: Size, k_len: Size, at: bool, where: str) -> tuple[Rows, Any]:
    """A table and its block size as attributes have them: rows of bools, (bq, bk)."""
    need(not at, "attention: a block_mask is of sequences without caches, given at", where)
    fixed = isinstance(q_len, int) and isinstance(k_len, int)
    need(fixed, f"attention: {q_len} queries and {k_len} keys beside a block_mask, expected numbers", where)
    pair = (size, size) if isinstance(size, int) else size
    whole = isinstance(pair, Sequence) and len(pair) == 2
    need(
        whole and all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in pair),
        f"attention: block_size is a positive int, or one of queries and one of keys, given {size!r}",
        where,
    )
    rows = given.tolist() if hasattr(given, "tolist") else given
    shape = ceil_div(q_len, pair[0]), ceil_div(k_len, pair[1])
    need(
        isinstance(rows, Sequence)
        and len(rows) == shape[0]
        and all(isinstance(row, Sequence) and len(row) == shape[1] for row in rows)
        and all(isinstance(n, int) and n in (0, 1) for row in rows for n in row),
        f"attention: block_mask is a table of {shape[0]} x {shape[1]} bools, of {q_len} queries by {pair[0]}"
        f" and {k_len} keys by {pair[1]}, given {_said(rows)}",
        where,
    )
    return tuple(tuple(bool(n) for n in row) for row in rows), (int(pair[0]), int(pair[1]))


def _said(rows: Any) -> str:
    if not (isinstance(rows, Sequence) and rows and all(isinstance(row, Sequence) for row in rows)):
        return repr(rows)
    lengths = sorted({len(row) for row in rows})
    return f"{len(rows)} rows of {' and '.join(map(str, lengths))}"


def fitting(mask: Any, keys: int) -> int:
    """How many keys a step of a tile has best, of up to so many: a part of a block of the mask, so that no
    step is of keys that are seen in part. mask: AttentionAttributes."""
    if mask.block_mask is None:
        return keys
    whole = [n for n in range(keys // 16 * 16, FEWEST - 1, -16) if mask.block_size[1] % n == 0]
    return whole[0] if whole else keys


@dataclass(frozen=True)
class KeyBlocks:
    """What tiles of some queries take of the keys, in blocks of their steps.

    taken: of each tile of queries, ascending, the blocks of keys of which any query sees any; where there are
    none, the first, of which then none is seen. partial: whether the table hides any of them from any query.
    hidden: by blocks of the table, what it hides: bits of whole numbers, so many numbers a row.
    """

    taken: tuple[tuple[int, ...], ...]
    partial: tuple[tuple[bool, ...], ...]
    hidden: tuple[tuple[int, ...], ...]

    @property
    def most(self) -> int:
        """Steps of the tile that has the most."""
        return max(map(len, self.taken))

    @property
    def masks(self) -> bool:
        """Whether the table hides keys inside of steps."""
        return any(map(any, self.partial))

    def steps(self, op: str) -> Numbers:
        """How many each tile takes."""
        return Numbers(f"tg_{op}_steps", [len(row) for row in self.taken])

    def keys(self, op: str) -> Numbers:
        """Which, a tile behind the other, each with room for the most."""
        return Numbers(f"tg_{op}_keys", [n for row in self.taken for n in _filled(row, self.most)])

    def parts(self, op: str) -> Numbers:
        """Whether they are partial, likewise."""
        return Numbers(f"tg_{op}_partial", [int(n) for row in self.partial for n in _filled(row, self.most)])

    def bits(self, op: str) -> Numbers:
        return Numbers(f"tg_{op}_hidden", [n for row in self.hidden for n in row])


def _filled(row: Sequence[int], count: int) -> list[int]:
    return [*row, *[row[-1]] * (count - len(row))]


@lru_cache(maxsize=256)
def key_blocks(a: Any, queries: int, keys: int) -> KeyBlocks:
    """Of tiles of so many queries, and steps of so many keys. a: AttentionAttributes with a block_mask."""
    (bq, bk), table = a.block_size, np.array(a.block_mask, dtype=bool)
    rows, columns = _cuts(a.q_len, queries, bq), _cuts(a.k_len, keys, bk)
    told = table[np.ix_(rows[:-1] // bq, columns[:-1] // bk)]  # of each piece of queries and keys
    seen = told & _in_band(a, rows, columns)
    of_tiles = np.flatnonzero(rows[:-1] % queries == 0), np.flatnonzero(columns[:-1] % keys == 0)

    def any_of(pieces: Any) -> Any:
        by_tile = np.logical_or.reduceat(pieces, of_tiles[0], axis=0)
        return np.logical_or.reduceat(by_tile, of_tiles[1], axis=1)

    takes, hides = any_of(seen), any_of(~told)
    taken = tuple(tuple(np.flatnonzero(row).tolist()) or (0,) for row in takes)
    partial = tuple(tuple(bool(hides[i, n]) for n in row) for i, row in enumerate(taken))
    words = [range(at, min(at + WORD, table.shape[1])) for at in range(0, table.shape[1], WORD)]
    hidden = tuple(tuple(sum(1 << n % WORD for n in w if not row[n]) for w in words) for row in a.block_mask)
    return KeyBlocks(taken, partial, hidden)


def _cuts(size: int, *every: int) -> Any:
    """Where pieces of a range begin that is cut by tiles and by blocks, and its end."""
    return np.unique(np.concatenate([*(np.arange(0, size, n) for n in every), [size]]))


def _in_band(a: Any, rows: Any, columns: Any) -> Any:
    """Of each piece whether all else lets any of its queries see any of its keys."""
    if not a.causal:
        return True
    before = a.k_len - a.q_len  # keys before the first query's own
    nearest = columns[None, :-1] - (rows[1:, None] - 1) - before  # how far a key is ahead of a query at least
    furthest = columns[None, 1:] - 1 - rows[:-1, None] - before
    band = nearest <= 0
    if a.window is not None:
        band = band & (furthest > -a.window)
    return band if a.prefix is None else band | (columns[None, :-1] < a.prefix)


def hidden_keys(a: Any, device: Any) -> Any:
    """[q_len, k_len]: what the table hides."""
    import torch

    (bq, bk), table = a.block_size, ~torch.tensor(a.block_mask, device=device)
    return table.repeat_interleave(bq, 0)[: a.q_len].repeat_interleave(bk, 1)[:, : a.k_len]
