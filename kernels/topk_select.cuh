// Selection of the K largest keys of a row, or of the maxima of its groups, by one block.
//
// A launch runs most of its code once, and what a row waits for is one block: the instructions on the way
// count, and the barriers. So keys stay in registers, and a step takes the same number of instructions
// whatever the scores are.

// Where the keys of a selection are: a row of `length` scores or maxima, or the groups of it that `chosen`
// lists. `floats`: bits of floats, to be made sortable; not needed where only keys above 0 are looked for.
struct Source {
  const int* row;
  int length;
  bool scores, listed, floats;

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

// Candidates in order: first by key, then by position.
__device__ long long ordered(int key, int position) {
  return (long long)key << 32 | unsigned(HIGHEST - position);
}

// Of the listed candidates, the one of which `need` are not below it.
__device__ long long last_of_ranked(const Shared& s, int need, int held) {
  const long long mine = s.ranked[lane()];
  int better = 0;
#pragma unroll 1
  for (int i = 0; i < held; i += 4) {
#pragma unroll
    for (int j = 0; j < 4; ++j) better += i + j < held && s.ranked[i + j] > mine;
  }
  const int last = __ffs(__ballot_sync(ALL, lane() < held && better == need - 1)) - 1;
  const unsigned low = __shfl_sync(ALL, int(mine), last);
  return (long long)__shfl_sync(ALL, int(mine >> 32), last) << 32 | low;
}

__device__ int smallest(int4 keys) {
  const int4 k = keys;
  return min(
      min(k.x == LOWEST ? HIGHEST : k.x, k.y == LOWEST ? HIGHEST : k.y),
      min(k.z == LOWEST ? HIGHEST : k.z, k.w == LOWEST ? HIGHEST : k.w));
}

// Bins of equal width in the values of an interval. Few keys spread over many octaves leave most bins of their
// integers empty and some full; these are even. Not good for an infinite or huge interval, nor for NaN.
template <int COUNT>
struct ValueBins {
  float top, scale;

  __device__ explicit ValueBins(const Boundary& boundary)
      : top(value_of(boundary.hi)), scale(__fdividef(COUNT, top - value_of(boundary.lo))) {}

  __device__ bool good() const { return scale > 0 && scale < 1e30f; }
  __device__ int bin(int key) const { return min(int((top - value_of(key)) * scale), COUNT - 1); }
};

__device__ int located(int page, int index, int page_bits) {
  return (page << page_bits) | (index & ((1 << page_bits) - 1));
}

// Four keys of a selection in their order, LOWEST where there is none: their positions, and what they are
// positions of.
struct Quad {
  int keys[4], positions[4], indices[4], pages[4];

  __device__ void find_indices(const Shared& s, const Rows& rows, int row, const Source& source) {
    const int* table = rows.table + row * rows.stride_table;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool some = keys[i] != LOWEST;
      indices[i] = source.index(s, some ? positions[i] : 0);
      pages[i] = 0;
      // Before the counting, which hides the latency.
      if (some && source.scores) pages[i] = __ldg(table + (indices[i] >> rows.page_bits));
    }
  }
};

// What of a quad is in the interval of the boundary, one bit each. `known`: where the boundary is no interval.
struct Inside {
  unsigned bits;
  bool known;
};

// The boundary among all `count` keys, from the first N threads' quads.
template <int N>
__device__ Boundary first_boundary(Shared& s, const Quad& quad, int count, Inside& inside) {
  const int4 keys{quad.keys[0], quad.keys[1], quad.keys[2], quad.keys[3]};
  Boundary boundary = bracket<N>(s, smallest(keys), largest(keys), K, count);
  if (threadIdx.x == 0) s.highest = boundary.hi;
  const ValueBins<4 * N> bins(boundary);
  if (boundary.found() || !bins.good()) return boundary;
#pragma unroll
  for (int i = 0; i < 4; ++i) count_in_bin(s, quad.keys[i] != LOWEST, bins.bin(quad.keys[i]));
  const Bin bin = find_bin<N>(s, K);
  int low = HIGHEST, high = LOWEST;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (quad.keys[i] == LOWEST || bins.bin(quad.keys[i]) != bin.number) continue;
    inside.bits |= 1u << i;
    low = min(low, quad.keys[i]);
    high = max(high, quad.keys[i]);
  }
  boundary.need -= bin.before;
  boundary.held = bin.count;
  inside.known = bin.count <= RANKED;
  if (!inside.known) boundary = bracket<N>(s, low, high, boundary.need, bin.count);
  return boundary;
}

// Narrow the boundary, choose the K largest of the first N threads' quads and write their indices, ascending: of
// groups to `chosen`, of scores to the outputs of row s.row. Returned is a floor: K keys are not below it.
template <int N>
__device__ int choose(
    Shared& s, const Rows& rows, const Quad& quad, Boundary boundary, Inside inside, bool scores) {
  while (!boundary.found() && boundary.held > RANKED) {
    const int shift = boundary.shift(log_bins(N));
#pragma unroll
    for (int i = 0; i < 4; ++i) count_key(s, quad.keys[i], boundary, shift);
    boundary.narrow(find_bin<N>(s, boundary.need), shift);
  }

  unsigned chosen = 0, equal = 0;
  int floor = boundary.lo;
  if (boundary.found() && !inside.known) {
    const bool all = boundary.need == boundary.held;
    const int below = boundary.lo - all;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      chosen |= unsigned(quad.keys[i] > below) << i;
      equal |= unsigned(quad.keys[i] == boundary.lo && !all) << i;
    }
  } else {
    if (!inside.known) {
      inside.bits = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        inside.bits |= unsigned(boundary.lo <= quad.keys[i] && quad.keys[i] <= boundary.hi) << i;
      }
    }
    if (inside.bits != 0) {
      long long* next = s.ranked + atomicAdd(&s.listed, __popc(inside.bits));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (inside.bits >> i & 1) *next++ = ordered(quad.keys[i], quad.positions[i]);
      }
    }
    sync_first<N>();
    const long long last = last_of_ranked(s, boundary.need, boundary.held);
    floor = int(last >> 32);
#pragma unroll
    for (int i = 0; i < 4; ++i) chosen |= unsigned(ordered(quad.keys[i], quad.positions[i]) >= last) << i;
  }

  const int mine = __popc(chosen) | __popc(equal) << 16;
  const int up_to_lane = sum_to_lane(mine);
  int before = sum_of_warps_before<N>(s, up_to_lane) + up_to_lane - mine;
  const long long start = (long long)s.row * K;
  int* const out = scores ? rows.out + start : s.chosen;
  int* const raw = scores && rows.raw ? rows.raw + start : nullptr;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int ties = before >> 16;
    const int place = (before & 0xffff) + min(ties, boundary.need);
    const bool tie = equal >> i & 1;
    const bool write = (chosen >> i & 1) || (tie && ties < boundary.need);
    before += int(chosen >> i & 1) + (int(tie) << 16);
    if (write) out[place] = scores ? located(quad.pages[i], quad.indices[i], rows.page_bits) : quad.indices[i];
    if (write && raw) raw[place] = quad.indices[i];
  }
  return floor;
}

// Select the K largest keys of row s.row and write their indices, ascending: of groups to `chosen`, of scores
// to the outputs. K keys are known not to be below s.floor, and none to be above s.highest, if that is not
// LOWEST. What is known afterwards holds for the keys of the groups too.
__device__ void select(Shared& s, const Rows& rows, const Source& source) {
  Boundary boundary;
  Quad quad;
  const bool few = source.count() <= UNIT;
  if (threadIdx.x == 0) s.listed = 0;
  if (few) {
    int4 keys[1];
    source.load<1, UNIT>(s, 4 * threadIdx.x, source.count(), keys);
    quad.keys[0] = keys[0].x, quad.keys[1] = keys[0].y, quad.keys[2] = keys[0].z, quad.keys[3] = keys[0].w;
#pragma unroll
    for (int i = 0; i < 4; ++i) quad.positions[i] = 4 * threadIdx.x + i;
  } else {
    boundary = sift(s, source);
    const int left = boundary.held + K - boundary.need - 4 * int(threadIdx.x);
    const int4 a = s.candidates[2 * threadIdx.x], b = s.candidates[2 * threadIdx.x + 1];
    quad.keys[0] = a.x, quad.keys[1] = a.z, quad.keys[2] = b.x, quad.keys[3] = b.z;
    quad.positions[0] = a.y, quad.positions[1] = a.w, quad.positions[2] = b.y, quad.positions[3] = b.w;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (left <= i) quad.keys[i] = LOWEST;
    }
  }
  quad.find_indices(s, rows, s.row, source);
  Inside inside{0, false};
  if (few) boundary = first_boundary<THREADS>(s, quad, source.count(), inside);
  const int floor = choose<THREADS>(s, rows, quad, boundary, inside, source.scores);
  if (threadIdx.x == 0) {
    s.floor = floor;
    --s.level;
  }
  __syncthreads();
}

// Select from a row of more than K and at most 4 * N scores, by the first N threads: what a warp takes to issue
// an instruction for all others is less, the fewer there are.
template <int N>
__device__ void select_few(Shared& s, const Rows& rows, int row, int length) {
  const int* scores = reinterpret_cast<const int*>(rows.scores + row * rows.stride_scores);
  const Source source{scores, length, true, false, true};
  Quad quad;
  int4 keys[1];
  if (threadIdx.x == 0) {
    s.row = row;
    s.listed = 0;
  }
  source.load<1, 4 * N>(s, 4 * threadIdx.x, length, keys);
  quad.keys[0] = keys[0].x, quad.keys[1] = keys[0].y, quad.keys[2] = keys[0].z, quad.keys[3] = keys[0].w;
#pragma unroll
  for (int i = 0; i < 4; ++i) quad.positions[i] = 4 * threadIdx.x + i;
  quad.find_indices(s, rows, row, source);
  Inside inside{0, false};
  const Boundary boundary = first_boundary<N>(s, quad, length, inside);
  choose<N>(s, rows, quad, boundary, inside, true);
}
