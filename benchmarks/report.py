"""docs/performance.md and the README's table at a glance, printed from the result files and from nothing
else.

python -m benchmarks.report            prints the page
python -m benchmarks.report --write    writes docs/performance.md, and the table between the README's markers
where it has them
"""

from __future__ import annotations

import argparse
import statistics
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks import model_tables
from benchmarks.histogram import histogram
from benchmarks.tables import shown, table
from benchmarks.workloads import GROUPS, width_pairs
from tilegen.arch.machine import H200
from tilegen.bench.accuracy import WRONG
from tilegen.bench.names import Name, names
from tilegen.bench.results import rows_of
from tilegen.bench.rows import OWN, PEERS, PERSISTENT, Key, Note, Row, key, sizes_of
from tilegen.bench.table import best_us, geometric_mean, one_launch
from tilegen.config import write_whole
from tilegen.runtime.verify import load_json

ROOT = Path(__file__).resolve().parent.parent
MARKERS = "<!-- results: printed by python -m benchmarks.report --write -->", "<!-- end of results -->"
INDUCTOR = ("inductor", "inductor-flash")
MADE_BY = "python -m benchmarks."  # older files were measured otherwise
WORST = 12  # cells whose bounds are told
MOST_NAMED = 24  # cells that were not measured
DRAWN = ("random", "shapes")  # groups, with a histogram
TITLES = {
    "chains": "Feed-forward blocks, one of eight shards of GPT-3 175B and of LLaMA-65B, bfloat16",
    "gemms": "One GeMM alone, bfloat16",
    "graphs": "Four GeMMs in a row, and a fan of three weights and back, bfloat16",
    "convolutions": "Convolutions: pairs, stages of ResNet-38, blocks of VGG-19, whole networks, float16",
    "attention": "Attention blocks: QKV projection, causal attention, output projection, bfloat16",
    "cached": "Attention of one new token over a cache: GPT-3 and LLaMA shards, bfloat16",
    "decode": "Llama-3-8B layer, one token in each of B sequences over 1,024 cached ones, bfloat16",
    "prefill": "Whole layers, many tokens at once, bfloat16",
    "cusync": "cuSync's MLP shapes, float16, on random and on constant inputs",
    "float8": "One product of float8, with scales of rows and columns too; bfloat16 beside",
    "portable": "The portable target, sm_80, run on a GPU of Hopper's, beside sm_90a and torch",
    "widths": "Widths that are no multiple of anything, each beside its aligned neighbour, bfloat16",
    "lost": "Programs that lost on 2026-11-22, when nobody had tuned for them",
    "random": "Shapes drawn at random, which nobody tuned",
    "shapes": "Programs drawn at random, which nobody tuned",
    "host": "What a call and a compilation cost the host",
}
SHORT = {
    "chains": "feed-forward shards of GPT-3 and LLaMA",
    "gemms": "one matrix product alone",
    "graphs": "four products in a row; a fan",
    "convolutions": "convolutions, ResNet-38, VGG-19",
    "attention": "attention blocks",
    "cached": "attention of a token over a cache",
    "decode": "Llama-3-8B layer, one token",
    "prefill": "whole layers, many tokens",
    "cusync": "cuSync's shapes",
    "float8": "one product of float8",
    "lost": "programs that lost at first",
    "random": "random shapes that nobody tuned",
    "shapes": "random programs that nobody tuned",
}
CONTENDERS = {
    "eager": "torch, op by op, launched by the host",
    "graph": "the same in a CUDA graph; attention by the backend that torch chooses",
    "addmm-gelu": (
        "the same with torch's own fused linear and GeLU (`_addmm_activation`, the first algorithm that"
        " cublasLt names)"
    ),
    "cublaslt": (
        "every linear by cublasLt, bias and GeLU or ReLU in its epilogue, all algorithms that its heuristics"
        " list timed for the shape and the fastest taken; in a graph; convolutions fused as under `cudnn`"
    ),
    "cudnn": "cuDNN's fused convolutions (bias, residual and ReLU inside), in a graph",
    "sdpa-flash": "`graph` with `scaled_dot_product_attention` held to its FlashAttention backend",
    "sdpa-cudnn": "`graph` with it held to its cuDNN backend",
    "sdpa-efficient": "`graph` with it held to its memory-efficient backend",
    "graph-flash": (
        "`graph` with torch's FlashAttention kernel called directly: bottom-right causal, no mask, keys"
        " shared out among SMs"
    ),
    "cublaslt-flash": "`cublaslt` and `graph-flash` together",
    "cublaslt-cudnn": "`cublaslt` and `sdpa-cudnn` together",
    "flashinfer": "`graph` with FlashInfer's decode kernel",
    "flash-attn-3": "`graph` with FlashAttention-3",
    "inductor": "torch.compile, max-autotune, in a graph; caches are written in place",
    "inductor-flash": "the same with torch's FlashAttention kernel called directly",
    "tilegen-kernel": "tilegen without tile sync: a launch for each op",
    "tilegen-pdl": (
        "tilegen without tile sync: a launch for each op, started while the one before ends (programmatic"
        " dependent launch)"
    ),
    "tilegen-barrier": (
        "tilegen in one launch whose ops wait for whole ops: one barrier for each intermediate tensor"
    ),
    "tilegen": "what `tg.compile(program)` gives, weights bound with `prepare` (a packed copy of them)",
    PERSISTENT: "tilegen's one launch, where `tilegen` is several because they were measured to be faster",
    "tilegen-exclusive": (
        "tilegen compiled with `exclusive=True`: the caller's word that nothing else that waits inside runs"
        " at the same time"
    ),
    "tilegen-unprepared": "tilegen with its weights given at each call: no packed copy",
    "tilegen-portable": "tilegen's kernel for any GPU from Ampere on (`mma.sync`)",
}


@dataclass(frozen=True)
class Group:
    """A result file of benchmarks.ladders or benchmarks.host."""

    name: str
    file: str
    data: Mapping[str, Any]

    @property
    def rows(self) -> list[Row]:
        return [r for r in rows_of(self.data) if r.workload] if self.name != "host" else []

    @property
    def notes(self) -> list[Note]:
        return [Note(**n) for n in self.data.get("notes", [])]

    @cached_property
    def names(self) -> dict[Key, Name]:
        return names([*self.rows, *self.notes])

    def label(self, k: Key) -> str:
        return f"{self.names[k].group}: {self.names[k].label}"

    @property
    def cells(self) -> dict[Key, list[Row]]:
        found: dict[Key, list[Row]] = {}
        for r in self.rows:
            found.setdefault(key(r), []).append(r)
        return found


LONG = 90  # letters of a word that is broken


def groups(results: Path, gpu: str) -> list[Group]:
    return _read((name, results / f"{name}-{gpu}.json") for name in GROUPS)


def other_draws(results: Path, gpu: str) -> list[Group]:
    """What was drawn and measured on other GPUs, or beside torch.compile, which takes most of a run."""
    paths = ((name, path) for name in DRAWN for path in sorted(results.glob(f"{name}-*.json")))
    return _read((name, path) for name, path in paths if path.stem != f"{name}-{gpu}")


def _where(g: Group) -> str:
    compiled = any(r.variant in INDUCTOR for r in g.rows)
    return f", on an {g.data['device']}{', beside torch.compile' if compiled else ''}"


def _read(paths: Iterable[tuple[str, Path]]) -> list[Group]:
    found = [Group(name, path.name, load_json(path)) for name, path in paths if path.exists()]
    return [g for g in found if str(g.data.get("run", "")).startswith(MADE_BY)]


# --- the page
# ------------------------------------------------------------------------------------------------------------


def page(results: Path, gpu: str = "h200") -> str:
    found = groups(results, gpu)
    parts = [
        f"# Performance\n\n{_wrapped(_INTRODUCTION)}",
        "## At a glance\n\n" + glance(found),
        *(["## Contenders\n\n" + contenders(found)] if found else []),
        f"## How it is measured\n\n{_bullets(_METHOD)}",
        *(_section(g) for g in found),
        *(_section(g, _where(g)) for g in other_draws(results, gpu)),
        *model_tables.sections(results, gpu),
        *(["## What bounds the cells that come off worst\n\n" + worst_cells(found)] if found else []),
    ]
    if absent := [name for name in GROUPS if name not in {g.name for g in found}]:
        parts.append(
            "## Not there\n\n"
            + _bullets(
                [
                    f"`{name}`, {TITLES[name]}: no result file of the ladders as they are now"
                    for name in absent
                ]
            )
        )
    return "\n\n".join(parts) + "\n"


_INTRODUCTION = (
    "This page is printed by `python -m benchmarks.report --write` from the files in benchmarks/results; a"
    " test holds the two together. Times are microseconds for one call, the median over rounds. A ratio is"
    " the best peer's time over tilegen's: above 1 tilegen is faster, and where it is slower the ratio is"
    " printed **bold**. docs/perf-log.md is the diary of how these came about."
)
_GLANCE = (
    "On an H200: geometric mean and range of the best peer's time over tilegen's; losses, the cells where a"
    " peer is faster; in how many cells torch.compile (max-autotune) was among the peers: elsewhere, where it"
    " would be the best, the ratio flatters; and our own launches of single ops over our one launch: what"
    " tile sync by itself is worth. tilegen is what `tg.compile` gives, weights bound with `prepare`, which"
    " costs a packed copy of them; the tables also have it without, and as it is where nothing runs beside."
)
_METHOD = (
    (
        "All contenders of a cell run interleaved in one process on one GPU, in rounds; each goes first in"
        " turn. The file keeps every round of every contender, so that they can be compared in pairs: the"
        " column 10-90 % holds that range of the ratios round by round."
    ),
    (
        "Each contender but `eager` is captured in a CUDA graph that runs 3 to 24 argument sets in turn. All"
        " sets together, weights, activations and caches, exceed three times the 60 MB of L2 cache where 24"
        " sets can; a cell whose sets all stay in the cache is marked †."
    ),
    (
        "Random data. Every contender is checked on every argument set against the float32 reference, by the"
        f" Frobenius norm (at most {WRONG:g}) and element by element (docs/numerics.md), outputs and appended"
        " rows of caches filled with NaN before. A wrong result has no ratio."
    ),
    (
        "Weights of parallel projections are merged on both sides or on neither: torch runs the same program,"
        " tensor for tensor."
    ),
    (
        "The floor is the larger of FLOPs at 785 TFLOP/s and bytes of arguments and outputs at 4.55 TB/s,"
        " both measured on an H200."
    ),
    (
        "Tile sync's own worth is told for one launch of all ops, in every cell, beside launches of single"
        " ops (`tilegen-pdl`) and one barrier for each tensor (`tilegen-barrier`), also where `tilegen` is"
        " several launches."
    ),
)


def glance(found: Sequence[Group]) -> str:
    """One row a group: how tilegen stands to the best peer, losses counted, and what tile sync itself is
    worth."""
    compared = ("best peer / tilegen", "least to most", "losses", "torch.compile")
    head = ("workloads", *compared, "single launches / one")
    lines = []
    for g in (g for g in found if g.name in SHORT):
        cells = [c for c in g.cells.values() if over_peers(c) is not None]
        known = [r for r in map(over_peers, cells) if r is not None]
        if not known:
            continue
        beside = sum(any(r.variant in INDUCTOR for r in c) for c in cells)
        lines.append(
            (
                SHORT[g.name],
                _number(geometric_mean(known)),
                f"{min(known):.2f} to {max(known):.2f}",
                f"{sum(r < 1 for r in known)} of {len(known)}",
                f"in {beside}",
                _number(geometric_mean([over_own(c) for c in cells])),
            )
        )
    return f"{table(head, lines)}\n\n{_wrapped(_GLANCE)}" if lines else "No result file is there."


def contenders(found: Sequence[Group]) -> str:
    there = {r.variant for g in found for r in g.rows} | {n.variant for g in found for n in g.notes}
    return _bullets([f"`{name}`: {text}" for name, text in CONTENDERS.items() if name in there])


def _section(g: Group, where: str = "") -> str:
    parts = [f"## {TITLES[g.name]}{where}", _source(g)]
    parts.append(_host(g) if g.name == "host" else measured(g))
    picture = Path(g.file).with_suffix(".svg").name
    if (ROOT / "docs" / picture).exists():
        image = f"![{TITLES[g.name]}]({picture})"
        parts.append(f"<details><summary>The same as a chart</summary>\n\n{image}\n\n</details>")
    if g.name == "widths":
        parts.insert(2, _beside_neighbours(g))
    if g.name in DRAWN:
        parts.insert(2, histogram([r for r in map(over_peers, g.cells.values()) if r is not None]))
    if g.name != "host" and (missing := g.data.get("missing")):
        few = len(missing) <= MOST_NAMED
        told = "; ".join(missing) if few else f"{len(missing)} cells, which the file names"
        parts.append(_wrapped(f"Not measured, for want of time: {told}."))
    if g.notes:
        notes = [f"{g.label(key(n))}: `{n.variant}`: {_plain(n.error)}" for n in g.notes]
        parts.append(
            "<details><summary>Contenders that could not run:"
            f" {len(notes)}</summary>\n\n{_bullets(notes)}\n\n</details>"
        )
    return "\n\n".join(parts)


def _source(g: Group) -> str:
    d, v = g.data, g.data.get("versions", {})
    names = ("torch", "cuda", "cublas", "cudnn", "triton", "driver")
    versions = ", ".join(f"{n} {v[n]}" for n in names if v.get(n))
    clocks = [c for c in d.get("clocks_mhz") or [] if c]
    clock = f" SM clock {min(clocks)} to {max(clocks)} MHz." if clocks else ""
    text = (
        f"[{g.file}](../benchmarks/results/{g.file}): commit {d.get('commit')}, {d['date'][:10]},"
        f" {d['device']}, {versions}.{clock} `{d['run']}`"
    )
    earlier = dict.fromkeys(f"{e['date'][:10]} at commit {e['commit']}" for e in d.get("earlier", []))
    told = f"Some cells are of earlier runs, whose commands stand in the file: {'; '.join(earlier)}."
    more = [*([told] if earlier else []), *(f"{_capital(r)}." for r in d.get("remarks", []))]
    return _wrapped(" ".join([text, *more]))


def measured(g: Group) -> str:
    """A table for each workload: one row a cell, one column a contender."""
    kinds = dict.fromkeys(g.names[k].group for k in g.cells)
    parts = [f"**{kind}**\n\n{_workload(g, kind)}" for kind in kinds]
    others = [e["what"] for e in g.data.get("elsewhere", [])[:1]]
    return "\n\n".join([*parts, *(_wrapped(f"{what}. It has no part in the ratios.") for what in others)])


def _workload(g: Group, kind: str) -> str:
    cells = {k: cell for k, cell in g.cells.items() if g.names[k].group == kind}
    there = {r.variant for cell in cells.values() for r in cell}
    variants = [n for n in CONTENDERS if n in there]
    elsewhere = {(e["workload"], e["M"]): e for e in g.data.get("elsewhere", [])}
    last = ("best peer / tilegen", "10-90 %", "pdl / one launch", "barrier / one launch", "tilegen / floor")
    head = ("", *variants, *(("cuSync",) if elsewhere else ()), *last)
    lines = []
    for k, cell in cells.items():
        times = [_time(cell, name) for name in variants]
        other = (
            [str(elsewhere[k[0], dict(k[1])["M"]]["us"]) if (k[0], dict(k[1]).get("M")) in elsewhere else "–"]
            if elsewhere
            else []
        )
        label = f"{g.names[k].label}{' †' if any(r.in_l2 for r in cell) else ''}"
        lines.append(
            (label, *times, *other, shown(over_peers(cell)), _span(cell), *_sync(cell), _over_floor(cell))
        )
    return table(head, lines)


_NEIGHBOURS = (
    "What tilegen takes for each width or head, over what it takes for the next aligned one. Ratios to peers"
    " flatter in this group: they are given the same program, and libraries are slow where rows are no whole"
    " 16 bytes. Who pads weights and results by hand has the neighbour's time. So the group has no line at a"
    " glance."
)


def _beside_neighbours(g: Group) -> str:
    """A line for each width that was measured with its aligned neighbour."""
    lines = []
    for pair in width_pairs():
        odd, aligned = ((t.workload, tuple(sizes_of(t.program).items())) for t in pair)
        us, least = (best_us(g.cells.get(k, []), ["tilegen"]) for k in (odd, aligned))
        if us and least:
            lines.append((g.label(odd), f"{us:.1f}", f"{least:.1f}", f"{us / least:.2f}"))
    return f"{_wrapped(_NEIGHBOURS)}\n\n{table(('', 'µs', 'aligned', 'ratio'), lines)}"


def _host(g: Group) -> str:
    tables = []
    for name in dict.fromkeys(next(iter(r)) for r in g.data["rows"]):
        rows = [r for r in g.data["rows"] if next(iter(r)) == name]
        tables.append(table(tuple(rows[0]), [tuple(str(r.get(k, "–")) for k in rows[0]) for r in rows]))
    return "\n\n".join(tables)


def worst_cells(found: Sequence[Group]) -> str:
    """The least ratios of all, with what no kernel can beat."""
    cells = [(over_peers(c), g, k, c) for g in found for k, c in g.cells.items()]
    known = sorted(
        ((ratio, g, k, c) for ratio, g, k, c in cells if ratio is not None), key=lambda item: item[0]
    )[:WORST]
    head = (
        "workload",
        "best peer / tilegen",
        "best peer",
        "tilegen µs",
        "floor µs",
        "bound by",
        "tilegen / floor",
        "best peer / floor",
    )
    lines = []
    for ratio, g, k, cell in known:
        it, peer = _of(cell, "tilegen"), best_peer(cell)
        assert it is not None and peer is not None
        floor = f"{it.floor_us:.1f}" if it.floor_us else "–"
        lines.append(
            (
                g.label(k),
                shown(ratio),
                peer.variant,
                f"{it.us:.1f}",
                floor,
                bound(it),
                _over(it),
                _over(peer),
            )
        )
    return table(head, lines) if lines else "No cell has both."


# --- of one cell
# ------------------------------------------------------------------------------------------------------------


def over_peers(cell: Sequence[Row]) -> float | None:
    peer, it = best_us(cell, PEERS), best_us(cell, ["tilegen"])
    return peer / it if peer and it else None


def over_own(cell: Sequence[Row]) -> float | None:
    """The best without tile sync over one launch with it."""
    other, it = best_us(cell, OWN), best_us(cell, [one_launch(cell)])
    return other / it if other and it else None


def best_peer(cell: Sequence[Row]) -> Row | None:
    return min((r for r in cell if r.variant in PEERS and not r.wrong), key=lambda r: r.us, default=None)


def paired(cell: Sequence[Row]) -> list[float]:
    """The best peer's time over tilegen's, round by round; empty where a file keeps no rounds."""
    peer, it = best_peer(cell), _of(cell, "tilegen")
    if peer is None or it is None or len(peer.rounds_us) != len(it.rounds_us):
        return []
    return [p / t for p, t in zip(peer.rounds_us, it.rounds_us, strict=True)]


def bound(r: Row) -> str:
    """Which of the two the floor is: a row's rates tell its bytes and FLOPs."""
    multiply, memory = r.tflops * 1e12 / H200.flops16, r.tbs * 1e12 / H200.memory
    return "multiplying" if multiply > memory else "memory"


def _of(cell: Sequence[Row], name: str) -> Row | None:
    return next((r for r in cell if r.variant == name), None)


def _time(cell: Sequence[Row], name: str) -> str:
    r = _of(cell, name)
    return "–" if r is None else "wrong" if r.wrong else f"{r.us:.1f}"


def _sync(cell: Sequence[Row]) -> Iterator[str]:
    it = best_us(cell, [one_launch(cell)])
    for name in ("tilegen-pdl", "tilegen-barrier"):
        other = best_us(cell, [name])
        yield shown(other / it if other and it else None)


def _span(cell: Sequence[Row]) -> str:
    found = paired(cell)
    if len(found) < 2:
        return "–"
    cuts = statistics.quantiles(found, n=10, method="inclusive")
    return f"{cuts[0]:.2f} to {cuts[-1]:.2f}"


def _over(r: Row) -> str:
    return f"{r.us / r.floor_us:.2f}" if r.floor_us else "–"


def _over_floor(cell: Sequence[Row]) -> str:
    it = _of(cell, "tilegen")
    return _over(it) if it is not None and not it.wrong else "–"


# --- text
# ------------------------------------------------------------------------------------------------------------


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _bullets(texts: Sequence[str]) -> str:
    return "\n".join(_wrapped(f"- {t}", "  ") for t in texts)


def _wrapped(text: str, indent: str = "") -> str:
    words = (w.replace(",", ", ") if len(w) > LONG else w for w in text.split(" "))  # a list of contenders
    text = " ".join(words)
    return textwrap.fill(text, 110, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _capital(text: str) -> str:
    return text if text.startswith("tilegen") else text[:1].upper() + text[1:]


def _plain(text: str) -> str:
    return text.replace("<", "&lt;").replace("|", "\\|")


def placed(readme: str, table: str) -> str:
    """The README with the table between its markers; as it is where it has none."""
    first, last = MARKERS
    if first not in readme or last not in readme:
        return readme
    before, rest = readme.split(first, 1)
    return f"{before}{first}\n{table}\n{last}{rest.split(last, 1)[1]}"


def main(arguments: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(
        "report", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    p.add_argument("--gpu", default="h200", help="the end of the result files' names")
    p.add_argument("--write", action="store_true")
    o = p.parse_args(arguments)
    text = page(o.results, o.gpu)
    if not o.write:
        print(text, end="")
        return 0
    write_whole(ROOT / "docs" / "performance.md", text)
    readme = ROOT / "README.md"
    write_whole(readme, placed(readme.read_text(), glance(groups(o.results, o.gpu))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
