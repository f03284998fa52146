// What the test programs of the emulated NCCL share: a rank with the library, a device, two streams
// and a place to meet the others.

#ifndef COCOLL_TESTS_NATIVE_NCCL_RANK_H_
#define COCOLL_TESTS_NATIVE_NCCL_RANK_H_

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <string>
#include <type_traits>
#include <vector>

#include "checks.h"
#include "cocoll/cuda/nccl.h"

namespace cocoll::native_tests {

constexpr int kMostRanks = 8;
constexpr size_t kShared = 4096;

// What else the library has.
struct Extras {
  cuda::Result (*clear_words)(cuda::DevicePointer pointer, unsigned value, size_t words,
                              cuda::Stream stream);
  cuda::Result (*begin)(cuda::Stream stream, int mode);
  cuda::Result (*end)(cuda::Stream stream, void** graph);
  cuda::Result (*launch)(void* graph, cuda::Stream stream);
  cuda::Result (*destroy)(void* graph);
  cuda::Result (*exchange_mode)(int* mode);
  cuda::NcclResult (*init)(cuda::NcclCommunicator* comm, int world_size, cuda::NcclUniqueId id,
                           int rank);
  cuda::NcclResult (*split)(cuda::NcclCommunicator comm, int color, int key,
                            cuda::NcclCommunicator* made, void* config);
  cuda::NcclResult (*init_with_config)(cuda::NcclCommunicator* comm, int world_size,
                                       cuda::NcclUniqueId id, int rank, void* config);
  int (*faults)();
  const char* (*fault_text)();
  int (*allocations)();
  int (*communicators)();
};

// Where ranks meet, whether they are threads or processes.
struct Lobby {
  std::atomic<int> arrived, wanted_faults, came;
  cuda::NcclUniqueId id;
  cuda::IpcMemHandle memory[kMostRanks];
  float results[kMostRanks][kShared];
};

struct Options {
  std::string library, mode;
  int world_size;
  unsigned seed;
  bool as_processes;
};

#define CHECK(call)                                                              \
  do {                                                                           \
    const cuda::Result result_ = (call);                                         \
    EXPECT(result_ == cuda::kSuccess, "%s", describe(driver_, result_).c_str()); \
  } while (false)

#define CHECK_NCCL(call)                                                           \
  do {                                                                             \
    const cuda::NcclResult result_ = (call);                                       \
    EXPECT(result_ == cuda::kNcclSuccess, "%s", describe(nccl_, result_).c_str()); \
  } while (false)

// Memory on the device, and the same on the host.
template <class T>
struct Array {
  const cuda::Driver* driver;
  cuda::DevicePointer device = 0;
  std::vector<T> host;

  Array(const cuda::Driver* driver, size_t count) : driver(driver), host(count) {
    if (driver->mem_alloc(&device, bytes() + 1) != cuda::kSuccess) leave("no memory", 70);
  }
  Array(const Array&) = delete;
  ~Array() { driver->mem_free(device); }

  size_t bytes() const { return host.size() * sizeof(T); }
  cuda::DevicePointer at(size_t index) const { return device + index * sizeof(T); }
  void put(cuda::Stream stream) { driver->memcpy_async(device, address(), bytes(), stream); }
  void get(cuda::Stream stream) { driver->memcpy_async(address(), device, bytes(), stream); }
  cuda::DevicePointer address() { return reinterpret_cast<cuda::DevicePointer>(host.data()); }
};

class NcclRank {
 public:
  NcclRank(const Options& options, Lobby* lobby, int rank)
      : options_(options), lobby_(lobby), rank_(rank), world_size_(options.world_size) {}

 protected:
  // Loads the library and makes the device current.
  void start() {
    const char* path = options_.library.c_str();
    if (cuda::load_driver(path, &driver_).status != cuda::LoadStatus::kLoaded) leave(path, 64);
    const cuda::LoadError error = cuda::load_nccl(path, &nccl_);
    if (error.status != cuda::LoadStatus::kLoaded) leave(error.detail.c_str(), 65);
    void* library = dlopen(path, RTLD_NOW);
    const auto resolve = [&](auto* function, const char* name) {
      *function = reinterpret_cast<std::decay_t<decltype(*function)>>(dlsym(library, name));
      if (*function == nullptr) leave(name, 64);
    };
    resolve(&extras_.clear_words, "cuMemsetD32Async");
    resolve(&extras_.begin, "cuStreamBeginCapture_v2");
    resolve(&extras_.end, "cuStreamEndCapture");
    resolve(&extras_.launch, "cuGraphLaunch");
    resolve(&extras_.destroy, "cuGraphDestroy");
    resolve(&extras_.init, "ncclCommInitRank");
    resolve(&extras_.split, "ncclCommSplit");
    resolve(&extras_.init_with_config, "ncclCommInitRankConfig");
    resolve(&extras_.exchange_mode, "cuThreadExchangeStreamCaptureMode");
    resolve(&extras_.faults, "emulated_fault_count");
    resolve(&extras_.fault_text, "emulated_faults");
    resolve(&extras_.allocations, "emulated_allocation_count");
    resolve(&extras_.communicators, "emulated_nccl_communicator_count");
    int count = 0;
    CHECK(driver_.device_get_count(&count));
    cuda::Context context;
    CHECK(driver_.primary_context_retain(&context, rank_ % count));
    CHECK(driver_.context_set_current(context));
    for (cuda::Stream& stream : streams_) CHECK(driver_.stream_create(&stream, 1));
  }

  // Looks at what is left, and at what the device has noticed.
  void finish() {
    for (cuda::Stream stream : streams_) CHECK(driver_.stream_destroy(stream));
    lobby_->wanted_faults.fetch_add(wanted_faults_);
    meet();
    const int wanted = options_.as_processes ? wanted_faults_ : lobby_->wanted_faults.load();
    EXPECT(extras_.faults() == wanted, "%d faults, not %d:\n%s", extras_.faults(), wanted,
           extras_.fault_text());
    EXPECT(extras_.allocations() == 0, "%d", extras_.allocations());
    EXPECT(extras_.communicators() == 0, "%d", extras_.communicators());
    meet();
  }

  void meet() {
    const int wanted = world_size_ * ++meetings_;
    lobby_->arrived.fetch_add(1);
    while (lobby_->arrived.load() < wanted) usleep(50);
  }

  void meet_with_id() {
    if (rank_ == 0) CHECK_NCCL(nccl_.get_unique_id(&lobby_->id));
    meet();
  }

  cuda::NcclCommunicator connect() {
    meet_with_id();
    cuda::NcclCommunicator comm = nullptr;
    CHECK_NCCL(extras_.init(&comm, world_size_, lobby_->id, rank_));
    meet();
    return comm;
  }

  // Gives the result, without waiting for the others.
  cuda::NcclResult begin_to_connect(cuda::NcclCommunicator* comm) {
    // ncclConfig_t, with what NCCL gives a meaning to nowhere as it is by default.
    struct {
      size_t size;
      unsigned magic, version;
      int blocking, cluster_size, least_blocks, most_blocks;
      const char* net_name;
      int shares_on_split;
    } config = {sizeof config, 0xcafebeef, 21800, 0, INT_MIN, INT_MIN, INT_MIN, nullptr, INT_MIN};
    return extras_.init_with_config(comm, world_size_, lobby_->id, rank_, &config);
  }

  cuda::NcclResult state_of(cuda::NcclCommunicator comm) {
    cuda::NcclResult state = cuda::kNcclSuccess;
    CHECK_NCCL(nccl_.comm_get_async_error(comm, &state));
    return state;
  }

  // Waits until nothing is in progress.
  void settle(cuda::NcclCommunicator comm) {
    while (state_of(comm) == cuda::kNcclInProgress) usleep(50);
    CHECK_NCCL(state_of(comm));
  }

  void synchronize() {
    for (cuda::Stream stream : streams_) CHECK(driver_.stream_synchronize(stream));
  }

  // For what is noted as a fault besides what it gives.
  void expect_fault(int result, int wanted) {
    EXPECT(result == wanted, "%d", result);
    ++wanted_faults_;
  }

  const Options& options_;
  Lobby* lobby_;
  const int rank_, world_size_;
  cuda::Driver driver_;
  cuda::Nccl nccl_;
  Extras extras_ = {};
  cuda::Stream streams_[2] = {};
  int meetings_ = 0;
  int wanted_faults_ = 0;  // of this rank
};

}  // namespace cocoll::native_tests

#endif  // COCOLL_TESTS_NATIVE_NCCL_RANK_H_
