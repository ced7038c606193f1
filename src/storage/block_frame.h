// What stands before a KV block's bytes wherever they are kept outside this process, so that what
// is read back is known to be that block, whole. docs/formats/kv-block.md has the layout.
#ifndef TERRACE_STORAGE_BLOCK_FRAME_H_
#define TERRACE_STORAGE_BLOCK_FRAME_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "base/digest.h"

namespace terrace::storage {

using BlockKey = Digest128;

struct BlockFrame {
  uint64_t magic = 0x6b65636172726574;  // "terracek", little-endian
  uint32_t version = 1;
  uint32_t reserved = 0;
  uint8_t key[16] = {};
  uint64_t data_bytes = 0;
  uint64_t data_checksum = 0;   // XXH3-64
  uint64_t frame_checksum = 0;  // XXH3-64 of the fields above
};
static_assert(sizeof(BlockFrame) == 56);

BlockFrame MakeFrame(const BlockKey& key, std::span<const std::byte> data);

// DataLoss, naming `where`, unless `frame` is whole and says that `data` is the block of `key`.
absl::Status CheckFrame(const BlockFrame& frame, const BlockKey& key,
                        std::span<const std::byte> data, std::string_view where);

// The same, by the XXH3-64 of the data.
absl::Status CheckFrameHash(const BlockFrame& frame, const BlockKey& key, uint64_t data_bytes,
                            uint64_t data_hash, std::string_view where);

}  // namespace terrace::storage

#endif  // TERRACE_STORAGE_BLOCK_FRAME_H_
