// Access to strided and broadcast arrays, by runs along their innermost dimension.

#ifndef COCOLL_KERNELS_LAYOUT_H_
#define COCOLL_KERNELS_LAYOUT_H_

#include "tiles.h"

namespace cocoll {

// Walks the elements [first, first + count) of a layout in C order. Dimensions that continue each
// other are merged, so that a contiguous or fully broadcast array is a single run.
class Runs {
 public:
  COCOLL_INLINE Runs(const cocoll_layout& layout, int64_t first, int64_t count)
      : remaining_(count), dims_(0), offset_bytes_(0) {
    for (int dim = 0; dim < layout.ndim; ++dim) {
      const int64_t extent = layout.shape[dim];
      const int64_t stride = layout.stride_bytes[dim];
      if (extent == 1) continue;
      if (dims_ > 0 && stride_bytes_[dims_ - 1] == stride * extent) {
        shape_[dims_ - 1] *= extent;
        stride_bytes_[dims_ - 1] = stride;
      } else {
        shape_[dims_] = extent;
        stride_bytes_[dims_] = stride;
        ++dims_;
      }
    }
    if (dims_ == 0) {
      shape_[0] = 1;
      stride_bytes_[0] = 0;
      dims_ = 1;
    }
    for (int dim = dims_ - 1; dim >= 0 && count > 0; --dim) {
      place_[dim] = first % shape_[dim];
      first /= shape_[dim];
      offset_bytes_ += place_[dim] * stride_bytes_[dim];
    }
  }

  COCOLL_INLINE bool done() const { return remaining_ <= 0; }

  // The current run: where it starts, its length, the distance of its elements.
  COCOLL_INLINE int64_t offset_bytes() const { return offset_bytes_; }
  COCOLL_INLINE int length() const {
    return static_cast<int>(smaller(remaining_, shape_[dims_ - 1] - place_[dims_ - 1]));
  }
  COCOLL_INLINE int64_t stride_bytes() const { return stride_bytes_[dims_ - 1]; }

  COCOLL_INLINE void next() {
    const int taken = length();
    remaining_ -= taken;
    int dim = dims_ - 1;
    place_[dim] += taken;
    offset_bytes_ += taken * stride_bytes_[dim];
    while (dim > 0 && place_[dim] == shape_[dim]) {
      offset_bytes_ -= shape_[dim] * stride_bytes_[dim];
      place_[dim] = 0;
      --dim;
      ++place_[dim];
      offset_bytes_ += stride_bytes_[dim];
    }
  }

 private:
  int64_t remaining_;
  int dims_;
  int64_t offset_bytes_;
  int64_t shape_[COCOLL_MAX_DIMS] = {};
  int64_t stride_bytes_[COCOLL_MAX_DIMS] = {};
  int64_t place_[COCOLL_MAX_DIMS] = {};
};

// Elements are copied as bytes: a caller's strided array need not be aligned.
template <class T>
COCOLL_NOINLINE void gather(const cocoll_array& array, int64_t offset, int count, T* tile) {
  const char* data = static_cast<const char*>(array.data);
  for (Runs runs(*array.layout, array.index + offset, count); !runs.done(); runs.next()) {
    const char* run = data + runs.offset_bytes();
    const int length = runs.length();
    const int64_t stride_bytes = runs.stride_bytes();
    if (stride_bytes == static_cast<int64_t>(sizeof(T))) {
      copy_bytes(tile, run, length * static_cast<int64_t>(sizeof(T)));
      tile += length;
      continue;
    }
    if (stride_bytes == 0) {
      T value;
      copy_bytes(&value, run, sizeof(T));
      COCOLL_LOOP(i, length) { put(&tile[i], value); }
    } else {
      for (int i = 0; i < length; ++i) {
        copy_bytes(&tile[i], run + i * stride_bytes, sizeof(T));
      }
    }
    tile += length;
  }
}

template <class T>
COCOLL_NOINLINE void scatter(const cocoll_array& array, int64_t offset, int count, const T* tile) {
  char* data = static_cast<char*>(array.data);
  for (Runs runs(*array.layout, array.index + offset, count); !runs.done(); runs.next()) {
    char* run = data + runs.offset_bytes();
    const int length = runs.length();
    const int64_t stride_bytes = runs.stride_bytes();
    for (int i = 0; i < length; ++i) {
      copy_bytes(run + i * stride_bytes, &tile[i], sizeof(T));
    }
    tile += length;
  }
}

}  // namespace cocoll

#endif  // COCOLL_KERNELS_LAYOUT_H_
