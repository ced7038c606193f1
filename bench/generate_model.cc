#include "generate_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>

#include "base/random.h"
#include "base/status.h"
#include "base/units.h"
#include "format/gguf_writer.h"
#include "tensor/dtype.h"
#include "tensor/quantize.h"

namespace terrace::bench {
namespace {

using format::GgufValueType;
using format::GgufWriter;

// One spelling a byte, printable, as byte-level BPE vocabularies have them.
std::string ByteSpelling(int byte) {
  auto utf8 = [](int code) {
    if (code < 0x80) return std::string(1, static_cast<char>(code));
    return std::string{static_cast<char>(0xC0 | (code >> 6)),
                       static_cast<char>(0x80 | (code & 63))};
  };
  auto printable = [](int b) {
    return (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
  };
  if (printable(byte)) return utf8(byte);
  int rank = 0;
  for (int b = 0; b < byte; ++b) rank += printable(b) ? 0 : 1;
  return utf8(256 + rank);
}

void AddTokenizer(const ModelShape& shape, GgufWriter* writer) {
  constexpr int kNormal = 1;
  constexpr int kControl = 3;
  std::vector<std::string> tokens;
  std::vector<std::string> merges;
  for (int byte = 0; byte < 256; ++byte) tokens.push_back(ByteSpelling(byte));
  const size_t letters = shape.vocab >= 2048 ? 26 : 4;
  for (size_t a = 0; a < letters; ++a) {
    for (size_t b = 0; b < letters; ++b) {
      std::string left(1, static_cast<char>('a' + a));
      std::string right(1, static_cast<char>('a' + b));
      tokens.push_back(left + right);
      merges.push_back(left + " " + right);
    }
  }
  const std::vector<std::string> control = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  while (tokens.size() + control.size() < static_cast<size_t>(shape.vocab)) {
    tokens.push_back(fmt::format("filler{}", tokens.size()));
  }
  std::vector<int64_t> types(tokens.size(), kNormal);
  const auto end_of_text = static_cast<int64_t>(tokens.size());
  tokens.insert(tokens.end(), control.begin(), control.end());
  types.insert(types.end(), control.size(), kControl);

  writer->AddString("tokenizer.ggml.model", "gpt2");
  writer->AddString("tokenizer.ggml.pre", "qwen2");
  writer->AddStrings("tokenizer.ggml.tokens", tokens);
  writer->AddInts("tokenizer.ggml.token_type", GgufValueType::kInt32, types);
  writer->AddStrings("tokenizer.ggml.merges", merges);
  writer->AddInt("tokenizer.ggml.eos_token_id", GgufValueType::kUint32, end_of_text + 2);
  writer->AddInt("tokenizer.ggml.padding_token_id", GgufValueType::kUint32, end_of_text);
  writer->AddBool("tokenizer.ggml.add_bos_token", false);
  writer->AddString(
      "tokenizer.chat_template",
      "{%- for message in messages -%}{{ '<|im_start|>' + message['role'] + '\\n' + "
      "message['content'] + '<|im_end|>\\n' }}{%- endfor -%}"
      "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}");
}

void AddHyperparameters(const GenerateOptions& options, GgufWriter* writer) {
  const ModelShape& shape = options.shape;
  const std::string architecture = shape.experts > 0 ? "qwen3moe" : "qwen3";
  auto add = [&](std::string_view key, int64_t value) {
    writer->AddInt(fmt::format("{}.{}", architecture, key), GgufValueType::kUint32, value);
  };
  writer->AddString("general.architecture", architecture);
  writer->AddString("general.name",
                    fmt::format("random {} {} seed {}", shape.name, options.format, options.seed));
  add("context_length", shape.context);
  add("embedding_length", shape.width);
  add("block_count", shape.layers);
  add("feed_forward_length", shape.ffn_width);
  add("attention.head_count", shape.heads);
  add("attention.head_count_kv", shape.kv_heads);
  add("attention.key_length", shape.head_dim);
  add("attention.value_length", shape.head_dim);
  if (shape.experts > 0) {
    add("expert_count", shape.experts);
    add("expert_used_count", shape.experts_used);
    add("expert_feed_forward_length", shape.ffn_width);
  }
  writer->AddFloat(architecture + ".rope.freq_base", 1e6f);
  writer->AddFloat(architecture + ".attention.layer_norm_rms_epsilon", 1e-6f);
}

// Random rows are quantised once a dtype and row length; tensors are filled from these in an order
// of their own, because quantising half a milliard values would take minutes.
class RowPool {
 public:
  static constexpr int kRows = 256;

  absl::StatusOr<const std::vector<std::byte>*> Get(DType dtype, int64_t cols, uint64_t seed) {
    std::vector<std::byte>& pool = pools_[{dtype, cols}];
    if (!pool.empty()) return &pool;
    uint64_t row_bytes = RowBytes(dtype, static_cast<uint64_t>(cols));
    pool.resize(kRows * row_bytes);
    Random random(seed ^ (static_cast<uint64_t>(cols) << 8) ^ static_cast<uint64_t>(dtype));
    // Uniform with variance 1 / cols: activations keep their size through a layer.
    const float limit = std::sqrt(3.0f / static_cast<float>(cols));
    std::vector<float> row(static_cast<size_t>(cols));
    for (int r = 0; r < kRows; ++r) {
      for (float& value : row) value = limit * random.Signed();
      RETURN_IF_ERROR(QuantizeRow(
          dtype, row, std::span(pool).subspan(static_cast<size_t>(r) * row_bytes, row_bytes)));
    }
    return &pool;
  }

 private:
  std::map<std::pair<DType, int64_t>, std::vector<std::byte>> pools_;
};

class Generator {
 public:
  explicit Generator(const GenerateOptions& options) : options_(options) {}

  absl::Status Write(const std::string& path) {
    AddHyperparameters(options_, &writer_);
    AddTokenizer(options_.shape, &writer_);
    const ModelShape& s = options_.shape;
    const int64_t query = int64_t{s.heads} * s.head_dim;
    const int64_t key = int64_t{s.kv_heads} * s.head_dim;
    RETURN_IF_ERROR(Matrix("token_embd.weight", Role::kEmbedding, 0, s.vocab, s.width));
    for (int32_t layer = 0; layer < s.layers; ++layer) {
      auto name = [&](std::string_view part) {
        return fmt::format("blk.{}.{}.weight", layer, part);
      };
      Norm(name("attn_norm"), s.width);
      RETURN_IF_ERROR(Matrix(name("attn_q"), Role::kOther, layer, query, s.width));
      RETURN_IF_ERROR(Matrix(name("attn_k"), Role::kOther, layer, key, s.width));
      RETURN_IF_ERROR(Matrix(name("attn_v"), Role::kSensitive, layer, key, s.width));
      Norm(name("attn_q_norm"), s.head_dim);
      Norm(name("attn_k_norm"), s.head_dim);
      RETURN_IF_ERROR(Matrix(name("attn_output"), Role::kOther, layer, s.width, query));
      Norm(name("ffn_norm"), s.width);
      RETURN_IF_ERROR(s.experts > 0 ? ExpertFfn(layer) : DenseFfn(layer));
    }
    Norm("output_norm.weight", s.width);
    return writer_.Write(path);
  }

 private:
  enum class Role { kEmbedding, kSensitive, kOther };

  absl::Status DenseFfn(int32_t layer) {
    const ModelShape& s = options_.shape;
    const std::string blk = fmt::format("blk.{}.ffn_", layer);
    RETURN_IF_ERROR(Matrix(blk + "gate.weight", Role::kOther, layer, s.ffn_width, s.width));
    RETURN_IF_ERROR(Matrix(blk + "up.weight", Role::kOther, layer, s.ffn_width, s.width));
    return Matrix(blk + "down.weight", Role::kSensitive, layer, s.width, s.ffn_width);
  }

  absl::Status ExpertFfn(int32_t layer) {
    const ModelShape& s = options_.shape;
    const std::string blk = fmt::format("blk.{}.ffn_", layer);
    RETURN_IF_ERROR(Stack(blk + "gate_inp.weight", DType::kF32, 0, s.experts, s.width));
    const DType dtype = TypeOf(Role::kOther, layer);
    RETURN_IF_ERROR(Stack(blk + "gate_exps.weight", dtype, s.experts, s.ffn_width, s.width));
    RETURN_IF_ERROR(Stack(blk + "up_exps.weight", dtype, s.experts, s.ffn_width, s.width));
    return Stack(blk + "down_exps.weight", dtype, s.experts, s.width, s.ffn_width);
  }

  // As published files mix them: Q4_0 and Q4_K_M keep a tied embedding in Q6_K, and Q4_K_M the
  // value and down matrices of the first, the last and every third layer between.
  DType TypeOf(Role role, int32_t layer) const {
    const std::string& format = options_.format;
    const int32_t n = options_.shape.layers;
    if (format == "Q4_0") return role == Role::kEmbedding ? DType::kQ6_K : DType::kQ4_0;
    if (format == "Q4_K_M") {
      bool more = layer < n / 8 || layer >= 7 * n / 8 || (layer - n / 8) % 3 == 2;
      bool six = role == Role::kEmbedding || (role == Role::kSensitive && more);
      return six ? DType::kQ6_K : DType::kQ4_K;
    }
    return *DTypeFromName(format);
  }

  absl::Status Matrix(const std::string& name, Role role, int32_t layer, int64_t rows,
                      int64_t cols) {
    return Stack(name, TypeOf(role, layer), 0, rows, cols);
  }

  // `count` matrices as one tensor; 0: a plain matrix.
  absl::Status Stack(const std::string& name, DType dtype, int64_t count, int64_t rows,
                     int64_t cols) {
    ASSIGN_OR_RETURN(const std::vector<std::byte>* pool, pool_.Get(dtype, cols, options_.seed));
    const uint64_t row_bytes = RowBytes(dtype, static_cast<uint64_t>(cols));
    const uint64_t seed = options_.seed * 1'000'003 + ++tensors_;
    const std::vector<int64_t> shape =
        count > 0 ? std::vector<int64_t>{count, rows, cols} : std::vector<int64_t>{rows, cols};
    if (dtype == DType::kW8A8) {  // in files as bytes and their scales
      std::vector<int64_t> scale_shape = shape;
      scale_shape.pop_back();
      writer_.AddTensor(name, DType::kI8, shape, Rows(pool, row_bytes, 4, row_bytes - 4, seed));
      writer_.AddTensor(name + "_scale", DType::kF32, scale_shape,
                        Rows(pool, row_bytes, 0, 4, seed));
    } else {
      writer_.AddTensor(name, dtype, shape, Rows(pool, row_bytes, 0, row_bytes, seed));
    }
    return absl::OkStatus();
  }

  // Bytes [first, first + count) of each row; row r is always pool row Random(seed + r) % kRows.
  // Pieces begin anywhere.
  static GgufWriter::Fill Rows(const std::vector<std::byte>* pool, uint64_t row_bytes,
                               uint64_t first, uint64_t count, uint64_t seed) {
    return [=](uint64_t offset, std::span<std::byte> out) {
      while (!out.empty()) {
        const uint64_t row = offset / count;
        const uint64_t within = offset % count;
        const uint64_t from = Random(seed + row).Below(RowPool::kRows) * row_bytes + first + within;
        const size_t bytes = std::min<uint64_t>(count - within, out.size());
        std::memcpy(out.data(), pool->data() + from, bytes);
        out = out.subspan(bytes);
        offset += bytes;
      }
      return absl::OkStatus();
    };
  }

  void Norm(const std::string& name, int64_t size) {
    std::vector<float> ones(static_cast<size_t>(size), 1.0f);
    std::vector<std::byte> data(ones.size() * sizeof(float));
    std::memcpy(data.data(), ones.data(), data.size());
    const int64_t shape[] = {size};
    writer_.AddTensor(name, DType::kF32, shape, std::move(data));
  }

  const GenerateOptions& options_;
  GgufWriter writer_;
  RowPool pool_;
  uint64_t tensors_ = 0;
};

}  // namespace

std::vector<std::string> ModelFormats() {
  return {"Q4_0", "Q4_K_M", "Q8_0", "F16", "BF16", "F32", "W8A8"};
}

absl::StatusOr<ModelShape> FindShape(std::string_view name) {
  if (name == "qwen3-0.6b") return ModelShape();
  if (name == "small") {
    return ModelShape{.name = "small",
                      .layers = 8,
                      .width = 512,
                      .heads = 8,
                      .kv_heads = 4,
                      .head_dim = 64,
                      .ffn_width = 1536,
                      .vocab = 16'384,
                      .context = 8192};
  }
  if (name == "tiny") {
    return ModelShape{.name = "tiny",
                      .layers = 2,
                      .width = 256,
                      .heads = 4,
                      .kv_heads = 2,
                      .head_dim = 64,
                      .ffn_width = 512,
                      .vocab = 512,
                      .context = 2048};
  }
  if (name == "small-moe") {
    return ModelShape{.name = "small-moe",
                      .layers = 6,
                      .width = 256,
                      .heads = 4,
                      .kv_heads = 2,
                      .head_dim = 64,
                      .ffn_width = 256,
                      .vocab = 2048,
                      .context = 4096,
                      .experts = 32,
                      .experts_used = 4};
  }
  if (name == "medium-moe") {
    return ModelShape{.name = "medium-moe",
                      .layers = 12,
                      .width = 1024,
                      .heads = 16,
                      .kv_heads = 4,
                      .head_dim = 64,
                      .ffn_width = 768,
                      .vocab = 32'768,
                      .context = 8192,
                      .experts = 32,
                      .experts_used = 4};
  }
  return absl::NotFoundError(fmt::format(
      "no shape '{}'; there are qwen3-0.6b, small, tiny, small-moe and medium-moe", name));
}

absl::Status GenerateModel(const GenerateOptions& options, const std::string& path) {
  const std::vector<std::string> formats = ModelFormats();
  if (std::find(formats.begin(), formats.end(), options.format) == formats.end()) {
    return absl::InvalidArgumentError(
        fmt::format("no format '{}'; there are {}", options.format, fmt::join(formats, ", ")));
  }
  return Generator(options).Write(path);
}

absl::StatusOr<std::string> CachedModel(const GenerateOptions& options, const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return ErrnoStatus(error.value(), fmt::format("creating {}", folder));
  std::string path =
      fmt::format("{}/{}-{}-{}.gguf", folder, options.shape.name, options.format, options.seed);
  // The writer puts a file under its name only when it is complete.
  if (!std::filesystem::exists(path, error)) RETURN_IF_ERROR(GenerateModel(options, path));
  return path;
}

}  // namespace terrace::bench
