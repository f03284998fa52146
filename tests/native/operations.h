// Calls of every kind with arrays of known values, and what must come out of them.

#ifndef COCOLL_TESTS_NATIVE_OPERATIONS_H_
#define COCOLL_TESTS_NATIVE_OPERATIONS_H_

#include <algorithm>

#include "arrays.h"
#include "plans.h"

namespace cocoll::native_tests {

// How a call's arrays are chosen.
struct Setup {
  int64_t count = 0;
  Memory memory = Memory::kOrdinary;
  bool in_place = false;
  int salt = 0;         // so that what an earlier call left behind is not taken for the answer
  int first_place = 0;  // of its symmetric arrays
};

// Whole numbers of at most three digits: sums of eight are exact in float32.
inline float value_of(int32_t rank, int64_t index, int salt) {
  return static_cast<float>((index * 7 + rank * 13 + salt * 29) % 251 - 125);
}

inline float sum_of(int32_t world_size, int64_t index, int salt) {
  float sum = 0;
  for (int32_t rank = 0; rank < world_size; ++rank) sum += value_of(rank, index, salt);
  return sum;
}

inline host::Status run(host::Execution* execution, host::Invocation* invocation) {
  host::Status status = execution->begin(invocation);
  while (status == host::Status::kPending) status = execution->resume();
  return status;
}

// One rank's call. `check` may run once it has completed on this rank, whatever the peers do.
class Operation {
 public:
  Operation(const host::Endpoint& endpoint, const Case& which, host::Program* program,
            const Setup& setup)
      : endpoint_(endpoint),
        case_(which),
        setup_(setup),
        block_(which.block_elements(setup.count)),
        start_(std::min(endpoint.rank * block_, setup.count)),
        length_(std::min(block_, setup.count - start_)) {
    invocation_.program = program;
    invocation_.signature.epilogue = std::hash<std::string>()(which.name);
    invocation_.signature.root = which.root;
    invocation_.count = setup.count;
    invocation_.source_bytes = setup.count * static_cast<int64_t>(sizeof(float));
    invocation_.reduce_flags = which.zero_source ? COCOLL_REDUCE_ZERO_SOURCES : 0;
    invocation_.scalar_count = static_cast<int32_t>(which.scalars.size());
    std::copy(which.scalars.begin(), which.scalars.end(), invocation_.scalars);
    make_arrays();
    bind();
  }
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  host::Invocation* invocation() { return &invocation_; }

  // Whether the answer came; then the caller may overwrite everything at once, and does.
  void check() {
    const int64_t first = is("reduce_scatter") ? start_ : 0;
    for (int64_t index = 0; index < result_.count(); ++index) {
      const float wanted = answer(first + index);
      const float got = result_.at(index);
      EXPECT(got == wanted, "got %g, not %g: %s of %lld on rank %d of %d, element %lld",
             static_cast<double>(got), static_cast<double>(wanted), case_.name.c_str(),
             static_cast<long long>(setup_.count), endpoint_.rank, case_.world_size,
             static_cast<long long>(index));
      if (got != wanted) break;
    }
    if (!setup_.in_place) check_source();
    for (int64_t index = 0; index < momentum_.count(); ++index)
      EXPECT(momentum_.at(index) == momentum_after(start_ + index), "got %g",
             static_cast<double>(momentum_.at(index)));
    source_.check_surroundings("the source");
    result_.check_surroundings("the result");
    momentum_.check_surroundings("the momentum");
    constexpr float kJunk = 777.0f;
    if (has_source()) source_.fill(kJunk);
    if (!case_.replicated) result_.fill(kJunk);
    momentum_.fill(kJunk);
  }

  // Whether the source is what the call has to leave, or, of a call that has not begun, found.
  void check_source() {
    const int64_t first = is("allgather") ? start_ : 0;
    for (int64_t index = 0; index < source_.count(); ++index) {
      const float wanted =
          case_.zero_source ? 0 : value_of(endpoint_.rank, first + index, setup_.salt);
      EXPECT(source_.at(index) == wanted, "the source of %s on rank %d has changed at %lld",
             case_.name.c_str(), endpoint_.rank, static_cast<long long>(index));
      if (source_.at(index) != wanted) break;
    }
  }

 private:
  bool is(const char* kind) const { return case_.kind == kind; }
  bool has_source() const { return !is("broadcast") || endpoint_.rank == case_.root; }

  Array make(int place, int64_t count, bool may_be_strided = true) const {
    Memory memory = setup_.memory;
    if (memory == Memory::kStrided && !may_be_strided) memory = Memory::kOrdinary;
    return Array(endpoint_, memory, setup_.first_place + place, count);
  }

  Array make_result(int64_t count) const {
    if (!case_.replicated) return make(1, count, !setup_.in_place);
    return Array(endpoint_, Memory::kReplicated, setup_.first_place, count);
  }

  void make_arrays() {
    if (is("barrier") || is("stuck")) return;
    if (is("allgather")) {
      result_ = make_result(setup_.count);
      source_ = setup_.in_place ? result_.part(endpoint_, start_, length_) : make(0, length_);
      for (int64_t index = 0; index < length_; ++index)
        source_.at(index) = value_of(endpoint_.rank, start_ + index, setup_.salt);
      return;
    }
    if (has_source()) {
      source_ = make(0, setup_.count, !setup_.in_place);
      for (int64_t index = 0; index < setup_.count; ++index)
        source_.at(index) = value_of(endpoint_.rank, index, setup_.salt);
    }
    if (is("reduce_scatter")) {
      result_ = setup_.in_place ? source_.part(endpoint_, start_, length_) : make_result(length_);
    } else if (setup_.in_place && has_source()) {
      result_ = source_.part(endpoint_, 0, setup_.count);
    } else {
      result_ = make_result(setup_.count);
    }
    if (!is("sgd")) return;
    for (int64_t index = 0; index < setup_.count; ++index)
      result_.at(index) = parameter_before(index);
    momentum_ = make(2, length_, false);
    for (int64_t index = 0; index < length_; ++index)
      momentum_.at(index) = momentum_before(start_ + index);
  }

  void bind() {
    invocation_.source = source_.placed();
    invocation_.source_reference = has_source() ? source_.reference() : 0;
    invocation_.results[0] = result_.placed();
    invocation_.result_references[0] = result_.reference();
    invocation_.may_stream = !setup_.in_place && !is("sgd");
    invocation_.operands[0] = result_.placed();
    invocation_.operands[1] = momentum_.placed();
  }

  float parameter_before(int64_t index) const { return value_of(31, index, setup_.salt); }
  float momentum_before(int64_t index) const { return value_of(32, index, setup_.salt); }
  float momentum_after(int64_t index) const {
    const float lr_momentum_decay[] = {0.5f, 0.5f, 0.25f};  // export_plans.SGD_SCALARS
    const float gradient = sum_of(case_.world_size, index, setup_.salt);
    return lr_momentum_decay[1] * momentum_before(index) +
           (gradient + lr_momentum_decay[2] * parameter_before(index));
  }

  float answer(int64_t index) const {
    if (is("allgather")) return value_of(static_cast<int32_t>(index / block_), index, setup_.salt);
    if (is("broadcast")) return value_of(case_.root, index, setup_.salt);
    if (is("sgd")) return parameter_before(index) - 0.5f * momentum_after(index);
    return sum_of(case_.world_size, index, setup_.salt);
  }

  const host::Endpoint& endpoint_;
  const Case& case_;
  const Setup setup_;
  const int64_t block_;
  const int64_t start_;
  const int64_t length_;
  host::Invocation invocation_;
  Array source_;
  Array result_;
  Array momentum_;
};

}  // namespace cocoll::native_tests

#endif  // COCOLL_TESTS_NATIVE_OPERATIONS_H_
