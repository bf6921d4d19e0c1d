"""A parsed plan as flat arrays, or the reasons why it is not a plan ("format").

Everything that a JSON value can get wrong ends here: the checks that follow deal with well-formed numbers
only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np

from tilegen.proof import split_sums
from tilegen.proof.footprint.derive import derive
from tilegen.proof.footprint.frame import (
    DIMENSIONS,
    LIMIT,
    Access,
    Array,
    Cut,
    Footprint,
    Malformed,
    Op,
    expect,
    is_int,
)
from tilegen.proof.memory_order import Ways, ways_of
from tilegen.proof.op_input import declared, read_op
from tilegen.proof.table import Boxes, Findings, Steps, Table, ends
from tilegen.proof.tensor_input import Tensors

MALFORMED = (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, Malformed)


def read_plan(plan: object, findings: Findings) -> Table | None:
    """The plan as arrays; None, with "format" findings, where it is malformed."""
    try:
        given = expect(plan, dict, "the plan")
        _refuse_heading(given)
        table = _Reader(given, findings).table()
    except MALFORMED as error:
        findings.add("format", f"the plan cannot be read: {reason(error)}")
        return None
    return None if findings.counts.get("format") else table


def read_sums(plan: object, findings: Findings) -> None:
    """The findings of sums over K in a plan whose tiles nobody reads."""
    try:
        _Reader(expect(plan, dict, "the plan"), findings).sums()
    except MALFORMED as error:
        findings.add("format", f"the plan cannot be read: {reason(error)}")


def reason(error: Exception) -> str:
    return f"key {error} is missing" if isinstance(error, KeyError) else str(error) or type(error).__name__


def _refuse_heading(plan: dict[str, Any]) -> None:
    """Malformed where what the plan says before its tensors, ops and tiles is not what it is to be."""
    if plan["version"] != 3:
        raise Malformed(f"version is {plan['version']!r}, expected 3")
    sizes, machine = expect(plan["sizes"], dict, "sizes"), expect(plan["machine"], dict, "machine")
    expect(plan["program"], str, "program")
    expect(machine["name"], str, "the machine's name")
    expect(plan["target"], str, "target")
    if not is_int(machine["sms"], 1) or plan["lowering"] not in ("persistent", "multi_launch"):
        raise Malformed(
            f"machine has sms {machine['sms']!r} and lowering is {plan['lowering']!r}, expected an int >= 1,"
            " and 'persistent' or 'multi_launch'"
        )
    if not all(type(v) is int for v in sizes.values()):
        raise Malformed(f"sizes are {sizes!r:.60}, expected ints")
    scheduling = plan["scheduling"]
    if scheduling != "dynamic" and not (
        isinstance(scheduling, list)
        and all(isinstance(ranks, list) and all(map(is_int, ranks)) for ranks in scheduling)
    ):
        raise Malformed(f"scheduling is {scheduling!r:.60}, expected 'dynamic' or a list of ranks per SM")


class _Reader:
    """Walks the JSON once, gathering plain lists, and turns these into arrays."""

    def __init__(self, plan: dict[str, Any], findings: Findings):
        self.plan, self.findings = plan, findings
        self.tensors = Tensors.of(plan["tensors"])
        self.tiles: list[str] = []
        self.coords: dict[str, list[list[int]]] = {}
        self.op_ctas: dict[str, list[int]] = {}
        self.cta_tile: list[int] = []
        self.cta_index: list[int] = []
        self.read_cta: list[int] = []
        self.read_tensor: list[int] = []
        self.read_box: list[Any] = []
        self.read_state: list[int] = []
        self.read_waits: list[int] = []
        self.read_proxy: list[int] = []
        self.write_cta: list[int] = []
        self.write_tensor: list[int] = []
        self.write_box: list[Any] = []
        self.write_proxy: list[int] = []
        self.posts: list[tuple[int, int, int]] = []
        self.waits: list[tuple[int, int, int]] = []
        self.proxies: dict[str, int] = {}
        self.chain: dict[tuple[int, tuple[tuple[int, int], ...]], int] = {}
        self.members: list[frozenset[int]] = [frozenset()]

    def sums(self) -> None:
        self._split_sums(self._known(expect(self.plan["ops"], dict, "ops")))

    def table(self) -> Table | None:
        plan, machine, scheduling = self.plan, self.plan["machine"], self.plan["scheduling"]
        self.targets = self._semaphores()
        ops = expect(plan["ops"], dict, "ops")
        for position, tile in enumerate(expect(plan["tiles"], list, "tiles")):
            try:
                self._tile(position, tile, ops)
            except MALFORMED as error:
                self.findings.add("format", f"tile at position {position}: {reason(error)}", position)
        if self.findings.counts:
            return None
        known = self._known(ops)
        footprints = self._footprints(known)
        reads, writes = (
            self._boxes(*lists)
            for lists in (
                (self.read_cta, self.read_tensor, self.read_box),
                (self.write_cta, self.write_tensor, self.write_box),
            )
        )
        if self.findings.counts or reads is None or writes is None:
            return None
        if plan["lowering"] == "persistent":  # what launches share is looked at in all of them (read_sums)
            self._split_sums(known)
        return Table(
            plan["program"],
            tuple(sorted((str(k), v) for k, v in plan["sizes"].items())),
            machine["name"],
            machine["sms"],
            None if scheduling == "dynamic" else scheduling,
            self.tensors.names,
            self.tensors.shapes,
            self.tensors.roles,
            list(self.proxies),
            self.tiles,
            _array(self.cta_tile),
            _array(self.cta_index),
            any(self.cta_index),
            reads,
            _array(self.read_state),
            _array(self.read_waits),
            _array(self.read_proxy),
            writes,
            _array(self.write_proxy),
            _array(self.posts).reshape(-1, 3),
            _array(self.waits).reshape(-1, 3),
            self.targets,
            self._states(),
            *self._derived(footprints, ops, reads, writes),
            *self._cuts(footprints, reads),
            tuple(name for name, op in ops.items() if declared(op)),
            plan["target"],
            tuple(self._ways(plan["target"], op) for op in known),
        )

    def _semaphores(self) -> Array:
        targets = expect(self.plan["semaphores"], list, "semaphores")
        if not all(is_int(t, 1) for t in targets):
            raise Malformed(
                f"semaphore targets hold {next(t for t in targets if not is_int(t, 1))!r}, expected ints >= 1"
                " and < 2^31"
            )
        return _array(targets)

    def _tile(self, position: int, tile: Any, ops: dict[str, Any]) -> None:
        expect(tile, dict, "the tile")
        name, coord = tile["op"], expect(tile["coord"], list, "coord")
        if type(tile["rank"]) is not int or tile["rank"] != position:
            raise Malformed(f"rank is {tile['rank']!r}, expected {position}: tiles stand in rank order")
        if expect(name, str, "op") not in ops:
            raise Malformed(f"op {name!r} is unknown, expected one of {', '.join(ops)}")
        self.coords.setdefault(name, []).append(coord)
        self.tiles.append(f"{name} ({', '.join(map(str, coord))})")
        ctas = expect(tile["ctas"], list, "ctas")
        if len(ctas) != ops[name]["cluster"]:
            raise Malformed(
                f"{self.tiles[-1]} rank {position} has {len(ctas)} CTAs, its op has {ops[name]['cluster']!r}"
            )
        for index, cta in enumerate(ctas):
            number = len(self.cta_tile)
            self.cta_tile.append(position)
            self.cta_index.append(index)
            self.op_ctas.setdefault(name, []).append(number)
            self._reads(number, expect(cta["reads"], list, "reads"))
            for write in expect(cta["writes"], list, "writes"):
                self.write_cta.append(number)
                self.write_tensor.append(self.tensors.number(write["tensor"]))
                self.write_box.append(write["box"])
                self.write_proxy.append(self._proxy(write))
            for semaphore, amount in expect(cta["posts"], list, "posts"):
                self._semaphore(semaphore)
                if not is_int(amount, 1):
                    raise Malformed(f"post of {amount!r} to semaphore {semaphore}, expected an int >= 1")
                self.posts.append((number, semaphore, amount))

    def _reads(self, cta: int, reads: Iterable[Any]) -> None:
        state = 0
        for read in reads:
            waits = expect(read["waits"], list, "waits")
            for semaphore, target in waits:
                self._semaphore(semaphore)
                if not is_int(target):
                    raise Malformed(f"wait for {target!r} of semaphore {semaphore}, expected an int")
                self.waits.append((cta, semaphore, target))
            if waits:
                state = self._after(state, tuple(map(tuple, waits)))
            self.read_cta.append(cta)
            self.read_tensor.append(self.tensors.number(read["tensor"]))
            self.read_box.append(read["box"])
            self.read_state.append(state)
            self.read_waits.append(len(waits))
            self.read_proxy.append(self._proxy(read))

    def _after(self, state: int, waits: tuple[Any, ...]) -> int:
        """The wait state (set of semaphores fully awaited so far) after these waits."""
        found = self.chain.get((state, waits))
        if found is None:
            found = self.chain[state, waits] = len(self.members)
            self.members.append(self.members[state] | {s for s, target in waits if target == self.targets[s]})
        return found

    def _semaphore(self, index: Any) -> None:
        if not is_int(index) or index >= len(self.targets):
            raise Malformed(f"semaphore {index!r} is unknown, expected an int below {len(self.targets)}")

    def _proxy(self, access: dict[str, Any]) -> int:
        return self.proxies.setdefault(
            expect(access.get("proxy", "generic"), str, "proxy"), len(self.proxies)
        )

    def _states(self) -> Array:
        count = len(self.targets)
        return np.sort(
            _array([state * count + s for state, members in enumerate(self.members) for s in members])
        )

    def _boxes(self, cta: list[int], tensor: list[int], boxes: list[Any]) -> Boxes | None:
        """All boxes as arrays; the slow way round only to name what is wrong."""
        low = np.zeros((len(boxes), DIMENSIONS), np.int64)
        high, stride = np.ones_like(low), np.ones_like(low)
        shapes = _array([[*s, *[1] * (DIMENSIONS - len(s))] for s in self.tensors.shapes]).reshape(
            -1, DIMENSIONS
        )
        dims = _array([len(s) for s in self.tensors.shapes])
        try:
            ranges = list(chain.from_iterable(boxes))
            sizes, lengths = _array(list(map(len, boxes))), _array(list(map(len, ranges)))
            flat = list(chain.from_iterable(ranges))
            good = (
                set(map(type, flat)) <= {int}
                and bool(((lengths == 2) | (lengths == 3)).all())
                and bool((sizes == dims[tensor]).all())
            )
            if good:
                values, start = _array(flat), np.cumsum(lengths) - lengths
                at = (
                    np.repeat(np.arange(len(boxes)), sizes),
                    np.arange(len(ranges)) - np.repeat(np.cumsum(sizes) - sizes, sizes),
                )
                low[at], high[at] = values[start], values[start + 1]
                stride[at] = np.where(lengths == 3, values[np.minimum(start + 2, len(values) - 1)], 1)
                good = bool(
                    (
                        (low >= 0)
                        & (low < high)
                        & (high <= shapes[tensor])
                        & (stride >= 1)
                        & (stride < LIMIT)
                    ).all()
                )
        except MALFORMED:
            good = False
        if good:
            return Boxes(_array(cta), _array(tensor), low, *ends(low, high, stride))
        for p, t, box in zip(cta, tensor, boxes, strict=True):
            if not _box_fits(box, self.tensors.shapes[t]):
                rank = self.cta_tile[p]
                self.findings.add(
                    "format",
                    f"{self.tiles[rank]} rank {rank}: box {box!r} of tensor {self.tensors.names[t]}"
                    f" {list(self.tensors.shapes[t])}, expected a range [lo, hi] or [lo, hi, stride] inside"
                    " each dimension",
                    rank,
                )
        return None

    def _known(self, ops: dict[str, Any]) -> list[Op]:
        """The ops whose kinds the format tells of."""
        out = []
        for name, op in ops.items():
            try:
                if not declared(op):
                    out.append(read_op(name, op, self.tensors, self.coords.get(name, [])))
            except MALFORMED as error:
                self.findings.add("format", f"op {name!r}: {reason(error)}")
        return out

    def _split_sums(self, ops: Sequence[Op]) -> None:
        try:
            for problem in split_sums.problems(ops, self.tensors.by_role):
                self.findings.add("coverage", problem)
        except MALFORMED as error:
            self.findings.add("format", f"a sum over K that is split: {reason(error)}")

    def _footprints(self, ops: Sequence[Op]) -> list[tuple[Array, Footprint]]:
        """For each op the CTAs (rows of its footprint) and what they read and write."""
        out = []
        for op in ops:
            try:
                out.append((self._ctas_of(op.name), derive(op)))
            except MALFORMED as error:
                self.findings.add("format", f"op {op.name!r}: {reason(error)}")
        return out

    def _ways(self, target: str, op: Op) -> tuple[str, Array, Ways]:
        """How the CTAs of an op must read and write."""
        dtype = self.tensors.dtype(op.result.tensor)
        dtypes = [self.tensors.dtype(view.tensor) for view in op.views]
        alone = len(self.plan["ops"]) == 1
        return op.name, self._ctas_of(op.name), ways_of(target, op, dtype, dtypes, alone)

    def _ctas_of(self, op: str) -> Array:
        return _array(self.op_ctas.get(op, []))

    def _derived(
        self, footprints: list[tuple[Array, Footprint]], ops: dict[str, Any], listed: Boxes, written: Boxes
    ) -> tuple[Boxes, Steps, Boxes, np.ndarray[Any, Any]]:
        """What the ops say is read (with its steps) and written (and whether exactly so); for declared ops
        what is listed."""
        reads = [(ctas, a) for ctas, f in footprints for a in f.reads]
        writes = [(ctas, f.write) for ctas, f in footprints]
        exact = np.concatenate(
            [np.zeros(0, bool), *(np.full(len(f.write.rows), f.exact) for _, f in footprints)]
        )

        def each(key: str) -> Array:
            return np.repeat(
                _array([getattr(a, key) for _, a in reads]), _array([len(a.rows) for _, a in reads])
            )

        origin = np.concatenate([_array([]), *(a.origin for _, a in reads)])
        steps = Steps(each("axis"), origin, each("size"), each("base"), each("required").astype(bool))
        foreign = [p for name, op in ops.items() if declared(op) for p in self.op_ctas.get(name, [])]
        needs = listed.take(np.isin(listed.cta, foreign))
        zeros = np.zeros(len(needs.cta), np.int64)
        steps = Steps(
            np.append(steps.axis, zeros),
            np.append(steps.origin, needs.low[:, 0]),
            np.append(steps.size, zeros + LIMIT),
            np.append(steps.base, zeros),
            np.append(steps.required, zeros == 0),
        )
        own = written.take(np.isin(written.cta, foreign))
        exact = np.append(exact, np.ones(len(own.cta), bool))
        return _joined(self._gather(reads), needs), steps, _joined(self._gather(writes), own), exact

    def _cuts(self, footprints: list[tuple[Array, Footprint]], listed: Boxes) -> tuple[Array, Array]:
        """For listed reads the cut before which their op reads of that tensor, for CTAs the cut from which
        on they write; 0: none, or several."""
        numbers = {
            cut: n
            for n, cut in enumerate(
                sorted({c for _, f in footprints for c in (f.since, *(a.before for a in f.reads)) if c}), 1
            )
        }
        since, before = np.zeros(len(self.cta_tile), np.int64), np.zeros(len(listed.cta), np.int64)
        for ctas, f in footprints:
            since[ctas] = numbers[f.since] if f.since else 0
            cuts: dict[str, set[Cut | None]] = {}
            for a in f.reads:
                cuts.setdefault(a.tensor, set()).add(a.before)
            for tensor, found in cuts.items():
                cut = found.pop()
                if cut and not found:
                    before[np.isin(listed.cta, ctas) & (listed.tensor == self.tensors.numbers[tensor])] = (
                        numbers[cut]
                    )
        return before, since

    def _gather(self, accesses: Sequence[tuple[Array, Access]]) -> Boxes:
        none = np.zeros((0, DIMENSIONS), np.int64)
        low, high, stride = (
            np.concatenate([none, *(getattr(a, key) for _, a in accesses)])
            for key in ("low", "high", "stride")
        )
        cta = np.concatenate([_array([]), *(ctas[a.rows] for ctas, a in accesses)])
        tensor = np.repeat(
            _array([self.tensors.numbers[a.tensor] for _, a in accesses]),
            _array([len(a.rows) for _, a in accesses]),
        )
        return Boxes(cta, tensor, low, *ends(low, high, stride))


def _joined(a: Boxes, b: Boxes) -> Boxes:
    return Boxes(
        *(
            np.concatenate([getattr(a, key), getattr(b, key)])
            for key in ("cta", "tensor", "low", "high", "stride")
        )
    )


def _array(values: Any) -> Array:
    return np.array(values, np.int64)


def _box_fits(box: Any, shape: tuple[int, ...]) -> bool:
    def fits(one: Any, size: int) -> bool:
        return (
            isinstance(one, (list, tuple))
            and len(one) in (2, 3)
            and all(map(is_int, one))
            and one[0] < one[1] <= size
            and (len(one) == 2 or one[2] >= 1)
        )

    return isinstance(box, (list, tuple)) and len(box) == len(shape) and all(map(fits, box, shape))
