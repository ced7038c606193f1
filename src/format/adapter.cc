#include "format/adapter.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/hash.h"
#include "base/json_node.h"
#include "base/status.h"
#include "format/gguf.h"
#include "format/safetensors.h"

namespace terrace::format {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

constexpr uint64_t kMaxConfig = uint64_t{1} << 20;
constexpr int64_t kMaxRank = 4096;
constexpr int64_t kMaxSide = int64_t{1} << 30;
constexpr int kMaxDepth = 32;

// One half of a pair as stored.
struct Half {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  uint64_t offset = 0;
};
struct Halves {
  std::optional<Half> a, b;
  std::string module;  // as the file names it, for messages
};

// The base's tensor for a module within a layer, as checkpoints name it; empty if none can be
// adapted by this build.
std::string_view PartOf(std::string_view module) {
  static constexpr std::pair<std::string_view, std::string_view> kParts[] = {
      {"self_attn.q_proj", "attn_q"},      {"self_attn.k_proj", "attn_k"},
      {"self_attn.v_proj", "attn_v"},      {"self_attn.qkv_proj", "attn_qkv"},
      {"self_attn.o_proj", "attn_output"}, {"self_attn.q_a_proj", "attn_q_a"},
      {"self_attn.q_b_proj", "attn_q_b"},  {"self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"},
      {"mlp.gate_proj", "ffn_gate"},       {"mlp.up_proj", "ffn_up"},
      {"mlp.gate_up_proj", "ffn_up"},      {"mlp.down_proj", "ffn_down"},
  };
  for (const auto& [from, to] : kParts) {
    if (from == module) return to;
  }
  return {};
}

// Heads whose rotary pairs lie half a head apart in checkpoints, side by side in GGUF.
std::vector<uint32_t> Interleave(int64_t heads, int64_t head_dim) {
  std::vector<uint32_t> map;
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t i = 0; i < head_dim; ++i) {
      map.push_back(static_cast<uint32_t>(head * head_dim + i / 2 + i % 2 * (head_dim / 2)));
    }
  }
  return map;
}

absl::StatusOr<DType> FloatType(SafeDType dtype, std::string_view name) {
  switch (dtype) {
    case SafeDType::kF32:
      return DType::kF32;
    case SafeDType::kF16:
      return DType::kF16;
    case SafeDType::kBF16:
      return DType::kBF16;
    default:
      return absl::UnimplementedError(fmt::format(
          "tensor '{}' is {}; adapters in F32, F16 or BF16 are read", name, SafeDTypeName(dtype)));
  }
}

// Makes a pair of its halves; checks their shapes against each other.
absl::StatusOr<AdapterPair> Join(const std::string& tensor, const Halves& halves) {
  if (!halves.a || !halves.b) {
    return absl::InvalidArgumentError(
        fmt::format("'{}' has only one of the two matrices A and B", halves.module));
  }
  const std::vector<int64_t>&a = halves.a->shape, &b = halves.b->shape;
  if (a.size() != 2 || b.size() != 2 || a[0] < 1 || a[0] > kMaxRank || a[0] != b[1] || a[1] < 1 ||
      a[1] > kMaxSide || b[0] < 1 || b[0] > kMaxSide) {
    return absl::InvalidArgumentError(
        fmt::format("'{}': A [{}] and B [{}] are not [rank, in] and [out, rank] of a rank up to {}",
                    halves.module, fmt::join(a, ", "), fmt::join(b, ", "), kMaxRank));
  }
  AdapterPair pair;
  pair.tensor = tensor;
  pair.rank = static_cast<int32_t>(a[0]);
  pair.in = static_cast<int32_t>(a[1]);
  pair.out = static_cast<int32_t>(b[0]);
  pair.a_dtype = halves.a->dtype;
  pair.b_dtype = halves.b->dtype;
  pair.a_offset = halves.a->offset;
  pair.b_offset = halves.b->offset;
  return pair;
}

absl::Status SetScale(double alpha, bool root, AdapterPair* pair) {
  const double rank = pair->rank;
  const double scale = alpha / (root ? std::sqrt(rank) : rank);
  if (!std::isfinite(scale)) {
    return absl::InvalidArgumentError(fmt::format("an alpha of {} is no scale", alpha));
  }
  pair->scale = static_cast<float>(scale);
  return absl::OkStatus();
}

}  // namespace

// ---- GGUF ---------------------------------------------------------------------------------------

absl::StatusOr<AdapterSource> ReadGgufAdapter(std::unique_ptr<ByteSource> file,
                                              const Metadata& base) {
  ASSIGN_OR_RETURN(GgufHeader header, ReadGgufHeader(*file));
  ASSIGN_OR_RETURN(const std::string type, header.metadata.GetString("general.type", "model"));
  ASSIGN_OR_RETURN(const std::string kind, header.metadata.GetString("adapter.type", ""));
  if (type != "adapter" || kind != "lora") {
    return absl::InvalidArgumentError(
        fmt::format("it is of the type '{}'{}; a LoRA adapter is wanted", type,
                    kind.empty() ? "" : fmt::format(" and adapter.type is '{}'", kind)));
  }
  ASSIGN_OR_RETURN(const std::string wanted, base.GetString("general.architecture"));
  ASSIGN_OR_RETURN(const std::string own, header.metadata.GetString("general.architecture"));
  if (own != wanted) {
    return absl::InvalidArgumentError(
        fmt::format("it is for models of the architecture '{}', the base is '{}'", own, wanted));
  }
  ASSIGN_OR_RETURN(const double alpha, header.metadata.GetDouble("adapter.lora.alpha"));
  std::map<std::string, Halves> found;
  for (const TensorInfo& tensor : header.tensors) {
    const std::string_view name = tensor.name;
    const bool is_a = name.ends_with(".lora_a"), is_b = name.ends_with(".lora_b");
    if (!is_a && !is_b) {
      return absl::UnimplementedError(
          fmt::format("tensor '{}' is no matrix of a LoRA pair", tensor.name));
    }
    if (tensor.dtype != DType::kF32 && tensor.dtype != DType::kF16 &&
        tensor.dtype != DType::kBF16) {
      return absl::UnimplementedError(
          fmt::format("tensor '{}' is {}; adapters in F32, F16 or BF16 "
                      "are read",
                      tensor.name, Info(tensor.dtype).name));
    }
    Halves& halves = found[std::string(name.substr(0, name.size() - 7))];
    halves.module = name.substr(0, name.size() - 7);
    (is_a ? halves.a : halves.b) = Half{tensor.dtype, tensor.shape, tensor.offset};
  }
  AdapterSource source;
  for (const auto& [tensor, halves] : found) {
    ASSIGN_OR_RETURN(AdapterPair pair, Join(tensor, halves));
    // Files that do not say take the rank for it, as their writers do.
    RETURN_IF_ERROR(SetScale(alpha == 0 ? pair.rank : alpha, false, &pair));
    source.pairs.push_back(std::move(pair));
  }
  if (source.pairs.empty()) return absl::InvalidArgumentError("it holds no pairs");
  source.identity.push_back({file->name(), file->size(), file->mtime_ns(), header.header_hash});
  source.file = std::move(file);
  return source;
}

namespace {

// ---- PEFT ---------------------------------------------------------------------------------------

// adapter_config.json, as far as it matters.
struct PeftConfig {
  double alpha = 0;
  bool root = false;                     // scale by the rank's root
  std::map<std::string, double> alphas;  // by the end of a module's name
};

absl::StatusOr<PeftConfig> ReadConfig(const json::value& value) {
  const JsonNode root(&value, "adapter_config.json");
  ASSIGN_OR_RETURN(const std::string type, root["peft_type"].String());
  if (type != "LORA") {
    return absl::UnimplementedError(
        fmt::format("{} is '{}'; LORA is read", root["peft_type"].path(), type));
  }
  PeftConfig config;
  ASSIGN_OR_RETURN(config.alpha, root["lora_alpha"].Number());
  ASSIGN_OR_RETURN(config.root, root["use_rslora"].Bool(false));
  for (const char* key : {"use_dora", "fan_in_fan_out", "lora_bias"}) {
    ASSIGN_OR_RETURN(const bool on, root[key].Bool(false));
    if (on) return absl::UnimplementedError(fmt::format("{} is not read", root[key].path()));
  }
  ASSIGN_OR_RETURN(const std::string bias, root["bias"].String("none"));
  if (bias != "none") {
    return absl::UnimplementedError(
        fmt::format("{} is '{}'; adapters without biases are read", root["bias"].path(), bias));
  }
  const JsonNode saved = root["modules_to_save"];
  if (saved.array() != nullptr && !saved.array()->empty()) {
    return absl::UnimplementedError(
        fmt::format("{}: modules that are saved whole are not read", saved.path()));
  }
  const JsonNode alphas = root["alpha_pattern"];
  if (!alphas.present()) return config;
  if (alphas.object() == nullptr) return alphas.Wrong("an object of numbers by module");
  for (const auto& member : *alphas.object()) {
    const std::string key(member.key().data(), member.key().size());
    if (key.find_first_of("^$*+?()[]{}|\\") != std::string::npos) {
      return absl::UnimplementedError(
          fmt::format("{}: '{}' is a pattern; names are read", alphas.path(), key));
    }
    ASSIGN_OR_RETURN(config.alphas[key],
                     JsonNode(&member.value(), alphas.path() + "." + key).Number());
  }
  return config;
}

double AlphaOf(const PeftConfig& config, std::string_view module) {
  for (const auto& [name, alpha] : config.alphas) {
    if (module == name || (module.ends_with(name) && module.size() > name.size() &&
                           module[module.size() - name.size() - 1] == '.')) {
      return alpha;
    }
  }
  return config.alpha;
}

// "blk.3.attn_q.weight" of "...layers.3.self_attn.q_proj"; empty if it is none.
std::string TensorOf(std::string_view module) {
  constexpr std::string_view kLayers = "layers.";
  const size_t at = module.rfind(kLayers);
  if (at == std::string_view::npos || (at > 0 && module[at - 1] != '.')) return "";
  const std::string_view rest = module.substr(at + kLayers.size());
  uint32_t layer = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), layer);
  if (error != std::errc() || end == rest.data() + rest.size() || *end != '.') return "";
  const std::string_view part = PartOf(rest.substr(static_cast<size_t>(end - rest.data()) + 1));
  return part.empty() ? "" : fmt::format("blk.{}.{}.weight", layer, part);
}

// The order of B's rows for query and key matrices, of which `base` says how they lie.
absl::Status OrderRows(const Metadata& base, AdapterPair* pair) {
  ASSIGN_OR_RETURN(const std::string architecture, base.GetString("general.architecture"));
  const bool query = pair->tensor.ends_with(".attn_q.weight");
  if (architecture != "llama" && architecture != "granite") return absl::OkStatus();
  if (!query && !pair->tensor.ends_with(".attn_k.weight")) return absl::OkStatus();
  ASSIGN_OR_RETURN(int64_t heads, base.GetInt(architecture + ".attention.head_count", 1, kMaxRank));
  if (!query) {
    ASSIGN_OR_RETURN(heads,
                     base.GetInt(architecture + ".attention.head_count_kv", 1, kMaxRank, heads));
  }
  if (pair->out % (2 * heads) != 0) {
    return absl::InvalidArgumentError(
        fmt::format("'{}': {} rows do not divide among {} heads", pair->tensor, pair->out, heads));
  }
  pair->b_rows = Interleave(heads, pair->out / heads);
  return absl::OkStatus();
}

absl::Status TakeTensor(const SafeTensor& tensor, std::map<std::string, Halves>* found) {
  std::string_view name = tensor.name;
  const size_t at = name.rfind(".lora_");
  const std::string_view end = at == std::string_view::npos ? "" : name.substr(at);
  const bool is_a = end == ".lora_A.weight" || end == ".lora_A.default.weight";
  const bool is_b = end == ".lora_B.weight" || end == ".lora_B.default.weight";
  if (!is_a && !is_b) {
    return absl::UnimplementedError(
        fmt::format("tensor '{}' is no matrix of a LoRA pair", tensor.name));
  }
  const std::string_view module = name.substr(0, at);
  const std::string base = TensorOf(module);
  if (base.empty()) {
    return absl::UnimplementedError(fmt::format(
        "tensor '{}': only the attention and FFN matrices of layers can be adapted", tensor.name));
  }
  ASSIGN_OR_RETURN(const DType dtype, FloatType(tensor.dtype, tensor.name));
  Halves& halves = (*found)[base];
  halves.module = module;
  std::optional<Half>& half = is_a ? halves.a : halves.b;
  if (half) {
    return absl::InvalidArgumentError(fmt::format("tensor '{}' is there twice", tensor.name));
  }
  half = Half{dtype, tensor.shape, tensor.offset};
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<AdapterSource> ReadPeftAdapter(std::unique_ptr<ByteSource> config_file,
                                              std::unique_ptr<ByteSource> file,
                                              const Metadata& base) {
  if (config_file->size() > kMaxConfig) {
    return absl::InvalidArgumentError(
        fmt::format("adapter_config.json has {} bytes, at most {} "
                    "are read",
                    config_file->size(), kMaxConfig));
  }
  std::string text(config_file->size(), '\0');
  RETURN_IF_ERROR(config_file->ReadAt(0, std::as_writable_bytes(std::span(text))));
  json::error_code error;
  json::parse_options options;
  options.max_depth = kMaxDepth;
  const json::value value = json::parse(text, error, {}, options);
  if (error || !value.is_object()) {
    return absl::InvalidArgumentError("adapter_config.json is not a JSON object");
  }
  ASSIGN_OR_RETURN(const PeftConfig config, ReadConfig(value));
  ASSIGN_OR_RETURN(const SafetensorsHeader header, ReadSafetensorsHeader(*file));
  std::map<std::string, Halves> found;
  for (const SafeTensor& tensor : header.tensors) RETURN_IF_ERROR(TakeTensor(tensor, &found));
  AdapterSource source;
  for (const auto& [tensor, halves] : found) {
    ASSIGN_OR_RETURN(AdapterPair pair, Join(tensor, halves));
    RETURN_IF_ERROR(SetScale(AlphaOf(config, halves.module), config.root, &pair));
    RETURN_IF_ERROR(OrderRows(base, &pair));
    source.pairs.push_back(std::move(pair));
  }
  if (source.pairs.empty()) return absl::InvalidArgumentError("it holds no pairs");
  source.identity.push_back({file->name(), file->size(), file->mtime_ns(), header.header_hash});
  source.identity.push_back(
      {config_file->name(), config_file->size(), config_file->mtime_ns(), Hash64(text)});
  source.file = std::move(file);
  return source;
}

namespace {

absl::StatusOr<AdapterSource> OpenFiles(const std::string& path, const std::string& folder,
                                        const Metadata& base) {
  if (folder.empty()) {
    ASSIGN_OR_RETURN(std::unique_ptr<ByteSource> file, OpenFileSource(path));
    return ReadGgufAdapter(std::move(file), base);
  }
  ASSIGN_OR_RETURN(std::unique_ptr<ByteSource> config,
                   OpenFileSource(folder + "/adapter_config.json"));
  ASSIGN_OR_RETURN(std::unique_ptr<ByteSource> file,
                   OpenFileSource(folder + "/adapter_model.safetensors"));
  return ReadPeftAdapter(std::move(config), std::move(file), base);
}

}  // namespace

absl::Status AdapterSource::ReadA(const AdapterPair& pair, std::span<std::byte> out) const {
  return file->ReadAt(pair.a_offset, out);
}

absl::Status AdapterSource::ReadB(const AdapterPair& pair, std::span<std::byte> out) const {
  if (pair.b_rows.empty()) return file->ReadAt(pair.b_offset, out);
  std::vector<std::byte> stored(out.size());
  RETURN_IF_ERROR(file->ReadAt(pair.b_offset, stored));
  const uint64_t row = RowBytes(pair.b_dtype, static_cast<uint64_t>(pair.rank));
  for (size_t i = 0; i < pair.b_rows.size(); ++i) {
    std::memcpy(out.data() + i * row, stored.data() + pair.b_rows[i] * row, row);
  }
  return absl::OkStatus();
}

absl::StatusOr<AdapterSource> OpenAdapter(const std::string& path, const Metadata& base) {
  std::error_code error;
  std::string folder;
  if (fs::is_directory(path, error)) {
    folder = path;
  } else if (fs::path(path).filename() == "adapter_model.safetensors") {
    folder = fs::path(path).parent_path().string();
    if (folder.empty()) folder = ".";
  }
  absl::StatusOr<AdapterSource> source = OpenFiles(path, folder, base);
  if (!source.ok()) return WithContext(source.status(), fmt::format("adapter '{}'", path));
  return source;
}

}  // namespace terrace::format
