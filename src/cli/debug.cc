// terrace debug: looks at one part of the machinery at a time.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <iterator>
#include <memory>
#include <ostream>

#include "base/status.h"
#include "cli/cli.h"
#include "cli/config_options.h"
#include "cli/model_argument.h"
#include "format/gguf.h"
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
  ASSIGN_OR_RETURN(format::ModelSource source, format::OpenGguf(path));
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

void AddTokenize(CLI::App* debug, Invocation* invocation) {
  auto options = std::make_shared<TokenizeOptions>();  // lives as long as the parser's callbacks
  CLI::App* command = AddCommand(debug, invocation, "tokenize",
                                 "Read text from standard input, write its token ids",
                                 [invocation, options] { return Tokenize(*invocation, *options); });
  command->add_option("model", options->model, kModelHelp)->required()->type_name("MODEL");
  command->add_flag("--special", options->special,
                    "Recognise control tokens by their spelling, as in a chat template's own text");
  command->add_flag("--add-special", options->add_special,
                    "Add the start and end tokens that the model asks for");
  options->config.AddTo(command, {"storage"});
}

}  // namespace

void AddDebugCommand(CLI::App* app, Invocation* invocation) {
  CLI::App* debug = app->add_subcommand("debug", "Look at one part of the machinery at a time");
  debug->require_subcommand(1);
  AddTokenize(debug, invocation);
}

}  // namespace terrace::cli
