"""The backend itself: Inductor, whose joint graph goes through tilegen's pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._inductor import config as inductor
from torch._inductor import list_mode_options
from torch._inductor.compile_fx import compile_fx
from torch._inductor.decomposition import select_decomp_table

from tilegen.backend import spelled
from tilegen.backend.fold import refolding
from tilegen.backend.joint_pass import JointPass
from tilegen.backend.search import Input
from tilegen.backend.words import KEPT


def tilegen(
    module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """What torch.compile calls: torch.compile(model, backend="tilegen", mode=…, options=…).

    mode, options: as Inductor takes them. What tilegen left to Inductor, and why: TORCH_LOGS="tilegen", and
    torch._dynamo.utils.counters["tilegen"].
    """
    patches = {**(list_mode_options(mode) if mode else {}), **(options or {})}
    before = patches.get("joint_custom_pre_pass", inductor.joint_custom_pre_pass)
    table: dict[Any, Callable[..., Any]] = {**select_decomp_table()}
    table[spelled.CALL] = spelled.CALL  # which torch takes apart by itself
    taken = [Input.of(a) for a in inputs]
    patches["joint_custom_pre_pass"] = JointPass(before, table, taken)
    kept = {op: how for op, how in table.items() if op not in KEPT}
    compiled: Any = compile_fx(module, inputs, config_patches=patches, decompositions=kept)
    static = [n for n, a in enumerate(taken) if a.static]
    graphs = patches.get("triton.cudagraphs", inductor.triton.cudagraphs)
    return refolding(compiled, static) if graphs and static else compiled
