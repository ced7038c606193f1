#include "server/kserve_translate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <cstring>
#include <utility>

#include "base/text.h"
#include "server/json_fields.h"

namespace terrace::server::kserve {
namespace {

namespace json = boost::json;

constexpr TensorInfo kInputs[] = {
    {"text_input", "BYTES", true, "prompts, each a text"},
    {"input_ids", "INT32", true, "one prompt as token ids, instead of text_input"},
    {"max_tokens", "INT32", false, "most tokens of an answer"},
    {"temperature", "FP32", false, "0: always the likeliest token"},
    {"top_p", "FP32", false, ""},
    {"top_k", "INT32", false, ""},
    {"min_p", "FP32", false, ""},
    {"repetition_penalty", "FP32", false, ""},
    {"presence_penalty", "FP32", false, ""},
    {"frequency_penalty", "FP32", false, ""},
    {"seed", "INT64", false, ""},
    {"stop", "BYTES", true, "texts that end an answer"},
    {"stream", "BOOL", false, "answers come in pieces"},
    {"sampling_parameters", "BYTES", false, "any of these as the text of a JSON object"},
};
constexpr TensorInfo kOutputs[] = {
    {"text_output", "BYTES", true, "the answers, one a prompt"},
    {"finish_reason", "BYTES", true, "stop or length, one a prompt"},
    {"prompt_tokens", "INT32", false, "of all prompts"},
    {"completion_tokens", "INT32", false, "of all answers"},
    {"log_probs", "FP32", true, "of each token of the only answer; only if asked for"},
};
// What the protocol and Triton reserve for themselves, and what is read elsewhere.
constexpr std::array<std::string_view, 9> kReserved = {
    "priority",           "timeout",     "sequence_id", "sequence_start", "sequence_end",
    "binary_data_output", "binary_data", "chat",        "headers"};

json::string Text(std::string_view text) { return json::string(text.data(), text.size()); }
std::string_view View(const json::string& text) { return {text.data(), text.size()}; }

template <typename T>
T At(const Tensor& tensor, size_t index) {
  T value;
  std::memcpy(&value, tensor.data.data() + index * sizeof value, sizeof value);
  return value;
}

std::optional<json::value> NumberAt(const Tensor& tensor, size_t index) {
  const std::string& type = tensor.datatype;
  if (type == "BOOL") return tensor.data[index] != 0;
  if (type == "INT8") return int64_t{At<int8_t>(tensor, index)};
  if (type == "UINT8") return int64_t{At<uint8_t>(tensor, index)};
  if (type == "INT16") return int64_t{At<int16_t>(tensor, index)};
  if (type == "UINT16") return int64_t{At<uint16_t>(tensor, index)};
  if (type == "INT32") return int64_t{At<int32_t>(tensor, index)};
  if (type == "UINT32") return int64_t{At<uint32_t>(tensor, index)};
  if (type == "INT64") return At<int64_t>(tensor, index);
  if (type == "UINT64") return At<uint64_t>(tensor, index);
  if (type == "FP32") return static_cast<double>(At<float>(tensor, index));
  if (type == "FP64") return At<double>(tensor, index);
  return std::nullopt;
}

// A tensor's elements as JSON values.
std::optional<ApiError> Elements(const Tensor& tensor, json::array* out) {
  const std::string field = fmt::format("inputs[\"{}\"]", tensor.name);
  if (tensor.datatype == "BYTES") {
    for (const std::string_view text : BytesElements(tensor)) {
      if (!IsValidUtf8(text)) return BadField(field, field + ": the text is not UTF-8.");
      out->emplace_back(Text(text));
    }
    return std::nullopt;
  }
  const size_t count = tensor.data.size() / static_cast<size_t>(ElementBytes(tensor.datatype));
  for (size_t i = 0; i < count; ++i) {
    auto number = NumberAt(tensor, i);
    if (!number) {
      return BadField(field, fmt::format("{}: datatype {} is not read here; see the model's "
                                         "metadata.",
                                         field, tensor.datatype));
    }
    out->push_back(std::move(*number));
  }
  return std::nullopt;
}

std::optional<ApiError> Merge(std::string_view text, json::object* body) {
  json::value parsed;
  if (auto error = ParseObject(text, &parsed)) {
    error->param = "sampling_parameters";
    error->message = "sampling_parameters: " + error->message;
    return error;
  }
  for (auto& [key, value] : parsed.get_object()) (*body)[key] = std::move(value);
  return std::nullopt;
}

std::optional<ApiError> ReadInput(const Tensor& tensor, json::object* body) {
  if (auto error = CheckTensor(tensor)) return error;
  const auto* info = std::find_if(std::begin(kInputs), std::end(kInputs),
                                  [&](const TensorInfo& each) { return each.name == tensor.name; });
  const std::string field = fmt::format("inputs[\"{}\"]", tensor.name.substr(0, 64));
  if (info == std::end(kInputs)) {
    std::vector<std::string> names;
    for (const TensorInfo& each : kInputs) names.emplace_back(each.name);
    return BadField(field, fmt::format("There is no input \"{}\"; there are {}.",
                                       tensor.name.substr(0, 64), fmt::join(names, ", ")));
  }
  if ((info->datatype == "BYTES") != (tensor.datatype == "BYTES")) {
    return BadField(
        field, fmt::format("{} has datatype {}, not {}.", field, info->datatype, tensor.datatype));
  }
  json::array values;
  if (auto error = Elements(tensor, &values)) return error;
  if (tensor.name == "text_input" || tensor.name == "input_ids") {
    if (body->contains("prompt")) {
      return BadField(field, "Give text_input or input_ids, not both.");
    }
    (*body)["prompt"] = std::move(values);
    return std::nullopt;
  }
  if (tensor.name == "stop") {
    (*body)["stop"] = std::move(values);
    return std::nullopt;
  }
  if (values.size() != 1) {
    return BadField(field, fmt::format("{} has one element, not {}.", field, values.size()));
  }
  if (tensor.name == "sampling_parameters") return Merge(View(values[0].get_string()), body);
  (*body)[tensor.name] = std::move(values[0]);
  return std::nullopt;
}

bool Wants(const InferRequest& request, std::string_view output) {
  if (request.outputs.empty()) return output != "log_probs";
  return std::find(request.outputs.begin(), request.outputs.end(), output) != request.outputs.end();
}

void TakeParameters(const InferRequest& request, json::object* body) {
  for (const auto& [name, value] : request.parameters) {
    if (std::find(kReserved.begin(), kReserved.end(), name) != kReserved.end() ||
        name.starts_with("triton_") || body->contains(name)) {
      continue;
    }
    std::visit(
        [&](const auto& each) {
          if constexpr (std::is_same_v<std::decay_t<decltype(each)>, std::string>) {
            (*body)[name] = Text(ToValidUtf8(each));
          } else {
            (*body)[name] = each;
          }
        },
        value);
  }
}

std::optional<ApiError> AsChat(json::object* body) {
  const json::array& prompts = (*body)["prompt"].get_array();
  if (prompts.size() != 1 || !prompts[0].is_string()) {
    return BadField("text_input", "With chat, text_input has one element.");
  }
  json::object message = {{"role", "user"}, {"content", prompts[0]}};
  (*body)["messages"] = json::array{std::move(message)};
  body->erase("prompt");
  return std::nullopt;
}

struct Answer {
  json::array texts;
  json::array reasons;
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  std::vector<float> log_probs;
};

void ReadLogProbs(const json::object& choice, std::vector<float>* out) {
  const json::value* found = choice.if_contains("logprobs");
  if (found == nullptr || !found->is_object()) return;
  const json::object& report = found->get_object();
  auto add = [out](const json::value& value) {
    out->push_back(value.is_number() ? value.to_number<float>() : 0.0f);
  };
  if (const json::value* list = report.if_contains("token_logprobs"); list && list->is_array()) {
    for (const json::value& each : list->get_array()) add(each);
  }
  if (const json::value* list = report.if_contains("content"); list && list->is_array()) {
    for (const json::value& each : list->get_array()) add(each.at("logprob"));
  }
}

// The choices of a whole answer or of an event.
void ReadChoices(const json::object& body, Answer* answer) {
  const json::value* choices = body.if_contains("choices");
  if (choices == nullptr || !choices->is_array()) return;
  for (const json::value& each : choices->get_array()) {
    const json::object& choice = each.as_object();
    const json::value* text = choice.if_contains("text");
    for (const char* name : {"message", "delta"}) {
      if (const json::value* part = choice.if_contains(name); part && part->is_object()) {
        text = part->get_object().if_contains("content");
      }
    }
    answer->texts.push_back(text != nullptr && text->is_string() ? *text : json::value(""));
    const json::value* reason = choice.if_contains("finish_reason");
    answer->reasons.push_back(reason && reason->is_string() ? *reason : json::value(""));
    ReadLogProbs(choice, &answer->log_probs);
  }
}

void ReadUsage(const json::object& body, Answer* answer) {
  const json::value* usage = body.if_contains("usage");
  if (usage == nullptr || !usage->is_object()) return;
  answer->prompt_tokens = usage->at("prompt_tokens").to_number<int64_t>();
  answer->completion_tokens = usage->at("completion_tokens").to_number<int64_t>();
}

Tensor BytesTensor(std::string_view name, const json::array& values) {
  Tensor tensor{.name = std::string(name),
                .datatype = "BYTES",
                .shape = {static_cast<int64_t>(values.size())}};
  for (const json::value& value : values) tensor.AppendBytes(View(value.get_string()));
  return tensor;
}

Tensor IntTensor(std::string_view name, int64_t value) {
  Tensor tensor{.name = std::string(name), .datatype = "INT32", .shape = {1}};
  tensor.Append(static_cast<int32_t>(value));
  return tensor;
}

void Fill(const InferRequest& request, const Answer& answer, bool with_counts, InferResponse* out) {
  out->model = request.model;
  out->version = request.version.empty() ? "1" : request.version;
  out->id = request.id;
  auto add = [out](Tensor tensor) { out->outputs.push_back(std::move(tensor)); };
  if (Wants(request, "text_output")) add(BytesTensor("text_output", answer.texts));
  if (Wants(request, "finish_reason")) add(BytesTensor("finish_reason", answer.reasons));
  if (with_counts && Wants(request, "prompt_tokens")) {
    add(IntTensor("prompt_tokens", answer.prompt_tokens));
  }
  if (with_counts && Wants(request, "completion_tokens")) {
    add(IntTensor("completion_tokens", answer.completion_tokens));
  }
  if (Wants(request, "log_probs")) {
    Tensor tensor{.name = "log_probs",
                  .datatype = "FP32",
                  .shape = {static_cast<int64_t>(answer.log_probs.size())}};
    for (const float value : answer.log_probs) tensor.Append(value);
    add(std::move(tensor));
  }
}

std::optional<json::object> ParseAnswer(std::string_view text) {
  json::error_code ec;
  json::value value = json::parse(json::string_view(text.data(), text.size()), ec);
  if (ec || !value.is_object()) return std::nullopt;
  return std::move(value.get_object());
}

ApiError ErrorOf(int status, const json::object& body) {
  ApiError error{.status = status, .code = "internal_error", .message = "The request failed."};
  const json::value* found = body.if_contains("error");
  if (found == nullptr || !found->is_object()) return error;
  const json::object& fields = found->get_object();
  auto take = [&](const char* name, std::string* out) {
    const json::value* value = fields.if_contains(name);
    if (value != nullptr && value->is_string()) *out = View(value->get_string());
  };
  take("message", &error.message);
  take("code", &error.code);
  take("param", &error.param);
  return error;
}

}  // namespace

std::span<const TensorInfo> InputTensors() { return kInputs; }
std::span<const TensorInfo> OutputTensors() { return kOutputs; }

std::optional<ApiError> Translate(const InferRequest& request, bool may_stream, Translation* out) {
  json::object body;
  for (const Tensor& tensor : request.inputs) {
    if (auto error = ReadInput(tensor, &body)) return error;
  }
  if (!body.contains("prompt") || body["prompt"].as_array().empty()) {
    return BadField("inputs", "The input text_input (or input_ids) is missing or empty.");
  }
  for (const std::string& name : request.outputs) {
    const bool known = std::any_of(std::begin(kOutputs), std::end(kOutputs),
                                   [&](const TensorInfo& each) { return each.name == name; });
    if (!known) {
      return BadField("outputs", fmt::format("There is no output \"{}\"; the model's metadata "
                                             "lists them.",
                                             ToValidUtf8(name.substr(0, 64))));
    }
  }
  TakeParameters(request, &body);
  const json::value* stream = body.if_contains("stream");
  out->stream = stream != nullptr && stream->is_bool() && stream->get_bool();
  if (out->stream && !may_stream) {
    return BadField("stream",
                    "Only generate_stream and the gRPC stream answer in pieces; leave "
                    "stream out.");
  }
  const auto chat = request.parameters.find("chat");
  const bool as_chat = chat != request.parameters.end() &&
                       std::holds_alternative<bool>(chat->second) && std::get<bool>(chat->second);
  const json::array& prompts = body["prompt"].get_array();
  const size_t texts = prompts[0].is_string() ? prompts.size() : 1;
  const bool log_probs = Wants(request, "log_probs");
  if ((log_probs || out->stream) && texts != 1) {
    return BadField("text_input", "Streams and log_probs are for one prompt at a time.");
  }
  if (as_chat) {
    if (auto error = AsChat(&body)) return error;
    if (log_probs) body["logprobs"] = true;
  } else if (log_probs) {
    body["logprobs"] = 0;
  }
  body["model"] = Text(request.model);
  if (out->stream) body["stream_options"] = {{"include_usage", true}};
  out->path = as_chat ? "/v1/chat/completions" : "/v1/completions";
  out->body = json::serialize(body);
  return std::nullopt;
}

std::optional<ApiError> ReadWhole(const InferRequest& request, std::string_view body,
                                  InferResponse* out) {
  const std::optional<json::object> parsed = ParseAnswer(body);
  if (!parsed) return ApiError{.code = "internal_error", .message = "The answer is not JSON."};
  Answer answer;
  ReadChoices(*parsed, &answer);
  ReadUsage(*parsed, &answer);
  Fill(request, answer, true, out);
  return std::nullopt;
}

bool ReadEvent(const InferRequest& request, std::string_view data, InferResponse* out,
               std::optional<ApiError>* error) {
  if (data == "[DONE]") return false;
  const std::optional<json::object> parsed = ParseAnswer(data);
  if (!parsed) return false;
  if (parsed->contains("error")) {
    *error = ErrorOf(500, *parsed);
    return false;
  }
  Answer answer;
  ReadChoices(*parsed, &answer);
  ReadUsage(*parsed, &answer);
  const bool counts = answer.texts.empty() && answer.completion_tokens > 0;
  if (answer.texts.empty() && !counts) return false;
  if (counts) {
    answer.texts.emplace_back("");
    answer.reasons.emplace_back("");
  }
  // The event that only tells the role.
  const bool silent = answer.texts[0].get_string().empty() &&
                      answer.reasons[0].get_string().empty() && answer.log_probs.empty();
  if (silent && !counts) return false;
  Fill(request, answer, counts, out);
  return true;
}

ApiError ReadError(int status, std::string_view body) {
  const std::optional<json::object> parsed = ParseAnswer(body);
  return ErrorOf(status, parsed.value_or(json::object()));
}

}  // namespace terrace::server::kserve
