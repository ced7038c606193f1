#include "device/cpu/cpu_info.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <sstream>

#include "fmt/format.h"

namespace terrace {
namespace {

std::optional<std::string> ReadSmallFile(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::optional<double> ParseNumber(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// The path of this process in the hierarchy whose controllers are `controllers` ("" for v2).
std::optional<std::string> CgroupPath(const std::string& cgroups, std::string_view controllers) {
  std::istringstream lines(cgroups);
  std::string line;
  while (std::getline(lines, line)) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string names = fmt::format(",{},", line.substr(first + 1, second - first - 1));
    const std::string wanted = fmt::format(",{},", controllers);
    if (names.find(wanted) != std::string::npos) return line.substr(second + 1);
  }
  return std::nullopt;
}

int AffinityCount() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

// Calls visit(folder) for `base + path` and each of its parents up to `base`.
template <typename F>
void ForEachAncestor(const std::string& base, std::string path, F visit) {
  while (true) {
    visit(base + path);
    const size_t slash = path.find_last_of('/');
    if (slash == std::string::npos || path.empty()) return;
    path.resize(slash);
  }
}

}  // namespace

std::optional<double> ParseCpuMax(std::string_view text) {
  const size_t space = text.find(' ');
  if (space == std::string_view::npos) return std::nullopt;
  const auto quota = ParseNumber(text.substr(0, space));
  const auto period = ParseNumber(text.substr(space + 1));
  if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
  return *quota / *period;
}

int CpuCount(const std::string& root) {
  double limit = AffinityCount();
  const std::string cgroups = ReadSmallFile(root + "/proc/self/cgroup").value_or("");
  if (const auto path = CgroupPath(cgroups, "")) {
    ForEachAncestor(root + "/sys/fs/cgroup", *path, [&](const std::string& folder) {
      if (const auto text = ReadSmallFile(folder + "/cpu.max")) {
        limit = std::min(limit, ParseCpuMax(*text).value_or(limit));
      }
    });
  }
  for (const std::string_view mount : {"cpu", "cpu,cpuacct"}) {
    const auto path = CgroupPath(cgroups, "cpu");
    if (!path) break;
    ForEachAncestor(root + "/sys/fs/cgroup/" + std::string(mount), *path,
                    [&](const std::string& folder) {
                      const auto quota = ReadSmallFile(folder + "/cpu.cfs_quota_us");
                      const auto period = ReadSmallFile(folder + "/cpu.cfs_period_us");
                      if (!quota || !period) return;
                      const auto q = ParseNumber(*quota);
                      const auto p = ParseNumber(*period);
                      if (q && p && *q > 0 && *p > 0) limit = std::min(limit, *q / *p);
                    });
  }
  return std::max(1, static_cast<int>(std::ceil(limit - 1e-9)));
}

}  // namespace terrace
