"""kernel(x, w1, w2) on a GPU: launches on torch's current stream, safe to capture, several streams at
once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tilegen.config import count
from tilegen.errors import ArgumentError, HangError, SpillError, TargetError
from tilegen.frontend.program import Program
from tilegen.kernels.generated import Generated, of_library
from tilegen.kernels.gpu_kernel import GpuKernel, PerStream, without_memory
from tilegen.kernels.kernel import Kernel, travelled
from tilegen.proof.checker import Certificate
from tilegen.runtime.cache import fingerprint
from tilegen.runtime.data import spoiled
from tilegen.runtime.driver import Counters, Parameters, Place, missing
from tilegen.runtime.launch import MISPLACED
from tilegen.runtime.launch_graph import StreamLaunch
from tilegen.schedule.hang import describe_hang
from tilegen.schedule.plan import Plan
from tilegen.targets.sm80.library import PortableLibrary
from tilegen.targets.sm90.kernel import NOTE_WORDS
from tilegen.targets.sm90.library import HopperLibrary
from tilegen.targets.sm90.packing import held_whole, packed_once, unpack
from tilegen.tools.trace import Trace

CudaLibrary = HopperLibrary | PortableLibrary
logger = logging.getLogger("tilegen")


@dataclass
class _Workspace:
    """What one stream, or one captured graph, may use: counters and intermediates."""

    counters: Counters
    intermediates: dict[str, torch.Tensor]


@dataclass
class _Launch:
    """The parameters of launches there; the addresses of tensors that they have now, and where each stands.
    Who launches holds the guard: parameters are read until the launch is enqueued."""

    parameters: Parameters
    addresses: list[int]
    places: list[Place]
    guard: threading.Lock


class CudaKernel(GpuKernel):
    """A plan on a GPU. A hang is raised by the next call or by check(). Keep a kernel until its launches have
    ended, and as long as a graph that captured them: counters, packed weights and the hang record are its
    own. Replays of one graph must follow each other, as CUDA has it; two copies of it must not run side by
    side. After a HangError everything since the last check() is to be thrown away, replays too.

    exclusive: the user's word that no other tilegen kernel with static lists runs beside this one (on another
    stream, in another process); launches are then programmatic, not cooperative, and follow each other
    faster.
    programmatic: whether a launch may start while the one before ends; None: as the library knows best.
    """

    def __init__(
        self,
        plan: Plan,
        certificate: Any,
        library: CudaLibrary,
        exclusive: bool = False,
        weights: dict[str, torch.Tensor] | None = None,
        programmatic: bool | None = None,
        program: Program | None = None,
        size: int | None = None,
        plan_at: Callable[[int], Plan] | None = None,
        copies: dict[str, torch.Tensor] | None = None,
        once: frozenset[str] = frozenset(),
    ):
        super().__init__(plan, certificate, library, weights or {}, program, size, plan_at)
        self._library, self._exclusive, self._programmatic = library, exclusive, programmatic
        self._launch = library.launcher(exclusive, programmatic)
        # the record of a hang; from MISPLACED on that of a position
        self._hang = torch.full((16,), -1, dtype=torch.int32).pin_memory()
        self._hang_view: Any = self._hang.numpy()
        self._said = memoryview(self._hang.numpy())  # type: ignore[arg-type]
        self._packed = packed_once(library.packed, self._bound, {} if copies is None else copies)
        self._once = once
        for name in once:
            self._bound[name] = without_memory(self._bound[name])
        self._libraries: dict[frozenset[str], CudaLibrary] = {frozenset(): library} if not self._bound else {}
        self._workspaces = PerStream[_Workspace]()
        self._launches = PerStream[_Launch]()
        self._notes = 0
        self._patience_ns = 1_000_000 * count("TILEGEN_TIMEOUT_MS", 10000)

    @property
    def generated(self) -> Generated:
        return of_library(
            self.plan, self.proof, self._library, self._library.launch(self._exclusive, self._programmatic)
        )

    @property
    def packed(self) -> Mapping[str, torch.Tensor]:
        return self._packed

    @property
    def bound(self) -> Mapping[str, torch.Tensor]:
        """The arguments that prepare() has fixed. Those that it holds packed alone are unpacked at each
        look."""
        return {name: self.unpacked(name) if name in self._once else a for name, a in self._bound.items()}

    def unpacked(self, name: str) -> torch.Tensor:
        weight = torch.empty_like(self._bound[name], memory_format=torch.contiguous_format)
        unpack(weight, name, self._library.packed, self._packed)
        return weight

    @property
    def workspace_bytes(self) -> int:
        return super().workspace_bytes + 4 * self._library.counter_words

    @property
    def programmatic(self) -> bool | None:
        """Whether a launch may start while the one before ends; None: as the library knows best."""
        return self._programmatic

    def __reduce__(self) -> tuple[Any, ...]:
        kind = type(self._library)
        return _remade, (
            self.plan,
            self._library.plan,
            self.proof,
            fingerprint(),
            kind,
            self._exclusive,
            self.bound,
            self._programmatic,
            self.program,
            self.size,
            self.plan_at,
        )

    def at(self, plan: Plan, program: Program | None, size: int) -> Kernel:
        """As Kernel.at; tensor maps are its own."""
        made = super().at(plan, program, size)
        assert isinstance(made, CudaKernel)
        made._launches = PerStream[_Launch]()
        return made

    def prepare(self, /, **weights: torch.Tensor) -> CudaKernel:
        """A kernel with some arguments fixed; their contents must not change any more: they may be packed
        tile by tile, once."""
        return self.prepared(weights, {})

    def prepared(
        self,
        weights: Mapping[str, torch.Tensor],
        copies: dict[str, torch.Tensor],
        once: frozenset[str] | None = None,
    ) -> CudaKernel:
        bound = self._with_bound(weights)
        prepared = CudaKernel(
            self.plan,
            self.proof,
            self._library_packing(frozenset(bound) if once is None else once),
            self._exclusive,
            bound,
            self._programmatic,
            self.program,
            self.size,
            self.plan_at,
            copies,
            once or frozenset(),
        )
        # a launch may load packed weights before what stands before it in the stream has ended
        torch.cuda.current_stream().synchronize()
        # one copy of the code on the GPU, however many weights it is prepared for
        prepared._libraries = self._libraries
        return prepared

    def held_packed(self, names: frozenset[str]) -> Mapping[str, tuple[str, ...]]:
        library = self._library_packing(names)
        found = held_whole(self.plan.graph, library.packed.values())
        return {name: forms for name, forms in found.items() if name in names}

    def _library_packing(self, names: frozenset[str]) -> CudaLibrary:
        """The kernel that reads these packed where it can."""
        if names not in self._libraries:
            self._libraries[names] = _packing(type(self._library), self._library.plan, names)
        return self._libraries[names]

    # --- launching it ---------------------------------------------------------------------------------------

    def _run(
        self, held: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], made: bool, stream: int
    ) -> None:
        if self._said[0] >= 0 or self._said[MISPLACED // 4] >= 0:
            self.check()
        tensors = [*held, *outputs]
        addresses = list(map(torch.Tensor.data_ptr, tensors))
        launch = self._launches(stream, lambda: self._first(tensors, addresses, stream))
        if self.poison:
            for t in (*outputs, *self._workspace_of(stream).intermediates.values()):
                spoiled(t)
        with launch.guard:
            if addresses != launch.addresses:
                if not made:
                    self._refuse_shared(held, outputs)
                self._move(launch, tensors, addresses)
            self._launch(launch.parameters, stream)
        if made:
            self._remember(stream, lambda: (self.launch_on(stream),))

    def launch_on(self, stream: int) -> StreamLaunch:
        """Its launch on a stream where it was called, with parameters of its own."""
        launch = self._launches.there(stream)
        with launch.guard:
            parameters = Parameters(launch.parameters.raw)
        names = (*self._given_names, *self.plan.outputs)
        places = {name: self._library.place(parameters, name) for name in names}
        return StreamLaunch(self._launch.config(stream), self._launch.function, parameters, places)

    @property
    def _alarms(self) -> Sequence[int]:
        return self._hang.data_ptr(), self._hang.data_ptr() + MISPLACED

    def _workspace_of(self, stream: int) -> _Workspace:
        return self._workspaces(
            stream, lambda: _Workspace(Counters(self._library.counter_words), self._intermediates(stream))
        )

    def _first(self, tensors: Sequence[torch.Tensor], addresses: list[int], stream: int) -> _Launch:
        """All tensor maps and pointers of a launch; the next ones move them. That its tensors fit is looked
        at then: nothing is at address 0."""
        workspace, names = self._workspace_of(stream), (*self._given_names, *self.plan.outputs)
        self._refuse_elsewhere(self._bound.values())
        found = dict(zip(names, addresses, strict=True))
        found |= {name: a.data_ptr() for name, a in self._bound.items()}
        found |= {name: a.data_ptr() for name, a in workspace.intermediates.items()}
        parameters = self._library.parameters(
            found,
            {name: a.data_ptr() for name, a in self._packed.items()},
            workspace.counters.address,
            self._hang.data_ptr(),
            self._patience_ns,
            self._notes,
            self.size,
        )
        places = [self._library.place(parameters, name) for name in names]
        return _Launch(parameters, [0] * len(addresses), places, threading.Lock())

    def _move(self, launch: _Launch, tensors: Sequence[torch.Tensor], addresses: list[int]) -> None:
        before, launch.addresses = launch.addresses, [0] * len(addresses)  # should one be refused
        for n, (new, old) in enumerate(zip(addresses, before, strict=True)):
            if new != old:
                self._refuse_elsewhere(tensors[n : n + 1])
                launch.places[n].move(new)
        launch.addresses = addresses

    def _refuse_elsewhere(self, tensors: Iterable[torch.Tensor]) -> None:
        for a in tensors:
            if a.device != self._device:
                raise ArgumentError(f"a tensor is on {a.device}, the kernel is on {self._device}")

    def trace(self, *arguments: torch.Tensor) -> Trace:
        """Run once with time stamps taken inside the kernel: when each tile waited, loaded, multiplied and
        stored, on which SM."""
        if not isinstance(self._library, HopperLibrary):
            raise TargetError(
                f"only the kernel for sm_90a can be traced; this one is for {self._library.architecture}"
            )
        library = HopperLibrary(self.plan, frozenset(self._bound), variant="trace")
        traced = CudaKernel(self.plan, self.proof, library, self._exclusive, self._bound)
        words = library.ctas * (library.generated.turns + 1) * NOTE_WORDS
        notes = torch.zeros(5, words, dtype=torch.int32, device=self._device)
        for launch in notes:  # the first load the code; back to back, as in use; the last is read
            traced._notes, traced._launches = launch.data_ptr(), PerStream[_Launch]()
            traced.fast, traced._remembered = None, set()  # which would take its notes where the last one did
            traced(*arguments)
        traced.check()
        return Trace.read(
            self.plan, notes[-1].cpu().numpy().reshape(-1, NOTE_WORDS), library.ctas, library.generated.turns
        )

    # --- hangs ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Wait for all launches so far.

        Raises:
            HangError: one of them gave up waiting; it names the tile, the semaphore and its posts.
            ArgumentError: one of them was given a position that left no room in a cache; it wrote nothing
            there.
        """
        torch.cuda.synchronize(self._device)
        if self._hang_view[0] < 0:
            return self._refuse_misplaced()
        rank, cta_rank, operand, step, semaphore, seen, target, size = (int(n) for n in self._hang_view[:8])
        self._hang_view[:] = -1
        for workspace in self._workspaces:
            workspace.counters.zero()
        record = (rank, cta_rank, operand, step, semaphore, seen, target)
        if self.plan_at is None:
            raise HangError(describe_hang(self.plan, *record))
        raise HangError(describe_hang(self.plan_at(size), *record, over=self._library.plan))

    def _refuse_misplaced(self) -> None:
        number, value = (int(n) for n in self._hang_view[MISPLACED // 4 :][:2])
        if number < 0:
            return
        self._hang_view[:] = -1
        found = self._positions[number]
        raise ArgumentError(
            f"in an earlier call, which appended nothing, {found.problem(value)}", found.where
        )


def _packing(kind: type[CudaLibrary], plan: Plan, names: frozenset[str]) -> CudaLibrary:
    """The kernel that reads these packed; where ptxas spills registers of it, the one that packs nothing."""
    try:
        return kind(plan, names)
    except SpillError as error:
        logger.info("%s: not packed: %s", plan.program, str(error).partition(";")[0])
        return kind(plan)


def _remade(
    plan: Plan,
    text: Plan,
    certificate: Certificate,
    made_by: str,
    kind: type[CudaLibrary],
    exclusive: bool,
    bound: dict[str, torch.Tensor],
    programmatic: bool | None,
    program: Program | None,
    size: int | None,
    plan_at: Callable[[int], Plan] | None,
) -> CudaKernel:
    """A kernel from a pickle, on the GPU that is current here; TargetError where there is none. text: the
    plan that its text has, over what moves where a size does."""
    if missing():
        raise TargetError(f"{plan.program}: this kernel runs on a GPU: {missing()}")
    library = _packing(kind, text, frozenset(bound))
    proof = certificate if size else travelled(plan, certificate, made_by)
    kernel = CudaKernel(plan, proof, library, exclusive, bound, programmatic, program, size, plan_at)
    torch.cuda.current_stream().synchronize()  # as in prepare
    return kernel
