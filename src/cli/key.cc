// terrace key: makes, lists and revokes API keys. A running server sees the change within seconds.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <filesystem>
#include <memory>
#include <ostream>
#include <utility>

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/config_options.h"
#include "server/api_keys.h"

namespace terrace::cli {
namespace {

struct KeyOptions {
  ConfigOptions config;
  std::string name;
  std::string tenant;
  std::string scope = "infer";
  std::string sla = "standard";
  std::string allow;
  std::string expires;
  int32_t requests_per_minute = 0;
  int32_t tokens_per_minute = 0;
  int32_t concurrent = 0;
};

absl::StatusOr<std::vector<server::ApiKey>> ReadAll(const std::string& path) {
  absl::StatusOr<std::vector<server::ApiKey>> keys = server::ReadKeys(path);
  if (absl::IsNotFound(keys.status())) return std::vector<server::ApiKey>();
  return keys;
}

std::string DateOf(int64_t seconds) {
  if (seconds == 0) return "never";
  return absl::FormatTime("%Y-%m-%d", absl::FromUnixSeconds(seconds), absl::UTCTimeZone());
}

absl::StatusOr<server::ApiKey> KeyFrom(const KeyOptions& options) {
  server::ApiKey key;
  if (options.name.empty() || options.name.size() > 64) {
    return absl::InvalidArgumentError("a key's name has 1 to 64 letters");
  }
  if (!IsValidUtf8(options.name) || !IsValidUtf8(options.tenant)) {
    return absl::InvalidArgumentError("names must be UTF-8");
  }
  key.name = options.name;
  key.tenant = options.tenant;
  key.infer = false;
  for (const std::string_view part : Split(options.scope, ',')) {
    if (part == "infer") {
      key.infer = true;
    } else if (part == "admin") {
      key.admin = true;
    } else {
      return absl::InvalidArgumentError(
          fmt::format("--scope: '{}' is not infer, admin or both with a comma", part));
    }
  }
  const std::optional<SlaClass> sla = server::ParseSla(options.sla);
  if (!sla) {
    return absl::InvalidArgumentError(
        fmt::format("--sla: '{}' is not realtime, standard or batch", options.sla));
  }
  key.sla = *sla;
  absl::StatusOr<server::CidrList> allow = server::CidrList::Parse(options.allow);
  if (!allow.ok()) return WithContext(allow.status(), "--allow");
  key.allow = *std::move(allow);
  for (const int32_t limit :
       {options.requests_per_minute, options.tokens_per_minute, options.concurrent}) {
    if (limit < 0) return absl::InvalidArgumentError("a limit is 0 (none) or more");
  }
  key.requests_per_minute = options.requests_per_minute;
  key.tokens_per_minute = options.tokens_per_minute;
  key.concurrent = options.concurrent;
  const RealClock clock;
  key.created_s = clock.WallUs() / 1'000'000;
  if (!options.expires.empty()) {
    // Days are what people count in; durations know hours at most.
    std::string text = options.expires;
    int64_t factor = 1;
    if (text.ends_with('d')) {
      text.back() = 'h';
      factor = 24;
    }
    absl::StatusOr<int64_t> us = server::ParseDurationUs(text);
    if (!us.ok()) return WithContext(us.status(), "--expires");
    key.expires_s = key.created_s + *us / 1'000'000 * factor;
  }
  return key;
}

absl::Status AddKey(const KeyOptions& options, Invocation* invocation) {
  ASSIGN_OR_RETURN(const server::LoadedConfig loaded, options.config.Load(*invocation->io));
  const std::string path = KeysFile(loaded.config);
  ASSIGN_OR_RETURN(server::ApiKey key, KeyFrom(options));
  ASSIGN_OR_RETURN(std::vector<server::ApiKey> keys, ReadAll(path));
  for (const server::ApiKey& other : keys) {
    if (other.name == key.name && other.expires_s == 0) {
      *invocation->io->err << fmt::format(
          "terrace: there is another key named {} ({}); revoke it once the new one is in use\n",
          other.name, other.id);
      break;
    }
  }
  ASSIGN_OR_RETURN(const std::string text, server::MakeKey(&key));
  keys.push_back(key);
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  RETURN_IF_ERROR(server::WriteKeys(path, keys));
  std::ostream& out = *invocation->io->out;
  if (invocation->json) {
    const boost::json::object line = {{"id", key.id}, {"name", key.name}, {"key", text}};
    out << boost::json::serialize(line) << "\n";
    return absl::OkStatus();
  }
  out << text << "\n";
  *invocation->io->err << fmt::format("This is shown once. Its hash is in {}.\n", path);
  return absl::OkStatus();
}

absl::Status ListKeys(const KeyOptions& options, Invocation* invocation) {
  ASSIGN_OR_RETURN(const server::LoadedConfig loaded, options.config.Load(*invocation->io));
  ASSIGN_OR_RETURN(const std::vector<server::ApiKey> keys, ReadAll(KeysFile(loaded.config)));
  std::ostream& out = *invocation->io->out;
  boost::json::array list;
  if (!invocation->json) {
    out << fmt::format("{:<8}  {:<20}  {:<12}  {:<11}  {:<8}  {:<10}  {}\n", "ID", "NAME", "TENANT",
                       "SCOPE", "SLA", "EXPIRES", "LIMITS");
  }
  for (const server::ApiKey& key : keys) {
    const std::string scope = !key.admin ? "infer" : key.infer ? "infer,admin" : "admin";
    if (invocation->json) {
      list.push_back(boost::json::object{{"id", key.id},
                                         {"name", key.name},
                                         {"tenant", key.tenant.empty() ? key.name : key.tenant},
                                         {"scope", scope},
                                         {"sla", std::string(server::SlaName(key.sla))},
                                         {"expires", key.expires_s},
                                         {"requests_per_minute", key.requests_per_minute},
                                         {"tokens_per_minute", key.tokens_per_minute},
                                         {"concurrent", key.concurrent},
                                         {"allow", key.allow.ToString()}});
      continue;
    }
    std::string limits;
    auto add = [&limits](int32_t value, std::string_view what) {
      if (value > 0) limits += fmt::format("{}{} {}", limits.empty() ? "" : ", ", value, what);
    };
    add(key.requests_per_minute, "requests/min");
    add(key.tokens_per_minute, "tokens/min");
    add(key.concurrent, "at once");
    if (!key.allow.empty()) limits += (limits.empty() ? "" : ", ") + key.allow.ToString();
    out << fmt::format("{:<8}  {:<20}  {:<12}  {:<11}  {:<8}  {:<10}  {}\n", key.id, key.name,
                       key.tenant.empty() ? key.name : key.tenant, scope, server::SlaName(key.sla),
                       DateOf(key.expires_s), limits.empty() ? "none" : limits);
  }
  if (invocation->json) out << boost::json::serialize(list) << "\n";
  return absl::OkStatus();
}

absl::Status RevokeKey(const KeyOptions& options, Invocation* invocation) {
  ASSIGN_OR_RETURN(const server::LoadedConfig loaded, options.config.Load(*invocation->io));
  const std::string path = KeysFile(loaded.config);
  ASSIGN_OR_RETURN(std::vector<server::ApiKey> keys, ReadAll(path));
  auto matches = [&](const server::ApiKey& key) {
    return key.id == options.name || key.name == options.name;
  };
  const auto count = std::count_if(keys.begin(), keys.end(), matches);
  if (count == 0) {
    return absl::NotFoundError(fmt::format("there is no key '{}'; `terrace key list` shows them",
                                           ToValidUtf8(options.name)));
  }
  if (count > 1) {
    return absl::FailedPreconditionError(
        fmt::format("{} keys are named {}; give the id of one", count, options.name));
  }
  std::erase_if(keys, matches);
  RETURN_IF_ERROR(server::WriteKeys(path, keys));
  *invocation->io->err << "Revoked; a running server refuses it within seconds.\n";
  return absl::OkStatus();
}

}  // namespace

void AddKeyCommand(Command root, Invocation* invocation) {
  Command group = root.AddGroup("key", "Make, list and revoke API keys");
  auto options = std::make_shared<KeyOptions>();  // lives as long as the parser's callbacks
  auto command = [&](const std::string& name, const std::string& help, auto run) {
    Command added = group.Add(name, help, [=] { return run(*options, invocation); });
    options->config.AddTo(added, {"auth"});
    return added;
  };
  Command add = command("add", "Make a key and show it, once", AddKey);
  add.Argument("name", &options->name, {"NAME", "What the key is for", true});
  add.Option("--tenant", &options->tenant,
             {"NAME", "Whose requests these are (default: the key's name)"});
  add.Option("--scope", &options->scope, {"LIST", "infer, admin, or both (default infer)"});
  add.Option("--sla", &options->sla,
             {"CLASS", "Best class it may ask for: realtime, standard or batch"});
  add.Option("--requests-per-minute", &options->requests_per_minute, {"N", "0: no limit"});
  add.Option("--tokens-per-minute", &options->tokens_per_minute,
             {"N", "Of prompts and answers together; 0: no limit"});
  add.Option("--concurrent", &options->concurrent, {"N", "Requests at once; 0: no limit"});
  add.Option("--allow", &options->allow, {"NETWORKS", "Where it may be used, e.g. 10.0.0.0/8"});
  add.Option("--expires", &options->expires, {"TIME", "After how long it ends, e.g. 90d or 12h"});
  command("list", "Show the keys' names and limits", ListKeys);
  Command revoke = command("revoke", "Make a key invalid", RevokeKey);
  revoke.Argument("key", &options->name, {"ID", "The key's id, or its name", true});
}

}  // namespace terrace::cli
