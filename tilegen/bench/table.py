"""Rows side by side: ratios to the best of others, and the table that is printed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from tilegen.bench.rows import OWN, PEERS, PERSISTENT, Cell, Key, Note, Ratio, Row, key

OVER_PEERS, OVER_OWN = "best peer/tilegen", "best without tile sync/one launch"


def ratios(rows: Sequence[Row]) -> list[Ratio]:
    """best of others / tilegen, of each cell."""
    cells: dict[Key, list[Row]] = {}
    for r in rows:
        cells.setdefault(key(r), []).append(r)
    found = []
    for of_cell in cells.values():
        compared = (PEERS, best_us(of_cell, ["tilegen"])), (OWN, best_us(of_cell, [one_launch(of_cell)]))
        best = [(best_us(of_cell, others), it) for others, it in compared]
        found.append(
            Ratio(of_cell[0].workload, of_cell[0].sizes, *(b / it if b and it else None for b, it in best))
        )
    return found


def one_launch(rows: Sequence[Row]) -> str:
    """The variant of a cell that is one launch with tile sync; where tilegen is several launches and no other
    was measured, none."""
    if any(r.variant == PERSISTENT for r in rows):
        return PERSISTENT
    return next(("tilegen" for r in rows if r.variant == "tilegen" and r.launches in (None, 1)), "")


def best_us(rows: Sequence[Row], variants: Sequence[str]) -> float | None:
    """The least time of these variants among those that are right."""
    return min((r.us for r in rows if r.variant in variants and not r.wrong), default=None)


def geometric_mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return statistics.geometric_mean(known) if known else None


def failed(cells: Sequence[Cell]) -> bool:
    """Whether a variant of tilegen gave a wrong result, or none."""
    return any(r.wrong and ours(r.variant) for c in cells for r in c.rows) or any(
        ours(n.variant) for c in cells for n in c.notes
    )


def ours(variant: str) -> bool:
    return variant not in PEERS


def size_labels(rows: Sequence[Row | Note]) -> dict[Key, str]:
    """A short text for each cell's sizes: those that differ among the cells of the workload; the first if
    none does."""
    values: dict[tuple[str, str], set[Any]] = {}
    for r in rows:
        for k, v in r.sizes.items():
            values.setdefault((r.workload, k), set()).add(v)
    found = {}
    for r in rows:
        shown = [k for k in r.sizes if len(values[r.workload, k]) > 1] or list(r.sizes)[:1]
        found[key(r)] = " ".join(f"{k}={r.sizes[k]}" for k in shown)
    return found


def table(cells: Sequence[Cell]) -> str:
    """A line per row, the ratios of each cell, their geometric means, and what could not be measured."""
    rows = [r for c in cells for r in c.rows]
    notes = [n for c in cells for n in c.notes]
    labels = size_labels([*rows, *notes])
    wide = max([5, *map(len, labels.values())]) + 2

    def start(r: Row | Note | Ratio) -> str:
        return f"{r.workload:<16}{labels[key(r)]:<{wide}}"

    peers = {k: best_us([r for r in rows if key(r) == k], PEERS) for k in labels}
    rates = f"{'TFLOP/s':>9}{'TB/s':>7}{'/floor':>8}{'best peer/it':>14}"
    lines = [f"{'workload':<16}{'sizes':<{wide}}{'variant':<20}{'µs':>10}{'spread':>9}{'error':>10}{rates}"]
    for r in rows:
        floor = f"{r.us / r.floor_us:>8.2f}" if r.floor_us else f"{'-':>8}"
        rates = f"{r.tflops:>9.3f}{r.tbs:>7.3f}{floor}"
        peer = peers[key(r)]
        ratio = f"{'ERROR: wrong' if r.wrong else f'{peer / r.us:.2f}' if peer else '-':>14}"
        lines.append(
            f"{start(r)}{r.variant:<20}{r.us:>10.1f}{r.spread:>9.1%}{r.error:>10.1e}{rates}{ratio}"
            f"{'  in L2' if r.in_l2 else ''}"
        )
    found = ratios(rows)
    if any(r.over_peers is not None or r.over_own is not None for r in found):
        lines += ["", f"{'':<{16 + wide}}{OVER_PEERS:>20}  {OVER_OWN}"]
        lines += [f"{start(r)}{_ratio(r.over_peers):>20}  {_ratio(r.over_own)}" for r in found]
        means = [geometric_mean([getattr(r, over) for r in found]) for over in ("over_peers", "over_own")]
        lines.append(f"{'geometric mean':<{16 + wide}}{_ratio(means[0]):>20}  {_ratio(means[1])}")
    lines += [f"not measured: {start(n)}{n.variant}: {n.error}" for n in notes]
    return "\n".join(lines)


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
