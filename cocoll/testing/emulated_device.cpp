// A CUDA driver without a GPU: the functions of cuda/driver.h, as a library of their own.
//
// Device memory is shared host memory; kernels are the g++ builds of the very same sources. Every
// stream is a thread that runs what was queued on it, in order, each item after a delay drawn from
// the seed: so streams overtake each other wherever nothing orders them. What a GPU forbids is
// refused, and what would go wrong silently there (memory freed under a peer's mapping, a grid that
// cannot be resident at once, work on a stream that has gone) is noted as a fault, which tests
// read.
//
// Environment: COCOLL_EMULATED_SEED, COCOLL_EMULATED_DEVICES (default 1; 0 is a machine without a
// GPU), COCOLL_EMULATED_DRIVER_VERSION (default 13000), COCOLL_EMULATED_THREADS (of a block,
// default 1; a kernel must not depend on it), COCOLL_EMULATED_PEER_ACCESS (default 1; 0 keeps GPUs
// from each other's memory), COCOLL_EMULATED_HOSTS (the host of each device, as "0,0,1"; default:
// one host), COCOLL_EMULATED_LOST_WRITES (default 0; 1 lets processes map memory of others that
// their writes never reach). NCCL has more: emulated_nccl.cpp.

#include "cocoll/testing/emulated_device.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "cocoll/cuda/driver.h"
#include "cocoll/kernels/flags.h"
#include "cocoll/kernels/grid_abi.h"

namespace cuda = cocoll::cuda;
using namespace cocoll::emulated;

namespace {

constexpr int kMultiprocessors = 4;
constexpr int kBlocksPerMultiprocessor = 2;

std::mutex fault_mutex;
std::string fault_text;
int fault_count = 0;

// ---- memory ------------------------------------------------------------------------------------

// The page in front of every allocation, which processes that map it share.
struct Header {
  std::atomic<int> mappings;
  std::atomic<int> freed;
};

constexpr size_t kHeaderBytes = 4096;

struct Allocation {
  size_t bytes;
  int device;
  int fd;
};

// Of another process's allocation, which is known by its process and descriptor.
struct Mapping {
  size_t bytes;
  int device;
  std::pair<int32_t, int32_t> source;
};

// The contents of an IPC handle.
struct Handle {
  uint64_t magic;
  int32_t pid;
  int32_t fd;
  uint64_t bytes;
  int32_t device;
};

constexpr uint64_t kHandleMagic = 0x6374656c756d65;

struct Memory {
  std::mutex mutex;
  std::map<DevicePointer, Allocation> allocations;
  std::map<DevicePointer, Mapping> mappings;
  std::set<std::pair<int32_t, int32_t>> opened;
};

Memory& memory() {
  static Memory* made = new Memory;  // streams may outlive static destructors
  return *made;
}

Header* header_of(DevicePointer pointer) {
  return reinterpret_cast<Header*>(pointer - kHeaderBytes);
}

struct Range {
  DevicePointer base = 0;
  size_t bytes = 0;  // 0: none
  int device = 0;
};

template <class Ranges>
bool find_in(const Ranges& ranges, DevicePointer pointer, Range* found) {
  auto next = ranges.upper_bound(pointer);
  if (next == ranges.begin()) return false;
  --next;
  if (pointer >= next->first + next->second.bytes) return false;
  *found = {next->first, next->second.bytes, next->second.device};
  return true;
}

// The allocation or the mapping that a pointer points into.
Range find_range(DevicePointer pointer) {
  Memory& all = memory();
  const std::lock_guard<std::mutex> lock(all.mutex);
  Range found;
  if (!find_in(all.allocations, pointer, &found)) find_in(all.mappings, pointer, &found);
  return found;
}

bool can_access(int device, int peer) {
  return device == peer || (setting("COCOLL_EMULATED_PEER_ACCESS", 1) != 0 &&
                            emulated_host(device) == emulated_host(peer));
}

// Whether memory is a device's of another host, which cannot be reached. Of arrays of a vector a
// kernel is given where element 0 would lie, and they begin with element `begin`: then it is
// foreign if it is for some size of elements, and this host's for none.
bool is_foreign(const void* pointer, int64_t begin = 0) {
  if (pointer == nullptr || getenv("COCOLL_EMULATED_HOSTS") == nullptr) return false;
  bool found = false;
  for (int64_t itemsize = 1; itemsize <= 8; itemsize *= 2) {
    const Range range = find_range(reinterpret_cast<DevicePointer>(pointer) +
                                   static_cast<size_t>(begin * itemsize));
    if (range.bytes == 0) continue;
    if (emulated_host(range.device) == emulated_host(current_device())) return false;
    found = true;
  }
  return found;
}

bool touches_foreign(const cocoll_grid_call& call) {
  bool found = is_foreign(call.own_source);
  for (int rank = 0; rank < COCOLL_GRID_MAX_RANKS; ++rank) {
    found |= is_foreign(call.flags_of[rank]) || is_foreign(call.poison_of[rank]) ||
             is_foreign(call.sources[rank], call.begin);
    for (const auto& places : call.destinations) found |= is_foreign(places[rank], call.begin);
  }
  return found;
}

// ---- kernels -----------------------------------------------------------------------------------

typedef void (*GridKernel)(const cocoll_grid_call& call, const cocoll::Place& place);

struct Block {
  std::mutex mutex;
  std::condition_variable all_here;
  int parties = 1;
  int waiting = 0;
  uint64_t round = 0;
  bool pending = false, verdict = false;

  bool meet(bool mine) {
    std::unique_lock<std::mutex> lock(mutex);
    pending |= mine;
    const uint64_t entered = round;
    if (++waiting == parties) {
      waiting = 0;
      verdict = pending;
      pending = false;
      ++round;
      all_here.notify_all();
      return verdict;
    }
    all_here.wait(lock, [&] { return round != entered; });
    return verdict;
  }
};

uint64_t nanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

const cocoll::PlaceCalls kPlaceCalls = {
    [](void* block) { static_cast<Block*>(block)->meet(false); },
    [](void* block, bool mine) { return static_cast<Block*>(block)->meet(mine); },
    [] { sched_yield(); },
    nanoseconds,
};

// Blocks run in order: block b only ever waits for block b of a peer.
void run_grid(GridKernel kernel, const cocoll_grid_call& call, int blocks) {
  const int threads = setting("COCOLL_EMULATED_THREADS", 1);
  for (int block = 0; block < blocks; ++block) {
    Block shared;
    shared.parties = threads;
    const auto run = [&](int thread) {
      kernel(call, cocoll::Place{block, blocks, thread, threads, &kPlaceCalls, &shared});
    };
    std::vector<std::thread> others;
    for (int thread = 1; thread < threads; ++thread) others.emplace_back(run, thread);
    run(0);
    for (std::thread& other : others) other.join();
  }
}

thread_local cuda::Context current_context = nullptr;

bool has_context() { return current_context != nullptr; }

int device_of(cuda::Context context) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(context)) - 1;
}

}  // namespace

namespace cocoll::emulated {

int setting(const char* name, int usual) {
  const char* text = getenv(name);
  return text == nullptr || *text == 0 ? usual : atoi(text);
}

Result fault(const std::string& what, Result result) {
  const std::lock_guard<std::mutex> lock(fault_mutex);
  ++fault_count;
  fault_text += what + "\n";
  return result;
}

int current_device() { return device_of(current_context); }

int emulated_host(int device) {
  const char* text = getenv("COCOLL_EMULATED_HOSTS");
  for (; text != nullptr && device > 0; --device) {
    text = strchr(text, ',');
    if (text != nullptr) ++text;
  }
  return text == nullptr ? 0 : atoi(text);
}

bool is_device_memory(DevicePointer pointer, size_t bytes) {
  const Range range = find_range(pointer);
  return range.bytes != 0 && bytes <= range.bytes - (pointer - range.base);
}

}  // namespace cocoll::emulated

// ---- what the tests ask ------------------------------------------------------------------------

extern "C" int emulated_fault_count() {
  const std::lock_guard<std::mutex> lock(fault_mutex);
  return fault_count;
}

extern "C" const char* emulated_faults() { return fault_text.c_str(); }

// Of a fault that a test has planted.
extern "C" void emulated_forget_faults() {
  const std::lock_guard<std::mutex> lock(fault_mutex);
  fault_count = 0;
  fault_text.clear();
}

extern "C" int emulated_allocation_count() {
  const std::lock_guard<std::mutex> lock(memory().mutex);
  return static_cast<int>(memory().allocations.size() + memory().mappings.size());
}

// ---- the driver --------------------------------------------------------------------------------

extern "C" {

Result cuInit(unsigned) {
  return setting("COCOLL_EMULATED_DEVICES", 1) == 0 ? cuda::kNoDevice : cuda::kSuccess;
}

Result cuDriverGetVersion(int* version) {
  *version = setting("COCOLL_EMULATED_DRIVER_VERSION", 13000);
  return cuda::kSuccess;
}

Result cuGetErrorString(Result result, const char** text) {
  switch (result) {
    case cuda::kSuccess:
      *text = "no error";
      break;
    case kInvalidValue:
      *text = "invalid argument";
      break;
    case cuda::kOutOfMemory:
      *text = "out of memory";
      break;
    case cuda::kNoDevice:
      *text = "no CUDA-capable device is detected";
      break;
    case kInvalidContext:
      *text = "invalid device context";
      break;
    case kPeerAccessUnsupported:
      *text = "peer access is not supported between these two devices";
      break;
    case cuda::kCaptureUnsupported:
      *text = "operation not permitted when stream is capturing";
      break;
    case 901:
      *text = "operation failed due to a previous error during capture";
      break;
    default:
      *text = "an error of the emulated device";
      break;
  }
  return cuda::kSuccess;
}

Result cuDeviceGetCount(int* count) {
  *count = setting("COCOLL_EMULATED_DEVICES", 1);
  return cuda::kSuccess;
}

Result cuDeviceGet(cuda::Device* device, int ordinal) {
  if (ordinal < 0 || ordinal >= setting("COCOLL_EMULATED_DEVICES", 1)) return kInvalidDevice;
  *device = ordinal;
  return cuda::kSuccess;
}

Result cuDeviceGetName(char* name, int length, cuda::Device) {
  snprintf(name, static_cast<size_t>(length), "emulated device");
  return cuda::kSuccess;
}

Result cuDeviceGetPCIBusId(char* text, int length, cuda::Device device) {
  snprintf(text, static_cast<size_t>(length), "0000:%02x:00.0", static_cast<unsigned>(device));
  return cuda::kSuccess;
}

Result cuDeviceGetAttribute(int* value, int attribute, cuda::Device) {
  switch (attribute) {
    case cuda::kAttributeMultiprocessorCount:
      *value = kMultiprocessors;
      break;
    case cuda::kAttributeComputeMajor:
      *value = 9;
      break;
    case cuda::kAttributeComputeMinor:
      *value = 0;
      break;
    default:
      return kInvalidValue;
  }
  return cuda::kSuccess;
}

Result cuDeviceCanAccessPeer(int* can, cuda::Device device, cuda::Device peer) {
  *can = can_access(device, peer) ? 1 : 0;
  return cuda::kSuccess;
}

Result cuDevicePrimaryCtxRetain(cuda::Context* context, cuda::Device device) {
  *context = reinterpret_cast<cuda::Context>(static_cast<uintptr_t>(device) + 1);
  return cuda::kSuccess;
}

Result cuDevicePrimaryCtxRelease_v2(cuda::Device) { return cuda::kSuccess; }

Result cuCtxSetCurrent(cuda::Context context) {
  current_context = context;
  return cuda::kSuccess;
}

Result cuCtxGetCurrent(cuda::Context* context) {
  *context = current_context;
  return cuda::kSuccess;
}

Result cuCtxEnablePeerAccess(cuda::Context peer, unsigned) {
  if (!has_context()) return kInvalidContext;
  return can_access(current_device(), device_of(peer)) ? cuda::kSuccess : kPeerAccessUnsupported;
}

Result cuMemAlloc_v2(DevicePointer* pointer, size_t bytes) {
  if (!has_context()) return kInvalidContext;
  if (capture_forbids(__func__)) return cuda::kCaptureUnsupported;
  if (bytes == 0) return kInvalidValue;
  const int fd = memfd_create("emulated device", MFD_CLOEXEC);
  if (fd < 0) return cuda::kOutOfMemory;
  const size_t mapped = kHeaderBytes + bytes;
  void* base = MAP_FAILED;
  if (ftruncate(fd, static_cast<off_t>(mapped)) == 0) {
    base = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  if (base == MAP_FAILED) {
    close(fd);
    return cuda::kOutOfMemory;
  }
  // Not zeros: what a real allocation holds is anybody's guess.
  memset(static_cast<char*>(base) + kHeaderBytes, 0xa5, bytes);
  *pointer = reinterpret_cast<DevicePointer>(base) + kHeaderBytes;
  const std::lock_guard<std::mutex> lock(memory().mutex);
  memory().allocations[*pointer] = {bytes, current_device(), fd};
  return cuda::kSuccess;
}

Result cuMemFree_v2(DevicePointer pointer) {
  if (capture_forbids(__func__)) return cuda::kCaptureUnsupported;
  Memory& all = memory();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.allocations.find(pointer);
  if (found == all.allocations.end()) return fault("free of what was not allocated");
  Header* header = header_of(pointer);
  header->freed.store(1);
  if (header->mappings.load() != 0) fault("free of memory that a peer has mapped");
  close(found->second.fd);
  munmap(header, kHeaderBytes + found->second.bytes);
  all.allocations.erase(found);
  return cuda::kSuccess;
}

Result cuMemHostAlloc(void** pointer, size_t bytes, unsigned) {
  if (!has_context()) return kInvalidContext;
  if (capture_forbids(__func__)) return cuda::kCaptureUnsupported;
  *pointer = aligned_alloc(64, (bytes + 63) / 64 * 64);
  return *pointer == nullptr ? cuda::kOutOfMemory : cuda::kSuccess;
}

Result cuMemFreeHost(void* pointer) {
  free(pointer);
  return cuda::kSuccess;
}

Result cuMemHostGetDevicePointer_v2(DevicePointer* pointer, void* host, unsigned) {
  *pointer = reinterpret_cast<DevicePointer>(host);
  return cuda::kSuccess;
}

Result cuMemsetD8Async(DevicePointer pointer, unsigned char value, size_t bytes,
                       cuda::Stream stream) {
  if (is_foreign(reinterpret_cast<void*>(pointer))) return fault("a store into another host's GPU");
  return submit(stream, [=] { memset(reinterpret_cast<void*>(pointer), value, bytes); });
}

Result cuMemsetD32Async(DevicePointer pointer, unsigned value, size_t words, cuda::Stream stream) {
  if (pointer % sizeof value != 0) return kInvalidValue;
  return submit(stream, [=] { std::fill_n(reinterpret_cast<unsigned*>(pointer), words, value); });
}

Result cuMemcpyAsync(DevicePointer to, DevicePointer from, size_t bytes, cuda::Stream stream) {
  if (is_foreign(reinterpret_cast<void*>(to)) || is_foreign(reinterpret_cast<void*>(from))) {
    return fault("a copy between GPUs of two hosts");
  }
  return submit(stream, [=] {
    memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  });
}

Result cuMemGetAddressRange_v2(DevicePointer* base, size_t* bytes, DevicePointer pointer) {
  const Range range = find_range(pointer);
  if (range.bytes == 0) return kNotFound;
  if (base != nullptr) *base = range.base;
  if (bytes != nullptr) *bytes = range.bytes;
  return cuda::kSuccess;
}

Result cuPointerGetAttribute(void* value, int attribute, DevicePointer pointer) {
  const Range range = find_range(pointer);
  if (range.bytes == 0) return kInvalidValue;
  if (attribute == cuda::kPointerMemoryType) {
    *static_cast<unsigned*>(value) = cuda::kMemoryTypeDevice;
  } else if (attribute == cuda::kPointerDeviceOrdinal) {
    *static_cast<int*>(value) = range.device;
  } else {
    return kInvalidValue;
  }
  return cuda::kSuccess;
}

Result cuIpcGetMemHandle(cuda::IpcMemHandle* handle, DevicePointer pointer) {
  Memory& all = memory();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.allocations.find(pointer);
  // A GPU's handle names the whole allocation, whatever part was asked for: easily got wrong.
  if (found == all.allocations.end()) return fault("export of what is no beginning of memory");
  const Allocation& exported = found->second;
  const Handle contents = {kHandleMagic, getpid(), exported.fd, exported.bytes, exported.device};
  memset(handle, 0, sizeof *handle);
  memcpy(handle, &contents, sizeof contents);
  return cuda::kSuccess;
}

Result cuIpcOpenMemHandle_v2(DevicePointer* pointer, cuda::IpcMemHandle handle, unsigned) {
  if (capture_forbids(__func__)) return cuda::kCaptureUnsupported;
  Handle contents;
  memcpy(&contents, &handle, sizeof contents);
  if (contents.magic != kHandleMagic) return fault("an IPC handle that is none");
  if (contents.pid == getpid())
    return fault("a process opened its own IPC handle", kInvalidContext);
  if (!has_context()) return kInvalidContext;
  if (!can_access(current_device(), contents.device)) return kPeerAccessUnsupported;
  Memory& all = memory();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const std::pair<int32_t, int32_t> identity = {contents.pid, contents.fd};
  if (!all.opened.insert(identity).second) return fault("an IPC handle was opened twice");
  const std::string path =
      "/proc/" + std::to_string(contents.pid) + "/fd/" + std::to_string(contents.fd);
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return fault("an IPC handle of memory that has gone");
  void* base =
      mmap(nullptr, kHeaderBytes + contents.bytes, PROT_READ | PROT_WRITE,
           setting("COCOLL_EMULATED_LOST_WRITES", 0) != 0 ? MAP_PRIVATE : MAP_SHARED, fd, 0);
  close(fd);
  if (base == MAP_FAILED) return cuda::kOutOfMemory;
  *pointer = reinterpret_cast<DevicePointer>(base) + kHeaderBytes;
  if (header_of(*pointer)->freed.load() != 0) fault("an IPC handle of memory that was freed");
  header_of(*pointer)->mappings.fetch_add(1);
  all.mappings[*pointer] = {contents.bytes, current_device(), identity};
  return cuda::kSuccess;
}

Result cuIpcCloseMemHandle(DevicePointer pointer) {
  Memory& all = memory();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.mappings.find(pointer);
  if (found == all.mappings.end()) return fault("close of what was not opened");
  header_of(pointer)->mappings.fetch_sub(1);
  munmap(header_of(pointer), kHeaderBytes + found->second.bytes);
  all.opened.erase(found->second.source);
  all.mappings.erase(found);
  return cuda::kSuccess;
}

// An image is the path of a library of kernels that g++ has built.
Result cuModuleLoadData(cuda::Module* module, const void* image) {
  if (capture_forbids(__func__)) return cuda::kCaptureUnsupported;
  void* library = dlopen(static_cast<const char*>(image), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return kInvalidImage;
  *module = reinterpret_cast<cuda::Module>(library);
  return cuda::kSuccess;
}

Result cuModuleUnload(cuda::Module module) {
  dlclose(module);
  return cuda::kSuccess;
}

Result cuModuleGetFunction(cuda::Function* function, cuda::Module module, const char* name) {
  *function = reinterpret_cast<cuda::Function>(dlsym(module, name));
  return *function == nullptr ? kNotFound : cuda::kSuccess;
}

Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, cuda::Function, int, size_t) {
  *blocks = kBlocksPerMultiprocessor;
  return cuda::kSuccess;
}

Result cuLaunchKernel(cuda::Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                      unsigned block_x, unsigned, unsigned, unsigned, cuda::Stream stream,
                      void** parameters, void**) {
  if (!has_context()) return kInvalidContext;
  if (grid_x == 0 || grid_y != 1 || grid_z != 1 || block_x == 0 || block_x > 1024) {
    return kInvalidValue;
  }
  if (grid_x > kMultiprocessors * kBlocksPerMultiprocessor) {
    return fault("a grid that meets its peers must be resident as a whole");
  }
  const GridKernel kernel = reinterpret_cast<GridKernel>(function);
  const auto call = std::make_shared<const cocoll_grid_call>(
      *static_cast<const cocoll_grid_call*>(parameters[0]));
  if (touches_foreign(*call)) return fault("a kernel was given memory of another host's GPU");
  return submit(stream, [=] { run_grid(kernel, *call, static_cast<int>(grid_x)); });
}

}  // extern "C"
