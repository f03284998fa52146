// The GPU executor on the emulated device: ranks as threads of one process or as processes, every
// operation on a stream of the rank's own choice, captured and replayed operations, failures.
//
//   gpu DRIVER KERNELS WORLD_SIZE SEED threads|processes eager|graph|silent|mismatched

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "checks.h"
#include "cocoll/cuda/executor.h"
#include "launch.h"

namespace {

namespace cuda = cocoll::cuda;
using cocoll::native_tests::leave;

constexpr int kMostRanks = 8;
constexpr int kBlocks = 3;
constexpr int kOperations = 24;
constexpr int kCaptured = 4;
constexpr int kReplays = 100;
constexpr int64_t kMostElements = 2000;
constexpr size_t kStagingBytes = 8192;
constexpr int kThreadsOwnCapture = 1;

// What graphs need besides; frameworks call it, cocoll does not.
struct Graphs {
  cuda::Result (*begin)(cuda::Stream stream, int mode);
  cuda::Result (*end)(cuda::Stream stream, void** graph);
  cuda::Result (*launch)(void* graph, cuda::Stream stream);
  cuda::Result (*destroy)(void* graph);
  int (*faults)();
  const char* (*fault_text)();
  int (*allocations)();
};

// Where ranks meet, whether they are threads or processes.
struct Lobby {
  std::atomic<int> arrived[4];
  cuda::SegmentTicket control[kMostRanks];
  cuda::SegmentTicket arrays[kMostRanks];

  void meet(int which, int world_size) {
    arrived[which].fetch_add(1);
    while (arrived[which].load() < world_size) usleep(100);
  }
};

struct Options {
  std::string driver, kernels, mode;
  int world_size;
  unsigned seed;
};

enum Way { kTwoShot, kOneShot, kLowLatency };

// Agreed by all ranks.
struct Operation {
  Way way;
  int blocks;
  int64_t count;
};

std::vector<Operation> make_operations(unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Operation> list;
  const int64_t counts[] = {0, 1, 17, 256, 1000, kMostElements};
  for (int which = 0; which < kOperations; ++which) {
    list.push_back({static_cast<Way>(random() % 3), 1 + static_cast<int>(random() % kBlocks),
                    counts[random() % 6]});
  }
  // What a graph replays.
  constexpr Way kWays[kCaptured] = {kLowLatency, kOneShot, kLowLatency, kTwoShot};
  for (int which = 0; which < kCaptured; ++which) {
    list[static_cast<size_t>(which)].way = kWays[which];
  }
  return list;
}

float value_of(int round, int rank, int64_t index) {
  return static_cast<float>((round * 37 + rank * 11 + index) % 101) - 50.0f;
}

#define CHECK(call)                                                              \
  do {                                                                           \
    const cuda::Result result_ = (call);                                         \
    EXPECT(result_ == cuda::kSuccess, "%s", describe(driver_, result_).c_str()); \
  } while (false)

class Rank {
 public:
  Rank(const Options& options, Lobby* lobby, int rank)
      : options_(options), lobby_(lobby), rank_(rank), operations_(make_operations(options.seed)) {}

  void run() {
    const cuda::LoadError error = cuda::load_driver(options_.driver.c_str(), &driver_);
    if (error.status != cuda::LoadStatus::kLoaded) leave(error.detail.c_str(), 64);
    void* library = dlopen(options_.driver.c_str(), RTLD_NOW);
    graphs_ = {symbol<decltype(Graphs::begin)>(library, "cuStreamBeginCapture_v2"),
               symbol<decltype(Graphs::end)>(library, "cuStreamEndCapture"),
               symbol<decltype(Graphs::launch)>(library, "cuGraphLaunch"),
               symbol<decltype(Graphs::destroy)>(library, "cuGraphDestroy"),
               symbol<decltype(Graphs::faults)>(library, "emulated_fault_count"),
               symbol<decltype(Graphs::fault_text)>(library, "emulated_faults"),
               symbol<decltype(Graphs::allocations)>(library, "emulated_allocation_count")};
    cuda::Context context;
    CHECK(driver_.primary_context_retain(&context, 0));
    CHECK(driver_.context_set_current(context));
    CHECK(driver_.module_load_data(&module_, options_.kernels.c_str()));
    CHECK(driver_.module_get_function(&function_, module_, "grid_plain"));
    for (cuda::Stream& stream : streams_) CHECK(driver_.stream_create(&stream, 1));
    connect();
    if (options_.mode == "graph") {
      replay();
    } else {
      run_eagerly();
    }
    disconnect();
  }

 private:
  template <class Pointer>
  static Pointer symbol(void* library, const char* name) {
    return reinterpret_cast<Pointer>(dlsym(library, name));
  }

  void connect() {
    cuda::ExecutorOptions options;
    options.rank = rank_;
    options.world_size = options_.world_size;
    options.blocks = kBlocks;
    options.staging_bytes = kStagingBytes;
    options.low_latency_bytes = kStagingBytes;
    options.limit_nanoseconds = options_.mode == "silent" ? 300u * 1000000u : 60u * 1000000000ull;
    executor_ = std::make_unique<cuda::Executor>(&driver_, options);
    CHECK(executor_->create());
    const size_t bytes = kOperations * 2 * kMostElements * sizeof(float);
    CHECK(arrays_[rank_].create(&driver_, 0, bytes, streams_[0]));
    CHECK(driver_.stream_synchronize(streams_[0]));
    lobby_->control[rank_] = executor_->ticket();
    lobby_->arrays[rank_] = arrays_[rank_].ticket();
    lobby_->meet(0, options_.world_size);
    for (int peer = 0; peer < options_.world_size; ++peer) {
      if (peer == rank_) continue;
      CHECK(executor_->attach(peer, lobby_->control[peer]));
      CHECK(arrays_[peer].attach(&driver_, lobby_->arrays[peer]));
    }
    lobby_->meet(1, options_.world_size);
  }

  void disconnect() {
    for (cuda::Stream stream : streams_) CHECK(driver_.stream_synchronize(stream));
    executor_->detach();
    for (int peer = 0; peer < options_.world_size; ++peer) {
      if (peer != rank_) arrays_[peer].close();
    }
    lobby_->meet(2, options_.world_size);
    executor_->close();
    arrays_[rank_].close();
    for (cuda::Stream stream : streams_) CHECK(driver_.stream_destroy(stream));
    CHECK(driver_.module_unload(module_));
    lobby_->meet(3, options_.world_size);
    EXPECT(graphs_.faults() == 0, "faults:\n%s", graphs_.fault_text());
    EXPECT(graphs_.allocations() == 0, "%d allocations are left", graphs_.allocations());
  }

  float* array(int rank, int operation, int which) const {
    return reinterpret_cast<float*>(arrays_[rank].base()) + (operation * 2 + which) * kMostElements;
  }

  // Every operation has arrays of its own: what may go wrong between operations is cocoll's.
  cocoll_grid_call make_call(int which) const {
    const Operation& operation = operations_[static_cast<size_t>(which)];
    cocoll_grid_call call = {};
    executor_->prepare(&call);
    call.flags = COCOLL_GRID_ALIGNED;
    call.signature = static_cast<uint32_t>(which + 1);
    call.end = operation.count;
    if (operation.way != kTwoShot) {
      if (operation.way == kOneShot) {
        executor_->stage(&call, array(rank_, which, 0));
      } else {
        executor_->push(&call, array(rank_, which, 0));
      }
      call.destination_count = 1;
      call.destinations[0][0] = array(rank_, which, 1);
      return call;
    }
    const int64_t share = (operation.count + options_.world_size - 1) / options_.world_size;
    const int64_t block = (share + 15) / 16 * 16;
    call.begin = std::min(operation.count, block * rank_);
    call.end = std::min(operation.count, call.begin + block);
    call.destination_count = options_.world_size;
    for (int peer = 0; peer < options_.world_size; ++peer) {
      call.sources[peer] = array(peer, which, 0);
      call.destinations[0][peer] = array(peer, which, 1);
    }
    return call;
  }

  // What a framework queues around an operation: its producer, and what takes the result away.
  void issue(int which, cuda::Stream stream, std::vector<float>* input, std::vector<float>* output,
             bool odd) {
    const Operation& operation = operations_[static_cast<size_t>(which)];
    const size_t bytes = static_cast<size_t>(operation.count) * sizeof(float);
    CHECK(driver_.memcpy_async(address(array(rank_, which, 0)), address(input->data()), bytes,
                               stream));
    cocoll_grid_call call = make_call(which);
    if (odd) call.signature = 0;
    cuda::Sequence sequence;
    sequence.launch(function_, call, operation.blocks, 0);
    uint64_t number = 0;
    CHECK(executor_->run(sequence, stream, &number));
    CHECK(driver_.memcpy_async(address(output->data()), address(array(rank_, which, 1)), bytes,
                               stream));
  }

  static cuda::DevicePointer address(const void* pointer) {
    return reinterpret_cast<cuda::DevicePointer>(pointer);
  }

  void fill(int round, std::vector<float>* input) const {
    for (int64_t i = 0; i < kMostElements; ++i) {
      (*input)[static_cast<size_t>(i)] = value_of(round, rank_, i);
    }
  }

  void compare(int round, int which, const std::vector<float>& output) const {
    for (int64_t i = 0; i < operations_[static_cast<size_t>(which)].count; ++i) {
      float wanted = 0;
      for (int peer = 0; peer < options_.world_size; ++peer) wanted += value_of(round, peer, i);
      const float got = output[static_cast<size_t>(i)];
      EXPECT(got == wanted, "rank %d, operation %d, round %d, element %lld: %g, not %g", rank_,
             which, round, static_cast<long long>(i), static_cast<double>(got),
             static_cast<double>(wanted));
    }
  }

  void run_eagerly() {
    std::mt19937 random(options_.seed * 31 + static_cast<unsigned>(rank_));
    std::vector<std::vector<float>> inputs(kOperations, std::vector<float>(kMostElements));
    std::vector<std::vector<float>> outputs = inputs;
    const bool odd_one = rank_ == options_.world_size - 1;
    const bool fails = options_.mode != "eager";
    const int end = fails ? kOperations / 2 : kOperations;
    for (int which = 0; which < end; ++which) {
      fill(which, &inputs[static_cast<size_t>(which)]);
      const bool odd = fails && odd_one && which == end - 1;
      if (odd && options_.mode == "silent") continue;
      issue(which, streams_[random() % 2], &inputs[static_cast<size_t>(which)],
            &outputs[static_cast<size_t>(which)], odd);
    }
    for (cuda::Stream stream : streams_) CHECK(driver_.stream_synchronize(stream));
    for (int which = 0; which < (fails ? end - 1 : end); ++which) {
      compare(which, which, outputs[static_cast<size_t>(which)]);
    }
    const cocoll_grid_failure* failure = executor_->failure();
    if (!fails) {
      EXPECT(failure == nullptr, "rank %d: reason %d, peer %d", rank_, failure->reason,
             failure->peer);
    } else if (!(odd_one && options_.mode == "silent")) {
      const int wanted = options_.mode == "silent" ? COCOLL_GRID_LATE : COCOLL_GRID_MISMATCH;
      EXPECT(failure != nullptr, "rank %d saw no failure", rank_);
      if (failure == nullptr) return;
      EXPECT(failure->reason == wanted || failure->reason == COCOLL_GRID_POISONED,
             "rank %d: reason %d", rank_, failure->reason);
    }
  }

  // Operations of all ways in one graph, replayed on two streams in turn, with new inputs every
  // time.
  void replay() {
    std::vector<float> inputs[kCaptured], outputs[kCaptured];
    void* graph = nullptr;
    CHECK(graphs_.begin(streams_[0], kThreadsOwnCapture));
    for (int which = 0; which < kCaptured; ++which) {
      inputs[which].resize(kMostElements);
      outputs[which].resize(kMostElements);
      issue(which, streams_[0], &inputs[which], &outputs[which], false);
    }
    CHECK(graphs_.end(streams_[0], &graph));
    for (int round = 0; round < kReplays; ++round) {
      for (int which = 0; which < kCaptured; ++which) fill(round + which, &inputs[which]);
      cuda::Stream stream = streams_[round % 2];
      CHECK(graphs_.launch(graph, stream));
      CHECK(driver_.stream_synchronize(stream));
      for (int which = 0; which < kCaptured; ++which) compare(round + which, which, outputs[which]);
    }
    CHECK(graphs_.destroy(graph));
    // What was captured is nothing that an operation outside can wait for.
    std::vector<float> input(kMostElements), output(kMostElements);
    fill(2, &input);
    issue(2, streams_[0], &input, &output, false);
    CHECK(driver_.stream_synchronize(streams_[0]));
    compare(2, 2, output);
    EXPECT(executor_->failure() == nullptr, "rank %d gave up", rank_);
  }

  const Options& options_;
  Lobby* lobby_;
  const int rank_;
  const std::vector<Operation> operations_;
  cuda::Driver driver_;
  Graphs graphs_ = {};
  cuda::Module module_ = nullptr;
  cuda::Function function_ = nullptr;
  cuda::Stream streams_[2] = {};
  std::unique_ptr<cuda::Executor> executor_;
  cuda::Segment arrays_[kMostRanks];
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) {
    leave("usage: gpu DRIVER KERNELS WORLD_SIZE SEED threads|processes MODE",
          cocoll::native_tests::kBadUsage);
  }
  cocoll::native_tests::start_watchdog(cocoll::native_tests::kWatchdogSeconds);
  const Options options = {argv[1], argv[2], argv[6], atoi(argv[3]),
                           static_cast<unsigned>(atoi(argv[4]))};
  Lobby* lobby = cocoll::native_tests::make_shared_lobby<Lobby>();
  const auto run = [&](int rank) { Rank(options, lobby, rank).run(); };
  return std::string(argv[5]) == "processes"
             ? cocoll::native_tests::run_processes(options.world_size, run)
             : cocoll::native_tests::run_threads(options.world_size, run);
}
