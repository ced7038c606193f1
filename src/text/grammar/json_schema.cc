#include "text/grammar/json_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/status.h"
#include "text/grammar/json_formats.h"
#include "text/grammar/json_number.h"
#include "text/grammar/program.h"
#include "text/grammar/regex.h"

namespace terrace::grammar {
namespace {

namespace json = boost::json;

constexpr int kMaxDepth = 200;
constexpr size_t kMaxRules = 50'000;
constexpr size_t kMaxStringStates = 20'000;

class Writer {
 public:
  Writer(const json::value* root, const JsonSchemaOptions& options, JsonRules* rules)
      : options_(options),
        merger_(root, options.path, options.lenient),
        json_(*rules),
        grammar_(rules->grammar()) {}

  // What `parts` accept together. Recursion goes through rules: one for each set of parts.
  absl::StatusOr<ExprId> Write(const SchemaParts& parts) {
    ASSIGN_OR_RETURN(std::optional<SchemaParts> flat, merger_.Flatten(parts));
    if (!flat) return grammar_.Never();
    if (flat->empty()) return json_.Value();
    std::vector<std::pair<const json::value*, uint8_t>> key;
    for (const SchemaPart& part : *flat) key.emplace_back(part.schema, part.seen);
    std::sort(key.begin(), key.end());
    if (const auto known = rules_.find(key); known != rules_.end()) {
      return grammar_.Call(known->second);
    }
    const std::string& path = flat->front().path;
    if (++depth_ > kMaxDepth) {
      return SchemaError(path, fmt::format("schemas nest deeper than {}", kMaxDepth));
    }
    if (rules_.size() >= kMaxRules) return SchemaError(path, "the schema is too large");
    const int32_t rule = grammar_.AddRule(path, true);
    rules_.emplace(std::move(key), rule);
    ASSIGN_OR_RETURN(const MergedSchema merged, merger_.Merge(*flat));
    ASSIGN_OR_RETURN(const ExprId body,
                     merged.choice != nullptr ? WriteChoice(*flat, merged) : WriteMerged(merged));
    grammar_.SetRule(rule, body);
    --depth_;
    return grammar_.Call(rule);
  }

 private:
  absl::StatusOr<ExprId> WriteChoice(SchemaParts parts, const MergedSchema& merged) {
    SchemaPart& chooser = parts[merged.choice_part];
    const std::string path = Below(chooser.path, merged.one_of ? "oneOf" : "anyOf");
    chooser.seen |= merged.one_of ? kSeenOneOf : kSeenAnyOf;
    std::vector<SchemaParts> alternatives;
    for (size_t i = 0; i < merged.choice->size(); ++i) {
      alternatives.push_back(parts);
      alternatives.back().push_back({&(*merged.choice)[i], 0, Below(path, std::to_string(i))});
    }
    if (merged.one_of && !options_.lenient) {
      for (size_t i = 0; i < alternatives.size(); ++i) {
        for (size_t j = 0; j < i; ++j) {
          if (merger_.Disjoint(alternatives[j], alternatives[i])) continue;
          return SchemaError(path,
                             fmt::format("alternatives {} and {} might both hold, which oneOf "
                                         "forbids; use anyOf, or tell them apart by type or "
                                         "by a required property with const",
                                         j, i));
        }
      }
    }
    std::vector<ExprId> kids;
    for (const SchemaParts& alternative : alternatives) {
      ASSIGN_OR_RETURN(const ExprId expr, Write(alternative));
      kids.push_back(expr);
    }
    return grammar_.Choice(std::move(kids));
  }

  absl::StatusOr<ExprId> WriteMerged(const MergedSchema& merged) {
    if (merged.values) return WriteValues(merged);
    std::vector<ExprId> kids;
    if (merged.types & kNull) kids.push_back(grammar_.Bytes("null"));
    if (merged.types & kBoolean) {
      kids.push_back(grammar_.Bytes("true"));
      kids.push_back(grammar_.Bytes("false"));
    }
    if (merged.types & (kInteger | kNumber)) kids.push_back(WriteNumber(merged.number));
    if (merged.types & kString) {
      ASSIGN_OR_RETURN(const ExprId text, WriteString(merged));
      kids.push_back(text);
    }
    if (merged.types & kArray) {
      ASSIGN_OR_RETURN(const ExprId array, WriteArray(merged));
      kids.push_back(array);
    }
    if (merged.types & kObject) {
      ASSIGN_OR_RETURN(const ExprId object, WriteObject(merged));
      kids.push_back(object);
    }
    return grammar_.Choice(std::move(kids));
  }

  // enum and const. Other keywords may still rule out some of the values.
  absl::StatusOr<ExprId> WriteValues(const MergedSchema& merged) {
    std::vector<ExprId> kids;
    for (const json::value* value : *merged.values) {
      if ((TypeOf(*value) & merged.types) == 0) continue;
      if (value->is_number() && !InBounds(*value, merged.number)) continue;
      const bool text = value->is_string();
      const bool nested = value->is_object() || value->is_array();
      if ((text && (!merged.patterns.empty() || merged.min_length > 0 || merged.max_length)) ||
          (nested && (!merged.properties.empty() || !merged.items.empty() || merged.min_items > 0 ||
                      merged.max_items))) {
        if (!options_.lenient) {
          return SchemaError(merged.path,
                             "enum and const beside keywords that restrict strings, "
                             "arrays or objects further are not supported");
        }
      }
      kids.push_back(grammar_.Bytes(WriteJson(*value)));
    }
    return grammar_.Choice(std::move(kids));
  }
  static bool InBounds(const json::value& value, const NumberBounds& bounds) {
    const auto number = value.is_int64() ? Decimal::From(value.get_int64())
                                         : Decimal::From(value.to_number<double>());
    const bool bounded = bounds.low || bounds.high || bounds.multiple_of > 1;
    if (!number) return !bounded;
    const int low = bounds.low ? Compare(*number, *bounds.low) : 1;
    const int high = bounds.high ? Compare(*number, *bounds.high) : -1;
    return (low > 0 || (low == 0 && !bounds.above_low)) &&
           (high < 0 || (high == 0 && !bounds.below_high)) &&
           (bounds.multiple_of == 1 ||
            (value.is_int64() && value.get_int64() % bounds.multiple_of == 0));
  }

  ExprId WriteNumber(const NumberBounds& bounds) {
    if (bounds.low || bounds.high || bounds.multiple_of > 1) {
      return grammar_.Automaton(NumbersWithin(bounds));
    }
    return bounds.integer ? json_.Integer() : json_.Number();
  }

  absl::StatusOr<ExprId> WriteString(const MergedSchema& merged) {
    std::vector<ExprId> parts;
    for (const auto& [pattern, path] : merged.patterns) {
      RegexOptions options{.whole = false, .json_string = true};
      std::string_view text = pattern;
      if (text.starts_with('\n')) {  // a format
        const auto known = FormatPattern(text.substr(1));
        if (!known) continue;
        text = *known;
        options.whole = true;
      }
      const absl::StatusOr<ExprId> expr = ParseRegex(text, options, &grammar_);
      if (!expr.ok()) return SchemaError(path, Message(expr.status()));
      parts.push_back(*expr);
    }
    const bool counted = merged.min_length > 0 || merged.max_length;
    if (merged.max_length && *merged.max_length < merged.min_length) return grammar_.Never();
    if (parts.empty() && !counted) return json_.String();
    if (counted) {
      parts.push_back(grammar_.Repeat(json_.StringCharacter(), merged.min_length,
                                      merged.max_length.value_or(kUnbounded)));
    }
    if (parts.size() == 1) return json_.Quoted(parts[0]);
    std::optional<ByteAutomaton> all;
    for (ExprId part : parts) {
      absl::StatusOr<ByteAutomaton> one = ToAutomaton(grammar_, part, kMaxStringStates);
      if (!one.ok()) return SchemaError(merged.path, Message(one.status()));
      if (all && all->states.size() * one->states.size() > 50 * kMaxStringStates) {
        return SchemaError(merged.path, "pattern and length together are too large");
      }
      all = all ? Intersect(*all, *one) : *std::move(one);
    }
    return json_.Quoted(grammar_.Automaton(*std::move(all)));
  }

  absl::StatusOr<ExprId> WriteArray(const MergedSchema& merged) {
    if (merged.max_items && *merged.max_items < merged.min_items) return grammar_.Never();
    const auto fixed = static_cast<int32_t>(merged.prefix_items.size());
    const int32_t least = merged.min_items;
    // Behind fixed items come others only where the schema speaks of them or needs them.
    const bool open = fixed == 0 || !merged.items.empty() || least > fixed;
    int32_t most = merged.max_items.value_or(open ? kUnbounded : fixed);
    if (!open) most = std::min(most, fixed);
    const ExprId comma = grammar_.Sequence({grammar_.Bytes(","), json_.Space()});
    // State i: i items have been written; the last one repeats.
    Graph graph;
    const int32_t places = most == kUnbounded ? fixed : std::min(most, fixed);
    graph.states.resize(static_cast<size_t>(places) + 2);
    for (int32_t i = 0; i < places; ++i) {
      ASSIGN_OR_RETURN(const ExprId item, Write(merged.prefix_items[static_cast<size_t>(i)]));
      Graph::State& state = graph.states[static_cast<size_t>(i)];
      state.edges.push_back({i == 0 ? item : grammar_.Sequence({comma, item}), i + 1});
      state.final = i >= least;
    }
    Graph::State& last = graph.states[static_cast<size_t>(places)];
    last.final = places >= least;
    if (open && (most == kUnbounded || most > places)) {
      ASSIGN_OR_RETURN(const ExprId item, Write(merged.items));
      const ExprId more = grammar_.Sequence({comma, item});
      const ExprId first = places == 0 ? item : more;
      // One, then the others.
      const int32_t low = std::max(least - places - 1, 0);
      const int32_t high = most == kUnbounded ? kUnbounded : most - places - 1;
      last.edges.push_back(
          {grammar_.Sequence({first, grammar_.Repeat(more, low, high)}), places + 1});
      graph.states.back().final = true;
    }
    const bool may_be_empty = graph.states[0].final;
    graph.states[0].final = false;
    const ExprId items = grammar_.Sequence({grammar_.Join(std::move(graph)), json_.Space()});
    return grammar_.Sequence({grammar_.Bytes("["), json_.Space(),
                              may_be_empty ? grammar_.Optional(items) : items,
                              grammar_.Bytes("]")});
  }

  ExprId Pair(ExprId key, ExprId value) {
    return grammar_.Sequence({key, grammar_.Bytes(":"), json_.Space(), value});
  }
  static std::string Encoded(const std::string& name) {
    return WriteJson(json::value(json::string(name.data(), name.size())));
  }

  // The key and value of a property that the schema does not name.
  absl::StatusOr<std::optional<ExprId>> FurtherPair(const MergedSchema& merged) {
    if (merged.pattern_property) {
      const auto& [pattern, part] = *merged.pattern_property;
      if (!merged.properties.empty() || merged.names || merged.open) {
        return SchemaError(part.path,
                           "patternProperties beside properties, propertyNames or "
                           "additionalProperties is not supported");
      }
      const auto key = ParseRegex(pattern, {.whole = false, .json_string = true}, &grammar_);
      if (!key.ok()) return SchemaError(part.path, Message(key.status()));
      ASSIGN_OR_RETURN(const ExprId value, Write({part}));
      return Pair(json_.Quoted(*key), value);
    }
    if (!merged.open) return std::optional<ExprId>();
    ASSIGN_OR_RETURN(const ExprId value, Write(merged.additional));
    if (!merged.names) {
      return merged.properties.empty() ? Pair(json_.String(), value)
                                       : Pair(OtherKey(merged.properties), value);
    }
    if (!merged.properties.empty()) {
      return SchemaError(merged.path, "propertyNames beside properties is not supported");
    }
    static const json::value kStringSchema = {{"type", "string"}};
    SchemaParts names = *merged.names;
    names.push_back({&kStringSchema, 0, merged.path});
    ASSIGN_OR_RETURN(const ExprId key, Write(names));
    return Pair(key, value);
  }

  // Any key but those of `properties`. Up to where it differs from all of them it has no escapes
  // (other than theirs), which could spell one of them in another way.
  ExprId OtherKey(const std::vector<Property>& properties) {
    ByteAutomaton names;
    std::vector<std::map<uint8_t, int32_t>> tree(1);
    std::vector<bool> taken(1, false), escaped(1, false);
    for (const Property& property : properties) {
      const std::string text = Encoded(property.name);
      size_t at = 0;
      bool escape = false;
      for (char c : std::string_view(text).substr(1, text.size() - 2)) {
        const auto byte = static_cast<uint8_t>(c);
        const auto [it, fresh] = tree[at].try_emplace(byte, static_cast<int32_t>(tree.size()));
        at = static_cast<size_t>(it->second);
        escape = c == '\\' && !escape;
        if (!fresh) continue;
        tree.emplace_back();
        taken.push_back(false);
        escaped.push_back(escape);
      }
      taken[at] = true;
    }
    for (size_t i = 0; i < tree.size(); ++i) names.Add(!taken[i]);
    const int32_t free = names.Add(true);
    names.Connect(free, 0, 255, free);
    for (size_t i = 0; i < tree.size(); ++i) {
      for (int byte = 0; byte < 256; ++byte) {
        const auto value = static_cast<uint8_t>(byte);
        const auto child = tree[i].find(value);
        if (child != tree[i].end()) {
          names.Connect(static_cast<int32_t>(i), value, value, child->second);
        } else if (byte != '\\' && !escaped[i]) {
          names.Connect(static_cast<int32_t>(i), value, value, free);
        }
      }
    }
    const auto text =
        ToAutomaton(grammar_, grammar_.Repeat(json_.StringCharacter(), 0, kUnbounded), 1000);
    return json_.Quoted(grammar_.Automaton(Intersect(*text, names)));
  }

  absl::StatusOr<ExprId> WriteObject(const MergedSchema& merged) {
    const ExprId comma = grammar_.Sequence({grammar_.Bytes(","), json_.Space()});
    const auto count = static_cast<int32_t>(merged.properties.size());
    int32_t required = 0;
    // States 0 to n: nothing written yet, properties up to i left out; n + 1 to 2n + 1: something
    // written, i to come; the last: further properties.
    Graph graph;
    const int32_t some = count + 1, further = 2 * count + 2;
    graph.states.resize(static_cast<size_t>(further) + 1);
    auto edge = [&](int32_t from, ExprId label, int32_t to) {
      graph.states[static_cast<size_t>(from)].edges.push_back({label, to});
    };
    for (int32_t i = 0; i < count; ++i) {
      const Property& property = merged.properties[static_cast<size_t>(i)];
      required += property.required;
      ASSIGN_OR_RETURN(const ExprId value, Write(property.parts));
      const ExprId pair = Pair(grammar_.Bytes(Encoded(property.name)), value);
      edge(i, pair, some + i + 1);
      edge(some + i, grammar_.Sequence({comma, pair}), some + i + 1);
      if (property.required) continue;
      edge(i, grammar_.Empty(), i + 1);
      edge(some + i, grammar_.Empty(), some + i + 1);
    }
    if (merged.min_properties > required && !options_.lenient) {
      return SchemaError(merged.path,
                         "minProperties above the number of required properties is not supported");
    }
    ASSIGN_OR_RETURN(const std::optional<ExprId> more, FurtherPair(merged));
    if (more) {
      edge(count, *more, further);
      const ExprId next = grammar_.Sequence({comma, *more});
      edge(some + count, next, further);
      edge(further, next, further);
      graph.states[static_cast<size_t>(further)].final = true;
    }
    graph.states[static_cast<size_t>(some + count)].final = true;
    const ExprId pairs = grammar_.Sequence({grammar_.Join(std::move(graph)), json_.Space()});
    return grammar_.Sequence({grammar_.Bytes("{"), json_.Space(),
                              required == 0 ? grammar_.Optional(pairs) : pairs,
                              grammar_.Bytes("}")});
  }

  const JsonSchemaOptions& options_;
  const SchemaMerger merger_;
  JsonRules& json_;
  Grammar& grammar_;
  std::map<std::vector<std::pair<const json::value*, uint8_t>>, int32_t> rules_;
  int depth_ = 0;
};

}  // namespace

absl::StatusOr<ExprId> AddJsonSchema(const json::value& schema, const JsonSchemaOptions& options,
                                     JsonRules* rules) {
  return Writer(&schema, options, rules).Write({{&schema, 0, options.path}});
}

absl::StatusOr<Grammar> JsonSchemaGrammar(const json::value& schema,
                                          const JsonSchemaOptions& options) {
  Grammar grammar;
  JsonRules rules(&grammar);
  ASSIGN_OR_RETURN(const ExprId body, AddJsonSchema(schema, options, &rules));
  const int32_t root = grammar.AddRule(options.path);
  grammar.SetRule(root, body);
  grammar.set_root(root);
  return grammar;
}

}  // namespace terrace::grammar
