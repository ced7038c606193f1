#include <gtest/gtest.h>

#include "test_server.h"

namespace terrace::server {
namespace {

TEST(Server, AnswersAChat) {
  TestServer server;
  const HttpReply reply = server.Ask();
  EXPECT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(TextAt(Json(reply.body), "choices/0/message/content"), "Hi!") << reply.body;
  const HttpReply stream = server.Ask(R"("stream":true)");
  EXPECT_EQ(StreamText(stream), "Hi!") << stream.body;
}

}  // namespace
}  // namespace terrace::server
