"""What a plan's ops compute is what the program's calls say: the same terms over the same arguments.

Each tensor is worked out twice as a term over the program's arguments: once from the calls, once from the
ops. A plan is refused where the two differ for an output or a state: in an expression, a scale, a dilation,
an operand. The graph rewrites are undone by what each says of itself:

    linear(x, w) with the epilogue f(acc0, e0)    is f(linear(x, w), e0)
    columns a..b of f(x, y)                       are f(columns a..b of x, columns a..b of y)
    linear(x, w) that norms its rows              is linear(rms_norm(x, v), w)
    linear(pad(x), pad(w))                        is linear(x, w), as many zeros behind both
    linear(x, w) of pixels                        is conv2d(x, w) of its stride, padding and dilation
    matmul(x, w), one w for all, transposed       is linear(x, w)
    acc0 + partial sums                           is acc0 (tilegen.proof.split_sums: the ranges of k fill it)
    append(cache, x) that turns its rows          is append(cache, rope(x))
    attention(q, caches, k, v), rows forwarded    is attention(rope(q), append(k_cache, rope(k)), …)
    combine(attention over splits of the keys)    is attention
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tilegen.proof.footprint.frame import Malformed

Environment = dict[str, int]  # tensor -> its term
_SIGNS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
_SUMS = ("groups", "k_range", "norm_eps")  # how a linear's sum is taken, not what it is
PAIR = "float8_e4m3fn"  # of which an element is two numbers
WEIGHTS = "int8"  # of a linear, beside rows of the result's type
_OF_ONE_PIXEL = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1]}  # of a convolution, unless it says
_OF_COLUMNS = ("topk",)  # kinds whose results are numbers of columns
_KEYS = ("splits", "forwarded", "theta")  # likewise of an attention


def problems(plan: Mapping[str, Any]) -> Iterator[str]:
    """What the ops of an expanded plan compute otherwise than its calls say."""
    yield from _other_types(plan)
    terms = _Terms(plan["tensors"])
    given = {
        name: terms.of("argument", name)
        for name, tensor in plan["tensors"].items()
        if tensor["role"] in ("input", "weight", "state")
    }
    said, done = dict(given), dict(given)
    for call in plan["calls"]:
        said[call["result"]] = terms.call(said, call)
    for op in plan["ops"].values():
        done[op["result"]] = terms.op(done, op, plan["tensors"][op["result"]])
    if len(plan["returns"]) != len(plan["outputs"]):
        yield f"the plan gives {len(plan['outputs'])} outputs, the program {len(plan['returns'])}"
    for name in plan["outputs"]:
        if (role := plan["tensors"][name]["role"]) in ("intermediate", "partial"):
            yield f"{name} is an output, and its tensor {role}: nobody would see what is written"
    states = [name for name, tensor in plan["tensors"].items() if tensor["role"] == "state"]
    for name, returned in (
        *zip(plan["outputs"], plan["returns"], strict=False),
        *((state, state) for state in states),
    ):
        if done[name] != said[returned]:
            yield f"{name} is not what the program says: {terms.apart(done[name], said[returned])}"


def _other_types(plan: Mapping[str, Any]) -> Iterator[str]:
    """Results whose type is not that of what they are made of: all of one type; partial results are float32,
    numbers of columns int32. A linear of pairs gives any other type, one by int8 weights that of its rows;
    what an epilogue reads by rows or columns, and tables of angles, may be float32."""
    tensors = plan["tensors"]
    for name, op in plan["ops"].items():
        result = tensors[op["result"]]
        read = [tensors[o if isinstance(o, str) else o["tensor"]] for o in op["operands"]]
        if op["kind"] == "attention":
            yield from _other_types_beside(name, op["attributes"], read)
        types = _types_read(op, read, result)
        expected = {"float32"} if result["role"] == "partial" else types or {result["dtype"]}
        expected = {"int32"} if op["kind"] in _OF_COLUMNS else expected
        if {result["dtype"]} != expected:
            yield f"{name} gives {op['result']} as {result['dtype']}, expected {', '.join(sorted(expected))}"


def _other_types_beside(name: str, attributes: Mapping[str, Any], read: list[Any]) -> Iterator[str]:
    """Of what an attention reads beside queries, keys and values, which is taken out of `read`: slopes are
    float32, a bias is float32 or like the queries."""
    at = 3 + bool(attributes.get("lengths"))
    for key, word in (("alibi", "slopes"), ("bias", "a bias")):
        if not attributes.get(key):
            continue
        given = read.pop(at)["dtype"]
        allowed = ["float32"] if key == "alibi" else [read[0]["dtype"], "float32"]
        if given not in allowed:
            yield f"{name} reads {word} of {given}, expected {' or '.join(dict.fromkeys(allowed))}"


def _types_read(op: Mapping[str, Any], read: list[Any], result: Mapping[str, Any]) -> set[str]:
    """Of what an op reads, but for what may have another type than its result."""
    epilogue = op["attributes"].get("epilogue") or {"operands": []}
    spread = {entry["index"] for entry in epilogue["operands"] if entry["as"] != "elements"}
    spread |= {1, 2} if op["kind"] == "rotary" else set()
    linear = op["kind"] == "linear" or (op["kind"] == "matmul" and _is_linear(op["attributes"]))
    aside = 1 if linear and read[1]["dtype"] == WEIGHTS else None
    types = {
        t["dtype"]
        for n, t in enumerate(read)
        if n != aside
        and t["role"] != "partial"
        and t["dtype"] != "int32"
        and not (n in spread and t["dtype"] == "float32")
    }
    pairs = op["kind"] == "linear" and all(t["dtype"] == PAIR for t in read[:2])
    return types - {PAIR} if pairs and result["dtype"] != PAIR else types


class _Terms:
    """Terms, each kept once: a number stands for (what it is, its parts), and parts are numbers of terms."""

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self.tensors = tensors
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._terms: list[tuple[Any, ...]] = []
        self.partial = self.of("partial sums")

    def of(self, what: str, *parts: Any) -> int:
        term = (what, *parts)
        if term not in self._numbers:
            self._numbers[term] = len(self._terms)
            self._terms.append(term)
        return self._numbers[term]

    # --- calls and ops --------------------------------------------------------------------------------------

    def call(self, known: Environment, call: Mapping[str, Any]) -> int:
        views = [self._view(known, o) for o in call["operands"]]
        if call["kind"] != "pointwise":
            return self._sum(call["kind"], call["attributes"], views)
        leaves = map(self._leaf, views, call["attributes"]["how"])
        return self._value(call["attributes"]["expression"], {f"e{n}": x for n, x in enumerate(leaves)})

    def op(self, known: Environment, op: Mapping[str, Any], result: Mapping[str, Any]) -> int:
        attributes = dict(op["attributes"])
        epilogue = attributes.pop("epilogue", None) or {"expression": "acc0", "operands": []}
        views = [self._view(known, o) for o in op["operands"]]
        late = {entry["index"]: entry["as"] for entry in epilogue["operands"]}
        names = {
            f"e{n}": self._leaf(views[entry["index"]], entry["as"])
            for n, entry in enumerate(epilogue["operands"])
        }
        if op["kind"] != "pointwise":
            own = [v for n, v in enumerate(views) if n not in late]
            made = self._pixels(op, own) if op.get("pixels") else self._sum(op["kind"], attributes, own)
            if op["kind"] == "linear" and result["role"] == "partial":
                return self.partial
            groups = attributes.get("groups", 1) if op["kind"] == "linear" else 1
            width = result["shape"][-1]
            halves = (self._columns(made, g * width, (g + 1) * width) for g in range(2))
            names |= {"acc0": made} if groups == 1 else {f"acc{g}": half for g, half in enumerate(halves)}
        return self._value(epilogue["expression"], names)

    def _sum(self, kind: str, attributes: Mapping[str, Any], operands: Sequence[int]) -> int:
        match kind:
            case "linear":
                return self._linear(attributes, operands)
            case "matmul" if _is_linear(attributes):
                return self.of("linear", (), *self._unpadded(*operands))
            case "pad" if not attributes["behind"]:
                return operands[0]
            case "append":
                return self._append(attributes, operands)
            case "attention":
                return self._attention(attributes, operands)
            case "combine":
                return self._combined(attributes, operands[0])
        return self.of(kind, _frozen(attributes), *operands)

    def _linear(self, attributes: Mapping[str, Any], operands: Sequence[int]) -> int:
        x, w, *others = operands
        if attributes.get("norm_eps") is not None:
            v, *others = others
            x = self.of("rms_norm", _frozen({"eps": attributes["norm_eps"]}), x, v)
        if others:
            raise Malformed("a linear has operands that nothing reads")
        return self.of("linear", _frozen(attributes, _SUMS), *self._unpadded(x, w))

    def _unpadded(self, x: int, w: int) -> tuple[int, int]:
        """Factors of a sum, without as many zeros behind each."""
        (what, *mine), (other, *theirs) = self._terms[x], self._terms[w]
        if what == other == "pad" and mine[0] == theirs[0]:
            return self._unpadded(mine[1], theirs[1])
        return x, w

    def _pixels(self, op: Mapping[str, Any], operands: Sequence[int]) -> int:
        if op["kind"] != "linear" or op["attributes"].get("groups") != 1 or len(operands) != 2:
            raise Malformed(f"a {op['kind']} of pixels, expected a linear of x and w")
        for n, what in enumerate(("images", "filters")):
            operand = op["operands"][n]
            name = operand if isinstance(operand, str) else operand["tensor"]
            declared = self.tensors[name]["declared"]
            if len(declared) != 4:
                raise Malformed(f"a linear of pixels with {what} {declared}, expected four sizes")
        each = {key: op["attributes"].get(key, usual) for key, usual in _OF_ONE_PIXEL.items()}
        return self.of("conv2d", _frozen(each), *operands)

    def _append(self, attributes: Mapping[str, Any], operands: Sequence[int]) -> int:
        cache, x, *position = operands
        if attributes.get("theta") is not None:
            x = self._turned(x, attributes["head_dim"], attributes["seq"], attributes["theta"], position)
        return self.of("append", _frozen(attributes, ("theta", "head_dim")), cache, x, *position)

    def _attention(self, attributes: Mapping[str, Any], operands: Sequence[int]) -> int:
        masks = sum(bool(attributes.get(key)) for key in ("lengths", "alibi", "bias"))
        q, k, v = operands[:3]
        given, position = operands[3 : 3 + masks], operands[3 + masks :]
        if attributes.get("forwarded"):
            *position, new_k, new_v = position
            if attributes.get("theta") is not None:
                turn = (attributes["head_dim"], attributes["q_len"], attributes["theta"], position)
                q, new_k = self._turned(q, *turn), self._turned(new_k, *turn)
            written = {
                "at": -1,
                "batch": attributes["batch"],
                "max_len": attributes["k_len"],
                "seq": attributes["q_len"],
            }
            k, v = (self.of("append", _frozen(written), *new, *position) for new in ((k, new_k), (v, new_v)))
        made = self.of("attention", _frozen(attributes, _KEYS), q, k, v, *given, *position)
        splits = attributes.get("splits")
        if splits is None:
            return made
        return self.of("splits", splits, attributes["heads"], attributes["head_dim"], made)

    def _combined(self, attributes: Mapping[str, Any], parts: int) -> int:
        what, *cut, made = self._terms[parts]
        if what != "splits" or cut != [attributes[key] for key in ("splits", "heads", "head_dim")]:
            raise Malformed("a combine reads what is not split as it says")
        return int(made)

    def _turned(self, x: int, head_dim: int, seq: int, theta: float, position: Sequence[int]) -> int:
        return self.of("rope", _frozen({"head_dim": head_dim, "seq": seq, "theta": theta}), x, *position)

    # --- operands and expressions ---------------------------------------------------------------------------

    def _view(self, known: Environment, operand: Any) -> int:
        if isinstance(operand, str):
            return known[operand]
        value = known[operand["tensor"]]
        if operand.get("flatten"):
            value = self.of("flatten", value)
        return self._columns(value, *operand["columns"]) if operand.get("columns") else value

    def _columns(self, value: int, low: int, high: int) -> int:
        what, *parts = self._terms[value]
        match what:
            case "map":
                function, *terms = parts
                return self.of("map", function, *(self._columns(t, low, high) for t in terms))
            case "row":
                return self.of("row", self._columns(parts[0], low, high))
            case "image":
                return self.of("image", self._columns(parts[0], low, high))
            case "column":
                return value
            case "columns":
                return self.of("columns", parts[0], parts[1] + low, parts[1] + high)
            case "constant" | "partial sums":
                return value
        return self.of("columns", value, low, high)

    def _leaf(self, value: int, how: str) -> int:
        of = {"columns": "row", "rows": "column", "images": "image"}
        return self.of(of[how], value) if how != "elements" else value

    def _value(self, expression: str, names: Mapping[str, int]) -> int:
        return self._node(ast.parse(expression, mode="eval").body, names)

    def _node(self, node: ast.expr, names: Mapping[str, int]) -> int:
        match node:
            case ast.Name(id=name):
                return names[name]
            case ast.Constant(value=number):
                return self.of("constant", float(number))  # type: ignore[arg-type]
            case ast.UnaryOp(op=ast.USub(), operand=x):
                return self.of("map", "-", self._node(x, names))
            case ast.Call(func=ast.Name(id=function), args=args):
                return self.of("map", function, *(self._node(a, names) for a in args))
            case ast.BinOp(left=left, op=sign, right=right):
                terms = [self._node(left, names), self._node(right, names)]
                if isinstance(sign, ast.Add) and self.partial in terms:
                    terms.remove(self.partial)
                    return terms[0]
                return self.of("map", _SIGNS[type(sign)], *terms)
        raise Malformed(f"an expression holds {ast.unparse(node)!r}")

    # --- where two terms part -------------------------------------------------------------------------------

    def apart(self, a: int, b: int) -> str:
        """The first place at which two terms differ, from their roots on."""
        while True:
            (what, *mine), (other, *theirs) = self._terms[a], self._terms[b]
            first = next((n for n, (x, y) in enumerate(zip(mine, theirs, strict=False)) if x != y), None)
            if what != other or len(mine) != len(theirs) or first is None:
                return f"{self.text(a)} where the program has {self.text(b)}"
            x, y = mine[first], theirs[first]
            if type(x) is not int or what in ("columns", "splits") and first:
                how = "" if what == "map" else f"{what} with "
                return f"{how}{x} where the program has {y}"
            a, b = x, y

    def text(self, number: int, depth: int = 3) -> str:
        what, *parts = self._terms[number]
        if not depth:
            return "…"
        match what:
            case "argument" | "constant":
                return str(parts[0])
            case "columns":
                return f"{self.text(parts[0], depth - 1)}[:, {parts[1]}:{parts[2]}]"
            case "splits":
                return self.text(parts[-1], depth)
        shown = [self.text(p, depth - 1) for p in parts if type(p) is int]
        return f"{parts[0] if what == 'map' else what}({', '.join(shown)})"


def _is_linear(attributes: Mapping[str, Any]) -> bool:
    """Whether a matmul is x wᵀ of one w for all batches; the shapes of both say its sizes."""
    return (attributes["b_batch"], attributes["transpose_a"], attributes["transpose_b"]) == (1, False, True)


def _frozen(attributes: Mapping[str, Any], without: Sequence[str] = ()) -> tuple[tuple[str, Any], ...]:
    """Attributes in the order of their names, lists as tuples."""
    return tuple((key, _tuples(value)) for key, value in sorted(attributes.items()) if key not in without)


def _tuples(value: Any) -> Any:
    """Lists, and lists in these, as tuples."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
