// Selection of the K largest keys of a row, or of the maxima of its groups, by one block.
//
// A launch runs most of its code once, and what a row waits for is one block: the instructions on the way
// count, and the barriers. So keys stay in registers, and a step takes the same number of instructions
// whatever the scores are.

// Candidates in order: first by key, then by position.
__device__ long long ordered(int key, int position) {
  return (long long)key << 32 | unsigned(HIGHEST - position);
}

// Of the listed candidates, the one of which `need` are not below it.
__device__ long long last_of_ranked(const Shared& s, int need, int held) {
  const long long mine = s.ranked[thread_anew() & 31];
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

  __device__ void find_indices(const Shared& s, const Rows& rows, int row, const Source& source, bool scores) {
    const int* table = rows.table + row * rows.stride_table;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool some = keys[i] != LOWEST;
      indices[i] = source.index(s, some ? positions[i] : 0);
      pages[i] = 0;
      // Before the counting, which hides the latency.
      if (some && scores) pages[i] = __ldg(table + (indices[i] >> rows.page_bits));
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
  if (threadIdx.x == 0) s.highest = s.top = boundary.hi;
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

// What of the interval of the boundary the first N threads' quads take up.
template <int N>
__device__ Boundary taken_up(Shared& s, const Quad& quad, const Boundary& boundary) {
  int low = HIGHEST, high = LOWEST;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    low = min(low, quad.keys[i] >= boundary.lo ? quad.keys[i] : HIGHEST);
    high = max(high, quad.keys[i] <= boundary.hi ? quad.keys[i] : LOWEST);
  }
  return bracket<N>(s, low, high, boundary.need, boundary.held);
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
    // Few values are found by their ends, and keys close together get more bins.
    if (boundary.held > RANKED && !boundary.found()) boundary = taken_up<N>(s, quad, boundary);
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
    if (boundary.lo <= s.top && s.top < boundary.hi) {
      int mine = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) mine += quad.keys[i] > s.top;
      boundary = below_outliers(s, boundary, s.top, mine);
    }
  }
  // Not known from before: there are no registers to keep it in.
  const bool scores = s.level == 0;
  quad.find_indices(s, rows, s.row, source, scores);
  Inside inside{0, false};
  if (few) boundary = first_boundary<THREADS>(s, quad, source.count(), inside);
  const int floor = choose<THREADS>(s, rows, quad, boundary, inside, scores);
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
  const Source source{scores, length, false, true};
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
  quad.find_indices(s, rows, row, source, true);
  Inside inside{0, false};
  const Boundary boundary = first_boundary<N>(s, quad, length, inside);
  choose<N>(s, rows, quad, boundary, inside, true);
}
