"""kernel(x, w1, w2) on a GPU: launches on torch's current stream, safe to capture, several streams at
once."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tilegen.config import count, knob
from tilegen.errors import ArgumentError, HangError, SpillError, TargetError
from tilegen.frontend.program import Program
from tilegen.kernels.generated import Generated, of_library
from tilegen.kernels.gpu_kernel import GpuKernel, PerStream
from tilegen.kernels.kernel import Kernel, travelled
from tilegen.proof.checker import Certificate
from tilegen.runtime.cache import fingerprint
from tilegen.runtime.driver import Counters, Parameters, missing
from tilegen.runtime.launch import MISPLACED
from tilegen.schedule.hang import describe_hang
from tilegen.schedule.plan import Plan
from tilegen.targets.sm80.library import PortableLibrary
from tilegen.targets.sm90.kernel import NOTE_WORDS
from tilegen.targets.sm90.library import HopperLibrary, pack
from tilegen.tools.trace import Trace

CudaLibrary = HopperLibrary | PortableLibrary
logger = logging.getLogger("tilegen")
KEPT = 256  # launches whose tensor maps are kept, by the addresses of their tensors


@dataclass
class _Workspace:
    """What one stream, or one captured graph, may use: counters and intermediates."""

    counters: Counters
    intermediates: dict[str, torch.Tensor]


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
    ):
        super().__init__(plan, certificate, library, weights or {}, program, size, plan_at)
        self._library, self._exclusive, self._programmatic = library, exclusive, programmatic
        self._launch = library.launcher(exclusive, programmatic)
        # the record of a hang; from MISPLACED on that of a position
        self._hang = torch.full((16,), -1, dtype=torch.int32).pin_memory()
        self._hang_view = self._hang.numpy()
        self._packed = {name: pack(op, self._bound) for name, op in library.packed.items()}
        self._libraries: dict[frozenset[str], CudaLibrary] = {frozenset(): library} if not self._bound else {}
        self._workspaces = PerStream[_Workspace]()
        self._launches: OrderedDict[tuple[int, ...], Parameters] = OrderedDict()
        # of each workspace, a launch that others are made of: its addresses and parameters
        self._first: dict[tuple[int, ...], tuple[dict[str, int], Parameters]] = {}
        self._guard = threading.Lock()
        self._notes = 0
        self._patience_ns = 1_000_000 * count("TILEGEN_TIMEOUT_MS", 10000)

    @property
    def generated(self) -> Generated:
        return of_library(
            self.plan, self.proof, self._library, self._library.launch(self._exclusive, self._programmatic)
        )

    @property
    def packed_bytes(self) -> int:
        return sum(p.nbytes for p in self._packed.values())

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
            self.proof,
            fingerprint(),
            kind,
            self._exclusive,
            self._bound,
            self._programmatic,
            self.program,
            self.size,
            self._plan_at,
        )

    def at(self, plan: Plan, program: Program | None, size: int) -> Kernel:
        """As Kernel.at; tensor maps are its own."""
        made = super().at(plan, program, size)
        assert isinstance(made, CudaKernel)
        made._launches, made._first = OrderedDict(), {}
        return made

    def prepare(self, /, **weights: torch.Tensor) -> CudaKernel:
        """A kernel with some arguments fixed; their contents must not change any more: they may be packed
        tile by tile, once."""
        bound = self._with_bound(weights)
        names = frozenset(bound)
        if names not in self._libraries:
            self._libraries[names] = _packing(type(self._library), self._library.plan, names)
        prepared = CudaKernel(
            self.plan,
            self.proof,
            self._libraries[names],
            self._exclusive,
            bound,
            self._programmatic,
            self.program,
            self.size,
            self._plan_at,
        )
        # a launch may load packed weights before what stands before it in the stream has ended
        torch.cuda.current_stream().synchronize()
        # one copy of the code on the GPU, however many weights it is prepared for
        prepared._libraries = self._libraries
        return prepared

    # --- launching it ---------------------------------------------------------------------------------------

    def _run(self, held: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], stream: int) -> None:
        if self._hang_view[0] >= 0 or self._hang_view[MISPLACED // 4] >= 0:
            self.check()
        workspace = self._workspaces(
            stream, lambda: _Workspace(Counters(self._library.counter_words), self._intermediates())
        )
        key = (
            workspace.counters.address,
            self._notes,
            *[t.data_ptr() for t in held],
            *[t.data_ptr() for t in outputs],
        )
        parameters = self._launches.get(key) or self._parameters(key, held, outputs, workspace)
        if knob("TILEGEN_POISON") == "1":
            for t in (*outputs, *workspace.intermediates.values()):
                t.fill_(float("nan"))
        self._launch(parameters, stream)

    def _parameters(
        self,
        key: tuple[int, ...],
        held: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        workspace: _Workspace,
    ) -> Parameters:
        """Tensor maps and pointers of a launch, kept for the next one with the same addresses; what depends
        on addresses alone is checked here."""
        self._refuse_shared(held, outputs)
        for a in (*held, *outputs):
            if a.device != self._device:
                raise ArgumentError(f"a tensor is on {a.device}, the kernel is on {self._device}")
        names = (*self._given_names, *self.plan.outputs)
        addresses = dict(zip(names, key[2:], strict=True))
        first = self._first.get(key[:2])
        if first and isinstance(self._library, HopperLibrary):
            before, parameters = first
            changed = {name: at for name, at in addresses.items() if before[name] != at}
            return self._keep(key, self._library.moved(parameters, changed))
        made = self._encoded(addresses, workspace)
        self._first[key[:2]] = addresses, made
        return self._keep(key, made)

    def _encoded(self, given: dict[str, int], workspace: _Workspace) -> Parameters:
        """All tensor maps and pointers."""
        for a in self._bound.values():
            if a.device != self._device:
                raise ArgumentError(f"a tensor is on {a.device}, the kernel is on {self._device}")
        addresses = given | {name: a.data_ptr() for name, a in self._bound.items()}
        addresses |= {name: a.data_ptr() for name, a in workspace.intermediates.items()}
        packed = {name: a.data_ptr() for name, a in self._packed.items()}
        return self._library.parameters(
            addresses,
            packed,
            workspace.counters.address,
            self._hang.data_ptr(),
            self._patience_ns,
            self._notes,
            self.size,
        )

    def _keep(self, key: tuple[int, ...], made: Parameters) -> Parameters:
        with self._guard:
            self._launches[key] = made
            if len(self._launches) > KEPT:
                self._launches.popitem(last=False)
        return made

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
            traced._notes = launch.data_ptr()
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
        if self._plan_at is None:
            raise HangError(describe_hang(self.plan, *record))
        raise HangError(describe_hang(self._plan_at(size), *record, over=self._library.plan))

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
    """A kernel from a pickle, on the GPU that is current here; TargetError where there is none."""
    if missing():
        raise TargetError(f"{plan.program}: this kernel runs on a GPU: {missing()}")
    library = _packing(kind, plan, frozenset(bound))
    proof = travelled(plan, certificate, made_by)
    kernel = CudaKernel(plan, proof, library, exclusive, bound, programmatic, program, size, plan_at)
    torch.cuda.current_stream().synchronize()  # as in prepare
    return kernel
