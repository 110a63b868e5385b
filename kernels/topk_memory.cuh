// What the top-k's functions share: the arguments of the launch and the shared memory of a block.
//
// K, ALIGNED, THREADS, LOG_TILE, LOG_BINS, PROGRAMS_PER_SM and SHARED_BYTES are given by the compiler's
// command line. ALIGNED: rows of scores start at multiples of 16 bytes.
// No header of CUDA's is used, so that the run-time compiler needs none and the CPU tests can stand in for
// the device.

constexpr int TILE = 1 << LOG_TILE;
constexpr int WARPS = THREADS / 32;
constexpr int GROUP = TILE / K;
constexpr int QUADS = TILE / 4 / THREADS;
constexpr int BINS = 1 << LOG_BINS;
constexpr int BINS_PER_THREAD = BINS / THREADS;
constexpr int UNIT = 4 * THREADS;
constexpr int FEW = UNIT;
constexpr int RANKED = 32;
// Keys whose warps' smallest ones are in fewer bins than CROWDED get a histogram of CROWD times that interval.
constexpr int CROWDED = 4;
constexpr int CROWD = 8;
constexpr unsigned ALL = 0xffffffffu;
constexpr int LOWEST = -2147483647 - 1;
constexpr int HIGHEST = 2147483647;

constexpr int PARTS = K / THREADS;
static_assert(PARTS * THREADS == K && PARTS <= 2, "the parts of the threads' quads are K groups of keys");
static_assert(QUADS % 4 == 0 && QUADS <= 8, "the counts of a thread's quads are bytes of a word or two");
static_assert(GROUP >= 4 && 128 % GROUP == 0, "a group is some lanes of a warp");
static_assert(FEW >= K + TILE / WARPS, "the candidates hold the result, and ties of one warp besides");
static_assert(FEW >= 2 * K, "and both keys of each pair of which fewer than K are larger");
static_assert(BINS_PER_THREAD % 4 == 0, "the bins of all threads are next to each other");
static_assert(WARPS <= 32 && RANKED == 32, "one lane for a warp, or for a ranked key");

// The arguments. Strides in elements; `raw` may be null.
struct Rows {
  const float* scores;
  const int* lengths;
  const int* table;
  int* out;
  int* raw;
  int* arrived;
  int* maxima;
  long long stride_scores, stride_length, stride_table, stride_maxima;
  int batch, width, page_bits;
  int quads;  // pages are of four indices or more, and four of each output may be written at once

  __device__ int length(int row) const { return min(__ldg(lengths + row * stride_length), width); }
};

// The bins of one thread, next to each other.
struct alignas(16) Bins {
  unsigned count[BINS_PER_THREAD];
};

struct Candidate {
  int key, position;
};

// A bin of the histogram: its number, the keys in the bins before it, the keys in it.
struct alignas(16) Bin {
  int number, before, count, unused;
};

// A program's part of the long rows, in units: from the first to do to the end, and how many units are before
// row `row0`.
struct alignas(16) Share {
  int work, last, row0, before;
};

// A row that a part of a share is of: its number, the units before it, its length.
struct alignas(16) Piece {
  int row, start, length, unused;
};

// A key that a row holds too often, and how many of its keys are above that.
struct alignas(8) Flood {
  int value, above;
};

// What is selected: the keys above the interval [lo, hi] and the first `need` of the `held` in it.
struct alignas(16) Boundary {
  int lo, hi;
  int need, held;

  __device__ bool found() const { return need == held || lo == hi; }
  __device__ int shift(int log_bins) const { return max(0, 32 - log_bins - __clz(unsigned(hi) - unsigned(lo))); }

  // Go on with a bin of the histogram, whose first one is the highest.
  __device__ void narrow(const Bin& bin, int shift) {
    need -= bin.before;
    held = bin.count;
    hi -= unsigned(bin.number) << shift;
    const unsigned span = (1u << shift) - 1;
    if (unsigned(hi) - unsigned(lo) > span) lo = hi - span;
  }
};

struct Shared {
  Bins histogram[THREADS];  // zero between selections
  int4 no_bin;              // right after the last bin: counts the keys that belong in none
  int4 candidates[FEW / 2];  // of Candidate
  int chosen[K];
  long long ranked[RANKED];
  Bin bin;
  Boundary interval;  // of a row that is sifted
  Share share;
  Piece piece;
  Flood flood;
  int partial[WARPS];
  int low[WARPS];
  int high[WARPS];
  int tied[WARPS];
  int lengths[THREADS];
  int row, length, level, floor, highest;  // of the selection: see `select_row`
  int top;                                 // and above which of its keys there are only outliers
  int next, own, programs;                 // of the program's own rows: the next one's number, the first, the step
  int arrived, listed;
};
static_assert(sizeof(Shared) <= SHARED_BYTES, "what the launch asks for");

extern __shared__ int4 shared_memory[];

__device__ int lane() { return threadIdx.x & 31; }
__device__ int warp() { return threadIdx.x >> 5; }
// The thread's number as if it were not known: what follows from it would be computed before the loop over rows and
// kept in local memory.
__device__ int thread_anew() {
  int thread = threadIdx.x;
#ifdef __CUDA_ARCH__
  asm volatile("" : "+r"(thread));
#endif
  return thread;
}
__device__ int groups_of(int keys) { return (keys + GROUP - 1) / GROUP; }

// The sums of `values` over this lane and those before it; of bytes as well, as long as none overflows.
template <int N>
__device__ void sums_to_lane(const unsigned (&values)[N], unsigned (&sums)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) sums[i] = values[i];
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const unsigned other = __shfl_up_sync(ALL, int(sums[i]), step);
      if (lane() >= step) sums[i] += other;
    }
  }
}

__device__ int sum_to_lane(int value) {
  const unsigned values[1] = {unsigned(value)};
  unsigned sums[1];
  sums_to_lane(values, sums);
  return sums[0];
}

// A barrier of the first N threads.
template <int N>
__device__ void sync_first() {
  if (N == THREADS) {
    __syncthreads();
    return;
  }
#ifdef __CUDA_ARCH__
  asm volatile("bar.sync 1, %0;" ::"n"(N) : "memory");
#else
  sync_first_on_cpu(N);
#endif
}

// The sum over the warps before this one, of what lane 31 of each gives; the first N threads call it.
template <int N = THREADS>
__device__ int sum_of_warps_before(Shared& s, int value) {
  if (lane() == 31) s.partial[warp()] = value;
  sync_first<N>();
  return __reduce_add_sync(ALL, lane() < warp() ? s.partial[lane()] : 0);
}

// The sum over all warps, after ``sum_of_warps_before``. The next sum needs a barrier between.
__device__ int sum_of_warps(const Shared& s) {
  return __reduce_add_sync(ALL, lane() < WARPS ? s.partial[lane()] : 0);
}

// Integers in the order of the floats: both zeros are 0, and no float gives LOWEST.
__device__ int sortable(int bits) { return bits < 0 ? LOWEST - bits : bits; }
__device__ int4 sortable(int4 bits) {
  return {sortable(bits.x), sortable(bits.y), sortable(bits.z), sortable(bits.w)};
}
__device__ float value_of(int key) { return __int_as_float(key < 0 ? LOWEST - key : key); }

__device__ int largest(int4 keys) { return max(max(keys.x, keys.y), max(keys.z, keys.w)); }
