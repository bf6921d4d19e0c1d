"""Which chain of instructions makes one tile's writes visible to another's reads, by machine and by the proxies of both.

Every edge of a plan must fall under a row of this table. A row cites the rule it rests on, or says that no rule is complete.
"""

from __future__ import annotations

from dataclasses import dataclass

PROXIES = ("generic", "async")


@dataclass(frozen=True)
class Row:
    """How a write through `writer` is ordered before a read through `reader`."""

    writer: str
    reader: str
    chain: str
    rule: str

    def __str__(self) -> str:
        return f"{self.writer} -> {self.reader}: {self.chain} [{self.rule}]"


_CPU = (
    Row(
        "generic",
        "generic",
        "plain stores; fetch_add(memory_order_release); load(memory_order_acquire) until the target is reached; plain loads",
        "C++ [atomics.order]: a release operation synchronises with the acquire load that reads from its release sequence",
    ),
)

_NO_RULE = "no complete rule: both fences kept, stressed"
_RELEASE = "red.release.gpu; ld.relaxed.gpu until the target is reached; ld.acquire.gpu"

_CUDA = (
    Row(
        "generic",
        "generic",
        f"st.global; bar.sync; {_RELEASE}; bar.sync; ld.global (not .nc)",
        "PTX memory consistency model: release and acquire patterns, causality order through the barriers",
    ),
    Row("generic", "async", f"st.global; fence.proxy.async.global; bar.sync; {_RELEASE}; fence.proxy.async.global; TMA load", _NO_RULE),
    Row(
        "async",
        "generic",
        f"TMA store; cp.async.bulk.wait_group 0 (not .read); {_RELEASE}; bar.sync; ld.global (not .nc)",
        "PTX async proxy: completion of cp.async.bulk implies a generic-async proxy fence; then release and acquire patterns",
    ),
    Row("async", "async", f"TMA store; cp.async.bulk.wait_group 0 (not .read); {_RELEASE}; fence.proxy.async.global; TMA load", _NO_RULE),
)


def store_proxy(machine_family: str, dtype: str, rows: int) -> str:
    """How a product tile leaves its part, `rows` high: by TMA store, or, where that does not pay or fit, from registers by st.global."""
    return "async" if machine_family == "cuda" and dtype not in ("float32", "int32") and rows >= 128 else "generic"


def stores_pixels(machine_family: str, dtype: str, rows: int, channels: int) -> str:
    """The same for a convolution's tile: by TMA store where it takes more than 64 rows of shared memory, and whole blocks of 64 channels."""
    return store_proxy(machine_family, dtype, 128) if rows > 64 and channels % 64 == 0 else "generic"


def load_proxy(machine_family: str, when: str) -> str:
    """How a product tile reads: operands of its steps by TMA load, those of its epilogue by ld.global."""
    return "async" if machine_family == "cuda" and when == "step" else "generic"


def row(machine: str, writer: str, reader: str) -> Row | None:
    """The row for this machine and pair of proxies; None where the machine has no such chain."""
    table = _CPU if machine.startswith("cpu") else _CUDA
    return next((r for r in table if (r.writer, r.reader) == (writer, reader)), None)
