#include "test_server.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <boost/json/array.hpp>
#include <boost/json/parse.hpp>
#include <cstdlib>
#include <iostream>
#include <utility>

#include "base/status.h"
#include "base/text.h"

namespace terrace::server {

namespace json = boost::json;

void KeepingLogger::Log(LogLevel level, std::string_view message, LogFields fields) {
  absl::MutexLock lock(&mutex_);
  lines_.push_back(FormatLogLine(LogFormat::kJson, 0, level, message, fields));
}

std::vector<std::string> KeepingLogger::lines() const {
  absl::MutexLock lock(&mutex_);
  return lines_;
}

TestServer::TestServer(TestServerOptions options)
    : scheduler_(options.scheduler, [](const SeenRequest&) {
        Script script{.tokens = Bytes("Hi!")};
        script.tokens.push_back(kEnd);
        return script;
      }) {
  models_.Add(MakeTestModel());
  api_ = std::make_unique<ApiHandler>(options.api, ApiDeps{.models = &models_,
                                                           .scheduler = &scheduler_,
                                                           .clock = &clock_,
                                                           .metrics = &metrics_,
                                                           .runtime_log = &runtime_log_});
  if (options.http.endpoints.empty()) {
    options.http.endpoints = {{.port = 0}, {.port = 0, .door = Door::kMetrics}};
  }
  auto http = HttpServer::Bind(std::move(options.http), {.clock = &clock_,
                                                         .access_log = &access_log_,
                                                         .runtime_log = &runtime_log_,
                                                         .metrics = &metrics_});
  if (!http.ok()) {
    std::cerr << Message(http.status()) << "\n";
    std::abort();
  }
  http_ = *std::move(http);
  http_->Start(api_.get());
}

TestServer::~TestServer() {
  http_->Stop();
  // Sinks may still hold exchanges.
  scheduler_.Drain(0);
  scheduler_.WaitIdle(5'000'000);
}

void TestServer::Say(std::string_view text, int64_t step_us) {
  std::vector<int32_t> tokens = Bytes(text);
  tokens.push_back(kEnd);
  SayTokens(std::move(tokens), step_us);
}

void TestServer::SayTokens(std::vector<int32_t> tokens, int64_t step_us) {
  scheduler_.set_script([tokens = std::move(tokens), step_us](const SeenRequest&) {
    return Script{.tokens = tokens, .step_us = step_us};
  });
}

HttpReply TestServer::Get(std::string_view path) { return HttpClient(port()).Get(path); }

HttpReply TestServer::Post(std::string_view path, std::string_view body) {
  return HttpClient(port()).Post(path, body);
}

HttpReply TestServer::Ask(std::string_view fields) { return Chat(ChatBody(fields)); }

std::string ChatBody(std::string_view fields, std::string_view content) {
  return fmt::format(R"({{"model":"tiny","messages":[{{"role":"user","content":"{}"}}]{}{}}})",
                     content, fields.empty() ? "" : ",", fields);
}

json::value Json(std::string_view text) {
  json::error_code ec;
  json::value value = json::parse({text.data(), text.size()}, ec);
  EXPECT_FALSE(ec) << "not JSON: " << text;
  return value;
}

json::value At(const json::value& value, std::string_view path) {
  const json::value* at = &value;
  for (std::string_view part : Split(path, '/')) {
    if (at->is_object()) {
      at = at->get_object().if_contains({part.data(), part.size()});
    } else if (at->is_array()) {
      at = at->get_array().if_contains(std::strtoul(std::string(part).c_str(), nullptr, 10));
    } else {
      at = nullptr;
    }
    if (at == nullptr) return nullptr;
  }
  return *at;
}

std::string TextAt(const json::value& value, std::string_view path) {
  const json::value found = At(value, path);
  return found.is_string() ? std::string(found.get_string()) : "";
}

namespace {

// Calls `f` with the choice `index` of every event that has it.
template <typename F>
void ForEachChoice(const HttpReply& reply, int64_t index, F&& f) {
  for (const std::string& event : reply.Events()) {
    if (event == "[DONE]") continue;
    const json::value value = Json(event);
    const json::value choices = At(value, "choices");
    if (!choices.is_array()) continue;
    for (const json::value& choice : choices.get_array()) {
      if (At(choice, "index") == json::value(index)) f(choice);
    }
  }
}

}  // namespace

std::string StreamText(const HttpReply& reply, int64_t index) {
  std::string text;
  ForEachChoice(reply, index, [&](const json::value& choice) {
    text += TextAt(choice, "delta/content") + TextAt(choice, "text");
  });
  return text;
}

std::string StreamReason(const HttpReply& reply, int64_t index) {
  std::string reason;
  ForEachChoice(reply, index,
                [&](const json::value& choice) { reason += TextAt(choice, "finish_reason"); });
  return reason;
}

}  // namespace terrace::server
