// What was read of another server's configuration, on its way into terrace.yaml. Every setting that
// a reader meets is either taken over into a key of ours or listed with the reason why not: nothing
// is lost silently. A value that our key would refuse is such a reason, so what is written is
// valid.
#ifndef TERRACE_CLI_CONFIG_IMPORT_IMPORTED_H_
#define TERRACE_CLI_CONFIG_IMPORT_IMPORTED_H_

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace terrace::cli {

// A setting as the other server writes it.
struct Setting {
  std::string name;   // "ctx-size"
  std::string value;  // empty for a switch that is only named
  std::string where;  // "models.ini:4"
};

// The value as it may be shown: not that of a key or a password.
std::string Shown(const Setting& setting);

class Imported {
 public:
  struct Taken {
    Setting setting;
    std::string as;      // "models[chat].max_context"
    std::string value;   // ours
    std::string remark;  // what differs in meaning; may be empty
  };
  struct Left {
    Setting setting;
    std::string why;
  };

  // `folder`: relative paths are meant from here.
  explicit Imported(std::string folder = ".") : folder_(std::move(folder)) {}

  // Puts a value into a key outside of `models`. Of numbers of sequences and the like, where two
  // models of another server each have their own, the larger one is kept.
  void Take(const Setting& setting, std::string_view key, const std::string& value,
            std::string_view remark = "");
  void Leave(const Setting& setting, std::string_view why);

  // A new model; its number. A name that our keys would refuse is changed, one that is there
  // already gets a number.
  size_t AddModel(const Setting& setting, const std::string& name);
  void TakeFor(size_t model, const Setting& setting, std::string_view key, const std::string& value,
               std::string_view remark = "");
  // Where it is: a path is made absolute from `folder` and looked at, s3:, http: and https: URLs
  // stay, and what must be fetched first (hf:owner/name) becomes a name in the store and a step.
  void TakeSource(size_t model, const Setting& setting, const std::string& source,
                  const std::string& folder);
  bool HasSource(size_t model) const;
  const std::string& ModelName(size_t model) const { return models_[model].at("name"); }
  size_t model_count() const { return models_.size(); }
  // Ports of ours that meet one that was taken over give way to it; and what who listens beyond
  // this machine needs becomes a step. Once, at the end.
  void Settle();
  // Models without a source cannot be served: they are taken out and listed.
  void DropModelsWithoutSource();

  // Something to do before the server starts.
  void AddStep(std::string step) { steps_.push_back(std::move(step)); }

  const std::vector<Taken>& taken() const { return taken_; }
  const std::vector<Left>& left() const { return left_; }
  const std::vector<std::string>& steps() const { return steps_; }
  // terrace.yaml; what was left, and the steps, stand in it as comments. Internal if it is not
  // valid, which would be our fault.
  absl::StatusOr<std::string> Yaml(const std::string& source) const;

 private:
  using Keys = std::map<std::string, std::string, std::less<>>;

  const std::string folder_;
  Keys keys_;
  std::vector<Keys> models_;
  std::vector<Taken> taken_;
  std::vector<Left> left_;
  std::vector<std::string> steps_;
};

}  // namespace terrace::cli

#endif  // TERRACE_CLI_CONFIG_IMPORT_IMPORTED_H_
