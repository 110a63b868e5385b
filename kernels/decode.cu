// Sparse MLA attention over the paged fp8 caches, in one launch. See decode.py.
//
// The constants in capitals that are not declared here are given by the compiler's command line: see
// DecodeConfig.
//
// A program gathers TILE keys at a time, as the bytes that they are in the cache, and never widens them in
// shared memory: operands of the tensor cores are made of them in registers, as f16, which holds every e4m3.
// Scores: warps share the keys and the dims, and add up in shared memory; then each warp has 64 dims of all
// values. Those have one scale per key, which goes to the scores, and for the values to the weights.

#include "ptx.cuh"

constexpr int WARPS = THREADS / 32;
constexpr int HEADS = 16 * M_TILES;
constexpr int DIMS = 512;
constexpr int CHUNK = 64;       // dims with one scale
constexpr int ROPE = 7;         // the chunk of bf16 dims, without a scale
constexpr int KEY_BYTES = 576;  // 448 e4m3, 64 bf16
constexpr int UNITS = KEY_BYTES / 16;
constexpr int SCALES = 8;  // bytes: seven exponents and a pad
constexpr int CHUNKS = 8 / DIM_WARPS;  // of a warp, in scores
constexpr int KEY_WARPS = WARPS / DIM_WARPS;
constexpr int SCORE_TILES = TILE / KEY_WARPS / 8;
constexpr int WARPS_PER_CHUNK = WARPS / 8;            // in values
constexpr int VALUE_TILES = 8 / WARPS_PER_CHUNK;      // of 8 dims, of a warp
constexpr int COLUMNS_PER_HEAD = VALUE_TILES / 2;     // of a thread
constexpr int VALUE_DIMS = CHUNK / WARPS_PER_CHUNK;   // of a warp
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

// f16 has few exponents. Weights are times 2**7, so that 2**-31 is the smallest; their scales are relative to
// the largest so far, times 2**8, so that 2**-32 is the smallest.
constexpr int WEIGHT_BITS = 7, SCALE_BITS = 8;

static_assert(TILE % 32 == 0 && TILE * LANES_PER_KEY == THREADS, "threads share the keys of a tile");
static_assert(LANES_PER_KEY % 4 == 0, "and 64 bytes of a key are next to each other");
static_assert(KEYS_PER_LANE * LANES_PER_HEAD == TILE && KEYS_PER_LANE % VECTOR == 0, "and its scores");
static_assert(WARPS_PER_CHUNK == 1 || WARPS_PER_CHUNK == 2, "a warp has a chunk of the values or a half");

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
  int whole;  // tiles of a row that one program does at least, even if its share is smaller
};

// What programs leave for each other about a row and group that several had: zero between launches.
struct Counters {
  int arrived;  // programs that are done, and GAVE_UP for each of them that does not wait for the others
  int left;
};

// A tile: the row and group that it is of, as row * groups + group; which one of how many; how many tiles there
// are in the list of all tiles before the first.
struct alignas(16) Info {
  int unit, tile, tiles, begin;
};

struct Shared {
  Words tile[STAGES][TILE * UNITS];
  unsigned char exponents[STAGES][TILE][SCALES];
  float scores[DIM_WARPS][HEADS][TILE + PAD];
  unsigned weights[HEADS][(TILE + PAD) / 2];  // f16 pairs
  unsigned short value_scales[WARPS][TILE];   // f16, by chunk
  int valid[STAGES][TILE];
  Info info[STAGES];
  float rescale[HEADS];
  float peak[HEADS];
  float sum[HEADS];
  int partial[WARPS];
  int row, begin, tiles;
  int merges, given_up;
};
static_assert(sizeof(Shared) <= SHARED_BYTES, "what the launch asks for");
static_assert(sizeof(Shared::weights) >= 2 * MAX_PROGRAMS, "merging lists parts there");

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
  Info info;
  int near, keys;                         // of the row: in the first cache, in both
  const int *near_indices, *far_indices;  // by position among both

  __device__ void seek(const Arguments& a, int unit) {
    const int row = a.groups == 1 ? unit : unit / a.groups;
    info = {unit, 0, 1, info.begin};
    near = keys = 0;
    if (row >= a.rows) return;
    near = a.near.length(row);
    keys = near + a.far.length(row);
    // A row without keys has one tile too: its outputs have to be written.
    info.tiles = max(1, up(keys, TILE));
    near_indices = a.near.indices + row * a.near.stride_indices;
    far_indices = a.far.indices + row * a.far.stride_indices - near;
  }

  __device__ void step(const Arguments& a) {
    if (++info.tile < info.tiles) return;
    info.begin += info.tiles;
    seek(a, info.unit + 1);
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

// A program's share of the list of all tiles: equal parts of it, so that a long row is many programs' work. A
// row and group of at most `whole` tiles is not cut: it belongs to the share in which it begins.
struct Share {
  int size, left, whole;

  // Whether a tile, the first ones of the share done, is this program's.
  __device__ bool has(Info info) const { return left > 0 || (info.tile > 0 && info.tiles <= whole); }
};

__device__ Share find_share(Shared& s, const Arguments& a, Cursor& start) {
  int row = a.rows == 1 ? 0 : threadIdx.x;
  int mine = row < a.rows ? tiles_of(a, row) : 0;
  int before = 0, total = mine;
  if (a.rows > 1) before = sum_before(s, mine, total);
  int end = total;
  if (a.rows > THREADS) {
    int later = 0, rest;
#pragma unroll 1
    for (int r = row + THREADS; r < a.rows; r += THREADS) later += tiles_of(a, r);
    sum_before(s, later, rest);
    total += rest;
  }
  total *= a.groups;
  // Few tiles: rather two to a program than two programs to an SM, each with a part to merge.
  Share share{up(total, total <= gridDim.x ? up(gridDim.x, PROGRAMS_PER_SM) : gridDim.x), 0, a.whole};
  share.whole = max(a.whole, share.size);
  const int first = blockIdx.x * share.size;
  share.left = min(share.size, total - first);
  if (share.left <= 0) return share;
#pragma unroll 1
  while (end * a.groups <= first) {
    row += THREADS;
    mine = row < a.rows ? tiles_of(a, row) : 0;
    int here;
    before = end + sum_before(s, mine, here);
    end += here;
  }
  int begin = before * a.groups;
  if (a.rows > 1) {
    if (begin <= first && first < begin + mine * a.groups) {
      s.row = row;
      s.begin = begin;
      s.tiles = mine;
    }
    __syncthreads();
    row = s.row;
    begin = s.begin;
    mine = s.tiles;
  }
  const int group = a.groups == 1 ? 0 : (first - begin) / mine;
  start.info.begin = begin + group * mine;
  start.seek(a, row * a.groups + group);
  start.info.tile = first - start.info.begin;
  if (start.info.tile > 0 && start.info.tiles <= share.whole) {
    share.left -= start.info.tiles - start.info.tile;
    start.info.tile = start.info.tiles - 1;
    if (share.left > 0) start.step(a);
  }
  return share;
}

// A key to gather: its index in a cache, or -1.
struct Key {
  int index;
  bool far;
};

__device__ Key key_of_thread(const Cursor& at, bool some) {
  const int position = at.info.tile * TILE + threadIdx.x / LANES_PER_KEY;
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
__device__ void gather(Shared& s, const Arguments& a, int stage, Info info, Key from) {
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
  if (threadIdx.x == 0) s.info[stage] = info;
  end_copy_group();
}

// This warp's chunks of q as operands of the tensor cores, and what their products are to be multiplied
// with. The order of the dims within a chunk is that in which `add_scores` has those of the keys.
struct Query {
  unsigned operand[CHUNKS][4][M_TILES][4];
  float factor[CHUNKS][M_TILES][2];
};

__device__ int first_chunk() { return warp() / KEY_WARPS * CHUNKS; }

// Eight dims of q of one head from `dim` on, as pairs; zeros beyond the heads.
__device__ Words load_q(const Arguments& a, int row, int group, int head, int dim) {
  head += group * HEADS;
  if (head >= a.heads) return {};
  const unsigned short* from = a.q + row * a.stride_q_row + head * a.stride_q_head + dim;
  const int4 pairs = __ldg(reinterpret_cast<const int4*>(from));
  return {unsigned(pairs.x), unsigned(pairs.y), unsigned(pairs.z), unsigned(pairs.w)};
}

// f16 has the range of q only after a multiplication by the power of two that brings the largest of a
// head's 64 dims to 2**14: then what is lost is below 2**-38 of it.
__device__ float to_f16(Words (&pairs)[2], bool some) {
  unsigned largest = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) largest = larger_bf16(largest, pairs[i / 4].word[i % 4] & 0x7fff7fffu);
  largest = larger_bf16(largest, __shfl_xor_sync(ALL, int(largest), 1));
  largest = larger_bf16(largest, __shfl_xor_sync(ALL, int(largest), 2));
  largest = larger_bf16(largest, largest << 16);
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

__device__ void load_query(const Arguments& a, int row, int group, Query& q) {
  const int j = lane() % 4;
#pragma unroll
  for (int c = 0; c < CHUNKS; ++c) {
    const int chunk = first_chunk() + c;
    const bool rope = c == CHUNKS - 1 && chunk == ROPE;
    // Of a key, a lane has the 16 bytes number `j` of each 64.
    const int first = chunk * CHUNK + (rope ? 8 : 16) * j, second = first + (rope ? 32 : 8);
#pragma unroll
    for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int head = 16 * m + 8 * half + lane() / 4;
        Words pairs[2] = {load_q(a, row, group, head, first), load_q(a, row, group, head, second)};
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
  const int first_key = warp() % KEY_WARPS * SCORE_TILES * 8;
  const Words* bytes = &s.tile[stage][(first_key + row) * UNITS + first_chunk() * 4 + swizzled(row, j)];
  const unsigned char* exponents = s.exponents[stage][first_key + 2 * j] + first_chunk();
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
        words[n] = bytes[8 * n * UNITS + 4 * c];
        if (rope) more[n] = bytes[8 * n * UNITS + 4 * (c + 1)];
        scale[n][0] = rope ? 1.0f : __int_as_float(exponents[8 * n * SCALES + c] << 23);
        scale[n][1] = rope ? 1.0f : __int_as_float(exponents[(8 * n + 1) * SCALES + c] << 23);
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
          *reinterpret_cast<Scores*>(to + (16 * m + 8 * half) * (TILE + PAD) + 8 * n) = {
              scores[n][m][2 * half], scores[n][m][2 * half + 1]};
        }
      }
    }
    bytes += 8 * SCORE_UNROLL * UNITS;
    exponents += 8 * SCORE_UNROLL * SCALES;
    to += 8 * SCORE_UNROLL;
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

// The weighted sums of a warp's dims, in units of 2**(top - 127 - SCALE_BITS). Tiles 2u and 2u + 1 are dims
// 16u to 16u + 15: the even and the odd ones of e4m3, the first and the last eight of bf16.
struct Values {
  float sum[M_TILES][VALUE_TILES][4];
  int top;
};

__device__ int value_chunk(int warp) { return warp / WARPS_PER_CHUNK; }

// Scales of this warp's values, relative to the largest so far; returns what that changes for the sums.
__device__ float scale_values(Shared& s, int stage, Values& values) {
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
      for (int tile = 0; tile < VALUE_TILES; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) values.sum[m][tile][i] *= rescale[m][i / 2];
      }
    }
  }
  const int within = warp() % WARPS_PER_CHUNK;
  const Words* unit = &s.tile[stage][matrix_row * UNITS + 4 * value_chunk(warp())];
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
        load_matrices_transposed(
            pairs, unit + keys * UNITS + units / 4 * 4 + swizzled(matrix_row, units % 4 + matrix_unit));
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
        load_matrices_transposed(bytes, unit + keys * UNITS + swizzled(matrix_row, units + matrix_unit));
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
  const int m = k / COLUMNS_PER_HEAD / 2, half = k / COLUMNS_PER_HEAD % 2, u = k % COLUMNS_PER_HEAD;
  const float(&first)[4] = values.sum[m][2 * u];
  const float(&second)[4] = values.sum[m][2 * u + 1];
  Column column{first[2 * half], first[2 * half + 1], second[2 * half], second[2 * half + 1]};
  column.multiply(value_chunk(warp()) == ROPE ? 1.0f : two_to(values.top - 127 - SCALE_BITS));
  return column;
}
__device__ int head_of(int k, int thread) { return k / COLUMNS_PER_HEAD * 8 + thread % 32 / 4; }

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
  const int j = thread % 4, u = k % COLUMNS_PER_HEAD;
  const float* v = column.value;
  unsigned* to = reinterpret_cast<unsigned*>(out + thread / 32 * VALUE_DIMS + 16 * u);
  if (value_chunk(thread / 32) == ROPE) {
    to[j] = bf16_pair(v[0], v[1]);
    to[j + 4] = bf16_pair(v[2], v[3]);
  } else {
    reinterpret_cast<Pairs*>(to)[j] = {bf16_pair(v[0], v[2]), bf16_pair(v[1], v[3])};
  }
}

// The outputs of a row and group that was this program's alone.
__device__ void write_result(const Shared& s, const Arguments& a, int row, int group, const Values& values) {
#pragma unroll
  for (int rows = 0; rows < 2 * M_TILES; ++rows) {
    const int in_group = 8 * rows + lane() / 4, head = group * HEADS + in_group;
    if (head >= a.heads) continue;
    const long long line = (long long)row * a.heads + head;
    const Softmax total{s.peak[in_group], s.sum[in_group]};
    const float factor = one_over(a, head, total);
#pragma unroll
    for (int u = 0; u < COLUMNS_PER_HEAD; ++u) {
      Column column = column_of(values, rows * COLUMNS_PER_HEAD + u);
      column.multiply(factor);
      write(a.out + line * DIMS, u, threadIdx.x, column);
    }
    if (threadIdx.x % 4 == 0 && warp() == 0) a.lse[line] = lse_of(total);
  }
}

// A row and group that several programs had: the first of them and how many.
struct Shares {
  int first, count;

  __device__ Shares(Info info, int share)
      : first(info.begin / share), count((info.begin + info.tiles - 1) / share - first + 1) {}

  // A program has at most one that ends after its share, and one that began before.
  __device__ float* partial(const Arguments& a, int part) const {
    return a.partials + (long long)(first + part + (part > 0 ? gridDim.x : 0)) * PARTIAL;
  }
  __device__ int* gave_up(const Arguments& a, int part) const {
    return reinterpret_cast<int*>(partial(a, part) + 2 * HEADS);
  }
};

struct alignas(8) Merged {
  float value[4];
  Softmax total;
};
static_assert(sizeof(Shared::scores) >= THREADS * sizeof(Merged), "merging uses them");

template <int N>
__device__ void merge(Merged& into, const Merged (&others)[N]) {
  float peak = into.total.peak;
#pragma unroll
  for (int n = 0; n < N; ++n) peak = fmaxf(peak, others[n].total.peak);
  const float base = peak == -infinity() ? 0.0f : peak;
  const float old = power_of_2(into.total.peak - base);
  into.total = {peak, into.total.sum * old};
#pragma unroll
  for (int i = 0; i < 4; ++i) into.value[i] *= old;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const float factor = power_of_2(others[n].total.peak - base);
    into.total.sum += others[n].total.sum * factor;
#pragma unroll
    for (int i = 0; i < 4; ++i) into.value[i] += others[n].value[i] * factor;
  }
}

// One slice of the columns, there are as many as parts, over all parts; threads share the parts if there are
// more threads than columns. Always in the same order, whichever program does it.
__device__ __noinline__ void merge_slice(
    Shared& s, const Arguments& a, int row, int group, Shares shares, int slice) {
  const int columns = up(COLUMNS, shares.count);
  int together = 1;
  while (2 * together * columns <= THREADS) together *= 2;
  const int member = columns < THREADS ? threadIdx.x / columns : 0;
  Merged* merged = reinterpret_cast<Merged*>(s.scores);
#pragma unroll 1
  for (int i = threadIdx.x - member * columns; i < columns; i += THREADS) {
    const int column = slice * columns + i;
    const bool mine = column < COLUMNS && member < together;
    const int k = column / THREADS, thread = column % THREADS, in_group = head_of(k, thread);
    Merged sum{{}, {-infinity(), 0.0f}};
#pragma unroll 1
    for (int part = member; mine && part < shares.count; part += 4 * together) {
      Merged parts[4];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int other = part + n * together;
        const float* from = shares.partial(a, min(other, shares.count - 1));
        const float4 four = __ldcg(reinterpret_cast<const float4*>(from + 2 * HEADS + 4) + column);
        parts[n] = {{four.x, four.y, four.z, four.w}, {__ldcg(from + in_group), __ldcg(from + HEADS + in_group)}};
        // One part more than once: what isn't NaN anyway counts 0.
        if (other >= shares.count) parts[n].total.peak = -infinity();
      }
      merge(sum, parts);
    }
#pragma unroll 1
    for (int step = together / 2; step > 0; step /= 2) {
      merged[threadIdx.x] = sum;
      __syncthreads();
      if (member < step) {
        const Merged other[1] = {merged[threadIdx.x + step * columns]};
        merge(sum, other);
      }
      __syncthreads();
    }
    const int head = group * HEADS + in_group;
    if (!mine || member > 0 || head >= a.heads) continue;
    const long long line = (long long)row * a.heads + head;
    Column result{sum.value[0], sum.value[1], sum.value[2], sum.value[3]};
    result.multiply(one_over(a, head, sum.total));
    write(a.out + line * DIMS, k, thread, result);
    if (thread / 32 == 0 && k % COLUMNS_PER_HEAD == 0 && thread % 4 == 0) a.lse[line] = lse_of(sum.total);
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
__device__ void share_result(Shared& s, const Arguments& a, int row, int group, Info info, int share,
                             const Values& values, bool waits) {
  const Shares shares(info, share);
  const int mine = blockIdx.x - shares.first;
  float* partial = shares.partial(a, mine);
  Column* columns = reinterpret_cast<Column*>(partial + 2 * HEADS + 4);
#pragma unroll
  for (int k = 0; k < COLUMNS / THREADS; ++k) columns[k * THREADS + threadIdx.x] = column_of(values, k);
  if (threadIdx.x < HEADS) {
    partial[threadIdx.x] = s.peak[threadIdx.x];
    partial[HEADS + threadIdx.x] = s.sum[threadIdx.x];
  }
  Counters* counters = reinterpret_cast<Counters*>(a.counters) + shares.first;
  __syncthreads();
  if (threadIdx.x == 0) arrive(s, counters, shares.gave_up(a, mine), shares.count, waits);
  __syncthreads();
  unsigned short* parts = reinterpret_cast<unsigned short*>(s.weights);
  // First this program's slice, then those of programs that gave up.
  int slice = s.merges ? mine : -1, given_up = s.given_up;
  for (int next = 0; slice >= 0; slice = next++ < given_up ? int(parts[next - 1]) : -1) {
    merge_slice(s, a, row, group, shares, slice);
    if (next > 0 || given_up == 0) continue;
    if (threadIdx.x == 0) s.given_up = 0;
    __syncthreads();
    for (int part = threadIdx.x; part < shares.count; part += THREADS) {
      if (part != mine && __ldcg(shares.gave_up(a, part))) parts[atomicAdd(&s.given_up, 1)] = part;
    }
    __syncthreads();
  }
  if (threadIdx.x == 0 && atomicAdd(&counters->left, 1) == shares.count - 1) *counters = {};
}

extern "C" __global__ void __launch_bounds__(THREADS, PROGRAMS_PER_SM)
    sparse_mla_decode(const __grid_constant__ Arguments a) {
  Shared& s = *reinterpret_cast<Shared*>(shared_memory);
  wait_for_kernel_before();
  Cursor ahead{};
  Share share = find_share(s, a, ahead);
  if (share.left <= 0) return;

  Info info = ahead.info;
  Key next = key_of_thread(ahead, true);
  Share share_ahead = share;
  int stage = 0;
#pragma unroll 1
  for (int filled = 0; filled < STAGES - 1; ++filled) {
    gather(s, a, filled, ahead.info, next);
    ahead.step(a);
    --share_ahead.left;
    next = key_of_thread(ahead, share_ahead.has(ahead.info));
  }
  while (true) {
    const int row = a.groups == 1 ? info.unit : info.unit / a.groups, group = info.unit - row * a.groups;
    const int first_tile = info.tile;
    Query q;
    load_query(a, row, group, q);
    Softmax softmax{-infinity(), 0.0f};
    Values values = {};
    bool row_ends, last;
    while (true) {
      wait_for_copies<STAGES - 2>();
      __syncthreads();
      // Where the tile before this one was.
      gather(s, a, stage == 0 ? STAGES - 1 : stage - 1, ahead.info, next);
      ahead.step(a);
      --share_ahead.left;
      next = key_of_thread(ahead, share_ahead.has(ahead.info));

      if (warp() / KEY_WARPS == DIM_WARPS - 1) {
        add_scores<true>(s, stage, q);
      } else {
        add_scores<false>(s, stage, q);
      }
      __syncthreads();
      weigh(s, stage, softmax);
      __syncthreads();
      if (value_chunk(warp()) == ROPE) {
        add_values<true>(s, stage, values);
      } else {
        add_values<false>(s, stage, values);
      }
      info = s.info[stage];
      stage = stage + 1 == STAGES ? 0 : stage + 1;
      row_ends = info.tile + 1 == info.tiles;
      last = --share.left <= 0 && (row_ends || info.tiles > share.whole);
      if (row_ends || last) break;
    }
    if (row_ends && first_tile == 0) {
      write_result(s, a, row, group, values);
    } else {
      share_result(s, a, row, group, info, share.size, values, last);
    }
    if (last) break;
    info = s.info[stage];
  }
  wait_for_copies<0>();
}
