"""Timing where something fails: a call that cannot be captured, no nvidia-smi, one that has nothing to
say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.pure.runtime.test_timing import Gpu
from tilegen.runtime import timing
from tilegen.runtime.timing import Contender


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    gpu = Gpu()
    monkeypatch.setattr(timing, "cuda", gpu.namespace())
    return gpu


def test_a_failed_capture_gives_the_stream_back(gpu: Gpu) -> None:
    def refuses() -> None:
        if gpu.capturing:
            raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError, match="not permitted"):
        timing.ready(Contender((refuses,)))
    assert gpu.current == "usual"


def test_a_hang_is_seen_before_capture(gpu: Gpu) -> None:
    def check() -> None:
        raise RuntimeError("hung")

    with pytest.raises(RuntimeError, match="hung"):
        timing.ready(Contender((gpu.call("x"),), check=check))
    assert not any("captured" in line for line in gpu.log)


def smi(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    script = folder / "nvidia-smi"
    script.write_text(f"#!/bin/sh\n{text}\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("text", "answer"), [("echo ' 1980 '", "1980"), ("echo '[N/A]'", None), ("exit 9", None), ("echo", None)]
)
def test_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, answer: str | None) -> None:
    smi(tmp_path, text, monkeypatch)
    assert timing.nvidia_smi("clocks.sm") == answer


def test_no_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert timing.nvidia_smi("clocks.sm") is None


def test_the_clock_is_read_under_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu: Gpu) -> None:
    smi(tmp_path, "sleep 0.2; echo 1755", monkeypatch)
    assert timing.clock_under(gpu.call("x")) == 1755
    assert gpu.log.count("x on usual") >= 1 and gpu.log.count("synchronize") == gpu.log.count("x on usual")
