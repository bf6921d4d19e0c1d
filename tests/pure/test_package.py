"""What the package tells of itself: its names, one line for each object, a log that is silent until asked."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

import tilegen as tg


@tg.spec
def tower(M=8, layers=2):
    """As many linears as asked."""
    x = tg.input("x", (M, 8), "float32")
    for n in range(layers):
        x = tg.linear(x, tg.weight(f"w{n}", (8, 8), "float32"), name=f"op{n}")
    return x


def test_dir_lists_the_public_names_and_no_others() -> None:
    code = (
        "import tilegen as tg, sys; before = dir(tg); [getattr(tg, n) for n in before]; assert dir(tg) =="
        " before; print(*before)"
    )
    names = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert set(names) == {*tg.__all__, "__version__"} == set(dir(tg))


def test_what_is_set_is_found_without_an_import_of_its_own() -> None:
    code = "import tilegen; tilegen.config.min_gain = 0; from tilegen import config; print(config.min_gain)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["0"]


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("log_softmin", "log_softmax"), ("Linear", "linear"), ("conv1d", "conv2d"), ("complie", "compile")],
)
def test_a_name_that_is_not_there_is_told_with_its_nearest(name: str, nearest: str) -> None:
    ops = "abs, add, .*tanh, topk, transpose, upsample, where"
    with pytest.raises(
        AttributeError, match=f"^tilegen has no op {name}; ops: {ops}; nearest: {nearest}$"
    ) as caught:
        getattr(tg, name)
    assert caught.value.name == name and not hasattr(tg, name)


@pytest.mark.parametrize("layers", [1, 3, 40])
def test_one_line_for_each_object(layers: int) -> None:
    program = tower(layers=layers)
    plan = tg.plan(program, "cpu:2")
    for what, words in (
        (tower, ("Spec tower", "M=8", "layers=2")),
        (program, ("Program tower", f"layers={layers}", "x (8, 8)", "op0: linear", f"op{layers - 1}")),
        (plan, ("Plan tower", "M=8", "on cpu", "op0 ", "tiles", "semaphores")),
        (tg.verify(plan), ("Certificate tower", "M = 8", "cpu", "proved", "8 checks")),
    ):
        text = repr(what)
        assert "\n" not in text and len(text) < 600 and all(word in text for word in words), text


def test_a_certificate_that_fails_says_so() -> None:
    from tilegen.runtime.verify import certify
    from tilegen.schedule.expand import expanded

    data = expanded(tg.plan(tower(), "cpu:2"))
    data["semaphores"] = [n + 1 for n in data["semaphores"]]
    assert "NOT proved, fails " in repr(certify(data))


def test_the_log_tells_what_was_made_and_what_was_found(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEGEN_CACHE_DIR", str(tmp_path))
    with caplog.at_level(logging.INFO, "tilegen"):
        tg.compile(tower(), "interpret", on="cpu:2")
        tg.compile(tower(), "interpret", on="cpu:2")
    first, second = [r.getMessage() for r in caplog.records]
    assert first.startswith("planned and proved tower") and first.endswith(" s")
    assert second.startswith("plan of tower") and "from the cache in" in second
    with caplog.at_level(logging.DEBUG, "tilegen"):
        tg.compile(tower(), "interpret", on="cpu:2")
    assert any(r.levelno == logging.DEBUG and str(tmp_path) in r.getMessage() for r in caplog.records)


def test_the_log_is_silent_by_itself(tmp_path: Path) -> None:
    code = (
        "import tilegen as tg\n@tg.spec\ndef f(): return tg.relu(tg.input('x', (4, 8)),"
        " name='y')\ntg.compile(f(), 'interpret')"
    )
    (tmp_path / "run.py").write_text(code)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "run.py")], capture_output=True, text=True, check=True
    )
    assert done.stdout == done.stderr == ""
