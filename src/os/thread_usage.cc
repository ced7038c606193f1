#include "os/thread_usage.h"

#include <dirent.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/text.h"

namespace terrace::os {
namespace {

// Fields of stat behind the name, from "state" (proc(5)).
constexpr size_t kUserTicks = 11;
constexpr size_t kSystemTicks = 12;

int64_t Number(std::string_view text) {
  int64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

void Add(const std::string& line, std::string_view name_prefix, int64_t tick_us,
         ThreadUsage* usage) {
  // The name stands in parentheses and may hold any character.
  const size_t begin = line.find('('), end = line.rfind(')');
  if (begin == std::string::npos || end == std::string::npos || end + 2 > line.size()) return;
  const std::string_view text = line;
  if (!text.substr(begin + 1, end - begin - 1).starts_with(name_prefix)) return;
  const auto fields = Split(text.substr(end + 2), ' ');
  if (fields.size() <= kSystemTicks || fields[0].empty()) return;
  ++usage->threads;
  usage->cpu_us += (Number(fields[kUserTicks]) + Number(fields[kSystemTicks])) * tick_us;
  usage->runnable += fields[0][0] == 'R';
  usage->in_disk_sleep += fields[0][0] == 'D';
}

}  // namespace

ThreadUsage ReadThreadUsage(std::string_view name_prefix) {
  ThreadUsage usage;
  const std::string folder = "/proc/self/task/";
  const std::unique_ptr<DIR, int (*)(DIR*)> tasks(opendir(folder.c_str()), closedir);
  if (tasks == nullptr) return usage;
  const int64_t tick_us = 1'000'000 / std::max(1L, sysconf(_SC_CLK_TCK));
  while (const dirent* entry = readdir(tasks.get())) {
    if (entry->d_name[0] == '.') continue;
    std::ifstream file(folder + entry->d_name + "/stat");
    // A thread that has ended meanwhile has no line.
    std::string line;
    if (std::getline(file, line)) Add(line, name_prefix, tick_us, &usage);
  }
  return usage;
}

void NameThisThread(std::string_view name) {
  pthread_setname_np(pthread_self(), std::string(name.substr(0, 15)).c_str());
}

}  // namespace terrace::os
