"""A program planned, proved and compiled to a kernel: on a GPU in one launch, in launches of single ops or of
parts, or for every value of a size that moves; on a CPU, the interpreter or the emulator in one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tilegen.errors import LaunchLimitError, SpillError
from tilegen.frontend.dims import dims_of
from tilegen.frontend.program import Program
from tilegen.graph.forms import Place
from tilegen.kernels.cuda_kernel import CudaKernel
from tilegen.kernels.fitting import fitted, lowered
from tilegen.kernels.gpu_kernel import GpuKernel
from tilegen.kernels.kernel import Kernel
from tilegen.kernels.launches import compile_multi_launch
from tilegen.kernels.moving import MovingKernel, compile_moving
from tilegen.kernels.parts import Loaded, compile_parts, too_many
from tilegen.options import Options
from tilegen.proof.checker import Certificate
from tilegen.runtime.request import launch_options, planned, settled_lowering
from tilegen.runtime.settled import settled
from tilegen.schedule.plan import Plan
from tilegen.targets.base import Target

Progress = Callable[[str], None]


def on_a_cpu(
    program: Program, place: Place, target: Target, asked: Options, threads: int | None, progress: Progress
) -> Kernel | MovingKernel:
    """A kernel of a target that launches nothing."""
    if dims_of(program):
        kernel = partial(Kernel, workers=threads)
        return compile_moving(program, place, asked, target.load, kernel, progress)
    made, certificate = planned(program, place, settled(program, place, asked), progress)
    progress("compiler")
    return Kernel(made, certificate, target.load(made), threads, program=program)


def on_a_gpu(
    program: Program,
    place: Place,
    target: Target,
    asked: Options,
    lowering: str,
    programmatic: bool,
    exclusive: bool,
    progress: Progress,
) -> GpuKernel | MovingKernel:
    """A kernel of a GPU's target. lowering, programmatic, exclusive: as for tg.compile."""
    if dims_of(program):
        kernel = partial(CudaKernel, exclusive=exclusive)
        how = lowering, programmatic
        return compile_moving(program, place, asked, target.load, kernel, progress, *how)
    chosen, early = settled_lowering(program, place, asked, lowering, programmatic)

    def in_launches() -> GpuKernel:
        options = launch_options(program, place, asked)
        return compile_multi_launch(program, place, options, target.load, early, progress)

    def loaded(of: Program) -> Loaded:
        def made_with(options: Options) -> Loaded:
            made, certificate = planned(of, place, options, progress)
            progress("NVRTC")
            return made, certificate, target.load(made)

        return fitted(of, place, settled(of, place, asked), made_with, progress, free=not asked.tiles)

    def launch(of: Program, plan: Plan, proof: Certificate, library: Any) -> CudaKernel:
        return CudaKernel(plan, proof, library, exclusive, program=of)

    def in_one_launch() -> GpuKernel:
        cut = lowering == "auto" and asked == Options()
        in_parts = partial(compile_parts, program, place, loaded, launch)
        if cut and (many := too_many(program)):
            return in_parts(many, progress)
        try:
            return launch(program, *loaded(program))
        except (LaunchLimitError, SpillError) as error:
            if not cut:
                raise
            return in_parts(error, progress)

    return lowered(program, chosen, lowering, in_launches, in_one_launch)
