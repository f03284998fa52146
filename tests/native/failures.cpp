// How operations end that do not complete: mismatches, time-outs, aborts, ranks that leave or die.

#include <sys/wait.h>

#include "operations.h"

namespace cocoll::native_tests {
namespace {

using host::AbortReason;
using host::Status;

constexpr int64_t kMillisecond = 1000000;
constexpr int32_t kUserFlag = 3;  // the one that the plan "stuck" waits for

// A rank's means to make calls.
class Caller {
 public:
  Caller(World* world, const std::string& plans, const std::vector<Case>& cases, int32_t rank)
      : session_(world->session(rank)), cases_(cases), programs_(plans, cases, session_) {}

  Status call(const char* name, int64_t count, Memory memory = Memory::kSymmetric) {
    const Case& which = find_case(cases_, name);
    const std::shared_ptr<host::Program> program = programs_.of(which);
    const Setup setup{count, memory, false, ++salt_, 0};
    Operation operation(session_.endpoint, which, program.get(), setup);
    const Status status = run(session_.execution.get(), operation.invocation());
    if (status == Status::kDone) operation.check();
    return status;
  }

  // Checks that what does not end as done has moved nothing.
  Status call_in_place(const char* name, int64_t count, Memory memory, Status wanted) {
    const Case& which = find_case(cases_, name);
    const std::shared_ptr<host::Program> program = programs_.of(which);
    Operation operation(session_.endpoint, which, program.get(), {count, memory, true, ++salt_, 0});
    const Status status = run(session_.execution.get(), operation.invocation());
    if (wanted != Status::kDone) operation.check_source();
    return status;
  }

  host::Program* program(const char* name) { return programs_.of(find_case(cases_, name)).get(); }
  host::Endpoint& endpoint() { return session_.endpoint; }

 private:
  host::Session& session_;
  const std::vector<Case>& cases_;
  const Programs programs_;
  int salt_ = 0;
};

struct Context {
  std::string plans;
  int32_t world_size;
  std::vector<Case> cases;

  // Runs `body(caller, rank)` on every rank of a fresh world.
  template <class Body>
  void run(const WorldOptions& options, Body body) const {
    World world(options);
    world.run([&](int32_t rank) {
      Caller caller(&world, plans, cases, rank);
      body(&world, &caller, rank);
    });
  }

  WorldOptions options() const {
    WorldOptions made;
    made.world_size = world_size;
    return made;
  }
};

int as_int(Status status) { return static_cast<int>(status); }

// Ranks that disagree all learn it, nothing has moved, and the next call works, many times over.
void mismatch(const Context& context) {
  context.run(context.options(), [&](World*, Caller* caller, int32_t rank) {
    for (int turn = 0; turn < 60; ++turn) {
      // One rank asks for another length, operation or algorithm than the others.
      const bool differs = rank == turn % context.world_size;
      const Memory memory = turn % 4 < 2 ? Memory::kOrdinary : Memory::kSymmetric;
      const char* others[] = {"two_shot", "reduce_scatter_shard", "one_shot"};
      const char* name = differs ? others[turn % 3] : "two_shot";
      const int64_t count = differs && turn % 3 == 0 ? 200 : 100;
      const Status wanted = context.world_size == 1 ? Status::kDone : Status::kMismatch;
      const Status status = caller->call_in_place(name, count, memory, wanted);
      EXPECT(status == wanted, "status %d", as_int(status));
      for (const char* next : {"inline", "two_shot", "one_shot"}) {
        if (turn % 2 == 0 && std::string(next) == "one_shot") continue;
        const Status then = caller->call(next, 16, memory);
        EXPECT(then == Status::kDone, "%s: status %d", next, as_int(then));
      }
    }
  });
}

// What no variant serves is refused by all ranks, and is no end of the communicator.
void not_prepared(const Context& context) {
  context.run(context.options(), [&](World*, Caller* caller, int32_t rank) {
    host::Program* program = caller->program("two_shot");
    for (int turn = 0; turn < 10; ++turn) {
      // One rank alone has ordinary memory, and there is no staged variant.
      program->has_staged = false;
      const Memory memory =
          rank == turn % context.world_size ? Memory::kOrdinary : Memory::kSymmetric;
      Status status = caller->call("two_shot", 100, memory);
      EXPECT(status == Status::kNotPrepared, "status %d", as_int(status));
      program->has_staged = true;
      status = caller->call("two_shot", 100, memory);
      EXPECT(status == Status::kDone, "status %d", as_int(status));
      // Longer than a line, and than the staging of one-shot operations.
      status = caller->call("inline", 17);
      EXPECT(status == Status::kNotPrepared, "status %d", as_int(status));
      status = caller->call("one_shot", 4097, memory);
      EXPECT(status == Status::kNotPrepared, "status %d", as_int(status));
      status = caller->call("inline", 16);
      EXPECT(status == Status::kDone, "status %d", as_int(status));
    }
  });
}

// Makes a call whose time begins to run when it waits for `peer` (-1: any) and `flag`: a slow
// machine cannot make it give up anywhere else.
Status call_with_late_limit(World* world, const Context& context, const char* name, int32_t rank,
                            int32_t peer, int32_t flag) {
  host::Session& session = world->session(rank);
  const host::Control* own = session.endpoint.own();
  const Programs programs(context.plans, context.cases, session);
  const Case& which = find_case(context.cases, name);
  const std::shared_ptr<host::Program> program = programs.of(which);
  Operation operation(session.endpoint, which, program.get(), Setup());
  Status status = session.execution->begin(operation.invocation());
  for (; status == Status::kPending; status = session.execution->resume()) {
    const int32_t awaited = own->waiting_rank.load();
    if (awaited >= 0 && (peer < 0 || awaited == peer) && own->waiting_flag.load() == flag)
      session.endpoint.timeout_nanoseconds = 1;
  }
  return status;
}

// Waits return to their caller as often as they can.
void return_often(World* world) {
  for (int32_t rank = 0; rank < world->options().world_size; ++rank)
    world->session(rank).endpoint.policy = {0, 0, kMillisecond, 1};
}

// A rank that never comes is named by those that time out, and the others are told.
void timeout_at_arrival(const Context& context) {
  World world(context.options());
  return_often(&world);
  world.run([&](int32_t rank) {
    Caller caller(&world, context.plans, context.cases, rank);
    EXPECT(caller.call("inline", 4) == Status::kDone, "rank %d", rank);
    world.barrier().wait();
    if (rank != 1) {
      const Status status = call_with_late_limit(&world, context, "one_shot", rank, 1, -1);
      EXPECT(status == Status::kTimeout || status == Status::kAborted, "status %d", as_int(status));
      if (status == Status::kTimeout)
        EXPECT(caller.endpoint().culprit == 1, "culprit %d", caller.endpoint().culprit);
      const uint64_t word = caller.endpoint().abort_word();
      EXPECT((word & 0xffffff) == 1 &&
                 (word >> 24 & 0xff) == static_cast<uint64_t>(AbortReason::kTimeout),
             "abort word %llx", static_cast<unsigned long long>(word));
    }
    world.barrier().wait();
    const Status status = caller.call("inline", 4);
    EXPECT(status == Status::kAborted, "status %d", as_int(status));
  });
}

// The same inside the lanes, where all have arrived and a signal does not come.
void timeout_in_lanes(const Context& context) {
  World world(context.options());
  return_often(&world);
  world.run([&](int32_t rank) {
    const Status status = call_with_late_limit(&world, context, "stuck", rank, -1, kUserFlag);
    EXPECT(status == Status::kTimeout || status == Status::kAborted, "status %d", as_int(status));
    const host::Endpoint& endpoint = world.session(rank).endpoint;
    const host::Control* own = endpoint.own();
    const int32_t awaited = own->waiting_rank.load();
    EXPECT(awaited >= 0 && awaited != rank, "rank %d", awaited);
    EXPECT(own->waiting_flag.load() == kUserFlag, "flag %d", own->waiting_flag.load());
    EXPECT(own->flight[0].state.load() == static_cast<uint8_t>(host::FlightState::kFailed),
           "state %d", own->flight[0].state.load());
    if (status == Status::kTimeout)
      EXPECT(endpoint.culprit == awaited, "culprit %d", endpoint.culprit);
  });
}

// One rank gives up while the others wait, at arrival or in the lanes.
void abort_while_waiting(const Context& context) {
  for (const char* name : {"one_shot", "stuck"}) {
    context.run(context.options(), [&](World* world, Caller* caller, int32_t rank) {
      host::Endpoint& endpoint = caller->endpoint();
      if (rank == 0) {
        for (int32_t peer = 1; peer < context.world_size; ++peer)
          while (world->session(peer).endpoint.own()->sleepers.load() == 0) sched_yield();
        endpoint.abort(AbortReason::kRequested, 0);
      } else {
        const Status status = caller->call(name, std::string(name) == "stuck" ? 0 : 100);
        EXPECT(status == Status::kAborted, "status %d", as_int(status));
      }
      const Status status = caller->call("inline", 4);
      EXPECT(status == Status::kAborted, "status %d", as_int(status));
    });
  }
}

// A rank that leaves without coming is lost; those that wait for it name it.
void leave_without_coming(const Context& context) {
  context.run(context.options(), [&](World* world, Caller* caller, int32_t rank) {
    if (rank == context.world_size - 1) {
      caller->endpoint().leave();
    } else {
      const Status status = caller->call("two_shot", 100);
      EXPECT(status == Status::kPeerLost || status == Status::kAborted, "status %d",
             as_int(status));
      const uint64_t word = caller->endpoint().abort_word();
      EXPECT((word & 0xffffff) == static_cast<uint64_t>(context.world_size - 1), "abort word %llx",
             static_cast<unsigned long long>(word));
    }
    world->barrier().wait();
  });
}

// A rank that leaves when it has done its part takes nothing from the others.
void leave_when_done(const Context& context) {
  for (int turn = 0; turn < 20; ++turn)
    context.run(context.options(), [&](World*, Caller* caller, int32_t rank) {
      for (const char* name : {"two_shot", "inline", "one_shot"}) {
        const Memory memory = turn % 2 == 0 ? Memory::kOrdinary : Memory::kSymmetric;
        const Status status = caller->call(name, 16, memory);
        EXPECT(status == Status::kDone, "rank %d, status %d", rank, as_int(status));
      }
      caller->endpoint().leave();
    });
}

// Native code returns to its caller in the middle of a wait, and goes on where it was.
void interruption(const Context& context) {
  World world(context.options());
  std::atomic<int> returns{0};
  return_often(&world);
  world.run([&](int32_t rank) {
    host::Session& session = world.session(rank);
    const Programs programs(context.plans, context.cases, session);
    for (int turn = 0; turn < 20; ++turn) {
      const Case& which = find_case(context.cases, turn % 2 == 0 ? "two_shot" : "one_shot");
      const Memory memory = turn % 4 < 2 ? Memory::kOrdinary : Memory::kSymmetric;
      // This rank comes when the others have returned, as often as there are of them.
      const int before = returns.load();
      world.barrier().wait();
      if (rank == turn % context.world_size)
        while (returns.load() < before + context.world_size - 1) sched_yield();
      const std::shared_ptr<host::Program> program = programs.of(which);
      Operation operation(session.endpoint, which, program.get(), {300, memory, false, turn, 0});
      Status status = session.execution->begin(operation.invocation());
      for (; status == Status::kPending; status = session.execution->resume()) ++returns;
      EXPECT(status == Status::kDone, "status %d", as_int(status));
      operation.check();
      world.barrier().wait();
    }
  });
  EXPECT(context.world_size == 1 || returns.load() > 0, "%d returns", returns.load());
}

// A process that is killed in the middle of an operation: found by its pidfd, long before the
// time-out, and by another process, which maps its memory through /proc.
void killed_process(const Context& context) {
  host::Session parent(0, 2, {16 << 10, 64 << 10}, true, 3600000 * kMillisecond);
  if (parent.create_segment(size_t{8} << 20, 7) != 0) leave("no shared memory", kBadUsage);
  int tickets[2][2];
  if (pipe(tickets[0]) != 0 || pipe(tickets[1]) != 0) leave("no pipe", kBadUsage);
  const pid_t child = fork();
  if (child == 0) {
    host::Session session(1, 2, {16 << 10, 64 << 10}, true, 3600000 * kMillisecond);
    host::SegmentTicket ticket{};
    bool good = session.create_segment(size_t{8} << 20, 7) == 0;
    const host::SegmentTicket mine = World::segment_of(session)->ticket();
    good = good && write(tickets[1][1], &mine, sizeof mine) == sizeof mine &&
           read(tickets[0][0], &ticket, sizeof ticket) == sizeof ticket &&
           session.endpoint.attach_segment(0, ticket) == 0;
    if (!good) _exit(kBadUsage);
    const Programs programs(context.plans, context.cases, session);
    const Case& which = find_case(context.cases, "two_shot");
    const std::shared_ptr<host::Program> program = programs.of(which);
    Operation operation(session.endpoint, which, program.get(),
                        {300, Memory::kOrdinary, false, 1, 0});
    good = run(session.execution.get(), operation.invocation()) == Status::kDone;
    operation.check();
    if (!good || failure_count().load() != 0) _exit(kWrongResult);
    raise(SIGKILL);
  }
  host::SegmentTicket theirs{};
  const host::SegmentTicket mine = World::segment_of(parent)->ticket();
  const bool met = write(tickets[0][1], &mine, sizeof mine) == sizeof mine &&
                   read(tickets[1][0], &theirs, sizeof theirs) == sizeof theirs;
  EXPECT(met && theirs.process != mine.process, "a forked process has the token of its parent");
  host::SegmentTicket wrong = theirs;
  ++wrong.inode;
  EXPECT(parent.endpoint.attach_segment(1, wrong) == ENOENT, "another file has been taken for it");
  EXPECT(parent.endpoint.attach_segment(1, theirs) == 0, "errno %d", errno);
  const Programs programs(context.plans, context.cases, parent);
  const Case& which = find_case(context.cases, "two_shot");
  const std::shared_ptr<host::Program> program = programs.of(which);
  for (const Status wanted : {Status::kDone, Status::kPeerLost}) {
    Operation operation(parent.endpoint, which, program.get(),
                        {300, Memory::kOrdinary, false, 1, 0});
    const Status status = run(parent.execution.get(), operation.invocation());
    EXPECT(status == wanted, "status %d", as_int(status));
    if (status == Status::kDone) operation.check();
  }
  EXPECT(parent.endpoint.culprit == 1, "culprit %d", parent.endpoint.culprit);
  int status = 0;
  EXPECT(waitpid(child, &status, 0) == child && WIFSIGNALED(status), "status %d", status);
  for (const auto& ends : tickets)
    for (int end : ends) close(end);
}

}  // namespace
}  // namespace cocoll::native_tests

int main(int argc, char** argv) {
  using namespace cocoll::native_tests;
  if (argc != 4) leave("usage: failures PLANS WORLD_SIZE SCENARIO", kBadUsage);
  start_watchdog(kWatchdogSeconds);
  Context context{argv[1], std::stoi(argv[2]), {}};
  context.cases = read_cases(context.plans, context.world_size);
  const std::map<std::string, void (*)(const Context&)> scenarios = {
      {"mismatch", mismatch},
      {"not_prepared", not_prepared},
      {"timeout_at_arrival", timeout_at_arrival},
      {"timeout_in_lanes", timeout_in_lanes},
      {"abort_while_waiting", abort_while_waiting},
      {"leave_without_coming", leave_without_coming},
      {"leave_when_done", leave_when_done},
      {"interruption", interruption},
      {"killed_process", killed_process}};
  const auto found = scenarios.find(argv[3]);
  if (found == scenarios.end()) leave("no such scenario", kBadUsage);
  found->second(context);
  return failure_count().load() == 0 ? kPassed : kWrongResult;
}
