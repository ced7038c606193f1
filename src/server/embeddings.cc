#include "server/embeddings.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <boost/json/array.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"
#include "server/json_fields.h"
#include "server/json_text.h"
#include "server/openai_plan.h"

namespace terrace::server {
namespace {

namespace json = boost::json;

std::string_view Text(const json::value& value) {
  const json::string& text = value.get_string();
  return {text.data(), text.size()};
}

std::string Base64(std::string_view bytes) {
  constexpr std::string_view kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t count = std::min<size_t>(3, bytes.size() - i);
    uint32_t word = 0;
    for (size_t j = 0; j < 3; ++j) {
      word = word << 8 | (j < count ? static_cast<uint8_t>(bytes[i + j]) : 0u);
    }
    for (size_t j = 0; j < 4; ++j) {
      out += j <= count ? kLetters[word >> (18 - 6 * j) & 63] : '=';
    }
  }
  return out;
}

void Normalize(std::vector<float>* vector) {
  double sum = 0;
  for (float x : *vector) sum += static_cast<double>(x) * x;
  if (sum <= 0) return;
  const auto scale = static_cast<float>(1 / std::sqrt(sum));
  for (float& x : *vector) x *= scale;
}

// All inputs of one request under way. Owns itself through its sinks (hence shared_ptr).
class Embedding : public std::enable_shared_from_this<Embedding> {
 public:
  Embedding(EmbeddingRequest request, std::shared_ptr<const ServedModel> model, std::string id,
            scheduler::Scheduler* scheduler, std::shared_ptr<Exchange> exchange)
      : request_(std::move(request)),
        model_(std::move(model)),
        id_(std::move(id)),
        scheduler_(scheduler),
        exchange_(std::move(exchange)),
        judges_(request_.rerank && model_->judge().has_value()),
        vectors_(request_.inputs.size()) {}

  void Submit(std::vector<std::vector<int32_t>> prompts) {
    for (const auto& prompt : prompts) tokens_ += static_cast<int32_t>(prompt.size());
    {
      absl::MutexLock lock(&mutex_);
      left_ = prompts.size();
      scores_.resize(prompts.size());
    }
    for (size_t i = 0; i < prompts.size(); ++i) {
      auto request = std::make_unique<Request>();
      request->id = RequestId(i);
      request->model = model_->name();
      request->prompt = std::move(prompts[i]);
      request->tenant = exchange_->request().caller.tenant;
      request->sla = exchange_->request().caller.sla;
      request->swap = exchange_->request().caller.swap;
      request->embed = !judges_;
      request->uniform = true;
      if (judges_) {
        request->sampling.temperature = 0;
        request->sampling.top_logprobs = 2;
        request->constraint = OnlyAnswers(*model_->judge());
      }
      request->max_tokens = 1;
      request->sink = std::make_unique<Sink>(shared_from_this(), i);
      if (absl::Status status = scheduler_->Submit(std::move(request)); !status.ok()) {
        CancelAll();
        Fail(FromStatus(status));
        return;
      }
    }
    exchange_->OnGone([weak = weak_from_this()] {
      if (auto self = weak.lock()) self->CancelAll();
    });
  }

 private:
  class Sink final : public TokenSink {
   public:
    Sink(std::shared_ptr<Embedding> owner, size_t index)
        : owner_(std::move(owner)), index_(index) {}
    bool OnToken(const TokenEvent& event) override {
      owner_->Judge(index_, event);
      return false;
    }
    void OnEmbedding(std::span<const float> state) override { owner_->Take(index_, state); }
    void OnFinish(const FinishInfo& info) override {
      owner_->Finish(info);
      owner_.reset();
    }

   private:
    std::shared_ptr<Embedding> owner_;
    const size_t index_;
  };

  std::string RequestId(size_t i) const { return fmt::format("{}-{}", id_, i); }
  void CancelAll() {
    for (size_t i = 0; i < request_.inputs.size(); ++i) scheduler_->Cancel(RequestId(i));
  }

  void Take(size_t index, std::span<const float> state) {
    std::vector<float> vector(state.begin(), state.end());
    if (request_.dimensions) {
      vector.resize(std::min(vector.size(), static_cast<size_t>(*request_.dimensions)));
    }
    Normalize(&vector);
    absl::MutexLock lock(&mutex_);
    width_ = state.size();
    vectors_[index] = std::move(vector);
  }

  void Judge(size_t index, const TokenEvent& event) {
    const float share = YesShare(*model_->judge(), event);
    absl::MutexLock lock(&mutex_);
    scores_[index] = share;
  }

  void Finish(const FinishInfo& info) {
    std::optional<ApiError> error;
    {
      absl::MutexLock lock(&mutex_);
      --left_;
      if (closed_) return;
      if (info.reason != FinishReason::kStop) {
        error = FromStatus(info.status.ok() ? absl::CancelledError("The request was cancelled.")
                                            : info.status);
      } else if (left_ > 0) {
        return;
      } else if (!judges_ && request_.dimensions &&
                 static_cast<size_t>(*request_.dimensions) > width_) {
        error = BadField("dimensions", fmt::format("dimensions: the vectors of {} have {}.",
                                                   model_->name(), width_));
      } else {
        closed_ = true;
        AccessRecord& record = exchange_->access();
        record.prompt_tokens = tokens_;
        record.queue_us = info.timings.queue_us;
        record.prefill_us = info.timings.prefill_us;
        exchange_->Respond({.body = request_.rerank ? RankingLocked() : VectorsLocked()});
        return;
      }
    }
    Fail(*error);
    CancelAll();
  }

  void Fail(const ApiError& error) {
    absl::MutexLock lock(&mutex_);
    if (std::exchange(closed_, true)) return;
    exchange_->access().error_code = error.code;
    exchange_->Respond(ErrorResponse(error));
  }

  std::string VectorsLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::string out = "{\"object\":\"list\",\"data\":[";
    for (size_t i = 0; i < vectors_.size(); ++i) {
      out += fmt::format(
          "{}{{\"object\":\"embedding\",\"index\":{},\"embedding\":", i == 0 ? "" : ",", i);
      if (request_.base64) {
        static_assert(std::endian::native == std::endian::little);
        out += '"';
        out += Base64({reinterpret_cast<const char*>(vectors_[i].data()),
                       vectors_[i].size() * sizeof(float)});
        out += '"';
      } else {
        out += '[';
        for (size_t j = 0; j < vectors_[i].size(); ++j) {
          if (j > 0) out += ',';
          AppendJsonNumber(vectors_[i][j], &out);
        }
        out += ']';
      }
      out += '}';
    }
    out += fmt::format("],\"model\":{},\"usage\":{{\"prompt_tokens\":{},\"total_tokens\":{}}}}}",
                       JsonString(model_->name()), tokens_, tokens_);
    return out;
  }

  std::string RankingLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const size_t count = request_.inputs.size() - 1;
    std::vector<float> scores = scores_;
    scores.resize(count);
    for (size_t i = 0; !judges_ && i < count; ++i) {
      scores[i] =
          std::inner_product(vectors_[0].begin(), vectors_[0].end(), vectors_[i + 1].begin(), 0.0f);
    }
    std::vector<size_t> order(count);
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return scores[a] > scores[b]; });
    if (request_.top_n) order.resize(std::min(count, static_cast<size_t>(*request_.top_n)));
    std::string out = fmt::format("{{\"id\":{},\"model\":{},\"results\":[", JsonString(id_),
                                  JsonString(model_->name()));
    for (size_t i : order) {
      if (out.back() == '}') out += ',';
      out += fmt::format("{{\"index\":{},\"relevance_score\":", i);
      AppendJsonNumber(scores[i], &out);
      if (request_.return_documents) {
        out +=
            fmt::format(",\"document\":{{\"text\":{}}}", JsonString(request_.inputs[i + 1].text));
      }
      out += '}';
    }
    out +=
        fmt::format("],\"usage\":{{\"prompt_tokens\":{},\"total_tokens\":{}}}}}", tokens_, tokens_);
    return out;
  }

  const EmbeddingRequest request_;
  const std::shared_ptr<const ServedModel> model_;
  const std::string id_;
  scheduler::Scheduler* const scheduler_;
  const std::shared_ptr<Exchange> exchange_;
  const bool judges_;
  int32_t tokens_ = 0;

  absl::Mutex mutex_;
  std::vector<std::vector<float>> vectors_ ABSL_GUARDED_BY(mutex_);
  size_t width_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<float> scores_ ABSL_GUARDED_BY(mutex_);  // of documents, by a model that judges
  size_t left_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

// A text, token ids, or a list of texts or of token ids.
void ReadInputs(JsonFields* fields, std::vector<Prompt>* out) {
  const json::value* value = fields->Find("input");
  if (value == nullptr) return fields->FailField("input", "input is missing.", "missing_field");
  auto add = [&](const std::string& name, const json::value& each) {
    if (each.is_string() && !each.get_string().empty()) {
      out->push_back({.text = std::string(Text(each))});
    } else if (each.is_array() && !each.get_array().empty()) {
      Prompt prompt{.is_ids = true};
      for (const json::value& id : each.get_array()) {
        if (!id.is_int64() || id.get_int64() < 0 ||
            id.get_int64() > std::numeric_limits<int32_t>::max()) {
          return fields->FailField(name, fmt::format("{} must hold token ids only.", name));
        }
        prompt.ids.push_back(static_cast<int32_t>(id.get_int64()));
      }
      out->push_back(std::move(prompt));
    } else {
      fields->FailField(name, fmt::format("{} must be a text or token ids, and not empty.", name));
    }
  };
  const bool list =
      value->is_array() && !value->get_array().empty() && !value->get_array()[0].is_number();
  if (!list) return add("input", *value);
  const json::array& inputs = value->get_array();
  if (inputs.size() > kMaxInputs) {
    return fields->FailField("input", fmt::format("input takes at most {} texts.", kMaxInputs));
  }
  for (size_t i = 0; i < inputs.size() && fields->ok(); ++i) {
    add(fmt::format("input[{}]", i), inputs[i]);
  }
}

// A document: a text, or an object that holds it.
void ReadDocuments(JsonFields* fields, std::vector<Prompt>* out) {
  const json::value* value = fields->Find("documents");
  if (value == nullptr || !value->is_array()) {
    return fields->FailField("documents", "documents must be an array of texts.");
  }
  const json::array& list = value->get_array();
  if (list.empty() || list.size() >= kMaxInputs) {
    return fields->FailField("documents",
                             fmt::format("documents must hold 1 to {} texts.", kMaxInputs - 1));
  }
  for (size_t i = 0; i < list.size(); ++i) {
    const json::value* text = &list[i];
    if (text->is_object()) text = text->get_object().if_contains("text");
    if (text == nullptr || !text->is_string() || text->get_string().empty()) {
      return fields->FailField(fmt::format("documents[{}]", i),
                               fmt::format("documents[{}] must be a text, and not empty.", i));
    }
    out->push_back({.text = std::string(Text(*text))});
  }
}

}  // namespace

std::optional<ApiError> ParseEmbeddingRequest(std::string_view body, EmbeddingRequest* out) {
  json::value value;
  if (auto error = ParseObject(body, &value)) return error;
  JsonFields fields(value.get_object());
  fields.RequiredString("model", &out->model);
  ReadInputs(&fields, &out->inputs);
  std::string format = "float", user;
  fields.String("encoding_format", &format);
  if (format != "float" && format != "base64") {
    fields.FailField("encoding_format", "encoding_format must be \"float\" or \"base64\".");
  }
  out->base64 = format == "base64";
  fields.Int("dimensions", 1, std::numeric_limits<int32_t>::max(), &out->dimensions);
  fields.String("user", &user);
  return fields.TakeError();
}

std::optional<ApiError> ParseRerankRequest(std::string_view body, EmbeddingRequest* out) {
  json::value value;
  if (auto error = ParseObject(body, &value)) return error;
  JsonFields fields(value.get_object());
  fields.RequiredString("model", &out->model);
  std::string query;
  fields.RequiredString("query", &query);
  out->inputs.push_back({.text = std::move(query)});
  ReadDocuments(&fields, &out->inputs);
  fields.Int("top_n", 1, std::numeric_limits<int32_t>::max(), &out->top_n);
  fields.Bool("return_documents", &out->return_documents);
  fields.String("instruction", &out->instruction);
  out->rerank = true;
  return fields.TakeError();
}

void StartEmbedding(EmbeddingRequest request, std::shared_ptr<const ServedModel> model,
                    std::string id, scheduler::Scheduler* scheduler,
                    std::shared_ptr<Exchange> exchange) {
  auto fail = [&exchange](const ApiError& error) {
    exchange->access().error_code = error.code;
    exchange->Respond(ErrorResponse(error));
  };
  std::vector<std::vector<int32_t>> prompts;
  const std::string_view field = request.rerank ? "documents" : "input";
  const bool judges = request.rerank && model->judge();
  for (size_t i = judges ? 1 : 0; i < request.inputs.size(); ++i) {
    const Prompt& input = request.inputs[i];
    std::vector<int32_t> ids = input.ids;
    if (input.is_ids) {
      if (auto error = CheckIds(ids, field, model->vocab_size())) return fail(*error);
    } else {
      auto encoded = judges ? JudgePrompt(model->tokenizer(), request.instruction,
                                          request.inputs[0].text, input.text)
                            : model->EncodeWhole(input.text);
      if (!encoded.ok()) return fail(PromptError(encoded.status(), field));
      ids = *std::move(encoded);
    }
    // A model that generates keeps room for a token.
    const int32_t most = model->max_context() - (model->encoder() ? 0 : 1);
    if (ids.empty() || ids.size() > static_cast<size_t>(most)) {
      return fail(BadField(field,
                           fmt::format("{}: a text has {} tokens; {} takes 1 to {}.", field,
                                       ids.size(), model->name(), most),
                           "context_length_exceeded"));
    }
    prompts.push_back(std::move(ids));
  }
  auto embedding = std::make_shared<Embedding>(std::move(request), std::move(model), std::move(id),
                                               scheduler, std::move(exchange));
  embedding->Submit(std::move(prompts));
}

}  // namespace terrace::server
