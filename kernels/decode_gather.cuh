// The gathering of keys: part of decode.cu.

// A key to gather: its index in a cache, or -1.
struct Key {
  int index;
  bool far;
};

__device__ int gathering_warp() { return warp() - (APART ? WARPS : 0); }

// Which of its warp's keys of a tile is this lane's; some lanes have the same.
__device__ int key_of_lane() { return lane() % KEYS_PER_WARP; }

__device__ Key find_key(const Cursor& at, bool some) {
  const int position = at.info.tile * TILE + gathering_warp() * KEYS_PER_WARP + key_of_lane();
  Key key{-1, position >= at.near};
  if (some && position < at.keys) key.index = __ldg((key.far ? at.far_indices : at.near_indices) + position);
  return key;
}

// Where a key is in its cache.
struct Source {
  const unsigned char *bytes, *scales;

  __device__ Source(const Arguments& a, Key key) {
    const unsigned index = max(key.index, 0);
    const int bits = key.far ? a.far.page_bits : a.near.page_bits;
    const unsigned page_bytes = key.far ? a.far.page_bytes : a.near.page_bytes;
    const unsigned char* pages = key.far ? a.far.pages : a.near.pages;
    const unsigned char* page = pages + (unsigned long long)(index >> bits) * page_bytes;
    const unsigned slot = index & ((1u << bits) - 1);
    bytes = page + slot * KEY_BYTES;
    scales = page + (unsigned(KEY_BYTES) << bits) + slot * SCALES;
  }
};

// What another lane has.
__device__ const unsigned char* of_lane(const unsigned char* mine, int lane) {
  const unsigned long long bits = reinterpret_cast<unsigned long long>(mine);
  const unsigned low = __shfl_sync(ALL, int(bits), lane), high = __shfl_sync(ALL, int(bits >> 32), lane);
  return reinterpret_cast<const unsigned char*>((unsigned long long)high << 32 | low);
}

// Where a key is gathered from is kept in the unit that separates it from the next.
__device__ const unsigned char** pointer_beside(Words* tile, int key) {
  return reinterpret_cast<const unsigned char**>(tile + key * STRIDE + UNITS);
}

// Begin to gather this warp's keys of a tile: of each, its lanes copy 512 bytes next to each other at once, and
// then the rest of all. What isn't a key is zeros, so that a weight of 0 is enough.
__device__ void gather(Shared& s, const Arguments& a, int stage, Info info, Key mine) {
  const int first = warp() * KEYS_PER_WARP, key = first + key_of_lane();
  const bool some = mine.index >= 0;
  const Source from(a, mine);
  const unsigned keys = __ballot_sync(ALL, some);
  if (lane() < KEYS_PER_WARP) {
    *pointer_beside(s.tile[stage], key) = from.bytes;
    copy8_async(s.exponents[stage][key], from.scales, some);
    s.valid[stage][column_of(key)] = some;
  }
  __syncwarp();
  Words* to = &s.tile[stage][first * STRIDE];
#pragma unroll
  for (int n = 0; n < KEYS_PER_WARP; ++n) {
    const unsigned char* bytes = *pointer_beside(s.tile[stage], first + n);
    copy16_async(to + n * STRIDE + lane(), bytes + lane() * 16, keys >> n & 1);
  }
  const int unit = 32 + lane() / KEYS_PER_WARP;
  if (unit < UNITS) copy16_async(to + key_of_lane() * STRIDE + unit, from.bytes + unit * 16, some);
  if (threadIdx.x == 0) s.info[stage] = info;
}

// What arrives for a tile that the copy engine brings: each key's scales, and each warp with the bytes of its keys.
constexpr int ARRIVALS = TILE + GATHERING_WARPS;

// The same by the copy engine: one instruction a key. Those who wait for the stage's arrivals see all of it.
__device__ void gather_in_bulk(Shared& s, const Arguments& a, int stage, Info info, Key mine) {
  const int first = gathering_warp() * KEYS_PER_WARP, key = first + key_of_lane();
  const bool some = mine.index >= 0;
  const Source from(a, mine);
  const unsigned keys = __ballot_sync(ALL, some && lane() < KEYS_PER_WARP);
  Arrivals* arrivals = &s.arrivals[stage];
  if (lane() < KEYS_PER_WARP) {
    copy8_async(s.exponents[stage][key], from.scales, some);
    arrive_after_copies(arrivals);
    s.valid[stage][column_of(key)] = some;
    if (!some) {
      Words* to = &s.tile[stage][key * STRIDE];
#pragma unroll 1
      for (int unit = 0; unit < UNITS; ++unit) to[unit] = {};
      order_bulk_copies();
    }
  }
  if (gathering_warp() == 0 && lane() == 0) s.info[stage] = info;
  __syncwarp();
  const bool copies = elected();
  if (copies) arrive_with_bytes(arrivals, KEY_BYTES * __popc(keys));
  Words* to = &s.tile[stage][first * STRIDE];
#pragma unroll
  for (int n = 0; n < KEYS_PER_WARP; ++n) {
    const unsigned char* bytes = of_lane(from.bytes, n);
    if (copies && (keys >> n & 1)) copy_bulk(to + n * STRIDE, bytes, KEY_BYTES, arrivals);
  }
}

// Begin to gather the next tile of this program's, if it has one more, and find the keys of the one after it.
__device__ void gather_next(Shared& s, const Arguments& a, int stage, Cursor& ahead, Share& share, Key& next) {
  if (share.has(ahead.info)) {
    if (APART) {
      gather_in_bulk(s, a, stage, ahead.info, next);
    } else {
      gather(s, a, stage, ahead.info, next);
    }
  }
  if (!APART) end_copy_group();
  ahead.step(a);
  --share.left;
  next = find_key(ahead, share.has(ahead.info));
}

// Bring q of a row and group to the L2 cache, ahead of those that need it.
__device__ void prefetch_query(const Arguments& a, int unit) {
  const int row = row_of(a, unit), group = unit - row * a.groups;
  for (int i = threadIdx.x - THREADS; i < HEADS * 8; i += 32 * GATHER_WARPS) {
    const int head = group * HEADS + i / 8;
    if (head < a.heads) prefetch(a.q + row * a.stride_q_row + head * a.stride_q_head + i % 8 * 64);
  }
}

// All that warps do which only gather: each tile of this program's as soon as its stage is free.
__device__ void gather_all(Shared& s, const Arguments& a) {
  Cursor ahead = s.start;
  Share share = s.share;
  if (share.left <= 0) return;
  Key next = find_key(ahead, true);
  int stage = 0;
#pragma unroll 1
  for (int turn = 0; share.has(ahead.info); ++turn) {
    if (turn > 0 && ahead.info.tile == 0) prefetch_query(a, ahead.info.unit);
    if (turn >= STAGES) meet_at(stage_free(stage), BLOCK_THREADS);
    gather_next(s, a, stage, ahead, share, next);
    stage = stage + 1 == STAGES ? 0 : stage + 1;
  }
  end_copy_group();
  wait_for_copies<0>();
}
