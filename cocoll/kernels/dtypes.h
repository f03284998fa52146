// Storage types, and their conversions to and from the types that arithmetic is done in.
//
// float16 and bfloat16 are stored as bits and computed in float. Conversions round to nearest even,
// keep subnormal numbers, carry into infinity, and keep the sign and the leading payload bits of a
// NaN while making it quiet: exactly what the conversion instructions of x86 and ARM do, written in
// integer operations that every compiler vectorises.

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

// Rounds a double to a float with the last bit set where it is inexact ("to odd"), so that rounding
// once more to 16 bits gives what a single rounding would have given.
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

// Rounds to the values of T without leaving C: what "cast" means inside an expression.
template <class T, class C>
COCOLL_INLINE C round_through(C value) {
  return static_cast<C>(widen(narrow<T>(value)));
}

}  // namespace cocoll

#endif  // COCOLL_KERNELS_DTYPES_H_
