#include "text/grammar/json_schema_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include <boost/json/serialize.hpp>

#include "base/status.h"

namespace terrace::grammar {
namespace {

namespace json = boost::json;

constexpr size_t kMaxParts = 256;

std::string_view View(const json::string& text) { return {text.data(), text.size()}; }

uint8_t TypeNamed(std::string_view name) {
  if (name == "null") return kNull;
  if (name == "boolean") return kBoolean;
  if (name == "integer") return kInteger;
  if (name == "number") return kNumber | kInteger;
  if (name == "string") return kString;
  if (name == "array") return kArray;
  if (name == "object") return kObject;
  return 0;
}

// The types that the keyword `type` of an object allows; kAnyType without one.
uint8_t TypesOf(const json::object& schema) {
  const json::value* type = schema.if_contains("type");
  if (type == nullptr) return kAnyType;
  uint8_t types = 0;
  if (type->is_string()) types = TypeNamed(View(type->get_string()));
  if (type->is_array()) {
    for (const json::value& each : type->get_array()) {
      if (each.is_string()) types |= TypeNamed(View(each.get_string()));
    }
  }
  return types;
}

// The values of enum and const; nothing without them.
std::optional<std::vector<const json::value*>> ValuesOf(const json::object& schema) {
  if (const json::value* value = schema.if_contains("const")) return {{value}};
  const json::value* list = schema.if_contains("enum");
  if (list == nullptr || !list->is_array()) return std::nullopt;
  std::vector<const json::value*> out;
  for (const json::value& each : list->get_array()) out.push_back(&each);
  return out;
}

}  // namespace

absl::Status SchemaError(std::string_view path, std::string_view what) {
  return absl::InvalidArgumentError(fmt::format("{}: {}", path, what));
}

std::string Below(std::string_view path, std::string_view step) {
  return fmt::format("{}/{}", path, step.substr(0, 100));
}

uint8_t TypeOf(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      return kNull;
    case json::kind::bool_:
      return kBoolean;
    case json::kind::int64:
    case json::kind::uint64:
      return kInteger | kNumber;
    case json::kind::double_:
      return std::floor(value.get_double()) == value.get_double() ? kInteger | kNumber : kNumber;
    case json::kind::string:
      return kString;
    case json::kind::array:
      return kArray;
    case json::kind::object:
      return kObject;
  }
  return 0;
}

std::string WriteJson(const json::value& value) {
  if (value.is_double()) return fmt::format("{}", value.get_double());
  if (value.is_array()) {
    std::string out = "[";
    for (const json::value& each : value.get_array()) {
      if (out.size() > 1) out += ", ";
      out += WriteJson(each);
    }
    return out + "]";
  }
  if (value.is_object()) {
    std::string out = "{";
    for (const auto& [key, each] : value.get_object()) {
      if (out.size() > 1) out += ", ";
      out += json::serialize(json::value(key)) + ": " + WriteJson(each);
    }
    return out + "}";
  }
  return json::serialize(value);
}

absl::StatusOr<const json::value*> SchemaMerger::Resolve(std::string_view ref,
                                                         const std::string& path) const {
  if (!ref.starts_with('#')) {
    return SchemaError(path,
                       "only references within the schema, which begin with #, can be "
                       "followed");
  }
  std::string pointer;  // percent-decoded
  for (size_t i = 1; i < ref.size(); ++i) {
    if (ref[i] == '%' && i + 2 < ref.size()) {
      uint8_t byte = 0;
      const std::string_view hex = ref.substr(i + 1, 2);
      std::from_chars(hex.data(), hex.data() + hex.size(), byte, 16);
      pointer += static_cast<char>(byte);
      i += 2;
    } else {
      pointer += ref[i];
    }
  }
  json::error_code ec;
  const json::value* found = nullptr;
  if (pointer.empty() || pointer[0] == '/') found = root_->find_pointer(pointer, ec);
  if (ec || found == nullptr) {
    return SchemaError(path, fmt::format("\"{}\" refers to nothing", ref.substr(0, 200)));
  }
  return found;
}

absl::Status SchemaMerger::FlattenInto(const SchemaPart& part, std::vector<std::string>* refs,
                                       SchemaParts* out, bool* never) const {
  const json::value& schema = *part.schema;
  if (schema.is_bool()) {
    if (!schema.get_bool()) *never = true;
    return absl::OkStatus();
  }
  if (!schema.is_object()) return SchemaError(part.path, "a schema is an object, true or false");
  if (out->size() >= kMaxParts)
    return SchemaError(part.path, "too many schemas hold together here");
  const json::object& object = schema.get_object();
  SchemaPart own = part;
  for (std::string_view dynamic : {"$dynamicRef", "$recursiveRef"}) {
    if (object.if_contains(dynamic) != nullptr) {
      return SchemaError(Below(part.path, dynamic), "this keyword is not supported");
    }
  }
  const json::value* ref = object.if_contains("$ref");
  const json::value* all = object.if_contains("allOf");
  own.seen |= kSeenRef | kSeenAllOf;
  for (SchemaPart& each : *out) {
    if (each.schema == &schema) {  // held already
      if ((each.seen & (kSeenAnyOf | kSeenOneOf)) != 0) {
        return SchemaError(part.path, "this refers to itself");
      }
      each.seen |= own.seen;
      return absl::OkStatus();
    }
  }
  out->push_back(own);
  if (ref != nullptr && (part.seen & kSeenRef) == 0) {
    const std::string path = Below(part.path, "$ref");
    if (!ref->is_string()) return SchemaError(path, "a reference is a string");
    const std::string name(View(ref->get_string()));
    if (std::find(refs->begin(), refs->end(), name) != refs->end()) {
      return SchemaError(path, fmt::format("\"{}\" refers to itself", name.substr(0, 200)));
    }
    ASSIGN_OR_RETURN(const json::value* target, Resolve(name, path));
    if (target == &schema) return SchemaError(path, "this refers to itself");
    refs->push_back(name);
    RETURN_IF_ERROR(FlattenInto({target, 0, root_path_ + name.substr(1)}, refs, out, never));
    refs->pop_back();
  }
  if (all != nullptr && (part.seen & kSeenAllOf) == 0) {
    const std::string path = Below(part.path, "allOf");
    if (!all->is_array()) return SchemaError(path, "allOf is an array of schemas");
    for (size_t i = 0; i < all->get_array().size(); ++i) {
      RETURN_IF_ERROR(
          FlattenInto({&all->get_array()[i], 0, Below(path, std::to_string(i))}, refs, out, never));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<SchemaParts>> SchemaMerger::Flatten(const SchemaParts& parts) const {
  SchemaParts out;
  bool never = false;
  std::vector<std::string> refs;
  for (const SchemaPart& part : parts) RETURN_IF_ERROR(FlattenInto(part, &refs, &out, &never));
  if (never) return std::optional<SchemaParts>();
  return std::optional<SchemaParts>(std::move(out));
}

bool SchemaMerger::Disjoint(const SchemaParts& a, const SchemaParts& b) const {
  const auto flat_a = Flatten(a), flat_b = Flatten(b);
  if (!flat_a.ok() || !flat_b.ok() || !*flat_a || !*flat_b) return false;
  uint8_t types = kAnyType;
  std::vector<std::vector<const json::value*>> values;
  std::map<std::string, std::vector<SchemaPart>, std::less<>> required;
  auto add = [&](const SchemaParts& parts) {
    std::set<std::string> names;
    for (const SchemaPart& part : parts) {
      const json::object& object = part.schema->get_object();
      types &= TypesOf(object);
      if (auto list = ValuesOf(object)) values.push_back(*std::move(list));
      if (const json::value* list = object.if_contains("required"); list && list->is_array()) {
        for (const json::value& each : list->get_array()) {
          if (each.is_string()) names.emplace(View(each.get_string()));
        }
      }
    }
    for (const SchemaPart& part : parts) {
      const json::value* list = part.schema->get_object().if_contains("properties");
      if (list == nullptr || !list->is_object()) continue;
      for (const auto& [key, schema] : list->get_object()) {
        const std::string name(key.data(), key.size());
        if (names.contains(name)) required[name].push_back({&schema, 0, part.path});
      }
    }
  };
  add(**flat_a);
  add(**flat_b);
  if (types == 0 || types == kNumber) return types == 0;
  for (size_t i = 1; i < values.size(); ++i) {
    const bool shared = std::any_of(values[0].begin(), values[0].end(), [&](const auto* x) {
      return std::any_of(values[i].begin(), values[i].end(),
                         [&](const auto* y) { return *x == *y; });
    });
    if (!shared) return true;
  }
  // Both are objects (or one is: then their types would differ) told apart by a property.
  if (types != kObject) return false;
  for (const auto& [name, schemas] : required) {
    if (schemas.size() < 2) continue;
    const json::object* x = schemas.front().schema->if_object();
    const json::object* y = schemas.back().schema->if_object();
    if (x == nullptr || y == nullptr) continue;
    const auto left = ValuesOf(*x), right = ValuesOf(*y);
    if (!left || !right) continue;
    const bool shared = std::any_of(left->begin(), left->end(), [&](const auto* p) {
      return std::any_of(right->begin(), right->end(), [&](const auto* q) { return *p == *q; });
    });
    if (!shared) return true;
  }
  return false;
}

}  // namespace terrace::grammar
