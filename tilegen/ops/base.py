"""What an op is to the planner: a tile grid, steps inside a tile, and the elements that each step reads and a
tile writes.

Everything downstream (dependences, policies, proof, code) is derived from these maps; no op knows another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import sympy as sp

from tilegen.errors import AnalysisError, SpecError
from tilegen.frontend.attributes import Attributes
from tilegen.frontend.program import Call, Operand, Program, Size, Tensor, element_bytes
from tilegen.ops.cluster import ClusterShape, ClusterSplit
from tilegen.ops.extrema import ends, largest, like, smallest
from tilegen.ops.listed import Numbers

if TYPE_CHECKING:
    import torch

K = sp.Symbol("k", integer=True, nonnegative=True)  # the step inside a tile


@lru_cache(maxsize=256)
def coord(name: str) -> sp.Symbol:
    """A tile coordinate: a nonnegative integer symbol."""
    return sp.Symbol(name, integer=True, nonnegative=True)


def ceil_div(a: Size, b: Size) -> Size:
    """⌈a/b⌉, an int where both are, or where it is the same at every value of a size that moves."""
    if isinstance(a, int) and isinstance(b, int):
        return -(-a // b)
    a, b = spread(sp.sympify(a)), sp.sympify(b)
    if isinstance(a, (sp.Min, sp.Max)):
        return like(a, *(ceil_div(e, b) for e in a.args))  # rounding is monotone
    e = sp.ceiling(a / b)
    least, most = ends(e) or (0, 1)
    return int(least) if least == most else e


@lru_cache(maxsize=4096)  # ops alike, of which a net has many, ask for the same
def spread(e: Any) -> Any:
    """Min and Max taken to the outside of a sum: 3·min(a, b) - 5 = min(3·a - 5, 3·b - 5).

    Every quotient is rounded in this form: SymPy 1.14 takes min(14, 12·i + 12)/14 for whole, because both are
    even, and drops its rounding.
    """
    e = sp.expand(e)
    for term in sp.Add.make_args(e):
        factor, inner = term.as_coeff_Mul()
        if isinstance(inner, (sp.Min, sp.Max)):
            of = smallest if isinstance(inner, sp.Min) == (factor > 0) else largest
            return of(*(spread(e - term + factor * a) for a in inner.args))
    return e


def batch_base(index: Any, batch: Size, size: Size) -> Any:
    """First row of batch `index`; 0 where there is one batch only, so that the index drops out of all
    formulas."""
    return sp.Integer(0) if batch == 1 else index * size


@dataclass(frozen=True)
class Interval:
    """The elements lo, lo + stride, … below hi of one dimension. Bounds are expressions in tile coordinates
    and the step."""

    lo: Any
    hi: Any
    stride: int = 1

    def shifted(self, by: Size) -> Interval:
        return self if by == 0 else Interval(self.lo + by, self.hi + by, self.stride)


Box = tuple[Interval, ...]


def whole(size: Size) -> Interval:
    return Interval(sp.Integer(0), sp.sympify(size))


def blocks(index: Any, tile: int, size: Size, base: Any = 0) -> Interval:
    """Block `index` of a range of `size` elements cut every `tile`: [base + tile·index, base + min(tile·index
    + tile, size))."""
    lo = tile * index
    if (size if isinstance(size, int) else (ends(size) or (0, tile + 1))[1]) <= tile:
        return Interval(sp.sympify(base), sp.sympify(base + size))  # one block: the index is 0
    hi = lo + tile
    if not (isinstance(size, int) and size % tile == 0):
        hi = smallest(hi, size)
    return Interval(sp.sympify(base + lo), sp.sympify(base + hi))


@dataclass(frozen=True)
class Access:
    """The box of operand `operand` (in its view) that a tile reads: before the first step, at each step k, or
    in the epilogue."""

    operand: int
    box: Box
    when: str = "step"
    exact: bool = True  # False: the box may hold elements that the tile does not read
    # only rows of a cache before the op's position: those that an append at it does not write
    before: bool = False


@dataclass(frozen=True)
class Epilogue:
    """y = expression(acc0, acc1, e0, e1, …); operand (index, how): e_n is op operand `index`, read at the
    tile's elements; of a vector at its columns; of one column at its rows."""

    expression: str = "acc0"
    operands: tuple[tuple[int, str], ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "expression": self.expression,
            "operands": [{"index": i, "as": how} for i, how in self.operands],
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Epilogue:
        return Epilogue(data["expression"], tuple((o["index"], o["as"]) for o in data["operands"]))


@dataclass(frozen=True)
class TileOp:
    """An op of a plan: what it computes, on which tensors, in tiles of which size, by clusters of how many
    CTAs.

    cluster_split: what the CTAs of a cluster split between them. k: CTA rank c of C runs steps
    [n·c/C, n·(c+1)/C) of n, sums are exchanged, and each finishes its part of the columns. km: the same, but
    its part of the rows. m, n: each runs all steps for its part of the rows or columns and finishes it.
    2x4: two rows of four CTAs, each of which does so for its part of both.
    pingpong: whether the two math warpgroups of a Hopper kernel's CTA compute a tile each in turn, so that
    the epilogue of one is hidden behind the products of the other; else they share every tile.
    pixels: whether its tensors are images and filters of one pixel, which it sees as rows
    (tilegen.graph.pixels).
    """

    name: str
    kind: str
    operands: tuple[Operand, ...]
    result: str
    attributes: Attributes = Attributes()
    epilogue: Epilogue | None = None
    tile: tuple[int, ...] = ()
    cluster: int = 1
    cluster_split: ClusterSplit = "k"
    pingpong: bool = False
    pixels: bool = False
    where: str = field(default="", compare=False)

    @property
    def cluster_shape(self) -> ClusterShape:
        return ClusterShape.of(self.cluster, self.cluster_split)

    def cut_as(self, other: TileOp) -> TileOp:
        """This op in the tiles, the clusters and the turns of another."""
        return replace(
            self,
            tile=other.tile,
            cluster=other.cluster,
            cluster_split=other.cluster_split,
            pingpong=other.pingpong,
        )

    @property
    def cluster_option(self) -> str:
        """As Options.cluster takes it."""
        return self.cluster_shape.option


@dataclass(frozen=True)
class OpInstance:
    """An op together with the tensors it stands on: what the methods of a Kind take."""

    op: TileOp
    tensors: Mapping[str, Tensor]

    @staticmethod
    def of_call(program: Program, call: Call) -> OpInstance:
        """A call of a spec as it was written: nothing fused into it, no tile."""
        op = TileOp(call.name, call.kind, call.operands, call.result, call.attributes)
        return OpInstance(op, {t.name: t for t in program.tensors})

    @property
    def attributes(self) -> Attributes:
        return self.op.attributes

    @cached_property
    def _indices(self) -> Mapping[str, int]:
        """The op's own operands by name; those of its epilogue follow."""
        extra = self.op.epilogue.operands if self.op.epilogue else ()
        own = min((index for index, _ in extra), default=len(self.op.operands))
        return {name: index for index, name in enumerate(self.kind.operands_of(self)[:own])}

    def has(self, name: str) -> bool:
        """Whether the op has its operand of that name: OpDef.operands."""
        return name in self._indices

    def index(self, name: str) -> int:
        """Which of the op's operands is the one of that name."""
        if name not in self._indices:
            raise AnalysisError(f"op {self.op.name!r} ({self.op.kind}) has no operand {name!r}")
        return self._indices[name]

    def operand(self, name: str) -> Operand:
        return self.op.operands[self.index(name)]

    @property
    def position(self) -> int | None:
        """Which of the op's operands says how far a cache is filled; its maths takes it as an int."""
        return self.index("position") if self.has("position") else None

    @property
    def tile(self) -> tuple[int, ...]:
        return self.op.tile

    def shape(self, index: int) -> tuple[Size, ...]:
        """Plan shape of operand `index` as the op sees it."""
        operand = self.op.operands[index]
        shape = self.tensors[operand.tensor].plan_shape
        if operand.flatten:
            return (shape[0], math.prod(shape[1:]))
        if operand.columns is not None:
            return (*shape[:-1], operand.columns[1] - operand.columns[0])
        return shape

    def pitch(self, index: int) -> Size:
        """Elements from row to row of operand `index`."""
        operand = self.op.operands[index]
        return self.shape(index)[-1] if operand.flatten else self.tensors[operand.tensor].plan_shape[-1]

    def first(self, index: int) -> Size:
        """The column of its tensor that a view of columns begins with."""
        columns = self.op.operands[index].columns
        return columns[0] if columns else 0

    def dtype(self, index: int) -> str:
        return self.tensors[self.op.operands[index].tensor].dtype

    @property
    def result(self) -> Tensor:
        return self.tensors[self.op.result]

    @property
    def out(self) -> tuple[Size, ...]:
        return self.result.plan_shape

    @property
    def operand_bytes(self) -> float:
        """Of all operands and the result, each once, with all sizes given; of those that are picked from no
        more than the result has."""
        written = math.prod(int(n) for n in self.out)
        total = float(written * element_bytes(self.result.dtype))
        for index in range(len(self.op.operands)):
            read = math.prod(int(n) for n in self.shape(index))
            total += (min(read, written) if self.picks(index) else read) * element_bytes(self.dtype(index))
        return total

    def picks(self, index: int) -> bool:
        """Whether of operand `index` a tile reads no more numbers than it writes."""
        return any(self.has(name) and self.index(name) == index for name in self.kind.picked)

    @cached_property
    def kind(self) -> OpDef:
        return kind(self.op.kind)

    @cached_property
    def coords(self) -> tuple[sp.Symbol, ...]:
        return tuple(coord(c) for c in self.kind.coords_of(self))

    @cached_property
    def grid(self) -> tuple[Size, ...]:
        """Extent of each tile coordinate."""
        return self.kind.grid(self)

    @cached_property
    def steps(self) -> Any:
        """Steps of a tile, an expression in its coordinates."""
        return self.kind.steps(self)

    @cached_property
    def write(self) -> Box:
        """What a tile writes of the result."""
        return self.kind.write(self)

    @cached_property
    def reads(self) -> tuple[Access, ...]:
        """What a tile reads: in its steps, then in its epilogue."""
        return (*self.kind.reads(self), *self._epilogue_reads())

    def tensor_box(self, access: Access) -> tuple[str, Box, bool]:
        """The access in the coordinates of the tensor itself: (tensor, box, exact)."""
        operand = self.op.operands[access.operand]
        if operand.flatten:
            shape = self.tensors[operand.tensor].plan_shape
            columns = access.box[1]
            is_whole = columns.lo == 0 and columns.hi == math.prod(shape[1:])
            return operand.tensor, (access.box[0], *(whole(n) for n in shape[1:])), access.exact and is_whole
        if operand.columns is not None:
            return (
                operand.tensor,
                (*access.box[:-1], access.box[-1].shifted(operand.columns[0])),
                access.exact,
            )
        return operand.tensor, access.box, access.exact

    def _epilogue_reads(self) -> tuple[Access, ...]:
        operands = self.op.epilogue.operands if self.op.epilogue else ()
        boxes = {
            "elements": self.write,
            "columns": self.write[-1:],
            "rows": (*self.write[:-1], whole(1)),
            "images": (self.write[0], self.write[-1]),
        }
        return tuple(Access(index, boxes[how], "epilogue") for index, how in operands)


class OpDef:
    """One kind of op. A subclass per kind, in one file per family; `register` makes it known."""

    name: ClassVar[str]
    coords: ClassVar[tuple[str, ...]]
    # names of the op's own operands, in their order; an op may lack the last of them
    operands: ClassVar[tuple[str, ...]] = ()
    attributes: ClassVar[type[Attributes]] = Attributes
    stem: ClassVar[str]  # templates/<target>/<stem>.*.j2 holds its tile code
    fusable: ClassVar[bool] = False  # may carry an epilogue
    # which entry of a tile is its width in the result's last dimension; None: tiles are as wide as the result
    width: ClassVar[int | None] = None
    clusters: ClassVar[bool] = False  # a cluster can run a tile: see TileOp.cluster_split
    mma: ClassVar[bool] = False  # tensor cores may compute it
    # operands of which a tile reads no more numbers than it writes, wherever they stand
    picked: ClassVar[tuple[str, ...]] = ()
    in_place: ClassVar[str] = ""  # the operand that is the result itself, written and not read
    # folder with the templates of an op of one's own: templates/<target>/<stem>.cpp.j2 below it
    templates: ClassVar[str] = ""

    def picked_by_tile(self, b: OpInstance, written: float) -> float:
        """Numbers of an operand that is picked from, which come through the shared cache for a tile that
        writes so many."""
        return written

    @property
    def built_in(self) -> bool:
        return type(self).__module__.startswith("tilegen.ops.")

    def coords_of(self, b: OpInstance) -> tuple[str, ...]:
        return self.coords

    def operands_of(self, b: OpInstance) -> tuple[str, ...]:
        """Names of this op's own operands, in their order; it may lack the last of them."""
        return self.operands

    def grid(self, b: OpInstance) -> tuple[Size, ...]:
        """Extent of each tile coordinate."""
        raise NotImplementedError

    def steps(self, b: OpInstance) -> Any:
        """Steps of a tile, an expression in its coordinates."""
        return sp.Integer(1)

    def reads(self, b: OpInstance) -> tuple[Access, ...]:
        """What the steps read, epilogue operands excepted."""
        raise NotImplementedError

    def write(self, b: OpInstance) -> Box:
        """What a tile writes of the result."""
        raise NotImplementedError

    def accumulators(self, attributes: Attributes) -> tuple[str, ...]:
        """What its epilogue begins with."""
        return ("acc0",)

    def numbers(self, b: OpInstance) -> tuple[Numbers, ...]:
        """Tables that its steps, its reads or its text look numbers up in."""
        return ()

    def row_coords(self, b: OpInstance) -> Sequence[int]:
        """Which coordinates of a tile walk the rows of the result."""
        return range(len(b.grid) - 1)

    def grows(self, b: OpInstance) -> bool:
        """Whether tiles of later rows take more steps."""
        return False

    def flops(self, b: OpInstance) -> float:
        """Floating-point operations of one full tile (multiply and add count two)."""
        raise NotImplementedError

    def tiles(self, b: OpInstance, machine: Any) -> Sequence[tuple[int, ...]]:
        """Tile shapes worth trying on a machine, the usual one first."""
        raise NotImplementedError

    def inner_sizes(self, given: tuple[int, ...], usual: tuple[int, ...]) -> tuple[int, ...]:
        """The tile of which the last sizes are taken where a user leaves them out."""
        return usual

    def whole_tile(self, given: tuple[int, ...], usual: tuple[int, ...]) -> tuple[int, ...]:
        """A tile whose last sizes a user may have left out: 128x256 means 128x256x(usual)."""
        return (*given, *self.inner_sizes(given, usual)[len(given) :]) if len(given) < len(usual) else given

    def check_tile(self, b: OpInstance, tile: tuple[int, ...]) -> str:
        """Why this op cannot have that tile, or an empty string."""
        return ""

    def reference(self, b: OpInstance, operands: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The accumulators in float32 over plan shapes; the whole op, from its equation. Position operands
        come as ints."""
        raise NotImplementedError

    def runtime_write(
        self, b: OpInstance, box: tuple[tuple[int, int, int], ...], position: int
    ) -> tuple[tuple[int, int, int], ...]:
        """Where a tile writes once the position is known."""
        return box

    def runtime_read(
        self, b: OpInstance, tensor: str, box: tuple[tuple[int, int, int], ...], position: int
    ) -> tuple[tuple[int, int, int], ...]:
        """What a tile reads of a box of a tensor once the position is known."""
        return box


_OP_DEFS: dict[str, OpDef] = {}


def register(cls: type[OpDef]) -> type[OpDef]:
    """Class decorator: make a kind of op known under its name."""
    _OP_DEFS[cls.name] = cls()
    return cls


def foreign_ops() -> list[OpDef]:
    """The kinds that users added."""
    return [k for _, k in sorted(_OP_DEFS.items()) if not k.built_in]


def kind(name: str) -> OpDef:
    if name not in _OP_DEFS:
        raise AnalysisError(f"unknown kind of op {name!r}; known: {', '.join(sorted(_OP_DEFS))}")
    return _OP_DEFS[name]


def need(condition: bool, message: str, where: str) -> None:
    """Raise SpecError(message) at a line of the spec unless the condition holds."""
    if not condition:
        raise SpecError(message, where)
