// The operations of a communicator that may not have ended, by the events behind them.
//
// One thread issues at a time; a watch may look from another.

#ifndef COCOLL_CUDA_IN_FLIGHT_H_
#define COCOLL_CUDA_IN_FLIGHT_H_

#include <chrono>
#include <deque>
#include <mutex>
#include <vector>

#include "cocoll/cuda/driver.h"

namespace cocoll::cuda {

// An operation that was issued.
struct Pending {
  Event done;
  Event started;  // of one that is watched, else nullptr
};

class InFlight {
 public:
  explicit InFlight(const Driver* driver) : driver_(driver) {}
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;

  // Gives the events of an operation that is about to be issued; `issue` takes it.
  Result begin(bool watched, Pending* operation) {
    const std::lock_guard<std::mutex> lock(mutex_);
    *operation = {};
    Result result = take_event(&operation->done);
    if (result == kSuccess && watched) result = take_event(&operation->started);
    if (result != kSuccess) give_back(*operation);
    return result;
  }

  // Takes an operation whose events have been recorded; gives its number.
  uint64_t issue(const Pending& operation) {
    const std::lock_guard<std::mutex> lock(mutex_);
    pending_.push_back(operation);
    return issued_++;
  }

  // Whether an operation has completed: kSuccess, or kNotReady.
  Result query(uint64_t number) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const Result result = retire();
    if (result != kSuccess) return result;
    const uint64_t first = issued_ - pending_.size();
    return number < first ? kSuccess : driver_->event_query(pending_[number - first].done);
  }

  uint64_t issued() const { return issued_; }

  // What the next operation waits for: the last one's end, or nullptr.
  Event last() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return pending_.empty() ? nullptr : pending_.back().done;
  }

  // Whether the oldest operation is a watched one that has run for longer than `limit`. Counted
  // from its start: what it waits for on its stream may take as long as it likes.
  bool is_overdue(std::chrono::nanoseconds limit) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (has_settled()) return false;
    const uint64_t oldest = issued_ - pending_.size();
    const Pending& operation = pending_.front();
    if (operation.started == nullptr || driver_->event_query(operation.started) != kSuccess) {
      watched_ = kNone;
      return false;
    }
    const auto now = std::chrono::steady_clock::now();
    if (watched_ != oldest) {
      watched_ = oldest;
      watched_since_ = now;
    }
    return now - watched_since_ > limit;
  }

  void close() {
    for (const Pending& operation : pending_) give_back(operation);
    for (Event event : spare_) driver_->event_destroy(event);
    pending_.clear();
    spare_.clear();
  }

 private:
  static constexpr uint64_t kNone = ~uint64_t{0};
  static constexpr size_t kMost = 32;  // before those that have completed are looked for

  // Takes the events of operations that have completed off the list; the last one's stays, for the
  // next operation to wait for.
  Result retire() {
    while (pending_.size() > 1) {
      const Result result = driver_->event_query(pending_.front().done);
      if (result == kNotReady) return kSuccess;
      if (result != kSuccess) return result;
      spare_.push_back(pending_.front().done);
      if (pending_.front().started != nullptr) spare_.push_back(pending_.front().started);
      pending_.pop_front();
    }
    return kSuccess;
  }

  // Whether all operations have ended, as far as it is known.
  bool has_settled() {
    if (pending_.empty() || settled_ == issued_) return true;
    if (retire() != kSuccess || pending_.size() > 1) return false;
    if (driver_->event_query(pending_.front().done) != kSuccess) return false;
    settled_ = issued_;
    return true;
  }

  // Gives an event that no operation needs. They are made until there are as many as operations in
  // flight, and never after.
  Result take_event(Event* event) {
    if (pending_.size() >= kMost) {
      const Result result = retire();
      if (result != kSuccess) return result;
    }
    if (spare_.empty()) return driver_->event_create(event, kEventDisableTiming);
    *event = spare_.back();
    spare_.pop_back();
    return kSuccess;
  }

  void give_back(const Pending& operation) {
    if (operation.done != nullptr) driver_->event_destroy(operation.done);
    if (operation.started != nullptr) driver_->event_destroy(operation.started);
  }

  const Driver* driver_;
  std::mutex mutex_;
  std::deque<Pending> pending_;  // the last operations, the oldest first
  std::vector<Event> spare_;
  uint64_t issued_ = 0;
  uint64_t settled_ = kNone;  // how many had been issued when all of them had ended
  uint64_t watched_ = kNone;  // which operation is running, and since when a watch knows
  std::chrono::steady_clock::time_point watched_since_;
};

}  // namespace cocoll::cuda

#endif  // COCOLL_CUDA_IN_FLIGHT_H_
