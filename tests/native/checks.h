// What native test programs need besides what they test: how to fail, to hang no longer than told,
// and to meet.

#ifndef COCOLL_TESTS_NATIVE_CHECKS_H_
#define COCOLL_TESTS_NATIVE_CHECKS_H_

#include <signal.h>
#include <stdarg.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>

namespace cocoll::native_tests {

// How a program ends: tests of the tests tell these from each other and from the sanitizers' own.
enum ExitCode : int { kPassed = 0, kWrongResult = 3, kBadUsage = 64, kHung = 75 };

inline std::atomic<int>& failure_count() {
  static std::atomic<int> count{0};
  return count;
}

__attribute__((format(printf, 1, 2))) inline void fail(const char* format, ...) {
  // One wrong collective makes thousands of wrong elements; the first ones say enough.
  if (failure_count().fetch_add(1) >= 20) return;
  va_list arguments;
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  fputc('\n', stderr);
}

// Says what is wrong and goes on: the ranks stay in step.
#define EXPECT(condition, format, ...)                                            \
  do {                                                                            \
    if (!(condition))                                                             \
      cocoll::native_tests::fail("%s:%d: wanted %s; " format, __FILE__, __LINE__, \
                                 #condition, ##__VA_ARGS__);                      \
  } while (false)

// Ends a program that hangs, with a status of its own. No test waits for it to pass, so it may be
// long: machines are slow at times.
constexpr unsigned kWatchdogSeconds = 600;

inline void start_watchdog(unsigned seconds) {
  signal(SIGALRM, [](int) {
    static const char kMessage[] = "the watchdog has ended a program that hangs\n";
    static_cast<void>(!write(STDERR_FILENO, kMessage, sizeof kMessage - 1));
    _exit(kHung);
  });
  alarm(seconds);
}

[[noreturn]] inline void leave(const char* what, int status) {
  fprintf(stderr, "%s\n", what);
  exit(status);
}

// A meeting point of threads that the code under test knows nothing of.
class Barrier {
 public:
  explicit Barrier(int32_t parties) : parties_(parties) {}

  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    const uint64_t round = round_;
    if (++waiting_ == parties_) {
      waiting_ = 0;
      ++round_;
      all_here_.notify_all();
      return;
    }
    all_here_.wait(lock, [&] { return round_ != round; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable all_here_;
  const int32_t parties_;
  int32_t waiting_ = 0;
  uint64_t round_ = 0;
};

}  // namespace cocoll::native_tests

#endif  // COCOLL_TESTS_NATIVE_CHECKS_H_
