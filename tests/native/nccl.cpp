// The emulated NCCL, of which tests of what uses it must be able to say that it does as NCCL does.
//
//   nccl LIBRARY WORLD_SIZE SEED threads|processes MODE
//   MODE: messages, collectives, order, split, graph, disagreement, refusal, misuse

#include "cocoll/cuda/nccl.h"

#include <unistd.h>

#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "checks.h"
#include "cocoll/kernels/dtypes.h"
#include "launch.h"

namespace {

namespace cuda = cocoll::cuda;
using cocoll::native_tests::leave;

constexpr int kMostRanks = 8;
constexpr int kThreadsOwnCapture = 1;
constexpr int kFloat32 = 7;
constexpr size_t kShared = 4096;
enum Op { kSum, kProduct, kMaximum, kMinimum, kAverage, kOps };

// What else the library has.
struct Extras {
  cuda::Result (*clear_words)(cuda::DevicePointer pointer, unsigned value, size_t words,
                              cuda::Stream stream);
  cuda::Result (*begin)(cuda::Stream stream, int mode);
  cuda::Result (*end)(cuda::Stream stream, void** graph);
  cuda::Result (*launch)(void* graph, cuda::Stream stream);
  cuda::Result (*destroy)(void* graph);
  int (*faults)();
  const char* (*fault_text)();
  int (*allocations)();
  int (*communicators)();
};

// Where ranks meet, whether they are threads or processes.
struct Lobby {
  std::atomic<int> arrived;
  cuda::NcclUniqueId id;
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

template <class T>
typename cocoll::AccumulateOf<T>::Type computed(int op, size_t index, int world_size,
                                                int (*value)(int, size_t)) {
  int result = value(0, index);
  for (int rank = 1; rank < world_size; ++rank) {
    const int next = value(rank, index);
    switch (op) {
      case kProduct:
        result *= next;
        break;
      case kMaximum:
        result = result < next ? next : result;
        break;
      case kMinimum:
        result = next < result ? next : result;
        break;
      default:
        result += next;
        break;
    }
  }
  typedef typename cocoll::AccumulateOf<T>::Type C;
  return op == kAverage ? static_cast<C>(static_cast<C>(result) / static_cast<C>(world_size))
                        : static_cast<C>(result);
}

// Small enough for every type to hold every result.
int small_value(int rank, size_t index) {
  return 1 + static_cast<int>((index * 7 + static_cast<size_t>(rank) * 5) % 3);
}

class Rank {
 public:
  Rank(const Options& options, Lobby* lobby, int rank)
      : options_(options),
        lobby_(lobby),
        rank_(rank),
        world_size_(options.world_size),
        random_(options.seed * 31 + static_cast<unsigned>(rank)) {}

  void run() {
    start();
    if (options_.mode == "refusal") {
      refuse();
    } else if (options_.mode == "disagreement") {
      disagree();
    } else {
      cuda::NcclCommunicator comm = connect();
      if (options_.mode == "messages") exchange(comm);
      if (options_.mode == "collectives") reduce_all(comm);
      if (options_.mode == "order") keep_order(comm);
      if (options_.mode == "split") split(comm);
      if (options_.mode == "graph") replay(comm);
      if (options_.mode == "misuse") {
        capture_wrongly();
        use_wrongly(comm);
      }
      CHECK_NCCL(nccl_.comm_destroy(comm));
    }
    finish();
  }

 private:
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

  void finish() {
    for (cuda::Stream stream : streams_) CHECK(driver_.stream_destroy(stream));
    meet();
    EXPECT(extras_.faults() == wanted_faults_ * (options_.as_processes ? 1 : world_size_),
           "%d faults:\n%s", extras_.faults(), extras_.fault_text());
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
    CHECK_NCCL(nccl_.comm_init_rank(&comm, world_size_, lobby_->id, rank_));
    meet();
    return comm;
  }

  void synchronize() {
    for (cuda::Stream stream : streams_) CHECK(driver_.stream_synchronize(stream));
  }

  // Messages of all sizes to all ranks at once, its own included, several between each two.
  void exchange(cuda::NcclCommunicator comm) {
    const size_t sizes[] = {0, 1, 100, 65536, 300001};
    const size_t most = 300001, ranks = static_cast<size_t>(world_size_);
    Array<unsigned char> from(&driver_, most), to(&driver_, most * ranks * 2);
    for (const size_t size : sizes) {
      for (size_t i = 0; i < most; ++i) from.host[i] = byte_of(rank_, i + size);
      from.put(streams_[0]);
      CHECK_NCCL(nccl_.group_start());
      for (int peer = 0; peer < world_size_; ++peer) {
        const size_t place = most * 2 * static_cast<size_t>(peer);
        CHECK_NCCL(nccl_.send(from.device, size, 0, peer, comm, streams_[0]));
        CHECK_NCCL(nccl_.receive(to.at(place), size, 0, peer, comm, streams_[0]));
        CHECK_NCCL(nccl_.group_start());  // another one inside makes no difference
        CHECK_NCCL(nccl_.receive(to.at(place + most), size / 2, 1, peer, comm, streams_[0]));
        CHECK_NCCL(nccl_.send(from.device, size / 2, 0, peer, comm, streams_[0]));
        CHECK_NCCL(nccl_.group_end());
      }
      CHECK_NCCL(nccl_.group_end());
      to.get(streams_[0]);
      synchronize();
      for (size_t place = 0; place < to.host.size(); ++place) {
        const size_t index = place % most;
        const bool is_second = place / most % 2 == 1;
        if (index >= (is_second ? size / 2 : size)) continue;
        const int peer = static_cast<int>(place / most / 2);
        const int got = to.host[place], wanted = byte_of(peer, index + size);
        EXPECT(got == wanted, "from %d, byte %zu of %zu: %d, not %d", peer, index, size, got,
               wanted);
      }
    }
  }

  static unsigned char byte_of(int rank, size_t index) {
    return static_cast<unsigned char>(index * 31 + index / 256 + static_cast<size_t>(rank) * 77);
  }

  void reduce_all(cuda::NcclCommunicator comm) {
    reduce_type<int8_t>(comm, 0);
    reduce_type<uint8_t>(comm, 1);
    reduce_type<int32_t>(comm, 2);
    reduce_type<uint32_t>(comm, 3);
    reduce_type<int64_t>(comm, 4);
    reduce_type<uint64_t>(comm, 5);
    reduce_type<cocoll::float16>(comm, 6);
    reduce_type<float>(comm, kFloat32);
    reduce_type<double>(comm, 8);
    reduce_type<cocoll::bfloat16>(comm, 9);
    add_like_a_ring(comm);
  }

  template <class T>
  static T stored(int value) {
    return cocoll::narrow<T>(static_cast<typename cocoll::AccumulateOf<T>::Type>(value));
  }

  template <class T>
  void reduce_type(cuda::NcclCommunicator comm, int type) {
    const size_t ranks = static_cast<size_t>(world_size_), own = static_cast<size_t>(rank_);
    const size_t count = type == kFloat32 ? 50021 : 203, all = count * ranks;
    Array<T> from(&driver_, all), to(&driver_, all);
    const cuda::Stream stream = streams_[0];
    const auto fill = [&](Array<T>* array) {
      for (size_t i = 0; i < all; ++i) array->host[i] = stored<T>(small_value(rank_, i));
      array->put(stream);
    };
    const auto compare = [&](const char* what, int op, size_t begin, size_t first) {
      for (size_t i = 0; i < count; ++i) {
        const T wanted = cocoll::narrow<T>(computed<T>(op, first + i, world_size_, small_value));
        const bool equal = memcmp(&to.host[begin + i], &wanted, sizeof(T)) == 0;
        EXPECT(equal, "%s of type %d, op %d, element %zu of rank %d", what, type, op, i, rank_);
      }
    };
    fill(&from);
    for (int op = 0; op < kOps; ++op) {
      CHECK_NCCL(nccl_.all_reduce(from.device, to.device, count, type, op, comm, stream));
      to.get(stream);
      synchronize();
      compare("an all-reduce", op, 0, 0);
      fill(&to);
      CHECK_NCCL(nccl_.all_reduce(to.device, to.device, count, type, op, comm, stream));
      to.get(stream);
      synchronize();
      compare("an all-reduce in place", op, 0, 0);
      CHECK_NCCL(nccl_.reduce_scatter(from.device, to.device, count, type, op, comm, stream));
      to.get(stream);
      synchronize();
      compare("a reduce-scatter", op, 0, own * count);
      fill(&to);
      const cuda::DevicePointer mine = to.at(own * count);
      CHECK_NCCL(nccl_.reduce_scatter(to.device, mine, count, type, op, comm, stream));
      to.get(stream);
      synchronize();
      compare("a reduce-scatter in place", op, own * count, own * count);
    }
    for (const bool in_place : {false, true}) {
      fill(&to);
      const cuda::DevicePointer mine = in_place ? to.at(own * count) : from.at(own * count);
      CHECK_NCCL(nccl_.all_gather(mine, to.device, count, type, comm, stream));
      to.get(stream);
      synchronize();
      for (size_t i = 0; i < all; ++i) {
        const T wanted = stored<T>(small_value(static_cast<int>(i / count), i));
        EXPECT(memcmp(&to.host[i], &wanted, sizeof(T)) == 0, "an all-gather, type %d", type);
      }
    }
    for (int root = 0; root < world_size_; ++root) {
      const bool in_place = root % 2 == 0;
      fill(&to);
      // Only the root's input is read.
      const cuda::DevicePointer input = in_place ? to.device : root == rank_ ? from.device : 0;
      CHECK_NCCL(nccl_.broadcast(input, to.device, count, type, root, comm, stream));
      to.get(stream);
      synchronize();
      for (size_t i = 0; i < count; ++i) {
        const T wanted = stored<T>(small_value(root, i));
        EXPECT(memcmp(&to.host[i], &wanted, sizeof(T)) == 0, "a broadcast, type %d", type);
      }
    }
  }

  static float rough_value(int rank, size_t index) {
    const unsigned mixed =
        (static_cast<unsigned>(index) * 64 + static_cast<unsigned>(rank)) * 2654435761u;
    return static_cast<float>(mixed ^ mixed >> 15) / 7.0f;
  }

  // Sums whose bits depend on the order: a ring's, and the same on all ranks.
  void add_like_a_ring(cuda::NcclCommunicator comm) {
    Array<float> array(&driver_, kShared);
    for (size_t i = 0; i < kShared; ++i) array.host[i] = rough_value(rank_, i);
    array.put(streams_[0]);
    CHECK_NCCL(
        nccl_.all_reduce(array.device, array.device, kShared, kFloat32, kSum, comm, streams_[0]));
    array.get(streams_[0]);
    synchronize();
    memcpy(lobby_->results[rank_], array.host.data(), array.bytes());
    meet();
    EXPECT(memcmp(lobby_->results[0], array.host.data(), array.bytes()) == 0, "ranks differ");
    const size_t ranks = static_cast<size_t>(world_size_);
    const size_t block = (kShared + ranks - 1) / ranks;
    size_t unlike = 0;
    for (size_t i = 0; i < kShared; ++i) {
      float ring = 0, straight = 0;
      for (size_t step = 0; step < ranks; ++step) {
        ring += rough_value(static_cast<int>((i / block + 1 + step) % ranks), i);
        straight += rough_value(static_cast<int>(step), i);
      }
      EXPECT(array.host[i] == ring, "element %zu", i);
      unlike += array.host[i] != straight ? 1 : 0;
    }
    EXPECT(world_size_ < 3 || unlike > 0, "the order of ranks is no ring's");
  }

  // Operations on streams that nothing else orders, which are not the same on all ranks.
  void keep_order(cuda::NcclCommunicator comm) {
    constexpr size_t kCount = 5000;
    constexpr int kOperations = 12;
    Array<float> array(&driver_, kCount);
    for (size_t i = 0; i < kCount; ++i) array.host[i] = static_cast<float>(i % 5);
    array.put(streams_[0]);
    synchronize();
    for (int which = 0; which < kOperations; ++which) {
      const cuda::Stream stream = streams_[random_() % 2];
      CHECK_NCCL(
          nccl_.all_reduce(array.device, array.device, kCount, kFloat32, kSum, comm, stream));
      CHECK_NCCL(nccl_.group_start());
      const int next = (rank_ + 1) % world_size_, last = (rank_ + world_size_ - 1) % world_size_;
      CHECK_NCCL(nccl_.send(array.device, 3, kFloat32, next, comm, stream));
      CHECK_NCCL(nccl_.receive(array.at(4000), 3, kFloat32, last, comm, stream));
      CHECK_NCCL(nccl_.group_end());
    }
    synchronize();
    array.get(streams_[0]);
    synchronize();
    float factor = 1;
    for (int which = 0; which < kOperations; ++which) factor *= static_cast<float>(world_size_);
    for (size_t i = 0; i < kCount; ++i) {
      const size_t index = i >= 4000 && i < 4003 ? i - 4000 : i;
      const float wanted = static_cast<float>(index % 5) * factor;
      EXPECT(array.host[i] == wanted, "element %zu", i);
    }
  }

  void split(cuda::NcclCommunicator comm) {
    for (int round = 0; round < 5; ++round) {
      // The last rank is in none; the others in two, in the opposite order.
      const bool is_last = rank_ == world_size_ - 1;
      const int color = is_last ? -1 : rank_ % 2;
      cuda::NcclCommunicator part = nullptr;
      CHECK_NCCL(nccl_.comm_split(comm, color, -rank_, &part, nullptr));
      EXPECT((part == nullptr) == is_last, "rank %d", rank_);
      if (is_last) continue;
      std::vector<int> members;
      for (int peer = world_size_ - 2; peer >= 0; --peer) {
        if (peer % 2 == color) members.push_back(peer);
      }
      Array<int> array(&driver_, members.size());
      for (size_t place = 0; place < members.size(); ++place) {
        if (members[place] != rank_) continue;
        array.host[place] = rank_;
        array.put(streams_[0]);
        CHECK_NCCL(nccl_.all_gather(array.at(place), array.device, 1, 2, part, streams_[0]));
      }
      array.get(streams_[0]);
      synchronize();
      EXPECT(array.host == members, "rank %d", rank_);
      CHECK_NCCL(nccl_.comm_destroy(part));
    }
  }

  // A graph that forks to another stream and joins, with NCCL on both, between operations outside.
  void replay(cuda::NcclCommunicator comm) {
    constexpr size_t kCount = 3000;
    constexpr int kReplays = 40;
    Array<float> x(&driver_, kCount), sum(&driver_, kCount), last(&driver_, kCount);
    Array<unsigned> words(&driver_, kCount);
    const auto [main, side] = streams_;
    cuda::Event forks, joins;
    CHECK(driver_.event_create(&forks, cuda::kEventDisableTiming));
    CHECK(driver_.event_create(&joins, cuda::kEventDisableTiming));
    void* graph = nullptr;
    int status = cuda::kCaptureNone;
    CHECK(extras_.begin(main, kThreadsOwnCapture));
    x.put(main);
    CHECK(driver_.event_record(forks, main));
    CHECK(driver_.stream_wait_event(side, forks, 0));
    CHECK(driver_.stream_is_capturing(side, &status));
    EXPECT(status == cuda::kCaptureActive, "%d", status);
    CHECK(extras_.clear_words(words.device, 0x01020304, kCount, side));
    CHECK_NCCL(nccl_.all_reduce(x.device, sum.device, kCount, kFloat32, kSum, comm, side));
    CHECK_NCCL(nccl_.group_start());
    const int next = (rank_ + 1) % world_size_, before = (rank_ + world_size_ - 1) % world_size_;
    CHECK_NCCL(nccl_.send(x.device, kCount, kFloat32, next, comm, main));
    CHECK_NCCL(nccl_.receive(last.device, kCount, kFloat32, before, comm, main));
    CHECK_NCCL(nccl_.group_end());
    CHECK(driver_.event_record(joins, side));
    CHECK(driver_.stream_wait_event(main, joins, 0));
    sum.get(main);
    last.get(main);
    words.get(main);
    CHECK(extras_.end(main, &graph));
    CHECK(driver_.stream_is_capturing(side, &status));
    EXPECT(status == cuda::kCaptureNone, "%d", status);
    Array<float> other(&driver_, 1);
    for (int round = 0; round < kReplays; ++round) {
      for (size_t i = 0; i < kCount; ++i) x.host[i] = value_of(rank_, round, i);
      std::fill(words.host.begin(), words.host.end(), 0);
      other.host[0] = 1;
      other.put(side);
      CHECK(extras_.launch(graph, main));
      // Behind the graph's, on another stream.
      CHECK_NCCL(nccl_.all_reduce(other.device, other.device, 1, kFloat32, kSum, comm, side));
      other.get(side);
      synchronize();
      EXPECT(other.host[0] == static_cast<float>(world_size_), "round %d", round);
      for (size_t i = 0; i < kCount; ++i) {
        float wanted = 0;
        for (int peer = 0; peer < world_size_; ++peer) wanted += value_of(peer, round, i);
        EXPECT(sum.host[i] == wanted, "sum %zu of round %d", i, round);
        EXPECT(last.host[i] == value_of(before, round, i), "last %zu of round %d", i, round);
        EXPECT(words.host[i] == 0x01020304, "word %zu of round %d", i, round);
      }
    }
    CHECK(extras_.destroy(graph));
    CHECK(driver_.event_destroy(forks));
    CHECK(driver_.event_destroy(joins));
  }

  static float value_of(int rank, int round, size_t index) {
    return static_cast<float>((index * 3 + static_cast<size_t>(rank * 17 + round)) % 64);
  }

  // Whatever ranks disagree on, it hangs until each has aborted.
  void disagree() {
    const bool odd = rank_ == world_size_ - 1;
    const int next = (rank_ + 1) % world_size_, before = (rank_ + world_size_ - 1) % world_size_;
    const cuda::Stream stream = streams_[0];
    for (int which = 0; which < 5; ++which) {
      cuda::NcclCommunicator comm = connect();
      Array<float> from(&driver_, 50000), to(&driver_, 50000);
      const size_t count = odd ? 20000 : 40000;
      switch (which) {
        case 0:  // a receive that is shorter
          CHECK_NCCL(nccl_.group_start());
          CHECK_NCCL(nccl_.send(from.device, 40000, kFloat32, next, comm, stream));
          CHECK_NCCL(nccl_.receive(to.device, count, kFloat32, before, comm, stream));
          CHECK_NCCL(nccl_.group_end());
          if (!odd) CHECK_NCCL(nccl_.broadcast(from.device, to.device, 1, 0, 0, comm, stream));
          break;
        case 1:
          CHECK_NCCL(nccl_.all_reduce(from.device, to.device, count, 7, kSum, comm, stream));
          break;
        case 2:
          CHECK_NCCL(nccl_.all_reduce(from.device, to.device, 9, odd ? 2 : 7, kSum, comm, stream));
          break;
        case 3:
          CHECK_NCCL(nccl_.all_reduce(from.device, to.device, 9, 7, odd ? 0 : 1, comm, stream));
          break;
        default:  // one that no other rank calls
          if (!odd) break;
          CHECK_NCCL(nccl_.all_gather(from.device, to.device, 9, 7, comm, stream));
      }
      usleep(20000);
      const bool hangs = odd || which != 4;
      // Ranks that have all they need from their neighbours may have got further.
      if (world_size_ == 2 && hangs) {
        EXPECT(driver_.stream_query(stream) == cuda::kNotReady, "case %d", which);
      }
      cuda::NcclResult error = cuda::kNcclSuccess;
      CHECK_NCCL(nccl_.comm_get_async_error(comm, &error));
      EXPECT(error == cuda::kNcclSuccess, "%d", error);
      meet();
      if (odd) {
        std::thread([&] { CHECK_NCCL(nccl_.comm_abort(comm)); }).join();
        synchronize();
      }
      meet();
      if (!odd) {
        CHECK_NCCL(nccl_.comm_get_async_error(comm, &error));
        EXPECT(error == 6, "%d", error);
        if (hangs && world_size_ == 2) {
          EXPECT(driver_.stream_query(stream) == cuda::kNotReady, "case %d", which);
        }
        CHECK_NCCL(nccl_.comm_abort(comm));
        synchronize();
      }
      // It is none any more.
      const int result = nccl_.all_gather(from.device, to.device, 1, 7, comm, stream);
      EXPECT(result == 4, "%d", result);
      ++wanted_faults_;
    }
  }

  // What NCCL does not take.
  void refuse() {
    meet_with_id();
    cuda::NcclCommunicator comm = nullptr;
    const int share = nccl_.comm_init_rank(&comm, world_size_, lobby_->id, rank_);
    if (share == cuda::kNcclSuccess) {  // NCCL 2.30, told to
      CHECK_NCCL(nccl_.comm_destroy(comm));
      puts("shared");
    } else {
      EXPECT(share == 5 && comm == nullptr, "%d", share);
    }
    EXPECT(nccl_.comm_init_rank(&comm, 2, {}, 0) == 4, "an id that is none");
    meet();
    EXPECT(nccl_.comm_init_rank(&comm, world_size_, lobby_->id, rank_) == 4, "an id used twice");
    meet();
    meet_with_id();
    CHECK(driver_.context_set_current(nullptr));
    EXPECT(nccl_.comm_init_rank(&comm, world_size_, lobby_->id, rank_) == 1, "no context");
    EXPECT(nccl_.group_end() == 5, "no group");
    ++wanted_faults_;
    EXPECT(nccl_.group_start() == 0, "a group");
    EXPECT(nccl_.group_end() == 0, "an empty one");
    EXPECT(std::string(nccl_.get_error_string(5)) == "invalid usage", "of NCCL's texts");
    if (rank_ == 0) printf("version %d\n", nccl_.version);
  }

  // What CUDA does not take in captures over several streams.
  void capture_wrongly() {
    const auto [main, side] = streams_;
    cuda::Event event, outside;
    CHECK(driver_.event_create(&event, cuda::kEventDisableTiming));
    CHECK(driver_.event_create(&outside, cuda::kEventDisableTiming));
    Array<unsigned> words(&driver_, 10);
    void* graph = nullptr;
    const auto expect = [&](int result, int wanted) {
      EXPECT(result == wanted, "%d", result);
      ++wanted_faults_;
    };
    CHECK(driver_.event_record(outside, side));
    CHECK(extras_.begin(main, kThreadsOwnCapture));
    expect(driver_.stream_wait_event(main, outside, 0), 905);
    CHECK(driver_.event_record(event, main));
    EXPECT(driver_.event_query(event) == cuda::kCaptureUnsupported, "in a capture");
    CHECK(driver_.stream_wait_event(side, event, 0));
    CHECK(extras_.clear_words(words.device, 1, 10, side));
    expect(extras_.end(side, &graph), 903);
    expect(extras_.end(main, &graph), 904);
    EXPECT(graph == nullptr, "no graph");
    expect(driver_.event_query(event), 907);
    expect(driver_.stream_wait_event(side, event, 0), 907);
    CHECK(driver_.event_record(event, main));
    CHECK(driver_.stream_wait_event(side, event, 0));
    synchronize();
    CHECK(driver_.event_query(event));
    CHECK(driver_.event_destroy(event));
    CHECK(driver_.event_destroy(outside));
  }

  // What NCCL refuses, or what would end badly.
  void use_wrongly(cuda::NcclCommunicator comm) {
    const auto [main, side] = streams_;
    Array<int> array(&driver_, 100);
    const auto expect = [&](int result, int wanted) {
      EXPECT(result == wanted, "%d", result);
      ++wanted_faults_;
    };
    expect(nccl_.send(array.address(), 100, 2, 0, comm, main), 4);
    expect(nccl_.send(array.device, 101, 2, 0, comm, main), 4);
    expect(nccl_.all_reduce(array.device, array.at(1), 50, 2, kSum, comm, main), 4);
    CHECK_NCCL(nccl_.group_start());
    CHECK_NCCL(nccl_.send(array.device, 1, 2, rank_, comm, main));
    expect(nccl_.receive(array.device, 1, 2, rank_, comm, side), 5);
    EXPECT(nccl_.group_end() == 5, "a group on two streams");
    EXPECT(nccl_.send(array.device, 1, 2, rank_, comm, main) == 5, "nobody receives");
    EXPECT(nccl_.send(array.device, 1, 2, world_size_, comm, main) == 4, "no such rank");
    EXPECT(nccl_.send(array.device, 1, 10, 0, comm, main) == 4, "no such type");
    EXPECT(nccl_.all_reduce(array.device, array.device, 1, 2, 5, comm, main) == 4, "no such op");
    // Nothing of it was queued.
    synchronize();
    cuda::NcclCommunicator other = nullptr;
    void* graph = nullptr;
    CHECK_NCCL(nccl_.comm_split(comm, rank_, 0, &other, nullptr));
    CHECK(extras_.begin(main, kThreadsOwnCapture));
    CHECK_NCCL(nccl_.all_reduce(array.device, array.device, 1, 2, kSum, other, main));
    cuda::NcclCommunicator none = nullptr;
    EXPECT(nccl_.comm_split(comm, 0, 0, &none, nullptr) == 1 && none == nullptr, "in a capture");
    CHECK(extras_.end(main, &graph));
    CHECK(extras_.launch(graph, side));
    synchronize();
    CHECK_NCCL(nccl_.comm_destroy(other));
    expect(extras_.launch(graph, side), cuda::kSuccess);
    synchronize();
    CHECK(extras_.destroy(graph));
  }

  const Options& options_;
  Lobby* lobby_;
  const int rank_, world_size_;
  std::mt19937 random_;
  cuda::Driver driver_;
  cuda::Nccl nccl_;
  Extras extras_ = {};
  cuda::Stream streams_[2] = {};
  int meetings_ = 0;
  int wanted_faults_ = 0;  // by a rank
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    leave("usage: nccl LIBRARY WORLD_SIZE SEED threads|processes MODE",
          cocoll::native_tests::kBadUsage);
  }
  cocoll::native_tests::start_watchdog(120);
  const bool as_processes = std::string(argv[4]) == "processes";
  const Options options = {argv[1], argv[5], atoi(argv[2]), static_cast<unsigned>(atoi(argv[3])),
                           as_processes};
  Lobby* lobby = cocoll::native_tests::make_shared_lobby<Lobby>();
  const auto run = [&](int rank) { Rank(options, lobby, rank).run(); };
  return as_processes ? cocoll::native_tests::run_processes(options.world_size, run)
                      : cocoll::native_tests::run_threads(options.world_size, run);
}
