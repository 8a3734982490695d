// Optimisers that step the rows of one request. Only the rows of the request change, each once. Gradients of equal rows
// are summed first, as in torch when it coalesces a sparse gradient.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "compact.hpp"
#include "rows.hpp"

namespace atta {

// The positions of a request by row. Rows are in the order in which they first occur. The positions of a row are
// ascending.
struct ByRow {
  std::vector<std::int64_t> rows;
  std::vector<std::size_t> begin;      // positions of rows[k]: begin[k] ... begin[k + 1] - 1
  std::vector<std::size_t> positions;  // in the request

  explicit ByRow(std::span<const std::int64_t> asked) : positions(asked.size()) {
    Compactor compactor;
    std::vector<std::int32_t> local(asked.size());
    compactor.insert(asked.data(), asked.size(), local.data());
    rows.assign(compactor.ids().begin(), compactor.ids().end());
    begin.assign(rows.size() + 1, 0);
    for (const std::int32_t k : local) ++begin[static_cast<std::size_t>(k) + 1];
    for (std::size_t k = 0; k < rows.size(); ++k) begin[k + 1] += begin[k];
    std::vector<std::size_t> at(begin.begin(), begin.end() - 1);
    for (std::size_t i = 0; i < asked.size(); ++i) positions[at[static_cast<std::size_t>(local[i])]++] = i;
  }
};

// Calls step(row, gradient) once per row, under the row's lock, with the sum of its gradients [width].
template <class Step>
void step_rows(std::span<const std::int64_t> asked, const float* grads, std::size_t width, RowLocks& locks, Step step) {
  const ByRow by_row(asked);
  std::vector<float> sum(width);
  for (std::size_t k = 0; k < by_row.rows.size(); ++k) {
    const std::size_t first = by_row.begin[k], last = by_row.begin[k + 1];
    const float* grad = grads + by_row.positions[first] * width;
    if (last - first > 1) {
      std::copy_n(grad, width, sum.data());
      for (std::size_t i = first + 1; i < last; ++i) {
        const float* more = grads + by_row.positions[i] * width;
        for (std::size_t j = 0; j < width; ++j) sum[j] += more[j];
      }
      grad = sum.data();
    }
    const auto row = static_cast<std::size_t>(by_row.rows[k]);
    const RowLocks::Held held(locks, row);
    step(row, grad);
  }
}

// torch.optim.SGD without momentum.
struct Sgd {
  float* table;
  std::size_t width;
  float lr;

  void operator()(std::size_t row, const float* grad) const {
    float* x = table + row * width;
    for (std::size_t j = 0; j < width; ++j) x[j] -= lr * grad[j];
  }
};

// torch.optim.Adagrad on sparse gradients (Duchi, Hazan, Singer, 2011); `lr` is the rate after decay.
struct Adagrad {
  float* table;
  float* sums;  // of squared gradients
  std::size_t width;
  float lr, eps;

  void operator()(std::size_t row, const float* grad) const {
    float *x = table + row * width, *s = sums + row * width;
    for (std::size_t j = 0; j < width; ++j) {
      s[j] += grad[j] * grad[j];
      x[j] -= lr * (grad[j] / (std::sqrt(s[j]) + eps));
    }
  }
};

// torch.optim.SparseAdam (Kingma, Ba, 2015, lazily): moments of rows without a gradient do not change. `size` is the
// step size, corrected for the bias of the moments.
struct SparseAdam {
  float* table;
  float* means;    // of gradients
  float* squares;  // of squared gradients
  std::size_t width;
  float size, mean_share, square_share, eps;  // shares: 1 - beta

  void operator()(std::size_t row, const float* grad) const {
    float *x = table + row * width, *m = means + row * width, *v = squares + row * width;
    for (std::size_t j = 0; j < width; ++j) {
      m[j] += (grad[j] - m[j]) * mean_share;
      v[j] += (grad[j] * grad[j] - v[j]) * square_share;
      x[j] -= size * (m[j] / (std::sqrt(v[j]) + eps));
    }
  }
};

// Adam in which every row counts its own steps, as DGL's SparseAdam does: a row that is seldom used begins as if alone.
struct RowAdam {
  float* table;
  float* means;    // of gradients
  float* squares;  // of squared gradients
  float* steps;    // of the row, in each of its numbers; exact up to 2^24, where nothing is left to correct
  std::size_t width;
  double lr, beta1, beta2, eps;

  void operator()(std::size_t row, const float* grad) const {
    if (width == 0) return;
    float *x = table + row * width, *m = means + row * width, *v = squares + row * width, *t = steps + row * width;
    const double count = static_cast<double>(t[0]) + 1;
    const auto size = static_cast<float>(lr / (1 - std::pow(beta1, count)));
    const auto scale = static_cast<float>(1 / std::sqrt(1 - std::pow(beta2, count)));
    const auto mean_share = static_cast<float>(1 - beta1), square_share = static_cast<float>(1 - beta2);
    for (std::size_t j = 0; j < width; ++j) {
      m[j] += (grad[j] - m[j]) * mean_share;
      v[j] += (grad[j] * grad[j] - v[j]) * square_share;
      x[j] -= size * (m[j] / (std::sqrt(v[j]) * scale + static_cast<float>(eps)));
      t[j] = static_cast<float>(count);
    }
  }
};

}  // namespace atta
