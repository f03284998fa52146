// The packed plan: the array of fixed-size records that cocoll/plan/ir.py writes.

#ifndef COCOLL_HOST_PACKED_H_
#define COCOLL_HOST_PACKED_H_

#include <cstdint>
#include <string>
#include <vector>

namespace cocoll::host {

enum : int32_t {
  kPackVersion = 4,
  kWholeVector = -1,
  kNoEnd = -1,
  kWholeLane = INT32_MIN,
  kOpeningLane = -1,
};

// Sums of a place in the vector and a chunk stay far from overflow.
constexpr int64_t kMaxChunkElements = int64_t{1} << 48;

enum class Opcode : int32_t {
  kHeader = 0,
  kLane = 1,
  kLoop = 2,
  kCopy = 3,
  kReduce = 4,
  kSignal = 5,
  kWait = 6,
  kAfter = 7,
  kView = 8,
  kSend = 9,
  kReceive = 10,
  kNative = 11,
  kCall = 12,
};

enum class Buffer : int32_t {
  kSource = 0,
  kResult,
  kOperand,
  kLine,
  kSmall,
  kStaging,
  kPart,
  kCount
};

enum class Span : int32_t { kOnce = 0, kBlock = 1, kWhole = 2, kRange = 3 };

enum HeaderFlag : int32_t { kMappedSources = 1, kMappedResults = 2 };

// One record. Which fields mean what is said where each opcode is packed.
struct Record {
  int32_t opcode;
  int32_t field[7];
  int64_t x;
  int64_t y;

  Opcode op() const { return static_cast<Opcode>(opcode); }
};
static_assert(sizeof(Record) == 48, "ir.py packs 48-byte records");

// Where the range of a loop over one begins.
inline int64_t first_element(const Record& loop) {
  return int64_t{loop.field[4]} << 31 | loop.field[3];
}

// The record of a view, read by name.
struct ViewRef {
  const Record* record;

  Buffer buffer() const { return static_cast<Buffer>(record->field[0]); }
  int32_t rank() const { return record->field[1]; }
  int32_t itemsize_bytes() const { return record->field[2]; }
  int32_t index() const { return record->field[3]; }
  int32_t origin() const { return record->field[4]; }
  int32_t slots() const { return record->field[5]; }
  int64_t offset_bytes() const { return record->x; }
  int64_t slot_bytes() const { return record->y; }
};

// What a plan may ask of its executor; a plan that asks for more is refused when it is loaded.
struct PlanLimits {
  int32_t rank;
  int32_t world_size;
  int32_t flag_count;
  int32_t result_count;
  int32_t operand_count;
  int64_t line_bytes;
  int64_t small_bytes;
  int64_t staging_bytes;
  int32_t tag_count = 0;
  bool has_wire = false;
  const int32_t* host_of = nullptr;  // by rank; null where there is one host
  int32_t part_count = 0;
};

// A packed plan that has been checked: every index in range, every record where it belongs.
class PlanImage {
 public:
  PlanImage() = default;
  // Lanes point into the records.
  PlanImage(const PlanImage&) = delete;
  PlanImage& operator=(const PlanImage&) = delete;

  struct LaneSpan {
    const Record* first;  // the lane's first loop
    int32_t loops;
    int32_t in_flight;  // messages that may have begun and not ended
  };

  // Copies `count` records. On failure `error()` says what is wrong and where.
  bool load(const Record* records, size_t count, const PlanLimits& limits) {
    records_.assign(records, records + count);
    lanes_.clear();
    opening_ = {nullptr, 0, 1};
    max_views_ = 0;
    uses_wire_ = false;
    bounded_count_ = INT64_MAX;
    error_.clear();
    if (count == 0 || records_[0].op() != Opcode::kHeader) return fail(0, "wanted a header record");
    const Record& header = records_[0];
    if (header.field[0] != kPackVersion) return fail(0, "unknown version of the packed format");
    if (header.field[1] != limits.rank || header.field[2] != limits.world_size)
      return fail(0, "made for another rank or world_size");
    if (header.field[3] < 1) return fail(0, "alignment_elements must be positive");
    alignment_elements_ = header.field[3];
    flags_ = header.field[5];
    size_t at = 1;
    while (at < count) {
      const Record& lane = records_[at];
      if (lane.op() != Opcode::kLane) return fail(at, "wanted a lane record");
      in_opening_ = lane.field[0] == kOpeningLane;
      if (lane.field[2] < 1) return fail(at, "a lane has at least one step in flight");
      if (in_opening_)
        opening_ = {&records_[at] + 1, lane.field[1], 1};
      else
        lanes_.push_back({&records_[at] + 1, lane.field[1], lane.field[2]});
      ++at;
      for (int32_t loop = 0; loop < lane.field[1]; ++loop)
        if (!check_loop(&at, limits)) return false;
    }
    if (static_cast<int32_t>(lanes_.size()) != header.field[4])
      return fail(0, "the number of lanes differs from the header's");
    return true;
  }

  const std::string& error() const { return error_; }
  const LaneSpan& opening() const { return opening_; }
  const std::vector<LaneSpan>& lanes() const { return lanes_; }
  int32_t alignment_elements() const { return alignment_elements_; }
  bool mapped_sources() const { return flags_ & kMappedSources; }
  bool mapped_results() const { return flags_ & kMappedResults; }
  // The most views that any step has.
  int32_t max_views() const { return max_views_; }
  bool uses_wire() const { return uses_wire_; }
  int32_t place_of(const Record* record) const {
    return static_cast<int32_t>(record - records_.data());
  }
  // The longest vector whose whole-vector scratch views fit their regions.
  int64_t bounded_count() const { return bounded_count_; }

  int64_t block_elements(int64_t count, int32_t world_size) const {
    const int64_t per_rank = (count + world_size - 1) / world_size;
    return (per_rank + alignment_elements_ - 1) / alignment_elements_ * alignment_elements_;
  }

 private:
  bool fail(size_t at, const char* what) {
    error_ = std::string(what) + " at record " + std::to_string(at);
    return false;
  }

  bool check_loop(size_t* at, const PlanLimits& limits) {
    if (*at >= records_.size() || records_[*at].op() != Opcode::kLoop)
      return fail(*at, "wanted a loop record");
    const Record& loop = records_[*at];
    if (loop.field[0] < 0 || loop.field[0] > static_cast<int32_t>(Span::kRange))
      return fail(*at, "unknown span");
    const Span span = static_cast<Span>(loop.field[0]);
    if (span != Span::kOnce && (loop.x < 1 || loop.x > kMaxChunkElements))
      return fail(*at, "a loop needs chunk_elements > 0, and below 2^48");
    if (loop.field[1] < 0) return fail(*at, "a loop begins before its first iteration");
    if (loop.field[3] < 0 || loop.field[4] < 0 || first_element(loop) > kMaxChunkElements)
      return fail(*at, "a range begins at an element from 0 to 2^48");
    if (loop.y < 0 || static_cast<uint64_t>(loop.y) > records_.size() - *at - 1)
      return fail(*at, "a loop body passes the end of the plan");
    const size_t end = *at + 1 + static_cast<size_t>(loop.y);
    ++*at;
    while (*at < end)
      if (!check_step(at, end, loop, limits)) return false;
    return true;
  }

  bool check_step(size_t* at, size_t end, const Record& loop, const PlanLimits& limits) {
    const size_t here = *at;
    const Record& step = records_[here];
    const int32_t* field = step.field;
    int64_t views = 0;
    // Peers may be in the operation before, and nothing has been resolved or agreed yet.
    if (in_opening_ && step.op() != Opcode::kCopy)
      return fail(here, "an opening only copies into the rank's own scratch, and has another step");
    switch (step.op()) {
      case Opcode::kAfter:
        if (field[0] < 0 || field[0] >= records_[0].field[4]) return fail(here, "bad dependence");
        break;
      case Opcode::kSignal:
      case Opcode::kWait:
        if (field[0] < 0 || field[0] >= limits.world_size || field[0] == limits.rank)
          return fail(here, "a flag needs another rank");
        if (field[1] < 0 || field[1] >= limits.flag_count) return fail(here, "no such flag");
        if (!same_host(field[0], limits)) return fail(here, "a flag cannot reach another host");
        break;
      case Opcode::kCopy:
        views = 2;
        if (!check_block(here, field[0], limits)) return false;
        break;
      case Opcode::kReduce: {
        if (!check_block(here, field[0], limits)) return false;
        for (int part = 1; part <= 4; ++part)
          if (field[part] < 0 || field[part] > 65536) return fail(here, "bad number of views");
        if (field[1] + field[4] < 1 || field[2] > limits.result_count ||
            field[4] > limits.operand_count)
          return fail(here, "bad number of sources, results or operands");
        views = int64_t{field[1]} + int64_t{field[2]} * field[3] + field[4];
        break;
      }
      case Opcode::kSend:
      case Opcode::kReceive:
        views = 1;
        if (!check_block(here, field[0], limits)) return false;
        if (field[1] < 0 || field[1] >= limits.world_size || field[1] == limits.rank)
          return fail(here, "a message needs another rank");
        if (field[3] < 0 || field[3] >= limits.tag_count) return fail(here, "no such tag");
        if (in_opening_) return fail(here, "an opening sends and receives nothing");
        if (!limits.has_wire)
          return fail(here, "messages need a wire, which the ranks of one host do not have,");
        uses_wire_ = true;
        break;
      case Opcode::kNative:
      case Opcode::kCall:
        return fail(here, "the host executor runs no native and no call steps");
      default:
        return fail(here, "unknown step");
    }
    if (here + 1 + static_cast<size_t>(views) > end) return fail(here, "views pass the loop body");
    for (int64_t view = 0; view < views; ++view)
      if (!check_view(here + 1 + static_cast<size_t>(view), loop, limits)) return false;
    if (in_opening_ && (ViewRef{&records_[here + 2]}.buffer() <= Buffer::kOperand ||
                        ViewRef{&records_[here + 2]}.buffer() == Buffer::kPart))
      return fail(here, "an opening writes scratch only");
    if (views > max_views_) max_views_ = static_cast<int32_t>(views);
    *at = here + 1 + static_cast<size_t>(views);
    return true;
  }

  static bool same_host(int32_t peer, const PlanLimits& limits) {
    return limits.host_of == nullptr || limits.host_of[peer] == limits.host_of[limits.rank];
  }

  bool check_block(size_t at, int32_t block, const PlanLimits& limits) {
    if (block >= kWholeVector && block < limits.world_size) return true;
    return fail(at, "no such block");
  }

  bool check_view(size_t at, const Record& loop, const PlanLimits& limits) {
    if (records_[at].op() != Opcode::kView) return fail(at, "wanted a view record");
    const ViewRef view{&records_[at]};
    const int32_t buffer = records_[at].field[0];
    if (buffer < 0 || buffer >= static_cast<int32_t>(Buffer::kCount))
      return fail(at, "no such buffer");
    if (view.rank() < 0 || view.rank() >= limits.world_size) return fail(at, "no such rank");
    if (view.itemsize_bytes() < 1 || view.itemsize_bytes() > 64) return fail(at, "bad itemsize");
    if (view.index() < 0 || view.origin() < 0 || view.origin() >= limits.world_size)
      return fail(at, "bad index or origin");
    const bool foreign = view.rank() != limits.rank;
    if (!same_host(view.rank(), limits)) return fail(at, "memory of another host is not mapped");
    if (in_opening_ && foreign) return fail(at, "an opening touches the rank's own memory only");
    int64_t region = 0;
    switch (view.buffer()) {
      case Buffer::kResult:
        if (view.index() >= limits.result_count) return fail(at, "no such result");
        if (foreign && !mapped_results())
          return fail(at, "the plan does not say that it maps results");
        return true;
      case Buffer::kOperand:
        if (view.index() >= limits.operand_count) return fail(at, "no such operand");
        if (foreign) return fail(at, "operands of other ranks cannot be touched");
        return true;
      case Buffer::kPart:
        if (view.index() >= limits.part_count) return fail(at, "no such part");
        if (foreign) return fail(at, "parts of other ranks cannot be touched");
        return true;
      case Buffer::kSource:
        if (foreign && !mapped_sources())
          return fail(at, "the plan does not say that it maps sources");
        return true;
      case Buffer::kLine:
        region = limits.line_bytes;
        break;
      case Buffer::kSmall:
        region = limits.small_bytes;
        break;
      default:
        region = limits.staging_bytes;
    }
    if (view.offset_bytes() < 0 || view.offset_bytes() > region)
      return fail(at, "the view starts outside its scratch region");
    const int64_t room = region - view.offset_bytes();
    if (view.slots() == 0) {
      const int64_t fits = room / view.itemsize_bytes();
      if (fits < bounded_count_) bounded_count_ = fits;
      return true;
    }
    if (view.slots() < 0 || static_cast<Span>(loop.field[0]) == Span::kOnce)
      return fail(at, "slots need a loop over chunks");
    if (view.slot_bytes() < 0 || loop.x > room / view.itemsize_bytes() ||
        (view.slots() > 1 &&
         view.slot_bytes() > (room - loop.x * view.itemsize_bytes()) / (view.slots() - 1)))
      return fail(at, "the slots do not fit their scratch region");
    return true;
  }

  std::vector<Record> records_;
  std::vector<LaneSpan> lanes_;
  LaneSpan opening_{nullptr, 0, 1};
  std::string error_;
  int32_t alignment_elements_ = 1;
  int32_t flags_ = 0;
  int32_t max_views_ = 0;
  bool uses_wire_ = false;
  int64_t bounded_count_ = INT64_MAX;
  bool in_opening_ = false;  // of the records being checked
};

}  // namespace cocoll::host

#endif  // COCOLL_HOST_PACKED_H_
