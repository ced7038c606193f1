// y = W x + b and embedding, for one weight format, on weights in layout r16-1
// (src/ops/cpu/packing.h): groups of 16 rows whose codes lie beside each other, so that 16 lanes
// read neighbouring words. The format comes as macros:
//   FLOAT_KIND  0: a block format; else bytes of a float's kind: 1 F32, 2 F16, 3 BF16, 4 E4M3,
//               5 E5M2, 6 W8A8's codes, a scale each row (activations stay as they are)
//   BITS, OFFSET, TABLE (0: none, 1 IQ4, 2 MXFP4, 3 IQ3), SUBS (sub-scales of 32 columns),
//   HAS_MIN, HAS_BIAS, E8M0, BLOCK_GROUPS (of 32 columns in a block)
//   TILE_PRODUCT  1: the kernel for many rows on chips that have one, and that alone
//
// A lane is a row of W. Where an item has vector registers (VECTOR_ITEMS) it is all 16 lanes; else
// an item is one lane, which functions are told, and SLICES of them share a row's columns.

#if VECTOR_ITEMS
#define SLICES 1
typedef float16 lanes_f;
typedef uint16 lanes_u;
typedef int16 lanes_i;
#define LANE 0
#define LOAD_WORDS(p) vload16(0, (GLOBAL const uint *)(p))
#define LOAD_HALVES(p) vload_half16(0, (GLOBAL const half *)(p))
#define LOAD_UCHARS(p) convert_float16(vload16(0, (GLOBAL const uchar *)(p)))
#define LOAD_CHARS(p) convert_float16(vload16(0, (GLOBAL const schar *)(p)))
#define LOAD_FLOATS(p) vload16(0, (GLOBAL const float *)(p))
#define LOAD_UCHARS_U(p) convert_uint16(vload16(0, (GLOBAL const uchar *)(p)))
#define LOAD_USHORTS_U(p) convert_uint16(vload16(0, (GLOBAL const ushort *)(p)))
#define TO_FLOAT(v) convert_float16(as_int16(v))
#define BITS_FLOAT(v) as_float16(v)
#define SPREAD(x) ((float16)(x))
#define SPREAD_U(x) ((uint16)(x))
#define CHOOSE(no, yes, which) select(no, yes, which)
#else
#define SLICES 8
typedef float lanes_f;
typedef uint lanes_u;
#define LANE ITEM(0)
#if defined(BLOCK_READ_WORDS) && !TILE_PRODUCT
// The 16 lanes of a slice are one sub-group.
#define LOAD_WORDS(p) BLOCK_READ_WORDS((GLOBAL const uint *)(p))
#else
#define LOAD_WORDS(p) (((GLOBAL const uint *)(p))[lane])
#endif
#define LOAD_HALVES(p) LOAD_HALF((p) + 2 * lane)
#define LOAD_UCHARS(p) ((float)((GLOBAL const uchar *)(p))[lane])
#define LOAD_CHARS(p) ((float)((GLOBAL const schar *)(p))[lane])
#define LOAD_FLOATS(p) (((GLOBAL const float *)(p))[lane])
#define LOAD_UCHARS_U(p) ((uint)((GLOBAL const uchar *)(p))[lane])
#define LOAD_USHORTS_U(p) ((uint)((GLOBAL const ushort *)(p))[lane])
#define TO_FLOAT(v) ((float)(int)(v))
#define BITS_FLOAT(v) AS_FLOAT(v)
#define SPREAD(x) (x)
#define SPREAD_U(x) (x)
#define CHOOSE(no, yes, which) ((which) ? (yes) : (no))
#endif

#define ROWS_A_GROUP 16

#if FLOAT_KIND == 0

#define D_BYTES (E8M0 ? 16 : 32)
#define DMIN_BYTES ((HAS_MIN || HAS_BIAS) ? 32 : 0)
#define SCALE_BYTES (SUBS * 16)
#define MIN_BYTES (HAS_MIN ? SUBS * 16 : 0)
#define PLANE_BYTES (BITS * 64)
#define GROUP_BYTES (SCALE_BYTES + MIN_BYTES + PLANE_BYTES)
#define BLOCK_BYTES (D_BYTES + DMIN_BYTES + BLOCK_GROUPS * GROUP_BYTES)
#define BLOCK_COLS (BLOCK_GROUPS * 32)

#if TABLE
// Selected by arithmetic rather than memory: the entries are a handful of constants, and lanes of a
// vector have no common address. IQ4 comes from a table of its own.
#if TABLE == 1
CONSTANT float kIq4Values[16] = {-127.0f, -104.0f, -83.0f, -65.0f, -49.0f, -35.0f, -22.0f, -10.0f,
                                 1.0f,    13.0f,   25.0f,  38.0f,  53.0f,  69.0f,  89.0f,  113.0f};
#elif TABLE == 2
CONSTANT float kMxfp4Values[16] = {0.0f, 1.0f,  2.0f,  3.0f,  4.0f,  6.0f,  8.0f,  12.0f,
                                   0.0f, -1.0f, -2.0f, -3.0f, -4.0f, -6.0f, -8.0f, -12.0f};
#endif
FUNCTION float table_entry(uint code) {
#if TABLE == 1
  return kIq4Values[code];
#elif TABLE == 2
  return kMxfp4Values[code];
#else
  const float magnitude = (float)(int)(2 * (code & 7) + 1);
  return code & 8 ? -magnitude : magnitude;
#endif
}
#if VECTOR_ITEMS
FUNCTION lanes_f decode(lanes_u code) {
  return (float16)(table_entry(code.s0), table_entry(code.s1), table_entry(code.s2),
                   table_entry(code.s3), table_entry(code.s4), table_entry(code.s5),
                   table_entry(code.s6), table_entry(code.s7), table_entry(code.s8),
                   table_entry(code.s9), table_entry(code.sa), table_entry(code.sb),
                   table_entry(code.sc), table_entry(code.sd), table_entry(code.se),
                   table_entry(code.sf));
}
#else
FUNCTION lanes_f decode(lanes_u code) { return table_entry(code); }
#endif
#else
FUNCTION lanes_f decode(lanes_u code) { return TO_FLOAT(code) - SPREAD((float)OFFSET); }
#endif

// The words of unit `unit` (columns 4 unit .. 4 unit + 3, a byte each) in the planes of a group.
FUNCTION lanes_u unit_codes(int lane, GLOBAL const uchar *planes, int unit) {
#if BITS == 8
  return LOAD_WORDS(planes + unit * 64);
#elif BITS >= 4
  lanes_u words = (LOAD_WORDS(planes + (unit % 4) * 64) >> SPREAD_U((unit / 4) * 4U)) &
                  SPREAD_U(0x0f0f0f0fU);
#if BITS == 5
  words |= ((LOAD_WORDS(planes + 256) >> SPREAD_U((uint)unit)) & SPREAD_U(0x01010101U))
           << SPREAD_U(4U);
#elif BITS == 6
  words |= ((LOAD_WORDS(planes + 256 + (unit % 2) * 64) >> SPREAD_U((unit / 2) * 2U)) &
            SPREAD_U(0x03030303U))
           << SPREAD_U(4U);
#endif
  return words;
#else
  lanes_u words = (LOAD_WORDS(planes + (unit % 2) * 64) >> SPREAD_U((unit / 2) * 2U)) &
                  SPREAD_U(0x03030303U);
#if BITS == 3
  words |= ((LOAD_WORDS(planes + 128) >> SPREAD_U((uint)unit)) & SPREAD_U(0x01010101U))
           << SPREAD_U(2U);
#endif
  return words;
#endif
}

FUNCTION lanes_f load_d(int lane, GLOBAL const uchar *block) {
#if E8M0
  // Half of 2^(e - 127), as the table's entries are twice the format's values. Exponents 0 and 1
  // give subnormal numbers.
  const lanes_u e = LOAD_UCHARS_U(block);
  return CHOOSE(BITS_FLOAT(SPREAD_U(0x00200000U) << (e & SPREAD_U(1U))),
                BITS_FLOAT((e - SPREAD_U(1U)) << SPREAD_U(23U)), e >= SPREAD_U(2U));
#else
  return LOAD_HALVES(block);
#endif
}

// d * scale and the bias of sub-block `sub` (of 2) of the group at `group`.
FUNCTION lanes_f sub_scale(int lane, lanes_f d, GLOBAL const uchar *group, int sub) {
#if SUBS
  return d * LOAD_CHARS(group + (SUBS == 2 ? sub : 0) * 16);
#else
  return d;
#endif
}
FUNCTION lanes_f sub_bias(int lane, lanes_f dmin, GLOBAL const uchar *group, int sub) {
#if HAS_MIN
  return -(dmin * LOAD_UCHARS(group + SCALE_BYTES + (SUBS == 2 ? sub : 0) * 16));
#else
  return dmin;
#endif
}

// sums[t] += W's lanes . x's row t over the columns that belong to `slice`.
#define ACCUMULATE(TILE)                                                                        \
  for (int b = slice; b < cols / BLOCK_COLS; b += SLICES) {                                     \
    GLOBAL const uchar *block = weights + (long)b * BLOCK_BYTES;                                \
    const lanes_f d = load_d(lane, block);                                                      \
    const lanes_f dmin = DMIN_BYTES ? LOAD_HALVES(block + D_BYTES * (DMIN_BYTES != 0))          \
                                    : SPREAD(0.0f);                                             \
    for (int g = 0; g < BLOCK_GROUPS; ++g) {                                                    \
      GLOBAL const uchar *group = block + D_BYTES + DMIN_BYTES + g * GROUP_BYTES;               \
      GLOBAL const uchar *planes = group + SCALE_BYTES + MIN_BYTES;                             \
      const int col = b * BLOCK_COLS + g * 32;                                                  \
      for (int sub = 0; sub < 2; ++sub) {                                                       \
        const lanes_f scale = sub_scale(lane, d, group, sub);                                   \
        const lanes_f bias = sub_bias(lane, dmin, group, sub);                                  \
        lanes_f dot[TILE];                                                                      \
        float sum[TILE];                                                                        \
        for (int t = 0; t < TILE; ++t) {                                                        \
          dot[t] = SPREAD(0.0f);                                                                \
          sum[t] = 0.0f;                                                                        \
        }                                                                                       \
        for (int unit = 4 * sub; unit < 4 * sub + 4; ++unit) {                                  \
          const lanes_u words = unit_codes(lane, planes, unit);                                 \
          for (int k = 0; k < 4; ++k) {                                                         \
            const lanes_f w = decode((words >> SPREAD_U(8U * k)) & SPREAD_U(255U));             \
            for (int t = 0; t < TILE; ++t) {                                                    \
              const float value = xs[t][col + 4 * unit + k];                                    \
              dot[t] = fma(w, SPREAD(value), dot[t]);                                           \
              if (DMIN_BYTES) sum[t] += value;                                                  \
            }                                                                                   \
          }                                                                                     \
        }                                                                                       \
        for (int t = 0; t < TILE; ++t) {                                                        \
          sums[t] = fma(scale, dot[t], sums[t]);                                                \
          if (DMIN_BYTES) sums[t] = fma(bias, SPREAD(sum[t]), sums[t]);                         \
        }                                                                                       \
      }                                                                                         \
    }                                                                                           \
  }

#else  // float formats

#if FLOAT_KIND == 1
#define COLUMN_BYTES 64
#elif FLOAT_KIND <= 3
#define COLUMN_BYTES 32
#else
#define COLUMN_BYTES 16
#endif

#define MANTISSA_BITS (FLOAT_KIND == 4 ? 3U : 2U)
#define REBIAS (FLOAT_KIND == 4 ? 120U : 112U)
#define SMALLEST (FLOAT_KIND == 4 ? 0x1p-9f : 0x1p-16f)
#define LARGEST (FLOAT_KIND == 4 ? 0x7eU : 0x7cU)

FUNCTION lanes_f load_column(int lane, GLOBAL const uchar *weights, int col) {
#if FLOAT_KIND == 1
  return LOAD_FLOATS(weights + (long)col * 64);
#elif FLOAT_KIND == 2
  return LOAD_HALVES(weights + (long)col * 32);
#elif FLOAT_KIND == 3
  // [column pair][16 rows][2]
  const lanes_u pair = LOAD_WORDS(weights + (long)(col / 2) * 64);
  return BITS_FLOAT(col % 2 ? pair & SPREAD_U(0xffff0000U) : pair << SPREAD_U(16U));
#elif FLOAT_KIND == 6
  // [16 rows] scales, then [4 columns][16 rows][4] codes that are biased by 128.
  const lanes_u words = LOAD_WORDS(weights + 64 + (long)(col / 4) * 64);
  const lanes_u code = (words >> SPREAD_U(8U * (uint)(col % 4))) & SPREAD_U(255U);
  return LOAD_FLOATS(weights) * (TO_FLOAT(code) - SPREAD(128.0f));
#else
  const lanes_u byte = LOAD_UCHARS_U(weights + (long)col * 16);
  // OCP FP8: E4M3 has a bias of 7 and only 0x7f and 0xff are no numbers; E5M2 is the high byte of a
  // half float.
  const lanes_u magnitude = byte & SPREAD_U(0x7fU);
  const lanes_u exponent = magnitude >> SPREAD_U(MANTISSA_BITS);
  const lanes_u mantissa = magnitude & SPREAD_U((1U << MANTISSA_BITS) - 1U);
  const lanes_f small = TO_FLOAT(mantissa) * SPREAD(SMALLEST);
  lanes_f value =
      BITS_FLOAT((magnitude << SPREAD_U(23U - MANTISSA_BITS)) + SPREAD_U(REBIAS << 23));
  value = CHOOSE(value, small, exponent == SPREAD_U(0U));
#if FLOAT_KIND == 5
  value = CHOOSE(value, SPREAD(INFINITY), magnitude == SPREAD_U(0x7cU));
#endif
  value = CHOOSE(value, SPREAD(NAN), magnitude > SPREAD_U(LARGEST));
  return CHOOSE(value, -value, (byte & SPREAD_U(0x80U)) != SPREAD_U(0U));
#endif
}

#define ACCUMULATE(TILE)                                                    \
  for (int c = slice; c < cols; c += SLICES) {                              \
    const lanes_f w = load_column(lane, weights, c);                                            \
    for (int t = 0; t < TILE; ++t) sums[t] = fma(w, SPREAD(xs[t][c]), sums[t]); \
  }

#endif  // FLOAT_KIND

// Writes what of the tile lies inside the result. Slices are summed in their order.
#if VECTOR_ITEMS
#define WRITE(TILE)                                                                     \
  for (int t = 0; t < TILE && row + t < n; ++t) {                                       \
    float lane_sums[16];                                                                \
    vstore16(sums[t], 0, lane_sums);                                                    \
    for (int l = 0; l < 16 && first + l < rows; ++l) {                                  \
      const float b = has_bias ? PTR(float, bias)[first + l] : 0.0f;                    \
      PTR(float, out)[(long)(row + t) * out_stride + first + l] = lane_sums[l] + b;       \
    }                                                                                   \
  }
#else
// Every item meets at the one barrier, whatever it writes.
#define WRITE(TILE)                                                                 \
  for (int t = 0; t < TILE; ++t) scratch[(t * SLICES + ITEM(1)) * 16 + ITEM(0)] = sums[t]; \
  BARRIER();                                                                        \
  for (int t = ITEM(1); t < TILE; t += SLICES) {                                    \
    if (row + t < n && first + ITEM(0) < rows) {                                    \
      float total = 0.0f;                                                           \
      for (int s = 0; s < SLICES; ++s) total += scratch[(t * SLICES + s) * 16 + ITEM(0)]; \
      const float b = has_bias ? PTR(float, bias)[first + ITEM(0)] : 0.0f;          \
      PTR(float, out)[(long)(row + t) * out_stride + first + ITEM(0)] = total + b;  \
    }                                                                               \
  }
#endif

// One group 16 rows of W (GROUP(0)) for TILE rows of x (GROUP(1)); rows past n are computed on the
// last one and not written. Each element is summed in the same order whatever the tile.
#define MATMUL(NAME, TILE)                                                                   \
  KERNEL(NAME)(MEM(w), MEM(x), MEM(bias), MEM(out), int has_bias, int rows, int cols, int n, \
               long group_bytes, long x_stride, long out_stride) {                           \
    SCRATCH(TILE)                                                                            \
    const int first = GROUP(0) * 16;                                                         \
    const int row = GROUP(1) * TILE;                                                         \
    const int slice = SLICES > 1 ? ITEM(1) : 0;                                              \
    const int lane = LANE;                                                                   \
    GLOBAL const uchar *weights = PTR(uchar, w) + GROUP(0) * group_bytes;                    \
    GLOBAL const float *xs[TILE];                                                            \
    lanes_f sums[TILE];                                                                      \
    for (int t = 0; t < TILE; ++t) {                                                         \
      xs[t] = PTR(float, x) + (row + t < n ? row + t : n - 1) * x_stride;                    \
      sums[t] = SPREAD(0.0f);                                                                \
    }                                                                                        \
    ACCUMULATE(TILE)                                                                         \
    WRITE(TILE)                                                                              \
  }

#if VECTOR_ITEMS
#define SCRATCH(TILE)
#else
#define SCRATCH(TILE) SHARED float scratch[TILE * 16 * SLICES];
#endif

FUNCTION uint bf16_bits(float x) {
  const uint bits = AS_UINT(x);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return bits >> 16 | 0x40U;
  return (bits + 0x7fffU + (bits >> 16 & 1U)) >> 16;
}
FUNCTION uint bf16_pair(float first, float second) {
  return bf16_bits(first) | bf16_bits(second) << 16;
}

#if TILE_PRODUCT

// ---- Many rows of x, by the tile product ----
//
// The dialect's MULTIPLY_TILES(d, a, b) adds A B to D, A of 16 x 16 and B of 16 x 8 numbers in
// bfloat16, D in float32, all spread over 32 items as in PTX's mma.m16n8k16: of item i, with g =
// i / 4 and t = i % 4, a[0] to a[3] are A's columns 2 t and 2 t + 1 in rows g and g + 8, then the
// same of columns 8 on; b[0] and b[1] are rows 2 t, 2 t + 1 and 2 t + 8, 2 t + 9 of B's column g;
// d[0] to d[3] are columns 2 t and 2 t + 1 of D's row g, then of row g + 8. TILE_STORAGE declares
// what it needs beside that.
//
// On chips whose items go in waves of 64 it is MULTIPLY_WIDE_TILES(d, a, b) instead, B and D of 16
// columns: of item i, with r = i % 16 and q = i / 16, a[0] and a[1] are A's columns 4 q to 4 q + 3
// in row r, b[0] and b[1] rows 4 q to 4 q + 3 of B's column r, and d[0] to d[3] rows 4 q to 4 q + 3
// of D's column r, as in v_mfma_f32_16x16x16.
//
// A is 16 rows of W and 16 columns, as codes, which bfloat16 holds exactly; B the same columns of 8
// rows of x. A sub-block's scale is applied to D, so that only x is rounded, and float weights of
// more than 8 bits.

#define TILE_ROWS 64  // of x that a group takes
#define TILE_GROUPS 4  // of 16 rows of W
#define X_WORDS 20     // 16 words of a row's 32 columns; the others keep banks apart

#if FLOAT_KIND == 0
// Columns 2 t and 2 t + 1 of the 16 that begin with unit `unit`.
FUNCTION uint code_pair(int lane, GLOBAL const uchar *planes, int unit, int t) {
  const uint word = unit_codes(lane, planes, unit + t / 2) >> (t % 2 * 16);
  return bf16_pair(decode(word & 255U), decode(word >> 8 & 255U));
}
#elif FLOAT_KIND == 6
FUNCTION float column_code(int lane, GLOBAL const uchar *weights, int col) {
  return (float)weights[64 + (long)(col / 4) * 64 + lane * 4 + col % 4] - 128.0f;
}
#define COLUMN_PAIR(row, col) \
  bf16_pair(column_code(row, weights, col), column_code(row, weights, col + 1))
#else
#define COLUMN_PAIR(row, col) \
  bf16_pair(load_column(row, weights, col), load_column(row, weights, col + 1))
#endif

// One group of 128 items 64 rows of W (GROUP(0)) for 64 of x (GROUP(1)); `cols` is a multiple of
// 32. Rows past the end are computed on the last ones and not written.
#ifndef MULTIPLY_WIDE_TILES
// Each 32 items 16 rows of W.
KERNEL(matmul_tiles)(MEM(w), MEM(x), MEM(bias), MEM(out), int has_bias, int rows, int cols, int n,
                     long group_bytes, long x_stride, long out_stride) {
  SHARED uint columns[TILE_ROWS * X_WORDS];
  SHARED float totals[TILE_ROWS * 2];
  TILE_STORAGE(TILE_GROUPS)
  const int g = ITEM(0) / 4;
  const int t = ITEM(0) % 4;
  const int groups = (rows + 15) / 16;
  const int group_at = GROUP(0) * TILE_GROUPS + ITEM(1);
  const int first = group_at * 16;
  const int row = GROUP(1) * TILE_ROWS;
  GLOBAL const uchar *weights =
      PTR(uchar, w) + (group_at < groups ? group_at : groups - 1) * group_bytes;
  // The half row of x that this item brings.
  const int item = ITEM(1) * 32 + ITEM(0);
  const int half_of = item / 2;
  const int half_at = item % 2;
  GLOBAL const float *source =
      PTR(float, x) + (row + half_of < n ? row + half_of : n - 1) * x_stride + half_at * 16;
  float sums[TILE_ROWS / 8][4];
  for (int j = 0; j < TILE_ROWS / 8; ++j) {
    for (int i = 0; i < 4; ++i) sums[j][i] = 0.0f;
  }
  for (int col = 0; col < cols; col += 32) {
    BARRIER();
    float total = 0.0f;
    for (int i = 0; i < 8; ++i) {
      const uint pair = bf16_pair(source[col + 2 * i], source[col + 2 * i + 1]);
      columns[half_of * X_WORDS + half_at * 8 + i] = pair;
      // Of what codes are multiplied with: codes and minima are larger than their difference.
      total += AS_FLOAT(pair << 16) + AS_FLOAT(pair & 0xffff0000U);
    }
    totals[item] = total;
    BARRIER();
#if FLOAT_KIND == 0
    GLOBAL const uchar *block = weights + (long)(col / BLOCK_COLS) * BLOCK_BYTES;
    GLOBAL const uchar *group =
        block + D_BYTES + DMIN_BYTES + (col % BLOCK_COLS / 32) * GROUP_BYTES;
    GLOBAL const uchar *planes = group + SCALE_BYTES + MIN_BYTES;
    const float d_low = load_d(g, block);
    const float d_high = load_d(g + 8, block);
#if DMIN_BYTES
    const float dmin_low = LOAD_HALF(block + D_BYTES + 2 * g);
    const float dmin_high = LOAD_HALF(block + D_BYTES + 2 * (g + 8));
#endif
#endif
    for (int sub = 0; sub < 2; ++sub) {
      uint a[4];
      uint b[2];
#if FLOAT_KIND == 0
      a[0] = code_pair(g, planes, 4 * sub, t);
      a[1] = code_pair(g + 8, planes, 4 * sub, t);
      a[2] = code_pair(g, planes, 4 * sub + 2, t);
      a[3] = code_pair(g + 8, planes, 4 * sub + 2, t);
      const float scale_low = sub_scale(g, d_low, group, sub);
      const float scale_high = sub_scale(g + 8, d_high, group, sub);
#if DMIN_BYTES
      const float bias_low = sub_bias(g, dmin_low, group, sub);
      const float bias_high = sub_bias(g + 8, dmin_high, group, sub);
#endif
#else
      a[0] = COLUMN_PAIR(g, col + 16 * sub + 2 * t);
      a[1] = COLUMN_PAIR(g + 8, col + 16 * sub + 2 * t);
      a[2] = COLUMN_PAIR(g, col + 16 * sub + 2 * t + 8);
      a[3] = COLUMN_PAIR(g + 8, col + 16 * sub + 2 * t + 8);
#endif
      for (int j = 0; j < TILE_ROWS / 8; ++j) {
        const int at = (8 * j + g) * X_WORDS + 8 * sub + t;
        b[0] = columns[at];
        b[1] = columns[at + 4];
#if FLOAT_KIND == 0
        float d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        MULTIPLY_TILES(d, a, b);
        sums[j][0] = fma(scale_low, d[0], sums[j][0]);
        sums[j][1] = fma(scale_low, d[1], sums[j][1]);
        sums[j][2] = fma(scale_high, d[2], sums[j][2]);
        sums[j][3] = fma(scale_high, d[3], sums[j][3]);
#if DMIN_BYTES
        const float even = totals[(8 * j + 2 * t) * 2 + sub];
        const float odd = totals[(8 * j + 2 * t + 1) * 2 + sub];
        sums[j][0] = fma(bias_low, even, sums[j][0]);
        sums[j][1] = fma(bias_low, odd, sums[j][1]);
        sums[j][2] = fma(bias_high, even, sums[j][2]);
        sums[j][3] = fma(bias_high, odd, sums[j][3]);
#endif
#else
        MULTIPLY_TILES(sums[j], a, b);
#endif
      }
    }
  }
  for (int i = 0; i < 4; ++i) {
    const int lane = g + (i / 2) * 8;
    if (first + lane >= rows) continue;
    const float b = has_bias ? PTR(float, bias)[first + lane] : 0.0f;
#if FLOAT_KIND == 6
    const float scale = ((GLOBAL const float *)weights)[lane];
#else
    const float scale = 1.0f;
#endif
    for (int j = 0; j < TILE_ROWS / 8; ++j) {
      const int at = row + 8 * j + 2 * t + i % 2;
      if (at < n) PTR(float, out)[(long)at * out_stride + first + lane] = fma(scale, sums[j][i], b);
    }
  }
}

#else  // MULTIPLY_WIDE_TILES
#define WAVE_GROUPS 2  // of 16 rows of W, that each 64 items take one after the other

KERNEL(matmul_tiles)(MEM(w), MEM(x), MEM(bias), MEM(out), int has_bias, int rows, int cols, int n,
                     long group_bytes, long x_stride, long out_stride) {
  SHARED uint columns[TILE_ROWS * X_WORDS];
  SHARED float totals[TILE_ROWS * 2];
  WIDE_TILE_STORAGE(TILE_GROUPS / WAVE_GROUPS)
  const int item = ITEM(1) * 32 + ITEM(0);
  const int r = item % 16;
  const int q = item % 64 / 16;
  const int groups = (rows + 15) / 16;
  const int group_at = GROUP(0) * TILE_GROUPS + item / 64 * WAVE_GROUPS;
  const int row = GROUP(1) * TILE_ROWS;
  const int half_of = item / 2;
  const int half_at = item % 2;
  GLOBAL const float *source =
      PTR(float, x) + (row + half_of < n ? row + half_of : n - 1) * x_stride + half_at * 16;
  float sums[WAVE_GROUPS][TILE_ROWS / 16][4];
  for (int u = 0; u < WAVE_GROUPS; ++u) {
    for (int j = 0; j < TILE_ROWS / 16; ++j) {
      for (int i = 0; i < 4; ++i) sums[u][j][i] = 0.0f;
    }
  }
  for (int col = 0; col < cols; col += 32) {
    BARRIER();
    float total = 0.0f;
    for (int i = 0; i < 8; ++i) {
      const uint pair = bf16_pair(source[col + 2 * i], source[col + 2 * i + 1]);
      columns[half_of * X_WORDS + half_at * 8 + i] = pair;
      total += AS_FLOAT(pair << 16) + AS_FLOAT(pair & 0xffff0000U);
    }
    totals[item] = total;
    BARRIER();
    for (int u = 0; u < WAVE_GROUPS; ++u) {
      GLOBAL const uchar *weights =
          PTR(uchar, w) + (group_at + u < groups ? group_at + u : groups - 1) * group_bytes;
#if FLOAT_KIND == 0
      GLOBAL const uchar *block = weights + (long)(col / BLOCK_COLS) * BLOCK_BYTES;
      GLOBAL const uchar *group =
          block + D_BYTES + DMIN_BYTES + (col % BLOCK_COLS / 32) * GROUP_BYTES;
      GLOBAL const uchar *planes = group + SCALE_BYTES + MIN_BYTES;
#endif
      for (int sub = 0; sub < 2; ++sub) {
        uint a[2];
        uint b[2];
#if FLOAT_KIND == 0
        const uint word = unit_codes(r, planes, 4 * sub + q);
        a[0] = bf16_pair(decode(word & 255U), decode(word >> 8 & 255U));
        a[1] = bf16_pair(decode(word >> 16 & 255U), decode(word >> 24));
        float scales[4];
        float biases[4];
        for (int i = 0; i < 4; ++i) {
          scales[i] = sub_scale(4 * q + i, load_d(4 * q + i, block), group, sub);
#if DMIN_BYTES
          const float dmin = LOAD_HALF(block + D_BYTES + 2 * (4 * q + i));
          biases[i] = sub_bias(4 * q + i, dmin, group, sub);
#else
          biases[i] = 0.0f;
#endif
        }
#else
        a[0] = COLUMN_PAIR(r, col + 16 * sub + 4 * q);
        a[1] = COLUMN_PAIR(r, col + 16 * sub + 4 * q + 2);
#endif
        for (int j = 0; j < TILE_ROWS / 16; ++j) {
          const int at = (16 * j + r) * X_WORDS + 8 * sub + 2 * q;
          b[0] = columns[at];
          b[1] = columns[at + 1];
#if FLOAT_KIND == 0
          float d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
          MULTIPLY_WIDE_TILES(d, a, b);
          const float of_x = DMIN_BYTES ? totals[(16 * j + r) * 2 + sub] : 0.0f;
          for (int i = 0; i < 4; ++i) {
            sums[u][j][i] = fma(scales[i], d[i], sums[u][j][i]);
            if (DMIN_BYTES) sums[u][j][i] = fma(biases[i], of_x, sums[u][j][i]);
          }
#else
          MULTIPLY_WIDE_TILES(sums[u][j], a, b);
#endif
        }
      }
    }
  }
  for (int u = 0; u < WAVE_GROUPS; ++u) {
    for (int i = 0; i < 4; ++i) {
      const int lane = 4 * q + i;
      const int feature = (group_at + u) * 16 + lane;
      if (feature >= rows) continue;
      const float b = has_bias ? PTR(float, bias)[feature] : 0.0f;
#if FLOAT_KIND == 6
      GLOBAL const uchar *weights = PTR(uchar, w) + (group_at + u) * group_bytes;
      const float scale = ((GLOBAL const float *)weights)[lane];
#else
      const float scale = 1.0f;
#endif
      for (int j = 0; j < TILE_ROWS / 16; ++j) {
        const int at = row + 16 * j + r;
        if (at < n) PTR(float, out)[(long)at * out_stride + feature] = fma(scale, sums[u][j][i], b);
      }
    }
  }
}
#endif  // MULTIPLY_WIDE_TILES

#else

MATMUL(matmul_1, 1)
MATMUL(matmul_8, 8)

// ---- Embedding ----

#if FLOAT_KIND == 0
// The value in one lane of a word's byte, as exact as the format's definition: no fused operations.
FUNCTION float plane_code(GLOBAL const uchar *planes, int lane, int col) {
  const int unit = col / 4;
  const int at = lane * 4 + col % 4;
#if BITS == 8
  return (float)planes[unit * 64 + at];
#elif BITS >= 4
  int code = (planes[(unit % 4) * 64 + at] >> ((unit / 4) * 4)) & 15;
#if BITS == 5
  code |= ((planes[256 + at] >> unit) & 1) << 4;
#elif BITS == 6
  code |= ((planes[256 + (unit % 2) * 64 + at] >> ((unit / 2) * 2)) & 3) << 4;
#endif
  return (float)code;
#else
  int code = (planes[(unit % 2) * 64 + at] >> ((unit / 2) * 2)) & 3;
#if BITS == 3
  code |= ((planes[128 + at] >> unit) & 1) << 2;
#endif
  return (float)code;
#endif
}

FUNCTION float weight_at(GLOBAL const uchar *weights, int lane, int col) {
  EXACT_STEPS
  GLOBAL const uchar *block = weights + (long)(col / BLOCK_COLS) * BLOCK_BYTES;
  GLOBAL const uchar *group =
      block + D_BYTES + DMIN_BYTES + (col % BLOCK_COLS / 32) * GROUP_BYTES;
  const int in_group = col % 32;
  const int sub = SUBS == 2 ? in_group / 16 : 0;
#if E8M0
  const uint e = block[lane];
  const float d = AS_FLOAT(e >= 2 ? (e - 1) << 23 : 0x00200000U << e);
#else
  const float d = LOAD_HALF(block + 2 * lane);
#endif
#if SUBS
  const float scale = d * (float)((GLOBAL const schar *)group)[sub * 16 + lane];
#else
  const float scale = d;
#endif
  const float code = plane_code(group + SCALE_BYTES + MIN_BYTES, lane, in_group);
#if TABLE
  const float q = table_entry((uint)code);
#else
  const float q = code - (float)OFFSET;
#endif
  const float product = scale * q;
#if HAS_MIN
  const float min = (float)group[SCALE_BYTES + sub * 16 + lane];
  return product - LOAD_HALF(block + D_BYTES + 2 * lane) * min;
#elif HAS_BIAS
  return product + LOAD_HALF(block + D_BYTES + 2 * lane);
#else
  return product;
#endif
}
#else
FUNCTION float weight_at(GLOBAL const uchar *weights, int lane, int col) {
#if FLOAT_KIND == 1
  return ((GLOBAL const float *)weights)[(long)col * 16 + lane];
#elif FLOAT_KIND == 2
  return LOAD_HALF(weights + ((long)col * 16 + lane) * 2);
#elif FLOAT_KIND == 3
  const uint pair = ((GLOBAL const uint *)weights)[(long)(col / 2) * 16 + lane];
  return AS_FLOAT(col % 2 ? pair & 0xffff0000U : pair << 16);
#elif FLOAT_KIND == 6
  const float code = (float)weights[64 + (long)(col / 4) * 64 + lane * 4 + col % 4];
  return ((GLOBAL const float *)weights)[lane] * (code - 128.0f);
#else
  const uint byte = weights[(long)col * 16 + lane];
  const uint magnitude = byte & 0x7fU;
  float value = AS_FLOAT((magnitude << (23 - MANTISSA_BITS)) + (REBIAS << 23));
  if (magnitude >> MANTISSA_BITS == 0) value = (float)(int)magnitude * SMALLEST;
  if (FLOAT_KIND == 5 && magnitude == 0x7cU) value = INFINITY;
  if (magnitude > LARGEST) value = NAN;
  return byte & 0x80U ? -value : value;
#endif
}
#endif

// out.row(i) = scale * table.row(ids[i]); one item an element.
KERNEL(embed)(MEM(w), MEM(ids), MEM(out), float scale, int rows, int cols, long group_bytes,
              long out_stride) {
  const long index = (long)GROUP(0) * ITEMS(0) + ITEM(0);
  if (index >= (long)rows * cols) return;
  const int row = (int)(index / cols);
  const int col = (int)(index % cols);
  const int id = PTR(int, ids)[row];
  GLOBAL const uchar *weights = PTR(uchar, w) + (long)(id / 16) * group_bytes;
  const float value = weight_at(weights, id % 16, col);
  PTR(float, out)[row * out_stride + col] = scale * value;
}

// ---- For a library of the maker's: plain rows of bfloat16 ----

#define UNPACK_COLUMNS 64  // that a group takes of its 16 rows
#define UNPACK_STRIDE 66   // keeps banks apart

// Rows first_row and the 15 behind it (GROUP(0) counts such groups from the matrix's first) and 64
// columns (GROUP(1)) to out [rows from `skip` on][cols], of bfloat16. `cols` is even.
KERNEL(unpack)(MEM(w), MEM(out), int skip, int rows, int cols, long group_bytes) {
  SHARED ushort tile[16 * UNPACK_STRIDE];
  const int group_at = skip / 16 + GROUP(0);
  const int col = GROUP(1) * UNPACK_COLUMNS;
  const int width = cols - col < UNPACK_COLUMNS ? cols - col : UNPACK_COLUMNS;
  GLOBAL const uchar *weights = PTR(uchar, w) + (long)group_at * group_bytes;
  for (int lane = ITEM(0); lane < 16; lane += ITEMS(0)) {
    for (int c = ITEM(1); c < width; c += ITEMS(1)) {
      tile[lane * UNPACK_STRIDE + c] = (ushort)bf16_bits(weight_at(weights, lane, col + c));
    }
  }
  BARRIER();
  const int items = ITEMS(0) * ITEMS(1);
  for (int at = ITEM(1) * ITEMS(0) + ITEM(0); at < 16 * (UNPACK_COLUMNS / 2); at += items) {
    const int lane = at / (UNPACK_COLUMNS / 2);
    const int c = at % (UNPACK_COLUMNS / 2) * 2;
    const int row = GROUP(0) * 16 + lane;
    if (c < width && row < rows) {
      PTR(uint, out)[((long)row * cols + col + c) / 2] =
          (uint)tile[lane * UNPACK_STRIDE + c] | (uint)tile[lane * UNPACK_STRIDE + c + 1] << 16;
    }
  }
}

// out [rows][cols] of bfloat16 from x; one item a pair of columns.
KERNEL(to_bf16)(MEM(x), MEM(out), int rows, int cols, long x_stride) {
  const long index = (long)GROUP(0) * ITEMS(0) + ITEM(0);
  if (index >= (long)rows * (cols / 2)) return;
  const int row = (int)(index / (cols / 2));
  const int col = (int)(index % (cols / 2)) * 2;
  GLOBAL const float *from = PTR(float, x) + row * x_stride + col;
  PTR(uint, out)[index] = bf16_pair(from[0], from[1]);
}

#endif  // TILE_PRODUCT
