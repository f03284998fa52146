// How the sources of a reduction are combined: one structure an op and storage type.
//
// `Source` is how sources are stored, `State` what they accumulate in, `Value` what the epilogue
// sees. combine() takes the ranks in order, so a reduction has one result, whatever the chunk size;
// finish() gives the value once all ranks are in; combine(a, neutral(a)) is a. `Widened` is the
// same op on states.

#ifndef COCOLL_KERNELS_REDUCTIONS_H_
#define COCOLL_KERNELS_REDUCTIONS_H_

#include "dtypes.h"
#include "math.h"
#include "port.h"

namespace cocoll {

template <class T>
COCOLL_INLINE T wrapping_add(T a, T b) {
  return a + b;
}
COCOLL_INLINE int32_t wrapping_add(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
}
COCOLL_INLINE int64_t wrapping_add(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}
COCOLL_INLINE uint8_t wrapping_add(uint8_t a, uint8_t b) { return static_cast<uint8_t>(a + b); }

template <class T>
COCOLL_INLINE T wrapping_multiply(T a, T b) {
  return a * b;
}
COCOLL_INLINE int32_t wrapping_multiply(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) * static_cast<uint32_t>(b));
}
COCOLL_INLINE int64_t wrapping_multiply(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}
COCOLL_INLINE uint8_t wrapping_multiply(uint8_t a, uint8_t b) {
  return static_cast<uint8_t>(a * b);
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
    return state / static_cast<State>(world_size);
  }
};

// Averages of integers are exact sums, truncated toward zero. A double holds the sum of 2^21 int32
// exactly, and the quotient of a sum below 2^52 never rounds up to a whole number.
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
    return static_cast<T>(static_cast<int32_t>(state / static_cast<double>(world_size)));
  }
};
template <>
struct Avg<int32_t> : ExactAvg<int32_t> {};
template <>
struct Avg<uint8_t> : ExactAvg<uint8_t> {};

// A sum of int64 needs up to 31 bits more: two words, with no 128-bit type, which not every
// compiler of these headers has.
struct WideSum {
  uint64_t low;
  int64_t high;
};

template <>
struct Avg<int64_t> {
  typedef int64_t Source;
  typedef WideSum State;
  typedef int64_t Value;
  static constexpr bool finishes = true;
  static constexpr bool chains = true;
  COCOLL_INLINE static State load(int64_t stored) {
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
    return static_cast<int64_t>(negative ? 0u - quotient : quotient);
  }
};

}  // namespace cocoll

#endif  // COCOLL_KERNELS_REDUCTIONS_H_
