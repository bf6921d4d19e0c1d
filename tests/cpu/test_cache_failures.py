"""A spoiled cache and a missing or failing compiler: errors that say where and what to do, and nothing
half-written left behind."""

import json
import os
import shutil
import stat
from pathlib import Path

import pytest
import torch

import tilegen as tg
from tilegen.cli import main
from tilegen.runtime import cache
from tilegen.runtime.cache import CorruptEntryError
from tilegen.targets.cpu import library as cpu


@tg.spec
def small():
    return tg.linear(tg.input("x", (4, 8), "float32"), tg.weight("w", (8, 8), "float32"), name="y")


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A cache with one plan and one binary."""
    folder = tmp_path_factory.mktemp("filled")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEGEN_CACHE_DIR", str(folder))
        tg.compile(small(), "cpu", on="cpu:2")
    return folder


@pytest.fixture
def stored(filled, tmp_path, monkeypatch):
    """A copy of it, in use."""
    shutil.copytree(filled, tmp_path / "cache")
    monkeypatch.setenv("TILEGEN_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def empty(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEGEN_CACHE_DIR", str(tmp_path / "empty"))
    return tmp_path / "empty"


@pytest.fixture
def compilers(monkeypatch):
    """What was found out about compilers is forgotten before and after."""

    def forget():
        for kept in vars(cpu).values():
            if hasattr(kept, "cache_clear"):
                kept.cache_clear()

    forget()
    monkeypatch.delenv("CXX", raising=False)
    yield
    monkeypatch.undo()
    forget()


def compiled():
    return tg.compile(small(), "cpu", on="cpu:2")


def entry(folder, level):
    [found] = [p for p in (folder / level).iterdir() if p.is_dir()]
    return found


def program(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def is_clean(folder):
    """No half-written entry: every folder holds meta.json and what it lists."""
    for level in ("plans", "binaries"):
        for e in (folder / level).iterdir() if (folder / level).is_dir() else []:
            if e.is_dir():
                files = json.loads((e / "meta.json").read_text())["files"]
                assert {p.name for p in e.iterdir()} == {*files, "meta.json"}
    return True


# ---- changed entries ---------------------------------------------------------------------------------------


def test_a_stored_kernel_is_taken_as_it_is(stored):
    before = sorted(p.stat().st_mtime_ns for p in stored.rglob("*") if p.is_file())
    x, w = torch.randn(4, 8), torch.randn(8, 8)
    assert torch.allclose(compiled()(x, w), x @ w.T, atol=1e-4)
    assert before == sorted(p.stat().st_mtime_ns for p in stored.rglob("*") if p.is_file())


@pytest.mark.parametrize("level", ["plans", "binaries"])
def test_an_entry_that_is_put_in_place_while_it_is_looked_for(stored, level, monkeypatch):
    """By another process, or by a thread that compiles the same: it is not there yet, or it is whole."""
    path, aside, read = entry(stored, level), stored / "aside", Path.read_text

    def and_then_put_in_place(self, *arguments):
        try:
            return read(self, *arguments)
        finally:
            if aside.exists():
                aside.rename(path)

    path.rename(aside)
    monkeypatch.setattr(Path, "read_text", and_then_put_in_place)
    assert cache.load(level, path.name) is None
    monkeypatch.undo()
    monkeypatch.setenv("TILEGEN_CACHE_DIR", str(stored))
    if aside.exists():
        aside.rename(path)
    assert cache.load(level, path.name)


def test_a_cache_that_may_not_be_looked_at(stored, monkeypatch):
    """Another user's home, say: an error of ours that names the entry."""

    def forbidden(self):
        raise PermissionError(13, "Permission denied")

    path = entry(stored, "binaries")
    monkeypatch.setattr(Path, "exists", forbidden)
    with pytest.raises(CorruptEntryError, match=f"{path.name}: meta.json is not readable"):
        cache.load("binaries", path.name)


FILES = [
    ("binaries", "kernel.so"),
    ("binaries", "kernel.cpp"),
    ("plans", "plan.json"),
    ("plans", "certificate.json"),
]


@pytest.mark.parametrize(("level", "name"), FILES)
@pytest.mark.parametrize("content", [b"", b"changed", None])
def test_a_changed_file(stored, level, name, content):
    path = entry(stored, level) / name
    if content is None:
        content = path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1])  # one bit
    path.write_bytes(content)
    with pytest.raises(CorruptEntryError, match="changed after it was stored.*tilegen cache clear") as caught:
        compiled()
    assert isinstance(caught.value, tg.CacheError)
    assert str(path.parent) in str(caught.value) and name in str(caught.value)


@pytest.mark.parametrize(("level", "name"), [*FILES, ("binaries", "meta.json"), ("plans", "meta.json")])
def test_a_missing_file(stored, level, name):
    path = entry(stored, level) / name
    path.unlink()
    with pytest.raises(CorruptEntryError, match="incomplete.*tilegen cache clear") as caught:
        compiled()
    assert str(path.parent) in str(caught.value)


@pytest.mark.parametrize("level", ["plans", "binaries"])
@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"5", b"{}", b'{"files": 5}', b'{"files": ["kernel.so"]}', b"\xff\xfe"]
)
def test_a_changed_meta_json(stored, level, content, capsys):
    path = entry(stored, level) / "meta.json"
    path.write_bytes(content)
    with pytest.raises(CorruptEntryError, match="meta.json.*tilegen cache clear") as caught:
        compiled()
    assert str(path.parent) in str(caught.value)
    # and what the message advises works
    assert main(["cache", "ls"]) == 0
    assert path.parent.name in capsys.readouterr().out
    assert main(["cache", "clear"]) == 0
    assert tg.compile(small(), "interpret", on="cpu:2") is not None and is_clean(stored)


def test_a_folder_where_a_file_should_be(stored):
    path = entry(stored, "plans") / "meta.json"
    path.unlink()
    path.mkdir()
    with pytest.raises(CorruptEntryError, match="tilegen cache clear"):
        compiled()
    assert main(["cache", "ls"]) == 0
    assert main(["cache", "clear"]) == 0


def test_a_file_where_an_entry_should_be(stored):
    path = entry(stored, "plans")
    shutil.rmtree(path)
    path.write_text("")
    with pytest.raises(tg.CacheError) as caught:
        compiled()
    assert str(path) in str(caught.value)


def test_a_crash_of_the_writer_leaves_nothing_behind(stored):
    """What a killed process left is not an entry."""
    left = stored / "plans" / ".0123-left"
    left.mkdir()
    (left / "plan.json").write_text("{")
    assert [row[0] for row in cache.entries()] == ["plans", "binaries"]
    assert compiled() is not None


# ---- a folder that cannot be used --------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["file", "file/below", "/proc/tilegen", "/dev/null"])
def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch, where):
    (tmp_path / "file").write_text("")
    folder = where if where.startswith("/") else str(tmp_path / where)
    monkeypatch.setenv("TILEGEN_CACHE_DIR", folder)
    with pytest.raises(tg.CacheError, match="cannot create the cache folder.*TILEGEN_CACHE_DIR") as caught:
        compiled()
    assert folder in str(caught.value)
    assert main(["cache", "ls"]) == 0
    assert main(["cache", "clear"]) == 0


def test_a_cache_that_fills_up(empty, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache.tempfile, "mkdtemp", full)
    with pytest.raises(tg.CacheError, match="No space left on device") as caught:
        compiled()
    assert str(empty) in str(caught.value)


def test_a_disk_that_is_full_while_an_entry_is_written(empty, monkeypatch, capsys, tmp_path):
    """Some files fit, the next does not: a CacheError that names the folder; the entry is gone, and later it
    can be made."""
    usual = Path.write_text

    def full(path, text, *rest):
        if path.name in ("certificate.json", "meta.json"):
            usual(path, text[: len(text) // 2])
            raise OSError(28, "No space left on device")  # as a write raises it: without a file name
        return usual(path, text, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(tg.CacheError, match="No space left on device.*TILEGEN_CACHE_DIR") as caught:
            compiled()
        assert str(empty) in str(caught.value) and cache.entries() == [] and is_clean(empty)
        assert not [p for p in empty.rglob("*") if p.is_dir() and p.parent != empty]
        spec = tmp_path / "small.py"
        spec.write_text(
            'import tilegen as tg\n\n@tg.spec\ndef small():\n    return tg.relu(tg.input("x", (4, 8)),'
            ' name="y")\n'
        )
        assert main(["run", str(spec)]) == 2
        assert "CacheError" in capsys.readouterr().err
    assert compiled() is not None


def test_an_export_that_fills_the_disk_leaves_nothing(empty, monkeypatch, tmp_path):
    kernel, usual = compiled(), Path.write_bytes

    def full(path, content):
        if "plan.json" in path.name:
            usual(path, content[:9])
            raise OSError(28, "No space left on device")
        return usual(path, content)

    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine").write_text("mine")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        for folder in (tmp_path / "new" / "deep", tmp_path / "there"):
            with pytest.raises(
                tg.OutputError, match="cannot write .*plan.json: No space left on device"
            ) as caught:
                kernel.export(folder)
            assert str(folder) in str(caught.value)
    assert not (tmp_path / "new").exists() and [p.name for p in (tmp_path / "there").iterdir()] == ["mine"]
    (tmp_path / "file").write_text("")
    with pytest.raises(tg.OutputError, match="file/below"):
        kernel.export(tmp_path / "file" / "below")


def test_a_raw_error_of_the_system_names_no_empty_file(monkeypatch, capsys):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tilegen.cli.command_line.info", full)
    assert main(["info"]) == 2
    assert capsys.readouterr().err == "tilegen: No space left on device\n"


def test_a_build_that_fails_is_not_stored(empty):
    def fail(folder):
        (folder / "half").write_text("half")
        raise tg.PlanError("no")

    with pytest.raises(tg.PlanError, match="no"):
        cache.get_or_build("plans", "key", fail)
    assert cache.entries() == [] and is_clean(empty)
    files = cache.get_or_build(
        "plans", "key", lambda folder: (folder / "whole").write_text("whole") and {"note": "later"}
    )
    assert files["whole"].read_text() == "whole"


# ---- compilers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variable", ["TILEGEN_CXX", "CXX"])
@pytest.mark.parametrize("value", ["/nowhere/g++", "no-such-compiler", "/", "g++ -O2"])
def test_a_missing_compiler(empty, compilers, monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    with pytest.raises(tg.CompilerMissing, match="not an executable") as caught:
        compiled()
    assert f"${variable}" in str(caught.value) and repr(value) in str(caught.value)


def test_no_compiler_on_the_path(empty, compilers, monkeypatch, tmp_path):
    monkeypatch.delenv("TILEGEN_CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(tg.CompilerMissing, match=r"g\+\+ or clang\+\+.*TILEGEN_CXX"):
        compiled()
    assert tg.compile(small(), "interpret", on="cpu:2") is not None  # needs none


def test_the_path_is_looked_at_anew(empty, compilers, monkeypatch, tmp_path):
    """A compiler installed in the meantime is found."""
    monkeypatch.delenv("TILEGEN_CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(tg.CompilerMissing):
        cpu.compiler()
    name = program(tmp_path / "g++", "exit 0")
    assert cpu.compiler() == name


def test_a_compiler_that_fails(empty, compilers, monkeypatch, tmp_path, capsys):
    script = program(
        tmp_path / "cxx",
        '[ "$1" = --version ] && echo "cxx 1.0" && exit 0; echo "kernel.cpp:1: no" >&2; exit 3',
    )
    monkeypatch.setenv("TILEGEN_CXX", script)
    with pytest.raises(tg.CompileError) as caught:
        compiled()
    assert (
        script in str(caught.value)
        and "kernel.cpp:1: no" in caught.value.log
        and "tg_run" in caught.value.source
    )
    assert [row[0] for row in cache.entries()] == ["plans"] and is_clean(empty)
    monkeypatch.delenv("TILEGEN_CXX")
    assert compiled() is not None


BROKEN = {
    "version fails": 'echo "no version" >&2; exit 1',
    "version is empty": "exit 0",
    "writes nothing": '[ "$1" = --version ] && echo "cxx 1.0"; exit 0',
    "is killed": '[ "$1" = --version ] && echo "cxx 1.0" && exit 0; kill -9 $$',
    "writes no library": (
        '[ "$1" = --version ] && echo "cxx 1.0" && exit 0; for a; do case $a in *.so) echo text > "$a";;'
        " esac; done"
    ),
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_a_compiler_that_is_broken(empty, compilers, monkeypatch, tmp_path, text):
    script = program(tmp_path / "cxx", text)
    monkeypatch.setenv("TILEGEN_CXX", script)
    with pytest.raises(tg.CompileError) as caught:
        compiled()
    assert script in str(caught.value)
    assert [row[0] for row in cache.entries()] in (["plans"], []), "a useless binary was stored"
    assert is_clean(empty)


def test_a_compiler_that_cannot_be_started(empty, compilers, monkeypatch, tmp_path):
    path = tmp_path / "cxx"
    path.write_bytes(b"\x7fELF no")
    path.chmod(0o755)
    monkeypatch.setenv("TILEGEN_CXX", str(path))
    with pytest.raises(tg.CompileError) as caught:
        compiled()
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "text", [BROKEN["version fails"], BROKEN["version is empty"], None], ids=["fails", "empty", "missing"]
)
def test_info_without_a_usable_compiler(compilers, monkeypatch, tmp_path, capsys, text):
    monkeypatch.setenv("TILEGEN_CXX", program(tmp_path / "cxx", text) if text else str(tmp_path / "cxx"))
    assert main(["info", "--json"]) == 0
    assert str(tmp_path / "cxx") in json.loads(capsys.readouterr().out)["compiler"]


def test_exit_status(empty, compilers, monkeypatch, tmp_path, capsys):
    spec = tmp_path / "small.py"
    spec.write_text(
        'import tilegen as tg\n\n@tg.spec\ndef small():\n    return tg.linear(tg.input("x", (4, 8)),'
        ' tg.weight("w", (8, 8)), name="y")\n'
    )
    monkeypatch.setenv("TILEGEN_CXX", "/nowhere/c++")
    assert main(["run", str(spec)]) == 2
    assert "CompilerMissing" in capsys.readouterr().err
    monkeypatch.setenv("TILEGEN_CACHE_DIR", os.devnull)
    assert main(["run", str(spec)]) == 2
    assert "CacheError" in capsys.readouterr().err
