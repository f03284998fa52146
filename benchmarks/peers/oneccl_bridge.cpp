// A C face of the four oneCCL calls that the benchmarks make: oneCCL itself offers C++ only.
//
// Every function returns 0, or -1 after storing the reason for oneccl_bridge_error().

#include <cstddef>
#include <exception>
#include <memory>
#include <string>

#include "oneapi/ccl.hpp"

namespace {

std::string error_text;  // one thread a process calls this library

std::unique_ptr<ccl::communicator> communicator;

std::shared_ptr<ccl::kvs> store;  // rank 0's is the one that serves the others

template <typename Body>
int guarded(Body body) {
  try {
    body();
    return 0;
  } catch (const std::exception& error) {
    error_text = error.what();
    return -1;
  }
}

ccl::datatype to_datatype(int is_bfloat16) {
  return is_bfloat16 != 0 ? ccl::datatype::bfloat16 : ccl::datatype::float32;
}

}  // namespace

extern "C" {

const char* oneccl_bridge_error() { return error_text.c_str(); }

size_t oneccl_bridge_address_bytes() { return sizeof(ccl::kvs::address_type); }

// Initialises oneCCL; on rank 0 also fills `address` (oneccl_bridge_address_bytes() long), which
// the caller hands to all ranks before oneccl_bridge_connect().
int oneccl_bridge_open(int rank, void* address) {
  return guarded([&] {
    ccl::init();
    if (rank == 0) {
      store = ccl::create_main_kvs();
      *static_cast<ccl::kvs::address_type*>(address) = store->get_address();
    }
  });
}

int oneccl_bridge_connect(int rank, int world_size, const void* address) {
  return guarded([&] {
    if (rank != 0) {
      store = ccl::create_kvs(*static_cast<const ccl::kvs::address_type*>(address));
    }
    communicator =
        std::make_unique<ccl::communicator>(ccl::create_communicator(world_size, rank, store));
  });
}

int oneccl_bridge_allreduce(const void* source, void* destination, size_t count, int is_bfloat16) {
  return guarded([&] {
    ccl::allreduce(source, destination, count, to_datatype(is_bfloat16), ccl::reduction::sum,
                   *communicator)
        .wait();
  });
}

int oneccl_bridge_reduce_scatter(const void* source, void* destination, size_t block_count,
                                 int is_bfloat16) {
  return guarded([&] {
    ccl::reduce_scatter(source, destination, block_count, to_datatype(is_bfloat16),
                        ccl::reduction::sum, *communicator)
        .wait();
  });
}

int oneccl_bridge_allgather(const void* source, void* destination, size_t block_count,
                            int is_bfloat16) {
  return guarded([&] {
    ccl::allgather(source, destination, block_count, to_datatype(is_bfloat16), *communicator)
        .wait();
  });
}

void oneccl_bridge_close() { communicator.reset(); }

}  // extern "C"
