// What differs between the compilers that read the kernels: g++ on the host, nvcc and NVRTC for
// CUDA. Everything else in this folder is written once.
//
// The host's kernels (reduce.h, plain.h) walk tiles in loops that are vectorised. Grid kernels
// (grid.h) are read by all compilers: on a device every thread takes packs of elements; g++ builds
// them for the emulated device.

#ifndef COCOLL_KERNELS_PORT_H_
#define COCOLL_KERNELS_PORT_H_

#include "abi.h"

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define COCOLL_DEVICE 1
#else
#define COCOLL_DEVICE 0
#endif

#if COCOLL_DEVICE

#define COCOLL_INLINE __device__ __forceinline__
// Of what is seldom run and would be copied to many places.
#define COCOLL_OUTLINE static __device__ __noinline__
#define COCOLL_CONSTANT static constexpr __device__
// Before short loops over registers.
#define COCOLL_UNROLL _Pragma("unroll")
#define COCOLL_NO_UNROLL _Pragma("unroll 1")

#else

#define COCOLL_INLINE inline __attribute__((always_inline))
#define COCOLL_OUTLINE inline
#define COCOLL_CONSTANT static constexpr
// The host's compiler unrolls as it sees fit.
#define COCOLL_UNROLL
#define COCOLL_NO_UNROLL

#endif  // COCOLL_DEVICE

// What a pack loads and stores of memory, for tests that count.
#ifndef COCOLL_COUNT_BYTES
#define COCOLL_COUNT_BYTES(loaded, stored)
#endif

namespace cocoll {

// Bits of one value seen as another type of the same size.
template <class To, class From>
COCOLL_INLINE To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast keeps the size");
  To to;
#if COCOLL_DEVICE
  memcpy(&to, &from, sizeof(to));
#else
  __builtin_memcpy(&to, &from, sizeof(to));
#endif
  return to;
}

COCOLL_INLINE void copy_bytes(void* to, const void* from, int64_t count_bytes) {
#if COCOLL_DEVICE
  memcpy(to, from, static_cast<size_t>(count_bytes));
#else
  __builtin_memcpy(to, from, static_cast<unsigned long>(count_bytes));
#endif
}

// Makes the compiler work out again what follows from a number, where keeping that would take more
// registers than there are.
COCOLL_INLINE void forget([[maybe_unused]] int* number) {
#if COCOLL_DEVICE
  asm volatile("" : "+r"(*number));
#endif
}

template <class T>
COCOLL_INLINE T smaller(T a, T b) {
  return b < a ? b : a;
}

}  // namespace cocoll

#endif  // COCOLL_KERNELS_PORT_H_
