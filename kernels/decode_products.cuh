// Scores, weights and weighted sums of a tile: part of decode.cu.

// This warp's chunks of q as operands of the tensor cores, and what their products are to be multiplied
// with. The order of the dims within a chunk is that in which `add_scores` has those of the keys.
struct Query {
  unsigned operand[CHUNKS][4][M_TILES][4];
  float factor[CHUNKS][M_TILES][2];
};

__device__ int first_chunk() { return warp() / KEY_WARPS * CHUNKS; }

// This warp's part of q as it is in memory.
struct RawQuery {
  int4 pairs[CHUNKS][M_TILES][2][2];
};

// Beyond the heads: the last one again, which nobody reads.
__device__ void load_query(const Arguments& a, int unit, RawQuery& q) {
  const int row = row_of(a, unit), group = unit - row * a.groups, j = lane() % 4;
#pragma unroll
  for (int c = 0; c < CHUNKS; ++c) {
    const int chunk = first_chunk() + c;
    const bool rope = c == CHUNKS - 1 && chunk == ROPE;
    // Of a key, a lane has the 16 bytes number `j` of each 64.
    const int first = chunk * CHUNK + (rope ? 8 : 16) * j, second = rope ? 32 : 8;
#pragma unroll
    for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int head = min(group * HEADS + 16 * m + 8 * half + lane() / 4, a.heads - 1);
        const unsigned short* from = a.q + row * a.stride_q_row + head * a.stride_q_head + first;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          q.pairs[c][m][half][i] = __ldg(reinterpret_cast<const int4*>(from + i * second));
        }
      }
    }
  }
}

// f16 has the range of q only after a multiplication by the power of two that brings the largest of a
// head's 64 dims to 2**14: then what is lost is below 2**-38 of it.
__device__ void scale_query(const Arguments& a, const RawQuery& raw, Query& q) {
#pragma unroll
  for (int c = 0; c < CHUNKS; ++c) {
    const bool rope = c == CHUNKS - 1 && first_chunk() + c == ROPE;
    const unsigned as_it_is = rope ? ALL : 0;
#pragma unroll
    for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int4(&four)[2] = raw.pairs[c][m][half];
        const unsigned pairs[8] = {unsigned(four[0].x), unsigned(four[0].y), unsigned(four[0].z), unsigned(four[0].w),
                                   unsigned(four[1].x), unsigned(four[1].y), unsigned(four[1].z), unsigned(four[1].w)};
        unsigned largest = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) largest = larger_bf16(largest, pairs[i] & 0x7fff7fffu);
        largest = larger_bf16(largest, __shfl_xor_sync(ALL, int(largest), 1));
        largest = larger_bf16(largest, __shfl_xor_sync(ALL, int(largest), 2));
        largest = larger_bf16(largest, largest << 16);
        const int exponent = min(254, 268 - int(largest >> 23));
        const float up_by = __int_as_float(exponent << 23);
        q.factor[c][m][half] = (rope ? 1.0f : __int_as_float((254 - exponent) << 23)) * a.scale_log2;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const unsigned pair = pairs[i];
          const float first = __int_as_float(int(pair << 16)), second = __int_as_float(int(pair & 0xffff0000u));
          q.operand[c][i / 2][m][half + i % 2 * 2] = chosen(as_it_is, pair, f16_pair(first * up_by, second * up_by));
        }
      }
    }
  }
}

// Not read ahead of its row: that would keep it in registers while the row before is written.
__device__ void find_query(const Arguments& a, int unit, Query& q) {
  RawQuery raw;
  load_query(a, unit, raw);
  scale_query(a, raw, q);
}

// This warp's part of the scores: its dims of its keys. `HAS_ROPE`: the last of its chunks is the bf16 one.
template <bool HAS_ROPE>
__device__ void add_scores(Shared& s, int stage, const Query& q) {
  const int row = lane() / 4, j = lane() % 4;
  const int first_key = warp() % KEY_WARPS * SCORE_TILES * 8;
  const Words* bytes = &s.tile[stage][(first_key + key_in_eight(row)) * STRIDE + first_chunk() * 4 + j];
  const unsigned char* exponents = s.exponents[stage][first_key + j] + first_chunk();
  float* to = &s.scores[warp() / KEY_WARPS][row][first_key + 2 * j];
#pragma unroll 1
  for (int tiles = 0; tiles < SCORE_TILES; tiles += SCORE_UNROLL) {
    float scores[SCORE_UNROLL][M_TILES][4] = {};
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
      const bool rope = HAS_ROPE && c == CHUNKS - 1;
      float products[SCORE_UNROLL][M_TILES][4] = {};
      Words words[SCORE_UNROLL], more[SCORE_UNROLL];
      float scale[SCORE_UNROLL][2];
#pragma unroll
      for (int n = 0; n < SCORE_UNROLL; ++n) {
        words[n] = bytes[8 * n * STRIDE + 4 * c];
        if (rope) more[n] = bytes[8 * n * STRIDE + 4 * (c + 1)];
        scale[n][0] = rope ? 1.0f : __int_as_float(exponents[8 * n * SCALES + c] << 23);
        scale[n][1] = rope ? 1.0f : __int_as_float(exponents[(8 * n + 4) * SCALES + c] << 23);
      }
#pragma unroll
      for (int step = 0; step < 4; ++step) {
#pragma unroll
        for (int n = 0; n < SCORE_UNROLL; ++n) {
          if (rope) {
            const Words& pairs = step < 2 ? words[n] : more[n];
#pragma unroll
            for (int m = 0; m < M_TILES; ++m) {
              multiply_bf16(products[n][m], q.operand[c][step][m], pairs.word[step % 2 * 2],
                            pairs.word[step % 2 * 2 + 1]);
            }
          } else {
            unsigned low, high;
            f16_of_e4m3(words[n].word[step], low, high);
#pragma unroll
            for (int m = 0; m < M_TILES; ++m) multiply_f16(products[n][m], q.operand[c][step][m], low, high);
          }
        }
      }
#pragma unroll
      for (int n = 0; n < SCORE_UNROLL; ++n) {
#pragma unroll
        for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            scores[n][m][i] += products[n][m][i] * (scale[n][i % 2] * q.factor[c][m][i / 2]);
          }
        }
      }
    }
#pragma unroll
    for (int n = 0; n < SCORE_UNROLL; ++n) {
#pragma unroll
      for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int column = 8 * (tiles + n), moved = place_of(row, column) - column;
          *reinterpret_cast<Scores*>(to + (16 * m + 8 * half) * (TILE + SCORE_PAD) + 8 * n + moved) = {
              scores[n][m][2 * half], scores[n][m][2 * half + 1]};
        }
      }
    }
    bytes += 8 * SCORE_UNROLL * STRIDE;
    exponents += 8 * SCORE_UNROLL * SCALES;
    to += 8 * SCORE_UNROLL;
  }
}

// The running softmax of one head, kept by all the threads that share it: the largest score, and the sums of
// this thread's weights relative to it.
struct Softmax {
  float peak, sum[VECTORS];
};

// Scores to weights, relative to the largest score so far. `ends`: and their sums for all.
__device__ void weigh(Shared& s, int stage, Softmax& so_far, bool ends) {
  const int head = threadIdx.x / LANES_PER_HEAD, first = threadIdx.x % LANES_PER_HEAD;
  float score[VECTORS][4];
  float peak = so_far.peak;
#pragma unroll
  for (int i = 0; i < VECTORS; ++i) {
    // Lanes read next to each other.
    const int column = 4 * (first + i * LANES_PER_HEAD);
    Vector<float> parts[DIM_WARPS];
#pragma unroll
    for (int part = 0; part < DIM_WARPS; ++part) {
      parts[part] = *reinterpret_cast<const Vector<float>*>(&s.scores[part][head][place_of(head, column)]);
    }
    const Vector<int> valid = *reinterpret_cast<const Vector<int>*>(&s.valid[stage][column]);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      float sum = parts[0].of[n];
#pragma unroll
      for (int part = 1; part < DIM_WARPS; ++part) sum += parts[part].of[n];
      score[i][n] = valid.of[n] ? sum : -infinity();
      peak = fmaxf(peak, score[i][n]);
    }
  }
#pragma unroll
  for (int step = LANES_PER_HEAD / 2; step > 0; step /= 2) peak = fmaxf(peak, __shfl_xor_sync(ALL, peak, step));
  const float base = peak == -infinity() ? 0.0f : peak;
  const float rescale = power_of_2(so_far.peak - base);
#pragma unroll
  for (int i = 0; i < VECTORS; ++i) {
    float weight[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) weight[n] = power_of_2(score[i][n] - base + WEIGHT_BITS);
    so_far.sum[i] = so_far.sum[i] * rescale + ((weight[0] + weight[1]) + (weight[2] + weight[3]));
    const int vector = first + i * LANES_PER_HEAD;
    unsigned* to = &s.weights[head][vector / 2 * 4 + vector % 2];
    to[0] = f16_pair(weight[0], weight[2]);
    to[2] = f16_pair(weight[1], weight[3]);
  }
  so_far.peak = peak;
  if (first == 0) s.rescale[head] = rescale;
  if (!ends) return;
  // In the same order for any number of heads of a program, so that a head's bits don't depend on it.
  float sum = so_far.sum[0];
#pragma unroll
  for (int i = 1; i < VECTORS; ++i) sum += so_far.sum[i];
#pragma unroll
  for (int step = LANES_PER_HEAD / 2; step > 0; step /= 2) sum += __shfl_xor_sync(ALL, sum, step);
  if (first == 0) {
    s.peak[head] = peak;
    s.sum[head] = sum;
  }
}

// The weighted sums of a warp's dims, in units of 2**(top - 127 - SCALE_BITS). Tiles 2u and 2u + 1 are dims
// 16u to 16u + 15: the even and the odd ones of e4m3, the first and the last eight of bf16.
struct Values {
  float sum[M_TILES][VALUE_TILES][4];
  int top;
};

__device__ int value_chunk(int warp) { return warp / WARPS_PER_CHUNK; }

// Scales of this warp's values, relative to the largest so far; returns what that changes for the sums.
__device__ float scale_values(Shared& s, int stage, Values& values) {
  if (value_chunk(warp()) == ROPE) return 1.0f;
  int exponent[TILE / 32], top = values.top;
#pragma unroll
  for (int i = 0; i < TILE / 32; ++i) {
    exponent[i] = s.exponents[stage][32 * i + lane()][value_chunk(warp())];
    top = max(top, exponent[i]);
  }
  top = __reduce_max_sync(ALL, top);
#pragma unroll
  for (int i = 0; i < TILE / 32; ++i) {
    const int field = exponent[i] - top + SCALE_BITS + 15;
    s.value_scales[warp()][32 * i + lane()] = field > 0 ? field << 10 : 0x400 >> min(1 - field, 31);
  }
  const float change = two_to(values.top - top);
  values.top = top;
  return change;
}

template <bool IS_ROPE>
__device__ void add_values(Shared& s, int stage, float change, Values& values) {
  const int row = lane() / 4, j = lane() % 4;
  const int matrix_row = lane() % 16, matrix_unit = lane() / 16;
  float rescale[M_TILES][2];
  bool same = true;
#pragma unroll
  for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      rescale[m][half] = s.rescale[16 * m + 8 * half + row] * change;
      same = same && rescale[m][half] == 1.0f;
    }
  }
  if (!__all_sync(ALL, same)) {
#pragma unroll
    for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
      for (int tile = 0; tile < VALUE_TILES; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) values.sum[m][tile][i] *= rescale[m][i / 2];
      }
    }
  }
  const int within = warp() % WARPS_PER_CHUNK;
  const Words* unit = &s.tile[stage][matrix_row * STRIDE + 4 * value_chunk(warp()) + matrix_unit];
  const unsigned* from = &s.weights[matrix_row][4 * matrix_unit];
  const unsigned short* scales = &s.value_scales[warp()][2 * j];
#pragma unroll VALUE_UNROLL
  for (int keys = 0; keys < TILE; keys += 16) {
    unsigned weights[M_TILES][4];
#pragma unroll
    for (int m = 0; m < M_TILES; ++m) load_matrices(weights[m], from + 16 * m * ((TILE + PAD) / 2) + keys / 2);
    if constexpr (IS_ROPE) {
#pragma unroll
      for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) weights[m][i] = bf16_of_f16(weights[m][i]);
      }
#pragma unroll
      for (int tile = 0; tile < VALUE_TILES; tile += 2) {
        const int units = within * VALUE_TILES + tile;
        unsigned pairs[4];
        load_matrices_transposed(pairs, unit + keys * STRIDE + units);
#pragma unroll
        for (int m = 0; m < M_TILES; ++m) {
          multiply_bf16(values.sum[m][tile], weights[m], pairs[0], pairs[1]);
          multiply_bf16(values.sum[m][tile + 1], weights[m], pairs[2], pairs[3]);
        }
      }
    } else {
      const unsigned scale[2] = {*reinterpret_cast<const unsigned*>(scales + keys),
                                 *reinterpret_cast<const unsigned*>(scales + keys + 8)};
#pragma unroll
      for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) weights[m][i] = product_f16(weights[m][i], scale[i / 2]);
      }
#pragma unroll
      for (int tile = 0; tile < VALUE_TILES; tile += 4) {
        const int units = within * (VALUE_TILES / 2) + tile / 2;
        unsigned bytes[4];
        load_matrices_transposed(bytes, unit + keys * STRIDE + units);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          // A word has two dims of one key and the same dims of the next.
          unsigned even[2], odd[2];
          f16_of_e4m3(chosen_bytes<0x3120>(bytes[2 * i], 0), even[0], odd[0]);
          f16_of_e4m3(chosen_bytes<0x3120>(bytes[2 * i + 1], 0), even[1], odd[1]);
#pragma unroll
          for (int m = 0; m < M_TILES; ++m) {
            multiply_f16(values.sum[m][tile + 2 * i], weights[m], even[0], even[1]);
            multiply_f16(values.sum[m][tile + 2 * i + 1], weights[m], odd[0], odd[1]);
          }
        }
      }
    }
  }
}
