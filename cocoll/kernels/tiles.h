// Loops of the host's kernels over tiles: runs of elements that stay in the innermost cache.

#ifndef COCOLL_KERNELS_TILES_H_
#define COCOLL_KERNELS_TILES_H_

#include "dtypes.h"
#include "philox.h"
#include "port.h"

#ifdef __F16C__
#include <immintrin.h>
#endif

#define COCOLL_NOINLINE __attribute__((noinline))
// No element depends on another, though arrays may be identical: the compiler need not prove it.
#define COCOLL_LOOP(i, count) _Pragma("GCC ivdep") for (int i = 0; i < (count); ++i)
// What such a loop does with one element, for for_each_element().
#define COCOLL_ELEMENT(i) [&](int i) __attribute__((always_inline))
#define COCOLL_SCRATCH(type, name, elements) alignas(64) type name[elements]
#define COCOLL_KERNEL(name) \
  extern "C" __attribute__((visibility("hidden"))) void name(const cocoll_reduce_args* args)
#define COCOLL_PREPARE(name) \
  extern "C" __attribute__((visibility("hidden"))) void name(const double* scalars, double* derived)
// The type is named like the symbol, which therefore has another name in C++.
#define COCOLL_EXPORT_TABLE(entries, count)                                       \
  extern "C" __attribute__((visibility("default")))                               \
  const cocoll_kernel_table cocoll_exported_table __asm__("cocoll_kernel_table"); \
  const cocoll_kernel_table cocoll_exported_table = {COCOLL_ABI_VERSION, count, entries};

namespace cocoll {

constexpr int kTileElements = 512;

// Clears `count` elements of a tile; zeros of every element type have no bit set.
template <class T>
COCOLL_INLINE void clear(T* tile, int count) {
  __builtin_memset(static_cast<void*>(tile), 0, static_cast<unsigned long>(count) * sizeof(T));
}

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

// Does `body(i)`, a COCOLL_ELEMENT, for all elements of a tile that do not depend on each other;
// `arrays` are the tiles that it reads.
template <class Body, class... T>
COCOLL_INLINE void for_each_element(int count, const Body& body, const T*... arrays) {
  int begin = 0;
  for (; begin + kBlockElements <= count; begin += kBlockElements) {
    (ask_ahead(arrays + begin), ...);
    // A short loop would be unrolled whole before it could be vectorised.
    _Pragma("GCC unroll 1") COCOLL_LOOP(i, kBlockElements) { body(begin + i); }
  }
  COCOLL_LOOP(i, count - begin) { body(begin + i); }
}

// Converts `count` stored elements.
template <class T, class C>
COCOLL_NOINLINE void widen_tile(const T* stored, C* values, int count) {
  int done = 0;
#if defined(__F16C__)
  if constexpr (IsSame<T, float16>::value && IsSame<C, float>::value) {
    for (; done + 8 <= count; done += 8) {
      _mm256_storeu_ps(
          values + done,
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(stored + done))));
    }
  }
#endif
  stored += done;
  values += done;
  for_each_element(
      count - done, COCOLL_ELEMENT(i) { values[i] = static_cast<C>(widen(stored[i])); }, stored);
}

template <class T, class C>
COCOLL_NOINLINE void narrow_tile(const C* values, T* stored, int count) {
  int done = 0;
#if defined(__F16C__)
  if constexpr (IsSame<T, float16>::value && IsSame<C, float>::value) {
    for (; done + 8 <= count; done += 8) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(stored + done),
                       _mm256_cvtps_ph(_mm256_loadu_ps(values + done), _MM_FROUND_TO_NEAREST_INT));
    }
  }
#endif
  stored += done;
  values += done;
  COCOLL_LOOP(i, count - done) { put(&stored[i], narrow<T>(values[i])); }
}

// Words that a tile of `count` elements needs at any alignment of its first index.
#define COCOLL_PHILOX_CAPACITY(count) ((count) + 8)

// Fills `words` and gives the place of the first element's word; `words` has
// COCOLL_PHILOX_CAPACITY(count) elements. The uniform number of a word is (word >> 8) * 2^-24.
COCOLL_NOINLINE inline const uint32_t* philox_tile(uint32_t* words, int64_t first, int count,
                                                   PhiloxKey key, uint64_t step) {
  const uint64_t group = static_cast<uint64_t>(first) >> 2;
  const int lead = static_cast<int>(first & 3);
  const int groups = (lead + count + 3) >> 2;
  const uint32_t step_low = static_cast<uint32_t>(step);
  const uint32_t step_high = static_cast<uint32_t>(step >> 32);
  const uint32_t group_low = static_cast<uint32_t>(group);
  const uint32_t group_high = static_cast<uint32_t>(group >> 32);
  COCOLL_LOOP(i, groups) {
    const uint32_t low = group_low + static_cast<uint32_t>(i);
    const uint32_t high = group_high + (low < group_low ? 1u : 0u);
    const PhiloxWords drawn = philox4x32(PhiloxWords{low, high, step_low, step_high}, key);
    words[4 * i] = drawn.x;
    words[4 * i + 1] = drawn.y;
    words[4 * i + 2] = drawn.z;
    words[4 * i + 3] = drawn.w;
  }
  return words + lead;
}

}  // namespace cocoll

#endif  // COCOLL_KERNELS_TILES_H_
