// NCCL, as a table of the functions that are used, filled when a communicator first needs it.
//
// It carries what ranks send whose GPUs cannot map each other's memory, and collectives that it
// does better than kernels of ours. Nothing links against it: the library may be torch's or CuPy's
// own, loaded already. The tests fill the same table from the emulated device. No NCCL header is
// needed.

#ifndef COCOLL_CUDA_NCCL_H_
#define COCOLL_CUDA_NCCL_H_

#include <dlfcn.h>

#include <climits>
#include <cstddef>
#include <string>

#include "cocoll/cuda/driver.h"

namespace cocoll::cuda {

typedef int NcclResult;
typedef struct NcclCommunicator_* NcclCommunicator;

struct NcclUniqueId {
  char bytes[128];
};

constexpr NcclResult kNcclSuccess = 0;
constexpr NcclResult kNcclInProgress = 7;

// Elements of a byte: what sends and receives count in.
constexpr int kNcclInt8 = 0;

// NCCL 2.19: before it an abort from another thread was not safe.
constexpr int kOldestNcclVersion = 21900;

// How a communicator is made: ncclConfig_t as of NCCL 2.18, which later versions read by its size
// and version.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21800;
  int blocking = 0;
  int cluster_size = INT_MIN;  // the library's choice, as in what follows
  int least_blocks = INT_MIN;
  int most_blocks = INT_MIN;
  const char* network = nullptr;
  int shares_split = INT_MIN;
};

// name in the table, exported symbol, parameters
#define COCOLL_NCCL_FUNCTIONS(F)                                                                  \
  F(get_version, "ncclGetVersion", (int* version))                                                \
  F(get_unique_id, "ncclGetUniqueId", (NcclUniqueId * id))                                        \
  F(comm_init_rank, "ncclCommInitRankConfig",                                                     \
    (NcclCommunicator * comm, int world_size, NcclUniqueId id, int rank, NcclConfig* config))     \
  F(comm_destroy, "ncclCommDestroy", (NcclCommunicator comm))                                     \
  F(comm_abort, "ncclCommAbort", (NcclCommunicator comm))                                         \
  F(comm_get_async_error, "ncclCommGetAsyncError", (NcclCommunicator comm, NcclResult * result))  \
  F(group_start, "ncclGroupStart", ())                                                            \
  F(group_end, "ncclGroupEnd", ())                                                                \
  F(send, "ncclSend",                                                                             \
    (DevicePointer from, size_t count, int type, int peer, NcclCommunicator comm, Stream stream)) \
  F(receive, "ncclRecv",                                                                          \
    (DevicePointer to, size_t count, int type, int peer, NcclCommunicator comm, Stream stream))   \
  F(all_reduce, "ncclAllReduce",                                                                  \
    (DevicePointer from, DevicePointer to, size_t count, int type, int op, NcclCommunicator comm, \
     Stream stream))                                                                              \
  F(reduce_scatter, "ncclReduceScatter",                                                          \
    (DevicePointer from, DevicePointer to, size_t count_of_a_rank, int type, int op,              \
     NcclCommunicator comm, Stream stream))                                                       \
  F(all_gather, "ncclAllGather",                                                                  \
    (DevicePointer from, DevicePointer to, size_t count_of_a_rank, int type,                      \
     NcclCommunicator comm, Stream stream))                                                       \
  F(broadcast, "ncclBroadcast",                                                                   \
    (DevicePointer from, DevicePointer to, size_t count, int type, int root,                      \
     NcclCommunicator comm, Stream stream))

struct Nccl {
#define COCOLL_DECLARE(name, symbol, parameters) NcclResult(*name) parameters = nullptr;
  COCOLL_NCCL_FUNCTIONS(COCOLL_DECLARE)
#undef COCOLL_DECLARE
  const char* (*get_error_string)(NcclResult result) = nullptr;
  int version = 0;  // such as 22809 for 2.28.9
};

// Fills the table from a library that is loaded, or can be. It stays loaded.
inline LoadError load_nccl(const char* path, Nccl* nccl) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return {LoadStatus::kNoLibrary, dlerror()};
  // The version first: an old library lacks functions, and its number says more than their names.
  nccl->get_version = reinterpret_cast<NcclResult (*)(int*)>(dlsym(library, "ncclGetVersion"));
  if (nccl->get_version == nullptr) return {LoadStatus::kNoSymbol, "ncclGetVersion"};
  if (nccl->get_version(&nccl->version) != kNcclSuccess || nccl->version < kOldestNcclVersion) {
    return {LoadStatus::kTooOld, std::to_string(nccl->version)};
  }
#define COCOLL_RESOLVE(name, symbol, parameters)                                   \
  nccl->name = reinterpret_cast<NcclResult(*) parameters>(dlsym(library, symbol)); \
  if (nccl->name == nullptr) return {LoadStatus::kNoSymbol, symbol};
  COCOLL_NCCL_FUNCTIONS(COCOLL_RESOLVE)
#undef COCOLL_RESOLVE
  nccl->get_error_string =
      reinterpret_cast<const char* (*)(NcclResult)>(dlsym(library, "ncclGetErrorString"));
  if (nccl->get_error_string == nullptr) return {LoadStatus::kNoSymbol, "ncclGetErrorString"};
  return {};
}

// What NCCL says of a result.
inline std::string describe(const Nccl& nccl, NcclResult result) {
  return std::string(nccl.get_error_string(result)) + " (" + std::to_string(result) + ")";
}

}  // namespace cocoll::cuda

#endif  // COCOLL_CUDA_NCCL_H_
