// NCCL without a GPU: the functions of cuda/nccl.h, for ranks that are threads of one process or
// processes of one host, with streams of the emulated device.
//
// Groups move as one, and strictly: see emulated_transport.h. Groups of one communicator run in the
// order issued, whatever streams they are on. Ranks that disagree hang until they abort, as they do
// with NCCL.
//
// Environment: COCOLL_EMULATED_NCCL_VERSION (default 22809), and of NCCL's own
// NCCL_MULTI_RANK_GPU_ENABLE and NCCL_HOSTID (ranks that differ in it are on different hosts).

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cocoll/cuda/nccl.h"
#include "cocoll/testing/emulated_communicator.h"
#include "cocoll/testing/emulated_device.h"

namespace cuda = cocoll::cuda;
using namespace cocoll::emulated;
using cuda::kNcclSuccess;
using cuda::NcclCommunicator;
using cuda::NcclResult;
using cuda::NcclUniqueId;

namespace {

constexpr NcclResult kUnhandledCudaError = 1;
constexpr NcclResult kSystemError = 2;
constexpr NcclResult kInternalError = 3;
constexpr NcclResult kInvalidArgument = 4;
constexpr NcclResult kInvalidUsage = 5;
constexpr NcclResult kRemoteError = 6;

constexpr int kNoColor = -1;
constexpr int kRanksShareGpusSince = 23000;
constexpr std::chrono::seconds kMeetingLimit{60};

int version() { return setting("COCOLL_EMULATED_NCCL_VERSION", 22809); }

// ---- handles -----------------------------------------------------------------------------------

// Numbers, never used again, instead of addresses: what is used after its end is found out.
struct Handles {
  std::mutex mutex;
  std::map<NcclCommunicator, std::shared_ptr<Communicator>> alive;
  uintptr_t last = 0;
};

Handles& handles() {
  static Handles* made = new Handles;
  return *made;
}

NcclCommunicator add(std::shared_ptr<Communicator> communicator) {
  const std::lock_guard<std::mutex> lock(handles().mutex);
  const NcclCommunicator handle = reinterpret_cast<NcclCommunicator>(handles().last += 16);
  handles().alive[handle] = std::move(communicator);
  return handle;
}

std::shared_ptr<Communicator> find(NcclCommunicator handle) {
  const std::lock_guard<std::mutex> lock(handles().mutex);
  const auto found = handles().alive.find(handle);
  if (found != handles().alive.end()) return found->second;
  fault("a communicator that does not exist");
  return nullptr;
}

std::shared_ptr<Communicator> remove(NcclCommunicator handle) {
  const std::shared_ptr<Communicator> communicator = find(handle);
  if (communicator == nullptr) return nullptr;
  const std::lock_guard<std::mutex> lock(handles().mutex);
  communicator->closed.store(true);
  handles().alive.erase(handle);
  return communicator;
}

// ---- groups ------------------------------------------------------------------------------------

// What one communicator is given in a group.
struct Group {
  std::shared_ptr<Communicator> communicator;
  cuda::Stream stream;
  Calls calls;
};

thread_local int depth = 0;
thread_local std::vector<Group> open_groups;
thread_local NcclResult group_result = kNcclSuccess;

struct Use {
  DevicePointer begin;
  size_t bytes;
};

// The memory that a call reads and writes.
std::pair<Use, Use> uses(const Call& call, const Communicator& communicator) {
  const size_t bytes = call.bytes(), all = bytes * static_cast<size_t>(communicator.world_size);
  switch (call.kind) {
    case Kind::kSend:
      return {{call.from, bytes}, {0, 0}};
    case Kind::kReceive:
      return {{0, 0}, {call.to, bytes}};
    case Kind::kReduceScatter:
      return {{call.from, all}, {call.to, bytes}};
    case Kind::kAllGather:
      return {{call.from, bytes}, {call.to, all}};
    case Kind::kBroadcast:
      if (call.peer != communicator.rank) return {{0, 0}, {call.to, bytes}};
      break;
    default:
      break;
  }
  return {{call.from, bytes}, {call.to, bytes}};
}

NcclResult check_memory(const Call& call, const Communicator& communicator) {
  const auto [read, written] = uses(call, communicator);
  for (const Use& use : {read, written}) {
    if (use.bytes != 0 && !is_device_memory(use.begin, use.bytes)) {
      fault("NCCL was given memory that is no device's");
      return kInvalidArgument;
    }
  }
  const bool overlap = read.bytes != 0 && written.bytes != 0 &&
                       read.begin < written.begin + written.bytes &&
                       written.begin < read.begin + read.bytes;
  if (!overlap) return kNcclSuccess;
  // In place: a rank's own part is where it belongs.
  const size_t own = call.bytes() * static_cast<size_t>(communicator.rank);
  DevicePointer wanted = call.from;
  if (call.kind == Kind::kReduceScatter) wanted = call.from + own;
  if (call.kind == Kind::kAllGather) wanted = call.from - own;
  if (call.to == wanted) return kNcclSuccess;
  fault("a collective of NCCL whose input and output overlap, but not as in place");
  return kInvalidArgument;
}

// Queues what a group holds as one piece of work.
NcclResult issue(const Group& group) {
  const std::shared_ptr<Communicator> communicator = group.communicator;
  const auto calls = std::make_shared<const Calls>(group.calls);
  const auto make_item = [communicator, calls]() -> Item {
    if (communicator->closed.load()) {
      fault("NCCL operations of a communicator that does not exist any more");
      return [] {};
    }
    for (const Call& call : *calls) {
      if (check_memory(call, *communicator) != kNcclSuccess) return [] {};
    }
    const uint64_t turn = communicator->issued++;
    return [communicator, calls, turn] { communicator->run(*calls, turn); };
  };
  const Result result = submit(group.stream, Work{make_item, communicator.get()});
  return result == cuda::kSuccess ? kNcclSuccess : kUnhandledCudaError;
}

// A rank's messages to itself need each other within one group.
bool meets_itself(const Group& group) {
  int balance = 0;
  for (const Call& call : group.calls) {
    if (call.peer != group.communicator->rank) continue;
    balance += call.kind == Kind::kSend ? 1 : call.kind == Kind::kReceive ? -1 : 0;
  }
  return balance == 0;
}

NcclResult end_group() {
  std::vector<Group> groups;
  groups.swap(open_groups);
  const NcclResult failed = std::exchange(group_result, kNcclSuccess);
  if (failed != kNcclSuccess) return failed;
  for (const Group& group : groups) {
    if (!meets_itself(group)) return kInvalidUsage;
  }
  for (const Group& group : groups) {
    const NcclResult result = issue(group);
    if (result != kNcclSuccess) return result;
  }
  return kNcclSuccess;
}

NcclResult add_to_group(const Call& call, NcclCommunicator handle, cuda::Stream stream) {
  const std::shared_ptr<Communicator> communicator = find(handle);
  if (communicator == nullptr) return kInvalidArgument;
  if (call.type < 0 || call.type >= kTypes || call.op < 0 || call.op >= kReductions ||
      call.peer < 0 || call.peer >= communicator->world_size) {
    return kInvalidArgument;
  }
  const NcclResult checked = check_memory(call, *communicator);
  if (checked != kNcclSuccess) return checked;
  const bool is_message = call.kind == Kind::kSend || call.kind == Kind::kReceive;
  if (call.count == 0 && !is_message) return kNcclSuccess;
  for (Group& group : open_groups) {
    if (group.communicator != communicator) continue;
    if (group.stream != stream) {
      fault("a group of NCCL whose operations are on several streams");
      return kInvalidUsage;
    }
    group.calls.push_back(call);
    return kNcclSuccess;
  }
  open_groups.push_back({communicator, stream, {call}});
  return kNcclSuccess;
}

NcclResult enqueue(const Call& call, NcclCommunicator handle, cuda::Stream stream) {
  const NcclResult result = add_to_group(call, handle, stream);
  if (depth == 0) return result == kNcclSuccess ? end_group() : result;
  if (group_result == kNcclSuccess) group_result = result;
  return result;
}

// ---- meeting -----------------------------------------------------------------------------------

template <class Condition>
NcclResult await(const Condition& condition, const std::atomic<bool>& aborted) {
  const auto limit = std::chrono::steady_clock::now() + kMeetingLimit;
  Patience patience;
  while (!condition()) {
    if (aborted.load()) return kInternalError;
    if (std::chrono::steady_clock::now() > limit) return kSystemError;
    patience.wait();
  }
  return kNcclSuccess;
}

uint64_t host() {
  const char* name = getenv("NCCL_HOSTID");
  return std::hash<std::string>()(name == nullptr ? "" : name);
}

bool share_a_gpu(const Meeting& meeting, int world_size) {
  const char* allowed = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  if (version() >= kRanksShareGpusSince && allowed != nullptr && atoi(allowed) == 1) return false;
  for (int rank = 0; rank < world_size; ++rank) {
    const Seat& seat = meeting.seats[rank];
    for (int peer = 0; peer < rank; ++peer) {
      const Seat& other = meeting.seats[peer];
      if (seat.device == other.device && seat.host == other.host) return true;
    }
  }
  return false;
}

// What keeps a thread from making communicators.
NcclResult check_caller() {
  if (depth != 0) {
    fault("the emulated NCCL makes no communicators in groups");
    return kInvalidUsage;
  }
  return capture_forbids("making a communicator") || current_device() < 0 ? kUnhandledCudaError
                                                                          : kNcclSuccess;
}

NcclResult join(NcclCommunicator* made, const NcclUniqueId& id, int world_size, int rank,
                int device) {
  if (world_size < 1 || world_size > kMostRanks || rank < 0 || rank >= world_size) {
    return kInvalidArgument;
  }
  const std::shared_ptr<Region> region = Region::open(id, world_size);
  if (region == nullptr) return kInvalidArgument;
  const auto communicator = std::make_shared<Communicator>(region, rank, world_size);
  if (communicator->seat().taken.exchange(1) != 0) {
    fault("two ranks of a communicator have one number");
    return kInvalidArgument;
  }
  Meeting& meeting = region->meeting();
  communicator->seat().device = device;
  communicator->seat().host = host();
  ++meeting.arrived;
  const auto all_here = [&] { return meeting.arrived.load() == world_size; };
  const NcclResult met = await(all_here, communicator->aborted);
  if (met != kNcclSuccess) return met;
  Region::release(id);
  if (share_a_gpu(meeting, world_size)) return kInvalidUsage;
  *made = add(communicator);
  return kNcclSuccess;
}

// Every rank says its color and key; the first of each color makes an id, which the others take.
NcclResult split(Communicator* communicator, int color, int key, NcclUniqueId* id,
                 std::vector<int>* members) {
  const uint64_t round = ++communicator->splits;
  Seat* seats = communicator->meeting().seats;
  Seat& own = communicator->seat();
  const auto have_all = [&](std::atomic<uint64_t> Seat::* what, uint64_t least) {
    return await(
        [&] {
          return std::all_of(seats, seats + communicator->world_size,
                             [&](const Seat& seat) { return (seat.*what).load() >= least; });
        },
        communicator->aborted);
  };
  NcclResult result = have_all(&Seat::left, round - 1);
  if (result != kNcclSuccess) return result;
  own.color = color;
  own.key = key;
  own.entered.store(round);
  result = have_all(&Seat::entered, round);
  if (result != kNcclSuccess) return result;
  for (int rank = 0; rank < communicator->world_size; ++rank) {
    if (color != kNoColor && seats[rank].color == color) members->push_back(rank);
  }
  if (!members->empty()) {
    Seat& first = seats[members->front()];
    if (&first == &own) {
      if (!Region::make(&own.id)) return kSystemError;
      own.made.store(round);
    }
    result = await([&] { return first.made.load() >= round; }, communicator->aborted);
    if (result != kNcclSuccess) return result;
    *id = first.id;
  }
  std::stable_sort(members->begin(), members->end(),
                   [&](int a, int b) { return seats[a].key < seats[b].key; });
  own.left.store(round);
  return kNcclSuccess;
}

}  // namespace

extern "C" {

// ---- what the tests ask ------------------------------------------------------------------------

int emulated_nccl_communicator_count() {
  const std::lock_guard<std::mutex> lock(handles().mutex);
  return static_cast<int>(handles().alive.size());
}

// ---- NCCL --------------------------------------------------------------------------------------

NcclResult ncclGetVersion(int* result) {
  *result = version();
  return kNcclSuccess;
}

const char* ncclGetErrorString(NcclResult result) {
  static const char* const kTexts[] = {"no error",
                                       "unhandled cuda error",
                                       "unhandled system error",
                                       "internal error",
                                       "invalid argument",
                                       "invalid usage",
                                       "remote process exited or there was a network error",
                                       "NCCL operation in progress"};
  return result >= 0 && result < 8 ? kTexts[result] : "unknown result code";
}

NcclResult ncclGetUniqueId(NcclUniqueId* id) {
  return Region::make(id) ? kNcclSuccess : kSystemError;
}

NcclResult ncclCommInitRank(NcclCommunicator* made, int world_size, NcclUniqueId id, int rank) {
  *made = nullptr;
  const NcclResult refused = check_caller();
  return refused != kNcclSuccess ? refused : join(made, id, world_size, rank, current_device());
}

NcclResult ncclCommSplit(NcclCommunicator handle, int color, int key, NcclCommunicator* made,
                         void*) {
  *made = nullptr;
  const NcclResult refused = check_caller();
  if (refused != kNcclSuccess) return refused;
  const std::shared_ptr<Communicator> communicator = find(handle);
  if (communicator == nullptr || color < kNoColor) return kInvalidArgument;
  NcclUniqueId id;
  std::vector<int> members;
  const NcclResult result = split(communicator.get(), color, key, &id, &members);
  if (result != kNcclSuccess || members.empty()) return result;
  const auto place = std::find(members.begin(), members.end(), communicator->rank);
  return join(made, id, static_cast<int>(members.size()), static_cast<int>(place - members.begin()),
              communicator->seat().device);
}

NcclResult ncclCommDestroy(NcclCommunicator handle) {
  const std::shared_ptr<Communicator> communicator = remove(handle);
  if (communicator == nullptr) return kInvalidArgument;
  if (communicator->issued.load() != communicator->completed.load()) {
    fault("a communicator of NCCL was destroyed with operations in flight");
  }
  return kNcclSuccess;
}

NcclResult ncclCommAbort(NcclCommunicator handle) {
  const std::shared_ptr<Communicator> communicator = remove(handle);
  if (communicator == nullptr) return kInvalidArgument;
  communicator->abort();
  return kNcclSuccess;
}

NcclResult ncclCommGetAsyncError(NcclCommunicator handle, NcclResult* result) {
  const std::shared_ptr<Communicator> communicator = find(handle);
  if (communicator == nullptr) return kInvalidArgument;
  *result = communicator->meeting().aborted.load() != 0 ? kRemoteError : kNcclSuccess;
  return kNcclSuccess;
}

NcclResult ncclGroupStart() {
  ++depth;
  return kNcclSuccess;
}

NcclResult ncclGroupEnd() {
  if (depth == 0) {
    fault("a group of NCCL was ended that had not begun");
    return kInvalidUsage;
  }
  return --depth == 0 ? end_group() : kNcclSuccess;
}

NcclResult ncclSend(DevicePointer from, size_t count, int type, int peer, NcclCommunicator handle,
                    cuda::Stream stream) {
  return enqueue({Kind::kSend, from, 0, count, type, kSum, peer}, handle, stream);
}

NcclResult ncclRecv(DevicePointer to, size_t count, int type, int peer, NcclCommunicator handle,
                    cuda::Stream stream) {
  return enqueue({Kind::kReceive, 0, to, count, type, kSum, peer}, handle, stream);
}

NcclResult ncclAllReduce(DevicePointer from, DevicePointer to, size_t count, int type, int op,
                         NcclCommunicator handle, cuda::Stream stream) {
  return enqueue({Kind::kAllReduce, from, to, count, type, op, 0}, handle, stream);
}

NcclResult ncclReduceScatter(DevicePointer from, DevicePointer to, size_t count, int type, int op,
                             NcclCommunicator handle, cuda::Stream stream) {
  return enqueue({Kind::kReduceScatter, from, to, count, type, op, 0}, handle, stream);
}

NcclResult ncclAllGather(DevicePointer from, DevicePointer to, size_t count, int type,
                         NcclCommunicator handle, cuda::Stream stream) {
  return enqueue({Kind::kAllGather, from, to, count, type, kSum, 0}, handle, stream);
}

NcclResult ncclBroadcast(DevicePointer from, DevicePointer to, size_t count, int type, int root,
                         NcclCommunicator handle, cuda::Stream stream) {
  return enqueue({Kind::kBroadcast, from, to, count, type, kSum, root}, handle, stream);
}

}  // extern "C"
