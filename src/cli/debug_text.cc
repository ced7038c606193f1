// terrace debug tokenize, terrace debug render: text without an engine.
#include <fmt/format.h>

#include <boost/json.hpp>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <ostream>

#include "base/clock.h"
#include "base/status.h"
#include "cli/cli.h"
#include "cli/config_options.h"
#include "cli/model_argument.h"
#include "format/gguf.h"
#include "text/jinja/json.h"
#include "text/jinja/template.h"
#include "text/tokenizer.h"
#include "text/tokenizer_metadata.h"

namespace terrace::cli {
namespace {

struct TokenizeOptions {
  ConfigOptions config;
  std::string model;
  bool special = false;
  bool add_special = false;
};

absl::Status Tokenize(const Invocation& invocation, const TokenizeOptions& options) {
  ASSIGN_OR_RETURN(server::LoadedConfig loaded, options.config.Load(*invocation.io));
  ASSIGN_OR_RETURN(std::string path, FindModel(loaded.config, options.model));
  ASSIGN_OR_RETURN(format::ModelSource source, format::OpenModel(path));
  ASSIGN_OR_RETURN(TokenizerConfig config, TokenizerConfigFromMetadata(source.metadata));
  ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer, Tokenizer::Create(std::move(config)));
  const std::string text(std::istreambuf_iterator<char>(*invocation.io->in), {});
  EncodeOptions encode;
  encode.parse_special = options.special;
  encode.add_special = options.add_special;
  ASSIGN_OR_RETURN(std::vector<int32_t> ids, tokenizer->Encode(std::string_view(text), encode));
  if (invocation.json) {
    *invocation.io->out << fmt::format("[{}]\n", fmt::join(ids, ","));
  } else {
    *invocation.io->out << fmt::format("{}\n", fmt::join(ids, " "));
  }
  return absl::OkStatus();
}

struct RenderOptions {
  std::string template_file;
  std::string context_file;
  std::optional<int64_t> now;
};

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return ErrnoStatus(errno, fmt::format("opening {}", path));
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (file.bad()) return ErrnoStatus(errno, fmt::format("reading {}", path));
  return text;
}

absl::Status Render(const Invocation& invocation, const RenderOptions& options) {
  ASSIGN_OR_RETURN(std::string source, ReadFile(options.template_file));
  ASSIGN_OR_RETURN(std::string context_text, ReadFile(options.context_file));
  boost::system::error_code error;
  boost::json::value context = boost::json::parse(context_text, error);
  if (error || !context.is_object()) {
    return absl::InvalidArgumentError(
        fmt::format("{} is not a JSON object: {}", options.context_file,
                    error ? error.message() : "it is JSON of another kind"));
  }
  ASSIGN_OR_RETURN(std::unique_ptr<const jinja::Template> parsed, jinja::Template::Parse(source));
  const absl::StatusOr<jinja::Value> value = jinja::FromJson(context);
  if (!value.ok()) return value.status();
  jinja::RenderOptions render;
  RealClock clock;
  render.now = [&] { return options.now.value_or(clock.WallUs() / 1'000'000); };
  ASSIGN_OR_RETURN(jinja::Rendered rendered, parsed->Render(*value->dict(), render));
  if (!invocation.json) {
    *invocation.io->out << rendered.text;
    return absl::OkStatus();
  }
  boost::json::array spans;
  for (const jinja::Span& span : rendered.spans) {
    spans.push_back({{"begin", span.begin}, {"end", span.end}, {"trusted", span.trusted}});
  }
  boost::json::object all = {{"text", rendered.text}, {"spans", std::move(spans)}};
  *invocation.io->out << boost::json::serialize(all) << "\n";
  return absl::OkStatus();
}

}  // namespace

void AddDebugTokenize(Command debug, Invocation* invocation) {
  auto options = std::make_shared<TokenizeOptions>();  // lives as long as the parser's callbacks
  Command command = debug.Add("tokenize", "Read text from standard input, write its token ids",
                              [invocation, options] { return Tokenize(*invocation, *options); });
  command.Argument("model", &options->model, {"MODEL", kModelHelp, true});
  command.Flag("--special", &options->special,
               "Recognise control tokens by their spelling, as in a chat template's own text");
  command.Flag("--add-special", &options->add_special,
               "Add the start and end tokens that the model asks for");
  options->config.AddTo(command, {"storage"});
}

void AddDebugRender(Command debug, Invocation* invocation) {
  auto options = std::make_shared<RenderOptions>();
  Command command = debug.Add("render",
                              "Render a chat template over a context, exactly: no line end is "
                              "added. With --json also which "
                              "bytes the template wrote (trusted) and which came from the context",
                              [invocation, options] { return Render(*invocation, *options); });
  command.Argument("template", &options->template_file, {"TEMPLATE.jinja", "Template file", true});
  command.Argument("context", &options->context_file,
                   {"CONTEXT.json", "The template's variables, a JSON object", true});
  command.Option("--now", &options->now,
                 {"UNIX-SECONDS", "What strftime_now takes for the time (default: now)"});
}

}  // namespace terrace::cli
