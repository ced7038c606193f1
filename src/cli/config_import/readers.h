// Readers of other servers' configurations. Each puts what it finds into an Imported; what is no
// configuration of its kind is InvalidArgument with the place.
//
// Sources of the formats: llama.cpp's tools/server/README.md and docs/preset.md; Ollama's
// docs/modelfile and the layout of its model store (manifests of the OCI kind over blobs);
// model_config.proto of Triton and the layout of its model repository; vLLM's engine arguments and
// the YAML file of `vllm serve --config`.
#ifndef TERRACE_CLI_CONFIG_IMPORT_READERS_H_
#define TERRACE_CLI_CONFIG_IMPORT_READERS_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "cli/config_import/imported.h"
#include "cli/config_import/words.h"

namespace terrace::cli {

struct ImportPlace {
  std::string where;   // for messages
  std::string folder;  // relative paths are meant from here
  std::string name;    // of the model, where the configuration has none; may be empty
  std::string store;   // Ollama's folder of models; empty: where it is by default
};

// A row of a reader's table: which of our keys a setting becomes.
struct ImportRule {
  std::string_view name;
  std::string_view key;  // empty: it is left for the reason in `remark`
  bool of_model = false;
  std::string_view remark = {};
  // Puts the value into our form; null: as it is. Empty: our form has nothing for it.
  std::string (*convert)(const std::string& value) = nullptr;
};
// Takes or leaves `setting`, under the name that `rules` know it by; settings that they do not know
// are left. `model`: whose it is.
void ApplyRule(const Setting& setting, const std::string& name,
               const std::vector<ImportRule>& rules, size_t model, Imported* out);

// "16k" as vLLM's command line has it, "8192", in tokens; empty for what is neither.
std::string TokenCount(const std::string& text);
std::string SecondsOf(const std::string& text);    // "300" -> "300s"; empty for negative ones
std::string GibibytesOf(const std::string& text);  // "4" -> "4GiB"; "0" -> "off"
// The name of a model after its file or its repository: without folders, .gguf and a part's number.
std::string NameAfter(std::string_view path);

absl::Status ReadLlamaServer(const CommandLine& command, const ImportPlace& place, Imported* out);
absl::Status ReadLlamaPreset(std::string_view ini, const ImportPlace& place, Imported* out);

absl::Status ReadVllm(const CommandLine& command, const ImportPlace& place, Imported* out);
absl::Status ReadVllmYaml(std::string_view yaml, const ImportPlace& place, Imported* out);
// The arguments of an engine as settings, as a model repository's model.json has them.
void ReadVllmArguments(const std::vector<Setting>& settings, const ImportPlace& place, size_t model,
                       Imported* out);

absl::Status ReadModelfile(std::string_view text, const ImportPlace& place, Imported* out);
absl::Status ReadOllamaStore(const std::string& folder, const ImportPlace& place, Imported* out);
absl::Status ReadOllama(const CommandLine& command, const ImportPlace& place, Imported* out);

absl::Status ReadTritonRepository(const std::string& folder, const ImportPlace& place,
                                  Imported* out);
absl::Status ReadTriton(const CommandLine& command, const ImportPlace& place, Imported* out);

// An INI file of our own keys: [memory] device_budget = 6GiB, and a section [model NAME] for each.
absl::Status ReadOwnIni(std::string_view ini, const ImportPlace& place, Imported* out);
// True if a section is named like one of ours.
bool IsOwnIni(const std::vector<IniSection>& sections);

}  // namespace terrace::cli

#endif  // TERRACE_CLI_CONFIG_IMPORT_READERS_H_
