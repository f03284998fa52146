// How the ranks that are left of a host agree on who they are, through the control pages of a
// communicator that has ended. Its memory outlives every rank but the last.
//
// They go in rounds. A rank announces the round that it has come to, waits for the others, and
// proposes whom it has seen come. The first proposal that is entered on the first rank's page holds
// for all (a compare-and-swap gives consensus whoever dies: Herlihy, 1991). The members then make a
// communicator, telling each other what that takes in letters. When all of it stands, or one of
// them finds another gone, the first word of it on that page decides again, for all: the round has
// succeeded, or there is another one.

#ifndef COCOLL_HOST_SURVIVORS_H_
#define COCOLL_HOST_SURVIVORS_H_

#include <algorithm>
#include <cstring>
#include <vector>

#include "endpoint.h"

namespace cocoll::host {

class Survivors {
 public:
  enum Outcome : int32_t { kOpen = -1, kFailed = 0, kSucceeded = 1 };

  explicit Survivors(Endpoint* endpoint) : endpoint_(*endpoint) {}

  void announce(uint64_t round) {
    own().round.store(round, std::memory_order_seq_cst);
    ring_all();
  }
  uint64_t announced(int32_t peer) const { return of(peer).round.load(std::memory_order_seq_cst); }

  // Whether a rank will come to no round any more.
  bool has_gone(int32_t peer) const {
    return of(peer).parted.load(std::memory_order_seq_cst) != 0 || endpoint_.has_died(peer);
  }

  void propose(uint64_t round, const std::vector<int32_t>& members) {
    std::atomic<uint64_t>* words = endpoint_.own()->members(round);
    for (size_t word = 0; word < Control::member_words(endpoint_.world_size); ++word) {
      uint64_t bits = 0;
      for (const int32_t member : members)
        if (static_cast<size_t>(member) / 64 == word) bits |= uint64_t{1} << (member % 64);
      words[word].store(bits, std::memory_order_seq_cst);
    }
    const uint64_t proposal = round << kRankBits | static_cast<uint64_t>(endpoint_.rank);
    raise(&board().decision, proposal, kRankBits);
  }

  // The last round whose members are decided, 0 where there is none.
  uint64_t decided(std::vector<int32_t>* members) const {
    for (;;) {
      const uint64_t decision = board().decision.load(std::memory_order_seq_cst);
      const uint64_t round = decision >> kRankBits;
      members->clear();
      if (round == 0) return 0;
      const int32_t proposer = static_cast<int32_t>(decision & ((uint64_t{1} << kRankBits) - 1));
      std::atomic<uint64_t>* words = control(proposer)->members(round);
      for (int32_t rank = 0; rank < endpoint_.world_size; ++rank)
        if (words[rank / 64].load(std::memory_order_seq_cst) >> (rank % 64) & 1)
          members->push_back(rank);
      // Its proposer writes there again two rounds later.
      if (board().decision.load(std::memory_order_seq_cst) == decision) return round;
    }
  }

  // Says how a round has ended, and gives what holds: the first word does.
  int32_t conclude(uint64_t round, bool succeeded) {
    raise(&board().outcome, round << 1 | (succeeded ? 1 : 0), 1);
    return outcome(round);
  }
  int32_t outcome(uint64_t round) const {
    const uint64_t word = board().outcome.load(std::memory_order_seq_cst);
    if (word >> 1 < round) return kOpen;
    return word >> 1 == round && (word & 1) != 0 ? kSucceeded : kFailed;
  }

  // A rank posts turn t + 2 when it has read turn t + 1 of all, and so all have read its turn t.
  void post(uint64_t turn, uint64_t total_bytes, const char* data, size_t bytes) {
    Letter& letter = own().letters[turn & 1];
    letter.total_bytes = total_bytes;
    memcpy(letter.payload, data, std::min(bytes, kLetterBytes));
    letter.turn.store(turn, std::memory_order_seq_cst);
    ring_all();
  }
  const Letter* letter(int32_t peer, uint64_t turn) const {
    const Letter& found = of(peer).letters[turn & 1];
    return found.turn.load(std::memory_order_seq_cst) == turn ? &found : nullptr;
  }

  // What a rank waits with: it takes the number, looks, and sleeps unless it was rung since.
  uint32_t doorbell() const { return endpoint_.own()->doorbell.load(std::memory_order_seq_cst); }
  void doze(uint32_t seen, int64_t nanoseconds) const {
    futex_wait(&endpoint_.own()->doorbell, seen, nanoseconds);
  }

 private:
  static constexpr uint32_t kRankBits = 24;

  Control* control(int32_t rank) const {
    return endpoint_.peers[static_cast<size_t>(rank)].control;
  }
  Survival& of(int32_t rank) const { return control(rank)->survival(); }
  Survival& own() const { return of(endpoint_.rank); }
  Survival& board() const { return of(endpoint_.leader()); }

  // Enters a word unless one of the same round, or of a later one, stands there.
  void raise(std::atomic<uint64_t>* word, uint64_t wanted, uint32_t shift) {
    uint64_t seen = word->load(std::memory_order_seq_cst);
    while (seen >> shift < wanted >> shift && !word->compare_exchange_weak(seen, wanted)) {
    }
    ring_all();
  }

  void ring_all() const {
    for (const int32_t peer : endpoint_.neighbours) ring(control(peer));
  }

  Endpoint& endpoint_;
};

}  // namespace cocoll::host

#endif  // COCOLL_HOST_SURVIVORS_H_
