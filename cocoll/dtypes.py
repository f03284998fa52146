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
    BOOL = 7
    INT8 = 8
    INT16 = 9
    UINT16 = 10
    UINT32 = 11
    UINT64 = 12
    COMPLEX64 = 13
    COMPLEX128 = 14
    FLOAT8_E4M3FN = 15
    FLOAT8_E5M2 = 16

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
        """Whether it has an exponent and is one real number."""
        return self <= DType.FLOAT64 or self.is_float8

    @property
    def is_float8(self) -> bool:
        """Whether it is one of the floats of 8 bits."""
        return self >= DType.FLOAT8_E4M3FN

    @property
    def is_complex(self) -> bool:
        """Whether it has a real and an imaginary part."""
        return self in (DType.COMPLEX64, DType.COMPLEX128)

    @property
    def is_integer(self) -> bool:
        """Whether it is a whole number, of either sign or unsigned; truth values are none."""
        return not (self.is_floating or self.is_complex or self is DType.BOOL)

    @property
    def accumulate(self) -> DType:
        """The type that sums are kept in: float32 or wider for floats, itself for the others."""
        return DType.FLOAT32 if self.is_floating and self.itemsize_bytes < 4 else self

    @property
    def carrier(self) -> DType | None:
        """The unsigned integers that stand for it where no array library has it, or None."""
        if self.is_float8:
            return DType.UINT8
        return DType.UINT16 if self is DType.BFLOAT16 else None

    def standing_for(self, named: int) -> DType:
        """Give what elements of this type hold where the caller has named a dtype.

        Parameters
        ----------
        named : int
            Its code, or -1 where none was named.

        Returns
        -------
        DType
            What was named, if this is its `carrier`; else this type.
        """
        return DType(named) if named >= 0 and DType(named).carrier is self else self

    def reduces_in_parts(self, op: str) -> bool:
        """Say whether a reduction of some ranks may be stored in this type and gone on with.

        Parameters
        ----------
        op : str
            The reduction.

        Returns
        -------
        bool
            False where a part's result would lose what the whole needs: an average of integers is
            the exact sum divided once, and 8 bits of a float are too few to be rounded to twice.
        """
        if self.is_float8:
            return op in ("min", "max")
        return not (self.is_integer and op == "avg")

    def check_op(self, op: str) -> None:
        """Refuse a reduction that has no meaning for this type.

        Parameters
        ----------
        op : str
            The reduction.

        Raises
        ------
        DTypeError
            Complex numbers have no order, and truth values no average.
        """
        if self.is_complex and op in ("min", "max"):
            raise DTypeError(
                f"op={op!r} needs a dtype with an order; got {self.label}. Reduce the absolute "
                f"values, or the real and imaginary parts"
            )
        if self is DType.BOOL and op == "avg":
            raise DTypeError(
                f"op='avg' needs numbers; got {self.label}. Give floats, or sum as integers"
            )

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
    DType.BOOL: 1,
    DType.INT8: 1,
    DType.INT16: 2,
    DType.UINT16: 2,
    DType.UINT32: 4,
    DType.UINT64: 8,
    DType.COMPLEX64: 8,
    DType.COMPLEX128: 16,
    DType.FLOAT8_E4M3FN: 1,
    DType.FLOAT8_E5M2: 1,
}
