"""The cache: request key -> plan and certificate, plan digest -> binary. Content-keyed, safe between
processes, never half-written.

An entry is a folder that is built under a temporary name and renamed into place, so it is there whole or not
at all. A lock per key keeps two processes from building the same entry. Every file's hash is recorded; an
entry changed afterwards is refused.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from tilegen.config import cache_dir, own_templates
from tilegen.errors import CacheError
from tilegen.graph.residual import DATA
from tilegen.ops.base import foreign_ops

log = logging.getLogger(__name__)
WORDS = {"plans": ("plan", "planned and proved"), "binaries": ("binary", "compiled")}


class CorruptEntryError(CacheError):
    """A cache entry does not have the content it was stored with."""


@lru_cache(maxsize=1)
def _own() -> str:
    """Hash of tilegen's own sources, of what they learned from measured times, and of templates: names and
    texts."""
    digest, sources = hashlib.sha256(), Path(__file__).resolve().parent.parent
    for folder, pattern in [(sources, "*.py"), (sources, DATA), (own_templates(), "*.j2")]:
        for path in sorted(folder.rglob(pattern)):
            digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def fingerprint() -> str:
    """Names the code that makes plans and binaries: tilegen's, and the sources and templates of users' own
    ops."""
    digest = hashlib.sha256(_own().encode())
    for k in foreign_ops():
        source = sys.modules[type(k).__module__].__file__
        templates = sorted(Path(k.templates).rglob("*.j2")) if k.templates else []
        for path in [Path(source)] if source else []:
            digest.update(path.read_bytes())
        for path in templates:
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def key_of(*parts: str) -> str:
    return hashlib.sha256("\0".join((fingerprint(), *parts)).encode()).hexdigest()[:32]


def _folder(level: str) -> Path:
    folder = cache_dir() / level
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CacheError(
            f"cannot create the cache folder {folder}: {error.strerror}; set TILEGEN_CACHE_DIR to a"
            " writable one"
        ) from None
    return folder


@contextmanager
def locked(folder: Path, key: str) -> Iterator[None]:
    try:
        lock = os.open(folder / f"{key}.lock", os.O_CREAT | os.O_RDWR)
    except OSError as error:
        raise CacheError(
            f"the cache folder {folder} is not writable: {error.strerror}; set TILEGEN_CACHE_DIR to a"
            " writable one"
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)  # which unlocks it, as a crash does


def load(level: str, key: str) -> dict[str, Path] | None:
    """The files of an entry by name, checked against their hashes; None when there is no entry."""
    entry, start = cache_dir() / level / key, time.perf_counter()
    try:
        if not entry.exists():  # asked before it is read: another process may put it in place meanwhile
            log.debug("%s %s is not in the cache", level, key)
            return None
        meta = json.loads((entry / "meta.json").read_text())
        files = {name: entry / name for name in meta["files"]}
        for name, path in files.items():
            if hashlib.sha256(path.read_bytes()).hexdigest() != meta["files"][name]:
                raise CorruptEntryError(
                    f"cache entry {entry}: {name} was changed after it was stored; remove the entry or run"
                    " `tilegen cache clear`"
                )
    except (FileNotFoundError, NotADirectoryError):
        if not entry.exists():  # cleared meanwhile
            return None
        raise CorruptEntryError(
            f"cache entry {entry} is incomplete; remove it or run `tilegen cache clear`"
        ) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise CorruptEntryError(
            f"cache entry {entry}: meta.json is not readable; remove the entry or run `tilegen cache clear`"
        ) from None
    log.info(
        "%s of %s: from the cache in %.3f s",
        WORDS[level][0],
        meta.get("note", "?"),
        time.perf_counter() - start,
    )
    log.debug("%s %s: %s", level, key, entry)
    return files


def get_or_build(level: str, key: str, build: Callable[[Path], Mapping[str, str]]) -> dict[str, Path]:
    """The entry's files. build(folder) writes them into a fresh folder and gives notes for meta.json; it runs
    in one process at a time.

    CacheError names the folder where an entry cannot be written (the disk is full); nothing of it is left
    then.
    """
    files = load(level, key)
    if files is not None:
        return files
    folder = _folder(level)
    with locked(folder, key):
        files = load(level, key)  # another process may have built it meanwhile
        if files is not None:
            return files
        for left in folder.glob(f".{key}-*"):  # by a process that was killed: nobody else builds this key now
            shutil.rmtree(left, ignore_errors=True)
        return _built(folder, key, level, build)


def _built(folder: Path, key: str, level: str, build: Callable[[Path], Mapping[str, str]]) -> dict[str, Path]:
    """The files of a new entry, written aside and renamed into place."""
    entry, temporary, start = folder / key, None, time.perf_counter()
    try:
        temporary = Path(tempfile.mkdtemp(prefix=f".{key}-", dir=folder))
        notes = build(temporary)
        hashes = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(temporary.iterdir())}
        (temporary / "meta.json").write_text(json.dumps({"files": hashes, **notes}, indent=1))
        os.rename(temporary, entry)
    except BaseException as error:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
        if not isinstance(error, OSError):
            raise
        why = error.strerror or error
        raise CacheError(
            f"cannot write into the cache folder {folder}: {why}; free space, or set TILEGEN_CACHE_DIR"
        ) from None
    log.info("%s %s in %.2f s", WORDS[level][1], notes.get("note", "?"), time.perf_counter() - start)
    log.debug("%s %s: %s", level, key, entry)
    return {name: entry / name for name in hashes}


def entries() -> list[tuple[str, str, int, str]]:
    """(level, key, bytes, notes) of everything in the cache."""
    rows = []
    for level in ("plans", "binaries"):
        folder = cache_dir() / level
        for entry in sorted(folder.iterdir()) if folder.is_dir() else []:
            if entry.is_dir() and not entry.name.startswith("."):
                size = sum(p.stat().st_size for p in entry.iterdir())
                meta = entry / "meta.json"
                try:
                    note = str(json.loads(meta.read_text())["note"])
                except (OSError, ValueError, KeyError, TypeError):
                    note = "(not readable)"
                rows.append((level, entry.name, size, note))
    return rows


def clear() -> int:
    """Remove everything; gives the number of entries."""
    count = len(entries())
    for level in ("plans", "binaries"):
        shutil.rmtree(cache_dir() / level, ignore_errors=True)
    return count
