// Messages between two ranks: random graphs of them in groups and one by one, and how they fail.

#include <algorithm>
#include <map>
#include <string>

#include "world.h"

namespace cocoll::native_tests {
namespace {

using host::Direction;
using host::PointBatch;
using host::PointMessage;
using host::Status;

constexpr int64_t kMillisecond = 1000000;

int as_int(Status status) { return static_cast<int>(status); }

Status run(host::PointExecution* points, PointBatch* batch) {
  Status status = points->begin(batch);
  while (status == Status::kPending) status = points->resume();
  return status;
}

// A message that all ranks know of.
struct Edge {
  int32_t from;
  int32_t to;
  int64_t count;
  bool mapped[2];  // the sender's array, the receiver's
  bool strided[2];
  uint32_t salt;
};

uint32_t value_of(uint32_t salt, int64_t index) {
  return salt * 2654435761u + static_cast<uint32_t>(index) * 40503u;
}

// The arrays of one rank's ends of a round, and the batch that moves them.
class Round {
 public:
  Round(const host::Endpoint& endpoint, const std::vector<Edge>& edges)
      : endpoint_(endpoint), edges_(edges) {
    for (size_t index = 0; index < edges.size(); ++index)
      for (const Direction direction : {host::kSends, host::kReceives})
        if ((direction == host::kSends ? edges[index].from : edges[index].to) == endpoint.rank)
          ends_.push_back({index, direction});
  }

  // Mixes the ends: those of one pair and way keep their order.
  void shuffle(Random* random) {
    for (size_t turn = 0; turn < 4 * ends_.size(); ++turn) {
      const size_t place = random->below(static_cast<uint32_t>(ends_.size()));
      if (place + 1 >= ends_.size()) continue;
      const bool same = ends_[place].direction == ends_[place + 1].direction &&
                        peer_of(ends_[place]) == peer_of(ends_[place + 1]);
      if (!same) std::swap(ends_[place], ends_[place + 1]);
    }
  }

  size_t size() const { return ends_.size(); }

  // The ends from `first` to before `stop`, as a batch.
  PointBatch* batch(size_t first, size_t stop) {
    batch_.messages.clear();
    batch_.group_kind = stop - first > 1 ? 18 : 0;
    memory_.clear();
    layouts_.clear();
    layouts_.reserve(stop - first);
    memory_.reserve(stop - first);
    size_t heap = static_cast<size_t>(endpoint_.regions.heap);
    for (size_t place = first; place < stop; ++place) {
      const End& end = ends_[place];
      const Edge& edge = edges_[end.edge];
      PointMessage message;
      message.direction = end.direction;
      message.peer = peer_of(end);
      message.dtype = 4;
      message.itemsize_bytes = sizeof(uint32_t);
      message.count = edge.count;
      const bool strided = edge.strided[end.direction];
      const size_t elements = static_cast<size_t>(edge.count) * (strided ? 3 : 1) + 1;
      uint32_t* data;
      if (edge.mapped[end.direction] && !strided) {
        data = reinterpret_cast<uint32_t*>(
            endpoint_.region(endpoint_.rank, static_cast<int64_t>(heap)));
        heap += host::round_up(elements * sizeof(uint32_t), 64);
        message.reference = endpoint_.reference(data, edge.count * 4);
        std::fill_n(data, elements, 0u);
      } else {
        memory_.emplace_back(elements, 0u);
        data = memory_.back().data();
      }
      message.array = {data, nullptr, 0};
      if (strided) {
        layouts_.push_back({1, 4, {edge.count}, {12}});
        message.array.layout = &layouts_.back();
      }
      if (end.direction == host::kSends)
        for (int64_t index = 0; index < edge.count; ++index)
          data[index * (strided ? 3 : 1)] = value_of(edge.salt, index);
      batch_.messages.push_back(message);
    }
    first_ = first;
    return &batch_;
  }

  void check() const {
    for (size_t place = 0; place < batch_.messages.size(); ++place) {
      const PointMessage& message = batch_.messages[place];
      const End& end = ends_[first_ + place];
      const Edge& edge = edges_[end.edge];
      const uint32_t* data = static_cast<const uint32_t*>(message.array.data);
      const int64_t step = edge.strided[end.direction] ? 3 : 1;
      for (int64_t index = 0; index < edge.count; ++index)
        EXPECT(data[index * step] == value_of(edge.salt, index),
               "edge %zu from %d to %d of %lld: element %lld", end.edge, edge.from, edge.to,
               static_cast<long long>(edge.count), static_cast<long long>(index));
    }
  }

 private:
  struct End {
    size_t edge;
    Direction direction;
  };

  int32_t peer_of(const End& end) const {
    const Edge& edge = edges_[end.edge];
    return end.direction == host::kSends ? edge.to : edge.from;
  }

  const host::Endpoint& endpoint_;
  const std::vector<Edge>& edges_;
  std::vector<End> ends_;
  std::vector<std::vector<uint32_t>> memory_;
  std::vector<cocoll_layout> layouts_;
  PointBatch batch_;
  size_t first_ = 0;
};

std::vector<Edge> draw_edges(Random* random, int32_t world_size, uint32_t salt) {
  const int64_t lengths[] = {0, 1, 16, 17, 100, 5000, 16384, 70001};
  std::vector<Edge> edges(1 + random->below(4 * static_cast<uint32_t>(world_size)));
  for (Edge& edge : edges) {
    edge.from = static_cast<int32_t>(random->below(static_cast<uint32_t>(world_size)));
    edge.to = static_cast<int32_t>(random->below(static_cast<uint32_t>(world_size)));
    edge.count = lengths[random->below(8)];
    for (int end = 0; end < 2; ++end) {
      edge.mapped[end] = random->below(3) == 0;
      edge.strided[end] = random->below(4) == 0;
    }
    edge.salt = ++salt * 1000003u;
  }
  return edges;
}

WorldOptions options_of(int32_t world_size, bool several_hosts, Waiting waiting) {
  WorldOptions options;
  options.world_size = world_size;
  options.heap_bytes = size_t{24} << 20;
  options.waiting = waiting;
  for (int32_t rank = 0; several_hosts && rank < world_size; ++rank)
    options.hosts.push_back(rank % 2);
  return options;
}

// Every round is a group, and no rank waits for the others between rounds.
void groups(const WorldOptions& options) {
  World world(options);
  world.run([&](int32_t rank) {
    host::Session& session = world.session(rank);
    Random drawn(7);
    Random own(static_cast<uint64_t>(rank) + 11);
    for (uint32_t turn = 0; turn < 25; ++turn) {
      const std::vector<Edge> edges = draw_edges(&drawn, options.world_size, turn * 100);
      Round round(session.endpoint, edges);
      round.shuffle(&own);
      const Status status = run(session.points.get(), round.batch(0, round.size()));
      EXPECT(status == Status::kDone, "status %d", as_int(status));
      round.check();
    }
  });
}

// In one order that all ranks keep, messages need no group.
void one_by_one(const WorldOptions& options) {
  World world(options);
  world.run([&](int32_t rank) {
    host::Session& session = world.session(rank);
    Random drawn(5);
    for (uint32_t turn = 0; turn < 10; ++turn) {
      std::vector<Edge> edges = draw_edges(&drawn, options.world_size, turn * 100);
      edges.erase(std::remove_if(edges.begin(), edges.end(),
                                 [](const Edge& edge) { return edge.from == edge.to; }),
                  edges.end());
      Round round(session.endpoint, edges);
      for (size_t place = 0; place < round.size(); ++place) {
        const Status status = run(session.points.get(), round.batch(place, place + 1));
        EXPECT(status == Status::kDone, "status %d", as_int(status));
        round.check();
      }
    }
  });
}

// What does not fit is told to both ends and does not move; all else does.
void mismatch(const WorldOptions& options) {
  World world(options);
  world.run([&](int32_t rank) {
    host::Session& session = world.session(rank);
    const int32_t next = (rank + 1) % options.world_size;
    const int32_t before = (rank + options.world_size - 1) % options.world_size;
    for (uint32_t turn = 0; turn < 30; ++turn) {
      const int64_t count = turn % 3 == 0 ? 10 : 20000;
      const std::vector<Edge> edges = {
          {rank, next, count, {turn % 2 == 0, false}, {false, false}, turn},
          {before, rank, count, {false, turn % 5 == 0}, {false, false}, turn}};
      Round round(session.endpoint, edges);
      PointBatch* batch = round.batch(0, 2);
      const bool differs = turn % 2 == 1;
      // The receivers of odd turns want one element less, or another type.
      for (PointMessage& message : batch->messages) {
        if (message.direction == host::kSends || !differs) continue;
        if (turn % 4 == 1)
          --message.count;
        else
          message.dtype = 5;
      }
      const Status status = run(session.points.get(), batch);
      EXPECT(status == (differs ? Status::kMismatch : Status::kDone), "status %d", as_int(status));
      for (const PointMessage& message : batch->messages) {
        EXPECT(message.mismatched == differs, "turn %u", turn);
        if (message.direction != host::kReceives || !differs) continue;
        EXPECT(message.their_count == count, "count %lld",
               static_cast<long long>(message.their_count));
        const uint32_t* data = static_cast<const uint32_t*>(message.array.data);
        EXPECT(data[0] == 0 && data[count - 1] == 0, "turn %u: something moved", turn);
      }
      if (!differs) round.check();
    }
  });
}

// Rank 0 waits for its last peer, which does `act` instead of what it should.
template <class Act>
void wait_for_last(const WorldOptions& options, Status wanted, Act act) {
  World world(options);
  const int32_t last = options.world_size - 1;
  world.run([&](int32_t rank) {
    host::Session& session = world.session(rank);
    if (rank == last) {
      act(&session);
      world.barrier().wait();
      return;
    }
    const std::vector<Edge> edges = {{rank, last, 50000, {false, false}, {false, false}, 3}};
    Round round(session.endpoint, edges);
    const Status status = run(session.points.get(), round.batch(0, 1));
    // Others may be faster to give up.
    EXPECT(status == wanted || (rank > 0 && status == Status::kAborted) ||
               (options.world_size > 2 && status == Status::kAborted),
           "rank %d: status %d", rank, as_int(status));
    if (status == wanted && wanted != Status::kAborted)
      EXPECT(session.endpoint.culprit == last, "culprit %d", session.endpoint.culprit);
    world.barrier().wait();
  });
}

void timeout(WorldOptions options) {
  options.timeout_nanoseconds = 200 * kMillisecond;
  wait_for_last(options, Status::kTimeout, [](host::Session*) {});
}

void leaving(const WorldOptions& options) {
  wait_for_last(options, Status::kPeerLost,
                [](host::Session* session) { session->endpoint.leave(); });
}

void aborting(const WorldOptions& options) {
  wait_for_last(options, Status::kAborted, [](host::Session* session) {
    session->endpoint.abort(host::AbortReason::kRequested, session->endpoint.rank);
  });
}

}  // namespace
}  // namespace cocoll::native_tests

int main(int argc, char** argv) {
  using namespace cocoll::native_tests;
  if (argc != 5)
    leave("usage: points WORLD_SIZE one|several usual|awake|asleep SCENARIO", kBadUsage);
  start_watchdog(kWatchdogSeconds);
  const std::map<std::string, Waiting> ways = {
      {"usual", Waiting::kUsual}, {"awake", Waiting::kAwake}, {"asleep", Waiting::kAsleep}};
  const std::map<std::string, void (*)(const WorldOptions&)> scenarios = {
      {"groups", groups},     {"one_by_one", one_by_one},
      {"mismatch", mismatch}, {"timeout", [](const WorldOptions& options) { timeout(options); }},
      {"leaving", leaving},   {"aborting", aborting}};
  const auto way = ways.find(argv[3]);
  const auto found = scenarios.find(argv[4]);
  if (found == scenarios.end() || way == ways.end()) leave("no such scenario", kBadUsage);
  found->second(options_of(std::stoi(argv[1]), std::string(argv[2]) == "several", way->second));
  return failure_count().load() == 0 ? kPassed : kWrongResult;
}
