"""A program cut into parts, one after the other, gives what it gives in one: where it is cut, what passes,
what is proved."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_launches import Launch, stream  # noqa: F401

import tilegen as tg
from tilegen.errors import LaunchLimitError, SpillError
from tilegen.frontend.loader import load_spec
from tilegen.frontend.program import Program
from tilegen.graph.fuse_epilogues import fuse
from tilegen.kernels.launches import MultiLaunchKernel
from tilegen.kernels.parts import compile_parts, parted, too_many
from tilegen.runtime.data import random_arguments
from tilegen.runtime.verify import verify
from tilegen.schedule.plan import Plan
from tilegen.targets.cpu.library import Library
from tilegen.targets.select import place


@tg.spec
def net(M=9, H=16, N=7):
    """Gated pairs, residuals across several of them, two results, one of which is also read on."""
    x = tg.input("x", (M, H), "float32")
    first = tg.relu(tg.linear(x, tg.weight("w", (H, H), "float32"), name="first"), name="h")
    for n in range(N):
        g, u = tg.linear(x, tg.weight(f"g{n}", (2 * H, H), "float32"), name=f"gate{n}").chunk(2)
        x = tg.add(tg.mul(tg.silu(g), u, name=f"m{n}"), first if n % 2 else x, name=f"x{n}")
        if n == 2:
            middle = tg.softmax(x, name="middle")
    return middle, tg.rms_norm(x, tg.weight("v", (H,), "float32"), name="last")


LIMIT = LaunchLimitError("too many", 3)


def on_a_cpu(part: Program) -> tuple[Plan, Any, Any]:
    plan = tg.plan(part, "cpu:2")
    assert isinstance(plan, Plan)
    return plan, verify(plan), Library(plan)


def launch(part: Program, *of: Any) -> Any:
    return Launch(*of, 2, program=part)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_each_call_is_in_one_part_and_finds_its_operands(count: int) -> None:
    program, there = net(), {"x", "w", "v", *(f"g{n}" for n in range(7))}
    parts = list(parted(program, count))
    assert [c for part in parts for c in part.calls] != [] and len(parts) == count
    assert sorted(c.result for part in parts for c in part.calls) == sorted(c.result for c in program.calls)
    for part in parts:
        assert {t.name for t in part.arguments} <= there
        there |= set(part.outputs)
    assert set(program.outputs) <= there


@pytest.mark.parametrize("count", [2, 3, 5])
def test_what_is_one_op_is_not_cut(count: int) -> None:
    program = net()
    ops = [op.name for part in parted(program, count) for op in fuse(part).ops]
    assert sorted(ops) == sorted(op.name for op in fuse(program).ops)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_parts_give_what_the_program_says(count: int, stream: object) -> None:  # noqa: F811
    program = net()
    kernel = compile_parts(program, place("cpu:2"), on_a_cpu, launch, LaunchLimitError("", count))
    assert isinstance(kernel, MultiLaunchKernel) and len(kernel.plans) == count and kernel.proof.ok
    given = random_arguments(program, 1)
    for found in (kernel(*given), kernel.prepare(g1=given[3])(*given[:3], *given[4:])):
        for a, b in zip(found, tg.reference(program, *given), strict=True):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
    text = kernel.proof.checks[-1].statement
    assert text.startswith(f"{count} launches on one stream") and "h: first -> gate5" in text


def test_only_what_passes_between_parts_is_kept_there(stream: object) -> None:  # noqa: F811
    kernel = compile_parts(net(), place("cpu:2"), on_a_cpu, launch, LaunchLimitError("", 2))
    passed = set(kernel.plans[0].outputs) - {"middle"}
    assert passed == {t.name for t in kernel._inner} and len(passed) < 4


def test_more_parts_are_tried_where_one_takes_too_many(stream: object) -> None:  # noqa: F811
    made: list[int] = []

    def picky(part: Program) -> Any:
        made.append(len(part.calls))
        if len(fuse(part).ops) > 3:
            raise LaunchLimitError("still too many", 2)
        return on_a_cpu(part)

    assert len(compile_parts(net(), place("cpu:2"), picky, launch, LaunchLimitError("", 2)).plans) == 4


def test_more_parts_are_tried_where_registers_of_one_spill(stream: object) -> None:  # noqa: F811
    def spilling(part: Program) -> Any:
        if len(fuse(part).ops) > 3:
            raise SpillError("ptxas spilled 200 bytes", "", "")
        return on_a_cpu(part)

    kernel = compile_parts(net(), place("cpu:2"), spilling, launch, SpillError("ptxas spilled", "", ""))
    assert len(kernel.plans) == 4 and kernel.proof.ok


@pytest.mark.parametrize("depth, launches", [(50, 1), (101, 2), (152, 3)])
def test_nets_of_many_convolutions_are_cut_before_they_are_compiled(depth: int, launches: int) -> None:
    many = too_many(load_spec("examples/resnet50.py")(depth=depth))
    assert (many.times if many else 1) == launches


@tg.spec
def unnamed(N=4):
    """Ops whose biases and functions have no names, as most specs write them."""
    x = tg.input("x", (1, 6, 6, 8), "float32")
    for n in range(N):
        w, b = tg.weight(f"w{n}", (8, 3, 3, 8), "float32"), tg.weight(f"b{n}", (8,), "float32")
        x = tg.relu(tg.conv2d(x, w, b, padding=1))
    v, b = tg.weight("v", (10, 8), "float32"), tg.weight("b", (10,), "float32")
    return tg.linear(tg.global_avg_pool(x), v, b)


@pytest.mark.parametrize("count", [2, 3])
def test_what_is_fused_without_a_name_is_in_a_part(count: int, stream: object) -> None:  # noqa: F811
    program = unnamed()
    kernel = compile_parts(program, place("cpu:2"), on_a_cpu, launch, LaunchLimitError("", count))
    given = random_arguments(program, 1)
    torch.testing.assert_close(kernel(*given), tg.reference(program, *given), atol=1e-5, rtol=1e-5)
    assert kernel.proof.ok and len(kernel.plans) == count


def test_parts_of_a_deep_net_are_proved_together() -> None:
    """ResNet-101's, planned for a GPU."""
    program = load_spec("examples/resnet50.py")(depth=101, HW=64)
    many = too_many(program)
    assert many is not None
    kernel = compile_parts(program, place("h200"), planned_for_a_gpu, never_run, many)
    assert kernel.proof.ok and len(kernel.plans) == 2


def never_run(part: Program, plan: Plan, *of: Any) -> Any:
    return Launch(plan, *of, plan.machine.clusters(plan.cluster), program=part)


def planned_for_a_gpu(part: Program) -> tuple[Plan, Any, Any]:
    made = tg.plan(part, "h200")
    assert isinstance(made, Plan)
    return made, verify(made), None


def test_states_and_parts_that_never_fit_are_refused() -> None:
    def never(part: Program) -> Any:
        raise LaunchLimitError(f"{part.name}: too many", 2)

    with pytest.raises(LaunchLimitError, match="net_part0: too many"):
        compile_parts(net(), place("cpu:2"), never, launch, LIMIT)
    layer = load_spec("examples/llama_layer.py")(H=64, I=64, heads=2, kv_heads=1, D=32, S_max=16)
    with pytest.raises(LaunchLimitError, match="too many"):
        compile_parts(layer, place("cpu:2"), on_a_cpu, launch, LIMIT)


def test_a_launch_of_too_many_ops_is_refused_while_it_is_planned() -> None:
    @tg.spec
    def deep(N=130):
        x = tg.input("x", (16, 64), "bfloat16")
        for n in range(N):
            x = tg.relu(tg.linear(x, tg.weight(f"w{n}", (64, 64), "bfloat16"), name=f"l{n}"), name=f"h{n}")
        return x

    message = "one launch of 130 ops takes 260 tensor maps .* bytes of parameters; a kernel on sm_90a takes"
    with pytest.raises(LaunchLimitError, match=message) as refused:
        tg.plan(deep(), "h200")
    assert refused.value.times == 2
    assert tg.plan(deep(N=100), "h200")
