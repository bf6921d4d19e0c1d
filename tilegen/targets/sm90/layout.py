"""How a Hopper kernel lays out a CTA's shared memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tilegen.arch.gpus import SM_90
from tilegen.errors import PlanError
from tilegen.frontend.dims import most
from tilegen.graph.linear_time import by_gpc
from tilegen.graph.product_time import fills_at_once, stages_at_once
from tilegen.ops.base import ceil_div
from tilegen.ops.cluster import ClusterShape
from tilegen.targets.sm90.attention import Attention
from tilegen.targets.sm90.product import Product
from tilegen.targets.sm90.shared_bodies import Op, convolves

SHARED = SM_90.shared_block
SLACK = 1024  # to start at a multiple of 1024
MOST_STAGES = 32
BUFFER = 8192  # a 64 x 64 block of results


@dataclass(frozen=True)
class Layout:
    """Shared memory: ring of stages, result buffers, exchanged sums, barriers."""

    ops: tuple[Op, ...]
    dynamic: bool  # else each CTA has its list

    @cached_property
    def products(self) -> list[Product]:
        return [op for op in self.ops if isinstance(op, Product)]

    @property
    def cluster(self) -> int:
        return max(op.cluster for op in self.ops)

    @property
    def shape(self) -> ClusterShape:
        """Of the clusters whose CTAs load together."""
        return self.products[0].tile.cluster if self.products else ClusterShape()

    @property
    def peers(self) -> int:
        """CTAs that load into a stage of one whose cluster loads together: its row and its column."""
        return 2 if self.cluster == 2 else self.shape.m + self.shape.n - 1

    @property
    def pingpong(self) -> bool:
        """Whether the math warpgroups take tiles in turn."""
        return any(op.tile.pingpong for op in self.products)

    @property
    def users(self) -> int:
        """Math warpgroups that read a stage."""
        return 1 if self.pingpong else 2

    @property
    def runner(self) -> str:
        """Which CTA of a cluster runs a tile that needs one: of lists each in turn, of drawn ranks the one
        that draws them."""
        return "0" if self.dynamic else "turn % TG_CLUSTER"

    @property
    def queue_depth(self) -> int:
        """Tiles handed out ahead: one where ranks are drawn, so that a slow CTA holds back as little as
        possible."""
        return 1 if self.dynamic else 4

    @cached_property
    def stage_bytes(self) -> int:
        """What is loaded of a step; and wgmma, which always takes 64 rows, looks at none of the next
        stage."""
        needed = max(max(op.needs.stage, op.needs.overrun) for op in self.ops)
        return max(1, ceil_div(needed, 1024)) * 1024

    @cached_property
    def sums_bytes(self) -> int:
        """Of one math warpgroup."""
        return max(op.needs.sums for op in self.ops)

    @cached_property
    def sums_regions(self) -> int:
        """One where only one warpgroup of a CTA is sent sums (each has half of them), else one for each."""
        return 1 if all(op.tile.halved for op in self.products if op.tile.exchanges) else 2

    @cached_property
    def sends(self) -> int:
        """Parts of a tile's sums that a math warpgroup sends, at most."""
        return max((op.tile.sends for op in self.products if op.tile.exchanges), default=0)

    @cached_property
    def resident_bytes(self) -> int:
        """Of what a tile is given outside of the ring: its queries, which stay while keys and values pass
        through."""
        return max(op.needs.resident for op in self.ops)

    @cached_property
    def residents(self) -> int:
        """Tiles whose queries are there at a time: the next tile's come while one's are used, where the ring
        is attention's alone and keeps two blocks of keys and of values."""
        apart = all(isinstance(op, Attention) and not op.halved for op in self.ops)
        return 2 if apart and self._stages_beside(0, 2) >= 4 else 1

    @cached_property
    def resident_overrun(self) -> int:
        return max(op.needs.resident_overrun for op in self.ops)

    @cached_property
    def scratch_bytes(self) -> int:
        return max(op.needs.scratch for op in self.ops)

    @cached_property
    def buffers(self) -> int:
        """Result buffers of each math warpgroup: as many as its tile has blocks, so that it need not wait for
        stores, if that leaves four stages, or the three that convolutions do as well with; one where weights
        stream, since there only the ring hides memory's latency, or two where a residual comes into them: one
        is loaded while the other is stored."""
        staged = [op for op in self.products if op.store.staged]
        if not staged:
            return 0
        most = min(4, max(op.store.blocks for op in staged))
        if all(op.weights_once and not op.tile.swapped for op in self.products):
            beside = any(op.extras.residual for op in self.products)
            return 2 if beside and most > 1 and self._stages_beside(2) >= 4 else 1
        enough = 3 if any(map(convolves, self.ops)) else 4
        return next(
            (n for least in (enough, 3) for n in range(most, 0, -1) if self._stages_beside(n) >= least), 1
        )

    def _stages_beside(self, buffers: int, residents: int = 1) -> int:
        """The longest ring that leaves room for everything else."""
        room = SHARED - SLACK
        return next((n for n in range(MOST_STAGES, 0, -1) if self._end(n, buffers, residents) <= room), 0)

    @cached_property
    def stages(self) -> int:
        found = self._stages_beside(self.buffers, self.residents)
        return min(found, stages_at_once(self.stage_bytes)) if self.fills_at_once else found

    @property
    def fills_at_once(self) -> bool:
        """Of a linear alone; the cost model knows it, too."""
        op = self._alone
        if not op or convolves(op):
            return False
        lone = math.prod(most(n) for n in op.bound.grid) <= op.plan.machine.clusters(op.cluster)
        return fills_at_once(lone, not op.weights_once, op.tile.pingpong, op.tile.steps)

    @property
    def by_gpc(self) -> bool:
        """Whether a CTA walks the list of its SM, not that of its own number."""
        op = self._alone
        if not op or self.dynamic or len(op.plan.scheduling) != op.plan.machine.sms:
            return False
        return by_gpc(op.bound, op.plan.machine)

    @property
    def _alone(self) -> Product | None:
        """The one op of the kernel, where it is a product."""
        return self.products[0] if self.products and len(self.ops) == 1 else None

    def refuse(self) -> None:
        """PlanError where there is no room for two stages."""
        if self.stages < 2:
            largest = max(self.ops, key=lambda op: op.needs.stage).bound.op
            raise PlanError(
                f"a stage of {self.stage_bytes:,} bytes, which a tile {'x'.join(map(str, largest.tile))} of"
                f" {largest.name!r} takes, leaves no room for a second one in {SHARED:,} bytes of shared"
                " memory; choose smaller tiles",
                largest.where,
            )

    @cached_property
    def _places(self) -> dict[str, int]:
        return self._places_beside(self.stages, self.buffers, self.residents)

    def _places_beside(self, stages: int, buffers: int, residents: int) -> dict[str, int]:
        """Where everything starts, in bytes."""
        out: dict[str, int] = {}
        at = stages * self.stage_bytes
        for name, size in (
            ("TG_OUT_AT", 2 * buffers * BUFFER),
            ("TG_RESIDENT_AT", residents * self.resident_bytes),
            ("TG_SUMS_AT", self.sums_regions * self.sums_bytes),
            ("TG_FULL_AT", 8 * stages),
            ("TG_EMPTY_AT", 8 * stages),
            ("TG_FILLED_AT", 16 * buffers),
            ("TG_DRAINED_AT", 16 * buffers),
            ("TG_STORED_AT", 8),
            ("TG_STORED_SEEN_AT", 8),
            ("TG_SUMS_HERE_AT", 16),
            # where nothing is sent, too: addresses are then those of all earlier kernels
            ("TG_SUMS_READ_AT", 16 * max(1, self.sends)),
            ("TG_RESIDENT_HERE_AT", 8 * residents),
            ("TG_RESIDENT_READ_AT", 8 * residents),
            *((("TG_TURN_AT", 16),) if self.pingpong else ()),
            ("TG_QUEUE_FILLED_AT", 8 * self.queue_depth),
            ("TG_QUEUE_READ_AT", 8 * self.queue_depth),
            ("TG_QUEUE_AT", 32 * self.queue_depth),
            ("TG_SCRATCH_AT", self.scratch_bytes),
            ("end", 0),
        ):
            at = -(-at // 32) * 32
            out[name] = at
            at += size
        return out

    @property
    def direct(self) -> bool:
        """Whether an op posts whose results leave from registers."""
        return any(op.posts and not op.proxies.writes for op in self.ops)

    def barriers(self, coupled: bool) -> list[dict[str, Any]]:
        """All barriers: where they lie, how many, arrivals of a phase."""
        readers = 11 * (self.cluster if self.dynamic else 1)
        all_ctas = " of both CTAs" if self.cluster == 2 else " of all CTAs of the cluster"
        both = all_ctas if self.dynamic and self.cluster > 1 else ""
        loading = " of both CTAs" if self.cluster == 2 else " of all CTAs that load into it"
        rows = [
            ("TG_QUEUE_FILLED_AT", self.queue_depth, 1, "a tile is handed out"),
            (
                "TG_QUEUE_READ_AT",
                self.queue_depth,
                readers,
                f"a tile is taken: by three roles and eight math warps{both}",
            ),
            ("TG_FULL_AT", self.stages, 2, "a stage is loaded: both loaders"),
            (
                "TG_EMPTY_AT",
                self.stages,
                self.users * (self.peers if coupled else 1),
                f"a stage is used up: the math warpgroup{'s' if self.users > 1 else ''}"
                f"{loading if coupled else ''}",
            ),
        ]
        if self.pingpong:
            told = "a math warpgroup may look at its tile's stages: the warps of the other one"
            rows += [("TG_TURN_AT", 2, 4, told)]
        if self.buffers:
            rows += [
                (
                    "TG_FILLED_AT",
                    2 * self.buffers,
                    4,
                    "a result buffer is written: the warps of its warpgroup",
                )
            ]
            rows += [("TG_DRAINED_AT", 2 * self.buffers, 1, "a result buffer has been read")]
        if self.direct:
            rows += [
                ("TG_STORED_AT", 1, 8, "results have left the registers of all math warps"),
                ("TG_STORED_SEEN_AT", 1, 1, "and that is known"),
            ]
        if any(op.form != "product" for op in self.ops):
            told = "what a tile needs outside of the ring is here"
            rows += [("TG_RESIDENT_HERE_AT", self.residents, 1, told)]
            told = "it is no longer needed: by all math warps"
            rows += [("TG_RESIDENT_READ_AT", self.residents, 8, told)]
        if self.sums_bytes:
            rows += [
                ("TG_SUMS_HERE_AT", 2, 1, "sums are here"),
                (
                    "TG_SUMS_READ_AT",
                    2 * self.sends,
                    4,
                    "sums are read: the warps of the other's warpgroup",
                ),
            ]
        return [dict(zip(("at", "count", "arrivals", "comment"), row, strict=True)) for row in rows]

    @property
    def bytes(self) -> int:
        return self._end(self.stages, self.buffers, self.residents) + SLACK

    def _end(self, stages: int, buffers: int, residents: int) -> int:
        """Bytes that are touched."""
        places = self._places_beside(stages, buffers, residents)
        last = places["TG_RESIDENT_AT"] + (residents - 1) * self.resident_bytes
        return max(places["end"], last + self.resident_overrun)

    @property
    def constants(self) -> list[tuple[str, int, str]]:
        words = {
            "TG_OUT_AT": "result buffers on their way out",
            "TG_SUMS_AT": f"sums sent by the other {'CTA of the pair' if self.cluster == 2 else 'CTAs'}",
            "TG_FULL_AT": "barriers: a stage is loaded",
            "TG_EMPTY_AT": "barriers: a stage is used up",
            "TG_FILLED_AT": "barriers: a result buffer is written",
            "TG_DRAINED_AT": "barriers: a result buffer has been read",
            "TG_STORED_AT": "barrier: results have left the registers",
            "TG_STORED_SEEN_AT": "barrier: and that is known",
            "TG_SUMS_HERE_AT": "barriers: sums are here",
            "TG_SUMS_READ_AT": "barriers: sums are read",
            "TG_TURN_AT": "barriers: a math warpgroup may look at its tile's stages",
            "TG_RESIDENT_AT": "queries of a tile of attention",
            "TG_RESIDENT_HERE_AT": "barriers: what a tile needs outside of the ring is here",
            "TG_RESIDENT_READ_AT": "barriers: it is no longer needed",
            "TG_QUEUE_FILLED_AT": "barriers: a tile is handed out",
            "TG_QUEUE_READ_AT": "barriers: a tile is taken",
            "TG_QUEUE_AT": "tiles handed out: rank, op, coordinates",
            "TG_SCRATCH_AT": (
                "for ops that threads compute: a number of each warp, and what else they want to share; rows'"
                " sums of squares"
            ),
        }
        sends = [("TG_SENDS", self.sends, "parts of its sums that a math warpgroup sends, at most")]
        head = [
            *(sends if self.cluster > 2 and self.sums_bytes else []),
            ("TG_STAGES", self.stages, "of the ring"),
            ("TG_STAGE_BYTES", self.stage_bytes, "activations, then weights"),
            ("TG_QUEUE", self.queue_depth, "tiles handed out ahead"),
            ("TG_BUFFERS", self.buffers, "64 x 64 result buffers of each math warpgroup"),
            ("TG_RESIDENTS", self.residents, "tiles that queries are there for at a time"),
            ("TG_RESIDENT_BYTES", self.resident_bytes, "of one of them"),
            (
                "TG_SUMS_STRIDE",
                self.sums_bytes if self.sums_regions == 2 else 0,
                "from one math warpgroup's sums to the other's",
            ),
        ]
        return head + [
            (name, self._places[name], text) for name, text in words.items() if name in self._places
        ]
