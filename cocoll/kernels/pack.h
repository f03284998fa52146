// Packs: the few neighbouring elements that one thread of a grid kernel works on at a time, in
// registers. A pack of aligned arrays moves in loads and stores of up to 16 bytes.

#ifndef COCOLL_KERNELS_PACK_H_
#define COCOLL_KERNELS_PACK_H_

#include "dtypes.h"
#include "grid_abi.h"
#include "philox.h"
#include "port.h"

namespace cocoll {

constexpr int kPackBytes = 16;

// kElements stored values that move as one.
template <class T, int kElements>
struct alignas(kElements * sizeof(T) < kPackBytes ? kElements * sizeof(T) : kPackBytes) Pack {
  T values[kElements];
};

// Whole vectors are loaded and stored through an integer type of their size: compilers move a
// structure element by element.
#if COCOLL_DEVICE
template <int kBytes>
struct Word;
template <>
struct Word<16> {
  typedef uint4 Type;
};
template <>
struct Word<8> {
  typedef uint2 Type;
};
template <>
struct Word<4> {
  typedef unsigned int Type;
};
template <>
struct Word<2> {
  typedef unsigned short Type;
};
template <>
struct Word<1> {
  typedef unsigned char Type;
};
#endif

template <class T, int kElements>
COCOLL_INLINE Pack<T, kElements> load_pack(const T* place) {
  Pack<T, kElements> pack;
#if COCOLL_DEVICE
  constexpr int kBytes = kElements * sizeof(T) < kPackBytes ? kElements * sizeof(T) : kPackBytes;
  typedef typename Word<kBytes>::Type W;
  W words[sizeof(pack) / kBytes];
  COCOLL_UNROLL for (int part = 0; part < static_cast<int>(sizeof(pack) / kBytes); ++part) {
    words[part] = reinterpret_cast<const W*>(place)[part];
  }
  memcpy(&pack, words, sizeof(pack));
#else
  copy_bytes(&pack, place, sizeof(pack));
#endif
  COCOLL_COUNT_BYTES(sizeof(pack), 0);
  return pack;
}

template <class T, int kElements>
COCOLL_INLINE void store_pack(T* place, const Pack<T, kElements>& pack) {
#if COCOLL_DEVICE
  constexpr int kBytes = kElements * sizeof(T) < kPackBytes ? kElements * sizeof(T) : kPackBytes;
  typedef typename Word<kBytes>::Type W;
  W words[sizeof(pack) / kBytes];
  memcpy(words, &pack, sizeof(pack));
  COCOLL_UNROLL for (int part = 0; part < static_cast<int>(sizeof(pack) / kBytes); ++part) {
    reinterpret_cast<W*>(place)[part] = words[part];
  }
#else
  copy_bytes(place, &pack, sizeof(pack));
#endif
  COCOLL_COUNT_BYTES(0, sizeof(pack));
}

// Where element `index` of a strided or broadcast array lies. Called and not copied: in every place
// that may need it, the loop would be most of a kernel.
COCOLL_OUTLINE int64_t strided_offset_bytes(const cocoll_layout& layout, int64_t index) {
  int64_t offset = 0;
  for (int dim = layout.ndim - 1; dim >= 0; --dim) {
    const int64_t outer = index / layout.shape[dim];
    offset += (index - outer * layout.shape[dim]) * layout.stride_bytes[dim];
    index = outer;
  }
  return offset;
}

template <class T>
COCOLL_INLINE T* element_place(const cocoll_grid_call& call, const cocoll_grid_array& array,
                               int64_t index) {
  const int64_t offset = strided_offset_bytes(call.layouts[array.layout], index - array.origin);
  return reinterpret_cast<T*>(static_cast<char*>(array.data) + offset);
}

// Which part of an array a pack is: from logical element `index`, `valid` elements. `whole` if they
// move as one: all are valid, and the arrays are aligned.
struct Part {
  int64_t index;
  int valid;
  bool whole;
};

template <class T, int kElements>
COCOLL_INLINE Pack<T, kElements> load_part(const T* place, const Part& part) {
  if (part.whole) return load_pack<T, kElements>(place);
  COCOLL_COUNT_BYTES(part.valid * sizeof(T), 0);
  Pack<T, kElements> pack;
  COCOLL_UNROLL for (int i = 0; i < kElements; ++i) pack.values[i] =
      i < part.valid ? place[i] : T{};
  return pack;
}

template <class T, int kElements>
COCOLL_INLINE void store_part(T* place, const Part& part, const Pack<T, kElements>& pack) {
  if (part.whole) {
    store_pack(place, pack);
  } else {
    COCOLL_COUNT_BYTES(0, part.valid * sizeof(T));
    COCOLL_UNROLL for (int i = 0; i < kElements; ++i) {
      if (i < part.valid) place[i] = pack.values[i];
    }
  }
}

// Reads an operand in the type C that it is computed in; T is how it is stored.
template <class T, class C, int kElements>
COCOLL_INLINE void open_part(const cocoll_grid_call& call, const cocoll_grid_array& array,
                             const Part& part, C* values) {
  Pack<T, kElements> pack;
  if (array.layout < 0) {
    const T* place = static_cast<const T*>(array.data) + (part.index - array.origin);
    pack = load_part<T, kElements>(place, part);
  } else {
    COCOLL_COUNT_BYTES(part.valid * sizeof(T), 0);
    COCOLL_UNROLL for (int i = 0; i < kElements; ++i) {
      pack.values[i] = i < part.valid ? *element_place<T>(call, array, part.index + i) : T{};
    }
  }
  COCOLL_UNROLL for (int i = 0; i < kElements; ++i) values[i] =
      static_cast<C>(widen(pack.values[i]));
}

template <class T, class C, int kElements>
COCOLL_INLINE Pack<T, kElements> narrow_pack(const C* values) {
  Pack<T, kElements> pack;
  COCOLL_UNROLL for (int i = 0; i < kElements; ++i) pack.values[i] = narrow<T>(values[i]);
  return pack;
}

template <class T, class C, int kElements>
COCOLL_INLINE void close_part(const cocoll_grid_call& call, const cocoll_grid_array& array,
                              const Part& part, const C* values) {
  const Pack<T, kElements> pack = narrow_pack<T, C, kElements>(values);
  if (array.layout < 0) {
    store_part(static_cast<T*>(array.data) + (part.index - array.origin), part, pack);
  } else {
    COCOLL_COUNT_BYTES(0, part.valid * sizeof(T));
    COCOLL_UNROLL for (int i = 0; i < kElements; ++i) {
      if (i < part.valid) *element_place<T>(call, array, part.index + i) = pack.values[i];
    }
  }
}

// The random words of kElements elements from `index` on.
template <int kElements>
COCOLL_INLINE void draw_pack(int64_t index, PhiloxKey key, uint64_t step, uint32_t* words) {
  PhiloxWords drawn = {};
  int64_t group = -1;
  COCOLL_UNROLL for (int i = 0; i < kElements; ++i) {
    const int64_t wanted = (index + i) >> 2;
    // Neighbours share an evaluation; where packs are aligned to four, there is one for each.
    if (i == 0 || (kElements > 1 && wanted != group)) {
      group = wanted;
      const uint64_t counter = static_cast<uint64_t>(group);
      drawn = philox4x32(
          PhiloxWords{static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32),
                      static_cast<uint32_t>(step), static_cast<uint32_t>(step >> 32)},
          key);
    }
    const int place = static_cast<int>((index + i) & 3);
    words[i] = place == 0 ? drawn.x : place == 1 ? drawn.y : place == 2 ? drawn.z : drawn.w;
  }
}

}  // namespace cocoll

#endif  // COCOLL_KERNELS_PACK_H_
