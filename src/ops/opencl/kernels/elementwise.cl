// Small operators over rows of float32 activations. Strides are in floats.
// Dialect: src/device/opencl/opencl_prelude.h (KERNEL, MEM, PTR, GROUP, ITEM, ...).

// One group a head of a row: out = x / sqrt(mean(x^2) + eps) * weight.
KERNEL(rms_norm)(MEM(x), MEM(weight), MEM(out), int heads, int size, float eps, long x_stride,
                 long out_stride) {
  SHARED float scratch[ITEMS_A_GROUP];
  const int row = GROUP(0) / heads;
  const int head = GROUP(0) % heads;
  GLOBAL const float *from = PTR(float, x) + row * x_stride + (long)head * size;
  GLOBAL float *to = PTR(float, out) + row * out_stride + (long)head * size;
  GLOBAL const float *w = PTR(float, weight);
  float sum = 0.0f;
  for (int i = ITEM(0); i < size; i += ITEMS_A_GROUP) sum = fma(from[i], from[i], sum);
  sum = group_sum(scratch, sum);
  const float scale = 1.0f / sqrt(sum / size + eps);
  for (int i = ITEM(0); i < size; i += ITEMS_A_GROUP) to[i] = from[i] * scale * w[i];
}

// angles [rows][2 * pairs]: cosines, then sines. One item a pair of every head of a row.
KERNEL(rope)(MEM(x), MEM(angles), int heads, int head_dim, int pairs, int halves, int rows,
             long stride) {
  const int index = GROUP(0) * ITEMS(0) + ITEM(0);
  if (index >= rows * pairs) return;
  const int row = index / pairs;
  const int pair = index % pairs;
  GLOBAL const float *angle = PTR(float, angles) + (long)row * 2 * pairs;
  const float c = angle[pair];
  const float s = angle[pairs + pair];
  const int at_a = halves ? pair : 2 * pair;
  const int at_b = halves ? pair + pairs : 2 * pair + 1;
  GLOBAL float *head = PTR(float, x) + row * stride;
  for (int h = 0; h < heads; ++h, head += head_dim) {
    const float a = head[at_a];
    const float b = head[at_b];
    head[at_a] = a * c - b * s;
    head[at_b] = a * s + b * c;
  }
}

FUNCTION float silu(float x) { return x / (1.0f + exp(-x)); }

FUNCTION float gelu_tanh(float x) {
  // 0.5 (1 + tanh(u)) = 1 / (1 + e^(-2u)), which loses nothing where tanh is near -1.
  const float u = 0.79788456080286535588f * (x + 0.044715f * x * x * x);
  return x / (1.0f + exp(-2.0f * u));
}

// One item an element, like all that follow: index over [rows][cols].
#define ELEMENT()                                      \
  const long index = (long)GROUP(0) * ITEMS(0) + ITEM(0); \
  if (index >= (long)rows * cols) return;              \
  const int row = (int)(index / cols);                 \
  const int col = (int)(index % cols)

// activation: 0 SiLU, 1 GELU (tanh), 2 the clamped GLU with `alpha` and `limit`.
KERNEL(glu)(MEM(gate), MEM(up), MEM(out), int activation, int rows, int cols, long gate_stride,
            long up_stride, long out_stride, float alpha, float limit) {
  ELEMENT();
  const float g = PTR(float, gate)[row * gate_stride + col];
  const float u = PTR(float, up)[row * up_stride + col];
  float y;
  if (activation == 0) {
    y = silu(g) * u;
  } else if (activation == 1) {
    y = gelu_tanh(g) * u;
  } else {
    // Comparisons, not fmin and fmax: what is not a number stays one.
    const float gc = g > limit ? limit : g;
    const float uc = u > limit ? limit : u < -limit ? -limit : u;
    y = gc / (1.0f + exp(-alpha * gc)) * (uc + 1.0f);
  }
  PTR(float, out)[row * out_stride + col] = y;
}

KERNEL(add)(MEM(x), MEM(y), int rows, int cols, long x_stride, long y_stride) {
  ELEMENT();
  PTR(float, x)[row * x_stride + col] += PTR(float, y)[row * y_stride + col];
}

// Each row += bias.
KERNEL(add_bias)(MEM(x), MEM(bias), int rows, int cols, long stride) {
  ELEMENT();
  PTR(float, x)[row * stride + col] += PTR(float, bias)[col];
}

// cap > 0: x = cap tanh(x / cap); else x *= scale.
KERNEL(scale_or_cap)(MEM(x), float scale, float cap, int rows, int cols, long stride) {
  ELEMENT();
  GLOBAL float *at = PTR(float, x) + row * stride + col;
  *at = cap > 0.0f ? cap * tanh(*at / cap) : *at * scale;
}

KERNEL(fill)(MEM(x), float value, int rows, int cols, long stride) {
  ELEMENT();
  PTR(float, x)[row * stride + col] = value;
}

// out.row(i) = x.row(source[i])
KERNEL(gather_rows)(MEM(x), MEM(source), MEM(out), int rows, int cols, long x_stride,
                    long out_stride) {
  ELEMENT();
  PTR(float, out)[row * out_stride + col] =
      PTR(float, x)[PTR(int, source)[row] * x_stride + col];
}

// out.row(target[i]) += share[i] * x.row(i), one i after the other; one item a column.
KERNEL(add_scaled_rows)(MEM(x), MEM(target), MEM(share), MEM(out), int rows, int cols,
                        long x_stride, long out_stride) {
  const int col = GROUP(0) * ITEMS(0) + ITEM(0);
  if (col >= cols) return;
  for (int i = 0; i < rows; ++i) {
    GLOBAL float *at = PTR(float, out) + PTR(int, target)[i] * out_stride + col;
    *at += PTR(float, share)[i] * PTR(float, x)[i * x_stride + col];
  }
}

// x = x / 2 (1 + erf(x / sqrt(2)))
KERNEL(gelu_erf)(MEM(x), int rows, int cols, long stride) {
  ELEMENT();
  GLOBAL float *at = PTR(float, x) + row * stride + col;
  *at = 0.5f * *at * (1.0f + erf(*at * 0.70710678118654752440f));
}

// One group a row, like those that follow: out = sigmoid(x . gate) out.
KERNEL(scale_by_sigmoid)(MEM(x), MEM(gate), MEM(out), int x_cols, int out_cols, long x_stride,
                         long out_stride) {
  SHARED float scratch[ITEMS_A_GROUP];
  GLOBAL const float *from = PTR(float, x) + GROUP(0) * x_stride;
  GLOBAL float *to = PTR(float, out) + GROUP(0) * out_stride;
  GLOBAL const float *g = PTR(float, gate);
  float sum = 0.0f;
  for (int i = ITEM(0); i < x_cols; i += ITEMS_A_GROUP) sum = fma(from[i], g[i], sum);
  const float share = 1.0f / (1.0f + exp(-group_sum(scratch, sum)));
  for (int i = ITEM(0); i < out_cols; i += ITEMS_A_GROUP) to[i] *= share;
}

// x = (x - mean) / sqrt(variance + eps) * weight + bias
KERNEL(layer_norm)(MEM(x), MEM(weight), MEM(bias), int cols, float eps, long stride) {
  SHARED float scratch[ITEMS_A_GROUP];
  GLOBAL float *row = PTR(float, x) + GROUP(0) * stride;
  float sum = 0.0f;
  for (int i = ITEM(0); i < cols; i += ITEMS_A_GROUP) sum += row[i];
  const float mean = group_sum(scratch, sum) / cols;
  sum = 0.0f;
  for (int i = ITEM(0); i < cols; i += ITEMS_A_GROUP) {
    sum = fma(row[i] - mean, row[i] - mean, sum);
  }
  const float scale = 1.0f / sqrt(group_sum(scratch, sum) / cols + eps);
  for (int i = ITEM(0); i < cols; i += ITEMS_A_GROUP) {
    row[i] = (row[i] - mean) * scale * PTR(float, weight)[i] + PTR(float, bias)[i];
  }
}

// spans: two ints a group, the first row of a sequence and how many it has. With `mean`, all of
// them are averaged, else the first is taken.
KERNEL(pool)(MEM(x), MEM(spans), MEM(out), int mean, int normalize, int cols, long x_stride,
             long out_stride) {
  SHARED float scratch[ITEMS_A_GROUP];
  GLOBAL const float *from = PTR(float, x) + PTR(int, spans)[2 * GROUP(0)] * x_stride;
  GLOBAL float *to = PTR(float, out) + GROUP(0) * out_stride;
  const int count = mean ? PTR(int, spans)[2 * GROUP(0) + 1] : 1;
  float squares = 0.0f;
  for (int i = ITEM(0); i < cols; i += ITEMS_A_GROUP) {
    float sum = 0.0f;
    for (int r = 0; r < count; ++r) sum += from[r * x_stride + i];
    to[i] = sum / count;
    squares = fma(to[i], to[i], squares);
  }
  squares = group_sum(scratch, squares);
  if (!normalize || !(squares > 0.0f)) return;
  const float scale = 1.0f / sqrt(squares);
  for (int i = ITEM(0); i < cols; i += ITEMS_A_GROUP) to[i] *= scale;
}

// Attention to all rows of one's sequence; one group a row (GROUP(0)) and head (GROUP(1)). spans:
// two ints a row, the first row of its sequence and how many it has (0: not in the batch). Items
// are keys for the scores and dimensions for the values; `out` holds what is summed so far.
KERNEL(attend_all)(MEM(q), MEM(k), MEM(v), MEM(spans), MEM(out), int dim, float scale,
                   long q_stride, long k_stride, long v_stride, long out_stride) {
  SHARED float scratch[ITEMS_A_GROUP];
  SHARED float weights[ITEMS_A_GROUP];
  const int item = ITEM(0);
  const int first = PTR(int, spans)[2 * GROUP(0)];
  const int count = PTR(int, spans)[2 * GROUP(0) + 1];
  const long column = (long)GROUP(1) * dim;
  GLOBAL const float *query = PTR(float, q) + GROUP(0) * q_stride + column;
  GLOBAL const float *keys = PTR(float, k) + first * k_stride + column;
  GLOBAL const float *values = PTR(float, v) + first * v_stride + column;
  GLOBAL float *to = PTR(float, out) + GROUP(0) * out_stride + column;
  float largest = -3.0e38f;
  float sum = 0.0f;
  for (int chunk = 0; chunk < count; chunk += ITEMS_A_GROUP) {
    const int in_chunk = count - chunk < ITEMS_A_GROUP ? count - chunk : ITEMS_A_GROUP;
    float score = -3.0e38f;
    if (item < in_chunk) {
      score = 0.0f;
      GLOBAL const float *key = keys + (chunk + item) * k_stride;
      for (int d = 0; d < dim; ++d) score = fma(query[d], key[d], score);
      score *= scale;
    }
    scratch[item] = score;
    BARRIER();
    float now_largest = largest;
    for (int i = 0; i < in_chunk; ++i) now_largest = fmax(now_largest, scratch[i]);
    const float correction = exp(largest - now_largest);
    const float weight = item < in_chunk ? exp(score - now_largest) : 0.0f;
    largest = now_largest;
    weights[item] = weight;
    BARRIER();
    sum = sum * correction + group_sum(scratch, weight);
    for (int d = item; d < dim; d += ITEMS_A_GROUP) {
      float total = chunk > 0 ? to[d] * correction : 0.0f;
      for (int i = 0; i < in_chunk; ++i) {
        total = fma(weights[i], values[(chunk + i) * v_stride + d], total);
      }
      to[d] = total;
    }
    BARRIER();
  }
  for (int d = item; d < dim && count > 0; d += ITEMS_A_GROUP) to[d] /= sum;
}
