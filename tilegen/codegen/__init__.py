"""From a plan to source text: Jinja templates filled with decisions made here."""
