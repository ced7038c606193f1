#include "format/gguf_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include "base/status.h"
#include "base/units.h"

namespace terrace::format {
namespace {

constexpr uint64_t kPieceBytes = kMiB;

template <typename T>
void Put(std::string* out, T value) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void PutString(std::string* out, std::string_view text) {
  Put(out, static_cast<uint64_t>(text.size()));
  out->append(text);
}

void PutInt(std::string* out, GgufValueType type, int64_t value) {
  switch (type) {
    case GgufValueType::kUint8:
    case GgufValueType::kInt8:
      return Put(out, static_cast<int8_t>(value));
    case GgufValueType::kUint16:
    case GgufValueType::kInt16:
      return Put(out, static_cast<int16_t>(value));
    case GgufValueType::kUint32:
    case GgufValueType::kInt32:
      return Put(out, static_cast<int32_t>(value));
    default:
      return Put(out, value);
  }
}

GgufValueType ScalarType(int64_t value) {
  if (value >= 0 && value <= std::numeric_limits<uint32_t>::max()) return GgufValueType::kUint32;
  if (value < 0 && value >= std::numeric_limits<int32_t>::min()) return GgufValueType::kInt32;
  return GgufValueType::kInt64;
}

GgufValueType ArrayType(const std::vector<int64_t>& values) {
  for (int64_t value : values) {
    if (value < std::numeric_limits<int32_t>::min() ||
        value > std::numeric_limits<int32_t>::max()) {
      return GgufValueType::kInt64;
    }
  }
  return GgufValueType::kInt32;
}

absl::Status WriteAll(int fd, const std::string& path, std::span<const std::byte> data) {
  while (!data.empty()) {
    ssize_t written = write(fd, data.data(), data.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return ErrnoStatus(errno, fmt::format("writing '{}'", path));
    data = data.subspan(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

}  // namespace

GgufWriter::GgufWriter(uint32_t alignment) : alignment_(alignment) {
  if (alignment != kGgufDefaultAlignment) {
    AddInt("general.alignment", GgufValueType::kUint32, alignment);
  }
}

void GgufWriter::AddKey(std::string_view key, GgufValueType type) {
  ++keys_;
  PutString(&metadata_, key);
  Put(&metadata_, static_cast<uint32_t>(type));
}

void GgufWriter::AddInt(std::string_view key, GgufValueType type, int64_t value) {
  AddKey(key, type);
  PutInt(&metadata_, type, value);
}

void GgufWriter::AddFloat(std::string_view key, float value) {
  AddKey(key, GgufValueType::kFloat32);
  Put(&metadata_, value);
}

void GgufWriter::AddBool(std::string_view key, bool value) {
  AddKey(key, GgufValueType::kBool);
  Put(&metadata_, static_cast<uint8_t>(value));
}

void GgufWriter::AddString(std::string_view key, std::string_view value) {
  AddKey(key, GgufValueType::kString);
  PutString(&metadata_, value);
}

void GgufWriter::AddInts(std::string_view key, GgufValueType type,
                         std::span<const int64_t> values) {
  AddKey(key, GgufValueType::kArray);
  Put(&metadata_, static_cast<uint32_t>(type));
  Put(&metadata_, static_cast<uint64_t>(values.size()));
  for (int64_t value : values) PutInt(&metadata_, type, value);
}

void GgufWriter::AddFloats(std::string_view key, std::span<const double> values) {
  AddKey(key, GgufValueType::kArray);
  Put(&metadata_, static_cast<uint32_t>(GgufValueType::kFloat32));
  Put(&metadata_, static_cast<uint64_t>(values.size()));
  for (double value : values) Put(&metadata_, static_cast<float>(value));
}

void GgufWriter::AddBools(std::string_view key, const std::vector<bool>& values) {
  AddKey(key, GgufValueType::kArray);
  Put(&metadata_, static_cast<uint32_t>(GgufValueType::kBool));
  Put(&metadata_, static_cast<uint64_t>(values.size()));
  for (bool value : values) Put(&metadata_, static_cast<uint8_t>(value));
}

void GgufWriter::AddStrings(std::string_view key, std::span<const std::string> values) {
  AddKey(key, GgufValueType::kArray);
  Put(&metadata_, static_cast<uint32_t>(GgufValueType::kString));
  Put(&metadata_, static_cast<uint64_t>(values.size()));
  for (const std::string& value : values) PutString(&metadata_, value);
}

void GgufWriter::AddMetadata(const Metadata& metadata) {
  for (const auto& [key, value] : metadata.values()) {
    if (key == "general.alignment" || key.starts_with("split.")) continue;
    if (const auto* flag = std::get_if<bool>(&value)) AddBool(key, *flag);
    if (const auto* number = std::get_if<int64_t>(&value))
      AddInt(key, ScalarType(*number), *number);
    if (const auto* number = std::get_if<double>(&value))
      AddFloat(key, static_cast<float>(*number));
    if (const auto* text = std::get_if<std::string>(&value)) AddString(key, *text);
    if (const auto* flags = std::get_if<std::vector<bool>>(&value)) AddBools(key, *flags);
    if (const auto* ints = std::get_if<std::vector<int64_t>>(&value)) {
      AddInts(key, ArrayType(*ints), *ints);
    }
    if (const auto* floats = std::get_if<std::vector<double>>(&value)) AddFloats(key, *floats);
    if (const auto* texts = std::get_if<std::vector<std::string>>(&value)) AddStrings(key, *texts);
  }
}

void GgufWriter::AddTensor(std::string_view name, DType dtype, std::span<const int64_t> shape,
                           Fill fill) {
  uint64_t rows = 1;
  for (size_t i = 0; i + 1 < shape.size(); ++i) rows *= static_cast<uint64_t>(shape[i]);
  uint64_t row = shape.empty() ? 1 : static_cast<uint64_t>(shape.back());
  tensors_.push_back({std::string(name),
                      dtype,
                      {shape.begin(), shape.end()},
                      rows * RowBytes(dtype, row),
                      std::move(fill)});
}

void GgufWriter::AddTensor(std::string_view name, DType dtype, std::span<const int64_t> shape,
                           std::vector<std::byte> data) {
  AddTensor(name, dtype, shape,
            [data = std::move(data), name = std::string(name)](uint64_t offset,
                                                               std::span<std::byte> out) {
              if (offset + out.size() > data.size()) {
                return absl::InvalidArgumentError(
                    fmt::format("tensor '{}' was given {} bytes, {} are asked for", name,
                                data.size(), offset + out.size()));
              }
              std::memcpy(out.data(), data.data() + offset, out.size());
              return absl::OkStatus();
            });
}

std::string GgufWriter::HeaderBytes() const {
  std::string out;
  Put(&out, kGgufMagic);
  Put(&out, uint32_t{3});
  Put(&out, static_cast<uint64_t>(tensors_.size()));
  Put(&out, keys_);
  out += metadata_;
  uint64_t offset = 0;
  for (const Tensor& tensor : tensors_) {
    PutString(&out, tensor.name);
    Put(&out, static_cast<uint32_t>(tensor.shape.size()));
    for (size_t i = tensor.shape.size(); i-- > 0;)
      Put(&out, static_cast<uint64_t>(tensor.shape[i]));
    Put(&out, static_cast<uint32_t>(terrace::GgufType(tensor.dtype)));
    Put(&out, offset);
    offset = AlignUp(offset + tensor.bytes, alignment_);
  }
  out.resize(AlignUp(out.size(), alignment_), '\0');
  return out;
}

absl::Status GgufWriter::Emit(const Sink& sink) const {
  std::string header = HeaderBytes();
  RETURN_IF_ERROR(sink(std::as_bytes(std::span(header))));
  std::vector<std::byte> piece;
  for (const Tensor& tensor : tensors_) {
    for (uint64_t offset = 0; offset < tensor.bytes; offset += kPieceBytes) {
      piece.resize(std::min(kPieceBytes, tensor.bytes - offset));
      RETURN_IF_ERROR(tensor.fill(offset, std::span(piece)));
      RETURN_IF_ERROR(sink(piece));
    }
    piece.assign(AlignUp(tensor.bytes, alignment_) - tensor.bytes, std::byte{0});
    RETURN_IF_ERROR(sink(piece));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> GgufWriter::FileBytes() const {
  std::string out;
  RETURN_IF_ERROR(Emit([&](std::span<const std::byte> data) {
    out.append(reinterpret_cast<const char*>(data.data()), data.size());
    return absl::OkStatus();
  }));
  return out;
}

absl::Status GgufWriter::Write(const std::string& path) const {
  std::string temporary = fmt::format("{}.tmp-{}", path, getpid());
  int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return ErrnoStatus(errno, fmt::format("creating '{}'", temporary));
  absl::Status status =
      Emit([&](std::span<const std::byte> data) { return WriteAll(fd, temporary, data); });
  if (status.ok() && fsync(fd) != 0) {
    status = ErrnoStatus(errno, fmt::format("writing '{}' to disk", temporary));
  }
  if (close(fd) != 0 && status.ok()) {
    status = ErrnoStatus(errno, fmt::format("closing '{}'", temporary));
  }
  if (status.ok() && rename(temporary.c_str(), path.c_str()) != 0) {
    status = ErrnoStatus(errno, fmt::format("renaming '{}' to '{}'", temporary, path));
  }
  if (!status.ok()) unlink(temporary.c_str());
  return status;
}

}  // namespace terrace::format
