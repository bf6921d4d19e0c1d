"""How the CTAs of a cluster share a tile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ClusterSplit = Literal["k", "km", "m", "n", "2x2", "2x4", "4x2"]
CLUSTER_SPLITS: tuple[ClusterSplit, ...] = ("k", "km", "m", "n")
CLUSTER_SHAPES: tuple[ClusterSplit, ...] = ("2x2", "2x4", "4x2")


@dataclass(frozen=True)
class ClusterShape:
    """The CTAs of a cluster: m rows of n, as they lie on the tile; or k that share its steps, and finish its
    columns, or its rows where finishes_rows. CTA rank c has row c // n, column c % n."""

    m: int = 1
    n: int = 1
    k: int = 1
    finishes_rows: bool = False

    @property
    def size(self) -> int:
        return self.m * self.n * self.k

    @property
    def finished(self) -> tuple[int, int]:
        """Into how many parts, each finished by a CTA, the rows of a tile are cut, and its columns."""
        return (self.k, 1) if self.finishes_rows else (self.m, self.n * self.k)

    @property
    def split(self) -> ClusterSplit:
        """TileOp.cluster_split."""
        if self.m > 1 and self.n > 1:
            return next(split for split in CLUSTER_SHAPES if split == f"{self.m}x{self.n}")
        return "m" if self.m > 1 else "n" if self.n > 1 else "km" if self.finishes_rows else "k"

    @property
    def option(self) -> str:
        """As Options.cluster takes it: 2:m, 2x4."""
        return self.split if self.split in CLUSTER_SHAPES else f"{self.size}:{self.split}"

    @staticmethod
    def of(cluster: int, split: str) -> ClusterShape:
        """Of so many CTAs that split a tile so."""
        if split in CLUSTER_SHAPES:
            m, n = map(int, split.split("x"))
            return ClusterShape(m, n)
        of = {
            "k": ClusterShape(k=cluster),
            "km": ClusterShape(k=cluster, finishes_rows=True),
            "m": ClusterShape(m=cluster),
            "n": ClusterShape(n=cluster),
        }
        return of[split]

    @staticmethod
    def of_option(given: int | str) -> ClusterShape:
        """From 2, "2", "2:m" or "2x4". ValueError where it is none of these."""
        text = str(given)
        if text in CLUSTER_SHAPES:
            return ClusterShape.of(0, text)
        count, colon, split = text.partition(":")
        split = split if colon else "k"
        if (
            not isinstance(given, (int, str))
            or not count.isdecimal()
            or int(count) < 1
            or split not in CLUSTER_SPLITS
        ):
            raise ValueError(text)
        return ClusterShape.of(int(count), split)
