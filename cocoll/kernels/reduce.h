// The reduction that every kernel is made of, on tiles that stay in the innermost cache.
//
// A generated kernel does, for each tile of up to 512 elements:
//   1. open_sources(): adds source by source, in rank order, into the accumulate type; the last one
//      may wait for step 3;
//   2. opens its operands (Input, Updated) and results (Result): a direct pointer where an array
//      is contiguous and stored in the type it is computed in, else scratch;
//   3. runs the epilogue in one loop;
//   4. closes updated operands, zeroes the sources if asked to, stores results.
// All of a tile is read before any of it is stored, apart from element-wise updates in place. So a
// destination may be identical to a source or an operand; if sources are zeroed, a destination that
// is also a source keeps the result. An updated operand must not be a source.
//
// Contiguous arrays are aligned to their element; any other array comes with a layout.

#ifndef COCOLL_KERNELS_REDUCE_H_
#define COCOLL_KERNELS_REDUCE_H_

#include "layout.h"
#include "math.h"
#include "reductions.h"
#include "store.h"
#include "tiles.h"

namespace cocoll {

struct Tile {
  int64_t offset;  // from the first element of the range
  int count;
};

// Cuts a range into tiles. With streaming stores the first tile is shortened so that all others
// start on a cache line of the first destination: a line is then written whole, by one tile.
class Tiles {
 public:
  COCOLL_INLINE Tiles(const cocoll_reduce_args* args, int destination_itemsize_bytes)
      : count_(args->count), lead_(0) {
    if ((args->flags & COCOLL_REDUCE_STREAMING) != 0 && args->destination_count > 0 &&
        args->destinations[0].layout == nullptr) {
      const uint64_t past_line =
          reinterpret_cast<uint64_t>(args->destinations[0].data) % kLineBytes;
      lead_ = static_cast<int>(past_line) / destination_itemsize_bytes;
    }
  }

  COCOLL_INLINE int64_t size() const {
    return (count_ + lead_ + kTileElements - 1) / kTileElements;
  }

  COCOLL_INLINE Tile tile(int64_t ordinal) const {
    const int64_t start = ordinal * kTileElements - lead_;
    const int64_t stop = smaller<int64_t>(start + kTileElements, count_);
    const int64_t begin = start < 0 ? 0 : start;
    return Tile{begin, static_cast<int>(stop - begin)};
  }

 private:
  static constexpr int kLineBytes = 64;
  int64_t count_;
  int lead_;
};

// ---- step 1 ------------------------------------------------------------------------------------

template <class R>
COCOLL_NOINLINE void take_one(const typename R::Source* a, typename R::State* state, int count) {
  for_each_element(count, COCOLL_ELEMENT(i) { state[i] = R::load(a[i]); }, a);
}

template <class R>
COCOLL_NOINLINE void take_two(const typename R::Source* a, const typename R::Source* b,
                              typename R::State* state, int count) {
  for_each_element(
      count, COCOLL_ELEMENT(i) { state[i] = R::combine(R::load(a[i]), R::load(b[i])); }, a, b);
}

template <class R>
COCOLL_NOINLINE void add_one(const typename R::Source* a, typename R::State* state, int count) {
  for_each_element(count, COCOLL_ELEMENT(i) { state[i] = R::combine(state[i], R::load(a[i])); }, a);
}

template <class R>
COCOLL_NOINLINE void add_two(const typename R::Source* a, const typename R::Source* b,
                             typename R::State* state, int count) {
  for_each_element(
      count,
      COCOLL_ELEMENT(i) {
        state[i] = R::combine(R::combine(state[i], R::load(a[i])), R::load(b[i]));
      },
      a, b);
}

// Whether sources are converted by hardware a tile at a time rather than inside the adding loop.
#if defined(__F16C__)
template <class T>
constexpr bool kConvertsFirst = IsSame<T, float16>::value;
#else
template <class T>
constexpr bool kConvertsFirst = false;
#endif

template <class R>
COCOLL_INLINE void take_source(const typename R::Source* a, typename R::State* state, int count) {
  if constexpr (kConvertsFirst<typename R::Source>) {
    widen_tile(a, state, count);
  } else {
    take_one<R>(a, state, count);
  }
}

template <class R>
COCOLL_INLINE void add_source(const typename R::Source* a, typename R::State* state, int count) {
  if constexpr (kConvertsFirst<typename R::Source>) {
    COCOLL_SCRATCH(float, widened, kTileElements);
    widen_tile(a, widened, count);
    add_one<typename R::Widened>(widened, state, count);
  } else {
    add_one<R>(a, state, count);
  }
}

// Gives the tile of one source, gathered into `scratch` if it is strided.
template <class T>
COCOLL_INLINE const T* source_tile(const cocoll_array& source, const Tile& tile, T* scratch) {
  if (source.layout == nullptr) return static_cast<const T*>(source.data) + tile.offset;
  gather(source, tile.offset, tile.count, scratch);
  return scratch;
}

// Reduces one tile of the first `source_count` sources into `state`; gives the source itself where
// there is nothing to do and `aliases` allows it: the caller then reads it before anything is
// stored.
template <class R>
COCOLL_NOINLINE const typename R::State* accumulate(const cocoll_array* sources, int source_count,
                                                    const Tile& tile, typename R::State* state,
                                                    bool aliases) {
  typedef typename R::Source Source;
  COCOLL_SCRATCH(Source, gathered_a, kTileElements);
  COCOLL_SCRATCH(Source, gathered_b, kTileElements);
  if constexpr (IsSame<Source, typename R::State>::value) {
    if (source_count == 1 && sources[0].layout == nullptr && aliases) {
      return static_cast<const Source*>(sources[0].data) + tile.offset;
    }
  }
  const Source* a = source_tile(sources[0], tile, gathered_a);
  int next = 1;
  if (source_count == 1 || kConvertsFirst<Source>) {
    take_source<R>(a, state, tile.count);
  } else {
    take_two<R>(a, source_tile(sources[1], tile, gathered_b), state, tile.count);
    next = 2;
    for (; R::chains && next + 2 <= source_count; next += 2) {
      a = source_tile(sources[next], tile, gathered_a);
      add_two<R>(a, source_tile(sources[next + 1], tile, gathered_b), state, tile.count);
    }
  }
  for (; next < source_count; ++next) {
    add_source<R>(source_tile(sources[next], tile, gathered_a), state, tile.count);
  }
  return state;
}

// Whether the last source is added inside the epilogue's loop. With two sources nothing is then
// kept in between, which is worth a quarter of the time of a fused optimizer in memory. Types that
// are converted first gain nothing by it.
template <class R>
constexpr bool kJoinsLast = IsSame<typename R::Source, typename R::State>::value;

// The reduced tile, its last source still to be added.
template <class R>
struct Reduced {
  const typename R::State* state;
  const typename R::Source* last;

  COCOLL_INLINE typename R::State operator[](int i) const {
    if constexpr (kJoinsLast<R>) {
      return R::combine(state[i], R::load(last[i]));
    } else {
      return state[i];
    }
  }
};

template <class R>
COCOLL_INLINE Reduced<R> open_sources(const cocoll_reduce_args* args, const Tile& tile,
                                      typename R::State* scratch, typename R::Source* last) {
  if constexpr (kJoinsLast<R>) {
    const int others = args->source_count - 1;
    if (others == 0) {
      const typename R::State* only = accumulate<R>(args->sources, 1, tile, scratch, true);
      COCOLL_LOOP(i, tile.count) { last[i] = R::neutral(only[i]); }
      return {only, last};
    }
    return {accumulate<R>(args->sources, others, tile, scratch, true),
            source_tile(args->sources[others], tile, last)};
  } else {
    return {accumulate<R>(args->sources, args->source_count, tile, scratch, true), last};
  }
}

template <class T>
COCOLL_NOINLINE void zero_sources(const cocoll_reduce_args* args, const Tile& tile) {
  for (int which = 0; which < args->source_count; ++which) {
    const cocoll_array& source = args->sources[which];
    if (source.layout != nullptr) {
      COCOLL_SCRATCH(T, zeros, kTileElements);
      clear(zeros, tile.count);
      scatter(source, tile.offset, tile.count, zeros);
    } else {
      clear(static_cast<T*>(source.data) + tile.offset, tile.count);
    }
  }
}

// Stores zeros over a tile of every source, if the call asks for it.
template <class T>
COCOLL_INLINE void close_sources(const cocoll_reduce_args* args, const Tile& tile) {
  if ((args->flags & COCOLL_REDUCE_ZERO_SOURCES) != 0) zero_sources<T>(args, tile);
}

// ---- steps 2 and 4 -----------------------------------------------------------------------------
//
// T is how an array is stored, C what it is computed in.

template <class T, class C>
COCOLL_NOINLINE void convert_input(const cocoll_array& array, const Tile& tile, C* scratch) {
  COCOLL_SCRATCH(T, gathered, kTileElements);
  widen_tile(source_tile(array, tile, gathered), scratch, tile.count);
}

template <class T, class C>
COCOLL_INLINE const C* open_input(const cocoll_array& array, const Tile& tile, C* scratch) {
  if constexpr (IsSame<T, C>::value) {
    return source_tile(array, tile, scratch);
  } else {
    convert_input<T, C>(array, tile, scratch);
    return scratch;
  }
}

// An operand that is updated in place.
template <class T, class C>
COCOLL_INLINE C* open_updated(const cocoll_array& array, const Tile& tile, C* scratch) {
  return const_cast<C*>(open_input<T, C>(array, tile, scratch));
}

// An operand that is updated in place and not read.
template <class T, class C>
COCOLL_INLINE C* open_written(const cocoll_array& array, const Tile& tile, C* scratch) {
  if constexpr (IsSame<T, C>::value) {
    if (array.layout == nullptr) return static_cast<C*>(array.data) + tile.offset;
  }
  return scratch;
}

template <class T, class C>
COCOLL_NOINLINE void close_updated(const cocoll_array& array, const Tile& tile, const C* values) {
  if constexpr (IsSame<T, C>::value) {
    if (array.layout != nullptr) scatter(array, tile.offset, tile.count, values);
  } else if (array.layout == nullptr) {
    narrow_tile(values, static_cast<T*>(array.data) + tile.offset, tile.count);
  } else {
    COCOLL_SCRATCH(T, narrowed, kTileElements);
    narrow_tile(values, narrowed, tile.count);
    scatter(array, tile.offset, tile.count, narrowed);
  }
}

// Where the epilogue writes a result: its first destination itself, or scratch.
template <class T, class C>
COCOLL_INLINE C* open_result(const cocoll_reduce_args* args, int which, const Tile& tile,
                             C* scratch) {
  if constexpr (IsSame<T, C>::value) {
    const uint32_t later = COCOLL_REDUCE_STREAMING | COCOLL_REDUCE_ZERO_SOURCES;
    if (args->destination_count > 0 && (args->flags & later) == 0) {
      const cocoll_array& first = args->destinations[which * args->destination_count];
      if (first.layout == nullptr) return static_cast<C*>(first.data) + tile.offset;
    }
  }
  return scratch;
}

template <class T, class C>
COCOLL_NOINLINE void close_result(const cocoll_reduce_args* args, int which, const Tile& tile,
                                  const C* values) {
  const int end = args->destination_count;
  const cocoll_array* destinations = args->destinations + which * end;
  if constexpr (IsSame<T, C>::value) {
    store_tile(destinations, 0, end, args->flags, tile.offset, tile.count, values);
  } else {
    COCOLL_SCRATCH(T, narrowed, kTileElements);
    T* to = narrowed;
    int begin = 0;
    if (end > 0 && destinations[0].layout == nullptr &&
        (args->flags & COCOLL_REDUCE_STREAMING) == 0) {
      to = static_cast<T*>(destinations[0].data) + tile.offset;
      begin = 1;
    }
    narrow_tile(values, to, tile.count);
    store_tile(destinations, begin, end, args->flags, tile.offset, tile.count, to);
  }
}

// ---- totals ------------------------------------------------------------------------------------

// Adds a tile to the partial sums of a total. Element i of the tensor always goes to the same one,
// in the order of the elements: the sums do not depend on how a tensor is cut into chunks and
// tiles.
template <bool kSquares, class C>
COCOLL_NOINLINE void add_up(const C* values, int count, int64_t first, double* sums) {
  const auto term = [&](int i) __attribute__((always_inline)) {
    const double value = static_cast<double>(values[i]);
    return kSquares ? value * value : value;
  };
  int done = 0;
  for (; done < count && (first + done) % COCOLL_SUM_LANES != 0; ++done)
    sums[(first + done) % COCOLL_SUM_LANES] += term(done);
  alignas(64) double lanes[COCOLL_SUM_LANES];
  for (int lane = 0; lane < COCOLL_SUM_LANES; ++lane) lanes[lane] = sums[lane];
  for (; done + COCOLL_SUM_LANES <= count; done += COCOLL_SUM_LANES) {
    // Unrolled whole it would be scalar code.
    _Pragma("GCC unroll 1") COCOLL_LOOP(lane, COCOLL_SUM_LANES) {
      lanes[lane] += term(done + lane);
    }
  }
  for (int lane = 0; lane < COCOLL_SUM_LANES; ++lane) sums[lane] = lanes[lane];
  for (; done < count; ++done) sums[(first + done) % COCOLL_SUM_LANES] += term(done);
}

// Once a kernel's last tile is stored: what was streamed is visible before any later store.
COCOLL_INLINE void finish_stores(const cocoll_reduce_args* args) {
  if ((args->flags & COCOLL_REDUCE_STREAMING) != 0) stream_fence();
}

}  // namespace cocoll

#endif  // COCOLL_KERNELS_REDUCE_H_
