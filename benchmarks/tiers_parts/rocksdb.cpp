// RocksDB as the tables of FBGEMM use it, as far as that is known: rows by number, read in batches (multi-get) past the
// page cache, found by bloom filters; no log before writes, no checksums, no compression. Threads share one database.
// Arguments: FOLDER ROWS RECORD_BYTES LIMIT_BYTES. Commands: see worker.h.
#include <rocksdb/db.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/options.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>

#include <chrono>
#include <memory>

#include "worker.h"

namespace {
constexpr size_t kBlockBytes = 4096;
constexpr double kBitsAKey = 10;

void check(const rocksdb::Status& status) {
  if (!status.ok()) fail(status.ToString());
}

// Big-endian, so that numbers that rise are keys that rise: a filling has no files that overlap.
struct Key {
  explicit Key(int32_t row) : bytes(__builtin_bswap32(uint32_t(row))) {}
  rocksdb::Slice slice() const { return {reinterpret_cast<const char*>(&bytes), sizeof(bytes)}; }
  uint32_t bytes;
};

rocksdb::Options options_of(size_t limit_bytes) {
  rocksdb::Options options;
  options.create_if_missing = true;
  options.compression = rocksdb::kNoCompression;
  options.use_direct_reads = true;
  options.use_direct_io_for_flush_and_compaction = true;
  // Buffers take a quarter of the memory at most, blocks another one.
  options.write_buffer_size = std::max(limit_bytes / 8, size_t{1} << 20);
  options.max_write_buffer_number = 2;
  options.max_background_jobs = 2;
  options.max_open_files = -1;
  options.memtable_whole_key_filtering = true;
  options.memtable_prefix_bloom_size_ratio = 0.05;
  options.optimize_filters_for_hits = true;  // every row is there
  rocksdb::BlockBasedTableOptions table;
  table.block_size = kBlockBytes;
  table.checksum = rocksdb::kNoChecksum;
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(kBitsAKey));
  table.data_block_index_type = rocksdb::BlockBasedTableOptions::kDataBlockBinaryAndHash;
  table.block_cache = rocksdb::NewLRUCache(limit_bytes / 4);
  table.format_version = 5;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

class Rocks : public Store {
 public:
  Rocks(const std::string& folder, size_t record_bytes, size_t limit_bytes) : record_bytes_(record_bytes) {
    rocksdb::DB* opened;
    check(rocksdb::DB::Open(options_of(limit_bytes), folder, &opened));
    database_.reset(opened);
    read_.verify_checksums = false;
    write_.disableWAL = true;
  }

  void read(const int32_t* rows, int64_t n, char* into, int threads) override {
    in_parts(n, threads, [&](int64_t first, int64_t count) {
      std::vector<Key> keys(rows + first, rows + first + count);
      std::vector<rocksdb::Slice> slices;
      for (const Key& key : keys) slices.push_back(key.slice());
      std::vector<rocksdb::PinnableSlice> values(keys.size());
      std::vector<rocksdb::Status> statuses(keys.size());
      database_->MultiGet(read_, database_->DefaultColumnFamily(), keys.size(), slices.data(), values.data(),
                          statuses.data(), true);
      for (size_t k = 0; k < keys.size(); ++k) {
        check(statuses[k]);
        if (values[k].size() != record_bytes_) fail("a record has another size");
        std::memcpy(into + (size_t(first) + k) * record_bytes_, values[k].data(), record_bytes_);
      }
    });
  }

  void write(const int32_t* rows, int64_t n, const char* from, int) override {
    rocksdb::WriteBatch batch;
    for (int64_t i = 0; i < n; ++i)
      check(batch.Put(Key(rows[i]).slice(), {from + size_t(i) * record_bytes_, record_bytes_}));
    check(database_->Write(write_, &batch));
  }

  void settle() override {
    check(database_->Flush(rocksdb::FlushOptions()));
    while (count("rocksdb.compaction-pending") + count("rocksdb.num-running-compactions") > 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

 private:
  uint64_t count(const char* what) const {
    uint64_t n = 0;
    if (!database_->GetIntProperty(what, &n)) fail(std::string("no such count: ") + what);
    return n;
  }

  size_t record_bytes_;
  std::unique_ptr<rocksdb::DB> database_;
  rocksdb::ReadOptions read_;
  rocksdb::WriteOptions write_;
};
}  // namespace

int main(int, char** arguments) {
  const size_t record_bytes = std::stoull(arguments[3]), limit_bytes = std::stoull(arguments[4]);
  Rocks store(arguments[1], record_bytes, limit_bytes);
  Worker(store, record_bytes).serve();
}
