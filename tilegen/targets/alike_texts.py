"""Kernels that are alike but for the names of their plans, as a net has them layer after layer: compiled once
in a process."""

from __future__ import annotations

import hashlib
import re
import threading
from collections import OrderedDict
from concurrent.futures import Future

from tilegen.runtime.nvrtc import Cubin, compile_cuda
from tilegen.schedule.plan import Plan

MOST = 256  # binaries that are kept: some 100 KB each
_known: OrderedDict[str, Future[Cubin]] = OrderedDict()
_lock = threading.Lock()


def compiled(text: str, plan: Plan, architecture: str) -> Cubin:
    """The text of a plan as machine code, or that of a text which is this one under other names.

    Raises:
        CompileError: NVRTC refuses it.
    """
    if len(plan.graph.ops) > 1:
        return compile_cuda(text, architecture)
    key = hashlib.sha256(f"{architecture} {nameless(text, plan)}".encode()).hexdigest()
    with _lock:
        made = _known.get(key)
        first = made is None
        if made is None:
            made = _known[key] = Future()
        _known.move_to_end(key)
        while len(_known) > MOST:
            _known.popitem(last=False)
    if first:
        try:
            made.set_result(compile_cuda(text, architecture))
        except BaseException as error:  # whoever waits for it is told, whoever comes later tries again
            made.set_exception(error)
            with _lock:
                _known.pop(key, None)
    return made.result()


def nameless(text: str, plan: Plan) -> str:
    """A text whose names of the plan's are numbers, in the order in which they come, and without comments.
    Two texts of which this is the same are each other's with names exchanged one by one, wherever these
    stand. A name that the kernels use themselves, such as x of a vector, makes a text like no other."""
    names = {plan.program, *plan.graph.tensors, *(op.name for op in plan.graph.ops)}
    names |= {name.upper() for name in names}
    number: dict[str, int] = {}
    longest_first = "|".join(map(re.escape, sorted(names, key=lambda name: (-len(name), name))))
    return re.sub(
        rf"(?<![A-Za-z0-9])(?:{longest_first})(?![A-Za-z0-9])",
        lambda found: f"\0{number.setdefault(found[0], len(number))}",
        re.sub(r"//[^\n]*", "", text),
    )
