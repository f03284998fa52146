// What NCCL computes, for the emulated device: elements of several ranks made one.

#ifndef COCOLL_TESTING_EMULATED_REDUCTION_H_
#define COCOLL_TESTING_EMULATED_REDUCTION_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "cocoll/kernels/dtypes.h"

namespace cocoll::emulated {

// As NCCL numbers its types and operations.
constexpr size_t kTypeBytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
constexpr int kTypes = 10;

enum Reduction : int { kSum, kProduct, kMaximum, kMinimum, kAverage, kReductions };

// Integers wrap around, which only unsigned ones may in C++.
template <class C, bool is_integer = std::is_integral<C>::value>
struct Wrapping {
  typedef typename std::make_unsigned<C>::type Type;
};
template <class C>
struct Wrapping<C, false> {
  typedef C Type;
};

template <class C>
C combine(int op, C a, C b) {
  // 64 bits: products of 16 bits would be computed in int, and overflow there.
  typedef typename Wrapping<C>::Type W;
  typedef typename std::conditional<std::is_integral<C>::value, uint64_t, C>::type Wide;
  switch (op) {
    case kProduct:
      return static_cast<C>(static_cast<W>(static_cast<Wide>(a) * static_cast<Wide>(b)));
    case kMaximum:
      return a < b ? b : a;
    case kMinimum:
      return b < a ? b : a;
    default:
      return static_cast<C>(static_cast<W>(static_cast<Wide>(a) + static_cast<Wide>(b)));
  }
}

template <class T>
void reduce_as(int op, T* to, const std::vector<const T*>& from, size_t count, size_t first) {
  typedef typename AccumulateOf<T>::Type C;
  const size_t ranks = from.size();
  for (size_t i = 0; i < count; ++i) {
    T value = from[first][i];
    for (size_t step = 1; step < ranks; ++step) {
      const T next = from[(first + step) % ranks][i];
      value = narrow<T>(combine<C>(op, widen(value), widen(next)));
    }
    if (op == kAverage) {
      value = narrow<T>(static_cast<C>(widen(value) / static_cast<C>(ranks)));
    }
    to[i] = value;
  }
}

template <class T>
void reduce_bytes(int op, void* to, const std::vector<const char*>& from, size_t count,
                  size_t first) {
  std::vector<const T*> typed;
  for (const char* source : from) typed.push_back(reinterpret_cast<const T*>(source));
  reduce_as<T>(op, static_cast<T*>(to), typed, count, first);
}

// Reduces what the ranks have, beginning with rank `first` as a ring does, and rounding to the type
// at every step. `to` may be the memory of one of them.
inline void reduce(int type, int op, void* to, const std::vector<const char*>& from, size_t count,
                   size_t first) {
  typedef void (*Function)(int, void*, const std::vector<const char*>&, size_t, size_t);
  static const Function kFunctions[kTypes] = {
      reduce_bytes<int8_t>,  reduce_bytes<uint8_t>,  reduce_bytes<int32_t>, reduce_bytes<uint32_t>,
      reduce_bytes<int64_t>, reduce_bytes<uint64_t>, reduce_bytes<float16>, reduce_bytes<float>,
      reduce_bytes<double>,  reduce_bytes<bfloat16>};
  kFunctions[type](op, to, from, count, first);
}

}  // namespace cocoll::emulated

#endif  // COCOLL_TESTING_EMULATED_REDUCTION_H_
