// The operators of encoders where the host reaches the device's memory.

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/status.h"
#include "ops/backend.h"
#include "ops/check.h"

namespace terrace::ops {
namespace {

// One head of one sequence: `dim` columns from `column` on.
void AttendHead(const Matrix& q, const Matrix& k, const Matrix& v, const SequenceRows& rows,
                int32_t column, int32_t dim, float scale, std::vector<float>* scores,
                const Matrix& out) {
  scores->resize(static_cast<size_t>(rows.rows));
  for (int32_t i = 0; i < rows.rows; ++i) {
    const float* query = q.row(rows.first_row + i) + column;
    float most = -INFINITY;
    for (int32_t j = 0; j < rows.rows; ++j) {
      const float* key = k.row(rows.first_row + j) + column;
      float sum = 0;
      for (int32_t d = 0; d < dim; ++d) sum += query[d] * key[d];
      (*scores)[static_cast<size_t>(j)] = sum * scale;
      most = std::max(most, sum * scale);
    }
    float total = 0;
    for (float& score : *scores) {
      score = std::exp(score - most);
      total += score;
    }
    float* to = out.row(rows.first_row + i) + column;
    std::fill(to, to + dim, 0.0f);
    for (int32_t j = 0; j < rows.rows; ++j) {
      const float share = (*scores)[static_cast<size_t>(j)] / total;
      const float* value = v.row(rows.first_row + j) + column;
      for (int32_t d = 0; d < dim; ++d) to[d] += share * value[d];
    }
  }
}

}  // namespace

absl::Status Backend::LayerNorm(Matrix x, Vector weight, Vector bias, float eps) {
  RETURN_IF_ERROR(CheckLayerNorm(x, weight, bias));
  RETURN_IF_ERROR(Synchronize());
  for (int32_t r = 0; r < x.rows; ++r) {
    float* row = x.row(r);
    double mean = 0, variance = 0;
    for (int32_t i = 0; i < x.cols; ++i) mean += row[i];
    mean /= x.cols;
    for (int32_t i = 0; i < x.cols; ++i) variance += (row[i] - mean) * (row[i] - mean);
    const double factor = 1.0 / std::sqrt(variance / x.cols + eps);
    for (int32_t i = 0; i < x.cols; ++i) {
      row[i] = static_cast<float>((row[i] - mean) * factor) * weight.data[i] + bias.data[i];
    }
  }
  return absl::OkStatus();
}

absl::Status Backend::GeluErf(Matrix x) {
  RETURN_IF_ERROR(CheckMatrix("GeluErf", "input", x));
  RETURN_IF_ERROR(Synchronize());
  for (int32_t r = 0; r < x.rows; ++r) {
    float* row = x.row(r);
    for (int32_t i = 0; i < x.cols; ++i) {
      row[i] = 0.5f * row[i] * (1.0f + std::erf(row[i] * 0.70710678f));
    }
  }
  return absl::OkStatus();
}

absl::Status Backend::AttendAll(Matrix q, Matrix k, Matrix v, int32_t heads, float scale,
                                const BatchRows& batch, Matrix out) {
  RETURN_IF_ERROR(CheckAttendAll(q, k, v, heads, batch, out));
  RETURN_IF_ERROR(Synchronize());
  std::vector<float> scores;
  const int32_t dim = q.cols / heads;
  for (const SequenceRows& rows : batch.sequences) {
    for (int32_t head = 0; head < heads; ++head) {
      AttendHead(q, k, v, rows, head * dim, dim, scale, &scores, out);
    }
  }
  return absl::OkStatus();
}

absl::Status Backend::Pool(Matrix x, const BatchRows& batch, bool mean, bool normalize,
                           Matrix out) {
  RETURN_IF_ERROR(CheckPool(x, batch, out));
  RETURN_IF_ERROR(Synchronize());
  for (int32_t s = 0; s < out.rows; ++s) {
    const SequenceRows& rows = batch.sequences[static_cast<size_t>(s)];
    const int32_t count = mean ? rows.rows : 1;
    double squares = 0;
    for (int32_t i = 0; i < x.cols; ++i) {
      double sum = 0;
      for (int32_t r = 0; r < count; ++r) sum += x.row(rows.first_row + r)[i];
      out.row(s)[i] = static_cast<float>(sum / count);
      squares += double{out.row(s)[i]} * out.row(s)[i];
    }
    if (!normalize || !(squares > 0)) continue;
    const auto factor = static_cast<float>(1.0 / std::sqrt(squares));
    for (int32_t i = 0; i < x.cols; ++i) out.row(s)[i] *= factor;
  }
  return absl::OkStatus();
}

}  // namespace terrace::ops
