// Runs a CUDA kernel's own source on the CPU, one block after another, as the Triton interpreter does.
//
// A thread is a fiber; the fibers of a block take turns, in a random order and one warp ahead of the others, and
// switch only at barriers and warp exchanges: what one thread reads of another's without a barrier between comes
// out wrong sooner or later. A barrier that some thread never reaches is reported and not waited for. Reads
// through __ldg and __ldcg are checked against the ranges that the test allows.

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __shared__
#define __noinline__
#define __grid_constant__
#define __launch_bounds__(...)

struct alignas(16) int4 {
  int x, y, z, w;
};

inline int4 shared_memory[14528];  // 227 KB, the most that a block may have

namespace on_cpu {

constexpr int STACK = 64 * 1024;

struct Index {
  unsigned x, y, z;
};

struct Barrier {
  int arrived = 0;
  unsigned passed = 0;
};

// What the lanes of a warp show each other. There are two, which take turns: who is at the next exchange may
// still read of this one, and cannot be at the one after.
struct Exchange {
  int64_t value[32];
  float factors[32][12];
  unsigned words[32][4];
};

struct Warp {
  Barrier barrier;
  Exchange exchanges[2];
};

struct Fiber {
  Index thread;
  ucontext_t entry;
  jmp_buf resume;
  std::unique_ptr<char[]> stack;
  bool started = false, done = false;
  const Barrier* waits_for = nullptr;
  unsigned waits_since = 0;
  unsigned exchanges = 0;
};

struct Range {
  uintptr_t begin, end;
};

inline std::vector<Fiber> fibers;
inline std::vector<int> turns;
inline std::mt19937 dice;
inline std::vector<Warp> warps;
inline std::vector<Range> readable;
inline Barrier block_barrier;
inline Barrier numbered_barriers[16];
// Passed with every number that a thread publishes.
inline Barrier published;
inline Fiber* current;
inline jmp_buf scheduler;
inline ucontext_t scheduler_entry;
inline Index block, grid, block_size;
inline int bad_reads;
inline void (*body)();

inline void yield() {
  if (_setjmp(current->resume) == 0) _longjmp(scheduler, 1);
}

// Whether all are there.
inline bool arrive(Barrier& barrier, int members) {
  if (++barrier.arrived < members) return false;
  barrier.arrived = 0;
  ++barrier.passed;
  return true;
}

inline void wait(Barrier& barrier, int members) {
  if (arrive(barrier, members)) return;
  current->waits_for = &barrier;
  current->waits_since = barrier.passed;
  yield();
}

// How many of those that meet say so.
inline int count_at(Barrier& barrier, int members, bool mine) {
  static int counts[2], calls;
  // Two words take turns: one is cleared while the other is read.
  if (barrier.arrived == 0) counts[++calls % 2] = 0;
  counts[calls % 2] += mine;
  const int word = calls % 2;
  wait(barrier, members);
  return counts[word];
}

// What every lane shows, as seen by every lane; show(exchange, lane) writes this lane's part.
template <class Show>
const Exchange& exchange(Show show) {
  Warp& warp = warps[current->thread.x / 32];
  Exchange& all = warp.exchanges[current->exchanges++ % 2];
  show(all, current->thread.x % 32);
  wait(warp.barrier, 32);
  return all;
}

inline const int64_t* exchange_value(int64_t mine) {
  return exchange([mine](Exchange& all, int lane) { all.value[lane] = mine; }).value;
}

inline void run_fiber() {
  body();
  current->done = true;
  _longjmp(scheduler, 1);
}

inline void start(Fiber& fiber) {
  getcontext(&fiber.entry);
  fiber.entry.uc_stack = {fiber.stack.get(), 0, STACK};
  fiber.entry.uc_link = nullptr;
  makecontext(&fiber.entry, run_fiber, 0);
  fiber.started = true;
  setcontext(&fiber.entry);
}

inline void step(Fiber& fiber) {
  current = &fiber;
  fiber.waits_for = nullptr;
  if (_setjmp(scheduler) == 0) {
    if (fiber.started) _longjmp(fiber.resume, 1);
    start(fiber);
  }
}

// A turn for each of these threads that need not wait. False if there is none.
inline bool take_turns(const std::vector<int>& turns) {
  bool moved = false;
  for (int turn : turns) {
    Fiber& fiber = fibers[turn];
    if (fiber.done) continue;
    if (fiber.waits_for && fiber.waits_for->passed == fiber.waits_since) continue;
    moved = true;
    step(fiber);
  }
  return moved;
}

// False when the threads left wait for each other.
inline bool run_block(unsigned index, int threads) {
  block = {index, 0, 0};
  block_barrier = {};
  for (Barrier& barrier : numbered_barriers) barrier = {};
  warps.assign(threads / 32, {});
  for (int i = 0; i < threads; ++i) {
    fibers[i].thread = {unsigned(i), 0, 0};
    fibers[i].started = fibers[i].done = false;
    fibers[i].waits_for = nullptr;
    fibers[i].exchanges = 0;
  }
  while (true) {
    std::shuffle(turns.begin(), turns.end(), dice);
    // One warp runs ahead of the others, as far as it can.
    const unsigned ahead = dice() % warps.size();
    std::vector<int> of_warp;
    for (int turn : turns) {
      if (turn / 32u == ahead) of_warp.push_back(turn);
    }
    while (take_turns(of_warp)) {
    }
    const bool moved = take_turns(turns);
    if (std::all_of(fibers.begin(), fibers.end(), [](const Fiber& fiber) { return fiber.done; })) return true;
    if (!moved) return false;
  }
}

// Without those that lie in another, and in order: the last one that begins before a read ends last as well.
inline void allow_reads(std::vector<Range> ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const Range& one, const Range& other) {
    return one.begin != other.begin ? one.begin < other.begin : one.end > other.end;
  });
  readable.clear();
  for (const Range& range : ranges) {
    if (readable.empty() || range.end > readable.back().end) readable.push_back(range);
  }
}

inline void check_read(const void* address, size_t size) {
  if (readable.empty()) return;
  const auto begin = reinterpret_cast<uintptr_t>(address);
  const auto after = std::upper_bound(
      readable.begin(), readable.end(), begin, [](uintptr_t at, const Range& range) { return at < range.begin; });
  bad_reads += after == readable.begin() || begin + size > std::prev(after)->end;
}

template <class... Args, size_t... I>
void bind(void (*kernel)(Args...), void** args, std::index_sequence<I...>) {
  static void (*bound_kernel)(Args...);
  static void** bound_args;
  bound_kernel = kernel;
  bound_args = args;
  body = [] { bound_kernel(*static_cast<std::remove_reference_t<Args>*>(bound_args[I])...); };
}

template <class... Args>
void bind(void (*kernel)(Args...), void** args) {
  bind(kernel, args, std::index_sequence_for<Args...>{});
}

// -1: a barrier was not reached by all; else how many reads were outside the readable ranges.
template <class Kernel>
int run(
    Kernel kernel, int blocks, int threads, const int* order, void** args, const Range* ranges, int count,
    unsigned seed) {
  grid = {unsigned(blocks), 1, 1};
  block_size = {unsigned(threads), 1, 1};
  allow_reads({ranges, ranges + count});
  bad_reads = 0;
  fibers.clear();
  fibers.resize(threads);
  for (Fiber& fiber : fibers) fiber.stack.reset(new char[STACK]);
  turns.resize(threads);
  for (int i = 0; i < threads; ++i) turns[i] = i;
  dice.seed(seed);
  bind(kernel, args);
  for (int i = 0; i < blocks; ++i) {
    if (!run_block(order[i], threads)) return -1;
  }
  return bad_reads;
}

}  // namespace on_cpu

#define threadIdx on_cpu::current->thread
#define blockIdx on_cpu::block
#define gridDim on_cpu::grid
#define blockDim on_cpu::block_size

inline void __syncthreads() { on_cpu::wait(on_cpu::block_barrier, on_cpu::block_size.x); }
inline void sync_first_on_cpu(int threads) { on_cpu::wait(on_cpu::numbered_barriers[1], threads); }
inline void __threadfence() {}
inline int __syncthreads_or(int mine) {
  return on_cpu::count_at(on_cpu::block_barrier, on_cpu::block_size.x, mine != 0) > 0;
}
inline int __syncthreads_count(int mine) {
  return on_cpu::count_at(on_cpu::block_barrier, on_cpu::block_size.x, mine != 0);
}

inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline int __ffs(unsigned x) { return __builtin_ffs(int(x)); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __int_as_float(int bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned sum) {
  for (int i = 0; i < 32; i += 8) sum += (a >> i & 0xff) * (b >> i & 0xff);
  return sum;
}
inline int __clz(unsigned x) { return x ? __builtin_clz(x) : 32; }

template <class T>
T __ldg(const T* address) {
  on_cpu::check_read(address, sizeof(T));
  return *address;
}

template <class T>
T __ldcg(const T* address) {
  on_cpu::check_read(address, sizeof(T));
  return *address;
}

template <class T>
T atomicAdd(T* address, T value) {
  const T before = *address;
  *address = before + value;
  return before;
}

inline unsigned __ballot_sync(unsigned, bool mine) {
  const int64_t* values = on_cpu::exchange_value(mine);
  unsigned word = 0;
  for (int i = 0; i < 32; ++i) word |= unsigned(values[i] != 0) << i;
  return word;
}

inline bool __all_sync(unsigned mask, bool mine) { return __ballot_sync(mask, mine) == 0xffffffffu; }

inline int __shfl_up_sync(unsigned, int mine, int step) {
  const int lane = threadIdx.x % 32;
  return int(on_cpu::exchange_value(mine)[lane < step ? lane : lane - step]);
}

inline int __shfl_sync(unsigned, int mine, int from) { return int(on_cpu::exchange_value(mine)[from % 32]); }

inline int __shfl_xor_sync(unsigned, int mine, int mask) {
  const int lane = threadIdx.x % 32;
  return int(on_cpu::exchange_value(mine)[lane ^ mask]);
}

inline int __reduce_add_sync(unsigned, int mine) {
  const int64_t* values = on_cpu::exchange_value(mine);
  int64_t sum = 0;
  for (int i = 0; i < 32; ++i) sum += values[i];
  return int(sum);
}

inline int __reduce_min_sync(unsigned, int mine) {
  const int64_t* values = on_cpu::exchange_value(mine);
  int64_t best = values[0];
  for (int i = 1; i < 32; ++i) best = values[i] < best ? values[i] : best;
  return int(best);
}

inline int __reduce_max_sync(unsigned, int mine) {
  const int64_t* values = on_cpu::exchange_value(mine);
  int64_t best = values[0];
  for (int i = 1; i < 32; ++i) best = values[i] > best ? values[i] : best;
  return int(best);
}

#include "tensor_cores_on_cpu.h"
