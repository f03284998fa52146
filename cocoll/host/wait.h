// Waiting: spin, then yield, then sleep; and the signals that end it.
//
// A signal is a sequentially consistent exchange followed by a load of the peer's sleeper count; a
// sleeper raises the count by a sequentially consistent addition and then polls once more. One of
// the two sees the other (Dekker), so no wake-up is lost and a signal to a rank that is awake costs
// one exchange. No stand-alone fence is used: ThreadSanitizer does not model them.

#ifndef COCOLL_HOST_WAIT_H_
#define COCOLL_HOST_WAIT_H_

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "control.h"

namespace cocoll::host {

inline void spin_hint() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

// A counter that only people read; it need not be synchronised between cores.
inline uint64_t clock_ticks() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  uint64_t ticks;
  asm volatile("mrs %0, cntvct_el0" : "=r"(ticks));
  return ticks;
#else
  return 0;
#endif
}

inline int64_t monotonic_nanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

// The futex is shared: its word lies in memory that several processes map.
inline void futex_wait(std::atomic<uint32_t>* word, uint32_t seen, int64_t nanoseconds) {
  timespec limit{nanoseconds / 1000000000, nanoseconds % 1000000000};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT, seen, &limit, nullptr, 0);
}

inline void futex_wake_all(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

inline void ring(Control* control) {
  control->doorbell.fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(&control->doorbell);
}

// Stores a word that `reader` polls, and wakes it if it sleeps.
template <class Word>
inline void publish(std::atomic<Word>* word, Word value, Control* reader) {
  word->exchange(value, std::memory_order_seq_cst);
  if (reader->sleepers.load(std::memory_order_seq_cst) != 0) ring(reader);
}

// How a rank waits, fixed when the communicator is made.
struct WaitPolicy {
  // Polls with a pause between them. 0 where the ranks of the host outnumber the CPUs they may use:
  // spinning there costs a scheduler slice per barrier (measured: 8 ms against 2.5 us).
  int32_t spins = 0;
  int64_t yield_nanoseconds = 0;   // then sched_yield for this long
  int64_t sleep_nanoseconds = 0;   // then sleep, at most this long at a time
  int64_t return_nanoseconds = 0;  // leave native code after this long without progress
  // What a wire tells it tells only who asks. Where a message takes longer than this the rank asks
  // now and then; kernels carry the bytes meanwhile.
  int64_t wire_yield_nanoseconds = 100000;
  int64_t wire_sleep_nanoseconds = 200000;
  int64_t check_nanoseconds = 10000000;  // between two looks for peers that were lost
};

inline WaitPolicy make_wait_policy(bool oversubscribed) {
  WaitPolicy policy;
  policy.spins = oversubscribed ? 0 : 4000;
  policy.yield_nanoseconds = oversubscribed ? 2000000 : 500000;
  policy.sleep_nanoseconds = 10000000;
  policy.return_nanoseconds = 50000000;
  return policy;
}

// The state of one wait. The caller polls, and calls `pause` after every poll that found nothing.
class Waiter {
 public:
  enum class Verdict {
    kPoll,   // poll again
    kCheck,  // poll again after looking for peers that were lost, aborts and the timeout
    kLeave,  // return to the caller's caller for a moment (signals of Python)
  };

  Waiter(const WaitPolicy& policy, Control* own) : policy_(policy), own_(own) {}
  ~Waiter() { disarm(); }
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

  // Native code is entered anew: a fresh stretch until the next return.
  void entered() { entered_ = 0; }

  // Something moved: the next wait starts from spinning.
  void progressed() {
    disarm();
    polls_ = 0;
    yield_started_ = 0;
  }

  // `polls_wire`: a poll also asks the wire, which costs more than a look at memory.
  Verdict pause(bool polls_wire = false) {
    if (polls_ < policy_.spins && !polls_wire) {
      ++polls_;
      spin_hint();
      return Verdict::kPoll;
    }
    const int64_t now = monotonic_nanoseconds();
    if (entered_ == 0) entered_ = now;
    if (yield_started_ == 0) yield_started_ = now;
    if (now - yield_started_ <
        (polls_wire ? policy_.wire_yield_nanoseconds : policy_.yield_nanoseconds)) {
      sched_yield();
      return Verdict::kPoll;
    }
    if (now - entered_ >= policy_.return_nanoseconds) return Verdict::kLeave;
    if (!armed_) {
      seen_ = own_->doorbell.load(std::memory_order_seq_cst);
      own_->sleepers.fetch_add(1, std::memory_order_seq_cst);
      armed_ = true;
      if (polls_wire && now - checked_ < policy_.check_nanoseconds) return Verdict::kPoll;
      checked_ = now;
      return Verdict::kCheck;
    }
    futex_wait(&own_->doorbell, seen_,
               polls_wire ? policy_.wire_sleep_nanoseconds : policy_.sleep_nanoseconds);
    disarm();
    return Verdict::kPoll;
  }

 private:
  void disarm() {
    if (!armed_) return;
    own_->sleepers.fetch_sub(1, std::memory_order_seq_cst);
    armed_ = false;
  }

  const WaitPolicy& policy_;
  Control* own_;
  int32_t polls_ = 0;
  int64_t yield_started_ = 0;
  int64_t entered_ = 0;
  int64_t checked_ = 0;
  uint32_t seen_ = 0;
  bool armed_ = false;
};

}  // namespace cocoll::host

#endif  // COCOLL_HOST_WAIT_H_
