#include "cli/doctor.h"

#include <fmt/format.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/text.h"
#include "base/units.h"
#include "cli/cli.h"
#include "cli/config_options.h"
#include "cli/link_probe.h"
#include "device/cpu/cpu_info.h"
#include "ops/cpu/cpu_backend.h"
#include "weights/object_source.h"

namespace terrace::cli {
namespace {

namespace json = boost::json;

// The recommended class of NVMe disk.
constexpr double kGoodSequential = 3e9;
constexpr double kGoodRandom = 500'000;
constexpr double kGoodLatencyUs = 100;
// Below this a disk is what users will wait for.
constexpr double kPoorSequential = 500e6;

enum class Verdict { kGood, kNote, kPoor };

struct Finding {
  std::string what;
  std::string value;
  Verdict verdict = Verdict::kGood;
  std::string advice;  // what to change; empty if nothing
};

const char* Word(Verdict verdict) {
  return verdict == Verdict::kGood ? "good" : verdict == Verdict::kNote ? "note" : "poor";
}

struct DoctorCommand {
  ConfigOptions config;
  std::vector<std::string> objects;
  bool quick = false;
};

// A line of a file of /proc or /sys; empty if it cannot be read.
// The number that `text` begins with; 0 if it begins with none.
int64_t NumberIn(const std::string& text) {
  int64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

std::string FirstLine(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

void LookAtProcessor(std::vector<Finding>* out) {
  std::string best = "portable";
  for (const ops::CpuVariant& variant : ops::CpuVariants()) {
    if (variant.supported) best = variant.name;
  }
  const bool wide = best != "portable";
  out->push_back({"processor", fmt::format("{} threads, kernels {}", CpuCount(), best),
                  wide ? Verdict::kGood : Verdict::kPoor,
                  wide ? "" : "this processor has no vector instructions that the kernels use"});
  int nodes = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/devices/system/node", error)) {
    const std::string name = entry.path().filename().string();
    nodes += name.starts_with("node") && name.size() > 4 && name[4] >= '0' && name[4] <= '9';
  }
  const std::string balancing = FirstLine("/proc/sys/kernel/numa_balancing");
  const bool moves = nodes > 1 && balancing == "1";
  out->push_back({"NUMA nodes", fmt::format("{}", std::max(1, nodes)),
                  moves       ? Verdict::kPoor
                  : nodes > 1 ? Verdict::kNote
                              : Verdict::kGood,
                  moves ? "sysctl kernel.numa_balancing=0: the kernel moves pages of weights about"
                  : nodes > 1 ? "bind the server to one node: numactl --cpunodebind=0 --membind=0"
                              : ""});
}

void LookAtMemory(const Clock& clock, std::vector<Finding>* out) {
  const double rate = MeasureMemoryCopy(clock);
  out->push_back(
      {"memory copy", fmt::format("{:.1f} GB/s", rate / 1e9),
       rate >= 5e9 ? Verdict::kGood : Verdict::kNote,
       rate >= 5e9 ? "" : "decoding reads all weights for each token at about twice this"});
  const std::string huge = FirstLine("/sys/kernel/mm/transparent_hugepage/enabled");
  const bool never = huge.find("[never]") != std::string::npos;
  out->push_back({"transparent huge pages", huge.empty() ? "not known" : huge,
                  never          ? Verdict::kPoor
                  : huge.empty() ? Verdict::kNote
                                 : Verdict::kGood,
                  never ? "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled" : ""});
  const std::string reserve = FirstLine("/proc/sys/vm/min_free_kbytes");
  const int64_t kbytes = NumberIn(reserve);
  const bool low = !reserve.empty() && kbytes < 65'536;
  out->push_back({"vm.min_free_kbytes", reserve.empty() ? "not known" : reserve,
                  low ? Verdict::kNote : Verdict::kGood,
                  low ? "sysctl vm.min_free_kbytes=262144: direct reads stall while the kernel "
                        "looks for free pages"
                      : ""});
  const std::string swappiness = FirstLine("/proc/sys/vm/swappiness");
  const bool swaps = NumberIn(swappiness) > 10 && FirstLine("/proc/swaps").size() > 0 &&
                     std::ifstream("/proc/swaps").ignore(1 << 16, '\n').peek() != EOF;
  out->push_back(
      {"vm.swappiness", swappiness.empty() ? "not known" : swappiness,
       swaps ? Verdict::kNote : Verdict::kGood,
       swaps ? "sysctl vm.swappiness=1: weights in swap are slower than weights on disk" : ""});
}

void LookAtDisk(const std::string& folder, bool quick, const Clock& clock,
                std::vector<Finding>* out) {
  const absl::StatusOr<DiskProbe> probe =
      MeasureDisk(folder, quick ? 64 * kMiB : kGiB, quick ? 200'000 : 2'000'000, clock);
  if (!probe.ok()) {
    out->push_back({"disk", std::string(Message(probe.status())), Verdict::kPoor,
                    "storage.disk.path must be a folder that can be written to"});
    return;
  }
  if (!probe->direct) {
    out->push_back({"direct reads", "refused by the file system", Verdict::kPoor,
                    "put storage.disk.path on ext4 or xfs: reads go through the page cache and "
                    "take memory twice"});
  }
  const double sequential = probe->sequential_bytes_per_s;
  out->push_back({"disk, sequential", fmt::format("{:.2f} GB/s", sequential / 1e9),
                  sequential >= kGoodSequential   ? Verdict::kGood
                  : sequential >= kPoorSequential ? Verdict::kNote
                                                  : Verdict::kPoor,
                  sequential >= kGoodSequential
                      ? ""
                      : fmt::format("an NVMe disk of 3 GB/s or more is recommended; here a model "
                                    "of 4 GB takes {:.1f} s to come back",
                                    4e9 / sequential)});
  const double random = probe->random_reads_per_s;
  out->push_back({"disk, random 4 KiB", fmt::format("{:.0f} reads/s", random),
                  random >= kGoodRandom ? Verdict::kGood : Verdict::kNote,
                  random >= kGoodRandom ? "" : "500,000 reads/s or more are recommended"});
  out->push_back({"disk, latency", fmt::format("{:.0f} us", probe->latency_us),
                  probe->latency_us <= kGoodLatencyUs ? Verdict::kGood : Verdict::kNote,
                  probe->latency_us <= kGoodLatencyUs ? "" : "100 us or less are recommended"});
}

void LookAtObject(const Io& io, const server::Config& config, const std::string& url,
                  const Clock& clock, std::vector<Finding>* out) {
  auto add = [&](std::string value, Verdict verdict, std::string advice) {
    out->push_back({url, std::move(value), verdict, std::move(advice)});
  };
  const Environment environment =
      ObjectEnvironment(config, [&io](std::string_view name) { return io.Variable(name); });
  auto place = weights::FindObject(url, environment, clock);
  if (!place.ok()) return add(std::string(Message(place.status())), Verdict::kPoor, "");
  const int64_t start_us = clock.NowUs();
  auto info = place->store->Stat(place->key, {.timeout_us = 10'000'000});
  const int64_t answer_us = clock.NowUs() - start_us;
  if (!info.ok()) {
    return add(std::string(Message(info.status())), Verdict::kPoor,
               absl::IsPermissionDenied(info.status())
                   ? "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and the bucket's policy"
                   : "check the URL, storage.object.endpoint, its addressing and the way to it");
  }
  std::vector<std::byte> piece(std::min<uint64_t>(8 * kMiB, info->bytes));
  double rate = 0;
  if (!piece.empty()) {
    const int64_t read_us = clock.NowUs();
    absl::Status read =
        place->store->ReadRange(place->key, 0, piece, *info, {.timeout_us = 30'000'000});
    if (!read.ok()) {
      return add(std::string(Message(read)), Verdict::kPoor, "ranges cannot be read from it");
    }
    rate = static_cast<double>(piece.size()) * 1e6 /
           static_cast<double>(std::max<int64_t>(1, clock.NowUs() - read_us));
  }
  add(fmt::format("{}, answers in {:.0f} ms, {:.0f} MB/s a connection", FormatBytes(info->bytes),
                  static_cast<double>(answer_us) / 1e3, rate / 1e6),
      info->Pinned() ? Verdict::kGood : Verdict::kNote,
      info->Pinned() ? "" : "the store gives no strong ETag: what was fetched is not resumed");
}

void Write(const std::vector<Finding>& findings, bool as_json, std::ostream& out) {
  if (as_json) {
    json::array array;
    for (const Finding& finding : findings) {
      array.push_back({{"what", finding.what},
                       {"value", finding.value},
                       {"verdict", Word(finding.verdict)},
                       {"advice", finding.advice}});
    }
    out << json::serialize(array) << "\n";
    return;
  }
  for (const Finding& finding : findings) {
    out << fmt::format("{:<5} {:<24} {}\n", Word(finding.verdict), finding.what, finding.value);
    if (!finding.advice.empty()) out << fmt::format("      {:<24} {}\n", "", finding.advice);
  }
}

absl::Status RunDoctor(const Invocation& invocation, const DoctorCommand& command) {
  ASSIGN_OR_RETURN(server::LoadedConfig loaded, command.config.Load(*invocation.io));
  const server::Config& config = loaded.config;
  RealClock clock;
  std::vector<Finding> findings;
  LookAtProcessor(&findings);
  LookAtMemory(clock, &findings);
  LookAtDisk(DataFolder(config), command.quick, clock, &findings);
  std::vector<std::string> objects = command.objects;
  for (const server::ModelConfig& model : config.models) {
    if (weights::IsObject(model.source)) objects.push_back(model.source);
  }
  for (const std::string& url : objects) {
    LookAtObject(*invocation.io, config, url, clock, &findings);
  }
  Write(findings, invocation.json, *invocation.io->out);
  return absl::OkStatus();
}

}  // namespace

void AddDoctorCommand(Command root, Invocation* invocation) {
  auto options = std::make_shared<DoctorCommand>();  // lives as long as the parser's callbacks
  Command command = root.Add(
      "doctor",
      "Measure memory, disk and object store, look at the host's settings, and say what to "
      "change",
      [invocation, options] { return RunDoctor(*invocation, *options); });
  command.Option("--object", &options->objects,
                 {"URL", "An object to look at beside those of the configuration's models"});
  command.Flag("--quick", &options->quick, "Shorter measurements, for a first impression");
  options->config.AddTo(command, {"storage"});
}

}  // namespace terrace::cli
