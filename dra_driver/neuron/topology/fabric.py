"""How the chips of one instance are linked to each other, and which sets of them belong together.

A fabric is a value: a shape and a number of chips, indexed 0 to ``size - 1`` in the order of ``/dev/neuronN``. It
answers three separate questions:

* ``neighbours``: which chips have a direct link;
* ``connected_sets``: which sets of one size are offered as connected (on a torus only the aligned sets that the vendor
  documents, although other sets are linked too);
* ``usable_sets``: those of them that are one contiguous run of host indexes. The kernel driver reserves cores relative
  to the first chip that a process opens and assumes that the following host indexes belong to the same process, so only
  a run is safe to use in a container. A wrap-around set of a ring, such as 11 and 0 of 12, is connected but is not a
  run.

Sources: aws-neuron-sdk ``deploy/eks/dra.rst`` and ``tools/neuron-sys-tools/neuron-ls.rst``; the neighbour tables that
the Neuron kernel driver prints in ``connected_devices``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import ClassVar

from dra_driver.util.errors import DriverError

IndexSet = tuple[int, ...]
"""Chip indexes, ascending, each once."""

GROUP_SIZES = (1, 4, 8, 16)
"""Sizes of the vendor's aligned sets: ``devicegroupN_id`` exists for these N."""

SEGMENT_SIZES = (2, 3, 4, 6, 8)
"""Sizes of the aligned runs of a ring or chain for which devices publish the index of the first chip."""


class Fabric(ABC):
    """Base class of fabrics. All results are in ascending order, so equal hardware gives equal output."""

    __slots__ = ()
    kind: ClassVar[str]
    """Stable name of the shape: torus2d, ring, chain, switched, single or unknown."""
    adjacency_promised: ClassVar[bool] = True
    """Whether ``neighbours`` is complete; False for a switch and where no source documents the links."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of chips; 0 if not even that is known."""

    @abstractmethod
    def describe(self) -> str:
        """A short description of the shape, such as ``4x4 2D torus``."""

    def _linked(self, index: int) -> Iterable[int]:  # noqa: ARG002 - for shapes with links
        """Indexes that ``index`` is linked to; may contain duplicates and ``index`` itself."""
        return ()

    @abstractmethod
    def connected_sets(self, size: int) -> tuple[IndexSet, ...]:
        """The sets of ``size`` chips that are offered as connected; empty if that size is not offered."""

    def neighbours(self, index: int) -> IndexSet:
        """Chips with a direct link to ``index``, ascending. Raises DriverError if there is no such chip."""
        self.require(index)
        return tuple(sorted(set(self._linked(index)) - {index}))

    def usable_sets(self, size: int) -> tuple[IndexSet, ...]:
        """The connected sets of ``size`` chips that are one contiguous run of host indexes."""
        return tuple(members for members in self.connected_sets(size) if is_run(members))

    def set_sizes(self) -> tuple[int, ...]:
        """The sizes for which there are connected sets, ascending."""
        return tuple(size for size in range(1, self.size + 1) if self.connected_sets(size))

    def is_connected(self, indexes: Collection[int]) -> bool:
        """Whether the chips reach each other over links among themselves only. True for one chip, False for none.

        Raises DriverError if one of them does not exist.
        """
        for index in indexes:
            self.require(index)
        if not indexes:
            return False
        wanted = set(indexes)
        reached = {min(wanted)}
        frontier = set(reached)
        while frontier:
            frontier = {other for index in frontier for other in self.neighbours(index)} & wanted - reached
            reached |= frontier
        return reached == wanted

    def require(self, index: int) -> None:
        """Raise a DriverError with the valid range unless chip ``index`` exists."""
        if not 0 <= index < self.size:
            legal = f"device indexes go from 0 to {self.size - 1}" if self.size else "how many it has is not public"
            raise DriverError(f"there is no device {index} on this {self.describe()}", remedy=legal)


def is_run(indexes: Collection[int]) -> bool:
    """Whether the indexes are one contiguous ascending run, such as 4, 5, 6."""
    return bool(indexes) and max(indexes) - min(indexes) + 1 == len(set(indexes)) == len(indexes)


def aligned_blocks(count: int, size: int) -> tuple[IndexSet, ...]:
    """Chips 0 to ``count - 1`` divided into blocks of ``size``; empty if ``size`` does not divide ``count``."""
    if size < 1 or count % size:
        return ()
    return tuple(tuple(range(start, start + size)) for start in range(0, count, size))


@dataclass(frozen=True, slots=True)
class Torus2D(Fabric):
    """Rows and columns, each closed to a ring. Chip index = row * columns + column."""

    rows: int
    columns: int
    kind: ClassVar[str] = "torus2d"

    def __post_init__(self) -> None:
        _require_chips(self.rows, "rows")
        _require_chips(self.columns, "columns")

    @property
    def size(self) -> int:
        """Rows times columns."""
        return self.rows * self.columns

    def describe(self) -> str:
        """Such as ``4x4 2D torus``."""
        return f"{self.rows}x{self.columns} 2D torus"

    def position(self, index: int) -> tuple[int, int]:
        """Row and column of a chip, as in the attributes ``topology_x`` and ``topology_y``."""
        self.require(index)
        return divmod(index, self.columns)

    def _linked(self, index: int) -> Iterable[int]:
        row, column = divmod(index, self.columns)
        for step in (-1, 1):
            yield (row + step) % self.rows * self.columns + column
            yield row * self.columns + (column + step) % self.columns

    def connected_sets(self, size: int) -> tuple[IndexSet, ...]:
        """Single chips, rows, aligned pairs of rows, and the whole torus: 1, 4, 8 and 16 chips on a 4x4 torus."""
        offered = (1, self.columns, 2 * self.columns, self.size)
        return aligned_blocks(self.size, size) if size in offered else ()


@dataclass(frozen=True, slots=True)
class _Counted(Fabric):
    """A shape of which the number of chips is all that differs."""

    count: int

    def __post_init__(self) -> None:
        _require_chips(self.count, "count")

    @property
    def size(self) -> int:
        """Number of chips."""
        return self.count


@dataclass(frozen=True, slots=True)
class Ring(_Counted):
    """Each chip is linked to the previous and the next one, and the last to the first."""

    kind: ClassVar[str] = "ring"

    def describe(self) -> str:
        """Such as ``ring of 12``."""
        return f"ring of {self.count}"

    def _linked(self, index: int) -> Iterable[int]:
        return ((index - 1) % self.count, (index + 1) % self.count)

    def connected_sets(self, size: int) -> tuple[IndexSet, ...]:
        """All arcs of the ring, including those across its end (which ``usable_sets`` omits)."""
        if not 1 <= size <= self.count:
            return ()
        arcs = {tuple(sorted((start + step) % self.count for step in range(size))) for start in range(self.count)}
        return tuple(sorted(arcs))


@dataclass(frozen=True, slots=True)
class Chain(_Counted):
    """A ring that is open between its last and its first chip."""

    kind: ClassVar[str] = "chain"

    def describe(self) -> str:
        """Such as ``open chain of 6``."""
        return f"open chain of {self.count}"

    def _linked(self, index: int) -> Iterable[int]:
        return range(max(index - 1, 0), min(index + 2, self.count))

    def connected_sets(self, size: int) -> tuple[IndexSet, ...]:
        """All runs of ``size`` chips."""
        if size < 1:
            return ()
        return tuple(tuple(range(start, start + size)) for start in range(self.count - size + 1))


@dataclass(frozen=True, slots=True)
class Switched(_Counted):
    """Every chip is connected to a switch. All chips are equally close, so there are no neighbours.

    The aligned sets that are offered follow the pairing with EFA devices, not links.
    """

    kind: ClassVar[str] = "switched"
    adjacency_promised: ClassVar[bool] = False

    def describe(self) -> str:
        """Such as ``switch with 16 devices``."""
        return f"switch with {self.count} devices"

    def connected_sets(self, size: int) -> tuple[IndexSet, ...]:
        """Aligned blocks of 1, 4, 8 and 16 chips."""
        return aligned_blocks(self.count, size) if size in GROUP_SIZES else ()

    def is_connected(self, indexes: Collection[int]) -> bool:
        """True for any set: the switch connects all chips."""
        for index in indexes:
            self.require(index)
        return bool(indexes)


@dataclass(frozen=True, slots=True)
class Single(Fabric):
    """One chip, linked to none."""

    kind: ClassVar[str] = "single"

    @property
    def size(self) -> int:
        """Always 1."""
        return 1

    def describe(self) -> str:
        """``single device``."""
        return "single device"

    def connected_sets(self, size: int) -> tuple[IndexSet, ...]:
        """The one chip."""
        return ((0,),) if size == 1 else ()


@dataclass(frozen=True, slots=True)
class Unknown(Fabric):
    """No public source documents how the chips are linked, or (``count`` 0) how many there are."""

    count: int = 0
    kind: ClassVar[str] = "unknown"
    adjacency_promised: ClassVar[bool] = False

    @property
    def size(self) -> int:
        """Number of chips, or 0."""
        return self.count

    def describe(self) -> str:
        """States that it is unknown."""
        return f"unknown fabric of {self.count} devices" if self.count else "unknown fabric"

    def connected_sets(self, size: int) -> tuple[IndexSet, ...]:
        """Single chips only."""
        return aligned_blocks(self.count, size) if size == 1 else ()


def _require_chips(value: int, name: str) -> None:
    if value < 1:
        raise DriverError(f"a fabric needs at least one chip: {name} is {value}")
