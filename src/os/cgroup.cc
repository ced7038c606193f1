#include "os/cgroup.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/status.h"

namespace terrace::os {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kName = "terrace";
// cpu.max tells how much of each period, in microseconds.
constexpr int64_t kPeriodUs = 100'000;

std::string ReadAll(const fs::path& file) {
  std::ifstream in(file);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

bool HasWord(const std::string& text, std::string_view word) {
  std::istringstream in(text);
  for (std::string each; in >> each;) {
    if (each == word) return true;
  }
  return false;
}

// The kernel takes such a file's new value in one write.
absl::Status Write(const fs::path& file, const std::string& value) {
  const int fd = open(file.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus(errno, fmt::format("opening {} for writing", file.string()));
  const ssize_t written = write(fd, value.data(), value.size());
  const int error = errno;
  close(fd);
  if (written == static_cast<ssize_t>(value.size())) return absl::OkStatus();
  return ErrnoStatus(error, fmt::format("writing '{}' to {}", value, file.string()));
}

// The folder of the group that this process is in.
absl::StatusOr<fs::path> OwnGroup(const CgroupPlaces& places) {
  std::ifstream in(places.own);
  for (std::string line; std::getline(in, line);) {
    constexpr std::string_view kUnified = "0::/";
    if (!line.starts_with(kUnified)) continue;
    const fs::path group = fs::path(places.root) / line.substr(kUnified.size());
    if (fs::exists(group / "cgroup.controllers")) return group.lexically_normal();
  }
  return absl::FailedPreconditionError(
      fmt::format("there is no cgroup v2 for this process below {}", places.root));
}

absl::Status CheckControllers(const fs::path& group, const CgroupLimits& limits) {
  const std::string controllers = ReadAll(group / "cgroup.controllers");
  std::string missing;
  if ((limits.cpu_weight > 0 || limits.cpus > 0) && !HasWord(controllers, "cpu")) missing = "cpu";
  if (limits.memory_high_bytes > 0 && !HasWord(controllers, "memory")) {
    missing += missing.empty() ? "memory" : " and memory";
  }
  if (missing.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      fmt::format("the controllers for {} were not delegated to {}", missing, group.string()));
}

absl::Status Set(const fs::path& group, const CgroupLimits& limits) {
  if (limits.cpu_weight > 0) {
    RETURN_IF_ERROR(Write(group / "cpu.weight", fmt::format("{}", limits.cpu_weight)));
  }
  if (limits.cpus > 0) {
    const auto quota_us = static_cast<int64_t>(limits.cpus * static_cast<double>(kPeriodUs));
    RETURN_IF_ERROR(Write(group / "cpu.max", fmt::format("{} {}", quota_us, kPeriodUs)));
  }
  if (limits.memory_high_bytes > 0) {
    RETURN_IF_ERROR(Write(group / "memory.high", fmt::format("{}", limits.memory_high_bytes)));
  }
  return absl::OkStatus();
}

absl::Status Move(std::span<const int64_t> processes, const fs::path& to) {
  for (const int64_t process : processes) {
    RETURN_IF_ERROR(Write(to / "cgroup.procs", fmt::format("{}", process)));
  }
  return absl::OkStatus();
}

absl::Status CheckAlone(const fs::path& group, std::span<const int64_t> processes) {
  std::istringstream in(ReadAll(group / "cgroup.procs"));
  int others = 0;
  for (int64_t process = 0; in >> process;) {
    others += std::find(processes.begin(), processes.end(), process) == processes.end();
  }
  if (others == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(fmt::format(
      "{} holds {} other processes, so that it is not the server's own", group.string(), others));
}

}  // namespace

absl::StatusOr<std::string> LimitCgroup(const CgroupLimits& limits,
                                        std::span<const int64_t> processes,
                                        const CgroupPlaces& places) {
  ASSIGN_OR_RETURN(const fs::path group, OwnGroup(places));
  RETURN_IF_ERROR(CheckControllers(group, limits));
  if (group.filename() == kName) {
    RETURN_IF_ERROR(Set(group, limits));
    return group.string();
  }
  // A group whose controllers are passed on may hold no processes itself: they move down first.
  RETURN_IF_ERROR(CheckAlone(group, processes));
  const fs::path own = group / kName;
  std::error_code error;
  const bool made = fs::create_directory(own, error);
  if (error) return ErrnoStatus(error.value(), fmt::format("making {}", own.string()));
  absl::Status status = Move(processes, own);
  std::string pass_on;
  if (limits.cpu_weight > 0 || limits.cpus > 0) pass_on = "+cpu";
  if (limits.memory_high_bytes > 0) pass_on += pass_on.empty() ? "+memory" : " +memory";
  if (status.ok()) status = Write(group / "cgroup.subtree_control", pass_on);
  if (status.ok()) status = Set(own, limits);
  if (status.ok()) return own.string();
  std::replace(pass_on.begin(), pass_on.end(), '+', '-');
  Write(group / "cgroup.subtree_control", pass_on).IgnoreError();
  Move(processes, group).IgnoreError();
  if (made) fs::remove(own, error);
  return status;
}

}  // namespace terrace::os
