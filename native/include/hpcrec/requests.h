// What one rank asks of each of many others, as one message each. See hpcrec/kernels/reference_requests.py.
#pragma once
#include <cstdint>

namespace hpcrec {

// The ids of one entry for one owner, in bags. As it is read: from one sender.
struct RequestCell {
  int64_t owner, entry, n_ids, n_bags;
};

struct RequestsAsked {
  const int64_t* ids;
  const int64_t* lengths;  // of all bags
  const RequestCell* cells;
  int64_t n_ids, n_bags, n_cells, n_owners, n_entries;
  const bool* weighted;  // [n_entries]
  int64_t item;          // bytes of a weight
};

struct RequestPlan {
  int64_t* bytes;         // [n_owners]
  int64_t* coding;        // [n_cells]
  int64_t* distinct;      // [n_cells]
  int64_t* table_ids;     // of all tables, as is the next
  int64_t* table_places;  // both have room for as many numbers as there are ids; when written, as many as these say
  int64_t n_table_ids, n_table_places;
};

// Fills the plan, and the two numbers of it.
void plan_requests(const RequestsAsked& asked, const bool* far, RequestPlan& plan);
void write_requests(const RequestsAsked& asked, const RequestPlan& plan, const uint8_t* weights, int64_t weights_bytes,
                    const int64_t* at, uint8_t* out, int64_t size);

struct RequestsReceived {
  const uint8_t* message;
  int64_t size;
  const int64_t *at, *bytes;
  int64_t n_senders, n_entries;
  const bool* weighted;
  int64_t item;
};

struct RequestsSize {
  int64_t ids, bags, cells, weights;
};

struct RequestsRead {
  int64_t* ids;
  int64_t* offsets;
  RequestCell* cells;
  uint8_t* weights;
  RequestsSize room;
};

// What `read_requests` needs room for; refuses messages that are damaged.
RequestsSize measure_requests(const RequestsReceived& from);
void read_requests(const RequestsReceived& from, const RequestsRead& to);

}  // namespace hpcrec
