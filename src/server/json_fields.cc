#include "server/json_fields.h"

#include <fmt/format.h>

#include <boost/json/parse.hpp>
#include <cmath>
#include <exception>

#include "base/text.h"
#include "server/openai_request.h"

namespace terrace::server {

namespace json = boost::json;

std::string_view KindOf(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      return "null";
    case json::kind::bool_:
      return "a boolean";
    case json::kind::int64:
    case json::kind::uint64:
    case json::kind::double_:
      return "a number";
    case json::kind::string:
      return "a string";
    case json::kind::array:
      return "an array";
    case json::kind::object:
      return "an object";
  }
  return "something else";
}

std::optional<ApiError> ParseObject(std::string_view body, json::value* out) {
  auto bad = [](std::string message) {
    return ApiError{.status = 400, .code = "invalid_json", .message = std::move(message)};
  };
  if (body.empty()) return bad("The request has no body; send a JSON object.");
  if (!IsValidUtf8(body)) {
    return bad("The request's body is not valid UTF-8; encode the JSON in UTF-8.");
  }
  json::parse_options options;
  options.max_depth = kMaxJsonDepth;
  json::error_code ec;
  try {
    *out = json::parse({body.data(), body.size()}, ec, {}, options);
  } catch (const std::exception& e) {
    return bad(fmt::format("The request's body could not be read as JSON: {}.", e.what()));
  }
  if (ec == json::error::too_deep) {
    return bad(fmt::format("The request's body nests deeper than {} levels.", kMaxJsonDepth));
  }
  if (ec) {
    return bad(fmt::format("The request's body is not valid JSON ({}).", ec.message()));
  }
  if (!out->is_object()) {
    return bad(fmt::format("The request's body must be a JSON object, not {}.", KindOf(*out)));
  }
  return std::nullopt;
}

void JsonFields::FailKind(std::string_view name, std::string_view wanted,
                          const json::value& value) {
  const std::string path = Path(name);
  Fail(BadField(path, fmt::format("{} must be {}, not {}.", path, wanted, KindOf(value)),
                "invalid_type"));
}

const json::value* JsonFields::Find(std::string_view name) const {
  if (error_) return nullptr;
  const json::value* value = object_.if_contains({name.data(), name.size()});
  return value != nullptr && value->is_null() ? nullptr : value;
}

void JsonFields::Bool(std::string_view name, bool* out) {
  const json::value* value = Find(name);
  if (value == nullptr) return;
  if (!value->is_bool()) return FailKind(name, "a boolean", *value);
  *out = value->get_bool();
}

void JsonFields::Int(std::string_view name, int64_t low, int64_t high, int32_t* out) {
  std::optional<int32_t> read;
  Int(name, low, high, &read);
  if (read) *out = *read;
}

void JsonFields::Int(std::string_view name, int64_t low, int64_t high,
                     std::optional<int32_t>* out) {
  const json::value* value = Find(name);
  if (value == nullptr) return;
  // Above int64's range is above `high` too.
  const bool huge = value->is_uint64();
  if (!value->is_int64() && !huge) return FailKind(name, "an integer", *value);
  if (huge || value->get_int64() < low || value->get_int64() > high) {
    return FailField(name, fmt::format("{} must be between {} and {}.", Path(name), low, high));
  }
  *out = static_cast<int32_t>(value->get_int64());
}

void JsonFields::Number(std::string_view name, double low, double high, bool above_low,
                        float* out) {
  const json::value* value = Find(name);
  if (value == nullptr) return;
  if (!value->is_number()) return FailKind(name, "a number", *value);
  const double number = value->is_double()  ? value->get_double()
                        : value->is_int64() ? static_cast<double>(value->get_int64())
                                            : static_cast<double>(value->get_uint64());
  const bool in_range =
      std::isfinite(number) && number >= low && number <= high && !(above_low && number == low);
  if (!in_range) {
    return FailField(name, fmt::format("{} must be a number {} {} and at most {}.", Path(name),
                                       above_low ? "above" : "of at least", low, high));
  }
  *out = static_cast<float>(number);
}

void JsonFields::String(std::string_view name, std::string* out) {
  const json::value* value = Find(name);
  if (value == nullptr) return;
  if (!value->is_string()) return FailKind(name, "a string", *value);
  const json::string& text = value->get_string();
  out->assign(text.data(), text.size());
}

void JsonFields::RequiredString(std::string_view name, std::string* out) {
  const json::value* value = Find(name);
  if (value == nullptr) {
    return FailField(name, fmt::format("{} is missing.", Path(name)), "missing_field");
  }
  String(name, out);
  if (ok() && out->empty()) {
    FailField(name, fmt::format("{} must not be empty.", Path(name)));
  }
}

}  // namespace terrace::server
