// Logging. A Logger is passed to whoever writes; the composition root opens two: the access log
// (one line a request, no content) and the runtime log. Lines are text or JSON, with fields beside
// the message, in UTC. Secrets and message content never go into a log.
//
// Thread-safe. Writing a log never fails the caller: lines that cannot be written are dropped.
#ifndef TERRACE_OBS_LOG_H_
#define TERRACE_OBS_LOG_H_

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"

namespace terrace {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };
enum class LogFormat { kText, kJson };

// From "debug", "info", "warning", "error" or "off"; InvalidArgument for anything else.
absl::StatusOr<LogLevel> ParseLogLevel(std::string_view text);
// From "text" or "json".
absl::StatusOr<LogFormat> ParseLogFormat(std::string_view text);

// One named value of a line; borrows its key and text for the duration of the call.
struct LogField {
  LogField(std::string_view k, std::string_view v) : key(k), value(v) {}
  LogField(std::string_view k, const char* v) : key(k), value(std::string_view(v)) {}
  LogField(std::string_view k, const std::string& v) : key(k), value(std::string_view(v)) {}
  LogField(std::string_view k, double v) : key(k), value(v) {}
  LogField(std::string_view k, bool v) : key(k), value(v) {}
  template <std::integral T>
    requires(!std::same_as<T, bool>)
  LogField(std::string_view k, T v) : key(k), value(static_cast<int64_t>(v)) {}

  std::string_view key;
  std::variant<std::string_view, int64_t, double, bool> value;
};
using LogFields = std::initializer_list<LogField>;

class Logger {
 public:
  virtual ~Logger() = default;
  virtual bool Enabled(LogLevel level) const = 0;
  virtual void Log(LogLevel level, std::string_view message, LogFields fields) = 0;
  // Opens the file of that name again, after it has been rotated away; on failure the old file
  // stays in use.
  virtual absl::Status Reopen() = 0;

  void Debug(std::string_view message, LogFields fields = {}) {
    if (Enabled(LogLevel::kDebug)) Log(LogLevel::kDebug, message, fields);
  }
  void Info(std::string_view message, LogFields fields = {}) {
    if (Enabled(LogLevel::kInfo)) Log(LogLevel::kInfo, message, fields);
  }
  void Warning(std::string_view message, LogFields fields = {}) {
    if (Enabled(LogLevel::kWarning)) Log(LogLevel::kWarning, message, fields);
  }
  void Error(std::string_view message, LogFields fields = {}) {
    if (Enabled(LogLevel::kError)) Log(LogLevel::kError, message, fields);
  }
};

// A Logger that keeps nothing, for tests and for logs that are off.
class NullLogger final : public Logger {
 public:
  bool Enabled(LogLevel) const override { return false; }
  void Log(LogLevel, std::string_view, LogFields) override {}
  absl::Status Reopen() override { return absl::OkStatus(); }
};

struct LogOptions {
  LogLevel level = LogLevel::kInfo;  // Lines below it are dropped.
  LogFormat format = LogFormat::kText;
  std::string path;  // Empty: standard error. Otherwise appended to, created with mode 0640.
};

// `clock` gives the lines their time and must outlive the Logger. Fails if the file cannot be
// opened.
absl::StatusOr<std::unique_ptr<Logger>> OpenLog(const LogOptions& options, const Clock& clock);

// One line without its end, as OpenLog's Logger writes it.
std::string FormatLogLine(LogFormat format, int64_t wall_us, LogLevel level,
                          std::string_view message, LogFields fields);

}  // namespace terrace

#endif  // TERRACE_OBS_LOG_H_
