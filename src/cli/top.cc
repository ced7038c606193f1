// terrace top: a running server's memory, models and links, live in the terminal. Reads what the
// admin port shows.
#include <curses.h>
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <exception>
#include <memory>
#include <optional>
#include <ostream>

#include "base/status.h"
#include "base/text.h"
#include "base/units.h"
#include "cli/ask.h"
#include "cli/cli.h"

namespace terrace::cli {
namespace {

namespace json = boost::json;

struct TopOptions {
  std::string url = "http://127.0.0.1:8003";
  std::string ca;
  bool once = false;
};

// Without what is behind the point; 0 for what is not there or less.
uint64_t Number(const json::object& object, std::string_view name) {
  constexpr double kMost = 0x1p63;
  const json::value* found = object.if_contains(json::string_view(name.data(), name.size()));
  if (found == nullptr || !found->is_number()) return 0;
  if (const uint64_t* whole = found->if_uint64()) return *whole;
  return static_cast<uint64_t>(std::clamp(found->to_number<double>(), 0.0, kMost));
}

std::string TextOf(const json::object& object, std::string_view name) {
  const json::value* found = object.if_contains(json::string_view(name.data(), name.size()));
  return found != nullptr && found->is_string() ? std::string(found->get_string()) : "";
}

std::string Bar(double share, int width) {
  const auto filled = static_cast<int>(std::lround(std::clamp(share, 0.0, 1.0) * width));
  return std::string(static_cast<size_t>(filled), '#') +
         std::string(static_cast<size_t>(width - filled), '.');
}

// Segments in execution order: how much of each stretch is in memory.
std::string Heat(const json::object& model, size_t width) {
  const json::value* list = model.if_contains("segments");
  if (list == nullptr || !list->is_array() || list->get_array().empty()) return "";
  const json::array& segments = list->get_array();
  const size_t columns = std::min(width, segments.size());
  std::string out;
  for (size_t i = 0; i < columns; ++i) {
    const size_t begin = i * segments.size() / columns, end = (i + 1) * segments.size() / columns;
    size_t in = 0;
    bool loading = false;
    for (size_t j = begin; j < end; ++j) {
      const int64_t now = segments[j].as_array()[2].to_number<int64_t>();
      in += now >= 2;
      loading |= now == 1;
    }
    out.push_back(loading ? '+' : in == end - begin ? '#' : in > 0 ? '-' : '.');
  }
  return out;
}

// What the sensors tell, without what they do not.
std::string SensorLine(const json::object& sensors) {
  auto real = [&](std::string_view name) -> std::optional<double> {
    const json::value* found = sensors.if_contains(json::string_view(name.data(), name.size()));
    if (found == nullptr || !found->is_number()) return std::nullopt;
    return found->to_number<double>();
  };
  std::string out;
  if (const auto share = real("utilisation")) out += fmt::format("busy {:.0f}%, ", *share * 100);
  if (const auto degrees = real("temperature_c")) out += fmt::format("{:.0f} C, ", *degrees);
  if (const auto watts = real("power_w")) out += fmt::format("{:.0f} W, ", *watts);
  if (real("host_available_bytes")) {
    out += fmt::format("{} of host memory free, ",
                       FormatBytes(Number(sensors, "host_available_bytes")));
  }
  out += fmt::format("{}/s from disk, {} running, {} waiting, the longest for {:.1f} s",
                     FormatBytes(Number(sensors, "from_disk_bytes_per_s")),
                     Number(sensors, "running"), Number(sensors, "waiting"),
                     static_cast<double>(Number(sensors, "oldest_wait_us")) * 1e-6);
  return out;
}

// The screen's lines. `before`: the state at the last look, for rates; null at first.
std::vector<std::string> Lines(const json::object& state, const json::object* before) {
  std::vector<std::string> out;
  const json::object& process = state.at("process").as_object();
  const json::object& totals = state.at("totals").as_object();
  double seconds = 0, tokens = 0;
  if (before != nullptr) {
    seconds = static_cast<double>(Number(state, "clock_us") - Number(*before, "clock_us")) * 1e-6;
    const json::object& then = before->at("totals").as_object();
    tokens =
        static_cast<double>(Number(totals, "generated_tokens") - Number(then, "generated_tokens"));
  }
  out.push_back(fmt::format("terrace {} on {}, up {} s, {} in memory, {:.1f} tokens/s, {} switches",
                            TextOf(state, "version"), TextOf(state, "device"),
                            Number(process, "uptime_s"), FormatBytes(Number(process, "rss_bytes")),
                            seconds > 0 ? tokens / seconds : 0, Number(totals, "model_switches")));
  if (const json::value* sensors = state.if_contains("sensors")) {
    out.push_back(SensorLine(sensors->as_object()));
  }
  out.emplace_back();
  for (const json::value& each : state.at("tiers").as_array()) {
    const json::object& tier = each.as_object();
    const uint64_t used = Number(tier, "used_bytes"), budget = Number(tier, "budget_bytes");
    if (used == 0 && budget == 0) continue;
    out.push_back(fmt::format(
        "{:<8} [{}] {} of {}", TextOf(tier, "tier"),
        Bar(budget > 0 ? static_cast<double>(used) / static_cast<double>(budget) : 0, 40),
        FormatBytes(used), budget > 0 ? FormatBytes(budget) : "no cap"));
  }
  out.emplace_back();
  out.push_back(fmt::format("{:<24} {:<9} {:>10} {:>10} {:>4} {:>4}  {}", "MODEL", "STATE",
                            "WEIGHTS", "IN MEMORY", "RUN", "WAIT", "SEGMENTS"));
  for (const json::value& each : state.at("models").as_array()) {
    const json::object& model = each.as_object();
    out.push_back(fmt::format("{:<24} {:<9} {:>10} {:>10} {:>4} {:>4}  {}",
                              TextOf(model, "name").substr(0, 24), TextOf(model, "state"),
                              FormatBytes(Number(model, "bytes")),
                              FormatBytes(Number(model, "resident_bytes")),
                              Number(model, "running"), Number(model, "waiting"), Heat(model, 32)));
  }
  out.emplace_back();
  for (const json::value& each : state.at("links").as_array()) {
    const json::object& link = each.as_object();
    uint64_t moved = 0;
    if (before != nullptr) {
      for (const json::value& other : before->at("links").as_array()) {
        if (TextOf(other.as_object(), "name") == TextOf(link, "name")) {
          moved = Number(link, "bytes") - Number(other.as_object(), "bytes");
        }
      }
    }
    const auto now = static_cast<uint64_t>(seconds > 0 ? static_cast<double>(moved) / seconds : 0);
    out.push_back(fmt::format("{:<16} {:>12}/s now, {:>12} moved, {} queued", TextOf(link, "name"),
                              FormatBytes(now), FormatBytes(Number(link, "bytes")),
                              Number(link, "queued")));
  }
  return out;
}

// Lines() of a state that may be another program's.
absl::StatusOr<std::vector<std::string>> Look(const json::value& state, const json::value& before,
                                              const std::string& url) {
  try {
    return Lines(state.as_object(), before.is_object() ? &before.as_object() : nullptr);
  } catch (const std::exception&) {  // what is not there, or is something else
    return absl::FailedPreconditionError(fmt::format("{} is no admin port of Terrace", url));
  }
}

// The terminal, until destroyed.
class Screen {
 public:
  Screen() {
    initscr();
    noecho();
    cbreak();
    curs_set(0);
    timeout(1000);
  }
  ~Screen() { endwin(); }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  // Shows the lines and waits for a second or a key; false: to end.
  bool Show(const std::vector<std::string>& lines) {
    erase();
    for (size_t i = 0; i < lines.size() && static_cast<int>(i) < LINES - 1; ++i) {
      mvaddnstr(static_cast<int>(i), 0, lines[i].c_str(), COLS - 1);
    }
    mvaddnstr(LINES - 1, 0, "q ends; # in memory, + arriving, - in part, . not in memory",
              COLS - 1);
    refresh();
    const int key = getch();
    return key != 'q' && key != 27;
  }
};

absl::Status Top(const TopOptions& options, Invocation* invocation) {
  const AskOptions ask{.key = invocation->io->Variable("TERRACE_KEY"), .ca = options.ca};
  ASSIGN_OR_RETURN(json::value state, AskAdmin(options.url, "/admin/state", ask));
  if (invocation->json) {
    *invocation->io->out << json::serialize(state) << "\n";
    return absl::OkStatus();
  }
  if (options.once || !invocation->io->err_is_terminal) {
    ASSIGN_OR_RETURN(const std::vector<std::string> lines, Look(state, nullptr, options.url));
    for (const std::string& line : lines) *invocation->io->out << line << "\n";
    return absl::OkStatus();
  }
  Screen screen;
  json::value before;
  for (;;) {
    ASSIGN_OR_RETURN(const std::vector<std::string> lines, Look(state, before, options.url));
    if (!screen.Show(lines)) break;
    before = std::move(state);
    ASSIGN_OR_RETURN(state, AskAdmin(options.url, "/admin/state", ask));
  }
  return absl::OkStatus();
}

}  // namespace

void AddTopCommand(Command root, Invocation* invocation) {
  auto options = std::make_shared<TopOptions>();  // lives as long as the parser's callbacks
  Command command = root.Add("top", "Watch a running server: memory, models, links",
                             [invocation, options] { return Top(*options, invocation); });
  command.Option("--url", &options->url,
                 {"URL", "Of the admin port (default http://127.0.0.1:8003)"});
  command.Option("--ca", &options->ca,
                 {"FILE", "Certificates (PEM) that may sign the server's; else the system's"});
  command.Flag("--once", &options->once, "Print once instead of watching");
}

}  // namespace terrace::cli
