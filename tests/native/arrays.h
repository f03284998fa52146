// Arrays of a rank: symmetric, ordinary or strided, with their surroundings watched.

#ifndef COCOLL_TESTS_NATIVE_ARRAYS_H_
#define COCOLL_TESTS_NATIVE_ARRAYS_H_

#include <memory>

#include "world.h"

namespace cocoll::native_tests {

enum class Memory { kSymmetric, kOrdinary, kStrided, kReplicated };

constexpr float kGuard = -12345.0f;

// Float32 elements of one rank. Ordinary ones lie in a block of just their size, whose ends
// AddressSanitizer watches; symmetric ones have guards around them.
class Array {
 public:
  Array() = default;

  // Symmetric arrays of a call lie at the places 0, 1, ... of the heap, one call after the other.
  Array(const host::Endpoint& endpoint, Memory memory, int place, int64_t count)
      : memory_(memory), count_(count) {
    const size_t bytes = static_cast<size_t>(count) * sizeof(float);
    switch (memory) {
      case Memory::kSymmetric:
      case Memory::kReplicated: {
        char* start = memory == Memory::kReplicated
                          ? endpoint.commons->base()
                          : endpoint.region(endpoint.rank, endpoint.regions.heap);
        // The odd line lets chunks start at any place within a cache line of a streaming store.
        data_ = reinterpret_cast<float*>(start + place * kPlaceBytes + 64 + 4 * (count % 16));
        if (bytes + 256 > kPlaceBytes) leave("an array is longer than its place", kBadUsage);
        guarded_ = memory == Memory::kSymmetric;
        if (guarded_) data_[-1] = data_[count] = kGuard;
        break;
      }
      case Memory::kOrdinary:
        owned_.reset(new float[static_cast<size_t>(count)]);
        data_ = owned_.get();
        break;
      case Memory::kStrided:
        // Rows of three, every other element of every fifth; the rest must stay as it is.
        rows_ = (count + 2) / 3;
        if (count % 3 != 0) rows_ = count;
        columns_ = rows_ == count ? 1 : 3;
        storage_elements_ = rows_ * kRowElements;
        owned_.reset(new float[static_cast<size_t>(storage_elements_)]);
        data_ = owned_.get();
        std::fill_n(data_, storage_elements_, kGuard);
        layout_.ndim = 2;
        layout_.itemsize_bytes = sizeof(float);
        layout_.shape[0] = rows_;
        layout_.shape[1] = columns_;
        layout_.stride_bytes[0] = kRowElements * int64_t{sizeof(float)};
        layout_.stride_bytes[1] = 2 * int64_t{sizeof(float)};
    }
    reference_ = memory == Memory::kStrided
                     ? host::kNotMapped
                     : endpoint.reference(data_, static_cast<int64_t>(bytes));
  }

  // A contiguous part of an array.
  Array part(const host::Endpoint& endpoint, int64_t first, int64_t count) const {
    Array made;
    made.memory_ = memory_;
    made.count_ = count;
    made.data_ = data_ + first;
    made.reference_ = endpoint.reference(made.data_, count * static_cast<int64_t>(sizeof(float)));
    return made;
  }

  // What a call takes; this object must stay where it is until the call has ended.
  cocoll_array placed() const {
    return {data_, memory_ == Memory::kStrided && count_ > 0 ? &layout_ : nullptr, 0};
  }
  uint64_t reference() const { return reference_; }
  int64_t count() const { return count_; }
  int64_t bytes() const { return count_ * static_cast<int64_t>(sizeof(float)); }

  float& at(int64_t index) const {
    if (memory_ != Memory::kStrided) return data_[index];
    return data_[index / columns_ * kRowElements + index % columns_ * 2];
  }

  void fill(float value) const {
    for (int64_t index = 0; index < count_; ++index) at(index) = value;
  }

  void check_surroundings(const char* name) const {
    if (guarded_)
      EXPECT(data_[-1] == kGuard && data_[count_] == kGuard, "something has written past %s", name);
    for (int64_t index = 0; index < storage_elements_; ++index) {
      const int64_t row = index / kRowElements;
      const int64_t column = index % kRowElements;
      const bool used = column % 2 == 0 && column / 2 < columns_ && row < rows_;
      EXPECT(used || data_[index] == kGuard, "something has written between elements of %s", name);
    }
  }

 private:
  static constexpr int64_t kPlaceBytes = 128 << 10;
  static constexpr int64_t kRowElements = 7;

  Memory memory_ = Memory::kOrdinary;
  int64_t count_ = 0;
  float* data_ = nullptr;
  uint64_t reference_ = host::kNotMapped;
  std::unique_ptr<float[]> owned_;
  cocoll_layout layout_{};
  int64_t rows_ = 0;
  int64_t columns_ = 1;
  int64_t storage_elements_ = 0;
  bool guarded_ = false;
};

}  // namespace cocoll::native_tests

#endif  // COCOLL_TESTS_NATIVE_ARRAYS_H_
