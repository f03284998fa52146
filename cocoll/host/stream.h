// Asynchronous operations: the order of a communicator, and a thread that runs a queue.

#ifndef COCOLL_HOST_STREAM_H_
#define COCOLL_HOST_STREAM_H_

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "interpreter.h"
#include "points.h"

namespace cocoll::host {

// The operations of one communicator run in the order of their issue, on whatever stream.
class Gate {
 public:
  // One thread at a time may issue; false means that another one is inside.
  bool enter() { return !entered_.exchange(true, std::memory_order_acquire); }
  void leave() { entered_.store(false, std::memory_order_release); }

  uint64_t issue() { return issued_++; }
  bool is_turn(uint64_t ticket) const {
    return completed_.load(std::memory_order_seq_cst) == ticket;
  }
  bool entered() const { return entered_.load(std::memory_order_acquire); }
  bool idle() const { return is_turn(issued_); }
  uint64_t issued() const { return issued_; }

  // Gives whether the turn came within the time.
  bool wait_turn(uint64_t ticket, int64_t nanoseconds) {
    if (is_turn(ticket)) return true;
    std::unique_lock<std::mutex> lock(mutex_);
    waiters_.fetch_add(1, std::memory_order_seq_cst);
    const bool came = turned_.wait_for(lock, std::chrono::nanoseconds(nanoseconds),
                                       [&] { return is_turn(ticket); });
    waiters_.fetch_sub(1, std::memory_order_seq_cst);
    return came;
  }

  void complete(uint64_t ticket) {
    completed_.store(ticket + 1, std::memory_order_seq_cst);
    if (waiters_.load(std::memory_order_seq_cst) == 0) return;
    std::lock_guard<std::mutex> lock(mutex_);
    turned_.notify_all();
  }

 private:
  std::atomic<bool> entered_{false};
  uint64_t issued_ = 0;
  std::atomic<uint64_t> completed_{0};
  std::atomic<int32_t> waiters_{0};
  std::mutex mutex_;
  std::condition_variable turned_;
};

// One rank of a communicator: what the binding holds.
struct Session {
  Endpoint endpoint;
  std::unique_ptr<Execution> execution;    // made when the control page exists
  std::unique_ptr<PointExecution> points;  // likewise
  Gate gate;

  Session(int32_t rank, int32_t world_size, const ScratchSizes& sizes, bool oversubscribed,
          int64_t timeout_nanoseconds)
      : endpoint(rank, world_size, sizes, oversubscribed, timeout_nanoseconds) {}

  int create_segment(size_t reserved_bytes, uint64_t token) {
    const int error = endpoint.create_segment(reserved_bytes, token);
    if (error != 0) return error;
    execution = std::make_unique<Execution>(&endpoint);
    points = std::make_unique<PointExecution>(&endpoint);
    return 0;
  }

  PlanLimits limits() const {
    return {endpoint.rank,
            endpoint.world_size,
            kFlagCount,
            kMaxResults,
            kMaxOperands,
            kLinePayloadBytes,
            endpoint.sizes.small_bytes,
            endpoint.sizes.staging_bytes,
            kAgreementTag,
            endpoint.spans_hosts(),
            endpoint.host_of.empty() ? nullptr : endpoint.host_of.data()};
  }
};

// Passes on a turn that will not be used.
inline void skip_turn(Session* session, uint64_t ticket) {
  while (!session->gate.wait_turn(ticket, 50000000)) {
  }
  session->gate.complete(ticket);
}

// Counts the forks between the process that loaded this code and this one.
inline uint64_t fork_generation() {
  static std::atomic<uint64_t> generation{0};
  static const int registered = pthread_atfork(nullptr, nullptr, [] { ++generation; });
  return registered == 0 ? generation.load(std::memory_order_relaxed) : 0;
}

// Keeps a session of the parent for the life of a forked child. Its destructor would wait for
// threads that exist in the parent alone, and count one of the parent's sleepers as awake.
inline void abandon_session(const std::shared_ptr<Session>& session) {
  new std::shared_ptr<Session>(session);
}

// An operation on its way through a stream. The issuer keeps everything it points to alive until
// `finished()`; the program and the session are shared with it.
struct Task {
  std::shared_ptr<Session> session;
  std::shared_ptr<Program> program;
  Invocation invocation;
  std::shared_ptr<PointBatch> batch;  // messages between two ranks, instead of an invocation
  std::shared_ptr<Task> after;  // of the same stream: where it has failed, this one does not run
  uint64_t ticket = 0;

  bool finished() const { return finished_.load(std::memory_order_acquire); }

  bool wait(int64_t nanoseconds) {
    if (finished()) return true;
    std::unique_lock<std::mutex> lock(mutex_);
    return ended_.wait_for(lock, std::chrono::nanoseconds(nanoseconds), [&] { return finished(); });
  }

  // Of a finished task.
  Status status() const { return status_; }
  uint64_t sequence() const { return sequence_; }
  int32_t culprit() const { return culprit_; }

  void run() {
    while (!session->gate.wait_turn(ticket, 50000000)) {
    }
    if (after != nullptr && after->status_ != Status::kDone) {
      sequence_ = after->sequence_;
      culprit_ = after->culprit_;
      status_ = after->status_;
    } else {
      Status status;
      if (batch != nullptr) {
        status = session->points->begin(batch.get());
        while (status == Status::kPending) status = session->points->resume();
      } else {
        status = session->execution->begin(&invocation);
        while (status == Status::kPending) status = session->execution->resume();
      }
      sequence_ = session->execution->sequence();
      culprit_ = session->endpoint.culprit;
      status_ = status;
    }
    after.reset();
    // Whoever has seen a later operation end must see this one ended; whoever sleeps until this one
    // ends finds the turn passed on.
    finished_.store(true, std::memory_order_release);
    session->gate.complete(ticket);
    std::lock_guard<std::mutex> lock(mutex_);
    ended_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  std::atomic<bool> finished_{false};
  Status status_ = Status::kDone;
  uint64_t sequence_ = 0;
  int32_t culprit_ = -1;
};

// A thread that runs tasks in order.
class Stream {
 public:
  Stream() : thread_([this] { loop(); }) {}
  ~Stream() { close(); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // False: the stream has been closed.
  bool submit(std::shared_ptr<Task> task) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closing_) return false;
    queue_.push_back(std::move(task));
    arrived_.notify_one();
    return true;
  }

  // Finishes what was submitted, then ends the thread.
  void close() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      closing_ = true;
      arrived_.notify_one();
    }
    if (thread_.joinable()) thread_.join();
  }

 private:
  void loop() {
    // Signals are for the interpreter's threads; here one would only interrupt a sleep.
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    for (;;) {
      std::shared_ptr<Task> task;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        arrived_.wait(lock, [&] { return closing_ || !queue_.empty(); });
        if (queue_.empty()) return;
        task = std::move(queue_.front());
        queue_.pop_front();
      }
      task->run();
    }
  }

  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<std::shared_ptr<Task>> queue_;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace cocoll::host

#endif  // COCOLL_HOST_STREAM_H_
