"""A generated kernel as people read it: only what it uses, and no line over 120 characters.

    text -> definitions -> those that the kernel reaches -> lines that fit

Templates hold all that a kernel may need. Which of it one kernel calls follows from its text: a definition
stays where its name stands in another one that stays. Names are looked at, not overloads, so that a name too
many may stay, never one too few.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

WIDTH = 120
FULL = 90  # characters of a line of a comment from which on the next one goes on with its sentence
HEADING = re.compile(r"// -{3,} ")
NAME = re.compile(r"[A-Za-z_]\w*")
OPERATORS = ("&& ", "|| ", "? ", ": ", "+ ", "| ", "<- ")
STRING = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)\'')
ATTRIBUTE = re.compile(
    r"(?:__(?:launch_bounds|cluster_dims|align)__|alignas)\s*\([^)]*\)|\[\[.*?\]\]|extern \"C\""
)
CALLED = re.compile(r"([A-Za-z_]\w*|operator[^\s(]+)\s*\(")
ENUM = re.compile(r"enum(?:\s+(\w+))?\s*\{(.*)\}", re.S)
FUNCTION = re.compile(r"(\s*[^{]*\)(?: const)? \{) (.*) \}$")  # in one line
VALUE = re.compile(r"([A-Za-z_]\w*)\s*(?:\[[^\]]*\]\s*)*(?:=|;)")


def tidied(text: str, root: str) -> str:
    """The text with what `root` reaches, each line at most WIDTH characters long."""
    return fitted(pruned(text, root))


# --- definitions --------------------------------------------------------------------------------------------


@lru_cache(maxsize=1 << 15)  # kernels are made of the same lines
def code_of(line: str) -> str:
    """A line without its comment and what stands in quotes."""
    return STRING.sub('""', line).partition("//")[0]


@dataclass(frozen=True)
class Piece:
    """A definition with the comment above it, a comment of its own, or blank lines. depth: of what it stands
    in."""

    lines: tuple[str, ...]
    comment: int = 0  # of these lines

    @cached_property
    def code(self) -> str:
        return "\n".join(map(code_of, self.lines[self.comment :]))

    @cached_property
    def is_code(self) -> bool:
        return bool(self.code.strip())

    @cached_property
    def words(self) -> frozenset[str]:
        return frozenset(NAME.findall(self.code))

    @cached_property
    def inner(self) -> tuple[Piece, ...]:
        """What stands in a struct of several lines."""
        struct = self.code.lstrip().startswith("struct") and len(self.lines) > self.comment + 2
        return tuple(pieces(self.lines[self.comment + 1 : -1])) if struct else ()

    @property
    def has_members(self) -> bool:
        return bool(self.inner or ENUM.match(self.code.strip()))

    @cached_property
    def uses(self) -> frozenset[str]:
        """The names of others that stand in it."""
        if self.inner:
            return (
                frozenset(NAME.findall(code_of(self.lines[self.comment]))).union(
                    *(p.uses for p in self.inner)
                )
                - self.names
            )
        return self.words - self.names

    @cached_property
    def names(self) -> frozenset[str]:
        """What it defines; empty where it is to stay whoever reaches it, as #if and data of a struct are."""
        code = ATTRIBUTE.sub("", self.code).strip()
        if code.startswith("#define"):
            return frozenset(NAME.findall(code)[1:2])
        if code.startswith("#"):
            return frozenset()
        enum = ENUM.match(code)
        if enum:
            return frozenset({*filter(None, [enum[1]]), *(NAME.findall(c)[0] for c in _constants(enum[2]))})
        code = re.sub(r"^template\s*<.*?>\s*(?=[A-Za-z_])", "", code, flags=re.S)
        if code.startswith(("struct", "using")):
            return frozenset(NAME.findall(code)[1:2])
        head = code.partition("{")[0]
        called = CALLED.search(head)
        if called and "=" not in head[: called.start()]:
            return frozenset({called[1]})
        value = VALUE.search(code)
        return frozenset({value[1]}) if value else frozenset()

    @property
    def is_function(self) -> bool:
        head = ATTRIBUTE.sub("", self.code).partition("{")
        return bool(head[1]) and "(" in head[0] and "=" not in head[0].partition("(")[0]


def _constants(body: str) -> list[str]:
    return [c for c in (part.strip() for part in body.split(",")) if c]


def pieces(lines: Sequence[str]) -> Iterator[Piece]:
    """The definitions of a file, or of a struct's body, one after the other."""
    held: list[str] = []  # a comment, perhaps of the definition that follows
    n = 0
    while n < len(lines):
        line = lines[n]
        if not line.strip() or HEADING.match(line):
            if held:
                yield _piece(tuple(held), len(held))
            held = []
            yield _piece((line,), 1)
            n += 1
        elif line.lstrip().startswith("//"):
            held.append(line)
            n += 1
        else:
            end = n + (1 if line.startswith("#") else _length(lines[n:]))
            yield _piece((*held, *lines[n:end]), len(held))
            held, n = [], end
    if held:
        yield _piece(tuple(held), len(held))


@lru_cache(maxsize=1 << 12)
def _piece(lines: tuple[str, ...], comment: int) -> Piece:
    return Piece(lines, comment)


def _length(lines: Sequence[str]) -> int:
    """Lines of the definition that begins here: until all brackets are closed behind a brace or a
    semicolon."""
    depth = 0
    for n, line in enumerate(lines, 1):
        opened, ends = _brackets(line)
        depth += opened
        if depth <= 0 and ends:
            return n
    return len(lines)


@lru_cache(maxsize=1 << 15)
def _brackets(line: str) -> tuple[int, bool]:
    """How many more brackets it opens than it closes; whether a definition may end with it."""
    code = "" if line.startswith("#") else code_of(line)
    opened = sum(code.count(c) for c in "({[") - sum(code.count(c) for c in ")}]")
    return opened, code.rstrip().endswith((";", "}", ":"))


# --- what is used -------------------------------------------------------------------------------------------


def pruned(text: str, root: str) -> str:
    """The text without definitions that `root` does not reach, and without members and constants that nobody
    names."""
    found = list(pieces(text.splitlines()))
    while True:
        reached = [p for p, stays in zip(found, _reached(found, root), strict=True) if stays]
        users = Counter(word for p in reached if p.is_code for word in p.uses)
        slim = [_without_members(p, _others(users, p)) if p.has_members else p for p in reached]
        if slim == found:
            break
        found = slim
    return "\n".join(line for p in _with_headings(found) for line in p.lines).strip("\n") + "\n"


def _reached(found: Sequence[Piece], root: str) -> list[bool]:
    by_name: dict[str, list[Piece]] = {}
    for p in found:
        for name in p.names if p.is_code else ():
            by_name.setdefault(name, []).append(p)
    fixed = [p for p in found if p.is_code and not p.names]
    seen: set[int] = set()
    todo = [*by_name.get(root, ()), *fixed]
    while todo:
        p = todo.pop()
        if id(p) not in seen:
            seen.add(id(p))
            todo += [q for word in p.uses for q in by_name.get(word, ())]
    return [not p.is_code or id(p) in seen for p in found]


def _others(users: Counter[str], piece: Piece) -> set[str]:
    """The names that other definitions than this one use. users: how many definitions use a name."""
    return {word for word, count in users.items() if count > (word in piece.uses)}


def _without_members(piece: Piece, others: set[str]) -> Piece:
    """A struct without the functions, types and constants that nobody names; an enum without such
    constants."""
    if piece.inner:
        first, last = piece.lines[piece.comment], piece.lines[-1]
        kept = []
        for p in piece.inner:
            around = others | {w for q in piece.inner if q is not p and q.is_code for w in q.uses}
            if (
                not p.is_code
                or not (p.is_function or p.code.lstrip().startswith(("using", "struct", "enum")))
                or p.names & around
                or "operator" in p.words  # which is called without its name
            ):
                kept.append(_without_constants(p, around))
        lines = _without_double_blanks([line for p in kept for line in p.lines])
        return Piece((*piece.lines[: piece.comment], first, *lines, last), piece.comment)
    return _without_constants(piece, others)


def _without_double_blanks(lines: Sequence[str]) -> list[str]:
    """No blank line at the start, at the end, or behind another."""
    kept = [line for n, line in enumerate(lines) if line.strip() or (n and lines[n - 1].strip())]
    while kept and not kept[-1].strip():
        kept.pop()
    return kept


def _without_constants(piece: Piece, others: set[str]) -> Piece:
    """An enum without constants that nobody names, where all have values of their own."""
    enum = ENUM.match(piece.code.strip())
    if not enum or any("=" not in c for c in _constants(enum[2])):
        return piece
    values = {word for c in _constants(enum[2]) for word in NAME.findall(c.partition("=")[2])}
    gone = {NAME.findall(c)[0] for c in _constants(enum[2])} - others - values
    if not gone:
        return piece
    lines = []
    for line in piece.lines[piece.comment :]:
        code, comment = line.partition("//")[0], line.partition("//")[2]
        slim = code
        for name in gone:
            slim = re.sub(rf"(?<=[\s{{,]){name} = [^,}}]*(,\s?|(?=\s*}}))", "", slim)
        if "{" in slim:
            slim = re.sub(r",\s*\}", " }", slim)
        if slim == code:
            lines.append(line)
        elif slim.strip():
            lines.append(slim.rstrip() + (f"  //{comment}" if comment else ""))
    return Piece((*piece.lines[: piece.comment], *lines), piece.comment)


def _with_headings(found: Sequence[Piece]) -> list[Piece]:
    """Without headings of which nothing is left, and the blank lines of what is gone."""
    out: list[Piece] = []
    for n, p in enumerate(found):
        heading = HEADING.match(p.lines[0])
        rest = (q for q in found[n + 1 :] if q.lines[0].strip())
        following = next(rest, None)
        if heading and (following is None or HEADING.match(following.lines[0])):
            continue
        if not p.lines[0].strip() and out and not out[-1].lines[0].strip():
            continue
        out.append(p)
    return out


# --- lines that fit -----------------------------------------------------------------------------------------


def fitted(text: str) -> str:
    """The text with long lines broken: comments between words, code behind commas and before operators."""
    out: list[str] = []
    for line in _paragraphs(text.splitlines()):
        out += _fitted(line)
    return "\n".join(out) + "\n"


def _paragraphs(lines: Sequence[str]) -> Iterator[str]:
    """The lines, those of a comment joined where one is to be broken and the next goes on."""
    held = ""
    for line in lines:
        comment = line.lstrip().startswith("// ") and not HEADING.match(line)
        goes_on = (
            comment
            and held
            and line.index("/") == held.index("/")
            and len(held) > FULL
            and not line.lstrip("/ ").startswith("- ")
        )
        if goes_on and (len(held) > WIDTH or len(line) > WIDTH):
            held = f"{held} {line.lstrip('/ ').rstrip()}"
            continue
        if held:
            yield held
        held = line if comment else ""
        if not comment:
            yield line
    if held:
        yield held


def _fitted(line: str) -> list[str]:
    if len(line) <= WIDTH or line.startswith("#"):
        return [line]
    if HEADING.match(line):
        return [line[:WIDTH]]
    indent = line[: len(line) - len(line.lstrip())]
    if line.lstrip().startswith("//"):
        return _wrapped(line.lstrip()[2:].strip(), indent)
    at = _comment_at(line)
    if at:
        return [*_wrapped(line[at + 2 :].strip(), indent), *_fitted(line[:at].rstrip())]
    body = FUNCTION.match(line)
    if body:
        return [part for one in (body[1], f"{indent}  {body[2]}", f"{indent}}}") for part in _fitted(one)]
    return _broken(line, indent + "    ")


def _comment_at(line: str) -> int:
    """Where a line's comment begins; 0 where it has none."""
    masked = STRING.sub(lambda m: "_" * len(m[0]), line)
    return max(0, masked.find("//"))


def _wrapped(words: str, indent: str) -> list[str]:
    lines, line = [], f"{indent}//"
    for word in words.split():
        if len(line) + 1 + len(word) > WIDTH:
            lines.append(line)
            line = f"{indent}//"
        line += f" {word}"
    return [*lines, line]


def _broken(line: str, indent: str) -> list[str]:
    """Code broken where the fewest brackets are open, as late as that allows."""
    masked = STRING.sub(lambda m: "_" * len(m[0]), line)
    depth, places = 0, list[tuple[int, int]]()  # brackets open there, where the next line begins
    for n, c in enumerate(masked[:WIDTH]):
        depth += (c in "([{") - (c in ")]}")
        if c == " " and n > len(indent) and (masked[n - 1] in ",;{" or masked[n + 1 :].startswith(OPERATORS)):
            places.append((depth, n + 1))
    good = [(d, n) for d, n in places if n > WIDTH // 2] or places
    if not good:
        return [line]
    least = min(d for d, _ in good)
    at = max(n for d, n in good if d == least)
    rest = f"{indent}{line[at:]}"
    return [line[:at].rstrip(), *(_broken(rest, indent) if len(rest) > WIDTH else [rest])]
