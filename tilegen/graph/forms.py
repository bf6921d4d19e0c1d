"""What graph rewrites and the planner ask of a target: what it has forms for, and how its kernels touch
memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tilegen.arch.machine import Machine
from tilegen.ops.base import OpInstance
from tilegen.ops.cluster import ClusterShape
from tilegen.ops.patches import Patches

if TYPE_CHECKING:
    from tilegen.graph.graph import Graph


SUPER_TILE = 8  # rows of tiles whose columns are walked together: they share weights in L2


@dataclass(frozen=True)
class Config:
    """A tile, the cluster that runs it, and the op's modelled time in µs; pingpong: as TileOp has it."""

    tile: tuple[int, ...]
    cluster: ClusterShape
    us: float
    pingpong: bool = False

    @property
    def option(self) -> str:
        """As Options.cluster takes it."""
        return self.cluster.option


@dataclass(frozen=True)
class Proxies:
    """How a tile of an op touches memory: the operands that it reads through the async proxy, and whether it
    writes through it. All else goes through the generic one."""

    reads: tuple[int, ...] = ()
    writes: bool = False


class Forms(ABC):
    """A target as plans see it. All answers are given without a device."""

    name: ClassVar[str]
    on_gpu: ClassVar[bool] = False
    fuses_norms: ClassVar[bool] = False  # a linear may norm its rows (tilegen.graph.fuse_norms)
    # new rows may be forwarded to an attention (tilegen.graph.forward_kv)
    forwards_kv: ClassVar[bool] = False
    multiplies_patches: ClassVar[bool] = False  # a linear may be of patches of images (tilegen.graph.pixels)
    patches_in_chains: ClassVar[bool] = False  # such linears may stand in one launch
    # a linear's rows may be any, else whole 16-byte units of two-byte numbers (tilegen.graph.by_threads)
    any_linear: ClassVar[bool] = True
    odd_results: ClassVar[bool] = True  # such a linear may have any number of columns, else eights of them
    launches_early: ClassVar[bool] = False  # a launch may start while the one before ends
    takes_turns: ClassVar[bool] = False  # math warpgroups may compute tiles in turn (TileOp.pingpong)

    @abstractmethod
    def fits(self, machine: Machine) -> bool:
        """Whether its tile configs are made for this machine."""

    def configs(self, b: OpInstance, machine: Machine) -> Sequence[tuple[int, ...]]:
        """Tiles worth trying for an op, the usual one first."""
        return b.kind.tiles(b, machine)

    def choose(self, graph: Graph, machine: Machine) -> Mapping[str, Config]:
        """Op -> its config, for ops whose configs are chosen together; empty where each is chosen alone."""
        return {}

    def patches_problem(self, b: OpInstance, seen: Patches) -> str:
        """Why a convolution can be no linear of the patches that it sees, or an empty string."""
        return "its patches have no form"

    def faster_in_rows(self, rows: Graph, boxes: Graph, machine: Machine) -> bool:
        """Whether convolutions take less time as linears over all pixels than in boxes of pixels."""
        return False

    def super_tile(self, graph: Graph, machine: Machine) -> int:
        """Rows of tiles whose columns a launch of the graph walks together."""
        return SUPER_TILE

    def kv_splits(self, b: OpInstance, machine: Machine) -> int:
        """Shares into which an attention's keys are best split; 1: they stay whole."""
        return 1

    @abstractmethod
    def refuse(self, graph: Graph, machine: Machine, static: bool) -> None:
        """PlanError where there is no kernel for such a plan: it says which limit, and the way out.

        static: tiles are placed by lists, else ranks are drawn.
        """

    @abstractmethod
    def proxies(self, graph: Graph, machine: Machine) -> Mapping[str, Proxies]:
        """Op -> how the kernel's tiles of it read and write; those that are left out use the generic proxy
        alone."""


@dataclass(frozen=True)
class Place:
    """What a plan is made for: a machine, the target whose configs are tried on it, and the target that emits
    the kernel.

    These are one, but where a plan made as for one machine is run by another, such as an H200's by the CPU
    target.
    """

    machine: Machine
    forms: Forms
    target: Forms

    @property
    def label(self) -> str:
        """Names what measured choices were measured on."""
        usual = self.forms.name == self.machine.target
        return self.machine.name if usual else f"{self.machine.name}, {self.forms.name}"
