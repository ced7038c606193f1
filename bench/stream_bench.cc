// A model three times the budget, dense and with experts: what streaming its weights costs.
#include <fmt/format.h>

#include <algorithm>

#include "base/status.h"
#include "base/units.h"
#include "bench.h"
#include "generate_model.h"
#include "support.h"
#include "weights/model_weights.h"

namespace terrace::bench {
namespace {

constexpr int32_t kPromptTokens = 16;
constexpr int32_t kTokens = 16;

absl::Status Stream(const Context& context, const std::string& shape_name, const char* what,
                    std::vector<Row>* rows) {
  GenerateOptions options;
  ASSIGN_OR_RETURN(options.shape, FindShape(shape_name));
  ASSIGN_OR_RETURN(std::string path, CachedModel(options, context.cache_folder));
  uint64_t model_bytes = 0;
  std::vector<int32_t> text;  // with all of it in memory
  {
    ASSIGN_OR_RETURN(std::unique_ptr<Bed> bed, Bed::Create(context, 0));
    ASSIGN_OR_RETURN(auto model, bed->Open("m", path));
    model_bytes = model->weights().total_bytes();
    ASSIGN_OR_RETURN(Answered whole, bed->Answer(*model, kPromptTokens, kTokens, 2));
    text = std::move(whole.text);
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Bed> bed, Bed::Create(context, model_bytes / 3 + 9 * kMiB));
  ASSIGN_OR_RETURN(auto model, bed->Open("m", path));
  RETURN_IF_ERROR(bed->FirstToken(*model, kPromptTokens, 1).status());
  ASSIGN_OR_RETURN(const Answered answered, bed->Answer(*model, kPromptTokens, kTokens, 2));
  const auto equal =
      std::mismatch(text.begin(), text.end(), answered.text.begin(), answered.text.end()).first -
      text.begin();
  rows->push_back({.law = fmt::format("{}, three times the budget: tokens as with all of it in "
                                      "memory",
                                      what),
                   .measured = static_cast<double>(equal),
                   .unit = "tokens",
                   .reference = static_cast<double>(text.size()),
                   .reference_name = "asked for",
                   .goal_kind = Goal::kAtLeast,
                   .goal = 1});
  const double bytes = static_cast<double>(answered.moved_bytes) / std::max(1, answered.tokens);
  rows->push_back({.law = fmt::format("{}, three times the budget: bytes moved a token", what),
                   .measured = bytes / 1e6,
                   .unit = "MB",
                   .reference = static_cast<double>(model_bytes) / 1e6,
                   .reference_name = "the model"});
  rows->push_back({.law = fmt::format("{}, three times the budget: bytes moved a second", what),
                   .measured = static_cast<double>(answered.moved_bytes) /
                               static_cast<double>(std::max<int64_t>(1, answered.total_us)) / 1e3,
                   .unit = "GB/s"});
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<Row>> RunStream(const Context& context) {
  std::vector<Row> rows;
  RETURN_IF_ERROR(Stream(context, context.quick ? "small" : "qwen3-0.6b", "dense", &rows));
  RETURN_IF_ERROR(
      Stream(context, context.quick ? "small-moe" : "medium-moe", "with experts", &rows));
  return rows;
}

}  // namespace terrace::bench
