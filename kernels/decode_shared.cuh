// Shared memory of decode.cu, and the barriers of its threads.

struct Shared {
  Words tile[STAGES][TILE * STRIDE];
  unsigned char exponents[STAGES][TILE][SCALES];
  float scores[DIM_WARPS][HEADS][TILE + SCORE_PAD];  // by place
  unsigned weights[HEADS][(TILE + PAD) / 2];  // f16 pairs
  unsigned short value_scales[WARPS][TILE];   // f16, by chunk
  int valid[STAGES][TILE];  // by column
  Info info[STAGES];
  float sink[MAX_HEADS];
  float rescale[HEADS];
  float peak[HEADS];
  float sum[HEADS];
  int partial[WARPS];
  int row, begin, tiles;
  int merges, given_up;
  // Where warps of their own gather: from where on, what they have brought, and how much is this program's.
  alignas(16) Cursor start;
  Arrivals arrivals[STAGES];
  Share share;
};
static_assert(sizeof(Shared) <= SHARED_BYTES, "what the launch asks for");
static_assert(sizeof(Shared::weights) >= 2 * MAX_PROGRAMS, "merging lists parts there");

extern __shared__ int4 shared_memory[];

// All threads but those of the warps that only gather: barrier 1, where there are such.
__device__ void sync_others() {
  if (APART) {
    meet<1>(THREADS);
  } else {
    __syncthreads();
  }
}
__device__ bool any_of_others(bool mine) { return APART ? any_at<1>(THREADS, mine) : __syncthreads_or(mine); }
__device__ int count_of_others(bool mine) { return APART ? count_at<1>(THREADS, mine) : __syncthreads_count(mine); }

// The barrier of a stage whose keys no thread needs any more.
__device__ int stage_free(int stage) { return 2 + stage; }

__device__ void wait_for_keys(Shared& s, int stage, int parity) { wait_for_phase(&s.arrivals[stage], parity); }
