// The C interface between executors and generated kernels.
//
// A kernel reduces one contiguous range of the logical vector: it reads every source in order,
// accumulates, runs the epilogue, and stores every result to each of its destinations. Executors
// fill the arguments; kernels keep nothing between calls and never block.

#ifndef COCOLL_KERNELS_ABI_H_
#define COCOLL_KERNELS_ABI_H_

#ifdef __CUDACC_RTC__
typedef unsigned char uint8_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#else
#include <stdint.h>
#endif

enum {
  COCOLL_ABI_VERSION = 2,
  COCOLL_MAX_DIMS = 8,
  // Partial sums of one total: element i adds to number i % COCOLL_SUM_LANES.
  COCOLL_SUM_LANES = 16,
  // Store results past the caches; the kernel fences before it returns.
  COCOLL_REDUCE_STREAMING = 1,
  // Store zeros over every source once it has been read (a fused zero_grad).
  COCOLL_REDUCE_ZERO_SOURCES = 2,
};

// The shape and strides of a caller's array that is not contiguous in C order, or that is broadcast
// (stride 0) over the logical shape.
typedef struct cocoll_layout {
  int32_t ndim;
  int32_t itemsize_bytes;
  int64_t shape[COCOLL_MAX_DIMS];
  int64_t stride_bytes[COCOLL_MAX_DIMS];
} cocoll_layout;

// One array, placed for one call.
//   layout == NULL: element j of the range lies at data + j * itemsize.
//   layout != NULL: data is the array's first element, and element j of the range is the C-order
//                   element (index + j) of the layout.
typedef struct cocoll_array {
  void* data;
  const cocoll_layout* layout;
  int64_t index;
} cocoll_array;

typedef struct cocoll_reduce_args {
  int64_t first;  // logical index of the range's first element: the counter of dropout
  int64_t count;  // elements in the range
  int32_t source_count;
  int32_t destination_count;         // destinations of each result
  int32_t world_size;                // the divisor of "avg"
  uint32_t flags;                    // COCOLL_REDUCE_*
  const cocoll_array* sources;       // [source_count], in rank order
  const cocoll_array* destinations;  // [result_count][destination_count]
  const cocoll_array* operands;      // [operand_count]: the epilogue's arrays
  const double* scalars;             // what prepare() wrote
  double* const* sums;               // of each total its COCOLL_SUM_LANES partial sums
} cocoll_reduce_args;

typedef void (*cocoll_reduce_fn)(const cocoll_reduce_args* args);

// Derives what a kernel reads (bias corrections, 1 - beta, ...) from the scalars of the call, once
// an operation and in float64, so that no kernel repeats it and both executors see the same bits.
typedef void (*cocoll_prepare_fn)(const double* scalars, double* derived);

// What a kernel library exports under the symbol "cocoll_kernel_table".
typedef struct cocoll_kernel_entry {
  const char* name;  // KernelSpec.name(): unique for dtypes, op and epilogue
  cocoll_reduce_fn reduce;
  cocoll_prepare_fn prepare;  // NULL: the scalars are passed on unchanged
  int32_t derived_count;      // doubles that prepare() writes
} cocoll_kernel_entry;

typedef struct cocoll_kernel_table {
  int32_t abi_version;
  int32_t entry_count;
  const cocoll_kernel_entry* entries;
} cocoll_kernel_table;

#endif  // COCOLL_KERNELS_ABI_H_
