"""Greedy decoding by a transformers Llama with a static cache: tokens a second under
torch.compile(backend="tilegen") beside Inductor, both with CUDA graphs of their own (mode="reduce-overhead").

python -m benchmarks.generate -o FILE --batches 1 8 --tokens 128        on this GPU

Four layers of Llama 3 8B's sizes, bfloat16, weights random; a prompt of 64 tokens by eager torch, then one
token at a time. The sides take turns, round by round. A row: tokens a second of all rounds, with the prompt;
seconds to compile; and how many of the tokens are those of eager torch, whose sums have other orders.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.models import command
from tilegen.backend.backend import tilegen
from tilegen.bench.environment import environment
from tilegen.bench.results import heading, save

PROMPT, LAYERS = 64, 4
Forward = Callable[..., Any]


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(num_hidden_layers=LAYERS, num_key_value_heads=8, intermediate_size=14336)
    with torch.device("cuda"):
        return LlamaForCausalLM(config).eval().bfloat16()


class Decoder:
    """A model, its prompt, and the cache that all its runs write."""

    def __init__(self, model: Any, batch: int, tokens: int):
        from transformers import StaticCache

        self.tokens = tokens
        self.prompt = torch.randint(0, 1000, (batch, PROMPT), device="cuda")
        self.cache = StaticCache(config=model.config, max_cache_len=PROMPT + tokens)

    def run(self, prefill: Forward, step: Forward) -> torch.Tensor:
        """The tokens that follow the prompt: (batch, tokens)."""
        self.cache.reset()
        at, given, found = torch.arange(PROMPT, device="cuda"), self.prompt, list[torch.Tensor]()
        for n in range(self.tokens):
            if n:
                torch.compiler.cudagraph_mark_step_begin()
            forward = step if n else prefill
            made = forward(
                input_ids=given,
                past_key_values=self.cache,
                position_ids=at[None].expand(len(given), -1),
                cache_position=at,
                use_cache=True,
            )
            given = made.logits[:, -1:].argmax(-1)
            found.append(given)
            at = at[-1:] + 1
        return torch.cat(found, 1)


def measured(model: Any, batch: int, tokens: int, rounds: int) -> list[dict[str, Any]]:
    decoder = Decoder(model, batch, tokens)
    eager = decoder.run(model.forward, model.forward)
    sides, rows = {"eager": model.forward}, list[dict[str, Any]]()
    for name, backend in (("inductor", "inductor"), ("tilegen", tilegen)):
        sides[name] = torch.compile(model.forward, backend=backend, mode="reduce-overhead", dynamic=False)
    for name, step in sides.items():
        begun = time.perf_counter()
        made = [decoder.run(model.forward, step) for _ in range(2)][-1]
        seconds = round(time.perf_counter() - begun, 1)
        alike = float((made == eager).float().mean())
        rows.append({"backend": name, "batch": batch, "seconds": seconds, "alike": alike, "rate": []})
    for n in range(rounds):
        for row in rows if n % 2 == 0 else rows[::-1]:
            torch.cuda.synchronize()
            begun = time.perf_counter()
            decoder.run(model.forward, sides[row["backend"]])
            torch.cuda.synchronize()
            row["rate"].append(round(batch * tokens / (time.perf_counter() - begun), 1))
    return rows


def main() -> None:
    p = argparse.ArgumentParser(
        "generate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("-o", "--out", type=Path)
    p.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    p.add_argument("--tokens", type=int, default=128)
    p.add_argument("--rounds", type=int, default=5)
    asked = p.parse_args()
    begun = {**heading(command("python -m benchmarks.generate", asked.out), environment()), "remarks": []}
    torch.manual_seed(0)
    model, rows = llama(), list[dict[str, Any]]()
    with torch.no_grad():
        for batch in asked.batches:
            torch._dynamo.reset()
            rows += measured(model, batch, asked.tokens, asked.rounds)
            for row in rows[-3:]:
                rate = statistics.median(row["rate"])
                print(
                    f"batch {batch} {row['backend']:9} {rate:9.1f} tokens/s, {row['alike']:.3f} as eager",
                    flush=True,
                )
            if asked.out:
                save({**begun, "rows": rows}, asked.out)


if __name__ == "__main__":
    main()
