"""The cost model of linears, convolutions and attention beside the sweeps of benchmarks.calibrate:
its errors, and its constants anew.

Errors are of log(modelled / measured). Of each program: Spearman's correlation of both orders, where times
within 2 % are ties; and the regret, by how much the plan that the model takes for the best is slower than the
best that was measured.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from benchmarks.workloads import Task
from tilegen.arch.machine import H200, Machine, machine
from tilegen.graph import attention_time, conv_time
from tilegen.graph.attention_time import AttentionRates
from tilegen.graph.conv_time import ConvRates
from tilegen.graph.fuse_epilogues import fuse
from tilegen.graph.graph import Graph
from tilegen.graph.linear_time import linear_time, turned_by_tma
from tilegen.graph.pixels import TILE_OF_LINEAR, in_rows
from tilegen.graph.product_time import RATES, RATES_OF, ProductTime, Rates, stages_of
from tilegen.ops.base import OpInstance, TileOp
from tilegen.ops.cluster import ClusterShape
from tilegen.schedule.planner import checked_cluster
from tilegen.targets.sm90.linear_cuts import Cut, cuts_alone

FOLDER = Path(__file__).resolve().parent / "results"
RESULTS = (FOLDER / "calibration-h200.json", FOLDER / "calibration-streamed-h200.json")
ATTENTION = FOLDER / "calibration-others-h200.json"
PATCHES = FOLDER / "calibration-patches-h200.json"
CHOICES = FOLDER / "calibration-choices-h200.json"
NARROW = FOLDER / "calibration-narrow-h200.json"
CONVS = (
    FOLDER / "calibration-convs-h200.json",
    FOLDER / "calibration-convs-again-h200.json",
    PATCHES,
    NARROW,
)
KERNELS_SINCE = "2026-11-28T22:00"  # pairs of linears from before it stand where _has_changed does not say so
TIE, NEAR = 0.02, (0.8, 1.25)
ROUNDS = 24  # of the search for constants
WIDE = 0.3  # weight of the root mean square of errors, beside the mean of their absolute values
IN_LAYERS = ("meet", "scaled_row", "between", "beside")  # that a linear alone does not show
IN_CONVS = (
    *("clock", "l2", "least_step", "least_step_of_pairs", "trip", "strided_trip", "shared_k", "left"),
    *("left_of_both", "epilogue", "by_threads", "sent", "tile", "narrow_tile", "launch", "start", "narrow"),
    *("launch_of_clusters", "sharp", "of_lines", "of_boxes", "of_strides", "half", "strided_memory"),
)
IN_SHORT_RINGS = "trip", "trip_of_clusters"  # an H100's were all as long as they can be
STREAMED = 0.25  # weight of a pair that is bound by its weights, of which a sweep of its own has too many
NEAREST, FARTHEST = 0.15, 0.05  # by how much slower than its program's best a pair weighs 1/e; least weight


@dataclass(frozen=True)
class Sweep:
    """Linears of a GPU, with its rates: what they are called, and the result file, whose name ends with the
    GPU's. seen: whether anything was fitted to them; else they were measured after it."""

    told: str
    path: Path
    family: str
    seen: bool = True

    @property
    def gpu(self) -> str:
        return self.path.stem.rpartition("-")[2]

    def pairs(self, folder: Path = FOLDER) -> tuple[Pair[Rates], ...]:
        return _swept(folder / self.path.name, self.family)


SWEEPS = (
    *(
        Sweep(f"{told} on an H200", FOLDER / "calibration-linears-h200.json", family)
        for told, family in (
            ("more linears", "linear"),
            ("long sums", "sums"),
            ("warpgroups in turn", "turns"),
        )
    ),
    *(
        Sweep(f"{told}, {new} among them, on an H200", FOLDER / f"calibration-{name}-h200.json", family, seen)
        for new, name, seen in (
            ("deep steps", "deep", True),
            ("shared sums of swapped tiles", "shared", True),
        )
        for told, family in (
            ("linears", "linear"),
            ("long sums", "sums"),
            ("warpgroups in turn", "turns"),
        )
    ),
    Sweep("rivals on an H200", FOLDER / "calibration-rivals-h200.json", "rivals"),
    Sweep("rivals again, on an H200", FOLDER / "calibration-rivals-again-h200.json", "rivals"),
    Sweep("rivals of models' linears, on an H200", FOLDER / "calibration-rivals-models-h200.json", "rivals"),
    Sweep("rivals of more of them, on an H200", FOLDER / "calibration-rivals-more-h200.json", "rivals"),
    Sweep("the model's choices, on an H200", CHOICES, "choices"),
    Sweep("convolutions as linears of patches, on an H200", PATCHES, "patches"),
    Sweep("the same of narrow channels, on an H200", NARROW, "patches"),
    *(
        Sweep(f"{told}, shorter rings, on an H200", FOLDER / f"calibration-{name}-rings-h200.json", family)
        for told, name, family in (
            ("rivals", "rivals", "rivals"),
            ("the model's choices", "choices", "choices"),
            ("linears of patches", "patches", "patches"),
            ("the same of narrow channels", "narrow", "patches"),
        )
    ),
    Sweep("rivals at last, on an H200", FOLDER / "calibration-rivals-last-h200.json", "rivals", False),
    Sweep("linears on an H100", FOLDER / "calibration-h100.json", "linear"),
    Sweep("long sums on an H100", FOLDER / "calibration-sums-h100.json", "sums"),
    Sweep("warpgroups in turn on an H100", FOLDER / "calibration-turns-h100.json", "turns"),
)
R = TypeVar("R", Rates, ConvRates, AttentionRates)


@dataclass(frozen=True)
class Pair(Generic[R]):
    """An op alone, cut in one way, and the µs that it took."""

    program: str
    held_out: bool
    bound: OpInstance
    us: float
    model: Callable[[OpInstance, R | None], float]
    weight: float = 1.0

    def modelled(self, rates: R | None = None) -> float:
        """By the formula with these constants, else as plans are made."""
        return self.model(self.bound, rates)


def _linear_us(b: OpInstance, rates: Rates | None, on: Machine = H200) -> float:
    time: ProductTime = linear_time(b, on, rates)
    return time.alone(time.stages)


def _conv_us(b: OpInstance, rates: ConvRates | None) -> float:
    time = conv_time.conv_time(b, H200, rates)
    return time.alone(time.stages)


def _attention_us(b: OpInstance, rates: AttentionRates | None) -> float:
    return attention_time.alone_us(b, H200, rates or attention_time.RATES)


@lru_cache
def pairs(paths: tuple[Path, ...] = RESULTS) -> tuple[Pair[Rates], ...]:
    """Every single linear of sweeps whose config the planner may choose today."""
    return tuple(p for path in paths for p in _pairs(path))


@lru_cache
def _swept(path: Path, family: str) -> tuple[Pair[Rates], ...]:
    return tuple(_pairs(path, family, machine(path.stem.rpartition("-")[2])))


@lru_cache
def conv_pairs(paths: tuple[Path, ...] = CONVS) -> tuple[Pair[ConvRates], ...]:
    """Every convolution of sweeps, once for each of its tiles."""
    families = ("conv", "convs", "patches")  # of a sweep of everything, and of those of convolutions
    return tuple(p for path in paths for family in families for p in _boxes(path, family))


def _boxes(path: Path, family: str) -> Iterator[Pair[ConvRates]]:
    return _cut(path, family, _conv_us)


@lru_cache
def attention_pairs(path: Path = ATTENTION) -> tuple[Pair[AttentionRates], ...]:
    """Every attention of a sweep, once for each of its tiles."""
    return tuple(_cut(path, "attention", _attention_us))


def _cut(path: Path, family: str, model: Callable[[OpInstance, R | None], float]) -> Iterator[Pair[R]]:
    """Of programs of one op those whose tile is given; of convolutions, boxes."""
    for row in json.loads(path.read_text())["rows"]:
        tile = _tile(row)
        if row["family"] == family and tile and (family != "patches" or len(tile) != TILE_OF_LINEAR):
            graph, op = _single(row["workload"], tuple(row["sizes"].items()))
            cluster = ClusterShape.of_option(row["cluster"][op.name])
            cut = replace(op, tile=tile, cluster=cluster.size)
            b = graph.with_op(op.name, cut).bound(cut)
            yield Pair(str(row["sizes"]), row["held_out"], b, row["us"], model)


def _pairs(path: Path, family: str = "linear", on: Machine = H200) -> Iterator[Pair[Rates]]:
    weight = STREAMED if "streamed" in path.name else 1.0
    swept = json.loads(path.read_text())
    for row in swept["rows"]:
        mine = row["family"] == family and len(_tile(row)) == TILE_OF_LINEAR
        found = _pair(row, weight, on) if mine else None
        if found is not None and (swept["date"] > KERNELS_SINCE or not _has_changed(found.bound, on)):
            yield found


def _has_changed(b: OpInstance, on: Machine) -> bool:
    """Whether the kernel of a linear is another one since KERNELS_SINCE: before, all rings were as long as
    they can be, and results of all swapped tiles left from registers."""
    time = linear_time(b, on)
    shortened = time.stages < stages_of(time.stage, time.beside)
    swapped = b.tile[0] // b.op.cluster_shape.m % 64 != 0
    return shortened or (swapped and not b.op.pingpong and turned_by_tma(b))


def _tile(row: Mapping[str, Any]) -> tuple[int, ...]:
    """Of a program of one op; empty where it is cut as planned."""
    return tuple(next(iter(row["tiles"].values()), ()))


@lru_cache(maxsize=16)
def _single(workload: str, sizes: tuple[tuple[str, Any], ...], patches: bool = False) -> tuple[Graph, TileOp]:
    """A program of one op. patches: a convolution as a linear."""
    graph = fuse(Task("calibrate", workload, dict(sizes)).program)
    if patches:
        graph = in_rows(graph)
    (op,) = graph.ops
    return graph, op


@lru_cache(maxsize=64)
def _cuts(
    workload: str, sizes: tuple[tuple[str, Any], ...], patches: bool, cluster: int, on: Machine
) -> frozenset[Cut]:
    graph, op = _single(workload, sizes, patches)
    return cuts_alone(graph.bound(op), on, cluster)


def _pair(row: Mapping[str, Any], weight: float, on: Machine) -> Pair[Rates] | None:
    program = row["workload"], tuple(row["sizes"].items()), row["family"] == "patches"
    graph, op = _single(*program)
    tile, cluster = _tile(row), row["cluster"][op.name]
    shape = ClusterShape.of_option(cluster)
    pingpong = row.get("pingpong", {}).get(op.name, False)
    if Cut.of(tile, shape, pingpong) not in _cuts(*program, shape.size, on):
        return None
    cut = checked_cluster(graph, replace(op, tile=tile, pingpong=pingpong), cluster, on)
    name, bound = f"{row['workload']} {row['sizes']}", graph.with_op(op.name, cut).bound(cut)
    return Pair(name, row["held_out"], bound, row["us"], partial(_linear_us, on=on), weight)


# --- how far off it is --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Error:
    """Of some pairs. bias, size: mean of the logarithms, and of their absolute values; near: the share within
    NEAR; regret: median, 95th percentile, worst."""

    pairs: int
    programs: int
    bias: float
    size: float
    near: float
    spearman: float
    regret: tuple[float, float, float]


def error_of(some: Sequence[Pair[R]], rates: R | None = None, several: int = 4) -> Error:
    """several: pairs of a program that has an order and a best."""
    modelled, measured = (np.array(x) for x in zip(*((p.modelled(rates), p.us) for p in some), strict=True))
    logs = np.log(modelled / measured)
    orders, regrets = [], []
    for at in _by_program(some, several):
        orders.append(_spearman(modelled[at], measured[at]))
        regrets.append(float(measured[at][np.argmin(modelled[at])] / measured[at].min() - 1))
    near = np.mean((logs > math.log(NEAR[0])) & (logs < math.log(NEAR[1])))
    told = np.quantile(regrets, (0.5, 0.95, 1.0))
    return Error(
        len(some),
        len(regrets),
        float(logs.mean()),
        float(np.abs(logs).mean()),
        float(near),
        float(np.mean([o for o in orders if o is not None])),
        (float(told[0]), float(told[1]), float(told[2])),
    )


def _by_program(some: Sequence[Pair[R]], several: int) -> Iterator[list[int]]:
    """Where the pairs of each program stand that has so many."""
    places: dict[str, list[int]] = {}
    for n, p in enumerate(some):
        places.setdefault(p.program, []).append(n)
    return (at for at in places.values() if len(at) >= several)


def _spearman(a: Any, b: Any) -> float | None:
    """None where one side is level."""
    ranks = [_ranks(np.floor(np.log(x / x.min()) / math.log1p(TIE))) for x in (a, b)]
    return float(np.corrcoef(*ranks)[0, 1]) if all(np.ptp(r) > 0 for r in ranks) else None


def _ranks(values: Any) -> Any:
    """Those of ties are their mean."""
    return np.array([np.mean(np.flatnonzero(np.sort(values) == v)) for v in values])


# --- its constants ------------------------------------------------------------------------------------------


def fitted(some: Sequence[Pair[Rates]], rates: Rates = RATES) -> Rates:
    """The constants with the least error, from these on, all at once; pairs near their program's best weigh
    most, for these are what is chosen from."""
    unknown = ("limit", "written") if math.isinf(rates.limit) else ()
    left_out = *IN_LAYERS, *IN_SHORT_RINGS, *unknown
    names = [f.name for f in fields(Rates) if f.name not in left_out]
    return _fitted(nearest(some), names, rates)


def fitted_convs(some: Sequence[Pair[ConvRates]], rates: ConvRates = conv_time.RATES) -> ConvRates:
    """The same of convolutions, in which a hot chip does not show."""
    return _fitted(nearest(some), IN_CONVS, rates)


def nearest(some: Sequence[Pair[R]]) -> list[Pair[R]]:
    """Weighted by how near they are to the best of their program."""
    weighted = list(some)
    for at in _by_program(some, 1):
        best = min(some[n].us for n in at)
        for n in at:
            near = math.exp(-(some[n].us / best - 1) / NEAREST)
            weighted[n] = replace(some[n], weight=some[n].weight * max(FARTHEST, near))
    return weighted


def fitted_attention(
    some: Sequence[Pair[AttentionRates]], rates: AttentionRates = attention_time.RATES
) -> AttentionRates:
    return _fitted(some, [f.name for f in fields(AttentionRates)], rates)


def _fitted(some: Sequence[Pair[R]], names: Sequence[str], rates: R) -> R:
    """One after the other, in ever smaller steps."""
    least, step = _loss(some, rates), dict.fromkeys(names, 0.1)
    for _ in range(ROUNDS):
        for name in step:
            for factor in (1 + step[name], 1 / (1 + step[name])):
                tried = replace(rates, **{name: getattr(rates, name) * factor})
                loss = _loss(some, tried)
                if loss < least:
                    least, rates = loss, tried
                    break
            else:
                step[name] *= 0.6
    return rates


def _loss(some: Sequence[Pair[R]], rates: R) -> float:
    logs = np.array([math.log(p.modelled(rates) / p.us) for p in some])
    weights = [p.weight for p in some]
    mean, square = (float(np.average(x, weights=weights)) for x in (np.abs(logs), logs**2))
    return mean + WIDE * math.sqrt(square)


# --- told ---------------------------------------------------------------------------------------------------


def groups(some: Sequence[Pair[Rates]]) -> dict[str, list[Pair[Rates]]]:
    """The held-out pairs, all and by rows; and those that constants were chosen by."""
    held = [p for p in some if p.held_out]
    bounds = ((1, 64), (65, 255), (256, 1023), (1024, 4096))

    def rows(p: Pair[Rates]) -> int:
        return int(p.bound.out[0])

    found = {"linears, held out": held}
    found |= {
        f"{least} to {most} rows": [p for p in held if least <= rows(p) <= most] for least, most in bounds
    }
    found["linears, fitted to"] = [p for p in some if not p.held_out]
    return {name: of for name, of in found.items() if of}


def lines(
    linears: Sequence[Pair[Rates]],
    swept: Sequence[Sequence[Pair[Rates]]],
    convs: Sequence[Pair[ConvRates]],
    attention: Sequence[Pair[AttentionRates]],
    rates: Rates | None = None,
    of_sweeps: Mapping[str, Rates] = {},
    conv_rates: ConvRates | None = None,
    attention_rates: AttentionRates | None = None,
) -> Iterator[str]:
    """A Markdown table, of times as plans are made, or by formulas with the constants that are given. swept:
    the pairs of each of SWEEPS. An attention has two tiles, so no order worth telling."""
    yield (
        "| pairs | programs, pairs | bias | mean error | within 0.8 to 1.25 | Spearman |"
        " regret: median, p95, worst |"
    )
    yield "|---|--:|--:|--:|--:|--:|--:|"
    for name, chosen in groups(linears).items():
        yield _line(name, e := error_of(chosen, rates), f"{e.spearman:.2f}")
    for sweep, some in zip(SWEEPS, swept, strict=True):
        for what, held in (("held out", True), ("fitted to" if sweep.seen else "measured later", False)):
            if chosen := [p for p in some if p.held_out is held]:
                e = error_of(chosen, of_sweeps.get(sweep.gpu))
                yield _line(f"{sweep.told}, {what}", e, f"{e.spearman:.2f}")
    for name, held in (("convolutions, held out", True), ("convolutions, fitted to", False)):
        if cut := [p for p in convs if p.held_out is held]:
            yield _line(name, e := error_of(cut, conv_rates), f"{e.spearman:.2f}")
    for name, held in (("attention, held out", True), ("attention, fitted to", False)):
        if of := [p for p in attention if p.held_out is held]:
            yield _line(name, error_of(of, attention_rates, 2), "")


def _line(name: str, e: Error, spearman: str) -> str:
    regret = ", ".join(f"{100 * r:.1f} %" for r in e.regret)
    return (
        f"| {name} | {e.programs}, {e.pairs} | {e.bias:+.3f} | {e.size:.3f} | {100 * e.near:.0f} % |"
        f" {spearman} | {regret} |"
    )


def tell(folder: Path) -> None:
    """The errors of times as plans are made, then of formulas with constants fitted anew, by the results
    there."""
    some, swept = pairs(tuple(folder / path.name for path in RESULTS)), [s.pairs(folder) for s in SWEEPS]
    convs = conv_pairs(tuple(folder / path.name for path in CONVS))
    attention = attention_pairs(folder / ATTENTION.name)
    print("\n".join(lines(some, swept, convs, attention)))
    to_fit: dict[str, list[Pair[Rates]]] = {"h200": [p for p in some if p.weight < 1]}  # bound by weights
    for sweep, of in zip(SWEEPS, swept, strict=True):
        if sweep.seen:
            to_fit.setdefault(sweep.gpu, []).extend(of)
    of_sweeps = {
        gpu: fitted([p for p in to_fit[gpu] if not p.held_out], rates) for gpu, rates in RATES_OF.items()
    }
    conv_rates = fitted_convs([p for p in convs if not p.held_out])
    attention_rates = fitted_attention([p for p in attention if not p.held_out])
    every: tuple[Rates | ConvRates | AttentionRates, ...] = (*of_sweeps.values(), conv_rates, attention_rates)
    for rates in every:
        told = {f.name: float(f"{getattr(rates, f.name):.4g}") for f in fields(rates)}
        print("\nfitted anew:", told)
    found = of_sweeps["h200"], of_sweeps, conv_rates, attention_rates
    print("\n".join(lines(some, swept, convs, attention, *found)))
