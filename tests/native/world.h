// A world of ranks that are threads of one process, over the headers of the host executor.

#ifndef COCOLL_TESTS_NATIVE_WORLD_H_
#define COCOLL_TESTS_NATIVE_WORLD_H_

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "checks.h"
#include "cocoll/host/stream.h"
#include "cocoll/host/thread_wire.h"

namespace cocoll::native_tests {

// How ranks wait. `kAwake` never sleeps, so that no futex orders what flags fail to order;
// `kAsleep` sleeps at once and long enough that a lost wake-up is a hang.
enum class Waiting { kUsual, kAwake, kAsleep };

inline host::WaitPolicy wait_policy(Waiting waiting) {
  constexpr int64_t kMinute = int64_t{60} * 1000000000;
  host::WaitPolicy policy = host::make_wait_policy(true);
  switch (waiting) {
    case Waiting::kUsual:
      policy.yield_nanoseconds = 50000;
      break;
    case Waiting::kAwake:
      policy.yield_nanoseconds = 10 * kMinute;
      break;
    case Waiting::kAsleep:
      policy = {0, 0, 10 * kMinute, 20 * kMinute};
  }
  return policy;
}

struct WorldOptions {
  int32_t world_size = 2;
  std::vector<int32_t> hosts;  // of every rank; empty: all are on one
  Waiting waiting = Waiting::kUsual;
  int64_t timeout_nanoseconds = int64_t{600} * 1000000000;
  int64_t small_bytes = 16 << 10;
  int64_t staging_bytes = 64 << 10;
  size_t reserved_bytes = size_t{64} << 20;
  size_t heap_bytes = size_t{1} << 20;  // of each rank, usable from the start
  uint32_t first_flag_count = 0;
  uint64_t first_sequence = 0;
};

// An explicit instantiation may name a private member: the one legal way to start a counter where
// an endpoint never would within the life of a test.
template <std::vector<uint32_t> host::Endpoint::* kMember, int kTag>
struct Exposed {
  friend std::vector<uint32_t>& exposed_counters(host::Endpoint& endpoint,
                                                 std::integral_constant<int, kTag>) {
    return endpoint.*kMember;
  }
};
std::vector<uint32_t>& exposed_counters(host::Endpoint&, std::integral_constant<int, 0>);
std::vector<uint32_t>& exposed_counters(host::Endpoint&, std::integral_constant<int, 1>);
template struct Exposed<&host::Endpoint::signalled_, 0>;
template struct Exposed<&host::Endpoint::awaited_, 1>;

class World {
 public:
  explicit World(const WorldOptions& options) : options_(options), barrier_(options.world_size) {
    const host::ScratchSizes sizes{options.small_bytes, options.staging_bytes};
    for (int32_t rank = 0; rank < options.world_size; ++rank) {
      auto session = std::make_shared<host::Session>(rank, options.world_size, sizes, true,
                                                     options.timeout_nanoseconds);
      session->endpoint.policy = wait_policy(options.waiting);
      if (session->create_segment(options.reserved_bytes, 1) != 0 ||
          segment_of(*session)->grow(heap_start(*session) + options.heap_bytes) != 0)
        leave("no shared memory", kBadUsage);
      sessions_.push_back(std::move(session));
    }
    host::Segment* commons = host::Segment::create(options.reserved_bytes);
    if (commons == nullptr || commons->grow(options.heap_bytes) != 0)
      leave("no shared memory", kBadUsage);
    for (int32_t rank = 0; rank < options.world_size; ++rank) {
      host::Endpoint& endpoint = sessions_[static_cast<size_t>(rank)]->endpoint;
      for (int32_t peer = 0; peer < options.world_size; ++peer)
        if (peer != rank && shares_host(rank, peer) &&
            endpoint.attach_segment(peer, segment_of(session(peer))->ticket()) != 0)
          leave("a segment cannot be attached", kBadUsage);
      endpoint.commons = host::Segment::attach(commons->ticket());
      start_counters(endpoint);
    }
    commons->release();
    if (options.hosts.empty()) return;
    auto network = std::make_shared<host::ThreadNetwork>(options.world_size, 1);
    std::vector<int> places(static_cast<size_t>(options.world_size));
    std::iota(places.begin(), places.end(), 0);
    for (int32_t rank = 0; rank < options.world_size; ++rank)
      session(rank).endpoint.connect(options.hosts,
                                     std::make_shared<host::ThreadWire>(network, places, rank, 0));
  }

  // Runs `body(rank)` on a thread for each rank.
  void run(const std::function<void(int32_t)>& body) {
    std::vector<std::thread> threads;
    for (int32_t rank = 0; rank < options_.world_size; ++rank) threads.emplace_back(body, rank);
    for (std::thread& thread : threads) thread.join();
  }

  host::Session& session(int32_t rank) { return *sessions_[static_cast<size_t>(rank)]; }
  std::shared_ptr<host::Session> shared_session(int32_t rank) {
    return sessions_[static_cast<size_t>(rank)];
  }
  Barrier& barrier() { return barrier_; }
  const WorldOptions& options() const { return options_; }

  static size_t heap_start(const host::Session& session) {
    return static_cast<size_t>(session.endpoint.regions.heap);
  }
  static host::Segment* segment_of(const host::Session& session) {
    return session.endpoint.peers[static_cast<size_t>(session.endpoint.rank)].segment;
  }

 private:
  bool shares_host(int32_t rank, int32_t peer) const {
    const std::vector<int32_t>& hosts = options_.hosts;
    return hosts.empty() || hosts[static_cast<size_t>(rank)] == hosts[static_cast<size_t>(peer)];
  }

  void start_counters(host::Endpoint& endpoint) {
    const uint32_t first = options_.first_flag_count;
    for (uint32_t& count : exposed_counters(endpoint, std::integral_constant<int, 0>()))
      count = first;
    for (uint32_t& count : exposed_counters(endpoint, std::integral_constant<int, 1>()))
      count = first;
    host::FlagLine* flags = endpoint.own()->flags();
    for (int32_t index = 0; index < options_.world_size * host::kFlagCount; ++index)
      flags[index].count.store(first);
    endpoint.sequence = options_.first_sequence;
  }

  const WorldOptions options_;
  Barrier barrier_;
  std::vector<std::shared_ptr<host::Session>> sessions_;
};

// A generator whose draws are the same everywhere: all ranks make the same calls.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 2 + 1) {}

  uint32_t below(uint32_t limit) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(((state_ >> 33) * limit) >> 31);
  }

 private:
  uint64_t state_;
};

}  // namespace cocoll::native_tests

#endif  // COCOLL_TESTS_NATIVE_WORLD_H_
