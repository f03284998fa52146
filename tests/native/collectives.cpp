// Every plan on ranks that are threads, many calls in a row and mixed, checked element by element.

#include <getopt.h>

#include "operations.h"

namespace cocoll::native_tests {
namespace {

struct Options {
  std::string plans;
  std::string only;  // the one case to run, or empty: all
  WorldOptions world;
  bool several_hosts = false;
  int rounds = 1;
  size_t every = 1;  // keep one call out of so many
  uint64_t seed = 1;
};

struct Call {
  const Case* which;
  Setup setup;
  bool mixed;  // every other rank has ordinary memory: those that have symmetric stage late
};

bool allows(const Case& which, const Setup& setup) {
  if (setup.in_place ? which.placement == "disjoint" : which.placement == "in_place") return false;
  // A shard of a strided array is no array of its own; zeroed sources are contiguous.
  const bool strided = setup.memory == Memory::kStrided;
  return !strided || !(setup.in_place || which.zero_source || which.kind == "sgd");
}

std::vector<int64_t> counts_of(const Case& which) {
  const int64_t whole = which.chunk_elements * which.world_size;
  std::vector<int64_t> counts = {0,
                                 1,
                                 15,
                                 16,
                                 17,
                                 31,
                                 63,
                                 64,
                                 65,
                                 131,
                                 whole - 1,
                                 whole,
                                 whole + 1,
                                 2 * whole + 7,
                                 3 * whole - 5,
                                 1009,
                                 4093};
  for (int64_t& count : counts) {
    if (which.limit_elements >= 0) count = std::min(count, which.limit_elements);
    // Equal blocks: the vector must divide.
    if (which.alignment_elements == 1) count = which.block_elements(count) * which.world_size;
  }
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  return counts;
}

std::vector<Call> make_calls(const std::vector<Case>& cases, const Options& options) {
  std::vector<Call> calls;
  for (const Case& which : cases) {
    if (which.kind == "stuck" || (!options.only.empty() && which.name != options.only)) continue;
    for (int64_t count : counts_of(which))
      for (bool in_place : {false, true})
        for (int kind = 0; kind < 4; ++kind) {
          const Memory memories[] = {Memory::kSymmetric, Memory::kOrdinary, Memory::kStrided,
                                     Memory::kSymmetric};
          const Call call{&which, {count, memories[kind], in_place, 0, 0}, kind == 3};
          if (allows(which, call.setup)) calls.push_back(call);
        }
  }
  Random random(options.seed);
  for (size_t index = calls.size(); index > 1; --index)
    std::swap(calls[index - 1], calls[random.below(static_cast<uint32_t>(index))]);
  // Drawn after the shuffle: what is left is still of all kinds.
  calls.resize((calls.size() + options.every - 1) / options.every);
  for (size_t index = 0; index < calls.size(); ++index)
    calls[index].setup.salt = static_cast<int>(index % 1000);
  return calls;
}

void run_rank(World* world, const Options& options, const std::vector<Case>& cases,
              const std::vector<Call>& calls, int32_t rank) {
  host::Session& session = world->session(rank);
  session.execution->streaming_bytes = 4096;
  const Programs programs(options.plans, cases, session);
  for (int round = 0; round < options.rounds; ++round)
    for (const Call& call : calls) {
      Setup setup = call.setup;
      if (call.mixed && rank % 2 == 1) setup.memory = Memory::kOrdinary;
      const std::shared_ptr<host::Program> program = programs.of(*call.which);
      Operation operation(session.endpoint, *call.which, program.get(), setup);
      const host::Status status = run(session.execution.get(), operation.invocation());
      if (status != host::Status::kDone) {
        fail("rank %d: %s ended with status %d", rank, call.which->name.c_str(),
             static_cast<int>(status));
        return;
      }
      operation.check();
      // The one copy may be written again only when all have read it.
      if (call.which->replicated) world->barrier().wait();
    }
}

Options parse(int argc, char** argv) {
  Options options;
  const option names[] = {{"plans", required_argument, nullptr, 'p'},
                          {"world-size", required_argument, nullptr, 'w'},
                          {"case", required_argument, nullptr, 'c'},
                          {"waiting", required_argument, nullptr, 'a'},
                          {"rounds", required_argument, nullptr, 'r'},
                          {"every", required_argument, nullptr, 'e'},
                          {"seed", required_argument, nullptr, 's'},
                          {"first-flag-count", required_argument, nullptr, 'f'},
                          {"first-sequence", required_argument, nullptr, 'q'},
                          {"watchdog-seconds", required_argument, nullptr, 'd'},
                          {"several-hosts", no_argument, nullptr, 'h'},
                          {nullptr, 0, nullptr, 0}};
  for (int key; (key = getopt_long(argc, argv, "", names, nullptr)) != -1;) {
    const std::string value = optarg == nullptr ? "" : optarg;
    if (key == 'p')
      options.plans = value;
    else if (key == 'w')
      options.world.world_size = std::stoi(value);
    else if (key == 'c')
      options.only = value;
    else if (key == 'r')
      options.rounds = std::stoi(value);
    else if (key == 'e')
      options.every = std::stoull(value);
    else if (key == 's')
      options.seed = std::stoull(value);
    else if (key == 'f')
      options.world.first_flag_count = static_cast<uint32_t>(std::stoul(value));
    else if (key == 'q')
      options.world.first_sequence = std::stoull(value);
    else if (key == 'h')
      options.several_hosts = true;
    else if (key == 'd')
      start_watchdog(static_cast<unsigned>(std::stoul(value)));
    else if (key == 'a' && value == "usual")
      options.world.waiting = Waiting::kUsual;
    else if (key == 'a' && value == "awake")
      options.world.waiting = Waiting::kAwake;
    else if (key == 'a' && value == "asleep")
      options.world.waiting = Waiting::kAsleep;
    else
      leave("unknown option", kBadUsage);
  }
  return options;
}

}  // namespace
}  // namespace cocoll::native_tests

int main(int argc, char** argv) {
  using namespace cocoll::native_tests;
  Options options = parse(argc, argv);
  const std::vector<Case> cases =
      read_cases(options.plans, options.world.world_size, options.several_hosts);
  if (options.several_hosts && !cases.empty()) options.world.hosts = cases[0].host_of_ranks();
  const std::vector<Call> calls = make_calls(cases, options);
  World world(options.world);
  world.run([&](int32_t rank) { run_rank(&world, options, cases, calls, rank); });
  printf("%zu calls, %d rounds, %d failures\n", calls.size(), options.rounds,
         failure_count().load());
  return failure_count().load() == 0 && !calls.empty() ? kPassed : kWrongResult;
}
