// Named values that describe a model: what a GGUF header or a config.json holds, in one form that
// readers produce and that architectures and tokenizers consume. Plain data; not thread-safe while
// it is being filled, freely shared as const after that.
#ifndef TERRACE_BASE_METADATA_H_
#define TERRACE_BASE_METADATA_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"

namespace terrace {

// Integers of every width are kept as int64 (uint64 values above int64's range are refused by the
// readers), f32 and f64 as double. Arrays of arrays are refused by the readers.
using MetadataValue =
    std::variant<bool, int64_t, double, std::string, std::vector<bool>, std::vector<int64_t>,
                 std::vector<double>, std::vector<std::string>>;

class Metadata {
 public:
  void Set(std::string key, MetadataValue value);
  const MetadataValue* Find(std::string_view key) const;
  bool Has(std::string_view key) const { return Find(key) != nullptr; }

  // The value under `key`; NotFound names a missing key, InvalidArgument one of another kind.
  // GetInt accepts integers only and checks [low, high]; GetDouble accepts integers too.
  absl::StatusOr<int64_t> GetInt(std::string_view key, int64_t low, int64_t high) const;
  absl::StatusOr<double> GetDouble(std::string_view key) const;
  absl::StatusOr<bool> GetBool(std::string_view key) const;
  absl::StatusOr<std::string> GetString(std::string_view key) const;

  // As above with a default for a missing key; a value of the wrong kind is still an error.
  absl::StatusOr<int64_t> GetInt(std::string_view key, int64_t low, int64_t high,
                                 int64_t otherwise) const;
  absl::StatusOr<double> GetDouble(std::string_view key, double otherwise) const;
  absl::StatusOr<bool> GetBool(std::string_view key, bool otherwise) const;
  absl::StatusOr<std::string> GetString(std::string_view key, std::string_view otherwise) const;

  // Arrays: a pointer into this object, null if the key is missing, InvalidArgument for a wrong
  // kind.
  absl::StatusOr<const std::vector<std::string>*> GetStrings(std::string_view key) const;
  absl::StatusOr<const std::vector<int64_t>*> GetInts(std::string_view key) const;
  absl::StatusOr<const std::vector<double>*> GetDoubles(std::string_view key) const;

  const std::map<std::string, MetadataValue, std::less<>>& values() const { return values_; }

 private:
  std::map<std::string, MetadataValue, std::less<>> values_;
};

}  // namespace terrace

#endif  // TERRACE_BASE_METADATA_H_
