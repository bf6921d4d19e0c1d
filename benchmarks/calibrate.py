"""The cost model beside measured times: programs drawn at random, each planned in many ways.

python -m benchmarks.calibrate measure [-o DIR] [--seconds N]   time (program, plan) pairs on this GPU
python -m benchmarks.calibrate measure --seed N -o DIR          of programs that nothing was fitted to, which
                                                                benchmarks.unseen reads as its RESULTS
python -m benchmarks.calibrate measure --streamed …             of linears that are bound by their weights
python -m benchmarks.calibrate measure --others …               of attention and norms alone
python -m benchmarks.calibrate measure --mixed …                of several ops, in one launch and in launches
python -m benchmarks.calibrate measure --sums …                 of long sums, split by up to eight CTAs
python -m benchmarks.calibrate measure --turns …                of linears whose math warpgroups take turns
python -m benchmarks.calibrate measure --linears …              of linears, long sums and turns among them
python -m benchmarks.calibrate measure --rivals …               of these, the best of each way to cut them
python -m benchmarks.calibrate measure --choices …              of these, what the model holds for the best
python -m benchmarks.calibrate measure --convs …                of convolutions alone
python -m benchmarks.calibrate measure --patches …              of these as linears of patches, and in boxes
python -m benchmarks.calibrate measure --narrow …               the same of channels that are no blocks of 64
python -m benchmarks.calibrate measure --nets …                 of nets of convolutions, both ways
python -m benchmarks.calibrate fit [-o DIR]                     what the model says of them; needs no GPU
python -m benchmarks.calibrate grow                             what formulas leave out, anew; needs no GPU

A pair is a program and how it is cut and launched. Of each program the plans are the model's best and others
drawn from all that the kernel can run; they are timed in turns, captured in CUDA graphs, with weights packed
and arguments that rotate past L2. Every fifth program is held out: it is for judging the model, never for
choosing its constants.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from multiprocessing.pool import AsyncResult
from pathlib import Path
from typing import Any

from benchmarks import families
from benchmarks.families import between
from benchmarks.fit import tell
from benchmarks.precompile import alone, compile_kernels, gpu_here
from benchmarks.workloads import FEW_FAMILIES, Task, tag
from tilegen.arch.machine import H200, Machine
from tilegen.errors import TilegenError
from tilegen.frontend.program import Program
from tilegen.graph.forms import Config
from tilegen.graph.fuse_epilogues import fuse
from tilegen.graph.graph import Graph
from tilegen.graph.pixels import in_rows
from tilegen.ops.attention import AttentionAttributes, keys_of_block
from tilegen.options import Options
from tilegen.targets.sm90.heuristics import CONFIGS, PAIRS, best_of_kinds, kind_of
from tilegen.targets.sm90.linear_cuts import SHAPES
from tilegen.targets.sm90.tile import MOST_CTAS

ROOT = Path(__file__).resolve().parent
SEED, HELD_OUT = 20261124, 5  # one program in so many is held out
BEST, OTHERS = 4, 8  # plans of a program
ROUNDS, MEASUREMENT_S, L2_BYTES, MOST_SETS = 5, 2e-3, 130_000_000, 12
MOST_REFUSED = 200  # then the GPU is taken to be lost
STREAMED = 16_000_000, 300_000_000  # bytes of weights
MIXED = "mixed"  # programs of several ops, as planned
SUMS = "sums"  # linears whose sums are split by one, two, four and eight CTAs
TURNS = "turns"  # linears whose math warpgroups take turns, beside the best where they do not
LINEARS = "linears"  # of all these kinds
RIVALS = "rivals"  # of the same kinds, each cut by the best of each way in which CTAs and warpgroups share it
CHOICES = "choices"  # of the same kinds, each cut in the ways that the model holds for the best
PATCHES = "patches"  # convolutions alone, as linears of patches in each of these ways, and in boxes of pixels
NARROW = "narrow"  # the same of channels that are no multiples of 64
CONVS = "convs"  # convolutions alone, of any channels and images
NETS = "nets"  # chains of convolutions, as planned
MOST_FLOPS = 2e11  # of one
MOST_WAYS, FAR = 9, 1.35  # ways to share work, of a program, and by how much slower than the best they may be
DRAWN = 3  # others of it
CLOSE, MOST_CHOICES = 1.08, 8  # times of the best by the model, and how many of those are measured
BOXES = 2  # of a convolution, the best of each kind of box
LOWERINGS = ("persistent", "multi_launch")  # launches of single ops start early, as tg.compile has them


# --- programs -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Drawn:
    """A program of the sweep. held_out: not for choosing constants."""

    family: str
    workload: str
    sizes: dict[str, Any]
    held_out: bool

    @property
    def program(self) -> Program:
        return Task("calibrate", self.workload, self.sizes).program


def _rows(r: random.Random) -> int:
    """Half of them where tiles of few rows read all weights anew."""
    return between(r, 65, 1023) if r.random() < 0.5 else between(r, 1, 4096)


def _wide(r: random.Random, least: int = 512, most: int = 16384) -> int:
    return 64 * round(between(r, least, most) / 64)


def _linear(r: random.Random) -> tuple[str, dict[str, Any]]:
    """A third of them as small as those of encoders."""
    small = r.random() < 1 / 3
    return r.choice(["gemm", "one_linear"]), {
        "M": _rows(r),
        "N": _wide(r, 512, 4096 if small else 24576),
        "K": _wide(r, 512, 4096 if small else 16384),
    }


def _tall(r: random.Random) -> tuple[str, dict[str, Any]]:
    """Of rows enough for warpgroups that take turns; every third with a residual."""
    name, sizes = _linear(r)
    sizes = {"M": between(r, 150, 4096), "N": sizes["N"], "K": _wide(r, 512, 6144)}
    return ("added_linear" if r.random() < 1 / 3 else name), sizes


def _block(r: random.Random) -> tuple[str, dict[str, Any]]:
    return r.choice(["gpt3_mlp", "llama_mlp"]), {
        "M": _rows(r),
        "H": _wide(r, 768, 8192),
        "I": _wide(r, 768, 16384),
    }


def _streamed(r: random.Random) -> tuple[str, dict[str, Any]]:
    """Few rows, and weights that take longer to come from memory than all else."""
    rows = between(r, 65, 256) if r.random() < 0.3 else between(r, 1, 64)
    while True:
        n, k = _wide(r, 768, 32768), _wide(r, 1024, 28672)
        if STREAMED[0] <= 2 * n * k <= STREAMED[1]:
            return "gemm", {"M": rows, "N": n, "K": k}


def _streamed_block(r: random.Random) -> tuple[str, dict[str, Any]]:
    name, sizes = _block(r)
    return name, {**sizes, "M": between(r, 1, 64), "H": _wide(r, 3072, 12288)}


def _conv(r: random.Random) -> tuple[str, dict[str, Any]]:
    size, stride = r.choice([(1, 1), (3, 1), (3, 1), (3, 2)])
    wide = {"C": r.choice([64, 128, 256, 512]), "N": r.choice([64, 128, 256, 512])}
    where = {"B": r.choice([1, 2, 4, 8, 16]), "HW": r.choice([7, 14, 20, 28, 40, 56, 75])}
    return "one_conv", {**where, **wide, "size": size, "stride": stride}


def _any_conv(r: random.Random) -> tuple[str, dict[str, Any]]:
    """As networks have them, but those of one pixel and stride 1, which are linears."""
    while True:
        size, stride = r.choice([(3, 1), (3, 1), (3, 1), (3, 2), (1, 2), (5, 1), (2, 2)])
        wide = {name: r.choice([32, 64, 64, 96, 128, 128, 192, 256, 384, 512]) for name in ("C", "N")}
        where = {"B": r.choice([1, 2, 4, 8, 16, 32]), "HW": between(r, 7, 112)}
        if 2 * where["B"] * (where["HW"] * size // stride) ** 2 * wide["C"] * wide["N"] < MOST_FLOPS:
            return "one_conv", {**where, **wide, "size": size, "stride": stride}


def _patches(r: random.Random) -> tuple[str, dict[str, Any]]:
    """Of those that may be linears."""
    while True:
        name, sizes = _any_conv(r)
        if sizes["C"] % 64 == 0:
            return name, sizes


def _narrow(r: random.Random) -> tuple[str, dict[str, Any]]:
    """Of those that may be linears, but do not fill blocks of 64 channels."""
    name, sizes = _any_conv(r)
    return name, {
        **sizes,
        "C": r.choice([16, 32, 32, 32, 48, 80, 96, 96, 96, 160, 176]),
    }


def _net(r: random.Random) -> tuple[str, dict[str, Any]]:
    """Stages of ResNet-38, blocks of VGG-19, bottlenecks, pairs; of images of many sizes."""
    batch = r.choice([1, 1, 2, 4, 8, 16, 32])
    name = r.choice(["resnet38", "resnet38", "vgg19", "resnet50_block", "conv_pair"])
    if name == "resnet38":
        return name, {"B": batch, "HW": 32 * between(r, 4, 10), "stage": r.choice([1, 2, 3, 4])}
    if name == "vgg19":
        return name, {"B": min(batch, 8), "HW": 32 * between(r, 3, 8), "block": r.choice([1, 2, 3, 4, 5])}
    hw, c = r.choice([(112, 32), (56, 64), (40, 96), (28, 128), (20, 192), (14, 256), (7, 512)])
    return name, {"B": batch, "HW": hw, "C": c}


def _attention(r: random.Random) -> tuple[str, dict[str, Any]]:
    heads, d = r.choice([8, 16, 32]), r.choice([64, 128])
    return "gpt3_attention", {
        "B": r.choice([1, 2, 4]),
        "S": between(r, 32, 2048),
        "H": heads * d,
        "heads": heads,
        "D": d,
    }


def _layer(r: random.Random) -> tuple[str, dict[str, Any]]:
    h, heads, kv, d, i = r.choice(
        [(2048, 32, 8, 64, 8192), (4096, 32, 8, 128, 14336), (3072, 24, 8, 128, 8192)]
    )
    b, s = r.choice([(between(r, 1, 64), 1), (1, between(r, 65, 1024)), (2, between(r, 33, 512))])
    sizes = {"B": b, "S": s, "S_max": max(s, 700) + 1, "H": h, "heads": heads, "kv_heads": kv, "D": d, "I": i}
    return "llama_layer", sizes


def _encoder(r: random.Random) -> tuple[str, dict[str, Any]]:
    h, heads, i = r.choice([(768, 12, 3072), (1024, 16, 4096)])
    sizes = {"B": r.choice([1, 4, 16]), "S": between(r, 16, 400), "H": h, "heads": heads, "I": i}
    return r.choice(["bert_layer", "vit_layer"]), sizes


def _heads(r: random.Random) -> tuple[str, dict[str, Any]]:
    """An attention over whole sequences: of a model, of other keys, or of heads that share theirs."""
    d = r.choice([32, 64, 64, 80, 128, 128])
    heads = r.choice([6, 8, 12, 16, 32])
    shared = r.choice([1, 1, 4]) if heads % 4 == 0 else 1
    s = between(r, 16, 4096)
    t = s if r.random() < 0.8 else between(r, 16, 2048)
    batch = r.choice([1, 2, 4, 8, 32]) if s < 600 else 1
    sizes = {"B": batch, "S": s, "T": t, "heads": heads, "kv_heads": heads // shared, "D": d}
    return "one_attention", {**sizes, "causal": s == t and r.random() < 0.5}


def _norm(r: random.Random) -> tuple[str, dict[str, Any]]:
    sizes = {"M": between(r, 1, 8192), "H": r.choice([512, 768, 1024, 2048, 4096, 8192])}
    return "one_norm", {**sizes, "kind": r.choice(["rms_norm", "layer_norm"])}


def _summed(r: random.Random) -> tuple[str, dict[str, Any]]:
    """Few tiles, each a long sum that eight CTAs share evenly."""
    while True:
        m, n, k = between(r, 1, 768), _wide(r, 512, 8192), 512 * round(between(r, 3072, 28672) / 512)
        if m * n <= 1 << 21:
            return "gemm", {"M": m, "N": n, "K": k}


def _of_models(r: random.Random) -> tuple[str, dict[str, Any]]:
    """As models have them: feed-forward blocks, projections, and vocabulary heads."""
    h = r.choice([512, 768, 1024, 1280, 2048, 2560, 3072, 3584, 4096, 5120, 8192])
    if r.random() < 0.25:
        return "gemm", {"M": between(r, 16, 512), "N": r.choice([32000, 50264, 128256]), "K": h}
    other = r.choice([256, 512, h, 2 * h, 3 * h, 4 * h, 11008, 14336, 18944])
    n, k = r.choice([(h, other), (other, h)])
    return r.choice(["gemm", "one_linear"]), {"M": _rows(r), "N": n, "K": k}


def _any_linear(r: random.Random) -> tuple[str, dict[str, Any]]:
    return r.choice([_linear, _linear, _summed, _tall, *[_of_models] * 4])(r)


def _several(r: random.Random) -> tuple[str, dict[str, Any]]:
    """As benchmarks.shapes draws them."""
    while True:
        workload, sizes = r.choice((*FEW_FAMILIES, *families.FAMILIES))(r)
        if workload not in ("one_linear", "one_conv"):
            return workload, sizes


FAMILIES = {  # and how many of 32 programs
    "linear": (_linear, 17),
    "block": (_block, 8),
    "conv": (_conv, 3),
    "attention": (_attention, 1),
    "layer": (_layer, 2),
    "encoder": (_encoder, 1),
}
BOUND_BY_WEIGHTS = {"linear": (_streamed, 3), "block": (_streamed_block, 1)}
OTHER_OPS = {"attention": (_heads, 3), "norm": (_norm, 1)}
Families = Mapping[str, tuple[Callable[[random.Random], tuple[str, dict[str, Any]]], int]]
SWEEPS: Mapping[str, Families] = {
    "": FAMILIES,
    "streamed": BOUND_BY_WEIGHTS,
    "others": OTHER_OPS,
    MIXED: {MIXED: (_several, 1)},
    SUMS: {SUMS: (_summed, 1)},
    TURNS: {TURNS: (_tall, 1)},
    LINEARS: {"linear": (_linear, 3), SUMS: (_summed, 1), TURNS: (_tall, 1)},
    RIVALS: {RIVALS: (_any_linear, 1)},
    CHOICES: {CHOICES: (_any_linear, 1)},
    CONVS: {CONVS: (_any_conv, 1)},
    PATCHES: {PATCHES: (_patches, 1)},
    NARROW: {PATCHES: (_narrow, 1)},
    NETS: {NETS: (_net, 1)},
}


def programs(seed: int, families: Families = FAMILIES) -> Iterator[Drawn]:
    """Without an end; families in turns."""
    r = random.Random(seed)
    turn = [name for name, (_, share) in families.items() for _ in range(share)]
    r.shuffle(turn)
    counts = dict.fromkeys(families, 0)
    while True:
        for family in turn:
            workload, sizes = families[family][0](r)
            counts[family] += 1
            yield Drawn(family, workload, sizes, counts[family] % HELD_OUT == 0)


# --- plans --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidate:
    """A way to plan a program: tiles and clusters of its products where they are given, the lowering, and the
    products whose math warpgroups take turns."""

    tiles: dict[str, tuple[int, ...]]
    cluster: dict[str, str]
    lowering: str
    pingpong: dict[str, bool] = field(default_factory=dict)

    @staticmethod
    def of(cut: Mapping[str, Config], lowering: str) -> Candidate:
        return Candidate(
            {name: c.tile for name, c in cut.items()},
            {name: c.option for name, c in cut.items()},
            lowering,
            {name: True for name, c in cut.items() if c.pingpong},
        )

    @property
    def options(self) -> Options:
        if not self.tiles:
            return Options()
        return Options.of(tiles=self.tiles, cluster=self.cluster, pingpong=self.pingpong)

    def __str__(self) -> str:
        cut = " | ".join(
            f"{'x'.join(map(str, t))} {self.cluster[n]}{' pingpong' if n in self.pingpong else ''}"
            for n, t in self.tiles.items()
        )
        return f"{cut or 'as planned'}, {self.lowering}"


def candidates(drawn: Drawn) -> list[Candidate]:
    """The plans of a program that are timed: its own in each lowering, and, where all its ops are products,
    the model's best and others; of an attention alone those of other heights."""
    graph = fuse(drawn.program)
    lowerings = LOWERINGS if len(graph.ops) > 1 else LOWERINGS[:1]
    found = [Candidate({}, {}, lowering) for lowering in lowerings]
    if drawn.family in (MIXED, NETS):
        return found
    if drawn.workload == "one_attention":
        return found + [Candidate({"attn": tile}, {"attn": "1"}, LOWERINGS[0]) for tile in _tiles(graph)]
    if any(type(op.attributes) not in CONFIGS for op in graph.ops):
        return found
    r = random.Random(str(drawn))
    if drawn.family == PATCHES:
        (op,) = graph.ops
        boxes, rows = _every(graph, op.name), _rivals(_every(in_rows(graph), op.name), r)
        chosen = [*best_of_kinds(boxes)[:BOXES], *rows]
        return found + [Candidate.of({op.name: c}, LOWERINGS[0]) for c in chosen]
    if drawn.family in CHOSEN:
        (op,) = graph.ops
        configs = CHOSEN[drawn.family](_every(graph, op.name), r)
        return found + [Candidate.of({op.name: c}, LOWERINGS[0]) for c in configs]
    sizes = tuple(SHAPES) if len(graph.ops) == 1 else PAIRS
    every = [{op.name: _all(graph, op.name, cluster) for op in graph.ops} for cluster in sizes]
    cuts = [*_best(every), *_others(every, r)][: (BEST + OTHERS) // len(lowerings)]
    return found + [Candidate.of(cut, lowering) for cut in cuts for lowering in lowerings]


def _tiles(graph: Graph) -> list[tuple[int, ...]]:
    """Of an attention: for one warpgroup, and for both."""
    d = int(AttentionAttributes.of(graph.bound(graph.op("attn"))).head_dim)
    return [(rows, keys_of_block(rows, d), 1) for rows in (64, 128)]


def _every(graph: Graph, name: str) -> list[Config]:
    """All that the kernel can run, the best by the model first."""
    return sorted((c for cluster in SHAPES for c in _all(graph, name, cluster)), key=lambda c: c.us)


def _split(every: Sequence[Config], r: random.Random) -> list[Config]:
    """Of each number of CTAs that split its sum the model's best, each of another kind."""
    return [
        c
        for k in range(1, MOST_CTAS + 1)
        for c in best_of_kinds(c for c in every if c.cluster.size == c.cluster.k == k)[:BEST]
    ]


def _turns(every: Sequence[Config], r: random.Random) -> list[Config]:
    """Of each height that a warpgroup can have alone the model's best and another; and the model's best where
    both share a tile."""
    in_turn = [c for c in every if c.pingpong and c.us < 2 * every[0].us]
    best = best_of_kinds(in_turn)
    others = [r.choice([c for c in in_turn if kind_of(c) == kind_of(b)]) for b in best]
    return [*best, *others, *best_of_kinds(c for c in every if not c.pingpong)[:BEST]]


def _rivals(every: Sequence[Config], r: random.Random) -> list[Config]:
    """Of each way in which warpgroups and the CTAs of a cluster share a tile the model's best, where that is
    near its best of all; the best of other heights; and some that are drawn."""
    near = [c for c in every if c.us < FAR * every[0].us]
    ways: dict[Any, Config] = {}
    for c in near:
        ways.setdefault((c.cluster, c.pingpong, c.tile[0] // c.cluster.m % 64 == 0), c)
    drawn = r.sample(near, min(DRAWN, len(near)))
    return list(dict.fromkeys([*list(ways.values())[:MOST_WAYS], *best_of_kinds(near)[:BEST], *drawn]))


def _choices(every: Sequence[Config], r: random.Random) -> list[Config]:
    """The model's best of each kind, where they are close: what it overrates is among them."""
    return best_of_kinds(c for c in every if c.us < CLOSE * every[0].us)[:MOST_CHOICES]


# of all configs of a family's linears those that are measured
CHOSEN = {SUMS: _split, TURNS: _turns, RIVALS: _rivals, CHOICES: _choices}


Configs = dict[str, list[Config]]  # of each op, for clusters of one size, the best by the model first


def _all(graph: Graph, name: str, cluster: int) -> list[Config]:
    b, single = graph.bound(graph.op(name)), len(graph.ops) == 1
    found = CONFIGS[type(b.attributes)](b, H200, cluster)
    return sorted((c for c in found if single or not c.pingpong), key=lambda c: c.us)


def _best(every: Sequence[Configs]) -> list[dict[str, Config]]:
    """By the model, each of another kind; ops of a program by clusters of one size."""
    found = []
    for number, configs in enumerate(every):
        if not all(configs.values()):
            continue
        kinds = {name: best_of_kinds(of_op)[:BEST] for name, of_op in configs.items()}
        for n in range(BEST):
            cut = {name: of_op[min(n, len(of_op) - 1)] for name, of_op in kinds.items()}
            found.append((sum(c.us for c in cut.values()), n, number, cut))
    found.sort(key=lambda item: item[:3])
    return [cut for *_, cut in found[:BEST]]


def _others(every: Sequence[Configs], r: random.Random) -> list[dict[str, Config]]:
    """Drawn: a kind first, then a width; nothing that the model says takes three times the best."""
    found = []
    for _ in range(OTHERS):
        configs, cut = r.choice(every), {}
        for name, of_op in configs.items():
            if not of_op:
                break
            near = [c for c in of_op if c.us < 3 * of_op[0].us]
            kind = r.choice(sorted({kind_of(c) for c in near}, key=str))
            cut[name] = r.choice([c for c in near if kind_of(c) == kind])
        else:
            found.append(cut)
    return found


# --- measured -----------------------------------------------------------------------------------------------


def compiled(drawn: Drawn, on: Machine | None) -> list[tuple[Candidate, str]]:
    """In a process of its own: each candidate's kernels into the cache; (candidate, why there is none)."""
    from tilegen.bench.contenders import Way

    told = []
    for candidate in candidates(drawn):
        error = ""
        try:
            compile_kernels(drawn.program, candidate.options, Way(lowering=candidate.lowering), on)
        except TilegenError as raised:
            error = f"{type(raised).__name__}: {str(raised).splitlines()[0]}"
        told.append((candidate, error))
    return told


def timed(drawn: Drawn, found: Sequence[tuple[Candidate, str]]) -> Iterator[dict[str, Any]]:
    """A row for each candidate that could be compiled, all in turns."""
    import torch

    from tilegen.bench.baselines import eager
    from tilegen.bench.contenders import Way, over_sets, own
    from tilegen.runtime import timing
    from tilegen.runtime.data import argument_bytes, random_arguments

    program = drawn.program
    count = min(MOST_SETS, max(2, math.ceil(L2_BYTES / argument_bytes(program))))
    sets = [random_arguments(program, seed, "cuda") for seed in range(count)]
    runners: dict[str, Any] = {}
    for candidate, error in found:
        if not error and str(candidate) not in runners:
            early = candidate.lowering == "multi_launch"
            way = Way("cuda", candidate.lowering, programmatic=early)
            runners[str(candidate)] = candidate, timing.ready(own(program, candidate.options, sets, way))
    runners["torch"] = Candidate({}, {}, "torch"), timing.ready(over_sets(eager(program, sets[0]), sets))
    runs = {name: runner.run for name, (_, runner) in runners.items()}
    counts = {}
    for name, run in runs.items():
        run()
        seconds = timing.event_seconds(run, 2) / 2
        counts[name] = max(2, math.ceil(MEASUREMENT_S / seconds))
    times = timing.interleave(runs, counts, timing.event_seconds, ROUNDS)
    for name, (candidate, runner) in runners.items():
        runner.check()
        us = [round(1e6 * t / count, 3) for t in times[name]]
        yield {
            **asdict(drawn),
            **asdict(candidate),
            "us": statistics.median(us),
            "rounds_us": us,
            "sets": count,
        }
    torch.cuda.synchronize()


def measure(folder: Path, seconds: float, jobs: int, seed: int, sweep: str) -> Path:
    """Rows until the time is over, into calibration-GPU.json or calibration-SWEEP-GPU.json."""
    from tilegen.bench.environment import environment
    from tilegen.bench.results import heading, save

    end, on = time.monotonic() + seconds, gpu_here()
    rows, refused = list[dict[str, Any]](), list[dict[str, Any]]()
    drawing = programs(seed, SWEEPS[sweep])
    with get_context("spawn").Pool(jobs, initializer=alone) as pool:  # ends them when it is left
        waiting: list[tuple[Drawn, AsyncResult[Any]]] = []
        while time.monotonic() < end:
            while len(waiting) < 4 * jobs:
                drawn = next(drawing)
                waiting.append((drawn, pool.apply_async(compiled, (drawn, on))))
            ready = next((n for n, (_, result) in enumerate(waiting) if result.ready()), None)
            if ready is None:
                time.sleep(0.02)
                continue
            drawn, result = waiting.pop(ready)
            found = result.get()
            refused += [{**asdict(drawn), **asdict(c), "error": error} for c, error in found if error]
            try:
                rows += timed(drawn, found)
            except (RuntimeError, TilegenError) as error:  # told in the file; the others are still measured
                refused.append({**asdict(drawn), "error": f"{type(error).__name__}: {error}"[:300]})
                if len(refused) > MOST_REFUSED:
                    break
            print(f"{len(rows)} {drawn.workload} {drawn.sizes}", flush=True)
    command, name = "python -m benchmarks.calibrate measure", "calibration"
    if sweep:
        command, name = f"{command} --{sweep}", f"{name}-{sweep}"
    if seed != SEED:
        command = f"{command} --seed {seed}"
    head = heading(command, environment())
    path = folder / f"{name}-{tag(head['device'])}.json"
    save({**head, "rows": rows, "refused": refused}, path)
    return path


def main(arguments: Sequence[str]) -> int:
    p = argparse.ArgumentParser(
        "calibrate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("what", choices=("measure", "fit", "grow"))
    p.add_argument("-o", type=Path, default=ROOT / "results", help="folder")
    sweeps = p.add_mutually_exclusive_group()
    told = {
        "streamed": "linears that are bound by their weights",
        "others": "no products",
        MIXED: "programs of several ops",
        SUMS: "linears whose sums are split",
        TURNS: "linears whose math warpgroups take turns",
        RIVALS: "linears, the best of each way to share work",
        CHOICES: "linears, the ways that the model holds for the best",
        LINEARS: "linears of all kinds",
        CONVS: "convolutions alone",
        PATCHES: "convolutions alone, as linears and in boxes",
        NARROW: "the same of channels that are no multiples of 64",
        NETS: "nets of convolutions",
    }
    for name, help in told.items():
        sweeps.add_argument(f"--{name}", action="store_const", const=name, dest="sweep", help=help)
    p.add_argument("--seconds", type=float, default=300.0)
    p.add_argument("--jobs", type=int, default=14)
    p.add_argument("--seed", type=int, default=SEED)
    o = p.parse_args(arguments)
    if o.what == "measure":
        print(measure(o.o, o.seconds, o.jobs, o.seed, o.sweep or ""))
    elif o.what == "fit":
        tell(o.o)
    else:
        from benchmarks.grow import grow  # scikit-learn is only there for this

        grow()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
