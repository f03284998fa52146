// Exports what the kernel headers compute, one loop a function, for tests of every ISA level.

#include "cocoll/kernels/math.h"
#include "cocoll/kernels/tiles.h"

#define PROBE extern "C" __attribute__((visibility("default"))) void

#define PROBE_FUNCTION(name, type, suffix)                       \
  PROBE name##_##suffix(const type* from, type* to, int count) { \
    COCOLL_LOOP(i, count) { to[i] = cocoll::name(from[i]); }     \
  }

PROBE_FUNCTION(exp, float, float32)
PROBE_FUNCTION(exp, double, float64)
PROBE_FUNCTION(tanh, float, float32)
PROBE_FUNCTION(tanh, double, float64)
PROBE_FUNCTION(erf, float, float32)
PROBE_FUNCTION(erf, double, float64)
PROBE_FUNCTION(log, float, float32)
PROBE_FUNCTION(log, double, float64)

#define PROBE_POWER(type, suffix)                                                     \
  PROBE power_##suffix(const type* base, const type* exponent, type* to, int count) { \
    COCOLL_LOOP(i, count) { to[i] = cocoll::power(base[i], exponent[i]); }            \
  }

PROBE_POWER(float, float32)
PROBE_POWER(double, float64)

#define PROBE_CONVERSIONS(type)                                                    \
  PROBE widen_##type(const cocoll::type* from, float* to, int count) {             \
    cocoll::widen_tile(from, to, count);                                           \
  }                                                                                \
  PROBE widen_one_by_one_##type(const cocoll::type* from, float* to, int count) {  \
    for (int i = 0; i < count; ++i) cocoll::widen_tile(from + i, to + i, 1);       \
  }                                                                                \
  PROBE narrow_##type(const float* from, cocoll::type* to, int count) {            \
    cocoll::narrow_tile(from, to, count);                                          \
  }                                                                                \
  PROBE narrow_one_by_one_##type(const float* from, cocoll::type* to, int count) { \
    for (int i = 0; i < count; ++i) cocoll::narrow_tile(from + i, to + i, 1);      \
  }                                                                                \
  PROBE narrow_double_##type(const double* from, cocoll::type* to, int count) {    \
    cocoll::narrow_tile(from, to, count);                                          \
  }

PROBE_CONVERSIONS(float16)
PROBE_CONVERSIONS(bfloat16)
PROBE_CONVERSIONS(float8_e4m3fn)
PROBE_CONVERSIONS(float8_e5m2)

PROBE philox_block(const uint32_t* counter, const uint32_t* key, uint32_t* words) {
  const cocoll::PhiloxWords drawn =
      cocoll::philox4x32(cocoll::PhiloxWords{counter[0], counter[1], counter[2], counter[3]},
                         cocoll::PhiloxKey{key[0], key[1]});
  words[0] = drawn.x;
  words[1] = drawn.y;
  words[2] = drawn.z;
  words[3] = drawn.w;
}

PROBE philox_words(uint32_t* words, int64_t first, int count, uint64_t seed, uint32_t tensor,
                   uint64_t step) {
  uint32_t scratch[COCOLL_PHILOX_CAPACITY(512)];
  const uint32_t* drawn =
      cocoll::philox_tile(scratch, first, count, cocoll::philox_key(seed, tensor), step);
  for (int i = 0; i < count; ++i) words[i] = drawn[i];
}
