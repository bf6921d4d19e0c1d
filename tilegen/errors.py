"""Every error tilegen raises on purpose. Each names what was given, what was expected and, where there is
one, the line of the spec."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any


def nearest(word: object, known: Iterable[str]) -> str:
    """The end of a message about a word that is not known: "; did you mean 'row'?", or nothing."""
    found = get_close_matches(str(word), list(known), 1)
    return f"; did you mean {found[0]!r}?" if found else ""


class TilegenError(Exception):
    """Base of all of them; `where` is "file:line" of the spec, or empty."""

    def __init__(self, message: str, where: str = ""):
        super().__init__(f"{where}: {message}" if where else message)
        self.where = where


class SpecError(TilegenError):
    """The spec is wrong: shapes, dtypes, attributes, cycles, unused inputs."""


class PlanError(TilegenError):
    """No plan can be made as asked (tile, policy, order, scheduling), or a plan file cannot be read."""


class FormError(PlanError):
    """A target has no kernel for some ops; `ops`: their names."""

    def __init__(self, message: str, where: str, ops: tuple[str, ...]):
        super().__init__(message, where)
        self.ops = ops


class LaunchLimitError(PlanError):
    """One launch of all ops takes more parameters than a kernel may have; `times`: how many times as many, as
    a whole number."""

    def __init__(self, message: str, times: int):
        super().__init__(message)
        self.times = times


class AnalysisError(TilegenError):
    """An access map is outside what the analysis can handle."""


class ProofError(TilegenError):
    """A plan fails a check; the message names the tile, the element range and the missing edge. `certificate`
    holds all."""

    def __init__(self, message: str, certificate: object = None):
        super().__init__(message)
        self.certificate = certificate


class CompileError(TilegenError):
    """The C++ or CUDA compiler refused the generated source; `log` and `source` hold both."""

    def __init__(self, message: str, log: str = "", source: str = ""):
        super().__init__(f"{message}\n{log}" if log else message)
        self.log, self.source = log, source


class SpillError(CompileError):
    """The kernel compiles, but ptxas spills registers that hold sums: it would be several times too slow."""


class LaunchSpillError(SpillError):
    """Of several launches some spill; `plans` are theirs."""

    def __init__(self, message: str, plans: tuple[Any, ...], log: str = "", source: str = ""):
        super().__init__(message, log, source)
        self.plans = plans


class CompilerMissing(CompileError):
    """No compiler was found; the message says what to install or set."""


class TargetError(TilegenError):
    """The target asked for is not here (no GPU, unknown name)."""


class ArgumentError(TilegenError):
    """A tensor given to a kernel does not fit: shape, dtype, device, strides, alignment, requires_grad,
    aliasing."""


class CacheError(TilegenError):
    """The cache directory cannot be used: it cannot be made, is full, or an entry was changed."""


class OutputError(TilegenError):
    """A file or folder that was asked for (an export, a picture, a result file) cannot be written."""


class HangError(TilegenError):
    """A run did not end: names the tile that waits, the semaphore, posts seen and expected."""


class RaceError(TilegenError):
    """The interpreter saw a read that is not ordered after the write it needs, by tile."""


class DeadlockError(HangError):
    """The interpreter saw that no virtual SM can go on, by tile."""
