// The keywords of the schemas that hold together, merged.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/status.h"
#include "text/grammar/json_schema_parts.h"

namespace terrace::grammar {
namespace {

namespace json = boost::json;

constexpr int32_t kMaxCount = 100'000'000;

// Keywords that restrict values in ways that are not followed.
constexpr std::array<std::string_view, 11> kRefused = {"not",
                                                       "if",
                                                       "then",
                                                       "else",
                                                       "dependentRequired",
                                                       "contains",
                                                       "dependencies",
                                                       "dependentSchemas",
                                                       "minContains",
                                                       "maxContains",
                                                       "maxProperties"};

std::string_view View(const json::string& text) { return {text.data(), text.size()}; }

// Merges one part into a schema.
class PartReader {
 public:
  PartReader(const SchemaPart& part, bool lenient, MergedSchema* out)
      : part_(part), object_(part.schema->get_object()), lenient_(lenient), out_(*out) {}

  absl::Status Read() {
    RETURN_IF_ERROR(Refuse());
    RETURN_IF_ERROR(Types());
    RETURN_IF_ERROR(Values());
    RETURN_IF_ERROR(Numbers());
    RETURN_IF_ERROR(Strings());
    RETURN_IF_ERROR(Arrays());
    return Objects();
  }
  // The types that keywords speak of, for schemas that name none.
  uint8_t hinted() const { return hinted_; }
  bool typed() const { return typed_; }

 private:
  const json::value* Find(std::string_view name) const {
    return object_.if_contains(json::string_view(name.data(), name.size()));
  }
  absl::Status Wrong(std::string_view name, std::string_view wanted) const {
    return SchemaError(Below(part_.path, name), fmt::format("this must be {}", wanted));
  }
  absl::Status Unsupported(std::string_view name) const {
    if (lenient_) return absl::OkStatus();
    return SchemaError(Below(part_.path, name), "this keyword is not supported; leave it out");
  }

  absl::Status Refuse() {
    for (std::string_view name : kRefused) {
      if (Find(name) != nullptr) RETURN_IF_ERROR(Unsupported(name));
    }
    const json::value* unique = Find("uniqueItems");
    if (unique != nullptr && unique->is_bool() && unique->get_bool()) {
      RETURN_IF_ERROR(Unsupported("uniqueItems"));
    }
    return absl::OkStatus();
  }

  absl::Status Types() {
    const json::value* type = Find("type");
    if (type == nullptr) return absl::OkStatus();
    typed_ = true;
    uint8_t types = 0;
    auto add = [&](const json::value& each) {
      static constexpr std::array<std::pair<std::string_view, uint8_t>, 7> kNames = {
          {{"null", kNull},
           {"boolean", kBoolean},
           {"integer", kInteger},
           {"number", kNumber | kInteger},
           {"string", kString},
           {"array", kArray},
           {"object", kObject}}};
      if (!each.is_string()) return false;
      for (const auto& [name, bit] : kNames) {
        if (name != View(each.get_string())) continue;
        types |= bit;
        return true;
      }
      return false;
    };
    bool known = true;
    if (type->is_array()) {
      for (const json::value& each : type->get_array()) known = known && add(each);
    } else {
      known = add(*type);
    }
    if (!known || types == 0) {
      return Wrong("type",
                   "one of null, boolean, integer, number, string, array and object, or an "
                   "array of them");
    }
    out_.types &= types;
    return absl::OkStatus();
  }

  absl::Status Values() {
    std::vector<std::vector<const json::value*>> lists;
    if (const json::value* value = Find("const")) lists.push_back({value});
    if (const json::value* list = Find("enum")) {
      if (!list->is_array() || list->get_array().empty()) return Wrong("enum", "a list of values");
      auto& values = lists.emplace_back();
      for (const json::value& each : list->get_array()) values.push_back(&each);
    }
    for (auto& values : lists) {
      typed_ = true;
      if (out_.values) {
        std::erase_if(values, [&](const json::value* each) {
          return std::none_of(out_.values->begin(), out_.values->end(),
                              [&](const json::value* other) { return *each == *other; });
        });
      }
      out_.values = std::move(values);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::optional<Decimal>> Bound(std::string_view name) {
    const json::value* value = Find(name);
    if (value == nullptr) return std::optional<Decimal>();
    hinted_ |= kNumber | kInteger;
    if (!value->is_number()) return Wrong(name, "a number");
    const std::optional<Decimal> bound = value->is_int64()
                                             ? Decimal::From(value->get_int64())
                                             : Decimal::From(value->to_number<double>());
    // Numbers are written with 16 digits before the point at most: a bound beyond holds anyhow.
    const bool far = std::abs(value->to_number<double>()) >= 1e16;
    if (!bound && !far) return Wrong(name, "a number of up to 20 digits behind the point");
    const bool low = name == "minimum" || name == "exclusiveMinimum";
    if (far && (value->to_number<double>() > 0) == low) {
      return SchemaError(Below(part_.path, name), "numbers as large as that are not written");
    }
    return bound;
  }

  absl::Status Numbers() {
    for (const bool low : {true, false}) {
      const std::string_view plain = low ? "minimum" : "maximum";
      const std::string_view strict = low ? "exclusiveMinimum" : "exclusiveMaximum";
      const json::value* flag = Find(strict);
      const bool old_form = flag != nullptr && flag->is_bool();  // of draft 4
      for (const bool exclusive : {false, true}) {
        if (exclusive && old_form) continue;
        ASSIGN_OR_RETURN(const std::optional<Decimal> bound, Bound(exclusive ? strict : plain));
        if (!bound) continue;
        const bool out = exclusive || (old_form && flag->get_bool());
        auto& kept = low ? out_.number.low : out_.number.high;
        bool& kept_out = low ? out_.number.above_low : out_.number.below_high;
        const int order = kept ? Compare(*bound, *kept) : low ? 1 : -1;
        if (order == 0) {
          kept_out = kept_out || out;
        } else if ((order > 0) == low) {
          kept = bound;
          kept_out = out;
        }
      }
    }
    const json::value* multiple = Find("multipleOf");
    if (multiple == nullptr) return absl::OkStatus();
    hinted_ |= kNumber | kInteger;
    if (!multiple->is_number() || multiple->to_number<double>() <= 0) {
      return Wrong("multipleOf", "a number above 0");
    }
    const double step = multiple->to_number<double>();
    if (step != std::floor(step) || step > 1000 || out_.number.multiple_of > 1) {
      if (step == 1) return absl::OkStatus();
      if (lenient_) return absl::OkStatus();
      return Wrong("multipleOf", "one whole number up to 1000");
    }
    out_.number.multiple_of = static_cast<int32_t>(step);
    out_.number.integer = true;
    return absl::OkStatus();
  }

  absl::Status Count(std::string_view name, uint8_t hint, int32_t* low,
                     std::optional<int32_t>* high) {
    const json::value* value = Find(name);
    if (value == nullptr) return absl::OkStatus();
    hinted_ |= hint;
    double count = -1;
    if (value->is_number()) count = value->to_number<double>();
    if (count < 0 || count != std::floor(count)) return Wrong(name, "a whole number from 0");
    if (high != nullptr) {
      const auto limit = static_cast<int32_t>(std::min<double>(count, kMaxCount));
      *high = std::min(high->value_or(limit), limit);
      return absl::OkStatus();
    }
    if (count > kMaxCount) return Wrong(name, fmt::format("at most {}", kMaxCount));
    *low = std::max(*low, static_cast<int32_t>(count));
    return absl::OkStatus();
  }

  absl::Status Strings() {
    RETURN_IF_ERROR(Count("minLength", kString, &out_.min_length, nullptr));
    RETURN_IF_ERROR(Count("maxLength", kString, nullptr, &out_.max_length));
    for (std::string_view name : {"pattern", "format"}) {
      const json::value* value = Find(name);
      if (value == nullptr) continue;
      hinted_ |= kString;
      if (!value->is_string()) return Wrong(name, "a string");
      std::string text(View(value->get_string()));
      if (name == "format") text = "\n" + text;  // no pattern has a line end for its first byte
      out_.patterns.emplace_back(std::move(text), Below(part_.path, name));
    }
    return absl::OkStatus();
  }

  absl::Status Arrays() {
    RETURN_IF_ERROR(Count("minItems", kArray, &out_.min_items, nullptr));
    RETURN_IF_ERROR(Count("maxItems", kArray, nullptr, &out_.max_items));
    const json::value* items = Find("items");
    const json::value* prefix = Find("prefixItems");
    std::string_view rest_name = "items", prefix_name = "prefixItems";
    const json::value* rest = items;
    if (items != nullptr && items->is_array()) {  // the older way to say prefixItems and items
      prefix = items;
      prefix_name = "items";
      rest = Find("additionalItems");
      rest_name = "additionalItems";
    }
    if (prefix != nullptr) {
      hinted_ |= kArray;
      if (!prefix->is_array()) return Wrong(prefix_name, "an array of schemas");
      const json::array& list = prefix->get_array();
      // Where another part has fewer or more, its `items` hold for the difference.
      if (!out_.prefix_items.empty()) {
        return SchemaError(Below(part_.path, prefix_name),
                           "prefixItems of two schemas that hold together are not supported");
      }
      for (size_t i = 0; i < list.size(); ++i) {
        out_.prefix_items.push_back(
            {{&list[i], 0, Below(Below(part_.path, prefix_name), std::to_string(i))}});
      }
    }
    if (rest != nullptr) {
      hinted_ |= kArray;
      out_.items.push_back({rest, 0, Below(part_.path, rest_name)});
    }
    return absl::OkStatus();
  }

  absl::Status Objects() {
    const json::value* properties = Find("properties");
    if (properties != nullptr) {
      hinted_ |= kObject;
      if (!properties->is_object()) return Wrong("properties", "an object of schemas");
      for (const auto& [key, schema] : properties->get_object()) {
        const std::string name(key.data(), key.size());
        FindProperty(name)->parts.push_back(
            {&schema, 0, Below(Below(part_.path, "properties"), name)});
      }
    }
    if (const json::value* required = Find("required")) {
      if (required->is_bool()) return absl::OkStatus();  // of draft 3, in the property itself
      hinted_ |= kObject;
      if (!required->is_array()) return Wrong("required", "an array of names");
      for (const json::value& each : required->get_array()) {
        if (!each.is_string()) return Wrong("required", "an array of names");
        FindProperty(std::string(View(each.get_string())))->required = true;
      }
    }
    RETURN_IF_ERROR(Count("minProperties", kObject, &out_.min_properties, nullptr));
    if (const json::value* names = Find("propertyNames")) {
      hinted_ |= kObject;
      if (!out_.names) out_.names.emplace();
      out_.names->push_back({names, 0, Below(part_.path, "propertyNames")});
    }
    if (const json::value* patterns = Find("patternProperties")) {
      hinted_ |= kObject;
      const std::string path = Below(part_.path, "patternProperties");
      if (!patterns->is_object()) return Wrong("patternProperties", "an object of schemas");
      if (patterns->get_object().size() > 1 || out_.pattern_property) {
        return SchemaError(path, "more than one pattern is not supported");
      }
      for (const auto& [key, schema] : patterns->get_object()) {
        const std::string name(key.data(), key.size());
        out_.pattern_property = {name, {&schema, 0, Below(path, name)}};
      }
    }
    if (Find("additionalProperties") != nullptr) hinted_ |= kObject;
    return absl::OkStatus();
  }

  Property* FindProperty(const std::string& name) {
    for (Property& each : out_.properties) {
      if (each.name == name) return &each;
    }
    out_.properties.push_back({name, {}, false});
    return &out_.properties.back();
  }

  const SchemaPart& part_;
  const json::object& object_;
  const bool lenient_;
  MergedSchema& out_;
  uint8_t hinted_ = 0;
  bool typed_ = false;
};

// additionalProperties of every part, for the properties that it does not name itself.
void CloseObject(const SchemaParts& parts, MergedSchema* out) {
  bool opened = false, closed = false;
  for (const SchemaPart& part : parts) {
    const json::object& object = part.schema->get_object();
    const json::value* more = object.if_contains("additionalProperties");
    const json::value* unevaluated = object.if_contains("unevaluatedProperties");
    if (unevaluated != nullptr && unevaluated->is_bool() && !unevaluated->get_bool()) closed = true;
    if (more == nullptr) continue;
    (more->is_bool() && !more->get_bool() ? closed : opened) = true;
    const SchemaPart rule{more, 0, Below(part.path, "additionalProperties")};
    if (!more->is_bool()) out->additional.push_back(rule);
    const json::value* own = object.if_contains("properties");
    for (Property& property : out->properties) {
      const bool named = own != nullptr && own->is_object() &&
                         own->get_object().if_contains(property.name) != nullptr;
      if (!named) property.parts.push_back(rule);
    }
  }
  // Without a word on others, an object has the properties that its schema names; one whose schema
  // names none has any.
  const bool free = out->properties.empty() && !out->pattern_property;
  out->open = !closed && (opened || free);
}

}  // namespace

absl::StatusOr<MergedSchema> SchemaMerger::Merge(const SchemaParts& parts) const {
  MergedSchema out;
  out.path = parts.empty() ? root_path_ : parts[0].path;
  uint8_t hinted = 0;
  bool typed = false;
  for (size_t i = 0; i < parts.size(); ++i) {
    const SchemaPart& part = parts[i];
    PartReader reader(part, lenient_, &out);
    RETURN_IF_ERROR(reader.Read());
    hinted |= reader.hinted();
    typed = typed || reader.typed();
    if (out.choice != nullptr) continue;
    for (const bool one_of : {false, true}) {
      const std::string_view name = one_of ? "oneOf" : "anyOf";
      const json::value* choice = part.schema->get_object().if_contains(name);
      if (choice == nullptr || (part.seen & (one_of ? kSeenOneOf : kSeenAnyOf)) != 0) continue;
      if (!choice->is_array() || choice->get_array().empty()) {
        return SchemaError(Below(part.path, name), "this must be a list of schemas");
      }
      out.choice = &choice->get_array();
      out.choice_part = i;
      out.one_of = one_of;
      break;
    }
  }
  CloseObject(parts, &out);
  if (!typed && hinted != 0) out.types = hinted;
  if ((out.types & kNumber) == 0) out.number.integer = true;
  return out;
}

}  // namespace terrace::grammar
