"""`tilegen generate`: any target on any machine; launch.json and launcher.cpp say the same as the kernel's
text, and launcher.cpp compiles and runs."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import tilegen as tg
from tests.moving import moving
from tests.oracles.programs import as_json
from tilegen.arch.gpus import GPUS
from tilegen.cli import main
from tilegen.errors import CompilerMissing, TargetError
from tilegen.frontend.program import Program
from tilegen.kernels.cuda_kernel import CudaKernel
from tilegen.runtime.cxx import compiler
from tilegen.schedule.plan import Plan
from tilegen.targets import cubin, select
from tilegen.targets.cpu import emit as cpu
from tilegen.targets.sm80 import emit as portable
from tilegen.targets.sm80 import library as portable_target
from tilegen.targets.sm90 import emit as hopper
from tilegen.targets.sm90.library import HopperLibrary
from tilegen.targets.sm90.packing import pack

DRIVER = Path(__file__).parents[2] / "oracles" / "driver"
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
SMALL = [str(EXAMPLES / "gpt3_mlp.py"), "-s", "M=16", "-s", "H=256", "-s", "I=128"]


@tg.spec
def chain(M=64, H=256, I=192, dtype="bfloat16"):
    x, w1, w2 = tg.input("x", (M, H), dtype), tg.weight("w1", (I, H), dtype), tg.weight("w2", (H, I), dtype)
    return tg.linear(tg.gelu(tg.linear(x, w1, name="up"), name="h"), w2, name="down")


@tg.spec
def convolutions(B=1, HW=14, C=64, count=4, dtype="float16"):
    x = tg.input("x", (B, HW, HW, C), dtype)
    w = [tg.weight(f"w{n}", (C, 3, 3, C), dtype) for n in range(count)]
    for n, weight in enumerate(w):
        x = tg.relu(tg.conv2d(x, weight, padding=1, name=f"c{n}"), name=f"a{n}")
    return x


@tg.spec
def cached(B=2, S=1, P=256, heads=4, D=64, dtype="bfloat16"):
    H = heads * D
    x, wqkv, wo = (
        tg.input("x", (B, S, H), dtype),
        tg.weight("wqkv", (3 * H, H), dtype),
        tg.weight("wo", (H, H), dtype),
    )
    k_cache, v_cache = (tg.state(name, (B, P, heads, D), dtype) for name in ("k_cache", "v_cache"))
    pos = tg.input("pos", (1,), "int32")
    q, k, v = tg.linear(x, wqkv, name="qkv").chunk(3)
    keys, values = tg.append(k_cache, k, at=pos, name="ka"), tg.append(v_cache, v, at=pos, name="va")
    a = tg.attention(q, keys, values, heads=heads, kv_heads=heads, at=pos, name="attn")
    return tg.linear(a, wo, name="out")


MADE: dict[str, tuple[Program, str, str]] = {
    "chain, sm_90a": (chain(), "sm_90a", "h200"),
    "convolutions, sm_90a": (convolutions(), "sm_90a", "h200"),
    "patches, sm_90a": (convolutions(HW=75, C=512, count=1), "sm_90a", "h200"),
    "attention over caches, sm_90a": (cached(), "sm_90a", "h200"),
    "chain, sm_80": (chain(), "sm_80", "a100"),
    "chain, sm_80 with little shared memory": (chain(M=300), "sm_80", "rtx-3090"),
}


@cache
def made(name: str) -> Any:
    program, target, on = MADE[name]
    return tg.generate(program, target, on, lowering="persistent")


each = pytest.mark.parametrize("name", MADE)


# --- launch.json beside the kernel's text -------------------------------------------------------------------


TYPES = """#include <cstddef>
struct alignas(64) tg_map { char opaque[128]; };
struct tg_hang;
struct tg_misplaced;
typedef unsigned short tg_bf16, tg_f16;
"""


@each
def test_parameters_are_laid_out_as_the_text_declares_them(name: str, tmp_path: Path) -> None:
    """A compiler checks size and alignment of each struct of the text, and the offset of each field."""
    g, claims = made(name), []
    structs = re.findall(r"^struct (tg_maps|tg_tensors\w*|tg_launch) (\{.*?\n\};)", g.text, re.S | re.M)
    kinds = {"maps": "tg_maps", "T": "tg_tensors", "launch": "tg_launch"}
    for p in g.facts["parameters"]:
        kind = kinds[p["name"]]
        claims.append(
            f"static_assert(sizeof({kind}) == {p['bytes']} && alignof({kind}) == {p['alignment']});"
        )
        first = {
            f["name"]: f["offset"] for f in reversed(p["fields"])
        }  # what is seen under several names has its own name first
        declared = [field for field in first if re.search(rf"\b{field}(\[\d+\])?;", dict(structs)[kind])]
        claims += [f"static_assert(offsetof({kind}, {field}) == {first[field]});" for field in declared]
    assert len(claims) > len(g.plan.graph.tensors) and len(structs) >= len(g.facts["parameters"])
    (tmp_path / "layout.cpp").write_text(
        TYPES + "\n".join([f"struct {kind} {body}" for kind, body in structs] + claims)
    )
    subprocess.run([compiler(), "-std=c++17", "-fsyntax-only", str(tmp_path / "layout.cpp")], check=True)


@each
def test_the_maps_are_those_of_the_text(name: str) -> None:
    g = made(name)
    found = re.search(r"struct tg_maps \{\n(.*?)\};", g.text, re.S)
    declared = re.findall(r"tg_map \w+(?:\[(\d+)\])?;", found[1]) if found else []
    assert sum(int(n or 1) for n in declared) == len(g.facts["tensor_maps"])
    assert (g.target == "sm_90a") == bool(declared)


@each
def test_what_a_launch_is(name: str) -> None:
    g = made(name)
    facts, gpu = g.facts, GPUS[MADE[name][2]]
    assert (
        facts["target"] == g.target == MADE[name][1]
        and facts["machine"] == MADE[name][2]
        and facts["architecture"] == g.architecture
    )
    assert f"__launch_bounds__({facts['block'][0]}, 1)" in g.text and (
        f"__cluster_dims__({facts['cluster'][0]}, 1, 1)" in g.text
    ) == (facts["cluster"][0] > 1)
    assert (
        1 <= facts["grid"][0] <= gpu.sms
        and facts["grid"][0] % facts["cluster"][0] == 0
        and facts["shared_bytes"] <= gpu.shared_block
    )
    assert (
        facts["semaphores"]["words"] == 32 * (len(g.plan.targets) + 3) and facts["semaphores"]["initial"] == 0
    )
    assert [a["name"] for a in facts["arguments"]] == [t.name for t in MADE[name][0].arguments]
    sizes = {group: [b["bytes"] for b in facts[group]] for group in ("arguments", "outputs", "workspace")}
    assert (
        sum(sizes["arguments"]) == sum(t.nbytes for t in empty(MADE[name][0]))
        and all(sizes["outputs"])
        and all(sizes["workspace"])
    )
    assert {b["name"] for group in sizes for b in facts[group]} == set(g.plan.graph.tensors)


def empty(program: Program) -> list[torch.Tensor]:
    return [torch.empty(t.shape, dtype=getattr(torch, t.dtype)) for t in program.arguments]


@each
def test_maps_stay_inside_their_tensors(name: str) -> None:
    """From its first byte to its last a map looks at memory of its tensor alone."""
    facts = made(name).facts
    size = {b["name"]: b["bytes"] for group in ("arguments", "outputs", "workspace") for b in facts[group]}
    for m in facts["tensor_maps"]:
        outer = zip(m["shape"][1:], m["pitches"], strict=True)
        last = m["offset"] + 2 * (m["shape"][0] - 1) + sum((n - 1) * pitch for n, pitch in outer)
        assert 0 <= m["offset"] <= last < size[m["buffer"]]


@each
def test_maps_walk_whole_rows(name: str) -> None:
    """The pitch of a map of rows is a row of its tensor in bytes, of which it may leave out the first
    columns."""
    g = made(name)
    for m in g.facts["tensor_maps"]:
        t = g.plan.graph.tensors[m["tensor"]]
        row = 2 * int(t.plan_shape[-1])
        if m["rank"] == 2:
            assert list(m["pitches"]) == [row] and m["offset"] + 2 * m["shape"][0] <= row
        assert all(pitch % row == 0 or pitch < row for pitch in m["pitches"])


@each
def test_maps_obey_the_driver(name: str) -> None:
    """cuTensorMapEncodeTiled: pitches and addresses by 16 bytes, boxes of 256 a side, of 128 bytes where
    swizzled."""
    for m in made(name).facts["tensor_maps"]:
        assert m["rank"] == len(m["shape"]) == len(m["box"]) == len(m["element_strides"]) <= 5
        assert all(pitch % 16 == 0 for pitch in (m["offset"], *m["pitches"]))
        assert all(1 <= n <= 256 for n in m["box"]) and all(1 <= n <= 8 for n in m["element_strides"])
        assert m["swizzle"] != "CU_TENSOR_MAP_SWIZZLE_128B" or 2 * m["box"][0] <= 128


# --- launcher.cpp -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A driver that notes its calls, compiled."""
    made = tmp_path_factory.mktemp("driver") / "driver.o"
    subprocess.run(
        [compiler(), "-std=c++17", "-c", "-I", str(DRIVER), "-o", str(made), str(DRIVER / "driver.cpp")],
        check=True,
    )
    return made


def built(folder: Path, driver: Path) -> Path:
    """launcher.cpp as a program, without a warning."""
    program = folder / "launcher"
    warnings = ["-Wall", "-Wextra", "-Werror"]
    subprocess.run(
        [
            compiler(),
            "-std=c++17",
            *warnings,
            "-I",
            str(DRIVER),
            "-o",
            str(program),
            str(folder / "launcher.cpp"),
            str(driver),
        ],
        check=True,
    )
    return program


def started(program: Path, facts: list[dict[str, Any]], record: str = "") -> subprocess.CompletedProcess[str]:
    sizes = ";".join(" ".join(str(p["bytes"]) for p in f["parameters"]) for f in facts)
    told = {"TG_RECORD": record} if record else {}
    environment = {**os.environ, "TG_CALLS": str(program.parent / "calls"), "TG_PARAMETERS": sizes, **told}
    return subprocess.run(
        [str(program), "."], cwd=program.parent, env=environment, capture_output=True, text=True
    )


def run(folder: Path, facts: list[dict[str, Any]], driver: Path) -> list[dict[str, Any]]:
    """Build launcher.cpp, run it in its folder: the calls that it made."""
    done = started(built(folder, driver), facts)
    assert done.returncode == 0 and done.stdout.endswith(": ran\n"), done.stderr
    return [json.loads(line) for line in (folder / "calls").read_text().splitlines()]


def of(calls: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [c for c in calls if c["call"] == kind]


def number(name: str) -> int:
    """What the real driver's header says."""
    from cuda.bindings import driver

    kinds = {
        "DATA_TYPE": "DataType",
        "INTERLEAVE": "Interleave",
        "SWIZZLE": "Swizzle",
        "L2_PROMOTION": "L2promotion",
        "FLOAT_OOB_FILL": "FloatOOBfill",
    }
    kind = next(python for prefix, python in kinds.items() if name.startswith(f"CU_TENSOR_MAP_{prefix}"))
    return int(getattr(getattr(driver, f"CUtensorMap{kind}"), name))


def addresses(calls: list[dict[str, Any]], names: list[str]) -> dict[str, int]:
    """Where the launcher put each tensor: known by the byte that its file is full of."""
    return {
        name: next(c for c in of(calls, "fill") if c["first"] == n)["at"] for n, name in enumerate(names, 1)
    }


def written(folder: Path, g: Any) -> list[str]:
    """A file for each argument, full of the byte of its turn, from 1 on."""
    names = [b["name"] for b in g.facts["arguments"]]
    for n, b in enumerate(g.facts["arguments"], 1):
        (folder / f"{b['name']}.bin").write_bytes(bytes([n]) * b["bytes"])
    return names


@each
def test_launcher(name: str, tmp_path: Path, driver: Path) -> None:
    """It allocates, fills, encodes and launches what launch.json says: its grid, its maps, its parameters at
    their offsets."""
    g = made(name)
    facts = json.loads((g.export(tmp_path) / "launch.json").read_text())
    given = written(tmp_path, g)
    calls = run(tmp_path, [facts], driver)
    (launch,) = of(calls, "launch")
    assert (
        all(launch[key] == facts[key] for key in ("grid", "block", "shared_bytes")) and launch["stream"] == 7
    )
    assert (bool(launch["cooperative"]), bool(launch["programmatic"])) == (
        facts["cooperative"],
        facts["programmatic"],
    )
    assert (
        of(calls, "load")[0]["path"] == facts["cubin"] and of(calls, "function")[0]["name"] == facts["kernel"]
    )
    assert of(calls, "shared")[0]["bytes"] == facts["shared_bytes"]
    at = dict(zip(g.plan.graph.tensors, (c["at"] for c in of(calls, "fill")), strict=True))
    assert {n: at[n] for n in given} == addresses(calls, given)
    room = {c["at"]: c["bytes"] for c in of(calls, "alloc")}
    assert all(
        room[at[b["name"]]] == b["bytes"]
        for group in ("arguments", "outputs", "workspace")
        for b in facts[group]
    )
    zeroed = of(calls, "set")[0]
    assert (zeroed["value"], zeroed["words"]) == (
        facts["semaphores"]["initial"],
        facts["semaphores"]["words"],
    ) and room[zeroed["at"]] == facts["semaphores"]["bytes"]
    for m, call in zip(facts["tensor_maps"], of(calls, "map"), strict=True):
        assert call["at"] == at[m["buffer"]] + m["offset"]
        assert all(call[key] == m[key] for key in ("shape", "pitches", "element_strides"))
        if "im2col" in m:
            assert all(call[key] == m["im2col"][key] for key in ("pixels", "lower", "upper"))
            assert m["box"] == [call["channels"], 1, 1, 1]
        else:
            assert call["box"] == m["box"]
        assert all(
            call[key] == number(m[key])
            for key in ("data_type", "interleave", "swizzle", "l2_promotion", "oob_fill")
        )
    (record,) = of(calls, "host")
    values = {"counters": zeroed["at"], "hang": record["at"], "patience_ns": facts["patience_ns"]}
    values["misplaced"] = record["at"] + facts["record"].get("misplaced", {"offset": 0})["offset"]
    assert record["bytes"] == facts["record"]["bytes"] and ("misplaced" in facts["record"]) == (
        "pos" in given
    )
    for p, text in zip(facts["parameters"], launch["parameters"], strict=True):
        for n, f in enumerate(p["fields"]):
            (value,) = struct.unpack_from("<Q", bytes.fromhex(text), f["offset"])
            assert value == {
                "maps": lambda n, f: n,
                "T": lambda n, f: at[f["name"]],
                "launch": lambda n, f: values[f["name"]],
            }[p["name"]](n, f)
    assert {p.stem for p in tmp_path.glob("*.out")} == {b["name"] for b in facts["outputs"]} | {
        b["name"] for b in facts["arguments"] if b["role"] == "state"
    }


@pytest.mark.parametrize(("bytes_given", "word"), [(3, "fewer"), (1 << 20, "more")])
def test_launcher_refuses_files_of_another_size(
    bytes_given: int, word: str, tmp_path: Path, driver: Path
) -> None:
    g = made("chain, sm_80")
    (g.export(tmp_path) / "x.bin").write_bytes(bytes(bytes_given))
    done = started(built(tmp_path, driver), [g.facts])
    assert done.returncode == 2 and f"x.bin: expected {64 * 256 * 2} bytes, it has {word}" in done.stderr


def test_launcher_says_what_went_wrong(tmp_path: Path, driver: Path) -> None:
    """A wait that was given up, a position that leaves no room: it ends with 1 and writes no result."""
    g = made("attention over caches, sm_90a")
    program = built(g.export(tmp_path), driver)
    told = {
        "0 17 4 3 5 1 6 2": "rank 17, cta_rank -1, operand -1, step -1: semaphore 3 has 1 of 2 posts",
        "8 0 9 300": "position pos, at most 255, of ",
    }
    for record, words in told.items():
        done = started(program, [g.facts], record)
        assert done.returncode == 1 and words in done.stderr and not list(tmp_path.glob("*.out"))


def test_launches_in_order(tmp_path: Path, driver: Path) -> None:
    """A folder for each launch, and one launcher for all: what the first writes lies where the second reads
    it."""
    g = tg.generate(chain(), "sm_90a", "h200", lowering="multi_launch", programmatic=True)
    g.export(tmp_path)
    top = json.loads((tmp_path / "launch.json").read_text())
    folders = [launch["folder"] for launch in top["launches"]]
    assert folders == ["0_up", "1_down"] and all(launch["programmatic"] for launch in top["launches"])
    assert top["workspace"] == [
        {"name": "h", "role": "intermediate", "dtype": "bfloat16", "shape": [64, 192], "bytes": 64 * 192 * 2}
    ]
    assert [a["name"] for a in top["arguments"]] == ["x", "w1", "w2"] and [
        a["name"] for a in top["outputs"]
    ] == ["down"]
    assert (
        "kernel boundaries" in (tmp_path / "certificate.txt").read_text()
        and json.loads((tmp_path / "certificate.json").read_text())["ok"]
    )
    assert all(tg.verify(tmp_path / folder / "plan.json").ok for folder in folders)
    facts = [json.loads((tmp_path / folder / "launch.json").read_text()) for folder in folders]
    for folder, fact, (x, w, y) in zip(folders, facts, (("x", "w1", "h"), ("h", "w2", "down")), strict=True):
        text = (tmp_path / folder / "kernel.cu").read_text()
        assert fact["written"]["tensors"] == {x: "x", w: "w", y: "y"}
        assert f"from plan {fact['written']['plan']}." in text and f"{fact['plan']}" not in text
    calls = run(tmp_path, facts, driver)
    assert [c["path"] for c in of(calls, "load")] == ["0_up/kernel.cubin", "1_down/kernel.cubin"]
    first, second = of(calls, "launch")
    assert (
        first["programmatic"]
        and second["programmatic"]
        and [c["call"] for c in calls if c["call"] in ("launch", "synchronize")][-1] == "synchronize"
    )
    seen = [pointers(f, c) for f, c in zip(facts, (first, second), strict=True)]
    assert seen[0]["h"] == seen[1]["h"] and len({*seen[0].values(), *seen[1].values()}) == 5
    for folder, f in zip(folders, facts, strict=True):  # each is whole by itself too
        run(tmp_path / folder, [f], driver)


def pointers(facts: dict[str, Any], launch: dict[str, Any]) -> dict[str, int]:
    """The address that a launch gives for each tensor."""
    (n,) = [n for n, p in enumerate(facts["parameters"]) if p["name"] == "T"]
    data = bytes.fromhex(launch["parameters"][n])
    return {
        f["name"]: struct.unpack_from("<Q", data, f["offset"])[0] for f in facts["parameters"][n]["fields"]
    }


# --- one exporter -------------------------------------------------------------------------------------------


@each
def test_text_is_the_generators(name: str) -> None:
    program, target, on = MADE[name]
    g = made(name)
    text = (
        hopper.generate(g.plan).text
        if target == "sm_90a"
        else portable.generate(g.plan, GPUS[on].chip.portable).text
    )
    assert (
        g.text == text
        and g.certificate.ok
        and g.plan == Plan.from_json(json.loads(json.dumps(g.plan.to_json())))
    )
    assert g.cubin is not None and g.cubin[:4] == b"\x7fELF" and g.remark == ""


def test_a_kernels_export_is_what_generate_writes(tmp_path: Path) -> None:
    kernel = tg.compile(chain(dtype="float32"), "cpu", on="cpu:2")
    there = tg.generate(chain(dtype="float32"), "cpu", "cpu:2")
    assert contents(kernel.export(tmp_path / "a")) == contents(there.export(tmp_path / "b"))
    assert there.text == cpu.generate(kernel.plan) == kernel.source


def test_a_gpu_kernels_export_is_what_generate_writes(tmp_path: Path) -> None:
    """But for the launch itself a kernel needs no GPU: its export is made of plan, proof and library."""
    g = made("chain, sm_90a")
    kernel = CudaKernel.__new__(CudaKernel)
    kernel.plan, kernel.proof, kernel._exclusive, kernel._programmatic = g.plan, g.certificate, False, None
    kernel._library = HopperLibrary(g.plan)
    assert contents(kernel.export(tmp_path / "a")) == contents(g.export(tmp_path / "b"))
    assert kernel.target == "sm_90a"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_packed_weights_are_laid_out_as_told(tmp_path: Path) -> None:
    """launch.json's formula, element by element, beside what prepare() packs."""
    plan = tg.plan(chain(), "h200")
    library = HopperLibrary(plan, frozenset({"w1", "w2"}))
    launch = library.launch()
    weights = {"w1": torch.randn(192, 256).bfloat16(), "w2": torch.randn(256, 192).bfloat16()}
    assert launch.packed and {m.buffer for m in launch.maps or () if m.packed} == {
        p.buffer.name for p in launch.packed
    }
    for p, (map_name, op) in zip(launch.packed, library.packed.items(), strict=True):
        found, weight = pack(op, weights), weights[p.of[0]]
        assert (
            p.buffer.name == f"packed_{map_name}"
            and tuple(found.shape) == p.buffer.shape
            and found.nbytes == p.buffer.bytes
        )
        tiles, steps, blocks, rows, width = found.shape
        columns = p.first_column + torch.arange(steps * blocks * width).view(
            steps, 1, blocks, 1, width
        ).permute(1, 0, 2, 3, 4)
        row = torch.tensor(p.rows).view(tiles, 1, 1, rows, 1)
        inside = (row >= 0) & (columns < p.first_column + p.columns)
        wanted = torch.where(
            inside,
            weight[row.clamp(min=0), columns.clamp(max=weight.shape[1] - 1)],
            torch.zeros((), dtype=weight.dtype),
        )
        assert torch.equal(found, wanted)


def test_the_same_each_time(tmp_path: Path) -> None:
    both = [contents(tg.generate(chain(M=32), "sm_80", "a100").export(tmp_path / n)) for n in "ab"]
    assert both[0] == both[1]


def test_the_plan_of_the_folder_is_proved_again(tmp_path: Path) -> None:
    g = made("attention over caches, sm_90a")
    folder = g.export(tmp_path)
    assert (
        tg.verify(folder / "plan.json").ok
        and json.loads((folder / "certificate.json").read_text()) == g.certificate.to_dict()
    )
    assert as_json(g.plan) == as_json(Plan.from_json(json.loads((folder / "plan.json").read_text())))


# --- without a compiler, without a GPU ----------------------------------------------------------------------


@pytest.fixture
def no_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise CompilerMissing("NVRTC was not found; pip install nvidia-cuda-nvrtc")

    monkeypatch.setattr(cubin, "version", missing)


@pytest.mark.usefixtures("no_nvrtc")
@pytest.mark.parametrize("name", ["chain, sm_90a", "chain, sm_80"])
def test_without_nvrtc(name: str, tmp_path: Path) -> None:
    """All but the cubin; one that lay there does not stay beside another source."""
    (tmp_path / "kernel.cubin").write_bytes(b"old")
    g = tg.generate(*MADE[name], lowering="persistent")
    assert (
        g.cubin is None
        and "NVRTC was not found" in g.remark
        and (g.text, g.launch) == (made(name).text, made(name).launch)
    )
    files = contents(g.export(tmp_path))
    assert set(files) == {
        "kernel.cu",
        "plan.json",
        "certificate.txt",
        "certificate.json",
        "launch.json",
        "launcher.cpp",
    }
    assert json.loads(files["launch.json"])["cubin"] is None


@pytest.mark.usefixtures("no_nvrtc")
def test_the_command_says_that_there_is_no_cubin(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["generate", *SMALL, "--target", "sm_80", "-o", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert (
        "for target sm_80, planned for a100" in out
        and "no cubin: NVRTC was not found" in out
        and "compiled for" not in out
    )


def test_no_gpu_is_asked_for_where_machine_and_target_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked() -> str:
        raise AssertionError("the driver was looked for")

    for module in (select, portable_target):
        monkeypatch.setattr(module, "missing", asked)
    for target, on in (
        ("sm_90a", "h200"),
        ("sm_80", "rtx-4090"),
        ("sm_80", "h200"),
        ("cpu", "cpu:2"),
        ("auto", "a100"),
        ("cuda", "h100"),
    ):
        assert tg.generate(chain(), target, on).target == (
            target if target not in ("auto", "cuda") else GPUS[on].architecture
        )


# --- which target -------------------------------------------------------------------------------------------


def as_if_here(
    monkeypatch: pytest.MonkeyPatch,
    capability: tuple[int, int] | None,
    sms: int = 132,
    name: str = "NVIDIA H200",
) -> None:
    """This machine has such a GPU, or none."""
    monkeypatch.setattr(select, "missing", lambda: "" if capability else "no NVIDIA driver")
    monkeypatch.setattr(portable_target, "missing", lambda: "" if capability else "no NVIDIA driver")
    major, minor = capability or (0, 0)

    class Properties:
        multi_processor_count = sms

    Properties.name, Properties.major, Properties.minor = name, major, minor  # type: ignore[attr-defined]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: name)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Properties)


HERE = [
    (None, 0, "", ("cpu", "cpu", "")),
    ((9, 0), 132, "NVIDIA H200", ("sm_90a", "h200", "sm_90a")),
    ((9, 0), 132, "NVIDIA H100 80GB HBM3", ("sm_90a", "h100", "sm_90a")),
    ((9, 0), 114, "NVIDIA H100 PCIe", ("sm_90a", "h100-pcie", "sm_90a")),
    ((9, 0), 78, "NVIDIA Hopper", ("sm_90a", "h200:78", "sm_90a")),
    ((8, 0), 108, "NVIDIA A100-SXM4-80GB", ("sm_80", "a100", "sm_80")),
    ((8, 6), 82, "NVIDIA GeForce RTX 3090", ("sm_80", "rtx-3090", "sm_86")),
    ((12, 0), 170, "NVIDIA GeForce RTX 5090", ("sm_80", "rtx-5090", "sm_120")),
    ((8, 9), 76, "NVIDIA GeForce RTX 4090 Laptop GPU", ("sm_80", "gpu:76", "sm_89")),
    ((7, 5), 72, "Quadro", ("cpu", "cpu", "")),
]


@pytest.mark.parametrize(("capability", "sms", "name", "wanted"), HERE, ids=[h[2] or "no GPU" for h in HERE])
def test_the_default_is_what_run_takes(
    monkeypatch: pytest.MonkeyPatch, capability: Any, sms: int, name: str, wanted: tuple[str, str, str]
) -> None:
    as_if_here(monkeypatch, capability, sms, name)
    place, architecture = select.to_write("auto")
    assert (place.target.name, place.machine.name, architecture) == wanted
    assert select.to_run("auto", chain()) is place.target is place.forms
    if place.target.on_gpu:
        assert select.gpu_machine() == place.machine and select.to_write("cuda") == (place, architecture)


def test_sm_80_on_a_hopper_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    as_if_here(monkeypatch, (9, 0))
    """The machine stays; configs are those of the target; choices measured for sm_90a do not count."""
    place, architecture = select.to_write("sm_80")
    assert (place.target.name, place.forms.name, place.machine.name, architecture) == (
        "sm_80",
        "sm_80",
        "h200",
        "sm_90",
    )
    assert place.label == "h200, sm_80" and select.to_write("sm_80", "h200") == (place, architecture)


def test_machines_elsewhere_where_the_gpu_here_takes_another_target(monkeypatch: pytest.MonkeyPatch) -> None:
    as_if_here(monkeypatch, (8, 6), 82, "NVIDIA GeForce RTX 3090")
    assert (
        select.to_write("sm_90a")[0].machine.name == "h200"
        and select.to_write("cpu")[0].machine.name == "cpu"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "cpu"),
        (["--machine", "h200", "--lowering", "persistent"], "sm_90a"),
        (["--machine", "rtx-4090"], "sm_80"),
        (["--target", "sm_80"], "sm_80"),
    ],
)
def test_the_command_says_which_target(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: list[str],
    said: str,
) -> None:
    as_if_here(monkeypatch, None)
    assert main(["generate", *SMALL, *arguments, "-o", str(tmp_path / "out")]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert f"for target {said}, planned for " in first and ("compiled for" in first) == (said != "cpu")
    assert (
        tmp_path / "out" / ("kernel.cpp" if said == "cpu" else "kernel.cu")
    ).is_file() and "launch.json" in second
    assert main(["generate", *SMALL, *arguments, "-o", str(tmp_path / "out"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["target"] == said and report["cubin"] == (said != "cpu") and "plan.json" in report["files"]


def test_launches_from_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert (
        main(
            [
                "generate",
                *SMALL,
                "--machine",
                "h200",
                "--lowering",
                "multi_launch",
                "--programmatic",
                "-o",
                str(tmp_path),
                "--json",
            ]
        )
        == 0
    )
    files = json.loads(capsys.readouterr().out)["files"]
    assert {
        "0_up/kernel.cubin",
        "1_down/launch.json",
        "launch.json",
        "launcher.cpp",
        "certificate.json",
    } <= set(files)


@pytest.mark.parametrize("verb", ["run", "compare", "trace", "tune", "generate"])
def test_one_list_of_targets(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, *SMALL, "--target", "some"]) == 2
    assert (
        "unknown target 'some'; expected one of auto, sm_90a, sm_80, cpu, interpret, cuda-emulated, or cuda"
        in capsys.readouterr().err
    )


def test_what_another_target_wrote_does_not_stay(tmp_path: Path) -> None:
    """A folder that tilegen wrote holds one kernel; what is not a kernel's stays, and so does a folder of
    somebody else's."""
    tg.generate(chain(), "sm_80", "a100").export(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    assert {"kernel.cu", "launcher.cpp"} <= contents(tmp_path).keys()
    tg.generate(chain(), "cpu").export(tmp_path)
    assert contents(tmp_path).keys() & {"kernel.cu", "kernel.cubin", "launcher.cpp"} == set()
    assert {"kernel.cpp", "notes.txt"} <= contents(tmp_path).keys()
    launches = tmp_path / "launches"
    tg.generate(chain(), "cpu").export(launches)
    tg.generate(chain(), "sm_90a", "h200", lowering="multi_launch").export(launches)
    assert "kernel.cpp" not in contents(launches) and "0_up/kernel.cu" in contents(launches)
    other = tmp_path / "other"
    other.mkdir()
    (other / "kernel.cu").write_text("mine")
    tg.generate(chain(), "cpu").export(other)
    assert (other / "kernel.cu").read_text() == "mine"


def test_what_is_generated_is_shown_in_a_few_lines() -> None:
    """In a notebook too: plan and target, neither source nor machine code."""
    shown = repr(tg.generate(chain(), "sm_90a", "h200"))
    assert "chain" in shown and "sm_90a" in shown and len(shown) < 1000, shown[:2000]


# --- a size that moves --------------------------------------------------------------------------------------


def ranges_of(regime: dict[str, Any]) -> str:
    """As a certificate tells them."""
    return ", ".join(f"{least} … {most}" for least, most in regime["ranges"])


@pytest.mark.parametrize("target, source", [("sm_90a", "kernel.cu"), ("cpu", "kernel.cpp")])
def test_a_size_that_moves_has_a_kernel_for_each_range(target: str, source: str, tmp_path: Path) -> None:
    on = "h200" if target == "sm_90a" else None
    g = tg.generate(moving("gpt3_mlp"), target, on, lowering="persistent")
    out = g.export(tmp_path / "out")
    whole = json.loads((out / "launch.json").read_text())
    found = [(r["least"], r["most"]) for r in whole["regimes"]]
    ends = [*range(8, 257, 8), 300]
    narrow = [(first + 1, last) for first, last in zip([0, *ends], ends, strict=False)]
    assert found == (narrow if target == "sm_90a" else [(1, 300)])
    for r in whole["regimes"]:
        folder = out / r["folder"]
        told = json.loads((folder / "launch.json").read_text())
        assert told["moves"]["most"] == told["sizes"]["M"] == r["most"] == r["ranges"][-1][1]
        assert "tg_sizes" in (folder / source).read_text()
        assert f"M = {ranges_of(r)}" in (folder / "certificate.txt").read_text()
        assert tg.verify(tg.Plan.from_json(json.loads((folder / "plan.json").read_text()))).ok
        assert not (folder / "launcher.cpp").exists()
    if target == "sm_90a":
        formulas = {m["name"]: m for m in whole["regimes"][-1]["tensor_maps"]}
        assert formulas["up_a"]["shape"] == ["96", "M"] and g.has_cubin
        holds = [f["holds"] for p in told["parameters"] for f in p["fields"] if f["name"] == "sizes"]
        assert holds == ["int32: the value of the size that moves; then 4 bytes of nothing"]


def test_a_size_that_moves_may_have_launches_for_each_range(tmp_path: Path) -> None:
    g = tg.generate(moving("gpt3_mlp"), "sm_90a", "h200", lowering="multi_launch", programmatic=True)
    out = g.export(tmp_path / "out")
    for r in json.loads((out / "launch.json").read_text())["regimes"]:
        folder = out / r["folder"]
        told = json.loads((folder / "launch.json").read_text())
        assert told["moves"]["ranges"] == r["ranges"] and told["moves"]["given"].startswith("in each launch")
        assert f"M = {ranges_of(r)}" in (folder / "certificate.txt").read_text()
        for launch in told["launches"]:
            own = json.loads((folder / launch["folder"] / "launch.json").read_text())
            assert launch["programmatic"] and own["programmatic"]
            assert own["moves"]["most"] == own["sizes"]["M"] == r["most"]
            text = (folder / launch["folder"] / "kernel.cu").read_text()
            assert "tg_sizes" in text and "griddepcontrol.wait" in text
            assert (folder / launch["folder"] / "kernel.cubin").exists()
        assert not (folder / "launcher.cpp").exists()


def test_launches_of_a_size_that_moves_need_a_gpu() -> None:
    with pytest.raises(TargetError, match="'multi_launch' launches on a GPU, the target is cpu"):
        tg.generate(moving("gpt3_mlp"), "cpu", lowering="multi_launch")


def test_a_kernel_of_a_size_that_moves_is_the_one_that_runs() -> None:
    g = tg.generate(moving("gpt3_mlp"), "cpu")
    assert g.text == tg.compile(moving("gpt3_mlp"), "cpu").source
