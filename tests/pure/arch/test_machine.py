"""Machines by name: their figures agree with each other and with the generators, and plans can be made and
emitted for each."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

import tilegen as tg
from tests.pure.kernels.test_generate import SMALL, chain, convolutions
from tilegen.arch.gpus import ARCHITECTURES, GPUS, architecture, named
from tilegen.arch.machine import H200, machine
from tilegen.cli import main
from tilegen.errors import PlanError

every = pytest.mark.parametrize("name", GPUS)
PER_SM = {
    "sm_80": 2048,
    "sm_86": 512,
    "sm_89": 512,
    "sm_90a": 4096,
    "sm_100": 8192,
    "sm_120": 512,
}  # FLOP a clock: bfloat16, sums in float32


@every
def test_figures_agree_with_each_other(name: str) -> None:
    """flops16 is what so many SMs do at the clock; a block has all of an SM's shared memory but one KB."""
    gpu = GPUS[name]
    assert gpu.flops16 == pytest.approx(gpu.sms * gpu.clock * PER_SM[gpu.architecture], rel=0.005)
    assert (
        gpu.chip.shared_sm - gpu.shared_block == 1024
        and gpu.chip.registers == 65536
        and gpu.source
        and gpu.title
    )
    assert (
        0.5e12 < gpu.memory < 10e12
        and gpu.flops32 < gpu.flops16
        and gpu.chip.wgmma == (gpu.architecture == "sm_90a")
    )
    with pytest.raises(FrozenInstanceError):
        gpu.sms = 1  # type: ignore[misc]


def test_an_architecture_by_what_is_compiled_for_it() -> None:
    """sm_90 is sm_90a's; one that nobody knows has the least of all."""
    assert all(architecture(a.portable) == a for a in ARCHITECTURES.values() if a.mma_sync)
    assert architecture("sm_88").shared_block == min(
        a.shared_block for a in ARCHITECTURES.values() if a.mma_sync
    )


def test_the_h200s_figures_are_the_measured_ones() -> None:
    found = machine("h200")
    assert found is H200 and (found.sms, found.flops16, found.flops32, found.memory) == (
        132,
        785e12,
        60e12,
        4.55e12,
    )
    assert (found.cache, found.tile_us, found.handoff_us, found.wait_us) == (7.5e12, 1.6, 2.5, 0.35)


@every
def test_machines(name: str) -> None:
    """Rates are below the vendor's peak, by the share that the H200 reached."""
    on, gpu = machine(name), GPUS[name]
    assert (on.name, on.sms, on.architecture, on.gpu) == (name, gpu.sms, gpu.chip, gpu)
    assert on.target == ("sm_90a" if name.startswith("h") else "sm_80")
    assert on.flops16 / gpu.flops16 == pytest.approx(785 / 989.4) and on.memory / gpu.memory == pytest.approx(
        4.55 / 4.8
    )


def test_what_is_no_named_gpu() -> None:
    assert machine("cpu:3").target == "cpu" and machine("cpu:3").gpu is None and machine("cpu").arch == "cpu"
    assert (
        machine(64).architecture.wgmma and machine(64).target == "sm_90a" and machine(64).gpu is GPUS["h200"]
    )
    other = replace(H200, name="gpu:132", arch="sm_89")
    assert other.target == "sm_80" and other.gpu is None


@every
def test_a_chain_for_each(name: str) -> None:
    """Planned, proved and emitted, within the machine's shared memory; plans for Hopper alone have what only
    sm_90a can run."""
    for sizes in ({"M": 16, "H": 1024, "I": 512}, {"M": 700, "H": 1024, "I": 2048}):
        g = tg.generate(chain(**sizes), on=name, lowering="persistent")
        assert (
            g.certificate.ok
            and g.machine == machine(name)
            and g.target == machine(name).target
            and g.launch is not None
        )
        assert g.launch.shared_bytes <= GPUS[name].shared_block and g.launch.grid <= GPUS[name].sms
        if g.target == "sm_80":
            assert (
                g.architecture == GPUS[name].architecture
                and all(op.cluster == 1 for op in g.plan.graph.ops)
                and "mma.sync" in g.text
            )


@pytest.mark.parametrize("name", ["h100", "h100-pcie"])
def test_convolutions_for_each_hopper_gpu(name: str) -> None:
    g = tg.generate(convolutions(), on=name)
    assert g.target == "sm_90a" and g.launch is not None and g.launch.grid <= GPUS[name].sms


@pytest.mark.parametrize("verb", ["plan", "explain", "verify"])
@pytest.mark.parametrize("name", ["a100", "h100-pcie", "rtx-4090", "b200"])
def test_commands(verb: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, *SMALL, "--machine", name]) == 0
    assert name in capsys.readouterr().out


def test_info_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    assert all(f"{name} " in out and gpu.title in out for name, gpu in GPUS.items())
    assert main(["info", "--json"]) == 0
    data: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert set(data["machines"]) == set(GPUS) and all(row["source"] for row in data["machines"].values())
    assert data["targets"] == ["sm_90a", "sm_80", "cpu", "interpret", "cuda-emulated"]


@pytest.mark.parametrize(
    ("given", "nearest"),
    [
        ("h10", "h100"),
        ("rtx3090", "rtx-3090"),
        ("rtx-4080", "rtx-4090"),
        ("A100-SXM", "a100"),
        ("zx81", ""),
    ],
)
def test_unknown_names(given: str, nearest: str) -> None:
    with pytest.raises(PlanError) as caught:
        machine(given)
    message = str(caught.value)
    assert f"unknown machine {given!r}" in message and all(name in message for name in GPUS)
    assert (f"did you mean {nearest}?" in message) if nearest else ("did you mean" not in message)


@pytest.mark.parametrize(
    ("title", "sms", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", 108, "a100"),
        ("NVIDIA A100 80GB PCIe", 108, "a100-pcie"),
        ("NVIDIA A100-SXM4-40GB", 108, ""),
        ("NVIDIA H100 80GB HBM3", 132, "h100"),
        ("NVIDIA H100 PCIe", 114, "h100-pcie"),
        ("NVIDIA H100 NVL", 132, ""),
        ("NVIDIA H200", 132, "h200"),
        ("NVIDIA H200", 66, ""),
        ("NVIDIA B200", 148, "b200"),
        ("NVIDIA GeForce RTX 3090", 82, "rtx-3090"),
        ("NVIDIA GeForce RTX 3090 Ti", 84, ""),
        ("NVIDIA GeForce RTX 4090", 128, "rtx-4090"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 76, ""),
        ("NVIDIA GeForce RTX 5090", 170, "rtx-5090"),
        ("NVIDIA GeForce RTX 5080", 84, ""),
        ("Quadro RTX 6000", 72, ""),
        ("", 0, ""),
    ],
)
def test_the_name_of_a_gpu_that_is_here(title: str, sms: int, name: str) -> None:
    assert named(title, sms) == name


def test_names_are_read_in_any_case() -> None:
    assert (
        machine("H200") == machine("h200")
        and machine("RTX-4090") == machine("rtx-4090")
        and machine("CPU:3") == machine("cpu:3")
    )


def test_fewer_clusters_are_resident_than_sms_would_hold() -> None:
    """Those of an H200, and of a share of one; where nothing is known, as many as SMs hold."""
    assert [H200.clusters(n) for n in (1, 2, 4, 8)] == [132, 66, 30, 15]
    assert [machine("44").clusters(n) for n in (2, 4, 8)] == [22, 10, 5] and machine(4).clusters(4) == 0
    assert machine("a100").clusters(4) == 27 and machine("cpu:9").clusters(4) == 2
