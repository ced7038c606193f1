#include "format/folder/hf_rope.h"

#include <fmt/format.h>

#include <cmath>
#include <numbers>
#include <vector>

#include "base/status.h"

namespace terrace::format {
namespace {

// The factor by which each frequency is divided (Llama 3.1): high frequencies are left alone, low
// ones take the whole factor, those between a share of it.
absl::Status PerFrequency(const JsonNode& node, CheckpointConfig* out, double base) {
  ASSIGN_OR_RETURN(const double factor, node["factor"].Number());
  ASSIGN_OR_RETURN(const double low, node["low_freq_factor"].Number());
  ASSIGN_OR_RETURN(const double high, node["high_freq_factor"].Number());
  ASSIGN_OR_RETURN(const double context, node["original_max_position_embeddings"].Number());
  if (!(factor > 0) || !(low > 0) || !(high > low) || !(context > 0)) {
    return node.Wrong("factors above 0, high_freq_factor above low_freq_factor");
  }
  for (int64_t i = 0; i < out->rope_dim; i += 2) {
    const double exponent = static_cast<double>(i) / static_cast<double>(out->rope_dim);
    const double wavelength = 2 * std::numbers::pi * std::pow(base, exponent);
    double divisor = 1.0;
    if (wavelength > context / low) {
      divisor = factor;
    } else if (wavelength > context / high) {
      const double smooth = (context / wavelength - low) / (high - low);
      divisor = 1.0 / ((1.0 - smooth) / factor + smooth);
    }
    out->rope_factors.push_back(static_cast<float>(divisor));
  }
  return absl::OkStatus();
}

absl::Status Yarn(const JsonNode& node, const std::string& prefix, CheckpointConfig* out) {
  ASSIGN_OR_RETURN(const double factor, node["factor"].Number());
  out->metadata.Set(prefix + "rope.scaling.factor", factor);
  ASSIGN_OR_RETURN(const int64_t context,
                   node["original_max_position_embeddings"].Int(1, int64_t{1} << 30));
  out->metadata.Set(prefix + "rope.scaling.original_context_length", context);
  for (const auto& [key, name] :
       {std::pair("beta_fast", "yarn_beta_fast"), std::pair("beta_slow", "yarn_beta_slow")}) {
    if (!node[key].present()) continue;
    ASSIGN_OR_RETURN(const double beta, node[key].Number());
    out->metadata.Set(fmt::format("{}rope.scaling.{}", prefix, name), beta);
  }
  if (out->naming == Naming::kDeepseek) {
    double all = 0, rotated = 0;
    if (node["mscale_all_dim"].present()) {
      ASSIGN_OR_RETURN(all, node["mscale_all_dim"].Number());
    }
    if (node["mscale"].present()) {
      ASSIGN_OR_RETURN(rotated, node["mscale"].Number());
    }
    out->metadata.Set(prefix + "rope.scaling.yarn_log_multiplier", 0.1 * all);
    // The rotated part's own magnitude, of which scores take `all` back.
    if (all > 0 && rotated > 0 && factor > 1) {
      const double log_factor = 0.1 * std::log(factor);
      out->metadata.Set(prefix + "rope.scaling.attn_factor",
                        (1.0 + rotated * log_factor) / (1.0 + all * log_factor));
    }
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const bool round, node["truncate"].Bool(true));
  if (!round || out->naming == Naming::kGptOss) {
    out->metadata.Set(prefix + "rope.scaling.yarn_round_range", round);
  }
  if (node["attention_factor"].present() && factor > 0) {
    ASSIGN_OR_RETURN(const double magnitude, node["attention_factor"].Number());
    // The key counts what comes on top of YaRN's own magnitude.
    out->metadata.Set(prefix + "rope.scaling.attn_factor",
                      magnitude / (1.0 + 0.1 * std::log(factor)));
  }
  return absl::OkStatus();
}

// One factor for each pair.
absl::StatusOr<std::vector<float>> Factors(const JsonNode& node, int64_t count) {
  if (node.array() == nullptr || node.array()->size() != static_cast<size_t>(count)) {
    return node.Wrong(fmt::format("a list of {} numbers", count));
  }
  std::vector<float> out;
  for (size_t i = 0; i < node.array()->size(); ++i) {
    ASSIGN_OR_RETURN(const double factor, node.at(i).Number());
    if (!(factor > 0) || !std::isfinite(factor)) return node.at(i).Wrong("above 0");
    out.push_back(static_cast<float>(factor));
  }
  return out;
}

// LongRoPE (Ding et al. 2024): a factor a pair, for contexts up to the original one and for longer
// ones, and a magnitude for both.
absl::Status LongRope(const JsonNode& text, const JsonNode& node, const std::string& prefix,
                      CheckpointConfig* out) {
  const JsonNode own = node["original_max_position_embeddings"];
  const JsonNode original = own.present() ? own : text["original_max_position_embeddings"];
  ASSIGN_OR_RETURN(const int64_t context, original.Int(1, int64_t{1} << 30));
  ASSIGN_OR_RETURN(const int64_t most, text["max_position_embeddings"].Int(1, int64_t{1} << 30));
  ASSIGN_OR_RETURN(out->rope_short_factors, Factors(node["short_factor"], out->rope_dim / 2));
  ASSIGN_OR_RETURN(out->rope_long_factors, Factors(node["long_factor"], out->rope_dim / 2));
  double magnitude = 1.0;
  if (node["attention_factor"].present()) {
    ASSIGN_OR_RETURN(magnitude, node["attention_factor"].Number());
  } else {
    double factor = static_cast<double>(most) / static_cast<double>(context);
    if (node["factor"].present()) {
      ASSIGN_OR_RETURN(factor, node["factor"].Number());
    }
    if (factor > 1) {
      magnitude = std::sqrt(1.0 + std::log(factor) / std::log(static_cast<double>(context)));
    }
  }
  out->metadata.Set(prefix + "rope.scaling.type", std::string("longrope"));
  out->metadata.Set(prefix + "rope.scaling.original_context_length", context);
  out->metadata.Set(prefix + "rope.scaling.attn_factor", magnitude);
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadRope(const JsonNode& text, const std::string& prefix, CheckpointConfig* out) {
  JsonNode node = text["rope_scaling"].present() ? text["rope_scaling"] : text["rope_parameters"];
  if (node["full_attention"].object() != nullptr) node = node["full_attention"];
  if (!node.present()) return absl::OkStatus();
  const JsonNode kind = node["rope_type"].present() ? node["rope_type"] : node["type"];
  ASSIGN_OR_RETURN(const std::string type, kind.String("default"));
  if (type == "default" || type == "dynamic") return absl::OkStatus();
  ASSIGN_OR_RETURN(const double base, out->metadata.GetDouble(prefix + "rope.freq_base"));
  if (type == "llama3") return PerFrequency(node, out, base);
  // "su" is what the first Phi-3 models called it.
  if (type == "longrope" || type == "su") return LongRope(text, node, prefix, out);
  if (type != "linear" && type != "yarn") {
    return absl::UnimplementedError(
        fmt::format("{}: rope scaling '{}' is not read by this build (default, linear, dynamic, "
                    "llama3, longrope and yarn are)",
                    node.path(), type));
  }
  out->metadata.Set(prefix + "rope.scaling.type", type);
  if (type == "yarn") return Yarn(node, prefix, out);
  ASSIGN_OR_RETURN(const double factor, node["factor"].Number());
  out->metadata.Set(prefix + "rope.scaling.factor", factor);
  return absl::OkStatus();
}

}  // namespace terrace::format
