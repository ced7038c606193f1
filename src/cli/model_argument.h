// MODEL on the command line: a GGUF file, or the name of a model in the store or the configuration.
#ifndef TERRACE_CLI_MODEL_ARGUMENT_H_
#define TERRACE_CLI_MODEL_ARGUMENT_H_

#include <string>

#include "absl/status/statusor.h"
#include "server/config.h"

namespace terrace::cli {

inline constexpr char kModelHelp[] =
    "A GGUF file (any part of a split set), or the name of a model in the store or in the "
    "configuration";

// The GGUF file that `model` means. NotFound says where it was looked for and what there is.
absl::StatusOr<std::string> FindModel(const server::Config& config, const std::string& model);

// The folders below storage.disk.path.
std::string StoreFolder(const server::Config& config);   // models, as pulled or imported
std::string ImageFolder(const server::Config& config);   // models prepared for this machine
std::string KernelFolder(const server::Config& config);  // compiled for this machine's chips

}  // namespace terrace::cli

#endif  // TERRACE_CLI_MODEL_ARGUMENT_H_
