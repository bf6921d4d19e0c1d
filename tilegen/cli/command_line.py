"""The command line: the same verbs as the Python API. Imports neither torch nor SymPy until a verb needs
them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

from tilegen import __version__
from tilegen.cli.here import cache, info
from tilegen.cli.measuring import compare, trace, tune
from tilegen.cli.planning import explain, generate, plan, verify
from tilegen.cli.running import run
from tilegen.errors import TilegenError


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0; 1 when a check fails; 2 for bad input."""
    options = parser().parse_args(arguments)
    try:
        return int(options.verb(options))
    except TilegenError as error:
        print(f"tilegen: {type(error).__name__}: {error}", file=sys.stderr)
        return 1 if type(error).__name__ in ("ProofError", "RaceError", "DeadlockError", "HangError") else 2
    except BrokenPipeError:
        return 0
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"tilegen: {where}{error.strerror or error}", file=sys.stderr)
        return 2


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        "tilegen", description="Tiles of dependent operations side by side in one kernel, derived and proved."
    )
    p.add_argument("--version", action="version", version=f"tilegen {__version__}")
    verbs = p.add_subparsers(dest="command", required=True, metavar="VERB")

    def verb(name: str, run: Callable[[Any], int], text: str, spec: bool = True) -> argparse.ArgumentParser:
        v = verbs.add_parser(name, help=text, description=text)
        v.set_defaults(verb=run)
        if spec:
            _spec_arguments(v)
        v.add_argument("--json", action="store_true", help="print JSON")
        return v

    def target(v: argparse.ArgumentParser, auto: str) -> None:
        words = f"auto ({auto}), sm_90a, sm_80, cpu, interpret or cuda-emulated; cuda: the best for this GPU"
        v.add_argument("--target", default="auto", help=words)

    of_plan = "that of --machine; cpu and interpret run plans made for any"
    v = verb(
        "explain",
        explain,
        "every dependence and policy as a formula, with the reason for the choice; -s M=? leaves M open,"
        " -s M=1..512 lets it move; of a function that gives a model and a call's arguments: which regions of"
        ' it torch.compile(backend="tilegen") takes',
    )
    target(v, of_plan)
    v = verb("plan", plan, "the plan: tiles, semaphores, order")
    target(v, of_plan)
    v.add_argument(
        "--svg", metavar="FILE", help="also draw the simulated timeline: a row per SM, a bar per tile"
    )
    v.add_argument(
        "--expand",
        action="store_true",
        help="with every tile's reads, waits, writes and posts (docs/plan-format.md)",
    )
    v = verb(
        "verify",
        verify,
        "check a plan file, or the plan of a spec, by code that shares nothing with the planner",
    )
    target(v, of_plan)
    v = verb(
        "generate", generate, "write source, plan, proof and all that a launch needs, on and for any machine"
    )
    target(v, "the best of --machine, else what `run` would take")
    v.add_argument(
        "--lowering",
        default="auto",
        help="auto, persistent (one launch of all ops), multi_launch (one for each)",
    )
    v.add_argument(
        "--programmatic",
        action="store_true",
        help="multi_launch: launches may start while the one before ends",
    )
    v.add_argument("-o", "--out", default="generated", help="folder (default: generated)")
    v = verb(
        "run", run, "plan, prove, compile and run on random data; error against float32 torch, and times"
    )
    target(v, "the GPU if there is one, else cpu")
    v.add_argument("--repeat", type=int, default=3, help="timed runs (default: 3)")
    v.add_argument(
        "--race",
        type=int,
        nargs="?",
        const=24,
        metavar="RUNS",
        help="with --target cuda-emulated: so many runs (default: 24), each interleaved in another way, every"
        " access checked for its order",
    )
    v = verb(
        "compare",
        compare,
        "error and time beside torch in one interleaved run; sizes may be lists: -s M=1,16,64",
    )
    target(v, "the GPU if there is one, else cpu")
    v.add_argument("--only", default="", metavar="eager,tilegen", help="these contenders alone")
    v.add_argument(
        "--no-inductor", action="store_true", help="without torch.compile, which takes up to a minute a size"
    )
    v.add_argument(
        "--rounds", type=int, default=None, help="interleaved rounds (default: 9 on a GPU, else 5)"
    )
    v.add_argument("-o", "--out", help="also write the result file here, anew after each size")
    v.add_argument("--svg", metavar="FILE", help="also draw a bar chart")
    v = verb(
        "trace",
        trace,
        "where the time of a launch goes, tile by tile, from inside the kernel; what each dependence cost",
    )
    v.add_argument(
        "-o", "--out", metavar="FILE.json", help="also write all tiles for Perfetto or chrome://tracing"
    )
    v.add_argument(
        "--svg", metavar="FILE", help="also draw it, measured above simulated: a row per SM, a bar per tile"
    )
    target(v, "the GPU, which must be a Hopper GPU")
    v.add_argument("--simulate", action="store_true", help="on the machine's model alone, which needs no GPU")
    v = verb(
        "tune",
        tune,
        "time the best few plans on the GPU and remember the fastest; `compile` then uses it; sizes may be"
        " lists",
    )
    target(v, "the GPU")
    v.add_argument("--seconds", type=float, default=60.0, help="for each size (default: 60)")
    v.add_argument(
        "-o", "--out", help="file of choices to write into (default: tuned.json in the cache folder)"
    )
    verb("info", info, "versions, compiler, threads, cache and knobs", spec=False)
    v = verb("cache", cache, "list or clear the cache of plans and binaries", spec=False)
    v.add_argument("action", choices=("ls", "clear"))
    return p


def _spec_arguments(v: argparse.ArgumentParser) -> None:
    v.add_argument(
        "spec", metavar="SPEC.py[:name]", help="file of a @tg.spec function (verify: or a plan's JSON)"
    )
    v.add_argument(
        "-s", "--size", action="append", default=[], metavar="M=512", help="a parameter of the spec"
    )
    v.add_argument("--tile", action="append", default=[], metavar="up=128x256", help="tile of an op")
    v.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="'up->down=row'",
        help="kernel, row, column, class, step, tile or chunk:N, per edge or tensor",
    )
    v.add_argument(
        "--split-k",
        action="append",
        default=[],
        metavar="up=2",
        help="split a linear's sum over K (partial tensors)",
    )
    v.add_argument(
        "--split-kv",
        action="append",
        default=[],
        metavar="attn=4",
        help="split the keys of an attention over caches (partial tensors)",
    )
    v.add_argument(
        "--cluster",
        action="append",
        default=[],
        metavar="up=2:m",
        help="run an op's tiles by clusters of CTAs that split K, M or N between them",
    )
    v.add_argument(
        "--pingpong",
        action="append",
        default=[],
        metavar="up",
        help="compute an op's tiles by the two math warpgroups in turn",
    )
    v.add_argument("--order", default="auto", help="auto, op_major, op_major:GROUP, banded:N or banded:N:LAG")
    v.add_argument("--scheduling", default="auto", help="auto, dynamic, static or lists")
    v.add_argument(
        "--norms",
        default="auto",
        help="auto, separate (each norm an op of its own) or fused (into the linears that read it)",
    )
    v.add_argument(
        "--appends",
        default="auto",
        help=(
            "auto, awaited (by the attention that reads their caches) or forwarded"
            " (to it, as rows of their own)"
        ),
    )
    v.add_argument(
        "--machine",
        help="to plan for: cpu, cpu:N (threads), a GPU such as h200 (tilegen info), a number of SMs",
    )
    v.add_argument("--threads", type=int, default=None, help="worker threads of the CPU target")
