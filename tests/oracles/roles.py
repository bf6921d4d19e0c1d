"""The Hopper kernel's roles and mbarriers as a model, one step at a time: what
templates/cuda/{loading,letting_out,multiplying,gemm,attention,slots}.cuh.j2 do with each barrier.

A scheduler runs the roles of one CTA, or of a pair, in any order. Every barrier checks what mbarriers
themselves do not (PTX ISA, mbarrier): that the n-th arrival of whoever arrives counts for phase n, and that
nobody waits for a phase while the barrier is two phases on, where parities alias.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tilegen.schedule.plan import Plan
from tilegen.targets.sm90.attention import Attention
from tilegen.targets.sm90.emit import hopper_op
from tilegen.targets.sm90.layout import Layout
from tilegen.targets.sm90.product import Product
from tilegen.targets.sm90.shared_bodies import Op

Role = Iterator[Callable[[], bool]]  # yields what it waits for


class ProtocolError(AssertionError):
    pass


@dataclass
class Barrier:
    """arrivals of a phase; phase: how many are complete; bytes that are still to land in this one."""

    name: str
    arrivals: int
    phase: int = 0
    pending: int = 0
    bytes: int = 0
    counts: dict[str, int] = field(default_factory=dict)

    def arrive(self, who: str, expected: int = 0) -> None:
        n = self.counts.get(who, 0)
        if n != self.phase:
            raise ProtocolError(f"{self.name}: arrival {n} of {who} counts for phase {self.phase}")
        self.counts[who] = n + 1
        self.pending += 1
        self.bytes += expected
        self._turn()

    def land(self, lap: int, size: int) -> None:
        if lap != self.phase:
            raise ProtocolError(f"{self.name}: bytes of lap {lap} land in phase {self.phase}")
        self.bytes -= size
        self._turn()

    def _turn(self) -> None:
        if self.pending > self.arrivals:
            raise ProtocolError(
                f"{self.name}: {self.pending} arrivals in phase {self.phase}, expected {self.arrivals}"
            )
        if self.pending == self.arrivals and self.bytes == 0:
            self.phase, self.pending = self.phase + 1, 0

    def over(self, phase: int) -> Callable[[], bool]:
        """Whether a phase is over, as a wait for its parity sees it; phase -1 is over from the start."""

        def test() -> bool:
            if self.phase >= phase + 2:
                raise ProtocolError(
                    f"{self.name}: somebody waits for phase {phase} when phase {self.phase - 1} is over"
                )
            return self.phase > phase

        return test


@dataclass(frozen=True)
class Work:
    """A tile as the roles see it: steps of each CTA, how its sums leave, whether it posts."""

    name: str
    steps: tuple[int, ...]
    staged: bool
    posts: bool
    blocks: int  # result buffers that a math warpgroup fills
    exchanges: str  # "": no; "half": one warpgroup gives, the other takes; "both": each gives and takes
    form: str = "product"  # or threads, attention, halved
    forwarded: bool = False  # weights' role loads its keys and values
    roped: bool = False  # all math warps change what the tile is given
    alone: bool = False  # run by the first CTA of a pair

    @staticmethod
    def of(op: Op, turn: int, cluster: int) -> Work:
        # as many stages as up to twelve blocks of keys have: k and v of each together, or one each
        if isinstance(op, Attention):
            form, each = ("halved", 1) if op.halved else ("attention", 2)
            return Work(
                op.name,
                (each * ((op.kv_splits == 1) + 5 * turn % 12),) * cluster,
                False,
                op.posts,
                0,
                "",
                form,
                op.forwarded,
                op.roped,
                op.cluster < cluster,
            )
        if not isinstance(op, Product):
            return Work(
                op.name, (0,) * cluster, False, op.posts, 0, "", "threads", alone=op.cluster < cluster
            )
        n, tile = op.tile.steps * op.a.positions, op.tile
        steps = (n // 2, n - n // 2) if tile.exchanges else (n,) * max(1, op.cluster)
        blocks = tile.m64 * -(-tile.finished_n8s // 8)
        exchanges = "" if not tile.exchanges else "half" if tile.warpgroups_split_n else "both"
        return Work(
            op.name,
            steps if op.cluster == cluster else steps * cluster,
            op.store.staged,
            op.posts,
            blocks,
            exchanges,
            alone=op.cluster < cluster,
        )


class Cta:
    """The barriers of one CTA and its roles."""

    def __init__(self, cta_rank: int, layout: Layout, tiles: list[Work], coupled: str, early: bool):
        self.cta_rank, self.layout, self.tiles, self.coupled, self.early = (
            cta_rank,
            layout,
            tiles,
            coupled,
            early,
        )
        self.pair: list[Cta] = [self]
        self.bars: dict[str, list[Barrier]] = {}
        for row in layout.barriers(bool(coupled)):
            self.bars[row["at"]] = [
                Barrier(f"{row['at']}[{n}] of CTA {cta_rank}", row["arrivals"]) for n in range(row["count"])
            ]
        # steps that each math warp has begun: wgmma needs all warps of its warpgroup
        self.begun = [[0] * 4, [0] * 4]
        self.freed = [0, 0]  # steps that each warpgroup is done with
        self.stored = [0] * len(tiles)  # shares of a tile's results that are stored
        self.posted: list[int] = []
        self.met: dict[str, int] = {}  # named barriers: how many warps have come

    def skips(self, tile: Work, turn: int) -> bool:
        return tile.alone and self.cta_rank != (0 if self.layout.dynamic else turn % self.layout.cluster)

    def meet(self, name: str, warps: int) -> Role:
        """A named barrier of so many warps."""
        self.met[name] = self.met.get(name, 0) + 1
        turn = -(-self.met[name] // warps) * warps
        yield lambda: self.met[name] >= turn

    def bar(self, name: str, n: int = 0) -> Barrier:
        return self.bars[f"TG_{name}_AT"][n]

    def roles(self) -> dict[str, Role]:
        found = {
            "activations": self.load("a"),
            "weights": self.load("b"),
            "out": self.let_out(),
            "hand": self.hand_out(),
        }
        found |= {f"math{w}.{n}": self.multiply(w, n) for w in (0, 1) for n in range(4)}
        return {f"{name} of CTA {self.cta_rank}": role for name, role in found.items()}

    # --- tiles ----------------------------------------------------------------------------------------------

    def hand_out(self) -> Role:
        """tg_schedule_tiles: lists by each CTA itself, drawn ranks by the first of the pair for both."""
        if self.layout.dynamic and self.cta_rank != 0:
            return
        to = self.pair if self.layout.dynamic else [self]
        for turn in range(len(self.tiles) + 1):
            slot, lap = turn % self.layout.queue_depth, turn // self.layout.queue_depth
            yield self.bar("QUEUE_READ", slot).over(lap - 1)
            for cta in to:
                yield lambda: True
                cta.bar("QUEUE_FILLED", slot).arrive("hand")

    def take(self, turn: int) -> Role:
        yield self.bar("QUEUE_FILLED", turn % self.layout.queue_depth).over(turn // self.layout.queue_depth)

    def pass_on(self, turn: int, who: str) -> None:
        owner = self.pair[0] if self.layout.dynamic else self
        owner.bar("QUEUE_READ", turn % self.layout.queue_depth).arrive(f"{who} of CTA {self.cta_rank}")

    # --- loading --------------------------------------------------------------------------------------------

    def load(self, operand: str) -> Role:
        who, position, given = {"a": "activations", "b": "weights"}[operand], 0, 0
        both = self.coupled == who
        for turn, tile in enumerate(self.tiles):
            yield from self.take(turn)
            if operand == "a":
                self.pass_on(turn, who)
            if operand == "a" and tile.form != "product" and not self.skips(tile, turn):
                size = 0 if tile.form == "threads" else 2
                yield self.bar("RESIDENT_READ").over(given - 1)
                self.bar("RESIDENT_HERE").arrive(who, size)
                yield lambda: True
                if size:
                    self.bar("RESIDENT_HERE").land(given, size)
                given += 1
            for _ in range(0 if self.skips(tile, turn) else tile.steps[self.cta_rank]):
                stage, lap = position % self.layout.stages, position // self.layout.stages
                yield self.bar("EMPTY", stage).over(lap - 1)
                loads = tile.form == "product" or operand == ("b" if tile.forwarded else "a")
                self.bar("FULL", stage).arrive(who, 2 if loads else 0)
                if not loads:
                    position += 1
                    continue
                for cta in self.pair if both else [self]:
                    yield lambda: True  # it may take any time to land
                    if min(cta.freed) <= position - self.layout.stages:
                        where = f"stage {stage} of CTA {cta.cta_rank}"
                        raise ProtocolError(f"{where} is overwritten in lap {lap} while it is read")
                    cta.bar("FULL", stage).land(lap, 1 if both else 2)
                position += 1
            if operand == "b":
                self.pass_on(turn, who)
        yield from self.take(len(self.tiles))

    # --- multiplying ----------------------------------------------------------------------------------------

    def multiply(self, w: int, warp: int) -> Role:
        """One math warp; thread 0 of warps 0 and 1 stands for its warpgroup where one thread arrives."""
        who, position, buffer, gave, taken, told, given = f"math{w}.{warp}", 0, 0, 0, 0, 0, 0
        for turn, tile in enumerate(self.tiles):
            yield from self.take(turn)
            self.pass_on(turn, who)
            if self.skips(tile, turn):
                continue
            if tile.form != "product":
                yield self.bar("RESIDENT_HERE").over(given)
                given += 1
            if tile.form == "threads":
                self.bar("RESIDENT_READ").arrive(who)
            elif tile.form != "product":
                if tile.roped:
                    yield from self.meet("both", 8)
                attend = self.attend if tile.form == "attention" else self.attend_halved
                yield from attend(position, tile.steps[self.cta_rank], w, warp)
            else:
                for step in range(tile.steps[self.cta_rank]):
                    yield self.full(position + step)
                    self.begun[w][warp] += 1
                    if step > 0:
                        yield from self.release(position + step - 1, w, warp)
                yield from self.release(position + tile.steps[self.cta_rank] - 1, w, warp)
            position += tile.steps[self.cta_rank]
            gives = tile.exchanges == "both" or (tile.exchanges == "half" and w != self.cta_rank)
            takes = tile.exchanges == "both" or (tile.exchanges == "half" and w == self.cta_rank)
            if gives:
                yield self.bar("SUMS_READ", w).over(gave - 1)
                other = self.pair[1 - self.cta_rank]
                yield lambda: True
                other.bar("SUMS_HERE", w).land(gave, 2)  # a warp's sums: 2 bytes in the model
                gave += 1
            if takes:
                if warp == 0:
                    self.bar("SUMS_HERE", w).arrive("taker", 8)
                yield self.bar("SUMS_HERE", w).over(taken)
                self.pair[1 - self.cta_rank].bar("SUMS_READ", w).arrive(f"warp {warp}")
                taken += 1
            finishes = takes or not gives  # else what it had is with the other CTA
            if finishes and tile.staged:
                for _ in range(tile.blocks):
                    at, lap = buffer % self.layout.buffers, buffer // self.layout.buffers
                    yield self.bar("DRAINED", w * self.layout.buffers + at).over(lap - 1)
                    self.bar("FILLED", w * self.layout.buffers + at).arrive(f"warp {warp}")
                    buffer += 1
            elif finishes:
                yield lambda: True
                self.stored[turn] += 1
            if tile.posts and not tile.staged:
                if not self.early:
                    yield self.bar("STORED_SEEN").over(told - 1)
                self.bar("STORED").arrive(who)
                told += 1
        yield from self.take(len(self.tiles))

    def full(self, position: int) -> Callable[[], bool]:
        return self.bar("FULL", position % self.layout.stages).over(position // self.layout.stages)

    def attend(self, position: int, stages: int, w: int, warp: int) -> Role:
        """tg_attend: k0, then k1 and v0, k2 and v1, …, each pair of products begun together, then the last
        v."""
        blocks = stages // 2
        yield self.full(position)
        self.begun[w][warp] += 1
        yield from self.release(position, w, warp)
        for block in range(1, blocks):
            for n in (2 * block - 1, 2 * block):
                yield self.full(position + n)
                self.begun[w][warp] += 1
            yield from self.release(position + 2 * block - 1, w, warp)
            yield from self.release(position + 2 * block, w, warp)
        self.bar("RESIDENT_READ").arrive(f"math{w}.{warp}")
        yield self.full(position + 2 * blocks - 1)
        self.begun[w][warp] += 1
        yield from self.release(position + 2 * blocks - 1, w, warp)

    def attend_halved(self, position: int, blocks: int, w: int, warp: int) -> Role:
        """tg_attend_halved: every stage is looked at by both warpgroups, used by one of them; then their sums
        are joined. There may be no block."""
        for block in range(blocks):
            yield self.full(position + block)
            self.begun[w][warp] += 1
            if block % 2 != w and not self.early:
                yield from self.meet(f"warpgroup {w}", 4)
            yield from self.release(position + block, w, warp, waits=block % 2 == w)
        for _ in range(2):
            yield from self.meet("both", 8)
        self.bar("RESIDENT_READ").arrive(f"math{w}.{warp}")

    def release(self, position: int, w: int, warp: int, waits: bool = True) -> Role:
        """tg_mma_wait, then tg_release."""
        if waits:
            yield lambda: min(self.begun[w]) > position
        self.freed[w] = max(self.freed[w], position + 1)
        to = self.pair[warp : warp + 1] if self.coupled else [self] if warp == 0 else []
        for cta in to:
            cta.bar("EMPTY", position % self.layout.stages).arrive(f"math{w} of CTA {self.cta_rank}")

    # --- letting out ----------------------------------------------------------------------------------------

    def let_out(self) -> Role:
        buffer, stored = 0, 0
        for turn, tile in enumerate(self.tiles):
            yield from self.take(turn)
            self.pass_on(turn, "out")
            if self.skips(tile, turn):
                continue
            if tile.staged:
                for _ in range(tile.blocks):
                    at, lap = buffer % self.layout.buffers, buffer // self.layout.buffers
                    for w in (0, 1):
                        yield self.bar("FILLED", w * self.layout.buffers + at).over(lap)
                    yield lambda: True
                    for w in (0, 1):
                        self.bar("DRAINED", w * self.layout.buffers + at).arrive("out")
                    buffer += 1
            elif tile.posts:
                yield self.bar("STORED").over(stored)
                if not self.early:
                    self.bar("STORED_SEEN").arrive("out")
                stored += 1
                if self.stored[turn] < (4 if tile.exchanges == "half" else 8):
                    raise ProtocolError(
                        f"tile {turn} ({tile.name}) is posted with {self.stored[turn]} math warps' results"
                        " stored"
                    )
            if tile.posts:
                self.posted.append(turn)
        yield from self.take(len(self.tiles))


def run(plan: Plan, sequence: list[str], seed: int, early: bool = False) -> None:
    """Tiles of these ops on one CTA, or on both of a pair, under a random scheduler that starves some roles.
    ProtocolError where a barrier is misused.

    early: math warps tell that a tile is stored without waiting until the tile before is known to be, and
    give back stages that their warpgroup's other warps have not looked at.
    """
    ops = {b.op.name: hopper_op(plan, b) for b in plan.bounds}
    layout = Layout(tuple(ops.values()), plan.scheduling == "dynamic")
    coupled = (
        "activations"
        if any(op.a.pairs for op in ops.values())
        else "weights"
        if any(op.b.pairs for op in ops.values())
        else ""
    )
    tiles = [Work.of(ops[name], turn, layout.cluster) for turn, name in enumerate(sequence)]
    ctas = [Cta(cta_rank, layout, tiles, coupled, early) for cta_rank in range(layout.cluster)]
    for cta in ctas:
        cta.pair = ctas
    roles = {name: role for cta in ctas for name, role in cta.roles().items()}
    schedule(roles, random.Random(seed))
    for cta in ctas:
        if cta.posted != [n for n, tile in enumerate(tiles) if tile.posts and not cta.skips(tile, n)]:
            raise ProtocolError(f"CTA {cta.cta_rank} posted tiles {cta.posted}")


def schedule(roles: dict[str, Role], choose: random.Random) -> None:
    waits: dict[str, Callable[[], bool]] = {}
    for name, role in list(roles.items()):
        step(roles, waits, name, role)
    speed = {name: choose.choice((0.01, 1.0, 1.0, 30.0)) for name in roles}
    while roles:
        ready = [name for name in roles if waits[name]()]
        if not ready:
            raise ProtocolError(f"nobody can go on: {', '.join(roles)}")
        name = choose.choices(ready, [speed[n] for n in ready])[0]
        step(roles, waits, name, roles[name])


def step(roles: dict[str, Role], waits: dict[str, Callable[[], bool]], name: str, role: Role) -> None:
    try:
        waits[name] = next(role)
    except StopIteration:
        del roles[name]
