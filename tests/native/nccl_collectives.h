// All collectives of all types against what they should give, and what their sums' bits are.

#ifndef COCOLL_TESTS_NATIVE_NCCL_COLLECTIVES_H_
#define COCOLL_TESTS_NATIVE_NCCL_COLLECTIVES_H_

#include <cstring>

#include "cocoll/kernels/dtypes.h"
#include "nccl_rank.h"

namespace cocoll::native_tests {

constexpr int kFloat32 = 7;
enum Op { kSum, kProduct, kMaximum, kMinimum, kAverage, kOps };

template <class T>
typename cocoll::AccumulateOf<T>::Type computed(int op, size_t index, int world_size,
                                                int (*value)(int, size_t)) {
  int result = value(0, index);
  for (int rank = 1; rank < world_size; ++rank) {
    const int next = value(rank, index);
    switch (op) {
      case kProduct:
        result *= next;
        break;
      case kMaximum:
        result = result < next ? next : result;
        break;
      case kMinimum:
        result = next < result ? next : result;
        break;
      default:
        result += next;
        break;
    }
  }
  typedef typename cocoll::AccumulateOf<T>::Type C;
  return op == kAverage ? static_cast<C>(static_cast<C>(result) / static_cast<C>(world_size))
                        : static_cast<C>(result);
}

// Small enough for every type to hold every result.
inline int small_value(int rank, size_t index) {
  return 1 + static_cast<int>((index * 7 + static_cast<size_t>(rank) * 5) % 3);
}

class NcclCollectives : public NcclRank {
 protected:
  using NcclRank::NcclRank;

  void reduce_all(cuda::NcclCommunicator comm) {
    reduce_type<int8_t>(comm, 0);
    reduce_type<uint8_t>(comm, 1);
    reduce_type<int32_t>(comm, 2);
    reduce_type<uint32_t>(comm, 3);
    reduce_type<int64_t>(comm, 4);
    reduce_type<uint64_t>(comm, 5);
    reduce_type<cocoll::float16>(comm, 6);
    reduce_type<float>(comm, kFloat32);
    reduce_type<double>(comm, 8);
    reduce_type<cocoll::bfloat16>(comm, 9);
    add_like_a_ring(comm);
  }

 private:
  template <class T>
  static T stored(int value) {
    return cocoll::narrow<T>(static_cast<typename cocoll::AccumulateOf<T>::Type>(value));
  }

  template <class T>
  void reduce_type(cuda::NcclCommunicator comm, int type) {
    const size_t ranks = static_cast<size_t>(world_size_), own = static_cast<size_t>(rank_);
    const size_t count = type == kFloat32 ? 50021 : 203, all = count * ranks;
    Array<T> from(&driver_, all), to(&driver_, all);
    const cuda::Stream stream = streams_[0];
    const auto fill = [&](Array<T>* array) {
      for (size_t i = 0; i < all; ++i) array->host[i] = stored<T>(small_value(rank_, i));
      array->put(stream);
    };
    const auto compare = [&](const char* what, int op, size_t begin, size_t first) {
      for (size_t i = 0; i < count; ++i) {
        const T wanted = cocoll::narrow<T>(computed<T>(op, first + i, world_size_, small_value));
        const bool equal = memcmp(&to.host[begin + i], &wanted, sizeof(T)) == 0;
        EXPECT(equal, "%s of type %d, op %d, element %zu of rank %d", what, type, op, i, rank_);
      }
    };
    fill(&from);
    for (int op = 0; op < kOps; ++op) {
      CHECK_NCCL(nccl_.all_reduce(from.device, to.device, count, type, op, comm, stream));
      to.get(stream);
      synchronize();
      compare("an all-reduce", op, 0, 0);
      fill(&to);
      CHECK_NCCL(nccl_.all_reduce(to.device, to.device, count, type, op, comm, stream));
      to.get(stream);
      synchronize();
      compare("an all-reduce in place", op, 0, 0);
      CHECK_NCCL(nccl_.reduce_scatter(from.device, to.device, count, type, op, comm, stream));
      to.get(stream);
      synchronize();
      compare("a reduce-scatter", op, 0, own * count);
      fill(&to);
      const cuda::DevicePointer mine = to.at(own * count);
      CHECK_NCCL(nccl_.reduce_scatter(to.device, mine, count, type, op, comm, stream));
      to.get(stream);
      synchronize();
      compare("a reduce-scatter in place", op, own * count, own * count);
    }
    for (const bool in_place : {false, true}) {
      fill(&to);
      const cuda::DevicePointer mine = in_place ? to.at(own * count) : from.at(own * count);
      CHECK_NCCL(nccl_.all_gather(mine, to.device, count, type, comm, stream));
      to.get(stream);
      synchronize();
      for (size_t i = 0; i < all; ++i) {
        const T wanted = stored<T>(small_value(static_cast<int>(i / count), i));
        EXPECT(memcmp(&to.host[i], &wanted, sizeof(T)) == 0, "an all-gather, type %d", type);
      }
    }
    for (int root = 0; root < world_size_; ++root) {
      const bool in_place = root % 2 == 0;
      fill(&to);
      // Only the root's input is read.
      const cuda::DevicePointer input = in_place ? to.device : root == rank_ ? from.device : 0;
      CHECK_NCCL(nccl_.broadcast(input, to.device, count, type, root, comm, stream));
      to.get(stream);
      synchronize();
      for (size_t i = 0; i < count; ++i) {
        const T wanted = stored<T>(small_value(root, i));
        EXPECT(memcmp(&to.host[i], &wanted, sizeof(T)) == 0, "a broadcast, type %d", type);
      }
    }
  }

  static float rough_value(int rank, size_t index) {
    const unsigned mixed =
        (static_cast<unsigned>(index) * 64 + static_cast<unsigned>(rank)) * 2654435761u;
    return static_cast<float>(mixed ^ mixed >> 15) / 7.0f;
  }

  // Sums whose bits depend on the order: a ring's, and the same on all ranks.
  void add_like_a_ring(cuda::NcclCommunicator comm) {
    Array<float> array(&driver_, kShared);
    for (size_t i = 0; i < kShared; ++i) array.host[i] = rough_value(rank_, i);
    array.put(streams_[0]);
    CHECK_NCCL(
        nccl_.all_reduce(array.device, array.device, kShared, kFloat32, kSum, comm, streams_[0]));
    array.get(streams_[0]);
    synchronize();
    memcpy(lobby_->results[rank_], array.host.data(), array.bytes());
    meet();
    EXPECT(memcmp(lobby_->results[0], array.host.data(), array.bytes()) == 0, "ranks differ");
    const size_t ranks = static_cast<size_t>(world_size_);
    const size_t block = (kShared + ranks - 1) / ranks;
    size_t unlike = 0;
    for (size_t i = 0; i < kShared; ++i) {
      float ring = 0, straight = 0;
      for (size_t step = 0; step < ranks; ++step) {
        ring += rough_value(static_cast<int>((i / block + 1 + step) % ranks), i);
        straight += rough_value(static_cast<int>(step), i);
      }
      EXPECT(array.host[i] == ring, "element %zu", i);
      unlike += array.host[i] != straight ? 1 : 0;
    }
    EXPECT(world_size_ < 3 || unlike > 0, "the order of ranks is no ring's");
  }
};

}  // namespace cocoll::native_tests

#endif  // COCOLL_TESTS_NATIVE_NCCL_COLLECTIVES_H_
