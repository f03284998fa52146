// Runs packed plans: opening, arrival, then all lanes as coroutines on one thread.

#ifndef COCOLL_HOST_INTERPRETER_H_
#define COCOLL_HOST_INTERPRETER_H_

#include <algorithm>
#include <cstring>
#include <vector>

#include "copy.h"
#include "endpoint.h"
#include "invocation.h"
#include "messages.h"
#include "recording.h"

namespace cocoll::host {

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

  Recording recording;

  Status begin(Invocation* invocation) {
    call_ = invocation;
    phase_ = Phase::kIdle;
    sequence_ = endpoint_.sequence;
    endpoint_.culprit = -1;
    endpoint_.detail.clear();
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
    decided_ = false;
    if (recording.is_on()) began_ = monotonic_nanoseconds();
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
      phase_ = Phase::kAgreeing;
      progressed();
    }
    if (phase_ == Phase::kAgreeing) {
      if (endpoint_.spans_hosts()) {
        const Status status = await_hosts();
        if (status != Status::kDone) return finish(status);
      }
      const Status agreed = agree();
      if (agreed != Status::kDone) return finish(agreed);
      phase_ = Phase::kLanes;
      if (recording.is_on()) note(kArrivalTime, 0, 0, began_);
      progressed();
    }
    const Status status = run_lanes();
    if (status == Status::kDone && image_ == &call_->program->staged &&
        (call_->reduce_flags & COCOLL_REDUCE_ZERO_SOURCES) != 0)
      memset(call_->source.data, 0, static_cast<size_t>(call_->source_bytes));
    return finish(status);
  }

  // Gives up an operation that has begun and not ended; nobody resumes it.
  void give_up() {
    if (phase_ == Phase::kIdle) return;
    drop_messages();
    phase_ = Phase::kIdle;
    waiter_.progressed();
  }

  uint64_t sequence() const { return sequence_; }

 private:
  // What one look for failures adds to the time that counts as waiting, at most.
  static constexpr int64_t kLongestLook = 1000000000;

  enum class Phase { kIdle, kArriving, kAgreeing, kLanes };

  struct LaneState {
    const Record* loop;  // the LOOP record being run, then the one after the lane's last
    const Record* step;
    const Record* body_end;
    int32_t loops_left;
    int64_t iteration;
    int64_t end;
    int64_t progress;  // one past the last iteration completed
    int32_t in_flight;
    Messages* messages;  // of a plan that has any
    bool exhausted;      // every step has begun
    bool finished;       // and ended
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
    for (const int32_t peer : endpoint_.neighbours) {
      Control* control = endpoint_.peers[static_cast<size_t>(peer)].control;
      if (peer != endpoint_.rank && control->sleepers.load(std::memory_order_seq_cst) != 0)
        ring(control);
    }
  }

  Status await_arrivals() {
    for (;;) {
      while (next_peer_ < endpoint_.neighbours.size() &&
             (awaited_neighbour() == endpoint_.rank ||
              line(awaited_neighbour()).sequence.load(std::memory_order_seq_cst) == sequence_))
        ++next_peer_;
      if (next_peer_ == endpoint_.neighbours.size()) return Status::kDone;
      const Status status = wait();
      if (status != Status::kDone) return status;
    }
  }

  int32_t awaited_neighbour() const { return endpoint_.neighbours[next_peer_]; }

  bool neighbours_agree() const {
    for (const int32_t peer : endpoint_.neighbours)
      if (line(peer).digest != digest_) return false;
    return true;
  }

  // Waits for the verdict of all hosts; the first rank of a host brings it about.
  Status await_hosts() {
    Control* leader = endpoint_.peers[static_cast<size_t>(endpoint_.leader())].control;
    const bool leads = endpoint_.rank == endpoint_.leader();
    if (leads && !decided_ && endpoint_.agreement.idle()) {
      Program& program = *call_->program;
      const bool mapped = program.has_mapped && resolve_peers(program.mapped);
      const AgreementLine asked{sequence_, digest_, neighbours_agree(), mapped};
      if (!endpoint_.agreement.begin(asked, endpoint_.own(), endpoint_.controls()))
        return wire_failed(endpoint_.agreement.awaited());
    }
    for (;;) {
      if (leads && !decided_) {
        const Wire::Outcome outcome = endpoint_.agreement.advance();
        if (outcome == Wire::Outcome::kFailed) return wire_failed(endpoint_.agreement.awaited());
        if (outcome == Wire::Outcome::kDone) {
          decided_ = true;
          const AgreementLine& line = endpoint_.agreement.line();
          leader->verdict.store(pack_verdict(sequence_, line.agrees != 0, line.mapped != 0),
                                std::memory_order_seq_cst);
          for (const int32_t peer : endpoint_.neighbours) {
            Control* control = endpoint_.peers[static_cast<size_t>(peer)].control;
            if (control->sleepers.load(std::memory_order_seq_cst) != 0) ring(control);
          }
        }
      }
      verdict_ = leader->verdict.load(std::memory_order_seq_cst);
      if (verdict_ >> 2 == sequence_ + 1) return Status::kDone;
      const Status status = wait(leads);
      if (status != Status::kDone) return status;
    }
  }

  Status wire_failed(int32_t peer) {
    endpoint_.culprit = peer;
    endpoint_.detail = endpoint_.wire->error();
    return Status::kPeerLost;
  }

  // Reads all lines: do the ranks agree, and which variant serves all of them?
  Status agree() {
    if (endpoint_.spans_hosts() ? (verdict_ & kAgreed) == 0 : !neighbours_agree())
      return Status::kMismatch;
    Program& program = *call_->program;
    if (program.has_mapped) {
      bool all = resolve_peers(program.mapped);
      if (endpoint_.spans_hosts()) all = (verdict_ & kAllMapped) != 0;
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
    const bool has_messages = image_->uses_wire();
    if (has_messages && messages_.size() < lanes.size()) messages_.resize(lanes.size());
    for (size_t index = 0; index < lanes.size(); ++index) {
      lanes_[index] = start(lanes[index]);
      if (has_messages) lanes_[index].messages = &messages_[index];
      if (!lanes_[index].finished) ++lanes_left_;
    }
    return Status::kDone;
  }

  bool resolve_peers(const PlanImage& image) {
    const int32_t result_count = call_->program->result_count;
    for (const int32_t peer : endpoint_.neighbours) {
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
    const int64_t writers = static_cast<int64_t>(endpoint_.neighbours.size());
    if (call_->source_bytes * writers <= streaming_bytes) return false;
    for (const int32_t peer : endpoint_.neighbours)
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
    lane.in_flight = span.in_flight;
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
    lane->exhausted = true;
    lane->finished = lane->messages == nullptr || lane->messages->empty();
  }

  int64_t iterations(const Record& loop) const {
    int64_t total = 1;
    const Span span = static_cast<Span>(loop.field[0]);
    if (span == Span::kRange) return loop.field[1] + 1;
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
    const Span span = static_cast<Span>(lane.loop->field[0]);
    if (span == Span::kRange) return {first_element(*lane.loop), lane.loop->x};
    int64_t first = 0;
    int64_t stop = call_->count;
    if (block != kWholeVector) {
      first = std::min(block * block_elements_, call_->count);
      stop = std::min(first + block_elements_, call_->count);
    }
    if (span == Span::kOnce) return {first, stop - first};
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
      case Buffer::kPart:
        return place(call_->parts[view.index()], view, first);
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

  // Runs the lane's next step, or takes note of a message that has ended. False: it would block.
  bool advance(LaneState* lane) {
    const Record* step = lane->step;
    bool ended = false;
    if (lane->messages != nullptr && !lane->messages->empty()) {
      const Wire::Outcome outcome =
          lane->messages->settle(endpoint_.wire.get(), &lane->progress, [&](const auto& message) {
            // The parts before a long message's last one have no place of their own.
            if (recording.is_on() && message.place > 0)
              note(message.place, message.iteration, message.bytes, message.began_nanoseconds);
          });
      if (outcome == Wire::Outcome::kFailed) {
        wire_failed(lane->messages->peer());
        return false;
      }
      ended = outcome == Wire::Outcome::kDone;
      lane->finished = lane->exhausted && lane->messages->empty();
      if (lane->exhausted || !may_begin(*lane)) return ended;
    }
    switch (step->op()) {
      case Opcode::kAfter:
        if (!met(*step, *lane)) return ended;
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
          const int64_t began = recording.is_on() ? monotonic_nanoseconds() : 0;
          const bool to_result = ViewRef{&step[2]}.buffer() == Buffer::kResult;
          copy_array(resolve(step[2], *lane, range.first), resolve(step[1], *lane, range.first),
                     range.count, step[1].field[2], streams_ && to_result);
          if (recording.is_on())
            note(place_of(step), lane->iteration, 2 * range.count * step[1].field[2], began);
        }
        lane->step = step + 3;
        break;
      }
      case Opcode::kSend:
      case Opcode::kReceive:
        if (!begin_message(lane, step)) return false;
        lane->step = step + 2;
        break;
      default:
        reduce(*lane, step);
        lane->step = step + 1 + step->field[1] + step->field[2] * step->field[3] + step->field[4];
    }
    if (lane->step == lane->body_end) {
      ++lane->iteration;
      if (lane->messages == nullptr || lane->messages->empty())
        lane->progress = lane->iteration;
      else
        lane->messages->complete(lane->iteration);
      if (lane->iteration < lane->end) {
        lane->step = lane->loop + 1;
      } else {
        lane->loop = lane->body_end;
        enter_loop(lane);
      }
    }
    return true;
  }

  // Whether the messages under way leave room for the lane's next step: only further messages may
  // begin while there are any. A group counts once it has begun as a whole.
  static bool may_begin(const LaneState& lane) {
    if (lane.messages->empty()) return true;
    const Opcode op = lane.step->op();
    const bool moves = op == Opcode::kAfter || op == Opcode::kSend || op == Opcode::kReceive;
    return moves && lane.messages->steps() < lane.in_flight;
  }

  // Whether the step is alone or the last of what moves as one; groups go on over loops of ranges.
  static bool ends_group(const LaneState& lane) {
    if (lane.step->field[2] == 0) return true;
    const Record* next = lane.step + 2;
    const Record* stop = lane.body_end;
    if (next == stop && lane.loops_left > 0 && is_over_range(*lane.loop) && is_over_range(*stop)) {
      next = stop + 1;
      stop = next + lane.body_end->y;
    }
    while (next != stop && next->op() == Opcode::kAfter) ++next;
    return next == stop || (next->op() != Opcode::kSend && next->op() != Opcode::kReceive) ||
           next->field[2] != lane.step->field[2];
  }

  static bool is_over_range(const Record& loop) {
    return static_cast<Span>(loop.field[0]) == Span::kRange;
  }

  // Whether a chunk is the last of its block; of ranges, whether it is the last of the lane.
  bool reaches_end(const LaneState& lane, int32_t block, const Range& range) const {
    const Span span = static_cast<Span>(lane.loop->field[0]);
    if (span == Span::kOnce) return true;
    if (span == Span::kRange) return lane.loops_left == 0;
    const int64_t stop = block == kWholeVector
                             ? call_->count
                             : std::min((block + 1) * block_elements_, call_->count);
    return range.first + range.count >= stop;
  }

  bool begin_message(LaneState* lane, const Record* step) {
    const Range range = chunk(*lane, step->field[0]);
    const bool last = ends_group(*lane);
    // Both ends know that nothing moves, unless a group still has to be closed.
    if (range.count <= 0) {
      if (last) lane->messages->close_step();
      return true;
    }
    const cocoll_array array = resolve(step[1], *lane, range.first);
    const bool began =
        lane->messages->begin(endpoint_.wire.get(), step->op() == Opcode::kSend, step->field[1],
                              step->field[3], array, range.count, step[1].field[2], last,
                              reaches_end(*lane, step->field[0], range), lane->in_flight / 2);
    if (began && recording.is_on())
      lane->messages->stamp(place_of(step), lane->iteration, monotonic_nanoseconds());
    if (!began) wire_failed(step->field[1]);
    return began;
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
    const bool partial = step->field[5] != 0;
    args.sources = views_.data();
    args.destinations = views_.data() + source_count;
    args.operands = views_.data() + source_count + result_views;
    args.scalars = derived_;
    const int64_t began = recording.is_on() ? monotonic_nanoseconds() : 0;
    // What goes on a wire is read again at once.
    if (partial) args.flags &= ~static_cast<uint32_t>(COCOLL_REDUCE_STREAMING);
    (partial ? call_->program->partial : call_->program->reduce)(&args);
    if (recording.is_on()) {
      int64_t itemsizes = 0;
      for (int32_t index = 0; index < total; ++index) itemsizes += step[1 + index].field[2];
      note(place_of(step), lane.iteration, range.count * itemsizes, began);
    }
  }

  Status run_lanes() {
    while (lanes_left_ > 0) {
      bool moved = false;
      for (LaneState& lane : lanes_) {
        if (lane.finished) continue;
        while (!lane.finished && advance(&lane)) moved = true;
        if (lane.finished) --lanes_left_;
      }
      if (endpoint_.culprit >= 0) return Status::kPeerLost;
      if (moved) {
        progressed();
        continue;
      }
      if (lanes_left_ == 0) break;
      const Status status = wait(has_messages_under_way());
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

  bool has_messages_under_way() const {
    for (const LaneState& lane : lanes_)
      if (lane.messages != nullptr && !lane.messages->empty()) return true;
    return false;
  }

  Status wait(bool polls_wire = false) {
    switch (waiter_.pause(polls_wire)) {
      case Waiter::Verdict::kPoll:
        return Status::kDone;
      case Waiter::Verdict::kCheck:
        return look_for_failure();
      default:
        return Status::kPending;
    }
  }

  // Calls `visit(peer, flag)` for everyone that this rank waits for now; see Awaited.
  template <class Visit>
  void for_each_awaited(Visit visit) const {
    if (phase_ == Phase::kArriving) {
      for (size_t index = next_peer_; index < endpoint_.neighbours.size(); ++index) {
        const int32_t peer = endpoint_.neighbours[index];
        if (peer != endpoint_.rank &&
            line(peer).sequence.load(std::memory_order_seq_cst) != sequence_)
          visit(peer, kAwaitsArrival);
      }
      return;
    }
    if (phase_ == Phase::kAgreeing) {
      if (endpoint_.rank == endpoint_.leader())
        visit(endpoint_.agreement.awaited(), kAwaitsHost);
      else
        visit(endpoint_.leader(), kAwaitsVerdict);
      return;
    }
    for (const LaneState& lane : lanes_) {
      if (lane.finished) continue;
      if (lane.messages != nullptr && !lane.messages->empty())
        visit(lane.messages->peer(), kAwaitsMessage);
      else if (lane.step->op() == Opcode::kWait)
        visit(lane.step->field[0], lane.step->field[1]);
    }
  }

  Status look_for_failure() {
    // What a peer published before it gave up may still complete this operation, so only a second
    // look without progress in between ends it.
    endpoint_.look_for_notice();
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
      // Who gives up leaves right after: once that is known, its going is no news.
      if (status == Status::kDone && !saw_abort_ && endpoint_.lost(peer)) {
        endpoint_.culprit = peer;
        status = Status::kPeerLost;
      }
    });
    if (status != Status::kDone) return status;
    if (stalled_nanoseconds_ < endpoint_.timeout_nanoseconds) return Status::kDone;
    endpoint_.culprit = first;
    return Status::kTimeout;
  }

  int32_t place_of(const Record* step) const { return image_->place_of(step); }

  void note(int32_t step, int64_t iteration, int64_t bytes, int64_t began) {
    recording.add({sequence_, call_->program->number, began, monotonic_nanoseconds(), iteration,
                   bytes, step, image_ == &call_->program->mapped});
  }

  Status finish(Status status) {
    if (status == Status::kPending) return status;
    if (recording.is_on()) note(kWholeOperation, call_->count, call_->source_bytes, began_);
    // Whoever gives up says so at once, so that no peer waits for a rank that will not come.
    if (status == Status::kTimeout) endpoint_.abort(AbortReason::kTimeout, endpoint_.culprit);
    if (status == Status::kPeerLost) endpoint_.abort(AbortReason::kPeerLost, endpoint_.culprit);
    if (status != Status::kDone && status != Status::kMismatch) drop_messages();
    phase_ = Phase::kIdle;
    waiter_.progressed();
    // A failed operation leaves what it waited for on record.
    if (status == Status::kDone) endpoint_.own()->waiting_rank.store(-1, std::memory_order_relaxed);
    const FlightState state = status == Status::kDone ? FlightState::kDone : FlightState::kFailed;
    endpoint_.own()->flight[sequence_ % kFlightRecords].state.store(static_cast<uint8_t>(state),
                                                                    std::memory_order_release);
    return status;
  }

  // Takes back what is under way, so that no message touches arrays that go back to the caller.
  void drop_messages() {
    if (!endpoint_.spans_hosts()) return;
    bool dropped = endpoint_.agreement.drop();
    for (Messages& messages : messages_) dropped &= messages.drop(endpoint_.wire.get());
    if (dropped) return;
    endpoint_.abandoned = true;
    new auto(std::move(messages_));
  }

  Endpoint& endpoint_;
  Waiter waiter_;
  Invocation* call_ = nullptr;
  const PlanImage* image_ = nullptr;
  Phase phase_ = Phase::kIdle;
  uint64_t digest_ = 0;
  uint64_t sequence_ = 0;
  int32_t parity_ = 0;
  size_t next_peer_ = 0;  // of the neighbours
  bool decided_ = false;
  uint64_t verdict_ = 0;
  bool opened_ = false;
  bool saw_abort_ = false;
  bool streams_ = false;
  uint32_t reduce_flags_ = 0;
  int64_t block_elements_ = 0;
  int64_t began_ = 0;
  int64_t looked_at_ = 0;
  int64_t stalled_nanoseconds_ = 0;
  int32_t lanes_left_ = 0;
  double derived_[kMaxScalars] = {};
  std::vector<char*> sources_;
  std::vector<char*> results_;
  std::vector<LaneState> lanes_;
  std::deque<Messages> messages_;  // by lane; what is under way does not move
  std::vector<cocoll_array> views_;
};

}  // namespace cocoll::host

#endif  // COCOLL_HOST_INTERPRETER_H_
