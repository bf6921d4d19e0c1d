"""The command line: every verb, what it prints and its exit status: 0, 1 when a check fails, 2 for bad
input."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tilegen.cli import main

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MLP = [str(EXAMPLES / "gpt3_mlp.py"), "-s", "M=8", "-s", "H=32", "-s", "I=16"]
SMALL = [*MLP, "-s", "dtype=float32", "--machine", "cpu:2"]
VERBS = ("explain", "plan", "verify", "generate", "run", "compare", "trace", "info", "cache")


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEGEN_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


def called(capsys, *arguments, status=0):
    """(stdout, stderr) of a call that ends with this status."""
    assert main([str(a) for a in arguments]) == status
    return capsys.readouterr()


def tilegen(*arguments, **environment):
    """A process of its own."""
    command = [sys.executable, "-m", "tilegen", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})


# ---- explain, plan, verify ---------------------------------------------------------------------------------


def test_explain(capsys):
    out, _ = called(capsys, "explain", *SMALL)
    assert "up->down" in out and "makespan" in out
    out, _ = called(capsys, "explain", *SMALL, "--json")
    assert any("up->down" in line for line in json.loads(out)["text"])


def test_explain_with_open_sizes(capsys):
    out, _ = called(capsys, "explain", EXAMPLES / "gpt3_mlp.py", "-s", "M=?")
    assert "for open M" in out and "⌈M/" in out


MODEL = """
import torch
from torch import nn
def model():
    layers = nn.Linear(512, 512), nn.Unflatten(1, (2, 256)), nn.Linear(256, 8)
    return nn.Sequential(*layers).eval(), (torch.randn(64, 512),)
def cumulated():
    return (lambda x: x.cumsum(0)), (torch.randn(4, 8),)
def three():
    return 3
def failing():
    raise ValueError("no weights here")
"""


@pytest.fixture
def model(tmp_path):
    file = tmp_path / "net.py"
    file.write_text(MODEL)
    return file


def test_explain_tells_what_torch_compile_takes_of_a_model(capsys, model):
    """On a CPU all that it can; by a GPU's model what pays there; why something is left."""
    out, _ = called(capsys, "explain", model)
    assert out.startswith("1 graph, 1 region of 2 operators\n") and "on a CPU every region is taken" in out
    out, _ = called(capsys, "explain", model, "--machine", "h200")
    assert "µs as a region" in out and "µs left to Inductor" in out
    out, _ = called(capsys, "explain", f"{model}:cumulated", "--json")
    assert any("aten.cumsum.default has no word" in line for line in json.loads(out)["text"])


def test_explain_of_what_is_no_model_says_so(capsys, model):
    for given, said in (
        ([f"{model}:three"], "three() gives a model and a tuple of a call's arguments, given int"),
        ([f"{model}:failing"], "net.py:12: ValueError: no weights here"),
        ([model, "-s", "M=3"], "--machine alone stands beside it"),
        ([model, "--machine", "h300"], "did you mean h200"),
        ([f"{model}:absent"], "has no @tg.spec function"),
    ):
        assert said in called(capsys, "explain", *given, status=2).err


def test_plan(capsys):
    out, err = called(capsys, "plan", *SMALL, "--tile", "up=8x8x16", "--policy", "up->down=row")
    assert "gpt3_mlp on cpu" in out and "h: policy " in out and "row" in out and err == ""


def test_plan_as_json(capsys, tmp_path):
    out, _ = called(
        capsys,
        "plan",
        *SMALL,
        "--json",
        "--tile",
        "up=8x8x16",
        "--split-k",
        "down=2",
        "--tile",
        "down=8x16x8",
        "--order",
        "op_major",
    )
    data = json.loads(out)
    assert (
        data["ops"]["up"]["tile"] == [8, 8, 16]
        and list(data["ops"]) == ["up", "down_k0", "down"]
        and data["order"]["name"] == "op_major"
    )
    (tmp_path / "plan.json").write_text(out)
    out, _ = called(capsys, "verify", tmp_path / "plan.json")
    assert "gpt3_mlp" in out


CHOICES = [
    [],
    ["--machine", "h200", "--target", "interpret", "--cluster", "up=2"],
    ["--machine", "h200", "--target", "interpret", "--cluster", "up=2:m", "--scheduling", "lists"],
    ["--scheduling", "lists", "--order", "banded:2"],
]


@pytest.mark.parametrize("options", CHOICES, ids=str)
def test_an_expanded_plan_passes_verify(capsys, tmp_path, options):
    out, _ = called(capsys, "plan", *SMALL, "--json", "--expand", *options)
    assert json.loads(out)["tiles"]
    (tmp_path / "plan.json").write_text(out)
    out, _ = called(capsys, "verify", tmp_path / "plan.json", "--json")
    certificate = json.loads(out)
    assert certificate["ok"] is True


def test_verify_of_a_spec(capsys):
    out, _ = called(capsys, "verify", *SMALL)
    assert "gpt3_mlp" in out


def test_a_wrong_plan_ends_with_1(capsys, tmp_path):
    out, _ = called(capsys, "plan", *SMALL, "--json", "--expand")
    data = json.loads(out)
    for tile in data["tiles"]:
        for read in tile["ctas"][0]["reads"]:
            read["waits"] = []
    (tmp_path / "plan.json").write_text(json.dumps(data))
    out, _ = called(capsys, "verify", tmp_path / "plan.json", status=1)
    assert "h" in out
    out, _ = called(capsys, "verify", tmp_path / "plan.json", "--json", status=1)
    assert json.loads(out)["ok"] is False


# ---- generate, run, compare --------------------------------------------------------------------------------


def test_generate(capsys, tmp_path):
    out, _ = called(capsys, "generate", *SMALL, "-o", tmp_path / "out", "--json")
    files = {"kernel.cpp", "plan.json", "certificate.txt", "certificate.json", "launch.json"}
    assert set(json.loads(out)["files"]) == files == {p.name for p in (tmp_path / "out").iterdir()}
    assert "gpt3_mlp" in (tmp_path / "out" / "kernel.cpp").read_text()
    out, _ = called(capsys, "verify", tmp_path / "out" / "plan.json")
    out, _ = called(capsys, "generate", *SMALL, "-o", tmp_path / "out")
    assert all(name in out for name in files)


@pytest.mark.parametrize("target", ["cpu", "interpret"])
def test_run(capsys, target):
    out, _ = called(capsys, "run", *SMALL, "--json", "--target", target, "--repeat", 2, "--threads", 2)
    report = json.loads(out)
    assert report["ok"] and report["proved"] and report["error"] < 1e-5
    assert (report["target"], report["program"], report["workers"], len(report["us"])) == (
        target,
        "gpt3_mlp",
        2,
        2,
    )


def test_run_prints_the_explanation(capsys):
    out, _ = called(capsys, "run", *SMALL, "--repeat", 1)
    assert "up->down" in out and "error against float32 torch" in out


def test_compare(capsys, tmp_path):
    sizes = [EXAMPLES / "gpt3_mlp.py", "-s", "M=4,8", "-s", "H=32", "-s", "I=16", "-s", "dtype=float32"]
    out, _ = called(
        capsys,
        "compare",
        *sizes,
        "--json",
        "--rounds",
        2,
        "--threads",
        1,
        "-o",
        tmp_path / "r" / "result.json",
    )
    data = json.loads(out)
    assert {(r["variant"], r["sizes"]["M"]) for r in data["rows"]} == {
        (v, m) for v in ("eager", "tilegen-barrier", "tilegen") for m in (4, 8)
    }
    assert all(r["error"] < 1e-5 and r["us"] > 0 and r["rounds"] == 2 for r in data["rows"])
    assert json.loads((tmp_path / "r" / "result.json").read_text()) == data


MOVES = """import tilegen as tg


@tg.spec
def moves(M=tg.dim("M", max=40), H=16, dtype="float32"):
    x = tg.input("x", (M, H), dtype)
    return tg.relu(tg.linear(x, tg.weight("w", (24, H), dtype), name="up"), name="y")
"""


def test_compare_at_sizes_of_a_spec_whose_size_moves(capsys, tmp_path):
    (tmp_path / "moves.py").write_text(MOVES)
    how = ["--json", "--rounds", 2, "--threads", 1]
    out, _ = called(capsys, "compare", tmp_path / "moves.py", "-s", "M=1,40", *how)
    rows = json.loads(out)["rows"]
    assert {(r["variant"], r["sizes"]["M"]) for r in rows} == {
        (v, m) for v in ("eager", "tilegen", "tilegen-moving") for m in (1, 40)
    }
    assert all(r["error"] < 1e-5 and r["us"] > 0 for r in rows)


# ---- info, cache -------------------------------------------------------------------------------------------


def test_info(capsys):
    out, _ = called(capsys, "info", "--json")
    data = json.loads(out)
    assert {"tilegen", "python", "torch", "compiler", "cache", "targets", "knobs"} <= set(data)
    assert data["cache"] == os.environ["TILEGEN_CACHE_DIR"] == data["knobs"]["TILEGEN_CACHE_DIR"]
    out, _ = called(capsys, "info")
    assert "TILEGEN_CXX" in out and data["torch"] in out


def test_cache(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("TILEGEN_CACHE_DIR", str(tmp_path))
    assert json.loads(called(capsys, "cache", "ls", "--json").out) == []
    called(capsys, "run", *SMALL, "--target", "interpret", "--repeat", 1)
    [row] = json.loads(called(capsys, "cache", "ls", "--json").out)
    assert row["level"] == "plans" and row["bytes"] > 0 and "gpt3_mlp" in row["note"]
    assert "1 entries" in called(capsys, "cache", "ls").out
    assert json.loads(called(capsys, "cache", "clear", "--json").out) == {"removed": 1}
    assert "removed 0" in called(capsys, "cache", "clear").out


# ---- bad input ---------------------------------------------------------------------------------------------

BAD = [
    (["plan", "nowhere.py"], "no such spec file: nowhere.py"),
    (["plan", str(EXAMPLES / "gpt3_mlp.py:other")], "has no spec 'other'; it has gpt3_mlp"),
    (["plan", *MLP, "-s", "N=3"], "no parameter 'N'; it has M, H, I, dtype"),
    (["plan", *MLP, "-s", "M"], "expected NAME=VALUE"),
    (["plan", *MLP, "-s", "M="], "expected NAME=VALUE"),
    (["plan", *MLP, "-s", "H=0"], "at least 1"),
    (["plan", *MLP, "-s", "M=0"], "gpt3_mlp has no rows: there is nothing to plan"),
    (["plan", *MLP, "-s", "M=?"], "left open"),
    (["run", *MLP, "-s", "M=?"], "left open"),
    (["compare", *MLP, "-s", "M=?"], "left open"),
    (["compare", *MLP, "-s", "M=1..9"], "compare measures sizes; give some, as in -s M=1,64,300"),
    (["plan", *MLP, "-s", "dtype=float64"], "float64"),
    (["plan", *MLP, "--tile", "up"], "--tile up: expected NAME=VALUE"),
    (["plan", *MLP, "--tile", "up=8xa"], "--tile up=8xa: expected NAME=VALUE"),
    (["plan", *MLP, "--tile", "up=0x8"], "positive sizes"),
    (["plan", *MLP, "--tile", "none=8x8"], "no such op; the ops are down, up"),
    (["plan", *MLP, "--cluster", "none=2"], "cluster of none: no such op"),
    (["plan", *MLP, "--pingpong", "none"], "pingpong of none: no such op"),
    (["plan", *MLP, "--cluster", "up=2:diagonal"], "k, km, m, n"),
    (["plan", *MLP, "--split-k", "up=x"], "--split-k up=x"),
    (["plan", *MLP, "--policy", "up->down=some"], "no policy 'some'"),
    (["plan", *MLP, "--order", "some"], "unknown order 'some'"),
    (["plan", *MLP, "--scheduling", "some"], "unknown scheduling 'some'"),
    (["plan", *MLP, "--machine", "some"], "unknown machine 'some'"),
    (["run", *MLP, "--target", "some"], "unknown target 'some'"),
    (["run", *MLP, "--threads", "0"], "threads"),
    (["verify", "nowhere.json"], "cannot read the plan file nowhere.json"),
    (["verify", "nowhere"], "no such spec file"),
    (["generate", *SMALL, "-o", "/dev/null/folder"], "/dev/null/folder"),
    (["compare", *SMALL[:-2], "--rounds", "1", "-o", "/dev/null/result.json"], "/dev/null"),
    (["compare", *MLP, "--rounds", "0"], "rounds"),
]


@pytest.mark.parametrize(
    ("arguments", "message"), BAD, ids=lambda v: " ".join(v[-2:]) if isinstance(v, list) else ""
)
def test_bad_input(capsys, arguments, message):
    out, err = called(capsys, *arguments, status=2)
    last = err.splitlines()[-1]  # progress may stand before it
    assert message in last and last.startswith("tilegen: ") and "Traceback" not in err and out == ""


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nothing"],
        ["plan"],
        ["cache"],
        ["cache", "drop"],
        ["run", *MLP, "--repeat", "x"],
        ["plan", *MLP, "--red"],
    ],
)
def test_bad_usage(capsys, arguments):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2 and "usage: " in capsys.readouterr().err


SPECS = {
    "x = (": "wrong.py:1",
    "x = 1": "no @tg.spec function",
    "import nowhere_to_be_found": "nowhere_to_be_found",
    "1 / 0": "wrong.py:1",
    "import tilegen as tg\n@tg.spec\ndef a():\n    pass\n@tg.spec\ndef b():\n    pass": (
        "several specs, name one: "
    ),
    "import tilegen as tg\n@tg.spec\ndef a():\n    return undefined": "wrong.py:4",
    "import tilegen as tg\n@tg.spec\ndef a(M):\n    return tg.relu(tg.input('x', (M, 4)))": "'M'",
    "import tilegen as tg\n@tg.spec\ndef a():\n    return tg.relu(tg.input('x', (4, 0)))": "wrong.py:4",
}


@pytest.mark.parametrize("text", SPECS, ids=lambda t: t.splitlines()[-1].strip())
def test_wrong_spec_files(capsys, tmp_path, text):
    path = tmp_path / "wrong.py"
    path.write_text(text + "\n")
    _, err = called(capsys, "plan", path, status=2)
    assert SPECS[text] in err and "wrong.py" in err and "Traceback" not in err


def test_files_that_are_no_specs(capsys, tmp_path):
    for name, content in (("a.txt", b"hello"), ("b.py", b"\xff\xfe\x00")):
        (tmp_path / name).write_bytes(content)
        _, err = called(capsys, "plan", tmp_path / name, status=2)
        assert name in err
    _, err = called(capsys, "plan", tmp_path, status=2)
    assert "no such spec file" in err


# ---- as a process ------------------------------------------------------------------------------------------


def test_processes():
    done = tilegen("plan", *SMALL, "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["program"] == "gpt3_mlp" and done.stderr == ""
    done = tilegen("plan", *SMALL, "--tile", "up=0")
    assert (
        done.returncode == 2
        and done.stdout == ""
        and "PlanError" in done.stderr
        and "Traceback" not in done.stderr
    )


def test_a_closed_pipe_is_no_error():
    command = f"{sys.executable} -m tilegen plan {' '.join(SMALL)} --json --expand | head -c 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True)
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr and done.stdout == "{"


def test_help_imports_nothing_heavy():
    done = tilegen("--help")
    assert done.returncode == 0 and all(verb in done.stdout for verb in VERBS)
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "tilegen", "--help"], capture_output=True, text=True
    )
    modules = {
        line.rsplit("|", 1)[1].strip() for line in done.stderr.splitlines() if line.startswith("import time:")
    }
    assert "tilegen.cli" in modules and not {"torch", "sympy", "numpy", "jinja2"} & modules


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_a_verb(capsys, verb):
    with pytest.raises(SystemExit) as caught:
        main([verb, "--help"])
    assert caught.value.code == 0 and "--json" in capsys.readouterr().out
