// What the parts of the emulated device share: the driver (emulated_device.cpp), its streams and
// graphs (emulated_streams.cpp) and NCCL (emulated_nccl.cpp), which are one library.

#ifndef COCOLL_TESTING_EMULATED_DEVICE_H_
#define COCOLL_TESTING_EMULATED_DEVICE_H_

#include <sched.h>
#include <time.h>

#include <functional>
#include <memory>
#include <string>

#include "cocoll/cuda/driver.h"

namespace cocoll::emulated {

using cuda::DevicePointer;
using cuda::Result;

constexpr Result kInvalidValue = 1;
constexpr Result kInvalidDevice = 101;
constexpr Result kInvalidContext = 201;
constexpr Result kInvalidImage = 200;
constexpr Result kPeerAccessUnsupported = 217;
constexpr Result kInvalidHandle = 400;
constexpr Result kNotFound = 500;

// A number from the environment.
int setting(const char* name, int usual);

// Notes what would go wrong silently on a GPU; gives `result`.
Result fault(const std::string& what, Result result = kInvalidValue);

// Whether a call that waits or allocates is refused, because something is being captured. As with
// CUDA, the captures that forbid it are lost: nothing but their end is taken from then on.
bool capture_forbids(const char* call);

// That of the thread's context, or -1.
int current_device();

// The host that a device is on.
int emulated_host(int device);

// Whether all of it lies in one allocation, or in one mapping of a peer's.
bool is_device_memory(DevicePointer pointer, size_t bytes);

typedef std::function<void()> Item;

// What a stream is given.
struct Work {
  // Gives what the stream runs. Called when the work is queued: at once or, where it is captured,
  // at every launch of the graph.
  std::function<Item()> issue;
  // Works of one owner run in the order issued, also where a graph leaves them unordered.
  const void* owner = nullptr;
  // Kept for as long as a capture or a graph may issue it.
  std::shared_ptr<void> held = nullptr;
};

// Queues work, or takes it into the graph that is being captured.
Result submit(cuda::Stream stream, Work work);
Result submit(cuda::Stream stream, Item item);

// Lets others run, and after a while sleeps: machines have fewer cores than tests have threads.
class Patience {
 public:
  void wait() {
    if (++waited_ < 64) {
      sched_yield();
      return;
    }
    const timespec time = {0, 50 * 1000};
    nanosleep(&time, nullptr);
  }
  void renew() { waited_ = 0; }

 private:
  int waited_ = 0;
};

}  // namespace cocoll::emulated

#endif  // COCOLL_TESTING_EMULATED_DEVICE_H_
