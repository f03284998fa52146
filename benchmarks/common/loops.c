// What the benchmarks need from C: a barrier and a ping-pong over a shared page, plain rewriting of
// inputs, reproducible test data, and the bare loops that measured times are compared with.
//
// Built by native.py with the system compiler for the machine it runs on; loaded with ctypes by
// every rank of every implementation, so that all of them are timed by the same code.

#define _GNU_SOURCE
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <time.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

enum {
  HUGE_PAGE_BYTES = 2 << 20,
  BLOCK_BYTES = 128,
  PROBE_NANOSECONDS = 40000,
  SPINS_BEFORE_YIELD = 4000,
  COLLAPSE_ATTEMPTS = 20
};

// One job's control page; every field that is written by another rank has two cache lines of its
// own, because adjacent lines are prefetched in pairs.
typedef struct {
  _Alignas(BLOCK_BYTES) uint32_t arrived;
  _Alignas(BLOCK_BYTES) uint32_t generation;
  _Alignas(BLOCK_BYTES) uint32_t ball;
  _Alignas(BLOCK_BYTES) uint32_t picoseconds;
} bench_control;

typedef struct {
  void* data;           // this rank's part of the stream
  uint64_t tile_bytes;  // bytes of one tile; a multiple of 64
  int32_t mode;         // READ, READ_WRITE or WRITE
} bench_stream;

enum { READ = 0, READ_WRITE = 1, WRITE = 2 };

static inline void relax(void) {
#ifdef __x86_64__
  _mm_pause();
#else
  __asm__ volatile("" ::: "memory");
#endif
}

static int64_t now_nanoseconds(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

uint64_t bench_control_bytes(void) { return sizeof(bench_control); }

// Asks for 2 MiB pages for private memory. Returns 1 if the kernel agreed, 0 if small pages stay.
int bench_use_huge_pages(void* memory, uint64_t bytes) {
  return madvise(memory, bytes, MADV_HUGEPAGE) == 0;
}

// Maps `bytes` (a multiple of 2 MiB) of a shared file at a 2 MiB boundary, which large pages need,
// touches them and has the kernel collapse them into 2 MiB pages. `*is_huge` tells if it did.
// Returns NULL on failure.
void* bench_map_shared(int descriptor, uint64_t bytes, int* is_huge) {
  char* reserved = mmap(NULL, bytes + HUGE_PAGE_BYTES, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return NULL;
  char* aligned =
      (char*)(((uintptr_t)reserved + HUGE_PAGE_BYTES - 1) & ~(uintptr_t)(HUGE_PAGE_BYTES - 1));
  if (aligned > reserved) munmap(reserved, aligned - reserved);
  munmap(aligned + bytes, reserved + HUGE_PAGE_BYTES - aligned);
  if (mmap(aligned, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, descriptor, 0) ==
      MAP_FAILED) {
    munmap(aligned, bytes);
    return NULL;
  }
  for (volatile char* page = aligned; page < aligned + bytes; page += 4096) *page = *page;
  *is_huge = 1;
  for (char* page = aligned; page < aligned + bytes; page += HUGE_PAGE_BYTES) {
    // Fails now and then while another rank collapses the same page; that passes.
    int is_collapsed = 0;
    for (int attempt = 0; attempt < COLLAPSE_ATTEMPTS && !is_collapsed; ++attempt) {
      is_collapsed = madvise(page, HUGE_PAGE_BYTES, MADV_COLLAPSE) == 0;
      if (!is_collapsed) sched_yield();
    }
    *is_huge &= is_collapsed;
  }
  return aligned;
}

void bench_unmap(void* memory, uint64_t bytes) { munmap(memory, bytes); }

// A central barrier. With `yields` (more ranks than cores) a rank yields at once, because spinning
// would keep the rank it waits for off the core; else after a while, in case a stranger runs there.
void bench_barrier(bench_control* control, uint32_t world_size, int yields) {
  uint32_t generation = __atomic_load_n(&control->generation, __ATOMIC_ACQUIRE);
  if (__atomic_add_fetch(&control->arrived, 1, __ATOMIC_ACQ_REL) == world_size) {
    __atomic_store_n(&control->arrived, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&control->generation, generation + 1, __ATOMIC_RELEASE);
    return;
  }
  uint32_t spins = yields ? SPINS_BEFORE_YIELD : 0;
  while (__atomic_load_n(&control->generation, __ATOMIC_ACQUIRE) == generation) {
    if (spins < SPINS_BEFORE_YIELD) {
      relax();
      ++spins;
    } else {
      sched_yield();
    }
  }
}

// Ranks 0 and 1 pass one cache line to and fro for about 40 us; both return the nanoseconds of one
// way. Call it on both, right after a barrier.
double bench_probe(bench_control* control, int rank) {
  enum { OVER = 0xffffffffu };
  if (rank == 1) {
    while (1) {
      uint32_t ball = __atomic_load_n(&control->ball, __ATOMIC_ACQUIRE);
      if (ball == OVER) break;
      if (ball & 1) {
        __atomic_store_n(&control->ball, ball + 1, __ATOMIC_RELEASE);
      } else {
        relax();
      }
    }
    double one_way = __atomic_load_n(&control->picoseconds, __ATOMIC_RELAXED) * 1e-3;
    __atomic_store_n(&control->ball, 0, __ATOMIC_RELEASE);  // ready for the next probe
    return one_way;
  }
  uint32_t turn = 0;
  // The first exchanges find the peer still on its way out of the barrier: not counted.
  int64_t start = 0, elapsed = 0;
  uint32_t counted = 0;
  for (uint32_t trips = 0; elapsed < PROBE_NANOSECONDS; ++trips) {
    if (trips == 16) start = now_nanoseconds();
    turn += 1;
    __atomic_store_n(&control->ball, turn, __ATOMIC_RELEASE);
    turn += 1;
    while (__atomic_load_n(&control->ball, __ATOMIC_ACQUIRE) != turn) relax();
    if (trips > 16 && trips % 16 == 0) {
      elapsed = now_nanoseconds() - start;
      counted = trips - 16;
    }
  }
  double one_way = (double)elapsed / (2.0 * counted);
  __atomic_store_n(&control->picoseconds, (uint32_t)(one_way * 1000.0), __ATOMIC_RELAXED);
  __atomic_store_n(&control->ball, (uint32_t)OVER, __ATOMIC_RELEASE);
  while (__atomic_load_n(&control->ball, __ATOMIC_ACQUIRE) != 0) relax();
  return one_way;
}

// --- inputs -------------------------------------------------------------------------------------

// Stores one 32-bit word all over, with ordinary stores (a library's memset may choose others), and
// returns the seconds it took.
double bench_rewrite(uint32_t* data, uint64_t bytes, uint32_t word) {
  int64_t start = now_nanoseconds();
  for (uint64_t i = 0; i < bytes / 4; ++i) data[i] = word;
  __asm__ volatile("" : : "r"(data) : "memory");
  return (double)(now_nanoseconds() - start) * 1e-9;
}

// splitmix64's finaliser: element i of a stream depends on i and the seed alone, so that any rank
// can make any part of any rank's input.
static inline uint64_t mixed(uint64_t value) {
  value += 0x9e3779b97f4a7c15ull;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return value ^ (value >> 31);
}

// Floats uniform in [-1, 1).
void bench_fill_random(float* data, uint64_t first, uint64_t count, uint64_t seed) {
  uint64_t key = mixed(seed);
  for (uint64_t i = 0; i < count; ++i) {
    data[i] = (float)((int32_t)(mixed(key ^ (first + i)) >> 32)) * 0x1p-31f;
  }
}

// Multiples of 1/32 in [-1, 1]: sums of up to four are exact in bfloat16 and in any order, so that
// Adam's sign-like first steps cannot amplify a rounding of the sum.
void bench_fill_quantized(float* data, uint64_t first, uint64_t count, uint64_t seed) {
  uint64_t key = mixed(seed);
  for (uint64_t i = 0; i < count; ++i) {
    data[i] = (float)((int32_t)((mixed(key ^ (first + i)) >> 32) % 65) - 32) * 0x1p-5f;
  }
}

// The same values as bfloat16 (exact: their low 16 bits are zero).
void bench_fill_quantized_bfloat16(uint16_t* data, uint64_t first, uint64_t count, uint64_t seed) {
  uint64_t key = mixed(seed);
  for (uint64_t i = 0; i < count; ++i) {
    union {
      float value;
      uint32_t bits;
    } element;
    element.value = (float)((int32_t)((mixed(key ^ (first + i)) >> 32) % 65) - 32) * 0x1p-5f;
    data[i] = (uint16_t)(element.bits >> 16);
  }
}

// --- limits -------------------------------------------------------------------------------------

#ifdef __AVX__
typedef float vector __attribute__((vector_size(32)));
#else
typedef float vector __attribute__((vector_size(16)));
#endif
#if defined(__x86_64__)
#define VECTOR_REGISTER "x"
#elif defined(__aarch64__)
#define VECTOR_REGISTER "w"
#else
#define VECTOR_REGISTER "m"
#endif

// Asks for the line `ahead_bytes` further on than the vector, if that is not 0.
static inline void ask_ahead(const vector* place, uint64_t ahead_bytes) {
  if (ahead_bytes != 0) __builtin_prefetch((const char*)place + ahead_bytes);
}

static inline void read_tile(const char* data, uint64_t bytes, uint64_t ahead_bytes) {
  const vector* source = (const vector*)data;
  for (uint64_t i = 0; i < bytes / sizeof(vector); i += 2) {
    ask_ahead(source + i, ahead_bytes);
    vector first = source[i], second = source[i + 1];
    // The loads must happen; the values are of no interest.
    __asm__ volatile("" : : VECTOR_REGISTER(first), VECTOR_REGISTER(second));
  }
}

static inline void update_tile(char* data, uint64_t bytes, vector addend, uint64_t ahead_bytes) {
  vector* target = (vector*)data;
  for (uint64_t i = 0; i < bytes / sizeof(vector); i += 2) {
    ask_ahead(target + i, ahead_bytes);
    target[i] += addend;
    target[i + 1] += addend;
  }
}

static inline void write_tile(char* data, uint64_t bytes, vector value, int streaming) {
  vector* target = (vector*)data;
#ifdef __AVX__
  if (streaming) {
    for (uint64_t i = 0; i < bytes / sizeof(vector); i += 2) {
      _mm256_stream_ps((float*)(target + i), (__m256)value);
      _mm256_stream_ps((float*)(target + i + 1), (__m256)value);
    }
    return;
  }
#endif
  (void)streaming;
  for (uint64_t i = 0; i < bytes / sizeof(vector); i += 2) {
    target[i] = value;
    target[i + 1] = value;
  }
  __asm__ volatile("" : : "r"(data) : "memory");
}

enum { LINE_BYTES = 64, MAX_STREAMS = 16 };

// All that is read goes line by line side by side, as a fused kernel reads, and after each tile of
// it what is written, one stream after the other; what is read and written is so too (`late`), or
// line by line where it is read. With constants for the numbers of streams the inner loops are
// unrolled, so that the processor has nothing to do but move lines.
static inline __attribute__((always_inline)) void join_lines(
    char* const* data, int reads, int updates, int writes, uint64_t tile_count, uint64_t tile_bytes,
    vector value, int streaming, int late, uint64_t ahead_bytes) {
  for (uint64_t tile = 0; tile < tile_count; ++tile) {
    const uint64_t start = tile * tile_bytes;
    for (uint64_t offset = start; offset < start + tile_bytes; offset += LINE_BYTES) {
      for (int s = 0; s < reads; ++s) read_tile(data[s] + offset, LINE_BYTES, ahead_bytes);
      for (int s = reads; s < reads + updates; ++s) {
        if (late) {
          read_tile(data[s] + offset, LINE_BYTES, ahead_bytes);
        } else {
          update_tile(data[s] + offset, LINE_BYTES, value, ahead_bytes);
        }
      }
    }
    // Never past the caches over lines just read.
    for (int s = reads; s < reads + updates && late; ++s)
      write_tile(data[s] + start, tile_bytes, value, 0);
    for (int s = reads + updates; s < reads + updates + writes; ++s)
      write_tile(data[s] + start, tile_bytes, value, streaming);
  }
}

// Joins streams of equal elements; returns 0 where their numbers are none of those that suites
// have.
static int join_streams(const bench_stream* streams, int32_t stream_count, uint64_t tile_count,
                        vector value, int streaming, int late, uint64_t ahead_bytes) {
  char* data[MAX_STREAMS];
  int counts[3] = {0, 0, 0}, placed = 0;
  if (stream_count > MAX_STREAMS) return 0;
  const uint64_t tile_bytes = streams[0].tile_bytes;
  for (int mode = READ; mode <= WRITE; ++mode)
    for (int32_t s = 0; s < stream_count; ++s) {
      if (streams[s].tile_bytes != tile_bytes) return 0;
      if (streams[s].mode != mode) continue;
      data[placed++] = (char*)streams[s].data;
      ++counts[mode];
    }
#define JOIN(reads, updates, writes)                                                             \
  if (counts[READ] == (reads) && counts[READ_WRITE] == (updates) && counts[WRITE] == (writes)) { \
    join_lines(data, reads, updates, writes, tile_count, tile_bytes, value, streaming, late,     \
               ahead_bytes);                                                                     \
    return 1;                                                                                    \
  }
  JOIN(0, 2, 0)
  JOIN(0, 4, 0) JOIN(2, 0, 2) JOIN(4, 0, 4)                    // all-reduce of 2 and 4 ranks
      JOIN(2, 3, 0) JOIN(4, 3, 0) JOIN(2, 3, 1) JOIN(4, 3, 3)  // fused Adam
#undef JOIN
      return 0;
}

// Goes through all streams side by side, one tile of each at a time, and returns the seconds: what
// the memory system takes for these reads and writes and nothing else.
double bench_limit(const bench_stream* streams, int32_t stream_count, uint64_t tile_count,
                   int streaming, int joined, int late, uint64_t ahead_bytes) {
  const vector value = (vector){0} + 1.0f;
  int64_t start = now_nanoseconds();
  int is_done = 0;
  if (joined) {
    is_done = join_streams(streams, stream_count, tile_count, value, streaming, late, ahead_bytes);
  }
  for (uint64_t tile = 0; tile < tile_count && !is_done; ++tile) {
    for (int32_t s = 0; s < stream_count; ++s) {
      char* data = (char*)streams[s].data + tile * streams[s].tile_bytes;
      if (streams[s].mode == READ) {
        read_tile(data, streams[s].tile_bytes, ahead_bytes);
      } else if (streams[s].mode == READ_WRITE) {
        update_tile(data, streams[s].tile_bytes, value, ahead_bytes);
      } else {
        write_tile(data, streams[s].tile_bytes, value, streaming);
      }
    }
  }
#ifdef __AVX__
  if (streaming) _mm_sfence();
#endif
  return (double)(now_nanoseconds() - start) * 1e-9;
}
