// Totals of epilogues in stages: partial sums that kernels add to, and the numbers that they
// become.

#ifndef COCOLL_HOST_TOTALS_H_
#define COCOLL_HOST_TOTALS_H_

#include <cstdint>
#include <cstring>

#include "../kernels/abi.h"

namespace cocoll::host {

constexpr int32_t kMaxTotals = 8;

// One total: a number for the whole vector, or for each tensor of a list.
struct Total {
  double* values = nullptr;  // [1 or tensors]
  double* sums = nullptr;    // [1 or tensors][COCOLL_SUM_LANES]
  bool per_tensor = false;

  int32_t place(int32_t tensor) const { return per_tensor ? tensor : 0; }
};

// The totals that one stage knows when it begins, and those that it adds up.
struct Totals {
  int32_t known_count = 0;
  int32_t summed_count = 0;
  Total known[kMaxTotals];
  Total summed[kMaxTotals];

  bool vary() const {
    for (int32_t index = 0; index < known_count; ++index)
      if (known[index].per_tensor) return true;
    return false;
  }

  void clear(int32_t tensors) const {
    for (int32_t index = 0; index < summed_count; ++index)
      memset(summed[index].sums, 0, sizeof(double) * lanes(summed[index], tensors));
  }

  // Adds the partial sums up, always in the same order, to what this rank has of each total.
  void fold(int32_t tensors) const {
    for (int32_t index = 0; index < summed_count; ++index) {
      const Total& total = summed[index];
      const int32_t count = total.per_tensor ? tensors : 1;
      for (int32_t place = 0; place < count; ++place) {
        double* sums = total.sums + size_t{COCOLL_SUM_LANES} * static_cast<size_t>(place);
        for (int32_t half = COCOLL_SUM_LANES / 2; half > 0; half /= 2)
          for (int32_t lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
        total.values[place] = sums[0];
      }
    }
  }

 private:
  static size_t lanes(const Total& total, int32_t tensors) {
    return size_t{COCOLL_SUM_LANES} * static_cast<size_t>(total.per_tensor ? tensors : 1);
  }
};

}  // namespace cocoll::host

#endif  // COCOLL_HOST_TOTALS_H_
