// terrace.yaml: every key once in one table (name, kind, default, help, setter), from which the
// file reader, the TERRACE_... environment variables, the command-line flags, `terrace config
// check` and docs/CONFIG.md are made. A key that is not in the table is an error; every key in it
// is read.
//
// Nothing here has side effects: a configuration is read into a fresh struct and is handed out only
// when all of it is valid, so a running server can try a changed file without harm. Thread-safe.
#ifndef TERRACE_SERVER_CONFIG_H_
#define TERRACE_SERVER_CONFIG_H_

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/units.h"

namespace terrace::server {

enum class DeviceKind : uint8_t { kCpu, kSim, kOpenCl, kGpu, kNpu };
std::string_view DeviceKindName(DeviceKind kind);  // as device.kind has it

// One entry of `models`.
struct ModelConfig {
  std::string name;                    // what requests call it
  std::string source;                  // a GGUF file, or a name in the store
  std::optional<int64_t> hot_keep_us;  // absent: memory.hot_keep_time
  int32_t max_context = 0;             // 0: what the model was trained for
  std::string kv_dtype;                // empty: kv.dtype
  std::string speculation = "off";     // off, ngram, or draft:NAME
  int32_t speculation_tokens = 4;
  std::string sla = "standard";   // realtime, standard or batch
  double traffic = 0;             // of NAME@VERSION: share of the requests for NAME
  double rollback_errors = 0.05;  // share of errors at which it gets no more of them
  std::string sha256;             // of a URL's file; empty: not checked
  std::string rerank = "auto";    // auto, vectors or judge
  // Devices that divide attention and FFNs of the model among themselves, and its experts; 1: none.
  int32_t tensor_parallel = 1, expert_parallel = 1;
  std::string base;  // of an adapter: the entry that it is for; empty: a model
};

// One entry of `tenants`.
struct TenantConfig {
  std::string name;           // as API keys name it; "default" for those without a key
  double share = 1;           // of computing, against other tenants'
  uint64_t memory_bytes = 0;  // of device memory for its KV; 0: no quota
  int32_t running = 0;        // requests at once; 0: scheduler.tenant_running
  double compute = 1;         // of the engine's time at most; 1: no limit
};

struct Config {
  struct {
    std::string host = "127.0.0.1";
    int32_t port = 8000;          // 0: any free port
    int32_t grpc_port = 8001;     // 0: any free port; -1: none
    int32_t metrics_port = 8002;  // as grpc_port
    int32_t admin_port = 8003;    // as grpc_port
    std::string admin_host = "127.0.0.1";
    std::string allow;  // networks, as CidrList reads them; empty: everyone
    std::string admin_allow;
    std::string metrics_allow;
    std::string cors_origins;  // with commas between
    uint64_t max_body_bytes = 16 * kMiB;
    int64_t drain_timeout_us = 30'000'000;
    bool supervise = true;
    int32_t cgroup_cpu_weight = 0;  // these three: see os::CgroupLimits; 0: off
    double cgroup_cpus = 0;
    uint64_t cgroup_memory_high = 0;
  } server;
  struct {
    std::string required = "auto";  // auto, always or never
    std::string keys;               // file; empty: keys.json of the data folder
  } auth;
  struct {
    std::string certificate;  // PEM file; empty: no TLS
    std::string key;          // PEM file
  } tls;
  struct {
    std::optional<uint64_t> device_budget_bytes;  // absent: what the device reports, less a margin
    double swap_threshold = 0.90;
    int64_t hot_keep_us = 300'000'000;
    uint64_t staging_bytes = 32 * kMiB;
    uint64_t host_budget_bytes = 0;  // 0: staging only
    std::string eviction_policy = "cost";
    bool strict_check = false;
    bool trace_pages = false;
    uint64_t expert_upload_bytes = 0;  // 0: no bound
  } memory;
  struct {
    std::string disk_path;  // empty: DefaultDataFolder()
    int32_t read_depth = 16;
    int64_t scrub_us = int64_t{168} * 3600 * 1'000'000;  // 0: images are not scrubbed
    uint64_t disk_bytes = 0;                             // 0: as much as the disk has
    std::string object_endpoint;                         // empty: as the environment says
    std::string object_region;
    std::string object_addressing;
    std::string object_ca;
    int64_t object_patience_us = 10'000'000;
  } storage;
  struct {
    int32_t max_queue = 1024;
    int32_t max_batch = 16;
    int32_t step_tokens = 512;
    int64_t max_wait_us = 2'000'000;
    double stretch = 1.7;
    double decode_slowdown = 0.08;  // 0: off
    // Of realtime, standard and batch requests, and of what is fetched ahead.
    std::array<double, 4> link_shares = {100, 25, 5, 1};
    int64_t aging_us = 30'000'000;
    int64_t min_residency_us = 0;
    double qps_weight = 0.7;
    double latency_weight = 0.3;
    int32_t tenant_running = 0;  // 0: no limit
  } scheduler;
  struct {
    int64_t timeout_us = 2'000'000;  // 0: off
  } watchdog;
  struct {
    std::string dtype = "f16";
    uint64_t disk_bytes = 8 * kGiB;  // 0: nothing is kept on disk
    uint64_t host_bytes = 0;         // 0: what leaves the device is not kept in host memory
    std::string remote;              // redis://...; empty: none
    std::string remote_password_file;
  } kv;
  struct {
    DeviceKind kind = DeviceKind::kCpu;
    std::string variant;  // empty: the best that this processor runs
    int32_t threads = 0;  // 0: as many as the process may use
    bool deterministic = false;
    bool graphs = true;               // of GPUs: launches that come again become one
    bool unproven_operators = false;  // of NPUs
    int32_t library_rows = 64;        // of GPUs: from which the maker multiplies; 0: never
    uint64_t sim_memory_bytes = 4 * kGiB;
    uint64_t sim_link_bytes_per_s = 12 * kGiB;
    int64_t sim_link_latency_us = 10;
    std::string opencl_device;  // number or part of a name; empty: the first that is no CPU
    int32_t number = 0;         // of the kinds that have a maker's driver
    uint64_t memory_bytes = 0;  // of a chip's own memory; 0: what is to be had
  } device;
  struct {
    std::string level = "info";
    std::string format = "text";
    std::string file;    // empty: standard error
    std::string access;  // empty: no access log
  } log;
  std::vector<ModelConfig> models;
  std::vector<TenantConfig> tenants;
};

// One key of the table. `set` reads the text form and checks it (InvalidArgument says what would be
// right, without naming the key); `get` is its inverse.
template <typename Target>
struct ConfigKeyOf {
  std::string_view name;  // "memory.device_budget"
  std::string_view kind;  // "size or auto", as in documents
  std::string_view default_text;
  std::string_view help;
  absl::Status (*set)(std::string_view text, Target* target);
  std::string (*get)(const Target& target);
};
using ConfigKey = ConfigKeyOf<Config>;
using ModelConfigKey = ConfigKeyOf<ModelConfig>;
using TenantConfigKey = ConfigKeyOf<TenantConfig>;

std::span<const ConfigKey> ConfigKeys();
std::span<const ModelConfigKey> ModelConfigKeys();    // of an entry of `models`
std::span<const TenantConfigKey> TenantConfigKeys();  // of an entry of `tenants`

// "TERRACE_MEMORY_DEVICE_BUDGET" for "memory.device_budget".
std::string EnvironmentName(std::string_view key);

// Where settings come from; a later one wins: the file, the environment, flags. Models of all three
// are taken together.
struct ConfigInputs {
  std::string file;  // its name, for messages and for paths in it; empty: no file
  std::string yaml;  // its content
  std::vector<std::pair<std::string, std::string>> environment;  // only TERRACE_... is looked at
  std::vector<std::pair<std::string, std::string>> flags;        // key (without --) and value
  std::vector<std::string> models;                               // NAME=SOURCE of --model
};

struct LoadedConfig {
  Config config;
  // For each key that was set, by what: "terrace.yaml:3", "TERRACE_SERVER_PORT", "--server.port".
  std::map<std::string, std::string, std::less<>> origins;
  std::vector<std::string> warnings;  // a line each: variables that look like ours and are not
};

// InvalidArgument has a line for every fault found, each with its place and what would be right.
absl::StatusOr<LoadedConfig> LoadConfig(const ConfigInputs& inputs);

// The content of a configuration file of at most 1 MiB.
absl::StatusOr<std::string> ReadConfigFile(const std::string& path);

// A name and a path from NAME=SOURCE.
absl::StatusOr<ModelConfig> ParseModelFlag(std::string_view text);
// Model names: 1 to 128 of letters, digits and . _ : / @ + -, not beginning with a slash or dash.
absl::Status CheckModelName(std::string_view name);
// True if a model's source is a path (it has a slash or ends in .gguf) and not a name in the store.
bool IsPath(std::string_view source);

// A duration such as 300s, 5m, 200ms or 1h30m, in microseconds; not negative.
absl::StatusOr<int64_t> ParseDurationUs(std::string_view text);
std::string FormatDurationUs(int64_t us);

// Where Terrace keeps its files if storage.disk.path does not say: $XDG_DATA_HOME/terrace, else
// $HOME/.local/share/terrace, else /var/lib/terrace.
std::string DefaultDataFolder();

// The tables of docs/CONFIG.md.
std::string ConfigTableMarkdown();
std::string ModelConfigTableMarkdown();
std::string TenantConfigTableMarkdown();

}  // namespace terrace::server

#endif  // TERRACE_SERVER_CONFIG_H_
