"""The tutorial's blocks, run in order in an empty folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(python|bash|jinja)\n(.*?)^```", re.S | re.M)
FILE = re.compile(r"^(?:# file: |\{# file: )(\S+)")


def blocks(page: str) -> list[tuple[str, str]]:
    return [(m[1], m[2]) for m in BLOCK.finditer((ROOT / "docs" / page).read_text())]


HERE = {**os.environ, "PYTHONPATH": str(ROOT)}  # this checkout, installed or not


def run_block(language: str, text: str, folder: Path) -> None:
    named = FILE.match(text)
    if named:
        path = folder / named[1]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return
    assert language in ("python", "bash"), f"a {language} block without a file name"
    script = text.replace("tilegen ", f"{sys.executable} -m tilegen ")
    command = [sys.executable, "-c", text] if language == "python" else ["bash", "-euc", script]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=HERE)
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"


def test_tutorial(tmp_path: Path) -> None:
    found = blocks("tutorial.md")
    assert len(found) == 11
    for language, text in found:
        run_block(language, text, tmp_path)


def test_your_model(tmp_path: Path) -> None:
    """In one process, which imports torch once."""
    (_, model), *rest = blocks("your-model.md")
    run_block("python", model, tmp_path)
    assert len(rest) == 5 and all(language == "python" for language, _ in rest)
    run_block("python", "\n".join(text for _, text in rest), tmp_path)


ON_A_GPU = """
from tilegen.frontend.loader import load_program
from tilegen.options import Options
from tilegen.targets.sm90.library import HopperLibrary
import tilegen as tg

program = load_program("unit.py:similarity", {"dtype": "bfloat16"})
library = HopperLibrary(tg.plan(program, "h200"))
assert "tg_run_unit_left" in library.source
"""


def test_its_own_op_compiles_for_a_gpu(tmp_path: Path) -> None:
    files = [
        (language, text)
        for language, text in blocks("tutorial.md")
        if (named := FILE.match(text)) and "unit" in named[1]
    ]
    for language, text in [*files, ("python", ON_A_GPU)]:
        run_block(language, text, tmp_path)


def test_the_example_of_a_model() -> None:
    run_block("python", (ROOT / "examples" / "use_in_a_model.py").read_text(), ROOT)
