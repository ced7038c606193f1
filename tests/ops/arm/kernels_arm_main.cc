// The kernel variants of an architecture against plain float64, without test framework and other
// libraries: built by a cross compiler and run by an emulator (see CMakeLists.txt). Prints a line a
// variant and exits with 1 if a result is beyond the tolerance that ops/tolerance.h derives.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "../operands.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/packing.h"
#include "ops/cpu/variants.h"
#include "ops/tolerance.h"
#include "tensor/dequantize.h"

namespace terrace::ops::cpu {
namespace {

constexpr uint64_t kSeed = 41;

class Checker {
 public:
  explicit Checker(const Variant& variant)
      : name_(variant.name), kernels_(*variant.kernels), random_(kSeed) {}

  int Run() {
    for (const DType dtype : MatrixTypes()) {
      const int block = std::max(32, static_cast<int>(Info(dtype).block_elements));
      for (const int n : {1, 2, 3, 4, 5, 7, 13}) MatMul(dtype, 37, 2 * block, n);
      if (!Info(dtype).quantised) MatMul(dtype, 17, 35, 3);
    }
    Elementwise();
    for (const KvDType dtype : {KvDType::kF16, KvDType::kI8, KvDType::kF32}) {
      Attention(dtype, 64, 64, 3, 0, 0.0f, false);
      Attention(dtype, 80, 40, 2, 21, 30.0f, true);
    }
    LetsBadValuesThrough();
    std::printf("%-10s %d checks, %d wrong, seed %llu\n", name_.c_str(), checks_, wrong_,
                static_cast<unsigned long long>(kSeed));
    return wrong_;
  }

 private:
  void Check(const std::string& what, double got, double want, double tolerance) {
    ++checks_;
    if (std::fabs(got - want) <= tolerance) return;
    if (++wrong_ <= 20) {
      std::printf("%s: %s is %.9g, not %.9g, tolerance %.3g\n", name_.c_str(), what.c_str(), got,
                  want, tolerance);
    }
  }

  // Activations as the kernels for `dtype` take them.
  struct Activations {
    std::vector<XBlock> blocks;
    std::vector<int8_t> bytes;
    std::vector<float> scales;
    std::vector<int32_t> sums;
  };

  Activations Quantise(const std::vector<float>& x, int cols, int n) {
    const int blocks = cols / kBlock;
    const int tile = kernels_.tile_rows;
    const int rows = (n + tile - 1) / tile * tile;
    Activations a;
    a.blocks.resize(static_cast<size_t>(rows * blocks));
    a.bytes.resize(static_cast<size_t>(rows * cols));
    a.scales.resize(static_cast<size_t>(rows));
    a.sums.resize(static_cast<size_t>(rows));
    for (int r = 0; r < n; ++r) {
      const int first = r / tile * tile;
      const int height = n - first >= tile ? tile : PaddedRows(n - first);
      const int at = first * blocks + r - first;
      kernels_.quantize_row(x.data() + r * cols, cols, a.blocks.data() + at, height);
      kernels_.quantize_whole_row(x.data() + r * cols, cols, a.bytes.data() + at * kBlock,
                                  int64_t{height} * kBlock, int64_t{height} * 2 * kBlock,
                                  &a.scales[static_cast<size_t>(r)],
                                  &a.sums[static_cast<size_t>(r)]);
    }
    return a;
  }

  std::vector<float> Multiply(DType dtype, const std::vector<std::byte>& packed, int rows, int cols,
                              const std::vector<float>& x, int n, const float* bias) {
    Activations a;
    if (Info(dtype).quantised) a = Quantise(x, cols, n);
    std::vector<float> out(static_cast<size_t>(n * rows));
    MatMulArgs args = {};
    args.weight = packed.data();
    args.groups = (rows + kLanes - 1) / kLanes;
    args.rows = rows;
    args.cols = cols;
    args.xq = a.blocks.data();
    args.x8 = a.bytes.data();
    args.x8_scale = a.scales.data();
    args.x8_sum = a.sums.data();
    args.x = x.data();
    args.x_stride = cols;
    args.n = n;
    args.bias = bias;
    args.out = out.data();
    args.out_stride = rows;
    kernels_.matmul[static_cast<int>(dtype)](args);
    return out;
  }

  std::vector<std::byte> Pack(DType dtype, const std::vector<std::byte>& plain, int rows,
                              int cols) {
    const uint64_t row_bytes = RowBytes(dtype, static_cast<uint64_t>(cols));
    const uint64_t group_bytes = PackedGroupBytes(dtype, cols);
    std::vector<std::byte> packed(group_bytes * static_cast<uint64_t>((rows + 15) / 16));
    for (int r = 0; r < rows; r += kLanes) {
      PackGroup(dtype, cols, std::min(kLanes, rows - r),
                plain.data() + row_bytes * static_cast<uint64_t>(r),
                packed.data() + group_bytes * static_cast<uint64_t>(r / kLanes));
    }
    return packed;
  }

  void MatMul(DType dtype, int rows, int cols, int n) {
    const std::string name(Info(dtype).name);
    const uint64_t row_bytes = RowBytes(dtype, static_cast<uint64_t>(cols));
    const std::vector<std::byte> plain = RandomWeight(dtype, rows, cols, random_);
    const std::vector<std::byte> packed = Pack(dtype, plain, rows, cols);
    const std::vector<float> x = RandomFloats(static_cast<size_t>(n * cols), random_);
    const std::vector<float> bias = RandomFloats(static_cast<size_t>(rows), random_);
    const std::vector<float> out = Multiply(dtype, packed, rows, cols, x, n, bias.data());
    std::vector<float> w(static_cast<size_t>(cols)), unpacked(w.size());
    for (int r = 0; r < rows; ++r) {
      DequantizeRow(dtype, plain.data() + row_bytes * static_cast<uint64_t>(r), w);
      UnpackRow(dtype, packed.data(), r, unpacked);
      Check(name + " unpacked", w == unpacked ? 0 : 1, 0, 0);
      for (int i = 0; i < n; ++i) {
        double want = bias[static_cast<size_t>(r)];
        for (int c = 0; c < cols; ++c) {
          want += double{w[static_cast<size_t>(c)]} * x[static_cast<size_t>(i * cols + c)];
        }
        Check(name + " of " + std::to_string(n) + " rows", out[static_cast<size_t>(i * rows + r)],
              want,
              MatMulTolerance(dtype, w.data(), x.data() + i * cols, cols, Factors::kStored) +
                  2 * kFloatEps * std::fabs(want));
      }
    }
  }

  void LetsBadValuesThrough() {
    for (const DType dtype : MatrixTypes()) {
      const std::vector<std::byte> plain = RandomWeight(dtype, 16, 256, random_);
      const std::vector<std::byte> packed = Pack(dtype, plain, 16, 256);
      for (const float bad : {NAN, INFINITY}) {
        std::vector<float> x(2 * 256, 0.5f);
        x[256 + 77] = bad;
        const std::vector<float> out = Multiply(dtype, packed, 16, 256, x, 2, nullptr);
        for (size_t i = 0; i < 16; ++i) {
          const bool right = std::isfinite(out[i]) && !std::isfinite(out[16 + i]);
          Check(std::string(Info(dtype).name) + " of what is not finite", right ? 0 : 1, 0, 0);
        }
      }
    }
  }

  // Tolerances as where operators are tested on this machine (elementwise_test.cc).
  void Elementwise() {
    constexpr double eps = kFloatEps;
    constexpr int kN = 77;
    const std::vector<float> x = RandomFloats(kN, random_);
    const std::vector<float> y = RandomFloats(kN, random_);
    std::vector<float> out(kN);
    double squares = 0;
    for (const float v : x) squares += double{v} * v;
    kernels_.rms_norm(x.data(), y.data(), kN, 1e-6f, out.data());
    for (size_t i = 0; i < kN; ++i) {
      const double want = x[i] / std::sqrt(squares / kN + 1e-6) * y[i];
      Check("rms_norm", out[i], want, (kN / 2.0 + 8) * eps * std::fabs(want));
    }
    kernels_.glu(Activation::kSilu, x.data(), y.data(), kN, out.data());
    for (size_t i = 0; i < kN; ++i) {
      const double want = x[i] / (1 + std::exp(-double{x[i]})) * y[i];
      Check("silu", out[i], want, 12 * eps * std::fabs(want) + 1e-30);
    }
    kernels_.glu(Activation::kGeluTanh, x.data(), y.data(), kN, out.data());
    for (size_t i = 0; i < kN; ++i) {
      const double v = x[i];
      const double want =
          0.5 * v * (1 + std::tanh(0.79788456080286535588 * (v + 0.044715 * v * v * v))) * y[i];
      Check("gelu", out[i], want, 300 * eps * std::fabs(want) + 1e-30);
    }
    out = x;
    kernels_.softcap(out.data(), 2.0f, kN);
    for (size_t i = 0; i < kN; ++i) {
      const double want = 2 * std::tanh(double{x[i]} / 2);
      Check("softcap", out[i], want, 16 * eps * std::fabs(want) + 1e-30);
    }
    out = x;
    kernels_.add(out.data(), y.data(), kN);
    for (size_t i = 0; i < kN; ++i) Check("add", out[i], x[i] + y[i], 0);
    out = x;
    kernels_.scale(out.data(), 0.3f, kN);
    for (size_t i = 0; i < kN; ++i) Check("scale", out[i], x[i] * 0.3f, 0);
    for (const bool halves : {true, false}) Rope(halves);
  }

  void Rope(bool halves) {
    constexpr int kDim = 40;
    constexpr int kPairs = kDim / 2;
    std::vector<float> x = RandomFloats(2 * kDim, random_), cosines(kPairs), sines(kPairs);
    for (size_t i = 0; i < kPairs; ++i) {
      cosines[i] = std::cos(static_cast<float>(i));
      sines[i] = std::sin(static_cast<float>(i));
    }
    std::vector<float> out = x;
    kernels_.rope(out.data(), 2, kDim, kDim, halves, cosines.data(), sines.data());
    for (size_t h = 0; h < 2 * kDim; h += kDim) {
      for (size_t i = 0; i < kPairs; ++i) {
        const size_t a = h + (halves ? i : 2 * i);
        const size_t b = halves ? a + kPairs : a + 1;
        const double tolerance = 4 * kFloatEps * (std::fabs(x[a]) + std::fabs(x[b]));
        Check("rope", out[a], double{x[a]} * cosines[i] - double{x[b]} * sines[i], tolerance);
        Check("rope", out[b], double{x[a]} * sines[i] + double{x[b]} * cosines[i], tolerance);
      }
    }
  }

  float Stored(const std::byte* tile, KvDType dtype, int dim, int at, int token) {
    if (dtype == KvDType::kF32) return reinterpret_cast<const float*>(tile)[at];
    if (dtype == KvDType::kF16) return HalfToFloat(reinterpret_cast<const uint16_t*>(tile)[at]);
    float scale;
    std::memcpy(&scale, tile + dim * kKvBlockTokens + 4 * token, 4);
    return scale * static_cast<float>(static_cast<int8_t>(tile[at]));
  }

  void Attention(KvDType dtype, int key_dim, int value_dim, int group, int window, float softcap,
                 bool with_sinks) {
    constexpr int kTokens = 75;
    const KvGeometry geometry = {1, 1, key_dim, value_dim, dtype};
    const auto floats = [&](int count) {
      std::vector<float> v(static_cast<size_t>(count));
      for (float& f : v) f = random_.Signed() * 3;
      return v;
    };
    const std::vector<float> k = floats(kTokens * key_dim), v = floats(kTokens * value_dim),
                             q = floats(kTokens * group * key_dim), sinks = floats(group);
    constexpr int kBlocks = (kTokens + kKvBlockTokens - 1) / kKvBlockTokens;
    // NaN, so that reading what was never stored shows.
    std::vector<uint32_t> memory(kBlocks * geometry.block_bytes() / 4, 0x7fc07e7fu);
    std::vector<std::byte*> blocks;
    for (int b = 0; b < kBlocks; ++b) {
      blocks.push_back(reinterpret_cast<std::byte*>(memory.data()) +
                       static_cast<size_t>(b) * geometry.block_bytes());
    }
    for (int t = 0; t < kTokens; ++t) {
      std::byte* block = blocks[static_cast<size_t>(t / kKvBlockTokens)];
      const int token = t % kKvBlockTokens;
      kernels_.store_kv(k.data() + t * key_dim, key_dim, dtype, true, token,
                        block + geometry.key_offset(0, 0));
      kernels_.store_kv(v.data() + t * value_dim, value_dim, dtype, false, token,
                        block + geometry.value_offset(0, 0));
    }
    std::vector<float> out(static_cast<size_t>(kTokens * group * value_dim));
    std::vector<float> scratch(static_cast<size_t>(AttentionScratch(key_dim, value_dim)));
    AttentionArgs args = {};
    args.q = q.data();
    args.q_stride = group * key_dim;
    args.out = out.data();
    args.out_stride = group * value_dim;
    args.blocks = blocks.data();
    args.key_offset = geometry.key_offset(0, 0);
    args.value_offset = geometry.value_offset(0, 0);
    args.kv_dtype = dtype;
    args.key_dim = key_dim;
    args.value_dim = value_dim;
    args.group = group;
    args.scale = 1 / std::sqrt(static_cast<float>(key_dim));
    args.window = window;
    args.softcap = softcap;
    args.sinks = with_sinks ? sinks.data() : nullptr;
    args.scratch = scratch.data();
    kernels_.attention(args, 0, int64_t{kTokens} * group);
    const double tolerance = AttentionTolerance(key_dim, kTokens, args.scale, softcap, 3, 3, 3);
    for (int unit = 0; unit < kTokens * group; ++unit) {
      CheckUnit(args, q.data() + unit * key_dim, unit / group, unit % group,
                out.data() + unit * value_dim, tolerance);
    }
  }

  void CheckUnit(const AttentionArgs& a, const float* query, int position, int head,
                 const float* got, double tolerance) {
    const int first = a.window > 0 ? std::max(0, position - a.window + 1) : 0;
    std::vector<double> weights;
    double sum = a.sinks != nullptr ? std::exp(double{a.sinks[head]}) : 0;
    for (int t = first; t <= position; ++t) {
      const std::byte* tile = a.blocks[t / kKvBlockTokens] + a.key_offset;
      double dot = 0;
      for (int d = 0; d < a.key_dim; ++d) {
        dot +=
            double{query[d]} * Stored(tile, a.kv_dtype, a.key_dim,
                                      d * kKvBlockTokens + t % kKvBlockTokens, t % kKvBlockTokens);
      }
      dot *= a.scale;
      if (a.softcap > 0) dot = a.softcap * std::tanh(dot / a.softcap);
      weights.push_back(std::exp(dot));
      sum += weights.back();
    }
    for (int d = 0; d < a.value_dim; ++d) {
      double want = 0;
      for (int t = first; t <= position; ++t) {
        const std::byte* tile = a.blocks[t / kKvBlockTokens] + a.value_offset;
        want += weights[static_cast<size_t>(t - first)] / sum *
                Stored(tile, a.kv_dtype, a.value_dim, t % kKvBlockTokens * a.value_dim + d,
                       t % kKvBlockTokens);
      }
      Check("attention", got[d], want, tolerance);
    }
  }

  const std::string name_;
  const Kernels& kernels_;
  Random random_;
  int checks_ = 0;
  int wrong_ = 0;
};

int Main(const std::vector<std::string>& expected) {
  std::vector<std::string> ran;
  int wrong = 0;
  for (const Variant& variant : AllVariants()) {
    if (!variant.supported) continue;
    ran.emplace_back(variant.name);
    wrong += Checker(variant).Run();
  }
  if (ran != expected) {
    std::printf("other variants ran than were expected:");
    for (const std::string& name : ran) std::printf(" %s", name.c_str());
    std::printf("\n");
    return 1;
  }
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace terrace::ops::cpu

// usage: kernels_arm VARIANT... : the variants that this processor should run.
int main(int argc, char** argv) { return terrace::ops::cpu::Main({argv + 1, argv + argc}); }
