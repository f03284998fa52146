// One message between two ranks: its ends meet, find out whether they agree, and move the bytes.

#ifndef COCOLL_HOST_TRANSFER_H_
#define COCOLL_HOST_TRANSFER_H_

#include <cstring>
#include <memory>
#include <vector>

#include "copy.h"
#include "endpoint.h"
#include "mailbox.h"
#include "messages.h"

namespace cocoll::host {

// One end of a message, as its caller gives it, and what has become of it.
struct PointMessage {
  Direction direction = kSends;
  int32_t peer = 0;
  uint32_t dtype = 0;
  int64_t itemsize_bytes = 1;
  int64_t count = 0;
  cocoll_array array{};
  uint64_t reference = kNotMapped;
  bool only_meets = false;  // the bytes go elsewhere, once both ends agree

  uint64_t sequence = 0;  // of the pair's messages
  uint64_t record = 0;    // its number in the flight recorder
  bool ended = false;
  bool mismatched = false;
  int64_t their_count = 0;
  uint32_t their_dtype = 0;

  int64_t bytes() const { return count * itemsize_bytes; }
  bool has_data() const { return count > 0 && !only_meets; }

  cocoll_array from(int64_t element) const {
    if (array.layout != nullptr) return {array.data, array.layout, array.index + element};
    return {static_cast<char*>(array.data) + element * itemsize_bytes, nullptr, 0};
  }

  // Gives whether the other end asks for the same.
  bool agrees_with(int64_t other_count, uint32_t other_dtype) {
    their_count = other_count;
    their_dtype = other_dtype;
    mismatched = other_count != count || other_dtype != dtype;
    return !mismatched;
  }

  PointAsk ask() const {
    PointAsk made;
    made.sequence = sequence;
    made.count = count;
    made.reference = reference;
    made.dtype = dtype;
    if (direction == kSends && bytes() <= kPointPayloadBytes && has_data())
      copy_array({made.payload, nullptr, 0}, array, count, itemsize_bytes, false);
    return made;
  }

  void take_payload(const PointAsk& theirs) const {
    unsigned char data[kPointPayloadBytes];
    memcpy(data, theirs.payload, sizeof data);
    copy_array(array, {data, nullptr, 0}, count, itemsize_bytes, false);
  }
};

// What a rank keeps of the messages that have gone between it and one other, one way.
struct PairState {
  uint64_t sequence = 0;  // of the last one
  uint64_t steps = 0;     // of all that went through the mailbox
};

enum class Advance { kNothing, kMoved, kFailed };

class Transfer {
 public:
  virtual ~Transfer() = default;
  // Tells the other end; false: the wire is broken.
  virtual bool begin() = 0;
  virtual Advance advance() = 0;
  virtual bool uses_wire() const = 0;
  // Gives up; false where bytes may still move and all memory must stay.
  virtual bool drop() = 0;
};

// Between ranks of one host.
class MappedTransfer : public Transfer {
 public:
  MappedTransfer(Endpoint* endpoint, SlotPool* pool, PairState* pair, PointMessage* message)
      : endpoint_(*endpoint),
        pool_(*pool),
        pair_(*pair),
        message_(*message),
        mine_(endpoint->mailboxes(endpoint->rank).end(message->peer, message->direction)),
        theirs_(
            endpoint->mailboxes(message->peer).end(endpoint->rank, other_end(message->direction))),
        control_(endpoint->peers[static_cast<size_t>(message->peer)].control) {}

  ~MappedTransfer() override {
    if (way_ == Way::kSlots && sends()) pool_.leave();
  }

  bool begin() override {
    PointLine& line = mine_.lines[message_.sequence & 1];
    line.ask = message_.ask();
    publish(&line.sequence, message_.sequence, control_);
    return true;
  }

  Advance advance() override {
    if (way_ == Way::kUnknown) return meet() ? Advance::kMoved : Advance::kNothing;
    bool moved = false;
    switch (way_) {
      case Way::kPull:
        moved = sends() ? await_copy() : copy_piece();
        break;
      case Way::kPush:
        moved = sends() ? copy_piece() : await_copy();
        break;
      default:
        moved = sends() ? fill() : empty();
    }
    return moved ? Advance::kMoved : Advance::kNothing;
  }

  bool uses_wire() const override { return false; }
  bool drop() override { return true; }

 private:
  // What is copied between two looks at the other messages.
  static constexpr int64_t kPieceBytes = int64_t{1} << 20;

  // Both ends choose the same, for both know what each has.
  enum class Way {
    kUnknown,
    kPull,   // the receiver copies from the sender's array
    kPush,   // the sender copies to the receiver's
    kSlots,  // the sender fills slots, which the receiver empties
  };

  bool sends() const { return message_.direction == kSends; }

  bool meet() {
    const PointLine& line = theirs_.lines[message_.sequence & 1];
    if (line.sequence.load(std::memory_order_seq_cst) != message_.sequence) return false;
    const PointAsk& asked = line.ask;
    if (!message_.agrees_with(asked.count, asked.dtype) || !message_.has_data()) {
      message_.ended = true;
    } else if (message_.bytes() <= kPointPayloadBytes) {
      if (!sends()) message_.take_payload(asked);
      message_.ended = true;
    } else {
      const uint64_t source = sends() ? message_.reference : asked.reference;
      const uint64_t target = sends() ? asked.reference : message_.reference;
      base_ = pair_.steps;
      if (source != kNotMapped)
        choose(Way::kPull, sends() ? kNotMapped : source);
      else if (target != kNotMapped)
        choose(Way::kPush, sends() ? target : kNotMapped);
      else
        choose(Way::kSlots, kNotMapped);
    }
    return true;
  }

  void choose(Way way, uint64_t theirs) {
    way_ = way;
    if (theirs != kNotMapped) mapped_ = endpoint_.resolve(message_.peer, theirs);
    steps_ = 1;
    if (way != Way::kSlots) return;
    chunk_elements_ = kSlotBytes / message_.itemsize_bytes;
    steps_ = static_cast<uint64_t>((message_.count + chunk_elements_ - 1) / chunk_elements_);
    if (sends()) pool_.enter();
  }

  void end() {
    pair_.steps = base_ + steps_;
    message_.ended = true;
  }

  void publish_progress(uint64_t steps) { publish(&mine_.progress, base_ + steps, control_); }

  // Steps of this message that the other end has completed; its counter lags behind where earlier
  // messages had nothing for it to count.
  uint64_t their_progress() const {
    const uint64_t seen = theirs_.progress.load(std::memory_order_seq_cst);
    return seen > base_ ? seen - base_ : 0;
  }

  bool copy_piece() {
    const int64_t piece = std::max<int64_t>(kPieceBytes / message_.itemsize_bytes, 1);
    const int64_t count = std::min(piece, message_.count - copied_);
    const cocoll_array mapped{mapped_ + copied_ * message_.itemsize_bytes, nullptr, 0};
    const cocoll_array own = message_.from(copied_);
    copy_array(sends() ? mapped : own, sends() ? own : mapped, count, message_.itemsize_bytes,
               false);
    copied_ += count;
    if (copied_ == message_.count) {
      publish_progress(1);
      end();
    }
    return true;
  }

  bool await_copy() {
    if (their_progress() == 0) return false;
    end();
    return true;
  }

  int64_t chunk_count(uint64_t chunk) const {
    const int64_t first = static_cast<int64_t>(chunk) * chunk_elements_;
    return std::min(chunk_elements_, message_.count - first);
  }

  bool fill() {
    const uint64_t taken = their_progress();
    bool moved = returned_ < taken;
    while (returned_ < taken) pool_.give(mine_.slots[returned_++ % kSlotWindow]);
    if (taken == steps_) {
      end();
      return true;
    }
    if (done_ == steps_ || done_ - taken >= static_cast<uint64_t>(pool_.window()) || pool_.empty())
      return moved;
    const uint8_t slot = pool_.take();
    char* data = endpoint_.mailboxes(endpoint_.rank).slot(slot);
    copy_array({data, nullptr, 0}, message_.from(static_cast<int64_t>(done_) * chunk_elements_),
               chunk_count(done_), message_.itemsize_bytes, false);
    mine_.slots[done_ % kSlotWindow] = slot;
    publish_progress(++done_);
    return true;
  }

  bool empty() {
    if (their_progress() <= done_) return false;
    const char* data = endpoint_.mailboxes(message_.peer).slot(theirs_.slots[done_ % kSlotWindow]);
    copy_array(message_.from(static_cast<int64_t>(done_) * chunk_elements_),
               {const_cast<char*>(data), nullptr, 0}, chunk_count(done_), message_.itemsize_bytes,
               false);
    publish_progress(++done_);
    if (done_ == steps_) end();
    return true;
  }

  Endpoint& endpoint_;
  SlotPool& pool_;
  PairState& pair_;
  PointMessage& message_;
  MailboxEnd& mine_;
  MailboxEnd& theirs_;
  Control* control_;
  Way way_ = Way::kUnknown;
  char* mapped_ = nullptr;  // the other end's array, where this end copies
  uint64_t base_ = 0;       // the pair's steps before this message
  uint64_t steps_ = 0;
  uint64_t done_ = 0;      // of them, by this end
  uint64_t returned_ = 0;  // slots that have come back
  int64_t chunk_elements_ = 0;
  int64_t copied_ = 0;
};

// Between ranks of different hosts: both ends tell each other what they ask for, then the bytes go.
class WireTransfer : public Transfer {
 public:
  WireTransfer(Wire* wire, PointMessage* message) : wire_(*wire), message_(*message) {}

  bool begin() override {
    asks_->mine = message_.ask();
    const bool sends = message_.direction == kSends;
    return wire_.receive(message_.peer, sends ? kPointReceiveTag : kPointSendTag, &asks_->theirs,
                         sizeof(PointAsk), &heard_) &&
           wire_.send(message_.peer, sends ? kPointSendTag : kPointReceiveTag, &asks_->mine,
                      sizeof(PointAsk), true, &told_);
  }

  Advance advance() override {
    if (!met_) {
      for (WireRequest* request : {&heard_, &told_}) {
        const Wire::Outcome outcome = wire_.test(request);
        if (outcome == Wire::Outcome::kFailed) return Advance::kFailed;
        if (outcome == Wire::Outcome::kPending) return Advance::kNothing;
        *request = 0;
      }
      met_ = true;
      const PointAsk& theirs = asks_->theirs;
      const bool tiny = message_.bytes() <= kPointPayloadBytes;
      if (message_.agrees_with(theirs.count, theirs.dtype) && message_.has_data() && tiny &&
          message_.direction == kReceives)
        message_.take_payload(theirs);
      message_.ended = message_.mismatched || tiny || !message_.has_data();
      return Advance::kMoved;
    }
    int64_t ignored = 0;
    const Wire::Outcome outcome = messages_.settle(&wire_, &ignored, [](const auto&) {});
    if (outcome == Wire::Outcome::kFailed) return Advance::kFailed;
    const int64_t piece = std::max<int64_t>(kPieceBytes / message_.itemsize_bytes, 1);
    bool began = false;
    while (begun_ < message_.count && messages_.steps() < kPiecesInFlight) {
      const int64_t count = std::min(piece, message_.count - begun_);
      if (!messages_.begin(&wire_, message_.direction == kSends, message_.peer, kPointDataTag,
                           message_.from(begun_), count, message_.itemsize_bytes, true, true, 1))
        return Advance::kFailed;
      begun_ += count;
      began = true;
    }
    message_.ended = begun_ == message_.count && messages_.empty();
    return began || outcome == Wire::Outcome::kDone ? Advance::kMoved : Advance::kNothing;
  }

  bool uses_wire() const override { return true; }

  bool drop() override {
    bool dropped = messages_.drop(&wire_);
    dropped &= wire_.cancel(&heard_, true);
    dropped &= wire_.cancel(&told_, false);
    return dropped;
  }

 private:
  static constexpr int64_t kPieceBytes = int64_t{4} << 20;
  static constexpr int32_t kPiecesInFlight = 4;

  struct Asks {
    PointAsk mine;
    PointAsk theirs;
  };

  Wire& wire_;
  PointMessage& message_;
  std::unique_ptr<Asks> asks_ = std::make_unique<Asks>();
  WireRequest heard_ = 0;
  WireRequest told_ = 0;
  Messages messages_;
  bool met_ = false;
  int64_t begun_ = 0;  // elements
};

}  // namespace cocoll::host

#endif  // COCOLL_HOST_TRANSFER_H_
