"""How the kernels of each target read and write, and which chain of instructions makes one tile's writes
visible to another's reads.

This is the proof's own table. The target says in the plan through which proxy each read and write goes; what
it says must be what stands here (ways_of). Every edge of a plan must fall under a row, which cites the rule
it rests on, or says that no rule is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tilegen.proof.footprint.frame import Op

GENERIC, ASYNC = PROXIES = ("generic", "async")
TWO_BYTES = ("bfloat16", "float16")


@dataclass(frozen=True)
class Row:
    """How a write through `writer` is ordered before a read through `reader`. instructions: those of the
    chain that stand in the generated text by these names."""

    writer: str
    reader: str
    chain: str
    rule: str
    instructions: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.writer} -> {self.reader}: {self.chain} [{self.rule}]"


_CPU = (
    Row(
        GENERIC,
        GENERIC,
        "plain stores; fetch_add(memory_order_release); load(memory_order_acquire) until the target is"
        " reached; plain loads",
        "C++ [atomics.order]: a release operation synchronises with the acquire load that reads from its"
        " release sequence",
        ("fetch_add", "memory_order_release", "memory_order_acquire"),
    ),
)

_INTERPRET = (
    Row(
        GENERIC,
        GENERIC,
        "one event at a time; a post joins the tile's vector clock into the semaphore's; a wait joins that"
        " into its tile's",
        "happens-before of Lamport's clocks: every read is checked against them, element by element",
        (),
    ),
)

_POST = "red.release.gpu.global"
_WAIT = ("ld.relaxed.gpu.global", "ld.acquire.gpu.global")
_HANDED = f"{_POST}; {_WAIT[0]} until the target is reached; {_WAIT[1]}"
_FENCE = "fence.proxy.async.global"
_RELEASES = "PTX memory consistency model: release and acquire patterns, causality order through the barriers"
_NO_RULE = "no complete rule: both fences kept, stressed"

_SM80 = (
    Row(
        GENERIC,
        GENERIC,
        f"st.global; __syncthreads; {_HANDED}; __syncthreads; cp.async.cg or ld.global (not .nc)",
        f"{_RELEASES}; cp.async, unlike its bulk forms, goes through the generic proxy",
        (_POST, *_WAIT, "__syncthreads"),
    ),
)

_LOAD, _STORE = "cp.async.bulk.tensor (load)", "cp.async.bulk.tensor (store)"
_STORED = f"{_STORE}; cp.async.bulk.wait_group 0 (not .read)"
_LOADS, _STORES = "shared::cluster.global.mbarrier::complete_tx::bytes", "global.shared::cta.bulk_group"

_SM90 = (
    Row(
        GENERIC,
        GENERIC,
        f"st.global; mbarrier; {_HANDED}; mbarrier; ld.global (not .nc)",
        _RELEASES,
        (_POST, *_WAIT, "mbarrier.arrive", "mbarrier.try_wait"),
    ),
    Row(
        GENERIC,
        ASYNC,
        f"st.global; {_FENCE}; mbarrier; {_HANDED}; {_FENCE}; {_LOAD}",
        _NO_RULE,
        (_FENCE, _POST, *_WAIT, "mbarrier.arrive", _LOADS),
    ),
    Row(
        ASYNC,
        GENERIC,
        f"{_STORED}; {_HANDED}; mbarrier; ld.global (not .nc)",
        "PTX async proxy: completion of cp.async.bulk implies a generic-async proxy fence; then release and"
        " acquire patterns",
        (_STORES, "cp.async.bulk.wait_group 0", _POST, *_WAIT),
    ),
    Row(
        ASYNC,
        ASYNC,
        f"{_STORED}; {_HANDED}; {_FENCE}; {_LOAD}",
        _NO_RULE,
        (_STORES, "cp.async.bulk.wait_group 0", _POST, *_WAIT, _FENCE, _LOADS),
    ),
)

_TABLES = {"cpu": _CPU, "interpret": _INTERPRET, "sm_80": _SM80, "sm_90a": _SM90}


def knows(target: str) -> bool:
    return target in _TABLES


def rows(target: str) -> tuple[Row, ...]:
    """The chains of this target's kernels; empty for a target that is not known here."""
    return _TABLES.get(target, ())


def row(target: str, writer: str, reader: str) -> Row | None:
    """The row for this target and pair of proxies; None where its kernels have no such chain."""
    return next((r for r in rows(target) if (r.writer, r.reader) == (writer, reader)), None)


# --- through which proxy ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ways:
    """Through which proxies an op's tiles read each tensor, and write their result."""

    reads: Mapping[str, frozenset[str]]
    writes: str


def ways_of(target: str, op: Op, dtype: str, dtypes: Sequence[str], alone: bool) -> Ways:
    """Those of an op whose result has this dtype, and its operands have these. alone: there is no other op.
    Only kernels for sm_90a use the async proxy."""
    through_tma, stores = (
        _OF_SM90[op.kind](op, dtype) if target == "sm_90a" and op.kind in _OF_SM90 else ((), False)
    )
    if target == "sm_90a" and op.kind == "linear" and alone:
        stores = stores or _turned(op, dtype)
        through_tma = (*through_tma, *(_residual(op, dtypes) if stores else ()))
    reads: dict[str, frozenset[str]] = {}
    for n, view in enumerate(op.views):
        how = ASYNC if n in through_tma else GENERIC
        reads[view.tensor] = reads.get(view.tensor, frozenset()) | {how}
    return Ways(reads, ASYNC if stores else GENERIC)


def _linear(op: Op, dtype: str) -> tuple[tuple[int, ...], bool]:
    """Both factors come by TMA; so leaves a result of two bytes an element, in rows of whole 16-byte units,
    if a CTA has 128 of them or more, in whole blocks of 64."""
    rows, units = op.tile[0] // op.ctas[0], op.result.full[-1] % 8 == 0
    return (0, 1), dtype in TWO_BYTES and units and rows >= 128 and rows % 64 == 0


def _turned(op: Op, dtype: str) -> bool:
    """Whether such a result of a linear alone leaves by TMA from rows in no whole blocks of 64: where both
    math warpgroups share a tile, and the epilogue reads the same in all rows; but for 64 columns of which
    CTAs share the sum."""
    rows, units = op.tile[0] // op.ctas[0], op.result.full[-1] % 8 == 0
    operands = (op.attributes.get("epilogue") or {"operands": []})["operands"]
    by_columns = all(entry["as"] == "columns" for entry in operands)
    one_finishes = op.cluster > 1 and op.cluster_split in ("k", "km") and op.tile[1] == 64
    shared = not (op.pingpong or one_finishes)
    return dtype in TWO_BYTES and units and rows % 64 != 0 and by_columns and shared


def _residual(op: Op, dtypes: Sequence[str]) -> tuple[int, ...]:
    """The first operand that a linear's epilogue reads for each number, of two bytes in rows of whole 16-byte
    units: it comes by TMA into the buffers that results leave from."""
    operands = (op.attributes.get("epilogue") or {"operands": []})["operands"]
    for n in (entry["index"] for entry in operands if entry["as"] != "columns"):
        view = op.views[n]
        if dtypes[n] in TWO_BYTES and view.offset % 8 == 0 and view.full[-1] % 8 == 0:
            return (n,)
    return ()


def _conv2d(op: Op, dtype: str) -> tuple[tuple[int, ...], bool]:
    """Pixels come by TMA where they are whole 16-byte units, also of a view. Results leave so where a box
    takes more than 64 rows of shared memory, in whole blocks of 64 channels."""
    (_, _, width, channels), (images, lines, pixels, filters, step) = op.views[1].shape, op.tile
    x = op.views[0]
    if channels % 8 or x.full[-1] % 8 or x.offset % 8 or dtype not in TWO_BYTES:
        return (), False
    line = pixels + (width - 1) * op.pair("dilation")[1]
    once = width > 1 and op.pair("stride")[1] == 1 and step == 64 and images * lines * line <= 128
    slides = once or step == 32
    rows = images * lines * (line if slides else pixels)
    finished = filters // (op.cluster if op.cluster_split == "n" or rows > 64 else 1)
    units = op.result.full[-1] % 8 == 0
    return (0, 1), dtype in TWO_BYTES and units and rows > 64 and finished % 64 == 0


def _attention(op: Op, dtype: str) -> tuple[tuple[int, ...], bool]:
    """Queries, keys, values and new rows come by TMA, lengths, slopes, a bias and the position do not;
    results leave from registers."""
    at = 3 + op.flag("lengths") + op.flag("alibi") + ("bias" in op.attributes)
    return tuple(n for n in range(len(op.views)) if n < 3 or n > at), False


_OF_SM90: Mapping[str, Callable[[Op, str], tuple[tuple[int, ...], bool]]] = {
    "linear": _linear,
    "conv2d": _conv2d,
    "attention": _attention,
}
