// A stand-in for aclnn: tensors, scalars and executors, and the operators that the backend calls,
// computed on host memory when their second phase comes. Part of the ascend stand-in.
#include <cmath>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "fake_call.h"
#include "tensor/half.h"

using namespace terrace;
using namespace terrace::device;

struct aclTensor {
  int dtype = 0;
  std::vector<int64_t> dims, strides;
  int64_t offset = 0;
  void* data = nullptr;

  int64_t size() const {
    int64_t count = 1;
    for (int64_t dim : dims) count *= dim;
    return count;
  }
  // Of element `index` in row-major order of the view.
  int64_t place(int64_t index) const {
    int64_t at = offset;
    for (size_t i = dims.size(); i-- > 0;) {
      at += index % dims[i] * strides[i];
      index /= dims[i];
    }
    return at;
  }
  float get(int64_t index) const {
    const int64_t at = place(index);
    if (dtype == 0) return static_cast<float*>(data)[at];
    const uint16_t bits = static_cast<uint16_t*>(data)[at];
    return dtype == 1 ? HalfToFloat(bits) : Bf16ToFloat(bits);
  }
  void set(int64_t index, float value) const {
    const int64_t at = place(index);
    if (dtype == 0) {
      static_cast<float*>(data)[at] = value;
    } else {
      static_cast<uint16_t*>(data)[at] = dtype == 1 ? FloatToHalf(value) : FloatToBf16(value);
    }
  }
};
struct aclScalar {
  float value = 0;
};
struct aclOpExecutor {
  std::function<void()> run;
  uint64_t workspace = 0;
  bool repeatable = false;
};

namespace {

constexpr int kBad = 161001;         // ACLNN_ERR_PARAM_NULLPTR
constexpr int kWrongShape = 161002;  // ACLNN_ERR_PARAM_INVALID

// The first phase: checks, and an executor that remembers `run`.
int Plan(const char* name, const std::vector<const void*>& objects, bool shapes_fit,
         std::function<void()> run, uint64_t workspace, uint64_t* bytes, aclOpExecutor** executor) {
  Call call(name, kBad);
  for (const void* object : objects) call.NeedObject(object);
  if (!call.ok()) return call.result();
  if (!shapes_fit) {
    Fake().violations.push_back(std::string(name) + ": shapes");
    return kWrongShape;
  }
  *executor = new aclOpExecutor{std::move(run), workspace};
  Fake().objects.insert(*executor);
  *bytes = workspace;
  return 0;
}

// The second phase; the executor is used up by it.
int Execute(const char* name, void* workspace, uint64_t bytes, aclOpExecutor* executor,
            void* stream) {
  if (Fake().before_operator) Fake().before_operator(name);
  Call call(name, kBad);
  call.NeedObject(executor);
  call.NeedStream(stream);
  const bool known = Fake().objects.erase(executor) == 1;
  if (call.ok()) {
    call.Need(bytes == executor->workspace, "another workspace than was asked for");
    call.Need(bytes == 0 ? workspace == nullptr : Fake().Holds(workspace, bytes),
              "the workspace is not on the device");
    if (call.ok()) executor->run();
    Fake().launched.emplace_back(name);
  }
  if (known) delete executor;
  return call.result();
}

bool Same(const aclTensor* a, const aclTensor* b) { return a->dims == b->dims; }

// `b` may have only the last dimension of `a`.
float Broadcast(const aclTensor* a, const aclTensor* b, int64_t index) {
  return Same(a, b) ? b->get(index) : b->get(index % b->dims.back());
}
bool Broadcasts(const aclTensor* a, const aclTensor* b) {
  return Same(a, b) || (b->dims.size() == 1 && b->dims[0] == a->dims.back());
}

void ForEach(const aclTensor* out, const std::function<float(int64_t)>& value) {
  for (int64_t i = 0; i < out->size(); ++i) out->set(i, value(i));
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

aclTensor* aclCreateTensor(const int64_t* dims, uint64_t count, int dtype, const int64_t* strides,
                           int64_t offset, int format, const int64_t* storage,
                           uint64_t storage_count, void* data) {
  Call call("aclCreateTensor", kBad);
  call.Need(dtype == 0 || dtype == 1 || dtype == 27, "dtype");
  call.Need(format == 2 && storage_count == 1, "format");
  call.Need(reinterpret_cast<uintptr_t>(data) % 32 == 0, "the address is not a multiple of 32");
  call.Need(Fake().Holds(data, static_cast<size_t>(storage[0]) * (dtype == 0 ? 4 : 2)),
            "outside an allocation");
  if (!call.ok()) return nullptr;
  auto* tensor =
      new aclTensor{dtype, {dims, dims + count}, {strides, strides + count}, offset, data};
  Fake().objects.insert(tensor);
  return tensor;
}
int aclDestroyTensor(aclTensor* tensor) {
  Release call("aclDestroyTensor");
  const bool known = Fake().objects.erase(tensor) == 1;
  if (known) delete tensor;
  return call.Done(known);
}
aclScalar* aclCreateScalar(void* value, int dtype) {
  Call call("aclCreateScalar", kBad);
  call.Need(dtype == 0, "dtype");
  if (!call.ok()) return nullptr;
  auto* scalar = new aclScalar{*static_cast<float*>(value)};
  Fake().objects.insert(scalar);
  return scalar;
}
int aclDestroyScalar(aclScalar* scalar) {
  Release call("aclDestroyScalar");
  const bool known = Fake().objects.erase(scalar) == 1;
  if (known) delete scalar;
  return call.Done(known);
}
int aclSetAclOpExecutorRepeatable(aclOpExecutor* executor) {
  // On the way to giving it back.
  Release call("aclSetAclOpExecutorRepeatable");
  executor->repeatable = true;
  return call.Done(true);
}
int aclDestroyAclOpExecutor(aclOpExecutor* executor) {
  Release call("aclDestroyAclOpExecutor");
  const bool known = executor->repeatable && Fake().objects.erase(executor) == 1;
  if (known) delete executor;
  return call.Done(known);
}

#define TERRACE_SECOND_PHASE(name)                                                   \
  int name(void* workspace, uint64_t bytes, aclOpExecutor* executor, void* stream) { \
    return Execute(#name, workspace, bytes, executor, stream);                       \
  }
TERRACE_SECOND_PHASE(aclnnMatmul)
TERRACE_SECOND_PHASE(aclnnRmsNorm)
TERRACE_SECOND_PHASE(aclnnCast)
TERRACE_SECOND_PHASE(aclnnSilu)
TERRACE_SECOND_PHASE(aclnnGelu)
TERRACE_SECOND_PHASE(aclnnMul)
TERRACE_SECOND_PHASE(aclnnInplaceAdd)
TERRACE_SECOND_PHASE(aclnnInplaceMuls)
TERRACE_SECOND_PHASE(aclnnInplaceZero)

// Views are taken by value: tensors may be destroyed between the phases' end and their use.
int aclnnMatmulGetWorkspaceSize(aclTensor* a, aclTensor* b, aclTensor* out, int8_t cube,
                                uint64_t* bytes, aclOpExecutor** executor) {
  const bool fit = a->dims.size() == 2 && b->dims.size() == 2 && a->dims[1] == b->dims[0] &&
                   out->dims == std::vector<int64_t>{a->dims[0], b->dims[1]} &&
                   a->dtype == b->dtype && out->dtype == a->dtype && cube == 0;
  return Plan(
      "aclnnMatmulGetWorkspaceSize", {a, b, out}, fit,
      [a = *a, b = *b, out = *out] {
        const int64_t inner = a.dims[1], cols = b.dims[1];
        ForEach(&out, [&](int64_t i) {
          double sum = 0;
          for (int64_t k = 0; k < inner; ++k) {
            sum += double{a.get(i / cols * inner + k)} * b.get(k * cols + i % cols);
          }
          return static_cast<float>(sum);
        });
      },
      1 << 12, bytes, executor);
}
int aclnnRmsNormGetWorkspaceSize(aclTensor* x, aclTensor* gamma, double eps, aclTensor* y,
                                 aclTensor* reciprocal, uint64_t* bytes, aclOpExecutor** executor) {
  const int64_t size = gamma->size();
  const bool fit = Same(x, y) && x->dims.back() == size && reciprocal->size() * size == x->size();
  return Plan(
      "aclnnRmsNormGetWorkspaceSize", {x, gamma, y, reciprocal}, fit,
      [x = *x, gamma = *gamma, y = *y, r = *reciprocal, size, eps] {
        for (int64_t row = 0; row < r.size(); ++row) {
          double squares = 0;
          for (int64_t i = 0; i < size; ++i) {
            squares += double{x.get(row * size + i)} * x.get(row * size + i);
          }
          const double factor = 1.0 / std::sqrt(squares / static_cast<double>(size) + eps);
          r.set(row, static_cast<float>(factor));
          for (int64_t i = 0; i < size; ++i) {
            y.set(row * size + i,
                  static_cast<float>(x.get(row * size + i) * factor) * gamma.get(i));
          }
        }
      },
      0, bytes, executor);
}
int aclnnCastGetWorkspaceSize(aclTensor* x, int dtype, aclTensor* out, uint64_t* bytes,
                              aclOpExecutor** executor) {
  return Plan(
      "aclnnCastGetWorkspaceSize", {x, out}, Same(x, out) && out->dtype == dtype,
      [x = *x, out = *out] { ForEach(&out, [&](int64_t i) { return x.get(i); }); }, 0, bytes,
      executor);
}
int aclnnSiluGetWorkspaceSize(aclTensor* x, aclTensor* out, uint64_t* bytes,
                              aclOpExecutor** executor) {
  return Plan(
      "aclnnSiluGetWorkspaceSize", {x, out}, Same(x, out),
      [x = *x, out = *out] {
        ForEach(&out, [&](int64_t i) { return x.get(i) / (1.0f + std::exp(-x.get(i))); });
      },
      0, bytes, executor);
}
int aclnnGeluGetWorkspaceSize(aclTensor* x, aclTensor* out, uint64_t* bytes,
                              aclOpExecutor** executor) {
  return Plan(
      "aclnnGeluGetWorkspaceSize", {x, out}, Same(x, out),
      [x = *x, out = *out] {
        ForEach(&out, [&](int64_t i) {
          const double v = x.get(i);
          return static_cast<float>(
              0.5 * v * (1 + std::tanh(0.7978845608028654 * (v + 0.044715 * v * v * v))));
        });
      },
      0, bytes, executor);
}
int aclnnMulGetWorkspaceSize(aclTensor* a, aclTensor* b, aclTensor* out, uint64_t* bytes,
                             aclOpExecutor** executor) {
  return Plan(
      "aclnnMulGetWorkspaceSize", {a, b, out}, Same(a, b) && Same(a, out),
      [a = *a, b = *b, out = *out] {
        ForEach(&out, [&](int64_t i) { return a.get(i) * b.get(i); });
      },
      0, bytes, executor);
}
int aclnnInplaceAddGetWorkspaceSize(aclTensor* x, aclTensor* y, aclScalar* alpha, uint64_t* bytes,
                                    aclOpExecutor** executor) {
  return Plan(
      "aclnnInplaceAddGetWorkspaceSize", {x, y, alpha}, Broadcasts(x, y),
      [x = *x, y = *y, alpha = alpha->value] {
        ForEach(&x, [&](int64_t i) { return x.get(i) + alpha * Broadcast(&x, &y, i); });
      },
      0, bytes, executor);
}
int aclnnInplaceMulsGetWorkspaceSize(aclTensor* x, aclScalar* scale, uint64_t* bytes,
                                     aclOpExecutor** executor) {
  return Plan(
      "aclnnInplaceMulsGetWorkspaceSize", {x, scale}, true,
      [x = *x, scale = scale->value] { ForEach(&x, [&](int64_t i) { return x.get(i) * scale; }); },
      0, bytes, executor);
}
int aclnnInplaceZeroGetWorkspaceSize(aclTensor* x, uint64_t* bytes, aclOpExecutor** executor) {
  return Plan(
      "aclnnInplaceZeroGetWorkspaceSize", {x}, true,
      [x = *x] { ForEach(&x, [](int64_t) { return 0.0f; }); }, 0, bytes, executor);
}

}  // extern "C"
#pragma GCC visibility pop
