"""Generated CUDA as C++ for the emulator: its text as it is, but for each `asm` statement, which becomes a
call of what PTX says that it does.

    asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    -> { emu::ld_global<unsigned>(emu::WEAK, emu::CG, p, v); }

Every instruction is read by itself, with its qualifiers: one that says `.relaxed` where it said `.release` is
another call. Lines keep their numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilegen.errors import TargetError

ASM = re.compile(r"\basm(?:\s+volatile)?\s*\(")
LITERAL = re.compile(r'\s*"((?:[^"\\]|\\.)*)"')
OPERAND = re.compile(r'\s*"(?P<kind>[^"]+)"\s*\((?P<expression>.*)\)\s*$', re.DOTALL)
REGISTERS = re.compile(r"\.reg\s+\.\w+\s+([^;]+);")
# PTX's types as those of C++
TYPES = {
    "u8": "unsigned char", "u16": "unsigned short", "b16": "unsigned short", "u32": "unsigned",
    "b32": "unsigned", "s32": "int", "f32": "float", "u64": "unsigned long long",
    "b64": "unsigned long long", "pred": "bool",
}  # fmt: skip
SEMANTICS = {"relaxed": "RELAXED", "acquire": "ACQUIRE", "release": "RELEASE", "acq_rel": "ACQ_REL"}
SCOPES = {"cta": "OF_CTA", "cluster": "OF_CLUSTER", "gpu": "OF_GPU", "sys": "OF_SYS"}


def translated(text: str) -> str:
    """The text in C++. TargetError names an instruction that the emulator does not know, and its line."""
    out, at = list[str](), 0
    while found := ASM.search(text, at):
        if text.rfind("\n", 0, found.start()) < text.rfind("//", 0, found.start()):
            out.append(text[at : found.end()])  # in a comment
            at = found.end()
            continue
        end = _closing(text, found.end() - 1)
        statement = text[found.end() : end]
        try:
            call = _call(statement)
        except KeyError as error:
            line = text.count("\n", 0, found.start()) + 1
            raise TargetError(
                f"the emulator does not know {error.args[0]!r}, line {line} of the kernel"
            ) from None
        out += [text[at : found.start()], call, "\n" * statement.count("\n")]
        at = end + 1
        if text[at : at + 1] == ";":
            at += 1
    return _plain("".join([*out, text[at:]]))


def _plain(text: str) -> str:
    """What is no asm: shared memory, and the tile that a role begins with."""
    text = re.sub(
        r"extern __shared__ (?:__align__\(\d+\) )?unsigned char memory\[\];",
        "unsigned char* const memory = emu::place.shared;",
        text,
    )
    return re.sub(r"switch \(t\.op\) \{", "emu::tile(t.op, t.c); switch (t.op) {", text)


# --- statements ---------------------------------------------------------------------------------------------


def _closing(text: str, opening: int) -> int:
    """Where the bracket that opens at `opening` closes."""
    depth, at = 0, opening
    while at < len(text):
        c = text[at]
        literal = LITERAL.match(text, at)
        at = literal.end() - 1 if literal else at
        depth += (c == "(") - (c == ")")
        if depth == 0:
            return at
        at += 1
    line = text.count("\n", 0, opening) + 1
    raise TargetError(f"the asm statement in line {line} of the kernel has no end")


def _split(text: str, by: str) -> list[str]:
    """Parts between separators that stand outside of brackets and quotes."""
    parts, depth, start, at = list[str](), 0, 0, 0
    while at < len(text):
        c = text[at]
        if c == '"':
            at = LITERAL.match(text, at).end() - 1  # type: ignore[union-attr]
        depth += (c in "([{") - (c in ")]}")
        if c == by and depth == 0:
            parts.append(text[start:at])
            start = at + 1
        at += 1
    return [*parts, text[start:]]


def _call(statement: str) -> str:
    ptx, at = "", 0
    while literal := LITERAL.match(statement, at):
        ptx += literal[1].replace("\\n", "\n")
        at = literal.end()
    operands = list[str]()
    for part in _split(statement[at:], ":")[1:3]:
        for one in _split(part, ","):
            if one.strip():
                found = OPERAND.match(one)
                assert found is not None, one
                operands.append(" ".join(found["expression"].split()))
    if not ptx.strip():
        return "{}"
    for names in REGISTERS.findall(ptx):  # the statement's own, which must not hide what its operands name
        for name in names.split(","):
            ptx = re.sub(rf"\b{name.strip()}\b(?=[^.:]|$)", f"ptx_{name.strip()}", ptx)
    instructions = re.split(r"[;\n]", ptx.strip().strip("{}"))
    calls = [_instruction(i, operands) for i in instructions if i.strip(" {}\n")]
    return f"{{ {' '.join(c for c in calls if c)} }}"


@dataclass(frozen=True)
class Instruction:
    """opcode: its parts between dots; operands: C++ expressions, lists in braces as tuples of them."""

    opcode: tuple[str, ...]
    operands: tuple[str | tuple[str, ...], ...]

    def has(self, part: str) -> bool:
        return part in self.opcode

    def one(self, n: int) -> str:
        found = self.operands[n]
        assert isinstance(found, str)
        return found

    def many(self, n: int) -> tuple[str, ...]:
        found = self.operands[n]
        return (found,) if isinstance(found, str) else found

    @property
    def type(self) -> str:
        return TYPES[self.opcode[-1]]

    def semantics(self, unsaid: str = "WEAK") -> str:
        """unsaid: what is meant where nothing is said."""
        return f"emu::{next((SEMANTICS[p] for p in self.opcode if p in SEMANTICS), unsaid)}"

    @property
    def order(self) -> str:
        """Semantics and scope, the GPU where none is said."""
        scope = next((SCOPES[p] for p in self.opcode if p in SCOPES), "OF_GPU")
        return f"{self.semantics()}, emu::{scope}"

    @property
    def cache(self) -> str:
        return "emu::NC" if self.has("nc") else "emu::CG" if self.has("cg") else "emu::THROUGH_L1"


def _instruction(text: str, operands: Sequence[str]) -> str:
    """One instruction as a statement of C++."""
    text = text.strip()
    guard = re.match(r"@(!?\w+)\s+", text)
    if guard:
        return f"if ({guard[1]}) {_instruction(text[guard.end() :], operands)}"
    if text.startswith(".reg"):
        _, kind, names = text.split(None, 2)
        return f"[[maybe_unused]] {TYPES[kind.strip('.')]} {names};"
    name, _, rest = text.partition(" ")
    given = tuple(_operand(o, operands) for o in _split(rest, ",") if o.strip())
    if name == "mov.u64" and "globaltimer" in rest:
        name = "globaltimer"
    if name == "mov.u32" and "%%" in rest:
        name = rest.partition("%%")[2]
    found = Instruction(tuple(p for p in re.split(r"\.|::", name) if p), given)
    emitter = CALLS.get(found.opcode[0])
    if emitter is None:
        raise KeyError(name)
    return f"{emitter(found)};"


def _operand(text: str, operands: Sequence[str]) -> str | tuple[str, ...]:
    text = text.strip()
    if text.startswith("[") and "{" in text:  # a map and its coordinates
        name, _, rest = text.strip("[] ").partition(",")
        return (_named(name, operands), *(_named(p, operands) for p in rest.strip(" {}").split(",")))
    if text.startswith("{"):
        return tuple(_named(p, operands) for p in text.strip("{} ").split(","))
    return _named(text.strip("[] "), operands)


def _named(text: str, operands: Sequence[str]) -> str:
    """A register of the statement, or what stands there."""
    text = text.strip()
    return f"({operands[int(text[1:])]})" if re.fullmatch(r"%\d+", text) else text


# --- instructions -------------------------------------------------------------------------------------------


def _list(parts: Sequence[str]) -> str:
    return ", ".join(parts)


def _load(i: Instruction) -> str:
    if i.has("shared"):
        return f"emu::ld_shared<{i.type}>({i.one(1)}, {_list(i.many(0))})"
    return f"emu::ld_global<{i.type}>({i.order}, {i.cache}, {i.one(1)}, {_list(i.many(0))})"


def _store(i: Instruction) -> str:
    if i.has("async"):
        return f"emu::st_async({i.one(0)}, {i.one(2)}, {_list(i.many(1))})"
    if i.has("shared"):
        return f"emu::st_shared<{i.type}>({i.one(0)}, {_list(i.many(1))})"
    return f"emu::st_global<{i.type}>({i.order}, {i.one(0)}, {_list(i.many(1))})"


def _add(i: Instruction) -> str:
    if not i.has("add") or i.opcode[-1] != "u32":
        raise KeyError(".".join(i.opcode))
    if i.opcode[0] == "red":
        return f"emu::add_global({i.order}, {i.one(0)}, {i.one(1)})"
    return f"{i.one(0)} = emu::add_global({i.order}, {i.one(1)}, {i.one(2)})"


def _mbarrier(i: Instruction) -> str:
    match i.opcode[1]:
        case "init":
            return f"emu::barrier_init({i.one(0)}, {i.one(1)})"
        case "try_wait" | "test_wait":
            semantics, may_hold = i.semantics("ACQUIRE"), str(i.has("try_wait")).lower()
            return f"{i.one(0)} = emu::barrier_wait({semantics}, {i.one(1)}, {i.one(2)}, {may_hold})"
        case "arrive":
            # release and the CTA's scope are what is meant where nothing is said
            said = i.opcode[: i.opcode.index("shared")]
            scope = next((f"emu::{SCOPES[p]}" for p in said if p in SCOPES), "emu::OF_CTA")
            size = i.one(2) if i.has("expect_tx") else "0"
            return f"emu::barrier_arrive({i.semantics('RELEASE')}, {scope}, {i.one(1)}, {size})"
    raise KeyError(".".join(i.opcode))


def _copy(i: Instruction) -> str:
    o = i.opcode
    match o[1:]:
        case ("async", "bulk", "tensor", _, "global", *_):
            map_, *at = i.many(0)
            return f"emu::tensor_store({map_}, {i.one(1)}, {_list(at)})"
        case ("async", "bulk", "tensor", *_):
            map_, *at = i.many(1)
            patches = i.has("im2col")  # the pixel of the filter stands before the CTAs
            at += i.many(3) if patches else ()
            ctas = i.one(3 + patches) if i.has("multicast") else "0"
            return f"emu::tensor_load({i.one(0)}, {map_}, {i.one(2)}, {ctas}, {_list(at)})"
        case ("async", "bulk", "commit_group"):
            return "emu::bulk_commit()"
        case ("async", "bulk", "wait_group", *_):
            return f"emu::bulk_wait({i.one(0)}, {str(i.has('read')).lower()})"
        case ("async", "commit_group"):
            return "emu::copies_commit()"
        case ("async", "wait_group"):
            return f"emu::copies_wait({i.one(0)})"
        case ("async", "wait_all"):
            return "emu::copies_commit(); emu::copies_wait(0)"
        case ("async", *_):
            return f"emu::copy_async({i.one(0)}, {i.one(1)}, {i.one(3)})"
    raise KeyError(".".join(o))


def _fence(i: Instruction) -> str:
    match i.opcode[1:]:
        case ("mbarrier_init", "release", "cluster"):
            return "emu::fence_mbarrier_init()"
        case ("proxy", "async", "global"):
            return "emu::fence_async(true)"
        case ("proxy", "async", "shared", *_):
            return "emu::fence_async(false)"
        case ("proxy", "async"):
            return "emu::fence_async(true); emu::fence_async(false)"
    raise KeyError(".".join(i.opcode))


def _barrier(i: Instruction) -> str:
    match i.opcode[1:]:
        case ("cluster", "arrive", *_):
            semantics = "emu::RELAXED" if i.has("relaxed") else "emu::RELEASE"
            return f"emu::cluster_arrive({semantics})"
        case ("cluster", "wait", "acquire"):
            return "emu::cluster_wait()"
        case ("cta", kind, *_):
            return f"emu::named_barrier({i.one(0)}, {i.one(1)}, {str(kind == 'sync').lower()})"
    raise KeyError(".".join(i.opcode))


def _wgmma(i: Instruction) -> str:
    match i.opcode[1]:
        case "fence":
            return "emu::mma_fence()"
        case "commit_group":
            return "emu::mma_commit()"
        case "wait_group":
            return f"emu::mma_wait({i.one(0)})"
    shape = next(p for p in i.opcode if re.fullmatch(r"m64n\d+k(16|32)", p))
    wide, _, summed = shape[4:].partition("k")
    columns, kind = int(wide), i.opcode[-1]
    if (summed, kind) not in {("16", "bf16"), ("16", "f16"), ("32", "e4m3")}:
        raise KeyError(".".join(i.opcode))
    sums, a, b = i.many(0), i.operands[1], i.one(2)
    if len(sums) != columns // 2:
        raise KeyError(f"{'.'.join(i.opcode)} of {len(sums)} registers")
    scale, *flags = (i.one(n) for n in range(3, len(i.operands)))
    turned = flags[2:]  # whether operands lie across: of two bytes a number alone
    across = turned[-1:] == ["1"]
    if isinstance(a, str):
        by_rows = not turned if kind == "e4m3" else len(turned) == 2 and turned[0] == "0"
    else:
        by_rows = len(turned) == 1
    if scale != "1" or flags[:2] != ["1", "1"] or not by_rows:
        raise KeyError(f"{'.'.join(i.opcode)} with {', '.join([scale, *flags])}")
    left, registers = (a, "nullptr") if isinstance(a, str) else ("0", "emu_a")
    held = "" if isinstance(a, str) else f"const unsigned emu_a[] = {{{_list(a)}}}; "
    return (
        f"{held}emu::warpgroup_mma({columns}, emu::{kind.upper()}, &{sums[0]}, {columns // 2}, {left},"
        f" {registers}, {b},"
        f" {str(across).lower()})"
    )


def _mma(i: Instruction) -> str:
    _, _, _, shape, _, _, _, left, right, _ = i.opcode
    kinds = {("m16n8k16", "bf16"): "BF16", ("m16n8k16", "f16"): "F16", ("m16n8k8", "tf32"): "TF32"}
    if left != right or (shape, left) not in kinds:
        raise KeyError(".".join(i.opcode))
    d, a, b = (i.many(n) for n in range(3))
    return (
        f"const unsigned emu_a[] = {{{_list(a)}}}, emu_b[] = {{{_list(b)}}};"
        f" emu::warp_mma(emu::{kinds[shape, left]}, &{d[0]}, emu_a, emu_b)"
    )


def _move(i: Instruction) -> str:
    low, high = i.many(0)
    return f"{low} = (unsigned short){i.one(1)}, {high} = (unsigned short)({i.one(1)} >> 16)"


def _convert(i: Instruction) -> str:
    match i.opcode[1:]:
        case ("rn", "bf16x2", "f32"):
            return f"{i.one(0)} = emu::two_bf16({i.one(1)}, {i.one(2)})"
        case ("rn", "f16x2", "f32"):
            return f"{i.one(0)} = emu::two_f16({i.one(1)}, {i.one(2)})"
        case ("f32", "f16"):
            return f"{i.one(0)} = emu::of_f16({i.one(1)})"
        case ("rna", "tf32", "f32"):
            return f"{i.one(0)} = emu::tf32({i.one(1)})"
    raise KeyError(".".join(i.opcode))


def _fused(i: Instruction) -> str:
    """A multiply-add of two numbers each."""
    if i.opcode[1:] not in (("rn", "bf16x2"), ("rn", "f16x2")):
        raise KeyError(".".join(i.opcode))
    a, b, c = (i.one(n) for n in (1, 2, 3))
    return f"{i.one(0)} = emu::fma_{i.opcode[2]}({a}, {b}, {c})"


def _launch(i: Instruction) -> str:
    return {"launch_dependents": "emu::dependents()", "wait": "emu::depend()"}[i.opcode[1]]


CALLS: dict[str, Callable[[Instruction], str]] = {
    "ld": _load,
    "st": _store,
    "red": _add,
    "atom": _add,
    "mbarrier": _mbarrier,
    "cp": _copy,
    "fence": _fence,
    "barrier": _barrier,
    "wgmma": _wgmma,
    "mma": _mma,
    "fma": _fused,
    "mov": _move,
    "cvt": _convert,
    "griddepcontrol": _launch,
    "stmatrix": lambda i: (
        f"emu::stmatrix<{str(i.has('trans')).lower()}>({i.one(0)}, {_list(i.many(1))})"
    ),
    "ldmatrix": lambda i: (
        f"emu::ldmatrix<{str(i.has('trans')).lower()}>({i.one(1)}, {_list(i.many(0))})"
    ),
    "movmatrix": lambda i: f"{i.one(0)} = emu::movmatrix({i.one(1)})",
    "elect": lambda i: f"{i.one(0).partition('|')[2]} = emu::elected()",
    "selp": lambda i: f"{i.one(0)} = {i.one(3)} ? {i.one(1)} : {i.one(2)}",
    "setp": lambda i: f"{i.one(0)} = {i.one(1)} != {i.one(2)}",
    "mapa": lambda i: f"{i.one(0)} = emu::map_address({i.one(1)}, {i.one(2)})",
    "cluster_ctarank": lambda i: f"{i.one(0)} = emu::place.rank",
    "globaltimer": lambda i: f"{i.one(0)} = emu::nanoseconds()",
    "smid": lambda i: f"{i.one(0)} = emu::sm()",
    "clock": lambda i: f"{i.one(0)} = (unsigned)emu::nanoseconds()",
    "trap": lambda i: "emu::trap()",
    "ex2": lambda i: f"{i.one(0)} = emu::flushed(exp2f({i.one(1)}))",
    "rcp": lambda i: f"{i.one(0)} = emu::flushed(1.0f / emu::flushed({i.one(1)}))",
    "tanh": lambda i: f"{i.one(0)} = tanhf({i.one(1)})",
    # nothing that a result depends on
    "createpolicy": lambda i: f"{i.one(0)} = 0",
    "prefetch": lambda i: "",
    "setmaxnreg": lambda i: "",
    "nanosleep": lambda i: "",
}
