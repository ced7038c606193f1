#include "cli/profile/timeline.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"

namespace terrace::cli {
namespace {

namespace json = boost::json;

constexpr std::string_view kStates[] = {"", "arriving", "there", "used"};

int64_t Number(const json::object& object, const char* name) {
  const json::value* found = object.if_contains(name);
  return found != nullptr && found->is_number() ? found->to_number<int64_t>() : 0;
}

std::string TextOf(const json::object& object, const char* name) {
  const json::value* found = object.if_contains(name);
  return found != nullptr && found->is_string() ? std::string(found->get_string()) : "";
}

// The objects of an array that is a member of `object`.
std::vector<const json::object*> Objects(const json::object& object, const char* name) {
  std::vector<const json::object*> out;
  const json::value* list = object.if_contains(name);
  if (list == nullptr || !list->is_array()) return out;
  for (const json::value& each : list->get_array()) {
    if (each.is_object()) out.push_back(&each.get_object());
  }
  return out;
}

}  // namespace

void Timeline::Close(const std::string& name, Segment* segment, int64_t at_us) {
  if (segment->now > 0 && at_us > segment->since_us) {
    spans_.push_back(
        {"segments", name, std::string(kStates[segment->now]), segment->since_us, at_us});
  }
}

void Timeline::AddSegments(const json::object& model, int64_t at_us) {
  const json::value* list = model.if_contains("segments");
  if (list == nullptr || !list->is_array()) return;
  for (const json::value& each : list->get_array()) {
    if (!each.is_array() || each.get_array().size() != 3) continue;
    const json::array& parts = each.get_array();
    if (!parts[0].is_string() || !parts[1].is_number() || !parts[2].is_number()) continue;
    const std::string name(parts[0].get_string());
    const int now = std::clamp(parts[2].to_number<int>(), 0, 3);
    auto [found, is_new] = segments_.try_emplace(name);
    Segment& segment = found->second;
    if (is_new) segment_order_.push_back(name);
    segment.bytes = parts[1].to_number<uint64_t>();
    if (segment.now == now) continue;
    Close(name, &segment, at_us);
    segment.now = now;
    segment.since_us = at_us;
  }
}

absl::Status Timeline::AddState(const json::object& state) {
  const int64_t at_us = Number(state, "clock_us");
  if (at_us == 0) return absl::InvalidArgumentError("the server's state has no clock");
  ++looks_;
  last_us_ = at_us;
  for (const json::object* model : Objects(state, "models")) {
    if (TextOf(*model, "name") == model_) AddSegments(*model, at_us);
  }
  for (const json::object* tier : Objects(state, "tiers")) {
    const auto used = static_cast<double>(Number(*tier, "used_bytes"));
    if (used > 0) Count(fmt::format("{} bytes", TextOf(*tier, "tier")), at_us, used);
  }
  for (const json::object* link : Objects(state, "links")) {
    const std::string name = TextOf(*link, "name");
    const auto bytes = static_cast<double>(Number(*link, "bytes"));
    const auto before = link_before_.find(name);
    if (before != link_before_.end() && at_us > before->second.first) {
      const double seconds = static_cast<double>(at_us - before->second.first) * 1e-6;
      Count(fmt::format("{} bytes/s", name), at_us, (bytes - before->second.second) / seconds);
    }
    link_before_[name] = {at_us, bytes};
  }
  return absl::OkStatus();
}

absl::Status Timeline::AddTrace(std::string_view text) {
  json::error_code error;
  const json::value value = json::parse(json::string_view(text.data(), text.size()), error);
  if (error || !value.is_object()) return absl::InvalidArgumentError("the trace is no JSON object");
  for (const json::object* event : Objects(value.get_object(), "traceEvents")) {
    if (TextOf(*event, "ph") != "X") continue;
    const std::string name = TextOf(*event, "name");
    const bool part = name == "queue" || name == "swap" || name == "prefill" || name == "decode";
    const int64_t start = Number(*event, "ts");
    spans_.push_back(
        {"request", name, part ? name : "request", start, start + Number(*event, "dur")});
  }
  return absl::OkStatus();
}

void Timeline::Finish() {
  for (auto& [name, segment] : segments_) {
    Close(name, &segment, last_us_);
    segment.now = -1;
  }
  std::stable_sort(spans_.begin(), spans_.end(),
                   [](const Span& a, const Span& b) { return a.start_us < b.start_us; });
}

int64_t Timeline::TookUs(std::string_view kind) const {
  int64_t took = 0;
  for (const Span& span : spans_) {
    if (span.track == "request" && span.kind == kind) took += span.end_us - span.start_us;
  }
  return took;
}

std::string Timeline::PerfettoJson() const {
  json::array events;
  auto name_of = [&](const char* what, int pid, int tid, std::string_view name) {
    events.push_back(json::object{{"ph", "M"},
                                  {"name", what},
                                  {"pid", pid},
                                  {"tid", tid},
                                  {"args", json::object{{"name", ToValidUtf8(name)}}}});
  };
  name_of("process_name", 1, 0, "request");
  name_of("thread_name", 1, 1, model_);
  name_of("process_name", 2, 0, "segments");
  std::map<std::string, int> tracks;
  for (const std::string& name : segment_order_) {
    const int track = static_cast<int>(tracks.size()) + 1;
    tracks[name] = track;
    name_of("thread_name", 2, track, name);
  }
  for (const Span& span : spans_) {
    const bool request = span.track == "request";
    events.push_back(json::object{{"ph", "X"},
                                  {"name", ToValidUtf8(request ? span.name : span.kind)},
                                  {"cat", span.track},
                                  {"pid", request ? 1 : 2},
                                  {"tid", request ? 1 : tracks[span.name]},
                                  {"ts", span.start_us},
                                  {"dur", span.end_us - span.start_us}});
  }
  for (const int64_t token : tokens_) {
    events.push_back(json::object{
        {"ph", "i"}, {"s", "t"}, {"name", "token"}, {"pid", 1}, {"tid", 1}, {"ts", token}});
  }
  for (const auto& [name, points] : counters_) {
    for (const auto& [at_us, value] : points) {
      events.push_back(json::object{{"ph", "C"},
                                    {"name", name},
                                    {"pid", 3},
                                    {"ts", at_us},
                                    {"args", json::object{{"value", value}}}});
    }
  }
  return json::serialize(
             json::object{{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}}) +
         "\n";
}

json::object Timeline::PageJson() const {
  json::array spans, segments;
  json::object counters;
  int64_t begin = INT64_MAX, end = 0;
  for (const Span& span : spans_) {
    // What the model had before and has after says nothing of the request.
    if (span.track != "request") continue;
    begin = std::min(begin, span.start_us);
    end = std::max(end, span.end_us);
  }
  for (const Span& span : spans_) {
    spans.push_back(json::object{{"track", span.track},
                                 {"name", ToValidUtf8(span.name)},
                                 {"kind", span.kind},
                                 {"start", span.start_us},
                                 {"end", span.end_us}});
  }
  for (const std::string& name : segment_order_) {
    segments.push_back(
        json::object{{"name", ToValidUtf8(name)}, {"bytes", segments_.at(name).bytes}});
  }
  for (const auto& [name, points] : counters_) {
    json::array list;
    for (const auto& [at_us, value] : points) list.push_back(json::array{at_us, value});
    counters[name] = std::move(list);
  }
  return {{"begin", begin == INT64_MAX ? 0 : begin},
          {"end", end},
          {"spans", std::move(spans)},
          {"segments", std::move(segments)},
          {"tokens", json::array(tokens_.begin(), tokens_.end())},
          {"counters", std::move(counters)}};
}

}  // namespace terrace::cli
