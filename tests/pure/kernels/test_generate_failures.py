"""What cannot be generated, or cannot run here, is refused with an error that says what can."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import tilegen as tg
from tests.pure.kernels.test_generate import SMALL, chain
from tilegen.cli import main
from tilegen.errors import PlanError, TargetError
from tilegen.runtime.driver import missing
from tilegen.targets import select


@tg.spec
def wide(S=40, D=64, dtype="float32"):
    """Attention of numbers that no tensor core multiplies as they are, behind a linear."""
    x, w = tg.input("x", (1, S, 64), dtype), tg.weight("w", (3 * D, 64), dtype)
    q, k, v = tg.linear(x, w, name="qkv").chunk(3)
    return tg.attention(q, k, v, heads=1, name="attn")


@pytest.mark.parametrize(
    ("program", "ops", "others"),
    [
        (wide(), ["'attn' (attention)"], "cpu"),
        (wide(D=264, dtype="bfloat16"), ["'attn' (attention)"], "cpu"),
    ],
    ids=lambda v: v.name if isinstance(v, tg.Program) else "",
)
def test_ops_without_a_form_on_sm_80(program: Any, ops: list[str], others: str) -> None:
    """These ops are named and no other, then the targets that take every op; the error stands at the first
    one's line of the spec."""
    with pytest.raises(PlanError) as caught:
        tg.generate(program, "sm_80", "rtx-3090")
    assert f"sm_80 has no form for {', '.join(ops)} of {program.name}, {others} can; " in str(caught.value)
    assert (
        re.fullmatch(r".*test_generate(_failures)?\.py:\d+", caught.value.where)
        and str(caught.value).count(caught.value.where) == 1
    )


def test_ops_without_a_form_on_sm_90a() -> None:
    with pytest.raises(PlanError, match=r"sm_90a has no form for 'attn' \(attention\) of wide, cpu can;"):
        tg.generate(wide(), "sm_90a")


@pytest.mark.parametrize(
    ("target", "on", "words"),
    [
        (
            "some",
            None,
            "unknown target 'some'; expected one of auto, sm_90a, sm_80, cpu, interpret, cuda-emulated,",
        ),
        ("cuda-portable", None, "unknown target 'cuda-portable', did you mean sm_80?"),
        ("sm_90", None, "unknown target 'sm_90', did you mean sm_90a?"),
        ("", None, "unknown target ''"),
        ("CPU", "cpu", "unknown target 'CPU'"),
        ("interpret", None, "interpret runs a plan and writes no source; expected one of sm_90a, sm_80, cpu"),
        ("sm_90a", "a100", "sm_90a needs a Hopper GPU, a100 is none: its target is sm_80"),
        ("sm_90a", "b200", "b200 is none: its target is sm_80"),
        ("sm_90a", "cpu:4", "sm_90a cannot be planned for cpu, which is no GPU"),
        ("sm_80", "cpu", "sm_80 cannot be planned for cpu, which is no GPU"),
        ("cuda", "cpu", "cpu is no GPU; name the target, sm_90a or sm_80, or the GPU"),
    ],
)
def test_targets(target: str, on: str | None, words: str) -> None:
    with pytest.raises(TargetError) as caught:
        tg.generate(chain(), target, on)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "given",
    [
        {"lowering": "one"},
        {"programmatic": True},
        {"lowering": "multi_launch", "target": "cpu"},
        {"tiles": {"none": (64, 64, 64)}},
    ],
)
def test_options(given: dict[str, Any]) -> None:
    with pytest.raises((TargetError, PlanError)) as caught:
        tg.generate(chain(), **{"target": "sm_90a", **given})
    assert re.search("lowering|programmatic|no such op", str(caught.value))


def test_programmatic_launches_are_sm_90as() -> None:
    with pytest.raises(
        TargetError, match="the kernel for sm_90a waits for the one before, that for sm_89 does not"
    ):
        tg.generate(chain(), "sm_80", "rtx-4090", lowering="multi_launch", programmatic=True)


def test_cuda_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "missing", lambda: "no NVIDIA driver")
    with pytest.raises(
        TargetError,
        match="target cuda, the best for a GPU: no NVIDIA driver; name the target, sm_90a or sm_80, or",
    ):
        tg.generate(chain(), "cuda")


@pytest.mark.parametrize(
    ("target", "on", "command", "call"),
    [
        ("cuda", "h200", "--target sm_90a --machine h200 -o DIR", "target='sm_90a', on='h200')"),
        ("cuda", "rtx-4090", "--target sm_80 --machine rtx-4090 -o DIR", "target='sm_80', on='rtx-4090')"),
        ("cuda", None, "--target sm_90a -o DIR", "target='sm_90a')"),
        ("cuda", 64, "--target sm_90a --machine 64 -o DIR", "target='sm_90a', on=64)"),
        ("sm_80", "a100", "--target sm_80 --machine a100 -o DIR", "target='sm_80', on='a100')"),
        ("sm_90a", None, "--target sm_90a -o DIR", "target='sm_90a')"),
    ],
)
def test_compile_says_how_to_generate(
    monkeypatch: pytest.MonkeyPatch, target: str, on: Any, command: str, call: str
) -> None:
    """Before anything is planned: the command with file, spec and sizes, and the call."""
    monkeypatch.setattr(select, "missing", lambda: "no NVIDIA driver")
    monkeypatch.setattr("tilegen.kernels.compiled.planned", lambda *_: pytest.fail("it was planned"))
    with pytest.raises(TargetError) as caught:
        tg.compile(chain(M=32), target, on=on)
    message = str(caught.value)
    assert (
        message.startswith(f"target {target}: no NVIDIA driver; ")
        and f"tg.generate(chain(…), {call}" in message
    )
    assert re.search(
        r"`tilegen generate \S*test_generate.py:chain -s M=32 -s H=256 -s I=192 -s dtype=bfloat16 "
        rf"{re.escape(command)}`",
        message,
    )


def test_the_command_that_compile_names_works(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(select, "missing", lambda: "no NVIDIA driver")
    assert main(["run", *SMALL, "--target", "cuda", "--machine", "h200"]) == 2
    (command,) = re.findall("`tilegen (.*?)`", capsys.readouterr().err)
    words = [str(tmp_path / "out") if word == "DIR" else word for word in command.split()]
    assert main(words) == 0 and list((tmp_path / "out").rglob("kernel.cu"))


def test_a_gpu_of_another_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "missing", lambda: "")
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "NVIDIA A100-SXM4-80GB")
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (8, 0))
    with pytest.raises(
        TargetError,
        match=r"target sm_90a: NVIDIA A100-SXM4-80GB has .* 8.0, expected 9.0; .*--target sm_90a -o DIR",
    ):
        tg.compile(chain(), "sm_90a")
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (7, 5))
    for target in ("cuda", "sm_80"):
        with pytest.raises(TargetError, match="compute capability 7.5, expected 8.0 or later"):
            tg.compile(chain(), target)


@pytest.mark.skipif(not missing(), reason="a GPU is here")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["generate", *SMALL, "--target", "cuda"], "target cuda, the best for a GPU: "),
        (
            ["generate", *SMALL, "--target", "sm_90a", "--machine", "rtx-3090"],
            "rtx-3090 is none: its target is sm_80",
        ),
        (["generate", *SMALL, "--lowering", "one"], "unknown lowering 'one'"),
        (["generate", *SMALL, "--machine", "h300"], "unknown machine 'h300', did you mean h200?"),
        (
            ["trace", *SMALL, "--target", "cpu"],
            "trace measures on a GPU: target cpu is none, expected auto, sm_90a, sm_80 or cuda",
        ),
        (["tune", *SMALL, "--target", "interpret"], "tune measures on a GPU: target interpret is none"),
        (["tune", *SMALL], "tune measures on a GPU, target auto: "),
        (["compare", *SMALL, "--target", "sm_80"], "--target sm_80: "),
    ],
)
def test_commands(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], words: str
) -> None:
    assert main(arguments + (["-o", str(tmp_path)] if arguments[0] == "generate" else [])) == 2
    assert words in capsys.readouterr().err and not list(tmp_path.iterdir())
