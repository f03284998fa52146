// The messages of one lane that have begun and not ended, in their order.

#ifndef COCOLL_HOST_MESSAGES_H_
#define COCOLL_HOST_MESSAGES_H_

#include <deque>
#include <vector>

#include "../kernels/abi.h"
#include "copy.h"
#include "wire.h"

namespace cocoll::host {

class Messages {
 public:
  bool empty() const { return under_way_.empty(); }
  // Steps, or groups of them that move as one, that have begun and not ended.
  int32_t steps() const { return steps_; }
  int32_t peer() const { return under_way_.front().peer; }

  // Begins a message. A step may be several: `last` ends it. A send that ends with its receive is
  // dear, and one that does not is out of hand: so the last one of a run is synchronous, and one in
  // every `stride`, behind which no more than a window of others can be under way.
  bool begin(Wire* wire, bool sends, int32_t peer, int32_t tag, const cocoll_array& array,
             int64_t count, int64_t itemsize_bytes, bool last, bool closes, int32_t stride) {
    const bool synchronous = closes || stride <= 1 || ++begun_ % stride == 0;
    int64_t left = count * itemsize_bytes;
    char* data = static_cast<char*>(array.data);
    std::vector<char> bounce;
    if (array.layout != nullptr) {
      // The wire wants one run of bytes.
      bounce.resize(static_cast<size_t>(left));
      data = bounce.data();
      if (sends) copy_array({data, nullptr, 0}, array, count, itemsize_bytes, false);
    }
    bool began = true;
    do {
      const int64_t bytes = std::min(left, kLongestMessageBytes);
      under_way_.emplace_back();
      Message& message = under_way_.back();
      message.sends = sends;
      message.peer = peer;
      began = sends ? wire->send(peer, tag, data, bytes, synchronous, &message.request)
                    : wire->receive(peer, tag, data, bytes, &message.request);
      message.began = began;
      data += bytes;
      left -= bytes;
    } while (began && left > 0);
    // The parts of a message end in their order: the last one unpacks it.
    Message& end = under_way_.back();
    end.bounce = std::move(bounce);
    end.array = array;
    end.count = count;
    end.itemsize_bytes = itemsize_bytes;
    end.bytes = count * itemsize_bytes;
    if (!began) return false;
    if (last) {
      end.ends_step = true;
      ++steps_;
    }
    return true;
  }

  // Ends a group whose last members had nothing to move.
  void close_step() {
    if (under_way_.empty() || under_way_.back().ends_step) return;
    under_way_.back().ends_step = true;
    ++steps_;
  }

  // Notes where the step that has begun last stands in its plan, and when that was.
  void stamp(int32_t place, int64_t iteration, int64_t nanoseconds) {
    Message& message = under_way_.back();
    message.place = place;
    message.iteration = iteration;
    message.began_nanoseconds = nanoseconds;
  }

  // The step that has begun last is the last one of its iteration; a group that goes on over
  // further loops completes the iterations of all of them when it ends.
  void complete(int64_t iterations) {
    if (under_way_.back().ends_step) under_way_.back().iterations = iterations;
  }

  // Takes messages that have ended off the front, each shown to `ended`. `progress` becomes the
  // iterations completed.
  template <class Ended>
  Wire::Outcome settle(Wire* wire, int64_t* progress, Ended ended) {
    Wire::Outcome outcome = Wire::Outcome::kPending;
    while (!under_way_.empty()) {
      Message& message = under_way_.front();
      const Wire::Outcome one = wire->test(&message.request);
      if (one == Wire::Outcome::kFailed) return one;
      if (one == Wire::Outcome::kPending) break;
      outcome = Wire::Outcome::kDone;
      unpack(message);
      ended(message);
      if (message.ends_step) --steps_;
      if (message.iterations > 0) *progress = message.iterations;
      under_way_.pop_front();
    }
    return outcome;
  }

  // Gives up everything; false where a message may still move and all memory must stay.
  bool drop(Wire* wire) {
    bool dropped = true;
    for (Message& message : under_way_)
      if (message.began) dropped &= wire->cancel(&message.request, !message.sends);
    if (dropped) under_way_.clear();
    steps_ = 0;
    return dropped;
  }

 private:
  struct Message {
    WireRequest request = 0;
    int32_t peer = 0;
    bool sends = false;
    bool began = false;
    bool ends_step = false;
    int64_t iterations = 0;
    std::vector<char> bounce;
    cocoll_array array{};
    int64_t count = 0;
    int64_t itemsize_bytes = 0;
    int64_t bytes = 0;
    int32_t place = 0;
    int64_t iteration = 0;
    int64_t began_nanoseconds = 0;
  };

  void unpack(Message& message) {
    if (message.bounce.empty() || message.sends) return;
    copy_array(message.array, {message.bounce.data(), nullptr, 0}, message.count,
               message.itemsize_bytes, false);
  }

  std::deque<Message> under_way_;
  int32_t steps_ = 0;
  int32_t begun_ = 0;
};

}  // namespace cocoll::host

#endif  // COCOLL_HOST_MESSAGES_H_
