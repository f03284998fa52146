// Grid kernels: a whole collective in one launch.
//
// A generated pass says what is done to one pack of elements:
//
//   struct Pass {
//     typedef ... Reduction;           // of reductions.h
//     static constexpr int kElements;  // of a pack
//     explicit Pass(const cocoll_grid_call& call);
//     // Runs the epilogue and stores what it gives.
//     void finish(const cocoll_grid_call& call, const Part& part, const State* reduced) const;
//   };
//
// Sums are made in rank order in the accumulate type, so that all algorithms and the host's kernels
// give the same bits. Every input is read once and every output written once.

#ifndef COCOLL_KERNELS_GRID_H_
#define COCOLL_KERNELS_GRID_H_

#include "flags.h"
#include "low_latency.h"
#include "math.h"
#include "pack.h"
#include "reductions.h"

#if COCOLL_DEVICE
#define COCOLL_GRID_THREADS 512
#define COCOLL_GRID_KERNEL(name)                                       \
  extern "C" __global__ void __launch_bounds__(COCOLL_GRID_THREADS, 1) \
      name(const __grid_constant__ cocoll_grid_call call)
#define COCOLL_GRID_PLACE cocoll::Place::current()
#else
#define COCOLL_GRID_KERNEL(name)                                                            \
  extern "C" __attribute__((visibility("default"))) void name(const cocoll_grid_call& call, \
                                                              const cocoll::Place& place)
#define COCOLL_GRID_PLACE place
#endif

namespace cocoll {

// Element 0 of what is reduced of one rank.
template <class T>
COCOLL_INLINE T* source_of(const cocoll_grid_call& call, int rank, int64_t offset_bytes) {
  return reinterpret_cast<T*>(static_cast<char*>(call.sources[rank]) + offset_bytes);
}

// Reads a part of the source of every rank and reduces it in rank order.
template <class R, int kElements>
COCOLL_INLINE void reduce_part(const cocoll_grid_call& call, int64_t offset_bytes, const Part& part,
                               typename R::State* state) {
  typedef typename R::Source T;
  const int64_t place_bytes = offset_bytes + part.index * static_cast<int64_t>(sizeof(T));
  if (!part.whole) {
    // The last elements, or arrays that are not aligned: rank by rank, with little code.
    COCOLL_NO_UNROLL for (int rank = 0; rank < call.source_count; ++rank) {
      const Pack<T, kElements> pack =
          load_part<T, kElements>(source_of<T>(call, rank, place_bytes), part);
      COCOLL_UNROLL for (int i = 0; i < kElements; ++i) {
        const typename R::State loaded = R::load(pack.values[i]);
        state[i] = rank == 0 ? loaded : R::combine(state[i], loaded);
      }
    }
    return;
  }
  // Loads are issued before the sums, so that the latency of peers' memory is paid once; four at a
  // time, for more would not stay in registers beside an epilogue's.
  constexpr int kBatch = 4;
  COCOLL_UNROLL for (int first = 0; first < COCOLL_GRID_MAX_RANKS; first += kBatch) {
    Pack<T, kElements> packs[kBatch];
    COCOLL_UNROLL for (int i = 0; i < kBatch; ++i) {
      const int rank = first + i;
      if (rank < call.source_count) {
        packs[i] = load_pack<T, kElements>(source_of<T>(call, rank, place_bytes));
      }
    }
    COCOLL_UNROLL for (int i = 0; i < kBatch; ++i) {
      const int rank = first + i;
      if (rank >= call.source_count) continue;
      COCOLL_UNROLL for (int e = 0; e < kElements; ++e) {
        const typename R::State loaded = R::load(packs[i].values[e]);
        state[e] = rank == 0 ? loaded : R::combine(state[e], loaded);
      }
    }
  }
}

// A destination that is also a source keeps the result: zeros come first.
template <class T, int kElements>
COCOLL_INLINE void zero_part(const cocoll_grid_call& call, const Part& part) {
  Pack<T, kElements> zeros;
  COCOLL_UNROLL for (int i = 0; i < kElements; ++i) zeros.values[i] = T{};
  COCOLL_NO_UNROLL for (int rank = 0; rank < call.source_count; ++rank) {
    store_part(source_of<T>(call, rank, 0) + part.index, part, zeros);
  }
}

// Stores a part of a result to all its destinations.
template <class T, class C, int kElements>
COCOLL_INLINE void spread_part(const cocoll_grid_call& call, int which, const Part& part,
                               const C* values) {
  const Pack<T, kElements> pack = narrow_pack<T, C, kElements>(values);
  // Stores wait for nothing, so there is nothing that unrolling would hide.
  COCOLL_NO_UNROLL for (int rank = 0; rank < call.destination_count; ++rank) {
    store_part(static_cast<T*>(call.destinations[which][rank]) + part.index, part, pack);
  }
}

// How many packs this rank's elements are; low latency has one at least.
template <int kElements>
COCOLL_INLINE int64_t count_packs(const cocoll_grid_call& call) {
  const int64_t packs = (call.end - call.begin + kElements - 1) / kElements;
  return packs == 0 && (call.flags & COCOLL_GRID_LOW_LATENCY) != 0 ? 1 : packs;
}

// Does `body(part)` for the parts of this rank's elements that are this thread's. Thread t of block
// b takes packs t + b * threads, and so on in steps of the whole grid: on all ranks alike, whatever
// the alignment of their arrays.
template <int kElements, class Body>
COCOLL_INLINE void for_each_part(const cocoll_grid_call& call, const Place& place,
                                 const Body& body) {
  const int64_t packs = count_packs<kElements>(call);
  const int64_t step = static_cast<int64_t>(place.blocks) * place.threads;
  const bool aligned = (call.flags & COCOLL_GRID_ALIGNED) != 0;
  for (int64_t pack = static_cast<int64_t>(place.block) * place.threads + place.thread;
       pack < packs; pack += step) {
    const int64_t index = call.begin + pack * kElements;
    const int valid = static_cast<int>(smaller<int64_t>(kElements, call.end - index));
    body(Part{index, valid, aligned && valid == kElements});
  }
}

// One-shot, before anything is read: stages this rank's source, and gives the offset of the half
// of the staging that is in turn. The halves alternate, so that nobody waits at the end: a half is
// written again two operations later, when every peer has arrived at the operation between.
template <class Pass>
COCOLL_INLINE int64_t stage(const cocoll_grid_call& call, const Place& place) {
  typedef typename Pass::Reduction::Source T;
  const int64_t offset_bytes =
      (call.counters[place.block].staged & 1u) != 0 ? call.staging_bytes : 0;
  T* staged = source_of<T>(call, call.rank, offset_bytes);
  // A block copies just what it, and block b of every peer, will read.
  for_each_part<Pass::kElements>(call, place, [&](const Part& part) {
    store_part(
        staged + part.index, part,
        load_part<T, Pass::kElements>(static_cast<const T*>(call.own_source) + part.index, part));
  });
  return offset_bytes;
}

// Counts for this block, and for those that a larger grid would have: an element's block changes
// with the grid, so all of them must agree on which half is in turn.
COCOLL_INLINE void count_staged(const cocoll_grid_call& call, const Place& place) {
  for (int block = place.block; block < call.block_limit; block += place.blocks) {
    ++call.counters[block].staged;
  }
}

// Low latency, before anything is awaited: pushes this rank's source; false, on all threads, if the
// communicator has been given up.
template <class Pass>
COCOLL_INLINE bool push(const cocoll_grid_call& call, const Place& place, const Pushing& pushing) {
  typedef typename Pass::Reduction::Source T;
  // Not acquired: it orders nothing here, and is on its way while the source is.
  const bool poisoned = peek(call.poisoned) != 0;
  for_each_part<Pass::kElements>(call, place, [&](const Part& part) {
    const Pack<T, Pass::kElements> pack =
        load_part<T, Pass::kElements>(static_cast<const T*>(call.own_source) + part.index, part);
    if (!poisoned) push_part<T, Pass::kElements>(call, pushing, part, pack);
  });
  if (!poisoned) push_headers(call, place, pushing);
  if (place.any(poisoned)) {
    if (place.thread == 0) {
      give_up(call, place.block, COCOLL_GRID_POISONED, -1, pushing.header, 0);
    }
    return false;
  }
  // Every thread has read the epoch before the barrier.
  if (place.thread == 0) count_pushed(call, place, pushing.epoch());
  return true;
}

// Copies bytes [begin, end) of `own_source` to the first destination, or stores zeros where there
// is no source; nothing once the communicator has been given up: what a failed meeting has left in
// a window must not reach an array of the caller's.
COCOLL_INLINE void copy_grid(const cocoll_grid_call& call, const Place& place) {
  if (is_poisoned(call, place)) return;
  const char* from = static_cast<const char*>(call.own_source);
  char* to = static_cast<char*>(call.destinations[0][0]);
  for_each_part<kPackBytes>(call, place, [&](const Part& part) {
    Pack<char, kPackBytes> pack = {};
    if (from != nullptr) pack = load_part<char, kPackBytes>(from + part.index, part);
    store_part(to + part.index, part, pack);
  });
}

template <class T>
COCOLL_INLINE T* place_of(const cocoll_grid_call& call, const cocoll_grid_array& array,
                          int64_t index) {
  if (array.layout >= 0) return element_place<T>(call, array, index);
  return static_cast<T*>(array.data) + (index - array.origin);
}

template <int kBytes>
COCOLL_INLINE void copy_elements(const cocoll_grid_call& call, const Place& place) {
  typedef Pack<char, kBytes> Element;
  const int64_t step = static_cast<int64_t>(place.blocks) * place.threads;
  for (int64_t index =
           call.begin + static_cast<int64_t>(place.block) * place.threads + place.thread;
       index < call.end; index += step) {
    const char* from = place_of<Element>(call, call.operands[0], index)->values;
    store_pack(place_of<Element>(call, call.operands[1], index)->values,
               load_pack<char, kBytes>(from));
  }
}

// Copies elements [begin, end) of the first operand to the second, of which one at least is
// strided; like copy_grid not once the communicator has been given up.
COCOLL_INLINE void copy_strided_grid(const cocoll_grid_call& call, const Place& place) {
  if (is_poisoned(call, place)) return;
  switch (call.layouts[0].itemsize_bytes) {
    case 1:
      return copy_elements<1>(call, place);
    case 2:
      return copy_elements<2>(call, place);
    case 4:
      return copy_elements<4>(call, place);
    case 8:
      return copy_elements<8>(call, place);
    default:
      return copy_elements<16>(call, place);
  }
}

// Compares what the ranks have said of their operations over a wire: the words at `own_source`,
// which are zero before they have come. A neighbour that has found a difference poisons this rank,
// which may know as well.
COCOLL_INLINE void compare_grid(const cocoll_grid_call& call, const Place& place) {
  const bool poisoned = is_poisoned(call, place);
  if (place.block != 0 || place.thread != 0) return;
  uint32_t* words = static_cast<uint32_t*>(const_cast<void*>(call.own_source));
  int other = -1;  // who said something else, and what
  uint32_t said = 0;
  COCOLL_NO_UNROLL for (int rank = call.world_size - 1; rank >= 0; --rank) {
    const uint32_t word = words[rank];
    words[rank] = 0;
    if (word == call.signature || (poisoned && word == 0)) continue;
    other = rank;
    said = word;
  }
  if (other < 0) return;
  const uint64_t wanted = static_cast<uint64_t>(call.signature) << 32;
  give_up(call, 0, COCOLL_GRID_MISMATCH, other, wanted, static_cast<uint64_t>(said) << 32);
}

template <class Pass>
COCOLL_INLINE void run_grid(const cocoll_grid_call& call, const Place& place) {
  typedef typename Pass::Reduction R;
  const bool one_shot = (call.flags & COCOLL_GRID_ONE_SHOT) != 0;
  const bool low_latency = (call.flags & COCOLL_GRID_LOW_LATENCY) != 0;
  const bool alone = (call.flags & COCOLL_GRID_ALONE) != 0;
  int64_t offset_bytes = 0;
  Pushing pushing = {};
  if (low_latency) {
    pushing = next_pushing(call, place, count_packs<Pass::kElements>(call));
    if (!push<Pass>(call, place, pushing)) return;
  } else {
    if (one_shot) offset_bytes = stage<Pass>(call, place);
    if (alone ? is_poisoned(call, place) : !meet(call, place)) return;
    // Every thread has read the count before the meeting.
    if (one_shot && place.thread == 0) count_staged(call, place);
  }
  bool failed = false;
  const Pass pass(call);
  for_each_part<Pass::kElements>(call, place, [&](const Part& part) {
    typename R::State state[Pass::kElements];
    if (!low_latency) {
      reduce_part<R, Pass::kElements>(call, offset_bytes, part, state);
    } else {
      failed = failed || !reduce_pushed<R, Pass::kElements>(call, place, pushing, part, state);
      if (failed) return;
    }
    if ((call.flags & COCOLL_GRID_ZERO_SOURCES) != 0) {
      zero_part<typename R::Source, Pass::kElements>(call, part);
    }
    pass.finish(call, part, state);
  });
  // Two-shot: from here on nobody reads or writes another rank's arrays.
  if (!one_shot && !low_latency && !alone) meet(call, place);
}

}  // namespace cocoll

#endif  // COCOLL_KERNELS_GRID_H_
