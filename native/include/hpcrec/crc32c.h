// CRC32C (Castagnoli), as iSCSI, ext4 and SSE4.2 have it.
#pragma once
#include <cstdint>

namespace hpcrec {

// Of n bytes that follow others with this checksum; 0 where none do.
uint32_t crc32c(const uint8_t* data, int64_t n, uint32_t before = 0);
// The same without special instructions, for tests and other processors.
uint32_t crc32c_by_table(const uint8_t* data, int64_t n, uint32_t before = 0);

}  // namespace hpcrec
