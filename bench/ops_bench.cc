// Matrix multiplication of every weight format at the shapes of a small transformer (width 1024,
// FFN 3072, vocabulary 151,936), as shares of what the machine measures in the same run:
//   decode  one row: bytes of packed weights a second against sequential reads
//   batch 8 time of eight rows against eight times one row
//   prefill 512 rows: operations a second against int8 dot products (float formats: 16-bit ones)
//   pack    plain rows to the packed layout on one thread: bytes of rows a second
// Weights are larger than the caches, or as many copies are walked through. Every number is the
// best of several runs that alternate with the yardstick's.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "device/cpu/cpu_info.h"
#include "device/cpu/thread_team.h"
#include "ops/backend.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/measure.h"
#include "tensor/half.h"

namespace terrace::ops {
namespace {

struct Options {
  std::string variant = "auto";
  std::string only;  // a dtype's name
  int threads = 0;
  int repeats = 5;
  bool json = false;
  bool quick = false;  // the first shape only
};

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Random codes with scales of one size: speed does not depend on values, but subnormals would.
void FillPlain(DType dtype, int cols, std::vector<std::byte>& bytes, Random& random) {
  const DTypeInfo& info = Info(dtype);
  for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
    const uint64_t r = random.Next();
    std::memcpy(bytes.data() + i, &r, 8);
  }
  if (dtype == DType::kW8A8) {
    const float scale = 0.01f;
    for (size_t at = 0; at < bytes.size(); at += RowBytes(dtype, static_cast<uint64_t>(cols))) {
      std::memcpy(bytes.data() + at, &scale, 4);
    }
    return;
  }
  const uint16_t half = FloatToHalf(0.01f);
  const uint16_t bf16 = FloatToBf16(0.01f);
  for (size_t i = 0; i < bytes.size() / info.block_bytes; ++i) {
    std::byte* block = bytes.data() + i * info.block_bytes;
    const float v = random.Signed();
    switch (dtype) {
      case DType::kF32:
        std::memcpy(block, &v, 4);
        break;
      case DType::kF16:
        std::memcpy(block, &half, 2);
        break;
      case DType::kBF16:
        std::memcpy(block, &bf16, 2);
        break;
      case DType::kMXFP4:
        block[0] = std::byte{120};
        break;
      case DType::kQ2_K:
        std::memcpy(block + 80, &half, 2);
        std::memcpy(block + 82, &half, 2);
        break;
      case DType::kQ3_K:
        std::memcpy(block + 108, &half, 2);
        break;
      case DType::kQ6_K:
        std::memcpy(block + 208, &half, 2);
        break;
      case DType::kTQ2_0:
        std::memcpy(block + 64, &half, 2);
        break;
      default:
        std::memcpy(block, &half, 2);
        if (dtype == DType::kQ4_K || dtype == DType::kQ5_K || dtype == DType::kQ4_1 ||
            dtype == DType::kQ5_1) {
          std::memcpy(block + 2, &half, 2);
        }
    }
  }
}

struct Result {
  double bytes = 0;  // packed, of one copy
  double gemv = 0;   // seconds for one copy
  double batch8 = 0;
  double prefill = 0;
  double pack = 0;  // bytes of plain rows a second
  double read = 0;  // bytes a second, measured between
};

class Bench {
 public:
  Bench(const Options& options, Backend* backend, ThreadTeam* team)
      : options_(options), backend_(backend), team_(team), buffer_(size_t{256} << 20) {
    std::memset(buffer_.data(), 1, buffer_.size());
  }

  const LargeBuffer& buffer() const { return buffer_; }

  Result Run(DType dtype, int rows, int cols) {
    Random random(1);
    std::vector<std::byte> plain(RowBytes(dtype, static_cast<uint64_t>(cols)) *
                                 static_cast<uint64_t>(rows));
    FillPlain(dtype, cols, plain, random);
    const uint64_t bytes = backend_->PackedBytes(Layout::kRows16, dtype, rows, cols);
    const size_t stride = (bytes + 4095) / 4096 * 4096;
    const size_t copies = std::max<size_t>(1, (size_t{160} << 20) / stride);
    LargeBuffer packed(stride * copies);
    Result r;
    for (int i = 0; i < options_.repeats; ++i) {
      const double start = Seconds();
      if (!backend_->Pack(Layout::kRows16, dtype, rows, cols, plain, {packed.data(), bytes}).ok()) {
        std::abort();
      }
      r.pack = std::max(r.pack, static_cast<double>(plain.size()) / (Seconds() - start));
    }
    for (size_t i = 1; i < copies; ++i) {
      std::memcpy(packed.data() + i * stride, packed.data(), bytes);
    }
    std::vector<float> x(512 * static_cast<size_t>(cols));
    for (float& v : x) v = random.Signed();
    const int most = rows > 20000 ? 64 : 512;
    std::vector<float> out(static_cast<size_t>(most) * static_cast<size_t>(rows));
    const auto time = [&](int n, size_t count) {
      const double start = Seconds();
      for (size_t i = 0; i < count; ++i) {
        MatMulTarget target;
        target.weight = {dtype, Layout::kRows16, rows, cols, packed.data() + i * stride};
        target.out = {out.data(), n, rows, rows};
        if (!backend_->MatMul({x.data(), n, cols, cols}, {&target, 1}).ok()) std::abort();
      }
      return (Seconds() - start) / static_cast<double>(count);
    };
    r.bytes = static_cast<double>(bytes);
    r.gemv = r.batch8 = r.prefill = 1e9;
    for (int i = 0; i < options_.repeats; ++i) {
      r.read = std::max(r.read, MeasureRead(options_.variant, buffer_, team_).value_or(0));
      r.gemv = std::min(r.gemv, time(1, copies));
      r.batch8 = std::min(r.batch8, time(8, copies));
      r.prefill = std::min(r.prefill, time(most, 1) * 512 / most);
    }
    return r;
  }

 private:
  const Options& options_;
  Backend* const backend_;
  ThreadTeam* const team_;
  const LargeBuffer buffer_;
};

void PrintLaw(bool* first, const std::string& law, double measured, const char* unit,
              double reference, double goal) {
  const double ratio = measured / reference;
  std::printf(
      "%s\n{\"law\": \"%s\", \"measured\": %.3f, \"unit\": \"%s\", \"reference\": %.3f, "
      "\"ratio\": %.4f, \"goal\": %.2f, \"holds\": %s}",
      *first ? "" : ",", law.c_str(), measured, unit, reference, ratio, goal,
      ratio >= goal ? "true" : "false");
  *first = false;
}

int Main(const Options& options) {
  ThreadTeam team(options.threads > 0 ? options.threads : CpuCount());
  auto backend = CreateCpuBackend(options.variant, &team);
  if (!backend.ok()) {
    std::fprintf(stderr, "%s\n", backend.status().ToString().c_str());
    return 1;
  }
  Bench bench(options, backend->get(), &team);
  const auto limits = MeasureLimits(options.variant, bench.buffer(), &team);
  if (!limits.ok()) return 1;
  const double words =
      limits->word_ops_per_s > 0 ? limits->word_ops_per_s : limits->float_ops_per_s;
  if (options.json) {
    std::printf("[");
  } else {
    std::printf(
        "%s, %d threads: reads %.1f GB/s, int8 %.0f GOP/s, 16-bit %.0f GOP/s, float32 %.0f\n",
        std::string((*backend)->name()).c_str(), team.size(), limits->read_bytes_per_s / 1e9,
        limits->int8_ops_per_s / 1e9, limits->word_ops_per_s / 1e9, limits->float_ops_per_s / 1e9);
    std::printf("%-8s %-12s %7s | %7s %6s | %7s %6s | %8s %6s | %9s\n", "format", "shape", "MB",
                "GB/s", "share", "batch8", "x", "GOP/s", "share", "pack GB/s");
  }
  const std::vector<DType> types = {DType::kQ4_0,   DType::kQ8_0,   DType::kF16,   DType::kQ4_K,
                                    DType::kQ6_K,   DType::kBF16,   DType::kQ4_1,  DType::kQ5_0,
                                    DType::kQ5_1,   DType::kQ2_K,   DType::kQ3_K,  DType::kQ5_K,
                                    DType::kIQ4_NL, DType::kIQ4_XS, DType::kIQ3_S, DType::kMXFP4,
                                    DType::kTQ2_0,  DType::kF8E4M3, DType::kF32,   DType::kW8A8};
  const std::vector<std::pair<int, int>> shapes = {
      {3072, 1024}, {1024, 3072}, {1024, 2048}, {151936, 1024}};
  bool first = true;
  for (const DType dtype : types) {
    const std::string name(Info(dtype).name);
    if (!options.only.empty() && options.only != name) continue;
    for (const auto& [rows, cols] : shapes) {
      if (options.quick && &rows != &shapes[0].first) continue;
      if (rows > 20000 && dtype != DType::kQ4_0 && dtype != DType::kQ8_0 && dtype != DType::kQ6_K &&
          dtype != DType::kF16) {
        continue;
      }
      const Result r = bench.Run(dtype, rows, cols);
      const double gbs = r.bytes / r.gemv;
      const double ops = 2.0 * rows * cols * 512 / r.prefill;
      const double peak = Info(dtype).quantised ? limits->int8_ops_per_s : words;
      if (options.json) {
        const bool k = name.size() > 2 && name.ends_with("_K");
        const std::string shape = std::to_string(rows) + "x" + std::to_string(cols);
        PrintLaw(&first, "decode " + name + " " + shape, gbs / 1e9, "GB/s", r.read / 1e9,
                 k ? 0.75 : 0.85);
        PrintLaw(&first, "batch 8 " + name + " " + shape, 8 * r.gemv / r.batch8, "x", 1, 4);
        PrintLaw(&first, "prefill " + name + " " + shape, ops / 1e9, "GOP/s", peak / 1e9, 0.6);
      } else {
        std::printf(
            "%-8s %6dx%-5d %7.1f | %7.1f %5.0f%% | %6.0fus %5.1fx | %8.0f %5.0f%% | %9.2f\n",
            name.c_str(), rows, cols, r.bytes / 1e6, gbs / 1e9, 100 * gbs / r.read, r.batch8 * 1e6,
            8 * r.gemv / r.batch8, ops / 1e9, 100 * ops / peak, r.pack / 1e9);
        std::fflush(stdout);
      }
    }
  }
  if (options.json) std::printf("\n]\n");
  return 0;
}

}  // namespace
}  // namespace terrace::ops

int main(int argc, char** argv) {
  terrace::ops::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    const auto value = [&] { return std::string(i + 1 < argc ? argv[++i] : ""); };
    if (arg == "--json") {
      options.json = true;
    } else if (arg == "--quick") {
      options.quick = true;
    } else if (arg == "--variant") {
      options.variant = value();
    } else if (arg == "--format") {
      options.only = value();
    } else if (arg == "--threads") {
      options.threads = std::atoi(value().c_str());
    } else if (arg == "--repeats") {
      options.repeats = std::max(1, std::atoi(value().c_str()));
    } else {
      std::fprintf(stderr,
                   "usage: ops_bench [--json] [--quick] [--variant NAME] [--format DTYPE] "
                   "[--threads N] [--repeats N]\n");
      return 2;
    }
  }
  return terrace::ops::Main(options);
}
