"""tilegen: tiles of dependent operations side by side in one kernel, with the synchronisation derived and
proved.

Names are loaded when first used: `import tilegen` alone imports neither torch nor SymPy.
"""

from __future__ import annotations

import importlib
import logging
from typing import Any

__version__ = "0.2.0"

_HOME = {
    "tilegen.ops": ("spec",),  # with all ops, which a tensor's + - * / are
    "tilegen.frontend.program": ("Program",),
    "tilegen.frontend.spec": ("Spec",),
    "tilegen.frontend.inputs": ("input", "weight", "state", "symbol"),
    "tilegen.frontend.dims": ("dim",),
    "tilegen.ops.gemm": ("linear", "matmul"),
    "tilegen.ops.conv2d": ("conv2d",),
    "tilegen.ops.conv_transpose2d": ("conv_transpose2d",),
    "tilegen.ops.softmax": ("softmax", "log_softmax"),
    "tilegen.ops.reduce": ("sum", "mean", "max", "min", "logsumexp"),
    "tilegen.ops.topk": ("topk", "argmax"),
    "tilegen.ops.take_along": ("take_along",),
    "tilegen.ops.append": ("append",),
    "tilegen.ops.attention": ("attention",),
    "tilegen.ops.embedding": ("embedding",),
    "tilegen.ops.norm": ("rms_norm", "layer_norm"),
    "tilegen.ops.rope": ("rope", "rotary"),
    "tilegen.ops.group_norm": ("group_norm",),
    "tilegen.ops.cat": ("cat",),
    "tilegen.ops.pad": ("pad",),
    "tilegen.ops.strided_copy": ("permute", "transpose", "reshape", "narrow"),
    "tilegen.ops.pool": ("max_pool2d", "avg_pool2d", "global_avg_pool", "flatten"),
    "tilegen.ops.upsample": ("upsample",),
    "tilegen.ops.pointwise": ("pointwise",),
    "tilegen.ops.maths": (
        *("gelu", "relu", "silu", "sigmoid", "tanh", "exp", "log", "sqrt", "rsqrt", "abs", "softplus"),
        *("hardswish", "leaky_relu", "clamp", "add", "sub", "mul", "div", "scale", "batch_norm"),
        *("maximum", "minimum", "where"),
    ),
    "tilegen.api": ("compile", "plan", "explain", "reference"),
    "tilegen.nn.module": ("module",),
    "tilegen.backend.fold": ("weights_changed",),
    "tilegen.kernels.generate": ("generate",),
    "tilegen.runtime.verify": ("verify",),
    "tilegen.options": ("Options",),
    "tilegen.schedule.plan": ("Plan",),
    "tilegen.schedule.simulate": ("simulate",),
    "tilegen.errors": (
        "TilegenError",
        "SpecError",
        "PlanError",
        "AnalysisError",
        "ProofError",
        "CompileError",
        "SpillError",
        "CompilerMissing",
        "TargetError",
        "ArgumentError",
        "CacheError",
        "OutputError",
        "HangError",
        "RaceError",
        "DeadlockError",
    ),
}
logging.getLogger("tilegen").addHandler(logging.NullHandler())  # a library is silent until its user asks

_WHERE = {name: module for module, names in _HOME.items() for name in names}
__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name == "config":  # a module: what is set in it holds
        return importlib.import_module("tilegen.config")
    if name not in _WHERE:
        raise AttributeError(_unknown(name), name=name)
    value = getattr(importlib.import_module(_WHERE[name]), name)
    globals()[name] = value
    return value


def _unknown(name: str) -> str:
    """What to say of a name that is not there; of one with a leading underscore, which tools ask for,
    Python's words."""
    from difflib import get_close_matches

    if name.startswith("_"):
        return f"module 'tilegen' has no attribute {name!r}"
    ops = ", ".join(sorted(op for op, module in _WHERE.items() if module.startswith("tilegen.ops.")))
    near = get_close_matches(name, __all__, 1) or [n for n in __all__ if len(n) > 3 and n in name.lower()][:1]
    return f"tilegen has no op {name}; ops: {ops}" + (f"; nearest: {near[0]}" if near else "")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
