// What a grid kernel is launched with: one structure by value, which lies in constant memory.
//
// A grid kernel is a whole collective operation of one rank: it meets its peers, reduces, runs the
// epilogue, stores to all and leaves, without its host. All ranks launch equal grids. One kernel
// serves three algorithms:
//   two-shot: every rank reduces its block from all and stores the results to all;
//   one-shot: every rank stages its source for all and reduces everything for itself;
//   low latency: every rank pushes its source to all and reduces everything for itself, without a
//   meeting (low_latency.h).

#ifndef COCOLL_KERNELS_GRID_ABI_H_
#define COCOLL_KERNELS_GRID_ABI_H_

#include "abi.h"

enum {
  COCOLL_GRID_MAX_RANKS = 8,
  COCOLL_GRID_MAX_RESULTS = 4,
  COCOLL_GRID_MAX_OPERANDS = 8,
  COCOLL_GRID_MAX_LAYOUTS = 4,
  COCOLL_GRID_MAX_DERIVED = 24,
  COCOLL_GRID_MAX_BLOCKS = 256,
  // Store zeros over this rank's block of every source once it has been read.
  COCOLL_GRID_ZERO_SOURCES = 1,
  // Every array is contiguous, and aligned to 16 bytes where this rank's part begins.
  COCOLL_GRID_ALIGNED = 2,
  COCOLL_GRID_ONE_SHOT = 4,
  COCOLL_GRID_LOW_LATENCY = 8,
  // All that is read and written is this rank's own: nobody is met.
  COCOLL_GRID_ALONE = 16,
  // In front of what one rank pushes to another, a line of its own.
  COCOLL_GRID_HEADER_BYTES = 128,
};

// One block's flags on one rank, a line of its own: flags[p] is written by rank p alone. A flag is
// signature << 32 | epoch: one word, so that both are seen together.
typedef struct cocoll_grid_flags {
  uint64_t flags[16];
} cocoll_grid_flags;

// One block's private counters: nobody else reads them, so the kernel itself keeps them, and a
// launch can be repeated (a captured graph) without its host counting along.
typedef struct cocoll_grid_counters {
  uint32_t epoch;   // meetings so far; what this rank's flags on its peers say
  uint32_t staged;  // staged operations so far, of any grid; its parity: which half is next
  uint32_t pushed;  // the epoch of the last low-latency operation, of any grid
} cocoll_grid_counters;

// What plans signal and wait for on one rank: [flag][peer]. `raised` is written by the peers, the
// rest is the rank's own.
enum { COCOLL_GRID_SIGNALS = 6 };
typedef struct cocoll_grid_signals {
  uint32_t raised[COCOLL_GRID_SIGNALS][COCOLL_GRID_MAX_RANKS];
  uint32_t signalled[COCOLL_GRID_SIGNALS][COCOLL_GRID_MAX_RANKS];
  uint32_t awaited[COCOLL_GRID_SIGNALS][COCOLL_GRID_MAX_RANKS];
} cocoll_grid_signals;

enum {
  COCOLL_GRID_LATE = 1,      // a peer did not come in time
  COCOLL_GRID_MISMATCH = 2,  // a peer came to another operation
  COCOLL_GRID_POISONED = 3,  // a peer had given up
  COCOLL_GRID_WIRE = 4,      // NCCL failed; left by the host
};

// What a meeting that failed leaves for the host, in memory that both see. The first one wins.
typedef struct cocoll_grid_failure {
  uint32_t state;  // 0, then 1 while it is being written, then 2
  int32_t reason;  // COCOLL_GRID_LATE, ...
  int32_t block;
  int32_t peer;     // who, or -1
  uint64_t wanted;  // what its flag should have said
  uint64_t seen;    // what it said
} cocoll_grid_failure;

typedef struct cocoll_grid_array {
  void* data;
  int64_t origin;  // the logical index of its first element: a shard begins with its rank's block
  int32_t layout;  // which of the call's layouts, or -1: contiguous
} cocoll_grid_array;

typedef struct cocoll_grid_call {
  int32_t rank;
  int32_t world_size;
  uint32_t flags;             // COCOLL_GRID_*
  uint32_t signature;         // of all that ranks must agree on
  int32_t block_limit;        // how many blocks the largest grid has
  int32_t destination_count;  // of each result
  int32_t source_count;       // of a part of a plan, not always one of each rank
  int64_t begin, end;         // the logical elements that this rank reduces
  // Of one half of a rank's staging; low latency: of what one rank pushes to another.
  int64_t staging_bytes;
  uint64_t limit_nanoseconds;  // how long a wait may take
  // [rank] -> [block]; null where a rank's memory is not mapped: it is not met.
  cocoll_grid_flags* flags_of[COCOLL_GRID_MAX_RANKS];
  uint32_t* poisoned;  // this rank's word; peers write it too
  uint32_t* poison_of[COCOLL_GRID_MAX_RANKS];
  cocoll_grid_counters* counters;  // [block]
  cocoll_grid_failure* failure;
  // In the order of the sum; element 0 of the logical vector. One-shot: where the ranks stage,
  // first half; low latency: where they receive, first half, what rank 0 pushes.
  void* sources[COCOLL_GRID_MAX_RANKS];
  const void* own_source;  // one-shot, low latency: what this rank stages or pushes
  void* destinations[COCOLL_GRID_MAX_RESULTS][COCOLL_GRID_MAX_RANKS];
  cocoll_grid_array operands[COCOLL_GRID_MAX_OPERANDS];
  cocoll_layout layouts[COCOLL_GRID_MAX_LAYOUTS];
  double derived[COCOLL_GRID_MAX_DERIVED];  // what the epilogue's prepare() wrote
} cocoll_grid_call;

#endif  // COCOLL_KERNELS_GRID_ABI_H_
