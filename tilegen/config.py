"""The knobs of tilegen, one table of environment variables, and its folders."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tilegen.errors import OutputError, TilegenError

KNOBS = {
    "TILEGEN_CACHE_DIR": (
        "where plans and binaries are kept (default: $XDG_CACHE_HOME/tilegen or ~/.cache/tilegen)"
    ),
    "TILEGEN_CXX": "the C++ compiler of the CPU target (default: $CXX, c++, g++, clang++)",
    "TILEGEN_NUM_THREADS": "threads of the CPU target (default: the cores this process may use)",
    "TILEGEN_TIMEOUT_MS": (
        "how long a CPU run may go without finishing a tile before it ends as a HangError (default: 10000)"
    ),
    "TILEGEN_POISON": "1: fill outputs and intermediates with NaN before each run",
    "TILEGEN_NVTX": (
        "1: each launch on a GPU stands in an NVTX range that names its ops; 0: none does (default: where a"
        " profiler listens, which has set NVTX_INJECTION64_PATH)"
    ),
}

# of torch.compile(backend="tilegen"): how much faster than Inductor's kernels a region is by the model, at
# least; 0 takes every region that is supported, such as in tests
min_gain = 1.02
# and the machine whose cost model tells it, such as "h200"; by default that of the GPU where the model is
judge = ""


def knob(name: str, default: str = "") -> str:
    assert name in KNOBS
    return os.environ.get(name, default)


def count(name: str, default: int = 0) -> int:
    """A knob that is a whole number from 1 on; the default where it is not set."""
    text = knob(name)
    if text and not (text.isdecimal() and int(text)):
        raise TilegenError(f"{name} is a whole number from 1 on, given {text!r}")
    return int(text or default)


def cache_dir() -> Path:
    given = knob("TILEGEN_CACHE_DIR")
    if given:
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "tilegen"


def own_templates() -> Path:
    """The folder of tilegen's templates: inside an installed package, beside it in a checkout."""
    package = Path(__file__).resolve().parent
    for folder in (package / "templates", package.parent / "templates"):
        if (folder / "schedule.j2").is_file():
            return folder
    raise TilegenError(f"tilegen's templates are neither in {package} nor beside it: install tilegen anew")


def write_whole(path: Path, text: str) -> None:
    """Write a file whole or not at all: whoever reads it meanwhile sees the old one. OutputError where that
    fails."""
    write_files(path.parent, {path.name: text})


def write_files(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write files into a folder, all of them or none; gives the folder. files: content by name, folders
    allowed in it.

    Raises:
        OutputError: names the file and the reason; what was begun is taken away again, folders included.
    """
    paths = {folder / name: content for name, content in files.items()}
    temporary = {
        path: path if _special(path) else path.with_name(f".{path.name}.{os.getpid()}") for path in paths
    }
    made: list[Path] = []
    path = folder
    try:
        for path, content in paths.items():
            absent = [parent for parent in path.parents if not parent.exists()]
            path.parent.mkdir(parents=True, exist_ok=True)
            made += reversed(absent)
            temporary[path].write_bytes(content.encode() if isinstance(content, str) else content)
        for path, written in temporary.items():
            if written != path:
                written.replace(path)
    except OSError as error:
        for written in set(temporary.values()) - paths.keys():
            with suppress(OSError):
                written.unlink()
        for parent in reversed(made):
            with suppress(OSError):  # it holds what somebody else has put there
                parent.rmdir()
        raise OutputError(f"cannot write {path}: {error.strerror}") from None
    return folder


def _special(path: Path) -> bool:
    """Whether a path is written through, since it must not be replaced: /dev/stdout, a link."""
    return path.is_symlink() or (path.exists() and not path.is_file())
