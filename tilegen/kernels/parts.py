"""A program of more ops than one launch takes: parts of it one after the other, each a persistent launch.

    y = part_2(part_1(part_0(x)))

A kernel's parameters hold the tensor maps of about a hundred products, and of a net of many convolutions
registers spill. Within a part tiles wait for tiles; kernel boundaries order the parts, as they order launches
of single ops (tilegen.kernels.launches).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from tilegen.errors import LaunchLimitError, SpillError
from tilegen.frontend.program import Call, Program, Tensor
from tilegen.graph.forms import Place
from tilegen.graph.fuse_epilogues import fuse
from tilegen.graph.graph import GIVEN, Graph
from tilegen.kernels.cuda_kernel import CudaKernel
from tilegen.kernels.launches import MultiLaunchKernel
from tilegen.ops.base import ceil_div
from tilegen.ops.conv2d import ConvAttributes
from tilegen.proof.checker import Certificate
from tilegen.runtime.verify_launches import certify_launches
from tilegen.schedule.order import op_major
from tilegen.schedule.plan import Plan

MORE = 3  # parts that are tried besides: ops are not alike
MOST_CONVOLUTIONS = 56  # of a launch: of 104, and of 79, registers spill, of 53 they rarely do
WORKERS = 4  # parts that are compiled at a time
Loaded = tuple[Plan, Certificate, Any]  # the last is the compiled library


def compile_parts(
    program: Program,
    place: Place,
    loaded: Callable[[Program], Loaded],
    made: Callable[..., CudaKernel],
    error: LaunchLimitError | SpillError,
    progress: Callable[[str], None] = lambda _: None,
) -> MultiLaunchKernel:
    """A kernel of as few parts as a launch takes of each, and a compiler without spilling registers, several
    compiled at a time. loaded: what a part is planned, proved and compiled to; made: a kernel of a part and
    that; error: of the whole.

    Raises:
        LaunchLimitError, SpillError: the program has states, or a part of it takes too many parameters or
            registers itself.
    """
    if _has_states(program):
        raise error
    # what has a name keeps it: a part may end between an op and what is fused into it
    program = replace(program, calls=tuple(replace(c, named=True) for c in program.calls))
    least, ops = error.times if isinstance(error, LaunchLimitError) else 2, len(fuse(program).ops)
    for count in range(least, min(least + MORE, ops) + 1):
        try:
            parts = list(parted(program, count))
            progress(f"{program.name}: {count} launches, {error}")
            with ThreadPoolExecutor(max_workers=WORKERS) as pool:
                found = list(pool.map(loaded, parts))
            return _joined(program, place, [made(p, *of) for p, of in zip(parts, found, strict=True)])
        except (LaunchLimitError, SpillError) as again:
            error = again
    raise error


def too_many(program: Program) -> LaunchLimitError | None:
    """Why it is not to be compiled as one launch, where that is known before it is tried. None for a program
    with states, of which there are no parts."""
    count = len(fuse(program).ops_of(ConvAttributes))
    if count <= MOST_CONVOLUTIONS or _has_states(program):
        return None
    why = f"{count} convolutions, of more than {MOST_CONVOLUTIONS} in a launch registers spill"
    return LaunchLimitError(f"{program.name}: {why}", ceil_div(count, MOST_CONVOLUTIONS))


def _has_states(program: Program) -> bool:
    return any(t.role == "state" for t in program.arguments)


def parted(program: Program, count: int) -> Iterator[Program]:
    """Programs of about as many fused ops each, which one after the other compute the program.

    What an earlier part makes is an input of a later one; what a later one needs, or the program returns, is
    an output.
    """
    results = [op.result for op in fuse(program).ops]
    ends = [len(results) * (n + 1) // count for n in range(count)]
    taken, runs = set[str](), list[list[Call]]()
    for first, last in zip([0, *ends], ends, strict=False):
        needed = _needed(program, results[first:last])
        runs.append([c for c in program.calls if c.result in needed and c.result not in taken])
        taken |= {c.result for c in runs[-1]}
    for n, calls in enumerate(runs):
        later = {o.tensor for run in runs[n + 1 :] for c in run for o in c.operands} | set(program.outputs)
        yield _part(program, n, calls, later)


def _needed(program: Program, results: Sequence[str]) -> set[str]:
    """What calls make on the way to these tensors, and these."""
    made_by, found, left = {c.result: c for c in program.calls}, set[str](), list(results)
    while left:
        name = left.pop()
        if name in made_by and name not in found:
            found.add(name)
            left += [o.tensor for o in made_by[name].operands]
    return found


def _part(program: Program, number: int, calls: Sequence[Call], later: set[str]) -> Program:
    made = {c.result for c in calls}
    seen = dict.fromkeys(name for c in calls for name in (*(o.tensor for o in c.operands), c.result))
    outputs = tuple(name for name in seen if name in made & later)

    def role(t: Tensor) -> str:
        if t.name in made:
            return "output" if t.name in later else "intermediate"
        return t.role if t.role in GIVEN else "input"

    tensors = tuple(replace(t, role=role(t)) for t in program.tensors if t.name in seen)
    return Program(f"{program.name}_part{number}", program.sizes, tensors, tuple(calls), outputs)


def _joined(program: Program, place: Place, parts: Sequence[CudaKernel]) -> MultiLaunchKernel:
    """The kernel of parts in order, none of which is prepared."""
    graph = _graph(program, [part.plan.graph for part in parts])
    sizes = tuple((k, n) for k, n in program.sizes if isinstance(n, int) and not isinstance(n, bool))
    arguments = tuple(t.name for t in program.arguments)
    whole = Plan(
        program.name, sizes, place.machine, graph, arguments, (), (), op_major(graph),
        lowering="multi_launch", target=place.target.name, calls=program.calls, returns=program.outputs,
    )  # fmt: skip
    certificate = certify_launches(whole, [p.proof for p in parts], [p.plan for p in parts], False)
    return MultiLaunchKernel(whole, certificate, parts, program=program)


def _graph(program: Program, parts: Sequence[Graph]) -> Graph:
    """The ops of all parts; tensors have the role and the form that they have in the program."""
    own = {t.name: t for t in program.tensors}
    tensors = {name: own.get(name, t) for part in parts for name, t in part.tensors.items()}
    return Graph(program.name, tensors, tuple(op for part in parts for op in part.ops), program.outputs)
