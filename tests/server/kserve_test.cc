// Tensors in and out, whatever a client sends.
#include <gtest/gtest.h>

#include <string>

#include "server/kserve_json.h"
#include "server/kserve_translate.h"
#include "test_server.h"

namespace terrace::server::kserve {
namespace {

std::string Body(std::string_view input) { return "{\"inputs\":[" + std::string(input) + "]}"; }

std::optional<ApiError> Parse(std::string_view body, std::string_view length = "") {
  InferRequest request;
  OutputForm form;
  return ParseInfer(body, length, &request, &form);
}

TEST(KserveJson, ReadsNestedAndBinaryTensors) {
  InferRequest request;
  OutputForm form;
  const std::string text =
      R"({"id":"7","inputs":[)"
      R"({"name":"text_input","datatype":"BYTES","shape":[2,1],"data":[["a"],["bc"]]},)"
      R"({"name":"max_tokens","datatype":"INT32","shape":[1],)"
      R"("parameters":{"binary_data_size":4}}],)"
      R"("outputs":[{"name":"text_output","parameters":{"binary_data":true}},)"
      R"({"name":"log_probs"}]})";
  ASSERT_FALSE(ParseInfer(text + std::string("\x05\0\0\0", 4), std::to_string(text.size()),
                          &request, &form));
  EXPECT_EQ(request.id, "7");
  EXPECT_EQ(BytesElements(request.inputs[0]), (std::vector<std::string_view>{"a", "bc"}));
  EXPECT_EQ(request.inputs[1].data, std::string("\x05\0\0\0", 4));
  EXPECT_TRUE(form.binary("text_output"));
  EXPECT_FALSE(form.binary("log_probs"));
}

TEST(KserveJson, HostileBodiesAreRefusedInWords) {
  const std::string good =
      R"({"name":"x","datatype":"INT32","shape":[1],"parameters":{"binary_data_size":4}})";
  for (const std::string& bad :
       {std::string("{}"), std::string("[]"), std::string(R"({"inputs":[3]})"),
        Body(R"({"name":"x","datatype":"INT32","shape":[-1],"data":[1]})"),
        Body(R"({"name":"x","datatype":"INT32","shape":[4294967296,4294967296],"data":[1]})"),
        Body(R"({"name":"x","datatype":"INT32","shape":[1],"data":[1.5]})"),
        Body(R"({"name":"x","datatype":"INT32","shape":[1],"data":[99999999999]})"),
        Body(R"({"name":"x","datatype":"INT32","shape":[2],"data":[1]})"),
        Body(R"({"name":"x","datatype":"INT99","shape":[1],"data":[1]})"),
        Body(R"({"name":"x","datatype":"BYTES","shape":[1],"data":[1]})"),
        Body(R"({"name":"x","datatype":"INT32","shape":[1]})"),
        Body(R"({"name":"x","datatype":"INT32","shape":[1,1,1,1,1,1,1,1,1],"data":[1]})"),
        Body(good),
        Body(R"({"name":"x","datatype":"INT32","shape":[1],"parameters":)"
             R"({"binary_data_size":-4}})")}) {
    const std::optional<ApiError> error = Parse(bad);
    ASSERT_TRUE(error) << bad;
    EXPECT_EQ(error->status, 400);
    EXPECT_FALSE(error->message.empty());
  }
  EXPECT_TRUE(Parse(Body(good), "99999"));
  EXPECT_TRUE(Parse(Body(good), "-1"));
  EXPECT_TRUE(Parse(Body(good) + "12345", std::to_string(Body(good).size()))) << "a byte too many";
  EXPECT_FALSE(Parse(Body(good) + "1234", std::to_string(Body(good).size())));
}

TEST(KserveJson, ElementLengthsThatLieAreRefused) {
  Tensor tensor{.name = "x", .datatype = "BYTES", .shape = {1}};
  tensor.AppendBytes("abc");
  EXPECT_FALSE(CheckTensor(tensor));
  for (const std::string& data :
       {std::string(), std::string("\x03\0\0", 3), std::string("\x04\0\0\0abc", 7),
        std::string("\xff\xff\xff\xff"
                    "abc",
                    7),
        tensor.data + tensor.data}) {
    Tensor bad = tensor;
    bad.data = data;
    EXPECT_TRUE(CheckTensor(bad)) << data.size();
  }
}

TEST(KserveTranslate, BecomesARequestOfTheOpenAiApi) {
  InferRequest request{.model = "m"};
  Tensor text{.name = "text_input", .datatype = "BYTES", .shape = {1}};
  text.AppendBytes("hello");
  Tensor most{.name = "max_tokens", .datatype = "INT32", .shape = {1}};
  most.Append(int32_t{9});
  request.inputs = {text, most};
  request.parameters["top_p"] = 0.5;
  request.parameters["priority"] = int64_t{3};
  Translation out;
  ASSERT_FALSE(Translate(request, false, &out));
  EXPECT_EQ(out.path, "/v1/completions");
  EXPECT_EQ(Json(out.body), Json(R"({"prompt":["hello"],"max_tokens":9,"top_p":0.5,"model":"m"})"));
  request.parameters["chat"] = true;
  ASSERT_FALSE(Translate(request, false, &out));
  EXPECT_EQ(out.path, "/v1/chat/completions");
  EXPECT_EQ(TextAt(Json(out.body), "messages/0/content"), "hello");
  request.parameters["stream"] = true;
  EXPECT_EQ(Translate(request, false, &out)->param, "stream");
  ASSERT_FALSE(Translate(request, true, &out));
  EXPECT_TRUE(out.stream);
  request.inputs.push_back(text);
  EXPECT_TRUE(Translate(request, true, &out)) << "two prompts";
  request.inputs.clear();
  EXPECT_TRUE(Translate(request, true, &out)) << "no prompt";
}

TEST(KserveTranslate, AnswersBecomeTensors) {
  InferRequest request{.model = "m", .id = "4", .outputs = {"text_output", "log_probs"}};
  InferResponse out;
  ASSERT_FALSE(ReadWhole(request,
                         R"({"choices":[{"text":"hi","finish_reason":"stop","logprobs":)"
                         R"({"token_logprobs":[-0.5,null]}}],)"
                         R"("usage":{"prompt_tokens":3,"completion_tokens":2}})",
                         &out));
  ASSERT_EQ(out.outputs.size(), 2u);
  EXPECT_EQ(BytesElements(out.outputs[0])[0], "hi");
  EXPECT_EQ(out.outputs[1].shape, (std::vector<int64_t>{2}));
  const HttpResponse http = InferHttp(out, {});
  EXPECT_EQ(At(Json(http.body), "outputs/1/data/0"), boost::json::value(-0.5));
  EXPECT_EQ(TextAt(Json(http.body), "id"), "4");
  std::optional<ApiError> error;
  EXPECT_FALSE(ReadEvent(request, "[DONE]", &out, &error));
  EXPECT_FALSE(ReadEvent(request, R"({"error":{"message":"no","code":"c"}})", &out, &error));
  ASSERT_TRUE(error);
  EXPECT_EQ(error->message, "no");
}

}  // namespace
}  // namespace terrace::server::kserve
