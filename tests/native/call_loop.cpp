// "The same call from C": one packed plan, run over and over by processes, timed call by call.
//
// What a bound call from Python costs beyond this is Python's share. Each rank does what the
// binding does once arrays are bound: Execution::begin, then resume until the operation has ended.

#include <dlfcn.h>
#include <getopt.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "cocoll/host/stream.h"
#include "cocoll/kernels/plain.h"

// Serves where no library of kernels is given.
COCOLL_KERNEL(call_loop_sum) { cocoll::reduce_plain<cocoll::Sum<float>>(args); }

namespace {

namespace host = cocoll::host;

constexpr int32_t kMaxRanks = 64;
constexpr int64_t kElements = 2;  // of float32: 8 bytes
constexpr int64_t kTimeoutNanoseconds = int64_t{60} * 1000000000;
constexpr int64_t kWarmUpCalls = 1000;

struct Options {
  int32_t ranks = 1;
  int64_t calls = 100000;
  std::string plan_prefix;
  std::string library;
  std::string kernel;
};

// Where the processes meet before they have a communicator.
struct Board {
  std::atomic<int32_t> written;
  std::atomic<int32_t> attached;
  host::SegmentTicket tickets[kMaxRanks];
};

[[noreturn]] void stop(const std::string& what) {
  fprintf(stderr, "call_loop: %s\n", what.c_str());
  exit(1);
}

void meet(std::atomic<int32_t>* count, int32_t ranks) {
  const int64_t limit = host::monotonic_nanoseconds() + kTimeoutNanoseconds;
  count->fetch_add(1);
  while (count->load() < ranks) {
    if (host::monotonic_nanoseconds() > limit) stop("a rank has not come");
    sched_yield();
  }
}

std::vector<int> allowed_cpus() {
  cpu_set_t set;
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof set, &set) != 0) stop("no CPU affinity");
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  return cpus;
}

void pin_to(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) stop("a rank cannot be pinned");
}

cocoll_kernel_entry find_kernel(const Options& options) {
  if (options.library.empty()) return {"call_loop_sum", call_loop_sum, nullptr, 0};
  void* library = dlopen(options.library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) stop(dlerror());
  const auto* table =
      static_cast<const cocoll_kernel_table*>(dlsym(library, "cocoll_kernel_table"));
  if (table == nullptr || table->abi_version != COCOLL_ABI_VERSION)
    stop(options.library + " has no table of kernels of this version");
  for (int32_t index = 0; index < table->entry_count; ++index)
    if (options.kernel == table->entries[index].name) return table->entries[index];
  stop(options.library + " has no kernel " + options.kernel);
}

void load_plan(host::PlanImage* image, const std::string& path, const host::PlanLimits& limits) {
  std::ifstream file(path, std::ios::binary);
  if (!file) stop("no plan " + path);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::vector<host::Record> records(bytes.size() / sizeof(host::Record));
  memcpy(static_cast<void*>(records.data()), bytes.data(), records.size() * sizeof(host::Record));
  if (!image->load(records.data(), records.size(), limits)) stop(path + ": " + image->error());
}

class Rank {
 public:
  Rank(const Options& options, Board* board, int32_t rank, bool oversubscribed)
      : session_(rank, options.ranks, {16 << 10, 4 << 20}, oversubscribed, kTimeoutNanoseconds) {
    if (session_.create_segment(size_t{64} << 20, 1) != 0) stop("no shared memory");
    board->tickets[rank] = session_.endpoint.peers[static_cast<size_t>(rank)].segment->ticket();
    meet(&board->written, options.ranks);
    for (int32_t peer = 0; peer < options.ranks; ++peer)
      if (peer != rank && session_.endpoint.attach_segment(peer, board->tickets[peer]) != 0)
        stop("the memory of a rank cannot be mapped");
    meet(&board->attached, options.ranks);
    load_plan(&program_.staged, options.plan_prefix + "." + std::to_string(rank),
              session_.limits());
    const cocoll_kernel_entry kernel = find_kernel(options);
    program_.has_staged = true;
    program_.reduce = kernel.reduce;
    program_.prepare = kernel.prepare;
    program_.derived_count = kernel.derived_count;
    invocation_.program = &program_;
    invocation_.count = kElements;
    invocation_.source = {data_, nullptr, 0};
    invocation_.source_bytes = sizeof data_;
    invocation_.results[0] = invocation_.source;
    invocation_.result_references[0] = host::kNotMapped;
  }

  void call() {
    host::Status status = session_.execution->begin(&invocation_);
    while (status == host::Status::kPending) status = session_.execution->resume();
    if (status != host::Status::kDone)
      stop("a call ended with status " + std::to_string(static_cast<int>(status)));
  }

  // The loop must not time a call that does nothing.
  void check() {
    const int32_t ranks = session_.endpoint.world_size;
    data_[0] = static_cast<float>(session_.endpoint.rank + 1);
    data_[1] = 0.5f;
    call();
    const float sum = static_cast<float>(ranks * (ranks + 1) / 2);
    if (data_[0] != sum || data_[1] != 0.5f * static_cast<float>(ranks)) stop("a wrong sum");
    // In place: zeros stay zeros however often they are added.
    data_[0] = data_[1] = 0;
  }

  std::vector<int64_t> time(int64_t calls) {
    std::vector<int64_t> nanoseconds(static_cast<size_t>(calls));
    for (int64_t index = 0; index < kWarmUpCalls; ++index) call();
    int64_t before = host::monotonic_nanoseconds();
    for (int64_t& each : nanoseconds) {
      call();
      const int64_t after = host::monotonic_nanoseconds();
      each = after - before;
      before = after;
    }
    return nanoseconds;
  }

 private:
  host::Session session_;
  host::Program program_;
  host::Invocation invocation_;
  alignas(64) float data_[kElements] = {};
};

Options parse(int argc, char** argv) {
  Options options;
  const option names[] = {{"ranks", required_argument, nullptr, 'r'},
                          {"plan-prefix", required_argument, nullptr, 'p'},
                          {"calls", required_argument, nullptr, 'c'},
                          {"kernel", required_argument, nullptr, 'k'},
                          {nullptr, 0, nullptr, 0}};
  for (int key; (key = getopt_long(argc, argv, "", names, nullptr)) != -1;) {
    if (key == 'r') options.ranks = atoi(optarg);
    if (key == 'c') options.calls = atoll(optarg);
    if (key == 'p') options.plan_prefix = optarg;
    if (key == 'k') options.library = optarg;
    if (key == '?') exit(64);
  }
  if (!options.library.empty() && optind < argc) options.kernel = argv[optind++];
  const bool complete = options.library.empty() || !options.kernel.empty();
  if (options.ranks < 1 || options.ranks > kMaxRanks || options.calls < 1 ||
      options.plan_prefix.empty() || optind != argc || !complete) {
    fprintf(stderr,
            "usage: call_loop --ranks N --plan-prefix FILES [--calls N] [--kernel LIBRARY NAME]\n");
    exit(64);
  }
  return options;
}

void report(const Options& options, std::vector<int64_t> nanoseconds, bool pinned) {
  std::sort(nanoseconds.begin(), nanoseconds.end());
  const size_t last = nanoseconds.size() - 1;
  const auto at = [&](size_t quarter) {
    return static_cast<long long>(nanoseconds[last * quarter / 4]);
  };
  printf(
      "{\"ranks\": %d, \"calls\": %lld, \"bytes\": %lld, \"median_nanoseconds\": %lld, "
      "\"q1_nanoseconds\": %lld, \"q3_nanoseconds\": %lld, \"pinned\": %s}\n",
      options.ranks, static_cast<long long>(options.calls),
      static_cast<long long>(kElements * static_cast<int64_t>(sizeof(float))), at(2), at(1), at(3),
      pinned ? "true" : "false");
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  void* memory =
      mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) stop("no shared memory");
  Board* board = new (memory) Board{};
  const pid_t parent = getpid();
  int32_t rank = 0;
  for (int32_t child = 1; child < options.ranks && rank == 0; ++child) {
    const pid_t made = fork();
    if (made < 0) stop("no process");
    if (made == 0) rank = child;
  }
  if (rank != 0) {
    // A rank does not outlive the one that prints.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) return 1;
  }
  const std::vector<int> cpus = allowed_cpus();
  const bool pinned = static_cast<size_t>(options.ranks) <= cpus.size();
  if (pinned) pin_to(cpus[static_cast<size_t>(rank)]);
  Rank self(options, board, rank, !pinned);
  self.check();
  std::vector<int64_t> nanoseconds = self.time(options.calls);
  if (rank != 0) return 0;
  for (int32_t child = 1; child < options.ranks; ++child) {
    int status = 0;
    if (wait(&status) < 0 || status != 0) stop("a rank has failed");
  }
  report(options, std::move(nanoseconds), pinned);
  return 0;
}
