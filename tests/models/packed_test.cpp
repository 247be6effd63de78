// Frozen matrices in the layout of the backend's products: which ones a store packs, which products read them, when
// they are made anew. The backend is the scalar one with a layout of its own: op(b) as a contiguous (k, n) matrix.
#include "tests/models/tiny_model.h"

#include "kernels/backend.h"
#include "parallel/run/store.h"

#include <catch2/catch.hpp>

#include <cstring>

using namespace mmt;
using namespace mmt::test;

namespace {

/// Products of the running test.
struct Counts {
  int packed_forward = 0, packed_input = 0, plain_forward = 0, plain_input = 0, packs = 0;
} counts;

std::int64_t count_bytes(const Stream&, DType dtype, Transpose, std::int64_t k, std::int64_t n) {
  return k * n * size_of(dtype);
}

void copy_matrix(const Stream&, const Tensor& packed, Transpose tb, const Tensor& b) {
  ++counts.packs;
  const bool t = tb == Transpose::yes;
  const std::int64_t k = b.dims[t ? 1 : 0], n = b.dims[t ? 0 : 1];
  auto* to = static_cast<float*>(packed.data);
  for (std::int64_t i = 0; i < k; ++i)
    for (std::int64_t j = 0; j < n; ++j) to[i * n + j] = t ? b.row<float>(j)[i] : b.row<float>(i)[j];
}

void multiply(const Stream& s, Transpose ta, Transpose tb, const Tensor& c, const Tensor& a, const Tensor& b,
              const GemmOptions& options) {
  const auto gemm = reference_kernels().gemm.gemm;
  if (options.packed.defined()) {
    ++(tb == Transpose::yes ? counts.packed_forward : counts.packed_input);
    GemmOptions plain = options;
    plain.packed = {};
    gemm(s, ta, Transpose::no, c, a, Tensor(options.packed.data, a.dtype, {a.cols(), c.cols()}), plain);
    return;
  }
  if (ta == Transpose::no) ++(tb == Transpose::yes ? counts.plain_forward : counts.plain_input);
  gemm(s, ta, tb, c, a, b, options);
}

Stream packing_stream() {
  static const KernelTable table = [] {
    KernelTable t = reference_kernels();
    t.gemm = {.gemm = multiply, .packed_bytes = count_bytes, .pack = copy_matrix};
    return t;
  }();
  Stream stream = reference_stream();
  stream.kernels = &table;
  return stream;
}

void set_masters(run::ParameterStore& store, const NamedValues& values, double factor = 1.0) {
  for (const run::ParamState& p : store.params()) {
    Values v = values.at(canonical_name(*p.spec));
    for (double& x : v) x = static_cast<double>(static_cast<float>(x * factor));
    set_values(p.master, v);
  }
}

bool only_projector(const std::string& name) { return name.find(".projector/") != std::string::npos; }

/// A picture encoder whose projector trains, before a frozen decoder.
struct FrozenDecoder {
  Model model = make_model({tiny_encoder("clip")}, tiny_llm("llama"), DType::f32, only_projector);
  BlockData media = blocks_of({0}).media[0];
  BlockData text = BlockData::text({FourSamples().samples[0]}, 37, 1);
  std::int64_t out_rows = 0;

  struct Result {
    Values features, loss, d_features;
  };
  /// Forward of both, backward of the decoder's inputs.
  Result run(const Stream& stream, run::ParameterStore* eyes, run::ParameterStore* llm) const {
    RunOptions options;
    options.stream = stream;
    Params eye_params(model.encoders[0], model.values), llm_params(model.llm, model.values);
    options.store = eyes;
    StageRun encoder(model.encoders[0], eye_params, media, options);
    encoder.forward();
    options.store = llm;
    StageRun decoder(model.llm, llm_params, text, options);
    decoder.forward({encoder.out()});
    decoder.backward();
    return {encoder.out(), decoder.loss(), decoder.d_in(0)};
  }
};

}  // namespace

TEST_CASE("products of frozen weights read their packed forms, and those of trained weights do not") {
  const FrozenDecoder setup;
  const Stream stream = packing_stream();
  const auto eyes = run::make_replicated_store(setup.model.encoders[0], nullptr, stream);
  const auto llm = run::make_replicated_store(setup.model.llm, nullptr, stream);
  set_masters(*eyes, setup.model.values);
  set_masters(*llm, setup.model.values);

  counts = {};
  const FrozenDecoder::Result plain = setup.run(stream, nullptr, nullptr);
  REQUIRE(counts.packed_forward == 0);
  REQUIRE(counts.packed_input == 0);
  const Counts all = counts;

  // Nothing is packed before weights were loaded.
  counts = {};
  REQUIRE(setup.run(stream, eyes.get(), llm.get()).loss == plain.loss);
  REQUIRE(counts.packed_forward == 0);

  eyes->weights_loaded();
  llm->weights_loaded();
  counts = {};
  const FrozenDecoder::Result packed = setup.run(stream, eyes.get(), llm.get());
  REQUIRE(packed.features == plain.features);
  REQUIRE(packed.loss == plain.loss);
  REQUIRE(packed.d_features == plain.d_features);
  // The projector has two layers; only they train. Input gradients are those of the decoder, all frozen.
  REQUIRE(counts.plain_forward == 2);
  REQUIRE(counts.packed_forward == all.plain_forward - 2);
  REQUIRE(counts.plain_input == 0);
  REQUIRE(counts.packed_input == all.plain_input);
  REQUIRE(all.plain_input > 0);

  // What is packed, and no more: forward of frozen products; input gradients where something before them trains.
  std::int64_t expected = 0, frozen = 0;
  for (const auto& store : {eyes.get(), llm.get()})
    for (const run::ParamState& p : store->params()) {
      if (p.spec->trainable) continue;
      const bool matrix = p.spec->forward_product;
      REQUIRE(p.spec->input_product == (matrix && store == llm.get()));
      frozen += matrix ? 1 : 0;
      const int forms = (matrix ? 1 : 0) + (p.spec->input_product ? 1 : 0);
      expected += forms * static_cast<std::int64_t>(Arena::footprint(static_cast<std::size_t>(p.compute.bytes())));
    }
  REQUIRE(frozen > 10);
  REQUIRE(eyes->packed_bytes() + llm->packed_bytes() == expected);
}

TEST_CASE("packed weights are made anew when weights are loaded and stay when trained ones change") {
  const FrozenDecoder setup;
  const Stream stream = packing_stream();
  const auto eyes = run::make_replicated_store(setup.model.encoders[0], nullptr, stream);
  const auto llm = run::make_replicated_store(setup.model.llm, nullptr, stream);
  set_masters(*eyes, setup.model.values);
  set_masters(*llm, setup.model.values);
  eyes->weights_loaded();
  llm->weights_loaded();
  const Values before = setup.run(stream, eyes.get(), llm.get()).loss;

  counts = {};
  eyes->weights_changed();
  llm->weights_changed();
  REQUIRE(counts.packs == 0);

  set_masters(*llm, setup.model.values, 1.25);
  llm->weights_loaded();
  REQUIRE(counts.packs > 0);
  const Values after = setup.run(stream, eyes.get(), llm.get()).loss;
  REQUIRE(after != before);
  run::StoreOptions options;
  options.pack_frozen = false;
  const auto plain = run::make_replicated_store(setup.model.llm, nullptr, stream, options);
  set_masters(*plain, setup.model.values, 1.25);
  plain->weights_loaded();
  REQUIRE(plain->packed_bytes() == 0);
  REQUIRE(setup.run(stream, eyes.get(), plain.get()).loss == after);
}

TEST_CASE("a frozen tied embedding is packed for the head alone") {
  LlmSpec spec = tiny_llm("gpt2");
  spec.tie_embeddings = true;
  const Stream stream = packing_stream();
  const run::Stage stage = models::build_llm(spec, {}, setting(DType::f32, [](const std::string&) { return false; }));
  const auto store = run::make_replicated_store(stage, nullptr, stream);
  std::int64_t products = 0;
  for (const run::ParamState& p : store->params())
    if (p.spec->forward_product)
      products += static_cast<std::int64_t>(Arena::footprint(static_cast<std::size_t>(p.compute.bytes())));
  REQUIRE(store->packed_bytes() == products);  // no input gradients, one form of the tied matrix
}
