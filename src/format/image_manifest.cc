// The manifest's text: JSON of the form {"checksum":"<16 hex digits>","manifest":{...}} and a
// newline, where the checksum is the XXH3-64 of the bytes of the inner object.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "base/hash.h"
#include "base/status.h"
#include "format/image.h"

namespace terrace::format {
namespace {

namespace json = boost::json;

constexpr std::string_view kHead = "{\"checksum\":\"";
constexpr std::string_view kMiddle = "\",\"manifest\":";
constexpr std::string_view kTail = "}\n";
constexpr size_t kHexDigits = 16;
constexpr uint64_t kMaxBytes = uint64_t{1} << 62;

std::string Hex(uint64_t value) { return fmt::format("{:016x}", value); }

absl::Status Bad(std::string_view what) {
  return absl::DataLossError(fmt::format("damaged manifest: {}", what));
}

absl::StatusOr<uint64_t> ParseHex(std::string_view text) {
  uint64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (text.size() != kHexDigits || error != std::errc() || end != text.data() + text.size()) {
    return Bad("a checksum is not 16 hexadecimal digits");
  }
  return value;
}

// Typed access to one JSON object or array; the first thing wrong is kept.
class Fields {
 public:
  Fields(const json::value& value, std::string_view what) : what_(what) {
    object_ = value.if_object();
    if (object_ == nullptr) Fail("object");
  }

  uint64_t Number(std::string_view key) {
    const json::value* value = Find(key);
    if (value == nullptr) return 0;
    boost::system::error_code error;
    auto number = value->to_number<uint64_t>(error);
    if (error || number > kMaxBytes) {
      Fail(key);
      return 0;
    }
    return number;
  }
  std::string Text(std::string_view key) {
    const json::value* value = Find(key);
    if (value == nullptr) return {};
    if (!value->is_string()) {
      Fail(key);
      return {};
    }
    return std::string(value->get_string());
  }
  uint64_t Checksum(std::string_view key) {
    auto value = ParseHex(Text(key));
    if (value.ok()) return *value;
    Fail(key);
    return 0;
  }
  bool Flag(std::string_view key) {  // false if it is not there
    const json::value* value = object_ == nullptr ? nullptr : object_->if_contains(key);
    if (value == nullptr) return false;
    if (value->is_bool()) return value->get_bool();
    Fail(key);
    return false;
  }
  const json::array& Array(std::string_view key) {
    const json::value* value = Find(key);
    if (value != nullptr && value->is_array()) return value->get_array();
    Fail(key);
    return empty_;
  }
  const absl::Status& status() const { return status_; }

 private:
  const json::value* Find(std::string_view key) {
    const json::value* value = object_ == nullptr ? nullptr : object_->if_contains(key);
    if (value == nullptr) Fail(key);
    return value;
  }
  void Fail(std::string_view key) {
    if (status_.ok()) status_ = Bad(fmt::format("'{}' of {}", key, what_));
  }

  std::string_view what_;
  const json::object* object_ = nullptr;
  const json::array empty_;
  absl::Status status_;
};

json::value ToJson(const ImageManifest& manifest) {
  json::array source, segments, tensors;
  for (const FileIdentity& file : manifest.source) {
    source.push_back({{"path", file.path},
                      {"bytes", file.bytes},
                      {"mtime_ns", file.mtime_ns},
                      {"header_hash", Hex(file.header_hash)}});
  }
  for (const ImageSegment& segment : manifest.segments) {
    json::array blocks;
    for (const ImageBlock& block : segment.blocks) {
      blocks.push_back(
          {{"offset", block.offset}, {"bytes", block.bytes}, {"xxh3", Hex(block.checksum)}});
    }
    segments.push_back(
        {{"name", segment.name}, {"bytes", segment.bytes}, {"blocks", std::move(blocks)}});
  }
  for (const ImageTensor& tensor : manifest.tensors) {
    tensors.push_back({{"name", tensor.name},
                       {"segment", tensor.segment},
                       {"offset", tensor.offset},
                       {"bytes", tensor.bytes},
                       {"dtype", std::string(Info(tensor.dtype).name)},
                       {"layout", tensor.layout},
                       {"shape", json::array(tensor.shape.begin(), tensor.shape.end())}});
    if (tensor.spread) tensors.back().get_object()["spread"] = true;
  }
  return {{"format", "terrace-image"},           {"version", kImageVersion},
          {"fingerprint", manifest.fingerprint}, {"source", std::move(source)},
          {"segments", std::move(segments)},     {"tensors", std::move(tensors)}};
}

absl::Status ParseSource(const json::array& array, ImageManifest* manifest) {
  for (const json::value& value : array) {
    Fields fields(value, "a source file");
    FileIdentity file;
    file.path = fields.Text("path");
    file.bytes = fields.Number("bytes");
    file.mtime_ns = static_cast<int64_t>(fields.Number("mtime_ns"));
    file.header_hash = fields.Checksum("header_hash");
    RETURN_IF_ERROR(fields.status());
    manifest->source.push_back(std::move(file));
  }
  return absl::OkStatus();
}

// Blocks lie back to back from the start of the file, so that no two can share a byte.
absl::Status ParseSegments(const json::array& array, ImageManifest* manifest) {
  uint64_t offset = 0;
  for (const json::value& value : array) {
    Fields fields(value, "a segment");
    ImageSegment segment;
    segment.name = fields.Text("name");
    segment.bytes = fields.Number("bytes");
    uint64_t end = offset + segment.bytes;
    for (const json::value& block_value : fields.Array("blocks")) {
      Fields block_fields(block_value, "a block");
      ImageBlock block;
      block.offset = block_fields.Number("offset");
      uint64_t bytes = block_fields.Number("bytes");
      block.checksum = block_fields.Checksum("xxh3");
      RETURN_IF_ERROR(block_fields.status());
      if (block.offset != offset || bytes == 0 || bytes > kImageMaxBlockBytes ||
          bytes % kImageAlignment != 0) {
        return Bad(fmt::format("a block of segment '{}'", segment.name));
      }
      block.bytes = static_cast<uint32_t>(bytes);
      offset += bytes;
      segment.blocks.push_back(block);
    }
    RETURN_IF_ERROR(fields.status());
    if (offset != end || segment.blocks.empty()) {
      return Bad(fmt::format("the blocks of segment '{}' do not add up", segment.name));
    }
    manifest->segments.push_back(std::move(segment));
  }
  return absl::OkStatus();
}

// Whether each matrix of a spread stack has its place.
bool SpreadFits(const ImageTensor& tensor, uint64_t segment, const ImageManifest& manifest) {
  if (tensor.shape.size() != 3 || tensor.shape[0] < 1) return false;
  const auto count = static_cast<uint64_t>(tensor.shape[0]);
  if (count > manifest.segments.size() - segment) return false;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t bytes = manifest.segments[segment + i].bytes;
    if (tensor.offset > bytes || tensor.bytes > bytes - tensor.offset) return false;
  }
  return true;
}

absl::Status ParseTensors(const json::array& array, ImageManifest* manifest) {
  absl::flat_hash_set<std::string> names;
  for (const json::value& value : array) {
    Fields fields(value, "a tensor");
    ImageTensor tensor;
    tensor.name = fields.Text("name");
    uint64_t segment = fields.Number("segment");
    tensor.offset = fields.Number("offset");
    tensor.bytes = fields.Number("bytes");
    auto dtype = DTypeFromName(fields.Text("dtype"));
    tensor.layout = fields.Text("layout");
    tensor.spread = fields.Flag("spread");
    for (const json::value& dim : fields.Array("shape")) {
      boost::system::error_code error;
      auto number = dim.to_number<int64_t>(error);
      if (error || number < 0) return Bad(fmt::format("the shape of tensor '{}'", tensor.name));
      tensor.shape.push_back(number);
    }
    RETURN_IF_ERROR(fields.status());
    if (!dtype || segment >= manifest->segments.size() ||
        tensor.offset > manifest->segments[segment].bytes ||
        tensor.bytes > manifest->segments[segment].bytes - tensor.offset ||
        (tensor.spread && !SpreadFits(tensor, segment, *manifest)) ||
        !names.insert(tensor.name).second) {
      return Bad(fmt::format("tensor '{}'", tensor.name));
    }
    tensor.dtype = *dtype;
    tensor.segment = static_cast<uint32_t>(segment);
    manifest->tensors.push_back(std::move(tensor));
  }
  return absl::OkStatus();
}

}  // namespace

uint64_t ImageManifest::BlobBytes() const {
  uint64_t bytes = 0;
  for (const ImageSegment& segment : segments) bytes += segment.bytes;
  return bytes;
}

std::vector<ImageBlock> CutIntoBlocks(uint64_t offset, uint64_t bytes) {
  std::vector<ImageBlock> blocks;
  for (uint64_t done = 0; done < bytes; done += kImageMaxBlockBytes) {
    blocks.push_back(
        {offset + done, static_cast<uint32_t>(std::min(kImageMaxBlockBytes, bytes - done)), 0});
  }
  return blocks;
}

std::string SerializeManifest(const ImageManifest& manifest) {
  std::string body = json::serialize(ToJson(manifest));
  return fmt::format("{}{}{}{}{}", kHead, Hex(Hash64(body)), kMiddle, body, kTail);
}

absl::StatusOr<ImageManifest> ParseManifest(std::string_view text) {
  constexpr size_t kFrame = kHead.size() + kHexDigits + kMiddle.size() + kTail.size();
  if (text.size() <= kFrame || !text.starts_with(kHead) || !text.ends_with(kTail) ||
      text.substr(kHead.size() + kHexDigits, kMiddle.size()) != kMiddle) {
    return Bad("cut off, or not a manifest");
  }
  ASSIGN_OR_RETURN(uint64_t checksum, ParseHex(text.substr(kHead.size(), kHexDigits)));
  std::string_view body =
      text.substr(kHead.size() + kHexDigits + kMiddle.size(), text.size() - kFrame);
  if (Hash64(body) != checksum) return Bad("its checksum does not match");
  boost::system::error_code error;
  json::value root = json::parse(body, error);
  if (error) return Bad(error.message());
  Fields fields(root, "the manifest");
  ImageManifest manifest;
  if (fields.Text("format") != "terrace-image") return Bad("it is of another format");
  if (uint64_t version = fields.Number("version"); version != kImageVersion) {
    return absl::UnimplementedError(
        fmt::format("image version {}; this build reads {}", version, kImageVersion));
  }
  manifest.fingerprint = fields.Text("fingerprint");
  RETURN_IF_ERROR(ParseSource(fields.Array("source"), &manifest));
  RETURN_IF_ERROR(ParseSegments(fields.Array("segments"), &manifest));
  RETURN_IF_ERROR(ParseTensors(fields.Array("tensors"), &manifest));
  RETURN_IF_ERROR(fields.status());
  return manifest;
}

}  // namespace terrace::format
