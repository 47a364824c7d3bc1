// Every kernel that uses threads, on 2 to 7 of them, against its own result on one: the same bits; and those that a
// step and the routing ahead of it call, from two threads at once. Built with HPCREC_SANITIZE=thread it also shows that
// no two threads touch the same memory without an order between them.
//   hpcrec_threads [ROUNDS]     ends with 0, or names the kernel whose bits differ and ends with 1
//   hpcrec_threads --race       two threads add to one number: what the sanitizer has to find
// What the kernels have to compute is tested from Python; here only threads are looked at.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "hpcrec/fm.h"
#include "hpcrec/halves.h"
#include "hpcrec/id_map.h"
#include "hpcrec/ids.h"
#include "hpcrec/interaction.h"
#include "hpcrec/learn.h"
#include "hpcrec/lookup.h"
#include "hpcrec/maximum.h"
#include "hpcrec/parallel.h"
#include "hpcrec/positions.h"
#include "hpcrec/slots.h"
#include "hpcrec/threshold.h"
#include "hpcrec/unpack.h"

void disk_pages(unsigned seed);  // disk.cpp

namespace {
using Ints = std::vector<int64_t>;
template <class T> using Reals = std::vector<T>;
using Random = std::mt19937_64;

struct Bits {
  std::vector<unsigned char> bytes;
  template <class T> void add(const std::vector<T>& values, size_t n) {
    const auto* first = reinterpret_cast<const unsigned char*>(values.data());
    bytes.insert(bytes.end(), first, first + n * sizeof(T));
  }
  template <class T> void add(const std::vector<T>& values) { add(values, values.size()); }
};

Ints integers(Random& random, int64_t n, int64_t low, int64_t high) {
  std::uniform_int_distribution<int64_t> draw(low, high);
  Ints values(n);
  for (auto& value : values) value = draw(random);
  return values;
}

template <class T> Reals<T> reals(Random& random, int64_t n) {
  std::normal_distribution<double> draw;
  Reals<T> values(n);
  for (auto& value : values) value = static_cast<T>(draw(random));
  return values;
}

// Runs a kernel on one thread, then on several; the same bits each time.
void same(const std::string& name, const std::function<Bits()>& run) {
  hpcrec::set_threads(1);
  const Bits wanted = run();
  for (int n = 2; n <= 7; ++n) {
    hpcrec::set_threads(n);
    if (run().bytes == wanted.bytes) continue;
    std::printf("%s: other bits on %d threads than on 1\n", name.c_str(), n);
    std::exit(1);
  }
}

void ids_kernels(Random& random) {
  const int64_t n = 400'000;  // a sort takes a team for many ids only
  for (const int64_t high : {int64_t{50}, int64_t{1} << 40, int64_t{1} << 62}) {
    const Ints ids = integers(random, n, -high, high);
    same("group", [&] {
      Ints unique(n), segments(n + 1), order(n);
      const int64_t n_unique = hpcrec::group(ids.data(), n, nullptr, 0, unique.data(), segments.data(), order.data());
      Bits bits;
      bits.add(unique, n_unique);
      bits.add(segments, n_unique + 1);
      bits.add(order);
      return bits;
    });
    same("dedup", [&] {
      Ints unique(n), inverse(n);
      const int64_t n_unique = hpcrec::dedup(ids.data(), n, unique.data(), inverse.data());
      Bits bits;
      bits.add(unique, n_unique);
      bits.add(inverse);
      return bits;
    });
  }
  std::vector<int32_t> part(n);
  for (auto& p : part) p = static_cast<int32_t>(random() % 13);
  same("partition", [&] {
    Ints counts(13), order(n);
    hpcrec::partition(part.data(), n, 13, counts.data(), order.data());
    Bits bits;
    bits.add(counts);
    bits.add(order);
    return bits;
  });
  const Ints ids = integers(random, 50'000, 0, 99'999);
  same("permute, hash_ids, init_rows", [&] {
    Ints there(ids.size()), back(ids.size()), hashed(ids.size());
    Reals<float> rows(ids.size() * 3);
    const auto size = static_cast<int64_t>(ids.size());
    hpcrec::permute(ids.data(), size, 100'000, 5, false, there.data());
    hpcrec::permute(there.data(), size, 100'000, 5, true, back.data());
    hpcrec::hash_ids(ids.data(), size, 1'000, 5, hashed.data());
    hpcrec::init_rows(5, ids.data(), size, 3, 0, 0.1, rows.data());
    if (back != ids) {
      std::printf("permute: not undone\n");
      std::exit(1);
    }
    Bits bits;
    bits.add(there);
    bits.add(hashed);
    bits.add(rows);
    return bits;
  });
}

void id_map(Random& random) {
  const int64_t n = 100'000;
  const hpcrec::IdKey key{random(), random(), random(), random()};
  for (const auto evict : {hpcrec::Evict::none, hpcrec::Evict::lru, hpcrec::Evict::lfu}) {
    const Ints ids = integers(random, 4 * n, 0, 2 * n);
    same("id map", [&] {
      hpcrec::IdMap map({n, evict, evict == hpcrec::Evict::lfu ? 2 : 1, n, 1.0, 7}, key);
      Ints rows(4 * n), fresh(n);
      for (int batch = 0; batch < 3; ++batch)
        map.admit(ids.data() + batch * n, n, rows.data() + batch * n, fresh.data());
      map.find(ids.data() + 3 * n, n, rows.data() + 3 * n);
      Bits bits;
      bits.add(rows);
      return bits;
    });
  }
}

void slot_map(Random& random) {
  const int64_t n = 100'000, capacity = 32 * 1'000;
  const Ints ids = integers(random, 3 * n, 0, 2 * n);
  for (const int sets : {1, 2})
    same("slot map", [&] {
      Ints held(capacity, hpcrec::no_slot_id), uses(capacity), slots(n), evicted(n);
      const hpcrec::Slots map{held.data(), capacity, 7, sets};
      Bits bits;
      for (int32_t clock = 1; clock < 3; ++clock) {
        hpcrec::admit_slots(map, uses.data(),
                            {ids.data() + (clock - 1) * n, n, clock, clock, slots.data(), evicted.data()});
        bits.add(slots);
        bits.add(evicted);
      }
      hpcrec::find_slots(map, ids.data() + 2 * n, n, slots.data());
      bits.add(slots);
      return bits;
    });
}

void message_kernels(Random& random) {
  const int64_t n = 500'000;  // a threshold takes a team for many values only
  const Reals<float> values = reals<float>(random, n);
  for (const auto kind : {hpcrec::HalfKind::bf16, hpcrec::HalfKind::fp16, hpcrec::HalfKind::fp32})
    same("write_halves, read_halves", [&] {
      std::vector<unsigned char> written(5 * n);
      Reals<float> read(n);
      hpcrec::write_halves(values.data(), n, kind, written.data() + 1);
      hpcrec::read_halves(written.data() + 1, kind, read.data(), n);
      Bits bits;
      bits.add(written);
      bits.add(read);
      return bits;
    });
  same("thresholds and positions", [&] {
    const float tau = hpcrec::threshold_of(values.data(), n, n / 3);
    Reals<float> residual(n, 0.5f), there(n);
    Bits bits;
    for (const bool feedback : {false, true}) {
      std::vector<uint64_t> marks((n + 63) / 64);
      const int64_t k = feedback ? hpcrec::mark_sum(values.data(), residual.data(), n, tau, marks.data())
                                 : hpcrec::mark_above(values.data(), n, tau, marks.data());
      Ints positions(k), again(k);
      Reals<float> chosen(k), gathered(k), expanded(n, 0.25f);
      std::vector<unsigned char> mask((n + 7) / 8);
      if (feedback) hpcrec::cut_marked(residual.data(), n, marks.data(), k, positions.data(), chosen.data());
      else hpcrec::take_marked(values.data(), n, marks.data(), k, positions.data(), chosen.data());
      hpcrec::scatter_add(there.data(), n, positions.data(), chosen.data(), k);
      hpcrec::expand(expanded.data(), n, positions.data(), chosen.data(), k);
      hpcrec::gather(there.data(), n, positions.data(), k, gathered.data());
      hpcrec::write_mask(positions.data(), k, n, mask.data());
      hpcrec::read_mask(mask.data(), n, again.data(), k);
      if (again != positions) {
        std::printf("read_mask: not what was written\n");
        std::exit(1);
      }
      bits.add(positions);
      bits.add(chosen);
      bits.add(gathered);
      bits.add(expanded);
      bits.add(mask);
    }
    bits.add(residual);
    bits.add(there);
    bits.add(Reals<float>{tau});
    return bits;
  });
}

// Zeros of both signs, equal magnitudes and values that are not finite among the rest.
Reals<float> uneven(Random& random, int64_t n) {
  constexpr float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  constexpr float odd[] = {0.0f, -0.0f, 1.0f, -1.0f, infinity, -infinity, nan, 1e-40f};
  Reals<float> values = reals<float>(random, n);
  for (auto& value : values)
    if (random() % 3 == 0) value = odd[random() % (random() % 9 ? 4 : 8)];
  return values;
}

void largest_of_vectors(Random& random) {
  for (const int64_t width : {2, 33, 64, 65, 200})
    for (const int64_t keep : {int64_t{1}, width / 3 + 1, width}) {
      const int64_t n = 200'000 / width;
      const Reals<float> values = uneven(random, n * width);
      same("take_largest", [&] {
        Ints positions(n * keep);
        Reals<float> chosen(n * keep);
        hpcrec::take_largest(values.data(), n, width, keep, positions.data(), chosen.data());
        hpcrec::require_rising(positions.data(), n * keep, n * width);
        Bits bits;
        bits.add(positions);
        bits.add(chosen);
        return bits;
      });
    }
}

// What a holder and a dense rank do with the values of one message, which begins at any byte.
Bits thresholded_message(const Reals<float>& values, int64_t keep, int64_t at) {
  const auto n = static_cast<int64_t>(values.size());
  const float tau = hpcrec::threshold_of(values.data(), n, keep);
  std::vector<uint64_t> marks((n + 63) / 64);
  const int64_t k = hpcrec::mark_above(values.data(), n, tau, marks.data());
  Ints positions(k), again(k);
  Reals<float> chosen(k), read(k), received(n), back(k);
  hpcrec::take_marked(values.data(), n, marks.data(), k, positions.data(), chosen.data());
  std::vector<unsigned char> message(at + (n + 7) / 8 + 4 * k);
  unsigned char* behind = message.data() + at + (n + 7) / 8;
  hpcrec::write_mask(positions.data(), k, n, message.data() + at);
  hpcrec::write_halves(chosen.data(), k, hpcrec::HalfKind::bf16, behind);
  hpcrec::read_mask(message.data() + at, n, again.data(), k);
  hpcrec::read_halves(behind, hpcrec::HalfKind::bf16, read.data(), k);
  hpcrec::expand(received.data(), n, again.data(), read.data(), k);
  hpcrec::gather(received.data(), n, positions.data(), k, back.data());
  Bits bits;
  bits.add(message);
  bits.add(received);
  bits.add(back);
  return bits;
}

void thresholded_messages(Random& random) {
  for (const int64_t n : {63, 500'000, 500'003}) {
    const Reals<float> values = uneven(random, n);
    for (const int64_t keep : {int64_t{1}, n / 20 + 1, n})
      same("thresholded message", [&] { return thresholded_message(values, keep, keep % 7); });
  }
}

// Positions that fall, in every piece: all threads find that at once, and the caller is told.
void refused_positions(Random& random) {
  const int64_t n = 400'000;
  Ints positions(n);
  std::iota(positions.begin(), positions.end(), 0);
  for (int64_t i = 1; i < n; i += 1000) positions[i] = 0;
  const Reals<float> values = reals<float>(random, n);
  same("positions that do not rise", [&] {
    Reals<float> out(n);
    std::vector<unsigned char> mask((n + 7) / 8);
    Bits bits;
    for (const int which : {0, 1, 2, 3, 4}) {
      bool refused = false;
      try {
        if (which == 0) hpcrec::scatter_add(out.data(), n, positions.data(), values.data(), n);
        if (which == 1) hpcrec::write_mask(positions.data(), n, n, mask.data());
        if (which == 2) hpcrec::gather(values.data(), n / 2, positions.data(), n, out.data());
        if (which == 3) hpcrec::read_mask(mask.data(), n, Ints(n + 1).data(), n + 1);
        if (which == 4) hpcrec::expand(out.data(), n, positions.data(), values.data(), n);
      } catch (const std::invalid_argument&) {
        refused = true;
      }
      bits.add(std::vector<unsigned char>{refused});
      if (!refused) {
        std::printf("positions that do not rise: taken by %d\n", which);
        std::exit(1);
      }
    }
    return bits;
  });
}

void asked_bags(Random& random) {
  const int64_t n = 150'000, senders = 3;  // bags of one id, by three senders, of 64-bit ids as they are
  const Ints ids = integers(random, n * senders, 0, 1'000'000);
  std::vector<hpcrec::Asked> asked;
  for (int64_t p = 0; p < senders; ++p)
    asked.push_back({p * n * 8, n, -1, n, p, p * n * 4, p * n * 4, hpcrec::Coding::plain, 0, n * 8, 0});
  same("unpack", [&] {
    Ints index(n * senders), offsets(n * senders + 1), value_start(n * senders), gradient_start(n * senders);
    hpcrec::unpack(reinterpret_cast<const uint8_t*>(ids.data()), n * senders * 8, asked.data(), senders, 4,
                   {index.data(), offsets.data(), value_start.data(), gradient_start.data()});
    Bits bits;
    for (const Ints* of : {&index, &offsets, &value_start, &gradient_start}) bits.add(*of);
    return bits;
  });
}

// A step thresholds while the next one is routed: two threads call kernels, each with a number of threads of its own.
void two_callers(Random& random) {
  const int64_t n = 300'000;
  const Reals<float> values = uneven(random, n);
  const Ints ids = integers(random, n, 0, 1'000);
  const auto step = [&] {
    Bits bits = thresholded_message(values, n / 10, 3);
    Ints positions(n / 20 * 5);
    Reals<float> chosen(n / 20 * 5);
    hpcrec::take_largest(values.data(), n / 20, 20, 5, positions.data(), chosen.data());
    bits.add(positions);
    bits.add(chosen);
    return bits;
  };
  const auto routing = [&] {
    Ints unique(n), segments(n + 1), order(n);
    const int64_t n_unique = hpcrec::group(ids.data(), n, nullptr, 0, unique.data(), segments.data(), order.data());
    Bits bits;
    bits.add(unique, n_unique);
    bits.add(order);
    return bits;
  };
  hpcrec::set_threads(1);
  const Bits wanted = step(), wanted_routing = routing();
  for (int n_threads = 2; n_threads <= 4; ++n_threads) {
    Bits routed;
    std::thread ahead([&] {
      hpcrec::set_threads(n_threads);
      routed = routing();
    });
    hpcrec::set_threads(n_threads + 1);
    const Bits found = step();
    ahead.join();
    if (found.bytes == wanted.bytes && routed.bytes == wanted_routing.bytes) continue;
    std::printf("two callers: other bits than one after the other\n");
    std::exit(1);
  }
}

template <class T> void products(Random& random) {
  const int64_t n_samples = 700, n_block = 9, width = 20, pairs = (n_block + 1) * n_block / 2;
  const Reals<T> first = reals<T>(random, n_samples * width), block = reals<T>(random, n_samples * n_block * width);
  const Reals<T> gradient = reals<T>(random, n_samples * (width + pairs));
  same("dot_interaction and its backward", [&] {
    const hpcrec::Vectors<T> in{first.data(), block.data(), n_samples, n_block, width};
    Reals<T> out(n_samples * (width + pairs)), of_first(first.size()), of_block(block.size());
    hpcrec::dot_interaction(in, out.data());
    hpcrec::dot_interaction_backward(in, gradient.data(), of_first.data(), of_block.data());
    Bits bits;
    bits.add(out);
    bits.add(of_first);
    bits.add(of_block);
    return bits;
  });
}

template <class T> void fm_kernels(Random& random) {
  const int64_t n_samples = 700, n_features = 9, width = 40;
  const Reals<T> vectors = reals<T>(random, n_features * n_samples * width);
  same("fm_sums and its backward", [&] {
    const hpcrec::FmSums<T> in{{vectors.data(), width, n_samples * width}, n_samples, n_features, width};
    Reals<T> sums(n_samples * width), squares(n_samples), gradient(vectors.size());
    hpcrec::fm_sums(in, sums.data(), squares.data());
    hpcrec::fm_sums_backward(in, sums.data(), squares.data(), {gradient.data(), width, n_samples * width});
    Bits bits;
    bits.add(sums);
    bits.add(squares);
    bits.add(gradient);
    return bits;
  });
}

// Rows of halves: made, moved both ways, pooled both ways and read.
template <class E>
void half_row_kernels(const hpcrec::Occurrences<float>& from, const Ints& unique, const Ints& index,
                      const Ints& offsets, const Reals<float>& rows, hpcrec::HalfKind kind) {
  const int64_t width = from.width, n_rows = static_cast<int64_t>(rows.size()) / width;
  const int64_t n_vectors = static_cast<int64_t>(offsets.size()) - 1, n_ids = static_cast<int64_t>(index.size());
  for (const auto rule : {hpcrec::Rule::sgd, hpcrec::Rule::adagrad, hpcrec::Rule::rowwise_adagrad, hpcrec::Rule::adam})
    same("rows of halves", [&] {
      std::vector<uint16_t> bits_of_rows(rows.size());
      const hpcrec::HalfRows halves{bits_of_rows.data(), kind, false, 7};
      hpcrec::to_half_rows(rows.data(), n_rows, width, 0, halves);
      Reals<float> state1(rows.size(), 1), state2(rows.size(), 1), merged(from.n_unique * width);
      const hpcrec::Target<float, hpcrec::HalfRows> target{halves, unique.data(), n_rows, from.n_unique, width};
      const hpcrec::Learning<float> how{
          rule, 0.1f, 1e-8f, 0.1f, 0.01f, 0.5f, static_cast<float>(width), state1.data(), state2.data(), nullptr};
      hpcrec::merge_update(target, from, how);
      hpcrec::merge(from, merged.data());
      hpcrec::update(target, merged.data(), how);
      const auto* elements = reinterpret_cast<const E*>(bits_of_rows.data());
      Reals<float> sums(n_vectors * width), largest(n_vectors * width), read(rows.size());
      hpcrec::pooled_gather(hpcrec::Gather<float, E>{elements, index.data(), offsets.data(), nullptr, nullptr, nullptr,
                                                     sums.data(), n_rows, width, n_ids, n_vectors, n_vectors * width,
                                                     nullptr, nullptr, 0});
      hpcrec::pooled_max(hpcrec::Largest<float, E>{elements, index.data(), offsets.data(), nullptr, largest.data(),
                                                   nullptr, n_rows, width, n_ids, n_vectors, n_vectors * width});
      hpcrec::from_half_rows(bits_of_rows.data(), kind, n_rows * width, read.data());
      Bits bits;
      for (const auto* found : {&state1, &state2, &sums, &largest, &read}) bits.add(*found);
      return bits;
    });
}

template <class T> void row_kernels(Random& random, int64_t width) {
  const int64_t n_rows = 700, n_vectors = 900;
  const Reals<T> rows = reals<T>(random, n_rows * width);
  Ints offsets(n_vectors + 1, 0);
  for (int64_t v = 0; v < n_vectors; ++v) offsets[v + 1] = offsets[v] + static_cast<int64_t>(random() % 8);
  const int64_t n_ids = offsets[n_vectors];
  Ints index = integers(random, n_ids, 0, n_rows - 1);
  for (int64_t k = 0; k < n_ids / 3; ++k) index[k] = 11;  // a hot row: its sum is cut into blocks
  const Reals<T> weights = reals<T>(random, n_ids), scale = reals<T>(random, n_vectors);
  same("pooled_gather", [&] {
    Reals<T> out(n_vectors * width);
    const hpcrec::Gather<T> call{rows.data(),  index.data(),      offsets.data(), nullptr, weights.data(),
                                 scale.data(), out.data(),        n_rows,         width,   n_ids,
                                 n_vectors,    n_vectors * width, nullptr,        nullptr, 0};
    hpcrec::pooled_gather(call);
    Bits bits;
    bits.add(out);
    return bits;
  });
  same("pooled_max and its backward", [&] {
    Reals<T> out(n_vectors * width), back(n_ids * width);
    std::vector<int32_t> winners(n_vectors * width);
    hpcrec::pooled_max(hpcrec::Largest<T>{rows.data(), index.data(), offsets.data(), nullptr, out.data(),
                                          winners.data(), n_rows, width, n_ids, n_vectors, n_vectors * width});
    hpcrec::pooled_max_backward(hpcrec::LargestBackward<T>{winners.data(), offsets.data(), out.data(), nullptr,
                                                           back.data(), width, n_ids, n_vectors, n_vectors * width});
    Bits bits;
    bits.add(out);
    bits.add(back);
    return bits;
  });
  const Reals<T> narrow = reals<T>(random, n_rows);
  same("pooled_gather of a table beside", [&] {
    Reals<T> out(n_vectors * (width + 1));
    Ints beside_start(n_vectors);
    std::iota(beside_start.begin(), beside_start.end(), n_vectors * width);
    const hpcrec::Gather<T> call{rows.data(),    index.data(),
                                 offsets.data(), nullptr,
                                 weights.data(), scale.data(),
                                 out.data(),     n_rows,
                                 width,          n_ids,
                                 n_vectors,      n_vectors * (width + 1),
                                 narrow.data(),  beside_start.data(),
                                 n_rows};
    hpcrec::pooled_gather(call);
    Bits bits;
    bits.add(out);
    return bits;
  });
  Ints to(n_vectors), repeated = integers(random, n_vectors, 0, 4);
  std::iota(to.begin(), to.end(), 0);
  for (auto& at : to) at *= width;
  for (auto& at : repeated) at *= width;
  const Reals<T> source = reals<T>(random, n_vectors * width);
  for (const bool accumulate : {false, true})
    same("copy_vectors", [&] {
      Reals<T> target(n_vectors * width, T{1});
      const hpcrec::Copy<T> call{source.data(),     target.data(), nullptr, accumulate ? repeated.data() : to.data(),
                                 scale.data(),      n_vectors,     width,   n_vectors * width,
                                 n_vectors * width, accumulate};
      hpcrec::copy_vectors(call);
      Bits bits;
      bits.add(target);
      return bits;
    });
  hpcrec::set_threads(1);
  Ints unique(n_ids), segments(n_ids + 1), order(n_ids), starts(n_ids);
  const int64_t n_unique = hpcrec::group(index.data(), n_ids, nullptr, 0, unique.data(), segments.data(), order.data());
  for (int64_t k = 0; k < n_ids; ++k) starts[k] = static_cast<int64_t>(random() % n_vectors) * width;
  const hpcrec::Occurrences<T> from{segments.data(),   order.data(), starts.data(), weights.data(),
                                    source.data(),     n_unique,     n_ids,         n_ids,
                                    n_vectors * width, width,        nullptr};
  same("merge, squared_norms", [&] {
    Reals<T> merged(n_unique * width), norms(n_unique);
    hpcrec::merge(from, merged.data());
    hpcrec::squared_norms(merged.data(), n_unique, width, norms.data());
    Bits bits;
    bits.add(merged);
    bits.add(norms);
    return bits;
  });
  for (const auto rule : {hpcrec::Rule::sgd, hpcrec::Rule::adagrad, hpcrec::Rule::rowwise_adagrad, hpcrec::Rule::adam})
    for (const bool fused : {false, true})
      same("update, merge_update", [&] {
        Reals<T> moved = rows, state1(n_rows * width, T{1}), state2(n_rows * width, T{1}), merged(n_unique * width);
        const hpcrec::Target<T> target{moved.data(), unique.data(), n_rows, n_unique, width};
        const hpcrec::Learning<T> how{
            rule,          T(0.1),        T(1e-8), T(0.1), T(0.01), T(0.5), static_cast<T>(width),
            state1.data(), state2.data(), nullptr};
        if (fused) {
          hpcrec::merge_update(target, from, how);
        } else {
          hpcrec::merge(from, merged.data());
          hpcrec::update(target, merged.data(), how);
        }
        Bits bits;
        bits.add(moved);
        bits.add(state1);
        bits.add(state2);
        return bits;
      });
  if constexpr (std::is_same_v<T, float>) {
    half_row_kernels<hpcrec::Bf16>(from, unique, index, offsets, rows, hpcrec::HalfKind::bf16);
    half_row_kernels<hpcrec::Fp16>(from, unique, index, offsets, rows, hpcrec::HalfKind::fp16);
  }
  hpcrec::Occurrences<T> both = from;
  Ints beside_start(n_ids);
  for (int64_t k = 0; k < n_ids; ++k) beside_start[k] = starts[k] + width - 1;
  both.beside_start = beside_start.data();
  for (const auto rule : {hpcrec::Rule::sgd, hpcrec::Rule::adagrad, hpcrec::Rule::rowwise_adagrad, hpcrec::Rule::adam})
    same("merge_update of a table beside", [&] {
      Reals<T> moved = rows, state1(n_rows * width, T{1}), state2(n_rows * width, T{1});
      Reals<T> its_moved = narrow, its_state1(n_rows, T{1}), its_state2(n_rows, T{1});
      const hpcrec::Target<T> target{moved.data(), unique.data(), n_rows, n_unique, width};
      const hpcrec::Target<T> its_target{its_moved.data(), unique.data(), n_rows, n_unique, 1};
      hpcrec::Learning<T> how{rule,          T(0.1),        T(1e-8), T(0.1), T(0.01), T(0.5), static_cast<T>(width),
                              state1.data(), state2.data(), nullptr};
      const hpcrec::Learning<T> its_how{
          rule, T(0.1), T(1e-8), T(0.1), T(0.01), T(0.5), T(1), its_state1.data(), its_state2.data(), nullptr};
      hpcrec::merge_update(target, both, how, its_target, its_how);
      Bits bits;
      bits.add(moved);
      bits.add(state1);
      bits.add(its_moved);
      bits.add(its_state1);
      return bits;
    });
}

int race() {
  int64_t sum = 0;
  hpcrec::parallel(2, [&](int, int) {
    for (int i = 0; i < 1000; ++i) ++sum;
  });
  std::printf("%d\n", sum > 0);
  return 0;
}
}  // namespace

int main(int argc, char** argv) {
  const std::string first = argc > 1 ? argv[1] : "1";
  if (first == "--race") return race();
  const int rounds = std::atoi(first.c_str());
  for (int round = 0; round < rounds; ++round) {
    Random random(round);
    ids_kernels(random);
    id_map(random);
    slot_map(random);
    message_kernels(random);
    largest_of_vectors(random);
    thresholded_messages(random);
    refused_positions(random);
    asked_bags(random);
    two_callers(random);
    disk_pages(static_cast<unsigned>(round));
    products<float>(random);
    products<double>(random);
    fm_kernels<float>(random);
    fm_kernels<double>(random);
    for (const int64_t width : {1, 8, 33, 64}) {
      row_kernels<float>(random, width);
      row_kernels<double>(random, width);
    }
  }
  std::printf("every kernel: the same bits on 1 to 7 threads, %d rounds\n", rounds);
  return rounds > 0 ? 0 : 2;
}
