// Whole models on the fast kernels against f64, by the rule that layouts are held to (fp32), and bf16 against the
// scalar bf16 reference.
#include "tests/models/tiny_model.h"

#include "kernels/backend.h"
#include "kernels/rotary.h"

#include <catch2/catch.hpp>

#include <cmath>

using namespace mmt;
using namespace mmt::test;

namespace {

// The scalar table with one change (in f32: f64 always runs on the reference itself): what writes parameter gradients
// adds up absolute contributions, |dY|^T |X| for a product, the sum over rows of |dy| or |dy xhat| for biases, norms
// and embeddings. Activations and their gradients are the true ones.

OwnedTensor absolute(const Tensor& t) {
  OwnedTensor a(DType::f32, {t.rows(), t.cols()});
  for (std::int64_t r = 0; r < t.rows(); ++r)
    for (std::int64_t c = 0; c < t.cols(); ++c) a->row<float>(r)[c] = std::abs(t.row<float>(r)[c]);
  return a;
}

void absolute_gemm(const Stream& s, Transpose ta, Transpose tb, const Tensor& c, const Tensor& a, const Tensor& b,
                   const GemmOptions& options) {
  if (ta == Transpose::no)
    reference_kernels().gemm.gemm(s, ta, tb, c, a, b, options);
  else
    reference_kernels().gemm.gemm(s, ta, tb, c, absolute(a), absolute(b), options);
}

void absolute_bias(const Stream& s, const Tensor& db, const Tensor& dy, Accumulate accumulate) {
  reference_kernels().linear.backward_bias(s, db, absolute(dy), accumulate);
}

void absolute_embedding(const Stream& s, const Tensor& d, const Tensor& dy, const Tensor& ids, Accumulate accumulate,
                        VocabularyShard shard) {
  reference_kernels().embedding.backward(s, d, absolute(dy), ids, accumulate, shard);
}

void absolute_norm(const Tensor& dw, const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& rstd,
                   Accumulate accumulate) {
  const std::int64_t features = dw.numel(), heads = x.cols() / features;
  if (accumulate == Accumulate::overwrite) std::fill_n(dw.as<float>(), features, 0.0F);
  for (std::int64_t r = 0; r < x.rows(); ++r)
    for (std::int64_t c = 0; c < x.cols(); ++c) {
      const std::int64_t v = r * heads + c / features;
      const float centre = mean.defined() ? mean.as<float>()[v] : 0.0F;
      dw.as<float>()[c % features] +=
          std::abs(dy.row<float>(r)[c] * (x.row<float>(r)[c] - centre) * rstd.as<float>()[v]);
    }
}

void absolute_rms(const Stream&, const Tensor& dw, const Tensor& dy, const Tensor& x, const Tensor& rstd,
                  Accumulate accumulate) {
  absolute_norm(dw, dy, x, {}, rstd, accumulate);
}

void absolute_layer_norm(const Stream&, const Tensor& dw, const Tensor& db, const Tensor& dy, const Tensor& x,
                         const Tensor& mean, const Tensor& rstd, Accumulate accumulate) {
  MMT_CHECK(!db.defined(), "bias gradients are column sums");
  absolute_norm(dw, dy, x, mean, rstd, accumulate);
}

const KernelTable& absolute_kernels() {
  static const KernelTable table = [] {
    KernelTable t = reference_kernels();
    t.gemm.gemm = absolute_gemm;
    t.linear.backward_bias = absolute_bias;
    t.embedding.backward = absolute_embedding;
    t.norm.rms_norm_backward_weight = absolute_rms;
    t.norm.layer_norm_backward_weight = absolute_layer_norm;
    return t;
  }();
  return table;
}

/// A model with widths that fill vectors and leave remainders, and its blocks.
struct WideModel {
  EncoderSpec eyes = tiny_encoder("clip"), ears = tiny_encoder("whisper");
  LlmSpec llm;
  FourBlocks blocks;

  explicit WideModel(const std::string& family) : llm(tiny_llm(family)) {
    llm.hidden = 72;
    llm.intermediate = 100;
    llm.vocabulary = 131;
    if (llm.max_positions > 0) llm.max_positions = 80;
    for (EncoderSpec* s : {&eyes, &ears}) {
      s->hidden = 48;
      s->intermediate = 88;
      s->max_positions = 40;
    }
    eyes.projector.hidden = 72;
    ears.projector.kind = "linear";
    std::vector<std::vector<Piece>> samples{
        {{.text = 5}, {.media = 9, .port = 0}, {.text = 40, .supervised = true}},
        {{.text = 9}, {.text = 21, .supervised = true}},
        {{.text = 1}, {.media = 20, .port = 1}, {.media = 9, .port = 0}, {.text = 3}, {.text = 8, .supervised = true}},
        {{.media = 17, .port = 1}, {.text = 13, .supervised = true}}};
    blocks.text = BlockData::text(samples, 131, 2, models::mask_windows(llm), num_positions(llm));
    blocks.media.push_back(BlockData::pictures({9, 9}, 12, true, false));
    blocks.media.push_back(BlockData::clips({39, 34}, 5));
  }
  ModelPass run(DType dtype, const KernelTable& kernels) const {
    RunOptions options;
    options.stream = cpu_stream();
    options.stream.kernels = &kernels;
    options.loss_scale = 1.0 / 64;
    return run_model(make_model({eyes, ears}, llm, dtype), blocks.media, blocks.text, options);
  }
};

double error(const Values& a, const Values& b) {
  Values d = a;
  for (std::size_t i = 0; i < d.size(); ++i) d[i] -= b[i];
  return norm2(d);
}

/// Names of the gradients that break the rule: 1e-5 of the gradient, or of 0.03 (layouts: 0.01) of its sum of absolute
/// contributions. Wider because the truth is f64 here and what leans on it, key biases, adds rows of dk that are
/// themselves cancelling sums, of which `scale` sees only the results. `by_scale` collects those that pass by its
/// second term only.
std::vector<std::string> judge(const ModelPass& pass, const ModelPass& truth, const ModelPass& scale,
                               std::vector<std::string>& by_scale) {
  std::vector<std::string> complaints;
  for (const auto& [name, g] : pass.grads) {
    const double e = error(g, truth.grads.at(name)), own = norm2(truth.grads.at(name)),
                 absolute_sum = norm2(scale.grads.at(name));
    if (e <= 1e-5 * own) continue;
    if (e <= 1e-5 * 0.03 * absolute_sum)
      by_scale.push_back(name);
    else
      complaints.push_back(fmt::format("{}: error {:.3g}, gradient {:.3g}, sum of absolute contributions {:.3g}", name,
                                       e, own, absolute_sum));
  }
  return complaints;
}

}  // namespace

TEST_CASE("fp32 gradients of a whole model on every instruction set keep to the rule of layouts") {
  for (const char* family : {"llama", "qwen3", "gpt2"}) {
    const WideModel setup(family);
    const ModelPass truth = setup.run(DType::f64, reference_kernels()),
                    scale = setup.run(DType::f32, absolute_kernels());
    CHECK(error(scale.loss, truth.loss) <= 1e-5 * norm2(truth.loss));
    for (const Isa level : kIsas) {
      if (!isa_available(level)) continue;
      INFO(family << " " << name_of(level));
      ModelPass pass = setup.run(DType::f32, cpu_kernels(level));
      CHECK(pass.objective == Approx(truth.objective).epsilon(1e-6));
      CHECK(error(pass.loss, truth.loss) <= 1e-6 * norm2(truth.loss));
      std::vector<std::string> by_scale;
      const auto complaints = judge(pass, truth, scale, by_scale);
      INFO(join(complaints));
      CHECK(complaints.empty());
      // Key biases have a true gradient of zero without rotary positions: only they lean on the second term.
      for (const std::string& name : by_scale) {
        INFO(name);
        CHECK(contains(name, "k_proj.bias"));
      }
      // A mutation of one tensor by a part in ten thousand is seen.
      for (double& x : pass.grads.at("eyes.projector/linear_1.weight")) x *= 1.0001;
      CHECK(judge(pass, truth, scale, by_scale).size() == 1);
    }
  }
}

TEST_CASE("bf16 gradients of a whole model are as good as those of the scalar reference in bf16") {
  for (const char* family : {"llama", "qwen3", "gpt2"}) {
    const WideModel setup(family);
    const ModelPass truth = setup.run(DType::f64, reference_kernels()),
                    scale = setup.run(DType::f32, absolute_kernels()),
                    scalar = setup.run(DType::bf16, reference_kernels());
    for (const Isa level : kIsas) {
      if (!isa_available(level)) continue;
      INFO(family << " " << name_of(level));
      const ModelPass pass = setup.run(DType::bf16, cpu_kernels(level));
      CHECK(error(pass.loss, truth.loss) <= 2 * error(scalar.loss, truth.loss) + 1e-4 * norm2(truth.loss));
      for (const auto& [name, g] : pass.grads) {
        INFO(name);
        const Values& exact = truth.grads.at(name);
        // Twice the reference's error; small tensors may have been lucky there: a hundredth of a bf16 rounding (2^-8)
        // of every contribution besides.
        CHECK(error(g, exact) <= 2 * error(scalar.grads.at(name), exact) + 0.01 / 256 * norm2(scale.grads.at(name)));
      }
    }
  }
}
