"""Two folders of result files beside each other: what each says of the same cells.

    best peer / tilegen, of OLD and of NEW, and torch.compile's part in each

python -m benchmarks.beside OLD NEW      prints a Markdown table; other peers, other kernels, other days
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.report import INDUCTOR, over_peers
from tilegen.bench.names import names
from tilegen.bench.results import rows_of
from tilegen.bench.rows import Key, Row, key
from tilegen.runtime.verify import load_json


def cells(folder: Path) -> dict[Key, list[Row]]:
    """Every cell of a folder; of several files with one cell, the first by name."""
    found: dict[Key, list[Row]] = {}
    for path in sorted(folder.glob("*-h200.json")):
        data = load_json(path)
        if "ratios" not in data:
            continue
        rows = rows_of(data)
        new = {k: [r for r in rows if key(r) == k] for k in dict.fromkeys(map(key, rows))}
        found |= {k: v for k, v in new.items() if k not in found}
    return found


def lines(old: dict[Key, list[Row]], new: dict[Key, list[Row]]) -> Iterator[str]:
    both = [k for k in new if k in old and over_peers(old[k]) and over_peers(new[k])]
    named = names([new[k][0] for k in both])
    yield "| cell | old ratio | new ratio | torch.compile beside: old, new |"
    yield "|---|---|---|---|"
    for k in both:
        there = ["yes" if any(r.variant in INDUCTOR for r in side[k]) else "no" for side in (old, new)]
        ratios = f"{over_peers(old[k]):.2f} | {over_peers(new[k]):.2f}"
        yield f"| {named[k].group}, {named[k].label} | {ratios} | {', '.join(there)} |"


def main(arguments: Sequence[str] | None = None) -> int:
    old, new = (Path(folder) for folder in (sys.argv[1:] if arguments is None else arguments))
    print("\n".join(lines(cells(old), cells(new))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
