"""Calls of a kernel on a GPU without Python between them: templates/host/fast_call.cpp.

It is built once, by the system's C++ compiler with Python's headers, as torch.compile builds its launchers.
Where there is none, every call takes the way of the first one, through Python, which gives the same and takes
the host three times as long; a warning says so, once.
"""

from __future__ import annotations

import logging
import sys
import sysconfig
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import torch

from tilegen.config import own_templates
from tilegen.errors import CompileError
from tilegen.frontend.program import Tensor
from tilegen.runtime import cache
from tilegen.runtime.arguments import memory
from tilegen.runtime.cxx import compile_source, compiler, version
from tilegen.runtime.driver import fast_functions, missing, refused
from tilegen.runtime.launch_graph import LaunchGraph, StreamLaunch

NAME = "tilegen_fast_call"
TABLE = "__dlpack_c_exchange_api__"  # torch's C functions for DLPack
FLAGS = ("-O2", "-std=c++17", "-shared", "-fPIC", "-fvisibility=hidden")
# dtype -> code and bits (DLPack, DLDataType)
DLPACK_DTYPES = {
    "float32": (2, 32),
    "float16": (2, 16),
    "bfloat16": (4, 16),
    "int32": (0, 32),
    "float8_e4m3fn": (10, 8),
}
CPU, CUDA = 1, 2  # DLPack, DLDeviceType
# launches of which a graph saves the host more than the GPU loses: between calls the first launch of a graph
# does not start early, as one that is started by itself may
MANY = 4
logger = logging.getLogger("tilegen")


def built(flags: tuple[str, ...] = FLAGS) -> Path:
    """The compiled module. CompileError, with the log, where it cannot be built."""
    path, sources = compiler(), own_templates() / "host"
    texts = [source.read_text() for source in sorted(sources.iterdir())]
    key = cache.key_of(NAME, *texts, path, version(path), sys.version, torch.__version__, " ".join(flags))

    def build(folder: Path) -> dict[str, str]:
        headers = [sysconfig.get_paths()["include"], str(Path(torch.__file__).parent / "include")]
        found = (f"-I{sources}", *(f"-isystem{h}" for h in headers))
        compile_source((sources / "fast_call.cpp").read_text(), folder, (*flags, *found), f"{NAME}.so")
        return {"note": "calls of kernels"}

    return cache.get_or_build("binaries", key, build)[f"{NAME}.so"]


def imported(path: Path) -> Any:
    """The module, not yet set up."""
    spec = spec_from_file_location(NAME, path, loader=ExtensionFileLoader(NAME, str(path)))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def set_up(module: Any, functions: tuple[int, ...], current_device: Callable[[], int]) -> Any:
    """It knows torch, and the addresses of the driver's functions (driver.FAST). ImportError where torch has
    no table of functions."""
    table = getattr(torch.Tensor, TABLE, None)
    if table is None:
        raise ImportError(f"torch {torch.__version__} has no {TABLE}")
    recording, tracing = torch._C._len_torch_dispatch_stack, torch._C._is_tracing
    types = (torch.Tensor, torch.nn.Parameter)
    module.setup(table, types, functions, torch.is_grad_enabled, recording, tracing, current_device)
    return module


@lru_cache(maxsize=1)
def host() -> Any:
    """The module for this process's driver; None where there is none, or the module cannot be built."""
    if missing():
        return None
    try:
        return set_up(imported(built()), fast_functions(), torch._C._cuda_getDevice)
    except (CompileError, ImportError) as error:
        logger.warning("calls of kernels go through Python, which takes the host longer: %s", error)
        return None


def made(
    module: Any,
    device: tuple[int, int],
    given: Sequence[Tensor],
    outputs: Sequence[Tensor],
    makers: Sequence[tuple[Callable[..., torch.Tensor], tuple[Any, ...]]],
    fixed: Iterable[torch.Tensor],
    alarms: Sequence[int],
) -> Any:
    """What calls a kernel again: call(*arguments) gives its results, call.into(*arguments, *outputs) writes
    them; NotImplemented where a call is not like those before.

    given, outputs: its arguments and results; makers: what makes each result, and of what; fixed: arguments
    that are always the same; alarms: addresses of int32 words that are negative as long as no launch has
    something to say.
    """
    expected, results = (tuple(map(_expected, tensors)) for tensors in (given, outputs))
    spans = tuple(map(memory, fixed))
    return module.FastCall(device, expected, results, tuple(makers), spans, tuple(alarms), refused)


def _expected(t: Tensor) -> tuple[int, int, tuple[int, ...]]:
    return (*DLPACK_DTYPES[t.dtype], tuple(int(n) for n in t.shape))


def by_size(module: Any, argument: int, axis: int, calls: dict[int, Any]) -> Any:
    """What calls a kernel again whose size is an extent of an argument. calls: by that extent."""
    return module.BySize(argument, axis, calls)


def of_packed(call: Callable[..., Any], parameters: dict[str, Any], versions: Sequence[int]) -> Any:
    """The call, as long as a module's parameters are those that they are now, of these versions, and none
    asks for a gradient; else NotImplemented."""
    return host().Packed(call, parameters, tuple(parameters.values()), tuple(versions))


def add(call: Any, stream: int, launches: Sequence[StreamLaunch], names: Sequence[str]) -> None:
    """From now on it knows this stream. names: of its arguments and outputs. MANY launches are a graph of the
    driver's: one call of it then starts them all."""
    graph = LaunchGraph.of(launches) if len(launches) >= MANY else None
    nodes = graph.nodes if graph else [(0, 0)] * len(launches)
    started = tuple(
        (int(n.config.getPtr()), n.function, n.parameters.address, *node)
        for n, node in zip(launches, nodes, strict=True)
    )
    places = tuple(
        tuple((i, *item) for i, n in enumerate(launches) if name in n.places for item in n.places[name].items)
        for name in names
    )
    call.add(stream, started, places, graph.handle if graph else 0, (tuple(launches), graph))
