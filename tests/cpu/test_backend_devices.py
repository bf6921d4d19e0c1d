"""The joint pass on graphs of several devices; "meta" stands for one that is no CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses import FakeTensorMode
from torch.fx import Graph
from torch.fx.experimental.proxy_tensor import make_fx

from tests.compiled import counted, left
from tilegen.backend.joint_pass import JointPass
from tilegen.backend.masks import hides_later

TABLE: dict[Any, Callable[..., Any]] = {**select_decomp_table()}


def traced(model: Callable[..., Any], *shapes: tuple[str, tuple[int, ...]]) -> Graph:
    with FakeTensorMode():
        given = [torch.empty(shape, device=device) for device, shape in shapes]
        return make_fx(model, TABLE)(*given).graph  # type: ignore[no-any-return]


def test_a_region_is_of_one_device() -> None:
    counted().clear()
    graph = traced(lambda x, y: (torch.relu(x), torch.relu(y)), ("cpu", (4, 8)), ("meta", (4, 8)))
    JointPass(None, TABLE, [])(graph)
    assert counted()["regions"] == 1 and "on meta, beside cpu" in left()


def test_a_mask_may_be_moved_to_another_device() -> None:
    def model(q: torch.Tensor) -> torch.Tensor:
        mask = torch.full((7, 7), -torch.inf).triu(1).to(q.device)
        return F.softmax(q + mask, -1)

    graph = traced(model, ("meta", (7, 7)))
    (moved,) = graph.find_nodes(op="call_function", target=torch.ops.prims.device_put.default)
    assert hides_later(moved) is True
