// The table of configuration keys.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/status.h"
#include "server/config.h"
#include "server/config_values.h"

namespace terrace::server {
namespace {

using std::string_view;

constexpr std::pair<DeviceKind, string_view> kDeviceKinds[] = {{DeviceKind::kCpu, "cpu"},
                                                               {DeviceKind::kSim, "sim"},
                                                               {DeviceKind::kOpenCl, "opencl"},
                                                               {DeviceKind::kGpu, "gpu"},
                                                               {DeviceKind::kNpu, "npu"}};

using absl::Status;
using In = const Config&;

const ConfigKey kKeys[] = {
    {"server.host", "address", "127.0.0.1",
     "Address to listen on; 0.0.0.0 or :: for every interface.",
     [](string_view t, Config* c) { return SetText(t, &c->server.host); },
     [](In c) { return c.server.host; }},
    {"server.port", "port", "8000", "HTTP port of the API; 0 takes any free one.",
     [](string_view t, Config* c) { return SetPort(t, false, &c->server.port); },
     [](In c) { return PortText(c.server.port); }},
    {"server.grpc_port", "port or off", "8001",
     "gRPC port of the KServe v2 protocol; 0 takes any free one.",
     [](string_view t, Config* c) { return SetPort(t, true, &c->server.grpc_port); },
     [](In c) { return PortText(c.server.grpc_port); }},
    {"server.metrics_port", "port or off", "8002",
     "HTTP port for Prometheus (/metrics); 0 takes any free one.",
     [](string_view t, Config* c) { return SetPort(t, true, &c->server.metrics_port); },
     [](In c) { return PortText(c.server.metrics_port); }},
    {"server.admin_port", "port or off", "8003",
     "HTTP port of the console and of the admin API; 0 takes any free one.",
     [](string_view t, Config* c) { return SetPort(t, true, &c->server.admin_port); },
     [](In c) { return PortText(c.server.admin_port); }},
    {"server.admin_host", "address", "127.0.0.1", "Address that the admin port listens on.",
     [](string_view t, Config* c) { return SetText(t, &c->server.admin_host); },
     [](In c) { return c.server.admin_host; }},
    {"server.allow", "networks or all", "all",
     "Networks whose clients may use the API, such as `10.0.0.0/8, 192.0.2.7`; others get 403.",
     [](string_view t, Config* c) { return SetNetworks(t, &c->server.allow); },
     [](In c) { return TextOr("all", c.server.allow); }},
    {"server.admin_allow", "networks or all", "all", "The same for the admin port.",
     [](string_view t, Config* c) { return SetNetworks(t, &c->server.admin_allow); },
     [](In c) { return TextOr("all", c.server.admin_allow); }},
    {"server.metrics_allow", "networks or all", "all", "The same for the metrics port.",
     [](string_view t, Config* c) { return SetNetworks(t, &c->server.metrics_allow); },
     [](In c) { return TextOr("all", c.server.metrics_allow); }},
    {"server.cors_origins", "origins or none", "none",
     "Web pages that may call from a browser, such as `https://example.org`, with commas between; "
     "`*` allows all. Pages of this machine always may.",
     [](string_view t, Config* c) { return SetTextOr("none", t, &c->server.cors_origins); },
     [](In c) { return TextOr("none", c.server.cors_origins); }},
    {"server.max_body", "size", "16MiB", "Largest request body; a larger one is answered with 413.",
     [](string_view t, Config* c) { return SetBytes(t, kKiB, &c->server.max_body_bytes); },
     [](In c) { return BytesText(c.server.max_body_bytes); }},
    {"server.drain_timeout", "duration", "30s",
     "How long a stopping server lets running requests end by themselves.",
     [](string_view t, Config* c) { return SetDuration(t, &c->server.drain_timeout_us); },
     [](In c) { return FormatDurationUs(c.server.drain_timeout_us); }},
    {"server.supervise", "on or off", "on",
     "Whether a small process beside the server starts it again within seconds when it is killed, "
     "crashes or hangs; the ports stay open meanwhile. off: that is left to whoever started it.",
     [](string_view t, Config* c) { return SetSwitch(t, &c->server.supervise); },
     [](In c) { return SwitchText(c.server.supervise); }},
    {"server.cgroup.cpu_weight", "number or off", "off",
     "cpu.weight (1 to 10000; others have 100) of a control group of its own that the server moves "
     "to at start, where it may (cgroup v2, delegated to it alone); where not, the log says why.",
     [](string_view t, Config* c) {
       c->server.cgroup_cpu_weight = 0;
       if (t == "off") return absl::OkStatus();
       return SetInteger(t, 1, 10'000, &c->server.cgroup_cpu_weight);
     },
     [](In c) {
       const int32_t weight = c.server.cgroup_cpu_weight;
       return weight == 0 ? std::string("off") : fmt::format("{}", weight);
     }},
    {"server.cgroup.cpus", "number or off", "off",
     "The most processors' time that the whole server may take (cpu.max of that group), such as "
     "1.5.",
     [](string_view t, Config* c) {
       c->server.cgroup_cpus = 0;
       if (t == "off") return absl::OkStatus();
       return SetNumbers(t, 0.01, 4096, {&c->server.cgroup_cpus, 1});
     },
     [](In c) {
       const double cpus = c.server.cgroup_cpus;
       return cpus == 0 ? std::string("off") : fmt::format("{}", cpus);
     }},
    {"server.cgroup.memory_high", "size or off", "off",
     "Host memory of the whole server above which the kernel slows it down and takes pages back "
     "(memory.high of that group); more than the budgets of `memory` together.",
     [](string_view t, Config* c) {
       return SetBytesOrOff(t, 64 * kMiB, &c->server.cgroup_memory_high);
     },
     [](In c) { return BytesOrOff(c.server.cgroup_memory_high); }},

    {"auth.required", "auto, always or never", "auto",
     "Whether requests need an API key. auto: once `terrace key add` has made one, and always "
     "when the server listens beyond this machine.",
     [](string_view t, Config* c) {
       return SetChoice(t, {"auto", "always", "never"}, &c->auth.required);
     },
     [](In c) { return c.auth.required; }},
    {"auth.keys", "file or auto", "auto",
     "File of the API keys' hashes. auto: keys.json in the folder of storage.disk.path.",
     [](string_view t, Config* c) { return SetTextOr("auto", t, &c->auth.keys); },
     [](In c) { return TextOr("auto", c.auth.keys); }},

    {"tls.certificate", "file or off", "off",
     "Certificate chain (PEM) of all ports but that of metrics; read again when it changes.",
     [](string_view t, Config* c) { return SetTextOr("off", t, &c->tls.certificate); },
     [](In c) { return TextOr("off", c.tls.certificate); }},
    {"tls.key", "file or off", "off", "Private key (PEM) of the certificate.",
     [](string_view t, Config* c) { return SetTextOr("off", t, &c->tls.key); },
     [](In c) { return TextOr("off", c.tls.key); }},

    {"memory.device_budget", "size or auto", "auto",
     "Device memory for weights, KV cache and workspace together. auto: what the device has free "
     "at start, less a margin.",
     [](string_view t, Config* c) {
       c->memory.device_budget_bytes.reset();
       if (t == "auto") return absl::OkStatus();
       uint64_t bytes = 0;
       Status status = SetBytes(t, kMiB, &bytes);
       if (status.ok()) c->memory.device_budget_bytes = bytes;
       return status;
     },
     [](In c) {
       return c.memory.device_budget_bytes ? BytesText(*c.memory.device_budget_bytes) : "auto";
     }},
    {"memory.swap_threshold", "share", "0.9",
     "Share of the device budget above which idle weights make room ahead of need.",
     [](string_view t, Config* c) { return SetRatio(t, &c->memory.swap_threshold); },
     [](In c) { return fmt::format("{}", c.memory.swap_threshold); }},
    {"memory.hot_keep_time", "duration", "5m",
     "How long an idle model keeps its place before others may take it; it gives way earlier only "
     "if nothing else fits.",
     [](string_view t, Config* c) { return SetDuration(t, &c->memory.hot_keep_us); },
     [](In c) { return FormatDurationUs(c.memory.hot_keep_us); }},
    {"memory.staging", "size", "32MiB",
     "Host memory for bytes on their way from disk to a device with memory of its own.",
     [](string_view t, Config* c) { return SetBytes(t, 8 * kMiB, &c->memory.staging_bytes); },
     [](In c) { return BytesText(c.memory.staging_bytes); }},
    {"memory.host_budget", "size or off", "off",
     "Host memory for staging and for copies of weights, from which they come back without the "
     "disk; for devices with memory of their own. off: staging only.",
     [](string_view t, Config* c) {
       return SetBytesOrOff(t, 8 * kMiB, &c->memory.host_budget_bytes);
     },
     [](In c) { return BytesOrOff(c.memory.host_budget_bytes); }},
    {"memory.eviction_policy", "cost, lru, lru-k or lfu", "cost",
     "Which idle weights go first. cost: the least likely to be used soon for what it takes to "
     "bring them back, by the model's sla; the others by use alone.",
     [](string_view t, Config* c) {
       return SetChoice(t, {"cost", "lru", "lru-k", "lfu"}, &c->memory.eviction_policy);
     },
     [](In c) { return c.memory.eviction_policy; }},
    {"memory.strict_check", "on or off", "off",
     "Read weights back after they were copied to a device with memory of its own, and compare.",
     [](string_view t, Config* c) { return SetSwitch(t, &c->memory.strict_check); },
     [](In c) { return std::string(c.memory.strict_check ? "on" : "off"); }},
    {"memory.trace_pages", "on or off", "off",
     "Count how often each 4 KiB page of a model's weights is read; `terrace profile pages` shows "
     "it.",
     [](string_view t, Config* c) { return SetSwitch(t, &c->memory.trace_pages); },
     [](In c) { return std::string(c.memory.trace_pages ? "on" : "off"); }},
    {"memory.expert_uploads", "size or off", "off",
     "For a model with experts that does not fit: bytes of experts that a step may exchange for "
     "others. Further ones are used and go first, so that a long prompt, which needs nearly all, "
     "does not push out those that are needed all the time.",
     [](string_view t, Config* c) {
       return SetBytesOrOff(t, kMiB, &c->memory.expert_upload_bytes);
     },
     [](In c) { return BytesOrOff(c.memory.expert_upload_bytes); }},

    {"storage.disk.path", "folder or auto", "auto",
     "Folder of the model store and of prepared images. auto: $XDG_DATA_HOME/terrace, else "
     "~/.local/share/terrace, else /var/lib/terrace.",
     [](string_view t, Config* c) { return SetTextOr("auto", t, &c->storage.disk_path); },
     [](In c) { return TextOr("auto", c.storage.disk_path); }},
    {"storage.disk.read_depth", "number", "16", "Reads in flight at once while weights are loaded.",
     [](string_view t, Config* c) { return SetInteger(t, 1, 64, &c->storage.read_depth); },
     [](In c) { return fmt::format("{}", c.storage.read_depth); }},
    {"storage.disk.size", "size or off", "off",
     "Most that the folder of storage.disk.path may take, as the file system counts; of it KV "
     "gets a quarter at most (kv.disk_size). What does not fit is not written: models are then "
     "read from their sources.",
     [](string_view t, Config* c) { return SetBytesOrOff(t, 8 * kMiB, &c->storage.disk_bytes); },
     [](In c) { return BytesOrOff(c.storage.disk_bytes); }},
    {"storage.disk.scrub", "duration or off", "168h",
     "While the disk is idle prepared images are read and compared with their checksums, each "
     "once in about this time; what is damaged is made anew from its source.",
     [](string_view t, Config* c) { return SetDurationOrOff(t, &c->storage.scrub_us); },
     [](In c) { return DurationOrOff(c.storage.scrub_us); }},
    {"storage.object.endpoint", "address or auto", "auto",
     "S3-compatible store of models whose source is s3://bucket/key. auto: AWS_ENDPOINT_URL_S3 or "
     "AWS_ENDPOINT_URL, else Amazon's own. Keys come from AWS_ACCESS_KEY_ID and "
     "AWS_SECRET_ACCESS_KEY.",
     [](string_view t, Config* c) { return SetTextOr("auto", t, &c->storage.object_endpoint); },
     [](In c) { return TextOr("auto", c.storage.object_endpoint); }},
    {"storage.object.region", "name or auto", "auto",
     "The region that requests to it are signed for. auto: AWS_REGION or AWS_DEFAULT_REGION, else "
     "us-east-1.",
     [](string_view t, Config* c) { return SetTextOr("auto", t, &c->storage.object_region); },
     [](In c) { return TextOr("auto", c.storage.object_region); }},
    {"storage.object.addressing", "auto, path or virtual", "auto",
     "Whether the bucket is in the path of requests to it, or in front of the host's name. auto: "
     "AWS_S3_ADDRESSING_STYLE, else path where an endpoint is set.",
     [](string_view t, Config* c) {
       Status status = SetChoice(t, {"auto", "path", "virtual"}, &c->storage.object_addressing);
       if (c->storage.object_addressing == "auto") c->storage.object_addressing.clear();
       return status;
     },
     [](In c) { return TextOr("auto", c.storage.object_addressing); }},
    {"storage.object.ca", "file or auto", "auto",
     "Certificates that the store's is checked by (PEM), where it is of an authority of one's own. "
     "auto: AWS_CA_BUNDLE, else the system's.",
     [](string_view t, Config* c) { return SetTextOr("auto", t, &c->storage.object_ca); },
     [](In c) { return TextOr("auto", c.storage.object_ca); }},
    {"storage.object.patience", "duration", "10s",
     "How long a store that refuses or does not answer is asked again when a model in it is "
     "opened, "
     "with growing pauses.",
     [](string_view t, Config* c) { return SetDuration(t, &c->storage.object_patience_us); },
     [](In c) { return FormatDurationUs(c.storage.object_patience_us); }},

    {"scheduler.max_queue", "number", "1024",
     "Requests that may wait; one more is answered with 429.",
     [](string_view t, Config* c) { return SetInteger(t, 1, 1'000'000, &c->scheduler.max_queue); },
     [](In c) { return fmt::format("{}", c.scheduler.max_queue); }},
    {"scheduler.max_batch", "number", "16", "Sequences of one model that run in one step.",
     [](string_view t, Config* c) { return SetInteger(t, 1, 1024, &c->scheduler.max_batch); },
     [](In c) { return fmt::format("{}", c.scheduler.max_batch); }},
    {"scheduler.step_tokens", "number", "512",
     "Tokens computed in one step; longer prompts are read in pieces of this size.",
     [](string_view t, Config* c) { return SetInteger(t, 16, 65536, &c->scheduler.step_tokens); },
     [](In c) { return fmt::format("{}", c.scheduler.step_tokens); }},
    {"scheduler.max_wait", "duration", "2s",
     "After this long a waiting model gets its turn, whatever else would be cheaper.",
     [](string_view t, Config* c) { return SetDuration(t, &c->scheduler.max_wait_us); },
     [](In c) { return FormatDurationUs(c.scheduler.max_wait_us); }},

    {"scheduler.stretch", "factor or off", "1.7",
     "How much longer than its streams alone a step may take because prompts are read in it; it "
     "bounds the gaps between the tokens of a stream.",
     [](string_view t, Config* c) { return SetFactor(t, &c->scheduler.stretch); },
     [](In c) {
       return c.scheduler.stretch == 0 ? "off" : fmt::format("{}", c.scheduler.stretch);
     }},

    {"scheduler.decode_slowdown", "share or off", "0.08",
     "By how much longer than alone the steps of streams may take because weights of other models "
     "are loaded meanwhile; the loads move slower then, unless their requests are more urgent or "
     "have waited scheduler.max_wait. off: loads always move as fast as they can.",
     [](string_view t, Config* c) {
       c->scheduler.decode_slowdown = 0;
       return t == "off" ? absl::OkStatus() : SetRatio(t, &c->scheduler.decode_slowdown);
     },
     [](In c) {
       return c.scheduler.decode_slowdown == 0 ? "off"
                                               : fmt::format("{}", c.scheduler.decode_slowdown);
     }},
    {"scheduler.aging", "duration", "30s",
     "A waiting request counts as one class better after this long, so that batch work is not "
     "starved.",
     [](string_view t, Config* c) { return SetDuration(t, &c->scheduler.aging_us); },
     [](In c) { return FormatDurationUs(c.scheduler.aging_us); }},
    {"scheduler.min_residency", "duration", "0",
     "A model that has been given the turn keeps it at least this long while it has work.",
     [](string_view t, Config* c) { return SetDuration(t, &c->scheduler.min_residency_us); },
     [](In c) { return FormatDurationUs(c.scheduler.min_residency_us); }},
    {"scheduler.qps_weight", "number", "0.7",
     "Weight of throughput when the next model is chosen: models with many waiting requests and "
     "little to load come first.",
     [](string_view t, Config* c) { return SetWeight(t, &c->scheduler.qps_weight); },
     [](In c) { return fmt::format("{}", c.scheduler.qps_weight); }},
    {"scheduler.latency_weight", "number", "0.3",
     "Weight of waiting time when the next model is chosen: who has waited longest comes first.",
     [](string_view t, Config* c) { return SetWeight(t, &c->scheduler.latency_weight); },
     [](In c) { return fmt::format("{}", c.scheduler.latency_weight); }},
    {"scheduler.link_shares", "four numbers", "100 25 5 1",
     "How realtime, standard and batch requests, and what is fetched ahead of any, divide a link "
     "(disk, source, device) while several of them wait for bytes.",
     [](string_view t, Config* c) { return SetNumbers(t, 0.01, 1e6, c->scheduler.link_shares); },
     [](In c) { return fmt::format("{}", fmt::join(c.scheduler.link_shares, " ")); }},
    {"scheduler.tenant_running", "number", "0",
     "Most requests of one tenant that run at once; 0 sets no limit.",
     [](string_view t, Config* c) {
       return SetInteger(t, 0, 1'000'000, &c->scheduler.tenant_running);
     },
     [](In c) { return fmt::format("{}", c.scheduler.tenant_running); }},

    {"watchdog.timeout", "duration or off", "2s",
     "An engine that has work and neither computes nor waits for bytes for this long counts as "
     "hung, and so do one without work that gives no sign of life when asked for one, and one "
     "that computes, or waits, for 20 times as long without any progress: the server says so to "
     "its clients, ends, and is started again.",
     [](string_view t, Config* c) { return SetDurationOrOff(t, &c->watchdog.timeout_us); },
     [](In c) { return DurationOrOff(c.watchdog.timeout_us); }},

    {"kv.dtype", "f16 or i8", "f16",
     "Form of keys and values in the KV cache; i8 takes about half the memory of f16, with a "
     "scale for each token and head.",
     [](string_view t, Config* c) { return SetChoice(t, {"f16", "i8"}, &c->kv.dtype); },
     [](In c) { return c.kv.dtype; }},
    {"kv.disk_size", "size or off", "8GiB",
     "Most that KV kept on disk may take, in the folder kv of storage.disk.path; conversations "
     "that return are read from there.",
     [](string_view t, Config* c) { return SetBytesOrOff(t, kMiB, &c->kv.disk_bytes); },
     [](In c) { return BytesOrOff(c.kv.disk_bytes); }},
    {"kv.host_size", "size or off", "off",
     "Host memory for KV that left a device with its own memory; part of memory.host_budget.",
     [](string_view t, Config* c) { return SetBytesOrOff(t, kMiB, &c->kv.host_bytes); },
     [](In c) { return BytesOrOff(c.kv.host_bytes); }},
    {"kv.remote", "address or off", "off",
     "A store that speaks the Redis protocol, shared by several servers: "
     "redis://[user@]host[:port][/database].",
     [](string_view t, Config* c) { return SetTextOr("off", t, &c->kv.remote); },
     [](In c) { return TextOr("off", c.kv.remote); }},
    {"kv.remote_password_file", "file or none", "none",
     "A file with the password of kv.remote in its first line.",
     [](string_view t, Config* c) { return SetTextOr("none", t, &c->kv.remote_password_file); },
     [](In c) { return TextOr("none", c.kv.remote_password_file); }},

    {"device.kind", "cpu, sim, opencl, gpu or npu", "cpu",
     "cpu: compute in host memory. sim: the same with a memory of its own behind a link of set "
     "speed, a stand-in for an accelerator. opencl: a chip with a memory of its own, through the "
     "OpenCL driver that the machine has. gpu, npu: one through its maker's own driver. "
     "docs/DEVICES.md says which there are and how far each is proven.",
     [](string_view t, Config* c) {
       std::string kind;
       Status status = SetChoice(t, {"cpu", "sim", "opencl", "gpu", "npu"}, &kind);
       if (!status.ok()) return status;
       for (const auto& [known, name] : kDeviceKinds) {
         if (name == kind) c->device.kind = known;
       }
       return status;
     },
     [](In c) { return std::string(DeviceKindName(c.device.kind)); }},
    {"device.variant", "name or auto", "auto",
     "Kernels to use, by a name that `terrace debug variants` lists. auto: the fastest that this "
     "processor runs.",
     [](string_view t, Config* c) { return SetTextOr("auto", t, &c->device.variant); },
     [](In c) { return TextOr("auto", c.device.variant); }},
    {"device.threads", "number or auto", "auto",
     "Threads that compute. auto: the processors that this process may use.",
     [](string_view t, Config* c) {
       c->device.threads = 0;
       return t == "auto" ? absl::OkStatus() : SetInteger(t, 1, 1024, &c->device.threads);
     },
     [](In c) { return c.device.threads ? fmt::format("{}", c.device.threads) : "auto"; }},
    {"device.deterministic", "true or false", "false",
     "true: an answer at temperature 0, or with a seed, is the same bit by bit whatever the number "
     "of threads and whatever else is computed with it. false: it may differ by "
     "rounding; see Determinism.",
     [](string_view t, Config* c) {
       std::string word;
       Status status = SetChoice(t, {"true", "false"}, &word);
       if (status.ok()) c->device.deterministic = word == "true";
       return status;
     },
     [](In c) { return std::string(c.device.deterministic ? "true" : "false"); }},
    {"device.graphs", "true or false", "true",
     "Of device.kind gpu. true: kernel launches that come again with the same arguments, as in "
     "decoding, are handed to the driver as one graph, where it has those. false: one by one.",
     [](string_view t, Config* c) {
       std::string word;
       Status status = SetChoice(t, {"true", "false"}, &word);
       if (status.ok()) c->device.graphs = word == "true";
       return status;
     },
     [](In c) { return std::string(c.device.graphs ? "true" : "false"); }},
    {"device.unproven_operators", "true or false", "false",
     "Of device.kind npu. true: operators of a maker's library that has no public interface, "
     "called "
     "as public programs call it, are used where a trial at the start gives right results. false: "
     "the host computes them.",
     [](string_view t, Config* c) {
       std::string word;
       Status status = SetChoice(t, {"true", "false"}, &word);
       if (status.ok()) c->device.unproven_operators = word == "true";
       return status;
     },
     [](In c) { return std::string(c.device.unproven_operators ? "true" : "false"); }},
    {"device.library_rows", "number or off", "64",
     "Of device.kind gpu. Rows from which F16 and BF16 matrices are multiplied by the maker's "
     "library, where it is installed; other formats from eight times as many, and only where the "
     "device has no tile product of its own. off: never. Not with device.deterministic.",
     [](string_view t, Config* c) {
       c->device.library_rows = 0;
       return t == "off" ? absl::OkStatus() : SetInteger(t, 2, 65536, &c->device.library_rows);
     },
     [](In c) { return c.device.library_rows ? fmt::format("{}", c.device.library_rows) : "off"; }},
    {"device.sim.memory", "size", "4GiB", "Memory of the sim device.",
     [](string_view t, Config* c) { return SetBytes(t, kMiB, &c->device.sim_memory_bytes); },
     [](In c) { return BytesText(c.device.sim_memory_bytes); }},
    {"device.sim.link_bandwidth", "size per second", "12GiB/s",
     "Bytes a second between host and sim device, each way.",
     [](string_view t, Config* c) {
       string_view size = t.ends_with("/s") ? t.substr(0, t.size() - 2) : t;
       return SetBytes(size, kMiB, &c->device.sim_link_bytes_per_s);
     },
     [](In c) { return BytesText(c.device.sim_link_bytes_per_s) + "/s"; }},
    {"device.sim.link_latency", "duration", "10us", "Time that each copy takes beside its bytes.",
     [](string_view t, Config* c) { return SetDuration(t, &c->device.sim_link_latency_us); },
     [](In c) { return FormatDurationUs(c.device.sim_link_latency_us); }},

    {"device.opencl.device", "number, name or auto", "auto",
     "Which OpenCL device: its number, or a part of its or its platform's name. auto: the first "
     "that is not a CPU, else the first.",
     [](string_view t, Config* c) { return SetTextOr("auto", t, &c->device.opencl_device); },
     [](In c) { return TextOr("auto", c.device.opencl_device); }},
    {"device.number", "number", "0", "Which GPU or NPU, as its maker's driver counts them.",
     [](string_view t, Config* c) { return SetInteger(t, 0, 1023, &c->device.number); },
     [](In c) { return fmt::format("{}", c.device.number); }},
    {"device.memory", "size or auto", "auto",
     "Memory to take on an OpenCL device, a GPU or an NPU. auto: what is free, but for half a GiB "
     "for its driver; of OpenCL what the device says it has, of a CPU half of that.",
     [](string_view t, Config* c) {
       c->device.memory_bytes = 0;
       return t == "auto" ? absl::OkStatus() : SetBytes(t, kMiB, &c->device.memory_bytes);
     },
     [](In c) { return c.device.memory_bytes ? BytesText(c.device.memory_bytes) : "auto"; }},

    {"log.level", "debug, info, warning, error or off", "info", "Lines below it are not written.",
     [](string_view t, Config* c) {
       return SetChoice(t, {"debug", "info", "warning", "error", "off"}, &c->log.level);
     },
     [](In c) { return c.log.level; }},
    {"log.format", "text or json", "text", "Form of the lines of both logs.",
     [](string_view t, Config* c) { return SetChoice(t, {"text", "json"}, &c->log.format); },
     [](In c) { return c.log.format; }},
    {"log.file", "file or stderr", "stderr", "Where the server's own log goes.",
     [](string_view t, Config* c) { return SetTextOr("stderr", t, &c->log.file); },
     [](In c) { return TextOr("stderr", c.log.file); }},
    {"log.access", "file or off", "off",
     "Where the access log goes: a line a request with model, lengths, status and times, no "
     "content.",
     [](string_view t, Config* c) { return SetTextOr("off", t, &c->log.access); },
     [](In c) { return TextOr("off", c.log.access); }},
};

using InModel = const ModelConfig&;

const ModelConfigKey kModelKeys[] = {
    {"name", "name", "", "What requests call the model. Needed.",
     [](string_view t, ModelConfig* m) {
       Status status = CheckModelName(t);
       if (status.ok()) m->name = t;
       return status;
     },
     [](InModel m) { return m.name; }},
    {"source", "path, name or URL", "",
     "A GGUF file (any part of a split set), a folder with a safetensors checkpoint, the name of "
     "a model in the store, or the s3:, http: or https: URL of a GGUF file, which is served while "
     "it comes to the disk. Needed.",
     [](string_view t, ModelConfig* m) { return SetText(t, &m->source); },
     [](InModel m) { return m.source; }},
    {"hot_keep_time", "duration", "memory.hot_keep_time",
     "How long this model keeps its place when idle.",
     [](string_view t, ModelConfig* m) {
       int64_t us = 0;
       Status status = SetDuration(t, &us);
       if (status.ok()) m->hot_keep_us = us;
       return status;
     },
     [](InModel m) {
       return m.hot_keep_us ? FormatDurationUs(*m.hot_keep_us) : "memory.hot_keep_time";
     }},
    {"sha256", "hex or none", "none",
     "What the SHA-256 of the file at a URL must be. With it the model is served only when the "
     "whole file is there and right.",
     [](string_view t, ModelConfig* m) {
       const bool hex = t.size() == 64 && t.find_first_not_of("0123456789abcdef") == t.npos;
       if (t != "none" && !hex)
         return absl::InvalidArgumentError("it must be 64 hexadecimal digits in lower case");
       m->sha256 = t == "none" ? "" : t;
       return absl::OkStatus();
     },
     [](InModel m) { return TextOr("none", m.sha256); }},
    {"base", "name or none", "none",
     "Makes the entry a LoRA adapter for the model of that name, another entry: source is then a "
     "folder of the PEFT library or a GGUF adapter. Context, KV form and speculation are its "
     "base's.",
     [](string_view t, ModelConfig* m) {
       m->base = t == "none" ? "" : t;
       return t == "none" ? absl::OkStatus() : CheckModelName(t);
     },
     [](InModel m) { return TextOr("none", m.base); }},
    {"rerank", "auto, vectors or judge", "auto",
     "How /v1/rerank scores documents. vectors: by the likeness of vectors. judge: by asking the "
     "model, which must be a Qwen3 reranker, for yes or no. auto: judge if its name has "
     "\"rerank\".",
     [](string_view t, ModelConfig* m) {
       return SetChoice(t, {"auto", "vectors", "judge"}, &m->rerank);
     },
     [](InModel m) { return m.rerank; }},
    {"sla", "realtime, standard or batch", "standard",
     "How much it matters that the model answers soon: weighs its weights against others' when "
     "memory is short (memory.eviction_policy: cost).",
     [](string_view t, ModelConfig* m) {
       return SetChoice(t, {"realtime", "standard", "batch"}, &m->sla);
     },
     [](InModel m) { return m.sla; }},
    {"max_context", "number or auto", "auto",
     "Longest prompt and answer together, in tokens. auto: what the model was trained for.",
     [](string_view t, ModelConfig* m) {
       m->max_context = 0;
       return t == "auto" ? absl::OkStatus() : SetInteger(t, 16, 1 << 24, &m->max_context);
     },
     [](InModel m) { return m.max_context ? fmt::format("{}", m.max_context) : "auto"; }},
    {"kv_dtype", "f16 or i8", "kv.dtype", "Form of this model's keys and values.",
     [](string_view t, ModelConfig* m) { return SetChoice(t, {"f16", "i8"}, &m->kv_dtype); },
     [](InModel m) { return TextOr("kv.dtype", m.kv_dtype); }},
    {"speculation", "off, ngram or draft:NAME", "off",
     "How tokens are guessed ahead, which changes speed and never answers. ngram: what followed "
     "the same words before. draft:NAME: what the model NAME (with the same vocabulary) says.",
     [](string_view t, ModelConfig* m) {
       if (t.starts_with("draft:")) {
         Status status = CheckModelName(t.substr(6));
         if (status.ok()) m->speculation = t;
         return status;
       }
       return SetChoice(t, {"off", "ngram"}, &m->speculation);
     },
     [](InModel m) { return m.speculation; }},
    {"tensor_parallel", "number", "1",
     "Devices that divide the model's attention, FFNs and vocabulary among themselves "
     "(PARALLEL.md). All models that are divided have the same number of devices.",
     [](string_view t, ModelConfig* m) { return SetInteger(t, 1, 64, &m->tensor_parallel); },
     [](InModel m) { return fmt::format("{}", m.tensor_parallel); }},
    {"expert_parallel", "number", "1",
     "Devices that divide the model's experts among themselves, each expert whole.",
     [](string_view t, ModelConfig* m) { return SetInteger(t, 1, 64, &m->expert_parallel); },
     [](InModel m) { return fmt::format("{}", m.expert_parallel); }},
    {"speculation_tokens", "number", "4", "Most tokens guessed at once.",
     [](string_view t, ModelConfig* m) { return SetInteger(t, 1, 15, &m->speculation_tokens); },
     [](InModel m) { return fmt::format("{}", m.speculation_tokens); }},
    {"traffic", "share or none", "none",
     "Of a model named NAME@VERSION: the share of the requests for NAME that it gets, to try a "
     "version out.",
     [](string_view t, ModelConfig* m) {
       m->traffic = 0;
       return t == "none" ? absl::OkStatus() : SetRatio(t, &m->traffic);
     },
     [](InModel m) { return m.traffic == 0 ? "none" : fmt::format("{}", m.traffic); }},
    {"rollback_errors", "share", "0.05",
     "Share of its last requests that may fail before such a version gets no more of them.",
     [](string_view t, ModelConfig* m) { return SetRatio(t, &m->rollback_errors); },
     [](InModel m) { return fmt::format("{}", m.rollback_errors); }},
};

}  // namespace

string_view DeviceKindName(DeviceKind kind) {
  for (const auto& [known, name] : kDeviceKinds) {
    if (known == kind) return name;
  }
  return "";
}

std::span<const ConfigKey> ConfigKeys() { return kKeys; }
std::span<const ModelConfigKey> ModelConfigKeys() { return kModelKeys; }

}  // namespace terrace::server
