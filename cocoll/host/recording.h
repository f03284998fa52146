// What a rank did when: the steps of its operations, for people to look at.

#ifndef COCOLL_HOST_RECORDING_H_
#define COCOLL_HOST_RECORDING_H_

#include <cstdint>
#include <utility>
#include <vector>

namespace cocoll::host {

// One step of one iteration, or the whole of an operation (`step` is kWholeOperation).
struct StepTime {
  uint64_t sequence;
  uint64_t program;  // its number
  int64_t begin_nanoseconds;
  int64_t end_nanoseconds;
  int64_t iteration;
  int64_t bytes;
  int32_t step;  // the place of its record in the packed plan
  int32_t mapped;
};

enum : int32_t { kWholeOperation = -1, kArrivalTime = -2 };

// Keeps what happens while it is on, up to a number of entries: a trace is for looking at, and one
// that grew without end would end the job.
class Recording {
 public:
  bool is_on() const { return on_; }

  void start() {
    entries_.clear();
    dropped_ = 0;
    on_ = true;
  }

  // Ends, and hands over what was kept.
  std::vector<StepTime> stop() {
    on_ = false;
    return std::exchange(entries_, {});
  }

  void add(const StepTime& entry) {
    if (entries_.size() < kMostEntries)
      entries_.push_back(entry);
    else
      ++dropped_;
  }

  int64_t dropped() const { return dropped_; }

 private:
  static constexpr size_t kMostEntries = size_t{1} << 20;

  bool on_ = false;
  int64_t dropped_ = 0;
  std::vector<StepTime> entries_;
};

}  // namespace cocoll::host

#endif  // COCOLL_HOST_RECORDING_H_
