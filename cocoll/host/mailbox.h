// Mailboxes: what two ranks of one host share for the messages from one to the other.
//
// Each end of an ordered pair has a page in its owner's arena, which its owner writes and the other
// end reads: two lines that say what the owner asks for, and a counter of what it has moved. The
// n-th message from a to b begins when both lines of number n are there. Lines alternate: an end
// posts line n + 2 when message n + 1 has ended, so the other end has posted n + 1, and it does
// that only when it has finished with line n.
//
// The chunks of messages that neither end maps go through slots, of which every rank has a fixed
// number for all that it sends: memory does not grow with the number of ranks. A slot is filled
// only for a receiver that is there, which takes every chunk without waiting for anything else.

#ifndef COCOLL_HOST_MAILBOX_H_
#define COCOLL_HOST_MAILBOX_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "arena.h"
#include "control.h"

namespace cocoll::host {

// Which end of a message a rank is.
enum Direction : int32_t { kSends = 0, kReceives = 1 };

constexpr Direction other_end(Direction direction) {
  return direction == kSends ? kReceives : kSends;
}

constexpr int32_t kSlotCount = 16;
constexpr int64_t kSlotBytes = int64_t{64} << 10;
// Chunks of one message that have been filled and not been taken, at most: all slots, for where
// ranks share processors every turn from one to the other takes a scheduler's slice.
constexpr int32_t kSlotWindow = kSlotCount;
// What travels in the line itself.
constexpr int64_t kPointPayloadBytes = 64;

// What one end asks for, in shared memory as on a wire.
struct PointAsk {
  uint64_t sequence = 0;  // of the pair's messages, from 1
  int64_t count = 0;
  uint64_t reference = kNotMapped;  // where the array lies in its rank's arena
  uint32_t dtype = 0;
  uint32_t reserved = 0;
  unsigned char payload[kPointPayloadBytes] = {};  // of a sender: the data of a tiny message
};

struct alignas(2 * kCacheLineBytes) PointLine {
  std::atomic<uint64_t> sequence;  // written last
  PointAsk ask;
};

struct alignas(2 * kCacheLineBytes) MailboxEnd {
  PointLine lines[2];
  // Steps of all messages of this pair that this end has completed.
  alignas(kCacheLineBytes) std::atomic<uint64_t> progress;
  uint8_t slots[kSlotWindow];  // of a sender: where its last chunks are
};

// Where the mailboxes and slots lie in a rank's segment.
struct MailboxRegion {
  static size_t ends_bytes(int32_t world_size) {
    return round_up(2 * sizeof(MailboxEnd) * static_cast<size_t>(world_size), 4096);
  }
  static size_t bytes(int32_t world_size) {
    return ends_bytes(world_size) + static_cast<size_t>(kSlotCount * kSlotBytes);
  }

  char* base = nullptr;
  int32_t world_size = 0;

  MailboxEnd& end(int32_t peer, Direction direction) const {
    return reinterpret_cast<MailboxEnd*>(base)[2 * peer + direction];
  }
  char* slot(int32_t index) const {
    return base + ends_bytes(world_size) + static_cast<int64_t>(index) * kSlotBytes;
  }
};

// Which of this rank's slots are free, and how many messages want some.
class SlotPool {
 public:
  SlotPool() {
    for (int32_t index = 0; index < kSlotCount; ++index) free_[index] = static_cast<uint8_t>(index);
  }

  bool empty() const { return count_ == 0; }
  uint8_t take() { return free_[--count_]; }
  void give(uint8_t slot) { free_[count_++] = slot; }

  void enter() { ++users_; }
  void leave() { --users_; }
  // What each of them may have, so that all move.
  int32_t window() const { return std::clamp(kSlotCount / std::max(users_, 1), 1, kSlotWindow); }

 private:
  uint8_t free_[kSlotCount];
  int32_t count_ = kSlotCount;
  int32_t users_ = 0;
};

}  // namespace cocoll::host

#endif  // COCOLL_HOST_MAILBOX_H_
