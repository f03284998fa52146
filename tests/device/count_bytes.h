// Included in front of grid kernels by the test that counts what they load and store.

#include <atomic>
#include <cstdint>

extern "C" {
inline std::atomic<uint64_t> loaded_bytes{0};
inline std::atomic<uint64_t> stored_bytes{0};
__attribute__((visibility("default"), used)) inline void take_counts(uint64_t* counts) {
  counts[0] = loaded_bytes.exchange(0);
  counts[1] = stored_bytes.exchange(0);
}
}

#define COCOLL_COUNT_BYTES(loaded, stored) \
  (loaded_bytes.fetch_add((uint64_t)(loaded)), stored_bytes.fetch_add((uint64_t)(stored)))
