"""What a user fixes of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tilegen.errors import PlanError, nearest

NORMS = ("auto", "rows", "folded")
APPENDS = ("auto", "awaited", "passed")
# what others call what a verb takes besides options
OTHERWISE = {"device": "target", "backend": "target", "machine": "on", "gpu": "on"}


@dataclass(frozen=True)
class Options:
    """What the user fixes; everything else is chosen. All as sorted pairs, so that options hash and go into
    the cache key.

    tiles: op -> tile; policies: "up->down", or a tensor -> lattice point; split: op -> shares of its sum;
    parts: op -> gang size, and what the gang shares (TileOp.share): 2, "2", "2:rows"; placement: auto,
    ticket, static or strided; norms: auto, rows (each an op of its own) or folded (into the linears that read
    them, wherever they can be); appends: auto, awaited (by the attention that reads their caches) or passed
    (to it, as rows of their own, wherever they can be). Launches of single ops (lowering="streams") fold and
    pass nothing.
    """

    tiles: tuple[tuple[str, tuple[int, ...]], ...] = ()
    policies: tuple[tuple[str, str], ...] = ()
    split: tuple[tuple[str, int], ...] = ()
    parts: tuple[tuple[str, int | str], ...] = ()
    order: str = "auto"
    placement: str = "auto"
    norms: str = "auto"
    appends: str = "auto"

    def __post_init__(self) -> None:
        for name, known in (("norms", NORMS), ("appends", APPENDS)):
            if getattr(self, name) not in known:
                raise PlanError(f"{name}={getattr(self, name)!r}: expected one of {', '.join(known)}")

    @staticmethod
    def of(**given: Any) -> Options:
        """From plain dicts: Options.of(tiles={"up": (128, 256, 64)}, policies={"up->down": "row"})."""
        fields = Options.__dataclass_fields__
        for name, value in given.items():
            if name not in fields:
                meant = f"; did you mean {OTHERWISE[name]!r}?" if name in OTHERWISE else nearest(name, fields)
                raise PlanError(f"no option {name!r}; they are {', '.join(fields)}{meant}")
            if fields[name].default == () and not _by_name(value):
                raise PlanError(f"option {name} is a dict, such as {{'up': …}}, given {value!r}")
        fixed: dict[str, Any] = {
            k: tuple(sorted(v.items())) if isinstance(v, Mapping) else v for k, v in given.items()
        }
        return Options(**fixed)

    @staticmethod
    def asked(options: Options | None, given: Mapping[str, Any]) -> Options:
        """What a caller gave as options=, or by name; not both."""
        if options is None:
            return Options.of(**given)
        if not isinstance(options, Options):
            raise PlanError(
                f"options is a tg.Options, given {options!r}; "
                f"give {', '.join(Options.__dataclass_fields__)} by name, or tg.Options.of(tiles=…)"
            )
        if given:
            raise PlanError(
                f"given options= and {', '.join(given)}: put all into one, "
                f"tg.Options.of({next(iter(given))}=…)"
            )
        return options

    @property
    def named(self) -> frozenset[str]:
        """Ops and tensors that these options speak of."""
        return frozenset(name for name, _ in self.tiles) | self.awaited | self.shared

    @property
    def awaited(self) -> frozenset[str]:
        """Those of whose hand-overs they speak."""
        return frozenset(part for edge, _ in self.policies for part in edge.split("->"))

    @property
    def shared(self) -> frozenset[str]:
        """Ops whose sums these options split, or whose tiles they give to gangs."""
        return frozenset(name for what in (self.split, self.parts) for name, _ in what)

    @staticmethod
    def from_json(fields: Mapping[str, Any]) -> Options:
        """From what JSON holds: its lists are tuples."""

        def frozen(value: Any) -> Any:
            if isinstance(value, Mapping):
                return {name: frozen(v) for name, v in value.items()}
            return tuple(map(frozen, value)) if isinstance(value, list) else value

        return Options.of(**frozen(fields))


def _by_name(value: object) -> bool:
    """Whether an option's value is a dict by name, or the pairs of one."""
    pairs = value.items() if isinstance(value, Mapping) else value if isinstance(value, tuple) else ("",)
    return all(isinstance(p, tuple) and len(p) == 2 and isinstance(p[0], str) for p in pairs)
