// What the writer and the reader of requests share.
#pragma once
#include <cstdint>
#include <vector>

namespace hpcrec::requests_format {

using Numbers = std::vector<int64_t>;

enum class Coding : int64_t { packed = 0, rising = 1, table = 2 };  // of the ids of a cell

constexpr int64_t lengths_follow = 1, coding_unit = 2;  // in the number that says how a cell is written
constexpr int64_t most_varint_bytes = 5;
constexpr int64_t padding = 64;  // bytes behind a message are fewer

}  // namespace hpcrec::requests_format
