"""What all tests share: a cache of their own, one thread for torch, and the markers."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# neither a property's examples nor their making have a time limit: a busy machine must not fail a test
settings.register_profile(
    "tilegen", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tilegen")

FULL = os.environ.get("TILEGEN_FULL") == "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="also run the long tests (as TILEGEN_FULL=1 does)")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "full: long; run with --full or TILEGEN_FULL=1 only")
    config.addinivalue_line("markers", "gpu: needs a GPU")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if FULL or config.getoption("--full"):
        return
    for item in items:
        if item.get_closest_marker("full"):
            item.add_marker(pytest.mark.skip(reason="long: set TILEGEN_FULL=1"))


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Plans and binaries of the tests go to a folder that is gone afterwards; all workers share it."""
    patch = pytest.MonkeyPatch()
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    patch.setenv("TILEGEN_CACHE_DIR", str(shared / "cache"))
    yield
    patch.undo()


@pytest.fixture(autouse=True)
def nothing_known() -> None:
    """How ops were cut before a test, maybe by a model that was patched, is forgotten."""
    if launches := sys.modules.get("tilegen.schedule.launches"):
        launches._cut.cache_clear()


@pytest.fixture(scope="session", autouse=True)
def quick_builds() -> Iterator[None]:
    """Most tests run a CPU kernel once, which is compiled for half as long at -O1."""
    pytest.importorskip("torch")
    from tilegen.targets.cpu import library

    patch = pytest.MonkeyPatch()
    if not FULL:
        patch.setattr(library, "FLAGS", tuple("-O1" if flag == "-O3" else flag for flag in library.FLAGS))
    yield
    patch.undo()


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
