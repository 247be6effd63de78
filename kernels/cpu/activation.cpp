// The fast activations.
#include "kernels/cpu/driver.h"
#include "kernels/cpu/tables.h"

namespace mmt::cpu {
namespace {

// exp costs about as much as moving ten elements: share the work over threads from a tenth of the usual size on.
constexpr std::int64_t kWeight = 10;

template <class F> void each_weighted(const Tensor& shape, bool flat, F&& f) {
  const std::int64_t rows = shape.rows(), cols = shape.cols(), work = kWeight * rows * cols;
  if (flat)
    parallel_shares(rows * cols, 64, work, [&](std::int64_t first, std::int64_t count) {
      f(Piece{0, 1, first, count});
    });
  else
    parallel_shares(rows, 1, work, [&](std::int64_t first, std::int64_t count) { f(Piece{first, count, 0, cols}); });
}

template <Isa kLevel> struct Activations {
  static void forward(const Stream&, const Tensor& y, const Tensor& x, Activation kind) {
    visit_fast(x.dtype, [&]<class T>() {
      const auto py = rows_of<T>(y);
      const auto px = rows_of<const T>(x);
      each_weighted(x, y.contiguous() && x.contiguous(),
                    [&](Piece p) { inner_of<T>(kLevel).activate(kind, p(py), p(px), p.rows, p.cols); });
    });
  }

  static void backward(const Stream&, const Tensor& dx, const Tensor& dy, const Tensor& x, Activation kind) {
    visit_fast(x.dtype, [&]<class T>() {
      const auto pdx = rows_of<T>(dx);
      const auto pdy = rows_of<const T>(dy), px = rows_of<const T>(x);
      each_weighted(x, dx.contiguous() && dy.contiguous() && x.contiguous(), [&](Piece p) {
        inner_of<T>(kLevel).activate_backward(kind, p(pdx), p(pdy), p(px), p.rows, p.cols);
      });
    });
  }

  static void swiglu_forward(const Stream&, const Tensor& y, const Tensor& gate, const Tensor& up) {
    visit_fast(gate.dtype, [&]<class T>() {
      const auto py = rows_of<T>(y);
      const auto pg = rows_of<const T>(gate), pu = rows_of<const T>(up);
      each_weighted(gate, y.contiguous() && gate.contiguous() && up.contiguous(),
                    [&](Piece p) { inner_of<T>(kLevel).swiglu(p(py), p(pg), p(pu), p.rows, p.cols); });
    });
  }

  static void swiglu_backward(const Stream&, const Tensor& dgate, const Tensor& dup, const Tensor& dy,
                              const Tensor& gate, const Tensor& up) {
    visit_fast(gate.dtype, [&]<class T>() {
      const auto pdg = rows_of<T>(dgate), pdu = rows_of<T>(dup);
      const auto pdy = rows_of<const T>(dy), pg = rows_of<const T>(gate), pu = rows_of<const T>(up);
      const bool flat =
          dgate.contiguous() && dup.contiguous() && dy.contiguous() && gate.contiguous() && up.contiguous();
      each_weighted(gate, flat, [&](Piece p) {
        inner_of<T>(kLevel).swiglu_backward(p(pdg), p(pdu), p(pdy), p(pg), p(pu), p.rows, p.cols);
      });
    });
  }
};

}  // namespace

ActivationTable cpu_activation(Isa level) {
  return for_level(level, []<Isa kLevel>() {
    using A = Activations<kLevel>;
    return ActivationTable{.forward = A::forward,
                           .backward = A::backward,
                           .swiglu_forward = A::swiglu_forward,
                           .swiglu_backward = A::swiglu_backward};
  });
}

}  // namespace mmt::cpu
