// NCCL without a GPU: the functions of cuda/nccl.h, for ranks that are threads of one process or
// processes of one host, with streams of the emulated device.
//
// Groups move as one, and strictly: see emulated_transport.h. Groups of one communicator run in the
// order issued, whatever streams they are on. Ranks that disagree hang until they abort, as they do
// with NCCL. What first uses a connection waits on the host for the peer's host: in the call or, if
// the communicator does not block, in a thread that queues the group in the end.
//
// Environment: COCOLL_EMULATED_NCCL_VERSION (default 22809), and of NCCL's own
// NCCL_MULTI_RANK_GPU_ENABLE and NCCL_HOSTID (ranks that differ in it are on different hosts).

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cocoll/cuda/nccl.h"
#include "cocoll/testing/emulated_communicator.h"
#include "cocoll/testing/emulated_device.h"

namespace cuda = cocoll::cuda;
using namespace cocoll::emulated;
using cuda::kNcclInProgress;
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

// One that may be used now.
NcclResult find_ready(NcclCommunicator handle, std::shared_ptr<Communicator>* found) {
  *found = find(handle);
  if (*found == nullptr) return kInvalidArgument;
  const NcclResult state = (*found)->state.load();
  if (state != kNcclInProgress) return state;
  fault("a communicator was used whose last operation is in progress");
  return kInvalidArgument;
}

void remove(NcclCommunicator handle) {
  const std::lock_guard<std::mutex> lock(handles().mutex);
  handles().alive.erase(handle);
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
  const Result result =
      submit(group.stream, Work{make_item, communicator.get(), communicator->in_graphs});
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

typedef std::vector<const std::atomic<int>*> Awaited;

// Waits for the peers of connections that are new, and queues all.
NcclResult launch(const std::vector<Group>& groups, const Awaited& awaited) {
  const auto is_aborted = [](const Group& group) { return group.communicator->aborted.load(); };
  Patience patience;
  for (const std::atomic<int>* has_come : awaited) {
    while (has_come->load() == 0) {
      if (std::any_of(groups.begin(), groups.end(), is_aborted)) return kInternalError;
      patience.wait();
    }
  }
  for (const Group& group : groups) {
    const NcclResult result = issue(group);
    if (result != kNcclSuccess) return result;
  }
  return kNcclSuccess;
}

// The same in a thread of its own.
NcclResult launch_later(const std::vector<Group>& groups, const Awaited& awaited) {
  for (const Group& group : groups) group.communicator->begin_job();
  std::thread([groups, awaited] {
    const NcclResult result = launch(groups, awaited);
    for (const Group& group : groups) group.communicator->end_job(result);
  }).detach();
  return kNcclInProgress;
}

NcclResult end_group() {
  std::vector<Group> groups;
  groups.swap(open_groups);
  const NcclResult failed = std::exchange(group_result, kNcclSuccess);
  if (failed != kNcclSuccess) return failed;
  for (const Group& group : groups) {
    if (!meets_itself(group)) return kInvalidUsage;
    if (group.communicator->is_blocking == groups[0].communicator->is_blocking) continue;
    fault("a group of NCCL with communicators that block and such that do not");
    return kInvalidArgument;
  }
  Awaited awaited;
  for (const Group& group : groups) {
    const Awaited added = group.communicator->connect(group.calls);
    awaited.insert(awaited.end(), added.begin(), added.end());
  }
  if (awaited.empty() || groups[0].communicator->is_blocking) return launch(groups, awaited);
  return launch_later(groups, awaited);
}

NcclResult add_to_group(const Call& call, NcclCommunicator handle, cuda::Stream stream) {
  std::shared_ptr<Communicator> communicator;
  const NcclResult found = find_ready(handle, &communicator);
  if (found != kNcclSuccess) return found;
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
NcclResult await(const Condition& condition, const std::atomic<bool>& aborted,
                 bool is_limited = true) {
  const auto limit = std::chrono::steady_clock::now() + kMeetingLimit;
  Patience patience;
  while (!condition()) {
    if (aborted.load()) return kInternalError;
    if (is_limited && std::chrono::steady_clock::now() > limit) return kSystemError;
    patience.wait();
  }
  return kNcclSuccess;
}

uint64_t host_of(int device) {
  const char* name = getenv("NCCL_HOSTID");
  const std::string process = name == nullptr ? "" : name;
  return std::hash<std::string>()(process + " " + std::to_string(emulated_host(device)));
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

// Waits until all ranks of a communicator have come.
NcclResult meet(const NcclUniqueId& id, Communicator* communicator) {
  Meeting& meeting = communicator->meeting();
  const int world_size = communicator->world_size;
  const auto all_here = [&] { return meeting.arrived.load() == world_size; };
  const NcclResult met = await(all_here, communicator->aborted, communicator->is_blocking);
  if (met != kNcclSuccess) return met;
  Region::release(id);
  return share_a_gpu(meeting, world_size) ? kInvalidUsage : kNcclSuccess;
}

NcclResult join(NcclCommunicator* made, const NcclUniqueId& id, int world_size, int rank,
                int device, bool is_blocking) {
  if (world_size < 1 || world_size > kMostRanks || rank < 0 || rank >= world_size) {
    return kInvalidArgument;
  }
  const std::shared_ptr<Region> region = Region::open(id, world_size);
  if (region == nullptr) return kInvalidArgument;
  const auto communicator = std::make_shared<Communicator>(region, rank, world_size, is_blocking);
  if (communicator->seat().taken.exchange(1) != 0) {
    fault("two ranks of a communicator have one number");
    return kInvalidArgument;
  }
  communicator->seat().device = device;
  communicator->seat().host = host_of(device);
  ++region->meeting().arrived;
  if (!is_blocking) {
    communicator->begin_job();
    std::thread([id, communicator] {
      communicator->end_job(meet(id, communicator.get()));
    }).detach();
    *made = add(communicator);
    return kNcclInProgress;
  }
  const NcclResult met = meet(id, communicator.get());
  if (met == kNcclSuccess) *made = add(communicator);
  return met;
}

// ncclConfig_t as of NCCL 2.18.
struct Config {
  size_t size;
  unsigned magic, version;
  int blocking, cluster_size, least_blocks, most_blocks;
  const char* net_name;
  int shares_on_split;
};

constexpr unsigned kConfigMagic = 0xcafebeef;
constexpr unsigned kBlockingSince = 21400;  // of the version in it
constexpr int kUndefined = INT_MIN;

NcclResult read_config(const void* given, bool* is_blocking) {
  *is_blocking = true;
  if (given == nullptr) return kNcclSuccess;
  Config config = {};
  config.blocking = kUndefined;
  size_t size;
  memcpy(&size, given, sizeof size);
  memcpy(&config, given, std::min(size, sizeof config));
  if (config.magic != kConfigMagic) return kInvalidArgument;
  if (config.version < kBlockingSince || config.blocking == kUndefined) return kNcclSuccess;
  if (config.blocking != 0 && config.blocking != 1) return kInvalidArgument;
  *is_blocking = config.blocking == 1;
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

// What one rank has sent to another since this was last asked.
uint64_t emulated_nccl_take_sent_bytes(int from, int to) {
  return sent_bytes[from][to].exchange(0);
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

NcclResult ncclCommInitRankConfig(NcclCommunicator* made, int world_size, NcclUniqueId id, int rank,
                                  void* config) {
  *made = nullptr;
  bool is_blocking;
  const NcclResult read = read_config(config, &is_blocking);
  if (read != kNcclSuccess) return read;
  const NcclResult refused = check_caller();
  if (refused != kNcclSuccess) return refused;
  return join(made, id, world_size, rank, current_device(), is_blocking);
}

NcclResult ncclCommInitRank(NcclCommunicator* made, int world_size, NcclUniqueId id, int rank) {
  return ncclCommInitRankConfig(made, world_size, id, rank, nullptr);
}

NcclResult ncclCommSplit(NcclCommunicator handle, int color, int key, NcclCommunicator* made,
                         void*) {
  *made = nullptr;
  const NcclResult refused = check_caller();
  if (refused != kNcclSuccess) return refused;
  std::shared_ptr<Communicator> communicator;
  const NcclResult found = find_ready(handle, &communicator);
  if (found != kNcclSuccess) return found;
  if (color < kNoColor) return kInvalidArgument;
  if (!communicator->is_blocking) {
    fault("the emulated NCCL splits only communicators that block");
    return kInvalidUsage;
  }
  NcclUniqueId id;
  std::vector<int> members;
  const NcclResult result = split(communicator.get(), color, key, &id, &members);
  if (result != kNcclSuccess || members.empty()) return result;
  const auto place = std::find(members.begin(), members.end(), communicator->rank);
  return join(made, id, static_cast<int>(members.size()), static_cast<int>(place - members.begin()),
              communicator->seat().device, true);
}

NcclResult ncclCommDestroy(NcclCommunicator handle) {
  std::shared_ptr<Communicator> communicator;
  const NcclResult found = find_ready(handle, &communicator);
  // One that has failed is destroyed like others.
  if (communicator == nullptr || communicator->state.load() == kNcclInProgress) return found;
  remove(handle);
  communicator->closed.store(true);
  if (communicator->issued.load() != communicator->completed.load()) {
    fault("a communicator of NCCL was destroyed with operations in flight");
  }
  communicator->await_graphs();
  return kNcclSuccess;
}

NcclResult ncclCommAbort(NcclCommunicator handle) {
  const std::shared_ptr<Communicator> communicator = find(handle);
  if (communicator == nullptr) return kInvalidArgument;
  remove(handle);
  communicator->abort();
  communicator->closed.store(true);  // not before: a thread may be about to queue a group
  communicator->await_graphs();
  return kNcclSuccess;
}

NcclResult ncclCommGetAsyncError(NcclCommunicator handle, NcclResult* result) {
  const std::shared_ptr<Communicator> communicator = find(handle);
  if (communicator == nullptr) return kInvalidArgument;
  *result = communicator->state.load();
  if (*result != kNcclSuccess) return kNcclSuccess;
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
