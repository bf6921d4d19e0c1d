"""What a user fixes of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tilegen.errors import PlanError, nearest

NORMS = ("auto", "separate", "fused")
APPENDS = ("auto", "awaited", "forwarded")
# what others call what a verb takes besides options
OTHERWISE = {"device": "target", "backend": "target", "machine": "on", "gpu": "on"}
# Earlier names of options and of their values, and today's.
RENAMED = {
    "parts": "cluster ('2:rows' is '2:m', '2:columns' is '2:n')",
    "placement": "scheduling ('ticket' is 'dynamic', 'strided' is 'static', 'static' is 'lists')",
    "split": "split_k for a linear, split_kv for an attention",
}
RENAMED_VALUES = {
    "norms": {"rows": "separate", "folded": "fused"},
    "appends": {"passed": "forwarded"},
}


@dataclass(frozen=True)
class Options:
    """What the user fixes; everything else is chosen. All as sorted pairs, so that options hash and go into
    the cache key.

    tiles: op -> tile.
    policies: "up->down", or a tensor -> lattice point.
    split_k: linear -> splits of its sum. split_kv: attention over caches -> splits of its keys.
    cluster: op -> CTAs of a cluster, and what they split (TileOp.cluster_split): 2, "2", "2:m",
    "4:km", "2x4".
    pingpong: op -> whether math warpgroups compute its tiles in turn (TileOp.pingpong).
    order: auto, op_major, op_major:GROUP, banded:N or banded:N:LAG.
    scheduling: auto, dynamic (an atomic counter hands out ranks), static (CTA c of C runs ranks c, c + C, …)
    or lists (from the simulated run).
    norms: auto, separate (each an op of its own) or fused (into the linears that read them, wherever they can
    be).
    appends: auto, awaited (by the attention that reads their caches) or forwarded (to it, as rows of their
    own, wherever they can be). Launches of single ops (lowering="multi_launch") fuse and forward nothing.
    """

    tiles: tuple[tuple[str, tuple[int, ...]], ...] = ()
    policies: tuple[tuple[str, str], ...] = ()
    split_k: tuple[tuple[str, int], ...] = ()
    split_kv: tuple[tuple[str, int], ...] = ()
    cluster: tuple[tuple[str, int | str], ...] = ()
    pingpong: tuple[tuple[str, bool], ...] = ()
    order: str = "auto"
    scheduling: str = "auto"
    norms: str = "auto"
    appends: str = "auto"

    def __post_init__(self) -> None:
        for name, known in (("norms", NORMS), ("appends", APPENDS)):
            if (value := getattr(self, name)) not in known:
                new = RENAMED_VALUES[name].get(value, "")
                renamed = f"; {value!r} is {new!r} now" if new else ""
                raise PlanError(f"{name}={value!r}: expected one of {', '.join(known)}{renamed}")

    @staticmethod
    def of(**given: Any) -> Options:
        """From plain dicts: Options.of(tiles={"up": (128, 256, 64)}, policies={"up->down": "row"}).

        Raises:
            PlanError: an option is unknown or has a new name, or its value is none of those it takes.
        """
        fields = Options.__dataclass_fields__
        for name, value in given.items():
            if name in RENAMED:
                raise PlanError(f"option {name!r} has a new name: {RENAMED[name]}")
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
        """What a caller gave as options=, or by name.

        Raises:
            PlanError: both are given, or options is no Options.
        """
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
        """Ops whose sums these options split, or whose tiles they give to clusters or to warpgroups in
        turn."""
        by_op = (self.split_k, self.split_kv, self.cluster, self.pingpong)
        return frozenset(name for what in by_op for name, _ in what)

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
