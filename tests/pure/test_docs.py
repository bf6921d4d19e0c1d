"""What the pages quote is what tilegen prints."""

import re
import runpy
from pathlib import Path

import pytest
import torch

import tilegen as tg
from docs import api, policies, support
from docs.kernels.write import KERNELS, text
from tilegen.codegen.schedule import schedule_text
from tilegen.frontend.loader import load_program
from tilegen.runtime.data import relative_error

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


def test_readme_example(tmp_path: Path) -> None:
    """The README's spec, kernel and module, at a size that a CPU runs in no time."""
    code = quoted("README.md", "python")[0]
    assert "H=12288, I=6144" in code
    (tmp_path / "readme.py").write_text(code.replace("H=12288, I=6144", "H=96, I=64"))
    found = runpy.run_path(str(tmp_path / "readme.py"))
    w1, w2, x = (torch.randn(n, k).bfloat16() / k**0.5 for n, k in ((64, 96), (96, 64), (64, 96)))
    y = found["layer"](w1, w2)(x)
    want = torch.nn.functional.gelu(x.float() @ w1.float().T, approximate="tanh") @ w2.float().T
    assert relative_error(y, want) < 1e-2
    block = torch.nn.Sequential(torch.nn.Linear(96, 64), torch.nn.SiLU()).eval()
    swapped = found["swap"](Named(block), torch.randn(5, 96))
    x = torch.randn(9, 96)
    torch.testing.assert_close(swapped(x), block(x))


class Named(torch.nn.Module):
    """A block whose argument is x."""

    def __init__(self, inner: torch.nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def test_the_interface_is_told_as_it_is() -> None:
    """`python -m docs.api` writes it anew."""
    assert api.DOCUMENT.read_text() == api.document() and not api.missing()


def test_what_runs_where_is_what_the_targets_say() -> None:
    """`python -m docs.support` writes it anew."""
    text = support.README.read_text()
    assert text == support.written(text)


def test_what_a_target_has_no_form_for_is_left_out() -> None:
    assert not support.has_form(support._attention(64), "float32", "sm_90a")
    assert support.has_form(support._attention(64), "float32", "cpu")


def test_readme_is_short() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 130 and max(map(len, lines)) <= 110


@pytest.mark.parametrize("name", KERNELS)
def test_the_kernels_to_read_are_what_is_generated(name: str) -> None:
    """`python -m docs.kernels.write` writes them anew."""
    assert (ROOT / "docs" / "kernels" / name).read_text() == text(*KERNELS[name])


def test_cusyncs_policies_are_points_of_the_lattice() -> None:
    """The table that docs/proof.md quotes; each of cuSync's policies is a point, and the halo is waited
    for."""
    table = list(policies.lines())
    assert "\n".join(table) in (ROOT / "docs" / "proof.md").read_text()
    named = {row.split(" | ")[-1].removesuffix(" |") for row in table[2:]} - {""}
    assert named == {"RowSync", "TileSync", "StridedSync", "RowSync, with the halo"}
