// Stores of finished tiles to their destinations, through the caches or past them.

#ifndef COCOLL_KERNELS_STORE_H_
#define COCOLL_KERNELS_STORE_H_

#include "layout.h"
#include "tiles.h"

// ThreadSanitizer does not see the stores of intrinsics; plain ones have the same meaning.
#if defined(__SSE2__) && !defined(__SANITIZE_THREAD__)
#define COCOLL_STREAMS 1
#include <immintrin.h>
#else
#define COCOLL_STREAMS 0
#endif

namespace cocoll {

#if COCOLL_STREAMS

// Moves 64 bytes past the caches; `to` is aligned to 64.
COCOLL_INLINE void stream_line(char* to, const char* from) {
#if defined(__AVX512F__)
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to),
                      _mm512_loadu_si512(reinterpret_cast<const __m512i*>(from)));
#elif defined(__AVX__)
  const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32));
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), low);
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to + 32), high);
#else
  for (int part = 0; part < 64; part += 16) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + part),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + part)));
  }
#endif
}

COCOLL_NOINLINE inline void stream_tile(void* destination, const void* tile, int64_t count_bytes) {
  char* to = static_cast<char*>(destination);
  const char* from = static_cast<const char*>(tile);
  const int64_t to_line = static_cast<int64_t>(-reinterpret_cast<uint64_t>(to) & 63u);
  const int64_t head = smaller(to_line, count_bytes);
  copy_bytes(to, from, head);
  int64_t done = head;
  for (; done + 64 <= count_bytes; done += 64) stream_line(to + done, from + done);
  copy_bytes(to + done, from + done, count_bytes - done);
}

COCOLL_INLINE void stream_fence() { _mm_sfence(); }

#else

COCOLL_INLINE void stream_fence() {}

#endif  // COCOLL_STREAMS

// Stores a tile, already in its storage type, to destinations [begin, end).
template <class T>
COCOLL_NOINLINE void store_tile(const cocoll_array* destinations, int begin, int end,
                                uint32_t flags, int64_t offset, int count, const T* tile) {
  for (int which = begin; which < end; ++which) {
    const cocoll_array& destination = destinations[which];
    T* to = static_cast<T*>(destination.data) + offset;
    if (destination.layout != nullptr) {
      scatter(destination, offset, count, tile);
    } else if (to == tile) {
      continue;
    } else {
      const int64_t count_bytes = count * static_cast<int64_t>(sizeof(T));
#if COCOLL_STREAMS
      if ((flags & COCOLL_REDUCE_STREAMING) != 0) {
        stream_tile(to, tile, count_bytes);
        continue;
      }
#endif
      static_cast<void>(flags);
      copy_bytes(to, tile, count_bytes);
    }
  }
}

}  // namespace cocoll

#endif  // COCOLL_KERNELS_STORE_H_
