// What differs between the compilers that read the kernels: g++ on the host, nvcc and NVRTC for
// CUDA. Everything else in this folder is written once.
//
// A kernel walks tiles. On the host one thread owns a tile and its loops are vectorised; on a
// device one thread block owns a tile, every thread takes the elements i, i + blockDim.x, ... and
// scratch lies in shared memory.

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
#define COCOLL_NOINLINE __device__ __noinline__
#define COCOLL_CONSTANT static constexpr __device__
// A loop over elements that do not depend on each other.
#define COCOLL_LOOP(i, count) for (int i = threadIdx.x; i < (count); i += blockDim.x)
// What such a loop does with one element, for for_each_element().
#define COCOLL_ELEMENT(i) [&](int i)
// The same where the compiler cannot vectorise (strided access).
#define COCOLL_SCALAR_LOOP(i, count) COCOLL_LOOP(i, count)
#define COCOLL_SCRATCH(type, name, elements) __shared__ type name[elements]
#define COCOLL_BARRIER() __syncthreads()
#define COCOLL_UNROLL _Pragma("unroll")
// A loop over the tiles that are this thread's or this block's own.
#define COCOLL_TILES(ordinal, count) \
  for (int64_t ordinal = blockIdx.x; ordinal < (count); ordinal += gridDim.x)
#define COCOLL_KERNEL(name) extern "C" __global__ void name(cocoll_reduce_args call)
#define COCOLL_KERNEL_ARGS (&call)

#else

#define COCOLL_INLINE inline __attribute__((always_inline))
#define COCOLL_NOINLINE __attribute__((noinline))
#define COCOLL_CONSTANT static constexpr
// No element depends on another, though arrays may be identical: the compiler need not prove it.
#define COCOLL_LOOP(i, count) _Pragma("GCC ivdep") for (int i = 0; i < (count); ++i)
#define COCOLL_ELEMENT(i) [&](int i) __attribute__((always_inline))
#define COCOLL_SCALAR_LOOP(i, count) for (int i = 0; i < (count); ++i)
#define COCOLL_SCRATCH(type, name, elements) alignas(64) type name[elements]
#define COCOLL_BARRIER() static_cast<void>(0)
// Before short loops over registers; the host's compiler does as it sees fit.
#define COCOLL_UNROLL
#define COCOLL_TILES(ordinal, count) for (int64_t ordinal = 0; ordinal < (count); ++ordinal)
#define COCOLL_KERNEL(name) \
  extern "C" __attribute__((visibility("hidden"))) void name(const cocoll_reduce_args* call)
#define COCOLL_KERNEL_ARGS (call)
#define COCOLL_PREPARE(name) \
  extern "C" __attribute__((visibility("hidden"))) void name(const double* scalars, double* derived)
// The type is named like the symbol, which therefore has another name in C++.
#define COCOLL_EXPORT_TABLE(entries, count)                                       \
  extern "C" __attribute__((visibility("default")))                               \
  const cocoll_kernel_table cocoll_exported_table __asm__("cocoll_kernel_table"); \
  const cocoll_kernel_table cocoll_exported_table = {COCOLL_ABI_VERSION, count, entries};

#endif  // COCOLL_DEVICE

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

// Clears `count` elements of a tile; zeros of every element type have no bit set.
template <class T>
COCOLL_INLINE void clear(T* tile, int count) {
#if COCOLL_DEVICE
  COCOLL_LOOP(i, count) { tile[i] = T{}; }
#else
  __builtin_memset(static_cast<void*>(tile), 0, static_cast<unsigned long>(count) * sizeof(T));
#endif
}

template <class T>
COCOLL_INLINE T smaller(T a, T b) {
  return b < a ? b : a;
}

#if !COCOLL_DEVICE

constexpr int kBlockElements = 16;

// Asks for what a loop over contiguous `array` reads six lines later. Hardware does so too, but
// stops at every page of 4 KiB, and with five arrays it comes late: on Zen 3 a fused optimizer
// gains a tenth in the last-level cache and a twentieth in memory; 256 or 512 bytes gain less.
template <class T>
COCOLL_INLINE void ask_ahead(const T* array) {
  constexpr unsigned long kLineBytes = 64, kAheadBytes = 384;
  const char* place = reinterpret_cast<const char*>(array) + kAheadBytes;
  for (unsigned long line = 0; line < kBlockElements * sizeof(T); line += kLineBytes) {
    __builtin_prefetch(place + line);
  }
}

#endif

// Does `body(i)`, a COCOLL_ELEMENT, for all elements of a tile that do not depend on each other;
// `arrays` are the tiles that it reads.
template <class Body, class... T>
COCOLL_INLINE void for_each_element(int count, const Body& body, const T*... arrays) {
#if COCOLL_DEVICE
  (static_cast<void>(arrays), ...);
  COCOLL_LOOP(i, count) { body(i); }
#else
  int begin = 0;
  for (; begin + kBlockElements <= count; begin += kBlockElements) {
    (ask_ahead(arrays + begin), ...);
    // A short loop would be unrolled whole before it could be vectorised.
    _Pragma("GCC unroll 1") COCOLL_LOOP(i, kBlockElements) { body(begin + i); }
  }
  COCOLL_LOOP(i, count - begin) { body(begin + i); }
#endif
}

}  // namespace cocoll

#endif  // COCOLL_KERNELS_PORT_H_
