#include "os/mapping.h"

#include <sys/mman.h>

#include <cerrno>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "base/status.h"
#include "base/units.h"

namespace terrace::os {

absl::StatusOr<Mapping> Mapping::Anonymous(uint64_t bytes, const MappingOptions& options) {
  if (bytes == 0 || bytes > std::numeric_limits<int64_t>::max() / 2) {
    return absl::InvalidArgumentError(fmt::format("cannot map {} bytes", bytes));
  }
  bytes = AlignUp(bytes, kPageBytes);
  const bool huge = options.huge_pages && bytes >= kHugePageBytes;
  // A huge page needs an address that is a multiple of its size: map more, then trim both ends.
  const uint64_t mapped = huge ? bytes + kHugePageBytes - kPageBytes : bytes;
  void* base = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return ErrnoStatus(errno, fmt::format("mapping {} of memory", FormatBytes(bytes)));
  }
  uint64_t start = reinterpret_cast<uintptr_t>(base);
  uint64_t aligned = huge ? AlignUp(start, kHugePageBytes) : start;
  if (aligned > start) ::munmap(base, aligned - start);
  if (aligned + bytes < start + mapped) {
    ::munmap(reinterpret_cast<void*>(aligned + bytes), start + mapped - aligned - bytes);
  }
  auto* data = reinterpret_cast<std::byte*>(aligned);
  // Refused where the kernel is built without transparent huge pages; small pages serve as well.
  if (huge) ::madvise(data, bytes, MADV_HUGEPAGE);
  Mapping mapping(data, bytes);
  if (options.populate) {
#ifdef MADV_POPULATE_WRITE
    if (::madvise(data, bytes, MADV_POPULATE_WRITE) == 0) return mapping;
    if (errno != EINVAL) return ErrnoStatus(errno, fmt::format("populating {} bytes", bytes));
#endif
    for (uint64_t i = 0; i < bytes; i += kPageBytes) {
      *reinterpret_cast<volatile std::byte*>(data + i) = std::byte{0};
    }
  }
  return mapping;
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Mapping::~Mapping() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

bool Mapping::Holds(uint64_t offset, uint64_t bytes) const {
  return offset % kPageBytes == 0 && bytes % kPageBytes == 0 && offset <= bytes_ &&
         bytes <= bytes_ - offset;
}

absl::Status Mapping::Discard(uint64_t offset, uint64_t bytes) {
  if (!Holds(offset, bytes)) {
    return absl::InvalidArgumentError(
        fmt::format("cannot discard {} bytes at {} of a mapping of {}", bytes, offset, bytes_));
  }
  if (bytes > 0 && ::madvise(data_ + offset, bytes, MADV_DONTNEED) != 0) {
    return ErrnoStatus(errno, "giving pages back");
  }
  return absl::OkStatus();
}

absl::Status Mapping::MovePages(uint64_t from, uint64_t to, uint64_t bytes) {
  if (!Holds(from, bytes) || !Holds(to, bytes) || (from < to + bytes && to < from + bytes)) {
    return absl::InvalidArgumentError(fmt::format(
        "cannot move {} bytes from {} to {} of a mapping of {}", bytes, from, to, bytes_));
  }
#ifdef MREMAP_DONTUNMAP
  void* moved = ::mremap(data_ + from, bytes, bytes,
                         MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, data_ + to);
  if (moved != MAP_FAILED) return absl::OkStatus();
  if (errno != EINVAL) return ErrnoStatus(errno, "moving pages");
#endif
  return absl::UnimplementedError("this kernel does not move pages within a mapping");
}

void Populate(std::span<std::byte> memory) {
#ifdef MADV_POPULATE_WRITE
  const auto begin = AlignUp(reinterpret_cast<uintptr_t>(memory.data()), kPageBytes);
  const uint64_t end = (reinterpret_cast<uintptr_t>(memory.data()) + memory.size()) & -kPageBytes;
  if (begin < end) {
    (void)::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_WRITE);
  }
#else
  (void)memory;
#endif
}

}  // namespace terrace::os
