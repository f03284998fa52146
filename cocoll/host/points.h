// Runs messages between two ranks: one, or a group of them, all of which progress on one thread.
//
// They stand outside the sequence of the communicator's operations: only the two ranks of a message
// take part in it. The n-th message from a to b is the n-th send there and the n-th receive here.
// Of each pair and way one message at a time is under way, the others of a group follow in order.

#ifndef COCOLL_HOST_POINTS_H_
#define COCOLL_HOST_POINTS_H_

#include <algorithm>
#include <memory>
#include <vector>

#include "lookout.h"
#include "transfer.h"

namespace cocoll::host {

// What is run as one; the caller keeps the arrays, and this, until it has ended.
struct PointBatch {
  std::vector<PointMessage> messages;
  uint8_t group_kind = 0;  // recorded as a group of this kind; 0: a message alone
};

// The kinds of flight records; cocoll.failure has the same numbers.
enum PointKind : uint8_t { kSendKind = 16, kReceiveKind = 17 };

class PointExecution {
 public:
  explicit PointExecution(Endpoint* endpoint)
      : endpoint_(*endpoint),
        lookout_(endpoint),
        pairs_(2 * static_cast<size_t>(endpoint->world_size)) {}

  // Messages of this rank to itself must come in pairs.
  Status begin(PointBatch* batch) {
    endpoint_.culprit = -1;
    endpoint_.detail.clear();
    if (endpoint_.abort_word() != 0) return Status::kAborted;
    batch_ = batch;
    lookout_.progressed();
    queues_.assign(pairs_.size(), {});
    std::vector<PointMessage>& messages = batch->messages;
    for (size_t index = 0; index < messages.size(); ++index) {
      PointMessage& message = messages[index];
      message.sequence = ++pair_of(message).sequence;
      message.record = record(message);
      queues_[place_of(message)].push_back(index);
    }
    if (batch->group_kind != 0) {
      FlightRecord& flight = next_record();
      describe(&flight, batch->group_kind, static_cast<int64_t>(messages.size()), numbers_ - 1, -1,
               0);
    }
    group_record_ = numbers_ - 1;
    move_own();
    under_way_.clear();
    for (std::vector<size_t>& queue : queues_) {
      std::reverse(queue.begin(), queue.end());
      if (!queue.empty() && !start_next(&queue)) return finish(Status::kPeerLost);
    }
    return resume();
  }

  Status resume() {
    lookout_.entered();
    while (!under_way_.empty()) {
      bool moved = false;
      for (size_t index = 0; index < under_way_.size();) {
        PointMessage& message = *under_way_[index].message;
        const Advance advance = under_way_[index].transfer->advance();
        if (advance == Advance::kFailed) {
          wire_failed(message.peer);
          return finish(Status::kPeerLost);
        }
        moved |= advance == Advance::kMoved;
        if (!message.ended) {
          ++index;
          continue;
        }
        end_record(message.record, message.mismatched);
        under_way_.erase(under_way_.begin() + static_cast<std::ptrdiff_t>(index));
        std::vector<size_t>& queue = queues_[place_of(message)];
        if (!queue.empty() && !start_next(&queue)) return finish(Status::kPeerLost);
      }
      if (moved) {
        lookout_.progressed();
        continue;
      }
      const Status status =
          lookout_.wait(uses_wire(), [&](auto visit) { for_each_awaited(visit); });
      if (status != Status::kDone) return finish(status);
    }
    const auto& messages = batch_->messages;
    const bool all_agree = std::none_of(messages.begin(), messages.end(),
                                        [](const auto& message) { return message.mismatched; });
    return finish(all_agree ? Status::kDone : Status::kMismatch);
  }

  // Gives up what has begun and not ended; nobody resumes it.
  void give_up() {
    drop();
    lookout_.progressed();
  }

 private:
  struct UnderWay {
    PointMessage* message;
    std::unique_ptr<Transfer> transfer;
  };

  static size_t place_of(const PointMessage& message) {
    return 2 * static_cast<size_t>(message.peer) + static_cast<size_t>(message.direction);
  }
  PairState& pair_of(const PointMessage& message) { return pairs_[place_of(message)]; }

  // Messages of this rank to itself: the n-th send meets the n-th receive.
  void move_own() {
    const size_t own = 2 * static_cast<size_t>(endpoint_.rank);
    std::vector<size_t>& sends = queues_[own + kSends];
    std::vector<size_t>& receives = queues_[own + kReceives];
    for (size_t index = 0; index < sends.size() && index < receives.size(); ++index) {
      PointMessage& from = batch_->messages[sends[index]];
      PointMessage& to = batch_->messages[receives[index]];
      to.agrees_with(from.count, from.dtype);
      if (from.agrees_with(to.count, to.dtype) && from.has_data())
        copy_array(to.array, from.array, to.count, to.itemsize_bytes, false);
      for (PointMessage* message : {&from, &to}) {
        message->ended = true;
        end_record(message->record, message->mismatched);
      }
    }
    sends.clear();
    receives.clear();
  }

  // Begins the next message of a pair; false: the wire is broken.
  bool start_next(std::vector<size_t>* queue) {
    PointMessage& message = batch_->messages[queue->back()];
    queue->pop_back();
    std::unique_ptr<Transfer> transfer;
    if (endpoint_.peers[static_cast<size_t>(message.peer)].control != nullptr)
      transfer = std::make_unique<MappedTransfer>(&endpoint_, &pool_, &pair_of(message), &message);
    else
      transfer = std::make_unique<WireTransfer>(endpoint_.wire.get(), &message);
    under_way_.push_back({&message, std::move(transfer)});
    if (under_way_.back().transfer->begin()) return true;
    wire_failed(message.peer);
    return false;
  }

  void wire_failed(int32_t peer) {
    endpoint_.culprit = peer;
    endpoint_.detail = endpoint_.wire->error();
  }

  bool uses_wire() const {
    return std::any_of(under_way_.begin(), under_way_.end(),
                       [](const UnderWay& one) { return one.transfer->uses_wire(); });
  }

  template <class Visit>
  void for_each_awaited(Visit visit) const {
    for (const UnderWay& one : under_way_)
      visit(one.message->peer, one.message->direction == kSends ? kAwaitsReceiver : kAwaitsSender,
            one.message->sequence);
  }

  // --- The flight recorder. ---

  FlightRecord& next_record() { return endpoint_.own()->points[numbers_++ % kPointRecords]; }

  static void describe(FlightRecord* flight, uint8_t kind, int64_t count, uint64_t sequence,
                       int32_t peer, uint32_t dtype) {
    flight->state.store(static_cast<uint8_t>(FlightState::kEmpty), std::memory_order_relaxed);
    flight->sequence = sequence;
    flight->digest = 0;
    flight->count = count;
    flight->epilogue = 0;
    flight->started_ticks = clock_ticks();
    flight->root = peer;
    flight->kind = kind;
    flight->op = 0;
    flight->dtype = static_cast<uint8_t>(dtype);
    flight->options = 0;
    flight->algorithm = 0;
    flight->state.store(static_cast<uint8_t>(FlightState::kRunning), std::memory_order_release);
  }

  uint64_t record(const PointMessage& message) {
    describe(&next_record(), message.direction == kSends ? kSendKind : kReceiveKind, message.count,
             message.sequence, message.peer, message.dtype);
    return numbers_ - 1;
  }

  void end_record(uint64_t number, bool failed) {
    // A long group may have overwritten the records of its first messages.
    if (number + kPointRecords < numbers_) return;
    endpoint_.own()->points[number % kPointRecords].state.store(
        static_cast<uint8_t>(failed ? FlightState::kFailed : FlightState::kDone),
        std::memory_order_release);
  }

  // --- The end. ---

  Status finish(Status status) {
    if (status == Status::kPending) return status;
    // Whoever gives up says so at once, so that no peer waits for a rank that will not come.
    if (status == Status::kTimeout) endpoint_.abort(AbortReason::kTimeout, endpoint_.culprit);
    if (status == Status::kPeerLost) endpoint_.abort(AbortReason::kPeerLost, endpoint_.culprit);
    lookout_.progressed();
    if (batch_->group_kind != 0) end_record(group_record_, status != Status::kDone);
    if (status == Status::kDone || status == Status::kMismatch) {
      endpoint_.own()->waiting_rank.store(-1, std::memory_order_relaxed);
      return status;
    }
    // A failed operation leaves what it waited for on record.
    for (const PointMessage& message : batch_->messages)
      if (!message.ended) end_record(message.record, true);
    drop();
    return status;
  }

  // Takes back what is under way, so that nothing touches arrays that go back to the caller.
  void drop() {
    for (UnderWay& one : under_way_) {
      if (one.transfer->drop()) continue;
      endpoint_.abandoned = true;
      (void)one.transfer.release();
    }
    under_way_.clear();
  }

  Endpoint& endpoint_;
  Lookout lookout_;
  SlotPool pool_;
  std::vector<PairState> pairs_;             // by peer and direction
  std::vector<std::vector<size_t>> queues_;  // likewise: what has not begun, the next one last
  std::vector<UnderWay> under_way_;
  PointBatch* batch_ = nullptr;
  uint64_t numbers_ = 0;  // of flight records
  uint64_t group_record_ = 0;
};

}  // namespace cocoll::host

#endif  // COCOLL_HOST_POINTS_H_
