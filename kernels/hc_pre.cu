// The hyper-connection pre-linear in one launch, for few rows and for many. See hc_pre.py.
//
// N_TILES, SPLIT and MANY are given by the compiler's command line.
//
// Both kernels add up in one order, so that a row has the same bits in either: a leaf is 64 values of K in one
// chain of tensor-core products; a unit is the sum of 8 leaves, a block of the sum of 2 units; then the blocks.
//
// In a product fn is the factor of 16 rows and x that of 8, because of x the registers are then in the order in
// which a load fills them. The low halves of fn are rows of their own below the high halves.

#include "ptx.cuh"

constexpr int WARPS = MANY ? 16 : 8;
constexpr int THREADS = 32 * WARPS;
constexpr int LEAF = 64;
constexpr int LEAVES = 8;
constexpr int UNIT = LEAVES * LEAF;
constexpr int BLOCK = 2 * UNIT;
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

struct Quad {
  float x, y, z, w;
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

// Read once, so it need not stay in the first cache. Stays where it is written, ahead of products that do not
// need it: the compiler would have it wait for them.
__device__ int4 load_ahead(const void* at) {
#ifdef __CUDA_ARCH__
  int4 v;
  asm volatile("ld.volatile.global.v4.s32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(at));
  return v;
#else
  return __ldg(reinterpret_cast<const int4*>(at));
#endif
}

// An address that is not made before it is needed: it would take registers from the products.
template <class T>
__device__ T* not_before(T* address) {
#ifdef __CUDA_ARCH__
  asm volatile("" : "+l"(address));
#endif
  return address;
}

// From shared memory, not ahead of the products before: their registers would not be free.
__device__ int4 load_in_place(const int4& at) {
#ifdef __CUDA_ARCH__
  int4 v;
  asm volatile("ld.volatile.shared.v4.s32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(shared_address(&at)));
  return v;
#else
  return at;
#endif
}

// multiply_bf16, but where it is written, between the loads: the compiler's own order takes more registers than
// there are.
__device__ void multiply_in_place(float (&c)[4], const int4& a, int b0, int b1) {
#ifdef __CUDA_ARCH__
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9},"
      " {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
#else
  const unsigned registers[4] = {unsigned(a.x), unsigned(a.y), unsigned(a.z), unsigned(a.w)};
  multiply_bf16(c, registers, b0, b1);
#endif
}

// The row of eight, of x, that is row `slot` of a product.
__device__ int row_of_slot(int slot) { return (slot >> 1) + 4 * (slot & 1); }

// A leaf of eight rows of x. K is in any order in a product, as long as it is the same in both factors: so a
// lane takes 16 bytes that lie next to each other.
struct Eight {
  int4 halves[2];

  // 128 bytes of each of four rows, and then of the other four: whole lines, of which the memory system keeps
  // only so many on their way. `arrange` must follow.
  __device__ void load(int half, const unsigned short* at) { halves[half] = load_ahead(at); }

  // Lanes of two neighbouring slots have half of two rows each, and now all of one.
  __device__ void arrange() {
    const bool odd = group() & 1;
    const int4 other = exchanged(odd ? halves[0] : halves[1]);
    (odd ? halves[0] : halves[1]) = other;
  }

  __device__ static int4 exchanged(int4 v) {
    return {
        __shfl_xor_sync(ALL, v.x, 4), __shfl_xor_sync(ALL, v.y, 4), __shfl_xor_sync(ALL, v.z, 4),
        __shfl_xor_sync(ALL, v.w, 4)};
  }

  __device__ float squares() const {
    float sum = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int4 v = halves[half];
      const int pairs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sum = __fmaf_rn(low_half(pairs[i]), low_half(pairs[i]), sum);
        sum = __fmaf_rn(high_half(pairs[i]), high_half(pairs[i]), sum);
      }
    }
    return sum;
  }
};

// Where this lane reads a tile of x; the last row in the place of those beyond it.
struct Source {
  const unsigned short* at;
  int last;

  __device__ void find(const Linear& arg, int tile, int k) {
    tile = min(tile, arg.tiles - 1);
    last = arg.rows_of(tile) - 1;
    at = arg.x + tile * (ROWS * arg.stride_x) + k + lane() % 8 * 8;
  }

  __device__ void load(const Linear& arg, Eight (&x)[2], int k) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const long long row = min(4 * i + lane() / 8, last);
      x[i / 2].load(i % 2, at + k + row * int(arg.stride_x));
    }
  }
};

// A leaf of fn: 16 bits of the mantissa of each value, as the sum of two bf16. In the order of the products.
struct Weights {
  int4 factors[PRODUCTS][FACTORS];

  __device__ void load(const Linear& arg, int k) {
    int4 values[2][N_TILES][2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int tile = 0; tile < N_TILES; ++tile) {
        const int n = 8 * tile + group();
        const float* at = arg.fn + (long long)n * arg.width + k + 32 * half + 8 * place();
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          values[half][tile][i] = {0, 0, 0, 0};
          if (n < arg.outputs) values[half][tile][i] = __ldg(reinterpret_cast<const int4*>(at) + i);
        }
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int pairs[2 * FACTORS][4] = {};
#pragma unroll
      for (int tile = 0; tile < N_TILES; ++tile) {
        int low[4];
        const int4 first = values[half][tile][0], second = values[half][tile][1];
        split(first.x, first.y, pairs[tile][0], low[0]);
        split(first.z, first.w, pairs[tile][1], low[1]);
        split(second.x, second.y, pairs[tile][2], low[2]);
        split(second.z, second.w, pairs[tile][3], low[3]);
#if SPLIT
#pragma unroll
        for (int i = 0; i < 4; ++i) pairs[N_TILES + tile][i] = low[i];
#endif
      }
#pragma unroll
      for (int factor = 0; factor < FACTORS; ++factor) {
        const auto &top = pairs[2 * factor], &bottom = pairs[2 * factor + 1];
        factors[2 * half][factor] = {top[0], bottom[0], top[1], bottom[1]};
        factors[2 * half + 1][factor] = {top[2], bottom[2], top[3], bottom[3]};
      }
    }
  }

  __device__ static void split(int x, int y, int& high, int& low) {
    const float a = __int_as_float(x), b = __int_as_float(y);
    high = bf16_pair(a, b);
    low = bf16_pair(a - low_half(high), b - high_half(high));
  }
};

// This lane's part of eight rows: products of slots `2 * place` and the next, squares of slot `group`.
struct Sums {
  float dots[N_TILES][2];
  float squares;

  __device__ void add(const Sums& other) {
#pragma unroll
    for (int tile = 0; tile < N_TILES; ++tile) {
      dots[tile][0] += other.dots[tile][0];
      dots[tile][1] += other.dots[tile][1];
    }
    squares += other.squares;
  }

  __device__ static float& dot_at(float* rows, int tile, int i) {
    return rows[row_of_slot(2 * place() + i) * COLUMNS + 8 * tile + group()];
  }
  __device__ static float& squares_at(float* rows) { return rows[row_of_slot(group()) * COLUMNS + SQUARES + place()]; }

  __device__ void store(float* rows) const {
#pragma unroll
    for (int tile = 0; tile < N_TILES; ++tile) {
      dot_at(rows, tile, 0) = dots[tile][0];
      dot_at(rows, tile, 1) = dots[tile][1];
    }
    squares_at(rows) = squares;
  }

  // What this lane has stored.
  __device__ void read(float* rows) {
#pragma unroll
    for (int tile = 0; tile < N_TILES; ++tile) {
      dots[tile][0] = dot_at(rows, tile, 0);
      dots[tile][1] = dot_at(rows, tile, 1);
    }
    squares = squares_at(rows);
  }
};

// The leaf's products and squares of M times eight rows. `factor` gives those of fn.
template <int M, class Factor>
__device__ void multiply(Eight (&x)[M], Factor factor, Sums (&leaf)[M]) {
#pragma unroll
  for (int m = 0; m < M; ++m) x[m].arrange();
  float sums[FACTORS][M][4] = {};
#pragma unroll
  for (int product = 0; product < PRODUCTS; ++product) {
#pragma unroll
    for (int f = 0; f < FACTORS; ++f) {
      const int4 a = factor(product, f);
#pragma unroll
      for (int m = 0; m < M; ++m) {
        const int4 b = x[m].halves[product / 2];
        multiply_in_place(sums[f][m], a, product % 2 ? b.z : b.x, product % 2 ? b.w : b.y);
      }
    }
  }
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int tile = 0; tile < N_TILES; ++tile) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float sum = sums[tile / 2][m][tile % 2 * 2 + i];
#if SPLIT
        sum += sums[(N_TILES + tile) / 2][m][(N_TILES + tile) % 2 * 2 + i];
#endif
        leaf[m].dots[tile][i] = sum;
      }
    }
    leaf[m].squares = x[m].squares();
  }
}

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
    Weights fn;
    fn.load(arg, k);
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
    for (int w = 0; w < WARPS; ++w) {
      const Pair one = reinterpret_cast<const Pair*>(s.sums[w])[i];
      unit.x += one.x;
      unit.y += one.y;
    }
    reinterpret_cast<Pair*>(arg.partial_of(tile, split))[i] = unit;
  }
  __syncthreads();
  if (threadIdx.x == 0) s.last = count(arg, tile);
  __syncthreads();
  if (s.last) finish<2>(arg, tile, warp() * AT_ONCE, WARPS * AT_ONCE);
}

#else
constexpr int BLOCK_LEAVES = 2 * LEAVES;

__device__ void add(Sums (&sums)[2], const Sums (&more)[2]) {
  sums[0].add(more[0]);
  sums[1].add(more[1]);
}

// A block of K of the tiles of this program: fn stays in shared memory, a warp takes a tile at a time.
extern "C" __global__ void __launch_bounds__(THREADS, 1) hc_pre_many(const __grid_constant__ Linear arg) {
  typedef int4 Factors[PRODUCTS][FACTORS][32];
  Factors* factors = reinterpret_cast<Factors*>(shared_memory);
  const int program = blockIdx.x / arg.splits, split = blockIdx.x - program * arg.splits;
  const int k = split * BLOCK;
  const int first = program * arg.each + warp();
  const int stop = min((program + 1) * arg.each, arg.tiles);
  const int leaves = min(BLOCK_LEAVES, (arg.width - k) / LEAF);
  prefetch(arg, k, BLOCK);
  wait_for_kernel_before();

  // Two leaves are always on their way; after the last of a tile, the first of the next.
  Source source;
  Eight even[2], odd[2];
  source.find(arg, first, k);
  source.load(arg, even, 0);
  source.load(arg, odd, LEAF);
  for (int leaf = warp(); leaf < leaves; leaf += WARPS) {
    Weights fn;
    fn.load(arg, k + leaf * LEAF);
#pragma unroll
    for (int product = 0; product < PRODUCTS; ++product) {
#pragma unroll
      for (int f = 0; f < FACTORS; ++f) factors[leaf][product][f][lane()] = fn.factors[product][f];
    }
  }
  __syncthreads();

#pragma unroll 1
  for (int tile = first; tile < stop; tile += WARPS) {
#pragma unroll 1
    for (int begin = 0; begin < leaves; begin += LEAVES) {
      Sums unit[2] = {};
#pragma unroll 1
      for (int leaf = begin; leaf < min(begin + LEAVES, leaves); leaf += 2) {
        Sums one[2];
        multiply(even, [&](int product, int f) { return load_in_place(factors[leaf][product][f][lane()]); }, one);
        add(unit, one);
        int next = (leaf + 2) * LEAF;
        if (leaf + 2 == leaves) {
          source.find(arg, tile + WARPS, k);
          next = 0;
        }
        source.load(arg, even, next);
        multiply(odd, [&](int product, int f) { return load_in_place(factors[leaf + 1][product][f][lane()]); }, one);
        add(unit, one);
        source.load(arg, odd, next + LEAF);
      }
      float* partial = not_before(arg.partial_of(tile, split));
      if (begin > 0) {
        // The first unit waits in memory: there are no registers for it.
        Sums before[2];
        before[0].read(partial);
        before[1].read(partial + 8 * COLUMNS);
        add(unit, before);
      }
      unit[0].store(partial);
      unit[1].store(partial + 8 * COLUMNS);
    }
    __syncwarp();
    int last = 0;
    if (lane() == 0) last = count(arg, tile);
    if (__shfl_sync(ALL, last, 0)) finish<1>(arg, tile, 0, AT_ONCE);
  }
}
#endif
