// The outputs: written, or left for others and merged: part of decode.cu.

// Four sums that one thread of a warp has: those of one head in tiles 2u and 2u + 1. A partial result is a
// list of such columns in the order [k][thread], k counting m, half and u.
struct alignas(16) Column {
  float value[4];

  __device__ void multiply(float factor) {
#pragma unroll
    for (int i = 0; i < 4; ++i) value[i] *= factor;
  }
};

__device__ Column column_of(const Values& values, int k) {
  const int m = k / COLUMNS_PER_HEAD / 2, half = k / COLUMNS_PER_HEAD % 2, u = k % COLUMNS_PER_HEAD;
  const float(&first)[4] = values.sum[m][2 * u];
  const float(&second)[4] = values.sum[m][2 * u + 1];
  Column column{first[2 * half], first[2 * half + 1], second[2 * half], second[2 * half + 1]};
  column.multiply(value_chunk(warp()) == ROPE ? 1.0f : two_to(values.top - 127 - SCALE_BITS));
  return column;
}
__device__ int head_of(int k, int thread) { return k / COLUMNS_PER_HEAD * 8 + thread % 32 / 4; }

// A head's largest score, and the sum of its weights relative to it.
struct alignas(8) Total {
  float peak, sum;
};

// One over the sum of a head's weights and the sink's; 0 without any key.
__device__ float one_over(float sink, Total total) {
  const float sum = total.sum + power_of_2(sink * 1.44269504f - total.peak + WEIGHT_BITS);
  return total.sum == 0 ? 0.0f : reciprocal(sum);
}

__device__ float lse_of(Total total) {
  return total.sum == 0 ? -infinity() : (total.peak + log_2(total.sum) - WEIGHT_BITS) * 0.693147181f;
}

__device__ void write(unsigned short* out, int k, int thread, const Column& column) {
  const int j = thread % 4, u = k % COLUMNS_PER_HEAD;
  const float* v = column.value;
  unsigned* to = reinterpret_cast<unsigned*>(out + thread / 32 * VALUE_DIMS + 16 * u);
  if (value_chunk(thread / 32) == ROPE) {
    to[j] = bf16_pair(v[0], v[1]);
    to[j + 4] = bf16_pair(v[2], v[3]);
  } else {
    reinterpret_cast<Pairs*>(to)[j] = {bf16_pair(v[0], v[2]), bf16_pair(v[1], v[3])};
  }
}

// The outputs of a row and group that was this program's alone.
__device__ void write_result(const Shared& s, const Arguments& a, int row, int group, const Values& values) {
#pragma unroll
  for (int rows = 0; rows < 2 * M_TILES; ++rows) {
    const int in_group = 8 * rows + lane() / 4, head = group * HEADS + in_group;
    if (head >= a.heads) continue;
    const long long line = (long long)row * a.heads + head;
    const Total total{s.peak[in_group], s.sum[in_group]};
    const float factor = one_over(s.sink[head], total);
#pragma unroll
    for (int u = 0; u < COLUMNS_PER_HEAD; ++u) {
      Column column = column_of(values, rows * COLUMNS_PER_HEAD + u);
      column.multiply(factor);
      write(a.out + line * DIMS, u, threadIdx.x, column);
    }
    if (threadIdx.x % 4 == 0 && warp() == 0) a.lse[line] = lse_of(total);
  }
}

// A row and group that several programs had: the first of them and how many.
struct Shares {
  int first, count;

  __device__ Shares(Info info, int share)
      : first(info.begin / share), count((info.begin + info.tiles - 1) / share - first + 1) {}

  // A program has at most one that ends after its share, and one that began before.
  __device__ float* partial(const Arguments& a, int part) const {
    return a.partials + (long long)(first + part + (part > 0 ? gridDim.x : 0)) * PARTIAL;
  }
  __device__ int* gave_up(const Arguments& a, int part) const {
    return reinterpret_cast<int*>(partial(a, part) + 2 * HEADS);
  }
};

struct alignas(8) Merged {
  float value[4];
  Total total;
};
static_assert(sizeof(Shared::scores) >= THREADS * sizeof(Merged), "merging uses them");

template <int N>
__device__ void merge(Merged& into, const Merged (&others)[N]) {
  float peak = into.total.peak;
#pragma unroll
  for (int n = 0; n < N; ++n) peak = fmaxf(peak, others[n].total.peak);
  const float base = peak == -infinity() ? 0.0f : peak;
  const float old = power_of_2(into.total.peak - base);
  into.total = {peak, into.total.sum * old};
#pragma unroll
  for (int i = 0; i < 4; ++i) into.value[i] *= old;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const float factor = power_of_2(others[n].total.peak - base);
    into.total.sum += others[n].total.sum * factor;
#pragma unroll
    for (int i = 0; i < 4; ++i) into.value[i] += others[n].value[i] * factor;
  }
}

// The columns of a slice that threads have each `N` of, over all parts of which each thread has one in `together`,
// `AT_ONCE` of them at once. Always in the same order, whichever program does it.
template <int AT_ONCE, int N>
__device__ void merge_columns(
    Shared& s, const Arguments& a, int row, int group, Shares shares, int slice, int columns, int together) {
  const int member = columns < THREADS ? threadIdx.x / columns : 0;
  Merged* merged = reinterpret_cast<Merged*>(s.scores);
#pragma unroll 1
  for (int i = threadIdx.x - member * columns; i < columns; i += N * THREADS) {
    int column[N], in_group[N];
    bool mine[N];
    Merged sum[N];
#pragma unroll
    for (int k = 0; k < N; ++k) {
      column[k] = slice * columns + i + k * THREADS;
      mine[k] = column[k] < COLUMNS && i + k * THREADS < columns && member < together;
      in_group[k] = head_of(column[k] / THREADS, column[k] % THREADS);
      sum[k] = {{}, {-infinity(), 0.0f}};
    }
#pragma unroll 1
    for (int part = member; part < shares.count; part += AT_ONCE * together) {
      Merged parts[N][AT_ONCE];
#pragma unroll
      for (int k = 0; k < N; ++k) {
#pragma unroll
        for (int n = 0; n < AT_ONCE; ++n) {
          const int other = part + n * together;
          parts[k][n] = {{}, {-infinity(), 0.0f}};
          if (!mine[k] || other >= shares.count) continue;
          const float* from = shares.partial(a, other);
          const float4 four = __ldcg(reinterpret_cast<const float4*>(from + 2 * HEADS + 4) + column[k]);
          const float2 two = __ldcg(reinterpret_cast<const float2*>(from) + in_group[k]);
          parts[k][n] = {{four.x, four.y, four.z, four.w}, {two.x, two.y}};
        }
      }
#pragma unroll
      for (int k = 0; k < N; ++k) merge(sum[k], parts[k]);
    }
#pragma unroll 1
    for (int step = together / 2; step > 0; step /= 2) {
      merged[threadIdx.x] = sum[0];
      sync_others();
      if (member < step) {
        const Merged other[1] = {merged[threadIdx.x + step * columns]};
        merge(sum[0], other);
      }
      sync_others();
    }
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const int head = group * HEADS + in_group[k];
      if (!mine[k] || member > 0 || head >= a.heads) continue;
      const long long line = (long long)row * a.heads + head;
      const int place = column[k] / THREADS, thread = column[k] % THREADS;
      const float* v = sum[k].value;
      Column result{v[0], v[1], v[2], v[3]};
      result.multiply(one_over(s.sink[head], sum[k].total));
      write(a.out + line * DIMS, place, thread, result);
      if (thread / 32 == 0 && place % COLUMNS_PER_HEAD == 0 && thread % 4 == 0) a.lse[line] = lse_of(sum[k].total);
    }
  }
  sync_others();
}

// One slice of the columns, there are as many as parts; threads share the parts if there are more threads than
// columns.
__device__ void merge_slice(Shared& s, const Arguments& a, int row, int group, Shares shares, int slice) {
  const int columns = up(COLUMNS, shares.count);
  if (shares.count == 2) {
    merge_columns<2, 4>(s, a, row, group, shares, slice, columns, 1);
    return;
  }
  int together = 1;
  while (2 * together * columns <= THREADS) together *= 2;
  merge_columns<PARTS_AT_ONCE, 1>(s, a, row, group, shares, slice, columns, together);
}

// Count this program as arrived, and wait a while for the others if it has nothing else to do. Sets in
// `merges` whether it merges its own slice, and in `given_up` how many others: whoever doesn't wait leaves
// its slice to the last to arrive. So no program depends on another that has not begun.
__device__ void arrive(Shared& s, Counters* counters, int* gave_up, int count, bool waits) {
  *gave_up = !waits;
  const int mine = waits ? 1 : 1 + GAVE_UP;
  const int before = add_and_order(&counters->arrived, mine);
  const bool last = before % GAVE_UP == count - 1;
  bool all = last;
  for (int i = 0; waits && !all && i < POLLS; ++i) {
    all = load_and_order(&counters->arrived) % GAVE_UP == count;
  }
  if (waits && !all) {
    *gave_up = true;
    all = add_and_order(&counters->arrived, GAVE_UP) % GAVE_UP == count;
  }
  s.merges = last || (waits && all);
  s.given_up = last ? before / GAVE_UP : 0;
}

// Leave this program's part of a row and group, and merge what is left to it.
__device__ void share_result(Shared& s, const Arguments& a, int row, int group, Info info, int share,
                             const Values& values, bool waits) {
  const Shares shares(info, share);
  const int mine = blockIdx.x - shares.first;
  float* partial = shares.partial(a, mine);
  Column* columns = reinterpret_cast<Column*>(partial + 2 * HEADS + 4);
#pragma unroll
  for (int k = 0; k < COLUMNS / THREADS; ++k) columns[k * THREADS + threadIdx.x] = column_of(values, k);
  if (threadIdx.x < HEADS) {
    reinterpret_cast<Total*>(partial)[threadIdx.x] = {s.peak[threadIdx.x], s.sum[threadIdx.x]};
  }
  Counters* counters = reinterpret_cast<Counters*>(a.counters) + shares.first;
  sync_others();
  int left = 0;
  if (threadIdx.x == 0) {
    arrive(s, counters, shares.gave_up(a, mine), shares.count, waits);
    // What it was is not waited for before the slices are merged.
    left = atomicAdd(&counters->left, 1);
  }
  sync_others();
  if (s.merges) {
    const bool others_gave_up = s.given_up > 0;
    unsigned short* parts = reinterpret_cast<unsigned short*>(s.weights);
    int slice = mine, listed = -1;
#pragma unroll 1
    for (int i = 0;; ++i) {
      merge_slice(s, a, row, group, shares, slice);
      if (!others_gave_up) break;
      if (listed < 0) {
        // More may have given up since this program arrived. Those found all parts there and merge their slices
        // too, to the same bits; which ones they are can't be seen, so every slice of the list is merged.
        if (threadIdx.x == 0) s.given_up = 0;
        sync_others();
        for (int part = threadIdx.x; part < shares.count; part += THREADS) {
          if (part != mine && __ldcg(shares.gave_up(a, part))) parts[atomicAdd(&s.given_up, 1)] = part;
        }
        sync_others();
        listed = s.given_up;
      }
      if (i >= listed) break;
      slice = parts[i];
    }
  }
  if (threadIdx.x == 0 && left == shares.count - 1) *counters = {};
}
