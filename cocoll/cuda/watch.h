// A thread that looks after operations that NCCL carries, for as long as there is one.

#ifndef COCOLL_CUDA_WATCH_H_
#define COCOLL_CUDA_WATCH_H_

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "cocoll/cuda/executor.h"

namespace cocoll::cuda {

class Watch {
 public:
  // `context` is the device's. All but the thread's own end outlives the watch.
  Watch(const Driver* driver, Context context, Executor* executor, const uint64_t* abort_word)
      : abort_word_(abort_word), thread_([=, this] {
          driver->context_set_current(context);
          // What this thread asks of the driver must not spoil a capture of another one.
          int mode = kCaptureModeRelaxed;
          driver->thread_exchange_capture_mode(&mode);
          std::unique_lock<std::mutex> lock(mutex_);
          while (!ends_.wait_for(lock, kPeriod, [this] { return ended_; })) {
            executor->watch(abort_word_);
          }
        }) {}

  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  ~Watch() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ended_ = true;
    }
    ends_.notify_all();
    thread_.join();
  }

  // The word is not to be read any more.
  void forget_abort_word() {
    const std::lock_guard<std::mutex> lock(mutex_);
    abort_word_ = nullptr;
  }

 private:
  static constexpr std::chrono::milliseconds kPeriod{20};

  std::mutex mutex_;
  std::condition_variable ends_;
  bool ended_ = false;
  const uint64_t* abort_word_;
  std::thread thread_;
};

}  // namespace cocoll::cuda

#endif  // COCOLL_CUDA_WATCH_H_
