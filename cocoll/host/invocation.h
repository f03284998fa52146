// What an execution is given: the facts of an operation, its program, and what it is bound to.

#ifndef COCOLL_HOST_INVOCATION_H_
#define COCOLL_HOST_INVOCATION_H_

#include <cstring>

#include "../kernels/abi.h"
#include "control.h"
#include "packed.h"
#include "tensors.h"
#include "totals.h"

namespace cocoll::host {

constexpr int32_t kMaxResults = 8;
constexpr int32_t kMaxOperands = 16;
constexpr int32_t kMaxScalars = 32;

// The agreed facts of an operation, as they are compared, recorded and reported.
struct Signature {
  uint8_t kind = 0;
  uint8_t op = 0;
  uint8_t dtype = 0;
  uint8_t options = 0;
  int32_t root = -1;
  uint64_t epilogue = 0;
  uint64_t tensors = 0;  // of a list: the digest of its lengths and of the scalars of each tensor

  // Two ranks that agree give the same number; `scalars` are agreed facts too.
  uint64_t digest(int64_t count, const double* scalars, int32_t scalar_count) const {
    uint64_t state =
        mix(uint64_t{kind} | uint64_t{op} << 8 | uint64_t{dtype} << 16 | uint64_t{options} << 24 |
            static_cast<uint64_t>(static_cast<uint32_t>(root)) << 32);
    state = mix(state ^ static_cast<uint64_t>(count));
    state = mix(state ^ epilogue);
    if (tensors != 0) state = mix(state ^ tensors);
    for (int32_t index = 0; index < scalar_count; ++index) {
      uint64_t bits;
      memcpy(&bits, &scalars[index], sizeof bits);
      state = mix(state ^ bits);
    }
    return state;
  }

  // The finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): every input bit moves every
  // output bit, so different facts collide with probability 2^-64.
  static uint64_t mix(uint64_t value) {
    value += 0x9e3779b97f4a7c15;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
    value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
    return value ^ (value >> 31);
  }
};

// One number for many.
inline uint64_t digest_of(const uint64_t* numbers, size_t count) {
  uint64_t state = count;
  for (size_t index = 0; index < count; ++index) state = Signature::mix(state ^ numbers[index]);
  return state;
}

// What serves every call of one kind: the variants of the plan and the kernel of their reduce
// steps.
struct Program {
  PlanImage mapped;  // peers touch the caller's arrays
  PlanImage staged;  // they do not
  bool has_mapped = false;
  bool has_staged = false;
  cocoll_reduce_fn reduce = nullptr;
  cocoll_reduce_fn partial = nullptr;  // of reduce steps that another one goes on with
  cocoll_prepare_fn prepare = nullptr;
  int32_t derived_count = 0;
  int32_t result_count = 1;
  uint8_t algorithm = 0;
  uint64_t number = 0;  // by which traces know it
};

// One call: a program and what it is bound to.
struct Invocation {
  Program* program = nullptr;
  Signature signature;
  int64_t count = 0;  // elements of the logical vector
  cocoll_array source{};
  int64_t source_bytes = 0;
  cocoll_array results[kMaxResults] = {};
  cocoll_array operands[kMaxOperands] = {};
  const cocoll_array* parts = nullptr;  // as many as the program's plans name
  const TensorTable* tensors =
      nullptr;  // of a call with lists: the input's, whose starts are all's
  const double* tensor_scalars = nullptr;  // [tensors][scalar_count], where they differ
  const Totals* totals = nullptr;          // of a stage of an epilogue with totals
  uint64_t source_reference = kNotMapped;
  uint64_t result_references[kMaxResults] = {};
  uint32_t reduce_flags = 0;
  bool may_stream = false;  // no line of a result has been read before it is written
  int32_t scalar_count = 0;
  double scalars[kMaxScalars] = {};
};

}  // namespace cocoll::host

#endif  // COCOLL_HOST_INVOCATION_H_
