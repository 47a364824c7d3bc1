// Delimited text as columns. What is computed is written in hpcrec/kernels/reference_text.py.
#include "hpcrec/text.h"

#include <charconv>
#include <cstring>
#include <stdexcept>

#include "hpcrec/mix.h"

namespace hpcrec {
namespace {
constexpr int64_t most_digits = 18;  // of an integer: any such fits 64 bits

inline bool is_digit(uint8_t byte) {
  return static_cast<uint8_t>(byte - '0') < 10;
}

void require_inside(const Values& from) {
  for (int64_t i = 0; i < from.n; ++i)
    if (from.begin[i] < 0 || from.begin[i] > from.end[i] || from.end[i] > from.n_bytes)
      throw std::invalid_argument("values must lie in the text: 0 <= begin <= end <= bytes");
}

// Value of a hexadecimal digit; above 15 for any other byte.
struct Nibbles {
  uint8_t of[256];
  constexpr Nibbles() : of() {
    for (int i = 0; i < 256; ++i) of[i] = 0xff;
    for (int i = 0; i < 10; ++i) of['0' + i] = static_cast<uint8_t>(i);
    for (int i = 0; i < 6; ++i) of['a' + i] = of['A' + i] = static_cast<uint8_t>(10 + i);
  }
};
constexpr Nibbles nibbles;

// One value of a line: [begin, end), and whether a quote was left open. Moves `at` to the byte that ends the value.
struct Value {
  const uint8_t *begin, *end;
  bool open;
};

inline Value next_value(const uint8_t*& at, const Cut& how) {
  const uint8_t* begin = at;
  if (how.quote >= 0 && *at == how.quote) {
    for (++at; *at != '\n'; ++at) {
      if (*at != how.quote) continue;
      if (at[1] != how.quote) break;
      ++at;  // a doubled quote is part of the value
    }
    const uint8_t* end = at;
    bool open = *at == '\n';
    if (!open) {
      ++at;
      if (*at == '\r' && at[1] == '\n') ++at;
      open = *at != how.delimiter && *at != '\n';
    }
    if (!open) return {begin + 1, end, false};
    while (*at != how.delimiter && *at != '\n') ++at;
    return {begin, at, true};
  }
  while (*at != how.delimiter && *at != '\n') ++at;
  const uint8_t* end = at;
  if (*at == '\n' && end > begin && end[-1] == '\r') --end;
  return {begin, end, false};
}

double number(const char* begin, const char* end, uint8_t* state) {
  double value = 0;
  const char* from = begin < end && *begin == '+' ? begin + 1 : begin;
  const char* digits = from < end && *from == '-' && from == begin ? from + 1 : from;
  const bool plain = digits < end && (is_digit(static_cast<uint8_t>(*digits)) || *digits == '.');
  const auto done = std::from_chars(from, end, value);
  // Out of range: too large, or below the smallest double. Neither is a number that a column can hold.
  *state = plain && done.ec == std::errc() && done.ptr == end ? good : bad;
  return *state == good ? value : 0.0;
}
}  // namespace

void cut_lines(const uint8_t* text, int64_t n_bytes, const Cut& how, int64_t n_lines, int32_t* begin, int32_t* end,
               int32_t* line_begin, int32_t* columns) {
  if (n_bytes && text[n_bytes - 1] != '\n') throw std::invalid_argument("text must end in a newline");
  auto place = [&](const uint8_t* p) { return static_cast<int32_t>(p - text); };
  const uint8_t *at = text, *last = text + n_bytes;
  int64_t line = 0;
  for (; line < n_lines && at < last; ++line) {
    line_begin[line] = place(at);
    int32_t column = 0;
    int64_t wanted = 0;
    bool open = false;
    for (bool more = true; more; ++column, ++at) {
      const Value value = next_value(at, how);
      open |= value.open;
      if (wanted < how.n_wanted && how.columns[wanted] == column) {
        begin[wanted * n_lines + line] = place(value.begin);
        end[wanted * n_lines + line] = place(value.end);
        ++wanted;
      }
      more = *at != '\n';
    }
    for (; wanted < how.n_wanted; ++wanted)
      begin[wanted * n_lines + line] = end[wanted * n_lines + line] = place(at - 1);
    columns[line] = open ? -1 : column;
  }
  if (line != n_lines || at != last) throw std::invalid_argument("text has another number of lines than was said");
  line_begin[n_lines] = place(at);
}

int64_t cut_lists(const Values& from, uint8_t separator, int64_t room, int32_t* begin, int32_t* end, int64_t* offsets) {
  require_inside(from);
  int64_t n = 0;
  offsets[0] = 0;
  for (int64_t i = 0; i < from.n; ++i) {
    int32_t at = from.begin[i];
    for (bool more = at < from.end[i]; more; ++n) {
      if (n == room) throw std::invalid_argument("there are more items than there is room for");
      begin[n] = at;
      while (at < from.end[i] && from.text[at] != separator) ++at;
      end[n] = at;
      more = at++ < from.end[i];
    }
    offsets[i + 1] = n;
  }
  return n;
}

void parse_integers(const Values& from, int64_t* out, uint8_t* state) {
  require_inside(from);
  for (int64_t i = 0; i < from.n; ++i) {
    const uint8_t *at = from.text + from.begin[i], *end = from.text + from.end[i];
    out[i] = 0;
    state[i] = at == end ? empty : bad;
    if (at == end) continue;
    const bool negative = *at == '-';
    if (negative || *at == '+') ++at;
    if (end - at < 1 || end - at > most_digits) continue;
    int64_t value = 0;
    bool digits = true;
    for (; at < end; ++at) {
      digits &= is_digit(*at);
      value = value * 10 + static_cast<uint8_t>(*at - '0') % 10;
    }
    if (!digits) continue;
    out[i] = negative ? -value : value;
    state[i] = good;
  }
}

void parse_numbers(const Values& from, double* out, uint8_t* state) {
  require_inside(from);
  for (int64_t i = 0; i < from.n; ++i) {
    const auto* begin = reinterpret_cast<const char*>(from.text) + from.begin[i];
    const auto* end = reinterpret_cast<const char*>(from.text) + from.end[i];
    out[i] = 0;
    state[i] = empty;
    if (begin < end) out[i] = number(begin, end, state + i);
  }
}

void parse_hex(const Values& from, int64_t digits, uint64_t* out, uint8_t* state) {
  require_inside(from);
  for (int64_t i = 0; i < from.n; ++i) {
    const uint8_t *at = from.text + from.begin[i], *end = from.text + from.end[i];
    const int64_t length = end - at;
    out[i] = 0;
    state[i] = length ? bad : empty;
    if (length < 1 || length > 16 || (digits && length != digits)) continue;
    uint64_t value = 0;
    uint8_t seen = 0;
    if (length == 8) {  // by far the most: no loop, and bits of all digits at once
      uint8_t nibble[8];
      for (int k = 0; k < 8; ++k) seen |= nibble[k] = nibbles.of[at[k]];
      for (int k = 0; k < 8; ++k) value = value << 4 | (nibble[k] & 15);
    } else {
      for (; at < end; ++at) {
        const uint8_t nibble = nibbles.of[*at];
        seen |= nibble;
        value = value << 4 | (nibble & 15);
      }
    }
    if (seen > 15) continue;
    out[i] = value;
    state[i] = good;
  }
}

void hash_text(const Values& from, uint64_t* out, uint8_t* state) {
  require_inside(from);
  for (int64_t i = 0; i < from.n; ++i) {
    const uint8_t* at = from.text + from.begin[i];
    int64_t left = from.end[i] - from.begin[i];
    state[i] = left ? good : empty;
    uint64_t hash = mix(static_cast<uint64_t>(left));
    for (; left > 0; left -= 8, at += 8) {
      uint64_t word = 0;
      // bytes are folded in the order that they have on a little-endian machine
      for (int64_t b = (left < 8 ? left : 8) - 1; b >= 0; --b) word = word << 8 | at[b];
      hash = mix(hash ^ word);
    }
    out[i] = hash;
  }
}

void salted_rows(const uint64_t* words, int64_t n, uint64_t salt, int64_t rows, int64_t* out) {
  const uint64_t used = static_cast<uint64_t>(rows - 1);
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<int64_t>(mix(words[i] ^ salt) % used) + 1;
}

}  // namespace hpcrec
