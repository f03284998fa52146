// Segments, copies and the loader of plans: what needs one thread only.

#include <sys/resource.h>

#include "operations.h"

namespace cocoll::native_tests {
namespace {

constexpr size_t kMebibyte = size_t{1} << 20;

// A segment grows in place: addresses and contents stay, all who map it see the new memory.
void segment_growth(const std::string&) {
  host::Segment* segment = host::Segment::create(64 * kMebibyte);
  if (segment == nullptr) leave("no shared memory", kBadUsage);
  host::Segment* seen = host::Segment::attach(segment->ticket());
  EXPECT(seen == segment, "a rank of the same process maps a segment again");
  const size_t sizes[] = {
      1, 5000, kMebibyte, 3 * kMebibyte, 9 * kMebibyte, 9 * kMebibyte, 64 * kMebibyte};
  size_t filled = 0;
  for (size_t size : sizes) {
    const char* base = segment->base();
    EXPECT(segment->grow(size) == 0, "errno %d at %zu", errno, size);
    EXPECT(segment->base() == base && segment->size_bytes() >= size, "size %zu", size);
    for (size_t at = 0; at < filled; at += 4096)
      EXPECT(segment->base()[at] == static_cast<char>(at >> 12), "growth has lost byte %zu", at);
    for (; filled < size; filled += 4096) segment->base()[filled] = static_cast<char>(filled >> 12);
  }
  EXPECT(segment->grow(64 * kMebibyte + 1) == ENOMEM, "a segment outgrows its reservation");
  EXPECT(segment->grow(1) == 0 && segment->size_bytes() == 64 * kMebibyte, "a segment shrinks");
  EXPECT(reinterpret_cast<uintptr_t>(segment->base()) % host::kHugePageBytes == 0,
         "huge pages cannot map here");
  segment->release();
  EXPECT(seen->base()[4096] == 1, "memory goes before its last user");
  seen->release();
}

// Too little memory is an error of grow(), not a signal later.
void segment_limit(const std::string&) {
  host::Segment* segment = host::Segment::create(8 * kMebibyte);
  if (segment == nullptr) leave("no shared memory", kBadUsage);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  rlimit less = before;
  less.rlim_cur = 3 * kMebibyte;
  setrlimit(RLIMIT_FSIZE, &less);
  EXPECT(segment->grow(kMebibyte) == 0, "errno %d", errno);
  EXPECT(segment->grow(4 * kMebibyte) == EFBIG, "size %zu", segment->size_bytes());
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT(segment->grow(4 * kMebibyte) == 0, "errno %d", errno);
  segment->base()[4 * kMebibyte - 1] = 1;
  segment->release();
}

// Symmetric memory grows while operations run on what is there.
void growth_during_operations(const std::string& plans) {
  WorldOptions options;
  options.world_size = 3;
  const std::vector<Case> cases = read_cases(plans, options.world_size);
  World world(options);
  world.run([&](int32_t rank) {
    host::Session& session = world.session(rank);
    const Programs programs(plans, cases, session);
    const Case& which = find_case(cases, "two_shot");
    const std::shared_ptr<host::Program> program = programs.of(which);
    for (int turn = 0; turn < 30; ++turn) {
      // The ranks grow by different steps, and use the newest memory in the next call.
      const size_t heap = kMebibyte * static_cast<size_t>(1 + turn + rank % 2);
      const int error = World::segment_of(session)->grow(World::heap_start(session) + heap);
      EXPECT(error == 0, "errno %d", error);
      const int last_place = static_cast<int>(heap / (128 << 10)) - 3;
      Operation operation(session.endpoint, which, program.get(),
                          {1000, Memory::kSymmetric, false, turn, last_place});
      const host::Status status = run(session.execution.get(), operation.invocation());
      EXPECT(status == host::Status::kDone, "status %d", static_cast<int>(status));
      operation.check();
    }
  });
}

// References are given for memory that peers map, and only for it.
void references(const std::string&) {
  World world{WorldOptions()};
  const host::Endpoint& endpoint = world.session(0).endpoint;
  const char* heap = endpoint.region(0, endpoint.regions.heap);
  char local = 0;
  EXPECT(endpoint.resolve(0, endpoint.reference(heap, 8)) == heap, "the heap's start");
  EXPECT(endpoint.resolve(1, endpoint.reference(heap + 64, 8)) ==
             endpoint.region(1, endpoint.regions.heap + 64),
         "the same place of a peer");
  EXPECT(endpoint.reference(heap - 64, 8) == host::kNotMapped, "scratch is no caller's memory");
  EXPECT(endpoint.reference(&local, 1) == host::kNotMapped, "the stack is private");
  const int64_t reserved = static_cast<int64_t>(world.options().reserved_bytes);
  EXPECT(endpoint.reference(heap, reserved) == host::kNotMapped, "an array past the end");
  const char* common = endpoint.commons->base() + 4096;
  EXPECT(endpoint.resolve(1, endpoint.reference(common, 8)) == common, "the one copy");
}

// Copies of every alignment and length move just their bytes.
void streaming_copies(const std::string&) {
  std::vector<char> from(1024), to(1024);
  for (size_t index = 0; index < from.size(); ++index) from[index] = static_cast<char>(index * 31);
  for (size_t shift = 0; shift < 70; ++shift)
    for (size_t bytes = 0; bytes < 300; bytes += bytes < 140 ? 1 : 13) {
      std::fill(to.begin(), to.end(), 'x');
      const size_t other_shift = (shift * 7 + bytes) % 64;
      host::copy_streaming(to.data() + shift, from.data() + other_shift,
                           static_cast<int64_t>(bytes));
      bool same = memcmp(to.data() + shift, from.data() + other_shift, bytes) == 0;
      same = same && (shift == 0 || to[shift - 1] == 'x') && to[shift + bytes] == 'x';
      EXPECT(same, "shift %zu, %zu bytes", shift, bytes);
    }
}

// Strided copies agree with an element-by-element walk, for random layouts.
void strided_copies(const std::string&) {
  Random random(7);
  for (int turn = 0; turn < 3000; ++turn) {
    const int64_t itemsize = int64_t{1} << random.below(5);
    cocoll_layout layouts[2];
    std::vector<char> storage[2];
    int64_t start[2];
    const int32_t ndim = static_cast<int32_t>(random.below(4));
    int64_t count = 1;
    for (int32_t dim = 0; dim < ndim; ++dim) {
      layouts[0].shape[dim] = layouts[1].shape[dim] = 1 + random.below(5);
      count *= layouts[0].shape[dim];
    }
    for (int side = 0; side < 2; ++side) {
      layouts[side].ndim = ndim;
      layouts[side].itemsize_bytes = static_cast<int32_t>(itemsize);
      int64_t extent = itemsize;
      start[side] = 0;
      for (int32_t dim = ndim - 1; dim >= 0; --dim) {
        const int64_t stride = extent + itemsize * random.below(2);
        extent = stride * layouts[side].shape[dim];
        // A reversed dimension starts at its far end.
        const bool reversed = random.below(4) == 0;
        layouts[side].stride_bytes[dim] = reversed ? -stride : stride;
        if (reversed) start[side] += stride * (layouts[side].shape[dim] - 1);
      }
      storage[side].resize(static_cast<size_t>(extent));
      for (char& byte : storage[side]) byte = static_cast<char>(random.below(256));
    }
    const int64_t first = random.below(static_cast<uint32_t>(count));
    const int64_t copied = random.below(static_cast<uint32_t>(count - first) + 1);
    const auto offset = [&](int side, int64_t index) {
      int64_t at = start[side];
      for (int32_t dim = ndim - 1; dim >= 0; --dim) {
        at += index % layouts[side].shape[dim] * layouts[side].stride_bytes[dim];
        index /= layouts[side].shape[dim];
      }
      return at;
    };
    std::vector<char> wanted = storage[1];
    for (int64_t index = first; index < first + copied; ++index)
      memcpy(wanted.data() + offset(1, index), storage[0].data() + offset(0, index),
             static_cast<size_t>(itemsize));
    const cocoll_array source{storage[0].data() + start[0], &layouts[0], first};
    const cocoll_array destination{storage[1].data() + start[1], &layouts[1], first};
    host::copy_array(destination, source, copied, itemsize, turn % 2 == 0);
    EXPECT(storage[1] == wanted, "turn %d", turn);
  }
}

// Signatures that differ anywhere have different digests.
void signatures(const std::string&) {
  std::vector<uint64_t> digests;
  const double scalars[] = {0.0, -0.0, 1.0, 2.0};
  for (int field = 0; field < 6; ++field)
    for (int value = 1; value < 40; ++value) {
      host::Signature signature;
      if (field == 0) signature.kind = static_cast<uint8_t>(value);
      if (field == 1) signature.op = static_cast<uint8_t>(value);
      if (field == 2) signature.dtype = static_cast<uint8_t>(value);
      if (field == 3) signature.options = static_cast<uint8_t>(value);
      if (field == 4) signature.root = value;
      if (field == 5) signature.epilogue = static_cast<uint64_t>(value) << 40;
      digests.push_back(signature.digest(0, scalars, 0));
    }
  for (int64_t count = 0; count < 40; ++count)
    digests.push_back(host::Signature().digest(count, scalars, 0));
  for (int index = 0; index < 4; ++index)
    digests.push_back(host::Signature().digest(0, scalars + index, 1));
  const size_t made = digests.size();
  std::sort(digests.begin(), digests.end());
  digests.erase(std::unique(digests.begin(), digests.end()), digests.end());
  EXPECT(digests.size() == made, "%zu of %zu differ", digests.size(), made);
}

// A plan with any field changed is refused or harmless: the loader reads no other memory, and what
// it takes opens within the scratch.
void damaged_plans(const std::string& plans) {
  const int32_t world_size = 3;
  Random random(11);
  int64_t refused = 0;
  for (const Case& which : read_cases(plans, world_size)) {
    const host::PlanLimits limits{0,
                                  world_size,
                                  host::kFlagCount,
                                  host::kMaxResults,
                                  host::kMaxOperands,
                                  host::kLinePayloadBytes,
                                  16 << 10,
                                  64 << 10};
    const std::string variant = which.staged ? "staged" : "mapped";
    const std::vector<host::Record> whole =
        read_records(plans + "/" + which.name + "-3." + variant + ".0");
    host::PlanImage image;
    EXPECT(image.load(whole.data(), whole.size(), limits), "%s: %s", which.name.c_str(),
           image.error().c_str());
    // Only the empty opening of a barrier can be done without.
    EXPECT(which.kind == "barrier" || !image.load(whole.data(), whole.size() - 1, limits),
           "%s, cut", which.name.c_str());
    const int32_t odd[] = {-2147483647 - 1, -2, -1, 0, 1, 2, 7, 8, 255, 65537, 2147483647};
    for (int turn = 0; turn < 2000; ++turn) {
      std::vector<host::Record> changed = whole;
      changed.resize(changed.size() - random.below(2));
      if (changed.empty()) continue;
      host::Record& record = changed[random.below(static_cast<uint32_t>(changed.size()))];
      const int32_t value = odd[random.below(11)];
      const uint32_t field = random.below(10);
      if (field == 0)
        record.opcode = value;
      else if (field <= 7)
        record.field[field - 1] = value;
      else if (field == 8)
        record.x = int64_t{value} * (int64_t{1} << random.below(32));
      else
        record.y = int64_t{value} * (int64_t{1} << random.below(32));
      // A copy of just its size: AddressSanitizer sees a read past it.
      const std::vector<host::Record> exact(changed.begin(), changed.end());
      if (!image.load(exact.data(), exact.size(), limits)) {
        ++refused;
        EXPECT(!image.error().empty(), "a refusal without a reason");
      }
    }
  }
  EXPECT(refused > 1000, "%lld refused", static_cast<long long>(refused));
}

}  // namespace
}  // namespace cocoll::native_tests

int main(int argc, char** argv) {
  using namespace cocoll::native_tests;
  if (argc != 3) leave("usage: memory PLANS SCENARIO", kBadUsage);
  start_watchdog(kWatchdogSeconds);
  const std::map<std::string, void (*)(const std::string&)> scenarios = {
      {"segment_growth", segment_growth},
      {"segment_limit", segment_limit},
      {"growth_during_operations", growth_during_operations},
      {"references", references},
      {"streaming_copies", streaming_copies},
      {"strided_copies", strided_copies},
      {"signatures", signatures},
      {"damaged_plans", damaged_plans}};
  const auto found = scenarios.find(argv[2]);
  if (found == scenarios.end()) leave("no such scenario", kBadUsage);
  found->second(argv[1]);
  return failure_count().load() == 0 ? kPassed : kWrongResult;
}
