// Asynchronous operations: streams with threads of their own, the order of a communicator, its
// gate.

#include <deque>

#include "operations.h"

namespace cocoll::native_tests {
namespace {

using host::Status;

constexpr int64_t kSecond = 1000000000;

// An operation in flight, with the arrays that it keeps alive.
struct Flight {
  std::unique_ptr<Operation> operation;
  std::shared_ptr<host::Task> task;
};

// One rank of one world: issues calls on streams, or runs them on its own thread in their turn.
class Issuer {
 public:
  Issuer(World* world, const std::string& plans, const std::vector<Case>& cases, int32_t rank)
      : world_(world), rank_(rank), cases_(cases), programs_(plans, cases, world->session(rank)) {
    for (const Case& each : cases)
      // One copy for all ranks, and calls that never end, do not go well with a queue.
      if (!each.replicated && each.kind != "stuck") usable_.push_back(&each);
  }

  // A call drawn from `random`, which draws the same on all ranks.
  std::unique_ptr<Operation> draw(Random* random) {
    for (;;) {
      const Case& which = *usable_[random->below(static_cast<uint32_t>(usable_.size()))];
      Setup setup;
      setup.count = random->below(600);
      if (which.limit_elements >= 0) setup.count = std::min(setup.count, which.limit_elements);
      if (which.alignment_elements == 1)
        setup.count = which.block_elements(setup.count) * which.world_size;
      setup.memory = random->below(2) == 0 ? Memory::kSymmetric : Memory::kOrdinary;
      setup.in_place = which.placement == "in_place";
      setup.salt = ++salt_;
      setup.first_place = salt_ % kInFlight * 3;
      return std::make_unique<Operation>(world_->session(rank_).endpoint, which,
                                         programs_.of(which).get(), setup);
    }
  }

  Flight make(std::unique_ptr<Operation> operation) {
    Flight flight{std::move(operation), std::make_shared<host::Task>()};
    flight.task->session = world_->shared_session(rank_);
    flight.task->invocation = *flight.operation->invocation();
    flight.task->ticket = world_->session(rank_).gate.issue();
    return flight;
  }

  static void finish(Flight* flight) {
    while (!flight->task->wait(kSecond)) {
    }
    EXPECT(flight->task->status() == Status::kDone, "status %d",
           static_cast<int>(flight->task->status()));
    flight->operation->check();
  }

  // As a blocking call does.
  void run_here(std::unique_ptr<Operation> operation) {
    host::Session& session = world_->session(rank_);
    const uint64_t ticket = session.gate.issue();
    while (!session.gate.wait_turn(ticket, kSecond)) {
    }
    const Status status = run(session.execution.get(), operation->invocation());
    session.gate.complete(ticket);
    EXPECT(status == Status::kDone, "status %d", static_cast<int>(status));
    operation->check();
  }

  static constexpr int kInFlight = 8;

 private:
  World* world_;
  const int32_t rank_;
  const std::vector<Case>& cases_;
  const Programs programs_;
  std::vector<const Case*> usable_;
  int salt_ = 0;
};

WorldOptions options_of(int32_t world_size) {
  WorldOptions options;
  options.world_size = world_size;
  options.heap_bytes = size_t{4} << 20;
  return options;
}

// Operations of one communicator on three streams and the caller's own thread.
void one_order(const std::string& plans, int32_t world_size) {
  const std::vector<Case> cases = read_cases(plans, world_size);
  World world(options_of(world_size));
  world.run([&](int32_t rank) {
    Issuer issuer(&world, plans, cases, rank);
    Random random(3);
    std::deque<Flight> in_flight;
    host::Stream streams[3];
    for (int turn = 0; turn < 150; ++turn) {
      const uint32_t where = random.below(5);
      // An array may be used again when its call has completed, even if others are in flight.
      if (in_flight.size() == Issuer::kInFlight - 1) {
        Issuer::finish(&in_flight.front());
        in_flight.pop_front();
      }
      if (where > 2) {
        issuer.run_here(issuer.draw(&random));
        // Whatever was issued before it has had its turn.
        for (Flight& flight : in_flight) Issuer::finish(&flight);
        in_flight.clear();
        continue;
      }
      // Which stream an operation is issued on is each rank's own affair.
      in_flight.push_back(issuer.make(issuer.draw(&random)));
      const bool taken =
          streams[(where + static_cast<uint32_t>(rank)) % 3].submit(in_flight.back().task);
      EXPECT(taken, "turn %d", turn);
    }
    for (host::Stream& stream : streams) stream.close();
    for (Flight& flight : in_flight) {
      EXPECT(flight.task->finished(), "a closed stream has not finished");
      Issuer::finish(&flight);
    }
  });
}

// Two communicators, each with a stream: neither waits for the other's order.
void two_communicators(const std::string& plans, int32_t world_size) {
  const std::vector<Case> cases = read_cases(plans, world_size);
  World first(options_of(world_size)), second(options_of(world_size));
  first.run([&](int32_t rank) {
    Issuer issuers[] = {{&first, plans, cases, rank}, {&second, plans, cases, rank}};
    Random random[] = {Random(5), Random(6)};
    host::Stream streams[2];
    for (int turn = 0; turn < 40; ++turn) {
      std::vector<Flight> flights;
      for (int each = 0; each < 4; ++each) {
        // Odd ranks issue in the other order.
        const int which = (each + rank) % 2;
        flights.push_back(issuers[which].make(issuers[which].draw(&random[which])));
        EXPECT(streams[which].submit(flights.back().task), "turn %d", turn);
      }
      for (Flight& flight : flights) Issuer::finish(&flight);
    }
  });
}

// A stream that has been closed takes nothing, and the turn of what it refused is passed on.
void closed_stream(const std::string& plans, int32_t world_size) {
  const std::vector<Case> cases = read_cases(plans, world_size);
  World world(options_of(world_size));
  world.run([&](int32_t rank) {
    Issuer issuer(&world, plans, cases, rank);
    Random random(9);
    for (int turn = 0; turn < 10; ++turn) {
      host::Stream stream, other;
      Flight before = issuer.make(issuer.draw(&random));
      EXPECT(other.submit(before.task), "turn %d", turn);
      stream.close();
      stream.close();
      Flight refused = issuer.make(issuer.draw(&random));
      EXPECT(!stream.submit(refused.task), "a closed stream takes an operation");
      host::skip_turn(&world.session(rank), refused.task->ticket);
      issuer.run_here(issuer.draw(&random));
      Issuer::finish(&before);
      EXPECT(world.session(rank).gate.idle(), "a turn has been lost");
    }
  });
}

// One thread at a time is inside, and a turn comes once.
void gate(const std::string&, int32_t) {
  host::Gate gate;
  int inside = 0;
  uint64_t entries = 0;
  std::vector<std::thread> threads;
  for (int index = 0; index < 4; ++index)
    threads.emplace_back([&] {
      for (int turn = 0; turn < 500; ++turn) {
        while (!gate.enter()) sched_yield();
        // Plain variables: ThreadSanitizer sees whether the gate orders its visitors.
        EXPECT(++inside == 1, "%d inside", inside);
        const uint64_t ticket = gate.issue();
        ++entries;
        --inside;
        gate.leave();
        while (!gate.wait_turn(ticket, kSecond)) {
        }
        gate.complete(ticket);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT(entries == 2000 && gate.idle() && gate.issued() == 2000, "%llu entries",
         static_cast<unsigned long long>(entries));
}

}  // namespace
}  // namespace cocoll::native_tests

int main(int argc, char** argv) {
  using namespace cocoll::native_tests;
  if (argc != 4) leave("usage: streams PLANS WORLD_SIZE SCENARIO", kBadUsage);
  start_watchdog(kWatchdogSeconds);
  const std::map<std::string, void (*)(const std::string&, int32_t)> scenarios = {
      {"one_order", one_order},
      {"two_communicators", two_communicators},
      {"closed_stream", closed_stream},
      {"gate", gate}};
  const auto found = scenarios.find(argv[3]);
  if (found == scenarios.end()) leave("no such scenario", kBadUsage);
  found->second(argv[1], std::stoi(argv[2]));
  return failure_count().load() == 0 ? kPassed : kWrongResult;
}
