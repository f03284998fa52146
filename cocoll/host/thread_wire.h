// Messages between ranks of one process: what several hosts are made of in tests.
//
// A message moves when both of its ends have begun, as MPI may have it, and not before the receiver
// has looked a few times, a number drawn from a seed: nothing may rely on eager delivery or luck.

#ifndef COCOLL_HOST_THREAD_WIRE_H_
#define COCOLL_HOST_THREAD_WIRE_H_

#include <cstring>
#include <list>
#include <memory>
#include <unordered_map>

#include "wire.h"

namespace cocoll::host {

// What the ranks of one wire share.
class ThreadNetwork {
 public:
  ThreadNetwork(int32_t world_size, uint64_t seed) : lost_(world_size, false), state_(seed | 1) {}

  WireRequest post(bool sends, int32_t from, int32_t to, int32_t tag, char* data, int64_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    const WireRequest request = ++last_request_;
    ends_.emplace(request, End{sends, from, to, tag, data, bytes, 0, next_random() % kMostLooks});
    for (auto& [partner_request, partner] : pending(sends)) {
      if (partner.to != to || partner.tag != tag) continue;
      if (partner.from != from && (sends ? partner.from : from) != kAnyRank) continue;
      End& mine = ends_.at(request);
      mine.partner = partner_request;
      ends_.at(partner_request).partner = request;
      pending(sends).remove_if([&](const auto& entry) { return entry.first == mine.partner; });
      return request;
    }
    pending(!sends).emplace_back(request, ends_.at(request));
    return request;
  }

  Wire::Outcome test(WireRequest* request) {
    if (*request == 0) return Wire::Outcome::kDone;
    std::lock_guard<std::mutex> lock(mutex_);
    End& mine = ends_.at(*request);
    if (mine.partner == 0) {
      const int32_t other = mine.sends ? mine.to : mine.from;
      if (other != kAnyRank && lost_[static_cast<size_t>(other)]) return Wire::Outcome::kFailed;
      return Wire::Outcome::kPending;
    }
    if (mine.looks > 0) {
      --mine.looks;
      return Wire::Outcome::kPending;
    }
    if (!mine.moved) {
      End& theirs = ends_.at(mine.partner);
      End& sender = mine.sends ? mine : theirs;
      End& receiver = mine.sends ? theirs : mine;
      if (sender.bytes > receiver.bytes) return Wire::Outcome::kFailed;
      if (sender.bytes > 0) memcpy(receiver.data, sender.data, static_cast<size_t>(sender.bytes));
      sender.moved = receiver.moved = true;
      bytes_ += sender.bytes;
      ++messages_;
    }
    ends_.erase(*request);
    *request = 0;
    return Wire::Outcome::kDone;
  }

  bool cancel(WireRequest* request) {
    if (*request == 0) return true;
    std::lock_guard<std::mutex> lock(mutex_);
    End& mine = ends_.at(*request);
    if (mine.partner != 0 && !mine.moved) {
      // The other end finds that nobody is there.
      End& theirs = ends_.at(mine.partner);
      theirs.partner = 0;
      (theirs.sends ? theirs.to : theirs.from) = kAnyRank;
    }
    for (bool side : {false, true})
      pending(side).remove_if([&](const auto& entry) { return entry.first == *request; });
    ends_.erase(*request);
    *request = 0;
    return true;
  }

  // From here on messages of a rank that have not moved never will.
  void lose(int32_t rank) {
    std::lock_guard<std::mutex> lock(mutex_);
    lost_[static_cast<size_t>(rank)] = true;
  }

  // What has moved: for tests that count.
  int64_t bytes() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return bytes_;
  }
  int64_t messages() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return messages_;
  }

 private:
  static constexpr uint64_t kMostLooks = 4;

  struct End {
    bool sends;
    int32_t from;
    int32_t to;
    int32_t tag;
    char* data;
    int64_t bytes;
    WireRequest partner;
    uint64_t looks;
    bool moved = false;
  };
  using Queue = std::list<std::pair<WireRequest, End>>;

  // Ends that have met nobody yet, oldest first: receives for a send, sends for a receive.
  Queue& pending(bool for_send) { return for_send ? receives_ : sends_; }

  uint64_t next_random() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_;
  }

  mutable std::mutex mutex_;
  std::vector<char> lost_;
  uint64_t state_;
  WireRequest last_request_ = 0;
  std::unordered_map<WireRequest, End> ends_;
  Queue sends_;
  Queue receives_;
  int64_t bytes_ = 0;
  int64_t messages_ = 0;
};

class ThreadWire : public Wire {
 public:
  // `ranks[r]`: where rank r of the communicator is in the network; tags begin at `first_tag`.
  ThreadWire(std::shared_ptr<ThreadNetwork> network, std::vector<int> ranks, int32_t rank,
             int32_t first_tag)
      : network_(std::move(network)),
        ranks_(std::move(ranks)),
        own_(ranks_[static_cast<size_t>(rank)]),
        first_tag_(first_tag) {}

  bool send(int32_t peer, int32_t tag, const void* data, int64_t bytes, bool,
            WireRequest* request) override {
    char* from = const_cast<char*>(static_cast<const char*>(data));
    *request = network_->post(true, own_, place(peer), first_tag_ + tag, from, bytes);
    return true;
  }

  bool receive(int32_t peer, int32_t tag, void* data, int64_t bytes,
               WireRequest* request) override {
    *request =
        network_->post(false, place(peer), own_, first_tag_ + tag, static_cast<char*>(data), bytes);
    return true;
  }

  Outcome test(WireRequest* request) override {
    const Outcome outcome = network_->test(request);
    if (outcome == Outcome::kFailed) set_error("the other rank is gone");
    return outcome;
  }

  bool cancel(WireRequest* request, bool) override { return network_->cancel(request); }

 private:
  int32_t place(int32_t peer) const {
    return peer == kAnyRank ? kAnyRank : ranks_[static_cast<size_t>(peer)];
  }

  std::shared_ptr<ThreadNetwork> network_;
  std::vector<int> ranks_;
  int32_t own_;
  int32_t first_tag_;
};

}  // namespace cocoll::host

#endif  // COCOLL_HOST_THREAD_WIRE_H_
