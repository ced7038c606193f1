// A product of matrices as libraries of the shape of BLAS have it, on host memory: for the source
// files of the makers' libraries, which say by what numbers they call things.
#ifndef TERRACE_TESTS_CONFORMANCE_BLAS_SHAPE_H_
#define TERRACE_TESTS_CONFORMANCE_BLAS_SHAPE_H_

#include <cstdint>
#include <cstring>

#include "fake_call.h"

using namespace terrace::device;

namespace {

struct BlasNumbers {
  int bad;  // what the library answers to a wrong argument
  int plain, transposed, bf16, float32, sums, algorithm;
};

struct Gemm {
  void* handle;
  int trans_a, trans_b, m, n, k;
  const void* alpha;
  const void* a;
  int a_type, lda;
  const void* b;
  int b_type, ldb;
  const void* beta;
  void* c;
  int c_type, ldc, sums, algorithm;
};

float FromBf16(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

int Multiply(const char* name, const BlasNumbers& numbers, const Gemm& g) {
  Call call(name, numbers.bad, kAnywhere);
  call.NeedObject(g.handle);
  call.Need(Fake().events.contains(g.handle), "the handle has no stream");
  call.Need(g.trans_a == numbers.transposed && g.trans_b == numbers.plain, "transposes");
  call.Need(g.a_type == numbers.bf16 && g.b_type == numbers.bf16, "types of the operands");
  call.Need(g.c_type == numbers.float32, "type of the result");
  call.Need(g.algorithm == numbers.algorithm, "algorithm");
  call.Need(g.m > 0 && g.n > 0 && g.k > 0, "sizes");
  call.Need(g.lda >= g.k && g.ldb >= g.k && g.ldc >= g.m, "leading dimensions");
  float alpha, beta;
  std::memcpy(&alpha, g.alpha, sizeof(alpha));
  std::memcpy(&beta, g.beta, sizeof(beta));
  call.Need(alpha == 1.0f && beta == 0.0f, "factors");
  if (call.ok() && g.sums != numbers.sums) return numbers.bad;  // no violation: it is probed
  if (!call.ok()) return call.result();
  const auto* a = static_cast<const uint16_t*>(g.a);
  const auto* b = static_cast<const uint16_t*>(g.b);
  auto* c = static_cast<float*>(g.c);
  for (int64_t j = 0; j < g.n; ++j) {
    for (int64_t i = 0; i < g.m; ++i) {
      float sum = 0;
      for (int64_t l = 0; l < g.k; ++l)
        sum += FromBf16(a[i * g.lda + l]) * FromBf16(b[j * g.ldb + l]);
      c[j * g.ldc + i] = sum;
    }
  }
  ++Fake().launch_calls;
  return 0;
}

int MakeHandle(const char* name, int bad, void** handle) {
  Call call(name, bad, kAnywhere);
  call.NewObject(handle);
  return call.result();
}
int ForgetHandle(const char* name, void* handle) {
  Release call(name);
  Fake().events.erase(handle);
  return call.Done(Fake().objects.erase(handle) == 1);
}
// A handle that has a stream is kept as an event.
int GiveStream(const char* name, int bad, void* handle, void* stream) {
  Call call(name, bad, kAnywhere);
  call.NeedObject(handle);
  call.Need(stream != nullptr, "no stream");
  if (call.ok()) Fake().events[handle] = true;
  return call.result();
}

}  // namespace

#define BLAS_HANDLES(create, destroy, set_stream, bad)                   \
  int create(void** handle) { return MakeHandle(#create, bad, handle); } \
  int destroy(void* handle) { return ForgetHandle(#destroy, handle); }   \
  int set_stream(void* handle, void* stream) {                           \
    return GiveStream(#set_stream, bad, handle, stream);                 \
  }
#define BLAS_GEMM(name, numbers)                                                                \
  int name(void* handle, int ta, int tb, int m, int n, int k, const void* alpha, const void* a, \
           int at, int lda, const void* b, int bt, int ldb, const void* beta, void* c, int ct,  \
           int ldc, int sums, int algorithm) {                                                  \
    return Multiply(#name, numbers,                                                             \
                    {handle, ta, tb, m, n, k, alpha, a, at, lda, b, bt, ldb, beta, c, ct, ldc,  \
                     sums, algorithm});                                                         \
  }

#endif  // TERRACE_TESTS_CONFORMANCE_BLAS_SHAPE_H_
