// Finding, inserting and replacing ids; segments that grow.
#include "hpcrec/id_index.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <stdexcept>
#include <string>

#include "hpcrec/row.h"
#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace hpcrec {
namespace {
constexpr int64_t ids_at_once = 256;   // searches in flight: many times what a core has misses, which all wait twice
constexpr int64_t segment_ids = 1024;  // of an index for few ids
constexpr uint8_t many = std::numeric_limits<uint8_t>::max();
}  // namespace

uint32_t IdIndex::Chunk::where(uint8_t wanted) const {
#ifdef __SSE2__
  const __m128i tags = _mm_load_si128(reinterpret_cast<const __m128i*>(this));
  const __m128i same = _mm_cmpeq_epi8(tags, _mm_set1_epi8(static_cast<char>(wanted)));
  return static_cast<uint32_t>(_mm_movemask_epi8(same)) & ((1u << chunk_ids) - 1);
#else
  uint32_t bits = 0;
  for (int i = 0; i < chunk_ids; ++i) bits |= static_cast<uint32_t>(tag[i] == wanted) << i;
  return bits;
#endif
}

// 85 of 100 places: a segment of one chunk may be full, for its search ends there.
bool IdIndex::Segment::full() const {
  const uint64_t places = uint64_t{n_chunks} * chunk_ids;
  return n_chunks <= 1 ? n_ids >= places : uint64_t{n_ids} * 100 >= places * 85;
}

void IdIndex::Segment::put(uint64_t hash, uint32_t number) {
  uint32_t at = home(hash), free;
  while (!(free = chunks[at].where(0))) {
    if (chunks[at].passed < many) ++chunks[at].passed;
    at = next(at, hash);
  }
  const int i = __builtin_ctz(free);
  chunks[at].tag[i] = tag_of(hash);
  chunks[at].number[i] = number;
}

IdIndex::IdIndex(const IdKey& key, int64_t expected, bool with_links) : key_(key), segment_bits_(0), ids_(with_links) {
  while (segment_bits_ < most_segment_bits && (segment_ids << segment_bits_) < expected) ++segment_bits_;
  segments_.resize(size_t{1} << segment_bits_);
}

int64_t IdIndex::find(int64_t id, uint64_t hash) const {
  const Segment& segment = segments_[segment_of(hash)];
  uint32_t at = segment.n_chunks ? segment.home(hash) : 0;
  for (uint32_t n = 0; n < segment.n_chunks; ++n) {
    const Chunk& chunk = segment.chunks[at];
    for (uint32_t found = chunk.where(tag_of(hash)); found; found &= found - 1) {
      const uint32_t number = chunk.number[__builtin_ctz(found)];
      if (ids_[number] == id) return number;
    }
    if (!chunk.passed) return -1;
    at = segment.next(at, hash);
  }
  return -1;
}

void IdIndex::find(const int64_t* ids, int64_t n, int64_t* numbers) const {
  uint64_t hashes[ids_at_once];
  const Chunk* homes[ids_at_once];
  for (int64_t first = 0; first < n; first += ids_at_once) {
    const int64_t here = std::min(ids_at_once, n - first);
    for (int64_t k = 0; k < here; ++k) {
      hashes[k] = hash(ids[first + k]);
      const Segment& segment = segments_[segment_of(hashes[k])];
      homes[k] = segment.n_chunks ? &segment.chunks[segment.home(hashes[k])] : nullptr;
      __builtin_prefetch(homes[k], 0, 2);
    }
    for (int64_t k = 0; k < here; ++k) {  // the first id of the same tag is mostly the one
      const uint32_t found = homes[k] ? homes[k]->where(tag_of(hashes[k])) : 0;
      numbers[first + k] = found ? static_cast<int64_t>(homes[k]->number[__builtin_ctz(found)]) : -1;
      if (found) __builtin_prefetch(&ids_[numbers[first + k]], 0, 2);
    }
    for (int64_t k = 0; k < here; ++k) {
      const int64_t id = ids[first + k], number = numbers[first + k];
      if (number < 0 || ids_[number] != id) numbers[first + k] = find(id, hashes[k]);
    }
  }
}

void IdIndex::prefetch(int64_t id) const {
  const uint64_t h = hash(id);
  const Segment& segment = segments_[segment_of(h)];
  if (segment.n_chunks) __builtin_prefetch(&segment.chunks[segment.home(h)], 1);
}

int64_t IdIndex::insert(int64_t id) {
  if (size_ == most) throw std::length_error("ids: " + std::to_string(most) + " are all that one map can hold");
  const uint64_t h = hash(id);
  ids_.reserve(size_ + 1);
  make_room(h);
  put(h, static_cast<uint32_t>(size_));
  ids_[size_] = id;
  return size_++;
}

void IdIndex::replace(int64_t number, int64_t id) {
  const uint64_t h = hash(id);
  make_room(h);  // what may fail for want of memory comes first
  take_out(hash(ids_[number]), static_cast<uint32_t>(number));
  ids_[number] = id;
  put(h, static_cast<uint32_t>(number));
}

void IdIndex::make_room(uint64_t hash) {
  const uint64_t segment = segment_of(hash);
  if (segments_[segment].full()) grow(segment);
}

void IdIndex::put(uint64_t hash, uint32_t number) {
  Segment& segment = segments_[segment_of(hash)];
  segment.put(hash, number);
  ++segment.n_ids;
}

void IdIndex::take_out(uint64_t hash, uint32_t number) {
  Segment& segment = segments_[segment_of(hash)];
  for (uint32_t at = segment.home(hash);; at = segment.next(at, hash)) {
    Chunk& chunk = segment.chunks[at];
    for (uint32_t found = chunk.where(tag_of(hash)); found; found &= found - 1) {
      const int i = __builtin_ctz(found);
      if (chunk.number[i] != number) continue;
      chunk.tag[i] = 0;
      --segment.n_ids;
      return;
    }
    if (chunk.passed < many) --chunk.passed;  // this id has passed here and was counted
  }
}

// Chunks of the segment when it has grown, an odd number: by 15 to 35 of 100, drawn for each segment and size, so that
// segments, which fill alike, do not grow at the same time.
uint32_t IdIndex::larger(uint64_t segment) const {
  const uint64_t n = segments_[segment].n_chunks;
  if (n == 0) return 1;
  const uint64_t percent = 15 + mix(segment * golden + n) % 21;
  return static_cast<uint32_t>((n + std::max<uint64_t>(1, n * percent / 100)) | 1);
}

HPCREC_INLINE void IdIndex::prefetch_ids(const Chunk& chunk) const {
  for (int i = 0; i < chunk_ids; ++i)
    if (chunk.tag[i]) __builtin_prefetch(&ids_[chunk.number[i]]);
}

void IdIndex::grow(uint64_t segment) {
  Segment& old = segments_[segment];
  Segment grown;
  grown.n_chunks = larger(segment);
  grown.n_ids = old.n_ids;
  const size_t n_bytes = grown.n_chunks * sizeof(Chunk);
  grown.chunks.reset(static_cast<Chunk*>(std::aligned_alloc(alignof(Chunk), n_bytes)));
  if (!grown.chunks) throw std::bad_alloc();
  std::memset(static_cast<void*>(grown.chunks.get()), 0, n_bytes);
  constexpr uint32_t ahead = 4;  // chunks whose ids are on their way
  for (uint32_t c = 0; c < old.n_chunks + ahead; ++c) {
    if (c < old.n_chunks) prefetch_ids(old.chunks[c]);
    if (c < ahead) continue;
    const Chunk& from = old.chunks[c - ahead];
    for (int i = 0; i < chunk_ids; ++i)
      if (from.tag[i]) grown.put(hash(ids_[from.number[i]]), from.number[i]);
  }
  copied_ += grown.n_ids;
  segments_[segment] = std::move(grown);
}

int64_t IdIndex::bytes() const {
  int64_t chunks = 0;
  for (const Segment& segment : segments_) chunks += segment.n_chunks;
  return ids_.bytes() + chunks * static_cast<int64_t>(sizeof(Chunk)) +
         static_cast<int64_t>(segments_.size() * sizeof(Segment));
}

Spread IdIndex::spread() const {
  Spread found{0, 0, static_cast<int64_t>(segments_.size()), copied_};
  for (const Segment& segment : segments_) {
    found.fullest_segment = std::max<int64_t>(found.fullest_segment, segment.n_ids);
    for (uint32_t c = 0; c < segment.n_chunks; ++c)
      for (int i = 0; i < chunk_ids; ++i) {
        if (!segment.chunks[c].tag[i]) continue;
        const uint64_t h = hash(ids_[segment.chunks[c].number[i]]);
        int64_t probe = 1;
        for (uint32_t at = segment.home(h); at != c; at = segment.next(at, h)) ++probe;
        found.longest_probe = std::max(found.longest_probe, probe);
      }
  }
  return found;
}

}  // namespace hpcrec
