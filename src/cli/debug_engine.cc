// terrace debug logits, embed, variants and devices: the engine without a server.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <bit>
#include <boost/json.hpp>
#include <fstream>
#include <istream>
#include <memory>
#include <ostream>
#include <string>

#include "base/status.h"
#include "base/units.h"
#include "cli/cli.h"
#include "cli/config_options.h"
#include "cli/model_argument.h"
#include "cli/runtime.h"
#include "device/opencl/opencl_device.h"
#include "ops/cpu/cpu_backend.h"
#include "text/tokenizer.h"
#include "text/tokenizer_metadata.h"

namespace terrace::cli {
namespace {

struct LogitsOptions {
  ConfigOptions config;
  std::string model;
  std::vector<int32_t> tokens;
  std::string out;
  std::string variant;
};

absl::Status WriteFloats(const std::string& path, const std::vector<float>& values) {
  static_assert(std::endian::native == std::endian::little, "the file is little-endian");
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(values.data()),
             static_cast<std::streamsize>(values.size() * sizeof(float)));
  file.close();
  if (!file) return ErrnoStatus(errno, fmt::format("writing {}", path));
  return absl::OkStatus();
}

absl::Status Logits(const Invocation& invocation, const LogitsOptions& options) {
  ASSIGN_OR_RETURN(server::LoadedConfig loaded, options.config.Load(*invocation.io));
  if (!options.variant.empty()) loaded.config.device.variant = options.variant;
  ASSIGN_OR_RETURN(std::string path, FindModel(loaded.config, options.model));
  ASSIGN_OR_RETURN(std::unique_ptr<Runtime> runtime, Runtime::Create(loaded.config));
  runtime->set_write_images(false);
  ASSIGN_OR_RETURN(std::shared_ptr<engine::EngineModel> model,
                   runtime->OpenModel("model", path, 0, 0));
  for (int32_t token : options.tokens) {
    if (token < 0 || token >= model->vocab_size()) {
      return absl::InvalidArgumentError(fmt::format(
          "--tokens: {} is not a token of this model, which has {}", token, model->vocab_size()));
    }
  }
  ASSIGN_OR_RETURN(std::vector<float> logits, runtime->engine().AllLogits(*model, options.tokens));
  RETURN_IF_ERROR(WriteFloats(options.out, logits));
  if (invocation.json) {
    boost::json::object result = {{"rows", options.tokens.size()},
                                  {"columns", model->vocab_size()},
                                  {"variant", runtime->backend().name()},
                                  {"file", options.out}};
    *invocation.io->out << boost::json::serialize(result) << "\n";
  } else {
    *invocation.io->out << fmt::format("{} rows of {} float32 by '{}' in {}\n",
                                       options.tokens.size(), model->vocab_size(),
                                       runtime->backend().name(), options.out);
  }
  return absl::OkStatus();
}

struct EmbedOptions {
  ConfigOptions config;
  std::string model;
};

// Standard input, a text a line, as vectors, a JSON list a line.
absl::Status Embed(const Invocation& invocation, const EmbedOptions& options) {
  ASSIGN_OR_RETURN(server::LoadedConfig loaded, options.config.Load(*invocation.io));
  ASSIGN_OR_RETURN(std::string path, FindModel(loaded.config, options.model));
  ASSIGN_OR_RETURN(std::unique_ptr<Runtime> runtime, Runtime::Create(loaded.config));
  runtime->set_write_images(false);
  ASSIGN_OR_RETURN(std::shared_ptr<engine::EngineModel> model,
                   runtime->OpenModel("model", path, 0, 0));
  ASSIGN_OR_RETURN(TokenizerConfig config,
                   TokenizerConfigFromMetadata(model->weights().metadata()));
  ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer, Tokenizer::Create(std::move(config)));
  for (std::string line; std::getline(*invocation.io->in, line);) {
    ASSIGN_OR_RETURN(std::vector<int32_t> ids,
                     tokenizer->Encode(std::string_view(line), {.add_special = true}));
    ASSIGN_OR_RETURN(std::vector<float> vector, runtime->engine().Embed(*model, ids));
    *invocation.io->out << fmt::format("[{}]\n", fmt::join(vector, ","));
  }
  return absl::OkStatus();
}

absl::Status Variants(const Invocation& invocation) {
  std::vector<ops::CpuVariant> variants = ops::CpuVariants();
  variants.insert(variants.begin(), {"ref", "", true});
  const std::string best = ops::BestCpuVariant();
  boost::json::array array;
  std::string text;
  for (const ops::CpuVariant& variant : variants) {
    array.push_back({{"name", variant.name},
                     {"needs", variant.needs},
                     {"supported", variant.supported},
                     {"chosen", variant.name == best}});
    text += fmt::format("{:<12}  {:<13}  {}\n", variant.name,
                        variant.name == best ? "chosen"
                        : variant.supported  ? "runs here"
                                             : "does not run",
                        variant.needs.empty() ? "" : "needs " + variant.needs);
  }
  *invocation.io->out << (invocation.json ? boost::json::serialize(array) + "\n" : text);
  return absl::OkStatus();
}

// What `--device.kind opencl` can choose from.
absl::Status Devices(const Invocation& invocation) {
  ASSIGN_OR_RETURN(const std::vector<device::OpenClDeviceName> devices,
                   device::ListOpenClDevices());
  boost::json::array array;
  std::string text;
  for (size_t i = 0; i < devices.size(); ++i) {
    const device::OpenClDeviceName& device = devices[i];
    array.push_back({{"number", i},
                     {"kind", "opencl"},
                     {"device", device.device},
                     {"platform", device.platform},
                     {"version", device.version},
                     {"memory_bytes", device.memory_bytes},
                     {"cpu", device.cpu}});
    text += fmt::format("opencl {}  {} ({})  {}{}\n", i, device.device, device.platform,
                        FormatBytes(device.memory_bytes), device.cpu ? "  the processor" : "");
  }
  if (devices.empty()) text = "OpenCL knows no device on this machine\n";
  *invocation.io->out << (invocation.json ? boost::json::serialize(array) + "\n" : text);
  return absl::OkStatus();
}

}  // namespace

void AddDebugLogits(Command debug, Invocation* invocation) {
  auto options = std::make_shared<LogitsOptions>();  // lives as long as the parser's callbacks
  Command command = debug.Add("logits",
                              "Write the logits after each token of a sequence to a file, one "
                              "row of little-endian float32 a token",
                              [invocation, options] { return Logits(*invocation, *options); });
  command.Argument("model", &options->model, {"MODEL", kModelHelp, true});
  command.Option("--tokens", &options->tokens, {"IDS", "Token ids, such as 1,2,3", true});
  command.Option("--out", &options->out, {"FILE", "File to write", true});
  command.Option("--variant", &options->variant, {"NAME", "The same as --device.variant"});
  options->config.AddTo(command, {"memory", "storage", "device"});
}

void AddDebugEmbed(Command debug, Invocation* invocation) {
  auto options = std::make_shared<EmbedOptions>();  // lives as long as the parser's callbacks
  Command command = debug.Add("embed",
                              "Print the vector that an encoder makes of each line of standard "
                              "input, a JSON list a line",
                              [invocation, options] { return Embed(*invocation, *options); });
  command.Argument("model", &options->model, {"MODEL", kModelHelp, true});
  options->config.AddTo(command, {"memory", "storage", "device"});
}

void AddDebugVariants(Command debug, Invocation* invocation) {
  debug.Add("variants", "List the kernels of this build and what they need",
            [invocation] { return Variants(*invocation); });
}

void AddDebugDevices(Command debug, Invocation* invocation) {
  debug.Add("devices", "List the devices that the machine's OpenCL drivers offer",
            [invocation] { return Devices(*invocation); });
}

}  // namespace terrace::cli
