// Anonymous memory straight from the operating system, aligned for huge pages, that really leaves
// the process when released.
#ifndef TERRACE_OS_MAPPING_H_
#define TERRACE_OS_MAPPING_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace terrace::os {

inline constexpr uint64_t kPageBytes = 4096;
inline constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;

struct MappingOptions {
  bool huge_pages = true;  // ask for 2 MiB pages (a hint; needs at least 2 MiB)
  bool populate = false;   // touch every page now instead of at first use
};

// A move-only range of zeroed memory, `bytes` rounded up to a page. Destroying it unmaps it. Not
// thread-safe (the memory is).
class Mapping {
 public:
  // ResourceExhausted if the system has no memory or address space left.
  static absl::StatusOr<Mapping> Anonymous(uint64_t bytes, const MappingOptions& options = {});
  Mapping() = default;
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  std::span<std::byte> span() const { return {data_, bytes_}; }
  explicit operator bool() const { return data_ != nullptr; }

  // Gives the pages of [offset, offset + bytes) back (page-aligned); they read as zero afterwards.
  absl::Status Discard(uint64_t offset, uint64_t bytes);
  // Moves the pages of [from, from + bytes) to [to, to + bytes), with what they hold and without
  // touching them; afterwards [from, ..) reads as zero and what was at `to` is gone. The two must
  // not overlap. Each call may cut the mapping into more pieces, of which the kernel allows a
  // process only so many (vm.max_map_count). Unimplemented before Linux 5.7; nothing has moved
  // then.
  absl::Status MovePages(uint64_t from, uint64_t to, uint64_t bytes);

 private:
  Mapping(std::byte* data, uint64_t bytes) : data_(data), bytes_(bytes) {}
  bool Holds(uint64_t offset, uint64_t bytes) const;  // whole pages of this mapping
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
};

// Brings the pages of mapped memory in now, instead of one by one when somebody first writes there;
// what they hold stays. A hint: without the kernel's help (Linux 5.14) nothing happens.
void Populate(std::span<std::byte> memory);

}  // namespace terrace::os

#endif  // TERRACE_OS_MAPPING_H_
