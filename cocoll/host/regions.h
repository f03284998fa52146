// Where the parts of a rank's segment lie.

#ifndef COCOLL_HOST_REGIONS_H_
#define COCOLL_HOST_REGIONS_H_

#include <cstdint>

#include "control.h"
#include "mailbox.h"

namespace cocoll::host {

// Sizes of the scratch that every rank of a communicator has, agreed when it is made.
struct ScratchSizes {
  int64_t small_bytes;    // one of the two one-shot stagings
  int64_t staging_bytes;  // the slots of chunked operations
};

// Where the regions lie in a rank's segment; equal on all ranks.
struct Regions {
  int64_t small[2];
  int64_t staging;
  int64_t mailboxes;
  int64_t heap;  // the first byte for symmetric arrays

  Regions() = default;
  Regions(int32_t world_size, const ScratchSizes& sizes) {
    size_t at = round_up(Control::bytes(world_size), 4096);
    for (int64_t& copy : small) {
      copy = static_cast<int64_t>(at);
      // The odd line keeps the copies, and the ranks' equal offsets, on different L1 sets.
      at += round_up(static_cast<size_t>(sizes.small_bytes), 4096) + kCacheLineBytes;
    }
    staging = static_cast<int64_t>(round_up(at, kCacheLineBytes));
    at = static_cast<size_t>(staging) + static_cast<size_t>(sizes.staging_bytes);
    at = round_up(at, 4096);
    mailboxes = static_cast<int64_t>(at);
    heap = static_cast<int64_t>(round_up(at + MailboxRegion::bytes(world_size), kHugePageBytes));
  }
};

}  // namespace cocoll::host

#endif  // COCOLL_HOST_REGIONS_H_
