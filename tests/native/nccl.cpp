// The emulated NCCL, of which tests of what uses it must be able to say that it does as NCCL does.
//
//   nccl LIBRARY WORLD_SIZE SEED threads|processes MODE
//   MODE: messages, collectives, order, split, graph, disagreement, late, refusal,
//   misuse, memory

#include "cocoll/cuda/nccl.h"

#include <unistd.h>

#include <atomic>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "checks.h"
#include "launch.h"
#include "nccl_collectives.h"

namespace {

namespace cuda = cocoll::cuda;
using namespace cocoll::native_tests;

constexpr int kGlobalCapture = 0;
constexpr int kThreadsOwnCapture = 1;
constexpr int kRelaxedCapture = 2;
constexpr int kInvalidated = 901;

class Rank : public NcclCollectives {
 public:
  Rank(const Options& options, Lobby* lobby, int rank)
      : NcclCollectives(options, lobby, rank),
        random_(options.seed * 31 + static_cast<unsigned>(rank)) {}

  void run() {
    start();
    if (options_.mode == "refusal") {
      refuse();
    } else if (options_.mode == "disagreement") {
      disagree();
    } else if (options_.mode == "late") {
      for (const bool blocks : {true, false}) come_late(blocks);
      for (const bool blocks : {true, false}) never_come(blocks);
    } else {
      cuda::NcclCommunicator comm = connect();
      if (options_.mode == "messages") exchange(comm);
      if (options_.mode == "collectives") reduce_all(comm);
      if (options_.mode == "order") keep_order(comm);
      if (options_.mode == "split") split(comm);
      if (options_.mode == "graph") replay(comm);
      if (options_.mode == "misuse") {
        capture_wrongly();
        use_wrongly(comm);
        destroy_too_early();
      }
      if (options_.mode == "memory") look_at_memory();
      CHECK_NCCL(nccl_.comm_destroy(comm));
    }
    finish();
  }

 private:
  // Messages of all sizes to all ranks at once, its own included, several between each two.
  void exchange(cuda::NcclCommunicator comm) {
    const size_t sizes[] = {0, 1, 100, 65536, 300001};
    const size_t most = 300001, ranks = static_cast<size_t>(world_size_);
    Array<unsigned char> from(&driver_, most), to(&driver_, most * ranks * 2);
    for (const size_t size : sizes) {
      for (size_t i = 0; i < most; ++i) from.host[i] = byte_of(rank_, i + size);
      from.put(streams_[0]);
      CHECK_NCCL(nccl_.group_start());
      for (int peer = 0; peer < world_size_; ++peer) {
        const size_t place = most * 2 * static_cast<size_t>(peer);
        CHECK_NCCL(nccl_.send(from.device, size, 0, peer, comm, streams_[0]));
        CHECK_NCCL(nccl_.receive(to.at(place), size, 0, peer, comm, streams_[0]));
        CHECK_NCCL(nccl_.group_start());  // another one inside makes no difference
        CHECK_NCCL(nccl_.receive(to.at(place + most), size / 2, 1, peer, comm, streams_[0]));
        CHECK_NCCL(nccl_.send(from.device, size / 2, 0, peer, comm, streams_[0]));
        CHECK_NCCL(nccl_.group_end());
      }
      CHECK_NCCL(nccl_.group_end());
      to.get(streams_[0]);
      synchronize();
      for (size_t place = 0; place < to.host.size(); ++place) {
        const size_t index = place % most;
        const bool is_second = place / most % 2 == 1;
        if (index >= (is_second ? size / 2 : size)) continue;
        const int peer = static_cast<int>(place / most / 2);
        const int got = to.host[place], wanted = byte_of(peer, index + size);
        EXPECT(got == wanted, "from %d, byte %zu of %zu: %d, not %d", peer, index, size, got,
               wanted);
      }
    }
  }

  static unsigned char byte_of(int rank, size_t index) {
    return static_cast<unsigned char>(index * 31 + index / 256 + static_cast<size_t>(rank) * 77);
  }

  // Operations on streams that nothing else orders, which are not the same on all ranks.
  void keep_order(cuda::NcclCommunicator comm) {
    constexpr size_t kCount = 5000;
    constexpr int kOperations = 12;
    Array<float> array(&driver_, kCount);
    for (size_t i = 0; i < kCount; ++i) array.host[i] = static_cast<float>(i % 5);
    array.put(streams_[0]);
    synchronize();
    for (int which = 0; which < kOperations; ++which) {
      const cuda::Stream stream = streams_[random_() % 2];
      CHECK_NCCL(
          nccl_.all_reduce(array.device, array.device, kCount, kFloat32, kSum, comm, stream));
      CHECK_NCCL(nccl_.group_start());
      const int next = (rank_ + 1) % world_size_, last = (rank_ + world_size_ - 1) % world_size_;
      CHECK_NCCL(nccl_.send(array.device, 3, kFloat32, next, comm, stream));
      CHECK_NCCL(nccl_.receive(array.at(4000), 3, kFloat32, last, comm, stream));
      CHECK_NCCL(nccl_.group_end());
    }
    synchronize();
    array.get(streams_[0]);
    synchronize();
    float factor = 1;
    for (int which = 0; which < kOperations; ++which) factor *= static_cast<float>(world_size_);
    for (size_t i = 0; i < kCount; ++i) {
      const size_t index = i >= 4000 && i < 4003 ? i - 4000 : i;
      const float wanted = static_cast<float>(index % 5) * factor;
      EXPECT(array.host[i] == wanted, "element %zu", i);
    }
  }

  void split(cuda::NcclCommunicator comm) {
    for (int round = 0; round < 5; ++round) {
      // The last rank is in none; the others in two, in the opposite order.
      const bool is_last = rank_ == world_size_ - 1;
      const int color = is_last ? -1 : rank_ % 2;
      cuda::NcclCommunicator part = nullptr;
      CHECK_NCCL(extras_.split(comm, color, -rank_, &part, nullptr));
      EXPECT((part == nullptr) == is_last, "rank %d", rank_);
      Array<int> ranks(&driver_, static_cast<size_t>(world_size_));
      // Of two communicators in one group, on two streams.
      CHECK_NCCL(nccl_.group_start());
      ranks.host[static_cast<size_t>(rank_)] = rank_;
      ranks.put(streams_[1]);
      const cuda::DevicePointer mine = ranks.at(static_cast<size_t>(rank_));
      CHECK_NCCL(nccl_.all_gather(mine, ranks.device, 1, 2, comm, streams_[1]));
      if (is_last) {
        CHECK_NCCL(nccl_.group_end());
        synchronize();
        continue;
      }
      std::vector<int> members;
      for (int peer = world_size_ - 2; peer >= 0; --peer) {
        if (peer % 2 == color) members.push_back(peer);
      }
      Array<int> array(&driver_, members.size());
      for (size_t place = 0; place < members.size(); ++place) {
        if (members[place] != rank_) continue;
        array.host[place] = rank_;
        array.put(streams_[0]);
        CHECK_NCCL(nccl_.all_gather(array.at(place), array.device, 1, 2, part, streams_[0]));
      }
      CHECK_NCCL(nccl_.group_end());
      array.get(streams_[0]);
      ranks.get(streams_[1]);
      synchronize();
      EXPECT(array.host == members, "rank %d", rank_);
      for (int peer = 0; peer < world_size_; ++peer) {
        EXPECT(ranks.host[static_cast<size_t>(peer)] == peer, "rank %d", rank_);
      }
      CHECK_NCCL(nccl_.comm_destroy(part));
    }
  }

  // A graph that forks to another stream and joins, with NCCL on both, between operations outside.
  void replay(cuda::NcclCommunicator comm) {
    constexpr size_t kCount = 3000;
    constexpr int kReplays = 40;
    Array<float> x(&driver_, kCount), sum(&driver_, kCount), last(&driver_, kCount);
    Array<unsigned> words(&driver_, kCount);
    const auto [main, side] = streams_;
    cuda::Event forks, joins;
    CHECK(driver_.event_create(&forks, cuda::kEventDisableTiming));
    CHECK(driver_.event_create(&joins, cuda::kEventDisableTiming));
    void* graph = nullptr;
    int status = cuda::kCaptureNone;
    CHECK(extras_.begin(main, kThreadsOwnCapture));
    x.put(main);
    CHECK(driver_.event_record(forks, main));
    CHECK(driver_.stream_wait_event(side, forks, 0));
    CHECK(driver_.stream_is_capturing(side, &status));
    EXPECT(status == cuda::kCaptureActive, "%d", status);
    CHECK(extras_.clear_words(words.device, 0x01020304, kCount, side));
    CHECK_NCCL(nccl_.all_reduce(x.device, sum.device, kCount, kFloat32, kSum, comm, side));
    const int before = (rank_ + world_size_ - 1) % world_size_;
    pass_on(x.device, last.device, kCount, comm, main);
    CHECK(driver_.event_record(joins, side));
    CHECK(driver_.stream_wait_event(main, joins, 0));
    sum.get(main);
    last.get(main);
    words.get(main);
    CHECK(extras_.end(main, &graph));
    CHECK(driver_.stream_is_capturing(side, &status));
    EXPECT(status == cuda::kCaptureNone, "%d", status);
    Array<float> other(&driver_, 1);
    for (int round = 0; round < kReplays; ++round) {
      for (size_t i = 0; i < kCount; ++i) x.host[i] = value_of(rank_, round, i);
      std::fill(words.host.begin(), words.host.end(), 0);
      other.host[0] = 1;
      other.put(side);
      CHECK(extras_.launch(graph, main));
      // Behind the graph's, on another stream.
      CHECK_NCCL(nccl_.all_reduce(other.device, other.device, 1, kFloat32, kSum, comm, side));
      other.get(side);
      synchronize();
      EXPECT(other.host[0] == static_cast<float>(world_size_), "round %d", round);
      for (size_t i = 0; i < kCount; ++i) {
        float wanted = 0;
        for (int peer = 0; peer < world_size_; ++peer) wanted += value_of(peer, round, i);
        EXPECT(sum.host[i] == wanted, "sum %zu of round %d", i, round);
        EXPECT(last.host[i] == value_of(before, round, i), "last %zu of round %d", i, round);
        EXPECT(words.host[i] == 0x01020304, "word %zu of round %d", i, round);
      }
    }
    CHECK(extras_.destroy(graph));
    CHECK(driver_.event_destroy(forks));
    CHECK(driver_.event_destroy(joins));
  }

  static float value_of(int rank, int round, size_t index) {
    return static_cast<float>((index * 3 + static_cast<size_t>(rank * 17 + round)) % 64);
  }

  // From each rank to the next.
  void pass_on(cuda::DevicePointer from, cuda::DevicePointer to, size_t count,
               cuda::NcclCommunicator comm, cuda::Stream stream,
               cuda::NcclResult wanted = cuda::kNcclSuccess) {
    CHECK_NCCL(nccl_.group_start());
    const int next = (rank_ + 1) % world_size_, before = (rank_ + world_size_ - 1) % world_size_;
    CHECK_NCCL(nccl_.send(from, count, kFloat32, next, comm, stream));
    CHECK_NCCL(nccl_.receive(to, count, kFloat32, before, comm, stream));
    const cuda::NcclResult result = nccl_.group_end();
    EXPECT(result == wanted, "%d", result);
  }

  // Rank 0 comes later than the others to all that needs the hosts of all.
  void come_late(bool blocks) {
    const bool is_late = rank_ == 0;
    const cuda::Stream stream = streams_[0];
    const int in_progress = cuda::kNcclInProgress;
    const int first = blocks || world_size_ == 1 ? cuda::kNcclSuccess : in_progress;
    cuda::NcclCommunicator comm = nullptr;
    if (blocks) comm = connect();
    if (!blocks) {
      meet_with_id();
      if (is_late) meet();
      EXPECT(begin_to_connect(&comm) == in_progress && comm != nullptr, "rank %d", rank_);
      if (!is_late) wait_in_progress(comm);
      settle(comm);
    }
    Array<float> x(&driver_, 2);
    x.host = {1, 0};
    x.put(stream);
    synchronize();
    meet();
    const auto reduce = [&] {
      return nccl_.all_reduce(x.device, x.device, 1, kFloat32, kSum, comm, stream);
    };
    if (is_late) {
      if (!blocks) meet();
      usleep(20000);
      lobby_->came.fetch_add(1);
    }
    EXPECT(reduce() == first, "rank %d", rank_);
    if (blocks) EXPECT(lobby_->came.load() == 1, "rank %d", rank_);
    if (!blocks && !is_late) {
      CHECK(driver_.stream_query(stream));  // nothing was queued
      expect_fault(reduce(), 4);
      wait_in_progress(comm);
    }
    settle(comm);
    CHECK_NCCL(reduce());  // the connections are there
    void* graph = nullptr;
    CHECK(extras_.begin(stream, kThreadsOwnCapture));
    pass_on(x.device, x.at(1), 1, comm, stream, first);
    settle(comm);
    CHECK(extras_.end(stream, &graph));
    CHECK(extras_.launch(graph, stream));
    x.get(stream);
    synchronize();
    const float wanted = static_cast<float>(world_size_ * world_size_);
    EXPECT(x.host[0] == wanted && x.host[1] == wanted, "%g, %g", x.host[0], x.host[1]);
    meet();
    // A graph keeps the communicator.
    std::atomic<bool> has_gone{false};
    std::thread goes([&] {
      CHECK_NCCL(rank_ % 2 == 0 ? nccl_.comm_destroy(comm) : nccl_.comm_abort(comm));
      has_gone.store(true);
    });
    usleep(20000);
    EXPECT(!has_gone.load(), "rank %d", rank_);
    CHECK(extras_.destroy(graph));
    goes.join();
    meet();
  }

  void wait_in_progress(cuda::NcclCommunicator comm) {
    usleep(20000);
    EXPECT(state_of(comm) == cuda::kNcclInProgress, "rank %d", rank_);
    expect_fault(nccl_.comm_destroy(comm), 4);
    meet();
  }

  // Rank 0 never comes, and the others give up.
  void never_come(bool blocks) {
    const bool is_there = rank_ != 0;
    cuda::NcclCommunicator comm = nullptr;
    if (!blocks) {
      meet_with_id();
      if (is_there) {
        EXPECT(begin_to_connect(&comm) == cuda::kNcclInProgress, "rank %d", rank_);
        usleep(5000);
        CHECK_NCCL(nccl_.comm_abort(comm));
      }
      meet();
      meet_with_id();
      begin_to_connect(&comm);
      settle(comm);
    } else {
      comm = connect();
    }
    Array<float> x(&driver_, 1);
    if (is_there) {
      std::thread uses([&] {
        const int result =
            nccl_.all_reduce(x.device, x.device, 1, kFloat32, kSum, comm, streams_[0]);
        EXPECT(result == (blocks ? 3 : cuda::kNcclInProgress), "%d", result);
      });
      usleep(5000);
      if (!blocks) uses.join();
      CHECK_NCCL(nccl_.comm_abort(comm));
      if (blocks) uses.join();
      synchronize();
      meet();
    } else {
      meet();
      EXPECT(world_size_ == 1 || state_of(comm) == 6, "%d", state_of(comm));
      CHECK_NCCL(nccl_.comm_abort(comm));
    }
  }

  // Whatever ranks disagree on, it hangs until each has aborted.
  void disagree() {
    const bool odd = rank_ == world_size_ - 1;
    const int next = (rank_ + 1) % world_size_, before = (rank_ + world_size_ - 1) % world_size_;
    const cuda::Stream stream = streams_[0];
    for (int which = 0; which < 5; ++which) {
      cuda::NcclCommunicator comm = connect();
      Array<float> from(&driver_, 50000), to(&driver_, 50000);
      // Without this the calls would hang, not the streams.
      CHECK_NCCL(nccl_.all_reduce(from.device, to.device, 1, kFloat32, kSum, comm, stream));
      pass_on(from.device, to.device, 1, comm, stream);
      synchronize();
      const size_t count = odd ? 20000 : 40000;
      switch (which) {
        case 0:  // a receive that is shorter
          CHECK_NCCL(nccl_.group_start());
          CHECK_NCCL(nccl_.send(from.device, 40000, kFloat32, next, comm, stream));
          CHECK_NCCL(nccl_.receive(to.device, count, kFloat32, before, comm, stream));
          CHECK_NCCL(nccl_.group_end());
          if (!odd) CHECK_NCCL(nccl_.broadcast(from.device, to.device, 1, 0, 0, comm, stream));
          break;
        case 1:
          CHECK_NCCL(nccl_.all_reduce(from.device, to.device, count, 7, kSum, comm, stream));
          break;
        case 2:
          CHECK_NCCL(nccl_.all_reduce(from.device, to.device, 9, odd ? 2 : 7, kSum, comm, stream));
          break;
        case 3:
          CHECK_NCCL(nccl_.all_reduce(from.device, to.device, 9, 7, odd ? 0 : 1, comm, stream));
          break;
        default:  // one that no other rank calls
          if (!odd) break;
          CHECK_NCCL(nccl_.all_gather(from.device, to.device, 9, 7, comm, stream));
      }
      usleep(20000);
      const bool hangs = odd || which != 4;
      // Ranks that have all they need from their neighbours may have got further.
      if (world_size_ == 2 && hangs) {
        EXPECT(driver_.stream_query(stream) == cuda::kNotReady, "case %d", which);
      }
      cuda::NcclResult error = cuda::kNcclSuccess;
      CHECK_NCCL(nccl_.comm_get_async_error(comm, &error));
      EXPECT(error == cuda::kNcclSuccess, "%d", error);
      meet();
      if (odd) {
        std::thread([&] { CHECK_NCCL(nccl_.comm_abort(comm)); }).join();
        synchronize();
      }
      meet();
      if (!odd) {
        CHECK_NCCL(nccl_.comm_get_async_error(comm, &error));
        EXPECT(error == 6, "%d", error);
        if (hangs && world_size_ == 2) {
          EXPECT(driver_.stream_query(stream) == cuda::kNotReady, "case %d", which);
        }
        CHECK_NCCL(nccl_.comm_abort(comm));
        synchronize();
      }
      // It is none any more.
      const int result = nccl_.all_gather(from.device, to.device, 1, 7, comm, stream);
      EXPECT(result == 4, "%d", result);
      ++wanted_faults_;
    }
  }

  // What NCCL does not take.
  void refuse() {
    meet_with_id();
    cuda::NcclCommunicator comm = nullptr;
    const int share = extras_.init(&comm, world_size_, lobby_->id, rank_);
    if (share == cuda::kNcclSuccess) {  // NCCL 2.30, told to
      CHECK_NCCL(nccl_.comm_destroy(comm));
      puts("shared");
    } else {
      EXPECT(share == 5 && comm == nullptr, "%d", share);
    }
    EXPECT(extras_.init(&comm, 2, {}, 0) == 4, "an id that is none");
    meet();
    EXPECT(extras_.init(&comm, world_size_, lobby_->id, rank_) == 4, "an id used twice");
    meet();
    meet_with_id();
    CHECK(driver_.context_set_current(nullptr));
    EXPECT(extras_.init(&comm, world_size_, lobby_->id, rank_) == 1, "no context");
    EXPECT(nccl_.group_end() == 5, "no group");
    ++wanted_faults_;
    EXPECT(nccl_.group_start() == 0, "a group");
    EXPECT(nccl_.group_end() == 0, "an empty one");
    EXPECT(std::string(nccl_.get_error_string(5)) == "invalid usage", "of NCCL's texts");
    if (rank_ == 0) printf("version %d\n", nccl_.version);
  }

  // What CUDA does not take in captures over several streams.
  void capture_wrongly() {
    const auto [main, side] = streams_;
    cuda::Event event, outside;
    CHECK(driver_.event_create(&event, cuda::kEventDisableTiming));
    CHECK(driver_.event_create(&outside, cuda::kEventDisableTiming));
    Array<unsigned> words(&driver_, 10);
    void* graph = nullptr;
    CHECK(driver_.event_record(outside, side));
    CHECK(extras_.begin(main, kThreadsOwnCapture));
    expect_fault(driver_.stream_wait_event(main, outside, 0), 905);
    CHECK(driver_.event_record(event, main));
    CHECK(driver_.stream_wait_event(side, event, 0));
    CHECK(extras_.clear_words(words.device, 1, 10, side));
    expect_fault(extras_.end(side, &graph), 903);
    expect_fault(extras_.end(main, &graph), 904);
    EXPECT(graph == nullptr, "no graph");
    expect_fault(driver_.event_query(event), 907);
    expect_fault(driver_.stream_wait_event(side, event, 0), 907);
    lose_captures();
    CHECK(driver_.event_record(event, main));
    CHECK(driver_.stream_wait_event(side, event, 0));
    synchronize();
    CHECK(driver_.event_query(event));
    CHECK(driver_.event_destroy(event));
    CHECK(driver_.event_destroy(outside));
  }

  // What may not be called while something is captured, by whom, and what becomes of the capture.
  void lose_captures() {
    const auto [main, side] = streams_;
    Array<unsigned> words(&driver_, 10);
    cuda::Event event;
    CHECK(driver_.event_create(&event, cuda::kEventDisableTiming));
    CHECK(driver_.event_record(event, side));
    CHECK(driver_.stream_synchronize(side));
    void* graph = nullptr;
    int status = cuda::kCaptureNone;
    for (const int mode : {kThreadsOwnCapture, kRelaxedCapture}) {
      const bool is_strict = mode == kThreadsOwnCapture;
      CHECK(extras_.begin(main, mode));
      CHECK(extras_.clear_words(words.device, 1, 10, main));
      std::thread([&] { CHECK(driver_.event_query(event)); }).join();  // of no interest to others
      with_mode(kRelaxedCapture, [&] { CHECK(driver_.event_query(event)); });
      if (is_strict) {
        with_mode(kThreadsOwnCapture,
                  [&] { expect_fault(driver_.event_query(event), cuda::kCaptureUnsupported); });
      } else {
        CHECK(driver_.event_query(event));
      }
      CHECK(driver_.stream_is_capturing(main, &status));
      EXPECT(status == (is_strict ? 2 : 1), "%d", status);
      const int wanted = is_strict ? kInvalidated : cuda::kSuccess;
      EXPECT(extras_.clear_words(words.device, 2, 10, main) == wanted, "mode %d", mode);
      EXPECT(driver_.event_record(event, main) == wanted, "mode %d", mode);
      EXPECT(extras_.end(main, &graph) == wanted, "mode %d", mode);
      EXPECT((graph == nullptr) == is_strict, "mode %d", mode);
      if (graph != nullptr) CHECK(extras_.destroy(graph));
      CHECK(driver_.event_record(event, side));
      CHECK(driver_.stream_synchronize(side));
    }
    // One that the whole process must heed: there must be no other ranks in it.
    if (!options_.as_processes && world_size_ != 1) {
      CHECK(driver_.event_destroy(event));
      return;
    }
    CHECK(extras_.begin(main, kGlobalCapture));
    std::thread([&] {
      with_mode(kRelaxedCapture, [&] { CHECK(driver_.event_query(event)); });
      with_mode(kThreadsOwnCapture, [&] { CHECK(driver_.event_query(event)); });
    }).join();
    CHECK(extras_.end(main, &graph));
    CHECK(extras_.destroy(graph));
    CHECK(extras_.begin(main, kGlobalCapture));
    std::thread([&] {
      EXPECT(driver_.event_query(event) == cuda::kCaptureUnsupported, "beside a global capture");
    }).join();
    expect_fault(extras_.end(main, &graph), kInvalidated);
    CHECK(driver_.event_destroy(event));
  }

  template <class Body>
  void with_mode(int mode, const Body& body) {
    CHECK(extras_.exchange_mode(&mode));
    body();
    CHECK(extras_.exchange_mode(&mode));
  }

  // What NCCL refuses, or what would end badly.
  void use_wrongly(cuda::NcclCommunicator comm) {
    const auto [main, side] = streams_;
    Array<int> array(&driver_, 100);
    expect_fault(nccl_.send(array.address(), 100, 2, 0, comm, main), 4);
    expect_fault(nccl_.send(array.device, 101, 2, 0, comm, main), 4);
    expect_fault(nccl_.all_reduce(array.device, array.at(1), 50, 2, kSum, comm, main), 4);
    CHECK_NCCL(nccl_.group_start());
    CHECK_NCCL(nccl_.send(array.device, 1, 2, rank_, comm, main));
    expect_fault(nccl_.receive(array.device, 1, 2, rank_, comm, side), 5);
    EXPECT(nccl_.group_end() == 5, "a group on two streams");
    EXPECT(nccl_.send(array.device, 1, 2, rank_, comm, main) == 5, "nobody receives");
    EXPECT(nccl_.send(array.device, 1, 2, world_size_, comm, main) == 4, "no such rank");
    EXPECT(nccl_.send(array.device, 1, 10, 0, comm, main) == 4, "no such type");
    EXPECT(nccl_.all_reduce(array.device, array.device, 1, 2, 5, comm, main) == 4, "no such op");
    // Nothing of it was queued.
    synchronize();
    cuda::NcclCommunicator other = nullptr;
    void* graph = nullptr;
    CHECK_NCCL(extras_.split(comm, rank_, 0, &other, nullptr));
    cuda::NcclCommunicator none = nullptr;
    CHECK(extras_.begin(main, kThreadsOwnCapture));
    expect_fault(extras_.split(comm, 0, 0, &none, nullptr), 1);
    EXPECT(none == nullptr && extras_.end(main, &graph) == kInvalidated, "in a capture");
    CHECK(extras_.begin(main, kThreadsOwnCapture));
    CHECK_NCCL(nccl_.all_reduce(array.device, array.device, 1, 2, kSum, other, main));
    CHECK(extras_.end(main, &graph));
    CHECK(extras_.launch(graph, side));
    synchronize();
    std::thread destroys([&] { CHECK_NCCL(nccl_.comm_destroy(other)); });
    usleep(20000);
    expect_fault(extras_.launch(graph, side), cuda::kSuccess);
    synchronize();
    CHECK(extras_.destroy(graph));
    destroys.join();
  }

  // A communicator that goes while an operation of it waits for others.
  void destroy_too_early() {
    if (world_size_ == 1) return;
    cuda::NcclCommunicator comm = connect();
    Array<int> array(&driver_, 100);
    CHECK_NCCL(nccl_.all_reduce(array.device, array.device, 1, 2, kSum, comm, streams_[0]));
    synchronize();
    if (rank_ != 0) meet();
    CHECK_NCCL(nccl_.all_reduce(array.device, array.device, 100, 2, kSum, comm, streams_[0]));
    if (rank_ == 0) {
      expect_fault(nccl_.comm_destroy(comm), cuda::kNcclSuccess);
      meet();
    }
    synchronize();
    if (rank_ != 0) CHECK_NCCL(nccl_.comm_destroy(comm));
  }

  // What the driver says of memory, and who may open it.
  void look_at_memory() {
    Array<unsigned> words(&driver_, 64);
    const auto device_of = [&](cuda::DevicePointer pointer) {
      int device = -1;
      CHECK(driver_.pointer_get_attribute(&device, cuda::kPointerDeviceOrdinal, pointer));
      return device;
    };
    int count = 0, can = -1;
    CHECK(driver_.device_get_count(&count));
    const int device = rank_ % count, other = (device + 1) % count;
    EXPECT(device_of(words.at(63)) == device, "rank %d", rank_);
    CHECK(extras_.clear_words(words.at(2), 0xfedcba98, 61, streams_[0]));
    EXPECT(extras_.clear_words(words.device + 2, 0, 1, streams_[0]) != 0, "not aligned");
    words.get(streams_[0]);
    synchronize();
    for (size_t i = 0; i < 64; ++i) {
      const bool is_set = words.host[i] == 0xfedcba98;
      EXPECT(is_set == (i >= 2 && i < 63), "word %zu", i);
    }
    const char* setting = getenv("COCOLL_EMULATED_PEER_ACCESS");
    const bool reaches = device == other || setting == nullptr || atoi(setting) != 0;
    CHECK(driver_.device_can_access_peer(&can, device, other));
    EXPECT((can != 0) == reaches, "%d", can);
    cuda::Context context;
    CHECK(driver_.primary_context_retain(&context, other));
    const int enabled = driver_.context_enable_peer_access(context, 0);
    EXPECT(enabled == (reaches ? 0 : 217), "%d", enabled);
    if (!options_.as_processes) return;
    CHECK(driver_.ipc_get_mem_handle(&lobby_->memory[rank_], words.device));
    meet();
    const cuda::IpcMemHandle& handle = lobby_->memory[(rank_ + 1) % world_size_];
    cuda::DevicePointer mapped = 0;
    const int opened = driver_.ipc_open_mem_handle(&mapped, handle, cuda::kIpcLazyPeerAccess);
    EXPECT(opened == (reaches ? 0 : 217), "%d", opened);
    if (reaches) {
      EXPECT(device_of(mapped + 255) == device, "rank %d", rank_);
      CHECK(driver_.ipc_close_mem_handle(mapped));
    }
    meet();
  }

  std::mt19937 random_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    leave("usage: nccl LIBRARY WORLD_SIZE SEED threads|processes MODE", kBadUsage);
  }
  start_watchdog(120);
  const bool as_processes = std::string(argv[4]) == "processes";
  const Options options = {argv[1], argv[5], atoi(argv[2]), static_cast<unsigned>(atoi(argv[3])),
                           as_processes};
  Lobby* lobby = make_shared_lobby<Lobby>();
  const auto run = [&](int rank) { Rank(options, lobby, rank).run(); };
  return as_processes ? run_processes(options.world_size, run)
                      : run_threads(options.world_size, run);
}
