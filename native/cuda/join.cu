// Bags that several senders ask for, joined, on the device. The host looks at what each piece claims; all pieces are
// then read at once. Lengths are added up over all of them, as rising ids are: what lies before a piece is taken off.
#include <stdexcept>
#include <string>
#include <vector>

#include "hpcrec/unpack_check.h"
#include "lanes.h"
#include "packed.h"
#include "primitives.h"

namespace hpcrec::cuda {
namespace {

// A piece, where its ids and bags are among all, and its packed numbers among those.
struct Piece {
  Asked asked;
  int64_t end_id, end_bag, ids_number, table_number, lengths_number;
};
struct Pieces {
  const Piece* list;
  int64_t n;
  const uint8_t* message;
  const int64_t* numbers;  // as they were read
  const int64_t* sums;     // of all of them up to each
};

// Number i of packed ones that rise: sums wrap around, and so do their differences.
__device__ __forceinline__ uint64_t risen(const Pieces& from, int64_t first, int64_t i) {
  const auto before = first ? static_cast<uint64_t>(from.sums[first - 1]) : 0;
  return static_cast<uint64_t>(from.sums[first + i]) - before;
}

__global__ void __launch_bounds__(block_threads, 1)
    join_ids(Pieces from, int64_t n_ids, int64_t* index, unsigned* faults) {
  const int64_t k = this_thread();
  if (k >= n_ids) return;
  const Piece& piece = from.list[range_of(k, from.n, [&](int64_t p) { return from.list[p].end_id; })];
  const Asked& a = piece.asked;
  const int64_t i = k - (piece.end_id - a.n_ids);
  uint64_t id = 0;
  if (a.coding == Coding::plain) {
    id = static_cast<uint64_t>(reinterpret_cast<const int64_t*>(from.message + a.ids_at)[i]);
  } else if (a.coding == Coding::packed) {
    id = static_cast<uint64_t>(from.numbers[piece.ids_number + i]);
  } else if (a.coding == Coding::rising) {
    id = risen(from, piece.ids_number, i);
  } else {
    const int64_t place = from.numbers[piece.ids_number + i];
    if (below(place, a.n_distinct)) id = risen(from, piece.table_number, place);
    else note(faults, bad_ids);
  }
  index[k] = static_cast<int64_t>(id + static_cast<uint64_t>(a.base));
}

// Lengths of the bags, behind the first of the offsets; and where vectors begin.
__global__ void __launch_bounds__(block_threads, 1)
    join_bags(Pieces from, int64_t n_bags, int64_t width, Joined to, unsigned* faults) {
  const int64_t v = this_thread();
  if (v == 0) to.offsets[0] = 0;
  if (v >= n_bags) return;
  const Piece& piece = from.list[range_of(v, from.n, [&](int64_t p) { return from.list[p].end_bag; })];
  const Asked& a = piece.asked;
  const int64_t i = v - (piece.end_bag - a.n_bags);
  int64_t length = 1;
  if (a.lengths_at >= 0)
    length = a.coding == Coding::plain ? int64_t{reinterpret_cast<const int32_t*>(from.message + a.lengths_at)[i]}
                                       : from.numbers[piece.lengths_number + i];
  if (!below(length, a.n_ids + 1)) {
    note(faults, bad_lengths);
    length = 0;
  }
  to.offsets[v + 1] = length;
  const uint64_t step = static_cast<uint64_t>(i) * static_cast<uint64_t>(width);
  if (to.value_start) to.value_start[v] = static_cast<int64_t>(static_cast<uint64_t>(a.value_at) + step);
  if (to.gradient_start) to.gradient_start[v] = static_cast<int64_t>(static_cast<uint64_t>(a.gradient_at) + step);
}

__global__ void __launch_bounds__(block_threads, 1) check_sums(Pieces from, const int64_t* offsets, unsigned* faults) {
  const int64_t p = this_thread();
  if (p < from.n && offsets[from.list[p].end_bag] != from.list[p].end_id) note(faults, bad_lengths);
}

// The packed numbers of all pieces, in order.
class Packed {
  int64_t n_blocks_ = 0;

 public:
  int64_t n_numbers = 0;
  std::vector<Section> sections;
  std::vector<Bytes> bytes;

  void begin(int64_t at, int64_t n_bytes, unsigned fault) {
    bytes.push_back({at, at + n_bytes, static_cast<int32_t>(sections.size()), 0, fault});
  }
  // The number of its first.
  int64_t add(int64_t n, bool rising) {
    sections.push_back({n_numbers, n_numbers + n, n_blocks_, rising});
    ++bytes.back().n_sections;
    n_blocks_ += packed_blocks(n);
    n_numbers += n;
    return n_numbers - n;
  }
};

}  // namespace

void unpack(const uint8_t* message, int64_t size, const Asked* asked, int64_t n, int64_t width, const Joined& to,
            const Queue& queue) {
  std::vector<Piece> pieces;
  Packed packed;
  int64_t n_ids = 0, n_bags = 0;
  bool rises = false;
  for (int64_t i = 0; i < n; ++i) {
    const Asked& a = asked[i];
    check_asked(a, i, size);
    Piece piece{a, n_ids += a.n_ids, n_bags += a.n_bags, 0, 0, 0};
    if (a.coding != Coding::plain) {
      packed.begin(a.ids_at, a.ids_bytes, bad_ids);
      if (a.coding == Coding::table) piece.table_number = packed.add(a.n_distinct, true);
      piece.ids_number = packed.add(a.n_ids, a.coding == Coding::rising);
      rises = rises || a.coding != Coding::packed;
      if (a.lengths_at >= 0) {
        packed.begin(a.lengths_at, a.lengths_bytes, bad_lengths);
        piece.lengths_number = packed.add(a.n_bags, false);
      }
    }
    pieces.push_back(piece);
  }
  const Scratch<Piece> there(n, queue.stream);
  const Scratch<int64_t> numbers(packed.n_numbers, queue.stream), sums(rises ? packed.n_numbers : 0, queue.stream);
  copy_to_device(there.data(), pieces.data(), n * static_cast<int64_t>(sizeof(Piece)), queue.stream);
  read_sections(message, packed.sections, packed.bytes, numbers.data(), queue);
  if (rises) inclusive_sum(numbers.data(), packed.n_numbers, sums.data(), queue);
  const Pieces from{there.data(), n, message, numbers.data(), sums.data()};
  launch("unpack: ids", join_ids, blocks_for(n_ids), 1, block_threads, queue.stream, from, n_ids, to.index,
         queue.faults);
  launch("unpack: bags", join_bags, blocks_for(n_bags + 1), 1, block_threads, queue.stream, from, n_bags, width, to,
         queue.faults);
  inclusive_sum(to.offsets, n_bags + 1, to.offsets, queue);
  launch("unpack: sums", check_sums, blocks_for(n), 1, block_threads, queue.stream, from,
         static_cast<const int64_t*>(to.offsets), queue.faults);
}

}  // namespace hpcrec::cuda
