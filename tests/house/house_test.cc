// The rules of the house (docs/ARCHITECTURE.md says why), held by a test. A rule's exceptions stand
// beside it with their reasons; sizes are a ratchet that may only go down.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "ratchet.h"
#include "source_tree.h"

namespace terrace::house {
namespace {

namespace fs = std::filesystem;

class House : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    files_ = new std::vector<SourceFile>(ReadTree(TERRACE_SOURCE_DIR));
  }
  static void TearDownTestSuite() { delete files_; }

  static const std::vector<SourceFile>& Files() { return *files_; }
  static const SourceFile* Find(std::string_view path) {
    for (const SourceFile& file : Files()) {
      if (file.path == path) return &file;
    }
    return nullptr;
  }
  // Calls `check(file, line number, code line)` for each line of C++.
  template <typename F>
  static void ForEachCodeLine(F check) {
    for (const SourceFile& file : Files()) {
      for (size_t i = 0; i < file.code_lines.size(); ++i) check(file, i + 1, file.code_lines[i]);
    }
  }

 private:
  static inline const std::vector<SourceFile>* files_ = nullptr;
};

std::string At(const SourceFile& file, size_t line) {
  return file.path + ":" + std::to_string(line) + ": ";
}

// ---- Layers ----------------------------------------------------------------------------------

// src/LAYERS: each folder with the folders that it may include, and the order of the lines.
struct Layers {
  std::vector<std::string> order;
  std::map<std::string, std::set<std::string>> may_use;
};

Layers ReadLayers(const SourceFile& file) {
  Layers layers;
  for (const std::string& line : file.lines) {
    size_t colon = line.find(':');
    if (line.starts_with('#') || colon == std::string::npos) continue;
    std::string folder = line.substr(0, colon);
    layers.order.push_back(folder);
    std::set<std::string>& uses = layers.may_use[folder];
    uses.insert({folder, "base"});
    std::istringstream rest(line.substr(colon + 1));
    for (std::string word; rest >> word;) uses.insert(word);
  }
  return layers;
}

TEST_F(House, LayersAreAnOrderAndNameEveryFolder) {
  Layers layers = ReadLayers(*Find("src/LAYERS"));
  std::set<std::string> above;
  for (const std::string& folder : layers.order) {
    EXPECT_FALSE(above.contains(folder)) << folder << " is there twice";
    above.insert(folder);
    for (const std::string& used : layers.may_use[folder]) {
      EXPECT_TRUE(above.contains(used)) << folder << " names " << used << ", which is not above it";
    }
  }
  for (const fs::directory_entry& entry : fs::directory_iterator(TERRACE_SOURCE_DIR "/src")) {
    if (entry.is_directory()) {
      EXPECT_TRUE(above.contains(entry.path().filename()))
          << entry.path() << " is not in src/LAYERS";
    }
  }
}

TEST_F(House, IncludesPointUpTheLayers) {
  Layers layers = ReadLayers(*Find("src/LAYERS"));
  const std::regex include(R"re(^\s*#\s*include\s+"([^"]+)")re");
  for (const SourceFile& file : Files()) {
    if (!file.IsCpp() || !file.In("src/")) continue;
    std::string own = file.path.substr(4, file.path.find('/', 4) - 4);
    for (size_t i = 0; i < file.lines.size(); ++i) {
      std::smatch match;
      if (!std::regex_search(file.lines[i], match, include)) continue;
      std::string path = match[1], folder = path.substr(0, path.find('/'));
      if (!layers.may_use.contains(folder)) continue;  // A library such as absl.
      EXPECT_TRUE(layers.may_use[own].contains(folder))
          << At(file, i + 1) << "src/LAYERS does not let " << own << " include " << path;
      EXPECT_TRUE(fs::exists(fs::path(TERRACE_SOURCE_DIR) / "src" / path))
          << At(file, i + 1) << path << " does not exist";
    }
  }
}

// The concrete devices' names stay in their own folders, so that everything else works on any chip.
TEST_F(House, VendorNamesStayWithTheirDevices) {
  const std::regex vendor(
      R"(\b((cuda|nvidia|nvrtc|nvml|nccl|cublas|rocm|rccl|hiprtc|hipblas|hygon|radeon|amdgpu)"
      R"(|ascend|aclnn|aclrt|hccl|huawei|cambricon|cnrt|cnnl|cncl|musa|mtrtc|mublas|mccl|mtml)"
      R"(|moore_?threads)\w*|hip\b))",
      std::regex::icase);
  // Words of other meaning.
  const std::regex other(R"(\bascending\w*)", std::regex::icase);
  const std::regex free(R"(^(docs/|tests/|README\.md|src/(device|ops)/[a-z]+/|src/ops/chips\.cc))");
  for (const SourceFile& file : Files()) {
    if (std::regex_search(file.path, free)) continue;
    for (size_t i = 0; i < file.lines.size(); ++i) {
      std::smatch match;
      const std::string line = std::regex_replace(file.lines[i], other, "");
      EXPECT_FALSE(std::regex_search(line, match, vendor)) << At(file, i + 1) << match.str();
    }
  }
}

// ---- Headers and dead files ------------------------------------------------------------------

TEST_F(House, HeaderGuardsFollowThePath) {
  for (const SourceFile& file : Files()) {
    if (!file.path.ends_with(".h") || !file.In("src/")) continue;
    std::string guard = "TERRACE_";
    for (char c : file.path.substr(4)) {
      guard +=
          std::isalnum(static_cast<unsigned char>(c)) ? static_cast<char>(std::toupper(c)) : '_';
    }
    guard += "_";
    EXPECT_NE(file.text.find("#ifndef " + guard + "\n#define " + guard + "\n"), std::string::npos)
        << file.path << " lacks the guard " << guard;
    EXPECT_TRUE(file.text.ends_with("#endif  // " + guard + "\n")) << file.path;
  }
}

TEST_F(House, EveryHeaderIsIncludedBySomeone) {
  std::set<std::string> included;
  const std::regex include(R"re(^\s*#\s*include\s+"([^"]+)")re");
  for (const SourceFile& file : Files()) {
    std::string own = file.path.substr(file.path.find('/') + 1);
    std::string twin = own.ends_with(".cc") ? own.substr(0, own.size() - 2) + "h" : "";
    for (const std::string& line : file.lines) {
      std::smatch match;
      if (file.IsCpp() && std::regex_search(line, match, include) && match[1] != twin) {
        included.insert(match[1]);
      }
    }
  }
  for (const SourceFile& file : Files()) {
    if (!file.path.ends_with(".h") || !file.In("src/")) continue;
    EXPECT_TRUE(included.contains(file.path.substr(4)))
        << "nothing but its own source includes " << file.path;
  }
}

// A list of sources that forgets one leaves its tests out, and nothing fails.
TEST_F(House, EverySourceOfATestIsBuilt) {
  int listed = 0;
  for (const SourceFile& file : Files()) {
    if (!file.In("tests/") || !file.path.ends_with(".cc")) continue;
    const size_t slash = file.path.rfind('/');
    const SourceFile* build = Find(file.path.substr(0, slash) + "/CMakeLists.txt");
    if (build == nullptr || build->text.find("SOURCES") == std::string::npos) continue;  // all are
    ++listed;
    EXPECT_NE(build->text.find(file.path.substr(slash + 1)), std::string::npos)
        << build->path << " does not name " << file.path;
  }
  EXPECT_GT(listed, 0);
}

// ---- Text ------------------------------------------------------------------------------------

size_t Columns(std::string_view line) {  // UTF-8 characters.
  return static_cast<size_t>(
      std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

TEST_F(House, LinesAreCleanAndAtMost100Columns) {
  for (const SourceFile& file : Files()) {
    EXPECT_TRUE(file.text.empty() || file.text.ends_with('\n'))
        << file.path << " lacks its last line end";
    EXPECT_EQ(file.text.find('\r'), std::string::npos) << file.path << " has carriage returns";
    bool limited = file.IsCpp() || file.path.ends_with(".py") || file.path.ends_with(".cl");
    for (size_t i = 0; i < file.lines.size(); ++i) {
      const std::string& line = file.lines[i];
      EXPECT_FALSE(line.ends_with(' ') || line.ends_with('\t'))
          << At(file, i + 1) << "ends in blanks";
      EXPECT_TRUE(!limited || Columns(line) <= 100) << At(file, i + 1) << Columns(line);
    }
  }
}

TEST_F(House, OpenEndsNameTheirIssue) {
  // Spelt in two parts so that this file passes its own rule.
  const std::regex open_end(
      "\\b(TO"
      "DO|FIX"
      "ME|XX"
      "X|HA"
      "CK)\\b(?!\\(#[0-9]+\\))");
  for (const SourceFile& file : Files()) {
    for (size_t i = 0; i < file.lines.size(); ++i) {
      EXPECT_FALSE(std::regex_search(file.lines[i], open_end)) << At(file, i + 1) << file.lines[i];
    }
  }
}

TEST_F(House, NoPathOfOneMachineIsWrittenDown) {
  const std::regex path(
      "(^|[^\\w.])/(wo"
      "rk|ro"
      "ot|ho"
      "me)/");
  for (const SourceFile& file : Files()) {
    for (size_t i = 0; i < file.lines.size(); ++i) {
      EXPECT_FALSE(std::regex_search(file.lines[i], path)) << At(file, i + 1) << file.lines[i];
    }
  }
}

// ---- Calls -----------------------------------------------------------------------------------

struct Ban {
  std::vector<const char*> words;  // A line without any of them is not looked at further.
  const char* pattern;
  const char* where;  // Folder prefix the ban covers.
  const char* reason;
  std::vector<std::string> except;  // Path prefixes.
};

const std::vector<Ban>& Bans() {
  static const std::vector<Ban> bans = {
      {{"str", "sprintf", "gets"},
       R"(\b(strcpy|strcat|sprintf|vsprintf|gets|strtok)\s*\()",
       "",
       "writes past its buffer",
       {}},
      {{"ato", "sto"},
       R"(\b(atoi|atol|atof|stoi|stol|stoul|stoull|stof|stod)\s*\()",
       "src/",
       "does not tell bad input from good, or throws: use std::from_chars",
       {}},
      {{"rand", "mt19937"},
       R"((^|[^\w.>:])s?rand\s*\(|\bstd::s?rand\b|\brandom_device\b|\bmt19937)",
       "",
       "take a base/random.h Random, so that runs can be repeated",
       {"src/cli/"}},  // The command draws the seed that everything below it is given.
      {{"system", "popen"}, R"((^|[^\w.>:])system\s*\(|\bpopen\s*\()", "src/", "runs a shell", {}},
      {{"exit"},
       R"((\bstd::|(^|[^\w.>:]))(exit|_exit|quick_exit)\s*\()",
       "src/",
       "only the command decides to end",
       {"src/cli/"}},
      {{"std::c", "print"},
       R"(\bstd::(cout|cerr|clog)\b|(^|[^\w])printf\s*\(|\bfmt::print\s*\()",
       "src/",
       "libraries log through obs/log.h and return Status",
       {"src/cli/"}},
      {{"using"}, R"(\busing\s+namespace\s+std\b)", "", "hides where names come from", {}},
      {{"_clock", "gettime"},
       R"(_clock::now\s*\(|\bgettimeofday\s*\(|\bclock_gettime\s*\()",
       "src/",
       "take a base/clock.h Clock, so that tests decide what time it is",
       {"src/base/clock.cc",
        "src/device/cpu/",  // Spins and telemetry measure this very processor.
        "src/ops/measure.cc", "src/ops/verify.cc",  // So do measurements of kernels.
        "src/server/http_connection."}},            // Asio's timers run on the steady clock.
      {{"std::"},
       R"(\bstd::(mutex|recursive_mutex|shared_mutex|condition_variable)\b)",
       "src/",
       "absl::Mutex is checked by thread-safety analysis",
       {"src/obs/log.cc"}},  // spdlog's sinks are built on std::mutex.
      {{"detach", "async"},
       R"(\.detach\s*\(\s*\)|\bstd::async\b)",
       "src/",
       "a thread without an owner outlives what it uses",
       {}},
      {{"regex"}, R"(\bstd::(regex|basic_regex)\b)", "src/", "recurses on hostile input", {}},
      {{"co_await"},
       R"(\b(if|while)\s*\((?:[^()]|\([^()]*\))*\bco_await\b|\bco_await\b.*(\?|&&|\|\|))",
       "src/",
       "g++ 12 makes wrong code of it: await into a variable first",
       {}},
      {{"friend"}, R"(\bfriend\s+class\s+\w*Test\b)", "src/", "test through the contract", {}},
      {{"sleep", "Sleep"},
       R"((^|[^\w])sleep\s*\(|\bsleep_for\s*\(.*\bseconds\s*\(|\bSleepFor\s*\(\s*absl::Seconds)",
       "tests/",
       "a test that waits whole seconds is slow or flaky: use ManualClock or a condition",
       {}},
  };
  return bans;
}

TEST_F(House, BannedCallsAreNotUsed) {
  for (const Ban& ban : Bans()) {
    const std::regex pattern(ban.pattern);
    ForEachCodeLine([&](const SourceFile& file, size_t line, const std::string& code) {
      if (!file.In(ban.where)) return;
      auto has = [&](const char* word) { return code.find(word) != std::string::npos; };
      if (std::none_of(ban.words.begin(), ban.words.end(), has)) return;
      for (const std::string& except : ban.except) {
        if (file.In(except)) return;
      }
      std::smatch match;
      EXPECT_FALSE(std::regex_search(code, match, pattern))
          << At(file, line) << "'" << match.str() << "': " << ban.reason;
    });
  }
}

TEST_F(House, NothingMutableIsGlobal) {
  const std::regex local_static(
      R"(^\s+(static|thread_local)\s+(?!.*\b(const|constexpr)\b)[^(]*[;={])");
  for (const SourceFile& file : Files()) {
    if (!file.IsCpp() || !file.In("src/")) continue;
    std::string code;
    for (const std::string& line : file.code_lines) code += line + "\n";
    for (const Variable& variable : OutlineOf(code).mutable_variables) {
      ADD_FAILURE() << At(file, static_cast<size_t>(variable.line)) << variable.declaration;
    }
    for (size_t i = 0; i < file.code_lines.size(); ++i) {
      EXPECT_FALSE(std::regex_search(file.code_lines[i], local_static))
          << At(file, i + 1) << file.lines[i];
    }
  }
}

// A metric that nothing measures would be a promise without a value.
TEST_F(House, EveryMetricIsMeasuredSomewhere) {
  const SourceFile* table = Find("src/obs/metric_table.h");
  ASSERT_NE(table, nullptr);
  size_t start = table->text.find("enum class MetricId {");
  ASSERT_NE(start, std::string::npos);
  std::string names = table->text.substr(start, table->text.find('}', start) - start);
  const std::regex enumerator(R"(\bk\w+)");
  std::set<std::string> used;
  for (const SourceFile& file : Files()) {
    if (!file.IsCpp() || !file.In("src/") || file.In("src/obs/")) continue;
    const std::regex use(R"(MetricId::(k\w+))");
    for (std::sregex_iterator it(file.text.begin(), file.text.end(), use), end; it != end; ++it) {
      used.insert((*it)[1]);
    }
  }
  for (std::sregex_iterator it(names.begin(), names.end(), enumerator), end; it != end; ++it) {
    EXPECT_TRUE(used.contains(it->str())) << "nothing measures " << it->str();
  }
}

// ---- Sizes -----------------------------------------------------------------------------------

// Checks `size` against `limit` or the larger one that `ratchet` allows for `name`.
void CheckSize(const std::vector<Allowance>& ratchet, const std::string& name, int size, int limit,
               std::set<std::string>& used) {
  for (const Allowance& allowance : ratchet) {
    if (allowance.name != name) continue;
    used.insert(name);
    EXPECT_LE(size, allowance.lines)
        << name << " grew; it may have " << allowance.lines << " lines";
    EXPECT_GT(size, limit) << name << " needs no allowance any more: remove it from ratchet.h";
    return;
  }
  EXPECT_LE(size, limit) << name << " has " << size << " lines; split it";
}

bool IsExempt(const SourceFile& file) {
  for (const Exemption& exemption : kExempt) {
    if (file.In(exemption.prefix)) return true;
  }
  return false;
}

void CheckAllUsed(const std::vector<Allowance>& ratchet, const std::set<std::string>& used) {
  for (const Allowance& allowance : ratchet) {
    EXPECT_TRUE(used.contains(allowance.name))
        << allowance.name << " in ratchet.h is gone: remove it";
  }
}

TEST_F(House, FilesStaySmall) {
  std::set<std::string> used;
  for (const SourceFile& file : Files()) {
    if (!file.IsCpp() || IsExempt(file)) continue;
    int limit = file.path.ends_with(".h") && file.In("src/") ? kHeaderLines : kFileLines;
    CheckSize(FileAllowances(), file.path, static_cast<int>(file.lines.size()), limit, used);
  }
  CheckAllUsed(FileAllowances(), used);
}

TEST_F(House, FunctionsStaySmall) {
  std::set<std::string> used;
  for (const SourceFile& file : Files()) {
    if (!file.IsCpp() || IsExempt(file)) continue;
    std::string code;
    for (const std::string& line : file.code_lines) code += line + "\n";
    std::map<std::string, int> longest;  // Overloads share an allowance.
    for (const Function& function : OutlineOf(code).functions) {
      int& length = longest[function.name];
      length = std::max(length, function.length);
    }
    for (const auto& [name, length] : longest) {
      CheckSize(FunctionAllowances(), file.path + " " + name, length, kFunctionLines, used);
    }
  }
  CheckAllUsed(FunctionAllowances(), used);
}

// ---- Documents -------------------------------------------------------------------------------

// Words in `backquotes` of a Markdown file that look like paths of this project.
std::vector<std::string> NamedPaths(const SourceFile& file, const Layers& layers) {
  std::vector<std::string> paths;
  const std::regex quoted("`([^`\\s]+)`");
  const std::regex top(R"(^(\./)?(src|tests|bench|scripts|cmake|docs|deploy|web|\.ci)/)");
  for (std::sregex_iterator it(file.text.begin(), file.text.end(), quoted), end; it != end; ++it) {
    std::string word = (*it)[1];
    if (word.find_first_of("*<>{}$") != std::string::npos) continue;
    std::string folder = word.substr(0, word.find('/'));
    if (std::regex_search(word, top)) {
      paths.push_back(word);
    } else if (word.find('/') != std::string::npos && layers.may_use.contains(folder)) {
      paths.push_back("src/" + word);
    }
  }
  return paths;
}

TEST_F(House, EveryPathInTheDocumentsExists) {
  Layers layers = ReadLayers(*Find("src/LAYERS"));
  size_t named = 0;
  for (const SourceFile& file : Files()) {
    if (!file.path.ends_with(".md")) continue;
    for (const std::string& path : NamedPaths(file, layers)) {
      ++named;
      EXPECT_TRUE(fs::exists(fs::path(TERRACE_SOURCE_DIR) / path))
          << file.path << " names " << path;
    }
  }
  EXPECT_GT(named, 0u);
}

TEST_F(House, ArchitectureHasALineForEveryFolder) {
  const SourceFile* architecture = Find("docs/ARCHITECTURE.md");
  ASSERT_NE(architecture, nullptr);
  for (const std::string& folder : ReadLayers(*Find("src/LAYERS")).order) {
    if (!fs::exists(fs::path(TERRACE_SOURCE_DIR) / "src" / folder)) continue;
    EXPECT_NE(architecture->text.find("`src/" + folder + "/`"), std::string::npos)
        << "docs/ARCHITECTURE.md lacks src/" << folder << "/";
  }
}

TEST_F(House, ReadmeHasExactlyTheTwoSetUpCommands) {
  const SourceFile* readme = Find("README.md");
  ASSERT_NE(readme, nullptr);
  size_t start = readme->text.find("\n## Set up\n");
  ASSERT_NE(start, std::string::npos) << "README.md has no section 'Set up'";
  std::string section =
      readme->text.substr(start + 1, readme->text.find("\n## ", start + 4) - start);
  std::vector<std::string> commands;
  bool inside = false;
  for (const std::string& line : SplitLines(section)) {
    if (line.starts_with("```")) {
      inside = !inside;
    } else if (inside && !line.empty()) {
      commands.push_back(line.substr(0, line.find("  ")));
    }
  }
  EXPECT_EQ(commands, (std::vector<std::string>{"./dev demo", "./dev test"}));
}

TEST_F(House, ReadmeNamesEveryArchitecture) {
  const SourceFile* readme = Find("README.md");
  const SourceFile* registry = Find("src/model/registry.cc");
  ASSERT_TRUE(readme != nullptr && registry != nullptr);
  const std::regex entry(R"re(\{"([a-z0-9-]+)", Parse)re");
  size_t named = 0;
  for (std::sregex_iterator it(registry->text.begin(), registry->text.end(), entry), end; it != end;
       ++it) {
    ++named;
    EXPECT_NE(readme->text.find("`" + (*it)[1].str() + "`"), std::string::npos)
        << "README.md does not name the architecture " << (*it)[1];
  }
  EXPECT_GT(named, 0u);
}

}  // namespace
}  // namespace terrace::house
