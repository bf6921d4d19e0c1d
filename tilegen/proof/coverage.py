"""Every read stands behind a wait for whoever writes what it reads (coverage), and nothing is written twice
(single writer).

A written tensor is cut, per dimension, where some tile's writes begin or end. Inside a *cell* of this grid
all elements have one writer, so that element-wise questions are answered exactly with one array entry per
cell.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilegen.proof.footprint.frame import DIMENSIONS, Array
from tilegen.proof.table import Boxes, Findings, Table

CELLS = 1 << 27  # of one tensor; only a plan made to be hostile has more
CHUNK = 1 << 20  # pairs of a read and a cell looked at in one go
_CTA = 1 << 42  # above every step number

Mask = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Cells:
    """A written tensor's cells and the CTA that writes each (-1: none)."""

    cuts: list[Array]
    owner: Array

    def touched(self, low: Array, high: Array) -> tuple[Array, Array]:
        """Cells [first, end) per dimension between these elements."""
        first = np.stack(
            [np.searchsorted(c, low[:, d], "right") - 1 for d, c in enumerate(self.cuts)], axis=1
        )
        end = np.stack([np.searchsorted(c, high[:, d], "left") for d, c in enumerate(self.cuts)], axis=1)
        return first, end

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(c) - 1 for c in self.cuts)

    def box(self, cell: int) -> tuple[Array, Array]:
        return _corners(self.cuts, np.unravel_index(cell, self.shape))


def _corners(cuts: list[Array], at: Sequence[Any]) -> tuple[Array, Array]:
    return np.array([c[i] for c, i in zip(cuts, at, strict=True)]), np.array(
        [c[i + 1] for c, i in zip(cuts, at, strict=True)]
    )


@dataclass(frozen=True)
class Edges:
    """How many (read, writing CTA) pairs were found in order, by (writer proxy, reader proxy)."""

    reads: int
    tensors: int
    pairs: int
    by_proxy: dict[tuple[int, int], int]
    apart: int  # pairs that need no order: rows before a position are read, rows from it on are written


def _spread(count: Array) -> tuple[Array, Array]:
    """For counts n0, n1, …: 0 n0 times, 1 n1 times, …, and 0…n0-1, 0…n1-1, …"""
    which = np.repeat(np.arange(len(count)), count)
    return which, np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)


def _expand(first: Array, end: Array) -> tuple[Array, Array]:
    """Every point of every box [first, end): which box, and its coordinates."""
    extent = end - first
    which, local = _spread(extent.prod(axis=1))
    at = first[which]
    for d in range(DIMENSIONS - 1, -1, -1):
        if (extent[:, d] > 1).any():
            local, rest = np.divmod(local, extent[which, d])
            at[:, d] += rest
    return which, at


def own(t: Table, findings: Findings) -> dict[int, Cells]:
    """Who writes which cells of each written tensor; reports elements written twice and outputs not fully
    written."""
    cells = {}
    for tensor in np.unique(t.derived.tensor).tolist():
        writes = t.derived.take(t.derived.tensor == tensor)
        shape = [*t.shapes[tensor], *[1] * (DIMENSIONS - len(t.shapes[tensor]))]
        cuts = [
            np.unique(np.concatenate([[0, shape[d]], writes.low[:, d], writes.high[:, d]]))
            for d in range(DIMENSIONS)
        ]
        grid = Cells(cuts, np.zeros(0, np.int64))
        first, end = grid.touched(writes.low, writes.high)
        if math.prod(grid.shape) > CELLS or (end - first).prod(axis=1).sum() > CELLS:
            findings.add(
                "single writer", f"the writes cut tensor {t.tensors[tensor]} into more than {CELLS} pieces"
            )
            continue
        which, at = _expand(first, end)
        flat = np.ravel_multi_index(tuple(at.T), grid.shape)
        owner = np.full(math.prod(grid.shape), -1, np.int64)
        owner[flat] = writes.cta[which]
        cells[tensor] = Cells(cuts, owner)
        _report_double(t, tensor, cells[tensor], flat, writes.cta[which], findings)
    for tensor, role in enumerate(t.roles):
        if role == "output":
            _report_unwritten_output(t, tensor, cells.get(tensor), findings)
    return cells


def _report_double(t: Table, tensor: int, cells: Cells, flat: Array, cta: Array, findings: Findings) -> None:
    order = np.argsort(flat, kind="stable")
    again = np.flatnonzero(np.diff(flat[order]) == 0)
    for i in again.tolist():
        if not findings.room("single writer"):
            break
        one, two = cta[order[i]], cta[order[i + 1]]
        findings.add(
            "single writer",
            f"{t.cta_name(two)} writes {t.box_name(tensor, *cells.box(int(flat[order[i]])))}, which"
            f" {t.cta_name(one)} writes too",
            t.rank(two),
            0,
        )
    if len(again):
        findings.add_count("single writer", len(again))


def _report_unwritten_output(t: Table, tensor: int, cells: Cells | None, findings: Findings) -> None:
    if cells is None:
        findings.add("single writer", f"no tile writes output {t.tensors[tensor]}")
        return
    holes = np.flatnonzero(cells.owner < 0)
    if len(holes):
        findings.add(
            "single writer",
            f"no tile writes {t.box_name(tensor, *cells.box(int(holes[0])))} of output {t.tensors[tensor]}"
            + (f", nor {len(holes) - 1} more such ranges" if len(holes) > 1 else ""),
            None,
            len(holes),
        )


def writes_listed(t: Table, findings: Findings) -> int:
    """The listed writes of a CTA are exactly those that its op says it writes; the count of these."""
    listed = np.bincount(t.writes.cta, minlength=len(t.cta_tile))
    expected = np.full(len(t.cta_tile), -1, np.int64)
    expected[t.derived.cta] = np.arange(len(t.derived.cta))
    mine = expected[t.writes.cta]
    same = (mine >= 0) & (t.writes.tensor == t.derived.tensor[mine]) & (listed[t.writes.cta] == 1)
    for key in ("low", "high", "stride"):
        same &= (getattr(t.writes, key) == getattr(t.derived, key)[mine]).all(axis=1)
    done = np.zeros(len(t.cta_tile), bool)
    done[t.writes.cta[same]] = True
    done |= (listed == 0) & (expected < 0)
    for cta in np.flatnonzero(~done).tolist():
        _compare_writes(t, cta, int(expected[cta]), t.writes.take(t.writes.cta == cta), findings)
    return len(t.derived.cta)


def _compare_writes(t: Table, cta: int, expected: int, listed: Boxes, findings: Findings) -> None:
    """The slow way: several listed boxes may make up the one that the op writes."""
    names = (
        ", ".join(
            t.box_name(int(x), low, high, s)
            for x, low, high, s in zip(listed.tensor, listed.low, listed.high, listed.stride, strict=True)
        )
        or "nothing"
    )
    if expected < 0:
        findings.add(
            "coverage",
            f"{t.cta_name(cta)} lists a write of {names}, its op writes nothing there",
            t.rank(cta),
        )
        return
    d = t.derived
    inside = (listed.tensor == d.tensor[expected]) & (
        (listed.low >= d.low[expected]) & (listed.high <= d.high[expected])
    ).all(axis=1)
    size = int(((listed.high - listed.low - 1) // listed.stride + 1).prod(axis=1).sum())
    whole = size == int((d.high[expected] - d.low[expected]).prod())
    if (
        not inside.all()
        or not whole
        or _gap(d.low[expected], d.high[expected], d.stride[expected], listed) is not None
    ):
        right = t.box_name(int(d.tensor[expected]), d.low[expected], d.high[expected])
        findings.add(
            "coverage",
            f"{t.cta_name(cta)} lists a write of {names}, its op"
            f" {'writes' if t.exact[expected] else 'may write'} {right}",
            t.rank(cta),
        )


def _gap(low: Array, high: Array, stride: Array, boxes: Boxes) -> tuple[Array, Array] | None:
    """A range of the box [low, high) by stride that none of the boxes contains; None: they contain it all."""
    cuts = []
    for d in range(DIMENSIONS):
        ends = np.concatenate([[low[d], high[d]], boxes.low[:, d], boxes.high[:, d]])
        plain = stride[d] == 1 and (boxes.stride[:, d] == 1).all()
        if not plain and (high[d] - low[d]) // stride[d] > CELLS:
            return low, high  # too large to look into: not proved
        cuts.append(
            np.unique(np.clip(ends, low[d], high[d]))
            if plain
            else np.append(np.arange(low[d], high[d], stride[d]), high[d])
        )
    if math.prod(len(c) - 1 for c in cuts) > CELLS:
        return low, high
    missing = np.ones([len(c) - 1 for c in cuts], bool)
    for i in range(len(boxes.cta)):
        inside = [
            (c[:-1] >= boxes.low[i, d])
            & (c[:-1] < boxes.high[i, d])
            & ((c[:-1] - boxes.low[i, d]) % boxes.stride[i, d] == 0)
            for d, c in enumerate(cuts)
        ]
        missing[np.ix_(*inside)] = False
    if not missing.any():
        return None
    return _corners(cuts, np.argwhere(missing)[0])


def reads_listed(t: Table, cells: dict[int, Cells], findings: Findings) -> int:
    """The listed reads of a CTA contain all that its op says it reads, and stand in step order; the count of
    needed reads."""
    tensors = len(t.tensors)
    key = t.reads.cta * tensors + t.reads.tensor
    order = np.argsort(key, kind="stable")
    wanted = t.needs.cta * tensors + t.needs.tensor
    left, right = np.searchsorted(key[order], wanted, "left"), np.searchsorted(key[order], wanted, "right")
    need, offset = _spread(right - left)
    read = order[left[need] + offset]
    _report_unlisted(t, cells, order, left, right, _within(t, need, read), need, findings)
    _report_disorder(t, cells, need, read, findings)
    known = np.isin(key, wanted)
    for i in np.flatnonzero(~known).tolist():
        findings.add(
            "coverage", f"{t.read_name(i)}, a tensor that its op does not read", t.rank(t.reads.cta[i])
        )
    return len(t.needs.cta)


def _within(t: Table, need: Array, read: Array) -> Mask:
    """Whether the listed read alone contains the needed one."""
    n, r = t.needs.take(need), t.reads.take(read)
    inside = (r.low <= n.low) & (n.high <= r.high)
    if (r.stride > 1).any():
        inside &= ((n.low - r.low) % r.stride == 0) & ((n.stride % r.stride == 0) | (n.high == n.low + 1))
    return np.asarray(inside.all(axis=1))


def _report_unlisted(
    t: Table,
    cells: dict[int, Cells],
    order: Array,
    left: Array,
    right: Array,
    inside: Mask,
    need: Array,
    findings: Findings,
) -> None:
    """Needed reads that no single listed read contains: several may, so their union is looked at, once per
    pattern."""
    done = np.bincount(need[inside], minlength=len(t.needs.cta)) > 0
    done |= ~t.steps.required & ~np.isin(t.needs.tensor, list(cells))
    listed = t.reads.take(order)
    known: dict[bytes, tuple[Array, Array] | None] = {}
    for i in np.flatnonzero(~done).tolist():
        span = slice(left[i], right[i])
        box = t.needs.low[i], t.needs.high[i], t.needs.stride[i]
        pattern = b"".join(
            a.tobytes() for a in (*box, listed.low[span], listed.high[span], listed.stride[span])
        )
        if pattern not in known:
            known[pattern] = _gap(*box, listed.take(span))
        gap = known[pattern]
        if gap is not None:
            tensor, cta = int(t.needs.tensor[i]), t.needs.cta[i]
            findings.add(
                "coverage",
                f"{t.cta_name(cta)} reads {t.box_name(tensor, *box)}, the listed reads leave out"
                f" {t.box_name(tensor, *gap)}",
                t.rank(cta),
            )


def _report_disorder(t: Table, cells: dict[int, Cells], need: Array, read: Array, findings: Findings) -> None:
    """A wait holds for the reads of its step and later ones: a read of an earlier step must not rely on it by
    standing behind it."""
    n, r, s = t.needs.take(need), t.reads.take(read), t.steps
    meet = ((n.low < r.high) & (r.low < n.high)).all(axis=1)
    need, read = need[meet], read[meet]
    axis = s.axis[need]
    start = np.maximum(t.reads.low[read, axis], t.needs.low[need, axis]) - s.origin[need]
    step = s.base[need] + start // s.size[need]
    early, late = np.full(len(t.reads.cta), _CTA // 2), np.full(len(t.reads.cta), -2)
    np.minimum.at(early, read, step)
    np.maximum.at(late, read, step)
    matched = late > -2
    behind = np.where((t.read_waits > 0) & matched, early, -2) + t.reads.cta * _CTA
    behind = np.maximum.accumulate(behind) - t.reads.cta * _CTA
    for i in np.flatnonzero(matched & np.isin(t.reads.tensor, list(cells)) & (late < behind)).tolist():
        findings.add(
            "coverage",
            f"{t.read_name(i)} in step {late[i]}, but lists it behind a wait of step {behind[i]}: reads must"
            " stand in step order",
            t.rank(t.reads.cta[i]),
        )


def reads_covered(t: Table, cells: dict[int, Cells], findings: Findings) -> Edges:
    """Each listed read of a written element stands behind a full wait for a semaphore that its writer posts
    to."""
    cover, reads, pairs, by_proxy = _Cover(t, findings), 0, 0, dict[tuple[int, int], int]()
    for tensor in np.unique(t.reads.tensor).tolist():
        where = np.flatnonzero(t.reads.tensor == tensor)
        if tensor in cells:
            reads += len(where)
            for proxies, count in cover.tensor(tensor, cells[tensor], where).items():
                by_proxy[proxies] = by_proxy.get(proxies, 0) + count
                pairs += count
        elif t.roles[tensor] not in ("input", "weight", "state"):
            for i in where.tolist():
                findings.add(
                    "coverage",
                    f"{t.read_name(i)}: no tile writes this {t.roles[tensor]}",
                    t.rank(t.reads.cta[i]),
                )
    return Edges(reads, len(set(cells) & set(t.reads.tensor.tolist())), pairs, by_proxy, cover.apart)


class _Cover:
    """Looks up, for pairs of a wait state and a writing CTA, whether a post of that CTA has been
    awaited."""

    def __init__(self, t: Table, findings: Findings):
        self.t, self.findings, self.apart = t, findings, 0
        order = np.argsort(t.posts[:, 0], kind="stable")
        self.posted = t.posts[order, 1]
        self.start = np.searchsorted(t.posts[order, 0], np.arange(len(t.cta_tile) + 1))

    def awaited(self, state: Array, cta: Array) -> Mask:
        pair, offset = _spread(self.start[cta + 1] - self.start[cta])
        key = state[pair] * len(self.t.targets) + self.posted[self.start[cta[pair]] + offset]
        if not len(self.t.states):
            return np.zeros(len(state), bool)
        at = np.minimum(np.searchsorted(self.t.states, key), len(self.t.states) - 1)
        return np.bincount(pair[self.t.states[at] == key], minlength=len(state)) > 0

    def tensor(self, tensor: int, cells: Cells, where: Array) -> dict[tuple[int, int], int]:
        """Checks the listed reads `where` of one tensor; equal ones (same cells, wait state, proxy) at
        once."""
        t = self.t
        reads = t.reads.take(where)
        first, end = cells.touched(reads.low, reads.high)
        strided = [reads.low, reads.stride] if (reads.stride > 1).any() else []
        keys = np.concatenate(
            [
                first,
                end,
                t.read_state[where, None],
                t.read_proxy[where, None],
                t.before[where, None],
                *strided,
            ],
            axis=1,
        )
        _, one, group, times = np.unique(
            keys, axis=0, return_index=True, return_inverse=True, return_counts=True
        )
        proxy = np.zeros(len(t.cta_tile), np.int64)
        mine = t.writes.tensor == tensor
        proxy[t.writes.cta[mine]] = t.write_proxy[mine]
        free = t.roles[tensor] == "state"
        kinds, found = len(t.proxies), np.zeros(len(t.proxies) ** 2, np.int64)
        for chunk in _chunks((end[one] - first[one]).prod(axis=1)):
            which, at = _expand(first[one[chunk]], end[one[chunk]])
            if strided:
                keep = _hit(cells, at, reads.low[one[chunk]][which], reads.stride[one[chunk]][which])
                which, at = which[keep], at[keep]
            flat = np.ravel_multi_index(tuple(at.T), cells.shape)
            owner, which = cells.owner[flat], which + chunk.start
            good = owner < 0 if free else np.zeros(len(owner), bool)
            written = owner >= 0
            good[written] = self.awaited(t.read_state[where[one[which[written]]]], owner[written])
            apart = written & (t.since[owner] > 0) & (t.since[owner] == t.before[where[one[which]]])
            self.apart += int(times[which[_distinct(which, owner, apart)]].sum())
            good, written = good | apart, written & ~apart
            kind = proxy[owner] * kinds + t.read_proxy[where[one[which]]]
            counted = _distinct(which, owner, good & written)
            found += np.bincount(kind[counted], times[which[counted]], kinds**2).astype(np.int64)
            if not good.all():
                self._report(cells, tensor, where, group.reshape(-1), which[~good], flat[~good])
        return {(k // kinds, k % kinds): int(n) for k, n in enumerate(found) if n}

    def _report(
        self, cells: Cells, tensor: int, where: Array, group: Array, which: Array, flat: Array
    ) -> None:
        """One violation for each listed read of the failing groups `which`, naming the first writer it does
        not wait for."""
        failing, first, ranges = np.unique(which, return_index=True, return_counts=True)
        total = int(np.isin(group, failing).sum())
        for g, cell, count in zip(failing.tolist(), flat[first].tolist(), ranges.tolist(), strict=True):
            if not self.findings.room("coverage"):
                break
            more = f" ({count - 1} more such ranges)" if count > 1 else ""
            for i in where[group == g].tolist():
                why = self._reason(
                    int(cells.owner[cell]),
                    self.t.box_name(tensor, *cells.box(cell)),
                    int(self.t.read_state[i]),
                )
                self.findings.add(
                    "coverage", self.t.read_name(i) + why + more, self.t.rank(self.t.reads.cta[i]), 0
                )
        self.findings.add_count("coverage", total)

    def _reason(self, owner: int, written: str, state: int) -> str:
        if owner < 0:
            return f", but no tile writes {written}"
        posts = ", ".join(map(str, self.posted[self.start[owner] : self.start[owner + 1]].tolist()))
        return (
            f" without a full wait for {self.t.cta_name(owner)}, which writes {written} and posts to "
            f"{f'semaphore {posts}' if posts else 'no semaphore'}; awaited: {self._waits(state) or 'none'}"
        )

    def _waits(self, state: int) -> str:
        count = len(self.t.targets)
        low, high = np.searchsorted(self.t.states, [state * count, (state + 1) * count])
        return ", ".join(map(str, (self.t.states[low:high] - state * count).tolist()))


def _distinct(which: Array, owner: Array, good: Mask) -> Array:
    """Of the good pairs, one index for each (read, writing CTA): a CTA's writes may span several cells."""
    at = np.flatnonzero(good)
    _, one = np.unique(which[at] * (int(owner.max(initial=0)) + 1) + owner[at], return_index=True)
    return at[one]


def _hit(cells: Cells, at: Array, low: Array, stride: Array) -> Mask:
    """Whether a strided box has an element in the cell."""
    hit = np.ones(len(at), bool)
    for d, cuts in enumerate(cells.cuts):
        start, end = cuts[at[:, d]], cuts[at[:, d] + 1]
        point = low[:, d] + np.maximum(-((low[:, d] - start) // stride[:, d]), 0) * stride[:, d]
        hit &= point < end
    return hit


def _chunks(sizes: Array) -> Iterator[slice]:
    """Slices of about CHUNK cells each."""
    total = np.cumsum(sizes)
    start = 0
    while start < len(sizes):
        done = int(total[start - 1]) if start else 0
        end = max(start + 1, int(np.searchsorted(total, done + CHUNK, "right")))
        yield slice(start, end)
        start = end
