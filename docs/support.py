"""The README's table of what runs where, asked of the targets: `python -m docs.support` writes it, a test
holds it up to date.

A cell names the types, of bfloat16, float16 and float32, of which a target has a form for every program of
its row. Nothing is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tilegen as tg
from tilegen.errors import PlanError

README = Path(__file__).resolve().parents[1] / "README.md"
BEGIN, END = "<!-- what runs where: printed by python -m docs.support -->", "<!-- end of what runs where -->"
TYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
TARGETS = {"sm_90a": "h200", "sm_80": "a100", "cpu": "cpu", "interpret": "cpu"}
HEAD = "| | `sm_90a` (H100, H200) | `sm_80` (A100, RTX 30 to 50, B200) | `cpu` | `interpret` |"

Make = Callable[[str], Any]  # of a type: the outputs of a spec


def _linear(m: int, k: int, n: int) -> Make:
    return lambda d: tg.gelu(tg.linear(tg.input("x", (m, k), d), tg.weight("w", (n, k), d)))


def _conv(c: int, n: int, size: int, stride: int = 1, groups: int = 1) -> Make:
    def made(d: str) -> Any:
        x, w = tg.input("x", (2, 19, 19, c), d), tg.weight("w", (n, size, size, c // groups), d)
        return tg.relu(tg.conv2d(x, w, padding=size // 2, stride=stride, groups=groups))

    return made


def _transposed(c: int, n: int, size: int) -> Make:
    def made(d: str) -> Any:
        x, w = tg.input("x", (2, 9, 9, c), d), tg.weight("w", (n, size, size, c), d)
        return tg.relu(tg.conv_transpose2d(x, w, stride=2))

    return made


def _attention(head: int, **mask: Any) -> Make:
    def made(d: str) -> Any:
        q, k, v = tg.input("qkv", (2, 77, 6 * head), d).chunk(3)
        return tg.attention(q, k, v, heads=2, causal=True, **mask)

    return made


def _padded(d: str) -> Any:
    """Sequences of lengths of their own, with all else that is said of keys and scores."""
    q, k, v = tg.input("qkv", (2, 77, 6 * 64), d).chunk(3)
    lengths, slopes = tg.input("lengths", (2,), "int32"), tg.weight("slopes", (2,), "float32")
    how = {"heads": 2, "lengths": lengths, "alibi": slopes}
    table = [[True, False], [False, True], [True, True]]
    return (
        tg.attention(q, k, v, **how),
        tg.attention(q, k, v, causal=True, prefix=20, softcap=9.0, **how),
        tg.attention(q, k, v, block_mask=table, block_size=(30, 40), **how),
        tg.attention(q, k, v, bias=tg.log(tg.input("bias", (2, 77, 77), d)), **how),
    )


def _cached(d: str) -> Any:
    x, at = tg.input("x", (2, 1, 192), d), tg.input("at", (1,), "int32")
    keys, values = (tg.state(name, (2, 64, 64), d) for name in ("keys", "values"))
    q, k, v = x.chunk(3)
    k = tg.rope(k, heads=1, at=at)
    keys, values = tg.append(keys, k, at=at), tg.append(values, v, at=at)
    return tg.attention(tg.rope(q, heads=1, at=at), keys, values, heads=1, at=at)


def _norms(n: int) -> Make:
    def made(d: str) -> Any:
        x, w = tg.input("x", (37, n), d), tg.weight("w", (n,), d)
        values, ids = tg.topk(x, 3)
        return tg.rms_norm(x, w), tg.softmax(tg.layer_norm(x, w, w)), tg.mean(x), values, ids

    return made


def _matmul(m: int, k: int, n: int) -> Make:
    return lambda d: tg.input("a", (3, m, k), d) @ tg.input("b", (3, k, n), d)


def _images(c: int) -> Make:
    def made(d: str) -> Any:
        x, w = tg.input("x", (2, 9, 9, c), d), tg.weight("w", (c,), d)
        y = tg.avg_pool2d(tg.max_pool2d(x, 3, padding=1), 2)
        return tg.group_norm(tg.cat([tg.upsample(y, 2), tg.upsample(y, 2)])[..., :c], 1, w, w)

    return made


def _float8(d: str) -> Any:
    x, w = tg.input("x", (37, 256), "float8_e4m3fn"), tg.weight("w", (50, 256), "float8_e4m3fn")
    return tg.relu(tg.linear(x, w, scale_x=tg.input("s", (37, 1), "float32"), scale_w=0.5, dtype=d))


def _int8(d: str) -> Any:
    x, w = tg.input("x", (37, 77), d), tg.weight("w", (50, 77), "int8")
    return tg.relu(tg.linear(x, w, scale_w=tg.weight("s", (50,), "float32")))


def _otherwise(d: str) -> Any:
    x = tg.input("x", (2, 17, 40), d)
    return tg.transpose(x, 1, 2), tg.reshape(x, (34, 5, 8)), x[:, 1:, ::2]


def _columns(n: int) -> Make:
    def made(d: str) -> Any:
        x, ids = tg.input("x", (37, n), d), tg.input("ids", (37,), "int32")
        y = tg.silu(x) + tg.embedding(ids, tg.weight("table", (50, n), d))
        return tg.cat([y, x]) * tg.max(x)

    return made


PROGRAMS: Mapping[str, tuple[Make, ...]] = {
    "linear of any width, by int8 weights too; epilogues": (
        *(_linear(64, 256, 264), _linear(37, 77, 50), _linear(1, 3, 1)),
        _int8,
    ),
    "linear of float8_e4m3fn, to": (_float8,),
    "matmul of any width": (_matmul(64, 64, 64), _matmul(17, 33, 21)),
    "conv2d of any channels, in any groups; transposed": (
        *(_conv(64, 64, 3), _conv(3, 10, 7, 2), _conv(500, 77, 1)),
        *(_conv(64, 64, 7, groups=64), _conv(21, 42, 3, 2, 21), _conv(24, 36, 3, groups=3)),
        *(_transposed(64, 64, 2), _transposed(21, 10, 3)),
    ),
    "attention, masks, caches, rope; heads of 8 to 256 by 8": (
        *(_attention(n) for n in (8, 40, 64, 128, 256)),
        *(_attention(64, window=20), _attention(64, softcap=30.0)),
        _padded,
        _cached,
    ),
    "norms, softmax, topk, numbers of rows of any width": (_norms(1024), _norms(77), _norms(20001)),
    "pointwise, pools, cat, embedding, group_norm, copies": (
        *(_columns(64), _columns(21)),
        *(_images(32), _images(5), _otherwise),
    ),
}


def has_form(make: Make, dtype: str, target: str) -> bool:
    def program() -> Any:
        return make(dtype)

    try:
        tg.plan(tg.spec(program)(), TARGETS[target], target=target)
    except PlanError:
        return False
    return True


def table() -> str:
    """The rows of PROGRAMS, a column a target."""
    lines = [HEAD, "|---|" + "---|" * len(TARGETS)]
    for name, programs in PROGRAMS.items():
        cells = []
        for target in TARGETS:
            found = [word for word, d in TYPES.items() if all(has_form(p, d, target) for p in programs)]
            cells.append("all types" if len(found) == len(TYPES) else ", ".join(found) or "–")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def written(text: str) -> str:
    """The README with the table as it is now."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    README.write_text(written(README.read_text()))
