"""What fills a stage of a Hopper kernel's ring: tensor maps, the copies and waits of the two loading
roles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from tilegen.codegen.op_text import OpText
from tilegen.codegen.taken_keys import TakenKeys
from tilegen.frontend.program import Size
from tilegen.graph.conv_box import MOST_STRIDE
from tilegen.graph.product_time import ROW_BYTES
from tilegen.ops.patches import Patches
from tilegen.runtime.launch import Im2col

MOST_CORNER = 128  # of a tensor map in im2col mode


def im2col_problem(seen: Patches) -> str:
    """Why bulk copies cannot put patches together, or an empty string."""
    reach = (d * (n - 1) for d, n in zip(seen.dilation, seen.window, strict=True))
    if max(seen.stride) <= MOST_STRIDE and max(*seen.padding, *reach) < MOST_CORNER:
        return ""
    return (
        f"a tensor map of patches takes strides up to {MOST_STRIDE}, and padding and filters that reach less"
        f" than {MOST_CORNER} pixels; given stride {seen.stride}, padding {seen.padding}, {seen.window[0]} x"
        f" {seen.window[1]} pixels of dilation {seen.dilation}"
    )


@dataclass(frozen=True)
class Geometry:
    """What a tensor map is encoded from, innermost dimension first: sizes, elements from one to the next (but
    for the innermost), the box that one copy spans, and of which elements in it every how manieth is moved.
    """

    shape: tuple[Size, ...]
    pitches: tuple[int, ...]
    box: tuple[Size, ...]
    traversal: tuple[int, ...]


@dataclass(frozen=True)
class Map:
    """A tensor map: a row-major window of a tensor (or of its packed copy) and the box that one copy
    moves."""

    span: ClassVar[int] = ROW_BYTES

    name: str
    tensor: str
    rows: Size
    columns: int
    pitch: int  # elements from row to row
    offset: int  # elements before the first
    box: tuple[Size, int]  # rows, columns
    swizzle: bool
    packed: bool = False

    @property
    def geometry(self) -> Geometry:
        return Geometry((self.columns, self.rows), (self.pitch,), (self.box[1], self.box[0]), (1, 1))

    @property
    def comment(self) -> str:
        what = f"{self.tensor}{', packed tile by tile' if self.packed else ''}"
        return (
            f"{what}: {self.rows} x {self.columns}, boxes of {self.box[0]} x"
            f" {self.box[1]}{'' if self.swizzle else ', not swizzled'}"
        )


@dataclass(frozen=True)
class BoxMap:
    """A tensor map of more than two dimensions. Sizes, pitches and the box as in Geometry; the box counts
    elements that are moved. span: bytes of a row of the swizzle."""

    name: str
    tensor: str
    shape: tuple[Size, ...]
    pitches: tuple[int, ...]
    box: tuple[int, ...]
    traversal: tuple[int, ...]
    offset: int = 0
    swizzle: bool = True
    packed: bool = False
    span: int = ROW_BYTES

    @property
    def geometry(self) -> Geometry:
        spanned = tuple((n - 1) * by + 1 for n, by in zip(self.box, self.traversal, strict=True))
        return Geometry(self.shape, self.pitches, spanned, self.traversal)

    @property
    def comment(self) -> str:
        def sizes(values: tuple[Size, ...]) -> str:
            return " x ".join(map(str, reversed(values)))

        every = f", every {sizes(self.traversal)}th" if set(self.traversal) != {1} else ""
        return f"{self.tensor}: {sizes(self.shape)}, boxes of {sizes(self.box)}{every}"


@dataclass(frozen=True)
class PatchMap:
    """A tensor map in im2col mode: one copy moves 64 channels of so many rows of the matrix of patches, for
    one pixel of the filter (PTX ISA, tensor data movement, im2col mode)."""

    name: str
    tensor: str
    patches: Patches
    rows: Size
    pitch: int  # elements from pixel to pixel
    offset: int  # elements before the first
    swizzle: ClassVar[bool] = True
    packed: ClassVar[bool] = False
    span: ClassVar[int] = ROW_BYTES

    @property
    def geometry(self) -> Geometry:
        """The box is that of one pixel; how many a copy moves stands beside."""
        p, ((height, width), c) = self.patches, (self.patches.size, self.patches.channels)
        (down, across), n = p.stride, self.pitch
        pitches = (n, width * n, height * width * n)
        return Geometry((c, width, height, p.images), pitches, (64, 1, 1, 1), (1, across, down, 1))

    @property
    def im2col(self) -> Im2col:
        lower, upper = self.patches.corners
        return Im2col(int(self.rows), lower[::-1], upper[::-1])

    @property
    def comment(self) -> str:
        p = self.patches
        of, window = "x".join(map(str, p.size)), "x".join(map(str, p.window))
        images = f"{p.images} x {of} x {p.channels}"
        return f"{self.tensor}: {images}, {self.rows} patches of {window}, 64 channels of a pixel at a time"


AnyMap = Map | BoxMap | PatchMap


@dataclass(frozen=True)
class Wait:
    """Semaphores of one operand that a step or the epilogue reads, awaited before all steps, before each
    step's load, or before that of the first or the last one."""

    operand: int
    before: Literal["steps", "each", "first", "last"]
    late: bool = False  # read by the epilogue


@dataclass(frozen=True)
class Share:
    """This CTA's share of a copy that several CTAs of a cluster get, each of which makes a part of it: bytes
    before it, as C, and the variable that says who gets it."""

    before: str = ""
    ctas: str = ""


ALONE = Share()


@dataclass(frozen=True)
class Copy:
    """One bulk tensor copy to `to` bytes into a stage: the box of a map at these coordinates, innermost
    first; of a PatchMap, from the first pixel of a patch on, the pixel and the line of the filter."""

    map: str
    at: tuple[str, ...]
    to: int = 0
    share: Share = ALONE
    policy: str = ""


@dataclass(frozen=True)
class Other:
    """The copies, so many bytes of them, that a stage gets instead under a condition of its tile, as C."""

    condition: str
    copies: tuple[Copy, ...]
    bytes: Size


@dataclass(frozen=True)
class Load:
    """What a loading role does for one stage of the ring: waits, then copies of so many bytes. staged: there
    is such a stage; else it only waits. others: of some tiles, the first whose condition holds."""

    copies: tuple[Copy, ...] = ()
    bytes: Size = 0
    waits: tuple[Wait, ...] = ()
    staged: bool = True
    step: str = "k"  # that is waited for
    waited: str = ""  # the condition under which it is waited for
    # under which there is such a stage; the waits are made in any case, so that all posts are in when the
    # roles have ended
    condition: str = ""
    others: tuple[Other, ...] = ()


@dataclass(frozen=True)
class SeenKeys:
    """The keys that a tile of attention sees, in numbers and C.

    position: the tensor that says how far the caches are filled, or "". first_query: of the tile in its
    batch, "" for 0; queries: how many. before: keys before the first query of all. all: keys of a batch.
    block: of how many keys. splits: of the blocks that are there. known: whether the compiler knows which
    sums of a tile are masked. window: how many keys a query sees, where blocks before them are left out;
    else 0. prefix: how many first keys all queries see, or "". lengths: where the number of keys of the
    tile's sequence lies, or "". taken: the blocks that a block mask has the tile take.
    """

    position: str
    causal: bool
    first_query: str
    queries: str
    before: str
    all: str
    block: int
    splits: int
    known: bool
    window: int = 0
    prefix: str = ""
    lengths: str = ""
    taken: TakenKeys | None = None


@dataclass(frozen=True)
class Loads:
    """What a loading role does for a tile: waits before everything, then the stages of each step, each so
    many times.

    What the whole tile is given outside of the ring comes before the steps (queries) or after them (leave to
    begin, where the steps only wait).
    """

    each: tuple[Load, ...] = ()
    before: Load | None = None
    after: Load | None = None
    first: tuple[int, ...] = ()
    positions: int = 1
    keys: SeenKeys | None = None  # of an attention: which its tile sees
    more: int = 0  # turns of the loop after the last step
    at: int = 0  # bytes into the stage, where its copies go
    policy: str = ""  # for L2, of its copies
    together: bool = False  # whether other CTAs of the cluster get what each of them loads

    @property
    def ahead(self) -> tuple[Wait, ...]:
        """Waits before all steps."""
        return tuple(w for load in self.each for w in load.waits if w.before == "steps")

    @property
    def ranged(self) -> bool:
        """Whether the text names the first step."""
        return self.looped or any(not w.late for w in self.ahead)

    @property
    def looped(self) -> bool:
        """Whether there is anything to do step by step."""
        return any(load.staged or any(w.before != "steps" for w in load.waits) for load in self.each)


def step_waits(op: OpText, operand: int) -> tuple[Wait, ...]:
    """Of the role that loads an operand for the steps: where later steps read nothing new, before them
    all."""
    if operand not in op.waiting("step"):
        return ()
    return (Wait(operand, "each" if op.stepped(operand) else "steps"),)
