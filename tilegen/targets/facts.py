"""launch.json: what one must know to launch a generated kernel without tilegen. Sizes are in bytes where the
name says nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tilegen.config import count
from tilegen.runtime.launch import (
    AFTER_SEMAPHORES,
    HANG,
    LINE,
    MAP_ALIGNMENT,
    MISPLACED,
    RECORD_BYTES,
    Buffer,
    Launch,
    Packed,
    TensorMap,
)
from tilegen.schedule.alike import written_as
from tilegen.schedule.plan import Plan

KERNEL = "tg_kernel"
HELD = {"maps": "a tensor map (CUtensorMap)", "T": "the address of a tensor"}
WORD_HELD = {
    "counters": "the address of the counters (semaphores)",
    "hang": "the address of the record",
    "misplaced": f"the address of the record, {MISPLACED} bytes on",
    "sizes": "int32: the value of the size that moves; then 4 bytes of nothing",
    "patience_ns": "uint64: how long a wait may last before the kernel gives up",
}
SHARED = (
    "one stream; the workspace is allocated once and shared: what one launch writes there a later one reads"
)


def patience_ns() -> int:
    return 1_000_000 * count("TILEGEN_TIMEOUT_MS", 10000)


def of_launch(
    plan: Plan, target: str, architecture: str, launch: Launch, cubin: str | None
) -> dict[str, Any]:
    """A CUDA kernel."""
    return {
        **_head(plan, target),
        "architecture": architecture,
        "source": "kernel.cu",
        **_written(plan),
        "cubin": cubin,
        "compile": [f"--gpu-architecture={architecture}", "--std=c++17"],
        "kernel": KERNEL,
        "grid": [launch.grid, 1, 1],
        "block": [launch.block, 1, 1],
        "cluster": [launch.cluster, 1, 1],
        "shared_bytes": launch.shared_bytes,
        "cooperative": launch.cooperative,
        "programmatic": launch.programmatic,
        "parameters": [
            {
                **asdict(p),
                "fields": [{**asdict(f), "holds": HELD.get(p.name) or WORD_HELD[f.name]} for f in p.fields],
            }
            for p in launch.parameters
        ],
        "tensor_maps": [_map(m) for m in launch.maps or ()],
        "semaphores": _semaphores(launch),
        "record": _record(launch),
        "patience_ns": patience_ns(),
        **_buffers(plan),
        "packed": [_packed(p) for p in launch.packed],
    }


def _written(plan: Plan) -> dict[str, Any]:
    """The plan whose digest the text bears, and what it calls the tensors, where it has other names."""
    written = written_as(plan)
    if written.plan is plan:
        return {}
    return {"written": {"plan": written.plan.digest, "tensors": dict(written.names)}}


def of_ranges(name: str, ranges: Sequence[tuple[int, int]], launch: Launch | None) -> dict[str, Any]:
    """A size that moves, in (first, last) of each range: all other facts are those at its largest value."""
    told = (
        "the last argument of tg_run, a pointer to the int" if launch is None else "word `sizes` of `launch`"
    )
    ends = {"least": ranges[0][0], "most": ranges[-1][1]}
    found = {"name": name, **ends, "ranges": [list(r) for r in ranges], "given": told}
    if launch is None:
        return found
    return {**found, "tensor_maps": [asdict(f) for f in launch.formulas]}


def _record(launch: Launch) -> dict[str, Any]:
    """What a kernel tells the host: a wait that it gave up, a position that leaves no room."""
    told = "rank >= 0 after a launch: a wait was given up after patience_ns; then zero the counters"
    found = {
        "bytes": RECORD_BYTES,
        "memory": "host memory that the GPU may write",
        "initial": -1,
        "hang": {"offset": 0, "words": list(HANG), "meaning": told},
    }
    if not launch.positions:
        return found
    told = "number >= 0 after a launch: that position left no room in its cache, and nothing was appended"
    limits = [
        {"tensor": p.tensor, "op": p.op, "rows": p.rows, "room": p.room, "most": p.most}
        for p in launch.positions
    ]
    return {
        **found,
        "misplaced": {
            "offset": MISPLACED,
            "words": ["number", "value"],
            "meaning": told,
            "positions": limits,
        },
    }


def of_call(plan: Plan, target: str, source: str) -> dict[str, Any]:
    """A function of C++, called in a process."""
    from tilegen.targets.cpu.library import FLAGS, default_workers

    compiled = {
        "compile": [*FLAGS, "-shared", "-fPIC"],
        "workers": default_workers(plan),
        "timeout_ms": count("TILEGEN_TIMEOUT_MS", 10000),
    }
    interface = {
        "create": "void* tg_create(void): counters of one run at a time, zero",
        "run": (
            "int tg_run(void* state, void* const* tensors, int workers, int64_t timeout_ms, int* hang): "
            "0, or 1 and seven words of hang"
        ),
        "destroy": "void tg_destroy(void* state)",
        "tensors": list(plan.graph.tensors),
        "hang": list(HANG),
    }
    return {
        **_head(plan, target),
        "source": source,
        **(compiled | {"call": interface} if target == "cpu" else {}),
        **_buffers(plan),
    }


def of_sequence(
    plan: Plan, target: str, architecture: str, folders: Sequence[str], programmatic: Sequence[bool]
) -> dict[str, Any]:
    """Launches one after the other. A programmatic one may start before the one ahead of it has ended: its
    kernel waits for it."""
    launches = [
        {"folder": folder, "programmatic": early} for folder, early in zip(folders, programmatic, strict=True)
    ]
    return {
        **_head(plan, target),
        "architecture": architecture,
        "order": SHARED,
        "launches": launches,
        **_buffers(plan),
    }


def _head(plan: Plan, target: str) -> dict[str, Any]:
    sizes = {name: int(n) for name, n in plan.sizes}
    return {
        "program": plan.program,
        "sizes": sizes,
        "plan": plan.digest,
        "machine": plan.machine.name,
        "target": target,
    }


def _buffers(plan: Plan) -> dict[str, Any]:
    """What the caller gives, what it gets, and what must be there besides."""
    tensors = plan.graph.tensors
    inner = [name for name, t in tensors.items() if t.role in ("intermediate", "partial")]
    groups = {"arguments": plan.arguments, "outputs": plan.outputs, "workspace": inner}
    return {group: [_buffer(Buffer.of(tensors[name])) for name in names] for group, names in groups.items()}


def _buffer(b: Buffer) -> dict[str, Any]:
    return {"name": b.name, "role": b.role, "dtype": b.dtype, "shape": list(b.shape), "bytes": b.bytes}


def _map(m: TensorMap) -> dict[str, Any]:
    """All that cuTensorMapEncodeTiled is given, or cuTensorMapEncodeIm2col where there is an im2col; sizes
    innermost first, the address is that of `buffer` plus `offset`."""
    known = {key: value for key, value in asdict(m).items() if value is not None}
    return {**known, "rank": m.rank, "buffer": m.buffer, "alignment": MAP_ALIGNMENT}


def _packed(p: Packed) -> dict[str, Any]:
    column = f"{p.first_column} + {p.buffer.shape[4]}·(step·{p.buffer.shape[2]} + block) + c"
    edge = f"zero where the row is -1, and from column {p.first_column + p.columns} on"
    value = f"{' · '.join(p.of)} at row rows[tile][row], column {column}"
    layout = f"[tile, step, block, row, c] holds {value}; {edge}"
    return {**_buffer(p.buffer), "of": list(p.of), "layout": layout, "rows": [list(r) for r in p.rows]}


def _semaphores(launch: Launch) -> dict[str, Any]:
    launches = "; then two words a CTA, which count launches: a buffer for each kernel and stream"
    return {
        "count": launch.semaphores,
        "words": launch.counter_words,
        "bytes": 4 * launch.counter_words,
        "stride_words": LINE,
        "layout": f"word n·{LINE} counts semaphore n; then, as far apart, {', '.join(AFTER_SEMAPHORES)}"
        + (launches if launch.lists else ""),
        "initial": 0,
        "reset": (
            "by the kernel, whose last CTA to leave zeroes them; by the host once, when it allocates them"
        ),
    }
