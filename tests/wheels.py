"""The wheel: how it is built, and a trial of it by every Python found here (make wheels).

A trial installs the wheel and what it requires into a fresh environment, then works elsewhere. Torch is
the exception: most Pythons would have to download gigabytes of it, so it is installed where --torch names it.
What needs none is tried everywhere: plan, proof, explanation, cache key, text, and its C++ compiled; with
torch a kernel is run, and torch.compile takes "tilegen" for a model that never imports it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("tilegen", "templates", "tests", "examples", "benchmarks", "docs")
FILES = ("setup.py", "README.md", "LICENSE")
SIZES = "M=24 H=64 I=48 dtype=float32".split()

WITHOUT_TORCH = """
import sys
import tilegen as tg
from tilegen.targets.cpu.emit import generate
from tilegen.targets.sm90 import emit as hopper
from tilegen.frontend.loader import load_program
from tilegen.runtime.cache import fingerprint
from tilegen.targets.cpu.library import Library

example, sizes = sys.argv[1], sys.argv[2:]
program = load_program(example, sizes)
plan = tg.plan(program, "cpu:2")
assert tg.verify(plan).ok and "up->down" in tg.explain(program, "h200", target="cpu")
assert "tg_wait" in generate(plan) and Library(plan).create()
assert "wgmma" in hopper.generate(tg.plan(load_program(example, {"M": 64}), "h200")).text
assert "torch" not in sys.modules
print(fingerprint())
"""


BACKEND = """
import torch
from torch._dynamo.utils import counters

model = torch.nn.Sequential(torch.nn.Linear(48, 64), torch.nn.GELU(), torch.nn.Linear(64, 48)).eval()
x = torch.randn(7, 48)
with torch.no_grad():
    torch.testing.assert_close(torch.compile(model, backend="tilegen")(x), model(x))
assert counters["tilegen"]["regions"] == 1, counters["tilegen"]
"""


def build(folder: Path) -> Path:
    """The wheel, made in this folder from a copy of the tree without a package index."""
    tree = folder / "tree"
    for name in FOLDERS:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    for name in FILES:
        shutil.copy(ROOT / name, tree)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "-w",
        str(folder),
        str(tree),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(folder.glob("tilegen-*.whl"))


def requirements(wheel: Path) -> list[str]:
    """What the wheel requires when it is installed without extras."""
    with zipfile.ZipFile(wheel) as files:
        name = next(n for n in files.namelist() if n.endswith(".dist-info/METADATA"))
        listed = Parser().parsestr(files.read(name).decode()).get_all("Requires-Dist", [])
    return [r for r in listed if "extra ==" not in r]


def pythons() -> list[Path]:
    """One interpreter for each Python from 3.10 on: those on the PATH, then pyenv's and uv's."""
    homes = [Path.home() / ".pyenv/versions", Path.home() / ".local/share/uv/python"]
    kept = [p for home in homes if home.is_dir() for p in sorted(home.glob("*3.*/bin/python3"))]
    named = [Path(found) for minor in range(10, 15) if (found := shutil.which(f"python3.{minor}"))]
    found: dict[str, Path] = {}
    for python in [*named, *kept]:
        asked = subprocess.run(
            [python, "-c", "import venv, sys; print('%d.%d' % sys.version_info[:2])"],
            capture_output=True,
            text=True,
        )
        version = re.fullmatch(r"3\.(\d+)", asked.stdout.strip())
        if version and int(version[1]) >= 10:
            found.setdefault(asked.stdout.strip(), python)
    return list(found.values())


def trial(python: Path, wheel: Path, folder: Path, torch: str = "") -> None:
    """Install and use the wheel with this Python, from a folder that is not the checkout."""
    home, work = folder / "venv", folder / "work"
    work.mkdir(parents=True)
    environment = {**os.environ, "TILEGEN_CACHE_DIR": str(folder / "cache")}
    environment.pop("PYTHONPATH", None)

    def call(*command: str | Path) -> str:
        done = subprocess.run(
            [str(c) for c in command], cwd=work, env=environment, capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(
                f"{' '.join(map(str, command))}: status {done.returncode}\n{done.stdout}{done.stderr}"
            )
        return done.stdout

    call(python, "-m", "venv", home)
    own, example = home / "bin" / "python", work / "gpt3_mlp.py"
    call(
        own,
        "-m",
        "pip",
        "install",
        "-q",
        *([torch] if torch else []),
        *(r for r in requirements(wheel) if torch or not r.startswith("torch")),
    )
    call(own, "-m", "pip", "install", "-q", "--no-deps", wheel)
    shutil.copy(ROOT / "examples" / "gpt3_mlp.py", example)
    call(own, "-c", WITHOUT_TORCH, example, *SIZES)
    sizes = [word for size in SIZES for word in ("-s", size)]
    call(home / "bin" / "tilegen", "verify", example, *sizes)
    if torch:
        call(home / "bin" / "tilegen", "run", example, *sizes, "--target", "cpu")
        call(home / "bin" / "tilegen", "generate", example, *sizes, "-o", "out")
        assert (work / "out" / "plan.json").is_file()
        call(own, "-c", BACKEND)


def main(arguments: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser("tests.wheels", description="Try the wheel with every Python found here.")
    p.add_argument(
        "pythons",
        nargs="*",
        type=Path,
        help="interpreters (default: one of each version from 3.10 on that is found)",
    )
    p.add_argument(
        "--torch", default="", metavar="torch==2.13.0", help="install this torch, and try what needs one"
    )
    options = p.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        wheel = build(Path(folder))
        for n, python in enumerate(options.pythons or pythons()):
            trial(python, wheel, Path(folder) / str(n), options.torch)
            version = subprocess.run([python, "-V"], capture_output=True, text=True).stdout.strip()
            print(
                f"{version} ({python}): {wheel.name} works",
                "" if options.torch else "as far as it needs no torch",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
