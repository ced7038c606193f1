// terrace verify perplexity: how well a model as it is computed here predicts a text.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <fstream>
#include <iterator>
#include <memory>
#include <ostream>

#include "base/status.h"
#include "cli/cli.h"
#include "cli/config_options.h"
#include "cli/model_argument.h"
#include "cli/runtime.h"
#include "format/gguf.h"
#include "text/tokenizer.h"
#include "text/tokenizer_metadata.h"

namespace terrace::cli {
namespace {

struct PerplexityOptions {
  ConfigOptions config;
  std::string model;
  std::string text;
  int32_t window = 512;
};

absl::StatusOr<std::vector<int32_t>> ReadTokens(const std::string& model, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return ErrnoStatus(errno, fmt::format("opening {}", path));
  const std::string text(std::istreambuf_iterator<char>(file), {});
  if (file.bad()) return ErrnoStatus(errno, fmt::format("reading {}", path));
  ASSIGN_OR_RETURN(format::ModelSource source, format::OpenGguf(model));
  ASSIGN_OR_RETURN(TokenizerConfig config, TokenizerConfigFromMetadata(source.metadata));
  ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer, Tokenizer::Create(std::move(config)));
  EncodeOptions encode;
  encode.parse_special = false;
  encode.add_special = false;
  return tokenizer->Encode(std::string_view(text), encode);
}

// -log of the softmax's share of `token`.
double Surprise(std::span<const float> logits, int32_t token) {
  const float top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - top);
  return std::log(sum) + top - static_cast<double>(logits[static_cast<size_t>(token)]);
}

// The tokens of the text in windows that do not see each other; the first of a window is given.
absl::Status Perplexity(const Invocation& invocation, const PerplexityOptions& options) {
  ASSIGN_OR_RETURN(server::LoadedConfig loaded, options.config.Load(*invocation.io));
  ASSIGN_OR_RETURN(std::string path, FindModel(loaded.config, options.model));
  ASSIGN_OR_RETURN(std::vector<int32_t> tokens, ReadTokens(path, options.text));
  ASSIGN_OR_RETURN(std::unique_ptr<Runtime> runtime, Runtime::Create(loaded.config));
  runtime->set_write_images(false);
  ASSIGN_OR_RETURN(std::shared_ptr<engine::EngineModel> model,
                   runtime->OpenModel("model", path, 0, 0));
  if (options.window < 2 || options.window > model->max_context()) {
    return absl::InvalidArgumentError(
        fmt::format("--window: not between 2 and the context of {}", model->max_context()));
  }
  const auto window = static_cast<size_t>(options.window);
  const auto vocab = static_cast<size_t>(model->vocab_size());
  double sum = 0;
  int64_t count = 0;
  for (size_t begin = 0; begin + 1 < tokens.size(); begin += window) {
    const std::span<const int32_t> piece =
        std::span(tokens).subspan(begin, std::min(window, tokens.size() - begin));
    ASSIGN_OR_RETURN(std::vector<float> logits, runtime->engine().AllLogits(*model, piece));
    for (size_t i = 0; i + 1 < piece.size(); ++i, ++count) {
      sum += Surprise(std::span(logits).subspan(i * vocab, vocab), piece[i + 1]);
    }
  }
  if (count == 0) return absl::InvalidArgumentError("the text is shorter than two tokens");
  const double perplexity = std::exp(sum / static_cast<double>(count));
  if (!std::isfinite(perplexity)) return absl::InternalError("logits are not finite");
  const std::string variant(runtime->backend().name());
  if (invocation.json) {
    *invocation.io->out << boost::json::serialize(boost::json::object{
                               {"perplexity", perplexity}, {"tokens", count}, {"variant", variant}})
                        << "\n";
  } else {
    *invocation.io->out << fmt::format("perplexity {:.4f} over {} tokens with '{}'\n", perplexity,
                                       count, variant);
  }
  return absl::OkStatus();
}

}  // namespace

void AddVerifyPerplexity(Command verify, Invocation* invocation) {
  auto options = std::make_shared<PerplexityOptions>();  // lives as long as the parser's callbacks
  Command command = verify.Add(
      "perplexity", "Print a model's perplexity on a text, to compare formats and kernels",
      [invocation, options] { return Perplexity(*invocation, *options); });
  command.Argument("model", &options->model, {"MODEL", kModelHelp, true});
  command.Option("--text", &options->text, {"FILE", "The text", true});
  command.Option("--window", &options->window,
                 {"TOKENS", "Tokens that see each other at most (default: 512)"});
  options->config.AddTo(command, {"memory", "storage", "device"});
}

}  // namespace terrace::cli
