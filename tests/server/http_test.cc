// The HTTP layer: framing, limits, keep-alive, ports, time-outs. Hard cases A45 and A46.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "test_server.h"

namespace terrace::server {
namespace {

using std::string;

int64_t NowMs() { return RealClock().NowUs() / 1000; }

string Chunked(std::string_view body, size_t size) {
  string out;
  for (size_t at = 0; at < body.size(); at += size) {
    const std::string_view piece = body.substr(at, size);
    out += fmt::format("{:x}\r\n{}\r\n", piece.size(), piece);
  }
  return out + "0\r\n\r\n";
}

constexpr std::string_view kChunkedHead =
    "POST /v1/chat/completions HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n";

TEST(HttpFraming, ABodyMeansTheSameHoweverItIsFramed) {
  TestServer server;
  const string body = ChatBody("", "na\xC3\xAFve \xF0\x9F\x98\x80");
  EXPECT_EQ(server.Chat(body).status, 200);

  HttpClient chunked(server.port());
  chunked.Send(string(kChunkedHead));
  for (char c : Chunked(body, 1)) chunked.Send({&c, 1});  // splits every character
  EXPECT_EQ(chunked.Read().status, 200);

  HttpClient expecting(server.port());
  expecting.Send(
      fmt::format("POST /v1/chat/completions HTTP/1.1\r\nHost: test\r\n"
                  "Expect: 100-continue\r\nContent-Length: {}\r\n\r\n",
                  body.size()));
  const int64_t start = NowMs();
  const string go = expecting.ReadUntil("\r\n\r\n", 5000);
  EXPECT_TRUE(go.starts_with("HTTP/1.1 100 Continue\r\n")) << go;
  // Clients that see no go-ahead wait a second; the case asks for 100 ms on an idle machine.
  EXPECT_LT(NowMs() - start, 500);
  expecting.Send(body);
  EXPECT_EQ(expecting.Read().status, 200);

  const auto seen = server.scheduler().submitted();
  ASSERT_EQ(seen.size(), 3u);
  EXPECT_EQ(seen[0].prompt, seen[1].prompt);
  EXPECT_EQ(seen[0].prompt, seen[2].prompt);
}

TEST(HttpFraming, AmbiguousFramingIsRefused) {
  TestServer server;
  const string body = ChatBody();
  for (const string& head : std::vector<string>{
           "Content-Length: 10\r\nTransfer-Encoding: chunked\r\n",
           "Transfer-Encoding: chunked\r\nContent-Length: 10\r\n",
           "Content-Length: 10\r\nContent-Length: 11\r\n", "Content-Length: -1\r\n",
           "Content-Length: 1e3\r\n", "Transfer-Encoding: gzip\r\n",
           "Transfer-Encoding: gzip, chunked\r\n", "Transfer-Encoding: chunked, identity\r\n",
           "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"}) {
    SCOPED_TRACE(head);
    HttpClient client(server.port());
    client.Send("POST /v1/chat/completions HTTP/1.1\r\nHost: test\r\n" + head + "\r\n" +
                Chunked(body, 100));
    const HttpReply reply = client.Read();
    EXPECT_EQ(reply.status, 400);
    EXPECT_FALSE(TextAt(Json(reply.body), "error/message").empty()) << reply.body;
    EXPECT_EQ(reply.headers.at("connection"), "close");
  }
  EXPECT_TRUE(server.scheduler().submitted().empty());
}

TEST(HttpFraming, OddRequestsGetTheRightStatus) {
  TestServer server;
  const std::vector<std::pair<string, int>> cases = {
      {"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}", 400},  // no Host
      {"POST /v1/chat/completions HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {"POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nContent-Encoding: br\r\n"
       "Content-Length: 2\r\n\r\n{}",
       415},
      {"POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nExpect: miracles\r\n"
       "Content-Length: 2\r\n\r\n{}",
       417},
      {"GET /health%zz HTTP/1.1\r\nHost: t\r\n\r\n", 400},
      {"GARBAGE\r\n\r\n", 400},
      {"GET /health HTTP/1.1\r\nHost: t\r\nX-Long: " + string(20'000, 'a') + "\r\n\r\n", 431},
      {"GET http://t/health?x=1 HTTP/1.1\r\nHost: t\r\n\r\n", 200},
      {"GET /nothing HTTP/1.1\r\nHost: t\r\n\r\n", 404},
      {"GET /v1/chat/completions HTTP/1.1\r\nHost: t\r\n\r\n", 405},
      {"DELETE /v1/models/tiny HTTP/1.1\r\nHost: t\r\n\r\n", 405},
      {"GET /v1/models/t%69ny HTTP/1.1\r\nHost: t\r\n\r\n", 200},
  };
  for (const auto& [text, status] : cases) {
    SCOPED_TRACE(text.substr(0, 120));
    HttpClient client(server.port());
    client.Send(text);
    const HttpReply reply = client.Read();
    EXPECT_EQ(reply.status, status) << reply.body;
    EXPECT_TRUE(reply.complete);
  }
}

TEST(HttpLimits, ATooLargeBodyIsRefusedBeforeItIsRead) {
  TestServerOptions options;
  options.http.max_body_bytes = 10'000;
  TestServer server(options);
  HttpClient client(server.port());
  client.Send("POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 100000000\r\n\r\n");
  const HttpReply reply = client.Read();  // nothing of the body was sent
  EXPECT_EQ(reply.status, 413);
  EXPECT_NE(reply.body.find("9.8 KiB"), string::npos) << reply.body;

  HttpClient expecting(server.port());
  expecting.Send(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\n"
      "Content-Length: 100000000\r\n\r\n");
  EXPECT_TRUE(expecting.ReadUntil("\r\n\r\n").starts_with("HTTP/1.1 413"));

  HttpClient chunked(server.port());
  chunked.Send(string(kChunkedHead) + Chunked(string(20'000, ' '), 1000));
  EXPECT_EQ(chunked.Read().status, 413);

  // A client that sends it all before it reads sees the answer, too.
  HttpClient stubborn(server.port());
  stubborn.Send(HttpClient::PostText("/v1/chat/completions", string(2'000'000, ' ')));
  EXPECT_EQ(stubborn.Read().status, 413);
}

TEST(HttpLimits, SlowSendersAreCutOff) {
  TestServerOptions options;
  options.http.header_timeout_us = 200'000;
  options.http.body_timeout_us = 200'000;
  options.http.idle_timeout_us = 400'000;
  TestServer server(options);
  HttpClient silent(server.port()), header(server.port()), body(server.port()), idle(server.port());
  header.Send("POST /v1/chat/comp");
  body.Send("POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 100\r\n\r\n{");
  EXPECT_EQ(idle.Get("/health").status, 200);
  for (HttpClient* client : {&silent, &header, &body, &idle}) {
    client->ReadUntil("never", 5000);
    EXPECT_TRUE(client->closed());
  }
}

TEST(HttpLimits, ConnectionsBeyondTheLimitAreClosed) {
  TestServerOptions options;
  options.http.max_connections = 2;
  TestServer server(options);
  HttpClient a(server.port()), b(server.port());
  EXPECT_EQ(a.Get("/health").status, 200);
  EXPECT_EQ(b.Get("/health").status, 200);
  HttpClient c(server.port());
  EXPECT_EQ(c.Get("/health").status, 0);
  a.Close();
  for (int i = 0; i < 100 && server.http().open_connections() > 1; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(HttpClient(server.port()).Get("/health").status, 200);
}

TEST(HttpKeepAlive, ManyRequestsOnOneConnection) {
  TestServer server;
  HttpClient client(server.port());
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(client.Get("/health").status, 200);
    EXPECT_EQ(client.Post("/v1/chat/completions", ChatBody()).status, 200);
    const HttpReply stream = client.Post("/v1/chat/completions", ChatBody(R"("stream":true)"));
    EXPECT_EQ(StreamText(stream), "Hi!");
    EXPECT_TRUE(stream.complete);
  }
}

TEST(HttpKeepAlive, PipelinedRequestsAreAnsweredInOrder) {
  TestServer server;
  server.Say("first", 2000);
  HttpClient client(server.port());
  string all;
  for (int i = 0; i < 20; ++i) {
    all += HttpClient::PostText("/v1/chat/completions", ChatBody(),
                                fmt::format("x-request-id: r{}\r\n", i));
  }
  client.Send(all);
  for (int i = 0; i < 20; ++i) {
    const HttpReply reply = client.Read();
    ASSERT_EQ(reply.status, 200);
    EXPECT_EQ(reply.headers.at("x-request-id"), fmt::format("r{}", i));
  }
}

TEST(HttpKeepAlive, ConnectionsEndWhenAskedTo) {
  TestServer server;
  HttpClient close(server.port());
  close.Send("GET /health HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(close.Read().headers.at("connection"), "close");
  close.ReadUntil("never", 5000);
  EXPECT_TRUE(close.closed());

  HttpClient old(server.port());
  const string body = ChatBody(R"("stream":true)");
  old.Send(fmt::format("POST /v1/chat/completions HTTP/1.0\r\nContent-Length: {}\r\n\r\n{}",
                       body.size(), body));
  const HttpReply reply = old.Read();  // to the end of the connection: HTTP/1.0 knows no chunks
  EXPECT_EQ(reply.headers.count("transfer-encoding"), 0u);
  EXPECT_TRUE(reply.complete);
  EXPECT_EQ(StreamText(reply), "Hi!");
}

TEST(HttpKeepAlive, HeadHasTheHeadersOnly) {
  TestServer server;
  HttpClient client(server.port());
  client.Send("HEAD /health HTTP/1.1\r\nHost: t\r\n\r\n");
  const HttpReply reply = client.Read(5000, true);
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.headers.at("content-length"), "15");
  EXPECT_EQ(client.Get("/health").body.size(), 15u);  // the connection is still in step
}

TEST(HttpOrigins, PagesOfThisMachineMayCallOthersMayNot) {
  TestServerOptions options;
  options.http.allowed_origins = {"https://good.example"};
  TestServer server(options);
  auto ask = [&](std::string_view method, std::string_view origin) {
    HttpClient client(server.port());
    client.Send(
        fmt::format("{} /v1/models HTTP/1.1\r\nHost: t:1\r\nOrigin: {}\r\n"
                    "Access-Control-Request-Headers: authorization, x-stainless-os\r\n\r\n",
                    method, origin));
    return client.Read();
  };
  for (std::string_view origin : {"http://localhost:3000", "http://127.0.0.1:8080",
                                  "https://good.example", "http://t:1", "http://[::1]:9"}) {
    SCOPED_TRACE(origin);
    const HttpReply preflight = ask("OPTIONS", origin);
    EXPECT_EQ(preflight.status, 204);
    EXPECT_EQ(preflight.headers.at("access-control-allow-origin"), origin);
    EXPECT_EQ(preflight.headers.at("access-control-allow-headers"),
              "authorization, x-stainless-os");
    EXPECT_EQ(preflight.headers.count("access-control-allow-credentials"), 0u);
    EXPECT_EQ(ask("GET", origin).headers.at("access-control-allow-origin"), origin);
  }
  for (std::string_view origin : {"https://evil.example", "null", "http://127.0.0.1.evil.example",
                                  "http://localhost.evil.example", "https://good.example.evil"}) {
    SCOPED_TRACE(origin);
    EXPECT_EQ(ask("GET", origin).status, 403);
    EXPECT_EQ(ask("OPTIONS", origin).headers.count("access-control-allow-origin"), 0u);
  }
}

TEST(HttpPorts, APortIsHeldByOneServerOnly) {
  RealClock clock;
  NullLogger log;
  Metrics metrics;
  const HttpDeps deps{
      .clock = &clock, .access_log = &log, .runtime_log = &log, .metrics = &metrics};
  auto bind = [&](const string& host, uint16_t port) {
    return HttpServer::Bind({.endpoints = {{.host = host, .port = port}}}, deps);
  };
  auto first = bind("127.0.0.1", 0);
  ASSERT_TRUE(first.ok()) << Message(first.status());
  const uint16_t port = (*first)->ports()[0];
  for (const char* host : {"127.0.0.1", "0.0.0.0", "localhost"}) {
    auto second = bind(host, port);
    ASSERT_FALSE(second.ok()) << host;
    EXPECT_NE(Message(second.status()).find(host), string::npos);
    EXPECT_NE(Message(second.status()).find(fmt::format("{}", port)), string::npos);
  }
  first->reset();
  auto wildcard = bind("0.0.0.0", port);  // and a restart right after works
  ASSERT_TRUE(wildcard.ok()) << Message(wildcard.status());
  EXPECT_FALSE(bind("127.0.0.1", port).ok());
  EXPECT_FALSE(bind("no.such.host.invalid", 0).ok());
}

TEST(HttpPorts, ARestartAfterConnectionsWorks) {
  uint16_t port = 0;
  {
    TestServer server;
    port = server.port();
    EXPECT_EQ(server.Ask().status, 200);
    HttpClient open(port);
    EXPECT_EQ(open.Get("/health").status, 200);
  }
  TestServerOptions options;
  options.http.endpoints = {{.port = port}, {.port = 0, .door = Door::kMetrics}};
  TestServer again(options);
  EXPECT_EQ(again.Ask().status, 200);
}

TEST(HttpRequestIds, AreTakenFromTheClientIfWellFormed) {
  TestServer server;
  auto ask = [&](const string& id) {
    HttpClient client(server.port());
    client.Send("GET /health HTTP/1.1\r\nHost: t\r\nx-request-id: " + id + "\r\n\r\n");
    return client.Read().headers.at("x-request-id");
  };
  EXPECT_EQ(ask("abc-123"), "abc-123");
  EXPECT_NE(ask("a b"), "a b");
  EXPECT_NE(ask(string(500, 'a')), string(500, 'a'));
  EXPECT_NE(ask(""), ask(""));
}

TEST(HttpObservation, MetricsHaveTheirOwnDoorAndFormat) {
  TestServer server;
  EXPECT_EQ(server.Ask().status, 200);
  EXPECT_EQ(server.Ask(R"("n":0)").status, 400);
  HttpClient client(server.metrics_port());
  HttpReply reply;
  for (int i = 0; i < 100; ++i) {  // counted just after the answer was sent
    reply = client.Get("/metrics");
    if (reply.body.find("code=\"400\"") != string::npos) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.headers.at("content-type"), "text/plain; version=0.0.4; charset=utf-8");
  EXPECT_NE(reply.body.find("terrace_requests_total{code=\"200\",model=\"tiny\"} 1"), string::npos)
      << reply.body;
  EXPECT_NE(reply.body.find("terrace_errors_total{code=\"invalid_value\"} 1"), string::npos);
  EXPECT_NE(reply.body.find("terrace_request_seconds_count{model=\"tiny\"} 1"), string::npos);
  EXPECT_EQ(client.Get("/health").status, 200);
  EXPECT_EQ(client.Get("/v1/models").status, 404);
}

TEST(HttpObservation, TheAccessLogTellsLengthsAndNoContent) {
  TestServer server;
  server.Say("SECRET-ANSWER");
  HttpClient client(server.port());
  client.Send(HttpClient::PostText("/v1/chat/completions", ChatBody("", "SECRET-QUESTION"),
                                   "x-request-id: me\r\n"));
  EXPECT_EQ(client.Read().status, 200);
  std::vector<string> lines;
  for (int i = 0; i < 100 && lines.empty(); ++i) {
    lines = server.access_log().lines();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ASSERT_EQ(lines.size(), 1u);
  const auto line = Json(lines[0]);
  EXPECT_EQ(TextAt(line, "id"), "me");
  EXPECT_EQ(TextAt(line, "model"), "tiny");
  EXPECT_EQ(TextAt(line, "path"), "/v1/chat/completions");
  EXPECT_EQ(At(line, "completion_tokens"), boost::json::value(13));
  EXPECT_EQ(lines[0].find("SECRET"), string::npos);
}

TEST(HttpObservation, TheChoiceToLoadKvIsToldWithItsReason) {
  TestServer server;
  const string why = "loaded: loading takes 3.1 ms, computing 40.2 ms";
  server.scheduler().set_script([&](const SeenRequest&) {
    Script script;
    script.tokens = {'H', 'i'};
    script.kv_choice = why;
    script.cached_tokens = 16;
    return script;
  });
  const HttpReply reply = server.Ask();
  EXPECT_EQ(reply.headers.at("x-terrace-kv"), why);
  EXPECT_NE(reply.body.find("\"cached_tokens\":16"), string::npos) << reply.body;
  std::vector<string> lines;
  for (int i = 0; i < 100 && lines.empty(); ++i) {
    lines = server.access_log().lines();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ASSERT_EQ(lines.size(), 1u);
  const auto line = Json(lines[0]);
  EXPECT_EQ(TextAt(line, "kv"), why);
  EXPECT_EQ(At(line, "cached_tokens"), boost::json::value(16));
  EXPECT_EQ(At(line, "restored_tokens"), boost::json::value(16));
  server.Say("plain");
  EXPECT_EQ(server.Ask().headers.count("x-terrace-kv"), 0u);
}

}  // namespace
}  // namespace terrace::server
