// terrace config import: what each server's configuration becomes, that nothing of it is lost
// silently, and that what is written is a configuration of ours.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "cli/cli.h"
#include "cli/config_import/words.h"
#include "server/config.h"

namespace terrace::cli {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;

class ConfigImportTest : public ::testing::Test {
 protected:
  ConfigImportTest() {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~ConfigImportTest() override { fs::remove_all(folder_); }

  std::string Write(const std::string& name, const std::string& text) {
    fs::create_directories(fs::path(folder_ + "/" + name).parent_path());
    std::ofstream(folder_ + "/" + name) << text;
    return folder_ + "/" + name;
  }

  int Run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"config", "import"});
    std::istringstream in;
    std::ostringstream out, err;
    Io io{.in = &in, .out = &out, .err = &err, .environment = {}};
    const int code = RunCli(arguments, &io);
    out_ = out.str();
    err_ = err.str();
    return code;
  }

  // Runs with --json; the configuration that comes of it, read as the server reads it.
  server::Config Import(std::vector<std::string> arguments) {
    arguments.emplace_back("--json");
    EXPECT_EQ(Run(arguments), 0) << err_;
    result_ = json::parse(out_).as_object();
    auto loaded = server::LoadConfig(
        {.file = "terrace.yaml", .yaml = std::string(result_["yaml"].as_string())});
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded.ok() ? loaded->config : server::Config();
  }

  std::multiset<std::string> Names(const char* list) {
    std::multiset<std::string> names;
    for (const json::value& each : result_[list].as_array()) {
      names.insert(std::string(each.at("setting").as_string()));
    }
    return names;
  }
  std::string Why(const std::string& setting) {
    for (const json::value& each : result_["not_taken"].as_array()) {
      if (each.at("setting").as_string() == setting) return std::string(each.at("why").as_string());
    }
    return "(not listed)";
  }

  std::string folder_ = (fs::path(::testing::TempDir()) / "terrace_config_import").string();
  std::string out_, err_;
  json::object result_;
};

TEST_F(ConfigImportTest, PresetsBecomeModelsWithWhatHoldsForAllAndForEach) {
  Write("chat.gguf", "");
  const std::string file = Write("models.ini",
                                 "version = 1\n"
                                 "; of all\n[*]\nparallel = 4\nc = 65536\nn-gpu-layers = 99\n"
                                 "[org/Some-GGUF:Q8_0]\ntemp = 0.7\n"
                                 "[chat]\nmodel = chat.gguf\nctx-size = 8192\nkv-unified = true\n"
                                 "cache-type-k = q8_0\nLLAMA_ARG_THREADS = 4\nfrobnicate = 7\n");
  const server::Config config = Import({file});
  ASSERT_EQ(config.models.size(), 2u);
  EXPECT_EQ(config.models[0].name, "org/Some-GGUF:Q8_0");
  EXPECT_EQ(config.models[0].max_context, 65536 / 4) << "the context of all slots is divided";
  EXPECT_EQ(config.models[1].name, "chat");
  EXPECT_EQ(config.models[1].source, folder_ + "/chat.gguf");
  EXPECT_EQ(config.models[1].max_context, 8192) << "slots share it";
  EXPECT_EQ(config.models[1].kv_dtype, "i8");
  EXPECT_EQ(config.device.threads, 4);
  EXPECT_EQ(config.scheduler.max_batch, 4);
  EXPECT_THAT(Names("not_taken"),
              IsSupersetOf({"version", "n-gpu-layers", "temp", "frobnicate", "c"}));
  EXPECT_THAT(Why("frobnicate"), HasSubstr("not known"));
  EXPECT_THAT(json::serialize(result_["steps"]), HasSubstr("terrace pull hf:org/Some-GGUF "));
}

TEST_F(ConfigImportTest, EverySettingOfACommandIsTakenOrListed) {
  Write("chat.gguf", "");
  const server::Config config = Import(
      {"--command",
       "LLAMA_ARG_PORT=9000 /opt/llama-server -m " + folder_ +
           "/chat.gguf -a talk,other -c 8192 -np 2 --api-key sk-secret -ngl -1 --lora a.gguf "
           "--lora b.gguf --temp 0.2 --temp 0.3 --host 0.0.0.0 --mystery \"a b\" -md d.gguf"});
  EXPECT_EQ(config.server.port, 9000);
  EXPECT_EQ(config.server.host, "0.0.0.0");
  std::map<std::string, server::ModelConfig> models;
  for (const server::ModelConfig& model : config.models) models[model.name] = model;
  EXPECT_EQ(models.at("talk").max_context, 4096);
  EXPECT_EQ(models.at("talk").speculation, "draft:talk-draft");
  EXPECT_EQ(models.at("talk:a").base, "talk");
  EXPECT_EQ(models.at("talk:b").base, "talk");
  std::multiset<std::string> all = Names("taken");
  all.merge(Names("not_taken"));
  for (const char* name : {"LLAMA_ARG_PORT", "m", "a", "c", "np", "api-key", "ngl", "lora", "temp",
                           "host", "mystery", "md"}) {
    EXPECT_TRUE(all.contains(name)) << name;
  }
  EXPECT_EQ(Names("not_taken").count("temp"), 2u) << "also what is given again";
  EXPECT_THAT(out_, Not(HasSubstr("sk-secret")));
  EXPECT_THAT(json::serialize(result_["steps"]), HasSubstr("terrace key add"));
}

TEST_F(ConfigImportTest, ACommandIsFoundInScriptsAndUnitFiles) {
  const std::string script =
      Write("start.sh",
            "#!/bin/sh\n# llama-server is started here\ncd /srv\n"
            "exec llama-server \\\n  --model /m/x.gguf \\\n  --port 8081 &\n");
  server::Config config = Import({script});
  EXPECT_EQ(config.server.port, 8081);
  EXPECT_EQ(config.models.at(0).source, "/m/x.gguf");
  const std::string unit = Write("ollama.service",
                                 "[Unit]\nDescription=x\n[Service]\n"
                                 "Environment=\"OLLAMA_HOST=0.0.0.0:11500\"\n"
                                 "Environment=\"OLLAMA_KEEP_ALIVE=-1\"\n"
                                 "Environment=\"OLLAMA_MAX_LOADED_MODELS=3\"\n"
                                 "ExecStart=/usr/local/bin/ollama serve\n");
  config = Import({unit, "--store", folder_ + "/none"});
  EXPECT_EQ(config.server.port, 11500);
  EXPECT_EQ(config.memory.hot_keep_us, int64_t{8760} * 3600 * 1'000'000);
  EXPECT_THAT(Names("not_taken"), Contains("OLLAMA_MAX_LOADED_MODELS"));
}

TEST_F(ConfigImportTest, WhatStandsAroundTheServersOwnPartIsListed) {
  const server::Config config =
      Import({"--command",
              "sudo docker run -p 9000:8000 -v /m:/m vllm/vllm-openai:latest --model /m/x "
              "--max-model-len 4k > log.txt"});
  EXPECT_EQ(config.models.at(0).source, "/m/x");
  EXPECT_EQ(config.models.at(0).max_context, 4000);
  EXPECT_THAT(Names("not_taken"), ElementsAre("before", "behind"));
  EXPECT_THAT(out_, AllOf(HasSubstr("sudo docker run -p 9000:8000"), HasSubstr("> log.txt")));
  EXPECT_EQ(Run({Write("a.sh", "cd vllm\nollama pull x\n")}), 1) << "neither starts a server";
}

TEST_F(ConfigImportTest, AModelfileBecomesAModelAndItsAdapter) {
  Write("poet/base.gguf", "");
  const std::string file =
      Write("poet/Modelfile",
            "# a poet\nFROM ./base.gguf\nPARAMETER num_ctx 4096\n"
            "PARAMETER stop \"<|im_end|>\"\nSYSTEM \"\"\"\nYou are\na poet\"\"\"\n"
            "TEMPLATE \"{{ .Prompt }}\"\nADAPTER ./verse.gguf\nREQUIRES 0.6\n"
            "MESSAGE user \"\"\"two\nlines\"\"\"\n");
  const server::Config config = Import({file});
  ASSERT_EQ(config.models.size(), 2u);
  EXPECT_EQ(config.models[0].name, "poet");
  EXPECT_EQ(config.models[0].source, folder_ + "/poet/base.gguf");
  EXPECT_EQ(config.models[0].max_context, 4096);
  EXPECT_EQ(config.models[1].base, "poet");
  EXPECT_THAT(Names("not_taken"), ElementsAre("message", "requires", "stop", "system", "template"));

  EXPECT_EQ(Run({Write("Modelfile", "PARAMETER num_ctx 1\n"), "--from", "modelfile"}), 1);
  EXPECT_THAT(err_, HasSubstr("no FROM"));
  EXPECT_EQ(Run({Write("Modelfile", "FROM x\nSYSTEM \"\"\"no end\n")}), 1);
  EXPECT_THAT(err_, HasSubstr("Modelfile:2: its text does not end"));
  EXPECT_EQ(Run({Write("Modelfile", "FROM llama3.2\n"), "--store", folder_}), 1);
  EXPECT_THAT(err_, HasSubstr("neither a file here nor in the models of Ollama"));
}

TEST_F(ConfigImportTest, OllamasModelsComeWithTheirParametersAndKeepTheirNames) {
  auto manifest = [&](const std::string& name, const std::string& layers) {
    Write("models/manifests/" + name,
          R"({"schemaVersion": 2, "config": {"digest": "sha256:c"}, "layers": [)" + layers + "]}");
  };
  auto layer = [](const std::string& kind, const std::string& digest) {
    return R"({"mediaType": "application/vnd.ollama.image.)" + kind + R"(", "digest": "sha256:)" +
           digest + R"(", "size": 1})";
  };
  manifest("registry.ollama.ai/library/small/latest",
           layer("model", "aa") + "," + layer("params", "bb") + "," + layer("template", "cc") +
               "," + layer("novelty", "dd"));
  manifest("registry.ollama.ai/someone/large/8b", layer("model", "ee"));
  manifest("registry.ollama.ai/library/broken/latest", "");
  Write("models/blobs/sha256-aa", "");
  Write("models/blobs/sha256-bb", R"({"num_ctx": 2048, "temperature": 0.1, "stop": ["a", "b"]})");
  const server::Config config = Import({folder_});
  std::map<std::string, server::ModelConfig> models;
  for (const server::ModelConfig& model : config.models) models[model.name] = model;
  ASSERT_EQ(models.size(), 2u);
  EXPECT_EQ(models.at("small").source, folder_ + "/models/blobs/sha256-aa");
  EXPECT_EQ(models.at("small").max_context, 2048);
  EXPECT_EQ(models.at("someone/large:8b").source, folder_ + "/models/blobs/sha256-ee");
  EXPECT_THAT(Names("not_taken"),
              IsSupersetOf({"temperature", "stop", "template", "novelty", "manifest"}));
  // The same model by its name in a Modelfile.
  const server::Config by_name =
      Import({Write("x/Modelfile", "FROM small\n"), "--store", folder_ + "/models"});
  EXPECT_EQ(by_name.models.at(0).source, folder_ + "/models/blobs/sha256-aa");
}

TEST_F(ConfigImportTest, AModelRepositoryGivesTheVersionsThatItsPolicyServes) {
  Write("repo/chat/1/model.gguf", "");
  Write("repo/chat/3/model.gguf", "");
  Write("repo/chat/config.pbtxt",
        "name: \"chat\"  # its name\nmax_batch_size: 8\n"
        "version_policy: { specific { versions: [1, 3] } }\n"
        "dynamic_batching { preferred_batch_size: [ 4, 8 ]\n"
        "  default_queue_policy < max_queue_size: 64 > }\n"
        "optimization { priority: PRIORITY_MAX }\n"
        "parameters { key: \"odd\" value { string_value: \"a\" \"b\" } }\n");
  Write("repo/engine/1/model.json",
        R"({"model": "org/Name", "max_model_len": 4096, "gpu_memory_utilization": 0.5})");
  Write("repo/engine/config.pbtxt", "backend: \"vllm\"\n");
  Write("repo/picture/1/model.onnx", "");
  Write("repo/picture/config.pbtxt", "platform: \"onnxruntime_onnx\"\n");
  const server::Config config = Import({folder_ + "/repo"});
  std::map<std::string, server::ModelConfig> models;
  for (const server::ModelConfig& model : config.models) models[model.name] = model;
  ASSERT_EQ(models.size(), 3u);
  EXPECT_EQ(models.at("chat").source, folder_ + "/repo/chat/3/model.gguf");
  EXPECT_EQ(models.at("chat").sla, "realtime");
  EXPECT_EQ(models.at("chat@1").source, folder_ + "/repo/chat/1/model.gguf");
  EXPECT_EQ(models.at("engine").max_context, 4096);
  EXPECT_EQ(config.scheduler.max_batch, 8);
  EXPECT_EQ(config.scheduler.max_queue, 64);
  EXPECT_THAT(Names("not_taken"), IsSupersetOf({"dynamic_batching.preferred_batch_size",
                                                "parameters.key", "parameters.value.string_value",
                                                "gpu_memory_utilization", "platform", "version"}));
  EXPECT_THAT(out_, HasSubstr("no weights that can be served"));

  Write("repo/chat/config.pbtxt", "name: \"chat\nmax_batch_size: 8\n");
  EXPECT_EQ(Run({folder_ + "/repo"}), 1);
  EXPECT_THAT(err_, HasSubstr("chat/config.pbtxt: line 1: a text does not end"));
  fs::create_directories(folder_ + "/none");
  EXPECT_EQ(Import({"--command", "tritonserver --model-repository=" + folder_ +
                                     "/none --http-port 9100 --allow-grpc=false --load-model x"})
                .server.grpc_port,
            -1);
}

TEST_F(ConfigImportTest, EngineArgumentsComeFromTheCommandAndItsFile) {
  const std::string file = Write("vllm.yaml",
                                 "model: org/Llama\nserved-model-name: [llama, alias]\nport: 8001\n"
                                 "max_model_len: 16k\nkv-cache-dtype: fp8\nmax-num-seqs: 32\n"
                                 "speculative-config: {method: ngram, num_speculative_tokens: 5, "
                                 "prompt_lookup_max: 4}\nallowed-origins: '[\"https://a\"]'\n"
                                 "cpu-offload-gb: 4\ntrust-remote-code: true\n");
  server::Config config = Import({file});
  EXPECT_EQ(config.models.at(0).name, "llama");
  EXPECT_EQ(config.models.at(0).max_context, 16000);
  EXPECT_EQ(config.models.at(0).kv_dtype, "i8");
  EXPECT_EQ(config.models.at(0).speculation, "ngram");
  EXPECT_EQ(config.models.at(0).speculation_tokens, 5);
  EXPECT_EQ(config.scheduler.max_batch, 32);
  EXPECT_EQ(config.server.port, 8001);
  EXPECT_NE(config.server.grpc_port, 8001) << "ours gives way";
  EXPECT_EQ(config.server.cors_origins, "https://a");
  EXPECT_EQ(config.memory.host_budget_bytes, 4 * kGiB);
  EXPECT_THAT(out_, AllOf(HasSubstr("prompt_lookup_max"), HasSubstr("trust-remote-code")));

  config = Import({"--command", "vllm serve --enforce-eager /m/dir --config " + file +
                                    " --max-model-len 8K --lora-modules sql=/l/sql c=/l/c"});
  EXPECT_EQ(config.models.at(0).source, "/m/dir");
  EXPECT_EQ(config.models.at(0).max_context, 8192) << "the command says more than its file";
  EXPECT_EQ(config.models.at(2).base, config.models.at(0).name);
  EXPECT_THAT(Names("not_taken"), IsSupersetOf({"max_model_len", "enforce-eager"}));
}

TEST_F(ConfigImportTest, AnIniFileOfOurOwnKeysIsRead) {
  const server::Config config =
      Import({Write("terrace.ini",
                    "[memory]\ndevice_budget = 6GiB\nhot_keep_tiem = 3s\n[storage]\n"
                    "disk.size = 20GiB\n[model chat]\nsource = chat.gguf\nsla = realtime\n")});
  EXPECT_EQ(config.memory.device_budget_bytes, 6 * kGiB);
  EXPECT_EQ(config.storage.disk_bytes, 20 * kGiB);
  EXPECT_EQ(config.models.at(0).source, folder_ + "/chat.gguf");
  EXPECT_EQ(config.models.at(0).sla, "realtime");
  EXPECT_THAT(Why("hot_keep_tiem"), HasSubstr("there is no key memory.hot_keep_tiem"));
}

TEST_F(ConfigImportTest, WritesAFileOnceAndSaysWhatItLeft) {
  const std::string out = folder_ + "/terrace.yaml";
  const std::vector<std::string> line = {"--command", "llama-server -m /m/x.gguf --mlock", "--out",
                                         out};
  ASSERT_EQ(Run(line), 0) << err_;
  EXPECT_THAT(err_, AllOf(HasSubstr("not taken over: mlock"), HasSubstr("1 model, ")));
  EXPECT_TRUE(server::ReadConfigFile(out).ok());
  EXPECT_EQ(Run(line), 1);
  EXPECT_THAT(err_, HasSubstr("--force"));
  std::vector<std::string> strict = line;
  strict.insert(strict.end(), {"--force", "--strict"});
  EXPECT_EQ(Run(strict), 1);
  EXPECT_THAT(err_, HasSubstr("--strict: 1 settings were not taken over"));
}

TEST_F(ConfigImportTest, SaysWhatIsNoConfiguration) {
  for (const auto& [arguments, message] :
       std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{}, "give a file or a folder"},
           {{folder_}, "neither a model repository"},
           {{folder_ + "/absent"}, "absent"},
           {{"--command", "nginx -g x"}, "starts none of"},
           {{Write("x.txt", "hello\n")}, "no command that is known"},
           {{Write("x.ini", "[a\n")}, "x.ini:1"},
           {{Write("y.yaml", "a: [\n")}, "y.yaml"},
           {{Write("z.yaml", "port: 1\n")}, "names no model"},
           {{Write("q.sh", "llama-server -m 'x\n")}, "does not end"},
           {{Write("w.ini", "[a]\nb = 1\n"), "--from", "windows"}, "none of llama"}}) {
    EXPECT_EQ(Run(arguments), 1) << message;
    EXPECT_THAT(err_, HasSubstr(message));
  }
}

TEST(ShellWordsTest, AreThoseOfAShell) {
  EXPECT_THAT(*ShellWords("a 'b c' \"d \\\"e\" f\\ g # h\ni\\\nj ''"),
              ElementsAre("a", "b c", "d \"e", "f g", "ij", ""));
  EXPECT_FALSE(ShellWords("a \"b").ok());
}

TEST(ProtoTextTest, HostileTextIsAnErrorAndNoCrash) {
  EXPECT_FALSE(ParseProtoText(std::string(100'000, '{')).ok());
  std::string deep;
  for (int i = 0; i < 10'000; ++i) deep += "a {";
  EXPECT_FALSE(ParseProtoText(deep).ok());
  for (const char* text : {"a", "a:", "a: [", "a: \"", "{}", "a: }", "a { b: 1", "\x01"}) {
    EXPECT_FALSE(ParseProtoText(text).ok()) << text;
  }
  EXPECT_EQ(ParseProtoText("a: 1, b { c: 'x' };")->size(), 2u);
}

}  // namespace
}  // namespace terrace::cli
