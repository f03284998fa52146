// How ranks of the emulated NCCL reach each other: a region of memory that all of them map, whether
// they are threads or processes, with a channel between every two of them in either direction.
//
// Transfers meet strictly: nothing moves before both sides have said what they want, and a send has
// ended only when all of it was received. Real ones may buffer; what works here needs no buffers.

#ifndef COCOLL_TESTING_EMULATED_TRANSPORT_H_
#define COCOLL_TESTING_EMULATED_TRANSPORT_H_

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "cocoll/cuda/nccl.h"
#include "cocoll/testing/emulated_device.h"

namespace cocoll::emulated {

constexpr int kMostRanks = 64;
constexpr uint64_t kIdMagic = 0x6c63636e756d65;
constexpr size_t kSlotBytes = 65536;

// The contents of a unique id.
struct IdContents {
  uint64_t magic;
  uint64_t token;  // of the region
  int32_t pid, fd;
};

// One direction between two ranks. Every word is written by one side only.
struct Channel {
  // By the sender: how many messages it has begun, what the last of them is, and bytes, ever.
  std::atomic<uint64_t> offered, offered_kind, offered_bytes, posted;
  // By the receiver: the same, and how many messages it has ended.
  std::atomic<uint64_t> wanted, wanted_kind, wanted_bytes, taken, ended;
  // Whether the host of the sender, and of the receiver, has ever issued what uses it.
  std::atomic<int> sender_came, receiver_came;
  char slot[kSlotBytes];
};

// Sends and receives of the caller's own, and those that collectives are made of, never match.
enum Lane : size_t { kPointToPoint, kCollective, kLanes };

struct Seat {
  std::atomic<int> taken;
  int device;
  uint64_t host;
  // Of splits: how many it has entered, has made the id for, and has left.
  std::atomic<uint64_t> entered, made, left;
  int color, key;
  cuda::NcclUniqueId id;
};

// The beginning of a region; all zeros at first.
struct Meeting {
  uint64_t token;
  std::atomic<int> world_size, arrived, aborted;
  Seat seats[kMostRanks];
};

class Region {
 public:
  // Makes what a new id names. It is kept by this process until `release`.
  static bool make(cuda::NcclUniqueId* id) {
    const int fd = memfd_create("emulated nccl", MFD_CLOEXEC);
    if (fd < 0) return false;
    std::random_device random;
    const uint64_t token = (static_cast<uint64_t>(random()) << 32 | random()) + 1;
    if (ftruncate(fd, sizeof(Meeting)) != 0 || pwrite(fd, &token, sizeof token, 0) < 0) {
      close(fd);
      return false;
    }
    const IdContents contents = {kIdMagic, token, getpid(), fd};
    memset(id, 0, sizeof *id);
    memcpy(id, &contents, sizeof contents);
    const std::lock_guard<std::mutex> lock(registry().mutex);
    registry().descriptors[token] = fd;
    return true;
  }

  // Maps what an id names: once in a process, for tools that look for races to see one memory.
  static std::shared_ptr<Region> open(const cuda::NcclUniqueId& id, int world_size) {
    IdContents contents;
    memcpy(&contents, &id, sizeof contents);
    if (contents.magic != kIdMagic) return nullptr;
    const std::lock_guard<std::mutex> lock(registry().mutex);
    std::weak_ptr<Region>& known = registry().regions[contents.token];
    std::shared_ptr<Region> region = known.lock();
    if (region == nullptr) {
      region.reset(new Region(contents, world_size));
      known = region;
    }
    if (region->base_ == MAP_FAILED || region->meeting().token != contents.token) return nullptr;
    int nobody = 0;
    const bool is_first = region->meeting().world_size.compare_exchange_strong(nobody, world_size);
    return is_first || nobody == world_size ? region : nullptr;
  }

  // All who need the id have opened it.
  static void release(const cuda::NcclUniqueId& id) {
    IdContents contents;
    memcpy(&contents, &id, sizeof contents);
    const std::lock_guard<std::mutex> lock(registry().mutex);
    const auto found = registry().descriptors.find(contents.token);
    if (found == registry().descriptors.end() || contents.pid != getpid()) return;
    close(found->second);
    registry().descriptors.erase(found);
  }

  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  ~Region() {
    if (base_ != MAP_FAILED) munmap(base_, bytes_);
  }

  Meeting& meeting() { return *static_cast<Meeting*>(base_); }

  Channel& channel(size_t lane, int from, int to) {
    const size_t ranks = static_cast<size_t>(world_size_);
    const size_t which = (lane * ranks + static_cast<size_t>(from)) * ranks;
    char* channels = static_cast<char*>(base_) + sizeof(Meeting);
    return reinterpret_cast<Channel*>(channels)[which + static_cast<size_t>(to)];
  }

 private:
  struct Registry {
    std::mutex mutex;
    std::map<uint64_t, std::weak_ptr<Region>> regions;
    std::map<uint64_t, int> descriptors;  // of regions that this process made
  };

  static Registry& registry() {
    static Registry* made = new Registry;
    return *made;
  }

  Region(const IdContents& contents, int world_size) : world_size_(world_size) {
    const size_t ranks = static_cast<size_t>(world_size);
    bytes_ = sizeof(Meeting) + kLanes * ranks * ranks * sizeof(Channel);
    const std::string path =
        "/proc/" + std::to_string(contents.pid) + "/fd/" + std::to_string(contents.fd);
    const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    struct stat now;
    const off_t wanted = static_cast<off_t>(bytes_);
    // Never smaller: ranks may disagree, and be told later.
    if (fstat(fd, &now) == 0 && (now.st_size >= wanted || ftruncate(fd, wanted) == 0)) {
      base_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    close(fd);
  }

  const int world_size_;
  size_t bytes_ = 0;
  void* base_ = MAP_FAILED;
};

// Moves the messages of one group, all at once: none waits for another, but for those before it
// between the same two ranks.
class Pump {
 public:
  Pump(Region* region, int rank) : region_(region), rank_(rank) {}

  void send(Lane lane, int peer, const char* from, size_t bytes, uint64_t kind) {
    Channel* channel = &region_->channel(lane, rank_, peer);
    sends_[channel].push_back({const_cast<char*>(from), bytes, kind});
  }

  void receive(Lane lane, int peer, char* to, size_t bytes, uint64_t kind) {
    receives_[&region_->channel(lane, peer, rank_)].push_back({to, bytes, kind});
  }

  // Ends when everything has moved, or with false when told to.
  bool run(const std::atomic<bool>& stop) {
    Patience patience;
    while (!sends_.empty() || !receives_.empty()) {
      if (stop.load()) return false;
      const bool has_sent = advance(&sends_, step_send);
      const bool has_received = advance(&receives_, step_receive);
      if (has_sent || has_received) {
        patience.renew();
      } else {
        patience.wait();
      }
    }
    return true;
  }

 private:
  struct Message {
    char* memory;
    size_t bytes;
    uint64_t kind;
    size_t moved = 0;
    uint64_t number = 0;  // among those of the channel, from 1; 0 before it has begun
  };

  enum class Step { kNothing, kMoved, kEnded };

  typedef std::map<Channel*, std::deque<Message>> Messages;

  static bool advance(Messages* all, Step (*step)(Channel*, Message*)) {
    bool has_moved = false;
    for (auto next = all->begin(); next != all->end();) {
      const Step made = step(next->first, &next->second.front());
      has_moved |= made != Step::kNothing;
      if (made == Step::kEnded) next->second.pop_front();
      next = next->second.empty() ? all->erase(next) : std::next(next);
    }
    return has_moved;
  }

  static Step step_send(Channel* channel, Message* message) {
    if (message->number == 0) {
      message->number = channel->offered.load() + 1;
      channel->offered_kind.store(message->kind);
      channel->offered_bytes.store(message->bytes);
      channel->offered.store(message->number);
      return Step::kMoved;
    }
    if (channel->ended.load() >= message->number) return Step::kEnded;
    if (channel->wanted.load() != message->number || channel->wanted_kind.load() != message->kind ||
        channel->wanted_bytes.load() != message->bytes) {
      return Step::kNothing;
    }
    const uint64_t posted = channel->posted.load();
    const size_t place = posted % kSlotBytes;
    const size_t room = kSlotBytes - static_cast<size_t>(posted - channel->taken.load());
    const size_t bytes = std::min({room, message->bytes - message->moved, kSlotBytes - place});
    if (bytes == 0) return Step::kNothing;
    memcpy(channel->slot + place, message->memory + message->moved, bytes);
    message->moved += bytes;
    channel->posted.store(posted + bytes);
    return Step::kMoved;
  }

  static Step step_receive(Channel* channel, Message* message) {
    if (message->number == 0) {
      message->number = channel->wanted.load() + 1;
      channel->wanted_kind.store(message->kind);
      channel->wanted_bytes.store(message->bytes);
      channel->wanted.store(message->number);
      return Step::kMoved;
    }
    if (channel->offered.load() != message->number ||
        channel->offered_kind.load() != message->kind ||
        channel->offered_bytes.load() != message->bytes) {
      return Step::kNothing;
    }
    const uint64_t taken = channel->taken.load();
    const size_t place = taken % kSlotBytes;
    const size_t bytes =
        std::min(static_cast<size_t>(channel->posted.load() - taken), kSlotBytes - place);
    if (bytes != 0) memcpy(message->memory + message->moved, channel->slot + place, bytes);
    message->moved += bytes;
    channel->taken.store(taken + bytes);
    if (message->moved == message->bytes) {
      channel->ended.store(message->number);
      return Step::kEnded;
    }
    return bytes == 0 ? Step::kNothing : Step::kMoved;
  }

  Region* region_;
  const int rank_;
  Messages sends_, receives_;
};

}  // namespace cocoll::emulated

#endif  // COCOLL_TESTING_EMULATED_TRANSPORT_H_
