"""The wheel, built without an index: it holds what tilegen needs and no more, and works from any folder.

Its templates are in the cache's keys.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.wheels import ROOT, SIZES, WITHOUT_TORCH, build

SPEC = ["gpt3_mlp.py", *(word for size in SIZES for word in ("-s", size))]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("wheel"))


class Installed:
    """An unpacked wheel, and a folder elsewhere to work in."""

    def __init__(self, wheel: Path, folder: Path):
        self.package, self.work, self.cache = folder / "site", folder / "work", folder / "cache"
        self.work.mkdir()
        with zipfile.ZipFile(wheel) as files:
            files.extractall(self.package)
        (self.work / "gpt3_mlp.py").write_text((ROOT / "examples" / "gpt3_mlp.py").read_text())

    def python(self, *arguments: str) -> str:
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.package),
            "TILEGEN_CACHE_DIR": str(self.cache),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        done = subprocess.run(
            [sys.executable, *arguments], cwd=self.work, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def fingerprint(self) -> str:
        return self.python(
            "-c", "import tilegen.ops; from tilegen.runtime.cache import fingerprint; print(fingerprint())"
        )


@pytest.fixture
def installed(wheel: Path, tmp_path: Path) -> Installed:
    made = Installed(wheel, tmp_path)
    assert made.python("-c", "import tilegen; print(tilegen.__file__)").strip() == str(
        made.package / "tilegen" / "__init__.py"
    )
    return made


def test_the_wheel_holds_all_that_is_needed_and_no_more(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as files:
        names = set(files.namelist())
        metadata = files.read(next(n for n in names if n.endswith("/METADATA"))).decode()
    info = {n for n in names if ".dist-info/" in n}
    source = {f"tilegen/{p.relative_to(ROOT / 'tilegen')}" for p in (ROOT / "tilegen").rglob("*.py")}
    templates = {
        f"tilegen/templates/{p.relative_to(ROOT / 'templates')}"
        for p in (ROOT / "templates").rglob("*")
        if p.suffix in (".j2", ".hpp", ".cpp")
    }
    data = {f"tilegen/{name}" for name in ("py.typed", "residuals.json")}
    assert templates and names - info == source | templates | data
    assert any(n.endswith("LICENSE") for n in info) and any(n.endswith("entry_points.txt") for n in info)
    for line in ("Requires-Python: >=3.10", "License: MIT", "Description-Content-Type: text/markdown"):
        assert line in metadata


def test_an_installed_tilegen_plans_generates_and_runs_from_another_folder(installed: Installed) -> None:
    installed.python("-c", WITHOUT_TORCH, "gpt3_mlp.py", *SIZES)
    assert "proved" in installed.python("-m", "tilegen", "verify", *SPEC)
    assert "ran on target cpu" in installed.python(
        "-m", "tilegen", "run", *SPEC, "--target", "cpu", "--repeat", "1"
    )
    installed.python("-m", "tilegen", "generate", *SPEC, "-o", "out")
    assert (installed.work / "out" / "plan.json").is_file()


def test_version(installed: Installed) -> None:
    version = installed.python("-c", "import tilegen; print(tilegen.__version__)").strip()
    assert installed.python("-m", "tilegen", "--version").split() == ["tilegen", version]
    assert (installed.package / f"tilegen-{version}.dist-info").is_dir()


def test_what_is_kept_for_another_text_is_not_found(installed: Installed) -> None:
    """An upgrade must not run the kernels of the version before."""
    seen = [installed.fingerprint()]
    assert installed.fingerprint() == seen[0]
    for file in (
        "templates/schedule.j2",
        "templates/cuda/threads/gemm.cu.j2",
        "templates/cpu/gemm.cpp.j2",
        "schedule/planner.py",
    ):
        path = installed.package / "tilegen" / file
        path.write_text(path.read_text() + "\n")
        seen.append(installed.fingerprint())
    assert len(set(seen)) == 5


def test_a_tilegen_without_templates_says_so(installed: Installed) -> None:
    (installed.package / "tilegen" / "templates").rename(installed.package / "elsewhere")
    script = (
        "import tilegen.config as c\ntry: c.own_templates()\nexcept c.TilegenError as error: print(error)"
    )
    said = installed.python("-c", script)
    assert (
        "templates" in said and str(installed.package / "tilegen") in said and "install tilegen anew" in said
    )
