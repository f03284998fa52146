// One rank's end of a communicator on one host: its peers, its counters, and what it waits for.

#ifndef COCOLL_HOST_ENDPOINT_H_
#define COCOLL_HOST_ENDPOINT_H_

#include <errno.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "agreement.h"
#include "arena.h"
#include "control.h"
#include "mailbox.h"
#include "regions.h"
#include "wait.h"

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

namespace cocoll::host {

enum class Status : int32_t {
  kDone = 0,
  kPending = 1,   // call resume() again; Python looks for signals in between
  kMismatch = 2,  // ranks asked for different operations; nothing has moved
  kTimeout = 3,
  kPeerLost = 4,
  kAborted = 5,
  kNotPrepared = 6,  // the program has no variant for what the ranks brought
};

// What a rank waits for besides flags, which are not negative.
enum Awaited : int32_t {
  kAwaitsArrival = -1,
  kAwaitsHost = -2,     // the word of another host
  kAwaitsVerdict = -3,  // that of the first rank of this one
  kAwaitsMessage = -4,
  kAwaitsReceiver = -5,  // of a message to another rank
  kAwaitsSender = -6,
};

struct Peer {
  Segment* segment = nullptr;
  char* base = nullptr;
  Control* control = nullptr;
  int pidfd = -1;  // -1: a rank of this process, or a kernel without pidfd
};

class Endpoint {
 public:
  Endpoint(int32_t rank, int32_t world_size, const ScratchSizes& sizes, bool oversubscribed,
           int64_t timeout_nanoseconds)
      : rank(rank),
        world_size(world_size),
        sizes(sizes),
        regions(world_size, sizes),
        policy(make_wait_policy(oversubscribed)),
        timeout_nanoseconds(timeout_nanoseconds),
        peers(static_cast<size_t>(world_size)),
        neighbours(static_cast<size_t>(world_size)),
        signalled_(static_cast<size_t>(world_size) * kFlagCount, 0),
        awaited_(static_cast<size_t>(world_size) * kFlagCount, 0),
        suspects_(static_cast<size_t>(world_size), 0) {
    for (int32_t peer = 0; peer < world_size; ++peer) neighbours[static_cast<size_t>(peer)] = peer;
  }

  ~Endpoint() {
    drop_notices();
    for (Peer& peer : peers) {
      if (peer.pidfd >= 0) ::close(peer.pidfd);
      if (peer.segment != nullptr && !abandoned) peer.segment->release();
    }
    if (commons != nullptr && !abandoned) commons->release();
  }
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  // Makes this rank's segment and its control page. Gives 0 or an errno.
  int create_segment(size_t reserved_bytes, uint64_t token) {
    Segment* segment = Segment::create(reserved_bytes);
    if (segment == nullptr) return errno;
    adopt(rank, segment);
    const int error = segment->grow(static_cast<size_t>(regions.heap));
    if (error != 0) return error;
    Control* control = own();
    control->version = kControlVersion;
    control->rank = rank;
    control->world_size = world_size;
    control->pid = static_cast<int32_t>(getpid());
    control->token = token;
    control->waiting_rank.store(-1);
    // Sequences start at 0, so an unwritten line must not look like an arrival.
    for (ArrivalLine& line : control->lines) line.sequence.store(kNoSequence);
    control->state.store(static_cast<uint32_t>(RankState::kPresent));
    control->magic = kControlMagic;
    return 0;
  }

  // Maps a peer's segment. Gives 0, an errno, or ENOENT where it is not on this host.
  int attach_segment(int32_t peer, const SegmentTicket& ticket) {
    Segment* segment = Segment::attach(ticket);
    if (segment == nullptr) return errno;
    // What the page says must be what the peer wrote: on another host the same process and file
    // numbers may name somebody else's.
    const Control* control = reinterpret_cast<const Control*>(segment->base());
    if (control->magic != kControlMagic || control->version != kControlVersion ||
        control->rank != peer || control->token != own()->token) {
      segment->release();
      return EPROTO;
    }
    adopt(peer, segment);
    if (ticket.process != process_token()) {
      // Without pidfd (Linux < 5.3) a death is found by the timeout alone.
      peers[peer].pidfd = static_cast<int>(syscall(SYS_pidfd_open, ticket.pid, 0));
    }
    return 0;
  }

  // Forgets what was mapped of a peer: it is on another host after all.
  void detach_segment(int32_t peer) {
    Peer& entry = peers[static_cast<size_t>(peer)];
    if (entry.pidfd >= 0) ::close(entry.pidfd);
    if (entry.segment != nullptr) entry.segment->release();
    entry = Peer();
  }

  // --- Several hosts. ---

  // `hosts[r]`: the number of the host of rank r, counted in the order of their first ranks.
  void connect(const std::vector<int32_t>& hosts, std::shared_ptr<Wire> carrier) {
    host_of = hosts;
    wire = std::move(carrier);
    const int32_t host = hosts[static_cast<size_t>(rank)];
    std::vector<std::vector<int32_t>> members;
    std::vector<int32_t> leaders;
    for (int32_t peer = 0; peer < world_size; ++peer) {
      const size_t theirs = static_cast<size_t>(hosts[static_cast<size_t>(peer)]);
      if (theirs == members.size()) {
        members.emplace_back();
        leaders.push_back(peer);
      }
      members[theirs].push_back(peer);
    }
    neighbours = members[static_cast<size_t>(host)];
    controls_.resize(peers.size());
    for (size_t peer = 0; peer < peers.size(); ++peer) controls_[peer] = peers[peer].control;
    agreement.connect(wire.get(), host, std::move(leaders), std::move(members));
    expect_notice();
  }

  bool spans_hosts() const { return wire != nullptr; }
  // The first rank of this host, which speaks for it.
  int32_t leader() const { return neighbours.front(); }
  const std::vector<Control*>& controls() const { return controls_; }

  Control* own() const { return peers[static_cast<size_t>(rank)].control; }

  char* region(int32_t peer, int64_t offset_bytes) const {
    return peers[static_cast<size_t>(peer)].base + offset_bytes;
  }

  MailboxRegion mailboxes(int32_t of) const { return {region(of, regions.mailboxes), world_size}; }

  // The reference under which peers find memory of this rank, or kNotMapped.
  uint64_t reference(const void* data, int64_t bytes) const {
    const char* start = static_cast<const char*>(data);
    const Segment* mine = peers[static_cast<size_t>(rank)].segment;
    if (start >= mine->base() + regions.heap &&
        start + bytes <= mine->base() + mine->reserved_bytes())
      return static_cast<uint64_t>(start - mine->base());
    if (commons != nullptr && start >= commons->base() &&
        start + bytes <= commons->base() + commons->reserved_bytes())
      return static_cast<uint64_t>(start - commons->base()) | kReplicatedBit;
    return kNotMapped;
  }

  char* resolve(int32_t peer, uint64_t reference) const {
    if (reference & kReplicatedBit) return commons->base() + (reference & ~kReplicatedBit);
    return peers[static_cast<size_t>(peer)].base + reference;
  }

  // --- Flags. Plans hold ordinals; the counters here are their base. ---

  void signal(int32_t peer, int32_t flag) {
    Control* control = peers[static_cast<size_t>(peer)].control;
    const uint32_t count = ++signalled_[counter(peer, flag)];
    publish(&control->flags()[rank * kFlagCount + flag].count, count, control);
  }

  // Takes the next signal if it has come.
  bool take(int32_t peer, int32_t flag) {
    uint32_t& count = awaited_[counter(peer, flag)];
    const uint32_t seen =
        own()->flags()[peer * kFlagCount + flag].count.load(std::memory_order_seq_cst);
    if (static_cast<int32_t>(seen - (count + 1)) < 0) return false;
    ++count;
    return true;
  }

  // --- Failure. ---

  void abort(AbortReason reason, int32_t culprit) {
    const uint64_t word = pack_abort(culprit, sequence, reason);
    if (set_abort(word)) send_notices(word);
  }

  // Looks whether another host has given up.
  void look_for_notice() {
    // A rank may leave on one thread while an operation runs on another.
    std::lock_guard<std::mutex> lock(notice_mutex_);
    if (wire == nullptr || !expecting_) return;
    const Wire::Outcome outcome = wire->test(&notice_request_);
    if (outcome == Wire::Outcome::kPending) return;
    expecting_ = false;
    if (outcome == Wire::Outcome::kDone) set_abort(*notice_);
  }

  // Says to everyone that this rank takes part no more.
  void leave() {
    drop_notices();
    own()->state.store(static_cast<uint32_t>(RankState::kLeft), std::memory_order_seq_cst);
    for (const Peer& peer : peers)
      if (peer.control != nullptr) ring(peer.control);
  }

  // Says that this rank has no part in what the others do without those that were lost.
  void part() {
    own()->survival().parted.store(1, std::memory_order_seq_cst);
    for (const Peer& peer : peers)
      if (peer.control != nullptr) ring(peer.control);
  }

  // Whether the process of a rank of this host has ended.
  bool has_died(int32_t peer) const {
    const Peer& entry = peers[static_cast<size_t>(peer)];
    if (entry.pidfd < 0) return false;
    pollfd event{entry.pidfd, POLLIN, 0};
    return poll(&event, 1, 0) == 1;
  }

  // Whether the process that started this rank has died: a launcher that was killed ends no rank
  // that does not ask.
  bool orphaned() const { return launcher_pid != 0 && getppid() != launcher_pid; }

  uint64_t abort_word() const { return own()->abort.load(std::memory_order_acquire); }
  const void* abort_address() const { return &own()->abort; }

  // Whether a rank that this one waits for is gone. What it published before it went is visible
  // after it is seen to be gone, so a rank is lost only when a poll after the sighting still fails.
  bool lost(int32_t peer) {
    // Of a rank on another host the wire tells, or the timeout.
    if (peers[static_cast<size_t>(peer)].control == nullptr) return false;
    const bool gone = has_gone(peer);
    const bool before = suspects_[static_cast<size_t>(peer)] != 0;
    suspects_[static_cast<size_t>(peer)] = gone;
    return gone && before;
  }

  static constexpr uint64_t kNoSequence = ~uint64_t{0};

  const int32_t rank;
  const int32_t world_size;
  const ScratchSizes sizes;
  const Regions regions;
  WaitPolicy policy;  // may be changed until the first operation
  int64_t timeout_nanoseconds;
  std::vector<Peer> peers;
  int32_t launcher_pid = 0;         // 0: nobody whose end is this rank's
  Segment* commons = nullptr;       // memory of which the host has one copy
  uint64_t sequence = 0;            // of the next operation
  std::string detail;               // what the wire said of that
  bool abandoned = false;           // a message may still move: all memory must stay
  int32_t culprit = -1;             // who made the last operation fail
  std::vector<int32_t> neighbours;  // the ranks of this host, this one included
  std::vector<int32_t> host_of;     // by rank; empty where there is one host
  std::shared_ptr<Wire> wire;       // to other hosts; none where there are none
  Agreement agreement;              // of the first rank of a host

 private:
  size_t counter(int32_t peer, int32_t flag) const {
    return static_cast<size_t>(peer) * kFlagCount + static_cast<size_t>(flag);
  }

  // Gives whether nobody had given up before.
  bool set_abort(uint64_t word) {
    bool first = false;
    for (const Peer& peer : peers) {
      if (peer.control == nullptr) continue;
      uint64_t none = 0;
      if (peer.control->abort.compare_exchange_strong(none, word) && peer.control == own())
        first = true;
      ring(peer.control);
    }
    return first;
  }

  void expect_notice() {
    if (wire != nullptr)
      expecting_ =
          wire->receive(kAnyRank, kAbortTag, notice_.get(), sizeof *notice_, &notice_request_);
  }

  // Tells every rank of the other hosts; whoever waits there finds out by itself.
  void send_notices(uint64_t word) {
    if (wire == nullptr) return;
    std::lock_guard<std::mutex> lock(notice_mutex_);
    if (!notices_.empty()) return;
    *told_ = word;
    notices_.reserve(peers.size());
    for (int32_t peer = 0; peer < world_size; ++peer) {
      if (peers[static_cast<size_t>(peer)].control != nullptr) continue;
      notices_.push_back(0);
      if (!wire->send(peer, kAbortTag, told_.get(), sizeof *told_, false, &notices_.back())) {
        notices_.pop_back();
        return;
      }
    }
    // Small messages leave at once; what has not is looked after a while longer.
    for (int look = 0; look < kLooksAtNotices; ++look)
      for (WireRequest& request : notices_)
        if (request != 0 && wire->test(&request) != Wire::Outcome::kPending) request = 0;
  }

  void drop_notices() {
    if (wire == nullptr) return;
    std::lock_guard<std::mutex> lock(notice_mutex_);
    bool dropped = !expecting_ || wire->cancel(&notice_request_, true);
    expecting_ = false;
    for (WireRequest& request : notices_)
      if (request != 0) dropped &= wire->cancel(&request, false);
    notices_.clear();
    if (dropped) return;
    // What could not be taken back may still move: its memory stays for good.
    (void)notice_.release();
    (void)told_.release();
    notice_ = std::make_unique<uint64_t>(0);
    told_ = std::make_unique<uint64_t>(0);
  }

  void adopt(int32_t peer, Segment* segment) {
    Peer& entry = peers[static_cast<size_t>(peer)];
    entry.segment = segment;
    entry.base = segment->base();
    entry.control = reinterpret_cast<Control*>(segment->base());
  }

  bool has_gone(int32_t peer) const {
    const Peer& entry = peers[static_cast<size_t>(peer)];
    return entry.control->state.load(std::memory_order_seq_cst) ==
               static_cast<uint32_t>(RankState::kLeft) ||
           has_died(peer);
  }

  static constexpr int kLooksAtNotices = 100;

  std::vector<Control*> controls_;
  bool expecting_ = false;
  std::mutex notice_mutex_;
  std::unique_ptr<uint64_t> notice_ = std::make_unique<uint64_t>(0);
  std::unique_ptr<uint64_t> told_ = std::make_unique<uint64_t>(0);
  WireRequest notice_request_ = 0;
  std::vector<WireRequest> notices_;
  std::vector<uint32_t> signalled_;
  std::vector<uint32_t> awaited_;
  std::vector<char> suspects_;
};

}  // namespace cocoll::host

#endif  // COCOLL_HOST_ENDPOINT_H_
