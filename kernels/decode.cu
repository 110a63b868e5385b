// Sparse MLA attention over the paged fp8 caches, in one launch. See decode.py.
//
// M_TILES, TILE, STAGES, DIM_WARPS, PROGRAMS_PER_SM and SHARED_BYTES are given by the compiler's command line.
//
// A program gathers TILE keys at a time, as the bytes that they are in the cache, and never widens them in
// shared memory: operands of the tensor cores are made of them in registers, as f16, which holds every e4m3.
// Scores: warps share the keys and the dims, and add up in shared memory; then each warp has 64 dims of all
// values. Those have one scale per key, which goes to the scores, and for the values to the weights.

#include "ptx.cuh"

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;
constexpr int HEADS = 16 * M_TILES;
constexpr int DIMS = 512;
constexpr int CHUNK = 64;       // dims with one scale
constexpr int ROPE = 7;         // the chunk of bf16 dims, without a scale
constexpr int KEY_BYTES = 576;  // 448 e4m3, 64 bf16
constexpr int UNITS = KEY_BYTES / 16;
constexpr int SCALES = 8;  // bytes: seven exponents and a pad
constexpr int CHUNKS = WARPS / DIM_WARPS;  // of a warp, in scores
constexpr int KEY_WARPS = WARPS / DIM_WARPS;
constexpr int SCORE_TILES = TILE / KEY_WARPS / 8;
constexpr int LANES_PER_KEY = THREADS / TILE;
constexpr int LANES_PER_HEAD = THREADS / HEADS;
constexpr int KEYS_PER_LANE = TILE / LANES_PER_HEAD;
constexpr int VECTOR = KEYS_PER_LANE < 4 ? 2 : 4;
constexpr int PAD = 8;
constexpr int COLUMNS = HEADS * DIMS / 4;              // of a partial result, four values each
constexpr int PARTIAL = HEADS * DIMS + 2 * HEADS + 4;  // with peaks, sums, and whether its program gave up
constexpr int GAVE_UP = 1 << 16;
constexpr int POLLS = 16;
constexpr unsigned ALL = 0xffffffffu;
constexpr int UNLIMITED = 0x7fffffff;

// f16 has few exponents. Weights are times 2**7, so that 2**-31 is the smallest; their scales are relative to
// the largest so far, times 2**8, so that 2**-32 is the smallest.
constexpr int WEIGHT_BITS = 7, SCALE_BITS = 8;

static_assert(TILE % 32 == 0 && TILE * LANES_PER_KEY == THREADS, "threads share the keys of a tile");
static_assert(LANES_PER_KEY % 4 == 0, "and 64 bytes of a key are next to each other");
static_assert(KEYS_PER_LANE * LANES_PER_HEAD == TILE && KEYS_PER_LANE % VECTOR == 0, "and its scores");
static_assert(DIMS == WARPS * CHUNK, "a warp has a chunk of the values");

// What is loaded and stored at once.
struct alignas(16) Words {
  unsigned word[4];
};
struct alignas(8) Pairs {
  unsigned first, second;
};
struct alignas(8) Scores {
  float first, second;
};
template <class T>
struct alignas(4 * VECTOR) Vector {
  T of[VECTOR];
};

// One of the two paged caches, and which of its keys a row attends to.
struct Cache {
  const unsigned char* pages;
  const int* indices;
  const int* lengths;  // null: the whole width
  long long stride_indices, stride_length;
  unsigned page_bytes;
  int page_bits, width, unused;

  __device__ int length(int row) const {
    if (lengths == nullptr || width == 0) return width;
    return max(0, min(__ldg(lengths + row * stride_length), width));
  }
};

// The arguments. Strides in elements; `sink` may be null.
struct Arguments {
  Cache near, far;
  const unsigned short* q;
  const float* sink;
  unsigned short* out;
  float* lse;
  float* partials;
  int* counters;
  long long stride_q_row, stride_q_head;
  float scale_log2;  // of the scores, times log2(e)
  int rows, heads, groups;
  int whole;  // a row and group is one program's
  int unused;
};

// What programs leave for each other about a row and group that several had: zero between launches.
struct Counters {
  int arrived;  // programs that are done, and GAVE_UP for each of them that does not wait for the others
  int left;
};

struct Shared {
  Words tile[STAGES][TILE * UNITS];
  unsigned char exponents[STAGES][TILE][SCALES];
  float scores[DIM_WARPS][HEADS][TILE + PAD];
  unsigned weights[HEADS][(TILE + PAD) / 2];  // f16 pairs
  unsigned short value_scales[WARPS][TILE];   // f16, by chunk
  int valid[STAGES][TILE];
  float rescale[HEADS];
  float peak[HEADS];
  float sum[HEADS];
  int partial[WARPS];
  int row, begin;
  int merges, given_up;
};
static_assert(sizeof(Shared) <= SHARED_BYTES, "what the launch asks for");
static_assert(sizeof(Shared::weights) >= 2 * MAX_PROGRAMS, "merging uses them");

extern __shared__ int4 shared_memory[];

__device__ int lane() { return threadIdx.x & 31; }
__device__ int warp() { return threadIdx.x >> 5; }
__device__ float infinity() { return __int_as_float(0x7f800000); }
__device__ float two_to(int exponent) { return __int_as_float(max(0, exponent + 127) << 23); }
__device__ int up(int n, int to) { return (n + to - 1) / to; }

// Units of a key within 64 bytes change places, since keys in order would meet in the same banks.
__device__ int swizzled(int key, int unit) { return unit ^ (key >> 1 & 3); }

// A point in the list of all tiles: rows one after another, the head groups of a row next to each other.
struct Cursor {
  int unit, row, group;  // unit: row * groups + group
  int tile, tiles;       // of the row
  int begin;             // tiles in the list before this row and group
  int near, keys;        // of the row: in the first cache, in both
  const int *near_indices, *far_indices;  // by position among both

  __device__ void seek(const Arguments& a, int to) {
    unit = to;
    row = a.groups == 1 ? to : to / a.groups;
    group = to - row * a.groups;
    tile = near = keys = 0;
    tiles = 1;
    if (row >= a.rows) return;
    near = a.near.length(row);
    keys = near + a.far.length(row);
    // A row without keys has one tile too: its outputs have to be written.
    tiles = max(1, up(keys, TILE));
    near_indices = a.near.indices + row * a.near.stride_indices;
    far_indices = a.far.indices + row * a.far.stride_indices - near;
  }

  __device__ void step(const Arguments& a) {
    if (++tile < tiles) return;
    begin += tiles;
    seek(a, unit + (a.whole ? gridDim.x : 1));
  }
};

__device__ int tiles_of(const Arguments& a, int row) {
  return max(1, up(a.near.length(row) + a.far.length(row), TILE));
}

// The sum of `value` over the threads before this one, and over all.
__device__ int sum_before(Shared& s, int value, int& total) {
  int inclusive = value;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(ALL, inclusive, step);
    if (lane() >= step) inclusive += other;
  }
  __syncthreads();
  if (lane() == 31) s.partial[warp()] = inclusive;
  __syncthreads();
  const int part = lane() < WARPS ? s.partial[lane()] : 0;
  total = __reduce_add_sync(ALL, part);
  return __reduce_add_sync(ALL, lane() < warp() ? part : 0) + inclusive - value;
}

// The list of tiles is cut into equal shares, one a program; so a long row is many programs' work. Returns
// how many tiles this program has, from `start` on.
__device__ int find_share(Shared& s, const Arguments& a, Cursor& start, int& share) {
  int row = threadIdx.x;
  int mine = row < a.rows ? tiles_of(a, row) : 0;
  int later = 0, total;
  for (int r = row + THREADS; r < a.rows; r += THREADS) later += tiles_of(a, r);
  int before = sum_before(s, mine, total), end = total;
  if (a.rows > THREADS) {
    int rest;
    sum_before(s, later, rest);
    total += rest;
  }
  share = up(total * a.groups, gridDim.x);
  const int first = blockIdx.x * share;
  const int count = min(share, total * a.groups - first);
  if (count <= 0) return 0;
  while (end * a.groups <= first) {
    row += THREADS;
    mine = row < a.rows ? tiles_of(a, row) : 0;
    int here;
    before = end + sum_before(s, mine, here);
    end += here;
  }
  if (before * a.groups <= first && first < (before + mine) * a.groups) {
    s.row = row;
    s.begin = before * a.groups;
  }
  __syncthreads();
  start.seek(a, s.row * a.groups);
  const int group = (first - s.begin) / start.tiles;
  start.seek(a, s.row * a.groups + group);
  start.begin = s.begin + group * start.tiles;
  start.tile = first - start.begin;
  return count;
}

// A key to gather: its index in a cache, or -1.
struct Key {
  int index;
  bool far;
};

__device__ Key key_of_thread(const Cursor& at, bool some) {
  const int position = at.tile * TILE + threadIdx.x / LANES_PER_KEY;
  Key key{-1, position >= at.near};
  if (some && position < at.keys) key.index = __ldg((key.far ? at.far_indices : at.near_indices) + position);
  return key;
}

template <int I>
__device__ void copy_key(Words* to, const unsigned char* from, int part, bool some) {
  constexpr int FIRST = I * LANES_PER_KEY;
  if constexpr (FIRST < UNITS) {
    if (FIRST + LANES_PER_KEY <= UNITS || FIRST + part < UNITS) copy16_async<FIRST * 16>(to, from, some);
    copy_key<I + 1>(to, from, part, some);
  }
}

// Begin to gather this thread's part of a tile. What isn't a key is zeros, so that a weight of 0 is enough.
__device__ void gather(Shared& s, const Arguments& a, int stage, Key from) {
  const int key = threadIdx.x / LANES_PER_KEY, part = threadIdx.x % LANES_PER_KEY;
  const bool some = from.index >= 0;
  const unsigned index = some ? from.index : 0;
  const int bits = from.far ? a.far.page_bits : a.near.page_bits;
  const unsigned page_bytes = from.far ? a.far.page_bytes : a.near.page_bytes;
  const unsigned char* pages = from.far ? a.far.pages : a.near.pages;
  const unsigned char* page = pages + (unsigned long long)(index >> bits) * page_bytes;
  const unsigned slot = index & ((1u << bits) - 1);
  copy_key<0>(&s.tile[stage][key * UNITS + swizzled(key, part)], page + slot * KEY_BYTES + part * 16, part, some);
  if (part == 0) {
    copy8_async(s.exponents[stage][key], page + (unsigned(KEY_BYTES) << bits) + slot * SCALES, some);
    s.valid[stage][key] = some;
  }
}

// This warp's chunks of q as operands of the tensor cores, and what their products are to be multiplied
// with. The order of the dims within a chunk is that in which `add_scores` has those of the keys.
struct Query {
  unsigned operand[CHUNKS][4][M_TILES][4];
  float factor[CHUNKS][M_TILES][2];
};

// Eight dims of q of one head from `dim` on, as pairs; zeros beyond the heads.
__device__ Words load_q(const Arguments& a, const Cursor& at, int head, int dim) {
  head += at.group * HEADS;
  if (head >= a.heads) return {};
  const unsigned short* from = a.q + at.row * a.stride_q_row + head * a.stride_q_head + dim;
  const int4 pairs = __ldg(reinterpret_cast<const int4*>(from));
  return {unsigned(pairs.x), unsigned(pairs.y), unsigned(pairs.z), unsigned(pairs.w)};
}

__device__ unsigned larger_of_pair(unsigned pair) { return max(pair << 16 & 0x7fff0000u, pair & 0x7fff0000u); }

// f16 has the range of q only after a multiplication by the power of two that brings the largest of a
// head's 64 dims to 2**14: then what is lost is below 2**-38 of it.
__device__ float to_f16(Words (&pairs)[2], bool some) {
  unsigned largest = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) largest = max(largest, larger_of_pair(pairs[i / 4].word[i % 4]));
  largest = max(largest, unsigned(__shfl_xor_sync(ALL, int(largest), 1)));
  largest = max(largest, unsigned(__shfl_xor_sync(ALL, int(largest), 2)));
  const int exponent = min(254, 268 - int(largest >> 23));
  const float up_by = __int_as_float(exponent << 23);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    unsigned& pair = pairs[i / 4].word[i % 4];
    const float first = __int_as_float(int(pair << 16)), second = __int_as_float(int(pair & 0xffff0000u));
    pair = some ? f16_pair(first * up_by, second * up_by) : pair;
  }
  return some ? __int_as_float((254 - exponent) << 23) : 1.0f;
}

__device__ void load_query(const Arguments& a, const Cursor& at, Query& q) {
  const int row = lane() / 4, j = lane() % 4;
#pragma unroll
  for (int c = 0; c < CHUNKS; ++c) {
    const int chunk = warp() / KEY_WARPS * CHUNKS + c;
    const bool rope = c == CHUNKS - 1 && chunk == ROPE;
    // Of a key, a lane has the 16 bytes number `j` of each 64.
    const int first = chunk * CHUNK + (rope ? 8 : 16) * j, second = first + (rope ? 32 : 8);
#pragma unroll
    for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int head = 16 * m + 8 * half + row;
        Words pairs[2] = {load_q(a, at, head, first), load_q(a, at, head, second)};
        q.factor[c][m][half] = to_f16(pairs, !rope) * a.scale_log2;
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          q.operand[c][step][m][half] = pairs[step / 2].word[step % 2 * 2];
          q.operand[c][step][m][half + 2] = pairs[step / 2].word[step % 2 * 2 + 1];
        }
      }
    }
  }
}

// This warp's part of the scores: its dims of its keys. `HAS_ROPE`: the last of its chunks is the bf16 one.
template <bool HAS_ROPE>
__device__ void add_scores(Shared& s, int stage, const Query& q) {
  const int row = lane() / 4, j = lane() % 4;
  const int first_key = warp() % KEY_WARPS * SCORE_TILES * 8, first_chunk = warp() / KEY_WARPS * CHUNKS;
  const Words* bytes = &s.tile[stage][(first_key + row) * UNITS + first_chunk * 4 + swizzled(row, j)];
  const unsigned char* exponents = s.exponents[stage][first_key + 2 * j] + first_chunk;
  float* to = &s.scores[warp() / KEY_WARPS][row][first_key + 2 * j];
#pragma unroll
  for (int n = 0; n < SCORE_TILES; ++n) {
    float scores[M_TILES][4] = {};
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
      float products[M_TILES][4] = {};
      float scale[2] = {1.0f, 1.0f};
      if (HAS_ROPE && c == CHUNKS - 1) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const Words pairs = bytes[8 * n * UNITS + 4 * (c + half)];
#pragma unroll
          for (int step = 0; step < 2; ++step) {
#pragma unroll
            for (int m = 0; m < M_TILES; ++m) {
              multiply_bf16(products[m], q.operand[c][2 * half + step][m], pairs.word[2 * step],
                            pairs.word[2 * step + 1]);
            }
          }
        }
      } else {
        const Words four = bytes[8 * n * UNITS + 4 * c];
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          unsigned low, high;
          f16_of_e4m3(four.word[step], low, high);
#pragma unroll
          for (int m = 0; m < M_TILES; ++m) multiply_f16(products[m], q.operand[c][step][m], low, high);
        }
        scale[0] = __int_as_float(exponents[8 * n * SCALES + c] << 23);
        scale[1] = __int_as_float(exponents[(8 * n + 1) * SCALES + c] << 23);
      }
#pragma unroll
      for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[m][i] += products[m][i] * (scale[i % 2] * q.factor[c][m][i / 2]);
      }
    }
#pragma unroll
    for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        *reinterpret_cast<Scores*>(to + (16 * m + 8 * half) * (TILE + PAD) + 8 * n) = {
            scores[m][2 * half], scores[m][2 * half + 1]};
      }
    }
  }
}

// The running softmax of one head, kept by all the threads that share it: the largest score, and the sum of the
// weights relative to it.
struct Softmax {
  float peak, sum;
};

// Scores to weights, relative to the largest score so far.
__device__ void weigh(Shared& s, int stage, Softmax& so_far) {
  const int head = threadIdx.x / LANES_PER_HEAD;
  const int key = threadIdx.x % LANES_PER_HEAD * KEYS_PER_LANE;
  float score[KEYS_PER_LANE];
  float peak = so_far.peak;
#pragma unroll
  for (int i = 0; i < KEYS_PER_LANE; i += VECTOR) {
    Vector<float> parts[DIM_WARPS];
#pragma unroll
    for (int part = 0; part < DIM_WARPS; ++part) {
      parts[part] = *reinterpret_cast<const Vector<float>*>(&s.scores[part][head][key + i]);
    }
    const Vector<int> valid = *reinterpret_cast<const Vector<int>*>(&s.valid[stage][key + i]);
#pragma unroll
    for (int n = 0; n < VECTOR; ++n) {
      float sum = parts[0].of[n];
#pragma unroll
      for (int part = 1; part < DIM_WARPS; ++part) sum += parts[part].of[n];
      score[i + n] = valid.of[n] ? sum : -infinity();
      peak = fmaxf(peak, score[i + n]);
    }
  }
#pragma unroll
  for (int step = LANES_PER_HEAD / 2; step > 0; step /= 2) peak = fmaxf(peak, __shfl_xor_sync(ALL, peak, step));
  const float base = peak == -infinity() ? 0.0f : peak;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < KEYS_PER_LANE; i += 2) {
    const float first = power_of_2(score[i] - base + WEIGHT_BITS);
    const float second = power_of_2(score[i + 1] - base + WEIGHT_BITS);
    sum += first + second;
    s.weights[head][(key + i) / 2] = f16_pair(first, second);
  }
#pragma unroll
  for (int step = LANES_PER_HEAD / 2; step > 0; step /= 2) sum += __shfl_xor_sync(ALL, sum, step);
  const float rescale = power_of_2(so_far.peak - base);
  so_far = {peak, so_far.sum * rescale + sum};
  if (threadIdx.x % LANES_PER_HEAD == 0) {
    s.rescale[head] = rescale;
    s.peak[head] = peak;
    s.sum[head] = so_far.sum;
  }
}

// The weighted sums of a warp's 64 dims, in units of 2**(top - 127 - SCALE_BITS). Tiles 2u and 2u + 1 are dims
// 16u to 16u + 15: the even and the odd ones of e4m3, the first and the last eight of bf16.
struct Values {
  float sum[M_TILES][8][4];
  int top;
};

// Scales of this warp's values, relative to the largest so far; returns what that changes for the sums.
__device__ float scale_values(Shared& s, int stage, Values& values) {
  int exponent[TILE / 32], top = values.top;
#pragma unroll
  for (int i = 0; i < TILE / 32; ++i) {
    exponent[i] = s.exponents[stage][32 * i + lane()][warp()];
    top = max(top, exponent[i]);
  }
  top = __reduce_max_sync(ALL, top);
#pragma unroll
  for (int i = 0; i < TILE / 32; ++i) {
    const int field = exponent[i] - top + SCALE_BITS + 15;
    s.value_scales[warp()][32 * i + lane()] = field > 0 ? field << 10 : 0x400 >> min(1 - field, 31);
  }
  __syncwarp();
  const float change = two_to(values.top - top);
  values.top = top;
  return change;
}

template <bool IS_ROPE>
__device__ void add_values(Shared& s, int stage, Values& values) {
  const int row = lane() / 4, j = lane() % 4;
  const int matrix_row = lane() % 16, matrix_unit = lane() / 16;
  const float change = IS_ROPE ? 1.0f : scale_values(s, stage, values);
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
      for (int tile = 0; tile < 8; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) values.sum[m][tile][i] *= rescale[m][i / 2];
      }
    }
  }
  const Words* tile = &s.tile[stage][matrix_row * UNITS + 4 * warp()];
  const Words* units[2] = {tile + swizzled(matrix_row, matrix_unit), tile + swizzled(matrix_row, matrix_unit + 2)};
  const unsigned* from = &s.weights[matrix_row][4 * matrix_unit];
  const unsigned short* scales = &s.value_scales[warp()][2 * j];
#pragma unroll
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
      for (int tile = 0; tile < 8; tile += 2) {
        unsigned pairs[4];
        load_matrices_transposed(pairs, units[tile / 2 % 2] + keys * UNITS + tile / 4 * 4);
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
      for (int half = 0; half < 2; ++half) {
        unsigned bytes[4];
        load_matrices_transposed(bytes, units[half] + keys * UNITS);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          // A word has two dims of one key and the same dims of the next.
          unsigned even[2], odd[2];
          f16_of_e4m3(chosen_bytes<0x3120>(bytes[2 * i], 0), even[0], odd[0]);
          f16_of_e4m3(chosen_bytes<0x3120>(bytes[2 * i + 1], 0), even[1], odd[1]);
#pragma unroll
          for (int m = 0; m < M_TILES; ++m) {
            multiply_f16(values.sum[m][4 * half + 2 * i], weights[m], even[0], even[1]);
            multiply_f16(values.sum[m][4 * half + 2 * i + 1], weights[m], odd[0], odd[1]);
          }
        }
      }
    }
  }
}

// Four sums that one thread of a warp has: those of one head in tiles 2u and 2u + 1. A partial result is a
// list of such columns in the order [k][thread], k counting m, half and u.
struct alignas(16) Column {
  float value[4];

  __device__ void multiply(float factor) {
#pragma unroll
    for (int i = 0; i < 4; ++i) value[i] *= factor;
  }
};

__device__ Column column_of(const Values& values, int k) {
  const int m = k / 8, half = k / 4 % 2, u = k % 4;
  const float(&first)[4] = values.sum[m][2 * u];
  const float(&second)[4] = values.sum[m][2 * u + 1];
  Column column{first[2 * half], first[2 * half + 1], second[2 * half], second[2 * half + 1]};
  column.multiply(warp() == ROPE ? 1.0f : two_to(values.top - 127 - SCALE_BITS));
  return column;
}
__device__ int head_of(int k, int thread) { return k / 4 * 8 + thread % 32 / 4; }

// One over the sum of a head's weights and the sink's; 0 without any key.
__device__ float one_over(const Arguments& a, int head, Softmax total) {
  float sum = total.sum;
  if (a.sink) sum += power_of_2(__ldg(a.sink + head) * 1.44269504f - total.peak + WEIGHT_BITS);
  return total.sum == 0 ? 0.0f : reciprocal(sum);
}

__device__ float lse_of(Softmax total) {
  return total.sum == 0 ? -infinity() : (total.peak + log_2(total.sum) - WEIGHT_BITS) * 0.693147181f;
}

__device__ void write(unsigned short* out, int k, int thread, const Column& column) {
  const int j = thread % 4, chunk = thread / 32, u = k % 4;
  const float* v = column.value;
  unsigned* to = reinterpret_cast<unsigned*>(out + chunk * CHUNK + 16 * u);
  if (chunk == ROPE) {
    to[j] = bf16_pair(v[0], v[1]);
    to[j + 4] = bf16_pair(v[2], v[3]);
  } else {
    reinterpret_cast<Pairs*>(to)[j] = {bf16_pair(v[0], v[2]), bf16_pair(v[1], v[3])};
  }
}

// The outputs of a row and group that was this program's alone.
__device__ void write_result(const Shared& s, const Arguments& a, const Cursor& at, const Values& values) {
#pragma unroll
  for (int rows = 0; rows < 2 * M_TILES; ++rows) {
    const int in_group = head_of(4 * rows, threadIdx.x), head = at.group * HEADS + in_group;
    if (head >= a.heads) continue;
    const long long line = (long long)at.row * a.heads + head;
    const Softmax total{s.peak[in_group], s.sum[in_group]};
    const float factor = one_over(a, head, total);
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      Column column = column_of(values, 4 * rows + u);
      column.multiply(factor);
      write(a.out + line * DIMS, 4 * rows + u, threadIdx.x, column);
    }
    if (threadIdx.x % 4 == 0 && warp() == 0) a.lse[line] = lse_of(total);
  }
}

// A row and group that several programs had: the first of them and how many.
struct Shares {
  int first, count;

  __device__ Shares(const Cursor& at, int share)
      : first(at.begin / share), count((at.begin + at.tiles - 1) / share - first + 1) {}

  // A program has at most one that began before its share and one that ends after.
  __device__ float* partial(const Arguments& a, int part) const {
    return a.partials + (2ll * (first + part) + (part == 0)) * PARTIAL;
  }
  __device__ int* gave_up(const Arguments& a, int part) const {
    return reinterpret_cast<int*>(partial(a, part) + 2 * HEADS);
  }
  __device__ float* columns(const Arguments& a, int part) const { return partial(a, part) + 2 * HEADS + 4; }
};

struct Merged {
  Column column;
  Softmax total;
};
static_assert(sizeof(Shared::scores) >= THREADS * sizeof(Merged), "merging uses them");

__device__ void merge(Merged& into, Column column, Softmax other) {
  const float peak = fmaxf(into.total.peak, other.peak);
  const float base = peak == -infinity() ? 0.0f : peak;
  const float old = power_of_2(into.total.peak - base), fresh = power_of_2(other.peak - base);
#pragma unroll
  for (int i = 0; i < 4; ++i) into.column.value[i] = into.column.value[i] * old + column.value[i] * fresh;
  into.total = {peak, into.total.sum * old + other.sum * fresh};
}

// One slice of the columns, there are as many as parts, over all parts; threads share the parts if there are
// more threads than columns. Always in the same order, whichever program does it.
__device__ __noinline__ void merge_slice(
    Shared& s, const Arguments& a, int row, int group, Shares shares, int slice) {
  const int columns = up(COLUMNS, shares.count);
  const int together = max(1, THREADS / columns);
  const int member = columns < THREADS ? threadIdx.x / columns : 0;
  const int end = min(COLUMNS, (slice + 1) * columns);
  Merged* merged = reinterpret_cast<Merged*>(s.scores);
#pragma unroll 1
  for (int i = threadIdx.x - member * columns; i < columns; i += THREADS) {
    const int column = slice * columns + i;
    const bool mine = column < end && member < together;
    const int k = column / THREADS, thread = column % THREADS, in_group = head_of(k, thread);
    Merged sum{{}, {-infinity(), 0.0f}};
#pragma unroll 1
    for (int part = member; mine && part < shares.count; part += 4 * together) {
      Column values[4];
      Softmax softmax[4];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        softmax[n] = {-infinity(), 0.0f};
        values[n] = {};
        const int other = part + n * together;
        if (other >= shares.count) continue;
        const float* from = shares.partial(a, other);
        softmax[n] = {__ldcg(from + in_group), __ldcg(from + HEADS + in_group)};
        const float4 four = __ldcg(reinterpret_cast<const float4*>(shares.columns(a, other)) + column);
        values[n] = {four.x, four.y, four.z, four.w};
      }
#pragma unroll
      for (int n = 0; n < 4; ++n) merge(sum, values[n], softmax[n]);
    }
    if (together > 1) {
      merged[threadIdx.x] = sum;
      __syncthreads();
      for (int n = 1; n < together && member == 0; ++n) {
        const Merged& other = merged[i + n * columns];
        merge(sum, other.column, other.total);
      }
    }
    const int head = group * HEADS + in_group;
    if (!mine || member > 0 || head >= a.heads) continue;
    const long long line = (long long)row * a.heads + head;
    sum.column.multiply(one_over(a, head, sum.total));
    write(a.out + line * DIMS, k, thread, sum.column);
    if (thread / 32 == 0 && k % 4 == 0 && thread % 4 == 0) a.lse[line] = lse_of(sum.total);
  }
  __syncthreads();
}

// Count this program as arrived, and wait a while for the others if it has nothing else to do. Sets in
// `merges` whether it merges its own slice, and in `given_up` how many others: whoever doesn't wait leaves
// its slice to the last to arrive. So no program depends on another that has not begun.
__device__ void arrive(Shared& s, Counters* counters, int* gave_up, int count, bool waits) {
  *gave_up = !waits;
  const int mine = waits ? 1 : 1 + GAVE_UP;
  const int before = add_and_order(&counters->arrived, mine);
  const bool last = before % GAVE_UP == count - 1;
  bool all = last;
  for (int i = 0; waits && !all && i < POLLS; ++i) {
    all = load_and_order(&counters->arrived) % GAVE_UP == count;
  }
  if (waits && !all) {
    *gave_up = true;
    all = add_and_order(&counters->arrived, GAVE_UP) % GAVE_UP == count;
  }
  s.merges = last || (waits && all);
  s.given_up = last ? before / GAVE_UP : 0;
}

// Leave this program's part of a row and group, and merge what is left to it.
__device__ void share_result(
    Shared& s, const Arguments& a, const Cursor& at, int share, const Values& values, bool waits) {
  const Shares shares(at, share);
  const int mine = blockIdx.x - shares.first;
  Column* columns = reinterpret_cast<Column*>(shares.columns(a, mine));
#pragma unroll
  for (int k = 0; k < COLUMNS / THREADS; ++k) columns[k * THREADS + threadIdx.x] = column_of(values, k);
  if (threadIdx.x < HEADS) {
    float* partial = shares.partial(a, mine);
    partial[threadIdx.x] = s.peak[threadIdx.x];
    partial[HEADS + threadIdx.x] = s.sum[threadIdx.x];
  }
  Counters* counters = reinterpret_cast<Counters*>(a.counters) + shares.first;
  __syncthreads();
  if (threadIdx.x == 0) arrive(s, counters, shares.gave_up(a, mine), shares.count, waits);
  __syncthreads();
  if (s.merges) {
    const int given_up = s.given_up;
    unsigned short* parts = reinterpret_cast<unsigned short*>(s.weights);
    merge_slice(s, a, at.row, at.group, shares, mine);
    if (given_up > 0) {
      if (threadIdx.x == 0) s.given_up = 0;
      __syncthreads();
      for (int part = threadIdx.x; part < shares.count; part += THREADS) {
        if (part != mine && __ldcg(shares.gave_up(a, part))) parts[atomicAdd(&s.given_up, 1)] = part;
      }
      __syncthreads();
      for (int i = 0; i < given_up; ++i) merge_slice(s, a, at.row, at.group, shares, parts[i]);
    }
  }
  if (threadIdx.x == 0 && atomicAdd(&counters->left, 1) == shares.count - 1) *counters = {};
}

extern "C" __global__ void __launch_bounds__(THREADS, PROGRAMS_PER_SM)
    sparse_mla_decode(const __grid_constant__ Arguments a) {
  Shared& s = *reinterpret_cast<Shared*>(shared_memory);
  wait_for_kernel_before();
  Cursor work{};
  int share = 1, left = UNLIMITED;
  if (a.whole) {
    work.seek(a, blockIdx.x);
  } else {
    left = find_share(s, a, work, share);
  }
  if (work.row >= a.rows || left <= 0) return;

  Cursor ahead = work;
  int left_ahead = left;
  Key keys[STAGES];
#pragma unroll
  for (int i = 0; i < STAGES; ++i) {
    keys[i] = key_of_thread(ahead, left_ahead-- > 0);
    ahead.step(a);
  }
#pragma unroll
  for (int i = 0; i < STAGES - 1; ++i) {
    gather(s, a, i, keys[i]);
    end_copy_group();
  }
  Key next = keys[STAGES - 1];

  int stage = 0;
  while (true) {
    const int first_tile = work.tile;
    Query q;
    load_query(a, work, q);
    Softmax softmax{-infinity(), 0.0f};
    Values values = {};
    bool row_ends, last;
    while (true) {
      wait_for_copies<STAGES - 2>();
      __syncthreads();
      // Where the tile before this one was.
      gather(s, a, stage == 0 ? STAGES - 1 : stage - 1, next);
      end_copy_group();
      next = key_of_thread(ahead, left_ahead-- > 0);
      ahead.step(a);

      if (warp() / KEY_WARPS == DIM_WARPS - 1) {
        add_scores<true>(s, stage, q);
      } else {
        add_scores<false>(s, stage, q);
      }
      __syncthreads();
      weigh(s, stage, softmax);
      __syncthreads();
      if (warp() == ROPE) {
        add_values<true>(s, stage, values);
      } else {
        add_values<false>(s, stage, values);
      }

      stage = stage + 1 == STAGES ? 0 : stage + 1;
      row_ends = work.tile + 1 == work.tiles;
      last = --left == 0;
      if (row_ends || last) break;
      ++work.tile;
    }
    if (row_ends && first_tile == 0) {
      write_result(s, a, work, values);
    } else {
      share_result(s, a, work, share, values, last);
    }
    work.step(a);
    if (last || work.row >= a.rows) break;
  }
  wait_for_copies<0>();
}
