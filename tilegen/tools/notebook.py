"""What a notebook shows of a plan and of a kernel: a heading, the simulated timeline, the folded
certificate."""

from __future__ import annotations

from html import escape

from tilegen.proof.checker import Certificate
from tilegen.schedule.plan import Plan
from tilegen.tools.svg import svg
from tilegen.tools.trace import Trace

MOST = 4000  # tiles of a picture: each takes some 300 characters


def plan_html(plan: Plan) -> str:
    """The heading and the timeline."""
    return f"<div>{_line(plan)}{_picture(plan)}</div>"


def kernel_html(kernel: object, plan: Plan, certificate: Certificate) -> str:
    """The heading, the timeline and the certificate, which opens at a click."""
    heading, text = escape(certificate.heading), escape(certificate.text())
    proof = f"<details><summary>{heading}</summary><pre>{text}</pre></details>"
    return f"<div>{_line(kernel)}{_picture(plan)}{proof}</div>"


def _line(what: object) -> str:
    return f"<p><code>{escape(repr(what))}</code></p>"


def _picture(plan: Plan) -> str:
    """The simulated timeline; a sentence instead where there is none to draw."""
    if plan.lowering == "multi_launch":
        return "<p>A launch for each op: one timeline of all tiles does not exist.</p>"
    if plan.order.count > MOST:
        command = "<code>tilegen plan SPEC.py --svg FILE</code>"
        return f"<p>{plan.order.count:,} tiles are too many to draw here; {command} draws them.</p>"
    return svg([(f"{plan.program}, simulated on {plan.machine.name}", Trace.simulated(plan))])
