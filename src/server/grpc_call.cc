#include "server/grpc_call.h"

#include <fmt/format.h>

#include <utility>

#include "base/clock.h"
#include "base/text.h"
#include "kserve.pb.h"
#include "obs/log.h"
#include "obs/metrics.h"

namespace terrace::server {
namespace {

template <typename Map>
kserve::Parameters ReadParameters(const Map& map) {
  kserve::Parameters out;
  for (const auto& [name, value] : map) {
    switch (value.parameter_choice_case()) {
      case inference::InferParameter::kBoolParam:
        out[name] = value.bool_param();
        break;
      case inference::InferParameter::kInt64Param:
        out[name] = value.int64_param();
        break;
      case inference::InferParameter::kUint64Param:
        out[name] = static_cast<double>(value.uint64_param());
        break;
      case inference::InferParameter::kDoubleParam:
        out[name] = value.double_param();
        break;
      case inference::InferParameter::kStringParam:
        out[name] = value.string_param();
        break;
      case inference::InferParameter::PARAMETER_CHOICE_NOT_SET:
        break;
    }
  }
  return out;
}

template <typename T, typename Values>
void AppendAs(const Values& values, kserve::Tensor* tensor) {
  for (const auto value : values) tensor->Append(static_cast<T>(value));
}

// The contents of a tensor that did not come raw.
void ReadContents(const inference::InferTensorContents& contents, kserve::Tensor* tensor) {
  const std::string& type = tensor->datatype;
  if (type == "BYTES") {
    for (const std::string& text : contents.bytes_contents()) tensor->AppendBytes(text);
  } else if (type == "BOOL") {
    AppendAs<uint8_t>(contents.bool_contents(), tensor);
  } else if (type == "INT8") {
    AppendAs<int8_t>(contents.int_contents(), tensor);
  } else if (type == "INT16") {
    AppendAs<int16_t>(contents.int_contents(), tensor);
  } else if (type == "INT32") {
    AppendAs<int32_t>(contents.int_contents(), tensor);
  } else if (type == "INT64") {
    AppendAs<int64_t>(contents.int64_contents(), tensor);
  } else if (type == "UINT8") {
    AppendAs<uint8_t>(contents.uint_contents(), tensor);
  } else if (type == "UINT16") {
    AppendAs<uint16_t>(contents.uint_contents(), tensor);
  } else if (type == "UINT32") {
    AppendAs<uint32_t>(contents.uint_contents(), tensor);
  } else if (type == "UINT64") {
    AppendAs<uint64_t>(contents.uint64_contents(), tensor);
  } else if (type == "FP32") {
    AppendAs<float>(contents.fp32_contents(), tensor);
  } else if (type == "FP64") {
    AppendAs<double>(contents.fp64_contents(), tensor);
  }
}

}  // namespace

std::optional<ApiError> ReadRequest(const inference::ModelInferRequest& message,
                                    kserve::InferRequest* out) {
  out->model = message.model_name();
  out->version = message.model_version();
  out->id = message.id();
  out->parameters = ReadParameters(message.parameters());
  const int raw = message.raw_input_contents_size();
  if (raw != 0 && raw != message.inputs_size()) {
    return BadField("raw_input_contents",
                    fmt::format("There are {} inputs and {} raw contents; give as many or none.",
                                message.inputs_size(), raw));
  }
  for (int i = 0; i < message.inputs_size(); ++i) {
    const auto& input = message.inputs(i);
    kserve::Tensor tensor{.name = input.name(), .datatype = input.datatype()};
    tensor.shape.assign(input.shape().begin(), input.shape().end());
    if (raw != 0) {
      tensor.data = message.raw_input_contents(i);
    } else {
      ReadContents(input.contents(), &tensor);
    }
    out->inputs.push_back(std::move(tensor));
  }
  for (const auto& output : message.outputs()) out->outputs.push_back(output.name());
  return std::nullopt;
}

void WriteResponse(kserve::InferResponse response, inference::ModelInferResponse* out) {
  out->set_model_name(response.model);
  out->set_model_version(response.version);
  out->set_id(response.id);
  for (const auto& [name, value] : response.parameters) {
    if (const bool* flag = std::get_if<bool>(&value)) {
      (*out->mutable_parameters())[name].set_bool_param(*flag);
    }
  }
  for (kserve::Tensor& tensor : response.outputs) {
    auto* output = out->add_outputs();
    output->set_name(tensor.name);
    output->set_datatype(tensor.datatype);
    for (const int64_t dimension : tensor.shape) output->add_shape(dimension);
    out->add_raw_output_contents(std::move(tensor.data));
  }
}

CallLog::CallLog(const GrpcDeps* deps, HttpRequest request, std::string model)
    : deps_(deps),
      request_(std::move(request)),
      model_(std::move(model)),
      started_us_(deps->clock->NowUs()) {}

void CallLog::Ended(int status, std::string_view code, bool known) const {
  const int64_t took_us = deps_->clock->NowUs() - started_us_;
  deps_->metrics->Count(MetricId::kRequests, {known ? model_ : "", fmt::format("{}", status)});
  if (!code.empty()) deps_->metrics->Count(MetricId::kErrors, {code});
  deps_->access_log->Info("request", {{"id", request_.id},
                                      {"peer", request_.peer},
                                      {"method", "gRPC"},
                                      {"path", request_.path},
                                      {"status", status},
                                      {"total_us", took_us},
                                      {"model", ToValidUtf8(model_)},
                                      {"key", request_.caller.key},
                                      {"error", code}});
}

}  // namespace terrace::server
