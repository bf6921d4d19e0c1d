"""Find a spec: FILE.py[:name] and the sizes given on the command line."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from tilegen.errors import SpecError, TilegenError
from tilegen.frontend.dims import Dim, dim
from tilegen.frontend.inputs import symbol
from tilegen.frontend.program import Program
from tilegen.frontend.spec import Spec


def load_module(path: str) -> ModuleType:
    """A file of the user's, run.

    Raises:
        SpecError: there is no such file, or it raises something.
    """
    file = Path(path)
    if not file.is_file():
        raise SpecError(f"no such spec file: {path}")
    module_name = f"tilegen_spec_{file.stem}"
    description = importlib.util.spec_from_file_location(module_name, file)
    if description is None or description.loader is None:
        raise SpecError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(description)
    sys.modules[module_name] = module
    try:
        description.loader.exec_module(module)
    except SyntaxError as error:
        raise SpecError(f"{error.msg}: {(error.text or '').strip()}", f"{path}:{error.lineno}") from None
    except TilegenError:
        raise
    except Exception as error:
        raise failed(path, error) from error
    return module


def load_model(where: str) -> Callable[[], Any] | None:
    """The function FILE.py[:name], by default `model`, that gives a model and the arguments of a call; None
    where that is none."""
    path, _, name = where.partition(":")
    found = vars(load_module(path)).get(name or "model")
    return found if isinstance(found, FunctionType) else None


def load_spec(where: str) -> Spec:
    """The @tg.spec function of FILE.py[:name]; the name may be left out when there is one, or one named like
    the file."""
    path, _, name = where.partition(":")
    module, file = load_module(path), Path(path)
    specs = {n: v for n, v in vars(module).items() if isinstance(v, Spec)}
    if not specs:
        raise SpecError(f"{path} has no @tg.spec function")
    if name:
        if name not in specs:
            raise SpecError(f"{path} has no spec {name!r}; it has {', '.join(specs)}")
        return specs[name]
    if len(specs) > 1 and file.stem not in specs:
        raise SpecError(f"{path} has several specs, name one: {', '.join(f'{path}:{n}' for n in specs)}")
    return specs.get(file.stem) or next(iter(specs.values()))


def sizes_of(spec: Spec, given: list[str]) -> dict[str, Any]:
    """M=512 -> {"M": 512}; M=? leaves M open, M=1..512 lets it move; text stays text (dtype=float32)."""
    sizes: dict[str, Any] = {}
    for item in given:
        name, equals, value = item.partition("=")
        if not equals or not value:
            raise SpecError(f"-s {item}: expected NAME=VALUE, such as M=512, or NAME=? to leave it open")
        if name not in spec.parameters:
            raise SpecError(
                f"-s {item}: {spec.name} has no parameter {name!r}; it has {', '.join(spec.parameters)}"
            )
        if "," in value:
            raise SpecError(
                f"-s {item}: one value for each -s, as in -s M=64 -s H=256; compare and tune take lists of"
                " one size, -s M=1,64"
            )
        sizes[name] = parse(name, value)
    return sizes


def parse(name: str, value: str) -> Any:
    if value == "?":
        return symbol(name)
    least, dots, largest = value.partition("..")
    if dots:
        if least != "1" or not largest.isdecimal():
            raise SpecError(f"-s {name}={value}: a size moves from 1, as in {name}=1..512")
        return dim(name, int(largest))
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(value.lower(), value)


def load_program(where: str, given: list[str] | Mapping[str, Any]) -> Program:
    spec = load_spec(where)
    sizes = given if isinstance(given, Mapping) else sizes_of(spec, given)
    try:
        return spec(**sizes)
    except TilegenError:
        raise
    except Exception as error:
        raise failed(where.partition(":")[0], error) from error


def load_moving(where: str, given: list[str]) -> Program | None:
    """The program with the sizes that move by default left to move; None where none does."""
    spec = load_spec(where)
    moves = {name for name, value in spec.parameters.items() if isinstance(value, Dim)}
    rest = [item for item in given if item.partition("=")[0] not in moves]
    return load_program(where, rest) if moves else None


def failed(path: str, error: BaseException) -> SpecError:
    """What the user's own code raised, at its innermost line in the spec file."""
    lines = [
        f.lineno
        for f in traceback.extract_tb(error.__traceback__)
        if Path(f.filename).resolve() == Path(path).resolve()
    ]
    return SpecError(f"{type(error).__name__}: {error}", f"{path}:{lines[-1]}" if lines else path)
