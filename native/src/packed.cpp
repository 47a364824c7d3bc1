// Packing: two reads of the numbers, one that finds the widths and one that packs; words are put together in registers.
#include "hpcrec/packed.h"

#include <stdexcept>
#include <string>

namespace hpcrec {
namespace {
constexpr int64_t group = 8;  // numbers that begin at a byte whatever their width, so that groups wait for no other
constexpr int64_t word = sizeof(uint64_t);

[[noreturn]] void refuse(const std::string& found) {
  throw std::invalid_argument(found);
}

// Bits that each number of a block takes where these are all that any of them has.
int64_t width_of(uint64_t bits) {
  const int64_t n = bits ? 64 - __builtin_clzll(bits) : 0;
  return n > most_packed_bits ? whole_word_bits : n;
}

// Numbers of a block as they are packed, by number.
struct Plain {
  const int64_t* numbers;
  uint64_t operator()(int64_t i) const { return static_cast<uint64_t>(numbers[i]); }
};
// What lies between a number and the one before, modulo 2^64: large where it does not rise.
struct Between {
  const int64_t* numbers;
  uint64_t operator()(int64_t i) const {
    return static_cast<uint64_t>(numbers[i]) - static_cast<uint64_t>(i ? numbers[i - 1] : -1) - 1;
  }
};

// Every bit that a number of [first, last) has.
template <class Number> uint64_t bits_in(const Number& number, int64_t first, int64_t last) {
  uint64_t bits = 0;
  if (first == 0 && first < last) bits |= number(first++);
  for (int64_t i = first; i < last; ++i) bits |= number(i);
  return bits;
}

// Bytes of all blocks.
template <class Number> int64_t count(const Number& number, int64_t n) {
  int64_t bytes = packed_blocks(n);
  for (int64_t first = 0; first < n; first += packed_block) {
    const int64_t last = std::min(n, first + packed_block);
    bytes += ((last - first) * width_of(bits_in(number, first, last)) + 7) / 8;
  }
  return bytes;
}

// Packs [first, first + n), n <= group, and may write a word's bytes behind them.
template <class Number> void pack_group(const Number& number, int64_t first, int64_t n, int64_t bits, uint8_t* out) {
  uint64_t held = 0;
  int64_t filled = 0;
  for (int64_t i = 0; i < n; ++i) {
    held |= number(first + i) << filled;
    std::memcpy(out, &held, word);
    filled += bits;
    out += filled >> 3;
    held >>= filled & ~int64_t{7};  // at most 56: 7 bits were filled at most, and at most 56 came
    filled &= 7;
  }
}

template <class Number> void pack_words(const Number& number, int64_t first, int64_t last, uint8_t* out) {
  for (; first < last; ++first, out += word) {
    const uint64_t whole = number(first);
    std::memcpy(out, &whole, word);
  }
}

template <class Number> void pack_block(const Number& number, int64_t first, int64_t last, int64_t bits, uint8_t* out) {
  for (; first + group <= last; first += group, out += bits) pack_group(number, first, group, bits, out);
  pack_group(number, first, last - first, bits, out);
}

// Where they end; null where they do not fit.
template <class Number> uint8_t* pack(const Number& number, int64_t n, uint8_t* out, const uint8_t* end) {
  if (end - out < packed_blocks(n)) return nullptr;
  uint8_t* widths = out;
  out += packed_blocks(n);
  for (int64_t first = 0; first < n; first += packed_block) {
    const int64_t last = std::min(n, first + packed_block), bits = width_of(bits_in(number, first, last));
    const int64_t bytes = ((last - first) * bits + 7) / 8;
    if (end - out < bytes) return nullptr;
    *widths++ = static_cast<uint8_t>(bits);
    if (bits == whole_word_bits) {
      pack_words(number, first, last, out);
    } else if (end - out >= bytes + word) {
      pack_block(number, first, last, bits, out);
    } else {
      uint8_t copy[packed_block * most_packed_bits / 8 + word];
      pack_block(number, first, last, bits, copy);
      std::memcpy(out, copy, bytes);
    }
    out += bytes;
  }
  return out;
}

}  // namespace

PackedBytes packed_bytes(const int64_t* numbers, int64_t n) {
  return {count(Plain{numbers}, n), count(Between{numbers}, n)};
}

uint8_t* append_packed(const int64_t* numbers, int64_t n, bool rising, uint8_t* out, const uint8_t* end) {
  return rising ? pack(Between{numbers}, n, out, end) : pack(Plain{numbers}, n, out, end);
}

int64_t packed_width(const int64_t* numbers, int64_t n, bool rising) {
  return width_of(rising ? bits_in(Between{numbers}, 0, n) : bits_in(Plain{numbers}, 0, n));
}

void pack_numbers(const int64_t* numbers, int64_t n, bool rising, uint8_t* out, int64_t size) {
  if (append_packed(numbers, n, rising, out, out + size) != out + size)
    refuse("numbers do not take the " + std::to_string(size) + " bytes of out");
}

void unpack_numbers(const uint8_t* packed, int64_t size, int64_t n, bool rising, int64_t* out) {
  uint64_t next = 0;
  const uint8_t* end = rising ? read_packed(packed, packed + size, n,
                                            [&](int64_t i, uint64_t number) {
                                              out[i] = static_cast<int64_t>(next += number);
                                              ++next;
                                            })
                              : read_packed(packed, packed + size, n,
                                            [=](int64_t i, uint64_t number) { out[i] = static_cast<int64_t>(number); });
  if (end != packed + size)
    refuse("packed: its " + std::to_string(size) + " bytes are not " + std::to_string(n) + " numbers");
}

}  // namespace hpcrec
