"""Convolutions, attention and whole layers on the ladder: the workloads beside the chains of benchmarks/chains.py.

python benchmarks/layers.py pairs stages vgg nets --only graph,cudnn,tilegen,tilegen-persistent -o benchmarks/results/convolutions-h200.json
python benchmarks/layers.py prefill decode attention cached --only graph,inductor,tilegen -o benchmarks/results/attention-h200.json
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tilegen as tg
from benchmarks.chains import keeper, sweep
from tilegen.bench.compare import failed, own_variants, table
from tilegen.bench.contest import contest
from tilegen.cli import Progress
from tilegen.errors import TilegenError
from tilegen.loader import load_program
from tilegen.planner import Options
from tilegen.spec import Program

ROOT = Path(__file__).resolve().parent


@tg.spec
def conv_pair(B=1, HW=56, C=64, dtype="float16"):
    """Two 3x3 convolutions with bias and ReLU: a pair of ResNet-38's, without its residual."""
    x = tg.input("x", (B, HW, HW, C), dtype)
    for n in (1, 2):
        w, b = tg.weight(f"w{n}", (C, 3, 3, C), dtype), tg.weight(f"b{n}", (C,), dtype)
        x = tg.relu(tg.conv2d(x, w, b, padding=1, name=f"conv{n}"), name=f"y{n}")
    return x


@tg.spec
def cached_attention(B=1, cached=1024, H=12288, heads=12, D=128, rope=False, dtype="bfloat16"):
    """An attention block of one new token in each of B sequences, behind `cached` ones: QKV projection, caches, attention, output projection."""
    x, pos = tg.input("x", (B, 1, H), dtype), tg.input("pos", (1,), "int32")
    wqkv, wo = tg.weight("wqkv", (3 * heads * D, H), dtype), tg.weight("wo", (H, heads * D), dtype)
    caches = [tg.state(f"{n}_cache", (B, cached + 64, heads, D), dtype) for n in "kv"]
    q, k, v = tg.linear(x, wqkv, name="qkv").chunk(3)
    if rope:
        q, k = tg.rope(q, heads=heads, at=pos, name="q_rope"), tg.rope(k, heads=heads, at=pos, name="k_rope")
    keys, values = (tg.append(cache, new, at=pos, name=f"{n}_append") for cache, new, n in zip(caches, (k, v), "kv", strict=True))
    return tg.linear(tg.attention(q, keys, values, heads=heads, at=pos, name="attn"), wo, name="out")


SHARDS = {"gpt3": {"H": 12288, "heads": 12, "rope": False}, "llama": {"H": 8192, "heads": 8, "rope": True}}  # of eight


def example(name: str, **sizes: Any) -> Program:
    return load_program(str(ROOT.parent / "examples" / f"{name}.py"), sizes)


def workloads(name: str, batches: Sequence[int]) -> list[Program]:
    match name:
        case "pairs":
            return [conv_pair(B=b, HW=hw, C=c) for b in batches for hw, c in ((56, 64), (28, 128), (14, 256), (7, 512))]
        case "stages":
            return [example("resnet38", stage=stage, B=b) for b in batches for stage in (1, 2, 3, 4)]
        case "vgg":
            return [example("vgg19", block=block, B=b) for b in batches for block in (1, 2, 3, 4, 5)]
        case "nets":
            return [example(net, B=b) for net in ("resnet38", "vgg19") for b in batches if b <= 8]
        case "attention":
            return [example(f"{model}_attention", S=s) for model in ("gpt3", "llama") for s in (512, 1024, 2048)]
        case "cached":
            return [cached_attention(B=b, cached=n, **shard) for shard in SHARDS.values() for n in (1024, 4096) for b in batches if b <= 8]
        case "decode":
            return [example("llama_layer", B=b, S=1) for b in batches]
        case "prefill":
            return [example("llama_layer", S=s, S_max=s + 64) for s in (512, 2048)]
    raise ValueError(name)


NAMES = ("pairs", "stages", "vgg", "nets", "attention", "cached", "decode", "prefill")


def main(arguments: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser("layers.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"of {', '.join(NAMES)}; default: all")
    p.add_argument("--batch", type=int, nargs="*", default=[1, 8, 32])
    p.add_argument("--only", default="", help="graph,cudnn,tilegen: these contenders alone")
    p.add_argument("--no-inductor", action="store_true")
    p.add_argument("--rounds", type=int, default=None)
    p.add_argument("-o", "--out", default=str(ROOT / "results" / "layers-h200.json"))
    p.add_argument("--svg")
    given = sys.argv[1:] if arguments is None else arguments
    o = p.parse_args(given)
    unknown = [name for name in o.workloads if name not in NAMES]
    if unknown:
        p.error(f"no workload {unknown[0]!r}; they are {', '.join(NAMES)}")
    try:
        cells = [(p, own_variants(p, Options())) for name in o.workloads or NAMES for p in workloads(name, o.batch)]
        ladder = contest("cuda", o.only, ("inductor",) if o.no_inductor else (), rounds=o.rounds, progress=Progress())
    except TilegenError as error:
        print(f"layers.py: {type(error).__name__}: {error}", file=sys.stderr)
        return 2

    found = sweep(cells, ladder.measure, keeper(ladder, ("benchmarks/layers.py", *given), o.out, o.svg))
    print("\n" + table(found))
    return 1 if failed(found) else 0


if __name__ == "__main__":
    raise SystemExit(main())
