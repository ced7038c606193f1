// terrace rm, rollback and import: what changes the models on this machine, besides pull.
#include <fmt/format.h>

#include <boost/json.hpp>
#include <memory>
#include <ostream>

#include "base/status.h"
#include "base/units.h"
#include "cli/cli.h"
#include "cli/config_options.h"
#include "cli/model_argument.h"
#include "cli/runtime.h"
#include "weights/model_store.h"

namespace terrace::cli {
namespace {

namespace json = boost::json;

// ---- rm, rollback ----------------------------------------------------------------------------

struct ReferenceOptions {
  ConfigOptions config;
  std::string reference;
};

absl::Status Remove(const Invocation& invocation, const ReferenceOptions& options) {
  ASSIGN_OR_RETURN(server::LoadedConfig loaded, options.config.Load(*invocation.io));
  RETURN_IF_ERROR(weights::ModelStore(StoreFolder(loaded.config)).Remove(options.reference));
  *invocation.io->out << (invocation.json
                              ? json::serialize(json::object{{"removed", options.reference}}) + "\n"
                              : fmt::format("removed {}\n", options.reference));
  return absl::OkStatus();
}

// The version before the current one, or the one that is named.
absl::Status Rollback(const Invocation& invocation, const ReferenceOptions& options) {
  ASSIGN_OR_RETURN(server::LoadedConfig loaded, options.config.Load(*invocation.io));
  const weights::ModelStore store(StoreFolder(loaded.config));
  ASSIGN_OR_RETURN(weights::ModelReference reference, weights::ParseReference(options.reference));
  ASSIGN_OR_RETURN(weights::StoredModel model, store.Find(reference.name));
  std::string current;
  std::string target = reference.version;
  for (size_t i = 0; i < model.versions.size(); ++i) {
    if (!model.versions[i].current) continue;
    current = model.versions[i].version;
    if (target.empty() && i > 0) target = model.versions[i - 1].version;
  }
  if (target.empty()) {
    return absl::FailedPreconditionError(
        fmt::format("{}@{} is the oldest version there is", reference.name, current));
  }
  RETURN_IF_ERROR(store.SetCurrent(reference.name, target));
  *invocation.io->out << (invocation.json
                              ? json::serialize(json::object{
                                    {"name", reference.name}, {"from", current}, {"to", target}}) +
                                    "\n"
                              : fmt::format("{}: {} is current, {} was\n", reference.name, target,
                                            current));
  return absl::OkStatus();
}

// ---- import ----------------------------------------------------------------------------------

absl::Status Import(const Invocation& invocation, const ReferenceOptions& options) {
  ASSIGN_OR_RETURN(server::LoadedConfig loaded, options.config.Load(*invocation.io));
  ASSIGN_OR_RETURN(std::string path, FindModel(loaded.config, options.reference));
  ASSIGN_OR_RETURN(std::unique_ptr<Runtime> runtime, Runtime::Create(loaded.config));
  const int64_t start_us = runtime->clock().NowUs();
  ASSIGN_OR_RETURN(std::shared_ptr<engine::EngineModel> model,
                   runtime->OpenModel(options.reference, path, 0, 0));
  const bool was_there = model->weights().image_complete();
  RETURN_IF_ERROR(model->weights().WaitForImage());
  const double seconds = static_cast<double>(runtime->clock().NowUs() - start_us) / 1e6;
  const uint64_t bytes = model->weights().total_bytes();
  if (invocation.json) {
    json::object all = {{"fingerprint", model->weights().fingerprint()},
                        {"kernels", runtime->backend().name()},
                        {"bytes", bytes},
                        {"seconds", seconds},
                        {"already_there", was_there}};
    *invocation.io->out << json::serialize(all) << "\n";
    return absl::OkStatus();
  }
  *invocation.io->out << fmt::format(
      "image {} for {} kernels, {}{}\n", model->weights().fingerprint(), runtime->backend().name(),
      FormatBytes(bytes),
      was_there ? ", was there already" : fmt::format(", made in {:.1f} s", seconds));
  return absl::OkStatus();
}

}  // namespace

void AddStoreCommands(Command root, Invocation* invocation) {
  struct Entry {
    const char* name;
    const char* help;
    const char* argument;
    const char* argument_help;
    absl::Status (*run)(const Invocation&, const ReferenceOptions&);
    std::initializer_list<std::string_view> sections;
  };
  const Entry entries[] = {
      {"rm",
       "Remove a model, or one version of it, from the store",
       "NAME[@VERSION]",
       "What to remove",
       Remove,
       {"storage"}},
      {"rollback",
       "Make the version before the current one current, or the one that is named",
       "NAME[@VERSION]",
       "Which model",
       Rollback,
       {"storage"}},
      {"import",
       "Prepare a model for this machine now instead of at its first use",
       "MODEL",
       kModelHelp,
       Import,
       {"memory", "storage", "device"}},
  };
  for (const Entry& entry : entries) {
    auto options = std::make_shared<ReferenceOptions>();
    auto run = entry.run;
    Command command = root.Add(entry.name, entry.help, [=] { return run(*invocation, *options); });
    command.Argument("model", &options->reference, {entry.argument, entry.argument_help, true});
    options->config.AddTo(command, entry.sections);
  }
}

}  // namespace terrace::cli
