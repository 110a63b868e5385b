// Sparse MLA attention over the paged fp8 caches, in one launch. See decode.py.
//
// M_TILES, TILE, STAGES, PROGRAMS_PER_SM and SHARED_BYTES are given by the compiler's command line.
//
// A program gathers TILE keys at a time, as the bytes that they are in the cache, and never widens them in
// shared memory: operands of the tensor cores are made of them in registers. Scores: warps share the keys
// and the dims, and add up in shared memory; then each warp has 64 dims of all values. The 64 dims of a warp
// have one scale per key, which goes to the scores, and for the values to the weights.

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
constexpr int DIM_WARPS = DIM_WARPS_;
constexpr int CHUNKS = WARPS / DIM_WARPS;  // of a warp, in scores
constexpr int KEY_WARPS = WARPS / DIM_WARPS;
constexpr int SCORE_TILES = TILE / KEY_WARPS / 8;
constexpr int LANES_PER_KEY = THREADS / TILE;
constexpr int LANES_PER_HEAD = THREADS / HEADS;
constexpr int KEYS_PER_LANE = TILE / LANES_PER_HEAD;
constexpr int PAD = 8;
constexpr int COLUMNS = HEADS * DIMS / 4;  // of a partial result, four values each
constexpr int PARTIAL = HEADS * DIMS + 2 * HEADS;
constexpr int ALONE = 4;  // one program merges up to so many parts
constexpr int POLLS = 16;
constexpr unsigned ALL = 0xffffffffu;
constexpr int UNLIMITED = 0x7fffffff;

static_assert(TILE % 32 == 0 && TILE * LANES_PER_KEY == THREADS, "threads share the keys of a tile");
static_assert(KEYS_PER_LANE * LANES_PER_HEAD == TILE && KEYS_PER_LANE % 2 == 0, "and its scores");
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

// One of the two paged caches, and which of its keys a row attends to.
struct Cache {
  const unsigned char* pages;
  const int* indices;
  const int* lengths;  // null: the whole width
  long long page_bytes, stride_indices, stride_length;
  int width, page_bits;

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
  int arrived, taken, left;
};

struct Shared {
  Words tile[STAGES][TILE * UNITS];
  unsigned long long scales[STAGES][TILE];
  float scores[DIM_WARPS][HEADS][TILE + PAD];
  unsigned weights[HEADS][(TILE + PAD) / 2];     // bf16 pairs
  unsigned short value_scales[WARPS][TILE];      // bf16, by chunk
  int valid[STAGES][TILE];
  float rescale[HEADS];
  float peak[HEADS];
  float sum[HEADS];
  int partial[WARPS];
  int row, begin, ticket;
};
static_assert(sizeof(Shared) <= SHARED_BYTES, "what the launch asks for");

extern __shared__ int4 shared_memory[];

__device__ int lane() { return threadIdx.x & 31; }
__device__ int warp() { return threadIdx.x >> 5; }
__device__ float infinity() { return __int_as_float(0x7f800000); }
__device__ int up(int n, int to) { return (n + to - 1) / to; }

// Where 16 bytes of a key are: rows of 36 units would meet in the same banks.
__device__ int place(int key, int unit) { return key * UNITS + (unit ^ (key >> 1 & 3)); }

// A point in the list of all tiles: rows one after another, the head groups of a row next to each other.
struct Cursor {
  int unit, row, group;  // unit: row * groups + group
  int tile;              // within the row
  int near, keys;        // of the row: in the first cache, in both
  int begin;             // tiles in the list before this row and group

  // A row without keys has one tile too: its outputs have to be written.
  __device__ int tiles() const { return max(1, up(keys, TILE)); }

  __device__ void seek(const Arguments& a, int to) {
    unit = to;
    row = a.groups == 1 ? to : to / a.groups;
    group = to - row * a.groups;
    tile = near = keys = 0;
    if (row >= a.rows) return;
    near = a.near.length(row);
    keys = near + a.far.length(row);
  }

  __device__ void step(const Arguments& a) {
    if (++tile < tiles()) return;
    begin += tiles();
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
  const int group = (first - s.begin) / start.tiles();
  start.seek(a, s.row * a.groups + group);
  start.begin = s.begin + group * start.tiles();
  start.tile = first - start.begin;
  return count;
}

// A key to gather: its index in a cache, or -1.
struct Key {
  int index;
  bool far;
};

__device__ Key key_of_thread(const Arguments& a, const Cursor& at, bool some) {
  const int position = at.tile * TILE + threadIdx.x / LANES_PER_KEY;
  Key key{-1, position >= at.near};
  if (!some || position >= at.keys) return key;
  key.index = key.far ? __ldg(a.far.indices + at.row * a.far.stride_indices + position - at.near)
                      : __ldg(a.near.indices + at.row * a.near.stride_indices + position);
  return key;
}

// Begin to gather this thread's part of a tile. What isn't a key is zeros, so that a weight of 0 is enough.
__device__ void gather(Shared& s, const Arguments& a, int stage, Key from) {
  const int key = threadIdx.x / LANES_PER_KEY, part = threadIdx.x % LANES_PER_KEY;
  const bool some = from.index >= 0;
  const int index = some ? from.index : 0;
  const int bits = from.far ? a.far.page_bits : a.near.page_bits;
  const long long page_bytes = from.far ? a.far.page_bytes : a.near.page_bytes;
  const unsigned char* page = (from.far ? a.far.pages : a.near.pages) + (index >> bits) * page_bytes;
  const int slot = index & ((1 << bits) - 1);
  const unsigned char* bytes = page + slot * KEY_BYTES;
#pragma unroll
  for (int i = 0; i < up(UNITS, LANES_PER_KEY); ++i) {
    const int unit = part + i * LANES_PER_KEY;
    if (unit < UNITS) copy16_async(&s.tile[stage][place(key, unit)], bytes + unit * 16, some);
  }
  if (part == 0) {
    copy8_async(&s.scales[stage][key], page + (KEY_BYTES << bits) + slot * SCALES, some);
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
__device__ float to_f16(Words (&pairs)[2]) {
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
    pair = f16_pair(__int_as_float(int(pair << 16)) * up_by, __int_as_float(int(pair & 0xffff0000u)) * up_by);
  }
  return __int_as_float((254 - exponent) << 23);
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
        const float down_by = rope ? 1.0f : to_f16(pairs);
        q.factor[c][m][half] = down_by * a.scale_log2;
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          q.operand[c][step][m][half] = pairs[step / 2].word[step % 2 * 2];
          q.operand[c][step][m][half + 2] = pairs[step / 2].word[step % 2 * 2 + 1];
        }
      }
    }
  }
}

// This warp's part of the scores: its dims of its keys.
__device__ void add_scores(Shared& s, int stage, const Query& q) {
  const int row = lane() / 4, j = lane() % 4, dims = warp() / KEY_WARPS;
  const Words* tile = s.tile[stage];
#pragma unroll
  for (int n = 0; n < SCORE_TILES; ++n) {
    const int keys = (warp() % KEY_WARPS * SCORE_TILES + n) * 8;
    const int key = keys + row;
    float scores[M_TILES][4] = {};
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
      const int chunk = dims * CHUNKS + c;
      float products[M_TILES][4] = {};
      float scale[2] = {1.0f, 1.0f};
      if (c == CHUNKS - 1 && chunk == ROPE) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const Words pairs = tile[place(key, 4 * ROPE + 4 * half + j)];
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
        const Words bytes = tile[place(key, 4 * chunk + j)];
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          const unsigned low = f16_of_e4m3(bytes.word[step]), high = f16_of_e4m3(bytes.word[step] >> 16);
#pragma unroll
          for (int m = 0; m < M_TILES; ++m) multiply_f16(products[m], q.operand[c][step][m], low, high);
        }
        const unsigned char* exponents = reinterpret_cast<const unsigned char*>(&s.scales[stage][keys + 2 * j]);
        scale[0] = __int_as_float(exponents[chunk] << 23);
        scale[1] = __int_as_float(exponents[chunk + SCALES] << 23);
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
        float* to = &s.scores[dims][16 * m + 8 * half + row][keys + 2 * j];
        *reinterpret_cast<Scores*>(to) = {scores[m][2 * half], scores[m][2 * half + 1]};
      }
    }
  }
}

// The running softmax of one head, kept by all the threads that share it.
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
  for (int i = 0; i < KEYS_PER_LANE; i += 2) {
    Scores sum{};
#pragma unroll
    for (int part = 0; part < DIM_WARPS; ++part) {
      const Scores more = *reinterpret_cast<const Scores*>(&s.scores[part][head][key + i]);
      sum = {sum.first + more.first, sum.second + more.second};
    }
    score[i] = s.valid[stage][key + i] ? sum.first : -infinity();
    score[i + 1] = s.valid[stage][key + i + 1] ? sum.second : -infinity();
    peak = fmaxf(peak, fmaxf(score[i], score[i + 1]));
  }
#pragma unroll
  for (int step = LANES_PER_HEAD / 2; step > 0; step /= 2) peak = fmaxf(peak, __shfl_xor_sync(ALL, peak, step));
  const float base = peak == -infinity() ? 0.0f : peak;
  const float rescale = power_of_2(so_far.peak - base);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < KEYS_PER_LANE; i += 2) {
    const float first = power_of_2(score[i] - base), second = power_of_2(score[i + 1] - base);
    sum += first + second;
    s.weights[head][(key + i) / 2] = bf16_pair(first, second);
  }
#pragma unroll
  for (int step = LANES_PER_HEAD / 2; step > 0; step /= 2) sum += __shfl_xor_sync(ALL, sum, step);
  so_far = {peak, so_far.sum * rescale + sum};
  if (threadIdx.x % LANES_PER_HEAD == 0) {
    s.rescale[head] = rescale;
    s.peak[head] = peak;
    s.sum[head] = so_far.sum;
  }
  // Scales of values, times 2**64: the values are too small by 2**120, since widening an e4m3 to bf16 leaves
  // its exponent as it is. An exponent too large for that gives infinity.
#pragma unroll
  for (int i = threadIdx.x; i < WARPS * TILE; i += THREADS) {
    const int chunk = i / TILE, at = i % TILE;
    const int exponent = int(s.scales[stage][at] >> (8 * chunk)) & 255;
    s.value_scales[chunk][at] = chunk == ROPE ? 0x3f80 : min(exponent + 64, 255) << 7;
  }
}

// Of four e4m3 numbers the first and third, or the second and fourth, as a pair of bf16 that is 2**-120 of it.
__device__ unsigned even_values(unsigned bytes) {
  return (bytes << 8 & 0x80008000u) | (bytes << 4 & 0x07f007f0u);
}
__device__ unsigned odd_values(unsigned bytes) { return (bytes & 0x80008000u) | (bytes >> 4 & 0x07f007f0u); }

// The weighted sums of a warp's 64 dims. Tiles 2u and 2u + 1 are dims 16u to 16u + 15: the even and the odd
// ones of e4m3, the first and the last eight of bf16.
using Values = float[M_TILES][8][4];

__device__ void add_values(const Shared& s, int stage, Values& values) {
  const int row = lane() / 4, j = lane() % 4;
  const int matrix_row = lane() % 16, matrix_unit = lane() / 16;
#pragma unroll
  for (int m = 0; m < M_TILES; ++m) {
    const float rescale[2] = {s.rescale[16 * m + row], s.rescale[16 * m + 8 + row]};
#pragma unroll
    for (int tile = 0; tile < 8; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) values[m][tile][i] *= rescale[i / 2];
    }
  }
#pragma unroll
  for (int keys = 0; keys < TILE; keys += 16) {
    unsigned weights[M_TILES][4];
    const unsigned* scales = reinterpret_cast<const unsigned*>(&s.value_scales[warp()][keys]);
    const unsigned scale[2] = {scales[j], scales[j + 4]};
#pragma unroll
    for (int m = 0; m < M_TILES; ++m) {
      load_matrices(weights[m], &s.weights[16 * m + matrix_row][keys / 2 + 4 * matrix_unit]);
#pragma unroll
      for (int i = 0; i < 4; ++i) weights[m][i] = product_bf16(weights[m][i], scale[i / 2]);
    }
    const int key = keys + matrix_row;
    if (warp() == ROPE) {
#pragma unroll
      for (int tile = 0; tile < 8; tile += 2) {
        unsigned pairs[4];
        load_matrices_transposed(pairs, &s.tile[stage][place(key, 4 * ROPE + tile + matrix_unit)]);
#pragma unroll
        for (int m = 0; m < M_TILES; ++m) {
          multiply_bf16(values[m][tile], weights[m], pairs[0], pairs[1]);
          multiply_bf16(values[m][tile + 1], weights[m], pairs[2], pairs[3]);
        }
      }
    } else {
#pragma unroll
      for (int unit = 0; unit < 4; unit += 2) {
        unsigned bytes[4];
        load_matrices_transposed(bytes, &s.tile[stage][place(key, 4 * warp() + unit + matrix_unit)]);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const unsigned even[2] = {even_values(bytes[2 * i]), even_values(bytes[2 * i + 1])};
          const unsigned odd[2] = {odd_values(bytes[2 * i]), odd_values(bytes[2 * i + 1])};
#pragma unroll
          for (int m = 0; m < M_TILES; ++m) {
            multiply_bf16(values[m][2 * (unit + i)], weights[m], even[0], even[1]);
            multiply_bf16(values[m][2 * (unit + i) + 1], weights[m], odd[0], odd[1]);
          }
        }
      }
    }
  }
}

// Four sums that one thread of a warp has: those of one head in tiles 2u and 2u + 1. A partial result is a
// list of such columns in the order [k][thread], k counting m, u and half.
struct alignas(16) Column {
  float value[4];
};

__device__ Column column_of(const Values& values, int k) {
  const int m = k / 8, u = k / 2 % 4, half = k % 2;
  const float factor = warp() == ROPE ? 1.0f : 0x1p56f;
  return {values[m][2 * u][2 * half] * factor, values[m][2 * u][2 * half + 1] * factor,
          values[m][2 * u + 1][2 * half] * factor, values[m][2 * u + 1][2 * half + 1] * factor};
}
__device__ int head_of(int k, int thread) { return k / 8 * 16 + k % 2 * 8 + thread % 32 / 4; }

// A column, divided by the sum of the weights and the sink's, to the output; of a head's first also the lse.
__device__ void write(const Arguments& a, const Cursor& at, int k, int thread, Column column, Softmax total) {
  const int head = at.group * HEADS + head_of(k, thread);
  if (head >= a.heads) return;
  const int j = thread % 4, chunk = thread / 32, u = k / 2 % 4;
  const long long line = (long long)at.row * a.heads + head;
  float weight = total.sum;
  if (a.sink) weight += power_of_2(__ldg(a.sink + head) * 1.44269504f - total.peak);
  const float factor = total.sum == 0 ? 0.0f : 1.0f / weight;
  float* v = column.value;
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] = total.sum == 0 ? 0.0f : v[i] * factor;
  unsigned* out = reinterpret_cast<unsigned*>(a.out + line * DIMS + chunk * CHUNK + 16 * u);
  if (chunk == ROPE) {
    out[j] = bf16_pair(v[0], v[1]);
    out[j + 4] = bf16_pair(v[2], v[3]);
  } else {
    reinterpret_cast<Pairs*>(out)[j] = {bf16_pair(v[0], v[2]), bf16_pair(v[1], v[3])};
  }
  if (chunk == 0 && u == 0 && j == 0) {
    a.lse[line] = total.sum == 0 ? -infinity() : (total.peak + log_2(total.sum)) * 0.693147181f;
  }
}

// A row and group that several programs had: the first of them and how many.
struct Shares {
  int first, count;

  __device__ Shares(const Cursor& at, int share)
      : first(at.begin / share), count((at.begin + at.tiles() - 1) / share - first + 1) {}

  // A program has at most one that began before its share and one that ends after.
  __device__ float* partial(const Arguments& a, int part) const {
    return a.partials + (2ll * (first + part) + (part == 0)) * PARTIAL;
  }
};

struct Merged {
  Column column;
  Softmax total;
};
static_assert(sizeof(Shared::scores) >= THREADS * sizeof(Merged), "merging uses them");

__device__ void merge(Merged& into, const Column& column, Softmax other) {
  const float peak = fmaxf(into.total.peak, other.peak);
  const float base = peak == -infinity() ? 0.0f : peak;
  const float old = power_of_2(into.total.peak - base), fresh = power_of_2(other.peak - base);
#pragma unroll
  for (int i = 0; i < 4; ++i) into.column.value[i] = into.column.value[i] * old + column.value[i] * fresh;
  into.total = {peak, into.total.sum * old + other.sum * fresh};
}

// One slice of the columns over all parts, which threads share if there are more than columns. Always in the
// same order, whichever program does it.
__device__ void merge_slice(Shared& s, const Arguments& a, const Cursor& at, Shares shares, int slice, int columns) {
  const int together = max(1, THREADS / columns);
  const int member = threadIdx.x / columns;
  Merged* merged = reinterpret_cast<Merged*>(s.scores);
#pragma unroll 1
  for (int i = threadIdx.x % columns; i < columns; i += THREADS) {
    const int column = slice * columns + i;
    const int k = column / THREADS, thread = column % THREADS, head = head_of(k, thread);
    Merged sum{{}, {-infinity(), 0.0f}};
#pragma unroll 1
    for (int part = member; part < shares.count; part += 4 * together) {
      Column values[4];
      Softmax softmax[4];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float* from = shares.partial(a, part + n * together);
        softmax[n] = {-infinity(), 0.0f};
        values[n] = {};
        if (part + n * together < shares.count) {
          softmax[n] = {__ldcg(from + head), __ldcg(from + HEADS + head)};
          const float4 four = __ldcg(reinterpret_cast<const float4*>(from + 2 * HEADS) + column);
          values[n] = {four.x, four.y, four.z, four.w};
        }
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
    if (member == 0) write(a, at, k, thread, sum.column, sum.total);
  }
  __syncthreads();
}

// Leave this program's part. The last to arrive finds all parts there and merges them; of many parts it
// merges slices, and programs that have nothing else to do take slices too. None depends on another.
__device__ void share_result(
    Shared& s, const Arguments& a, const Cursor& at, int share, const Values& values, bool may_wait) {
  const Shares shares(at, share);
  float* partial = shares.partial(a, blockIdx.x - shares.first);
#pragma unroll
  for (int k = 0; k < COLUMNS / THREADS; ++k) {
    reinterpret_cast<Column*>(partial + 2 * HEADS)[k * THREADS + threadIdx.x] = column_of(values, k);
  }
  if (threadIdx.x < HEADS) {
    partial[threadIdx.x] = s.peak[threadIdx.x];
    partial[HEADS + threadIdx.x] = s.sum[threadIdx.x];
  }
  Counters* counters = reinterpret_cast<Counters*>(a.counters) + shares.first;
  int slices = 1;
  while (shares.count > ALONE && slices < min(shares.count, 256)) slices *= 2;
  __syncthreads();
  if (threadIdx.x == 0) {
    bool all = add_and_order(&counters->arrived, 1) == shares.count - 1;
    for (int i = 0; i < POLLS && !all && may_wait && slices > 1; ++i) {
      all = load_and_order(&counters->arrived) == shares.count;
    }
    s.ticket = !all ? slices : slices > 1 ? atomicAdd(&counters->taken, 1) : 0;
  }
  __syncthreads();
  for (int slice = s.ticket; slice < slices;) {
    int next = slices;
    if (threadIdx.x == 0 && slices > 1) next = atomicAdd(&counters->taken, 1);
    merge_slice(s, a, at, shares, slice, COLUMNS / slices);
    if (threadIdx.x == 0) s.ticket = next;
    __syncthreads();
    slice = s.ticket;
    __syncthreads();
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
    keys[i] = key_of_thread(a, ahead, left_ahead-- > 0);
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
      next = key_of_thread(a, ahead, left_ahead-- > 0);
      ahead.step(a);

      add_scores(s, stage, q);
      __syncthreads();
      weigh(s, stage, softmax);
      __syncthreads();
      add_values(s, stage, values);

      stage = stage + 1 == STAGES ? 0 : stage + 1;
      row_ends = work.tile + 1 == work.tiles();
      last = --left == 0;
      if (row_ends || last) break;
      ++work.tile;
    }
    if (row_ends && first_tile == 0) {
#pragma unroll
      for (int k = 0; k < COLUMNS / THREADS; ++k) {
        const int head = head_of(k, threadIdx.x);
        write(a, work, k, threadIdx.x, column_of(values, k), {s.peak[head], s.sum[head]});
      }
    } else {
      share_result(s, a, work, share, values, last);
    }
    work.step(a);
    if (last || work.row >= a.rows) break;
  }
  wait_for_copies<0>();
}
