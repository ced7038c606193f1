#include "base/metadata.h"

#include <fmt/format.h>

#include <utility>

#include "base/status.h"

namespace terrace {
namespace {

const char* KindName(const MetadataValue& value) {
  static constexpr const char* kNames[] = {"a bool",
                                           "an integer",
                                           "a number",
                                           "a string",
                                           "an array of bools",
                                           "an array of integers",
                                           "an array of numbers",
                                           "an array of strings"};
  return kNames[value.index()];
}

absl::Status WrongKind(std::string_view key, const MetadataValue& value, const char* wanted) {
  return absl::InvalidArgumentError(
      fmt::format("metadata key '{}' is {}, not {}", key, KindName(value), wanted));
}

absl::Status Missing(std::string_view key) {
  return absl::NotFoundError(fmt::format("metadata key '{}' is missing", key));
}

template <typename T>
absl::StatusOr<const std::vector<T>*> Array(const MetadataValue* value, std::string_view key,
                                            const char* wanted) {
  if (value == nullptr) return nullptr;
  if (const auto* array = std::get_if<std::vector<T>>(value)) return array;
  return WrongKind(key, *value, wanted);
}

}  // namespace

void Metadata::Set(std::string key, MetadataValue value) {
  values_.insert_or_assign(std::move(key), std::move(value));
}

const MetadataValue* Metadata::Find(std::string_view key) const {
  auto it = values_.find(key);
  return it == values_.end() ? nullptr : &it->second;
}

absl::StatusOr<int64_t> Metadata::GetInt(std::string_view key, int64_t low, int64_t high) const {
  const MetadataValue* value = Find(key);
  if (value == nullptr) return Missing(key);
  const auto* number = std::get_if<int64_t>(value);
  if (number == nullptr) return WrongKind(key, *value, "an integer");
  if (*number < low || *number > high) {
    return absl::InvalidArgumentError(
        fmt::format("metadata key '{}' is {}, outside [{}, {}]", key, *number, low, high));
  }
  return *number;
}

absl::StatusOr<double> Metadata::GetDouble(std::string_view key) const {
  const MetadataValue* value = Find(key);
  if (value == nullptr) return Missing(key);
  if (const auto* number = std::get_if<double>(value)) return *number;
  if (const auto* number = std::get_if<int64_t>(value)) return static_cast<double>(*number);
  return WrongKind(key, *value, "a number");
}

absl::StatusOr<bool> Metadata::GetBool(std::string_view key) const {
  const MetadataValue* value = Find(key);
  if (value == nullptr) return Missing(key);
  if (const auto* flag = std::get_if<bool>(value)) return *flag;
  return WrongKind(key, *value, "a bool");
}

absl::StatusOr<std::string> Metadata::GetString(std::string_view key) const {
  const MetadataValue* value = Find(key);
  if (value == nullptr) return Missing(key);
  if (const auto* text = std::get_if<std::string>(value)) return *text;
  return WrongKind(key, *value, "a string");
}

absl::StatusOr<int64_t> Metadata::GetInt(std::string_view key, int64_t low, int64_t high,
                                         int64_t otherwise) const {
  if (!Has(key)) return otherwise;
  return GetInt(key, low, high);
}

absl::StatusOr<double> Metadata::GetDouble(std::string_view key, double otherwise) const {
  if (!Has(key)) return otherwise;
  return GetDouble(key);
}

absl::StatusOr<bool> Metadata::GetBool(std::string_view key, bool otherwise) const {
  if (!Has(key)) return otherwise;
  return GetBool(key);
}

absl::StatusOr<std::string> Metadata::GetString(std::string_view key,
                                                std::string_view otherwise) const {
  if (!Has(key)) return std::string(otherwise);
  return GetString(key);
}

absl::StatusOr<const std::vector<std::string>*> Metadata::GetStrings(std::string_view key) const {
  return Array<std::string>(Find(key), key, "an array of strings");
}
absl::StatusOr<const std::vector<int64_t>*> Metadata::GetInts(std::string_view key) const {
  return Array<int64_t>(Find(key), key, "an array of integers");
}
absl::StatusOr<const std::vector<double>*> Metadata::GetDoubles(std::string_view key) const {
  return Array<double>(Find(key), key, "an array of numbers");
}

}  // namespace terrace
