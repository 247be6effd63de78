#include "apps/mmtrain/generator.h"

#include "core/philox.h"

#include <algorithm>

namespace mmt::app {

/// Keys and values of what was read and written so far.
struct Generator::Sequence {
  std::vector<OwnedTensor> keys, values;  // by layer
  std::vector<run::KvCache> caches;
  OwnedTensor cache_rows;     // where the rows of this call go
  std::vector<float> logits;  // of the last row
};

Generator::Generator(const Config& config, Model& model, const Preparer& preparer, const Stream& stream)
    : config_(config), model_(model), preparer_(preparer), stream_(stream) {}
Generator::~Generator() = default;

namespace {

/// Bytes of all that one forward call of a unit takes, whatever its lifetime would be in training.
std::int64_t unit_bytes(const run::UnitPlan& unit, const Stream& stream, const plan::BlockSize& size,
                        std::int64_t key_rows) {
  std::int64_t bytes = unit.scratch_bytes(stream, run::Phase::forward, size, key_rows);
  for (const run::Life life : {run::Life::scratch, run::Life::kept, run::Life::held}) bytes += unit.bytes(life, size);
  return bytes;
}

std::int64_t rows_of(run::RowCount count, const plan::BlockSize& size) {
  switch (count) {
    case run::RowCount::rows: return size.rows;
    case run::RowCount::supervised: return size.supervised;
    case run::RowCount::source: return size.source;
    case run::RowCount::out: return size.out;
    case run::RowCount::one:
    case run::RowCount::port: break;
  }
  return 1;
}

}  // namespace

/// Walks a stage's units forward in evaluation mode.
void Generator::forward(std::size_t stage, run::Rows& rows, std::span<const Tensor> ports, const Tensor& out,
                        Sequence* sequence) {
  const run::Stage& s = model_.stages[stage];
  run::ParameterStore& store = *model_.stores[stage];
  const std::int64_t key_rows = sequence != nullptr ? rows.masks[0].key_words.rows() : -1;
  std::int64_t work = 0, chain = 0;
  for (const auto& unit : s.units) {
    work = std::max(work, unit_bytes(unit->plan(), stream_, rows.size, key_rows));
    const run::PortPlan& port = unit->plan().output;
    if (port.cols > 0) chain = std::max(chain, rows_of(port.count, rows.size) * port.cols * size_of(port.dtype));
  }
  Arena arena("generation", static_cast<std::size_t>(work) + 4 * Arena::footprint(static_cast<std::size_t>(chain)));
  const std::array<Tensor, 2> turn = {arena.take(DType::u8, {chain}), arena.take(DType::u8, {chain})};
  const std::function<void(std::int64_t, const Tensor&)> sink = [&](std::int64_t, const Tensor& logits) {
    const Tensor last = logits.row_range(logits.rows() - 1, 1);
    sequence->logits.assign(last.as<float>(), last.as<float>() + last.cols());
  };
  Tensor x;
  std::size_t layer = 0;
  for (std::size_t u = 0; u < s.units.size(); ++u) {
    const run::Unit& unit = *s.units[u];
    const run::UnitPlan& plan = unit.plan();
    const ArenaScope scope(arena);
    run::Ctx ctx;
    ctx.stream = stream_;
    ctx.rows = &rows;
    ctx.params = &store.unit(static_cast<int>(u));
    ctx.scratch = &arena;
    ctx.mode = run::Mode::eval;
    if (sequence != nullptr) {
      ctx.logits = &sink;
      ctx.cache_rows = sequence->cache_rows;
      if (plan.mask >= 0) ctx.cache = &sequence->caches[layer++];
    }
    run::Saved saved;
    for (const run::TensorSpec& t : plan.tensors) {
      const bool lives = t.life != run::Life::stash;
      saved.tensors.push_back(lives ? arena.take(t.dtype, {rows_of(t.count, rows.size), t.cols}) : Tensor());
    }
    std::vector<Tensor> in;
    if (u == 0) {
      in.assign(ports.begin(), ports.end());
    } else {
      in = {x};
    }
    Tensor y = out;
    if (plan.has_output() && u + 1 < s.units.size()) {
      y = Tensor(turn[u % 2].data, plan.output.dtype, {rows_of(plan.output.count, rows.size), plan.output.cols});
    }
    store.gather(static_cast<int>(u));
    unit.forward(ctx, in, y, saved);
    store.release(static_cast<int>(u));
    x = y;
  }
}

Tensor Generator::encode(std::size_t encoder, const data::Record& record, const data::Prepared& prompt,
                         const plan::SampleMeta& meta, OwnedTensor& memory) {
  constexpr std::int32_t kOnly[] = {0};
  const plan::RowsPlan plan =
      plan::encoder_rows(std::span(&meta, 1), kOnly, static_cast<int>(encoder), model_.encoder_rows[encoder]);
  const run::PortPlan& port = model_.stages[encoder].units.back()->plan().output;
  memory = OwnedTensor(port.dtype, {plan.size.out, port.cols});
  if (plan.size.rows == 0) return memory;
  run::RowsCapacity capacity;
  capacity.size = plan.size;
  capacity.num_positions = plan.num_positions;
  capacity.items = static_cast<std::int64_t>(plan.items.size());
  capacity.source_cols = source_cols(config_.encoders[encoder]);
  if (model_.stages[encoder].rotary) capacity.rotary_pairs = model_.stages[encoder].rotary->pairs();
  run::RowsMemory rows(capacity);
  rows.reset(plan, {}, model_.stages[encoder], stream_);
  std::size_t at = 0;
  for (const data::SegmentRun& run : prompt.runs) {
    if (run.item < 0) continue;
    const data::Item& item = prompt.items[static_cast<std::size_t>(run.item)];
    if (static_cast<std::size_t>(item.encoder) != encoder) continue;
    const std::string where = record.id.empty() ? "prompt" : record.id;
    preparer_.preparation().encoders[encoder].load_item(record.media[static_cast<std::size_t>(item.media)], where,
                                                        item.shape, item.part, rows.source_of(at++).span<float>());
  }
  forward(encoder, rows.rows(), {}, memory, nullptr);
  return memory;
}

Answer Generator::answer(const data::Record& record, std::uint64_t number, const GenerateOptions& options) {
  const data::Prepared prompt =
      data::prepare(preparer_.preparation(), record, record.id.empty() ? "prompt" : record.id, true);
  data::IndexEntry entry;
  entry.tokens = static_cast<std::int32_t>(prompt.ids.size());
  entry.items = prompt.items;
  entry.runs = prompt.runs;
  plan::SampleMeta meta = sample_meta(entry, 0, preparer_.preparation());
  for (plan::RunMeta& run : meta.runs) run.supervised = 0;
  meta.supervised = 1;  // the last row alone gives logits
  meta.runs.back().supervised = 1;
  const std::int64_t prompt_rows = meta.rows, capacity_rows = prompt_rows + options.max_new_tokens;
  const models::LlmSpec& llm = config_.llm.spec;
  if (!llm.rotary && capacity_rows > llm.max_positions) {
    throw ConfigError(fmt::format("a prompt of {} rows and {} new tokens are more than the model's {} positions",
                                  prompt_rows, options.max_new_tokens, llm.max_positions));
  }

  const std::size_t stage = model_.num_encoders();
  Sequence sequence;
  const std::int64_t kv_cols = std::int64_t{llm.kv_heads} * llm.head_dim;
  for (const auto& unit : model_.llm().units) {
    if (unit->plan().mask < 0) continue;
    sequence.keys.emplace_back(config_.train.precision, std::initializer_list<std::int64_t>{capacity_rows, kv_cols});
    sequence.values.emplace_back(config_.train.precision, std::initializer_list<std::int64_t>{capacity_rows, kv_cols});
    sequence.caches.push_back({sequence.keys.back(), sequence.values.back()});
  }
  const auto place_rows = [&](std::int64_t first, std::int64_t count) {
    sequence.cache_rows = OwnedTensor(DType::i32, {count});
    for (std::int64_t i = 0; i < count; ++i)
      sequence.cache_rows->as<std::int32_t>()[i] = static_cast<std::int32_t>(first + i);
  };

  // The prompt: encoders, then all rows at once.
  std::vector<OwnedTensor> memories(stage);
  std::vector<Tensor> ports;
  std::vector<int> edges;
  for (std::size_t e = 0; e < stage; ++e) {
    ports.push_back(encode(e, record, prompt, meta, memories[e]));
    edges.push_back(static_cast<int>(e));
  }
  constexpr std::int32_t kOnly[] = {0};
  plan::RowsPlan plan = plan::llm_rows(std::span(&meta, 1), kOnly, model_.llm_rows);
  run::RowsCapacity capacity;
  capacity.size = {.rows = prompt_rows, .supervised = 1, .source = 0, .out = 0, .tiles = 0};
  capacity.num_positions = plan.num_positions;
  capacity.num_masks = static_cast<int>(model_.llm_rows.windows.size());
  for (const Tensor& p : ports) capacity.port_rows.push_back(p.rows());
  if (model_.llm().rotary) capacity.rotary_pairs = model_.llm().rotary->pairs();
  run::RowsMemory rows(capacity);
  rows.reset(plan, edges, model_.llm(), stream_);
  rows.set_ids(0, prompt.ids);
  place_rows(0, prompt_rows);
  forward(stage, rows.rows(), ports, {}, &sequence);

  // The answer: one row at a time, which reads the keys of all rows before it.
  MaskWords words = plan.masks[0];
  const std::uint64_t key = random_key(options.seed, "generate", std::to_string(number));
  Answer answer;
  const auto ended = [&] {
    return std::ranges::any_of(preparer_.chat().stops(), [&](const std::vector<data::TokenId>& stop) {
      return answer.ids.size() >= stop.size() && std::equal(stop.rbegin(), stop.rend(), answer.ids.rbegin());
    });
  };
  std::vector<Tensor> no_media;
  for (const Tensor& p : ports) no_media.push_back(p.row_range(0, 0));
  while (true) {
    const Tensor logits(sequence.logits.data(), DType::f32, {static_cast<std::int64_t>(sequence.logits.size())});
    answer.ids.push_back(ops::sample_token(logits, options.sampling, random_uniform(key, 0, 0, answer.ids.size())));
    answer.ended = ended();
    const auto written = static_cast<std::int64_t>(answer.ids.size());
    if (answer.ended || written == options.max_new_tokens || (options.stop != nullptr && *options.stop)) break;
    const auto place = static_cast<std::int32_t>(prompt_rows + written - 1);
    words.push(1, 0, row_class::kAll, row_class::kText, place);
    plan::RowsPlan next;
    next.size = {.rows = 1, .supervised = 1, .source = 0, .out = 0, .tiles = 1};
    next.samples.push_back({0, {0, 1}, {0, 1}});
    next.num_positions = plan.num_positions;
    next.positions.assign(static_cast<std::size_t>(plan.num_positions),
                          plan.samples[0].next_position + static_cast<std::int32_t>(written) - 1);
    next.supervised_rows = {0};
    for (const int edge : edges) next.ports.push_back({edge, {}});
    MaskWords query;
    query.push(1, 0, row_class::kAll, row_class::kText, place);
    for (const std::int32_t window : model_.llm_rows.windows) {
      next.masks.push_back(query);
      next.tiles.push_back(make_tile_plan(query_side(query), key_side(words), window));
    }
    rows.reset(next, edges, model_.llm(), stream_);
    const std::int32_t id = answer.ids.back();
    rows.set_ids(0, std::span(&id, 1));
    const auto keys = static_cast<std::int64_t>(words.rows());
    for (run::MaskRows& mask : rows.rows().masks) {
      mask.key_words = Tensor(words.key.data(), DType::u64, {keys});
      mask.key_order = Tensor(words.order.data(), DType::i32, {keys});
    }
    place_rows(place, 1);
    forward(stage, rows.rows(), no_media, {}, &sequence);
  }
  answer.text = preparer_.chat().answer(answer.ids);
  return answer;
}

namespace {

std::string shown(const data::MediaFile& file) { return file.frames.empty() ? file.path : file.source.name(); }

/// A turn as text, media by their file.
std::string text_of(const data::Record& record, const data::Turn& turn) {
  std::string text;
  for (const data::Part& p : turn.parts)
    text += p.media < 0 ? p.text : fmt::format("[{}]", shown(record.media[static_cast<std::size_t>(p.media)]));
  return text;
}

}  // namespace

DialogueText dialogue_text(const data::Record& record) {
  DialogueText text;
  for (const data::Turn& turn : record.turns) {
    const bool last = &turn == &record.turns.back();
    if (last && turn.role == data::Role::assistant) {
      text.reference = text_of(record, turn);
    } else {
      text.prompt +=
          fmt::format("{}{}: {}", text.prompt.empty() ? "" : "\n", name_of(turn.role), text_of(record, turn));
    }
  }
  return text;
}

}  // namespace mmt::app
