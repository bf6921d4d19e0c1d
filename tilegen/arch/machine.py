"""Machines a plan can be made for: how many SMs (or threads), and the rates that the simulator's tile times
come from.

The H200's rates were measured. Those of other GPUs were not: they are the vendor's peaks (tilegen.arch.gpus)
times the share of its own peak that the H200 reached.
"""

from __future__ import annotations

import difflib
import os
from dataclasses import asdict, dataclass, replace
from typing import Any

from tilegen.arch.gpus import ARCHITECTURES, GPUS, Architecture, Gpu
from tilegen.config import count
from tilegen.errors import PlanError

CLOCK = 1.6e3  # clocks a µs: what an H200's power limit leaves under full load


@dataclass(frozen=True)
class Machine:
    """Rates are of the whole machine: FLOP/s by element size, bytes/s; times in µs."""

    name: str
    arch: str  # of tilegen.arch.gpus.ARCHITECTURES: sm_90a, sm_86, …; cpu
    sms: int
    flops16: float
    flops32: float
    memory: float  # bytes/s from device memory
    cache: float  # bytes/s from the shared cache (L2)
    tile_us: float  # cost of a tile besides its main loop: set-up, epilogue
    handoff_us: float  # from a tile's last store to the first load of a tile that waited for it
    wait_us: float  # each further semaphore that a tile looks at

    @property
    def gpu(self) -> Gpu | None:
        """The GPU that it is, or is a share of; None for a CPU and for a GPU that has no name here."""
        return GPUS.get(self.name.partition(":")[0])

    @property
    def architecture(self) -> Architecture:
        return ARCHITECTURES[self.arch]

    @property
    def target(self) -> str:
        """The name of the target that is best for it: sm_90a, sm_80 or cpu."""
        return self.architecture.target

    def clusters(self, size: int) -> int:
        """How many clusters of so many CTAs, an SM a CTA, are resident together."""
        gpu = self.gpu
        fewer = dict(gpu.clusters).get(size) if gpu else None
        return self.sms // size if gpu is None or fewer is None else fewer * self.sms // gpu.sms

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


# H200: 785 TFLOP/s and 4.55 TB/s are measured ceilings;
# L2 and hand-off from the same bench, the cost of a wait from benchmarks/skeleton.py. fp32 has no fast path.
H200 = Machine("h200", "sm_90a", 132, 785e12, 60e12, 4.55e12, 7.5e12, 1.6, 2.5, 0.35)


def cpu(threads: int | None = None) -> Machine:
    """This machine's CPU target; rates are per thread of a current AVX-512 core."""
    n = threads or count("TILEGEN_NUM_THREADS") or len(os.sched_getaffinity(0))
    return Machine("cpu", "cpu", n, 100e9 * n, 100e9 * n, 20e9, 60e9 * n, 2.0, 0.5, 0.05)


def of_gpu(name: str) -> Machine:
    """A row of GPUS as a machine. L2 feeds each SM as many bytes a clock as the H200's does; times are the
    H200's."""
    if name == H200.name:
        return H200
    gpu, known = GPUS[name], GPUS[H200.name]
    return replace(
        H200,
        name=name,
        arch=gpu.chip.name,
        sms=gpu.sms,
        flops16=gpu.flops16 * H200.flops16 / known.flops16,
        flops32=gpu.flops32 * H200.flops32 / known.flops32,
        memory=gpu.memory * H200.memory / known.memory,
        cache=H200.cache * (gpu.sms * gpu.clock) / (known.sms * known.clock),
    )


def machine(name: str | int | Machine) -> Machine:
    """`cpu`, `cpu:N` (N threads), a GPU of tilegen.arch.gpus such as `h200`, or a number N: N SMs of an
    H200."""
    if isinstance(name, Machine):
        return name
    text = str(name).lower()
    if text == "cpu":
        return cpu()
    if text.startswith("cpu:") and text[4:].isdecimal() and int(text[4:]) >= 1:
        return cpu(int(text[4:]))
    if text in GPUS:
        return of_gpu(text)
    if text.isdecimal() and 1 <= int(text) <= 4096:
        share = int(text) / H200.sms
        return replace(
            H200,
            name=f"h200:{text}",
            sms=int(text),
            flops16=H200.flops16 * share,
            flops32=H200.flops32 * share,
            memory=H200.memory * share,
            cache=H200.cache * share,
        )
    near = difflib.get_close_matches(text, GPUS, 1)
    meant = f", did you mean {near[0]}?" if near else ";"
    raise PlanError(
        f"unknown machine {name!r}{meant} expected cpu, cpu:N, {', '.join(GPUS)}, or a number of SMs (of an"
        " H200)"
    )


def machine_from_json(data: dict[str, Any]) -> Machine:
    try:
        found = Machine(**data)
    except TypeError as error:
        raise PlanError(f"machine {data!r} in the plan: {error}") from None
    if found.arch not in ARCHITECTURES:
        raise PlanError(
            f"machine {found.name!r} in the plan has arch {found.arch!r}, expected one of"
            f" {', '.join(ARCHITECTURES)}"
        )
    return found
