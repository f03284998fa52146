// Memory that the ranks of one host share: a memfd per rank, mapped by all of them.
//
// A segment reserves address space once and grows inside it, so an address never moves and growth
// needs no new exchange. Growth is by fallocate: memory that is missing fails there, as an error,
// and never later as SIGBUS. Nothing has a name in the file system, so a killed job leaves nothing.

#ifndef COCOLL_HOST_ARENA_H_
#define COCOLL_HOST_ARENA_H_

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace cocoll::host {

constexpr size_t kHugePageBytes = size_t{2} << 20;

inline size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

// Tells processes apart even where their PID namespaces do not; the PID tells apart those that were
// forked after the random part was drawn.
inline uint64_t process_token() {
  static const uint64_t drawn = [] {
    uint64_t value = 0;
    if (getrandom(&value, sizeof value, 0) != sizeof value)
      value =
          reinterpret_cast<uint64_t>(&value) ^ static_cast<uint64_t>(getpid()) * 0x9e3779b97f4a7c15;
    return value;
  }();
  return drawn ^ static_cast<uint64_t>(getpid());
}

// What a rank tells its peers about a segment, as bytes.
struct SegmentTicket {
  uint64_t process;  // process_token()
  uint64_t address;  // of the Segment, for ranks of the same process
  int32_t pid;
  int32_t fd;
  uint64_t reserved_bytes;
  uint64_t inode;  // proves that /proc/PID/fd/FD is the same file, whatever PID means there
};

class Segment {
 public:
  // Gives a segment with one reference, or nullptr with errno set.
  static Segment* create(size_t reserved_bytes) {
    const int fd = memfd_create("cocoll", MFD_CLOEXEC);
    if (fd < 0) return nullptr;
    return map(fd, reserved_bytes);
  }

  // Opens a peer's segment; nullptr with errno ENOENT where the peer is on another host.
  static Segment* attach(const SegmentTicket& ticket) {
    if (ticket.process == process_token()) {
      Segment* segment = reinterpret_cast<Segment*>(ticket.address);
      segment->retain();
      return segment;
    }
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", ticket.pid, ticket.fd);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return nullptr;
    struct stat status;
    if (fstat(fd, &status) != 0 || static_cast<uint64_t>(status.st_ino) != ticket.inode) {
      close(fd);
      errno = ENOENT;
      return nullptr;
    }
    return map(fd, ticket.reserved_bytes);
  }

  SegmentTicket ticket() const {
    struct stat status{};
    fstat(fd_, &status);
    return {
        process_token(), reinterpret_cast<uint64_t>(this),    static_cast<int32_t>(getpid()), fd_,
        reserved_bytes_, static_cast<uint64_t>(status.st_ino)};
  }

  // Makes the first `bytes` usable. Gives 0 or an errno. Only the creator calls it.
  int grow(size_t bytes) {
    bytes = round_up(bytes, bytes >= kHugePageBytes ? kHugePageBytes : size_t{4096});
    if (bytes <= size_bytes_) return 0;
    if (bytes > reserved_bytes_) return ENOMEM;
    // Past RLIMIT_FSIZE the kernel would send SIGXFSZ before it returns EFBIG.
    rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        bytes > limit.rlim_cur)
      return EFBIG;
    int status;
    do {
      status = fallocate(fd_, 0, static_cast<off_t>(size_bytes_),
                         static_cast<off_t>(bytes - size_bytes_));
    } while (status != 0 && errno == EINTR);
    if (status != 0) return errno;
    // Without privilege and with shmem_enabled=never this is the way to 2 MiB pages; where the
    // kernel has no such call the memory is usable all the same.
    const size_t first = round_up(size_bytes_, kHugePageBytes);
    if (bytes > first) huge_ = madvise(base_ + first, bytes - first, MADV_COLLAPSE) == 0;
    size_bytes_ = bytes;
    return 0;
  }

  char* base() const { return base_; }
  size_t size_bytes() const { return size_bytes_; }
  size_t reserved_bytes() const { return reserved_bytes_; }
  bool huge_pages() const { return huge_; }

  void retain() { references_.fetch_add(1, std::memory_order_relaxed); }
  void release() {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

 private:
  Segment(int fd, char* base, size_t reserved_bytes)
      : fd_(fd), base_(base), reserved_bytes_(reserved_bytes) {}

  ~Segment() {
    munmap(base_, reserved_bytes_);
    close(fd_);
  }

  // Maps at a 2 MiB boundary: a huge page maps only where address and offset agree.
  static Segment* map(int fd, size_t reserved_bytes) {
    reserved_bytes = round_up(reserved_bytes, kHugePageBytes);
    const size_t span = reserved_bytes + kHugePageBytes;
    void* space =
        mmap(nullptr, span, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED) {
      const int error = errno;
      close(fd);
      errno = error;
      return nullptr;
    }
    char* start = static_cast<char*>(space);
    char* base = reinterpret_cast<char*>(round_up(reinterpret_cast<size_t>(start), kHugePageBytes));
    if (base > start) munmap(start, static_cast<size_t>(base - start));
    char* end = base + reserved_bytes;
    if (start + span > end) munmap(end, static_cast<size_t>(start + span - end));
    if (mmap(base, reserved_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE,
             fd, 0) == MAP_FAILED) {
      const int error = errno;
      munmap(base, reserved_bytes);
      close(fd);
      errno = error;
      return nullptr;
    }
    return new Segment(fd, base, reserved_bytes);
  }

  int fd_;
  char* base_;
  size_t reserved_bytes_;
  size_t size_bytes_ = 0;
  bool huge_ = false;
  std::atomic<int32_t> references_{1};
};

}  // namespace cocoll::host

#endif  // COCOLL_HOST_ARENA_H_
