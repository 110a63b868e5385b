// What a lane has of the factors and of their products: part of hc_pre.cu.

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
__device__ int row_of_slot(int slot) { return MANY ? slot : (slot >> 1) + 4 * (slot & 1); }

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

// A leaf of fn as it is in memory; zeros in the place of outputs that there are not, and without `some`.
struct RawWeights {
  int4 values[2][N_TILES][2];

  __device__ void load(const Linear& arg, int k, bool some) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int tile = 0; tile < N_TILES; ++tile) {
        const int n = 8 * tile + group();
        const float* at = arg.fn + (long long)n * arg.width + k + 32 * half + 8 * place();
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          values[half][tile][i] = {0, 0, 0, 0};
          if (some && n < arg.outputs) values[half][tile][i] = __ldg(reinterpret_cast<const int4*>(at) + i);
        }
      }
    }
  }
};

// A leaf of fn: 16 bits of the mantissa of each value, as the sum of two bf16. In the order of the products.
struct Weights {
  int4 factors[PRODUCTS][FACTORS];

  __device__ void take(const RawWeights& raw) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int pairs[2 * FACTORS][4] = {};
#pragma unroll
      for (int tile = 0; tile < N_TILES; ++tile) {
        int low[4];
        const int4 first = raw.values[half][tile][0], second = raw.values[half][tile][1];
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
};

// The leaf's products and squares of M times eight rows. `factor` gives those of fn.
template <int M, class Factor>
__device__ void multiply(const Eight (&x)[M], Factor factor, Sums (&leaf)[M]) {
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
