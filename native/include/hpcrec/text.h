// Delimited text as columns: where the values of a block of lines stand, and what they are.
//
// A value is the bytes [begin[i], end[i]) of the block; blocks are shorter than 2^31 bytes. One thread: ranks share out
// the files.
#pragma once
#include <cstdint>

namespace hpcrec {

// What a value turned out to be.
enum State : uint8_t { good = 0, empty = 1, bad = 2 };

// Values of a block, one after the other.
struct Values {
  const uint8_t* text;
  int64_t n_bytes;
  const int32_t* begin;
  const int32_t* end;
  int64_t n;
};

// How lines are cut into values.
struct Cut {
  uint8_t delimiter;
  int quote;               // a byte, or -1 for none
  const int32_t* columns;  // wanted, ascending
  int64_t n_wanted;
};

// Cuts whole lines, each ended by \n; there are n_lines of them. begin and end are [wanted, line]; columns[line] is how
// many columns were found, or -1 where a quote is not closed before the end of its value.
void cut_lines(const uint8_t* text, int64_t n_bytes, const Cut& how, int64_t n_lines, int32_t* begin, int32_t* end,
               int32_t* line_begin, int32_t* columns);
// Cuts values at a separator. Returns how many items there are; begin and end have room for `room` of them.
int64_t cut_lists(const Values& from, uint8_t separator, int64_t room, int32_t* begin, int32_t* end, int64_t* offsets);

void parse_integers(const Values& from, int64_t* out, uint8_t* state);
void parse_numbers(const Values& from, double* out, uint8_t* state);
void parse_hex(const Values& from, int64_t digits, uint64_t* out, uint8_t* state);
void hash_text(const Values& from, uint64_t* out, uint8_t* state);

// Rows 1 .. rows - 1 by a salted hash of words.
void salted_rows(const uint64_t* words, int64_t n, uint64_t salt, int64_t rows, int64_t* out);

}  // namespace hpcrec
