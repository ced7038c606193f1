// Helpers for tests of model files: a temporary folder, and small GGUF models made by hand.
#ifndef TERRACE_FORMAT_FORMAT_TESTING_H_
#define TERRACE_FORMAT_FORMAT_TESTING_H_

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "base/status.h"
#include "format/gguf_writer.h"

namespace terrace::format {

// A folder of its own, deleted at the end.
class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "terrace-test-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(std::string_view name) const { return path_ + "/" + std::string(name); }

 private:
  std::string path_;
};

inline std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void WriteFile(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<int64_t>(bytes.size()));
}

inline std::vector<std::byte> RandomBytes(Random& random, size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.Next());
  return bytes;
}

// Header bytes put together by hand, for headers that no writer would write.
class RawGguf {
 public:
  RawGguf(uint64_t tensors, uint64_t keys, uint32_t version = 3) {
    Number<uint32_t>(kGgufMagic);
    Number<uint32_t>(version);
    Number<uint64_t>(tensors);
    Number<uint64_t>(keys);
  }
  template <typename T>
  RawGguf& Number(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  RawGguf& Text(std::string_view text) {
    Number<uint64_t>(text.size());
    bytes_ += text;
    return *this;
  }
  RawGguf& Key(std::string_view key, GgufValueType type) {
    Text(key);
    return Number<uint32_t>(static_cast<uint32_t>(type));
  }
  // `dims` in the file's order.
  RawGguf& Tensor(std::string_view name, std::span<const uint64_t> dims, uint32_t type,
                  uint64_t offset) {
    Text(name);
    Number<uint32_t>(static_cast<uint32_t>(dims.size()));
    for (uint64_t dim : dims) Number<uint64_t>(dim);
    Number<uint32_t>(type);
    return Number<uint64_t>(offset);
  }
  // Pads to the data section and appends `count` bytes of data.
  RawGguf& Data(size_t count) {
    while (bytes_.size() % kGgufDefaultAlignment != 0) bytes_ += '\0';
    bytes_.append(count, '\x11');
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

}  // namespace terrace::format

#endif  // TERRACE_FORMAT_FORMAT_TESTING_H_
