// How grids of several ranks meet: flags in each other's memory, released and acquired.
//
// Block b of a rank meets block b of every peer. It raises its flag on each of them to its next
// epoch and waits until theirs have come as far here. Epochs only grow and are compared by their
// signed difference, so nothing is ever reset and 32 bits may wrap. Around it stand barriers of the
// block: what any of its threads has stored is published by the flag, and what a peer's flag
// publishes is seen by all of them. A flag also carries what its rank believes the operation to be:
// ranks that disagree find out at their first meeting, before anything has moved.

#ifndef COCOLL_KERNELS_FLAGS_H_
#define COCOLL_KERNELS_FLAGS_H_

#include "grid_abi.h"
#include "port.h"

namespace cocoll {

#if COCOLL_DEVICE

// Who runs: one thread of one block.
struct Place {
  int block, blocks, thread, threads;

  COCOLL_INLINE static Place current() {
    return Place{static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x),
                 static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x)};
  }
  COCOLL_INLINE void synchronize() const { __syncthreads(); }
  COCOLL_INLINE bool any(bool mine) const { return __syncthreads_or(mine ? 1 : 0) != 0; }
  COCOLL_INLINE void pause() const {}
  COCOLL_INLINE uint64_t nanoseconds() const {
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
  }
};

// Not volatile and not __threadfence_system(): a release of this one word orders all that the
// block's barrier has gathered before it, and costs less.
COCOLL_INLINE void release_store(uint32_t* word, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" : : "l"(word), "r"(value) : "memory");
}

COCOLL_INLINE void release_store(uint64_t* word, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" : : "l"(word), "l"(value) : "memory");
}

COCOLL_INLINE uint32_t acquire_load(const uint32_t* word) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}

COCOLL_INLINE uint64_t acquire_load(const uint64_t* word) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}

COCOLL_INLINE bool claim(uint32_t* word) { return atomicCAS_system(word, 0u, 1u) == 0u; }

#else

// What an emulated device lends its threads.
struct PlaceCalls {
  void (*synchronize)(void* block);
  bool (*any)(void* block, bool mine);
  void (*pause)();
  uint64_t (*nanoseconds)();
};

struct Place {
  int block, blocks, thread, threads;
  const PlaceCalls* calls;
  void* context;  // the block's

  COCOLL_INLINE void synchronize() const {
    if (threads > 1) calls->synchronize(context);
  }
  COCOLL_INLINE bool any(bool mine) const { return threads > 1 ? calls->any(context, mine) : mine; }
  COCOLL_INLINE void pause() const { calls->pause(); }
  COCOLL_INLINE uint64_t nanoseconds() const { return calls->nanoseconds(); }
};

template <class Word>
COCOLL_INLINE void release_store(Word* word, Word value) {
  __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

template <class Word>
COCOLL_INLINE Word acquire_load(const Word* word) {
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

COCOLL_INLINE bool claim(uint32_t* word) {
  uint32_t expected = 0;
  return __atomic_compare_exchange_n(word, &expected, 1u, false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_RELAXED);
}

#endif  // COCOLL_DEVICE

// Tells this rank's host and all peers that the communicator is given up.
COCOLL_OUTLINE void give_up(const cocoll_grid_call& call, int block, int reason, int peer,
                            uint64_t wanted, uint64_t seen) {
  cocoll_grid_failure* failure = call.failure;
  if (claim(&failure->state)) {
    failure->reason = reason;
    failure->block = block;
    failure->peer = peer;
    failure->wanted = wanted;
    failure->seen = seen;
    release_store(&failure->state, 2u);
  }
  COCOLL_NO_UNROLL for (int rank = 0; rank < call.world_size; ++rank) {
    // Of ranks that are reached over a wire nothing is mapped: their hosts learn it.
    if (call.poison_of[rank] != nullptr) release_store(call.poison_of[rank], 1u);
  }
}

// How far a flag is ahead of an epoch; epochs wrap.
COCOLL_INLINE int32_t epochs_ahead(uint64_t flag, uint32_t epoch) {
  return static_cast<int32_t>(static_cast<uint32_t>(flag) - epoch);
}

// What a wait that lasts looks at, now and then: the clock and the poison are slow to read. Gives
// why it must end, or 0.
COCOLL_INLINE int reason_to_end(const cocoll_grid_call& call, const Place& place, uint64_t start) {
  if (acquire_load(call.poisoned) != 0) return COCOLL_GRID_POISONED;
  return place.nanoseconds() - start > call.limit_nanoseconds ? COCOLL_GRID_LATE : 0;
}

// Waits until one peer's flag has come as far as `epoch`, and gives what it then says. Where it
// does not come, `*reason` says why.
COCOLL_INLINE uint64_t await(const cocoll_grid_call& call, const Place& place, int peer,
                             uint32_t epoch, int* reason) {
  const uint64_t* flag = &call.flags_of[call.rank][place.block].flags[peer];
  uint64_t seen = acquire_load(flag);
  if (epochs_ahead(seen, epoch) >= 0) return seen;
  const uint64_t start = place.nanoseconds();
  // The clock and the poison are slow to read: not at every turn.
  constexpr int kTurns = 256;
  for (;;) {
    COCOLL_NO_UNROLL for (int turn = 0; turn < kTurns; ++turn) {
      seen = acquire_load(flag);
      if (epochs_ahead(seen, epoch) >= 0) return seen;
      place.pause();
    }
    if (acquire_load(call.poisoned) != 0) {
      *reason = COCOLL_GRID_POISONED;
      return seen;
    }
    if (place.nanoseconds() - start > call.limit_nanoseconds) {
      *reason = COCOLL_GRID_LATE;
      return seen;
    }
  }
}

// Waits for one peer, and compares notes with it; false if the operation cannot go on. A peer that
// is an epoch ahead has itself found this rank's signature to be its own: one that fails raises no
// flag any more.
COCOLL_INLINE bool greet(const cocoll_grid_call& call, const Place& place, int peer,
                         uint64_t wanted) {
  int reason = 0;
  const uint64_t seen = await(call, place, peer, static_cast<uint32_t>(wanted), &reason);
  if (reason == 0 && epochs_ahead(seen, static_cast<uint32_t>(wanted)) == 0 && seen != wanted) {
    reason = COCOLL_GRID_MISMATCH;
  }
  // A peer may have raised its flag, waited in vain and given up before this rank came.
  if (reason == 0 && acquire_load(call.poisoned) != 0) reason = COCOLL_GRID_POISONED;
  if (reason == 0) return true;
  give_up(call, place.block, reason, reason == COCOLL_GRID_POISONED ? -1 : peer, wanted, seen);
  return false;
}

// Whether the communicator has been given up; all threads of a block get one answer.
COCOLL_INLINE bool is_poisoned(const cocoll_grid_call& call, const Place& place) {
  return place.any(place.thread == 0 && acquire_load(call.poisoned) != 0);
}

// Whether a peer's memory is mapped: those on other hosts are reached over a wire.
COCOLL_INLINE bool is_met(const cocoll_grid_call& call, int peer) {
  return peer != call.rank && call.flags_of[peer] != nullptr;
}

// Meets block `place.block` of every peer that is mapped; every thread of the block calls it.
// False, on all threads, if the operation cannot go on: the kernel then ends at once, and this rank
// raises no flag again.
COCOLL_INLINE bool meet(const cocoll_grid_call& call, const Place& place) {
  uint32_t* counter = &call.counters[place.block].epoch;
  const uint32_t epoch = *counter + 1u;
  const uint64_t flag = static_cast<uint64_t>(call.signature) << 32 | epoch;
  // Also the barrier of the block that goes before a flag.
  if (is_poisoned(call, place)) {
    if (place.thread == 0) give_up(call, place.block, COCOLL_GRID_POISONED, -1, flag, 0);
    return false;
  }
  bool failed = false;
  for (int peer = place.thread; peer < call.world_size; peer += place.threads) {
    if (!is_met(call, peer)) continue;
    release_store(&call.flags_of[peer][place.block].flags[call.rank], flag);
  }
  for (int peer = place.thread; peer < call.world_size; peer += place.threads) {
    if (is_met(call, peer) && !greet(call, place, peer, flag)) failed = true;
  }
  // Before the barrier: every thread reads it when it comes to the next meeting.
  if (place.thread == 0) *counter = epoch;
  return !place.any(failed);
}

// The steps signal and wait of a plan, each a kernel of one block. Counters only grow, and are kept
// on the device: this rank's of what it has signalled or awaited is `sources[0]`, `end` the peer.

// Raises the word of a peer, `destinations[0][0]`, by one; all that ran before is published.
COCOLL_INLINE void signal_grid(const cocoll_grid_call& call, const Place& place) {
  if (is_poisoned(call, place) || place.block != 0 || place.thread != 0) return;
  uint32_t* signalled = static_cast<uint32_t*>(call.sources[0]);
  release_store(static_cast<uint32_t*>(call.destinations[0][0]), ++*signalled);
}

// Waits until a peer has raised `own_source` once more.
COCOLL_INLINE void wait_grid(const cocoll_grid_call& call, const Place& place) {
  if (is_poisoned(call, place) || place.block != 0 || place.thread != 0) return;
  uint32_t* awaited = static_cast<uint32_t*>(call.sources[0]);
  const uint32_t wanted = ++*awaited;
  const uint32_t* raised = static_cast<const uint32_t*>(call.own_source);
  const uint64_t start = place.nanoseconds();
  constexpr int kTurns = 256;
  for (;;) {
    for (int turn = 0; turn < kTurns; ++turn) {
      if (epochs_ahead(acquire_load(raised), wanted) >= 0) return;
      place.pause();
    }
    const int reason = reason_to_end(call, place, start);
    if (reason == 0) continue;
    const int peer = reason == COCOLL_GRID_POISONED ? -1 : static_cast<int>(call.end);
    give_up(call, 0, reason, peer, wanted, acquire_load(raised));
    return;
  }
}

}  // namespace cocoll

#endif  // COCOLL_KERNELS_FLAGS_H_
