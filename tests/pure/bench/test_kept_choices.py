"""Inductor's choices go from call to call and from model to model: benchmarks.choices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch._inductor.codecache import CacheBase
from torch._inductor.utils import fresh_cache

from benchmarks.choices import kept


def timed(**ms: float) -> dict[str, Any]:
    """Choices of one product, as Inductor keeps them."""
    return {"mm": {"inputs": {"highest": ms}}}


def seconds_of(folder: Path, name: str) -> float:
    return float(json.loads((folder / f"{name}.json").read_text())["seconds"])


def test_a_call_begins_with_the_choices_of_the_one_before(tmp_path: Path) -> None:
    with fresh_cache(), kept(tmp_path, "bert-1") as seconds:
        assert seconds == 0.0 and CacheBase().get_local_cache() == {}
        CacheBase().update_local_cache(timed(a=1.0))
    spent = seconds_of(tmp_path, "bert-1")
    assert spent > 0
    with fresh_cache(), kept(tmp_path, "bert-1") as seconds:
        assert seconds == spent and CacheBase().get_local_cache() == timed(a=1.0)
        CacheBase().update_local_cache(timed(a=1.0, b=2.0))
        assert CacheBase().get_local_cache() == timed(a=1.0, b=2.0)
    assert seconds_of(tmp_path, "bert-1") > spent


def test_a_call_that_is_ended_loses_no_choice(tmp_path: Path) -> None:
    with fresh_cache(), kept(tmp_path, "bert-1"):
        CacheBase().update_local_cache(timed(a=1.0))
        assert json.loads((tmp_path / "choices.json").read_text())["cache"] == timed(a=1.0)


def test_a_model_takes_what_another_has_timed_even_meanwhile(tmp_path: Path) -> None:
    """Its own seconds do not hold those of the other."""
    with fresh_cache(), kept(tmp_path, "bert-1"):
        with fresh_cache(), kept(tmp_path, "vit-1") as seconds:
            assert seconds == 0.0
            CacheBase().update_local_cache(timed(b=2.0))
        assert CacheBase().get_local_cache() == timed(b=2.0)
        CacheBase().update_local_cache(timed(a=1.0))
    with fresh_cache(), kept(tmp_path, "gpt2-1") as seconds:
        assert seconds == 0.0 and CacheBase().get_local_cache() == timed(a=1.0, b=2.0)
    assert not (tmp_path / "gpt2-1.json").exists()


def test_choices_of_another_system_are_not_taken(tmp_path: Path) -> None:
    for name, what in (("choices", {"cache": timed(a=1.0)}), ("bert-1", {"seconds": 7.0})):
        (tmp_path / f"{name}.json").write_text(json.dumps({"system": "another", **what}))
    with fresh_cache(), kept(tmp_path, "bert-1") as seconds:
        assert seconds == 0.0 and CacheBase().get_local_cache() == {}


def test_afterwards_torch_keeps_its_choices_alone(tmp_path: Path) -> None:
    with fresh_cache():
        with kept(tmp_path, "bert-1"):
            CacheBase().update_local_cache(timed(a=1.0))
        CacheBase().update_local_cache(timed(b=2.0))
        assert CacheBase().get_local_cache() == timed(b=2.0)
    assert json.loads((tmp_path / "choices.json").read_text())["cache"] == timed(a=1.0)
