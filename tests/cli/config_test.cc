#include "server/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "base/status.h"

namespace terrace::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

ConfigInputs File(std::string yaml) {
  ConfigInputs inputs;
  inputs.file = "conf/terrace.yaml";
  inputs.yaml = std::move(yaml);
  return inputs;
}

std::string ErrorOf(const ConfigInputs& inputs) {
  absl::StatusOr<LoadedConfig> loaded = LoadConfig(inputs);
  EXPECT_FALSE(loaded.ok()) << "this was taken as valid";
  EXPECT_EQ(loaded.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(Message(loaded.status()));
}
std::string ErrorOf(std::string yaml) { return ErrorOf(File(std::move(yaml))); }

TEST(ConfigKeysTest, DefaultsOfTheTableAreThoseOfTheStruct) {
  for (const ConfigKey& key : ConfigKeys()) {
    SCOPED_TRACE(key.name);
    Config from_struct;
    Config from_text;
    EXPECT_EQ(key.get(from_struct), [&] {
      EXPECT_TRUE(key.set(key.default_text, &from_text).ok()) << key.default_text;
      return key.get(from_text);
    }());
  }
  ModelConfig model;
  for (const ModelConfigKey& key : ModelConfigKeys()) {
    EXPECT_EQ(key.get(model), key.default_text) << key.name;
  }
}

// A value other than the default for every key.
const std::map<std::string_view, std::string_view> kOtherValues = {
    {"server.host", "0.0.0.0"},
    {"server.supervise", "off"},
    {"server.port", "9000"},
    {"server.grpc_port", "off"},
    {"server.metrics_port", "off"},
    {"server.admin_port", "off"},
    {"server.admin_host", "0.0.0.0"},
    {"server.allow", "10.0.0.0/8, ::1"},
    {"server.admin_allow", "10.0.0.0/8"},
    {"server.metrics_allow", "10.0.0.0/8"},
    {"server.cors_origins", "https://example.org"},
    {"auth.required", "always"},
    {"auth.keys", "/k/keys.json"},
    {"tls.certificate", "/k/cert.pem"},
    {"tls.key", "/k/key.pem"},
    {"server.max_body", "3MiB"},
    {"server.drain_timeout", "1m"},
    {"memory.device_budget", "6GiB"},
    {"memory.swap_threshold", "0.5"},
    {"memory.hot_keep_time", "7s"},
    {"memory.staging", "64MiB"},
    {"memory.host_budget", "1GiB"},
    {"memory.eviction_policy", "lru"},
    {"memory.strict_check", "on"},
    {"memory.expert_uploads", "3MiB"},
    {"memory.trace_pages", "on"},
    {"storage.disk.scrub", "1h"},
    {"kv.host_size", "64MiB"},
    {"storage.disk.size", "1GiB"},
    {"storage.object.endpoint", "http://store"},
    {"storage.object.region", "eu"},
    {"storage.object.addressing", "virtual"},
    {"storage.object.ca", "/k/ca.pem"},
    {"storage.object.patience", "3s"},
    {"device.deterministic", "true"},
    {"device.graphs", "false"},
    {"device.library_rows", "off"},
    {"device.unproven_operators", "true"},
    {"storage.disk.path", "/data"},
    {"storage.disk.read_depth", "3"},
    {"scheduler.max_queue", "5"},
    {"scheduler.max_batch", "2"},
    {"scheduler.step_tokens", "64"},
    {"scheduler.max_wait", "250ms"},
    {"scheduler.stretch", "2.5"},
    {"scheduler.aging", "5s"},
    {"scheduler.min_residency", "1s"},
    {"scheduler.qps_weight", "0.5"},
    {"scheduler.latency_weight", "0.5"},
    {"scheduler.decode_slowdown", "0.25"},
    {"scheduler.link_shares", "8 4 2 0.5"},
    {"server.cgroup.cpu_weight", "50"},
    {"server.cgroup.cpus", "1.5"},
    {"server.cgroup.memory_high", "1GiB"},
    {"scheduler.tenant_running", "4"},
    {"watchdog.timeout", "off"},
    {"kv.dtype", "i8"},
    {"kv.disk_size", "64MiB"},
    {"kv.remote", "redis://kv"},
    {"kv.remote_password_file", "/secret"},
    {"device.kind", "sim"},
    {"device.variant", "portable"},
    {"device.threads", "3"},
    {"device.sim.memory", "1GiB"},
    {"device.sim.link_bandwidth", "1GiB/s"},
    {"device.sim.link_latency", "1ms"},
    {"device.opencl.device", "1"},
    {"device.number", "2"},
    {"device.memory", "3GiB"},
    {"log.level", "debug"},
    {"log.format", "json"},
    {"log.file", "/log"},
    {"log.access", "/access"},
};

// Setting one key must change it and no other.
TEST(ConfigKeysTest, EachKeySetsItsOwnFieldOnly) {
  for (const ConfigKey& key : ConfigKeys()) {
    SCOPED_TRACE(key.name);
    ASSERT_TRUE(kOtherValues.contains(key.name)) << "give this key a value above";
    ConfigInputs inputs;
    inputs.flags = {{std::string(key.name), std::string(kOtherValues.at(key.name))}};
    absl::StatusOr<LoadedConfig> loaded = LoadConfig(inputs);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    for (const ConfigKey& other : ConfigKeys()) {
      std::string expected(other.name == key.name ? kOtherValues.at(key.name) : other.default_text);
      // Durations print in their own normal form.
      Config normal;
      ASSERT_TRUE(other.set(expected, &normal).ok());
      EXPECT_EQ(other.get(loaded->config), other.get(normal)) << other.name;
    }
    EXPECT_NE(key.get(loaded->config), key.get(Config())) << "the value above is the default";
  }
}

TEST(ConfigKeysTest, EnvironmentNamesAreDistinct) {
  std::set<std::string> names;
  for (const ConfigKey& key : ConfigKeys()) {
    EXPECT_TRUE(names.insert(EnvironmentName(key.name)).second) << key.name;
  }
  EXPECT_TRUE(names.contains("TERRACE_DEVICE_SIM_LINK_BANDWIDTH"));
}

TEST(ConfigTest, ReadsAFileOfEveryKindOfValue) {
  absl::StatusOr<LoadedConfig> loaded = LoadConfig(File(R"(
# A comment.
server: {host: 0.0.0.0, port: 8100, metrics_port: off}
memory:
  device_budget: 1.5GiB
  hot_keep_time: 600s
device:
  kind: sim
  sim: {memory: 2GiB, link_bandwidth: 500MiB/s, link_latency: 20us}
models:
  - {name: chat, source: models/chat.gguf, hot_keep_time: 10m, max_context: 4096}
  - name: other
    source: /abs/other.gguf
  - {name: stored, source: qwen3}
)"));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const Config& c = loaded->config;
  EXPECT_EQ(c.server.host, "0.0.0.0");
  EXPECT_EQ(c.server.port, 8100);
  EXPECT_EQ(c.server.metrics_port, -1);
  EXPECT_EQ(c.memory.device_budget_bytes, kGiB + kGiB / 2);
  EXPECT_EQ(c.memory.hot_keep_us, 600'000'000);
  EXPECT_EQ(c.device.kind, DeviceKind::kSim);
  EXPECT_EQ(c.device.sim_link_bytes_per_s, 500 * kMiB);
  EXPECT_EQ(c.device.sim_link_latency_us, 20);
  ASSERT_EQ(c.models.size(), 3u);
  EXPECT_EQ(c.models[0].source, "conf/models/chat.gguf")
      << "paths are meant from the file's folder";
  EXPECT_EQ(c.models[0].hot_keep_us, 600'000'000);
  EXPECT_EQ(c.models[0].max_context, 4096);
  EXPECT_EQ(c.models[1].source, "/abs/other.gguf");
  EXPECT_FALSE(c.models[1].hot_keep_us.has_value());
  EXPECT_EQ(c.models[2].source, "qwen3") << "a name in the store is not a path";
  EXPECT_EQ(loaded->origins.at("server.port"), "conf/terrace.yaml:3");
  EXPECT_EQ(loaded->origins.at("device.sim.memory"), "conf/terrace.yaml:9");
  EXPECT_FALSE(loaded->origins.contains("log.level"));
}

TEST(ConfigTest, EmptyFilesAndEmptySectionsAreDefaults) {
  for (const char* yaml : {"", "# nothing\n", "server:\nmodels:\n", "{}", "---\n...\n"}) {
    absl::StatusOr<LoadedConfig> loaded = LoadConfig(File(yaml));
    ASSERT_TRUE(loaded.ok()) << yaml << ": " << loaded.status();
    EXPECT_EQ(loaded->config.server.port, 8000);
  }
}

TEST(ConfigTest, FlagsWinOverEnvironmentOverFile) {
  ConfigInputs inputs = File(
      "server: {host: a, port: 1, max_body: 1MiB}\n"
      "models: [{name: m1, source: 1.gguf}]\n");
  inputs.environment = {{"TERRACE_SERVER_PORT", "2"},
                        {"TERRACE_SERVER_HOST", "b"},
                        {"TERRACE_MODELS", "m2=2.gguf, m3=3.gguf"},
                        {"PATH", "/bin"}};
  inputs.flags = {{"server.port", "3"}};
  inputs.models = {"m4=4.gguf"};
  absl::StatusOr<LoadedConfig> loaded = LoadConfig(inputs);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->config.server.port, 3);
  EXPECT_EQ(loaded->config.server.host, "b");
  EXPECT_EQ(loaded->config.server.max_body_bytes, kMiB);
  EXPECT_EQ(loaded->origins.at("server.port"), "--server.port");
  EXPECT_EQ(loaded->origins.at("server.host"), "TERRACE_SERVER_HOST");
  std::vector<std::string> names;
  for (const ModelConfig& model : loaded->config.models) names.push_back(model.name);
  EXPECT_THAT(names, ElementsAre("m1", "m2", "m3", "m4"));
  EXPECT_EQ(loaded->config.models[1].source, "2.gguf") << "paths outside a file are left alone";
  EXPECT_TRUE(loaded->warnings.empty());
}

TEST(ConfigTest, UnknownKeysAreErrorsWithLineAndNearestName) {
  EXPECT_EQ(ErrorOf("memory:\n  device_bugdet: 1GiB\n"),
            "conf/terrace.yaml:2: unknown key 'memory.device_bugdet'; did you mean "
            "'memory.device_budget'?");
  EXPECT_EQ(ErrorOf("memroy: {device_budget: 1GiB}\n"),
            "conf/terrace.yaml:1: unknown key 'memroy'; did you mean 'memory'?");
  EXPECT_EQ(ErrorOf("metrics_port: 1\n"),
            "conf/terrace.yaml:1: unknown key 'metrics_port'; did you mean 'server.metrics_port'?");
  EXPECT_EQ(ErrorOf("models:\n  - name: m\n    sorce: m.gguf\n    source: m.gguf\n"),
            "conf/terrace.yaml:3: unknown key 'sorce' of a model; did you mean 'source'?");
  EXPECT_THAT(ErrorOf("scheduler: {zzzzzzzz: 1}"),
              HasSubstr("there are scheduler.max_queue, scheduler.max_batch"));
  ConfigInputs inputs;
  inputs.flags = {{"server.prot", "1"}};
  EXPECT_EQ(ErrorOf(inputs),
            "--server.prot: unknown key 'server.prot'; did you mean 'server.port'?");
}

// Keys of the design that no code reads yet must not be swallowed.
TEST(ConfigTest, KeysThatNothingReadsAreRefused) {
  for (const char* key : {"server: {http2: true}", "storage: {object: {bucket: b}}",
                          "models: [{name: a, source: b, regions: [DE]}]"}) {
    EXPECT_THAT(ErrorOf(std::string(key)), HasSubstr("unknown key")) << key;
  }
}

TEST(ConfigTest, AllFaultsAreListedAtOnce) {
  std::string error = ErrorOf(
      "server:\n  port: 99999\n  host: ''\nmemory:\n  swap_threshold: 2\n"
      "models:\n  - {name: 'a b', source: x}\n  - {name: c}\n");
  EXPECT_THAT(error,
              AllOf(HasSubstr("conf/terrace.yaml:2: server.port: '99999' is not a port"),
                    HasSubstr("conf/terrace.yaml:3: server.host: the value is empty"),
                    HasSubstr("conf/terrace.yaml:5: memory.swap_threshold: '2'"),
                    HasSubstr("conf/terrace.yaml:7: models: name: 'a b' is not a model name"),
                    HasSubstr("conf/terrace.yaml:8: a model needs a source")));
}

TEST(ConfigTest, BadValuesSayWhatWouldBeRight) {
  const std::pair<const char*, const char*> cases[] = {
      {"server: {port: -1}", "a number from 0 (any free one) to 65535"},
      {"server: {port: 80.5}", "is not a port"},
      {"server: {port: [1]}", "expected a port"},
      {"server: {port: }", "expected a port"},
      {"server: 8000", "server: expected keys below it"},
      {"memory: {device_budget: plenty}", "6GiB"},
      {"memory: {device_budget: 1KiB}", "less than 1.0 MiB"},
      {"memory: {hot_keep_time: 300}", "300s, 5m or 200ms"},
      {"memory: {hot_keep_time: -3s}", "is not a duration"},
      {"memory: {hot_keep_time: inf}", "is not a duration"},
      {"memory: {swap_threshold: nan}", "above 0 and up to 1"},
      {"device: {kind: cuda}", "'cuda' is not one of cpu, sim"},
      {"device: {threads: 0}", "from 1 to 1024"},
      {"log: {level: loud}", "debug, info, warning, error, off"},
      {"models: {a: b}", "models: expected a list"},
      {"models: [a]", "expected an entry"},
      {"models: [{name: a, source: b}, {name: a, source: c}]", "the model 'a' is given twice"},
      {"models: [{name: a, name: b, source: c}]", "given twice"},
      {"server: {port: 1, port: 2}", "'server.port' is given twice"},
      {"server: {port: 7}\nserver: {host: a}", "'server' is given twice"},
      {"server: {port: 9, metrics_port: 9}", "are both 9"},
      {"device: {kind: sim, sim: {memory: 1GiB}}\nmemory: {device_budget: 2GiB}",
       "conf/terrace.yaml:2: memory.device_budget is 2.0 GiB, more than device.sim.memory"},
      {"- a\n- b\n", "expected keys with values"},
      {"a: {b: c", "conf/terrace.yaml:"},
      {"a: *nothing", "conf/terrace.yaml:1"},
      {"server: {port: 1}\n---\nserver: {port: 2}\n", "a second document"},
      {"? [a, b]\n: c\n", "a key must be a plain word"},
  };
  for (const auto& [yaml, expected] : cases) {
    EXPECT_THAT(ErrorOf(std::string(yaml)), HasSubstr(expected)) << yaml;
  }
}

TEST(ConfigTest, HostileFilesEndInAnErrorNotACrash) {
  EXPECT_THAT(ErrorOf(std::string(100'000, '[')), HasSubstr("conf/terrace.yaml"));
  EXPECT_THAT(ErrorOf("a: &a [*a]\n"), HasSubstr("unknown key"));
  EXPECT_THAT(ErrorOf(std::string("\0\x01\xff", 3)), HasSubstr("conf/terrace.yaml"));
  std::string many = "models:\n";
  for (int i = 0; i < 10'001; ++i) many += "- {name: a, source: b}\n";
  EXPECT_THAT(ErrorOf(many), HasSubstr("more than 10000"));
  std::string unknown;
  for (int i = 0; i < 50; ++i) unknown += "k" + std::to_string(i) + ": 1\n";
  EXPECT_THAT(ErrorOf(unknown), HasSubstr("and 30 more"));
}

TEST(ConfigTest, VariablesOfAServiceManagerDoNotStopTheServer) {
  ConfigInputs inputs;
  inputs.environment = {{"TERRACE_SERVICE_HOST", "10.0.0.1"}, {"TERRACE_SERVER_PROT", "1"}};
  absl::StatusOr<LoadedConfig> loaded = LoadConfig(inputs);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_THAT(loaded->warnings, ElementsAre(HasSubstr("TERRACE_SERVICE_HOST sets no key"),
                                            HasSubstr("did you mean TERRACE_SERVER_PORT?")));
  inputs.environment = {{"TERRACE_SERVER_PORT", "tcp://10.0.0.1:80"}};
  EXPECT_THAT(ErrorOf(inputs), AllOf(HasSubstr("TERRACE_SERVER_PORT: server.port"),
                                     HasSubstr("enableServiceLinks")));
}

TEST(ConfigTest, ModelFlags) {
  EXPECT_EQ(ParseModelFlag("a=b=c")->source, "b=c");
  EXPECT_EQ(ParseModelFlag("Qwen/Qwen3:0.6b@2=/m.gguf")->name, "Qwen/Qwen3:0.6b@2");
  for (const char* bad : {"", "a", "a=", "=b", "/a=b", "-a=b", "a b=c", "a\n=b"}) {
    EXPECT_FALSE(ParseModelFlag(bad).ok()) << bad;
  }
  EXPECT_FALSE(CheckModelName(std::string(129, 'a')).ok());
}

TEST(ConfigTest, DurationsAreReadExactlyAndPrintedBack) {
  EXPECT_EQ(*ParseDurationUs("0"), 0);
  EXPECT_EQ(*ParseDurationUs("200ms"), 200'000);
  EXPECT_EQ(*ParseDurationUs("1h30m"), 5'400'000'000);
  EXPECT_EQ(*ParseDurationUs("1.5s"), 1'500'000);
  for (int64_t us : {int64_t{1}, int64_t{250'000}, int64_t{90'000'000}, int64_t{86'400'000'000}}) {
    EXPECT_EQ(*ParseDurationUs(FormatDurationUs(us)), us);
  }
  for (const char* bad : {"", "s", "5 minutes", "1e400s", "999999999h"}) {
    EXPECT_FALSE(ParseDurationUs(bad).ok()) << bad;
  }
}

TEST(ConfigTest, ReadsFilesWithLimits) {
  EXPECT_EQ(ReadConfigFile("/does/not/exist.yaml").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Message(ReadConfigFile("/tmp").status()), HasSubstr("is a folder"));
  EXPECT_THAT(Message(ReadConfigFile("/dev/zero").status()), HasSubstr("larger than 1.0 MiB"));
}

TEST(ConfigDocsTest, TheDocumentHoldsTheTablesOfTheCode) {
  std::ifstream file(TERRACE_SOURCE_DIR "/docs/CONFIG.md");
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_THAT(text.str(), HasSubstr(ConfigTableMarkdown()))
      << "copy the table above into docs/CONFIG.md";
  EXPECT_THAT(text.str(), HasSubstr(TenantConfigTableMarkdown()))
      << "docs/CONFIG.md should hold this table:\n"
      << TenantConfigTableMarkdown();
  EXPECT_THAT(text.str(), HasSubstr(ModelConfigTableMarkdown()));
}

}  // namespace
}  // namespace terrace::server
