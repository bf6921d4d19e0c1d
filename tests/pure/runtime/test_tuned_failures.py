"""Files of choices that are not."""

from pathlib import Path

import pytest

from tests.gpu.gemms import mlp
from tilegen.errors import CacheError
from tilegen.runtime.tuned import lookup

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def test_not_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEGEN_CACHE_DIR", str(tmp_path))
    (tmp_path / "tuned.json").write_text("{")
    with pytest.raises(CacheError, match=r"tuned.json is not a file of tuned choices.*remove it"):
        lookup(mlp(M=1), "h200")
