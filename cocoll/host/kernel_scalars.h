// The numbers that kernels read and add to: derived scalars, for each tensor where they differ.

#ifndef COCOLL_HOST_KERNEL_SCALARS_H_
#define COCOLL_HOST_KERNEL_SCALARS_H_

#include <algorithm>
#include <vector>

#include "invocation.h"

namespace cocoll::host {

class KernelScalars {
 public:
  // Evaluates what kernels read of the call's scalars and of the totals known so far, once an
  // operation.
  void begin(const Invocation& call) {
    call_ = &call;
    const Program& program = *call.program;
    static constexpr Totals kNone;
    totals_ = call.totals == nullptr ? &kNone : call.totals;
    const Totals& totals = *totals_;
    const int32_t given = call.scalar_count + totals.known_count;
    const bool varies = call.tensor_scalars != nullptr || totals.vary();
    const int32_t rows = varies ? tensor_count() : 1;
    row_ = varies ? std::max(program.derived_count, given) : 0;
    derived_.resize(static_cast<size_t>(rows * row_ + kMaxScalars + kMaxTotals));
    double scalars[kMaxScalars + kMaxTotals];
    for (int32_t row = 0; row < rows; ++row) {
      const double* from = call.tensor_scalars == nullptr
                               ? call.scalars
                               : call.tensor_scalars + row * call.scalar_count;
      std::copy_n(from, call.scalar_count, scalars);
      for (int32_t index = 0; index < totals.known_count; ++index) {
        const Total& total = totals.known[index];
        scalars[call.scalar_count + index] = total.values[total.place(row)];
      }
      double* derived = derived_.data() + row * row_;
      if (program.prepare != nullptr)
        program.prepare(scalars, derived);
      else
        std::copy_n(scalars, given, derived);
    }
    totals.clear(tensor_count());
  }

  // Runs a kernel on elements of one tensor.
  void run(cocoll_reduce_fn kernel, cocoll_reduce_args* args, const Piece& piece) {
    args->first = piece.first;
    args->count = piece.count;
    args->scalars = derived_.data() + piece.tensor * row_;
    args->sums = sums_;
    const Totals& totals = *totals_;
    for (int32_t index = 0; index < totals.summed_count; ++index) {
      const Total& total = totals.summed[index];
      sums_[index] = total.sums + COCOLL_SUM_LANES * total.place(piece.tensor);
    }
    kernel(args);
  }

  // Once all kernels have run.
  void end() const { totals_->fold(tensor_count()); }

 private:
  int32_t tensor_count() const { return call_->tensors == nullptr ? 1 : call_->tensors->count; }

  const Invocation* call_ = nullptr;
  const Totals* totals_ = nullptr;
  int32_t row_ = 0;
  std::vector<double> derived_;
  double* sums_[kMaxTotals] = {};
};

// Clears what a call reads.
inline void zero_source(const Invocation& call) {
  if (call.tensors == nullptr) {
    memset(call.source.data, 0, static_cast<size_t>(call.source_bytes));
    return;
  }
  const int64_t itemsize = call.count == 0 ? 0 : call.source_bytes / call.count;
  for_each_piece(*call.tensors, 0, call.count, [&](const Piece& piece) {
    memset(call.tensors->tensors[piece.tensor].data, 0,
           static_cast<size_t>(piece.count * itemsize));
  });
}

}  // namespace cocoll::host

#endif  // COCOLL_HOST_KERNEL_SCALARS_H_
