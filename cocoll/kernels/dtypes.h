// Storage types, and their conversions to and from the types that arithmetic is done in.
//
// float16 and bfloat16 are stored as bits and computed in float. Conversions round to nearest even,
// keep subnormal numbers, carry into infinity, and keep the sign and the leading payload bits of a
// NaN while making it quiet: exactly what the conversion instructions of x86 and ARM do, written in
// integer operations that every compiler vectorises. The floats of 8 bits are treated alike, but
// that of a NaN only the sign is left, and that float8_e4m3fn, which has no infinity, carries into
// NaN.

#ifndef COCOLL_KERNELS_DTYPES_H_
#define COCOLL_KERNELS_DTYPES_H_

#include "port.h"

namespace cocoll {

struct float16 {
  unsigned short bits;
};

struct bfloat16 {
  unsigned short bits;
};

// One sign bit, then 4 bits of exponent and 3 of mantissa, or 5 and 2.
struct float8_e4m3fn {
  unsigned char bits;
};

struct float8_e5m2 {
  unsigned char bits;
};

// A truth value in a byte, true if any bit is set. What is stored is 0 or 1.
struct boolean {
  unsigned char bits;
};

template <class Real>
struct Complex {
  typedef Real Part;
  Real real;
  Real imaginary;
};
typedef Complex<float> complex64;
typedef Complex<double> complex128;

// The type that sums of T are kept in: float or wider for floating types, T itself for integers.
template <class T>
struct AccumulateOf {
  typedef T Type;
};
template <>
struct AccumulateOf<float16> {
  typedef float Type;
};
template <>
struct AccumulateOf<bfloat16> {
  typedef float Type;
};
template <>
struct AccumulateOf<float8_e4m3fn> {
  typedef float Type;
};
template <>
struct AccumulateOf<float8_e5m2> {
  typedef float Type;
};
template <>
struct AccumulateOf<boolean> {
  typedef uint8_t Type;
};

template <class A, class B>
struct IsSame {
  static constexpr bool value = false;
};
template <class A>
struct IsSame<A, A> {
  static constexpr bool value = true;
};

COCOLL_INLINE float widen(float16 stored) {
  // Move exponent and mantissa to their place in a float, then correct the exponent's bias. A
  // subnormal has no implicit bit: give it one and take it off again in float arithmetic.
  const uint32_t sign = static_cast<uint32_t>(stored.bits & 0x8000u) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(stored.bits & 0x7fffu) << 13;
  const uint32_t normal = magnitude + 0x38000000u;
  // Vector units compare signed integers; magnitudes have no sign bit.
  const int32_t ordered = static_cast<int32_t>(magnitude);
  const uint32_t special = (magnitude + 0x70000000u) | (ordered > 0x0f800000 ? 0x400000u : 0u);
  const uint32_t subnormal =
      bit_cast<uint32_t>(bit_cast<float>(magnitude + 0x38800000u) - bit_cast<float>(0x38800000u));
  uint32_t bits = ordered < 0x00800000 ? subnormal : normal;
  bits = ordered >= 0x0f800000 ? special : bits;
  return bit_cast<float>(bits | sign);
}

COCOLL_INLINE float widen(bfloat16 stored) {
  return bit_cast<float>(static_cast<uint32_t>(stored.bits) << 16);
}

COCOLL_INLINE float widen(float8_e4m3fn stored) {
  const uint32_t sign = static_cast<uint32_t>(stored.bits & 0x80u) << 24;
  const uint32_t magnitude = static_cast<uint32_t>(stored.bits & 0x7fu) << 20;
  const uint32_t normal = magnitude + 0x3c000000u;
  const int32_t ordered = static_cast<int32_t>(magnitude);
  const uint32_t subnormal =
      bit_cast<uint32_t>(bit_cast<float>(magnitude + 0x3c800000u) - bit_cast<float>(0x3c800000u));
  uint32_t bits = ordered < 0x00800000 ? subnormal : normal;
  bits = ordered == 0x07f00000 ? 0x7fc00000u : bits;
  return bit_cast<float>(bits | sign);
}

// It has the exponent of float16, and the first two bits of its mantissa.
COCOLL_INLINE float widen(float8_e5m2 stored) {
  return widen(float16{static_cast<unsigned short>(stored.bits << 8)});
}

COCOLL_INLINE uint8_t widen(boolean stored) { return stored.bits != 0 ? 1 : 0; }

template <class T>
COCOLL_INLINE T widen(T stored) {
  return stored;
}

// Gives the value nearest to `value`; primary template for types that hardware converts.
template <class T, class C>
struct Narrow {
  COCOLL_INLINE static T from(C value) { return static_cast<T>(value); }
};

template <>
struct Narrow<float16, float> {
  COCOLL_INLINE static float16 from(float value) {
    const uint32_t whole = bit_cast<uint32_t>(value);
    const uint32_t sign = (whole >> 16) & 0x8000u;
    const uint32_t magnitude = whole & 0x7fffffffu;
    // Adding half of the last kept place, and one less on an even one, rounds ties to even; a carry
    // out of the mantissa is the right next exponent, up to infinity.
    const uint32_t normal = (magnitude - 0x38000000u + 0x0fffu + ((magnitude >> 13) & 1u)) >> 13;
    // The last place of 0.5f is that of the smallest half: float addition rounds for us.
    const uint32_t subnormal = bit_cast<uint32_t>(bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
    const uint32_t special = value != value ? (0x7e00u | ((magnitude >> 13) & 0x3ffu)) : 0x7c00u;
    const int32_t ordered = static_cast<int32_t>(magnitude);
    uint32_t bits = ordered < 0x38800000 ? subnormal : normal;
    bits = ordered >= 0x47800000 ? special : bits;
    return float16{static_cast<unsigned short>(bits | sign)};
  }
};

template <>
struct Narrow<bfloat16, float> {
  COCOLL_INLINE static bfloat16 from(float value) {
    const uint32_t whole = bit_cast<uint32_t>(value);
    const uint32_t rounded = whole + 0x7fffu + ((whole >> 16) & 1u);
    const uint32_t chosen = value != value ? (whole | 0x400000u) : rounded;
    return bfloat16{static_cast<unsigned short>(chosen >> 16)};
  }
};

template <>
struct Narrow<float8_e4m3fn, float> {
  COCOLL_INLINE static float8_e4m3fn from(float value) {
    const uint32_t whole = bit_cast<uint32_t>(value);
    const uint32_t magnitude = whole & 0x7fffffffu;
    const uint32_t normal = (magnitude - 0x3c000000u + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20;
    // The last place of 16384.0f is that of the smallest number.
    const uint32_t subnormal =
        bit_cast<uint32_t>(bit_cast<float>(magnitude) + 16384.0f) - 0x46800000u;
    const int32_t ordered = static_cast<int32_t>(magnitude);
    uint32_t bits = ordered < 0x3c800000 ? subnormal : normal;
    // Past the last number, 448, lies NaN alone.
    bits = ordered > 0x43e80000 ? 0x7fu : bits;
    return float8_e4m3fn{static_cast<unsigned char>(bits | (whole >> 24 & 0x80u))};
  }
};

template <>
struct Narrow<float8_e5m2, float> {
  COCOLL_INLINE static float8_e5m2 from(float value) {
    const uint32_t whole = bit_cast<uint32_t>(value);
    const uint32_t magnitude = whole & 0x7fffffffu;
    const uint32_t normal = (magnitude - 0x38000000u + 0xfffffu + ((magnitude >> 21) & 1u)) >> 21;
    const uint32_t subnormal =
        bit_cast<uint32_t>(bit_cast<float>(magnitude) + 128.0f) - 0x43000000u;
    const uint32_t special = value != value ? 0x7eu : 0x7cu;
    const int32_t ordered = static_cast<int32_t>(magnitude);
    uint32_t bits = ordered < 0x38800000 ? subnormal : normal;
    bits = ordered >= 0x47800000 ? special : bits;
    return float8_e5m2{static_cast<unsigned char>(bits | (whole >> 24 & 0x80u))};
  }
};

template <>
struct Narrow<boolean, uint8_t> {
  COCOLL_INLINE static boolean from(uint8_t value) { return boolean{value}; }
};

// Rounds a double to a float with the last bit set where it is inexact ("to odd"), so that rounding
// once more to 16 or 8 bits gives what a single rounding would have given.
COCOLL_INLINE float round_to_odd(double value) {
  const float nearest = static_cast<float>(value);
  const double back = static_cast<double>(nearest);
  const uint32_t bits = bit_cast<uint32_t>(nearest);
  const double magnitude = value < 0 ? -value : value;
  const double back_magnitude = back < 0 ? -back : back;
  const uint32_t toward_zero = back_magnitude > magnitude ? bits - 1u : bits;
  return bit_cast<float>(back != value && value == value ? (toward_zero | 1u) : bits);
}

template <>
struct Narrow<float16, double> {
  COCOLL_INLINE static float16 from(double value) {
    return Narrow<float16, float>::from(round_to_odd(value));
  }
};

template <>
struct Narrow<bfloat16, double> {
  COCOLL_INLINE static bfloat16 from(double value) {
    return Narrow<bfloat16, float>::from(round_to_odd(value));
  }
};

template <>
struct Narrow<float8_e4m3fn, double> {
  COCOLL_INLINE static float8_e4m3fn from(double value) {
    return Narrow<float8_e4m3fn, float>::from(round_to_odd(value));
  }
};

template <>
struct Narrow<float8_e5m2, double> {
  COCOLL_INLINE static float8_e5m2 from(double value) {
    return Narrow<float8_e5m2, float>::from(round_to_odd(value));
  }
};

template <class T, class C>
COCOLL_INLINE T narrow(C value) {
  return Narrow<T, C>::from(value);
}

// Stores one element; by its bits where it is a structure, which compilers do not vectorise whole.
template <class T>
COCOLL_INLINE void put(T* place, T value) {
  *place = value;
}
COCOLL_INLINE void put(float16* place, float16 value) { place->bits = value.bits; }
COCOLL_INLINE void put(bfloat16* place, bfloat16 value) { place->bits = value.bits; }
COCOLL_INLINE void put(float8_e4m3fn* place, float8_e4m3fn value) { place->bits = value.bits; }
COCOLL_INLINE void put(float8_e5m2* place, float8_e5m2 value) { place->bits = value.bits; }
COCOLL_INLINE void put(boolean* place, boolean value) { place->bits = value.bits; }
template <class Real>
COCOLL_INLINE void put(Complex<Real>* place, Complex<Real> value) {
  place->real = value.real;
  place->imaginary = value.imaginary;
}

// Rounds to the values of T without leaving C: what "cast" means inside an expression.
template <class T, class C>
COCOLL_INLINE C round_through(C value) {
  return static_cast<C>(widen(narrow<T>(value)));
}

}  // namespace cocoll

#endif  // COCOLL_KERNELS_DTYPES_H_
