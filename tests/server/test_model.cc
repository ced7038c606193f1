#include "test_model.h"

#include <fmt/format.h>

#include <cstdlib>
#include <iostream>

#include "base/status.h"
#include "text/byte_level.h"
#include "text/detokenizer.h"

namespace terrace::server {
namespace {

constexpr std::string_view kChatMl =
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% if m.tool_calls %}{% for c in m.tool_calls %}<call>{{ c.function.name }} "
    "{{ c.function.arguments | tojson }}</call>{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

const RealClock& TestClock() {
  static const RealClock clock;
  return clock;
}

}  // namespace

Metadata TestMetadata(const TestModelOptions& options) {
  const ByteLevelAlphabet alphabet;
  std::vector<std::string> tokens;
  std::vector<int64_t> types;
  for (int byte = 0; byte < 256; ++byte) {
    tokens.push_back(alphabet.Spelling(static_cast<uint8_t>(byte)));
    types.push_back(static_cast<int64_t>(TokenType::kNormal));
  }
  for (std::string_view control : {"<s>", "<|im_start|>", "<|im_end|>"}) {
    tokens.emplace_back(control);
    types.push_back(static_cast<int64_t>(TokenType::kControl));
  }
  tokens.emplace_back("qqq");
  types.push_back(static_cast<int64_t>(TokenType::kNormal));
  if (options.fill_tokens) {
    for (std::string_view control : {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"}) {
      tokens.emplace_back(control);
      types.push_back(static_cast<int64_t>(TokenType::kControl));
    }
  }
  Metadata metadata;
  metadata.Set("tokenizer.ggml.model", std::string("gpt2"));
  metadata.Set("tokenizer.ggml.pre", std::string("gpt-2"));
  metadata.Set("tokenizer.ggml.tokens", tokens);
  metadata.Set("tokenizer.ggml.token_type", types);
  metadata.Set("tokenizer.ggml.merges", std::vector<std::string>{"q qq"});
  metadata.Set("tokenizer.ggml.bos_token_id", int64_t{kBos});
  metadata.Set("tokenizer.ggml.eos_token_id", int64_t{kEnd});
  metadata.Set("tokenizer.ggml.add_bos_token", options.add_bos);
  if (!options.no_template) {
    metadata.Set("tokenizer.chat_template",
                 options.chat_template.empty() ? std::string(kChatMl) : options.chat_template);
  }
  return metadata;
}

std::shared_ptr<const ServedModel> MakeTestModel(const TestModelOptions& options) {
  auto model = ServedModel::Create({.name = options.name,
                                    .created = 1'700'000'000,
                                    .max_context = options.max_context,
                                    .vocab_size = kTestVocab},
                                   TestMetadata(options), &TestClock());
  if (!model.ok()) {
    std::cerr << "test model: " << Message(model.status()) << "\n";
    std::abort();
  }
  return *model;
}

std::vector<int32_t> Bytes(std::string_view text) {
  std::vector<int32_t> ids;
  for (char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

std::string Spell(const std::vector<int32_t>& ids) {
  static const auto model = MakeTestModel();
  return Decode(model->tokenizer(), ids, {.render_special = true});
}

void TestModels::Add(std::shared_ptr<const ServedModel> model) {
  absl::MutexLock lock(&mutex_);
  models_.push_back(std::move(model));
}

void TestModels::Break(const std::string& name, absl::Status reason) {
  absl::MutexLock lock(&mutex_);
  if (reason.ok()) {
    broken_.erase(name);
  } else {
    broken_[name] = std::move(reason);
  }
}

std::shared_ptr<const ServedModel> TestModels::TryGet(std::string_view name) {
  absl::MutexLock lock(&mutex_);
  if (broken_.contains(name)) return nullptr;
  for (const auto& model : models_) {
    if (model->name() == name) return model;
  }
  return nullptr;
}

void TestModels::Open(std::string_view name, OpenCallback done) {
  if (auto model = TryGet(name)) return done(model);
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    std::string names;
    for (const auto& model : models_) names += (names.empty() ? "" : ", ") + model->name();
    status = absl::NotFoundError(
        fmt::format("There is no model \"{}\"; this server has: {}.", name, names));
    if (auto broken = broken_.find(name); broken != broken_.end()) status = broken->second;
  }
  done(status);
}

std::vector<ModelListing> TestModels::List() {
  absl::MutexLock lock(&mutex_);
  std::vector<ModelListing> list;
  for (const auto& model : models_) {
    auto broken = broken_.find(model->name());
    const bool failed = broken != broken_.end();
    list.push_back({.name = model->name(),
                    .state = failed ? ModelStateKind::kFailed : ModelStateKind::kReady,
                    .reason = failed ? std::string(Message(broken->second)) : "",
                    .created = model->created(),
                    .max_context = model->max_context()});
  }
  return list;
}

}  // namespace terrace::server
