// The keys of a selection, and how they become few: those below a floor are dropped, or counted in bins.

// Where the keys of a selection are: a row of `length` scores or maxima, or the groups of it that `chosen`
// lists. `floats`: bits of floats, to be made sortable; not needed where only keys above 0 are looked for.
struct Source {
  const int* row;
  int length;
  bool listed, floats;

  __device__ int count() const { return listed ? TILE : length; }

  __device__ int index(const Shared& s, int position) const {
    return listed ? s.chosen[unsigned(position) / GROUP] * GROUP + unsigned(position) % GROUP : position;
  }

  // Where the quad of a position is, HIGHEST from `end` on.
  __device__ int place(const Shared& s, int position, int end) const {
    return position < end ? index(s, position) : HIGHEST;
  }

  // Quads of keys at `position` and each STEP further, those that start before `end`; others are LOWEST.
  // Other programs' stores may precede in this launch: not through the cache of this multiprocessor.
  template <int N, int STEP>
  __device__ void load(const Shared& s, int position, int end, int4 (&keys)[N]) const {
    // Quads that start before this are whole ones.
    const int whole = ALIGNED ? length & ~3 : 0;
    unsigned loaded = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const int at = place(s, position + i * STEP, end);
      keys[i] = {LOWEST, LOWEST, LOWEST, LOWEST};
      if (at < whole) {
        keys[i] = __ldcg(reinterpret_cast<const int4*>(row + at));
        loaded |= 1u << i;
      } else if (!ALIGNED && at < length) {
        keys[i] = load_piecewise(at);
      }
    }
    if (floats) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        if (loaded >> i & 1) keys[i] = sortable(keys[i]);
      }
    }
    // The last quad of the row, which only the last warp has.
    if (ALIGNED && whole < length && end == count()) {
      const int last = listed ? TILE - GROUP + whole - s.chosen[K - 1] * GROUP : whole;
      const unsigned further = last - position;
      if (last < end && further < N * STEP && further % STEP == 0) {
        const int4 quad = load_piecewise(whole);
#pragma unroll
        for (int i = 0; i < N; ++i) {
          if (further == i * STEP) keys[i] = quad;
        }
      }
    }
  }

  __device__ int4 load_piecewise(int at) const {
    const int* keys = row + at;
    const int left = length - at;
    int4 quad{LOWEST, LOWEST, LOWEST, LOWEST};
    quad.x = __ldcg(keys);
    if (left > 1) quad.y = __ldcg(keys + 1);
    if (left > 2) quad.z = __ldcg(keys + 2);
    if (left > 3) quad.w = __ldcg(keys + 3);
    if (floats) {
      quad.x = sortable(quad.x);
      if (left > 1) quad.y = sortable(quad.y);
      if (left > 2) quad.z = sortable(quad.z);
      if (left > 3) quad.w = sortable(quad.w);
    }
    return quad;
  }
};

// A selection by the first N threads has 4 * N bins.
__device__ constexpr int log_bins(int threads) { return LOG_BINS - (threads == THREADS ? 0 : 1); }

// The interval from the smallest `low` to the largest `high` of the first N threads.
template <int N = THREADS>
__device__ Boundary bracket(Shared& s, int low, int high, int need, int held) {
  low = __reduce_min_sync(ALL, low);
  high = __reduce_max_sync(ALL, high);
  if (lane() == 0) {
    s.low[warp()] = low;
    s.high[warp()] = high;
  }
  sync_first<N>();
  low = __reduce_min_sync(ALL, lane() < N / 32 ? s.low[lane()] : HIGHEST);
  high = __reduce_max_sync(ALL, lane() < N / 32 ? s.high[lane()] : LOWEST);
  return {low, high, need, held};
}

// Count one key in a bin, or in none: without a branch around it.
__device__ void count_in_bin(Shared& s, bool counts, unsigned bin) {
  atomicAdd(&s.histogram[0].count[counts ? bin : BINS], 1u);
}

// Count a key of the interval, the highest keys in the first bin.
__device__ void count_key(Shared& s, int key, const Boundary& boundary, int shift) {
  const unsigned depth = unsigned(boundary.hi) - unsigned(key);
  count_in_bin(s, depth <= unsigned(boundary.hi) - unsigned(boundary.lo), depth >> shift);
}

// The bin of the histogram that holds the `need`-th key. Leaves the histogram zero.
template <int N = THREADS>
__device__ Bin find_bin(Shared& s, int need) {
  sync_first<N>();
  const Bins mine = s.histogram[threadIdx.x];
  s.histogram[threadIdx.x] = {};
  int sum = 0;
#pragma unroll
  for (int i = 0; i < BINS_PER_THREAD; ++i) sum += mine.count[i];
  const int up_to_lane = sum_to_lane(sum);
  int before = sum_of_warps_before<N>(s, up_to_lane) + up_to_lane - sum;
  if (before < need && need <= before + sum) {
    Bin bin{};
#pragma unroll
    for (int i = 0; i < BINS_PER_THREAD; ++i) {
      const int count = mine.count[i];
      if (before < need) bin = {int(threadIdx.x) * BINS_PER_THREAD + i, before, count};
      before += count;
    }
    s.bin = bin;
  }
  sync_first<N>();
  return s.bin;
}

// Of keys that are too many to be candidates, `low` is the smallest. Returned is whether it is there so often that
// those above it are not too many. Then s.flood is set, and `below` for this warp: it takes the keys that equal
// `low` unless the warps before it have enough of them.
__device__ bool find_flood(Shared& s, const int4 (&keys)[QUADS], int run, int low, int& below) {
  int above = 0, equal = 0;
#pragma unroll
  for (int i = 0; i < QUADS; ++i) {
    if (128 * i >= run) break;
    const int4 k = keys[i];
    above += (k.x > low) + (k.y > low) + (k.z > low) + (k.w > low);
    equal += (k.x == low) + (k.y == low) + (k.z == low) + (k.w == low);
  }
  const int of_warp = __reduce_add_sync(ALL, above | equal << 16);
  if (lane() == 0) s.tied[warp()] = of_warp;
  __syncthreads();
  const int of_lane = lane() < WARPS ? s.tied[lane()] : 0;
  above = __reduce_add_sync(ALL, of_lane & 0xffff);
  if (above > FEW) return false;
  const int before = __reduce_add_sync(ALL, lane() < warp() ? of_lane >> 16 : 0);
  below = low - (before < K - above);
  if (threadIdx.x == 0) s.flood = {low, above};
  return true;
}

// The smallest of all threads' keys above `below`.
__device__ int smallest_above(Shared& s, const int4 (&keys)[QUADS], int run, int below) {
  int low = HIGHEST;
#pragma unroll
  for (int i = 0; i < QUADS; ++i) {
    if (128 * i >= run) break;
    low = min(low, keys[i].x > below ? keys[i].x : HIGHEST);
    low = min(low, keys[i].y > below ? keys[i].y : HIGHEST);
    low = min(low, keys[i].z > below ? keys[i].z : HIGHEST);
    low = min(low, keys[i].w > below ? keys[i].w : HIGHEST);
  }
  return bracket(s, low, low, 0, 0).lo;
}

// The upper end for a histogram of an interval that all warps' keys were bracketed to. How far the warps' smallest
// keys are apart tells how close together most keys are: where that is a few bins, outliers would leave them no more.
// Where it is nothing, most keys may be that value or the few next to it.
__device__ int without_outliers(const Shared& s, const Boundary& boundary) {
  const unsigned range = unsigned(boundary.hi) - unsigned(boundary.lo);
  const int highest_low = __reduce_max_sync(ALL, lane() < WARPS ? s.low[lane()] : LOWEST);
  const unsigned lows = unsigned(highest_low) - unsigned(boundary.lo), apart = lows > 0 ? lows : 1;
  return apart < range / (BINS / CROWDED) ? boundary.lo + int(apart * CROWD) : boundary.hi;
}

// Go on below the outliers, of which the thread has `mine`, unless the boundary is among them.
__device__ Boundary below_outliers(Shared& s, const Boundary& boundary, int top, int mine) {
  mine = __reduce_add_sync(ALL, mine);
  if (lane() == 0) s.tied[warp()] = mine;
  __syncthreads();
  const int outliers = __reduce_add_sync(ALL, lane() < WARPS ? s.tied[lane()] : 0);
  if (outliers >= boundary.need) return boundary;
  return {boundary.lo, top, boundary.need - outliers, boundary.held - outliers};
}

// A row of more keys than candidates: leave as candidates, in their order, those that may be among the K
// largest. Returned is the boundary among them.
__device__ Boundary sift(Shared& s, const Source& source) {
  // Each warp takes a run of neighbours.
  const int count = source.count();
  const int run = (count + 4 * WARPS - 1) / (4 * WARPS) * 4;
  const int first = warp() * run + 4 * lane();
  int4 keys[QUADS];
  source.load<QUADS, 128>(s, first, min(warp() * run + run, count), keys);

  Boundary boundary{s.floor, s.highest, K, 0};
  const bool floor_is_known = boundary.lo != LOWEST;
  if (!floor_is_known) {
    // Of K groups of the keys, each has one that is not below the smallest of the groups' largest.
    int best[PARTS];
#pragma unroll
    for (int part = 0; part < PARTS; ++part) best[part] = LOWEST;
#pragma unroll
    for (int i = 0; i < QUADS; ++i) best[i % PARTS] = max(best[i % PARTS], largest(keys[i]));
    const int low = max(min(best[0], best[PARTS - 1]), LOWEST + 1);
    boundary = bracket(s, low, max(best[0], best[PARTS - 1]), K, 0);
    if (threadIdx.x == 0) s.highest = boundary.hi;
    const int top = without_outliers(s, boundary);
    if (top < boundary.hi) {
      int pairs = 0;
#pragma unroll
      for (int i = 0; i < QUADS; ++i) pairs += (max(keys[i].x, keys[i].y) > top) + (max(keys[i].z, keys[i].w) > top);
      boundary = below_outliers(s, boundary, top, pairs);
    }
    if (threadIdx.x == 0) s.top = boundary.hi;
  }

  int below = boundary.lo - 1;  // the candidates of this warp are its keys above this
  bool narrow = !floor_is_known && boundary.lo < boundary.hi, narrowed = false, flooded = false;
  unsigned counts[QUADS / 4], up_to_lane[QUADS / 4];
  int total, before;
  while (true) {
    bool many = false;
    if (narrow) {
      // Of K pairs of neighbours, each has a key that is not below the K-th largest of the pairs' largest.
      const int shift = boundary.shift(LOG_BINS);
#pragma unroll
      for (int i = 0; i < QUADS; ++i) {
        if (128 * i >= run) break;
#ifdef __CUDA_ARCH__
        // Or else the largest of all pairs are kept, in registers that there are not.
        asm volatile("" : "+r"(keys[i].x), "+r"(keys[i].z));
#endif
        count_key(s, max(keys[i].x, keys[i].y), boundary, shift);
        count_key(s, max(keys[i].z, keys[i].w), boundary, shift);
      }
      boundary.narrow(find_bin(s, boundary.need), shift);
      if (threadIdx.x == 0) s.interval = boundary;
      below = boundary.lo - 1;
      narrowed = true;
      // Each pair counted has a key that is not below the floor.
      many = K - boundary.need + boundary.held > FEW;
    }
    if (!many) {
#pragma unroll
      for (int word = 0; word < QUADS / 4; ++word) {
        counts[word] = 0;
        if (512 * word >= run) continue;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int4 quad = keys[4 * word + i];
          const int n = (quad.x > below) + (quad.y > below) + (quad.z > below) + (quad.w > below);
          counts[word] |= unsigned(n) << (8 * i);
        }
      }
      int mine = 0;
      sums_to_lane(counts, up_to_lane);
#pragma unroll
      for (int word = 0; word < QUADS / 4; ++word) mine += __dp4a(up_to_lane[word], 0x01010101u, 0u);
      before = sum_of_warps_before(s, mine);
      total = sum_of_warps(s);
      if (total <= FEW) break;
    } else {
      __syncthreads();
    }
    if (!narrowed) boundary = {s.floor == LOWEST ? s.highest : s.floor, s.highest, K, 0};
    narrow = !narrowed && boundary.lo < boundary.hi;
    if (narrow) continue;
    if (narrowed) boundary = s.interval;
    const int low = boundary.lo < boundary.hi ? smallest_above(s, keys, run, below) : boundary.lo;
    flooded = find_flood(s, keys, run, low, below);
    narrow = !flooded;
  }

  Candidate* candidates = reinterpret_cast<Candidate*>(s.candidates);
#pragma unroll
  for (int word = 0; word < QUADS / 4; ++word) {
    if (512 * word >= run) break;
    const unsigned of_warp = __shfl_sync(ALL, up_to_lane[word], 31);
    const unsigned lanes_before = up_to_lane[word] - counts[word];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int4 quad = keys[4 * word + i];
      const int position = first + 128 * (4 * word + i);
      int place = before + (lanes_before >> (8 * i) & 0xff);
      if (quad.x > below) candidates[place++] = {quad.x, position};
      if (quad.y > below) candidates[place++] = {quad.y, position + 1};
      if (quad.z > below) candidates[place++] = {quad.z, position + 2};
      if (quad.w > below) candidates[place++] = {quad.w, position + 3};
      before += of_warp >> (8 * i) & 0xff;
    }
  }
  __syncthreads();
  if (!flooded) return {below + 1, s.highest, K, total};
  const auto [value, above] = s.flood;
  if (above >= K) return {value + 1, s.highest, K, total};
  return {value, value, K - above, total - above};
}
