#include "ops/cambricon/cambricon_backend.h"

#include <utility>

#include "base/status.h"
#include "ops/host_fallback.h"

namespace terrace::ops {

absl::StatusOr<std::unique_ptr<Backend>> CreateCambriconBackend(device::Device* device,
                                                                std::unique_ptr<Backend> host) {
  ASSIGN_OR_RETURN(std::unique_ptr<device::Stream> stream, device->CreateStream());
  return std::unique_ptr<Backend>(
      std::make_unique<HostFallback>(device, std::move(stream), std::move(host)));
}

}  // namespace terrace::ops
