// A stand-in for CNNL: descriptors, and the operators that the backend calls, computed on host
// memory. Numbers of options that are not public are made up here; a wrong one is refused, as the
// library refuses arguments that do not fit each other. Part of the cambricon stand-in.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

#include "fake_call.h"
#include "tensor/half.h"

using namespace terrace;
using namespace terrace::device;

namespace {

constexpr int kBad = 3;  // CNNL_STATUS_BAD_PARAM
constexpr int kTransposeB = 4;
constexpr int kAdd = 1;
constexpr int kToHalf = 5, kFromHalf = 17, kToBf16 = 40, kFromBf16 = 41;
constexpr size_t kMatMulRoom = 1 << 12;

struct TensorDesc {
  int dtype = 0;
  std::vector<int> dims;
  bool set = false;

  int64_t size() const {
    int64_t count = 1;
    for (const int dim : dims) count *= dim;
    return count;
  }
  size_t bytes() const { return static_cast<size_t>(size()) * (dtype == 2 ? 4 : 2); }
};
struct MatMulDesc {
  bool transpose_b = false;
};
struct Plan {
  const MatMulDesc* desc = nullptr;
};
struct Algo {
  const MatMulDesc* desc = nullptr;
};
struct OpDesc {
  int operation = -1;
};
struct Handle {
  void* queue = nullptr;
};

float Get(const TensorDesc* desc, const void* data, int64_t i) {
  if (desc->dtype == 2) return static_cast<const float*>(data)[i];
  const uint16_t bits = static_cast<const uint16_t*>(data)[i];
  return desc->dtype == 1 ? HalfToFloat(bits) : Bf16ToFloat(bits);
}
void Set(const TensorDesc* desc, void* data, int64_t i, float value) {
  if (desc->dtype == 2) {
    static_cast<float*>(data)[i] = value;
  } else {
    static_cast<uint16_t*>(data)[i] = desc->dtype == 1 ? FloatToHalf(value) : FloatToBf16(value);
  }
}

template <typename T>
int Make(const char* name, T** object) {
  Call call(name, kBad);
  if (!call.ok()) return call.result();
  *object = new T;
  Fake().objects.insert(*object);
  return 0;
}
template <typename T>
int Drop(const char* name, T* object) {
  Release call(name);
  const bool known = Fake().objects.erase(object) == 1;
  if (known) delete object;
  return call.Done(known);
}
// An operand that is described and lies on the device.
void NeedOperand(Call& call, const TensorDesc* desc, const void* data) {
  call.NeedObject(desc);
  if (!call.ok()) return;
  call.Need(desc->set, "a tensor that is not described");
  call.Need(Fake().Holds(data, desc->bytes()), "outside an allocation");
}
void NeedHandle(Call& call, const Handle* handle) {
  call.NeedObject(handle);
  if (call.ok()) call.NeedStream(handle->queue);
}
void NeedRoom(Call& call, const void* room, size_t bytes, size_t wanted) {
  call.Need(bytes == wanted, "another workspace than was asked for");
  call.Need(bytes == 0 ? room == nullptr : Fake().Holds(room, bytes),
            "the workspace is not on the device");
}
bool Fits(const MatMulDesc* desc, const TensorDesc* a, const TensorDesc* b, const TensorDesc* d) {
  if (a->dims.size() != 2 || b->dims.size() != 2 || d->dims.size() != 2) return false;
  const int inner = desc->transpose_b ? b->dims[1] : b->dims[0];
  const int columns = desc->transpose_b ? b->dims[0] : b->dims[1];
  return a->dims[1] == inner && d->dims[0] == a->dims[0] && d->dims[1] == columns &&
         a->dtype == b->dtype && d->dtype == a->dtype;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int cnnlCreate(Handle** handle) { return Make("cnnlCreate", handle); }
int cnnlDestroy(Handle* handle) { return Drop("cnnlDestroy", handle); }
int cnnlSetQueue(Handle* handle, void* queue) {
  Call call("cnnlSetQueue", kBad);
  call.NeedObject(handle);
  call.NeedStream(queue);
  if (call.ok()) handle->queue = queue;
  return call.result();
}
const char* cnnlGetErrorString(int) {
  Release call("cnnlGetErrorString");
  return "made to fail";
}
int cnnlCreateTensorDescriptor(TensorDesc** desc) {
  return Make("cnnlCreateTensorDescriptor", desc);
}
int cnnlDestroyTensorDescriptor(TensorDesc* desc) {
  return Drop("cnnlDestroyTensorDescriptor", desc);
}
int cnnlSetTensorDescriptorEx(TensorDesc* desc, int layout, int dtype, int count, const int* dims,
                              const int* strides) {
  Call call("cnnlSetTensorDescriptorEx", kBad);
  call.NeedObject(desc);
  call.Need(layout == 4, "layout");
  call.Need(dtype == 1 || dtype == 2 || dtype == 17, "dtype");
  call.Need(count > 0 && count <= 8, "dimensions");
  if (!call.ok()) return call.result();
  call.Need(!desc->set, "described twice");
  int stride = 1;
  for (int i = count; i-- > 0; stride *= dims[i]) call.Need(strides[i] == stride, "strides");
  desc->dtype = dtype;
  desc->dims.assign(dims, dims + count);
  desc->set = true;
  return call.result();
}

int cnnlMatMulDescCreate(MatMulDesc** desc) { return Make("cnnlMatMulDescCreate", desc); }
int cnnlMatMulDescDestroy(MatMulDesc* desc) { return Drop("cnnlMatMulDescDestroy", desc); }
int cnnlSetMatMulDescAttr(MatMulDesc* desc, int attribute, const void* value, size_t bytes) {
  Call call("cnnlSetMatMulDescAttr", kBad);
  call.NeedObject(desc);
  call.Need(bytes == sizeof(int32_t), "size of the attribute");
  int32_t number = 0;
  std::memcpy(&number, value, sizeof(number));
  if (call.ok() && attribute == kTransposeB) desc->transpose_b = number != 0;
  return call.result();
}
int cnnlMatMulAlgoCreate(Algo** algo) { return Make("cnnlMatMulAlgoCreate", algo); }
int cnnlMatMulAlgoDestroy(Algo* algo) { return Drop("cnnlMatMulAlgoDestroy", algo); }
int cnnlCreateMatMulHeuristicResult(Plan** plan) {
  return Make("cnnlCreateMatMulHeuristicResult", plan);
}
int cnnlDestroyMatMulHeuristicResult(Plan* plan) {
  return Drop("cnnlDestroyMatMulHeuristicResult", plan);
}
int cnnlGetMatMulAlgoHeuristic(Handle* handle, MatMulDesc* desc, TensorDesc* a, TensorDesc* b,
                               TensorDesc* c, TensorDesc* d, void* preference, int wanted,
                               Plan** plan, int* found) {
  Call call("cnnlGetMatMulAlgoHeuristic", kBad);
  NeedHandle(call, handle);
  for (const void* object : {static_cast<const void*>(desc), static_cast<const void*>(a),
                             static_cast<const void*>(b), static_cast<const void*>(c),
                             static_cast<const void*>(d), static_cast<const void*>(*plan)}) {
    call.NeedObject(object);
  }
  call.Need(preference == nullptr && wanted == 1, "arguments");
  if (!call.ok()) return call.result();
  if (!Fits(desc, a, b, d)) return kBad;
  (*plan)->desc = desc;
  *found = 1;
  return 0;
}
int cnnlGetMatMulHeuristicResult(Plan* plan, Algo* algo, size_t* workspace) {
  Call call("cnnlGetMatMulHeuristicResult", kBad);
  call.NeedObject(plan);
  call.NeedObject(algo);
  call.Need(call.ok() && plan->desc != nullptr, "no plan was made");
  if (!call.ok()) return call.result();
  algo->desc = plan->desc;
  *workspace = kMatMulRoom;
  return 0;
}
int cnnlMatMul_v2(Handle* handle, MatMulDesc* desc, Algo* algo, const float* alpha, TensorDesc* da,
                  const void* a, TensorDesc* db, const void* b, const float* beta, TensorDesc* dc,
                  const void* c, void* room, size_t bytes, TensorDesc* dd, void* d) {
  Call call("cnnlMatMul_v2", kBad);
  NeedHandle(call, handle);
  call.NeedObject(desc);
  call.NeedObject(algo);
  call.Need(call.ok() && algo->desc == desc, "an algorithm of another product");
  call.Need(*alpha == 1.0f && *beta == 0.0f, "factors");
  NeedOperand(call, da, a);
  NeedOperand(call, db, b);
  NeedOperand(call, dc, c);
  NeedOperand(call, dd, d);
  NeedRoom(call, room, bytes, kMatMulRoom);
  if (!call.ok()) return call.result();
  if (!Fits(desc, da, db, dd)) return kBad;
  const int64_t rows = dd->dims[0], columns = dd->dims[1], inner = da->dims[1];
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      double sum = 0;
      for (int64_t k = 0; k < inner; ++k) {
        sum += double{Get(da, a, i * inner + k)} *
               Get(db, b, desc->transpose_b ? j * inner + k : k * columns + j);
      }
      Set(dd, d, i * columns + j, static_cast<float>(sum));
    }
  }
  Fake().launched.emplace_back("cnnlMatMul_v2");
  return 0;
}

int cnnlGetRmsNormOpWorkspaceSize(Handle* handle, int axis, TensorDesc* x, size_t* bytes) {
  Call call("cnnlGetRmsNormOpWorkspaceSize", kBad);
  NeedHandle(call, handle);
  call.NeedObject(x);
  call.Need(call.ok() && axis == static_cast<int>(x->dims.size()) - 1, "axis");
  *bytes = 256;
  return call.result();
}
int cnnlRmsNormForward(Handle* handle, int axis, TensorDesc* dx, const void* x, TensorDesc* dw,
                       const void* weight, const void* bias, float eps, void* room, size_t bytes,
                       TensorDesc* dy, void* y, TensorDesc* dr, void* rms) {
  Call call("cnnlRmsNormForward", kBad);
  NeedHandle(call, handle);
  NeedOperand(call, dx, x);
  NeedOperand(call, dw, weight);
  NeedOperand(call, dy, y);
  NeedOperand(call, dr, rms);
  NeedRoom(call, room, bytes, 256);
  call.Need(bias == nullptr, "bias");
  call.Need(call.ok() && axis == 1 && dx->dims == dy->dims && dw->size() == dx->dims[1] &&
                dr->size() == dx->dims[0],
            "shapes");
  if (!call.ok()) return call.result();
  const int64_t size = dx->dims[1];
  for (int64_t row = 0; row < dx->dims[0]; ++row) {
    double squares = 0;
    for (int64_t i = 0; i < size; ++i) squares += std::pow(Get(dx, x, row * size + i), 2);
    const double factor = 1.0 / std::sqrt(squares / static_cast<double>(size) + eps);
    Set(dr, rms, row, static_cast<float>(factor));
    for (int64_t i = 0; i < size; ++i) {
      Set(dy, y, row * size + i,
          static_cast<float>(Get(dx, x, row * size + i) * factor) * Get(dw, weight, i));
    }
  }
  Fake().launched.emplace_back("cnnlRmsNormForward");
  return 0;
}

int cnnlCreateOpTensorDescriptor(OpDesc** desc) {
  return Make("cnnlCreateOpTensorDescriptor", desc);
}
int cnnlDestroyOpTensorDescriptor(OpDesc* desc) {
  return Drop("cnnlDestroyOpTensorDescriptor", desc);
}
int cnnlSetOpTensorDescriptor(OpDesc* desc, int operation, int dtype, int) {
  Call call("cnnlSetOpTensorDescriptor", kBad);
  call.NeedObject(desc);
  call.Need(dtype == 2, "dtype");
  if (call.ok()) desc->operation = operation;
  return call.result();
}
int cnnlGetOpTensorWorkspaceSize(Handle* handle, TensorDesc* a, TensorDesc* b, TensorDesc* c,
                                 size_t* bytes) {
  Call call("cnnlGetOpTensorWorkspaceSize", kBad);
  NeedHandle(call, handle);
  for (TensorDesc* desc : {a, b, c}) call.NeedObject(desc);
  *bytes = 0;
  return call.result();
}
int cnnlOpTensor(Handle* handle, OpDesc* desc, const void* alpha1, TensorDesc* da, const void* a,
                 const void* alpha2, TensorDesc* db, const void* b, void* room, size_t bytes,
                 const void* beta, TensorDesc* dc, void* c) {
  Call call("cnnlOpTensor", kBad);
  NeedHandle(call, handle);
  call.NeedObject(desc);
  NeedOperand(call, da, a);
  NeedOperand(call, db, b);
  NeedOperand(call, dc, c);
  NeedRoom(call, room, bytes, 0);
  float one, other, none;
  std::memcpy(&one, alpha1, 4);
  std::memcpy(&other, alpha2, 4);
  std::memcpy(&none, beta, 4);
  call.Need(one == 1 && other == 1 && none == 0, "factors");
  call.Need(call.ok() && da->dims == dc->dims &&
                (db->dims == da->dims || (db->dims.size() == 1 && db->dims[0] == da->dims.back())),
            "shapes");
  if (!call.ok()) return call.result();
  for (int64_t i = 0; i < da->size(); ++i) {
    const float left = Get(da, a, i), right = Get(db, b, i % db->size());
    Set(dc, c, i, desc->operation == kAdd ? left + right : left * right);
  }
  Fake().launched.emplace_back("cnnlOpTensor");
  return 0;
}

int cnnlCastDataType(Handle* handle, TensorDesc* in, const void* from, int direction,
                     TensorDesc* out, void* to) {
  Call call("cnnlCastDataType", kBad);
  NeedHandle(call, handle);
  NeedOperand(call, in, from);
  NeedOperand(call, out, to);
  call.Need(call.ok() && in->dims == out->dims, "shapes");
  if (!call.ok()) return call.result();
  const std::map<int, std::pair<int, int>> known = {
      {kToHalf, {2, 1}}, {kFromHalf, {1, 2}}, {kToBf16, {2, 17}}, {kFromBf16, {17, 2}}};
  const auto types = known.find(direction);
  if (types == known.end() || types->second != std::pair{in->dtype, out->dtype}) return kBad;
  for (int64_t i = 0; i < in->size(); ++i) Set(out, to, i, Get(in, from, i));
  Fake().launched.emplace_back("cnnlCastDataType");
  return 0;
}
int cnnlFill_v3(Handle* handle, int mode, const void* value, TensorDesc* desc, void* x) {
  Call call("cnnlFill_v3", kBad);
  NeedHandle(call, handle);
  NeedOperand(call, desc, x);
  call.Need(mode == 0, "mode");
  if (!call.ok()) return call.result();
  float number;
  std::memcpy(&number, value, 4);
  for (int64_t i = 0; i < desc->size(); ++i) Set(desc, x, i, number);
  Fake().launched.emplace_back("cnnlFill_v3");
  return 0;
}

}  // extern "C"
#pragma GCC visibility pop
