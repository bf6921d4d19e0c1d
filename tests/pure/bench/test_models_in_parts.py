"""A result file of whole models that several runs fill, and a model that is not ready in time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import models
from benchmarks.compiled_tables import of_models
from benchmarks.models import File, Worker, models_of, remarks_of
from tests.pure.bench.test_compiled_tables import row

BEGUN = {"date": "2026-11-29T22:52:02", "commit": "7a66d84", "run": "python -m benchmarks.models bert"}


def sides(model: str) -> list[dict[str, Any]]:
    return [row(model, side, [us, us]) for side, us in (("eager", 3.0), ("inductor", 2.0), ("tilegen", 1.0))]


def test_models_of_an_earlier_run_stay_with_how_they_were_measured(tmp_path: Path) -> None:
    out, begun = tmp_path / "models.json", dict(BEGUN)
    for n, name in enumerate(("bert", "vit", "t5")):
        earlier = json.loads(out.read_text()) if n else None
        file = File(out, {**begun, "run": f"python -m benchmarks.models {name}"}, earlier)
        file.take(sides(name))
    found = json.loads(out.read_text())
    assert models_of(found) == ["bert", "vit", "t5"]
    assert found["remarks"] == [
        "bert by `python -m benchmarks.models bert` (commit 7a66d84, 2026-11-29T22:52)",
        "vit by `python -m benchmarks.models vit` (commit 7a66d84, 2026-11-29T22:52)",
    ]
    assert "3 models: geometric mean 2.00" in of_models(found)


def test_what_a_file_has_is_not_measured_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out, begun = tmp_path / "models.json", list[str]()
    file = File(out, dict(BEGUN))
    file.take(sides("bert"))
    for name in ("vit", "t5"):
        file.note(name, f"{name}: not ready in 9 s")

    class Absent:
        def __init__(self, name: str, gpu: int, *given: Any):
            begun.append(name)
            self.name, self.gpu = name, gpu

        def is_ready(self) -> bool:
            return False

        def why(self) -> str:
            return f"{begun[-1]}: not here"

    monkeypatch.setattr(models, "Worker", Absent)
    monkeypatch.setattr(models.torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(models, "environment", dict)
    monkeypatch.setattr(models.sys, "argv", ["models", "bert", "vit", "--more", "-o", str(out)])
    models.main()
    monkeypatch.setattr(models.sys, "argv", [*models.sys.argv, "--batch", "8"])
    with pytest.raises(SystemExit):
        models.main()
    found = json.loads(out.read_text())
    assert begun == ["vit"] and found["notes"] == ["t5: not ready in 9 s", "vit: not here"]
    assert models_of(found) == ["bert"]
    assert (
        remarks_of(found)
        == found["remarks"]
        == ["bert by `python -m benchmarks.models bert` (commit 7a66d84, 2026-11-29T22:52)"]
    )


def test_a_model_that_is_not_ready_in_time_is_said_to_be_late(tmp_path: Path) -> None:
    worker = Worker("bert", 0, [], 0.0, tmp_path)
    assert not worker.is_ready()
    assert worker.why() == "bert: not ready in 0 s"


def test_a_model_that_ends_while_it_waits_for_its_turn_has_no_rows(tmp_path: Path) -> None:
    worker = Worker("bert", 0, [], 60.0, tmp_path)
    worker.limit.cancel()
    worker.process.kill()
    worker.process.wait()
    assert worker.rows() == [] and worker.why() == "bert: ended: "
