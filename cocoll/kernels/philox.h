// Philox4x32-10, the counter-based random generator of dropout.
//
// Reference: J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy
// as 1, 2, 3", SC 2011, section 3.3. Counter words are (low, high of index >> 2, low, high of step)
// for the element's index in the logical global tensor, the element takes word index & 3, and the
// key is made from (seed, tensor). So every rank, chunk and device draws the same numbers, and four
// neighbours share one evaluation.

#ifndef COCOLL_KERNELS_PHILOX_H_
#define COCOLL_KERNELS_PHILOX_H_

#include "port.h"

namespace cocoll {

struct PhiloxKey {
  uint32_t low;
  uint32_t high;
};

struct PhiloxWords {
  uint32_t x, y, z, w;
};

COCOLL_INLINE uint32_t multiply_high(uint32_t a, uint32_t b) {
  return static_cast<uint32_t>((static_cast<uint64_t>(a) * b) >> 32);
}

COCOLL_INLINE PhiloxWords philox4x32(PhiloxWords counter, PhiloxKey key) {
#if !COCOLL_DEVICE
#pragma GCC unroll 10
#endif
  for (int round = 0; round < 10; ++round) {
    const uint32_t high_x = multiply_high(0xd2511f53u, counter.x);
    const uint32_t low_x = 0xd2511f53u * counter.x;
    const uint32_t high_z = multiply_high(0xcd9e8d57u, counter.z);
    const uint32_t low_z = 0xcd9e8d57u * counter.z;
    counter =
        PhiloxWords{high_z ^ counter.y ^ key.low, low_z, high_x ^ counter.w ^ key.high, low_x};
    key.low += 0x9e3779b9u;
    key.high += 0xbb67ae85u;
  }
  return counter;
}

// Seeds are below 2^53 and a call has fewer than 2^11 tensors, so no two pairs share a key.
COCOLL_INLINE PhiloxKey philox_key(uint64_t seed, uint32_t tensor) {
  return PhiloxKey{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32) + (tensor << 21)};
}

}  // namespace cocoll

#endif  // COCOLL_KERNELS_PHILOX_H_
