#include "server/kserve_json.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "base/text.h"
#include "server/json_fields.h"
#include "server/json_text.h"

namespace terrace::server::kserve {
namespace {

namespace json = boost::json;

constexpr size_t kMaxTensors = 64;
constexpr size_t kMaxDimensions = 8;

std::string_view View(const json::string& text) { return {text.data(), text.size()}; }

std::optional<ApiError> ReadParameters(const json::object& object, const std::string& path,
                                       Parameters* out) {
  const json::value* found = object.if_contains("parameters");
  if (found == nullptr || found->is_null()) return std::nullopt;
  if (!found->is_object()) return BadField(path + "parameters", path + "parameters: no object.");
  for (const auto& entry : found->get_object()) {
    const std::string name(entry.key().data(), entry.key().size());
    const json::value& value = entry.value();
    if (value.is_bool()) {
      (*out)[name] = value.get_bool();
    } else if (value.is_int64()) {
      (*out)[name] = value.get_int64();
    } else if (value.is_uint64()) {
      (*out)[name] = static_cast<double>(value.get_uint64());
    } else if (value.is_double()) {
      (*out)[name] = value.get_double();
    } else if (value.is_string()) {
      (*out)[name] = std::string(View(value.get_string()));
    } else if (!value.is_null()) {
      return BadField(
          path + "parameters",
          fmt::format("{}parameters.{}: a parameter is a boolean, a number or a string.", path,
                      name));
    }
  }
  return std::nullopt;
}

template <typename T>
bool AppendNumber(const json::value& value, Tensor* tensor) {
  json::error_code ec;
  if constexpr (std::is_same_v<T, bool>) {
    if (!value.is_bool()) return false;
    tensor->Append(static_cast<uint8_t>(value.get_bool()));
    return true;
  } else {
    if (!value.is_number()) return false;
    const T number = value.to_number<T>(ec);
    if (!ec) tensor->Append(number);
    return !ec;
  }
}

bool AppendElement(const json::value& value, Tensor* tensor) {
  const std::string& type = tensor->datatype;
  if (type == "BYTES") {
    if (!value.is_string()) return false;
    tensor->AppendBytes(View(value.get_string()));
    return true;
  }
  if (type == "BOOL") return AppendNumber<bool>(value, tensor);
  if (type == "INT8") return AppendNumber<int8_t>(value, tensor);
  if (type == "UINT8") return AppendNumber<uint8_t>(value, tensor);
  if (type == "INT16") return AppendNumber<int16_t>(value, tensor);
  if (type == "UINT16") return AppendNumber<uint16_t>(value, tensor);
  if (type == "INT32") return AppendNumber<int32_t>(value, tensor);
  if (type == "UINT32") return AppendNumber<uint32_t>(value, tensor);
  if (type == "INT64") return AppendNumber<int64_t>(value, tensor);
  if (type == "UINT64") return AppendNumber<uint64_t>(value, tensor);
  if (type == "FP32") return AppendNumber<float>(value, tensor);
  if (type == "FP64") return AppendNumber<double>(value, tensor);
  return false;
}

// Nested lists are the same as flat ones.
bool AppendAll(const json::value& value, Tensor* tensor) {
  if (!value.is_array()) return AppendElement(value, tensor);
  for (const json::value& each : value.get_array()) {
    if (!AppendAll(each, tensor)) return false;
  }
  return true;
}

// `*rest`: the bytes behind the JSON that no tensor has taken yet.
std::optional<ApiError> ReadTensor(const json::value& value, const std::string& path,
                                   std::string_view* rest, Tensor* out) {
  if (!value.is_object()) return BadField(path, path + " must be an object.");
  const json::object& object = value.get_object();
  JsonFields fields(object, path + ".");
  fields.RequiredString("name", &out->name);
  fields.RequiredString("datatype", &out->datatype);
  if (auto error = fields.TakeError()) return error;
  const json::value* shape = object.if_contains("shape");
  if (shape == nullptr || !shape->is_array() || shape->get_array().size() > kMaxDimensions) {
    return BadField(path + ".shape", path + ".shape must be a list of up to 8 numbers.");
  }
  for (const json::value& dimension : shape->get_array()) {
    if (!dimension.is_int64()) return BadField(path + ".shape", path + ".shape: no number.");
    out->shape.push_back(dimension.get_int64());
  }
  Parameters parameters;
  if (auto error = ReadParameters(object, path + ".", &parameters)) return error;
  if (const auto size = parameters.find("binary_data_size"); size != parameters.end()) {
    const auto* bytes = std::get_if<int64_t>(&size->second);
    if (bytes == nullptr || *bytes < 0 || static_cast<uint64_t>(*bytes) > rest->size()) {
      return BadField(path, fmt::format("{}: binary_data_size is not what came: {} bytes are left "
                                        "behind the JSON.",
                                        path, rest->size()));
    }
    out->data = rest->substr(0, static_cast<size_t>(*bytes));
    rest->remove_prefix(static_cast<size_t>(*bytes));
    return CheckTensor(*out);
  }
  const json::value* data = object.if_contains("data");
  if (data == nullptr || !data->is_array()) {
    return BadField(path + ".data", path + ": give data, a list, or binary_data_size.");
  }
  if (!AppendAll(*data, out)) {
    return BadField(path + ".data", fmt::format("{}.data: an element is not {}.", path,
                                                ToValidUtf8(out->datatype.substr(0, 64))));
  }
  return CheckTensor(*out);
}

std::optional<ApiError> ReadOutputs(const json::object& body, InferRequest* out, OutputForm* form) {
  const json::value* outputs = body.if_contains("outputs");
  if (outputs == nullptr || outputs->is_null()) return std::nullopt;
  if (!outputs->is_array() || outputs->get_array().size() > kMaxTensors) {
    return BadField("outputs", "outputs must be a list of up to 64 entries.");
  }
  for (const json::value& each : outputs->get_array()) {
    if (!each.is_object()) return BadField("outputs", "outputs: an entry must be an object.");
    std::string name;
    JsonFields fields(each.get_object(), "outputs.");
    fields.RequiredString("name", &name);
    if (auto error = fields.TakeError()) return error;
    Parameters parameters;
    if (auto error = ReadParameters(each.get_object(), "outputs.", &parameters)) return error;
    if (const auto found = parameters.find("binary_data"); found != parameters.end()) {
      const bool* binary = std::get_if<bool>(&found->second);
      form->by_name[name] = binary != nullptr && *binary;
    }
    out->outputs.push_back(std::move(name));
  }
  return std::nullopt;
}

template <typename T, typename Out>
void AppendValues(const std::string& data, Out&& add) {
  for (size_t at = 0; at + sizeof(T) <= data.size(); at += sizeof(T)) {
    T value;
    std::memcpy(&value, data.data() + at, sizeof value);
    add(value);
  }
}

// The elements as JSON text, with commas.
std::string DataJson(const Tensor& tensor) {
  std::string out;
  auto comma = [&out] {
    if (!out.empty()) out.push_back(',');
  };
  if (tensor.datatype == "BYTES") {
    for (const std::string_view text : BytesElements(tensor)) {
      comma();
      AppendJsonString(ToValidUtf8(text), &out);
    }
  } else if (tensor.datatype == "FP32") {
    AppendValues<float>(tensor.data, [&](float value) {
      comma();
      AppendJsonNumber(value, &out);
    });
  } else {
    AppendValues<int32_t>(tensor.data, [&](int32_t value) {
      comma();
      out += fmt::format("{}", value);
    });
  }
  return out;
}

}  // namespace

std::optional<ApiError> ParseInfer(std::string_view body, std::string_view json_bytes,
                                   InferRequest* out, OutputForm* form) {
  std::string_view text = body, rest;
  if (!json_bytes.empty()) {
    size_t length = 0;
    const auto [end, ec] =
        std::from_chars(json_bytes.data(), json_bytes.data() + json_bytes.size(), length);
    if (ec != std::errc() || end != json_bytes.data() + json_bytes.size() || length > body.size()) {
      return BadField("", fmt::format("Inference-Header-Content-Length must be a number up to the "
                                      "body's {} bytes.",
                                      body.size()));
    }
    text = body.substr(0, length);
    rest = body.substr(length);
  }
  json::value parsed;
  if (auto error = ParseObject(text, &parsed)) return error;
  const json::object& object = parsed.get_object();
  JsonFields fields(object);
  fields.String("id", &out->id);
  if (auto error = fields.TakeError()) return error;
  if (auto error = ReadParameters(object, "", &out->parameters)) return error;
  if (const auto found = out->parameters.find("binary_data_output");
      found != out->parameters.end()) {
    const bool* binary = std::get_if<bool>(&found->second);
    form->all_binary = binary != nullptr && *binary;
  }
  const json::value* inputs = object.if_contains("inputs");
  if (inputs == nullptr || !inputs->is_array() || inputs->get_array().size() > kMaxTensors) {
    return BadField("inputs", "inputs must be a list of up to 64 tensors.");
  }
  for (const json::value& each : inputs->get_array()) {
    Tensor tensor;
    const std::string path = fmt::format("inputs[{}]", out->inputs.size());
    if (auto error = ReadTensor(each, path, &rest, &tensor)) return error;
    out->inputs.push_back(std::move(tensor));
  }
  if (!rest.empty()) {
    return BadField("inputs",
                    fmt::format("{} bytes behind the JSON belong to no tensor.", rest.size()));
  }
  return ReadOutputs(object, out, form);
}

std::optional<ApiError> ParseGenerate(std::string_view body, bool stream, InferRequest* out) {
  json::value parsed;
  if (auto error = ParseObject(body, &parsed)) return error;
  json::object& object = parsed.get_object();
  std::string text;
  JsonFields fields(object);
  fields.RequiredString("text_input", &text);
  fields.String("id", &out->id);
  if (auto error = fields.TakeError()) return error;
  Tensor input{.name = "text_input", .datatype = "BYTES", .shape = {1}};
  input.AppendBytes(text);
  out->inputs.push_back(std::move(input));
  // Everything else is a sampling parameter, wherever it stands.
  json::object sampling;
  for (const auto& entry : object) {
    if (entry.key() != "text_input" && entry.key() != "id" && entry.key() != "parameters") {
      sampling[entry.key()] = entry.value();
    }
  }
  if (const json::value* more = object.if_contains("parameters"); more && more->is_object()) {
    for (const auto& entry : more->get_object()) sampling[entry.key()] = entry.value();
  }
  if (const json::value* chat = sampling.if_contains("chat"); chat && chat->is_bool()) {
    out->parameters["chat"] = chat->get_bool();
    sampling.erase("chat");
  }
  if (stream) {
    sampling["stream"] = true;
  } else {
    sampling.erase("stream");
  }
  Tensor parameters{.name = "sampling_parameters", .datatype = "BYTES", .shape = {1}};
  parameters.AppendBytes(json::serialize(sampling));
  out->inputs.push_back(std::move(parameters));
  return std::nullopt;
}

HttpResponse InferHttp(const InferResponse& response, const OutputForm& form) {
  HttpResponse http;
  std::string text = "{\"model_name\":" + JsonString(response.model) +
                     ",\"model_version\":" + JsonString(response.version);
  if (!response.id.empty()) text += ",\"id\":" + JsonString(response.id);
  text += ",\"outputs\":[";
  std::string binary;
  bool has_binary = false;
  for (const Tensor& tensor : response.outputs) {
    if (text.back() == '}') text.push_back(',');
    text += fmt::format("{{\"name\":{},\"datatype\":\"{}\",\"shape\":[{}]", JsonString(tensor.name),
                        tensor.datatype, fmt::join(tensor.shape, ","));
    if (form.binary(tensor.name)) {
      has_binary = true;
      binary += tensor.data;
      text += fmt::format(",\"parameters\":{{\"binary_data_size\":{}}}}}", tensor.data.size());
    } else {
      text += fmt::format(",\"data\":[{}]}}", DataJson(tensor));
    }
  }
  text += "]}";
  if (has_binary) {
    http.content_type = "application/octet-stream";
    http.headers.emplace_back("Inference-Header-Content-Length", fmt::format("{}", text.size()));
  }
  http.body = std::move(text) + binary;
  return http;
}

std::string GenerateJson(const InferResponse& response) {
  std::string out = "{\"model_name\":" + JsonString(response.model) +
                    ",\"model_version\":" + JsonString(response.version);
  if (!response.id.empty()) out += ",\"id\":" + JsonString(response.id);
  for (const Tensor& tensor : response.outputs) {
    const std::string data = DataJson(tensor);
    const bool single = tensor.shape == std::vector<int64_t>{1};
    out += fmt::format(",{}:{}", JsonString(tensor.name), single ? data : "[" + data + "]");
  }
  return out + "}";
}

HttpResponse ErrorHttp(const ApiError& error) {
  HttpResponse response{.status = error.status};
  response.body = "{\"error\":" + JsonString(ToValidUtf8(error.message)) + "}";
  if (error.retry_after_s > 0) {
    response.headers.emplace_back("Retry-After", fmt::format("{}", error.retry_after_s));
  }
  return response;
}

}  // namespace terrace::server::kserve
