// The CUDA driver, as a table of the functions that are used, filled when a GPU is first asked for.
//
// Nothing links against libcuda: one build serves machines with and without a GPU. The names and
// versions are those that cuda.h maps its functions to since CUDA 12; the tests fill the same table
// from the emulated device. No CUDA header is needed.

#ifndef COCOLL_CUDA_DRIVER_H_
#define COCOLL_CUDA_DRIVER_H_

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace cocoll::cuda {

typedef int Result;
typedef int Device;
typedef uint64_t DevicePointer;
typedef struct Context_* Context;
typedef struct Stream_* Stream;
typedef struct Event_* Event;
typedef struct Module_* Module;
typedef struct Function_* Function;

struct IpcMemHandle {
  char bytes[64];
};

// Results that are told apart.
constexpr Result kSuccess = 0;
constexpr Result kOutOfMemory = 2;
constexpr Result kNoDevice = 100;
constexpr Result kNotReady = 600;
constexpr Result kPeerAccessAlreadyEnabled = 704;
constexpr Result kCaptureUnsupported = 900;

constexpr int kAttributeMultiprocessorCount = 16;
constexpr int kAttributeComputeMajor = 75;
constexpr int kAttributeComputeMinor = 76;

constexpr int kPointerMemoryType = 2;
constexpr int kPointerDeviceOrdinal = 9;
constexpr unsigned kMemoryTypeDevice = 2;

constexpr unsigned kStreamNonBlocking = 1;
constexpr unsigned kEventDisableTiming = 2;
constexpr unsigned kHostAllocPortable = 1;
constexpr unsigned kHostAllocMapped = 2;
constexpr unsigned kIpcLazyPeerAccess = 1;

constexpr int kCaptureNone = 0;
constexpr int kCaptureActive = 1;
constexpr int kCaptureModeRelaxed = 2;

// CUDA 12.0, the first whose compiler and driver know all that the kernels use.
constexpr int kOldestDriverVersion = 12000;

// name in the table, exported symbol, parameters
#define COCOLL_DRIVER_FUNCTIONS(F)                                                                \
  F(init, "cuInit", (unsigned flags))                                                             \
  F(driver_get_version, "cuDriverGetVersion", (int* version))                                     \
  F(get_error_string, "cuGetErrorString", (Result result, const char** text))                     \
  F(device_get_count, "cuDeviceGetCount", (int* count))                                           \
  F(device_get, "cuDeviceGet", (Device * device, int ordinal))                                    \
  F(device_get_name, "cuDeviceGetName", (char* name, int length, Device device))                  \
  F(device_get_bus, "cuDeviceGetPCIBusId", (char* text, int length, Device device))               \
  F(device_get_attribute, "cuDeviceGetAttribute", (int* value, int attribute, Device device))     \
  F(device_can_access_peer, "cuDeviceCanAccessPeer", (int* can, Device device, Device peer))      \
  F(primary_context_retain, "cuDevicePrimaryCtxRetain", (Context * context, Device device))       \
  F(primary_context_release, "cuDevicePrimaryCtxRelease_v2", (Device device))                     \
  F(context_set_current, "cuCtxSetCurrent", (Context context))                                    \
  F(context_synchronize, "cuCtxSynchronize", ())                                                  \
  F(context_get_current, "cuCtxGetCurrent", (Context * context))                                  \
  F(context_enable_peer_access, "cuCtxEnablePeerAccess", (Context peer, unsigned flags))          \
  F(mem_alloc, "cuMemAlloc_v2", (DevicePointer * pointer, size_t bytes))                          \
  F(mem_free, "cuMemFree_v2", (DevicePointer pointer))                                            \
  F(mem_host_alloc, "cuMemHostAlloc", (void** pointer, size_t bytes, unsigned flags))             \
  F(mem_free_host, "cuMemFreeHost", (void* pointer))                                              \
  F(mem_host_get_device_pointer, "cuMemHostGetDevicePointer_v2",                                  \
    (DevicePointer * pointer, void* host, unsigned flags))                                        \
  F(memset_async, "cuMemsetD8Async",                                                              \
    (DevicePointer pointer, unsigned char value, size_t bytes, Stream stream))                    \
  F(memset_words_async, "cuMemsetD32Async",                                                       \
    (DevicePointer pointer, unsigned value, size_t words, Stream stream))                         \
  F(memcpy_async, "cuMemcpyAsync",                                                                \
    (DevicePointer to, DevicePointer from, size_t bytes, Stream stream))                          \
  F(pointer_get_attribute, "cuPointerGetAttribute",                                               \
    (void* value, int attribute, DevicePointer pointer))                                          \
  F(mem_get_address_range, "cuMemGetAddressRange_v2",                                             \
    (DevicePointer * base, size_t* bytes, DevicePointer pointer))                                 \
  F(ipc_get_mem_handle, "cuIpcGetMemHandle", (IpcMemHandle * handle, DevicePointer pointer))      \
  F(ipc_open_mem_handle, "cuIpcOpenMemHandle_v2",                                                 \
    (DevicePointer * pointer, IpcMemHandle handle, unsigned flags))                               \
  F(ipc_close_mem_handle, "cuIpcCloseMemHandle", (DevicePointer pointer))                         \
  F(stream_create, "cuStreamCreate", (Stream * stream, unsigned flags))                           \
  F(stream_destroy, "cuStreamDestroy_v2", (Stream stream))                                        \
  F(stream_synchronize, "cuStreamSynchronize", (Stream stream))                                   \
  F(stream_query, "cuStreamQuery", (Stream stream))                                               \
  F(stream_wait_event, "cuStreamWaitEvent", (Stream stream, Event event, unsigned flags))         \
  F(stream_is_capturing, "cuStreamIsCapturing", (Stream stream, int* status))                     \
  F(thread_exchange_capture_mode, "cuThreadExchangeStreamCaptureMode", (int* mode))               \
  F(stream_get_capture, "cuStreamGetCaptureInfo_v2",                                              \
    (Stream stream, int* status, uint64_t* id, void* graph, void* nodes, size_t* count))          \
  F(event_create, "cuEventCreate", (Event * event, unsigned flags))                               \
  F(event_destroy, "cuEventDestroy_v2", (Event event))                                            \
  F(event_record, "cuEventRecord", (Event event, Stream stream))                                  \
  F(event_query, "cuEventQuery", (Event event))                                                   \
  F(module_load_data, "cuModuleLoadData", (Module * module, const void* image))                   \
  F(module_unload, "cuModuleUnload", (Module module))                                             \
  F(module_get_function, "cuModuleGetFunction",                                                   \
    (Function * function, Module module, const char* name))                                       \
  F(occupancy_max_active_blocks, "cuOccupancyMaxActiveBlocksPerMultiprocessor",                   \
    (int* blocks, Function function, int threads, size_t shared_bytes))                           \
  F(launch_kernel, "cuLaunchKernel",                                                              \
    (Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,      \
     unsigned block_y, unsigned block_z, unsigned shared_bytes, Stream stream, void** parameters, \
     void** extra))

struct Driver {
#define COCOLL_DECLARE(name, symbol, parameters) Result(*name) parameters = nullptr;
  COCOLL_DRIVER_FUNCTIONS(COCOLL_DECLARE)
#undef COCOLL_DECLARE
};

enum class LoadStatus { kLoaded = 0, kNoLibrary, kNoSymbol, kTooOld, kNotUsable, kNoGpu };

struct LoadError {
  LoadStatus status = LoadStatus::kLoaded;
  std::string detail;  // what dlopen said, the missing symbol, the version found, or CUDA's text
};

// What the driver says of a result.
inline std::string describe(const Driver& driver, Result result) {
  const char* text = nullptr;
  if (driver.get_error_string(result, &text) != kSuccess || text == nullptr) text = "unknown error";
  return std::string(text) + " (" + std::to_string(result) + ")";
}

// Fills the table from a library and makes sure that it can be used. The library stays loaded: the
// driver keeps threads and exit handlers of its own.
inline LoadError load_driver(const char* path, Driver* driver) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return {LoadStatus::kNoLibrary, dlerror()};
#define COCOLL_RESOLVE(name, symbol, parameters)                                 \
  driver->name = reinterpret_cast<Result(*) parameters>(dlsym(library, symbol)); \
  if (driver->name == nullptr) return {LoadStatus::kNoSymbol, symbol};
  COCOLL_DRIVER_FUNCTIONS(COCOLL_RESOLVE)
#undef COCOLL_RESOLVE
  const Result started = driver->init(0);
  if (started == kNoDevice) return {LoadStatus::kNoGpu, describe(*driver, started)};
  if (started != kSuccess) return {LoadStatus::kNotUsable, describe(*driver, started)};
  int version = 0;
  if (driver->driver_get_version(&version) != kSuccess || version < kOldestDriverVersion) {
    return {LoadStatus::kTooOld, std::to_string(version)};
  }
  int count = 0;
  const Result counted = driver->device_get_count(&count);
  if (counted != kSuccess) return {LoadStatus::kNotUsable, describe(*driver, counted)};
  if (count == 0) return {LoadStatus::kNoGpu, "cuDeviceGetCount gives 0"};
  return {};
}

}  // namespace cocoll::cuda

#endif  // COCOLL_CUDA_DRIVER_H_
