#include "format/gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "base/hash.h"
#include "base/status.h"
#include "base/text.h"
#include "base/units.h"

namespace terrace::format {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF is read as little-endian");

constexpr size_t kChunkBytes = 256 * kKiB;
constexpr uint64_t kMaxMetadataBytes = 512 * kMiB;  // in memory, all keys of one file together
constexpr uint64_t kMaxKeyBytes = 65535;            // the specification's limit
constexpr uint64_t kMaxNameBytes = 255;
constexpr uint32_t kMaxDims = 4;
constexpr int64_t kMaxAlignment = int64_t{1} << 20;
// Least bytes an entry takes in a file: they bound the counts that a header may declare.
constexpr uint64_t kMinKeyValueBytes = 8 + 4 + 1;
constexpr uint64_t kMinTensorBytes = 8 + 4 + 4 + 8;

size_t FixedBytes(GgufValueType type) {
  switch (type) {
    case GgufValueType::kUint8:
    case GgufValueType::kInt8:
    case GgufValueType::kBool:
      return 1;
    case GgufValueType::kUint16:
    case GgufValueType::kInt16:
      return 2;
    case GgufValueType::kUint32:
    case GgufValueType::kInt32:
    case GgufValueType::kFloat32:
      return 4;
    case GgufValueType::kUint64:
    case GgufValueType::kInt64:
    case GgufValueType::kFloat64:
      return 8;
    case GgufValueType::kString:
    case GgufValueType::kArray:
      return 0;
  }
  return 0;
}

// Names of tensor types that exist but that DType does not hold, for messages.
std::string GgufTensorTypeName(uint32_t type) {
  switch (type) {
    case 9:
      return "Q8_1";
    case 15:
      return "Q8_K";
    case 16:
      return "IQ2_XXS";
    case 17:
      return "IQ2_XS";
    case 18:
      return "IQ3_XXS";
    case 19:
      return "IQ1_S";
    case 22:
      return "IQ2_S";
    case 29:
      return "IQ1_M";
    case 34:
      return "TQ1_0";
    default:
      return "unknown";
  }
}

// `text` from a file, short enough and clean enough for a message.
std::string Printable(std::string_view text) {
  std::string out = ToValidUtf8(text.substr(0, 80));
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return text.size() > 80 ? out + "..." : out;
}

// Reads a header front to back through one chunk of bounded size, and hashes the chunks it reads.
class HeaderReader {
 public:
  explicit HeaderReader(const ByteSource& source) : source_(source) {}

  uint64_t position() const { return position_; }
  uint64_t left() const { return source_.size() - position_; }
  uint64_t hash() const { return hash_; }
  // What is being read, for messages: "metadata key 3 of 9 ('x')".
  void SetPlace(std::string place) { place_ = std::move(place); }

  absl::Status Malformed(std::string_view what) const {
    return absl::InvalidArgumentError(
        fmt::format("'{}': {} at offset {}: {}", source_.name(), place_, position_, what));
  }
  absl::Status CutOff(uint64_t needed) const {
    if (needed > source_.size()) {
      return Malformed(fmt::format("declares {} bytes, but the whole file has {} (malformed)",
                                   needed, source_.size()));
    }
    return absl::DataLossError(
        fmt::format("'{}': {} at offset {}: the file is cut off, {} bytes are missing",
                    source_.name(), place_, position_, needed - left()));
  }

  absl::Status Read(void* out, uint64_t bytes) {
    if (bytes > left()) return CutOff(bytes);
    auto* to = static_cast<std::byte*>(out);
    while (bytes > 0) {
      uint64_t in_chunk = position_ % kChunkBytes;
      if (position_ / kChunkBytes != chunk_index_ || chunk_.empty()) RETURN_IF_ERROR(Fill());
      uint64_t step = std::min<uint64_t>(bytes, chunk_.size() - in_chunk);
      std::memcpy(to, chunk_.data() + in_chunk, step);
      to += step;
      bytes -= step;
      position_ += step;
    }
    return absl::OkStatus();
  }

  template <typename T>
  absl::StatusOr<T> Number() {
    T value;
    RETURN_IF_ERROR(Read(&value, sizeof(value)));
    return value;
  }

  absl::StatusOr<std::string> String(uint64_t limit, std::string_view what) {
    ASSIGN_OR_RETURN(uint64_t length, Number<uint64_t>());
    if (length > left()) return CutOff(length);
    if (length > limit) {
      return Malformed(fmt::format("{} of {} bytes, more than {}", what, length, limit));
    }
    RETURN_IF_ERROR(Charge(length));
    std::string text(length, '\0');
    RETURN_IF_ERROR(Read(text.data(), length));
    return text;
  }

  // Books memory that the header's values take.
  absl::Status Charge(uint64_t bytes) {
    charged_ += bytes;
    if (charged_ <= kMaxMetadataBytes) return absl::OkStatus();
    return absl::ResourceExhaustedError(
        fmt::format("'{}': {} at offset {}: the header's values take more than {}", source_.name(),
                    place_, position_, FormatBytes(kMaxMetadataBytes)));
  }

 private:
  absl::Status Fill() {
    chunk_index_ = position_ / kChunkBytes;
    uint64_t start = chunk_index_ * kChunkBytes;
    chunk_.resize(std::min<uint64_t>(kChunkBytes, source_.size() - start));
    RETURN_IF_ERROR(source_.ReadAt(start, std::span(chunk_)));
    hash_ = Hash64(chunk_.data(), chunk_.size(), hash_);
    return absl::OkStatus();
  }

  const ByteSource& source_;
  std::string place_ = "the header";
  std::vector<std::byte> chunk_;
  uint64_t chunk_index_ = 0;
  uint64_t position_ = 0;
  uint64_t hash_ = 0;
  uint64_t charged_ = 0;
};

// One integer of any width as int64.
absl::StatusOr<int64_t> ReadInteger(HeaderReader& reader, GgufValueType type) {
  switch (type) {
    case GgufValueType::kUint8:
      return reader.Number<uint8_t>();
    case GgufValueType::kInt8:
      return reader.Number<int8_t>();
    case GgufValueType::kUint16:
      return reader.Number<uint16_t>();
    case GgufValueType::kInt16:
      return reader.Number<int16_t>();
    case GgufValueType::kUint32:
      return reader.Number<uint32_t>();
    case GgufValueType::kInt32:
      return reader.Number<int32_t>();
    case GgufValueType::kInt64:
      return reader.Number<int64_t>();
    case GgufValueType::kUint64: {
      ASSIGN_OR_RETURN(uint64_t value, reader.Number<uint64_t>());
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        return reader.Malformed(fmt::format("integer {} above 2^63 - 1", value));
      }
      return static_cast<int64_t>(value);
    }
    default:
      return absl::InternalError("not an integer type");
  }
}

absl::StatusOr<double> ReadFloat(HeaderReader& reader, GgufValueType type) {
  if (type == GgufValueType::kFloat64) return reader.Number<double>();
  ASSIGN_OR_RETURN(float value, reader.Number<float>());
  return static_cast<double>(value);
}

absl::StatusOr<bool> ReadBool(HeaderReader& reader) {
  ASSIGN_OR_RETURN(uint8_t value, reader.Number<uint8_t>());
  if (value > 1) return reader.Malformed(fmt::format("bool with value {}", value));
  return value == 1;
}

template <typename T, typename ReadOne>
absl::StatusOr<MetadataValue> ReadElements(HeaderReader& reader, uint64_t count, ReadOne read_one) {
  RETURN_IF_ERROR(reader.Charge(count * sizeof(T)));
  std::vector<T> values;
  values.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    auto value = read_one();
    if (!value.ok()) return value.status();
    values.push_back(*std::move(value));
  }
  return MetadataValue(std::move(values));
}

absl::StatusOr<MetadataValue> ReadArray(HeaderReader& reader) {
  ASSIGN_OR_RETURN(uint32_t raw_type, reader.Number<uint32_t>());
  ASSIGN_OR_RETURN(uint64_t count, reader.Number<uint64_t>());
  if (raw_type > static_cast<uint32_t>(GgufValueType::kFloat64)) {
    return reader.Malformed(fmt::format("array elements of unknown type {}", raw_type));
  }
  auto type = static_cast<GgufValueType>(raw_type);
  if (type == GgufValueType::kArray) return reader.Malformed("an array of arrays is not read");
  uint64_t element_bytes = type == GgufValueType::kString ? sizeof(uint64_t) : FixedBytes(type);
  if (count > reader.left() / element_bytes) {
    // Beyond 2^60 the product would wrap; such a count is malformed whatever the file's size.
    if (count > (uint64_t{1} << 60)) {
      return reader.Malformed(fmt::format("an array of {} elements (malformed)", count));
    }
    return reader.CutOff(count * element_bytes);
  }
  switch (type) {
    case GgufValueType::kString:
      return ReadElements<std::string>(reader, count,
                                       [&] { return reader.String(kMaxMetadataBytes, "string"); });
    case GgufValueType::kBool:
      return ReadElements<bool>(reader, count, [&] { return ReadBool(reader); });
    case GgufValueType::kFloat32:
    case GgufValueType::kFloat64:
      return ReadElements<double>(reader, count, [&] { return ReadFloat(reader, type); });
    default:
      return ReadElements<int64_t>(reader, count, [&] { return ReadInteger(reader, type); });
  }
}

absl::StatusOr<MetadataValue> ReadValue(HeaderReader& reader) {
  ASSIGN_OR_RETURN(uint32_t raw_type, reader.Number<uint32_t>());
  if (raw_type > static_cast<uint32_t>(GgufValueType::kFloat64)) {
    return reader.Malformed(fmt::format("value of unknown type {}", raw_type));
  }
  auto type = static_cast<GgufValueType>(raw_type);
  switch (type) {
    case GgufValueType::kArray:
      return ReadArray(reader);
    case GgufValueType::kString: {
      ASSIGN_OR_RETURN(std::string text, reader.String(kMaxMetadataBytes, "string"));
      return MetadataValue(std::move(text));
    }
    case GgufValueType::kBool: {
      ASSIGN_OR_RETURN(bool value, ReadBool(reader));
      return MetadataValue(value);
    }
    case GgufValueType::kFloat32:
    case GgufValueType::kFloat64: {
      ASSIGN_OR_RETURN(double value, ReadFloat(reader, type));
      return MetadataValue(value);
    }
    default: {
      ASSIGN_OR_RETURN(int64_t value, ReadInteger(reader, type));
      return MetadataValue(value);
    }
  }
}

absl::Status ReadMetadata(HeaderReader& reader, uint64_t count, Metadata* metadata) {
  reader.SetPlace("the metadata");
  if (count > reader.left() / kMinKeyValueBytes) {
    return reader.Malformed(
        fmt::format("{} metadata keys declared, but only {} bytes follow", count, reader.left()));
  }
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t start = reader.position();
    reader.SetPlace(
        fmt::format("metadata key {} of {} (starts at offset {})", i + 1, count, start));
    ASSIGN_OR_RETURN(std::string key, reader.String(kMaxKeyBytes, "key"));
    reader.SetPlace(fmt::format("metadata key {} of {} ('{}', starts at offset {})", i + 1, count,
                                Printable(key), start));
    if (key.empty() || !IsValidUtf8(key)) return reader.Malformed("the key is empty or not UTF-8");
    if (metadata->Has(key)) return reader.Malformed("the key appears twice");
    ASSIGN_OR_RETURN(MetadataValue value, ReadValue(reader));
    metadata->Set(std::move(key), std::move(value));
  }
  return absl::OkStatus();
}

// Sets `tensor`'s bytes from its dtype and shape.
absl::Status SizeTensor(const HeaderReader& reader, TensorInfo* tensor) {
  const DTypeInfo& info = Info(tensor->dtype);
  bool empty = false;
  for (int64_t dim : tensor->shape) empty = empty || dim == 0;
  int64_t elements = empty ? 0 : 1;
  for (int64_t dim : tensor->shape) {
    if (!empty && __builtin_mul_overflow(elements, dim, &elements)) {
      return reader.Malformed("more than 2^63 elements");
    }
  }
  int64_t row = tensor->shape.empty() ? 1 : tensor->shape.back();
  if (row % info.block_elements != 0) {
    return reader.Malformed(
        fmt::format("rows of {} elements are not a multiple of the {} of a {} block", row,
                    info.block_elements, info.name));
  }
  if (__builtin_mul_overflow(static_cast<uint64_t>(elements) / info.block_elements,
                             uint64_t{info.block_bytes}, &tensor->bytes) ||
      tensor->bytes > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return reader.Malformed("more than 2^63 bytes");
  }
  return absl::OkStatus();
}

// One entry of the tensor table; its offset still counts from the start of the data.
absl::StatusOr<TensorInfo> ReadTensorEntry(HeaderReader& reader, uint64_t index, uint64_t count) {
  TensorInfo tensor;
  reader.SetPlace(fmt::format("entry {} of {} of the tensor table", index + 1, count));
  ASSIGN_OR_RETURN(tensor.name, reader.String(kMaxNameBytes, "tensor name"));
  reader.SetPlace(fmt::format("tensor '{}' (entry {} of {} of the tensor table)",
                              Printable(tensor.name), index + 1, count));
  if (tensor.name.empty() || !IsValidUtf8(tensor.name)) {
    return reader.Malformed("the name is empty or not UTF-8");
  }
  ASSIGN_OR_RETURN(uint32_t dims, reader.Number<uint32_t>());
  if (dims > kMaxDims) {
    return reader.Malformed(fmt::format("{} dimensions, at most {} are read", dims, kMaxDims));
  }
  for (uint32_t i = 0; i < dims; ++i) {
    ASSIGN_OR_RETURN(uint64_t dim, reader.Number<uint64_t>());
    if (dim > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return reader.Malformed(fmt::format("a dimension of {}", dim));
    }
    tensor.shape.push_back(static_cast<int64_t>(dim));
  }
  std::reverse(tensor.shape.begin(), tensor.shape.end());
  ASSIGN_OR_RETURN(uint32_t type, reader.Number<uint32_t>());
  auto dtype = DTypeFromGguf(type);
  if (!dtype) {
    return absl::UnimplementedError(
        reader
            .Malformed(fmt::format("tensor type {} ({}) is not read by this build", type,
                                   GgufTensorTypeName(type)))
            .message());
  }
  tensor.dtype = *dtype;
  ASSIGN_OR_RETURN(tensor.offset, reader.Number<uint64_t>());
  RETURN_IF_ERROR(SizeTensor(reader, &tensor));
  return tensor;
}

absl::Status CheckOverlap(const ByteSource& source, const std::vector<TensorInfo>& tensors) {
  std::vector<const TensorInfo*> order;
  order.reserve(tensors.size());
  for (const TensorInfo& tensor : tensors) {
    if (tensor.bytes > 0) order.push_back(&tensor);
  }
  std::sort(order.begin(), order.end(),
            [](const TensorInfo* a, const TensorInfo* b) { return a->offset < b->offset; });
  for (size_t i = 1; i < order.size(); ++i) {
    if (order[i]->offset >= order[i - 1]->offset + order[i - 1]->bytes) continue;
    return absl::InvalidArgumentError(
        fmt::format("'{}': the data of tensors '{}' and '{}' overlap at offset {}", source.name(),
                    Printable(order[i - 1]->name), Printable(order[i]->name), order[i]->offset));
  }
  return absl::OkStatus();
}

absl::Status ReadTensorTable(HeaderReader& reader, const ByteSource& source, uint64_t count,
                             GgufHeader* header) {
  reader.SetPlace("the tensor table");
  if (count > reader.left() / kMinTensorBytes && count > source.size() / kMinTensorBytes) {
    return reader.Malformed(
        fmt::format("{} tensors declared, but only {} bytes follow", count, reader.left()));
  }
  absl::flat_hash_set<std::string> names;
  for (uint64_t i = 0; i < count; ++i) {
    ASSIGN_OR_RETURN(TensorInfo tensor, ReadTensorEntry(reader, i, count));
    RETURN_IF_ERROR(reader.Charge(sizeof(TensorInfo) + 2 * tensor.name.size() + 64));
    if (!names.insert(tensor.name).second)
      return reader.Malformed("the tensor's name appears twice");
    header->tensors.push_back(std::move(tensor));
  }
  header->data_offset = AlignUp(reader.position(), header->alignment);
  for (TensorInfo& tensor : header->tensors) {
    std::string name = fmt::format("'{}': tensor '{}'", source.name(), Printable(tensor.name));
    if (tensor.offset % header->alignment != 0) {
      return absl::InvalidArgumentError(
          fmt::format("{}: offset {} is not a multiple of the alignment {}", name, tensor.offset,
                      header->alignment));
    }
    uint64_t start, end;
    if (__builtin_add_overflow(tensor.offset, header->data_offset, &start) ||
        __builtin_add_overflow(start, tensor.bytes, &end)) {
      return absl::InvalidArgumentError(fmt::format("{}: offset {} and {} bytes are malformed",
                                                    name, tensor.offset, tensor.bytes));
    }
    if (tensor.bytes > 0 && end > source.size()) {
      return absl::DataLossError(
          fmt::format("{}: its data is bytes {} to {} of the file, which has {}: {} bytes are "
                      "missing (a cut-off "
                      "download?)",
                      name, start, end, source.size(), end - source.size()));
    }
    tensor.offset = tensor.bytes > 0 ? start : 0;
  }
  return CheckOverlap(source, header->tensors);
}

absl::StatusOr<uint32_t> ReadVersion(HeaderReader& reader, const ByteSource& source) {
  ASSIGN_OR_RETURN(uint32_t magic, reader.Number<uint32_t>());
  if (magic != kGgufMagic && magic != __builtin_bswap32(kGgufMagic)) {
    return absl::InvalidArgumentError(
        fmt::format("'{}' is not a GGUF file: its first 4 bytes are {:08x}, not \"GGUF\"",
                    source.name(), __builtin_bswap32(magic)));
  }
  ASSIGN_OR_RETURN(uint32_t version, reader.Number<uint32_t>());
  // A big-endian writer keeps the magic's letters and turns the numbers round.
  if (magic != kGgufMagic || (version & 0xffff) == 0) {
    return absl::UnimplementedError(fmt::format(
        "'{}' is a big-endian GGUF file; only little-endian ones are read", source.name()));
  }
  if (version != 2 && version != 3) {
    return absl::UnimplementedError(
        fmt::format("'{}' has GGUF version {}; versions 2 and 3 are read", source.name(), version));
  }
  return version;
}

}  // namespace

absl::StatusOr<GgufHeader> ReadGgufHeader(const ByteSource& source) {
  GgufHeader header;
  HeaderReader reader(source);
  ASSIGN_OR_RETURN(header.version, ReadVersion(reader, source));
  ASSIGN_OR_RETURN(uint64_t tensor_count, reader.Number<uint64_t>());
  ASSIGN_OR_RETURN(uint64_t key_count, reader.Number<uint64_t>());
  RETURN_IF_ERROR(ReadMetadata(reader, key_count, &header.metadata));
  auto alignment =
      header.metadata.GetInt("general.alignment", 1, kMaxAlignment, kGgufDefaultAlignment);
  if (!alignment.ok()) return WithContext(alignment.status(), source.name());
  if (!std::has_single_bit(static_cast<uint64_t>(*alignment))) {
    return absl::InvalidArgumentError(
        fmt::format("'{}': general.alignment {} is not a power of two", source.name(), *alignment));
  }
  header.alignment = static_cast<uint32_t>(*alignment);
  RETURN_IF_ERROR(ReadTensorTable(reader, source, tensor_count, &header));
  header.header_hash = reader.hash();
  return header;
}

}  // namespace terrace::format
