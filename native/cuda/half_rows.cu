// All rows made of halves, and read: a lane two columns of a row, which share a word of random bits.
#include "half_rows.h"

#include "half_packs.h"

namespace hpcrec::cuda {
namespace {

__global__ void __launch_bounds__(block_threads, 1)
    make_half_rows(const float* from, int64_t n, int64_t width, int64_t first_row, HalfRows out) {
  const int64_t pairs = (width + 1) / 2, row = this_thread() / pairs, column = this_thread() % pairs * 2;
  if (row >= n) return;
  for (int64_t d = column; d < column + 2 && d < width; ++d) {
    Pack<float, 1> x;
    x.x[0] = from[row * width + d];
    // The random bits are those of the row's number in the whole table, its place is that in this part.
    write_columns<float, 1>(out, first_row + row, row * width, d, x);
  }
}

__global__ void __launch_bounds__(block_threads, 1)
    widen_half_rows(const uint16_t* bits, HalfKind kind, int64_t n, float* out) {
  const int64_t i = this_thread();
  if (i < n) out[i] = kind == HalfKind::fp16 ? widened(Fp16{bits[i]}) : widened(Bf16{bits[i]});
}

}  // namespace

void to_half_rows(const float* rows, int64_t n, int64_t width, int64_t first_row, const HalfRows& out,
                  const Queue& queue) {
  launch("to_half_rows", make_half_rows, blocks_for(n * ((width + 1) / 2)), 1, block_threads, queue.stream, rows, n,
         width, first_row, out);
}

void from_half_rows(const uint16_t* bits, HalfKind kind, int64_t n, float* out, const Queue& queue) {
  launch("from_half_rows", widen_half_rows, blocks_for(n), 1, block_threads, queue.stream, bits, kind, n, out);
}

}  // namespace hpcrec::cuda
