"""What a script tries of many seeds, side by side: --first, --count, --jobs."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context


def told_of_each(doc: str | None, problem: Callable[[int], str]) -> Iterator[str]:
    """What `problem` tells of each seed that the command line asks for, in order."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=doc, formatter_class=raw)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(problem, range(given.first, given.first + given.count))
