"""What a product takes on Hopper's tensor cores, in µs, once it is known how it is cut: a linear
(tilegen.graph.linear_time) or a convolution (conv_time).

    products = steps · ‖step, trip / (stages - 1)‖
    tile     = products + epilogue + numbers read beside it
    hottest  = products of all tiles / SMs, at the clock that the power limit leaves
    in turn  = max(products, (products + epilogue) / 2), and the epilogue of the last tile
    formula  = ‖‖waves · tile, hottest‖ + start · CTAs / SMs, memory‖ + launch
    alone    = formula · what it leaves out (tilegen.graph.residual)
    among    = ‖waves · tile + start, memory‖
               + (rings · SMs without a CTA / SMs + between · (waves - 1)) · memory / ‖…‖

‖…‖ is the p-norm, p = `sharp`, of what goes on side by side: nearly the longest, each a little in the other's
way. In turn is a tile where the math warpgroups take turns (TileOp.pingpong): one's epilogue hides behind the
other's products. The constants were fitted to measured times (benchmarks.calibrate), which also says how far
off they are; those of `among` were measured in layers that decode (docs/perf-log.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilegen.arch.machine import Machine
from tilegen.graph.residual import Residual
from tilegen.ops.cluster import ClusterShape

MOST_STAGES, RING = 32, 212_000  # stages of a ring, and bytes of all of them
# bytes of a ring where all of them are filled at once, its stages at least, and from how many steps on
AT_ONCE, FEWEST_AT_ONCE, STEPS_AT_ONCE = 200_000, 4, 64
ROWS_OF_GPC = 4  # of tiles, where they go by GPC: 16 SMs load as many rows and columns of them
# tiles of an SM from which on they may; then bytes that a clock of the tensor cores loads, and steps
# of 64 columns of a lone tile or clocks of all tiles of an SM: from these on they do
FILLED_BY_GPC = 0.65
LOADED_BY_GPC, STEPS_BY_GPC = 74, 64
LOADED_LONG, CLOCKS_LONG = 50, 25_000
ALTERNATING = 64  # columns of 64 rows up to which math warpgroups take turns with slices of K
ROW_BYTES = 128  # 64 columns of a row


@dataclass(frozen=True)
class Rates:
    """Of a GPU and its kernel; those that stand here are an H200's. Times in µs. `apart` and what CTAs wait
    for each other were fitted to sweeps of an H200 and of an H100 together."""

    clock: float = 1901.0  # clocks of the tensor cores in a µs
    hot: float = 0.2318  # by how much slower products are, of the waves after the first
    limit: float = 1521.0  # clocks of the tensor cores in a µs, of all SMs at it: the power limit's
    l2: float = 41.09  # bytes a clock that an SM gets from L2 with all of them at it
    # of a byte's time in L2, that of one of activations; of a cluster's
    activations: float = 0.2988
    activations_of_clusters: float = 0.45
    # clocks of a bulk copy for a row of patches, where they lie a stride apart, and for weights beside them
    patches: float = 3.3
    patches_apart: float = 3.6
    beside_patches: float = 0.5
    least_step: float = 0.117  # from one stage of the ring to the next
    least_step_of_pairs: float = 0.1404
    trip: float = 0.728  # from the request of a stage's bytes until they are there
    trip_of_clusters: float = 0.8075  # where more than two CTAs load together
    # factors of a step: what the CTAs of a pair wait for each other, by what they share; and of a larger
    # cluster
    shared_k: float = 1.019
    shared_k4: float = 1.097  # by up to four CTAs, and by more
    shared_k8: float = 1.281
    shared_m: float = 1.034
    shared_n: float = 1.108
    shared_by_rows: float = 1.021
    shared_by_columns: float = 1.062
    shared_by_both: float = 1.076
    apart: float = 1.17  # by how much longer L2 takes where the CTAs of a cluster read other columns
    # clocks for 16 columns of a block of 64 rows of wgmma's left operand; where both warpgroups read the same
    left: float = 16.25
    left_of_both: float = 11.21
    written: float = 0.2267  # for a row of 128 bytes that comes into shared memory meanwhile
    epilogue: float = 7.411e-05  # of a number of the result
    turned: float = 1.05e-04  # of one of a swapped tile that leaves from registers
    turned_staged: float = 7e-05  # and by TMA
    in_turn: float = 6.033e-05  # of one where a math warpgroup has a tile to itself, of what is not hidden
    by_one: float = 0.97  # factor of a step of a lone tile that one math warpgroup has: it waits for no other
    turn: float = 0.04213  # from the products of one tile to those of the next, where they take turns
    # of a number that a curved function such as gelu makes; of a swapped tile
    curve: float = 6.5e-05
    curve_turned: float = 1.6e-05
    sent: float = 4.201e-05  # where the CTAs of a pair send each other half of them
    sent_turned: float = 2.1e-05  # of those of a swapped tile
    # of a number that the epilogue reads, a residual's: by threads, by those of a swapped tile, by TMA
    beside: float = 2.6e-04
    beside_turned: float = 2.35e-04
    beside_by_tma: float = 1.2e-04
    # of a number in rows that are no whole eights, which leave in vectors that begin anywhere; of a swapped
    # tile, whose numbers leave one by one, or in pairs (benchmarks.ladders widths)
    unaligned: float = 2e-04
    one_by_one: float = 1.1e-03
    launch: float = 1.14  # before the first step and after the last
    launch_of_clusters: float = 0.4123  # besides, where CTAs meet at the start and the end
    start: float = 1.242  # besides, where all SMs have a CTA; bytes come from memory meanwhile
    narrow: float = 0.2058  # by how much memory is slower where few SMs ask
    # to scale 64 columns of activations: until all warps have met, and each row
    meet: float = 0.09003
    scaled_row: float = 0.0004502
    between: float = 1.4  # two tiles of an SM that wait for their weights
    sharp: float = 4.214

    def leaving(self, columns: int, swapped: bool) -> float:
        """Of a number of a row of so many, what it takes longer to leave than in whole vectors."""
        if columns % 8 == 0:
            return 0.0
        return (self.one_by_one if columns % 2 else self.one_by_one / 2) if swapped else self.unaligned

    def scaling(self, rows: int) -> float:
        """Of 64 columns of so many rows, which a fused norm scales."""
        return self.meet + self.scaled_row * rows

    def from_memory(self, bytes: float, machine: Machine, filled: float) -> float:
        """Of all an op's bytes. filled: the share of the SMs that ask."""
        return 1e6 * bytes / machine.memory * (1 + self.narrow * (1 - filled))

    def waiting(self, shared: ClusterShape) -> float:
        """The factor of a step where CTAs share these: what they wait for each other."""
        if shared.k > 1:
            return self.shared_k if shared.k == 2 else self.shared_k4 if shared.k <= 4 else self.shared_k8
        if shared.size > 2:
            if shared.n == 1:
                return self.shared_by_rows
            return self.shared_by_columns if shared.m == 1 else self.shared_by_both
        return {(2, 1): self.shared_m, (1, 2): self.shared_n}.get((shared.m, shared.n), 1.0)

    def side_by_side(self, *us: float) -> float:
        """Of what goes on at the same time."""
        return sum(t**self.sharp for t in us) ** (1 / self.sharp)


RATES = Rates()
OF_H100 = replace(
    RATES,
    clock=1694.0,
    hot=0.1527,
    limit=math.inf,  # hot tells it all there
    written=0.0,
    trip=0.7205,
    l2=43.02,
    activations=0.625,
    activations_of_clusters=0.625,
    least_step=0.1162,
    least_step_of_pairs=0.1386,
    shared_k=0.9778,
    shared_k4=1.044,
    shared_k8=1.238,
    shared_m=1.069,
    shared_n=1.093,
    shared_by_rows=1.032,
    shared_by_columns=1.083,
    shared_by_both=1.066,
    apart=1.339,
    left=17.65,
    left_of_both=12.0,
    epilogue=5.746e-05,
    turned=6.273e-05,
    turned_staged=6.273e-05,
    in_turn=3.115e-05,
    turn=0.1477,
    curve=5.044e-05,
    curve_turned=3.499e-05,
    sent=3.849e-05,
    beside_turned=0.0002369,
    beside_by_tma=0.0001331,
    launch=1.35,
    launch_of_clusters=0.8461,
    start=1.27,
    narrow=0.212,
    sharp=4.781,
)
RATES_OF: Mapping[str, Rates] = {"h200": RATES, "h100": OF_H100}


def rates_of(machine: Machine) -> Rates:
    """Those that were measured on such a GPU; of others, on an H200."""
    return RATES_OF.get(machine.name.partition(":")[0], RATES)


@dataclass(frozen=True)
class ProductTime:
    """A linear or a convolution, cut in one way.

    step: of one that waits for no load; memory: of all the op's bytes; rings: of as many as the rings of all
    SMs hold; busy: the share of the SMs that have a CTA; filled: of all waves, the share of their CTAs that
    are there; stage: rows of 128 bytes that a step fills; trip: of its loads; beside: bytes that the ring
    leaves free, for the sums of a cluster's other CTAs, or for results of more blocks than usual; pingpong:
    the math warpgroups take turns; fetched: by how much its epilogue is longer among other ops, where
    threads fetch a residual; clusters: CTAs run it by clusters; at_once: all rings are filled once, and at
    once; hottest: of all the op's products, at the clock that the power limit leaves; residual: what was
    measured over the formula, where it was.
    """

    step: float
    steps: float
    epilogue: float
    waves: int
    memory: float
    rings: float
    busy: float
    filled: float
    stage: int
    trip: float
    beside: int = 0
    pingpong: bool = False
    fetched: float = 0.0
    clusters: bool = False
    at_once: bool = False
    hottest: float = 0.0
    rates: Rates = RATES
    residual: Residual | None = None

    @property
    def stages(self) -> int:
        """Of a ring that is its own."""
        found = stages_of(self.stage, self.beside)
        return min(found, stages_at_once(ROW_BYTES * self.stage)) if self.at_once else found

    @property
    def least(self) -> float:
        """All tiles of an SM where no step waits for a load."""
        return self.waves * self._tile(self.step) + self._last

    def _tile(self, step: float) -> float:
        products = self.steps * step + (self.rates.turn if self.pingpong else 0.0)
        return max(products, (products + self.epilogue) / 2) if self.pingpong else products + self.epilogue

    @property
    def _last(self) -> float:
        """Of an SM's last tile, what no other tile's products hide."""
        return self.epilogue if self.pingpong else 0.0

    def tile(self, stages: int) -> float:
        """A tile where the ring has so many stages; where math warpgroups take turns, from one to the
        next."""
        return self._tile(self.rates.side_by_side(self.step, self.trip / max(1, stages - 1)))

    def tile_of_many(self, stages: int) -> float:
        """The same where the bytes of all tiles come from memory meanwhile."""
        tile, waves = self.tile(stages) + self.fetched, self.waves
        return self.rates.side_by_side(tile, self.hottest / waves, self.memory / waves)

    def alone(self, stages: int) -> float:
        """The op in a launch of its own."""
        us = self.formula(stages)
        return us * self.residual.factor(us) if self.residual else us

    def formula(self, stages: int) -> float:
        """The same without what was learned from measured times; of linears that share a launch, too."""
        tiles = self.rates.side_by_side(self.waves * self.tile(stages) + self._last, self.hottest)
        launch = self.rates.launch + (self.rates.launch_of_clusters if self.clusters else 0.0)
        return self.rates.side_by_side(tiles + self.rates.start * self.busy, self.memory) + launch

    def among(self, stages: int) -> float:
        """The op in a launch with ops of other kinds. While these run its weights fill the rings of the SMs
        that will have a tile of it; between two tiles of an SM its memory rests."""
        tiles = self.waves * (self.tile(stages) + self.fetched)
        own = self.rates.side_by_side(tiles + self.rates.start, self.memory)
        rests = self.rings * (1 - self.busy) + self.rates.between * (self.waves - 1)
        return own + rests * self.memory / own


def products_clocks(rows: int, width: int, groups: int, pingpong: bool, loaded: int, rates: Rates) -> float:
    """Clocks of the tensor cores for 64 columns of K: for each block of 64 rows of wgmma's left operand, 16
    columns at a time, those of the products; or those of shared memory, which both operands are read from and
    `loaded` rows of 128 bytes written to meanwhile. The left operand is that of a swapped tile's weights. A
    single block is read by both math warpgroups, which have half of the right operand each, unless they take
    turns with tiles or with slices of K."""
    swapped = rows % 64 != 0
    blocks, right = (width / 64, rows) if swapped else (rows / 64, width)
    alternate = pingpong or (not swapped and groups == 1 and width <= ALTERNATING)
    halves, left = (2, rates.left_of_both) if blocks == 1 and not alternate else (1, rates.left)
    each = 4 * groups * blocks * halves
    read = each * (left + right / halves / 4)
    return max(each * right / halves / 2, read + rates.written * loaded)


def rings_us(machine: Machine) -> float:
    """From memory, of as many bytes as the rings of all SMs hold."""
    return 1e6 * RING * machine.sms / machine.memory


def stages_at_once(bytes: int) -> int:
    """Of so many bytes each, that a ring has at most where it fills at once with all others, and never
    again."""
    return max(FEWEST_AT_ONCE, AT_ONCE // bytes)


def fills_at_once(lone: bool, shared: bool, pingpong: bool, steps: float) -> bool:
    """Whether a ring is better shorter than it can be. lone: all CTAs have one tile; shared: more than two
    rows of tiles read the same weights. So it was measured where one math warpgroup has the tile and its sum
    is long (docs/perf-log.md); a shorter sum, and both of them, want all stages."""
    return lone and shared and pingpong and steps >= STEPS_AT_ONCE


def pays_by_gpc(down: int, across: int, sms: int, height: int, width: int, steps: float) -> bool:
    """Whether SMs of a GPC had better have neighbouring tiles, of height x width: L2 serves the lines
    that they ask for at the same time once, but to learn its place costs a CTA 0.3 µs. down, across: rows and
    columns of tiles; steps: of 64 columns. So it was measured where L2 is what bounds a lone tile, and where
    an SM is long at work (docs/perf-log.md): with a lone tile, or with several of a block of rows, whose
    weights all of it reads at once. Of a single row of tiles each CTA loads weights of its own."""
    clocks = height * width / 32  # of a step
    loaded, tiles = ROW_BYTES * (height + width) / clocks, down * across / sms
    if min(down, across) == 1 or tiles < FILLED_BY_GPC:
        return False
    if tiles <= 1 and loaded >= LOADED_BY_GPC and steps >= STEPS_BY_GPC:
        return True
    long = loaded >= LOADED_LONG and clocks * steps * math.ceil(tiles) >= CLOCKS_LONG
    return long and (tiles <= 1 or down <= ROWS_OF_GPC)


def stages_of(stage: int, beside: int = 0) -> int:
    """Of a ring whose stages have so many rows of 128 bytes. beside: bytes that it leaves free."""
    return max(2, min(MOST_STAGES, (RING - beside) // (ROW_BYTES * stage)))
