#include "core/data/loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <ctime>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "core/error.h"

namespace mmt::data {
namespace {

/// Memory that a loaded sample holds, known from the index alone.
std::int64_t planned_bytes(const IndexEntry& entry, const Wanted& wanted) {
  std::int64_t bytes = wanted.text ? std::int64_t{entry.tokens} * 12 : 0;
  for (const std::int32_t item : wanted.items) {
    const ItemShape& shape = entry.items[static_cast<std::size_t>(item)].shape;
    bytes += std::int64_t{shape.input_rows} * shape.input_cols * 4;
  }
  return bytes;
}

double thread_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

}  // namespace

struct Loader::Impl {
  struct Step {
    std::int64_t number = 0;
    std::vector<Wanted> wanted;
    std::vector<LoadedSample> loaded;
    std::size_t started = 0, finished = 0;
    std::int64_t bytes = 0;  // of the samples started
  };

  std::vector<const DatasetIndex*> sets;
  const Preparation& preparation;
  LoaderOptions options;

  mutable std::mutex mutex;
  std::condition_variable work_or_room;     // for the workers
  std::condition_variable finished;         // for the owner
  std::deque<std::shared_ptr<Step>> steps;  // in the order of their requests; the front is what is waited for first
  std::int64_t bytes = 0, peak = 0;
  std::exception_ptr error;
  bool ending = false;
  double waited = 0;
  Loader::Work done;
  std::vector<std::jthread> threads;

  Impl(std::vector<const DatasetIndex*> s, const Preparation& p, const LoaderOptions& o)
      : sets(std::move(s)), preparation(p), options(o) {}

  IndexEntry entry(const Wanted& wanted) const {
    return sets[static_cast<std::size_t>(wanted.set)]->entry(wanted.sample);
  }
  void work();
  LoadedSample load(const Wanted& wanted) const;
  void fill(const Wanted& wanted, const IndexEntry& planned, LoadedSample& out) const;
  void fail(const Wanted& wanted, const IndexEntry& planned, LoadedSample& out) const;
};

/// Reads the record, makes its rows and decodes the wanted media. Throws DataError.
void Loader::Impl::fill(const Wanted& wanted, const IndexEntry& planned, LoadedSample& out) const {
  const DatasetIndex& set = *sets[static_cast<std::size_t>(wanted.set)];
  const Record record = set.records().read(wanted.sample);
  const std::string where = with_id(set.records().where(wanted.sample), record.id);
  if (wanted.text) {
    Shapes shapes(preparation.encoders.size(), std::vector<std::vector<ItemShape>>(record.media.size()));
    for (const Item& item : planned.items) {
      const auto media = static_cast<std::size_t>(item.media);
      if (media >= record.media.size())
        throw DataError(DataFault::bad_record, where, "has changed since it was indexed");
      shapes[static_cast<std::size_t>(item.encoder)][media].push_back(item.shape);
    }
    Prepared rows = assemble(preparation, record, shapes, where);
    if (!std::equal(rows.items.begin(), rows.items.end(), planned.items.begin(), planned.items.end()) ||
        !std::equal(rows.runs.begin(), rows.runs.end(), planned.runs.begin(), planned.runs.end())) {
      throw DataError(DataFault::bad_record, where, "has changed since it was indexed");
    }
    out.input_ids = std::move(rows.ids);
    out.labels = std::move(rows.labels);
    const float weight = options.weights == LossWeights::token ? 1.0F : 1.0F / static_cast<float>(planned.supervised);
    for (std::size_t t = 0; t < out.labels.size(); ++t) out.weights[t] = out.labels[t] == kIgnoreLabel ? 0.0F : weight;
  }
  for (LoadedItem& loaded : out.items) {
    const Item& item = planned.items[static_cast<std::size_t>(loaded.item)];
    const auto media = static_cast<std::size_t>(item.media);
    if (media >= record.media.size()) throw DataError(DataFault::bad_record, where, "has changed since it was indexed");
    const EncoderInput& encoder = preparation.encoders[static_cast<std::size_t>(item.encoder)];
    if (!encoder.takes(record.media[media].modality))
      throw DataError(DataFault::bad_record, where, "has changed since it was indexed");
    encoder.load_item(record.media[media], where, item.shape, item.part, loaded.values);
  }
}

/// Makes the sample one that weighs nothing but has its planned shape: rows, supervised places, media.
void Loader::Impl::fail(const Wanted& wanted, const IndexEntry& planned, LoadedSample& out) const {
  std::fill(out.weights.begin(), out.weights.end(), 0.0F);
  for (LoadedItem& item : out.items) std::fill(item.values.begin(), item.values.end(), 0.0F);
  if (!wanted.text || out.input_ids.size() == static_cast<std::size_t>(planned.tokens)) return;
  // The record itself could not be read: ids of no meaning, labels where the plan supervises.
  out.input_ids.assign(static_cast<std::size_t>(planned.tokens), 0);
  out.labels.assign(static_cast<std::size_t>(planned.tokens), kIgnoreLabel);
  for (const SegmentRun& run : planned.runs) {
    const std::int32_t end = run.first_row + run.length;
    for (std::int32_t t = end - run.supervised; t < end; ++t) out.labels[static_cast<std::size_t>(t) + 1] = 0;
    if (run.item < 0) continue;
    const Modality modality =
        preparation.encoders[static_cast<std::size_t>(planned.items[static_cast<std::size_t>(run.item)].encoder)]
            .modality;
    std::fill(out.input_ids.begin() + run.first_row, out.input_ids.begin() + end,
              preparation.chat->placeholder(modality));
  }
}

LoadedSample Loader::Impl::load(const Wanted& wanted) const {
  const IndexEntry planned = entry(wanted);
  LoadedSample out;
  out.set = wanted.set;
  out.sample = wanted.sample;
  if (wanted.text) out.weights.assign(static_cast<std::size_t>(planned.tokens), 0.0F);
  for (const std::int32_t item : wanted.items) {
    const ItemShape& shape = planned.items[static_cast<std::size_t>(item)].shape;
    out.items.push_back({item, shape, {}});
    out.items.back().values.resize(static_cast<std::size_t>(shape.input_rows) *
                                   static_cast<std::size_t>(shape.input_cols));
  }
  try {
    fill(wanted, planned, out);
  } catch (const DataError& e) {
    fail(wanted, planned, out);
    out.failed = true;
    out.fault = e.fault();
    out.message = e.what();
  }
  return out;
}

void Loader::Impl::work() {
  std::unique_lock lock(mutex);
  while (true) {
    // The first sample that is not started; ahead of the front step only within the memory bound.
    std::shared_ptr<Step> step;
    std::int64_t size = 0;
    const auto ready = [&] {
      if (ending || error) return true;
      step = nullptr;
      for (const auto& s : steps) {
        if (s->started == s->wanted.size()) continue;
        size = planned_bytes(entry(s->wanted[s->started]), s->wanted[s->started]);
        if (s == steps.front() || bytes + size <= options.max_bytes) step = s;
        break;
      }
      return step != nullptr;
    };
    work_or_room.wait(lock, ready);
    if (ending || error) return;
    const std::size_t at = step->started++;
    step->bytes += size;
    bytes += size;
    peak = std::max(peak, bytes);
    const Wanted wanted = step->wanted[at];
    lock.unlock();
    std::optional<LoadedSample> sample;
    std::exception_ptr problem;
    const double before = thread_seconds();
    try {
      sample = load(wanted);
    } catch (...) {
      problem = std::current_exception();
    }
    const double spent = thread_seconds() - before;
    lock.lock();
    done.seconds += spent;
    ++done.samples;
    if (problem) {
      if (!error) error = problem;
      work_or_room.notify_all();
      finished.notify_all();
      return;
    }
    step->loaded[at] = std::move(*sample);
    if (++step->finished == step->wanted.size()) finished.notify_all();
  }
}

Loader::Loader(std::vector<const DatasetIndex*> sets, const Preparation& preparation, const LoaderOptions& options)
    : impl_(std::make_unique<Impl>(std::move(sets), preparation, options)) {
  for (int t = 0; t < std::max(options.threads, 1); ++t) impl_->threads.emplace_back([this] { impl_->work(); });
}

Loader::~Loader() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->ending = true;
  }
  impl_->work_or_room.notify_all();
  impl_->threads.clear();
}

void Loader::request(std::int64_t step, std::vector<Wanted> samples) {
  for (const Wanted& w : samples) {
    MMT_CHECK(w.set >= 0 && static_cast<std::size_t>(w.set) < impl_->sets.size(), "set {}", w.set);
    const IndexEntry e = impl_->entry(w);
    MMT_CHECK(!e.fault, "sample {} of set {} cannot be used: {}", w.sample, w.set, name_of(*e.fault));
    for (const std::int32_t item : w.items) {
      MMT_CHECK(item >= 0 && static_cast<std::size_t>(item) < e.items.size(), "item {} of {}", item, e.items.size());
    }
  }
  auto queued = std::make_shared<Impl::Step>();
  queued->number = step;
  queued->loaded.resize(samples.size());
  queued->wanted = std::move(samples);
  {
    const std::lock_guard lock(impl_->mutex);
    for (const auto& s : impl_->steps) MMT_CHECK(s->number != step, "step {} is requested already", step);
    impl_->steps.push_back(std::move(queued));
  }
  impl_->work_or_room.notify_all();
}

std::vector<LoadedSample> Loader::take(std::int64_t step, const std::atomic<bool>* stop, bool* stopped) {
  const auto start = std::chrono::steady_clock::now();
  if (stopped != nullptr) *stopped = false;
  std::unique_lock lock(impl_->mutex);
  auto at = std::find_if(impl_->steps.begin(), impl_->steps.end(), [&](const auto& s) { return s->number == step; });
  MMT_CHECK(at != impl_->steps.end(), "step {} was not requested", step);
  const std::shared_ptr<Impl::Step> wanted = *at;
  if (at != impl_->steps.begin()) {  // what is waited for comes first: the memory bound must not hold it up
    impl_->steps.erase(at);
    impl_->steps.push_front(wanted);
    impl_->work_or_room.notify_all();
  }
  const auto done = [&] { return impl_->error || wanted->finished == wanted->wanted.size(); };
  bool interrupted = false;
  while (!impl_->finished.wait_for(lock, std::chrono::milliseconds(50), done)) {
    interrupted = stop != nullptr && *stop;
    if (interrupted) break;
  }
  impl_->waited += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (impl_->error) std::rethrow_exception(impl_->error);
  if (interrupted) {
    if (stopped != nullptr) *stopped = true;
    return {};
  }
  std::erase(impl_->steps, wanted);
  impl_->bytes -= wanted->bytes;
  std::vector<LoadedSample> loaded = std::move(wanted->loaded);
  lock.unlock();
  impl_->work_or_room.notify_all();
  return loaded;
}

void Loader::clear() {
  {
    const std::lock_guard lock(impl_->mutex);
    // Samples in work belong to steps that their workers keep alive; what they hold is not counted any more.
    impl_->steps.clear();
    impl_->bytes = 0;
  }
  impl_->work_or_room.notify_all();
}

double Loader::waited_seconds() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->waited;
}

Loader::Work Loader::work_done() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->done;
}

std::int64_t Loader::bytes_in_use() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->bytes;
}

std::int64_t Loader::peak_bytes() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->peak;
}

}  // namespace mmt::data
