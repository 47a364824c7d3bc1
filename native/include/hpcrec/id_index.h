// Any 64-bit ids numbered from 0 in order of arrival, and found again: open addressing, in segments that grow alone.
//
// A segment is an array of chunks of one cache line: tags of 12 ids, and their numbers. What does not fit into its
// chunk goes on to others, each of which counts what has passed it, so that an id can be taken out and leave no mark.
// The ids themselves lie in order of their numbers: finding one reads two cache lines. An id takes 8 bytes and about 7
// of chunks. Segments grow by about a quarter, each at sizes of its own: an insertion copies one segment at most, and
// few segments grow at a time.
//
// The hash is keyed: any two ids meet with the chance of random numbers, whatever they are, where the key is unknown to
// whoever chose them (multiplication and addition modulo 2^128; Dietzfelbinger, 1996). No result depends on the key.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "hpcrec/mix.h"

namespace hpcrec {

// What an order (id_order.h) knows of a row.
struct IdLink {
  uint32_t previous, next, count, clock;
};

// Ids by number and, where there is an order, each one's link behind it: mostly on the same cache line, so that who has
// found an id has its link too. In blocks: growing moves none, and memory that holds none yet is untouched.
class IdList {
  static constexpr int shift = 16;
  static constexpr int64_t block_items = int64_t{1} << shift;
  int64_t item_bytes_;
  std::vector<std::unique_ptr<unsigned char[]>> blocks_;

  unsigned char* item(int64_t n) const { return blocks_[n >> shift].get() + (n & (block_items - 1)) * item_bytes_; }

 public:
  explicit IdList(bool with_links) : item_bytes_(sizeof(int64_t) + (with_links ? sizeof(IdLink) : 0)) {}

  int64_t& operator[](int64_t n) { return *reinterpret_cast<int64_t*>(item(n)); }
  const int64_t& operator[](int64_t n) const { return *reinterpret_cast<const int64_t*>(item(n)); }
  IdLink& link(int64_t n) const { return *reinterpret_cast<IdLink*>(item(n) + sizeof(int64_t)); }
  // Makes room for n items.
  void reserve(int64_t n) {
    while (static_cast<int64_t>(blocks_.size()) * block_items < n)
      blocks_.emplace_back(new unsigned char[static_cast<size_t>(block_items * item_bytes_)]);
  }
  int64_t bytes() const { return static_cast<int64_t>(blocks_.size()) * block_items * item_bytes_; }
};

struct IdKey {
  uint64_t times_low, times_high, plus_low, plus_high;
};

// How evenly ids lie: chunks that the slowest search for one looks at, and ids of the fullest segment. And ids that
// growing segments have copied so far.
struct Spread {
  int64_t longest_probe, fullest_segment, segments, copied;
};

class IdIndex {
 public:
  static constexpr int64_t most = (int64_t{1} << 32) - 1;  // ids

  // `expected`: as many ids at most; fewer segments are enough for few. `with_links`: there is room for an order's.
  IdIndex(const IdKey& key, int64_t expected, bool with_links);
  IdIndex(const IdIndex&) = delete;  // an order has a pointer to its list
  IdIndex& operator=(const IdIndex&) = delete;

  int64_t size() const { return size_; }
  int64_t id(int64_t number) const { return ids_[number]; }
  IdList& list() { return ids_; }
  // The number of an id, or -1.
  int64_t find(int64_t id) const { return find(id, hash(id)); }
  // The same of n ids, of which several are on their way from memory at a time.
  void find(const int64_t* ids, int64_t n, int64_t* numbers) const;
  // Asks for what `find` will read first.
  void prefetch(int64_t id) const;
  // Numbers an id that is not there: with size().
  int64_t insert(int64_t id);
  // Gives the number to an id that is not there; the one that had it is gone.
  void replace(int64_t number, int64_t id);

  int64_t bytes() const;
  Spread spread() const;

 private:
  static constexpr int most_segment_bits = 13;
  static constexpr int chunk_ids = 12;
  struct alignas(64) Chunk {
    uint8_t tag[chunk_ids];  // 0: empty
    uint8_t passed;          // ids whose search goes on from here; 255: at least so many
    uint8_t unused[3];
    uint32_t number[chunk_ids];

    uint32_t where(uint8_t wanted) const;  // bit i: tag[i] is wanted
  };
  struct Freed {
    void operator()(Chunk* chunks) const { std::free(chunks); }
  };
  struct Segment {
    std::unique_ptr<Chunk[], Freed> chunks;
    uint32_t n_chunks = 0, n_ids = 0;

    // The chunk where the search for a hash begins.
    uint32_t home(uint64_t hash) const { return static_cast<uint32_t>((hash & 0xffffffff) * n_chunks >> 32); }
    // And the one after it. Steps are powers of 2 and the number of chunks is odd, so that a search comes by them all.
    uint32_t next(uint32_t at, uint64_t hash) const {
      const uint32_t step = (1u << (hash >> 40 & 7)) % n_chunks, to = at + step;
      return to >= n_chunks ? to - n_chunks : to;
    }
    void put(uint64_t hash, uint32_t number);
    bool full() const;
  };

  uint64_t hash(int64_t id) const {
    const uint64_t x = static_cast<uint64_t>(id);
    const auto plus = static_cast<unsigned __int128>(key_.plus_high) << 64 | key_.plus_low;
    const auto product = static_cast<unsigned __int128>(key_.times_low) * x + plus;
    return mix(static_cast<uint64_t>(product >> 64) + key_.times_high * x);
  }
  static uint8_t tag_of(uint64_t hash) {
    const auto tag = static_cast<uint8_t>(hash >> 32);
    return tag ? tag : 1;
  }
  uint64_t segment_of(uint64_t hash) const { return segment_bits_ ? hash >> (64 - segment_bits_) : 0; }
  int64_t find(int64_t id, uint64_t hash) const;
  void make_room(uint64_t hash);
  void put(uint64_t hash, uint32_t number);
  void take_out(uint64_t hash, uint32_t number);
  void prefetch_ids(const Chunk& chunk) const;
  void grow(uint64_t segment);
  uint32_t larger(uint64_t segment) const;

  IdKey key_;
  int segment_bits_;
  int64_t size_ = 0, copied_ = 0;
  std::vector<Segment> segments_;
  IdList ids_;
};

}  // namespace hpcrec
