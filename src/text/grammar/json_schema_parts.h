// What several JSON schemas say together: a schema with those that its $ref and allOf name, merged
// keyword by keyword. Used by json_schema.cc. Not thread-safe.
#ifndef TERRACE_TEXT_GRAMMAR_JSON_SCHEMA_PARTS_H_
#define TERRACE_TEXT_GRAMMAR_JSON_SCHEMA_PARTS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "text/grammar/json_number.h"

namespace terrace::grammar {

// Which keywords of an object have been dealt with already.
enum Seen : uint8_t { kSeenAnyOf = 1, kSeenOneOf = 2, kSeenRef = 4, kSeenAllOf = 8 };

// One schema that must hold. The value outlives the part.
struct SchemaPart {
  const boost::json::value* schema = nullptr;
  uint8_t seen = 0;
  std::string path;  // "#/properties/a"
};
using SchemaParts = std::vector<SchemaPart>;  // all must hold

enum JsonType : uint8_t {
  kNull = 1,
  kBoolean = 2,
  kInteger = 4,
  kNumber = 8,  // with a fraction allowed; includes integers
  kString = 16,
  kArray = 32,
  kObject = 64,
  kAnyType = 127,
};

struct Property {
  std::string name;
  SchemaParts parts;
  bool required = false;
};

struct MergedSchema {
  std::string path;  // of the first part
  uint8_t types = kAnyType;
  std::optional<std::vector<const boost::json::value*>> values;  // enum and const
  NumberBounds number;
  int32_t min_length = 0;
  std::optional<int32_t> max_length;
  std::vector<std::pair<std::string, std::string>> patterns;  // with their paths; formats too
  std::vector<Property> properties;
  SchemaParts additional;  // of further properties, if `open`
  bool open = false;
  std::optional<SchemaParts> names;  // propertyNames
  std::optional<std::pair<std::string, SchemaPart>> pattern_property;
  int32_t min_properties = 0;
  std::vector<SchemaParts> prefix_items;
  SchemaParts items;  // of further items
  bool items_open = true;
  int32_t min_items = 0;
  std::optional<int32_t> max_items;
  // anyOf or oneOf still to be chosen from, in the part of this number.
  const boost::json::array* choice = nullptr;
  size_t choice_part = 0;
  bool one_of = false;
};

class SchemaMerger {
 public:
  // `root` is what "#" means. `lenient`: keywords that cannot be held are ignored, not refused.
  SchemaMerger(const boost::json::value* root, std::string root_path, bool lenient)
      : root_(root), root_path_(std::move(root_path)), lenient_(lenient) {}

  // `parts` with what $ref and allOf name in their place; empty if one of them is `false`. Parts
  // come once each.
  absl::StatusOr<std::optional<SchemaParts>> Flatten(const SchemaParts& parts) const;
  // REQUIRES: `parts` are flat.
  absl::StatusOr<MergedSchema> Merge(const SchemaParts& parts) const;
  // True if it is sure that no value fits both.
  bool Disjoint(const SchemaParts& a, const SchemaParts& b) const;

 private:
  absl::Status FlattenInto(const SchemaPart& part, std::vector<std::string>* refs, SchemaParts* out,
                           bool* never) const;
  absl::StatusOr<const boost::json::value*> Resolve(std::string_view ref,
                                                    const std::string& path) const;

  const boost::json::value* const root_;
  const std::string root_path_;
  const bool lenient_;
};

// "#/a/b: what": the form of every error about a schema.
absl::Status SchemaError(std::string_view path, std::string_view what);
// `path` with a further step.
std::string Below(std::string_view path, std::string_view step);
// The types that `value` has.
uint8_t TypeOf(const boost::json::value& value);
// As JSON, compact, with numbers as people write them.
std::string WriteJson(const boost::json::value& value);

}  // namespace terrace::grammar

#endif  // TERRACE_TEXT_GRAMMAR_JSON_SCHEMA_PARTS_H_
