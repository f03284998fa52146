"""The element types that cocoll knows: codes, sizes and names, with no array library needed."""

from __future__ import annotations

import enum

from cocoll.errors import DTypeError

__all__ = ["DType"]


class DType(enum.IntEnum):
    """An element type. The numbers are part of packed plans, arrival lines and kernel names."""

    FLOAT16 = 0
    BFLOAT16 = 1
    FLOAT32 = 2
    FLOAT64 = 3
    INT32 = 4
    INT64 = 5
    UINT8 = 6

    @property
    def label(self) -> str:
        """The name users write: ``"float32"``."""
        return self.name.lower()

    @property
    def itemsize_bytes(self) -> int:
        """Bytes of one element."""
        return _ITEMSIZE_BYTES[self]

    @property
    def is_floating(self) -> bool:
        """Whether it has an exponent."""
        return self <= DType.FLOAT64

    @property
    def accumulate(self) -> DType:
        """The type that sums are kept in: float32 or wider for floats, itself for integers."""
        return DType.FLOAT32 if self in (DType.FLOAT16, DType.BFLOAT16) else self

    @classmethod
    def parse(cls, name: str) -> DType:
        """Give the type of a name.

        Raises
        ------
        DTypeError
            `name` is none of the supported names.
        """
        try:
            return cls[name.upper()]
        except KeyError:
            supported = ", ".join(member.label for member in cls)
            raise DTypeError(f"wanted a dtype out of {supported}; got {name!r}") from None


_ITEMSIZE_BYTES = {
    DType.FLOAT16: 2,
    DType.BFLOAT16: 2,
    DType.FLOAT32: 4,
    DType.FLOAT64: 8,
    DType.INT32: 4,
    DType.INT64: 8,
    DType.UINT8: 1,
}
