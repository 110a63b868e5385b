// Sizes and arguments of decode.cu.

constexpr int WARPS = THREADS / 32;
constexpr int HEADS = 16 * M_TILES;
// Warps of their own gather the keys, by the copy engine, and the others have most of the registers.
constexpr bool APART = GATHER_WARPS > 0;
constexpr int BLOCK_THREADS = THREADS + 32 * GATHER_WARPS;
constexpr int GATHERING_WARPS = APART ? GATHER_WARPS : WARPS;
// Of a thread at first, and of one that does not gather then.
constexpr int REGISTERS = 65536 / PROGRAMS_PER_SM / BLOCK_THREADS / 8 * 8;
constexpr int OTHER_REGISTERS = (REGISTERS * BLOCK_THREADS - GATHER_REGISTERS * 32 * GATHER_WARPS) / THREADS / 8 * 8;
constexpr int MAX_HEADS = 128;  // of a row
constexpr int DIMS = 512;
constexpr int CHUNK = 64;       // dims with one scale
constexpr int ROPE = 7;         // the chunk of bf16 dims, without a scale
constexpr int KEY_BYTES = 576;  // 448 e4m3, 64 bf16
constexpr int UNITS = KEY_BYTES / 16;
constexpr int SCALES = 8;  // bytes: seven exponents and a pad
constexpr int CHUNKS = 8 / DIM_WARPS;  // of a warp, in scores
constexpr int KEY_WARPS = WARPS / DIM_WARPS;
constexpr int SCORE_TILES = TILE / KEY_WARPS / 8;
constexpr int WARPS_PER_CHUNK = WARPS / 8;            // in values
constexpr int VALUE_TILES = 8 / WARPS_PER_CHUNK;      // of 8 dims, of a warp
constexpr int COLUMNS_PER_HEAD = VALUE_TILES / 2;     // of a thread
constexpr int VALUE_DIMS = CHUNK / WARPS_PER_CHUNK;   // of a warp
constexpr bool AHEAD = STAGES > 2;    // tiles are gathered so early that the next is there before this is done
constexpr int STRIDE = UNITS + 1;  // of a key in shared memory: keys in order begin in different banks
constexpr int KEYS_PER_WARP = TILE / GATHERING_WARPS;  // in gathering
constexpr int LANES_PER_HEAD = THREADS / HEADS;
constexpr int KEYS_PER_LANE = TILE / LANES_PER_HEAD;
constexpr int VECTORS = KEYS_PER_LANE / 4;
constexpr int PAD = 8;
// Beside the scores of many keys there is no room: those of heads next to each other begin at other columns then.
constexpr int SCORE_PAD = TILE > 64 ? 0 : PAD;
constexpr int COLUMNS = HEADS * DIMS / 4;              // of a partial result, four values each
constexpr int PARTIAL = HEADS * DIMS + 2 * HEADS + 4;  // with peaks, sums, and whether its program gave up
constexpr int PARTS_AT_ONCE = 4;                       // of a slice, that a thread reads
constexpr int GAVE_UP = 1 << 16;
constexpr int POLLS = 16;
constexpr unsigned ALL = 0xffffffffu;

// f16 has few exponents. Weights are times 2**7, so that 2**-31 is the smallest; their scales are relative to
// the largest so far, times 2**8, so that 2**-32 is the smallest.
constexpr int WEIGHT_BITS = 7, SCALE_BITS = 8;

static_assert(TILE % 32 == 0 && TILE % GATHERING_WARPS == 0, "warps share the keys of a tile");
static_assert(32 % KEYS_PER_WARP == 0, "and their lanes those of a warp");
static_assert(APART || 32 + 32 / KEYS_PER_WARP >= UNITS, "and the bytes of a key");
static_assert(GATHER_WARPS % 4 == 0 && WARPS % 4 == 0, "four warps at once hand over registers");
static_assert(VECTORS * 4 * LANES_PER_HEAD == TILE, "and its scores");
static_assert(WARPS_PER_CHUNK == 1 || WARPS_PER_CHUNK == 2, "a warp has a chunk of the values or a half");

// What is loaded and stored at once.
struct alignas(16) Words {
  unsigned word[4];
};
struct alignas(8) Pairs {
  unsigned first, second;
};
struct alignas(8) Scores {
  float first, second;
};
template <class T>
struct alignas(16) Vector {
  T of[4];
};

// One of the two paged caches, and which of its keys a row attends to.
struct Cache {
  const unsigned char* pages;
  const int* indices;
  const int* lengths;  // null: the whole width
  long long stride_indices, stride_length;
  unsigned page_bytes;
  int page_bits, width, unused;

  __device__ int length(int row) const {
    if (lengths == nullptr || width == 0) return width;
    return max(0, min(__ldg(lengths + row * stride_length), width));
  }
};

// The arguments. Strides in elements; `sink` may be null.
struct Arguments {
  Cache near, far;
  const unsigned short* q;
  const float* sink;
  unsigned short* out;
  float* lse;
  float* partials;
  int* counters;
  long long stride_q_row, stride_q_head;
  float scale_log2;  // of the scores, times log2(e)
  int rows, heads, groups;
  int whole;  // tiles of a row that one program does at least, even if its share is smaller
};

// What programs leave for each other about a row and group that several had: zero between launches.
struct Counters {
  int arrived;  // programs that are done, and GAVE_UP for each of them that does not wait for the others
  int left;
};

// A tile: the row and group that it is of, as row * groups + group; which one of how many; how many tiles there
// are in the list of all tiles before the first.
struct alignas(16) Info {
  int unit, tile, tiles, begin;
};

__device__ int lane() { return threadIdx.x & 31; }
__device__ int warp() { return threadIdx.x >> 5; }
__device__ float infinity() { return __int_as_float(0x7f800000); }
__device__ float two_to(int exponent) { return __int_as_float(max(0, exponent + 127) << 23); }
__device__ int up(int n, int to) { return (n + to - 1) / to; }

__device__ int row_of(const Arguments& a, int unit) { return a.groups == 1 ? unit : unit / a.groups; }

// Of eight keys in order, the first four and the last four take turns as columns of the scores: read as
// operands, two next to each other are four keys apart, which is half the banks.
__device__ int column_of(int key) { return (key & ~7) | (key & 3) << 1 | (key >> 2 & 1); }
// Of a column, in the scores of a head.
__device__ int place_of(int head, int column) { return SCORE_PAD > 0 ? column : column ^ (head & 3) << 3; }
__device__ int key_in_eight(int column) { return column >> 1 | (column & 1) << 2; }
