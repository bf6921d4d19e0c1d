"""Charts of what is wrong or no comparison."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tilegen.bench.chart import main


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"cases": []}, "its rows have no entries"),
        ({"rows": [{"workload": "a", "variant": "b", "us": 1.0}]}, "its rows have no sizes and no error"),
    ],
)
def test_a_file_that_is_no_comparison(
    data: Any, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "r.json").write_text(json.dumps(data))
    with pytest.raises(SystemExit):
        main([str(tmp_path / "r.json"), str(tmp_path / "r.svg")])
    assert f"r.json holds no comparison: {said}" in capsys.readouterr().err
    assert not (tmp_path / "r.svg").exists()
