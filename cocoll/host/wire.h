// What carries messages between ranks that map nothing of each other: MPI, or a stand-in.
//
// One build serves every MPI: no header of one is included. Its functions are found in the library
// that mpi4py has loaded; handles travel as the integers or pointers that they are there, which the
// calling conventions of x86-64 and AArch64 pass alike.

#ifndef COCOLL_HOST_WIRE_H_
#define COCOLL_HOST_WIRE_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace cocoll::host {

// Tags of a communicator's own messages, above those that plans may use.
enum WireTag : int32_t {
  kAgreementTag = 2040,
  kRecordsTag = 2041,
  kAbortTag = 2042,
  // Of messages between two ranks: what the sender asks for, what the receiver does, the data.
  kPointSendTag = 2043,
  kPointReceiveTag = 2044,
  kPointDataTag = 2045,
  kTagCount = 2048
};

// Any rank, for receives.
constexpr int32_t kAnyRank = -1;

// A message under way, as its wire knows it.
using WireRequest = uint64_t;

// The ranks of one communicator, seen from one of them. Called by one thread at a time, but for
// `send`, with which any thread may tell the others that this rank gives up.
class Wire {
 public:
  enum class Outcome { kPending, kDone, kFailed };

  Wire() = default;
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;
  virtual ~Wire() = default;

  // Begin a message, whose memory must stay until `test` says kDone or `cancel` true. False: the
  // wire is broken, and `error()` says how. A synchronous send ends with its receive; another one
  // may end earlier and leave its bytes to a library that moves them only when it is called.
  virtual bool send(int32_t peer, int32_t tag, const void* data, int64_t bytes, bool synchronous,
                    WireRequest* request) = 0;
  virtual bool receive(int32_t peer, int32_t tag, void* data, int64_t bytes,
                       WireRequest* request) = 0;

  // Looks once, and lets all messages of the process move. A request of 0 is done.
  virtual Outcome test(WireRequest* request) = 0;

  // Gives a message up. False: it may still move, and its memory must stay for good.
  virtual bool cancel(WireRequest* request, bool receives) = 0;

  std::string error() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return error_;
  }

 protected:
  void set_error(std::string text) {
    std::lock_guard<std::mutex> lock(mutex_);
    error_ = std::move(text);
  }

 private:
  mutable std::mutex mutex_;
  std::string error_;
};

// A handle or constant of MPI: a pointer in Open MPI and in the standard ABI, an int elsewhere.
using MpiHandle = intptr_t;

// The functions that are used, of the MPI that the process has loaded.
struct MpiTable {
  int (*isend)(const void*, int, MpiHandle, int, int, MpiHandle, void*) = nullptr;
  int (*issend)(const void*, int, MpiHandle, int, int, MpiHandle, void*) = nullptr;
  int (*irecv)(void*, int, MpiHandle, int, int, MpiHandle, void*) = nullptr;
  int (*test)(void*, int*, void*) = nullptr;
  int (*cancel)(void*) = nullptr;
  int (*request_free)(void*) = nullptr;
  int (*error_string)(int, char*, int*) = nullptr;
  MpiHandle byte_type = 0;
  MpiHandle communicator = 0;
  int any_source = 0;
};

// Large counts are no business of the eight functions: longer messages are cut by the caller.
constexpr int64_t kLongestMessageBytes = int64_t{1} << 30;

class MpiWire : public Wire {
 public:
  // `ranks[r]`: where rank r of the communicator is in MPI's; tags begin at `first_tag`.
  MpiWire(const MpiTable& table, std::vector<int> ranks, int first_tag)
      : table_(table), ranks_(std::move(ranks)), first_tag_(first_tag) {}

  bool send(int32_t peer, int32_t tag, const void* data, int64_t bytes, bool synchronous,
            WireRequest* request) override {
    *request = 0;
    const auto begin = synchronous ? table_.issend : table_.isend;
    return check(begin(data, static_cast<int>(bytes), table_.byte_type, place(peer),
                       first_tag_ + tag, table_.communicator, request));
  }

  bool receive(int32_t peer, int32_t tag, void* data, int64_t bytes,
               WireRequest* request) override {
    *request = 0;
    return check(table_.irecv(data, static_cast<int>(bytes), table_.byte_type, place(peer),
                              first_tag_ + tag, table_.communicator, request));
  }

  Outcome test(WireRequest* request) override {
    if (*request == 0) return Outcome::kDone;
    int done = 0;
    // Larger than the MPI_Status of any implementation; not shared, for another thread may test.
    alignas(16) unsigned char status[256];
    if (!check(table_.test(request, &done, status))) return Outcome::kFailed;
    return done ? Outcome::kDone : Outcome::kPending;
  }

  bool cancel(WireRequest* request, bool receives) override {
    if (*request == 0) return true;
    // A send cannot be taken back; a receive can until it has met one.
    if (receives) table_.cancel(request);
    for (int look = 0; look < kLooksAtCancelled; ++look)
      if (test(request) != Outcome::kPending) return true;
    table_.request_free(request);
    return false;
  }

 private:
  static constexpr int kLooksAtCancelled = 1000;

  int place(int32_t peer) const {
    return peer == kAnyRank ? table_.any_source : ranks_[static_cast<size_t>(peer)];
  }

  bool check(int code) {
    if (code == 0) return true;
    char text[1024] = "unknown error";  // MPI_MAX_ERROR_STRING is 256 to 1024
    int length = 0;
    table_.error_string(code, text, &length);
    set_error(std::string("MPI says: ") + text);
    return false;
  }

  MpiTable table_;
  std::vector<int> ranks_;
  int first_tag_;
};

// A wire whose functions are somebody else's: those of mpi4py, where an MPI cannot be called
// itself.
struct WireCallbacks {
  void* context = nullptr;
  bool (*send)(void*, int32_t, int32_t, const void*, int64_t, WireRequest*) = nullptr;
  bool (*receive)(void*, int32_t, int32_t, void*, int64_t, WireRequest*) = nullptr;
  int (*test)(void*, WireRequest*) = nullptr;  // 1 done, 0 pending, -1 failed
  bool (*cancel)(void*, WireRequest*, bool) = nullptr;
  const char* (*error)(void*) = nullptr;
  void (*release)(void*) = nullptr;
};

class CallbackWire : public Wire {
 public:
  explicit CallbackWire(const WireCallbacks& callbacks) : callbacks_(callbacks) {}
  ~CallbackWire() override { callbacks_.release(callbacks_.context); }

  bool send(int32_t peer, int32_t tag, const void* data, int64_t bytes, bool,
            WireRequest* request) override {
    return check(callbacks_.send(callbacks_.context, peer, tag, data, bytes, request));
  }

  bool receive(int32_t peer, int32_t tag, void* data, int64_t bytes,
               WireRequest* request) override {
    return check(callbacks_.receive(callbacks_.context, peer, tag, data, bytes, request));
  }

  Outcome test(WireRequest* request) override {
    const int outcome = callbacks_.test(callbacks_.context, request);
    if (outcome > 0) return Outcome::kDone;
    return check(outcome == 0) ? Outcome::kPending : Outcome::kFailed;
  }

  bool cancel(WireRequest* request, bool receives) override {
    return callbacks_.cancel(callbacks_.context, request, receives);
  }

 private:
  bool check(bool well) {
    if (!well) set_error(callbacks_.error(callbacks_.context));
    return well;
  }

  WireCallbacks callbacks_;
};

}  // namespace cocoll::host

#endif  // COCOLL_HOST_WIRE_H_
