"""What a notebook shows of a plan and of a kernel: a heading, the simulated timeline, the folded certificate."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from tilegen.svg import svg
from tilegen.trace import Trace

if TYPE_CHECKING:
    from tilegen.kernel import Kernel
    from tilegen.plan import Plan

MOST = 4000  # tiles of a picture: each takes some 300 characters


def plan_html(plan: Plan) -> str:
    """The heading and the timeline."""
    return f"<div>{_line(plan)}{_picture(plan)}</div>"


def kernel_html(kernel: Kernel) -> str:
    """The heading, the timeline and the certificate, which opens at a click."""
    heading, text = escape(kernel.proof.heading), escape(kernel.proof.text())
    proof = f"<details><summary>{heading}</summary><pre>{text}</pre></details>"
    return f"<div>{_line(kernel)}{_picture(kernel.plan)}{proof}</div>"


def _line(what: object) -> str:
    return f"<p><code>{escape(repr(what))}</code></p>"


def _picture(plan: Plan) -> str:
    """The simulated timeline; a sentence instead where there is none to draw."""
    if plan.lowering == "streams":
        return "<p>A launch for each op: one timeline of all tiles does not exist.</p>"
    if plan.order.count > MOST:
        command = "<code>tilegen plan SPEC.py --svg FILE</code>"
        return f"<p>{plan.order.count:,} tiles are too many to draw here; {command} draws them.</p>"
    return svg([(f"{plan.program}, simulated on {plan.machine.name}", Trace.simulated(plan))])
