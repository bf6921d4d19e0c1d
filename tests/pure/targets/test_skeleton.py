"""The CUDA prelude: the schedule text is the CPU's, byte for byte, and compiles for GPUs without one."""

from dataclasses import replace

import pytest

from tests.gpu.plans import PLANS
from tests.gpu.skeleton import skeleton
from tilegen.codegen.schedule import schedule_text
from tilegen.errors import CompileError
from tilegen.runtime.driver import Module, missing
from tilegen.runtime.nvrtc import compile_cuda
from tilegen.targets.cpu.emit import generate


@pytest.mark.parametrize("name", sorted(PLANS))
def test_same_schedule_on_both_targets(name: str) -> None:
    plan = PLANS[name]()
    text = schedule_text(plan)
    assert text in generate(replace(plan, target="cpu", proxies=())) and text in skeleton(plan)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a", "sm_100"])
@pytest.mark.parametrize(
    "name", ["mlp tile", "llama clusters", "attention classes", "mlp chunks, bands, static"]
)
def test_compiles_without_a_gpu(name: str, architecture: str) -> None:
    cubin = compile_cuda(skeleton(PLANS[name]()), architecture)
    assert cubin.code[:4] == b"\x7fELF" and "0 bytes spill stores" in cubin.log and "warning" not in cubin.log


def test_memory_order_of_the_prelude() -> None:
    """Release on every post, acquire and the async-proxy fence on every path of a wait."""
    text = skeleton(PLANS["mlp row"]())
    post = text[text.index("TG_FN void tg_post(") : text.index("TG_FN void tg_clear(")]
    wait = text[text.index("TG_FN void tg_wait(") : text.index("// Schedule of ")]
    assert "red.release.gpu.global.add.u32" in post
    end = wait[wait.index("(void)tg_load_acquire(p);") :]
    # the one return is the abort's
    assert "fence.proxy.async.global" in end and "return" not in end and wait.count("return;") == 1


def test_compiler_log_is_in_the_error() -> None:
    with pytest.raises(CompileError, match="no_such_function"):
        compile_cuda("__global__ void f() { no_such_function(); }")


@pytest.mark.skipif(not missing(), reason="a GPU is here")
def test_no_gpu_is_said() -> None:
    from tilegen.errors import TargetError

    with pytest.raises(TargetError, match="driver|CUDA device"):
        Module(b"")
