// Exact top-K of the indexer's scores, with the page-table transform, in one launch. See topk.py.
//
// K, THREADS, LOG_TILE, LOG_BINS, PROGRAMS_PER_SM and SHARED_BYTES are given by the compiler's command line.
// No header is used, so that the run-time compiler needs none and the CPU tests can stand in for the device.
// A launch runs most of its code once and one block does the last steps of a row, so that instructions
// count, also the fetching of them: what is used twice is out of line.

constexpr int TILE = 1 << LOG_TILE;
constexpr int WARPS = THREADS / 32;
constexpr int GROUP = TILE / K;
constexpr int QUADS = TILE / 4 / THREADS;
constexpr int BINS_PER_THREAD = (1 << LOG_BINS) / THREADS;
constexpr int FEW = 4 * THREADS < 2048 ? 4 * THREADS : 2048;
constexpr int UNIT = 4 * THREADS;
constexpr int UNITS_AT_ONCE = 8;
constexpr int RANKED = 32;
constexpr unsigned ALL = 0xffffffffu;
constexpr int LOWEST = -2147483647 - 1;
constexpr int HIGHEST = 2147483647;

constexpr int PARTS = K / THREADS;
static_assert(PARTS * THREADS == K && PARTS <= 2, "the parts of the threads' quads are K groups of keys");
static_assert(QUADS * 4 * THREADS == TILE && QUADS <= 8, "a thread's keys of a tile are bits of a word");
static_assert(GROUP >= 4 && UNIT % GROUP == 0 && GROUP <= 128, "a group is some lanes of a warp");
static_assert(FEW >= K, "the candidates hold the result");
static_assert(BINS_PER_THREAD % 4 == 0, "the bins of all threads are next to each other");

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
  int batch, width, page_bits, unused;

  __device__ int length(int row) const { return min(__ldg(lengths + row * stride_length), width); }
};

// The bins of one thread, next to each other.
struct alignas(16) Bins {
  unsigned count[BINS_PER_THREAD];
};

struct Shared {
  int4 tile[TILE / 4];
  Bins histogram[THREADS];  // zero between selections
  int4 candidates[FEW / 4];
  int4 candidate_positions[FEW / 4];
  int chosen[K];
  int partial[WARPS];
  int low[WARPS];
  int high[WARPS];
  int ranked_keys[RANKED];
  int ranked_indices[RANKED];
  int bin, bin_before, bin_count;
  int ranked;
  int row, start, length, arrived;
  Rows rows;  // the arguments, for functions out of line
};
static_assert(sizeof(Shared) <= SHARED_BYTES, "what the launch asks for");

extern __shared__ int4 shared_memory[];

__device__ int lane() { return threadIdx.x & 31; }
__device__ int warp() { return threadIdx.x >> 5; }
__device__ int groups_of(int keys) { return (keys + GROUP - 1) / GROUP; }

// Integers in the order of the floats: both zeros are 0, and no float gives LOWEST.
__device__ int sortable(int bits) { return bits < 0 ? -(bits & HIGHEST) : bits; }
__device__ int4 sortable(int4 bits) {
  return {sortable(bits.x), sortable(bits.y), sortable(bits.z), sortable(bits.w)};
}

__device__ int largest(int4 keys) { return max(max(keys.x, keys.y), max(keys.z, keys.w)); }

// The sum of `value` over the threads before this one, and over all; the next call needs a barrier between.
__device__ int sum_before(Shared& s, int value, int& total) {
  int inclusive = value;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(ALL, inclusive, step);
    if (lane() >= step) inclusive += other;
  }
  if (lane() == 31) s.partial[warp()] = inclusive;
  __syncthreads();
  const int part = lane() < WARPS ? s.partial[lane()] : 0;
  total = __reduce_add_sync(ALL, part);
  return __reduce_add_sync(ALL, lane() < warp() ? part : 0) + inclusive - value;
}

// Four keys of which some may lie beyond the row, or that are not aligned.
__device__ __noinline__ int4 load_piecewise(const int* row, int at, int length, bool scores) {
  int keys[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    keys[i] = LOWEST;
    if (at + i < length) {
      const int bits = __ldcg(row + at + i);
      keys[i] = scores ? sortable(bits) : bits;
    }
  }
  return {keys[0], keys[1], keys[2], keys[3]};
}

// Where the keys of a selection are: a row of `length` scores or maxima, or the groups of it that `chosen`
// lists.
struct Source {
  const int* row;
  int length;
  bool scores, listed;

  __device__ int count() const { return listed ? TILE : length; }

  __device__ int index(const Shared& s, unsigned position) const {
    return listed ? s.chosen[position / GROUP] * GROUP + position % GROUP : position;
  }

  // The keys of the first `used` of N quads of positions, which are THREADS quads apart. Other programs'
  // stores may precede in this launch: not through the cache of this multiprocessor.
  template <int N>
  __device__ void load(const Shared& s, int first, int used, int4 (&keys)[N]) const {
    const bool aligned = reinterpret_cast<unsigned long long>(row) % 16 == 0;
    const unsigned position = 4 * first;
    int at[N];
#pragma unroll
    for (int i = 0; i < N; ++i) at[i] = position + i * UNIT;
    if (listed) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        at[i] = s.chosen[position / GROUP + i * (UNIT / GROUP)] * GROUP + position % GROUP;
      }
    }
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (i >= used) at[i] = length;
      keys[i] = {LOWEST, LOWEST, LOWEST, LOWEST};
      if (aligned && at[i] + 4 <= length) keys[i] = __ldcg(reinterpret_cast<const int4*>(row + at[i]));
    }
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (aligned && at[i] + 4 <= length) {
        if (scores) keys[i] = sortable(keys[i]);
      } else if (at[i] < length) {
        keys[i] = load_piecewise(row, at[i], length, scores);
      }
    }
  }
};

// What is selected: the keys above the interval [lo, hi] and the first `need` of the `held` in it.
struct Boundary {
  int lo, hi;
  int need, held;

  __device__ bool found() const { return need == held || lo == hi; }
  __device__ int from_lo_up() const { return K - need + held; }
  __device__ int shift() const { return max(0, 32 - LOG_BINS - __clz(unsigned(hi) - unsigned(lo))); }
};

__device__ int lowest_of_warps(const Shared& s) {
  return __reduce_min_sync(ALL, lane() < WARPS ? s.low[lane()] : HIGHEST);
}

__device__ int highest_of_warps(const Shared& s) {
  return __reduce_max_sync(ALL, lane() < WARPS ? s.high[lane()] : LOWEST);
}

// The interval from the smallest `low` to the largest `high` of the threads.
__device__ Boundary bracket(Shared& s, int low, int high, int count) {
  low = __reduce_min_sync(ALL, low);
  high = __reduce_max_sync(ALL, high);
  if (lane() == 0) {
    s.low[warp()] = low;
    s.high[warp()] = high;
  }
  __syncthreads();
  return {lowest_of_warps(s), highest_of_warps(s), K, count};
}

// Count a key in its bin, the highest keys in the first, without a branch around it.
__device__ void count_key(Shared& s, int key, const Boundary& boundary, int shift) {
  const unsigned depth = unsigned(boundary.hi) - unsigned(key);
  const unsigned width = unsigned(boundary.hi) - unsigned(boundary.lo);
#ifdef __CUDA_ARCH__
  asm volatile(
      "{ .reg .pred within; setp.le.u32 within, %0, %1; @within red.shared.add.u32 [%2], 1; }" ::"r"(depth),
      "r"(width), "r"(unsigned(__cvta_generic_to_shared(s.histogram)) + (depth >> shift) * 4)
      : "memory");
#else
  if (depth <= width) s.histogram[0].count[depth >> shift] += 1;
#endif
}

__device__ void count_keys(Shared& s, int4 keys, const Boundary& boundary, int shift) {
  count_key(s, keys.x, boundary, shift);
  count_key(s, keys.y, boundary, shift);
  count_key(s, keys.z, boundary, shift);
  count_key(s, keys.w, boundary, shift);
}

// Replace the interval by the bin of its histogram that holds the K-th largest key.
__device__ __noinline__ Boundary narrow(Shared& s, Boundary boundary, int shift) {
  __syncthreads();
  const Bins mine = s.histogram[threadIdx.x];
  s.histogram[threadIdx.x] = {};
  int sum = 0;
#pragma unroll
  for (int i = 0; i < BINS_PER_THREAD; ++i) sum += mine.count[i];
  int total;
  int before = sum_before(s, sum, total);
  if (before < boundary.need && boundary.need <= before + sum) {
#pragma unroll
    for (int i = 0; i < BINS_PER_THREAD; ++i) {
      const int count = mine.count[i];
      if (before < boundary.need && boundary.need <= before + count) {
        s.bin = threadIdx.x * BINS_PER_THREAD + i;
        s.bin_before = before;
        s.bin_count = count;
      }
      before += count;
    }
  }
  if (threadIdx.x == 0) s.ranked = 0;
  __syncthreads();
  boundary.need -= s.bin_before;
  boundary.held = s.bin_count;
  boundary.hi -= unsigned(s.bin) << shift;
  const unsigned span = (1u << shift) - 1;
  if (unsigned(boundary.hi) - unsigned(boundary.lo) > span) boundary.lo = boundary.hi - span;
  return boundary;
}

// A thread's quads of the tile are next to each other in the row, for the order, and spread over the banks.
__device__ int4& tile_quad(Shared& s, int quad) { return s.tile[quad ^ (quad >> 3 & 7)]; }

__device__ unsigned bits_of(int4 keys, int bound) {
  return (keys.x > bound) | (keys.y > bound) << 1 | (keys.z > bound) << 2 | (keys.w > bound) << 3;
}

// Load more keys than a thread keeps, and leave as candidates, in their order, those that may be among the
// K largest: the keys from the boundary up that is returned, or the first of them if those are too many.
// K keys are known not to be below `floor`, if that is not LOWEST; then no key is above the largest of the
// selection before, which was of maxima.
__device__ __noinline__ Boundary sift(Shared& s, Source source, int floor) {
  const int count = source.count();
  int quads = 2;
  while (quads * UNIT < count) quads *= 2;
  const int first = threadIdx.x * quads;
  int4 keys[QUADS];
  source.load(s, threadIdx.x, quads, keys);
  int top[QUADS], best[PARTS];
#pragma unroll
  for (int part = 0; part < PARTS; ++part) best[part] = LOWEST;
#pragma unroll
  for (int i = 0; i < QUADS; ++i) {
    top[i] = largest(keys[i]);
    best[i % PARTS] = max(best[i % PARTS], top[i]);
    if (i < quads) tile_quad(s, i * THREADS + threadIdx.x) = keys[i];
  }
  if (floor == LOWEST) {
    // K groups of quads have a key that is not below the smallest of the groups' largest, so that the K-th
    // largest of the quads' largest keys isn't either. That one is a floor of the keys.
    const int low = max(min(best[0], best[PARTS - 1]), LOWEST + 1);
    const Boundary quad_boundary = bracket(s, low, max(best[0], best[PARTS - 1]), count);
    if (count > 4 * K) {
      const int shift = quad_boundary.shift();
#pragma unroll
      for (int i = 0; i < QUADS; ++i) {
        if (i < quads) count_key(s, top[i], quad_boundary, shift);
      }
      floor = narrow(s, quad_boundary, shift).lo;
    } else {
      floor = LOWEST + 1;
    }
  } else {
    __syncthreads();
  }

  Boundary boundary{floor, highest_of_warps(s), K, count};
  unsigned mask;
  int total, place;
  while (true) {
    // Of too many equal keys, the first ones.
    const bool first_ones = boundary.found();
    const int bound = first_ones ? boundary.lo : boundary.lo - 1;
    mask = 0;
    unsigned equal = 0;
    for (int i = 0; i < quads; ++i) {
      const int4 quad = tile_quad(s, first + i);
      mask |= bits_of(quad, bound) << (4 * i);
      if (first_ones) equal |= (bits_of(quad, bound - 1) ^ bits_of(quad, bound)) << (4 * i);
    }
    place = sum_before(s, __popc(mask) | __popc(equal) << 16, total);
    if (first_ones) {
      const int equal_before = min(place >> 16, boundary.need);
      for (int left = boundary.need - equal_before; left > 0 && equal != 0; --left) {
        mask |= equal & -equal;
        equal &= equal - 1;
      }
      place = (place & 0xffff) + equal_before;
      boundary.held = boundary.need;
      break;
    }
    if (total <= FEW) {
      boundary.held = total - K + boundary.need;
      break;
    }
    do {
      const int shift = boundary.shift();
      for (int i = 0; i < quads; ++i) count_keys(s, tile_quad(s, first + i), boundary, shift);
      boundary = narrow(s, boundary, shift);
    } while (!boundary.found() && boundary.from_lo_up() > FEW);
  }

  for (; mask != 0; mask &= mask - 1) {
    const int bit = __ffs(mask) - 1;
    const int* quad = reinterpret_cast<const int*>(&tile_quad(s, first + bit / 4));
    reinterpret_cast<int*>(s.candidates)[place] = quad[bit % 4];
    reinterpret_cast<int*>(s.candidate_positions)[place] = 4 * first + bit;
    ++place;
  }
  __syncthreads();
  return boundary;
}

__device__ int smallest(int4 keys) {
  const int4 k = keys;
  return min(
      min(k.x == LOWEST ? HIGHEST : k.x, k.y == LOWEST ? HIGHEST : k.y),
      min(k.z == LOWEST ? HIGHEST : k.z, k.w == LOWEST ? HIGHEST : k.w));
}

__device__ int located(int page, int index, int page_bits) {
  return (page << page_bits) | (index & ((1 << page_bits) - 1));
}

// How many keys of the boundary come before this one: larger ones, and equal ones of a lower index. They
// are at most RANKED, and listed in any order.
__device__ __noinline__ int rank(const Shared& s, int key, int index, int held) {
  int better = 0;
#pragma unroll 1
  for (int i = 0; i < held; ++i) {
    const int other = s.ranked_keys[i];
    better += other > key || (other == key && s.ranked_indices[i] < index);
  }
  return better;
}

// Select the K largest keys of a row and write their indices, ascending: of groups to `chosen`, of scores
// to the outputs. K keys are known not to be below `floor`, if that is not LOWEST; returned is such a floor.
__device__ __noinline__ int select(Shared& s, int row, Source source, int floor) {
  Boundary boundary;
  int4 key, position;
  const int first = 4 * threadIdx.x;
  if (source.count() <= UNIT) {
    int4 loaded[1];
    source.load(s, threadIdx.x, 1, loaded);
    key = loaded[0];
    position = {first, first + 1, first + 2, first + 3};
    boundary = bracket(s, smallest(key), largest(key), source.count());
  } else {
    boundary = sift(s, source, floor);
    const int left = boundary.from_lo_up() - first;
    const int mine = min(int(threadIdx.x), FEW / 4 - 1);
    key = s.candidates[mine];
    position = s.candidate_positions[mine];
    if (left < 1) key.x = LOWEST;
    if (left < 2) key.y = LOWEST;
    if (left < 3) key.z = LOWEST;
    if (left < 4) key.w = LOWEST;
  }

  const int keys[4] = {key.x, key.y, key.z, key.w};
  const int positions[4] = {position.x, position.y, position.z, position.w};
  const int* table = s.rows.table + row * s.rows.stride_table;
  const int page_bits = s.rows.page_bits;
  int indices[4], pages[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const bool some = keys[i] != LOWEST;
    indices[i] = some ? source.index(s, positions[i]) : 0;
    pages[i] = 0;
    // Before the counting, which hides the latency.
    if (some && source.scores) pages[i] = __ldg(table + (indices[i] >> page_bits));
  }

  while (!boundary.found() && boundary.held > RANKED) {
    const int shift = boundary.shift();
    count_keys(s, key, boundary, shift);
    boundary = narrow(s, boundary, shift);
  }
  unsigned chosen = 0, equal = 0;
  if (boundary.found()) {
    const bool all = boundary.need == boundary.held;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      chosen |= unsigned(keys[i] > boundary.lo || (keys[i] == boundary.lo && all)) << i;
      equal |= unsigned(keys[i] == boundary.lo && !all) << i;
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (keys[i] < boundary.lo || keys[i] > boundary.hi) continue;
      const int at = atomicAdd(&s.ranked, 1);
      s.ranked_keys[at] = keys[i];
      s.ranked_indices[at] = indices[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      bool mine = keys[i] > boundary.hi;
      if (keys[i] >= boundary.lo && !mine) mine = rank(s, keys[i], indices[i], boundary.held) < boundary.need;
      chosen |= unsigned(mine) << i;
    }
  }

  int total;
  int before = sum_before(s, __popc(chosen) | __popc(equal) << 16, total);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const bool mine = chosen >> i & 1, tie = equal >> i & 1;
    const int place = (before & 0xffff) + min(before >> 16, boundary.need);
    const bool write = mine || (tie && before >> 16 < boundary.need);
    before += int(mine) + (int(tie) << 16);
    if (!write) continue;
    if (source.scores) {
      const long long at = (long long)row * K + place;
      s.rows.out[at] = located(pages[i], indices[i], page_bits);
      if (s.rows.raw) s.rows.raw[at] = indices[i];
    } else {
      s.chosen[place] = indices[i];
    }
  }
  __syncthreads();
  return boundary.lo;
}

// The maxima of groups of maxima, after those of the row.
__device__ __noinline__ void write_outer_maxima(const int* inner, int* outer, int count) {
  for (int group = threadIdx.x; group * GROUP < count; group += THREADS) {
    int best = LOWEST;
#pragma unroll 4
    for (int i = group * GROUP; i < min((group + 1) * GROUP, count); ++i) best = max(best, __ldcg(inner + i));
    outer[group] = best;
  }
  __syncthreads();
}

// A row of more than K keys. One that does not fit a tile is selected by its maxima, which are all written:
// first the groups, then the keys in them; by maxima of maxima before that if those do not fit.
__device__ __noinline__ void select_row(Shared& s, int row, int length) {
  const int* scores = reinterpret_cast<const int*>(s.rows.scores + row * s.rows.stride_scores);
  int floor = LOWEST;
  bool listed = false;
  if (length > TILE) {
    int* maxima = s.rows.maxima + row * s.rows.stride_maxima;
    const int groups = groups_of(length);
    if (groups > TILE) {
      int* outer = maxima + (groups + 3) / 4 * 4;
      write_outer_maxima(maxima, outer, groups);
      floor = select(s, row, {outer, groups_of(groups), false, false}, floor);
      listed = true;
    }
    floor = select(s, row, {maxima, groups, false, listed}, floor);
    listed = true;
  }
  // K maxima are not below the floor, so neither are K keys.
  select(s, row, {scores, length, true, listed}, floor);
}

// A row of at most K keys: all of them in order, then -1.
__device__ void write_all(const Rows& rows, int row, int length) {
#pragma unroll
  for (int index = threadIdx.x; index < K; index += THREADS) {
    const long long at = (long long)row * K + index;
    int location = -1;
    if (index < length) {
      const int page = __ldg(rows.table + row * rows.stride_table + (index >> rows.page_bits));
      location = located(page, index, rows.page_bits);
    }
    rows.out[at] = location;
    if (rows.raw) rows.raw[at] = index < length ? index : -1;
  }
}

// The largest keys of the groups of the first `used` of N units from `base` on.
template <int N>
__device__ void write_maxima_of_units(const Shared& s, const Source& source, int* maxima, int base, int used) {
  constexpr int LANES = GROUP / 4;
  int4 keys[N];
  source.load(s, base / 4 + threadIdx.x, used, keys);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if (i >= used) break;
    int best = largest(keys[i]);
#pragma unroll
    for (int step = 1; step < LANES; step *= 2) best = max(best, __shfl_xor_sync(ALL, best, step));
    const int position = base + i * UNIT + 4 * int(threadIdx.x);
    if (lane() % LANES == 0 && position < source.length) maxima[position / GROUP] = best;
  }
}

__device__ __noinline__ void write_maxima(const Shared& s, Source source, int* maxima, int unit, int stop) {
  if (unit + 1 == stop) {
    write_maxima_of_units<1>(s, source, maxima, unit * UNIT, 1);
    return;
  }
  for (; unit < stop; unit += UNITS_AT_ONCE) {
    write_maxima_of_units<UNITS_AT_ONCE>(s, source, maxima, unit * UNIT, min(stop - unit, UNITS_AT_ONCE));
  }
}

// Count `units` more of the row as done. True for the program that completes it: it sees all maxima.
__device__ bool complete(Shared& s, const Rows& rows, int row, int units, int units_of_row) {
  __syncthreads();
  if (threadIdx.x == 0) {
    int before;
#ifdef __CUDA_ARCH__
    asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(rows.arrived + row), "r"(units)
                 : "memory");
#else
    before = atomicAdd(rows.arrived + row, units);
#endif
    s.arrived = before + units;
    if (s.arrived == units_of_row) rows.arrived[row] = 0;
  }
  __syncthreads();
  return s.arrived == units_of_row;
}

__device__ int units_in(int length) { return length > TILE ? (length + UNIT - 1) / UNIT : 0; }

// This program's share of the long rows, which is a run of units over all of them.
__device__ void do_share(Shared& s, const Rows& rows) {
  int length = int(threadIdx.x) < rows.batch ? rows.length(threadIdx.x) : 0;
  int units = units_in(length);
  int later = 0, total_later = 0, total;
#pragma unroll 1
  for (int row = threadIdx.x + THREADS; row < rows.batch; row += THREADS) later += units_in(rows.length(row));
  int start = sum_before(s, units, total);
  int end = total;
  if (rows.batch > THREADS) {
    __syncthreads();
    sum_before(s, later, total_later);
    total += total_later;
  }
  if (total == 0) return;
  const int share = (total + gridDim.x - 1) / gridDim.x;
  int work = blockIdx.x * share;
  const int last = min(work + share, total);

  for (int row0 = 0; work < last; row0 += THREADS) {
    __syncthreads();
    if (row0 > 0) {
      const int row = row0 + threadIdx.x;
      length = row < rows.batch ? rows.length(row) : 0;
      units = units_in(length);
      int here;
      start = end + sum_before(s, units, here);
      end += here;
    }
    while (work < min(last, end)) {
      if (start <= work && work < start + units) {
        s.row = row0 + threadIdx.x;
        s.start = start;
        s.length = length;
      }
      __syncthreads();
      const int row = s.row, row_start = s.start, row_length = s.length;
      const int row_units = units_in(row_length);
      const int stop = min(last - row_start, row_units);
      const Source source{
          reinterpret_cast<const int*>(rows.scores + row * rows.stride_scores), row_length, true, false};
      write_maxima(s, source, rows.maxima + row * rows.stride_maxima, work - row_start, stop);
      const int done = row_start + stop - work;
      work += done;
      if (complete(s, rows, row, done, row_units)) select_row(s, row, row_length);
    }
  }
}

// Rows that need no other program. From the other end: with few long rows, the last programs have no share.
__device__ void do_own_rows(Shared& s, const Rows& rows, int first, int first_length) {
  for (int row = first; row < rows.batch; row += gridDim.x) {
    const int length = row == first ? first_length : rows.length(row);
    if (length <= K) {
      write_all(rows, row, length);
    } else if (length <= TILE) {
      select_row(s, row, length);
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, PROGRAMS_PER_SM)
    topk_page_indices(const __grid_constant__ Rows rows) {
  Shared& s = *reinterpret_cast<Shared*>(shared_memory);
  s.histogram[threadIdx.x] = {};
  if (threadIdx.x < sizeof(Rows) / 4) {
    reinterpret_cast<int*>(&s.rows)[threadIdx.x] = reinterpret_cast<const int*>(&rows)[threadIdx.x];
  }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  // Launched while the kernel before may still run: nothing of it is read or overwritten before this.
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
  const int own = gridDim.x - 1 - blockIdx.x;
  const int own_length = own < rows.batch ? rows.length(own) : 0;
  do_share(s, rows);
  do_own_rows(s, rows, own, own_length);
}
