#include "storage/block_frame.h"

#include <cstring>

#include <fmt/format.h>

#include "base/hash.h"

namespace terrace::storage {
namespace {

uint64_t FrameChecksum(const BlockFrame& frame) {
  return Hash64(&frame, offsetof(BlockFrame, frame_checksum));
}

}  // namespace

BlockFrame MakeFrame(const BlockKey& key, std::span<const std::byte> data) {
  BlockFrame frame;
  std::memcpy(frame.key, key.bytes.data(), sizeof(frame.key));
  frame.data_bytes = data.size();
  frame.data_checksum = Hash64(data.data(), data.size());
  frame.frame_checksum = FrameChecksum(frame);
  return frame;
}

absl::Status CheckFrame(const BlockFrame& frame, const BlockKey& key,
                        std::span<const std::byte> data, std::string_view where) {
  return CheckFrameHash(frame, key, data.size(), Hash64(data.data(), data.size()), where);
}

absl::Status CheckFrameHash(const BlockFrame& frame, const BlockKey& key, uint64_t data_bytes,
                            uint64_t data_hash, std::string_view where) {
  const BlockFrame expected;
  if (frame.magic != expected.magic || frame.version != expected.version ||
      frame.frame_checksum != FrameChecksum(frame)) {
    return absl::DataLossError(fmt::format("{} has a damaged header", where));
  }
  if (std::memcmp(frame.key, key.bytes.data(), sizeof(frame.key)) != 0 ||
      frame.data_bytes != data_bytes) {
    return absl::DataLossError(fmt::format("{} holds another block", where));
  }
  if (frame.data_checksum != data_hash) {
    return absl::DataLossError(fmt::format("{} has damaged bytes", where));
  }
  return absl::OkStatus();
}

}  // namespace terrace::storage
