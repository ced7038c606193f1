// Copies between buffers on a device with memory of its own and the host, for who keeps KV
// elsewhere.
#include <cstring>

#include "base/status.h"
#include "tier/manager_impl.h"
#include "tier/tier_manager.h"

namespace terrace::tier {

absl::Status TierManagerImpl::CopyBuffer(device::CopyDirection direction, std::byte* to,
                                         const std::byte* from, uint64_t bytes) {
  if (unified_) {
    if (to != from && bytes > 0) std::memmove(to, from, bytes);
    return absl::OkStatus();
  }
  absl::MutexLock lock(&buffer_stream_mutex_);
  if (buffer_stream_ == nullptr) {
    ASSIGN_OR_RETURN(buffer_stream_, device_->CreateStream());
  }
  RETURN_IF_ERROR(buffer_stream_->CopyAsync(direction, to, from, bytes));
  absl::Status status = buffer_stream_->Synchronize();
  if (!status.ok()) buffer_stream_->ClearError();
  return status;
}

bool TierManager::unified() const { return impl_->unified(); }

absl::Status TierManager::CopyToHost(const std::byte* from, std::span<std::byte> to) {
  return impl_->CopyBuffer(device::CopyDirection::kDeviceToHost, to.data(), from, to.size());
}

absl::Status TierManager::CopyToDevice(std::span<const std::byte> from, std::byte* to) {
  return impl_->CopyBuffer(device::CopyDirection::kHostToDevice, to, from.data(), from.size());
}

}  // namespace terrace::tier
