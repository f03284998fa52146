// Copies between arrays of one element type, contiguous or strided.

#ifndef COCOLL_HOST_COPY_H_
#define COCOLL_HOST_COPY_H_

// ThreadSanitizer does not see the stores of intrinsics; plain ones have the same meaning.
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#define COCOLL_COPY_STREAMS 1
#include <immintrin.h>
#else
#define COCOLL_COPY_STREAMS 0
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "../kernels/abi.h"
#include "tensors.h"

namespace cocoll::host {

// Stores past the caches, and fences: a later signal must not overtake these stores.
inline void copy_streaming(char* destination, const char* source, int64_t bytes) {
#if COCOLL_COPY_STREAMS
  const int64_t head =
      std::min(bytes, static_cast<int64_t>(-reinterpret_cast<uintptr_t>(destination) & 15));
  memcpy(destination, source, static_cast<size_t>(head));
  int64_t at = head;
  for (; at + 64 <= bytes; at += 64) {
    const __m128i* from = reinterpret_cast<const __m128i*>(source + at);
    __m128i* to = reinterpret_cast<__m128i*>(destination + at);
    const __m128i a = _mm_loadu_si128(from);
    const __m128i b = _mm_loadu_si128(from + 1);
    const __m128i c = _mm_loadu_si128(from + 2);
    const __m128i d = _mm_loadu_si128(from + 3);
    _mm_stream_si128(to, a);
    _mm_stream_si128(to + 1, b);
    _mm_stream_si128(to + 2, c);
    _mm_stream_si128(to + 3, d);
  }
  memcpy(destination + at, source + at, static_cast<size_t>(bytes - at));
  _mm_sfence();
#else
  memcpy(destination, source, static_cast<size_t>(bytes));
#endif
}

// Walks a strided array in C order, one innermost run at a time.
class LayoutCursor {
 public:
  LayoutCursor(const cocoll_array& array, int64_t itemsize_bytes)
      : layout_(array.layout), data_(static_cast<char*>(array.data)), itemsize_(itemsize_bytes) {
    if (layout_ == nullptr) return;
    int64_t rest = array.index;
    for (int32_t dim = layout_->ndim - 1; dim >= 0; --dim) {
      position_[dim] = rest % layout_->shape[dim];
      rest /= layout_->shape[dim];
      data_ += position_[dim] * layout_->stride_bytes[dim];
    }
  }

  char* data() const { return data_; }

  int64_t stride_bytes() const {
    return layout_ == nullptr || layout_->ndim == 0 ? itemsize_
                                                    : layout_->stride_bytes[layout_->ndim - 1];
  }

  // Elements that follow at `stride_bytes()` before the cursor must turn.
  int64_t run(int64_t wanted) const {
    if (layout_ == nullptr || layout_->ndim == 0) return wanted;
    const int32_t inner = layout_->ndim - 1;
    return std::min(wanted, layout_->shape[inner] - position_[inner]);
  }

  void skip(int64_t elements) {
    data_ += elements * stride_bytes();
    if (layout_ == nullptr || layout_->ndim == 0) return;
    int32_t dim = layout_->ndim - 1;
    position_[dim] += elements;
    while (dim > 0 && position_[dim] == layout_->shape[dim]) {
      data_ += layout_->stride_bytes[dim - 1] - layout_->shape[dim] * layout_->stride_bytes[dim];
      position_[dim] = 0;
      ++position_[--dim];
    }
  }

 private:
  const cocoll_layout* layout_;
  char* data_;
  int64_t itemsize_;
  int64_t position_[COCOLL_MAX_DIMS] = {};
};

template <class Unit>
inline void copy_run(char* destination, int64_t destination_stride, const char* source,
                     int64_t source_stride, int64_t count) {
  for (int64_t index = 0; index < count; ++index) {
    Unit value;
    memcpy(&value, source + index * source_stride, sizeof value);
    memcpy(destination + index * destination_stride, &value, sizeof value);
  }
}

inline void copy_strided(const cocoll_array& destination, const cocoll_array& source, int64_t count,
                         int64_t itemsize_bytes) {
  LayoutCursor to(destination, itemsize_bytes);
  LayoutCursor from(source, itemsize_bytes);
  while (count > 0) {
    const int64_t run = from.run(to.run(count));
    const int64_t to_stride = to.stride_bytes();
    const int64_t from_stride = from.stride_bytes();
    if (to_stride == itemsize_bytes && from_stride == itemsize_bytes) {
      memcpy(to.data(), from.data(), static_cast<size_t>(run * itemsize_bytes));
    } else {
      switch (itemsize_bytes) {
        case 1:
          copy_run<uint8_t>(to.data(), to_stride, from.data(), from_stride, run);
          break;
        case 2:
          copy_run<uint16_t>(to.data(), to_stride, from.data(), from_stride, run);
          break;
        case 4:
          copy_run<uint32_t>(to.data(), to_stride, from.data(), from_stride, run);
          break;
        case 8:
          copy_run<uint64_t>(to.data(), to_stride, from.data(), from_stride, run);
          break;
        default:
          for (int64_t index = 0; index < run; ++index)
            memcpy(to.data() + index * to_stride, from.data() + index * from_stride,
                   static_cast<size_t>(itemsize_bytes));
      }
    }
    to.skip(run);
    from.skip(run);
    count -= run;
  }
}

inline void copy_array(const cocoll_array& destination, const cocoll_array& source, int64_t count,
                       int64_t itemsize_bytes, bool streaming) {
  // Onto itself: nothing to do, and the memory may be read-only.
  if (destination.data == source.data && destination.layout == source.layout &&
      destination.index == source.index)
    return;
  if (is_list(destination) || is_list(source)) {
    // The places of a list are those of the logical vector.
    const cocoll_array& list = is_list(destination) ? destination : source;
    for_each_piece(table_of(list), list.index, count, [&](const Piece& piece) {
      copy_array(at_piece(destination, piece, list.index, itemsize_bytes),
                 at_piece(source, piece, list.index, itemsize_bytes), piece.count, itemsize_bytes,
                 streaming);
    });
    return;
  }
  if (destination.layout != nullptr || source.layout != nullptr) {
    copy_strided(destination, source, count, itemsize_bytes);
  } else if (streaming) {
    copy_streaming(static_cast<char*>(destination.data), static_cast<const char*>(source.data),
                   count * itemsize_bytes);
  } else {
    memcpy(destination.data, source.data, static_cast<size_t>(count * itemsize_bytes));
  }
}

}  // namespace cocoll::host

#endif  // COCOLL_HOST_COPY_H_
