// The control page: what the ranks of one host share besides data.
//
// One lies at the start of every rank's arena. Its owner writes lines, flight records and its own
// state; peers write the flags that the owner waits on, its abort word and its doorbell. Every word
// that two ranks touch is a lock-free atomic; everything else is published by one of them.

#ifndef COCOLL_HOST_CONTROL_H_
#define COCOLL_HOST_CONTROL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace cocoll::host {

constexpr size_t kCacheLineBytes = 64;
constexpr int32_t kFlagCount = 8;
constexpr int32_t kLinePayloadBytes = 64;
constexpr uint32_t kFlightRecords = 256;
constexpr uint32_t kMirroredRecords = 32;
constexpr uint32_t kPointRecords = 64;
constexpr uint64_t kControlMagic = 0x306c6c6f636f63;  // "cocoll0", little-endian
constexpr uint32_t kControlVersion = 3;
constexpr size_t kLetterBytes = 4096 - 2 * sizeof(uint64_t);

// An array that peers cannot reach through mapped memory.
constexpr uint64_t kNotMapped = ~uint64_t{0};
// Set in a reference to memory of which the host has one copy.
constexpr uint64_t kReplicatedBit = uint64_t{1} << 63;

static_assert(std::atomic<uint32_t>::is_always_lock_free, "flags live in shared memory");
static_assert(std::atomic<uint64_t>::is_always_lock_free, "flags live in shared memory");

// What a rank publishes when it arrives at an operation. Two alternate: when a rank arrives at
// operation s + 2, every peer has arrived at s + 1 and so has finished reading line s.
struct alignas(2 * kCacheLineBytes) ArrivalLine {
  std::atomic<uint64_t> sequence;  // written last; the header shares a cache line with 32 bytes
  uint64_t digest;                 // of the agreed facts
  uint64_t source;                 // where this rank's source lies in its arena, or kNotMapped
  uint64_t result;                 // where its first result may be written, or kNotMapped
  unsigned char payload[kLinePayloadBytes];  // the data of tiny operations, else further results
};

// One counter; its only writer is a peer, its only reader the owner of the page.
struct alignas(kCacheLineBytes) FlagLine {
  std::atomic<uint32_t> count;
};

enum class FlightState : uint8_t { kEmpty = 0, kRunning, kDone, kFailed };

// One operation, as the flight recorder and mismatch reports describe it.
struct alignas(kCacheLineBytes) FlightRecord {
  uint64_t sequence;
  uint64_t digest;
  int64_t count;
  uint64_t epilogue;  // the head of the epilogue's digest, 0 where there is none
  uint64_t started_ticks;
  int32_t root;
  uint8_t kind;
  uint8_t op;
  uint8_t dtype;
  uint8_t options;
  std::atomic<uint8_t> state;
  uint8_t algorithm;
};

enum class RankState : uint32_t { kPresent = 1, kLeft = 2 };

enum class AbortReason : uint32_t {
  kNone = 0,
  kException = 1,
  kInterrupt = 2,
  kTimeout = 3,
  kPeerLost = 4,
  kRequested = 5,
  kLauncherLost = 6,
};

// A message of one rank to all others while they shrink a communicator. Two alternate, as arrival
// lines do.
struct alignas(kCacheLineBytes) Letter {
  std::atomic<uint64_t> turn;  // written last
  uint64_t total_bytes;        // of what comes in turns
  unsigned char payload[kLetterBytes];
};

// How the ranks that are left of a host agree on who they are; see survivors.h.
struct alignas(kCacheLineBytes) Survival {
  std::atomic<uint64_t> round;   // that the owner has come to, 0: none
  std::atomic<uint32_t> parted;  // the owner will come to no round
  // On the page of the host's first rank: the last round whose members are decided, with the rank
  // on whose page they stand; and how the last round ended.
  alignas(kCacheLineBytes) std::atomic<uint64_t> decision;
  std::atomic<uint64_t> outcome;
  Letter letters[2];
  // std::atomic<uint64_t> members[2][ceil(world_size / 64)] follow, by round.
};

struct Control {
  uint64_t magic;
  uint32_t version;
  int32_t rank;
  int32_t world_size;
  int32_t pid;
  uint64_t token;
  std::atomic<uint32_t> state;  // RankState

  // Rung by peers when the owner sleeps; a line of its own, for it is read on every signal.
  alignas(kCacheLineBytes) std::atomic<uint32_t> sleepers;
  std::atomic<uint32_t> doorbell;

  // 0, or (sequence + 1) << 32 | reason << 24 | rank: why the communicator was given up.
  alignas(kCacheLineBytes) std::atomic<uint64_t> abort;

  // For people: the rank, and flag (or -1: arrival), that the owner has been waiting for, -1 none.
  alignas(kCacheLineBytes) std::atomic<int32_t> waiting_rank;
  std::atomic<int32_t> waiting_flag;
  std::atomic<uint64_t> waiting_sequence;

  // Of the first rank of a host, where there are several: what all hosts have agreed on, as
  // (sequence + 1) << 2 | Verdict bits.
  alignas(kCacheLineBytes) std::atomic<uint64_t> verdict;

  ArrivalLine lines[2];
  FlightRecord flight[kFlightRecords];
  // Messages between two ranks and groups of them, which have no number in the communicator's
  // sequence; in a ring by a number of the owner's own.
  FlightRecord points[kPointRecords];
  // FlagLine flags[world_size][kFlagCount] follow: [writer][flag]; then the mirror, in which the
  // first rank of a host keeps what ranks of all hosts asked for where they disagreed:
  // FlightRecord mirror[world_size][kMirroredRecords], by sequence as `flight` is; then Survival.

  FlagLine* flags() { return reinterpret_cast<FlagLine*>(this + 1); }
  FlightRecord& mirrored(int32_t of, uint64_t sequence) {
    auto* mirror =
        reinterpret_cast<FlightRecord*>(flags() + kFlagCount * static_cast<size_t>(world_size));
    return mirror[static_cast<size_t>(of) * kMirroredRecords + sequence % kMirroredRecords];
  }
  Survival& survival() {
    return *reinterpret_cast<Survival*>(reinterpret_cast<char*>(this) +
                                        survival_offset(world_size));
  }
  // Who takes part in a round, a bit a rank.
  std::atomic<uint64_t>* members(uint64_t round) {
    auto* first = reinterpret_cast<std::atomic<uint64_t>*>(&survival() + 1);
    return first + (round & 1) * member_words(world_size);
  }
  static size_t member_words(int32_t world_size) {
    return (static_cast<size_t>(world_size) + 63) / 64;
  }
  static size_t survival_offset(int32_t world_size) {
    return sizeof(Control) +
           (sizeof(FlagLine) * kFlagCount + sizeof(FlightRecord) * kMirroredRecords) *
               static_cast<size_t>(world_size);
  }
  static size_t bytes(int32_t world_size) {
    return survival_offset(world_size) + sizeof(Survival) +
           2 * member_words(world_size) * sizeof(uint64_t);
  }
};
static_assert(sizeof(Control) % kCacheLineBytes == 0, "flags follow on a cache line of their own");

enum Verdict : uint64_t { kAgreed = 1, kAllMapped = 2 };

inline uint64_t pack_verdict(uint64_t sequence, bool agrees, bool mapped) {
  return (sequence + 1) << 2 | (agrees ? uint64_t{kAgreed} : 0) |
         (mapped ? uint64_t{kAllMapped} : 0);
}

inline uint64_t pack_abort(int32_t rank, uint64_t sequence, AbortReason reason) {
  return ((sequence + 1) << 32) | (static_cast<uint64_t>(reason) << 24) |
         static_cast<uint64_t>(rank & 0xffffff);
}

// What the binding reads of a page that another process may be writing.

inline int flight_state(const FlightRecord* record) {
  return record->state.load(std::memory_order_acquire);
}

inline int32_t waiting_rank(const Control* control) {
  return control->waiting_rank.load(std::memory_order_acquire);
}

inline int32_t waiting_flag(const Control* control) {
  return control->waiting_flag.load(std::memory_order_relaxed);
}

inline uint64_t waiting_sequence(const Control* control) {
  return control->waiting_sequence.load(std::memory_order_relaxed);
}

inline uint64_t survival_round(const Control* control) {
  return const_cast<Control*>(control)->survival().round.load(std::memory_order_acquire);
}

inline bool has_left(const Control* control) {
  return control->state.load(std::memory_order_acquire) == static_cast<uint32_t>(RankState::kLeft);
}

}  // namespace cocoll::host

#endif  // COCOLL_HOST_CONTROL_H_
