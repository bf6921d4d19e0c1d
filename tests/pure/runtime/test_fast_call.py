"""A call after the first one, in C++: on tensors of a CPU, functions of ours in the driver's place."""

from __future__ import annotations

import ctypes
import shutil
import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from tilegen.errors import TargetError
from tilegen.frontend.program import Tensor
from tilegen.runtime import fast_call
from tilegen.runtime.cxx import WARNINGS

X = Tensor("x", (3, 8), "float32", "input")
Y = Tensor("y", (2, 2), "float32", "output")
STATE = Tensor("cache", (16,), "bfloat16", "state")
LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)
REPLACE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
CAPTURING = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))
SET_NODE = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 3)
LAUNCH_GRAPH = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 2)


@dataclass
class Driver:
    """Notes what it is told. A launch's parameters are two words: the addresses of x and of the output."""

    status: int = 0
    captured: int = 0
    launches: list[tuple[int, ...]] = field(default_factory=list)
    replaced: list[tuple[int, int]] = field(default_factory=list)
    nodes_set: list[tuple[int, ...]] = field(default_factory=list)
    graphs: list[tuple[int, int]] = field(default_factory=list)
    slow: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.functions = (
            LAUNCH(self.launch),
            REPLACE(self.replace),
            CAPTURING(self.capturing),
            SET_NODE(self.set_node),
            LAUNCH_GRAPH(self.launch_graph),
        )

    def launch(self, config: int, function: int, parameters: int, extra: int | None) -> int:
        words = (ctypes.c_uint64 * 3).from_address(parameters)
        before = tuple(words)
        self.slow()
        assert tuple(words) == before, "another call has written parameters that are being read"
        self.launches.append((config, function, *before))
        return self.status

    def replace(self, at: int, address: int) -> int:
        self.replaced.append((at, address))
        return self.status

    def set_node(self, graph: int, node: int, parameters: int) -> int:
        self.nodes_set.append((graph, node, parameters))
        return self.status

    def launch_graph(self, graph: int, stream: int | None) -> int:
        self.graphs.append((graph, stream or 0))
        return self.status

    def capturing(self, stream: int | None, status: Any) -> int:
        status[0] = self.captured
        return 0

    @property
    def addresses(self) -> tuple[int, ...]:
        return tuple(ctypes.cast(f, ctypes.c_void_p).value or 0 for f in self.functions)


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A copy of its own: kernels of this process, where there is a GPU, have theirs."""
    copy = tmp_path_factory.mktemp("fast") / f"{fast_call.NAME}.so"
    shutil.copy(fast_call.built(), copy)
    return fast_call.imported(copy)


@pytest.fixture
def driver(module: Any) -> Driver:
    made = Driver()
    fast_call.set_up(module, made.addresses, lambda: 0)  # type: ignore[arg-type]
    return made


class Call:
    """A call of x and a cache, which gives one tensor."""

    def __init__(self, module: Any, outputs: int = 1, stream: int = 0):
        self.alarm = ctypes.c_int32(-1)
        makers = [(torch.empty, ((2, 2),)) for _ in range(outputs)]
        self.fixed, results = torch.zeros(64), [Y] * outputs
        alarms = [ctypes.addressof(self.alarm)]
        device = fast_call.CPU, 0
        self.call = fast_call.made(module, device, (X, STATE), results, makers, [self.fixed], alarms)
        self.words = (ctypes.c_uint64 * 3)()
        self.map = ctypes.create_string_buffer(128)
        at = ctypes.addressof(self.words)
        places = [
            ((0, at, 0, False), (0, ctypes.addressof(self.map), 64, True)),
            ((0, at + 8, 0, False),),
            *[((0, at + 16, 0, False),) for _ in range(outputs)],
        ]
        self.call.add(stream, ((11, 22, at, 0, 0),), tuple(places), 0, self)
        self.x, self.cache = torch.randn(3, 8), torch.zeros(16, dtype=torch.bfloat16)

    def __call__(self) -> Any:
        return self.call(self.x, self.cache)


def test_a_launch_is_given_the_addresses_of_the_call(module: Any, driver: Driver) -> None:
    call = Call(module)
    y = call()
    addresses = (call.x.data_ptr(), call.cache.data_ptr(), y.data_ptr())
    assert driver.launches == [(11, 22, *addresses)]
    assert driver.replaced == [(ctypes.addressof(call.map), call.x.data_ptr() + 64)]
    assert type(y) is torch.Tensor and y.shape == (2, 2)


def test_only_what_lies_elsewhere_is_moved(module: Any, driver: Driver) -> None:
    call = Call(module)
    call(), call()
    assert len(driver.launches) == 2 and len(driver.replaced) == 1
    call.x = torch.randn(6, 8)[3:]  # a view: its memory begins within another's
    call()
    assert driver.launches[-1][2] == call.x.data_ptr() and len(driver.replaced) == 2


@pytest.mark.parametrize("outputs", [0, 1, 2])
def test_results_are_none_one_tensor_or_a_tuple(module: Any, driver: Driver, outputs: int) -> None:
    results = Call(module, outputs)()
    if outputs == 2:
        assert [type(r) for r in results] == [torch.Tensor] * 2
        assert driver.launches[-1][4] == results[1].data_ptr()
    else:
        assert type(results) is (torch.Tensor if outputs else type(None))


def test_results_go_into_tensors_that_are_there(module: Any, driver: Driver) -> None:
    call, y = Call(module), torch.empty(2, 2)
    assert call.call.into(call.x, call.cache, y) is None
    assert driver.launches[-1][2:] == (call.x.data_ptr(), call.cache.data_ptr(), y.data_ptr())
    for other in ((), (y, y), (y.double(),), (torch.empty(3, 2),), (y.t(),), (torch.empty(2, 4)[:, ::2],)):
        assert call.call.into(call.x, call.cache, *other) is NotImplemented
    with torch.no_grad():
        assert call.call.into(call.x, call.cache, y.requires_grad_()) is None
    assert call.call.into(call.x, call.cache, y) is NotImplemented and len(driver.launches) == 2


def test_a_result_in_the_memory_of_another_tensor_is_left_to_python(module: Any, driver: Driver) -> None:
    call, two = Call(module), Call(module, outputs=2)
    for y in (call.x.view(6, 4)[5, :].view(2, 2), call.fixed[:4].view(2, 2), call.fixed[60:].view(2, 2)):
        assert call.call.into(call.x, call.cache, y) is NotImplemented
    memory = torch.empty(12)
    first, second, apart = memory[:4].view(2, 2), memory[:8][4:].view(2, 2), memory[8:].view(2, 2)
    assert two.call.into(two.x, two.cache, first, first) is NotImplemented
    assert two.call.into(two.x, two.cache, first, second) is None
    assert two.call.into(two.x, two.cache, apart, first) is None and len(driver.launches) == 2


def test_a_parameter_is_a_tensor(module: Any, driver: Driver) -> None:
    call = Call(module)
    call.x = torch.nn.Parameter(call.x)
    with torch.no_grad():
        assert call() is not NotImplemented
    assert call() is NotImplemented and len(driver.launches) == 1


class Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def _strided(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(3, 16)[:, ::2].copy_(x)


def _misplaced(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(25)[1:].view(3, 8).copy_(x)


def _fake(x: torch.Tensor) -> torch.Tensor:
    with FakeTensorMode() as mode:
        return mode.from_tensor(x)


@pytest.mark.parametrize(
    "other",
    [
        torch.Tensor.double, torch.Tensor.int, torch.t, torch.flatten, _strided, _misplaced, _fake,
        torch._neg_view, torch.Tensor.to_sparse, lambda x: x.to("meta"), lambda x: x[:0], lambda x: x[:2],
        lambda x: x.tolist(), lambda x: x.clone().requires_grad_(), lambda x: x.as_subclass(Tagged),
    ],
)  # fmt: skip
def test_a_tensor_of_another_kind_is_left_to_python(module: Any, driver: Driver, other: Any) -> None:
    call = Call(module)
    assert call.call(other(call.x), call.cache) is NotImplemented
    assert not driver.launches
    assert call() is not NotImplemented


class Tagged(torch.Tensor):
    """A subclass may stand for anything."""


def test_a_wrapper_of_torch_func_is_left_to_python(module: Any, driver: Driver) -> None:
    call, seen = Call(module), []

    def mapped(x: torch.Tensor) -> torch.Tensor:
        seen.append(call.call(x, call.cache))
        return x

    torch.vmap(mapped)(torch.randn(2, 3, 8))
    assert seen == [NotImplemented]


def test_a_call_that_is_recorded_or_captured_is_left_to_python(module: Any, driver: Driver) -> None:
    call = Call(module)
    with Mode():
        assert call() is NotImplemented
    driver.captured = 1
    assert call() is NotImplemented
    driver.captured = 0
    seen = []
    torch.jit.trace(lambda x: (seen.append(call()), x + 1)[1], torch.ones(1), check_trace=False)
    assert seen == [NotImplemented] and not driver.launches


def test_too_few_tensors_names_and_alarms_are_left_to_python(module: Any, driver: Driver) -> None:
    call = Call(module)
    assert call.call(call.x) is NotImplemented
    assert call.call(call.x, cache=call.cache) is NotImplemented
    call.alarm.value = 3
    assert call() is NotImplemented
    call.alarm.value = -1
    assert call() is not NotImplemented


def test_another_stream_is_left_to_python(module: Any, driver: Driver) -> None:
    assert Call(module, stream=12)() is NotImplemented


def test_a_size_that_moves_finds_the_call_of_its_extent(module: Any, driver: Driver) -> None:
    call, calls = Call(module), dict[int, Any]()
    moving = fast_call.by_size(module, 0, 1, calls)
    assert moving(call.x, call.cache) is NotImplemented
    calls[8] = call.call
    assert moving(call.x, call.cache) is not NotImplemented and len(driver.launches) == 1
    calls[4] = "no call"
    for other in ((), (call.x[:, :4], call.cache), (call.x[0], call.cache), (3, call.cache), (call.x,)):
        assert moving(*other) is NotImplemented
    assert moving(call.x, cache=call.cache) is NotImplemented and len(driver.launches) == 1


def test_packed_weights_are_used_as_long_as_they_are_the_modules(module: Any, driver: Driver) -> None:
    held = torch.nn.Module()
    held.w1 = torch.nn.Parameter(torch.ones(3))
    held.w2 = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    parameters: Any = held._parameters
    versions = tuple(w._version for w in parameters.values())
    packed = module.Packed(lambda *given: given, parameters, tuple(parameters.values()), versions)
    assert packed(1) is NotImplemented  # w1 asks for a gradient
    with torch.no_grad():
        assert packed(1, 2) == (1, 2) and packed() == ()
        before, held.w1 = held.w1, torch.nn.Parameter(torch.ones(3))
        assert packed(1) is NotImplemented
        held.w1 = before
        assert packed(1) == (1,)
        held.w2.mul_(2)
        assert packed(1) is NotImplemented
    with pytest.raises(ValueError, match="each tensor has a version"):
        module.Packed(print, parameters, tuple(parameters.values()), ())


def test_what_the_driver_refuses_is_named(module: Any, driver: Driver) -> None:
    driver.status = 700  # CUDA_ERROR_ILLEGAL_ADDRESS
    with pytest.raises(TargetError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        Call(module)()


def test_an_address_that_a_map_refused_is_moved_again(module: Any, driver: Driver) -> None:
    call = Call(module)
    driver.status = 1
    with pytest.raises(TargetError, match="CUDA_ERROR_INVALID_VALUE"):
        call()
    driver.status = 0
    call()
    assert len(driver.replaced) == 2 and len(driver.launches) == 1


def test_an_output_that_cannot_be_made_is_an_error(module: Any, driver: Driver) -> None:
    call = Call(module)
    failing = fast_call.made(module, (fast_call.CPU, 0), (), (Y,), [(torch.empty, ((-1,),))], (), [])
    failing.add(0, (), ((),), 0, None)
    with pytest.raises(RuntimeError, match="negative"):
        failing()
    assert call() is not NotImplemented


def test_places_of_other_tensors_are_refused(module: Any) -> None:
    call = fast_call.made(module, (fast_call.CPU, 0), (X,), (), [], (), [])
    with pytest.raises(ValueError, match="places of 2 tensors, the call has 1"):
        call.add(0, (), ((), ()), 0, None)


def test_places_in_launches_that_are_not_there_are_refused(module: Any) -> None:
    call = Call(module, outputs=0)
    with pytest.raises(ValueError, match="a place in launch 1 of 1"):
        call.call.add(1, ((11, 22, 0, 0, 0),), (((1, 0, 0, False),), ()), 0, None)


def test_a_graph_is_told_what_moved_and_launched_once(module: Any, driver: Driver) -> None:
    """Three launches, of which the first reads x, the last the cache, the one between neither: the first call
    sets both, later ones only what lies elsewhere."""
    call, words = Call(module, outputs=0), (ctypes.c_uint64 * 3)()
    at = ctypes.addressof(words)
    launches = tuple((11, 22, at + 8 * n, 30 + n, 40 + n) for n in range(3))
    graphed = fast_call.made(module, (fast_call.CPU, 0), (X, STATE), [], [], [], [])
    graphed.add(0, launches, (((0, at, 0, False),), ((2, at + 16, 0, False),)), 77, call)
    assert graphed(call.x, call.cache) is None
    assert driver.nodes_set == [(77, 30, 40), (77, 32, 42)] and driver.graphs == [(77, 0)]
    assert tuple(words) == (call.x.data_ptr(), 0, call.cache.data_ptr())
    graphed(call.x, call.cache)
    assert len(driver.nodes_set) == 2 and len(driver.graphs) == 2
    moved = torch.randn(3, 8)
    graphed(moved, call.cache)
    assert driver.nodes_set[2:] == [(77, 30, 40)] and words[0] == moved.data_ptr()
    assert len(driver.graphs) == 3 and not driver.launches


def test_a_graph_that_the_driver_refuses_is_an_error(module: Any, driver: Driver) -> None:
    call = Call(module, outputs=0)
    at = ctypes.addressof(call.words)
    graphed = fast_call.made(module, (fast_call.CPU, 0), (X, STATE), [], [], [], [])
    graphed.add(0, ((11, 22, at, 30, 40),), (((0, at, 0, False),), ()), 77, call)
    driver.status = 700
    with pytest.raises(TargetError, match="CUDA driver: "):
        graphed(call.x, call.cache)
    assert driver.nodes_set == [(77, 30, 40)] and not driver.graphs


def test_threads_do_not_write_parameters_that_are_read(module: Any, driver: Driver) -> None:
    """The launch lets others run, and looks at its parameters before and after."""
    call, driver.slow = Call(module), lambda: time.sleep(1e-4)
    mine = [torch.randn(3, 8) for _ in range(4)]
    found: list[Any] = []

    def run(x: torch.Tensor) -> None:
        found.extend(call.call(x, call.cache) for _ in range(50))

    threads = [threading.Thread(target=run, args=(x,)) for x in mine]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(driver.launches) == len(found) == 200
    assert {n[2] for n in driver.launches} == {x.data_ptr() for x in mine}


def test_nothing_is_kept_of_a_call(module: Any, driver: Driver) -> None:
    call = Call(module)
    before = sys.getrefcount(call.x), sys.getrefcount(call.cache), sys.getrefcount(None)
    for _ in range(50):
        result = weakref.ref(call())
        assert result() is None
        call.call(call.x)
    after = sys.getrefcount(call.x), sys.getrefcount(call.cache), sys.getrefcount(None)
    assert before[:2] == after[:2] and abs(after[2] - before[2]) < 10


def test_what_a_stream_needs_lives_as_long_as_the_call(module: Any) -> None:
    native, needed = fast_call.made(module, (fast_call.CPU, 0), (), (), [], (), []), torch.zeros(1)
    native.add(0, (), (), 0, needed)
    kept = weakref.ref(needed)
    del needed
    assert kept() is not None
    del native
    assert kept() is None


def test_it_compiles_without_a_warning() -> None:
    assert fast_call.built((*fast_call.FLAGS, *WARNINGS)).stat().st_size > 0


def test_a_torch_without_the_table_is_told(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_call, "TABLE", "__no_such_table__")
    with pytest.raises(ImportError, match="has no __no_such_table__"):
        fast_call.set_up(module, (0,) * 5, lambda: 0)


def test_without_a_compiler_calls_go_through_python(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TILEGEN_CXX", "no-such-compiler")
    monkeypatch.setattr(fast_call, "missing", lambda: "")
    fast_call.host.cache_clear()
    try:
        assert fast_call.host() is None and fast_call.host() is None
        assert [r.message for r in caplog.records if "through Python" in r.message and "no-such" in r.message]
    finally:
        fast_call.host.cache_clear()
