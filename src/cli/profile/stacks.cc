#include "cli/profile/stacks.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <iterator>
#include <utility>

#include "base/status.h"
#include "base/text.h"

extern char** environ;

namespace terrace::cli {
namespace {

namespace json = boost::json;

// Runs a command with its output in files.
absl::StatusOr<pid_t> Spawn(const std::vector<std::string>& words, const std::string& out,
                            const std::string& err) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  const int flags = O_WRONLY | O_CREAT | O_TRUNC;
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, out.c_str(), flags, 0600);
  posix_spawn_file_actions_addopen(&actions, 2, err.c_str(), flags, 0600);
  // A job in the background begins with SIGINT ignored, and hands that on: perf is ended by it.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t heard;
  sigemptyset(&heard);
  posix_spawnattr_setsigmask(&attributes, &heard);
  sigaddset(&heard, SIGINT);
  posix_spawnattr_setsigdefault(&attributes, &heard);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  pid_t child = -1;
  const int error =
      posix_spawnp(&child, arguments[0], &actions, &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return ErrnoStatus(error, fmt::format("starting {}", words[0]));
  return child;
}

int Wait(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string ReadText(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

// Without arguments and the like, which make names too long to be read.
std::string FunctionName(std::string_view symbol) {
  int depth = 0;
  std::string out;
  for (size_t i = 0; i < symbol.size(); ++i) {
    const char c = symbol[i];
    // Anonymous namespaces stand in parentheses, and lambdas in braces.
    if (c == '(' && symbol.substr(i).starts_with("(anonymous namespace)")) {
      i += std::string_view("(anonymous namespace)::").size() - 1;
      continue;
    }
    if (c == '(' && out.empty()) continue;
    if (c == '(') ++depth;
    if (depth == 0) out += c;
    if (c == ')') --depth;
  }
  constexpr size_t kMost = 120;
  return out.size() <= kMost ? out : out.substr(0, kMost) + "...";
}

struct Node {
  uint64_t value = 0;
  std::map<std::string, Node> children;
};

json::object ToJson(const std::string& name, const Node& node) {
  json::array children;
  for (const auto& [child, below] : node.children) children.push_back(ToJson(child, below));
  return {{"name", ToValidUtf8(name)}, {"value", node.value}, {"children", std::move(children)}};
}

}  // namespace

Stacks ParsePerfScript(std::string_view text) {
  constexpr size_t kDeepest = 200;
  Stacks stacks;
  std::string thread;
  std::vector<std::string> inner_first;
  auto finish = [&] {
    if (!thread.empty()) {
      std::vector<std::string> stack = {thread};
      const size_t kept = std::min(inner_first.size(), kDeepest);
      stack.insert(stack.end(), inner_first.rend() - static_cast<std::ptrdiff_t>(kept),
                   inner_first.rend());
      ++stacks[stack];
    }
    thread.clear();
    inner_first.clear();
  };
  for (std::string_view line : Split(text, '\n')) {
    const bool indented = line.starts_with(' ') || line.starts_with('\t');
    const std::string_view words = StripSpace(line);
    if (words.empty()) {
      finish();
    } else if (!indented || thread.empty()) {
      finish();
      thread = words;
    } else {
      const size_t space = words.find(' ');  // behind the address
      const std::string_view symbol =
          space == std::string_view::npos ? "[unknown]" : StripSpace(words.substr(space));
      inner_first.push_back(FunctionName(symbol));
    }
  }
  finish();
  return stacks;
}

std::string FoldedText(const Stacks& stacks) {
  std::string out;
  for (const auto& [stack, count] : stacks) {
    out += fmt::format("{} {}\n", fmt::join(stack, ";"), count);
  }
  return out;
}

json::object FlameTree(const Stacks& stacks, const std::string& root) {
  Node tree;
  for (const auto& [stack, count] : stacks) {
    Node* at = &tree;
    at->value += count;
    for (const std::string& name : stack) {
      at = &at->children[name];
      at->value += count;
    }
  }
  return ToJson(root, tree);
}

absl::StatusOr<PerfSampler> PerfSampler::Start(int64_t pid, const std::string& folder) {
  // By the clock of the processor, which virtual machines have too; stacks by the tables of the
  // program, which is built without frame pointers.
  ASSIGN_OR_RETURN(const pid_t child,
                   Spawn({"perf", "record", "-e", "cpu-clock", "-F", "499", "--call-graph",
                          "dwarf,16384", "-p", fmt::format("{}", pid), "-o", folder + "/perf.data"},
                         folder + "/perf.out", folder + "/perf.err"));
  // It says at once if it may not.
  for (int i = 0; i < 20; ++i) {
    usleep(20'000);
    int status = 0;
    if (waitpid(child, &status, WNOHANG) == child) {
      return absl::UnavailableError(
          fmt::format("perf: {}", StripSpace(ReadText(folder + "/perf.err").substr(0, 300))));
    }
  }
  return PerfSampler(child, folder);
}

PerfSampler::PerfSampler(PerfSampler&& other) noexcept
    : child_(std::exchange(other.child_, -1)), folder_(std::move(other.folder_)) {}

PerfSampler::~PerfSampler() { End(); }

void PerfSampler::End() {
  if (child_ < 0) return;
  kill(child_, SIGINT);
  (void)Wait(child_);
  child_ = -1;
}

absl::StatusOr<Stacks> PerfSampler::Stop() {
  End();
  ASSIGN_OR_RETURN(const pid_t child,
                   Spawn({"perf", "script", "-F", "comm,ip,sym", "-i", folder_ + "/perf.data"},
                         folder_ + "/perf.txt", folder_ + "/perf.err"));
  if (const int status = Wait(child); status != 0) {
    return absl::UnavailableError(fmt::format("perf script ended with {}: {}", status,
                                              ReadText(folder_ + "/perf.err").substr(0, 300)));
  }
  return ParsePerfScript(ReadText(folder_ + "/perf.txt"));
}

}  // namespace terrace::cli
