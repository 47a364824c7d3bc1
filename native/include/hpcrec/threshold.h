// Picking the largest of many values by a threshold. See hpcrec/kernels/reference_threshold.py.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

namespace hpcrec {

// What was picked, kept in pieces until its number is known and memory for all of it is there.
class Selection {
 public:
  struct Some;  // of a piece
  using Piece = std::vector<std::unique_ptr<Some>>;

  explicit Selection(int pieces);
  Selection(Selection&&) noexcept;
  ~Selection();
  int64_t size() const;
  // Into arrays of that size; positions rise.
  void write(int64_t* positions, float* chosen) const;

  std::vector<Piece> pieces;
};

// The keep-th largest magnitude, 1 <= keep <= n.
float threshold_of(const float* values, int64_t n, int64_t keep);
// Values whose magnitude is at least tau, and every NaN.
Selection select_above(const float* values, int64_t n, float tau);
// The same of the sum, which the residual becomes where it is not picked; elsewhere it becomes 0.
Selection select_with_feedback(const float* gradient, float* residual, int64_t n, float tau);

}  // namespace hpcrec
