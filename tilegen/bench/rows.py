"""Rows and notes of contenders at one size, and the names of contenders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilegen.bench.accuracy import WRONG
from tilegen.frontend.program import Program

PEERS = (  # what people use today
    "eager",
    "graph",
    "addmm-gelu",
    "cublaslt",
    "cudnn",
    "sdpa-flash",
    "sdpa-cudnn",
    "sdpa-efficient",
    "graph-flash",
    "cublaslt-flash",
    "cublaslt-cudnn",
    "flashinfer",
    "flash-attn-3",
    "inductor",
    "inductor-flash",
)
INDUCTOR = ("inductor", "inductor-flash")  # those that torch.compile makes
STREAMS = ("tilegen-kernel", "tilegen-pdl")  # a launch for each op, on a GPU
OWN = (*STREAMS, "tilegen-barrier")  # tilegen without tile sync
# one launch with tile sync, where `tilegen` is launches of single ops because they were measured to be faster
PERSISTENT = "tilegen-persistent"
# exclusive=True: the user's word that nothing else that waits inside runs at the same time
EXCLUSIVE = "tilegen-exclusive"
UNPREPARED = "tilegen-unprepared"  # weights given with each call, not bound and packed by prepare()
MOVING = "tilegen-moving"  # the one kernel of a spec whose size moves, at this size
GPU_ALONE = (*STREAMS, PERSISTENT, EXCLUSIVE, UNPREPARED)


@dataclass(frozen=True)
class Row:
    """One contender at one size. us: median over rounds; spread: (max - min) / median; error: relative
    Frobenius to float32 torch.

    element: the worst element's error over its bound (tilegen.bench.accuracy); rounds_us: round by round, so
    that contenders can be paired;
    sets: of arguments that take turns; in_l2: all of them stay in the L2 cache; launches: of a call, where
    tilegen says it.
    """

    workload: str
    sizes: dict[str, Any]
    variant: str
    us: float
    spread: float
    rounds: int
    error: float
    tflops: float
    tbs: float
    floor_us: float | None = None  # what the machine's ceilings allow, where they are known
    element: float = 0.0
    rounds_us: tuple[float, ...] = ()
    sets: int | None = None
    in_l2: bool = False
    launches: int | None = None

    @property
    def wrong(self) -> bool:
        return not (self.error <= WRONG and self.element <= 1)  # NaN too


@dataclass(frozen=True)
class Note:
    """A contender that could not be measured, and why."""

    workload: str
    sizes: dict[str, Any]
    variant: str
    error: str


@dataclass(frozen=True)
class Cell:
    """What was found for one program at one size. clock: SM clock in MHz at the middle of the run."""

    rows: tuple[Row, ...]
    notes: tuple[Note, ...] = ()
    clock: int | None = None


@dataclass(frozen=True)
class Ratio:
    """How many times faster tilegen is than the best of others in the same cell; None where one of the two is
    missing or wrong."""

    workload: str
    sizes: dict[str, Any]
    over_peers: float | None
    over_own: float | None  # here tilegen in one launch, beside its ways without tile sync


Key = tuple[str, tuple[tuple[str, Any], ...]]


def key(r: Row | Note | Ratio) -> Key:
    """Names the cell that it belongs to."""
    return r.workload, tuple(r.sizes.items())


def sizes_of(program: Program) -> dict[str, Any]:
    return {k: v for k, v in program.sizes if isinstance(v, (int, float, str))}


def note(program: Program, variant: str, error: Exception) -> Note:
    """The first line of the error is enough to name it; compilers' logs are long."""
    text = str(error).strip()
    return Note(
        program.name,
        sizes_of(program),
        variant,
        f"{type(error).__name__}: {text.splitlines()[0] if text else ''}"[:400],
    )
