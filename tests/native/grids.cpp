// Grid kernels on an emulated device: ranks are threads, blocks run in order, and a block has one
// thread or several. All that ranks share goes through the kernels' own flags, so that
// ThreadSanitizer sees what these do not order.
//
//   grids WORLD_SIZE OPERATIONS SEED THREADS [MODE [WAY]]
//
// After half of the operations the last rank launches nothing more (`silent`), another operation
// than its peers (`mismatched`), or theirs in another way (`elsewhere`): the others must give up,
// name it, and leave. WAY is how these go about that operation: `two_shot`, `one_shot` or
// `low_latency`. `hasty` ranks give up soon, and go about all operations in that way.

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "checks.h"
#include "cocoll/kernels/grid.h"
#include "cocoll/kernels/plain.h"

// Of grid_kernels.cc.
extern "C" {
void grid_plain(const cocoll_grid_call& call, const cocoll::Place& place);
void grid_fused(const cocoll_grid_call& call, const cocoll::Place& place);
void host_plain(const cocoll_reduce_args* args);
void host_fused(const cocoll_reduce_args* args);
void prepare_fused(const double* scalars, double* derived);
}

namespace {

using cocoll::native_tests::Barrier;
using cocoll::native_tests::leave;

constexpr int kBlocks = 5;
constexpr int64_t kMostElements = 3000;
constexpr int64_t kStagingElements = kMostElements + 16;
constexpr uint64_t kHastyNanoseconds = uint64_t{4} * 1000000000u;
constexpr int64_t kPushedBytes = COCOLL_GRID_HEADER_BYTES + 2 * kStagingElements * 4;

// ---- the device --------------------------------------------------------------------------------

// The threads of one block, for barriers that all of them take part in.
struct Block {
  explicit Block(int threads) : barrier(threads) {}
  Barrier barrier;
  std::atomic<bool> verdict{false};
};

const cocoll::PlaceCalls kCalls = {
    [](void* block) { static_cast<Block*>(block)->barrier.wait(); },
    [](void* context, bool mine) {
      Block* block = static_cast<Block*>(context);
      block->barrier.wait();
      if (mine) block->verdict.store(true, std::memory_order_relaxed);
      block->barrier.wait();
      const bool any = block->verdict.load(std::memory_order_relaxed);
      block->barrier.wait();
      block->verdict.store(false, std::memory_order_relaxed);
      return any;
    },
    [] { sched_yield(); },
    [] {
      timespec now;
      clock_gettime(CLOCK_MONOTONIC, &now);
      return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
    },
};

typedef void (*GridKernel)(const cocoll_grid_call& call, const cocoll::Place& place);

void launch(GridKernel kernel, const cocoll_grid_call& call, int blocks, int threads) {
  for (int block = 0; block < blocks; ++block) {
    Block shared(threads);
    const auto run = [&](int thread) {
      kernel(call, cocoll::Place{block, blocks, thread, threads, &kCalls, &shared});
    };
    std::vector<std::thread> others;
    for (int thread = 1; thread < threads; ++thread) others.emplace_back(run, thread);
    run(0);
    for (std::thread& other : others) other.join();
  }
}

// ---- ranks -------------------------------------------------------------------------------------

struct Rank {
  Rank(int world_size, uint32_t pushed)
      : received(static_cast<size_t>(2 * world_size * kPushedBytes) / sizeof(uint64_t)) {
    for (cocoll_grid_counters& block : counters) block.pushed = pushed;
  }

  std::vector<cocoll_grid_flags> flags = std::vector<cocoll_grid_flags>(kBlocks);
  std::vector<cocoll_grid_counters> counters = std::vector<cocoll_grid_counters>(kBlocks);
  uint32_t poisoned = 0;
  cocoll_grid_failure failure = {};
  std::vector<float> staging = std::vector<float>(2 * kStagingElements);
  std::vector<uint64_t> received;
  // Room for a misaligned beginning.
  std::vector<float> source = std::vector<float>(kMostElements + 4);
  std::vector<float> result = std::vector<float>(kMostElements + 4);
  std::vector<float> momentum = std::vector<float>(kMostElements);
};

enum Way { kTwoShot, kOneShot, kLowLatency };

// What all ranks agree on.
struct Operation {
  Way way;
  bool fused, zero, in_place;
  int blocks;
  int64_t count;
  int shift[COCOLL_GRID_MAX_RANKS];  // of each rank's arrays, in elements: a fact of its own
};

float value_of(uint64_t operation, int rank, int64_t index) {
  const uint64_t mixed = (operation * 31 + static_cast<uint64_t>(rank) * 7 + 1) *
                             (static_cast<uint64_t>(index) + 17) * 2654435761u >>
                         20;
  return static_cast<float>(static_cast<int32_t>(mixed & 0xffff) - 32768) / 1024.0f;
}

struct World {
  World(int world_size, int operations, unsigned seed, int threads)
      : world_size(world_size), threads(threads) {
    std::mt19937 random(seed);
    // Epochs of low latency wrap; those of meetings begin with the flags.
    const uint32_t pushed = seed % 2 == 0 ? 0 : ~uint32_t{0} - random() % 8;
    for (int rank = 0; rank < world_size; ++rank) ranks.emplace_back(world_size, pushed);
    for (int which = 0; which < operations; ++which) {
      Operation operation = {};
      operation.fused = random() % 3 == 0;
      if (!operation.fused) operation.way = static_cast<Way>(random() % 3);
      operation.zero = operation.way == kTwoShot && random() % 4 == 0;
      operation.in_place = !operation.fused && random() % 2 == 0;
      operation.blocks = 1 + static_cast<int>(random() % kBlocks);
      const int64_t counts[] = {0, 1, 15, 16, 17, 63, 257, 1000, kMostElements};
      operation.count = counts[random() % 9];
      for (int& shift : operation.shift) shift = random() % 3 == 0 ? 1 : 0;
      list.push_back(operation);
    }
  }

  int64_t begin(int rank, int64_t count) const {
    const int64_t block = ((count + world_size - 1) / world_size + 15) / 16 * 16;
    return std::min(count, block * rank);
  }

  cocoll_grid_call call(int rank, const Operation& operation) {
    cocoll_grid_call call = {};
    Rank& own = ranks[static_cast<size_t>(rank)];
    call.rank = rank;
    call.world_size = world_size;
    call.source_count = world_size;
    call.destination_count = operation.way == kTwoShot ? world_size : 1;
    call.limit_nanoseconds = limit_nanoseconds;
    call.block_limit = kBlocks;
    call.poisoned = &own.poisoned;
    call.counters = own.counters.data();
    call.failure = &own.failure;
    bool aligned = true;
    for (int peer = 0; peer < world_size; ++peer) {
      Rank& other = ranks[static_cast<size_t>(peer)];
      const int shift = operation.shift[peer];
      call.flags_of[peer] = other.flags.data();
      call.poison_of[peer] = &other.poisoned;
      float* source = other.source.data() + shift;
      float* result = operation.in_place ? source : other.result.data() + shift;
      call.sources[peer] = source;
      call.destinations[0][peer] = result;
      aligned = aligned && shift == 0;
    }
    if (operation.way != kTwoShot) {
      const bool pushes = operation.way == kLowLatency;
      call.flags |= pushes ? COCOLL_GRID_LOW_LATENCY : COCOLL_GRID_ONE_SHOT;
      call.own_source = call.sources[rank];
      call.destinations[0][0] = call.destinations[0][rank];
      call.staging_bytes =
          pushes ? kPushedBytes : kStagingElements * static_cast<int64_t>(sizeof(float));
      for (int peer = 0; peer < world_size; ++peer) {
        Rank& other = ranks[static_cast<size_t>(peer)];
        call.sources[peer] = pushes ? static_cast<void*>(other.received.data())
                                    : static_cast<void*>(other.staging.data());
      }
      call.begin = 0;
      call.end = operation.count;
      aligned = operation.shift[rank] == 0;
    } else {
      call.begin = begin(rank, operation.count);
      call.end = begin(rank + 1, operation.count);
    }
    if (aligned) call.flags |= COCOLL_GRID_ALIGNED;
    if (operation.zero) call.flags |= COCOLL_GRID_ZERO_SOURCES;
    if (operation.fused) {
      // param is replicated and updated, momentum this rank's shard.
      call.operands[0] = {call.destinations[0][rank], 0, -1};
      call.operands[1] = {own.momentum.data(), call.begin, -1};
      prepare_fused(kScalars, call.derived);
    }
    return call;
  }

  // The same in one piece, by the host's kernels.
  void expect(uint64_t which, const Operation& operation, std::vector<float>* param,
              std::vector<float>* momentum, std::vector<float>* result) const {
    std::vector<std::vector<float>> inputs;
    std::vector<cocoll_array> sources;
    for (int rank = 0; rank < world_size; ++rank) {
      std::vector<float> input(static_cast<size_t>(operation.count));
      for (int64_t i = 0; i < operation.count; ++i) {
        input[static_cast<size_t>(i)] = value_of(which, rank, i);
      }
      inputs.push_back(std::move(input));
    }
    for (std::vector<float>& input : inputs) sources.push_back({input.data(), nullptr, 0});
    result->assign(static_cast<size_t>(operation.count), 0.0f);
    float* to = operation.fused ? param->data() : result->data();
    const cocoll_array destination = {to, nullptr, 0};
    const cocoll_array operands[] = {{param->data(), nullptr, 0}, {momentum->data(), nullptr, 0}};
    double derived[COCOLL_GRID_MAX_DERIVED];
    prepare_fused(kScalars, derived);
    const cocoll_reduce_args args = {0,      operation.count, world_size,   1,        world_size,
                                     0,      sources.data(),  &destination, operands, derived,
                                     nullptr};
    (operation.fused ? host_fused : host_plain)(&args);
    if (operation.fused) std::copy_n(param->data(), operation.count, result->data());
  }

  bool is_odd_one(int rank, size_t which) const {
    return which == list.size() / 2 && rank == world_size - 1;
  }

  void run(int rank) {
    Rank& own = ranks[static_cast<size_t>(rank)];
    // The parameters and the momentum that all ranks should have, as this rank follows them.
    std::vector<float> param(kMostElements), momentum(kMostElements), wanted;
    for (size_t which = 0; which < list.size(); ++which) {
      Operation operation = list[which];
      const bool odd = is_odd_one(rank, which);
      if (odd && trouble == COCOLL_GRID_LATE) return;
      if (odd && elsewhere) operation.way = operation.way == kOneShot ? kLowLatency : kOneShot;
      // Late enough for the others to look around.
      constexpr timespec kNap = {0, 2000000};
      if (which % 16 == static_cast<size_t>(rank)) nanosleep(&kNap, nullptr);
      const int shift = operation.shift[rank];
      for (int64_t i = 0; i < operation.count; ++i) {
        own.source[static_cast<size_t>(i + shift)] = value_of(which, rank, i);
      }
      cocoll_grid_call launched = call(rank, operation);
      launched.signature = static_cast<uint32_t>(operation.count) << 3 | operation.fused << 2 |
                           operation.way << 30 | operation.zero;
      if (odd && trouble == COCOLL_GRID_MISMATCH) launched.signature ^= 1u << 29;
      float* result =
          static_cast<float*>(launched.destinations[0][operation.way == kTwoShot ? rank : 0]);
      if (operation.fused) {
        // As if the parameters had always lain here: shards of other lengths belong to each count.
        std::copy_n(param.data(), operation.count, result);
        std::copy(momentum.begin() + launched.begin, momentum.begin() + launched.end,
                  own.momentum.begin());
      }
      // A guard behind the last element; there is room for a shift and a pack.
      constexpr float kGuard = -12345.0f;
      result[operation.count] = kGuard;
      launch(operation.fused ? grid_fused : grid_plain, launched, operation.blocks, threads);
      if (__atomic_load_n(&own.failure.state, __ATOMIC_ACQUIRE) != 0) {
        // Late in the operation before, a rank may be told that the others have given up.
        const bool told = own.failure.reason == COCOLL_GRID_POISONED;
        if (trouble != 0 && told && which + 1 == list.size() / 2) return;
        EXPECT(trouble != 0 && which == list.size() / 2, "rank %d gave up operation %zu: %d", rank,
               which, own.failure.reason);
        EXPECT(own.failure.reason == trouble || own.failure.reason == COCOLL_GRID_POISONED,
               "rank %d: reason %d", rank, own.failure.reason);
        const int culprit = own.failure.peer;
        EXPECT(culprit == world_size - 1 || culprit == -1 || rank == world_size - 1, "peer %d",
               culprit);
        for (int64_t i = 0; i < operation.count; ++i) {
          const float kept = own.source[static_cast<size_t>(i + shift)];
          EXPECT(kept == value_of(which, rank, i), "rank %d: source %lld has moved", rank,
                 static_cast<long long>(i));
        }
        return;
      }
      EXPECT(result[operation.count] == kGuard, "rank %d, operation %zu: behind the end", rank,
             which);
      expect(which, operation, &param, &momentum, &wanted);
      for (int64_t i = 0; i < operation.count; ++i) {
        const float got = result[i];
        EXPECT(memcmp(&got, &wanted[static_cast<size_t>(i)], sizeof got) == 0,
               "rank %d, operation %zu (fused %d, way %d), element %lld of %lld: %g, not %g", rank,
               which, operation.fused, operation.way, static_cast<long long>(i),
               static_cast<long long>(operation.count), static_cast<double>(got),
               static_cast<double>(wanted[static_cast<size_t>(i)]));
      }
      if (operation.fused) {
        for (int64_t i = launched.begin; i < launched.end; ++i) {
          const float got = own.momentum[static_cast<size_t>(i - launched.begin)];
          EXPECT(got == momentum[static_cast<size_t>(i)], "rank %d, momentum %lld", rank,
                 static_cast<long long>(i));
        }
      }
      if (operation.zero && !operation.in_place) {
        for (int64_t i = 0; i < operation.count; ++i) {
          EXPECT(own.source[static_cast<size_t>(i + shift)] == 0.0f, "rank %d, source %lld", rank,
                 static_cast<long long>(i));
        }
      }
    }
    EXPECT(trouble == 0, "rank %d saw no failure", rank);
  }

  static constexpr double kScalars[] = {0.125, 0.5, 0.25};  // lr, momentum, weight_decay
  const int world_size;
  const int threads;
  uint64_t limit_nanoseconds = uint64_t{300} * 1000000000u;
  int trouble = 0;
  bool elsewhere = false;
  std::vector<Rank> ranks;
  std::vector<Operation> list;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) leave("usage: grids WORLD_SIZE OPERATIONS SEED THREADS [MODE [WAY]]", 64);
  cocoll::native_tests::start_watchdog(cocoll::native_tests::kWatchdogSeconds);
  const int world_size = atoi(argv[1]);
  World world(world_size, atoi(argv[2]), static_cast<unsigned>(atoi(argv[3])), atoi(argv[4]));
  const std::string trouble = argc > 5 ? argv[5] : "";
  if (trouble == "silent") {
    world.trouble = COCOLL_GRID_LATE;
    world.limit_nanoseconds = 200 * 1000000u;
  } else if (trouble == "mismatched" || trouble == "elsewhere") {
    world.trouble = COCOLL_GRID_MISMATCH;
    world.elsewhere = trouble == "elsewhere";
    // Found out, not waited for.
    world.limit_nanoseconds = 5 * kHastyNanoseconds;
  } else if (trouble == "hasty") {
    world.limit_nanoseconds = kHastyNanoseconds;
  }
  if (argc > 6) {
    const std::string way = argv[6];
    for (size_t which = 0; which < world.list.size(); ++which) {
      if (trouble != "hasty" && which != world.list.size() / 2) continue;
      Operation& operation = world.list[which];
      operation.fused = operation.zero = false;
      operation.way = way == "low_latency" ? kLowLatency : way == "one_shot" ? kOneShot : kTwoShot;
    }
  }
  // Epochs alternate, and none is that of cleared memory.
  EXPECT(cocoll::epoch_after(0) == 1 && cocoll::epoch_after(~0u - 1) == ~0u, "epochs skip");
  EXPECT(cocoll::epoch_after(~0u) == 2, "after the last epoch: %u", cocoll::epoch_after(~0u));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    ranks.emplace_back([&world, rank] { world.run(rank); });
  }
  for (std::thread& rank : ranks) rank.join();
  return cocoll::native_tests::failure_count() == 0 ? 0 : cocoll::native_tests::kWrongResult;
}
