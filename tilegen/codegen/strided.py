"""Where the elements of a strided_copy lie, as C; and how threads of a GPU bring them
(templates/cuda/threads/rows.cu.j2)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilegen.frontend.dims import most
from tilegen.ops.base import OpInstance
from tilegen.ops.strided_copy import StridedCopyAttributes

VECTOR = 8


def place(b: OpInstance, n: str) -> str:
    """In x, of element n of the result. The outermost size needs no remainder, so it may move."""
    a = StridedCopyAttributes.of(b)
    terms, inner = [], math.prod(a.sizes[1:])
    for d, (size, stride) in enumerate(zip(a.sizes, a.strides, strict=True)):
        inner = inner // size if d else inner
        index = n if inner == 1 else f"{n} / {inner}"
        index = f"{index} % {size}" if d else index
        terms.append(f"{index} * {stride}" if stride != 1 else index)
    return " + ".join([*terms, *([str(a.offset)] if a.offset else [])])


@dataclass(frozen=True)
class Copy:
    """A strided_copy, as threads do it: eight columns of the result at a time."""

    bound: OpInstance
    unaligned: bool

    @property
    def attributes(self) -> StridedCopyAttributes:
        return StridedCopyAttributes.of(self.bound)

    @property
    def together(self) -> bool:
        """Whether one stride leads from each of the eight to the next."""
        size = self.attributes.sizes[-1]
        return not self.unaligned and most(size) % VECTOR == 0 and isinstance(size, int)

    @property
    def stride(self) -> int:
        """Of neighbours in a row of the result."""
        return self.attributes.strides[-1]

    @property
    def vectors(self) -> bool:
        """Whether the eight are a vector of x, too."""
        a = self.attributes
        return (
            self.together and self.stride == 1 and all(n % VECTOR == 0 for n in (a.offset, *a.strides[:-1]))
        )

    @property
    def turned(self) -> bool:
        """Whether neighbours in x are in the same column of neighbouring rows of the result: threads beside
        each other then take rows."""
        a, inner = self.attributes, 1
        for size, stride in zip(reversed(a.sizes), reversed(a.strides), strict=True):
            if inner == self.bound.out[-1]:
                return stride == 1 and self.stride != 1
            inner = inner * size
        return False

    @property
    def index(self) -> str:
        """The type that counts the elements of both tensors."""
        sizes = (self.bound.out, self.bound.shape(0))
        return "int" if max(most(math.prod(s)) for s in sizes) < 1 << 31 else "long long"

    @property
    def place(self) -> str:
        return place(self.bound, "n")
