// The 64-bit mixer that ids, seeds and hashed values are defined by.
#pragma once
#include <cstdint>

#include "hpcrec/anywhere.h"

namespace hpcrec {

constexpr uint64_t golden = 0x9e3779b97f4a7c15u;

// One step of splitmix64 (Steele, Lea and Flood, 2014).
HPCREC_ANYWHERE inline uint64_t mix(uint64_t x) {
  x += golden;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace hpcrec
