// LMDB: rows by number as integer keys, one transaction a batch, not synchronised while a turn is under way (what it
// is asked for is no more than a cache of rows). Arguments: FOLDER ROWS RECORD_BYTES LIMIT_BYTES. Commands: see
// worker.h.
#include <lmdb.h>

#include "worker.h"

namespace {
constexpr size_t kRoom = 4;  // times the bytes of rows: pages that are replaced are free only later

void check(int code, const char* what) {
  if (code != 0) fail(std::string(what) + ": " + mdb_strerror(code));
}

class Lmdb : public Store {
 public:
  Lmdb(const std::string& folder, size_t rows, size_t record_bytes) : record_bytes_(record_bytes) {
    check(mdb_env_create(&environment_), "environment");
    check(mdb_env_set_mapsize(environment_, (kRoom * rows * record_bytes + (size_t{1} << 28)) & ~size_t{4095}), "size");
    const unsigned flags = MDB_NOSYNC | MDB_NORDAHEAD | MDB_NOTLS | MDB_NOMEMINIT;
    check(mdb_env_open(environment_, folder.c_str(), flags, 0644), "open");
    MDB_txn* begun;
    check(mdb_txn_begin(environment_, nullptr, 0, &begun), "begin");
    check(mdb_dbi_open(begun, nullptr, MDB_INTEGERKEY | MDB_CREATE, &table_), "table");
    MDB_stat found;
    check(mdb_stat(begun, table_, &found), "count");
    filled_ = int64_t(found.ms_entries);
    check(mdb_txn_commit(begun), "commit");
  }
  ~Lmdb() override { mdb_env_close(environment_); }

  void read(const int32_t* rows, int64_t n, char* into, int threads) override {
    in_parts(n, threads, [&](int64_t first, int64_t count) {
      MDB_txn* begun;
      check(mdb_txn_begin(environment_, nullptr, MDB_RDONLY, &begun), "begin");
      for (int64_t i = first; i < first + count; ++i) {
        MDB_val key{sizeof(int32_t), const_cast<int32_t*>(rows + i)}, value;
        check(mdb_get(begun, table_, &key, &value), "get");
        if (value.mv_size != record_bytes_) fail("a record has another size");
        std::memcpy(into + size_t(i) * record_bytes_, value.mv_data, record_bytes_);
      }
      mdb_txn_abort(begun);
    });
  }

  void write(const int32_t* rows, int64_t n, const char* from, int) override {
    MDB_txn* begun;
    check(mdb_txn_begin(environment_, nullptr, 0, &begun), "begin");
    MDB_cursor* at;
    check(mdb_cursor_open(begun, table_, &at), "cursor");
    for (int64_t i = 0; i < n; ++i) {
      MDB_val key{sizeof(int32_t), const_cast<int32_t*>(rows + i)};
      MDB_val value{record_bytes_, const_cast<char*>(from + size_t(i) * record_bytes_)};
      const bool next = rows[i] == filled_;  // of a table that is being filled: its pages are full
      check(mdb_cursor_put(at, &key, &value, next ? unsigned(MDB_APPEND) : 0u), "put");
      filled_ += next;
    }
    mdb_cursor_close(at);
    check(mdb_txn_commit(begun), "commit");
  }

  void settle() override {
    int file;
    check(mdb_env_get_fd(environment_, &file), "file");
    write_pages(file);
  }

 private:
  size_t record_bytes_;
  MDB_env* environment_ = nullptr;
  MDB_dbi table_ = 0;
  int64_t filled_;  // rows, from the first on
};
}  // namespace

int main(int, char** arguments) {
  const size_t rows = std::stoull(arguments[2]), record_bytes = std::stoull(arguments[3]);
  Lmdb store(arguments[1], rows, record_bytes);
  Worker(store, record_bytes).serve();
}
