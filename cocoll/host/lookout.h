// What ends a wait that nobody else ends: a rank that gave up, a peer that is lost, the timeout.

#ifndef COCOLL_HOST_LOOKOUT_H_
#define COCOLL_HOST_LOOKOUT_H_

#include <algorithm>

#include "endpoint.h"
#include "wait.h"

namespace cocoll::host {

class Lookout {
 public:
  explicit Lookout(Endpoint* endpoint)
      : endpoint_(*endpoint), waiter_(endpoint->policy, endpoint->own()) {}

  // Native code is entered anew.
  void entered() { waiter_.entered(); }

  // The limits of waiting count from here.
  void progressed() {
    waiter_.progressed();
    looked_at_ = 0;
    stalled_nanoseconds_ = 0;
    saw_abort_ = false;
  }

  // Called after every poll that found nothing. `for_each_awaited(visit)` calls
  // `visit(peer, what, sequence)` for all that this rank waits for now; see Awaited. kDone: poll
  // again.
  template <class ForEachAwaited>
  Status wait(bool polls_wire, ForEachAwaited for_each_awaited) {
    switch (waiter_.pause(polls_wire)) {
      case Waiter::Verdict::kPoll:
        return Status::kDone;
      case Waiter::Verdict::kCheck:
        return look(for_each_awaited);
      default:
        return Status::kPending;
    }
  }

 private:
  // What one look adds to the time that counts as waiting, at most: a rank that was stopped itself
  // (Ctrl-Z, a suspended job or machine) has not waited meanwhile.
  static constexpr int64_t kLongestLook = 1000000000;

  template <class ForEachAwaited>
  Status look(ForEachAwaited for_each_awaited) {
    // What a peer published before it gave up may still complete this operation, so only a second
    // look without progress in between ends it.
    endpoint_.look_for_notice();
    if (endpoint_.abort_word() != 0) {
      if (saw_abort_) return Status::kAborted;
      saw_abort_ = true;
    }
    if (endpoint_.orphaned()) endpoint_.abort(AbortReason::kLauncherLost, endpoint_.rank);
    const int64_t now = monotonic_nanoseconds();
    if (looked_at_ != 0) stalled_nanoseconds_ += std::min(now - looked_at_, kLongestLook);
    looked_at_ = now;
    Control* own = endpoint_.own();
    Status status = Status::kDone;
    int32_t first = -1;
    for_each_awaited([&](int32_t peer, int32_t what, uint64_t sequence) {
      if (first < 0) {
        own->waiting_sequence.store(sequence, std::memory_order_relaxed);
        own->waiting_flag.store(what, std::memory_order_relaxed);
        own->waiting_rank.store(peer, std::memory_order_relaxed);
        first = peer;
      }
      // Who gives up leaves right after: once that is known, its going is no news.
      if (status == Status::kDone && !saw_abort_ && endpoint_.lost(peer)) {
        endpoint_.culprit = peer;
        status = Status::kPeerLost;
      }
    });
    if (status != Status::kDone) return status;
    if (stalled_nanoseconds_ < endpoint_.timeout_nanoseconds) return Status::kDone;
    endpoint_.culprit = first;
    return Status::kTimeout;
  }

  Endpoint& endpoint_;
  Waiter waiter_;
  bool saw_abort_ = false;
  int64_t looked_at_ = 0;
  int64_t stalled_nanoseconds_ = 0;
};

}  // namespace cocoll::host

#endif  // COCOLL_HOST_LOOKOUT_H_
