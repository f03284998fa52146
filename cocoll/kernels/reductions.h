// How the sources of a reduction are combined: one structure an op and storage type.
//
// `Source` is how sources are stored, `State` what they accumulate in, `Value` what the epilogue
// sees. combine() takes the ranks in order, so a reduction has one result, whatever the chunk size;
// finish() gives the value once all ranks are in; combine(a, neutral(a)) is a, where an epilogue
// may follow (floats). `Widened` is the same op on states.

#ifndef COCOLL_KERNELS_REDUCTIONS_H_
#define COCOLL_KERNELS_REDUCTIONS_H_

#include "dtypes.h"
#include "math.h"
#include "port.h"

namespace cocoll {

// An unsigned type in which T wraps around: arithmetic of fewer than 32 bits is done in int, which
// must not overflow. Floats are left as they are.
template <class T>
struct Wrapping {
  typedef T Type;
};
template <>
struct Wrapping<int8_t> {
  typedef uint32_t Type;
};
template <>
struct Wrapping<int16_t> {
  typedef uint32_t Type;
};
template <>
struct Wrapping<uint16_t> {
  typedef uint32_t Type;
};
template <>
struct Wrapping<int32_t> {
  typedef uint32_t Type;
};
template <>
struct Wrapping<int64_t> {
  typedef uint64_t Type;
};

template <class T>
COCOLL_INLINE T wrapping_add(T a, T b) {
  typedef typename Wrapping<T>::Type W;
  return static_cast<T>(static_cast<W>(a) + static_cast<W>(b));
}
template <class Real>
COCOLL_INLINE Complex<Real> wrapping_add(Complex<Real> a, Complex<Real> b) {
  return {a.real + b.real, a.imaginary + b.imaginary};
}

template <class T>
COCOLL_INLINE T wrapping_multiply(T a, T b) {
  typedef typename Wrapping<T>::Type W;
  return static_cast<T>(static_cast<W>(a) * static_cast<W>(b));
}
COCOLL_INLINE float flip_sign(float value) {
  return bit_cast<float>(bit_cast<uint32_t>(value) ^ (uint32_t{1} << 31));
}
COCOLL_INLINE double flip_sign(double value) {
  return bit_cast<double>(bit_cast<uint64_t>(value) ^ (uint64_t{1} << 63));
}
// Nothing is subtracted: of differences and sums that alternate GCC 12 makes fused
// multiply-adds even under -ffp-contract=off, and bits would depend on the ISA level.
template <class Real>
COCOLL_INLINE Complex<Real> wrapping_multiply(Complex<Real> a, Complex<Real> b) {
  return {a.real * b.real + flip_sign(a.imaginary * b.imaginary),
          a.real * b.imaginary + a.imaginary * b.real};
}

template <class T>
COCOLL_INLINE T divide(T total, int world_size) {
  return total / static_cast<T>(world_size);
}
template <class Real>
COCOLL_INLINE Complex<Real> divide(Complex<Real> total, int world_size) {
  const Real divisor = static_cast<Real>(world_size);
  return {total.real / divisor, total.imaginary / divisor};
}

template <class T>
struct Plain {
  typedef T Source;
  typedef typename AccumulateOf<T>::Type State;
  typedef State Value;
  static constexpr bool finishes = false;
  // Whether a loop over two sources and the state can be vectorised (no choice follows a choice).
  static constexpr bool chains = true;
  COCOLL_INLINE static State load(T stored) { return widen(stored); }
  COCOLL_INLINE static Value finish(State state, int) { return state; }
};

template <class T>
struct Sum : Plain<T> {
  typedef typename Plain<T>::State State;
  typedef Sum<State> Widened;
  COCOLL_INLINE static State combine(State a, State b) { return wrapping_add(a, b); }
  // Minus zero leaves every float as it is, zeros of either sign included.
  COCOLL_INLINE static State neutral(State) { return static_cast<State>(-0.0); }
};

template <class T>
struct Prod : Plain<T> {
  typedef typename Plain<T>::State State;
  typedef Prod<State> Widened;
  COCOLL_INLINE static State combine(State a, State b) { return wrapping_multiply(a, b); }
  COCOLL_INLINE static State neutral(State) { return static_cast<State>(1); }
};

template <class T>
struct Min : Plain<T> {
  typedef typename Plain<T>::State State;
  typedef Min<State> Widened;
  static constexpr bool chains = false;
  COCOLL_INLINE static State combine(State a, State b) { return minimum(a, b); }
  COCOLL_INLINE static State neutral(State a) { return a; }
};

template <class T>
struct Max : Plain<T> {
  typedef typename Plain<T>::State State;
  typedef Max<State> Widened;
  static constexpr bool chains = false;
  COCOLL_INLINE static State combine(State a, State b) { return maximum(a, b); }
  COCOLL_INLINE static State neutral(State a) { return a; }
};

template <class T>
struct Avg : Sum<T> {
  typedef typename Plain<T>::State State;
  static constexpr bool finishes = true;
  COCOLL_INLINE static State finish(State state, int world_size) {
    return divide(state, world_size);
  }
};

// Truth values: a sum is whether any is true, a product whether all are, as NumPy has it; so are
// the greatest and the least.
struct Any : Plain<boolean> {
  typedef Max<uint8_t> Widened;
  COCOLL_INLINE static State combine(State a, State b) { return a | b; }
};
struct All : Plain<boolean> {
  typedef Min<uint8_t> Widened;
  COCOLL_INLINE static State combine(State a, State b) { return a & b; }
};
template <>
struct Sum<boolean> : Any {};
template <>
struct Max<boolean> : Any {};
template <>
struct Prod<boolean> : All {};
template <>
struct Min<boolean> : All {};

// Cuts off what stands behind the point of a double that T holds without it. Vector units convert
// to int32 alone.
template <class T>
COCOLL_INLINE T truncate_to(double value) {
  return static_cast<T>(static_cast<int32_t>(value));
}
template <>
COCOLL_INLINE uint32_t truncate_to<uint32_t>(double value) {
  const bool high = value >= 2147483648.0;
  const uint32_t low =
      static_cast<uint32_t>(static_cast<int32_t>(high ? value - 2147483648.0 : value));
  return high ? low + 0x80000000u : low;
}

// Averages of integers are exact sums, truncated toward zero. A double holds the sum of 2^21
// numbers of 32 bits exactly, and the quotient of a sum below 2^53 never rounds up to a whole
// number: it would have to be nearer to one than 1 / world_size.
template <class T>
struct ExactAvg {
  typedef T Source;
  typedef double State;
  typedef T Value;
  static constexpr bool finishes = true;
  static constexpr bool chains = true;
  COCOLL_INLINE static State load(T stored) { return static_cast<double>(stored); }
  COCOLL_INLINE static State combine(State a, State b) { return a + b; }
  COCOLL_INLINE static Value finish(State state, int world_size) {
    return truncate_to<T>(state / static_cast<double>(world_size));
  }
};
template <>
struct Avg<int8_t> : ExactAvg<int8_t> {};
template <>
struct Avg<uint8_t> : ExactAvg<uint8_t> {};
template <>
struct Avg<int16_t> : ExactAvg<int16_t> {};
template <>
struct Avg<uint16_t> : ExactAvg<uint16_t> {};
template <>
struct Avg<int32_t> : ExactAvg<int32_t> {};
template <>
struct Avg<uint32_t> : ExactAvg<uint32_t> {};

// A sum of 64-bit integers needs up to 31 bits more: two words, with no 128-bit type, which not
// every compiler of these headers has.
struct WideSum {
  uint64_t low;
  int64_t high;
};

template <class T>
struct WideAvg {
  typedef T Source;
  typedef WideSum State;
  typedef T Value;
  static constexpr bool finishes = true;
  static constexpr bool chains = true;
  COCOLL_INLINE static State load(T stored) {
    return WideSum{static_cast<uint64_t>(stored), stored < 0 ? -1 : 0};
  }
  COCOLL_INLINE static State combine(State a, State b) {
    const uint64_t low = a.low + b.low;
    return WideSum{low, a.high + b.high + (low < a.low ? 1 : 0)};
  }
  COCOLL_INLINE static Value finish(State state, int world_size) {
    const bool negative = state.high < 0;
    const uint64_t low = negative ? 0u - state.low : state.low;
    const uint64_t high = negative ? ~static_cast<uint64_t>(state.high) + (low == 0 ? 1u : 0u)
                                   : static_cast<uint64_t>(state.high);
    // Long division by a divisor below 2^31 in digits of 32 bits; high < divisor, as no average
    // lies outside its inputs.
    const uint64_t divisor = static_cast<uint64_t>(world_size);
    const uint64_t upper = (high << 32) | (low >> 32);
    const uint64_t lower = ((upper % divisor) << 32) | (low & 0xffffffffu);
    const uint64_t quotient = ((upper / divisor) << 32) + lower / divisor;
    return static_cast<T>(negative ? 0u - quotient : quotient);
  }
};
template <>
struct Avg<int64_t> : WideAvg<int64_t> {};
template <>
struct Avg<uint64_t> : WideAvg<uint64_t> {};

}  // namespace cocoll

#endif  // COCOLL_KERNELS_REDUCTIONS_H_
