// terrace quantize: a model with its matrices in another format.
#include <fmt/format.h>

#include <boost/json.hpp>
#include <filesystem>
#include <memory>
#include <ostream>

#include "base/status.h"
#include "base/text.h"
#include "base/units.h"
#include "cli/cli.h"
#include "cli/config_options.h"
#include "cli/model_argument.h"
#include "format/gguf.h"
#include "format/requantize.h"
#include "tensor/dtype.h"

namespace terrace::cli {
namespace {

struct QuantizeOptions {
  ConfigOptions config;
  std::string model;
  std::string out;
  std::string format;
};

absl::Status Quantize(const Invocation& invocation, const QuantizeOptions& options) {
  ASSIGN_OR_RETURN(server::LoadedConfig loaded, options.config.Load(*invocation.io));
  std::string name = options.format;
  for (char& c : name) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  const std::optional<DType> dtype = DTypeFromName(name);
  if (!dtype) {
    return absl::InvalidArgumentError(
        fmt::format("--format: '{}' is not a format", options.format));
  }
  ASSIGN_OR_RETURN(std::string path, FindModel(loaded.config, options.model));
  ASSIGN_OR_RETURN(format::ModelSource source, format::OpenModel(path));
  std::error_code error;
  if (std::filesystem::equivalent(path, options.out, error)) {
    return absl::InvalidArgumentError(
        fmt::format("'{}' would overwrite the model that is read", options.out));
  }
  RETURN_IF_ERROR(format::Requantize(source, *dtype, options.out));
  const uint64_t bytes = std::filesystem::file_size(options.out, error);
  if (invocation.json) {
    *invocation.io->out << boost::json::serialize(boost::json::object{
                               {"file", options.out}, {"format", name}, {"bytes", bytes}})
                        << "\n";
  } else {
    *invocation.io->out << fmt::format("{} in {} takes {}\n", options.out, name,
                                       FormatBytes(bytes));
  }
  return absl::OkStatus();
}

}  // namespace

void AddQuantizeCommand(Command root, Invocation* invocation) {
  auto options = std::make_shared<QuantizeOptions>();  // lives as long as the parser's callbacks
  Command command = root.Add("quantize",
                             "Write a model as a GGUF file with its matrices in another format; "
                             "what is quantised already loses a little more",
                             [invocation, options] { return Quantize(*invocation, *options); });
  command.Argument("model", &options->model, {"MODEL", kModelHelp, true});
  command.Argument("out", &options->out, {"FILE", "GGUF file to write", true});
  command.Option("--format", &options->format,
                 {"FORMAT",
                  "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K or W8A8 (INT8 "
                  "per channel)",
                  true});
  options->config.AddTo(command, {"storage"});
}

}  // namespace terrace::cli
