// A place in a JSON document with its path, for readers that say where something is wrong.
#ifndef TERRACE_BASE_JSON_NODE_H_
#define TERRACE_BASE_JSON_NODE_H_

#include <boost/json/value.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fmt/format.h"

namespace terrace {

// Does not own the document.
class JsonNode {
 public:
  JsonNode(const boost::json::value* value, std::string path)
      : value_(value), path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  // False for null and for what is not there.
  bool present() const { return value_ != nullptr && !value_->is_null(); }
  const boost::json::object* object() const {
    return value_ == nullptr ? nullptr : value_->if_object();
  }
  const boost::json::array* array() const {
    return value_ == nullptr ? nullptr : value_->if_array();
  }
  bool is_string() const { return value_ != nullptr && value_->is_string(); }
  std::string_view text() const {  // REQUIRES: is_string()
    return {value_->get_string().data(), value_->get_string().size()};
  }

  // A member of an object (absent for other values), an element of an array.
  JsonNode operator[](std::string_view key) const {
    const boost::json::object* members = object();
    const boost::json::value* found =
        members == nullptr ? nullptr : members->if_contains({key.data(), key.size()});
    return {found, fmt::format("{}.{}", path_, key)};
  }
  JsonNode at(size_t index) const {
    return {&(*array())[index], fmt::format("{}[{}]", path_, index)};
  }

  // InvalidArgument: "<path> must be <wanted>".
  absl::Status Wrong(std::string_view wanted) const {
    return absl::InvalidArgumentError(fmt::format("{} must be {}", path_, wanted));
  }

  absl::StatusOr<std::string> String() const {
    if (!is_string()) return Wrong("a string");
    return std::string(text());
  }
  absl::StatusOr<std::string> String(std::string_view otherwise) const {
    if (!present()) return std::string(otherwise);
    return String();
  }
  absl::StatusOr<bool> Bool(bool otherwise) const {
    if (!present()) return otherwise;
    if (!value_->is_bool()) return Wrong("true or false");
    return value_->get_bool();
  }
  absl::StatusOr<int64_t> Int(int64_t low, int64_t high) const {
    boost::system::error_code error;
    const int64_t number = value_ != nullptr && value_->is_number() && !value_->is_double()
                               ? value_->to_number<int64_t>(error)
                               : low - 1;
    if (error || number < low || number > high) {
      return Wrong(fmt::format("a whole number from {} to {}", low, high));
    }
    return number;
  }
  absl::StatusOr<double> Number() const {
    boost::system::error_code error;
    if (value_ == nullptr || !value_->is_number()) return Wrong("a number");
    const double number = value_->to_number<double>(error);
    if (error) return Wrong("a number");
    return number;
  }

 private:
  const boost::json::value* value_;
  std::string path_;
};

}  // namespace terrace

#endif  // TERRACE_BASE_JSON_NODE_H_
