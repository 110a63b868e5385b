// The hyper-connection pre-linear in one launch, for few rows and for many. See hc_pre.py.
//
// N_TILES, SPLIT and MANY are given by the compiler's command line.
//
// Both kernels add up in one order, so that a row has the same bits in either: a leaf is 64 values of K in one
// chain of tensor-core products; a unit is the sum of 4 sums of two leaves, a block the sum of 2 units; then the
// blocks.
//
// In a product fn is the factor of 16 rows and x that of 8, because of x the registers are then in the order in
// which a load fills them. The low halves of fn are rows of their own below the high halves.

#include "ptx.cuh"

constexpr int LEAF = 64;
constexpr int LEAVES = 8;
constexpr int UNIT = LEAVES * LEAF;
constexpr int BLOCK = 2 * UNIT;
constexpr int MULTIPLIERS = 8;
constexpr int WARPS = MANY ? MULTIPLIERS + 1 : MULTIPLIERS;
constexpr int THREADS = 32 * WARPS;
constexpr int ROWS = 16;
constexpr int SQUARES = 8 * N_TILES;  // column of the four partial sums of squares
constexpr int COLUMNS = SQUARES + 4;
constexpr int QUADS = COLUMNS / 4;
constexpr int AT_ONCE = 32 / QUADS;  // rows that a warp finishes together
constexpr int EIGHTS = SPLIT ? 2 * N_TILES : N_TILES;
constexpr int FACTORS = (EIGHTS + 1) / 2;
constexpr int PRODUCTS = LEAF / 16;
constexpr unsigned ALL = 0xffffffffu;

struct alignas(8) Pair {
  float x, y;
};

struct alignas(16) Quad {
  float x, y, z, w;

  __device__ void add(const Quad& other) {
    x += other.x;
    y += other.y;
    z += other.z;
    w += other.w;
  }
};

// The arguments. `stride_x` in elements. K has `splits`; for many rows, a program of one takes `each` tiles.
struct Linear {
  const unsigned short* x;
  const float* fn;
  float* out;
  float* partial;
  int* arrived;
  long long stride_x;
  int rows, outputs, width, splits, tiles, each;
  float eps, inverse_width;

  __device__ int rows_of(int tile) const { return min(ROWS, rows - tile * ROWS); }
  __device__ float* partial_of(int tile, int split) const {
    return partial + ((long long)tile * splits + split) * (ROWS * COLUMNS);
  }
};

extern __shared__ int4 shared_memory[];

__device__ int lane() { return threadIdx.x & 31; }
__device__ int warp() { return threadIdx.x >> 5; }
// Of both factors a lane holds row `group` of each eight, and 8 values of K from `8 * place` on of each 32.
__device__ int group() { return threadIdx.x >> 2 & 7; }
__device__ int place() { return threadIdx.x & 3; }

__device__ float low_half(int pair) { return __int_as_float(int(unsigned(pair) << 16)); }
__device__ float high_half(int pair) { return __int_as_float(int(unsigned(pair) & 0xffff0000u)); }

#include "hc_pre_products.cuh"

// Count one more split of the rows of `counter` as done. True for the last; the counter is zero again then.
__device__ bool count(const Linear& arg, int counter) {
  const int before = add_and_order(arg.arrived + counter, 1);
  const bool last = before + 1 == arg.splits;
  if (last) arg.arrived[counter] = 0;
  return last;
}

// Add up the splits of K in their order, for rows of a tile, and write them: this warp takes AT_ONCE rows from
// `first` on, then those `step` further on. PER_BLOCK splits are one block of the sum.
template <int PER_BLOCK>
__device__ void finish(const Linear& arg, int tile, int first, int step) {
  constexpr int BATCH = 16;
  const int rows = arg.rows_of(tile);
  const int quad = lane() % QUADS, row_of_warp = lane() / QUADS;
  for (; first < rows; first += step) {
    const int row = first + row_of_warp;
    const bool mine = row_of_warp < AT_ONCE && row < rows;
    const int4* at = reinterpret_cast<const int4*>(arg.partial_of(tile, 0)) + min(row, rows - 1) * QUADS + quad;
    Quad sum = {0, 0, 0, 0};
#pragma unroll 1
    for (int split = 0; split < arg.splits; split += BATCH) {
      int4 part[BATCH];
#pragma unroll
      for (int i = 0; i < BATCH; ++i) part[i] = __ldcg(at + min(split + i, arg.splits - 1) * (ROWS * QUADS));
#pragma unroll
      for (int i = 0; i < BATCH; i += PER_BLOCK) {
        Quad block = {0, 0, 0, 0};
#pragma unroll
        for (int j = i; j < i + PER_BLOCK; ++j) {
          const bool some = split + j < arg.splits;
          block.x += some ? __int_as_float(part[j].x) : 0;
          block.y += some ? __int_as_float(part[j].y) : 0;
          block.z += some ? __int_as_float(part[j].z) : 0;
          block.w += some ? __int_as_float(part[j].w) : 0;
        }
        sum.x += block.x;
        sum.y += block.y;
        sum.z += block.z;
        sum.w += block.w;
      }
    }
    const float squares = __int_as_float(__shfl_sync(
        ALL, __float_as_int((sum.x + sum.y) + (sum.z + sum.w)), (row_of_warp * QUADS + QUADS - 1) & 31));
    const float scale = rsqrtf(__fmaf_rn(squares, arg.inverse_width, arg.eps));
    const float values[4] = {sum.x, sum.y, sum.z, sum.w};
    float* out = arg.out + (long long)(tile * ROWS + row) * arg.outputs + 4 * quad;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (mine && 4 * quad + i < arg.outputs) out[i] = values[i] * scale;
    }
  }
}

// Bring the lines of fn that this program reads to the L2 while the kernel before may still run. They stay
// coherent there, also when that kernel writes fn.
__device__ void prefetch(const Linear& arg, int k, int length) {
#ifdef __CUDA_ARCH__
  for (int n = warp(); n < arg.outputs; n += WARPS) {
    const int at = k + 32 * lane();
    if (32 * lane() < length && at < arg.width) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"(arg.fn + (long long)n * arg.width + at));
    }
  }
#endif
}

#if !MANY
static_assert(WARPS == LEAVES, "a warp takes a leaf and a program a unit");

struct FewShared {
  float sums[WARPS][ROWS * COLUMNS];
  int last;
};

// A unit of K of one tile: a leaf to a warp.
extern "C" __global__ void __launch_bounds__(THREADS, 2) hc_pre_few(const __grid_constant__ Linear arg) {
  FewShared& s = *reinterpret_cast<FewShared*>(shared_memory);
  const int tile = blockIdx.x / arg.splits, split = blockIdx.x - tile * arg.splits;
  prefetch(arg, split * UNIT, UNIT);
  wait_for_kernel_before();
  const int k = split * UNIT + warp() * LEAF;
  Sums sums[2] = {};
  if (k < arg.width) {
    Source source;
    source.find(arg, tile, k);
    Eight x[2];
    source.load(arg, x, 0);
    RawWeights raw;
    raw.load(arg, k, true);
    Weights fn;
    fn.take(raw);
    x[0].arrange();
    x[1].arrange();
    multiply(x, [&](int product, int factor) { return fn.factors[product][factor]; }, sums);
  }
  sums[0].store(s.sums[warp()]);
  sums[1].store(s.sums[warp()] + 8 * COLUMNS);
  __syncthreads();

  const int pairs = arg.rows_of(tile) * COLUMNS / 2;
#pragma unroll 1
  for (int i = threadIdx.x; i < pairs; i += THREADS) {
    Pair unit = {0, 0};
#pragma unroll
    for (int w = 0; w < WARPS; w += 2) {
      const Pair one = reinterpret_cast<const Pair*>(s.sums[w])[i];
      const Pair two = reinterpret_cast<const Pair*>(s.sums[w + 1])[i];
      unit.x += one.x + two.x;
      unit.y += one.y + two.y;
    }
    reinterpret_cast<Pair*>(arg.partial_of(tile, split))[i] = unit;
  }
  __syncthreads();
  if (threadIdx.x == 0) s.last = count(arg, tile);
  __syncthreads();
  if (s.last) finish<2>(arg, tile, warp() * AT_ONCE, WARPS * AT_ONCE);
}

#else
#include "hc_pre_many.cuh"
#endif
