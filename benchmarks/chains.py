"""GPT-3's and LLaMA's feed-forward blocks over many M, other chains, and single GeMMs, on the whole ladder: writes a result file anew after each size.

python benchmarks/chains.py 1 16 64 --tuned tuned.json --svg chains.svg
python benchmarks/chains.py 16 256 --chains four_gemms fan
python benchmarks/chains.py --chains --gemm 512,6144,12288 512,12288,6144

The tuned file maps a program and its sizes to the fields of Options; of the entries whose sizes all fit, the one that names most wins.
Under "variants" stand further contenders, each with fields of its own; so tilegen-kernel and tilegen-pdl get tiles tuned for launches of single ops:

{"gpt3_mlp M=512": {"tiles": {"up": [128, 192, 64]}, "order": "phase", "variants": {"tilegen-pdl": {"tiles": {"up": [128, 256, 64]}}}}}
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import tilegen as tg
from tilegen.api import load_json
from tilegen.bench.chart import chart
from tilegen.bench.compare import Cell, Note, failed, note, own_variants, result_file, rows_of, save, sizes_of, table
from tilegen.bench.contest import DEFAULT, Contest, contest
from tilegen.cli import Progress
from tilegen.errors import PlanError, TilegenError
from tilegen.loader import load_program
from tilegen.planner import Options
from tilegen.spec import Program
from tilegen.targets.cuda import missing

ROOT = Path(__file__).resolve().parent
SIZES = (1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
EXAMPLES = ("gpt3_mlp", "llama_mlp")
Tuned = Mapping[str, Mapping[str, Any]]


@tg.spec
def gemm(M=512, N=6144, K=12288, dtype="bfloat16"):
    """y = x wᵀ"""
    return tg.linear(tg.input("x", (M, K), dtype), tg.weight("w", (N, K), dtype), name="gemm")


@tg.spec
def four_gemms(M=16, H=4096, dtype="bfloat16"):
    """y = x w0ᵀ w1ᵀ w2ᵀ w3ᵀ"""
    y = tg.input("x", (M, H), dtype)
    for n in range(4):
        y = tg.linear(y, tg.weight(f"w{n}", (H, H), dtype), name=f"y{n}")
    return y


@tg.spec
def fan(M=16, H=4096, dtype="bfloat16"):
    """One activation into three weights, then a fan-in: y = (x wqᵀ + silu(x wkᵀ)) woᵀ + x wvᵀ"""
    x = tg.input("x", (M, H), dtype)
    wq, wk, wv, wo = (tg.weight(name, (H, H), dtype) for name in ("wq", "wk", "wv", "wo"))
    q, v = tg.linear(x, wq, name="q"), tg.linear(x, wv, name="v")
    qk = tg.add(tg.silu(tg.linear(x, wk, name="k")), q, name="qk")
    return tg.add(tg.linear(qk, wo, name="o"), v, name="y")


OWN = {"four_gemms": four_gemms, "fan": fan}


def programs(chains: Sequence[str], sizes: Sequence[int], gemms: Sequence[Sequence[int]]) -> list[Program]:
    return [program(name, m) for name in chains for m in sizes] + [gemm(M=m, N=n, K=k) for m, n, k in gemms]


def program(name: str, rows: int) -> Program:
    return OWN[name](M=rows) if name in OWN else load_program(str(ROOT.parent / "examples" / f"{name}.py"), {"M": rows})


def fitting(program: Program, tuned: Tuned) -> Mapping[str, Any]:
    """The fields of the entry for this program: "NAME A=1 B=2" fits where all the sizes that it names agree."""
    sizes = {k: str(v) for k, v in sizes_of(program).items()}

    def fits(entry: str) -> bool:
        name, *given = entry.split()
        return name == program.name and all(sizes.get(k) == v for k, _, v in (g.partition("=") for g in given))

    best = max((e for e in tuned if e and fits(e)), key=lambda e: len(e.split()), default=None)
    return tuned[best] if best is not None else {}


def variants_of(program: Program, tuned: Tuned) -> dict[str, Options]:
    """tilegen, and tilegen without tile sync, with the tuned options of this cell; and the variants that the file adds or replaces."""
    fields = dict(fitting(program, tuned))
    further = fields.pop("variants", {})
    return {**own_variants(program, Options.from_json(fields)), **{name: Options.from_json(f) for name, f in further.items()}}


def names_of(tuned: Tuned) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*(n for fields in tuned.values() for n in fields.get("variants", {})), *DEFAULT]))


def sweep(
    cells: Sequence[tuple[Program, Mapping[str, Options]]], measure: Callable[..., Cell], keep: Callable[[list[Cell]], None]
) -> list[Cell]:
    """Measure cell after cell and keep what there is after each: a time limit loses the cell at hand alone."""
    found: list[Cell] = []
    for program, variants in cells:
        try:
            found.append(measure(program, variants))
        except Exception as error:  # out of memory, say: the other sizes are still measured
            found.append(Cell((), (note(program, "tilegen", error),)))
        keep(found)
        if found[-1].notes and not usable():
            break
    return found


def keeper(ladder: Contest, run: Sequence[str], out: str, svg: str | None) -> Callable[[list[Cell]], None]:
    """Writes what was found to a result file, which names the command that ran but not where its files are, and to a chart; prints the last cell."""
    command = " ".join(w for w in run if w not in ("-o", "--out", "--svg", out, svg) and not w.startswith(("-o", "--out=", "--svg=")))

    def keep(found: list[Cell]) -> None:
        save(result_file(found, command, ladder.environment), Path(out))
        if svg:
            Path(svg).write_text(chart([r for c in found for r in c.rows]))
        print(table(found[-1:]), flush=True)

    return keep


def usable() -> bool:
    """Whether this process can still use the GPU: some CUDA errors stick to it."""
    if missing():
        return True
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def rest(arguments: Sequence[str], done: int, out: str) -> list[Cell]:
    """The cells after the first `done`, from a process of their own."""
    part = f"{out}.after{done}"
    subprocess.run([sys.executable, __file__, *arguments, "--skip", str(done), "-o", part, "--svg", f"{part}.svg"], check=False)
    if not Path(part).exists():
        return []
    data = load_json(part)
    Path(part).unlink()
    return [Cell(tuple(rows_of(data)), tuple(Note(**n) for n in data["notes"]))]


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    p = argparse.ArgumentParser("chains.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("sizes", type=int, nargs="*", default=list(SIZES), metavar="M", help=f"default: {' '.join(map(str, SIZES))}")
    p.add_argument("--chains", nargs="*", choices=(*EXAMPLES, *OWN), default=list(EXAMPLES), help="default: the examples; none after the flag: none")
    p.add_argument("--gemm", nargs="*", type=_triple, default=[], metavar="M,N,K")
    p.add_argument("--tuned", help="JSON of tuned options")
    p.add_argument("--target", choices=("auto", "cuda", "cpu"), default="cuda")
    p.add_argument("--only", default="", help="eager,graph,tilegen: these contenders alone")
    p.add_argument("--no-inductor", action="store_true")
    p.add_argument("--rounds", type=int, default=None)
    p.add_argument("--skip", type=int, default=0, help="leave out this many of the first sizes")
    p.add_argument("-o", "--out", default=str(ROOT / "results" / "chains-h200.json"))
    p.add_argument("--svg")
    return p.parse_args(arguments)


def _triple(text: str) -> tuple[int, ...]:
    sizes = tuple(int(n) for n in text.split(","))
    if len(sizes) != 3 or min(sizes) < 1:
        raise argparse.ArgumentTypeError(f"expected M,N,K, given {text}")
    return sizes


def main(arguments: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    o = parsed(given)
    try:
        tuned = load_json(o.tuned) if o.tuned else {}
        cells = [(p, variants_of(p, tuned)) for p in programs(o.chains, o.sizes, o.gemm)[o.skip :]]
        if not cells:
            raise PlanError("nothing to measure: neither chains nor --gemm")
        without = ("inductor",) if o.no_inductor else ()
        ladder = contest(o.target, o.only, without, names_of(tuned), o.rounds, progress=Progress())
    except TilegenError as error:
        print(f"chains.py: {type(error).__name__}: {error}", file=sys.stderr)
        return 2

    keep = keeper(ladder, ("benchmarks/chains.py", *given), o.out, o.svg)
    found = sweep(cells, ladder.measure, keep)
    if len(found) < len(cells):  # a CUDA error ended this process's use of the GPU
        found += rest(given, o.skip + len(found), o.out)
        keep(found)
    print("\n" + table(found))
    return 1 if failed(found) else 0


if __name__ == "__main__":
    raise SystemExit(main())
