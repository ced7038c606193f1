// terrace convert: a model as one GGUF file.
#include <fmt/format.h>

#include <boost/json.hpp>
#include <filesystem>
#include <memory>
#include <ostream>
#include <string>
#include <system_error>

#include "base/status.h"
#include "base/units.h"
#include "cli/cli.h"
#include "cli/config_options.h"
#include "cli/model_argument.h"
#include "format/gguf_writer.h"
#include "format/model_source.h"
#include "format/scaled_rows.h"

namespace terrace::cli {
namespace {

struct ConvertOptions {
  ConfigOptions config;
  std::string model;
  std::string out;
};

absl::Status Convert(const Invocation& invocation, const ConvertOptions& options) {
  ASSIGN_OR_RETURN(server::LoadedConfig loaded, options.config.Load(*invocation.io));
  ASSIGN_OR_RETURN(std::string path, FindModel(loaded.config, options.model));
  std::error_code error;
  if (std::filesystem::exists(options.out, error)) {
    return absl::AlreadyExistsError(fmt::format("'{}' is there already", options.out));
  }
  ASSIGN_OR_RETURN(const format::ModelSource source, format::OpenModel(path));
  format::GgufWriter writer;
  writer.AddMetadata(source.metadata);
  uint64_t bytes = 0;
  for (const format::TensorInfo& tensor : source.tensors) {
    bytes += tensor.bytes;
    if (tensor.dtype == DType::kW8A8) {
      format::AddScaledRows(&source, &tensor, &writer);
      continue;
    }
    if (GgufType(tensor.dtype) < 0) {
      return absl::UnimplementedError(fmt::format("tensor '{}': GGUF has no type for {}",
                                                  tensor.name, Info(tensor.dtype).name));
    }
    writer.AddTensor(tensor.name, tensor.dtype, tensor.shape,
                     [&source, &tensor](uint64_t offset, std::span<std::byte> out) {
                       return source.ReadTensor(tensor, offset, out);
                     });
  }
  RETURN_IF_ERROR(writer.Write(options.out));
  if (invocation.json) {
    *invocation.io->out << boost::json::serialize(
                               boost::json::object{{"file", options.out},
                                                   {"tensors", source.tensors.size()},
                                                   {"bytes", bytes}})
                        << "\n";
  } else {
    *invocation.io->out << fmt::format("{} tensors, {}, in {}\n", source.tensors.size(),
                                       FormatBytes(bytes), options.out);
  }
  return absl::OkStatus();
}

}  // namespace

void AddConvertCommand(Command root, Invocation* invocation) {
  auto options = std::make_shared<ConvertOptions>();  // lives as long as the parser's callbacks
  Command command =
      root.Add("convert", "Write a model (a safetensors folder, say) as one GGUF file",
               [invocation, options] { return Convert(*invocation, *options); });
  command.Argument("model", &options->model, {"MODEL", kModelHelp, true});
  command.Argument("out", &options->out,
                   {"FILE", "The GGUF file to write; it must not exist", true});
  options->config.AddTo(command, {"storage"});
}

}  // namespace terrace::cli
