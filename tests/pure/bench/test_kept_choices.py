"""Inductor's choices go from call to call: benchmarks.choices."""

from __future__ import annotations

import json
from pathlib import Path

from torch._inductor.codecache import CacheBase
from torch._inductor.utils import fresh_cache

from benchmarks.choices import kept

FIRST, SECOND = {"mm": {"a": 1.0}}, {"mm": {"a": 1.0, "b": 2.0}}


def test_a_call_begins_with_the_choices_of_the_one_before(tmp_path: Path) -> None:
    file = tmp_path / "choices.json"
    with fresh_cache(), kept(file) as seconds:
        assert seconds == 0.0 and CacheBase().get_local_cache() == {}
        CacheBase().update_local_cache(FIRST)
    spent = json.loads(file.read_text())["seconds"]
    assert spent > 0
    with fresh_cache(), kept(file) as seconds:
        assert seconds == spent and CacheBase().get_local_cache() == FIRST
        CacheBase().update_local_cache(SECOND)
    assert json.loads(file.read_text())["cache"] == SECOND and json.loads(file.read_text())["seconds"] > spent


def test_a_call_that_is_ended_loses_no_choice(tmp_path: Path) -> None:
    file = tmp_path / "choices.json"
    with fresh_cache(), kept(file):
        CacheBase().update_local_cache(FIRST)
        assert json.loads(file.read_text())["cache"] == FIRST


def test_choices_of_another_system_are_not_taken(tmp_path: Path) -> None:
    file = tmp_path / "choices.json"
    file.write_text(json.dumps({"system": "another", "seconds": 7.0, "cache": FIRST}))
    with fresh_cache(), kept(file) as seconds:
        assert seconds == 0.0 and CacheBase().get_local_cache() == {}


def test_afterwards_torch_keeps_its_choices_alone(tmp_path: Path) -> None:
    file = tmp_path / "choices.json"
    with fresh_cache():
        with kept(file):
            CacheBase().update_local_cache(FIRST)
        CacheBase().update_local_cache(SECOND)
    assert json.loads(file.read_text())["cache"] == FIRST
