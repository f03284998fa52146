// Low latency: small vectors in one trip, without a meeting.
//
// Every rank pushes its source to all peers, each 4 bytes in a word of 8 beside the operation's
// epoch, and waits for the words themselves. A word is stored and loaded as one, so that nothing
// need be ordered around it: no flag, no fence. In front of a sender's words stands a header, a
// word with the operation's signature: ranks that disagree find out before they use anything.
//
// Epochs are compared for equality. Cleared memory holds 0, which no operation has. Words that
// nothing has been pushed over for exactly 2^32 - 2 operations would pass for new: there is no
// guard against that.
//
// What a rank receives lies in two halves, used in turn, so that nobody waits at the end. A half is
// pushed to again two operations later. Whoever does so has ended the operation between, and has
// received words of it from every peer; so every peer had started it, and had ended the one
// before: the kernels of a communicator run one after the other on each rank. Nobody reads from
// that half any more. For this even an operation without elements pushes a pack.

#ifndef COCOLL_KERNELS_LOW_LATENCY_H_
#define COCOLL_KERNELS_LOW_LATENCY_H_

#include "flags.h"
#include "pack.h"

namespace cocoll {

// A word is data << 32 | epoch.
#if COCOLL_DEVICE

COCOLL_INLINE void push_words(uint64_t* place, const uint64_t (&words)[1]) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" : : "l"(place), "l"(words[0]));
}

// Two words at once, of which each is stored as one.
COCOLL_INLINE void push_words(uint64_t* place, const uint64_t (&words)[2]) {
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};"
               :
               : "l"(place), "l"(words[0]), "l"(words[1]));
}

COCOLL_INLINE void peek_words(const uint64_t* place, uint64_t (&words)[1]) {
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(words[0]) : "l"(place));
}

COCOLL_INLINE void peek_words(const uint64_t* place, uint64_t (&words)[2]) {
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(words[0]), "=l"(words[1])
               : "l"(place));
}

COCOLL_INLINE uint32_t peek(const uint32_t* place) {
  uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(place));
  return value;
}

#else

template <int kCount>
COCOLL_INLINE void push_words(uint64_t* place, const uint64_t (&words)[kCount]) {
  for (int i = 0; i < kCount; ++i) __atomic_store_n(place + i, words[i], __ATOMIC_RELAXED);
}

template <int kCount>
COCOLL_INLINE void peek_words(const uint64_t* place, uint64_t (&words)[kCount]) {
  for (int i = 0; i < kCount; ++i) words[i] = __atomic_load_n(place + i, __ATOMIC_RELAXED);
}

COCOLL_INLINE uint32_t peek(const uint32_t* place) {
  return __atomic_load_n(place, __ATOMIC_RELAXED);
}

#endif  // COCOLL_DEVICE

// The words of a pack, which move by two where there are so many. The first pair of all packs comes
// first, then the second of all: neighbouring threads move neighbours.
template <class T, int kElements>
struct PushedPack {
  static_assert(sizeof(Pack<T, kElements>) % 4 == 0, "words carry 4 bytes each");
  static constexpr int kWords = sizeof(Pack<T, kElements>) / 4;
  static constexpr int kTogether = kWords < 2 ? 1 : 2;
  static constexpr int kGroups = kWords / kTogether;
  static_assert(kGroups * kTogether == kWords, "a pack has 4, 8 or 16 bytes");

  uint64_t words[kGroups][kTogether];

  COCOLL_INLINE void fill(const Pack<T, kElements>& pack, uint32_t epoch) {
    uint32_t data[kWords];
    copy_bytes(data, &pack, sizeof(pack));
    COCOLL_UNROLL for (int i = 0; i < kWords; ++i) {
      words[i / kTogether][i % kTogether] = static_cast<uint64_t>(data[i]) << 32 | epoch;
    }
  }
  COCOLL_INLINE Pack<T, kElements> data() const {
    uint32_t data[kWords];
    COCOLL_UNROLL for (int i = 0; i < kWords; ++i) {
      data[i] = static_cast<uint32_t>(words[i / kTogether][i % kTogether] >> 32);
    }
    Pack<T, kElements> pack;
    copy_bytes(&pack, data, sizeof(pack));
    return pack;
  }
  COCOLL_INLINE bool is_of(uint32_t epoch) const {
    uint32_t others = 0;
    COCOLL_UNROLL for (int i = 0; i < kWords; ++i) {
      others |= static_cast<uint32_t>(words[i / kTogether][i % kTogether]) ^ epoch;
    }
    return others == 0;
  }
};

// What one operation pushes and awaits.
struct Pushing {
  uint64_t header;
  int64_t half_bytes;  // where the half in turn begins
  int64_t packs;       // of each rank

  COCOLL_INLINE uint32_t epoch() const { return static_cast<uint32_t>(header); }
};

COCOLL_INLINE uint32_t epoch_after(uint32_t epoch) {
  // 2 after the last one: epochs alternate, and 0 is none.
  return epoch == ~uint32_t{0} ? 2u : epoch + 1u;
}

// The operation after those that this block has counted.
COCOLL_INLINE Pushing next_pushing(const cocoll_grid_call& call, const Place& place,
                                   int64_t packs) {
  const uint32_t epoch = epoch_after(call.counters[place.block].pushed);
  const uint64_t header = static_cast<uint64_t>(call.signature) << 32 | epoch;
  const int64_t half_bytes = (epoch & 1u) != 0 ? call.world_size * call.staging_bytes : 0;
  return Pushing{header, half_bytes, packs};
}

// As count_staged(): an element's block changes with the grid.
COCOLL_INLINE void count_pushed(const cocoll_grid_call& call, const Place& place, uint32_t epoch) {
  for (int block = place.block; block < call.block_limit; block += place.blocks) {
    call.counters[block].pushed = epoch;
  }
}

// Where a rank receives what `sender` pushes: the header.
COCOLL_INLINE uint64_t* pushed_header(const cocoll_grid_call& call, const Pushing& pushing,
                                      int receiver, int sender) {
  char* half = static_cast<char*>(call.sources[receiver]) + pushing.half_bytes;
  return reinterpret_cast<uint64_t*>(half + sender * call.staging_bytes);
}

// The words of a pack that stand side by side, behind a header.
template <int kTogether, class Header>
COCOLL_INLINE Header* pushed_words(const Pushing& pushing, Header* header, int group,
                                   int64_t pack) {
  constexpr int kHeaderWords = COCOLL_GRID_HEADER_BYTES / sizeof(uint64_t);
  return header + kHeaderWords + (group * pushing.packs + pack) * kTogether;
}

// Pushes this thread's part of a header, which is the first block's.
COCOLL_INLINE void push_headers(const cocoll_grid_call& call, const Place& place,
                                const Pushing& pushing) {
  const uint64_t header[1] = {pushing.header};
  for (int peer = place.thread; peer < call.world_size; peer += place.threads) {
    if (peer == call.rank || place.block != 0) continue;
    push_words(pushed_header(call, pushing, peer, call.rank), header);
  }
}

template <class T, int kElements>
COCOLL_INLINE void push_part(const cocoll_grid_call& call, const Pushing& pushing, const Part& part,
                             const Pack<T, kElements>& pack) {
  typedef PushedPack<T, kElements> Pushed;
  Pushed pushed;
  pushed.fill(pack, pushing.epoch());
  const int64_t number = (part.index - call.begin) / kElements;
  COCOLL_NO_UNROLL for (int peer = 0; peer < call.world_size; ++peer) {
    if (peer == call.rank) continue;
    uint64_t* header = pushed_header(call, pushing, peer, call.rank);
    COCOLL_UNROLL for (int group = 0; group < Pushed::kGroups; ++group) {
      push_words(pushed_words<Pushed::kTogether>(pushing, header, group, number),
                 pushed.words[group]);
    }
  }
}

// What a thread that has waited for long looks at: whether a peer is in another operation, whether
// the communicator is given up, and the clock. Gives since when it has waited, or 0 once it must
// end.
COCOLL_INLINE uint64_t still_waits(const cocoll_grid_call& call, const Place& place,
                                   const Pushing& pushing, int missing, uint64_t since) {
  COCOLL_NO_UNROLL for (int peer = 0; peer < call.world_size; ++peer) {
    if (peer == call.rank) continue;
    // A peer that has come to a meeting which this rank has not come to pushes nothing any more;
    // and what it had pushed before it is visible now.
    const uint64_t flag = acquire_load(&call.flags_of[call.rank][0].flags[peer]);
    uint64_t header[1];
    peek_words(pushed_header(call, pushing, call.rank, peer), header);
    if (header[0] == pushing.header) continue;
    const bool disagrees = static_cast<uint32_t>(header[0]) == pushing.epoch();
    if (!disagrees && epochs_ahead(flag, call.counters[0].epoch) <= 0) continue;
    give_up(call, place.block, COCOLL_GRID_MISMATCH, peer, pushing.header,
            disagrees ? header[0] : flag);
    return 0;
  }
  const uint64_t now = place.nanoseconds();
  if (since == 0) since = now;
  const bool poisoned = acquire_load(call.poisoned) != 0;
  if (!poisoned && now - since <= call.limit_nanoseconds) return since;
  give_up(call, place.block, poisoned ? COCOLL_GRID_POISONED : COCOLL_GRID_LATE,
          poisoned ? -1 : missing, pushing.header, 0);
  return 0;
}

// Waits for a part of every peer's source and reduces it in rank order, with this rank's own; false
// if the operation cannot go on.
template <class R, int kElements>
COCOLL_INLINE bool reduce_pushed(const cocoll_grid_call& call, const Place& place,
                                 const Pushing& pushing, const Part& part,
                                 typename R::State* state) {
  typedef typename R::Source T;
  typedef PushedPack<T, kElements> Pushed;
  constexpr int kTurns = 256;
  // Loads are issued together, as in reduce_part(); fewer beside what computes in 8 bytes. None is
  // left out: this rank's own place, where nothing is pushed, stands in for what there is not.
  constexpr int kBatch = sizeof(T) >= 8 ? 2 : 4;
  const Pack<T, kElements> own =
      load_part<T, kElements>(static_cast<const T*>(call.own_source) + part.index, part);
  const int64_t number = (part.index - call.begin) / kElements;
  uint64_t since = 0;
  int turn = 0;
  COCOLL_NO_UNROLL for (int first = 0; first < call.world_size; first += kBatch) {
    Pushed pushed[kBatch];
    for (;;) {
      uint64_t headers[kBatch][1];
      int from = first;
      forget(&from);
      COCOLL_UNROLL for (int i = 0; i < kBatch; ++i) {
        const int sender = from + i < call.world_size ? from + i : call.rank;
        const uint64_t* header = pushed_header(call, pushing, call.rank, sender);
        peek_words(header, headers[i]);
        COCOLL_UNROLL for (int group = 0; group < Pushed::kGroups; ++group) {
          peek_words(pushed_words<Pushed::kTogether>(pushing, header, group, number),
                     pushed[i].words[group]);
        }
      }
      int missing = -1;
      COCOLL_UNROLL for (int i = 0; i < kBatch; ++i) {
        const int rank = first + i;
        const bool here = (headers[i][0] == pushing.header) & pushed[i].is_of(pushing.epoch());
        missing = here | (rank >= call.world_size) | (rank == call.rank) ? missing : rank;
      }
      if (missing < 0) break;
      place.pause();
      if (++turn % kTurns != 0) continue;
      since = still_waits(call, place, pushing, missing, since);
      if (since == 0) return false;
    }
    COCOLL_UNROLL for (int i = 0; i < kBatch; ++i) {
      const int rank = first + i;
      if (rank >= call.world_size) continue;
      const Pack<T, kElements> pack = rank == call.rank ? own : pushed[i].data();
      COCOLL_UNROLL for (int e = 0; e < kElements; ++e) {
        const typename R::State loaded = R::load(pack.values[e]);
        state[e] = rank == 0 ? loaded : R::combine(state[e], loaded);
      }
    }
  }
  return true;
}

}  // namespace cocoll

#endif  // COCOLL_KERNELS_LOW_LATENCY_H_
