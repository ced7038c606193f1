#include "format/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <boost/json.hpp>
#include <cstring>
#include <utility>

#include "base/hash.h"
#include "base/status.h"

namespace terrace::format {
namespace {

namespace json = boost::json;

constexpr uint64_t kLengthBytes = 8;
constexpr size_t kMaxDims = 8;
constexpr int kMaxDepth = 8;

struct DTypeRow {
  std::string_view name;
  uint32_t bytes;
};
constexpr std::array<DTypeRow, 13> kTypes = {{{"F64", 8},
                                              {"F32", 4},
                                              {"F16", 2},
                                              {"BF16", 2},
                                              {"F8_E4M3", 1},
                                              {"F8_E5M2", 1},
                                              {"F8_E8M0", 1},
                                              {"I64", 8},
                                              {"I32", 4},
                                              {"I16", 2},
                                              {"I8", 1},
                                              {"U8", 1},
                                              {"BOOL", 1}}};

class HeaderReader {
 public:
  explicit HeaderReader(const ByteSource& source) : source_(source) {}

  absl::StatusOr<SafetensorsHeader> Read() {
    std::vector<char> text;
    RETURN_IF_ERROR(ReadText(&text));
    json::monotonic_resource memory;
    json::error_code error;
    json::parse_options options;
    options.max_depth = kMaxDepth;
    const json::value root =
        json::parse(json::string_view(text.data(), text.size()), error, &memory, options);
    if (error) return Bad(fmt::format("the header is not JSON: {}", error.message()));
    if (!root.is_object()) return Bad("the header is not a JSON object");
    for (const auto& member : root.get_object()) {
      const std::string_view name(member.key().data(), member.key().size());
      if (name == "__metadata__") continue;
      ASSIGN_OR_RETURN(SafeTensor tensor, ReadTensor(name, member.value()));
      header_.tensors.push_back(std::move(tensor));
    }
    RETURN_IF_ERROR(CheckOverlap());
    return std::move(header_);
  }

 private:
  absl::Status Bad(std::string_view what) const {
    return absl::InvalidArgumentError(fmt::format("'{}': {}", source_.name(), what));
  }
  absl::Status Bad(std::string_view tensor, std::string_view what) const {
    return Bad(fmt::format("tensor '{}': {}", tensor, what));
  }

  absl::Status ReadText(std::vector<char>* text) {
    std::array<std::byte, kLengthBytes> raw;
    if (source_.size() < kLengthBytes) {
      return absl::DataLossError(fmt::format("'{}': {} bytes, too short for a safetensors file",
                                             source_.name(), source_.size()));
    }
    RETURN_IF_ERROR(source_.ReadAt(0, raw));
    uint64_t length = 0;
    std::memcpy(&length, raw.data(), sizeof(length));
    if constexpr (std::endian::native == std::endian::big) length = __builtin_bswap64(length);
    if (length > kMaxSafetensorsHeader) {
      return Bad(fmt::format("its header would take {} bytes, at most {} are read", length,
                             kMaxSafetensorsHeader));
    }
    if (length > source_.size() - kLengthBytes) {
      return absl::DataLossError(fmt::format(
          "'{}': its header takes {} bytes, but the file has {}: {} bytes are missing",
          source_.name(), length, source_.size(), length - (source_.size() - kLengthBytes)));
    }
    text->resize(length);
    RETURN_IF_ERROR(source_.ReadAt(kLengthBytes, std::as_writable_bytes(std::span(*text))));
    header_.header_hash = Hash64(text->data(), text->size(), length);
    data_offset_ = kLengthBytes + length;
    data_bytes_ = source_.size() - data_offset_;
    return absl::OkStatus();
  }

  // The numbers of the list `key`, at most `most` of them.
  absl::StatusOr<std::vector<int64_t>> Numbers(std::string_view tensor, const json::object& entry,
                                               std::string_view key, size_t most) const {
    const json::value* list = entry.if_contains({key.data(), key.size()});
    if (list == nullptr || !list->is_array() || list->get_array().size() > most) {
      return Bad(tensor, fmt::format("its {} is not a list of at most {} numbers", key, most));
    }
    std::vector<int64_t> numbers;
    for (const json::value& value : list->get_array()) {
      json::error_code error;
      const int64_t number =
          value.is_number() && !value.is_double() ? value.to_number<int64_t>(error) : -1;
      if (error || number < 0) {
        return Bad(tensor, fmt::format("its {} holds {}", key, json::serialize(value)));
      }
      numbers.push_back(number);
    }
    return numbers;
  }

  absl::StatusOr<SafeTensor> ReadTensor(std::string_view name, const json::value& value) const {
    if (!value.is_object()) return Bad(name, "its entry is not an object");
    const json::object& entry = value.get_object();
    SafeTensor tensor;
    tensor.name = std::string(name);
    const json::value* dtype = entry.if_contains("dtype");
    if (dtype == nullptr || !dtype->is_string()) return Bad(name, "it has no dtype");
    const std::string_view type(dtype->get_string().data(), dtype->get_string().size());
    const auto* row = std::ranges::find(kTypes, type, &DTypeRow::name);
    if (row == kTypes.end()) {
      return absl::UnimplementedError(
          fmt::format("'{}': tensor '{}': dtype '{}' is not known", source_.name(), name, type));
    }
    tensor.dtype = static_cast<SafeDType>(row - kTypes.begin());
    ASSIGN_OR_RETURN(tensor.shape, Numbers(name, entry, "shape", kMaxDims));
    ASSIGN_OR_RETURN(const std::vector<int64_t> range, Numbers(name, entry, "data_offsets", 2));
    if (range.size() != 2) return Bad(name, "its data_offsets are not [begin, end]");
    uint64_t need = row->bytes;
    bool overflow = false;
    for (int64_t dim : tensor.shape) {
      overflow = overflow || __builtin_mul_overflow(need, static_cast<uint64_t>(dim), &need);
    }
    const auto begin = static_cast<uint64_t>(range[0]), end = static_cast<uint64_t>(range[1]);
    if (begin > end) {
      return Bad(name, fmt::format("its data ends at {} before it begins at {}", end, begin));
    }
    if (overflow || need != end - begin) {
      return Bad(name, fmt::format("its shape [{}] of {} takes {} bytes, its range [{}, {}) has {}",
                                   fmt::join(tensor.shape, ", "), type,
                                   overflow ? "over 2^64" : fmt::to_string(need), begin, end,
                                   end - begin));
    }
    if (end > data_bytes_) {
      return absl::DataLossError(fmt::format(
          "'{}': tensor '{}' ends at byte {} of the data, of which the file has {}: {} are missing",
          source_.name(), name, end, data_bytes_, end - data_bytes_));
    }
    tensor.offset = data_offset_ + begin;
    tensor.bytes = need;
    return tensor;
  }

  absl::Status CheckOverlap() {
    std::sort(header_.tensors.begin(), header_.tensors.end(),
              [](const SafeTensor& a, const SafeTensor& b) {
                return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
              });
    uint64_t end = 0;
    const SafeTensor* before = nullptr;
    for (const SafeTensor& tensor : header_.tensors) {
      if (before != nullptr && tensor.offset < end) {
        return Bad(tensor.name, fmt::format("its data overlaps that of '{}'", before->name));
      }
      end = tensor.offset + tensor.bytes;
      before = &tensor;
    }
    return absl::OkStatus();
  }

  const ByteSource& source_;
  uint64_t data_offset_ = 0;
  uint64_t data_bytes_ = 0;
  SafetensorsHeader header_;
};

}  // namespace

uint32_t SafeDTypeBytes(SafeDType dtype) { return kTypes[static_cast<size_t>(dtype)].bytes; }
std::string_view SafeDTypeName(SafeDType dtype) { return kTypes[static_cast<size_t>(dtype)].name; }

absl::StatusOr<SafetensorsHeader> ReadSafetensorsHeader(const ByteSource& source) {
  return HeaderReader(source).Read();
}

}  // namespace terrace::format
