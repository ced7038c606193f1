// A model for tests of the server: a byte-level vocabulary small enough to read, with a chat
// template.
#ifndef TERRACE_TESTS_SERVER_TEST_MODEL_H_
#define TERRACE_TESTS_SERVER_TEST_MODEL_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "base/metadata.h"
#include "server/model_source.h"
#include "server/served_model.h"

namespace terrace::server {

// Ids 0 to 255 are the bytes; then a few merges and the control tokens below.
inline constexpr int32_t kBos = 256;
inline constexpr int32_t kTurn = 257;  // <|im_start|>
inline constexpr int32_t kEnd = 258;   // <|im_end|>, the end token
inline constexpr int32_t kTestVocab = 300;
inline constexpr int32_t kTestContext = 512;

struct TestModelOptions {
  std::string name = "tiny";
  bool add_bos = true;
  std::string chat_template;  // empty: ChatML
  bool no_template = false;
  bool fill_tokens = false;  // 260 to 262: before, behind, middle
  int32_t max_context = kTestContext;
};

Metadata TestMetadata(const TestModelOptions& options);
std::shared_ptr<const ServedModel> MakeTestModel(const TestModelOptions& options = {});

// The token ids of `text`, a byte each: what a scripted answer says.
std::vector<int32_t> Bytes(std::string_view text);
// The text of `ids`, control tokens spelled out.
std::string Spell(const std::vector<int32_t>& ids);

// Models at hand; one may be set to fail.
class TestModels final : public ModelSource {
 public:
  void Add(std::shared_ptr<const ServedModel> model);
  // `name` is in the list but cannot be opened, for `reason`; OK: it can from now on.
  void Break(const std::string& name, absl::Status reason);

  std::shared_ptr<const ServedModel> TryGet(std::string_view name) override;
  void Open(std::string_view name, OpenCallback done) override;
  std::vector<ModelListing> List() override;

 private:
  absl::Mutex mutex_;
  std::vector<std::shared_ptr<const ServedModel>> models_;
  std::map<std::string, absl::Status, std::less<>> broken_;
};

}  // namespace terrace::server

#endif  // TERRACE_TESTS_SERVER_TEST_MODEL_H_
