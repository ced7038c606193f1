#include "device/kernel_cache.h"

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <fmt/format.h>

#include "base/hash.h"
#include "os/atomic_file.h"

namespace terrace::device {

std::string KernelCache::Path(std::string_view digest) const {
  return fmt::format("{}/{}.kernels", folder_, digest);
}

std::optional<std::string> KernelCache::Load(std::string_view digest) const {
  if (folder_.empty()) return std::nullopt;
  std::ifstream in(Path(digest), std::ios::binary);
  if (!in) return std::nullopt;
  std::string file{std::istreambuf_iterator<char>(in), {}};
  uint64_t hash = 0;
  if (file.size() <= sizeof(hash)) return std::nullopt;
  std::memcpy(&hash, file.data(), sizeof(hash));
  file.erase(0, sizeof(hash));
  if (Hash64(file.data(), file.size()) != hash) return std::nullopt;
  return file;
}

void KernelCache::Store(std::string_view digest, std::string_view bytes) const {
  if (folder_.empty()) return;
  std::error_code ignored;
  std::filesystem::create_directories(folder_, ignored);
  const uint64_t hash = Hash64(bytes.data(), bytes.size());
  std::string file(sizeof(hash) + bytes.size(), '\0');
  std::memcpy(file.data(), &hash, sizeof(hash));
  std::memcpy(file.data() + sizeof(hash), bytes.data(), bytes.size());
  os::WriteFileAtomically(Path(digest), file).IgnoreError();
}

}  // namespace terrace::device
