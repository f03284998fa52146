// Which bytes arrays span, to find out whether any two of many overlap.

#ifndef COCOLL_HOST_EXTENTS_H_
#define COCOLL_HOST_EXTENTS_H_

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace cocoll::host {

// First byte and the one past the last.
using Extent = std::pair<size_t, size_t>;

class Extents {
 public:
  void add(size_t first, size_t stop) {
    if (first < stop) extents_.emplace_back(first, stop);
  }

  // Whether any of these overlaps any of the others.
  bool overlap(const Extents& others) const {
    const std::vector<Extent> mine = sorted(), theirs = others.sorted();
    for (size_t a = 0, b = 0; a < mine.size() && b < theirs.size();) {
      if (mine[a].first < theirs[b].second && theirs[b].first < mine[a].second) return true;
      // Whichever ends first can meet nothing that is left of the others.
      if (mine[a].second <= theirs[b].second)
        ++a;
      else
        ++b;
    }
    return false;
  }

  // Whether any two of these overlap.
  bool overlap() const {
    const std::vector<Extent> mine = sorted();
    for (size_t index = 1; index < mine.size(); ++index)
      if (mine[index].first < mine[index - 1].second) return true;
    return false;
  }

 private:
  std::vector<Extent> sorted() const {
    std::vector<Extent> copy = extents_;
    std::sort(copy.begin(), copy.end());
    return copy;
  }

  std::vector<Extent> extents_;
};

}  // namespace cocoll::host

#endif  // COCOLL_HOST_EXTENTS_H_
