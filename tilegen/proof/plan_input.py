"""A parsed plan as flat arrays, or the reasons why it is not a plan ("format").

Everything that a JSON value can get wrong ends here: the checks that follow deal with well-formed numbers
only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from tilegen.proof import split_sums
from tilegen.proof.footprint.derive import KINDS, derive
from tilegen.proof.footprint.frame import (
    DIMENSIONS,
    LIMIT,
    Access,
    Array,
    Cut,
    Footprint,
    Malformed,
    Op,
    View,
    is_int,
)
from tilegen.proof.memory_order import Ways, ways_of
from tilegen.proof.table import Boxes, Findings, Steps, Table, ends

ROLES = ("input", "weight", "intermediate", "output", "partial", "state")
ROWS = ("linear", "matmul")  # kinds whose rows a cluster may share out
SHARED_ROWS = {"m": 0, "km": 0, "2x2": 4, "2x4": 8, "4x2": 8}  # how, and of how many CTAs; 0: any number
MALFORMED = (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, Malformed)


def read_plan(plan: object, findings: Findings) -> Table | None:
    """The plan as arrays; None, with "format" findings, where it is malformed."""
    try:
        table = _Reader(plan, findings).table()
    except MALFORMED as error:
        findings.add("format", f"the plan cannot be read: {reason(error)}")
        return None
    return None if findings.counts.get("format") else table


def read_sums(plan: object, findings: Findings) -> None:
    """The findings of sums over K in a plan whose tiles nobody reads."""
    try:
        _Reader(plan, findings).sums()
    except MALFORMED as error:
        findings.add("format", f"the plan cannot be read: {reason(error)}")


def reason(error: Exception) -> str:
    return f"key {error} is missing" if isinstance(error, KeyError) else str(error) or type(error).__name__


def _expect(value: Any, kind: type, what: str) -> Any:
    if type(value) is not kind:
        raise Malformed(f"{what} is {value!r:.60}, expected a {kind.__name__}")
    return value


class _Reader:
    """Walks the JSON once, gathering plain lists, and turns these into arrays."""

    def __init__(self, plan: object, findings: Findings):
        self.plan: dict[str, Any] = _expect(plan, dict, "the plan")
        self.findings = findings
        self.tensors: dict[str, int] = {}
        self.shapes: list[tuple[int, ...]] = []
        self.roles: list[str] = []
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
        self._tensors()
        self._split_sums(self._known(_expect(self.plan["ops"], dict, "ops")))

    def table(self) -> Table | None:
        plan = self.plan
        if plan["version"] != 3:
            raise Malformed(f"version is {plan['version']!r}, expected 3")
        program, sizes, machine = (
            plan["program"],
            _expect(plan["sizes"], dict, "sizes"),
            _expect(plan["machine"], dict, "machine"),
        )
        _expect(program, str, "program"), _expect(machine["name"], str, "the machine's name")
        _expect(plan["target"], str, "target")
        if not is_int(machine["sms"], 1) or plan["lowering"] not in ("persistent", "multi_launch"):
            raise Malformed(
                f"machine has sms {machine['sms']!r} and lowering is {plan['lowering']!r}, expected an int >="
                " 1, and 'persistent' or 'multi_launch'"
            )
        if not all(type(v) is int for v in sizes.values()):
            raise Malformed(f"sizes are {sizes!r:.60}, expected ints")
        scheduling = plan["scheduling"]
        if scheduling != "dynamic" and not (
            isinstance(scheduling, list)
            and all(isinstance(ranks, list) and all(map(is_int, ranks)) for ranks in scheduling)
        ):
            raise Malformed(f"scheduling is {scheduling!r:.60}, expected 'dynamic' or a list of ranks per SM")
        self._tensors()
        self.targets = self._semaphores()
        ops = _expect(plan["ops"], dict, "ops")
        for position, tile in enumerate(_expect(plan["tiles"], list, "tiles")):
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
            program,
            tuple(sorted((str(k), v) for k, v in sizes.items())),
            machine["name"],
            machine["sms"],
            None if scheduling == "dynamic" else scheduling,
            list(self.tensors),
            self.shapes,
            self.roles,
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
            tuple(name for name, op in ops.items() if _declared(op)),
            plan["target"],
            tuple(self._ways(plan["target"], op) for op in known),
        )

    def _tensors(self) -> None:
        for name, tensor in _expect(self.plan["tensors"], dict, "tensors").items():
            shape, role = tensor["shape"], tensor["role"]
            if not (
                isinstance(shape, list) and 1 <= len(shape) <= DIMENSIONS and all(is_int(s, 1) for s in shape)
            ):
                raise Malformed(f"tensor {name!r} has shape {shape!r}, expected 1 to {DIMENSIONS} ints >= 1")
            if role not in ROLES:
                raise Malformed(f"tensor {name!r} has role {role!r}, expected one of {', '.join(ROLES)}")
            _expect(tensor["dtype"], str, f"dtype of tensor {name!r}")
            self.tensors[name] = len(self.shapes)
            self.shapes.append(tuple(shape))
            self.roles.append(role)

    def _semaphores(self) -> Array:
        targets = _expect(self.plan["semaphores"], list, "semaphores")
        if not all(is_int(t, 1) for t in targets):
            raise Malformed(
                f"semaphore targets hold {next(t for t in targets if not is_int(t, 1))!r}, expected ints >= 1"
                " and < 2^31"
            )
        return _array(targets)

    def _tile(self, position: int, tile: Any, ops: dict[str, Any]) -> None:
        _expect(tile, dict, "the tile")
        name, coord = tile["op"], _expect(tile["coord"], list, "coord")
        if type(tile["rank"]) is not int or tile["rank"] != position:
            raise Malformed(f"rank is {tile['rank']!r}, expected {position}: tiles stand in rank order")
        if _expect(name, str, "op") not in ops:
            raise Malformed(f"op {name!r} is unknown, expected one of {', '.join(ops)}")
        self.coords.setdefault(name, []).append(coord)
        self.tiles.append(f"{name} ({', '.join(map(str, coord))})")
        ctas = _expect(tile["ctas"], list, "ctas")
        if len(ctas) != ops[name]["cluster"]:
            raise Malformed(
                f"{self.tiles[-1]} rank {position} has {len(ctas)} CTAs, its op has {ops[name]['cluster']!r}"
            )
        for index, cta in enumerate(ctas):
            number = len(self.cta_tile)
            self.cta_tile.append(position)
            self.cta_index.append(index)
            self.op_ctas.setdefault(name, []).append(number)
            self._reads(number, _expect(cta["reads"], list, "reads"))
            for write in _expect(cta["writes"], list, "writes"):
                self.write_cta.append(number)
                self.write_tensor.append(self._tensor(write["tensor"]))
                self.write_box.append(write["box"])
                self.write_proxy.append(self._proxy(write))
            for semaphore, amount in _expect(cta["posts"], list, "posts"):
                self._semaphore(semaphore)
                if not is_int(amount, 1):
                    raise Malformed(f"post of {amount!r} to semaphore {semaphore}, expected an int >= 1")
                self.posts.append((number, semaphore, amount))

    def _reads(self, cta: int, reads: Iterable[Any]) -> None:
        state = 0
        for read in reads:
            waits = _expect(read["waits"], list, "waits")
            for semaphore, target in waits:
                self._semaphore(semaphore)
                if not is_int(target):
                    raise Malformed(f"wait for {target!r} of semaphore {semaphore}, expected an int")
                self.waits.append((cta, semaphore, target))
            if waits:
                state = self._after(state, tuple(map(tuple, waits)))
            self.read_cta.append(cta)
            self.read_tensor.append(self._tensor(read["tensor"]))
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

    def _tensor(self, name: Any) -> int:
        if type(name) is not str or name not in self.tensors:
            raise Malformed(f"tensor {name!r:.60} is unknown")
        return self.tensors[name]

    def _semaphore(self, index: Any) -> None:
        if not is_int(index) or index >= len(self.targets):
            raise Malformed(f"semaphore {index!r} is unknown, expected an int below {len(self.targets)}")

    def _proxy(self, access: dict[str, Any]) -> int:
        return self.proxies.setdefault(
            _expect(access.get("proxy", "generic"), str, "proxy"), len(self.proxies)
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
        shapes = _array([[*s, *[1] * (DIMENSIONS - len(s))] for s in self.shapes]).reshape(-1, DIMENSIONS)
        dims = _array([len(s) for s in self.shapes])
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
            if not _box_fits(box, self.shapes[t]):
                rank = self.cta_tile[p]
                self.findings.add(
                    "format",
                    f"{self.tiles[rank]} rank {rank}: box {box!r} of tensor {list(self.tensors)[t]}"
                    f" {list(self.shapes[t])}, expected a range [lo, hi] or [lo, hi, stride] inside each"
                    " dimension",
                    rank,
                )
        return None

    def _known(self, ops: dict[str, Any]) -> list[Op]:
        """The ops whose kinds the format tells of."""
        out = []
        for name, op in ops.items():
            try:
                if not _declared(op):
                    out.append(self._op(name, op))
            except MALFORMED as error:
                self.findings.add("format", f"op {name!r}: {reason(error)}")
        return out

    def _split_sums(self, ops: Sequence[Op]) -> None:
        try:
            for problem in split_sums.problems(ops, dict(zip(self.tensors, self.roles, strict=True))):
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
        dtype = self.plan["tensors"][op.result.tensor]["dtype"]
        dtypes = [self.plan["tensors"][view.tensor]["dtype"] for view in op.views]
        alone = len(self.plan["ops"]) == 1
        return op.name, self._ctas_of(op.name), ways_of(target, op, dtype, dtypes, alone)

    def _ctas_of(self, op: str) -> Array:
        return _array(self.op_ctas.get(op, []))

    def _op(self, name: str, op: Any) -> Op:
        kind, tile, cluster, result = op["kind"], op["tile"], op["cluster"], op["result"]
        if kind not in KINDS:
            raise Malformed(f"kind is {kind!r}, expected one of {', '.join(KINDS)}")
        if not (isinstance(tile, list) and all(is_int(t, 1) for t in tile) and is_int(cluster, 1)):
            raise Malformed(f"tile is {tile!r} and cluster {cluster!r}, expected ints >= 1")
        cluster_split = op.get("cluster_split", "k")
        splits = ("k", "n", *(SHARED_ROWS if kind in ROWS else ()))
        if cluster_split not in splits:
            raise Malformed(
                f"cluster_split is {cluster_split!r} of a {kind}, expected one of {', '.join(splits)}"
            )
        if SHARED_ROWS.get(cluster_split, 0) not in (0, cluster):
            raise Malformed(f"cluster_split is {cluster_split!r} of a cluster of {cluster}")
        if not _finite(op["attributes"]):
            raise Malformed("an attribute is not finite")
        if self.roles[self._tensor(result)] in ("input", "weight"):
            raise Malformed(
                f"result {result} has role {self.roles[self._tensor(result)]}, expected one that is written"
            )
        views = tuple(map(self._view, _expect(op["operands"], list, "operands")))
        written = self._view(result)
        if op.get("pixels"):
            views, written = tuple(map(_rows, views)), _rows(written)
        attributes = _expect(op["attributes"], dict, "attributes")
        return Op(
            name,
            kind,
            attributes,
            views,
            written,
            tuple(tile),
            cluster,
            cluster_split,
            self.coords.get(name, []),
            self._images(views) if op.get("pixels") else None,
            _expect(op.get("pingpong", False), bool, "pingpong"),
        )

    def _images(self, views: Sequence[View]) -> tuple[Sequence[int], Sequence[int]]:
        """Of a linear of pixels, x and w as they were declared."""
        x, w = (_expect(self.plan["tensors"][v.tensor]["declared"], list, "declared") for v in views[:2])
        if not all(len(sizes) == DIMENSIONS and all(is_int(n, 1) for n in sizes) for sizes in (x, w)):
            raise Malformed(f"images {x} and filters {w} of pixels, expected four sizes each")
        return x, w

    def _view(self, operand: Any) -> View:
        if isinstance(operand, str):
            full = self.shapes[self._tensor(operand)]
            return View(operand, full, full)
        full = self.shapes[self._tensor(operand["tensor"])]
        if (
            operand.get("flatten") is True
            and len(full) == DIMENSIONS
            and set(operand) == {"tensor", "flatten"}
        ):
            return View(operand["tensor"], full, (full[0], math.prod(full[1:])), flat=True)
        if set(operand) != {"tensor", "columns"}:
            raise Malformed(
                f"operand is {operand!r}, expected a tensor, columns of one, or a spatial one flattened"
            )
        low, high = operand["columns"]
        if not (is_int(low) and is_int(high) and low < high <= full[-1]):
            raise Malformed(f"columns are {operand['columns']!r}, expected a range of [0, {full[-1]}]")
        return View(operand["tensor"], full, (*full[:-1], high - low), low)

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
        foreign = [p for name, op in ops.items() if _declared(op) for p in self.op_ctas.get(name, [])]
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
                    before[np.isin(listed.cta, ctas) & (listed.tensor == self.tensors[tensor])] = numbers[cut]
        return before, since

    def _gather(self, accesses: Sequence[tuple[Array, Access]]) -> Boxes:
        none = np.zeros((0, DIMENSIONS), np.int64)
        low, high, stride = (
            np.concatenate([none, *(getattr(a, key) for _, a in accesses)])
            for key in ("low", "high", "stride")
        )
        cta = np.concatenate([_array([]), *(ctas[a.rows] for ctas, a in accesses)])
        tensor = np.repeat(
            _array([self.tensors[a.tensor] for _, a in accesses]), _array([len(a.rows) for _, a in accesses])
        )
        return Boxes(cta, tensor, low, *ends(low, high, stride))


def _rows(view: View) -> View:
    """An image as the rows of its pixels, a filter as one row for each that it gives."""
    if len(view.shape) != DIMENSIONS:
        return view
    return replace(view, shape=(math.prod(view.shape[:-1]), view.shape[-1]))


def _declared(op: Any) -> bool:
    """An op of a kind of somebody's own, whose footprint the plan declares: there is nothing here to derive
    it from."""
    return isinstance(op, dict) and op.get("footprint") == "declared" and op.get("kind") not in KINDS


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


def _finite(value: Any) -> bool:
    """No NaN or infinity anywhere inside."""
    if isinstance(value, dict):
        return all(map(_finite, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_finite, value))
    return not isinstance(value, float) or math.isfinite(value)
