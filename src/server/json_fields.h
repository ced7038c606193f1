// Reads the fields of a JSON object of a request, with checks. Keeps the first error and does
// nothing after it, so that a reader can be written as a list. A field that is null counts as
// absent. Not thread-safe. The object must outlive it.
#ifndef TERRACE_SERVER_JSON_FIELDS_H_
#define TERRACE_SERVER_JSON_FIELDS_H_

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/api_error.h"

namespace terrace::server {

// The body as an object; otherwise what is wrong with it: not UTF-8, not JSON, too deep, no object.
std::optional<ApiError> ParseObject(std::string_view body, boost::json::value* out);

// "a string", "an array" ...: what a value is, for messages.
std::string_view KindOf(const boost::json::value& value);

class JsonFields {
 public:
  // `prefix` is put before names in errors: "messages[2].".
  explicit JsonFields(const boost::json::object& object, std::string prefix = "")
      : object_(object), prefix_(std::move(prefix)) {}

  bool ok() const { return !error_; }
  std::optional<ApiError> TakeError() { return std::move(error_); }
  void Fail(ApiError error) {
    if (!error_) error_ = std::move(error);
  }
  // "<field> must be <wanted>, not <what it is>."
  void FailKind(std::string_view name, std::string_view wanted, const boost::json::value& value);
  void FailField(std::string_view name, std::string message,
                 std::string_view code = "invalid_value") {
    Fail(BadField(Path(name), std::move(message), code));
  }
  std::string Path(std::string_view name) const { return prefix_ + std::string(name); }

  // The field, or null if it is absent, null, or an error has been found before.
  const boost::json::value* Find(std::string_view name) const;

  // Each leaves `*out` alone if the field is absent.
  void Bool(std::string_view name, bool* out);
  void Int(std::string_view name, int64_t low, int64_t high, int32_t* out);
  void Int(std::string_view name, int64_t low, int64_t high, std::optional<int32_t>* out);
  // `above_low`: `low` itself is not allowed.
  void Number(std::string_view name, double low, double high, bool above_low, float* out);
  void String(std::string_view name, std::string* out);
  // As String, but the field must be there and not be empty.
  void RequiredString(std::string_view name, std::string* out);

 private:
  const boost::json::object& object_;
  const std::string prefix_;
  std::optional<ApiError> error_;
};

}  // namespace terrace::server

#endif  // TERRACE_SERVER_JSON_FIELDS_H_
