// Runs packed plans: opening, arrival, then all lanes as coroutines on one thread.

#ifndef COCOLL_HOST_INTERPRETER_H_
#define COCOLL_HOST_INTERPRETER_H_

#include <algorithm>
#include <cstring>
#include <vector>

#include "../kernels/abi.h"
#include "copy.h"
#include "endpoint.h"
#include "packed.h"

namespace cocoll::host {

constexpr int32_t kMaxResults = 8;
constexpr int32_t kMaxOperands = 16;
constexpr int32_t kMaxScalars = 32;

// The agreed facts of an operation, as they are compared, recorded and reported.
struct Signature {
  uint8_t kind = 0;
  uint8_t op = 0;
  uint8_t dtype = 0;
  uint8_t options = 0;
  int32_t root = -1;
  uint64_t epilogue = 0;

  // Two ranks that agree give the same number; `scalars` are agreed facts too.
  uint64_t digest(int64_t count, const double* scalars, int32_t scalar_count) const {
    uint64_t state =
        mix(uint64_t{kind} | uint64_t{op} << 8 | uint64_t{dtype} << 16 | uint64_t{options} << 24 |
            static_cast<uint64_t>(static_cast<uint32_t>(root)) << 32);
    state = mix(state ^ static_cast<uint64_t>(count));
    state = mix(state ^ epilogue);
    for (int32_t index = 0; index < scalar_count; ++index) {
      uint64_t bits;
      memcpy(&bits, &scalars[index], sizeof bits);
      state = mix(state ^ bits);
    }
    return state;
  }

 private:
  // The finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): every input bit moves every
  // output bit, so different facts collide with probability 2^-64.
  static uint64_t mix(uint64_t value) {
    value += 0x9e3779b97f4a7c15;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
    value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
    return value ^ (value >> 31);
  }
};

// What serves every call of one kind: the variants of the plan and the kernel of their reduce
// steps.
struct Program {
  PlanImage mapped;  // peers touch the caller's arrays
  PlanImage staged;  // they do not
  bool has_mapped = false;
  bool has_staged = false;
  cocoll_reduce_fn reduce = nullptr;
  cocoll_prepare_fn prepare = nullptr;
  int32_t derived_count = 0;
  int32_t result_count = 1;
  uint8_t algorithm = 0;
};

// One call: a program and what it is bound to.
struct Invocation {
  Program* program = nullptr;
  Signature signature;
  int64_t count = 0;  // elements of the logical vector
  cocoll_array source{};
  int64_t source_bytes = 0;
  cocoll_array results[kMaxResults] = {};
  cocoll_array operands[kMaxOperands] = {};
  uint64_t source_reference = kNotMapped;
  uint64_t result_references[kMaxResults] = {};
  uint32_t reduce_flags = 0;
  bool may_stream = false;  // no line of a result has been read before it is written
  int32_t scalar_count = 0;
  double scalars[kMaxScalars] = {};
};

class Execution {
 public:
  explicit Execution(Endpoint* endpoint)
      : endpoint_(*endpoint), waiter_(endpoint->policy, endpoint->own()) {
    const size_t ranks = static_cast<size_t>(endpoint->world_size);
    sources_.resize(ranks);
    results_.resize(ranks * kMaxResults);
  }

  // The bytes that a host may write before streaming stores pay: half its last-level cache.
  int64_t streaming_bytes = int64_t{16} << 20;

  Status begin(Invocation* invocation) {
    call_ = invocation;
    phase_ = Phase::kIdle;
    sequence_ = endpoint_.sequence;
    if (endpoint_.abort_word() != 0) return Status::kAborted;
    Program& program = *call_->program;
    const bool mine_is_mapped = program.has_mapped && local_is_mapped(program.mapped);
    if (!program.has_mapped && !program.has_staged) return Status::kNotPrepared;
    digest_ = call_->signature.digest(call_->count, call_->scalars, call_->scalar_count);
    ++endpoint_.sequence;
    parity_ = static_cast<int32_t>(sequence_ & 1);
    looked_at_ = 0;
    stalled_nanoseconds_ = 0;
    saw_abort_ = false;
    record();
    if (program.prepare != nullptr)
      program.prepare(call_->scalars, derived_);
    else
      std::copy_n(call_->scalars, call_->scalar_count, derived_);
    // A rank whose arrays no variant serves arrives all the same: its line says so, and all ranks
    // refuse alike.
    opened_ = !mine_is_mapped && program.has_staged;
    image_ = opened_ ? &program.staged : &program.mapped;
    if (opened_) open();
    arrive();
    phase_ = Phase::kArriving;
    next_peer_ = 0;
    return resume();
  }

  Status resume() {
    waiter_.entered();
    if (phase_ == Phase::kArriving) {
      const Status status = await_arrivals();
      if (status != Status::kDone) return finish(status);
      const Status agreed = agree();
      if (agreed != Status::kDone) return finish(agreed);
      phase_ = Phase::kLanes;
      progressed();
    }
    const Status status = run_lanes();
    if (status == Status::kDone && image_ == &call_->program->staged &&
        (call_->reduce_flags & COCOLL_REDUCE_ZERO_SOURCES) != 0)
      memset(call_->source.data, 0, static_cast<size_t>(call_->source_bytes));
    return finish(status);
  }

  uint64_t sequence() const { return sequence_; }

 private:
  // What one look for failures adds to the time that counts as waiting, at most.
  static constexpr int64_t kLongestLook = 1000000000;

  enum class Phase { kIdle, kArriving, kLanes };

  struct LaneState {
    const Record* loop;  // the LOOP record being run, then the one after the lane's last
    const Record* step;
    const Record* body_end;
    int32_t loops_left;
    int64_t iteration;
    int64_t end;
    int64_t progress;  // one past the last iteration completed
    bool finished;
  };

  // --- Arrival. ---

  ArrivalLine& line(int32_t rank) const {
    return endpoint_.peers[static_cast<size_t>(rank)].control->lines[parity_];
  }

  bool local_is_mapped(const PlanImage& image) const {
    if (image.mapped_sources() && call_->source_reference == kNotMapped) return false;
    if (image.mapped_results())
      for (int32_t index = 0; index < call_->program->result_count; ++index)
        if (call_->result_references[index] == kNotMapped) return false;
    return true;
  }

  void record() {
    FlightRecord& flight = endpoint_.own()->flight[sequence_ % kFlightRecords];
    const Signature& signature = call_->signature;
    flight.sequence = sequence_;
    flight.digest = digest_;
    flight.count = call_->count;
    flight.epilogue = signature.epilogue;
    flight.started_ticks = clock_ticks();
    flight.root = signature.root;
    flight.kind = signature.kind;
    flight.op = signature.op;
    flight.dtype = signature.dtype;
    flight.options = signature.options;
    flight.algorithm = call_->program->algorithm;
    flight.state.store(static_cast<uint8_t>(FlightState::kRunning), std::memory_order_release);
  }

  void arrive() {
    ArrivalLine& own = line(endpoint_.rank);
    own.digest = digest_;
    own.source = call_->source_reference;
    own.result = call_->result_references[0];
    // Programs of several results have no data in the line.
    if (call_->program->result_count > 1)
      memcpy(own.payload, call_->result_references + 1, sizeof(uint64_t) * (kMaxResults - 1));
    own.sequence.exchange(sequence_, std::memory_order_seq_cst);
    for (int32_t peer = 0; peer < endpoint_.world_size; ++peer) {
      Control* control = endpoint_.peers[static_cast<size_t>(peer)].control;
      if (peer != endpoint_.rank && control->sleepers.load(std::memory_order_seq_cst) != 0)
        ring(control);
    }
  }

  Status await_arrivals() {
    for (;;) {
      while (next_peer_ < endpoint_.world_size &&
             (next_peer_ == endpoint_.rank ||
              line(next_peer_).sequence.load(std::memory_order_seq_cst) == sequence_))
        ++next_peer_;
      if (next_peer_ == endpoint_.world_size) return Status::kDone;
      const Status status = wait();
      if (status != Status::kDone) return status;
    }
  }

  // Reads all lines: do the ranks agree, and which variant serves all of them?
  Status agree() {
    for (int32_t peer = 0; peer < endpoint_.world_size; ++peer)
      if (line(peer).digest != digest_) return Status::kMismatch;
    Program& program = *call_->program;
    if (program.has_mapped) {
      const bool all = resolve_peers(program.mapped);
      if (!all && !program.has_staged) return Status::kNotPrepared;
      image_ = all ? &program.mapped : &program.staged;
      // Everyone else staged before arrival; this rank's arrays were mapped, so it stages now.
      if (!all && !opened_) open();
    }
    if (call_->count > image_->bounded_count()) return Status::kNotPrepared;
    block_elements_ = image_->block_elements(call_->count, endpoint_.world_size);
    // Readers zero what they have read of mapped sources. A staged source is read by its own rank
    // alone, which clears it when everything has been staged and reduced.
    reduce_flags_ = image_ == &program.mapped ? call_->reduce_flags : 0;
    streams_ = image_ == &program.mapped && call_->may_stream && results_exceed_cache();
    if (streams_) reduce_flags_ |= COCOLL_REDUCE_STREAMING;
    reserve_views();
    const auto& lanes = image_->lanes();
    lanes_.resize(lanes.size());
    lanes_left_ = 0;
    for (size_t index = 0; index < lanes.size(); ++index) {
      lanes_[index] = start(lanes[index]);
      if (!lanes_[index].finished) ++lanes_left_;
    }
    return Status::kDone;
  }

  bool resolve_peers(const PlanImage& image) {
    const int32_t result_count = call_->program->result_count;
    for (int32_t peer = 0; peer < endpoint_.world_size; ++peer) {
      const ArrivalLine& theirs = line(peer);
      if (image.mapped_sources()) {
        if (theirs.source == kNotMapped) return false;
        sources_[static_cast<size_t>(peer)] = endpoint_.resolve(peer, theirs.source);
      }
      if (!image.mapped_results()) continue;
      for (int32_t index = 0; index < result_count; ++index) {
        uint64_t reference = theirs.result;
        if (index > 0)
          memcpy(&reference, theirs.payload + sizeof(uint64_t) * static_cast<size_t>(index - 1),
                 sizeof reference);
        if (reference == kNotMapped) return false;
        results_[static_cast<size_t>(peer * kMaxResults + index)] =
            endpoint_.resolve(peer, reference);
      }
    }
    return true;
  }

  bool results_exceed_cache() const {
    if (call_->source_bytes * endpoint_.world_size <= streaming_bytes) return false;
    for (int32_t peer = 0; peer < endpoint_.world_size; ++peer)
      if (line(peer).source == line(peer).result) return false;
    return true;
  }

  // --- Steps. ---

  void open() {
    // A vector that does not fit is refused by agree(), when no peer waits for this rank any more.
    if (call_->count > image_->bounded_count()) return;
    block_elements_ = image_->block_elements(call_->count, endpoint_.world_size);
    reserve_views();
    LaneState lane = start(image_->opening());
    while (!lane.finished) advance(&lane);
  }

  void reserve_views() {
    if (static_cast<int32_t>(views_.size()) < image_->max_views())
      views_.resize(static_cast<size_t>(image_->max_views()));
  }

  LaneState start(const PlanImage::LaneSpan& span) const {
    LaneState lane{};
    lane.loop = span.first;
    lane.loops_left = span.loops;
    enter_loop(&lane);
    return lane;
  }

  // Enters the next loop that has an iteration, or ends the lane.
  void enter_loop(LaneState* lane) const {
    while (lane->loops_left > 0) {
      const Record& loop = *lane->loop;
      --lane->loops_left;
      lane->step = &loop + 1;
      lane->body_end = lane->step + loop.y;
      lane->iteration = loop.field[1];
      lane->end = iterations(loop);
      if (lane->iteration < lane->end && loop.y > 0) return;
      lane->loop = lane->body_end;
    }
    lane->finished = true;
  }

  int64_t iterations(const Record& loop) const {
    int64_t total = 1;
    const Span span = static_cast<Span>(loop.field[0]);
    if (span != Span::kOnce) {
      const int64_t elements = span == Span::kBlock ? block_elements_ : call_->count;
      total = std::max<int64_t>(1, (elements + loop.x - 1) / loop.x);
    }
    return loop.field[2] == kNoEnd ? total : std::min<int64_t>(loop.field[2], total);
  }

  struct Range {
    int64_t first;
    int64_t count;
  };

  Range chunk(const LaneState& lane, int32_t block) const {
    int64_t first = 0;
    int64_t stop = call_->count;
    if (block != kWholeVector) {
      first = std::min(block * block_elements_, call_->count);
      stop = std::min(first + block_elements_, call_->count);
    }
    if (static_cast<Span>(lane.loop->field[0]) == Span::kOnce) return {first, stop - first};
    const int64_t chunk_elements = lane.loop->x;
    // A clipped block may have fewer chunks than the loop has iterations.
    const int64_t start = std::min(first + lane.iteration * chunk_elements, stop);
    return {start, std::min(chunk_elements, stop - start)};
  }

  cocoll_array resolve(const Record& record, const LaneState& lane, int64_t first) const {
    const ViewRef view{&record};
    const size_t peer = static_cast<size_t>(view.rank());
    switch (view.buffer()) {
      case Buffer::kSource:
        if (view.rank() == endpoint_.rank) return place(call_->source, view, first);
        return place({sources_[peer], nullptr, 0}, view, first);
      case Buffer::kResult:
        if (view.rank() == endpoint_.rank) return place(call_->results[view.index()], view, first);
        return place({results_[peer * kMaxResults + static_cast<size_t>(view.index())], nullptr, 0},
                     view, first);
      case Buffer::kOperand:
        return place(call_->operands[view.index()], view, first);
      case Buffer::kLine:
        return scratch(reinterpret_cast<char*>(line(view.rank()).payload), view, lane, first);
      case Buffer::kSmall:
        return scratch(endpoint_.region(view.rank(), endpoint_.regions.small[parity_]), view, lane,
                       first);
      default:
        return scratch(endpoint_.region(view.rank(), endpoint_.regions.staging), view, lane, first);
    }
  }

  // The caller's array, from the element that its origin block starts with.
  cocoll_array place(const cocoll_array& array, const ViewRef& view, int64_t first) const {
    const int64_t index = first - std::min(view.origin() * block_elements_, call_->count);
    if (array.layout != nullptr) return {array.data, array.layout, array.index + index};
    return {static_cast<char*>(array.data) + index * view.itemsize_bytes(), nullptr, 0};
  }

  cocoll_array scratch(char* region, const ViewRef& view, const LaneState& lane,
                       int64_t first) const {
    char* data = region + view.offset_bytes();
    if (view.slots() == 0) {
      const int64_t origin = std::min(view.origin() * block_elements_, call_->count);
      return {data + (first - origin) * view.itemsize_bytes(), nullptr, 0};
    }
    return {data + lane.iteration % view.slots() * view.slot_bytes(), nullptr, 0};
  }

  bool met(const Record& after, const LaneState& lane) const {
    const LaneState& other = lanes_[static_cast<size_t>(after.field[0])];
    if (other.finished) return true;
    return after.field[1] != kWholeLane && other.progress > lane.iteration - after.field[1];
  }

  // Runs the lane's next step. False: it would block.
  bool advance(LaneState* lane) {
    const Record* step = lane->step;
    switch (step->op()) {
      case Opcode::kAfter:
        if (!met(*step, *lane)) return false;
        lane->step = step + 1;
        break;
      case Opcode::kSignal:
        endpoint_.signal(step->field[0], step->field[1]);
        lane->step = step + 1;
        break;
      case Opcode::kWait:
        if (!endpoint_.take(step->field[0], step->field[1])) return false;
        lane->step = step + 1;
        break;
      case Opcode::kCopy: {
        const Range range = chunk(*lane, step->field[0]);
        if (range.count > 0) {
          const bool to_result = ViewRef{&step[2]}.buffer() == Buffer::kResult;
          copy_array(resolve(step[2], *lane, range.first), resolve(step[1], *lane, range.first),
                     range.count, step[1].field[2], streams_ && to_result);
        }
        lane->step = step + 3;
        break;
      }
      default:
        reduce(*lane, step);
        lane->step = step + 1 + step->field[1] + step->field[2] * step->field[3] + step->field[4];
    }
    if (lane->step == lane->body_end) {
      lane->progress = ++lane->iteration;
      if (lane->iteration < lane->end) {
        lane->step = lane->loop + 1;
      } else {
        lane->loop = lane->body_end;
        enter_loop(lane);
      }
    }
    return true;
  }

  void reduce(const LaneState& lane, const Record* step) {
    const Range range = chunk(lane, step->field[0]);
    if (range.count <= 0) return;
    const int32_t source_count = step->field[1];
    const int32_t result_views = step->field[2] * step->field[3];
    const int32_t total = source_count + result_views + step->field[4];
    for (int32_t index = 0; index < total; ++index)
      views_[static_cast<size_t>(index)] = resolve(step[1 + index], lane, range.first);
    cocoll_reduce_args args;
    args.first = range.first;
    args.count = range.count;
    args.source_count = source_count;
    args.destination_count = step->field[3];
    args.world_size = endpoint_.world_size;
    args.flags = reduce_flags_;
    args.sources = views_.data();
    args.destinations = views_.data() + source_count;
    args.operands = views_.data() + source_count + result_views;
    args.scalars = derived_;
    call_->program->reduce(&args);
  }

  Status run_lanes() {
    while (lanes_left_ > 0) {
      bool moved = false;
      for (LaneState& lane : lanes_) {
        if (lane.finished) continue;
        while (!lane.finished && advance(&lane)) moved = true;
        if (lane.finished) --lanes_left_;
      }
      if (moved) {
        progressed();
        continue;
      }
      if (lanes_left_ == 0) break;
      const Status status = wait();
      if (status != Status::kDone) return status;
    }
    return Status::kDone;
  }

  // --- Waiting and failure. ---

  // The limits of waiting count from here.
  void progressed() {
    waiter_.progressed();
    looked_at_ = 0;
    stalled_nanoseconds_ = 0;
    saw_abort_ = false;
  }

  Status wait() {
    switch (waiter_.pause()) {
      case Waiter::Verdict::kPoll:
        return Status::kDone;
      case Waiter::Verdict::kCheck:
        return look_for_failure();
      default:
        return Status::kPending;
    }
  }

  // Calls `visit(peer, flag)` for everyone that this rank waits for now; flag -1 is arrival.
  template <class Visit>
  void for_each_awaited(Visit visit) const {
    if (phase_ == Phase::kArriving) {
      for (int32_t peer = next_peer_; peer < endpoint_.world_size; ++peer)
        if (peer != endpoint_.rank &&
            line(peer).sequence.load(std::memory_order_seq_cst) != sequence_)
          visit(peer, -1);
      return;
    }
    for (const LaneState& lane : lanes_)
      if (!lane.finished && lane.step->op() == Opcode::kWait)
        visit(lane.step->field[0], lane.step->field[1]);
  }

  Status look_for_failure() {
    // What a peer published before it gave up may still complete this operation, so only a second
    // look without progress in between ends it.
    if (endpoint_.abort_word() != 0) {
      if (saw_abort_) return Status::kAborted;
      saw_abort_ = true;
    }
    if (endpoint_.orphaned()) endpoint_.abort(AbortReason::kLauncherLost, endpoint_.rank);
    const int64_t now = monotonic_nanoseconds();
    // A rank that was stopped itself (Ctrl-Z, a suspended job or machine) has not waited meanwhile.
    if (looked_at_ != 0) stalled_nanoseconds_ += std::min(now - looked_at_, kLongestLook);
    looked_at_ = now;
    Control* own = endpoint_.own();
    own->waiting_sequence.store(sequence_, std::memory_order_relaxed);
    Status status = Status::kDone;
    int32_t first = -1;
    for_each_awaited([&](int32_t peer, int32_t flag) {
      if (first < 0) {
        own->waiting_flag.store(flag, std::memory_order_relaxed);
        own->waiting_rank.store(peer, std::memory_order_relaxed);
        first = peer;
      }
      if (status == Status::kDone && endpoint_.lost(peer)) {
        endpoint_.culprit = peer;
        status = Status::kPeerLost;
      }
    });
    if (status != Status::kDone) return status;
    if (stalled_nanoseconds_ < endpoint_.timeout_nanoseconds) return Status::kDone;
    endpoint_.culprit = first;
    return Status::kTimeout;
  }

  Status finish(Status status) {
    if (status == Status::kPending) return status;
    // Whoever gives up says so at once, so that no peer waits for a rank that will not come.
    if (status == Status::kTimeout) endpoint_.abort(AbortReason::kTimeout, endpoint_.culprit);
    if (status == Status::kPeerLost) endpoint_.abort(AbortReason::kPeerLost, endpoint_.culprit);
    phase_ = Phase::kIdle;
    waiter_.progressed();
    // A failed operation leaves what it waited for on record.
    if (status == Status::kDone) endpoint_.own()->waiting_rank.store(-1, std::memory_order_relaxed);
    const FlightState state = status == Status::kDone ? FlightState::kDone : FlightState::kFailed;
    endpoint_.own()->flight[sequence_ % kFlightRecords].state.store(static_cast<uint8_t>(state),
                                                                    std::memory_order_release);
    return status;
  }

  Endpoint& endpoint_;
  Waiter waiter_;
  Invocation* call_ = nullptr;
  const PlanImage* image_ = nullptr;
  Phase phase_ = Phase::kIdle;
  uint64_t digest_ = 0;
  uint64_t sequence_ = 0;
  int32_t parity_ = 0;
  int32_t next_peer_ = 0;
  bool opened_ = false;
  bool saw_abort_ = false;
  bool streams_ = false;
  uint32_t reduce_flags_ = 0;
  int64_t block_elements_ = 0;
  int64_t looked_at_ = 0;
  int64_t stalled_nanoseconds_ = 0;
  int32_t lanes_left_ = 0;
  double derived_[kMaxScalars] = {};
  std::vector<char*> sources_;
  std::vector<char*> results_;
  std::vector<LaneState> lanes_;
  std::vector<cocoll_array> views_;
};

}  // namespace cocoll::host

#endif  // COCOLL_HOST_INTERPRETER_H_
