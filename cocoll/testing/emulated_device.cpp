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
// default 1; a kernel must not depend on it).

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "cocoll/cuda/driver.h"
#include "cocoll/kernels/flags.h"
#include "cocoll/kernels/grid_abi.h"

namespace cuda = cocoll::cuda;
using cuda::DevicePointer;
using cuda::Result;

namespace {

constexpr int kMultiprocessors = 4;
constexpr int kBlocksPerMultiprocessor = 2;
constexpr Result kInvalidValue = 1;
constexpr Result kInvalidDevice = 101;
constexpr Result kInvalidContext = 201;
constexpr Result kInvalidImage = 200;
constexpr Result kNotFound = 500;
constexpr Result kInvalidHandle = 400;
constexpr Result kCaptureIsolation = 905;

int setting(const char* name, int usual) {
  const char* text = getenv(name);
  return text == nullptr || *text == 0 ? usual : atoi(text);
}

// ---- faults ------------------------------------------------------------------------------------

std::mutex fault_mutex;
std::string fault_text;
int fault_count = 0;

Result fault(const std::string& what, Result result = kInvalidValue) {
  const std::lock_guard<std::mutex> lock(fault_mutex);
  ++fault_count;
  fault_text += what + "\n";
  return result;
}

// ---- memory ------------------------------------------------------------------------------------

// The page in front of every allocation, which processes that map it share.
struct Header {
  std::atomic<int> mappings;
  std::atomic<int> freed;
};

constexpr size_t kHeaderBytes = 4096;

struct Allocation {
  size_t bytes;
  int fd;
};

// The contents of an IPC handle.
struct Handle {
  uint64_t magic;
  int32_t pid;
  int32_t fd;
  uint64_t bytes;
};

constexpr uint64_t kHandleMagic = 0x6374656c756d65;

struct Memory {
  std::mutex mutex;
  std::map<DevicePointer, Allocation> allocations;
  std::map<DevicePointer, size_t> mappings;      // of other processes' allocations
  std::set<std::pair<int32_t, int32_t>> opened;  // by pid and fd
  std::map<DevicePointer, std::pair<int32_t, int32_t>> opened_as;
};

Memory& memory() {
  static Memory* made = new Memory;  // streams may outlive static destructors
  return *made;
}

Header* header_of(DevicePointer pointer) {
  return reinterpret_cast<Header*>(pointer - kHeaderBytes);
}

// ---- streams -----------------------------------------------------------------------------------

struct EventState {
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t recorded = 0;
  uint64_t completed = 0;
};

typedef std::function<void()> Item;

struct Graph {
  bool is_global = false;
  std::vector<Item> items;
};

class StreamState {
 public:
  explicit StreamState(unsigned number)
      : random_(static_cast<unsigned>(setting("COCOLL_EMULATED_SEED", 0)) * 7919u + number),
        thread_([this] { work(); }) {}

  ~StreamState() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void submit(Item item) {
    const std::lock_guard<std::mutex> lock(mutex_);
    items_.push_back(std::move(item));
    ++issued_;
    changed_.notify_all();
  }

  void synchronize() {
    std::unique_lock<std::mutex> lock(mutex_);
    const uint64_t awaited = issued_;
    changed_.wait(lock, [&] { return done_ >= awaited; });
  }

  bool idle() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return done_ == issued_;
  }

  std::unique_ptr<Graph> capture;  // while capturing; one thread uses a stream at a time

 private:
  void work() {
    for (;;) {
      Item item;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [&] { return ends_ || !items_.empty(); });
        if (items_.empty()) return;
        item = std::move(items_.front());
        items_.pop_front();
      }
      delay();
      item();
      const std::lock_guard<std::mutex> lock(mutex_);
      ++done_;
      changed_.notify_all();
    }
  }

  void delay() {
    const unsigned drawn = static_cast<unsigned>(random_());
    if (drawn % 4 == 0) {
      const timespec time = {0, static_cast<long>(drawn / 4 % 300) * 1000};
      nanosleep(&time, nullptr);
    } else if (drawn % 4 == 1) {
      sched_yield();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> items_;
  uint64_t issued_ = 0;
  uint64_t done_ = 0;
  bool ends_ = false;
  std::mt19937 random_;
  std::thread thread_;
};

struct Streams {
  std::mutex mutex;
  // Shared with who waits for all of them while one is destroyed.
  std::map<StreamState*, std::shared_ptr<StreamState>> alive;
  unsigned made = 0;
  StreamState* usual = nullptr;  // stream 0
};

Streams& streams() {
  static Streams* made = new Streams;
  return *made;
}

StreamState* find(cuda::Stream stream) {
  Streams& all = streams();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (stream == nullptr) {
    if (all.usual == nullptr) {
      const auto made = std::make_shared<StreamState>(all.made++);
      all.usual = made.get();
      all.alive[all.usual] = made;
    }
    return all.usual;
  }
  StreamState* state = reinterpret_cast<StreamState*>(stream);
  return all.alive.count(state) != 0 ? state : nullptr;
}

// Queues an item, or takes it into the graph that is being captured.
Result submit(cuda::Stream stream, Item item) {
  StreamState* state = find(stream);
  if (state == nullptr) return fault("work on a stream that does not exist", kInvalidHandle);
  if (state->capture != nullptr) {
    state->capture->items.push_back(std::move(item));
  } else {
    state->submit(std::move(item));
  }
  return cuda::kSuccess;
}

// While anything is captured, calls that wait or allocate are refused: in the whole process or, if
// the capture is the thread's own, on this thread.
constexpr int kCaptureModeGlobal = 0;
std::atomic<int> global_captures{0};
thread_local int own_captures = 0;

bool capture_forbids() { return global_captures != 0 || own_captures != 0; }

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

}  // namespace

// ---- what the tests ask ------------------------------------------------------------------------

extern "C" int emulated_fault_count() {
  const std::lock_guard<std::mutex> lock(fault_mutex);
  return fault_count;
}

extern "C" const char* emulated_faults() { return fault_text.c_str(); }

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
    case cuda::kCaptureUnsupported:
      *text = "operation not permitted when stream is capturing";
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

Result cuDeviceCanAccessPeer(int* can, cuda::Device, cuda::Device) {
  *can = 1;
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

Result cuCtxSynchronize() {
  if (capture_forbids()) return cuda::kCaptureUnsupported;
  std::map<StreamState*, std::shared_ptr<StreamState>> alive;
  {
    const std::lock_guard<std::mutex> lock(streams().mutex);
    alive = streams().alive;
  }
  for (const auto& [state, shared] : alive) state->synchronize();
  return cuda::kSuccess;
}

Result cuCtxEnablePeerAccess(cuda::Context, unsigned) { return cuda::kSuccess; }

Result cuMemAlloc_v2(DevicePointer* pointer, size_t bytes) {
  if (!has_context()) return kInvalidContext;
  if (capture_forbids()) return cuda::kCaptureUnsupported;
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
  memory().allocations[*pointer] = {bytes, fd};
  return cuda::kSuccess;
}

Result cuMemFree_v2(DevicePointer pointer) {
  if (capture_forbids()) return cuda::kCaptureUnsupported;
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
  if (capture_forbids()) return cuda::kCaptureUnsupported;
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
  return submit(stream, [=] { memset(reinterpret_cast<void*>(pointer), value, bytes); });
}

Result cuMemcpyAsync(DevicePointer to, DevicePointer from, size_t bytes, cuda::Stream stream) {
  return submit(stream, [=] {
    memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  });
}

Result cuMemGetAddressRange_v2(DevicePointer* base, size_t* bytes, DevicePointer pointer) {
  Memory& all = memory();
  const std::lock_guard<std::mutex> lock(all.mutex);
  auto found = all.allocations.upper_bound(pointer);
  if (found == all.allocations.begin()) return kNotFound;
  --found;
  if (pointer >= found->first + found->second.bytes) return kNotFound;
  if (base != nullptr) *base = found->first;
  if (bytes != nullptr) *bytes = found->second.bytes;
  return cuda::kSuccess;
}

Result cuPointerGetAttribute(void* value, int attribute, DevicePointer pointer) {
  if (cuMemGetAddressRange_v2(nullptr, nullptr, pointer) != cuda::kSuccess) return kInvalidValue;
  if (attribute == cuda::kPointerMemoryType) {
    *static_cast<unsigned*>(value) = cuda::kMemoryTypeDevice;
  } else if (attribute == cuda::kPointerDeviceOrdinal) {
    *static_cast<int*>(value) = 0;
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
  const Handle contents = {kHandleMagic, getpid(), found->second.fd, found->second.bytes};
  memset(handle, 0, sizeof *handle);
  memcpy(handle, &contents, sizeof contents);
  return cuda::kSuccess;
}

Result cuIpcOpenMemHandle_v2(DevicePointer* pointer, cuda::IpcMemHandle handle, unsigned) {
  if (capture_forbids()) return cuda::kCaptureUnsupported;
  Handle contents;
  memcpy(&contents, &handle, sizeof contents);
  if (contents.magic != kHandleMagic) return fault("an IPC handle that is none");
  if (contents.pid == getpid())
    return fault("a process opened its own IPC handle", kInvalidContext);
  Memory& all = memory();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const std::pair<int32_t, int32_t> identity = {contents.pid, contents.fd};
  if (!all.opened.insert(identity).second) return fault("an IPC handle was opened twice");
  const std::string path =
      "/proc/" + std::to_string(contents.pid) + "/fd/" + std::to_string(contents.fd);
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return fault("an IPC handle of memory that has gone");
  void* base =
      mmap(nullptr, kHeaderBytes + contents.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (base == MAP_FAILED) return cuda::kOutOfMemory;
  *pointer = reinterpret_cast<DevicePointer>(base) + kHeaderBytes;
  if (header_of(*pointer)->freed.load() != 0) fault("an IPC handle of memory that was freed");
  header_of(*pointer)->mappings.fetch_add(1);
  all.mappings[*pointer] = contents.bytes;
  all.opened_as[*pointer] = identity;
  return cuda::kSuccess;
}

Result cuIpcCloseMemHandle(DevicePointer pointer) {
  Memory& all = memory();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.mappings.find(pointer);
  if (found == all.mappings.end()) return fault("close of what was not opened");
  header_of(pointer)->mappings.fetch_sub(1);
  munmap(header_of(pointer), kHeaderBytes + found->second);
  all.opened.erase(all.opened_as[pointer]);
  all.opened_as.erase(pointer);
  all.mappings.erase(found);
  return cuda::kSuccess;
}

Result cuStreamCreate(cuda::Stream* stream, unsigned) {
  if (!has_context()) return kInvalidContext;
  Streams& all = streams();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto state = std::make_shared<StreamState>(all.made++);
  all.alive[state.get()] = state;
  *stream = reinterpret_cast<cuda::Stream>(state.get());
  return cuda::kSuccess;
}

Result cuStreamDestroy_v2(cuda::Stream stream) {
  StreamState* state = find(stream);
  if (state == nullptr || stream == nullptr) return fault("destruction of no stream");
  std::shared_ptr<StreamState> last;  // what was queued still runs
  {
    const std::lock_guard<std::mutex> lock(streams().mutex);
    last = streams().alive[state];
    streams().alive.erase(state);
  }
  return cuda::kSuccess;
}

Result cuStreamSynchronize(cuda::Stream stream) {
  if (capture_forbids()) return cuda::kCaptureUnsupported;
  StreamState* state = find(stream);
  if (state == nullptr) return kInvalidHandle;
  state->synchronize();
  return cuda::kSuccess;
}

Result cuStreamQuery(cuda::Stream stream) {
  if (capture_forbids()) return cuda::kCaptureUnsupported;
  StreamState* state = find(stream);
  if (state == nullptr) return kInvalidHandle;
  return state->idle() ? cuda::kSuccess : cuda::kNotReady;
}

Result cuStreamIsCapturing(cuda::Stream stream, int* status) {
  StreamState* state = find(stream);
  if (state == nullptr) return kInvalidHandle;
  *status = state->capture != nullptr ? cuda::kCaptureActive : cuda::kCaptureNone;
  return cuda::kSuccess;
}

Result cuEventCreate(cuda::Event* event, unsigned) {
  *event = reinterpret_cast<cuda::Event>(new std::shared_ptr<EventState>(new EventState));
  return cuda::kSuccess;
}

Result cuEventDestroy_v2(cuda::Event event) {
  delete reinterpret_cast<std::shared_ptr<EventState>*>(event);
  return cuda::kSuccess;
}

Result cuEventRecord(cuda::Event event, cuda::Stream stream) {
  StreamState* state = find(stream);
  if (state != nullptr && state->capture != nullptr) {
    return fault("an event was recorded in a capture, which nobody may wait for outside it",
                 kCaptureIsolation);
  }
  const std::shared_ptr<EventState> shared = *reinterpret_cast<std::shared_ptr<EventState>*>(event);
  uint64_t mine;
  {
    const std::lock_guard<std::mutex> lock(shared->mutex);
    mine = ++shared->recorded;
  }
  return submit(stream, [shared, mine] {
    const std::lock_guard<std::mutex> lock(shared->mutex);
    if (shared->completed < mine) shared->completed = mine;
    shared->changed.notify_all();
  });
}

Result cuEventQuery(cuda::Event event) {
  if (capture_forbids()) return cuda::kCaptureUnsupported;
  const std::shared_ptr<EventState> shared = *reinterpret_cast<std::shared_ptr<EventState>*>(event);
  const std::lock_guard<std::mutex> lock(shared->mutex);
  return shared->completed == shared->recorded ? cuda::kSuccess : cuda::kNotReady;
}

Result cuStreamWaitEvent(cuda::Stream stream, cuda::Event event, unsigned) {
  StreamState* state = find(stream);
  if (state != nullptr && state->capture != nullptr) {
    return fault("a capture waits for an event of outside", kCaptureIsolation);
  }
  const std::shared_ptr<EventState> shared = *reinterpret_cast<std::shared_ptr<EventState>*>(event);
  uint64_t awaited;
  {
    const std::lock_guard<std::mutex> lock(shared->mutex);
    awaited = shared->recorded;
  }
  return submit(stream, [shared, awaited] {
    std::unique_lock<std::mutex> lock(shared->mutex);
    shared->changed.wait(lock, [&] { return shared->completed >= awaited; });
  });
}

// An image is the path of a library of kernels that g++ has built.
Result cuModuleLoadData(cuda::Module* module, const void* image) {
  if (capture_forbids()) return cuda::kCaptureUnsupported;
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
  const cocoll_grid_call call = *static_cast<const cocoll_grid_call*>(parameters[0]);
  return submit(stream, [=] { run_grid(kernel, call, static_cast<int>(grid_x)); });
}

// ---- graphs: what a framework does around cocoll
// -------------------------------------------------

Result cuStreamBeginCapture_v2(cuda::Stream stream, int mode) {
  StreamState* state = find(stream);
  if (state == nullptr || stream == nullptr || state->capture != nullptr) return kInvalidValue;
  state->capture = std::make_unique<Graph>();
  state->capture->is_global = mode == kCaptureModeGlobal;
  if (state->capture->is_global) {
    ++global_captures;
  } else {
    ++own_captures;
  }
  return cuda::kSuccess;
}

Result cuStreamEndCapture(cuda::Stream stream, Graph** graph) {
  StreamState* state = find(stream);
  if (state == nullptr || state->capture == nullptr) return kInvalidValue;
  *graph = state->capture.release();
  if ((*graph)->is_global) {
    --global_captures;
  } else {
    --own_captures;
  }
  return cuda::kSuccess;
}

Result cuGraphInstantiateWithFlags(Graph** executable, Graph* graph, unsigned long long) {
  if (capture_forbids()) return cuda::kCaptureUnsupported;
  *executable = new Graph(*graph);
  return cuda::kSuccess;
}

Result cuGraphExecDestroy(Graph* executable) {
  delete executable;
  return cuda::kSuccess;
}

Result cuGraphLaunch(Graph* graph, cuda::Stream stream) {
  for (const Item& item : graph->items) {
    const Result result = submit(stream, item);
    if (result != cuda::kSuccess) return result;
  }
  return cuda::kSuccess;
}

Result cuGraphDestroy(Graph* graph) {
  delete graph;
  return cuda::kSuccess;
}

}  // extern "C"
