// The pre-linear for many rows: part of hc_pre.cu.
//
// A program takes a block of K of its tiles. fn stays in registers, two leaves to a warp. x passes by in shared
// memory: each warp copies there its own part of the next STAGES tiles, whatever else it does meanwhile. One more
// warp counts the tiles that are done, so that none of the others waits for that.

constexpr int HELD = 2;  // leaves of a warp
constexpr int STAGES = 2;
constexpr int MOST_TILES = 1024;  // of a program
constexpr int EIGHTS_OF_ROWS = ROWS / 8;
constexpr int CHUNKS = HELD * LEAF / 8;  // 16 bytes each, of a row of a warp's part
constexpr int PARTS = LEAVES / HELD;     // of a unit, a warp to each
constexpr int TEAM = (ROWS + AT_ONCE - 1) / AT_ONCE;  // warps that finish a tile together

struct ManyShared {
  int4 x[MULTIPLIERS][STAGES][ROWS][CHUNKS];
  Quad sums[2][MULTIPLIERS][ROWS * QUADS];
  int stored;  // tiles of which this program's sums are in memory
  unsigned char last[MOST_TILES];  // whether this program was the last of a tile
};

// The tiles of a program in its order. The programs of the same tiles begin with different ones: so the last
// ones of their tiles, which have to finish them, are not all the same program.
struct Order {
  int first, number, turn;

  __device__ int tile(int i) const {
    i += turn;
    return first + (i < number ? i : i - number);
  }
};

// Neighbouring rows start in different banks.
__device__ int placed(int row, int chunk) { return chunk ^ 4 * (row & 1); }

// This warp's part of a tile; the last row in the place of those beyond it, zeros in the place of K beyond it.
__device__ void copy_part(const Linear& arg, int tile, int k, int4 (&to)[ROWS][CHUNKS]) {
  constexpr int ROWS_AT_ONCE = 32 / CHUNKS;
  const int chunk = lane() % CHUNKS, last = arg.rows_of(tile) - 1;
  const char* from = reinterpret_cast<const char*>(arg.x + tile * (ROWS * arg.stride_x) + k + 8 * chunk);
#pragma unroll
  for (int i = 0; i < ROWS; i += ROWS_AT_ONCE) {
    const int row = i + lane() / CHUNKS;
    const unsigned long long offset = (unsigned long long)(unsigned(min(row, last))) * (2 * unsigned(arg.stride_x));
    copy16_async(&to[row][placed(row, chunk)], from + offset, k < arg.width);
  }
}

// The sums of a block from those of its warps, for all programs to see.
__device__ void store_block(const Quad (&sums)[MULTIPLIERS][ROWS * QUADS], float* partial) {
  for (int i = threadIdx.x; i < ROWS * QUADS; i += 32 * MULTIPLIERS) {
    Quad block = {0, 0, 0, 0};
#pragma unroll
    for (int first = 0; first < MULTIPLIERS; first += PARTS) {
      Quad unit = {0, 0, 0, 0};
#pragma unroll
      for (int part = first; part < first + PARTS; ++part) unit.add(sums[part][i]);
      block.add(unit);
    }
    reinterpret_cast<Quad*>(partial)[i] = block;
  }
}

__device__ void multiply_tiles(const Linear& arg, ManyShared& s, const Order& order, int split) {
  const int k = split * BLOCK + warp() * HELD * LEAF;
  auto& slots = s.x[warp()];
  RawWeights raw[HELD];
#pragma unroll
  for (int h = 0; h < HELD; ++h) raw[h].load(arg, k + h * LEAF, k < arg.width);
  // No warp asks for x before all have asked for fn: 5 to 8 % faster on an H200, at any number of rows.
  meet<1>(32 * MULTIPLIERS);
#pragma unroll
  for (int stage = 0; stage < STAGES; ++stage) {
    if (stage < order.number) copy_part(arg, order.tile(stage), k, slots[stage]);
    end_copy_group();
  }
  Weights fn[HELD];
#pragma unroll
  for (int h = 0; h < HELD; ++h) fn[h].take(raw[h]);

  int stage = 0;
#pragma unroll 1
  for (int i = 0; i < order.number; ++i) {
    auto& slot = slots[stage];
    stage = stage + 1 < STAGES ? stage + 1 : 0;
    wait_for_copies<STAGES - 1>();
    __syncwarp();
    Eight x[HELD][EIGHTS_OF_ROWS];
#pragma unroll
    for (int h = 0; h < HELD; ++h) {
#pragma unroll
      for (int m = 0; m < EIGHTS_OF_ROWS; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          x[h][m].halves[half] = slot[8 * m + group()][placed(group(), 8 * h + 4 * half + place())];
        }
      }
    }
    __syncwarp();
    if (i + STAGES < order.number) copy_part(arg, order.tile(i + STAGES), k, slot);
    end_copy_group();

    Sums sums[EIGHTS_OF_ROWS];
    multiply(x[0], [&](int product, int factor) { return fn[0].factors[product][factor]; }, sums);
    Sums more[EIGHTS_OF_ROWS];
    multiply(x[1], [&](int product, int factor) { return fn[1].factors[product][factor]; }, more);
#pragma unroll
    for (int m = 0; m < EIGHTS_OF_ROWS; ++m) sums[m].add(more[m]);
    // Two take turns: the sums of the tile before are still read.
    auto& block = s.sums[i % 2];
    float* mine = reinterpret_cast<float*>(block[warp()]);
#pragma unroll
    for (int m = 0; m < EIGHTS_OF_ROWS; ++m) sums[m].store(mine + 8 * m * COLUMNS);
    meet<1>(32 * MULTIPLIERS);
    // By a warp that has no part of the block's sums to store.
    if (threadIdx.x == 32 * (MULTIPLIERS - 1)) publish(&s.stored, i);
    store_block(block, arg.partial_of(order.tile(i), split));
  }
  meet<1>(32 * MULTIPLIERS);
  if (threadIdx.x == 32 * (MULTIPLIERS - 1)) publish(&s.stored, order.number);
}

// A lane counts a tile.
__device__ void count_tiles(const Linear& arg, ManyShared& s, const Order& order) {
  int counted = 0;
  while (counted < order.number) {
    int stored = 0;
    if (lane() == 0) stored = wait_for_more(&s.stored, counted);
    stored = __shfl_sync(ALL, stored, 0);
    // A shuffle orders no memory: what lane 0 acquired is ordered for the others here.
    __syncwarp();
    const int i = counted + lane();
    if (i < stored) s.last[i] = count(arg, order.tile(i));
    counted = min(stored, counted + 32);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) hc_pre_many(const __grid_constant__ Linear arg) {
  ManyShared& s = *reinterpret_cast<ManyShared*>(shared_memory);
  const int program = blockIdx.x / arg.splits, split = blockIdx.x - program * arg.splits;
  Order order;
  order.first = program * arg.each;
  order.number = min(arg.each, arg.tiles - order.first);
  order.turn = order.number * split / arg.splits;
  prefetch(arg, split * BLOCK, BLOCK);
  wait_for_kernel_before();
  if (threadIdx.x == 0) s.stored = 0;
  __syncthreads();
  if (warp() < MULTIPLIERS) {
    multiply_tiles(arg, s, order, split);
  } else {
    count_tiles(arg, s, order);
  }
  __syncthreads();

  constexpr int TEAMS = WARPS / TEAM;
  int team = 0;
#pragma unroll 1
  for (int i = 0; i < order.number; ++i) {
    if (!s.last[i]) continue;
    if (warp() / TEAM == team) finish<1>(arg, order.tile(i), warp() % TEAM * AT_ONCE, TEAM * AT_ONCE);
    team = team + 1 < TEAMS ? team + 1 : 0;
  }
}
