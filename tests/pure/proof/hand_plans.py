"""Small plans written by hand, each with one way of waiting; each is right, and each is a fresh dict that a
test may spoil."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

from tests.oracles.element_kinds import work_of

Plan = dict[str, Any]
Box = list[list[int]]


def blocks(size: int, tile: int) -> list[list[int]]:
    """[0, tile], [tile, 2 tile], … up to size."""
    return [[low, min(low + tile, size)] for low in range(0, size, tile)]


def meeting(box: list[int], cut: list[list[int]]) -> list[int]:
    """Which blocks of `cut` a range meets."""
    return [i for i, (low, high) in enumerate(cut) if low < box[1] and box[0] < high]


def read(tensor: str, box: Box, waits: Iterable[tuple[int, int]] = ()) -> dict[str, Any]:
    return {"tensor": tensor, "box": box, "waits": [list(w) for w in waits]}


def part(
    reads: list[dict[str, Any]], tensor: str, box: Box | None, posts: Iterable[int] = ()
) -> dict[str, Any]:
    writes = [{"tensor": tensor, "box": box, "proxy": "generic"}] if box else []
    return {"reads": reads, "writes": writes, "posts": [[s, 1] for s in posts]}


def tensor(shape: list[int], role: str = "intermediate") -> dict[str, Any]:
    return {"shape": shape, "dtype": "float32", "role": role}


def op(
    kind: str, operands: list[Any], result: str, tile: list[int], parts: int = 1, **attributes: Any
) -> dict[str, Any]:
    return {
        "kind": kind,
        "attributes": attributes,
        "operands": operands,
        "result": result,
        "tile": tile,
        "cluster": parts,
    }


class Maker:
    """Gathers tiles in rank order."""

    def __init__(self, name: str, tensors: dict[str, Any], ops: dict[str, Any]):
        self.plan: Plan = {
            "version": 3,
            "target": "cpu",
            "program": name,
            "sizes": {"M": 10},
            "machine": {"name": "cpu", "sms": 3},
            "lowering": "persistent",
            "scheduling": "dynamic",
            "tensors": tensors,
            "ops": ops,
            "semaphores": [],
            "tiles": [],
        }

    def semaphore(self, target: int) -> int:
        self.plan["semaphores"].append(target)
        return len(self.plan["semaphores"]) - 1

    def waits(self, semaphores: Iterable[int]) -> list[tuple[int, int]]:
        return [(s, self.plan["semaphores"][s]) for s in semaphores]

    def tile(self, name: str, coord: Iterable[int], *parts: dict[str, Any]) -> None:
        tiles = self.plan["tiles"]
        tiles.append({"rank": len(tiles), "op": name, "coord": list(coord), "ctas": list(parts)})


def _mlp(name: str, down_tile: list[int], **down: Any) -> Maker:
    """h = x w1', y = h w2': 10 x 6 -> 10 x 7 -> 10 x 5; `up` in tiles of 4 x 3, so that nothing divides
    anything."""
    return Maker(
        name,
        {
            "x": tensor([10, 6], "input"),
            "w1": tensor([7, 6], "weight"),
            "h": tensor([10, 7]),
            "w2": tensor([5, 7], "weight"),
            "y": tensor([10, 5], "output"),
        },
        {
            "up": op("linear", ["x", "w1"], "h", [4, 3, 4], groups=1),
            "down": op("linear", ["h", "w2"], "y", down_tile, groups=1, **down),
        },
    )


H_ROWS, H_COLUMNS = blocks(10, 4), blocks(7, 3)


def _up(m: Maker, posts: Callable[[int, int], int]) -> None:
    for (i, rows), (j, columns) in product(enumerate(H_ROWS), enumerate(H_COLUMNS)):
        m.tile(
            "up",
            (i, j),
            part(
                [read("x", [rows, [0, 6]]), read("w1", [columns, [0, 6]])],
                "h",
                [rows, columns],
                [posts(i, j)],
            ),
        )


def mlp_rows() -> Plan:
    """One semaphore per row of producer tiles; a consumer tile of 3 rows may meet two rows of tiles of 4."""
    m = _mlp("mlp_rows", [3, 2, 4])
    row = [m.semaphore(3) for _ in H_ROWS]
    _up(m, lambda i, j: row[i])
    for (i, rows), (j, columns) in product(enumerate(blocks(10, 3)), enumerate(blocks(5, 2))):
        m.tile(
            "down",
            (i, j),
            part(
                [
                    read("h", [rows, [0, 7]], m.waits(row[b] for b in meeting(rows, H_ROWS))),
                    read("w2", [columns, [0, 7]]),
                ],
                "y",
                [rows, columns],
            ),
        )
    return m.plan


def mlp_static() -> Plan:
    """The same with static lists."""
    plan = mlp_rows()
    plan["scheduling"] = [list(range(sm, len(plan["tiles"]), 3)) for sm in range(3)]
    return plan


def mlp_tiles() -> Plan:
    """One semaphore per producer tile, awaited at the step (of 2 columns) that first needs it."""
    m = _mlp("mlp_tiles", [3, 2, 2])
    one = {at: m.semaphore(1) for at in product(range(3), range(3))}
    _up(m, lambda i, j: one[i, j])
    for (i, rows), (j, columns) in product(enumerate(blocks(10, 3)), enumerate(blocks(5, 2))):
        reads: list[dict[str, Any]] = []
        forwarded: set[int] = set()
        for depth in blocks(7, 2):
            needed = {one[a, b] for a in meeting(rows, H_ROWS) for b in meeting(depth, H_COLUMNS)} - forwarded
            reads += [read("h", [rows, depth], m.waits(sorted(needed))), read("w2", [columns, depth])]
            forwarded |= needed
        m.tile("down", (i, j), part(reads, "y", [rows, columns]))
    return m.plan


def mlp_gang() -> Plan:
    """`down` is run by clusters of two: part 0 takes steps 0-1 of four, part 1 steps 2-3; each finishes
    its half of the columns."""
    m = _mlp("mlp_gang", [4, 3, 2])
    m.plan["ops"]["down"]["cluster"] = m.plan["ops"]["up"]["cluster"] = 2
    row = [m.semaphore(6) for _ in H_ROWS]
    for (i, rows), (j, columns) in product(enumerate(H_ROWS), enumerate(H_COLUMNS)):
        halves = [[[3 * j, min(3 * j + 1, 7)], [0, 4]], [[3 * j + 1, min(3 * j + 3, 7)], [4, 6]]]
        m.tile(
            "up",
            (i, j),
            *(
                part(
                    [read("x", [rows, steps]), read("w1", [columns, steps])],
                    "h",
                    [rows, mine] if mine[0] < mine[1] else None,
                    [row[i]],
                )
                for mine, steps in halves
            ),
        )
    for (i, rows), (j, columns) in product(enumerate(H_ROWS), enumerate(blocks(5, 3))):
        halves = [[[3 * j, 3 * j + 1], [0, 4]], [[3 * j + 1, min(3 * j + 3, 5)], [4, 7]]]
        m.tile(
            "down",
            (i, j),
            *(
                part(
                    [read("h", [rows, steps], m.waits([row[i]])), read("w2", [columns, steps])],
                    "y",
                    [rows, mine],
                )
                for mine, steps in halves
            ),
        )
    return m.plan


def split_k() -> Plan:
    """The sum over h's 7 columns is split at 4: one tile leaves its share in p, the other adds it."""
    m = _mlp(
        "split_k",
        [5, 5, 3],
        k_range=[4, 7],
        epilogue={"expression": "acc0 + e0", "operands": [{"index": 2, "as": "elements"}]},
    )
    m.plan["tensors"]["p"] = tensor([10, 5], "partial")
    m.plan["ops"]["down"]["operands"].append("p")
    m.plan["ops"]["share"] = op("linear", ["h", "w2"], "p", [5, 5, 3], groups=1, k_range=[0, 4])
    one = {at: m.semaphore(1) for at in product(range(3), range(3))}
    done = [m.semaphore(1) for _ in range(2)]
    _up(m, lambda i, j: one[i, j])

    def tile(
        name: str,
        i: int,
        rows: list[int],
        depth: list[int],
        more: list[dict[str, Any]],
        result: str,
        posts: list[int],
    ) -> None:
        needed = [one[a, b] for a in meeting(rows, H_ROWS) for b in meeting(depth, H_COLUMNS)]
        reads = [read("h", [rows, depth], m.waits(needed)), read("w2", [[0, 5], depth]), *more]
        m.tile(name, (i, 0), part(reads, result, [rows, [0, 5]], posts))

    for i, rows in enumerate(blocks(10, 5)):
        tile("share", i, rows, [0, 4], [], "p", [done[i]])
    for i, rows in enumerate(blocks(10, 5)):
        tile("down", i, rows, [4, 7], [read("p", [rows, [0, 5]], m.waits([done[i]]))], "y", [])
    return m.plan


def conv_halo() -> Plan:
    """Two 3 x 3 convolutions: a block of 2 output rows reads one row more on each side."""
    same: dict[str, Any] = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1]}
    m = Maker(
        "conv_halo",
        {
            "x": tensor([2, 6, 6, 3], "input"),
            "w1": tensor([4, 3, 3, 3], "weight"),
            "a": tensor([2, 6, 6, 4]),
            "w2": tensor([2, 3, 3, 4], "weight"),
            "y": tensor([2, 6, 6, 2], "output"),
        },
        {
            "one": op("conv2d", ["x", "w1"], "a", [1, 2, 6, 2, 3], **same),
            "two": op("conv2d", ["a", "w2"], "y", [1, 2, 3, 2, 2], **same),
        },
    )
    row = {at: m.semaphore(2) for at in product(range(2), range(3))}
    for b, p, j in product(range(2), range(3), range(2)):
        image, rows, halo, mine = (
            [b, b + 1],
            [2 * p, 2 * p + 2],
            [max(2 * p - 1, 0), min(2 * p + 3, 6)],
            [2 * j, 2 * j + 2],
        )
        m.tile(
            "one",
            (b, p, 0, j),
            part(
                [read("x", [image, halo, [0, 6], [0, 3]]), read("w1", [mine, [0, 3], [0, 3], [0, 3]])],
                "a",
                [image, rows, [0, 6], mine],
                [row[b, p]],
            ),
        )
    for b, p, q in product(range(2), range(3), range(2)):
        image, rows, halo = [b, b + 1], [2 * p, 2 * p + 2], [max(2 * p - 1, 0), min(2 * p + 3, 6)]
        waits = m.waits(row[b, near] for near in (p - 1, p, p + 1) if 0 <= near < 3)
        columns = [max(3 * q - 1, 0), min(3 * q + 4, 6)]
        m.tile(
            "two",
            (b, p, q, 0),
            part(
                [
                    read("a", [image, halo, columns, [0, 4]], waits),
                    read("w2", [[0, 2], [0, 3], [0, 3], [0, 4]]),
                ],
                "y",
                [image, rows, [3 * q, 3 * q + 3], [0, 2]],
            ),
        )
    return m.plan


def conv_strided() -> Plan:
    """A 1 x 1 convolution of stride 2 reads every other row and column; of two producer rows it needs one."""
    m = Maker(
        "conv_strided",
        {
            "x": tensor([1, 6, 6, 3], "input"),
            "w1": tensor([4, 1, 1, 3], "weight"),
            "a": tensor([1, 6, 6, 4], "output"),
            "w2": tensor([2, 1, 1, 4], "weight"),
            "y": tensor([1, 3, 3, 2], "output"),
        },
        {
            "one": op(
                "conv2d", ["x", "w1"], "a", [1, 1, 6, 4, 3], stride=[1, 1], padding=[0, 0], dilation=[1, 1]
            ),
            "two": op(
                "conv2d", ["a", "w2"], "y", [1, 2, 3, 2, 4], stride=[2, 2], padding=[0, 0], dilation=[1, 1]
            ),
        },
    )
    row = {p: m.semaphore(1) for p in (0, 2, 4)}
    for p in range(6):
        m.tile(
            "one",
            (0, p, 0, 0),
            part(
                [
                    read("x", [[0, 1], [p, p + 1], [0, 6], [0, 3]]),
                    read("w1", [[0, 4], [0, 1], [0, 1], [0, 3]]),
                ],
                "a",
                [[0, 1], [p, p + 1], [0, 6], [0, 4]],
                [row[p]] if p in row else [],
            ),
        )
    for p, rows in enumerate(([0, 3, 2], [4, 5])):
        waits = m.waits(row[k] for k in range(*rows))
        m.tile(
            "two",
            (0, p, 0, 0),
            part(
                [
                    read("a", [[0, 1], rows, [0, 5, 2], [0, 4]], waits),
                    read("w2", [[0, 2], [0, 1], [0, 1], [0, 4]]),
                ],
                "y",
                [[0, 1], [2 * p, min(2 * p + 2, 3)], [0, 3], [0, 2]],
            ),
        )
    return m.plan


def attention() -> Plan:
    """qkv = x w', causal attention of 4 heads over 2 key heads, out; 2 batches of 6 rows in tiles of 4 (qkv)
    and 3."""
    views = [{"tensor": "qkv", "columns": c} for c in ([0, 8], [8, 12], [12, 16])]
    m = Maker(
        "attention",
        {
            "x": tensor([12, 6], "input"),
            "w": tensor([16, 6], "weight"),
            "qkv": tensor([12, 16]),
            "o": tensor([12, 8]),
            "wo": tensor([5, 8], "weight"),
            "y": tensor([12, 5], "output"),
        },
        {
            "project": op("linear", ["x", "w"], "qkv", [4, 4, 6], groups=1),
            "attend": op(
                "attention",
                views,
                "o",
                [3, 2, 1],
                batch=2,
                q_len=6,
                k_len=6,
                heads=4,
                kv_heads=2,
                head_dim=2,
                scale=0.5,
                causal=True,
            ),
            "out": op("linear", ["o", "wo"], "y", [5, 5, 4], groups=1),
        },
    )
    rows4, rows3 = blocks(12, 4), blocks(12, 3)
    one, done = {at: m.semaphore(1) for at in product(range(3), range(4))}, [m.semaphore(4) for _ in rows3]
    for (i, rows), j in product(enumerate(rows4), range(4)):
        columns = [4 * j, 4 * j + 4]
        m.tile(
            "project",
            (i, j),
            part(
                [read("x", [rows, [0, 6]]), read("w", [columns, [0, 6]])], "qkv", [rows, columns], [one[i, j]]
            ),
        )
    for b, i, h in product(range(2), range(2), range(4)):
        rows, columns, g = rows3[2 * b + i], [2 * h, 2 * h + 2], h // 2
        reads: list[dict[str, Any]] = []
        forwarded: set[int] = set()
        boxes = [(rows, columns)]
        for keys in blocks(3 * i + 3, 2):
            boxes += [
                ([6 * b + keys[0], 6 * b + keys[1]], [start + 2 * g, start + 2 * g + 2]) for start in (8, 12)
            ]
        for box in boxes:
            needed = {one[k, box[1][0] // 4] for k in meeting(box[0], rows4)} - forwarded
            reads.append(read("qkv", list(box), m.waits(sorted(needed))))
            forwarded |= needed
        m.tile("attend", (b, h, i), part(reads, "o", [rows, columns], [done[2 * b + i]]))
    for i, rows in enumerate(blocks(12, 5)):
        waits = m.waits(done[k] for k in meeting(rows, rows3))
        m.tile(
            "out",
            (i, 0),
            part([read("o", [rows, [0, 8]], waits), read("wo", [[0, 5], [0, 8]])], "y", [rows, [0, 5]]),
        )
    return m.plan


def decode() -> Plan:
    """One new row per batch goes into the caches at a run-time position, so attention waits for it before any
    row of its batch."""
    attend: dict[str, Any] = {
        "batch": 2,
        "q_len": 1,
        "k_len": 8,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 2,
        "scale": 0.5,
        "causal": True,
    }
    at = {"batch": 2, "seq": 1, "max_len": 8, "at": -1}
    m = Maker(
        "decode",
        {
            "x": tensor([2, 6], "input"),
            "w": tensor([16, 6], "weight"),
            "qkv": tensor([2, 16]),
            "at": tensor([1], "input") | {"dtype": "int32"},
            "keys": tensor([16, 4], "state"),
            "values": tensor([16, 4], "state"),
            "o": tensor([2, 8], "output"),
        },
        {
            "project": op("linear", ["x", "w"], "qkv", [2, 4, 6], groups=1),
            "append_k": op(
                "append", ["keys", {"tensor": "qkv", "columns": [8, 12]}, "at"], "keys", [2], **at
            ),
            "append_v": op(
                "append", ["values", {"tensor": "qkv", "columns": [12, 16]}, "at"], "values", [4], **at
            ),
            "attend": op(
                "attention",
                [{"tensor": "qkv", "columns": [0, 8]}, "keys", "values", "at"],
                "o",
                [1, 4, 1],
                **attend,
            ),
        },
    )
    column, ready = [m.semaphore(1) for _ in range(4)], [m.semaphore(3) for _ in range(2)]
    for j in range(4):
        columns = [4 * j, 4 * j + 4]
        m.tile(
            "project",
            (0, j),
            part(
                [read("x", [[0, 2], [0, 6]]), read("w", [columns, [0, 6]])],
                "qkv",
                [[0, 2], columns],
                [column[j]],
            ),
        )
    for name, cache, j0, width in (("append_k", "keys", 8, 2), ("append_v", "values", 12, 4)):
        for b, j in product(range(2), range(4 // width)):
            columns = [width * j, width * j + width]
            m.tile(
                name,
                (b, j),
                part(
                    [
                        read(
                            "qkv",
                            [[b, b + 1], [j0 + columns[0], j0 + columns[1]]],
                            m.waits([column[j0 // 4]]),
                        )
                    ],
                    cache,
                    [[8 * b, 8 * b + 8], columns],
                    [ready[b]],
                ),
            )
    for b, h in product(range(2), range(4)):
        rows, columns, keys = [8 * b, 8 * b + 8], [2 * h, 2 * h + 2], [h // 2 * 2, h // 2 * 2 + 2]
        reads = [
            read("at", [[0, 1]]),
            read("qkv", [[b, b + 1], columns], m.waits([column[h // 2]])),
            read("keys", [rows, keys], m.waits([ready[b]])),
            read("values", [rows, keys]),
        ]
        m.tile("attend", (b, h, 0), part(reads, "o", [[b, b + 1], columns]))
    return m.plan


def _hull(points: Iterable[tuple[int, ...]]) -> Box:
    return [[min(axis), max(axis) + 1] for axis in zip(*points, strict=True)]


def whole_ops(m: Maker) -> Plan:
    """The coarsest way: a tile waits for all tiles of the ops that it reads from, and reads hulls of its
    elements."""
    ops, works = m.plan["ops"], {}
    for name, o in ops.items():
        shape = GRIDS[name]
        works[name] = {
            at: [work_of(m.plan, o, at, p) for p in range(o["cluster"])] for at in product(*map(range, shape))
        }
    source = {o["result"]: name for name, o in ops.items()}
    read_by = {
        source[t]
        for tiles in works.values()
        for parts in tiles.values()
        for w in parts
        for t, _ in w.reads
        if t in source
    }
    done = {name: m.semaphore(len(works[name]) * ops[name]["cluster"]) for name in ops if name in read_by}
    for name, o in ops.items():
        for at, parts in works[name].items():
            listed = []
            for work in parts:
                tensors = sorted({t for t, _ in work.reads})
                reads = [
                    read(
                        t,
                        _hull(i for u, i in work.reads if u == t),
                        m.waits([done[source[t]]] if t in source else []),
                    )
                    for t in tensors
                ]
                writes = [i for _, i in work.writes]
                listed.append(
                    part(
                        reads,
                        o["result"],
                        _hull(writes) if writes else None,
                        [done[name]] if name in done else [],
                    )
                )
            m.tile(name, at, *listed)
    return m.plan


GRIDS = {
    "conv": (1, 2, 2, 2),
    "pool": (1, 2, 2, 2),
    "mean": (1, 2),
    "flat": (1, 2),
    "layer": (3,),
    "rms": (3,),
    "scores": (2, 2, 2),
    "soft": (2, 2),
    "turned": (2, 2, 1),
    "rope": (3, 2),
    "sum": (3, 2),
    "gated": (3, 2),
}


def spatial() -> Plan:
    """A convolution whose filter leaves gaps, a padded pool, a mean, and a linear over the flattened image by
    clusters of two."""
    m = Maker(
        "spatial",
        {
            "x": tensor([1, 8, 8, 3], "input"),
            "w": tensor([4, 2, 2, 3], "weight"),
            "a": tensor([1, 3, 3, 4]),
            "b": tensor([1, 4, 4, 4]),
            "g": tensor([1, 4], "output"),
            "wf": tensor([6, 64], "weight"),
            "f": tensor([1, 6], "output"),
        },
        {
            "conv": op(
                "conv2d", ["x", "w"], "a", [1, 2, 2, 3, 2], stride=[3, 3], padding=[0, 0], dilation=[1, 1]
            ),
            "pool": op("max_pool2d", ["a"], "b", [1, 3, 2, 3], window=[2, 2], stride=[1, 1], padding=[1, 1]),
            "mean": op("global_avg_pool", ["b"], "g", [1, 3]),
            "flat": op("linear", [{"tensor": "b", "flatten": True}, "wf"], "f", [1, 4, 10], 2, groups=1),
        },
    )
    return whole_ops(m)


def rows() -> Plan:
    """Every kind over rows: norms, batched products, softmax, rope, a sum and a gated linear with a bias."""
    heads = {"batch": 2, "m": 6, "n": 6, "k": 6}
    bias = {"expression": "silu(acc0) * acc1 + e0", "operands": [{"index": 2, "as": "columns"}]}
    total = {
        "expression": "e0 + e1",
        "operands": [{"index": 0, "as": "elements"}, {"index": 1, "as": "elements"}],
    }
    vectors = {name: tensor([size], "weight") for name, size in (("u", 6), ("v", 6), ("bias", 5))}
    names = {name: tensor([12, 6]) for name in ("n1", "n2", "s", "p", "t", "r", "z")}
    m = Maker(
        "rows",
        {
            "x": tensor([12, 6], "input"),
            "w": tensor([6, 6], "weight"),
            "wg": tensor([10, 6], "weight"),
            **vectors,
            **names,
            "y": tensor([12, 5], "output"),
        },
        {
            "layer": op("layer_norm", ["x", "u", "v"], "n1", [5], eps=1e-5),
            "rms": op("rms_norm", ["x", "u"], "n2", [4], eps=1e-5),
            "scores": op(
                "matmul",
                ["n1", "n2"],
                "s",
                [4, 4, 4],
                **heads,
                transpose_a=False,
                transpose_b=True,
                b_batch=2,
            ),
            "soft": op("softmax", ["s"], "p", [4], batch=2, rows=6, scale=1.0, causal=True),
            "turned": op(
                "matmul", ["p", "w"], "t", [4, 8, 4], **heads, transpose_a=True, transpose_b=False, b_batch=1
            ),
            "rope": op("rope", ["t"], "r", [5, 2], seq=6, head_dim=2, theta=1e4),
            "sum": op("pointwise", ["r", "n1"], "z", [5, 4], epilogue=total),
            "gated": op("linear", ["z", "wg", "bias"], "y", [5, 3, 4], groups=2, epilogue=bias),
        },
    )
    return whole_ops(m)


PLANS: list[Callable[[], Plan]] = [
    mlp_rows,
    mlp_static,
    mlp_tiles,
    mlp_gang,
    split_k,
    conv_halo,
    conv_strided,
    attention,
    decode,
    spatial,
    rows,
]
