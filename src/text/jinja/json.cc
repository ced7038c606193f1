#include "text/jinja/json.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <boost/json/parse.hpp>

#include "text/jinja/format.h"
#include "text/jinja/ops.h"
#include "text/jinja/utf8.h"

namespace terrace::jinja {
namespace {

Value Convert(const boost::json::value& json, bool trusted, int depth) {
  if (depth > kMaxValueDepth) {
    Fail(absl::StatusCode::kInvalidArgument,
         fmt::format("JSON is nested more than {} levels deep", kMaxValueDepth));
  }
  const auto text = [&](boost::json::string_view s) {
    return Str(std::string(s.data(), s.size()), trusted);
  };
  switch (json.kind()) {
    case boost::json::kind::null:
      return None{};
    case boost::json::kind::bool_:
      return json.get_bool();
    case boost::json::kind::int64:
      return int64_t{json.get_int64()};
    case boost::json::kind::uint64: {
      const uint64_t v = json.get_uint64();
      if (v <= static_cast<uint64_t>(INT64_MAX)) return static_cast<int64_t>(v);
      return static_cast<double>(v);
    }
    case boost::json::kind::double_:
      return json.get_double();
    case boost::json::kind::string:
      return text(json.get_string());
    case boost::json::kind::array: {
      std::vector<Value> items;
      items.reserve(json.get_array().size());
      for (const boost::json::value& item : json.get_array()) {
        items.push_back(Convert(item, trusted, depth + 1));
      }
      return MakeList(std::move(items));
    }
    case boost::json::kind::object: {
      auto dict = std::make_shared<Dict>();
      for (const auto& entry : json.get_object()) {
        dict->Set(text(entry.key()), Convert(entry.value(), trusted, depth + 1));
      }
      return dict;
    }
  }
  return None{};
}

class JsonWriter {
 public:
  JsonWriter(Runtime& rt, const CallArgs& args) : rt_(rt) {
    const auto bound = Bind("tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"});
    ascii_ = BoolArg(bound[0], false);
    ReadIndent(bound[1]);
    if (pretty_) item_separator_ = ",";
    ReadSeparators(bound[2]);
    sort_ = BoolArg(bound[3], false);
  }

  void Write(const Value& v, int level) {
    rt_.Step();
    rt_.CheckString(out_.size());
    if (const Str* s = v.str()) {
      WriteString(*s);
    } else if (const List* list = v.list()) {
      WriteList(v, *list, level);
    } else if (const Dict* dict = v.dict()) {
      WriteDict(*dict, level);
    } else {
      out_ += Scalar(v);
    }
  }

  Value Take() {
    rt_.NewString(out_.size());
    return Str(std::move(out_), !untrusted_);
  }

 private:
  void ReadIndent(const Value* arg) {
    if (arg == nullptr || arg->is_none()) return;
    pretty_ = true;
    if (const Str* s = arg->str()) {
      indent_ = std::string(s->view());
      untrusted_ |= s->any_untrusted();
    } else {
      const int64_t width = std::max<int64_t>(IntArg(arg, 0), 0);
      rt_.NewString(static_cast<size_t>(width));
      indent_.assign(static_cast<size_t>(width), ' ');
    }
  }

  void ReadSeparators(const Value* arg) {
    if (arg == nullptr || arg->is_none()) return;
    const List* list = arg->list();
    if (list == nullptr || list->items.size() != 2)
      FailType("tojson: separators must be two strings");
    item_separator_ = std::string(StrArg(&list->items[0], "tojson").view());
    key_separator_ = std::string(StrArg(&list->items[1], "tojson").view());
    untrusted_ |= list->items[0].str()->any_untrusted() || list->items[1].str()->any_untrusted();
  }

  std::string Scalar(const Value& v) const {
    if (v.is_none()) return "null";
    if (const bool* flag = v.As<bool>()) return *flag ? "true" : "false";
    if (const int64_t* i = v.As<int64_t>()) return fmt::format("{}", *i);
    if (const double* d = v.As<double>()) {
      if (std::isnan(*d)) return "NaN";
      if (std::isinf(*d)) return *d < 0 ? "-Infinity" : "Infinity";
      return FormatDouble(*d);
    }
    FailType(fmt::format("Object of type {} is not JSON serializable", v.TypeName()));
  }

  void WriteEscape(uint32_t c) {
    switch (c) {
      case '"':
        out_ += "\\\"";
        return;
      case '\\':
        out_ += "\\\\";
        return;
      case '\n':
        out_ += "\\n";
        return;
      case '\r':
        out_ += "\\r";
        return;
      case '\t':
        out_ += "\\t";
        return;
      case '\b':
        out_ += "\\b";
        return;
      case '\f':
        out_ += "\\f";
        return;
      default:
        break;
    }
    if (c >= 0x10000) {
      out_ += fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + ((c - 0x10000) >> 10),
                          0xdc00 + ((c - 0x10000) & 0x3ff));
    } else {
      out_ += fmt::format("\\u{:04x}", c);
    }
  }

  void WriteString(const Str& s) {
    const std::string_view text = s.view();
    untrusted_ |= s.any_untrusted();
    rt_.Step(text.size() / 64);
    out_ += '"';
    for (size_t pos = 0; pos < text.size();) {
      const CodePoint c = DecodeAt(text, pos);
      const bool escape = c.value < 0x20 || c.value == '"' || c.value == '\\' ||
                          (ascii_ && c.value >= 0x7f && c.value != 0x7f);
      if (escape) {
        WriteEscape(c.value);
      } else {
        out_.append(text.substr(pos, c.bytes));
      }
      pos += c.bytes;
    }
    out_ += '"';
  }

  void NewLine(int level) {
    if (!pretty_) return;
    rt_.CheckString(out_.size() + indent_.size() * static_cast<size_t>(level));
    out_ += '\n';
    for (int i = 0; i < level; ++i) out_ += indent_;
  }

  void WriteList(const Value& v, const List& list, int level) {
    if (list.kind != ListKind::kList && list.kind != ListKind::kTuple) {
      FailType(fmt::format("Object of type {} is not JSON serializable", v.TypeName()));
    }
    out_ += '[';
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) out_ += item_separator_;
      NewLine(level + 1);
      Write(list.items[i], level + 1);
    }
    if (!list.items.empty()) NewLine(level);
    out_ += ']';
  }

  void WriteDict(const Dict& dict, int level) {
    const std::vector<Dict::Entry>& entries = dict.entries();
    std::vector<size_t> order;
    if (sort_) {
      order = StableOrder(entries.size(), [&](size_t a, size_t b) {
        return Less(rt_, entries[a].first, entries[b].first);
      });
    }
    out_ += '{';
    for (size_t i = 0; i < entries.size(); ++i) {
      const Dict::Entry& entry = entries[sort_ ? order[i] : i];
      if (i > 0) out_ += item_separator_;
      NewLine(level + 1);
      if (const Str* key = entry.first.str()) {
        WriteString(*key);
      } else {
        out_ += '"' + Scalar(entry.first) + '"';
      }
      out_ += key_separator_;
      Write(entry.second, level + 1);
    }
    if (!entries.empty()) NewLine(level);
    out_ += '}';
  }

  Runtime& rt_;
  std::string out_;
  bool untrusted_ = false;
  bool ascii_ = false;
  bool pretty_ = false;
  bool sort_ = false;
  std::string indent_;
  std::string item_separator_ = ", ";
  std::string key_separator_ = ": ";
};

}  // namespace

absl::StatusOr<Value> FromJson(const boost::json::value& json, bool trusted) {
  try {
    return Convert(json, trusted, 1);
  } catch (const Error& error) {
    return absl::Status(error.code, error.message);
  }
}

absl::StatusOr<std::string> ToJson(const Value& v) {
  const std::function<int64_t()> no_clock;
  Runtime rt(Limits{}, no_clock);
  try {
    return std::string(ToJsonFilter(rt, v, {}).str()->view());
  } catch (const Error& error) {
    return absl::Status(error.code, error.message);
  }
}

Value ToJsonFilter(Runtime& rt, const Value& input, const CallArgs& args) {
  JsonWriter writer(rt, args);
  writer.Write(input, 0);
  return writer.Take();
}

Value FromJsonFilter(Runtime& rt, const Value& input, const CallArgs& args) {
  Bind("from_json", args, {});
  const Str& text = StrArg(&input, "from_json");
  rt.NewString(text.size() * 4);
  boost::json::error_code error;
  boost::json::parse_options options;
  options.max_depth = kMaxValueDepth / 2;
  const boost::json::value json = boost::json::parse(
      boost::json::string_view(text.view().data(), text.size()), error, {}, options);
  if (error) FailType("from_json: the text is not JSON");
  return Convert(json, !text.any_untrusted(), 1);
}

}  // namespace terrace::jinja
