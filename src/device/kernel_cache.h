// Compiled kernels on disk, each a file named by a digest of everything that it was made from,
// under a checksum: drivers trust what they once wrote and crash on what is damaged. Thread-safe.
#ifndef TERRACE_DEVICE_KERNEL_CACHE_H_
#define TERRACE_DEVICE_KERNEL_CACHE_H_

#include <optional>
#include <string>
#include <string_view>

namespace terrace::device {

class KernelCache {
 public:
  // `folder` is made when it is first written to; empty: nothing is kept.
  explicit KernelCache(std::string folder) : folder_(std::move(folder)) {}

  bool keeps() const { return !folder_.empty(); }
  // The bytes stored under `digest`, if they are there and whole.
  std::optional<std::string> Load(std::string_view digest) const;
  // Best effort: what cannot be stored is compiled again next time.
  void Store(std::string_view digest, std::string_view bytes) const;

 private:
  std::string Path(std::string_view digest) const;
  const std::string folder_;
};

}  // namespace terrace::device

#endif  // TERRACE_DEVICE_KERNEL_CACHE_H_
