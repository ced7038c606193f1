// Requests and answers of the KServe v2 inference protocol, whichever way they came (JSON, JSON
// with binary tensors, gRPC). Plain data.
// Protocol: the Open Inference Protocol v2 and its binary-tensor extension.
#ifndef TERRACE_SERVER_KSERVE_TYPES_H_
#define TERRACE_SERVER_KSERVE_TYPES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "server/api_error.h"

namespace terrace::server::kserve {

using Parameter = std::variant<bool, int64_t, double, std::string>;
using Parameters = std::map<std::string, Parameter, std::less<>>;

// `data` in row-major order, little-endian; each element of BYTES is its length in four bytes and
// then its bytes.
struct Tensor {
  std::string name;
  std::string datatype;  // "BYTES", "INT32" ...
  std::vector<int64_t> shape;
  std::string data;

  // REQUIRES: numbers of a fixed size.
  template <typename T>
  void Append(T value) {
    data.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void AppendBytes(std::string_view element) {
    Append(static_cast<uint32_t>(element.size()));
    data.append(element);
  }
};

struct InferRequest {
  std::string model;
  std::string version;  // empty: the one in force
  std::string id;
  Parameters parameters;
  std::vector<Tensor> inputs;
  std::vector<std::string> outputs;  // empty: those of DefaultOutputs()
};

struct InferResponse {
  std::string model;
  std::string version;
  std::string id;
  Parameters parameters;
  std::vector<Tensor> outputs;
};

struct TensorInfo {
  std::string_view name;
  std::string_view datatype;
  bool is_list;  // shape [-1], else [1]
  std::string_view help;
};

// Bytes of an element; 0 for BYTES, -1 for a type that the protocol does not have.
int ElementBytes(std::string_view datatype);

// Elements of a shape; an error if a dimension is negative or the product leaves 2^31.
std::optional<int64_t> ElementCount(const std::vector<int64_t>& shape);

// What is wrong with a tensor's type, shape or bytes.
std::optional<ApiError> CheckTensor(const Tensor& tensor);

// The elements of a checked BYTES tensor.
std::vector<std::string_view> BytesElements(const Tensor& tensor);

}  // namespace terrace::server::kserve

#endif  // TERRACE_SERVER_KSERVE_TYPES_H_
