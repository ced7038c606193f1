#include "obs/log.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/base_sink.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <mutex>
#include <utility>

#include "base/status.h"
#include "base/text.h"

namespace terrace {
namespace {

constexpr std::string_view kLevelNames[] = {"debug", "info", "warning", "error", "off"};

std::string_view LevelName(LogLevel level) { return kLevelNames[static_cast<size_t>(level)]; }

std::string TimeText(int64_t wall_us) {
  std::time_t seconds = static_cast<std::time_t>(wall_us / 1000000);
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:06}Z", fmt::gmtime(seconds), wall_us % 1000000);
}

// A quoted JSON string; what is not UTF-8 in `text` is replaced.
std::string JsonText(std::string_view text) {
  std::string valid = ToValidUtf8(text);
  return boost::json::serialize(boost::json::string_view(valid.data(), valid.size()));
}

// In text lines a plain word stands as it is; everything else is quoted, so that a line stays one
// line and a value cannot pose as another field.
std::string TextWord(std::string_view text) {
  bool plain = !text.empty() && IsValidUtf8(text);
  for (char c : text) {
    if (static_cast<unsigned char>(c) <= ' ' || c == '"' || c == '=' || c == '\\' || c == 0x7f) {
      plain = false;
    }
  }
  return plain ? std::string(text) : JsonText(text);
}

std::string ValueText(LogFormat format, const LogField& field) {
  if (auto* text = std::get_if<std::string_view>(&field.value)) {
    return format == LogFormat::kJson ? JsonText(*text) : TextWord(*text);
  }
  if (auto* number = std::get_if<int64_t>(&field.value)) return fmt::format("{}", *number);
  if (auto* truth = std::get_if<bool>(&field.value)) return *truth ? "true" : "false";
  double number = std::get<double>(field.value);
  if (!std::isfinite(number)) return "null";  // JSON has no infinity.
  return fmt::format("{:.6g}", number);
}

// Appends to one file descriptor. Unlike spdlog's own file sink it opens the file again on demand
// and creates it without access for others.
class FileSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  FileSink(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  ~FileSink() override {
    if (!path_.empty()) close(fd_);
  }
  static absl::StatusOr<int> Open(const std::string& path) {
    if (path.empty()) return STDERR_FILENO;
    int fd = open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0640);
    if (fd < 0) return ErrnoStatus(errno, fmt::format("opening log file {}", path));
    return fd;
  }
  absl::Status Reopen() {
    if (path_.empty()) return absl::OkStatus();
    ASSIGN_OR_RETURN(int fd, Open(path_));
    std::lock_guard<std::mutex> lock(mutex_);
    close(std::exchange(fd_, fd));
    return absl::OkStatus();
  }

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    std::string line(message.payload.data(), message.payload.size());
    line += '\n';
    std::string_view rest = line;
    while (!rest.empty()) {
      ssize_t written = write(fd_, rest.data(), rest.size());
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) return;
      rest.remove_prefix(static_cast<size_t>(written));
    }
  }
  void flush_() override {}

 private:
  const std::string path_;
  int fd_;  // Guarded by the base class's mutex_.
};

class FileLogger final : public Logger {
 public:
  // spdlog wants shared ownership of its sinks.
  FileLogger(const LogOptions& options, const Clock& clock, std::shared_ptr<FileSink> sink)
      : level_(options.level),
        format_(options.format),
        clock_(clock),
        sink_(std::move(sink)),
        logger_("terrace", sink_) {}

  bool Enabled(LogLevel level) const override {
    return level >= level_ && level_ != LogLevel::kOff && level != LogLevel::kOff;
  }
  void Log(LogLevel level, std::string_view message, LogFields fields) override {
    if (!Enabled(level)) return;
    std::string line = FormatLogLine(format_, clock_.WallUs(), level, message, fields);
    logger_.log(spdlog::level::critical, spdlog::string_view_t(line.data(), line.size()));
  }
  absl::Status Reopen() override { return sink_->Reopen(); }

 private:
  const LogLevel level_;
  const LogFormat format_;
  const Clock& clock_;
  std::shared_ptr<FileSink> sink_;
  spdlog::logger logger_;
};

template <typename T, size_t N>
absl::StatusOr<T> ParseName(std::string_view text, const std::string_view (&names)[N],
                            std::string_view what) {
  for (size_t i = 0; i < N; ++i) {
    if (text == names[i]) return static_cast<T>(i);
  }
  return absl::InvalidArgumentError(
      fmt::format("'{}' is not a log {}: use {}", text, what, fmt::join(names, ", ")));
}

}  // namespace

absl::StatusOr<LogLevel> ParseLogLevel(std::string_view text) {
  return ParseName<LogLevel>(text, kLevelNames, "level");
}

absl::StatusOr<LogFormat> ParseLogFormat(std::string_view text) {
  static constexpr std::string_view kNames[] = {"text", "json"};
  return ParseName<LogFormat>(text, kNames, "format");
}

std::string FormatLogLine(LogFormat format, int64_t wall_us, LogLevel level,
                          std::string_view message, LogFields fields) {
  std::string line;
  if (format == LogFormat::kJson) {
    line = fmt::format(R"({{"time":"{}","level":"{}","message":{})", TimeText(wall_us),
                       LevelName(level), JsonText(message));
    for (const LogField& field : fields) {
      line += fmt::format(",{}:{}", JsonText(field.key), ValueText(format, field));
    }
    return line + "}";
  }
  std::string shown = JsonText(message);  // Escapes control characters, newlines among them.
  line = fmt::format("{} {} {}", TimeText(wall_us), LevelName(level),
                     std::string_view(shown).substr(1, shown.size() - 2));
  for (const LogField& field : fields) {
    line += fmt::format(" {}={}", TextWord(field.key), ValueText(format, field));
  }
  return line;
}

absl::StatusOr<std::unique_ptr<Logger>> OpenLog(const LogOptions& options, const Clock& clock) {
  ASSIGN_OR_RETURN(int fd, FileSink::Open(options.path));
  return std::make_unique<FileLogger>(options, clock, std::make_shared<FileSink>(options.path, fd));
}

}  // namespace terrace
