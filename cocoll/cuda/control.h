// What a rank's first segment holds, and what a rank is told of its communicator.

#ifndef COCOLL_CUDA_CONTROL_H_
#define COCOLL_CUDA_CONTROL_H_

#include <cstddef>
#include <cstdint>

#include "cocoll/cuda/driver.h"
#include "cocoll/host/arena.h"
#include "cocoll/kernels/grid_abi.h"

namespace cocoll::cuda {

// Where things lie in a rank's first segment. The same on all ranks, for the sizes are agreed.
struct ControlLayout {
  size_t poison, greetings, signals, flags, counters, staging, window, received, end;

  static ControlLayout of(int blocks, size_t staging_bytes, size_t window_bytes, int world_size,
                          size_t low_latency_bytes) {
    constexpr size_t kUnit = 128;
    ControlLayout layout = {};
    layout.poison = 0;
    layout.greetings = kUnit;
    layout.signals = 2 * kUnit;
    layout.flags = host::round_up(layout.signals + sizeof(cocoll_grid_signals), kUnit);
    layout.counters = layout.flags + sizeof(cocoll_grid_flags) * static_cast<size_t>(blocks);
    layout.staging = host::round_up(
        layout.counters + sizeof(cocoll_grid_counters) * static_cast<size_t>(blocks), kUnit);
    layout.window = layout.staging + 2 * staging_bytes;
    layout.received = host::round_up(layout.window + window_bytes, kUnit);
    layout.end =
        layout.received + 2 * static_cast<size_t>(world_size) * pushed_bytes(low_latency_bytes);
    return layout;
  }

  // What one rank pushes to another in one operation, at most: half of a word is data.
  static size_t pushed_bytes(size_t low_latency_bytes) {
    return host::round_up(COCOLL_GRID_HEADER_BYTES + 2 * low_latency_bytes,
                          COCOLL_GRID_HEADER_BYTES);
  }
};

struct ExecutorOptions {
  int rank = 0;
  int world_size = 1;
  Device device = 0;
  int blocks = 1;            // the largest grid; all of it must be resident
  size_t staging_bytes = 0;  // of one half, for one-shot; a multiple of 128
  size_t window_bytes = 0;   // where chunks of ordinary arrays are handed over; a multiple of 128
  size_t low_latency_bytes = 0;  // the most that is pushed, in whole packs; a multiple of 16
  uint64_t limit_nanoseconds = 0;
};

}  // namespace cocoll::cuda

#endif  // COCOLL_CUDA_CONTROL_H_
