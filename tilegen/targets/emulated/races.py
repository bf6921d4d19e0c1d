"""A kernel run under many adversaries: its results must be the same bits, and all its accesses ordered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tilegen.errors import RaceError
from tilegen.targets.emulated.library import Adversary, EmulatedLibrary, same

if TYPE_CHECKING:
    import torch


def check_races(
    library: EmulatedLibrary,
    run: Callable[[], Sequence[torch.Tensor]],
    runs: int,
    progress: Callable[[str], None] = lambda text: None,
) -> None:
    """Run a kernel `runs` times, each driven in another way. run: a launch on fresh copies of one set of
    arguments; it gives all that the kernel writes for its caller.

    Raises:
        RaceError: two accesses of one place are not ordered, by the lines of the text; or results differ.
        HangError: a tile waits for what never comes.
    """
    first: Sequence[torch.Tensor] = ()
    for seed in range(runs):
        library.adversary = Adversary.drawn(seed, library.launch.grid)
        progress(f"race check {seed + 1} of {runs}")
        found = run()
        if first and not all(same(a, b) for a, b in zip(first, found, strict=True)):
            raise RaceError(f"results differ between two runs: {library.adversary}")
        first = first or found
