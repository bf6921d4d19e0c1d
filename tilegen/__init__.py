"""tilegen: tiles of dependent operations side by side in one kernel, with the synchronisation derived and proved.

Names are loaded when first used: `import tilegen` alone imports neither torch nor SymPy.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "tilegen.spec": ("spec", "input", "weight", "state", "Program", "Spec"),
    "tilegen.ops.gemm": ("linear", "matmul"),
    "tilegen.ops.conv2d": ("conv2d",),
    "tilegen.ops.softmax": ("softmax",),
    "tilegen.ops.append": ("append",),
    "tilegen.ops.attention": ("attention",),
    "tilegen.ops.norm": ("rms_norm", "layer_norm", "rope"),
    "tilegen.ops.pool": ("max_pool2d", "global_avg_pool", "flatten"),
    "tilegen.ops.pointwise": ("gelu", "relu", "silu", "sigmoid", "add", "mul", "scale", "batch_norm", "pointwise"),
    "tilegen.api": ("compile", "plan", "verify", "explain", "reference", "symbol"),
    "tilegen.generate": ("generate",),
    "tilegen.planner": ("Options",),
    "tilegen.plan": ("Plan",),
    "tilegen.simulate": ("simulate",),
    "tilegen.errors": (
        "TilegenError",
        "SpecError",
        "PlanError",
        "AnalysisError",
        "ProofError",
        "CompileError",
        "CompilerMissing",
        "TargetError",
        "ArgumentError",
        "CacheError",
        "HangError",
        "RaceError",
        "DeadlockError",
    ),
}
_WHERE = {name: module for module, names in _HOME.items() for name in names}
__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'tilegen' has no attribute {name!r}")
    value = getattr(importlib.import_module(_WHERE[name]), name)
    globals()[name] = value
    return value


class _Package(ModuleType):
    """tg.plan is the function also after tilegen/plan.py was imported: importing a submodule does not rebind a public name."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _WHERE and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
