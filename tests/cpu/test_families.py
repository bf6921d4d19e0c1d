"""The families that `benchmarks.shapes` draws from: what they compute, what is drawn, what is told of a
refusal."""

from __future__ import annotations

from typing import Any

import pytest

import tilegen as tg
from benchmarks import shapes
from benchmarks.families import SPECS
from benchmarks.workloads import Task, tasks
from tests.moving import drawn

SMALL: dict[str, dict[str, Any]] = {
    "bert_layer": {"B": 2, "S": 5, "H": 32, "heads": 2, "I": 48},
    "vit_layer": {"B": 2, "S": 5, "H": 32, "heads": 2, "I": 48},
    "cross_attention": {"B": 2, "S": 3, "T": 7, "H": 32, "heads": 2},
    "lora": {"M": 7, "H": 24, "R": 8},
    "resnet50_block": {"HW": 5, "C": 8},
    "one_conv": {"HW": 7, "C": 8, "N": 16, "stride": 2},
    "head": {"M": 3, "H": 32, "V": 40},
    "narrow": {"M": 5, "H": 16, "I": 24, "layers": 3},
}


@pytest.mark.parametrize("name", SPECS)
def test_each_is_a_program_that_gives_what_it_says(name: str) -> None:
    program = SPECS[name](**SMALL[name], dtype="float32")
    given = drawn(program)
    wanted = tg.reference(program, *given)
    found = tg.compile(program, "cpu", on="cpu:2")(*given)
    assert float((found - wanted).norm() / wanted.norm()) < 1e-5


def test_a_longer_draw_begins_as_a_shorter_one_and_holds_every_family() -> None:
    few, many = tasks("shapes", 5, 20), tasks("shapes", 5, 200)
    assert many[:20] == few and tasks("shapes", 6, 20) != few
    names = {t.workload for t in many}
    assert names >= SPECS.keys() | {"gpt3_mlp", "llama_mlp", "one_linear", "gpt3_attention", "conv_pair"}
    assert len({str(t) for t in many}) == 200


def test_a_refusal_is_told_with_its_reason(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    odd = Task("shapes", "cross_attention", {"B": 1, "S": 8, "T": 8, "H": 264, "heads": 1})
    found = [Task("shapes", "one_linear", {"M": 8, "N": 64, "K": 64}), odd]
    monkeypatch.setattr(shapes, "tasks", lambda *_: found)
    monkeypatch.setattr(shapes, "all_planned", lambda cells, _: map(shapes.planned, cells))
    assert shapes.main(["--plan"]) == 1
    told = capsys.readouterr().out
    assert "cross_attention B=1 S=8 T=8 H=264 heads=1: FormError" in told and "2 cells, 1 refused" in told
    assert "heads have 264 columns" in told
