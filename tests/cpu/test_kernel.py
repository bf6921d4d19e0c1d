"""A compiled kernel as its callers see it: threads, outputs, layouts, weights fixed beforehand, hangs, the
cache."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import BOUND, EXAMPLES, MIXED_MLP, MLP, Case, compiled, expected, given, planned, run

import tilegen as tg
from tilegen.kernels.kernel import Kernel
from tilegen.runtime.cxx import compiler
from tilegen.runtime.data import random_arguments, relative_error
from tilegen.targets.cpu.emit import generate
from tilegen.targets.cpu.library import Library

DYNAMIC = Case("gpt3_mlp", {"M": 64, **MLP}, "cpu:3", {"tiles": MIXED_MLP, "split_k": {"down": 2}})
STATIC = Case(
    "gpt3_mlp", {"M": 64, **MLP}, "6", {"tiles": MIXED_MLP, "cluster": {"up": 2}, "scheduling": "lists"}
)
CONV = Case("vgg19", {"HW": 24, "C": 5, "B": 2, "block": 2})
BOTH = pytest.mark.parametrize("case", [DYNAMIC, STATIC], ids=["dynamic", "static"])


@tg.spec
def three() -> Any:
    """Outputs in another order than they are made in; each is also read."""
    x = tg.input("x", (33, 20), "float32")
    y = tg.linear(x, tg.weight("w", (24, 20), "float32"), name="y")
    z = tg.gelu(y, name="z")
    return z, tg.add(y, z, name="s"), y


# --- results ------------------------------------------------------------------------------------------------


@BOTH
def test_threads_share_a_kernel(case: Case) -> None:
    kernel, errors, start = compiled(case), [], threading.Barrier(8)

    def work(seed: int) -> None:
        arguments = random_arguments(case.program, seed)
        reference = tg.reference(case.program, *arguments)
        start.wait()
        for _ in range(5):
            errors.append(relative_error(kernel(*arguments), reference))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(errors) == 40
    assert all(e <= BOUND["float32"] for e in errors)  # NaN is not


@BOTH
def test_results_are_bit_stable(case: Case) -> None:
    """Whatever the interleaving; and with dynamic scheduling for any number of workers."""
    kernel, arguments = compiled(case), given(case)
    first = kernel(*arguments)
    for _ in range(20):
        assert torch.equal(kernel(*arguments), first)
    if case is DYNAMIC:
        for threads in (1, 2, 5):
            assert torch.equal(
                tg.compile(case.program, "cpu", on=case.on, threads=threads, **case.options)(*arguments),
                first,
            )


@pytest.mark.parametrize("threads", [2, 8])
def test_static_lists_refuse_other_thread_counts(threads: int) -> None:
    """There are three lists; fewer threads would never run the last one, more would run past the end."""
    with pytest.raises((tg.ArgumentError, tg.TargetError, tg.PlanError), match=f"{threads}"):
        tg.compile(STATIC.program, "cpu", on=STATIC.on, threads=threads, **STATIC.options)


def test_outputs_come_in_return_order() -> None:
    program = three()
    kernel, arguments = tg.compile(program, "cpu", on="cpu:2"), random_arguments(program)
    reference = tg.reference(program, *arguments)
    assert [
        relative_error(y, r) <= BOUND["float32"] for y, r in zip(kernel(*arguments), reference, strict=True)
    ] == [True] * 3
    out = tuple(torch.full((33, 24), float("nan")) for _ in range(3))
    given_back = kernel(*arguments, out=out)
    assert all(a is b for a, b in zip(given_back, out, strict=True))
    assert [relative_error(y, r) <= BOUND["float32"] for y, r in zip(out, reference, strict=True)] == [
        True
    ] * 3
    with pytest.raises(tg.ArgumentError, match="shares memory"):
        kernel(*arguments, out=(out[0], out[1], out[0]))
    with pytest.raises(tg.ArgumentError, match="has 3 outputs, 2 were given"):
        kernel(*arguments, out=out[:2])


def test_out_is_written_and_given_back() -> None:
    kernel = compiled(DYNAMIC)
    out = torch.full((64, MLP["H"]), float("nan"))
    assert kernel(*given(DYNAMIC), out=out) is out
    assert relative_error(out, expected(DYNAMIC)[0]) <= BOUND["float32"]
    with pytest.raises(tg.ArgumentError, match="shares memory with 'x'"):
        kernel(*given(DYNAMIC), out=given(DYNAMIC)[0])


def test_channels_last_is_a_view() -> None:
    """NCHW tensors in channels_last layout go in and come out as they are; plain NCHW ones are refused."""
    kernel, arguments = compiled(CONV), given(CONV)
    out = torch.empty_like(kernel(*arguments)).permute(0, 3, 1, 2)
    nchw = [a.permute(0, 3, 1, 2) if a.dim() == 4 else a for a in arguments]
    assert nchw[0].is_contiguous(memory_format=torch.channels_last)
    assert kernel(*nchw, out=out) is out
    assert torch.equal(out.permute(0, 2, 3, 1), kernel(*arguments))
    assert relative_error(out.permute(0, 2, 3, 1), expected(CONV)[0]) <= BOUND["float32"]
    with pytest.raises(tg.ArgumentError, match="'x': expected shape"):
        kernel(nchw[0].contiguous(), *nchw[1:])


def test_prepared_weights() -> None:
    kernel, (x, w1, w2) = compiled(DYNAMIC), given(DYNAMIC)
    bound, y = kernel.prepare(w1=w1, w2=w2), kernel(x, w1, w2)
    assert torch.equal(bound(x), y)
    assert torch.equal(kernel.prepare(w2=w2)(x, w1), y)
    with pytest.raises(tg.ArgumentError, match="takes 1 tensors"):
        bound(x, w1)
    with pytest.raises(tg.ArgumentError, match="'w3' is not an argument"):
        kernel.prepare(w3=w1)
    with pytest.raises(tg.ArgumentError, match="'w1': expected shape"):
        kernel.prepare(w1=w2)


def test_export(tmp_path: Path) -> None:
    kernel = compiled(DYNAMIC)
    folder = kernel.export(tmp_path / "deep" / "folder")
    assert {p.name for p in folder.iterdir()} == {
        "kernel.cpp",
        "plan.json",
        "certificate.txt",
        "certificate.json",
        "launch.json",
    }
    assert (folder / "kernel.cpp").read_text() == kernel.source == generate(kernel.plan)
    assert tg.verify(folder / "plan.json").ok
    assert (folder / "certificate.txt").read_text().strip() == kernel.proof.text().strip()


def test_workspace_bytes() -> None:
    """h and the partial sum of down in float32, a line of 128 bytes per semaphore, a few more."""
    kernel = compiled(DYNAMIC)
    tensors = 4 * 64 * (MLP["I"] + MLP["H"])
    assert 0 < kernel.workspace_bytes - tensors - 128 * len(kernel.plan.targets) <= 1024


# --- counters -----------------------------------------------------------------------------------------------


@BOTH
def test_counters_are_zero_after_each_run(case: Case) -> None:
    plan = planned(case)[0]
    library, kernel = Library(plan), compiled(case)
    state = library.create()
    held = {
        n: torch.empty(t.plan_shape, dtype=getattr(torch, t.dtype)) for n, t in plan.graph.tensors.items()
    }
    held |= {t.name: a for t, a in zip(case.program.arguments, given(case), strict=True)}
    for _ in range(50):
        assert library.counters(state) == [0] * len(plan.targets)
        held["down"].fill_(float("nan"))
        library.run(state, held, kernel.workers)
        assert relative_error(held["down"], expected(case)[0]) <= BOUND["float32"]
    library.destroy(state)


POST = re.compile(r"tg_post\(g, [^;]*\);")


@pytest.mark.parametrize("threads", [1, 3])
def test_a_missing_post_is_reported(threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run misses the post of up(0, 1): a HangError that says so. The next run is right."""
    case = Case("gpt3_mlp", {"M": 17, **MLP}, "cpu:3", {"tiles": MIXED_MLP, "policies": {"h": "kernel"}})
    plan, certificate = planned(case)
    source = generate(plan)
    post = POST.search(source)
    assert post is not None
    dropped = (
        "static std::atomic<bool> dropped{false}; if (i != 0 || j != 1 || dropped.exchange(true))"
        f" {post[0]}"
    )
    monkeypatch.setenv("TILEGEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TILEGEN_TIMEOUT_MS", "2000")
    monkeypatch.setattr(
        "tilegen.targets.cpu.library.generate",
        lambda _: source[: post.start()] + dropped + source[post.end() :],
    )
    kernel = Kernel(plan, certificate, Library(plan), threads)
    waits = (
        r"down\(0, \d\) \(rank \d+, CTA 0\) waits before step 0 for 'h': semaphore 0 of up has 2 of 3 posts"
    )
    with pytest.raises(tg.HangError, match=waits):
        kernel(*given(case))
    run(case, kernel)


# --- the cache ----------------------------------------------------------------------------------------------

SCRIPT = f"""
import sys
import tilegen as tg
from tilegen.runtime.data import random_arguments, relative_error
from tilegen.frontend.loader import load_program
program = load_program({str(EXAMPLES / "gpt3_mlp.py")!r}, dict(M=5, H=24, I=16, dtype="float32"))
arguments = random_arguments(program)
kernel = tg.compile(program, "cpu", on="cpu:2")
print(relative_error(kernel(*arguments), tg.reference(program, *arguments)) <= 1e-5)
"""


@pytest.fixture
def compile_in_process(tmp_path: Path) -> Callable[[str], subprocess.Popen[str]]:
    """Starts a process that compiles and runs a program; its compiler notes each build, and first does what
    the argument says."""

    def start(before: str = "") -> subprocess.Popen[str]:
        wrapper = tmp_path / "c++"
        build = f'case "$*" in *-shared*) echo build >> {tmp_path}/builds; {before or ":"};; esac'
        wrapper.write_text(f'#!/bin/sh\n{build}\nexec {compiler()} "$@"\n')
        wrapper.chmod(0o755)
        root = str(EXAMPLES.parent)
        environment = {
            **os.environ,
            "TILEGEN_CACHE_DIR": str(tmp_path / "cache"),
            "TILEGEN_CXX": str(wrapper),
            "PYTHONPATH": root,
        }
        return subprocess.Popen(
            [sys.executable, "-c", SCRIPT],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    return start


def entries(tmp_path: Path) -> list[Path]:
    return [
        p for p in (tmp_path / "cache" / "binaries").iterdir() if p.is_dir() and not p.name.startswith(".")
    ]


def test_processes_share_an_entry(compile_in_process: Any, tmp_path: Path) -> None:
    """Both want it at the same time (a build takes a second at least): one builds, both get it."""
    processes = [compile_in_process("sleep 1") for _ in range(2)]
    assert [p.communicate(timeout=600)[0] for p in processes] == ["True\n"] * 2
    assert (tmp_path / "builds").read_text().split() == ["build"]
    assert len(entries(tmp_path)) == 1
    assert {p.name for p in entries(tmp_path)[0].iterdir()} == {"kernel.cpp", "kernel.so", "meta.json"}


def test_a_killed_build_leaves_nothing_half_written(compile_in_process: Any, tmp_path: Path) -> None:
    marker = tmp_path / "building"
    half = 'for a; do case "$a" in */kernel.so) echo half > "$a";; esac; done'
    process = compile_in_process(f"{half}; touch {marker}; sleep 120")
    while not marker.exists():
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=600)
    assert [p.read_text() for p in (tmp_path / "cache" / "binaries").rglob("kernel.so")] == ["half\n"]
    assert entries(tmp_path) == []
    again = compile_in_process()
    assert again.communicate(timeout=600)[0] == "True\n"
    assert (tmp_path / "builds").read_text().split() == ["build"] * 2
    assert len(entries(tmp_path)) == 1
