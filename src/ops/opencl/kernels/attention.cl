// The KV store and causal attention over its blocks of 16 tokens (src/ops/types.h, KvGeometry). The
// geometry comes as macros: KEY_DIM, VALUE_DIM and KV_KIND (0 F16, 1 INT8 with a scale a token and
// tile, 2 F32). `blocks` holds the addresses of all sequences' blocks; `rows` two ints a row of the
// batch: where its sequence's blocks begin in `blocks`, and its position (-1: not in the batch).

#define BLOCK_TOKENS 16
#if KV_KIND == 0
#define ELEMENT_BYTES 2
#elif KV_KIND == 1
#define ELEMENT_BYTES 1
#else
#define ELEMENT_BYTES 4
#endif
// What lies below anything a score can be.
#define LOWEST (-3.0e38f)

FUNCTION float read_kv(GLOBAL const uchar *tile, int dim, int at, int token) {
#if KV_KIND == 0
  return LOAD_HALF(tile + 2 * at);
#elif KV_KIND == 1
  GLOBAL const float *scales = (GLOBAL const float *)(tile + dim * BLOCK_TOKENS);
  return scales[token] * (float)((GLOBAL const schar *)tile)[at];
#else
  return ((GLOBAL const float *)tile)[at];
#endif
}

// Writes a vector: element d at d * step + first.
FUNCTION void store_vector(GLOBAL const float *x, int dim, GLOBAL uchar *tile, int first, int step,
                           int token) {
#if KV_KIND == 1
  float largest = 0.0f;
  for (int d = 0; d < dim; ++d) largest = fmax(largest, fabs(x[d]));
  const float inverse = largest > 0.0f ? 127.0f / largest : 0.0f;
  if (ITEM(0) == 0) {
    ((GLOBAL float *)(tile + dim * BLOCK_TOKENS))[token] = largest / 127.0f;
  }
#endif
  for (int d = ITEM(0); d < dim; d += ITEMS(0)) {
    const int at = d * step + first;
#if KV_KIND == 0
    STORE_HALF(x[d], tile + 2 * at);
#elif KV_KIND == 1
    ((GLOBAL schar *)tile)[at] = (schar)(int)ROUND_EVEN(x[d] * inverse);
#else
    ((GLOBAL float *)tile)[at] = x[d];
#endif
  }
}

// One group a row (GROUP(0)) and KV head (GROUP(1)).
KERNEL(store_kv)(MEM(k), MEM(v), MEM(blocks), MEM(rows), SPACE, long layer_offset, long head_bytes,
                 long value_offset, long k_stride, long v_stride) {
  const int row = GROUP(0);
  const int head = GROUP(1);
  const int position = PTR(int, rows)[2 * row + 1];
  if (position < 0) return;
  const int token = position % BLOCK_TOKENS;
  GLOBAL uchar *tile = RESOLVE(
      PTR(ulong, blocks)[PTR(int, rows)[2 * row] + position / BLOCK_TOKENS]) + layer_offset +
      head * head_bytes;
  store_vector(PTR(float, k) + row * k_stride + (long)head * KEY_DIM, KEY_DIM, tile, token,
               BLOCK_TOKENS, token);
  store_vector(PTR(float, v) + row * v_stride + (long)head * VALUE_DIM, VALUE_DIM,
               tile + value_offset, token * VALUE_DIM, 1, token);
}

FUNCTION float capped(float score, float scale, float softcap) {
  score *= scale;
  return softcap > 0.0f ? softcap * tanh(score / softcap) : score;
}

#define ATTENTION_PARAMETERS                                                                    \
  MEM(q), MEM(out), MEM(sinks), MEM(blocks), MEM(rows), SPACE, int has_sinks, int heads_a_kv,   \
      int window, float scale, float softcap, long layer_offset, long head_bytes,               \
      long value_offset, long q_stride, long out_stride

#if VECTOR_ITEMS

FUNCTION float16 read_keys(GLOBAL const uchar *tile, int d) {
#if KV_KIND == 0
  return vload_half16(d, (GLOBAL const half *)tile);
#elif KV_KIND == 1
  return convert_float16(vload16(d, (GLOBAL const schar *)tile));
#else
  return vload16(d, (GLOBAL const float *)tile);
#endif
}

FUNCTION float16 read_values(GLOBAL const uchar *tile, int at, float token_scale) {
#if KV_KIND == 0
  return vload_half16(0, (GLOBAL const half *)(tile + 2 * at));
#elif KV_KIND == 1
  return convert_float16(vload16(0, (GLOBAL const schar *)tile + at)) * token_scale;
#else
  return vload16(0, (GLOBAL const float *)tile + at);
#endif
}

FUNCTION float sum16(float16 v) {
  const float8 a = v.lo + v.hi;
  const float4 b = a.lo + a.hi;
  const float2 c = b.lo + b.hi;
  return c.x + c.y;
}

FUNCTION float max16(float16 v) {
  const float8 a = max(v.lo, v.hi);
  const float4 b = max(a.lo, a.hi);
  const float2 c = max(b.lo, b.hi);
  return max(c.x, c.y);
}

// One item a row (GROUP(0)) and query head (GROUP(1)): a softmax over blocks of 16 keys that
// corrects what it has summed whenever a larger score comes.
KERNEL(attention)(ATTENTION_PARAMETERS) {
  const int row = GROUP(0);
  const int head = GROUP(1);
  const int position = PTR(int, rows)[2 * row + 1];
  if (position < 0) return;
  const int first = window > 0 && position - window + 1 > 0 ? position - window + 1 : 0;
  GLOBAL const ulong *table = PTR(ulong, blocks) + PTR(int, rows)[2 * row];
  GLOBAL const float *query = PTR(float, q) + row * q_stride + (long)head * KEY_DIM;
  GLOBAL float *to = PTR(float, out) + row * out_stride + (long)head * VALUE_DIM;
  const long offset = layer_offset + head / heads_a_kv * head_bytes;
  float largest = has_sinks ? PTR(float, sinks)[head] : LOWEST;
  float sum = has_sinks ? 1.0f : 0.0f;
  float total[VALUE_DIM];
  for (int d = 0; d < VALUE_DIM; ++d) total[d] = 0.0f;
  const int16 lane = (int16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  for (int b = first / BLOCK_TOKENS; b <= position / BLOCK_TOKENS; ++b) {
    GLOBAL const uchar *keys = RESOLVE(table[b]) + offset;
    GLOBAL const uchar *values = keys + value_offset;
    float16 score = (float16)(0.0f);
    for (int d = 0; d < KEY_DIM; ++d) {
      score = fma((float16)(query[d]), read_keys(keys, d), score);
    }
#if KV_KIND == 1
    score *= vload16(0, (GLOBAL const float *)(keys + KEY_DIM * BLOCK_TOKENS));
#endif
    score *= scale;
    if (softcap > 0.0f) score = softcap * tanh(score / softcap);
    const int16 at = lane + b * BLOCK_TOKENS;
    const int16 seen = at >= (int16)(first) & at <= (int16)(position);
    score = select((float16)(LOWEST), score, seen);
    const float now_largest = max(largest, max16(score));
    const float correction = exp(largest - now_largest);
    const float16 weight = select((float16)(0.0f), exp(score - now_largest), seen);
    largest = now_largest;
    sum = sum * correction + sum16(weight);
    float weights[BLOCK_TOKENS];
    vstore16(weight, 0, weights);
    // Tokens outside hold anything, also what is not a number.
    const int begin = b * BLOCK_TOKENS < first ? first - b * BLOCK_TOKENS : 0;
    const int left = position + 1 - b * BLOCK_TOKENS;
    const int end = left < BLOCK_TOKENS ? left : BLOCK_TOKENS;
#if KV_KIND == 1
    GLOBAL const float *scales = (GLOBAL const float *)(values + VALUE_DIM * BLOCK_TOKENS);
#define TOKEN_SCALE(t) scales[t]
#else
#define TOKEN_SCALE(t) 1.0f
#endif
    int d = 0;
    for (; d + 16 <= VALUE_DIM; d += 16) {
      float16 part = vload16(0, total + d) * correction;
      for (int t = begin; t < end; ++t) {
        part = fma((float16)(weights[t]), read_values(values, t * VALUE_DIM + d, TOKEN_SCALE(t)),
                   part);
      }
      vstore16(part, 0, total + d);
    }
    for (; d < VALUE_DIM; ++d) {
      float part = total[d] * correction;
      for (int t = begin; t < end; ++t) {
        part = fma(weights[t], read_kv(values, VALUE_DIM, t * VALUE_DIM + d, t), part);
      }
      total[d] = part;
    }
  }
  const float inverse = 1.0f / sum;
  for (int d = 0; d < VALUE_DIM; ++d) to[d] = total[d] * inverse;
}

#else

// One group of 64 items a row (GROUP(0)) and query head (GROUP(1)): items are keys for the scores,
// and output dimensions for the values.
#define KEYS ITEMS_A_GROUP
#define DIMS_AN_ITEM ((VALUE_DIM + KEYS - 1) / KEYS)

KERNEL(attention)(ATTENTION_PARAMETERS) {
  SHARED float query[KEY_DIM];
  SHARED float weights[KEYS];
  SHARED float scratch[KEYS];
  const int item = ITEM(0);
  const int row = GROUP(0);
  const int head = GROUP(1);
  const int position = PTR(int, rows)[2 * row + 1];
  if (position < 0) return;  // the whole group
  const int first = window > 0 && position - window + 1 > 0 ? position - window + 1 : 0;
  GLOBAL const ulong *table = PTR(ulong, blocks) + PTR(int, rows)[2 * row];
  GLOBAL const float *from = PTR(float, q) + row * q_stride + (long)head * KEY_DIM;
  GLOBAL float *to = PTR(float, out) + row * out_stride + (long)head * VALUE_DIM;
  const long offset = layer_offset + head / heads_a_kv * head_bytes;
  for (int d = item; d < KEY_DIM; d += KEYS) query[d] = from[d];
  float largest = has_sinks ? PTR(float, sinks)[head] : LOWEST;
  float sum = has_sinks ? 1.0f : 0.0f;
  float total[DIMS_AN_ITEM];
  for (int i = 0; i < DIMS_AN_ITEM; ++i) total[i] = 0.0f;
  for (int chunk = first / BLOCK_TOKENS * BLOCK_TOKENS; chunk <= position; chunk += KEYS) {
    BARRIER();
    const int key = chunk + item;
    const bool seen = key >= first && key <= position;
    float score = LOWEST;
    if (seen) {
      GLOBAL const uchar *keys = RESOLVE(table[key / BLOCK_TOKENS]) + offset;
      const int token = key % BLOCK_TOKENS;
      score = 0.0f;
      for (int d = 0; d < KEY_DIM; ++d) {
        score = fma(query[d], read_kv(keys, KEY_DIM, d * BLOCK_TOKENS + token, token), score);
      }
      score = capped(score, scale, softcap);
    }
    const float now_largest = fmax(largest, group_max(scratch, score));
    const float correction = exp(largest - now_largest);
    const float weight = seen ? exp(score - now_largest) : 0.0f;
    largest = now_largest;
    weights[item] = weight;
    sum = sum * correction + group_sum(scratch, weight);
    const int begin = chunk < first ? first : chunk;
    const int end = position + 1 < chunk + KEYS ? position + 1 : chunk + KEYS;
    for (int i = 0; i < DIMS_AN_ITEM; ++i) total[i] *= correction;
    for (int p = begin; p < end; ++p) {
      GLOBAL const uchar *values = RESOLVE(table[p / BLOCK_TOKENS]) + offset + value_offset;
      const int token = p % BLOCK_TOKENS;
      for (int i = 0; i < DIMS_AN_ITEM; ++i) {
        const int d = i * KEYS + item;
        if (d < VALUE_DIM) {
          total[i] = fma(weights[p - chunk],
                         read_kv(values, VALUE_DIM, token * VALUE_DIM + d, token), total[i]);
        }
      }
    }
  }
  const float inverse = 1.0f / sum;
  for (int i = 0; i < DIMS_AN_ITEM; ++i) {
    const int d = i * KEYS + item;
    if (d < VALUE_DIM) to[d] = total[i] * inverse;
  }
}

#endif
