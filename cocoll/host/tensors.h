// Lists of tensors: one logical vector in many arrays, end to end, and nothing copied together.
//
// A cocoll_array stands for a list by a layout that only says so; its data is the table of the
// tensors. Copies and messages walk the tensors; kernels get one piece of a tensor at a time.

#ifndef COCOLL_HOST_TENSORS_H_
#define COCOLL_HOST_TENSORS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "../kernels/abi.h"

namespace cocoll::host {

// The tensors of a list. Whoever binds a call keeps it alive.
struct TensorTable {
  int32_t count = 0;
  const int64_t* starts = nullptr;        // [count + 1]: where each begins in the logical vector
  const cocoll_array* tensors = nullptr;  // [count]
  const uint64_t* references = nullptr;   // [count]: where peers find them, or null
};

// What marks a list. It has no dims that anybody could walk.
inline constexpr cocoll_layout kListLayout{-1, 0, {}, {}};

inline bool is_list(const cocoll_array& array) { return array.layout == &kListLayout; }

inline const TensorTable& table_of(const cocoll_array& array) {
  return *static_cast<const TensorTable*>(array.data);
}

inline cocoll_array list_of(const TensorTable* table) {
  return {const_cast<TensorTable*>(table), &kListLayout, 0};
}

// A run of elements of the logical vector that lies in one tensor.
struct Piece {
  int32_t tensor;
  int64_t first;
  int64_t count;
};

// Calls `visit(piece)` for every piece of a range, in order. Empty tensors have none.
template <class Visit>
void for_each_piece(const TensorTable& table, int64_t first, int64_t count, Visit visit) {
  const int64_t* starts = table.starts;
  const int64_t stop = first + count;
  // The last tensor that begins at or before `first`: of several, those before it are empty.
  int32_t tensor =
      static_cast<int32_t>(std::upper_bound(starts, starts + table.count, first) - starts) - 1;
  while (first < stop) {
    const int64_t end = std::min(stop, starts[tensor + 1]);
    if (end > first) visit(Piece{tensor, first, end - first});
    first = std::max(first, end);
    ++tensor;
  }
}

// The array from `elements` further on.
inline cocoll_array advance(const cocoll_array& array, int64_t elements, int64_t itemsize_bytes) {
  if (array.layout != nullptr) return {array.data, array.layout, array.index + elements};
  return {static_cast<char*>(array.data) + elements * itemsize_bytes, nullptr, 0};
}

// What kernels see of an array that was placed at `range_first`: the piece, as an array of its own.
inline cocoll_array at_piece(const cocoll_array& array, const Piece& piece, int64_t range_first,
                             int64_t itemsize_bytes) {
  if (!is_list(array)) return advance(array, piece.first - range_first, itemsize_bytes);
  const TensorTable& table = table_of(array);
  return advance(table.tensors[piece.tensor], piece.first - table.starts[piece.tensor],
                 itemsize_bytes);
}

// A list of a peer's, in this rank's address space.
class PlacedTable {
 public:
  // Finds every tensor where `resolve(reference)` says that a peer has it.
  template <class Resolve>
  cocoll_array place(const TensorTable& own, Resolve resolve) {
    tensors_.resize(static_cast<size_t>(own.count));
    for (int32_t tensor = 0; tensor < own.count; ++tensor)
      tensors_[static_cast<size_t>(tensor)] = {resolve(own.references[tensor]), nullptr, 0};
    table_ = {own.count, own.starts, tensors_.data(), nullptr};
    return list_of(&table_);
  }

 private:
  TensorTable table_;
  std::vector<cocoll_array> tensors_;
};

}  // namespace cocoll::host

#endif  // COCOLL_HOST_TENSORS_H_
