"""What the pages quote is what tilegen prints."""

import re
from pathlib import Path

import tilegen as tg
from tilegen.codegen.schedule import schedule_text
from tilegen.loader import load_program

ROOT = Path(__file__).resolve().parents[2]


def quoted(page: str, language: str) -> list[str]:
    """The fenced blocks of a page in one language."""
    fences = re.findall(r"^```(\S*)\n(.*?)^```$", (ROOT / page).read_text(), re.S | re.M)
    return [text for name, text in fences if name == language]


def test_design_example(tmp_path: Path) -> None:
    (tmp_path / "pair.py").write_text("import tilegen as tg\n\n" + quoted("docs/design.md", "python")[0])
    tiles = {"first": (1, 4, 28, 128), "second": (1, 4, 28, 128)}
    plan = tg.plan(load_program(str(tmp_path / "pair.py"), {}), "h200", tiles=tiles, policies={"a": "class"})
    assert quoted("docs/design.md", "c++")[0] in schedule_text(plan)
    assert tg.verify(plan).ok


def test_readme_example() -> None:
    program = load_program(str(ROOT / "examples" / "gpt3_mlp.py"), {"M": 512})
    text = tg.explain(program, "h200")
    block = next(b for b in quoted("README.md", "") if b.startswith("h: written by up"))
    for line in block.splitlines()[:-2]:
        assert line in text, line
    assert quoted("README.md", "c++")[0] in schedule_text(tg.plan(program, "h200"))
    certificate = next(b for b in quoted("README.md", "") if "proved" in b)
    said = tg.verify(tg.plan(program, "h200")).text()
    for line in certificate.splitlines()[:-1]:
        assert line in said, line
