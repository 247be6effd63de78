#include "core/data/records/tar_set.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <map>
#include <thread>

#include "core/data/records/shard_paths.h"
#include "core/data/records/tar_fields.h"
#include "core/error.h"
#include "core/files.h"
#include "core/log.h"

namespace mmt::data {
namespace {

constexpr std::size_t kMaxOpenShards = 128;
constexpr std::uint64_t kMaxKnownBytes = std::uint64_t{8} << 30;

/// Runs `work(i)` for i < count on several threads until one throws or `stop` is raised; `report` is called now and
/// then from this thread. Throws what the lowest i threw.
void for_each_shard(std::size_t count, const OpenOptions& options, const std::function<void(std::size_t)>& work,
                    const std::function<void()>& report) {
  std::mutex mutex;
  std::condition_variable ended;
  std::map<std::size_t, std::exception_ptr> errors;
  std::size_t next = 0;
  int running =
      std::clamp(options.threads, 1, static_cast<int>(std::max<std::size_t>(std::min<std::size_t>(count, 64), 1)));
  const auto run = [&] {
    std::unique_lock lock(mutex);
    while (next < count && errors.empty() && (options.stop == nullptr || !*options.stop)) {
      const std::size_t i = next++;
      lock.unlock();
      std::exception_ptr error;
      try {
        work(i);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      if (error) errors.emplace(i, error);
    }
    --running;
    ended.notify_one();
  };
  std::vector<std::jthread> threads;
  for (int t = running; t > 0; --t) threads.emplace_back(run);
  {
    std::unique_lock lock(mutex);
    while (!ended.wait_for(lock, std::chrono::milliseconds(200), [&] { return running == 0; })) {
      lock.unlock();
      report();
      lock.lock();
    }
  }
  threads.clear();
  if (!errors.empty()) std::rethrow_exception(errors.begin()->second);
}

}  // namespace

std::unique_ptr<const TarSet> TarSet::open(const SetSpec& spec, const OpenOptions& options) {
  std::unique_ptr<TarSet> set(new TarSet);
  set->paths_ = shard_paths(spec.path);
  const std::size_t count = set->paths_.size();
  set->shards_.resize(count);
  const auto [folder, name] = beside_data(spec);
  const std::string own = spec.path.lexically_normal().string();
  const std::filesystem::path known_path =
      folder / fmt::format("{}.{:016x}.mmtshards", name, XXH3_64bits(own.data(), own.size()));
  std::map<std::string, TarShard> known;
  if (std::error_code failed; std::filesystem::exists(known_path, failed)) {
    try {
      for (KnownShard& k : read_known_shards(files::read(known_path.string(), kMaxKnownBytes))) {
        known.insert_or_assign(std::move(k.name), std::move(k.shard));
      }
    } catch (const Error& e) {
      log::warning("{}; the shards are read again", e.what());
    }
  }
  std::vector<std::uint8_t> done(count, 0);
  std::vector<std::size_t> unknown;
  for (std::size_t i = 0; i < count; ++i) {
    const TarShard now = stat_shard(set->paths_[i]);
    const auto found = known.find(set->paths_[i].string());
    if (found != known.end() && found->second.bytes == now.bytes && found->second.modified_ns == now.modified_ns) {
      set->shards_[i] = std::move(found->second);
      done[i] = 1;
    } else {
      unknown.push_back(i);
    }
  }
  std::atomic<std::int64_t> samples = 0;
  for_each_shard(
      unknown.size(), options,
      [&](std::size_t u) {
        const std::size_t i = unknown[u];
        TarShard shard = scan_shard(set->paths_[i], options.stop);
        if (options.stop != nullptr && *options.stop) return;
        samples += static_cast<std::int64_t>(shard.samples.size());
        set->shards_[i] = std::move(shard);
        done[i] = 1;
      },
      [&] {
        if (options.progress) options.progress(samples);
      });
  set->whole_ = std::count(done.begin(), done.end(), 1) == static_cast<std::ptrdiff_t>(count);
  for (const std::size_t i : unknown) set->scanned_ += done[i];
  if (options.write && set->scanned_ > 0) {
    std::vector<KnownShard> kept;
    for (std::size_t i = 0; i < count; ++i) {
      if (done[i] != 0) kept.push_back({set->paths_[i].string(), set->shards_[i]});
    }
    try {
      std::error_code ignored;
      if (!spec.index_folder.empty()) std::filesystem::create_directories(folder, ignored);
      files::write_atomic(known_path.string(), write_known_shards(kept));
    } catch (const Error& e) {
      log::warning("{}; the headers of the shards are read again at the next start", e.what());
    }
  }
  for (const TarShard& shard : set->shards_) {
    set->first_.push_back(set->first_.back() + static_cast<std::int64_t>(shard.samples.size()));
  }
  if (set->whole_ && set->size() == 0) {
    throw ConfigError(
        fmt::format("{}: no sample: members are called KEY.FIELD, such as 0001.jpg and 0001.txt", spec.path.string()));
  }
  return set;
}

TarSet::Place TarSet::place(std::int64_t i) const {
  MMT_CHECK(i >= 0 && i < size(), "sample {} of {}", i, size());
  const auto after = std::upper_bound(first_.begin(), first_.end(), i);
  const auto shard = static_cast<std::size_t>(after - first_.begin()) - 1;
  return {shard, static_cast<std::size_t>(i - first_[shard])};
}

std::int64_t TarSet::offset(std::int64_t i) const {
  const auto [shard, sample] = place(i);
  return shards_[shard].fields[shards_[shard].samples[sample].first_field].offset;
}

std::uint64_t TarSet::stamp() const {
  std::string all;
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    all += fmt::format("{}|{}|{}\n", paths_[i].filename().string(), shards_[i].bytes, shards_[i].modified_ns);
  }
  return XXH3_64bits(all.data(), all.size());
}

std::string TarSet::where(std::int64_t i) const {
  return fmt::format("{}: sample {}", paths_[place(i).shard].string(), i);
}

std::shared_ptr<const OpenFile> TarSet::file(std::size_t shard, const std::string& where) const {
  const std::lock_guard lock(mutex_);
  const auto at = std::find_if(open_.begin(), open_.end(), [&](const auto& o) { return o.first == shard; });
  std::shared_ptr<const OpenFile> file =
      at != open_.end() ? at->second
                        : OpenFile::open(paths_[shard], fmt::format("{}: {}", where, paths_[shard].string()));
  if (at != open_.end()) {
    std::rotate(at, at + 1, open_.end());
  } else {
    if (open_.size() == kMaxOpenShards) open_.erase(open_.begin());
    open_.emplace_back(shard, file);
  }
  return file;
}

Record TarSet::read(std::int64_t i) const {
  const auto [number, sample] = place(i);
  const TarShard& shard = shards_[number];
  const std::string key(shard.key(sample));
  const std::string here = with_id(where(i), key);
  const std::shared_ptr<const OpenFile> content = file(number, here);
  TarFields fields(key, here);
  for (std::size_t f = shard.samples[sample].first_field; f < shard.fields_end(sample); ++f) {
    const TarShard::Field& field = shard.fields[f];
    const std::string& name = shard.field_names[field.name];
    fields.add(name, MediaSource::stretch(content, field.offset, field.bytes, fmt::format("{}.{}", key, name)));
  }
  return fields.record();
}

}  // namespace mmt::data
