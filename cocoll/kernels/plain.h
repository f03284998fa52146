// Kernels without an epilogue.

#ifndef COCOLL_KERNELS_PLAIN_H_
#define COCOLL_KERNELS_PLAIN_H_

#include "reduce.h"

namespace cocoll {

// Two sources, read once, with nothing kept in between.
template <class R>
COCOLL_NOINLINE void reduce_pair(const cocoll_reduce_args* args, int64_t offset, int count) {
  typedef typename R::Source T;
  typedef typename R::Value Value;
  const int world_size = args->world_size;
  const T* a = static_cast<const T*>(args->sources[0].data) + offset;
  const T* b = static_cast<const T*>(args->sources[1].data) + offset;
  T* first = static_cast<T*>(args->destinations[0].data) + offset;
  if (args->destination_count == 1) {
    for_each_element(
        count,
        COCOLL_ELEMENT(i) {
          const Value value = R::finish(R::combine(R::load(a[i]), R::load(b[i])), world_size);
          put(&first[i], narrow<T>(value));
        },
        a, b);
  } else {
    T* second = static_cast<T*>(args->destinations[1].data) + offset;
    for_each_element(
        count,
        COCOLL_ELEMENT(i) {
          const Value value = R::finish(R::combine(R::load(a[i]), R::load(b[i])), world_size);
          const T stored = narrow<T>(value);
          put(&first[i], stored);
          put(&second[i], stored);
        },
        a, b);
  }
}

template <class R>
COCOLL_INLINE bool is_pair(const cocoll_reduce_args* args) {
  return !kConvertsFirst<typename R::Source> && args->flags == 0 && args->source_count == 2 &&
         (args->destination_count == 1 || args->destination_count == 2) &&
         args->sources[0].layout == nullptr && args->sources[1].layout == nullptr &&
         args->destinations[0].layout == nullptr &&
         args->destinations[args->destination_count - 1].layout == nullptr;
}

template <class R>
COCOLL_NOINLINE void finish_tile(const typename R::State* state, typename R::Value* values,
                                 int count, int world_size) {
  COCOLL_LOOP(i, count) { values[i] = R::finish(state[i], world_size); }
}

template <class R>
COCOLL_INLINE void reduce_plain(const cocoll_reduce_args* args) {
  typedef typename R::Source T;
  typedef typename R::Value Value;
  const Tiles tiles(args, sizeof(T));
  if (is_pair<R>(args)) {
    constexpr int64_t kStepElements = int64_t{1} << 24;
    for (int64_t offset = 0; offset < args->count; offset += kStepElements) {
      reduce_pair<R>(args, offset, static_cast<int>(smaller(kStepElements, args->count - offset)));
    }
    return;
  }
  COCOLL_SCRATCH(typename R::State, state_scratch, kTileElements);
  COCOLL_SCRATCH(Value, value_scratch, kTileElements);
  for (int64_t ordinal = 0; ordinal < tiles.size(); ++ordinal) {
    const Tile tile = tiles.tile(ordinal);
    const bool keeps = (args->flags & COCOLL_REDUCE_ZERO_SOURCES) == 0;
    const typename R::State* state =
        accumulate<R>(args->sources, args->source_count, tile, state_scratch, keeps);
    const Value* values;
    if constexpr (R::finishes) {
      finish_tile<R>(state, value_scratch, tile.count, args->world_size);
      values = value_scratch;
    } else {
      values = state;
    }
    close_sources<T>(args, tile);
    close_result<T, Value>(args, 0, tile, values);
  }
  finish_stores(args);
}

}  // namespace cocoll

#endif  // COCOLL_KERNELS_PLAIN_H_
