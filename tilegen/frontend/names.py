"""Names of tensors and ops, which become members, functions and enumerators of generated C++ and CUDA."""

from __future__ import annotations

import keyword

from tilegen.errors import SpecError

RESERVED = frozenset(keyword.kwlist) | frozenset(
    """alignas alignof and asm auto bitand bitor bool break case catch char class compl concept const
    constexpr const_cast continue co_await co_return co_yield decltype default delete do double
    dynamic_cast else enum explicit export extern false float for friend goto if inline int long mutable
    namespace new noexcept not nullptr operator or private protected public register reinterpret_cast
    requires return short signed sizeof static static_assert static_cast struct switch template this throw
    true try typedef typeid typename union unsigned using virtual void volatile wchar_t while xor errno
    NULL EOF NAN INFINITY assert""".split()
)


def check_name(name: str, where: str) -> None:
    if not isinstance(name, str) or not name.isidentifier() or name.startswith("_") or "__" in name:
        raise SpecError(
            f"names must be identifiers without a leading or double underscore, given {name!r}", where
        )
    if name.startswith("tg_"):
        raise SpecError(
            f"{name!r}: names that begin with tg_ are those of the generated code's own functions and"
            " members",
            where,
        )
    if name in RESERVED or not name.isascii():
        raise SpecError(
            f"{name!r} cannot be a name in generated C++; expected an ASCII identifier that is no word of C++"
            " or Python",
            where,
        )
