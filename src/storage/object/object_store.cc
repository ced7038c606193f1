#include "storage/object/object_store.h"

#include <algorithm>

namespace terrace::storage {

absl::Status ObjectStore::ReadRange(const std::string& key, uint64_t offset,
                                    std::span<std::byte> out, const ObjectInfo& pinned,
                                    const RequestControl& control) {
  return StreamRange(
      key, offset, out.size(), pinned, control, [&](uint64_t at, std::span<const std::byte> data) {
        std::copy(data.begin(), data.end(), out.begin() + static_cast<ptrdiff_t>(at - offset));
        return absl::OkStatus();
      });
}

}  // namespace terrace::storage
