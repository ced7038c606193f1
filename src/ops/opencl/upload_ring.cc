#include "ops/opencl/upload_ring.h"

#include <algorithm>
#include <cstring>

#include "base/status.h"
#include "base/units.h"

namespace terrace::ops {

UploadRing::~UploadRing() {
  stream_->Synchronize().IgnoreError();
  device_->Free(memory_, host_.size());
}

absl::Status UploadRing::Grow(uint64_t bytes) {
  RETURN_IF_ERROR(stream_->Synchronize());
  ASSIGN_OR_RETURN(std::byte * larger, device_->Allocate(bytes));
  device_->Free(memory_, host_.size());
  memory_ = larger;
  host_.resize(bytes);
  used_ = 0;
  ++generation_;
  return absl::OkStatus();
}

absl::StatusOr<const std::byte*> UploadRing::Upload(std::span<const std::byte> data) {
  constexpr uint64_t kAlign = 64;
  const uint64_t bytes = AlignUp(std::max<uint64_t>(data.size(), 1), kAlign);
  if (bytes > host_.size() / 4) {
    RETURN_IF_ERROR(Grow(8 * bytes));
  } else if (used_ + bytes > host_.size()) {
    RETURN_IF_ERROR(stream_->Synchronize());
    used_ = 0;
    ++generation_;
  }
  std::byte* const to = memory_ + used_;
  std::memcpy(host_.data() + used_, data.data(), data.size());
  RETURN_IF_ERROR(stream_->CopyAsync(device::CopyDirection::kHostToDevice, to, host_.data() + used_,
                                     data.size()));
  used_ += bytes;
  return to;
}

}  // namespace terrace::ops
