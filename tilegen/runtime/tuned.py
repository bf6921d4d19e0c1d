"""Measured choices: `tilegen tune` times the model's best few plans on the GPU and remembers the fastest;
`tilegen.compile` then uses it.

Remembered in the cache folder (tuned.json), per place (tilegen.graph.forms.Place.label) and program. Nothing
of the kind ships with tilegen: its own workloads are planned as everybody's are.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from tilegen.config import cache_dir, write_whole
from tilegen.errors import CacheError, PlanError
from tilegen.frontend.program import Call, Program
from tilegen.options import Options
from tilegen.runtime.cache import locked


@dataclass(frozen=True)
class Tuned:
    """The fastest of `tried` plans of a program: its options, its µs when measured, and the lowering:
    multi_launch where one launch of all ops is slower. ops, tensors: the program's, in order, which the
    options name."""

    program: str
    sizes: Mapping[str, Any]
    options: Options
    us: float
    tried: int
    lowering: str = "persistent"
    ops: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()

    def of(self, program: Program) -> Tuned:
        """The same in the names of a program of the same structure."""
        ops, tensors = _names(program)
        of_op = dict(zip(self.ops, ops, strict=True))
        of_tensor = dict(zip(self.tensors, tensors, strict=True))

        def renamed(option: str, key: str) -> str:
            if option == "policies" and "->" not in key:
                return of_tensor.get(key, key)
            return "->".join(of_op[op] for op in key.split("->"))

        moved: dict[str, Any] = {
            f.name: tuple((renamed(f.name, key), value) for key, value in given)
            for f in fields(self.options)
            if isinstance(given := getattr(self.options, f.name), tuple)
        }
        options = replace(self.options, **moved)
        return replace(self, program=program.name, options=options, ops=ops, tensors=tensors)

    def to_json(self) -> dict[str, Any]:
        options = {
            k: dict(v) if isinstance(v, tuple) else v
            for k, v in asdict(self.options).items()
            if v not in ((), "auto")
        }
        found = {
            "program": self.program,
            "sizes": dict(self.sizes),
            "options": options,
            "us": self.us,
            "tried": self.tried,
            "ops": list(self.ops),
            "tensors": list(self.tensors),
        }
        return found if self.lowering == "persistent" else {**found, "lowering": self.lowering}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Tuned:
        return Tuned(
            data["program"],
            data["sizes"],
            Options.from_json(data["options"]),
            data["us"],
            data["tried"],
            data.get("lowering", "persistent"),
            tuple(data["ops"]),
            tuple(data["tensors"]),
        )


def key_of(program: Program) -> str:
    """Names a program by what it computes, wherever and with whatever names it was written: ops, tensors,
    sizes."""
    return _hash(_content(program))


def _content(program: Program) -> str:
    """Tensors are numbered in order."""
    numbers = {t.name: str(n) for n, t in enumerate(program.tensors)}
    tensors = [asdict(replace(t, where="", name=numbers[t.name])) for t in program.tensors]
    calls = [_numbered(c, numbers) for c in program.calls]
    outputs = [numbers[name] for name in program.outputs]
    return json.dumps([tensors, calls, outputs], sort_keys=True, default=str)


def _numbered(c: Call, numbers: Mapping[str, str]) -> dict[str, Any]:
    operands = tuple(replace(o, tensor=numbers[o.tensor]) for o in c.operands)
    made = replace(c, where="", name="", named=True, operands=operands, result=numbers[c.result])
    return {**asdict(made), "attributes": list(c.attributes.items())}


def _names(program: Program) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Of its ops and of its tensors."""
    return tuple(c.name for c in program.calls), tuple(t.name for t in program.tensors)


def _hash(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()[:24]


def lookup(program: Program, on: str) -> Tuned | None:
    """The remembered choice, in the program's names, or that of the same program with the other 16-bit type;
    None where there is none."""
    remembered = _remembered(on)
    content = _content(program)
    # a plan takes as long on either type
    other = re.sub('"(b?)float16"', lambda m: '"float16"' if m[1] else '"bfloat16"', content)
    found = next((remembered[key] for key in map(_hash, (content, other)) if key in remembered), None)
    try:
        return None if found is None else Tuned.from_json(found).of(program)
    except PlanError as error:
        path = cache_dir() / "tuned.json"
        raise CacheError(
            f"{path} was written by another version ({error}): remove it, or tune again"
        ) from None


def _remembered(on: str) -> dict[str, Any]:
    """The entries for a place."""
    return dict(_read(cache_dir() / "tuned.json").get(on, {}))


def remember(program: Program, on: str, tuned: Tuned, path: Path | None = None) -> Path:
    """Write the choice into a file of choices (default: the cache folder's), whole or not at all."""
    path = path or cache_dir() / "tuned.json"
    cache_dir().mkdir(parents=True, exist_ok=True)
    with locked(cache_dir(), "tuned.json"):  # one writer at a time: each adds to what is there
        entries = _read(path)
        ops, tensors = _names(program)
        named = replace(tuned, ops=ops, tensors=tensors)
        entries.setdefault(on, {})[key_of(program)] = named.to_json()
        write_whole(path, json.dumps(entries, indent=1) + "\n")
    return path


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text()))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise CacheError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError) as error:
        raise CacheError(f"{path} is not a file of tuned choices: {error}; remove it") from None


def digest(on: str) -> str:
    """Names all that is remembered for a place."""
    return _hash(json.dumps(_remembered(on), sort_keys=True))


def tuned_options(program: Program, on: str) -> Options:
    """The remembered options of a program, else the planner's own choice."""
    found = lookup(program, on)
    return found.options if found else Options()


def tuned_lowering(program: Program, on: str) -> str:
    """The remembered lowering, or an empty string."""
    found = lookup(program, on)
    return found.lowering if found else ""
