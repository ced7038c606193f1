#include "server/kserve_types.h"

#include <fmt/format.h>

#include <cstring>

namespace terrace::server::kserve {

int ElementBytes(std::string_view datatype) {
  struct Entry {
    std::string_view name;
    int bytes;
  };
  static constexpr Entry kTypes[] = {{"BYTES", 0},  {"BOOL", 1},   {"INT8", 1}, {"UINT8", 1},
                                     {"INT16", 2},  {"UINT16", 2}, {"FP16", 2}, {"BF16", 2},
                                     {"INT32", 4},  {"UINT32", 4}, {"FP32", 4}, {"INT64", 8},
                                     {"UINT64", 8}, {"FP64", 8}};
  for (const Entry& entry : kTypes) {
    if (entry.name == datatype) return entry.bytes;
  }
  return -1;
}

std::optional<int64_t> ElementCount(const std::vector<int64_t>& shape) {
  constexpr int64_t kMost = int64_t{1} << 31;
  int64_t count = 1;
  for (const int64_t dimension : shape) {
    if (dimension < 0 || dimension > kMost) return std::nullopt;
    count *= dimension;
    if (count > kMost) return std::nullopt;
  }
  return count;
}

std::optional<ApiError> CheckTensor(const Tensor& tensor) {
  const std::string field = fmt::format("inputs[\"{}\"]", tensor.name.substr(0, 64));
  const int each = ElementBytes(tensor.datatype);
  if (each < 0) {
    return BadField(field, fmt::format("{}: there is no datatype \"{}\".", field,
                                       tensor.datatype.substr(0, 64)));
  }
  const std::optional<int64_t> count = ElementCount(tensor.shape);
  if (!count) return BadField(field, fmt::format("{}: the shape is not valid.", field));
  if (each > 0) {
    if (tensor.data.size() == static_cast<uint64_t>(*count) * static_cast<uint64_t>(each)) {
      return std::nullopt;
    }
    return BadField(field, fmt::format("{}: {} elements of {} are {} bytes, but {} came.", field,
                                       *count, tensor.datatype, *count * each, tensor.data.size()));
  }
  int64_t found = 0;
  size_t at = 0;
  while (at < tensor.data.size()) {
    uint32_t length = 0;
    if (tensor.data.size() - at < sizeof length) break;
    std::memcpy(&length, tensor.data.data() + at, sizeof length);
    at += sizeof length;
    if (tensor.data.size() - at < length) {
      at = std::string::npos;
      break;
    }
    at += length;
    ++found;
  }
  if (at == tensor.data.size() && found == *count) return std::nullopt;
  return BadField(field,
                  fmt::format("{}: the bytes are not {} elements, each its length in four bytes "
                              "and then its text.",
                              field, *count));
}

std::vector<std::string_view> BytesElements(const Tensor& tensor) {
  std::vector<std::string_view> out;
  const std::string_view data = tensor.data;
  for (size_t at = 0; at < data.size();) {
    uint32_t length = 0;
    std::memcpy(&length, data.data() + at, sizeof length);
    out.push_back(data.substr(at + sizeof length, length));
    at += sizeof length + length;
  }
  return out;
}

}  // namespace terrace::server::kserve
